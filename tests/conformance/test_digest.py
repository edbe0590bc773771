"""Tests of digests and manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import nnr_codec as nnr
from nnr_codec.conformance.digest import BEYOND, TensorDigest, differences, manifest, read_manifest
from nnr_codec.dtypes import STORED_TYPES

from .. import arrays as hard
from ..vectors.case import TYPE_CODES, Tensor
from ..vectors.case import digest as independent


def test_worked_by_hand() -> None:
    """The expected digest is from sha256sum."""
    tensor = np.array([[1], [-2]], np.int32)
    assert nnr.digest(tensor) == "d2300abd1205761f3b2842e2537538d4c56924ba6b60b66e83595bfa8fa92ca2"


def test_worked_by_hand_beyond_the_standard() -> None:
    """The digests are from sha256sum: NNRT1, 137, one dimension of 2, 803F 81BF; and NNRT1, 134, none, FE."""
    two = np.array([0x3F80, 0xBF81], "<u2").view(STORED_TYPES["bfloat16"].dtype)
    assert nnr.digest(two) == "fb1bbf4c2afd7908352b2e1be683b01c38d3e936dd9e2a466fc358be696f20c4"
    assert (
        nnr.digest(np.array(-2, STORED_TYPES["int4"].dtype))
        == "5ce45b452f79d76c8a531eb468e107c9fb8b41c127a20db856708b95c3ee0099"
    )


@given(hard.arrays())
def test_is_what_the_vectors_are_made_with(tensor: Tensor) -> None:
    """The generators of vectors have a separate digest function; layout and byte order do not matter."""
    assert nnr.digest(tensor) == independent(tensor)


def test_every_type_has_a_number() -> None:
    digests = {nnr.digest(np.zeros(3, stored.dtype)) for stored in STORED_TYPES.values()}
    assert len(digests) == len(STORED_TYPES) == len(TYPE_CODES)
    assert set(BEYOND).isdisjoint({"int8", "int16", "int32", "int64", "float16", "float32", "float64"})


def test_distinguishes() -> None:
    values = np.zeros(4, np.float32)
    others = [values.reshape(2, 2), values.astype("f8"), values.astype("i4"), -values, values[:3], values.reshape(4, 1)]
    assert len({nnr.digest(tensor) for tensor in (values, *others)}) == 7


@pytest.mark.parametrize("dtype", ["c8", "S3", "O", "M8[s]", "V2"])
def test_types_that_no_bitstream_decodes_to(dtype: str) -> None:
    with pytest.raises(nnr.FormatError, match="no digest"):
        nnr.digest(np.zeros(3, dtype))


MODEL: dict[str, Tensor] = {"b": np.arange(6, dtype="f4").reshape(2, 3), "é": np.array(3, "i1"), "": np.zeros(0, "f8")}


def listed(model: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the manifest of a model."""
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
                ("dtype", "complex64"),
            )
        ),
        json.dumps({"tensors": [ENTRY, ENTRY], "model_sha256": "0" * 64}),
    ],
)
def test_invalid_manifests(text: str | bytes) -> None:
    with pytest.raises(nnr.FormatError):
        read_manifest(text)
