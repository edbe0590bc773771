"""Malicious side-information records; tests/sideinfo has the other malformed ones."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.limits import Budget, Limits
from nnr_codec.sideinfo.record import SideInfo

from ..builder import Bitstream, ndu
from .support import good, memory, start
from .support import refused as refused_by_decoders


def parse(data: bytes, **limits: int) -> SideInfo | None:
    """Return the record that a decoder reads from an inflated text."""
    return SideInfo.parse(data, Budget(Limits(**limits)))  # type: ignore[arg-type]


def refused(data: bytes, error: type[nnr.NnrError], match: str, **limits: int) -> None:
    """Check that this is the only fault of the text."""
    with pytest.raises(error, match=match):
        parse(data, **limits)


def record(tensors: object, version: int = 1) -> bytes:
    """Return a canonical text."""
    return json.dumps({"nnr_codec": version, "tensors": tensors}, sort_keys=True, separators=(",", ":")).encode()


def tensor(type_: str = "float32", **code: Any) -> bytes:
    """Return a text about one tensor with a code."""
    return record({"w": {"type": type_, "code": code}})


def shaped(type_: str, *extents: object, **members: object) -> bytes:
    """Return a text about one tensor with a shape."""
    return record({"w": {"type": type_, "shape": extents} | members})


def b64(data: bytes) -> str:
    """Return the base64 form of RFC 4648."""
    return base64.b64encode(data).decode()


# ------------------------------------------------------------------------------------------------------------- costs
def test_a_record_of_any_size() -> None:
    data = b'{"nnr_codec":1,"tensors":[' + 400_000 * b"{}," + b"{}]}"
    with memory() as used:
        refused(data, nnr.LimitError, "max_side_info_bytes", max_side_info_bytes=len(data) - 1)
    assert used.peak < 10_000


def test_a_record_of_many_names() -> None:
    data = record({str(k): {"type": "int8"} for k in range(9)})
    assert parse(data, max_names=9)
    refused(data, nnr.LimitError, "max_names", max_names=8)


@pytest.mark.parametrize(
    "data",
    [
        record({9 * "n": {"type": "int8"}}),
        record({"w": {"same_as": 9 * "n", "index": 0}}),
        tensor(kind="float", pivot=0, bits=9 * "n"),
        record({"w": {"type": "int8", "code": {"kind": "integer", "unit": 9 * "n"}}}, 3),
    ],
    ids=["name", "same_as", "bits", "unit"],
)
def test_long_names(data: bytes) -> None:
    assert parse(data, max_name_bytes=9)
    refused(data, nnr.LimitError, "max_name_bytes", max_name_bytes=8)


def test_many_dimensions() -> None:
    assert parse(shaped("int8", *32 * [1]))
    refused(shaped("int8", *33 * [1]), nnr.LimitError, "max_dims")


def test_a_palette_of_many_entries() -> None:
    data = tensor("int16", kind="palette", values=b64(bytes(20)))
    assert parse(data, max_codebook=10)
    refused(data, nnr.LimitError, "max_codebook", max_codebook=9)


@pytest.mark.parametrize("nested", [b"[", b'{"a":'])
def test_depth_is_not_recursion(nested: bytes) -> None:
    refused(b'{"nnr_codec":1,"tensors":' + 200_000 * nested, nnr.ElementError, "nested too deeply")


@pytest.mark.parametrize("digits", [21, 4000, 1_000_000])
def test_integers_of_many_digits(digits: int) -> None:
    """Python needs quadratic time to read one."""
    data = b'{"nnr_codec":1,"tensors":{"w":{"index":' + digits * b"1" + b',"same_as":"v"}}}'
    refused(data, nnr.ElementError, f"an integer has {digits:,} digits")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1.5", "1e99"])
def test_numbers_that_are_no_integers(number: str) -> None:
    refused(b'{"nnr_codec":1,"tensors":' + number.encode() + b"}", nnr.ElementError, "is not an integer")


@pytest.mark.parametrize("rest", [b",", b"}}", b',"\xff":1}', b"}\0"])
def test_no_json(rest: bytes) -> None:
    refused(b'{"nnr_codec":1' + rest, nnr.ElementError, "not valid JSON")


# ------------------------------------------------------------------------------------------------ features and repeats
RUN = {"kept": [4], "length": [4], "distance": [4], "change": [0]}
COPIES = {"type": "int8", "shape": [8], "code": {"kind": "integer"}, "repeats": RUN}


def featured(tensors: object, *requires: object) -> bytes:
    """Return a canonical text of version 4."""
    fields = {"nnr_codec": 4, "requires": requires, "tensors": tensors}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def repeated(type_: str = "int8", **runs: object) -> bytes:
    """Return a text about one tensor with copies."""
    return featured({"w": COPIES | {"type": type_, "repeats": RUN | runs}}, "repeats")


def test_unknown_features_are_named() -> None:
    refused(featured({}, "a", "b"), nnr.UnsupportedError, "'a', 'b'")
    refused(featured({"w": {"new": 1}}, "new"), nnr.UnsupportedError, "'new'")


def test_features_are_limited() -> None:
    refused(featured({}, "a", "b", "c"), nnr.LimitError, "max_names", max_names=2)
    refused(featured({}, "abc"), nnr.LimitError, "max_name_bytes", max_name_bytes=2)


@pytest.mark.parametrize("requires", [(1,), ("",), ("a\0",), ("repeats", "repeats"), ("repeats", "a"), ()])
def test_invalid_features(requires: tuple[object, ...]) -> None:
    refused(featured({"w": COPIES}, *requires), nnr.ElementError, "requires")


@pytest.mark.parametrize(
    ("runs", "match"),
    [
        ({"kept": []}, "arrays of the same length"),
        ({"kept": [], "length": [], "distance": [], "change": []}, "arrays of the same length"),
        ({"length": [True]}, "expected integers"),
        ({"length": ["4"]}, "expected integers"),
        ({"kept": [-1]}, "kept"),
        ({"kept": [10**19]}, "kept"),
        ({"length": [0]}, "length"),
        ({"length": [5], "distance": [5]}, "length"),
        ({"distance": [3]}, "distance"),
        ({"distance": [0]}, "distance"),
        ({"distance": [-4]}, "distance"),
        ({"distance": [5]}, "distance"),
        ({"change": [8]}, "change"),
    ],
)
def test_invalid_runs(runs: dict[str, object], match: str) -> None:
    """An index of an item that does not exist yet would be read before it is written."""
    refused(repeated(**runs), nnr.ElementError, match)


def test_runs_of_other_tensors() -> None:
    refused(repeated("uint8", change=[2]), nnr.ElementError, "change")
    refused(featured({"w": COPIES | {"shape": []}}, "repeats"), nnr.ElementError, "require a shape")
    refused(featured({"w": COPIES | {"type": "int32", "code": {"kind": "delta"}}}, "repeats"), nnr.ElementError, "kind")


@pytest.mark.parametrize("count", [3, 5, 8])
def test_another_number_of_kept_items(count: int) -> None:
    stream = start()
    recorded(stream, repeated())
    data = stream.ndu(ndu("w#levels", [count], kind=NNR_PT_INT), np.zeros(count, "i4")).data
    refused_by_decoders(data, nnr.ElementError, "side information requires 4 int32")


def test_many_runs() -> None:
    """Each run needs a separate operation."""
    runs = {"kept": [1, *99 * [0]], "length": 100 * [1], "distance": 100 * [1], "change": 100 * [0]}
    stream = start()
    recorded(stream, featured({"w": COPIES | {"shape": [101], "repeats": runs}}, "repeats"))
    data = stream.ndu(ndu("w#levels", [1], kind=NNR_PT_INT), np.zeros(1, "i4")).data
    refused_by_decoders(data, nnr.LimitError, "copies of items", limits=Limits(max_decomp_elements=200_000))


def test_a_bomb_of_copies() -> None:
    """The tensor is charged before it is created: one item becomes 2**40."""
    runs = {"kept": [1, *39 * [0]], "length": [1 << k for k in range(40)], "distance": [1 << k for k in range(40)]}
    stream = start()
    recorded(stream, featured({"w": COPIES | {"shape": [1 << 40], "repeats": runs | {"change": 40 * [0]}}}, "repeats"))
    data = stream.ndu(ndu("w#levels", [1], kind=NNR_PT_INT), np.zeros(1, "i4")).data
    with memory() as used:
        refused_by_decoders(data, nnr.LimitError, "max_tensor_elements")
    assert used.peak < 4 << 20


def test_negatives_outside_of_the_type() -> None:
    stream = start()
    recorded(stream, repeated("int4", change=[2]))
    data = stream.ndu(ndu("w#levels", [4], kind=NNR_PT_INT), np.full(4, -8, "i4")).data
    refused_by_decoders(data, nnr.ElementError, "outside the range of int4")


# --------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("extent", [-1, True, "1", None, [1]])
def test_extents_that_are_none(extent: object) -> None:
    refused(shaped("int8", 2, extent), nnr.ElementError, "integers of at least 0")


@pytest.mark.parametrize("extents", [(1 << 31, 1 << 32), (1 << 62, 2), (9 * 10**18, 0, 9 * 10**18)])
def test_shapes_that_overflow(extents: tuple[int, ...]) -> None:
    members = {"index": 0} if 0 in extents else {}
    refused(shaped("int8", *extents, **members), nnr.ElementError, "exceeds the largest possible array")


@pytest.mark.parametrize("index", [-1, 1 << 31, 10**19])
def test_places_outside_of_the_model(index: int) -> None:
    refused(record({"w": {"same_as": "v", "index": index}}), nnr.ElementError, "is outside 0..")


@pytest.mark.parametrize("mantissa", [24, 10**19])
def test_more_mantissa_than_there_is(mantissa: int) -> None:
    """A power of two of this number is computed."""
    refused(tensor(kind="float", pivot=0, mantissa=mantissa), nnr.ElementError, "mantissa: .* is outside 0..23")


@pytest.mark.parametrize("pivot", [-1, 256, 10**19])
def test_a_pivot_outside_of_the_pattern(pivot: int) -> None:
    refused(tensor(kind="float", pivot=pivot), nnr.ElementError, "pivot: .* is outside 0..255")


@pytest.mark.parametrize("zeros", [-1, 23])
def test_more_zeros_than_there_are_bits(zeros: int) -> None:
    """Fields would have a negative width."""
    refused(tensor(kind="float", pivot=0, mantissa=1, zeros=zeros), nnr.ElementError, "is outside 0..22")


def test_rows_that_are_not_there() -> None:
    code = {"kind": "float", "pivot": 0, "zeros": 1, "rows": b64(b"\x80")}
    for extents in ([9, 1], [16], []):
        refused(shaped("float32", *extents, code=code), nnr.ElementError, "one bit for each index")


@pytest.mark.parametrize(("kind", "base"), [("int64", -(1 << 63) - 1), ("uint64", 1 << 64), ("bool", 2), ("int4", 8)])
def test_a_base_outside_of_the_type(kind: str, base: int) -> None:
    refused(tensor(kind, kind="integer", base=base), nnr.ElementError, "base: .* is outside")


@pytest.mark.parametrize("low", [-1, 65, 10**19])
def test_fields_beyond_64_bits(low: int) -> None:
    refused(tensor("int64", kind="integer", low=low), nnr.ElementError, "low: .* is outside")


@pytest.mark.parametrize("offset", [-1, 2, 10**19])
def test_an_offset_outside_of_the_palette(offset: int) -> None:
    refused(tensor("int8", kind="palette", values=b64(b"\0\1"), offset=offset), nnr.ElementError, "is outside 0..1")


@pytest.mark.parametrize(("kind", "item"), [("bool", 2), ("int4", 8), ("int4", 0xF7), ("uint4", 16), ("int2", 2)])
def test_palette_entries_outside_of_the_type(kind: str, item: int) -> None:
    """A boolean of 2 has undefined behaviour."""
    refused(tensor(kind, kind="palette", values=b64(bytes([0, item]))), nnr.ElementError, "values: .* is outside")


@pytest.mark.parametrize(("kind", "size"), [("float32", 0), ("float32", 5), ("float64", 4)])
def test_items_that_are_cut(kind: str, size: int) -> None:
    refused(tensor(kind, kind="palette", values=b64(bytes(size))), nnr.ElementError, "a whole number of items")


@pytest.mark.parametrize("scale", [0.0, -0.0, float("inf"), float("nan")])
def test_scales_that_are_none(scale: float) -> None:
    refused(tensor(kind="grid", scale=b64(struct.pack("<f", scale))), nnr.ElementError, "0 or not finite")


@pytest.mark.parametrize("axis", [-1, 32, 10**19])
def test_an_axis_that_is_not_there(axis: int) -> None:
    refused(tensor(kind="grid", scale="AACAPw==", axis=axis), nnr.ElementError, "axis: .* is outside 0..31")


def test_another_number_of_scales() -> None:
    code: dict[str, Any] = {"kind": "grid", "scale": b64(8 * b"\1")}
    refused(tensor(**code), nnr.ElementError, "2 scales are given")
    refused(shaped("float32", 2, 3, code=code | {"axis": 1}), nnr.ElementError, "2 scales are given")


@pytest.mark.parametrize("kind", ["int32", "bool", "uint4"])
def test_exponents_of_integers(kind: str) -> None:
    refused(tensor(kind, kind="float", pivot=0), nnr.ElementError, "is not a float type")


@pytest.mark.parametrize("kind", ["int32", "bool", "uint4"])
def test_scales_of_integers(kind: str) -> None:
    refused(tensor(kind, kind="grid", scale="AACAPw=="), nnr.ElementError, "is not a float type")


@pytest.mark.parametrize("kind", ["int16", "uint32", "int64", "float32", "bool"])
def test_differences_of_another_type(kind: str) -> None:
    """A sum with them would add numbers instead of bit patterns."""
    data = record({"w": {"type": kind, "code": {"kind": "delta"}}}, 3)
    refused(data, nnr.ElementError, "differences must be int32")


def test_items_of_no_shape() -> None:
    refused(tensor("int8", kind="raw"), nnr.ElementError, "requires a shape")


@pytest.mark.parametrize("member", ["pivot", "mantissa", "zeros"])
def test_booleans_are_no_integers(member: str) -> None:
    refused(tensor(**({"kind": "float", "pivot": 1} | {member: True})), nnr.ElementError, "expected an integer")


# -------------------------------------------------------------------------------------------------- names and places
FLOAT = {"type": "float32", "code": {"kind": "float", "pivot": 0}}
TIED = {"same_as": "x", "index": 0}


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": FLOAT, "w#bits": {"type": "int8"}},
        {"w": FLOAT, "w#bits": TIED},
        {"v": FLOAT, "w": {"type": "float32", "code": FLOAT["code"] | {"bits": "v#bits"}}},  # type: ignore[operator]
    ],
    ids=["tensor", "tie", "bits"],
)
@pytest.mark.parametrize("version", [1, 3])
def test_a_unit_for_two(tensors: object, version: int) -> None:
    refused(record(tensors, version), nnr.ElementError, "is already used as a name")


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": FLOAT, "w#levels": {"type": "int8"}},
        {"w": {"type": "float32", "code": FLOAT["code"] | {"unit": "w"}}},  # type: ignore[operator]
        {"w": {"type": "float32", "code": FLOAT["code"] | {"unit": "u", "bits": "u"}}},  # type: ignore[operator]
        {"v": FLOAT, "w": {"type": "float32", "code": FLOAT["code"] | {"unit": "v#levels"}}},  # type: ignore[operator]
    ],
    ids=["tensor", "itself", "own bits", "levels"],
)
def test_a_unit_of_levels_for_two(tensors: object) -> None:
    refused(record(tensors, 3), nnr.ElementError, "is already used as a name")


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": TIED},
        {"w": TIED, "x": {"same_as": "w", "index": 1}},
        {"w": TIED, "x": {"same_as": "v", "index": 1}},
        {"w": {"same_as": "v#bits", "index": 0}, "v": FLOAT},
    ],
    ids=["itself", "each other", "chain", "bits"],
)
def test_ties_that_lead_nowhere(tensors: object) -> None:
    refused(record(tensors), nnr.ElementError, "not a tensor with its own values")


def test_two_tensors_in_one_place() -> None:
    refused(record({"v": TIED, "w": TIED}), nnr.ElementError, "is already the index of another tensor")


@pytest.mark.parametrize(
    "data",
    [
        record({"w\0": {"type": "int8"}}),
        tensor(kind="float", pivot=0, bits="w\0"),
        record({"w": {"type": "int8", "code": {"kind": "integer", "unit": "w\0"}}}, 3),
    ],
)
def test_zeros_in_names(data: bytes) -> None:
    refused(data, nnr.ElementError, "contains a zero")


def test_names_that_are_no_text() -> None:
    """Other software fails to print or to write them."""
    refused(record({"w\ud800": {"type": "int8"}}), nnr.ElementError, "not Unicode")


# ------------------------------------------------------------------------------------------------------ one text only
@pytest.mark.parametrize(
    "data",
    [
        b'{"nnr_codec":1,"tensors":{"w":{"type":"int8"}} }',
        b'{"nnr_codec":1,"tensors":{"w":{"type":"int16","type":"int8"}}}',
        b'{"nnr_codec":1,"tensors":{"w":{"type":"int16"},"w":{"type":"int8"}}}',
        b'{"nnr_codec":1,"tensors":{"w":{"type":"int8","shape":[1]}}}',
        b'{"nnr_codec":1,"tensors":{"\\u0077":{"type":"int8"}}}',
    ],
    ids=["space", "member twice", "tensor twice", "order", "escape"],
)
def test_a_text_that_others_may_read_otherwise(data: bytes) -> None:
    refused(data, nnr.ElementError, "not canonical")


@pytest.mark.parametrize(
    "data",
    [
        b'{"nnr_codec":1,"other":1}',
        record({"w": {"type": "int8", "other": 1}}),
        record({"w": {"type": "int8", "shape": [0], "index": 0, "code": {"kind": "raw"}}}),
        record({"w": TIED | {"type": "int8"}}),
        tensor(kind="float", pivot=0, rows="gA=="),
    ],
)
def test_members_that_mean_nothing(data: bytes) -> None:
    refused(data, nnr.ElementError, "is an unknown member")


def test_a_later_version() -> None:
    refused(b'{"nnr_codec":5,"tensors":{}}', nnr.UnsupportedError, "version 5")


# --------------------------------------------------------------------------------------------------------- its unit
TEXT = record({"w": {"type": "int8"}})


def recorded(stream: Bitstream, data: bytes = TEXT, compression: int = 0) -> bytes:
    """Return a bitstream that continues with a record."""
    return stream.topology(data if compression else data + b"\0", storage=128, compression=compression).data


def test_two_records() -> None:
    """Each is within the limits, and the second one refers to tensors of the first."""
    stream = start()
    recorded(stream)
    refused_by_decoders(recorded(stream), nnr.ElementError, "second record")


def test_a_record_after_its_tensors() -> None:
    stream = start()
    stream.units.append(good().removeprefix(stream.data))
    refused_by_decoders(recorded(stream), nnr.ElementError, "follows tensors")


def test_names_of_many_records() -> None:
    """A stream has any number of bitstreams, and deflated names take much more memory than bytes."""
    text = record({str(k): {"type": "int8"} for k in range(3)})
    data = recorded(start(), zlib.compress(text), 1)
    decoder = nnr.StreamDecoder(limits=Limits(max_names=5), allow_missing=True)
    decoder.feed(data)
    with pytest.raises(nnr.LimitError, match="max_names"):
        decoder.feed(data)


def test_a_foreign_bomb() -> None:
    """It is ignored, and not inflated."""
    bomb = recorded(start(), zlib.compress(bytes(64 << 20)), 1)
    with memory() as used:
        assert len(nnr.decode(bomb)) == 0
    assert used.peak < 2 << 20


def test_a_bomb_of_ours() -> None:
    bomb = recorded(start(), zlib.compress(TEXT + bytes(64 << 20)), 1)
    with memory() as used:
        refused_by_decoders(bomb, nnr.LimitError, "max_side_info_bytes", limits=Limits(max_side_info_bytes=1 << 20))
    assert used.peak < 4 << 20


def test_inspected_records_are_inflated_within_limits() -> None:
    """``nnr inspect`` and ``nnr verify`` read a record without a budget."""
    text = b'{"nnr_codec":' + bytes(32 << 20)
    data = start().topology(zlib.compress(text, 9), storage=128, compression=1).data
    nnr.inspect(start().data)
    with memory() as used:
        assert nnr.inspect(data)[2].detail == "side information, deflated"
    assert used.peak < 1 << 20


# ----------------------------------------------------------------------------------------------------- displacements
def displaced(stream: Bitstream, dims: list[int], **code: object) -> bytes:
    """Return a tensor of zeros as its displacement."""
    members = {"type": "float32", "code": {"kind": "displacement", **code}}
    recorded(stream, record({"w": members}).replace(b'{"nnr_codec":1', b'{"nnr_codec":2'))
    return stream.raw(ndu("w_displacement", dims, kind=NNR_PT_RAW_FLOAT), np.zeros(dims, "f4")).data


def test_a_displacement_of_many_rows() -> None:
    """Each row needs a separate operation."""
    data = displaced(start(), [2000, 1])
    refused_by_decoders(data, nnr.LimitError, "additions to displacements", limits=Limits(max_decomp_elements=1 << 20))


def test_a_displacement_is_made_in_float64() -> None:
    data = displaced(start(), [100, 100])
    limits = Limits(max_tensor_bytes=8 * 10_000 - 1)
    refused_by_decoders(data, nnr.LimitError, "computed from its displacement", limits=limits)


def test_a_corner_that_makes_numbers_grow() -> None:
    text = tensor(kind="displacement", corner=2).replace(b'{"nnr_codec":1', b'{"nnr_codec":2')
    refused(text, nnr.ElementError, "corner")


def test_a_unit_of_a_tensor_that_is_made_of_another_one() -> None:
    stream = start()
    displaced(stream, [2, 2])
    stream.raw(ndu("w", [4], kind=NNR_PT_RAW_FLOAT), np.zeros(4, "f4"))
    refused_by_decoders(stream.data, nnr.ElementError, "derives it from 'w_displacement'")


def test_a_unit_of_a_tensor_whose_levels_are_in_another_one() -> None:
    """Decoders that ignore the record would use it as the tensor."""
    stream = start()
    recorded(stream, record({"w": {"type": "int8", "code": {"kind": "integer", "base": 5}}}, 3))
    for name in ("w#levels", "w"):
        stream.ndu(ndu(name, [2], kind=NNR_PT_INT), np.array([1, 2], "i4"))
    refused_by_decoders(stream.data, nnr.ElementError, "derives it from 'w#levels'")
