"""Tests of StreamDecoder: it yields each tensor as soon as its last byte has arrived, for any chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_CPT_DC, NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.limits import Limits
from nnr_codec.model import Array
from nnr_codec.syntax import Reader
from nnr_codec.syntax.structures import NnrAggregateUnitHeader

from ..builder import Bitstream, ndu
from ..interop import BY_ID
from ..test_vectors import options
from ..vectors.few import Case, cases, for_each


def feed(data: bytes, size: int, decoder: nnr.StreamDecoder) -> dict[str, Array]:
    """Return all tensors from chunks of ``size`` bytes."""
    got: dict[str, Array] = {}
    for start in range(0, len(data), size):
        got.update(decoder.feed(data[start : start + size]))
    got.update(decoder.finish())
    return got


@for_each(cases("valid"), "slow")
def test_vectors(case: Case) -> None:
    """The result equals decode() for every vector without predecessors."""
    if len(case.streams) > 1:
        return
    data = case.streams[-1].path.read_bytes()
    want = nnr.decode(data, **options(case), allow_missing=True)
    records = nnr.open(data, **options(case)).side.tensors
    waiting = {name for name, record in records.items() if record.bits or record.same_as}  # for what comes later
    for size in (1, 7, 1 << 20):
        got = feed(data, size, nnr.StreamDecoder(**options(case), allow_missing=True))
        assert [name for name in got if name not in waiting] == [name for name in want if name not in waiting]
        assert got.keys() == want.tensors.keys()
        for name, tensor in got.items():
            assert (tensor.dtype, tensor.shape) == (want[name].dtype, want[name].shape)
            assert tensor.tobytes() == want[name].tobytes()


def test_sequences_of_updates() -> None:
    """A further NNR_STR starts the next bitstream, and updates continue from the bitstreams before."""
    streams = [BY_ID[name] for name in BY_ID if BY_ID[name].before][:3]
    assert streams
    for stream in streams:
        plain, decoder = nnr.UpdateDecoder(), nnr.StreamDecoder()
        got = []
        for data in [*(path.read_bytes() for path in stream.before), stream.data]:
            want = plain.decode(data)
            got = decoder.feed(data)
            assert [name for name, _ in got] == list(want)
            for name, tensor in got:
                np.testing.assert_array_equal(tensor, want[name])
        assert decoder.finish() == []


def test_with_the_last_byte_and_not_before() -> None:
    stream = Bitstream().str_().mps()
    for name in "ab":
        stream.ndu(ndu(name, [20, 10], kind=NNR_PT_INT), np.full((20, 10), ord(name)))
    stream.ndu(ndu("c", [4], kind=NNR_PT_INT), [1, 2, 3, 4]).aggregate(3)  # b and c
    units = list(nnr.units(stream.data))
    ends = {unit.offset + unit.size.nnr_unit_size: unit for unit in units if unit.type_name == "NNR_NDU"}
    assert units[3].type_name == "NNR_AGG"
    decoder = nnr.StreamDecoder()
    for position, byte in enumerate(stream.data, 1):
        got = decoder.feed(bytes([byte]))
        assert [name for name, _ in got] == ([ends[position].ndu.topology_elem_id] if position in ends else [])
    assert decoder.finish() == []


def test_h_completes_g_and_parts_complete_a_tensor() -> None:
    rank = {"compressed_parameter_types": NNR_CPT_DC, "decomposition_rank": 1, "g_number_of_rows": 2}
    stream = (
        Bitstream().str_().mps().ndu(ndu("w", [2, 3], **rank), [[1], [2]]).ndu(ndu("w", [2, 3], **rank), [[1, 2, 3]])
    )
    units = list(nnr.units(stream.data))
    decoder = nnr.StreamDecoder()
    assert decoder.feed(stream.data[: units[-1].offset]) == []
    ((name, tensor),) = decoder.feed(stream.data[units[-1].offset :])
    assert (name, tensor.shape) == ("w", (2, 3))


def test_the_end() -> None:
    data = nnr.encode({"w": np.ones((4, 4), "f4")})
    decoder = nnr.StreamDecoder()
    decoder.feed(data[:-1])
    with pytest.raises(nnr.TruncatedError):
        decoder.finish()
    with pytest.raises(ValueError, match="has ended or failed"):
        decoder.feed(data[-1:])
    with pytest.raises(nnr.ElementError, match="no unit"):
        nnr.StreamDecoder().finish()


def test_missing_tensors_are_reported_at_the_end() -> None:
    stream = Bitstream().str_().mps(indexed=1).reference_list("a", "b", "c")
    stream.ndu(ndu(2, [1], kind=NNR_PT_INT), [5])
    decoder = nnr.StreamDecoder()
    assert [name for name, _ in decoder.feed(stream.data)] == ["c"]
    with pytest.raises(nnr.IncompleteError, match="incomplete: 1 of 3 tensors"):
        decoder.finish()
    assert nnr.StreamDecoder(allow_missing=True).feed(stream.data)


def test_an_error_is_the_same_as_of_decode() -> None:
    data = bytearray(nnr.encode({name: np.arange(64, dtype="f4").reshape(8, 8) for name in "abc"}))
    units = list(nnr.units(bytes(data)))
    data[units[3].offset + units[3].size.nnr_unit_size - 1] ^= 0xFF
    with pytest.raises(nnr.PayloadError) as whole:
        nnr.decode(bytes(data))
    decoder = nnr.StreamDecoder()
    end = units[3].offset + units[3].size.nnr_unit_size
    assert [name for name, _ in decoder.feed(data[: end - 1])] == ["a"]
    with pytest.raises(nnr.PayloadError) as fed:
        decoder.feed(data[end - 1 :])
    assert str(fed.value) == str(whole.value)


def test_memory_is_that_of_one_unit() -> None:
    """Consumed bytes are released."""
    data = nnr.encode({str(k): np.arange(400, dtype="f4").reshape(20, 20) for k in range(50)})
    decoder = nnr.StreamDecoder()
    largest = max(unit.size.nnr_unit_size for unit in nnr.units(data))
    for start in range(0, len(data), 10):
        decoder.feed(data[start : start + 10])
        assert len(decoder._source._content) <= largest + 10


def test_a_bitstream_of_the_first_edition() -> None:
    """No tensor is returned before the reading of a bitstream of profile 0 is known (errata K1, K4)."""
    for name, stream in BY_ID.items():
        if "nncodec-v1" in name or "/nncodec1_" in name:
            got = feed(stream.data, 100, nnr.StreamDecoder())
            for tensor in stream.values:
                np.testing.assert_array_equal(got[tensor], stream.values[tensor])


def test_limits() -> None:
    data = nnr.encode({"w": np.ones((40, 40), "f4")})
    with pytest.raises(nnr.LimitError, match="max_tensor_elements"):
        nnr.StreamDecoder(limits=Limits(max_tensor_elements=100)).feed(data)


def test_an_aggregate_that_is_cut() -> None:
    stream = Bitstream().str_().mps()
    for name in "ab":
        stream.ndu(ndu(name, [4], kind=NNR_PT_INT), [1, 2, 3, 4])
    data = stream.aggregate(2).data
    last = list(nnr.units(data))[-1]
    for cut in range(last.offset, len(data)):
        decoder = nnr.StreamDecoder()
        assert [name for name, _ in decoder.feed(data[:cut])] == ["a"]
        with pytest.raises(nnr.TruncatedError, match="inside an aggregate"):
            decoder.finish()


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "unit", ["00061a000000", *(f"00{n:02x}18" + "00" * (n - 3) for n in range(3, 8)), "8000000518"]
)
def test_an_aggregate_that_ends_before_its_first_unit_is_refused_as_by_decode(unit: str, chunk: int) -> None:
    good = nnr.encode({"a": np.ones((4, 4), np.float32)})
    data = good[:12] + bytes.fromhex(unit) + good[12:]
    with pytest.raises(nnr.TruncatedError) as whole:
        nnr.decode(data)
    with pytest.raises(nnr.TruncatedError) as fed:
        feed(data, chunk, nnr.StreamDecoder())
    assert str(fed.value) == str(whole.value)


@pytest.mark.parametrize("listed", [0, 1])
def test_a_long_header_is_not_read_again_with_each_chunk(listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Bitstream().str_().mps()
    for k in range(300):
        stream.ndu(ndu(str(k), [1], kind=NNR_PT_INT), [k])
    units = list(nnr.units(stream.aggregate(2).data))
    detail = units[2].header.detail
    assert isinstance(detail, NnrAggregateUnitHeader)
    detail.entry_points_present_flag = listed
    data, entries = nnr.write_units(units), 0
    item = Reader.item

    def counting(self: Reader, *arguments: Any) -> None:
        nonlocal entries
        entries += 1
        item(self, *arguments)

    monkeypatch.setattr(Reader, "item", counting)
    assert len(feed(data, 1, nnr.StreamDecoder())) == 300
    assert entries < 10 * 300


def test_chunks_that_are_not_bytes_in_a_row() -> None:
    """Objects without contiguous bytes are rejected and leave the decoder unchanged."""
    data = nnr.encode({"w": np.ones((4, 4), "f4")})
    decoder = nnr.StreamDecoder()
    got = decoder.feed(np.repeat(np.frombuffer(data[:-5], np.uint8), 2)[::2])
    with pytest.raises(TypeError, match="bytes-like"):
        decoder.feed("text")  # type: ignore[arg-type]
    reused = bytearray(data[-5:-1])
    got += decoder.feed(reused)
    reused[:] = b"\xff\xff\xff\xff"
    assert [name for name, _ in [*got, *decoder.feed(data[-1:]), *decoder.finish()]] == ["w"]


@pytest.mark.parametrize("profile", [0, 1])
def test_all_tensors_together_are_limited(profile: int) -> None:
    stream = Bitstream().str_(profile).mps()
    for name in "abc":
        stream.raw(ndu(name, [100], kind=NNR_PT_RAW_FLOAT), np.ones(100))
    assert len(feed(stream.data, 50, nnr.StreamDecoder(limits=Limits(max_total_bytes=1200)))) == 3
    with pytest.raises(nnr.LimitError, match="max_total_bytes"):
        feed(stream.data, 50, nnr.StreamDecoder(limits=Limits(max_total_bytes=1199)))
