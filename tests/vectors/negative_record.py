"""NNR-SID-101 to 206: side information that is refused for its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .recorded import Recorded, entry, refused, scale, text, text64


def with_text(data: bytes) -> Callable[[], Recorded]:
    """A bitstream with this record and one tensor."""

    def make() -> Recorded:
        s = Recorded()
        s.start()
        return s.record(data).plain("w")

    return make


def code(kind: str, type_: str = "float32", shape: Sequence[Any] | None = None, **members: Any) -> bytes:
    """The text of a record of one tensor with a code."""
    around = {} if shape is None else {"shape": shape}
    return text({"w": entry(kind, type_, **around, **members)})


# ------------------------------------------------------------------------------------------------ texts
TEXTS: list[tuple[str, bytes]] = [
    # 101: JSON
    ("the last brace is missing", text({"w": {"type": "float16"}})[:-1]),
    ("a blank after the text", text({"w": {"type": "float16"}}) + b" "),
    ("a zero after the text", text({"w": {"type": "float16"}}) + b"\0"),
    ("a blank in the text", b'{"nnr_codec":1,"tensors":{"w":{"type": "float16"}}}'),
    ("members in another order", b'{"nnr_codec":1,"tensors":{"w":{"type":"uint8","shape":[2]}}}'),
    ("a tensor twice", b'{"nnr_codec":1,"tensors":{"w":{"type":"uint8"},"w":{"type":"uint8"}}}'),
    ("a name in UTF-8 that is not escaped", '{"nnr_codec":1,"tensors":{"ö":{"type":"uint8"}}}'.encode()),
    ("a byte that is no UTF-8", b'{"nnr_codec":1,"source":{"format":"\xff"}}'),
    ("an escape that is not needed", b'{"nnr_codec":1,"tensors":{"\\u0077":{"type":"uint8"}}}'),
    ("half of a surrogate pair in a name", b'{"nnr_codec":1,"tensors":{"\\ud800":{"type":"uint8"}}}'),
    ("half of a surrogate pair in the metadata", b'{"nnr_codec":1,"source":{"metadata":{"a":"\\ud800"}}}'),
    ("a name with a zero", text({"w\0": {"type": "uint8"}})),
    ("arrays in arrays, 3,000 of them", b'{"nnr_codec":1,"tensors":' + b"[" * 3000),
    ("an integer of 3,000 digits", b'{"nnr_codec":1,"tensors":{"w":{"shape":[' + b"9" * 3000 + b'],"type":"int8"}}}'),
    ("an extent of 1e3", b'{"nnr_codec":1,"tensors":{"w":{"shape":[1e3],"type":"int8"}}}'),
    ("an extent of NaN", b'{"nnr_codec":1,"tensors":{"w":{"shape":[NaN],"type":"int8"}}}'),
    # 117: members
    ("no tensors, but their object", b'{"nnr_codec":1,"tensors":{}}'),
    ("a source without a member", b'{"nnr_codec":1,"source":{},"tensors":{"w":{"type":"uint8"}}}'),
    ("a default value written out", code("float", pivot=5, mantissa=0)),
    ("the default id of the bits written out", code("float", pivot=5, bits="w#bits")),
    ("tensors in a list", text([{"type": "uint8"}])),
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
    ("no type", text({"w": {"shape": [2]}})),
    ("a type that is not known", text({"w": {"type": "float128"}})),
    ("a type that is a number", text({"w": {"type": 8}})),
    ("a negative extent", text({"w": {"type": "uint8", "shape": [-1]}})),
    ("an extent of true", text({"w": {"type": "uint8", "shape": [True]}})),
    ("a shape that is a number", text({"w": {"type": "uint8", "shape": 2}})),
    ("extents whose product exceeds 63 bits", text({"w": {"type": "uint8", "shape": [2**32, 2**31]}})),
    (
        "an empty tensor with an extent of 2^63",
        text({"w": {"type": "int8", "shape": [0, 2**63], "index": 0}}),
    ),
    ("an empty tensor without a place", text({"w": {"type": "uint8", "shape": [0]}})),
    ("an empty tensor with a code", code("raw", "uint8", shape=[0])),
    ("a place of a tensor with items", text({"w": {"type": "uint8", "index": 0}})),
    ("a negative place", text({"w": {"type": "uint8", "shape": [0], "index": -1}})),
    ("a place of true", text({"w": {"type": "uint8", "shape": [0], "index": True}})),
    # 147: codes
    ("a code that is not known", code("huffman")),
    ("a code without a kind", text({"w": {"type": "uint8", "code": {}}})),
    ("a code that is a string", text({"w": {"type": "uint8", "code": "raw"}})),
    ("FloatCode of integers", code("float", "int32", pivot=5)),
    ("FloatCode without a pivot", code("float")),
    ("a pivot that is true", code("float", pivot=True)),
    ("a pivot beyond the bits of the exponent", code("float", pivot=256)),
    ("a negative pivot", code("float", pivot=-1)),
    ("more bits of the mantissa than there are", code("float", pivot=5, mantissa=24)),
    ("zeros and bits in levels that are more than the mantissa", code("float", pivot=5, mantissa=20, zeros=4)),
    ("three holes", code("float", pivot=5, holes=3)),
    ("rows without zeros", code("float", pivot=5, rows=text64(b"\x80"))),
    ("bits for more rows than there are", code("float", shape=[8, 1], pivot=5, zeros=1, rows=text64(b"\x80\x80"))),
    ("rows of a tensor without dimensions", code("float", shape=[], pivot=5, zeros=1, rows=text64(b"\x80"))),
    ("low of 65 bits", code("integer", "int64", low=65)),
    ("bits of an IntegerCode without low bits", code("integer", "int64", base=1, bits="b")),
    ("a base of more than 64 bits", code("integer", "uint64", base=2**64)),
    ("a base below all integers", code("integer", "int64", base=-(2**63) - 1)),
    ("RawCode without a shape", code("raw", "uint8")),
    ("a palette without values", code("palette", values="")),
    ("a palette of two and a half items", code("palette", values=text64(bytes(10)))),
    ("a palette that is no base64", code("palette", values="AAA=AAA=")),
    ("a palette in base64 of another alphabet", code("palette", "uint8", values="-_-_")),
    ("base64 whose last character has bits that do not count", code("palette", "uint8", values="AB==")),
    ("an offset beyond the palette", code("palette", "uint8", values="AAAA", offset=3)),
    ("a negative offset", code("palette", "uint8", values="AAAA", offset=-1)),
    ("a palette of bool with a 2", code("palette", "bool", values="AAEC")),
    ("a palette of int4 with an 8", code("palette", "int4", values="AAcI")),
    ("a palette of uint2 with a 4", code("palette", "uint2", values="AAME")),
    ("GridCode of integers", code("grid", "int32", scale=scale(1))),
    ("a scale of 0", code("grid", scale=scale(0))),
    ("an infinite scale", code("grid", scale=scale(float("inf")))),
    ("two scales without an axis", code("grid", scale=scale(1, 2))),
    ("an axis that the shape has not", code("grid", shape=[2], scale=scale(1, 2), axis=1)),
    ("three scales for two rows", code("grid", shape=[2], scale=scale(1, 2, 3), axis=0)),
    ("a scale of float32 for float64", code("grid", "float64", scale=scale(1))),
    # 183: names
    ("tied to itself", text({"a": {"same_as": "a", "index": 0}})),
    ("tied to a tied one", text({"a": {"same_as": "w", "index": 0}, "b": {"same_as": "a", "index": 1}})),
    ("tied to bits", text({"w": entry("float", "float32", pivot=5), "a": {"same_as": "w#bits", "index": 0}})),
    ("tied, with a type of its own", text({"a": {"same_as": "w", "index": 0, "type": "uint8"}})),
    ("tied, without a place", text({"a": {"same_as": "w"}})),
    ("two in one place", text({"a": {"same_as": "w", "index": 0}, "b": {"same_as": "w", "index": 0}})),
    ("bits that are a tensor", text({"a": entry("float", "float32", pivot=5, bits="w"), "w": {"type": "float16"}})),
    (
        "bits of two tensors",
        text({name: entry("integer", "int64", low=1, bits="bits") for name in "ab"}),
    ),
    ("a tensor whose bits are itself", text({"w": entry("float", "float32", pivot=5, bits="w")})),
    # 192: more of codes
    ("a base outside of the type", code("integer", "uint8", base=256)),
]
for number, (title, data) in enumerate(TEXTS, 101):
    refused(number, title, "record", "ElementError", 2, with_text(data))

refused(201, "version 4", "version", "UnsupportedError", 2, with_text(b'{"nnr_codec":4,"what":"ever"}'), rev=3)
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
