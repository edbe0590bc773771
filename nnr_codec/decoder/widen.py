"""Values of floats that numpy does not know, from their bit patterns."""

from __future__ import annotations

from functools import cache
from math import inf, ldexp, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import STORED_TYPES, StoredType

#: Floats that numpy knows.
NUMPYS = ("float16", "float32", "float64")


def float32_of(stored: StoredType, patterns: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.float32]:
    """The values of bfloat16 or of a float of 8 bits, all of which float32 holds."""
    if stored.name == "bfloat16":
        return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values: npt.NDArray[np.float32] = _table(stored.name)[patterns]
    return values


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
