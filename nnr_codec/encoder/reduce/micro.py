"""Micro-structured sparsification: small blocks that are 0 as a whole (8.3.2).

After S. Lin, W. Jiang and others, "Efficient micro-structured weight unification and pruning" (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...model import Array
from .structure import Blocks, Triple
from .zeros import CHUNK, PRECISION, Floats, Mask, integers, magnitudes, share

Counts = npt.NDArray[np.integer[Any]]


def small_blocks(tensors: Mapping[str, Array], wanted: int, block: Triple) -> dict[str, Mask]:
    """Which parameters, in row-major order, become 0, so that ``wanted`` more do, or the rest of a last block as well.

    Blocks go in the order of the root mean square of what is not 0 in them, so that the error of all is least. Blocks
    that are not finite stay.
    """
    if wanted <= 0:
        return {}
    grids = {name: Blocks(array.shape, block) for name, array in tensors.items()}
    parts = [_errors(array, grids[name]) for name, array in tensors.items()]
    errors, gains = (np.concatenate(column) for column in zip(*parts, strict=True))
    ends = np.cumsum([len(one) for one, _ in parts])[:-1]
    chosen = np.split(_least(errors, gains, wanted), ends)
    return {
        name: grid.scattered(part[:, None]).reshape(-1)
        for (name, grid), part in zip(grids.items(), chosen, strict=True)
    }


def small_of_superblocks(array: Array, ratio: float, block: Triple, superblock: Triple) -> Mask:
    """The same for one tensor, so that the ratio of each of its superblocks is 0."""
    grid = Blocks(array.shape, block)
    a, b, c = (whole // (part or 1) for part, whole in zip(block, superblock, strict=True))
    blocks = Blocks(grid.counts, (a, b, c))  # of which a superblock consists
    errors, gains = (blocks.gathered(found.reshape(grid.counts)) for found in _errors(array, grid))
    order = np.argsort(errors, axis=1, kind="stable")
    gains = np.take_along_axis(gains, order, axis=1)
    items = _sums(blocks.gathered(grid.items().reshape(grid.counts)))
    sizes, of_size = np.unique(items, return_inverse=True)
    wanted = np.array([share(ratio, size) for size in sizes.tolist()])[of_size] - (items - _sums(gains))
    few = np.cumsum(gains, axis=1, dtype=np.int64) - gains < wanted[:, None]
    chosen = np.zeros(errors.shape, np.bool_)
    np.put_along_axis(chosen, order, few, axis=1)
    chosen &= np.isfinite(errors)
    return grid.scattered(blocks.scattered(chosen).reshape(-1, 1)).reshape(-1)


def _sums(rows: npt.NDArray[np.generic]) -> Counts:
    return np.asarray(np.einsum("ij->i", rows.astype(np.int64)))


def _errors(array: Array, grid: Blocks) -> tuple[Floats, Counts]:
    """Of each block half the root mean square of what is not 0, or infinity, and how many of its items that are."""
    found = magnitudes(array)
    largest = float(np.nanmax(found, initial=0))
    size = prod(grid.sizes)
    spare = max(size.bit_length() - 17, 0) // 2  # bits of their roots that large sums have no room for
    unit = frexp(largest)[1] - PRECISION + spare
    errors, counts = np.zeros(prod(grid.counts), found.dtype), np.zeros(prod(grid.counts), np.min_scalar_type(size))
    start = 0
    for rows in grid.slabs(found):
        part = slice(start, start + len(rows))
        start += len(rows)
        items, count = integers(np.nan_to_num(rows), largest), _sums(rows != 0)
        mean = _sums((items * items) >> 2 * spare) / np.maximum(count, 1)
        root = np.ldexp(np.sqrt(mean), unit - 1)  # half of it, lest the largest of floats become infinite
        errors[part], counts[part] = np.where(_sums(np.isnan(rows)) > 0, np.inf, root), count
    return errors, counts


def _least(errors: Floats, gains: Counts, wanted: int) -> Mask:
    """Which blocks become 0: those of least error, until so many items are that were not."""
    chosen = np.zeros(len(errors), np.bool_)
    left = np.flatnonzero(np.isfinite(errors) & (gains > 0))
    while len(left) > CHUNK:
        middle = np.partition(errors[left], len(left) // 2)[len(left) // 2]
        less = errors[left] < middle
        gained = int(gains[left[less]].sum())
        if not gained:
            break
        if gained >= wanted:
            left = left[less]
        else:
            chosen[left[less]] = True
            left, wanted = left[~less], wanted - gained
    order = left[np.argsort(errors[left], kind="stable")]
    chosen[order[np.cumsum(gains[order], dtype=np.int64) - gains[order] < wanted]] = True
    return chosen
