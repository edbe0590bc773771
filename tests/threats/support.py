"""Malicious bitstreams, and counts of operations while they are rejected."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.limits import Limits
from nnr_codec.syntax import compiled

from ..builder import Bitstream, ndu
from ..decoder.support import refused

STRICT = Limits.strict()

#: The second byte of a unit's header: nnr_unit_type and independently_decodable_flag 1.
NDU, AGG, RESERVED = 0x16, 0x1A, 0x1E


def start(profile: int = 1) -> Bitstream:
    """Return NNR_STR and NNR_MPS."""
    return Bitstream().str_(profile).mps()


def good(name: str = "w") -> bytes:
    """Return a bitstream of one tensor."""
    return start().ndu(ndu(name, [2], kind=NNR_PT_INT), [3, -4]).data


def unit(body: bytes, head: int = RESERVED) -> bytes:
    """Return a unit with any content."""
    return (len(body) + 3).to_bytes(2, "big") + bytes([head]) + body


@dataclass
class Memory:
    """Peak number of allocated bytes beyond the allocation before; known after the block."""

    peak: int = 0


@contextmanager
def memory() -> Iterator[Memory]:
    """Measure allocated memory, touched or not, including numpy's arrays and zlib's output."""
    found = Memory()
    nnr.decode(good())  # first imports are not counted, and no function is generated from a table meanwhile
    often, compiled.OFTEN = compiled.OFTEN, 1 << 62
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield found
    finally:
        found.peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        compiled.OFTEN = often


__all__ = ["AGG", "NDU", "RESERVED", "STRICT", "good", "memory", "refused", "start", "unit"]
