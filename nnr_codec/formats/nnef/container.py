"""Readers of NNEF containers (NNEF 1.0, 5.1): a directory, a tar, a gzipped tar or the text of the graph.

The kind of container is detected from its content. Members are read on demand; nothing is extracted. In a directory,
only regular files are opened, without following symbolic links. In a tar, all members must be regular files or folders
with relative paths and different names, and all bytes are charged to ``Limits.max_archive_bytes`` before they are read.
A gzipped tar is inflated, and a stream copied, to an unnamed temporary file; in a gzipped tar, files that do not belong
to a model are limited before they are inflated. A file ``graph.nnef`` stands for its folder; a text with another name,
or in a stream, stands alone.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import re
import stat
import tarfile
import tempfile
import weakref
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from ...errors import FormatError
from ...limits import Limits
from .. import opened_file, spooled, state
from .labels import GRAPH, QUANT
from .tar import TarMember, read_index

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)
#: Start of a text (NNEF 1.0, 3.2): its first word is ``version``. A byte order mark is rejected later, by name.
#: No alternative of the possessive group may fail halfway: Python 3.11.2 would not go back to where it began.
_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\v\f\r\n]++|#[^\n\f]*+)*+version\b(?! https:)")
_TEXT_BEGINNING = 1 << 16
_RELATIVE = {os.open, os.stat} <= os.supports_dir_fd
# Opening a pipe that replaced a file must not block.
_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

#: Bytes copied at a time, and maximum size kept in memory.
_CHUNK = 1 << 20

Stream = io.BufferedIOBase


class Container(Protocol):
    """Location of the files of a model."""

    @property
    def text_only(self) -> bool:
        """True if the model may consist of the text only, because the source is the text."""

    @property
    def texts(self) -> dict[str, bytes]:
        """Content of ``graph.nnef`` and, if present, ``graph.quant``."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files, with ``/`` as separator."""

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        """Yield path, open file (valid until the next one) and size in bytes, in an order of the container's choice.

        A missing path, or one that is not a regular file, raises FormatError. Only one such iteration may be active at
        a time.
        """

    def only(self, paths: Iterable[str]) -> Container | None:
        """Return these members for another process; None if it cannot read them."""


def open_container(source: Path | BinaryIO, limits: Limits) -> Container:
    """Open the container at a path or in a seekable file.

    Raises
    ------
    FormatError
        The source is not a container, is damaged, has forbidden members, or has no ``graph.nnef``.
    LimitError
        The container exceeds the limits.
    OSError
        The source cannot be read.
    """
    container: Container
    if isinstance(source, Path) and source.is_dir():
        container = Directory(source, limits)
    elif _is_tar(source) or not _is_text(source):
        container = _Tar(source, limits)
    elif isinstance(source, Path) and source.name == GRAPH:
        container = Directory(source.parent, limits, text_only=True)
    else:
        container = _Text(source, limits)
    if GRAPH not in container.texts:
        deeper = [name for name in container.files if name.endswith("/" + GRAPH)]
        where = f"; found only {deeper[0]!a}, but the model must be at the top" if deeper else ""
        raise FormatError(f"{GRAPH} is missing{where}")
    return container


def is_container(source: Path | BinaryIO) -> bool:
    """Return whether a path or seekable file looks like an NNEF container."""
    if isinstance(source, Path) and source.is_dir():
        return (source / GRAPH).is_file()
    return _is_tar(source) or _is_text(source)


def _is_tar(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like a tar, gzipped or not."""
    try:
        with _stream(source) as (stream, _):
            block = stream.read(tarfile.BLOCKSIZE)
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, *_GZIP_ERRORS):
        return False
    return True


def _is_text(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like the text of a graph."""
    with opened_file(source) as file:
        return _TEXT.match(file.read(_TEXT_BEGINNING)) is not None


class _Text:
    text_only, files = True, (GRAPH,)

    def __init__(self, source: Path | BinaryIO, limits: Limits) -> None:
        with opened_file(source) as file:
            limits.check("max_topology_bytes", file.seek(0, os.SEEK_END), f"bytes of {GRAPH}")
            file.seek(0)
            self.texts = {GRAPH: file.read()}

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        for path in paths:
            raise FormatError(f"{path} is missing")
        yield from ()

    def only(self, paths: Iterable[str]) -> None:
        """See Container."""


class Directory:
    """Folder with these ``texts``, if present; ``text_only`` as in :class:`Container`."""

    def __init__(
        self, root: Path, limits: Limits, *, text_only: bool = False, texts: tuple[str, ...] = (GRAPH, QUANT)
    ) -> None:
        self.root, self.text_only, self._limits = root, text_only, limits
        self.texts: dict[str, bytes] = {}
        for name, stream, size in self.members(name for name in texts if os.path.lexists(root / name)):
            limits.check("max_topology_bytes", size, f"bytes of {name}")
            self.texts[name] = stream.read(size)

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        found: list[str] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    self._limits.check("max_names", len(found) + len(folders) + 1, "files in the directory")
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")
                    else:
                        found.append(folder + entry.name)
        return tuple(sorted(found))

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        paths = list(paths)
        root = _open_folder(self.root) if _RELATIVE and len(paths) != 1 else self.root
        try:
            for path in paths:
                with _open_below(root, path) as stream:
                    yield path, stream, os.fstat(stream.fileno()).st_size
        finally:
            if isinstance(root, int):
                os.close(root)

    def only(self, paths: Iterable[str]) -> Container:
        """See :class:`Container`."""
        return _Files(self.root, paths)


class _Files:
    """Files of a folder, identified by size and modification time."""

    text_only = False

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root, self.texts = root.absolute(), dict[str, bytes]()
        self.states: dict[str, tuple[int, ...]] = {}
        for path in paths:
            with _open_below(root, path) as stream:
                self.states[path] = state(stream)[-2:]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.states)

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        for path in paths:
            os.stat(self.root / path)  # raises an error with the whole path if it is missing
            with _open_below(self.root, path) as stream:
                if state(stream)[-2:] != self.states[path]:
                    raise FormatError(f"{self.root / path} has changed since the model was opened")
                yield path, stream, self.states[path][0]

    def only(self, paths: Iterable[str]) -> Container:
        return _Files(self.root, paths)


def _open_folder(root: Path) -> int:
    """Open a folder for :func:`_open_below`; the caller closes it."""
    return os.open(os.path.join(root, ""), os.O_RDONLY)


def _open_below(root: Path | int, path: str) -> io.BufferedReader:
    """Open a regular file below a directory, given by path or descriptor, without following links on the way.

    If the system supports opening relative to a folder, links cannot be inserted meanwhile. A file at the top level
    needs no open folder.
    """
    components = path.split("/")
    at, folder = "", None
    if isinstance(root, int):
        folder = root
    elif _RELATIVE and len(components) > 1:
        folder = _open_folder(root)
    else:
        at = os.path.join(root, "")

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | _UNFOLLOWED, dir_fd=folder)

    try:
        for depth, component in enumerate(components, 1):
            at = os.path.join(at, component) if folder is None else component
            mode = os.stat(at, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise FormatError(f"{path}: {component!a} is a symbolic link; links are not followed")
            if folder is not None and depth < len(components):
                deeper = opener(at, os.O_RDONLY | os.O_DIRECTORY)
                if folder != root:
                    os.close(folder)
                folder = deeper
        if not stat.S_ISREG(mode):
            raise FormatError(f"{path} is not a regular file")
        return io.BufferedReader(io.FileIO(at, "rb", opener=opener))
    except (FileNotFoundError, NotADirectoryError):
        if not isinstance(root, int):
            os.stat(os.path.join(root, ""))  # raises an error with the folder's path if it is missing
        raise FormatError(f"{path} is missing") from None
    finally:
        if folder is not None and folder != root:
            os.close(folder)


class _Tar:
    text_only = False

    def __init__(self, source: Path | BinaryIO, limits: Limits) -> None:
        self.source: Path | BinaryIO = source
        with _gzip_errors(), _stream(source) as (stream, compressed):
            if compressed is not None:
                self.source = spool = cast(BinaryIO, tempfile.SpooledTemporaryFile(_CHUNK))  # noqa: SIM115
                weakref.finalize(self, spool.close)
                copied = io.BufferedReader(_Copied(stream, spool))
                self.index, self.texts = read_index(copied, limits, texts=(GRAPH, QUANT), compressed=compressed)
            elif not isinstance(source, Path):
                self.source = spooled(stream, limits, "bytes of the archive")
                weakref.finalize(self, self.source.close)
        with opened_file(self.source) as file:
            if compressed is None:
                self.index, self.texts = read_index(cast(Stream, file), limits, texts=(GRAPH, QUANT))
            self.state = self._state(file)
        self.files = tuple(self.index)

    def members(self, paths: Iterable[str]) -> Generator[tuple[str, Stream, int]]:
        wanted: list[tuple[str, TarMember]] = []
        for path in paths:
            if path not in self.index:
                raise FormatError(f"{path} is missing")
            wanted.append((path, self.index[path]))
        # In file order, for sequential access.
        wanted.sort(key=lambda item: item[1].offset)
        with opened_file(self.source) as file:
            if self._state(file)[-len(self.state) :] != self.state:
                raise FormatError("the archive has changed since it was opened")
            for path, member in wanted:
                file.seek(member.offset)
                yield path, cast(Stream, file), member.size

    def only(self, paths: Iterable[str]) -> Container | None:
        """See Container; the archive is identified by size and modification time."""
        if not isinstance(self.source, Path):
            return None
        part = object.__new__(_Tar)
        part.source, part.texts, part.state = self.source.absolute(), {}, self.state[-2:]
        part.index = {path: self.index[path] for path in paths}
        part.files = tuple(part.index)
        return part

    def _state(self, file: BinaryIO) -> tuple[int, ...]:
        """Return the state of a file that other processes can access."""
        return state(file) if isinstance(self.source, Path) else ()


class _Copied(io.RawIOBase):
    """Stream that is read once, forward, and copied to a file at the same time."""

    def __init__(self, stream: Stream, copy: BinaryIO) -> None:
        self._stream, self._copy, self._at = stream, copy, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read1(min(len(buffer), _CHUNK))
        self._copy.write(data)
        self._at += len(data)
        buffer[: len(data)] = data
        return len(data)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        assert whence == os.SEEK_SET
        while position > self._at and self.read(min(position - self._at, _CHUNK)):
            pass
        return self._at


@contextlib.contextmanager
def _stream(source: Path | BinaryIO) -> Iterator[tuple[Stream, int | None]]:
    """Yield the bytes of a tar from their start, and the size of the gzip stream; None if it is not compressed."""
    with opened_file(source) as file:
        magic = file.read(len(_GZIP_MAGIC))
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if magic == _GZIP_MAGIC:
            with gzip.GzipFile(fileobj=file, mode="rb") as stream:
                yield stream, size
        else:
            yield cast(Stream, file), None


@contextlib.contextmanager
def _gzip_errors() -> Iterator[None]:
    """Convert errors of reading a damaged gzip stream to FormatError."""
    try:
        yield
    except _GZIP_ERRORS as error:
        raise FormatError(f"the gzip stream is damaged: {error}") from error
