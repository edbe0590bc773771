"""Reader of the part of GGUF files before the tensor data: keys with values, and the list of tensors.

Shapes are in the usual order, the last extent for adjacent items; GGUF stores them reversed.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from ...limits import Budget
from ...model import Array
from .blocks import BLOCK_TYPES, BlockType, Field

#: Prefix of metadata keys for the keys of a file.
PREFIX = "gguf:"

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT, _DEFAULT = "general.alignment", 32
_SPLIT = "split.count"
_MAX_DEPTH = 4  # nesting depth of arrays
_MAX_DIMS = 32

#: Types of values by number, as numpy names; strings and arrays are separate.
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
#: Types of tensors without blocks.
_PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}


@dataclass(frozen=True)
class GgufTensor:
    """Tensor of a file.

    Parameters
    ----------
    name : str
    shape : tuple of int
    kind : str or BlockType
        Name of the :class:`~nnr_codec.dtypes.StoredType`, or the type of the blocks.
    start, nbytes : int
        Place of its bytes in the file.
    fields : mapping of str to Field
        Fields of its blocks, by the names of the tensors of the model; empty without blocks.
    """

    name: str
    shape: tuple[int, ...]
    kind: str | BlockType
    start: int
    nbytes: int
    fields: Mapping[str, Field]

    def parts(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Yield name, type and shape of the tensors of the model with the bits of this tensor."""
        if isinstance(self.kind, str):
            yield self.name, self.kind, self.shape
            return
        *others, last = self.shape
        for name, field in self.fields.items():
            yield name, field.type, (*others, last // self.kind.size * field.count)


@dataclass(frozen=True)
class Head:
    """Part of a file before the tensor data.

    Parameters
    ----------
    tensors : tuple of GgufTensor
        In the order of the list.
    metadata : dict of str to str
        A key ``k`` of the file is ``gguf:k``: a string unchanged, a number, boolean or array as JSON.
    left_out : list of str
        Keys whose values are not in ``metadata``.
    files : int
        Number of files of the model, of which this is one.
    """

    tensors: tuple[GgufTensor, ...]
    metadata: dict[str, str]
    left_out: list[str]
    files: int

    @property
    def by_place(self) -> list[GgufTensor]:
        """Tensors in the order of their bytes."""
        return sorted(self.tensors, key=lambda tensor: (tensor.start, tensor.nbytes))

    def gaps(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of bytes before, between and after the tensors of a file of ``size`` bytes, in order.

        Raises FormatError if tensors overlap, or exceed the file.
        """
        at = 0
        for tensor in self.by_place:
            if tensor.start < at:
                raise FormatError(f"tensor {tensor.name[:80]!a}: its bytes overlap another tensor", tensor=tensor.name)
            yield at, tensor.start
            at = tensor.start + tensor.nbytes
            if at > size:
                raise FormatError(
                    f"tensor {tensor.name[:80]!a}: the file has {size:,} bytes; {at:,} are required", tensor=tensor.name
                )
        yield at, size


def read_head(file: BinaryIO, budget: Budget, room: int = 0) -> Head:
    """Read the keys and the list of tensors. Values with which the metadata would exceed ``room`` bytes are left out.

    Raises
    ------
    FormatError
        The file is malformed, big-endian or of another version, or has a tensor of an unsupported type.
    LimitError
        The file exceeds the limits.
    """
    reader = _GgufReader(file, budget)
    if reader.take(4) != MAGIC:
        raise FormatError("not a GGUF file")
    version = reader.u32()
    if version & 0xFFFF == 0 and version:
        raise FormatError("big-endian GGUF file; only little-endian files are supported")
    if version not in _VERSIONS:
        raise FormatError(f"GGUF version {version} is not supported; only versions 2 and 3 are")
    tensors, keys = reader.u64(), reader.u64()
    budget.charge("max_names", tensors, "tensors of the file")
    budget.charge("max_names", keys, "keys of the file")
    metadata, left_out, alignment, files = _metadata(reader, keys, room)
    infos = dict(_infos(reader, tensors))
    start, separator = -(-reader.at // alignment) * alignment, _separator(infos)
    found = tuple(_tensor(name, *info, start, alignment, separator, budget) for name, info in infos.items())
    return Head(found, metadata, left_out, files)


class _GgufReader:
    """Reader of the part before the tensors, within the file and the limits."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self.size = file.seek(0, os.SEEK_END)
        budget.charge("max_archive_bytes", self.size, "bytes of the file")
        self.at = file.seek(0)
        self._file, self._limits = file, budget.limits

    def take(self, count: int) -> bytes:
        """Read bytes."""
        self.need(count)
        self.at += count
        self._limits.check("max_topology_bytes", self.at, "bytes of keys and the list of tensors")
        return self._file.read(count)

    def need(self, count: int) -> None:
        """Raise FormatError if fewer bytes are left."""
        if count > self.size - self.at:
            raise FormatError(f"at byte {self.at:,}: the file ends, but {count:,} bytes should follow")

    def u32(self) -> int:
        """Read a number of 4 bytes."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """Read a number of 8 bytes."""
        return int.from_bytes(self.take(8), "little")

    def string(self) -> bytes:
        """Read a string."""
        return self.take(self.u64())

    def name(self, what: str) -> str:
        """Read a string that is a name."""
        count = self.u64()
        self._limits.check("max_name_bytes", count, f"bytes of the name of a {what}")
        name = self.take(count)
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise FormatError(f"the name {name[:80]!r} of a {what} is not Unicode text") from None


# ------------------------------------------------------------------------------------------------ keys
def _metadata(reader: _GgufReader, count: int, room: int) -> tuple[dict[str, str], list[str], int, int]:
    """Read keys with their values, the skipped keys, the alignment, and the number of files."""
    metadata: dict[str, str] = {}
    left_out: list[str] = []
    alignment, files, known = _DEFAULT, 1, set[str]()
    for _ in range(count):
        key = reader.name("key")
        if key in known:
            raise FormatError(f"key {key[:80]!a} occurs twice")
        known.add(key)
        type = reader.u32()
        value = _value(reader, type, room)
        if value is None:
            left_out.append(key)
            continue
        if key == _ALIGNMENT:
            if type != 4 or value <= 0 or value & (value - 1):
                raise FormatError(f"{_ALIGNMENT} must be a uint32 power of two, got {str(value)[:80]!a}")
            alignment = value
        if key == _SPLIT and isinstance(value, int):
            files = value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        # Size in the side-information record.
        room -= (size := len(json.dumps(text)) + len(json.dumps(PREFIX + key)))
        if room < 0:
            room += size
            left_out.append(key)
        else:
            metadata[PREFIX + key] = text
    return metadata, left_out, alignment, files


def _value(reader: _GgufReader, type: int, room: int, depth: int = 0) -> Any:
    """Read the complete value of a key; return None if it is not text, or exceeds ``room`` as JSON."""
    if type == _STRING:
        return _decoded(reader.string())
    if type == _ARRAY:
        return _array(reader, room, depth)
    if type not in _NUMBERS:
        raise FormatError(f"at byte {reader.at:,}: unknown value type {type}")
    return _numbers(reader, type, 1)[0]


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _numbers(reader: _GgufReader, type: int, count: int) -> list[Any]:
    dtype = np.dtype(_NUMBERS[type])
    numbers: Array = np.frombuffer(reader.take(count * dtype.itemsize), dtype)
    if type == _BOOL:
        if np.any(numbers.view(np.uint8) > 1):
            raise FormatError(f"at byte {reader.at:,}: a boolean is neither 0 nor 1")
        numbers = numbers.view(np.bool_)
    return list(numbers.tolist())


def _array(reader: _GgufReader, room: int, depth: int) -> list[Any] | None:
    if depth == _MAX_DEPTH:
        raise FormatError(f"at byte {reader.at:,}: arrays are nested deeper than {_MAX_DEPTH}")
    type, count = reader.u32(), reader.u64()
    if type in _NUMBERS:
        if 2 * count <= room:
            return _numbers(reader, type, count)
        reader.take(count * np.dtype(_NUMBERS[type]).itemsize)
        return None
    if type not in (_STRING, _ARRAY):
        raise FormatError(f"at byte {reader.at:,}: unknown array type {type}")
    reader.need(8 * count)
    values, complete = [], 3 * count <= room
    for _ in range(count):
        value = _value(reader, type, room, depth + 1)
        complete = complete and value is not None
        if complete:
            values.append(value)
    return values if complete else None


# ------------------------------------------------------------------------------------------------ tensors
def _infos(reader: _GgufReader, count: int) -> Iterator[tuple[str, tuple[tuple[int, ...], int, int]]]:
    """Read name, shape, type and offset of each tensor."""
    seen = set[str]()
    for _ in range(count):
        name = reader.name("tensor")
        if name in seen:
            raise FormatError(f"two tensors have the same name {name[:80]!a}", tensor=name)
        seen.add(name)
        dims = reader.u32()
        if dims > _MAX_DIMS:
            raise FormatError(
                f"tensor {name[:80]!a}: {dims:,} dimensions; at most {_MAX_DIMS} are supported", tensor=name
            )
        shape = tuple(reader.u64() for _ in range(dims))[::-1]
        yield name, (shape, *struct.unpack("<IQ", reader.take(12)))


def _separator(names: Iterable[str]) -> str:
    """Return the text between the name of a tensor and the name of a field: more ``#`` than any name has in a row."""
    return "#" * (1 + max((len(run) for name in names for run in re.findall("#+", name)), default=0))


def _tensor(
    name: str,
    shape: tuple[int, ...],
    type: int,
    offset: int,
    start: int,
    alignment: int,
    separator: str,
    budget: Budget,
) -> GgufTensor:
    """Check a tensor and return it; ``start`` is the offset of the tensor data."""
    what = f"tensor {name[:80]!a}"
    if offset % alignment:
        raise FormatError(f"{what}: offset {offset:,} is not a multiple of {alignment}")
    if type in _PLAIN:
        itemsize = STORED_TYPES[_PLAIN[type]].itemsize
        nbytes = budget.tensor(shape, itemsize, what) * itemsize
        return GgufTensor(name, shape, _PLAIN[type], start + offset, nbytes, {})
    if type not in BLOCK_TYPES:
        raise FormatError(f"{what}: the tensor type {type} is not supported")
    kind = BLOCK_TYPES[type]
    if not shape or shape[-1] % kind.size:
        raise FormatError(f"{what}: shape {list(shape)} cannot be divided into blocks of {kind.size} ({kind.name})")
    budget.charge("max_names", len(kind.fields), "fields of quantized tensors")
    fields = {name + separator + field.name: field for field in kind.fields}
    for field in fields:
        budget.limits.check("max_name_bytes", len(field.encode()), f"{what}: bytes of the name of a field")
    elements = Budget(budget.limits).tensor(shape, 1, what)
    if not elements:
        Budget(budget.limits).tensor(shape, 4, what)  # extents for an array of float32 weights
    tensor = GgufTensor(name, shape, kind, start + offset, elements // kind.size * kind.nbytes, fields)
    for _, stored, extents in tensor.parts():
        budget.tensor(extents, STORED_TYPES[stored].itemsize, what)
    return tensor
