"""Conversion of tensor items between numpy and PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

from ...dtypes import STORED_TYPES, StoredType, bit_patterns
from ...errors import FormatError
from ...model import Array
from .. import lacks_type
from ..lazy import native

#: Types that PyTorch supports, under the same names.
TYPES = frozenset(
    name
    for name, stored in STORED_TYPES.items()
    if (stored.bits >= 8 or stored.kind == "b")
    and name not in ("float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz")  # only in ml_dtypes
)


def patterns_of(tensor: Any, stored: StoredType) -> Array:
    """Return the bit patterns of a contiguous CPU tensor, sharing its memory."""
    torch = importlib.import_module("torch")
    found: Array = tensor.detach().view(getattr(torch, f"uint{8 * stored.itemsize}")).numpy()
    return found


def array_of(tensor: Any, stored: StoredType, name: str) -> Array:
    """Return a tensor of any device as an array, sharing its memory if possible.

    Raises FormatError with its name if a boolean is neither 0 nor 1.
    """
    dense = tensor.detach().cpu().contiguous()
    return native(patterns_of(dense, stored), stored.name, f"tensor {name[:80]!a}")


def named_array(name: str, tensor: Any) -> Array:
    """Return the result of :func:`array_of`. Raise FormatError for an unsupported type."""
    type_ = str(tensor.dtype).removeprefix("torch.")
    if type_ not in TYPES:
        raise FormatError(f"tensor {name[:80]!a} has dtype {tensor.dtype}, which is not supported")
    return array_of(tensor, STORED_TYPES[type_], name)


def filled(tensor: Any, array: Array) -> Any:
    """Copy the items of an array into a contiguous CPU tensor of the same type and size, and return it."""
    target = patterns_of(tensor, STORED_TYPES[array.dtype.name])
    target.reshape(-1)[...] = bit_patterns(array)
    return tensor


def tensor_of(array: Array, what: str) -> Any:
    """Return an array as a CPU tensor, sharing its memory if it is contiguous and writable.

    Raises FormatError, with ``what``, if PyTorch lacks the type.
    """
    torch = importlib.import_module("torch")
    if array.dtype.name not in TYPES:
        raise lacks_type(what, array.dtype, "pytorch")
    items = bit_patterns(array)
    if not items.flags.writeable:
        items = items.copy()
    return torch.from_numpy(items).view(getattr(torch, array.dtype.name)).reshape(array.shape)
