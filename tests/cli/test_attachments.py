"""Attachments in nnr encode, nnr decode and nnr ls."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a model with a configuration and a program, in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m"
    (path / "1_Pooling").mkdir(parents=True)
    nnr.save({"w": np.ones((8, 8), np.float32)}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    (path / "1_Pooling" / "config.json").write_text("{}")
    (path / "m.py").write_text("pass")
    return path


def test_a_folder_becomes_a_bitstream_and_a_folder(folder: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", folder, "-o", "m.nnr")
    assert (result.code, "files are left out: 'm.py'" in result.err) == (0, True)
    assert "2 attachments: 'config.json', '1_Pooling/config.json'" in result.err
    for target in ("out", "folder/"):
        assert call(capsys, "decode", "m.nnr", "-o", target).code == 0
        assert sorted(os.listdir(target)) == ["1_Pooling", "config.json", "model.safetensors"]
    assert call(capsys, "decode", "m.nnr", "-o", "out").code == 5
    assert call(capsys, "decode", "m.nnr", "-o", "out", "-f").code == 0
    os.rename("m.nnr", "n.nnr")
    assert call(capsys, "decode", "n.nnr", "--to", "npz").code == 0
    assert sorted(os.listdir("n")) == ["1_Pooling", "config.json", "model.npz"]
    result = call(capsys, "decode", "n.nnr", "-o", "w.safetensors")
    assert (result.code, "attachments are left out: 'config.json', " in result.err) == (0, True)


def test_several_bitstreams_become_folders_in_a_folder(folder: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        assert call(capsys, "encode", folder, "-o", f"{name}.nnr").code == 0
    assert call(capsys, "decode", "a.nnr", "b.nnr", "-o", "all/").code == 0
    assert [os.path.isfile(f"all/{name}/config.json") for name in ("a", "b")] == [True, True]


def test_programs_are_attached_on_request(folder: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", folder, "-o", "m.nnr", "--attach", "*.py", "--strict")
    assert (result.code, "left out" in result.err) == (0, False)
    result = call(capsys, "decode", "m.nnr", "-o", "out")
    assert (result.code, "files that can run code when they are loaded: 'm.py'" in result.err) == (0, True)
    assert call(capsys, "encode", folder, "-o", "n.nnr", "--no-attachments", "--no-side-info").code == 0
    assert not nnr.open("n.nnr").attachments


def test_ls(folder: Path, capsys: Capture) -> None:
    call(capsys, "encode", folder, "-o", "m.nnr")
    assert call(capsys, "ls", "m.nnr").out.splitlines()[-1].startswith("2 attachments, 4 -> 104 bytes: 'config.json', ")
    assert [row["name"] for row in json.loads(call(capsys, "ls", "m.nnr", "--json").out)] == ["w"]
    *rows, total = call(capsys, "ls", "m.nnr", "--attachments").out.splitlines()
    assert [row.split() for row in rows[:2]] == [["name", "bytes", "coded"], ["config.json", "2", "47"]]
    assert total == "2 attachments; the tensors are from model.safetensors"
    found = json.loads(call(capsys, "ls", "m.nnr", "--attachments", "--json").out)
    assert found[1] == {"name": "1_Pooling/config.json", "bytes": 2, "coded_bytes": 57}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encode", "m", "--attach", "*.zip"), "no file of the folder that can be attached matches '*.zip'"),
        (("encode", "m", "--attach", "*.py", "--no-attachments"), "--attach and --no-attachments cannot be combined"),
        (("encode", "m/model.safetensors", "--attach", "*.py"), "--attach requires a folder as MODEL"),
        (("encode", "m", "--strict"), "files are left out: 'm.py'"),
        (("encode", "m", "--no-side-info"), "attachments, which are not part of the standard"),
        (("ls", "m.nnr", "--attachments", "--maps"), "--maps and --attachments cannot be combined"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], message: str, folder: Path, capsys: Capture) -> None:
    output = ("-o", "x.nnr") if arguments[0] == "encode" else ()
    result = call(capsys, *arguments, *output)
    assert result.code != 0
    assert message in result.err
    assert not os.path.exists("x.nnr")


@pytest.mark.parametrize("name", ["../x", "CON", "model.safetensors"])
def test_bad_bitstreams(name: str, folder: Path, capsys: Capture) -> None:
    data = nnr.encode(nnr.Model({"w": np.ones((8, 8), np.float32)}, attachments={len(name) * "n": b"x"}))
    Path("m.nnr").write_bytes(data.replace(len(name) * b"n", name.encode()))
    result = call(capsys, "decode", "m.nnr", "-o", "out")
    assert (result.code, len(result.err.splitlines())) == (3, 1)
    assert not os.path.exists("out")
