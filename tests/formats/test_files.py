"""Outputs appear completely or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from nnr_codec import files
from nnr_codec.errors import FormatError
from nnr_codec.files import PARTIAL_SUFFIX, output_directory, output_file

from .support import tree, write_folder


def put_file(target: Path, data: bytes, *, overwrite: bool = False, then: Callable[[], object] = lambda: None) -> None:
    with output_file(target, overwrite=overwrite) as file:
        file.write(data)
        then()


def put_folder(
    target: Path, files: Mapping[str, bytes], *, overwrite: bool = False, then: Callable[[], object] = lambda: None
) -> None:
    with output_directory(target, overwrite=overwrite) as folder:
        write_folder(folder, files)
        then()


def interrupt(error: type[BaseException]) -> Callable[..., NoReturn]:
    def stop(*_: object) -> NoReturn:
        raise error

    return stop


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a system with only the rename operations of POSIX."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())


posix = pytest.mark.skipif(os.name != "posix", reason="POSIX file systems only")


def test_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    with output_file(target) as file:
        file.write(b"abc")
        assert not target.exists()
        (partial,) = tmp_path.iterdir()
        assert partial.name.endswith(PARTIAL_SUFFIX)
    assert tree(tmp_path) == {"out.bin": b"abc"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("overwrite", [False, True])
def test_exception_leaves_nothing(tmp_path: Path, error: type[BaseException], overwrite: bool) -> None:
    with pytest.raises(error):
        put_file(tmp_path / "out.bin", b"abc", overwrite=overwrite, then=interrupt(error))
    with pytest.raises(error):
        put_folder(tmp_path / "out", {"a": b"abc"}, overwrite=overwrite, then=interrupt(error))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_keeps_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    before = tree(write_folder(tmp_path, {"out.bin": b"old", "m.nnef/graph.nnef": b"old"}))
    with pytest.raises(error):
        put_file(tmp_path / "out.bin", b"new", overwrite=True, then=interrupt(error))
    with pytest.raises(error):
        put_folder(tmp_path / "m.nnef", {"graph.nnef": b"new"}, overwrite=True, then=interrupt(error))
    assert tree(tmp_path) == before


def test_existing_target_is_refused_before_any_work(tmp_path: Path) -> None:
    before = tree(write_folder(tmp_path, {"out.bin": b"old", "m.nnef/graph.nnef": b"old"}))
    with pytest.raises(FileExistsError, match="exists"), output_file(tmp_path / "out.bin"):
        pytest.fail("the block ran")
    for name in ("m.nnef", "out.bin"):
        with pytest.raises(FileExistsError, match="exists"), output_directory(tmp_path / name):
            pytest.fail("the block ran")
    assert tree(tmp_path) == before


def test_target_made_meanwhile_is_not_clobbered(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    with pytest.raises(FileExistsError):
        put_file(target, b"ours", then=lambda: target.write_bytes(b"theirs"))
    with pytest.raises(FileExistsError):
        put_folder(tmp_path / "m", {"a": b"ours"}, then=(tmp_path / "m").mkdir)
    assert tree(tmp_path) == {"out.bin": b"theirs"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "out.bin"]


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    put_file(tmp_path / "out.bin", b"abc")
    other = tmp_path / "other"
    with pytest.raises(FileExistsError):
        put_file(other, b"ours", then=lambda: other.write_bytes(b"theirs"))
    assert tree(tmp_path) == {"out.bin": b"abc", "other": b"theirs"}


def test_overwriting_replaces_whole(tmp_path: Path) -> None:
    write_folder(
        tmp_path, {"out.bin": b"a long old content", "m.nnef/graph.nnef": b"old", "m.nnef/stale/x.dat": b"old"}
    )
    put_file(tmp_path / "out.bin", b"new", overwrite=True)
    with output_directory(tmp_path / "m.nnef", overwrite=True) as folder:
        write_folder(folder, {"graph.nnef": b"new", "a/w.dat": b"new"})
        assert tree(tmp_path / "m.nnef")["stale/x.dat"] == b"old"
    assert tree(tmp_path) == {"out.bin": b"new", "m.nnef/graph.nnef": b"new", "m.nnef/a/w.dat": b"new"}


def test_directory_may_replace_a_file_and_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    for name in "ab":
        put_folder(tmp_path / name, {"graph.nnef": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"a/graph.nnef": b"new", "b/graph.nnef": b"new"}


def test_directory_that_is_no_model_is_not_replaced(tmp_path: Path) -> None:
    before = tree(write_folder(tmp_path, {"home/thesis.tex": b"years of work"}))
    with (
        pytest.raises(FileExistsError, match=r"without graph\.nnef"),
        output_directory(tmp_path / "home", overwrite=True),
    ):
        pytest.fail("the block ran")
    precious = write_folder(tmp_path / "new", {}) / "precious"
    precious.parent.mkdir()
    with pytest.raises(FileExistsError, match=r"without graph\.nnef"):
        put_folder(precious.parent, {"a": b"x"}, overwrite=True, then=lambda: precious.write_bytes(b"made meanwhile"))
    assert tree(tmp_path) == {**before, "new/precious": b"made meanwhile"}


def test_current_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"m/graph.nnef": b"old", "m/sub/x": b"old"})
    monkeypatch.chdir(tmp_path / "m" / "sub")
    for target in (".", "..", "/", "", tmp_path / "m", tmp_path / "m" / "sub"):
        with pytest.raises((FormatError, FileExistsError)), output_directory(target, overwrite=True):
            pytest.fail("the block ran")
    assert tree(tmp_path) == {"m/graph.nnef": b"old", "m/sub/x": b"old"}


@pytest.mark.usefixtures("plain")
def test_failed_swap_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(write_folder(tmp_path, {"m/graph.nnef": b"old"}))
    rename = os.rename

    def failing(source: str | Path, target: str | Path) -> None:
        if "new" in tree(Path(source)):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="No space"):
        put_folder(tmp_path / "m", {"new": b"new"}, overwrite=True)
    with pytest.raises(OSError, match="No space"):
        put_folder(tmp_path / "other", {"new": b"new"})
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("old", [{"m/graph.nnef": b"old"}, {"m": b"file"}])
def test_interrupted_swap_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool, old: Mapping[str, bytes]
) -> None:
    """The interruption is before or after each of the two renames."""
    before = tree(write_folder(tmp_path, old))
    rename, calls = os.rename, iter(range(1000))

    def interrupted(source: str | Path, target: str | Path) -> None:
        is_it = next(calls) == at
        if after or not is_it:
            rename(source, target)
        if is_it:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put_folder(tmp_path / "m", {"new": b"new"}, overwrite=True)
    assert tree(tmp_path) == before


@posix
def test_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    write_folder(tmp_path, {"real.bin": b"old", "real/graph.nnef": b"old"})
    for link, target in (("file", "real.bin"), ("folder", "real"), ("dangling", "nowhere")):
        (tmp_path / link).symlink_to(target)
    for link in ("file", "folder", "dangling"):
        with pytest.raises(FileExistsError), output_file(tmp_path / link):
            pytest.fail("the block ran")
        with pytest.raises(FileExistsError), output_directory(tmp_path / link):
            pytest.fail("the block ran")
    put_file(tmp_path / "file", b"new", overwrite=True)
    for link in ("folder", "dangling"):
        put_folder(tmp_path / link, {"graph.nnef": b"new"}, overwrite=True)
    assert not any((tmp_path / link).is_symlink() for link in ("file", "folder", "dangling"))
    assert tree(tmp_path)["real.bin"] == tree(tmp_path)["real/graph.nnef"] == b"old"
    assert tree(tmp_path)["folder/graph.nnef"] == b"new"


@posix
def test_linked_parent_is_the_real_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    put_file(tmp_path / "link" / "out", b"x")
    assert (tmp_path / "real" / "out").read_bytes() == b"x"


@posix
def test_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        put_file(tmp_path / "loop" / "out", b"x")


@posix
def test_permissions(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        put_file(tmp_path / "new", b"x")
        put_folder(tmp_path / "folder", {"graph.nnef": b"x"})
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750
    (tmp_path / "new").chmod(0o600)
    (tmp_path / "folder").chmod(0o700)
    put_file(tmp_path / "new", b"y", overwrite=True)
    put_folder(tmp_path / "folder", {"graph.nnef": b"y"}, overwrite=True)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700


@posix
def test_devices_and_directories_are_not_replaced_by_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError), output_file(tmp_path / "pipe", overwrite=True):
        pytest.fail("the block ran")
    with pytest.raises(FileExistsError), output_directory(tmp_path / "pipe", overwrite=True):
        pytest.fail("the block ran")
    with pytest.raises(IsADirectoryError), output_file(tmp_path / "folder", overwrite=True):
        pytest.fail("the block ran")
    with pytest.raises(FileNotFoundError), output_file(tmp_path / "nowhere" / "out"):
        pytest.fail("the block ran")


def test_long_names(tmp_path: Path) -> None:
    name = "\N{GREEK SMALL LETTER OMEGA}" * 120
    put_file(tmp_path / name, b"x")
    assert tree(tmp_path) == {name: b"x"}


_KILLED = """
import os, signal, sys
from nnr_codec.files import output_{kind}
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where nobody sits at a terminal
with output_{kind}(sys.argv[1], overwrite=True) as out:
    if {kind!r} == "file":
        out.write(b"half"); out.flush()
    else:
        (out / "graph.nnef").write_bytes(b"half")
    os.kill(os.getpid(), {signal})
"""


@posix
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_killed_process_leaves_no_torn_output(tmp_path: Path, kind: str, number: int) -> None:
    target = tmp_path / "target"
    if kind == "file":
        target.write_bytes(b"old")
    else:
        write_folder(target, {"graph.nnef": b"old"})
    before = tree(tmp_path)
    script = _KILLED.format(kind=kind, signal=int(number))
    root = Path(files.__file__).resolve().parents[1]
    result = subprocess.run(
        [sys.executable, "-c", script, str(target)],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert result.returncode != 0
    rest = {name: data for name, data in tree(tmp_path).items() if PARTIAL_SUFFIX not in name}
    assert rest == before
    if number == signal.SIGINT:
        assert tree(tmp_path) == before


# ------------------------------------------------------------------------------------------------ killed processes
_DIES = """
import os, sys
from nnr_codec.files import output_directory, output_file
folder = sys.argv[1]
outputs = output_file(os.path.join(folder, "out")), output_directory(os.path.join(folder, "made"))
file, made = [output.__enter__() for output in outputs]
file.write(b"x" * 100_000)
(made / "sub").mkdir()
(made / "sub" / "x").write_bytes(b"half")
os.close(1)
os.read(0, 1)
os.kill(os.getpid(), 9)
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start another process that writes a file and a folder until it is killed by input."""
    root = Path(files.__file__).resolve().parents[1]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _DIES, str(folder)],
        stdin=pipe,
        stdout=pipe,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as process:
        assert process.stdout
        process.stdout.read()
        yield process
        if process.poll() is None:
            process.communicate(b"x")


def unfinished(folder: Path) -> list[str]:
    """Return the names of unfinished outputs."""
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(PARTIAL_SUFFIX))


@linux
@pytest.mark.parametrize("kind", ["file", "directory", "files"])
def test_what_the_killed_leave_is_deleted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_bytes(b"x")
    with writing(tmp_path) as process:
        assert len(unfinished(tmp_path)) == 2
        put_file(tmp_path / "new", b"x")  # while it runs
        assert len(unfinished(tmp_path)) == 2
        process.communicate(b"x")
    assert process.returncode == -signal.SIGKILL
    assert len(unfinished(tmp_path)) == 2
    with pytest.raises(FileExistsError):
        put_file(tmp_path / "other", b"y")
    assert len(unfinished(tmp_path)) == 2  # a rejected call changes nothing
    if kind == "file":
        put_file(tmp_path / "y", b"y")
    elif kind == "directory":
        put_folder(tmp_path / "y", {})
    else:
        with files.output_files(tmp_path / "y") as create:
            create("y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "other", "y"]


def named(suffix: str, *, pid: object = None, began: object = None, system: str = "") -> str:
    """Return the name of an unfinished output of another process or user."""
    mark, ours, start = suffix.removesuffix(PARTIAL_SUFFIX).removeprefix(".").split("-")
    return f"x.0123456789abcdef.{system or mark}-{pid or ours}-{began or start}{PARTIAL_SUFFIX}"


@linux
def test_what_may_be_somebodys_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is of a running process, another system or another user, or its name is unknown."""
    own = files.own_suffix()
    gone, other = named(own, pid=(1 << 22) + 1), named(own, began=1)  # beyond all numbers; one that had ours
    kept = [
        named(own),
        f"{named(own)}x",
        named(own, pid=(1 << 22) + 1, system="0" * 16),
        named(own, pid=10**9 * 9 + 1),
        f"x.0123456789abcdef{PARTIAL_SUFFIX}",
        f"x.nnr{PARTIAL_SUFFIX}",
        PARTIAL_SUFFIX,
        gone.replace(PARTIAL_SUFFIX, ".nnr"),
    ]
    for name in [*kept, gone, other]:
        (tmp_path / name).write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        files.remove_stale(tmp_path)
    assert {gone, other} <= set(os.listdir(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", interrupt(PermissionError))
        files.remove_stale(tmp_path)
    assert {gone, other} <= set(os.listdir(tmp_path))
    files.remove_stale(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


@linux
def test_links_among_the_stale_are_not_followed(tmp_path: Path) -> None:
    gone = named(files.own_suffix(), pid=(1 << 22) + 1)
    write_folder(tmp_path, {"precious/x": b"x", f"out/{gone}2/x": b"x"})
    (tmp_path / "out" / gone).symlink_to("../precious")
    files.remove_stale(tmp_path / "out")
    assert tree(tmp_path) == {"precious/x": b"x", f"out/{gone}2/x": b"x"}
    assert not (tmp_path / "out" / gone).is_symlink()


def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the process in a name cannot be checked, and nothing is deleted."""
    gone = named(files.own_suffix(), pid=(1 << 22) + 1) if sys.platform == "linux" else "x"

    def missing(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", missing)
    assert files.own_suffix() == PARTIAL_SUFFIX
    (tmp_path / gone).write_bytes(b"x")
    put_file(tmp_path / "out", b"x")
    assert sorted(os.listdir(tmp_path)) == ["out", gone]


@linux
def test_a_folder_that_is_replaced_is_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"m/graph.nnef": b"old"})
    monkeypatch.setattr(os, "rename", interrupt(AssertionError))
    put_folder(tmp_path / "m", {"graph.nnef": b"new"}, overwrite=True)
    put_folder(tmp_path / "new", {"graph.nnef": b"new"})
    assert tree(tmp_path) == {"m/graph.nnef": b"new", "new/graph.nnef": b"new"}
