"""Target: the side-information record, as JSON in a bitstream, and by itself."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from functools import cache

import nnr_codec as nnr
from nnr_codec.limits import Budget
from nnr_codec.sideinfo.record import SideInfo

from ...hostile_record import HOSTILE, canonical, lossless_model, lossless_update, mutated, record, with_record
from .support import LIMITS, harmless


@cache
def _lossless() -> bytes:
    """Return a small bitstream in which every tensor needs the record."""
    small = {name: tensor[:6] if tensor.ndim else tensor for name, tensor in lossless_model().items()}
    return nnr.encode(small, exact=True)


def target(data: bytes) -> None:
    """Parse a record, and decode a bitstream with it."""
    with harmless():
        found = SideInfo.parse(data, Budget(LIMITS))
        if found:
            assert found.to_bytes() == data
    with harmless():
        nnr.decode(with_record(_lossless(), lambda _: data), limits=LIMITS, allow_missing=bool(zlib.crc32(data) & 1))


def seeds() -> Iterable[bytes]:
    """Return the records of a model and of an update, and hostile changes of them."""
    for text in (record(_lossless()), record(lossless_update())):
        yield text
        for k in range(40):
            yield mutated(text, random.Random(k))
    yield from map(canonical, HOSTILE[-4:])
