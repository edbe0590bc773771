"""Block types of GGUF: their fields as arrays of integers and float16, and the blocks that these arrays make.

A block has the bits of a fixed number of weights: quantization levels, scales and minima. A :class:`Field` lists where
in a block its bits are; each bit of a block belongs to exactly one field, so that :func:`split` and :func:`join` are
inverse for all blocks. The places are the same as in ggml. A weight is ``d * scale * level - dmin * min``, or
``d * level + m``; fields that a type lacks count as 1 and 0. Tests compare blocks and weights with the package gguf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Bits:
    """Bits of consecutive items in a block.

    ``lanes`` items are in ``lanes`` adjacent bytes, the next ones above them in the same bytes, up to ``per_byte``;
    all further ones are in the following bytes.

    Parameters
    ----------
    at : int
        First byte.
    width : int
        Bits of an item.
    lanes, per_byte : int
    shift : int
        Lowest bit of the first item in its byte.
    to : int
        Position in the items of their lowest bit.
    first, stop : int or None
        Range of items; default: all.
    """

    at: int
    width: int
    lanes: int
    per_byte: int
    shift: int = 0
    to: int = 0
    first: int | None = None
    stop: int | None = None

    def copy(self, blocks: Bytes, items: Bytes, *, join: bool) -> None:
        """Add the bits of blocks to items, or with ``join`` the bits of items to blocks; both have a row per block."""
        part = items[:, self.first : self.stop]
        part = part.reshape(len(items), -1, self.per_byte, self.lanes)
        size, mask = part.shape[1] * self.lanes, np.uint8((1 << self.width) - 1)
        data = blocks[:, self.at : self.at + size].reshape(len(items), -1, self.lanes)
        for k in range(self.per_byte):
            shift, item = np.uint8(self.shift + k * self.width), part[:, :, k]
            if join:
                data |= (item >> np.uint8(self.to) & mask) << shift
            else:
                item |= (data >> shift & mask) << np.uint8(self.to)


@dataclass(frozen=True)
class Field:
    """Part of all blocks of a type.

    Parameters
    ----------
    name : str
        ``levels``, ``scales``, ``mins``, ``d``, ``dmin``, ``m``, or ``blocks`` for whole blocks as bytes.
    type : str
        ``int8``, ``uint8`` or ``float16``.
    count : int
        Items of a block.
    parts : tuple of Bits
    bits : int
        Bits of an item.
    offset : int
        Stored in blocks: the item plus this number.
    """

    name: str
    type: str
    count: int
    parts: tuple[Bits, ...]
    bits: int = 8
    offset: int = 0

    @property
    def range(self) -> tuple[int, int] | None:
        """Smallest and largest item; None if every item of the type is permitted."""
        return None if self.bits == 8 else (-self.offset, (1 << self.bits) - 1 - self.offset)

    def split(self, blocks: Bytes) -> npt.NDArray[Any]:
        """Return the items of blocks, a row per block."""
        items = np.zeros((len(blocks), self.count * self._bytes), np.uint8)
        for part in self.parts:
            part.copy(blocks, items, join=False)
        if self.offset:
            items -= np.uint8(self.offset)
        return items.view(self._dtype)

    def join(self, items: npt.NDArray[Any], blocks: Bytes) -> None:
        """Set the bits of items, which are in range, in blocks where they are 0."""
        data = np.ascontiguousarray(items, self._dtype).view(np.uint8)
        if self.offset:
            data = data + np.uint8(self.offset)
        for part in self.parts:
            part.copy(blocks, data, join=True)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(self.type).newbyteorder("<")

    @property
    def _bytes(self) -> int:
        return self._dtype.itemsize


@dataclass(frozen=True)
class BlockType:
    """Type of blocks.

    Parameters
    ----------
    number : int
        Number of the type in files.
    name : str
        As in ggml, such as ``Q4_K``.
    size, nbytes : int
        Weights and bytes of a block.
    fields : tuple of Field
    """

    number: int
    name: str
    size: int
    nbytes: int
    fields: tuple[Field, ...]

    @property
    def is_opaque(self) -> bool:
        """True if the blocks are not split into fields."""
        return self.fields[0].name == "blocks"


def join(kind: BlockType, fields: Mapping[str, npt.NDArray[Any]]) -> Bytes:
    """Return the blocks of fields, with a row per block, whose items are in range."""
    blocks = np.zeros((len(fields[kind.fields[0].name]), kind.nbytes), np.uint8)
    for field in kind.fields:
        field.join(fields[field.name], blocks)
    return blocks


def weights(fields: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Return the float32 weights of fields, with a row per block. Scales may be infinite or NaN."""
    numbers = {name: np.asarray(items).astype(np.float32) for name, items in fields.items()}
    levels = numbers["levels"]
    with np.errstate(all="ignore"):
        scales = numbers["d"] * numbers["scales"] if "scales" in numbers else numbers["d"]
        products: npt.NDArray[np.float32] = levels.reshape(*scales.shape, -1)
        products *= scales[:, :, None]
        if "mins" in numbers:
            products -= (numbers["dmin"] * numbers["mins"])[:, :, None]
        elif "m" in numbers:
            products += numbers["m"][:, :, None]
    return products.reshape(levels.shape)


def _half(name: str, at: int) -> Field:
    return Field(name, "float16", 1, (_bytes(at, 2),))


def _bytes(at: int, count: int) -> Bits:
    return Bits(at, 8, count, 1)


def _levels(count: int, bits: int, *parts: Bits, offset: int = 0) -> Field:
    return Field("levels", "int8", count, parts, bits, offset)


def _six_bits(name: str, at: int, shift: int) -> Field:
    """Return the scales or minima of Q4_K and Q5_K, in bytes 4 to 15: four in 6 bits, four in 4 and 2 bits."""
    low, high = Bits(12, 4, 4, 1, shift, 0, 4, 8), Bits(at, 2, 4, 1, 6, 4, 4, 8)
    return Field(name, "int8", 8, (Bits(at, 6, 4, 1, 0, 0, 0, 4), low, high), 6)


def _opaque(number: int, name: str, size: int, nbytes: int) -> BlockType:
    return BlockType(number, name, size, nbytes, (Field("blocks", "uint8", nbytes, (_bytes(0, nbytes),)),))


_K_SCALES = _six_bits("scales", 4, 0), _six_bits("mins", 8, 4)
_Q3_K_SCALES = Field("scales", "int8", 16, (Bits(96, 4, 8, 2), Bits(104, 2, 4, 4, to=4)), 6, 32)

_ALL = (
    BlockType(2, "Q4_0", 32, 18, (_levels(32, 4, Bits(2, 4, 16, 2), offset=8), _half("d", 0))),
    BlockType(3, "Q4_1", 32, 20, (_levels(32, 4, Bits(4, 4, 16, 2)), _half("d", 0), _half("m", 2))),
    BlockType(6, "Q5_0", 32, 22, (_levels(32, 5, Bits(6, 4, 16, 2), Bits(2, 1, 1, 8, to=4), offset=16), _half("d", 0))),
    BlockType(
        7,
        "Q5_1",
        32,
        24,
        (_levels(32, 5, Bits(8, 4, 16, 2), Bits(4, 1, 1, 8, to=4)), _half("d", 0), _half("m", 2)),
    ),
    BlockType(8, "Q8_0", 32, 34, (_levels(32, 8, _bytes(2, 32)), _half("d", 0))),
    BlockType(
        10,
        "Q2_K",
        256,
        84,
        (
            _levels(256, 2, Bits(16, 2, 32, 4)),
            Field("scales", "int8", 16, (Bits(0, 4, 16, 1),), 4),
            Field("mins", "int8", 16, (Bits(0, 4, 16, 1, 4),), 4),
            _half("d", 80),
            _half("dmin", 82),
        ),
    ),
    BlockType(
        11,
        "Q3_K",
        256,
        110,
        (_levels(256, 3, Bits(32, 2, 32, 4), Bits(0, 1, 32, 8, to=2), offset=4), _Q3_K_SCALES, _half("d", 108)),
    ),
    BlockType(12, "Q4_K", 256, 144, (_levels(256, 4, Bits(16, 4, 32, 2)), *_K_SCALES, _half("d", 0), _half("dmin", 2))),
    BlockType(
        13,
        "Q5_K",
        256,
        176,
        (
            _levels(256, 5, Bits(48, 4, 32, 2), Bits(16, 1, 32, 8, to=4)),
            *_K_SCALES,
            _half("d", 0),
            _half("dmin", 2),
        ),
    ),
    BlockType(
        14,
        "Q6_K",
        256,
        210,
        (
            _levels(256, 6, Bits(0, 4, 64, 2), Bits(128, 2, 32, 4, to=4), offset=32),
            Field("scales", "int8", 16, (_bytes(192, 16),)),
            _half("d", 208),
        ),
    ),
    _opaque(15, "Q8_K", 256, 292),
    _opaque(16, "IQ2_XXS", 256, 66),
    _opaque(17, "IQ2_XS", 256, 74),
    _opaque(18, "IQ3_XXS", 256, 98),
    _opaque(19, "IQ1_S", 256, 50),
    _opaque(20, "IQ4_NL", 32, 18),
    _opaque(21, "IQ3_S", 256, 110),
    _opaque(22, "IQ2_S", 256, 82),
    _opaque(23, "IQ4_XS", 256, 136),
    _opaque(29, "IQ1_M", 256, 56),
    _opaque(34, "TQ1_0", 256, 54),
    _opaque(35, "TQ2_0", 256, 66),
    _opaque(39, "MXFP4", 32, 17),
    _opaque(40, "NVFP4", 64, 36),
    _opaque(41, "Q1_0", 128, 18),
)

#: Types by number.
BLOCK_TYPES = {kind.number: kind for kind in _ALL}
