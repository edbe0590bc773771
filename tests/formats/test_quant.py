"""Tests of the reader of ``graph.quant``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.nnef.parser import parse
from nnr_codec.formats.nnef.quant import doubtful, identifiers_of, read_quantization
from nnr_codec.formats.nnef.tree import Array, Literal
from nnr_codec.limits import Limits

from ..shared import SHARED, needs_shared
from .support import minimal, write_folder

_ENTRY = b'"v0": min_max_linear_quantize(min = 0.0, max = 1.0, bits = 8, signed = false, symmetric = false);\n'


def test_entries() -> None:
    read = read_quantization(
        b'# a comment; and "no": entry();\n'
        b"'a' : linear_quantize ( min = -1.5, max = 2e3,\n bits = 8 ) ; \"b\": f(s = 'x', z = [1, [2.0]], t = true);"
    )
    first, second = read.entries
    assert [(first.tensor, first.call.operation.name), (second.tensor, second.call.operation.name)] == [
        ("a", "linear_quantize"),
        ("b", "f"),
    ]
    assert [argument.name and argument.name.name for argument in second.call.arguments] == ["s", "z", "t"]
    values = [argument.value for argument in second.call.arguments]
    assert isinstance(values[0], Literal) and values[0].value == "x"
    assert isinstance(values[1], Array)
    assert read.tensors == {"a", "b"}
    assert read.text.place(second.start) == (3, 15)


def test_an_empty_file() -> None:
    assert read_quantization(b" # nothing\n").entries == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: f(x = 1);", r"quant:1:1: expected a tensor in quotes, found 'a' \(NNEF 1.0, 5.3\)"),
        (b"'a' f(x = 1);", r"quant:1:5: expected ':', found 'f' \(NNEF 1.0, 5.3\)"),
        (b"'a': 3;", "quant:1:6: expected a name, found '3'"),
        (b"'a': f;", "quant:1:7: expected '\\('"),
        (b"'a': f(x = 1)", "quant:1:14: expected ';', found the end"),
        (b"\n'a': f(x = 1;", "quant:2:13: "),
        (b"'a: f(x = 1);", "quant:1:1: an unterminated string"),
        (b"'a': f(x = @);", "quant:1:12: unexpected character '@'"),
        (b"'a': for(x = 1);", "quant:1:6: .*keyword"),
        (b"'a': f(x = " + b"[" * 300 + b"]" * 300 + b");", "nested deeper"),
        (b"'a': f();\0", "byte 9 is NUL"),
        (b"'\xff': f();", "byte 1 is not UTF-8"),
    ],
)
def test_malformed_files(text: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_quantization(text)


def test_limits() -> None:
    with pytest.raises(LimitError, match=r"graph\.quant"):
        read_quantization(_ENTRY, Limits(max_topology_bytes=10))


def test_entries_that_are_of_no_use() -> None:
    document = parse(b"version 1.0; graph g(x) -> (y) { x = external(shape = [1]); [a, (b, y)] = f(x); }")
    assert identifiers_of(document) == {"x", "a", "b", "y"}
    read = read_quantization(b"'a': f(); 'q': f(); 'a': f(); 'b': f(); 'q': f();")
    assert [(rule, entry.start) for rule, _, entry in doubtful(read, identifiers_of(document))] == [
        ("quant-identifier", 10),
        ("quant-unique", 20),
        ("quant-unique", 40),
    ]


def test_a_model_keeps_the_text_and_warns_of_entries_of_no_use(tmp_path: Path) -> None:
    text = _ENTRY + b"# z\n'nobody' : f(\n);"
    folder = write_folder(tmp_path / "m", {**minimal(), "graph.quant": text})
    with pytest.warns(formats.FormatWarning, match=r"graph\.quant lists unknown or repeated identifiers: 'nobody'$"):
        model = formats.load(folder)
    assert model.topology and model.topology.quantization == text
    assert isinstance(model["a/w"], np.ndarray)


def test_a_model_with_a_malformed_one_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**minimal(), "graph.quant": b"'v0': f(;"})
    with pytest.raises(FormatError, match=r"graph\.quant:1:9: "):
        formats.load(folder)


@needs_shared
def test_all_of_the_corpus_are_read() -> None:
    assert SHARED
    files = [*(SHARED / "nnef_corpus").rglob("graph.quant"), *(SHARED / "models").rglob("graph.quant")]
    assert sorted(len(read_quantization(path.read_bytes()).entries) for path in files) == [2, 2, 2, 2, 2, 2, 4, 20, 20]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["'a'", '"b"', ":", "f", "(", ")", ";", "x", "=", "1", "-", "[", "]", ",", "#", "\n"])))
def test_any_text_is_read_or_refused(tokens: list[str]) -> None:
    try:
        read_quantization(" ".join(tokens).encode())
    except FormatError as error:
        assert "graph.quant:" in str(error)
