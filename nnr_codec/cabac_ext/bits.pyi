"""Conversion of bit patterns to levels and packed fields, and back: loops of nnr_codec.sideinfo.codes.

The conversion is our own and not part of the standard. It splits each number of a tensor into a level, which the
arithmetic coder compresses, and a field of low bits, which is stored without compression.

`patterns` are the numbers' bit patterns (uint8, uint16, uint32 or uint64) and `levels` are int32; both have shape (n,)
and are C-contiguous. `stream` is uint8 and has consecutive fields, the first one in the lowest bits of the first byte;
zero bits complete the last byte. `zero_rows` is uint8 of shape (rows,), and not 0 for rows whose numbers have no field.

All functions write into the arrays that are passed to them, and release the GIL. All raise ValueError if array lengths
do not fit each other or a bit position is outside the type. The `join` functions raise ElementError for levels or
fields that no `split` function produces.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Patterns = npt.NDArray[np.unsignedinteger[Any]]
Levels = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

def split_floats(
    patterns: Patterns, levels: Levels, stream: Bytes, *, shift: int, pivot: int, holes: int, unsigned: bool, zeros: int
) -> None:
    """Split floats: a level for the high bits of each magnitude, and a field for the mantissa bits below and the sign.

    The level is `pivot` minus the magnitude bits from `shift` up. The field has the bits from `zeros` to `shift` - 1
    and, above them, the sign bit.

    Parameters
    ----------
    patterns : ndarray of unsigned int, shape (n,)
    levels : ndarray of int32, shape (n,)
        Output.
    stream : ndarray of uint8
        Output; as long as the fields require.
    shift : int
        Lowest bit of the level.
    pivot : int
        Magnitude bits that have level 0.
    holes : int
        Levels from 0 on that are reserved for zeros without a field. 1: level 0 is +0.0. 2: also, level 1 is -0.0. All
        other levels of at least 0 are larger by `holes`.
    unsigned : bool
        Fields have no sign bit.
    zeros : int
        Lowest bit of the field; lower bits are ignored.

    Raises
    ------
    ValueError
        If a level exceeds 32 bits, or a sign bit is set although `unsigned` is true.
    """

def join_floats(
    levels: Levels, stream: Bytes, patterns: Patterns, *, shift: int, pivot: int, holes: int, unsigned: bool, zeros: int
) -> None:
    """Restore the patterns that :func:`split_floats` has split; the bits below `zeros` become 0.

    Raises ElementError if a level is outside the exponents of the type.
    """

def split_low(patterns: Patterns, levels: Levels, zero_rows: Bytes, stream: Bytes, *, holes: int, zeros: int) -> None:
    """Write the bits below `zeros` of each pattern as fields, except for patterns whose level is below `holes`.

    Raises ValueError if such a bit is set in a row that `zero_rows` marks.
    """

def join_low(levels: Levels, zero_rows: Bytes, stream: Bytes, patterns: Patterns, *, holes: int, zeros: int) -> None:
    """Restore the bits below `zeros`, which are 0 in `patterns`, from the fields of :func:`split_low`."""

def count_kept(items: Patterns, zero_rows: Bytes, mask: int) -> int:
    """Return the number of items with at least one bit of `mask`, in rows that `zero_rows` does not mark."""

def split_integers(patterns: Patterns, levels: Levels, stream: Bytes, *, least: int, origin: int, low: int) -> None:
    """Split integers: subtract a base, write the `low` lowest bits as a field and the other bits as the level.

    `least` is the smallest integer of the type modulo 2**64, and `origin` is the base minus this integer. The caller
    ensures that all levels fit 32 bits.
    """

def join_integers(
    levels: Levels,
    stream: Bytes,
    patterns: Patterns,
    *,
    least: int,
    origin: int,
    low: int,
    first: tuple[int, int],
    last: tuple[int, int],
) -> None:
    """Restore the integers that :func:`split_integers` has split.

    `first` and `last` are level and field of the smallest and the largest integer of the type. Raises ElementError for
    an integer outside them.
    """

def count_patterns(patterns: Patterns, shift: int, counts: npt.NDArray[np.int64]) -> None:
    """Add the counts of patterns with each value of the bits from `shift` up.

    `counts` has one column for each value, and rows whose sum is the result: the first row has the patterns with even
    index, and the last one those with odd index. Raises ValueError for other columns.
    """

def look_up(patterns: Patterns, table: Levels, levels: Levels) -> None:
    """Write the entry of `table` for each pattern of 8 or 16 bits. Raise ValueError if an entry is -2**31."""

def equal(one: Bytes, other: Bytes) -> bool:
    """Return whether all bytes are equal."""

def subtract_patterns(before: Patterns, after: Patterns, differences: Levels, *, low: int, width: int) -> None:
    """Write the steps from each float to the new one, in the order of all patterns, modulo the number of patterns.

    Patterns have 16 or 32 bits. With a `width`, the differences are sorted by `width` bits of `before`, at most 8, from
    bit `low` up; floats with equal bits remain in their order.
    """

def add_patterns(before: Patterns, differences: Levels, after: Patterns, *, low: int, width: int) -> None:
    """Restore the new patterns from the differences of :func:`subtract_patterns`, which may be any integers."""

def costs_of_change(before: Patterns, after: Patterns, *, low: int, width: int) -> tuple[int, int, int]:
    """Estimate the cost of a tensor in 2**-15 bits: of its differences in their order, of its differences sorted as by
    :func:`subtract_patterns`, and of its floats without ``before``.

    The cost of 256 consecutive differences is the entropy of their zeros and, for each other difference, a sign and the
    logarithm of the mean magnitude; these costs are added. The cost of floats is the entropy of their signs and
    exponents (`width` bits), and `low` bits of each mantissa. A seventh of the floats is used if there are more than
    65,536. Every machine computes the same result.
    """
