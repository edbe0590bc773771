"""Syntax tree of a bitstream: position, bits, value and meaning of each syntax element.

All commands that print a bitstream render these nodes. The leaves of a unit cover each of its bits exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..constants import NNR_AGG, NNR_NDU, NNR_PT_RAW_FLOAT
from ..errors import MissingReferenceError, NnrError, TruncatedError
from ..rules import Requirement
from ..syntax import TABLES, BitWriter, Descriptor, Session, Structure
from ..syntax.docs import CLASSES, meaning_of, value_meaning
from ..syntax.structures import NnrUnitHeader, NnrUnitSize
from .nodes import Node, UnitNode, bare
from .summary import side_information
from .units import PAYLOADS, Unit, UnitReader, unit_type_name

Event = tuple[str, Descriptor, int, int, Any]

#: Maximum number of bits shown in ``raw``; for longer elements the value is sufficient.
RAW_BITS = 64
#: Maximum number of bytes of side information shown.
SIDE_BYTES = 4096


def trees(
    reader: UnitReader,
    *,
    select: Callable[[UnitNode], bool] | None = None,
    inferred: bool = False,
    inside: Callable[[Unit, Node], None] | None = None,
) -> Iterator[UnitNode]:
    """Yield a tree for each unit in order; the units of an aggregate are children of its node.

    Parameters
    ----------
    reader : UnitReader
        A reader at the start of a bitstream; its trace is replaced.
    select : callable
        Selects the units to yield; units nested in a selected unit are included.
    inferred : bool
        Add absent elements that have an inferred value.
    inside : callable
        Called with each unit and the node of its payload (its last child), to add nodes. Nodes may be added until the
        unit after the next one is read.

    Raises
    ------
    BitstreamError, MissingReferenceError
        The bitstream is malformed; raised after the readable part was yielded.
    """
    events: list[Event] = []
    reader.trace = lambda *event: events.append(event)
    if not reader.source.size:
        raise TruncatedError("the bitstream is empty", rule=Requirement.START_UNIT)
    around: list[UnitNode] = []  # selected units that are not complete yet, each nested in the previous one
    aggregates: list[int] = []  # ends of the enclosing aggregates
    index = 0
    try:
        for unit in reader:
            node = _Builder(unit.index, unit.offset, events).whole(unit, _names(unit, reader.session), inferred)
            events.clear()
            index = unit.index + 1
            if unit.header.nnr_unit_type == NNR_AGG:
                aggregates.append(unit.offset + unit.size.nnr_unit_size)
            if inside:
                inside(unit, node.children[-1])
            yield from _close(around, node.depth)
            _add(around, node, select)
    except NnrError:
        for node in around:
            node.complete = 8 * reader.position >= node.offset + node.bits
        if events:
            depth = sum(reader.position < end for end in aggregates)
            node = _Builder(index, reader.position, events).partial(depth)
            yield from _close(around, depth)
            _add(around, node, select)
        yield from _close(around, 0)
        raise
    yield from _close(around, 0)


def _close(around: list[UnitNode], depth: int) -> Iterator[UnitNode]:
    """Close the units that do not enclose this depth; yield the outermost one."""
    while around and around[-1].depth >= depth:
        node = around.pop()
        if not around:
            yield node


def _add(around: list[UnitNode], node: UnitNode, select: Callable[[UnitNode], bool] | None) -> None:
    if around:
        around[-1].children.append(node)
    if around or select is None or select(node):
        around.append(node)


def _names(unit: Unit, session: Session) -> list[str]:
    if unit.header.nnr_unit_type != NNR_NDU:
        return []
    try:
        return session.names(unit.ndu)
    except MissingReferenceError:
        return []


class _Builder:
    """Builder of the tree of one unit from trace events."""

    def __init__(self, index: int, offset: int, events: list[Event]) -> None:
        self.root = UnitNode(index, "nnr_unit()", "nnr_unit()", "nnr_unit()", "6.3.1", 0, 8 * offset)
        self.nodes: dict[str, tuple[Node, type[Structure]]] = {}  # structures by path
        self.structures: dict[str, Structure] = {}
        self.unit_type = -1
        for event in events:
            self._event(*event)
        for node, _ in reversed(self.nodes.values()):  # inner nodes first
            node.bits = sum(child.bits for child in node.children)

    def whole(self, unit: Unit, names: list[str], inferred: bool) -> UnitNode:
        """Return the tree of a unit that was read completely."""
        root, size = self.root, 8 * unit.size.nnr_unit_size
        root.type, root.names, root.depth, root.bits = unit.type_name, names, unit.depth, size
        root.meaning = " ".join([unit.type_name, *(repr(name) for name in names[:1])])
        rest = size - 8 * unit.payload_offset
        if rest and not unit.structure and unit.header.nnr_unit_type != NNR_AGG:
            name, clause, descriptor = "nnr_unit_payload()", "6.3.4.1", "bs(v)"
            if unit.header.nnr_unit_type == NNR_NDU:
                name, clause = "nnr_compressed_data_unit_payload()", "6.3.4.7"
                raw = unit.ndu.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT
                descriptor = "flt(32)" if raw else "ae(v)"
            payload = self._node(name, name, descriptor, clause, 8 * unit.payload_offset)
            payload.bits, payload.meaning = rest, f"{rest // 8} bytes"
            root.children.append(payload)
        if said := side_information(unit, SIDE_BYTES + 1):
            storage, data = root.find(["topology_storage_format", "topology_data"])
            storage.meaning = "side information (docs/reference/side-information.md)"
            data.meaning = said[:SIDE_BYTES].decode(errors="replace") + ("..." if len(said) > SIDE_BYTES else "")
        if inferred:
            self.structures |= {f"{s.table_name}()": s for s in (unit.size, unit.header, unit.structure) if s}
            for path, (node, cls) in self.nodes.items():
                self._infer(node, cls, self.structures[path])
        return root

    def partial(self, depth: int) -> UnitNode:
        """Return the tree of a unit that is malformed after these events."""
        root = self.root
        root.type = root.meaning = unit_type_name(self.unit_type) if self.unit_type >= 0 else ""
        root.depth, root.complete, root.bits = depth, False, sum(child.bits for child in root.children)
        return root

    def _node(self, name: str, path: str, descriptor: str, clause: str, bit: int) -> Node:
        return Node(self.root.unit, name, path, descriptor, clause, bit, self.root.offset + bit)

    def _event(self, path: str, descriptor: Descriptor, bit: int, size: int, value: Any) -> None:
        prefix, dot, name = path.rpartition(".")
        if descriptor.kind == "struct":
            path = prefix + dot + (value.table_name if name == "detail" else name)
            self.structures[path] = value
            self._structure(path, bit)  # also for structures without elements
            return
        if path == "nnr_unit_type":
            self.unit_type = value
        owner, cls = self._structure(prefix, bit) if prefix else self._section(name, bit)
        leaf = self._node(name, path, repr(descriptor), cls.clause, bit)
        leaf.bits, leaf.value, leaf.raw = size, value, _raw(descriptor, size, value)
        if name == "byte_alignment()":
            leaf.clause, leaf.meaning = "6.3.5", "a one, then zeros"
        else:
            leaf.meaning = _meaning(bare(name), value)
        owner.children.append(leaf)

    def _section(self, name: str, bit: int) -> tuple[Node, type[Structure]]:
        """Return the part of the unit that contains a top-level element or structure."""
        cls: type[Structure] = NnrUnitHeader
        if name in NnrUnitSize.elements:
            cls = NnrUnitSize
        elif name not in NnrUnitHeader.elements and name not in TABLES:
            cls = PAYLOADS[self.unit_type]
        return self._open(f"{cls.table_name}()", f"{cls.table_name}()", cls, self.root, bit)

    def _structure(self, path: str, bit: int) -> tuple[Node, type[Structure]]:
        """Return the node of a structure; create it and its enclosing structures if needed."""
        if path in self.nodes:
            return self.nodes[path]
        prefix, _, name = path.rpartition(".")
        owner, around = self._structure(prefix, bit) if prefix else self._section(name, bit)
        cls = TABLES.get(name) or CLASSES[around.elements[name]]
        return self._open(path, f"{name}()" if name in TABLES else name, cls, owner, bit)

    def _open(self, path: str, name: str, cls: type[Structure], owner: Node, bit: int) -> tuple[Node, type[Structure]]:
        if path not in self.nodes:
            node = self._node(name, path, f"{cls.table_name}()", cls.clause, bit)
            owner.children.append(node)
            self.nodes[path] = node, cls
        return self.nodes[path]

    def _infer(self, node: Node, cls: type[Structure], structure: Structure) -> None:
        """Add the absent elements at the end of their structure."""
        for name in cls.elements:
            value = vars(cls).get(name)
            if isinstance(value, int) and name not in structure:
                path = f"{node.path}.{name}" if node.path[-1] != ")" else name
                leaf = self._node(name, path, "inferred", cls.clause, node.bit + node.bits)
                leaf.value, leaf.meaning = value, value_meaning(name, value)
                node.children.append(leaf)


def _meaning(element: str, value: Any) -> str:
    return value_meaning(element, value) if isinstance(value, int) else meaning_of(element)


def _raw(descriptor: Descriptor, size: int, value: Any) -> str:
    """Return the bits of an element, recomputed from its value."""
    if not 0 < size <= RAW_BITS:
        return ""
    writer = BitWriter()
    if descriptor.kind == "f":
        writer.u(size, value)
    else:
        getattr(writer, descriptor.kind)(descriptor.n, value)
    return f"{int.from_bytes(writer.getvalue(), 'big') >> (-size & 7):0{size}b}"
