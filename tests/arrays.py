"""Arrays of every stored type that are difficult for a codec: hostile values, and values with a special coding."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from hypothesis import strategies as st

from nnr_codec.dtypes import STORED_TYPES, StoredType, stored_type
from nnr_codec.model import Array

#: 0-d, empty, 1 to 8 dimensions, extents of 1, and some arrays that are large enough for every code to save bytes.
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (3, 0),
    (0, 2, 2),
    (1,),
    (2,),
    (17,),
    (300,),
    (1, 1),
    (1, 40),
    (40, 1),
    (6, 7),
    (65, 9),
    (48, 64),
    (5, 4, 3),
    (16, 8, 3, 3),
    (2, 3, 2, 3, 4),
    (3, 1, 4, 1, 5, 2),
    (2, 2, 2, 2, 2, 2, 3),
    (2, 1, 3, 2, 1, 2, 2, 5),
)


def assert_identical(got: Array, want: Array, what: object = "") -> None:
    """Check that type (except byte order), shape and bits are equal."""
    assert isinstance(got, np.ndarray), what
    assert got.dtype.name == want.dtype.name, what
    assert got.shape == want.shape, what
    np.testing.assert_array_equal(patterns(got), patterns(want), err_msg=str(what))


def patterns(array: Array) -> Array:
    """Return bit patterns of floats, or values of integers and booleans; narrow types have equivalent patterns."""
    stored = stored_type(array.dtype)
    assert stored is not None
    if stored.kind != "f":
        return array.astype(np.uint64 if stored.kind == "u" else np.int64)
    native = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u{stored.itemsize}".replace("|", "="))
    return native.reshape(array.shape).astype(f"u{stored.itemsize}")


def from_patterns(bits: Array, stored: StoredType) -> Array:
    """Return the array of these bit patterns; for integers and booleans the lowest bits count."""
    bits = np.asarray(bits).astype(stored.pattern)
    if stored.bits < 8:
        bits = bits & stored.pattern.type((1 << stored.bits) - 1)
    if stored.kind == "i" and stored.bits < 8:
        signed = (bits.astype(np.int8) << (8 - stored.bits)) >> (8 - stored.bits)
        return np.asarray(signed.astype(stored.dtype))
    return np.asarray(np.asarray(bits).reshape(-1).view(stored.dtype).reshape(np.shape(bits)))


def specials(stored: StoredType) -> Array:
    """Return the patterns of the extreme and special values of a type."""
    if stored.kind != "f":
        low, high = stored.range
        chosen = {low, low + 1, high - 1, high, 0, 1, -1, 1 << 31, -(1 << 31), (1 << 31) - 1, (1 << 31) + 1, 1 << 24}
        return np.array([value & (2**64 - 1) for value in chosen if low <= value <= high], "u8")
    m, e = stored.mantissa, stored.exponent
    top, quiet = ((1 << e) - 1) << m, 1 << max(m - 1, 0)
    positive = {0, 1, (1 << m) - 1, 1 << m, (1 << m) + 1, top - 1, top - (1 << m), top, top | 1, top | quiet}
    positive |= {top | quiet | 1, top | ((1 << m) - 1), ((1 << (e - 1)) - 1) << m}
    return np.array([p | sign for p in sorted(positive) for sign in (0, 1 << (e + m))], "u8")


# -------------------------------------------------------------------------------------------------- kinds of content
Rng = np.random.Generator


def _patterns(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return from_patterns(rng.integers(0, 2**64, n, dtype="u8"), stored)


def _special(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return from_patterns(rng.choice(specials(stored), n), stored)


def _real(values: Array, stored: StoredType) -> Array:
    """Return real numbers as the nearest values of a type, within its range."""
    if stored.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(values, "f4" if stored.bits < 64 else "f8").astype(stored.dtype))
    low, high = stored.range
    scaled = np.rint(np.asarray(values) * min(high, 100) / 2)
    return np.asarray(np.clip(scaled, max(low, -1000), min(high, 1000)).astype("i4").astype(stored.dtype))


def _normal(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return _real(rng.normal(0, 0.1, n), stored)


def _positive(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return _real(np.abs(rng.normal(1, 0.3, n)), stored)


def _pruned(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return _real(np.where(rng.random(n) < 0.8, 0.0, rng.normal(0, 0.1, n)), stored)


def _pruned_with_signed_zeros(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return weights multiplied by a mask: the zeros of negative weights are negative."""
    return _real(rng.normal(0, 0.1, n) * (rng.random(n) < 0.2), stored)


def _clustered(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    centres = np.append(rng.normal(0, 0.1, 15), 0.0)
    return _real(rng.choice(centres, n, p=np.append(np.full(15, 0.02), 0.7)), stored)


def _ternary(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    scale = rng.normal(0, 0.1)
    return _real(rng.choice([-scale, 0.0, scale], n), stored)


def _few_patterns(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return from_patterns(rng.choice(rng.integers(0, 2**64, 5, dtype="u8"), n), stored)


def _constant(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return from_patterns(np.full(n, rng.choice(specials(stored))), stored)


def _zeros(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    return from_patterns(np.zeros(n, "u8"), stored)


def _binary_steps(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return small multiples of a power of two, or of three times a power of two."""
    return _real(rng.integers(-40, 41, n) * (rng.choice([1.0, 3.0]) * 2.0 ** rng.integers(-20, 2)), stored)


def _grid(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return dequantized int8 or int4 values with one scale, sometimes with a zero point."""
    bound = rng.choice([7, 127])
    levels = rng.integers(-bound, bound + 1, n) + rng.choice([0, 0, 11])
    return _scaled(levels, np.float64(abs(rng.normal(0, 0.01)) + 1e-4), stored)


def _grid_by_channel(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    levels = rng.integers(-127, 128, n)
    if not n:
        return _scaled(levels, np.float64(0.01), stored)
    axis = int(rng.choice([0, len(n) - 1]))
    scales = np.abs(rng.normal(0, 0.01, [extent if k == axis else 1 for k, extent in enumerate(n)])) + 1e-4
    return _scaled(levels, scales, stored)


def _scaled(levels: Array, scale: Array | np.float64, stored: StoredType) -> Array:
    real = "f8" if stored.bits == 64 else "f4"
    return _real(np.asarray(np.asarray(levels).astype(real) * np.asarray(scale).astype(real)), stored)


def _narrower(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return values converted from a narrower type: low bits are zero, in all rows or in some."""
    kept = 7 if stored.mantissa < 23 else 10
    bits = patterns(_normal(rng, n, stored)).astype("u8")
    if stored.mantissa > kept:
        mask = np.uint64(2**64 - (1 << (stored.mantissa - kept)))
        some = rng.random(n[:1] + (1,) * (len(n) - 1)) < rng.choice([0.1, 0.9, 2.0])
        bits = np.where(some, bits & mask, bits)
    return from_patterns(bits, stored)


def _far_away(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return integers in a small range that is not near 0, or in a range slightly wider than 32 bits."""
    low, high = stored.range if stored.kind != "f" else (0, (1 << stored.bits) - 1)
    width = min(high - low, int(rng.choice([9, 1000, (1 << 32) - 1, (1 << 32) + 5])))
    base = int(rng.integers(0, high - low - width + 1, dtype="u8", endpoint=False)) + low
    values = (rng.integers(0, width, n, dtype="u8", endpoint=True).astype(object) + base) & (2**64 - 1)
    return from_patterns(np.asarray(values, "u8"), stored)


def _counting(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return all patterns of a type in order."""
    return from_patterns(np.arange(prod(n), dtype="u8").reshape(n), stored)


def _one_odd(rng: Rng, n: tuple[int, ...], stored: StoredType) -> Array:
    """Return equal values except one hostile value."""
    bits = patterns(_clustered(rng, n, stored)).astype("u8").reshape(-1)
    if bits.size:
        bits[rng.integers(bits.size)] = rng.choice(specials(stored))
    return from_patterns(bits.reshape(n), stored)


Kind = Callable[[Rng, tuple[int, ...], StoredType], Array]
KINDS: dict[str, Kind] = {
    kind.__name__.strip("_"): kind
    for kind in (
        _patterns,
        _special,
        _normal,
        _positive,
        _pruned,
        _pruned_with_signed_zeros,
        _clustered,
        _ternary,
        _few_patterns,
        _constant,
        _zeros,
        _binary_steps,
        _grid,
        _grid_by_channel,
        _narrower,
        _far_away,
        _counting,
        _one_odd,
    )
}


def made(kind: str, shape: tuple[int, ...], type_name: str, seed: int = 0) -> Array:
    """Return an array, always the same one for the same arguments."""
    array = KINDS[kind](np.random.default_rng(seed), shape, STORED_TYPES[type_name])
    assert (array.dtype.name, array.shape) == (type_name, shape)
    return array


def in_memory(array: Array, layout: str) -> Array:
    """Return the same array with another memory layout."""
    if layout == "big-endian":
        try:
            return array.astype(array.dtype.newbyteorder(">"))
        except (TypeError, ValueError):  # types of ml_dtypes have no byte order
            return array
    if layout == "columns first":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1] if array.ndim else array
    if layout == "every other":
        wide = np.zeros((*array.shape, 2), array.dtype)
        wide[..., 0] = array
        return np.asarray(wide[..., 0])
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


LAYOUTS = ("plain", "big-endian", "columns first", "reversed", "every other", "read-only")


@st.composite
def arrays(draw: st.DrawFn, types: tuple[str, ...] = tuple(STORED_TYPES), shapes: object = None) -> Array:
    """Draw an array of one of the types."""
    shape = draw(st.sampled_from(SHAPES if shapes is None else shapes))  # type: ignore[call-overload]
    type_name = draw(st.sampled_from(types))
    array = made(draw(st.sampled_from(list(KINDS))), shape, type_name, draw(st.integers(0, 2**16)))
    return in_memory(array, draw(st.sampled_from(LAYOUTS)))


#: Names for which software may have special cases.
NAMES = ("w", "w#bits", "w##bits", "layer.0/weight", 'ä "quoted" \\ \n', "名", "", " ", "#bits", "{}")


@st.composite
def models(draw: st.DrawFn, types: tuple[str, ...] = tuple(STORED_TYPES), most: int = 4) -> dict[str, Array]:
    """Draw one to four arrays; sometimes a later one is tied to an earlier one."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=most, unique=True))
    model: dict[str, Array] = {}
    for name in names:
        if model and draw(st.integers(0, 5)) == 0:
            model[name] = model[draw(st.sampled_from(list(model)))]
        else:
            model[name] = draw(arrays(types))
    return model
