"""Importance of filters: the random walk over normalized filters, and its equilibrium."""

from __future__ import annotations

from math import frexp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnr_codec.encoder.reduce import graph_diffusion
from nnr_codec.encoder.reduce.graph_diffusion import GRID, SMOOTHING, equilibrium, lengths
from nnr_codec.encoder.reduce.graph_diffusion import channel_importance as importance

RNG = np.random.default_rng(0)
floats = st.floats(allow_nan=False, allow_infinity=False)
filters = hnp.arrays("f8", hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=floats)


def transitions(rows: np.ndarray) -> np.ndarray:
    """Return the transition matrix P by its definition, filter by filter."""
    units = np.array([row / length if (length := np.sqrt((row * row).sum())) else row * 0 for row in rows])
    kernel = np.array([[1 / (1 + ((a - b) ** 2).sum() / SMOOTHING) for b in units] for a in units])
    return kernel / kernel.sum(axis=1, keepdims=True)


def test_the_equilibrium_is_that_of_the_walk() -> None:
    rows = RNG.normal(0, 1, (20, 30))
    pi = equilibrium(rows) / 20
    np.testing.assert_allclose(pi @ transitions(rows), pi, rtol=1e-6)
    assert pi.sum() == pytest.approx(1)
    walked = np.full(20, 1 / 20)
    for _ in range(200):
        walked = walked @ transitions(rows)
    np.testing.assert_allclose(walked, pi, rtol=1e-6)


def test_filters_among_many_that_are_alike_are_met_more_often() -> None:
    rows = np.concatenate([np.ones((5, 4)), [[1, -1, 1, -1]]])
    pi = equilibrium(rows)
    assert (pi[:5] == pi[0]).all()
    assert pi[0] > pi[5]


def test_lengths_do_not_matter_to_the_walk_and_directions_do_not_matter_to_lengths() -> None:
    rows = RNG.normal(0, 1, (8, 5))
    np.testing.assert_allclose(equilibrium(rows * 2.0 ** np.arange(8)[:, None]), equilibrium(rows), rtol=1e-6)
    np.testing.assert_allclose(lengths(rows), np.sqrt((rows * rows).sum(axis=1)), rtol=1e-5)
    assert lengths(rows * 8).tolist() == (lengths(rows) * 8).tolist()


def test_what_a_channel_matters_is_its_probability_times_how_strongly_it_is_made_and_read() -> None:
    makers, readers = RNG.normal(0, 1, (6, 9)), RNG.normal(0, 1, (6, 12))
    expected = equilibrium(makers) * lengths(makers) * lengths(readers)
    found = importance([makers], [readers])
    np.testing.assert_allclose(found, expected / np.sqrt((expected**2).mean()), rtol=1e-5)
    np.testing.assert_allclose(importance([makers], []) / importance([makers], [np.ones((6, 1))]), 1, rtol=1e-5)
    np.testing.assert_allclose(importance([makers * 4], [readers]), found, rtol=1e-6)
    np.testing.assert_allclose(importance([makers * 1e300], [readers * 1e-300]), found, rtol=1e-5)


def test_several_makers_count_alike() -> None:
    one, other = RNG.normal(0, 1, (6, 9)), RNG.normal(0, 1, (6, 3))
    np.testing.assert_allclose(importance([one, other * 100], []), importance([one, other], []), rtol=1e-5)
    assert importance([one, one], []).tolist() == pytest.approx(importance([one], []).tolist(), rel=1e-5)


def test_unused_channels_have_no_importance() -> None:
    makers, readers = RNG.normal(0, 1, (4, 9)), RNG.normal(0, 1, (4, 9))
    makers[0], readers[1] = 0, 0
    assert importance([makers], [readers])[:2].tolist() == [0, 0]
    assert importance([np.zeros((3, 2))], []).tolist() == [0, 0, 0]


@given(filters)
def test_any_filters(rows: np.ndarray) -> None:
    """Results are finite, on the grid, and independent of the order of channels."""
    found = importance([rows], [rows])
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    steps = found / (GRID * 2.0 ** frexp(float(found.max()))[1])
    assert np.array_equal(np.rint(steps), steps)
    order = RNG.permutation(len(rows))
    assert np.allclose(equilibrium(rows[order]), equilibrium(rows)[order], rtol=1e-9)


@given(filters, st.integers(1, 5), st.integers(1, 5))
def test_parts_make_no_difference(rows: np.ndarray, columns: int, together: int) -> None:
    whole = importance([rows], [rows[:, :1]])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph_diffusion, "ROWS", together)
        patched.setattr(graph_diffusion, "COLUMNS", columns)
        np.testing.assert_allclose(importance([rows], [rows[:, :1]]), whole, rtol=2 * GRID, atol=2 * GRID)


@pytest.mark.parametrize("seed", range(5))
def test_scalar_products_are_exact_in_any_order(seed: int) -> None:
    """Therefore the decisions do not depend on the BLAS or the number of threads."""
    rows = np.random.default_rng(seed).normal(0, 1, (16, 3000)) * 10.0 ** np.random.default_rng(seed).integers(
        -3, 3, 3000
    )
    order = np.random.default_rng(seed).permutation(3000)
    assert equilibrium(rows[:, order]).tolist() == equilibrium(rows).tolist()
    assert lengths(rows[:, order]).tolist() == lengths(rows).tolist()


PINNED = ["0x1.2b3d000000000p+0", "0x1.0543600000000p+0", "0x1.564c800000000p-2", "0x1.377aa00000000p+0"]


def test_figures_do_not_change() -> None:
    """They are equal bit for bit, on every machine."""
    rows = ((np.arange(24) * 37 % 29) - 14.0).reshape(4, 6)
    assert [value.hex() for value in importance([rows], [rows[:, :2]]).tolist()] == PINNED
