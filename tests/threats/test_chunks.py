"""T47: chunks of arrays from untrusted stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

from .support import start

pytestmark = pytest.mark.clients
numcodecs: Any = pytest.importorskip("numcodecs", reason="the package numcodecs (extra 'zarr') is not installed")

ZEROS = np.zeros((30, 40), np.float32)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"": np.zeros((40, 30), np.float32)}, r"tensor '' is float32 \(40, 30\); expected float32 \(30, 40\)"),
        ({"": np.zeros((30, 40), np.int32)}, r"is int32 \(30, 40\); expected float32"),
        ({"": np.zeros((300, 400), np.float32)}, "120,000 is more than max_tensor_elements=20,224"),
        ({"x": ZEROS}, "'x' is not one of the 1 expected tensors"),
        ({}, "incomplete: 0 of 1 tensors"),
    ],
)
def test_chunks_of_zarr_have_the_declared_shape_and_type(tensors: dict[str, Any], match: str) -> None:
    from nnr_codec.integrations.numcodecs import decode_chunk

    data = nnr.encode(tensors, exact=True) if tensors else start().data
    with pytest.raises((nnr.LimitError, nnr.IncompleteError), match=match):
        decode_chunk(data, ZEROS.shape, ZEROS.dtype)


def test_an_update_without_changes_is_no_chunk() -> None:
    from nnr_codec.integrations.numcodecs import decode_chunk

    with pytest.raises(nnr.FormatError, match="a chunk has one tensor without a name; the bitstream has none"):
        decode_chunk(nnr.encode_update({"": ZEROS}, {"": ZEROS}), ZEROS.shape, ZEROS.dtype)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"": np.zeros((300, 400), np.float32)}, "more than max_tensor_elements=49,024"),
        ({"": np.zeros((30, 41), np.float32)}, "the chunk has 4,920 bytes; out has 4,800"),
        ({"x": ZEROS}, "a chunk has one tensor without a name; the bitstream has 'x'"),
        ({"": ZEROS, ">": ZEROS}, "the bitstream has '', '>'"),
    ],
)
def test_chunks_of_numcodecs_have_the_size_of_out(tensors: dict[str, Any], match: str) -> None:
    from nnr_codec.integrations.numcodecs import Nnr

    with pytest.raises((nnr.LimitError, nnr.FormatError), match=match):
        Nnr().decode(nnr.encode(tensors, exact=True), out=np.empty_like(ZEROS))


def test_damaged_chunks() -> None:
    from nnr_codec.integrations.numcodecs import Nnr

    data = nnr.encode({"": np.arange(99.0)}, exact=True)
    for damaged in (b"", data[:-9], b"\x28\xb5\x2f\xfd" + data):
        with pytest.raises((nnr.BitstreamError, nnr.FormatError)):
            Nnr().decode(damaged)
