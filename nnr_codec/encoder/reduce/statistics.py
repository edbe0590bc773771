"""Thresholds for single parameters: of each tensor by its mean and standard deviation (8.3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import frexp, ldexp, sqrt
from typing import Any

import numpy as np

from ...model import Array
from .zeros import CHUNK, PRECISION, Floats, Mask, integers, magnitudes

#: Parts of a standard deviation in which delta is sought.
GRID = 1 << 40


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

    def up_to(self, steps: int) -> Mask:
        """Which of the undecided ones are not above the threshold."""
        return np.asarray(self.magnitudes <= self.threshold(steps))


def thresholds(tensors: Mapping[str, Array], wanted: int) -> dict[str, np.floating[Any]]:
    """Up to which magnitude parameters of each tensor become 0, so that ``wanted`` more do, or few more that are alike.

    A threshold is ``|mean| + delta * standard deviation`` of the tensor, with the least delta that serves.
    """
    parts = {name: _undecided(array) for name, array in tensors.items()}
    wanted = min(wanted, sum(len(part.magnitudes) for part in parts.values()))
    if wanted <= 0:
        return {}
    steps = _least_steps([*parts.values()], wanted)
    return {name: part.threshold(steps) for name, part in parts.items()}


def _undecided(array: Array) -> _Undecided:
    """A tensor at the beginning, when all that is finite and not 0 is undecided."""
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
