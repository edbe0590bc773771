"""NNEF tensor files."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tracemalloc
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.nnef.tensorfile import HEADER_SIZE, header_of, read_header, read_tensor, write_tensor
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array

from .support import SYNTHETIC, dat

_EXPECTED: dict[str, dict[str, Any]] = json.loads((SYNTHETIC / "dat" / "expected.json").read_text())
_REFUSED = {
    "quint8": r"item type 0x2 \(quantized unsigned integer\) of 8 bits",
    "qint8": r"item type 0x3 \(quantized signed integer\) of 8 bits",
    "qint32": r"item type 0x3 \(quantized signed integer\) of 32 bits",
    "quint4": r"item type 0x2 \(quantized unsigned integer\) of 4 bits",
    "legacy_linear_0x10": r"item type 0x10 \(linearly quantized value of NNEF before 1\.0\.3\)",
    "legacy_log_0x11": r"item type 0x11 \(logarithmically quantized value of NNEF before 1\.0\.3\)",
    "literal_0x0100": r"item type 0x100 \(unknown\)",
    "vendor_TR": "vendor 0x5452",
    "bad_magic": "begins with 58 ef instead of 4e ef",
    "bad_version": r"version 2\.0",
    "bad_rank9": "rank 9",
    "bad_short": "135 bytes; header and items need 136",
    "bad_trailing": "137 bytes; header and items need 136",
    "bad_len": r"the header says 4 bytes of items; shape \(2,\) needs 8",
    "bad_bits_float24": r"item type 0x0 \(float\) of 24 bits",
    "bad_huge": "the header says 8 bytes of items",
    "bad_header_only64": "64 bytes are too few",
}
#: Files whose meaning survives and whose bytes do not: a legacy code, booleans of 8 bits.
_REWRITTEN = {"bool8", "legacy_int_signed"}


def read(data: bytes, limits: Limits | None = None) -> Array:
    return read_tensor(io.BytesIO(data), len(data), "x.dat", Budget(limits or Limits()))


def test_every_synthetic_file_is_expected() -> None:
    assert {path.stem for path in (SYNTHETIC / "dat").glob("*.dat")} == set(_EXPECTED)
    assert set(_REFUSED) < set(_EXPECTED)


@pytest.mark.parametrize("name", sorted(set(_EXPECTED) - set(_REFUSED)))
def test_synthetic_files_are_read(name: str) -> None:
    expected = _EXPECTED[name]
    data = (SYNTHETIC / "dat" / f"{name}.dat").read_bytes()
    array = read(data)
    assert array.shape == tuple(expected["shape"])
    if "dtype" in expected:
        assert array.dtype == np.dtype(expected["dtype"])
    values = np.array(expected["values"], array.dtype).reshape(array.shape)
    assert array.tobytes() == values.tobytes() or np.array_equal(array, values, equal_nan=True)
    assert read_header(io.BytesIO(data), len(data), name).data_type == expected["nnef_type"]
    assert (dat(array) == data) is (name not in _REWRITTEN)


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_synthetic_files_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(FormatError, match=r"^x\.dat: .*" + _REFUSED[name]):
        read((SYNTHETIC / "dat" / f"{name}.dat").read_bytes())


def test_header_layout() -> None:
    data = dat(np.arange(6, dtype=np.int16).reshape(2, 3))
    assert data[:4] == b"\x4e\xef\1\0"
    assert struct.unpack("<2I", data[4:12]) == (12, 2)
    assert struct.unpack("<8I", data[12:44]) == (2, 3, 0, 0, 0, 0, 0, 0)
    assert struct.unpack("<IHH", data[44:52]) == (16, 4, 0)
    assert data[52:HEADER_SIZE] == bytes(76)
    assert data[HEADER_SIZE:] == np.arange(6, dtype="<i2").tobytes()


def test_booleans_are_packed_from_the_highest_bit() -> None:
    data = dat(np.array([1, 0, 1, 1, 0, 0, 0, 0, 1], np.bool_))
    assert data[HEADER_SIZE:] == bytes([0b10110000, 0b10000000])
    assert struct.unpack("<I", data[44:48]) == (1,)


_DTYPES = st.sampled_from(
    [np.dtype(order + kind) for order in "<>" for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u8", "b1")]
)


@settings(deadline=None)
@given(st.data())
def test_any_array_survives(data: st.DataObject) -> None:
    dtype = data.draw(_DTYPES)
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=8, min_side=1, max_side=3))
    array = data.draw(hnp.arrays(dtype, shape))
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    encoded = dat(array)
    result = read(encoded)
    assert result.dtype == array.dtype.newbyteorder("=")
    assert result.dtype.isnative
    assert result.shape == array.shape
    assert result.tobytes() == array.astype(result.dtype).tobytes()
    assert dat(result) == encoded
    assert len(encoded) == HEADER_SIZE + header_of(array, "x").length


def test_strided_arrays_beyond_one_part() -> None:
    array = np.arange(2 * 300_001, dtype=np.float32)[::2].reshape(1, -1)
    assert np.array_equal(read(dat(array)), array)


@pytest.mark.parametrize("dtype", ["c8", "O", "U3", "S3", "M8[s]", "V2", "f4,f4"])
def test_dtypes_without_item_type(dtype: str) -> None:
    with pytest.raises(FormatError, match="nnef has no type for "):
        dat(np.zeros(2, dtype))


def test_shapes_out_of_range() -> None:
    for shape in ((1,) * 9, (0,), (2, 0)):
        with pytest.raises(FormatError, match="at most 8 extents, each at least 1"):
            dat(np.zeros(shape, np.float32))
    with pytest.raises(FormatError, match="holds at most 4,294,967,295"):
        header_of(np.broadcast_to(np.float32(0), (1 << 30,)), "x")


def test_extent_of_zero_is_refused() -> None:
    data = bytearray(dat(np.zeros((1, 1), np.float32)))
    data[12:16] = bytes(4)
    with pytest.raises(FormatError, match="is 0"):
        read(bytes(data))


def test_the_bug_of_2018_is_named() -> None:
    with pytest.raises(FormatError, match="4 bytes too many, the mark of NNEF writers of 2018"):
        read(dat(np.zeros(3, np.float32)) + bytes(4))


def test_every_truncation_is_refused() -> None:
    data = dat(np.arange(3, dtype=np.float32))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read(data[:size])
        with pytest.raises(FormatError):
            read_tensor(io.BytesIO(data[:size]), len(data), "x.dat", Budget(Limits()))


def test_limits_come_before_memory() -> None:
    # A sparse file would hold what this header promises; nothing is allocated for it here.
    header = bytearray(dat(np.zeros(1, np.float64))[:HEADER_SIZE])
    header[4:8] = struct.pack("<I", 1 << 31)
    header[12:16] = struct.pack("<I", 1 << 28)
    tracemalloc.start()
    try:
        size = HEADER_SIZE + (1 << 31)
        with pytest.raises(LimitError, match="max_tensor_bytes"):
            read_tensor(io.BytesIO(bytes(header)), size, "x.dat", Budget(Limits(max_tensor_bytes=1 << 20)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_limits_count_booleans_as_they_are_in_memory() -> None:
    with pytest.raises(LimitError, match="max_tensor_bytes"):
        read(dat(np.zeros(1000, np.bool_)), Limits(max_tensor_bytes=999))


def test_no_copies(tmp_path: Any) -> None:
    array = np.ones(1 << 20, np.float64)
    path = tmp_path / "x.dat"
    tracemalloc.start()
    try:
        with open(path, "wb") as file:
            write_tensor(file, array, "x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        with open(path, "rb") as stream:
            read_tensor(stream, path.stat().st_size, "x", Budget(Limits()))
        assert tracemalloc.get_traced_memory()[1] < array.nbytes + (1 << 20)
    finally:
        tracemalloc.stop()


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans(), st.data())
def test_any_bytes_give_an_array_or_an_error(data: bytes, headed: bool, draw: st.DataObject) -> None:
    if headed:
        base = bytearray(dat(np.arange(6, dtype=np.float32).reshape(2, 3)))
        for _ in range(draw.draw(st.integers(1, 4))):
            base[draw.draw(st.integers(2, 60))] = draw.draw(st.sampled_from([0, 1, 2, 4, 5, 8, 127, 255]))
        data = bytes(base)
    with contextlib.suppress(NnrError):
        read(data, Limits.strict())
