"""Names of outputs without -o, and with a folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import call

Capture = pytest.CaptureFixture[str]

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.nnef"


def files(folder: str = ".") -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a.npz and b.safetensors to the current folder; metadata let the bitstream of b state its format."""
    monkeypatch.chdir(tmp_path)
    tensors = {"w": np.linspace(-1, 1, 64, dtype="f4").reshape(8, 8)}
    nnr.save(tensors, "a.npz")
    nnr.save(nnr.Model(tensors, metadata={"author": "somebody"}), "b.safetensors")
    return tmp_path


def test_outputs_are_beside_inputs_in_the_format_of_the_source(models: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", "a.npz", "b.safetensors").code == 0
    assert files() == ["a.nnr", "a.npz", "b.nnr", "b.safetensors"]
    Path("b.safetensors").unlink()
    assert call(capsys, "decode", "b.nnr").code == 0
    assert files() == ["a.nnr", "a.npz", "b.nnr", "b.safetensors"]


def test_outputs_go_into_a_folder_that_is_created(models: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", "a.npz", "b.safetensors", "-o", "out/").code == 0
    assert call(capsys, "decode", "out/a.nnr", "out/b.nnr", "-o", "out", "--to", "npz").code == 0
    assert call(capsys, "decode", "out/b.nnr", "-o", "out").code == 0
    assert files("out") == ["a.nnr", "a.npz", "b.nnr", "b.npz", "b.safetensors"]


def test_the_format_of_a_graph_is_known_without_side_information(models: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", DIGITS, "-o", "digits.nnr").code == 0
    assert call(capsys, "decode", "digits.nnr").code == 0
    assert Path("digits.nnef").exists()


def test_an_existing_default_output_is_not_replaced(models: Path, capsys: Capture) -> None:
    Path("a.nnr").write_text("precious")
    assert call(capsys, "encode", "a.npz").err == "nnr: error: a.nnr exists; use -f to replace it\n"
    assert Path("a.nnr").read_text() == "precious"
    assert call(capsys, "encode", "a.npz", "-f").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "a.npz", "b.safetensors", "-o", "x.nnr"], "2 models require an output folder"),
        (["encode", "a.npz", "./a.npz", "-o", "out/"], "is the file of two outputs"),
        (["encode", "-"], "give -o"),
        (["decode", "a.nnr", "b.nnr", "-o", "x.npz"], "2 bitstreams require an output folder"),
    ],
)
def test_what_has_no_place_is_a_mistake(models: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    result = call(capsys, *arguments)
    assert (result.code, message in result.err) == (2, True)
    assert files() == ["a.npz", "b.safetensors"] + (["out"] if "out/" in arguments else [])


def test_a_bitstream_that_does_not_say_its_format(models: Path, capsys: Capture) -> None:
    Path("x.nnr").write_bytes(nnr.encode({"w": np.ones((2, 2), "f4")}))
    result = call(capsys, "decode", "x.nnr")
    assert result.code == 2
    assert "x.nnr does not state the format of its model; give -o with a file extension, or --to" in result.err


def test_a_folder_keeps_the_dot_in_its_name(models: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net-3.1-8B").mkdir()
    Path("b.safetensors").rename("net-3.1-8B/model.safetensors")
    assert call(capsys, "encode", "net-3.1-8B").code == 0
    Path("net-3.1-8B.nnr").rename("other.nnr")
    monkeypatch.chdir("net-3.1-8B")
    assert call(capsys, "encode", ".").code == 0
    assert (files(), files("..")) == (["model.safetensors"], ["a.npz", "net-3.1-8B", "net-3.1-8B.nnr", "other.nnr"])


def test_a_decoded_model_does_not_replace_another_one(models: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", "a.npz").code == 0
    assert call(capsys, "encode", "b.safetensors", "-o", "other/").code == 0
    Path("other/b.nnr").rename("other/a.nnr")
    result = call(capsys, "decode", "a.nnr", "other/a.nnr", "-o", "out/", "--to", "npz", "-f")
    assert (result.code, "out/a.npz is the file of two outputs; use other names" in result.err) == (2, True)


def test_a_default_output_does_not_replace_the_topology(models: Path, capsys: Capture) -> None:
    nnr.save(nnr.load(DIGITS), "digits.nnef")
    nnr.encode_file("digits.nnef", "digits.nnr", topology="external")
    result = call(capsys, "decode", "digits.nnr", "--topology", "digits.nnef", "-f")
    assert (result.code, result.err) == (5, "nnr: error: digits.nnef is an input; write to another name\n")


@pytest.mark.parametrize("options", [["-o", "a.npz/"], ["-o", "known.npz", "--sensitivity", "known.npz"]])
def test_an_output_does_not_replace_an_input(models: Path, capsys: Capture, options: list[str]) -> None:
    nnr.save({"w": np.ones((8, 8))}, "known.npz")
    result = call(capsys, "encode", "a.npz", *options, "-f")
    assert (result.code, result.err) == (
        5,
        f"nnr: error: {options[1].rstrip('/')} is an input; write to another name\n",
    )
    assert list(nnr.load(options[1].rstrip("/"))) == ["w"]
