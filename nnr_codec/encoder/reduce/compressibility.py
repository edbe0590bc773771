"""Sparsification by the compressibility loss, as far as it goes without training (8.3.1).

The loss of C. Aytekin, F. Cricri and E. Aksu, "Compressibility loss for neural network weights" (2019), is
``L_c(W) = |W|_1 / |W|_2``, W being all weights. Where ``|W - W0|**2 / 2 + lambda_c * L_c(W)`` has its minimum,
``W = gain * (W0 - sign(W0) * threshold)``, or 0 where that has another sign. With A and B the two norms of what is in
parentheses, the gradient is 0 for ``lambda_c = gain * threshold * B`` and ``gain = 1 + threshold * A / B**2``. So
lambda_c decides how many weights are 0, and a threshold does as well. The gain is that of least squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp, ldexp

import numpy as np

from ...model import Array
from .zeros import CHUNK, PRECISION, Floats, integers, magnitudes


def compressible(tensors: Mapping[str, Array], threshold: float) -> dict[str, Array]:
    """The weights at the minimum, with 0 for what is not above a threshold. What is not finite, or not then, stays."""
    largest = max(float(_above(array, threshold).max(initial=0)) for array in tensors.values())
    total, squares = 0, 0
    for array in tensors.values() if largest else ():
        above = _above(array, threshold)
        for start in range(0, above.size, CHUNK):
            items = integers(above[start : start + CHUNK], largest)
            total, squares = total + int(items.sum()), squares + int((items * items).sum())
    gain = 1 + threshold / ldexp(1.0, frexp(largest)[1] - PRECISION) * (total / max(squares, 1))
    return {name: _at_minimum(array, threshold, gain) for name, array in tensors.items()}


def _above(array: Array, threshold: float) -> Floats:
    """By how much magnitudes are above a threshold, in row-major order; 0 for what is not finite."""
    found = magnitudes(array)
    above: Floats = found - found.dtype.type(threshold)
    above[~(above > 0)] = 0
    return above


def _at_minimum(array: Array, threshold: float, gain: float) -> Array:
    above = _above(array, threshold)
    with np.errstate(over="ignore", invalid="ignore"):
        moved: Array = np.copysign(above * np.float64(gain), array.astype(np.float64).reshape(-1)).astype(array.dtype)
        infinite = (above > 0) & ~np.isfinite(moved.astype(above.dtype))
    moved[above == 0] = 0
    stays = infinite | np.isnan(magnitudes(array))
    moved[stays] = array.reshape(-1)[stays]
    return moved.reshape(array.shape)
