"""T50: malicious indexes of units: counts, sizes and texts; tests/vectors/indexed.py has the contradictions."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

import nnr_codec as nnr
from nnr_codec.limits import Limits

from .support import good, memory, start
from .support import refused as refused_by_decoders

MAGIC = b"nnr_codec index 1 "
HEAD = len(start().data)


def text(data: bytes) -> bytes:
    """Return the data of a unit with these inflated bytes."""
    return MAGIC + base64.b85encode(zlib.compress(data)) + b"\0"


def entries(*copies: bytes, count: int | None = None) -> bytes:
    """Return the inflated data of an index."""
    lengths = [len(copies) if count is None else count, *map(len, copies)]
    return struct.pack(f">{len(lengths)}I", *lengths) + b"".join(copies)


def refused(
    data: bytes, match: str, error: type[nnr.NnrError] = nnr.ElementError, limits: Limits | None = None
) -> None:
    """Check that this data of an index is rejected."""
    bitstream = start().topology(data, storage=130).data + good()[HEAD:]
    with pytest.raises(error, match=match):
        nnr.open(bitstream, limits=limits)


def test_counts_and_sizes() -> None:
    refused(text(b""), "0 entries do not fit its 0 bytes")
    refused(text(entries(count=5)), "5 entries do not fit its 4 bytes")
    refused(text(entries() + b"more"), "its entries have 0 bytes, but 4 follow")
    refused(text(struct.pack(">II", 1, 1 << 31)), "its entries have 2,147,483,648 bytes, but 0 follow")
    refused(text(entries(b"")), "its entry 0 has no unit type")
    refused(text(entries(b"\0\5")), "its entry 0 has no unit type")
    refused(text(entries(b"\0\5\x16" + bytes(3))), "its entry 0 has more bytes than the unit")


def test_texts() -> None:
    refused(MAGIC + b"abc", "does not end with a zero byte")
    refused(MAGIC + b"\x7f\0", "not base 85")
    refused(MAGIC + base64.b85encode(b"damaged") + b"\0", "deflated data is damaged")
    refused(MAGIC + base64.b85encode(zlib.compress(entries()) + b"more") + b"\0", "does not end with its unit")


def test_limits_are_checked_before_work() -> None:
    bomb = text(bytes(300_000_000))
    with memory() as used:
        refused(bomb, "bytes of the index", nnr.LimitError)
    assert used.peak < 60_000_000
    refused(text(bytes(2000)), "bytes of the index", nnr.LimitError, Limits(max_side_info_bytes=1000))
    refused(MAGIC + b"0" * 2000 + b"\0", "bytes of the index: 2,001", nnr.LimitError, Limits(max_side_info_bytes=1000))
    refused(text(entries(count=11)), "units of the index", nnr.LimitError, Limits(max_units=10))


def test_an_index_in_an_aggregate() -> None:
    from ..builder import aggregate

    inner = start().topology(text(entries()), storage=130)
    refused_by_decoders(start().data + aggregate([inner.units[-1], good()[HEAD:]]), nnr.ElementError, "in an aggregate")
