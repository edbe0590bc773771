"""Variables of an NNEF document (NNEF 1.0, 4.1.3).

Variables are found in the body of the graph, also nested in expressions; their arguments may be literals, lists, ``+``
and ``*``. Any fault is a FormatError with file, line and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...limits import Limits
from .constants import DATA_TYPES, MAX_EXTENT, evaluate
from .labels import is_legal
from .lexer import Text
from .parser import invocation_at, parse
from .tree import Array, Assignment, Document, Expression, Identifier, Invocation, Literal, Variable, walk

_PARAMETERS = ("shape", "label")


@dataclass(frozen=True, slots=True)
class NnefGraph:
    """NNEF document, its variables in the order of the text, and the text."""

    document: Document
    variables: tuple[Variable, ...]
    text: Text

    def line(self, variable: Variable) -> int:
        """Return the line of a variable, from 1."""
        return self.text.place(variable.call)[0]


def parse_graph(data: bytes, limits: Limits | None = None, source: str = "graph.nnef") -> NnefGraph:
    """Read an NNEF document.

    Parameters
    ----------
    data : bytes
        The document in UTF-8.
    limits : Limits, optional
        ``max_topology_bytes``, ``max_names`` and ``max_name_bytes`` apply.
    source : str
        Name of the document in errors.

    Raises
    ------
    FormatError
        The document is malformed, or a variable is not constant or violates NNEF 1.0, 4.1.3.
    LimitError
        The document exceeds the limits.
    """
    limits = limits or Limits()
    return read_graph(parse(data, limits, source), Text(data, source, "4.1.3"), limits)


def read_graph(document: Document, text: Text, limits: Limits) -> NnefGraph:
    """Read the variables of a parsed document; raises the errors of :func:`parse_graph`."""
    for fragment in document.fragments:
        for _, call in _variables(fragment.body or ()):
            text.fail(
                f"fragment {fragment.name.name!r} contains a variable; only the graph may contain variables", call.start
            )
    variables: list[Variable] = []
    what = f"variables of {text.source}"
    for identifier, call in _variables(document.graph.body):
        limits.check("max_names", len(variables) + 1, what)
        if isinstance(call, Variable):
            _check_size(call.label, text, limits)
            variables.append(call)
        else:
            variables.append(_variable(identifier, call, text, limits))
    _check_shared(variables, text)
    return NnefGraph(document, tuple(variables), text)


def with_shapes(data: bytes, graph: NnefGraph, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return the document with other shapes for the variables of some labels (case is ignored); the rest is unchanged.

    In a shape that is a list of numbers, only the numbers that differ are replaced; any other expression is replaced by
    a list. If a shape has fewer extents than the variable, like a bias declared as [1, C], they replace the extents
    other than 1; a shape that cannot be matched is ignored.
    """
    pieces, at = [], 0
    for variable in graph.variables:
        shape = list(shapes.get(variable.label.casefold(), variable.shape))
        places = [k for k, extent in enumerate(variable.shape) if extent != 1]
        if len(shape) < len(variable.shape) and len(shape) == len(places):
            extents = iter(shape)
            shape = [next(extents) if k in places else 1 for k in range(len(variable.shape))]
        if len(shape) != len(variable.shape) or tuple(shape) == variable.shape:
            continue
        expression = _arguments(invocation_at(data, variable.call), graph.text)["shape"]
        for node, replacement in _edits(expression, variable.shape, shape):
            pieces += [data[at : node.start], replacement.encode()]
            at = node.end
    return b"".join([*pieces, data[at:]])


def _edits(extents: Expression, old: tuple[int, ...], new: list[int]) -> list[tuple[Expression, str]]:
    if isinstance(extents, Array) and all(isinstance(item, Literal) for item in extents.items):
        changes = zip(extents.items, old, new, strict=True)
        return [(item, str(after)) for item, before, after in changes if before != after]
    return [(extents, str(new))]


def _variables(body: Sequence[Assignment | Variable]) -> Iterator[tuple[str, Invocation | Variable]]:
    """Yield the invocations of ``variable`` in order, each with the identifier to which it is assigned, if any."""
    for assignment in body:
        if isinstance(assignment, Variable):
            yield assignment.identifier, assignment
            continue
        # In a larger expression, as in `variable(...) + x`, it has no identifier.
        target = assignment.target.name if isinstance(assignment.target, Identifier) else ""
        value = assignment.value
        if isinstance(value, Invocation) and value.operation.name == "variable":
            # Callers reject arguments that are not constant, so they cannot contain a variable.
            yield target, value
            continue
        for node in walk(value):
            if isinstance(node, Invocation) and node.operation.name == "variable":
                yield "", node


def _variable(identifier: str, call: Invocation, text: Text, limits: Limits) -> Variable:
    dtype = call.generic or "scalar"
    if dtype not in DATA_TYPES:
        text.fail(f"a variable has type {dtype!r}; the type must be {', '.join(DATA_TYPES)}", call.start)
    arguments = _arguments(call, text)
    if len(arguments) < len(_PARAMETERS):
        text.fail("a variable requires shape and label", call.start)
    label, shape = _label(arguments["label"], text, limits), _shape(arguments["shape"], text)
    return Variable(call.start, call.end, call.start, identifier, dtype, shape, label)


def _arguments(call: Invocation, text: Text) -> dict[str, Expression]:
    arguments: dict[str, Expression] = {}
    named = False
    for argument in call.arguments:
        if argument.name is None:
            if named:
                text.fail("positional arguments must precede named ones", argument.start, "3.3.2")
            if len(arguments) == len(_PARAMETERS):
                text.fail("a variable has more than two arguments", argument.start)
            name = _PARAMETERS[len(arguments)]
        else:
            named, name = True, argument.name.name
            if name not in _PARAMETERS:
                text.fail(f"a variable has no parameter {name[:40]!r}", argument.start)
            if name in arguments:
                text.fail(f"{name} is given twice", argument.start, "3.3.2")
        arguments[name] = argument.value
    return arguments


def _label(expression: Expression, text: Text, limits: Limits) -> str:
    value = evaluate(expression, text)
    if not isinstance(value, str):
        text.fail("the label must be a string", expression.start)
    _check_size(value, text, limits)
    if not is_legal(value):
        text.fail(f"label {value[:80]!a} is empty or has characters that NNEF does not permit", expression.start)
    return value


def _check_size(label: str, text: Text, limits: Limits) -> None:
    if len(label) > limits.max_name_bytes:  # inline check, because it runs for every label
        limits.check("max_name_bytes", len(label), f"bytes of a label in {text.source}")


def _shape(expression: Expression, text: Text) -> tuple[int, ...]:
    value = evaluate(expression, text)
    if not isinstance(value, list):
        text.fail("the shape must be a list of integers", expression.start)
    extents = []
    for extent in value:
        if not isinstance(extent, int) or not 1 <= extent <= MAX_EXTENT:
            text.fail(f"extents must be integers from 1 to {MAX_EXTENT}", expression.start)
        extents.append(extent)
    return tuple(extents)


def _check_shared(variables: Sequence[Variable], text: Text) -> None:
    """Check that variables whose labels differ only in case, and so share data, agree (NNEF 1.0, 4.1.3)."""
    first: dict[str, Variable] = {}
    for variable in variables:
        other = first.setdefault(variable.label.casefold(), variable)
        if (other.shape, other.dtype) != (variable.shape, variable.dtype):
            line = text.place(other.call)[0]
            message = f"label {variable.label!r} is also used in line {line}, with another shape or data type"
            text.fail(message, variable.call)
