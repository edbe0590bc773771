"""Reads the structure of an NNEF document (NNEF 1.0, chapter 3) as far as its variables.

Flat and compositional documents are accepted, with any extensions, operations and fragments: of those only lexical
form and brackets are checked. Variables are found in the body of the graph; their arguments may be literals, lists,
``+`` and ``*``. Whatever is wrong is a FormatError with file, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import FormatError
from ...limits import Limits
from .constants import Value, evaluate
from .labels import is_legal
from .lexer import Lexer, Token, check_text

#: How deep brackets may be nested.
MAX_NESTING = 200

_MAX_EXTENT = (1 << 32) - 1
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_DATA_TYPES = ("scalar", "integer", "logical")


@dataclass(frozen=True, slots=True)
class Variable:
    """One ``variable`` of a graph (NNEF 1.0, 4.1.3).

    Parameters
    ----------
    identifier : str
        The tensor it is assigned to; empty for one that stands inside an expression.
    dtype : str
        ``"scalar"``, ``"integer"`` or ``"logical"``.
    shape : tuple of int
        At most eight extents, each at least 1.
    label : str
        The label, with escapes resolved.
    shape_span : (int, int)
        Start and end, in bytes, of the shape's expression in the document.
    line : int
        Where it stands, from 1.
    """

    identifier: str
    dtype: str
    shape: tuple[int, ...]
    label: str
    shape_span: tuple[int, int]
    line: int


@dataclass(frozen=True, slots=True)
class Graph:
    """What the codec needs to know of an NNEF document; ``variables`` are in the order of the text."""

    name: str
    version: str
    extensions: tuple[str, ...]
    variables: tuple[Variable, ...]


def parse_graph(data: bytes, limits: Limits | None = None, source: str = "graph.nnef") -> Graph:
    """Read an NNEF document.

    Parameters
    ----------
    data : bytes
        The document, UTF-8.
    limits : Limits, optional
        ``max_topology_bytes``, ``max_names`` and ``max_name_bytes`` apply.
    source : str
        What errors call it.

    Raises
    ------
    FormatError
        The document is malformed, or a variable is not constant or breaks a rule of NNEF 1.0, 4.1.3.
    LimitError
        It is larger than the limits permit.
    """
    limits = limits or Limits()
    limits.check("max_topology_bytes", len(data), f"bytes of {source}")
    check_text(data, source)
    return _Parser(data, source, limits).document()


def with_shapes(data: bytes, graph: Graph, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The document with other shapes for the variables of some labels (case does not matter); all else stays.

    Where a shape has fewer extents than the variable, as biases do that are declared as [1, C], they take the places of
    those that are not 1; a shape that cannot be placed is left out.
    """
    pieces, at = [], 0
    for variable in sorted(graph.variables, key=lambda variable: variable.shape_span):
        shape = list(shapes.get(variable.label.casefold(), variable.shape))
        places = [k for k, extent in enumerate(variable.shape) if extent != 1]
        if len(shape) < len(variable.shape) and len(shape) == len(places):
            extents = iter(shape)
            shape = [next(extents) if k in places else 1 for k in range(len(variable.shape))]
        if len(shape) == len(variable.shape) and tuple(shape) != variable.shape:
            start, end = variable.shape_span
            pieces += [data[at:start], str(shape).encode()]
            at = end
    return b"".join([*pieces, data[at:]])


class _Parser(Lexer):
    def __init__(self, data: bytes, source: str, limits: Limits) -> None:
        self.limits = limits
        self.variables: list[Variable] = []
        super().__init__(data, source)

    def document(self) -> Graph:
        self.expect("version")
        version = self.expect_kind("number")
        if not re.fullmatch(r"1(\.[0-9]+)?", version.text):
            self.fail(f"version {version.text[:20]} of NNEF; this reader knows 1.x", version.start)
        self.expect(";")
        extensions = []
        while self.at("extension"):
            extensions.append(self.extension())
        while self.at("fragment"):
            self.fragment()
        self.expect("graph")
        name = self.expect_kind("name").text
        self.identifiers()
        self.expect("->")
        self.identifiers()
        self.expect("{")
        while not self.at("}"):
            self.assignment()
        self.advance()
        if self.token.kind != "end":
            self.fail(f"expected the end of the document, found {self.found()}")
        self.check_shared()
        return Graph(name, version.text, tuple(extensions), tuple(self.variables))

    def extension(self) -> str:
        # Vendors put expressions of their own here, so this is text up to the semicolon.
        start = self.token.end
        end = self.data.find(b";", start)
        if end < 0:
            self.fail("an extension without ';'")
        self.token = self.lex(end + 1)
        return self.data[start:end].decode("utf-8").strip()

    def identifiers(self) -> None:
        self.expect("(")
        while not self.at(")"):
            self.expect_kind("name")
            if not self.at(")"):
                self.expect(",")
        self.advance()

    def fragment(self) -> None:
        self.advance()
        name = self.expect_kind("name").text
        self.scan(";{")
        if self.advance().text == "{":
            self.scan("}", fragment=name)
            self.advance()

    def assignment(self) -> None:
        first = self.token
        if self.at("="):
            self.fail("an assignment without a left side")
        self.scan("=")
        single = first.kind == "name" and self.last_end == first.end
        self.advance()
        if self.at(";"):
            self.fail("an assignment without a right side")
        self.scan(";", target=first.text if single else "")
        self.advance()

    def scan(self, stop: str, *, target: str = "", fragment: str = "") -> None:
        """Move to the first sign of ``stop`` outside brackets; variables on the way are taken in or refused."""
        start = self.token.start
        unclosed: list[Token] = []
        while unclosed or self.token.kind != "sign" or self.token.text not in stop:
            token = self.token
            if token.kind == "end":
                self.fail(f"no {' or '.join(map(repr, stop))} before the end of the document", start)
            if token.text == "variable" and token.kind == "name" and self.followed_by("(", "<"):
                if fragment:
                    self.fail(f"a variable in fragment {fragment!r}; NNEF 1.0.1 and later permit it in the graph only")
                self.variable(target if token.start == start else "")
                continue
            self.advance()
            if token.kind == "sign":
                self.bracket(token, unclosed)

    def bracket(self, token: Token, unclosed: list[Token]) -> None:
        if token.text in _CLOSING:
            unclosed.append(token)
            if len(unclosed) > MAX_NESTING:
                self.fail(f"brackets nested deeper than {MAX_NESTING}", token.start)
        elif token.text in _CLOSING.values() and (not unclosed or _CLOSING[unclosed.pop().text] != token.text):
            self.fail(f"{token.text!r} closes nothing", token.start)

    def variable(self, target: str) -> None:
        start = self.advance().start
        line = self.line(start)
        dtype = "scalar"
        if self.at("<"):
            self.advance()
            dtype = self.token.text
            if dtype not in _DATA_TYPES:
                self.fail(f"a variable of {self.found()}; there are {', '.join(_DATA_TYPES)}")
            self.advance()
            self.expect(">")
        self.expect("(")
        arguments: dict[str, tuple[Value, int, int]] = {}
        while not self.at(")"):
            self.argument(arguments)
            if not self.at(")"):
                self.expect(",")
        self.advance()
        if len(arguments) < 2:
            self.fail("a variable needs shape and label", start)
        # Part of a larger expression, as in `variable(...) + x`, it has no identifier.
        identifier = target if self.at(";") else ""
        label = self.label(*arguments["label"][:2])
        shape = self.shape(*arguments["shape"][:2])
        self.limits.check("max_names", len(self.variables) + 1, f"variables of {self.source}")
        self.variables.append(Variable(identifier, dtype, shape, label, arguments["shape"][1:], line))

    def argument(self, arguments: dict[str, tuple[Value, int, int]]) -> None:
        if self.token.kind == "name" and self.followed_by("="):
            name = self.token.text
            if name not in ("shape", "label"):
                self.fail(f"a variable has no parameter {name[:40]!r}")
            if name in arguments:
                self.fail(f"{name} is given twice")
            self.advance()
            self.advance()
        else:
            if len(arguments) > 1:
                self.fail("a variable has two parameters")
            name = ("shape", "label")[len(arguments)]
            if name in arguments:
                self.fail("positional arguments must precede named ones")
        start = self.token.start
        arguments[name] = (evaluate(self), start, self.last_end)

    def label(self, value: Value, start: int) -> str:
        if not isinstance(value, str):
            self.fail("a label is a string", start)
        self.limits.check("max_name_bytes", len(value), f"bytes of a label in {self.source}")
        if not is_legal(value):
            self.fail(f"label {value[:80]!a} is empty or has characters that NNEF does not permit (4.1.3)", start)
        return value

    def shape(self, value: Value, start: int) -> tuple[int, ...]:
        if not isinstance(value, list):
            self.fail("a shape is a list of integers", start)
        extents = []
        for extent in value:
            if not isinstance(extent, int) or not 1 <= extent <= _MAX_EXTENT:
                self.fail(f"extents of a shape are integers from 1 to {_MAX_EXTENT} (NNEF 4.1.3)", start)
            extents.append(extent)
        return tuple(extents)

    def check_shared(self) -> None:
        """Labels that are equal but for case share data and must agree (NNEF 1.0, 4.1.3)."""
        first: dict[str, Variable] = {}
        for variable in self.variables:
            other = first.setdefault(variable.label.casefold(), variable)
            if (other.shape, other.dtype) != (variable.shape, variable.dtype):
                raise FormatError(
                    f"{self.source}:{variable.line}: label {variable.label!r} is that of line {other.line},"
                    " with another shape or data type (NNEF 4.1.3)"
                )
