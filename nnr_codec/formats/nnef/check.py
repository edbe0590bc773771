"""Semantic check of an NNEF document: extensions, declarations and identifiers (NNEF 1.0.3, 3.3).

Expressions are checked by :mod:`infer`, invocations by :mod:`invoke`. The results are added to
:class:`~nnr_codec.formats.findings.ModelFindings`. Fragments are checked as written, not for each invocation;
:mod:`dataflow` expands them and checks shapes.
"""

from __future__ import annotations

import functools
import graphlib
import re
from collections.abc import Iterator, Sequence

from ..findings import ModelFindings
from .invoke import Invoker, standard
from .lexer import PRIMITIVES, Text
from .operations import later_operations
from .parser import assignment_of
from .tree import (
    Array,
    Assignment,
    Comprehension,
    Conditional,
    Document,
    Expression,
    Fragment,
    Identifier,
    Invocation,
    Literal,
    Target,
    Tuple,
    Unary,
    children,
    walk,
)
from .types import (
    ArrayOf,
    TensorOf,
    TupleOf,
    Type,
    castable,
    declared,
    is_attribute,
    is_generic,
    parts,
    spelled,
    substitute,
)

_FRAGMENTS, _OPERATORS = "KHR_enable_fragment_definitions", "KHR_enable_operator_expressions"


class Checker(Invoker):
    """Checker of a document."""

    def __init__(self, document: Document, text: Text, findings: ModelFindings) -> None:
        self.document = document
        # Words of vendor extensions, which may declare names.
        vendor = {word for extension in document.extensions for word in _vendor_words(extension.names)}
        super().__init__(document.fragments, text, findings, vendor)

    @functools.cached_property
    def graph_body(self) -> list[Assignment]:
        """Assignments of the graph."""
        return [assignment_of(part, self.text.data) for part in self.document.graph.body]

    def run(self) -> None:
        """Check the whole document."""
        if self.document.version != "1.0":
            self.tell(
                "version-known", f"unknown version {self.document.version}; the only version is 1.0", self.document
            )
        self.check_extensions()
        names: set[str] = set()
        for fragment in self.document.fragments:
            name = fragment.name.name
            if name in names or (name in standard() and name not in later_operations()):
                what = "two fragments" if name in names else "a standard operation"
                self.tell("fragment-unique", f"{name!r} is the name of {what}", fragment.name)
            names.add(name)
            self.check_declaration(fragment)
            self.check_fragment(fragment)
        self.check_recursion()
        self.check_graph()

    # Extensions

    def check_extensions(self) -> None:
        enabled = {name for extension in self.document.extensions for name in extension.names}
        for extension in self.document.extensions:
            if (
                not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in extension.names)
                or not extension.names
            ):
                self.tell("extension-name", f"{extension.text[:40]!a} is not a list of identifiers", extension)
            elif "," in extension.text:
                self.tell(
                    "extension-name",
                    "commas between names, which Khronos' parser requires, are not in 3.2.4",
                    extension,
                )
            for name in extension.names:
                if name.startswith("KHR_") and name not in (_FRAGMENTS, _OPERATORS):
                    self.tell("extension-name", f"Khronos does not define extension {name[:60]!r}", extension)
        if self.document.fragments and _FRAGMENTS not in enabled:
            self.tell("fragment-extension", f"fragments require 'extension {_FRAGMENTS};'", self.document.fragments[0])
        if _OPERATORS not in enabled:
            found = list(self._extended())
            if found:
                more = f" ({len(found)} expressions)" if len(found) > 1 else ""
                self.tell("operator-extension", f"expressions require 'extension {_OPERATORS};'{more}", found[0])

    def _extended(self) -> Iterator[Expression]:
        """Yield the outermost expressions outside the flat grammar."""
        for fragment in self.document.fragments:
            yield from _extended_in(fragment.body or ())
        yield from _extended_in(self.graph_body)

    # Declarations

    def check_declaration(self, fragment: Fragment) -> None:
        names: set[str] = set()
        attributes = False
        for parameter in (*fragment.parameters, *fragment.results):
            name = parameter.name.name
            if name in names:
                self.tell("parameter-unique", f"{name!r} is the name of two parameters or results", parameter)
            names.add(name)
        types = [declared(parameter.type) for parameter in fragment.parameters]
        results = [declared(result.type) for result in fragment.results]
        for type_, parameter in zip(types + results, (*fragment.parameters, *fragment.results), strict=True):
            if len({isinstance(part, TensorOf) for part in parts(type_)}) > 1:
                self.tell("mixed-tuple", f"{spelled(type_)} contains both tensors and attributes", parameter)
        for type_, parameter in zip(types, fragment.parameters, strict=True):
            if attributes and not is_attribute(type_):
                self.tell("tensors-first", f"tensor {parameter.name.name!r} comes after an attribute", parameter)
            attributes |= is_attribute(type_)
            if parameter.default is not None:
                given = self.infer(parameter.default)
                if not castable(given, substitute(type_, None)):
                    self.tell("default-type", f"{spelled(given)} cannot be cast to {spelled(type_)}", parameter.default)
        for type_, result in zip(results, fragment.results, strict=True):
            if not all(isinstance(part, TensorOf) and part.item != "" for part in parts(type_)):
                self.tell(
                    "result-type",
                    f"result {result.name.name!r} is {spelled(type_)}, not a tensor with a data type",
                    result,
                )
        if fragment.generic != any(is_generic(type_) for type_ in types + results):
            what = "is generic, but has no generic type" if fragment.generic else "has a generic type; '<?>' is missing"
            self.tell("generic-declaration", f"fragment {fragment.name.name!r} {what}", fragment.name)

    def check_fragment(self, fragment: Fragment) -> None:
        if fragment.body is None:
            return
        self.begin(graph=False, generic=fragment.generic)
        parameters = {parameter.name.name: declared(parameter.type) for parameter in fragment.parameters}
        self.scope.update(parameters)
        self.check_body(fragment.body)
        for result in fragment.results:
            name = result.name.name
            if name not in self.scope or name in parameters:
                self.tell("result-assigned", f"result {name!r} is not assigned", result)
            elif not castable(self.scope[name], declared(result.type)):
                message = (
                    f"result {name!r} is {spelled(declared(result.type))}, but is assigned {spelled(self.scope[name])}"
                )
                self.tell("expression-type", message, result, "3.3.1")

    def check_recursion(self) -> None:
        calls = {
            fragment.name.name: {name for name in _certain_calls(fragment.body or ()) if name in self.own}
            for fragment in self.document.fragments
        }
        try:
            graphlib.TopologicalSorter(calls).prepare()
        except graphlib.CycleError as error:
            cycle = error.args[1]
            message = f"fragment {cycle[0]!r} invokes itself without a condition"
            self.tell("recursion", message, self.own[cycle[0]].fragment.name)

    def check_graph(self) -> None:
        graph = self.document.graph
        self.begin(graph=True, generic=False)
        parameters = {parameter.name for parameter in graph.parameters}
        seen: set[str] = set()
        externals: set[str] = set()
        for name in (*graph.parameters, *graph.results):
            if name.name in seen:
                self.tell("parameter-unique", f"{name.name!r} is the name of two parameters or results", name)
            seen.add(name.name)
        for assignment in self.graph_body:
            call = assignment.value
            if self.vendor and isinstance(call, Invocation) and self.signature(call) is None:
                # An unknown operation may supply external data too.
                externals |= _names(assignment.target)
            if _calls(call, "external") and isinstance(assignment.target, Identifier):
                externals.add(assignment.target.name)
                if assignment.target.name not in parameters:
                    message = f"{assignment.target.name!r} is external, but not a parameter of the graph"
                    self.tell("graph-parameter", message, assignment)
        self.check_body(self.graph_body)
        for parameter in graph.parameters:
            if parameter.name not in externals:
                self.tell(
                    "graph-parameter", f"{parameter.name!r} is not the result of an external operation", parameter
                )
        for result in graph.results:
            if result.name not in self.scope:
                self.tell("result-assigned", f"result {result.name!r} is not assigned", result)

    # Assignments

    def check_body(self, body: Sequence[Assignment]) -> None:
        for assignment in body:
            value, target = assignment.value, assignment.target
            identifier = target.name if isinstance(target, Identifier) else ""
            type_ = self.invocation(value, identifier) if isinstance(value, Invocation) else self.infer(value)
            self.assign(target, type_, value)
            if identifier and self.in_graph and _calls(value, "variable"):
                self.stored.add(identifier)

    def assign(self, target: Target | Expression, type_: Type, value: Expression | None = None) -> None:
        match target:
            case Identifier(name=name):
                if name in self.scope:
                    self.tell("single-assignment", f"{name!r} is a parameter or already assigned", target)
                if self.in_graph and (isinstance(type_, ArrayOf | TupleOf) or type_ in PRIMITIVES):
                    self.tell("identifier-tensor", f"{name!r} is {spelled(type_)}, not a tensor", target)
                    type_ = None
                self.scope.setdefault(name, type_)
            case Array(items=items):
                if isinstance(value, Array) and len(value.items) != len(items):
                    self.tell(
                        "target-structure", f"{len(value.items)} items are assigned to {len(items)} identifiers", target
                    )
                elif type_ is not None and not isinstance(type_, ArrayOf):
                    self.tell("target-structure", f"an array is assigned {spelled(type_)}", target)
                for item in items:
                    self.assign(item, type_.item if isinstance(type_, ArrayOf) else None)
            case Tuple(items=items):
                types = type_.items if isinstance(type_, TupleOf) else ()
                if type_ is not None and len(types) != len(items):
                    self.tell("target-structure", f"{len(items)} identifiers are assigned {spelled(type_)}", target)
                for k, item in enumerate(items):
                    self.assign(item, types[k] if k < len(types) else None)


def _vendor_words(names: tuple[str, ...]) -> tuple[str, ...]:
    return () if not names or names[0].startswith("KHR_") else names


def _calls(expression: Expression, operation: str) -> bool:
    return isinstance(expression, Invocation) and expression.operation.name == operation


def _names(target: Target | Expression) -> set[str]:
    return {node.name for node in walk(target) if isinstance(node, Identifier)}


def _is_flat(expression: Expression) -> bool:
    if isinstance(expression, Unary):
        return expression.operator == "-" and isinstance(expression.operand, Literal)
    return isinstance(expression, Identifier | Literal | Array | Tuple)


def _extended_in(body: Sequence[Assignment]) -> Iterator[Expression]:
    for assignment in body:
        if not isinstance(assignment.value, Invocation):
            yield assignment.value
            continue
        waiting = list(reversed(children(assignment.value)))
        while waiting:
            expression = waiting.pop()
            if not _is_flat(expression):
                yield expression
            elif isinstance(expression, Array | Tuple):
                waiting.extend(reversed(expression.items))


def _certain_calls(body: Sequence[Assignment]) -> Iterator[str]:
    """Yield the operations that a body invokes independently of conditions and array lengths."""
    for assignment in body:
        waiting: list[Expression] = [assignment.value]
        while waiting:
            expression = waiting.pop()
            if isinstance(expression, Conditional):
                waiting.append(expression.condition)
            elif isinstance(expression, Comprehension):
                waiting.extend(array for _, array in expression.iterators)
            else:
                if isinstance(expression, Invocation):
                    yield expression.operation.name
                waiting.extend(children(expression))
