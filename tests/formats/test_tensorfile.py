"""Tests of NNEF tensor files."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import struct
import tracemalloc
from random import Random
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

from .support import SYNTHETIC, dat, head

_EXPECTED: dict[str, dict[str, Any]] = json.loads((SYNTHETIC / "dat" / "expected.json").read_text())
_REFUSED = {
    "literal_0x0100": r"item type 0x100 is a misprint in NNEF 1\.0\.3; use 4 \(signed integer\)",
    "bad_magic": "begins with 58 ef instead of 4e ef",
    "bad_version": r"version 2\.0",
    "bad_rank9": "rank 9",
    "bad_short": "135 bytes; header and items require 136",
    "bad_trailing": "137 bytes; header and items require 136",
    "bad_len": r"the header declares 4 bytes of items; shape \(2,\) requires 8",
    "bad_bits_float24": r"item type 0x0 \(float\) cannot have 24 bits",
    "bad_huge": "the header declares 8 bytes of items",
    "bad_header_only64": "the file has 64 bytes; the header",
}
#: Files whose header differs from the default one.
_OTHERWISE = {"bool8", "legacy_int_signed", "legacy_linear_0x10", "legacy_log_0x11", "quint4"}
#: Content of the files for which expected.json has the meaning.
_STORED = {
    "bool8": [7 * value for value in _EXPECTED["bool8"]["values"]],
    "legacy_linear_0x10": [0x00, 0x55, 0xAA, 0xFF],
    "legacy_log_0x11": [0, 5, 10, 15],
}


def read(data: bytes, limits: Limits | None = None) -> Array:
    return read_tensor(io.BytesIO(data), len(data), "x.dat", Budget(limits or Limits()))


def test_every_synthetic_file_is_expected() -> None:
    assert {path.stem for path in (SYNTHETIC / "dat").glob("*.dat")} == set(_EXPECTED)
    assert set(_REFUSED) < set(_EXPECTED)


@pytest.mark.parametrize("name", sorted(set(_EXPECTED) - set(_REFUSED) - {"vendor_TR"}))
def test_synthetic_files_are_read(name: str) -> None:
    expected = _EXPECTED[name]
    data = (SYNTHETIC / "dat" / f"{name}.dat").read_bytes()
    array = read(data)
    assert array.shape == tuple(expected["shape"])
    if "dtype" in expected:
        assert array.dtype == np.dtype(expected["dtype"])
    values = np.array(_STORED.get(name, expected["values"]), array.dtype).reshape(array.shape)
    assert array.tobytes() == values.tobytes() or np.array_equal(array, values, equal_nan=True)
    header = read_header(io.BytesIO(data), len(data), name)
    assert header.data_type == expected["nnef_type"]
    assert header.is_written is (name not in _OTHERWISE)
    if name != "bool8":  # has values that only its own header can represent
        assert (dat(array, header.data_type) == data) is header.is_written
    assert dat(array, header.data_type, header.fields.hex()) == data


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


def packed(values: list[int], bits: int) -> bytes:
    """Return items in sequence, the highest bit first, with zero bits up to a byte; uses Python's integers only."""
    digits = "".join(f"{value % (1 << bits):0{bits}b}" for value in values)
    digits += "0" * (-len(digits) % 8)
    return int(digits, 2).to_bytes(len(digits) // 8, "big")


def extremes(bits: int, signed: bool, count: int) -> list[int]:
    """Return integers of any size, including the smallest and the largest."""
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    random = Random(bits)
    return [least, most, *(random.randint(least, most) for _ in range(count - 2))]


@pytest.mark.parametrize(("item_type", "signed"), [(1, False), (2, False), (3, True), (4, True), (0x10, False)])
def test_integers_of_every_width(item_type: int, signed: bool) -> None:
    for bits in range(1, 65):
        values = extremes(bits, signed, 13)
        width = next(width for width in (8, 16, 32, 64) if width >= bits)
        dtype = np.dtype(f"<{'i' if signed else 'u'}{width // 8}")
        # Items of whole integers are in the byte order of the file; all others are a bit stream.
        items = packed(values, bits) if bits < width else np.array(values, dtype).tobytes()
        data = head(item_type, bits, (13,)) + items
        array = read(data)
        assert array.dtype == dtype
        assert array.tolist() == values, bits
        header = read_header(io.BytesIO(data), len(data), "x.dat")
        assert dat(array, header.data_type, header.fields.hex()) == data, bits
        assert header.is_written is (bits == width and item_type != 0x10), bits
        assert header.is_quantized is (item_type in (2, 3)), bits


@pytest.mark.parametrize("parameters", [b"\1", b"\0\0\x80\x3f", b"\0\0\0\x80"])
def test_signed_integers_before_1_0_3(parameters: bytes) -> None:
    """Any first parameter except 0 marks them, whether it is stored as an integer or as a float."""
    data = head(1, 5, (3,), parameters=parameters) + packed([-16, 3, -1], 5)
    assert read(data).dtype == np.int8
    assert read(data).tolist() == [-16, 3, -1]
    assert dat(read(data), "integer", data[16:].hex()[: 2 * 112]) == data
    # For floats, a parameter has no meaning, nor do parameters after the first.
    assert read(head(0, 32, (1,), parameters=b"\1") + bytes(4)).dtype == np.float32
    assert read(head(1, 8, (1,), parameters=bytes(4) + b"\1") + b"\xff").tolist() == [255]


def test_packed_items_beyond_one_part() -> None:
    values = extremes(11, True, 100_003)
    data = head(4, 11, (100_003, 1)) + packed(values, 11)
    array = read(data)
    assert array.reshape(-1).tolist() == values
    other = np.asfortranarray(np.repeat(array.astype(">i2"), 2, axis=1))[:, :1]
    assert dat(other, "integer", data[20:HEADER_SIZE].hex()) == data


@pytest.mark.parametrize(("item_type", "bits", "count"), [(5, 1, 3), (5, 1, 9), (3, 3, 1), (2, 12, 3), (4, 63, 1)])
def test_bits_after_the_last_item_are_zero(item_type: int, bits: int, count: int) -> None:
    data = head(item_type, bits, (count,)) + packed([0] * count, bits)
    assert not read(data).any()
    for bit in range(-count * bits % 8):
        with pytest.raises(FormatError, match=r"^x\.dat: the bits after the last item are not 0"):
            read(data[:-1] + bytes([1 << bit]))
    # One bit higher belongs to an item.
    assert read(data[:-1] + bytes([1 << -count * bits % 8])).any()


def test_booleans_of_8_bits() -> None:
    data = head(5, 8, (4,)) + bytes([0, 1, 1, 0])
    assert read(data).dtype == np.bool_
    assert read(data).tolist() == [False, True, True, False]
    other = data[:-1] + b"\xff"
    assert read(other).dtype == np.uint8
    assert read(other).tolist() == [0, 1, 1, 255]
    for one in (data, other):
        assert dat(read(one), "logical", one[16:HEADER_SIZE].hex()) == one
    with pytest.raises(FormatError, match="unsigned integer is integer data; the variable is logical"):
        dat(read(other), "logical")


@pytest.mark.parametrize(
    ("item_type", "bits", "message"),
    [
        *((0, bits, rf"item type 0x0 \(float\) cannot have {bits} bits") for bits in (0, 1, 8, 24, 31, 80, 128)),
        *((5, bits, rf"item type 0x5 \(boolean\) cannot have {bits} bits") for bits in (0, 2, 7, 9, 16, 32)),
        *(
            (kind, bits, f"cannot have {bits} bits")
            for kind in (1, 2, 3, 4, 16, 17)
            for bits in (0, 65, 128, (1 << 32) - 1)
        ),
        *((kind, 8, f"NNEF does not define item type {kind:#x} ") for kind in (6, 15, 18, 0x1000, 0xFFFF)),
        (0x0100, 8, r"item type 0x100 is a misprint in NNEF 1\.0\.3; use 4 \(signed integer\)"),
        (0x0101, 1, r"item type 0x101 is a misprint in NNEF 1\.0\.3; use 5 \(boolean\)"),
    ],
)
def test_item_types_that_are_refused(item_type: int, bits: int, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^x\.dat: .*{message}"):
        read(
            head(item_type, bits if bits < 1 << 31 else 8, (1,))[:44] + struct.pack("<2I", bits, item_type) + bytes(92)
        )


def vendor_file(shape: tuple[int, ...], data: bytes, item_type: int = 0x2040, bits: int = 0xFFFFFFFF) -> bytes:
    """Return a tensor file of tract, with any data in place of the items."""
    raw = bytearray(head(item_type, 8, shape[:1], vendor=0x5452))
    raw[4:12] = struct.pack("<2I", len(data), len(shape))
    raw[12 : 12 + 4 * len(shape)] = struct.pack(f"<{len(shape)}I", *shape)
    raw[44:48] = struct.pack("<I", bits)
    return bytes(raw) + data


@pytest.mark.parametrize("item_type", [0, 4, 0x100, 0x2040])
@pytest.mark.parametrize(
    ("shape", "length", "dtype"),
    [((), 1, "u1"), ((16, 96), 864, "u1"), ((3,), 3, "u1"), ((3,), 4, "u2"), ((3,), 7, "u4"), ((3,), 24, "u8")],
)
def test_data_of_vendors_is_kept(item_type: int, shape: tuple[int, ...], length: int, dtype: str) -> None:
    data = bytes((7 * k + 1) % 251 for k in range(length - 1)) + b"\0"
    file = vendor_file(shape, data, item_type)
    array, header = read(file), read_header(io.BytesIO(file), len(file), "test")
    assert (array.shape, array.dtype, header.data_type, header.is_quantized) == (shape, np.dtype(dtype), "", False)
    assert array.astype(array.dtype.newbyteorder("<")).tobytes() == data.ljust(array.nbytes, b"\0")
    for data_type in ("scalar", "integer", "logical"):
        assert dat(array, data_type, header.text) == file
        assert dat(array.astype(f">{dtype}"), data_type, header.text) == file


@pytest.mark.parametrize(("shape", "length"), [((9,), 1), ((1 << 31,), 1), ((2,), 17), ((1,), 0)])
def test_vendor_data_has_1_to_64_bits_an_item(shape: tuple[int, ...], length: int) -> None:
    with pytest.raises(FormatError, match=r"item type 0x2040 of vendor 0x5452 \(tract\) has [\d,]+ bytes for"):
        read(vendor_file(shape, b"x" * length))


def test_vendor_data_fits_its_header() -> None:
    file = vendor_file((4,), b"abc")
    text = read_header(io.BytesIO(file), len(file), "test").text
    with pytest.raises(FormatError, match="vendor data is longer than its header declares"):
        dat(np.ones(4, np.uint8), "scalar", text)
    with pytest.raises(FormatError, match=r"the vendor data has shape \(4,\); the tensor has \(3,\)"):
        dat(np.ones(3, np.uint8), "scalar", text)
    assert dat(np.ones(4, np.float32), "scalar", text) == dat(np.ones(4, np.float32))


def quantized_file(item_type: int, bits: int, low: float, high: float, items: list[int]) -> bytes:
    """Return a tensor file of NNEF 1.0 to 1.0.2 with unpacked items of at least 8 bits, or of fewer bits."""
    parameters = np.array([low, high], "<f4").tobytes()
    stream = "".join(f"{item:0{bits}b}" for item in items)
    stream += "0" * (-len(stream) % 8)
    data = bytes(int(stream[k : k + 8], 2) for k in range(0, len(stream), 8))
    if bits in (8, 16, 32, 64):
        data = np.array(items, f"<u{bits // 8}").tobytes()
    return head(item_type, bits, (len(items),), parameters=parameters) + data


@pytest.mark.parametrize("name", ["legacy_linear_0x10", "legacy_log_0x11"])
def test_quantized_values_of_the_synthetic_files(name: str) -> None:
    data = (SYNTHETIC / "dat" / f"{name}.dat").read_bytes()
    header = read_header(io.BytesIO(data), len(data), name)
    numbers = header.dequantized(read(data))
    assert numbers.dtype == header.numbers == np.float32
    assert numbers.tolist() == np.float32(_EXPECTED[name]["values"]).tolist()


@pytest.mark.parametrize(
    ("item_type", "bits", "low", "high", "items", "numbers"),
    [
        (0x10, 8, -2.0, 3.0, [0, 51, 255], [-2.0, -1.0, 3.0]),
        (0x10, 1, -2.0, 3.0, [0, 1], [-2.0, 3.0]),
        (0x10, 64, -2.0, 3.0, [0, (1 << 64) - 1], [-2.0, 3.0]),
        (0x10, 32, 0.0, 1.0, [1 << 31], [(1 << 31) / ((1 << 32) - 1)]),
        (0x11, 4, 0.0, 8.0, [0, 5, 10, 15], [2.0**-12, 2.0**-7, 0.25, 8.0]),
        (0x11, 4, 0.0, 7.0, [15], [8.0]),
        (0x11, 4, 0.0, 9.0, [15], [16.0]),
        (0x11, 5, -8.0, 8.0, [0, 5, 15, 16, 21, 31], [2.0**-12, 2.0**-7, 8.0, -(2.0**-12), -(2.0**-7), -8.0]),
        (0x11, 16, 0.0, 1.0, [0, 65535 - 10, 65535], [0.0, 2.0**-10, 1.0]),
        (0x11, 64, -1.0, 1.0, [0, (1 << 63) - 2, (1 << 64) - 1], [0.0, 0.5, -1.0]),
        (0x11, 4, 0.0, 0.0, [1], [math.nan]),
        (0x11, 4, 0.0, math.inf, [1], [math.nan]),
        (0x10, 4, 0.0, math.nan, [1], [math.nan]),
    ],
)
def test_formulas_of_quantized_values(
    item_type: int, bits: int, low: float, high: float, items: list[int], numbers: list[float]
) -> None:
    data = quantized_file(item_type, bits, low, high, items)
    header = read_header(io.BytesIO(data), len(data), "test")
    array = read(data)
    assert array.tolist() == items
    found = header.dequantized(array)
    assert found.dtype == (np.float32 if bits <= 24 else np.float64)
    assert np.array_equal(found, np.array(numbers, found.dtype), equal_nan=True)


_FIELDS = head(0, 32, (2,))[16:]


@pytest.mark.parametrize("rank", range(9))
def test_every_byte_of_a_header_is_kept(rank: int) -> None:
    """This includes unused extents, parameters and reserved bytes, which no reader uses."""
    raw = bytearray(head(0, 16, (1,) * rank))
    for offset in (*range(12 + 4 * rank, 44), *range(52, HEADER_SIZE)):
        raw[offset] = offset
    data = bytes(raw) + b"\0\x3c"
    header = read_header(io.BytesIO(data), len(data), "x.dat")
    assert header.shape == (1,) * rank
    assert not header.is_written
    assert read(data).tolist() == np.ones(header.shape).tolist()
    assert dat(read(data), "scalar", header.fields.hex()) == data


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("0", "'0' is not a valid part of a tensor file header"),
        ("zz", "'zz' is not a valid part of a tensor file header"),
        ("\ud800", r"'\\ud800' is not a valid part of a tensor file header"),
        ((_FIELDS + b"\1").hex(), "is not a valid part of a tensor file header"),
        ("", r"item type 0x0 \(float\) cannot have 0 bits"),
        ((_FIELDS[:28] + b"\x18").hex(), r"item type 0x0 \(float\) cannot have 24 bits"),
        (head(4, 65, (2,))[16:].hex(), r"item type 0x4 \(signed integer\) cannot have 65 bits"),
        (head(7, 32, (2,))[16:].hex(), "NNEF does not define item type 0x7 "),
        (head(0x100, 32, (2,))[16:].hex(), "misprint in NNEF 1.0.3; use 4"),
        (head(0, 32, (2,), vendor=0x5452)[16:].hex(), r"vendor 0x5452 \(tract\)"),
    ],
)
def test_fields_that_are_no_header(fields: str, message: str) -> None:
    # Also if they are not used, because no such file contains the array.
    for dtype in (np.float32, np.float64):
        with pytest.raises(FormatError, match=rf"^test: .*{message}"):
            dat(np.zeros(2, dtype), "scalar", fields)


def test_fields_of_another_data_type() -> None:
    with pytest.raises(FormatError, match=r"^test: quantized signed integer is scalar data; the variable is integer$"):
        dat(np.zeros(2, np.int8), "integer", head(3, 8, (2,))[16:].hex())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [1, 4, 7, 15, 33, 63])
def test_items_that_do_not_fit_their_width(bits: int, signed: bool) -> None:
    fields = head(3 if signed else 2, bits, (2,))[16:].hex()
    width = next(width for width in (8, 16, 32, 64) if width >= bits)
    least, most = extremes(bits, signed, 2)
    for values in ([least, most + 1], [most, least - 1]) if signed else ([least, most + 1],):
        with pytest.raises(FormatError, match=f"^test: an item does not fit the {bits} bits"):
            dat(np.array(values, f"{'i' if signed else 'u'}{width // 8}"), "scalar", fields)


def test_fields_hold_for_arrays_as_they_are_read_only() -> None:
    """A converted tensor gets the header of its new dtype."""
    fields = head(0x10, 8, (2,), parameters=b"\1\2\3\4")[16:].hex()
    assert dat(np.zeros(2, ">u1"), "scalar", fields)[52:56] == b"\1\2\3\4"
    for dtype in ("f4", "f8", "i1", "u2"):
        assert dat(np.zeros(2, dtype), "scalar", fields) == dat(np.zeros(2, dtype), "scalar")


@pytest.mark.parametrize(
    ("dtype", "data_type", "item_type"),
    [("f2", "scalar", 0), ("u1", "integer", 1), ("u8", "scalar", 2), ("i4", "scalar", 3), ("i2", "integer", 4)],
)
def test_item_types_of_our_own_choice(dtype: str, data_type: str, item_type: int) -> None:
    array = np.zeros(3, dtype)
    assert dat(array, data_type) == head(item_type, 8 * array.itemsize, (3,)) + array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "data_type"), [("f4", "integer"), ("f4", "logical"), ("u1", "logical"), ("?", "scalar")]
)
def test_data_types_that_do_not_fit(dtype: str, data_type: str) -> None:
    with pytest.raises(FormatError, match=f"data; the variable is {data_type}$"):
        dat(np.zeros(3, dtype), data_type)


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
    header = read_header(io.BytesIO(encoded), len(encoded), "x.dat")
    assert header.is_written
    assert len(encoded) == HEADER_SIZE + header.length


def test_strided_arrays_beyond_one_part() -> None:
    array = np.arange(2 * 300_001, dtype=np.float32)[::2].reshape(1, -1)
    assert np.array_equal(read(dat(array)), array)


@pytest.mark.parametrize("dtype", ["c8", "O", "U3", "S3", "M8[s]", "V2", "f4,f4"])
def test_dtypes_without_item_type(dtype: str) -> None:
    with pytest.raises(FormatError, match="nnef does not support dtype "):
        dat(np.zeros(2, dtype))


def test_shapes_out_of_range() -> None:
    for shape in ((1,) * 9, (0,), (2, 0)):
        with pytest.raises(FormatError, match="at most 8 extents, each at least 1"):
            dat(np.zeros(shape, np.float32))
    with pytest.raises(FormatError, match="holds at most 4,294,967,295"):
        header_of(np.broadcast_to(np.float32(0), (1 << 30,)), "scalar", "x")


def test_extent_of_zero_is_refused() -> None:
    data = bytearray(dat(np.zeros((1, 1), np.float32)))
    data[12:16] = bytes(4)
    with pytest.raises(FormatError, match="has an extent of 0"):
        read(bytes(data))


def test_the_bug_of_2018_is_named() -> None:
    with pytest.raises(FormatError, match="4 bytes too many, like files of NNEF tools of 2018"):
        read(dat(np.zeros(3, np.float32)) + bytes(4))


def test_every_truncation_is_refused() -> None:
    data = dat(np.arange(3, dtype=np.float32))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read(data[:size])
        with pytest.raises(FormatError):
            read_tensor(io.BytesIO(data[:size]), len(data), "x.dat", Budget(Limits()))


def test_limits_come_before_memory() -> None:
    # A sparse file would have the declared size; nothing is allocated for it here.
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
            write_tensor(file, array, header_of(array, "scalar", "x"), "x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        with open(path, "rb") as stream:
            read_tensor(stream, path.stat().st_size, "x", Budget(Limits()))
        assert tracemalloc.get_traced_memory()[1] < array.nbytes + (1 << 20)
    finally:
        tracemalloc.stop()


def test_packed_items_take_little_memory() -> None:
    count = 1 << 21
    data = head(4, 4, (count,)) + bytes(count // 2)
    tracemalloc.start()
    try:
        array = read(data)
        assert tracemalloc.get_traced_memory()[1] < count + (2 << 20)
        with open(os.devnull, "wb") as file:
            tracemalloc.reset_peak()
            header = header_of(array, "integer", "x", data[16:HEADER_SIZE].hex())
            write_tensor(file, array, header, "x")
        assert tracemalloc.get_traced_memory()[1] < count + (2 << 20)
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
        check_restored(data, read(data, Limits.strict()))


@settings(deadline=None)
@given(st.sampled_from([0, 1, 2, 3, 4, 5, 16, 17]), st.data())
def test_any_file_that_is_read_is_restored(item_type: int, data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from({0: [16, 32, 64], 5: [1, 8]}.get(item_type, range(1, 65))))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=8, max_side=3))
    header = bytearray(head(item_type, bits, shape))
    for start, stop in ((12 + 4 * len(shape), 44), (52, HEADER_SIZE)):
        header[start:stop] = data.draw(
            st.binary(min_size=stop - start, max_size=stop - start) | st.just(bytes(stop - start))
        )
    count = math.prod(shape) * bits
    items = bytearray(data.draw(st.binary(min_size=(count + 7) // 8, max_size=(count + 7) // 8)))
    items[-1] &= -1 << -count % 8 & 0xFF
    check_restored(bytes(header + items), read(bytes(header + items)))


def check_restored(data: bytes, array: Array) -> None:
    header = read_header(io.BytesIO(data), len(data), "x.dat")
    assert header.holds(array.dtype)
    assert dat(array, header.data_type, header.fields.hex()) == data
