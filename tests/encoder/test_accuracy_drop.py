"""Tests of the predicted loss of accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.encoder.accuracy_drop import MODEL_ERROR, predicted_drop


def logits(n: int, seed: int = 1, classes: int = 8) -> Any:
    return np.random.default_rng(seed).normal(0, 2, (n, classes))


def probabilities(scores: Any) -> Any:
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def expected_drop(before: Any, after: Any) -> float:
    """Return the loss of accuracy in points if labels have the probabilities of the network."""
    p, rows = probabilities(before), np.arange(len(before))
    return float(100 * (p[rows, before.argmax(-1)] - p[rows, after.argmax(-1)]).mean())


def noisy(before: Any, noise: float, seed: int = 2) -> Any:
    return before + np.random.default_rng(seed).normal(0, noise, before.shape)


def test_equal_scores_lose_nothing() -> None:
    assert predicted_drop(logits(100), logits(100)) == (0, 0)


@pytest.mark.parametrize("noise", [0.2, 0.5, 1.0])
def test_the_prediction_is_the_expected_loss(noise: float) -> None:
    before = logits(20_000)
    drop, limit = predicted_drop(before, noisy(before, noise))
    assert drop == pytest.approx(expected_drop(before, noisy(before, noise)), rel=0.05)
    assert drop * 2.1 < limit < drop * 2.4


def test_the_prediction_varies_less_than_the_changed_decisions() -> None:
    before = logits(200 * 200)
    after = noisy(before, 0.3)
    parts = list(zip(before.reshape(200, 200, 8), after.reshape(200, 200, 8), strict=True))
    predicted, counted = (
        np.std([function(*part) for part in parts], axis=0) for function in (predicted_drop, expected_drop)
    )
    assert predicted[0] < 0.9 * counted


def test_the_limit_is_rarely_exceeded() -> None:
    before = logits(200 * 100)
    after = noisy(before, 0.3)
    parts = zip(before.reshape(200, 100, 8), after.reshape(200, 100, 8), strict=True)
    limits = np.array([predicted_drop(*part)[1] for part in parts])
    assert (limits < expected_drop(before, after)).mean() <= 0.05


def drawn(p: Any, seed: int = 3) -> Any:
    """Return labels with these probabilities."""
    return (np.random.default_rng(seed).random((*p.shape[:-1], 1)) > p.cumsum(-1)).sum(-1)


@pytest.mark.parametrize("scale", [0.4, 1, 2])
def test_labels_correct_for_certainty(scale: float) -> None:
    """The logits of a network that is too certain, or too uncertain, are multiples of the right ones."""
    before = logits(20_000)
    after, labels = noisy(before, 0.5), drawn(probabilities(before))
    drop, limit = predicted_drop(scale * before, scale * after, labels)
    assert drop == pytest.approx(MODEL_ERROR[True][0] * expected_drop(before, after), rel=0.05)
    assert drop * 1.9 < limit < drop * 2.2


def test_few_labels_make_the_limit_higher() -> None:
    """The limit includes the error of the scale, which is known before there are labels within a factor of e."""
    before = logits(400)
    after, labels = noisy(before, 0.5), drawn(probabilities(before))
    few, many = (predicted_drop(before[:n], after[:n], labels[:n]) for n in (40, 400))
    unknown = np.zeros((100, 8))
    assert few[1] / few[0] > many[1] / many[0]
    assert predicted_drop(unknown, unknown, np.zeros(100, np.uint8)) == (0, 0)


def test_probabilities_give_the_loss_of_their_logits() -> None:
    before = logits(500)
    after = noisy(before, 0.5)
    found = predicted_drop(probabilities(before), probabilities(after))
    assert found == pytest.approx(predicted_drop(before, after), rel=0.05)


def test_decisions_of_one_sample_are_dependent() -> None:
    """Copies of a decision within a sample do not make the limit lower."""
    before = logits(300)
    after = noisy(before, 0.5)
    copies = (np.repeat(scores[:, None], 20, axis=1) for scores in (before, after))
    single, repeated = predicted_drop(before, after), predicted_drop(*copies)
    assert repeated[1] / repeated[0] > 0.95 * single[1] / single[0]


def test_scores_that_are_not_finite_lose_everything() -> None:
    before = logits(100)
    after = before.copy()
    after[3, 2] = np.nan
    assert predicted_drop(before, after) == (np.inf, np.inf)


# ------------------------------------------------------------------------------------------------ search
RNG = np.random.default_rng(5)
MODEL = {"a": RNG.normal(0, 0.2, (80, 40)).astype("f4"), "b": RNG.normal(0, 1, (6, 80)).astype("f4")}
INPUTS = RNG.normal(size=(400, 40)).astype("f4")


def outputs(model: nnr.Model) -> Any:
    return np.maximum(INPUTS @ model["a"].T, 0) @ model["b"].T


@pytest.mark.parametrize("target", [0.5, 2])
def test_the_size_is_close_to_the_smallest_that_meets_the_target(target: float) -> None:
    found = nnr.tune_drop(MODEL, outputs, target_drop=target)
    data = nnr.encode(MODEL, found.config)
    assert len(data) == found.nbytes
    before = outputs(nnr.Model(MODEL))
    assert predicted_drop(before, outputs(nnr.decode(data))) == pytest.approx((found.drop, found.limit), rel=0.5)
    assert 0.4 * target < found.limit <= target
    smaller = nnr.encode(MODEL, target_size=found.nbytes * 8 // 10)
    assert predicted_drop(before, outputs(nnr.decode(smaller)))[1] > target


def test_a_lucky_prediction_does_not_lead_to_a_small_size() -> None:
    """Every second evaluation seems to be without errors, the others with twice the errors."""
    before, errors = outputs(nnr.Model(MODEL)), iter([0, *[2, 0] * 10])
    usual = nnr.tune_drop(MODEL, outputs, target_drop=1)
    found = nnr.tune_drop(MODEL, lambda model: before + next(errors) * (outputs(model) - before), target_drop=1)
    assert found.limit > 0.1
    assert 0.8 < found.nbytes / usual.nbytes < 1.25


def test_the_budget_limits_the_evaluations() -> None:
    calls = []

    def counted(model: nnr.Model) -> Any:
        calls.append(model)
        return outputs(model)

    found = nnr.tune_drop(MODEL, counted, target_drop=1, budget=4)
    assert found.evaluations == len(calls) <= 4


def test_a_target_below_every_lossy_size_gives_a_lossless_one() -> None:
    found = nnr.tune_drop(MODEL, outputs, target_drop=1e-12)
    assert found.limit <= 1e-12


def test_a_large_target_stops_at_the_coarsest_step_sizes() -> None:
    found = nnr.tune_drop({"w": MODEL["b"][:, :40]}, lambda model: INPUTS @ model["w"].T, target_drop=100)
    assert found.nbytes < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_drop": 0}, "target_drop must be above 0 and at most 100 points, got 0"),
        ({"target_drop": float("nan")}, "target_drop must be above 0 and at most 100 points, got nan"),
        ({"target_drop": 101}, "target_drop must be above 0 and at most 100 points, got 101"),
        ({"budget": 1}, "budget must be at least 2 evaluations, got 1"),
        ({"qp": -20}, "target_drop and qp cannot be combined; choose one"),
        ({"preset": "small"}, "target_drop and quality cannot be combined"),
        ({"exact": True}, "target_drop and exact cannot be combined"),
        ({"target_ratio": 0.1}, "target_drop and target_ratio cannot be combined"),
    ],
)
def test_wrong_options_are_named(options: Any, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.tune_drop(MODEL, outputs, **{"target_drop": 1, **options})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0], r"outputs must be an array of floats of shape \(samples, ..., classes\), got list"),
        (np.zeros(50), r"got float64 of shape \(50,\)"),
        (np.zeros((50, 1)), r"got float64 of shape \(50, 1\)"),
        (np.zeros((50, 3), int), r"got int64 of shape \(50, 3\)"),
        (np.zeros((9, 3)), "cannot be predicted from 9 decisions; use more samples, for 32"),
        (np.full((50, 3), np.nan), "outputs of the uncompressed model are not finite"),
    ],
)
def test_wrong_outputs_are_named(scores: Any, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.tune_drop(MODEL, lambda _: scores, target_drop=1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], r"labels must be an array of integers of shape \(400,\), got list"),
        (np.zeros(400), r"of shape \(400,\), got float64 of shape \(400,\)"),
        (np.zeros((400, 1), int), r"of shape \(400,\), got int64 of shape \(400, 1\)"),
        (np.full(400, -1), r"labels must be classes from 0 to 5, got -1 to -1"),
        (np.arange(400, dtype=np.uint64), r"labels must be classes from 0 to 5, got 0 to 399"),
    ],
)
def test_wrong_labels_are_named(labels: Any, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.tune_drop(MODEL, outputs, target_drop=1, labels=labels)


def test_outputs_that_change_their_shape_are_rejected() -> None:
    shapes = iter([(50, 3), (50, 4)])
    with pytest.raises(nnr.EncodeError, match=r"shape \(50, 3\) before compression, and \(50, 4\) after it"):
        nnr.tune_drop(MODEL, lambda _: np.zeros(next(shapes)), target_drop=1)


def test_a_target_that_no_tried_size_meets_is_named() -> None:
    with pytest.raises(
        nnr.EncodeError, match=r"none of 1 sizes up to [\d,]+ bytes keeps .* within the target_drop of 1e-06; raise it"
    ):
        nnr.tune_drop(MODEL, outputs, target_drop=1e-6, budget=2)
