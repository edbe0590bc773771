"""T34: topology and quantization data that is deflated."""

from __future__ import annotations

import zlib

import pytest

import nnr_codec as nnr
from nnr_codec.limits import Limits

from .checks import pins
from .support import memory, refused, start

DECODE = "decoder/decode.py"


def deflated(zeros: int) -> bytes:
    """A mebibyte deflates to a kilobyte."""
    return zlib.compress(zeros * b" " + b"\0", 9)


@pins(DECODE, "inflater.decompress(data, min(room, Limits.NONE - 1) + 1)", "inflater.decompress(data)")
def test_t34_a_bomb() -> None:
    bomb = start().topology(deflated(100 << 20), compression=1).data
    assert len(bomb) < 1 << 17
    with memory() as used:
        refused(bomb, nnr.LimitError, "max_topology_bytes", limits=Limits(max_topology_bytes=1 << 20))
    assert used.peak < 4 << 20


@pins(DECODE, 'self.budget.charge("max_topology_bytes", len(data), "topology and quantization data")', "pass")
@pytest.mark.parametrize("compression", [0, 1])
def test_t34_many_topologies(compression: int) -> None:
    """Each is within the limit."""
    stream, text = start(), 999 * b" " + b"\0"
    for _ in range(4):
        stream.topology(zlib.compress(text) if compression else text, compression=compression)
    stream.quantization(zlib.compress(text) if compression else text, compression=compression)
    assert nnr.decode(stream.data, limits=Limits(max_topology_bytes=5000)).topology
    refused(stream.data, nnr.LimitError, "max_topology_bytes", limits=Limits(max_topology_bytes=4999))


GOOD = deflated(500)
DICTIONARY = zlib.compressobj(zdict=b"graph")


@pins(DECODE, "if not inflater.eof or inflater.unused_data:")
@pytest.mark.parametrize(
    "data", [GOOD[:-1], GOOD[:-4], GOOD + b"\0", GOOD + GOOD], ids=["cut", "no sum", "zero", "two"]
)
def test_t34_data_that_does_not_end_with_its_unit(data: bytes) -> None:
    refused(start().topology(data, compression=1).data, nnr.ElementError, "does not end with its unit")


@pins(DECODE, "except zlib.error as error:", "except ZeroDivisionError as error:")
@pytest.mark.parametrize(
    "data",
    [
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
        DICTIONARY.compress(b"graph\0") + DICTIONARY.flush(),
        zlib.compress(b"\0")[2:],
        b"\x78\x9c\xff",
    ],
    ids=["sum", "dictionary", "no header", "block type"],
)
def test_t34_damaged_data(data: bytes) -> None:
    refused(start().topology(data, compression=1).data, nnr.ElementError, "deflated data is damaged")
