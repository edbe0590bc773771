"""Types of model tensors, including types that NNR lacks. Names follow numpy and ``ml_dtypes``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import MissingDependencyError


@dataclass(frozen=True)
class StoredType:
    """Type of tensor items.

    Parameters
    ----------
    name : str
        The ``dtype.name``: ``bfloat16``, ``uint8``, ``int4``.
    kind : str
        ``f`` float, ``i`` signed and ``u`` unsigned integer, ``b`` boolean.
    bits : int
        Bits of one item; arrays store items of less than 8 bits in one byte each.
    exponent, mantissa : int
        Bits of the exponent and mantissa of a float; the sign bit is the highest.
    """

    name: str
    kind: str
    bits: int
    exponent: int = 0
    mantissa: int = 0

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one item in an array."""
        return max(self.bits // 8, 1)

    @cached_property
    def pattern(self) -> np.dtype[Any]:
        """Unsigned integer type of the same size, for access to bit patterns."""
        return np.dtype(f"u{self.itemsize}")

    @cached_property
    def little_endian(self) -> np.dtype[Any]:
        """:attr:`pattern` in little-endian byte order, as in files."""
        return self.pattern.newbyteorder("<")

    @property
    def is_numpys(self) -> bool:
        """True if numpy supports the type without ``ml_dtypes``."""
        return self.name in ("bool", "float16", "float32", "float64") or (self.kind != "f" and self.bits >= 8)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; raises MissingDependencyError if it needs ``ml_dtypes`` and that is not installed."""
        return _dtype(self.name)

    @property
    def range(self) -> tuple[int, int]:
        """Lowest and highest integer; 0 and 1 for booleans."""
        if self.kind == "i":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1


def _float(name: str, exponent: int, mantissa: int) -> StoredType:
    return StoredType(name, "f", 1 + exponent + mantissa, exponent, mantissa)


#: All types by name.
STORED_TYPES: dict[str, StoredType] = {
    stored.name: stored
    for stored in (
        StoredType("bool", "b", 1),
        *(StoredType(f"int{bits}", "i", bits) for bits in (2, 4, 8, 16, 32, 64)),
        *(StoredType(f"uint{bits}", "u", bits) for bits in (2, 4, 8, 16, 32, 64)),
        _float("float8_e4m3fn", 4, 3),
        _float("float8_e4m3", 4, 3),
        _float("float8_e4m3fnuz", 4, 3),
        _float("float8_e4m3b11fnuz", 4, 3),
        _float("float8_e5m2", 5, 2),
        _float("float8_e5m2fnuz", 5, 2),
        _float("float8_e3m4", 3, 4),
        _float("float16", 5, 10),
        _float("bfloat16", 8, 7),
        _float("float32", 8, 23),
        _float("float64", 11, 52),
    )
}


@lru_cache(maxsize=256)
def stored_type(dtype: np.dtype[Any]) -> StoredType | None:
    """Return the stored type of a dtype in any byte order; None if it is not supported in models."""
    return STORED_TYPES.get(dtype.name)


def bit_patterns(array: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return the bit patterns of all items of an array of a stored type, in row-major order and native byte order.

    Items of less than 8 bits are sign-extended to a byte.
    """
    stored = STORED_TYPES[array.dtype.name]
    if stored.bits in (2, 4):  # ml_dtypes leaves the unused bits of the byte undefined
        array = array.astype(f"{stored.kind}1")
    seen = array.view(stored.pattern.newbyteorder(array.dtype.byteorder))
    return np.ascontiguousarray(seen, stored.pattern).reshape(-1)


@cache
def _dtype(name: str) -> np.dtype[Any]:
    if STORED_TYPES[name].is_numpys:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        way_out = ", or decode to float32" if STORED_TYPES[name].kind == "f" else ""
        raise MissingDependencyError(
            f"numpy does not support {name}; pip install 'nnr_codec[types]'{way_out}"
        ) from None
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except AttributeError:
        raise MissingDependencyError(f"the installed ml_dtypes does not support {name}; upgrade it") from None
    return dtype
