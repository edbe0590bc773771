"""T41: outputs replace nothing that they are not asked to, follow no links, and delete nothing of anybody's."""

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
    """Write more than a buffer holds, and then think of something else."""
    file.write(b"new" * 100_000)
    raise ZeroDivisionError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to write to, beside something that is precious; nothing but that folder may change."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "graph.nnef").write_bytes(b"precious")
    (tmp_path / "out").mkdir()
    yield tmp_path / "out"
    assert tree(tmp_path / "precious") == {"graph.nnef": b"precious"}


def test_t41_what_is_there_stays(place: Path) -> None:
    (place / "m.nnr").write_bytes(b"old")
    (place / "m.nnef").mkdir()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        nnr.encode_file(TENSORS, place / "m.nnr")
    with pytest.raises(FileExistsError), output_directory(place / "m.nnef"):
        pytest.fail("it is written")
    assert tree(place) == {"m.nnr": b"old"}


def test_t41_a_temporary_name_that_somebody_has_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who guesses it finds no file opened that a link leads to."""
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
def test_t41_what_is_no_file(place: Path) -> None:
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


def test_t41_what_fails_leaves_what_was_there(place: Path) -> None:
    (place / "m").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), output_file(place / "m", overwrite=True) as file:
        write_and_fail(file)
    assert tree(place) == {"m": b"old"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_t41_unfinished_outputs_of_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another user, of another system, and of a process that lives."""
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
