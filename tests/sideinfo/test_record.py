"""The side-information record: its text, and all possible faults."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.errors import ElementError, EncodeError, LimitError, UnsupportedError
from nnr_codec.limits import Budget, Limits
from nnr_codec.sideinfo.codes import join, split
from nnr_codec.sideinfo.record import (
    Code,
    DeltaCode,
    DisplacementCode,
    FloatCode,
    GridCode,
    IntegerCode,
    PaletteCode,
    RawCode,
    SideInfo,
    TensorRecord,
)

from ..shared import examples

pytestmark = pytest.mark.medium

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "side-information.md"


def text(value: object) -> bytes:
    """Return canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def record(tensors: object, version: int = 1) -> bytes:
    """Return a record of these tensors."""
    return text({"nnr_codec": version, "tensors": tensors})


def parse(data: bytes, limits: Limits | None = None) -> SideInfo | None:
    """Return the record as a decoder reads it."""
    return SideInfo.parse(data, Budget(limits or Limits()))


def refused(data: bytes, path: str, message: str) -> None:
    """Check that one check rejects the text, at the fault."""
    with pytest.raises(ElementError) as caught:
        parse(data)
    assert caught.value.path == path
    assert re.search(message, caught.value.message), caught.value.message


def one(code: Code | None = None, kind: str = "float32", shape: tuple[int, ...] | None = None) -> SideInfo:
    """Return a record of one tensor."""
    return SideInfo({"w": TensorRecord(kind, shape, code)})


def b64(data: bytes) -> str:
    """Return the base64 form of RFC 4648."""
    return base64.b64encode(data).decode()


# ------------------------------------------------------------------------------------------------------------ the text
PLANES = bytes.fromhex("00 00 00  00 00 00  00 00 00  BF 00 40")
FLOATS = struct.pack("<3f", -0.5, 0.0, 2.0)


@pytest.mark.parametrize(
    ("side", "rest"),
    [
        (SideInfo(), ""),
        (SideInfo(format="npz"), ',"source":{"format":"npz"}'),
        (SideInfo(metadata={"b": "", "a": '\u00e4\u20ac\U0001f600"\\\n\x7f'}), None),
        (one(kind="bfloat16"), ',"tensors":{"w":{"type":"bfloat16"}}'),
        (one(kind="bool", shape=()), ',"tensors":{"w":{"shape":[],"type":"bool"}}'),
        (
            SideInfo({"": TensorRecord("int4", (2, 0), index=0)}),
            ',"tensors":{"":{"index":0,"shape":[2,0],"type":"int4"}}',
        ),
        (SideInfo({"w": TensorRecord(same_as="v", index=7)}), ',"tensors":{"w":{"index":7,"same_as":"v"}}'),
        (one(FloatCode("w#bits", 0)), ',"tensors":{"w":{"code":{"kind":"float","pivot":0},"type":"float32"}}'),
        (
            one(FloatCode("b", 9, 1, 1, True, 3, b"\xa0")),
            ',"tensors":{"w":{"code":{"bits":"b","holes":1,"kind":"float","mantissa":1,"pivot":9,"rows":"oA==",'
            '"unsigned":true,"zeros":3},"type":"float32"}}',
        ),
        (one(IntegerCode()), ',"tensors":{"w":{"code":{"kind":"integer"},"type":"float32"}}'),
        (
            one(IntegerCode(-5, 32, "w#bits"), "int64"),
            ',"tensors":{"w":{"code":{"base":-5,"kind":"integer","low":32},"type":"int64"}}',
        ),
        (one(RawCode(), "int2", (3,)), ',"tensors":{"w":{"code":{"kind":"raw"},"shape":[3],"type":"int2"}}'),
        (
            one(PaletteCode(FLOATS, 1)),
            f',"tensors":{{"w":{{"code":{{"kind":"palette","offset":1,"values":"{b64(PLANES)}"}},"type":"float32"}}}}',
        ),
        (
            one(GridCode(FLOATS[8:] + FLOATS[:4], 0), "bfloat16"),
            ',"tensors":{"w":{"code":{"axis":0,"kind":"grid","scale":"AAAAAAAAQL8="},"type":"bfloat16"}}',
        ),
        (
            one(GridCode(struct.pack("<d", 2.0)), "float64"),
            ',"tensors":{"w":{"code":{"kind":"grid","scale":"AAAAAAAAAEA="},"type":"float64"}}',
        ),
    ],
)
def test_the_text_of_a_record(side: SideInfo, rest: str | None) -> None:
    if rest is None:
        rest = r',"source":{"metadata":{"a":"\u00e4\u20ac\ud83d\ude00\"\\\n\u007f","b":""}}'
    data = b'{"nnr_codec":1' + rest.encode() + b"}"
    assert side.to_bytes() == data
    assert parse(data) == side


@pytest.mark.parametrize(
    ("code", "rest"),
    [
        (FloatCode("w#bits", 0, unit="w#levels"), '"code":{"kind":"float","pivot":0},"type":"int32"'),
        (FloatCode("b", 0, unit="u"), '"code":{"bits":"b","kind":"float","pivot":0,"unit":"u"},"type":"int32"'),
        (IntegerCode(unit="w#levels"), '"code":{"kind":"integer"},"type":"int32"'),
        (IntegerCode(0, 1, "w#bits", "u"), '"code":{"kind":"integer","low":1,"unit":"u"},"type":"int32"'),
        (RawCode("w#raw"), '"code":{"kind":"raw"},"shape":[2],"type":"int32"'),
        (RawCode("w#levels"), '"code":{"kind":"raw","unit":"w#levels"},"shape":[2],"type":"int32"'),
        (DeltaCode("w#delta"), '"code":{"kind":"delta"},"type":"int32"'),
        (DeltaCode("w##delta"), '"code":{"kind":"delta","unit":"w##delta"},"type":"int32"'),
        (PaletteCode(bytes(4), unit="w#levels"), '"code":{"kind":"palette","values":"AAAAAA=="},"type":"int32"'),
        (PaletteCode(bytes(4), unit=""), '"code":{"kind":"palette","unit":"","values":"AAAAAA=="},"type":"int32"'),
        (GridCode(FLOATS[8:], unit="w#levels"), '"code":{"kind":"grid","scale":"AAAAQA=="},"type":"int32"'),
        (GridCode(FLOATS[8:], unit="u"), '"code":{"kind":"grid","scale":"AAAAQA==","unit":"u"},"type":"int32"'),
    ],
)
def test_the_ids_of_units_make_version_3(code: Code, rest: str) -> None:
    kind = "float32" if isinstance(code, FloatCode | GridCode) else "int32"
    side = one(code, kind, (2,) if isinstance(code, RawCode) else None)
    data = b'{"nnr_codec":3,"tensors":{"w":{' + rest.replace("int32", kind).encode() + b"}}}"
    assert side.to_bytes() == data
    assert parse(data) == side


def test_each_record_has_the_least_version() -> None:
    codes: dict[int, list[Code | None]] = {
        1: [None, FloatCode("b", 0), IntegerCode(), RawCode(), PaletteCode(bytes(4)), GridCode(FLOATS[8:])],
        2: [DisplacementCode("u")],
        3: [IntegerCode(unit="w"), RawCode("w")],
    }
    for version, each in codes.items():
        for code in each:
            assert one(code).to_bytes().startswith(b'{"nnr_codec":%d' % version)
    old, displaced = TensorRecord("int8", None, IntegerCode()), TensorRecord("float32", None, DisplacementCode("u"))
    assert SideInfo({"v": old, "w": displaced}).to_bytes().startswith(b'{"nnr_codec":2')


def test_units_without_ids_of_their_own_are_read_in_version_2() -> None:
    old, displaced = TensorRecord("int8", None, IntegerCode(5)), TensorRecord("float32", None, DisplacementCode("u"))
    side = SideInfo({"v": old, "w": displaced})
    assert parse(side.to_bytes()) == side


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("members", [{"type": "int8"}, {"same_as": "v", "index": 0}])
def test_a_version_that_is_not_needed(members: object, version: int) -> None:
    refused(record({"w": members}, version), "", "not canonical")


def test_version_3_for_a_displacement_alone() -> None:
    refused(record({"w": {"type": "float32", "code": {"kind": "displacement"}}}, 3), "", "not canonical")


@pytest.mark.parametrize("version", [1, 2])
def test_differences_before_version_3(version: int) -> None:
    refused(record({"w": {"type": "int32", "code": {"kind": "delta"}}}, version), "", "not canonical")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["integer", "raw"])
def test_ids_of_units_before_version_3(kind: str, version: int) -> None:
    code = {"kind": kind, "unit": "u"}
    data = record({"w": {"type": "int8", "shape": [1], "code": code}}, version)
    refused(data, 'tensors["w"].code["unit"]', "unknown member")


@pytest.mark.parametrize(
    ("code", "unit"),
    [
        ({"kind": "float", "pivot": 9}, "w#levels"),
        ({"kind": "palette", "values": "AAAAAA=="}, "w#levels"),
        ({"kind": "grid", "scale": "AAAAQA=="}, "w#levels"),
        ({"kind": "integer"}, "w#levels"),
        ({"kind": "raw"}, "w#raw"),
    ],
)
def test_a_default_id_is_left_out(code: dict[str, Any], unit: str) -> None:
    members = {"type": "float32", "shape": [1]}
    side = parse(record({"w": members | {"code": code}}, 3))
    assert side is not None
    assert side.tensors["w"].unit == unit
    refused(record({"w": members | {"code": code | {"unit": unit}}}, 3), "", "not canonical")


def test_the_texts_of_the_documentation() -> None:
    found = re.findall(r"^```json\n(.*)\n```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 11
    sides = [parse(example.encode()) for example in found]
    kinds = {getattr(tensor.code, "KIND", None) for side in sides if side for tensor in side.tensors.values()}
    assert kinds == {"float", "integer", "raw", "delta", "palette", "grid", "displacement", None}


#: Parts of examples, with the values, levels and bytes of the text.
EXAMPLES: list[tuple[str, list[Any], list[Any], str]] = [
    ('"pivot":28}', [0.5, -0.75, 0.0, 1.25], [1, -1, 0, -2], "00 00 08 10"),
    ('"rows":"gA=="', [[0.5, -0.75], [0.0, 1.2509765625]], [[1, -1], [0, -2]], "00 80 40 01"),
    ('"low":32', [-1, (1 << 40) + 5], [-1, 256], "FF FF FF FF 05 00 00 00"),
    ('"base":252', [250, 255], [-1, 1], "02 00 00 00"),
    ('"kind":"raw"', [True, False, True], [], "01 00 01 00"),
    ('"kind":"palette"', [2.0, 0.0, -0.5], [1, 0, -1], ""),
    ('"kind":"grid"', [[1.5, -0.5], [0.25, 0.75]], [[3, -1], [1, 3]], ""),
]


@pytest.mark.parametrize(("part", "values", "levels", "words"), EXAMPLES)
def test_the_numbers_of_the_documentation(part: str, values: list[Any], levels: list[Any], words: str) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    (example,) = [line for line in document.splitlines() if line.startswith("{") and part in line]
    side = parse(example.encode())
    assert side is not None
    tensor = side.tensors["w"]
    array = np.array(values, tensor.stored.dtype)
    unit, bits = split(tensor, array)
    if levels:
        assert unit.tolist() == levels
    else:
        bits = unit
    assert words in document
    assert (b"" if bits is None else bits.astype("<f4").tobytes()).hex(" ").upper() == words
    np.testing.assert_array_equal(join(tensor, unit, bits if levels else None, array.shape), array)


def test_every_type_is_documented() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").split("## Types")[1].split("\n\n")[1]
    named = set(re.findall(r"`(\w+)`", section)) - {"uint", "ml_dtypes"}
    assert named | {name for name in STORED_TYPES if name.startswith("uint")} == set(STORED_TYPES)


def test_what_a_record_says_is_what_counts() -> None:
    assert not SideInfo()
    assert not SideInfo(format="npz")
    assert SideInfo(metadata={"a": "b"})
    assert SideInfo({"w": TensorRecord("int4")})


def test_the_second_unit_of_a_tensor() -> None:
    assert TensorRecord("float32", None, FloatCode("b", 0)).bits == "b"
    assert TensorRecord("float32", None, IntegerCode(0, 1, "c")).bits == "c"
    assert TensorRecord("float32", None, IntegerCode()).bits is None
    assert TensorRecord("float32", (1,), RawCode()).bits is None
    assert TensorRecord("float32").bits is None


def test_the_units_of_a_tensor() -> None:
    assert TensorRecord("float32").units == ()
    assert TensorRecord("float32", None, FloatCode("b", 0)).units == ("b",)
    assert TensorRecord("float32", None, FloatCode("b", 0, unit="u")).units == ("u", "b")
    assert TensorRecord("int32", None, DeltaCode("u")).units == ("u",)
    assert TensorRecord("int32", (1,), RawCode("u")).units == ("u",)


@pytest.mark.parametrize(
    "side", [SideInfo(metadata={"a": "\ud800"}), SideInfo(metadata={"\udfff": ""}), SideInfo({}, "\ud800")]
)
def test_metadata_that_is_not_unicode_text(side: SideInfo) -> None:
    with pytest.raises(EncodeError, match="Unicode"):
        side.to_bytes()
    source: dict[str, Any] = {"format": side.format} if side.format else {"metadata": dict(side.metadata)}
    refused(text({"nnr_codec": 1, "source": source}), "source", "Unicode")


def test_metadata_that_is_not_text() -> None:
    with pytest.raises(EncodeError, match="Unicode"):
        SideInfo(metadata={"a": 1}).to_bytes()  # type: ignore[dict-item]


# ----------------------------------------------------------------------------------------------- whose text it is
@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"nnr_codec"', b'{ "nnr_codec":1}', b"<xml/>", b'\xef\xbb\xbf{"nnr_codec":1}']
)
def test_a_foreign_text(data: bytes) -> None:
    assert parse(data, Limits(max_side_info_bytes=0)) is None


@pytest.mark.parametrize("rest", [b"5}", b"10}", b"999999999,", b'5,"tensors":[NaN'])
def test_another_version(rest: bytes) -> None:
    with pytest.raises(UnsupportedError, match=r"version \d+; only versions up to 4 are supported"):
        parse(b'{"nnr_codec":' + rest)


@pytest.mark.parametrize(
    "rest", [b"", b"}", b"1", b"01}", b"0}", b"-1}", b"1.0}", b"1e0}", b"true}", b'"1"}', b" 1}", b"9" * 10 + b"}"]
)
def test_no_version(rest: bytes) -> None:
    refused(b'{"nnr_codec":' + rest, "nnr_codec", "version number")


NONE = b'{"nnr_codec":1,"tensors":{"w":%s}}'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"nnr_codec":1,', "not valid JSON"),
        (b'{"nnr_codec":1}}', "not valid JSON"),
        (b'{"nnr_codec":1}\0', "not valid JSON"),
        (b'{"nnr_codec":1,"source":{"format":"\xff"}}', "not valid JSON"),
        (b'{"nnr_codec":1,"source":{"format":"\n"}}', "not valid JSON"),
        (NONE % b"NaN", "NaN is not an integer"),
        (NONE % b"-Infinity", "-Infinity is not an integer"),
        (NONE % b"1.0", "1.0 is not an integer"),
        (NONE % (b"0." + b"1" * 1000), r"0\.1{18} is not an integer"),
        (NONE % b"1e999999999", "1e999999999 is not an integer"),
        (NONE % b"100000000000000000000", "an integer has 21 digits"),
        (NONE % (b"1" * 100_000), "an integer has 100,000 digits"),
        (NONE % (b"[" * 1_000_000), "nested too deeply"),
        (NONE % (b'{"a":' * 1_000_000), "nested too deeply"),
    ],
)
def test_no_json(data: bytes, message: str) -> None:
    refused(data, "", message)


GOOD = SideInfo({"w": TensorRecord("float32", (2,), FloatCode("b", 9, 1, 1)), "\u00e4": TensorRecord("bool")})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"nnr_codec":1,', b'{"nnr_codec":1, '),
        (b"}}}", b"}}}\n"),
        (b'"pivot":9', b'"pivot":09'),
        (b'"pivot":9', b'"pivot":9,"pivot":9'),
        (b'"pivot":9', b'"pivot":9,"zeros":0'),
        (b'"pivot":9', b'"pivot":9,"zeros":-0'),
        (b'"pivot":9', b'"pivot":9,"unsigned":false'),
        (b'"holes":1,"kind":"float"', b'"kind":"float","holes":1'),
        (b'{"nnr_codec":1', b'{"nnr_codec":1,"nnr_codec":1'),
        (b'{"nnr_codec":1', b'{"nnr_codec":1,"source":{}'),
        (b'{"nnr_codec":1', b'{"nnr_codec":1,"source":{"metadata":{}}'),
        (b'{"nnr_codec":1', b'{"nnr_codec":1,"source":{"format":""}'),
        (b'"bits":"b"', b'"bits":"w#bits"'),
        (b'"bits":"b"', b'"bits":"\\u0062"'),
        (b"\\u00e4", b"\\u00E4"),
        (b"\\u00e4", b"\xc3\xa4"),
        (b'"\\u00e4":{"type":"bool"},', b'"\\u00e4":{"type":"bool"},"\\u00e4":{"type":"bool"},'),
    ],
)
def test_other_bytes_that_say_the_same(old: bytes, new: bytes) -> None:
    good = GOOD.to_bytes()
    if good.count(old) != 1:
        old, new = old.rstrip(b","), new.rstrip(b",")
    assert good.count(old) == 1
    assert parse(good) == GOOD
    data = good.replace(old, new)
    with pytest.raises(ElementError, match=r"not canonical|not valid JSON"):
        parse(data)


def test_base64_with_bits_behind_its_end() -> None:
    good = one(PaletteCode(b"\0"), "int8").to_bytes()
    with pytest.raises(ElementError, match="not canonical"):
        parse(good.replace(b"AA==", b"AB=="))


# ------------------------------------------------------------------------------------------------------- its members
FLOAT: dict[str, Any] = {"kind": "float", "pivot": 9}
NUL = "the name contains a zero"
LONG = 10**19

#: Members of tensor "w", path of the error below it, message.
TENSORS: list[tuple[object, str, str]] = [
    (None, "", "expected an object"),
    ([], "", "expected an object"),
    ({}, ".type", "is missing"),
    ({"type": 1}, ".type", "expected a string"),
    ({"type": "complex64"}, ".type", "unknown type"),
    ({"type": ""}, ".type", "unknown type"),
    ({"type": "int8", "other": 1}, '["other"]', "unknown member"),
    ({"type": "int8", "index": 1}, '["index"]', "unknown member"),
    ({"type": "int8", "shape": [1], "index": 1}, '["index"]', "unknown member"),
    ({"type": "int8", "code": None}, ".code", "expected an object"),
    ({"type": "int8", "shape": None}, ".shape", "expected an array"),
    ({"type": "int8", "shape": {}}, ".shape", "expected an array"),
    ({"type": "int8", "shape": [True]}, ".shape", "integers of at least 0"),
    ({"type": "int8", "shape": ["1"]}, ".shape", "integers of at least 0"),
    ({"type": "int8", "shape": [3, -1]}, ".shape", "integers of at least 0"),
    ({"type": "int16", "shape": [1 << 31, 1 << 31]}, ".shape", "exceeds the largest possible array"),
    ({"type": "int64", "shape": [0, 1 << 60], "index": 0}, ".shape", "exceeds the largest possible array"),
    ({"type": "int8", "shape": [0]}, ".index", "is missing"),
    ({"type": "int8", "shape": [0], "index": None}, ".index", "expected an integer"),
    ({"type": "int8", "shape": [0], "index": True}, ".index", "expected an integer"),
    ({"type": "int8", "shape": [0], "index": -1}, ".index", "-1 is outside 0..2147483647"),
    ({"type": "int8", "shape": [0], "index": 1 << 31}, ".index", "is outside"),
    ({"type": "int8", "shape": [0], "index": 0, "code": {"kind": "raw"}}, '["code"]', "unknown member"),
    ({"same_as": "v"}, ".index", "is missing"),
    ({"same_as": "v", "index": -1}, ".index", "is outside"),
    ({"same_as": 1, "index": 0}, ".same_as", "expected a string"),
    ({"same_as": "v", "index": 0, "type": "int8"}, '["type"]', "unknown member"),
    ({"same_as": "v", "index": 0, "shape": [0]}, '["shape"]', "unknown member"),
    ({"same_as": "", "index": 0}, ".same_as", "expected a name"),
    ({"same_as": "v\0", "index": 0}, ".same_as", NUL),
    ({"same_as": "\ud800", "index": 0}, ".same_as", "not Unicode"),
    ({"same_as": "w", "index": 0}, ".same_as", "not a tensor with its own values"),
]

#: Members of the code of "w", its type, path of the error below the code, message.
CODES: list[tuple[object, str, str, str]] = [
    ({}, "int8", ".kind", "is missing"),
    ({"kind": 1}, "int8", ".kind", "expected a string"),
    ({"kind": "other"}, "int8", ".kind", "unknown code"),
    ({"kind": "integer", "other": 1}, "int8", '["other"]', "unknown member"),
    ({"kind": "raw"}, "int8", ".kind", "requires a shape"),
    # FloatCode
    (FLOAT, "int32", ".kind", "int32 is not a float type"),
    (FLOAT, "bool", ".kind", "bool is not a float type"),
    ({"kind": "float"}, "float32", ".pivot", "is missing"),
    (FLOAT | {"pivot": -1}, "float32", ".pivot", "-1 is outside 0..255"),
    (FLOAT | {"pivot": 256}, "float32", ".pivot", "is outside"),
    (FLOAT | {"pivot": 512, "mantissa": 1}, "float32", ".pivot", "is outside 0..511"),
    (FLOAT | {"pivot": 32}, "float16", ".pivot", "is outside 0..31"),
    (FLOAT | {"pivot": True}, "float32", ".pivot", "expected an integer"),
    (FLOAT | {"mantissa": -1}, "float32", ".mantissa", "is outside 0..23"),
    (FLOAT | {"mantissa": 24}, "float32", ".mantissa", "is outside 0..23"),
    (FLOAT | {"mantissa": 8}, "bfloat16", ".mantissa", "is outside 0..7"),
    (FLOAT | {"mantissa": True}, "float32", ".mantissa", "expected an integer"),
    (FLOAT | {"zeros": -1}, "float32", ".zeros", "is outside 0..23"),
    (FLOAT | {"zeros": 23, "mantissa": 1}, "float32", ".zeros", "is outside 0..22"),
    (FLOAT | {"zeros": None}, "float32", ".zeros", "expected an integer"),
    (FLOAT | {"holes": 3}, "float32", ".holes", "3 is outside 0..2"),
    (FLOAT | {"unsigned": 1}, "float32", ".unsigned", "expected a boolean"),
    (FLOAT | {"rows": "gA=="}, "float32", '["rows"]', "unknown member"),
    (FLOAT | {"zeros": 1, "rows": None}, "float32", ".rows", "expected a string"),
    (FLOAT | {"zeros": 1, "rows": ""}, "float32", ".rows", "0 bytes are not a whole number"),
    (FLOAT | {"zeros": 1, "rows": "gA="}, "float32", ".rows", "not valid base64"),
    (FLOAT | {"bits": 1}, "float32", ".bits", "expected a string"),
    (FLOAT | {"bits": "b\0"}, "float32", ".bits", NUL),
    (FLOAT | {"bits": "\ud800"}, "float32", ".bits", "not Unicode"),
    (FLOAT | {"bits": "w"}, "float32", ".bits", "'w' is already used as a name"),
    # IntegerCode
    ({"kind": "integer", "base": -(1 << 63) - 1}, "int64", ".base", "is outside"),
    ({"kind": "integer", "base": -1}, "uint8", ".base", "-1 is outside 0..255"),
    ({"kind": "integer", "base": 2}, "bool", ".base", "2 is outside 0..1"),
    ({"kind": "integer", "base": 1 << 16}, "bfloat16", ".base", "is outside 0..65535"),
    ({"kind": "integer", "base": 1 << 64}, "uint64", ".base", "is outside"),
    ({"kind": "integer", "base": False}, "int8", ".base", "expected an integer"),
    ({"kind": "integer", "low": -1}, "int8", ".low", "is outside 0..64"),
    ({"kind": "integer", "low": 65}, "int64", ".low", "is outside 0..64"),
    ({"kind": "integer", "low": "1"}, "int8", ".low", "expected an integer"),
    ({"kind": "integer", "bits": "b"}, "int8", '["bits"]', "unknown member"),
    ({"kind": "integer", "low": 1, "bits": "w"}, "int8", ".bits", "already used as a name"),
    # PaletteCode
    ({"kind": "palette"}, "int8", ".values", "is missing"),
    ({"kind": "palette", "values": 1}, "int8", ".values", "expected a string"),
    ({"kind": "palette", "values": ""}, "int8", ".values", "0 bytes are not a whole number of items of 1 bytes"),
    (
        {"kind": "palette", "values": b64(bytes(6))},
        "float32",
        ".values",
        "6 bytes are not a whole number of items of 4 bytes",
    ),
    (
        {"kind": "palette", "values": "AA=="},
        "bfloat16",
        ".values",
        "1 bytes are not a whole number of items of 2 bytes",
    ),
    ({"kind": "palette", "values": "AAAA\n"}, "int8", ".values", "not valid base64"),
    ({"kind": "palette", "values": "A-_A"}, "int8", ".values", "not valid base64"),
    ({"kind": "palette", "values": "AAA\u00e4"}, "int8", ".values", "not valid base64"),
    ({"kind": "palette", "values": "AA==", "offset": 1}, "int8", ".offset", "1 is outside 0..0"),
    ({"kind": "palette", "values": b64(bytes(8)), "offset": 2}, "float32", ".offset", "2 is outside 0..1"),
    ({"kind": "palette", "values": "AA==", "offset": -1}, "int8", ".offset", "is outside"),
    ({"kind": "palette", "values": "AA==", "offset": False}, "int8", ".offset", "expected an integer"),
    ({"kind": "palette", "values": b64(b"\0\1\2")}, "bool", ".values", "2 is outside 0..1"),
    ({"kind": "palette", "values": b64(b"\0\xff")}, "bool", ".values", "255 is outside 0..1"),
    ({"kind": "palette", "values": b64(b"\7\x08")}, "int4", ".values", "8 is outside -8..7"),
    ({"kind": "palette", "values": b64(b"\xf7")}, "int4", ".values", "-9 is outside -8..7"),
    ({"kind": "palette", "values": b64(b"\x10")}, "uint4", ".values", "16 is outside 0..15"),
    ({"kind": "palette", "values": b64(b"\x02")}, "int2", ".values", "2 is outside -2..1"),
    ({"kind": "palette", "values": b64(b"\x04")}, "uint2", ".values", "4 is outside 0..3"),
    # GridCode
    ({"kind": "grid", "scale": "AACAPw=="}, "int8", ".kind", "int8 is not a float type"),
    ({"kind": "grid"}, "float32", ".scale", "is missing"),
    ({"kind": "grid", "scale": b64(bytes(6))}, "float32", ".scale", "items of 4 bytes"),
    ({"kind": "grid", "scale": b64(bytes(6))}, "float16", ".scale", "items of 4 bytes"),
    ({"kind": "grid", "scale": b64(bytes(4))}, "float64", ".scale", "items of 8 bytes"),
    ({"kind": "grid", "scale": b64(struct.pack("<f", 0.0))}, "float32", ".scale", "0 or not finite"),
    ({"kind": "grid", "scale": b64(struct.pack("<f", -0.0))}, "float32", ".scale", "0 or not finite"),
    ({"kind": "grid", "scale": b64(struct.pack("<f", float("inf")))}, "float32", ".scale", "0 or not finite"),
    ({"kind": "grid", "scale": b64(bytes.fromhex("0100a07f"))}, "float16", ".scale", "0 or not finite"),
    ({"kind": "grid", "scale": b64(struct.pack("<d", float("nan")))}, "float64", ".scale", "0 or not finite"),
    ({"kind": "grid", "scale": b64(8 * b"\1")}, "float32", ".scale", "2 scales are given"),
    ({"kind": "grid", "scale": b64(8 * b"\1"), "axis": -1}, "float32", ".axis", "-1 is outside 0..31"),
    ({"kind": "grid", "scale": b64(8 * b"\1"), "axis": 32}, "float32", ".axis", "is outside"),
    ({"kind": "grid", "scale": b64(8 * b"\1"), "axis": True}, "float32", ".axis", "expected an integer"),
    ({"kind": "grid", "scale": b64(8 * b"\1"), "axis": None}, "float32", ".axis", "expected an integer"),
]

#: The same in version 3.
CODES_3: list[tuple[object, str, str, str]] = [
    (FLOAT | {"unit": 1}, "float32", ".unit", "expected a string"),
    (FLOAT | {"unit": "u\0"}, "float32", ".unit", NUL),
    (FLOAT | {"unit": "\ud800"}, "float32", ".unit", "not Unicode"),
    (FLOAT | {"unit": "w"}, "float32", ".unit", "'w' is already used as a name"),
    (FLOAT | {"unit": "u", "bits": "u"}, "float32", ".unit", "'u' is already used as a name"),
    (FLOAT | {"bits": "w#levels"}, "float32", ".unit", "'w#levels' is already used as a name"),
    ({"kind": "integer", "unit": "w"}, "int8", ".unit", "already used as a name"),
    ({"kind": "palette", "values": "AA==", "unit": "w"}, "int8", ".unit", "already used as a name"),
    ({"kind": "grid", "scale": "AACAPw==", "unit": "w"}, "float32", ".unit", "already used as a name"),
    ({"kind": "delta"}, "int16", ".kind", "differences must be int32, got int16"),
    ({"kind": "delta"}, "uint32", ".kind", "differences must be int32, got uint32"),
    ({"kind": "delta"}, "float32", ".kind", "differences must be int32, got float32"),
    ({"kind": "delta", "base": 1}, "int32", '["base"]', "unknown member"),
    ({"kind": "delta", "bits": "b"}, "int32", '["bits"]', "unknown member"),
    ({"kind": "delta", "unit": "w"}, "int32", ".unit", "already used as a name"),
]

#: For a tensor of shape [2, 9].
SHAPED: list[tuple[object, str, str]] = [
    (FLOAT | {"zeros": 1, "rows": "gIA="}, ".rows", "one bit for each index"),
    ({"kind": "grid", "scale": b64(8 * b"\1"), "axis": 1}, ".scale", "2 scales are given"),
    ({"kind": "grid", "scale": b64(8 * b"\1"), "axis": 2}, ".axis", "2 is outside 0..1"),
]


@pytest.mark.parametrize(("members", "path", "message"), TENSORS)
def test_tensors(members: object, path: str, message: str) -> None:
    refused(record({"w": members}), f'tensors["w"]{path}', message)


@pytest.mark.parametrize(("code", "kind", "path", "message"), CODES)
def test_codes(code: object, kind: str, path: str, message: str) -> None:
    refused(record({"w": {"code": code, "type": kind}}), f'tensors["w"].code{path}', message)


@pytest.mark.parametrize(("code", "kind", "path", "message"), CODES_3)
def test_codes_of_version_3(code: object, kind: str, path: str, message: str) -> None:
    refused(record({"w": {"code": code, "type": kind}}, 3), f'tensors["w"].code{path}', message)


@pytest.mark.parametrize(("code", "path", "message"), SHAPED)
def test_codes_of_a_shape(code: object, path: str, message: str) -> None:
    refused(record({"w": {"code": code, "shape": [2, 9], "type": "float32"}}), f'tensors["w"].code{path}', message)


def test_rows_of_a_scalar() -> None:
    code = FLOAT | {"zeros": 1, "rows": "gA=="}
    refused(record({"w": {"code": code, "shape": [], "type": "float32"}}), 'tensors["w"].code.rows', "one bit")


@pytest.mark.parametrize(
    ("members", "path", "message"),
    [
        ({"other": 1}, '["other"]', "unknown member"),
        ({"o" * 100: 1}, '["' + "o" * 50 + '"]', "unknown member"),
        ({"tensors": []}, "tensors", "expected an object"),
        ({"source": None}, "source", "expected an object"),
        ({"source": {"other": 1}}, 'source["other"]', "unknown member"),
        ({"source": {"format": 1}}, "source.format", "expected a string"),
        ({"source": {"metadata": []}}, "source.metadata", "expected an object"),
        ({"source": {"metadata": {"a": 1}}}, 'source.metadata["a"]', "expected a string"),
        ({"source": {"metadata": {"a": None}}}, 'source.metadata["a"]', "expected a string"),
        ({"tensors": {"a\0": {"type": "int8"}}}, "tensors", NUL),
        ({"tensors": {"\udc80": {"type": "int8"}}}, "tensors", "not Unicode"),
        ({"tensors": {'"\n': {}}}, r'tensors["\"\n"].type', "is missing"),
    ],
)
def test_members(members: dict[str, object], path: str, message: str) -> None:
    refused(text({"nnr_codec": 1} | members), path, message)


CODED = {"type": "float32", "code": FLOAT}
TIED = {"same_as": "a", "index": 0}


@pytest.mark.parametrize(
    ("tensors", "path", "message"),
    [
        ({"a": CODED, "a#bits": {"type": "int8"}}, '["a"].code.bits', "'a#bits' is already used as a name"),
        ({"a": CODED, "a#bits": TIED | {"same_as": "x"}}, '["a"].code.bits', "already used as a name"),
        (
            {"a": CODED, "b": {"type": "float32", "code": FLOAT | {"bits": "a#bits"}}},
            '["b"].code.bits',
            "already used as a name",
        ),
        ({"a": CODED, "b": TIED | {"same_as": "a#bits"}}, '["b"].same_as', "not a tensor with its own values"),
        ({"a": TIED | {"same_as": "x"}, "b": TIED | {"index": 1}}, '["b"].same_as', "not a tensor with its own values"),
        ({"b": TIED, "c": TIED | {"same_as": "x"}}, '["c"].index', "0 is already the index of another"),
        (
            {"b": TIED, "c": {"type": "int8", "shape": [0], "index": 0}},
            '["c"].index',
            "0 is already the index of another",
        ),
    ],
)
def test_tensors_that_contradict_each_other(tensors: object, path: str, message: str) -> None:
    refused(record(tensors), f"tensors{path}", message)


def test_the_ends_of_all_ranges() -> None:
    tensors = {
        "a": TensorRecord("float64", None, FloatCode("\u00ff", (1 << 63) - 1, 52)),
        "b": TensorRecord("float8_e5m2", (17, 1), FloatCode("x", 0, 0, zeros=2, rows=b"\1\2\3")),
        "c": TensorRecord("uint64", None, IntegerCode((1 << 64) - 1, 64, "y")),
        "d": TensorRecord("int64", None, IntegerCode(-(1 << 63), 1, "z")),
        "e": TensorRecord("int4", None, PaletteCode(b"\xf8\7", 1)),
        "f": TensorRecord("uint4", None, PaletteCode(b"\0\x0f")),
        "g": TensorRecord("bool", (1 << 62,), PaletteCode(b"\0\1")),
        "h": TensorRecord("float16", None, PaletteCode(bytes(range(6)), 2)),
        "i": TensorRecord("float32", None, GridCode(b"\1\0\0\x80\xff\xff\x7f\xff", 31)),
        "j": TensorRecord("int8", (0, (1 << 63) - 1), index=(1 << 31) - 1),
        "k": TensorRecord("int8", 32 * (1,)),
        "l": TensorRecord(same_as="not in the record", index=0),
        "m": TensorRecord(same_as="j", index=1),
        "": TensorRecord(same_as="k", index=2),
    }
    side = SideInfo(tensors)
    assert parse(side.to_bytes()) == side


# ------------------------------------------------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("side", "limit", "enough", "what"),
    [
        (GOOD, "max_side_info_bytes", len(GOOD.to_bytes()), "side information"),
        (SideInfo({"a": TensorRecord("int8")}, "", {"b": "", "c": ""}), "max_names", 3, "names"),
        (SideInfo({"\u00e4": TensorRecord("int8")}), "max_name_bytes", 2, "tensors: bytes of a name"),
        (SideInfo({"a": TensorRecord(same_as="bcd", index=0)}), "max_name_bytes", 3, r'tensors\["a"\]\.same_as'),
        (one(FloatCode("w#bits", 0)), "max_name_bytes", 6, r'tensors\["w"\]\.code\.bits'),
        (one(IntegerCode(0, 1, "bcd")), "max_name_bytes", 3, r'tensors\["w"\]\.code\.bits'),
        (one(IntegerCode(unit="bcd")), "max_name_bytes", 3, r'tensors\["w"\]\.code\.unit'),
        (one(kind="int8", shape=(1, 1, 1)), "max_dims", 3, r'tensors\["w"\]\.shape'),
        (one(PaletteCode(bytes(12))), "max_codebook", 3, r'tensors\["w"\]\.code\.values'),
    ],
)
def test_limits(side: SideInfo, limit: str, enough: int, what: str) -> None:
    data = side.to_bytes()
    assert parse(data, Limits(**{limit: enough})) == side  # type: ignore[arg-type]
    with pytest.raises(LimitError, match=f"{what}.*{limit}={enough - 1}"):
        parse(data, Limits(**{limit: enough - 1}))  # type: ignore[arg-type]


def test_limits_count_what_came_before() -> None:
    budget = Budget(Limits(max_names=4))
    budget.charge("max_names", 3, "list entries")
    with pytest.raises(LimitError, match="max_names"):
        SideInfo.parse(GOOD.to_bytes(), budget)


def test_the_presets() -> None:
    data = b'{"nnr_codec":1,"source":{"format":"' + bytes([97]) * ((16 << 20) - 38) + b'"}}'
    assert parse(data) is not None
    assert parse(data, Limits.unlimited()) is not None
    for limits, more in ((Limits(), b" "), (Limits.strict(), b"")):
        with pytest.raises(LimitError, match="max_side_info_bytes"):
            parse(data + more, limits)


# -------------------------------------------------------------------------------------------------------- any record
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
FLOATS_BY_NAME = {name: stored for name, stored in STORED_TYPES.items() if stored.kind == "f"}


@st.composite
def codes(draw: st.DrawFn, kind: str, shape: tuple[int, ...] | None, bits: str, unit: str | None) -> Code | None:
    """Draw a code of a nonempty tensor, of version 3 if the unit has an id."""
    stored = STORED_TYPES[kind]
    choices = ["none", "integer", "palette"] + ["raw"] * (shape is not None) + ["float", "grid"] * (stored.kind == "f")
    choices += ["delta"] * (kind == "int32" and unit is not None)
    match draw(st.sampled_from(choices)):
        case "delta" if unit is not None:
            return DeltaCode(unit)
        case "integer":
            low = draw(st.integers(0, 64))
            return IntegerCode(draw(st.integers(*stored.range)), low, bits if low else None, unit)
        case "palette":
            low_item, high_item = (0, 255) if stored.bits >= 8 else stored.range
            items = st.lists(st.integers(low_item, high_item), min_size=1, max_size=9)
            entries = bytes(item & 255 for item in draw(items)) * stored.itemsize
            return PaletteCode(entries, draw(st.integers(0, len(entries) // stored.itemsize - 1)), unit)
        case "raw":
            return RawCode(unit)
        case "float":
            mantissa = draw(st.integers(0, stored.mantissa))
            zeros = draw(st.integers(0, stored.mantissa - mantissa))
            size = draw(st.integers(1, 5)) if shape is None else (shape[0] + 7) // 8 if shape and shape[0] < 99 else 0
            rows = draw(st.none() | st.binary(min_size=size, max_size=size)) if zeros and size else None
            pivot = draw(st.integers(0, (1 << (stored.exponent + mantissa)) - 1))
            return FloatCode(bits, pivot, mantissa, draw(st.integers(0, 2)), draw(st.booleans()), zeros, rows, unit)
        case "grid":
            form = "<d" if kind == "float64" else "<f"
            scale = st.floats(2.0**-140, 2.0**100, width=32).map(lambda value: struct.pack(form, value))
            axis = draw(st.none() | st.integers(0, 31 if shape is None else len(shape) - 1)) if shape != () else None
            size = 1 if axis is None else shape[axis] if shape else draw(st.integers(1, 5))
            assume(size < 100)
            return GridCode(b"".join(draw(st.lists(scale, min_size=size, max_size=size))), axis, unit)
    return None


@st.composite
def sides(draw: st.DrawFn) -> SideInfo:
    """Draw a record."""
    names = draw(st.lists(NAMES, unique=True, max_size=6))
    places = draw(st.lists(st.integers(0, (1 << 31) - 1), unique=True, min_size=len(names), max_size=len(names)))
    tensors: dict[str, TensorRecord] = {}
    has_ids = draw(st.booleans())  # of all codes
    for k, (name, place) in enumerate(zip(names, places, strict=True)):
        kind = draw(st.sampled_from(sorted(STORED_TYPES)))
        shape = draw(st.none() | st.lists(st.integers(1, 9) | st.just(1 << 20), max_size=2).map(tuple))
        bits = draw(st.just(f"{name}#bits") | st.just(f"{k} {name}"))
        unit = draw(st.sampled_from(["levels", "raw", "delta", "#levels"])) if has_ids else ""
        what = draw(st.integers(0, 5))
        if what == 0:
            tensors[name] = TensorRecord(kind, (*(shape or ()), 0), index=place)
        elif what == 1:
            tensors[name] = TensorRecord(same_as=draw(st.sampled_from(names) | NAMES.filter(bool)), index=place)
        else:
            tensors[name] = TensorRecord(
                kind, shape, draw(codes(kind, shape, bits, f"{name}#{unit}" if has_ids else None))
            )
    units = [unit for tensor in tensors.values() for unit in tensor.units]
    tied = {name for name, tensor in tensors.items() if tensor.index is not None and 0 not in (tensor.shape or ())}
    assume(len(set(units)) == len(units) and tensors.keys().isdisjoint(units))
    assume(tied.isdisjoint(tensors[name].same_as for name in tied))
    assume(not any(tensors[name].same_as in ("", *units) for name in tied))
    text_of_any_kind = st.text(st.characters(codec="utf-8"), max_size=9)
    metadata = draw(st.dictionaries(text_of_any_kind, text_of_any_kind, max_size=3))
    return SideInfo(tensors, draw(text_of_any_kind), metadata)


def result(data: bytes, limits: Limits | None = None) -> SideInfo | None:
    """Return the result of a text that may be malformed; a record is the only one with these bytes."""
    try:
        side = parse(data, limits)
    except (ElementError, LimitError, UnsupportedError):
        return None
    if side is not None:
        assert side.to_bytes() == data
        assert isinstance(side.tensors, Mapping)
    return side


@settings(max_examples=examples(200), deadline=None)
@given(sides())
def test_any_record_comes_back(side: SideInfo) -> None:
    data = side.to_bytes()
    assert data.isascii()
    assert text(json.loads(data)) == data
    assert parse(data) == side


@settings(max_examples=examples(200), deadline=None)
@given(sides(), st.data())
def test_any_change_of_bytes(side: SideInfo, data: st.DataObject) -> None:
    changed = bytearray(side.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(changed)))
        stop = data.draw(st.integers(start, min(start + 4, len(changed))))
        pieces = st.binary(max_size=3) | st.sampled_from(
            [b"{", b"}", b'"', b"[0]", b"true", b"null", b"-1", b"1e9", b"\\ud800", b"0"]
        )
        changed[start:stop] = data.draw(pieces)
    result(bytes(changed))


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values of a JSON text."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        found += places_of(member, (*path, key))
    return found


WORDS = [*STORED_TYPES, "float", "integer", "raw", "delta", "palette", "grid", "AAAA", "AAAAAA=="]
SCALARS = st.none() | st.booleans() | st.integers(-2, 65) | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "type", "bits", "unit", "low"]), inner)
    ),
    max_leaves=4,
)
MEMBERS = [
    "source",
    "format",
    "metadata",
    "type",
    "shape",
    "code",
    "index",
    "same_as",
    "kind",
    "bits",
    "unit",
    "pivot",
    "mantissa",
]
MEMBERS += ["holes", "unsigned", "zeros", "rows", "base", "low", "values", "offset", "scale", "axis", "w", ""]


@settings(max_examples=examples(200), deadline=None)
@given(sides().filter(lambda side: side.tensors), st.data())
def test_any_change_of_values(side: SideInfo, data: st.DataObject) -> None:
    """Canonical texts with random values reach every check of the values."""
    value = json.loads(side.to_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(places_of(value)))
        parent = value
        for key in path:
            parent = parent[key]
        match data.draw(st.integers(0, 3 if isinstance(parent, dict) else 1)):
            case 0 | 1:
                parent[last] = data.draw(VALUES)
            case 2 if len(parent) > 1:
                del parent[last]
            case _:
                parent[data.draw(st.sampled_from(MEMBERS))] = data.draw(VALUES)
    result(text(value), Limits.strict())
