"""Tokens of an NNEF document (NNEF 1.0, 3.1), one at a time, and errors with file, line and column."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ...errors import FormatError

_TOKEN = re.compile(
    rb"""
    (?P<blank>  [ \t\v\f\r\n]+ | \#[^\n\f]* )
  | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
  | (?P<number> [0-9]+ (?:\.[0-9]*)? (?:[eE][+-]?[0-9]+)? )
  | (?P<string> '[^'\\\n\f]*(?:\\.[^'\\\n\f]*)*' | "[^"\\\n\f]*(?:\\.[^"\\\n\f]*)*" )
  | (?P<sign>   -> | <= | >= | == | != | && | \|\| | [-+*/^<>!()\[\]{}:=,;?|] )
    """,
    re.VERBOSE,
)


def check_text(data: bytes, source: str) -> None:
    """Raise FormatError unless ``data`` can travel as a null-terminated UTF-8 string (ISO/IEC 15938-17:2024, A.4)."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{source}: byte {error.start} is not UTF-8") from error
    if (position := data.find(0)) >= 0:
        raise FormatError(f"{source}: byte {position} is NUL")


class Token(NamedTuple):
    """A lexical entity: ``name``, ``number``, ``string``, ``sign`` or ``end``, with its offsets in bytes."""

    kind: str
    text: str
    start: int
    end: int


class Lexer:
    """The current token of a document, which must be UTF-8. The syntax is ASCII, so it works on bytes."""

    def __init__(self, data: bytes, source: str) -> None:
        self.data, self.source = data, source
        self.last_end = 0
        self._counted = (0, 1)
        self.token = self.lex(0)

    def lex(self, position: int) -> Token:
        """The first token at or after a byte position."""
        while position < len(self.data):
            match = _TOKEN.match(self.data, position)
            if match is None:
                character = self.data[position : position + 4].decode("utf-8", "ignore")[:1]
                what = "an unterminated string" if character in "'\"" else f"unexpected character {character!a}"
                self.fail(what, position)
            kind = match.lastgroup or ""
            if kind != "blank":
                return Token(kind, match.group().decode("utf-8"), position, match.end())
            position = match.end()
        return Token("end", "", position, position)

    def advance(self) -> Token:
        """Move to the next token and return the one that was current."""
        token = self.token
        self.last_end = token.end
        self.token = self.lex(token.end)
        return token

    def at(self, text: str) -> bool:
        """Whether the current token is this sign or word."""
        return self.token.text == text and self.token.kind in ("sign", "name")

    def followed_by(self, *texts: str) -> bool:
        """Whether the next token but the current one is one of these."""
        return self.lex(self.token.end).text in texts

    def expect(self, text: str) -> Token:
        """Advance past this sign or word."""
        if not self.at(text):
            self.fail(f"expected {text!r}, found {self.found()}")
        return self.advance()

    def expect_kind(self, kind: str) -> Token:
        """Advance past a token of this kind."""
        if self.token.kind != kind:
            self.fail(f"expected a {kind}, found {self.found()}")
        return self.advance()

    def found(self) -> str:
        """The current token for a message."""
        return "the end of the document" if self.token.kind == "end" else f"{self.token.text[:40]!a}"

    def fail(self, message: str, offset: int | None = None) -> NoReturn:
        """Raise FormatError with the place of a byte offset, by default of the current token."""
        offset = self.token.start if offset is None else offset
        start = self.data.rfind(b"\n", 0, offset) + 1
        column = len(self.data[start:offset].decode("utf-8", "replace")) + 1
        raise FormatError(f"{self.source}:{self.line(offset)}:{column}: {message}")

    def line(self, offset: int) -> int:
        """The line of a byte offset, from 1; cheap for offsets that ascend."""
        at, line = self._counted if self._counted[0] <= offset else (0, 1)
        line += self.data.count(b"\n", at, offset)
        self._counted = (offset, line)
        return line
