"""Tests of extracting tensors as a bitstream, without decoding."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr

from ..builder import Bitstream, ndu
from ..shared import examples
from ..vectors.few import some

RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(40, 30)).astype(np.float32)
TENSORS: dict[str, Any] = {
    "a.w": MATRIX,
    "a.b": MATRIX[0].copy(),
    "tied": MATRIX,
    "b.w": MATRIX.astype(ml_dtypes.bfloat16),
    "empty": np.empty((0, 3), np.float32),
    "b.steps": np.arange(5, dtype=np.int64),
    "b.exact": RNG.normal(size=(33, 3)),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"indexed_references": True},
    {"exact": True},
    {"scan_order": 1},
    {"reduce": "lowrank(rank=3)"},
    {"max_unit_size": 2000},
]


@given(st.sampled_from(OPTIONS), st.sets(st.sampled_from(sorted(TENSORS)), min_size=1))
def test_the_result_decodes_like_the_whole(options: dict[str, Any], names: set[str]) -> None:
    data = nnr.encode(nnr.Model(TENSORS, aliases={"tied": "a.w"}), **options)
    with nnr.open(data) as file:
        found = nnr.decode(file.extract(names))
        whole = file.decode(names=found)
    assert names <= set(found) <= names | {"a.w"}
    assert list(found) == list(whole)
    for name in found:
        assert (found[name].dtype, found[name].shape) == (whole[name].dtype, whole[name].shape)
        assert found[name].tobytes() == whole[name].tobytes()
    assert found.aliases == whole.aliases


def test_payloads_are_copied() -> None:
    data = nnr.encode({"a": MATRIX, "b": MATRIX}, qp=-20)
    with nnr.open(data) as file:
        part = file.extract(["b"])
    assert part.endswith(data[-len(part) // 2 :])


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_all_vectors_are_extracted_or_rejected() -> None:
    count: Counter[str] = Counter()
    for name, case in some("valid", "acceptable").items():
        options = {"limits": case.limits, "topology_dimensions": case.topology_dimensions, "topology": case.topology}
        try:
            file = nnr.open(case.streams[-1].path.read_bytes(), **options)
            whole = file.decode()
        except nnr.NnrError:  # it follows other bitstreams
            continue
        for one in file:
            try:
                part = file.extract([one])
            except nnr.UnsupportedError:
                count["rejected"] += 1
                continue
            found = nnr.decode(part, limits=case.limits)
            assert one in found, name
            for tensor in found:
                assert (found[tensor].dtype, found[tensor].shape) == (whole[tensor].dtype, whole[tensor].shape), name
                assert found[tensor].tobytes() == whole[tensor].tobytes(), name
            count["extracted"] += 1
    assert count["extracted"] > examples(500)
    assert 0 < count["rejected"] < 300  # most need a shape of an NNEF graph


@pytest.mark.parametrize("names", ["a", "b", "c", "ab", "bc", "ac", "abc"])
def test_layer_parameter_sets_apply_to_the_same_units(names: str) -> None:
    s = Bitstream().str_().mps(2, 0)
    s.ndu(ndu("a", [2]), [1, 2], qp=-8)
    s.lps(1, -3).ndu(ndu("b", [2]), [1, 2], qp=-8).aggregate(3)
    s.ndu(ndu("c", [2]), [1, 2], qp=-8)
    with nnr.open(s.data) as file:
        found, whole = nnr.decode(file.extract(names)), file.decode()
    assert list(found) == list(names)
    for name in names:
        assert found[name].tolist() == whole[name].tolist()
    assert whole["a"].tolist() != whole["b"].tolist()


def test_a_unit_is_extracted_as_a_whole() -> None:
    header = ndu(["a", "b"], [4], concatentation_axis_index=0, split_index=[1], number_of_shifts=[0, 0])
    with nnr.open(Bitstream().str_().mps().ndu(header, [1, 2, 3, 4]).data) as file:
        assert list(nnr.decode(file.extract(["b"]))) == ["a", "b"]


def test_updates_are_rejected() -> None:
    data = nnr.encode_update({"w": MATRIX}, {"w": MATRIX + 1})
    with nnr.open(data) as file, pytest.raises(nnr.UnsupportedError, match="update"):
        file.extract(["w"])


def test_names() -> None:
    with nnr.open(nnr.encode({"w": MATRIX})) as file:
        with pytest.raises(KeyError):
            file.extract(["w", "v"])
        with pytest.raises(ValueError, match="at least one"):
            file.extract([])
