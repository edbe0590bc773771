"""Bounds under Limits.strict(), measured as allocated bytes and loop iterations."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.limits import Budget

from ..builder import codebook, ndu
from .support import STRICT, memory, start, unit

pytestmark = pytest.mark.medium


def stream_decoder(data: bytes, **options: Any) -> None:
    """Feed a StreamDecoder."""
    decoder = nnr.StreamDecoder(**options)
    for k in range(0, len(data), 1 << 16):
        decoder.feed(data[k : k + (1 << 16)])
    decoder.finish()


def update_decoder(data: bytes, **options: Any) -> None:
    """Decode an update."""
    nnr.UpdateDecoder(**options).decode(data)


Read = Callable[..., object]
DECODERS: list[Read] = [nnr.decode, nnr.open, stream_decoder, update_decoder]
READERS: list[Read] = [*DECODERS, nnr.inspect, lambda data, **options: list(nnr.units(data, **options))]


def names(readers: list[Read]) -> pytest.MarkDecorator:
    """Return the names of the parameter ``read`` of a test."""
    return pytest.mark.parametrize("read", [pytest.param(r, id=r.__name__.strip("<>")) for r in readers])


class Counted:
    """Number of units that were read."""

    units = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Count the units that are read while the test runs."""
    counts, following = Counted(), UnitReader.next

    def next_unit(reader: UnitReader) -> object:
        counts.units += 1
        return following(reader)

    monkeypatch.setattr(UnitReader, "next", next_unit)
    return counts


@names(DECODERS)
def test_a_unit_of_30_bytes_that_declares_four_tebibytes(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its levels need no bins, because their codebook has one entry."""
    header = ndu("w", [1 << 20, 1 << 20], codebook_present_flag=1, codebook=codebook([0], 0))
    stream = start().ndu(header, payload=bytes(3))
    assert len(stream.units[-1]) <= 30
    paid: list[int] = []
    charge = Budget.charge

    def counting(budget: Budget, name: str, amount: int, what: str) -> None:
        charge(budget, name, amount, what)
        paid.append(amount)

    monkeypatch.setattr(Budget, "charge", counting)
    with memory() as used, pytest.raises(nnr.LimitError, match=r"max_tensor_elements=16,777,216"):
        read(stream.data, limits=STRICT)
    assert used.peak < 300_000
    assert max(paid) < 100


DECOMPRESSOBJ = zlib.decompressobj


class Inflater:
    """Zlib decompressor that counts the output of all decompressors."""

    made = 0

    def __init__(self) -> None:
        self.inner = DECOMPRESSOBJ()

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        """See zlib."""
        out = self.inner.decompress(data, max_length)
        Inflater.made += len(out)
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def deflated_zeros(mebibytes: int) -> bytes:
    """Return RFC 1950 data of this number of mebibytes, all of the same block."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflater.compress(bytes(1 << 20)) + deflater.flush(zlib.Z_FULL_FLUSH)
    checksum = ((mebibytes << 20) % 65521) << 16 | 1
    return b"\x78\xda" + mebibytes * block + deflater.flush() + checksum.to_bytes(4, "big")


@names(DECODERS)
def test_a_topology_of_a_gibibyte(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zlib.decompress(deflated_zeros(3)) == bytes(3 << 20)
    data = start().topology(deflated_zeros(1024), compression=1).data
    assert len(data) < 2 << 20
    monkeypatch.setattr(zlib, "decompressobj", Inflater)
    monkeypatch.setattr(Inflater, "made", 0)
    with memory() as used, pytest.raises(nnr.LimitError, match="max_topology_bytes"):
        read(data, limits=STRICT)
    assert Inflater.made == STRICT.max_topology_bytes + 1
    assert used.peak < 4 * len(data) + 2 * Inflater.made


@names(READERS)
def test_a_million_empty_units(read: Read, counted: Counted) -> None:
    data = start().data + 1_000_000 * unit(b"")
    with memory() as used, pytest.raises(nnr.LimitError, match="max_units=2,000"):
        read(data, limits=replace(STRICT, max_units=2000))
    assert counted.units <= 2_100
    assert used.peak < 20 << 20


@cache
def nested(depth: int) -> bytes:
    """Return aggregates in aggregates, each with an empty unit after its inner aggregate."""
    heads, size = [], 14 * depth
    for _ in range(depth):
        heads.append((1 << 31 | size).to_bytes(4, "big") + b"\x1a" + bytes(6))
        size -= 14
    return start().data + b"".join(heads) + depth * unit(b"")


@names(READERS)
def test_a_million_nested_units(read: Read, counted: Counted) -> None:
    data = nested(1_000_000)
    with memory() as used, pytest.raises(nnr.LimitError, match="max_agg_depth=4"):
        read(data, limits=STRICT)
    assert counted.units <= 20
    assert used.peak < 20 << 20


@names(READERS)
@pytest.mark.parametrize("size", [b"\0\0", b"\x80\0\0\0"], ids=["short", "long"])
def test_a_unit_of_no_bytes(read: Read, size: bytes, counted: Counted) -> None:
    with pytest.raises(nnr.ElementError, match="nnr_unit_size is 0"):
        read(start().data + size + 100_000 * b"\x1e", limits=STRICT)
    assert counted.units <= 3
