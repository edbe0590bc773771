"""What of a serialized ModelProto is replaced when its tensors are taken out, or put in: ranges of its bytes.

All else is copied, known or unknown, so that a model comes back as it was. The lengths of the messages around what is
replaced are written again, in as few bytes as they have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from ..protobuf import LENGTH, message, varint
from .tensor import Items

# Fields of a TensorProto.
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14


class Place(NamedTuple):
    """Where the items of a tensor are: in this file (``location`` is empty), or in another one beside it."""

    location: str
    start: int
    nbytes: int


class Length(NamedTuple):
    """The length of a message: ``start`` and ``stop`` of itself, and ``end`` of the message."""

    start: int
    stop: int
    end: int


class Slot(NamedTuple):
    """A tensor whose items are taken out: the field that holds them, or the first that tells where they are.

    Parameters
    ----------
    start, stop : int
        The range of that field.
    name : str
        Of the tensor in the model.
    items : Items
    place : Place or None
        Where they are; None where they have been taken out.
    external : bool
        They are not in the model's own file.
    located : bool
        There is a :class:`Location`.
    dims : tuple of (int, int)
        The ranges of the fields that say the shape.
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
    """The field data_location of the tensor of a slot."""

    start: int
    stop: int
    slot: Slot


@dataclass(frozen=True)
class Other:
    """A range that is replaced by ``data``."""

    start: int
    stop: int
    data: bytes


Patch = Length | Slot | Location | Other


class Part(NamedTuple):
    """What stands in place of a patch: ``head``, and then ``nbytes`` of items."""

    head: bytes
    nbytes: int = 0


@dataclass(frozen=True)
class Layout:
    """The bytes of a model, ``size`` in all, and what is replaced of them, in order."""

    size: int
    patches: list[Patch] = field(default_factory=list)

    @property
    def slots(self) -> list[Slot]:
        """The tensors that are taken out, in order."""
        return [patch for patch in self.patches if isinstance(patch, Slot)]

    def emptied(self) -> list[Part]:
        """What stands in place of the patches when all items are taken out; lengths are still to be composed."""
        return [_emptied(patch) for patch in self.patches]

    def composed(self, parts: Sequence[Part]) -> tuple[list[Part], int]:
        """The same parts with the lengths that they make, and the size of all."""
        found, patches = list(parts), self.patches
        starts = [patch.start for patch in patches]
        growth = [0] * (len(patches) + 1)  # of all from there on
        for place in range(len(patches) - 1, -1, -1):
            patch = patches[place]
            if isinstance(patch, Length):
                inner = growth[place + 1] - growth[bisect_left(starts, patch.end, place + 1)]
                found[place] = Part(varint(patch.end - patch.stop + inner))
            head, nbytes = found[place]
            growth[place] = growth[place + 1] + len(head) + nbytes - (patch.stop - patch.start)
        return found, self.size + growth[0]

    def joined(self, read: Callable[[int, int], bytes], parts: Sequence[Part]) -> Iterator[tuple[bytes, Patch | None]]:
        """The bytes, of which ``read`` gives ranges, in order; after each, items of a patch may follow."""
        at = 0
        for patch, part in zip(self.patches, parts, strict=True):
            yield read(at, patch.start) + part.head, patch
            at = patch.stop
        yield read(at, self.size), None


@cache
def _empty(number: int) -> Part:
    """A field without items."""
    return Part(message(number, b""))


def _emptied(patch: Patch) -> Part:
    match patch:
        case Slot(external=external, items=items):
            return _empty(_EXTERNAL_DATA if external else items.field)
        case Location(slot=slot):
            return located(slot, slot.external)
        case Other(data=data):
            return Part(data)
    return Part(b"")


def located(slot: Slot, external: bool) -> Part:
    """What the field data_location becomes."""
    # What was not said of an external tensor, that its data are here, need not be said.
    there = external or not slot.external
    return Part(varint(_DATA_LOCATION << 3) + varint(int(external)) if there else b"")


def inside(slot: Slot, nbytes: int) -> Part:
    """A slot with so many bytes of items in the model's own file."""
    return Part(varint(slot.items.field << 3 | LENGTH) + varint(nbytes), nbytes)


def outside(slot: Slot, location: str, offset: int, nbytes: int) -> Part:
    """A slot with its items in another file."""
    told = (("location", location), ("offset", str(offset)), ("length", str(nbytes)))
    texts = (message(1, key.encode()) + message(2, text.encode()) for key, text in told)
    head = b"".join(message(_EXTERNAL_DATA, text) for text in texts)
    return Part(head if slot.located else head + located(slot, True).head)
