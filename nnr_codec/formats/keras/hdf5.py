"""Reader of the structure of HDF5 files: datasets, attributes, and the location of items.

The HDF5 library is not safe for untrusted files: with 8,000 slightly corrupted files, version 2.0 crashed on two and
hung on four. Therefore this module reads the structures itself, in HDF5's earliest version, which h5py and Keras write
by default. Links other than hard links, external files, virtual datasets, and filters other than gzip and shuffle are
rejected. No byte is parsed twice, which bounds the work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from ...limits import Budget, Limits
from .datasets import Chunk, StoredItems
from .messages import (
    ATTRIBUTE,
    DATASPACE,
    DATATYPE,
    EXTERNAL_FILES,
    FILTERS,
    IGNORED,
    LATER,
    LAYOUT,
    SYMBOL_TABLE,
    UNDEFINED,
    DatasetLayout,
    HdfType,
    Message,
    MessageReader,
    RawAttribute,
    attribute,
    dataspace,
    datatype,
    filters,
    layout,
    messages,
    text_of,
)

SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Attribute by which Keras marks opaque items as bfloat16.
BFLOAT16 = ("dtype", "bfloat16")

_SUPERBLOCK = 96
_TREE_HEAD, _SNOD_ENTRY = 24, 40
_KNOWN = {DATASPACE, DATATYPE, FILTERS, LAYOUT, SYMBOL_TABLE}
_LATER = "external links and structures of HDF5 1.8 or later are not supported; save with h5py and libver='earliest'"
_HARD = (0, 1)  # cache types of symbol table entries; 2 is a soft link


@dataclass(frozen=True)
class Attribute:
    """Attribute with strings or the bytes of numbers.

    Parameters
    ----------
    type : HdfType
    shape : tuple of int or None
        None for an attribute without a value.
    values : list of str, or bytes
    """

    type: HdfType
    shape: tuple[int, ...] | None
    values: list[str] | bytes


@dataclass
class Contents:
    """Contents of a file.

    Parameters
    ----------
    tensors : dict of str to StoredItems
        Datasets by path without a leading slash, in file order.
    attributes : dict of str to dict of str to Attribute
        Attributes of each group and dataset that has any, and an empty entry for each empty group.
    ties : dict of str to str
        Datasets that are links to another one.
    left_out : list of str
        Attributes of unsupported types.
    """

    tensors: dict[str, StoredItems] = field(default_factory=dict)
    attributes: dict[str, dict[str, Attribute]] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read(file: BinaryIO, base: int, size: int, limits: Limits, budget: Budget) -> Contents:
    """Return the contents of an HDF5 file of ``size`` bytes at offset ``base`` of another file.

    Raises FormatError if it is malformed or has unsupported structures, and LimitError.
    """
    return _Hdf5Reader(file, base, size, limits, budget).contents()


class _Hdf5Reader:
    def __init__(self, file: BinaryIO, base: int, size: int, limits: Limits, budget: Budget) -> None:
        self._file, self._base, self._size = file, base, size
        self._limits, self._budget = limits, budget
        self._spent = 0
        self._heaps: dict[int, dict[int, bytes]] = {}

    def _read(self, address: int, count: int) -> bytes:
        """Read a part of a structure. In a valid file, each byte belongs to at most one structure."""
        if address > self._size or count > self._size - address:
            raise FormatError(f"a structure of {count:,} bytes at {address:,} is outside the HDF5 file")
        self._spent += count
        if self._spent > self._size:
            raise FormatError("the structures of the HDF5 file overlap")
        self._file.seek(self._base + address)
        data = self._file.read(count)
        if len(data) != count:
            raise FormatError("the HDF5 file was truncated while it was read")
        return data

    def contents(self) -> Contents:
        found = Contents()
        paths: dict[int, str] = {}  # objects so far
        waiting = [(self._root(), "")]
        while waiting:
            address, path = waiting.pop()
            if address not in paths:
                paths[address] = path
                waiting.extend(reversed(self._object(address, path, found)))
            elif paths[address] in found.tensors:
                found.ties[path] = paths[address]
                found.tensors[path] = found.tensors[paths[address]]
            else:
                raise FormatError(
                    f"{path[:80]!a} is a second name of group {paths[address][:80]!a}; only datasets may have two"
                )
        return found

    def _root(self) -> int:
        """Return the address of the root group."""
        fields = MessageReader(self._read(0, min(_SUPERBLOCK, self._size)), "the superblock of the HDF5 file")
        if fields.bytes(8) != SIGNATURE:
            raise FormatError("not an HDF5 file")
        version = fields.number(1)
        if version not in (0, 1):
            raise FormatError(f"superblock version {version}: {_LATER}")
        fields.bytes(4)
        if (fields.number(1), fields.number(1)) != (8, 8):
            raise FormatError("addresses and lengths in the HDF5 file do not have 8 bytes")
        fields.bytes(1 + 2 + 2 + 4 + (4 if version else 0))
        base = fields.number(8)
        fields.bytes(16)
        if base or fields.number(8) != UNDEFINED:
            raise FormatError("HDF5 files with a user block or driver information are not supported")
        fields.bytes(8)
        return fields.number(8)

    # -------------------------------------------------------------------------------------------- objects
    def _object(self, address: int, path: str, found: Contents) -> list[tuple[int, str]]:
        """Add a group or a dataset; return addresses and paths of the members of a group."""
        what = f"{path[:80]!a} of the HDF5 file" if path else "the root of the HDF5 file"
        head = MessageReader(self._read(address, 16), what)
        if head.number(1) != 1:
            raise FormatError(f"{what}: {_LATER}")
        head.bytes(1)
        count = head.number(2)
        head.bytes(4)
        blocks = [(address + 16, head.number(4))]
        parts: dict[int, Message] = {}
        attributes: dict[str, Attribute] = {}
        for message in messages(count, blocks, self._read, what):
            if message.type == ATTRIBUTE:
                self._attribute(message, what, attributes, found)
            elif message.type in LATER:
                raise FormatError(f"{what}: {_LATER}")
            elif message.type == EXTERNAL_FILES:
                raise FormatError(f"{what}: its items are in external files, which are not supported")
            elif message.type not in IGNORED and (message.type in parts or message.type not in _KNOWN):
                raise FormatError(f"{what}: a message of type {message.type} is unknown or occurs twice")
            else:
                parts[message.type] = message
        children: list[tuple[int, str]] = []
        if LAYOUT in parts:
            found.tensors[path] = self._dataset(parts, attributes, what)
            if found.tensors[path].type == "bfloat16":
                del attributes[BFLOAT16[0]]  # stored in the type of the tensor
        elif SYMBOL_TABLE in parts:
            children = [(target, f"{path}/{name}" if path else name) for target, name in self._links(parts, path, what)]
        else:
            raise FormatError(f"{what}: neither a group nor a dataset")
        if attributes or not (children or LAYOUT in parts):
            found.attributes[path] = attributes
        return children

    def _links(self, parts: dict[int, Message], path: str, what: str) -> list[tuple[int, str]]:
        """Return addresses and names of the members of a group."""
        fields = parts[SYMBOL_TABLE].fields(what)
        tree, heap = fields.number(8), fields.number(8)
        names, links = self._names(heap, what), []
        for node, _ in self._tree(tree, 0, 8, what):
            fields = MessageReader(self._read(node, 8), what)
            if fields.bytes(5)[:4] != b"SNOD":
                raise FormatError(f"{what}: the structure is damaged")
            fields.bytes(1)
            entries = fields.number(2)
            fields = MessageReader(self._read(node + 8, entries * _SNOD_ENTRY), what)
            self._budget.charge("max_names", entries, "objects and attributes of the HDF5 file")
            for _ in range(entries):
                start, target, kind = fields.number(8), fields.number(8), fields.number(4)
                fields.bytes(20)
                name = text_of(names[start:].partition(b"\0")[0] if start < len(names) else b"", what)
                if kind not in _HARD or target == UNDEFINED:
                    raise FormatError(f"{what}: {name[:80]!a} is a soft link; only hard links are supported")
                if name in ("", ".") or "/" in name:
                    raise FormatError(f"{what}: {name[:80]!a} is not a valid name")
                size = len(path.encode()) + 1 + len(name.encode())
                self._limits.check("max_name_bytes", size, f"bytes of a path in {what}")
                links.append((target, name))
        counts = Counter(name for _, name in links)
        if len(counts) < len(links):
            raise FormatError(f"{what}: two members have the same name {counts.most_common(1)[0][0][:80]!a}")
        return links

    def _names(self, address: int, what: str) -> bytes:
        """Return the local heap of a group, which contains its names."""
        fields = MessageReader(self._read(address, 32), what)
        if fields.bytes(8) != b"HEAP\0\0\0\0":
            raise FormatError(f"{what}: the structure is damaged")
        size = fields.number(8)
        fields.bytes(8)
        return self._read(fields.number(8), size)

    def _tree(self, address: int, kind: int, key: int, what: str, level: int = 255) -> Iterator[tuple[int, bytes]]:
        """Yield the targets of the leaves of a B-tree, each with the preceding key of ``key`` bytes."""
        waiting = [(address, level, b"")]
        while waiting:
            address, level, before = waiting.pop()
            if level < 0:
                yield address, before
                continue
            fields = MessageReader(self._read(address, _TREE_HEAD), what)
            if fields.bytes(4) != b"TREE" or fields.number(1) != kind:
                raise FormatError(f"{what}: the structure is damaged")
            own, entries = fields.number(1), fields.number(2)
            if own > level:
                raise FormatError(f"{what}: the structure is damaged")
            fields = MessageReader(self._read(address + _TREE_HEAD, entries * (key + 8)), what)
            nodes = [(fields.bytes(key), fields.number(8)) for _ in range(entries)]
            waiting.extend((target, own - 1, before) for before, target in reversed(nodes))

    # -------------------------------------------------------------------------------------------- datasets
    def _dataset(self, parts: dict[int, Message], attributes: dict[str, Attribute], what: str) -> StoredItems:
        """Return a dataset as a tensor, after checking that all items are within the file."""
        if DATATYPE not in parts or DATASPACE not in parts:
            raise FormatError(f"{what}: the dataset has no type or shape")
        kind = datatype(parts[DATATYPE].fields(what), what)
        shape = dataspace(parts[DATASPACE].fields(what), what)
        mark = attributes.get(BFLOAT16[0])
        stored = kind.stored
        if (kind.kind, kind.size) == ("opaque", 2) and mark and mark.values == [BFLOAT16[1]]:
            stored = "bfloat16"
        if not stored or shape is None:
            raise FormatError(f"{what}: the type is not supported; only numbers and booleans are")
        elements = self._budget.tensor(shape, kind.size, what)
        _ = STORED_TYPES[stored].dtype  # may require ml_dtypes
        place, nbytes = layout(parts[LAYOUT].fields(what), len(shape), what), elements * kind.size
        pipeline = filters(parts[FILTERS].fields(what), what) if FILTERS in parts else ()
        if pipeline and place.chunk is None:
            raise FormatError(f"{what}: the dataset has filters but no chunks")
        if place.chunk is not None:
            chunks = self._chunks(place, shape, kind.size, pipeline, what)
            return StoredItems(stored, shape, 0, nbytes, 0, kind.big_endian, None, place.chunk, chunks)
        if place.inline is not None or not nbytes:
            inline = (place.inline or b"")[:nbytes]
            if len(inline) != nbytes:
                raise FormatError(f"{what}: {len(inline)} bytes; {stored} of shape {shape} requires {nbytes}")
            return StoredItems(stored, shape, 0, nbytes, 0, kind.big_endian, inline)
        if place.address == UNDEFINED:
            raise FormatError(f"{what}: the dataset has no items, because they were never written")
        if place.size != nbytes or place.address > self._size - nbytes:
            raise FormatError(
                f"{what}: the data has {place.size:,} bytes or is outside the file;"
                f" {stored} of shape {shape} requires {nbytes:,}"
            )
        return StoredItems(stored, shape, self._base + place.address, nbytes, 0, kind.big_endian)

    def _chunks(
        self, place: DatasetLayout, shape: tuple[int, ...], itemsize: int, pipeline: tuple[int, ...], what: str
    ) -> tuple[Chunk, ...]:
        """Return the chunks of a dataset, each once."""
        chunk = place.chunk or ()
        nbytes = math.prod(chunk) * itemsize
        self._limits.check("max_tensor_bytes", nbytes, f"{what}: bytes of a chunk")
        counts = [-(-extent // part) for extent, part in zip(shape, chunk, strict=True)]
        self._budget.charge("max_names", math.prod(counts), f"{what}: chunks")
        key = 8 + 8 * (len(shape) + 1)
        found: dict[tuple[int, ...], Chunk] = {}
        for address, before in () if place.address == UNDEFINED else self._tree(place.address, 1, key, what):
            fields = MessageReader(before, what)
            size, mask = fields.number(4), fields.number(4)
            at = tuple(fields.number(8) for _ in shape)
            inside = all(
                not offset % part and offset < extent for offset, part, extent in zip(at, chunk, shape, strict=True)
            )
            if not inside or at in found or address > self._size - size or mask >= 1 << len(pipeline):
                raise FormatError(f"{what}: the chunk at {at} is invalid or occurs twice")
            used = tuple(number for place, number in enumerate(pipeline) if not mask >> place & 1)
            found[at] = Chunk(at, self._base + address, size, used)
        if len(found) != math.prod(counts):
            raise FormatError(f"{what}: only {len(found)} of {math.prod(counts)} chunks were written")
        return tuple(found[at] for at in sorted(found))

    # -------------------------------------------------------------------------------------------- attributes
    def _attribute(self, message: Message, what: str, into: dict[str, Attribute], found: Contents) -> None:
        self._budget.charge("max_names", 1, "objects and attributes of the HDF5 file")
        raw = attribute(message.fields(what), what)
        if raw.name in into or not raw.name:
            raise FormatError(f"{what}: an attribute has no name or occurs twice")
        if raw.type.kind in ("other", "opaque"):
            found.left_out.append(f"{raw.name[:80]!a} of {what}")
            return
        into[raw.name] = Attribute(raw.type, raw.shape, self._values(raw, f"{what}, attribute {raw.name[:80]!a}"))

    def _values(self, raw: RawAttribute, what: str) -> list[str] | bytes:
        if raw.type.kind == "number":
            return raw.data
        size = raw.type.size
        items = [raw.data[at : at + size] for at in range(0, len(raw.data), size)]
        if raw.type.kind == "texts":
            items = [self._in_heap(item, what) for item in items]
        texts = [text_of(item.rstrip(b"\0"), what) for item in items]
        if any("\0" in text for text in texts):
            raise FormatError(f"{what}: a string contains a NUL byte")
        return texts

    def _in_heap(self, reference: bytes, what: str) -> bytes:
        """Return the data of a reference to the global heap."""
        fields = MessageReader(reference, what)
        length, address, index = fields.number(4), fields.number(8), fields.number(4)
        self._budget.charge("max_topology_bytes", length, "texts of attributes")
        if not length or address in (0, UNDEFINED):
            return b""
        if address not in self._heaps:
            self._heaps[address] = dict(self._collection(address, what))
        item = self._heaps[address].get(index, b"")
        if len(item) < length:
            raise FormatError(f"{what}: a string of {length} bytes is missing from the heap")
        return item[:length]

    def _collection(self, address: int, what: str) -> Iterator[tuple[int, bytes]]:
        head = MessageReader(self._read(address, 16), what)
        if head.bytes(8) != b"GCOL\1\0\0\0":
            raise FormatError(f"{what}: the heap of strings is damaged")
        fields = MessageReader(self._read(address + 16, max(head.number(8) - 16, 0)), what)
        while fields.left >= 16 and (index := fields.number(2)):
            fields.bytes(6)
            size = fields.number(8)
            yield index, fields.bytes(size)
            fields.align()
