"""Evaluation of constant expressions of an NNEF document (NNEF 1.0, 3.3.3).

:func:`evaluate` is for the shape and label of a variable: integers, strings, lists, ``+`` and ``*``. Values are limited
to the size of a shape or label, so that no expression is more expensive than its text. :func:`combine`, :func:`negate`
and :func:`convert` are all operators and casts on values known when the graph is built.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from .lexer import Text
from .tree import Array, Expression, Literal, Operation, Unary

#: Data types of variables, the same as in tensor files (NNEF 1.0.3, 5.2.1).
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
            for sign, operand in zip(operators, others, strict=True):
                joined = _add if sign == "+" else _multiply
                result = _bounded(joined(result, evaluate(operand, text), operand, text), operand, text)
            return result
    text.fail("shape and label of a variable must be constants", expression.start, "4.1.3")


def _add(left: Value, right: Value, at: Expression, text: Text) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    text.fail("'+' cannot combine values of different types", at.start, "3.3.3")


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


#: Value known when the graph is built: a primitive value, or an array or tuple of primitive values or flat arrays.
Known: TypeAlias = "bool | int | float | str | tuple[Known, ...]"

#: Maximum number of items of a known array, including nested items, and of characters of a known string.
MAX_KNOWN = 1 << 16
_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    "^": operator.pow,
}
_SCALAR: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
}
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def combine(sign: str, left: Known, right: Known) -> Known | None:
    """Return the result of a binary operator; None if it is undefined or exceeds a limit."""
    if sign == "in":
        return left in right if isinstance(right, tuple) else None
    if isinstance(right, int) and not isinstance(right, bool) and sign == "*" and isinstance(left, str | tuple):
        return left * right if right >= 0 and (known_size(left) - 1) * right < MAX_KNOWN else None
    if type(left) is not type(right):
        return None
    if sign in _TESTS and (sign in ("==", "!=") or isinstance(left, int | float)):
        return _TESTS[sign](left, right)
    if isinstance(left, bool) and isinstance(right, bool):
        return {"&&": left and right, "||": left or right}.get(sign)
    if sign == "+" and isinstance(left, str | tuple) and isinstance(right, type(left)):
        return left + right if known_size(left) + known_size(right) <= MAX_KNOWN else None  # type: ignore[operator]
    if isinstance(left, int) and isinstance(right, int) and sign in _INTEGER:
        if (sign == "^" and not 0 <= right <= 64) or (sign == "/" and not right):
            return None
        result = _INTEGER[sign](left, right)
        return result if abs(result) < _MAX_INTEGER else None
    if isinstance(left, float) and isinstance(right, float) and sign in _SCALAR:
        try:
            number = _SCALAR[sign](left, right)
        except ArithmeticError:
            return None
        return number if isinstance(number, float) else None
    return None


def negate(sign: str, value: Known) -> Known | None:
    """Return the result of ``-``, ``+`` or ``!``; None if it is undefined."""
    if isinstance(value, bool):
        return not value if sign == "!" else None
    if isinstance(value, int | float) and sign != "!":
        return -value if sign == "-" else value
    return None


def convert(primitive: str, value: Known) -> Known | None:
    """Return the result of a cast to a primitive type; None if it is undefined, or for a ``scalar`` cast to text."""
    if isinstance(value, tuple):
        return None
    try:
        match primitive:
            case "integer":
                number = math.floor(value) if isinstance(value, float) else int(value)
                return number if abs(number) < _MAX_INTEGER else None
            case "scalar":
                return float(value)
            case "logical":
                return bool(value)
    except (ValueError, OverflowError):
        return None
    return None if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def known_size(value: Known) -> int:
    """Return the number of characters, or of items including the items of nested arrays; at least 1."""
    if isinstance(value, tuple):
        return 1 + sum(len(item) if isinstance(item, tuple) else 1 for item in value)
    return len(value) + 1 if isinstance(value, str) else 1
