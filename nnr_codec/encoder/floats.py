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
    """The code for a tensor of floats; None where it would leave no bits to the other unit."""
    stored, patterns, ids = subject.stored, subject.patterns, (subject.part_id("bits"), subject.part_id("levels"))
    mantissa = min(MANTISSA, stored.mantissa)
    by_sign, both_zeros = _histogram(subject, mantissa)
    zeros, rows, lower_bits = _low_zeros(subject, stored.mantissa - mantissa)
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
            choices.append(FloatChoice(code, bits))
    return min(choices, key=lambda choice: choice.bits, default=None)


def _histogram(subject: Subject, mantissa: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How often each number of exponent and first mantissa bits is there, by sign; +0.0 and -0.0."""
    stored = subject.stored
    shift, sign = stored.mantissa - mantissa, subject.patterns.dtype.type(1 << (stored.bits - 1))
    counts = np.zeros((2, 1 << (stored.exponent + mantissa)), np.int64)
    both_zeros = np.zeros(2, np.int64)
    for part in chunks(subject.patterns):
        counts += np.bincount((part >> shift).astype(np.int64), minlength=counts.size).reshape(2, -1)
        both_zeros += [len(part) - np.count_nonzero(part), np.count_nonzero(part == sign)]
    return counts, both_zeros


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
