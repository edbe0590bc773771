"""Reader of GGUF files, the format of llama.cpp: versions 2 and 3, little-endian.

Tensors of F32, F16, BF16, F64, I8, I16, I32 and I64 keep their types. Q8_0, blocks of 32 int8 with a float16 scale, is
converted to the float32 products, which are exact. Other types are rejected by name. Shapes are in the usual order, the
last extent for adjacent items; GGUF stores them reversed.

A key ``k`` of the file becomes the metadata key ``gguf:k``: a string unchanged, a number, boolean or array as JSON.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..dtypes import STORED_TYPES
from ..errors import FormatError, MissingDependencyError
from ..limits import Budget, Limits
from ..model import Array, Model
from . import FormatWarning, begins, fill, listed, opened_file, state
from .lazy import Entry, LazyTensors

NAME = "gguf"
SUFFIXES = ()
DESCRIPTION = "GGUF: tensors and metadata of llama.cpp"
READS = "a .gguf file of F32, F16, BF16, F64, I8 to I64 and Q8_0"

#: Prefix of metadata keys for the keys of a file.
PREFIX = "gguf:"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT, _DEFAULT = "general.alignment", 32
_SPLIT = "split.count"
_MAX_DEPTH = 4  # nesting depth of arrays
_MAX_DIMS = 32
_CHUNK = 1 << 15  # blocks converted at a time

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
#: Types of tensors that are read without conversion.
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
_Q8_0, _BLOCK, _BLOCK_BYTES = 8, 32, 34
#: Unsupported types, for messages.
_REFUSED = {
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


@dataclass(frozen=True, slots=True)
class _Blocks(Entry):
    """Tensor of Q8_0: each block has a float16 and 32 int8."""

    def read(self, file: BinaryIO, what: str) -> Array:
        blocks = self.nbytes // _BLOCK_BYTES
        products = np.empty((blocks, _BLOCK), np.float32)
        data = np.empty((min(blocks, _CHUNK), _BLOCK_BYTES), np.uint8)
        file.seek(self.start)
        for first in range(0, blocks, _CHUNK):
            part = data[: blocks - first]
            fill(file, part, what)
            scales = part[:, :2].copy().view("<f2").astype(np.float32)
            with np.errstate(invalid="ignore"):  # an infinite scale
                np.multiply(part[:, 2:].view(np.int8), scales, out=products[first : first + _CHUNK])
        return products.reshape(self.shape)


# ------------------------------------------------------------------------------------------------ reading
def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like a GGUF file."""
    return begins(source, _MAGIC)


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file, with its tensors in file order; tensors of a path are read on access.

    Values of keys that are not Unicode text are skipped, as are values with which the metadata would exceed half of
    max_side_info_bytes; a FormatWarning lists them, or a FormatError if ``strict``. A file that is one of several of a
    model is reported in the same way.

    Raises
    ------
    FormatError
        The file is malformed, big-endian or of another version, has a tensor of an unsupported type, or tensors that
        overlap or exceed the file; or ``ml_dtypes`` is required and not installed (MissingDependencyError).
    LimitError
        The file exceeds the limits; max_topology_bytes applies to the part before the tensors.
    """
    with opened_file(source) as file:
        budget = Budget(limits)
        reader = _GgufReader(file, budget)
        metadata, entries, left_out = _read(reader, budget)
        for message in _losses(metadata, left_out):
            if strict:
                raise FormatError(message)
            warnings.warn(message, FormatWarning, stacklevel=3)
        if isinstance(source, Path):
            return Model(LazyTensors([(source, state(file))], entries), metadata=metadata, format=NAME)
        tensors = {name: entry.read(file, f"tensor {name[:80]!a}") for name, entry in entries.items()}
    return Model(tensors, metadata=metadata, format=NAME)


def _losses(metadata: dict[str, str], left_out: list[str]) -> Iterator[str]:
    """Yield messages about the parts that are not read."""
    if left_out:
        yield f"skipped the values of these keys: {listed(left_out)}"
    if metadata.get(PREFIX + _SPLIT, "0") not in ("0", "1"):
        yield f"this is one of {metadata[PREFIX + _SPLIT][:20]} files of a model and contains only some of its tensors"


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


def _read(reader: _GgufReader, budget: Budget) -> tuple[dict[str, str], dict[str, Entry], list[str]]:
    """Read metadata, tensors, and the keys that are skipped."""
    if reader.take(4) != _MAGIC:
        raise FormatError("not a GGUF file")
    version = reader.u32()
    if version & 0xFFFF == 0 and version:
        raise FormatError("big-endian GGUF file; only little-endian files are supported")
    if version not in _VERSIONS:
        raise FormatError(f"GGUF version {version} is not supported; only versions 2 and 3 are")
    tensors, keys = reader.u64(), reader.u64()
    budget.charge("max_names", tensors, "tensors of the file")
    budget.charge("max_names", keys, "keys of the file")
    metadata, left_out, alignment = _metadata(reader, keys, budget.limits.max_side_info_bytes // 2)
    infos = dict(_infos(reader, tensors))
    if len(infos) < tensors:
        raise FormatError("two tensors have the same name")
    start = -(-reader.at // alignment) * alignment
    entries = {name: _entry(name, *info, start, alignment, budget) for name, info in infos.items()}
    _check_places(entries, reader.size)
    return metadata, entries, left_out


# ------------------------------------------------------------------------------------------------ keys
def _metadata(reader: _GgufReader, count: int, room: int) -> tuple[dict[str, str], list[str], int]:
    """Read keys with their values, the skipped keys, and the alignment."""
    metadata: dict[str, str] = {}
    left_out: list[str] = []
    alignment, known = _DEFAULT, set[str]()
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
                raise FormatError(f"{_ALIGNMENT} is not a uint32 power of two")
            alignment = value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        # Size in the side-information record.
        room -= (size := len(json.dumps(text)) + len(json.dumps(PREFIX + key)))
        if room < 0:
            room += size
            left_out.append(key)
        else:
            metadata[PREFIX + key] = text
    return metadata, left_out, alignment


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
    for _ in range(count):
        name = reader.name("tensor")
        dims = reader.u32()
        if dims > _MAX_DIMS:
            raise FormatError(
                f"tensor {name[:80]!a}: {dims:,} dimensions; at most {_MAX_DIMS} are supported", tensor=name
            )
        shape = tuple(reader.u64() for _ in range(dims))[::-1]
        yield name, (shape, *struct.unpack("<IQ", reader.take(12)))


def _entry(
    name: str, shape: tuple[int, ...], type: int, offset: int, start: int, alignment: int, budget: Budget
) -> Entry:
    """Check a tensor and return its entry; ``start`` is the offset of the tensor data."""
    what = f"tensor {name[:80]!a}"
    if type not in _PLAIN and type != _Q8_0:
        known = _REFUSED.get(type, str(type))
        raise FormatError(f"{what}: type {known} is not supported; use F32, F16, BF16, F64, I8, I16, I32, I64 or Q8_0")
    stored = STORED_TYPES[_PLAIN.get(type, "float32")]
    elements = budget.tensor(shape, stored.itemsize, what)
    if offset % alignment:
        raise FormatError(f"{what}: offset {offset:,} is not a multiple of {alignment}")
    try:
        _ = stored.dtype
    except MissingDependencyError as error:
        error.within(what)
        raise
    if type != _Q8_0:
        return Entry(stored.name, shape, start + offset, elements * stored.itemsize)
    if not shape or shape[-1] % _BLOCK:
        raise FormatError(f"{what}: shape {list(shape)} cannot be divided into blocks of {_BLOCK}")
    return _Blocks(stored.name, shape, start + offset, elements // _BLOCK * _BLOCK_BYTES)


def _check_places(entries: dict[str, Entry], size: int) -> None:
    """Check that tensors are within the file and do not overlap."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start < at:
            raise FormatError(f"tensor {name[:80]!a}: its bytes overlap another tensor", tensor=name)
        at = entry.start + entry.nbytes
        if at > size:
            raise FormatError(f"tensor {name[:80]!a}: the file has {size:,} bytes; {at:,} are required", tensor=name)
