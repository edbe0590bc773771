"""Reads ``graph.quant`` (NNEF 1.0.3, 5.3 and 7): how tensors of the graph are quantized.

The text travels as it is; here it is read as far as it can be wrong. Entries may be on any lines, with comments as in a
graph, which is how Khronos' parser takes them, too. Whether operations are known and their arguments fit is a matter of
:mod:`validate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...limits import Limits
from .labels import QUANT
from .lexer import Text
from .parser import parse_quantization
from .tree import Document, Entry, Identifier, Variable, walk


@dataclass(frozen=True)
class Quantization:
    """The entries of a ``graph.quant`` in their order, and its text."""

    entries: tuple[Entry, ...]
    text: Text

    @property
    def tensors(self) -> frozenset[str]:
        """The identifiers of the tensors that are listed."""
        return frozenset(entry.tensor for entry in self.entries)


def read_quantization(data: bytes, limits: Limits | None = None, source: str = QUANT) -> Quantization:
    """Read a quantization file.

    Parameters
    ----------
    data : bytes
        The text, UTF-8.
    limits : Limits, optional
        ``max_topology_bytes`` applies.
    source : str
        What errors call it.

    Raises
    ------
    FormatError
        It is malformed, with file, line and column.
    LimitError
        It is larger than the limits permit.
    """
    return Quantization(parse_quantization(data, limits, source), Text(data, source, "5.3"))


def doubtful(quantization: Quantization, identifiers: Iterable[str]) -> Iterator[tuple[str, str, Entry]]:
    """Entries that a graph with these identifiers has no use for: the rule that they break, a message, the entry."""
    known, seen = frozenset(identifiers), set()
    for entry in quantization.entries:
        if entry.tensor in seen:
            yield "quant-unique", f"{entry.tensor[:60]!a} is listed twice", entry
        elif entry.tensor not in known:
            yield "quant-identifier", f"{entry.tensor[:60]!a} is no identifier of the graph", entry
        seen.add(entry.tensor)


def identifiers_of(document: Document) -> frozenset[str]:
    """What the body of a graph assigns (NNEF 1.0, 3.3.4)."""
    found: set[str] = set()
    for part in document.graph.body:
        if isinstance(part, Variable):
            found.add(part.identifier)
        else:
            found.update(node.name for node in walk(part.target) if isinstance(node, Identifier))
    return frozenset(found)
