"""Several files that appear together or not at all, whatever fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nnr_codec import files
from nnr_codec.errors import FormatError
from nnr_codec.files import PARTIAL_SUFFIX, output_files

from .support import tree, write_folder

NEW = {"m.bin": b"new", "m.txt": b"more", "m.xml": b"<new>"}
OLD = {"m.bin": b"old", "m.xml": b"<old>", "other": b"x"}
ERRORS = pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
NAMES = list(NEW)


def put(
    folder: Path,
    content: Mapping[str, bytes] = NEW,
    *,
    overwrite: bool = False,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Write files; m.xml is the target."""
    with output_files(folder / "m.xml", overwrite=overwrite) as create:
        for name, data in content.items():
            create(name).write(data)
        then()


def failing(real: Callable[..., Any], at: int, error: BaseException, *, after: bool) -> Callable[..., Any]:
    """Return a function that fails at call number ``at``, before or after its work."""
    calls = iter(range(1000))

    def function(*arguments: Any, **options: Any) -> Any:
        if next(calls) != at:
            return real(*arguments, **options)
        if after:
            real(*arguments, **options)
        raise error

    return function


def refuse(*_: object, **__: object) -> None:
    """Simulate a system call that is not supported."""
    raise OSError(errno.EPERM, "Operation not permitted")


def test_they_appear_at_the_end_and_may_be_closed_before(tmp_path: Path) -> None:
    with output_files(tmp_path / "m.xml") as create:
        create("m.xml").write(b"<new>")
        with create("m.bin") as file:
            file.write(b"new")
        assert {path.suffix for path in tmp_path.iterdir()} == {PARTIAL_SUFFIX}
    assert tree(tmp_path) == {"m.xml": b"<new>", "m.bin": b"new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_keeps_the_old_files(tmp_path: Path, error: type[BaseException]) -> None:
    before = tree(write_folder(tmp_path, OLD))
    with pytest.raises(error):
        put(tmp_path, overwrite=True, then=failing(print, 0, error(), after=False))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("taken", NAMES)
def test_existing_files_are_rejected_before_any_work(tmp_path: Path, taken: str) -> None:
    before = tree(write_folder(tmp_path, {taken: b"old"}))
    with pytest.raises(FileExistsError, match="exists"):
        put(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0", "./a"])
def test_invalid_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="is not a valid name of a file"), output_files(tmp_path / "m.xml") as create:
        create(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["m.xml", "M.XML"])
def test_a_name_that_some_system_has_already(tmp_path: Path, name: str) -> None:
    with output_files(tmp_path / "m.xml", overwrite=True) as create:
        create("m.xml")
        with pytest.raises(FormatError, match="would be written twice"):
            create(name)
    assert [path.name for path in tmp_path.iterdir()] == ["m.xml"]


@pytest.mark.parametrize("made", NAMES)
def test_files_created_meanwhile_stay(tmp_path: Path, made: str) -> None:
    with pytest.raises(FileExistsError):
        put(tmp_path, then=lambda: (tmp_path / made).write_bytes(b"theirs"))
    assert tree(tmp_path) == {made: b"theirs"}


@pytest.mark.medium
@ERRORS
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("function", ["link", "rename", "replace"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_step_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    links: bool,
    at: int,
    after: bool,
    overwrite: bool,
    error: BaseException,
) -> None:
    """Each system call that names files fails in turn, on systems with and without links."""
    before = tree(write_folder(tmp_path, OLD if overwrite else {"other": b"x"}))
    if not links:
        monkeypatch.setattr(files.os, "link", refuse)
    monkeypatch.setattr(files.os, function, failing(getattr(os, function), at, error, after=after))
    try:
        put(tmp_path, overwrite=overwrite)
    except (OSError, KeyboardInterrupt):
        assert tree(tmp_path) == before
    else:
        assert tree(tmp_path) == before | NEW


@ERRORS
def test_one_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    before = tree(write_folder(tmp_path, OLD))
    monkeypatch.setattr(files.os, "fsync", failing(os.fsync, 1, error, after=False))
    with pytest.raises(type(error)):
        put(tmp_path, overwrite=True)
    assert tree(tmp_path) == before


def test_what_cannot_be_put_back_does_not_keep_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restoring the first file fails; the second is restored, and the old content of the first still exists."""
    write_folder(tmp_path, {"m.bin": b"old", "m.txt": b"old", "m.xml": b"old"})
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if (target.name == "m.xml" and source.read_bytes() == b"<new>") or target.read_bytes() == b"new":
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(OSError, match="Input/output error"):
        put(tmp_path, overwrite=True)
    assert (tmp_path / "m.txt").read_bytes() == (tmp_path / "m.xml").read_bytes() == b"old"
    (kept,) = tmp_path.glob(f"*{PARTIAL_SUFFIX}")
    assert kept.read_bytes() == b"old"


def test_replaced_files_are_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, OLD)
    real, seen = os.replace, 0

    def replace(source: Path, target: Path) -> None:
        nonlocal seen
        seen += all((tmp_path / name).exists() for name in ("m.bin", "m.xml"))
        real(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    put(tmp_path, overwrite=True)
    assert seen == 2
    assert tree(tmp_path) == OLD | NEW


@pytest.mark.skipif(os.name != "posix", reason="POSIX file systems only")
@pytest.mark.parametrize("where", ["m.bin", "m.xml"])
def test_links_are_replaced_and_not_followed(tmp_path: Path, where: str) -> None:
    write_folder(tmp_path, {"elsewhere/kept": b"kept", "out/other": b"x"})
    link = tmp_path / "out" / where
    link.symlink_to("../elsewhere/kept")
    put(tmp_path / "out", overwrite=True)
    assert tree(tmp_path / "out") == {"other": b"x"} | NEW
    assert not link.is_symlink()
    assert (tmp_path / "elsewhere/kept").read_bytes() == b"kept"


@pytest.mark.skipif(os.name != "posix", reason="POSIX file systems only")
def test_links_come_back_as_links(tmp_path: Path) -> None:
    (tmp_path / "m.bin").symlink_to("nowhere")
    with pytest.raises(IsADirectoryError):
        put(tmp_path, overwrite=True, then=(tmp_path / "m.xml").mkdir)
    assert os.readlink(tmp_path / "m.bin") == "nowhere"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bin", "m.xml"]
