"""Inversion of parameter reduction: low-rank products and local scaling (ISO/IEC 15938-17:2024, 7.3.5 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating[Any]]

#: Number of values of a product computed at a time, so that they fit the processor's cache.
CACHED = 1 << 15


def product(g: Float, h: Float, dims: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return TensorReshape(RecWeightG * RecWeightH, TensorDimensions), 7.3.5, in float64.

    The terms are added in order of the rank, so that the result is the same on every machine (errata N5). The rows are
    computed in groups, so that the sums stay in the processor's cache.
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
    """Return RecWeight with each index of its first dimension multiplied by RecLS, in float64 (8.3.9, errata J2)."""
    return weight.astype(np.float64) * scaling.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))


def displacement(weight: Float, corner: int) -> npt.NDArray[np.float64]:
    """Return a matrix minus a copy of itself shifted down and right by one, in float64.

    The first row of the copy is 0, and its first column is ``corner`` times the shifted-out last column: W - Z W Zf^T
    with the shift Z and the f-circulant Zf. The displacement of a Toeplitz matrix is almost zero for any corner. The
    displacement of a circulant matrix with corner 1 is zero except for the first row.
    """
    wide = weight.astype(np.float64)
    found = wide.copy()
    found[1:, 1:] -= wide[:-1, :-1]
    found[1:, 0] -= corner * wide[:-1, -1]
    return found


def from_displacement(moved: Float, corner: int) -> npt.NDArray[np.float64]:
    """Invert :func:`displacement`: row by row in float64, with the same result on every machine."""
    found = moved.astype(np.float64)
    for before, row in pairwise(found):
        row[1:] += before[:-1]
        row[0] += corner * before[-1]
    return found
