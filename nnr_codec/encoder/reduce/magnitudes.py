"""Magnitudes of parameters as integers, counts of zeros, and masks, for the reduction tools.

Decisions use integers, or operations on single floats with equal results on all machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil, frexp
from typing import Any

import numpy as np
import numpy.typing as npt

from ...dtypes import stored_type
from ...model import Array
from ..prepared import is_matrix

Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]

#: Bits of magnitudes as integers: the sum of CHUNK squares fits 64 bits.
PRECISION = 22
#: Items of a partial sum.
CHUNK = 1 << 18


def work_type(array: Array) -> np.dtype[Any] | None:
    """Return the float type for sums; None for types other than floats."""
    stored = stored_type(array.dtype)
    if stored is None or stored.kind != "f":
        return None
    return np.dtype("f8" if stored.bits == 64 else "f4")


def matrices(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the float tensors with at least two extents above 1, in their order."""
    return {name: array for name, array in tensors.items() if is_matrix(array.dtype, array.shape)}


def magnitudes(array: Array) -> Floats:
    """Return the magnitudes of all items in row-major order, float32 or float64; NaN for items that are not finite."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.abs(array.astype(work_type(array), order="C").reshape(-1))
        found[~np.isfinite(found)] = np.nan  # quiet NaN
    return found


def integers(values: Array, largest: float) -> npt.NDArray[np.int64]:
    """Return finite values as multiples of a power of two: the largest is about 2**PRECISION."""
    scaled = np.ldexp(values.astype(np.float64), PRECISION - frexp(largest)[1])
    return np.rint(scaled).astype(np.int64)


def share(ratio: float, count: int) -> int:
    """Return a decimal fraction of a number of parameters, rounded up."""
    return ceil(Fraction(str(float(ratio))) * count)


def missing(arrays: Iterable[Array], ratio: float) -> int:
    """Return the number of parameters that must become 0 for a ratio of zeros; 0 or less if none."""
    zeros = total = 0
    for array in arrays:
        total += array.size
        zeros += int(np.count_nonzero(magnitudes(array) == 0))
    return share(ratio, total) - zeros


def below(array: Array, threshold: float) -> Mask:
    """Return a mask of magnitudes below sparsification_threshold (6.4.4.3), in row-major order."""
    return np.asarray(magnitudes(array) < np.array([threshold]))  # numpy 1 would round a scalar to the array's dtype


def cleared(array: Array, mask: Mask) -> Array:
    """Return a tensor with some parameters, given in row-major order, set to 0; itself if none is."""
    if not mask.any():
        return array
    out = np.array(array, order="C")
    out.reshape(-1)[mask] = 0
    return out
