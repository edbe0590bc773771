"""Loss of accuracy that compression causes, predicted from outputs on samples without labels, and the size for a loss.

If the decision for a sample changes from class a to class b, the expected loss of accuracy is p[a] - p[b], where p are
the probabilities of the uncompressed network. At small losses few of some hundred samples change their decision, so
their mean would be uncertain. The prediction therefore applies the change of the scores of each sample also to samples
with a similar margin between the two best classes. Classes are matched by their rank. This reduces the variance of the
prediction by a third to a half.

The upper limit has a confidence of 95 %. It includes the sampling error, from the influence of each sample on the mean,
and the error of the prediction itself, measured on a network. benchmarks/target_drop.py compares predicted and measured
losses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf, isfinite, log, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..config import MODEL_GOALS, EncoderConfig
from ..errors import EncodeError, Option
from ..model import Model

Scores = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

#: Number of samples on each side, in the order of margins, to which the change of a sample is applied.
NEIGHBOURS = 32
#: Fewest decisions from which a loss is predicted.
FEWEST = 32
#: Standard deviations of the upper limit: a one-sided confidence of 95 %.
DEVIATIONS = 1.645
#: Standard deviation of measured losses relative to the predicted ones; 0.26 for 8 sizes of ResNet-8, rounded up.
MODEL_ERROR = 0.3
#: Smallest probability of outputs that are probabilities, and largest deviation of their sum from 1.
LEAST, ROUNDING = 1e-7, 1e-3
#: Default of the maximum number of evaluations.
BUDGET = 10
#: First size relative to the default one; bounds of the next one relative to the last one.
FIRST, SMALLER, LARGER = 0.4, 0.5, 2.0
#: The search stops at this ratio of sizes, if the limit of the loss is above this part of the target, or the limit of
#: the next smaller size above this multiple.
CLOSE, NEAR, FAR = 1.03, 0.7, 1.5
#: The loss is assumed to fall with this power of the size until two sizes are known.
POWER = 6


@dataclass(frozen=True)
class DropTuning:
    """Result of :func:`nnr_codec.tune_drop`.

    Parameters
    ----------
    config : EncoderConfig
        Options that reproduce the bitstream, with a ``target_size``.
    drop, limit : float
        Predicted loss of accuracy in percentage points, and its upper limit with a confidence of 95 %.
    nbytes : int
        Size of the bitstream in bytes.
    evaluations : int
        Number of calls of ``outputs``.
    """

    config: EncoderConfig
    drop: float
    limit: float
    nbytes: int
    evaluations: int


def tune_drop(
    model: Model,
    outputs: Callable[[Model], Scores],
    coded: Callable[[EncoderConfig], tuple[Model, int]],
    config: EncoderConfig,
    target_drop: float,
    budget: int,
) -> DropTuning:
    """See :func:`nnr_codec.tune_drop`. ``coded`` encodes and decodes with given options."""
    check(config, target_drop)
    if budget < 2:
        raise EncodeError(Option("budget"), f" must be at least 2 evaluations, got {budget}")
    before = _checked(outputs(model))
    best: DropTuning | None = None
    points: list[_Point] = []
    size: float | None = FIRST * coded(config)[1]
    evaluations = 1
    while size is not None and len(points) < budget - 1:
        tried, drop, limit, found = replace(config, target_size=max(round(size), 1)), inf, inf, None
        with suppress(EncodeError):  # the size is too small for any step sizes
            found = coded(tried)
        if found:
            drop, limit = predicted_drop(before, outputs(found[0]))
            evaluations += 1
            if limit <= target_drop:
                best = DropTuning(tried, drop, limit, found[1], evaluations)
        points.append(_Point(size, limit))
        size = _next_size(sorted(points, reverse=True), target_drop)
    if best is None:
        raise EncodeError(
            f"none of {len(points)} sizes up to {max(points).size:,.0f} bytes keeps the predicted loss of accuracy "
            "within the ",
            Option("target_drop"),
            f" of {target_drop:g}; raise it, or omit other options that change the model",
        )
    return replace(best, evaluations=evaluations)


def check(config: EncoderConfig, target_drop: float) -> None:
    """Raise EncodeError for a target out of range, or options that set the size or the errors in another way."""
    if not 0 < target_drop <= 100:
        raise EncodeError(Option("target_drop"), f" must be above 0 and at most 100 points, got {target_drop}")
    for name in (*MODEL_GOALS, "exact", "fixed_point"):
        if getattr(config, name) not in (None, False):
            raise EncodeError(Option("target_drop"), " and ", Option(name), " cannot be combined; choose one")


class _Point(NamedTuple):
    """Size in bytes, and upper limit of the loss in points."""

    size: float
    limit: float


def _next_size(points: list[_Point], target: float) -> float | None:
    """Return the size to try next, smaller than all that meet the target; None if a better one is not expected.

    ``points`` are in descending order of size.
    """
    met = [k for k, point in enumerate(points) if point.limit <= target]
    if not met:
        return points[0].size * CLOSE * min(_step(points[0], target), LARGER)
    high, *others = points[met[-1] :]
    if not others:
        return high.size / CLOSE * max(_step(high, target), SMALLER)
    low = others[0]
    if high.size >= CLOSE * low.size:
        part = 0.5
        if high.limit > 0 and isfinite(low.limit):
            part = log(target / high.limit) / log(low.limit / high.limit)
        return high.size * exp(log(low.size / high.size) * min(max(part, 0.25), 0.75))
    if high.limit > NEAR * target:
        return None
    # Losses of similar sizes differ at random: try sizes among the next smaller ones.
    for one, other in pairwise([*others, _Point(others[-1].size / CLOSE**2, inf)]):
        if one.limit > FAR * target:
            return None
        if one.size > CLOSE * other.size:
            return sqrt(one.size * other.size)
    return None


def _step(point: _Point, target: float) -> float:
    """Return the ratio of sizes that is expected to change the limit to the target."""
    return float((point.limit / target) ** (1 / POWER))


def predicted_drop(before: Scores, after: Scores) -> tuple[float, float]:
    """Return the expected loss of accuracy in percentage points, and its upper limit.

    Parameters
    ----------
    before, after : ndarray
        Scores of the uncompressed and of the compressed network, shape (n, ..., classes). Logits or probabilities.
        Scores after compression that are not finite give an infinite loss.
    """
    samples = len(_checked(before))
    if before.shape != after.shape:
        raise EncodeError(f"the scores have shape {before.shape} before compression, and {after.shape} after it")
    if not np.isfinite(after).all():
        return inf, inf
    is_probability = before.min() >= 0 and np.abs(before.sum(-1, dtype=np.float64) - 1).max() < ROUNDING
    x, y = (_by_decision(scores, bool(is_probability)) for scores in (before, after))
    ranks = np.argsort(-x, axis=1, kind="stable")
    x, y = (np.take_along_axis(scores, ranks, axis=1) for scores in (x, y))
    order = np.argsort(x[:, 0] - x[:, 1], kind="stable")
    x, change = x[order], (y - x)[order]
    p = np.exp(x - x[:, :1])
    p /= p.sum(1, keepdims=True)

    n = len(x)
    as_receiver, as_giver, counts = np.zeros((3, n))
    for distance in range(-NEIGHBOURS, NEIGHBOURS + 1):
        rows = np.arange(max(0, -distance), min(n, n - distance))
        costs = p[rows, 0] - p[rows, (x[rows] + change[rows + distance]).argmax(1)]
        as_receiver[rows] += costs
        as_giver[rows + distance] += costs
        counts[rows] += 1
    as_receiver, as_giver = as_receiver / counts, as_giver / counts
    drop = as_receiver.mean()
    influence = np.empty(n)
    influence[order] = as_receiver - drop + as_giver - _local_means(as_receiver)
    of_samples = influence.reshape(samples, -1).mean(1)
    deviation = np.hypot(of_samples.std() / np.sqrt(samples), MODEL_ERROR * drop)
    return 100 * float(drop), 100 * float(drop + DEVIATIONS * deviation)


def _by_decision(scores: Scores, is_probability: bool) -> Floats:
    """Return logits of shape (decisions, classes)."""
    flat = scores.reshape(-1, scores.shape[-1]).astype(np.float64)
    return np.log(np.maximum(flat, LEAST)) if is_probability else flat


def _local_means(values: Floats) -> Floats:
    """Return the mean of the neighbours of each value."""
    k, n = np.arange(len(values)), len(values)
    first, end = np.maximum(k - NEIGHBOURS, 0), np.minimum(k + NEIGHBOURS + 1, n)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[end] - sums[first]) / (end - first))


def _checked(scores: Scores) -> Scores:
    """Return the scores. Raise EncodeError unless they are finite, with two classes and enough decisions."""
    shape = np.shape(scores)
    if not isinstance(scores, np.ndarray) or scores.dtype.kind != "f" or len(shape) < 2 or shape[-1] < 2:
        kind = f"{scores.dtype.name} of shape {shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
        raise EncodeError(f"outputs must be an array of floats of shape (samples, ..., classes), got {kind}")
    if prod(shape[:-1]) < FEWEST:
        count = prod(shape[:-1])
        raise EncodeError(
            f"the loss of accuracy cannot be predicted from {count} decisions; use more samples, for {FEWEST}"
        )
    if not np.isfinite(scores).all():
        raise EncodeError("the outputs of the uncompressed model are not finite; its loss of accuracy is unknown")
    return scores
