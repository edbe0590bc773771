"""Sparsification by the compressibility loss, as far as it goes without training (8.3.1).

The loss of C. Aytekin, F. Cricri and E. Aksu, "Compressibility loss for neural network weights" (2019), is
``L_c(W) = |W|_1 / |W|_2``, W being all weights. Where ``|W - W0|**2 / 2 + lambda_c * L_c(W)`` has its minimum,
``W = gain * (W0 - sign(W0) * threshold)``, or 0 where that has another sign. With A and B the two norms of what is in
parentheses, the gradient is 0 for ``lambda_c = gain * threshold * B`` and ``gain = 1 + threshold * A / B**2``. So
lambda_c decides how many weights are 0, and a threshold does as well. The gain is that of least squares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import frexp, ldexp
from typing import Any

import numpy as np
import numpy.typing as npt

from ...model import Array
from .zeros import CHUNK, PRECISION, Floats, integers, magnitudes


def compressible(tensors: Mapping[str, Array], threshold: float) -> dict[str, Array]:
    """The weights at the minimum, with 0 for what is not above a threshold. What is not finite, or not then, stays."""
    largest = max(float(_above(part, threshold).max(initial=0)) for array in tensors.values() for part in _parts(array))
    total, squares = 0, 0
    for array in tensors.values() if largest else ():
        for part in _parts(array):
            items = integers(_above(part, threshold), largest)
            total, squares = total + int(items.sum()), squares + int((items * items).sum())
    gain = 1 + threshold / ldexp(1.0, frexp(largest)[1] - PRECISION) * (total / max(squares, 1))
    return {name: _at_minimum(array, threshold, gain) for name, array in tensors.items()}


def _parts(array: Array) -> Iterator[npt.NDArray[Any]]:
    """A tensor's items in row-major order, part by part; parts of the tensor itself where it lies so."""
    flat = array.reshape(-1)
    return (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))


def _above(part: Array, threshold: float) -> Floats:
    """By how much magnitudes are above a threshold; 0 for what is not finite."""
    found = magnitudes(part)
    with np.errstate(over="ignore"):  # of float64, where this is float32
        above: Floats = found - found.dtype.type(threshold)
    above[~(above > 0)] = 0
    return above


def _at_minimum(array: Array, threshold: float, gain: float) -> Array:
    out = np.array(array, order="C")
    for part in _parts(out):
        above, finite = _above(part, threshold), np.isfinite(magnitudes(part))
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.copysign(above * np.float64(gain), part.astype(np.float64)).astype(part.dtype)
            moved[above == 0] = 0
            finite &= np.isfinite(moved.astype(above.dtype))
        np.copyto(part, moved, where=finite)
    return out
