"""Comparison of narrow floats, which numpy lacks, with ml_dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from nnr_codec.dtypes import STORED_TYPES, StoredType
from nnr_codec.sideinfo.narrow import float32_of, patterns_of

NARROW = [stored for stored in STORED_TYPES.values() if stored.kind == "f" and not stored.is_numpys]


@pytest.mark.parametrize("stored", NARROW, ids=lambda stored: stored.name)
def test_values_of_all_patterns(stored: StoredType) -> None:
    patterns = np.arange(1 << stored.bits).astype(stored.pattern)
    got, want = float32_of(stored, patterns), patterns.view(stored.dtype).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("stored", NARROW, ids=lambda stored: stored.name)
def test_nearest_patterns(stored: StoredType) -> None:
    """The inputs are all values, the middles between them, their neighbours, and random numbers."""
    values = float32_of(stored, np.arange(1 << stored.bits).astype(stored.pattern))
    values = np.unique(values[np.isfinite(values)]).astype(np.float64)
    beyond = np.array([2 * values[-1] - values[-2], 1e38, np.inf])
    values = np.concatenate([-beyond, values, beyond])
    with np.errstate(over="ignore", invalid="ignore"):
        points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
        points = np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf), [-0.0]])
        random = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
        points = np.concatenate([points, random]).astype(np.float32)
        points = points[~np.isnan(points)]
        got, want = patterns_of(stored, points), points.astype(stored.dtype)
    finite = np.isfinite(want.astype(np.float32))
    np.testing.assert_array_equal(got[finite], want.view(stored.pattern)[finite])
    assert not np.isfinite(float32_of(stored, got[~finite])).any()
    assert got.dtype == stored.pattern and not finite.all()
