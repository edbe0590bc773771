"""Floats that somebody made of small integers by a scale, one for the tensor or one for each channel."""

from __future__ import annotations

from collections.abc import Iterator
from math import remainder
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import StoredType
from ..sideinfo.codes import split
from ..sideinfo.record import GridCode, TensorRecord
from .distinct import distinct, sample
from .plan import Subject

#: Integers that quantizers give the largest magnitude.
LARGEST = (127, 128, 7, 8, 255, 15, 3, 1, 32767, 32768)
#: Channels that are tried before all are; distinct magnitudes of which a divisor is looked for.
CHANNELS, MAGNITUDES = 4, 64
#: Of the largest integer of a grid, and of one that is none by chance: the values of narrow types are all on some.
MOST, CERTAIN = 1 << 16, 255

Doubles = npt.NDArray[np.float64]


def grid_codes(subject: Subject) -> Iterator[GridCode]:
    """The codes of uniform grids on which all values lie bit for bit: of the tensor, of each row, of each column."""
    values = subject.floats
    work = np.dtype(np.float64 if subject.stored.name == "float64" else np.float32)
    magnitudes = _magnitudes(subject, work)
    scale = None if magnitudes is None else _scale(magnitudes, subject.stored, work)
    if scale is not None and magnitudes is not None:
        code = GridCode(np.array([scale], work.newbyteorder("<")).tobytes())
        if _fits(subject, code):
            yield code
            if magnitudes.max() <= CERTAIN * scale:
                return
    for axis in sorted({0, values.ndim - 1}) if values.ndim > 1 else ():
        if values.size < 4 * values.shape[axis]:
            continue
        channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        scales = _scales(channels, subject, work)
        if scales is not None:
            code = GridCode(scales.astype(work.newbyteorder("<")).tobytes(), axis)
            if _fits(subject, code):
                yield code


def _magnitudes(subject: Subject, work: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The distinct values; None where even those of a sample are on no grid, or there are too many for one."""
    stored, found = subject.stored, subject.distinct
    if found is None and _scale(sample(subject.floats.reshape(-1)), stored, work) is not None:
        found = distinct(subject.patterns, stored, 2 * MOST + 1, share=1)
    return None if found is None else np.abs(found.patterns.view(stored.dtype).astype(np.float64))


def _fits(subject: Subject, code: GridCode) -> bool:
    try:
        split(TensorRecord(subject.stored.name, subject.array.shape, code), subject.array)
    except ValueError:
        return False
    return True


def _scales(channels: npt.NDArray[Any], subject: Subject, work: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The scale of each channel; None where one has none."""
    tried = [_scale(channel, subject.stored, work) for channel in channels[:: max(len(channels) // CHANNELS, 1)]]
    if None in tried:
        return None
    scales = [_scale(channel, subject.stored, work) for channel in channels]
    return None if None in scales else np.array(scales, work)


def _scale(values: npt.NDArray[Any], stored: StoredType, work: np.dtype[Any]) -> Any:
    """The scale of which all of these values are multiples, each rounded once; None where none is found."""
    magnitudes = np.unique(np.abs(values)).astype(np.float64)
    magnitudes = magnitudes[magnitudes != 0]
    if not len(magnitudes):
        return work.type(1)
    if len(magnitudes) > MOST or not np.isfinite(magnitudes[-1]):
        return None
    error = _half_spacing(magnitudes, stored)
    for estimate in _estimates(magnitudes, error):
        scale = _refined(magnitudes, error, estimate, work, stored)
        if scale is not None:
            return scale
    return None


def _half_spacing(magnitudes: Doubles, stored: StoredType) -> Doubles:
    """Half the distance to the next number of the type: what a rounded product may be off."""
    exponents = np.maximum(np.frexp(magnitudes)[1], 3 - (1 << (stored.exponent - 1)))
    halves: Doubles = np.ldexp(1.0, exponents - 2 - stored.mantissa)
    return halves


def _estimates(magnitudes: Doubles, error: Doubles) -> Iterator[float]:
    divisor = _divisor(magnitudes, error)
    if divisor:
        yield divisor
    largest = float(magnitudes[-1])
    for integer in LARGEST:
        if len(magnitudes) <= integer:
            yield largest / integer


def _divisor(magnitudes: Doubles, error: Doubles) -> float:
    """About the greatest number of which all are multiples; 0 where that is lost in rounding errors."""
    step = max(len(magnitudes) // MAGNITUDES, 1)
    found, unsure = float(magnitudes[0]), float(error[0])
    for value, off in zip(magnitudes[::step].tolist(), error[::step].tolist(), strict=True):
        rest = abs(remainder(value, found))
        blur = 2 * (off + value / found * unsure)
        while rest > blur:  # Euclid's algorithm, until what is left is nothing but rounding
            found, rest = rest, abs(remainder(found, rest))
        if found < 8 * blur or value > MOST * found:
            return 0.0
        times = round(value / found)
        found, unsure = value / times, off / times
    return found


def _refined(magnitudes: Doubles, error: Doubles, estimate: float, work: np.dtype[Any], stored: StoredType) -> Any:
    """The number of type ``work`` near an estimate whose multiples, rounded, are the magnitudes; None if there is none.

    Larger magnitudes tell it ever more precisely: each bounds it to where its own multiple rounds to it.
    """
    low, high = 0.0, float("inf")
    start = 0
    while start < len(magnitudes):
        stop = int(np.searchsorted(magnitudes, 4 * magnitudes[start], side="right"))
        integers = np.rint(magnitudes[start:stop] / estimate)
        if integers[0] < 1 or integers[-1] > MOST:
            return None
        low = max(low, float(((magnitudes[start:stop] - error[start:stop]) / integers).max()))
        high = min(high, float(((magnitudes[start:stop] + error[start:stop]) / integers).min()))
        if low > high * (1 + 2.0**-40):
            return None
        estimate = min(max(estimate, low), high)
        start = stop
    middle = work.type((low + high) / 2)
    integers = np.rint(magnitudes / float(middle)).astype(work)
    for scale in (middle, np.nextafter(middle, work.type(0)), np.nextafter(middle, work.type(np.inf))):
        if np.array_equal((integers * scale).astype(stored.dtype).astype(np.float64), magnitudes):
            return scale
    return None
