"""Parser of NNEF documents (NNEF 1.0, 3.2), flat and compositional, in linear time.

It accepts some constructs beyond the grammar. Documents in use have extension texts with anything up to the semicolon,
fragments without a body, and empty lists of parameters, arguments and assignments. ``and`` and ``or`` are accepted like
``&&`` and ``||``, because 3.2.3 and 3.3.3 differ, as is a tuple without brackets on the right side of an assignment
(3.3.3). Required extensions are checked elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ...limits import Limits
from .constants import MAX_EXTENT
from .lexer import BUILTINS, KEYWORDS, PRIMITIVES, Lexer, VersionError, check_text
from .tree import (
    Argument,
    Array,
    ArrayType,
    Assignment,
    Builtin,
    Comprehension,
    Conditional,
    Document,
    Expression,
    Extension,
    Fragment,
    GraphDefinition,
    Identifier,
    Invocation,
    Literal,
    Operation,
    Parameter,
    Primitive,
    QuantEntry,
    Subscript,
    Target,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Unary,
    Variable,
    walk,
)

#: Maximum nesting of brackets, and maximum height of the tree of an expression.
MAX_NESTING = 200

#: Binary operators and their precedence (NNEF 1.0, 3.3.3); all are left-associative.
_PRECEDENCE = {
    **dict.fromkeys(("in",), 1),
    **dict.fromkeys(("&&", "||"), 2),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/"), 5),
    **dict.fromkeys(("^",), 6),
}
_WORDS = {"and": "&&", "or": "||"}
#: Signs that end most expressions.
_ENDS = frozenset(",;])")
_TYPE_NAMES = PRIMITIVES | {"tensor", "?"}
_BLANKS = r"[ \t\v\f\r\n]*+"
_NUMBERS = rf"\[ {_BLANKS} [0-9]{{1,10}}+ {_BLANKS} (?: , {_BLANKS} [0-9]{{1,10}}+ {_BLANKS} ){{0,7}}+ \]"
_CHARACTERS = r"[A-Za-z0-9_\-./]{1,4096}+"
_SHAPE = rf"shape {_BLANKS} = {_BLANKS} ( {_NUMBERS} ) {_BLANKS}"
_LABEL = rf"""label {_BLANKS} = {_BLANKS} ( '{_CHARACTERS}' | "{_CHARACTERS}" ) {_BLANKS}"""
# A subset of the grammar: an assignment like `w = variable<scalar>(shape = [4, 3], label = 'w');`, in tokens of the
# lexer, without comments, escapes, long names and long numbers, and with a legal label.
_VARIABLE = re.compile(
    rf"""
    {_BLANKS} ([A-Za-z_][A-Za-z0-9_]{{0,255}}+) {_BLANKS} = {_BLANKS}
    (variable) {_BLANKS} (?: < {_BLANKS} (scalar|integer|logical) {_BLANKS} > {_BLANKS} )?
    \( {_BLANKS} (?: {_SHAPE} , {_BLANKS} {_LABEL} | {_LABEL} , {_BLANKS} {_SHAPE} ) \) {_BLANKS} ;
    """.encode(),
    re.VERBOSE,
)
_NUMBER = re.compile(rb"[0-9]+")
_ESCAPE = re.compile(r"\\(['\"\\])")
_MAX_DIGITS = 4000
# Names appear in messages, of which there may be many.
_MAX_NAME = 4096

_Item = TypeVar("_Item")
_Operand = TypeVar("_Operand", bound=Expression)


def parse(data: bytes, limits: Limits | None = None, source: str = "graph.nnef") -> Document:
    """Parse an NNEF document.

    Parameters
    ----------
    data : bytes
        The document in UTF-8.
    limits : Limits, optional
        ``max_topology_bytes`` applies.
    source : str
        Name of the document in errors.

    Raises
    ------
    FormatError
        The document violates the grammar; the error has line, column and clause.
    LimitError
        The document exceeds the limits.
    """
    return _parser(data, limits, source).document()


def parse_fragments(data: bytes, limits: Limits | None = None, source: str = "stdlib.nnef") -> tuple[Fragment, ...]:
    """Parse a text of fragments only, such as a library of operations; raises the errors of :func:`parse`."""
    parser = _parser(data, limits, source)
    fragments = parser.fragments()
    parser.end()
    return fragments


def parse_quantization(
    data: bytes, limits: Limits | None = None, source: str = "graph.quant"
) -> tuple[QuantEntry, ...]:
    """Parse a quantization file, with any line structure; raises the errors of :func:`parse`."""
    parser = _parser(data, limits, source)
    parser.clause = "5.3"
    entries = []
    while parser.token.kind != "end":
        entries.append(parser.entry())
    return tuple(entries)


def invocation_at(data: bytes, start: int) -> Invocation:
    """Return the invocation at an offset of a parsed document."""
    parser = _Parser(data, "", start=start)
    return parser.invocation(parser.identifier())


def assignment_of(node: Assignment | Variable, data: bytes) -> Assignment:
    """Return the assignment node of a compact variable, or any other assignment unchanged."""
    if isinstance(node, Assignment):
        return node
    target = Identifier(node.start, node.start + len(node.identifier), node.identifier)
    return Assignment(node.start, node.end, target, invocation_at(data, node.call))


def _parser(data: bytes, limits: Limits | None, source: str) -> _Parser:
    (limits or Limits()).check("max_topology_bytes", len(data), f"bytes of {source}")
    check_text(data, source)
    return _Parser(data, source)


class _Parser(Lexer):
    # Number of open brackets and branches, and height of the last parsed tree.
    depth = height = 0

    def document(self) -> Document:
        start = self.expect("version").start
        version = self.expect_kind("number")
        if not re.fullmatch(r"1(\.[0-9]+)?", version.text):
            self.fail(
                f"NNEF version {version.text[:20]} is not supported; only 1.x is", version.start, "3.2.4", VersionError
            )
        self.expect(";")
        extensions = []
        while self.at("extension"):
            extensions.append(self.extension())
        fragments = self.fragments()
        graph = self.graph()
        self.end()
        return Document(start, graph.end, version.text, tuple(extensions), fragments, graph)

    def end(self) -> None:
        if self.token.kind != "end":
            self.refuse(f"expected the end of the document, found {self.found()}", "3.2.4")

    def entry(self) -> QuantEntry:
        if self.token.kind != "string":
            self.refuse(f"expected a tensor in quotes, found {self.found()}")
        tensor = self.literal()
        self.expect(":")
        call = self.invocation(self.identifier())
        self.expect(";")
        return QuantEntry(tensor.start, self.last_end, str(tensor.value), call)

    def extension(self) -> Extension:
        start, after = self.token.start, self.token.end
        end = self.data.find(b";", after)
        if end < 0:
            self.refuse("the extension has no ';'", "3.2.4")
        self.token = self.lex(end + 1)
        return Extension(start, end + 1, self.data[after:end].decode("utf-8").strip())

    def fragments(self) -> tuple[Fragment, ...]:
        fragments = []
        while self.at("fragment"):
            fragments.append(self.fragment())
        return tuple(fragments)

    def fragment(self) -> Fragment:
        start = self.advance().start
        name = self.identifier()
        generic, default = self.at("<"), ""
        if generic:
            self.advance()
            self.expect("?")
            if self.at("="):
                self.advance()
                default = self.type_name()
            self.expect(">")
        parameters = self.several("(", ")", self.parameter)
        self.expect("->")
        results = self.several("(", ")", self.result)
        body = None
        if self.at(";"):
            self.advance()
        else:
            body = tuple(self.body())
        return Fragment(start, self.last_end, name, generic, default, parameters, results, body)

    def parameter(self) -> Parameter:
        name = self.identifier()
        self.expect(":")
        kind, default = self.type(), None
        if self.at("="):
            self.advance()
            default = self.expression()
            for part in walk(default):
                if not isinstance(part, Literal | Array | Tuple | Unary):
                    self.fail("a default value must consist of literals", part.start, "3.2.2")
        return Parameter(name.start, self.last_end, name, kind, default)

    def result(self) -> Parameter:
        name = self.identifier()
        self.expect(":")
        return Parameter(name.start, self.last_end, name, self.type(), None)

    def type(self) -> Type:
        start = self.token.start
        kind: Type
        self.height = 0
        if self.at("("):
            types = self.several("(", ")", self.type, 2)
            kind = TupleType(start, self.last_end, types)
        elif (name := self.type_name()) == "tensor" and self.at("<"):
            self.advance()
            item = "" if self.at(">") else self.type_name()
            self.expect(">")
            kind = TensorType(start, self.last_end, item)
        else:
            kind = Primitive(start, self.last_end, name)
        while self.at("["):
            self.advance()
            self.expect("]")
            kind = ArrayType(start, self.last_end, kind)
            self.rise(self.height + 1)
        return kind

    def type_name(self) -> str:
        if self.token.text not in _TYPE_NAMES or self.token.kind == "string":
            self.refuse(f"expected a type, found {self.found()}", "3.2.2")
        return self.advance().text

    def graph(self) -> GraphDefinition:
        start = self.expect("graph").start
        name = self.identifier()
        parameters = self.several("(", ")", self.identifier)
        self.expect("->")
        results = self.several("(", ")", self.identifier)
        self.expect("{")
        body: list[Assignment | Variable] = []
        while not self.at("}"):
            if not self.variables(body):
                body.append(self.assignment())
        self.advance()
        return GraphDefinition(start, self.last_end, name, parameters, results, tuple(body))

    def body(self) -> Iterator[Assignment]:
        self.expect("{")
        while not self.at("}"):
            yield self.assignment()
        self.advance()

    def assignment(self) -> Assignment:
        start = self.token.start
        target = self.bare(self.target)
        self.expect("=")
        value = self.bare(self.expression)
        self.expect(";")
        return Assignment(start, self.last_end, target, value)

    def variables(self, body: list[Assignment | Variable]) -> bool:
        """Append the following assignments that match ``_VARIABLE`` and skip them; return False if there is none.

        One match replaces about 20 tokens. Faulty variables are left to the grammar.
        """
        shapes: dict[bytes, tuple[int, ...]] = {}
        end, count, left = self.token.start, 0, self.tokens_left()
        while match := _VARIABLE.match(self.data, end):
            name, _, generic, shape, label, other_label, other_shape = match.groups()
            identifier, extents = name.decode(), shape or other_shape
            if extents not in shapes:
                shapes[extents] = tuple(map(int, _NUMBER.findall(extents)))
            dims = shapes[extents]
            # `w = variable ( shape = [ 4 ] , label = 'w' ) ;` and `< scalar >`.
            tokens = (16 if generic else 13) + 2 * len(dims)
            if identifier in KEYWORDS or not 0 < min(dims) <= max(dims) <= MAX_EXTENT or count + tokens > left:
                break
            start, end = match.start(1), match.end()
            dtype = generic.decode() if generic else "scalar"
            text = (label or other_label)[1:-1].decode()
            body.append(Variable(start, end, match.start(2), identifier, dtype, dims, text))
            count += tokens
        if count:
            self.skip(end, count)
        return count > 0

    def bare(self, operand: Callable[[], _Operand]) -> _Operand | Tuple:
        """Parse an operand, or several separated by commas: a tuple without brackets."""
        start = self.token.start
        first = operand()
        if not self.at(","):
            return first
        items = [first]
        while self.at(","):
            self.advance()
            items.append(operand())
        return Tuple(start, self.last_end, tuple(items))

    def target(self) -> Target:
        start = self.token.start
        if self.at("["):
            items = self.several("[", "]", self.target)
            return Array(start, self.last_end, items)
        if self.at("("):
            items = self.several("(", ")", self.target, 2)
            return Tuple(start, self.last_end, items)
        return self.identifier()

    def identifier(self) -> Identifier:
        if self.token.kind == "name" and self.token.text in KEYWORDS:
            self.refuse(f"expected a name; {self.token.text!r} is a keyword", "3.1")
        token = self.expect_kind("name")
        if len(token.text) > _MAX_NAME:
            self.fail(f"the name has more than {_MAX_NAME} characters", token.start, "3.1")
        return Identifier(token.start, token.end, token.text)

    # One level of brackets costs three of the thousand calls that Python permits: expression, operand, and one more.

    def expression(self, branches: bool = True) -> Expression:
        """Parse an expression; without ``branches``, a following ``if`` does not belong to it."""
        begin = self.token.start
        chains: list[_Chain] = []
        precedence = -1
        while precedence:
            start = self.token.start
            value = self.operand()
            if not chains and self.token.text in _ENDS:
                return value
            operator = _WORDS.get(self.token.text, self.token.text)
            precedence = _PRECEDENCE.get(operator, 0)
            while chains and chains[-1].precedence > precedence:
                start, value = self.closed(chains.pop(), value)
            if precedence:
                if not chains or chains[-1].precedence < precedence:
                    chains.append(_Chain(precedence, start))
                chains[-1].add(value, self.height)
                chains[-1].operators.append(operator)
                self.advance()
        if not branches or not self.at("if"):
            return value
        height = self.height
        self.enter()
        self.advance()
        condition = self.expression()
        height = max(height, self.height)
        self.expect("else")
        otherwise = self.expression()
        self.leave(max(height, self.height) + 1)
        return Conditional(begin, self.last_end, value, condition, otherwise)

    def closed(self, chain: _Chain, last: Expression) -> tuple[int, Operation]:
        """Return the start of a chain of operators, and the chain with its last operand."""
        chain.add(last, self.height)
        self.rise(chain.height + 1)
        return chain.start, Operation(chain.start, self.last_end, tuple(chain.operators), tuple(chain.operands))

    def operand(self) -> Expression:
        signs = []
        while self.token.text in ("+", "-", "!"):
            signs.append(self.advance())
        start, text = self.token.start, self.token.text
        self.height = 0
        value: Expression
        if self.token.kind in ("number", "string"):
            value = self.literal()
        elif text == "(":
            items = self.several("(", ")", self.expression, 1)
            value = items[0] if len(items) == 1 else Tuple(start, self.last_end, items)
        elif text == "[" and self.followed_by("for"):
            value = self.comprehension()
        elif text == "[":
            items = self.several("[", "]", self.expression)
            value = Array(start, self.last_end, items)
        elif text in ("true", "false"):
            self.advance()
            value = Literal(start, self.last_end, text == "true")
        elif text in BUILTINS:
            value = self.builtin()
        elif self.token.kind == "name" and text not in KEYWORDS:
            value = self.identifier()
            if self.at("(") or self.generic_call():
                value = self.invocation(value)
        else:
            self.refuse(f"expected an expression, found {self.found()}")
        while self.at("["):
            value = self.subscript(start, value)
        for sign in reversed(signs):
            self.rise(self.height + 1)
            value = Unary(sign.start, self.last_end, sign.text, value)
        return value

    def literal(self) -> Literal:
        token = self.token
        if len(token.text) > _MAX_DIGITS and token.kind == "number":
            self.refuse(f"the number has more than {_MAX_DIGITS} digits", "3.1")
        self.advance()
        value: int | float | str
        if token.kind == "string":
            value = _ESCAPE.sub(r"\1", token.text[1:-1])
        else:
            value = int(token.text) if token.text.isdigit() else float(token.text)
        return Literal(token.start, token.end, value)

    def comprehension(self) -> Comprehension:
        start = self.advance().start
        self.enter()
        iterators: list[tuple[Identifier, Expression]] = []
        height = 0
        while not iterators or self.at(","):
            self.advance()
            name = self.identifier()
            self.expect("in")
            iterators.append((name, self.expression(branches=False)))
            height = max(height, self.height)
        condition = None
        if self.at("if"):
            self.advance()
            condition = self.expression()
            height = max(height, self.height)
        self.expect("yield")
        item = self.expression()
        self.expect("]")
        self.leave(max(height, self.height) + 1)
        return Comprehension(start, self.last_end, tuple(iterators), condition, item)

    def subscript(self, start: int, value: Expression) -> Subscript:
        height = self.height
        self.enter()
        self.advance()
        first = last = None
        if not self.at(":"):
            first = self.expression()
            height = max(height, self.height)
        is_range = self.at(":")
        if is_range:
            self.advance()
            if not self.at("]"):
                last = self.expression()
                height = max(height, self.height)
        self.expect("]")
        self.leave(height + 1)
        return Subscript(start, self.last_end, value, first, last, is_range)

    def builtin(self) -> Builtin:
        token = self.advance()
        self.expect("(")
        self.enter()
        argument = self.expression()
        self.expect(")")
        self.leave(self.height + 1)
        return Builtin(token.start, self.last_end, token.text, argument)

    def generic_call(self) -> bool:
        """Return whether ``<type>(`` follows, which is never a comparison."""
        return self.at("<") and self.ahead().text in _TYPE_NAMES and self.followed_by(self.ahead().text, ">", "(")

    def invocation(self, operation: Identifier) -> Invocation:
        generic = ""
        if self.at("<"):
            self.advance()
            generic = self.type_name()
            self.expect(">")
        self.expect("(")
        self.enter()
        arguments, height = [], 0
        more = not self.at(")")
        while more:
            start, name = self.token.start, None
            if self.token.kind == "name" and self.followed_by("="):
                name = self.identifier()
                self.advance()
            value = self.expression()
            height = max(height, self.height)
            arguments.append(Argument(start, self.last_end, name, value))
            more = self.comma(")")
        self.advance()
        self.leave(height + 1)
        return Invocation(operation.start, self.last_end, operation, generic, tuple(arguments))

    def several(self, opening: str, closing: str, item: Callable[[], _Item], least: int = 0) -> tuple[_Item, ...]:
        """Parse items separated by commas, in brackets."""
        start = self.expect(opening).start
        self.enter()
        items, height = [], 0
        more = not self.at(closing)
        while more:
            self.height = 0
            items.append(item())
            height = max(height, self.height)
            more = self.comma(closing)
        self.advance()
        if len(items) < least:
            self.fail("the brackets are empty" if least == 1 else "a tuple requires at least two items", start)
        self.leave(height + 1)
        return tuple(items)

    def comma(self, closing: str) -> bool:
        """Return whether another item follows, and move to it; otherwise the brackets end here."""
        if self.at(","):
            self.advance()
            return True
        if not self.at(closing):
            self.refuse(f"expected ',' or {closing!r}, found {self.found()}")
        return False

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.refuse(f"nested deeper than {MAX_NESTING}")

    def leave(self, height: int) -> None:
        self.depth -= 1
        self.rise(height)

    def rise(self, height: int) -> None:
        self.height = height
        if height > MAX_NESTING:
            self.refuse(f"nested deeper than {MAX_NESTING}")


@dataclass(slots=True)
class _Chain:
    """Operands joined by operators of one precedence, until the last operand is known."""

    precedence: int
    start: int
    height: int = 0
    operators: list[str] = field(default_factory=list)
    operands: list[Expression] = field(default_factory=list)

    def add(self, operand: Expression, height: int) -> None:
        self.operands.append(operand)
        self.height = max(self.height, height)
