"""Binary-ternary quantization of one tensor: the largest values remain, with their mean as magnitude."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.federated.sbt import binary_ternary, is_ternary
from nnr_codec.model import Array

from ..arrays import arrays, assert_identical, in_memory

RATIOS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]) | st.floats(0, 1)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype("f4")


def test_ternary_by_hand() -> None:
    """Half of eight values become 0: tau is 3, and mu the mean of 4, 5, 6 and 7."""
    array = np.array([[1, -2, 3, -4], [5, 0, -7, 6]], "f4")
    got = binary_ternary(array, 0.5, ternary=True)
    assert got.tolist() == [[0, 0, 0, -5.5], [5.5, 0, -5.5, 5.5]]


@pytest.mark.parametrize("sign", [1, -1])
def test_binary_by_hand(sign: int) -> None:
    """The mean of 4 and 9 exceeds the mean of 5, 6 and 7."""
    array = sign * np.array([1, -4, 5, 6, 2, 3, 7, -9], "f8")
    assert (sign * binary_ternary(array, 3 / 8, ternary=False)).tolist() == [0, -6.5, 0, 0, 0, 0, 0, -6.5]
    array[-1] = -sign * 7  # 5.5, which is less than 6
    assert (sign * binary_ternary(array, 3 / 8, ternary=False)).tolist() == [0, 0, 6, 6, 0, 0, 6, 0]


def test_of_equal_means_the_positive_sign_stays() -> None:
    array = np.array([3, -3, 5, -5, -4, 4, 0], "f4")
    assert binary_ternary(array, 0, ternary=False).tolist() == [4, 0, 4, 0, 0, 4, 0]


@given(arrays(("float32", "float64")), RATIOS, st.booleans())
def test_any_tensor(array: Array, ratio: float, ternary: bool) -> None:
    before = array.copy()
    got = binary_ternary(array, ratio, ternary=ternary)
    assert_identical(array, before)
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    if not array.size or not np.isfinite(array).all() or not array.any():
        assert got is array
        return
    stays, sizes = got != 0, np.abs(array)
    values = np.unique(np.abs(got[stays]))
    assert len(values) == 1
    assert (np.sign(got[stays]) == np.sign(array[stays])).all()
    dropped = min(ceil(ratio * array.size * (1 - 1e-12)), array.size - 1)
    tau = np.sort(sizes, axis=None)[dropped - 1] if dropped else 0
    assert sizes[stays].min() > tau or (sizes[stays] == sizes.max()).all()
    mean = float((sizes[stays].astype("f8") / sizes.max()).mean())
    rounded = 2.0**-22 + float(np.spacing(array.dtype.type(0)) / sizes.max())
    assert float(values[0]) / float(sizes.max()) == pytest.approx(mean, rel=1e-6, abs=rounded)
    signs = set(np.sign(got[stays]).tolist())
    large = sizes > tau if (sizes > tau).any() else sizes == sizes.max()
    if ternary:
        assert np.array_equal(stays, large)
    else:
        assert len(signs) == 1
        assert np.array_equal(stays, large & (np.sign(array) == signs.pop()))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9, 0.98, 0.999])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_mu_makes_the_error_least(ratio: float, dtype: str) -> None:
    """For one magnitude the mean has the smallest error, and no other selection than the largest values has less."""
    array = normal(64, 100).astype(dtype)
    got = binary_ternary(array, ratio, ternary=True)
    assert np.count_nonzero(got) == array.size - ceil(round(ratio * array.size, 6))
    mu = np.abs(array[got != 0]).mean()
    assert np.abs(got).max() == pytest.approx(mu, rel=1e-5)

    def noise(factor: float) -> float:
        return float(np.square(array - factor * got).sum())

    assert noise(1) < min(noise(0.99), noise(1.01))


def test_at_least_one_stays() -> None:
    array = normal(20, 20)
    for ternary in (True, False):
        got = binary_ternary(array, 1, ternary=ternary)
        assert np.count_nonzero(got) == 1
        assert np.abs(got).max() == np.abs(array).max()


def test_equal_values_are_treated_equally() -> None:
    same = np.full((5, 5), -0.25, "f4")
    assert np.array_equal(binary_ternary(same, 0.9, ternary=True), same)
    assert np.array_equal(binary_ternary(same, 0.9, ternary=False), same)
    two = np.concatenate([np.full(50, 1, "f4"), np.full(50, -2, "f4")])
    assert np.array_equal(binary_ternary(two, 0.1, ternary=True), np.where(two < 0, two, 0))


def test_zeros_that_are_there_count() -> None:
    array = np.zeros((10, 10), "f4")
    array[0] = np.arange(1, 11)
    for ratio in (0.0, 0.5, 0.9):
        assert np.count_nonzero(binary_ternary(array, ratio, ternary=True)) == 10
    assert np.count_nonzero(binary_ternary(array, 0.95, ternary=True)) == 5


@pytest.mark.parametrize("hostile", [np.nan, np.inf, -np.inf])
def test_infinities_and_nan_stay(hostile: float) -> None:
    array = normal(4, 5)
    array[1, 2] = hostile
    assert binary_ternary(array, 0.5, ternary=True) is array


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_mean_of_the_largest_floats(dtype: str) -> None:
    array = np.full((2, 3), np.finfo(dtype).max, dtype)
    for ternary in (True, False):
        assert np.array_equal(binary_ternary(array, 0, ternary=ternary), array)


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-1074, 2.0**100, 2.0**1016])
def test_the_least_and_largest_floats(scale: float) -> None:
    array = np.random.default_rng(0).integers(-100, 101, (30, 30)) * np.float64(scale)
    if 2.0**-149 <= scale <= 2.0**100:
        array = array.astype("f4")
    got = binary_ternary(array, 0.5, ternary=True)
    assert np.isfinite(got).all()
    assert np.abs(got).max() == pytest.approx(np.abs(array[got != 0]).mean(dtype="f8") if scale < 1e300 else got.max())


def test_layouts_do_not_matter() -> None:
    array = normal(48, 64)
    wanted = [binary_ternary(array, 0.9, ternary=ternary) for ternary in (True, False)]
    drawn = [is_ternary(array, 0.5, k) for k in range(64)]
    for layout in ("big-endian", "columns first", "reversed", "every other", "read-only"):
        other = in_memory(array, layout)
        for ternary, want in zip((True, False), wanted, strict=True):
            assert np.array_equal(binary_ternary(other, 0.9, ternary=ternary), want)
        assert [is_ternary(other, 0.5, k) for k in range(64)] == drawn


def test_the_mean_is_that_of_all_items() -> None:
    """There are more items than are summed at once."""
    array = np.concatenate([normal(512, 1000), 10 * normal(512, 1000, seed=1)])
    got = binary_ternary(array, 0.5, ternary=True)
    assert np.abs(got).max() == pytest.approx(np.abs(array[got != 0]).mean(dtype="f8"), rel=1e-6)


# ------------------------------------------------------------------------------------------------ draws
def test_draws_depend_on_all_that_they_should() -> None:
    array = normal(8, 8)
    places = [("m", 0, k, "w") for k in range(2000)]
    found = [is_ternary(array, 0.25, *place) for place in places]
    assert found == [is_ternary(array, 0.25, *place) for place in places]
    assert 0.2 < np.mean(found) < 0.3
    for other in (
        [is_ternary(array, 0.25, "m", 1, k, "w") for k in range(2000)],
        [is_ternary(array, 0.25, "m", 0, k, "v") for k in range(2000)],
        [is_ternary(array, 0.25, "n", 0, k, "w") for k in range(2000)],
        [is_ternary(array * 2, 0.25, *place) for place in places],
    ):
        assert 0.25 < np.mean(np.array(found) != other) < 0.5  # 0.375 of independent draws


def test_draws_that_are_no_draws() -> None:
    for k in range(100):
        assert is_ternary(normal(2, 2), 1, k)
        assert not is_ternary(normal(2, 2), 0, k)


def test_draws_are_the_same_on_every_machine() -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3)
    drawn = "".join("bt"[is_ternary(array, 0.5, "m", 3, k, "w")] for k in range(16))
    assert drawn == "bbbtbbtbtttttbtb"
