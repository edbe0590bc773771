"""The codes: examples by hand, a slow definition, and hostile records and units."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.dtypes import STORED_TYPES, StoredType
from nnr_codec.errors import ElementError
from nnr_codec.sideinfo.codes import join, join_patterns, split
from nnr_codec.sideinfo.record import DeltaCode, FloatCode, GridCode, IntegerCode, PaletteCode, RawCode, TensorRecord

from ..shared import examples

Array = npt.NDArray[Any]
FLOATS = [stored for stored in STORED_TYPES.values() if stored.kind == "f"]
INTEGERS = [stored for stored in STORED_TYPES.values() if stored.kind != "f"]
each_type = pytest.mark.parametrize("stored", STORED_TYPES.values(), ids=lambda stored: stored.name)


def from_patterns(stored: StoredType, patterns: list[int], shape: tuple[int, ...]) -> Array:
    """Return the tensor of these bit patterns; for types below 8 bits the lowest bits count."""
    if stored.bits < 8:
        values = [pattern % (1 << stored.bits) for pattern in patterns]
        values = [v - (1 << stored.bits) * (stored.kind == "i" and v >= 1 << (stored.bits - 1)) for v in values]
        return np.array(values, np.int8).astype(stored.dtype).reshape(shape)
    data = b"".join((pattern % (1 << stored.bits)).to_bytes(stored.itemsize, "little") for pattern in patterns)
    return (
        np.frombuffer(data, stored.pattern.newbyteorder("<")).astype(stored.pattern).view(stored.dtype).reshape(shape)
    )


def to_patterns(stored: StoredType, tensor: Array) -> list[int]:
    """Return bit patterns; for integers the values."""
    if stored.kind != "f":
        return [int(value) for value in tensor.reshape(-1).tolist()]
    assert stored.pattern == np.dtype(f"u{tensor.dtype.itemsize}")
    return list(np.ascontiguousarray(tensor).reshape(-1).view(stored.pattern).tolist())


def identical(stored: StoredType, one: Array, other: Array) -> bool:
    """Return whether type, shape and bits are equal."""
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and to_patterns(stored, one) == to_patterns(stored, other)


def words(data: bytes) -> Array:
    """Return the content of a unit with these bytes."""
    return np.frombuffer(data, "<u4").astype(np.uint32).view(np.float32)


def data_of(bits: Array | None) -> bytes:
    """Return the bytes of a unit."""
    assert bits is not None and bits.dtype == np.float32 and bits.ndim == 1
    return bits.view(np.uint32).astype("<u4").tobytes()


def check(record: TensorRecord, tensor: Array, unit: Any, bits: bytes | None = None) -> None:
    """Check both directions of an example."""
    got, other = split(record, tensor)
    if isinstance(unit, bytes):
        assert data_of(got) == unit
    else:
        assert got.dtype == np.int32 and got.shape == tensor.shape and got.tolist() == unit
    assert other is None if bits is None else data_of(other) == bits
    assert identical(record.stored, join(record, got, other, tensor.shape), tensor)


# ------------------------------------------------------------------------------------------------ by hand
def test_float() -> None:
    # Patterns 3F800003, BFC00000, 3F400000: exponents and first bits of the mantissa are 254, 255, 253.
    tensor = from_patterns(STORED_TYPES["float32"], [0x3F800003, 0xBFC00000, 0x3F400000], (3,))
    record = TensorRecord("float32", code=FloatCode("b", pivot=254, mantissa=1))
    # Fields of 23 bits: 3, the sign alone (bit 22 of the second: bit 45), 0. 69 bits are 9 bytes.
    check(record, tensor, [0, -1, 1], bytes.fromhex("030000000020000000000000"))


def test_float_with_all_options() -> None:
    # Row 0 has two zeros at the end of its mantissas; row 1 has none.
    patterns = [0x3C00, 0x0000, 0x3C04, 0x3C05, 0x3801, 0x0000]
    tensor = from_patterns(STORED_TYPES["float16"], patterns, (2, 3))
    code = FloatCode("b", pivot=15, holes=1, unsigned=True, zeros=2, rows=b"\x80")
    # Fields of 8 bits: 0, 1, 1, 0; then of row 1, of two bits: 1, 1.
    check(TensorRecord("float16", code=code), tensor, [[1, 0, 1], [1, 2, 0]], bytes.fromhex("0001010005000000"))


def test_float_zeros_everywhere() -> None:
    tensor = from_patterns(STORED_TYPES["float16"], [0xBC04, 0x8000, 0x0000], (3,))
    code = FloatCode("b", pivot=15, zeros=2)
    # Fields of 9 bits: 101, 100, 0; minus zero is no zero, and zero has a field since there is no hole.
    check(TensorRecord("float16", code=code), tensor, [0, 15, 15], bytes.fromhex("01010200"))
    check(TensorRecord("float16", code=replace(code, holes=1)), tensor, [1, 16, 0], bytes.fromhex("01010200"))
    # One field of 9 bits, 101, and minus zero has a separate level.
    check(TensorRecord("float16", code=replace(code, holes=2)), tensor, [2, 1, 0], bytes.fromhex("01010000"))


def test_float_without_fields_has_one_word() -> None:
    code = FloatCode("b", pivot=9, mantissa=3, unsigned=True)
    tensor = from_patterns(STORED_TYPES["float8_e4m3fn"], [9, 10, 127], (3,))
    check(TensorRecord("float8_e4m3fn", code=code), tensor, [0, -1, -118], bytes(4))
    zeros = np.zeros(3, np.float32)
    check(TensorRecord("float32", code=FloatCode("b", pivot=0, holes=1)), zeros, [0, 0, 0], bytes(4))


def test_integer() -> None:
    tensor = np.array([-1, (1 << 40) + 5, -(1 << 63)])
    record = TensorRecord("int64", code=IntegerCode(0, 32, "b"))
    check(record, tensor, [-1, 256, -(1 << 31)], bytes.fromhex("ffffffff0500000000000000"))
    tensor = np.array([0, (1 << 64) - 1, (1 << 63) + 1], np.uint64)
    record = TensorRecord("uint64", code=IntegerCode(1 << 63, 33, "b"))
    # Fields of 33 bits: 0, all ones (bits 33 to 65), 1 (bit 66).
    check(record, tensor, [-(1 << 30), (1 << 30) - 1, 0], bytes.fromhex("00000000feffffff0700000000000000"))
    record = TensorRecord("uint64", code=IntegerCode(1, 64, "b"))
    check(record, tensor[:2], [-1, 0], bytes.fromhex("fffffffffffffffffeffffffffffffff"))


def test_integer_with_a_base_only() -> None:
    check(TensorRecord("uint8", code=IntegerCode(250)), np.array([250, 0, 255], np.uint8), [0, -250, 5])
    check(TensorRecord("uint64", code=IntegerCode(1 << 63)), np.array([1 << 63, (1 << 63) - 9], "u8"), [0, -9])
    check(TensorRecord("int64", code=IntegerCode(-(1 << 63))), np.array([-(1 << 63), 7 - (1 << 63)]), [0, 7])
    check(TensorRecord("bool", code=IntegerCode()), np.array([True, False]), [1, 0])
    check(TensorRecord("int4", code=IntegerCode(-8)), np.array([-8, 7, -1], ml_dtypes.int4), [0, 15, 7])
    nan = from_patterns(STORED_TYPES["float16"], [0x7D01, 0x8000], (2,))
    check(TensorRecord("float16", code=IntegerCode(0x7D00)), nan, [1, 0x300])


def test_raw() -> None:
    check(TensorRecord("uint8", (5,), RawCode()), np.arange(1, 6, dtype=np.uint8), bytes.fromhex("0102030405000000"))
    check(TensorRecord("int4", (2,), RawCode()), np.array([-1, 7], ml_dtypes.int4), bytes.fromhex("ff070000"))
    check(TensorRecord("bool", (3,), RawCode()), np.array([True, False, True]), bytes.fromhex("01000100"))
    check(TensorRecord("float64", (), RawCode()), np.array(-2.5), bytes.fromhex("00000000000004c0"))
    check(TensorRecord("int16", (1, 1), RawCode()), np.array([[-2]], np.int16), bytes.fromhex("feff0000"))


def test_palette() -> None:
    values = bytes.fromhex("c0bf 0000 803f 0180")  # bfloat16: -1.5, 0, 1, and a subnormal
    tensor = from_patterns(STORED_TYPES["bfloat16"], [0x3F80, 0x8001, 0xBFC0, 0], (2, 2))
    check(TensorRecord("bfloat16", code=PaletteCode(values, 1)), tensor, [[1, 2], [-1, 0]])
    check(TensorRecord("bfloat16", code=PaletteCode(values)), tensor, [[2, 3], [0, 1]])
    check(TensorRecord("int2", code=PaletteCode(b"\xfe\x01")), np.array([1, -2], ml_dtypes.int2), [1, 0])
    assert join(TensorRecord("int8", code=PaletteCode(b"\7\7")), np.array([0, 1], "i4"), None, (2,)).tolist() == [7, 7]


def test_grid() -> None:
    # 3 times float32(0.1) is 10066329.75 * 2**-25, which float32 rounds to 3E99999A.
    tensor = from_patterns(STORED_TYPES["float32"], [0x3E99999A, 0, 0xBDCCCCCD], (3,))
    check(TensorRecord("float32", code=GridCode(struct.pack("<f", 0.1))), tensor, [3, 0, -1])
    # 3 times float64(0.1) is 0.30000000000000004.
    check(TensorRecord("float64", code=GridCode(struct.pack("<d", 0.1))), np.array([0.30000000000000004]), [3])
    # 1365 / 4096 needs 11 bits, 2731 / 4096 needs 12: a tie, which goes to the even 2732 / 4096.
    tensor = from_patterns(STORED_TYPES["float16"], [0x3555, 0x3956], (2,))
    check(TensorRecord("float16", code=GridCode(struct.pack("<f", 2**-12))), tensor, [1365, 2732])
    unit = np.array([1365, 2731], np.int32)
    assert identical(
        STORED_TYPES["float16"],
        join(TensorRecord("float16", code=GridCode(struct.pack("<f", 2**-12))), unit, None, (2,)),
        tensor,
    )


def test_grid_rounds_levels_before_the_product() -> None:
    # float32(2**24 + 1) is 2**24; the exact product 3 * 2**24 + 3 would round to 3 * 2**24 + 4.
    unit = np.array([(1 << 24) + 1], np.int32)
    assert join(TensorRecord("float32", code=GridCode(struct.pack("<f", 3.0))), unit, None, (1,)).tolist() == [3 << 24]
    with pytest.raises(ValueError, match="no code"):
        join_patterns(TensorRecord("float32"), unit, None, (1,))


def test_grid_with_scales() -> None:
    scale = struct.pack("<2f", 0.5, 0.25)
    rows, columns = np.array([[1.5, -0.5], [0.25, 0.75]], np.float32), np.array([[1.5, 0.25], [-0.5, 0.75]], np.float32)
    check(TensorRecord("float32", code=GridCode(scale, 0)), rows, [[3, -1], [1, 3]])
    check(TensorRecord("float32", code=GridCode(scale, 1)), columns, [[3, 1], [-1, 3]])
    middle = np.stack([rows, rows * 2])
    check(TensorRecord("float32", code=GridCode(scale, 1)), middle, [[[3, -1], [1, 3]], [[6, -2], [2, 6]]])
    check(TensorRecord("bfloat16", code=GridCode(scale, 0)), rows.astype(ml_dtypes.bfloat16), [[3, -1], [1, 3]])
    # A negative scale is the only one that has a minus zero.
    check(TensorRecord("float32", code=GridCode(struct.pack("<f", -2.0))), np.array([-0.0, 4.0], np.float32), [0, -2])


def test_delta() -> None:
    record = TensorRecord("int32", code=DeltaCode("u"))
    check(record, np.array([[5, -(1 << 31)], [(1 << 31) - 1, 0]], "i4"), [[5, -(1 << 31)], [(1 << 31) - 1, 0]])
    check(replace(record, shape=()), np.array(-7, "i4"), -7)
    assert join(replace(record, shape=()), np.array([-7], "i4"), None, ()).shape == ()
    with pytest.raises(ValueError, match="no code"):
        join_patterns(record, np.array([1], "i4"), None, (1,))


def test_casts() -> None:
    def cast(kind: str, values: Any, dtype: str, shape: tuple[int, ...] | None = None) -> Array:
        unit = np.array(values, dtype)
        return join(TensorRecord(kind), unit, None, unit.shape if shape is None else shape)

    assert cast("bool", [0, 1], "i4").tolist() == [False, True]
    assert cast("uint8", [0, 255], "i2").tolist() == [0, 255]
    assert cast("uint64", [1 << 40], "i8").dtype == np.uint64
    assert cast("int32", [5], "i4", ()).shape == ()
    assert cast("int4", [[-8, 7]], "i1").astype(np.int8).tolist() == [[-8, 7]]
    assert cast("bfloat16", [1 + 2**-8, 1 + 3 * 2**-8], "f4").astype(float).tolist() == [1, 1 + 2**-6]
    # By way of float32, on every machine and with every version of ml_dtypes: a tie there, which goes to the even.
    assert cast("bfloat16", [1 + 2**-8 + 2**-40], "f8").astype(float).tolist() == [1]
    assert cast("float16", [1 + 2**-11 + 2**-40], "f8").tolist() == [1]
    assert cast("float8_e4m3fn", [448.0, np.nan], "f4").astype(float).tolist()[0] == 448
    assert np.isinf(cast("float16", [np.inf], "f4")).all()
    assert np.isnan(cast("bfloat16", [np.nan], "f4").astype(float)).all()
    assert cast("float64", [0.5], "f4").dtype == np.float64
    same = np.zeros((2, 3), np.float32)
    assert np.shares_memory(join(TensorRecord("float32"), same, None, (6,)), same)


# ------------------------------------------------------------------------------------------------ values out of range
@pytest.mark.parametrize(
    ("kind", "unit", "message"),
    [
        ("bool", np.array([2]), "outside the range"),
        ("bool", np.array([-1]), "outside the range"),
        ("uint8", np.array([256]), "outside the range"),
        ("uint64", np.array([-1]), "outside the range"),
        ("int4", np.array([8]), "outside the range"),
        ("int8", np.array([-129]), "outside the range"),
        ("int8", np.array([1.0]), "signed integers"),
        ("int8", np.array([1], np.uint8), "signed integers"),
        ("float32", np.array([1]), "requires floats"),
        ("float16", np.array([65520.0]), "exceeds"),
        ("float32", np.array([-1e39]), "exceeds"),
        ("bfloat16", np.array([3.4e38], np.float32), "exceeds"),
        ("bfloat16", np.array([1e300]), "exceeds"),
        ("float8_e4m3fn", np.array([480.0], np.float32), "exceeds"),
        ("float8_e4m3fn", np.array([np.inf, 1.0, 1e9], np.float32), "exceeds"),
        ("float8_e5m2", np.array([61440.0], np.float16), "exceeds"),
        ("int32", np.zeros((2, 1), np.int32), "the unit has 2 values"),
        ("int32", np.zeros(0, np.int32), "the unit has 0 values"),
    ],
)
def test_casts_that_do_not_fit(kind: str, unit: Array, message: str) -> None:
    with pytest.raises(ElementError, match=message):
        join(TensorRecord(kind), unit, None, (unit.size,) if unit.ndim == 1 and unit.size else (1,))


F32 = FloatCode("b", pivot=254, mantissa=1)
ZEROS = FloatCode("b", pivot=127, holes=1, zeros=13, rows=b"\x40")
LEVELS = np.zeros((2, 2), np.int32)


@pytest.mark.parametrize(
    ("kind", "code", "unit", "bits", "message"),
    [
        ("float32", F32, LEVELS, None, "the words of bits"),
        ("float32", F32, LEVELS, np.zeros(3, np.int32), "the words of bits"),
        ("float32", F32, LEVELS, np.zeros(3, np.float64), "the words of bits"),
        ("float32", F32, LEVELS, np.zeros((3, 1), np.float32), "the words of bits"),
        ("float32", F32, LEVELS, words(bytes(8)), "has 2 words; 3 are required"),
        ("float32", F32, LEVELS, words(bytes(16)), "has 4 words; 3 are required"),
        ("float32", F32, LEVELS, words(bytes(11) + b"\x10"), "bits after the last field"),  # 92 bits
        ("float32", replace(F32, unsigned=True), LEVELS, words(bytes(11) + b"\1"), "after the last bit"),  # 88 bits
        ("float32", F32, LEVELS.astype(np.int64), words(bytes(12)), "requires int32"),
        ("float32", F32, LEVELS.astype(np.int16), words(bytes(12)), "requires int32"),
        ("float32", F32, LEVELS.view(np.float32), words(bytes(12)), "requires int32"),
        ("float32", F32, LEVELS.view(np.uint32), words(bytes(12)), "requires int32"),
        ("float32", F32, LEVELS[:1], words(bytes(12)), "the unit has 2 values"),
        ("float32", F32, LEVELS + 255, words(bytes(12)), "outside the exponents"),
        ("float32", F32, LEVELS - 258, words(bytes(12)), "outside the exponents"),
        ("float32", replace(F32, holes=1), LEVELS + 256, words(bytes(12)), "outside the exponents"),
        ("float32", F32, LEVELS + np.int32(-(1 << 31)), words(bytes(12)), "outside the exponents"),
        ("float64", FloatCode("b", (1 << 63) - 1, 52), LEVELS - 1, words(bytes(4)), "outside the exponents"),
        ("float64", FloatCode("b", 0, 52), LEVELS + 1, words(bytes(4)), "outside the exponents"),
        ("int32", F32, LEVELS, words(bytes(12)), "invalid for int32"),
        ("float16", replace(F32, pivot=1 << 6), LEVELS, words(bytes(12)), "invalid for float16"),
        ("float32", replace(F32, pivot=-1), LEVELS, words(bytes(12)), "invalid for"),
        ("float32", replace(F32, mantissa=-1), LEVELS, words(bytes(12)), "invalid for"),
        ("float32", replace(F32, mantissa=24), LEVELS, words(bytes(12)), "invalid for"),
        ("float32", replace(F32, zeros=-1), LEVELS, words(bytes(12)), "invalid for"),
        ("float32", replace(F32, zeros=23), LEVELS, words(bytes(12)), "invalid for"),
        ("float32", replace(ZEROS, rows=b""), LEVELS, words(bytes(4)), "must have one bit for each"),
        ("float32", replace(ZEROS, rows=b"\x40\0"), LEVELS, words(bytes(4)), "must have one bit for each"),
        ("float32", replace(ZEROS, rows=b"\x60"), LEVELS, words(bytes(4)), "after the last row"),
        ("float32", ZEROS, LEVELS + 1, words(bytes(4)), "has 1 words; 3 are required"),
        ("int64", IntegerCode(0, 32, "b"), LEVELS, None, "the words of bits"),
        ("int64", IntegerCode(0, 32, "b"), LEVELS, words(bytes(12)), "has 3 words; 4 are required"),
        ("int64", IntegerCode(0, -1, "b"), LEVELS, words(bytes(4)), "low -1 is invalid for int64"),
        ("int64", IntegerCode(0, 65, "b"), LEVELS, words(bytes(36)), "low 65 is invalid for int64"),
        ("int64", IntegerCode(0, 33, "b"), LEVELS + (1 << 30), words(bytes(20)), "outside the type"),
        ("int64", IntegerCode((1 << 63) - 1), LEVELS + 1, None, "outside the type"),
        ("int64", IntegerCode(-(1 << 63)), LEVELS - 1, None, "outside the type"),
        ("uint64", IntegerCode(0, 32, "b"), LEVELS - 1, words(b"\xff" * 16), "outside the type"),
        ("uint64", IntegerCode(1, 64, "b"), LEVELS, words(b"\xff" * 32), "outside the type"),
        ("uint64", IntegerCode(1, 64, "b"), LEVELS - 1, words(bytes(32)), "outside the type"),
        ("uint64", IntegerCode(0, 64, "b"), LEVELS + 1, words(bytes(32)), "outside the type"),
        ("uint8", IntegerCode(), LEVELS + 256, None, "outside the type"),
        ("int8", IntegerCode(-129), LEVELS + 1, None, "base -129 .* invalid for int8"),
        ("int8", IntegerCode(128), LEVELS - 3, None, "base 128 .* invalid for int8"),
        ("uint8", IntegerCode(-1), LEVELS + 1, None, "base -1 .* invalid for uint8"),
        ("bool", IntegerCode(2), LEVELS - 2, None, "base 2 .* invalid for bool"),
        ("int4", IntegerCode(), LEVELS + 8, None, "outside the type"),
        ("bool", IntegerCode(), LEVELS + 2, None, "outside the type"),
        ("float16", IntegerCode(), LEVELS + (1 << 16), None, "outside the type"),
        ("int32", DeltaCode("u"), LEVELS[:1], None, "the unit has 2 values"),
        ("int32", DeltaCode("u"), LEVELS.view(np.float32), None, "signed integers"),
        ("int32", DeltaCode("u"), LEVELS + np.int64(1 << 40), None, "outside the range"),
        ("int16", RawCode(), LEVELS, None, "the words of bits"),
        ("int16", RawCode(), words(bytes(4)), None, "has 1 words; 2 are required"),
        ("int16", RawCode(), words(bytes(12)), None, "has 3 words; 2 are required"),
        ("bool", RawCode(), words(b"\0\1\2\0"), None, "outside the range"),
        ("int4", RawCode(), words(b"\0\1\x0f\0"), None, "outside the range"),
        ("int2", RawCode(), words(b"\0\1\xfd\0"), None, "outside the range"),
        ("uint4", RawCode(), words(b"\0\1\x10\0"), None, "outside the range"),
        ("float32", PaletteCode(bytes(8), 0), LEVELS + 2, None, "index 2 is outside"),
        ("float32", PaletteCode(bytes(8), 1), LEVELS - 2, None, "index -1 is outside"),
        ("float32", PaletteCode(bytes(8), 1 << 80), LEVELS, None, "is outside"),
        ("float32", PaletteCode(bytes(8), -(1 << 80)), LEVELS, None, "is outside"),
        ("float32", PaletteCode(b""), LEVELS, None, "whole items"),
        ("float32", PaletteCode(bytes(7)), LEVELS, None, "whole items"),
        ("bool", PaletteCode(b"\2"), LEVELS, None, "outside the range"),
        ("float32", GridCode(struct.pack("<f", 2.0**127)), LEVELS + 2, None, "exceeds"),
        ("float16", GridCode(struct.pack("<f", 1.0)), LEVELS - 65520, None, "exceeds"),
        ("float8_e4m3fn", GridCode(struct.pack("<f", 1.0)), LEVELS + 480, None, "exceeds"),
        ("float64", GridCode(struct.pack("<d", 2.0**1000)), LEVELS + (1 << 24), None, "exceeds"),
        ("float64", GridCode(struct.pack("<f", 1.0)), LEVELS, None, "the scales have 4 bytes, but 8"),
        ("float32", GridCode(struct.pack("<2f", 1, 1)), LEVELS, None, "the scales have 8 bytes, but 4"),
        ("float32", GridCode(struct.pack("<f", 1), 1), LEVELS, None, "the scales have 4 bytes, but 8"),
        ("float32", GridCode(struct.pack("<2f", 1, 1), 2), LEVELS, None, "invalid for float32"),
        ("float32", GridCode(struct.pack("<2f", 1, 1), -1), LEVELS, None, "invalid for float32"),
        ("int32", GridCode(struct.pack("<f", 1.0)), LEVELS, None, "invalid for int32"),
        ("float32", GridCode(struct.pack("<f", 0.0)), LEVELS, None, "0 or not finite"),
        ("float32", GridCode(struct.pack("<f", float("inf"))), LEVELS, None, "0 or not finite"),
        ("float32", GridCode(bytes.fromhex("0100807f")), LEVELS, None, "0 or not finite"),
    ],
)
def test_units_that_do_not_fit(kind: str, code: Any, unit: Array, bits: Array | None, message: str) -> None:
    with pytest.raises(ElementError, match=message):
        join(TensorRecord(kind, code=code), unit, bits, (2, 2))


def test_shapes_without_units() -> None:
    for shape in ((0,), (2, 0), (-2, -2), (4, -1)):
        for code in (None, RawCode(), IntegerCode(), DeltaCode("u")):
            with pytest.raises(ElementError, match="cannot have a unit"):
                join(TensorRecord("int32", shape, code), np.zeros(0, np.int32), None, shape)
    with pytest.raises(ValueError, match="cannot have a unit"):
        split(TensorRecord("int32", (0,), RawCode()), np.zeros(0, np.int32))
    with pytest.raises(ElementError, match="must have one bit for each"):
        join(TensorRecord("float32", (), ZEROS), np.ones(1, np.int32), words(bytes(4)), ())


@pytest.mark.parametrize(
    ("record", "tensor", "message"),
    [
        (TensorRecord("float32", code=F32), np.zeros(2), "its record states"),
        (TensorRecord("float32", (3,), F32), np.zeros(2, "f4"), "its record states"),
        (TensorRecord("int32", code=DeltaCode("u")), np.zeros(2, "i2"), "its record states"),
        (TensorRecord("float32"), np.zeros(2, "f4"), "no code"),
        (TensorRecord("float32", code=replace(F32, unsigned=True)), np.array([-0.0], "f4"), "sign bit"),
        (TensorRecord("float64", code=FloatCode("b", 0, 52)), np.array([1.0]), "exceeds 32 bits"),
        (TensorRecord("float64", code=FloatCode("b", (1 << 63) - 1, 52)), np.array([1.0]), "exceeds 32 bits"),
        (
            TensorRecord("float64", code=FloatCode("b", (1 << 31) - 1, 52, holes=1)),
            np.array([-0.0]),
            "exceeds 32 bits",
        ),
        (TensorRecord("float32", code=replace(F32, zeros=1)), np.array([1e-45], "f4"), "low bit"),
        (TensorRecord("int64", code=IntegerCode()), np.array([1 << 31]), "exceeds 32 bits"),
        (TensorRecord("int64", code=IntegerCode()), np.array([-1 - (1 << 31)]), "exceeds 32 bits"),
        (TensorRecord("uint64", code=IntegerCode()), np.array([(1 << 64) - 1], "u8"), "exceeds 32 bits"),
        (TensorRecord("uint8", code=IntegerCode(256)), np.array([1], "u1"), "invalid for uint8"),
        (TensorRecord("uint8", code=IntegerCode(0, 65, "b")), np.array([1], "u1"), "invalid for uint8"),
        (TensorRecord("bool", code=IntegerCode()), np.array([2], "u1").view(bool), "outside the range"),
        (TensorRecord("float32", code=PaletteCode(bytes(4))), np.array([-0.0], "f4"), "not in the palette"),
        (TensorRecord("uint8", code=PaletteCode(b"\1\3")), np.array([4], "u1"), "not in the palette"),
        (TensorRecord("uint8", code=PaletteCode(b"\1\3")), np.array([0], "u1"), "not in the palette"),
        (TensorRecord("float32", code=GridCode(struct.pack("<f", 0.5))), np.array([0.75], "f4"), "not on the grid"),
        (TensorRecord("float32", code=GridCode(struct.pack("<f", 0.5))), np.array([-0.0], "f4"), "not on the grid"),
        (TensorRecord("float32", code=GridCode(struct.pack("<f", 0.5))), np.array([np.nan], "f4"), "32 bits"),
        (TensorRecord("float32", code=GridCode(struct.pack("<f", 0.5))), np.array([np.inf], "f4"), "32 bits"),
        (TensorRecord("float32", code=GridCode(struct.pack("<f", 1e-30))), np.array([1.0], "f4"), "32 bits"),
    ],
)
def test_tensors_that_do_not_fit(record: TensorRecord, tensor: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(record, tensor)


# ------------------------------------------------------------------------------------------------ by definition
def slow_float(code: FloatCode, stored: StoredType, patterns: list[int], shape: tuple[int, ...]) -> tuple[Any, bytes]:
    """Return FloatCode computed with unbounded integers, from docs/reference/side-information.md."""
    levels, upper, lower = [], [], []
    for i, pattern in enumerate(patterns):
        if pattern in (0, 1 << (stored.bits - 1))[: code.holes]:
            levels.append(int(pattern != 0))
            continue
        sign, rest = divmod(pattern, 1 << (stored.bits - 1))
        exponent, mantissa = divmod(rest, 1 << stored.mantissa)
        first, below = divmod(mantissa, 1 << (stored.mantissa - code.mantissa))
        middle, low = divmod(below, 1 << code.zeros)
        d = code.pivot - ((exponent << code.mantissa) + first)
        levels.append(d + code.holes if d >= 0 else d)
        width = stored.mantissa - code.mantissa - code.zeros
        text = (f"{middle:0{width}b}" if width else "")[::-1]
        upper.append(text if code.unsigned else text + str(sign))
        row = i // (len(patterns) // shape[0]) if code.rows is not None else 0
        if code.rows is not None and not code.rows[row // 8] >> (7 - row % 8) & 1:
            lower.append((f"{low:0{code.zeros}b}" if code.zeros else "")[::-1])
    data = b""
    for fields in (upper, lower):
        text = "".join(fields)
        text += "0" * (-len(text) % 8)
        data += bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))
    return levels, (data or bytes(1)) + bytes(-len(data or b"0") % 4)


def pattern_of(stored: StoredType) -> st.SearchStrategy[int]:
    """Draw random patterns, and extreme and special ones of the type."""
    m, e = stored.mantissa, stored.exponent
    special = {0, 1, 2, (1 << m) - 1, 1 << m, (((1 << e) - 1) << m) - 1, ((1 << e) - 1) << m, (((1 << e) - 1) << m) | 1}
    special |= {
        (((1 << e) - 1) << m) | (1 << max(m - 1, 0)),
        ((1 << (e - 1)) - 1) << m if e else 3,
        (1 << stored.bits) - 1,
    }
    special |= {pattern ^ (1 << (stored.bits - 1)) for pattern in special}
    return st.sampled_from(sorted(special)) | st.integers(0, (1 << stored.bits) - 1)


shapes = st.sampled_from([(), (1,), (7,), (2, 3), (9, 2), (1, 12), (17, 1), (2, 2, 3), (3, 1, 2, 1, 2, 1, 1, 2)])


@st.composite
def tensors(draw: st.DrawFn, types: list[StoredType]) -> tuple[StoredType, Array]:
    stored, shape = draw(st.sampled_from(types)), draw(shapes)
    pool = draw(st.lists(pattern_of(stored), min_size=1, max_size=40))
    patterns = [draw(st.sampled_from(pool)) for _ in range(prod(shape))]
    return stored, from_patterns(stored, patterns, shape)


@st.composite
def float_cases(draw: st.DrawFn) -> tuple[TensorRecord, Array]:
    stored, tensor = draw(tensors(FLOATS))
    mantissa = draw(st.integers(0, min(stored.mantissa, 23)))
    zeros = draw(st.just(0) | st.integers(0, stored.mantissa - mantissa))
    bits = tensor.reshape(-1).view(stored.pattern).copy()
    unsigned = draw(st.booleans())
    if unsigned:
        bits &= stored.pattern.type((1 << (stored.bits - 1)) - 1)
    rows = None
    if zeros:
        kept = np.ones(tensor.shape[0] if tensor.ndim else 1, bool)
        if tensor.ndim and draw(st.booleans()):
            kept = np.array(draw(st.lists(st.booleans(), min_size=kept.size, max_size=kept.size)))
            rows = np.packbits(kept).tobytes()
        bits.reshape(kept.size, -1)[kept] &= stored.pattern.type((1 << stored.bits) - (1 << zeros))
    tops = [int(p) % (1 << (stored.bits - 1)) >> (stored.mantissa - mantissa) for p in bits]
    pivot = draw(st.sampled_from(tops) | st.integers(0, (1 << (stored.exponent + mantissa)) - 1))
    if max(abs(pivot - top) for top in tops) > 1 << 30:
        pivot = sorted(tops)[len(tops) // 2]
    if max(abs(pivot - top) for top in tops) > 1 << 30:
        pivot, bits = tops[0], np.full_like(bits, bits[0] >> zeros << zeros)
    code = FloatCode("b", pivot, mantissa, draw(st.integers(0, 2)), unsigned, zeros, rows)
    return TensorRecord(stored.name, code=code), bits.view(stored.dtype).reshape(tensor.shape)


@st.composite
def integer_cases(draw: st.DrawFn) -> tuple[TensorRecord, Array]:
    stored, tensor = draw(tensors(list(STORED_TYPES.values())))
    values = to_patterns(stored, tensor)
    base = draw(st.sampled_from([*stored.range, *values]) | st.integers(*stored.range))
    low = draw(st.integers(0, 64))
    while any((value - base) >> low not in range(-(1 << 31), 1 << 31) for value in values):
        low += 8
    return TensorRecord(stored.name, code=IntegerCode(base, low, "b" if low else None)), tensor


@st.composite
def other_cases(draw: st.DrawFn) -> tuple[TensorRecord, Array]:
    stored, tensor = draw(tensors(list(STORED_TYPES.values())))
    if draw(st.booleans()):
        return TensorRecord(stored.name, tensor.shape, RawCode()), tensor
    values = data_of(split(TensorRecord(stored.name, tensor.shape, RawCode()), tensor)[0])
    values = values[: tensor.size * stored.itemsize]
    items = sorted({values[i : i + stored.itemsize] for i in range(0, len(values), stored.itemsize)})
    items = draw(st.permutations(items))
    return TensorRecord(stored.name, code=PaletteCode(b"".join(items), draw(st.integers(0, len(items) - 1)))), tensor


@st.composite
def grid_cases(draw: st.DrawFn) -> tuple[TensorRecord, Array]:
    stored, shape = draw(st.sampled_from(FLOATS)), draw(shapes)
    axis = draw(st.none() | st.integers(0, len(shape) - 1)) if shape else None
    count = 1 if axis is None else shape[axis]
    scales = st.floats(0.0625, 1, width=32).map(lambda scale: scale if draw(st.booleans()) else -scale)
    largest = 3 if stored.bits == 8 else 100  # so few that rounding to the type does not merge levels
    work = "<f8" if stored.name == "float64" else "<f4"
    scale = np.array([draw(scales) for _ in range(count)], work)
    levels = np.array([draw(st.integers(-largest, largest)) for _ in range(prod(shape))], np.int32).reshape(shape)
    record = TensorRecord(stored.name, code=GridCode(scale.tobytes(), axis))
    return record, join(record, levels, None, shape)


@st.composite
def delta_cases(draw: st.DrawFn) -> tuple[TensorRecord, Array]:
    stored, tensor = draw(tensors([STORED_TYPES["int32"]]))
    return TensorRecord(stored.name, code=DeltaCode("u")), tensor


cases = st.one_of(float_cases(), integer_cases(), other_cases(), grid_cases(), delta_cases())


@given(float_cases())
def test_float_is_as_defined(case: tuple[TensorRecord, Array]) -> None:
    record, tensor = case
    assert isinstance(record.code, FloatCode)
    unit, bits = split(record, tensor)
    levels, data = slow_float(record.code, record.stored, to_patterns(record.stored, tensor), tensor.shape)
    assert unit.reshape(-1).tolist() == levels
    assert data_of(bits) == data


@given(integer_cases())
def test_integer_is_as_defined(case: tuple[TensorRecord, Array]) -> None:
    record, tensor = case
    code = record.code
    assert isinstance(code, IntegerCode)
    unit, bits = split(record, tensor)
    parts = [divmod(value - code.base, 1 << code.low) for value in to_patterns(record.stored, tensor)]
    assert unit.reshape(-1).tolist() == [level for level, _ in parts]
    number = sum(field << (i * code.low) for i, (_, field) in enumerate(parts))
    size = (len(parts) * code.low + 31) // 32 * 4
    assert bits is None if code.low == 0 else data_of(bits) == number.to_bytes(size, "little")


@given(cases)
def test_split_tensors_are_joined(case: tuple[TensorRecord, Array]) -> None:
    record, tensor = case
    unit, bits = split(record, tensor)
    back = join(record, unit, bits, tensor.shape)
    assert identical(record.stored, back, tensor)
    assert back.flags.c_contiguous


@given(cases)
def test_the_ids_of_units_change_nothing(case: tuple[TensorRecord, Array]) -> None:
    record, tensor = case
    unit, bits = split(record, tensor)
    other: Any = replace(record.code, unit="another id")  # type: ignore[type-var]
    got, more = split(replace(record, code=other), tensor)
    assert got.tobytes() == unit.tobytes() and got.shape == unit.shape
    assert (more is None) == (bits is None) and (bits is None or data_of(more) == data_of(bits))
    assert identical(record.stored, join(replace(record, code=other), got, more, tensor.shape), tensor)


@given(cases)
def test_byte_order_and_strides(case: tuple[TensorRecord, Array]) -> None:
    record, tensor = case
    if tensor.dtype.itemsize > 1:
        wide = np.dtype(f">u{tensor.dtype.itemsize}")
        swapped = tensor.view(wide.newbyteorder("=")).astype(wide).view(tensor.dtype.newbyteorder(">"))
    else:
        swapped = tensor
    spread = np.zeros((*tensor.shape, 2), swapped.dtype)
    spread[..., 1].view(f"u{tensor.dtype.itemsize}")[...] = swapped.view(f"u{tensor.dtype.itemsize}")
    turned = np.asfortranarray(swapped).reshape(tensor.shape)
    unit, bits = split(record, tensor)
    for other in (swapped, spread[..., 1], turned):
        before = other.tobytes()
        got, more = split(record, other)
        assert got.tobytes() == unit.tobytes() and got.shape == unit.shape
        assert (more is None) == (bits is None) and (bits is None or data_of(more) == data_of(bits))
        assert other.tobytes() == before


# ------------------------------------------------------------------------------------------------ hostile
SMALL = st.integers(-3, 70)
HUGE = st.sampled_from([1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 31), -(1 << 63), -(1 << 80)])
NUMBERS = SMALL | HUGE


@st.composite
def mutated(draw: st.DrawFn) -> tuple[TensorRecord, Array, Array | None, tuple[int, ...]]:
    record, tensor = draw(cases)
    unit, bits = split(record, tensor)
    shape, code = tensor.shape, record.code
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.integers(0, 7)):
            case 0:
                record = replace(record, type=draw(st.sampled_from(sorted(STORED_TYPES))))
            case 1:
                shape = draw(shapes | st.lists(st.integers(-1, 4), max_size=4).map(tuple))
            case 2:
                unit = draw(words_of(unit))
            case 3:
                bits = draw(st.none() | words_of(unit if bits is None else bits))
            case 4:
                unit = (
                    unit.astype(draw(st.sampled_from(["i1", "i8", "u4", "i4"])), casting="unsafe", copy=True)
                    if (unit.dtype.kind in "iu")
                    else unit.view(np.int32)
                )
            case 5:
                code = draw(
                    st.none()
                    | st.just(RawCode())
                    | st.just(DeltaCode("u"))
                    | st.builds(IntegerCode, NUMBERS, SMALL, st.none() | st.just("b"))
                    | st.builds(PaletteCode, st.binary(max_size=32), NUMBERS)
                    | st.builds(GridCode, st.binary(max_size=32), st.none() | SMALL)
                )
            case _:
                match code:
                    case FloatCode():
                        changes: dict[str, Any] = {
                            "pivot": NUMBERS,
                            "mantissa": SMALL,
                            "zeros": SMALL,
                            "holes": st.integers(0, 2),
                            "unsigned": st.booleans(),
                            "rows": st.none() | st.binary(max_size=4),
                        }
                    case IntegerCode():
                        changes = {"base": NUMBERS, "low": SMALL}
                    case PaletteCode():
                        changes = {"values": st.binary(max_size=32), "offset": NUMBERS}
                    case GridCode():
                        changes = {"scale": st.binary(max_size=32), "axis": st.none() | SMALL}
                    case _:
                        changes = {}
                if changes:
                    name = draw(st.sampled_from(sorted(changes)))
                    code = replace(code, **{name: draw(changes[name])})
    return replace(record, code=code), unit, bits, shape


@st.composite
def words_of(draw: st.DrawFn, items: Array) -> Array:
    """Draw items with some changed, added or removed."""
    items = items.reshape(-1).copy()
    raw = items.view(f"u{items.dtype.itemsize}")
    for _ in range(draw(st.integers(0, 3))):
        if raw.size:
            raw[draw(st.integers(0, raw.size - 1))] = draw(st.integers(0, (1 << (8 * items.dtype.itemsize)) - 1))
    size = draw(st.just(items.size) | st.integers(0, items.size + 3))
    return np.resize(raw, size).view(items.dtype) if raw.size else np.zeros(size, items.dtype)


@pytest.mark.medium
@settings(max_examples=examples(500))
@given(mutated())
def test_hostile_units_and_records(case: tuple[TensorRecord, Array, Array | None, tuple[int, ...]]) -> None:
    record, unit, bits, shape = case
    try:
        tensor = join(record, unit, bits, shape)
    except ElementError:
        return
    assert (
        tensor.shape == shape
        and tensor.dtype == record.stored.dtype
        and tensor.nbytes == prod(shape) * record.stored.itemsize
    )
    if record.stored.bits < 8:
        least, largest = record.stored.range
        assert all(least <= value <= largest for value in to_patterns(record.stored, tensor))
    if isinstance(record.code, FloatCode | PaletteCode | RawCode):
        again, other = split(replace(record, shape=shape), tensor)
        assert identical(record.stored, join(record, again, other, shape), tensor)


# ------------------------------------------------------------------------------------------------ memory
@pytest.mark.parametrize(
    ("code", "takes"),
    [
        (FloatCode("b", 120), True),
        (FloatCode("b", 120, holes=2, zeros=11), True),
        (FloatCode("b", 120, holes=1, zeros=11, rows=bytes([0x5A] * 8)), False),
    ],
)
def test_floats_take_the_memory_of_their_levels(code: FloatCode, takes: bool) -> None:
    values = np.random.default_rng(0).normal(0, 1, (64, 64)).astype("f4")
    tensor = (values.view("u4") & np.uint32(0xFFFFF800)).view("f4")
    record = TensorRecord("float32", code=code)
    unit, bits = split(record, tensor)
    for writable in (False, True):
        before = unit.copy()
        unit.flags.writeable = writable
        back = join(record, unit, bits, tensor.shape)
        assert identical(record.stored, back, tensor)
        assert np.shares_memory(back, unit) == (takes and writable)
        assert np.array_equal(unit, before) != (takes and writable)


@pytest.mark.parametrize(
    "code",
    [
        FloatCode("b", 120, 0, holes=1, zeros=11, rows=np.packbits(np.arange(1024) % 3 == 0).tobytes()),
        IntegerCode(1 << 31, 9, "b"),
        RawCode(),
        PaletteCode(np.arange(-128, 128).astype("<f4").tobytes(), 128),
        GridCode(struct.pack("<f", 1.0)),
        GridCode(struct.pack("<1024f", *[1.0] * 1024), 0),
        GridCode(struct.pack("<1024f", *[1.0] * 1024), 1),
    ],
    ids=lambda code: code.KIND,
)
def test_memory_is_that_of_the_results(code: Any) -> None:
    tensor = np.random.default_rng(0).integers(-100, 100, (1024, 1024)).astype(np.float32)
    record = TensorRecord("float32", tensor.shape, code)

    def peak(function: Any, *arguments: Any) -> tuple[Any, int]:
        tracemalloc.start()
        try:
            return function(*arguments), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    (unit, bits), most = peak(split, record, tensor)
    assert most < unit.nbytes + (0 if bits is None else bits.nbytes) + (3 << 20)
    back, most = peak(join, record, unit, bits, tensor.shape)
    assert np.array_equal(back, tensor)
    assert most < back.nbytes + (3 << 20)
