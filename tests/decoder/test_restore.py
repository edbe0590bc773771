"""Side information: conversion of unit tensors to model tensors (docs/reference/side-information.md)."""

from __future__ import annotations

import json
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import dtypes
from nnr_codec.bitstream.performance import PerformanceMaps, SparsificationMap, SparsificationRow, maps_for
from nnr_codec.constants import (
    NNR_CPT_LS,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    NNR_TPL,
    NNR_TPL_PRUN,
    DecompressedDataFormat,
    PayloadType,
)
from nnr_codec.decoder import index
from nnr_codec.decoder.index import NnrFile
from nnr_codec.decoder.restore import BITS, UPDATE, Restoration, Restorer
from nnr_codec.dtypes import STORED_TYPES, StoredType
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array
from nnr_codec.sideinfo.codes import split
from nnr_codec.sideinfo.record import (
    FloatCode,
    GridCode,
    IntegerCode,
    PaletteCode,
    RawCode,
    SideInfo,
    TensorRecord,
)
from nnr_codec.syntax.structures import NnrTopologyUnitHeader, NnrTopologyUnitPayload, NnrUnitHeader

from ..builder import Bitstream, ndu, update_ndu
from .support import refused
from .test_pruning import dictionary, masks

Tensors = Mapping[str, tuple[TensorRecord, Array] | Array]


def start(
    record: SideInfo | str | bytes | None, *, profile: int = 1, deflated: bool = True, **options: Any
) -> Bitstream:
    """Return NNR_STR, NNR_MPS and a record, which may be hand-written JSON."""
    stream = Bitstream().str_(profile).mps(**options)
    if record is None:
        return stream
    text = record.to_bytes() if isinstance(record, SideInfo) else record.encode() if isinstance(record, str) else record
    return stream.topology(zlib.compress(text) if deflated else text + b"\0", storage=128, compression=int(deflated))


def tensor(**members: Any) -> str:
    """Return a record in JSON of one tensor ``w``."""
    return json.dumps({"nnr_codec": 1, "tensors": {"w": members}}, sort_keys=True, separators=(",", ":"))


def levels(stream: Bitstream, name: str, values: Any, **elements: Any) -> Bitstream:
    """Return a unit of NNR_PT_INT."""
    array = np.asarray(values, np.int32)
    return stream.ndu(ndu(name, array.shape or (1,), kind=NNR_PT_INT, **elements), array)


def words(stream: Bitstream, name: str, content: bytes) -> Bitstream:
    """Return a unit of NNR_PT_RAW_FLOAT with these bytes."""
    return stream.ndu(ndu(name, [len(content) // 4], kind=NNR_PT_RAW_FLOAT), payload=content)


def made(tensors: Tensors, *, format: str = "", metadata: Mapping[str, str] | None = None, **options: Any) -> bytes:
    """Return a bitstream of tensors, each with its record and units, or of int32 without a record."""
    records = {name: item[0] for name, item in tensors.items() if isinstance(item, tuple)}
    stream = start(SideInfo(records, format, metadata or {}), **options)
    for name, item in tensors.items():
        if not isinstance(item, tuple):
            levels(stream, name, item)
            continue
        record, array = item
        if record.index is not None:
            continue
        unit, bits = split(record, array) if record.code else (np.asarray(array).reshape(array.shape or (1,)), None)
        if unit.dtype == np.float32:
            header = ndu(name, unit.shape, kind=NNR_PT_RAW_FLOAT)
            stream.ndu(header, payload=unit.astype("<f4").tobytes())
        else:
            levels(stream, name, unit)
        if bits is not None:
            words(stream, record.bits or "", bits.tobytes())
    return stream.data


def same(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


def streamed(data: bytes, size: int = 1, **options: Any) -> dict[str, Array]:
    decoder, got = nnr.StreamDecoder(**options), list[tuple[str, Array]]()
    for position in range(0, len(data), size):
        got += decoder.feed(data[position : position + size])
    got += decoder.finish()
    assert len(dict(got)) == len(got)
    return dict(got)


def opened(data: bytes) -> Array:
    return nnr.open(data)["w"]


def ways(data: bytes, **options: Any) -> Iterator[dict[str, Array]]:
    """Return all ways to decode a bitstream."""
    yield dict(nnr.decode(data, **options).tensors)
    yield dict(nnr.decode(data, jobs=3, **options).tensors)
    with ThreadPoolExecutor(2) as executor:
        yield dict(nnr.decode(data, executor=executor, **options).tensors)
    for size in (1, 7, len(data)):
        yield streamed(data, size, **options)
    with nnr.open(data, **options) as file:
        yield {name: file[name] for name in file}
        yield {name: file.decode(names=[name])[name] for name in file}
        for name, info in file.info.items():
            whole, axis = file[name], info.first_tensor_dimension_shift
            assert (info.shape, info.dtype) == (whole.shape, whole.dtype)
            for first, last in ((0, 1), (1, 1), (0, info.shape[axis])) if whole.size and whole.ndim else ():
                same(file.rows(name, first, last), np.take(whole, range(first, last), axis))
    yield nnr.UpdateDecoder(**options).decode(data)


def check(data: bytes, want: Mapping[str, Array], **options: Any) -> None:
    for got in ways(data, **options):
        assert list(got) == list(want)
        for name in want:
            same(got[name], want[name])


# ------------------------------------------------------------------------------------------------ by hand
F2 = np.array([0.5, -0.75, 0.0, 1.25], np.float16)
HAND: list[tuple[str, str, Any, str | None, Array]] = [
    ("float", '{"code":{"holes":1,"kind":"float","mantissa":1,"pivot":28},"type":"float16"}', [1, -1, 0, -2],
     "00000810", F2),
    ("halves", '{"code":{"kind":"integer","low":32},"type":"int64"}', [-1, 256], "ffffffff05000000",
     np.array([-1, (1 << 40) + 5])),
    ("base", '{"code":{"base":250,"kind":"integer"},"type":"uint8"}', [0, 5, -250], None,
     np.array([250, 255, 0], np.uint8)),
    ("palette", '{"code":{"kind":"palette","offset":1,"values":"AAAAAAAAAAAAvwBA"},"type":"float32"}', [1, 0, -1], None,
     np.array([2, 0, -0.5], np.float32)),
    ("grid", '{"code":{"axis":0,"kind":"grid","scale":"AAAAAACAPz4="},"type":"float32"}', [[3, -1], [1, 3]], None,
     np.array([[1.5, -0.5], [0.25, 0.75]], np.float32)),
    ("cast", '{"type":"uint8"}', [[0, 255]], None, np.array([[0, 255]], np.uint8)),
    ("bool", '{"type":"bool"}', [[0, 1], [1, 1]], None, np.array([[False, True], [True, True]])),
    ("int4", '{"type":"int4"}', [-8, 7], None, np.array([-8, 7], ml_dtypes.int4)),
    ("scalar", '{"shape":[],"type":"int64"}', [-7], None, np.array(-7)),
]  # fmt: skip


@pytest.mark.parametrize(("members", "unit", "bits", "want"), [pytest.param(*h[1:], id=h[0]) for h in HAND])
@pytest.mark.parametrize("deflated", [False, True])
def test_by_hand(members: str, unit: Any, bits: str | None, want: Array, deflated: bool) -> None:
    stream = levels(start(f'{{"nnr_codec":1,"tensors":{{"w":{members}}}}}', deflated=deflated), "w", unit)
    if bits:
        words(stream, "w#bits", bytes.fromhex(bits))
    check(stream.data, {"w": want})


def test_raw_by_hand() -> None:
    record = tensor(code={"kind": "raw"}, shape=[3], type="bool")
    check(words(start(record), "w", b"\1\0\1\0").data, {"w": np.array([True, False, True])})


def test_a_float_type_from_float32() -> None:
    """There is one rounding; bits of a NaN that do not fit the type are lost."""
    values = np.array([1.0, 1 / 3, -0.0, np.inf, 3e38], "<f4")
    data = words(start(tensor(type="bfloat16")), "w", values.tobytes()).data
    check(data, {"w": values.astype(ml_dtypes.bfloat16)})
    for got in (nnr.decode(data, dtype="float32"), streamed(data, dtype="float32")):
        same(got["w"], values)


FLOATS = [stored for stored in STORED_TYPES.values() if stored.kind == "f"]
HOSTILE = np.random.default_rng(5).integers(0, 256, 8 * 60, np.uint8)


def floats(stored: StoredType) -> Array:
    """Draw bit patterns, including NaN with any payload."""
    array: Array = HOSTILE[: 60 * stored.itemsize].view(stored.dtype).reshape(4, 15)
    return array


@pytest.mark.parametrize("stored", FLOATS, ids=lambda stored: stored.name)
@pytest.mark.parametrize("first", ["own", "bits"])
def test_floats(stored: StoredType, first: str) -> None:
    """The two units may have either order."""
    array = floats(stored)
    record = TensorRecord(stored.name, code=FloatCode("w#bits", 3, min(1, stored.mantissa)))
    unit, bits = split(record, array)
    assert bits is not None
    stream = start(SideInfo({"w": record}))
    for part in ("w", "w#bits") if first == "own" else ("w#bits", "w"):
        levels(stream, "w", unit) if part == "w" else words(stream, part, bits.tobytes())
    check(levels(stream, "v", [1]).data, {"w": array, "v": np.array([1], np.int32)})


@pytest.mark.parametrize("stored", STORED_TYPES.values(), ids=lambda stored: stored.name)
def test_raw_and_palettes_of_all_types(stored: StoredType) -> None:
    least, largest = stored.range if stored.kind != "f" else (0, 0)
    values = [least, largest, 1, 0, 1, largest]
    array = floats(stored)[:2] if stored.kind == "f" else np.array(values, object).astype(stored.dtype).reshape(2, 3)
    items = np.unique(array.astype(f"{stored.kind}1") if stored.bits in (2, 4) else array.view(stored.pattern))
    check(
        made(
            {
                "raw": (TensorRecord(stored.name, array.shape, RawCode()), array),
                "palette": (TensorRecord(stored.name, code=PaletteCode(items.tobytes(), 1)), array),
            }
        ),
        {"raw": array, "palette": array},
    )


def test_scalars_and_shapes() -> None:
    """The record has another shape, and rows are the rows of the tensor."""
    table = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    flat = start(SideInfo({"w": TensorRecord("float32", (2, 3, 4)), "b": TensorRecord("float32", ())}))
    words(words(flat, "w", table.tobytes()), "b", np.array([2.5], "<f4").tobytes())
    check(flat.data, {"w": table, "b": np.array(2.5, np.float32)})
    with nnr.open(flat.data) as file, pytest.raises(IndexError, match="no rows"):
        file.rows("b", 0, 0)
    shifted = start(SideInfo({"w": TensorRecord("uint8", (6,))}))
    shifted.ndu(ndu("w", [2, 3], kind=NNR_PT_INT, first_tensor_dimension_shift=1), [[0, 2, 4], [1, 3, 5]])
    check(shifted.data, {"w": np.arange(6, dtype=np.uint8)})


@pytest.mark.parametrize("shift", [0, 1])
def test_rows_of_casts_are_decoded_alone(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).integers(0, 256, (40, 6))
    header = ndu("w", [40, 6], kind=NNR_PT_INT, first_tensor_dimension_shift=shift, scan_order=1)
    data = start(tensor(type="uint8")).ndu(header, values).data
    with nnr.open(data) as file:
        whole = file["w"]
        assert (whole.dtype, file.info["w"].first_tensor_dimension_shift) == (np.dtype(np.uint8), shift)
        monkeypatch.setattr(NnrFile, "__getitem__", None)
        for first, last in ((0, 40), (7, 9), (5, 5)):
            same(file.rows("w", first, last), np.take(whole, range(first, last), shift))
        with pytest.raises(IndexError):
            file.rows("w", 0, 41)


# ------------------------------------------------------------------------------------------------ several tensors
def many() -> tuple[bytes, dict[str, Any]]:
    """Return a bitstream with tensors of all kinds, and these in order."""
    one, empty, ties = np.arange(6, dtype=np.uint8).reshape(2, 3), np.empty((0, 3), np.int64), np.array([1.5, 2], "f4")
    tensors: Tensors = {
        "first": (TensorRecord("int64", (0, 3), index=0), empty),
        "a": (TensorRecord("uint8", code=IntegerCode(3)), one),
        "tied": (TensorRecord(same_as="a", index=2), one),
        "plain": np.array([[5, -5]], np.int32),
        "f": (TensorRecord("float32", code=FloatCode("f#bits", 127)), ties),
        "last": (TensorRecord(same_as="first", index=99), empty),
    }
    want = {
        "first": empty,
        "a": one,
        "tied": one,
        "plain": np.array([[5, -5]], np.int32),
        "f": ties,
        "last": empty,
    }
    return made(tensors, format="npz", metadata={"k": "v"}), want


def test_order_ties_and_empty_tensors() -> None:
    data, want = many()
    check(data, want)
    model = nnr.decode(data)
    assert model["tied"] is model["a"] and model["last"] is model["first"]
    assert model.aliases == {"tied": "a", "last": "first"}
    assert (model.format, model.metadata) == ("npz", {"k": "v"})
    decoder = nnr.StreamDecoder()
    assert not decoder.side
    stream = dict(decoder.feed(data))
    assert (decoder.side.format, decoder.side.metadata) == ("npz", {"k": "v"})
    assert stream["tied"] is stream["a"] and decoder.side.tensors["tied"].same_as == "a"
    with nnr.open(data) as file:
        assert (file.side.format, file.side.metadata) == ("npz", {"k": "v"})
        assert file.decode(names=["tied"]).aliases == {}
        chosen = file.decode(names=["tied", "a", "last"])
        assert list(chosen) == ["a", "tied", "last"]
        assert chosen.aliases == {"tied": "a"}


def test_infos() -> None:
    data, _ = many()
    units = {unit.names[0]: unit.size for unit in nnr.inspect(data) if unit.names}
    info = nnr.open(data).info
    assert list(info) == ["first", "a", "tied", "plain", "f", "last"]
    assert [i.type for i in info.values()] == ["int64", "uint8", "uint8", "int32", "float32", "int64"]
    assert [i.code for i in info.values()] == ["", "integer", "", "", "float", ""]
    assert [i.same_as for i in info.values()] == ["", "", "a", "", "", "first"]
    assert info["f"].nbytes == units["f"] + units["f#bits"]
    assert (info["a"].nbytes, info["tied"].nbytes, info["first"].nbytes) == (units["a"], 0, 0)
    assert (info["first"].parameters, info["first"].bits_per_parameter) == (0, 0)
    assert info["first"].payload_type is None and info["tied"].payload_type is None
    assert info["a"].payload_type == PayloadType.NNR_PT_INT
    for to in ("float16", "float32"):
        assert [i.type for i in nnr.open(data, dtype=to).info.values()][3:5] == ["int32", to]


def test_the_order_is_that_of_first_units_and_places() -> None:
    """The order is defined in docs/reference/side-information.md; a stream returns each tensor as early as possible."""
    records = {name: TensorRecord("int8", (0,), index=k) for name, k in (("e0", 0), ("e3", 3), ("e2", 2), ("e9", 9))}
    records["f"] = TensorRecord("float32", code=FloatCode("f#bits", 127))
    records["before"] = TensorRecord(same_as="z", index=1)
    stream = levels(start(SideInfo(records)), "f", [0, -1])
    levels(levels(stream, "y", [1]), "z", [2])
    data = words(stream, "f#bits", bytes(8)).data
    assert list(nnr.decode(data)) == list(nnr.open(data)) == ["e0", "before", "e2", "e3", "f", "y", "z", "e9"]
    assert list(streamed(data)) == ["e0", "e2", "e3", "y", "z", "before", "f", "e9"]


@given(st.permutations(range(4)), st.integers(0, 15))
def test_any_order_of_units(order: list[int], gone: int) -> None:
    """All ways return the tensors in the order of docs/reference/side-information.md, whatever is missing."""
    data, want = many()
    units = list(nnr.units(data))
    first, rest = units[:3], [units[3 + k] for k in order if not gone >> k & 1]
    ids = [unit.ndu.topology_elem_id for unit in rest]
    cut = nnr.write_units([*first, *rest])
    names = list(dict.fromkeys(name.removesuffix("#bits") for name in ids))
    names = [name for name in names if name != "f" or {"f", "f#bits"} <= set(ids)]
    for name, place in (("first", 0), *((("tied", 2),) if "a" in names else ()), ("last", 99)):
        names.insert(place, name)
    file = nnr.open(cut)
    assert list(file) == list(file.info) == list(file.decode(allow_missing=True)) == names
    got = streamed(cut, 1 << 20, allow_missing=True)
    for name in names:
        same(got.pop(name), want[name])
        same(file[name], want[name])
    assert not got


def test_a_tie_to_a_tensor_that_comes_later() -> None:
    record = SideInfo({"a": TensorRecord(same_as="w", index=0), "b": TensorRecord(same_as="w", index=3)})
    data = levels(levels(start(record), "w", [1, 2]), "v", [3]).data
    assert list(nnr.decode(data)) == ["a", "w", "v", "b"]
    assert list(streamed(data)) == ["w", "a", "v", "b"]


def test_a_model_of_empty_tensors() -> None:
    record = SideInfo({"w": TensorRecord("bool", (0, 1 << 40), index=0), "v": TensorRecord(same_as="w", index=1)})
    empty = np.empty((0, 1 << 40), bool)
    check(start(record).data, {"w": empty, "v": empty})


def test_performance_of_tensors_without_units() -> None:
    """No layer has a performance map here."""
    with nnr.open(many()[0]) as file:
        assert len({repr(file.performance_of(name)) for name in file}) == 1
        with pytest.raises(KeyError):
            file.performance_of("f#bits")


def test_maps_of_layers_are_read_once_for_all_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (PerformanceMaps(SparsificationMap((SparsificationRow(k, 0.5, 0.5),))) for k in (0.5, 0.25))
    b = Bitstream().str_().mps()
    b.ndu(ndu("a", [1]), [1])
    for maps, names in ((one, "bc"), (two, "de"), (one, "fg")):
        b.lps(**maps.elements("lps"))
        for name in names:
            b.ndu(ndu(name, [1]), [1])
    read: list[PerformanceMaps] = []
    monkeypatch.setattr(index, "maps_for", lambda *a, **options: read.append(maps_for(*a, **options)) or read[-1])
    with nnr.open(b.data) as file:
        layers = file.performance_of_layers()
        assert len(read) == 4
        assert layers == {PerformanceMaps(): ["a"], one: ["b", "c", "f", "g"], two: ["d", "e"]}
        assert all(file.performance_of(name) == maps for maps, names in layers.items() for name in names)


def test_progress_tells_of_tensors_of_the_model() -> None:
    data, want = many()
    told: list[str] = []
    file = nnr.open(data)

    def note(name: str, done: int, total: int) -> None:
        told.append(name)
        assert (done, total) == (len(told), count)

    count = len(want)
    file.decode(note)
    assert told == list(want)
    told.clear()
    count = 2
    file.decode(note, names=["f", "tied"])
    assert sorted(told) == ["f", "tied"]
    with pytest.raises(KeyError):
        file.decode(names=["f#bits"])
    with pytest.raises(KeyError):
        file["f#bits"]
    assert "f#bits" not in file


def test_only_units_that_are_needed_are_decoded() -> None:
    data, want = many()
    damaged = bytearray(data)
    unit = next(unit for unit in nnr.inspect(data) if unit.names == ("plain",))
    damaged[unit.offset + unit.size - 1] ^= 0xFF
    file = nnr.open(bytes(damaged))
    names = [name for name in want if name != "plain"]
    for name in names:
        same(file[name], want[name])
    assert list(file.decode(names=names)) == names
    with pytest.raises(nnr.PayloadError, match="'plain'"):
        file.decode()


def test_raw_tensors_equal_the_units() -> None:
    data, want = many()
    model = nnr.decode(data, raw=True)
    assert list(model) == ["a", "plain", "f", "f#bits"]
    np.testing.assert_array_equal(model["a"], want["a"].astype(np.int32) - 3)
    assert (model.aliases, model.metadata, model.format) == ({}, {}, "")
    assert list(nnr.open(data).decode(names=["f"], raw=True)) == ["f", "f#bits"]
    assert list(nnr.UpdateDecoder().decode(data, raw=True)) == ["a", "plain", "f", "f#bits"]
    same(nnr.decode(data, raw=True, dtype="float16")["f#bits"], model["f#bits"])


def test_reference_lists_name_units() -> None:
    array = np.array([1.5, 2], "f4")
    record = TensorRecord("float32", code=FloatCode("w#bits", 127))
    unit, bits = split(record, array)
    assert bits is not None
    stream = Bitstream().str_().mps(indexed=1).reference_list("w", "w#bits")
    stream.topology(SideInfo({"w": record}).to_bytes() + b"\0", storage=128)
    stream.ndu(ndu(0, [2], kind=NNR_PT_INT), unit)
    stream.ndu(ndu(1, [2], kind=NNR_PT_RAW_FLOAT), payload=bits.tobytes())
    check(stream.data, {"w": array})


def test_aggregates_and_parts() -> None:
    array = np.random.default_rng(2).normal(size=(20, 10)).astype(np.float32)
    record = TensorRecord("float32", code=FloatCode("w#bits", 127, 1))
    unit, bits = split(record, array)
    assert bits is not None
    stream = start(SideInfo({"w": record}))
    stream.ndu(ndu("w", array.shape, kind=NNR_PT_INT), unit, pieces=3)
    stream.ndu(ndu("w#bits", bits.shape, kind=NNR_PT_RAW_FLOAT), payload=bits.tobytes(), pieces=2)
    check(stream.aggregate(4).data, {"w": array})


def test_tensors_that_share_a_unit() -> None:
    record = SideInfo({"x": TensorRecord("uint8"), "y": TensorRecord("bool", code=PaletteCode(b"\1\0"))})
    mapping: dict[str, Any] = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]}
    header = ndu(["x", "y"], [2, 2], kind=NNR_PT_INT, **mapping)
    data = start(record).ndu(header, [[200, 1], [0, 1]]).data
    check(data, {"x": np.array([[200, 1]], np.uint8), "y": np.array([[True, False]])})


def test_profile_0_and_the_first_edition() -> None:
    """Both readings apply to units; model tensors are created only when the reading is known."""
    tensors: Tensors = {
        f"w{k}": (TensorRecord("uint8", code=IntegerCode(100)), np.arange(k, k + 40, dtype=np.uint8).reshape(5, 8))
        for k in range(3)
    }
    check(made(tensors, profile=0), {name: item[1] for name, item in tensors.items()})


def test_pruning_is_done_to_units() -> None:
    """A mask sets levels to zero, which the code then interprets; a stream returns nothing before the end."""
    record = tensor(code={"kind": "integer", "base": 100}, type="uint8")
    header = NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN))
    stream = start(record).unit(header, NnrTopologyUnitPayload(pruning=masks(sparse="1001")))
    data = levels(stream, "w", [[1, 2], [3, 4]]).data
    check(data, {"w": np.array([[101, 100], [100, 104]], np.uint8)})
    assert nnr.StreamDecoder().feed(data) == []


def test_pruned_tensors_and_their_ties() -> None:
    """Both have the dimensions of a dictionary, which differ from the topology."""
    record = SideInfo({"t": TensorRecord(same_as="w", index=9)})
    header = NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN))
    stream = start(record).unit(header, NnrTopologyUnitPayload(pruning=dictionary(w=[1, 2])))
    model = nnr.decode(levels(levels(stream, "w", [[1, 2]]), "v", [1]).data)
    assert list(model.pruned) == ["w", "t"]


def test_updates() -> None:
    """Levels are added (9.2.4), and then interpreted as values."""
    record = tensor(code={"kind": "integer", "base": 10}, type="uint8")
    decoder = nnr.UpdateDecoder()
    stream = nnr.StreamDecoder()
    for depth, want in enumerate(([11, 12], [11, 12], [12, 14], [13, 16])):
        header = update_ndu("w", [2], depth, kind=NNR_PT_INT)
        data = start(record, parent=1, pre=1).ndu(header, [1, 2]).data
        expected = np.array(want, np.uint8)
        same(decoder.decode(data)["w"], expected)
        same(dict(stream.feed(data))["w"], expected)


def test_an_update_is_never_incomplete() -> None:
    records = SideInfo(
        {
            "gone": TensorRecord("uint8"),
            "half": TensorRecord("float32", code=FloatCode("half#bits", 127)),
            "tied": TensorRecord(same_as="gone", index=0),
        }
    )
    stream = levels(levels(start(records, parent=1), "half", [1]), "w", [1])
    check(stream.data, {"w": np.array([1], np.int32)})


# ------------------------------------------------------------------------------------------------ dtype
@pytest.mark.parametrize("to", ["float16", "float32"])
def test_floats_of_any_type_as_another(to: str) -> None:
    tensors: dict[str, Any] = {"i": np.array([1 << 30], np.int32)}
    for stored in FLOATS:
        values = np.array([0.5, -1.5, 0.25, np.nan], np.float32).astype(stored.dtype)
        code = FloatCode(f"{stored.name}#bits", 5)
        tensors[stored.name] = TensorRecord(stored.name, code=code), values
        tensors[f"{stored.name}-grid"] = TensorRecord(stored.name, code=_grid(stored)), values[:3]
        tensors[f"{stored.name}-raw"] = TensorRecord(stored.name, (4,), RawCode()), values
        tensors[f"{stored.name}-empty"] = TensorRecord(stored.name, (0, 2), index=len(tensors)), values[:0]
    data, target = made(tensors), np.dtype(to)
    for got in ways(data, dtype=to):
        for name, item in tensors.items():
            if name == "i":
                same(got[name], item)
            elif name.endswith("empty"):
                same(got[name], np.empty((0, 2), target))
            else:
                assert got[name].dtype == target
                np.testing.assert_array_equal(got[name], item[1].astype(np.float64).astype(target))


def _grid(stored: StoredType) -> GridCode:
    return GridCode(np.array(0.25, "<f8" if stored.name == "float64" else "<f4").tobytes())


def test_floats_without_a_record_as_another() -> None:
    """This includes units in float16 and float64; infinities stay, and finite values out of range are rejected."""
    stream = start(None)
    for name, kind in (("h", DecompressedDataFormat.TENSOR_FLOAT16), ("d", DecompressedDataFormat.TENSOR_FLOAT64)):
        stream.ndu(ndu(name, [2], kind=NNR_PT_FLOAT, data_format=kind), [3, -4])
    words(stream, "inf", np.array([np.inf, -np.inf, np.nan], "<f4").tobytes())
    for to in ("float16", "float32"):
        for got in ways(stream.data, dtype=to):
            assert {array.dtype.name for array in got.values()} == {to}
            assert [got["h"].tolist(), got["d"].tolist()] == [[3, -4], [3, -4]]
            np.testing.assert_array_equal(got["inf"], np.array([np.inf, -np.inf, np.nan], to))


@pytest.mark.parametrize("type_", ["float32", "bfloat16", "float64"])
def test_a_value_that_does_not_fit(type_: str) -> None:
    array = np.array([1, 70000], np.float32).astype(STORED_TYPES[type_].dtype)
    record = TensorRecord(type_, (2,), RawCode())
    data = made({"w": (record, array)})
    refused(data, nnr.ElementError, "exceeds the range of float16", unit="unit 3 (NNR_NDU 'w')", dtype="float16")
    with pytest.raises(nnr.ElementError, match=r"unit 3 .*exceeds the range of float16"):
        streamed(data, dtype="float16")
    assert nnr.decode(data, dtype="float32")["w"].tolist() == array.astype("f4").tolist()


@pytest.mark.parametrize("to", ["float8_e5m2", "int8", "", None])
def test_types_that_cannot_be_asked_for(to: Any) -> None:
    for call in (nnr.decode, nnr.open):
        with pytest.raises(ValueError, match="source, float32, float16, bfloat16"):
            call(many()[0], dtype=to)
    with pytest.raises(ValueError, match="source, float32, float16, bfloat16"):
        nnr.StreamDecoder(dtype=to)


@pytest.fixture
def _no_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes._dtype.cache_clear()
    yield
    monkeypatch.undo()
    dtypes._dtype.cache_clear()


def test_without_ml_dtypes(request: pytest.FixtureRequest) -> None:
    """Information is available, and tensors as float32, without the type itself."""
    values = np.array([0.5, -1.5, 0, 7], np.float32)
    narrow = values.astype(ml_dtypes.bfloat16)
    tensors: Tensors = {
        "code": (TensorRecord("bfloat16", code=FloatCode("code#bits", 127)), narrow),
        "palette": (TensorRecord("bfloat16", code=PaletteCode(np.unique(narrow.view("u2")).tobytes())), narrow),
        "raw": (TensorRecord("bfloat16", (4,), RawCode()), narrow),
        "grid": (TensorRecord("bfloat16", code=_grid(STORED_TYPES["bfloat16"])), narrow),
        "cast": (TensorRecord("bfloat16"), values),
        "empty": (TensorRecord("bfloat16", (0,), index=5), narrow[:0]),
        "plain": np.array([1], np.int32),
    }
    data = made(tensors)
    request.getfixturevalue("_no_ml_dtypes")
    with nnr.open(data) as file:
        assert [info.type for info in file.info.values()] == ["bfloat16"] * 6 + ["int32"]
        same(file["plain"], np.array([1], np.int32))
        for name in list(file)[:6]:
            with pytest.raises(nnr.MissingDependencyError, match=r"nnr_codec\[types\]"):
                file[name]
            with pytest.raises(ImportError):
                _ = file.info[name].dtype
    for got in ways(data, dtype="float32"):
        assert list(got) == list(tensors)
        for name in ("code", "palette", "raw", "grid", "cast"):
            same(got[name], values)


# ------------------------------------------------------------------------------------------------ missing tensors
def test_units_that_are_missing() -> None:
    data, want = many()
    units = list(nnr.units(data))
    names = [unit.ndu.topology_elem_id if unit.type_name == "NNR_NDU" else "" for unit in units]
    for gone, lost in (("a", ["a", "tied"]), ("f", ["f"]), ("f#bits", ["f"]), ("plain", [])):
        cut = nnr.write_units([unit for unit, name in zip(units, names, strict=True) if name != gone])
        left = {name: array for name, array in want.items() if name not in [*lost, gone]}
        got = nnr.decode(cut, allow_missing=True)
        assert list(got) == list(left) == list(nnr.open(cut))
        assert list(streamed(cut, allow_missing=True)) == list(left)
        assert all(target in got.tensors for target in got.aliases.values())
        if not lost:
            nnr.decode(cut)
            continue
        for call in (nnr.decode, streamed):
            with pytest.raises(nnr.IncompleteError) as caught:
                call(cut)
            assert set(caught.value.missing) == set(lost)
        with nnr.open(cut) as file:
            for name in lost:
                assert name not in file
                with pytest.raises(KeyError):
                    file[name]


def test_a_tie_to_nothing() -> None:
    data = levels(start(tensor(index=0, same_as="v")), "u", [1]).data
    with pytest.raises(nnr.IncompleteError, match="'w'"):
        nnr.decode(data)
    assert list(nnr.decode(data, allow_missing=True)) == ["u"]


@pytest.mark.parametrize(
    ("record", "lost"),
    [(SideInfo({"ls": TensorRecord("float32")}), "ls"), (SideInfo({"t": TensorRecord(same_as="ls", index=0)}), "t")],
    ids=["itself", "tie"],
)
def test_what_goes_into_a_weight_is_no_tensor(record: SideInfo, lost: str) -> None:
    """A scaling vector has an id, but is not in the model."""
    header = ndu(["weight", "ls"], [2, 2], kind=NNR_PT_BLOCK, compressed_parameter_types=NNR_CPT_LS)
    data = start(record).ndu(header, [1, 2], [[1, 0], [0, 1]], qp=[0, 0]).data
    for call in (nnr.decode, streamed):
        with pytest.raises(nnr.IncompleteError) as caught:
            call(data)
        assert caught.value.missing == (lost,)
        assert list(call(data, allow_missing=True)) == ["weight"]


def test_what_the_metadata_call_an_update_may_lack_tensors_in_every_way() -> None:
    record = SideInfo({"v": TensorRecord("uint8")}, metadata={UPDATE: BITS})
    data = levels(start(record), "w", [1]).data
    for decode in (nnr.decode, streamed, nnr.UpdateDecoder().decode):
        assert list(decode(data)) == ["w"]


# ------------------------------------------------------------------------------------------------ the record's unit
FOREIGN = (b"anything", b"{}", b'{"nnr_codex":1}', b"", b"\0")


@pytest.mark.medium
@pytest.mark.parametrize("data", FOREIGN)
@pytest.mark.parametrize("deflated", [False, True])
def test_units_of_others_are_passed_over(data: bytes, deflated: bool) -> None:
    """Any number of them is ignored anywhere, even if they exceed the size of a record."""
    stream = start(data, deflated=deflated)
    levels(stream, "w", [1]).topology(zlib.compress(bytes(10_000_000)), storage=128, compression=1)
    file = nnr.open(stream.data, limits=Limits(max_side_info_bytes=5))
    assert file.ignored == ["unit 2 (topology_storage_format 128)", "unit 4 (topology_storage_format 128)"]
    assert not file.side
    check(stream.data, {"w": np.array([1], np.int32)})


@pytest.mark.parametrize("compression", [1, 2, 255])
def test_what_cannot_be_read_is_anothers(compression: int) -> None:
    text = b"\xff\xff" if compression == 1 else tensor(type="uint8").encode()
    stream = start(None).topology(text, storage=128, compression=compression)
    check(levels(stream, "w", [1]).data, {"w": np.array([1], np.int32)})


def test_records_where_they_must_not_be() -> None:
    record = zlib.compress(SideInfo({"w": TensorRecord("uint8")}).to_bytes())
    twice = levels(start(SideInfo({"w": TensorRecord("uint8")})).topology(record, storage=128, compression=1), "w", [1])
    refused(twice.data, nnr.ElementError, "second record", unit="unit 3 (NNR_TPL)")
    late = levels(start(None), "v", [1]).topology(record, storage=128, compression=1)
    refused(late.data, nnr.ElementError, "follows tensors", unit="unit 3 (NNR_TPL)")
    parts = start(None).ndu(ndu("w", [2], kind=NNR_PT_INT), [1, 2], pieces=2)
    parts.units.insert(3, start(SideInfo({"w": TensorRecord("uint8")})).units[2])
    refused(parts.data, nnr.ElementError, "follows tensors", unit="unit 3 (NNR_TPL)")


def test_damaged_records() -> None:
    text = zlib.compress(SideInfo({"w": TensorRecord("uint8")}, metadata={"k": "v" * 50}).to_bytes(), 0)
    for bad in (text[:-1], text + b"!", text[:40] + b"?" + text[41:]):
        stream = start(None).topology(bad, storage=128, compression=1)
        refused(levels(stream, "w", [1]).data, nnr.ElementError, None, unit="unit 2 (NNR_TPL)")
    refused(start('{"nnr_codec":1,"x":1}').data, nnr.ElementError, None, unit="unit 2 (NNR_TPL)")


def test_records_are_limited() -> None:
    record = SideInfo({"w": TensorRecord("uint8")}, metadata={"k": "v" * 10_000_000})
    data, size = levels(start(record), "w", [1]).data, len(record.to_bytes())
    assert nnr.decode(data, limits=Limits(max_side_info_bytes=size)).metadata
    for limit in (size - 1, 0):
        error = refused(data, nnr.LimitError, "max_side_info_bytes", limits=Limits(max_side_info_bytes=limit))
        assert "unit 2 (NNR_TPL)" in error.unit


def test_another_version_can_be_listed() -> None:
    data = levels(start('{"nnr_codec":5,"tensors":[]}'), "w", [1, 2]).data
    with nnr.open(data) as file:
        assert file.info["w"].shape == (2,)
        assert file.ignored == ["unit 2 (side information has version 5; only versions up to 4 are supported)"]
        calls: list[Callable[[], object]] = [lambda: file["w"], file.decode, lambda: file.rows("w", 0, 1)]
        calls += [lambda: list(file), lambda: len(file), lambda: "w" in file, lambda: file.get("absent")]
        calls += [lambda: file.decode(names=["absent"]), lambda: file.rows("absent", 0, 1)]
        calls += [lambda: streamed(data), lambda: nnr.UpdateDecoder().decode(data), lambda: nnr.decode(data, jobs=2)]
        for call in calls:
            with pytest.raises(nnr.UnsupportedError, match=r"unit 2 \(NNR_TPL\).*version 5"):
                call()
        same(file.decode(raw=True)["w"], np.array([1, 2], np.int32))
        same(file.decode(raw=True, names=["w"])["w"], np.array([1, 2], np.int32))
    same(nnr.UpdateDecoder().decode(data, raw=True)["w"], np.array([1, 2], np.int32))
    damaged = start('{"nnr_codec":5}').ndu(ndu("w", [2], kind=NNR_PT_INT), payload=b"").data
    with pytest.raises(nnr.UnsupportedError):
        streamed(damaged)
    same(nnr.decode(data, raw=True)["w"], np.array([1, 2], np.int32))


def test_a_model_of_another_version_is_not_empty() -> None:
    """Without tensor units, a record of an unsupported version may still describe tensors."""
    file = nnr.open(start('{"nnr_codec":5,"tensors":{"w":{}}}').data)
    for call in (lambda: list(file), lambda: len(file), lambda: dict(file), file.decode):
        with pytest.raises(nnr.UnsupportedError, match="version 5"):
            call()
    assert not file.info


# ------------------------------------------------------------------------------------------------ hostile units
FLOAT = tensor(code={"kind": "float", "pivot": 127}, type="float32")


def test_units_that_the_record_does_not_want() -> None:
    """They are detected in headers, before anything is decoded."""
    raw = ndu("w", [2], kind=NNR_PT_RAW_FLOAT)
    for record, stream, why in (
        (tensor(type="uint8"), lambda s: words(s, "w", bytes(8)), "2 float32; .* requires 2 of integer type"),
        (tensor(type="bfloat16"), lambda s: levels(s, "w", [1]), "1 int32; side information requires 1 of float type"),
        (tensor(type="uint8", shape=[3]), lambda s: levels(s, "w", [1, 2]), "2 int32; .* 3 of integer type"),
        (
            tensor(code={"kind": "raw"}, type="int64", shape=[3]),
            lambda s: words(s, "w", bytes(20)),
            "5 float32.*6 float32",
        ),
        (tensor(code={"kind": "raw"}, type="int64", shape=[1]), lambda s: levels(s, "w", [1, 2]), "2 int32.*2 float32"),
        (FLOAT, lambda s: s.ndu(raw, payload=bytes(8)), "2 float32.*2 int32"),
        (FLOAT, lambda s: s.ndu(ndu("w", [2]), [1, 1]), "2 float32.*2 int32"),
        (FLOAT, lambda s: s.ndu(ndu("w", [2], kind=NNR_PT_INT, data_format=2), [1, 1]), "2 int8.*2 int32"),
        (FLOAT, lambda s: levels(s, "w#bits", [1]), "not float32 words"),
        (FLOAT, lambda s: s.ndu(ndu("w#bits", [1]), [1]), "not float32 words"),
        (FLOAT, lambda s: s.ndu(ndu("w#bits", [1, 1], kind=NNR_PT_RAW_FLOAT), payload=bytes(4)), "not float32 words"),
        (
            tensor(index=0, same_as="v"),
            lambda s: levels(s, "w", [1]),
            "has a unit, but side information states that it is tied to 'v'",
        ),
        (
            tensor(index=0, shape=[0], type="int8"),
            lambda s: levels(s, "w", [1]),
            "has a unit, but side information states that it is empty",
        ),
    ):
        data = stream(start(record)).data
        refused(data, nnr.ElementError, why, unit="unit 3 (NNR_NDU")
        with pytest.raises(nnr.ElementError, match=why):
            nnr.open(data)


def test_values_that_the_record_does_not_want() -> None:
    """All decoders raise the same error, which names the unit that completes the tensor."""
    cases: list[tuple[str, Callable[[Bitstream], Bitstream], str | None, str]] = [
        (tensor(type="uint8"), lambda s: levels(s, "w", [256]), "range of uint8", "unit 3 (NNR_NDU 'w')"),
        (FLOAT, lambda s: words(levels(s, "w", [1, 1]), "w#bits", bytes(4)), "words", "unit 4 (NNR_NDU 'w#bits')"),
        (FLOAT, lambda s: words(levels(s, "w", [500]), "w#bits", bytes(4)), None, "unit 4 (NNR_NDU 'w#bits')"),
    ]
    for record, stream, why, unit in cases:
        data = levels(stream(start(record)), "v", [1]).data
        error = refused(data, nnr.ElementError, why, unit=unit)
        for call in (partial(nnr.decode, jobs=2), streamed, opened):
            with pytest.raises(nnr.ElementError) as caught:
                call(data)
            assert str(caught.value) == str(error)


def test_the_first_error_of_the_bitstream() -> None:
    """A tensor that cannot be restored precedes a damaged payload."""
    stream = levels(start(tensor(type="uint8")), "w", np.full((100, 100), 300))
    stream.ndu(ndu("v", [100, 100], kind=NNR_PT_INT), payload=b"\xff\xff\xff")
    for jobs in (1, 4):
        refused(stream.data, nnr.ElementError, "range of uint8", jobs=jobs)


# ------------------------------------------------------------------------------------------------ limits
def test_restored_tensors_are_charged() -> None:
    """Units and model tensors are both charged."""
    array = np.zeros((10, 10), np.int64)
    record = TensorRecord("int64", code=IntegerCode(0, 32, "w#bits"))
    data = made({"w": (record, array)})
    need = 400 + 400 + 800
    for call in (nnr.decode, streamed, lambda data, limits: nnr.open(data, limits=limits)["w"]):
        call(data, limits=Limits(max_total_bytes=need))
        with pytest.raises(nnr.LimitError, match=r"unit 4 .*max_total_bytes"):
            call(data, limits=Limits(max_total_bytes=need - 1))
        call(data, limits=Limits(max_tensor_bytes=800))
        with pytest.raises(nnr.LimitError, match="max_tensor_bytes"):
            call(data, limits=Limits(max_tensor_bytes=799))


def test_casts_to_new_memory_are_charged() -> None:
    """A tensor of a separate unit is cast while it is decoded, except by streams."""
    data = words(start(None), "w", bytes(40)).data
    assert nnr.decode(data, limits=Limits(max_total_bytes=40), dtype="float16")
    streamed(data, limits=Limits(max_total_bytes=80), dtype="float16")
    with pytest.raises(nnr.LimitError, match="max_total_bytes"):
        streamed(data, limits=Limits(max_total_bytes=79), dtype="float16")


@pytest.mark.parametrize(("place", "unit"), [(0, 3), (99, 2)])
def test_ties_are_charged(place: int, unit: int) -> None:
    records = {f"t{k}": TensorRecord(same_as="w", index=place + k) for k in range(10)}
    data = levels(start(SideInfo(records)), "w", np.ones(100)).data
    assert len(nnr.decode(data, limits=Limits(max_total_bytes=4400))) == 11
    for call in (nnr.decode, streamed):
        with pytest.raises(nnr.LimitError, match=f"unit {unit} .*max_total_bytes"):
            call(data, limits=Limits(max_total_bytes=4399))


def test_shapes_of_empty_tensors_fit_numpy() -> None:
    record = SideInfo({"w": TensorRecord("float8_e5m2", (0, 1 << 62), index=0)})
    data = start(record).data
    assert nnr.decode(data)["w"].shape == (0, 1 << 62)
    refused(data, nnr.LimitError, "exceeds the limit of numpy", unit="unit 2 (NNR_TPL)", dtype="float32")


def test_expected() -> None:
    """The tensors of the model are the expected ones, with the types to which they decode."""
    data, want = many()
    assert list(nnr.decode(data, limits=Limits(expected=want))) == list(want)
    for name in want:
        rest = {other: array for other, array in want.items() if other != name}
        for call in (nnr.decode, streamed):
            with pytest.raises(nnr.LimitError, match=f"'{name}' is not one of"):
                call(data, limits=Limits(expected=rest))
            for wrong in (((7, 7), want[name].dtype), (want[name].shape, "float64")):
                with pytest.raises(nnr.LimitError, match=r"tensor '\w+' is .*; expected"):
                    call(data, limits=Limits(expected=want | {name: wrong}))
    with pytest.raises(nnr.IncompleteError, match="'more'"):
        nnr.decode(data, limits=Limits(expected=want | {"more": want["a"]}))
    cast = want | {"f": want["f"].astype(np.float16)}
    assert list(nnr.decode(data, limits=Limits(expected=cast), dtype="float16")) == list(want)


def test_words_of_a_tensor_that_is_not_expected() -> None:
    """They may precede the tensor's own unit."""
    data = words(start(FLOAT), "w#bits", bytes(400)).data
    with pytest.raises(nnr.LimitError, match="not one of"):
        nnr.open(data, limits=Limits(expected={"v": ((2,), "float32")}))


def test_expected_of_types_that_are_not_numpys(request: pytest.FixtureRequest) -> None:
    data = words(start(tensor(type="bfloat16")), "w", bytes(8)).data
    request.getfixturevalue("_no_ml_dtypes")
    assert nnr.open(data, limits=Limits(expected={"w": ((2,), "bfloat16")})).info["w"].type == "bfloat16"


# ------------------------------------------------------------------------------------------------ memory
def test_parts_are_dropped_when_the_tensor_is_made() -> None:
    record = TensorRecord("float32", code=FloatCode("w#bits", 127))
    restorer = Restorer(Restoration(SideInfo({"w": record}), "source", Limits()), Budget(Limits()))
    array = np.ones(3, np.float32)
    unit, bits = split(record, array)
    assert bits is not None
    references = sys.getrefcount(unit)
    assert restorer.take("w", unit, "unit 1") == []
    assert sys.getrefcount(unit) == references + 1
    ((name, got),) = restorer.take("w#bits", bits, "unit 2")
    assert (name, sys.getrefcount(unit)) == ("w", references)
    same(got, array)


def test_targets_of_ties_are_released() -> None:
    record = SideInfo({"t": TensorRecord(same_as="w", index=2)})
    restorer = Restorer(Restoration(record, "source", Limits()), Budget(Limits()))
    tensors = {name: np.ones(3, np.float32) for name in "vwx"}
    for name in "vw":
        names = [name for name, _ in restorer.take(name, tensors[name], "unit 1")]
        assert names == {"v": ["v"], "w": ["w", "t"]}[name]
        assert sys.getrefcount(tensors[name]) == sys.getrefcount(tensors["x"])


def test_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(*_: object) -> Array:
        raise MemoryError

    monkeypatch.setattr("nnr_codec.decoder.restore.join", join)
    refused(many()[0], nnr.LimitError, "not enough memory", unit="unit 3 (NNR_NDU 'a')")


def test_memory() -> None:
    """A model needs the memory of its tensors, and of the parts of about one tensor."""
    array = np.arange(1 << 16, dtype=np.int64) << 20
    data = made({f"w{k}": (TensorRecord("int64", code=IntegerCode(0, 32, f"w{k}#bits")), array) for k in range(10)})
    file = nnr.open(data)
    tracemalloc.start()
    try:
        model = file.decode()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(model) == 10
    assert peak < 12 * array.nbytes
