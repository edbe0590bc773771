"""Tests of the grammar of NNEF (NNEF 1.0, 3.1 and 3.2) and of its syntax tree."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.nnef import lexer, parser
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.lexer import KEYWORDS, Text
from nnr_codec.formats.nnef.parser import MAX_NESTING, assignment_of, parse, parse_fragments
from nnr_codec.formats.nnef.tree import (
    Array,
    ArrayType,
    Assignment,
    Builtin,
    Comprehension,
    Conditional,
    Expression,
    Identifier,
    Invocation,
    Literal,
    Operation,
    Primitive,
    Subscript,
    SyntaxNode,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Unary,
    Variable,
    children,
    walk,
)
from nnr_codec.limits import Limits

from ..shared import SHARED, examples, needs_shared

pytestmark = pytest.mark.medium

_HEAD = "version 1.0;\ngraph g(x) -> (y)\n{\n"


def document(body: str) -> bytes:
    return f"{_HEAD}{body}\n}}\n".encode()


def shown(node: Expression) -> str:
    """Return an expression with all optional brackets."""
    match node:
        case Identifier(name=name):
            return name
        case Literal(value=value):
            return repr(value)
        case Array(items=items):
            return f"[{', '.join(map(shown, items))}]"
        case Tuple(items=items):
            return f"({', '.join(map(shown, items))})"
        case Unary(operator=operator, operand=operand):
            return f"({operator}{shown(operand)})"
        case Operation(operators=operators, operands=(first, *others)):
            rest = (f" {operator} {shown(operand)}" for operator, operand in zip(operators, others, strict=True))
            return f"({shown(first)}{''.join(rest)})"
        case Conditional(value=value, condition=condition, otherwise=otherwise):
            return f"({shown(value)} if {shown(condition)} else {shown(otherwise)})"
        case Comprehension(iterators=iterators, condition=condition, item=item):
            loops = ", ".join(f"{name.name} in {shown(array)}" for name, array in iterators)
            filtered = f" if {shown(condition)}" if condition else ""
            return f"[for {loops}{filtered} yield {shown(item)}]"
        case Subscript(value=value, first=first, last=last, is_range=is_range):
            ends = [shown(end) if end else "" for end in (first, last)]
            return f"{shown(value)}[{':'.join(ends) if is_range else ends[0]}]"
        case Builtin(function=function, argument=argument):
            return f"{function}({shown(argument)})"
    assert isinstance(node, Invocation)
    given = [f"{part.name.name}={shown(part.value)}" if part.name else shown(part.value) for part in node.arguments]
    return f"{node.operation.name}{f'<{node.generic}>' if node.generic else ''}({', '.join(given)})"


def shown_type(kind: Type) -> str:
    match kind:
        case Primitive(name=name):
            return name
        case TensorType(item=item):
            return f"tensor<{item}>"
        case ArrayType(item=inner):
            return f"{shown_type(inner)}[]"
        case TupleType(items=items):
            return f"({', '.join(map(shown_type, items))})"


def body(text: str) -> list[Assignment]:
    """Return the assignments of a graph."""
    return [assignment_of(part, document(text)) for part in parse(document(text)).graph.body]


def expression(text: str) -> Expression:
    (assignment,) = body(f"y = {text};")
    return assignment.value


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        # 3.1 and 3.3.1: literals
        ("3", "3"),
        ("3.0", "3.0"),
        ("3.", "3.0"),
        ("2e3", "2000.0"),
        ("1.5E-3", "0.0015"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("true", "True"),
        ("'a\\'b\\\\c\"'", repr("a'b\\c\"")),
        ('"#;"', "'#;'"),
        # 3.2.1: flat syntax
        ("[]", "[]"),
        ("[1, [2, 'x'], (3, a)]", "[1, [2, 'x'], (3, a)]"),
        ("f(x)", "f(x)"),
        ("f()", "f()"),
        ("f<integer>(x, a = -1, b = [(0, 1)])", "f<integer>(x, a=(-1), b=[(0, 1)])"),
        ("f<?>(x)", "f<?>(x)"),
        ("x, f(x), 1", "(x, f(x), 1)"),
        # 3.2.3 and 3.3.3: operators
        ("a + b - c", "(a + b - c)"),
        ("a + b * c ^ d", "(a + (b * (c ^ d)))"),
        ("a ^ b * c + d", "(((a ^ b) * c) + d)"),
        ("a / b * c", "(a / b * c)"),
        ("a - (b - c)", "(a - (b - c))"),
        ("(a)", "a"),
        ("-a ^ -2.0", "((-a) ^ (-2.0))"),
        ("- - +a", "(-(-(+a)))"),
        ("!a == b", "((!a) == b)"),
        ("a < b && c >= d || !e", "((a < b) && (c >= d) || (!e))"),
        ("a and b or c", "(a && b || c)"),
        ("and(a, b)", "and(a, b)"),
        ("a in [1, 2] && b", "(a in ([1, 2] && b))"),
        ("a != b + 1", "(a != (b + 1))"),
        ("a < b", "(a < b)"),
        ("a <integer(b)", "(a < integer(b))"),
        ("f(x) * g(y) + 1.0", "((f(x) * g(y)) + 1.0)"),
        # branches
        ("a if b else c", "(a if b else c)"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("a if b if c else d else e", "(a if (b if c else d) else e)"),
        ("-a + b if c == 1 else [d]", "(((-a) + b) if (c == 1) else [d])"),
        # loops
        ("[for i in a yield f(i)]", "[for i in a yield f(i)]"),
        ("[for i in a, j in b + c yield i * j]", "[for i in a, j in (b + c) yield (i * j)]"),
        ("[for i in range_of(a) if a[i] > 0 yield i]", "[for i in range_of(a) if (a[i] > 0) yield i]"),
        ("[for i in a if b if c else d yield i]", "[for i in a if (b if c else d) yield i]"),
        ("[for i in (a if b else c) yield i]", "[for i in (a if b else c) yield i]"),
        (
            "[for i in [for j in a yield j] yield i if i else 1]",
            "[for i in [for j in a yield j] yield (i if i else 1)]",
        ),
        # subscripts
        ("a[0]", "a[0]"),
        ("a[1:2]", "a[1:2]"),
        ("a[1:]", "a[1:]"),
        ("a[:n - 1]", "a[:(n - 1)]"),
        ("a[:]", "a[:]"),
        ("-f(x)[0][1:]", "(-f(x)[0][1:])"),
        ("[1, 2][0] + (a, b)[1]", "([1, 2][0] + (a, b)[1])"),
        # functions
        ("shape_of(x)[1]", "shape_of(x)[1]"),
        ("scalar(2 ^ bits - 1 - integer(s && t))", "scalar(((2 ^ bits) - 1 - integer((s && t))))"),
        ("string(length_of('x')) + logical(1)", "(string(length_of('x')) + logical(1))"),
    ],
)
def test_expressions(text: str, tree: str) -> None:
    assert shown(expression(text)) == tree


def test_names_may_equal_names_of_operations() -> None:
    (assignment,) = body("variable = and(or, variable = not);")
    assert isinstance(assignment.target, Identifier)
    assert assignment.target.name == "variable"
    assert shown(assignment.value) == "and(or, variable=not)"


def test_left_sides() -> None:
    assert [
        shown(part.target) for part in body("[a, b] = f(x);\n(c, [d]) = f(x);\ne, (g, h) = f(x);\n[] = f(x);\n")
    ] == [
        "[a, b]",
        "(c, [d])",
        "(e, (g, h))",
        "[]",
    ]


def test_fragments() -> None:
    text = (
        "fragment f<? = scalar>( a: tensor<?>, b: tensor<>[], c: (integer, string[])[][] = [([1], -2)], d: ? = 'x' )\n"
        "-> ( e: tensor<scalar>, f: tensor );\n"
        "fragment g<?>() -> (x: logical) { x = true; }\n"
        "fragment h(s: scalar) -> (t: scalar) { t = s; t, u = s; }"
    )
    f, g, h = parse_fragments(text.encode())
    assert [(part.name.name, part.generic, part.generic_default) for part in (f, g, h)] == [
        ("f", True, "scalar"),
        ("g", True, ""),
        ("h", False, ""),
    ]
    assert [(part.name.name, shown_type(part.type), part.default and shown(part.default)) for part in f.parameters] == [
        ("a", "tensor<?>", None),
        ("b", "tensor<>[]", None),
        ("c", "(integer, string[])[][]", "[([1], (-2))]"),
        ("d", "?", "'x'"),
    ]
    assert [(part.name.name, shown_type(part.type)) for part in f.results] == [("e", "tensor<scalar>"), ("f", "tensor")]
    assert f.body is None
    assert [len(part.body or ()) for part in (g, h)] == [1, 2]


def test_documents() -> None:
    text = (
        "# first\nversion 1.0;\nextension KHR_a KHR_b;\nextension VENDOR_c, KHR_d;extension tract_assert S>=0 @$;\n"
        "fragment f(a: tensor<>) -> (b: tensor<>) { b = a; }\ngraph net(x, z) -> (y) { y = f(x); }\f# last"
    )
    found = parse(text.encode())
    assert found.version == "1.0"
    assert [part.text for part in found.extensions] == ["KHR_a KHR_b", "VENDOR_c, KHR_d", "tract_assert S>=0 @$"]
    assert found.extensions[1].names == ("VENDOR_c", "KHR_d")
    assert [part.name.name for part in found.fragments] == ["f"]
    graph = found.graph
    assert graph.name.name == "net"
    assert [part.name for part in graph.parameters + graph.results] == ["x", "z", "y"]
    assert len(graph.body) == 1


def test_nodes_know_their_places() -> None:
    text = (
        "# é\n  v , w = f < integer > ( - (a + b [ 1 : ]) * 2 ,  p = (c) if  !d else [ for i in e yield g ( i ) ] ) ;"
    )
    data = document(text)
    (assignment,) = body(text)
    places = [data[node.start : node.end].decode() for node in (assignment.target, *walk(assignment.value))]
    assert places == [
        "v , w",
        text[text.index("f <") : text.rindex(" ;")],
        "- (a + b [ 1 : ]) * 2",
        "- (a + b [ 1 : ])",
        "a + b [ 1 : ]",
        "a",
        "b [ 1 : ]",
        "b",
        "1",
        "2",
        "(c) if  !d else [ for i in e yield g ( i ) ]",
        "c",
        "!d",
        "d",
        "[ for i in e yield g ( i ) ]",
        "e",
        "g ( i )",
        "i",
    ]
    assert data[assignment.start : assignment.end].decode() == text[text.index("v ,") :]
    assert Text(data, "graph.nnef").place(assignment.start) == (5, 3)


@given(st.text("a\n\té\N{GRINNING FACE}"), st.lists(st.integers(0, 60), max_size=8))
def test_places_in_any_order(text: str, characters: list[int]) -> None:
    read = Text(text.encode(), "graph.nnef")
    for count in characters:
        before = text[:count]
        expected = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert read.place(len(before.encode())) == expected


_MALFORMED = [
    ("y = f(x));", 4, 9, "expected ';', found ')' (NNEF 1.0, 3.2)"),
    ("y = f(x];", 4, 8, "expected ',' or ')', found ']'"),
    ("y = f(x", 5, 1, "expected ',' or ')', found '}'"),
    ("y = f(x)", 5, 1, "expected ';', found '}'"),
    ("y = f(x,);", 4, 9, "expected an expression, found ')'"),
    ("y = [1, 2,];", 4, 11, "expected an expression"),
    ("y = [1 2];", 4, 8, "expected ',' or ']'"),
    ("y = [, 1];", 4, 6, "expected an expression"),
    ("y = ();", 4, 5, "the brackets are empty"),
    ("(y) = f(x);", 4, 1, "at least two items"),
    ("() = f(x);", 4, 1, "at least two items"),
    ("y = ;", 4, 5, "expected an expression, found ';'"),
    (" = f(x);", 4, 2, "expected a name, found '='"),
    ("y f(x);", 4, 3, "expected '=', found 'f'"),
    ("f(x) = y;", 4, 2, "expected '='"),
    ("3 = y;", 4, 1, "expected a name"),
    ("y = {1};", 4, 5, "expected an expression, found '{'"),
    ("y = a b;", 4, 7, "expected ';'"),
    ("y = a +;", 4, 8, "expected an expression"),
    ("y = a ! b;", 4, 7, "expected ';'"),
    ("y = * a;", 4, 5, "expected an expression"),
    ("y = a if b;", 4, 11, "expected 'else'"),
    ("y = a[];", 4, 7, "expected an expression"),
    ("y = a[1:2:3];", 4, 10, "expected ']'"),
    ("y = [for i a yield i];", 4, 12, "expected 'in'"),
    ("y = [for i in a];", 4, 16, "expected 'yield'"),
    ("y = [for 1 in a yield i];", 4, 10, "expected a name"),
    ("y = [for i in a if b else c yield i];", 4, 22, "expected 'yield'"),
    ("y = shape_of(x, y);", 4, 15, "expected ')'"),
    ("y = shape_of();", 4, 14, "expected an expression"),
    ("y = f(1 = 2);", 4, 9, "expected ',' or ')'"),
    ("y = f<tensor<>>(x);", 4, 7, "expected an expression, found 'tensor'"),
    ("y = fragment(x);", 4, 5, "expected an expression, found 'fragment'"),
    ("scalar = f(x);", 4, 1, "expected a name; 'scalar' is a keyword (NNEF 1.0, 3.1)"),
    ("y = f(yield = 1);", 4, 7, "'yield' is a keyword"),
    ("é = f(x);", 4, 1, "unexpected character '\\xe9' (NNEF 1.0, 3.1)"),
    ("é = 1; # é\n$", 4, 1, "unexpected character"),
    ("# é\n  $", 5, 3, "unexpected character '$'"),
    ("y = 'a", 4, 5, "an unterminated string"),
    ('y = "a\\";', 4, 5, "an unterminated string"),
    ("y = 'a\n';", 4, 5, "an unterminated string"),
    ("y = f(x);} x", 4, 12, "expected the end of the document, found 'x'"),
]


@pytest.mark.parametrize(("body", "line", "column", "message"), _MALFORMED, ids=[body for body, *_ in _MALFORMED])
def test_errors_have_a_place(body: str, line: int, column: int, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(document(body))
    assert str(caught.value).startswith(f"graph.nnef:{line}:{column}: ")
    assert message in str(caught.value)
    assert "(NNEF 1.0, 3." in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: expected 'version', found the end"),
        ("graph g(x) -> (y) {}", "1:1: expected 'version'"),
        ("\N{ZERO WIDTH NO-BREAK SPACE}version 1.0;", "a byte order mark"),
        ("version 2.0; graph g(x) -> (y) {}", "1:9: NNEF version 2.0 is not supported"),
        ("version 10; graph g(x) -> (y) {}", "NNEF version 10 is not supported"),
        ("version '1.0';", "expected a number"),
        ("version 1.0; extension KHR_x", "the extension has no ';'"),
        ("version 1.0;", "expected 'graph', found the end"),
        ("version 1.0; graph g(x) -> (y) { y = f(x);", "expected a name, found the end"),
        ("version 1.0; graph g x -> (y) {}", "expected '\\('"),
        ("version 1.0; graph g(1) -> (y) {}", "expected a name"),
        ("version 1.0; graph g(x,) -> (y) {}", "expected a name"),
        ("version 1.0; graph graph(x) -> (y) {}", "'graph' is a keyword"),
        ("version 1.0; graph g(x) (y) {}", "expected '->'"),
        ("version 1.0; graph g(x) -> (y);", "expected '{'"),
    ],
)
def test_malformed_documents(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(text.encode())


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("fragment f(a) -> (b: scalar);", 13, "expected ':'"),
        ("fragment f(a: float) -> (b: scalar);", 15, "expected a type, found 'float'"),
        ("fragment f(a: 'scalar') -> (b: scalar);", 15, "expected a type"),
        ("fragment f(a: tensor<tensor<>>) -> (b: scalar);", 28, "expected '>'"),
        ("fragment f(a: scalar[1]) -> (b: scalar);", 22, "expected ']'"),
        ("fragment f(a: (scalar)) -> (b: scalar);", 15, "at least two items"),
        ("fragment f(a: scalar = x) -> (b: scalar);", 24, r"must consist of literals \(NNEF 1.0, 3.2.2\)"),
        ("fragment f(a: scalar[] = [1.0, g()]) -> (b: scalar);", 32, "must consist of literals"),
        ("fragment f(a: scalar = 1 + 2) -> (b: scalar);", 24, "must consist of literals"),
        ("fragment f(a: scalar) -> (b: scalar = 1);", 37, "expected ',' or"),
        ("fragment f<integer>(a: scalar) -> (b: scalar);", 12, r"expected '\?'"),
        ("fragment f<? = x>(a: scalar) -> (b: scalar);", 16, "expected a type"),
        ("fragment f(a: scalar) -> (b: scalar)", 37, "expected '{', found the end"),
        ("fragment f(a: scalar) -> (b: scalar) { b = a;", 46, "expected a name, found the end"),
        ("graph f(a) -> (b) {}", 1, "expected the end"),
    ],
)
def test_malformed_fragments(text: str, column: int, message: str) -> None:
    with pytest.raises(FormatError, match=f"stdlib.nnef:1:{column}: .*{message}"):
        parse_fragments(text.encode())


def test_limits() -> None:
    with pytest.raises(LimitError, match="max_topology_bytes"):
        parse(document("y = f(x);"), Limits(max_topology_bytes=10))


def test_tokens_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = document("y = f(x);")
    for limit, refused in ((20, True), (21, False)):
        monkeypatch.setattr(lexer, "MAX_TOKENS", limit)
        with pytest.raises(FormatError, match="more than 20 tokens") if refused else contextlib.nullcontext():
            parse(data)


_FORMS = {
    "brackets": ("(", "a", ")"),
    "arrays": ("[", "a", "]"),
    "tuples": ("(a,", "a", ")"),
    "invocations": ("f(", "a", ")"),
    "subscripts": ("", "a", "[0]"),
    "indices": ("a[", "a", "]"),
    "signs": ("-", "a", ""),
    "functions": ("shape_of(", "a", ")"),
    "branches": ("a if b else ", "a", ""),
    "conditions": ("a if ", "a", " else b"),
    "loops": ("[for i in ", "a", " yield i]"),
    "filters": ("[for i in b if ", "a", " yield i]"),
    "operators": ("(", "a", "^1*1+1<1&&1 in 1)"),
}


@pytest.mark.parametrize("form", _FORMS)
def test_depth_is_limited(form: str) -> None:
    """Neither the parser nor functions that walk the tree exhaust Python's stack."""

    def height(node: Expression) -> int:
        return 1 + max(map(height, children(node)), default=0)

    opening, inner, closing = _FORMS[form]
    steps = MAX_NESTING // 7 if form == "operators" else MAX_NESTING - 1
    assert height(expression(opening * steps + inner + closing * steps)) <= MAX_NESTING + 1
    for times in (MAX_NESTING + 1, 50_000):
        with pytest.raises(FormatError, match="nested deeper than 200"):
            expression(opening * times + inner + closing * times)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("(a, ", ")")])
def test_depth_of_left_sides_is_limited(opening: str, closing: str) -> None:
    for times, refused in ((MAX_NESTING, False), (MAX_NESTING + 1, True), (50_000, True)):
        with pytest.raises(FormatError, match="nested deeper") if refused else contextlib.nullcontext():
            parse(document(f"{opening * times}b{closing * times} = f(x);"))


@pytest.mark.parametrize(("opening", "closing"), [("(scalar, ", ")"), ("", "[]"), ("(scalar, ", "[])[]")])
def test_depth_of_types_is_limited(opening: str, closing: str) -> None:
    for times, refused in ((MAX_NESTING // 4, False), (MAX_NESTING + 1, True), (50_000, True)):
        text = f"fragment f(a: {opening * times}scalar{closing * times}) -> (b: scalar);"
        with pytest.raises(FormatError, match="nested deeper") if refused else contextlib.nullcontext():
            parse_fragments(text.encode())


def test_chains_of_operators_are_one_node() -> None:
    found = expression(" + ".join(["a * b"] * 5000))
    assert isinstance(found, Operation)
    assert len(found.operands) == 5000


_NAMES = st.sampled_from(["a", "b1", "_c", "and", "or", "variable", "f"])


def _texts(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["in", "&&", "||", "<", "<=", ">", ">=", "==", "!=", "+", "-", "*", "/", "^"])
    several = st.lists(inner, min_size=2, max_size=3).map(", ".join)
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("({}{})".format, st.sampled_from("+-!"), inner),
        st.builds("[{}]".format, several),
        st.builds("({})".format, several),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[for {} in {} if {} yield {}]".format, _NAMES, inner, inner, inner),
        st.builds("({})[{}:{}]".format, inner, inner, inner),
        st.builds("{}({}, {} = {})".format, _NAMES, inner, _NAMES, inner),
        st.builds("length_of({})".format, inner),
    )


_LEAVES = st.one_of(_NAMES, st.integers(0, 99).map(str), st.floats(0, 1e9).map(repr), st.sampled_from(["'s'", "true"]))


@settings(deadline=None)
@given(st.recursive(_LEAVES, _texts, max_leaves=30))
def test_a_tree_reads_as_it_is_shown(text: str) -> None:
    """The text with all brackets, also with blanks and comments, is parsed to the same tree."""
    tree = shown(expression(text))
    assert shown(expression(tree.replace("True", "true").replace(" ", " \n# (\n"))) == tree


def _nodes(node: object) -> list[SyntaxNode]:
    """Yield a node and all nodes below it, in any field."""
    if isinstance(node, tuple):
        return [found for part in node for found in _nodes(part)]
    if not isinstance(node, SyntaxNode):
        return []
    fields = (getattr(node, part.name) for part in dataclasses.fields(node))
    return [node, *(found for part in fields for found in _nodes(part))]


_WORDS = st.sampled_from([*sorted(KEYWORDS), *"=;()[]{},:+-<>?1\n#", "->", "2.5", "'w'", "f", "x"])


@settings(deadline=None)
@given(st.lists(_WORDS, max_size=40).map(" ".join))
def test_any_tokens_give_a_tree_or_an_error(text: str) -> None:
    for data in (document(text), document(f"y = {text};"), text.encode()):
        with contextlib.suppress(NnrError):
            found = parse(data)
            for node in _nodes(found):
                assert found.start <= node.start <= node.end <= found.end


@needs_shared
def test_the_fragments_of_the_standard() -> None:
    assert SHARED is not None
    found = [parse_fragments(path.read_bytes()) for path in sorted(SHARED.rglob("stdlib.nnef"))]
    assert [len(fragments) for fragments in found] == [119, 105]
    assert all({"variable", "conv", "batch_normalization"} <= {part.name.name for part in part_} for part_ in found)


_WORDS = st.sampled_from(
    [
        *("w", "v1", "graph", "in", "variable", "external", "shape", "label", "shapes", "scalar", "integer", "logical"),
        *("tensor", "=", "==", "<", ">", ">=", "(", ")", "[", "]", ",", ";", ":", "-", "+", "4", "03", "1.5", "2e1"),
        *("12345678901", "'a/b'", '"c"', "'ä'", "'\\''", "'", "true", "[]", "[4]", "[1, 2]", "[1,1,1,1,1,1,1,1,1]"),
        *("w" * 300, "#", "\x00", "\x1f"),
    ]
)
_BLANKS = st.sampled_from(["", "", "", " ", "\n", "\t\f", " # a = variable(\n"])


@settings(max_examples=examples(500))
@given(st.data())
def test_variables_at_once(data: st.DataObject) -> None:
    """Assignments of variables that are matched as a whole give the result of the grammar.

    Nodes, offsets, errors, and the variables of the graph are compared.
    """
    list_of = st.lists(st.sampled_from(["1", "42"]), min_size=1, max_size=9).map(lambda items: f"[{', '.join(items)}]")
    key, value = st.sampled_from(["shape", "label"]), list_of | st.sampled_from(["'a/b'", '"c"', "'ä'"])
    text = ""
    for k in range(data.draw(st.integers(1, 3))):
        generic = data.draw(st.sampled_from([[], ["<", "scalar", ">"], ["<", "logical", ">"]]))
        one, other = ([data.draw(key), "=", data.draw(value)] for _ in range(2))
        words = [f"v{k}", "=", "variable", *generic, "(", *one, ",", *other, ")", ";"]
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
            at = data.draw(st.integers(0, len(words) - 1))
            words[at : at + data.draw(st.integers(0, 1))] = [data.draw(_WORDS)]
        text += "".join(word + data.draw(_BLANKS) for word in words)
    limit = data.draw(st.integers(12, 90))

    def outcome(pattern: re.Pattern[bytes], read: Callable[[bytes], object]) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parser, "_VARIABLE", pattern)
            patch.setattr(lexer, "MAX_TOKENS", limit)
            try:
                return read(document(text))
            except FormatError as error:
                return str(error)

    def tree(data: bytes) -> object:
        found = parse(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lexer, "MAX_TOKENS", 1000)
            found.graph.body = tuple(assignment_of(part, data) for part in found.graph.body)
        return repr(found)

    def variables(data: bytes) -> object:
        return [(v.call, v.identifier, v.dtype, v.shape, v.label) for v in parse_graph(data).variables]

    for read in (tree, variables):
        assert outcome(parser._VARIABLE, read) == outcome(re.compile(rb"(?!)"), read)


def test_variables_of_models_are_matched_at_once() -> None:
    for text in (
        "w = variable<scalar>(shape = [4, 3], label = 'layers.0.w');",
        'conv_1 = variable(label = "conv/1", shape = [64,3,7,7]);',
        "b=variable<logical>\n(\n\tshape=[1],label='b'\n);",
    ):
        (found,) = parse(document(text)).graph.body
        assert isinstance(found, Variable)
    for text in (
        "w = variable<scalar>(shape = [4], label = 'w') + 1;",
        "w = variable<scalar>(shape = [0], label = 'w');",
        "w = variable<scalar>(shape = [4294967296], label = 'w');",
        "w = variable<scalar>(shape = [1], label = 'w w');",
        "w = variable<scalar>(shape = [1], shape = [1]);",
    ):
        (other,) = parse(document(text)).graph.body
        assert isinstance(other, Assignment)
