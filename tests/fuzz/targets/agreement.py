"""Target: bitstreams in all ways of decoding, which must agree (:mod:`tests.fuzz.agreement`)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable

from ..agreement import agree
from ..seeds import Seed
from .bitstream import seeds as bitstreams
from .support import harmless


def target(data: bytes) -> None:
    """Decode one or several successive bitstreams in all ways."""
    with harmless():
        agree(data, Seed("input", data), random.Random(zlib.crc32(data)))


def seeds() -> Iterable[bytes]:
    """Return the seeds of the campaign, with the bitstreams before them."""
    return bitstreams()
