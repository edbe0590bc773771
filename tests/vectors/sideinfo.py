"""NNR-SID-060 to 098: types, shapes, ties and sources in side information, and private units of other applications."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from nnr_codec.constants import NNR_AGG_SLF, NNR_DFL, NNR_PT_INT, NNR_PT_RAW_FLOAT

from ..builder import ndu, update_ndu
from .arithmetic import floats
from .bits import f4
from .case import Content, acceptable
from .coded import HOSTILE
from .recorded import (
    FLOATS,
    Recorded,
    case,
    dtype_of,
    entry,
    float_code,
    little,
    nearest,
    patterned,
    recorded,
    scale,
    text,
)
from .stream import Stream
from .topologies import stored


# ------------------------------------------------------------------------------------------------ casts
@case("NNR-SID-060", "integer types that NNR lacks, from units of the next wider type", "bool uint int2 int4")
def integers() -> Content:
    ends: dict[str, tuple[list[int], int, str]] = {
        "bool": ([0, 1, 1, 0], 5, "|i1"),
        "uint2": ([0, 3, 1], 5, "|i1"),
        "uint4": ([0, 15, 7], 5, "|i1"),
        "int2": ([-2, 1, 0], 5, "|i1"),
        "int4": ([-8, 7, 0], 5, "|i1"),
        "uint8": ([0, 255, 128], 6, "<i2"),
        "uint16": ([0, 65535, 300], 0, "<i4"),
        "uint32": ([0, 2**31 - 1, 3], 7, "<i8"),
        "uint64": ([0, 2**31 - 1, 3], 7, "<i8"),
    }
    s = recorded({name: {"type": name} for name in ends})
    for name, (values, data_format, dtype) in ends.items():
        s.levels(name, values, data_format, dtype)
    return s.means({name: np.array(values, dtype_of(name)) for name, (values, _, _) in ends.items()})


@case("NNR-SID-061", "integers in profile 0, where units are int32", "profile_0 int8 int16 int64 uint8 bool")
def integers_of_profile_0() -> Content:
    ends = {"int8": [-128, 127], "int16": [-32768, 32767], "int64": [-(2**31), 5], "uint8": [0, 255], "bool": [1, 0]}
    s = recorded({name: {"type": name} for name in ends}, profile=0)
    for name, values in ends.items():
        s.levels(name, values)
    return s.means({name: np.array(values, name) for name, values in ends.items()})


for number, name in enumerate(("float16", "bfloat16", "float8_e5m2", "float8_e4m3", "float8_e3m4"), 62):

    @case(f"NNR-SID-{number:03}", f"{name} from float32, ties rounded to even", name)
    def cast(name: str = name) -> Content:
        mantissa = FLOATS[name][1]
        unit = Fraction(1, 2**mantissa)
        values = [1 + unit / 2, 1 + 3 * unit / 2, -1 - unit / 2, 1 + unit / 2 + Fraction(1, 2**20), unit / 8, -3]
        s = recorded({"w": {"type": name}})
        s.words("w", f4(*map(float, values)).tobytes())
        return s.means({"w": patterned(name, [nearest(name, value) for value in values])})


@case(
    "NNR-SID-067",
    "a float32 unit of quantized levels, converted to float64 and bfloat16",
    "float64 bfloat16 NNR_PT_FLOAT",
)
def quantized() -> Content:
    s = recorded({"a": {"type": "float64"}, "b": {"type": "bfloat16"}}, parameters={"density": 2})
    for name in "ab":
        s.ndu(ndu(name, [5]), [3, -200, 0, 1, 127], qp=-8)
        s.coded[name] = floats([3, -200, 0, 1, 127], -8)
    exact = [Fraction(level, 4) for level in (3, -200, 0, 1, 127)]
    both = {name: patterned(name, np.array([nearest(name, v) for v in exact], np.uint64)) for name in FLOATS}
    return s.means({"a": both["float64"], "b": both["bfloat16"]})


# ------------------------------------------------------------------------------------------------ shapes
@case("NNR-SID-068", "tensors without dimensions", "shape=[] IntegerCode FloatCode RawCode PaletteCode GridCode")
def scalars() -> Content:
    levels, words = float_code("bfloat16", [0xBF81], 120, 0)
    s = recorded(
        {
            "count": {"type": "int64", "shape": []},
            "big": entry("integer", "uint64", base=2**64 - 1, shape=[]),
            "float": entry("float", "bfloat16", pivot=120, shape=[]),
            "raw": entry("raw", "bool", shape=[]),
            "palette": entry("palette", "float32", values=scale(0.3), shape=[]),
            "grid": entry("grid", "float32", scale=scale(0.3), shape=[]),
            "plain": {"type": "float32", "shape": []},
        }
    )
    s.levels("count", [12]).levels("big", [0]).levels("float", levels).words("float#bits", words)
    s.words("raw", b"\1\0\0\0").levels("palette", [0]).levels("grid", [-1]).words("plain", f4(5).tobytes(), [1])
    return s.means(
        {
            "count": np.array(12),
            "big": np.array(2**64 - 1, np.uint64),
            "float": patterned("bfloat16", 0xBF81),
            "raw": np.array(True),
            "palette": np.array(0.3, "<f4"),
            "grid": np.array(-0.3, "<f4"),
            "plain": np.array(5, "<f4"),
        }
    )


@case("NNR-SID-069", "empty tensors, which have no units, at their positions", "shape index empty")
def empties() -> Content:
    shapes = {"first": ("float32", [0]), "third": ("bool", [3, 0, 2]), "last": ("bfloat16", [0, 7])}
    places = {"first": 0, "third": 2, "last": 4}
    s = recorded({name: {"type": t, "shape": shape, "index": places[name]} for name, (t, shape) in shapes.items()})
    s.plain("second", "fourth")
    empty = {name: np.zeros(shape, dtype_of(t)) for name, (t, shape) in shapes.items()}
    two = f4(1, -2)
    return s.means(
        {"first": empty["first"], "second": two, "third": empty["third"], "fourth": two, "last": empty["last"]}
    )


@case("NNR-SID-070", "only empty tensors", "shape index empty")
def only_empties() -> Content:
    s = recorded({"w": {"type": "int4", "shape": [2, 0], "index": 0}})
    return s.means({"w": np.zeros([2, 0], dtype_of("int4"))})


@case("NNR-SID-081", "indices far after the last tensor, in descending order of names", "index empty")
def far_places() -> Content:
    s = recorded(
        {name: {"type": "int8", "shape": [0], "index": k} for name, k in (("c", 1), ("b", 7), ("a", 2**31 - 1))}
    )
    return s.plain("w").means({"w": f4(1, -2)} | {name: np.zeros(0, np.int8) for name in "cba"})


# ------------------------------------------------------------------------------------------------ ties
@case("NNR-SID-071", "tensors tied to a plain, a coded and an empty tensor", "same_as index")
def ties() -> Content:
    s = recorded(
        {
            "a": {"same_as": "plain", "index": 0},
            "b": {"same_as": "coded", "index": 3},
            "c": {"same_as": "coded", "index": 4},
            "coded": entry("integer", "uint32", base=2**31),
            "none": {"type": "float32", "shape": [0], "index": 5},
            "z": {"same_as": "none", "index": 6},
        }
    )
    s.plain("plain").levels("coded", [-1, 1])
    tensor, none = np.array([2**31 - 1, 2**31 + 1], np.uint32), f4()
    return s.means(
        {"a": f4(1, -2), "plain": f4(1, -2), "coded": tensor, "b": tensor, "c": tensor, "none": none, "z": none}
    )


# ------------------------------------------------------------------------------------------------ records
@case("NNR-SID-072", "format and metadata of the source, no tensors", "format metadata")
def metadata() -> Content:
    source = {"format": "safetensors", "metadata": {"format": "pt", "größe": 'a "b"\n\0\U0001f600', "": ""}}
    return recorded(source=source).plain("w").means({"w": f4(1, -2)})


@case("NNR-SID-073", "a deflated record", "NNR_DFL IntegerCode")
def deflated() -> Content:
    s = recorded({"w": entry("integer", "uint32", base=2**31)}, deflated=True).levels("w", [-(2**31)])
    return s.means({"w": np.array([0], np.uint32)})


@case("NNR-SID-074", "names with unusual characters", "topology_elem_id")
def names() -> Content:
    odd = ["größe/重み", 'a"b\\c', "\n\x7f", "\U0001f600", " "]
    s = recorded({name: {"type": "uint8"} for name in odd})
    for name in odd:
        s.levels(name, [200])
    return s.means({name: np.array([200], np.uint8) for name in odd})


@case("NNR-SID-075", "parts of tensors in any order, with other tensors between them", "FloatCode IntegerCode order")
def any_order() -> Content:
    levels, words = float_code("bfloat16", HOSTILE["bfloat16"], 127, 0)
    s = recorded(
        {
            "n": entry("integer", "int64", low=32),
            "w": entry("float", "bfloat16", bits="other name", pivot=127),
        }
    )
    s.words("other name", words).levels("n", [1, -1]).plain("p").levels("w", levels).words("n#bits", little([5, 7], 4))
    n = np.array([2**32 + 5, 7 - 2**32])
    return s.means({"w": patterned("bfloat16", HOSTILE["bfloat16"]), "n": n, "p": f4(1, -2)})


ONNX = b"\x08\x08:\0\n\x03net"


@case("NNR-SID-076", "a record after a topology and a reference list", "mps_topology_indexed_reference_flag NNR_TPL")
def by_index() -> Content:
    levels, words = float_code("float16", HOSTILE["float16"], 15, 0)
    s = Recorded()
    s.str_()
    s.parameters(topology_carriage_flag=1, mps_topology_indexed_reference_flag=1)
    s.topology(ONNX, storage=2).reference_list("w", "w#bits")
    s.record(text({"w": entry("float", "float16", pivot=15)}))
    s.ndu(ndu(0, [12], kind=NNR_PT_INT), levels)
    s.ndu(ndu(1, [len(words) // 4], kind=NNR_PT_RAW_FLOAT), payload=words)
    s.coded = {"w": levels, "w#bits": np.frombuffer(words, "<f4")}
    tensors = {"w": patterned("float16", HOSTILE["float16"])}
    return s.gives(tensors, raw=s.coded, topology=ONNX, topology_format="onnx")


@case("NNR-SID-077", "coded tensors in parts, in an aggregate", "partial_data_counter NNR_AGG FloatCode")
def in_parts() -> Content:
    levels, words = float_code("float32", HOSTILE["float32"], 127, 0)
    s = recorded({"w": entry("float", "float32", pivot=127)})
    first = len(s.units)
    s.ndu(ndu("w", [12], kind=NNR_PT_INT), levels, pieces=3)
    s.ndu(ndu("w#bits", [len(words) // 4], kind=NNR_PT_RAW_FLOAT), payload=words, pieces=2)
    s.aggregate(first)
    s.coded = {"w": levels, "w#bits": np.frombuffer(words, "<f4")}
    return s.means({"w": patterned("float32", HOSTILE["float32"])})


@case(
    "NNR-SID-084",
    "coded tensors in nested self-contained aggregates with entry points, described by a record before them",
    "NNR_AGG_SLF entry_points_present_flag nested lps_self_contained_flag=1 FloatCode IntegerCode",
)
def in_nested_aggregates() -> Content:
    levels, words = float_code("bfloat16", HOSTILE["bfloat16"], 127, 0)
    s = recorded({"net/a": entry("float", "bfloat16", pivot=127), "net/b": entry("integer", "uint32", base=2**31)})
    outer = len(s.units)
    s.lps(alone=1)
    first = len(s.units)
    s.lps(alone=1)
    s.ndu(ndu("net/a", [12], kind=NNR_PT_INT), levels)
    s.ndu(ndu("net/a#bits", [len(words) // 4], kind=NNR_PT_RAW_FLOAT), payload=words)
    s.aggregate(first, kind=NNR_AGG_SLF, entry_points=True)
    first = len(s.units)
    s.lps(alone=1).ndu(ndu("net/b", [2], kind=NNR_PT_INT), [5, -6]).aggregate(
        first, kind=NNR_AGG_SLF, entry_points=True
    )
    s.aggregate(outer, kind=NNR_AGG_SLF, entry_points=True)
    s.coded = {
        "net/a": levels,
        "net/a#bits": np.frombuffer(words, "<f4"),
        "net/b": np.array([5, -6], np.int32),
    }
    return s.means(
        {
            "net/a": patterned("bfloat16", HOSTILE["bfloat16"]),
            "net/b": np.array([2**31 + 5, 2**31 - 6], np.uint32),
        }
    )


# ------------------------------------------------------------------------------------------------ updates
@case("NNR-SID-078", "an update with a record, of a model with a record", "update IntegerCode")
def updated() -> list[Content]:
    made = []
    for depth, tensor, base in ((0, entry("integer", "uint32", base=2**31), 2**31), (1, {"type": "uint32"}, 0)):
        s = recorded({"w": tensor}, parameters={"parent": depth})
        s.ndu(update_ndu("w", [2], depth, kind=NNR_PT_INT), [5, 6])
        s.coded["w"] = np.array([5, 6], np.int32)
        made.append(s.means({"w": np.array([base + 5, base + 6], np.uint32)}))
    return made


# ------------------------------------------------------------------------------------------------ private units
def others(id_: str, title: str, storage: int, data: bytes, compression: int = 0) -> None:
    """Register a unit of another private format, which the decoder skips."""

    @acceptable(id_, title, "6.4.3.5", "NNR_TPL_UNSP")
    def make() -> Content:
        s = Stream().start()
        s.topology(data, storage=storage, compression=compression)
        return s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, -2]).gives({"w": f4(1, -2)})


CLAIM = text({"w": {"type": "float16"}})
others("NNR-SID-090", "a unit of storage format 128 with other bytes", 128, b"\0any bytes \xff at all")
others("NNR-SID-091", "a unit of storage format 128 with other JSON", 128, b'{"NNR_codec":1}')
others("NNR-SID-092", "a unit of storage format 128 that is shorter than the prefix of a record", 128, b'{"nnr_codec"')
others("NNR-SID-093", "a unit of storage format 128 with a BOM before a record", 128, b"\xef\xbb\xbf" + CLAIM)
others("NNR-SID-094", "an empty unit of storage format 128", 128, b"")
others("NNR-SID-095", "a unit of storage format 200 with the text of a record", 200, CLAIM)
others("NNR-SID-096", "a deflated unit of storage format 128 with other bytes", 128, stored(b"any bytes"), NNR_DFL)
others(
    "NNR-SID-098",
    "a unit of storage format 128 with compression format NNR_DFL that is not deflated",
    128,
    CLAIM,
    NNR_DFL,
)
others("NNR-SID-097", "a unit of storage format 128 with a space before a record", 128, b" " + CLAIM)
