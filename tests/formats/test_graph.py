"""Tests of the variables of graph.nnef."""

from __future__ import annotations

import contextlib
import tarfile
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.nnef.graph import NnefGraph, parse_graph
from nnr_codec.formats.nnef.parser import invocation_at
from nnr_codec.formats.nnef.tree import Variable
from nnr_codec.limits import Limits

from ..shared import SHARED, needs_shared
from .support import SYNTHETIC

_HEAD = "version 1.0;\ngraph g(x) -> (y)\n{\n"


def parse(body: str, head: str = _HEAD, limits: Limits | None = None) -> NnefGraph:
    return parse_graph(f"{head}{body}\n}}\n".encode(), limits)


def shape_text(data: bytes, variable: Variable) -> str:
    """Return the text of the shape of a variable whose arguments are named."""
    arguments = invocation_at(data, variable.call).arguments
    (shape,) = (part.value for part in arguments if part.name and part.name.name == "shape")
    return data[shape.start : shape.end].decode()


@pytest.mark.parametrize("name", sorted(path.name for path in (SYNTHETIC / "graphs").iterdir()))
def test_synthetic_documents(name: str) -> None:
    data = (SYNTHETIC / "graphs" / name / "graph.nnef").read_bytes()
    graph = parse_graph(data)
    expected = {
        "compositional": [("v", "scalar", (1, 2), "blk/w")],
        "crlf_comments_utf8": [("v", "scalar", (1, 2), "w")],
        "dtype_conflict": [("v", "integer", (1, 2), "w")],
        "flat": [("v", "scalar", (1, 2), "block/w")],
        "integer_logical": [
            ("i", "integer", (3,), "i"),
            ("b", "logical", (1, 2), "b"),
            ("v", "scalar", (1, 2), "w"),
        ],
        "label_first": [("v", "scalar", (1, 2), "w.a-b")],
        "leading_slash": [("v", "scalar", (1, 2), "/net/w")],
        "shape_conflict": [("v", "scalar", (2, 1), "w")],
        "shared_label": [("v", "scalar", (1, 2), "w"), ("u", "scalar", (1, 2), "w")],
        "shared_label_case": [("v", "scalar", (1, 2), "w"), ("u", "scalar", (1, 2), "W")],
        "traversal": [("v", "scalar", (1, 2), "../../evil")],
        "update_rnn": [("h", "scalar", (1, 2), "state/h")],
    }.get(name, [("v", "scalar", (1, 2), "w")])
    assert [(v.identifier, v.dtype, v.shape, v.label) for v in graph.variables] == expected
    for variable in graph.variables:
        text = shape_text(data, variable)
        assert text == "[1] + [2]" if name == "compositional" else eval(text) == list(variable.shape)


@pytest.mark.parametrize(
    ("call", "dtype", "shape", "label"),
    [
        ("variable(shape = [3], label = 'w')", "scalar", (3,), "w"),
        ("variable<scalar>(shape = [], label = 'w')", "scalar", (), "w"),
        ("variable < logical > ( label='w' , shape=[1,2] )", "logical", (1, 2), "w"),
        ("variable<integer>([4, 5], 'w')", "integer", (4, 5), "w"),
        ("variable([4], label = 'w')", "scalar", (4,), "w"),
        ("variable(shape = [- -3, -(2) * -1], label = 'w')", "scalar", (3, 2), "w"),
        ("variable(shape = [1] * 3 + [2 * 3 + 1], label = 'a' * 2 + '/b')", "scalar", (1, 1, 1, 7), "aa/b"),
        ("variable(shape = ([1] + [2]) * 2, label = ('w'))", "scalar", (1, 2, 1, 2), "w"),
        ('variable(shape = [4294967295], label = "w")', "scalar", (4294967295,), "w"),
        ("variable(shape = [1], label = 'a\\\\b')", "scalar", (1,), "a\\b"),
        ("variable(shape = [1], label = 'a\\b')", "scalar", (1,), "a\\b"),
        ("variable # (\f\n # ] \n(shape # =\n = [1], label = 'w')", "scalar", (1,), "w"),
    ],
)
def test_forms_of_a_variable(call: str, dtype: str, shape: tuple[int, ...], label: str) -> None:
    (variable,) = parse(f"v = {call};").variables
    assert (variable.identifier, variable.dtype, variable.shape, variable.label) == ("v", dtype, shape, label)


def test_variables_inside_expressions_have_no_identifier() -> None:
    graph = parse(
        "v = copy(variable(shape = [1], label = 'a'));\n"
        "w = variable(shape = [2], label = 'b') + 1.0;\n"
        "(p, q) = f(x, [variable(shape = [3], label = 'c'), 2.5e-3]);"
    )
    assert [(v.identifier, v.label, graph.line(v)) for v in graph.variables] == [
        ("", "a", 4),
        ("", "b", 5),
        ("", "c", 6),
    ]


def test_other_operations_are_not_variables() -> None:
    graph = parse(
        "variable = external(shape = [1]); # variable(shape = [1], label = 'comment')\n"
        "a = f(variable, s = 'variable(shape = [1], label = 1)', variable = 3);\n"
        "[b, c] = split(variable, ratios = [for i in [1,2] yield i]);\n"
        "variables = g<integer>(a if length_of([1]) > 0 && !false || true else b[0:1]);"
    )
    assert graph.variables == ()


def test_extensions_and_fragments() -> None:
    head = (
        "version 1.0;\nextension KHR_a, KHR_b;\nextension tract_assert S >= 1 @ $;\n"
        "fragment op<? = scalar>( a: tensor<?>[], b: (integer, string)[] = [(1, 'x')] ) -> ( c: tensor<> );\n"
        "fragment variable<? = scalar>(shape: integer[], label: string) -> (output: tensor<?>);\n"
        "fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) { b = a ^ 2.0 if c[1] else 'vari\\'able('; }\n"
        "graph g(x) -> (y) {"
    )
    document = parse("", head).document
    assert document.graph.name.name == "g"
    assert [part.text for part in document.extensions] == ["KHR_a, KHR_b", "tract_assert S >= 1 @ $"]
    assert document.extensions[0].names == ("KHR_a", "KHR_b")
    assert [part.name.name for part in document.fragments] == ["op", "variable", "f"]
    assert document.version == "1.0"


def test_offsets_are_bytes() -> None:
    data = f"# \N{LATIN SMALL LETTER E WITH ACUTE}\r\n{_HEAD}v = variable(shape = [ 1,2 ], label = 'w');}}".encode()
    graph = parse_graph(data)
    (variable,) = graph.variables
    assert shape_text(data, variable) == "[ 1,2 ]"
    call = invocation_at(data, variable.call)
    assert data[call.start : call.end] == b"variable(shape = [ 1,2 ], label = 'w')"
    assert graph.line(variable) == 5


_MALFORMED = [
    ("v = variable(shape = [1]);", 4, 5, "requires shape and label (NNEF 1.0, 4.1.3)"),
    ("v = variable(label = 'w');", 4, 5, "requires shape and label"),
    ("v = variable();", 4, 5, "requires shape and label"),
    ("v = variable<string>(shape = [1], label = 'w');", 4, 5, "a variable has type 'string'"),
    ("v = variable<?>(shape = [1], label = 'w');", 4, 5, "a variable has type"),
    ("v = variable(shape = [0], label = 'w');", 4, 22, "extents"),
    ("v = variable(shape = [-1], label = 'w');", 4, 22, "extents"),
    ("v = variable(shape = [4294967296], label = 'w');", 4, 22, "extents"),
    ("v = variable(shape = [[1]], label = 'w');", 4, 22, "extents"),
    ("v = variable(shape = ['1'], label = 'w');", 4, 22, "extents"),
    ("v = variable(shape = 1, label = 'w');", 4, 22, "the shape must be a list"),
    ("v = variable(shape = [1.0], label = 'w');", 4, 23, "expected an integer"),
    ("v = variable(shape = [1e3], label = 'w');", 4, 23, "expected an integer"),
    ("v = variable(shape = [true], label = 'w');", 4, 23, "expected an integer"),
    ("v = variable(shape = [999999999999999999999999], label = 'w');", 4, 23, "too large"),
    ("v = variable(shape = [" + "9" * 4001 + "], label = 'w');", 4, 23, "more than 4000 digits"),
    ("v = variable(shape = [1,1,1,1,1,1,1,1,1], label = 'w');", 4, 22, "maximum rank (NNEF 1.0, 5.2)"),
    ("v = variable(shape = [1] * 9, label = 'w');", 4, 28, "maximum rank"),
    ("v = variable(shape = [1] * 1000000000000, label = 'w');", 4, 28, "too long"),
    ("v = variable(shape = [1], label = 'w' * 1000000000000);", 4, 41, "too long"),
    ("v = variable(shape = [9999999999 * 9999999999], label = 'w');", 4, 36, "too large"),
    ("v = variable(shape = [1] + 2, label = 'w');", 4, 28, "different types"),
    ("v = variable(shape = [1] * [2], label = 'w');", 4, 28, "must be an integer"),
    ("v = variable(shape = [4 / 2], label = 'w');", 4, 23, "must be constants"),
    ("v = variable(shape = [n], label = 'w');", 4, 23, "must be constants (NNEF 1.0, 4.1.3)"),
    ("v = variable(shape = [1], label = scope + '/w');", 4, 35, "must be constants"),
    ("v = variable(shape = [1], label = true);", 4, 35, "expected an integer or a string"),
    ("v = variable(shape = [1], label = 3);", 4, 35, "the label must be a string"),
    ("v = variable(shape = [1], label = '');", 4, 35, "empty"),
    ("v = variable(shape = [1], label = 'a b');", 4, 35, "characters that NNEF does not permit"),
    ("v = variable(shape = [1], label = 'é');", 4, 35, "characters that NNEF does not permit"),
    ("v = variable(shape = [1], label = 'w', label = 'w');", 4, 40, "given twice (NNEF 1.0, 3.3.2)"),
    ("v = variable(shape = [1], label = 'w', scope = 'w');", 4, 40, "no parameter 'scope'"),
    ("v = variable(label = 'w', [1]);", 4, 27, "positional"),
    ("v = variable([1], 'w', 1);", 4, 24, "more than two arguments"),
]


@pytest.mark.parametrize(("body", "line", "column", "message"), _MALFORMED, ids=[body[:50] for body, *_ in _MALFORMED])
def test_errors_have_a_place(body: str, line: int, column: int, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(body)
    assert str(caught.value).startswith(f"graph.nnef:{line}:{column}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "version 1.0; fragment f(a: tensor<>) -> (b: tensor<>) { b = variable(shape = [1], label = 'w'); }"
            " graph g(x) -> (y) {}",
            "fragment 'f' contains a variable",
        ),
    ],
)
def test_malformed_documents(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_graph(text.encode())


@pytest.mark.parametrize(
    ("data", "message"), [(b"version 1.0;\0", "byte 12 is NUL"), (b"# \xff", "byte 2 is not UTF-8")]
)
def test_text_must_travel_as_a_null_terminated_string(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_graph(data)


@pytest.mark.parametrize(
    ("second", "agrees"),
    [
        ("variable(shape = [2], label = 'W')", True),
        ("variable(shape = [1, 2], label = 'w')", False),
        ("variable<integer>(shape = [2], label = 'W')", False),
    ],
)
def test_shared_labels_must_agree(second: str, agrees: bool) -> None:
    body = f"v = variable(shape = [2], label = 'w');\nu = {second};"
    if agrees:
        assert len(parse(body).variables) == 2
    else:
        with pytest.raises(FormatError, match=r"graph\.nnef:5:5: .* line 4, .*4\.1\.3"):
            parse(body)


def test_limits() -> None:
    body = "\n".join(f"v{i} = variable(shape = [1], label = 'w{i}');" for i in range(20))
    for limits, name in (
        (Limits(max_topology_bytes=100), "max_topology_bytes"),
        (Limits(max_names=19), "max_names"),
        (Limits(max_name_bytes=2), "max_name_bytes"),
    ):
        with pytest.raises(LimitError, match=name):
            parse(body, limits=limits)
    assert len(parse(body, limits=Limits(max_names=20, max_name_bytes=3)).variables) == 20


@pytest.mark.medium
@pytest.mark.parametrize(
    "body",
    [
        "v = f(" + "# # # # # # # # # # " * 20_000 + "\n$);",
        "\n" * 400_000 + "".join(f"v{i} = variable(shape = [1], label = 'w{i}');\n" for i in range(8000)),
        "v = '" + "\\" * 400_000,
        "v = f(" + "1," * 100_000,
        "v = variable(shape = [1], label = " + "'a' + " * 50_000 + "'b');",
        "v = variable(shape = [" + "1 * " * 50_000 + "1], label = 'b');",
        "v = " + "-" * 200_000 + ";",
    ],
)
def test_hostile_documents_take_linear_time(body: str) -> None:
    start = time.process_time()
    with contextlib.suppress(NnrError):
        parse(body)
    assert time.process_time() - start < 5


_WORDS = ["version", "1.0", "extension", "fragment", "graph", "g", "variable", "scalar", "shape", "label", "'w'", '"w"']
_SIGNS = [*";(),=->{}<>[]+*-?#\n\\\0\xff", "->", "&&", "0", "1", "99999999999999999999", "1e9"]
_PIECES = st.sampled_from(_WORDS) | st.sampled_from(_SIGNS)


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"version 1.0; graph g(x) -> (y) { v = variable(shape=[1],label='\\")
def test_any_bytes_give_a_graph_or_an_error(data: bytes) -> None:
    with contextlib.suppress(NnrError):
        parse_graph(data)


@settings(deadline=None)
@given(st.lists(_PIECES, max_size=60), st.booleans())
def test_any_tokens_give_a_graph_or_an_error(pieces: list[str], headed: bool) -> None:
    with contextlib.suppress(NnrError):
        parse_graph(((_HEAD if headed else "") + " ".join(pieces)).encode())


@needs_shared
def test_documents_of_other_tools() -> None:
    assert SHARED is not None
    texts = [path.read_bytes() for path in sorted(SHARED.rglob("graph.nnef"))]
    texts += [path.read_bytes() for path in sorted(SHARED.rglob("examples/*.txt"))]
    for path in sorted((SHARED / "nnef_corpus").rglob("*.tgz")) + sorted((SHARED / "nnef_corpus").rglob("*.tar")):
        with tarfile.open(path) as archive:
            members = [archive.extractfile(member) for member in archive if member.name.endswith("graph.nnef")]
            texts += [member.read() for member in members if member]
    assert len(texts) >= 76
    assert sum(len(parse_graph(text).variables) for text in texts) >= 1176
