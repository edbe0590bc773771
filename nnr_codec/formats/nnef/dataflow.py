"""Conversion of an NNEF document to a graph: resolves names, operators and fragments, and propagates shapes.

Operators become the equivalent operations (NNEF 1.0, table 1). Calls of fragments are inlined. Conditional expressions,
loops and arithmetic are evaluated if their operands are known when the graph is built; otherwise they become unknown
values. The shape of each result follows from :mod:`.shapes`; it is unknown if an operand or an argument is unknown, or
if the operation is faulty or of a vendor. With these shapes, :func:`flow` checks the operands of all operations (NNEF
1.0.3, chapter 6, step 3).

The text is hostile. The work of fragments, loops and computed arrays is counted before it is done, and a graph beyond
:data:`MAX_WORK` has no values. Numbers, arrays, ranks and extents beyond their limits are unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...topology import graph as topology
from ...topology.graph import Tensor, Value
from .constants import MAX_KNOWN, Known, combine, convert, known_size, negate
from .graph import NnefGraph
from .lexer import PRIMITIVES
from .operations import argument_fault, operations
from .shapes import FUNCTIONS, Shape, ShapeError
from .tree import (
    Argument,
    Array,
    Assignment,
    Builtin,
    Comprehension,
    Conditional,
    Expression,
    Fragment,
    Identifier,
    Invocation,
    Literal,
    Operation,
    Subscript,
    SyntaxNode,
    Target,
    Tuple,
    Unary,
    Variable,
    walk,
)
from .types import ArrayOf, TensorOf, TupleOf, Type, declared, is_attribute

#: Operations that blocks and layers consist of.
_NAMED = frozenset(
    {
        *("conv", "deconv", "separable_conv", "linear", "matmul", "batch_normalization", "add", "mul", "transpose"),
        *("external", "copy", "relu", "sigmoid", "tanh", "softplus", "abs", "sqr", "sqrt", "clamp", "softmax"),
        *("max_pool", "avg_pool", "mean_reduce", "local_response_normalization", "reshape", "squeeze", "unsqueeze"),
        *("concat", "pad"),
    }
)
_OPERATORS = {
    **{"+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow", "<": "lt", ">": "gt", "<=": "le", ">=": "ge"},
    **{"==": "eq", "!=": "ne", "&&": "and", "||": "or"},
}
_UNARY = {"-": "neg", "+": "copy", "!": "not"}

_MAX_DEPTH = 200
#: Limit on the syntax nodes of all inlined fragments and iterations of loops, and on the items of computed arrays.
MAX_WORK = 500_000
# Longer arrays of known items have no value for each item, until these are needed.
_MAX_LITERALS = 8
# Items that are read without being charged.
_SHORT = 64
# Results of a higher rank, or with a larger extent, have no shape.
_MAX_RANK, _MAX_EXTENT = 32, 1 << 63

#: Receiver of findings: rule, message, node, clause (empty: the clause of the rule), and the invocation in the graph of
#: the fragment that contains the node, if any.
Report = Callable[[str, str, SyntaxNode, str, Invocation | None], None]


class _TooMuchError(Exception):
    """Recursion of fragments, or inlining that exceeds a limit."""


def flow(graph: NnefGraph, *, whole: bool = False, report: Report | None = None) -> topology.Graph:
    """Return the values of a graph with names and results, or no values if fragments and loops make it too large.

    Only operations that blocks and layers consist of have a name in the graph. With ``whole``, all operations of NNEF
    have one. ``report`` receives the findings of the shape propagation.
    """
    follower = _Follower(graph, whole, report)
    try:
        names = follower.run(graph)
    except _TooMuchError:
        message = f"fragments and loops are nested too deeply, or exceed {MAX_WORK:,} steps; shapes are not checked"
        follower.tell("shape-limit", message, graph.document.graph)
        return topology.Graph()
    results = [names.get(result.name) for result in graph.document.graph.results]
    return topology.Graph(follower.values, names=names, results=results)


_Names = dict[str, Value]


class _Follower:
    def __init__(self, graph: NnefGraph, whole: bool, report: Report | None) -> None:
        self.named = operations().keys() if whole else _NAMED
        self.report, self.reported = report, set[tuple[str, int]]()
        self.variables = {variable.call: variable for variable in graph.variables}
        self.labels: dict[str, list[str]] = {}  # labels of the variables of each tensor, by folded label
        for variable in graph.variables:
            self.labels.setdefault(variable.label.casefold(), []).append(variable.label)
        self.fragments = {part.name.name: part for part in graph.document.fragments if part.body is not None}
        self.sizes = {name: sum(1 for _ in _nodes(fragment)) for name, fragment in self.fragments.items()}
        self.values: list[Value] = []
        self.unknown = Value()
        self.work = 0
        self.calls: list[Invocation] = []  # of the fragments that are being inlined
        # By the identity of values: known arrays, and the tensors of an array or a tuple that an operation returns.
        self.arrays: dict[int, tuple[Known, ...]] = {}
        self.parts: dict[int, list[Value]] = {}

    def run(self, graph: NnefGraph) -> _Names:
        names: _Names = {}
        self.body(graph.document.graph.body, names, 0)
        for result in graph.document.graph.results:
            self.lose(result, names)
        return names

    def tell(self, rule: str, message: str, node: SyntaxNode, clause: str = "") -> None:
        """Report a finding at a node, which a fragment may repeat for each invocation."""
        if self.report is not None and (rule, node.start) not in self.reported:
            self.reported.add((rule, node.start))
            self.report(rule, message, node, clause, self.calls[0] if self.calls else None)

    def charge(self, work: int) -> None:
        """Count work before it is done; raise _TooMuchError beyond the limit."""
        self.work += work
        if self.work > MAX_WORK:
            raise _TooMuchError

    def weigh(self, value: Known | None) -> None:
        """Charge the work of reading a long value; a short one costs no more than the text that uses it."""
        if isinstance(value, tuple | str) and (size := known_size(value)) > _SHORT:
            self.charge(size)

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
            items = self.items(value)
            if items is None or len(items) != len(target.items):
                if items is not None:
                    self.tell(
                        "target-structure",
                        f"{len(items)} items are assigned to {len(target.items)} identifiers",
                        target,
                    )
                self.drop(value)
                items = [self.new() for _ in target.items]
            for part, item in zip(target.items, items, strict=True):
                self.assign(part, item, names)

    # ---------------------------------------------------------------------------------------------- values
    def new(self, operation: str = "", inputs: Mapping[str, Value] | None = None, text: str = "") -> Value:
        """Return a new value that is computed from other values."""
        value = Value(operation, dict(inputs or {}), text)
        for used in value.inputs.values():
            used.users.append(value)
        self.values.append(value)
        return value

    def drop(self, value: Value) -> None:
        """Record that something outside the graph uses a value any number of times."""
        value.users += [self.unknown, self.unknown]

    def lose(self, expression: Expression, names: _Names) -> Value:
        """Return an unknown value in place of an expression; its operands may be used any number of times."""
        for node in walk(expression):
            if isinstance(node, Identifier) and node.name in names:
                self.drop(names[node.name])
        return self.new()

    def constant(self, value: bool | int | float | str) -> Value:
        made = self.new()
        made.constant, made.shape = value, ()
        return made

    def array(self, items: Sequence[Value]) -> Value:
        """Return an array or a tuple."""
        value = self.new("", {str(place): item for place, item in enumerate(items)})
        value.items = list(items)
        if len(items) <= MAX_KNOWN:
            known = tuple(map(self.known, items))
            self.remember(value, tuple(item for item in known if item is not None) if None not in known else None)
        return value

    def remember(self, value: Value, known: tuple[Known, ...] | None) -> None:
        """Record that an array is known, unless it is too long or too deep."""
        if known is None or (size := known_size(known)) > MAX_KNOWN:
            return
        if size > len(known) + _SHORT:
            self.charge(size)
        if not any(isinstance(item, tuple) and any(isinstance(part, tuple) for part in item) for item in known):
            self.arrays[id(value)] = known

    def known(self, value: Value) -> Known | None:
        """Return a value that is known when the graph is built, or None."""
        return value.constant if value.constant is not None else self.arrays.get(id(value))

    def made(self, known: Known | None) -> Value:
        """Return a graph value with this content; its content is unknown for None."""
        if not isinstance(known, tuple):
            return self.new() if known is None else self.constant(known)
        self.charge(known_size(known))
        if len(known) <= _MAX_LITERALS:
            return self.array(list(map(self.made, known)))
        value = self.new()
        self.remember(value, known)
        return value

    def items(self, value: Value) -> list[Value] | None:
        """Return the items of an array or a tuple, or None if it is unknown."""
        if value.items is not None:
            return value.items
        if id(value) not in self.parts and id(value) in self.arrays:
            self.charge(len(self.arrays[id(value)]))
            self.parts[id(value)] = list(map(self.made, self.arrays[id(value)]))
        return self.parts.get(id(value))

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
            case Unary(operator=sign, operand=operand):
                inner = self.value(operand, names, depth + 1)
                if (known := self.known(inner)) is not None:
                    return self.made(negate(sign, known))
                made = self.new(_UNARY[sign], {"x": inner}, sign)
                made.shape = inner.shape
                return made
            case Array(items=items) | Tuple(items=items):
                if len(items) > _MAX_LITERALS and all(isinstance(item, Literal) for item in items):
                    made = self.new()
                    if len(items) <= MAX_KNOWN:
                        self.remember(made, tuple(item.value for item in items if isinstance(item, Literal)))
                    return made
                return self.array(list(map(functools.partial(self.value, names=names, depth=depth + 1), items)))
            case Operation(operators=operators, operands=(first, *others)):
                result = self.value(first, names, depth + 1)
                for sign, operand in zip(operators, others, strict=True):
                    result = self.binary(sign, result, self.value(operand, names, depth + 1), operand)
                return result
            case Invocation():
                return self.call(expression, names, depth)
            case Conditional(value=chosen, condition=condition, otherwise=otherwise):
                known = self.known(self.value(condition, names, depth + 1))
                if isinstance(known, bool):
                    return self.value(chosen if known else otherwise, names, depth + 1)
            case Comprehension():
                return self.comprehension(expression, names, depth + 1)
            case Subscript(value=operand, first=lower, last=upper):
                array = self.value(operand, names, depth + 1)
                bounds = [
                    None if bound is None else self.known(self.value(bound, names, depth + 1))
                    for bound in (lower, upper)
                ]
                return self.subscript(expression, array, bounds[0], bounds[1])
            case Builtin(function=function, argument=argument):
                return self.builtin(function, self.value(argument, names, depth + 1))
        return self.lose(expression, names)

    # ---------------------------------------------------------------------------------------------- expressions
    def binary(self, sign: str, left: Value, right: Value, node: SyntaxNode) -> Value:
        """Return the result of a binary operator; ``node`` is the right operand."""
        one, other = self.known(left), self.known(right)
        self.weigh(one)
        self.weigh(other)
        if one is not None and other is not None:
            return self.made(combine(sign, one, other))
        items, others = self.items(left), self.items(right)
        if sign == "+" and items is not None and others is not None:
            self.charge(len(items) + len(others))
            return self.array(items + others)
        if sign == "*" and items is not None and isinstance(other, int):
            if not 0 <= len(items) * other <= MAX_KNOWN:
                return self.new()
            self.charge(len(items) * other)
            return self.array(items * other)
        operation = _OPERATORS.get(sign, "")
        made = self.new(operation, {"x": left, "y": right}, sign)
        if operation:
            self.propagate(made, operation, made.inputs, node, {})
        return made

    def comprehension(self, expression: Comprehension, names: _Names, depth: int) -> Value:
        sequences = []
        for _, array in expression.iterators:
            items = self.items(self.value(array, names, depth))
            if items is None:
                return self.lose(expression, names)
            sequences.append(items)
        if len({*map(len, sequences)}) > 1:
            lengths = ", ".join(str(len(items)) for items in sequences)
            self.tell("expression-value", f"the arrays of a loop differ in length: {lengths}", expression)
            return self.lose(expression, names)
        count = len(sequences[0]) if sequences else 0
        parts = [expression.item] if expression.condition is None else [expression.condition, expression.item]
        self.charge(count * sum(1 for part in parts for _ in walk(part)))
        iterators = [iterator.name for iterator, _ in expression.iterators]
        hidden = {name: names[name] for name in iterators if name in names}
        found: list[Value] = []
        is_known = True
        for each in zip(*sequences, strict=True):
            names.update(zip(iterators, each, strict=True))
            if expression.condition is not None:
                known = self.known(self.value(expression.condition, names, depth))
                if not isinstance(known, bool):
                    is_known = False
                    break
                if not known:
                    continue
            found.append(self.value(expression.item, names, depth))
        for name in iterators:
            names.pop(name, None)
        names.update(hidden)
        return self.array(found) if is_known else self.lose(expression, names)

    def subscript(self, node: Subscript, array: Value, first: Known | None, last: Known | None) -> Value:
        """Return an item or a range of an array, a tuple or a string."""
        known = self.known(array)
        sequence = known if isinstance(known, str) else self.items(array)
        if sequence is None or (first is None and node.first is not None) or (last is None and node.last is not None):
            self.drop(array)
            return self.new()
        if node.is_range:
            start, end = first if isinstance(first, int) else 0, last if isinstance(last, int) else len(sequence)
            if start < 0 or end < 0:
                return self.new()
            part = sequence[start:end]
            self.charge(len(part))
            return self.made(part) if isinstance(part, str) else self.array(part)
        if not isinstance(first, int):
            return self.new()
        if not 0 <= first < len(sequence):
            self.tell("expression-value", f"subscript {first} is out of range for a length of {len(sequence)}", node)
            return self.new()
        item = sequence[first]
        return self.made(item) if isinstance(item, str) else item

    def builtin(self, function: str, value: Value) -> Value:
        """Return the result of a function of the language."""
        known = self.known(value)
        if function in PRIMITIVES:
            if known is not None:
                return self.made(convert(function, known))
        elif function == "shape_of":
            # The values of the graph do not follow the number of channels of this tensor.
            self.drop(value)
            return self.made(value.shape)
        else:
            sequence = known if isinstance(known, str | tuple) else self.items(value)
            if sequence is not None and len(sequence) <= MAX_KNOWN:
                return self.made(len(sequence) if function == "length_of" else tuple(range(len(sequence))))
        self.drop(value)
        return self.new()

    # ---------------------------------------------------------------------------------------------- invocations
    def stored(self, variable: Variable) -> Value:
        made, labels = self.new(), self.labels[variable.label.casefold()]
        made.tensor = Tensor(labels[0], variable.shape, variable.dtype == "scalar", len(labels) == 1)
        made.shape = variable.shape
        return made

    def call(self, call: Invocation, names: _Names, depth: int) -> Value:
        if call.start in self.variables:
            return self.stored(self.variables[call.start])
        operation = call.operation.name
        fragment = self.fragments.get(operation)
        if fragment:
            self.charge(self.sizes[operation])
        places = [part.name.name for part in fragment.parameters] if fragment else _tensors().get(operation, ())
        bound: _Names = {}
        given: dict[str, Argument] = {}
        for place, argument in enumerate(call.arguments):
            name = argument.name.name if argument.name else places[place] if place < len(places) else ""
            # An argument without a parameter of its own gets its position as name; identifiers are never digits.
            name = name if name and name not in bound else str(place)
            bound[name], given[name] = self.value(argument.value, names, depth + 1), argument
        if fragment:
            self.calls.append(call)
            value = self.inlined(fragment, bound, depth)
            self.calls.pop()
            return value
        understood = operation in FUNCTIONS and not any(name.isdigit() for name in bound)
        value = self.new(operation if understood and operation in self.named else "", bound, operation)
        if understood:
            self.propagate(value, operation, bound, call, given)
        return value

    def propagate(
        self,
        value: Value,
        operation: str,
        bound: Mapping[str, Value],
        node: SyntaxNode,
        given: Mapping[str, Argument],
    ) -> None:
        """Set the shape of a result, and report operands that violate a rule."""
        function, parameters, clause = FUNCTIONS[operation]
        for name, argument in given.items():
            known = self.known(bound[name])
            self.weigh(known)
            if known is not None and (fault := argument_fault(operation, name, known)):
                self.tell("argument-value", fault[0], argument.value, fault[1])
                return
        arguments = {}
        for name in parameters:
            type_, default = _types()[operation][name]
            found = self.argument(bound[name], type_) if name in bound else default
            if found is None:
                return
            arguments[name] = found
        try:
            result = function(**arguments)
        except ShapeError as error:
            at = given[error.parameter].value if error.parameter in given else node
            self.tell(error.rule, f"{operation}: {error.message}", at, clause)
            return
        if isinstance(result, tuple):
            self.shape(value, result)
        elif result is not None:
            self.charge(len(result))
            self.drop(value)
            self.parts[id(value)] = [self.new() for _ in result]
            for part, shape in zip(self.parts[id(value)], result, strict=True):
                self.shape(part, shape)

    def shape(self, value: Value, shape: Shape) -> None:
        if len(shape) <= _MAX_RANK and max(shape, default=1) < _MAX_EXTENT:
            value.shape = shape

    def argument(self, value: Value, type_: Type) -> object:
        """Return an argument for a shape function; None if it is unknown or of another type."""
        if isinstance(type_, TensorOf):
            return value.shape
        if type_ == ArrayOf(TensorOf("")):
            items = self.items(value)
            if items is None:
                return None
            if len(items) > _SHORT:
                self.charge(len(items))
            shapes = [item.shape for item in items]
            return None if None in shapes else shapes
        known = self.known(value)
        return known if known is not None and _is(known, type_) else None

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
def _tensors() -> Mapping[str, tuple[str, ...]]:
    """Return the parameters of all operations of NNEF that are tensors, which may be positional arguments."""
    return {
        name: tuple(parameter for parameter, (type_, _) in types.items() if not is_attribute(type_))
        for name, types in _types().items()
    }


@functools.cache
def _types() -> Mapping[str, Mapping[str, tuple[Type, object]]]:
    """Return the type of each parameter of all operations of NNEF, and its default as an argument of a shape function.

    Item types of tensors are left out; the default is None if there is none.
    """
    return {
        name: {
            parameter.name.name: (
                type_ := _without_items(declared(parameter.type)),
                _default(parameter.default, type_),
            )
            for parameter in fragment.parameters
        }
        for name, fragment in operations().items()
    }


def _without_items(type_: Type) -> Type:
    if isinstance(type_, ArrayOf):
        return ArrayOf(_without_items(type_.item))
    return TensorOf("") if isinstance(type_, TensorOf) else type_


def _default(expression: Expression | None, type_: Type) -> object:
    if isinstance(type_, TensorOf):
        return None if expression is None else ()
    if isinstance(expression, Array):
        return tuple(_default(item, "") for item in expression.items)
    if isinstance(expression, Unary):
        return -1 if isinstance(expression.operand, Literal) and expression.operand.value == 1 else None
    return expression.value if isinstance(expression, Literal) else None


def _is(known: Known, type_: Type) -> bool:
    """Return whether a known value has a type of attributes."""
    if isinstance(known, tuple):
        if isinstance(type_, TupleOf):
            return len(known) == len(type_.items) and all(map(_is, known, type_.items))
        return isinstance(type_, ArrayOf) and all(_is(item, type_.item) for item in known)
    return type_ == {bool: "logical", int: "integer", float: "scalar", str: "string"}[type(known)]


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
