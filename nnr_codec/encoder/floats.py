"""Any floats: their exponents coded, the rest of their bits as they are, and how many there are of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sideinfo.record import FloatCode
from .distinct import CHUNK, chunks, entropy_bits
from .plan import Subject

#: Bits of the mantissa that stand in the levels, where there are as many.
MANTISSA = 1
#: cabac_unary_length_minus1 of exponents.
UNARY = 30


@dataclass(frozen=True)
class FloatChoice:
    """A code of floats, and the bits of both units' contents."""

    code: FloatCode
    bits: float


def float_code(subject: Subject) -> FloatChoice | None:
    """The code for a tensor of floats; None where it would leave no bits to the other unit, or there is no such."""
    stored, patterns, bits_id = subject.stored, subject.patterns, subject.bits_id
    if bits_id is None:
        return None
    mantissa = min(MANTISSA, stored.mantissa)
    counts, positive_zeros, unsigned = _histogram(subject, mantissa)
    kept = len(patterns) - positive_zeros
    zeros, rows, lower_bits = _low_zeros(subject, stored.mantissa - mantissa)
    width = int(not unsigned) + stored.mantissa - mantissa - zeros
    if not kept or width + zeros * (rows is not None) == 0:
        return None
    with_hole = counts.copy()
    with_hole[0] -= positive_zeros
    hole = False
    bits = entropy_bits(counts) + len(patterns) * width + lower_bits
    if positive_zeros:
        share = kept / len(patterns)
        other = entropy_bits(np.append(with_hole, positive_zeros)) + kept * width + share * lower_bits
        hole = other < bits
        bits = min(bits, other)
    pivot = int((with_hole if hole else counts).argmax())
    code = FloatCode(bits_id, pivot, mantissa, hole, unsigned, zeros, rows)
    return FloatChoice(code, bits)


def _histogram(subject: Subject, mantissa: int) -> tuple[npt.NDArray[np.int64], int, bool]:
    """How often each number of exponent and first mantissa bits is there; the +0.0; whether there is no sign."""
    stored = subject.stored
    shift = stored.mantissa - mantissa
    counts = np.zeros(1 << (stored.exponent + mantissa), np.int64)
    positive_zeros, unsigned = 0, True
    for part in chunks(subject.patterns):
        tops = (part >> shift).astype(np.int64)
        both = np.bincount(tops, minlength=2 * len(counts))
        unsigned &= not both[len(counts) :].any()
        counts += both[: len(counts)] + both[len(counts) :]
        positive_zeros += int(len(part) - np.count_nonzero(part))
    return counts, positive_zeros, unsigned


def _low_zeros(subject: Subject, most: int) -> tuple[int, bytes | None, float]:
    """How many low bits of the mantissa are 0 in which rows (None: all), and the bits that remain below."""
    stored = subject.stored
    rows = subject.dims[0]
    per_row = len(subject.patterns) // rows
    patterns = subject.patterns.reshape(rows, per_row)
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
    having = counts[::-1].cumsum()[::-1]  # rows with at least so many zeros
    saved: npt.NDArray[Any] = np.arange(most + 1) * having * per_row - 1.2 * rows
    best = int(saved.argmax())
    if saved[best] <= everywhere * rows * per_row:
        return everywhere, None, 0.0
    marked = trailing >= best
    return best, np.packbits(marked).tobytes(), float(best * per_row * (rows - int(marked.sum())))
