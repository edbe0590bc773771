"""Messages in the object headers of HDF5: shapes, types, layouts, filters and attributes.

Names follow the HDF5 File Format Specification, version 3.0. All numbers are little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...errors import FormatError

#: The undefined address.
UNDEFINED = (1 << 64) - 1

DATASPACE = 0x0001
DATATYPE = 0x0003
LAYOUT = 0x0008
EXTERNAL_FILES = 0x0007
FILTERS = 0x000B
ATTRIBUTE = 0x000C
CONTINUATION = 0x0010
SYMBOL_TABLE = 0x0011
#: NIL, fill values, comments, times, group and reference counts: irrelevant for reading.
IGNORED = {0x0000, 0x0004, 0x0005, 0x000A, 0x000D, 0x000E, 0x0012, 0x0016}
#: Messages of HDF5 1.8 and later, and of groups with external links.
LATER = {0x0002, 0x0006, 0x0015}

_SHARED = 0x02
_DEFLATE, _SHUFFLE = 1, 2
_MAX_RANK = 32
# Exponent and mantissa of the IEEE floats, by size: exponent location and size, mantissa size, bias.
_FLOATS = {2: (10, 5, 10, 15), 4: (23, 8, 23, 127), 8: (52, 11, 52, 1023)}


class MessageReader:
    """Sequential reader of numbers and bytes. Reading beyond the end of the data raises FormatError."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what, self.at = data, what, 0

    def bytes(self, count: int) -> bytes:
        """Read bytes."""
        end = self.at + count
        if end > len(self._data):
            raise FormatError(f"{self._what}: it ends {end - len(self._data)} bytes early")
        part = self._data[self.at : end]
        self.at = end
        return part

    def number(self, count: int) -> int:
        """Read an unsigned number of ``count`` bytes."""
        return int.from_bytes(self.bytes(count), "little")

    def align(self, count: int = 8) -> None:
        """Skip bytes up to a multiple of ``count``."""
        self.at += -self.at % count

    @property
    def left(self) -> int:
        """Number of bytes left."""
        return len(self._data) - self.at


@dataclass(frozen=True)
class Message:
    """Message of an object header: type, flags and data."""

    type: int
    flags: int
    data: bytes

    def fields(self, what: str) -> MessageReader:
        """Return a reader of the data. Raise FormatError for shared messages."""
        if self.flags & _SHARED:
            raise FormatError(f"{what}: shared messages (committed types) are not supported")
        return MessageReader(self.data, what)


@dataclass(frozen=True)
class HdfType:
    """Type of HDF5 items.

    Parameters
    ----------
    kind : str
        ``number``, ``text`` (fixed size), ``texts`` (variable length), ``opaque``, or ``other``.
    size : int
        Size of one item in bytes.
    stored : str
        Name of the StoredType of numbers.
    big_endian : bool
    utf8 : bool
        Whether strings are UTF-8 rather than ASCII.
    """

    kind: str
    size: int
    stored: str = ""
    big_endian: bool = False
    utf8: bool = False


@dataclass(frozen=True)
class DatasetLayout:
    """Location of the items of a dataset.

    Parameters
    ----------
    address, size : int
        Address and size of contiguous items, or the address of the chunk index.
    inline : bytes or None
        The items, if they are in the header.
    chunk : tuple of int or None
        Extents of a chunk.
    """

    address: int = UNDEFINED
    size: int = 0
    inline: bytes | None = None
    chunk: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RawAttribute:
    """Attribute as stored in the header; variable-length strings are references to a heap."""

    name: str
    type: HdfType
    shape: tuple[int, ...] | None
    data: bytes


def text_of(data: bytes, what: str) -> str:
    """Decode bytes as Unicode text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{what}: {data[:40]!r} is not UTF-8") from None


def dataspace(fields: MessageReader, what: str) -> tuple[int, ...] | None:
    """Read the extents; return None for a null dataspace, which has no items."""
    version, rank, flags = fields.number(1), fields.number(1), fields.number(1)
    if version not in (1, 2) or rank > _MAX_RANK:
        raise FormatError(f"{what}: a dataspace of version {version} with {rank} dimensions is not supported")
    kind = fields.number(1)
    if version == 1:
        fields.bytes(4)
    shape = tuple(fields.number(8) for _ in range(rank))
    if flags & 1:
        fields.bytes(8 * rank)  # maximum extents
    return None if version == 2 and kind == 2 else shape


def datatype(fields: MessageReader, what: str) -> HdfType:
    """Read the type; types other than numbers, booleans, strings and opaque items are reduced to their size."""
    head, bits, size = fields.number(1), fields.number(3), fields.number(4)
    kind, version = head & 15, head >> 4
    if version not in (1, 2, 3):
        raise FormatError(f"{what}: datatype version {version} is not supported")
    if not size:
        raise FormatError(f"{what}: the datatype has size 0")
    if kind in (0, 1):
        return _number(kind, bits, size, fields)
    if kind == 3:
        return HdfType("text", size, utf8=bits >> 4 & 15 == 1)
    if kind == 5:
        return HdfType("opaque", size)
    if kind == 8:
        return _enumeration(bits & 0xFFFF, size, version, fields, what)
    if kind == 9 and bits & 15 == 1 and size == 16:
        return HdfType("texts", size, utf8=bits >> 8 & 15 == 1)
    return HdfType("other", size)


def _number(kind: int, bits: int, size: int, fields: MessageReader) -> HdfType:
    big_endian, offset, precision = bool(bits & 1), fields.number(2), fields.number(2)
    if offset or precision != 8 * size:
        return HdfType("other", size)
    if kind == 0:
        name = f"{'' if bits & 8 else 'u'}int{precision}"
        return HdfType("number", size, name, big_endian) if size in (1, 2, 4, 8) else HdfType("other", size)
    exponent, exponent_size, mantissa, mantissa_size = (fields.number(1) for _ in range(4))
    found = exponent, exponent_size, mantissa_size, fields.number(4)
    plain = mantissa == 0 and bits >> 4 & 3 == 2 and bits >> 8 & 0xFF == precision - 1 and not bits & 0x40
    if not plain or _FLOATS.get(size) != found:
        return HdfType("other", size)
    return HdfType("number", size, f"float{precision}", big_endian)


def _enumeration(count: int, size: int, version: int, fields: MessageReader, what: str) -> HdfType:
    """Read an enumeration; only booleans, which h5py writes as an enumeration of bytes, are supported."""
    base, names = datatype(fields, what), []
    if count != 2 or base.size != 1 or size != 1:
        return HdfType("other", size)
    for _ in range(count):
        name = b""
        while (one := fields.bytes(1)) != b"\0":
            name += one
        if version < 3:
            fields.bytes(-(len(name) + 1) % 8)
        names.append(name)
    values = list(fields.bytes(count))
    return HdfType("number", 1, "bool") if (names, values) == ([b"FALSE", b"TRUE"], [0, 1]) else HdfType("other", size)


def layout(fields: MessageReader, rank: int, what: str) -> DatasetLayout:
    """Read the location of the items."""
    version, kind = fields.number(1), fields.number(1)
    if version != 3:
        raise FormatError(f"{what}: layout version {version}, used for example by virtual datasets, is not supported")
    if kind == 0:
        return DatasetLayout(inline=fields.bytes(fields.number(2)))
    if kind == 1:
        return DatasetLayout(fields.number(8), fields.number(8))
    if kind != 2:
        raise FormatError(f"{what}: unknown layout class {kind}")
    dimensions = fields.number(1)
    address = fields.number(8)
    chunk = tuple(fields.number(4) for _ in range(dimensions))[:-1]
    if len(chunk) != rank or not rank or 0 in chunk:
        raise FormatError(f"{what}: chunks have shape {chunk}, but the dataset has {rank} dimensions")
    return DatasetLayout(address, chunk=chunk)


def filters(fields: MessageReader, what: str) -> tuple[int, ...]:
    """Read the filters of chunks, in the order of application: 1 deflate, 2 shuffle."""
    version, count = fields.number(1), fields.number(1)
    if version not in (1, 2):
        raise FormatError(f"{what}: filter pipeline version {version} is not supported")
    if version == 1:
        fields.bytes(6)
    found = []
    for _ in range(count):
        number = fields.number(2)
        length = fields.number(2) if version == 1 or number >= 256 else 0
        fields.bytes(2)
        values = fields.number(2)
        fields.bytes(length + (-length % 8 if version == 1 else 0))
        fields.bytes(4 * values + (4 if version == 1 and values % 2 else 0))
        if number not in (_DEFLATE, _SHUFFLE) or number in found:
            raise FormatError(f"{what}: filter {number} is not supported; only gzip and shuffle are, once each")
        found.append(number)
    return tuple(found)


def attribute(fields: MessageReader, what: str) -> RawAttribute:
    """Read an attribute, whose data must match its type and shape."""
    version, flags = fields.number(1), fields.number(1)
    sizes = [fields.number(2) for _ in range(3)]
    if version not in (1, 2, 3) or (version > 1 and flags):
        raise FormatError(f"{what}: attribute version {version} with flags {flags} is not supported")
    if version == 3:
        fields.bytes(1)

    def part(size: int) -> bytes:
        data = fields.bytes(size)
        if version == 1:
            fields.align()
        return data

    name = text_of(part(sizes[0]).partition(b"\0")[0], what)
    what = f"{what}, attribute {name[:80]!a}"
    kind = datatype(MessageReader(part(sizes[1]), what), what)
    shape = dataspace(MessageReader(part(sizes[2]), what), what)
    return RawAttribute(name, kind, shape, fields.bytes(0 if shape is None else math.prod(shape) * kind.size))


def messages(
    count: int, blocks: list[tuple[int, int]], read: Callable[[int, int], bytes], what: str
) -> Iterator[Message]:
    """Yield the messages of an object header of version 1; continuation messages add further blocks."""
    for start, size in blocks:  # grows during iteration
        fields = MessageReader(read(start, size), what)
        while fields.left >= 8 and count:
            count -= 1
            kind, length, flags = fields.number(2), fields.number(2), fields.number(1)
            fields.bytes(3)
            message = Message(kind, flags, fields.bytes(length))
            if kind == CONTINUATION:
                following = message.fields(what)
                blocks.append((following.number(8), following.number(8)))
            else:
                yield message
