"""NNR-SID-001 to 059 and 079 to 083: every code of side information (docs/reference/side-information.md)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .arithmetic import assemble, chosen
from .bits import MPS, NAME_W, STR1, raw
from .bits import ndu as ndu_bits
from .case import Content, Tensor, little_endian
from .recorded import (
    case,
    dtype_of,
    entry,
    float_code,
    little,
    nearest,
    packed,
    patterned,
    recorded,
    scale,
    text64,
)

# ------------------------------------------------------------------------------------------------ by hand
RECORD = b'{"nnr_codec":1,"tensors":{"w":{"code":{"kind":"raw"},"shape":[3],"type":"uint8"}}}'
BY_HAND = (
    *STR1,
    *MPS,
    f"0x{len(RECORD) + 6:04x} nnr_unit_size",
    "000011 nnr_unit_type NNR_TPL",
    "10 complete",
    "0x80 topology_storage_format 128",
    "0x00 topology_compression_format NNR_PT_RAW",
    f"0x{RECORD.hex()} topology_data {RECORD.decode()}",
    "0x00 the end of the string",
    *ndu_bits(13, 2, NAME_W, *raw(1)),
    "0x0780FF00 the items and a zero",
)


@case("NNR-SID-001", "three bytes in one word of a float32 unit", "hand RawCode uint8", bits=BY_HAND)
def three_bytes() -> Content:
    word = np.frombuffer(b"\x07\x80\xff\0", "<f4")
    return Content(assemble(*BY_HAND), {"w": np.array([7, 128, 255], np.uint8)}, {"w": word})


# ------------------------------------------------------------------------------------------------ FloatCode
#: One, minus one and a half, both zeros, both infinities, not-a-numbers of both kinds, subnormals, the largest number.
HOSTILE = {
    "float32": [
        0x3F800000,
        0xBFC00000,
        0x00000000,
        0x80000000,
        0x7F800000,
        0xFF800000,
        0x7FC12345,
        0xFF800001,
        0x00000001,
        0x807FFFFF,
        0x7F7FFFFF,
        0x3E99999A,
    ],
    "float16": [0x3C00, 0xBE00, 0, 0x8000, 0x7C00, 0xFC00, 0x7E55, 0xFC01, 1, 0x83FF, 0x7BFF, 0x34CD],
    "bfloat16": [0x3F80, 0xBFC0, 0, 0x8000, 0x7F80, 0xFF80, 0x7FD5, 0xFF81, 1, 0x807F, 0x7F7F, 0x3E9A],
    "float64": [
        0x3FF0000000000000,
        0xBFF8000000000000,
        0,
        0x8000000000000000,
        0x7FF0000000000000,
        0xFFF0000000000000,
        0x7FF8000012345678,
        0xFFF0000000000001,
        1,
        0x800FFFFFFFFFFFFF,
        0x7FEFFFFFFFFFFFFF,
        0x3FD3333333333333,
    ],
    "float8_e5m2": [0x3C, 0xBE, 0, 0x80, 0x7C, 0xFC, 0x7E, 0xFD, 1, 0x83, 0x7B, 0x35],
    "float8_e4m3": [0x38, 0xBC, 0, 0x80, 0x78, 0xF8, 0x7C, 0xF9, 1, 0x87, 0x77, 0x2A],
    "float8_e3m4": [0x30, 0xB8, 0, 0x80, 0x70, 0xF0, 0x78, 0xF1, 1, 0x8F, 0x6F, 0x13],
}

for number, (name, pivot, mantissa) in enumerate(
    [
        ("float32", 254, 1),
        ("float32", 127, 0),
        ("float32", 0, 23),
        ("bfloat16", 127, 0),
        ("bfloat16", 16256, 7),
        ("float16", 31, 1),
        ("float16", 15360, 10),
        ("float64", 1023, 0),
        ("float64", 536870912, 20),
        ("float8_e5m2", 15, 0),
        ("float8_e4m3", 14, 1),
        ("float8_e3m4", 48, 4),
    ],
    2,
):

    @case(
        f"NNR-SID-{number:03}",
        f"{name}: hostile values, {mantissa} bits of the mantissa in the levels",
        f"FloatCode {name} mantissa={mantissa}",
    )
    def hostile(name: str = name, pivot: int = pivot, mantissa: int = mantissa) -> Content:
        patterns = np.array(HOSTILE[name], object).reshape(3, 4)
        levels, words = float_code(name, patterns, pivot, mantissa)
        some = {"mantissa": mantissa} if mantissa else {}
        s = recorded({"w": entry("float", name, pivot=pivot, **some)})
        s.levels("w", levels).words("w#bits", words)
        return s.means({"w": patterned(name, patterns.astype(np.uint64))})


@case("NNR-SID-014", "bfloat16: levels and words written out", "FloatCode bfloat16 mantissa=1")
def written_out() -> Content:
    # 1.0 is 0 01111111 0 000000: top 254, 7 bits 0 000000; -1.75 is 1 01111111 1 100000: top 255, 7 bits 1 100000;
    # 0.3046875 is 0 01111101 0 011100: top 250, 7 bits 0 011100. Together 0011100 1100000 0000000, from the right.
    s = recorded({"w": entry("float", "bfloat16", pivot=254, mantissa=1)})
    s.levels("w", [0, -1, 4]).words("w#bits", bytes([0b00000000, 0b00110000, 0b00000111, 0]))
    return s.means({"w": patterned("bfloat16", [0x3F80, 0xBFE0, 0x3E9C])})


#: Patterns of float32: zeros, and others with their low bits zero in rows 0, 2, 3, 8 and 10.
SPARSE = np.array(
    [
        [0 if (y + x) % 3 == 0 else int(chosen([1], 2**20, 11 * y + x + 1)[0] + 0x3DA00000) & ~low for x in range(5)]
        for y, low in ((y, 0x1FFF if y in (0, 2, 3, 8, 10) else 0) for y in range(11))
    ],
    object,
)
SIGNED = np.array([[p | 0x80000000 if x % 2 and p else p for x, p in enumerate(row)] for row in SPARSE], object)
FULL = np.array([[p | 0x3D800000 for p in row] for row in SPARSE], object)
SOME = (0, 2, 3, 8, 10)
SOME_BITS = bytes([0b10110000, 0b10100000])

for number, (title, patterns, fields, how) in enumerate(
    [
        ("zeros have level 0 and no other bits", SIGNED, {"holes": 1}, {}),
        ("no sign bits", FULL, {"unsigned": True}, {}),
        ("no sign bits, and none for zeros", SPARSE, {"holes": 1, "unsigned": True}, {}),
        ("13 low bits are 0 everywhere", FULL[list(SOME)], {"zeros": 13}, {}),
        ("13 low bits are 0 in some rows", FULL, {"zeros": 13}, {"rows": SOME}),
        ("13 low bits are 0 in some rows, and zeros are left out", SIGNED, {"zeros": 13, "holes": 1}, {"rows": SOME}),
        (
            "13 low bits are 0 in some rows, zeros and signs are left out",
            SPARSE,
            {"zeros": 13, "holes": 1, "unsigned": True},
            {"rows": SOME},
        ),
    ],
    15,
):

    @case(f"NNR-SID-{number:03}", f"float32: {title}", " ".join(["FloatCode", "float32", *fields, *how]))
    def left_out(patterns: Any = patterns, fields: dict[str, Any] = fields, how: dict[str, Any] = how) -> Content:
        levels, words = float_code("float32", patterns, 246, 1, **fields, **how)
        rows = {"rows": text64(SOME_BITS)} if how else {}
        s = recorded({"w": entry("float", "float32", pivot=246, mantissa=1, **fields, **rows)})
        s.levels("w", levels).words("w#bits", words)
        return s.means({"w": patterned("float32", patterns.astype(np.uint64))})


@case("NNR-SID-022", "all bits of the mantissa are 0 in some rows", "FloatCode float32 zeros rows")
def all_low_bits() -> Content:
    patterns = [0x3F800000, 0xC0000000, 0x3F800001, 0xBFFFFFFF]
    levels, words = float_code("float32", patterns, 127, 0, zeros=23, rows=(0, 1))
    code = entry("float", "float32", pivot=127, zeros=23, rows=text64(b"\xc0"))
    s = recorded({"w": code}).levels("w", levels).words("w#bits", words)
    return s.means({"w": patterned("float32", patterns)})


@case("NNR-SID-082", "+0.0 as a level of its own, beside the level that stands for it", "FloatCode bfloat16 holes")
def two_zeros() -> Content:
    s = recorded({"w": entry("float", "bfloat16", pivot=127, holes=1)})
    s.levels("w", [0, 128, 128, 1]).words("w#bits", bytes([0x00, 0x80, 0x00, 0]))
    return s.means({"w": patterned("bfloat16", [0, 0, 0x8000, 0x3F80])})


@case("NNR-SID-099", "-0.0 has level 1 beside +0.0, and no other bits", "FloatCode bfloat16 holes")
def both_zeros() -> Content:
    s = recorded({"w": entry("float", "bfloat16", pivot=127, holes=2)})
    s.levels("w", [0, 1, 129, 2, -1]).words("w#bits", bytes([0x01, 0x81, 0x00, 0]))
    return s.means({"w": patterned("bfloat16", [0, 0x8000, 0x0001, 0x3F80 | 0x8001, 0x4000])})


@case("NNR-SID-083", "no bits are left for the words: one word of zeros", "FloatCode float8_e5m2 holes unsigned")
def no_bits() -> Content:
    s = recorded({"w": entry("float", "float8_e5m2", pivot=60, mantissa=2, holes=1, unsigned=True)})
    s.levels("w", [0, 1, -3]).words("w#bits", bytes(4))
    return s.means({"w": patterned("float8_e5m2", [0, 60, 63])})


# ------------------------------------------------------------------------------------------------ IntegerCode
BOTH_ENDS = {
    "int64": [-(2**63), 2**63 - 1, -1, 0, 1, 2**32, -(2**32) - 1, 0x0123456789ABCDEF],
    "uint64": [0, 2**64 - 1, 2**63, 2**32 - 1, 2**32, 1, 0xFEDCBA9876543210, 5],
}

for number, (name, base, low) in enumerate(
    [("int64", 0, 32), ("uint64", 2**63, 32), ("int64", -1, 48), ("uint64", 0, 64), ("int64", 0, 33)], 23
):

    @case(
        f"NNR-SID-{number:03}",
        f"{name}: both ends of the type, {low} bits in words",
        f"IntegerCode {name} low={low} base",
    )
    def both_ends(name: str = name, base: int = base, low: int = low) -> Content:
        values = BOTH_ENDS[name]
        split = [divmod(value - base, 1 << low) for value in values]
        words = packed([(bits, low) for _, bits in split])
        some = {"base": base} if base else {}
        s = recorded({"w": entry("integer", name, low=low, **some)})
        s.levels("w", [level for level, _ in split]).words("w#bits", words)
        return s.means({"w": np.array(values, name)})


for number, (name, base, values) in enumerate(
    [
        ("uint32", 2**31, [0, 2**32 - 1, 2**31, 5]),
        ("int64", 10**15, [10**15, 10**15 - 7, 10**15 + 2**31 - 1, 10**15 - 2**31]),
        ("uint64", 2**64 - 3, [2**64 - 3, 2**64 - 1, 2**64 - 2**31]),
        ("uint8", 128, [0, 255, 127, 128]),
        ("int4", -8, [-8, 7, 0, -1]),
        ("bool", 1, [1, 0, 0, 1]),
    ],
    28,
):

    @case(f"NNR-SID-{number:03}", f"{name}: levels from {base} on", f"IntegerCode {name} base")
    def based(name: str = name, base: int = base, values: Sequence[int] = values) -> Content:
        s = recorded({"w": entry("integer", name, base=base)})
        s.levels("w", [value - base for value in values])
        return s.means({"w": np.array(values, dtype_of(name))})


@case("NNR-SID-034", "float8_e5m2: bit patterns as integers", "IntegerCode float8_e5m2")
def float_patterns() -> Content:
    patterns = HOSTILE["float8_e5m2"]
    s = recorded({"w": entry("integer", "float8_e5m2", base=60)}).levels("w", [p - 60 for p in patterns])
    return s.means({"w": patterned("float8_e5m2", patterns)})


@case("NNR-SID-035", "int16: levels and fields of 3 bits written out", "IntegerCode int16 low=3 base")
def low_bits() -> Content:
    # 100 + 8 * level + bits; the fields are 5, 0, 7, 1, from the right 001 111 000 101.
    s = recorded({"w": entry("integer", "int16", base=100, low=3)})
    s.levels("w", [0, -13, 4, -4108]).words("w#bits", bytes([0b11000101, 0b00000011, 0, 0]))
    return s.means({"w": np.array([105, -4, 139, -32763], np.int16)})


# ------------------------------------------------------------------------------------------------ RawCode
for number, (name, values, size) in enumerate(
    [
        ("float16", HOSTILE["float16"][:11], 2),
        ("bfloat16", HOSTILE["bfloat16"][1:], 2),
        ("float64", HOSTILE["float64"], 8),
        ("float8_e3m4", HOSTILE["float8_e3m4"][:9], 1),
        ("int64", BOTH_ENDS["int64"], 8),
        ("uint16", [0, 65535, 258], 2),
        ("int8", [-128, 127, 0, -1, 5], 1),
        ("bool", [1, 0, 1, 1, 0], 1),
    ],
    36,
):

    @case(f"NNR-SID-{number:03}", f"{name}: the items' bytes in words", f"RawCode {name}")
    def as_bytes(name: str = name, values: Sequence[int] = values, size: int = size) -> Content:
        data = little(values, size)
        s = recorded({"w": entry("raw", name, shape=[len(values)])})
        s.words("w", data + bytes(-len(data) % 4))
        return s.means({"w": patterned(name, [value % (1 << 8 * size) for value in values])})


@case("NNR-SID-044", "float16 of four dimensions in words", "RawCode float16 shape")
def shaped_words() -> Content:
    values = [0x3C00 + k for k in range(30)]
    s = recorded({"w": entry("raw", "float16", shape=[5, 1, 3, 2])})
    s.words("w", little(values, 2))
    return s.means({"w": patterned("float16", np.array(values).reshape(5, 1, 3, 2))})


# ------------------------------------------------------------------------------------------------ PaletteCode
for number, (name, items, size, offset) in enumerate(
    [
        ("float32", [0xBF800000, 0x80000000, 0, 0x3E99999A, 0x7FC12345, 0xFF800001], 4, 2),
        ("float64", [0x3FD3333333333333, 0x8000000000000000, 0x7FF8000012345678], 8, 1),
        ("bfloat16", [0xBF80, 0, 0x3F81, 0xFF81], 2, 1),
        ("float8_e4m3", [0xBC, 0x80, 0, 0x2A], 1, 2),
        ("uint64", [0, 2**63, 2**64 - 1], 8, 0),
        ("int16", [-32768, -5, 300], 2, 1),
        ("int8", [7], 1, 0),
    ],
    45,
):

    @case(f"NNR-SID-{number:03}", f"{name}: indices into a palette", f"PaletteCode {name}")
    def indexed(name: str = name, items: Sequence[int] = items, size: int = size, offset: int = offset) -> Content:
        indices = [k % len(items) for k in (0, 1, 1, 2, 5, 3, 2, 4, 1, 0, 2, 3)]
        some = {"offset": offset} if offset else {}
        s = recorded({"w": entry("palette", name, values=text64(little(items, size), size), **some)})
        s.levels("w", np.array(indices).reshape(2, 6) - offset)
        chosen_ones = [items[index] % (1 << 8 * size) for index in indices]
        return s.means({"w": patterned(name, chosen_ones).reshape(2, 6)})


# ------------------------------------------------------------------------------------------------ GridCode
STEP = np.float32(0.1)  # 0x3DCCCCCD, a number with a full mantissa
LEVELS = [[0, 1, -1, 127], [3, -128, 7, 100], [-3, 5, 0, 11]]


def on_grid(name: str, levels: Any, scales: Any) -> Tensor:
    """Levels times their scales, in float32 or float64, then rounded to the type."""
    wide = "float64" if name == "float64" else "float32"
    patterns = []
    for index, level in np.ndenumerate(np.array(levels)):
        rounded = Fraction(float(patterned(wide, nearest(wide, Fraction(int(level))))))
        product = rounded * Fraction(float(np.broadcast_to(scales, np.shape(levels))[index]))
        first = float(patterned(wide, nearest(wide, product)))
        patterns.append(nearest(name, Fraction(first)))
    return patterned(name, np.array(patterns, np.uint64).reshape(np.shape(levels)))


PER_ROW = np.array([[0.1], [0.0123], [2.5]], "<f4")
PER_COLUMN = np.array([0.1, 3, 0.7, 1e-3], "<f4")
for number, (name, scales, axis) in enumerate(
    [
        ("float32", STEP, None),
        ("float32", PER_ROW, 0),
        ("float32", PER_COLUMN, 1),
        ("float16", STEP, None),
        ("bfloat16", PER_ROW, 0),
        ("float8_e5m2", PER_COLUMN, 1),
        ("float64", np.float64(0.1), None),
        ("float64", PER_ROW.astype("<f8") / 3, 0),
    ],
    52,
):

    @case(
        f"NNR-SID-{number:03}",
        f"{name}: levels times {'one scale' if axis is None else 'scales along dimension ' + str(axis)}",
        f"GridCode {name}{'' if axis is None else ' axis'}",
    )
    def grid(name: str = name, scales: Any = scales, axis: int | None = axis) -> Content:
        some = {} if axis is None else {"axis": axis}
        data = little_endian(np.asarray(scales)).tobytes()
        s = recorded({"w": entry("grid", name, scale=text64(data, scales.itemsize), **some)})
        s.levels("w", LEVELS)
        return s.means({"w": on_grid(name, LEVELS, scales)})


@case("NNR-SID-079", "levels of more than 24 bits are rounded to float32 before the product", "GridCode float32")
def large_levels() -> Content:
    levels = [[2**24 + 1, 2**31 - 1, -(2**24) - 3]]
    s = recorded({"w": entry("grid", "float32", scale=scale(1.5))}).levels("w", levels)
    return s.means({"w": on_grid("float32", levels, np.float32(1.5))})


@case("NNR-SID-080", "level 0 times a negative scale is minus zero", "GridCode float32 bfloat16")
def minus_zero() -> Content:
    s = recorded({name: entry("grid", name, scale=scale(-0.5)) for name in ("float32", "bfloat16")})
    s.levels("float32", [0, 3]).levels("bfloat16", [0, 3])
    patterns = {"float32": [0x80000000, 0xBFC00000], "bfloat16": [0x8000, 0xBFC0]}
    return s.means({name: patterned(name, values) for name, values in patterns.items()})
