"""Listings of functions, and instrumented copies that record the reached lines and their outcomes.

A table of the standard that is written as a Python function is listed in the form of the standard: elements, conditions
and loops. The copy behaves like the function.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from nnr_codec.syntax.docs import CLASSES, values_of

#: Outcomes of conditions, of loops, and of flags.
TRUE, FALSE = "true", "false"
ROUNDS = ("no iteration", "one iteration", "several")
REACHED = "reached"
ZERO, ONE, POSITIVE, NEGATIVE = "0", "1", "above 0", "below 0"


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Parameters
    ----------
    number : int
        Number in its listing.
    text : str
    depth : int
        Number of conditions and loops around it.
    descriptor : str
        Descriptor of 6.1.3; empty for lines that code nothing.
    outcomes : tuple of str
        Outcomes that vectors must reach; empty for lines that only structure other lines.
    """

    number: int
    text: str
    depth: int
    descriptor: str = ""
    outcomes: tuple[str, ...] = ()


@dataclass
class Table:
    """Lines of one function."""

    name: str
    clause: str
    lines: list[Line] = field(default_factory=list)


#: Number of a line in its listing, and the reached outcome.
Hit = tuple[int, str]


class Listing:
    """Listing of functions of a module, with instrumented copies.

    Parameters
    ----------
    module : module
        Module whose source is read.
    names : sequence of str
        Functions and classes; all methods of a class with a clause are listed.
    clauses : callable
        Returns the clause of a function for its definition and the name of its class; a function with an empty clause
        is copied but not listed.
    constants : dict of str to bool
        Expressions, in the form of ast.unparse, with a constant value; code that depends on them is simplified.
    """

    def __init__(
        self,
        module: ModuleType,
        names: Sequence[str],
        clauses: Callable[[ast.FunctionDef, str], str],
        constants: dict[str, bool] | None = None,
    ) -> None:
        self.tables: list[Table] = []
        self.hits: set[Hit] = set()
        self._count = 0
        self._clauses, self._decider = clauses, _Decider(constants or {})
        wanted = {definition.name: definition for definition in _definitions(module) if definition.name in names}
        body: list[ast.stmt] = [self._copied(wanted[name]) for name in names]
        #: Namespace of the module, with the copies.
        self.names: dict[str, Any] = dict(vars(module)) | {"_note": self._note, "_if": self._if, "_loop": self._loop}
        tree = ast.fix_missing_locations(ast.Module(body, []))
        exec(compile(tree, f"<listing of {module.__name__}>", "exec"), self.names)

    def _copied(self, definition: ast.FunctionDef | ast.ClassDef) -> ast.stmt:
        methods = definition.body if isinstance(definition, ast.ClassDef) else [definition]
        owner = definition.name if isinstance(definition, ast.ClassDef) else ""
        for method in methods:
            if isinstance(method, ast.FunctionDef) and (clause := self._clauses(method, owner)):
                table = Table(method.name, clause)
                self.tables.append(table)
                method.body = _Lines(table, self._next, self._decider).block(_without_docstring(method.body), 0)
                method.body = method.body or [ast.Pass()]
        if isinstance(definition, ast.FunctionDef):
            definition.decorator_list = []
        return definition

    def _next(self) -> int:
        self._count += 1
        return self._count

    # Called by the copies.
    def _note(self, number: int, values: Any = None) -> Any:
        """Record that an element was coded with these values."""
        self.hits.add((number, REACHED))
        for value in set(values) if isinstance(values, list) else (values,):
            if isinstance(value, int):
                self.hits.add((number, NEGATIVE if value < 0 else POSITIVE if value else ZERO))
                if value == 1:
                    self.hits.add((number, ONE))
        return values

    def _if(self, number: int, value: Any) -> Any:
        self.hits.add((number, TRUE if value else FALSE))
        return value

    def _loop(self, number: int, values: Iterable[Any]) -> Iterator[Any]:
        rounds = 0
        try:
            for value in values:
                rounds += 1
                yield value
        finally:
            self.hits.add((number, ROUNDS[min(rounds, 2)]))


def _definitions(module: ModuleType) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest
    return body


class _Decider(ast.NodeTransformer):
    """Simplification of code that depends only on constants."""

    def __init__(self, constants: dict[str, bool]) -> None:
        self._constants = constants

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        is_read = isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store)
        if is_read and ast.unparse(node) in self._constants:
            return ast.Constant(self._constants[ast.unparse(node)])
        match node:
            case ast.UnaryOp(ast.Not(), ast.Constant(bool(value))):
                return ast.Constant(not value)
            case ast.BoolOp(op, values):
                ends = isinstance(op, ast.Or)
                if any(isinstance(v, ast.Constant) and v.value is ends for v in values):
                    return ast.Constant(ends)
            case ast.IfExp(ast.Constant(bool(value)), body, orelse):
                return body if value else orelse
            case ast.If(ast.Constant(bool(value)), body, orelse):
                return body if value else orelse
        return node


class _Lines:
    """Lister of the statements of a function, which also instruments them for the copy."""

    def __init__(self, table: Table, number: Callable[[], int], decider: _Decider) -> None:
        self.table, self._number, self._decider = table, number, decider
        self._elements: dict[str, str] = {}  # of variables that hold a context

    def block(self, body: list[ast.stmt], depth: int) -> list[ast.stmt]:
        """Return the instrumented copy of statements."""
        decided: list[ast.stmt] = []
        for node in body:
            made = self._decider.visit(node)
            decided += made if isinstance(made, list) else [made]
        return [statement for node in decided for statement in self._statement(node, depth)]

    def _statement(self, node: ast.stmt, depth: int) -> list[ast.stmt]:
        match node:
            case ast.Assign(targets=[target], value=ast.Call(ast.Name(kind), arguments)) | ast.Expr(
                ast.Call(ast.Attribute(value=target, attr="append"), [ast.Call(ast.Name(kind), arguments)])
            ) if _element_of(target):
                return self._element(node, target, kind, arguments, depth)
            case ast.If(test, body, orelse):
                return self._if(node, "if", test, body, orelse, depth)
            case ast.For(target, values, body):
                line = self._line(f"for {_plain(target).lstrip('_') or 'i'} in {_plain(values)}", depth, ROUNDS)
                node.iter = _call("_loop", line, self._expression(values, depth + 1))
                node.body = self.block(body, depth + 1)
            case ast.While(ast.Constant(True), body):
                line = self._line("repeat", depth, ROUNDS[1:])
                return [self._while(line, ast.Constant(True), body, depth)]
            case ast.While(test, body):
                line = self._line(f"while {_plain(self._shown(test))}", depth, ROUNDS)
                return [self._while(line, self._expression(test, depth + 1), body, depth)]
            case ast.Expr(ast.Call(function, arguments)) if _is_invocation(function):
                line = self._line(_invocation(function, arguments), depth, (REACHED,))
                return [*self._with_expressions(node, depth), ast.Expr(_call("_note", line))]
            case _:
                return self._with_expressions(node, depth)
        return [node]

    def _while(self, line: int, test: ast.expr, body: list[ast.stmt], depth: int) -> ast.stmt:
        """Return a while loop as a loop over an iterator."""
        nothing = ast.arguments([], [], None, [], [], None, [])
        holds = ast.Lambda(nothing, ast.Call(ast.Name("bool", ast.Load()), [test], []))
        rounds = ast.Call(ast.Name("iter", ast.Load()), [holds, ast.Constant(False)], [])
        return ast.For(ast.Name("_", ast.Store()), _call("_loop", line, rounds), self.block(body, depth + 1), [])

    def _with_expressions(self, node: ast.stmt, depth: int) -> list[ast.stmt]:
        match node:
            case ast.Assign([ast.Name(variable)], ast.Constant(str(name))):
                self._elements[variable] = name
                return [node]
            case ast.Assign([ast.Name(variable)], value) if name := _context(value):
                self._elements[variable] = name
            case ast.Assign([*_, ast.Name(variable)], ast.Call(function, arguments)) if _is_invocation(function):
                if not isinstance(function, ast.Name) and not self._coded(node.value)[0]:
                    line = self._line(_invocation(function, arguments), depth, (REACHED,))
                    node.value = _call("_note", line, self._expression(node.value, depth))
                    return [node]
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and name != "target":
                setattr(node, name, self._expression(value, depth))
        return [node]

    def _if(
        self, node: ast.If, word: str, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], depth: int
    ) -> list[ast.stmt]:
        text = f"{word} {_plain(self._shown(test))}"
        if any(self._coded(part)[0] for part in ast.walk(test)) and not isinstance(test, ast.BoolOp):
            node.test = self._expression(test, depth)  # the values of the element are the outcomes
            self._line(text, depth)
        else:
            line = self._line(text, depth, (TRUE, FALSE))
            node.test = _call("_if", line, self._expression(test, depth + 1))
        node.body = self.block(body, depth + 1)
        match orelse:
            case [ast.If(inner_test, inner_body, inner_orelse) as inner] if inner.col_offset == node.col_offset:  # elif
                node.orelse = self._if(inner, "else if", inner_test, inner_body, inner_orelse, depth)
            case [_, *_]:
                self._line("else", depth)
                node.orelse = self.block(orelse, depth + 1)
        return [node]

    def _element(
        self, node: ast.stmt, target: ast.expr, kind: str, arguments: list[ast.expr], depth: int
    ) -> list[ast.stmt]:
        """List and instrument an element of the tables of 6.3, for example ``t.name = u(8)``."""
        name = _element_of(target)
        if kind == "struct":
            line = self._line(f"{CLASSES[_plain(arguments[0])].table_name}()", depth, (REACHED,))
            return [node, ast.Expr(_call("_note", line))]
        size = _plain(arguments[0]) if arguments else "v"
        descriptor = f"u(1) x {size}" if kind == "bits" else f"{kind}({size})"
        line = self._line(_plain(target), depth, _domain(name, kind, size), descriptor)
        value: ast.expr = ast.parse(ast.unparse(target), mode="eval").body
        if isinstance(node, ast.Expr):
            value = ast.Subscript(value, ast.Constant(-1), ast.Load())
        if kind == "bits":
            value = ast.Call(ast.Attribute(value, "tolist", ast.Load()), [], [])
        return [node, ast.Expr(_call("_note", line, value))]

    # -------------------------------------------------------------------------------------- expressions
    def _expression(self, node: ast.expr, depth: int) -> ast.expr:
        """Return the copy of an expression that records its conditions and coded elements."""
        name, descriptor = self._coded(node)
        if name:
            told_apart = (NEGATIVE, ZERO, POSITIVE) if descriptor.startswith("i") else (ZERO, POSITIVE)
            line = self._line(name, depth, told_apart, descriptor)
            return _call("_note", line, node)
        match node:
            case ast.BoolOp(_, values):
                node.values = [self._condition(value, depth) for value in values]
            case ast.IfExp(test, body, orelse):
                node.test = self._condition(test, depth)
                node.body, node.orelse = self._expression(body, depth), self._expression(orelse, depth)
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.Lambda():
                pass
            case _:
                for field_name, value in ast.iter_fields(node):
                    if isinstance(value, ast.expr):
                        setattr(node, field_name, self._expression(value, depth))
                    elif isinstance(value, list):
                        made = [self._expression(v, depth) if isinstance(v, ast.expr) else v for v in value]
                        setattr(node, field_name, made)
        return node

    def _condition(self, node: ast.expr, depth: int) -> ast.expr:
        match node:
            case ast.BoolOp():
                return self._expression(node, depth)
            case ast.UnaryOp(ast.Not(), ast.BoolOp()):
                node.operand = self._expression(node.operand, depth)
                return node
        if self._coded(node)[0]:
            return self._expression(node, depth)
        line = self._line(_plain(self._shown(node)), depth, (TRUE, FALSE))
        return _call("_if", line, self._expression(node, depth + 1))

    def _coded(self, node: ast.AST) -> tuple[str, str]:
        """Return name and descriptor of the element that an expression codes; empty if it codes none."""
        match node:
            case ast.Call(ast.Attribute(ast.Name("c") | ast.Attribute(attr="c"), "ae"), [context, *_]):
                name = self._elements.get(context.id, "") if isinstance(context, ast.Name) else _context(context)
                return name, "ae(v)"
            case ast.Call(
                ast.Attribute(ast.Name("c") | ast.Attribute(attr="c"), "uae" | "iae" as kind),
                [n, _, ast.Constant(str() as name) | ast.Name(name)],
            ):
                return self._elements.get(name, name), f"{kind}({_plain(n)})"
            case ast.Call(ast.Attribute(ast.Name("c"), "at")):
                return "terminating_one_bit", "at(v)"
        return "", ""

    def _shown(self, node: ast.expr) -> ast.expr:
        """Return the expression with each coding call replaced by the name of its element."""
        lines = self

        class Shown(ast.NodeTransformer):
            def visit_Call(self, call: ast.Call) -> ast.expr:
                name = lines._coded(call)[0]
                return ast.Name(name) if name else call

        shown: ast.expr = Shown().visit(ast.parse(ast.unparse(node), mode="eval").body)
        return shown

    def _line(self, text: str, depth: int, outcomes: Sequence[str] = (), descriptor: str = "") -> int:
        line = Line(self._number(), text, depth, descriptor, tuple(outcomes))
        self.table.lines.append(line)
        return line.number


def _call(name: str, line: int, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [ast.Constant(line), *arguments], [])


def _element_of(target: ast.expr) -> str:
    """Return the syntax element of ``t.name``, ``t.name[j]`` and ``t.name[j][k]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.attr if isinstance(target, ast.Attribute) and _plain(target.value) == "t" else ""


def _context(node: ast.expr) -> str:
    """Return the element of ``self.contexts["name"][k]``."""
    match node:
        case ast.Subscript(ast.Subscript(ast.Attribute(attr="contexts"), ast.Constant(str(name)))):
            return name
        case ast.Subscript(ast.Subscript(ast.Attribute(attr="contexts"), ast.Name(name))):
            return name
    return ""


def _is_invocation(function: ast.expr) -> bool:
    """Return whether a call is a row: a call of another table, or a step of 10.3."""
    match function:
        case ast.Name():
            return True
        case ast.Attribute(ast.Name("self" | "c" | "coder"), attr):
            return not attr.startswith("_check") and attr != "_report"
    return False


def _domain(name: str, kind: str, size: str) -> tuple[str, ...]:
    """Return the distinguished values of an element."""
    if kind in ("flt", "st", "bs") or (kind == "u" and size in ("256", "512")):
        return (REACHED,)
    if (kind, size) == ("u", "1") or kind == "bits":
        return (ZERO, ONE)
    if kind in ("i", "ie"):
        return (NEGATIVE, ZERO, POSITIVE)
    return (REACHED,) if values_of(name) else (ZERO, POSITIVE)


def _invocation(function: ast.expr, arguments: list[ast.expr]) -> str:
    shown = [_plain(argument) for argument in arguments if _plain(argument) not in ("t", "unit", "ctx")]
    return f"{_plain(function).lstrip('_')}({', '.join(shown)})"


#: Objects that hold the variables of the standard.
_OBJECTS = re.compile(r"\b(?:self|s|t|c|ctx|given|header|session|coder|unit|ndu)\.(?=\w)")


def _plain(expression: ast.expr) -> str:
    """Return the text of an expression without the objects that hold the variables of the standard."""
    text = _OBJECTS.sub("", ast.unparse(expression))
    text = re.sub(r"^\(\w+ := \((.*)\)\)$", r"\1", text)
    return re.sub(r"\b(\w+)\((?:t|header)\)", r"\1", text).replace("'", '"')
