"""Tests of nnr store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import call, weights

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def models(here: Path, capsys: Capture) -> Path:
    """Make the store ``s`` and the models ``v1.npz`` and ``v2.npz``."""
    for k in (1, 2):
        nnr.save({"w": weights(1, (50, 40)) + weights(k, (50, 40), 1e-5), "b": weights(2, (9,))}, f"v{k}.npz")
    assert call(capsys, "store", "init", "s").err == "s: created an empty store\n"
    return here


def test_versions_of_a_model(models: Path, capsys: Capture) -> None:
    for k in (1, 2):
        added = call(capsys, "store", "add", "s", f"v{k}.npz", "--name", "net")
        of_base = " of net@1" if k == 2 else ""
        assert re.fullmatch(rf"v{k}.npz -> net@{k}{of_base}: 8,036 -> [\d,]+ bytes, 2 tensors in .* s\n", added.err)
    lines = call(capsys, "store", "ls", "s").out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["net@1", "-"], ["net@2", "net@1"]]
    assert re.fullmatch(r"2 versions, 16,072 -> [\d,]+ bytes \([\d.]+ %\)", lines[3])
    listed = json.loads(call(capsys, "store", "ls", "s", "--json").out)
    assert [one["identity"] for one in listed] == [nnr.identity(f"v{k}.npz") for k in (1, 2)]
    for name, k in (("net@1", 1), ("net", 2)):
        assert call(capsys, "store", "get", "s", name, "-o", f"{name}.npz").code == 0
        assert nnr.identity(f"{name}.npz") == nnr.identity(f"v{k}.npz")
    assert call(capsys, "store", "rm", "s", "net@1").err == "removed net@1\n"
    assert call(capsys, "store", "gc", "s").out == "deleted 0 files, 0 bytes\n"
    would = call(capsys, "store", "gc", "s", "--grace", "0", "--dry-run").out.splitlines()
    assert would[0] == "removed/net/1.json.gz" and would[1].startswith("would delete 1 file, ")
    call(capsys, "store", "get", "s", "net", "-o", "again.npz")
    assert nnr.identity("again.npz") == nnr.identity("v2.npz")


def test_name_of_the_file_and_base_of_another_name(models: Path, capsys: Capture) -> None:
    call(capsys, "store", "add", "s", "v1.npz", "-q")
    nnr.encode_file("v2.npz", "v2.nnr", exact=True)
    result = call(capsys, "store", "add", "s", "v2.nnr", "--base", "v1@1", "--quality", 30)
    assert result.err.startswith("v2.nnr -> v2@1 of v1@1: 8,036 -> ")
    call(capsys, "store", "get", "s", "v2", "-o", "x.npz", "-q")
    error = np.abs(nnr.load("x.npz")["w"] - nnr.load("v2.npz")["w"]).max()
    assert 0 < error < 1e-5


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("init s", 5, "s is already a store"),
        ("init v1.npz", 5, "v1.npz"),
        ("init s --force", 2, "No such option"),
        ("add s none.npz", 5, "none.npz"),
        ("add s -", 2, "standard input has no name"),
        ("add s v1.npz --name a/b", 3, "'a/b' is not a name of a model"),
        ("add s v1.npz --base net@1", 3, "s has no model 'net@1'"),
        ("add s v1.npz --quality 200", 2, "--quality 200 is outside 0..100"),
        ("add . v1.npz", 3, ".: not a store"),
        ("get s net -o x.npz", 3, "s has no model 'net'"),
        ("get s v1@9 -o x.npz", 3, "s has no model 'v1@9'"),
        ("get s v1 -o v2.npz", 5, "v2.npz exists"),
        ("get s v1 -o x.onnx", 3, "graph"),
        ("ls none", 3, "none: not a store"),
        ("ls .", 3, ".: not a store"),
        ("ls v1.npz", 5, "Not a directory"),
        ("rm s v1", 3, "'v1' names no version"),
        ("rm s v1@2", 3, "s has no model 'v1@2'"),
        ("rm s", 2, "Missing argument"),
        ("gc none", 3, "none: not a store"),
        ("gc s --grace -1", 2, "--grace"),
        ("gc s --grace soon", 2, "is not a number"),
    ],
)
def test_errors_are_one_line(models: Path, capsys: Capture, command: str, code: int, message: str) -> None:
    call(capsys, "store", "add", "s", "v1.npz")
    before = sorted(path for path in models.rglob("*"))
    result = call(capsys, "store", *command.split())
    assert (result.code, result.out) == (code, "")
    assert message in result.err and (code == 2 or result.err.count("\n") == 1), result.err
    assert sorted(path for path in models.rglob("*")) == before


def test_damage_is_one_line_and_leaves_no_output(models: Path, capsys: Capture) -> None:
    call(capsys, "store", "add", "s", "v1.npz")
    (path,) = Path("s").glob("objects/*/*.nnr")
    path.write_bytes(path.read_bytes()[:-1])
    result = call(capsys, "store", "get", "s", "v1", "-o", "x.npz")
    name = path.relative_to("s").as_posix()
    assert result.err == f"nnr: error: v1@1: {name}: the object is damaged: its digest does not match\n"
    assert result.code == 3 and not Path("x.npz").exists()
