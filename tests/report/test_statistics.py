"""Tests of entropy and histograms of levels."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.encoder.tensor_report import BINS, TAIL, level_statistics


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-9, 9), min_size=1, max_size=300))
def test_against_counting(levels: list[int]) -> None:
    found = level_statistics(np.array(levels, np.int32))
    counts = Counter(levels)
    n = len(levels)
    assert found.entropy == pytest.approx(math.fsum(-c / n * math.log2(c / n) for c in counts.values()), abs=1e-9)
    assert math.copysign(1, found.entropy) == 1
    assert (found.zeros, found.distinct) == (counts[0], len(counts))
    assert (found.least, found.greatest) == (min(levels), max(levels))
    histogram = found.histogram
    assert len(histogram.counts) <= BINS
    assert histogram.below <= TAIL * n
    assert histogram.above <= TAIL * n
    end = histogram.first + histogram.width * len(histogram.counts)
    assert histogram.below == sum(level < histogram.first for level in levels)
    assert histogram.above == sum(level >= end for level in levels)
    for k, number in enumerate(histogram.counts):
        start = histogram.first + k * histogram.width
        assert number == sum(start <= level < start + histogram.width for level in levels)


def test_outliers_do_not_flatten_a_histogram() -> None:
    levels = np.arange(-10, 10, dtype=np.int32).repeat(1000)
    levels[0], levels[-1] = -(1 << 30), 1 << 30
    histogram = level_statistics(levels).histogram
    assert (histogram.first, histogram.width, len(histogram.counts)) == (-10, 1, 20)
    assert (histogram.below, histogram.above) == (1, 1)
