"""The strictest limit: only the tensors that the caller expects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits

from ..builder import codebook, ndu
from .support import memory, refused, start
from .test_strict import DECODERS, Read, names

TENSORS = {"w": np.ones((3, 2), np.float32), "n": np.arange(4, dtype=np.int32)}
DATA = start().raw(ndu("w", [3, 2], kind=2), TENSORS["w"]).ndu(ndu("n", [4], kind=NNR_PT_INT), TENSORS["n"]).data
SCHEMA: dict[str, Any] = {"w": ((3, 2), "float32"), "n": ((4,), "int32")}


@names(DECODERS)
@pytest.mark.parametrize("dtypes", [str, np.dtype, lambda name: getattr(np, name)], ids=["name", "dtype", "type"])
def test_expected_tensors_are_decoded(read: Read, dtypes: Any) -> None:
    schema = {name: (shape, dtypes(dtype)) for name, (shape, dtype) in SCHEMA.items()}
    read(DATA, limits=Limits(expected=schema))


def test_the_tensors_of_a_model_are_a_schema() -> None:
    got = nnr.decode(DATA, limits=Limits(expected=TENSORS))
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(got[name], array)


@names(DECODERS)
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"w": ((2, 3), "float32")}, r"'w' is float32 \(3, 2\); expected float32 \(2, 3\)"),
        ({"w": ((6,), "float32")}, r"expected float32 \(6,\)"),
        ({"w": ((3, 2, 1), "float32")}, r"expected float32 \(3, 2, 1\)"),
        ({"w": ((3, 2), "float16")}, r"expected float16 \(3, 2\)"),
        ({"n": ((4,), "float32")}, r"'n' is int32 \(4,\); expected float32"),
        ({"w": None}, "tensor 'w' is not one of the 1 expected tensors"),
        ({"W": SCHEMA["w"], "w": None}, "tensor 'w' is not one of the 2"),
    ],
)
def test_anything_else_is_refused(read: Read, change: dict[str, Any], match: str) -> None:
    schema = {name: tensor for name, tensor in (SCHEMA | change).items() if tensor}
    with pytest.raises(nnr.LimitError, match=match):
        read(DATA, limits=Limits(expected=schema))


def test_types_that_no_bitstream_has() -> None:
    with pytest.raises(ValueError, match="complex64"):
        Limits(expected={"w": ((3,), "complex64")})


def test_an_empty_schema_expects_nothing() -> None:
    assert len(nnr.decode(start().data, limits=Limits(expected={}))) == 0
    refused(DATA, nnr.LimitError, "not one of the 0", limits=Limits(expected={}))


def test_expected_tensors_may_not_be_missing() -> None:
    schema = SCHEMA | {"v": ((1,), "float32")}
    with pytest.raises(nnr.IncompleteError, match="2 of 3 tensors; 'v' missing") as caught:
        nnr.decode(DATA, limits=Limits(expected=schema))
    assert caught.value.missing == ("v",)
    assert len(nnr.decode(DATA, limits=Limits(expected=schema), allow_missing=True)) == 2


def test_it_is_refused_before_it_is_decoded() -> None:
    """The payload would take 64 MiB within the other limits."""
    header = ndu("big", [1 << 12, 1 << 12], codebook_present_flag=1, codebook=codebook([0], 0))
    data = start().ndu(header, payload=bytes(8)).data
    with memory() as used:
        refused(data, nnr.LimitError, "not one of the 2", limits=Limits(expected=SCHEMA))
    assert used.peak < 300_000


def test_a_schema_does_not_change_with_its_source() -> None:
    source = dict(SCHEMA)
    limits = Limits(expected=source)
    source["w"] = ((9,), "int8")
    assert len(nnr.decode(DATA, limits=limits)) == 2
    assert limits.expected is not None
    with pytest.raises(TypeError):
        limits.expected["w"] = source["w"]  # type: ignore[index]


def test_pieces_and_parts_of_blocks_are_expected_by_their_own_names() -> None:
    mapping: dict[str, Any] = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]}
    data = start().ndu(ndu(["a", "b"], [3, 2], kind=NNR_PT_INT, **mapping), np.ones((3, 2))).data
    assert len(nnr.decode(data, limits=Limits(expected={"a": ((1, 2), "int32"), "b": ((2, 2), "int32")}))) == 2
    refused(data, nnr.LimitError, "'b'", limits=Limits(expected={"a": ((1, 2), "int32"), "b": ((3, 2), "int32")}))


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        (((2, 3), "float16"), r"'w' is float32 \(3, 2\)"),
        (((3, 2), "int8"), "'w' is float32"),
        (None, "'w' is not one of"),
    ],
)
def test_updates_of_other_tensors_are_refused(wanted: Any, match: str) -> None:
    """Of the type, only its kind (float or not) matters."""
    like = {"n": ((4,), "uint64"), "w": ((3, 2), "float64")}
    expected = {name: np.empty(shape, dtype) for name, (shape, dtype) in like.items()}
    assert list(nnr.UpdateDecoder(like=expected).decode(DATA)) == ["n", "w"]
    other = {name: np.empty(*tensor) for name, tensor in (like | {"w": wanted}).items() if tensor}
    with pytest.raises(nnr.LimitError, match=match):
        nnr.UpdateDecoder(like=other).decode(DATA)
