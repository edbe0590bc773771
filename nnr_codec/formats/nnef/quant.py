"""Reader of ``graph.quant`` (NNEF 1.0.3, 5.3 and 7), the quantization of tensors of the graph.

The text is stored unchanged; this module checks its syntax. As in the parser of Khronos, entries may have line breaks
anywhere, and comments as in a graph. Operations and their arguments are checked by :mod:`validate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...limits import Limits
from .labels import QUANT
from .lexer import Text
from .parser import parse_quantization
from .tree import Document, Identifier, QuantEntry, Variable, walk


@dataclass(frozen=True)
class Quantization:
    """Entries of a ``graph.quant`` in order, and its text."""

    entries: tuple[QuantEntry, ...]
    text: Text

    @property
    def tensors(self) -> frozenset[str]:
        """Identifiers of the listed tensors."""
        return frozenset(entry.tensor for entry in self.entries)


def read_quantization(data: bytes, limits: Limits | None = None, source: str = QUANT) -> Quantization:
    """Read a quantization file.

    Parameters
    ----------
    data : bytes
        The text in UTF-8.
    limits : Limits, optional
        ``max_topology_bytes`` applies.
    source : str
        Name of the file in errors.

    Raises
    ------
    FormatError
        The file is malformed; the error has file, line and column.
    LimitError
        The file exceeds the limits.
    """
    return Quantization(parse_quantization(data, limits, source), Text(data, source, "5.3"))


def doubtful(quantization: Quantization, identifiers: Iterable[str]) -> Iterator[tuple[str, str, QuantEntry]]:
    """Yield the entries that are useless for a graph with these identifiers: violated rule, message, entry."""
    known, seen = frozenset(identifiers), set()
    for entry in quantization.entries:
        if entry.tensor in seen:
            yield "quant-unique", f"{entry.tensor[:60]!a} is listed twice", entry
        elif entry.tensor not in known:
            yield "quant-identifier", f"{entry.tensor[:60]!a} is not an identifier of the graph", entry
        seen.add(entry.tensor)


def identifiers_of(document: Document) -> frozenset[str]:
    """Return the identifiers that the body of a graph assigns (NNEF 1.0, 3.3.4)."""
    found: set[str] = set()
    for part in document.graph.body:
        if isinstance(part, Variable):
            found.add(part.identifier)
        else:
            found.update(node.name for node in walk(part.target) if isinstance(node, Identifier))
    return frozenset(found)
