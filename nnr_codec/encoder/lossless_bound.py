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

from ..cabac_ext.quantizer import collisions
from ..config import MODEL_GOALS, EncoderConfig
from ..dtypes import stored_type
from ..model import Array
from .distinct_values import sample

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
    sign = 1 << (stored.bits - 1) if stored.kind == "f" else 0
    some = sample(flat, ITEMS)[None]
    first = nonzero, *_ = collisions(some, sign)
    items = min(ITEMS * some.size // max(nonzero, 1), TIMES * ITEMS)
    found = [first if items == ITEMS else collisions(sample(flat, items)[None], sign)]
    if array.ndim > 1:
        for lines in (flat.reshape(array.shape[0], -1), flat.reshape(-1, array.shape[-1]).T):
            count = max(items // lines.shape[1], 1)
            start = (len(lines) - min(count, len(lines))) // 2
            found.append(collisions(lines[start : start + count, :items], sign))
    ratios = [pairs / max(equal, 1) for _, pairs, equal in found if pairs >= PAIRS]
    bits = round(log2(min(ratios)), 2) if ratios else 0.0  # rounded, so that all machines agree
    return int(SHARE * nonzero / some.size * array.size * bits)
