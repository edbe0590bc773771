"""Differences between tensors, and their addition.

Differences of floats are float32 (float64 for float64); differences of integers are int32. If every bit must be kept, a
difference of floats is their distance in the order of all bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..cabac_ext import bits
from ..dtypes import StoredType, bit_patterns, stored_type
from ..errors import FormatError
from ..model import Array

Kind = Literal["same", "difference", "bits", "whole"]
Patterns = npt.NDArray[np.unsignedinteger[Any]]

#: Float types whose patterns, as integers, have differences within int32.
BITS = ("float16", "bfloat16", "float32")


class Difference(NamedTuple):
    """Change from one tensor to another.

    Parameters
    ----------
    kind : str
        ``"same"``: all bits are equal, including signs of zeros. ``"difference"``: ``array`` is added. ``"bits"``:
        ``array`` counts steps to neighbouring floats. ``"whole"``: ``array`` replaces the tensor.
    array : ndarray
        An array of the new tensor's shape. For equal tensors, zeros without memory in the type of differences; float32
        or float64 for differences of floats; int32 for differences of integers and of bits; otherwise the new tensor.
    by_exponent : bool
        The array is sorted by the exponents of the base; items with equal exponents are in the order of the tensor.
    """

    kind: Kind
    array: Array
    by_exponent: bool = False


def difference(base: Array | None, new: Array, *, lossless: bool = False, smallest: bool = False) -> Difference:
    """Return the change from ``base`` to ``new``.

    Parameters
    ----------
    base : ndarray or None
        None if there is no such tensor yet.
    new : ndarray
        Tensor of any supported type, in any byte order and layout.
    lossless : bool
        Whether to keep every bit of floats.
    smallest : bool
        For differences of bits, return the form that takes the fewest bits, according to an estimate: in the order of
        the tensor, sorted by the exponents of the base, or ``"whole"``. Whether a weight of few mantissa bits moves
        depends on its unit in the last place; values that change by more than a factor have no small difference.

    Returns
    -------
    Difference
        ``"whole"`` for another type or shape, for types without differences (booleans, integers of less than 8 bits),
        for differences that are not finite or exceed int32, and for lossless float8 and float64. With ``smallest``,
        also for lossless differences that are larger than the tensor.

    Raises
    ------
    FormatError
        The dtype is not supported.
    """
    stored = _stored(new)
    if base is None or _stored(base) is not stored or base.shape != new.shape:
        return Difference("whole", new)
    before, after = bit_patterns(base), bit_patterns(new)
    if bits.equal(before.view(np.uint8), after.view(np.uint8)):
        return Difference("same", np.broadcast_to(np.zeros((), _work(stored)), new.shape))
    found: Array | None = None
    if stored.kind == "f" and not lossless:
        found = _float_difference(base, new, before, after, _work(stored))
    elif stored.kind == "f" and stored.name in BITS:
        by_exponent = False
        if smallest:
            in_order, sorted_, whole = bits.costs_of_change(before, after, **_exponents(stored))
            if whole < min(in_order, sorted_):
                return Difference("whole", new)
            by_exponent = sorted_ < in_order
        array = np.empty(new.shape, np.int32)
        bits.subtract_patterns(before, after, array.reshape(-1), **_exponents(stored, by_exponent))
        return Difference("bits", array, by_exponent)
    elif _counts(stored):
        found = _integer_difference(before.view(_values(stored)), after.view(_values(stored)))
    return Difference("whole", new) if found is None else Difference("difference", found.reshape(new.shape))


def add(base: Array, array: Array, kind: Kind, *, by_exponent: bool = False) -> Array:
    """Add a difference to a tensor; restores the argument ``new`` of :func:`difference`, up to quantization.

    Parameters
    ----------
    base : ndarray
    array : ndarray
        Array of the size of ``base``, in any shape; for ``"whole"``, any tensor.
    kind : str
    by_exponent : bool
        As in :class:`Difference`.

    Returns
    -------
    ndarray
        Tensor of the type and shape of ``base``; possibly ``base`` or ``array`` itself. Where ``array`` is 0 or
        ``base`` is not finite, the bits of ``base`` are kept; other sums are computed in float32 (float64 for float64)
        and rounded to the type. Integers wrap.

    Raises
    ------
    FormatError
        Types or sizes do not match, or the sum of a finite value is not finite.
    """
    if kind in ("same", "whole"):
        return base if kind == "same" else array
    stored, given = _stored(base), _stored(array)
    if array.size != base.size:
        raise FormatError(f"a difference of shape {array.shape} does not fit a tensor of shape {base.shape}")
    integers = kind == "bits" or stored.kind != "f"
    known = stored.name in BITS if kind == "bits" else stored.kind == "f" or _counts(stored)
    if not known or (given.kind not in "iu" if integers else given.kind != "f"):
        what = "of patterns " if kind == "bits" else ""
        raise FormatError(f"a difference {what}in {given.name} cannot be added to {stored.name}")
    if by_exponent and kind != "bits":
        raise FormatError(f"a difference in the order of exponents cannot be added to {stored.name}")
    if not integers:
        return _float_sum(base, array, stored)
    patterns = bit_patterns(base)
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind == "bits":
        total = np.empty_like(patterns)
        bits.add_patterns(patterns, flat.astype(np.int32, copy=False), total, **_exponents(stored, by_exponent))
    else:
        total = patterns + flat.astype(f"i{stored.itemsize}").view(stored.pattern)
    return total.view(stored.dtype).reshape(base.shape)


def fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes differ only in extents of 1: units store scalars as [1], topologies vectors as [1,
    C]."""
    extents, others = ([extent for extent in one if extent != 1] for one in (shape, other))
    return extents == others


def _stored(array: Array) -> StoredType:
    stored = stored_type(array.dtype)
    if stored is None:
        raise FormatError(f"tensors of type {array.dtype} are not supported")
    return stored


def _counts(stored: StoredType) -> bool:
    """Return whether the type is an integer type of at least one byte."""
    return stored.kind in "iu" and stored.bits >= 8


def _work(stored: StoredType) -> np.dtype[Any]:
    """Return the type of differences."""
    return np.dtype(("f8" if stored.bits == 64 else "f4") if stored.kind == "f" else "i4")


def _values(stored: StoredType) -> np.dtype[Any]:
    """Return the integer type in native byte order."""
    return np.dtype(f"{stored.kind}{stored.itemsize}")


def _integer_difference(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> npt.NDArray[np.int32] | None:
    """Return new minus base; None if it exceeds int32."""
    found: npt.NDArray[np.int32] | None
    if before.itemsize < 4:
        found = np.subtract(after, before, dtype=np.int32)
        return found
    found = _wrapped(before.view(f"u{before.itemsize}"), after.view(f"u{after.itemsize}"))
    return None if found is None or not np.array_equal(found < 0, after < before) else found


def _float_difference(
    base: Array, new: Array, before: Patterns, after: Patterns, work: np.dtype[Any]
) -> npt.NDArray[np.floating[Any]] | None:
    """Return new minus base, 0 for equal patterns; None if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[np.floating[Any]] = np.array(new, work, order="C")
        found -= base.astype(work, copy=False)
    if not np.isfinite(found).all():
        found.reshape(-1)[before == after] = 0
    return found if np.isfinite(found).all() else None


def _float_sum(base: Array, array: Array, stored: StoredType) -> Array:
    work = _work(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        added = np.ascontiguousarray(array, work).reshape(-1)
        total: Array = np.add(base.astype(work, order="C", copy=False).reshape(-1), added).astype(stored.dtype)
        finite = np.isfinite(base).reshape(-1)
        # Adding 0 may change the sign of a zero; the bits of NaN results depend on the machine.
        np.copyto(total.view(stored.pattern), bit_patterns(base), where=(added == 0) | ~finite)
        if not np.isfinite(total[finite]).all():
            raise FormatError(f"the sum of base and difference exceeds the range of {stored.name}")
    return total.reshape(base.shape)


def _wrapped(before: Patterns, after: Patterns) -> npt.NDArray[np.int32] | None:
    """Return the difference modulo the number of patterns, nearest to 0; None if it exceeds int32."""
    found = (after - before).view(f"i{before.itemsize}")
    if found.itemsize == 8 and found.size and (found.min() < -(1 << 31) or found.max() >= 1 << 31):
        return None
    return found.astype(np.int32, copy=False)


def _exponents(stored: StoredType, by_exponent: bool = True) -> dict[str, int]:
    """Return the lowest bit and the number of bits of the key by which differences are sorted."""
    return {"low": stored.mantissa, "width": stored.exponent if by_exponent else 0}
