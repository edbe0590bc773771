"""What undoes parameter reduction: low-rank products and local scaling (ISO/IEC 15938-17:2024, 7.3.5 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ElementError
from ..limits import Limits

Float = npt.NDArray[np.floating[Any]]


def product(g: Float, h: Float, dims: Sequence[int], limits: Limits) -> npt.NDArray[np.float64]:
    """TensorReshape(RecWeightG * RecWeightH, TensorDimensions), 7.3.5, in float64.

    The terms are added in order of the rank, so that the result is the same on every machine (errata N5).
    """
    limits.check("max_decomp_elements", g.size * h.shape[1], "multiplications of a decomposed tensor")
    total = np.zeros((g.shape[0], h.shape[1]))
    term = np.empty_like(total)
    for column, row in zip(g.T.astype(np.float64), h.astype(np.float64), strict=True):
        np.multiply(column[:, None], row, out=term)
        total += term
    if total.size != prod(dims):
        raise ElementError(f"G of shape {g.shape} times H of shape {h.shape} is not a tensor of {tuple(dims)} (7.3.5)")
    return total.reshape(dims)


def local_scaling(weight: Float, scaling: Float) -> npt.NDArray[np.float64]:
    """RecWeight with each index of its first dimension multiplied by RecLS, in float64 (8.3.9, errata J2)."""
    return weight.astype(np.float64) * scaling.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
