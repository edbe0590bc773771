"""Reads and writes NNEF tensor files: 128 bytes of header, then the items in row-major order, all little-endian.

The layout is that of NNEF 1.0.3, 5.2, with the item types 0 to 5 as NNEF 1.0.4 corrected them; files of 1.0 to 1.0.2
differ in what is an item type (then a quantization code) and in the parameter that says whether integers are signed.
Here items are float16/32/64, signed and unsigned integers of 8, 16, 32 and 64 bits, and booleans of 1 bit (first item
in the highest bit) or 8 bits.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from io import BufferedIOBase
from typing import BinaryIO

import numpy as np

from ...errors import FormatError
from ...limits import Budget
from ...model import Array
from .. import fill, lacks_type

#: Bytes before the items.
HEADER_SIZE = 128

# magic, major, minor, data length, rank, 8 extents, bits per item, item type, vendor, first parameter, the rest
_HEADER = struct.Struct("<2s2B2I8II2HI72s")
_MAGIC = b"\x4e\xef"
_MAX_RANK = 8
_MAX_LENGTH = (1 << 32) - 1
_FLOAT, _UNSIGNED, _SIGNED, _BOOL = 0, 1, 4, 5
_WIDTHS = {_FLOAT: (16, 32, 64), _UNSIGNED: (8, 16, 32, 64), _SIGNED: (8, 16, 32, 64), _BOOL: (1, 8)}
_KINDS = {"f": _FLOAT, "u": _UNSIGNED, "i": _SIGNED, "b": _BOOL}
_NAMES = {
    0x00: "float",
    0x01: "unsigned integer",
    0x02: "quantized unsigned integer",
    0x03: "quantized signed integer",
    0x04: "signed integer",
    0x05: "boolean",
    0x10: "linearly quantized value of NNEF before 1.0.3",
    0x11: "logarithmically quantized value of NNEF before 1.0.3",
}
_READ_HERE = "float16/32/64, integers of 8, 16, 32 or 64 bits and booleans are read"
_WRITE_ITEMS = 1 << 18


@dataclass(frozen=True)
class Header:
    """What a tensor file says of its items.

    Parameters
    ----------
    shape : tuple of int
        At most eight extents, each at least 1.
    dtype : numpy dtype
        Of the array, in the machine's byte order.
    bits : int
        Per item in the file; differs from the dtype's only for booleans of 1 bit.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    bits: int

    @property
    def data_type(self) -> str:
        """The data type of a graph that this fits: ``scalar``, ``integer`` or ``logical`` (NNEF 1.0.3, 5.2.1)."""
        return {"f": "scalar", "b": "logical"}.get(self.dtype.kind, "integer")

    @property
    def length(self) -> int:
        """Bytes of the items."""
        return (math.prod(self.shape) * self.bits + 7) // 8


def read_header(file: BufferedIOBase, size: int, name: str) -> Header:
    """Read and check the header of a tensor file of ``size`` bytes; the file is then at its items.

    Raises
    ------
    FormatError
        The header is malformed, does not fit the size, or has an item type that is not read here.
    """
    raw = file.read(HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        raise FormatError(f"{name}: {len(raw)} bytes are too few for the header of a tensor file")
    magic, major, minor, length, rank, *extents, bits, item_type, vendor, parameter, _ = _HEADER.unpack(raw)
    if magic != _MAGIC:
        raise FormatError(f"{name}: not an NNEF tensor file, it begins with {magic.hex(' ')} instead of 4e ef")
    if (major, minor) != (1, 0):
        raise FormatError(f"{name}: version {major}.{minor} of the tensor file; 1.0 is read")
    if rank > _MAX_RANK:
        raise FormatError(f"{name}: rank {rank}; {_MAX_RANK} is the highest")
    shape = tuple(extents[:rank])
    if 0 in shape:
        raise FormatError(f"{name}: an extent of shape {shape} is 0")
    header = Header(shape, _dtype(item_type, vendor, bits, parameter, name), bits)
    if length != header.length:
        raise FormatError(f"{name}: the header says {length} bytes of items; shape {shape} needs {header.length}")
    if size == HEADER_SIZE + length + 4:
        raise FormatError(f"{name}: 4 bytes too many, the mark of NNEF writers of 2018 whose header has 132 bytes")
    if size != HEADER_SIZE + length:
        raise FormatError(f"{name}: {size} bytes; header and items need {HEADER_SIZE + length}")
    return header


def _dtype(item_type: int, vendor: int, bits: int, parameter: int, name: str) -> np.dtype[np.generic]:
    if vendor:
        raise FormatError(f"{name}: item type {item_type:#x} of vendor {vendor:#06x}; only {_READ_HERE}")
    if bits not in _WIDTHS.get(item_type, ()):
        what = _NAMES.get(item_type, "unknown")
        raise FormatError(f"{name}: item type {item_type:#x} ({what}) of {bits} bits; only {_READ_HERE}")
    if item_type == _BOOL:
        return np.dtype(np.bool_)
    # Before NNEF 1.0.3 there was one code for integers, and the first parameter was not 0 for signed ones.
    signed = item_type == _SIGNED or (item_type == _UNSIGNED and parameter)
    kind = "f" if item_type == _FLOAT else "i" if signed else "u"
    return np.dtype(f"{kind}{bits // 8}")


def read_data(file: BufferedIOBase, header: Header, name: str) -> Array:
    """Read the items that follow a header into a new array; FormatError when the file ends early."""
    if header.bits == 1:
        packed = np.empty(header.length, np.uint8)
        fill(file, packed, name)
        return np.unpackbits(packed, count=math.prod(header.shape)).view(np.bool_).reshape(header.shape)
    stored = np.dtype(np.uint8) if header.dtype.kind == "b" else header.dtype.newbyteorder("<")
    array: Array = np.empty(header.shape, stored)
    fill(file, array, name)
    if header.dtype.kind == "b":
        return np.not_equal(array, 0, out=array.view(np.bool_))
    return array.astype(header.dtype, copy=False)


def read_tensor(file: BufferedIOBase, size: int, name: str, budget: Budget) -> Array:
    """Read a tensor file of ``size`` bytes from the current position.

    Raises
    ------
    FormatError
        It is malformed or has an item type that is not read here; the message begins with ``name``.
    LimitError
        The array would exceed the budget.
    """
    header = read_header(file, size, name)
    budget.tensor(header.shape, header.dtype.itemsize, name)
    return read_data(file, header, name)


def header_of(array: Array, name: str) -> Header:
    """The header that an array is written with; FormatError when a tensor file cannot hold it."""
    bits = 1 if array.dtype.kind == "b" else array.dtype.itemsize * 8
    if bits not in _WIDTHS.get(_KINDS.get(array.dtype.kind, -1), ()):
        raise lacks_type(name, array.dtype, "nnef")
    if array.ndim > _MAX_RANK or array.size == 0:
        raise FormatError(f"{name}: shape {array.shape}; NNEF has at most {_MAX_RANK} extents, each at least 1")
    header = Header(array.shape, array.dtype.newbyteorder("="), bits)
    if header.length > _MAX_LENGTH:
        raise FormatError(f"{name}: {header.length:,} bytes; an NNEF tensor file holds at most {_MAX_LENGTH:,}")
    return header


def write_tensor(file: BinaryIO, array: Array, name: str) -> int:
    """Write an array as a tensor file, booleans with 1 bit each; returns the number of bytes.

    Raises
    ------
    FormatError
        NNEF has no item type for the dtype, or the shape or size is out of range.
    """
    header = header_of(array, name)
    extents = header.shape + (0,) * (_MAX_RANK - array.ndim)
    item_type = _KINDS[array.dtype.kind]
    fields = (header.length, array.ndim, *extents, header.bits, item_type, 0, 0, bytes(72))
    file.write(_HEADER.pack(_MAGIC, 1, 0, *fields))
    if header.bits == 1:
        file.write(np.packbits(array.astype(np.bool_, copy=False)).data)
    else:
        _write_items(file, array)
    return HEADER_SIZE + header.length


def _write_items(file: BinaryIO, array: Array) -> None:
    """Write the items in row-major order; only parts of an array that is not contiguous or little-endian are copied."""
    stored = array.dtype.newbyteorder("<")
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, _WRITE_ITEMS):
        part = flat[start : start + _WRITE_ITEMS].astype(stored, copy=False)
        file.write(part.view(np.uint8).data)
