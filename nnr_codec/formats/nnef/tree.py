"""The syntax tree of an NNEF document (NNEF 1.0, 3.2).

Every node has the offsets, in bytes, of its first byte and of the byte after its last; :func:`lexer.place` makes line
and column of them. Nodes are equal when they are the same node. No branch is deeper than :data:`parser.MAX_NESTING`,
however long the text is: chains of operators of the same precedence are one :class:`Operation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True, eq=False)
class Node:
    """A part of the text, from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(slots=True, eq=False)
class Identifier(Node):
    """An identifier, which is never a keyword."""

    name: str


@dataclass(slots=True, eq=False)
class Literal(Node):
    """A number without sign (int or float as it is written), a string with its escapes resolved, or a logical."""

    value: bool | int | float | str


@dataclass(slots=True, eq=False)
class Array(Node):
    """``[a, b]``, on either side of an assignment."""

    items: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Tuple(Node):
    """``(a, b)``, or ``a, b`` in an assignment, on either side; at least two items."""

    items: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Unary(Node):
    """``+``, ``-`` or ``!`` before an operand; a negative number is one."""

    operator: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Operation(Node):
    """Operands joined by binary operators of one precedence, from left to right: one operand more than operators.

    The words ``and`` and ``or`` of the grammar are ``&&`` and ``||`` here.
    """

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Conditional(Node):
    """``value if condition else otherwise``."""

    value: Expression
    condition: Expression
    otherwise: Expression


@dataclass(slots=True, eq=False)
class Comprehension(Node):
    """``[for iterator in array, ... if condition yield item]``."""

    iterators: tuple[tuple[Identifier, Expression], ...]
    condition: Expression | None
    item: Expression


@dataclass(slots=True, eq=False)
class Subscript(Node):
    """``value[first]``, or ``value[first:last]`` where ``is_range``, with either left out at will."""

    value: Expression
    first: Expression | None
    last: Expression | None
    is_range: bool


@dataclass(slots=True, eq=False)
class Builtin(Node):
    """``shape_of``, ``length_of``, ``range_of`` or the name of a primitive type, with its one argument."""

    function: str
    argument: Expression


@dataclass(slots=True, eq=False)
class Argument(Node):
    """An argument; ``name`` is None for a positional one."""

    name: Identifier | None
    value: Expression


@dataclass(slots=True, eq=False)
class Invocation(Node):
    """``operation<generic>(arguments)``; ``generic`` is a type name or ``"?"``, or empty where there is none."""

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
#: The left side of an assignment: identifiers, and arrays and tuples of them.
Target: TypeAlias = Identifier | Array | Tuple


@dataclass(slots=True, eq=False)
class Primitive(Node):
    """``integer``, ``scalar``, ``logical``, ``string`` or ``?``; and ``tensor`` alone, as the grammar has it."""

    name: str


@dataclass(slots=True, eq=False)
class TensorType(Node):
    """``tensor<item>``; ``item`` is empty for ``tensor<>``."""

    item: str


@dataclass(slots=True, eq=False)
class ArrayType(Node):
    """``item[]``."""

    item: Type


@dataclass(slots=True, eq=False)
class TupleType(Node):
    """``(a, b)``."""

    items: tuple[Type, ...]


Type: TypeAlias = Primitive | TensorType | ArrayType | TupleType


@dataclass(slots=True, eq=False)
class Assignment(Node):
    """``target = value;``."""

    target: Target
    value: Expression


@dataclass(slots=True, eq=False)
class Variable(Node):
    """A ``variable`` of a graph (NNEF 1.0, 4.1.3).

    In the body of a graph, one node takes the place of an :class:`Assignment` whose 12 nodes are of the usual form,
    because a model has one for each tensor; :func:`parser.assignment_of` returns these.

    Parameters
    ----------
    start, end : int
        The range of the assignment, or of the invocation of a variable in a larger expression.
    call : int
        The start of the invocation.
    identifier : str
        The tensor it is assigned to; empty for one that stands inside an expression.
    dtype : str
        ``"scalar"``, ``"integer"`` or ``"logical"``.
    shape : tuple of int
        At most eight extents, each at least 1.
    label : str
        The label, with escapes resolved.
    """

    call: int
    identifier: str
    dtype: str
    shape: tuple[int, ...]
    label: str


@dataclass(slots=True, eq=False)
class Parameter(Node):
    """A parameter or a result of a fragment; only parameters have defaults, which are made of literals."""

    name: Identifier
    type: Type
    default: Expression | None


@dataclass(slots=True, eq=False)
class Fragment(Node):
    """A fragment; ``body`` is None for one that is only declared.

    ``generic`` tells ``<?>``, and ``generic_default`` is the type name of ``<? = type>`` or empty.
    """

    name: Identifier
    generic: bool
    generic_default: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    body: tuple[Assignment, ...] | None


@dataclass(slots=True, eq=False)
class GraphDefinition(Node):
    """The graph."""

    name: Identifier
    parameters: tuple[Identifier, ...]
    results: tuple[Identifier, ...]
    body: tuple[Assignment | Variable, ...]


@dataclass(slots=True, eq=False)
class Extension(Node):
    """``extension text;``: names with blanks or commas between them, or whatever a vendor has put there."""

    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """The words of the text; for Khronos' extensions, their names."""
        return tuple(self.text.replace(",", " ").split())


@dataclass(slots=True, eq=False)
class Document(Node):
    """All of it; ``version`` is as it is written."""

    version: str
    extensions: tuple[Extension, ...]
    fragments: tuple[Fragment, ...]
    graph: GraphDefinition


@dataclass(slots=True, eq=False)
class Entry(Node):
    """``"tensor": operation(arguments);`` of a ``graph.quant`` (NNEF 1.0, 5.3)."""

    tensor: str
    call: Invocation


def children(expression: Expression) -> tuple[Expression, ...]:
    """The expressions that an expression is directly made of, in the order of the text."""
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
    """An expression and all that is in it, each before what it is made of, in the order of the text."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))
