"""Sparsified updates: the required number of zeros, small parameters, and no lost updates."""

from __future__ import annotations

import copy
import pickle
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.dtypes import STORED_TYPES, stored_type
from nnr_codec.encoder.reduce.sparsify import sparsify
from nnr_codec.errors import EncodeError
from nnr_codec.federated.feedback import ErrorFeedback
from nnr_codec.model import Array

from ..arrays import arrays, assert_identical, in_memory, made, models, patterns
from ..shared import examples

FLOATS = tuple(name for name, stored in STORED_TYPES.items() if stored.kind == "f")
RATIOS = st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]) | st.floats(0, 1)


def is_matrix(array: Array) -> bool:
    stored = stored_type(array.dtype)
    return stored is not None and stored.kind == "f" and sum(extent > 1 for extent in array.shape) > 1


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype("f4")


def zeros(tensors: dict[str, Array]) -> tuple[int, int]:
    """Return the number of zeros and of all parameters of matrices."""
    matrices = [array for array in tensors.values() if is_matrix(array)]
    return sum(int((array == 0).sum()) for array in matrices), sum(array.size for array in matrices)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.55, 0.9, 0.999, 1.0])
def test_exactly_as_many_zeros_as_asked_for(ratio: float) -> None:
    update = {"a": normal(100, 30), "b": 3 * normal(50, 20, seed=1) + np.float32(0.1), "c": normal(5, 4, 3, 3, seed=2)}
    found, total = zeros(sparsify(update, ratio))
    assert found == ceil(round(ratio * total, 6))


@given(models(), RATIOS, st.booleans())
def test_any_update(update: dict[str, Array], ratio: float, structured: bool) -> None:
    before = copy.deepcopy(update)
    got = sparsify(update, ratio, structured=structured)
    assert list(got) == list(update)
    with np.errstate(invalid="ignore"):
        for name, array in update.items():
            assert_identical(array, before[name])
            if not is_matrix(array):
                assert got[name] is array
                continue
            assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype)
            left = np.asarray(got[name] != 0) | (patterns(got[name]) != 0)
            assert (patterns(got[name])[left] == patterns(array)[left]).all()
            gone = np.asarray((got[name] == 0) & (array != 0))
            assert np.isfinite(array[gone]).all()
            if not structured and gone.any():
                stays = np.abs(array[np.asarray(np.isfinite(array) & (got[name] != 0))].astype("f8"))
                assert stays.min(initial=np.inf) > np.abs(array[gone].astype("f8")).max()
        found, total = zeros(got)
        finite = all(np.isfinite(array).all() for array in update.values() if is_matrix(array))
    if finite:
        assert found >= ratio * total * (1 - 1e-12)


@given(arrays(FLOATS, shapes=((6, 7), (48, 64), (5, 4, 3))), st.floats(0, 1))
def test_ties_bound_the_number_of_zeros(array: Array, ratio: float) -> None:
    with np.errstate(invalid="ignore"):
        values = np.where(np.isfinite(array), array.astype("f8"), np.inf)
        got = np.asarray(sparsify({"w": array}, ratio)["w"] == 0)
    gone = np.abs(values[got])
    if not gone.any():
        return
    # Without values that are equal up to rounding, there would not be enough.
    least = gone.max() * (1 - 2.0**-22) - 2.0**-38 * np.abs(values[np.isfinite(values)]).max()
    assert (gone < least).sum() < ratio * array.size


def test_one_delta_for_all() -> None:
    """A tensor with a larger deviation does not keep more of its parameters."""
    update = {"a": normal(100, 100), "b": 100 * normal(100, 100)}
    got = sparsify(update, 0.9)
    assert np.array_equal(got["a"] == 0, got["b"] == 0)
    rows = sparsify(update, 0.9, structured=True)
    assert np.array_equal(rows["a"] == 0, rows["b"] == 0)


def test_mean_and_deviation() -> None:
    """Means are 0.5 and 0, the deviation 0.1: a delta of 2 is a threshold of 0.7 and 0.2."""
    update = {"a": normal(200, 200) + np.float32(0.5), "b": normal(200, 200, seed=1)}
    got = sparsify(update, 0.965)
    limits = {name: float(np.abs(update[name][got[name] == 0]).max()) for name in update}
    assert limits["a"] - limits["b"] == pytest.approx(0.5, abs=0.01)
    assert limits["b"] == pytest.approx(0.2, abs=0.02)


def test_rows() -> None:
    weight = normal(40, 3, 3, 3) * np.geomspace(0.01, 1, 40).astype("f4").reshape(-1, 1, 1, 1)
    weight = weight[np.random.default_rng(5).permutation(40)]
    for ratio in (0.25, 0.5, 0.51):
        got = sparsify({"w": weight}, ratio, structured=True)["w"]
        kept = got.any(axis=(1, 2, 3))
        assert np.array_equal(got[kept], weight[kept])
        assert kept.sum() == 40 - ceil(ratio * 40)
        means = np.abs(weight).mean(axis=(1, 2, 3))
        assert means[kept].min() > means[~kept].max()


def test_zeros_that_are_there_count() -> None:
    weight = normal(20, 20)
    weight[:10] = 0
    assert sparsify({"w": weight}, 0.5)["w"] is weight
    assert zeros(sparsify({"w": weight}, 0.75)) == (300, 400)
    assert zeros(sparsify({"w": weight}, 0.75, structured=True)) == (300, 400)


@pytest.mark.parametrize("structured", [False, True])
def test_equal_values_are_treated_equally(structured: bool) -> None:
    ones = np.full((8, 8), 0.1, "f4")
    assert not sparsify({"w": ones}, 0.01, structured=structured)["w"].any()
    assert sparsify({"w": ones}, 0.0, structured=structured)["w"] is ones


@pytest.mark.parametrize("structured", [False, True])
def test_infinities_and_nan_stay(structured: bool) -> None:
    weight = normal(4, 5)
    weight[0, 0], weight[2, 1], weight[2, 2] = np.nan, np.inf, -np.inf
    weight.view("u4")[0, 1] = 0x7F800001  # a signaling one
    got = sparsify({"w": weight, "v": np.full((2, 2), np.nan, "f4")}, 1.0, structured=structured)
    stays = np.isin(np.arange(4), [0, 2])[:, None] & np.ones(5, "?") if structured else ~np.isfinite(weight)
    assert np.array_equal(got["w"], np.where(stays, weight, 0), equal_nan=True)
    assert np.isnan(got["v"]).all()


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-1074, 2.0**100, 2.0**1016])
def test_the_least_and_largest_floats(scale: float, structured: bool) -> None:
    weight = np.random.default_rng(0).integers(-100, 101, (30, 30)) * np.float64(scale)
    if 2.0**-149 <= scale <= 2.0**100:
        weight = weight.astype("f4")
    found, total = zeros(sparsify({"w": weight}, 0.5, structured=structured))
    assert total / 2 <= found <= total * 0.55


@pytest.mark.parametrize("structured", [False, True])
def test_layouts_do_not_matter(structured: bool) -> None:
    update = {"w": made("normal", (48, 64), "float32"), "v": made("normal", (16, 8, 3, 3), "float64", 1)}
    wanted = sparsify(update, 0.8, structured=structured)
    for layout in ("big-endian", "columns first", "reversed", "every other", "read-only"):
        got = sparsify({name: in_memory(array, layout) for name, array in update.items()}, 0.8, structured=structured)
        for name in update:
            assert_identical(got[name], wanted[name])


def test_the_sums_include_all_items() -> None:
    """There are more items than are processed at once, with different parts."""
    weight = np.concatenate([normal(512, 1000), 10 * normal(512, 1000, seed=1) + np.float32(3)])
    for structured in (False, True):
        found, total = zeros(sparsify({"w": weight}, 0.6, structured=structured))
        assert ceil(0.6 * total) <= found <= 0.6 * total + (1000 if structured else 2)


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan"), float("inf")])
def test_ratios(ratio: float) -> None:
    with pytest.raises(EncodeError, match="must be from 0 to 1"):
        sparsify({"w": normal(3, 3)}, ratio)
    assert sparsify({}, 0.5) == {}


# ------------------------------------------------------------------------------------------------ error feedback
def test_omitted_changes_are_sent_later() -> None:
    """After enough rounds, all changes of a client have been sent, except for the residual."""
    feedback, total, arrived = ErrorFeedback(), np.zeros((30, 30)), np.zeros((30, 30))
    for seed in range(20):
        update = {"w": normal(30, 30, seed=seed)}
        wanted = feedback.add(update)
        decoded = sparsify(wanted, 0.9)
        feedback.keep(wanted, decoded)
        total, arrived = total + update["w"], arrived + decoded["w"]
        np.testing.assert_allclose(arrived + feedback.residual["w"], total, atol=1e-5)
    assert not np.allclose(arrived, total, atol=0.1)


@given(st.lists(st.tuples(models(), models()), min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_any_tensors(rounds: list[tuple[dict[str, Array], dict[str, Array]]]) -> None:
    feedback = ErrorFeedback()
    for update, decoded in rounds:
        before = copy.deepcopy(update)
        wanted = feedback.add(update)
        assert list(wanted) == list(update)
        for name, array in update.items():
            assert_identical(array, before[name])
            assert wanted[name].shape == array.shape
            assert wanted[name] is array or np.isfinite(wanted[name]).all()
        feedback.keep(wanted, decoded)
        assert feedback.residual.keys() <= update.keys()
        for name, residual in feedback.residual.items():
            assert residual.dtype == ("f8" if update[name].dtype.name == "float64" else "f4")
            assert residual.shape == update[name].shape and np.isfinite(residual).all()


def test_what_has_no_residual() -> None:
    feedback = ErrorFeedback()
    ones = np.ones((2, 2), "f4")
    wanted = {
        "missing": ones, "integer": np.ones(3, "i4"), "reshaped": ones, "infinite": np.full(2, np.inf, "f4"),
        "other": ones, "vector": np.ones(3, "f4"), "scalar": np.float32(2).reshape(()),
    }  # fmt: skip
    decoded = {
        "reshaped": np.ones(4, "f4"), "other": np.ones((2, 2), "i4"), "vector": np.full((1, 3), 0.5, "f4"),
        "scalar": np.array([1], "f4"),
    }  # fmt: skip
    feedback.keep(wanted, decoded)
    assert {name: residual.tolist() for name, residual in feedback.residual.items()} == {
        "missing": [[1, 1], [1, 1]], "vector": [0.5, 0.5, 0.5], "scalar": 1,
    }  # fmt: skip


def test_what_a_residual_is_not_added_to() -> None:
    feedback = ErrorFeedback()
    feedback.keep(dict.fromkeys("abcdef", np.full((2, 2), 3e38, "f4")), {})
    update = {
        "a": np.ones(4, "f4"), "b": np.ones((2, 2), "f8"), "c": np.ones((2, 2), "i4"), "d": np.full((2, 2), 3e38, "f4"),
        "e": np.full((2, 2), np.nan, "f4"), "new": np.ones(3, "f4"),
    }  # fmt: skip
    wanted = feedback.add(update)
    assert list(wanted) == list(update)
    assert all(wanted[name] is array for name, array in update.items())
    feedback.keep(wanted, wanted)
    assert not any(residual.any() for residual in feedback.residual.values())
    assert feedback.residual.keys() == {"a", "b", "d", "new"}


def test_narrow_floats_lose_nothing() -> None:
    feedback = ErrorFeedback()
    for _ in range(100):
        update = {"w": np.full(3, 0.001, "f2")}
        wanted = feedback.add(update)
        feedback.keep(wanted, {})
    assert feedback.residual["w"].tolist() == pytest.approx([100 * float(np.float16(0.001))] * 3, rel=1e-4)


def test_reset_and_pickle() -> None:
    feedback = ErrorFeedback()
    feedback.keep({"w": normal(3, 3)}, {})
    again = pickle.loads(pickle.dumps(feedback))
    assert_identical(again.residual["w"], normal(3, 3))
    feedback.reset()
    assert feedback.residual == {} and feedback.add({"w": normal(3, 3)})["w"].shape == (3, 3)
