"""Byte ranges of a serialized ModelProto that are replaced when its tensors are removed or inserted.

All other bytes, including unknown fields, are copied, so that a model is restored exactly. The lengths of enclosing
messages are rewritten in the minimum number of bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from ..protobuf import LENGTH, message, varint
from .tensor import Items

# Field numbers of TensorProto.
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14


class Place(NamedTuple):
    """Location of the items of a tensor: in this file (``location`` is empty), or in another file."""

    location: str
    start: int
    nbytes: int


class Length(NamedTuple):
    """Length field of a message: its range ``start`` to ``stop``, and ``end`` of the message."""

    start: int
    stop: int
    end: int


class Slot(NamedTuple):
    """Tensor whose items are removed: the field with its items, or the first field with their location.

    Parameters
    ----------
    start, stop : int
        Byte range of that field.
    name : str
        Name of the tensor in the model.
    items : Items
    place : Place or None
        Location of the items; None if they were removed.
    external : bool
        True if the items are in another file.
    located : bool
        True if there is a :class:`Location`.
    dims : tuple of (int, int)
        Byte ranges of the fields with the shape.
    """

    start: int
    stop: int
    name: str
    items: Items
    place: Place | None
    external: bool
    located: bool
    dims: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Location:
    """Field data_location of the tensor of a slot."""

    start: int
    stop: int
    slot: Slot


@dataclass(frozen=True)
class Other:
    """Range that is replaced by ``data``."""

    start: int
    stop: int
    data: bytes


Patch = Length | Slot | Location | Other


class FilePart(NamedTuple):
    """Replacement of a patch: ``head``, followed by ``nbytes`` of items."""

    head: bytes
    nbytes: int = 0


@dataclass(frozen=True)
class Layout:
    """Bytes of a model, ``size`` in total, and the patches in order."""

    size: int
    patches: list[Patch] = field(default_factory=list)

    @property
    def slots(self) -> list[Slot]:
        """Removed tensors, in order."""
        return [patch for patch in self.patches if isinstance(patch, Slot)]

    def emptied(self) -> list[FilePart]:
        """Return the replacements for a model without items; lengths are computed by :meth:`composed`."""
        return [_emptied(patch) for patch in self.patches]

    def composed(self, parts: Sequence[FilePart]) -> tuple[list[FilePart], int]:
        """Return the parts with updated length fields, and the total size."""
        found, patches = list(parts), self.patches
        starts = [patch.start for patch in patches]
        growth = [0] * (len(patches) + 1)  # growth from each patch to the end
        for place in range(len(patches) - 1, -1, -1):
            patch = patches[place]
            if isinstance(patch, Length):
                inner = growth[place + 1] - growth[bisect_left(starts, patch.end, place + 1)]
                found[place] = FilePart(varint(patch.end - patch.stop + inner))
            head, nbytes = found[place]
            growth[place] = growth[place + 1] + len(head) + nbytes - (patch.stop - patch.start)
        return found, self.size + growth[0]

    def joined(
        self, read: Callable[[int, int], bytes], parts: Sequence[FilePart]
    ) -> Iterator[tuple[bytes, Patch | None]]:
        """Yield the bytes in order, read with ``read``; each range may be followed by items of a patch."""
        at = 0
        for patch, part in zip(self.patches, parts, strict=True):
            yield read(at, patch.start) + part.head, patch
            at = patch.stop
        yield read(at, self.size), None


@cache
def _empty(number: int) -> FilePart:
    """Return a field without items."""
    return FilePart(message(number, b""))


def _emptied(patch: Patch) -> FilePart:
    match patch:
        case Slot(external=external, items=items):
            return _empty(_EXTERNAL_DATA if external else items.field)
        case Location(slot=slot):
            return located(slot, slot.external)
        case Other(data=data):
            return FilePart(data)
    return FilePart(b"")


def located(slot: Slot, external: bool) -> FilePart:
    """Return the replacement of the field data_location."""
    # For an external tensor, the default value, which means the model's own file, can be omitted.
    there = external or not slot.external
    return FilePart(varint(_DATA_LOCATION << 3) + varint(int(external)) if there else b"")


def inside(slot: Slot, nbytes: int) -> FilePart:
    """Return a slot with ``nbytes`` of items in the model's own file."""
    return FilePart(varint(slot.items.field << 3 | LENGTH) + varint(nbytes), nbytes)


def outside(slot: Slot, location: str, offset: int, nbytes: int) -> FilePart:
    """Return a slot with its items in another file."""
    entries = (("location", location), ("offset", str(offset)), ("length", str(nbytes)))
    texts = (message(1, key.encode()) + message(2, text.encode()) for key, text in entries)
    head = b"".join(message(_EXTERNAL_DATA, text) for text in texts)
    return FilePart(head if slot.located else head + located(slot, True).head)
