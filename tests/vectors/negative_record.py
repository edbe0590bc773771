"""NNR-SID-101 to 206: side information with an invalid text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .recorded import Recorded, entry, refused, scale, text, text64


def with_text(data: bytes) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with this record and one tensor."""

    def make() -> Recorded:
        s = Recorded()
        s.start()
        return s.record(data).plain("w")

    return make


def code(kind: str, type_: str = "float32", shape: Sequence[Any] | None = None, **members: Any) -> bytes:
    """Return the text of a record of one tensor with a code."""
    around = {} if shape is None else {"shape": shape}
    return text({"w": entry(kind, type_, **around, **members)})


# ------------------------------------------------------------------------------------------------ texts
TEXTS: list[tuple[str, bytes]] = [
    # 101: JSON
    ("the last brace is missing in the JSON text", text({"w": {"type": "float16"}})[:-1]),
    ("a space after the JSON text", text({"w": {"type": "float16"}}) + b" "),
    ("a zero byte after the JSON text", text({"w": {"type": "float16"}}) + b"\0"),
    ("a space in the JSON text", b'{"nnr_codec":1,"tensors":{"w":{"type": "float16"}}}'),
    ("members in a different order", b'{"nnr_codec":1,"tensors":{"w":{"type":"uint8","shape":[2]}}}'),
    (
        "a duplicate tensor name",
        b'{"nnr_codec":1,"tensors":{"w":{"type":"uint8"},"w":{"type":"uint8"}}}',
    ),
    ("a name with unescaped non-ASCII characters", '{"nnr_codec":1,"tensors":{"ö":{"type":"uint8"}}}'.encode()),
    ("a byte that is not UTF-8", b'{"nnr_codec":1,"source":{"format":"\xff"}}'),
    ("an unnecessary escape", b'{"nnr_codec":1,"tensors":{"\\u0077":{"type":"uint8"}}}'),
    ("a lone surrogate in a name", b'{"nnr_codec":1,"tensors":{"\\ud800":{"type":"uint8"}}}'),
    ("a lone surrogate in the metadata", b'{"nnr_codec":1,"source":{"metadata":{"a":"\\ud800"}}}'),
    ("a name with a zero character", text({"w\0": {"type": "uint8"}})),
    ("3,000 nested arrays", b'{"nnr_codec":1,"tensors":' + b"[" * 3000),
    ("an integer of 3,000 digits", b'{"nnr_codec":1,"tensors":{"w":{"shape":[' + b"9" * 3000 + b'],"type":"int8"}}}'),
    ("extent 1e3", b'{"nnr_codec":1,"tensors":{"w":{"shape":[1e3],"type":"int8"}}}'),
    ("extent NaN", b'{"nnr_codec":1,"tensors":{"w":{"shape":[NaN],"type":"int8"}}}'),
    # 117: members
    ("an empty object of tensors", b'{"nnr_codec":1,"tensors":{}}'),
    ("an empty source", b'{"nnr_codec":1,"source":{},"tensors":{"w":{"type":"uint8"}}}'),
    ("a default value is present", code("float", pivot=5, mantissa=0)),
    ("the default id of the bits is present", code("float", pivot=5, bits="w#bits")),
    ("an array of tensors", text([{"type": "uint8"}])),
    ("a tensor that is a string", text({"w": "uint8"})),
    ("an unknown member of the record", text({"w": {"type": "uint8"}}, version=1)),
    ("an unknown member of the source", text({}, source={"format": "npz", "version": 1})),
    ("an unknown member of a tensor", text({"w": {"type": "uint8", "comment": ""}})),
    ("an unknown member of a code", code("integer", "int8", base=1, pivot=1)),
    ("metadata that is a number", text({}, source={"metadata": {"a": 1}})),
    ("a format that is null", text({}, source={"format": None})),
    ("version 0", b'{"nnr_codec":0}'),
    ("version -1", b'{"nnr_codec":-1}'),
    ("version 01", b'{"nnr_codec":01}'),
    ("version true", b'{"nnr_codec":true}'),
    ("version 1.0", b'{"nnr_codec":1.0}'),
    # 134: types and shapes
    ("a tensor without a type", text({"w": {"shape": [2]}})),
    ("an unknown type", text({"w": {"type": "float128"}})),
    ("a type that is a number", text({"w": {"type": 8}})),
    ("a negative extent", text({"w": {"type": "uint8", "shape": [-1]}})),
    ("extent true", text({"w": {"type": "uint8", "shape": [True]}})),
    ("a shape that is a number", text({"w": {"type": "uint8", "shape": 2}})),
    ("extents whose product exceeds 63 bits", text({"w": {"type": "uint8", "shape": [2**32, 2**31]}})),
    (
        "an empty tensor with an extent of 2^63",
        text({"w": {"type": "int8", "shape": [0, 2**63], "index": 0}}),
    ),
    ("an empty tensor without an index", text({"w": {"type": "uint8", "shape": [0]}})),
    ("an empty tensor with a code", code("raw", "uint8", shape=[0])),
    ("an index of a tensor with items", text({"w": {"type": "uint8", "index": 0}})),
    ("a negative index", text({"w": {"type": "uint8", "shape": [0], "index": -1}})),
    ("index true", text({"w": {"type": "uint8", "shape": [0], "index": True}})),
    # 147: codes
    ("an unknown kind of code", code("huffman")),
    ("a code without kind", text({"w": {"type": "uint8", "code": {}}})),
    ("a code that is a string", text({"w": {"type": "uint8", "code": "raw"}})),
    ("FloatCode for integers", code("float", "int32", pivot=5)),
    ("FloatCode without a pivot", code("float")),
    ("pivot true", code("float", pivot=True)),
    ("a pivot that exceeds the exponent bits", code("float", pivot=256)),
    ("a negative pivot", code("float", pivot=-1)),
    ("more mantissa bits than the type has", code("float", pivot=5, mantissa=24)),
    ("zeros and level bits exceed the mantissa", code("float", pivot=5, mantissa=20, zeros=4)),
    ("holes 3", code("float", pivot=5, holes=3)),
    ("rows without zeros", code("float", pivot=5, rows=text64(b"\x80"))),
    (
        "more bits in rows than the tensor has rows",
        code("float", shape=[8, 1], pivot=5, zeros=1, rows=text64(b"\x80\x80")),
    ),
    ("rows for a tensor without dimensions", code("float", shape=[], pivot=5, zeros=1, rows=text64(b"\x80"))),
    ("low 65", code("integer", "int64", low=65)),
    ("an id of bits in an IntegerCode without low bits", code("integer", "int64", base=1, bits="b")),
    ("a base of more than 64 bits", code("integer", "uint64", base=2**64)),
    ("a base below the range of 64-bit integers", code("integer", "int64", base=-(2**63) - 1)),
    ("RawCode without a shape", code("raw", "uint8")),
    ("a palette without values", code("palette", values="")),
    ("a palette of 2.5 items", code("palette", values=text64(bytes(10)))),
    ("a palette that is not base64", code("palette", values="AAA=AAA=")),
    ("a palette in the URL-safe base64 alphabet", code("palette", "uint8", values="-_-_")),
    ("base64 whose last character has unused bits that are not zero", code("palette", "uint8", values="AB==")),
    ("an offset outside the palette", code("palette", "uint8", values="AAAA", offset=3)),
    ("a negative offset", code("palette", "uint8", values="AAAA", offset=-1)),
    ("a bool palette with the value 2", code("palette", "bool", values="AAEC")),
    ("an int4 palette with the value 8", code("palette", "int4", values="AAcI")),
    ("a uint2 palette with the value 4", code("palette", "uint2", values="AAME")),
    ("GridCode for integers", code("grid", "int32", scale=scale(1))),
    ("a scale of 0", code("grid", scale=scale(0))),
    ("an infinite scale", code("grid", scale=scale(float("inf")))),
    ("two scales without an axis", code("grid", scale=scale(1, 2))),
    ("an axis outside the shape", code("grid", shape=[2], scale=scale(1, 2), axis=1)),
    ("three scales for two rows", code("grid", shape=[2], scale=scale(1, 2, 3), axis=0)),
    ("a float32 scale for float64", code("grid", "float64", scale=scale(1))),
    # 183: names
    ("a tensor tied to itself", text({"a": {"same_as": "a", "index": 0}})),
    ("a tensor tied to a tied tensor", text({"a": {"same_as": "w", "index": 0}, "b": {"same_as": "a", "index": 1}})),
    (
        "a tensor tied to a unit of bits",
        text({"w": entry("float", "float32", pivot=5), "a": {"same_as": "w#bits", "index": 0}}),
    ),
    ("a tied tensor with a type", text({"a": {"same_as": "w", "index": 0, "type": "uint8"}})),
    ("a tied tensor without an index", text({"a": {"same_as": "w"}})),
    ("two tensors with the same index", text({"a": {"same_as": "w", "index": 0}, "b": {"same_as": "w", "index": 0}})),
    (
        "the id of the bits is the name of another tensor",
        text({"a": entry("float", "float32", pivot=5, bits="w"), "w": {"type": "float16"}}),
    ),
    (
        "the same id for the bits of two tensors",
        text({name: entry("integer", "int64", low=1, bits="bits") for name in "ab"}),
    ),
    ("the id of the bits is the name of the tensor", text({"w": entry("float", "float32", pivot=5, bits="w")})),
    # 192: codes
    ("a base outside the range of the type", code("integer", "uint8", base=256)),
]
for number, (title, data) in enumerate(TEXTS, 101):
    refused(number, title, "record", "ElementError", 2, with_text(data))

refused(201, "version 5", "version", "UnsupportedError", 2, with_text(b'{"nnr_codec":5,"what":"ever"}'), rev=4)
for number, (title, data, limits) in enumerate(
    [
        ("more bytes than max_side_info_bytes", text({"w": {"type": "float16"}}), {"max_side_info_bytes": 48}),
        ("more tensors than max_names", text({name: {"type": "float16"} for name in "abw"}), {"max_names": 2}),
        ("a name longer than max_name_bytes", text({"long": {"type": "float16"}}), {"max_name_bytes": 3}),
        ("more dimensions than max_dims", text({"w": {"type": "float16", "shape": [1, 1, 2]}}), {"max_dims": 2}),
        ("more items than max_codebook", code("palette", "int8", values="AAAA"), {"max_codebook": 2}),
    ],
    202,
):
    refused(number, title, "limits", "LimitError", 2, with_text(data), limits=limits)
