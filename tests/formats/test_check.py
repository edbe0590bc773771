"""Rules of NNEF documents: for each rule a document that breaks only this rule, and valid documents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.errors import FormatError
from nnr_codec.formats.findings import MOST, ModelFindings, ModelReport
from nnr_codec.formats.nnef.check import Checker
from nnr_codec.formats.nnef.lexer import Text
from nnr_codec.formats.nnef.parser import parse
from nnr_codec.formats.nnef.rules import RULES

from ..shared import SHARED, examples, needs_shared

pytestmark = pytest.mark.medium

_EXTENSIONS = "extension KHR_enable_fragment_definitions;\nextension KHR_enable_operator_expressions;\n"
_VENDOR = "extension acme_operations;\n"


def check(text: str | bytes) -> ModelReport:
    data = text.encode() if isinstance(text, str) else text
    findings = ModelFindings(RULES, "NNEF")
    Checker(parse(data), Text(data, "graph.nnef"), findings).run()
    return findings.end()


def document(body: str = "y = copy(x);", fragments: str = "", head: str = _EXTENSIONS) -> str:
    """Return a graph from x to y, in which x exists."""
    external = "x = external(shape = [2, 3]);"
    return f"version 1.0;\n{head}{fragments}\ngraph g(x) -> (y)\n{{\n  {external}\n  {body}\n}}\n"


def flat(body: str) -> str:
    return document(body, head="")


def fragment(text: str) -> str:
    return document(fragments=text)


def body(text: str) -> str:
    """Return a fragment with a tensor as parameter and as result, and this body."""
    return fragment(f"fragment f(a: tensor<scalar>) -> (b: tensor<scalar>)\n{{ {text} }}")


_TWICE = "fragment f(a: scalar) -> (b: tensor<scalar>);\nfragment @f(a: scalar) -> (b: tensor<scalar>);"

#: Broken rules, in documents with an @ at the expected position.
BROKEN = [
    ("version-known", "@version 1.1;\ngraph g(x) -> (y) { x = external(shape = [1]); y = copy(x); }"),
    ("extension-name", document(head="@extension KHR_enable_everything;\n")),
    ("extension-name", document(head="@extension acme_assert T>=0;\n")),
    ("extension-name", document(head="@extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n")),
    (
        "fragment-extension",
        document(fragments="@fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) { b = copy(a); }", head=""),
    ),
    ("operator-extension", flat("y = @x + x;")),
    ("operator-extension", flat("y = @-x;")),
    ("operator-extension", flat("y = copy(@neg(x));")),
    ("operator-extension", flat("y = @x;")),
    ("operator-extension", flat("y = reshape(x, shape = [@2 * 3]);")),
    ("operator-extension", flat("y = reshape(x, shape = @range_of([1]));")),
    # Declarations
    ("fragment-unique", fragment("fragment @relu(a: tensor<scalar>) -> (b: tensor<scalar>);")),
    ("fragment-unique", fragment(_TWICE)),
    ("parameter-unique", fragment("fragment f(a: tensor<scalar>, @a: scalar) -> (b: tensor<scalar>);")),
    ("parameter-unique", fragment("fragment f(a: tensor<scalar>) -> (@a: tensor<scalar>);")),
    ("parameter-unique", "version 1.0;\ngraph g(x, @x) -> (y) { x = external(shape = [1]); y = copy(x); }"),
    ("tensors-first", fragment("fragment f(a: scalar, @b: tensor<scalar>) -> (c: tensor<scalar>);")),
    ("result-type", fragment("fragment f(a: tensor<scalar>) -> (@b: scalar);")),
    ("result-type", fragment("fragment f(a: tensor<scalar>) -> (@b: tensor<>);")),
    ("mixed-tuple", fragment("fragment f(@a: (tensor<scalar>, scalar)) -> (b: tensor<scalar>);")),
    ("default-type", fragment("fragment f(a: tensor<scalar>, b: integer = @1.0) -> (c: tensor<scalar>);")),
    ("default-type", fragment("fragment f(a: tensor<scalar>, b: scalar[] = @0.5) -> (c: tensor<scalar>);")),
    ("generic-declaration", fragment("fragment @f(a: tensor<?>) -> (b: tensor<?>);")),
    ("generic-declaration", fragment("fragment @f<?>(a: tensor<scalar>) -> (b: tensor<scalar>);")),
    ("recursion", body("b = f(a) if true else neg(f(a)); c = f(a);").replace("fragment f", "fragment @f")),
    (
        "recursion",
        fragment(
            "fragment @f(a: tensor<scalar>) -> (b: tensor<scalar>) { b = h(a); }\n"
            "fragment h(a: tensor<scalar>) -> (b: tensor<scalar>) { b = neg(f(a)); }"
        ),
    ),
    # Identifiers
    ("single-assignment", flat("y = copy(x);\n  @y = neg(x);")),
    ("single-assignment", flat("y = copy(x);\n  @x = neg(y);")),
    ("single-assignment", body("@a = neg(a); b = copy(a);")),
    ("use-before-assignment", flat("y = copy(@z);\n  z = neg(z);")),
    ("use-before-assignment", flat("y = add(@z, z);")),
    ("result-assigned", "version 1.0;\ngraph g(x) -> (@y) { x = external(shape = [1]); z = copy(x); }"),
    ("result-assigned", fragment("fragment f(a: tensor<scalar>) -> (@b: tensor<scalar>) { c = copy(a); }")),
    ("graph-parameter", "version 1.0;\ngraph g(@x) -> (y) { x = variable(shape = [1], label = 'x'); y = copy(x); }"),
    ("graph-parameter", "version 1.0;\ngraph g(x, @z) -> (y) { x = external(shape = [1]); y = copy(x); }"),
    ("graph-parameter", flat("@z = external(shape = [1]);\n  y = add(x, z);")),
    ("graph-parameter", document("y = add(x, @external(shape = [1]));")),
    ("graph-only", body("b = @variable(shape = [1], label = 'l');")),
    ("graph-only", body("b = @external(shape = [1]);")),
    ("graph-only", body("b = @update(a, a);")),
    ("identifier-tensor", flat("@z = split(x, axis = 0, ratios = [1, 1]);\n  y = copy(x);")),
    ("identifier-tensor", document("@z = [x, x];\n  y = copy(x);")),
    ("identifier-tensor", document("@z = 1.0;\n  y = add(x, z);")),
    ("target-structure", flat("@[y] = copy(x);")),
    ("target-structure", flat("@y, z = copy(x);")),
    ("target-structure", flat("@y, z, i = max_pool_with_index(x, size = [1, 1]);")),
    ("target-structure", document("@[y, z] = [x, x, x];")),
    ("update-variable", flat("y = update(@x, x);")),
    ("update-variable", document("y = update(@variable(shape = [2, 3], label = 'l'), x);")),
    ("update-variable", flat("v = variable(shape = [2, 3], label = 'l');\n  u = update(v, x);\n  y = update(@v, x);")),
    ("update-variable", flat("v = variable(shape = [2, 3], label = 'l');\n  u = update(v, x);\n  y = update(@u, x);")),
    # Invocations
    ("operation-known", flat("y = @frobnicate(x, size = 3);")),
    ("vendor-operation", document("y = @acme_frobnicate(x, size = 3);", head=_VENDOR)),
    ("later-operation", flat("y = @gelu(x);")),
    ("argument-order", flat("y = batch_normalization(x, x, x, x, epsilon = 0.1, @x);")),
    ("argument-count", flat("y = copy(x, @x);")),
    ("argument-name", flat("y = copy(x, @axis = 1);")),
    ("argument-twice", flat("y = softmax(x, axes = [1], @axes = [1]);")),
    ("argument-twice", flat("y = reshape(x, shape = [6], @shape = [6]);")),
    ("argument-missing", flat("y = @add(x);")),
    ("argument-missing", flat("y = @box(x);")),
    ("attribute-named", flat("y = leaky_relu(x, @0.5);")),
    ("tensor-positional", flat("y = copy(@x = x);")),
    ("generic-argument", flat("y = @relu<scalar>(x);")),
    ("generic-argument", flat("y = @copy<?>(x);")),
    ("generic-argument", flat("y = @copy<tensor>(x);")),
    ("generic-argument", document("z = x > 0.0;\n  y = @select(z, x, z);")),
    ("generic-argument", flat("y = @concat([], axis = 0);")),
    ("generic-argument", flat("y = @variable<string>(shape = [1], label = 'l');")),
    ("argument-type", flat("y = leaky_relu(x, alpha = @1);")),
    ("argument-type", flat("y = max(x, @0);")),
    ("argument-type", flat("y = conv(x, x, padding = @[1, 2]);")),
    ("argument-type", flat("y = constant(shape = [1], value = @[1]);")),
    ("argument-type", flat("y = conv(x, x, border = @1);")),
    ("argument-type", flat("z = lt(x, 0.0);\n  y = relu(@z);")),
    ("argument-type", flat("i = argmax_reduce(x, axes = [1]);\n  y = add(x, @i);")),
    ("argument-type", flat("y = concat(@x, axis = 0);")),
    ("argument-type", flat("y = matmul(x, x, transposeA = @1);")),
    ("expression-type", document("y = x + @1;")),
    ("expression-type", document("y = x * @[1.0];")),
    ("expression-type", document("y = reshape(x, shape = [2 + @1.0]);")),
    ("expression-type", document("y = reshape(x, shape = [2, @1.0]);")),
    ("expression-type", document("y = x if @x else x;")),
    ("expression-type", document("y = x if true && @1 else x;")),
    ("expression-type", document("y = x if 1 < @2.0 else x;")),
    ("expression-type", document("y = x if 1 in @2 else x;")),
    ("expression-type", document("y = @!x;")),
    ("expression-type", document("y = copy(x) if @!1 else x;")),
    ("expression-type", document("y = reshape(x, shape = [1, 2][@0.5:]);")),
    ("expression-type", document("y = @x[0];")),
    ("expression-type", document("z, i = @max_pool_with_index(x, size = [1, 1])[2];\n  y = copy(x);")),
    ("expression-type", document("y = reshape(x, shape = [length_of(@x)]);")),
    ("expression-type", document("y = reshape(x, shape = [integer(@x)]);")),
    ("expression-type", document("y = concat([for i in @x yield x], axis = 0);")),
    ("expression-type", document("y = concat([for i in [1] if @i yield x], axis = 0);")),
    ("expression-type", fragment("fragment f(a: tensor<scalar>) -> (@b: tensor<logical>) { b = copy(a); }")),
    ("argument-value", flat("y = conv(x, x, border = @'ignore');")),
    ("argument-value", flat("y = multilinear_upsample(x, factor = [2], method = @'cubic');")),
    ("argument-value", flat("y = max_pool(x, size = @[0, 1]);")),
    ("argument-value", flat("y = conv(x, x, groups = @-1);")),
    ("argument-value", flat("y = sum_reduce(x, axes = @[1, 1]);")),
    ("argument-value", flat("y = constant(shape = @[0], value = [1.0]);")),
    ("argument-value", flat("y = constant(shape = [2, 2], value = @[1.0, 2.0, 3.0]);")),
    ("deprecated", document("y = reshape(x, shape = @shape_of(x));")),
    ("deprecated", flat("y = @linear_quantize(x, 0.0, 1.0, bits = 8);")),
    # Variables
    ("argument-type", flat("y = variable(shape = @[2.5], label = 'l');")),
    ("variable-constant", document("y = variable(shape = [@4 - 2], label = 'l');")),
    ("variable-constant", document("y = variable(shape = @range_of([1, 2]), label = 'l');")),
    ("variable-constant", flat("y = variable(shape = @[1, 1, 1, 1, 1, 1, 1, 1, 1], label = 'l');")),
    ("variable-shape", flat("y = variable(shape = @[2, 0], label = 'l');")),
    ("variable-shape", flat("y = variable(shape = @[2, -1], label = 'l');")),
    ("variable-shape", flat("y = variable(shape = @[4294967296], label = 'l');")),
    ("label", flat("y = variable(shape = [1], label = @'');")),
    ("label", flat("y = variable(shape = [1], label = @'a b');")),
]  # fmt: skip


def broken(text: str) -> tuple[str, int, int]:
    """Return the document, and the line and column of the @ in it."""
    before = text[: text.index("@")]
    assert text.count("@") == 1
    return text.replace("@", ""), before.count("\n") + 1, len(before) - before.rfind("\n")


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_each_rule_is_found_alone_and_where_it_is_broken(rule: str, text: str) -> None:
    text, line, column = broken(text)
    report = check(text)
    found = [*report.violations, *report.warnings, *report.notes]
    assert [(f.rule, f.file, f.line, f.column) for f in found] == [(rule, "graph.nnef", line, column)]
    severity = {"violation": report.violations, "warning": report.warnings, "note": report.notes}
    assert len(severity[RULES[rule].severity]) == 1
    assert str(found[0]).startswith(f"graph.nnef:{line}:{column}: ")
    assert str(found[0]).endswith(f"({rule}, NNEF {found[0].clause})")


VALID = [
    flat("y = copy(x);"),
    flat("y = reshape(x, shape = [-1], axis_start = 0);"),
    flat("a, i = max_pool_with_index(x, size = [1, 1]);\n  y = add(a, 1.0);"),
    flat("[a, b] = split(x, axis = 0, ratios = [1, 1]);\n  y = concat([a, b], axis = 0);"),
    flat("c = constant<integer>(shape = [2], value = [1, 2]);\n  y = add(x, 0.5);"),
    flat("c = lt(x, 0.0);\n  y = select(c, x, 0.0);"),
    flat("v = variable<logical>(shape = [2, 3], label = 'a');\n  u = update(v, v);\n  y = select(u, x, x);"),
    flat("y = batch_normalization(x, x, x, x, x, epsilon = 1e-3);"),
    flat("y = pad(x, padding = [(0, 1), (-1, 0)], border = 'reflect-even');"),
    document("y = x ^ 2.0 + -x / (1.0 + exp(-x)) if (3 in [1, 2]) || true && !false else x;"),
    document("y = add_n([for i in [1, 2], j in [x, x] if i > 1 yield j * scalar(i)]);"),
    document("y = reshape(x, shape = [1] * 2 + [2, 3, 4][1:] + range_of('ab')[:1] + [length_of([x])]);"),
    document("y = pad(x, padding = [(0, 0)] * length_of([1, 2]), border = 'ref' + 'lect');"),
    fragment("fragment f(a: tensor<scalar>, b: (integer, scalar)[]) -> (c: tensor<scalar>) { c = a * b[0][1]; }"),
    fragment("fragment f<?>(a: tensor<?>, b: ? ) -> (c: tensor<?>) { c = select<?>(true, a, b); }"),
    document("y = f(x, n = 3);", "fragment f(a: tensor<scalar>, n: integer) -> (b: tensor<scalar>)\n"
             "{ b = neg(f(a, n = n - 1)) if n > 0 else a; }"),
    document("y = f(x, e = ['a']);", "fragment f(a: tensor<scalar>, e: string[], t: (integer, scalar) = (1, 2.0))\n"
             "-> (b: tensor<scalar>) { b = a * t[1] if e[0] == 'a' else a ^ scalar(t[0]); }"),
    document("y = acme_scale(x, T, T + 1);", head=_EXTENSIONS + "extension acme_symbol T;\n"),
    "version 1.0;\nextension acme_io;\ngraph g(x) -> (y) { x = acme_source(shape = [1]); y = copy(x); }",
]  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_valid_documents(text: str) -> None:
    report = check(text)
    assert report.violations == report.warnings == []
    assert {note.rule for note in report.notes} <= {"vendor-operation"}


def test_what_a_rule_has_to_say_ends() -> None:
    report = check(flat("y = copy(x);" + "\n  y = neg(x);" * (MOST + 5)))
    assert len(report.violations) == MOST
    assert [str(note) for note in report.notes] == [
        "model: 5 more findings are left out (single-assignment, NNEF 3.3.2)"
    ]


@needs_shared
@pytest.mark.parametrize("name", ["khronos_nnef_tools/nnef-pyproject", "khronos_nnef_tools_legacy/parser"])
def test_the_standard_library_of_khronos_agrees_with_our_types(name: str) -> None:
    assert SHARED
    fragments = (SHARED / "nnef_corpus" / name / "stdlib.nnef").read_text("utf-8")
    report = check(document(fragments=fragments))
    assert {found.rule for found in report.violations} == {"fragment-unique"}


def _flat_documents() -> list[Path]:
    if not SHARED:
        return []
    examples = SHARED / "nnef_corpus" / "khronos_nnef_tools" / "nnef-pyproject" / "examples"
    older = SHARED / "nnef_corpus" / "khronos_nnef_tools_final_v1.0" / "parser" / "cpp" / "examples"
    models = sorted((SHARED / "models").glob("*.nnef/graph.nnef"))
    return [*sorted(examples.glob("*.txt")), *sorted(older.glob("*_flat.txt")), *models]


@needs_shared
@pytest.mark.parametrize("path", _flat_documents(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_documents_of_khronos_and_of_converters_are_valid(path: Path) -> None:
    report = check(path.read_bytes())
    assert report.violations == report.notes == []
    assert {found.rule for found in report.warnings} <= {"tensor-positional"}


def test_there_are_documents() -> None:
    assert not SHARED or len(_flat_documents()) == 16


#: Number of the documents with broken rules that Khronos' parser reads: it ignores values, labels, versions of
#: operations and most types of identifiers, and accepts nested invocations in flat documents.
_KHRONOS_READS = {
    "argument-value": 7, "deprecated": 1, "expression-type": 1, "extension-name": 1, "generic-argument": 2,
    "graph-parameter": 1, "identifier-tensor": 2, "label": 2, "later-operation": 1, "operator-extension": 1,
    "recursion": 1, "result-type": 1, "tensor-positional": 1, "update-variable": 1, "variable-constant": 3,
    "variable-shape": 3,
}  # fmt: skip
# Each document runs in a separate process: Khronos' parser crashes on some.
_KHRONOS = """
import json, os, sys
import nnef
for text in json.load(sys.stdin):
    if not (child := os.fork()):
        try:
            nnef.parse_string(text)
        except nnef.Error:
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def khronos_says(texts: list[str]) -> list[int]:
    """Return 0 for each document that Khronos' parser reads, 1 if it rejects it, less if it crashes."""
    pytest.importorskip("nnef")
    commas = "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
    texts = [text.replace(_EXTENSIONS, commas) for text in texts]
    done = subprocess.run(
        [sys.executable, "-c", _KHRONOS], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.clients
def test_khronos_reads_valid_documents() -> None:
    texts = [text for text in VALID if "acme" not in text]
    texts += [path.read_text("utf-8") for path in _flat_documents()]
    assert khronos_says(texts) == [0] * len(texts)


@pytest.mark.clients
def test_khronos_rejects_most_invalid_documents() -> None:
    said = khronos_says([broken(text)[0] for _, text in BROKEN])
    assert Counter(rule for (rule, _), code in zip(BROKEN, said, strict=True) if not code) == _KHRONOS_READS


_WORDS = st.sampled_from(
    [*"xyzf[](),;=+-*<!:12", "2.5", "'a'", "true", "==", "&&", "if", "else", "for", "in", "yield", "shape_of", "scalar"]
)
_NAMES = st.sampled_from(["copy", "add", "conv", "split", "variable", "external", "update", "select", "axes", "<?>"])


@settings(deadline=None, max_examples=examples(400))
@given(st.lists(_WORDS | _NAMES, max_size=30), st.lists(_WORDS | _NAMES, max_size=12))
def test_any_document_has_findings_and_no_errors(graph: list[str], body: list[str]) -> None:
    text = document(
        f"y = copy(x);\n  {' '.join(graph)};",
        f"fragment f<?>(a: tensor<?>, n: integer = 1) -> (b: tensor<?>) {{ b = copy(a); c = {' '.join(body)}; }}\n",
    )
    try:
        parse(text.encode())
    except FormatError:
        return
    assert check(text).variables == 0


@pytest.mark.parametrize(
    "text",
    [
        document("y = " + "neg(" * 190 + "x" + ")" * 190 + ";"),
        document("y = " + "-" * 190 + "x;"),
        document("y = concat(" + "[" * 190 + "x" + "]" * 190 + ", axis = 0);"),
        document("y = " + "(" * 95 + "x if true else " * 95 + "x" + ")" * 95 + ";"),
        document("y = copy(x);\n  " + "[" * 190 + "z" + "]" * 190 + " = " + "[" * 190 + "x" + "]" * 190 + ";"),
        document("y = copy(x);\n  z = [" + ", ".join(["[[[[[[[x]]]]]]]"] * 3000) + "];"),
        fragment(
            "fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) { b = copy(a); t = ("
            + ", ".join("a" * 3000)
            + "); u = (" + ", ".join("a" * 3000) + "); v = [" + ", ".join(["t", "u"] * 3000) + "]; }"
        ),
        fragment("fragment f(" + ", ".join(f"a{k}: tensor<scalar>" for k in range(3000)) + ") -> (b: tensor<scalar>);")
        .replace("y = copy(x);", "y = copy(x);\n" + "".join(f"z{k} = f(x);\n" for k in range(3000))),
        body("b = copy(a);" + "".join(f"t{k} = ({u}, {u}, {u}); u{k} = ({u}, {u}, {u}); v{k} = [t{k}, u{k}];"
             for k, u in enumerate(["a", *(f"t{j}" for j in range(40))]))),
        flat("y = copy(x);" + "".join(f"\n  z{k} = add(q{k}, q{k});" for k in range(20000))),
    ],
    ids=["calls", "signs", "arrays", "conditions", "targets", "nested", "tuples", "parameters", "powers", "findings"],
)  # fmt: skip
def test_hostile_documents_take_linear_time(text: str) -> None:
    """If the check were not linear, some of these would take minutes or exhaust the interpreter's stack."""
    assert check(text).variables == 0


def test_a_shape_of_thousands_of_digits() -> None:
    """Python does not convert numbers of this size to text."""
    shape = ", ".join(["9" * 4000] * 2)
    (found,) = check(flat(f"y = constant(shape = [{shape}], value = [1.0, 2.0]);")).violations
    assert (found.rule, found.message) == ("argument-value", "2 values do not match the shape")
