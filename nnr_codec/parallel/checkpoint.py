"""Checkpoint: the results of finished tasks in a folder beside the output, so that work can resume.

A record's name is a digest of all that its content follows from: versions, options, source. Its file has a digest of
its own; a damaged record counts as none. The folder belongs to the caller alone, is never reached by a link, and is
removed when the work is done. Processes that do the same work at once may remove each other's records, which costs time
only.

A record is a value that JSON can express, and buffers.
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

_HEAD = Struct("<8s32sQ")  # magic, digest of what follows it, bytes of the JSON text
_MAGIC = b"nnrpart2"
#: Bytes whose multiples buffers begin at, as their arrays require.
_ALIGNMENT = 16

#: A value for JSON, and buffers.
Record = tuple[Any, Sequence[memoryview]]
Result = TypeVar("Result")


class Checkpoint:
    """A folder of records.

    Parameters
    ----------
    folder : path
        Created if it does not exist. FileExistsError for a folder that is not the caller's alone, has other files, or
        is of another version.
    version : str
        Of the program.
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
        """Return the name of the record that follows from these objects; equal ones have equal representations."""
        return hashlib.sha256(repr((self._version, *what)).encode()).hexdigest() + _RECORD

    def __contains__(self, key: str) -> bool:
        return (self.folder / key).is_file()

    def get(self, key: str) -> Record | None:
        """Return a record, with writable buffers; None for a missing one, and for a damaged one, which is removed."""
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
        with suppress(FileNotFoundError):  # another process has done the same work, and removed the folder
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
        """Yield the results of tasks in their order, as :meth:`Pool.run` does, and store them.

        A task whose record exists is not run.
        """
        pairs = zip(tasks, keys, strict=True)
        known = [_Stored(task, self, key, unpack) if key in self else task for task, key in pairs]
        for key, result in zip(keys, pool.run(known, large_first=large_first), strict=True):
            if key not in self:
                self.put(key, *pack(result))
            yield result


class _Stored(Task[Result]):
    """A task whose record exists; it is run only if that is damaged."""

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
    """Yield the checkpoint of a target; its folder is removed when the block ends without an exception, or if empty."""
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
