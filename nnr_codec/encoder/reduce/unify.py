"""Unification: the parameters of a block get a common magnitude, and keep their signs (8.3.6).

After Lin, Jiang and others, *Efficient Micro-Structured Weight Unification and Pruning for Neural Network Compression*
(2021), without training.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...errors import EncodeError, Option
from ...model import Array
from ..prepared import Prepared
from .magnitudes import share
from .structure import Blocks, Triple, dimensions, divided
from .tool import within

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Unify:
    """Unification: the nonzero parameters of the blocks with the smallest error get the mean magnitude of their block.

    The error of a block is the root mean square of the changes of its nonzero parameters. Blocks of all tensors are
    unified in the order of their errors.

    Parameters
    ----------
    ratio : float or None
        Share of the parameters of all these tensors together whose blocks are unified, 0..1.
    threshold : float or None
        Largest error of a unified block (unification_threshold, 6.4.4.3); alternative to ``ratio``.
    block : str
        Shapes of blocks such as ``2x2x2``, separated by ``|``: outputs, inputs and positions of the kernel. Each
        superblock gets the shape with the lowest squared error for each saved magnitude.
    superblock : str
        Shape of superblocks; an omitted extent at the end is the tensor's.
    tensors : str
        Patterns of names, separated by ``|``.
    """

    ratio: float | None = None
    threshold: float | None = None
    block: str = "1x1x9|1x8x1"
    superblock: str = "64x64"
    tensors: str = "*"

    AMOUNT: ClassVar[str] = "ratio"
    AMOUNTS: ClassVar[tuple[float, ...]] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)

    def __post_init__(self) -> None:
        within("unify(ratio)", self.ratio, 0, 1)
        within("unify(threshold)", self.threshold, 0)
        if self.ratio is not None and self.threshold is not None:
            raise EncodeError(Option("reduce"), ": ratio and threshold of unify cannot be combined; choose one")
        for shape in self.shapes:
            divided(shape, self.super_shape)

    @property
    def shapes(self) -> tuple[Triple, ...]:
        """Shapes of blocks."""
        return tuple(dimensions("block", text) for text in self.block.split("|"))

    @property
    def super_shape(self) -> Triple:
        """Shape of superblocks; 0 means the extent of the tensor."""
        return dimensions("superblock", self.superblock, whole=True)

    def apply(self, prepared: Prepared) -> Prepared:
        """See :class:`~.tool.ReductionTool`. Raises EncodeError if no finite tensor has blocks of these shapes."""
        if self.ratio is None and self.threshold is None:
            raise EncodeError(Option("reduce"), ": unify requires a ratio, such as unify(ratio=0.3), or a threshold")
        grids = self._grids(prepared)
        parts = [part for grid in grids.values() for part in grid]
        if self.threshold is not None:
            chosen = [part.errors <= self.threshold for part in parts]
        else:
            chosen = _least(parts, self.ratio or 0.0)
        unified, masks = {}, iter(chosen)
        for name, grid in grids.items():
            array = prepared.array(name)
            for part in grid:
                array = part.unified(array, next(masks))
            unified[name] = array
        return prepared.replaced(unified).noting("unification", unified)

    def threshold_at(self, prepared: Prepared, ratio: float) -> float:
        """Return the threshold that unifies the same blocks as a ratio; raises the errors of :meth:`apply`."""
        parts = [part for grid in self._grids(prepared).values() for part in grid]
        errors = [part.errors[chosen] for part, chosen in zip(parts, _least(parts, ratio), strict=True)]
        return float(np.concatenate([*errors, np.zeros(1)]).max())

    def _grids(self, prepared: Prepared) -> dict[str, list[_Part]]:
        """Return the blocks of each tensor. Raises EncodeError if no tensor has blocks."""
        found = {}
        for name in prepared.matrices(self.tensors):
            if grid := _parts(prepared.array(name), self.shapes, self.super_shape):
                found[name] = grid
        if not found:
            raise EncodeError(
                Option("reduce"),
                f": no tensor that matches {self.tensors!r} has finite values and more than one value in a block of "
                f"{self.block}; choose another block or other tensors",
            )
        return found


@dataclass(frozen=True)
class _Part:
    """Blocks of one shape in a tensor, in the superblocks for which this shape is chosen."""

    blocks: Blocks
    number: Numbers  # indices among all blocks of the shape
    magnitudes: Floats  # mean of the nonzero magnitudes of each block
    errors: Floats  # root mean square of the deviations from the mean
    sizes: Numbers  # parameters of each block

    def unified(self, array: Array, chosen: Mask) -> Array:
        """Return a tensor in which each chosen block has one magnitude."""
        magnitudes = np.zeros(prod(self.blocks.counts), array.dtype)
        magnitudes[self.number[chosen]] = self.magnitudes[chosen].astype(array.dtype)
        new: npt.NDArray[Any] = self.blocks.scattered(magnitudes[:, np.newaxis])
        out: npt.NDArray[Any] = np.array(array, order="C")
        np.copyto(out, new, where=(new != 0) & (out > 0))
        np.copyto(out, -new, where=(new != 0) & (out < 0))
        return out


def _parts(array: Array, shapes: tuple[Triple, ...], superblock: Triple) -> list[_Part]:
    """Return the blocks of a tensor; none if it is not finite, or too small for all shapes."""
    candidates, costs = [], []
    for shape in dict.fromkeys(shapes):
        blocks = Blocks(array.shape, shape, superblock)
        if prod(blocks.sizes) < 2:
            continue
        mean, squares, count = (
            np.concatenate(parts) for parts in zip(*map(_of_rows, blocks.slabs(array)), strict=True)
        )
        if not np.isfinite(squares).all():
            return []
        sizes = blocks.items()
        owner = blocks.superblocks()
        saved = np.bincount(owner, count - 1)
        cost = np.divide(np.bincount(owner, squares), saved, out=np.full(len(saved), inf), where=saved > 0)
        candidates.append((owner, _Part(blocks, np.arange(len(mean)), mean, np.sqrt(squares / count), sizes)))
        costs.append(cost)
    if not candidates:
        return []
    best = np.argmin(np.stack(costs), axis=0)
    return [_only(part, best[owner] == k) for k, (owner, part) in enumerate(candidates)]


def _of_rows(rows: Array) -> tuple[Floats, Floats, Numbers]:
    """Return the mean nonzero magnitude of each row, the sum of squared deviations from it, and the count."""
    with np.errstate(all="ignore"):  # values that are not finite are detected in the sums
        magnitudes = np.abs(rows.astype(np.float64, order="C"))  # sums in a fixed order
        there = magnitudes != 0
        count = np.maximum(np.count_nonzero(there, axis=1), 1)
        mean = magnitudes.sum(axis=1) / count
        squares = np.where(there, (magnitudes - mean[:, np.newaxis]) ** 2, 0).sum(axis=1)
    return mean, squares, count


def _only(part: _Part, chosen: Mask) -> _Part:
    """Return a selection of the blocks."""
    return _Part(part.blocks, part.number[chosen], part.magnitudes[chosen], part.errors[chosen], part.sizes[chosen])


def _least(parts: list[_Part], ratio: float) -> list[Mask]:
    """Return the blocks with the smallest errors, as many as fit into this share of all parameters."""
    sizes = np.concatenate([part.sizes for part in parts])
    order = np.argsort(np.concatenate([part.errors for part in parts]), kind="stable")
    reached = np.cumsum(sizes[order])
    chosen = np.zeros(len(order), np.bool_)
    chosen[order[: int(np.searchsorted(reached, share(ratio, int(reached[-1])))) + 1]] = ratio > 0
    return np.split(chosen, np.cumsum([len(part.sizes) for part in parts])[:-1])
