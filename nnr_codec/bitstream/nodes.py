"""Nodes of the syntax tree of a bitstream: syntax elements and structures with position, bits, value and meaning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from bitarray import bitarray


@dataclass(slots=True, eq=False)
class Node:
    """Syntax element or structure.

    Parameters
    ----------
    unit : int
        Number of its unit.
    name, path : str
        Name as printed, with the index of a list entry, and path with the enclosing structures, as in errors; the name
        of a structure that is not an element ends in ``()``.
    descriptor : str
        Descriptor of 6.1.3; for a structure, the name of its table; ``inferred`` for an absent element.
    clause : str
        Clause of the syntax table.
    bit, offset, bits : int
        Position in the unit, position in the bitstream, and size, in bits.
    raw : str
        The bits of an element of up to 64 bits; empty for longer elements and for structures.
    value : object
        int, float, str, bytes or bitarray; None for structures and payloads.
    meaning : str
        Explanation of the value.
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
        """Return the node as a JSON-compatible dict.

        Values are converted to types that every JSON reader preserves: integers of more than 53 bits become hexadecimal
        strings (0x...), bytes hexadecimal strings, flag lists strings of 0 and 1, and inf, -inf and nan strings.
        """
        children = [child.to_dict() for child in self.children]
        fields = {name: getattr(self, name) for name in Node.__slots__}
        return {**fields, "value": plain(self.value), "children": children}

    def walk(self) -> Iterator[Node]:
        """Yield the node and all its descendants, in bit order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def matches(self, pattern: str) -> bool:
        """Return whether the name (with or without index or parentheses) or the path matches a glob."""
        return any(fnmatchcase(name, pattern) for name in (self.name, bare(self.name), self.path))

    def find(self, patterns: Sequence[str]) -> Iterator[Node]:
        """Yield the outermost nodes of this unit that match any of the globs."""
        for child in self.children:
            if isinstance(child, UnitNode):
                continue
            if any(child.matches(pattern) for pattern in patterns):
                yield child
            else:
                yield from child.find(patterns)

    def at(self, offset: int) -> list[Node]:
        """Return the nodes that cover a bit of the bitstream, outermost first; empty if this node does not cover it."""
        if not self.offset <= offset < self.offset + self.bits:
            return []
        return [self, *next(filter(None, (child.at(offset) for child in self.children)), [])]


@dataclass(slots=True, eq=False)
class UnitNode(Node):
    """Unit, ``nnr_unit()``, with additional fields.

    Parameters
    ----------
    type : str
        Identifier of Table 3; empty if the unit ends before its type.
    names : list of str
        Topology element ids of a compressed data unit.
    depth : int
        Number of enclosing aggregates.
    complete : bool
        False for the readable part of a malformed unit.
    """

    type: str = ""
    names: list[str] = field(default_factory=list)
    depth: int = 0
    complete: bool = True

    @property
    def label(self) -> str:
        """Name of the unit in messages."""
        return f"unit {self.unit}{f' ({self.meaning})' if self.meaning else ''}"

    def units(self) -> Iterator[UnitNode]:
        """Yield the unit and all units nested in it."""
        yield self
        for child in self.children:
            if isinstance(child, UnitNode):
                yield from child.units()

    def to_dict(self) -> dict[str, Any]:
        """Return the node as a JSON-compatible dict."""
        return {**Node.to_dict(self), **{name: getattr(self, name) for name in UnitNode.__slots__}}


def bare(name: str) -> str:
    """Return the name without index and parentheses: ``tensor_dimensions`` for ``tensor_dimensions[0]``."""
    return name.partition("[")[0].removesuffix("()")


def plain(value: Any) -> int | float | str | None:
    """Return the value in JSON form, see :meth:`Node.to_dict`."""
    if isinstance(value, bitarray):
        return value.to01()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 53 else hex(value)
    return None if value is None else str(value)
