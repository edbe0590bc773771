"""Target: bitstreams in the ways of the campaign (:mod:`tests.fuzz.trial`)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable

from ..seeds import Seed, corpus
from ..trial import STATES, WAYS, Kernel, strictly
from .support import harmless


def target(data: bytes) -> None:
    """Read a bitstream in one of the ways, chosen by the bytes."""
    rnd = random.Random(zlib.crc32(data))
    ((call, _),) = rnd.choices(list(WAYS.values()), [share for _, share in WAYS.values()])
    seed = Seed("input", data)
    STATES.prepare(seed, Kernel())
    with harmless(), strictly():
        call(data, seed, rnd)


def seeds() -> Iterable[bytes]:
    """Return the seeds of the campaign, with the bitstreams before them."""
    return (b"".join((*seed.before, seed.data)) for seed in corpus())
