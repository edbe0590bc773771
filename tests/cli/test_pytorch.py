"""Tests of commands with PyTorch files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import nnr_codec as nnr

from ..formats.torch_support import archive_of, loaded, same, saved
from ..formats.torch_support import pytorch as torch_or_skip
from ..threats.test_pytorch import Call
from .support import SUMMARY, call, process

pytestmark = pytest.mark.medium

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", name="torch")
def fixture_torch() -> Any:
    return torch_or_skip()


@pytest.fixture(name="content")
def fixture_content(torch: Any, here: Path) -> Any:
    """Write ``x.ckpt``, a checkpoint."""
    module = torch.nn.Linear(40, 30)
    content = {"epoch": 3, "model": module.state_dict(), "tied": module.state_dict()["weight"]}
    Path("x.ckpt").write_bytes(saved(torch, content))
    return content


@pytest.mark.torch
def test_there_and_back(torch: Any, content: Any) -> None:
    done = process("encode", "x.ckpt", "-o", "x.nnr", "--lossless")
    assert done.returncode == 0, done.stderr
    assert SUMMARY.search(done.stdout + done.stderr)
    done = process("decode", "x.nnr", "-o", "y.pt")
    assert done.returncode == 0, done.stderr
    restored = loaded(torch, Path("y.pt").read_bytes())
    assert same(torch, content, restored)
    assert restored["tied"].data_ptr() == restored["model"]["weight"].data_ptr()


@pytest.mark.torch
def test_to_other_formats(torch: Any, content: Any, capsys: Capture) -> None:
    assert call(capsys, "encode", "x.ckpt", "-o", "x.nnr").code == 0
    result = call(capsys, "decode", "x.nnr", "-o", "x.safetensors")
    assert result.code == 0
    assert "topology" in result.err
    assert set(nnr.load("x.safetensors")) == {"model.weight", "model.bias", "tied"}
    assert call(capsys, "encode", "x.safetensors", "-o", "z.nnr").code == 0
    assert call(capsys, "decode", "z.nnr", "-o", "z.pt").code == 0
    assert list(loaded(torch, Path("z.pt").read_bytes())) == list(nnr.decode("z.nnr"))


def test_a_file_that_means_harm(here: Path, capsys: Capture) -> None:
    Path("bad.pt").write_bytes(archive_of(pickle.dumps(Call(os.system, "touch victim"), 2)))
    result = call(capsys, "encode", "bad.pt", "-o", "x.nnr")
    assert result.code != 0
    assert result.err.count("\n") == 1
    assert "the pickle calls a disallowed function: posix.system" in result.err
    assert [path.name for path in Path().iterdir()] == ["bad.pt"]
