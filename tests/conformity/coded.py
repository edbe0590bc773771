"""The table functions of `nnr_codec.syntax.tables` in the common notation of `printed`, from their syntax trees.

Conventions:

* ``t.x`` and ``ctx.x`` are x, ``ctx.f(t)`` is the derived variable f; ``_j`` is j;
* ``t.x[j] = u(8)`` is x[j], ``t.x.append(u(8))`` is an x that is printed without index;
* ``x in (A, B)`` is x == A || x == B; ``bits(n)`` is a loop of n times u(1); a second argument of u() names the values;
* ``struct(Cls)`` calls the table of that class; the only output parameters that are printed are in `OUTPUTS`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .printed import STEP, bare, loop_row

#: Arguments that a printed call shows for its results, by the element that takes them.
OUTPUTS = {
    "codebook": "cb_zero_offset, codebook, cb_size",
    "codebook_dc": "cb_zero_offset_dc, codebook_dc, cb_size_dc",
}

BINARY: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.And: "&&",
    ast.Or: "||",
}


class CodeError(ValueError):
    """Error for a statement of tables.py without a convention."""


class Code:
    """Table functions of a module."""

    def __init__(self, source: str) -> None:
        self.functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        self.clauses: dict[str, str] = {}
        self.table_of: dict[str, str] = {}  # by the name of the class
        for name, function in self.functions.items():
            for decorator in function.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name("syntax"), args=[ast.Constant(str(clause)), ast.Name(cls)]):
                        self.clauses[name], self.table_of[cls] = clause, name
                    case _:
                        raise CodeError(f"{name}: {ast.unparse(decorator)}")

    def rows(self, function: ast.FunctionDef) -> list[str]:
        """Return the rows of a function in the common notation."""
        return list(self._block(function.body, ""))

    def _block(self, body: list[ast.stmt], indent: str) -> Iterator[str]:
        for node in body:
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(attr=name)], value=ast.Call(ast.Name("struct"), [ast.Name(cls)])
                ):
                    yield f"{indent}{self.table_of[cls]}({OUTPUTS.get(name, '')})"
                case ast.Assign(targets=[target], value=ast.Call(ast.Name("bits"), [count])):
                    yield indent + loop_row("j", "0", f"(j < {expression(count)})", "j++")
                    yield f"{indent}{STEP}{expression(target)}[j]  u(1)"
                case ast.Assign(targets=[target], value=ast.Call() as call):
                    yield f"{indent}{expression(target)}  {_descriptor(call)}"
                case ast.Expr(ast.Call(ast.Attribute(value=target, attr="append"), [ast.Call() as call])):
                    yield f"{indent}{expression(target)}  {_descriptor(call)}"
                case ast.Expr(ast.Call(ast.Name(name), [ast.Name("t"), *arguments])):
                    yield f"{indent}{name}({', '.join(bare(expression(a)) for a in arguments)})"
                case ast.If(test, then, otherwise):
                    yield f"{indent}if {bare(expression(test))}"
                    yield from self._block(then, indent + STEP)
                    if otherwise:
                        yield f"{indent}else"
                        yield from self._block(otherwise, indent + STEP)
                case ast.For(ast.Name(j), ast.Call(ast.Name("range"), arguments), inner, []):
                    yield indent + _range(j.lstrip("_"), arguments)
                    yield from self._block(inner, indent + STEP)
                case ast.Pass():
                    pass
                case _:
                    raise CodeError(f"no convention for {ast.unparse(node)!r}")


def _descriptor(call: ast.Call) -> str:
    match call:
        case ast.Call(ast.Name(("st" | "bs") as kind), []):
            return f"{kind}(v)"
        case ast.Call(ast.Name(("u" | "i" | "ue" | "ie" | "flt") as kind), [n]):
            return f"{kind}({bare(expression(n))})"
        case ast.Call(ast.Name("u"), [n, ast.Name()]):
            return f"u({bare(expression(n))})"
    raise CodeError(f"{ast.unparse(call)} is no descriptor")


def _range(j: str, arguments: list[ast.expr]) -> str:
    match arguments:
        case [stop]:
            return loop_row(j, "0", f"({j} < {expression(stop)})", f"{j}++")
        case [start, stop]:
            return loop_row(j, expression(start), f"({j} < {expression(stop)})", f"{j}++")
        case [start, ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.UnaryOp(ast.USub(), ast.Constant(1))]:
            return loop_row(j, expression(start), f"({j} >= 0)", f"{j}--")
    raise CodeError(f"no convention for range({', '.join(map(ast.unparse, arguments))})")


def expression(node: ast.expr) -> str:
    """Return an expression, fully parenthesized, in the spelling of C."""
    match node:
        case ast.Name(name) | ast.Attribute(value=ast.Name("t" | "ctx" | "self"), attr=name):
            return name
        case ast.Call(ast.Attribute(value=ast.Name("ctx"), attr=name), [ast.Name("t")]):
            return name
        case ast.Constant(int(value)):
            return str(value)
        case ast.Subscript(value, index):
            return f"{expression(value)}[{bare(expression(index))}]"
        case ast.BinOp(left, operator, right) | ast.Compare(left, [operator], [right]) if type(operator) in BINARY:
            return f"({expression(left)} {BINARY[type(operator)]} {expression(right)})"
        case ast.Compare(left, [ast.In()], [ast.Tuple(values)]):
            return _chain("||", [f"({expression(left)} == {expression(value)})" for value in values])
        case ast.BoolOp(operator, values):
            return _chain(BINARY[type(operator)], [expression(value) for value in values])
        case ast.UnaryOp(ast.Not(), operand):
            return "!" + expression(operand)
        case ast.UnaryOp(ast.USub(), operand):
            return "-" + expression(operand)
    raise CodeError(f"no convention for {ast.unparse(node)!r}")


def _chain(operator: str, operands: list[str]) -> str:
    out = operands[0]
    for operand in operands[1:]:
        out = f"({out} {operator} {operand})"
    return out
