"""What undoes parameter reduction: low-rank products and local scaling (ISO/IEC 15938-17:2024, 7.3.5 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating[Any]]


def product(g: Float, h: Float, dims: Sequence[int]) -> npt.NDArray[np.float64]:
    """TensorReshape(RecWeightG * RecWeightH, TensorDimensions), 7.3.5, in float64.

    The terms are added in order of the rank, so that the result is the same on every machine (errata N5).
    """
    total = np.zeros((g.shape[0], h.shape[1]))
    term = np.empty_like(total)
    for column, row in zip(g.T.astype(np.float64), h.astype(np.float64), strict=True):
        np.multiply(column[:, None], row, out=term)
        total += term
    return total.reshape(dims)


def local_scaling(weight: Float, scaling: Float) -> npt.NDArray[np.float64]:
    """RecWeight with each index of its first dimension multiplied by RecLS, in float64 (8.3.9, errata J2)."""
    return weight.astype(np.float64) * scaling.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
