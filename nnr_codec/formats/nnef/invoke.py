"""Invocations of operations and fragments (NNEF 1.0.3, 3.3.2), and requirements of standard operations (4)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...errors import FormatError
from ..findings import ModelFindings
from .constants import DATA_TYPES, MAX_EXTENT, MAX_RANK, Value, evaluate
from .infer import Inference, literal_type
from .labels import is_legal
from .lexer import PRIMITIVES, Text
from .operations import GRAPH_ONLY, argument_fault, later_operations, operations
from .tree import Argument, Array, Expression, Fragment, Identifier, Invocation, Literal, Unary
from .types import GENERIC, SHAPE, Type, candidates, castable, declared, is_attribute, spelled, substitute, tuple_of


@dataclass(frozen=True)
class Declared:
    """Variable as far as it is readable: ``shape`` and ``label`` are None if they are invalid."""

    identifier: str
    dtype: str
    shape: tuple[int, ...] | None
    label: str | None
    line: int
    call: Invocation


@dataclass(frozen=True)
class Signature:
    """Declaration against which an invocation is checked."""

    fragment: Fragment
    names: tuple[str, ...]
    types: Mapping[str, Type]
    required: frozenset[str]
    result: Type

    def without(self, name: str) -> Signature:
        """Return a copy without one parameter."""
        names = tuple(other for other in self.names if other != name)
        return replace(
            self, names=names, types={other: self.types[other] for other in names}, required=self.required - {name}
        )


def _signature(fragment: Fragment) -> Signature:
    types = {parameter.name.name: declared(parameter.type) for parameter in fragment.parameters}
    results = [declared(result.type) for result in fragment.results]
    return Signature(
        fragment,
        tuple(parameter.name.name for parameter in fragment.parameters),
        types,
        frozenset(parameter.name.name for parameter in fragment.parameters if parameter.default is None),
        results[0] if len(results) == 1 else tuple_of(results),
    )


@functools.cache
def standard() -> Mapping[str, Signature]:
    """Return the operations of the standard by name."""
    return {name: _signature(fragment) for name, fragment in operations().items()}


class Invoker(Inference):
    """Matcher of invocations and declarations; ``variables`` are the variables found in the body of the graph."""

    def __init__(self, fragments: Iterable[Fragment], text: Text, findings: ModelFindings, vendor: set[str]) -> None:
        super().__init__(text, findings, vendor)
        self.own = {fragment.name.name: _signature(fragment) for fragment in fragments}
        self.variables: list[Declared] = []
        self.begin(graph=False, generic=False)

    def begin(self, *, graph: bool, generic: bool) -> None:
        """Start a body: of the graph, or of a fragment."""
        self.in_graph, self.generic = graph, generic
        self.scope, self.unknown = {}, set()
        self.stored: set[str] = set()
        self.updated: set[str] = set()

    def invocation(self, call: Invocation, identifier: str | None = None) -> Type:
        """Return the type of an invocation; ``identifier`` is not None on the right side of an assignment."""
        name = call.operation.name
        signature = self.signature(call)
        given: dict[str, tuple[Argument, Type]] = {}
        if signature is None:
            for argument in call.arguments:
                self.infer(argument.value)
            what = f"unknown operation {name[:60]!r}"
            if self.vendor:
                self.tell("vendor-operation", f"{what}; it may belong to a vendor's extension", call)
            else:
                self.tell("operation-known", what, call)
            return None
        named = stray = False
        for k, argument in enumerate(call.arguments):
            type_ = self.infer(argument.value)
            named |= argument.name is not None
            if parameter := self.parameter(signature, argument, k, named=named):
                if parameter in given:
                    self.tell("argument-twice", f"{parameter!r} of {name} is given twice", argument)
                else:
                    given[parameter] = argument, type_
            else:
                stray = True
        if not stray:
            self.check_missing(call, signature, set(given))
        generic = self.check_types(call, signature, given)
        if name not in self.own:
            self.check_standard(call, given, generic, identifier)
        return substitute(signature.result, generic)

    def signature(self, call: Invocation) -> Signature | None:
        """Return the signature for an invocation; None if its operation is unknown."""
        return self.own.get(call.operation.name) or standard().get(call.operation.name)

    def parameter(self, signature: Signature, argument: Argument, position: int, *, named: bool) -> str:
        """Return the name of the parameter for an argument; empty if there is none."""
        operation = signature.fragment.name.name
        if argument.name is None:
            if named:
                self.tell("argument-order", "a positional argument follows a named argument", argument)
                return ""
            if position >= len(signature.names):
                count = len(signature.names)
                self.tell(
                    "argument-count",
                    f"too many arguments: {operation} has {count} parameter{'' if count == 1 else 's'}",
                    argument,
                )
                return ""
            name = signature.names[position]
            if is_attribute(signature.types[name]):
                self.tell("attribute-named", f"attribute {name!r} of {operation} must be a named argument", argument)
            return name
        name = argument.name.name
        if name not in signature.types:
            self.tell("argument-name", f"{operation} has no parameter {name[:60]!r}", argument)
            return ""
        if not is_attribute(signature.types[name]):
            self.tell(
                "tensor-positional", f"tensor {name!r} of {operation} as a named argument is deprecated", argument
            )
        return name

    def check_missing(self, call: Invocation, signature: Signature, given: set[str]) -> None:
        count = len(signature.required) - len(given & signature.required)
        if count:
            first = next(name for name in signature.names if name in signature.required and name not in given)
            more = f" and {count - 1} more" if count > 1 else ""
            self.tell("argument-missing", f"{signature.fragment.name.name} requires {first!r}{more}", call)

    def check_types(
        self, call: Invocation, signature: Signature, given: Mapping[str, tuple[Argument, Type]]
    ) -> str | None:
        """Check the types of arguments; return the type for ``?``, or None if it is unknown."""
        generic = self.deduce(call, signature, given)
        for name, (argument, type_) in given.items():
            wanted = substitute(signature.types[name], generic)
            if not castable(type_, wanted):
                message = f"{name!r} of {signature.fragment.name.name} must be {spelled(wanted)}, got {spelled(type_)}"
                self.tell("argument-type", message, argument.value)
        return generic

    def deduce(self, call: Invocation, signature: Signature, given: Mapping[str, tuple[Argument, Type]]) -> str | None:
        fragment, name = signature.fragment, signature.fragment.name.name
        if call.generic:
            if not fragment.generic:
                self.tell("generic-argument", f"{name} is not generic", call)
            elif call.generic == GENERIC and not self.generic:
                self.tell("generic-argument", "'?' is used outside a generic fragment", call)
            elif call.generic not in (GENERIC, *PRIMITIVES):
                self.tell("generic-argument", f"{call.generic!r} is not a primitive type", call)
            else:
                return call.generic
            return None
        if not fragment.generic:
            return None
        if fragment.generic_default:
            return fragment.generic_default
        found: set[str | None] = set()
        for parameter, (_, type_) in given.items():
            found |= candidates(signature.types[parameter], type_)
        known = sorted(item for item in found if item)
        if len(known) > 1 and GENERIC not in known:
            self.tell("generic-argument", f"the type of {name} is ambiguous: {' or '.join(known)}", call)
        elif not found and given:
            self.tell(
                "generic-argument", f"the type of {name} cannot be deduced from its arguments; give it in <>", call
            )
        return known[0] if len(known) == 1 else None

    # The operations of the standard

    def check_standard(
        self,
        call: Invocation,
        given: Mapping[str, tuple[Argument, Type]],
        generic: str | None,
        identifier: str | None,
    ) -> None:
        name = call.operation.name
        if name in later_operations():
            self.tell("later-operation", f"{name} requires NNEF 1.0.4", call)
        if name == "linear_quantize":
            self.tell("deprecated", f"{name} was renamed to min_max_{name} in NNEF 1.0.3", call, "4.9.5")
        for parameter, (argument, _) in given.items():
            self.check_value(name, parameter, argument.value)
        if name == "constant" and {"shape", "value"} <= given.keys():
            self.check_constant(given["shape"][0].value, given["value"][0].value)
        if name not in GRAPH_ONLY:
            return
        if not self.in_graph:
            self.tell("graph-only", f"{name} is not permitted in a fragment", call)
        elif name == "external" and not identifier:
            self.tell("graph-parameter", "the result of external is not a parameter of the graph", call)
        elif name == "variable" and {"shape", "label"} <= given.keys():
            self.take_variable(call, given, generic, identifier or "")
        elif name == "update" and "variable" in given:
            self.check_update(given["variable"][0].value)

    def check_value(self, name: str, parameter: str, value: Expression) -> None:
        given = value.value if isinstance(value, Literal) and isinstance(value.value, str) else _integers(value)
        if fault := argument_fault(name, parameter, given):
            self.tell("argument-value", fault[0], value, fault[1])

    def check_constant(self, shape: Expression, value: Expression) -> None:
        if isinstance(value, Array) and isinstance(shape, Array) and len(_integers(shape)) == len(shape.items):
            volume = math.prod(_integers(shape)) if len(shape.items) <= MAX_RANK else 0
            if volume and len(value.items) not in (1, volume):
                self.tell("argument-value", f"{len(value.items)} values do not match the shape", value, "4.1.2")

    def check_update(self, variable: Expression) -> None:
        if not isinstance(variable, Identifier):
            self.tell("update-variable", "the target of update must be the identifier of a variable", variable)
        elif variable.name not in self.stored:
            self.tell("update-variable", f"{variable.name!r} is not a variable", variable)
        elif variable.name in self.updated:
            self.tell("update-variable", f"{variable.name!r} is already updated", variable)
        else:
            self.updated.add(variable.name)

    # Variables

    def take_variable(
        self, call: Invocation, given: Mapping[str, tuple[Argument, Type]], generic: str | None, identifier: str
    ) -> None:
        if generic == "string":
            self.tell("generic-argument", "a variable cannot have type string", call)
        shape_type, label_type = given["shape"][1], given["label"][1]
        shape = self.shape(given["shape"][0].value) if castable(shape_type, SHAPE) else None
        label = self.label(given["label"][0].value) if castable(label_type, "string") else None
        dtype = generic if generic in DATA_TYPES else ""
        self.variables.append(Declared(identifier, dtype, shape, label, self.text.place(call.start)[0], call))

    def constant(self, expression: Expression) -> Value | None:
        try:
            return evaluate(expression, self.text)
        except FormatError as error:
            if error.line and self.findings.admit("variable-constant"):
                self.findings.add("variable-constant", error.message, self.text.source, error.line, error.column)
            return None

    def shape(self, expression: Expression) -> tuple[int, ...] | None:
        value = self.constant(expression)
        if not isinstance(value, list):
            return None
        extents = [extent for extent in value if isinstance(extent, int) and 1 <= extent <= MAX_EXTENT]
        if len(extents) < len(value) or len(value) > MAX_RANK:
            self.tell("variable-shape", f"extents must be integers from 1 to {MAX_EXTENT}", expression)
            return None
        return tuple(extents)

    def label(self, expression: Expression) -> str | None:
        value = self.constant(expression)
        if not isinstance(value, str):
            return None
        if not is_legal(value):
            self.tell("label", f"label {value[:80]!a} is empty or has characters that NNEF does not permit", expression)
            return None
        return value


def _integers(value: Expression) -> list[int]:
    """Return the integer literals of a literal or an array."""
    found = []
    for item in value.items if isinstance(value, Array) else (value,):
        sign, operand = (-1, item.operand) if isinstance(item, Unary) and item.operator == "-" else (1, item)
        if isinstance(operand, Literal) and literal_type(operand.value) == "integer":
            found.append(sign * int(operand.value))
    return found
