"""Files opened, code run and modules imported while a model is read, from audit events and inotify.

Models are read in a separate process. C libraries open files without Python's audit events, which the kernel's inotify
detects: no process may open the watched folders.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")
_SECONDS = 120

#: Program of the process. Harmless models come first, unwatched, so that the imports of the format are done then.
_PROGRAM = r"""
import codecs, json, os, sys
import nnr_codec as nnr
from nnr_codec import formats

asked = json.load(sys.stdin)
places = {sys.prefix, sys.base_prefix, os.path.dirname(nnr.__file__), *filter(None, sys.path)}
python = [os.path.realpath(path) for path in places]
SUSPICIOUS = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "os.putenv", "os.unsetenv", "os.startfile", "pty.",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown", "os.truncate",
    "subprocess.", "socket.", "urllib.", "webbrowser.", "shutil.", "ctypes.", "code.__new__", "pickle.", "marshal.",
)
own, seen, watching = (), [], False

def within(path, folders):
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)

def real(path, flags):
    path = os.path.abspath(os.fsdecode(path))
    folder, name = os.path.split(path)
    stays = isinstance(flags, int) and flags & getattr(os, "O_NOFOLLOW", 0)
    return os.path.join(os.path.realpath(folder), name) if stays else os.path.realpath(path)

def note(event, args):
    if event in ("open", "os.listdir", "os.scandir") and args and isinstance(args[0], (str, bytes)):
        name = os.fsdecode(args[0])
        if os.path.basename(name) == name != "..":
            return  # a step from an open folder, or what the kernel tells of: the current one is watched
        path = real(name, args[2] if event == "open" else 0)
        if not within(path, [*own, *python, "/dev/null"]):
            seen.append([event, path])
    elif event in ("exec", "compile"):
        name = getattr(args[0], "co_filename", None) if event == "exec" else args[1]
        name = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        if not name.startswith("<frozen") and not (os.path.isabs(name) and within(os.path.realpath(name), python)):
            seen.append([event, name])
    elif event == "import":
        seen.append([event, args[0]])
    elif event.startswith(SUSPICIOUS):
        seen.append([event, str(args[0]) if args else ""])

def hook(event, args):
    global watching
    if watching:
        watching = False  # what is done here is not looked at
        try:
            note(event, args)
        finally:
            watching = True

def read(path):
    model = LOAD
    return {name: model[name].tobytes()[:16].hex() for name in model}

for name in ("cp437", "raw_unicode_escape"):
    codecs.lookup(name)  # of names in zip archives and pickles
for name in formats.names():
    formats.get(name)
sys.addaudithook(hook)
for path in asked["warm"]:
    read(path)
found = []
for path in asked["cases"]:
    seen.clear()
    own = [os.path.realpath(path if os.path.isdir(path) else os.path.dirname(path))]
    error, tensors = None, {}
    watching = True
    try:
        tensors = read(path)
    except BaseException as caught:
        error = caught
    watching = False
    kinds = {nnr.NnrError: "refused", OSError: "OSError"}
    outcome = next((name for kind, name in kinds.items() if isinstance(error, kind)), type(error).__name__)
    found.append(["read" if error is None else outcome, str(error or ""), tensors, list(seen)])
print(json.dumps(found))
"""


@dataclass
class Seen:
    """Result of reading one model.

    ``outcome`` is "read", "refused" for an NnrError, "OSError" or the name of another exception; ``tensors`` has the
    first 16 bytes of each; ``events`` are audit events: files opened outside the model's folder, code run, and imports.
    """

    outcome: str
    message: str
    tensors: dict[str, bytes]
    events: list[tuple[str, str]]


def read_watched(
    cases: Sequence[Path], *, warm: Sequence[Path] = (), format: str = "", load: str = "", cwd: Path | None = None
) -> list[Seen]:
    """Read models one after another, in one process.

    Parameters
    ----------
    cases : sequence of Path
        Models, each of which may open the files in its own folder.
    warm : sequence of Path
        Harmless models of the same format.
    format : str
        The name of the format; by default the content determines it.
    load : str
        An expression that returns a mapping of arrays, in place of ``formats.load(path)``.
    cwd : Path, optional
        The current folder.
    """
    program = _PROGRAM.replace("LOAD", load or f"formats.load(path, format={format or None!r})")
    asked = {"warm": list(map(str, warm)), "cases": list(map(str, cases))}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", program],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return [
        Seen(outcome, message, {name: bytes.fromhex(data) for name, data in tensors.items()}, list(map(tuple, events)))
        for outcome, message, tensors, events in found
    ]


@contextmanager
def untouched(*folders: Path) -> Iterator[None]:
    """Fail if one of these folders, or a file in it, is opened in the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        pytest.skip("needs inotify")
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert descriptor >= 0
    try:
        names = {}
        for folder in folders:
            for path in (folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())):
                watch = libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_OPEN)
                assert watch >= 0, path
                names[watch] = path
        yield
        touched = sorted({str(names[watch] / name) for watch, name in _events(descriptor)})
        assert not touched, touched
    finally:
        os.close(descriptor)


def _events(descriptor: int) -> Iterator[tuple[int, str]]:
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        while data:
            watch, _, _, length = _EVENT.unpack_from(data)
            yield watch, data[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode("utf-8", "replace")
            data = data[_EVENT.size + length :]


def content(folder: Path) -> dict[str, object]:
    """Return everything below a folder: contents of files, targets of links, and other kinds of entries."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "other"
    return found
