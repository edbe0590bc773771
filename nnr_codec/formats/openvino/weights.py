"""Items in the ``.bin`` of an OpenVINO IR: little-endian, and packed from the low bits if they have 2 or 4 bits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ...dtypes import STORED_TYPES, StoredType, bit_patterns
from ...errors import FormatError
from ...model import Array
from .. import fill
from ..lazy import Entry
from .ir import IrConstant, bits_of

#: Limit of bytes that belong to no constant: the larger of this number, and this multiple of the constants' size.
MAX_HOLES, HOLES_FACTOR = 64 << 20, 16

_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedEntry(Entry):
    """Tensor with items of 2 or 4 bits."""

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the tensor. Raise FormatError, prefixed with ``what``, if the file ends early."""
        stored, count = STORED_TYPES[self.type], prod(self.shape)
        items: npt.NDArray[np.uint8] = np.empty(count, np.uint8)
        file.seek(self.start)
        for start in range(0, count, _PART):
            part = items[start : start + _PART]
            packed = np.empty(-(-part.size * stored.bits // 8), np.uint8)
            fill(file, packed, what)
            shifted = packed[:, None] >> np.arange(0, 8, stored.bits, dtype=np.uint8)
            part[...] = (shifted & (255 >> (8 - stored.bits))).reshape(-1)[: part.size]
        if stored.kind == "i":
            sign = 1 << (stored.bits - 1)
            return ((items ^ sign).view(np.int8) - np.int8(sign)).astype(stored.dtype).reshape(self.shape)
        return items.astype(stored.dtype).reshape(self.shape)


def entry_of(constant: IrConstant) -> Entry:
    """Return the location of a constant."""
    kind = PackedEntry if bits_of(constant.stored) < 8 else Entry
    return kind(constant.stored.name, constant.shape, constant.offset, constant.nbytes)


def write_items(file: BinaryIO, array: Array, stored: StoredType) -> None:
    """Write an array of this type at the current position."""
    items = bit_patterns(array)
    if bits_of(stored) < 8:
        _write_packed(file, items, stored.bits)
    else:
        file.write(items.astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)


def _write_packed(file: BinaryIO, items: npt.NDArray[np.unsignedinteger], bits: int) -> None:
    each, mask = 8 // bits, 255 >> (8 - bits)
    for start in range(0, items.size, _PART):
        part = items[start : start + _PART] & mask
        columns = np.pad(part, (0, -part.size % each)).reshape(-1, each) << np.arange(0, 8, bits, dtype=np.uint8)
        file.write(np.bitwise_or.reduce(columns, axis=1).astype(np.uint8).data)


def check_size(constants: Collection[IrConstant], size: int) -> None:
    """Raise FormatError unless a ``.bin`` of this size contains the constants, and few other bytes."""
    end = max((constant.end for constant in constants), default=0)
    if end > size:
        last = max(constants, key=lambda constant: constant.end)
        raise FormatError(f"the .bin has {size:,} bytes; the constant {last.name[:80]!a} ends at {end:,}")
    used = sum(constant.nbytes for constant in constants)
    if size - used > (most := max(MAX_HOLES, HOLES_FACTOR * used)):
        raise FormatError(f"the .bin has {size - used:,} bytes that no constant uses; the limit is {most:,}")


def count_left_out(file: BinaryIO, constants: Iterable[IrConstant], size: int) -> int:
    """Return the number of nonzero bytes of a ``.bin`` that are not, or not entirely, part of a constant."""
    count = at = 0
    for constant in sorted(constants, key=lambda constant: constant.offset):
        count += _count(file, at, constant.offset)
        at = constant.end
        if constant.padding:
            file.seek(at - 1)
            count += file.read(1)[0] >> (8 - constant.padding) != 0
    return count + _count(file, at, size)


def _count(file: BinaryIO, start: int, end: int) -> int:
    """Return the number of nonzero bytes of a range."""
    file.seek(start)
    count = 0
    while start < end:
        part = np.empty(min(end - start, _PART), np.uint8)
        fill(file, part, f"byte {start:,} of the .bin")
        count += int(np.count_nonzero(part))
        start += part.size
    return count


def write_zeros(file: BinaryIO, count: int) -> None:
    """Write ``count`` zero bytes."""
    for start in range(0, count, _PART):
        file.write(bytes(min(count - start, _PART)))
