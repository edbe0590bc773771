"""Syntax tree of an NNEF document (NNEF 1.0, 3.2).

Every node has the byte offsets of its start and of its end (exclusive); :func:`lexer.place` converts them to line and
column. Nodes are compared by identity. No branch is deeper than :data:`parser.MAX_NESTING` for any length of text,
because a chain of operators of the same precedence is one :class:`Operation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True, eq=False)
class SyntaxNode:
    """Part of the text, from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(slots=True, eq=False)
class Identifier(SyntaxNode):
    """Identifier, which is never a keyword."""

    name: str


@dataclass(slots=True, eq=False)
class Literal(SyntaxNode):
    """Number without sign (int or float as written), string with escapes resolved, or logical."""

    value: bool | int | float | str


@dataclass(slots=True, eq=False)
class Array(SyntaxNode):
    """``[a, b]``, on either side of an assignment."""

    items: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Tuple(SyntaxNode):
    """``(a, b)``, or ``a, b`` in an assignment, on either side; at least two items."""

    items: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Unary(SyntaxNode):
    """``+``, ``-`` or ``!`` before an operand; also used for negative numbers."""

    operator: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Operation(SyntaxNode):
    """Operands joined by binary operators of one precedence, from left to right: one operand more than operators.

    The words ``and`` and ``or`` of the grammar are ``&&`` and ``||`` here.
    """

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Conditional(SyntaxNode):
    """``value if condition else otherwise``."""

    value: Expression
    condition: Expression
    otherwise: Expression


@dataclass(slots=True, eq=False)
class Comprehension(SyntaxNode):
    """``[for iterator in array, ... if condition yield item]``."""

    iterators: tuple[tuple[Identifier, Expression], ...]
    condition: Expression | None
    item: Expression


@dataclass(slots=True, eq=False)
class Subscript(SyntaxNode):
    """``value[first]``, or ``value[first:last]`` if ``is_range``; both bounds are optional."""

    value: Expression
    first: Expression | None
    last: Expression | None
    is_range: bool


@dataclass(slots=True, eq=False)
class Builtin(SyntaxNode):
    """``shape_of``, ``length_of``, ``range_of`` or the name of a primitive type, with its argument."""

    function: str
    argument: Expression


@dataclass(slots=True, eq=False)
class Argument(SyntaxNode):
    """Argument; ``name`` is None for a positional one."""

    name: Identifier | None
    value: Expression


@dataclass(slots=True, eq=False)
class Invocation(SyntaxNode):
    """``operation<generic>(arguments)``; ``generic`` is a type name, ``"?"``, or empty."""

    operation: Identifier
    generic: str
    arguments: tuple[Argument, ...]


Expression: TypeAlias = (
    Identifier
    | Literal
    | Array
    | Tuple
    | Unary
    | Operation
    | Conditional
    | Comprehension
    | Subscript
    | Builtin
    | Invocation
)
#: Left side of an assignment: identifiers, and arrays and tuples of them.
Target: TypeAlias = Identifier | Array | Tuple


@dataclass(slots=True, eq=False)
class Primitive(SyntaxNode):
    """``integer``, ``scalar``, ``logical``, ``string`` or ``?``; and ``tensor`` alone, as in the grammar."""

    name: str


@dataclass(slots=True, eq=False)
class TensorType(SyntaxNode):
    """``tensor<item>``; ``item`` is empty for ``tensor<>``."""

    item: str


@dataclass(slots=True, eq=False)
class ArrayType(SyntaxNode):
    """``item[]``."""

    item: Type


@dataclass(slots=True, eq=False)
class TupleType(SyntaxNode):
    """``(a, b)``."""

    items: tuple[Type, ...]


Type: TypeAlias = Primitive | TensorType | ArrayType | TupleType


@dataclass(slots=True, eq=False)
class Assignment(SyntaxNode):
    """``target = value;``."""

    target: Target
    value: Expression


@dataclass(slots=True, eq=False)
class Variable(SyntaxNode):
    """``variable`` of a graph (NNEF 1.0, 4.1.3).

    In the body of a graph, one such node replaces an :class:`Assignment` with 12 nodes of the usual form, because a
    model has one for each tensor; :func:`parser.assignment_of` returns the full nodes.

    Parameters
    ----------
    start, end : int
        Range of the assignment, or of the invocation of a variable in a larger expression.
    call : int
        Start of the invocation.
    identifier : str
        Tensor to which it is assigned; empty inside an expression.
    dtype : str
        ``"scalar"``, ``"integer"`` or ``"logical"``.
    shape : tuple of int
        At most eight extents, each at least 1.
    label : str
        Label with escapes resolved.
    """

    call: int
    identifier: str
    dtype: str
    shape: tuple[int, ...]
    label: str


@dataclass(slots=True, eq=False)
class Parameter(SyntaxNode):
    """Parameter or result of a fragment; only parameters have defaults, which consist of literals."""

    name: Identifier
    type: Type
    default: Expression | None


@dataclass(slots=True, eq=False)
class Fragment(SyntaxNode):
    """Fragment; ``body`` is None if it is only declared.

    ``generic`` is True for ``<?>``, and ``generic_default`` is the type name of ``<? = type>`` or empty.
    """

    name: Identifier
    generic: bool
    generic_default: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    body: tuple[Assignment, ...] | None


@dataclass(slots=True, eq=False)
class GraphDefinition(SyntaxNode):
    """Graph definition."""

    name: Identifier
    parameters: tuple[Identifier, ...]
    results: tuple[Identifier, ...]
    body: tuple[Assignment | Variable, ...]


@dataclass(slots=True, eq=False)
class Extension(SyntaxNode):
    """``extension text;``: names separated by blanks or commas, or any text of a vendor."""

    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """Words of the text; for Khronos extensions, their names."""
        return tuple(self.text.replace(",", " ").split())


@dataclass(slots=True, eq=False)
class Document(SyntaxNode):
    """Complete document; ``version`` is as written."""

    version: str
    extensions: tuple[Extension, ...]
    fragments: tuple[Fragment, ...]
    graph: GraphDefinition


@dataclass(slots=True, eq=False)
class QuantEntry(SyntaxNode):
    """``"tensor": operation(arguments);`` of a ``graph.quant`` (NNEF 1.0, 5.3)."""

    tensor: str
    call: Invocation


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the direct subexpressions of an expression, in the order of the text."""
    match expression:
        case Array(items=items) | Tuple(items=items) | Operation(operands=items):
            return items
        case Invocation(arguments=arguments):
            return tuple(argument.value for argument in arguments)
        case Unary(operand=inner) | Builtin(argument=inner):
            return (inner,)
        case Conditional(value=value, condition=condition, otherwise=otherwise):
            return value, condition, otherwise
        case Subscript(value=value, first=first, last=last):
            return value, *(item for item in (first, last) if item is not None)
        case Comprehension(iterators=iterators, condition=condition, item=item):
            arrays = tuple(array for _, array in iterators)
            return (*arrays, item) if condition is None else (*arrays, condition, item)
    return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all its subexpressions, parents first, in the order of the text."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))
