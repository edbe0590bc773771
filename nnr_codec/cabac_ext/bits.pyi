"""Bit patterns to levels and packed fields, and back: the loops of nnr_codec.sideinfo.codes, not part of the standard.

Patterns and levels are of shape (n,), in C order. A stream is the bytes of fields that follow one another, the first
one in the lowest bits of the first byte, and zeros to the end of the last byte. All functions release the GIL, write
into what they are given, and raise ValueError when lengths do not fit; join functions raise ElementError for values
that no split function gives.
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
    """Write `pivot` minus the bits from `shift` to below the sign as levels, and fields of the sign and the bits from
    `zeros` to `shift`.

    With one of the `holes` +0.0 gets level 0 and no field, with two -0.0 gets level 1 as well; levels from 0 on are as
    many more. ValueError when a level exceeds 32 bits, or a sign is set in spite of `unsigned`.
    """

def join_floats(
    levels: Levels, stream: Bytes, patterns: Patterns, *, shift: int, pivot: int, holes: int, unsigned: bool, zeros: int
) -> None:
    """Write the patterns, with the bits below `zeros` as 0; ElementError when a level stands for none."""

def split_low(patterns: Patterns, levels: Levels, zero_rows: Bytes, stream: Bytes, *, holes: int, zeros: int) -> None:
    """Write the bits below `zeros` of each pattern as fields, except where the level is one of the `holes`.

    Rows with a `zero_rows` that is not 0 have no fields: ValueError when such a bit is set in them.
    """

def join_low(levels: Levels, zero_rows: Bytes, stream: Bytes, patterns: Patterns, *, holes: int, zeros: int) -> None:
    """Add the bits below `zeros` to the patterns."""

def count_kept(items: Patterns, zero_rows: Bytes, mask: int) -> int:
    """Return the number of patterns or levels with bits of the mask, in rows with a `zero_rows` of 0."""

def split_integers(patterns: Patterns, levels: Levels, stream: Bytes, *, least: int, origin: int, low: int) -> None:
    """Write each integer less the base as level and a field of its `low` bits.

    `least` is the least integer of the type modulo 2**64, `origin` the base counted from it. The caller sees to it that
    every level has 32 bits.
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
    """Write the integers; ElementError outside of `first` and `last`, which are levels with their fields."""
