"""NNR-SID-401 on: side information of version 3, whose codes have units with separate ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnr_codec.constants import ICNN_NDU_EXT, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import ndu
from .bits import f4
from .case import Content, Tensor
from .coded import HOSTILE, LEVELS, STEP, on_grid
from .displaced import MOVED, made, words
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


def with_ids(tensors: Any, **more: Any) -> Recorded:
    """Return a bitstream that begins with a record of version 3."""
    return recorded(tensors, nnr_codec=3, **more)


# ------------------------------------------------------------------------------------------------ each code
BFLOAT16 = entry("float", "bfloat16", pivot=127)


def float_units(s: Recorded, levels: str, bits: str) -> Tensor:
    """Write the units of the special values of bfloat16, and return the values."""
    numbers, other = float_code("bfloat16", HOSTILE["bfloat16"], 127, 0)
    s.levels(levels, numbers).words(bits, other)
    return patterned("bfloat16", HOSTILE["bfloat16"])


@case("NNR-SID-401", "bfloat16: levels in a unit with a separate id", "FloatCode bfloat16 unit")
def of_floats() -> Content:
    s = with_ids({"w": BFLOAT16})
    return s.means({"w": float_units(s, "w#levels", "w#bits")})


@case("NNR-SID-402", "uint32: levels in a unit with a separate id", "IntegerCode uint32 base unit")
def of_integers() -> Content:
    s = with_ids({"w": entry("integer", "uint32", base=2**31)}).levels("w#levels", [-(2**31), 2**31 - 1, 5])
    return s.means({"w": np.array([0, 2**32 - 1, 2**31 + 5], np.uint32)})


@case("NNR-SID-403", "int64: levels and low bits in units with separate ids", "IntegerCode int64 low unit")
def of_large_integers() -> Content:
    s = with_ids({"w": entry("integer", "int64", low=32)}).levels("w#levels", [1, -1])
    return s.words("w#bits", little([5, 7], 4)).means({"w": np.array([2**32 + 5, 7 - 2**32])})


@case("NNR-SID-404", "uint16: bytes of the items in a unit with a separate id", "RawCode uint16 unit")
def of_bytes() -> Content:
    s = with_ids({"w": entry("raw", "uint16", shape=[3])}).words("w#raw", little([0, 65535, 258], 2) + bytes(2))
    return s.means({"w": np.array([0, 65535, 258], np.uint16)})


@case("NNR-SID-405", "float32: indices into a palette, in a unit with a separate id", "PaletteCode float32 unit")
def of_a_palette() -> Content:
    items = [0xBF800000, 0, 0x3E99999A]
    s = with_ids({"w": entry("palette", "float32", values=text64(little(items, 4), 4), offset=1)})
    s.levels("w#levels", [[-1, 0], [1, 0]])
    return s.means({"w": patterned("float32", [[items[0], items[1]], [items[2], items[1]]])})


@case("NNR-SID-406", "float32: levels times one scale, in a unit with a separate id", "GridCode float32 unit")
def of_a_grid() -> Content:
    s = with_ids({"w": entry("grid", "float32", scale=scale(STEP))}).levels("w#levels", LEVELS)
    return s.means({"w": on_grid("float32", LEVELS, STEP)})


# ------------------------------------------------------------------------------------------------ ids
@case(
    "NNR-SID-407",
    "nondefault ids, because tensors have the default ids as names",
    "FloatCode IntegerCode RawCode unit bits",
)
def other_ids() -> Content:
    s = with_ids(
        {
            "w": BFLOAT16 | {"code": BFLOAT16["code"] | {"unit": "w##levels", "bits": "w##bits"}},
            "w#levels": entry("integer", "int8", base=5),
            "w#raw": entry("raw", "bool", shape=[1], unit="größe/重み"),
        }
    )
    s.plain("w#bits")
    w = float_units(s, "w##levels", "w##bits")
    s.levels("w#levels#levels", [1, -6]).words("größe/重み", b"\1\0\0\0")
    return s.means({"w#bits": f4(1, -2), "w": w, "w#levels": np.array([6, -1], np.int8), "w#raw": np.array([True])})


@case(
    "NNR-SID-408",
    "units of codes in any order, with other tensors between them, and a tied tensor",
    "FloatCode unit same_as order",
)
def any_order() -> Content:
    s = with_ids({"w": BFLOAT16, "z": {"same_as": "w", "index": 2}})
    levels, other = float_code("bfloat16", HOSTILE["bfloat16"], 127, 0)
    s.words("w#bits", other).plain("p").levels("w#levels", levels)
    w = patterned("bfloat16", HOSTILE["bfloat16"])
    return s.means({"w": w, "p": f4(1, -2), "z": w})


@case("NNR-SID-409", "codes, a displacement and a cast in one record", "DisplacementCode IntegerCode RawCode unit cast")
def beside_others() -> Content:
    tensors = {
        "cast": {"type": "uint8"},
        "n": entry("integer", "int4", base=-8),
        "one": entry("raw", "float64", shape=[]),
        "w": entry("displacement", "float32"),
    }
    s = with_ids(tensors).levels("cast", [200]).levels("n#levels", [0, 15]).words("one#raw", little([0x3FD3 << 48], 8))
    words(s, MOVED)
    return s.means(
        {
            "cast": np.array([200], np.uint8),
            "n": np.array([-8, 7], dtype_of("int4")),
            "one": patterned("float64", 0x3FD3 << 48),
            "w": made(MOVED, 0),
        }
    )


@case(
    "NNR-SID-410",
    "a code and a displacement in version 2, levels in the unit with the name of the tensor",
    "IntegerCode version",
)
def of_version_2() -> Content:
    tensors = {"n": entry("integer", "int8", base=5), "w": entry("displacement", "float32")}
    s = recorded(tensors, nnr_codec=2).levels("n", [1, -6])
    words(s, MOVED)
    return s.means({"n": np.array([6, -1], np.int8), "w": made(MOVED, 0)})


@case("NNR-SID-411", "a deflated record, and a reference list with unit ids", "NNR_DFL FloatCode unit")
def by_index() -> Content:
    levels, other = float_code("bfloat16", HOSTILE["bfloat16"], 127, 0)
    s = Recorded()
    s.str_()
    s.parameters(mps_topology_indexed_reference_flag=1)
    s.reference_list("w#levels", "w#bits")
    s.record(text({"w": BFLOAT16}, nnr_codec=3), deflated=True)
    s.ndu(ndu(0, [12], kind=NNR_PT_INT), levels)
    s.ndu(ndu(1, [len(other) // 4], kind=NNR_PT_RAW_FLOAT), payload=other)
    s.coded = {"w#levels": levels, "w#bits": np.frombuffer(other, "<f4")}
    return s.means({"w": patterned("bfloat16", HOSTILE["bfloat16"])})


# ------------------------------------------------------------------------------------------------ updates
EXTERNAL = {"parent_node_id_present_flag": 1, "parent_node_id_type": ICNN_NDU_EXT}
BITS = {"metadata": {"nnr_codec.update": "bits"}}


def updated(tensors: Any, **members: Any) -> Recorded:
    """Return an update with a record, of version 3 unless ``members`` say otherwise."""
    s = Recorded()
    s.str_()
    s.parameters(base_model_id_present_flag=1, base_model_id="m", mps_parent_signalling_enabled_flag=1)
    return s.record(text(tensors, **({"nnr_codec": 3, "source": BITS} | members)))


def difference(s: Recorded, name: str, values: Any, data_format: int | None = None) -> Recorded:
    """Write a unit with integer differences."""
    array = np.array(values, "<i4")
    s.ndu(ndu(name, array.shape, kind=NNR_PT_INT, data_format=data_format, **EXTERNAL), array)
    s.coded[name] = array.astype({None: "<i4", 6: "<i2"}[data_format])
    return s


DELTA = entry("delta", "int32")
ENDS = [-(2**31), 2**31 - 1, 0, -1]


@case("NNR-SID-412", "an update: differences of bit patterns in a unit with a separate id", "DeltaCode update")
def of_patterns() -> Content:
    s = difference(updated({"w": DELTA}), "w#delta", ENDS)
    return s.means({"w": np.array(ENDS, np.int32)})


@case(
    "NNR-SID-413",
    "an update: differences with nondefault ids, without dimensions, and without a code",
    "DeltaCode update",
)
def of_patterns_and_numbers() -> Content:
    one = entry("delta", "int32", shape=[])
    s = updated({"one": one, "w": entry("delta", "int32", unit="w##delta")})
    difference(s, "w##delta", [[5, -6]])
    difference(s, "w#delta", [7])
    difference(s, "one#delta", [9])
    return s.means(
        {"w": np.array([[5, -6]], np.int32), "w#delta": np.array([7], np.int32), "one": np.array(9, np.int32)}
    )


@case("NNR-SID-414", "an update: a new tensor with a code, and differences", "DeltaCode IntegerCode update")
def of_patterns_and_a_tensor() -> Content:
    s = updated({"n": entry("integer", "uint32", base=2**31), "w": DELTA}).levels("n#levels", [-(2**31), 3])
    difference(s, "w#delta", ENDS)
    return s.means({"n": np.array([0, 2**31 + 3], np.uint32), "w": np.array(ENDS, np.int32)})


# ------------------------------------------------------------------------------------------------ order
def with_order(order: Any = "exponent", feature: str = "order", version: int = 4) -> bytes:
    """Return the text of a record of sorted differences."""
    more = {"requires": [feature]} if version == 4 else {}
    return text({"w": entry("delta", "int32", order=order)}, nnr_codec=version, source=BITS, **more)


@case("NNR-SID-611", "an update: differences sorted by the exponents of the base", "DeltaCode order update")
def in_the_order_of_exponents() -> Content:
    """The decoded tensor has the order of the unit; only the receiver has the base."""
    tensors = {"w": entry("delta", "int32", order="exponent")}
    s = difference(updated(tensors, nnr_codec=4, requires=["order"]), "w#delta", ENDS)
    return s.means({"w": np.array(ENDS, np.int32)})


for k, (title, data) in enumerate(
    [
        ("an unknown order", with_order("mantissa")),
        ("an empty order", with_order("")),
        ("an order that is a number", with_order(1)),
        ("an order with another feature", with_order(feature="repeats")),
        ("an order in version 3", with_order(version=3)),
    ],
    612,
):
    refused(k, f"differences: {title}", "order record", "ElementError", 2, with_text(data))


# ------------------------------------------------------------------------------------------------ rejected
def of_version(version: int, **tensors: Any) -> bytes:
    """Return the text of a record."""
    return text(tensors, nnr_codec=version)


FLOAT, NUMBER = entry("float", "float32", pivot=5), entry("integer", "int8", base=5)
MOVES = entry("displacement", "float32")


def number(**members: Any) -> Any:
    """Return the text of an IntegerCode with more members."""
    return entry("integer", "int8", base=5, **members)


for k, (title, data) in enumerate(
    [
        # 421: ids
        ("the id of the levels is the name of another tensor", of_version(3, v=number(unit="w"), w={"type": "uint8"})),
        (
            "the default id of the levels is the name of another tensor",
            of_version(3, w=NUMBER, **{"w#levels": {"type": "uint8"}}),
        ),
        ("the id of the levels is the name of the tensor", of_version(3, w=number(unit="w"))),
        ("the same id for the levels of two tensors", of_version(3, v=number(unit="w#levels"), w=NUMBER)),
        ("the same id for levels and bits", of_version(3, w=entry("float", "float32", pivot=5, unit="b", bits="b"))),
        (
            "the same id for the levels of one tensor and the bits of another",
            of_version(3, v=FLOAT, w=number(unit="v#bits")),
        ),
        (
            "the same id for levels and a displacement",
            of_version(3, v=number(unit="w_displacement"), w=MOVES),
        ),
        ("a tensor tied to a unit of levels", of_version(3, a={"same_as": "w#levels", "index": 0}, w=NUMBER)),
        ("an id that is a number", of_version(3, w=number(unit=1))),
        ("an id with a zero character", of_version(3, w=number(unit="a\0"))),
        ("an id with a lone surrogate", of_version(3, w=number(unit="\ud800"))),
        # 432: default ids that are present
        (
            "the default id of FloatCode levels is present",
            of_version(3, w=entry("float", "float32", pivot=5, unit="w#levels")),
        ),
        ("the default id of IntegerCode levels is present", of_version(3, w=number(unit="w#levels"))),
        ("the default id of RawCode bytes is present", of_version(3, w=entry("raw", "int8", shape=[2], unit="w#raw"))),
        (
            "the default id of PaletteCode indices is present",
            of_version(3, w=entry("palette", "int8", values="AAAA", unit="w#levels")),
        ),
        (
            "the default id of GridCode levels is present",
            of_version(3, w=entry("grid", "float32", scale=scale(1), unit="w#levels")),
        ),
        (
            "the default id of DeltaCode differences is present",
            of_version(3, w=entry("delta", "int32", unit="w#delta")),
        ),
        # 438: versions
        ("version 3 without a code", of_version(3, w={"type": "float16"})),
        ("version 3 with only a displacement", of_version(3, w=MOVES)),
        ("an id of levels in version 1", of_version(1, w=number(unit="u"))),
        ("an id of levels in version 2", of_version(2, v=number(unit="u"), w=MOVES)),
        ("differences of bit patterns in version 1", of_version(1, w=DELTA)),
        ("differences of bit patterns in version 2", of_version(2, v=DELTA, w=MOVES)),
        # 444: differences
        ("differences of bit patterns for int16", of_version(3, w=entry("delta", "int16"))),
        ("differences of bit patterns for uint32", of_version(3, w=entry("delta", "uint32"))),
        ("differences of bit patterns for float32", of_version(3, w=entry("delta", "float32"))),
        ("differences of bit patterns with a base", of_version(3, w=entry("delta", "int32", base=1))),
    ],
    421,
):
    refused(k, title, "unit record", "ElementError", 2, with_text(data))

refused(
    451,
    "an id of levels longer than max_name_bytes",
    "limits",
    "LimitError",
    2,
    with_text(of_version(3, w=number(unit="long"))),
    limits={"max_name_bytes": 3},
)


def of_the_tensors_name() -> Recorded:
    """Return levels, then a unit with the name of the tensor."""
    return with_ids({"w": NUMBER}).levels("w#levels", [1, 2]).levels("w", [1, 2])


def late_levels() -> Recorded:
    """Return a unit with the name of the tensor, then levels."""
    return with_ids({"w": NUMBER}).levels("w", [1, 2]).levels("w#levels", [1, 2])


def as_before_version_3() -> Recorded:
    """Return levels in the unit with the name of the tensor."""
    return with_ids({"w": NUMBER}).levels("w", [1, 2])


def lone(tensor: Any, *names: str) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with some units of a record of w."""
    return lambda: with_ids({"w": tensor}).plain(*names)


def short() -> Recorded:
    """Return fewer differences than the tensor has items."""
    return difference(updated({"w": entry("delta", "int32", shape=[3])}), "w#delta", [1, 2])


def narrow() -> Recorded:
    """Return differences of 16 bits."""
    return difference(updated({"w": DELTA}), "w#delta", [1, 2], 6)


for k, (title, features, error, unit, make) in enumerate(
    [
        ("a unit with the name of the tensor after its levels", "IntegerCode", "ElementError", 4, of_the_tensors_name),
        ("a unit with the name of the tensor before its levels", "IntegerCode", "ElementError", 3, late_levels),
        ("levels in a unit with the name of the tensor", "IntegerCode", "ElementError", 3, as_before_version_3),
        ("the unit of the levels is missing", "IntegerCode", "IncompleteError", None, lone(NUMBER, "v")),
        (
            "the unit of the levels is missing, the unit of the bits is present",
            "FloatCode",
            "IncompleteError",
            None,
            lone(FLOAT, "w#bits"),
        ),
        ("the unit of the differences is missing", "DeltaCode", "IncompleteError", None, lone(DELTA, "v")),
        ("floats instead of levels", "IntegerCode", "ElementError", 3, lone(NUMBER, "w#levels")),
        ("floats instead of differences", "DeltaCode", "ElementError", 3, lone(DELTA, "w#delta")),
        ("fewer differences than items", "DeltaCode", "ElementError", 3, short),
        ("differences of 16 bits", "DeltaCode", "ElementError", 3, narrow),
    ],
    461,
):
    refused(k, title, f"{features} unit", error, unit, make)
