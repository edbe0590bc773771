"""Target: tables of clause 6.3, whose structures are written as the bits that were read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from random import Random

from nnr_codec.syntax import TABLES, BitReader, BitWriter, Reader, Writer

from ...syntax.samples import random_session, sample, write
from .support import LIMITS, harmless

ORDER = list(TABLES.values())


def target(data: bytes) -> None:
    """Read a table selected by the first byte, in a session selected by the second, from the other bits."""
    if len(data) < 2:
        return
    table, session = ORDER[data[0] % len(ORDER)], random_session(Random(data[1]))
    with harmless():
        source = BitReader(data[2:], limits=LIMITS)
        structure = Reader(session, source).read(table)
        bits = BitWriter()
        Writer(session, bits).write(structure)
        assert bits.pos == source.pos
        again = Reader(session, BitReader(bits.getvalue(), limits=LIMITS)).read(table)
        assert again == structure


def seeds() -> Iterable[bytes]:
    """Return some structures of each table."""
    for k, name in enumerate(TABLES):
        for seed in range(4):
            structure, session = sample(name, seed)
            yield bytes([k, zlib.crc32(name.encode()) % 256]) + write(structure, session)
