"""Lossless codes of side information (docs/reference/side-information.md).

* integers: a base, and low bits in a separate unit, if the values themselves are not the best levels.
* floats: exponents are coded, and the other bits are stored.
* grids: floats that are small integers times a scale, one for the tensor or one for each channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..dtypes import StoredType
from ..sideinfo.narrow import as_floats
from ..sideinfo.record import FloatCode, GridCode, IntegerCode
from .distinct_values import CHUNK, SAMPLE, count_patterns, distinct, entropy_bits, sample
from .facts import TensorFacts

Floats = npt.NDArray[np.floating[Any]]
Doubles = npt.NDArray[np.float64]

#: Bits of the levels if low bits are stored separately.
HIGH_BITS = 6
#: Bits by which the cost of an adaptive bin exceeds its entropy, and the magnitude from which levels share bins.
BIN_SURPLUS, SHARED = 0.006, 16
#: Bytes that low bits or another order of a palette must save: about a unit and a record that is not deflated.
LEAST_SAVING = 128
#: Mantissa bits in the levels, in addition to the exponent; the others are stored.
MANTISSA = 1
#: cabac_unary_length_minus1 of exponents, whose levels have a wide range.
EXPONENT_UNARY = 30
#: Usual integers of the largest magnitude in quantizers. They are tried for mantissas of fewer than SHORT bits, in
#: which rounding hides divisors.
LARGEST, SHORT = (127, 128, 7, 8, 255, 15, 3, 1, 32767, 32768), 16
#: Channels of a first sample; magnitudes of each channel that the search for a common divisor uses.
CHANNELS, MAGNITUDES = 4, 64
#: Smallest magnitudes of each channel, which are compared with multiples of a scale before the others.
SMALLEST = 64
#: Largest integer of a grid, and largest one that is not a coincidence: all values of narrow types are on some grid.
MOST, CERTAIN = 1 << 16, 255


# ----------------------------------------------------------------------------------------------------------- integers
def integer_codes(facts: TensorFacts) -> Iterator[IntegerCode]:
    """Yield codes for a tensor of integers: levels relative to a base, and levels of the high bits."""
    low, high = facts.bounds
    levels, others = facts.part_id("levels"), facts.part_id("bits")
    width = (high - low).bit_length()
    if width <= 32:
        for base in sorted({low, low + (high - low + 1) // 2, _median(facts)} - {0}):
            if low - base >= -(1 << 31) and high - base < 1 << 31:
                yield IntegerCode(base, unit=levels)
        base, bits = _low_bits(facts, width)
        if bits:
            yield IntegerCode(base, bits, others, levels)
    for bits in sorted({width - 32, width - HIGH_BITS, 32 if width > 32 else 0}):
        if bits > 0:  # levels start at 0, or are centred on 0 if they need all of int32
            base = low if width - bits < 32 else low + (1 << (width - 1))
            yield IntegerCode(base, bits, others, levels)


def _low_bits(facts: TensorFacts, width: int) -> tuple[int, int]:
    """Return a base in the middle of the integers, and the number of low bits to store that needs the fewest bits.

    Near the middle of a wide distribution, low bits are uniform: stored, they take their entropy, and the bins that
    they replace take more.
    """
    found = facts.distinct
    if found is not None:
        values, counts = found.patterns.view(facts.array.dtype), found.counts
    else:
        values, counts = np.unique(sample(facts.array.reshape(-1)), return_counts=True)
    ends = counts.cumsum()
    base = int(values[np.searchsorted(ends, ends[-1] // 2, side="right")])
    above = np.array([int(value) - base for value in values.tolist()], np.int64)

    def cost(bits: int) -> float:
        levels = above >> bits
        sizes = np.abs(levels)
        equal = np.frexp(np.maximum(sizes - SHARED, 0) + 1.0)[1] - 1  # equiprobable bins of the Exp-Golomb code
        shared = np.where(equal, np.sign(levels) * (SHARED + equal), levels)
        starts = np.flatnonzero(np.diff(shared, prepend=shared[0] - 1))
        bins = 1 + (sizes > 0) + np.minimum(sizes, SHARED) + equal
        return entropy_bits(np.add.reduceat(counts, starts)) + float(counts @ (bits + equal + BIN_SURPLUS * bins))

    costs = [cost(bits) for bits in range(width + 1)]
    best = min(costs)
    return base, costs.index(best) if costs[0] - best > 8 * LEAST_SAVING else 0


def _median(facts: TensorFacts) -> int:
    some: list[int] = sorted(sample(facts.array.reshape(-1)).tolist())
    return some[len(some) // 2]


# ------------------------------------------------------------------------------------------------------------- floats
def float_code(facts: TensorFacts) -> tuple[float, FloatCode] | None:
    """Return the stored bits of a tensor of floats and its code; None if the code would store no bits."""
    stored, patterns, ids = facts.stored, facts.patterns, (facts.part_id("bits"), facts.part_id("levels"))
    mantissa = min(MANTISSA, stored.mantissa)
    by_sign, both_zeros = _exponent_histogram(facts, mantissa)
    zeros, rows, lower_bits = _low_zeros(facts, stored.mantissa - mantissa)
    choices = []
    for holes in range(3 if both_zeros[1] else 2 if both_zeros[0] else 1):
        empty, rest = both_zeros[:holes], by_sign.copy()
        rest[:holes, 0] -= empty
        unsigned, counts = not rest[1].any(), rest.sum(axis=0)
        kept = int(counts.sum())
        width = int(not unsigned) + stored.mantissa - mantissa - zeros
        if kept and width + zeros * (rows is not None):
            bits = entropy_bits(np.append(counts, empty)) + kept * width + kept / len(patterns) * lower_bits
            code = FloatCode(ids[0], int(counts.argmax()), mantissa, holes, unsigned, zeros, rows, ids[1])
            choices.append((bits, code))
    return min(choices, key=lambda choice: choice[0], default=None)


def _exponent_histogram(facts: TensorFacts, mantissa: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return counts of exponents with the first mantissa bits by sign, and counts of +0.0 and -0.0."""
    stored = facts.stored
    shift = stored.mantissa - mantissa
    counts = facts.pattern_counts
    if counts is not None:
        return counts.reshape(2, -1, 1 << shift).sum(axis=2), counts[:: len(counts) // 2].copy()
    by_sign = count_patterns(facts.patterns, shift).reshape(2, -1)
    zeros = (facts.patterns.dtype.type(sign << (stored.bits - 1)) for sign in range(2))
    found = [by_sign[sign, 0] and np.count_nonzero(facts.patterns == zero) for sign, zero in enumerate(zeros)]
    return by_sign, np.array(found, np.int64)


def _low_zeros(facts: TensorFacts, most: int) -> tuple[int, bytes | None, float]:
    """Return the number of low mantissa bits that are 0, the rows with these zeros (None: all), and the other bits."""
    stored = facts.stored
    rows = facts.dims[0]
    per_row = len(facts.patterns) // rows
    patterns = facts.patterns.reshape(rows, per_row)
    trailing = np.empty(rows, np.uint8)
    counts = np.zeros(most + 1, np.int64)
    together = max(CHUNK // per_row, 1)
    for start in range(0, rows, together):
        used = np.bitwise_or.reduce(patterns[start : start + together], axis=1)
        used |= used.dtype.type(1 << stored.mantissa)
        lowest = used & (~used + used.dtype.type(1))
        found = np.minimum(np.frexp(lowest.astype(np.float64))[1] - 1, most)
        trailing[start : start + together] = found
        counts += np.bincount(found, minlength=most + 1)
    everywhere = int(counts.nonzero()[0][0])
    having = counts[::-1].cumsum()[::-1]  # number of rows with at least k zeros
    saved: npt.NDArray[Any] = np.arange(most + 1) * having * per_row - 1.2 * rows
    best = int(saved.argmax())
    if saved[best] <= everywhere * rows * per_row:
        return everywhere, None, 0.0
    marked = trailing >= best
    return best, np.packbits(marked).tobytes(), float(best * per_row * (rows - int(marked.sum())))


# -------------------------------------------------------------------------------------------------------------- grids
def grid_codes(facts: TensorFacts) -> Iterator[GridCode]:
    """Yield the codes of uniform grids that contain all magnitudes: of the tensor, of each row, of each column."""
    values, stored = facts.array, facts.stored
    work = np.dtype("<f8" if stored.name == "float64" else "<f4")
    magnitudes = _of_tensor(facts, work)
    scale = None if magnitudes is None else _scales(magnitudes, stored, work)
    if scale is not None and magnitudes is not None:
        yield GridCode(scale.tobytes(), unit=facts.part_id("levels"))
        if magnitudes.max() <= CERTAIN * scale[0]:
            return
    for axis in sorted({0, values.ndim - 1}) if values.ndim > 1 else ():
        if values.size >= 4 * values.shape[axis]:
            scales = _of_channels(np.moveaxis(values, axis, 0), stored, work)
            if scales is not None:
                yield GridCode(scales.tobytes(), axis, facts.part_id("levels"))


def _of_tensor(facts: TensorFacts, work: np.dtype[Any]) -> Doubles | None:
    """Return the distinct magnitudes; None if a sample is on no grid, or if they are too many for one."""
    stored, found = facts.stored, facts.distinct
    if found is None and _scales(_magnitudes(stored, sample(facts.array.reshape(-1))[None]), stored, work) is not None:
        found = distinct(facts.patterns, stored, 2 * MOST + 1, 1, facts.pattern_counts)
    return None if found is None else _magnitudes(stored, found.patterns.view(stored.dtype)[None])


def _of_channels(channels: npt.NDArray[Any], stored: StoredType, work: np.dtype[Any]) -> Floats | None:
    """Return the scale of each index of the first dimension; None if any index has no scale."""
    some = channels[:: len(channels) // CHANNELS | 1]
    some = some.reshape(len(some), -1)
    if _scales(_magnitudes(stored, some[:, :: some.shape[1] // SAMPLE | 1]), stored, work) is None:
        return None
    scales = np.empty(len(channels), work)
    together = max(CHUNK * len(channels) // channels.size, 1)
    for start in range(0, len(channels), together):
        part = channels[start : start + together]
        found = _scales(_magnitudes(stored, part.reshape(len(part), -1)), stored, work)
        if found is None:
            return None
        scales[start : start + together] = found
    return scales


def _magnitudes(stored: StoredType, values: npt.NDArray[Any]) -> Doubles:
    """Return magnitudes of each channel in ascending order, shape (channels, n); without repetition for one channel."""
    sizes = np.abs(as_floats(stored, values))
    return (np.sort(sizes, axis=1) if len(sizes) > 1 else np.unique(sizes)[None]).astype(np.float64, order="C")


def _scales(magnitudes: Doubles, stored: StoredType, work: np.dtype[Any]) -> Floats | None:
    """Return the scale of each channel whose rounded multiples are its magnitudes; None if a channel has no scale."""
    largest = magnitudes[:, -1]
    counts = np.count_nonzero(np.diff(magnitudes, axis=1, prepend=0), axis=1)
    if counts.max() > MOST or not np.isfinite(largest).all():
        return None
    # Largest error of a rounded product: half the distance to the next number of the type; less below powers of two.
    fractions, exponents = np.frexp(magnitudes)
    subnormal = 3 - (1 << (stored.exponent - 1))
    error: Doubles = np.ldexp(1.0, np.maximum(exponents, subnormal) - 2 - stored.mantissa)
    least = magnitudes - np.where((fractions == 0.5) & (exponents > subnormal), error / 2, error)
    scales: Floats = (largest == 0).astype(work)
    fewest = counts.min()
    for integer in (0, *(k for k in LARGEST if k >= fewest)) if stored.mantissa < SHORT else (0,):
        estimates = np.where(counts <= integer, largest / integer, 0) if integer else _divisors(magnitudes, error)
        left = ((scales == 0) & (estimates > 0)).nonzero()[0]
        if len(left):
            scales[left] = _refined(magnitudes[left], least[left], error[left], estimates[left], stored, work)
        if scales.all():
            return scales
    return None


def _divisors(magnitudes: Doubles, error: Doubles) -> Doubles:
    """Estimate the greatest common divisor of the magnitudes of each channel; 0 if rounding errors hide it."""
    width = magnitudes.shape[1]
    columns = np.linspace(0, width - 1, min(width, MAGNITUDES)).astype(np.int64)
    found = np.empty(len(magnitudes))
    quantizer.divisors(magnitudes, error, columns, MOST, found)
    return found


def _refined(
    magnitudes: Doubles, least: Doubles, error: Doubles, estimates: Doubles, stored: StoredType, work: np.dtype[Any]
) -> Floats:
    """Return scales near the estimates whose rounded multiples are the magnitudes of each channel; 0 without one.

    Each magnitude of at least ``least`` limits the scale to the interval in which its multiple rounds to the magnitude;
    larger magnitudes give narrower intervals.
    """
    mosts = np.array((15, 63, 255, MOST) if stored.mantissa < SHORT else (MOST,), np.float64)
    quantizer.narrowed(magnitudes, least, error, estimates, mosts)
    middle = estimates.astype(work)
    scales: Floats = np.zeros_like(middle)
    for near in (middle, np.nextafter(middle, work.type(0)), np.nextafter(middle, work.type(np.inf))):
        fits = _are_multiples(magnitudes[:, :SMALLEST], near, stored)
        if fits.any():
            fits &= _are_multiples(magnitudes, near, stored)
        scales = np.where((scales == 0) & fits, near, scales)
        if scales.all():
            break
    return scales


def _are_multiples(magnitudes: Doubles, scales: Floats, stored: StoredType) -> npt.NDArray[np.bool_]:
    """Return whether the magnitudes of each channel are rounded products of its scale and integers up to MOST."""
    factors = scales[:, None]
    integers = np.rint(magnitudes / factors).astype(scales.dtype)
    products = (integers * factors).astype(stored.dtype).astype(np.float64)
    found: npt.NDArray[np.bool_] = (products == magnitudes).all(axis=1) & (integers[:, -1] <= MOST)
    return found
