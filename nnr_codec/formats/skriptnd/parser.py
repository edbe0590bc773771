"""Lexer and parser of SkriptND modules (NNEF 2 draft, revision 8, 2.16), in linear time.

The formal grammar of the draft is incomplete, and it contradicts the text and the examples in places. The parser
accepts all forms that occur: documents without ``version``, imports without a semicolon (2.1), names of definitions
(2.2), definitions without blocks, ``^(rank)`` (2.6), ``with`` before local values (2.12), types of loop variables and
blocks with ``yield`` (2.10.1), ``|i < j : k|`` like ``|i <> j : k|`` (2.12 and 2.4), and ``is`` as a name (2.1).

The draft does not define precedences. This parser uses the precedences of the Khronos parser. Like that parser, it
accepts line breaks in strings and rejects repeated blocks. The Khronos parser also has ``static`` and ``dynamic``,
bounds of pack lengths, empty attributes and ``erf``, which are accepted too.

Nesting is limited in two ways: :data:`MAX_NESTING` open expressions and blocks limit the recursion of the parser, and
the same height limits the tree of an expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable as Function
from itertools import chain
from typing import Any, TypeVar

from ..nnef.lexer import Lexer, Text, Token, VersionError, check_text
from ..nnef.tree import SyntaxNode
from .tree import (
    Assertion,
    Bound,
    Branch,
    Callable,
    Component,
    Declaration,
    Definition,
    Document,
    Expression,
    Extent,
    Invocation,
    IterationCount,
    Loop,
    Lowering,
    Pack,
    Quantization,
    Region,
    Target,
    Targets,
    TypeParameter,
    Using,
)

#: Standard in errors.
STANDARD = "NNEF 2 draft"
#: Maximum number of open expressions and blocks, and maximum height of an expression.
MAX_NESTING = 100

_TYPES = frozenset({"type", "arith", "num", "int", "real", "bool", "str"})
_KEYWORDS = _TYPES | {
    *("import", "public", "operator", "graph", "optional", "true", "false", "inf", "pi", "is", "in"),
    *("if", "then", "elif", "else", "with", "for", "while", "do", "unroll", "yield"),
}
#: Functions of 2.4 and of the parser of Khronos; the grammar lacks `frac`, and the draft `erf`.
FUNCTIONS = frozenset(
    {
        *("abs", "sign", "sqrt", "exp", "log", "ceil", "floor", "round", "frac", "erf"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    }
)
_MEMBERS = ("shape", "rank", "size")
#: Precedence of binary operators other than ``**``; all are left-associative.
_PRECEDENCE = {
    **dict.fromkeys(("=>",), 1),
    **dict.fromkeys(("&&", "||", "^"), 2),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "is", "in"), 3),
    **dict.fromkeys(("<?", ">?"), 4),
    **dict.fromkeys(("+", "-"), 5),
    **dict.fromkeys(("*", "/", "\\", "%"), 6),
}
_CUMULATIONS = frozenset({"+", "*", "&&", "||", "<?", ">?"})
_FOLDS = _CUMULATIONS | {"<", "<=", ">", ">=", "==", "!=", ":="}
_FOLD_PRECEDENCE = {**_PRECEDENCE, ":=": 3}
_ASSIGNMENTS = ("=", ":=", "+=", "*=", "&=", "|=", "<?=", ">?=")
# Field of a definition by block.
_BLOCKS = {
    "@dtype": "types",
    "@attrib": "attributes",
    "@input": "inputs",
    "@output": "outputs",
    "@constant": "constants",
    "@variable": "variables",
    "@using": "symbols",
    "@assert": "assertions",
    "@lower": "lowerings",
    "@compose": "components",
    "@update": "updates",
    "@quantize": "quantizations",
}
_MAX_DIGITS = 4000
# Names appear in messages, of which there may be many.
_MAX_NAME = 4096
_TOKEN = re.compile(
    rb"""
    (?: [ \t\v\f\r\n]++ | \#[^\r\n]*+ )*+
    (?: (?P<name>   [A-Za-z_][A-Za-z0-9_]*+ )
      | (?P<number> [0-9]++ (?:\.[0-9]*+)? (?:[eE][+-]?[0-9]++)? )
      | (?P<string> '[^'\\]*+(?:\\.[^'\\]*+)*+' | "[^"\\]*+(?:\\.[^"\\]*+)*+" )
      | (?P<block>  @[A-Za-z0-9_]*+ )
      | (?P<sign>   \.\.\.? | <\?= | >\?= | \*\* | && | \|\| | \?\? | == | != | <= | >= | \+= | \*= | &= | \|= | :=
                  | <\? | >\? | <> | <- | -> | => | [-+*/\\%^!<>=?,.:;~()\[\]{}|] )
      | (?P<end>    \Z )
      | (?P<bad> ) )
    """,
    re.VERBOSE | re.DOTALL,
)
# Start of an expression in a string: an opening brace without a backslash.
_FORMAT = re.compile(rb"(?<!\\)\{")

_Item = TypeVar("_Item")


class ScriptText(Text):
    """Text of a module, with the positions of byte offsets."""

    standard = STANDARD


def parse(data: bytes, source: str, *, is_main: bool) -> Document:
    """Parse a module.

    Parameters
    ----------
    data : bytes
        The module in UTF-8.
    source : str
        Name of the module in errors.
    is_main : bool
        True if graphs are allowed.

    Raises
    ------
    FormatError
        The text violates the grammar, names an unknown type or function, or defines a name twice. The error has line,
        column and clause.
    """
    check_text(data, source)
    return _Parser(data, source, "2.16").document(is_main=is_main)


class _Parser(ScriptText, Lexer):
    pattern = _TOKEN
    lexical_clause = "2.4"
    # Number of open expressions and blocks.
    depth = 0

    def __init__(self, data: bytes, source: str, clause: str) -> None:
        super().__init__(data, source, clause)
        # Names used as types and as functions in the current definition.
        self.types: list[Token] = []
        self.functions: list[Token] = []

    # Modules

    def document(self, *, is_main: bool) -> Document:
        version = self.version()
        extensions = self.names("extension")
        imports = self.names("import")
        definitions: dict[str, Definition] = {}
        while self.token.kind != "end":
            if self.at("graph") and not is_main:
                self.refuse("only main.sknd may define a graph", "2.15")
            definition = self.definition()
            if definition.name in definitions:
                self.fail(f"{definition.name[:40]!r} is defined twice", definition.start)
            definitions[definition.name] = definition
        if is_main and not any(definition.is_graph for definition in definitions.values()):
            self.refuse("the main module has no graph", "2.15")
        return Document(0, self.last_end, version, extensions, imports, tuple(definitions.values()))

    def version(self) -> str:
        if not self.at("version"):
            return ""
        self.advance()
        version = self.expect_kind("number")
        if not re.fullmatch(r"2\.[0-9]+", version.text):
            self.fail(
                f"NNEF version {version.text[:20]} is not supported; only 2.x is", version.start, kind=VersionError
            )
        self.expect(";")
        return version.text

    def names(self, keyword: str) -> tuple[str, ...]:
        """Parse all ``extension`` or ``import`` statements; names are separated by blanks or commas."""
        names = []
        while self.at(keyword):
            self.advance()
            names.append(self.qualified())
            while self.accept(",") or (self.token.kind == "name" and self.token.text not in _KEYWORDS):
                names.append(self.qualified())
            # Imports in 2.1 have no semicolon.
            if keyword != "import" or self.token.text not in ("import", "public", "operator", "graph"):
                self.expect(";")
        return tuple(names)

    def definition(self) -> Definition:
        is_public = self.accept("public")
        is_graph = not is_public and self.accept("graph")
        if not is_graph:
            if not self.at("operator"):
                what = "'operator'" if is_public else "'operator' or 'graph'"
                self.refuse(f"expected {what}, found {self.found()}")
            self.advance()
        start = self.token.start
        name = self.name()
        self.expect("{")
        self.types, self.functions = [], []
        blocks: dict[str, tuple[Any, ...]] = {}
        while not self.accept("}"):
            if self.token.kind != "block":
                self.refuse(f"expected a block or '}}', found {self.found()}", "2.2")
            block = self.token.text
            if block not in _BLOCKS:
                self.refuse(f"unknown block {block[:40]!r}", "2.2")
            if _BLOCKS[block] in blocks:
                self.refuse(f"block {block!r} is repeated", "2.2")
            self.advance()
            blocks[_BLOCKS[block]] = self.block(block)
        definition = Definition(start, self.last_end, is_graph, is_public, name, **blocks)
        self.check(definition)
        return definition

    def block(self, block: str) -> tuple[SyntaxNode, ...]:
        item: Function[[], SyntaxNode]
        match block:
            case "@dtype":
                item = self.type_parameter
            case "@using":
                item = self.using
            case "@assert":
                item = self.assertion
            case "@lower":
                item = self.lowering
            case "@compose" | "@update":
                item = self.component
            case "@quantize":
                item = self.quantization
            case _:
                return self.statements(lambda: self.declaration(block))
        return self.statements(item)

    def statements(self, item: Function[[], _Item]) -> tuple[_Item, ...]:
        """Parse items that end with semicolons, in braces."""
        self.expect("{")
        items = []
        while not self.accept("}"):
            items.append(item())
            self.expect(";")
        return tuple(items)

    def check(self, definition: Definition) -> None:
        """Check the names that a definition declares, and the types and functions that it uses.

        Blocks may come in any order, so the check follows the last one.
        """
        types = {parameter.name for parameter in definition.types}
        for token in self.types:
            if token.text not in types:
                self.fail(f"unknown type {token.text[:40]!r}", token.start, "2.3")
        for token in self.functions:
            if token.text not in types and token.text not in FUNCTIONS:
                self.fail(f"unknown function {token.text[:40]!r}", token.start, "2.4")
        names: set[str] = set()
        tensors = (definition.inputs, definition.constants, definition.variables, definition.outputs)
        for each in chain[TypeParameter | Declaration](definition.types, definition.attributes, *tensors):
            if each.name in names:
                self.fail(f"{each.name[:40]!r} is declared twice", each.start)
            names.add(each.name)

    # Declarations

    def type_parameter(self) -> TypeParameter:
        start = self.token.start
        name = self.name()
        self.expect(":")
        base = self.type_name()
        default = self.type_name() if self.accept("=") else ""
        return TypeParameter(start, self.last_end, name, base, default)

    def declaration(self, block: str) -> Declaration:
        start = self.token.start
        name = self.name()
        self.expect(":")
        self.qualifier()
        is_optional = self.accept("optional")
        self.qualifier()
        type_ = self.type()
        rank = ""
        if self.accept("^"):
            self.expect("(")
            rank = self.name()
            self.expect(")")
        if self.at("[") and block == "@attrib":
            self.refuse("an attribute cannot be a tensor", "2.5")
        shape = self.shape() if self.at("[") else None
        if block in ("@constant", "@variable"):
            for extent in shape or ():
                if extent.value is None or extent.bound is not None:
                    self.fail(f"a tensor in {block} cannot have a dynamic extent", extent.start, "2.7")
        pack = self.pack()
        default, bounds = None, []
        if self.at("="):
            if block == "@variable":
                self.refuse("a variable cannot have a value; its value is in its file", "2.7")
            if block == "@attrib" and is_optional:
                self.refuse("an optional attribute cannot have a default", "2.5")
            self.advance()
            default = self.expression()
            while block == "@constant" and self.at(","):
                bounds.append(self.bound())
        return Declaration(start, self.last_end, name, is_optional, type_, rank, shape, pack, default, tuple(bounds))

    def type(self) -> str:
        """Parse a type or a type parameter."""
        if self.token.kind == "name" and self.token.text not in _KEYWORDS:
            self.types.append(self.token)
            return self.name()
        return self.type_name()

    def type_name(self) -> str:
        if self.token.text not in _TYPES:
            self.refuse(f"expected a type, found {self.found()}", "2.3")
        return self.advance().text

    def shape(self) -> tuple[Extent, ...]:
        return self.several("[", "]", self.extent)

    def extent(self) -> Extent:
        start = self.token.start
        self.qualifier()
        is_spread = self.accept("..")
        value, bound = self.dimension()
        pack = self.pack()
        return Extent(start, self.last_end, is_spread, value, bound, pack)

    def pack(self) -> Pack | None:
        start = self.token.start
        if not self.accept(".."):
            return None
        length = bound = None
        if self.accept("("):
            self.qualifier()
            length, bound = self.dimension()
            self.expect(")")
        return Pack(start, self.last_end, length, bound)

    def dimension(self) -> tuple[Expression | None, Expression | None]:
        """Parse an extent or a length, with its upper bound."""
        value = None if self.accept("~") else self.expression()
        return value, self.expression() if self.accept("|") else None

    def qualifier(self) -> None:
        """Skip ``static`` or ``dynamic``, which are not keywords, before a type or an expression."""
        if self.token.text in ("static", "dynamic") and self.ahead().kind in ("name", "number"):
            self.advance()

    def bound(self) -> Bound:
        """Parse a comma and the bound after it."""
        self.expect(",")
        start = self.token.start
        name = self.name()
        self.expect("<")
        value = self.expression()
        return Bound(start, self.last_end, name, value)

    # Other blocks

    def using(self) -> Using:
        start = self.token.start
        targets = self.targets()
        self.expect("=")
        value = self.expression()
        return Using(start, self.last_end, targets, value)

    def assertion(self) -> Assertion:
        start = self.token.start
        condition = self.expression()
        message, values = None, []
        if self.accept(":"):
            message = self.string()
            while self.accept(","):
                label = ""
                if self.token.kind in ("string", "name") and self.followed_by(":"):
                    label = self.advance().text
                    self.advance()
                values.append((label, self.expression()))
        return Assertion(start, self.last_end, condition, message, tuple(values))

    def lowering(self) -> Lowering:
        start = self.token.start
        unroll = None
        if self.accept("unroll"):
            unroll = self.iteration_count()
            if unroll is None:
                self.refuse(f"expected '..', found {self.found()}")
        locals_: list[tuple[str, Expression]] = []
        if self.accept("with"):
            while not locals_ or self.accept(","):
                locals_.append(self.assigned())
            self.expect(":")
        target = self.tensor_access()
        operator = self.token.text
        if operator not in _ASSIGNMENTS:
            self.refuse(f"expected an assignment operator, found {self.found()}", "2.12")
        self.advance()
        value = self.expression()
        bounds = []
        while self.at(","):
            bounds.append(self.bound())
        condition = self.expression() if self.accept("|") else None
        return Lowering(start, self.last_end, unroll, tuple(locals_), target, operator, value, tuple(bounds), condition)

    def assigned(self) -> tuple[str, Expression]:
        name = self.name()
        self.expect("=")
        return name, self.expression()

    def tensor_access(self) -> Expression:
        start = self.token.start
        access = self.node(start, "name", self.name())
        if not self.at("["):
            self.refuse(f"expected '[', found {self.found()}", "2.12")
        while self.at("["):
            access = self.index(start, access)
        return access

    def quantization(self) -> Quantization:
        start = self.token.start
        tensor = self.qualified()
        self.expect(":")
        call = self.token.start
        operator, types, attributes = self.operator()
        invocation = Invocation(call, self.last_end, "", operator, types, attributes, ())
        return Quantization(start, self.last_end, tensor, invocation)

    # Components

    def component(self) -> Component:
        start = self.token.start
        results = [self.targets()]
        while self.accept(","):
            results.append(self.targets())
        self.expect("=")
        value: Callable | Branch | Loop
        if self.at("if"):
            value = self.branch()
        elif self.token.text in ("with", "for", "while", "do", "unroll"):
            value = self.loop()
        else:
            value = self.callable()
        return Component(start, self.last_end, tuple(results), value)

    def targets(self) -> Targets:
        start = self.token.start
        if self.at("["):
            items = self.several("[", "]", self.target)
            return Targets(start, self.last_end, True, items)
        return Targets(start, self.last_end, False, (self.target(),))

    def target(self) -> Target:
        start = self.token.start
        names: tuple[str, ...] = ()
        type_, shape = "", None
        if self.at("("):
            names = self.several("(", ")", self.name)
        elif not self.accept("~"):
            names = (self.name(),)
            if self.accept(":"):
                type_ = self.type()
                shape = self.shape()
        pack = self.pack()
        return Target(start, self.last_end, names, type_, shape, pack)

    def branch(self) -> Branch:
        start = self.token.start
        cases: list[tuple[Callable, Callable]] = []
        while not cases or self.at("elif"):
            self.advance()
            condition = self.callable()
            self.expect("then")
            cases.append((condition, self.callable()))
        self.expect("else")
        otherwise = self.callable()
        return Branch(start, self.last_end, tuple(cases), otherwise)

    def loop(self) -> Loop:
        start = self.token.start
        carried: list[tuple[Target, Expression]] = []
        scanned: list[tuple[str, Expression]] = []
        if self.accept("with"):
            while not carried or self.accept(","):
                target = self.target()
                self.expect("=")
                carried.append((target, self.expression()))
        if self.accept("for"):
            while not scanned or self.accept(","):
                name = self.name()
                self.expect(":")
                scanned.append((name, self.expression()))
        condition = self.callable() if self.accept("while") else None
        is_tested_first = condition is not None
        is_unrolled = self.at("unroll")
        if not is_unrolled and not self.at("do"):
            self.refuse(f"expected 'do' or 'unroll', found {self.found()}", "2.10.1")
        keyword = self.advance()
        count = self.iteration_count()
        body = self.callable()
        if self.at("while"):
            if is_tested_first:
                self.refuse("a loop cannot have two conditions", "2.10.1")
            self.advance()
            condition = self.callable()
        if condition is not None and is_unrolled:
            self.fail("a loop with a condition cannot be unrolled", keyword.start, "2.10.1")
        if condition is None and not scanned and (count is None or count.count is None):
            self.fail("the loop has no condition, 'for' or iteration count", start, "2.10.1")
        return Loop(
            start, self.last_end, tuple(carried), tuple(scanned), condition, is_tested_first, is_unrolled, count, body
        )

    def iteration_count(self) -> IterationCount | None:
        start = self.token.start
        if not self.accept(".."):
            return None
        self.expect("(")
        index, count = "", None
        if self.token.kind == "name" and self.followed_by("->"):
            index = self.name()
            self.advance()
        if not index or not self.at(")"):
            count = self.expression()
        self.expect(")")
        return IterationCount(start, self.last_end, index, count)

    def callable(self) -> Callable:
        """Parse an invocation, a block with ``yield``, or an expression."""
        start, label = self.token.start, ""
        if self.token.kind == "name" and self.followed_by(":"):
            label = self.name()
            self.advance()
        if self.at("{"):
            return self.region(start, label)
        if not label and not self.at_invocation():
            return self.expression()
        operator, types, attributes = self.operator()
        arguments = self.several("(", ")", self.argument)
        return Invocation(start, self.last_end, label, operator, types, attributes, arguments)

    def at_invocation(self) -> bool:
        """Return whether a qualified name with arguments, attributes or types follows."""
        if self.token.kind != "name" or self.token.text in _KEYWORDS:
            return False
        token = self.ahead()
        while token.text == ".":
            token = self.lex(self.lex(token.end).end)
        if token.text != "<":
            return token.text in ("(", "{")
        # Types follow, unless it is a comparison.
        token = self.lex(token.end)
        return token.kind == "name" and self.lex(token.end).text in (",", ">")

    def operator(self) -> tuple[str, tuple[str, ...], tuple[tuple[str, Expression], ...]]:
        """Parse the name of an operator, its types and attributes."""
        name = self.qualified()
        types = self.several("<", ">", self.type, 1) if self.at("<") else ()
        attributes = self.several("{", "}", self.assigned) if self.at("{") else ()
        return name, types, attributes

    def argument(self) -> Expression | None:
        return None if self.accept("~") else self.expression()

    def region(self, start: int, label: str) -> Region:
        self.enter()
        self.expect("{")
        components = []
        while not self.at("yield"):
            components.append(self.component())
            self.expect(";")
        self.advance()
        results = [self.expression()]
        while self.accept(","):
            results.append(self.expression())
        self.expect(";")
        self.expect("}")
        self.depth -= 1
        return Region(start, self.last_end, label, tuple(components), tuple(results))

    # Expressions. One level of brackets costs up to six of the thousand calls that Python permits.

    def expression(self) -> Expression:
        start = self.token.start
        self.enter()
        if self.at("|"):
            value = self.bounded()
        else:
            value = self.operation()
            if self.accept("?"):
                chosen = self.expression()
                other = self.expression() if self.accept(":") else None
                value = self.node(start, "select", "", value, chosen, other)
            if self.accept("??"):
                value = self.node(start, "coalesce", "", value, self.expression())
        self.depth -= 1
        return value

    def bounded(self) -> Expression:
        start = self.advance().start
        index = self.expression()
        below = above = None
        if self.accept("<>"):
            below = self.expression()
        elif self.at(":") and index.kind == "operation" and index.value == ("<",):
            left, right = index.operands
            assert left is not None
            index, below = left, right
        if below is not None:
            self.expect(":")
            above = self.expression()
        self.expect("|")
        return self.node(start, "bounded", "", index, below, above)

    def operation(self) -> Expression:
        """Parse operands joined by binary operators, and folds."""
        # Open chains of operators, of rising precedence: start, precedence, operators, operands.
        chains: list[tuple[int, int, list[str], list[Expression]]] = []
        while True:
            start = self.token.start
            value = self.operand()
            while True:
                operator = self.token.text
                precedence = _FOLD_PRECEDENCE.get(operator, 0)
                is_fold = precedence > 0 and self.ahead().text in ("..", "...")
                if not is_fold:
                    precedence = _PRECEDENCE.get(operator, 0)
                while chains and chains[-1][1] >= precedence + (not is_fold):
                    start, _, operators, operands = chains.pop()
                    value = self.node(start, "operation", tuple(operators), *operands, value)
                if not is_fold:
                    break
                value = self.fold(start, value)
            if not precedence:
                return value
            if not chains or chains[-1][1] < precedence:
                chains.append((start, precedence, [], []))
            chains[-1][2].append(operator)
            chains[-1][3].append(value)
            self.advance()

    def fold(self, start: int, value: Expression) -> Expression:
        operator = self.advance()
        is_cumulative = self.at("...")
        if operator.text not in (_CUMULATIONS if is_cumulative else _FOLDS):
            what = "a cumulative fold" if is_cumulative else "a fold"
            self.fail(f"operator {operator.text!r} cannot be used for {what}", operator.start, "2.4")
        self.advance()
        return self.node(start, "cumulate" if is_cumulative else "fold", operator.text, value)

    def operand(self) -> Expression:
        signs = self.signs()
        start = self.token.start
        operands = [self.primary()]
        while self.at("**"):
            self.advance()
            inner = self.signs()
            operands.append(self.signed(inner, self.primary()))
        value = operands[0]
        if len(operands) > 1:
            value = self.node(start, "operation", ("**",) * (len(operands) - 1), *operands)
        return self.signed(signs, value)

    def signs(self) -> list[Token]:
        signs = []
        while self.token.text in ("+", "-", "!", "?"):
            signs.append(self.advance())
        return signs

    def signed(self, signs: list[Token], value: Expression) -> Expression:
        for sign in reversed(signs):
            value = self.node(sign.start, "unary", sign.text, value)
        return value

    def primary(self) -> Expression:
        start, text, kind = self.token.start, self.token.text, self.token.kind
        if kind == "number":
            value = self.number()
        elif kind == "string":
            value = self.string()
        elif text == "(":
            items = self.several("(", ")", self.expression, 1)
            if len(items) == 1:
                (value,) = items
            else:
                if not self.at(".."):
                    self.refuse(f"expected '..' after a zip expression, found {self.found()}", "2.4")
                value = self.node(start, "zip", "", *items)
        elif text == "[":
            items = self.several("[", "]", self.list_item)
            value = self.node(start, "list", "", *items)
        elif text in ("true", "false"):
            self.advance()
            value = self.node(start, "literal", text == "true")
        elif text in ("inf", "pi"):
            self.advance()
            value = self.node(start, "literal", float("inf") if text == "inf" else 3.141592653589793)
        # `is` names an extent in 2.1.
        elif kind == "name" and (text in _TYPES or text == "is" or text not in _KEYWORDS):
            value = self.named()
        else:
            self.refuse(f"expected an expression, found {self.found()}")
        while self.at("["):
            value = self.index(start, value)
        return value

    def number(self) -> Expression:
        token = self.token
        if len(token.text) > _MAX_DIGITS:
            self.refuse(f"the number has more than {_MAX_DIGITS} digits", "2.4")
        self.advance()
        if token.text.endswith(".") and self.token.text.startswith("."):
            self.fail(f"{token.text[:40]!r} is a real number; put a space before '..'", token.start, "2.4")
        return self.node(token.start, "literal", int(token.text) if token.text.isdigit() else float(token.text))

    def string(self) -> Expression:
        """Parse string literals, which are concatenated, and the expressions in them."""
        start, values = self.token.start, []
        parts: list[str] = []
        while not parts or self.token.kind == "string":
            token = self.expect_kind("string")
            parts.append(token.text[1:-1])
            if "{" in token.text:
                values.extend(self.formats(token))
        return self.node(start, "format" if values else "literal", "".join(parts), *values)

    def formats(self, string: Token) -> list[Expression]:
        """Parse the expressions in the braces of a string, which is not the current token."""
        after, last_end, stop = self.token, self.last_end, self.stop
        position, values = string.start, []
        while match := _FORMAT.search(self.data, position, string.end):
            position = self.data.find(b"}", match.end(), string.end)
            if position < 0:
                self.fail("the '{' in the string has no '}'", match.start(), "2.4")
            self.stop = position
            self.token = self.lex(match.end())
            values.append(self.expression())
            if self.token.kind != "end":
                self.refuse(f"expected '}}', found {self.found()}", "2.4")
            self.stop = stop
        self.token, self.last_end = after, last_end
        return values

    def found(self) -> str:
        return "'}'" if self.token.kind == "end" and self.stop < len(self.data) else super().found()

    def named(self) -> Expression:
        """Parse an identifier, a cast or the call of a function."""
        token = self.token
        if token.text in _TYPES or self.followed_by("("):
            if token.text not in _TYPES:
                self.functions.append(token)
            self.advance()
            self.expect("(")
            # Casts without an operand are default values.
            operands = () if self.at(")") else (self.expression(),)
            self.expect(")")
            return self.node(token.start, "call", token.text, *operands)
        name = self.advance().text if token.text == "is" else self.name()
        if self.accept("."):
            if self.token.text not in _MEMBERS:
                self.refuse(f"expected 'shape', 'rank' or 'size', found {self.found()}", "2.4")
            name += "." + self.advance().text
        return self.node(token.start, "name", name)

    def list_item(self) -> Expression:
        return self.expanded(self.expression())

    def expanded(self, value: Expression) -> Expression:
        """Parse the ``..`` or the range after the first expression of an item."""
        if self.accept(".."):
            count = self.enclosed() if self.at("(") else None
            return self.node(value.start, "expand", "", value, count)
        if self.accept(":"):
            end = self.expression()
            step = self.expression() if self.accept(":") else None
            return self.node(value.start, "range", "", value, end, step)
        return value

    def index(self, start: int, value: Expression) -> Expression:
        """Parse the brackets after a pack or tensor, and a substitution."""
        self.expect("[")
        indices: list[Expression] = []
        is_access = self.at("]")
        while not self.at("]"):
            indices.append(self.index_item())
            if self.at(","):
                self.advance()
                is_access = True
            elif not self.at("]"):
                self.refuse(f"expected ',' or ']', found {self.found()}")
        self.advance()
        is_access |= bool(indices) and indices[-1].kind == "expand"
        value = self.node(start, "access" if is_access else "index", "", value, *indices)
        if not is_access and self.accept("<-"):
            value = self.node(start, "substitute", "", value, self.expression())
        return value

    def index_item(self) -> Expression:
        """Parse an index; begin and end of a range may be omitted."""
        start = self.token.start
        first = None
        if not self.at(":"):
            first = self.expression()
            if not self.at(":"):
                return self.expanded(first)
        self.advance()
        last = None if self.token.text in ("]", ",", ":") else self.expression()
        step = self.expression() if self.accept(":") else None
        return self.node(start, "range", "", first, last, step)

    # Parts

    def enclosed(self) -> Expression:
        """Parse an expression in parentheses."""
        self.expect("(")
        value = self.expression()
        self.expect(")")
        return value

    def several(self, opening: str, closing: str, item: Function[[], _Item], least: int = 0) -> tuple[_Item, ...]:
        """Parse items separated by commas, in brackets."""
        start = self.expect(opening).start
        items = []
        more = not self.at(closing)
        while more:
            items.append(item())
            more = self.accept(",")
            if not more and not self.at(closing):
                self.refuse(f"expected ',' or {closing!r}, found {self.found()}")
        self.advance()
        if len(items) < least:
            self.fail("the brackets are empty", start)
        return tuple(items)

    def qualified(self) -> str:
        """Parse names separated by dots."""
        names = [self.name()]
        while self.accept("."):
            names.append(self.name())
        return ".".join(names)

    def name(self) -> str:
        """Parse an identifier."""
        token = self.token
        if token.kind == "name" and token.text in _KEYWORDS:
            self.refuse(f"expected a name; {token.text!r} is a keyword", "2.4")
        self.expect_kind("name")
        if len(token.text) > _MAX_NAME:
            self.fail(f"the name has more than {_MAX_NAME} characters", token.start, "2.4")
        return token.text

    def accept(self, text: str) -> bool:
        """Advance past this sign or word if it is the current token."""
        if not self.at(text):
            return False
        self.advance()
        return True

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.refuse(f"nested deeper than {MAX_NESTING}")

    def node(self, start: int, kind: str, value: Any = "", *operands: Expression | None) -> Expression:
        height = 1 + max((operand.height for operand in operands if operand is not None), default=0)
        if height > MAX_NESTING:
            self.fail(f"nested deeper than {MAX_NESTING}", start)
        return Expression(start, self.last_end, kind, value, operands, height)
