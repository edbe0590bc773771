"""Lossless encoding for comparison with a lossy one: its options, and a lower bound of its size.

The bound of a tensor is 80 % of its collision entropy, which is at most its entropy: the logarithm of the number of
pairs of items, minus the logarithm of the number of pairs of equal items. It is the minimum of a strided sample, of
pairs in the same row, and of pairs in the same column, because grids may have a scale for each row or column. Zeros
count as 0 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import MODEL_GOALS, EncoderConfig
from ..dtypes import StoredType, stored_type
from ..model import Array
from .distinct_values import sample

Patterns = npt.NDArray[np.unsignedinteger[Any]]

#: Items of a sample, and the factor by which samples of sparse tensors may be larger.
ITEMS, TIMES = 512, 8
#: Items below which a bound requires that all are distinct; pairs of a sample below which the bound is 0.
FEWEST, PAIRS = 256, 128
#: Size in bytes up to which the bound is 0: unit and record entry are larger.
TINY = 32
#: Minimum bytes of a code for each bit of collision entropy: contexts can make codes shorter than the entropy.
SHARE = 0.8 / 8


def lossless(config: EncoderConfig, names: Iterable[str]) -> EncoderConfig:
    """Return the options with which these tensors are lossless, without goals of the whole model."""
    goals: dict[str, Any] = dict.fromkeys(MODEL_GOALS)
    plain = replace(config, **goals, fixed_point=None)
    return plain.overridden({name: {"exact": True} for name in names})


def least_bytes(array: Array) -> int:
    """Return a lower bound of the bytes of a losslessly coded tensor; 0 if unknown."""
    if array.nbytes <= TINY or (stored := stored_type(array.dtype)) is None or array.size < 2:
        return 0
    flat = array.reshape(-1).view(stored.pattern)
    if flat.size < FEWEST:
        is_distinct = len(set(flat.tolist())) == flat.size
        return int(SHARE * flat.size * log2(flat.size * (flat.size - 1) / 2)) if is_distinct else 0
    some = sample(flat, ITEMS)
    nonzero = len(some) - int(np.count_nonzero(_is_zero(some, stored)))
    items = min(ITEMS * len(some) // max(nonzero, 1), TIMES * ITEMS)
    samples = [sample(flat, items)[None]]
    if array.ndim > 1:
        for lines in (flat.reshape(array.shape[0], -1), flat.reshape(-1, array.shape[-1]).T):
            count = max(items // lines.shape[1], 1)
            start = (len(lines) - min(count, len(lines))) // 2
            samples.append(lines[start : start + count, :items])
    found = [bits for lines in samples if (bits := _bits(lines, stored)) is not None]
    return int(SHARE * nonzero / len(some) * array.size * min(found, default=0.0))


def _bits(lines: Patterns, stored: StoredType) -> float | None:
    """Return the collision entropy of the nonzero items in each line; None if they are too few."""
    ordered = np.sort(lines, axis=1)
    starts = np.ones(ordered.shape, bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.flatnonzero(starts)
    zero = _is_zero(ordered, stored)
    counts = np.append(first[1:], ordered.size) - first
    counts = counts[~zero.reshape(-1)[first]]
    kept = ordered.shape[1] - np.count_nonzero(zero, axis=1)
    pairs, equal = (int((n * (n - 1)).sum()) // 2 for n in (kept, counts))
    return round(log2(pairs / max(equal, 1)), 2) if pairs >= PAIRS else None  # rounded, so that all machines agree


def _is_zero(patterns: Patterns, stored: StoredType) -> npt.NDArray[np.bool_]:
    """Return a mask of the items that are 0 or -0.0."""
    sign = patterns.dtype.type(1 << (stored.bits - 1) if stored.kind == "f" else 0)
    found: npt.NDArray[np.bool_] = (patterns == 0) | (patterns == sign)
    return found
