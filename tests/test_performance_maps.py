"""Measurement of performance maps (6.4.4.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.performance import (
    DecompositionMap,
    DecompositionRow,
    PruningMap,
    PruningRow,
    SparsificationRow,
    UnificationRow,
)
from nnr_codec.encoder import performance_maps as measure
from nnr_codec.encoder.prepared import Prepared

RNG = np.random.default_rng(3)
DIGITS = Path(__file__).parents[1] / "examples/digits/digits.nnef"
MODEL = {
    "conv": RNG.normal(0, 0.1, (8, 4, 3, 3)).astype("f4"),
    "fc": RNG.normal(0, 0.2, (10, 32)).astype("f4"),
    "bias": RNG.normal(0, 1, 10).astype("f4"),
}
WEIGHTS = ("conv", "fc")


def f4(value: float) -> float:
    return float(np.float32(value))


def zeros(model: nnr.Model) -> float:
    """Return the share of weights that are 0, as an accuracy that identifies the evaluated model."""
    arrays = [np.asarray(model[name]) for name in WEIGHTS]
    return 1 - sum(map(np.count_nonzero, arrays)) / sum(array.size for array in arrays)


def total(model: nnr.Model) -> float:
    return float(sum(np.abs(np.asarray(model[name], np.float64)).sum() for name in WEIGHTS))


# ------------------------------------------------------------------------------------------------ maps
def test_rows_describe_the_decoded_model_at_each_point() -> None:
    points = (0.0, 0.1, 0.05)
    performance = nnr.measure(
        MODEL, lambda model: (zeros(model), [0.25, None, 0.1]), {"sparsification": points}, qp=-20
    )
    decoded = nnr.decode(nnr.encode(MODEL, qp=-20)).tensors
    size = sum(decoded[name].size for name in WEIGHTS)
    want = []
    for point in map(f4, points):
        left = sum(int((np.abs(decoded[name]) >= max(point, 1e-30)).sum()) for name in WEIGHTS) / size
        want.append(SparsificationRow(point, f4(left), f4(1 - left), 0b101, (0.25, f4(0.1))))
    assert performance == nnr.Performance(maps=nnr.PerformanceMaps(nnr.SparsificationMap(tuple(want))))
    assert want[0].non_zero_ratio > want[2].non_zero_ratio > want[1].non_zero_ratio


def test_an_evaluation_may_change_what_it_is_given() -> None:
    def evaluate(model: nnr.Model) -> float:
        found = float(np.abs(np.asarray(model["bias"])).sum())
        for name in model:
            np.asarray(model[name])[...] = 0
        return found

    found = nnr.measure(MODEL, evaluate, {"sparsification": (0.0, 0.1), "unification": (0.0,)}).maps
    assert found.sparsification is not None and found.unification is not None
    first, second = found.sparsification.rows
    assert first.nn_accuracy == second.nn_accuracy == found.unification.rows[0].nn_accuracy > 0
    assert first.non_zero_ratio > second.non_zero_ratio > 0


def test_measured_maps_are_read_back() -> None:
    maps = {"sparsification": None, "unification": (0.01, 0.03)}
    performance = nnr.measure(MODEL, lambda model: (total(model), [1 / 3, zeros(model)]), maps, metric="sum")
    data = nnr.encode(MODEL, performance=performance)
    assert nnr.open(data).performance == performance
    assert not nnr.verify(data).violations
    assert (performance.performance_metric_type, performance.metric_type_performance_map_valid_flag) == ("sum", True)
    for row in performance.maps.sparsification.rows:  # type: ignore[union-attr]
        after = nnr.reduce(nnr.decode(data), [nnr.Step("sparsify", threshold=row.threshold)]).model
        assert (row.nn_accuracy, row.class_accuracies[1]) == (f4(total(after)), f4(zeros(after)))
        assert row.non_zero_ratio == f4(1 - zeros(after))
    for row in performance.maps.unification.rows:  # type: ignore[union-attr]
        step = nnr.Step("unify", threshold=row.threshold, block="2x2x2", superblock="64x64")
        assert row.nn_accuracy == f4(total(nnr.reduce(nnr.decode(data), [step]).model))
        assert (row.super_block_dimensions, row.block_dimensions) == ((64, 64), (2, 2, 2))
        assert row.reshaped_tensor_dimensions == ()  # of tensors of several shapes


def test_a_row_of_unification_has_the_dimensions_that_all_tensors_have() -> None:
    found = nnr.measure({"w": MODEL["conv"]}, lambda model: 1.0, {"unification": (0.5,)})
    assert found.maps.unification is not None
    assert found.maps.unification.rows == (UnificationRow(0.5, 1.0, (8, 4, 9), (64, 64), (2, 2, 2)),)


@pytest.mark.parametrize("goal", [{"target_size": 900}, {"target_ratio": 0.35}])
def test_a_target_counts_the_maps_as_well(goal: dict[str, Any]) -> None:
    calls = []

    def evaluate(model: nnr.Model) -> tuple[float, Sequence[float]]:
        calls.append(model)
        return total(model), [0.5] * 8

    performance = nnr.measure(MODEL, evaluate, {"sparsification": (0.0, 0.02)}, **goal)
    data = nnr.encode(MODEL, performance=performance, **goal)
    assert len(calls) == 3
    assert len(data) <= goal.get("target_size", 0.35 * sum(array.nbytes for array in MODEL.values()))
    assert performance.maps.sparsification is not None
    assert performance.maps.sparsification.rows[0].nn_accuracy == f4(total(nnr.decode(data)))


def test_points_that_suit_the_weights() -> None:
    found = nnr.measure(MODEL, lambda model: 1.0, {"sparsification": None, "unification": None}, exact=True).maps
    assert found.sparsification is not None and found.unification is not None
    ratios = [row.non_zero_ratio for row in found.sparsification.rows]
    np.testing.assert_allclose(ratios, np.linspace(1, 0.1, 10), atol=0.03)
    changed = []
    for row in found.unification.rows:
        after = nnr.reduce(MODEL, [nnr.Step("unify", threshold=row.threshold, block="2x2x2")], exact=False).model
        arrays = [(MODEL[name], np.asarray(after[name])) for name in WEIGHTS]
        changed.append(sum((a != b).sum() for a, b in arrays) / sum(a.size for a, _ in arrays))
    np.testing.assert_allclose(changed, measure.UNIFIED, atol=0.03)


def test_rules_about_reduction_are_the_encoders_own() -> None:
    keep = nnr.Rule("*", reducible=False)
    found = nnr.measure(MODEL, zeros, {"sparsification": (10.0,)}, rules=[keep]).maps.sparsification
    assert found is not None
    assert found.rows[0].nn_accuracy == 1  # unknown to a decoder


def test_other_performance_is_kept() -> None:
    pruning = PruningMap((PruningRow(0.5, 0.25),))
    known = nnr.Performance(base_model_id="base", maps=nnr.PerformanceMaps(pruning=pruning))
    found = nnr.measure(MODEL, lambda model: 1.0, {"sparsification": (0.5,)}, performance=known)
    assert (found.base_model_id, found.maps.pruning) == ("base", pruning)
    assert found.maps.sparsification is not None


# ------------------------------------------------------------------------------------------------ other steps
def test_pruning_and_decomposition_are_rows_of_their_own() -> None:
    """Steps that create other tensors are compared with manual steps."""
    model = nnr.Model(dict(MODEL))
    small = nnr.Model({"conv": MODEL["conv"][:4], "fc": MODEL["fc"], "bias": MODEL["bias"]})
    factors = nnr.Model(
        {"g": np.ones((8, 2), "f4"), "h": np.ones((2, 36), "f4"), "fc": MODEL["fc"], "bias": MODEL["bias"]}
    )
    steps = []

    def reduce(step: nnr.Step) -> Prepared:
        steps.append(str(step))
        return Prepared(small, small) if step.tool == "prune" else Prepared(factors, model)

    points = measure.checked({"pruning": [0.1], "decomposition": [0.5]})
    maps = measure.measured(
        model, measure.filled(model, points), reduce, lambda given: (given["conv"].size / 10, [0.5, 0.25])
    )
    assert steps == ["prune(ratio=0.10000000149011612)", "lowrank(mse=0.5)"]
    assert maps.pruning == PruningMap((PruningRow(f4(0.1), f4(14.4), 0b11, (0.5, 0.25)),))
    ratio = f4((8 * 2 + 2 * 36 + 330) / (8 * 36 + 330))
    assert maps.decomposition == DecompositionMap((DecompositionRow(0.5, f4(28.8), ratio, (0.5, 0.25)),))


# ------------------------------------------------------------------------------------------------ rejected input
@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({}, "no maps are given"),
        ({"sparsify": None}, "unknown map 'sparsify'; choose from sparsification, pruning"),
        ({"sparsification": ()}, "a sparsification map must have 1 to 254 points, got 0"),
        ({"sparsification": range(255)}, "a sparsification map must have 1 to 254 points, got 255"),
        ({"pruning": [-0.5]}, "a point of a pruning map must be a number from 0 to 1, got -0.5"),
        ({"pruning": [float("nan")]}, "got nan"),
        ({"sparsification": [1e39]}, "got 1e+39"),
        ({"sparsification": [True]}, "got True"),
        ({"sparsification": ["0.1"]}, "got '0.1'"),
        ({"sparsification": None, "pruning": [2]}, "a point of a pruning map must be a number from 0 to 1, got 2"),
        ({"sparsification": 0.1}, "points of a sparsification map must be a sequence of numbers or None, got 0.1"),
        (
            "sparsification",
            "maps must be a mapping from kinds to points, such as {'sparsification': None}, got 'sparsification'",
        ),
    ],
)
def test_maps_that_are_none(maps: Any, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=re.escape(message)):
        nnr.measure(MODEL, lambda model: pytest.fail("it is of no use"), maps)


@pytest.mark.parametrize("metric", ["", 3, b"top-1"])
def test_metrics_that_are_no_texts(metric: Any) -> None:
    with pytest.raises(nnr.EncodeError, match=re.escape(f"metric must be a string such as top-1, got {metric!r}")):
        nnr.measure(MODEL, lambda model: pytest.fail("it is of no use"), {"sparsification": None}, metric=metric)


def test_what_cannot_be_written_is_found_before_anything_is_evaluated() -> None:
    def evaluate(model: nnr.Model) -> float:
        pytest.fail("it is of no use")

    with pytest.raises(ValueError, match="performance_metric_type"):
        nnr.measure(MODEL, evaluate, {"sparsification": None}, metric="x", profile=0)


def test_as_many_points_as_there_is_room_for() -> None:
    points = [k / 254 for k in range(254)] + [0.0, 1 / 254 + 1e-12]  # the last two exist already
    found = nnr.measure(MODEL, lambda model: 1.0, {"sparsification": points})
    data = nnr.encode(MODEL, performance=found)
    assert nnr.open(data).performance == found
    assert found.maps.sparsification is not None and len(found.maps.sparsification.rows) == 254


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (float("nan"), "an evaluation must return a finite number"),
        ((1.0, [float("inf")]), "an evaluation must return a finite number"),
        (1e39, "an evaluation must return a finite number"),
        (None, "an evaluation must return a finite number"),
        (True, "an evaluation must return a finite number"),
        ("0.5", "an evaluation must return a finite number"),
        ((1.0, 2.0), "an evaluation must return a finite number"),
        ((1.0, [0.5], 3), "an evaluation must return a finite number"),
        ((None, [0.5]), "an evaluation must return a finite number"),
        ((1.0, [0.5] * 256), "at most 255 classes, got 256"),
        ((1.0, [0.5] * 33), "only the last 32 classes"),
    ],
)
def test_scores_that_are_none(score: object, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=re.escape(message)):
        nnr.measure(MODEL, lambda model: score, {"sparsification": (0.1,)})  # type: ignore[arg-type,return-value]


@pytest.mark.medium
@given(st.lists(st.none() | st.floats(0, 1), max_size=300))
def test_classes_come_back_or_are_refused(classes: list[float | None]) -> None:
    model = nnr.Model(dict(MODEL))
    try:
        maps = measure.blank(model, {"sparsification": (0.5,)}, (1.0, classes))
    except nnr.EncodeError:
        assert sum(one is not None for one in classes[:-32]) or sum(one is not None for one in classes) > 255
        return
    data = nnr.encode(MODEL, performance=nnr.Performance(maps=maps), effort=1)
    found = nnr.open(data).performance.maps.sparsification
    assert found is not None
    assert found.rows[0].by_class(len(classes)) == {k: f4(one) for k, one in enumerate(classes) if one is not None}


def test_a_decomposition_map_has_no_mask() -> None:
    model = nnr.Model(dict(MODEL))
    with pytest.raises(nnr.EncodeError, match="must have the accuracies of all classes"):
        measure.blank(model, {"decomposition": (0.5,)}, (1.0, [None, 0.5]))
    maps = measure.blank(model, {"decomposition": (0.5,)}, (1.0, [0.5] * 1000))
    assert nnr.open(nnr.encode(MODEL, performance=nnr.Performance(maps=maps))).performance.maps == maps


def test_weights_that_are_not_finite_suggest_no_points() -> None:
    with pytest.raises(nnr.EncodeError, match="no finite weights"):
        nnr.measure({"w": np.full((4, 4), np.nan, "f4")}, lambda model: 1.0, {"sparsification": None})


@pytest.mark.parametrize("kind", ["sparsification", "unification", "decomposition"])
def test_weights_that_float32_does_not_have_suggest_no_points(kind: str) -> None:
    with pytest.raises(nnr.EncodeError, match=f"a point of a {kind} map must be a number"):
        nnr.measure({"w": 1e100 * RNG.normal(size=(8, 9))}, lambda model: 1.0, {kind: None}, exact=True)


def test_numbers_that_are_none_are_passed_over() -> None:
    """There is no warning, also for signaling not-a-numbers."""
    odd = MODEL["fc"].copy()
    odd.view("u4")[0, 0] = 0x7FA00000
    kinds = dict.fromkeys(("sparsification", "unification"))
    found = nnr.measure({**MODEL, "odd": odd}, lambda model: 1.0, kinds).maps
    assert found.sparsification is not None and len(found.sparsification.rows) > 5


# ------------------------------------------------------------------------------------------------ a network
@pytest.mark.medium
def test_maps_of_a_network() -> None:
    """All kinds are measured for the network of the examples; accuracy is the similarity to the original weights."""
    original = nnr.load(DIGITS)

    def evaluate(model: nnr.Model) -> float:
        squares = [
            float(((np.asarray(model[name], "f8") - np.asarray(original[name], "f8")) ** 2).sum())
            for name in original
            if np.asarray(model[name]).shape == np.asarray(original[name]).shape
        ]
        return -sum(squares)

    maps = {"sparsification": (0.01, 0.1), "pruning": (0.1,), "unification": None, "decomposition": None}
    found = nnr.measure(original, evaluate, maps)
    data = nnr.encode(original, performance=found)
    assert nnr.open(data).performance == found
    assert not nnr.verify(data).violations
    assert found.maps.decomposition is not None and found.maps.sparsification is not None
    ratios = [row.nn_reduction_ratio for row in found.maps.decomposition.rows]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] < ratios[0] <= 1
    first, second = found.maps.sparsification.rows
    assert first.nn_accuracy > second.nn_accuracy
