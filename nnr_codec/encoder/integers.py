"""Integers, and the base and low bits by which they are coded when their own values are not the best levels."""

from __future__ import annotations

from collections.abc import Iterator

from ..sideinfo.record import IntegerCode
from .distinct import sample
from .plan import Subject

#: Bits of the levels when lower ones are kept apart.
HIGH_BITS = 6


def integer_codes(subject: Subject) -> Iterator[IntegerCode]:
    """Codes for a tensor of integers: levels around some base, and levels of what is above some low bits."""
    low, high = subject.bounds
    levels, others = subject.part_id("levels"), subject.part_id("bits")
    width = (high - low).bit_length()
    if width <= 32:
        for base in sorted({low, low + (high - low + 1) // 2, _median(subject)} - {0}):
            if low - base >= -(1 << 31) and high - base < 1 << 31:
                yield IntegerCode(base, unit=levels)
    for bits in sorted({width - 32, width - HIGH_BITS, 32 if width > 32 else 0}):
        if bits > 0:  # levels from 0 on, or around it when they take all of int32
            base = low if width - bits < 32 else low + (1 << (width - 1))
            yield IntegerCode(base, bits, others, levels)


def _median(subject: Subject) -> int:
    some: list[int] = sorted(sample(subject.array.reshape(-1)).tolist())
    return some[len(some) // 2]
