"""Codes of docs/reference/side-information.md as functions on ndarrays: tensors to units and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import bits as kernel
from ..dtypes import StoredType, bit_patterns, stored_type
from ..errors import ElementError
from ..model import Array
from ..rules import Requirement
from .narrow import float32_of, patterns_of
from .record import (
    DeltaCode,
    DisplacementCode,
    FloatCode,
    GridCode,
    IntegerCode,
    PaletteCode,
    RawCode,
    Repeats,
    TensorRecord,
)

Patterns = npt.NDArray[np.unsignedinteger[Any]]
Levels = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

_LEVELS = range(-(1 << 31), 1 << 31)
#: Number of items processed at a time, to limit temporary arrays.
_CHUNK = 1 << 16


def split(record: TensorRecord, array: Array, dims: tuple[int, ...] | None = None) -> tuple[Array, Array | None]:
    """Return the arrays for the units of a tensor.

    Parameters
    ----------
    record : TensorRecord
        A record with a code; the base of an IntegerCode is within the range of the type.
    array : ndarray
        An array of the record's type and shape, in any byte order and with any strides; not empty.
    dims : tuple of int, optional
        Shape of the levels if the record has repeats; default: one dimension.

    Returns
    -------
    unit : ndarray
        For the tensor's own unit: int32 levels of the tensor's shape, or of ``dims``; for RawCode float32 words of
        shape (n,).
    bits : ndarray of float32, shape (n,), or None
        For the unit ``code.bits``: at least one word. Arbitrary bit patterns, not for arithmetic.

    Raises ValueError if the array contradicts the record.
    """
    stored, shape = record.stored, array.shape
    if stored_type(array.dtype) != stored or record.shape not in (None, shape):
        raise ValueError(f"the tensor is {array.dtype} {shape}; its record states {record.type} {record.shape}")
    _size(shape)
    patterns, other = bit_patterns(array), None
    if record.repeats is not None:
        patterns = kept_items(record.repeats, stored, patterns, shape)
        shape = patterns.shape if dims is None or isinstance(record.code, RawCode) else dims
    match record.code:
        case FloatCode() as code:
            levels, other = _split_floats(code, stored, patterns, shape)
        case IntegerCode() as code:
            levels, other = _split_integers(code, stored, patterns)
        case PaletteCode() as code:
            levels = _split_palette(code, stored, patterns)
        case GridCode() as code:
            levels = _split_grid(code, stored, patterns, shape)
        case RawCode():
            data = patterns.astype(patterns.dtype.newbyteorder("<"), copy=False).view(np.uint8)
            words = np.zeros(4 * _words(data.size), np.uint8)
            words[: data.size] = data
            return _float_words(words), None
        case DeltaCode():
            levels = patterns.view(np.int32)
        case DisplacementCode() | None:
            raise ValueError("the record has no code of levels")
    return levels.reshape(shape), other


def join(record: TensorRecord, unit: Array, bits: Array | None, shape: tuple[int, ...]) -> Array:
    """Return a tensor made from the contents of its units.

    Parameters
    ----------
    record : TensorRecord
    unit : ndarray
        Contents of the tensor's own unit, with as many elements as ``shape`` without copied items: int32 levels; for
        RawCode float32 words of shape (n,); without code, signed integers for integers and booleans, floats for floats.
    bits : ndarray of float32, shape (n,), or None
        Contents of the unit ``code.bits``.
    shape : tuple of int
        Shape of the result, already charged by the caller; not empty.

    Returns
    -------
    ndarray
        The tensor in C order; it may be ``unit`` or share its memory, and then overwrites the levels.

    Raises
    ------
    ElementError
        The units contradict the record, or a value is out of range of the type.
    MissingDependencyError
        The type requires ``ml_dtypes``, which is not installed.
    """
    stored, size = record.stored, _size(shape)
    if record.code is None or isinstance(record.code, DeltaCode):
        _check_size(unit, size, shape)
        return (cast_stored if stored.kind == "f" else _cast_integers)(unit, stored, stored.dtype).reshape(shape)
    return _tensor(stored, join_patterns(record, unit, bits, shape), shape)


def join_patterns(record: TensorRecord, unit: Array, bits: Array | None, shape: tuple[int, ...]) -> Patterns:
    """Return the bit patterns of all items of a tensor with a code, in row-major order, without ``ml_dtypes``.

    Parameters and errors as for :func:`join`.
    """
    stored, size = record.stored, _size(shape)
    if record.repeats is not None:
        return _repeated(record, record.repeats, unit, bits, shape)
    if isinstance(record.code, RawCode):
        return _join_raw(stored, unit, size)
    levels = _levels(unit, size, shape)
    match record.code:
        case FloatCode() as code:
            return _join_floats(code, stored, levels, bits, shape)
        case IntegerCode() as code:
            return _join_integers(code, stored, levels, bits)
        case PaletteCode() as code:
            return _join_palette(code, stored, levels)
        case GridCode() as code:
            return _join_grid(code, stored, levels, shape)
        case DeltaCode() | DisplacementCode() | None:
            raise ValueError("the record has no code of levels")


def _levels(unit: Array, size: int, shape: tuple[int, ...]) -> Levels:
    _check_size(unit, size, shape)
    if unit.dtype != np.int32:
        raise ElementError(
            f"the unit has {unit.dtype}; the code of the record requires int32", rule=Requirement.SIDE_INFORMATION
        )
    return np.ascontiguousarray(unit, np.int32).reshape(-1)


def _check_size(unit: Array, size: int, shape: tuple[int, ...]) -> None:
    if unit.size != size:
        raise ElementError(
            f"the unit has {unit.size:,} values; the shape of the record is {shape}", rule=Requirement.SIDE_INFORMATION
        )


# ------------------------------------------------------------------------------------------------ patterns and words
def _size(shape: tuple[int, ...]) -> int:
    if shape and min(shape) < 1:
        raise ElementError(
            f"a tensor of shape {shape} is empty, so it cannot have a unit", rule=Requirement.SIDE_INFORMATION
        )
    return prod(shape)


def _tensor(stored: StoredType, patterns: Patterns, shape: tuple[int, ...]) -> Array:
    if stored.bits < 8:
        return _integers(stored, patterns).astype(stored.dtype).reshape(shape)
    return patterns.view(stored.dtype).reshape(shape)


def _integers(stored: StoredType, patterns: Patterns) -> npt.NDArray[Any]:
    """Return patterns as integers; unsigned for floats."""
    return patterns.view(f"i{stored.itemsize}") if stored.kind == "i" else patterns


def _check_items(stored: StoredType, patterns: Patterns) -> None:
    """Raise ElementError if items of less than 8 bits are out of range."""
    if stored.bits < 8:
        values = _integers(stored, patterns)
        least, largest = stored.range
        if int(values.min()) < least or int(values.max()) > largest:
            raise ElementError(f"an item is outside the range of {stored.name}", rule=Requirement.SIDE_INFORMATION)


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK))


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _words(size: int) -> int:
    """Return the number of 4-byte words for ``size`` bytes."""
    return max(1, (size + 3) // 4)


def _float_words(stream: Bytes) -> Array:
    """Return the float32 parameters of a unit whose payload is a stream of bytes."""
    return stream.view("<f4").astype(np.float32, copy=False)


def _stream(words: Array | None, size: int) -> Bytes:
    """Return ``size`` bytes from words. Raise ElementError if the number of words or the padding is wrong."""
    if words is None or words.dtype != np.float32 or words.ndim != 1:
        raise ElementError("the words of bits must be float32 with one dimension", rule=Requirement.SIDE_INFORMATION)
    if words.size != _words(size):
        raise ElementError(
            f"the unit of bits has {words.size:,} words; {_words(size):,} are required",
            rule=Requirement.SIDE_INFORMATION,
        )
    data: Bytes = np.ascontiguousarray(words, "<f4").view(np.uint8)
    if data[size:].any():
        raise ElementError("the bytes after the last bit are not 0", rule=Requirement.SIDE_INFORMATION)
    return data[:size]


def _join_raw(stored: StoredType, unit: Array, size: int) -> Patterns:
    data = _stream(unit, size * stored.itemsize)
    patterns: Patterns = data.view(stored.pattern.newbyteorder("<")).astype(stored.pattern)
    _check_items(stored, patterns)
    return patterns


# ------------------------------------------------------------------------------------------------ repeats
def kept_items(repeats: Repeats, stored: StoredType, patterns: Patterns, shape: tuple[int, ...]) -> Patterns:
    """Return the items of a tensor that are not copies. Raise ValueError if a copy differs from its items."""
    if repeats.columns:
        patterns = np.ascontiguousarray(patterns.reshape(shape[0], -1).T).reshape(-1)
    is_kept = np.ones(patterns.size, bool)
    for start, length, _, _ in _runs(repeats):
        is_kept[start : start + length] = False
    kept = patterns[is_kept]
    if not np.array_equal(_copied(repeats, stored, kept, patterns.size), patterns):
        raise ValueError("a copy differs from the items of the tensor")
    return kept


def _repeated(
    record: TensorRecord, repeats: Repeats, unit: Array, bits: Array | None, shape: tuple[int, ...]
) -> Patterns:
    """Return the items of a tensor with copies."""
    stored, size = record.stored, prod(shape)
    kept = size - repeats.copied
    of_unit = unit.shape if unit.size == kept else (kept,)
    items = join_patterns(replace(record, repeats=None), unit, bits, of_unit)
    patterns = _copied(repeats, stored, items, size)
    _check_items(stored, patterns)
    if repeats.columns:
        patterns = np.ascontiguousarray(patterns.reshape(-1, shape[0]).T).reshape(-1)
    return patterns


def _runs(repeats: Repeats) -> Iterator[tuple[int, int, int, int]]:
    """Yield first item, length, distance and change of each run."""
    start = 0
    for kept, length, distance, change in zip(
        repeats.kept, repeats.length, repeats.distance, repeats.change, strict=True
    ):
        start += kept
        yield start, length, distance, change
        start += length


def _copied(repeats: Repeats, stored: StoredType, kept: Patterns, size: int) -> Patterns:
    """Return ``kept`` with copies between its items."""
    patterns = np.empty(size, kept.dtype)
    end = taken = 0
    for start, length, distance, change in _runs(repeats):
        more = start - end
        if distance < length or distance > start or start + length > size or taken + more > kept.size:
            raise ElementError("a run does not copy items before it", rule=Requirement.SIDE_INFORMATION)
        patterns[end:start] = kept[taken : taken + more]
        source = patterns[start - distance : start - distance + length]
        end, taken = start + length, taken + more
        patterns[start:end] = source[::-1] if change & 1 else source
        for parity in (0, 1):
            if change & 2 << parity:
                _negate(stored, patterns[start + parity : end : 2])
    patterns[end:] = kept[taken:]
    return patterns


def _negate(stored: StoredType, patterns: Patterns) -> None:
    """Negate items: flip the signs of floats, negate integers modulo a power of two."""
    if stored.kind == "f":
        patterns ^= patterns.dtype.type(1 << (stored.bits - 1))
    else:
        np.negative(patterns, out=patterns)


# ------------------------------------------------------------------------------------------------ floats
def _check_float(code: FloatCode, stored: StoredType) -> None:
    if stored.kind != "f" or not (
        0 <= code.mantissa <= code.mantissa + code.zeros <= stored.mantissa
        and 0 <= code.pivot < 1 << (stored.exponent + code.mantissa)
        and 0 <= code.holes <= 2
    ):
        raise ElementError(
            f"pivot, mantissa, holes or zeros are invalid for {stored.name}", rule=Requirement.SIDE_INFORMATION
        )


def _zero_rows(code: FloatCode, shape: tuple[int, ...]) -> Bytes:
    """Return a flag for each row whose low bits are 0; one flag if all rows have them."""
    if code.rows is None:
        return np.ones(1, np.uint8)
    if not shape or len(code.rows) != _bytes(shape[0]):
        raise ElementError(
            "rows must have one bit for each index of the first dimension", rule=Requirement.SIDE_INFORMATION
        )
    rows = np.unpackbits(np.frombuffer(code.rows, np.uint8))
    if rows[shape[0] :].any():
        raise ElementError("the bits after the last row are not 0", rule=Requirement.SIDE_INFORMATION)
    return rows[: shape[0]]


def _sizes(code: FloatCode, stored: StoredType, items: Patterns, zero_rows: Bytes, mask: int) -> tuple[int, int]:
    """Return the bytes of the upper and the lower stream; kept ``items`` have a bit in the mask."""
    if code.holes:
        kept = kernel.count_kept(items, np.zeros(1, np.uint8), mask)
        low = kernel.count_kept(items, zero_rows, mask) if code.zeros else 0
    else:
        kept, low = items.size, items.size // zero_rows.size * int(np.count_nonzero(zero_rows == 0))
    return _bytes(kept * (stored.mantissa - code.mantissa - code.zeros + (not code.unsigned))), _bytes(low * code.zeros)


def _fields(code: FloatCode, stored: StoredType) -> dict[str, Any]:
    """Return the parameters with which the kernel splits patterns."""
    return {
        "shift": stored.mantissa - code.mantissa,
        "pivot": code.pivot,
        "holes": code.holes,
        "unsigned": code.unsigned,
        "zeros": code.zeros,
    }


def _split_floats(
    code: FloatCode, stored: StoredType, patterns: Patterns, shape: tuple[int, ...]
) -> tuple[Levels, Array]:
    _check_float(code, stored)
    zero_rows = _zero_rows(code, shape)
    mask = (1 << (stored.bits - (code.holes == 2))) - 1  # with two holes, all bits but the sign
    upper, lower = _sizes(code, stored, patterns, zero_rows, mask)
    levels = np.empty(patterns.size, np.int32)
    stream = np.zeros(4 * _words(upper + lower), np.uint8)
    kernel.split_floats(patterns, levels, stream[:upper], **_fields(code, stored))
    if code.zeros:
        low = stream[upper : upper + lower]
        kernel.split_low(patterns, levels, zero_rows, low, holes=code.holes, zeros=code.zeros)
    return levels, _float_words(stream)


def _join_floats(
    code: FloatCode, stored: StoredType, levels: Levels, bits: Array | None, shape: tuple[int, ...]
) -> Patterns:
    _check_float(code, stored)
    zero_rows = _zero_rows(code, shape)
    upper, lower = _sizes(code, stored, levels.view(np.uint32), zero_rows, (1 << 32) - max(code.holes, 1))
    stream = _stream(bits, upper + lower)
    # If only some rows have low bits, these are joined last and need the levels.
    in_place = stored.itemsize == levels.itemsize and code.rows is None and levels.flags.writeable
    patterns = levels.view(stored.pattern) if in_place else np.empty(levels.size, stored.pattern)
    kernel.join_floats(levels, stream[:upper], patterns, **_fields(code, stored))
    if code.zeros:
        kernel.join_low(levels, zero_rows, stream[upper:], patterns, holes=code.holes, zeros=code.zeros)
    return patterns


# ------------------------------------------------------------------------------------------------ integers
def _check_integer(code: IntegerCode, stored: StoredType) -> None:
    least, largest = stored.range
    if not least <= code.base <= largest or not 0 <= code.low <= 64:
        raise ElementError(
            f"base {code.base} or low {code.low} is invalid for {stored.name}", rule=Requirement.SIDE_INFORMATION
        )


def _split_integers(code: IntegerCode, stored: StoredType, patterns: Patterns) -> tuple[Levels, Array | None]:
    _check_integer(code, stored)
    _check_items(stored, patterns)
    least, values = stored.range[0], _integers(stored, patterns)
    low, high = int(values.min()), int(values.max())
    if (low - code.base) >> code.low not in _LEVELS or (high - code.base) >> code.low not in _LEVELS:
        raise ValueError("a level exceeds 32 bits")
    levels = np.empty(patterns.size, np.int32)
    size = _bytes(patterns.size * code.low)
    stream = np.zeros(4 * _words(size), np.uint8)
    kernel.split_integers(
        patterns, levels, stream[:size], least=least % (1 << 64), origin=code.base - least, low=code.low
    )
    return levels, _float_words(stream) if code.low else None


def _join_integers(code: IntegerCode, stored: StoredType, levels: Levels, bits: Array | None) -> Patterns:
    _check_integer(code, stored)
    least, largest = stored.range
    size = _bytes(levels.size * code.low)
    stream = _stream(bits, size) if code.low else np.zeros(0, np.uint8)
    first, last = divmod(least - code.base, 1 << code.low), divmod(largest - code.base, 1 << code.low)
    patterns = np.empty(levels.size, stored.pattern)
    kernel.join_integers(
        levels,
        stream,
        patterns,
        least=least % (1 << 64),
        origin=code.base - least,
        low=code.low,
        first=max(first, (_LEVELS.start, 0)),  # of 32 bits, like levels
        last=min(last, (_LEVELS.stop - 1, (1 << 64) - 1)),
    )
    return patterns


# ------------------------------------------------------------------------------------------------ palettes
def _palette(code: PaletteCode, stored: StoredType) -> Patterns:
    if not code.values or len(code.values) % stored.itemsize:
        raise ElementError(
            f"the palette does not consist of whole items of {stored.name}", rule=Requirement.SIDE_INFORMATION
        )
    palette = np.frombuffer(code.values, stored.pattern.newbyteorder("<")).astype(stored.pattern)
    _check_items(stored, palette)
    return palette


def _split_palette(code: PaletteCode, stored: StoredType, patterns: Patterns) -> Levels:
    entries, first = np.unique(_palette(code, stored), return_index=True)
    levels = np.empty(patterns.size, np.int32)
    if patterns.itemsize <= 2:
        table = np.full(1 << 8 * patterns.itemsize, _LEVELS.start, np.int32)
        table[entries] = first - code.offset
        kernel.look_up(patterns, table, levels)
        return levels
    for chunk in _chunks(patterns.size):
        place = np.searchsorted(entries[:-1], patterns[chunk])
        if not np.array_equal(entries[place], patterns[chunk]):
            raise ValueError("a value is not in the palette")
        levels[chunk] = first[place] - code.offset
    return levels


def _join_palette(code: PaletteCode, stored: StoredType, levels: Levels) -> Patterns:
    palette = _palette(code, stored)
    least, largest = int(levels.min()) + code.offset, int(levels.max()) + code.offset
    if least < 0 or largest >= palette.size:
        raise ElementError(
            f"index {least if least < 0 else largest} is outside the palette of {palette.size} values",
            rule=Requirement.SIDE_INFORMATION,
        )
    patterns = np.empty(levels.size, stored.pattern)
    for chunk in _chunks(levels.size):
        patterns[chunk] = palette[levels[chunk] + np.int64(code.offset)]
    return patterns


# ------------------------------------------------------------------------------------------------ grids
def _scaled(code: GridCode, stored: StoredType, shape: tuple[int, ...]) -> Iterator[tuple[slice, Floats]]:
    """Yield chunks of the items, with the scale of each item or the common scale."""
    work, axis = np.dtype("f8" if stored.name == "float64" else "f4"), code.axis
    if stored.kind != "f" or (axis is not None and not 0 <= axis < len(shape)):
        raise ElementError(
            f"a grid on axis {axis} is invalid for {stored.name} {shape}", rule=Requirement.SIDE_INFORMATION
        )
    extent, after = (1, 1) if axis is None else (shape[axis], prod(shape[axis + 1 :]))
    if len(code.scale) != extent * work.itemsize:
        raise ElementError(
            f"the scales have {len(code.scale)} bytes, but {extent * work.itemsize} are required",
            rule=Requirement.SIDE_INFORMATION,
        )
    scales = np.frombuffer(code.scale, work.newbyteorder("<")).astype(work, copy=False)
    if not np.isfinite(scales).all() or not scales.all():
        raise ElementError("a scale is 0 or not finite", rule=Requirement.SIDE_INFORMATION)
    for chunk in _chunks(prod(shape)):
        yield chunk, scales if extent == 1 else scales[np.arange(chunk.start, chunk.stop) // after % extent]


def _products(stored: StoredType, levels: Levels, scales: Floats) -> Patterns:
    """Return level times scale, rounded to float32 or float64, and then to the type."""
    with np.errstate(over="ignore"):
        products: Floats = np.multiply(levels, scales, dtype=scales.dtype, casting="same_kind")
        if stored.is_numpys:
            products = products.astype(stored.dtype)
    patterns = products.view(stored.pattern) if stored.is_numpys else patterns_of(stored, products)
    if not np.isfinite(products if stored.is_numpys else float32_of(stored, patterns)).all():
        raise ElementError(f"a level times its scale exceeds {stored.name}", rule=Requirement.SIDE_INFORMATION)
    return patterns


def _split_grid(code: GridCode, stored: StoredType, patterns: Patterns, shape: tuple[int, ...]) -> Levels:
    levels = np.empty(patterns.size, np.int32)
    for chunk, scales in _scaled(code, stored, shape):
        with np.errstate(over="ignore", invalid="ignore"):
            quotients = np.rint(patterns[chunk].view(stored.dtype).astype(np.float64) / scales)
        if not (np.abs(quotients) < _LEVELS.stop).all():
            raise ValueError("a level exceeds 32 bits")
        levels[chunk] = quotients
        if not np.array_equal(_products(stored, levels[chunk], scales), patterns[chunk]):
            raise ValueError("a value is not on the grid")
    return levels


def _join_grid(code: GridCode, stored: StoredType, levels: Levels, shape: tuple[int, ...]) -> Patterns:
    patterns = np.empty(levels.size, stored.pattern)
    for chunk, scales in _scaled(code, stored, shape):
        patterns[chunk] = _products(stored, levels[chunk], scales)
    return patterns


# ------------------------------------------------------------------------------------------------ no code
def _cast_integers(unit: Array, stored: StoredType, dtype: np.dtype[Any]) -> Array:
    if unit.dtype.kind != "i":
        raise ElementError(
            f"the unit has {unit.dtype}; {stored.name} requires signed integers", rule=Requirement.SIDE_INFORMATION
        )
    least, largest = stored.range
    if int(unit.min()) < least or int(unit.max()) > largest:
        raise ElementError(f"a value is outside the range of {stored.name}", rule=Requirement.SIDE_INFORMATION)
    return unit.astype(dtype, order="C", copy=False)


def cast_stored(unit: Array, stored: StoredType, dtype: np.dtype[Any]) -> Array:
    """Cast floats with one rounding to float32 if the type is narrower, and one to the type."""
    if unit.dtype == dtype:
        return unit
    if unit.dtype.kind != "f":
        raise ElementError(
            f"the unit has {unit.dtype}; {stored.name} requires floats", rule=Requirement.SIDE_INFORMATION
        )
    values, cast = np.ascontiguousarray(unit).reshape(-1), np.empty(unit.size, dtype)
    for chunk in _chunks(unit.size):
        part = values[chunk]
        with np.errstate(over="ignore", invalid="ignore"):
            cast[chunk] = part if stored.itemsize > 2 else part.astype(np.float32, copy=False)
        if not np.array_equal(np.isfinite(cast[chunk]), np.isfinite(part)):
            raise ElementError(f"a value exceeds {stored.name}", rule=Requirement.SIDE_INFORMATION)
    return cast
