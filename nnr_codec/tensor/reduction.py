"""What undoes parameter reduction: low-rank products and local scaling (ISO/IEC 15938-17:2024, 7.3.5 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating[Any]]

#: So many numbers of a product are made at a time.
CACHED = 1 << 15


def product(g: Float, h: Float, dims: Sequence[int]) -> npt.NDArray[np.float64]:
    """TensorReshape(RecWeightG * RecWeightH, TensorDimensions), 7.3.5, in float64.

    The terms are added in order of the rank, so that the result is the same on every machine (errata N5). Some rows
    after others: what is added to stays in the processor's cache.
    """
    total = np.zeros((g.shape[0], h.shape[1]))
    rows, wide = max(CACHED // max(h.shape[1], 1), 1), h.astype(np.float64)
    term = np.empty_like(total[:rows])
    for start in range(0, len(total), rows):
        part = total[start : start + rows]
        for column, row in zip(g[start : start + rows].T, wide, strict=True):
            np.multiply(column.astype(np.float64)[:, None], row, out=term[: len(part)])
            part += term[: len(part)]
    return total.reshape(dims)


def local_scaling(weight: Float, scaling: Float) -> npt.NDArray[np.float64]:
    """RecWeight with each index of its first dimension multiplied by RecLS, in float64 (8.3.9, errata J2)."""
    return weight.astype(np.float64) * scaling.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))


def displacement(weight: Float, corner: int) -> npt.NDArray[np.float64]:
    """A matrix less itself moved down and to the right by one, in float64.

    The first row of what is moved is 0, its first column ``corner`` times what left the last one: W - Z W Zf^T with the
    shift Z and the f-circulant Zf. Of a Toeplitz matrix little is left, whatever the corner; of a circulant one, where
    the corner is 1, nothing but the first row.
    """
    wide = weight.astype(np.float64)
    found = wide.copy()
    found[1:, 1:] -= wide[:-1, :-1]
    found[1:, 0] -= corner * wide[:-1, -1]
    return found


def from_displacement(moved: Float, corner: int) -> npt.NDArray[np.float64]:
    """The matrix of which :func:`displacement` leaves this: row after row in float64, the same on every machine."""
    found = moved.astype(np.float64)
    for before, row in pairwise(found):
        row[1:] += before[:-1]
        row[0] += corner * before[-1]
    return found
