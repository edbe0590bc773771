"""Tests of nnr encode --resume, nnr decode --resume: a process is killed, and the same command runs again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

from .support import COMMAND, call, process

Capture = pytest.CaptureFixture[str]


def killed(folder: str, parts: int, *arguments: object) -> None:
    """Run a command until it has kept this number of parts, and kill it."""
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stderr=subprocess.DEVNULL) as running:
        until = time.monotonic() + 60
        while not (os.path.isdir(folder) and len(os.listdir(folder)) >= parts):
            assert running.poll() is None, "it was done before it was killed"
            assert time.monotonic() < until
            time.sleep(0.002)
        running.kill()
    assert running.returncode == -signal.SIGKILL


@pytest.mark.medium
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.slow
def test_the_same_command_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    np.savez("m.npz", **{f"w{k}": rng.normal(0, 0.1, (400, 500)).astype("f4") for k in range(24)})
    command: list[Any] = ["encode", "m.npz", "-o", "m.nnr", "--resume", "-v"]
    killed("m.nnr.parts", 6, *command)  # options and the first units
    assert not os.path.exists("m.nnr")
    before = {path.name: path.stat().st_mtime_ns for path in Path("m.nnr.parts").iterdir()}
    killed("m.nnr.parts", len(before) + 4, *command)
    after = {path.name: path.stat().st_mtime_ns for path in Path("m.nnr.parts").iterdir()}
    assert {name: after.get(name) for name in before if not name.endswith(".new")}.items() <= after.items()
    done = process(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("bits/parameter") == 25
    assert Path("m.nnr").read_bytes() == nnr.encode("m.npz")
    assert {path.name for path in tmp_path.iterdir() if not path.name.endswith(".nnr-partial")} == {"m.npz", "m.nnr"}
    command = ["decode", "m.nnr", "-o", "d.npz", "--resume"]
    killed("d.npz.parts", 5, *command)
    done = process(*command)
    assert done.returncode == 0, done.stderr
    nnr.decode_file("m.nnr", "one.npz")
    assert Path("d.npz").read_bytes() == Path("one.npz").read_bytes()
    assert not os.path.exists("d.npz.parts")


def test_it_needs_a_file(bitstream: Path, npz: Path, capsys: Capture) -> None:
    for arguments in (
        ("encode", npz, "-o", "-", "--resume"),
        ("encode", npz, "--dry-run", "--resume"),
        ("decode", bitstream, "-o", "-", "--resume"),
    ):
        result = call(capsys, *arguments)
        assert result.code == 2
        assert "--resume requires an output file" in result.err


def test_a_folder_that_is_none_of_ours(npz: Path, capsys: Capture) -> None:
    os.mkdir("out.nnr.parts")
    Path("out.nnr.parts/mine").write_text("x")
    result = call(capsys, "encode", npz, "-o", "out.nnr", "--resume")
    assert result.code == 5
    assert "out.nnr.parts is not a checkpoint folder" in result.err
    assert Path("out.nnr.parts/mine").read_text() == "x"


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("command", ["encode", "decode"])
def test_an_interruption(
    bitstream: Path, npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str, resume: bool
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nnr, f"{command}_file", interrupted)
    sources = {"encode": ("model.npz", "out.nnr"), "decode": ("model.nnr", "out.npz")}
    source, target = sources[command]
    result = call(capsys, command, source, "-o", target, *["--resume"] * resume)
    hint = "; the same command continues from here" if resume else ""
    assert (result.code, result.err) == (130, f"nnr: interrupted{hint}\n")


def test_an_interruption_of_the_second_model(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(npz, "second.npz")
    encode_file = nnr.encode_file

    def interrupted(*arguments: Any, **options: Any) -> nnr.EncodeReport:
        if arguments[1] == "second.nnr":
            raise KeyboardInterrupt
        return encode_file(*arguments, **options)

    monkeypatch.setattr(nnr, "encode_file", interrupted)
    result = call(capsys, "encode", npz, "second.npz", "--resume")
    assert result.err.splitlines()[-1] == "nnr: interrupted; the same command without model.npz continues from here"
