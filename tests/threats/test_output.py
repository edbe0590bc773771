"""T41: outputs replace only their targets, follow no links, and delete no files of others."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import files
from nnr_codec.errors import FormatError
from nnr_codec.files import output_directory, output_file, output_files

from ..formats.support import tree

TENSORS = {"w": np.ones((2, 3), np.float32)}


def write_and_fail(file: BinaryIO) -> None:
    """Write more than a buffer holds, and then raise."""
    file.write(b"new" * 100_000)
    raise ZeroDivisionError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder to write to, beside a precious file; only that folder may change."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "graph.nnef").write_bytes(b"precious")
    (tmp_path / "out").mkdir()
    yield tmp_path / "out"
    assert tree(tmp_path / "precious") == {"graph.nnef": b"precious"}


def test_t41_existing_files_stay(place: Path) -> None:
    (place / "m.nnr").write_bytes(b"old")
    (place / "m.nnef").mkdir()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        nnr.encode_file(TENSORS, place / "m.nnr")
    with pytest.raises(FileExistsError), output_directory(place / "m.nnef"):
        pytest.fail("it is written")
    assert tree(place) == {"m.nnr": b"old"}


def test_t41_a_temporary_name_that_exists(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link with the guessed name does not open its target."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "0" * 16)
    partial = place / f"m.nnr.{'0' * 16}{files.own_suffix()}"
    partial.symlink_to("../precious/graph.nnef")
    with pytest.raises(FileExistsError):
        nnr.encode_file(TENSORS, place / "m.nnr")


@pytest.mark.parametrize("target", ["../precious", "../precious/graph.nnef", "nowhere"])
def test_links_are_replaced(place: Path, target: str) -> None:
    (place / "m").symlink_to(target)
    with pytest.raises(FileExistsError):
        nnr.encode_file(TENSORS, place / "m")
    nnr.encode_file(TENSORS, place / "m", overwrite=True)
    assert (place / "m").read_bytes() == nnr.encode(TENSORS)
    assert not (place / "m").is_symlink()


def test_t41_folders_that_are_no_models(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "home").mkdir()
    (place / "home" / "thesis").write_bytes(b"years of work")
    monkeypatch.chdir(place.parent / "precious")
    for target in (place / "home", place.parent / "precious"):
        with pytest.raises(FileExistsError, match="not replaced"), output_directory(target, overwrite=True) as folder:
            (folder / "graph.nnef").write_bytes(b"new")
    assert tree(place) == {"home/thesis": b"years of work"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX file systems only")
def test_t41_special_files(place: Path) -> None:
    os.mkfifo(place / "pipe")
    with pytest.raises(FileExistsError, match="neither"):
        nnr.encode_file(TENSORS, place / "pipe", overwrite=True)
    assert stat.S_ISFIFO((place / "pipe").lstat().st_mode)


@pytest.mark.parametrize("name", ["../precious/graph.nnef", "/tmp/x", "a\0b", "..", "", "M.XML"])
def test_t41_names_of_files_beside(place: Path, name: str) -> None:
    with output_files(place / "m.xml", overwrite=True) as create:
        create("m.xml")
        with pytest.raises(FormatError):
            create(name)


def test_t41_failures_keep_the_old_files(place: Path) -> None:
    (place / "m").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), output_file(place / "m", overwrite=True) as file:
        write_and_fail(file)
    assert tree(place) == {"m": b"old"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_t41_unfinished_outputs_of_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of another user, another system, or a running process."""
    own = files.own_suffix()
    mark, pid, began = own.partition(".nnr")[0].removeprefix(".").split("-")
    gone = f"a.{'0' * 16}.{mark}-{(1 << 22) + 1}-{began}.nnr-partial"
    for name in (gone, gone.replace(mark, "f" * 16), f"a.{'0' * 16}.{mark}-{pid}-{began}.nnr-partial"):
        (place / name).write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        nnr.encode_file(TENSORS, place / "m.nnr")
    assert len(os.listdir(place)) == 4
    nnr.encode_file(TENSORS, place / "m.nnr", overwrite=True)
    assert gone not in os.listdir(place)
    assert len(os.listdir(place)) == 3
