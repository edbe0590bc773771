"""Reader and writer of NNEF tensor files: a header of 128 bytes, then the items in row-major order, little-endian.

The layout follows NNEF 1.0.3, 5.2, with the item types 0 to 5 as corrected in NNEF 1.0.4. In files of 1.0 to 1.0.2 the
item type is a quantization code: integers are signed if the first parameter is not 0, and the unsigned integers of
codes 0x10 and 0x11 stand for numbers defined by further parameters. All are read as integers; other header fields are
kept in :attr:`TensorFileHeader.fields`. :meth:`TensorFileHeader.dequantized` returns the numbers.

The data of an item type of a vendor is not interpreted. Its bytes, followed by zeros, are the items of an array of
unsigned integers with the shape of the tensor, so that it is coded like any other tensor and restored exactly.

Items of widths that numpy lacks are a bit stream, most significant bit first, as all implementations do for booleans;
in memory they take the next wider integer type.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import FormatError
from ...limits import Budget
from ...model import Array
from .. import fill, lacks_type

#: Size of the header in bytes.
HEADER_SIZE = 128

# magic, major, minor, data length, rank; followed by the extents
_START = struct.Struct("<2s2B2I")
# unused extents; bits per item, item type, vendor, first parameter, other parameters and reserved bytes
_ITEMS = struct.Struct("<I2HI72s")
_MAGIC = b"\x4e\xef"
_MAX_RANK = 8
_MAX_LENGTH = (1 << 32) - 1
# Items read or written at a time; a multiple of 8, so that parts of packed items are whole bytes.
_PART = 1 << 15
# Number of headers in memory, each smaller than a kilobyte.
_MAX_CACHED = 1024


class _ItemType(NamedTuple):
    name: str
    kind: str
    data_type: str
    widths: Container[int]


_ANY_WIDTH = range(1, 65)
_ITEM_TYPES = {
    0x00: _ItemType("float", "f", "scalar", (16, 32, 64)),
    0x01: _ItemType("unsigned integer", "u", "integer", _ANY_WIDTH),
    0x02: _ItemType("quantized unsigned integer", "u", "scalar", _ANY_WIDTH),
    0x03: _ItemType("quantized signed integer", "i", "scalar", _ANY_WIDTH),
    0x04: _ItemType("signed integer", "i", "integer", _ANY_WIDTH),
    0x05: _ItemType("boolean", "b", "logical", (1, 8)),
    0x10: _ItemType("linearly quantized value of NNEF before 1.0.3", "u", "scalar", _ANY_WIDTH),
    0x11: _ItemType("logarithmically quantized value of NNEF before 1.0.3", "u", "scalar", _ANY_WIDTH),
}
_UNSIGNED = 0x01
_LINEAR, _LOGARITHMIC = 0x10, 0x11
# Parameters of these two.
_RANGE = struct.Struct("<2f")
# Exponents beyond this are infinity or 0 in float64.
_DEEP = 1200
_QUANTIZED = (0x02, 0x03)
# Item types as NNEF 1.0.3 prints them, although it means binary numbers; no other type has these values.
_MISPRINTS = {0x0100: 0x04, 0x0101: 0x05}
_VENDORS = {0x5452: "tract"}
# The item type to write, by kind of the dtype and data type of the graph.
_WRITTEN = {(_ITEM_TYPES[code].kind, _ITEM_TYPES[code].data_type): code for code in range(0x06)}

#: Default data type by kind of array.
DATA_TYPES = {"f": "scalar", "i": "integer", "u": "integer", "b": "logical"}


@dataclass(frozen=True)
class TensorFileHeader:
    """Header of a tensor file.

    Parameters
    ----------
    shape : tuple of int
        At most eight extents, each at least 1.
    dtype : numpy dtype
        Dtype of the array, in native byte order; booleans of 8 bits that are neither 0 nor 1 are uint8 instead.
    bits : int
        Bits per item in the file.
    item_type : int
        0 to 5, 0x10 or 0x11 of NNEF before 1.0.3, or any of a vendor.
    fields : bytes
        The header after the extents of the shape, without trailing zero bytes.
    vendor_length : int
        Size of the data in bytes if the item type is one of a vendor, else 0.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    bits: int
    item_type: int
    fields: bytes
    vendor_length: int = 0

    @functools.cached_property
    def data_type(self) -> str:
        """Matching data type of a graph: ``scalar``, ``integer`` or ``logical`` (NNEF 1.0.3, 5.2.1).

        Empty for an item type of a vendor, which may have any.
        """
        return "" if self.vendor_length else _ITEM_TYPES[self.item_type].data_type

    @property
    def is_quantized(self) -> bool:
        """True if the items are integers for numbers that only ``graph.quant`` defines."""
        return self.item_type in _QUANTIZED and not self.vendor_length

    @functools.cached_property
    def is_written(self) -> bool:
        """True if this is the default header for an array of this shape and dtype."""
        return self.fields == _written(self.shape, self.dtype, self.data_type).fields

    @property
    def text(self) -> str:
        """Hexadecimal form for metadata: the fields, or all 128 bytes for an item type of a vendor."""
        return (self.to_bytes() if self.vendor_length else self.fields).hex()

    @functools.cached_property
    def is_packed(self) -> bool:
        """True if the items in the file are narrower than the items of the array."""
        return self.bits < 8 * self.dtype.itemsize and not self.vendor_length

    @functools.cached_property
    def stored(self) -> np.dtype[np.generic]:
        """Dtype of the items, or of the integers before packing, in native byte order."""
        return np.dtype(np.uint8) if self.dtype.kind == "b" else self.dtype

    @functools.cached_property
    def read(self) -> np.dtype[np.generic]:
        """Dtype for reading items: little-endian, or native if they are packed."""
        return self.stored.newbyteorder("=" if self.is_packed else "<")

    @functools.cached_property
    def length(self) -> int:
        """Size of the items in bytes."""
        return self.vendor_length or (math.prod(self.shape) * self.bits + 7) // 8

    def holds(self, dtype: np.dtype[np.generic]) -> bool:
        """Return whether arrays of this dtype, in any byte order, come from files with this header."""
        return dtype.newbyteorder("=") == self.dtype or (dtype == self.stored and not self.is_packed)

    @functools.cached_property
    def range(self) -> tuple[float, float] | None:
        """Parameters min and max of item types 0x10 and 0x11; None for other item types."""
        if self.item_type not in (_LINEAR, _LOGARITHMIC) or self.vendor_length:
            return None
        low, high = _RANGE.unpack_from(self.fields.ljust(HEADER_SIZE, b"\0"), 4 * (_MAX_RANK - len(self.shape)) + 8)
        return low, high

    @property
    def numbers(self) -> np.dtype[np.generic]:
        """Dtype of :meth:`dequantized`: float32, or float64 for items of more than 24 bits."""
        return np.dtype(np.float32 if self.bits <= 24 else np.float64)

    def dequantized(self, array: Array) -> Array:
        """Return the numbers that integers of item types 0x10 and 0x11 stand for, by the formulas of NNEF 1.0, 5.2.

        They are computed in float64. Logarithmic values are signed if min is -max; their highest bit is the sign.
        """
        assert self.range is not None
        low, high = self.range
        with np.errstate(all="ignore"):  # parameters may be any numbers
            if self.item_type == _LINEAR:
                numbers = array.astype(np.float64) / float((1 << self.bits) - 1) * (high - low) + low
            else:
                signed = int(low < 0)
                largest = (1 << self.bits - signed) - 1
                fraction, exponent = math.frexp(high)  # ceil(log2(high)) is the exponent, unless high is a power of 2
                # Differences are exact in unsigned integers, and results are exact powers of two.
                most = np.asarray(largest, array.dtype)
                below = np.subtract(most, np.bitwise_and(array, most)).astype(np.float64)
                numbers = np.ldexp(1.0, np.clip(exponent - (fraction == 0.5) - below, -_DEEP, _DEEP).astype(np.int32))
                if signed:
                    numbers = np.where(np.greater(array, most), -numbers, numbers)
                if not 0 < high < math.inf:
                    numbers = np.full(array.shape, math.nan)
            return np.asarray(numbers, np.float64).astype(self.numbers)

    def to_bytes(self) -> bytes:
        """Return the 128 bytes of the header."""
        start = _START.pack(_MAGIC, 1, 0, self.length, len(self.shape))
        extents = struct.pack(f"<{len(self.shape)}I", *self.shape)
        return (start + extents + self.fields).ljust(HEADER_SIZE, b"\0")


def read_header(file: BufferedIOBase, size: int, name: str) -> TensorFileHeader:
    """Read and check the header of a tensor file of ``size`` bytes; the file is then positioned at its items.

    Raises
    ------
    FormatError
        The header is malformed, contradicts the size, or has an unsupported item type.
    """
    raw = file.read(HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        raise FormatError(
            f"the file has {len(raw)} bytes; the header of a tensor file requires {HEADER_SIZE}", where=name
        )
    try:
        header = _parsed(raw)
    except FormatError as error:
        error.within(name)
        raise
    length = header.length
    if size == HEADER_SIZE + length + 4:
        raise FormatError(
            "the file has 4 bytes too many, like files of NNEF tools of 2018 with a header of 132 bytes", where=name
        )
    if size != HEADER_SIZE + length:
        raise FormatError(f"the file has {size:,} bytes; header and items require {HEADER_SIZE + length:,}", where=name)
    return header


@functools.lru_cache(_MAX_CACHED)
def _parsed(raw: bytes) -> TensorFileHeader:
    """Parse 128 bytes; tensors of the same shape and item type share the header. FormatError does not name the file."""
    magic, major, minor, length, rank = _START.unpack_from(raw)
    if magic != _MAGIC:
        raise FormatError(f"not an NNEF tensor file: it begins with {magic.hex(' ')} instead of 4e ef")
    if (major, minor) != (1, 0):
        raise FormatError(f"tensor file version {major}.{minor} is not supported; only 1.0 is")
    if rank > _MAX_RANK:
        raise FormatError(f"rank {rank} exceeds the maximum of {_MAX_RANK}")
    shape = struct.unpack_from(f"<{rank}I", raw, _START.size)
    if 0 in shape:
        raise FormatError(f"shape {shape} has an extent of 0")
    header = _header(shape, raw[_START.size + 4 * rank :], length)
    if length != header.length:
        raise FormatError(f"the header declares {length} bytes of items; shape {shape} requires {header.length}")
    return header


def _header(shape: tuple[int, ...], fields: bytes, length: int = 0) -> TensorFileHeader:
    """Return the header of a shape followed by these bytes, of which trailing zeros may be missing.

    ``length`` is the declared size of the data, which an item type of a vendor requires.

    Raises FormatError, which does not name the file, for an unsupported item type.
    """
    unused = 4 * (_MAX_RANK - len(shape))
    bits, item_type, vendor, parameter, _ = _ITEMS.unpack_from(fields.ljust(HEADER_SIZE, b"\0"), unused)
    if vendor:
        # At least one bit per item, which bounds the array, and at most 64.
        items = math.prod(shape)
        if not items <= 8 * length <= 64 * items:
            whose = f"{vendor:#06x} ({_VENDORS[vendor]})" if vendor in _VENDORS else f"{vendor:#06x}"
            raise FormatError(
                f"item type {item_type:#x} of vendor {whose} has {length:,} bytes for {items:,} items; "
                "1 to 64 bits per item are supported"
            )
        size = 1 << (-(-length // items) - 1).bit_length()
        return TensorFileHeader(shape, np.dtype(f"u{size}"), bits, item_type, fields.rstrip(b"\0"), length)
    if item_type in _MISPRINTS:
        meant = _MISPRINTS[item_type]
        raise FormatError(
            f"item type {item_type:#x} is a misprint in NNEF 1.0.3; use {meant} ({_ITEM_TYPES[meant].name})"
        )
    if item_type not in _ITEM_TYPES:
        raise FormatError(f"NNEF does not define item type {item_type:#x} (1.0.3, 5.2)")
    what = _ITEM_TYPES[item_type]
    if bits not in what.widths:
        raise FormatError(f"item type {item_type:#x} ({what.name}) cannot have {bits} bits (NNEF 1.0.3, 5.2)")
    kind = "i" if item_type == _UNSIGNED and parameter else what.kind
    width = max(8, 1 << (bits - 1).bit_length())
    dtype: np.dtype[np.generic] = np.dtype(np.bool_) if kind == "b" else np.dtype(f"{kind}{width // 8}")
    return TensorFileHeader(shape, dtype, bits, item_type, fields.rstrip(b"\0"))


def read_data(file: BufferedIOBase, header: TensorFileHeader, name: str) -> Array:
    """Read the items after a header into a new array.

    Raises FormatError if the file ends early, or has nonzero bits after the last item.
    """
    array: npt.NDArray[Any] = np.empty(header.shape, header.read)
    if header.vendor_length:
        data = array.reshape(-1).view(np.uint8)
        fill(file, data[: header.length], name)
        data[header.length :] = 0
    elif header.is_packed:
        for part in _parts(array):
            _unpack(file, part, header.bits, name)
    else:
        fill(file, array, name)
    if header.dtype.kind == "b":
        return array if array.max() > 1 else array.view(np.bool_)
    return array.astype(header.dtype, copy=False)


def _unpack(file: BufferedIOBase, part: Array, bits: int, name: str) -> None:
    """Fill a part of an integer array from packed items that start at a byte boundary."""
    packed = np.empty((part.size * bits + 7) // 8, np.uint8)
    fill(file, packed, name)
    stream = np.unpackbits(packed)
    if stream[part.size * bits :].any():
        raise FormatError("the bits after the last item are not 0 (NNEF 1.0.3, 5.2)", where=name)
    width = 8 * part.dtype.itemsize
    wide = np.zeros((part.size, width), np.uint8)
    wide[:, :bits] = stream[: part.size * bits].reshape(-1, bits)
    # Shift from the top of the integer, so that signs are extended.
    integers: npt.NDArray[Any] = np.packbits(wide).view(part.dtype.newbyteorder(">"))
    part[...] = integers >> (width - bits)


def read_tensor(file: BufferedIOBase, size: int, name: str, budget: Budget) -> Array:
    """Read a tensor file of ``size`` bytes from the current position.

    Raises
    ------
    FormatError
        The file is malformed or has an unsupported item type; the message is prefixed with ``name``.
    LimitError
        The array exceeds the budget.
    """
    header = read_header(file, size, name)
    budget.tensor(header.shape, header.dtype.itemsize, name)
    return read_data(file, header, name)


def header_of(array: Array, data_type: str | None, name: str, fields: str | None = None) -> TensorFileHeader:
    """Return the header for writing an array as a variable of a data type.

    Parameters
    ----------
    array : ndarray
        Array in any byte order.
    data_type : str or None
        ``scalar``, for which integers are quantized values, ``integer``, or ``logical``, which is written with 1 bit
        each; None if there is no graph: the type in ``fields``, or else :data:`DATA_TYPES`.
    name : str
        Name of the file in errors.
    fields : str, optional
        :attr:`TensorFileHeader.fields` of the source file in hexadecimal. They are used if arrays of this dtype come
        from such files; otherwise the tensor was converted.

    Raises
    ------
    FormatError
        A tensor file cannot represent the array, the data type does not match, or ``fields`` are invalid.
    """
    if array.ndim > _MAX_RANK or array.size == 0:
        raise FormatError(
            f"shape {array.shape} is not supported; NNEF permits at most {_MAX_RANK} extents, each at least 1",
            where=name,
        )
    try:
        header = None if fields is None else parse_header(array.shape, fields)
    except FormatError as error:
        error.within(name)
        raise
    if header is None or not header.holds(array.dtype):
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise lacks_type(name, array.dtype, "nnef")
        header = _written(array.shape, array.dtype.newbyteorder("="), data_type or DATA_TYPES[array.dtype.kind])
    if data_type is not None and header.data_type not in ("", data_type):
        message = f"{_ITEM_TYPES[header.item_type].name} is {header.data_type} data; the variable is {data_type}"
        raise FormatError(message, where=name)
    if header.length > _MAX_LENGTH:
        raise FormatError(
            f"the items have {header.length:,} bytes; an NNEF tensor file holds at most {_MAX_LENGTH:,}", where=name
        )
    return header


def parse_header(shape: tuple[int, ...], text: str) -> TensorFileHeader:
    """Return the header of a tensor for a text of :attr:`TensorFileHeader.text`.

    Raises FormatError, which does not name the file, if the text is not a part of a header of this shape.
    """
    try:
        decoded = bytes.fromhex(text)
    except ValueError:
        decoded = bytes(HEADER_SIZE + 1)
    if len(decoded) == HEADER_SIZE:
        header = _parsed(decoded)
        if header.shape != shape:
            raise FormatError(f"the vendor data has shape {header.shape}; the tensor has {shape}")
        return header
    if len(decoded) > HEADER_SIZE - _START.size - 4 * len(shape):
        raise FormatError(f"{text[:40]!a} is not a valid part of a tensor file header")
    return _header(shape, decoded)


def _written(shape: tuple[int, ...], dtype: np.dtype[np.generic], data_type: str) -> TensorFileHeader:
    """Return the default header; its data type differs if no item type of the dtype has the requested one."""
    bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize
    item_type = _WRITTEN.get((dtype.kind, data_type))
    if item_type is None:
        item_type = next(code for (kind, _), code in _WRITTEN.items() if kind == dtype.kind)
    fields = bytes(4 * (_MAX_RANK - len(shape))) + _ITEMS.pack(bits, item_type, 0, 0, b"")
    return TensorFileHeader(shape, dtype, bits, item_type, fields.rstrip(b"\0"))


def write_tensor(file: BinaryIO, array: Array, header: TensorFileHeader, name: str) -> int:
    """Write an array as a tensor file with a header of :func:`header_of`; return the number of bytes.

    Raises FormatError if an integer exceeds the bits of its item, or vendor data its length; part of the file is
    written by then.
    """
    file.write(header.to_bytes())
    left = header.length
    for part in _parts(array):
        if header.is_packed:
            file.write(_pack(part.astype(header.stored, copy=False), header, name))
        else:
            # Copies only parts, and only of an array that is not contiguous or little-endian.
            data = part.astype(header.stored.newbyteorder("<"), copy=False).view(np.uint8)
            if data[left:].any():
                raise FormatError("vendor data is longer than its header declares", where=name)
            file.write(data[:left].data)
            left -= min(left, data.size)
    return HEADER_SIZE + header.length


def _pack(part: npt.NDArray[Any], header: TensorFileHeader, name: str) -> memoryview:
    """Return the packed items of a part of an integer array, starting at a byte boundary."""
    width, signed = 8 * part.dtype.itemsize, int(part.dtype.kind == "i")
    least, most = -(signed << (header.bits - 1)), (1 << (header.bits - signed)) - 1
    if part.min() < least or part.max() > most:
        raise FormatError(f"an item does not fit the {header.bits} bits declared in the header", where=name)
    stream = np.unpackbits(part.astype(part.dtype.newbyteorder(">"), copy=False).view(np.uint8))
    return np.packbits(stream.reshape(-1, width)[:, width - header.bits :]).data


def _parts(array: Array) -> Iterator[Array]:
    """Yield one-dimensional parts in row-major order, as views if the array is contiguous."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, _PART):
        yield flat[start : start + _PART]
