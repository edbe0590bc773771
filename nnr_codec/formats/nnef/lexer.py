"""Tokens of an NNEF document (NNEF 1.0, 3.1), one at a time, and errors with file, line and column."""

from __future__ import annotations

import codecs
import re
from typing import ClassVar, NamedTuple, NoReturn

from ...errors import FormatError

#: Names of primitive types (NNEF 1.0, 3.3.1).
PRIMITIVES = frozenset({"integer", "scalar", "logical", "string"})
#: Keywords that are functions with one argument (NNEF 1.0, 3.2.3).
BUILTINS = frozenset({"shape_of", "length_of", "range_of"}) | PRIMITIVES
#: Names that cannot be identifiers (NNEF 1.0, 3.1).
KEYWORDS = BUILTINS | {
    *("version", "extension", "graph", "fragment", "tensor"),
    *("for", "in", "yield", "if", "else", "true", "false"),
}
#: Maximum number of tokens of a document: 2,000,000 constants, or half a gigabyte of syntax tree.
MAX_TOKENS = 4_000_000

_TOKEN = re.compile(
    rb"""
    (?: [ \t\v\f\r\n]++ | \#[^\n\f]*+ )*+
    (?: (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
      | (?P<number> [0-9]+ (?:\.[0-9]*)? (?:[eE][+-]?[0-9]+)? )
      | (?P<string> '[^'\\\n\f]*(?:\\.[^'\\\n\f]*)*' | "[^"\\\n\f]*(?:\\.[^"\\\n\f]*)*" )
      | (?P<sign>   -> | <= | >= | == | != | && | \|\| | [-+*/^<>!()\[\]{}:=,;?|] )
      | (?P<end>    \Z )
      | (?P<bad> ) )
    """,
    re.VERBOSE,
)


class VersionError(FormatError):
    """Unsupported version of NNEF in a document."""


def check_text(data: bytes, source: str) -> None:
    """Raise FormatError unless ``data`` can be stored as a null-terminated UTF-8 string (ISO/IEC 15938-17:2024, A.4).

    A byte order mark is rejected too, because NNEF readers do not treat it as white space (NNEF 1.0, 3.1).
    """
    if data.startswith(codecs.BOM_UTF8):
        raise FormatError("the text begins with a byte order mark; save it as UTF-8 without one", where=source)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {error.start} is not UTF-8", where=source) from error
    if (position := data.find(0)) >= 0:
        raise FormatError(f"byte {position} is NUL", where=source)


class Text:
    """Document in UTF-8, with the positions of byte offsets.

    Parameters
    ----------
    data : bytes
        Bytes of the document.
    source : str
        Name of the document in errors.
    clause : str
        Default clause of :attr:`standard` in errors.
    """

    #: Standard that defines the language.
    standard: ClassVar[str] = FormatError.standard

    def __init__(self, data: bytes, source: str, clause: str = "3.2") -> None:
        self.data, self.source, self.clause = data, source, clause
        self._last = (0, 1, 1)

    def fail(self, message: str, offset: int, clause: str = "", kind: type[FormatError] = FormatError) -> NoReturn:
        """Raise FormatError, or a subclass, with the position of a byte offset."""
        raise self.error(message, offset, clause, kind)

    def error(self, message: str, offset: int, clause: str = "", kind: type[FormatError] = FormatError) -> FormatError:
        """Return FormatError, or a subclass, with the position of a byte offset."""
        error = kind(message, where=self.source, clause=clause or self.clause)
        error.line, error.column = self.place(offset)
        error.standard = self.standard
        return error

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column, in characters from 1, of a byte offset; fast near the offset of the last call."""
        at, line, column = self._last
        sign, low, high = (1, at, offset) if at <= offset else (-1, offset, at)
        if lines := self.data.count(b"\n", low, high):
            line += sign * lines
            column = self._characters(self.data.rfind(b"\n", 0, offset) + 1, offset) + 1
        else:
            column += sign * self._characters(low, high)
        self._last = offset, line, column
        return line, column

    def _characters(self, start: int, end: int) -> int:
        return len(self.data[start:end].decode("utf-8", "replace"))


class Token(NamedTuple):
    """Lexical entity: ``name``, ``number``, ``string``, ``sign`` or ``end``, with its offsets in bytes."""

    kind: str
    text: str
    start: int
    end: int


class Lexer(Text):
    """Lexer of a document, which must be UTF-8. The syntax is ASCII, so it works on bytes.

    The first token is the one at or after the byte offset ``start``.
    """

    #: Expression with a group for each kind of token; ``bad`` matches if no other group does.
    pattern: ClassVar[re.Pattern[bytes]] = _TOKEN
    #: Clause that defines the tokens.
    lexical_clause: ClassVar[str] = "3.1"

    def __init__(self, data: bytes, source: str, clause: str = "3.2", start: int = 0) -> None:
        super().__init__(data, source, clause)
        self.last_end = 0
        #: Offset where the text ends for the lexer.
        self.stop = len(data)
        self._tokens = 0
        # The last token read ahead, and the end of the token before it.
        self._ahead: Token | None = None
        self._ahead_of = 0
        self.token = self.lex(start)

    def lex(self, position: int) -> Token:
        """Return the first token at or after a byte position."""
        match = self.pattern.match(self.data, position, self.stop)
        kind = match.lastgroup if match else None
        if match is None or kind is None or kind == "bad":
            start = match.end() if match else position
            character = self.data[start : start + 4].decode("utf-8", "ignore")[:1]
            what = "an unterminated string" if character in "'\"" else f"unexpected character {character!a}"
            self.fail(what, start, self.lexical_clause)
        return tuple.__new__(
            Token, (kind, match[kind].decode(), match.start(kind), match.end())
        )  # twice as fast as Token()

    def advance(self) -> Token:
        """Move to the next token and return the one that was current."""
        token = self.token
        self.last_end = token.end
        self._tokens += 1
        if self._tokens > MAX_TOKENS:
            self.refuse(f"more than {MAX_TOKENS:,} tokens")
        ahead = self._ahead
        self.token = ahead if ahead and self._ahead_of == token.end else self.lex(token.end)
        return token

    def tokens_left(self) -> int:
        """Return the number of tokens that may follow."""
        return MAX_TOKENS - self._tokens

    def skip(self, end: int, count: int) -> None:
        """Skip ``count`` tokens, at most :meth:`tokens_left`, the last of which ends at ``end``."""
        self._tokens += count
        self.last_end = end
        self.token = self.lex(end)

    def at(self, text: str) -> bool:
        """Return whether the current token is this sign or word."""
        return self.token.text == text and self.token.kind in ("sign", "name")

    def followed_by(self, *texts: str) -> bool:
        """Return whether the tokens after the current one are these, in order."""
        token = self.ahead()
        for text in texts[:-1]:
            if token.text != text:
                return False
            token = self.lex(token.end)
        return token.text == texts[-1]

    def ahead(self) -> Token:
        """Return the token after the current one."""
        if not self._ahead or self._ahead_of != self.token.end:
            self._ahead, self._ahead_of = self.lex(self.token.end), self.token.end
        return self._ahead

    def expect(self, text: str) -> Token:
        """Advance past this sign or word."""
        if not self.at(text):
            self.refuse(f"expected {text!r}, found {self.found()}")
        return self.advance()

    def expect_kind(self, kind: str) -> Token:
        """Advance past a token of this kind."""
        if self.token.kind != kind:
            self.refuse(f"expected a {kind}, found {self.found()}")
        return self.advance()

    def found(self) -> str:
        """Return the current token for a message."""
        return "the end of the document" if self.token.kind == "end" else f"{self.token.text[:40]!a}"

    def refuse(self, message: str, clause: str = "") -> NoReturn:
        """Raise FormatError with the position of the current token."""
        self.fail(message, self.token.start, clause)
