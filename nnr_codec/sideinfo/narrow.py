"""Floats that numpy does not know, from their bit patterns and back: bfloat16, and those of 8 bits."""

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
    """The values of bit patterns, all of which float32 holds."""
    if stored.name == "bfloat16":
        return (patterns.astype(np.uint32) << 16).view(np.float32)
    values: Floats = _table(stored.name)[patterns]
    return values


def patterns_of(stored: StoredType, values: Floats) -> Patterns:
    """The bit patterns that are nearest to values, ties to even; what is not finite any more for those too large.

    The values are no NaN.
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
    """The largest value that is rounded to each finite pattern from +0.0 on."""
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
    """Of one pattern: ``fn`` types have no infinities, ``fnuz`` types no negative zero either, but NaN in its place."""
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
