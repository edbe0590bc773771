"""Loss of accuracy that compression causes, predicted from outputs on a few samples, and the size for a loss.

If the decision for a sample changes from class a to class b, the expected loss of accuracy is p[a] - p[b], where p are
the probabilities of the uncompressed network. At small losses few of some hundred samples change their decision, so
their mean would be uncertain. The prediction therefore applies the change of the scores of each sample also to samples
with a similar margin between the two best classes. Classes are matched by their rank. This reduces the variance of the
prediction by a third to a half.

Networks are often too certain. With labels, the logits are therefore scaled before p is computed, by 0.4 for ResNet-20
(temperature scaling; Guo and others 2017). Only this scale is estimated from the labels, which takes far fewer samples
than counting errors. On all test samples, ResNet-20 lost what these probabilities predict, but two small convolutional
networks 1.4 to 2 times as much; predictions with labels are therefore multiplied by 1.4. Without labels, excessive
certainty makes the predictions for these networks 1.1 to 2 times as high.

Predictions of similar sizes differ by chance. The search therefore averages them.

The upper limit has a confidence of 95 %, although the search chooses among several sizes. It includes the sampling
error, from the influence of each sample on the mean, the error of the scale, and the error of the prediction itself,
measured on networks. benchmarks/target_drop.py compares predicted and measured losses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..config import MODEL_GOALS, EncoderConfig
from ..errors import EncodeError, Option
from ..model import Model

Scores = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.integer[Any]]

#: Number of samples on each side, in the order of margins, to which the change of a sample is applied.
NEIGHBOURS = 32
#: Fewest decisions from which a loss is predicted.
FEWEST = 32
#: Standard deviations of the upper limit: a one-sided confidence of 95 % for the luckiest of five sizes (Bonferroni).
DEVIATIONS = 2.33
#: Factor of predicted losses, and standard deviation of measured losses relative to them, without labels and with them.
#: From five networks of benchmarks/target_drop.py, see docs/guides/data-aware.md.
MODEL_ERROR = {False: (1.0, 0.5), True: (1.4, 0.4)}
#: Smallest probability of outputs that are probabilities, and largest deviation of their sum from 1.
LEAST, ROUNDING = 1e-7, 1e-3
#: Default of the maximum number of evaluations.
BUDGET = 10
#: Bounds of the scale of logits, and standard deviation of its logarithm before labels are known.
SCALES, SPREAD = (1 / 16, 16.0), 1.0
#: First size relative to the default one; bounds of the next one relative to the last one.
FIRST, SMALLER, LARGER = 0.4, 0.5, 2.0
#: The search stops at this ratio of sizes.
CLOSE = 1.03
#: The loss is assumed to fall with this power of the size; between 4 and 12 for the networks of the benchmark.
POWER = 6
#: Difference of the logarithms of sizes at which a prediction has a weight of 1/e; POWER changes losses by 1.8 there.
SIMILAR = 0.1


@dataclass(frozen=True)
class DropTuning:
    """Result of :func:`nnr_codec.tune_drop`.

    Parameters
    ----------
    config : EncoderConfig
        Options that reproduce the bitstream, with a ``target_size``.
    drop, limit : float
        Predicted loss of accuracy in percentage points, averaged with those of similar sizes, and its upper limit with
        a confidence of 95 %.
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
    labels: Labels | None,
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
    _check_labels(labels, before)
    points: list[_Point] = []
    size: float | None = FIRST * coded(config)[1]
    evaluations = 1
    while size is not None and len(points) < budget - 1:
        point = _Point(size, replace(config, target_size=max(round(size), 1)))
        found = None
        with suppress(EncodeError):  # the size is too small for any step sizes
            found = coded(point.config)
        if found:
            drop, limit = predicted_drop(before, outputs(found[0]), labels)
            evaluations += 1
            point = point._replace(drop=drop, limit=limit, nbytes=found[1])
        points.append(point)
        size = _next_size(_averaged(points), target_drop)
    points = _averaged(points)
    met = [point for point in points if point.limit <= target_drop]
    if not met:
        raise EncodeError(
            f"none of {len(points)} sizes up to {points[0].size:,.0f} bytes keeps the predicted loss of accuracy "
            "within the ",
            Option("target_drop"),
            f" of {target_drop:g}; raise it, or omit other options that change the model",
        )
    best = met[-1]
    return DropTuning(best.config, best.drop, best.limit, best.nbytes, evaluations)


def check(config: EncoderConfig, target_drop: float) -> None:
    """Raise EncodeError for a target out of range, or options that set the size or the errors in another way."""
    if not 0 < target_drop <= 100:
        raise EncodeError(Option("target_drop"), f" must be above 0 and at most 100 points, got {target_drop}")
    for name in (*MODEL_GOALS, "exact", "fixed_point"):
        if getattr(config, name) not in (None, False):
            raise EncodeError(Option("target_drop"), " and ", Option(name), " cannot be combined; choose one")


class _Point(NamedTuple):
    """Wanted size in bytes, options, loss in points, its upper limit, and size of the bitstream."""

    size: float
    config: EncoderConfig
    drop: float = inf
    limit: float = inf
    nbytes: int = 0


def _averaged(points: list[_Point]) -> list[_Point]:
    """Return the points in descending order of size, with losses averaged over similar sizes.

    Otherwise the search would choose a size whose prediction is too low by chance.
    """
    known = [point for point in points if isfinite(point.limit)]
    logs = np.log([point.size for point in known])
    distance = logs - logs[:, None]
    weights = np.exp(-((distance / SIMILAR) ** 2))
    losses = np.array([(point.drop, point.limit) for point in known]).reshape(-1, 2)
    means = (weights * np.exp(POWER * distance)) @ losses / weights.sum(1, keepdims=True)
    known = [point._replace(drop=drop, limit=limit) for point, (drop, limit) in zip(known, means.tolist(), strict=True)]
    return sorted([*known, *(point for point in points if point.limit == inf)], key=lambda point: -point.size)


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
    if high.size < CLOSE * low.size:
        return None
    part = 0.5
    if high.limit > 0 and isfinite(low.limit):
        part = log(target / high.limit) / log(low.limit / high.limit)
    return high.size * exp(log(low.size / high.size) * min(max(part, 0.25), 0.75))


def _step(point: _Point, target: float) -> float:
    """Return the ratio of sizes that is expected to change the limit to the target."""
    return float((point.limit / target) ** (1 / POWER))


def predicted_drop(before: Scores, after: Scores, labels: Labels | None = None) -> tuple[float, float]:
    """Return the expected loss of accuracy in percentage points, and its upper limit.

    Parameters
    ----------
    before, after : ndarray
        Scores of the uncompressed and of the compressed network, shape (n, ..., classes). Logits or probabilities.
        Scores after compression that are not finite give an infinite loss.
    labels : ndarray of int or None
        Correct classes, shape (n, ...). Without them, the probabilities of the uncompressed network are assumed.
    """
    samples = len(_checked(before))
    if before.shape != after.shape:
        raise EncodeError(f"the scores have shape {before.shape} before compression, and {after.shape} after it")
    if not np.isfinite(after).all():
        return inf, inf
    is_probability = before.min() >= 0 and np.abs(before.sum(-1, dtype=np.float64) - 1).max() < ROUNDING
    x, y = (_by_decision(scores, bool(is_probability)) for scores in (before, after))
    scale, scale_error = (1.0, 0.0) if labels is None else _scale(x, labels.ravel(), samples)
    ranks = np.argsort(-x, axis=1, kind="stable")
    x, y = (np.take_along_axis(scores, ranks, axis=1) for scores in (x, y))
    order = np.argsort(x[:, 0] - x[:, 1], kind="stable")
    x, change = x[order], (y - x)[order]
    p = _probabilities(scale * x)

    n = len(x)
    as_receiver, as_giver, counts = np.zeros((3, n))
    for distance in range(-NEIGHBOURS, NEIGHBOURS + 1):
        rows = np.arange(max(0, -distance), min(n, n - distance))
        costs = p[rows, 0] - p[rows, (x[rows] + change[rows + distance]).argmax(1)]
        as_receiver[rows] += costs
        as_giver[rows + distance] += costs
        counts[rows] += 1
    factor, error = MODEL_ERROR[labels is not None]
    as_receiver, as_giver = factor * as_receiver / counts, factor * as_giver / counts
    drop = as_receiver.mean()
    influence = np.empty(n)
    influence[order] = as_receiver - drop + as_giver - _local_means(as_receiver)
    of_samples = influence.reshape(samples, -1).mean(1)
    deviation = np.linalg.norm([of_samples.std() / np.sqrt(samples), error * drop, scale_error * drop])
    return 100 * float(drop), 100 * float(drop + DEVIATIONS * deviation)


def _probabilities(logits: Floats) -> Floats:
    p = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(p / p.sum(1, keepdims=True))


def _scale(x: Floats, labels: Labels, samples: int) -> tuple[float, float]:
    """Return the scale of logits that makes the labels most probable, and its relative standard error."""
    low, high = SCALES
    for _ in range(24):
        scale = sqrt(low * high)
        p = _probabilities(scale * x)
        means = (p * x).sum(1)
        slopes = scale * (means - np.take_along_axis(x, labels[:, None], 1)[:, 0])
        if slopes.sum() + log(scale) / SPREAD**2 > 0:
            high = scale
        else:
            low = scale
    curvature = scale**2 * ((p * x**2).sum() - (means**2).sum()) + 1 / SPREAD**2
    variance = (slopes.reshape(samples, -1).sum(1) ** 2).sum() + 1 / SPREAD**2
    return scale, float(np.sqrt(variance) / curvature)


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
        raise EncodeError(f"outputs must be an array of floats of shape (samples, ..., classes), got {_kind(scores)}")
    if prod(shape[:-1]) < FEWEST:
        count = prod(shape[:-1])
        raise EncodeError(
            f"the loss of accuracy cannot be predicted from {count} decisions; use more samples, for {FEWEST}"
        )
    if not np.isfinite(scores).all():
        raise EncodeError("the outputs of the uncompressed model are not finite; its loss of accuracy is unknown")
    return scores


def _check_labels(labels: Labels | None, scores: Scores) -> None:
    """Raise EncodeError unless the labels are a class for each decision."""
    if labels is None:
        return
    expected = scores.shape[:-1]
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.shape != expected:
        raise EncodeError(Option("labels"), f" must be an array of integers of shape {expected}, got {_kind(labels)}")
    if labels.min() < 0 or labels.max() >= scores.shape[-1]:
        found = f"{labels.min()} to {labels.max()}"
        raise EncodeError(Option("labels"), f" must be classes from 0 to {scores.shape[-1] - 1}, got {found}")


def _kind(value: Any) -> str:
    return f"{value.dtype.name} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
