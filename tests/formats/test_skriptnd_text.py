"""Parser of SkriptND: malformed documents, the examples of the draft, constant expressions, hostile input."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError
from nnr_codec.formats.nnef import lexer
from nnr_codec.formats.skriptnd.parser import MAX_NESTING, ScriptText, parse
from nnr_codec.formats.skriptnd.tree import Branch, Document, Expression, Invocation, Loop, Region
from nnr_codec.formats.skriptnd.variables import shape_of, variables

from ..shared import SHARED, examples, needs_shared


def parsed(text: str, *, is_main: bool = True) -> Document:
    return parse(text.encode(), "main.sknd", is_main=is_main)


def operator(blocks: str) -> str:
    return f"operator F {{ {blocks} }}"


def lower(text: str) -> str:
    return operator(f"@lower {{ {text} }}")


def compose(text: str) -> str:
    return operator(f"@compose {{ {text} }}")


def using(text: str) -> str:
    return operator(f"@using {{ a = {text}; }}")


# ------------------------------------------------------------------------------------------------ malformed documents
MALFORMED = [
    # Modules
    ("graph", 1, 6, "expected a name, found the end of the document"),
    ("graph G", 1, 8, "expected '{', found the end"),
    ("graph G {", 1, 10, "expected a block or '}', found the end"),
    ("import a;\nimport b\n\nvariable", 4, 9, "expected ';', found the end"),
    ("import ;\ngraph G { }", 1, 8, "expected a name, found ';'"),
    ("extension KHR\ngraph G { }", 2, 1, "expected ';', found 'graph'"),
    ("version 2;\ngraph G { }", 1, 9, "NNEF version 2 is not supported; only 2.x is"),
    ("version 1.0;\ngraph G { }", 1, 9, "NNEF version 1.0 is not supported; only 2.x is"),
    ("version '2.0';\ngraph G { }", 1, 9, "expected a number, found"),
    ("public graph G { }", 1, 8, "expected 'operator', found 'graph'"),
    ("fragment f(x) -> (y) { }", 1, 1, "expected 'operator' or 'graph', found 'fragment'"),
    ("graph G { }\ngraph G { }", 2, 7, "'G' is defined twice"),
    ("graph operator { }", 1, 7, "expected a name; 'operator' is a keyword"),
    ("graph G { } }", 1, 13, "expected 'operator' or 'graph', found '}'"),
    ("operator F { }", 1, 15, "the main module has no graph"),
    # Tokens
    ("graph G { } $", 1, 13, "unexpected character '$'"),
    ("graph G {\n  # caf\xe9\n  @using { \xe9 = 1; }\n}", 3, 12, "unexpected character '\\xe9'"),
    (using("'x"), 1, 27, "an unterminated string"),
    (using('"x\\"'), 1, 27, "an unterminated string"),
    (using("1e"), 1, 28, "expected ';', found 'e'"),
    (using("1 & 2"), 1, 29, "unexpected character '&'"),
    # Blocks and declarations
    ("graph G { x: real; }", 1, 11, "expected a block or '}', found 'x'"),
    ("graph G { @variables { } }", 1, 11, "unknown block '@variables'"),
    ("graph G { @input { }\n@output { }\n@input { } }", 3, 1, "block '@input' is repeated"),
    ("graph G { @variable { w: real[2] } }", 1, 34, "expected ';', found '}'"),
    ("graph G { @variable { w real[2]; } }", 1, 25, "expected ':', found 'real'"),
    ("graph G { @variable { w: real[2; } }", 1, 32, "expected ',' or ']', found ';'"),
    ("graph G { @variable { w: real[2,]; } }", 1, 33, "expected an expression, found ']'"),
    ("graph G { @variable { w: float[2]; } }", 1, 26, "unknown type 'float'"),
    ("graph G { @variable { w: 3; } }", 1, 26, "expected a type, found '3'"),
    ("graph G { @variable {\n\tw: real;\n\tw: real; } }", 3, 2, "'w' is declared twice"),
    ("graph G { @input { w: real; } @variable { w: real; } }", 1, 43, "'w' is declared twice"),
    ("graph G { @variable { w: real[2] = 0.0; } }", 1, 34, "a variable cannot have a value; its value is in its file"),
    ("graph G { @variable { w: real[~|2]; } }", 1, 31, "a tensor in @variable cannot have a dynamic extent"),
    (operator("@attrib { a: int[3]; }"), 1, 30, "an attribute cannot be a tensor"),
    (operator("@attrib { a: optional int = 3; }"), 1, 40, "an optional attribute cannot have a default"),
    (operator("@dtype { T: number; }"), 1, 26, "expected a type, found 'number'"),
    (operator("@input { x: real^(2)[n]; }"), 1, 32, "expected a name, found '2'"),
    (operator("@constant { c: int[2] = i, i <= 2; }"), 1, 43, "expected '<', found '<='"),
    # Expressions
    (using(""), 1, 27, "expected an expression, found ';'"),
    (using("(1"), 1, 29, "expected ',' or ')', found ';'"),
    (using("1 +"), 1, 30, "expected an expression, found ';'"),
    (using("foo(1)"), 1, 27, "unknown function 'foo'"),
    (using("sin(1, 2)"), 1, 32, "expected ')', found ','"),
    (using("x.type"), 1, 29, "expected 'shape', 'rank' or 'size', found 'type'"),
    (using("[1..(2)]"), 1, 28, "'1.' is a real number; put a space before '..'"),
    (using("[(a, b)]"), 1, 34, "expected '..' after a zip expression, found ']'"),
    (using("x != ..."), 1, 29, "operator '!=' cannot be used for a cumulative fold"),
    (using("x - .."), 1, 29, "operator '-' cannot be used for a fold"),
    (using("'{x'"), 1, 28, "the '{' in the string has no '}'"),
    (using("'a {x y} b'"), 1, 33, "expected '}', found 'y'"),
    (using("'a {1 +} b'"), 1, 34, "expected an expression, found '}'"),
    (using("x[|i <> 0|]"), 1, 36, "expected ':', found '|'"),
    # Lowering
    (lower("y = x;"), 1, 25, "expected '[', found '='"),
    (lower("y[i,] - x[i,], i < n;"), 1, 29, "expected an assignment operator, found '-'"),
    (lower("y[i,] = x[i,], n;"), 1, 39, "expected '<', found ';'"),
    (lower("with z = 1; y[] = z;"), 1, 33, "expected ':', found ';'"),
    (lower("unroll y[] = 1;"), 1, 30, "expected '..', found 'y'"),
    # Assertions, components, quantization
    (operator("@assert { a > 0: b; }"), 1, 31, "expected a string, found 'b'"),
    (compose("y = f(x)"), 1, 34, "expected ';', found '}'"),
    (compose("y = g(f(x));"), 1, 31, "unknown function 'f'"),
    (compose("y = f{a: 42}(x);"), 1, 32, "expected '=', found ':'"),
    (compose("y = f<>(x);"), 1, 30, "expected ';', found '<>'"),
    (compose("y = if c then a;"), 1, 40, "expected 'else', found ';'"),
    (compose("y = { z = f(x); };"), 1, 41, "expected a name, found '}'"),
    (compose("y = with s = 0 do f(s);"), 1, 29, "the loop has no condition, 'for' or iteration count"),
    (compose("y = while c(s) do f(s) while c(s);"), 1, 48, "a loop cannot have two conditions"),
    (compose("y = while c(s) unroll f(s);"), 1, 40, "a loop with a condition cannot be unrolled"),
    (operator("@quantize { w: q{b=1}(x); }"), 1, 35, "expected ';', found '('"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), MALFORMED)
def test_malformed_documents(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parsed(text)
    error = caught.value
    assert (error.line, error.column, error.message[: len(message)]) == (line, column, message)
    assert str(error).startswith(f"main.sknd:{line}:{column}: {message}")
    assert re.search(r" \(NNEF 2 draft, 2(\.\d+)+\)$", str(error))


def test_a_graph_in_another_module() -> None:
    with pytest.raises(
        FormatError, match=r"^ops\.sknd:2:1: only main\.sknd may define a graph \(NNEF 2 draft, 2\.15\)"
    ):
        parse(b"operator F { }\ngraph G { }", "ops.sknd", is_main=False)


@pytest.mark.parametrize(
    "text",
    [
        "import nn\nimport layout\noperator F { }",
        "import nn, a.b c;",
        "extension a b, c;",
        "version 2.1;",
        "",
        "# caf\xe9 'x",
        "operator is_ { @input { x: real[is..(d)]; } @output { y: real[is..]; } }",
        "operator F { @input { x: real[static c, dynamic 3, ..t]..(static n); y: real[2]..(s|5); } }",
        "operator F { @attrib { a: dynamic optional int; b: optional dynamic int; c: int..(dynamic s * ..); } }",
        "operator F { @attrib { static: int = static; dynamic: int..(static) = dynamic; } }",
        "operator F { @using { a = erf(frac(x)); exp = 'line\nline'; } }",
        "operator F { @compose { y = f{}(x); exp = exp(exp); shape = x.shape; } }",
        "operator F { @lower { y[i] = x[|i - n < 0 : s - 1|], i < s + 2 * n; } }",
        "operator F { @assert { a > 0; b: 'x' \"y\"; c: '{c}', c, d: c, 'e': [c]; } }",
        "operator F { @update { w = f(w); } @quantize { a.b: q<T>{c=1}; d: q; } @dtype { T: type; } }",
        "operator F { @constant { c: real[2]..(2) = [1.0, 2.0]; d: real[] = 1e-5; } }",
        "operator F { @compose { x: real[2], ~ = a ?? b; [y, z..(k)] = c; } }",
        "operator F { @compose { y = if ?x then x elif c then { yield x; } else f(x); } }",
        "operator F { @compose { s = with s = 0 do..(k) add(s, 1); t = do..(i -> k) f(i); } }",
    ],
)
def test_documents_that_parse(text: str) -> None:
    parsed(text, is_main=False)


def test_every_prefix_of_a_document_is_refused() -> None:
    text = TREE[: TREE.rindex("}") + 1]
    for length in range(len(text)):
        with pytest.raises(FormatError):
            parsed(text[:length])
    parsed(text)


# ------------------------------------------------------------------------------------------------ tree
TREE = """version 2.0; extension KHR_a b; import nn, sub.ops
import layout;
public operator F {
    @dtype { T: num = real; }
    @attrib { a: int..(k) = [0:k]; b: optional bool; }
    @input { x: T^(r)[s.., ..t, n|10]..(k); y: T[~|10 ..(3)]; }
    @output { z: T[s[a] <- 2 ..]; }
    @constant { I: real[n,n] = i == j ? 1.0 : 0.0, i < n, j < n; }
    @using { [(e,f)..] = c; d..(n) = a; }
    @assert { ?b => k > 0: "k is {k}, " 'not positive', k, 'other label': [s..,t..]; }
    @lower {
        unroll..(i -> k) with u = x[i,] ** 2, v = u: z[i,] = u ?? v, i < n, j < k | z[i,] > 0;
        z[i..,] >?= x[|i - 1 <> 0 : n|..,:], i < n;
    }
}
graph G {
    @variable { w: real[3]; }
    @compose {
        c, [d, e..(k)], ~ = l: sub.ops.f<real, int>{a=[1,2], b=true}(x, ~, [y,z]);
        g = if c then l: { h = f(x); yield h, c; } elif !d then e else f(x);
        h = with s: real[3] = 0.0, t = 1 for x : xs, y : ys while c(s) do..(i -> n) f(s, i);
        i, ~ = for x : xs unroll add(x);
        j = with s = 0 do f(s) while c(s);
        k = a < b ? a : b;
    }
    @update { w = f(w); }
    @quantize { F.x: nn.quantize{bits=8}; }
}
"""


def test_tree() -> None:
    document = parsed(TREE)
    assert (document.version, document.extensions, document.imports) == (
        "2.0",
        ("KHR_a", "b"),
        ("nn", "sub.ops", "layout"),
    )
    operator, graph = document.definitions
    assert (operator.name, operator.is_graph, operator.is_public) == ("F", False, True)
    assert [(each.name, each.base, each.default) for each in operator.types] == [("T", "num", "real")]
    assert [(each.name, each.is_optional) for each in operator.attributes] == [("a", False), ("b", True)]
    x, y = operator.inputs
    assert (x.name, x.type, x.rank, x.pack is not None) == ("x", "T", "r", True)
    assert [(each.is_spread, each.pack is not None, each.bound is not None) for each in x.shape or ()] == [
        *((False, True, False), (True, False, False), (False, False, True)),
    ]
    assert [each.value for each in y.shape or ()] == [None]
    assert [bound.name for bound in operator.constants[0].bounds] == ["i", "j"]
    assert [(each.targets.is_list, each.targets.items[0].names) for each in operator.symbols] == [
        *((True, ("e", "f")), (False, ("d",))),
    ]
    (assertion,) = operator.assertions
    assert assertion.message is not None
    assert (assertion.message.kind, assertion.message.value) == ("format", "k is {k}, not positive")
    assert [label for label, _ in assertion.values] == ["", "'other label'"]
    first, second = operator.lowerings
    assert (first.unroll and first.unroll.index, [name for name, _ in first.locals]) == ("i", ["u", "v"])
    assert (first.operator, len(first.bounds), first.condition is not None) == ("=", 2, True)
    assert (second.operator, second.target.kind, second.condition) == (">?=", "access", None)
    assert [each.name for each in graph.variables] == ["w"]
    values = [component.value for component in graph.components]
    assert [type(value) for value in values] == [Invocation, Branch, Loop, Loop, Loop, Expression]
    call, branch, scan, unrolled, last, _ = values
    assert isinstance(call, Invocation)
    assert isinstance(branch, Branch)
    assert isinstance(scan, Loop)
    assert isinstance(unrolled, Loop)
    assert isinstance(last, Loop)
    assert (call.label, call.operator, call.types) == ("l", "sub.ops.f", ("real", "int"))
    assert [name for name, _ in call.attributes] == ["a", "b"]
    assert [argument is None for argument in call.arguments] == [False, True, False]
    region = branch.cases[0][1]
    assert isinstance(region, Region)
    assert (region.label, len(region.components), len(region.results), len(branch.cases)) == ("l", 1, 2, 2)
    assert (scan.is_tested_first, scan.is_unrolled, scan.count and scan.count.index) == (True, False, "i")
    assert (unrolled.is_unrolled, unrolled.condition, last.is_tested_first) == (True, None, False)
    assert graph.quantizations[0].tensor == "F.x"
    assert graph.quantizations[0].invocation.operator == "nn.quantize"
    for definition in document.definitions:
        assert TREE.encode()[definition.start :].startswith(definition.name.encode())


def shown(expression: Expression | None) -> str:
    """Return the expression with brackets around each operation."""
    if expression is None:
        return "_"
    operands = [shown(operand) for operand in expression.operands]
    match expression.kind, expression.value:
        case "operation", tuple() as operators:
            pairs = zip(operators, operands[1:], strict=True)
            return f"({operands[0]}{''.join(f' {sign} {operand}' for sign, operand in pairs)})"
        case "unary", sign:
            return f"({sign}{operands[0]})"
        case "fold" | "cumulate", sign:
            return f"({operands[0]} {sign} {'..' if expression.kind == 'fold' else '...'})"
        case "name" | "literal", value:
            return str(value)
        case kind, value:
            return f"{kind}{value and f':{value}'}({', '.join(operands)})"
    raise AssertionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4", "(1 + (2 * 3) - 4)"),
        ("a => b && c == d <? e + f * g ** h", "(a => (b && (c == (d <? (e + (f * (g ** h)))))))"),
        (
            "g ** h * f + e <? d == c && b => a",
            "(((((((g ** h) * f) + e) <? d) == c) && b) => a)",
        ),
        ("a && b || c ^ d", "(a && b || c ^ d)"),
        ("-a ** -b ** c", "(-(a ** (-b) ** c))"),
        ("!a && ?b", "((!a) && (?b))"),
        ("a is b in c", "(a is b in c)"),
        ("a + b * ..", "(a + (b * ..))"),
        ("a * b + .. + 42", "(((a * b) + ..) + 42)"),
        ("a + b + ..", "((a + b) + ..)"),
        ("[0, a..] + ...", "(list(0, expand(a, _)) + ...)"),
        ("a && .. ? b : c ?? d", "select((a && ..), b, coalesce(c, d))"),
        ("a ? b", "select(a, b, _)"),
        ("z := ..", "(z := ..)"),
        ("block_size * .. * b", "((block_size * ..) * b)"),
        ("s[axes] <- s[axes] * 2", "substitute(index(s, axes), (index(s, axes) * 2))"),
        ("a[::-1][1:]", "index(index(a, range(_, _, (-1))), range(1, _, _))"),
        ("x[i,][]", "access(access(x, i))"),
        ("x[i..]", "access(x, expand(i, _))"),
        ("x[|i|, |j <> 0 : n|]", "access(x, bounded(i, _, _), bounded(j, 0, n))"),
        ("x[|i - n < 0 : s - 1|]", "index(x, bounded((i - n), 0, (s - 1)))"),
        ("[(a, b + 1)..]", "list(expand(zip(a, (b + 1)), _))"),
        ("[0:n:2, 1 ..(n)]", "list(range(0, n, 2), expand(1, n))"),
        ("int(x.shape[0])", "call:int(index(x.shape, 0))"),
        ("is + T()", "(is + call:T())"),
        ("'a' \"b\"", "ab"),
        ("'{a + 1} \\{b}'", "format:{a + 1} \\{b}((a + 1))"),
        ("inf + pi + true", "(inf + 3.141592653589793 + True)"),
    ],
)
def test_expressions(text: str, expected: str) -> None:
    document = parsed(f"operator F {{ @dtype {{ T: num; }} @using {{ a = {text}; }} }}", is_main=False)
    assert shown(document.definitions[0].symbols[0].value) == expected


# ------------------------------------------------------------------------------------------------ examples of the draft
DRAFT = (SHARED or Path()) / "spec" / "khronos-nnef-2.0-draft-skriptnd.txt"
#: Texts around an example that is part of a document; the first matching one is used.
SURROUNDINGS = (
    ("", ""),
    ("operator Example {", "}"),
    ("operator Example { @compose {", "}}"),
    ("operator Example { @compose ", "}"),
    ("operator Example { @compose { example = ", ";}}"),
)
_BLOCK = re.compile(r"^```[ ]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
#: `...` where only `..` is possible; the tests' text of the draft was converted from a PDF file.
_DOTS = re.compile(r"(?<![+*])(?<![+*] )(?<!\|\|)(?<!\|\| )(?<!&& )\.\.\.")
#: Examples that do not parse, by reason: the line in which the example starts.
UNPARSED = {
    "`...` or a comment stands for omitted text": (949, 1114, 1183, 1197, 1365, 1740),
    "it contradicts the grammar: ':' before the value of an attribute": (1065,),
    "it contradicts the grammar: no ';' after the block": (1145,),
    "it contradicts the grammar: ';' before the message of an assertion": (2441,),
    "it contradicts the grammar: ';' instead of ':' after local values": (6729,),
    "it contradicts the grammar: no '..' between a shape and the length of the pack": (
        *(4435, 4455, 4475, 4495, 4515, 4539, 4563, 4580),
    ),
    "the conversion from PDF changed characters": (1539, 2008, 2282, 2360, 2632, 2686, 2729, 5369, 6577),
    "the conversion from PDF added or lost braces at a page break": (2138, 4360, 4653, 4721, 5492, 5612, 5724),
    "the conversion from PDF broke a comment into lines": (7019,),
}


def draft_examples() -> dict[int, str]:
    """Return the code blocks of the draft by line; blocks separated only by blanks, at a page break, are joined."""
    text = DRAFT.read_text(encoding="utf-8")
    found: dict[int, str] = {}
    end = last = -1
    for block in _BLOCK.finditer(text):
        if last >= 0 and not text[end : block.start()].strip():
            found[last] += "\n" + block[1]
        else:
            last = text.count("\n", 0, block.start()) + 1
            found[last] = block[1]
        end = block.end()
    return {line: code for line, code in found.items() if "::=" not in code}


def fits(example: str) -> bool:
    for before, after in SURROUNDINGS:
        text = before + example + after
        try:
            parsed(text, is_main=re.search(r"^graph\b", text, re.MULTILINE) is not None)
        except FormatError:
            continue
        return True
    return False


@needs_shared
def test_examples_of_the_draft() -> None:
    results: dict[int, str] = {}
    for line, example in draft_examples().items():
        results[line] = "printed" if fits(example) else "with .." if fits(_DOTS.sub("..", example)) else "no"
    assert tuple(sorted(line for line, result in results.items() if result == "no")) == tuple(
        sorted(line for lines in UNPARSED.values() for line in lines)
    )
    assert Counter(results.values()) == {"printed": 103, "with ..": 38, "no": 35}


@pytest.mark.parametrize(
    "path",
    sorted((SHARED or Path()).glob("nnef_corpus/khronos_nnef_tools_v2_sknd/**/*.sknd")) if SHARED else [],
    ids=lambda path: path.name,
)
def test_modules_of_khronos(path: Path) -> None:
    data = path.read_bytes()
    document = parse(data, path.name, is_main=path.parent.name != "stdlib")
    assert len(document.definitions) == len(re.findall(rb"(?m)^(?:public )?(?:operator|graph) ", data))


# ------------------------------------------------------------------------------------------------ constant expressions
def shape(extents: str, symbols: str = "", attributes: str = "") -> tuple[int | None, ...] | None:
    """Return the shape of a variable with these extents."""
    text = f"graph G {{ @attrib {{ {attributes} }} @using {{ {symbols} }} @variable {{ w: real{extents}; }} }}"
    script = ScriptText(text.encode(), "main.sknd")
    (variable,) = variables(parsed(text), script)
    return shape_of(variable, script)


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ("[]", ()),
        ("", None),
        ("[3, 2 * 8 + 1]", (3, 17)),
        ("[7 / 2, 7 \\ 2, 7 % 2, -7 / -2]", (3, 4, 1, 3)),
        ("[-(-7 / 2), -(-7 \\ 2), 3 - -7 % 2]", (4, 3, 2)),
        ("[2 ** 3 ** 2, (-2) ** 2, 2 - -2 ** 2]", (64, 4, 6)),
        ("[3 <? 2, 3 >? 2 + 2, abs(-3), int(true) + 1]", (2, 4, 3, 2)),
        ("[1 < 2 ? 3 : 1 / 0, true => false ? 3 : 4, 1 == 1 && !(2 != 2) ? 5 : 6]", (3, 4, 5)),
        ("[true ^ true ? 1 : 2, 1 >= 2 || 2 <= 2 ? 3 : 4]", (2, 3)),
        ("[4 ..(2), 5 ..(1 > 2), 6 ..(true), 7 ..(0)]", (4, 4, 6)),
        ("[b, 3]", (None, 3)),
        ("[2 * b + 1 ..(2), 3]", (None, None, 3)),
        ("[o, 3]", None),
        ("[p.., 3]", None),
        ("[c, c + n]", (4, 6)),
        ("[unknown, 3]", None),
        ("[[3, 4] * .., 3]", None),
        ("[b ..(b)]", None),
        ("[true ? b : 1, 3]", None),
        ("[3] ..(2)", (3,)),
        ("[true + 1, 2]", (None, 2)),
        ("[int(2.5), 2]", None),
        ("[4294967295]", (4294967295,)),
    ],
)
def test_shapes(extents: str, expected: tuple[int | None, ...] | None) -> None:
    attributes = "b: int = 1; o: optional int; p: int..(k);"
    assert shape(extents, "c = 2 * n; n = 2; c = 2 * n; [f, g] = [1, 2]; h..(2) = b;", attributes) == expected


@pytest.mark.parametrize(
    ("extents", "offset", "message"),
    [
        ("[3, 0]", 4, "an extent must be an integer from 1 to 4294967295, not 0"),
        ("[-1]", 1, "an extent must be an integer from 1 to 4294967295, not -1"),
        ("[4294967296]", 1, "not 4294967296"),
        ("[1 < 2]", 1, "not True"),
        ("[2.0]", 1, "an extent must be an integer"),
        ("['a']", 1, "an extent must be an integer"),
        ("[true]", 1, "an extent must be an integer from 1 to 4294967295, not True"),
        ("[1, 3 / (2 - 2)]", 4, "division by zero"),
        ("[1 % 0]", 1, "division by zero"),
        ("[2 ** -1]", 1, "an integer has a negative exponent"),
        ("[2 ** 64]", 1, "the value exceeds 64 bits"),
        ("[3 ** 10 ** 100000000]", 1, "the value exceeds 64 bits"),
        ("[1 + 18446744073709551616]", 5, "the value exceeds 64 bits"),
        ("[1, 2, 3, 4, 5, 6, 7, 8, 9]", -7, "the variable has more than 8 extents"),
        ("[1 ..(9)]", 1, "a pack of extents must have a length from 0 to 8, not 9"),
        ("[1 ..(1000000000)]", 1, "a pack of extents must have a length from 0 to 8, not 1000000000"),
        ("[1 ..(-1)]", 1, "not -1"),
    ],
)
def test_shapes_of_no_tensor_file(extents: str, offset: int, message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        shape(extents)
    assert (caught.value.line, caught.value.column) == (
        1,
        len("graph G { @attrib {  } @using {  } @variable { w: real") + 1 + offset,
    )


_NUMBERS = st.integers(0, 1 << 40).map(str)
_ARITHMETIC = st.recursive(
    _NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner).map(" ".join).map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(200))
@given(_ARITHMETIC)
def test_arithmetic(text: str) -> None:
    """Python's integers are exact, and its `//` rounds down like `/`."""
    try:
        expected = eval(text.replace("/", "//"), {"__builtins__": {}})  # of the strategy above
    except ZeroDivisionError:
        expected = 0
    try:
        found = shape(f"[{text}]")
    except FormatError as error:
        assert not 0 < expected < 1 << 32 or "exceeds 64 bits" in error.message
    else:
        assert found == (expected,)


# ------------------------------------------------------------------------------------------------ hostile input
NESTED = {
    "parentheses": ("(", "1", ")"),
    "lists": ("[", "1", "]"),
    "indices": ("x[", "1", "]"),
    "signs": ("- ", "1", ""),
    "branches": ("1 ? ", "1", " : 1"),
    "defaults": ("a ?? ", "1", ""),
    "folds": ("", "x", " + .."),
    "accesses": ("", "x", "[0]"),
    "substitutions": ("x[0] <- ", "1", ""),
    "casts": ("int(", "1", ")"),
    "bounds": ("x[|", "1", "|]"),
}


@pytest.mark.parametrize("kind", NESTED)
def test_deep_expressions(kind: str) -> None:
    before, inner, after = NESTED[kind]
    parsed(using(before * 40 + inner + after * 40), is_main=False)
    for count in (MAX_NESTING, 100_000):
        with pytest.raises(FormatError, match=f"nested deeper than {MAX_NESTING}"):
            parsed(using(before * count + inner + after * count), is_main=False)


def test_chains_are_not_deep() -> None:
    for chain in ("2 ** -", "1 + ", "a && ", "'{b}' "):
        parsed(using(chain * 10_000 + "1" if chain[0] != "'" else chain * 10_000), is_main=False)


@pytest.mark.parametrize("before", ["y = { ", "y = if { ", "y = do..(1) { "])
def test_deep_blocks(before: str) -> None:
    parsed(compose("y = { " * 90 + "yield x; };" + " yield y; };" * 89), is_main=False)
    with pytest.raises(FormatError, match=f"nested deeper than {MAX_NESTING}"):
        parsed(compose(before * 100_000), is_main=False)


LONG = {
    "a sum": ("@using { a = ", "1 + ", "1; }"),
    "a list": ("@using { a = [", "1, ", "1]; }"),
    "strings": ("@using { a = ", "'{b} \\\\' ", "; }"),
    "a string": ("@using { a = '", "{b}", "'; }"),
    "statements": ("@using { ", "a = -b[c..,] ** 2; ", "}"),
    "invocations": ("@compose { ", "a, b = l: x.y.z<real>{a=b}(c, ~); ", "}"),
    "a long name": ("@compose { a = x", ".x", "(); }"),
    "variables": ("@variable { ", "v: real[64, 3, 11, 11]; ", "}"),
    "lowerings": ("@lower { ", "y[i,] += x[|i|,] * z[j,], i < n, j < m | c[i,]; ", "}"),
    "comments": ("@using { ", "# a\n", "}"),
}


@pytest.mark.parametrize("kind", LONG)
def test_long_documents_are_lexed_once_or_twice(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tokens that are read grows linearly with the length of the document."""
    before, repeated, after = LONG[kind]
    lex = lexer.Lexer.lex
    lexed: list[int] = []

    def counting(self: lexer.Lexer, position: int) -> lexer.Token:
        lexed.append(position)
        return lex(self, position)

    monkeypatch.setattr(lexer.Lexer, "lex", counting)
    counts = []
    for count in (100, 1000, 10_000):
        text = before + repeated * count + after
        if kind == "variables":
            text = before + "".join(repeated.replace("v", f"v{k}") for k in range(count)) + after
        lexed.clear()
        parsed(operator(text), is_main=False)
        counts.append(len(lexed))
    assert counts[2] - counts[1] <= 10 * (counts[1] - counts[0]) + 10
    assert counts[2] <= 2 * len(re.findall(r"\w+|\W", operator(before + repeated * 10_000 + after)))


def test_tokens_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "MAX_TOKENS", 1000)
    parsed(using("1, ".join(["["] + [""] * 480) + "1]"), is_main=False)
    with pytest.raises(FormatError, match="more than 1,000 tokens"):
        parsed(using("1, ".join(["["] + [""] * 500) + "1]"), is_main=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (using("9" * 4001), "the number has more than 4000 digits"),
        (using("1e" + "9" * 4000), "the number has more than 4000 digits"),
        (using("a" * 4097), "the name has more than 4096 characters"),
    ],
)
def test_long_tokens(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parsed(text)
    parsed(using("9" * 4000), is_main=False)
    parsed(using("1e" + "9" * 3998), is_main=False)
    parsed(using("a" * 4096), is_main=False)


def test_messages_are_short() -> None:
    for text in (f"graph G {{ @{'x' * 9999} }}", f"graph {'G' * 4000} {{ }} " * 2, using("f" * 4000 + "(1)")):
        with pytest.raises(FormatError) as caught:
            parsed(text)
        assert len(str(caught.value)) < 200
