"""T35: the text of a topology, which a parser has to read."""

from __future__ import annotations

import pytest

from nnr_codec.errors import FormatError
from nnr_codec.formats.nnef import dataflow, lexer, wiring
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.parser import parse

from .checks import pins
from .support import memory

PARSER, LEXER, CONSTANTS = "formats/nnef/parser.py", "formats/nnef/lexer.py", "formats/nnef/constants.py"
DATAFLOW = "formats/nnef/dataflow.py"


def document(body: str, fragments: str = "") -> bytes:
    return f"version 1.0; {fragments} graph g(x) -> (y) {{ {body} }}".encode()


def variable(shape: str, label: str = "'w'") -> bytes:
    return document(f"y = variable(shape = {shape}, label = {label});")


@pins(PARSER, "if self.depth > MAX_NESTING:")
def test_t35_brackets() -> None:
    with pytest.raises(FormatError, match="nested deeper than 200"):
        parse(document(f"y = {100_000 * '(['};"))


@pins(PARSER, "if height > MAX_NESTING:")
def test_t35_what_is_deep_without_brackets() -> None:
    """Whoever goes down the tree does so by recursion."""
    with pytest.raises(FormatError, match="nested deeper than 200"):
        parse_graph(variable(f"[{100_000 * '-'}1]"))


@pins(LEXER, "if self._tokens > MAX_TOKENS:")
def test_t35_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "MAX_TOKENS", 10_000)
    with memory() as used, pytest.raises(FormatError, match="more than 10,000 tokens"):
        parse(document(f"y = f([{200_000 * '1,'}1]);"))
    assert used.peak < 8 << 20


@pins(PARSER, 'if len(token.text) > _MAX_DIGITS and token.kind == "number":')
def test_t35_a_number_without_end() -> None:
    with pytest.raises(FormatError, match="more than 4000 digits"):
        parse(document(f"y = {100_000 * '9'};"))


@pins(CONSTANTS, "if len(left) * right > _MAX_STRING:")
@pytest.mark.parametrize("text", [variable("[1] * 100000000000000"), variable("[1]", "'w' * 100000000000000")])
def test_t35_repetitions(text: bytes) -> None:
    with pytest.raises(FormatError, match="too long"):
        parse_graph(text)


@pins(CONSTANTS, "if isinstance(value, int) and abs(value) >= _MAX_INTEGER:")
def test_t35_products() -> None:
    with pytest.raises(FormatError, match="too large"):
        parse_graph(variable(f"[{'99999999999 * ' * 20_000} 0 + 1]"))


@pins(DATAFLOW, "if depth > _MAX_DEPTH:")
def test_t35_a_fragment_of_itself() -> None:
    text = document("y = f(x);", "fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = f(x); }")
    assert wiring(text).blocks == ()


@pins(DATAFLOW, "if self.made > _MAX_VALUES:")
def test_t35_fragments_of_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow, "_MAX_VALUES", 10_000)
    fragments = "".join(
        f"fragment f{k}(x: tensor<scalar>) -> (y: tensor<scalar>) {{ y = f{k + 1}(x) + f{k + 1}(x); }}"
        for k in range(60)
    )
    assert wiring(document("y = f0(x);", fragments)).blocks == ()
