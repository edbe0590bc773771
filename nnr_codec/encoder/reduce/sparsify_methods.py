"""Methods of sparsification: masks of parameters to set to 0 (ISO/IEC 15938-17:2024, 8.3.1, 8.3.2, 8.3.4, 8.3.5).

* magnitude: single parameters with the smallest magnitudes of all tensors.
* rows (8.3.5): filters, or rows of matrices, that are small in their tensor; row skipping codes each of them by a bit.
* statistics (8.3.4): single parameters, up to a threshold from the mean and standard deviation of their tensor.
* compressibility (8.3.1): the loss ``L_c(W) = |W|_1 / |W|_2`` of C. Aytekin, F. Cricri and E. Aksu, "Compressibility
  loss for neural network weights" (2019), where W are all weights, without training. At the minimum of
  ``|W - W0|**2 / 2 + lambda_c * L_c(W)``, ``W = gain * (W0 - sign(W0) * threshold)``, or 0 if this has the opposite
  sign. Let A and B be the two norms of the expression in parentheses. The gradient is 0 for
  ``lambda_c = gain * threshold * B`` and ``gain = 1 + threshold * A / B**2``. Both lambda_c and the threshold therefore
  determine the number of zero weights. The gain is the least-squares gain.
* micro (8.3.2): small blocks, after S. Lin, W. Jiang and others, "Efficient micro-structured
  weight unification and pruning" (2021).

Parameters that are not finite are unchanged. Sums use integers, so that decisions are equal on all machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import frexp, ldexp, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ...model import Array
from .magnitudes import CHUNK, PRECISION, Floats, Mask, integers, magnitudes, share
from .structure import Blocks, Triple

Counts = npt.NDArray[np.integer[Any]]

#: Resolution of delta, as a fraction of a standard deviation: fine enough to separate any two magnitudes.
DELTA_GRID = 1 << 40


# ---------------------------------------------------------------------------------------------------------- magnitude
def largest_of_least(tensors: Mapping[str, Array], wanted: int) -> float:
    """Return the largest magnitude among the ``wanted`` smallest finite nonzero parameters; 0 if ``wanted`` is 0."""
    every = np.concatenate([np.zeros(0, "f4"), *(found[found > 0] for found in map(magnitudes, tensors.values()))])
    wanted = min(wanted, len(every))
    if wanted <= 0:
        return 0.0
    every.partition(wanted - 1)
    return float(every[wanted - 1])


def small_items(tensors: Mapping[str, Array], wanted: int) -> dict[str, Mask]:
    """Return masks of the parameters to set to 0: exactly ``wanted`` nonzero ones, if available.

    Among equal magnitudes at the threshold, the selected ones are spread evenly over all tensors.
    """
    most = np.array([largest_of_least(tensors, wanted)])  # float64; numpy 1 would round a scalar to float32
    if not most:
        return {}
    found = {name: magnitudes(array) for name, array in tensors.items()}
    masks = {name: np.asarray((one > 0) & (one <= most)) for name, one in found.items()}
    surplus = sum(int(np.count_nonzero(mask)) for mask in masks.values()) - wanted
    if surplus > 0:
        alike = {name: np.flatnonzero(one == most) for name, one in found.items()}
        count, start = sum(map(len, alike.values())), 0
        for name, places in alike.items():
            end = start + len(places)
            masks[name][places[np.diff(np.arange(start, end + 1) * surplus // count) > 0]] = False
            start = end
    return masks


# --------------------------------------------------------------------------------------------------------------- rows
def small_rows(tensors: Mapping[str, Array], wanted: int) -> dict[str, Mask]:
    """Return masks of indices of the first dimension to set to 0, with at least ``wanted`` nonzero parameters.

    An index is selected if its mean magnitude is at most delta_s times the average over the tensor, with one delta_s
    for all tensors. Rows that are not finite are not selected.
    """
    means, counts = {}, []
    for name, array in tensors.items():
        means[name], nonzero = _row_means(array)
        counts.append(nonzero)
    every, gains = (np.concatenate([*parts]) if parts else np.zeros(0) for parts in ([*means.values()], counts))
    order = np.argsort(every, kind="stable")
    order = order[np.isfinite(every[order])]
    if not order.size or wanted <= 0:
        return {}
    enough = int(np.searchsorted(np.cumsum(gains[order]), wanted))
    delta = every[order[min(enough, order.size - 1)]]
    return {name: np.asarray(means[name] <= delta) for name in tensors}


def _row_means(array: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return mean magnitudes of rows relative to their average, and the numbers of nonzero items of rows.

    The mean of a row that is not finite is infinite, and is excluded from the average.
    """
    rows = magnitudes(array).reshape(len(array), -1)
    largest = float(np.nanmax(rows, initial=0))
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    sums = np.zeros(len(rows), np.int64)
    together = max(CHUNK // rows.shape[1], 1)
    for start in range(0, len(rows) if largest else 0, together):
        chunk = slice(start, start + together)
        sums[chunk][finite[chunk]] = integers(rows[chunk][finite[chunk]], largest).sum(axis=1)
    total, means = int(sums.sum()), np.full(len(rows), np.inf)
    means[finite] = sums[finite].astype(np.float64) * np.count_nonzero(finite) / max(total, 1)
    return means, np.count_nonzero(rows > 0, axis=1).astype(np.int64)


# --------------------------------------------------------------------------------------------------------- statistics
@dataclass
class _Undecided:
    """Tensor with parameters that are neither selected nor excluded yet."""

    magnitudes: Floats  # magnitudes of undecided parameters, shape (n,)
    mean: float  # |mean| of all finite parameters
    deviation: float  # standard deviation of finite parameters
    largest: float  # largest magnitude of finite parameters

    def threshold(self, steps: int) -> np.floating[Any]:
        """Return the threshold of magnitudes for a delta of ``steps`` grid steps."""
        value = self.mean + steps / DELTA_GRID * self.deviation
        if not self.deviation:  # all are nearly equal
            value = self.largest if steps >= 0 else 0.0
        work: np.floating[Any] = self.magnitudes.dtype.type(min(max(value, 0.0), self.largest))
        return work

    def up_to(self, steps: int) -> Mask:
        """Return a mask of the undecided parameters up to the threshold."""
        return np.asarray(self.magnitudes <= self.threshold(steps))


def thresholds(tensors: Mapping[str, Array], wanted: int) -> dict[str, np.floating[Any]]:
    """Return the magnitude, for each tensor, up to which parameters become 0; ``wanted`` or more of them were nonzero.

    A threshold is ``|mean| + delta * standard deviation`` of the tensor, with the smallest sufficient delta.
    """
    parts = {name: _undecided(array) for name, array in tensors.items()}
    wanted = min(wanted, sum(len(part.magnitudes) for part in parts.values()))
    if wanted <= 0:
        return {}
    steps = _least_steps([*parts.values()], wanted)
    return {name: part.threshold(steps) for name, part in parts.items()}


def _undecided(array: Array) -> _Undecided:
    """Return the initial state of a tensor: all finite nonzero parameters are undecided."""
    found = magnitudes(array)
    left = found[found > 0]
    largest = float(left.max(initial=0))
    total, squares, flat = 0, 0, array.reshape(-1)
    for start in range(0, flat.size if largest else 0, CHUNK):
        chunk = slice(start, start + CHUNK)
        items = integers(flat[chunk][found[chunk] >= 0], largest)
        total, squares = total + int(items.sum()), squares + int((items * items).sum())
    count = max(int(np.count_nonzero(found >= 0)), 1)
    moments = abs(total) / count, sqrt(count * squares - total * total) / count
    # Rounding may have increased the largest magnitude beyond the range.
    mean, deviation = (ldexp(min(moment, (1 << PRECISION) - 1), frexp(largest)[1] - PRECISION) for moment in moments)
    return _Undecided(left, mean, deviation, largest)


def _least_steps(parts: list[_Undecided], wanted: int) -> int:
    """Return the smallest delta that selects ``wanted`` undecided parameters, at least 1 and at most all."""

    def count(steps: int) -> int:
        return sum(int(np.count_nonzero(part.up_to(steps))) for part in parts)

    low, high = -DELTA_GRID, DELTA_GRID
    while count(high) < wanted:
        low, high = high, 2 * high
    while count(low) >= wanted:
        low, high = 2 * low, low
    for part in parts:
        part.magnitudes = part.magnitudes[part.up_to(high)]
    while high - low > 1 and wanted < sum(len(part.magnitudes) for part in parts):
        middle = (low + high) // 2
        inside = [part.up_to(middle) for part in parts]
        found = sum(int(np.count_nonzero(mask)) for mask in inside)
        enough = found >= wanted
        low, high, wanted = (low, middle, wanted) if enough else (middle, high, wanted - found)
        for part, mask in zip(parts, inside, strict=True):
            part.magnitudes = part.magnitudes[mask if enough else ~mask]
    return high


# ---------------------------------------------------------------------------------------------------- compressibility
def compressible(tensors: Mapping[str, Array], threshold: float) -> dict[str, Array]:
    """Return the weights at the minimum of the loss. Weights that are or become infinite or NaN are unchanged."""
    largest = max(
        float(_excess(part, threshold).max(initial=0)) for array in tensors.values() for part in _chunks(array)
    )
    total, squares = 0, 0
    for array in tensors.values() if largest else ():
        for part in _chunks(array):
            items = integers(_excess(part, threshold), largest)
            total, squares = total + int(items.sum()), squares + int((items * items).sum())
    gain = 1 + threshold / ldexp(1.0, frexp(largest)[1] - PRECISION) * (total / max(squares, 1))
    return {name: _at_minimum(array, threshold, gain) for name, array in tensors.items()}


def _chunks(array: Array) -> Iterator[npt.NDArray[Any]]:
    """Return a tensor's items in row-major order in parts; views of a contiguous tensor."""
    flat = array.reshape(-1)
    return (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))


def _excess(part: Array, threshold: float) -> Floats:
    """Return magnitudes minus a threshold; 0 if negative or not finite."""
    found = magnitudes(part)
    with np.errstate(over="ignore"):  # float64 values converted to float32
        above: Floats = found - found.dtype.type(threshold)
    above[~(above > 0)] = 0
    return above


def _at_minimum(array: Array, threshold: float, gain: float) -> Array:
    out = np.array(array, order="C")
    for part in _chunks(out):
        above, finite = _excess(part, threshold), np.isfinite(magnitudes(part))
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.copysign(above * np.float64(gain), part.astype(np.float64)).astype(part.dtype)
            moved[above == 0] = 0
            finite &= np.isfinite(moved.astype(above.dtype))
        np.copyto(part, moved, where=finite)
    return out


# -------------------------------------------------------------------------------------------------------------- micro
def small_blocks(tensors: Mapping[str, Array], wanted: int, block: Triple) -> dict[str, Mask]:
    """Return masks of the blocks to set to 0, with ``wanted`` nonzero parameters, rounded up to a block.

    Blocks are selected in the order of the root mean square of their nonzero items, which minimizes the total error.
    Blocks that are not finite are not selected.
    """
    if wanted <= 0:
        return {}
    grids = {name: Blocks(array.shape, block) for name, array in tensors.items()}
    parts = [_block_errors(array, grids[name]) for name, array in tensors.items()]
    errors, gains = (np.concatenate(column) for column in zip(*parts, strict=True))
    ends = np.cumsum([len(one) for one, _ in parts])[:-1]
    chosen = np.split(_least_blocks(errors, gains, wanted), ends)
    return {
        name: grid.scattered(part[:, None]).reshape(-1)
        for (name, grid), part in zip(grids.items(), chosen, strict=True)
    }


def small_of_superblocks(array: Array, ratio: float, block: Triple, superblock: Triple) -> Mask:
    """Return the mask of blocks of one tensor whose removal sets the given ratio of each superblock to 0."""
    grid = Blocks(array.shape, block)
    a, b, c = (whole // (part or 1) for part, whole in zip(block, superblock, strict=True))
    blocks = Blocks(grid.counts, (a, b, c))  # blocks of which a superblock consists
    errors, gains = (blocks.gathered(found.reshape(grid.counts)) for found in _block_errors(array, grid))
    order = np.argsort(errors, axis=1, kind="stable")
    gains = np.take_along_axis(gains, order, axis=1)
    items = _row_sums(blocks.gathered(grid.items().reshape(grid.counts)))
    sizes, of_size = np.unique(items, return_inverse=True)
    wanted = np.array([share(ratio, size) for size in sizes.tolist()])[of_size] - (items - _row_sums(gains))
    few = np.cumsum(gains, axis=1, dtype=np.int64) - gains < wanted[:, None]
    chosen = np.zeros(errors.shape, np.bool_)
    np.put_along_axis(chosen, order, few, axis=1)
    chosen &= np.isfinite(errors)
    return grid.scattered(blocks.scattered(chosen).reshape(-1, 1)).reshape(-1)


def _row_sums(rows: npt.NDArray[np.generic]) -> Counts:
    return np.asarray(np.einsum("ij->i", rows.astype(np.int64)))


def _block_errors(array: Array, grid: Blocks) -> tuple[Floats, Counts]:
    """Return half the root mean square of the nonzero items of each block, or infinity, and their number."""
    found = magnitudes(array)
    largest = float(np.nanmax(found, initial=0))
    size = prod(grid.sizes)
    spare = max(size.bit_length() - 17, 0) // 2  # bits of roots by which sums would overflow
    unit = frexp(largest)[1] - PRECISION + spare
    errors, counts = np.zeros(prod(grid.counts), found.dtype), np.zeros(prod(grid.counts), np.min_scalar_type(size))
    start = 0
    for rows in grid.slabs(found):
        part = slice(start, start + len(rows))
        start += len(rows)
        items, count = integers(np.nan_to_num(rows), largest), _row_sums(rows != 0)
        mean = _row_sums((items * items) >> 2 * spare) / np.maximum(count, 1)
        root = np.ldexp(np.sqrt(mean), unit - 1)  # half of it, so that the largest floats do not overflow
        errors[part], counts[part] = np.where(_row_sums(np.isnan(rows)) > 0, np.inf, root), count
    return errors, counts


def _least_blocks(errors: Floats, gains: Counts, wanted: int) -> Mask:
    """Return a mask of the blocks with the smallest errors that together have ``wanted`` nonzero items."""
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
