"""Conversion of an NNEF document to a graph: resolves names, operators and fragments.

Operators become the equivalent operations (NNEF 1.0, table 1). Calls of fragments are inlined. Conditional expressions
and loops become unknown values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...topology import graph as topology
from ...topology.graph import Tensor, Value
from .graph import NnefGraph
from .operations import operations
from .tree import (
    Array,
    Assignment,
    Expression,
    Fragment,
    Identifier,
    Invocation,
    Literal,
    Operation,
    SyntaxNode,
    Target,
    Tuple,
    Unary,
    Variable,
    walk,
)

#: Operations that blocks and layers consist of, and the parameters of these operations that the graph keeps.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "conv": ("input", "filter", "bias"),
    "deconv": ("input", "filter", "bias"),
    "separable_conv": ("input", "plane_filter", "point_filter", "bias"),
    "linear": ("input", "filter", "bias"),
    "matmul": ("A", "B", "transposeA", "transposeB"),
    "batch_normalization": ("input", "mean", "variance", "offset", "scale", "epsilon"),
    "add": ("x", "y"),
    "mul": ("x", "y"),
    "transpose": ("input", "axes"),
    "external": ("shape",),
    **dict.fromkeys(("copy", "relu", "sigmoid", "tanh", "softplus", "abs", "sqr", "sqrt"), ("x",)),
    "clamp": ("x", "a", "b"),
    "softmax": ("x", "axes"),
    **dict.fromkeys(("max_pool", "avg_pool"), ("input", "size", "border", "padding", "stride", "dilation")),
    "mean_reduce": ("input", "axes"),
    "local_response_normalization": ("input", "size", "alpha", "beta", "bias"),
    "reshape": ("input", "shape", "axis_start", "axis_count"),
    **dict.fromkeys(("squeeze", "unsqueeze"), ("input", "axes")),
    "concat": ("values", "axis"),
    "pad": ("input", "padding", "border", "value"),
}
_OPERATORS = {
    **{"+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow", "<": "lt", ">": "gt", "<=": "le", ">=": "ge"},
    **{"==": "eq", "!=": "ne", "&&": "and", "||": "or"},
}

_MAX_DEPTH = 200
# Limit on syntax nodes of all inlined fragments.
_MAX_INLINED = 500_000
# Longer arrays of literals are data, and become unknown values.
_MAX_LITERALS = 8


class _TooMuchError(Exception):
    """Fragments are recursive, or inlining exceeds a limit."""


@dataclass(frozen=True)
class Flow(topology.Graph):
    """Graph of an NNEF document.

    Parameters
    ----------
    names : mapping of str to Value
        Values of the identifiers at the end of the document's graph.
    """

    names: Mapping[str, Value] = field(default_factory=dict)


def flow(graph: NnefGraph, *, whole: bool = False) -> Flow:
    """Return the values of a graph, or no values if fragments make it too large.

    Only operations of :data:`PARAMETERS` have a name in the graph. With ``whole``, all operations of NNEF have one,
    which takes longer.
    """
    follower = _Follower(graph, whole)
    try:
        names = follower.run(graph)
    except _TooMuchError:
        return Flow()
    return Flow(follower.values, names=names)


_Names = dict[str, Value]


class _Follower:
    def __init__(self, graph: NnefGraph, whole: bool) -> None:
        self.parameters = _declared() if whole else PARAMETERS
        self.variables = {variable.call: variable for variable in graph.variables}
        self.labels: dict[str, list[str]] = {}  # labels of the variables of each tensor, by folded label
        for variable in graph.variables:
            self.labels.setdefault(variable.label.casefold(), []).append(variable.label)
        self.fragments = {part.name.name: part for part in graph.document.fragments if part.body is not None}
        self.sizes = {name: sum(1 for _ in _nodes(fragment)) for name, fragment in self.fragments.items()}
        self.values: list[Value] = []
        self.unknown = Value()
        self.inlined_nodes = 0

    def run(self, graph: NnefGraph) -> _Names:
        names: _Names = {}
        self.body(graph.document.graph.body, names, 0)
        for result in graph.document.graph.results:
            self.lose(result, names)
        return names

    def body(self, assignments: tuple[Assignment | Variable, ...], names: _Names, depth: int) -> None:
        for assignment in assignments:
            if isinstance(assignment, Variable):
                names[assignment.identifier] = self.stored(assignment)
                continue
            self.assign(assignment.target, self.value(assignment.value, names, depth), names)

    def assign(self, target: Target | Expression, value: Value, names: _Names) -> None:
        if isinstance(target, Identifier):
            names[target.name] = value
        elif isinstance(target, Array | Tuple):
            items = value.items
            if items is None or len(items) != len(target.items):
                value.users += [self.unknown, self.unknown]
                items = [self.new() for _ in target.items]
            for part, item in zip(target.items, items, strict=True):
                self.assign(part, item, names)

    def new(self, operation: str = "", inputs: Mapping[str, Value] | None = None, text: str = "") -> Value:
        """Return a new value that is computed from other values."""
        value = Value(operation, dict(inputs or {}), text)
        for used in value.inputs.values():
            used.users.append(value)
        self.values.append(value)
        return value

    def lose(self, expression: Expression, names: _Names) -> Value:
        """Return an unknown value for an expression, which may use its operands any number of times."""
        for node in walk(expression):
            if isinstance(node, Identifier) and node.name in names:
                names[node.name].users += [self.unknown, self.unknown]
        return self.new()

    def value(self, expression: Expression, names: _Names, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise _TooMuchError
        match expression:
            case Identifier(name=name):
                return names.get(name) or self.new()
            case Literal(value=constant):
                return self.constant(constant)
            case Unary(operator="-", operand=Literal(value=int(constant) | float(constant))):
                return self.constant(-constant)
            case Array(items=items) | Tuple(items=items):
                if len(items) > _MAX_LITERALS and all(isinstance(item, Literal) for item in items):
                    return self.new()
                values = list(map(functools.partial(self.value, names=names, depth=depth + 1), items))
                value = self.new("", {str(place): item for place, item in enumerate(values)})
                value.items = values
                return value
            case Operation(operators=operators, operands=(first, *others)):
                result = self.value(first, names, depth + 1)
                for operator, operand in zip(operators, others, strict=True):
                    pair = {"x": result, "y": self.value(operand, names, depth + 1)}
                    result = self.new(_OPERATORS.get(operator, ""), pair, operator)
                return result
            case Invocation():
                return self.call(expression, names, depth)
        return self.lose(expression, names)

    def constant(self, value: bool | int | float | str) -> Value:
        made = self.new()
        made.constant = value
        return made

    def stored(self, variable: Variable) -> Value:
        made, labels = self.new(), self.labels[variable.label.casefold()]
        made.tensor = Tensor(labels[0], variable.shape, variable.dtype == "scalar", len(labels) == 1)
        return made

    def call(self, call: Invocation, names: _Names, depth: int) -> Value:
        if call.start in self.variables:
            return self.stored(self.variables[call.start])
        operation = call.operation.name
        fragment = self.fragments.get(operation)
        if fragment:
            self.inlined_nodes += self.sizes[operation]
            if self.inlined_nodes > _MAX_INLINED:
                raise _TooMuchError
        known = [part.name.name for part in fragment.parameters] if fragment else self.parameters.get(operation, ())
        bound: _Names = {}
        for place, argument in enumerate(call.arguments):
            name = argument.name.name if argument.name else known[place] if place < len(known) else ""
            # An argument without a parameter of its own gets its position as name; identifiers are never digits.
            bound[name if name and name not in bound else str(place)] = self.value(argument.value, names, depth + 1)
        if fragment:
            return self.inlined(fragment, bound, depth)
        understood = known and not any(name.isdigit() for name in bound)
        return self.new(operation if understood else "", bound, operation)

    def inlined(self, fragment: Fragment, names: _Names, depth: int) -> Value:
        """Return the results of a fragment for the values of its parameters."""
        for parameter in fragment.parameters:
            if parameter.name.name not in names and parameter.default is not None:
                names[parameter.name.name] = self.value(parameter.default, {}, depth + 1)
        # A call uses twice the stack of an expression.
        self.body(fragment.body or (), names, depth + 2)
        results = [names.get(result.name.name) or self.new() for result in fragment.results]
        if len(results) == 1:
            return results[0]
        value = self.new()
        value.items = results
        return value


@functools.cache
def _declared() -> Mapping[str, tuple[str, ...]]:
    """Return the parameters of all operations of NNEF."""
    return {
        name: tuple(parameter.name.name for parameter in declared.parameters) for name, declared in operations().items()
    }


def _nodes(fragment: Fragment) -> Iterator[SyntaxNode]:
    """Yield all syntax nodes that inlining a call of this fragment visits."""
    yield fragment
    for parameter in (*fragment.parameters, *fragment.results):
        yield parameter
        if parameter.default is not None:
            yield from walk(parameter.default)
    for assignment in fragment.body or ():
        yield from walk(assignment.target)
        yield from walk(assignment.value)
