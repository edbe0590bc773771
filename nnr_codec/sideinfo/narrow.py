"""Conversion of floats that numpy lacks, bfloat16 and 8-bit floats, from and to their bit patterns."""

from __future__ import annotations

from functools import cache
from math import inf, ldexp, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import STORED_TYPES, StoredType

Patterns = npt.NDArray[np.unsignedinteger[Any]]
Floats = npt.NDArray[np.float32]


def float32_of(stored: StoredType, patterns: Patterns) -> Floats:
    """Return the float32 values of bit patterns, which are all exact."""
    if stored.name == "bfloat16":
        return (patterns.astype(np.uint32) << 16).view(np.float32)
    values: Floats = _table(stored.name)[patterns]
    return values


def as_floats(stored: StoredType, array: npt.NDArray[Any]) -> npt.NDArray[np.floating[Any]]:
    """Return an array of a float type as it is, or as float32 if numpy lacks the type."""
    return array if stored.is_numpys else float32_of(stored, array.view(stored.pattern))


def patterns_of(stored: StoredType, values: Floats) -> Patterns:
    """Return the bit patterns nearest to values, ties to even; patterns of non-finite values for overflow.

    The values must not be NaN.
    """
    if stored.name == "bfloat16":
        words = values.view(np.uint32)
        return ((words + (words >> 16 & 1) + 0x7FFF) >> 16).astype(np.uint16)
    magnitudes = np.searchsorted(_boundaries(stored.name), np.abs(values)).astype(np.uint8)
    signed = np.signbit(values) & (magnitudes != 0) if stored.name.endswith("fnuz") else np.signbit(values)
    patterns: Patterns = magnitudes | signed.astype(np.uint8) << np.uint8(7)
    return patterns


@cache
def _boundaries(name: str) -> Floats:
    """Return the largest value that rounds to each finite pattern, from +0.0 on."""
    values = _table(name)[:128]
    values = values[np.isfinite(values)]
    ends: Floats = (values + np.append(values[1:], 2 * values[-1] - values[-2])) / 2
    ends[1::2] = np.nextafter(ends[1::2], np.float32(0))
    return ends


@cache
def _table(name: str) -> npt.NDArray[np.float32]:
    stored = STORED_TYPES[name]
    return np.array([_value(stored, pattern) for pattern in range(1 << stored.bits)], np.float32)


def _value(stored: StoredType, pattern: int) -> float:
    """Return the value of one pattern: ``fn`` types have no infinities, ``fnuz`` types also use NaN for negative
    zero."""
    finite, unsigned_zero = "fn" in stored.name, stored.name.endswith("fnuz")
    bias = 11 if "b11" in stored.name else (1 << (stored.exponent - 1)) - (not unsigned_zero)
    magnitude = pattern & ((1 << (stored.bits - 1)) - 1)
    exponent, mantissa = magnitude >> stored.mantissa, magnitude & ((1 << stored.mantissa) - 1)
    largest = magnitude == (1 << (stored.bits - 1)) - 1 if finite else exponent == (1 << stored.exponent) - 1
    if unsigned_zero:
        if pattern == 1 << (stored.bits - 1):
            return nan
    elif largest:
        return nan if finite or mantissa else inf if pattern == magnitude else -inf
    fraction = mantissa + ((1 << stored.mantissa) if exponent else 0)
    value = ldexp(fraction, max(exponent, 1) - bias - stored.mantissa)
    return value if pattern == magnitude else -value
