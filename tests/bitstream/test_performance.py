"""Performance maps as objects, and their scope (6.3.4.3, 6.4.4.3, 6.4.4.4)."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream import performance as p
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_LPS, NNR_MPS
from nnr_codec.errors import WriteError
from nnr_codec.limits import Limits
from nnr_codec.syntax import BitReader, BitWriter, Reader, Sampler, SampleReader, Session, Structure, Writer
from nnr_codec.syntax.structures import (
    NnrLayerParameterSetUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrUnitHeader,
    SparsificationPerformanceMap,
    UnificationPerformanceMap,
)

from ..builder import Bitstream

pytestmark = pytest.mark.medium

KINDS: Any = [p.SparsificationMap, p.PruningMap, p.UnificationMap, p.DecompositionMap]

ROW = p.SparsificationRow(0.5, 0.25, 0.75, class_bitmask=0b1001, class_accuracies=(0.5, 1.0))
MAPS = p.PerformanceMaps(
    p.SparsificationMap((ROW, p.SparsificationRow(0.125, 0.5, 0.625))),
    p.PruningMap((p.PruningRow(0.5, 0.75, 1 << 20, (0.25,)),)),
    p.UnificationMap((p.UnificationRow(0.5, 1.0, (64, 9, 64), (64, 64), None, 3, (0.5, 0.5)),)),
    p.DecompositionMap((p.DecompositionRow(0.5, 0.75, 0.25, (0.5,) * 300),)),
)


def coded(structure: Structure) -> bytes:
    """Return the structure's bits; a map may end anywhere in a byte."""
    writer = BitWriter()
    Writer(Session(), writer).write(structure)
    return writer.getvalue()


def float32() -> st.SearchStrategy[float]:
    return st.floats(width=32, allow_nan=False)


def rows(kind: Any) -> st.SearchStrategy[Any]:
    """Draw rows that the table permits."""
    mask, accuracies = st.integers(0, 1 << 24), st.lists(float32(), max_size=5).map(tuple)
    dims = st.none() | st.lists(st.integers(0, 255), max_size=4).map(tuple)
    made = {
        p.SparsificationMap: st.builds(p.SparsificationRow, *[float32()] * 3, mask, accuracies),
        p.PruningMap: st.builds(p.PruningRow, *[float32()] * 2, mask, accuracies),
        p.UnificationMap: st.builds(p.UnificationRow, *[float32()] * 2, dims, dims, dims, mask, accuracies),
        p.DecompositionMap: st.builds(p.DecompositionRow, *[float32()] * 3, accuracies),
    }
    return st.lists(made[kind], max_size=4).map(tuple)


# ------------------------------------------------------------------------------------------------ conversion
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_round_trip(kind: Any, data: st.DataObject) -> None:
    table = kind(data.draw(rows(kind)))
    structure = table.structure()
    again = Reader(Session(), BitReader(coded(structure))).read(type(structure))
    assert again == structure
    assert kind.of(again) == table


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_structure_comes_back(kind: Any, data: st.DataObject) -> None:
    """The structure is any that the table and its count permit; a count of 0 dimensions differs from a count of 1."""
    sampler = Sampler(lambda low, high: data.draw(st.integers(low, min(high, 6))), Limits())
    structure = SampleReader(Session(), sampler).read(type(kind().structure()))
    if getattr(structure, kind._count) == 0:
        with pytest.raises(nnr.ElementError, match="must be greater"):
            kind.of(structure)
        return
    back = kind.of(structure).structure()
    assert back == structure
    assert coded(back) == coded(structure)


def test_a_count_is_one_more_than_what_it_counts() -> None:
    """The loops of a map run to count - 1 (errata I16)."""
    table = p.UnificationMap((p.UnificationRow(0.5, 1.0, (7, 8), (), None),))
    structure = table.structure()
    assert isinstance(structure, UnificationPerformanceMap)
    assert structure.upm_count_thresholds == 2
    assert structure.count_resaped_tensor_dimension == [3]
    assert structure.count_super_block_dimension == [1]
    assert structure.count_block_dimension == [0]
    assert structure.upm_count_classes == [0]
    assert table.of(structure) == table


def test_not_a_number_keeps_its_bits() -> None:
    data = bytearray(coded(p.DecompositionMap((p.DecompositionRow(0.0, 0.0, 0.0),)).structure()))
    data[1:5] = struct.pack("<I", 0x7F812345)  # a signaling not-a-number
    structure = Reader(Session(), BitReader(bytes(data))).read(type(p.DecompositionMap().structure()))
    table = p.DecompositionMap.of(structure)
    assert math.isnan(table.rows[0].mse_threshold)
    assert coded(table.structure()) == bytes(data)


@pytest.mark.parametrize(
    "elements",
    [
        {"sparsification_threshold": [0.5, 0.5]},
        {"non_zero_ratio": []},
        {"spm_count_classes": []},
        {"spm_count_classes": [1, 1]},
        {"spm_count_classes": [2]},
        {"spm_nn_class_accuracy": []},
        {"spm_nn_class_accuracy": [[0.5], [0.5]]},
    ],
)
def test_lists_must_be_as_counted(elements: dict[str, Any]) -> None:
    row = p.SparsificationRow(0.5, 0.5, 0.5, 1, (0.5,))
    structure = p.SparsificationMap((row,)).structure()
    for name, value in elements.items():
        setattr(structure, name, value)
    with pytest.raises(nnr.ElementError, match=r"has .* entries in .*; .* are required"):
        p.SparsificationMap.of(structure)


@pytest.mark.parametrize(
    "table",
    [
        p.SparsificationMap((ROW,) * 255),
        p.SparsificationMap((p.SparsificationRow(1e39, 0.0, 0.0),)),
        p.SparsificationMap((p.SparsificationRow(0.0, 0.0, 0.0, -1),)),
        p.PruningMap((p.PruningRow(0.0, 0.0, 0, (0.0,) * 256),)),
        p.UnificationMap((p.UnificationRow(0.0, 0.0, block_dimensions=(256,)),)),
    ],
)
def test_what_the_syntax_cannot_hold_is_not_written(table: p.SparsificationMap) -> None:
    with pytest.raises(WriteError):
        coded(table.structure())


# ------------------------------------------------------------------------------------------------ classes
def test_the_mask_counts_from_its_most_significant_bit() -> None:
    assert ROW.by_class(4) == {0: 0.5, 3: 1.0}
    assert ROW.by_class(6) == {2: 0.5, 5: 1.0}  # written without its leading zeros
    assert p.PruningRow(0.5, 0.5).by_class(1000) == {}


@pytest.mark.parametrize(("mask", "accuracies", "classes"), [(0b11, (0.5,), 4), (0b1, (), 4), (0b10000, (0.5,), 4)])
def test_a_mask_must_fit(mask: int, accuracies: tuple[float, ...], classes: int) -> None:
    with pytest.raises(nnr.ElementError, match="class bit mask"):
        p.PruningRow(0.5, 0.5, mask, accuracies).by_class(classes)


# ------------------------------------------------------------------------------------------------ parameter sets
@given(st.sets(st.sampled_from(["sparsification", "pruning", "unification", "decomposition"])))
def test_each_map_has_its_flag(names: set[str]) -> None:
    maps = p.PerformanceMaps(**{name: getattr(MAPS, name) for name in names})
    payload = NnrModelParameterSetUnitPayload(**maps.elements("mps"))
    again = Reader(Session(), BitReader(coded(payload))).read(NnrModelParameterSetUnitPayload)
    assert p.PerformanceMaps.of(again) == maps
    if "decomposition" not in names:
        layer = NnrLayerParameterSetUnitPayload(**maps.elements("lps"))
        assert p.PerformanceMaps.of(Reader(Session(), BitReader(coded(layer))).read(type(layer))) == maps


def test_a_map_of_no_rows_is_present() -> None:
    maps = p.PerformanceMaps(decomposition=p.DecompositionMap())
    payload = NnrModelParameterSetUnitPayload(**maps.elements("mps"))
    assert payload.mps_decomposition_performance_map_flag == 1
    assert p.PerformanceMaps.of(payload) == maps != p.PerformanceMaps()


def test_a_layer_has_no_decomposition_map() -> None:
    with pytest.raises(WriteError, match="no decomposition"):
        MAPS.elements("lps")


PERFORMANCES = [
    p.Performance(),
    p.Performance(base_model_id="base/1", maps=MAPS),
    p.Performance("", "top-1", True, None),
    p.Performance(None, "F1", False, 0.625),
    p.Performance("größe", "", True, -1.5, MAPS),
]


@pytest.mark.parametrize("performance", PERFORMANCES)
def test_optional_parts_of_the_model_parameter_set(performance: p.Performance) -> None:
    payload = NnrModelParameterSetUnitPayload(**performance.elements())
    writer = BitWriter()
    Writer(Session(general_profile_idc=1), writer).write(payload)
    reader = Reader(Session(general_profile_idc=1), BitReader(writer.getvalue()))
    assert p.Performance.of(reader.read(NnrModelParameterSetUnitPayload)) == performance


@pytest.mark.parametrize(
    "performance",
    [
        p.Performance(performance_metric_type="top-1"),
        p.Performance(validation_set_performance=0.5),
        p.Performance(metric_type_performance_map_valid_flag=True),
    ],
)
def test_a_metric_is_of_something(performance: p.Performance) -> None:
    with pytest.raises(WriteError, match="performance_metric_type"):
        performance.elements()


def test_profile_0_has_no_place_for_them() -> None:
    payload = NnrModelParameterSetUnitPayload(**p.Performance("base").elements())
    with pytest.raises(WriteError, match="does not have it"):
        coded(payload)


def test_no_parameter_set_says_nothing() -> None:
    assert p.Performance.of(None) == p.Performance()
    assert p.maps_for(Session()) == p.maps_for(Session(), layer=True) == p.PerformanceMaps()


# ------------------------------------------------------------------------------------------------ scope
def with_maps(s: Bitstream, kind: int, maps: p.PerformanceMaps) -> None:
    """Return an MPS or LPS with these maps."""
    if kind == NNR_MPS:
        s.unit(
            NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()),
            NnrModelParameterSetUnitPayload(**maps.elements("mps")),
        )
    else:
        s.unit(
            NnrUnitHeader(nnr_unit_type=NNR_LPS, detail=NnrLayerParameterSetUnitHeader(lps_self_contained_flag=0)),
            NnrLayerParameterSetUnitPayload(**maps.elements("lps")),
        )


def sparse(threshold: float) -> p.PerformanceMaps:
    return p.PerformanceMaps(p.SparsificationMap((p.SparsificationRow(threshold, 0.5, 0.5),)))


def test_a_layers_maps_hold_from_its_parameter_set_to_the_next_or_the_end_of_its_aggregate() -> None:
    s = Bitstream().str_()
    with_maps(s, NNR_MPS, sparse(1.0))
    other = NnrUnitHeader(nnr_unit_type=32)
    s.unit(other, b"\0")
    with_maps(s, NNR_LPS, sparse(2.0))
    s.unit(other, b"\1")
    with_maps(s, NNR_LPS, p.PerformanceMaps(pruning=MAPS.pruning))
    s.unit(other, b"\2")
    inside = len(s.units)
    with_maps(s, NNR_LPS, sparse(3.0))
    s.unit(other, b"\3").aggregate(inside)
    s.unit(other, b"\4")
    layers = {}
    reader = UnitReader(s.data)
    for unit in reader:
        if unit.header.nnr_unit_type == 32:
            assert p.maps_for(reader.session) == sparse(1.0)  # on the whole model, whatever layers say
            layers[bytes(unit.payload)[0]] = p.maps_for(reader.session, layer=True)  # type: ignore[arg-type]
    assert layers == {
        0: p.PerformanceMaps(),
        1: sparse(2.0),
        2: p.PerformanceMaps(pruning=MAPS.pruning),
        3: sparse(3.0),
        4: p.PerformanceMaps(),
    }


def test_a_map_that_counts_nothing_does_not_keep_the_tensors_from_decoding() -> None:
    s = Bitstream().str_()
    payload = NnrModelParameterSetUnitPayload(
        mps_sparsification_flag=1, sparsification=SparsificationPerformanceMap(spm_count_thresholds=0)
    )
    s.unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), payload)
    assert len(nnr.decode(s.data)) == 0
