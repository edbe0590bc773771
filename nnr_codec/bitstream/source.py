"""Sources of the bytes of a bitstream: memory, a file path, an open file, or chunks that arrive."""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from ..errors import TruncatedError
from ..limits import Limits
from ..parallel.pool import worker_errors
from ..rules import Requirement
from ..urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from .unit_index import UnitIndex

    Bitstream = Buffer | str | os.PathLike[str] | BinaryIO

_CHUNK = 1 << 20


class MoreNeededError(Exception):
    """Request for more bytes; internal, never raised to callers of the package."""


class Source(Protocol):
    """Random access to the bytes of a bitstream.

    ``size`` is their number; ``window`` is the number of bytes to fetch first for the header of a unit; ``in_order``
    means that units must be taken complete and in sequence; ``index`` is the index of the units, once it is read.
    """

    size: int
    window: int
    in_order: bool
    index: UnitIndex | None = None

    def peek(self, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to at most ``stop``; fewer if no more are available yet."""

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop``, both within the bitstream."""

    def span(self, start: int, stop: int) -> memoryview | Span:
        """Return a reference to bytes that a decoder may need later."""

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce ranges that will be viewed completely; sources of local bytes ignore it."""
        return

    def portable(self) -> PathSource | None:
        """Return a source that other processes can open; None if there is none."""

    def close(self) -> None:
        """Release the bytes; existing views stay valid."""


class Span:
    """Range of a source that is fetched on each access."""

    __slots__ = ("_source", "start", "stop")

    def __init__(self, source: Source | PathSource, start: int, stop: int) -> None:
        self._source, self.start, self.stop = source, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def view(self) -> memoryview:
        """Return the bytes."""
        return self._source.view(self.start, self.stop)

    def portable(self) -> Span | bytes:
        """Return the range for another process: a range of a file that it can open, or the bytes."""
        source = self._source if isinstance(self._source, PathSource) else self._source.portable()
        return Span(source, self.start, self.stop) if source else bytes(self.view())


class MemorySource(Source):
    """Bytes in memory."""

    window, in_order = Limits.NONE, False

    def __init__(self, data: memoryview) -> None:
        self._data, self.size = data.toreadonly(), len(data)

    def view(self, start: int, stop: int) -> memoryview:
        """See Source."""
        return self._data[start:stop]

    peek = span = view

    def portable(self) -> None:
        """See Source."""

    def close(self) -> None:
        """See Source."""
        self._data.release()


class PathSource:
    """File path that is opened for each view; it can be pickled.

    Parameters
    ----------
    path : str
    start : int
        Offset of the bitstream in the file, in bytes.
    state : tuple of int
        Size and modification time of the file; a view raises WorkerError if they changed or the file is missing.
    """

    def __init__(self, path: str, start: int, state: tuple[int, int]) -> None:
        self._path, self._start, self._state = path, start, state

    @classmethod
    def of(cls, path: str | os.PathLike[str], status: os.stat_result, start: int = 0) -> PathSource:
        """Return the source of an open file with this status."""
        state = status.st_size, status.st_mtime_ns
        return cls(os.path.abspath(os.fspath(path)), start, state)

    def view(self, start: int, stop: int) -> memoryview:
        """See Source."""
        with worker_errors(), open(self._path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != self._state:
                raise OSError(errno.ESTALE, "its size or modification time changed while it was read", self._path)
            content = bytearray(stop - start)
            file.seek(self._start + start)
            left = memoryview(content)
            while left:
                count = file.readinto(left)
                if not count:
                    raise OSError(errno.EIO, "it became shorter while it was read", self._path)
                left = left[count:]
        return memoryview(content).toreadonly()


class FileSource(Source):
    """Seekable file, read from its current position and only where bytes are needed. The caller closes it.

    Plain operating system files are read without moving their position, which processes share after a fork. For other
    files with a descriptor, views raise OSError in a child process.
    """

    window, in_order = 64, False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._lock = file, Lock()
        raw = file.raw if isinstance(file, (io.BufferedReader, io.BufferedRandom)) else file
        self._raw = raw if type(raw) in (io.FileIO, _OwnFile) and hasattr(os, "pread") else None
        self._process = None  # process that opened a file with a descriptor
        with suppress(OSError, AttributeError):  # no descriptor
            file.fileno()
            self._process = os.getpid()
        self._start = file.tell()
        self.size = max(file.seek(0, os.SEEK_END) - self._start, 0)

    def view(self, start: int, stop: int) -> memoryview:
        """See Source. Raise TruncatedError if the file was shortened."""
        parts, left = [], stop - start
        while left > 0:
            part = self._part(self._start + stop - left, left)
            if not part:
                raise TruncatedError(
                    f"the file became shorter than {self.size} bytes while it was read", rule=Requirement.UNIT_SIZE
                )
            parts.append(part)
            left -= len(part)
        return memoryview(b"".join(parts))  # join does not copy a single part

    def _part(self, place: int, count: int) -> bytes:
        """Return at most ``count`` bytes from an offset in the file; empty at its end."""
        if self._raw:
            return os.pread(self._raw.fileno(), count, place)
        if self._process not in (None, os.getpid()):
            raise OSError(errno.EBADF, "the file position is shared with another process; open the file again")
        with self._lock:
            self._file.seek(place)
            return self._file.read(count)

    peek = view

    def span(self, start: int, stop: int) -> Span:
        """See Source."""
        return Span(self, start, stop)

    def portable(self) -> PathSource | None:
        """See Source. Return None unless the file is a regular file with a name."""
        raw = getattr(self._file, "raw", self._file)
        if not isinstance(raw, io.FileIO) or not isinstance(raw.name, str) or not self._file.readable():
            return None
        status = os.fstat(raw.fileno())
        return PathSource.of(raw.name, status, self._start) if stat.S_ISREG(status.st_mode) else None

    def close(self) -> None:
        """See Source."""


class _OwnFile(io.FileIO):
    """File that closes without a ResourceWarning when collected, even before its source in a reference cycle."""

    __del__ = io.FileIO.close


class OpenedSource(FileSource):
    """Regular file by path, open until the source is closed or collected.

    It is not mapped into memory, because the system kills a process that reads a mapped part after truncation.
    """

    def __init__(self, file: io.FileIO, path: str | os.PathLike[str]) -> None:
        super().__init__(cast(BinaryIO, file))
        self._place = PathSource.of(path, os.fstat(file.fileno()))

    def portable(self) -> PathSource:
        """See Source."""
        return self._place

    def close(self) -> None:
        """See Source."""
        self._file.close()

    def __del__(self) -> None:
        if not self._file.closed:
            self.close()


class ChunkSource(Source):
    """Bytes that arrive in chunks and are discarded after use."""

    window, in_order = 64, True

    def __init__(self) -> None:
        self.size = Limits.NONE  # until the end is known
        self._content, self._start = bytearray(), 0

    def feed(self, chunk: Buffer) -> None:
        """Append bytes."""
        self._content += _flat(chunk)

    def end(self) -> None:
        """Mark the end of the bytes."""
        self.size = self._start + len(self._content)

    def forget(self, start: int) -> None:
        """Discard all bytes before ``start``."""
        del self._content[: start - self._start]
        self._start = start

    def peek(self, start: int, stop: int) -> memoryview:
        """See Source. Return a copy."""
        return memoryview(bytes(self._content[start - self._start : stop - self._start]))

    def view(self, start: int, stop: int) -> memoryview:
        """See Source. Return a copy; raise MoreNeededError if the bytes have not arrived."""
        if stop > self._start + len(self._content):
            raise MoreNeededError
        return self.peek(start, stop)

    span = view

    def portable(self) -> None:
        """See Source."""

    def close(self) -> None:
        """See Source."""
        self._content.clear()


def open_source(data: Bitstream, limits: Limits) -> Source:
    """Return the source of a bitstream; of a regular or seekable file or a URL, only the needed parts are read.

    Raises LimitError for a non-seekable stream of more than max_total_bytes, OSError for a file that cannot be read,
    and TypeError for any other object.
    """
    if is_url(data):
        from .remote import open_url  # which imports urllib

        return open_url(data, limits)
    if isinstance(data, (str, os.PathLike)):
        if stat.S_ISREG(os.stat(data).st_mode):
            return OpenedSource(_OwnFile(os.fsdecode(data)), data)
        with Path(data).open("rb") as file:
            return read_stream(file, limits)
    try:
        return MemorySource(_flat(cast("Buffer", data)))
    except TypeError:
        if not hasattr(data, "read"):
            raise
        stream = cast(BinaryIO, data)
        seekable = getattr(stream, "seekable", None)
        return FileSource(stream) if seekable and seekable() else read_stream(stream, limits)


def _flat(data: Buffer) -> memoryview:
    """Return the bytes of an object, copied only if they are not contiguous."""
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def read_stream(file: BinaryIO, limits: Limits) -> MemorySource:
    """Return the source of a stream, which is read to its end. Raises LimitError beyond max_total_bytes."""
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        limits.check("max_total_bytes", len(content), "bytes of the stream")
    if chunk is None:  # not the end
        raise BlockingIOError("the stream is non-blocking; use StreamDecoder")
    return MemorySource(memoryview(content))
