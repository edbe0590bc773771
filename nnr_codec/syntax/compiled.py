"""Compilation of syntax tables to straight-line functions, about ten times as fast as walking a table.

A function is generated from the source of its table, so the two cannot diverge. It tracks no paths and explains no
errors: on any error it raises an exception, and the coder walks the table from the start.

CPU seconds with and without these functions (without: `OFTEN` set too high to be reached), Python 3.11, minimum of
several runs of ``benchmarks.many.tensors``:

=====================================  ====  =======
operation                              with  without
=====================================  ====  =======
decode 3,000 tensors                   0.12  0.23
open 3,000 tensors                     0.07  0.18
encode 3,000 tensors, `UpdateEncoder`  0.67  1.01
encode 3,000 tensors                   0.25  0.25
decode 60,000 tensors                  3.36  5.78
open 60,000 tensors                    2.65  5.18
=====================================  ====  =======

The functions are generated at run time because a build environment lacks numpy and bitarray, which the tables import.
"""

from __future__ import annotations

import ast
import inspect
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

#: Number of table walks before a function is generated; generation takes as long as about 100 walks.
OFTEN = 64

Limited = Mapping[str, tuple[str, int]]
Table = Callable[..., None]


class Compiled(dict[Table, Callable[..., Any] | None]):
    """Functions of all tables in one direction, each generated after `OFTEN` walks of its table; None before.

    Parameters
    ----------
    make : callable
        :func:`make_reader` or :func:`make_writer`.
    """

    def __init__(self, make: Callable[[Table], Callable[..., Any]]) -> None:
        super().__init__()
        self._make = make
        self._walks: Counter[Table] = Counter()

    def __missing__(self, table: Table) -> Callable[..., Any] | None:
        self._walks[table] += 1
        if self._walks[table] <= OFTEN:
            return None
        try:
            self[table] = self._make(table)
        except (OSError, SyntaxError):  # the source is not available
            self[table] = None
        return self[table]


def make_reader(table: Table, limited: Limited) -> Callable[..., None]:
    """Return a function that takes a Reader over a BitReader and a new structure, and fills the structure.

    Raises OSError if the source of the table is not available.
    """
    return _function(_ReaderLines(table, limited))


def make_writer(table: Table) -> Callable[..., None]:
    """Return a function that takes a Writer and a structure, and writes the structure or raises an exception.

    Raises OSError if the source of the table is not available.
    """
    return _function(_WriterLines(table))


def _function(lines: _Lines) -> Callable[..., None]:
    source, file = "\n".join(lines.function()), f"<{type(lines).__name__} of {lines.table.__name__}>"
    lines.names |= {"_inner": _inner, "_check": _check}
    exec(compile(source, file, "exec"), lines.names)
    made: Callable[..., None] = lines.names["function"]
    return made


def _inner(values: dict[str, Any], name: str, k: int) -> list[Any]:
    """Return list k of a list of lists."""
    outer: list[list[Any]] = values.setdefault(name, [])
    while len(outer) <= k:
        outer.append([])
    return outer[k]


def _check(structure: Any, coded: dict[str, Any]) -> None:
    """Raise ValueError unless all elements that are set were coded or equal their defaults."""
    elements = structure.__dict__.items()
    if elements <= coded.items():
        return
    for name, value in elements:
        found = coded.get(name, coded)
        if found is value or found == value:  # NaN is identical, but not equal, to itself
            continue
        if value not in ([], getattr(type(structure), name, None)):
            raise ValueError(name)


class _Lines(ABC):
    """Generator of the source of a function from the source of a table."""

    #: Definitions of names for the body; a function begins with the definitions that it uses.
    HEAD: Mapping[str, str]
    TAIL: Sequence[str] = ()

    def __init__(self, table: Table) -> None:
        self.table, self.names = table, dict[str, Any](table.__globals__)

    def function(self) -> Iterator[str]:
        """Yield the lines of the function."""
        lines = [*self._body(_parsed(self.table).body), *self.TAIL]
        for name, value in reversed(list(self.HEAD.items())):
            if re.search(rf"\b{name}\b", "\n".join(lines)):
                lines.insert(0, f"{name} = {value}")
        yield from ("def function(coder, t):", *_indented(lines or ["pass"]))

    def _body(self, body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            match node:
                case ast.Assign(targets=[target], value=ast.Call(ast.Name(kind), arguments)):
                    yield from self._coded(target, kind, arguments)
                case ast.Expr(ast.Call(ast.Attribute(target, "append"), [ast.Call(ast.Name(kind), arguments)])):
                    assert isinstance(target, ast.Attribute)
                    yield f"entries = values.setdefault({target.attr!r}, [])"
                    yield from self._entry(f"t.{target.attr}[len(entries)]", kind, arguments)
                case ast.Expr(ast.Call(ast.Name("byte_alignment"))):
                    yield from self._alignment()
                case ast.Expr(ast.Call(ast.Name(name), arguments)):
                    called = _parsed(self.names[name])
                    for parameter, argument in zip(called.args.args[1:], arguments[1:], strict=True):
                        yield f"{parameter.arg} = {ast.unparse(argument)}"
                    yield from self._body(called.body)
                case ast.If():
                    yield f"if {ast.unparse(node.test)}:"
                    yield from _indented(self._body(node.body))
                    if node.orelse:
                        yield "else:"
                        yield from _indented(self._body(node.orelse))
                case ast.For(body=[only]) if entries := list(self._entries(node, only)):
                    yield from entries
                case ast.For():
                    yield f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}:"
                    yield from _indented(self._body(node.body))
                case _:
                    yield ast.unparse(node)

    def _coded(self, target: ast.expr, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        match target:
            case ast.Attribute(attr=name):
                yield from self._element(name, kind, arguments)
            case ast.Subscript(ast.Attribute(attr=name)):
                yield f"entries = values.setdefault({name!r}, [])"
                yield from self._entry(ast.unparse(target), kind, arguments)
            case ast.Subscript(ast.Subscript(ast.Attribute(attr=name), k)):
                yield f"entries = _inner(values, {name!r}, {ast.unparse(k)})"
                yield from self._entry(ast.unparse(target), kind, arguments)

    def _entries(self, loop: ast.For, only: ast.stmt) -> Iterator[str]:
        """Yield the lines that code a list in one call, for a loop whose only statement is an entry, if possible."""
        return iter(())

    @abstractmethod
    def _element(self, name: str, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        """Yield the lines for ``t.name = kind(arguments)``."""

    @abstractmethod
    def _entry(self, target: str, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        """Yield the lines for ``target = kind(arguments)``, where the target is the next entry of ``entries``."""

    @abstractmethod
    def _alignment(self) -> Iterator[str]:
        """Yield the lines for byte_alignment()."""


_TAKEN = ("u", "i", "ue", "ie", "st")


class _ReaderLines(_Lines):
    HEAD: Mapping[str, str] = {
        "ctx": "coder.ctx",
        "io": "coder.io",
        "values": "t.__dict__",
        "limits": "io.limits",
        "most": "limits.max_eg_bits",
        **{f"_{kind}": f"io.take_{kind}" for kind in _TAKEN},
    }

    def __init__(self, table: Table, limited: Limited) -> None:
        super().__init__(table)
        self._limited = limited

    def _value(self, kind: str, arguments: list[ast.expr]) -> str:
        """Return the expression for a value."""
        n, *values = map(ast.unparse, arguments or [ast.Constant(0)])
        match kind:
            case "u" if values:
                self.names[f"_{values[0]}"] = self.names[values[0]]._value2member_map_.get
                return f"_{values[0]}(x := _u({n}), x)"
            case "u" | "i":
                return f"_{kind}({n})"
            case "ue" | "ie":
                return f"_{kind}({n}, most)"
            case "st":
                return "_st(limits.max_name_bytes)"
        return f"io.{kind}({n})"

    def _element(self, name: str, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        if kind == "struct":
            cls = ast.unparse(arguments[0])
            self._make_later(f"_{cls}", self.names[cls].table)
            yield f"x = values[{name!r}] = {cls}.__new__({cls})"
            yield f"_{cls}(coder, x)"
            return
        value = self._value(kind, arguments)
        if name in self._limited:
            limit, more = self._limited[name]
            yield f"x = {value}"
            yield f"if x + {more} > limits.{limit}: raise ValueError"
            value = "x"
        yield f"values[{name!r}] = {value}"

    def _make_later(self, name: str, table: Table) -> None:
        """Bind a name to the function of a table, which is generated on the first call."""

        def function(coder: Any, t: Any) -> None:
            self.names[name] = make_reader(table, self._limited)
            self.names[name](coder, t)

        self.names[name] = function

    def _entries(self, loop: ast.For, only: ast.stmt) -> Iterator[str]:
        match only:
            case ast.Assign([ast.Subscript(ast.Attribute(attr=name))], ast.Call(ast.Name(kind), arguments)) | ast.Expr(
                ast.Call(ast.Attribute(ast.Attribute(attr=name)), [ast.Call(ast.Name(kind), arguments)])
            ):
                yield f"numbers = {ast.unparse(loop.iter)}"
                yield "coder.items += len(numbers)"
                yield "if coder.items > limits.max_names: raise ValueError"
                yield f"if numbers: entries = values.setdefault({name!r}, [])"
                yield f"for {ast.unparse(loop.target)} in numbers: entries.append({self._value(kind, arguments)})"

    def _entry(self, target: str, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        yield "coder.items += 1"
        yield "if coder.items > limits.max_names: raise ValueError"
        yield f"entries.append({self._value(kind, arguments)})"

    def _alignment(self) -> Iterator[str]:
        yield "n = 8 - (io.pos & 7)"
        yield "if _u(n) != 1 << n - 1: raise ValueError"


class _WriterLines(_Lines):
    HEAD: Mapping[str, str] = {
        "ctx": "coder.ctx",
        "io": "coder.io",
        "values": "{}",
        **{f"_{kind}": f"io.{kind}" for kind in _TAKEN},
    }
    TAIL = ("_check(t, values)",)

    def _value(self, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        n = ast.unparse(arguments[0]) if arguments else "0"
        if kind == "struct":
            yield f"if not isinstance(x, {n}): raise TypeError"
            yield "coder.write(x)"
        else:
            yield f"{f'_{kind}' if kind in ('u', 'i', 'ue', 'ie', 'st') else f'io.{kind}'}({n}, x)"

    def _element(self, name: str, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        yield f"x = values[{name!r}] = t.{name}"
        yield from self._value(kind, arguments)

    def _entry(self, target: str, kind: str, arguments: list[ast.expr]) -> Iterator[str]:
        yield f"x = {target}"
        yield from self._value(kind, arguments)
        yield "entries.append(x)"

    def _alignment(self) -> Iterator[str]:
        yield "n = 8 - (io.pos & 7)"
        yield "_u(n, 1 << n - 1)"


def _parsed(function: Table) -> ast.FunctionDef:
    """Return the parsed source of a function. Raise OSError if it is unavailable or was changed after import."""
    module = ast.parse(inspect.getsource(function))
    codes = [one for one in compile(module, "", "exec").co_consts if isinstance(one, CodeType)]
    is_same = _essence(function.__code__) in map(_essence, codes)
    match module.body:
        case [ast.FunctionDef() as definition] if is_same:
            return definition
    raise OSError(f"the source of {function.__name__} has changed")


def _essence(code: CodeType) -> tuple[object, ...]:
    """Return the parts of a code object that define its behaviour."""
    return code.co_code, code.co_names, code.co_consts


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)
