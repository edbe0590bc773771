"""Distinct values of a tensor in order of value, with their counts; samples and chunks of flat arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import bits, quantizer
from ..dtypes import StoredType

#: Items of a first sample, and the share of distinct items above which the rest is not examined.
SAMPLE, SHARE = 16_384, 0.95
#: Items of a chunk: its temporary arrays take at most 2 MB.
CHUNK = 1 << 18
#: Counters up to which items with even and odd index have separate ones: increments of the same counter wait.
TWO_ROWS = 1 << 12

Patterns = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Distinct:
    """Distinct items of a tensor.

    Parameters
    ----------
    patterns : ndarray of unsigned integer, shape (k,)
        Bit patterns, ordered by their values, with NaN at the ends.
    counts : ndarray of int64, shape (k,)
    """

    patterns: Patterns
    counts: npt.NDArray[np.int64]

    @cached_property
    def bits(self) -> float:
        """Zero-order entropy of all items."""
        return entropy_bits(self.counts)

    @property
    def most_frequent(self) -> int:
        """Index of the first of the most frequent items."""
        return int(self.counts.argmax())


def distinct(
    patterns: Patterns,
    stored: StoredType,
    most: int,
    share: float = SHARE,
    counts: npt.NDArray[np.int64] | None = None,
) -> Distinct | None:
    """Return the distinct items; None if they are more than ``most``, or more than a ``share`` of a sample.

    ``counts`` is the result of :func:`count_patterns`, required for items of at most 16 bits. No sample is then needed.
    """
    if counts is not None:
        found = counts.nonzero()[0].astype(patterns.dtype)
        counts = counts[found]
    else:
        some = sample(patterns)
        if quantizer.count_distinct(some) > share * len(some):
            return None
        found, counts = patterns[:0], np.zeros(0, np.int64)
        for part in chunks(patterns):
            more, times = np.unique(part, return_counts=True)
            found, places = np.unique(np.concatenate([found, more]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, times])).astype(np.int64)
            if len(found) > most:
                return None
    if len(found) > most:
        return None
    order = np.argsort(_ranks(found, stored), kind="stable")
    return Distinct(found[order], counts[order])


def count_patterns(patterns: Patterns, shift: int = 0) -> npt.NDArray[np.int64]:
    """Return the number of items for each value of the bits from ``shift`` up; at most 32 bits."""
    columns = 1 << (8 * patterns.itemsize - shift)
    counts = np.zeros((2 if columns <= TWO_ROWS else 1, columns), np.int64)
    bits.count_patterns(patterns, shift, counts)
    found: npt.NDArray[np.int64] = counts.sum(axis=0)
    return found


def sample(items: npt.NDArray[Any], about: int = SAMPLE) -> npt.NDArray[Any]:
    """Return approximately ``about`` items, spread over a flat array; all items if they are fewer."""
    step: int = len(items) // about | 1
    return items[::step]


def chunks(items: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the items of a flat array, CHUNK at a time."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def entropy_bits(counts: npt.NDArray[Any]) -> float:
    """Return the total zero-order entropy of symbols with these counts, in bits."""
    counts = counts[counts > 0].astype(np.float64)
    total = float(counts.sum())
    return float(total * np.log2(total) - (counts * np.log2(counts)).sum()) if len(counts) > 1 else 0.0


def _ranks(patterns: Patterns, stored: StoredType) -> Patterns:
    """Return unsigned integers in the order of the values of patterns."""
    bits = 8 * stored.itemsize
    top = patterns.dtype.type(1 << (bits - 1))
    if stored.kind == "f":
        return np.where(patterns & top, ~patterns, patterns | top)
    return patterns ^ top if stored.kind == "i" else patterns
