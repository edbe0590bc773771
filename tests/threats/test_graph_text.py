"""T35: the text of a topology, which a parser must read."""

from __future__ import annotations

from time import process_time

import pytest

from nnr_codec.errors import FormatError
from nnr_codec.formats import nnef
from nnr_codec.formats.nnef import dataflow, lexer
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.parser import parse
from nnr_codec.formats.nnef.validate import validate_texts
from nnr_codec.model import Topology, Wiring

from .support import memory

pytestmark = pytest.mark.medium


def document(body: str, fragments: str = "") -> bytes:
    return f"version 1.0; {fragments} graph g(x) -> (y) {{ {body} }}".encode()


def wiring(text: bytes) -> Wiring:
    return nnef.wiring(Topology("nnef", text))


def variable(shape: str, label: str = "'w'") -> bytes:
    return document(f"y = variable(shape = {shape}, label = {label});")


def test_t35_brackets() -> None:
    with pytest.raises(FormatError, match="nested deeper than 200"):
        parse(document(f"y = {100_000 * '(['};"))


def test_t35_depth_without_brackets() -> None:
    """Functions that walk the tree are recursive."""
    with pytest.raises(FormatError, match="nested deeper than 200"):
        parse_graph(variable(f"[{100_000 * '-'}1]"))


def test_t35_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "MAX_TOKENS", 10_000)
    with memory() as used, pytest.raises(FormatError, match="more than 10,000 tokens"):
        parse(document(f"y = f([{200_000 * '1,'}1]);"))
    assert used.peak < 8 << 20


def test_t35_a_number_without_end() -> None:
    with pytest.raises(FormatError, match="more than 4000 digits"):
        parse(document(f"y = {100_000 * '9'};"))


@pytest.mark.parametrize("text", [variable("[1] * 100000000000000"), variable("[1]", "'w' * 100000000000000")])
def test_t35_repetitions(text: bytes) -> None:
    with pytest.raises(FormatError, match="too long"):
        parse_graph(text)


def test_t35_products() -> None:
    with pytest.raises(FormatError, match="too large"):
        parse_graph(variable(f"[{'99999999999 * ' * 20_000} 0 + 1]"))


def test_t35_a_fragment_of_itself() -> None:
    text = document("y = f(x);", "fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = f(x); }")
    assert wiring(text).blocks == ()


SCALAR = "(x: tensor<scalar>) -> (y: tensor<scalar>)"


def calls(body: str, count: int) -> bytes:
    """Return a document that calls a fragment with this body."""
    return document("".join(f"y{k} = f(x);" for k in range(count)), f"fragment f{SCALAR} {{ {body} y = x; }}")


@pytest.mark.parametrize(
    "text",
    [
        # None of these makes a value.
        document(
            "y = f40(x);",
            f"fragment f0{SCALAR} {{ y = x; }}"
            + "".join(f"fragment f{k}{SCALAR} {{ a = f{k - 1}(x); y = f{k - 1}(a); }}" for k in range(1, 41)),
        ),
        calls("".join(f"a{k} = x;" for k in range(2000)), 5_000),
        calls(f"a = !g({2000 * 'x, '}x);", 5_000),
        calls(f"a = [{2000 * '1, '}1];", 5_000),
    ],
    ids=["calls", "names", "unknown", "literals"],
)
def test_t35_fragments_of_fragments(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow, "MAX_WORK", 10_000)
    with memory() as used:
        assert wiring(text).blocks == ()
    assert used.peak < 32 << 20


def test_t35_long_names() -> None:
    """A name that is written once may be repeated in messages for every call."""
    with pytest.raises(FormatError, match="more than 4096 characters"):
        parse(document("y = f(x);", f"fragment f({5000 * 'p'}: tensor<scalar>) -> (y: tensor<scalar>);"))


def test_t35_numbers_that_no_float_is() -> None:
    variables = "".join(f"{k} = variable(shape = [{1 + (k == 'w')}, 2], label = '{k}');" for k in "wmvos")
    call = f"y = batch_normalization(linear(x, w, 0.0), m, v, o, s, epsilon = 1{400 * '0'});"
    (block,) = wiring(document(variables + call)).blocks
    assert (block.gamma, block.epsilon) == ("s", None)


_INPUT = "x = external(shape = [2, 3]);"
_LONG = f"[{60_000 * '1,'}1]"
_SELF = """fragment f(a: tensor<scalar>, n: integer) -> (b: tensor<scalar>)
{ b = f(f(a, n = n - 1), n = n - 1) if n > 0 else a; }"""


def fragment(body: str) -> str:
    return f"fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) {{ {body} }}"


#: Graphs whose evaluation would not end: fragments, and assignments.
EVALUATED = {
    "fragments": (
        "".join(f"fragment f{n}{SCALAR} {{ y = f{n + 1}(x) + f{n + 1}(x); }}" for n in range(60))
        + f"fragment f60{SCALAR} {{ y = copy(x); }}",
        "y = f0(x);",
    ),
    "recursion": (_SELF, "y = f(x, n = 1000000);"),
    "loops": ("", f"y = add_n({20 * '[for q in range_of([0] * 60000) yield add_n('}[x]{20 * ')]'});"),
    "loops over short arrays": ("", f"v = [x] * 60; y = add_n({5 * '[for q in v yield add_n('}[x]{5 * ')]'});"),
    "repeated arrays": ("", "y = copy(x);" + "z = length_of([x] * 60000);" * 999),
    "joined arrays": ("", "y = copy(x); v = [x] * 30000;" + "z = length_of(v + v);" * 999),
    "slices of arrays": ("", "y = copy(x); v = [x] * 60000;" + "z = length_of(v[1:]);" * 999),
    "uses of a long array": ("", "y = copy(x); v = [x] * 60000;" + "z = add_n(v);" * 999),
    "ranges": ("", f"y = copy(x); c = {_LONG};" + "z = range_of(c);" * 999),
    "loops over long arrays": ("", f"y = copy(x); c = {_LONG};" + "z = [for q in c + [2] if q > 1 yield x];" * 99),
    "doubled arrays": (
        fragment(
            "c0 = [1];"
            + "".join(f"c{n + 1} = [c{n}, c{n}];" for n in range(200))
            + "b = reshape(a, shape = [2, 3] if c200 == c199 else [6]);"
        ),
        "y = f(x);",
    ),
    "large numbers": ("", f"y = copy(x); z = copy(x); {999 * 'z = tile(z, repeats = [2 ^ 63, 2]);'}"),
    "high ranks": ("", f"y = unsqueeze(x, axes = [0]); {5000 * 'y = unsqueeze(y, axes = [0]);'}"),
    "comparisons": (fragment(f"c = {_LONG}; {2000 * 'b = a if 2 in c else a;'}"), "y = f(x);"),
    "arguments": ("", f"y = copy(x); c = {_LONG}; {3000 * 'z = reshape(x, shape = c);'}"),
    "arrays of arrays": ("", f"y = copy(x); c = [1] * 30000; {9999 * 'z = [c];'}"),
    "parts": ("", f"y = copy(x); v = variable(shape = [65536, 1], label = 'v'); {99 * 'z = unstack(v, axis = 0);'}"),
    "texts": ("", "y = copy(x);" + 999 * "z = length_of('a' * 65000 + 'b');"),
    "copies": ("", f"y = copy(x); {99 * 'z = copy_n(x, times = 65536);'} w = copy_n(x, times = 1000000000);"),
}  # fmt: skip


@pytest.mark.parametrize("name", EVALUATED)
def test_t35_evaluation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments, loops and arrays are charged before they are expanded."""
    monkeypatch.setattr(dataflow, "MAX_WORK", 20_000)
    fragments, body = EVALUATED[name]
    text = document(_INPUT + body, fragments)
    validate_texts(text)
    with memory() as used:
        wiring(text)
    assert used.peak < 20_000 * 1000 + 200 * len(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALUATED)
def test_t35_evaluation_with_the_default_limit(name: str) -> None:
    fragments, body = EVALUATED[name]
    start = process_time()
    validate_texts(document(_INPUT + body, fragments))
    assert process_time() - start < 30


@pytest.mark.parametrize("name", ["fragments", "recursion", "loops"])
def test_t35_shapes_beyond_the_limit(name: str) -> None:
    fragments, body = EVALUATED[name]
    head = "extension KHR_enable_fragment_definitions; extension KHR_enable_operator_expressions;"
    report = validate_texts(document(_INPUT + body, head + fragments))
    assert ([note.rule for note in report.notes], report.violations) == (["shape-limit"], [])
