"""Bitstreams, in all ways of decoding, which agree (:mod:`tests.fuzz.agreement`)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable

from ..agreement import agree
from ..seeds import Seed
from .bitstream import seeds as bitstreams
from .support import harmless


def target(data: bytes) -> None:
    """Decode a bitstream, or several, one after another, in all ways."""
    with harmless():
        agree(data, Seed("input", data), random.Random(zlib.crc32(data)))


def seeds() -> Iterable[bytes]:
    """Those of the campaign, with those before them."""
    return bitstreams()
