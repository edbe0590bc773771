"""Options of the bitstream: sizes of units, reference lists, parameter sets, topologies."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.performance import (
    DecompositionMap,
    DecompositionRow,
    Performance,
    PerformanceMaps,
    PruningMap,
    PruningRow,
    SparsificationMap,
    SparsificationRow,
    UnificationMap,
    UnificationRow,
)
from nnr_codec.constants import NNR_MPS, NNR_NDU, NNR_QNT, NNR_TPL, NNR_TPL_REFLIST, TOPOLOGY_FORMATS
from nnr_codec.model import Block, Model, Topology
from nnr_codec.syntax.structures import (
    NnrModelParameterSetUnitPayload,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)

RNG = np.random.default_rng(6)
TENSORS = {
    "w": RNG.normal(0, 0.1, (20, 9)).astype("f4"),
    "b": RNG.normal(0, 0.1, 20).astype("f4"),
    "i": RNG.integers(-1000, 1000, (30, 4)),
    "raw": RNG.normal(0, 1, (8, 8)).astype("f4"),
}
MODEL = Model(TENSORS, blocks=[Block("w", bias="b")])
RULES = (nnr.Rule("raw", exact=True),)


def same(one: Model, other: Model) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


# ------------------------------------------------------------------------------------------------ max_unit_size
@pytest.mark.medium
@given(max_unit_size=st.integers(1, 2000), scan_order=st.integers(0, 1), indexed=st.booleans())
def test_any_max_unit_size(max_unit_size: int, scan_order: int, indexed: bool) -> None:
    options: dict[str, Any] = {"rules": RULES, "scan_order": scan_order, "indexed_references": indexed}
    try:
        data = nnr.encode(MODEL, max_unit_size=max_unit_size, **options)
    except nnr.EncodeError as refusal:
        assert f"max_unit_size={max_unit_size}" in str(refusal)
        assert max_unit_size < 48
        return
    found = list(nnr.units(data))
    assert max(unit.size.nnr_unit_size for unit in found) <= max_unit_size
    same(nnr.decode(data), nnr.decode(nnr.encode(MODEL, **options)))
    for unit in found:
        partial = unit.header.partial_data_counter > 0
        assert unit.header.independently_decodable_flag == (not partial)
        assert not partial or unit.header.nnr_unit_type == NNR_NDU


def test_what_fits_is_as_without_a_size() -> None:
    data = nnr.encode(MODEL)
    largest = max(unit.size.nnr_unit_size for unit in nnr.units(data))
    assert nnr.encode(MODEL, max_unit_size=largest) == data
    assert nnr.encode(MODEL, max_unit_size=largest - 1) != data


def test_a_topology_is_not_divided() -> None:
    model = Model(TENSORS, Topology("nnef", b"version 1.0; # " + RNG.bytes(3000).hex().encode()))
    with pytest.raises(nnr.EncodeError, match=r"such as a topology, has [\d,]+ bytes, more than max_unit_size=1000"):
        nnr.encode(model, max_unit_size=1000)
    assert nnr.decode(nnr.encode(model, max_unit_size=10_000)).topology == model.topology


def test_an_impossible_size_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(nnr.EncodeError, match="'big' has"):
        nnr.encode_file({"big": RNG.normal(0, 1, (100, 100))}, tmp_path / "x.nnr", max_unit_size=40)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_no_size(value: Any) -> None:
    with pytest.raises(nnr.EncodeError, match="max_unit_size"):
        nnr.EncoderConfig(max_unit_size=value)


# ------------------------------------------------------------------------------------------------ reference lists
def test_indexed_references() -> None:
    topology = Topology("nnef", b"version 1.0;", b"quantized")
    data = nnr.encode(Model(TENSORS, topology, [Block("w", bias="b")]), indexed_references=True)
    found = list(nnr.units(data))
    assert [unit.header.nnr_unit_type for unit in found[1:5]] == [NNR_MPS, NNR_TPL, NNR_TPL, NNR_QNT]
    mps = cast(NnrModelParameterSetUnitPayload, found[1].payload)
    assert mps.mps_topology_indexed_reference_flag == 1
    assert mps.topology_carriage_flag == 1
    assert cast(NnrTopologyUnitHeader, found[3].header.detail).topology_storage_format == NNR_TPL_REFLIST
    assert cast(NnrTopologyUnitPayload, found[3].payload).topology_elem_id_list == list(TENSORS)
    assert [unit.ndu.topology_elem_ids for unit in found[5:]] == [[0, 1], [2], [3]]
    same(nnr.decode(data), nnr.decode(nnr.encode(MODEL)))
    assert nnr.decode(data).topology == topology


def test_a_reference_list_without_a_topology() -> None:
    data = nnr.encode(TENSORS, indexed_references=True)
    mps = cast(NnrModelParameterSetUnitPayload, list(nnr.units(data))[1].payload)
    assert mps.topology_carriage_flag == 0
    same(nnr.decode(data), nnr.decode(nnr.encode(TENSORS)))


def test_names_of_factors_are_in_the_list() -> None:
    model = Model({"g": np.eye(4, 2), "h": np.ones((2, 6)), "x": np.ones(2)}, blocks=[Block("w", g="g", h="h")])
    data = nnr.encode(model, indexed_references=True)
    (names,) = (
        unit.payload.topology_elem_id_list
        for unit in nnr.units(data)
        if isinstance(unit.payload, NnrTopologyUnitPayload)
    )
    assert names == ["w", "w_H", "x"]
    assert list(nnr.decode(data)) == ["w", "x"]


@pytest.mark.parametrize("tensors", [{}, {"w": TENSORS["w"]}])
def test_a_list_of_one_is_none(tensors: dict[str, Any]) -> None:
    """The syntax has no list of fewer than two (errata N7)."""
    assert nnr.encode(tensors, indexed_references=True) == nnr.encode(tensors)


# ------------------------------------------------------------------------------------------------ parameter sets
def mps_of(data: bytes) -> NnrModelParameterSetUnitPayload:
    return cast(NnrModelParameterSetUnitPayload, list(nnr.units(data))[1].payload)


def test_performance() -> None:
    maps = PerformanceMaps(
        SparsificationMap((SparsificationRow(0.5, 0.25, 0.75, 0b101, (1.0, 0.5)),)),
        PruningMap((PruningRow(0.5, 0.75),)),
        UnificationMap((UnificationRow(0.5, 0.75, (4, 4), (2,), ()),)),
        DecompositionMap((DecompositionRow(0.5, 0.75, 0.25),)),
    )
    performance = Performance("base-7", "top-1 accuracy", True, 0.875, maps)
    data = nnr.encode(MODEL, performance=performance)
    assert Performance.of(mps_of(data)) == performance
    same(nnr.decode(data), nnr.decode(nnr.encode(MODEL)))
    only_maps = Performance(maps=maps)
    assert Performance.of(mps_of(nnr.encode(MODEL, performance=only_maps, profile=0))) == only_maps


@pytest.mark.parametrize(
    ("performance", "options", "message"),
    [
        (Performance(base_model_id="x"), {"profile": 0}, "base_model_id"),
        (Performance(validation_set_performance=0.5), {}, "performance_metric_type"),
        (Performance(base_model_id="a\0b"), {}, "base_model_id"),
        ("good", {}, "performance must be a Performance, got 'good'"),
    ],
)
def test_performance_that_cannot_be_written(performance: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.encode(MODEL, performance=performance, **options)


# ------------------------------------------------------------------------------------------------ topologies
DATA = {"nnef": "version 1.0; # 権重\n".encode() * 20, "": b"\0anything\xff\0" * 20}


@pytest.mark.parametrize("name", TOPOLOGY_FORMATS.values())
@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_topologies(name: str, deflate: bool, quantized: bool) -> None:
    """They are compared byte by byte; only NNEF text ends with a zero in the bitstream (A.4, errata N9)."""
    data = DATA.get(name, DATA[""])
    topology = Topology(name, data, data[::-1] if quantized and name != "nnef" else data if quantized else None)
    coded = nnr.encode(Model(TENSORS, topology), deflate_topology=deflate)
    assert nnr.decode(coded).topology == topology
    found = {unit.header.nnr_unit_type: unit for unit in nnr.units(coded)}
    header, payload = found[NNR_TPL].header.detail, found[NNR_TPL].payload
    assert isinstance(header, NnrTopologyUnitHeader)
    assert isinstance(payload, NnrTopologyUnitPayload)
    assert TOPOLOGY_FORMATS[header.topology_storage_format] == name
    assert header.topology_compression_format == deflate
    carried = zlib.decompress(payload.topology_data) if deflate else payload.topology_data
    assert carried == data + b"\0" * (name == "nnef")
    assert (NNR_QNT in found) == quantized
    if quantized:
        quantization = found[NNR_QNT]
        assert isinstance(quantization.header.detail, NnrQuantizationUnitHeader)
        assert TOPOLOGY_FORMATS[quantization.header.detail.quantization_storage_format] == name
        assert quantization.header.detail.quantization_compression_format == deflate
        assert isinstance(quantization.payload, NnrQuantizationUnitPayload)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (Topology("caffe", b"x"), "format 'caffe' has no number"),
        (Topology("nnef", b"\xff"), "not UTF-8"),
        (Topology("nnef", b"a\0b"), "zero byte"),
        (Topology("nnef", b"a", b"\xff"), "the NNEF quantization is not UTF-8"),
        (Topology("onnx", b""), "means no topology"),
        (Topology("", b"\0\0"), "means no topology"),
    ],
)
def test_topologies_that_have_no_place(topology: Topology, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.encode(replace(MODEL, topology=topology))
