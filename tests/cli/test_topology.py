"""Tests of ``--topology``: a bitstream and its graph in separate files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT

from ..builder import Bitstream, ndu
from .support import DIGITS, call

Capture = pytest.CaptureFixture[str]

VALUES = np.arange(6).reshape(2, 3)
GRAPH = """version 1.0;
graph g(x) -> (y)
{
    x = external(shape = [1, 3]);
    w = variable(shape = [2, 3], label = 'w');
    b = variable(shape = [1, 2], label = 'b');
    y = linear(x, w, b);
}
"""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Write to a new folder a bitstream whose w has no dimensions, and the graph."""
    monkeypatch.chdir(tmp_path)
    stream = Bitstream({"w": [2, 3]}).str_().mps()
    stream.ndu(ndu("w", None), VALUES).ndu(ndu("b", [2]), [7, 8])
    Path("w.nnr").write_bytes(stream.data)
    Path("g.txt").write_text(GRAPH)
    return tmp_path


def test_decode(apart: Path, capsys: Capture) -> None:
    result = call(capsys, "decode", "w.nnr", "-o", "m.nnef", "--topology", "g.txt")
    assert (result.code, result.out) == (0, "")
    assert Path("m.nnef/graph.nnef").read_text() == GRAPH
    assert nnr.load("m.nnef")["b"].tolist() == [[7, 8]]
    Path("m.nnef/graph.quant").write_text("'w': zero_point_linear_quantize(zero_point = 0, scale = 1.0, bits = 8);\n")
    assert call(capsys, "decode", "w.nnr", "-o", "again.nnef", "--topology", "m.nnef").code == 0
    assert Path("again.nnef/graph.quant").read_bytes() == Path("m.nnef/graph.quant").read_bytes()
    assert call(capsys, "decode", "w.nnr", "-o", "m.npz", "--topology", "again.nnef/graph.nnef").code == 0
    assert nnr.load("m.npz")["w"].tolist() == VALUES.tolist()


def test_without_topology(apart: Path, capsys: Capture) -> None:
    Path("b.nnr").write_bytes(Bitstream().str_().mps().ndu(ndu("b", [2]), [7, 8]).data)
    result = call(capsys, "decode", "b.nnr", "-o", "m.nnef")
    assert result.code == 3
    assert result.err == (
        "nnr: error: b.nnr: a model of nnef requires a graph of nnef; this one has none; give one (topology=, "
        "--topology), or write a .safetensors or .npz file\n"
    )
    result = call(capsys, "decode", "w.nnr", "-o", "m.npz")
    assert result.code == 3
    assert "the dimensions of 'w' are neither in the bitstream nor in a topology; give the topology" in result.err
    assert not Path("m.nnef").exists()


@pytest.mark.parametrize(
    ("was", "then", "message"),
    [
        (
            "[2, 3]",
            "[3, 2]",
            "1 of 2 tensors have different shapes: 'w' is (2, 3), declared as (3, 2) in graph.nnef:5",
        ),
        ("'b'", "'c'", "1 of 2 tensors are not among its variables: 'b'"),
        (
            "b = variable(",
            "b = variable<integer>(",
            "1 of 2 tensors have different types: 'b' is float32",
        ),
        (
            "    y =",
            "    c = variable(shape = [1], label = 'c');\n    y =",
            "incomplete: 2 of 3 tensors; 'c' missing",
        ),
    ],
)
def test_a_topology_that_does_not_fit(apart: Path, capsys: Capture, was: str, then: str, message: str) -> None:
    data = Bitstream().str_().mps().ndu(ndu("w", [2, 3]), VALUES).ndu(ndu("b", [2]), [7, 8]).data
    Path("w.nnr").write_bytes(data)
    Path("g.txt").write_text(GRAPH.replace(was, then))
    result = call(capsys, "decode", "w.nnr", "-o", "m.nnef", "--topology", "g.txt")
    assert result.code == 3
    assert result.err.startswith("nnr: error: w.nnr: ")
    advice = "" if message.startswith("incomplete") else "; use the topology of the encoded model"
    assert result.err.endswith(f"{message}{advice}\n")
    assert result.err.count("\n") == 1
    assert not Path("m.nnef").exists()


def test_invalid_topologies(apart: Path, capsys: Capture) -> None:
    np.savez("m.npz", w=VALUES)
    result = call(capsys, "decode", "w.nnr", "-o", "m.nnef", "--topology", "m.npz")
    assert (result.code, result.err) == (
        3,
        "nnr: error: m.npz has no topology; give a graph.nnef or a model with a topology\n",
    )
    assert call(capsys, "decode", "w.nnr", "-o", "m.nnef", "--topology", "nothing.txt").code == 5
    assert call(capsys, "decode", "w.nnr", "-o", "m.nnef", "--topology", "w.nnr").code == 3


def test_standard_input(apart: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(GRAPH.encode())

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Input())
    assert call(capsys, "decode", "w.nnr", "-o", "m.nnef", "--topology", "-").code == 0
    result = call(capsys, "decode", "-", "-o", "other.nnef", "--topology", "-")
    assert result.code == 2
    assert "only one file can be standard input" in result.err


def test_commands_that_read(apart: Path, capsys: Capture) -> None:
    for command in ("ls", "inspect", "verify"):
        assert call(capsys, command, "w.nnr", "--topology", "g.txt").code == 0
        assert call(capsys, command, "w.nnr").code in (1, 3)
    rows = json.loads(call(capsys, "ls", "w.nnr", "--topology", "g.txt", "--json").out)
    assert [(row["name"], row["shape"]) for row in rows] == [("w", [2, 3]), ("b", [2])]
    for options in (("--all",), ("--requirements",), ("--all", "--bins"), ("--payloads",), ("--json",)):
        result = call(capsys, "inspect", "w.nnr", "--topology", "g.txt", *options)
        assert result.code == 0
        assert result.out
    digests = call(capsys, "verify", "w.nnr", "--topology", "g.txt", "--digest")
    assert json.loads(digests.out)
    Path("v.nnr").write_bytes(Bitstream({"w": [2, 3]}).str_().mps().ndu(ndu("w", None), VALUES + 1).data)
    result = call(capsys, "diff", "w.nnr", "v.nnr", "--topology", "g.txt")
    assert result.code == 1
    assert "'w'[0, 0]: 0.0 and 1.0" in result.out
    assert call(capsys, "diff", "w.nnr", "w.nnr", "--topology", "g.txt", "--decoded").code == 0


def test_verify_checks_the_shapes_of_a_given_graph(apart: Path, capsys: Capture) -> None:
    Path("g.txt").write_text(GRAPH.replace("x = external(shape = [1, 3])", "x = external(shape = [1, 4])"))
    result = call(capsys, "verify", "w.nnr", "--topology", "g.txt")
    assert result.code == 1
    assert "graph.nnef:7:19: linear: the inner dimensions of input [1, 4] and filter [2, 3] are 4 and 3" in result.out
    assert result.out.endswith("1 bitstream, 1 violation, 0 warnings\n")


def test_dimensions_in_the_graph_that_is_carried(apart: Path, capsys: Capture) -> None:
    stream = Bitstream({"w": [2, 3]}).str_().mps()
    stream.topology(GRAPH.encode() + b"\0").ndu(ndu("w", None, kind=NNR_PT_INT), VALUES).ndu(ndu("b", [2]), [7, 8])
    Path("m.nnr").write_bytes(stream.data)
    for command in ("ls", "inspect"):
        result = call(capsys, command, "m.nnr")
        assert result.code == 0
        assert "2x3" in result.out
    assert call(capsys, "inspect", "m.nnr", "--all", "--payloads").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "m.nnef").code == 0


def test_there_and_back(apart: Path, capsys: Capture) -> None:
    nnr.encode_file(DIGITS, "digits.nnr", topology="external", exact=True)
    assert call(capsys, "decode", "digits.nnr", "-o", "digits.nnef").code == 3
    assert call(capsys, "decode", "digits.nnr", "-o", "digits.nnef", "--topology", DIGITS).code == 0
    one, other = nnr.load(DIGITS), nnr.load("digits.nnef")
    assert one.topology == other.topology
    for name, array in one.tensors.items():
        assert array.tobytes() == other[name].tobytes()
