"""Checkpoint: results of finished tasks in a folder beside the output, from which work can resume.

The name of a record is a digest of its inputs: versions, options, source. Its file contains a digest of the content; a
damaged record counts as missing. The folder is owned by the caller, is never reached through a link, and is removed
when the work is complete. Concurrent processes with the same work may remove each other's records, which only costs
time.

A record is a JSON value and buffers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar

import numpy as np

from .pool import Pool, Task

#: File extension of records, and the number of their format.
_RECORD = ".nnrpart2"
_NAME = re.compile(r"[0-9a-f]{64}\.nnrpart\d*(\.new)?")
#: Appended to the target's name.
SUFFIX = ".parts"

_HEAD = Struct("<8s32sQ")  # magic, digest of the rest of the file, bytes of the JSON text
_MAGIC = b"nnrpart2"
#: Alignment of buffers in bytes, as their arrays require.
_ALIGNMENT = 16

#: JSON value and buffers.
Record = tuple[Any, Sequence[memoryview]]
Result = TypeVar("Result")


class Checkpoint:
    """Folder of records.

    Parameters
    ----------
    folder : path
        Created if it does not exist. FileExistsError is raised if other users can write to the folder, if it contains
        other files, or if it belongs to another version.
    version : str
        Version of the program.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self._version = folder, version
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = folder.lstat()
        is_own = not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)
        if not (stat.S_ISDIR(found.st_mode) and is_own and _has_only_records(folder)):
            raise FileExistsError(f"{folder} is not a checkpoint folder; remove it or write to another name")
        if any(_RECORD not in name for name in os.listdir(folder)):
            raise FileExistsError(f"{folder} is a checkpoint of another version; remove it or write to another name")

    def key(self, *what: object) -> str:
        """Return the name of the record for these inputs, a digest of their representations."""
        return hashlib.sha256(repr((self._version, *what)).encode()).hexdigest() + _RECORD

    def __contains__(self, key: str) -> bool:
        return (self.folder / key).is_file()

    def get(self, key: str) -> Record | None:
        """Return a record with writable buffers; None if it is missing or damaged. Removes a damaged record."""
        path = self.folder / key
        with suppress(OSError, ValueError, TypeError), open(path, "rb", opener=_opener) as file:
            magic, digest, length = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
            content = np.empty(max(os.fstat(file.fileno()).st_size - _HEAD.size, 0), np.uint8).data
            if magic == _MAGIC and file.readinto(content) == len(content) and _digest(key, [content]) == digest:
                value, sizes = json.loads(bytes(content[:length]))
                buffers, start = [], length
                for size in sizes:
                    start += -start % _ALIGNMENT
                    buffers.append(content[start : start + size])
                    start += size
                return value, buffers
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, value: Any, buffers: Sequence[memoryview] = ()) -> None:
        """Store a record."""
        text = json.dumps([value, [buffer.nbytes for buffer in buffers]], default=np.generic.item).encode()
        content, size = [memoryview(text)], len(text)
        for buffer in buffers:
            content += memoryview(bytes(-size % _ALIGNMENT)), buffer
            size += -size % _ALIGNMENT + buffer.nbytes
        new = self.folder / f"{key}.new"
        with suppress(FileNotFoundError):  # another process has completed the same work and removed the folder
            with open(new, "wb", opener=_opener) as file:
                file.write(_HEAD.pack(_MAGIC, _digest(key, content), len(text)))
                for part in content:
                    file.write(part)
            os.replace(new, self.folder / key)

    def only(self, keys: Collection[str]) -> None:
        """Remove all other records."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                if name not in keys and _NAME.fullmatch(name):
                    (self.folder / name).unlink(missing_ok=True)

    def run(
        self,
        pool: Pool,
        tasks: Sequence[Task[Result]],
        keys: Sequence[str],
        pack: Callable[[Result], Record],
        unpack: Callable[[Record], Result],
        *,
        large_first: bool = True,
    ) -> Iterator[Result]:
        """Yield the results of tasks in task order, as :meth:`Pool.run` does, and store them.

        Tasks with a record are not run.
        """
        pairs = zip(tasks, keys, strict=True)
        known = [_Stored(task, self, key, unpack) if key in self else task for task, key in pairs]
        for key, result in zip(keys, pool.run(known, large_first=large_first), strict=True):
            if key not in self:
                self.put(key, *pack(result))
            yield result


class _Stored(Task[Result]):
    """Task with a record; it runs only if the record is damaged."""

    inline = True

    def __init__(
        self, task: Task[Result], checkpoint: Checkpoint, key: str, unpack: Callable[[Record], Result]
    ) -> None:
        self.names, self.nbytes = task.names, task.nbytes
        self._task, self._checkpoint, self._key, self._unpack = task, checkpoint, key, unpack

    def __call__(self) -> Result:
        record = self._checkpoint.get(self._key)
        return self._unpack(record) if record else self._task()


@contextmanager
def checkpoint_of(target: str | os.PathLike[str], version: str) -> Iterator[Checkpoint]:
    """Return a context manager for a target's checkpoint, which removes the folder on success or if it is empty."""
    given = Path(target)
    folder = Path(os.path.realpath(given.parent, strict=True)) / f"{given.name}{SUFFIX}"
    checkpoint = Checkpoint(folder, version)
    try:
        yield checkpoint
        checkpoint.only(())
    finally:
        with suppress(OSError):
            os.rmdir(folder)


def _has_only_records(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return all(entry.is_file(follow_symlinks=False) and _NAME.fullmatch(entry.name) for entry in entries)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _digest(key: str, content: Sequence[memoryview]) -> bytes:
    digest = hashlib.sha256(key.encode())
    for part in content:
        digest.update(part)
    return digest.digest()
