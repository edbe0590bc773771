"""Output of syntax tree nodes as text, table and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import output
from .errors import one_line

if TYPE_CHECKING:
    from nnr_codec.bitstream.nodes import Node, UnitNode

    #: A unit, and its nodes to print: the unit itself, or some of its elements.
    Found = tuple[UnitNode, list[Node]]

LONGEST = 60  # maximum number of characters of a value in text
BINARY = 16  # maximum number of bits printed in binary in text
ROWS = 10_000  # rows per table, because the length of a bitstream is not known in advance


def print_found(found: Iterable[Found], style: str) -> bool:
    """Print nodes as ``tree``, ``table`` or ``json`` as they arrive; return False if there are none.

    Nodes before an error of the iterator are printed, and JSON output stays valid.
    """
    counted = _Counted(found)
    if style == "json":
        print_json(node.to_dict() for _, nodes in counted for node in nodes)
    elif style == "table":
        _print_table(counted)
    else:
        for unit, nodes in counted:
            if unit not in nodes:
                print_line(_heading(unit, ""))
            for node in nodes:
                for line in _lines(node, 0):
                    print_line(line)
    return counted.some


class _Counted:
    def __init__(self, found: Iterable[Found]) -> None:
        self.found, self.some = found, False

    def __iter__(self) -> Iterator[Found]:
        for unit, nodes in self.found:
            if nodes:
                self.some = True
                yield unit, nodes


def print_line(text: str) -> None:
    """Print a line of text on standard output, with control characters escaped."""
    sys.stdout.write(one_line(text) + "\n")


def print_json(items: Iterable[dict[str, Any]]) -> None:
    """Print a JSON list on standard output, item by item; it is closed even if the items end with an error."""
    separator = "["
    try:
        for item in items:
            sys.stdout.write(f"{separator}\n{json.dumps(item, indent=1)}")
            separator = ","
    finally:
        sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def _lines(node: Node, depth: int) -> Iterator[str]:
    from nnr_codec.bitstream.nodes import UnitNode

    if isinstance(node, UnitNode):
        yield _heading(node, "  " * depth)
    else:
        place = f"{node.bit:>7} {node.bits:>6} {_raw(node):<{BINARY}}  {_descriptor(node):<8} {'  ' * depth}"
        if node.value is None:
            yield f"{place}{node.name}, {node.clause}{f'  # {node.meaning}' if node.meaning else ''}"
        else:
            yield f"{place}{node.name} = {_value(node)}{f'  # {node.meaning}' if node.meaning else ''}"
    for child in node.children:
        yield from _lines(child, depth + 1)


def _heading(unit: UnitNode, indent: str) -> str:
    state = "" if unit.complete else ", malformed after that"
    size = f"{unit.bits / 8:,.3f}".rstrip("0").rstrip(".")
    return f"{indent}{unit.label}, {unit.clause}: byte {unit.offset // 8:,}, {size} bytes{state}"


def _descriptor(node: Node) -> str:
    return "" if node.descriptor.endswith("()") else node.descriptor


def _raw(node: Node) -> str:
    return node.raw if len(node.raw) <= BINARY else f"0x{int(node.raw, 2):0{(len(node.raw) + 3) // 4}x}"


def _value(node: Node) -> str:
    from nnr_codec.bitstream.nodes import plain

    text = repr(node.value) if isinstance(node.value, str) else str(plain(node.value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


def _print_table(found: Iterable[Found]) -> None:
    rows: list[tuple[str, ...]] = []
    try:
        for _, nodes in found:
            leaves = (inner for outer in nodes for inner in outer.walk() if not inner.children)
            for node in (leaf for leaf in leaves if leaf.bits or leaf.value is not None):
                value = "" if node.value is None else _value(node)
                place = str(node.unit), str(node.bit), str(node.offset), str(node.bits)
                rows.append((*place, _raw(node), _descriptor(node), node.path, value, node.meaning, node.clause))
            if len(rows) >= ROWS:
                _print_rows(rows)
                rows = []
    finally:
        if rows:
            _print_rows(rows)


def _print_rows(rows: list[tuple[str, ...]]) -> None:
    output.table(
        ("unit", "bit", "offset", "bits", "raw", "type", "element", "value", "meaning", "clause"),
        rows,
        right=("unit", "bit", "offset", "bits"),
        fold=("element", "value", "meaning"),
    )
