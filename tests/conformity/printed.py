"""The tables of clause 6.3 as printed, read from the text of ISO/IEC 15938-17:2024 into a common notation.

Tables become lists of rows: one for each syntax element, call, condition and loop, indented by nesting, expressions
fully parenthesized by the precedence of C. Printed variables in CamelCase are in snake_case, as in `nnr_codec`.
An assignment codes no bits and has no row, and neither do braces, except for one that closes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

STEP = "    "


@dataclass
class Table:
    """Clause of a table, and its lines ``syntax TAB descriptor``."""

    clause: str
    lines: list[str] = field(default_factory=list)


def bare(expression: str) -> str:
    """Return an expression without the outer parentheses, which only a binary expression has."""
    return expression[1:-1] if expression.startswith("(") else expression


def loop_row(j: str, start: str, condition: str, step: str) -> str:
    """Return the row of a loop."""
    return f"for {j}={bare(start)}; {bare(condition)}; {step}"


# C, loosest first
PRECEDENCE = [["||"], ["&&"], ["|"], ["&"], ["==", "!="], ["<", ">", "<=", ">="], ["<<", ">>"], ["+", "-"], ["*", "/"]]
TOKEN = re.compile(r"\|\||&&|==|!=|<=|>=|<<|>>|\+\+|--|\w+|[-+*/&|<>!()\[\]{}=,;]|\s+|.")
HEADING = re.compile(r"^#+\s+(\d+(?:\.\d+)+)\s")
TITLE = re.compile(r"^\s*(\w+)\s*[(\[].*\{\s*\t\s*Descriptor\s*$")
MARKUP = re.compile(r"</?b>|</?code>|\*\*|/\*.*?\*/")


class PrintError(ValueError):
    """Error for printed text that the parser does not expect."""


def printed_tables(text: str) -> dict[str, Table]:
    """Return the tables of 6.3 by name."""
    tables: dict[str, Table] = {}
    clause, current = "", None
    for raw in text.splitlines():
        line = MARKUP.sub("", raw).replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")
        if heading := HEADING.match(line):
            clause, current = heading[1], None
        elif not clause.startswith("6.3"):
            continue
        elif title := TITLE.match(line):
            current = tables[title[1]] = Table(clause)
        elif current and "\t" in line:
            current.lines.append(line)
        elif line.strip():  # text ends a table, an empty line (a new page) does not
            current = None
    return tables


class Printed:
    """One printed table, parsed.

    Attributes
    ----------
    rows : list of str
        In the common notation.
    assigned : dict of str to str
        Expressions of the assignments to variables without index, which have no row.
    """

    def __init__(self, table: Table) -> None:
        self.tokens: list[str] = []
        for line in table.lines:
            syntax, _, descriptor = line.rpartition("\t")
            # the export of the text loses "||" and leaves a gap between the operands
            syntax = re.sub(r"(?<=[\w)\]]) {2,}(?=[\w(])", " || ", syntax.strip())
            self.tokens += [token for token in TOKEN.findall(syntax) if not token.isspace()]
            self.tokens += [":", *(token for token in TOKEN.findall(descriptor) if not token.isspace()), "\n"]
        self.k = 0
        self.assigned: dict[str, str] = {}
        self.rows = list(self.table())

    def table(self) -> Iterator[str]:
        """Return all rows; the last closing brace ends the table, others on this level close nothing."""
        closed = False
        while self.peek():
            closed = self.accept("}")
            if not closed:
                yield from self.statement("")
            elif self.peek():
                yield "}"
        if not closed:
            raise PrintError("the table is not closed")

    # tokens
    def peek(self) -> str:
        while self.tokens[self.k : self.k + 2] == [":", "\n"]:  # the empty descriptor of a line that codes nothing
            self.k += 2
        return self.tokens[self.k] if self.k < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.k += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.k += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise PrintError(f"{token!r} expected before {' '.join(self.tokens[self.k : self.k + 8])!r}")

    # statements
    def body(self, indent: str) -> Iterator[str]:
        if not self.accept("{"):
            yield from self.statement(indent)
            return
        while not self.accept("}"):
            yield from self.statement(indent)

    def statement(self, indent: str) -> Iterator[str]:
        word = self.next()
        if word == "if":
            self.expect("(")
            yield f"{indent}if {bare(self.expression())}"
            self.expect(")")
            yield from self.body(indent + STEP)
            if self.accept("else"):
                yield f"{indent}else"
                yield from self.body(indent + STEP)
        elif word == "for":
            yield indent + self.loop()
            yield from self.body(indent + STEP)
        elif not re.fullmatch(r"\w+", word):
            raise PrintError(f"{word!r} begins no statement")
        elif self.accept("("):
            yield f"{indent}{word}({self.arguments()})"
        else:
            target = word + self.indices()
            if self.accept("="):
                self.assigned[_snake(target)] = bare(self.expression())
            else:
                self.expect(":")
                yield f"{indent}{target}  {self.descriptor()}"

    def loop(self) -> str:
        self.expect("(")
        j = self.next()
        self.expect("=")
        start = self.expression()
        self.expect(";")
        condition = self.expression()
        self.expect(";")
        step = self.next() + self.next()
        self.expect(")")
        return loop_row(j, start, condition, step)

    def descriptor(self) -> str:
        kind = self.next()
        self.expect("(")
        n = bare(self.expression())
        self.expect(")")
        self.expect("\n")
        return f"{kind}({n})"

    # expressions
    def arguments(self) -> str:
        out: list[str] = []
        while not self.accept(")"):
            out.append(bare(self.expression()))
            self.accept(",")
        return ", ".join(out)

    def indices(self) -> str:
        out = ""
        while self.accept("["):
            out += f"[{bare(self.expression())}]"
            self.expect("]")
        return out

    def expression(self, level: int = 0) -> str:
        if level == len(PRECEDENCE):
            return self.operand()
        left = self.expression(level + 1)
        while self.peek() in PRECEDENCE[level]:
            operator = self.next()
            left = f"({left} {operator} {self.expression(level + 1)})"
        return left

    def operand(self) -> str:
        token = self.next()
        if token in ("!", "-"):
            return token + self.operand()
        if token == "(":
            inner = self.expression()
            self.expect(")")
            return inner
        if not re.fullmatch(r"\w+", token):
            raise PrintError(f"{token!r} is no operand")
        return _snake(token) + self.indices()


def _snake(name: str) -> str:
    """Convert printed variables in CamelCase to snake_case; constants in capitals are unchanged."""
    return name if name.isupper() else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
