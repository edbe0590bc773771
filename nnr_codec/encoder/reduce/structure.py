"""Weights as tensors of three dimensions, in blocks inside superblocks (8.3.2, 8.3.6).

``reshaped`` returns the three dimensions of a weight: outputs, inputs, and all positions of the kernel. ``dimensions``
reads the extents of a block or superblock from an option. ``Blocks`` is the grid of blocks in one tensor: ``gathered``
returns one row for each block, ``slabs`` the same in parts, ``items`` the number of items of the tensor in each block.
``scattered`` restores the tensor from rows. ``superblocks`` returns the superblock number of each block. It does not
depend on the block size, because blocks divide superblocks, which ``divided`` checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import EncodeError, Option
from .magnitudes import CHUNK

Triple = tuple[int, int, int]
Item = TypeVar("Item", bound=np.generic)

#: The largest extent of blocks and superblocks: block_dimensions and super_block_dimensions are u(8) (6.3.4.3).
LARGEST = 255
#: Maximum number of items of a block; limits memory.
ITEMS = 1 << 12


def reshaped(shape: tuple[int, ...]) -> Triple:
    """Return the three dimensions of a weight: the first two, and the product of the others."""
    first, second, *others = (*shape, 1, 1)
    return first, second, prod(others)


def dimensions(option: str, text: str, *, whole: bool = False) -> Triple:
    """Return three extents from a text such as ``4x1x1``.

    An omitted extent at the end is 1; with ``whole`` it is 0, which means the extent of the tensor. Raises EncodeError
    unless the text has one to three numbers from 1 to 255.
    """
    parts = text.split("x")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts):
        raise EncodeError(Option("reduce"), f": {option} {text!r} must be up to three numbers, such as 4x1x1")
    extents = [int(part) for part in parts]
    if not all(1 <= extent <= LARGEST for extent in extents):
        raise EncodeError(Option("reduce"), f": {option} {text} has an extent outside 1..{LARGEST} (6.3.4.3)")
    first, second, third = extents + [0 if whole else 1] * (3 - len(extents))
    return first, second, third


def divided(block: Triple, superblock: Triple) -> None:
    """Raise EncodeError unless blocks divide superblocks and have at most 4096 items."""
    if any(whole % part if part else whole for part, whole in zip(block, superblock, strict=True)):
        raise EncodeError(
            Option("reduce"), f": blocks of {_text(block)} do not divide superblocks of {_text(superblock)}"
        )
    if prod(block) > ITEMS:
        raise EncodeError(Option("reduce"), f": blocks of {_text(block)} have more than {ITEMS} items")


@dataclass(frozen=True)
class Blocks:
    """Blocks of one tensor, in row-major order of their positions. Blocks at the end may be smaller.

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor, without an extent of 0.
    block, superblock : tuple of int
        Three extents that :func:`divided` accepts; 0 means the extent of the tensor.
    """

    shape: tuple[int, ...]
    block: Triple
    superblock: Triple = (0, 0, 0)

    @property
    def sizes(self) -> Triple:
        """Extents of a complete block, at most the extents of the tensor."""
        a, b, c = (min(part or whole, whole) for part, whole in zip(self.block, reshaped(self.shape), strict=True))
        return a, b, c

    @property
    def counts(self) -> Triple:
        """Number of blocks along each dimension."""
        a, b, c = (-(-whole // part) for part, whole in zip(self.sizes, reshaped(self.shape), strict=True))
        return a, b, c

    def gathered(self, array: npt.NDArray[Item]) -> npt.NDArray[Item]:
        """Return a tensor as shape (blocks, items of a block), in its type; smaller blocks are padded with 0.

        The result may be a view of the tensor if blocks are contiguous.
        """
        whole = reshaped(self.shape)
        padding = [
            (0, size * count - extent) for size, count, extent in zip(self.sizes, self.counts, whole, strict=True)
        ]
        solid = array.reshape(whole)
        if any(after for _, after in padding):
            solid = np.pad(solid, padding)
        (a, b, c), (i, j, k) = self.counts, self.sizes
        return solid.reshape(a, i, b, j, c, k).transpose(0, 2, 4, 1, 3, 5).reshape(a * b * c, i * j * k)

    def scattered(self, rows: npt.NDArray[Item]) -> npt.NDArray[Item]:
        """Return the tensor with these rows as blocks, shape (blocks, items), or (blocks, 1) for equal items."""
        (a, b, c), (i, j, k) = self.counts, self.sizes
        rows = np.broadcast_to(rows, (a * b * c, i * j * k))
        solid = rows.reshape(a, b, c, i, j, k).transpose(0, 3, 1, 4, 2, 5).reshape(a * i, b * j, c * k)
        d0, d1, d2 = reshaped(self.shape)
        return solid[:d0, :d1, :d2].reshape(self.shape)

    def slabs(self, array: npt.NDArray[Item]) -> Iterator[npt.NDArray[Item]]:
        """Yield the result of :meth:`gathered` in parts; blocks of the last part may have fewer items."""
        solid = array.reshape(reshaped(self.shape))
        together = max(CHUNK // prod(solid.shape[1:]) // self.sizes[0], 1) * self.sizes[0]
        for start in range(0, len(solid), together):
            some = solid[start : start + together]
            yield replace(self, shape=some.shape).gathered(some)

    def items(self) -> npt.NDArray[np.int64]:
        """Return the number of items of the tensor in each block, shape (blocks,)."""
        a, b, c = (
            np.minimum(size, extent - size * np.arange(count))
            for size, count, extent in zip(self.sizes, self.counts, reshaped(self.shape), strict=True)
        )
        return (a[:, None, None] * b[:, None] * c).reshape(-1)

    def superblocks(self) -> npt.NDArray[np.int64]:
        """Return the number of the superblock of each block, shape (blocks,), in row-major order of superblocks."""
        number = np.zeros(self.counts, np.int64)
        for axis, (size, count, extent) in enumerate(zip(self.sizes, self.counts, self.superblock, strict=True)):
            of_axis = np.arange(count) * size // (extent or size * count)
            number *= int(of_axis[-1]) + 1
            number += of_axis.reshape([-1 if axis == other else 1 for other in range(3)])
        return number.reshape(-1)


def _text(extents: Triple) -> str:
    return "x".join(str(extent) if extent else "all" for extent in extents)
