"""Tests of second moments of few samples."""

from __future__ import annotations

import numpy as np
import pytest

from nnr_codec.integrations.second_moments import SecondMoments, archive
from tests.cabac.test_surgeon import moments


def test_few_samples_are_closer_to_the_truth_than_their_mean() -> None:
    exact = moments(40)
    errors = np.zeros(2)
    for seed in range(20):
        samples = np.random.default_rng(seed).multivariate_normal(np.zeros(40), exact, (20, 1))
        known = SecondMoments()
        known.add(samples)
        plain, found = samples[:, 0].T @ samples[:, 0] / 20, known.mean()
        assert found is not None
        assert np.trace(found) == pytest.approx(np.trace(plain))
        assert np.linalg.eigvalsh(plain)[0] < 1e-6 < np.linalg.eigvalsh(found)[0]
        errors += [np.square(one - exact).sum() for one in (plain, found)]
    assert errors[1] < 0.9 * errors[0]


def test_many_samples_have_their_mean() -> None:
    exact = moments(10)
    known = SecondMoments()
    known.add(np.random.default_rng(1).multivariate_normal(np.zeros(10), exact, (20000, 1)))
    assert known.mean() == pytest.approx(exact, abs=0.05 * exact.max())


def test_equal_samples_are_unchanged() -> None:
    sample = np.random.default_rng(1).normal(size=(3, 5))
    known = SecondMoments()
    known.add([sample] * 4)
    assert known.mean() == pytest.approx(sample.T @ sample)


def test_no_samples_have_no_moments() -> None:
    assert SecondMoments().mean() is None


def test_an_archive_names_both_sides() -> None:
    pairs = {"a": (np.eye(2), np.eye(3)), "b": (None, np.eye(4))}
    found = archive({"a": np.ones(())}, pairs)
    assert {name: np.shape(value) for name, value in found.items()} == {
        "a": (),
        "row_hessian:a": (2, 2),
        "hessian:a": (3, 3),
        "hessian:b": (4, 4),
    }
