"""Folders of files: on this machine, or in any file system of fsspec, such as S3."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .errors import LimitError, MissingDependencyError
from .files import output_file
from .formats import require

T = TypeVar("T")


class Folder(Protocol):
    """Files by relative path, with ``/`` between its parts."""

    def sizes(self, under: str) -> dict[str, int]:
        """Return the size in bytes of each file below a subfolder; empty if the subfolder does not exist."""

    def read(self, paths: Iterable[str], most: int) -> dict[str, bytes]:
        """Return the contents of files that exist. Raise LimitError if one has more than ``most`` bytes."""

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        """Write a file, complete or not at all. Raise FileExistsError if it must be ``new`` and exists."""

    def age(self, path: str) -> float | None:
        """Return the seconds since a file was written; None if it does not exist."""

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""


def open_folder(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Folder:
    """Return the folder with this path or URL; ``options`` are arguments of the file system of fsspec."""
    if not isinstance(url, str) or ("://" not in url and "::" not in url):
        return LocalFolder(Path(url))
    fsspec = require("fsspec", "remote", "a folder with a URL")
    with _as_os_error(url):
        system, path = fsspec.core.url_to_fs(url, **(options or {}))
    if "file" in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol):
        return LocalFolder(Path(path))
    return RemoteFolder(system, path.rstrip("/"), url)


class LocalFolder:
    """Folder of this machine, whose files are written under a temporary name and then linked or renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self, under: str) -> dict[str, int]:
        found = {}
        for folder, _, names in os.walk(self._root / under):
            for name in names:
                path = Path(folder, name)
                try:
                    found[path.relative_to(self._root).as_posix()] = path.lstat().st_size
                except FileNotFoundError:  # deleted meanwhile
                    continue
        return found

    def read(self, paths: Iterable[str], most: int) -> dict[str, bytes]:
        found = {}
        for path in paths:
            try:
                with open(self._root / path, "rb") as file:
                    _check_size(path, os.fstat(file.fileno()).st_size, most)
                    found[path] = file.read()
            except FileNotFoundError:
                continue
        return found

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with output_file(target, overwrite=not new) as file:
            file.write(data)

    def age(self, path: str) -> float | None:
        try:
            return time.time() - (self._root / path).lstat().st_mtime
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)


class RemoteFolder:
    """Folder in a file system of fsspec. It needs no rename: each file is written by one request."""

    def __init__(self, system: Any, root: str, url: str) -> None:
        self._system, self._root, self._url = system, root, url

    def sizes(self, under: str) -> dict[str, int]:
        def find() -> dict[str, int]:
            self._system.invalidate_cache()  # other processes write too
            found = self._system.find(self._path(under), detail=True)
            return {name[len(self._root) :].lstrip("/"): info["size"] or 0 for name, info in found.items()}

        return self._call(find) or {}

    def read(self, paths: Iterable[str], most: int) -> dict[str, bytes]:
        paths = list(paths)
        if not paths:
            return {}
        with _as_os_error(self._url):
            whole = [self._path(path) for path in paths]
            contents = self._system.cat_ranges(whole, [0] * len(paths), [most + 1] * len(paths), on_error="return")
            found = {}
            for path, content in zip(paths, contents, strict=True):
                if isinstance(content, FileNotFoundError):
                    continue
                if isinstance(content, Exception):
                    raise content
                _check_size(path, len(content), most)
                found[path] = bytes(content)
        return found

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        place, mode = self._path(path), "create" if new else "overwrite"
        with _as_os_error(self._url):
            try:
                self._system.pipe_file(place, data, mode=mode)
            except FileNotFoundError:  # the file system has folders, or the bucket does not exist
                if not self._system.exists(place.split("/")[0] or "/"):
                    raise
                self._system.makedirs(place.rpartition("/")[0], exist_ok=True)
                self._system.pipe_file(place, data, mode=mode)

    def age(self, path: str) -> float | None:
        def modified() -> float:
            self._system.invalidate_cache()
            return float(time.time() - self._system.modified(self._path(path)).timestamp())

        return self._call(modified)

    def remove(self, path: str) -> None:
        self._call(lambda: self._system.rm_file(self._path(path)))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _call(self, function: Callable[[], T]) -> T | None:
        """Return the result of a function; None if the file does not exist."""
        with _as_os_error(self._url):
            try:
                return function()
            except FileNotFoundError:
                return None


def _check_size(path: str, size: int, most: int) -> None:
    if size > most:
        raise LimitError(
            f"{path} has {size:,} bytes, more than {most:,}", hint="raise the limit if the source is trusted"
        )


@contextmanager
def _as_os_error(url: str) -> Iterator[None]:
    """Convert errors of clients of file systems, which have no common class, to OSError."""
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(str(error), hint=f"{url} requires it") from None
    except (OSError, LimitError, MemoryError):
        raise
    except Exception as error:  # of any file system
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error
