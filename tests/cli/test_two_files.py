"""Tests of nnr encode and decode with models of more than one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from ..formats.irs import const, ir, pair, put
from ..formats.support import dat, tree, write_folder
from .support import call

Capture = pytest.CaptureFixture[str]

WEIGHT = np.random.default_rng(5).normal(size=(8, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    layers = const("w", 0, 256, "f32", (8, 8)), const("n", 256, 16, "i64", (2,))
    return put(tmp_path, ir(*layers), WEIGHT.tobytes() + np.array([-1, 8], "<i8").tobytes())


def test_openvino(model: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", model, "-o", "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "out.xml").code == 0
    assert pair(Path("out.xml")) == pair(model)
    again = call(capsys, "decode", "m.nnr", "-o", "out.xml")
    assert again.code != 0
    assert "exists" in again.err
    assert call(capsys, "decode", "m.nnr", "-o", "out.xml", "-f").code == 0
    assert "int64" in call(capsys, "ls", "m.nnr").out


@pytest.mark.parametrize("command", [["encode"], ["update", "encode", "--base", "base.xml"]])
def test_no_output_replaces_the_weights_of_an_input(model: Path, capsys: Capture, command: list[str]) -> None:
    weights = model.with_suffix(".bin").read_bytes()
    put(model.parent, model.read_bytes(), weights, "base")
    for name in ("m.bin", "base.bin") if "update" in command else ("m.bin",):
        refused = call(capsys, *command, model, "-o", name, "-f")
        assert refused.err == f"nnr: error: {name} is a file of an input model; write to another name\n"
        assert (refused.code, (model.parent / name).read_bytes() == weights) == (5, True)


def test_no_output_replaces_a_file_in_the_folder_of_an_input(tmp_path: Path, capsys: Capture) -> None:
    folder = write_folder(tmp_path / "net", {"main.sknd": b"graph G { }", "w.dat": dat(WEIGHT)})
    for name in ("main.sknd", "w.dat"):
        refused = call(capsys, "encode", folder, "-o", folder / name, "-f")
        assert (refused.code, "is an input; write to another name" in refused.err) == (5, True)
    assert (folder / "w.dat").read_bytes() == dat(WEIGHT)
    nnr.encode_file({"w": WEIGHT}, folder / "w.nnr")  # an earlier output
    assert "is an input" not in call(capsys, "encode", folder, "-o", folder / "w.nnr", "-f").err


def test_openvino_without_a_part(model: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", model, "-o", "m.nnr").code == 0
    cast = call(capsys, "decode", "m.nnr", "-o", "out.xml", "--dtype", "float16")
    assert cast.code != 0
    assert "'w' is float16; the XML says float32 [8, 8]; omit --dtype (dtype=)" in cast.err
    only = call(capsys, "decode", "m.nnr", "-o", "out.xml", "--only", "w")
    assert only.code != 0
    assert "--only omits tensors" in only.err
    model.with_suffix(".bin").unlink()
    missing = call(capsys, "encode", model, "-o", "n.nnr")
    assert missing.code != 0
    assert "the file of weights 'm.bin' is missing" in missing.err
    assert not list(Path().glob("out.*"))
    assert not Path("n.nnr").exists()


def test_openvino_whose_text_is_kept_apart(model: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", model, "-o", "m.nnr", "--lossless", "--topology", "external").code == 0
    model.with_suffix(".bin").unlink()
    refused = call(capsys, "decode", "m.nnr", "-o", "out.xml")
    assert refused.code != 0
    assert "--topology" in refused.err
    assert call(capsys, "decode", "m.nnr", "-o", "out.xml", "--topology", model).code == 0
    assert Path("out.bin").stat().st_size == 272


def test_skriptnd(tmp_path: Path, capsys: Capture) -> None:
    text = b"graph G { @variable { w: real[8, 8]; } }"
    files = {"main.sknd": text, "a/b.sknd": b"# nothing", "w.dat": dat(WEIGHT)}
    folder = write_folder(tmp_path / "net", files)
    assert call(capsys, "encode", folder, "-o", "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "out.sknd").code == 0
    assert tree(Path("out.sknd")) == files
    assert call(capsys, "decode", "m.nnr", "-o", "out.sknd").code != 0
    assert call(capsys, "decode", "m.nnr", "-o", "out.sknd", "-f").code == 0
    listed = call(capsys, "decode", "m.nnr", "-o", "w.npz")
    assert "topology" in listed.err
    assert nnr.load("w.npz")["w"].tobytes() == WEIGHT.tobytes()
    strict = call(capsys, "encode", write_folder(folder, {"x.txt": b""}), "-o", "n.nnr", "--strict")
    assert strict.code != 0
    assert "would be lost: 'x.txt'" in strict.err
