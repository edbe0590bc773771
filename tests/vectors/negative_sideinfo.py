"""NNR-SID-211 on: side information that contradicts the units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnr_codec.constants import NNR_DFL

from .bits import f4
from .recorded import Recorded, entry, float_code, little, recorded, refused, scale, text, text64
from .topologies import stored


# ------------------------------------------------------------------------------------------------ units of records
def twice() -> Recorded:
    """Return a bitstream with a repeated record."""
    return recorded({"w": {"type": "float16"}}).record(text({"w": {"type": "float16"}})).plain("w")


def late() -> Recorded:
    """Return a bitstream with a record after a tensor that it does not describe."""
    s = recorded_nothing().plain("v")
    return s.record(text({"w": {"type": "float16"}})).plain("w")


def recorded_nothing() -> Recorded:
    """Return a bitstream without a record."""
    s = Recorded()
    s.start()
    return s


def damaged(size: int) -> Callable[[], Recorded]:
    """Return a bitstream with a deflated record without its last bytes."""

    def make() -> Recorded:
        s = recorded_nothing()
        s.topology(stored(text({"w": {"type": "float16"}}))[:-size], storage=128, compression=NNR_DFL)
        return s.plain("w")

    return make


def unended() -> Recorded:
    """Return a bitstream with an uncompressed record without a final zero byte."""
    s = recorded_nothing()
    s.topology(text({"w": {"type": "float16"}}), storage=128)
    return s.plain("w")


refused(211, "a second record", "NNR_TPL", "ElementError", 3, twice)
refused(212, "a record after a tensor", "NNR_TPL", "ElementError", 3, late, more="topology-first")
refused(213, "a deflated record without its checksum", "NNR_DFL", "ElementError", 2, damaged(4))
refused(214, "a truncated deflated record", "NNR_DFL", "ElementError", 2, damaged(20))
refused(215, "an uncompressed record without its terminating zero", "NNR_PT_RAW", "ElementError", 2, unended)


# ------------------------------------------------------------------------------------------------ units of tensors
def levels(tensor: Any, values: Any, *, words: bytes = b"", **more: Any) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with a record of w, its levels, and words of its bits if any."""

    def make() -> Recorded:
        s = recorded({"w": tensor}).levels("w", values, **more)
        return s.words("w#bits", words) if words else s

    return make


def words_only(tensor: Any, words: bytes, shape: Sequence[int] | None = None) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with a record of w, and its words."""
    return lambda: recorded({"w": tensor}).words("w", words, shape)


BFLOAT16 = entry("float", "bfloat16", pivot=127)
PATTERNS = [0x3F80, 0xBFC0, 0x3E9A, 0x4049, 0x3F81]
LEVELS, WORDS = float_code("bfloat16", PATTERNS, 127, 0)  # 5 fields of 8 bits: 2 words
WIDE = entry("integer", "int64", low=32)
ROWS = entry("float", "float32", pivot=127, zeros=23, rows=text64(b"\x80"))
HOLE = entry("float", "bfloat16", pivot=127, holes=1)
BEYOND = entry("float", "float32", pivot=127, zeros=23, rows=text64(b"\xc0"))


def square_bits() -> Recorded:
    """Return a bitstream with two words in two dimensions."""
    return recorded({"w": BFLOAT16}).levels("w", LEVELS).words("w#bits", WORDS, [2, 1])


def integer_bits() -> Recorded:
    """Return a bitstream with integers instead of words."""
    return recorded({"w": BFLOAT16}).levels("w", LEVELS).levels("w#bits", [1, 2])


FITS: list[tuple[str, str, int, Callable[[], Recorded]]] = [
    # 221: counts and types of items
    ("one word too few", "FloatCode", 4, levels(BFLOAT16, LEVELS, words=WORDS[:4])),
    ("one word too many", "FloatCode", 4, levels(BFLOAT16, LEVELS, words=WORDS + bytes(4))),
    ("a bit after the last field", "FloatCode", 4, levels(BFLOAT16, LEVELS, words=WORDS[:-1] + b"\x80")),
    ("words in two dimensions", "FloatCode", 4, square_bits),
    ("words that are integers", "FloatCode", 4, integer_bits),
    ("levels that are floats", "FloatCode", 3, words_only(BFLOAT16, bytes(20))),
    ("levels of 16 bits", "FloatCode", 3, levels(BFLOAT16, LEVELS, data_format=6, dtype="<i2")),
    ("one word too few", "IntegerCode", 4, levels(WIDE, [1, 2], words=bytes(4))),
    ("one word too many", "IntegerCode", 4, levels(WIDE, [1, 2], words=bytes(12))),
    ("more words than the items require", "IntegerCode", 4, levels(WIDE, [1, 2], words=bytes(64))),
    ("one word too few", "RawCode", 3, words_only(entry("raw", "int16", shape=[3]), bytes(4))),
    ("one word too many", "RawCode", 3, words_only(entry("raw", "int16", shape=[3]), bytes(12))),
    ("a bit after the last item", "RawCode", 3, words_only(entry("raw", "int16", shape=[3]), bytes(7) + b"\1")),
    ("words that are integers", "RawCode", 3, levels(entry("raw", "int16", shape=[2]), [5])),
    ("a different number of levels than items", "IntegerCode", 3, levels(entry("integer", "int8", shape=[3]), [5, 6])),
    ("an int8 unit with a different number of items", "shape", 3, levels({"type": "int8", "shape": [3]}, [5, 6])),
    ("two items for a shape without dimensions", "shape", 3, levels({"type": "int64", "shape": []}, [5, 6])),
    ("floats instead of integers", "uint8", 3, words_only({"type": "uint8"}, f4(1).tobytes())),
    ("integers instead of floats", "bfloat16", 3, levels({"type": "bfloat16"}, [5])),
    (
        "one byte of row bits for nine rows",
        "FloatCode rows",
        4,
        levels(ROWS, np.zeros([9, 1]), words=bytes(32)),
    ),
    ("a row bit after the last row", "FloatCode rows", 4, levels(BEYOND, np.zeros([1, 1]), words=bytes(4))),
    (
        "two scales for three columns",
        "GridCode axis",
        3,
        levels(entry("grid", "float32", scale=scale(1, 2), axis=1), np.ones([2, 3])),
    ),
    (
        "an axis outside the shape of the unit",
        "GridCode axis",
        3,
        levels(entry("grid", "float32", scale=scale(1, 2), axis=2), np.ones([2, 2])),
    ),
]
for number, (title, features, unit, make) in enumerate(FITS, 221):
    refused(number, f"{features.split()[0]}: {title}", features, "ElementError", unit, make)

VALUES: list[tuple[str, str, int, Callable[[], Recorded]]] = [
    # 251: values
    ("an exponent below 0", "FloatCode", 4, levels(BFLOAT16, [128], words=bytes(4))),
    ("an exponent of nine bits", "FloatCode", 4, levels(BFLOAT16, [-129], words=bytes(4))),
    ("an exponent far outside the range", "FloatCode", 4, levels(BFLOAT16, [-(2**31)], words=bytes(4))),
    ("an exponent of nine bits, after level 0", "FloatCode", 4, levels(HOLE, [-129], words=bytes(4))),
    ("an index outside the palette", "PaletteCode", 3, levels(entry("palette", "int8", values="AQID"), [0, 3])),
    ("a negative index", "PaletteCode", 3, levels(entry("palette", "int8", values="AQID", offset=1), [0, -2])),
    ("256 in uint8", "IntegerCode", 3, levels(entry("integer", "uint8", base=1), [255])),
    ("-1 in uint8", "IntegerCode", 3, levels(entry("integer", "uint8", base=1), [-2])),
    ("2^64 in uint64", "IntegerCode", 4, levels(entry("integer", "uint64", low=32), [1, -1], words=bytes(8))),
    ("2^64 in uint64", "IntegerCode", 3, levels(entry("integer", "uint64", base=2**64 - 1), [1])),
    (
        "2^63 in int64",
        "IntegerCode",
        4,
        levels(entry("integer", "int64", base=1, low=32), [2**31 - 1], words=b"\xff" * 4),
    ),
    ("a value below -2^63 in int64", "IntegerCode", 3, levels(entry("integer", "int64", base=-(2**63)), [-1])),
    ("a level times 2^64", "IntegerCode", 4, levels(entry("integer", "int64", low=64), [1], words=bytes(8))),
    ("2 in bool", "IntegerCode", 3, levels(entry("integer", "bool", base=1), [1])),
    ("8 in int4", "IntegerCode", 3, levels(entry("integer", "int4", base=1), [7])),
    ("2 in bool", "RawCode", 3, words_only(entry("raw", "bool", shape=[2]), little([1, 2], 1) + bytes(2))),
    ("16 in uint4", "RawCode", 3, words_only(entry("raw", "uint4", shape=[2]), little([1, 16], 1) + bytes(2))),
    (
        "a product outside the range of float16",
        "GridCode",
        3,
        levels(entry("grid", "float16", scale=scale(32768)), [2]),
    ),
    (
        "a product outside the range of float32",
        "GridCode",
        3,
        levels(entry("grid", "float32", scale=scale(3e38)), [2]),
    ),
    ("value 256", "uint8", 3, levels({"type": "uint8"}, [256])),
    ("value -1", "uint8", 3, levels({"type": "uint8"}, [-1])),
    ("value 2", "bool", 3, levels({"type": "bool"}, [2])),
    ("value -3", "int2", 3, levels({"type": "int2"}, [-3])),
    ("value 65520", "float16", 3, words_only({"type": "float16"}, f4(65520).tobytes())),
    ("the largest float32", "bfloat16", 3, words_only({"type": "bfloat16"}, b"\xff\xff\x7f\x7f")),
    ("value 465", "float8_e4m3fn", 3, words_only({"type": "float8_e4m3fn"}, f4(465).tobytes())),
]
for number, (title, features, unit, make) in enumerate(VALUES, 251):
    refused(number, f"{features.split()[0]}: {title}", features, "ElementError", unit, make)


# ------------------------------------------------------------------------------------------------ tensors without units
def a_unit_for(tensor: Any) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with a unit for a tensor that requires none."""
    return lambda: recorded({"w": tensor}).plain("v", "w")


EMPTY, LOST = {"type": "int8", "shape": [0], "index": 0}, {"same_as": "x", "index": 0}


def only(tensors: Any, *names: str) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with some tensors of a record."""
    return lambda: recorded(tensors).plain(*names)


def lonely_levels() -> Recorded:
    """Return a bitstream with levels without words."""
    return recorded({"w": BFLOAT16}).levels("w", LEVELS).plain("v")


for number, (title, features, error, unit, make) in enumerate(
    [
        ("a unit for a tied tensor", "same_as", "ElementError", 4, a_unit_for({"same_as": "v", "index": 0})),
        (
            "a unit for an empty tensor",
            "shape",
            "ElementError",
            4,
            a_unit_for(EMPTY),
        ),
        ("the unit of the bits is missing", "FloatCode", "IncompleteError", None, lonely_levels),
        (
            "the unit of the levels is missing",
            "FloatCode",
            "IncompleteError",
            None,
            only({"w": BFLOAT16}, "v", "w#bits"),
        ),
        (
            "the unit of a tensor is missing",
            "bfloat16",
            "IncompleteError",
            None,
            only({"w": {"type": "bfloat16"}}, "v"),
        ),
        (
            "the unit of the source of a tied tensor is missing",
            "same_as",
            "IncompleteError",
            None,
            only({"a": LOST}, "v"),
        ),
    ],
    281,
):
    refused(number, title, features, error, unit, make)


def wide_items() -> Recorded:
    """Return a bitstream with words of 4 bytes for items of 8."""
    return recorded({"w": {"type": "float64"}}).words("w", bytes(4 * 20))


def many_ties() -> Recorded:
    """Return a bitstream with the same 80 bytes ten times."""
    return recorded({f"t{k}": {"same_as": "w", "index": k} for k in range(9)}).words("w", bytes(80))


SIZES = {"max_tensor_bytes": 100}, {"max_total_bytes": 500}
refused(291, "a float64 tensor larger than max_tensor_bytes", "limits", "LimitError", 3, wide_items, limits=SIZES[0])
refused(292, "tied tensors larger than max_total_bytes", "limits", "LimitError", 3, many_ties, limits=SIZES[1])
