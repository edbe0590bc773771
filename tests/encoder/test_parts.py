"""Parts of a model in self-contained aggregates (6.2.2, 6.4.3.8)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.performance import SparsificationRow, UnificationMap
from nnr_codec.constants import NNR_AGG, NNR_AGG_SLF, NNR_LPS, NNR_QCB, NNR_QSU
from nnr_codec.encoder import parts as module
from nnr_codec.encoder.parts import contiguous, paths_of
from nnr_codec.syntax.structures import NnrLayerParameterSetUnitPayload

RNG = np.random.default_rng(0)
TENSORS: dict[str, Any] = {f"{part}.{k}.w": RNG.normal(size=(9, 8)).astype(np.float32) for part in "ab" for k in (0, 1)}
TENSORS |= {
    "a.0.half": RNG.normal(size=(8, 3)).astype(ml_dtypes.bfloat16),
    "tied": TENSORS["b.1.w"],
    "empty": np.empty((0, 3), np.float32),
    "a.scale": np.float32(3).reshape(()),
    "b.steps": np.arange(5, dtype=np.int64),
}
MODEL = nnr.Model(TENSORS, aliases={"tied": "b.1.w"})


def aggregates(data: bytes) -> list[nnr.Unit]:
    """Return the aggregates of a bitstream, from the outside in."""
    return [unit for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_AGG]


def assert_same(model: nnr.Model, names: Any) -> None:
    """Check that the tensors have these names, and the values without parts."""
    whole = nnr.decode(nnr.encode(MODEL))
    assert set(model) == set(names)
    for name in names:
        assert (model[name].dtype, model[name].tobytes()) == (whole[name].dtype, whole[name].tobytes())


PARTS = st.dictionaries(
    st.sampled_from(["*", "a.*", "b.*", "*.w", "*.1.*", "a.0.half"]),
    st.sampled_from(["one", "two", "one/three", "one/three/four", "two/one"]),
)


@given(PARTS | st.sampled_from(["layers", 1, 300, 500]))
def test_the_model_is_the_same(parts: dict[str, str] | str | int) -> None:
    data = nnr.encode(MODEL, parts=parts)
    assert not nnr.verify(data).violations
    assert_same(nnr.decode(data), TENSORS)
    stream = nnr.StreamDecoder()
    found = dict(item for start in range(0, len(data), 100) for item in stream.feed(data[start : start + 100]))
    stream.finish()
    assert set(found) <= set(TENSORS)


@given(PARTS)
def test_each_part_decodes_alone(parts: dict[str, str]) -> None:
    data = nnr.encode(MODEL, parts=parts)
    for unit in aggregates(data):
        assert unit.header.detail.nnr_aggregate_unit_type == NNR_AGG_SLF
        part = nnr.extract(data, unit.index)
        assert not nnr.verify(part).violations
        model = nnr.decode(part)
        assert model
        assert_same(model, list(model))
    paths = {tuple(part.split("/")) for part in parts.values()}
    assert max((unit.depth for unit in aggregates(data)), default=0) < max(map(len, paths), default=1)


def test_the_last_match_names_the_part() -> None:
    names = ["a.0.w", "b.0.w", "a.1.w", "c"]
    paths = paths_of(names, nnr.EncoderConfig(parts={"a.*": "first", "*.0.*": "second/inner"}))
    assert paths == [("second", "inner"), ("second", "inner"), ("first",), ()]
    assert contiguous([("p",), (), ("q",), ("p", "r"), ("p",), ("q",)]) == [0, 3, 4, 1, 2, 5]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("encoder.layer.3.attention.weight", "encoder.layer.3"),
        ("layers/12/w", "layers/12"),
        ("conv1.weight", "conv1"),
        ("bn/running.5", "bn/running"),
        ("weight", None),
    ],
)
def test_layers(name: str, part: str | None) -> None:
    assert paths_of([name], nnr.EncoderConfig(parts="layers")) == [(part,) if part else ()]


@pytest.mark.parametrize("limit", [{"MOST_UNITS": 3}, {"MOST_BYTES": 350}])
def test_a_part_beyond_the_limits_of_a_unit_becomes_several(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(module, name, value)
    data = nnr.encode(MODEL, parts={"*": "outer/inner"})
    found = aggregates(data)
    assert len(found) > 4
    assert max(unit.size.nnr_unit_size for unit in found) <= limit.get("MOST_BYTES", 1 << 31)
    assert max(unit.header.detail.num_of_nnr_units_minus2 + 2 for unit in found) <= limit.get("MOST_UNITS", 99)
    assert_same(nnr.decode(data), TENSORS)


@pytest.mark.parametrize("size", [1, 300, 350, 500, 1 << 40])
def test_parts_of_a_size_have_at_most_that_size_or_one_tensor(size: int) -> None:
    data = nnr.encode(MODEL, parts=size)
    found, names = aggregates(data), list[str]()
    for unit in found:
        assert unit.header.detail.nnr_aggregate_unit_type == NNR_AGG_SLF
        part = nnr.decode(nnr.extract(data, unit.index))
        assert unit.size.nnr_unit_size <= size or len({*part} - {"tied", "a.0.half", "b.steps"}) < 2
        assert_same(part, list(part))
        names += part
    assert len(names) == len(set(names)) == len(TENSORS) - 1  # the empty tensor is in no part
    assert (len(found) == 1) == (size == 1 << 40)


def test_a_tensor_that_fits_no_aggregate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 150)
    with pytest.raises(nnr.EncodeError, match="part 'all' cannot contain a tensor of"):
        nnr.encode(MODEL, parts={"*": "all"})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"parts": {"*": ""}}, "empty component"),
        ({"parts": {"*": "a/"}}, "empty component"),
        ({"parts": "blocks"}, "'layers'"),
        ({"parts": [("*", "a")]}, "must map globs"),
        ({"parts": {"*": 3}}, "must map globs"),
        ({"parts": 0}, "at least 1 byte"),
        ({"parts": True}, "must map globs"),
        ({"parts": 100, "indexed_references": True}, "would not be unique"),
        ({"parts": {"*": "a"}, "max_unit_size": 1000}, "max_unit_size"),
        ({"parts": "layers", "indexed_references": True}, "indexed_references"),
    ],
)
def test_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(nnr.EncodeError, match=match):
        nnr.EncoderConfig(**options)


def test_parameter_sets_of_parts_have_the_methods_and_reductions_of_the_model() -> None:
    data = nnr.encode(
        {name: TENSORS[name] for name in ("a.0.w", "b.0.w")},
        parts={"*": "a"},
        rules=[nnr.Rule("a.*", codebook=16)],
        reduce="sparsify(ratio=0.2)",
    )
    assert nnr.verify(data).violations == nnr.verify(data).warnings == []
    (lps,) = [unit.structure for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_LPS]
    assert isinstance(lps, NnrLayerParameterSetUnitPayload)
    assert (lps.lps_quantization_method_flags, lps.lps_sparsification_flag) == (NNR_QSU | NNR_QCB, 1)


def test_updates_have_no_parts() -> None:
    with pytest.raises(nnr.EncodeError, match="whole models only"):
        nnr.encode_update({"w": np.zeros(3, np.float32)}, {"w": np.ones(3, np.float32)}, parts={"*": "a"})


def test_a_glob_without_a_match() -> None:
    with pytest.warns(nnr.EncodeWarning, match=r"parts: 'x\*' matches no tensor"):
        nnr.encode({"w": TENSORS["a.0.w"]}, parts={"x*": "a"})


def test_empty_parts_change_nothing() -> None:
    assert nnr.encode(MODEL, parts={}) == nnr.encode(MODEL)


def test_parts_have_performance_maps() -> None:
    maps = nnr.PerformanceMaps(
        nnr.SparsificationMap((SparsificationRow(0.5, 0.25, 0.75),)), unification=UnificationMap()
    )
    performance = nnr.Performance(layers={"a": nnr.PerformanceMaps(maps.sparsification), "a/b": maps})
    data = nnr.encode(MODEL, parts={"a.*": "a", "a.0.*": "a/b"}, performance=performance)
    assert not nnr.verify(data).violations
    with nnr.open(data) as file:
        assert file.performance_of("a.0.w") == maps
        assert file.performance_of("a.1.w") in (nnr.PerformanceMaps(maps.sparsification), nnr.PerformanceMaps())
        assert file.performance_of("b.0.w") == nnr.PerformanceMaps()
    assert_same(nnr.decode(data), TENSORS)


@pytest.mark.parametrize(("part", "match"), [("c", "no tensors"), ("a", "contains other parts")])
def test_maps_that_no_part_can_have(part: str, match: str) -> None:
    performance = nnr.Performance(layers={part: nnr.PerformanceMaps(unification=UnificationMap())})
    with pytest.raises(nnr.EncodeError, match=match):
        nnr.encode(MODEL, parts={"a.*": "a", "a.0.*": "a/b"}, performance=performance)
