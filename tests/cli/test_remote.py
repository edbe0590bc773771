"""Commands with URLs, and nnr encode --index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from ..range_server import RangeServer, serving
from .support import call

Capture = pytest.CaptureFixture[str]
TENSORS = {"a.weight": np.eye(8, dtype="f4"), "b.weight": np.ones((4, 4), "f4")}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.chdir(tmp_path)
    data = nnr.encode(nnr.Model(TENSORS, format="npz"), index=True)
    with serving({"m.nnr": data, "folder": data, "text": b"\0\4text"}) as state:
        yield state


def test_commands_read_urls(server: RangeServer, capsys: Capture, tmp_path: Path) -> None:
    url = server.url.replace("//", "//user:secret@") + "/m.nnr?signature=abc"
    assert "2 tensors" in call(capsys, "ls", url).out
    assert "NNR_TPL" in call(capsys, "inspect", url).out
    verified = call(capsys, "verify", url)
    decoded = call(capsys, "decode", url, "--only", "a.*", "--to", "npz")
    extracted = call(capsys, "extract", url, "--name", "b.*", "-o", "b.nnr")
    for result in (verified, decoded, extracted):
        assert result.code == 0
        assert "secret" not in result.out + result.err and "abc" not in result.out + result.err
    assert "0 violations" in verified.out and f"{server.url}/m.nnr: note:" in verified.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.nnr", "m.npz"]
    assert list(nnr.load("m.npz")) == ["a.weight"] and list(nnr.open("b.nnr")) == ["b.weight"]


@pytest.mark.parametrize("command", [["ls"], ["decode", "--to", "npz"], ["verify"], ["inspect"]])
def test_mistakes(server: RangeServer, capsys: Capture, tmp_path: Path, command: list[str]) -> None:
    for url, said in (
        (f"{server.url}/missing.nnr", "the server replied 404"),
        (f"{server.url}/text", f"{server.url}/text: "),
        ("nothing://host/m.nnr", "nothing://"),
    ):
        result = call(capsys, *command, url)
        assert result.code != 0
        assert said in result.out + result.err and "Traceback" not in result.err
        assert len(result.err.splitlines()) <= 1
    assert not list(tmp_path.iterdir())


def test_a_url_without_a_file_name_has_no_default_output(server: RangeServer, capsys: Capture, tmp_path: Path) -> None:
    result = call(capsys, "decode", f"{server.url}/folder/?signature=abc", "--to", "npz")
    assert (result.code, "the URL has no file name; give -o" in result.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_encode_with_an_index(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", **TENSORS)
    assert call(capsys, "encode", "m.npz", "--index", "-q").code == 0
    assert Path("m.nnr").read_bytes() == nnr.encode("m.npz", index=True)
    for wrong, said in (
        (["--index=yes"], "does not take a value"),
        (["--index", "--max-unit-size", "60"], "the index has"),
        (["--index", "--dry-run", "--index-file"], "No such option"),
    ):
        result = call(capsys, "encode", "m.npz", "-o", "other.nnr", *wrong)
        assert result.code != 0 and said in result.err
        assert not Path("other.nnr").exists()
