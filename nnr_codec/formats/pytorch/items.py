"""Items of tensors, between numpy and PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

from ...dtypes import STORED_TYPES, StoredType, bit_patterns
from ...model import Array
from ..lazy import native

#: The types that PyTorch has tensors of, by the names of both.
TYPES = frozenset(
    name
    for name, stored in STORED_TYPES.items()
    if (stored.bits >= 8 or stored.kind == "b")
    and name not in ("float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz")  # ml_dtypes' alone
)


def patterns_of(tensor: Any, stored: StoredType) -> Array:
    """The bit patterns of a contiguous tensor of the main memory, which are in the same memory."""
    torch = importlib.import_module("torch")
    found: Array = tensor.detach().view(getattr(torch, f"uint{8 * stored.itemsize}")).numpy()
    return found


def array_of(tensor: Any, stored: StoredType, name: str) -> Array:
    """A tensor of any device as an array, of the same memory where that is possible.

    Raises FormatError, which names it, where a boolean is neither 0 nor 1.
    """
    dense = tensor.detach().cpu().contiguous()
    return native(patterns_of(dense, stored), stored.name, f"tensor {name[:80]!a}")


def filled(tensor: Any, array: Array) -> Any:
    """A contiguous tensor of the main memory with the items of an array of the same type and size."""
    target = patterns_of(tensor, STORED_TYPES[array.dtype.name])
    target.reshape(-1)[...] = bit_patterns(array)
    return tensor
