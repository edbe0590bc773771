"""Evaluation of constant expressions for the shape and label of an NNEF variable.

Supports integers, strings, lists, ``+`` and ``*`` (NNEF 1.0, 3.3.3). Values are limited to the size of a shape or
label, so that no expression is more expensive than its text.
"""

from __future__ import annotations

from typing import NoReturn, TypeAlias

from .lexer import Text
from .tree import Array, Expression, Literal, Operation, Unary

#: Data types of variables: those of tensor files (NNEF 1.0.3, 5.2.1).
DATA_TYPES = ("scalar", "integer", "logical")
#: Maximum rank of a tensor, and maximum extent (NNEF 1.0, 5.2).
MAX_RANK, MAX_EXTENT = 8, (1 << 32) - 1
_MAX_INTEGER = 1 << 64
_MAX_STRING = 1 << 16

Value: TypeAlias = "int | str | list[Value]"


def evaluate(expression: Expression, text: Text) -> Value:
    """Return the value of an expression of ``text``.

    Raises
    ------
    FormatError
        The expression is not constant, mixes types, or exceeds the size of any shape or label.
    """
    match expression:
        case Literal(value=value):
            if isinstance(value, (bool, float)):
                text.fail("expected an integer or a string", expression.start)
            return _bounded(value, expression, text)
        case Unary(operator="-", operand=operand):
            return _multiply(-1, evaluate(operand, text), expression, text)
        case Array(items=items):
            if len(items) > MAX_RANK:
                _too_long(expression, text)
            return [evaluate(item, text) for item in items]
        case Operation(operators=operators, operands=(first, *others)) if set(operators) <= {"+", "*"}:
            result = evaluate(first, text)
            for operator, operand in zip(operators, others, strict=True):
                combine = _add if operator == "+" else _multiply
                result = _bounded(combine(result, evaluate(operand, text), operand, text), operand, text)
            return result
    text.fail("shape and label of a variable must be constants", expression.start, "4.1.3")


def _add(left: Value, right: Value, at: Expression, text: Text) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    text.fail("'+' between values of different types", at.start, "3.3.3")


def _multiply(left: Value, right: Value, at: Expression, text: Text) -> Value:
    if not isinstance(right, int):
        text.fail("the right operand of '*' must be an integer", at.start, "3.3.3")
    if isinstance(left, int):
        return left * right
    if len(left) * right > _MAX_STRING:
        text.fail("the repetition is too long", at.start)
    return left * right


def _bounded(value: Value, at: Expression, text: Text) -> Value:
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
        text.fail("the integer is too large", at.start)
    if isinstance(value, str) and len(value) > _MAX_STRING:
        text.fail("the string is too long", at.start)
    if isinstance(value, list) and len(value) > MAX_RANK:
        _too_long(at, text)
    return value


def _too_long(at: Expression, text: Text) -> NoReturn:
    text.fail(f"the list has more than {MAX_RANK} items, the maximum rank", at.start, "5.2")
