"""Reader of TensorFlow checkpoints without TensorFlow: a table of entries (``.index``), and data files.

The table has blocks of sorted keys, the names of the tensors, each with a BundleEntryProto: type, shape, and location
of the items. All checksums are verified; the checksum of a tensor is verified on access.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from ...limits import Budget, Limits
from ...model import Array
from .. import fill, state
from ..companion_files import opened
from ..lazy import Entry, native
from ..protobuf import FIXED32, FIXED64, LENGTH, MessageSource
from .checksum import crc32c, masked

SUFFIX = ".index"
#: Last bytes of a table.
MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
#: Type numbers of tensors.
TYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    29: "int4",
    30: "uint4",
}

#: Type number of strings.
STRING = 7
_FOOTER = 48
_TRAILER = 5  # compression and checksum of a block
_MAX_SIZE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BundleEntry(Entry):
    """Location of a tensor, and the checksum of its items."""

    checksum: int = 0

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the tensor. Raise FormatError, prefixed with ``what``, if it is damaged."""
        stored = STORED_TYPES[self.type]
        items: Array = np.empty(self.shape, stored.pattern.newbyteorder("<"))
        file.seek(self.start)
        fill(file, items, what)
        if masked(crc32c(items.reshape(-1).view("u1").data)) != self.checksum:
            raise FormatError(f"{what}: the checksum is wrong")
        return native(items, self.type, what)


@dataclass
class Bundle:
    """Contents of a checkpoint.

    Parameters
    ----------
    entries : dict of str to BundleEntry
        Tensors by name, in the order of their items.
    files : list of (Path, tuple)
        Data files with their state.
    strings : dict of str to (tuple of int, list of bytes)
        String tensors, with their shapes.
    """

    entries: dict[str, BundleEntry] = field(default_factory=dict)
    files: list[tuple[Path, tuple[int, ...]]] = field(default_factory=list)
    strings: dict[str, tuple[tuple[int, ...], list[bytes]]] = field(default_factory=dict)


def is_table(file: BinaryIO) -> bool:
    """Return whether a file ends like a table."""
    size = file.seek(0, 2)
    file.seek(max(size - len(MAGIC), 0))
    return file.read() == MAGIC and size >= _FOOTER


def data_file(index: Path, shard: int, count: int) -> Path:
    """Return the path of a data file."""
    return index.with_name(f"{index.name.removesuffix(SUFFIX)}.data-{shard:05d}-of-{count:05d}")


def read(index: Path, limits: Limits, budget: Budget) -> Bundle:
    """Read a checkpoint.

    Raises FormatError if it is damaged or has unsupported tensors, LimitError if it exceeds the limits.
    """
    found = Bundle()
    with open(index, "rb") as file:
        for key, value in _table(file, limits, budget):
            if not found.files:
                found.files = _files(key, value, index, limits, budget)
                continue
            name = _name(key, limits)
            if not name or name in found.entries or name in found.strings:
                raise FormatError(f"the name {name[:80]!a} in the checkpoint is empty or occurs twice")
            _add(found, name, MessageFields(value, f"entry {name[:80]!a} of the checkpoint", limits), limits, budget)
    if not found.files:
        raise FormatError("the checkpoint has no header")
    found.entries = dict(sorted(found.entries.items(), key=lambda item: (item[1].file, item[1].start)))
    return found


def _name(key: bytes, limits: Limits) -> str:
    limits.check("max_name_bytes", len(key), "bytes of a name in the checkpoint")
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"a name in the checkpoint is not UTF-8: {key[:40]!r}") from None


def _files(key: bytes, value: bytes, index: Path, limits: Limits, budget: Budget) -> list[tuple[Path, tuple[int, ...]]]:
    """Return the data files in the header (BundleHeaderProto)."""
    header = MessageFields(value, "the header of the checkpoint", limits)
    count = header.number(1)
    if key or header.number(2):
        raise FormatError("the checkpoint has no header or is big-endian")
    budget.charge("max_names", count, "data files of the checkpoint")
    paths = []
    for shard in range(count):
        path = data_file(index, shard, count)
        try:
            with opened(path) as file:
                paths.append((path, state(file)))
                budget.charge("max_archive_bytes", file.seek(0, 2), "bytes of the checkpoint")
        except FileNotFoundError:
            raise FormatError(f"the checkpoint lacks {path.name}") from None
    return paths


def _add(found: Bundle, name: str, entry: MessageFields, limits: Limits, budget: Budget) -> None:
    """Add a BundleEntryProto."""
    what = f"tensor {name[:80]!a}"
    kind, shard, start, nbytes = (entry.number(field) for field in (1, 3, 4, 5))
    if entry.has(7):
        raise FormatError(f"{what}: partitioned variables are not supported")
    shape = _shape(entry.message(2), what)
    if kind not in TYPES and kind != STRING:
        raise FormatError(f"{what}: TensorFlow type {kind} is not supported")
    if shard >= len(found.files) or max(start, nbytes) > found.files[shard][1][2] - min(start, nbytes):
        raise FormatError(f"{what}: its items are outside the data file")
    if kind == STRING:
        budget.charge("max_side_info_bytes", nbytes, "bytes of strings in the checkpoint")
        budget.charge("max_names", math.prod(shape), "strings in the checkpoint")
        with opened(found.files[shard][0]) as file:
            file.seek(start)
            found.strings[name] = shape, _strings(file.read(nbytes), math.prod(shape), what, limits)
        return
    stored = STORED_TYPES[TYPES[kind]]
    elements = budget.tensor(shape, stored.itemsize, what)
    if elements * stored.itemsize != nbytes:
        raise FormatError(
            f"{what}: the data has {nbytes:,} bytes;"
            f" {stored.name} of shape {shape} requires {elements * stored.itemsize:,}"
        )
    _ = stored.dtype  # may require ml_dtypes
    found.entries[name] = BundleEntry(stored.name, shape, start, nbytes, shard, entry.number(6))


def _shape(shape: MessageFields, what: str) -> tuple[int, ...]:
    """Return the extents of a TensorShapeProto."""
    extents = tuple(dimension.number(1) for dimension in shape.messages(2))
    if shape.number(3) or any(extent > _MAX_SIZE for extent in extents):
        raise FormatError(f"{what}: its shape is unknown")
    return extents


def _strings(data: bytes, count: int, what: str, limits: Limits) -> list[bytes]:
    """Return the strings of a tensor, stored as lengths, a checksum of the lengths, and the strings."""
    lengths, at = _numbers(MessageSource(data, limits), 0, count, what)
    at += 4
    if at + sum(lengths) != len(data):
        raise FormatError(f"{what}: the data has {len(data):,} bytes; its strings require {at + sum(lengths):,}")
    found = []
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    return found


# ------------------------------------------------------------------------------------------------ the table
def _table(file: BinaryIO, limits: Limits, budget: Budget) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values in order."""
    size = file.seek(0, 2)
    limits.check("max_archive_bytes", size, "bytes of the table of the checkpoint")
    if not is_table(file):
        raise FormatError("not the table of a checkpoint")
    file.seek(size - _FOOTER)
    footer = file.read(_FOOTER)
    _, at = _numbers(MessageSource(footer, limits), 0, 2, "the end of the table")  # skips the handle of another block
    blocks = _Blocks(file, size, limits)
    for _, place in _entries(blocks.read(footer[at:]), budget):
        yield from _entries(blocks.read(place), budget)


class _Blocks:
    """Reader of blocks, which never overlap in a valid table."""

    def __init__(self, file: BinaryIO, size: int, limits: Limits) -> None:
        self._file, self._size, self._limits, self._spent = file, size, limits, 0

    def read(self, place: bytes) -> bytes:
        """Read the block at a BlockHandle."""
        (start, length), _ = _numbers(MessageSource(place, self._limits), 0, 2, "the table of the checkpoint")
        self._spent += length + _TRAILER
        if start + length + _TRAILER > self._size or self._spent > self._size:
            raise FormatError("the table of the checkpoint is damaged: a block is outside it or overlaps others")
        self._file.seek(start)
        data = self._file.read(length + _TRAILER)
        if len(data) != length + _TRAILER or data[length]:
            raise FormatError("the table of the checkpoint is truncated or compressed")
        if int.from_bytes(data[length + 1 :], "little") != masked(crc32c(data[: length + 1])):
            raise FormatError("the table of the checkpoint is damaged: a checksum is wrong")
        return data[:length]


def _entries(block: bytes, budget: Budget) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block; a key is stored as its difference from the previous one."""
    what = "the table of the checkpoint"
    restarts = int.from_bytes(block[-4:], "little")
    end, at, key, source = len(block) - 4 - 4 * restarts, 0, b"", MessageSource(block, budget.limits)
    if end < 0:
        raise FormatError(f"{what} is damaged")
    while at < end:
        (shared, own, length), at = _numbers(source, at, 3, what)
        if shared > len(key) or own + length > end - at:
            raise FormatError(f"{what} is damaged")
        key = key[:shared] + block[at : at + own]
        budget.limits.check("max_name_bytes", len(key), "bytes of a name in the checkpoint")
        budget.charge("max_names", 1, "entries of the checkpoint")
        yield key, block[at + own : at + own + length]
        at += own + length


def same(checkpoint: Bundle, name: str, other: str) -> bool:
    """Return whether two tensors with equal checksums have the same items."""
    first, second = checkpoint.entries[name], checkpoint.entries[other]
    with (
        opened(checkpoint.files[first.file][0]) as one,
        opened(checkpoint.files[second.file][0]) as two,
    ):
        one.seek(first.start)
        two.seek(second.start)
        return all(
            one.read(count) == two.read(count)
            for count in (min(1 << 20, first.nbytes - at) for at in range(0, first.nbytes, 1 << 20))
        )


# ------------------------------------------------------------------------------------------------ protocol buffers
class MessageFields:
    """Fields of a message; the last value of each field counts, with default 0 or empty."""

    def __init__(self, data: bytes, what: str, limits: Limits) -> None:
        self._what, self._limits = what, limits
        self._found: dict[int, list[int | bytes]] = {}
        try:
            for found in MessageSource(data, limits).fields(0, len(data)):
                value: int | bytes = data[found.body : found.end] if found.wire == LENGTH else found.value
                if found.wire in (FIXED32, FIXED64):
                    value = int.from_bytes(data[found.body : found.end], "little")
                self._found.setdefault(found.number, []).append(value)
        except FormatError as error:
            raise FormatError(f"{what}: {error}") from None

    def has(self, number: int) -> bool:
        """Return whether the message has a field."""
        return number in self._found

    def number(self, number: int) -> int:
        """Return a number. Raise FormatError for another type."""
        value = self._found.get(number, [0])[-1]
        if not isinstance(value, int):
            raise FormatError(f"{self._what}: field {number} is not a number")
        return value

    def messages(self, number: int) -> list[MessageFields]:
        """Return repeated messages. Raise FormatError for another type."""
        values = [value for value in self._found.get(number, ()) if isinstance(value, bytes)]
        if len(values) != len(self._found.get(number, ())):
            raise FormatError(f"{self._what}: field {number} is not a message")
        return [MessageFields(value, self._what, self._limits) for value in values]

    def message(self, number: int) -> MessageFields:
        """Return a message, which is empty if it is absent."""
        return [MessageFields(b"", self._what, self._limits), *self.messages(number)][-1]


def _numbers(source: MessageSource, at: int, count: int, what: str) -> tuple[list[int], int]:
    """Return consecutive varints, and the end of the last one."""
    found = []
    try:
        for _ in range(count):
            value, at = source.varint(at, source.size)
            found.append(value)
    except FormatError as error:
        raise FormatError(f"{what}: {error}") from None
    return found, at
