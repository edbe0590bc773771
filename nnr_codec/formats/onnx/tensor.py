"""Items of ONNX tensors: their types, and their form in raw data and in typed fields (TensorProto)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ...dtypes import STORED_TYPES, StoredType, bit_patterns
from ...errors import FormatError
from ...model import Array
from .. import fill, lazy
from ..protobuf import LONGEST, lengths, packed, unpacked

#: Fields of a TensorProto with items.
FLOAT_DATA, INT32_DATA, INT64_DATA, RAW_DATA, DOUBLE_DATA, UINT64_DATA = 4, 5, 7, 9, 10, 11

# Number of items, or bytes of varints, converted at a time.
_CHUNK = 1 << 18


class ItemType(NamedTuple):
    """Array type of an item type, and the field other than ``raw_data`` that may contain its items."""

    name: str
    field: int


def _types(*names: str, field: int = INT32_DATA) -> list[ItemType]:
    return [ItemType(name, field) for name in names]


#: Types by number (TensorProto.DataType). FLOAT4E2M1 and FLOAT8E8M0 are stored as bit patterns; strings, complex
#: numbers and 6-bit floats do not become tensors.
TYPES = dict(
    zip(
        (1, 11, 6, 7, 12, 13, 2, 3, 4, 5, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26),
        [
            *_types("float32", field=FLOAT_DATA),
            *_types("float64", field=DOUBLE_DATA),
            *_types("int32"),
            *_types("int64", field=INT64_DATA),
            *_types("uint32", "uint64", field=UINT64_DATA),
            *_types("uint8", "int8", "uint16", "int16", "bool", "float16", "bfloat16"),
            *_types("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
            *_types("uint4", "int4", "uint4", "uint8", "uint2", "int2"),
        ],
        strict=True,
    )
)


class Items(NamedTuple):
    """Form of the items of a tensor in a file.

    Parameters
    ----------
    type : str
        Name of a :class:`~nnr_codec.dtypes.StoredType`.
    shape : tuple of int
    field : int
        Field that contains them; :data:`RAW_DATA` also for items in other files.
    """

    type: str
    shape: tuple[int, ...]
    field: int

    @property
    def stored(self) -> StoredType:
        """Type of the array."""
        return STORED_TYPES[self.type]

    @property
    def per_value(self) -> int:
        """Number of items per byte of raw data, or per varint."""
        return 8 // self.stored.bits if self.stored.bits in (2, 4) else 1

    @property
    def raw_size(self) -> int:
        """Size of the raw data in bytes."""
        return -(-prod(self.shape) // self.per_value) * self.stored.itemsize

    @property
    def raw(self) -> Items:
        """The same items as raw data."""
        return Items(self.type, self.shape, RAW_DATA)

    @property
    def is_varints(self) -> bool:
        """True if the size depends on the values."""
        return self.field not in (RAW_DATA, FLOAT_DATA, DOUBLE_DATA)

    def check_size(self, nbytes: int, what: str) -> None:
        """Raise FormatError if ``nbytes`` cannot be the size of these items."""
        least = most = self.raw_size
        if self.is_varints:
            least = -(-prod(self.shape) // self.per_value)
            most = least * LONGEST
        if not least <= nbytes <= most:
            wanted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            raise FormatError(
                f"{what}: the data has {nbytes:,} bytes; {self.stored.name} of shape {self.shape} requires {wanted}"
            )

    def read(self, file: BinaryIO, nbytes: int, what: str) -> Array:
        """Read an array of ``nbytes`` from a file.

        Raises FormatError, prefixed with ``what``, if the data is invalid.
        """
        if self.is_varints:
            return self._of_patterns(self._of_varints(file, nbytes, what), what)
        if self.per_value > 1:
            raw = np.empty(nbytes, np.uint8)
            fill(file, raw, what)
            return self._of_patterns(_separate(raw, self.stored.bits)[: prod(self.shape)], what)
        items = np.empty(self.shape, self.stored.little_endian)
        fill(file, items, what)
        return self._of_patterns(items.astype(self.stored.pattern, copy=False), what)

    def _of_patterns(self, items: npt.NDArray[np.unsignedinteger], what: str) -> Array:
        """Return the array of bit patterns, which are unsigned for items of less than 8 bits."""
        stored = self.stored
        if stored.kind == "b" and np.any(items > 1):
            raise FormatError(f"{what}: a boolean is neither 0 nor 1")
        items = items.reshape(self.shape)
        if self.per_value == 1:
            return items.view(stored.dtype)
        if stored.kind == "i":
            shift = 8 - stored.bits
            return ((items << shift).view(np.int8) >> shift).astype(stored.dtype)
        return items.astype(stored.dtype)

    def _of_varints(self, file: BinaryIO, nbytes: int, what: str) -> npt.NDArray[np.unsignedinteger]:
        """Return the bit patterns of varints."""
        stored, per_value = self.stored, self.per_value
        count = -(-prod(self.shape) // per_value)
        found, at, rest = np.empty(count, stored.pattern), 0, np.empty(0, np.uint8)
        while nbytes:
            part = np.empty(min(nbytes, _CHUNK), np.uint8)
            fill(file, part, what)
            nbytes -= len(part)
            data = np.concatenate([rest, part])
            values, used = unpacked(data)
            rest = data[used:]
            if at + len(values) > count:
                break
            found[at : at + len(values)] = self._narrow(values, what)
            at += len(values)
        if nbytes or at != count or len(rest):
            raise FormatError(
                f"{what}: the number of values does not match shape {self.shape}, which requires {count:,}"
            )
        return _separate(found, stored.bits)[: prod(self.shape)] if per_value > 1 else found

    def _narrow(self, values: npt.NDArray[np.uint64], what: str) -> npt.NDArray[np.unsignedinteger]:
        """Return the bit patterns for varints. Raise FormatError for values that are too large."""
        narrow = values.astype(self.stored.pattern)
        if not np.array_equal(self._wide(narrow), values):
            raise FormatError(f"{what}: a value is out of range for {self.stored.name}")
        return narrow

    def _wide(self, patterns: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint64]:
        """Return bit patterns as varint values: negative integers have 64 bits, all other patterns are unchanged."""
        if self.stored.kind == "i" and self.stored.bits >= 8:
            return patterns.view(f"i{patterns.itemsize}").astype(np.int64).view(np.uint64)
        return patterns.astype(np.uint64)

    def size_of(self, array: Array) -> int:
        """Return the size of an array in this form, in bytes."""
        if not self.is_varints:
            return self.raw_size
        patterns = self._patterns(array)
        parts = (patterns[at : at + _CHUNK] for at in range(0, len(patterns), _CHUNK))
        return sum(int(lengths(self._wide(part)).sum()) for part in parts)

    def write(self, file: BinaryIO, array: Array) -> None:
        """Write an array of this type and shape."""
        patterns = self._patterns(array)
        if not self.is_varints:
            file.write(patterns.astype(patterns.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
            return
        for at in range(0, len(patterns), _CHUNK):
            file.write(packed(self._wide(patterns[at : at + _CHUNK])).data)

    def _patterns(self, array: Array) -> npt.NDArray[np.unsignedinteger]:
        """Return the bit patterns; several items of less than 8 bits share a byte."""
        patterns = bit_patterns(array)
        return _join(patterns, self.stored.bits) if self.per_value > 1 else patterns


#: Tensors of one type and shape share their :class:`Items`.
items_of = lru_cache(1024)(Items)


def _separate(data: npt.NDArray[np.unsignedinteger], bits: int) -> npt.NDArray[np.unsignedinteger]:
    """Unpack the items of bytes, lowest bits first, to one byte each."""
    parts = [data >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=1).reshape(-1)


def _join(items: npt.NDArray[np.unsignedinteger], bits: int) -> npt.NDArray[np.unsignedinteger]:
    """Pack several items into each byte; unused bits of the last one are 0."""
    per_byte = 8 // bits
    padded = np.zeros(-(-len(items) // per_byte) * per_byte, np.uint8)
    padded[: len(items)] = items & np.uint8((1 << bits) - 1)
    found = np.zeros(len(padded) // per_byte, np.uint8)
    for k in range(per_byte):
        found |= padded[k::per_byte] << np.uint8(k * bits)
    return found


@dataclass(frozen=True, slots=True)
class ItemLocation(lazy.Entry):
    """Location of the items of a tensor.

    Parameters
    ----------
    field : int
        See :class:`Items`.
    """

    field: int = RAW_DATA

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the tensor. Raise FormatError, prefixed with ``what``, if the items are invalid."""
        file.seek(self.start)
        return Items(self.type, self.shape, self.field).read(file, self.nbytes, what)
