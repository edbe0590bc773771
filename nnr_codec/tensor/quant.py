"""Dequantization of integers: ISO/IEC 15938-17:2024, 7.2, 7.3.2, 7.3.3 and 7.3.6."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import ldexp
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import kernel
from ..constants import DecompressedDataFormat
from ..errors import ElementError, PayloadError
from ..rules import Requirement

Levels = npt.NDArray[np.int32]

#: Largest magnitude of a level, reached by -2**31.
_LARGEST = 1 << 31

#: numpy dtype of each decompressed data format (Table 15); widths below a byte are stored in int8.
DTYPES: dict[DecompressedDataFormat, np.dtype[Any]] = {
    f: np.dtype(f"{'f' if f.is_float else 'i'}{max(f.bit_depth // 8, 1)}") for f in DecompressedDataFormat
}


@lru_cache
def step_size(qp: int, qp_density: int) -> float:
    """Return stepSize, 7.3.6.

    Parameters
    ----------
    qp : int
        qp_value + QuantizationParameter; adding 1 multiplies the step size by about 2**(1 / 2**qp_density).
    qp_density : int
        QpDensity, 0..7.

    Returns
    -------
    float
        mul * 2**(shift - QpDensity), exact; infinity above and 0 below the range of float64.
    """
    mul = (1 << qp_density) + (qp & ((1 << qp_density) - 1))
    try:
        return ldexp(mul, int(qp >> qp_density) - qp_density)  # int() because qp may be a numpy integer
    except OverflowError:
        return float("inf")


def codebook_values(
    codebook_zero_value: int, codebook_delta_left: Sequence[int], codebook_delta_right: Sequence[int]
) -> npt.NDArray[np.int32]:
    """Return Codebook (or CodebookDC), 6.3.3.7: strictly increasing integers.

    Raises ElementError if one exceeds 32 bits.
    """
    left = accumulate(codebook_delta_left, lambda value, delta: value - delta - 1, initial=codebook_zero_value)
    right = accumulate(codebook_delta_right, lambda value, delta: value + delta + 1, initial=codebook_zero_value)
    values = [*reversed(list(left)), *list(right)[1:]]
    if not -(1 << 31) <= values[0] <= values[-1] < 1 << 31:
        raise ElementError("a codebook entry exceeds 32 bits", clause="6.4.3.7", rule=Requirement.CODEBOOK_VALUES)
    return np.array(values, np.int32)


def look_up(levels: Levels, values: npt.NDArray[np.int32], zero: int) -> Levels:
    """Return Codebook[QuantParam + CbZeroOffset], 7.3.6.

    Raises PayloadError for an index outside the codebook (errata E4).
    """
    low, high = int(levels.min()) + zero, int(levels.max()) + zero
    if low < 0 or high >= len(values):
        raise PayloadError(
            f"index {low if low < 0 else high} is outside the codebook of {len(values)} entries",
            clause="7.3.6",
            rule=Requirement.CODEBOOK_INDEX,
        )
    found: Levels = values[levels + np.int32(zero)]
    return found


def integers(
    levels: npt.NDArray[np.signedinteger[Any]], data_format: DecompressedDataFormat
) -> npt.NDArray[np.signedinteger[Any]]:
    """Return RecParam of TENSOR_INT, 7.3.2. Raise PayloadError if a level exceeds the bit depth of the format."""
    bound = 1 << (data_format.bit_depth - 1)
    if data_format.bit_depth < 8 * levels.itemsize and (int(levels.min()) < -bound or int(levels.max()) >= bound):
        raise PayloadError(
            f"a level exceeds the {data_format.bit_depth} bits of {data_format.name}",
            clause="7.3.2",
            rule=Requirement.INTEGER_RANGE,
        )
    return levels.astype(DTYPES[data_format], copy=False)


def scale(
    levels: Levels, step: float, data_format: DecompressedDataFormat, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.floating[Any]]:
    """Return RecParam of TENSOR_FLOAT, 7.3.6: levels times the step size, rounded to nearest (errata N6).

    Parameters
    ----------
    levels : ndarray of int32
    step : float
    data_format : DecompressedDataFormat
        The product is computed in float32 (float64 for TENSOR_FLOAT64) and cast to the type of the format.
    out : ndarray, optional
        Output array of the type of the format.

    Raises
    ------
    ElementError
        The step size is not a finite, normal number of the format, or a value is not finite.
    """
    dtype = DTYPES[data_format]
    low, high = _normal_range(dtype)
    if not low <= step <= high:
        raise ElementError(
            f"the step size {step:g} is not a normal number of {dtype}", clause="7.3.6", rule=Requirement.FLOAT_RANGE
        )
    work: type[np.floating[Any]] = np.float64 if dtype.itemsize == 8 else np.float32
    if not suits_all(step, dtype) and (largest := max(int(levels.max()), -int(levels.min()))) * step > high / 2:
        # Rounding matters only near the largest number.
        with np.errstate(over="ignore"):
            if not np.isfinite((work(largest) * work(step)).astype(dtype)):
                raise ElementError(
                    f"level {largest} times the step size {step:g} exceeds the range of {dtype}",
                    clause="7.3.3",
                    rule=Requirement.FLOAT_RANGE,
                )
    if out is None:
        out = np.empty(levels.shape, dtype)
    if dtype == np.float32 and out.flags.c_contiguous and levels.flags.c_contiguous:
        kernel.scale(levels.reshape(-1), step, out.reshape(-1))
        return out
    if dtype == work:  # two steps: numpy multiplies slowly while casting
        out[...] = levels
        levels = out
    values: npt.NDArray[np.floating[Any]] = np.multiply(levels, work(step), out=out, dtype=work, casting="same_kind")
    return values


@lru_cache
def suits_all(step: float, dtype: np.dtype[Any]) -> bool:
    """Return whether the step size is a normal number of a float type that can represent its products with all
    levels."""
    low, high = _normal_range(dtype)
    return low <= step <= high / 2 / _LARGEST


@lru_cache
def _normal_range(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and largest normal number of a type."""
    info = np.finfo(dtype)
    return float(info.tiny), float(info.max)


def cast_floats(values: npt.NDArray[np.floating[Any]], dtype: np.dtype[Any]) -> npt.NDArray[np.floating[Any]]:
    """Return a copy of ``values`` as ``dtype``. Raise ElementError if a finite value is out of range."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
    if dtype.itemsize < values.dtype.itemsize and not np.array_equal(np.isinf(cast), np.isinf(values)):
        raise ElementError(f"a value exceeds the range of {dtype}", clause="7.3.3", rule=Requirement.FLOAT_RANGE)
    return cast


def add_update(
    residual: npt.NDArray[Any], cache: npt.NDArray[Any], data_format: DecompressedDataFormat
) -> npt.NDArray[Any]:
    """Return RecParam plus WeightUpdateCache (7.3.2, 7.3.3). Raise BitstreamError if the format cannot represent it."""
    if not data_format.is_float:
        return integers(residual.astype(np.int64) + cache, data_format)
    with np.errstate(over="ignore"):
        total = residual.astype(np.float64) + cache
    if not np.isfinite(total).all():
        raise ElementError(
            f"an update exceeds the range of {residual.dtype}", clause="7.3.3", rule=Requirement.FLOAT_RANGE
        )
    return cast_floats(total, residual.dtype)
