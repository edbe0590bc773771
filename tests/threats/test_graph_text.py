"""T35: the text of a topology, which a parser has to read."""

from __future__ import annotations

import pytest

from nnr_codec.errors import FormatError
from nnr_codec.formats import nnef
from nnr_codec.formats.nnef import dataflow, lexer
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.parser import parse
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


def test_t35_what_is_deep_without_brackets() -> None:
    """Whoever goes down the tree does so by recursion."""
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
    """A document that calls a fragment of this body."""
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
        calls("".join(f"a{k} = x;" for k in range(2000)), 10_000),
        calls(f"a = !g({2000 * 'x, '}x);", 10_000),
        calls(f"a = [{2000 * '1, '}1];", 10_000),
    ],
    ids=["calls", "names", "unknown", "literals"],
)
def test_t35_fragments_of_fragments(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow, "_MAX_INLINED", 10_000)
    with memory() as used:
        assert wiring(text).blocks == ()
    assert used.peak < 32 << 20


def test_t35_long_names() -> None:
    """A name that is written once may be told for every call."""
    with pytest.raises(FormatError, match="more than 4096 characters"):
        parse(document("y = f(x);", f"fragment f({5000 * 'p'}: tensor<scalar>) -> (y: tensor<scalar>);"))


def test_t35_numbers_that_no_float_is() -> None:
    variables = "".join(f"{k} = variable(shape = [{1 + (k == 'w')}, 2], label = '{k}');" for k in "wmvos")
    call = f"y = batch_normalization(linear(x, w, 0.0), m, v, o, s, epsilon = 1{400 * '0'});"
    (block,) = wiring(document(variables + call)).blocks
    assert (block.gamma, block.epsilon) == ("s", None)
