"""Digests and manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.conformance.digest import TensorDigest, differences, manifest, read_manifest

from ..vectors.case import DTYPE_CODES, Tensor
from ..vectors.case import digest as independent


def test_worked_by_hand() -> None:
    """By sha256sum."""
    tensor = np.array([[1], [-2]], np.int32)
    assert nnr.digest(tensor) == "d2300abd1205761f3b2842e2537538d4c56924ba6b60b66e83595bfa8fa92ca2"


@given(
    st.sampled_from(list(DTYPE_CODES)).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    )
)
def test_is_what_the_vectors_are_made_with(tensor: Tensor) -> None:
    """The generators of vectors have a digest of their own; layout and byte order do not matter."""
    assert nnr.digest(tensor) == independent(tensor)
    assert nnr.digest(tensor.astype(tensor.dtype.newbyteorder(">"))) == independent(tensor)
    assert nnr.digest(np.asarray(tensor, order="F")) == independent(tensor)


def test_distinguishes() -> None:
    values = np.zeros(4, np.float32)
    others = [values.reshape(2, 2), values.astype("f8"), values.astype("i4"), -values, values[:3], values.reshape(4, 1)]
    assert len({nnr.digest(tensor) for tensor in (values, *others)}) == 7


@pytest.mark.parametrize("dtype", ["u1", "u4", "b1", "c8", "S3", "O"])
def test_types_that_no_bitstream_decodes_to(dtype: str) -> None:
    with pytest.raises(nnr.FormatError, match="Table 15"):
        nnr.digest(np.zeros(3, dtype))


MODEL: dict[str, Tensor] = {"b": np.arange(6, dtype="f4").reshape(2, 3), "é": np.array(3, "i1"), "": np.zeros(0, "f8")}


def listed(model: Mapping[str, Tensor]) -> dict[str, Any]:
    """The manifest of a model."""
    return manifest([TensorDigest.of(name, tensor) for name, tensor in model.items()])


def test_manifest() -> None:
    written = listed(MODEL)
    assert [entry["name"] for entry in written["tensors"]] == list(MODEL)
    entries = read_manifest(json.dumps(written))
    assert [(entry.name, entry.dtype, entry.shape) for entry in entries] == [
        ("b", "float32", (2, 3)),
        ("é", "int8", ()),
        ("", "float64", (0,)),
    ]
    assert differences(entries, MODEL) == {}
    backwards = listed(dict(reversed(MODEL.items())))
    assert backwards["model_sha256"] == written["model_sha256"]
    assert listed({**MODEL, "b": -MODEL["b"]})["model_sha256"] != written["model_sha256"]
    assert listed({"a": MODEL["b"]})["model_sha256"] != listed({"c": MODEL["b"]})["model_sha256"]


def test_differences() -> None:
    entries = read_manifest(json.dumps(listed(dict.fromkeys("abcde", MODEL["b"]))))
    other = {
        "a": MODEL["b"],
        "b": MODEL["b"].T,
        "c": MODEL["b"].astype("f8"),
        "d": MODEL["b"] + np.float32(1),
        "f": MODEL["b"],
    }
    wrong = {
        "b": "has shape (3, 2), not (2, 3)",
        "c": "is float64, not float32",
        "d": "has other values",
        "e": "is missing",
        "f": "is not expected",
    }
    assert differences(entries, other) == wrong
    assert differences(entries, {name: TensorDigest.of(name, tensor) for name, tensor in other.items()}) == wrong


ENTRY = {"name": "w", "dtype": "float32", "shape": [1], "sha256": "0" * 64}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"tensors":',
        b"[" * 100_000,
        b"9" * 5000,
        json.dumps({"tensors": {}}),
        json.dumps({"tensors": [1]}),
        json.dumps({"tensors": []}),
        json.dumps({"tensors": [], "model_sha256": "0" * 64}),
        *(
            json.dumps({"tensors": [{**ENTRY, key: value}], "model_sha256": "0" * 64})
            for key, value in (
                ("name", 3),
                ("name", "\ud800"),
                ("shape", 3),
                ("shape", [-1]),
                ("shape", [True]),
                ("shape", ["1"]),
                ("sha256", "0"),
                ("sha256", "G" * 64),
                ("dtype", None),
            )
        ),
        json.dumps({"tensors": [ENTRY, ENTRY], "model_sha256": "0" * 64}),
    ],
)
def test_what_is_no_manifest(text: str | bytes) -> None:
    with pytest.raises(nnr.FormatError):
        read_manifest(text)
