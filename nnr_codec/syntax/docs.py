"""Documentation of the syntax, extracted from its source.

Rows come from `tables`, meanings from the ``#:`` comments of the elements of `structures` and of `nnr_codec.constants`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import lru_cache
from types import ModuleType

from .. import constants
from . import structures, tables
from .coder import TABLES, Structure


@dataclass(frozen=True)
class Row:
    """Row of a syntax table.

    Parameters
    ----------
    text : str
        Text of the row: an element with its index, a condition, a loop, an invoked table.
    element : str
        Element that the row codes; empty for conditions and loops.
    descriptor : str
        Descriptor of 6.1.3; empty for rows that code nothing themselves.
    within : tuple of str
        Enclosing conditions and loops, outermost first.
    """

    text: str
    element: str = ""
    descriptor: str = ""
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Syntax table of 6.3.

    Parameters
    ----------
    name, clause : str
        Name and clause as printed.
    structures : tuple of str
        Classes of `structures` that declare its elements.
    rows : tuple of Row
    """

    name: str
    clause: str
    structures: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def note(self) -> str:
        """Text of the structure's docstring after name and clause."""
        documentation = CLASSES[self.structures[0]].__doc__ or ""
        return documentation.partition(f"{self.name}(), {self.clause}")[2].strip(" .;").replace("``", "")


#: Structures by class name.
CLASSES: dict[str, type[Structure]] = {cls.__name__: cls for cls in TABLES.values()}


@lru_cache
def _lines(module: ModuleType) -> list[str]:
    return inspect.getsource(module).splitlines()


@lru_cache
def comments(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the ``#:`` comment of each attribute, by class."""
    lines = _lines(module)
    found: dict[str, dict[str, str]] = {}
    for definition in ast.parse("\n".join(lines)).body:
        if not isinstance(definition, ast.ClassDef):
            continue
        of_class = found[definition.name] = {}
        for node in definition.body:
            match node:
                case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                    of_class[name] = lines[(node.end_lineno or node.lineno) - 1].partition("#:")[2].strip()
    return found


@lru_cache
def syntax_tables() -> dict[str, Table]:
    """Return all tables in printed order, by name."""
    found: dict[str, Table] = {}
    clause = ""
    for definition in ast.parse("\n".join(_lines(tables))).body:
        if not isinstance(definition, ast.FunctionDef):
            continue
        name, annotation = definition.name, definition.args.args[0].annotation
        clause = TABLES[name].clause if name in TABLES else clause  # tables without a clause belong to the previous one
        classes = tuple(node.id for node in ast.walk(annotation or definition) if isinstance(node, ast.Name))
        found[name] = Table(name, clause, classes, tuple(_rows(definition.body, ())))
    return found


def _rows(body: list[ast.stmt], within: tuple[str, ...]) -> Iterator[Row]:
    for node in body:
        match node:
            case ast.Assign(targets=[target], value=ast.Call(ast.Name(kind), arguments)) | ast.Expr(
                ast.Call(ast.Attribute(value=target, attr="append"), [ast.Call(ast.Name(kind), arguments)])
            ):
                element = next(part.attr for part in ast.walk(target) if isinstance(part, ast.Attribute))
                descriptor = _descriptor(kind, arguments)
                if kind == "struct":
                    yield Row(descriptor, element, within=within)
                else:
                    yield Row(_plain(target), element, descriptor, within)
            case ast.Expr(ast.Call(ast.Name(name), [ast.Name("t"), *arguments])):
                yield Row(f"{name}({', '.join(map(_plain, arguments))})", within=within)
            case ast.If():
                yield from _if(node, "if", within)
            case ast.For(ast.Name(name), values, inner):
                yield from _block(f"for {name.lstrip('_')} in {_plain(values)}", inner, within)


def _if(node: ast.If, word: str, within: tuple[str, ...]) -> Iterator[Row]:
    yield from _block(f"{word} {_plain(node.test)}", node.body, within)
    match node.orelse:
        case [ast.If() as other]:
            yield from _if(other, "else if", within)
        case [_, *_] as otherwise:
            yield from _block("else", otherwise, within)


def _block(head: str, body: list[ast.stmt], within: tuple[str, ...]) -> Iterator[Row]:
    yield Row(head, within=within)
    yield from _rows(body, (*within, head))


def _descriptor(kind: str, arguments: Sequence[ast.expr]) -> str:
    if kind == "struct":
        return f"{CLASSES[_plain(arguments[0])].table_name}()"
    if kind == "bits":
        return f"u(1) x {_plain(arguments[0])}"
    return f"{kind}({_plain(arguments[0]) if arguments else 'v'})"


def _plain(expression: ast.expr) -> str:
    """Return an expression as written, with ``t.x``, ``ctx.x`` and ``ctx.x(t)`` replaced by x, as printed in the
    standard."""
    lines = _lines(tables)[expression.lineno - 1 : expression.end_lineno]
    lines[-1] = lines[-1][: expression.end_col_offset]  # first, because there may be only one line
    lines[0] = lines[0][expression.col_offset :]
    return re.sub(r"\b(?:t|ctx)\.(\w+)(?:\(t\))?", r"\1", " ".join(map(str.strip, lines)))


# Values that a meaning distinguishes: ``0: rows, 1..4: blocks``.
_CASES = re.compile(r"(?:^|, )(\d+)(?:\.\.(\d+))?: (.*?)(?=, \d+(?:\.\.\d+)?: |$)")


@lru_cache
def value_tables() -> dict[str, type[IntEnum] | type[IntFlag]]:
    """Return the enumerations of `nnr_codec.constants` by table number."""
    found: dict[int, type[IntEnum] | type[IntFlag]] = {}
    for cls in vars(constants).values():
        if isinstance(cls, type) and issubclass(cls, (IntEnum, IntFlag)) and cls.__module__ == constants.__name__:
            numbers = re.search(r"Tables? (\d+)(?: and (\d+))?", cls.__doc__ or "")
            found |= {int(n): cls for n in (numbers.groups() if numbers else ()) if n}
    return {str(n): found[n] for n in sorted(found)}


@lru_cache
def meaning_of(element: str) -> str:
    """Return the meaning of an element in any structure; empty if it is undocumented."""
    found = (comments(structures)[name].get(element, "") for name in CLASSES)
    return next(filter(None, found), "")


@lru_cache
def values_of(element: str) -> type[IntEnum] | type[IntFlag] | None:
    """Return the enumeration of the table to which the meaning of an element refers."""
    number = re.match(r"Table (\d+)", meaning_of(element))
    return value_tables().get(number[1]) if number else None


@lru_cache(maxsize=4096)
def value_meaning(element: str, value: int) -> str:
    """Return the meaning of a value of an element: ``NNR_PT_INT: integers (7.3.2)``."""
    meaning, values = meaning_of(element), values_of(element)
    if not values:
        for low, high, case in _CASES.findall(meaning):
            if int(low) <= value <= int(high or low):
                return str(case)
        return f"1: {meaning}" if element.endswith("_flag") and not value and not _CASES.search(meaning) else meaning
    said = comments(constants)[values.__name__]
    if issubclass(values, IntFlag):
        return ", ".join(f"{m.name}: {said[m.name]}" for m in values if m.name and m & value) or "none"
    if value not in values.__members__.values():
        return f"not in {meaning}"
    name = values(value).name
    return f"{name}: {said[name]}".rstrip(": ")
