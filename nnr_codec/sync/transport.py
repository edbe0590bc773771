"""Folders and byte streams that carry records with their payloads."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import FormatError, LimitError, NnrError
from ..folders import open_folder
from ..limits import Limits
from .records import (
    HEAD,
    MAGIC,
    MARKER,
    MOST_BYTES,
    Record,
    marker,
    record_in,
    stream_of,
    version_of,
    version_path,
)


class SyncFolder:
    """Folder with the versions of one stream.

    Parameters
    ----------
    url : path or str
    limits : Limits
        ``max_archive_bytes`` limits the size of a payload.
    options : mapping, optional
        Arguments of the file system of fsspec.

    Attributes
    ----------
    url : str
    stream : str
        Identifier of the stream; empty until :meth:`open` finds the folder.
    """

    def __init__(self, url: str | os.PathLike[str], limits: Limits, options: Mapping[str, Any] | None) -> None:
        self.url, self.stream, self._limits = os.fspath(url), "", limits
        self._folder = open_folder(url, options)

    def open(self, *, create: bool = False) -> bool:
        """Return whether the folder exists, after the first call that finds it. Raise FormatError if it is damaged."""
        text = None if self.stream else self._folder.read([MARKER], MOST_BYTES).get(MARKER)
        if create and text is None and not self.stream:
            text = marker(secrets.token_hex(16))
            try:
                self._folder.write(MARKER, text, new=True)
            except FileExistsError:  # another publisher was faster
                text = self._folder.read([MARKER], MOST_BYTES).get(MARKER)
            if text is None:
                raise FileNotFoundError(f"{MARKER} exists, but cannot be read yet ({self.url}); try again")
        if text is not None:
            with within(f"{self.url}: {MARKER}"):
                self.stream = stream_of(text)
        return bool(self.stream)

    def versions(self) -> set[int]:
        """Return the versions that have a record."""
        return self._numbers("versions")

    def anchors(self) -> set[int]:
        """Return the versions that have an additional anchor."""
        return self._numbers("anchors")

    def records(self, paths: Collection[str], errors: dict[str, NnrError]) -> list[Record]:
        """Return the records of these paths that exist. Errors of invalid records are added to ``errors``."""
        found = []
        for path, text in self._read(paths, MOST_BYTES, errors).items():
            with self._noted(path, errors):
                record = Record.parse(text)
                if record.version != version_of(path):
                    raise FormatError(f"the record is of version {record.version}")
                if record.stream != self.stream:
                    raise FormatError("the record belongs to another stream")
                self._limits.check("max_archive_bytes", record.size, "bytes of a payload")
                found.append(record)
        return found

    def payloads(self, records: Iterable[Record], errors: dict[str, NnrError]) -> dict[str, bytes]:
        """Return the payloads of records by path. Errors of missing and damaged payloads are added to ``errors``."""
        by_path = {record.payload_path: record for record in records}
        data = self._read(by_path, max((record.size for record in by_path.values()), default=0), errors)
        for path, record in by_path.items():
            if path in errors:
                continue
            with self._noted(path, errors):
                if path not in data:
                    raise FormatError(f"the payload of the {record} is missing")
                if hashlib.sha256(data[path]).hexdigest() != record.sha256:
                    raise FormatError(f"the payload of the {record} is damaged: its digest does not match")
        return data

    def write(self, record: Record, data: bytes, *, additional: bool = False) -> None:
        """Write a payload, then its record. Raise FileExistsError if the version exists."""
        self._folder.write(record.payload_path, data)
        path, text = version_path(record.version, anchor=additional), record.to_bytes()
        try:
            self._folder.write(path, text, new=True)
        except FileExistsError:  # also if a client repeats a request without a reply
            if self._folder.read([path], MOST_BYTES).get(path) != text:
                raise

    def remove_before(self, version: int) -> None:
        """Delete all earlier versions, their payloads last."""
        for under in ("versions", "anchors", "payloads"):
            for path in self._folder.sizes(under):
                if 0 < version_of(path) < version:
                    self._folder.remove(path)

    def _read(self, paths: Collection[str], most: int, errors: dict[str, NnrError]) -> dict[str, bytes]:
        """Return the contents of files that exist. Errors of files that are too large are added to ``errors``."""
        with suppress(LimitError):
            return self._folder.read(paths, most)
        found: dict[str, bytes] = {}
        for path in paths:
            with self._noted(path, errors):
                found |= self._folder.read([path], most)
        return found

    @contextmanager
    def _noted(self, path: str, errors: dict[str, NnrError]) -> Iterator[None]:
        """Add an error of the block to ``errors``."""
        try:
            with within(f"{self.url}: {path}"):
                yield
        except NnrError as error:
            errors[path] = error

    def _numbers(self, under: str) -> set[int]:
        return {version_of(path) for path in self._folder.sizes(under)} - {0}


class FrameReader:
    """Reader of frames in a byte stream that may be damaged.

    Parameters
    ----------
    limits : Limits
        As for :class:`SyncFolder`.

    Attributes
    ----------
    damaged : bool
        Whether bytes were skipped.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._data = limits, bytearray()
        self._searched = 0  # bytes of an incomplete frame in which no other frame begins
        self.damaged = False

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        self._data += memoryview(data)

    def frames(self) -> Iterator[tuple[Record, bytes]]:
        """Yield all complete frames, with their payloads verified.

        Raises FormatError for an invalid record and LimitError for a large payload; the next call continues behind it.
        """
        while True:
            start = self._data.find(MAGIC)
            self._skip(start if start >= 0 else max(0, len(self._data) - len(MAGIC) + 1))
            if start < 0:
                return
            try:
                text = record_in(self._data, 0)
                record = None if text is None else self._record(text)
            except ValueError as error:
                self._skip(1)
                if isinstance(error, NnrError):
                    raise
                continue
            if text is not None and record is not None:
                stop = HEAD + len(text) + record.size
                if len(self._data) >= stop:
                    payload = bytes(memoryview(self._data)[stop - record.size : stop])
                    if hashlib.sha256(payload).hexdigest() == record.sha256:
                        del self._data[:stop]
                        self._searched = 0
                        yield record, payload
                    else:
                        self._skip(1)
                    continue
            if not self._resume():
                return

    def _record(self, text: bytes) -> Record:
        record = Record.parse(text)
        self._limits.check("max_archive_bytes", record.size, "bytes of a payload")
        return record

    def _resume(self) -> bool:
        """Skip an incomplete frame if another frame begins in it: bytes were lost. Return whether there is one."""
        start = self._data.find(MAGIC, max(1, self._searched))
        while start > 0:
            try:
                if record_in(self._data, start) is None:
                    self._searched = start
                    return False
                self._skip(start)
                return True
            except ValueError:
                start = self._data.find(MAGIC, start + 1)
        self._searched = max(0, len(self._data) - len(MAGIC) + 1)
        return False

    def _skip(self, count: int) -> None:
        """Drop damaged bytes."""
        if count:
            del self._data[:count]
            self._searched, self.damaged = 0, True


@contextmanager
def within(what: str) -> Iterator[None]:
    """Prepend a file or version to the place of an error of the block."""
    try:
        yield
    except NnrError as error:
        error.within(what)
        raise
