"""Updates in which most parameters are 0, and what that leaves out, for the next update.

Decisions are made by integers, and by operations on single floats that every machine computes alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, frexp, ldexp, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import stored_type
from ..errors import EncodeError
from ..model import Array
from .difference import fits

Floats = npt.NDArray[np.floating[Any]]

#: Bits of the integers that magnitudes are seen as where they are added up, so that the squares of CHUNK fit 64 bits.
PRECISION = 22
#: Items that are looked at together.
CHUNK = 1 << 18
#: Parts of a standard deviation in which delta is sought.
GRID = 1 << 40


def sparsify(update: Mapping[str, Array], ratio: float, *, structured: bool = False) -> dict[str, Array]:
    """An update with the small parameters of its matrices set to 0, about as many as asked for.

    Matrices are the float tensors with at least two extents above 1; all others stay as they are. What stays and what
    does not is decided by one number, delta, for all of them: it is the least one that gives enough zeros.

    Parameters
    ----------
    update : mapping of str to ndarray
        Differences.
    ratio : float
        The part of the parameters of all matrices together that is to be 0, from 0 to 1.
    structured : bool
        False: a parameter is set to 0 whose magnitude is at most ``|mean| + delta * standard deviation`` of its tensor.
        True: so is a row, an index of the first dimension, whose mean magnitude is at most delta times the mean of
        those of all rows. Rows and parameters that are not finite stay.

    Returns
    -------
    dict of str to ndarray
        The same arrays, or new ones in which some parameters are 0.

    Raises
    ------
    EncodeError
        The ratio is not within 0 and 1.
    """
    if not 0 <= ratio <= 1:
        raise EncodeError(f"a ratio of zeros of {ratio} is not within 0 and 1")
    matrices = {name: array for name, array in update.items() if _is_matrix(array)}
    zeros = sum(int(np.count_nonzero(_magnitudes(array) == 0)) for array in matrices.values())
    wanted = ceil(Fraction(str(float(ratio))) * sum(array.size for array in matrices.values())) - zeros
    if wanted <= 0:
        return dict(update)
    return {**update, **(_without_rows if structured else _without_small)(matrices, wanted)}


class ErrorFeedback:
    """What updates left out, to be added to the next ones: ``keep(wanted, decoded)`` after ``wanted = add(update)``.

    Attributes
    ----------
    residual : dict of str to ndarray
        By tensor, float32, or float64 for float64. At most the floats of the last update.

    It can be pickled.
    """

    def __init__(self) -> None:
        self.residual: dict[str, Array] = {}

    def add(self, update: Mapping[str, Array]) -> dict[str, Array]:
        """The update and what earlier ones left out.

        Integers stay as they are. So do tensors with a residual of another shape or type, or whose sum with it is not
        finite: what was left out of them is forgotten, and with it that of tensors which the update does not have.

        Parameters
        ----------
        update : mapping of str to ndarray
            Differences; a tensor of zeros gets what is left of it.

        Returns
        -------
        dict of str to ndarray
            Sums are of the type of the residual.
        """
        added: dict[str, Array] = {}
        for name, array in update.items():
            residual, work = self.residual.get(name), _work(array)
            added[name] = array
            if work is None or residual is None or residual.dtype != work or not fits(residual.shape, array.shape):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.astype(work) + residual.reshape(array.shape)
            if np.isfinite(total).all():
                added[name] = total
        return added

    def keep(self, wanted: Mapping[str, Array], decoded: Mapping[str, Array]) -> None:
        """Remember what is left out of an update, in the place of what was remembered before.

        Nothing is of a tensor that was decoded in another shape, or has values that are not finite.

        Parameters
        ----------
        wanted : mapping of str to ndarray
            As :meth:`add` gave it.
        decoded : mapping of str to ndarray
            What decoders get; a tensor that it lacks is all 0.
        """
        residual: dict[str, Array] = {}
        for name, array in wanted.items():
            got, work = decoded.get(name), _work(array)
            if work is None or (got is not None and (_work(got) is None or not fits(got.shape, array.shape))):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                left: Floats = array.astype(work)
                if got is not None:
                    left -= got.astype(work, copy=False).reshape(array.shape)
            if np.isfinite(left).all():
                residual[name] = left
        self.residual = residual

    def reset(self) -> None:
        """Forget everything."""
        self.residual = {}


def _work(array: Array) -> np.dtype[Any] | None:
    """The type of floats in which sums are made; None for what is no float."""
    stored = stored_type(array.dtype)
    if stored is None or stored.kind != "f":
        return None
    return np.dtype("f8" if stored.bits == 64 else "f4")


def _is_matrix(array: Array) -> bool:
    return _work(array) is not None and sum(extent > 1 for extent in array.shape) > 1 and prod(array.shape) > 0


def _magnitudes(array: Array) -> Floats:
    """Of all items in row-major order, float32 or float64; those that are not finite are not-a-numbers."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.abs(array.astype(_work(array), order="C").reshape(-1))
        found[np.isinf(found)] = np.nan
    return found


def _integers(values: Array, largest: float) -> npt.NDArray[np.int64]:
    """Values, those that are finite, as multiples of a power of two: 2**PRECISION or a little less is the largest."""
    scaled = np.ldexp(values.astype(np.float64), PRECISION - frexp(largest)[1])
    return np.rint(scaled).astype(np.int64)


# ------------------------------------------------------------------------------------------------ single parameters
@dataclass
class _Undecided:
    """A tensor, of which it is not known yet which parameters stay.

    Parameters
    ----------
    magnitudes : ndarray, shape (n,)
        Those that are not decided.
    mean, deviation, largest : float
        The magnitude of the mean of all finite parameters, their standard deviation, and their largest magnitude.
    """

    magnitudes: Floats
    mean: float
    deviation: float
    largest: float

    def threshold(self, steps: int) -> np.floating[Any]:
        """What a magnitude is compared with, for a delta of so many steps of the grid."""
        value = self.mean + steps / GRID * self.deviation
        if not self.deviation:  # all are about alike
            value = self.largest if steps >= 0 else 0.0
        work: np.floating[Any] = self.magnitudes.dtype.type(min(max(value, 0.0), self.largest))
        return work

    def up_to(self, steps: int) -> npt.NDArray[np.bool_]:
        """Which of the undecided ones are not above the threshold."""
        return np.asarray(self.magnitudes <= self.threshold(steps))


def _without_small(matrices: Mapping[str, Array], wanted: int) -> dict[str, Array]:
    """The matrices with ``wanted`` more parameters set to 0, or the few more that are alike."""
    parts = {name: _undecided(array) for name, array in matrices.items()}
    wanted = min(wanted, sum(len(part.magnitudes) for part in parts.values()))
    if not wanted:
        return dict(matrices)
    steps = _least_steps([*parts.values()], wanted)
    return {
        name: _cleared(array, _magnitudes(array) <= parts[name].threshold(steps)) for name, array in matrices.items()
    }


def _undecided(array: Array) -> _Undecided:
    """A tensor at the beginning, when all that is finite and not 0 is undecided."""
    magnitudes = _magnitudes(array)
    left = magnitudes[magnitudes > 0]
    largest = float(left.max(initial=0))
    total, squares, flat = 0, 0, array.reshape(-1)
    for start in range(0, flat.size if largest else 0, CHUNK):
        chunk = slice(start, start + CHUNK)
        items = _integers(flat[chunk][magnitudes[chunk] >= 0], largest)
        total, squares = total + int(items.sum()), squares + int((items * items).sum())
    count = max(int(np.count_nonzero(magnitudes >= 0)), 1)
    moments = abs(total) / count, sqrt(count * squares - total * total) / count
    # Rounding may have made the largest a little larger, which may be more than there is.
    mean, deviation = (ldexp(min(moment, (1 << PRECISION) - 1), frexp(largest)[1] - PRECISION) for moment in moments)
    return _Undecided(left, mean, deviation, largest)


def _least_steps(parts: list[_Undecided], wanted: int) -> int:
    """The least delta up to which there are so many undecided parameters, at least 1 and at most all."""

    def count(steps: int) -> int:
        return sum(int(np.count_nonzero(part.up_to(steps))) for part in parts)

    low, high = -GRID, GRID
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


def _cleared(array: Array, small: npt.NDArray[np.bool_]) -> Array:
    """A tensor with some parameters, given in row-major order, set to 0; itself if none is."""
    if not small.any():
        return array
    out = np.array(array, order="C")
    out.reshape(-1)[small] = 0
    return out


# ------------------------------------------------------------------------------------------------ rows
def _without_rows(matrices: Mapping[str, Array], wanted: int) -> dict[str, Array]:
    """The matrices with so many rows set to 0 that ``wanted`` more parameters are, or the few more that are alike."""
    means, counts = {}, []
    for name, array in matrices.items():
        means[name], nonzero = _row_means(array)
        counts.append(nonzero)
    every, gains = np.concatenate([*means.values()]), np.concatenate(counts)
    order = np.argsort(every, kind="stable")
    order = order[np.isfinite(every[order])]
    if not order.size:
        return dict(matrices)
    enough = int(np.searchsorted(np.cumsum(gains[order]), wanted))
    delta = every[order[min(enough, order.size - 1)]]
    return {
        name: _cleared(array, np.repeat(means[name] <= delta, array.size // len(array)))
        for name, array in matrices.items()
    }


def _row_means(array: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Mean magnitudes of rows, in parts of the mean of them all, and how many items of them are not 0.

    Of a row that is not finite the mean is infinite, and does not count for the others.
    """
    rows = _magnitudes(array).reshape(len(array), -1)
    largest = float(np.nanmax(rows, initial=0))
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    sums = np.zeros(len(rows), np.int64)
    together = max(CHUNK // rows.shape[1], 1)
    for start in range(0, len(rows) if largest else 0, together):
        chunk = slice(start, start + together)
        sums[chunk][finite[chunk]] = _integers(rows[chunk][finite[chunk]], largest).sum(axis=1)
    total, means = int(sums.sum()), np.full(len(rows), np.inf)
    means[finite] = sums[finite].astype(np.float64) * np.count_nonzero(finite) / max(total, 1)
    return means, np.count_nonzero(rows > 0, axis=1).astype(np.int64)
