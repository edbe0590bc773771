"""Type inference for expressions of an NNEF document (NNEF 1.0.3, 3.3.1 and 3.3.3).

A faulty expression has a type that matches everything, so that one mistake is reported once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..findings import ModelFindings
from .lexer import PRIMITIVES, Text
from .tree import (
    Array,
    Builtin,
    Comprehension,
    Conditional,
    Expression,
    Identifier,
    Invocation,
    Literal,
    Operation,
    Subscript,
    SyntaxNode,
    Tuple,
    Unary,
)
from .types import (
    EMPTY,
    GENERIC,
    SHAPE,
    ArrayOf,
    TensorOf,
    TupleOf,
    Type,
    array_of,
    castable,
    common,
    spelled,
    tuple_of,
)

_LOGICAL = ("&&", "||")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Inference(ABC):
    """Type inference; ``scope`` has the types of identifiers, and ``vendor`` the names that need no type.

    Recursion is as deep as the tree, so the methods add as few calls per level as possible.
    """

    def __init__(self, text: Text, findings: ModelFindings, vendor: set[str]) -> None:
        self.text, self.findings, self.vendor = text, findings, vendor
        self.scope: dict[str, Type] = {}
        self.unknown: set[str] = set()

    def tell(self, rule: str, message: str, node: SyntaxNode, clause: str = "") -> None:
        """Add a finding at a node."""
        if self.findings.admit(rule):
            self.findings.add(rule, message, self.text.source, *self.text.place(node.start), clause)

    @abstractmethod
    def invocation(self, call: Invocation) -> Type:
        """Return the type of an invocation."""

    def infer(self, expression: Expression) -> Type:
        """Return the type of an expression."""
        match expression:
            case Literal(value=value):
                return literal_type(value)
            case Identifier(name=name):
                if name not in self.scope and name not in self.unknown and name not in self.vendor:
                    self.unknown.add(name)
                    self.tell("use-before-assignment", f"{name!r} is used before it is assigned", expression)
                return self.scope.get(name)
            case Array(items=items):
                type_: Type = ""
                for k, item in enumerate(items):
                    given = self.infer(item)
                    type_ = self.unify(type_, given, item) if k else given
                return array_of(type_) if items else EMPTY
            case Tuple(items=items):
                return tuple_of([self.infer(item) for item in items])
            case Unary(operator=operator, operand=operand):
                return self.unary(operator, self.infer(operand), expression)
            case Operation(operators=operators, operands=operands):
                type_ = self.infer(operands[0])
                for operator, operand in zip(operators, operands[1:], strict=True):
                    type_ = self.binary(operator, type_, self.infer(operand), operand)
                return type_
            case Conditional(value=value, condition=condition, otherwise=otherwise):
                self.expect(self.infer(condition), "logical", condition)
                type_ = self.infer(value)
                return self.unify(type_, self.infer(otherwise), otherwise)
            case Comprehension():
                return self.comprehension(expression)
            case Subscript(value=value, first=first, last=last):
                for index in (first, last):
                    if index is not None:
                        self.expect(self.infer(index), "integer", index)
                return self.subscript(expression, self.infer(value))
            case Builtin(function=function, argument=argument):
                if function == "shape_of":
                    self.tell("deprecated", "shape_of is deprecated", expression)
                return self.builtin(function, self.infer(argument), argument)
            case Invocation():
                return self.invocation(expression)

    def expect(self, given: Type, wanted: Type, node: SyntaxNode) -> None:
        if not castable(given, wanted):
            self.tell("expression-type", f"expected {spelled(wanted)}, got {spelled(given)}", node)

    def unify(self, one: Type, other: Type, node: SyntaxNode) -> Type:
        type_, found = common(one, other)
        if not found:
            self.tell("expression-type", f"{spelled(one)} and {spelled(other)} have no common type", node)
        return type_

    def unary(self, operator: str, type_: Type, node: SyntaxNode) -> Type:
        wanted = "logical" if operator == "!" else "scalar"
        if isinstance(type_, TensorOf):
            self.expect(type_, TensorOf(wanted), node)
            return TensorOf(wanted)
        if type_ == "integer" and wanted == "scalar":
            return type_
        self.expect(type_, wanted, node)
        return None if type_ is None else wanted

    def binary(self, operator: str, left: Type, right: Type, node: SyntaxNode) -> Type:
        if None in (left, right) or GENERIC in (left, right):
            return None
        if operator == "in":
            if not isinstance(right, ArrayOf) or not castable(left, right.item):
                self._mismatch(operator, left, right, node)
            return "logical"
        is_test = operator in _COMPARISONS or operator in _LOGICAL
        if isinstance(left, TensorOf) or isinstance(right, TensorOf):
            wanted = TensorOf("logical" if operator in _LOGICAL else "scalar")
            if not (castable(left, wanted) and castable(right, wanted)):
                self._mismatch(operator, left, right, node)
            return TensorOf("logical" if is_test else "scalar")
        if operator == "+" and isinstance(left, ArrayOf) and isinstance(right, ArrayOf):
            return self.unify(left, right, node)
        if (operator == "*" and right == "integer" and isinstance(left, ArrayOf)) or (
            left == "string" and (operator, right) in (("+", "string"), ("*", "integer"))
        ):
            return left
        permitted = (
            {"logical"} if operator in _LOGICAL else PRIMITIVES if operator in ("==", "!=") else {"scalar", "integer"}
        )
        if left != right or left not in permitted:
            self._mismatch(operator, left, right, node)
            return "logical" if is_test else None
        return "logical" if is_test else left

    def _mismatch(self, operator: str, left: Type, right: Type, node: SyntaxNode) -> None:
        self.tell("expression-type", f"{operator!r} cannot combine {spelled(left)} and {spelled(right)}", node)

    def comprehension(self, expression: Comprehension) -> Type:
        types: dict[str, Type] = {}
        for iterator, array in expression.iterators:
            type_ = self.infer(array)
            if type_ is not None and not isinstance(type_, ArrayOf):
                self.tell("expression-type", f"{iterator.name!r} iterates over {spelled(type_)}, not an array", array)
            types[iterator.name] = type_.item if isinstance(type_, ArrayOf) else None
        hidden = {name: self.scope[name] for name in types if name in self.scope}
        self.scope.update(types)
        if expression.condition is not None:
            self.expect(self.infer(expression.condition), "logical", expression.condition)
        type_ = self.infer(expression.item)
        for name in types:
            del self.scope[name]
        self.scope.update(hidden)
        return array_of(type_)

    def subscript(self, expression: Subscript, type_: Type) -> Type:
        if type_ is None or type_ == GENERIC:
            return None
        if type_ == "string" or (isinstance(type_, ArrayOf) and expression.is_range):
            return type_
        if isinstance(type_, ArrayOf):
            return None if type_ == EMPTY else type_.item
        if isinstance(type_, TupleOf) and isinstance(expression.first, Literal) and not expression.is_range:
            index = expression.first.value
            if isinstance(index, int) and index < len(type_.items):
                return type_.items[index]
        self.tell("expression-type", f"invalid subscript of {spelled(type_)}", expression)
        return None

    def builtin(self, function: str, type_: Type, node: SyntaxNode) -> Type:
        if function == "shape_of":
            return SHAPE
        if function in PRIMITIVES:
            if isinstance(type_, TensorOf | ArrayOf | TupleOf):
                self.tell("expression-type", f"{function} is not defined for {spelled(type_)}", node)
            return function
        if type_ not in (None, GENERIC, "string") and not isinstance(type_, ArrayOf):
            self.tell("expression-type", f"{function} requires an array, got {spelled(type_)}", node)
        return "integer" if function == "length_of" else SHAPE


def literal_type(value: bool | float | str) -> str:
    """Return the type of a literal (3.3.1)."""
    if isinstance(value, bool):
        return "logical"
    return "string" if isinstance(value, str) else "integer" if isinstance(value, int) else "scalar"
