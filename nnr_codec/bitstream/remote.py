"""Sources at a URL: ranges of a remote file, with few requests.

Bytes are read in blocks, and blocks are kept in a cache of bounded size. There are three rules for the bytes of a block
beyond the requested ones:

* Ranges that will be decoded are announced (:meth:`RemoteSource.expect`), joined, and read in blocks of up to 8 MiB.
* With an index of the units, headers come from the index. Everything before the first tensor is one block; other
  blocks have only the requested bytes, and the headers in them are compared with the index.
* Without an index, blocks begin at headers. If a block begins shortly after the last one (at most 256 KiB, or the
  length of the last block), it is twice as long, up to 4 MiB: reading small payloads takes less time than further
  requests. If it begins further away, a large payload was skipped, and the block has 16 KiB.

HTTP needs only the standard library; all other schemes use fsspec.
"""

from __future__ import annotations

import base64
import errno
import http.client
import os
import re
import string
import time
import urllib.error
import urllib.request
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..errors import LimitError
from ..limits import Limits
from ..urls import public
from .source import MemorySource, Source, Span, read_stream

if TYPE_CHECKING:
    from http.client import HTTPMessage, HTTPResponse

    from .unit_index import UnitIndex

T = TypeVar("T")

#: Bytes of the first block: the parameter sets and the index of a model with a few thousand tensors, in one request.
FIRST = 1 << 16
#: Bytes of a block after a skipped payload, and the most that blocks of headers grow to.
LEAST, MOST = 1 << 14, 4 << 20
#: Bytes that are read rather than skipped: they take 20 ms at 100 Mbit/s, about as long as a request.
SKIP = 1 << 18
#: Most bytes read at a time for decoding, unless one unit is larger.
PIECE = 8 << 20
#: Bytes between two announced ranges that are read together: headers and small units.
GAP = 4096
#: Most bytes of the cache.
CACHE = 64 << 20
#: Seconds before each further attempt at a failed request.
DELAYS = (0.25, 1.0, 4.0)
#: Seconds without any answer after which an attempt fails.
TIMEOUT = 60.0
#: Statuses of HTTP that a further attempt may change.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class Remote(Protocol):
    """File on a server; ``size`` is its size in bytes."""

    size: int

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes from ``start`` on, at most to ``stop`` and at least one; raise OSError if there are none."""

    def close(self) -> None:
        """End connections."""


class RemoteSource(Source):
    """Ranges of a remote file; see the module."""

    window, in_order = 64, False

    def __init__(self, remote: Remote, first: bytes) -> None:
        self._remote, self.size = remote, remote.size
        self._blocks = deque([(0, first)])  # offsets and bytes, in the order in which they were read
        self._index: UnitIndex | None = None
        self._lock = Lock()
        self._ahead = FIRST  # bytes of the last block of headers
        self._runs: tuple[list[int], list[int]] = [], []  # starts and stops of the announced ranges

    @property
    def index(self) -> UnitIndex | None:
        """See Source. Setting it raises ElementError if bytes in the cache contradict it."""
        return self._index

    @index.setter
    def index(self, index: UnitIndex | None) -> None:
        if index:
            for place, block in self._blocks:
                index.check(place, block)
        self._index = index

    def peek(self, start: int, stop: int) -> memoryview:
        """See Source. Return the copy in the index, which may be longer or shorter."""
        copy = self.index.copy_at(start) if self.index else b""
        return memoryview(copy) if len(copy) >= min(5, stop - start) else self.view(start, stop)

    def view(self, start: int, stop: int) -> memoryview:
        """See Source. Raise OSError for failures, and ElementError if the bytes contradict the index."""
        copy = self.index.copy_at(start) if self.index else b""
        if len(copy) >= stop - start:
            return memoryview(copy)[: stop - start]
        parts, position = list[memoryview](), start
        with self._lock:
            while position < stop:
                place, block = self._block(position, stop)
                parts.append(memoryview(block)[position - place : stop - place])
                position += len(parts[-1])
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _block(self, start: int, stop: int) -> tuple[int, bytes]:
        """Return offset and bytes of a block with the byte at ``start``, and more up to ``stop`` if it is new."""
        begin, end = self.index.unit_at(start) if self.index else 0, self.size
        for place, block in reversed(self._blocks):
            if place <= start < place + len(block):
                return place, block
            if place > start:
                end = min(end, place)
            else:
                begin = max(begin, place + len(block))  # units are read with their headers, but not twice
        begin = begin if self.index else start
        block = self._read(begin, min(self._end(begin, start, stop), end))
        return begin, block

    def _end(self, begin: int, start: int, stop: int) -> int:
        """Return the end of a block from ``begin``, of which ``start`` to ``stop`` is requested."""
        run = bisect_right(self._runs[0], start) - 1
        if run >= 0 and start < self._runs[1][run]:
            return max(stop, min(self._runs[1][run], begin + PIECE))
        if self.index:
            return max(stop, min(self.index.first, begin + PIECE))
        place, block = self._blocks[-1]
        is_near = 0 <= begin - place - len(block) <= max(self._ahead, SKIP)
        self._ahead = min(2 * self._ahead, MOST) if is_near else LEAST
        return max(stop, begin + self._ahead)

    def _read(self, start: int, stop: int) -> bytes:
        """Return a block, which is kept in the cache."""
        parts, position = [], start
        while position < stop:
            part = self._remote.read(position, stop)
            parts.append(part)
            position += len(part)
        block = b"".join(parts)  # does not copy a single part
        if self.index:
            self.index.check(start, block)
        self._blocks.append((start, block))
        while len(self._blocks) > 1 and sum(len(block) for _, block in self._blocks) > CACHE:
            self._blocks.popleft()
        return block

    def span(self, start: int, stop: int) -> Span:
        """See Source."""
        return Span(self, start, stop)

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """See Source. Ranges that were announced before are forgotten."""
        starts, stops = list[int](), list[int]()
        for start, stop in sorted(ranges):
            if stops and start - stops[-1] <= GAP:
                stops[-1] = max(stops[-1], stop)
            else:
                starts.append(start)
                stops.append(stop)
        self._runs = starts, stops

    def portable(self) -> None:
        """See Source."""

    def close(self) -> None:
        """See Source."""
        self._remote.close()
        self._blocks.clear()


def open_url(url: str, limits: Limits) -> Source:
    """Return the source of the file at a URL.

    A file from a server that does not support ranges is read completely. Raises LimitError if it has more than
    max_total_bytes, OSError for failures, and MissingDependencyError for a missing package.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return _open_http(url, limits)
    return _open_fsspec(url, scheme, limits)


def _attempt(call: Callable[[], T], url: str, is_transient: Callable[[Exception], bool]) -> T:
    """Return the result of a call, after further attempts if it fails; errors become OSError without credentials."""
    for delay in (*DELAYS, None):
        try:
            return call()
        except LimitError:
            raise
        except Exception as error:  # of any library
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if delay is None or not is_transient(error):
                raise _failure(error, url) from None
            time.sleep(delay)
    raise AssertionError


def _failure(error: Exception, url: str) -> OSError:
    """Return the error for a failed request."""
    shown = public(url)
    if isinstance(error, urllib.error.HTTPError):
        status = public(f"the server replied {error.code} {error.reason}")
        if error.code in (404, 410):
            return FileNotFoundError(errno.ENOENT, status, shown)
        return OSError(errno.EACCES if error.code in (401, 403) else errno.EIO, status, shown)  # a PermissionError
    if isinstance(error, OSError) and error.errno == errno.ESTALE:
        return error
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else error
    login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    text = public(getattr(error, "strerror", None) or str(error) or type(error).__name__)
    text = text.replace(f"{login}@", "") if login else text
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return type(error)(error.errno or errno.ENOENT, "the file does not exist, or access is denied", shown)
    return OSError(errno.EIO, f"reading failed: {' '.join(text.split())}", shown)


def _changed(url: str) -> OSError:
    return OSError(errno.ESTALE, "the file changed on the server while it was read; open it again", public(url))


# ------------------------------------------------------------------------------------------------------------- HTTP
class _HttpFile:
    """File on an HTTP server: one request for each range; its ETag, or else its date, must stay the same."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        self._url = url
        self._address = quote(urlunsplit((parts.scheme, host, parts.path or "/", parts.query, "")), string.punctuation)
        self._login = base64.b64encode(unquote(user).encode()).decode() if at else ""
        self._opener = _opener()
        self._state: tuple[int, str] | None = None
        self.size = 0

    def read(self, start: int, stop: int) -> bytes:
        """See Remote."""
        content = _attempt(lambda: self._range(start, stop), self._url, _is_transient)
        assert content is not None
        return content

    def first(self, limits: Limits) -> bytes | MemorySource:
        """Return the first block, or the whole file if the server does not support ranges."""

        def call() -> bytes | MemorySource:
            whole: list[MemorySource] = []
            content = self._range(0, FIRST, lambda response: whole.append(_whole(response, limits)))
            return whole[0] if content is None else content

        return _attempt(call, self._url, _is_transient)

    def _range(self, start: int, stop: int, whole: Callable[[HTTPResponse], None] | None = None) -> bytes | None:
        """Return a range; None after a call of ``whole`` with a response that has the whole file."""
        request = urllib.request.Request(self._address, headers={"Accept-Encoding": "identity"})
        request.add_header("Range", f"bytes={start}-{stop - 1}")
        request.add_header("User-Agent", "nnr_codec")
        if self._login:  # not sent to the targets of redirections
            request.add_unredirected_header("Authorization", f"Basic {self._login}")
        with self._opener.open(request, timeout=TIMEOUT) as response:
            if response.status != 206:
                if not whole:
                    raise _changed(self._url)
                whole(response)
                return None
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if not match or not start == int(match[1]) <= int(match[2]) < min(stop, int(match[3])):
                raise OSError("the server replied with a range that was not requested")
            state = int(match[3]), response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            if state != (self._state or state):
                raise _changed(self._url)
            size = int(match[2]) - start + 1
            content: bytes = response.read(size)
            if len(content) < size:
                raise http.client.IncompleteRead(content, size - len(content))
            self._state, self.size = state, state[0]
            return content

    def close(self) -> None:
        """See Remote."""


def _whole(response: HTTPResponse, limits: Limits) -> MemorySource:
    """Return the source of a whole response."""
    length = response.length
    if length is not None:
        limits.check("max_total_bytes", length, "bytes of the file, whose server does not support ranges")
    source = read_stream(cast(BinaryIO, response), limits)
    if length is not None and source.size < length:
        raise http.client.IncompleteRead(b"", length - source.size)
    return source


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Redirections to http and https only, never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        scheme = newurl.partition(":")[0].lower()
        if scheme not in ("https", req.type):
            raise OSError(f"the server redirects to another scheme, {public(newurl)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener without handlers for file:, ftp: and data:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
        _Redirections,
    ):
        opener.add_handler(handler())
    return opener


def _is_transient(error: Exception) -> bool:
    """Return whether a further attempt at a request may succeed."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in _TRANSIENT
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, ConnectionRefusedError):
        return False
    return isinstance(error, (ConnectionError, TimeoutError, http.client.BadStatusLine, http.client.IncompleteRead))


def _open_http(url: str, limits: Limits) -> Source:
    try:
        file = _HttpFile(url)
        first = file.first(limits)
    except ValueError as error:  # of urlsplit and http.client
        if isinstance(error, LimitError):
            raise
        raise OSError(errno.EINVAL, "the URL is invalid", public(url)) from None
    return first if isinstance(first, MemorySource) else RemoteSource(file, first)


# ----------------------------------------------------------------------------------------------------------- fsspec
class _FsspecFile:
    """File of an fsspec file system.

    The file systems of S3 send the ETag with each request; for others, the information on the file is compared after
    each read.
    """

    def __init__(self, url: str, system: Any, path: str) -> None:
        self._url, self._system, self._path = url, system, path
        self._file: Any = system.open(path, "rb", cache_type="none")
        self.seekable = self._file.seekable()
        self._state = "" if "IfMatch" in getattr(self._file, "read_kw", ()) else self._ukey()
        self.size: int = self._file.seek(0, os.SEEK_END) if self.seekable else 0

    def _ukey(self) -> str:
        self._system.invalidate_cache()
        return str(self._system.ukey(self._path))

    def read(self, start: int, stop: int) -> bytes:
        """See Remote."""
        return _attempt(lambda: self._range(start, stop), self._url, _is_transient)

    def _range(self, start: int, stop: int) -> bytes:
        try:
            self._file.seek(start)
            content: bytes = self._file.read(stop - start)
        except Exception as error:
            if type(error).__name__ == "FileExpired":  # fsspec, for another ETag
                raise _changed(self._url) from None
            raise
        if not content or (self._state and self._ukey() != self._state):
            raise _changed(self._url)
        return content

    def stream(self, limits: Limits) -> MemorySource:
        """Return the source of a file that can only be read from the start to the end."""
        return read_stream(self._file, limits)

    def close(self) -> None:
        """See Remote."""
        self._file.close()


def _open_fsspec(url: str, scheme: str, limits: Limits) -> Source:
    from ..formats import require

    core: Any = require("fsspec.core", "remote", f"a URL {scheme}://")
    try:
        system, path = core.url_to_fs(url)
    except ImportError as error:
        raise OSError(errno.EPROTONOSUPPORT, public(str(error)), public(url)) from None
    except ValueError:
        raise OSError(errno.EPROTONOSUPPORT, f"no file system is known for {scheme}://", public(url)) from None
    file = _attempt(lambda: _FsspecFile(url, system, path), url, _is_transient)
    if not file.seekable:
        return _attempt(lambda: file.stream(limits), url, lambda error: False)
    return RemoteSource(file, file.read(0, min(FIRST, file.size))) if file.size else MemorySource(memoryview(b""))
