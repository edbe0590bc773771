"""All small mistakes in a table function, one at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

OTHER_DESCRIPTOR = {"u": "ue", "i": "u", "ue": "ie", "ie": "ue", "flt": "u", "st": "bs", "bs": "st"}
OTHER_OPERATOR: dict[type[ast.AST], ast.AST] = {
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Gt: ast.GtE(),
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Add(),
    ast.BitAnd: ast.BitOr(),
    ast.And: ast.Or(),
    ast.Or: ast.And(),
}


class Mutation(NamedTuple):
    """Change of ``field`` of ``node`` to ``value``."""

    kind: str
    node: ast.AST
    field: str
    value: Any


def mutations(function: ast.FunctionDef) -> Iterator[Mutation]:
    """Yield all mutations of one function."""
    yield from _of_block(function, "body")
    for statement in function.body:
        for node in ast.walk(statement):
            yield from _of_node(node)


def _of_node(node: ast.AST) -> Iterator[Mutation]:
    match node:
        case ast.Constant(int(value)):
            yield Mutation("changed number", node, "value", value + 1)
        case ast.Call(ast.Name(name)) if name in OTHER_DESCRIPTOR:
            yield Mutation("changed descriptor", node, "func", ast.Name(OTHER_DESCRIPTOR[name]))
        case ast.Call(ast.Name("struct")):
            yield Mutation("other structure", node, "args", [ast.Name("NnrUnitSize")])
        case ast.Assign(value=ast.Call(ast.Name(name))) if name != "struct":  # the target of a structure is not printed
            yield Mutation("other element", node, "targets", [ast.Attribute(ast.Name("t"), "other")])
        case ast.Name(name) if name.isupper() or name in ("i", "j", "k"):
            yield Mutation("other constant or index", node, "id", "OTHER")
        case ast.Compare() | ast.BinOp() | ast.BoolOp():
            yield from _of_operator(node)
        case ast.If(test=test, orelse=otherwise):
            yield Mutation("negated condition", node, "test", ast.UnaryOp(ast.Not(), test))
            yield Mutation("always", node, "test", ast.Name("other"))
            if otherwise:
                yield Mutation("else forgotten", node, "orelse", [])
                yield from _of_block(node, "orelse")
            yield from _of_block(node, "body")
        case ast.For():
            yield from _of_block(node, "body")


def _of_operator(node: ast.Compare | ast.BinOp | ast.BoolOp) -> Iterator[Mutation]:
    match node:
        case ast.Compare(_, [operator], [right]) if type(operator) in OTHER_OPERATOR:
            yield Mutation("changed comparison", node, "ops", [OTHER_OPERATOR[type(operator)]])
            yield Mutation("one side only", node, "left", right)
        case ast.Compare(_, [ast.In()], [ast.Tuple(values) as choice]):
            yield Mutation("value forgotten", choice, "elts", values[1:])
            yield Mutation("values swapped", choice, "elts", values[::-1])
        case ast.BinOp(op=operator) if type(operator) in OTHER_OPERATOR:
            yield Mutation("changed operator", node, "op", OTHER_OPERATOR[type(operator)])
            yield Mutation("operand replaced", node, "left", node.right)
        case ast.BoolOp(operator, values):
            yield Mutation("changed operator", node, "op", OTHER_OPERATOR[type(operator)])
            yield Mutation("operands swapped", node, "values", values[::-1])
            yield Mutation("operand forgotten", node, "values", values[1:])


def _of_block(node: ast.AST, field: str) -> Iterator[Mutation]:
    block: list[ast.stmt] = getattr(node, field)
    for k, statement in enumerate(block):
        if isinstance(statement, ast.Pass):
            continue
        before, after = block[:k], block[k + 1 :]
        yield Mutation("removed row", node, field, before + after)
        yield Mutation("repeated row", node, field, [*before, statement, statement, *after])
        if after and ast.dump(statement) != ast.dump(after[0]):
            yield Mutation("reordered rows", node, field, [*before, after[0], statement, *after[1:]])
        match statement:
            case ast.If(test, [*inner, last], []):
                yield Mutation("row outdented", node, field, [*before, ast.If(test, inner, []), last, *after])
            case ast.For(target, loop, [*inner, last]):
                yield Mutation("row outdented", node, field, [*before, ast.For(target, loop, inner, []), last, *after])
        match statement, after:
            case ast.If(test, inner, []), [following, *rest]:
                yield Mutation("row indented", node, field, [*before, ast.If(test, [*inner, following], []), *rest])
