"""Evaluates the constant expressions that may stand for the shape and the label of an NNEF variable.

Integers, strings, lists, parentheses, ``+`` and ``*`` (NNEF 1.0, 3.3.3); all values stay within what a shape or a label
needs, so that no expression costs more than its text.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from .lexer import Lexer

#: The highest rank of a tensor (NNEF 1.0, 5.2).
MAX_RANK = 8
_MAX_DEPTH = 16
_MAX_DIGITS = 20
_MAX_INTEGER = 1 << 64
_MAX_STRING = 1 << 16

_ESCAPE = re.compile(r"\\(['\"\\])")

Value: TypeAlias = "int | str | list[Value]"


def evaluate(lexer: Lexer, depth: int = 0) -> Value:
    """The value of the expression at the current token, up to the first token that does not belong to it.

    Raises
    ------
    FormatError
        It is not constant, mixes types, or is larger than any shape or label.
    """
    left = _product(lexer, depth)
    while lexer.at("+"):
        offset = lexer.advance().start
        left = _bounded(lexer, _add(lexer, left, _product(lexer, depth), offset), offset)
    return left


def _product(lexer: Lexer, depth: int) -> Value:
    left = _atom(lexer, depth)
    while lexer.at("*"):
        offset = lexer.advance().start
        left = _bounded(lexer, _multiply(lexer, left, _atom(lexer, depth), offset), offset)
    return left


def _atom(lexer: Lexer, depth: int) -> Value:
    if depth > _MAX_DEPTH:
        lexer.fail("the arguments of a variable are nested too deep")
    token = lexer.token
    if token.kind == "string":
        lexer.advance()
        return _bounded(lexer, _ESCAPE.sub(r"\1", token.text[1:-1]), token.start)
    if token.kind == "number":
        return _integer(lexer)
    if lexer.at("-"):
        lexer.advance()
        return -_integer(lexer)
    if lexer.at("("):
        lexer.advance()
        inner = evaluate(lexer, depth + 1)
        lexer.expect(")")
        return inner
    if lexer.at("["):
        return _items(lexer, depth)
    lexer.fail(f"shape and label of a variable must be constants; found {lexer.found()}")


def _integer(lexer: Lexer) -> int:
    token = lexer.expect_kind("number")
    if not token.text.isdigit() or len(token.text) > _MAX_DIGITS:
        lexer.fail(f"expected an integer, found {token.text[:40]}", token.start)
    return int(token.text)


def _items(lexer: Lexer, depth: int) -> list[Value]:
    items: list[Value] = []
    start = lexer.advance().start
    while not lexer.at("]"):
        items.append(evaluate(lexer, depth + 1))
        _bounded(lexer, items, start)
        if not lexer.at("]"):
            lexer.expect(",")
    lexer.advance()
    return items


def _add(lexer: Lexer, left: Value, right: Value, offset: int) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    lexer.fail("'+' between values of different types", offset)


def _multiply(lexer: Lexer, left: Value, right: Value, offset: int) -> Value:
    if not isinstance(right, int):
        lexer.fail("'*' needs an integer on its right", offset)
    if isinstance(left, int):
        return left * right
    if len(left) * right > _MAX_STRING:
        lexer.fail("a repetition that is too long", offset)
    return left * right


def _bounded(lexer: Lexer, value: Value, offset: int) -> Value:
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
        lexer.fail("an integer that is too large", offset)
    if isinstance(value, str) and len(value) > _MAX_STRING:
        lexer.fail("a string that is too long", offset)
    if isinstance(value, list) and len(value) > MAX_RANK:
        lexer.fail(f"a list of more than {MAX_RANK} items; {MAX_RANK} is the highest rank (NNEF 5.2)", offset)
    return value
