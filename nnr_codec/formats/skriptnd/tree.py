"""Syntax tree of a SkriptND module (NNEF 2 draft, 2.16).

Every node has the byte offsets of its start and of its end (exclusive). No expression is higher than
:data:`parser.MAX_NESTING` for any length of text, because a chain of operators of one precedence is one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..nnef.tree import SyntaxNode


@dataclass(slots=True, eq=False)
class Expression(SyntaxNode):
    """Expression (2.4).

    Parameters
    ----------
    kind : str
        One of:

        * ``literal``: ``value`` is an int, float, bool or str (without resolving escapes);
        * ``format``: string literal with ``operands`` in braces; ``value`` is its text;
        * ``name``: ``value`` is an identifier, which may end with ``.shape``, ``.rank`` or ``.size``;
        * ``call``: function or cast ``value`` with at most one operand;
        * ``list``, ``zip``: items;
        * ``range``: begin, end and step;
        * ``expand``: an item before ``..``, and its count;
        * ``index``, ``access``: a pack or tensor and its indices;
        * ``substitute``: an ``index`` before ``<-``, and the new value;
        * ``unary``: operator ``value`` with its operand;
        * ``operation``: operands joined by the operators in ``value``, a tuple, from left to right;
        * ``fold``, ``cumulate``: an operand folded by the operator ``value``;
        * ``select``: condition, value and alternative;
        * ``coalesce``: value and default;
        * ``bounded``: index, and the indices below and above the bounds.
    value : str, int, float, bool, or tuple of str
        See above; empty for other kinds.
    operands : tuple of Expression or None
        None for an omitted part.
    height : int
        Number of nodes to the deepest operand.
    """

    kind: str
    value: bool | int | float | str | tuple[str, ...]
    operands: tuple[Expression | None, ...]
    height: int


@dataclass(slots=True, eq=False)
class Pack(SyntaxNode):
    """``..`` or ``..(length|bound)``; ``length`` is None if it is omitted or ``~``."""

    length: Expression | None
    bound: Expression | None


@dataclass(slots=True, eq=False)
class Extent(SyntaxNode):
    """``value|bound..(length)`` in a shape; ``value`` is None for ``~``, and ``is_spread`` is True after ``..``."""

    is_spread: bool
    value: Expression | None
    bound: Expression | None
    pack: Pack | None


@dataclass(slots=True, eq=False)
class Bound(SyntaxNode):
    """``name < value``, an index symbol with its upper bound."""

    name: str
    value: Expression


@dataclass(slots=True, eq=False)
class TypeParameter(SyntaxNode):
    """``name: base = default;`` of ``@dtype``; ``default`` may be empty."""

    name: str
    base: str
    default: str


@dataclass(slots=True, eq=False)
class Declaration(SyntaxNode):
    """Declaration of an attribute, input, output, constant or variable.

    ``rank`` is the name in ``^(name)``, or empty; ``shape`` is None without brackets.
    """

    name: str
    is_optional: bool
    type: str
    rank: str
    shape: tuple[Extent, ...] | None
    pack: Pack | None
    default: Expression | None
    bounds: tuple[Bound, ...]


@dataclass(slots=True, eq=False)
class Target(SyntaxNode):
    """Item on the left side of an assignment: ``name: type[shape]..(length)``.

    ``names`` has several names for ``(a, b)..``, and none for ``~``.
    """

    names: tuple[str, ...]
    type: str
    shape: tuple[Extent, ...] | None
    pack: Pack | None


@dataclass(slots=True, eq=False)
class Targets(SyntaxNode):
    """One item, or a list of items in brackets."""

    is_list: bool
    items: tuple[Target, ...]


@dataclass(slots=True, eq=False)
class Using(SyntaxNode):
    """``targets = value;`` of ``@using``."""

    targets: Targets
    value: Expression


@dataclass(slots=True, eq=False)
class Assertion(SyntaxNode):
    """``condition: message, label: value, ...;``; labels may be empty."""

    condition: Expression
    message: Expression | None
    values: tuple[tuple[str, Expression], ...]


@dataclass(slots=True, eq=False)
class IterationCount(SyntaxNode):
    """``..(index -> count)``; ``index`` may be empty, or ``count`` None."""

    index: str
    count: Expression | None


@dataclass(slots=True, eq=False)
class Lowering(SyntaxNode):
    """``unroll..(count) with locals: target operator value, bounds | condition;``."""

    unroll: IterationCount | None
    locals: tuple[tuple[str, Expression], ...]
    target: Expression
    operator: str
    value: Expression
    bounds: tuple[Bound, ...]
    condition: Expression | None


@dataclass(slots=True, eq=False)
class Invocation(SyntaxNode):
    """``label: operator<types>{attributes}(arguments)``; an argument is None for ``~``."""

    label: str
    operator: str
    types: tuple[str, ...]
    attributes: tuple[tuple[str, Expression], ...]
    arguments: tuple[Expression | None, ...]


@dataclass(slots=True, eq=False)
class Region(SyntaxNode):
    """``label: { components yield results; }``."""

    label: str
    components: tuple[Component, ...]
    results: tuple[Expression, ...]


Callable: TypeAlias = Invocation | Region | Expression


@dataclass(slots=True, eq=False)
class Branch(SyntaxNode):
    """``if condition then value elif ... else otherwise``, with at least one pair of condition and value."""

    cases: tuple[tuple[Callable, Callable], ...]
    otherwise: Callable


@dataclass(slots=True, eq=False)
class Loop(SyntaxNode):
    """``with carried for scanned while condition do..(count) body``, or with ``while`` at the end."""

    carried: tuple[tuple[Target, Expression], ...]
    scanned: tuple[tuple[str, Expression], ...]
    condition: Callable | None
    is_tested_first: bool
    is_unrolled: bool
    count: IterationCount | None
    body: Callable


@dataclass(slots=True, eq=False)
class Component(SyntaxNode):
    """``results = value;`` of ``@compose`` and ``@update``."""

    results: tuple[Targets, ...]
    value: Callable | Branch | Loop


@dataclass(slots=True, eq=False)
class Quantization(SyntaxNode):
    """``tensor: operator{attributes};``; the invocation has no label and no arguments."""

    tensor: str
    invocation: Invocation


@dataclass(slots=True, eq=False)
class Definition(SyntaxNode):
    """Operator or graph; ``start`` is the offset of its name."""

    is_graph: bool
    is_public: bool
    name: str
    types: tuple[TypeParameter, ...] = ()
    attributes: tuple[Declaration, ...] = ()
    inputs: tuple[Declaration, ...] = ()
    outputs: tuple[Declaration, ...] = ()
    constants: tuple[Declaration, ...] = ()
    variables: tuple[Declaration, ...] = ()
    symbols: tuple[Using, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    lowerings: tuple[Lowering, ...] = ()
    components: tuple[Component, ...] = ()
    updates: tuple[Component, ...] = ()
    quantizations: tuple[Quantization, ...] = ()


@dataclass(slots=True, eq=False)
class Document(SyntaxNode):
    """Module; ``version`` is as written, or empty."""

    version: str
    extensions: tuple[str, ...]
    imports: tuple[str, ...]
    definitions: tuple[Definition, ...]
