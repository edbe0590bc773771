"""Wire format of protocol buffers: fields of messages in files that are read in windows, and packed varints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, LimitError
from ..limits import Limits

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
#: Maximum size of a varint in bytes.
LONGEST = 10

_WINDOW = 1 << 14
_MAX_FIELD = (1 << 29) - 1
_FIXED = {FIXED64: 8, FIXED32: 4}
# Minimum size of a field in bytes.
_SHORTEST = 2

_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]


class Field(NamedTuple):
    """Field of a message, as offsets in the file.

    Parameters
    ----------
    number, wire : int
        Field number and wire type.
    start : int
        Start of the field, including its key.
    body, end : int
        Start and end of the value, without the length of a LENGTH.
    value : int
        Value of a VARINT; for a LENGTH, the start of its length; else 0.
    """

    number: int
    wire: int
    start: int
    body: int
    end: int
    value: int


class MessageSource:
    """File or bytes, with a window in memory.

    Parameters
    ----------
    data : bytes or binary file
        Bytes, or a seekable file.
    limits : Limits
        ``max_topology_bytes`` limits the number of fields.
    """

    def __init__(self, data: bytes | BinaryIO, limits: Limits) -> None:
        self._file = None if isinstance(data, bytes) else data
        self._window, self._base = (data, 0) if isinstance(data, bytes) else (b"", 0)
        self.size = len(data) if isinstance(data, bytes) else data.seek(0, 2)
        self._limits = limits
        self._left = limits.max_topology_bytes // _SHORTEST

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range. Raise FormatError if the file was shortened."""
        at = start - self._base
        if at >= 0 and end - self._base <= len(self._window):
            return self._window[at : end - self._base]
        found = b""
        if self._file:
            self._file.seek(start)
            found = self._file.read(end - start)
        if len(found) != end - start:
            raise FormatError(f"the file ends {end - start - len(found)} bytes early")
        return found

    def text(self, field: Field) -> str:
        """Return the text of a field. Raise FormatError if it is not text, LimitError if it is too long."""
        if field.wire != LENGTH:
            raise FormatError(f"field {field.number} at byte {field.start} is not a string")
        if field.end - field.body > self._limits.max_name_bytes:  # inline check, because it runs for every text
            self._limits.check("max_name_bytes", field.end - field.body, f"bytes of the text at byte {field.body}")
        try:
            return self.read(field.body, field.end).decode()
        except UnicodeDecodeError:
            raise FormatError(f"the text at byte {field.body} is not UTF-8") from None

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return the varint that begins at ``at``, and its end, at most ``end``."""
        value = shift = 0
        while at < end:
            place = at - self._base
            if not 0 <= place < len(self._window):
                self._window, self._base = self.read(at, min(at + _WINDOW, self.size)), at
                place = 0
            byte = self._window[place]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    raise FormatError(f"a varint that ends at byte {at} has more than 64 bits")
                return value, at
            shift += 7
            if shift == 7 * LONGEST:
                raise FormatError(f"a varint at byte {at - LONGEST} has more than {LONGEST} bytes")
        raise FormatError(f"a varint exceeds its message, which ends at byte {end}")

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message in a range.

        Raises FormatError for a field that exceeds the range and for groups, LimitError for too many fields.
        """
        new = tuple.__new__  # half the time of Field(...)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise LimitError(
                    f"more fields than max_topology_bytes={self._limits.max_topology_bytes:,} permits",
                    option="max_topology_bytes",
                    hint="raise the limit if the source is trusted",
                )
            place, window = at - self._base, self._window
            if 0 <= place < len(window) - 1 and at + 1 < end:
                key, value = window[place], window[place + 1]
                # Fast path: key and length or value have one byte each.
                if 8 <= key < 0x80 and value < 0x80:
                    body, wire = at + 2, key & 7
                    if wire == VARINT:
                        yield new(Field, (key >> 3, wire, at, at + 1, body, value))
                        at = body
                        continue
                    if wire == LENGTH and body + value <= end:
                        yield new(Field, (key >> 3, wire, at, body, body + value, at + 1))
                        at = body + value
                        continue
            start = at
            key, at = self.varint(at, end)
            number, wire, value = key >> 3, key & 7, 0
            if not 0 < number <= _MAX_FIELD:
                raise FormatError(f"the field at byte {start} has invalid number {number}")
            if wire == VARINT:
                body = at
                value, at = self.varint(at, end)
            elif wire == LENGTH:
                value = at
                length, body = self.varint(at, end)
                at = body + length
            elif wire in _FIXED:
                body, at = at, at + _FIXED[wire]
            else:
                raise FormatError(f"field {number} at byte {start} has unsupported wire type {wire}")
            if at > end:
                raise FormatError(f"field {number} at byte {start} ends {at - end} bytes beyond its message")
            yield Field(number, wire, start, body, at, value)


def without_zero(data: bytes) -> bytes:
    """Return a serialized message without a trailing zero byte (B.4, errata N16), which no field starts with."""
    if data.endswith(b"\0"):
        with contextlib.suppress(FormatError):  # the zero belongs to a field
            for _ in MessageSource(data, Limits()).fields(0, len(data) - 1):
                pass
            return data[:-1]
    return data


def signed(value: int) -> int:
    """Return a varint as an int64."""
    return value - (1 << 64) if value >> 63 else value


def varint(value: int) -> bytes:
    """Return a varint in the minimum number of bytes."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def message(number: int, body: bytes) -> bytes:
    """Return a field of wire type LENGTH."""
    return varint(number << 3 | LENGTH) + varint(len(body)) + body


# ------------------------------------------------------------------------------------------------ packed varints
def lengths(values: _Words) -> npt.NDArray[np.int64]:
    """Return the size of each value as a varint, in bytes."""
    found = np.ones(len(values), np.int64)
    for shift in range(7, 64, 7):
        found += values >= np.uint64(1 << shift)
    return found


def packed(values: _Words) -> _Bytes:
    """Return the concatenated varints of values."""
    sizes = lengths(values)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    for k in range(int(sizes.max(initial=0))):
        there = sizes > k
        byte = (values[there] >> np.uint64(7 * k) & np.uint64(0x7F)).astype(np.uint8)
        out[starts[there] + k] = byte | ((sizes[there] > k + 1) << 7).astype(np.uint8)
    return out


def unpacked(data: _Bytes) -> tuple[_Words, int]:
    """Return the values of complete varints, and their size in bytes. Raise FormatError for more than 64 bits."""
    ends = np.flatnonzero(data < 0x80) + 1
    starts = np.concatenate([np.zeros(1, np.intp), ends])[:-1]
    sizes = ends - starts
    used = int(ends[-1]) if len(ends) else 0
    longest = max(int(sizes.max(initial=0)), len(data) - used)
    if longest > LONGEST:
        raise FormatError(f"a varint has more than {LONGEST} bytes")
    values: npt.NDArray[Any] = np.zeros(len(ends), np.uint64)
    for k in range(longest):
        there = sizes > k
        byte = data[starts[there] + k]
        if k == LONGEST - 1 and np.any(byte > 1):
            raise FormatError("a varint has more than 64 bits")
        values[there] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values, used
