"""Reads NNEF containers (NNEF 1.0, 5.1): a directory, a tar or a gzipped tar, told apart by content.

Members are read where they are, nothing is extracted. Of a directory only regular files below it are opened, without
following symbolic links. Of a tar all members must be regular files or folders with relative paths and different
names, and everything counts against ``Limits.max_archive_bytes`` before it is read.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from ...errors import FormatError
from ...limits import Limits
from .labels import GRAPH, QUANT
from .tar import Member, read_index

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)
_CHUNK = 1 << 20

Stream = io.BufferedIOBase


class Container(Protocol):
    """Where the files of a model are; reading may raise what :func:`gzip_errors` turns into FormatError."""

    @property
    def lazy(self) -> bool:
        """Whether single members can be read at any time."""

    @property
    def texts(self) -> dict[str, bytes]:
        """The content of ``graph.nnef`` and, where present, ``graph.quant``."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files, with ``/`` between folders."""

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        """Yield path, open file (valid until the next one) and size in bytes, in an order of the container's own.

        A path that is absent, or no regular file, raises FormatError.
        """


def open_container(source: Path | BinaryIO, limits: Limits) -> Container:
    """The container at a path or in a seekable file.

    Raises
    ------
    FormatError
        It is no container, holds what the module forbids, or has no ``graph.nnef``.
    LimitError
        It is larger than the limits permit.
    OSError
        It cannot be read.
    """
    folder = source if isinstance(source, Path) and source.is_dir() else None
    container: Container = _Directory(folder, limits) if folder else _Tar(source, limits)
    if GRAPH not in container.texts:
        deeper = [name for name in container.files if name.endswith("/" + GRAPH)]
        where = f", only {deeper[0]!a}; the model must be at the top" if deeper else ""
        raise FormatError(f"no {GRAPH}{where}")
    return container


def is_container(source: Path | BinaryIO) -> bool:
    """Whether a path or seekable file looks like an NNEF container."""
    if isinstance(source, Path) and source.is_dir():
        return (source / GRAPH).is_file()
    try:
        with _stream(source) as (stream, _):
            block = stream.read(tarfile.BLOCKSIZE)
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, *_GZIP_ERRORS):
        return False
    return True


class _Directory:
    lazy = True

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root = root
        self.files = self._list(limits)
        self.texts: dict[str, bytes] = {}
        for name, stream, size in self.members(name for name in (GRAPH, QUANT) if name in self.files):
            limits.check("max_topology_bytes", size, f"bytes of {name}")
            self.texts[name] = stream.read(size)

    def _list(self, limits: Limits) -> tuple[str, ...]:
        found: list[str] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    limits.check("max_names", len(found) + len(folders) + 1, "files in the directory")
                    if not entry.is_dir(follow_symlinks=False):
                        found.append(folder + entry.name)
                    elif not entry.name.startswith("."):
                        folders.append(f"{folder}{entry.name}/")
        return tuple(sorted(found))

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        for path in paths:
            with _open_below(self.root, path) as stream:
                yield path, stream, os.fstat(stream.fileno()).st_size


def _open_below(root: Path, path: str) -> io.BufferedReader:
    """Open a regular file below a directory without following links on the way."""
    *folders, name = path.split("/")
    at = os.path.join(root, "")
    for component in (*folders, name):
        at = os.path.join(at, component)
        try:
            mode = os.lstat(at).st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError(f"{path} is missing") from None
        if stat.S_ISLNK(mode):
            raise FormatError(f"{path}: {component!a} is a symbolic link; links are not followed")
    if not stat.S_ISREG(mode):
        raise FormatError(f"{path} is not a regular file")
    return open(at, "rb")


class _Tar:
    def __init__(self, source: Path | BinaryIO, limits: Limits) -> None:
        self.source = source
        with _stream(source) as (stream, plain):
            self.index, self.texts = read_index(stream, limits, texts=(GRAPH, QUANT))
            # The checksum of a gzip stream is at its end.
            while not plain and stream.read(_CHUNK):
                limits.check("max_archive_bytes", stream.tell(), "bytes of the archive")
        self.lazy = plain and isinstance(source, Path)
        self.files = tuple(self.index)

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        wanted: list[tuple[str, Member]] = []
        for path in paths:
            if path not in self.index:
                raise FormatError(f"{path} is missing")
            wanted.append((path, self.index[path]))
        # In the order of the archive, a compressed one is read once and forward.
        wanted.sort(key=lambda item: item[1].offset)
        with _stream(self.source) as (stream, _):
            for path, member in wanted:
                stream.seek(member.offset)
                yield path, stream, member.size


@contextlib.contextmanager
def _stream(source: Path | BinaryIO) -> Iterator[tuple[Stream, bool]]:
    """The bytes of a tar from their start, and whether they are stored plainly, so that seeking is cheap."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO = stack.enter_context(open(source, "rb")) if isinstance(source, Path) else source
        file.seek(0)
        magic = file.read(len(_GZIP_MAGIC))
        file.seek(0)
        if magic == _GZIP_MAGIC:
            yield stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb")), False
        else:
            yield cast(Stream, file), True


@contextlib.contextmanager
def gzip_errors() -> Iterator[None]:
    """Turn what reading a damaged gzip stream raises into FormatError."""
    try:
        yield
    except _GZIP_ERRORS as error:
        raise FormatError(f"the gzip stream is damaged: {error}") from error
