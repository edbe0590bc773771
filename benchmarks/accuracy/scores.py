"""Scores of networks, their intervals, and sizes at equal scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Least number of test samples of a network in means; with fewer, scores are agreements with the float32 network.
ENOUGH = 1000
#: Number of samples drawn for an interval.
DRAWS = 1000


@dataclass(frozen=True)
class Outcome:
    """Results of a network on test samples.

    Parameters
    ----------
    metric : str
        ``accuracy``, ``agreement`` or ``Spearman``.
    expected : ndarray
        Labels, or similarities.
    found : ndarray
        Decisions of the same shape, or similarities.
    losses : ndarray or None
        Cross-entropy of each decision.
    """

    metric: str
    expected: Array
    found: Array
    losses: Array | None = None

    def accuracy(self) -> float:
        """Return the share of correct decisions, or Spearman's correlation, in percent."""
        return 100 * (rank_correlation(self.found, self.expected) if self.losses is None else self.correct().mean())

    def correct(self) -> Array:
        """Return the share of correct decisions for each sample, 0..1."""
        correct = self.found == self.expected
        return correct.reshape(len(correct), -1).mean(1)


def rank_correlation(a: Array, b: Array) -> float:
    """Return Spearman's correlation; equal values share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def compared(outcome: Outcome, exact: Outcome) -> dict[str, Any]:
    """Return the score and its fall from the float32 network, in points, with 95 % intervals by bootstrap."""
    n = len(outcome.expected)
    rows = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    known: dict[str, Any] = {"accuracy": round(outcome.accuracy(), 3)}
    if outcome.losses is None:
        one, other = ([rank_correlation(each.found[k], each.expected[k]) for k in rows] for each in (outcome, exact))
        drawn, fall = 100 * np.array(one), exact.accuracy() - outcome.accuracy()
        drawn_falls = 100 * np.array(other) - drawn
    else:
        correct, same = outcome.correct(), (outcome.found == exact.found).reshape(n, -1).mean(1)
        known |= {"agreement": round(100 * float(same.mean()), 3), "loss": round(float(outcome.losses.mean()), 5)}
        falls = 100 * ((1 - same) if outcome.metric == "agreement" else exact.correct() - correct)
        drawn, drawn_falls, fall = 100 * correct[rows].mean(1), falls[rows].mean(1), falls.mean()
    return {
        "metric": outcome.metric,
        "samples": n,
        **known,
        "interval": _interval(drawn),
        "fall": round(float(fall), 3),
        "fall_interval": _interval(drawn_falls),
    }


def _interval(drawn: Array) -> list[float]:
    return [round(float(value), 3) for value in np.percentile(drawn, (2.5, 97.5))]


def monotone(falls: Sequence[float]) -> list[float]:
    """Return the nearest values that never decrease, by squared distance (pool adjacent violators)."""
    pools: list[list[float]] = []
    for fall in falls:
        pools.append([fall, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (one, n), (other, m) = pools[-2:]
            pools[-2:] = [[(n * one + m * other) / (n + m), n + m]]
    return [value for value, count in pools for _ in range(int(count))]


def size_at(points: Sequence[tuple[float, float]], fall: float) -> float | None:
    """Return the size at which a score falls by some points; None if it falls more at all sizes, or never as much.

    Parameters
    ----------
    points : sequence of (float, float)
        Sizes and falls. Falls are made monotone, then the logarithm of the size is interpolated linearly.
    """
    sizes = sorted((size for size, _ in points), reverse=True)
    falls = monotone([value for _, value in sorted(points, reverse=True)])
    for k in range(1, len(sizes)):
        if falls[k - 1] <= fall < falls[k]:
            part = (fall - falls[k - 1]) / (falls[k] - falls[k - 1])
            return exp(log(sizes[k - 1]) + part * (log(sizes[k]) - log(sizes[k - 1])))
    return None


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, values)) / len(values))
