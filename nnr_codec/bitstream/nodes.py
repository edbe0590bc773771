"""The nodes of a bitstream's tree: syntax elements and structures with their place, bits, value and meaning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from bitarray import bitarray


@dataclass(slots=True, eq=False)
class Node:
    """A syntax element or structure.

    Parameters
    ----------
    unit : int
        Number of its unit.
    name, path : str
        As printed, with the index of a list's entry, and with the structures around it as errors have them; a
        structure that is no element itself ends in ``()``.
    descriptor : str
        Of 6.1.3; the table of a structure; ``inferred`` for an element that is not present.
    clause : str
        Of the table that it stands in, or that it is.
    bit, offset, bits : int
        First bit in the unit, first bit in the bitstream, number of bits.
    raw : str
        The bits, where they are at most 64; else and for structures empty.
    value : object
        int, float, str, bytes or bitarray; None for structures and payloads.
    meaning : str
        What the value stands for.
    children : list of Node
    """

    unit: int
    name: str
    path: str
    descriptor: str
    clause: str
    bit: int
    offset: int
    bits: int = 0
    raw: str = ""
    value: Any = None
    meaning: str = ""
    children: list[Node] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The node for JSON.

        The fields, with values that every JSON reader keeps: whole numbers of more than 53 bits in hexadecimal (0x...),
        bytes in hexadecimal, runs of flags as 0 and 1, and numbers that are not finite (inf, -inf, nan) are strings.
        """
        children = [child.to_dict() for child in self.children]
        fields = {name: getattr(self, name) for name in Node.__slots__}
        return {**fields, "value": plain(self.value), "children": children}

    def walk(self) -> Iterator[Node]:
        """The node and all below it, in the order of the bits."""
        yield self
        for child in self.children:
            yield from child.walk()

    def matches(self, pattern: str) -> bool:
        """Whether the name (with or without index or parentheses) or the path matches a glob."""
        return any(fnmatchcase(name, pattern) for name in (self.name, bare(self.name), self.path))

    def find(self, patterns: Sequence[str]) -> Iterator[Node]:
        """The outermost nodes of this unit that match any of the globs."""
        for child in self.children:
            if isinstance(child, UnitNode):
                continue
            if any(child.matches(pattern) for pattern in patterns):
                yield child
            else:
                yield from child.find(patterns)

    def at(self, offset: int) -> list[Node]:
        """The nodes that cover a bit of the bitstream, outermost first; empty when this one does not."""
        if not self.offset <= offset < self.offset + self.bits:
            return []
        return [self, *next(filter(None, (child.at(offset) for child in self.children)), [])]


@dataclass(slots=True, eq=False)
class UnitNode(Node):
    """A unit, ``nnr_unit()``: a Node that also has

    Parameters
    ----------
    type : str
        Identifier of Table 3; empty when the unit ends before it.
    names : list of str
        Topology element ids of a compressed data unit.
    depth : int
        Aggregates around it.
    complete : bool
        False for what could be read of a malformed unit.
    """

    type: str = ""
    names: list[str] = field(default_factory=list)
    depth: int = 0
    complete: bool = True

    @property
    def label(self) -> str:
        """What messages call the unit."""
        return f"unit {self.unit}{f' ({self.meaning})' if self.meaning else ''}"

    def units(self) -> Iterator[UnitNode]:
        """The unit and those in it."""
        yield self
        for child in self.children:
            if isinstance(child, UnitNode):
                yield from child.units()

    def to_dict(self) -> dict[str, Any]:
        """The node for JSON."""
        return {**Node.to_dict(self), **{name: getattr(self, name) for name in UnitNode.__slots__}}


def bare(name: str) -> str:
    """The name without index and parentheses: ``tensor_dimensions`` for ``tensor_dimensions[0]``."""
    return name.partition("[")[0].removesuffix("()")


def plain(value: Any) -> int | float | str | None:
    """The value as JSON has it, see :meth:`Node.to_dict`."""
    if isinstance(value, bitarray):
        return value.to01()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 53 else hex(value)
    return None if value is None else str(value)
