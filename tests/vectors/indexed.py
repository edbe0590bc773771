"""NNR-SID-620 to 625: an index of units (docs/reference/unit-index.md), written independently of the codec."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence

from .case import Content, invalid, valid
from .recorded import Recorded
from .topologies import stored

EXTENSION, PAYLOAD = "index", 8  # bytes of two floats


def tensors(*names: str) -> Recorded:
    """Return a bitstream of one unit for each tensor."""
    s = Recorded()
    s.start()
    return s.plain(*names)


def headers(*names: str) -> list[bytes]:
    """Return the first bytes of these units, without their payloads."""
    return [unit[:-PAYLOAD] for unit in tensors(*names).units[2:]]


def text(entries: Sequence[bytes]) -> bytes:
    """Return the data of a unit with an index."""
    lengths = [len(entry) for entry in entries]
    packed = stored(struct.pack(f">{len(entries) + 1}I", len(entries), *lengths) + b"".join(entries))
    return b"nnr_codec index 1 " + base64.b85encode(packed) + b"\0"


def indexed(*data: bytes) -> Recorded:
    """Return a bitstream of v and w with units that contain this data."""
    s = Recorded()
    s.start()
    for one in data:
        s.topology(one, storage=130)
    return s.plain("v", "w")


@valid("NNR-SID-620", "an index of two units", "6.4.3.5", "NNR_TPL_UNSP", extension=EXTENSION)
def index() -> Content:
    s = indexed(text(headers("v", "w")))
    return s.gives(s.coded)


def refused(number: int, title: str, error: str, unit: int | None, make: Callable[[], Sequence[bytes]]) -> None:
    """Register a bitstream whose index does not match its units."""
    options = {"requirements": "index", "extension": EXTENSION}

    @invalid(f"NNR-SID-{number}", title, "6.4.3.5", "NNR_TPL_UNSP", error, unit, **options)
    def content() -> Content:
        return indexed(*make()).refused_here()


refused(621, "an index with the name of another tensor", "ElementError", 4, lambda: [text(headers("v", "x"))])
refused(622, "an index without the last unit", "ElementError", 4, lambda: [text(headers("v"))])
refused(623, "an index with a unit more", "TruncatedError", None, lambda: [text(headers("v", "w", "x"))])
refused(624, "an index that is not base 85", "ElementError", 2, lambda: [b"nnr_codec index 1 (not base 85)\0"])


def twice() -> list[bytes]:
    """Return the data of two indexes: the first one lists the second one, which is copied whole."""
    second = text(headers("v", "w"))
    return [text([indexed(second).units[2], *headers("v", "w")]), second]


refused(625, "a second index", "ElementError", 3, twice)
