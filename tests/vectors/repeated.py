"""NNR-SID-501 on: side information with features, and the feature repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .bits import f4
from .case import Content
from .negative_record import with_text
from .recorded import (
    Recorded,
    case,
    dtype_of,
    entry,
    float_code,
    little,
    patterned,
    recorded,
    refused,
    scale,
    text,
    text64,
)

REPEATS = ["repeats"]


def with_repeats(tensors: Any, **more: Any) -> Recorded:
    """Return a bitstream that begins with a record that requires the feature repeats."""
    return recorded(tensors, nnr_codec=4, requires=REPEATS, **more)


def runs(*numbers: tuple[int, int, int, int], **more: Any) -> dict[str, Any]:
    """Return the runs of a tensor: kept, length, distance and change of each."""
    return {name: [run[k] for run in numbers] for k, name in enumerate(("kept", "length", "distance", "change"))} | more


# ------------------------------------------------------------------------------------------------ copies
@case("NNR-SID-501", "float32: rows equal to earlier rows, reversed, negated, and both", "repeats RawCode float32")
def rows_of_floats() -> Content:
    rows = runs((3, 3, 3, 0), (0, 3, 6, 1), (0, 3, 9, 6), (0, 3, 12, 7))
    s = with_repeats({"w": entry("raw", "float32", shape=[6, 3], repeats=rows)})
    s.words("w#raw", f4(1, 2.5, -4, 7, 8, 9).tobytes())
    values = [[1, 2.5, -4], [1, 2.5, -4], [-4, 2.5, 1], [-1, -2.5, 4], [4, -2.5, -1], [7, 8, 9]]
    return s.means({"w": np.array(values, "<f4")})


@case("NNR-SID-502", "bfloat16: negated items at even and at odd positions", "repeats FloatCode bfloat16")
def alternating_signs() -> Content:
    patterns = [0x3F80, 0xBFC0, 0x0000, 0x4049, 0x7FC1]  # 1, -1.5, 0, 3.140625 and NaN
    levels, words = float_code("bfloat16", [*patterns, 0x3F81], 127, 0)
    runs_ = runs((5, 5, 5, 2), (0, 5, 10, 4), (0, 4, 15, 3), (0, 3, 3, 5))
    s = with_repeats({"w": entry("float", "bfloat16", pivot=127, shape=[23], repeats=runs_)})
    s.levels("w#levels", levels).words("w#bits", words)
    even = [0xBF80, 0xBFC0, 0x8000, 0x4049, 0xFFC1]
    odd = [0x3F80, 0x3FC0, 0x0000, 0xC049, 0x7FC1]
    backward = [0xC049, 0x0000, 0x3FC0, 0x3F80]
    again = [0x3F80, 0xBFC0, 0x0000]
    return s.means({"w": patterned("bfloat16", [*patterns, *even, *odd, *backward, *again, 0x3F81])})


@case("NNR-SID-503", "int8: the negative of -128 is -128", "repeats IntegerCode int8 low bits")
def negative_integers() -> Content:
    s = with_repeats({"w": entry("integer", "int8", low=4, shape=[2, 2, 2], repeats=runs((4, 4, 4, 6)))})
    s.levels("w#levels", [-8, 7, -1, 0]).words("w#bits", bytes([0xF0, 0x0F]) + bytes(2))
    return s.means({"w": np.array([[[-128, 127], [-1, 0]], [[-128, -127], [1, 0]]], np.int8)})


@case("NNR-SID-504", "a tensor in the order of columns", "repeats columns PaletteCode float16")
def columns() -> Content:
    palette = text64(little([0x3C00, 0x4000, 0x4200], 2), 2)  # 1, 2, 3
    by_columns = runs((2, 2, 2, 0), (0, 2, 4, 1), columns=True)
    s = with_repeats({"w": entry("palette", "float16", values=palette, shape=[2, 1, 4], repeats=by_columns)})
    s.levels("w#levels", [0, 1, 2, 2])
    return s.means({"w": np.array([[[1, 1, 2, 3]], [[2, 2, 1, 3]]], np.float16)})


@case("NNR-SID-505", "a scale for each row of the unit, whose rows are not copies", "repeats GridCode axis float32")
def scales_of_rows() -> Content:
    grid = entry(
        "grid", "float32", scale=scale(0.5, 0.25), axis=0, shape=[4, 2], repeats=runs((2, 2, 2, 0), (2, 2, 6, 1))
    )
    s = with_repeats({"w": grid}).levels("w#levels", [[3, -1], [1, 3]])
    return s.means({"w": np.array([[1.5, -0.5], [1.5, -0.5], [0.25, 0.75], [-0.5, 1.5]], "<f4")})


@case("NNR-SID-506", "rows with low bits of 0 are rows of the unit", "repeats FloatCode rows float16")
def zeros_of_rows() -> Content:
    kept = [[0x3800, 0xBA00], [0x3D00, 0x3D01]]
    levels, words = float_code("float16", kept, 28, 1, zeros=2, rows=[0])
    code = entry("float", "float16", pivot=28, mantissa=1, zeros=2, rows=text64(b"\x80"))
    s = with_repeats({"w": code | {"shape": [3, 2], "repeats": runs((2, 2, 2, 1))}})
    s.levels("w#levels", levels).words("w#bits", words)
    return s.means({"w": patterned("float16", [kept[0], kept[0][::-1], kept[1]])})


@case(
    "NNR-SID-507", "unsigned integers and booleans, which have no negatives", "repeats RawCode IntegerCode uint16 bool"
)
def unsigned() -> Content:
    s = with_repeats(
        {
            "bool": entry("raw", "bool", shape=[6], repeats=runs((3, 3, 3, 1))),
            "w": entry("integer", "uint16", base=65535, shape=[2, 3], repeats=runs((3, 3, 3, 1))),
        }
    )
    s.words("bool#raw", bytes([1, 1, 0, 0])).levels("w#levels", [0, -65535, -1])
    w = np.array([[65535, 0, 65534], [65534, 0, 65535]], np.uint16)
    return s.means({"bool": np.array([1, 1, 0, 0, 1, 1], bool), "w": w})


@case("NNR-SID-508", "copies of copies, up to the last item", "repeats IntegerCode int32")
def copies_of_copies() -> Content:
    doubling = runs((1, 1, 1, 0), (0, 2, 2, 6), (0, 4, 4, 0), (1, 8, 9, 2))
    s = with_repeats({"w": entry("integer", "int32", shape=[17], repeats=doubling)}).levels("w#levels", [5, -(2**31)])
    values = [5, 5, -5, -5, 5, 5, -5, -5, -(2**31), -5, 5, 5, -5, -5, 5, 5, -5]
    return s.means({"w": np.array(values, np.int32)})


@case("NNR-SID-509", "float64 and int4, a deflated record, and a tied tensor", "repeats NNR_DFL same_as float64 int4")
def beside_others() -> Content:
    tensors = {
        "n": entry("integer", "int4", base=-7, shape=[4], repeats=runs((2, 2, 2, 6))),
        "tied": {"same_as": "w", "index": 2},
        "w": entry("raw", "float64", shape=[3], repeats=runs((1, 1, 1, 2))),
    }
    s = with_repeats(tensors, deflated=True).levels("n#levels", [0, 14])
    s.words("w#raw", little([0, 0x7FF0000000000001], 8))
    w = patterned("float64", [0, 1 << 63, 0x7FF0000000000001])
    return s.means({"n": np.array([-7, 7, 7, -7], dtype_of("int4")), "w": w, "tied": w})


# ------------------------------------------------------------------------------------------------ features
def with_features(features: Any, version: int = 4, **tensors: Any) -> bytes:
    """Return the text of a record that requires features."""
    return text(tensors, nnr_codec=version, requires=features)


CODE = {"code": {"kind": "integer"}, "shape": [8], "type": "int8"}
FOUR = runs((4, 4, 4, 0))
USED = {"w": CODE | {"repeats": FOUR}}

for k, (title, data) in enumerate(
    [
        ("an unknown feature", with_features(["rows of the future"])),
        ("an unknown feature with unknown members", with_features(["a", "repeats"], w={"what": "ever"}, **{"v": 1})),
    ],
    521,
):
    refused(k, title, "requires", "UnsupportedError", 2, with_text(data))

for k, (title, data) in enumerate(
    [
        # 523: names of features
        ("version 4 without features", text({"w": {"type": "uint8"}}, nnr_codec=4)),
        ("an empty list of features", with_features([], w={"type": "uint8"})),
        ("features that are a string", with_features("repeats", **USED)),
        ("a feature that is a number", with_features([1], **USED)),
        ("a feature with an empty name", with_features(["", "repeats"], **USED)),
        ("a feature with a zero character", with_features(["a\0", "repeats"], **USED)),
        ("a feature that is named twice", with_features(["repeats", "repeats"], **USED)),
        ("features in another order", with_features(["repeats", "a"], **USED)),
        ("a feature that is not used", with_features(REPEATS, w={"type": "uint8"})),
        ("features in version 3", with_features(REPEATS, 3, **USED)),
        ("repeats in version 3", text(USED, nnr_codec=3)),
    ],
    523,
):
    refused(k, title, "requires", "ElementError", 2, with_text(data))


# ------------------------------------------------------------------------------------------------ runs
def of_runs(*numbers: tuple[Any, Any, Any, Any], **more: Any) -> bytes:
    """Return the text of a record of eight int8 with runs."""
    return with_features(REPEATS, w=CODE | {"repeats": runs(*numbers, **more)})


def of_tensor(**members: Any) -> bytes:
    """Return the text of a record of one tensor with repeats and other members."""
    tensor = CODE | {"repeats": FOUR} | members
    return with_features(REPEATS, w={name: value for name, value in tensor.items() if value is not None})


FLOATS = {"type": "float32", "shape": [8], "repeats": FOUR}

for k, (title, data) in enumerate(
    [
        # 541: arrays
        ("no runs", of_runs()),
        ("one number fewer than runs", of_tensor(repeats=FOUR | {"kept": []})),
        ("one number more than runs", of_tensor(repeats=FOUR | {"change": [0, 0]})),
        ("an array that is missing", of_tensor(repeats={"kept": [4], "length": [4], "distance": [4]})),
        ("an array that is a number", of_tensor(repeats=FOUR | {"length": 4})),
        ("runs that are an array", of_tensor(repeats=[4, 4, 4, 0])),
        ("an unknown member", of_runs((4, 4, 4, 0), rows=1)),
        ("columns 1", of_runs((4, 4, 4, 0), columns=1)),
        ("the default of columns is present", of_runs((4, 4, 4, 0), columns=False)),
        ("a length of true", of_runs((4, True, 4, 0))),
        ("a length of null", of_runs((4, None, 4, 0))),
        # 552: places
        ("a run at the first item", of_runs((0, 4, 4, 0))),
        ("a source before the first item", of_runs((4, 4, 5, 0))),
        ("a source far before the first item", of_runs((4, 4, 2**63, 0))),
        ("a run that is its own source", of_runs((4, 4, 0, 0))),
        ("a source after the run", of_runs((4, 1, -1, 0))),
        ("a source that overlaps the run", of_runs((4, 4, 3, 0))),
        ("a reversed source that overlaps the run", of_runs((4, 4, 2, 1))),
        ("a run that ends after the last item", of_runs((4, 5, 5, 0))),
        ("a run that begins after the last item", of_runs((9, 1, 1, 0))),
        ("runs that end after the last item", of_runs((2, 2, 2, 0), (2, 3, 3, 0))),
        ("a negative number of kept items", of_runs((4, 2, 4, 0), (-2, 2, 4, 0))),
        ("an empty run", of_runs((4, 0, 4, 0))),
        ("a negative length", of_runs((4, -1, 4, 0))),
        ("change 8", of_runs((4, 4, 4, 8))),
        ("a negative change", of_runs((4, 4, 4, -1))),
        # 567: tensors
        ("negated uint8", of_tensor(type="uint8", repeats=FOUR | {"change": [2]})),
        ("negated booleans", of_tensor(type="bool", repeats=FOUR | {"change": [4]})),
        ("no shape", of_tensor(shape=None)),
        ("a shape without dimensions", of_tensor(shape=[])),
        ("no code", of_tensor(code=None)),
        ("an empty tensor", of_tensor(shape=[0, 8], index=0, code=None)),
        ("a tied tensor", with_features(REPEATS, w={"same_as": "v", "index": 0, "repeats": FOUR})),
        ("a displacement", with_features(REPEATS, w=FLOATS | {"code": {"kind": "displacement"}})),
        ("differences of bit patterns", of_tensor(type="int32", code={"kind": "delta"})),
    ],
    541,
):
    refused(k, f"repeats: {title}", "repeats", "ElementError", 2, with_text(data))


# ------------------------------------------------------------------------------------------------ units
def units(values: Sequence[int], **members: Any) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with these levels."""
    return lambda: with_repeats({"w": CODE | {"repeats": FOUR} | members}).levels("w#levels", values)


def bytes_of(count: int) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with bytes of items."""
    return lambda: with_repeats({"w": CODE | {"repeats": FOUR, "code": {"kind": "raw"}}}).words("w#raw", bytes(count))


for k, (title, make) in enumerate(
    [
        ("as many levels as items, although half of them are copies", units(range(8))),
        ("one level too few", units(range(3))),
        ("one level too many", units(range(5))),
        ("as many bytes as items, although half of them are copies", bytes_of(8)),
        ("8 in int4, the negative of -8", units([-8, 0, 1, 2], type="int4", repeats=FOUR | {"change": [2]})),
    ],
    581,
):
    refused(k, f"repeats: {title}", "repeats", "ElementError", 3, make)

TWO = runs((2, 2, 2, 0), (2, 2, 4, 0))
refused(
    591,
    "more runs than max_decomp_elements allows",
    "repeats limits",
    "LimitError",
    3,
    units(range(4), repeats=TWO),
    limits={"max_decomp_elements": 4095},
)
refused(
    592,
    "copies that make a tensor larger than max_tensor_bytes",
    "repeats limits",
    "LimitError",
    3,
    units(
        [1],
        shape=[64],
        repeats=runs((1, 1, 1, 0), (0, 2, 2, 0), (0, 4, 4, 0), (0, 8, 8, 0), (0, 16, 16, 0), (0, 32, 32, 0)),
    ),
    limits={"max_tensor_bytes": 63},
)
refused(
    593,
    "more features than max_names",
    "requires limits",
    "LimitError",
    2,
    with_text(with_features(["a", "b", "c"])),
    limits={"max_names": 2},
)
