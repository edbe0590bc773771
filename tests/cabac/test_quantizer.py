"""Uniform and dependent quantization against definitions and brute force."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.bitstream.ndu import coding_order
from nnr_codec.cabac_ext.kernel import (
    PayloadDecoder,
    PayloadEncoder,
    TensorSide,
    TensorSyntax,
    choose_shift_parameter_ids,
)
from nnr_codec.cabac_ext.kernel import (
    scale as multiply,
)
from nnr_codec.cabac_ext.quantizer import (
    collisions,
    count_distinct,
    glance,
    grid,
    loss,
    loss_of_levels,
    power,
    resolve,
    survey,
    trellis,
    uniform,
)
from nnr_codec.syntax.deepcabac import STATE_TRANS_TAB

from ..shared import examples

Array = npt.NDArray[Any]
Levels = npt.NDArray[np.int32]
each_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def dependent(x: Array, step: float, levels: Levels) -> None:
    """Return the least squared error. Costs are integers: in squared steps, each value is accurate to 2^-14."""
    trellis(x, step, levels, dq_flag=1, rate=0)


def quantize(function: Callable[[Array, float, Levels], None], x: Array, step: float) -> Levels:
    """Return the levels of x, which is not changed."""
    kept, levels = x.copy(), np.full(x.shape, 12345, np.int32)
    function(x, step, levels)
    assert np.array_equal(x, kept)
    return levels


def reconstruct(levels: Levels | list[int]) -> npt.NDArray[np.int64]:
    """Return QuantParam of levels in coding order, 10.2.1.4, in steps of dependent quantization (9.2.3)."""
    state, out = 0, []
    for level in np.asarray(levels).tolist():
        out.append(2 * level - (state & 1) * ((level > 0) - (level < 0)))
        state = STATE_TRANS_TAB[state][level & 1]
    return np.array(out, np.int64)


def squared_error(x: Array, step: float, levels: Levels) -> float:
    """Return the squared error of the dependent reconstruction."""
    return float(((x.astype(np.float64) - reconstruct(levels) * step) ** 2).sum())


# ------------------------------------------------------------------------------------------------ uniform
@each_type
def test_uniform_is_the_nearest_level(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    for step in (1.0, 0.37, 2.0**-9, 3e-5, 1700.0):
        x = (rng.standard_normal(5000) * 40 * step).astype(dtype)
        levels = quantize(uniform, x, step)
        exact = x.astype(np.float64)
        error = np.abs(exact - levels * step)
        assert (error <= step * (0.5 + 1e-12)).all()
        assert (error <= np.abs(exact - (levels + 1.0) * step) + 1e-12 * np.abs(exact)).all()
        assert (error <= np.abs(exact - (levels - 1.0) * step) + 1e-12 * np.abs(exact)).all()


@each_type
def test_uniform_at_ties_and_ends(dtype: Any) -> None:
    x = np.array([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.5, 0.49999, 1e-30, 2.0**30, -(2.0**30)], dtype)
    expected = [0, 0, 0, 0, 2, 2, -2, 4, 0, 0, 2**30, -(2**30)]
    assert quantize(uniform, x, 1.0).tolist() == expected
    assert quantize(uniform, x * dtype(0.25), 0.25).tolist() == expected
    assert quantize(uniform, np.array([-(2.0**31) + 128], dtype), 1.0).tolist() == [-(2**31) + 128]
    assert quantize(uniform, np.zeros(0, dtype), 1.0).tolist() == []


def test_types_of_arguments() -> None:
    for function in (uniform, dependent):
        for x in (np.zeros(3, np.int32), np.zeros((3, 1)), np.zeros(6)[::2], np.zeros(3, np.float16)):
            with pytest.raises((TypeError, ValueError)):
                function(x, 1.0, np.zeros(3, np.int32))
        with pytest.raises((TypeError, ValueError)):
            function(np.zeros(3), 1.0, np.zeros(3, np.int64))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ dependent
def test_reconstruction_is_what_a_decoder_gives() -> None:
    levels = np.random.default_rng(0).integers(-6, 7, 500).astype(np.int32)
    s = TensorSyntax((500,), dq_flag=1)
    c = PayloadEncoder()
    c.quant_tensor(s, levels)
    c.terminate()
    assert np.array_equal(PayloadDecoder(c.getvalue()).quant_tensor(s)[0], reconstruct(levels))


def least_squared_error(q: list[float]) -> float:
    """Search all sequences of levels near the values, in steps; a zero stays zero."""
    near = []
    for value in q:
        middle = round(value / 2)
        near.append(sorted({*range(middle - 2, middle + 3), 0}) if value else [0])
    return min(float(((np.array(q) - reconstruct(list(levels))) ** 2).sum()) for levels in _sequences(near))


def _sequences(near: list[list[int]]) -> list[tuple[int, ...]]:
    return list(product(*near))


@each_type
def test_dependent_is_optimal(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for n in (1, 2, 3):
        for scale in (0.3, 1.0, 2.5, 30.0):
            for _ in range(3):
                step = float(rng.uniform(0.01, 3))
                x = (rng.standard_normal(n) * scale * step).astype(dtype)
                got = squared_error(x, step, quantize(dependent, x, step)) / step**2
                best = least_squared_error((x.astype(np.float64) / step).tolist())
                assert got == pytest.approx(best, abs=n * 2**-14)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=3))
def test_dependent_is_optimal_anywhere(q: list[float]) -> None:
    got = squared_error(np.array(q), 1.0, quantize(dependent, np.array(q), 1.0))
    assert got == pytest.approx(least_squared_error(q), abs=len(q) * 2**-14)


def viterbi_by_numpy(q: Array) -> float:
    """Return the least squared error, without levels: all levels near a value from each state."""
    least = {0: 0.0}
    for value in q.tolist():
        after: dict[int, float] = {}
        middle = round(value / 2)
        for state, cost in least.items():
            for level in {*range(middle - 3, middle + 4), 0, 1, -1} if value else {0}:
                k = 2 * level - (state & 1) * ((level > 0) - (level < 0))
                new = STATE_TRANS_TAB[state][level & 1]
                after[new] = min(after.get(new, np.inf), cost + (value - k) ** 2)
        least = after
    return min(least.values())


def test_dynamic_programming_equals_brute_force() -> None:
    """It can therefore replace brute force for more values."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        q = rng.standard_normal(3) * 4
        assert viterbi_by_numpy(q) == pytest.approx(least_squared_error(q.tolist()), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 5])
def test_dependent_is_optimal_at_length(n: int) -> None:
    rng = np.random.default_rng(n)
    for scale in (0.5, 1.5, 6.0):
        for _ in range(3):
            q = rng.standard_normal(n) * scale
            got = squared_error(q, 1.0, quantize(dependent, q, 1.0))
            assert got == pytest.approx(least_squared_error(q.tolist()), abs=n * 2**-14)


@each_type
@pytest.mark.parametrize("scale", [0.1, 0.7, 3.0, 1000.0])
def test_dependent_is_optimal_for_many_values(dtype: Any, scale: float) -> None:
    rng = np.random.default_rng(6)
    for n in (4, 5, 8, 300):
        step = 0.125
        x = (rng.laplace(0, 1, n) * scale * step).astype(dtype)
        got = squared_error(x, step, quantize(dependent, x, step)) / step**2
        assert got == pytest.approx(viterbi_by_numpy(x.astype(np.float64) / step), abs=n * 2**-14)


def test_zeros_stay_zeros() -> None:
    """Pruned weights stay pruned, whatever their neighbours are."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        q = rng.standard_normal(200) * 5 * (rng.random(200) < 0.5)
        assert not quantize(dependent, q, 1.0)[q == 0].any()


@pytest.mark.parametrize("width", [1, 2, 3, 20])
def test_dependent_is_optimal_where_later_values_decide(width: int) -> None:
    """A few values are far from the levels that exact neighbours require, so the worse parity is optimal."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        q = reconstruct(rng.integers(-width, width + 1, 60).astype(np.int32)).astype(np.float64)
        q[::10] += rng.uniform(-2, 2, 6)
        got = squared_error(q, 1.0, quantize(dependent, q, 1.0))
        assert got == pytest.approx(viterbi_by_numpy(q), abs=q.size * 2**-14)


@each_type
def test_values_that_can_be_met_exactly_are(dtype: Any) -> None:
    """This includes more than 2^20 values, where the search pauses to check for signals."""
    for n, width in ((1, 3), (2, 9), (1000, 2), (1000, 60_000), ((1 << 20) + 1000, 5)):
        wanted = np.random.default_rng(n).integers(-width, width + 1, n).astype(np.int32)
        x = (reconstruct(wanted) * 0.5).astype(dtype)
        assert np.array_equal(quantize(dependent, x, 0.5), wanted)
    assert quantize(dependent, np.zeros(0, dtype), 1.0).tolist() == []
    assert quantize(dependent, np.zeros(9, dtype), 1.0).tolist() == [0] * 9


@each_type
def test_largest_values(dtype: Any) -> None:
    """|x| / step is slightly below 2^30."""
    top = float(np.nextafter(dtype(2.0**30), dtype(0)))
    x = np.array([top, -top, top, 0, -top], dtype)
    levels = quantize(dependent, x, 1.0)
    assert np.abs(levels.astype(np.int64)).max() <= 2**29 + 1
    assert np.abs(reconstruct(levels) - x.astype(np.float64)).max() <= 4


def rate(levels: Levels, dq_flag: int) -> float:
    """Return bits for each value, with selected shift parameters."""
    s = TensorSyntax(levels.shape, dq_flag=dq_flag)
    c = PayloadEncoder()
    c.quant_tensor(s, levels, TensorSide(shift_parameter_ids=choose_shift_parameter_ids(s, levels)))
    c.terminate()
    return 8 * len(c.getvalue()) / levels.size


@each_type
@pytest.mark.parametrize("source", ["normal", "laplace"])
@pytest.mark.parametrize("step", [0.2, 0.5])
def test_dependent_is_better_than_uniform(dtype: Any, source: str, step: float) -> None:
    """The error is smaller at equal rate; the step sizes are found by bisection."""
    rng = np.random.default_rng(9)
    x = (rng.standard_normal(20_000) if source == "normal" else rng.laplace(0, 1, 20_000)).astype(dtype)
    flat = quantize(uniform, x, step)
    low, high = step / 4, step
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if rate(quantize(dependent, x, middle), 1) <= rate(flat, 0) else (middle, high)
    levels = quantize(dependent, x, high)
    assert rate(levels, 1) <= rate(flat, 0)
    uniform_error = float(((x.astype(np.float64) - flat * step) ** 2).sum())
    assert squared_error(x.astype(np.float64), high, levels) < 0.9 * uniform_error


def test_dependent_is_deterministic() -> None:
    x = np.random.default_rng(3).standard_normal(3000)
    first = quantize(dependent, x, 0.3)
    assert all(np.array_equal(quantize(dependent, x, 0.3), first) for _ in range(3))


# ------------------------------------------------------------------------------------------------ products
@pytest.mark.parametrize("step", [0.0073, 2.0**-140, 3e28])
def test_products_are_rounded_twice(step: float) -> None:
    levels = np.random.default_rng(8).integers(-(2**31), 2**31, 1003, np.int32) >> np.arange(1003, dtype=np.int32) % 32
    out = np.empty(1003, np.float32)
    multiply(levels, step, out)
    assert out.tobytes() == (levels.astype(np.float32) * np.float32(step)).tobytes()
    with pytest.raises(ValueError, match="differ in length"):
        multiply(levels, step, out[1:])


@each_type
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 63, 64, 65, 1000])
def test_survey_finds_extremes_at_any_place(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    for place in range(n):
        x = rng.normal(0, 1, n).astype(dtype)
        for extreme in (-100, 100, 1e-30, -1e-30, 0):
            x[place] = extreme
            low, high, total, nonzero, smallest = survey(x)
            assert (low, high, total, nonzero) == (x.min(), x.max(), power(x), np.count_nonzero(x))
            assert smallest == np.abs(x[x != 0]).min(initial=np.inf)
        for odd in (np.nan, np.inf, -np.inf):
            x[place] = odd
            assert np.isnan(survey(x)[:2]).all()
    with pytest.raises(ValueError, match="no bounds"):
        survey(np.zeros(0, dtype))


@each_type
def test_grid_is_the_largest_power_of_two_and_the_common_divisor_of_its_multiples(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for exponent in (-100, -30, 0, 40):
        for divisor in (1, 3, 5, 2**10 - 1):
            multiples = rng.integers(-1000, 1000, 50) * divisor
            multiples[0] = divisor  # odd
            x = np.ldexp(multiples.astype(dtype), exponent)
            common = gcd(*[int(multiple) for multiple in multiples])
            expected = exponent, common, float(np.abs(x).max())
            assert grid(x, 30) == expected
            assert grid(np.repeat(x, 20_000), 30) == expected
            assert grid(x, 5) is None
    assert grid(np.array([0.0, 0.0], dtype), 30) == (1 << 16, 0, 0.0)
    assert grid(np.array([1.0, -0.0], dtype), 30) is None
    assert grid(np.array([np.finfo(dtype).smallest_subnormal], dtype), 30) is not None
    for odd in (np.nan, np.inf, -np.inf):
        assert grid(np.array([1.0, odd], dtype), 30) is None


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_distinct_items_are_counted_by_all_their_bits(dtype: type[np.uint32 | np.uint64]) -> None:
    items = np.random.default_rng(3).integers(0, 900, 5000).astype(dtype)
    items[::7] = ~items[::7]
    for some in (items, items[::3], items[:1], items[:0]):
        assert count_distinct(some) == len(set(some.tolist()))


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 5000])
def test_loss_of_levels_is_the_loss_of_their_values(n: int, dq_flag: int) -> None:
    x = np.random.default_rng(5).normal(0, 1, n).astype(np.float32)
    levels = np.rint(x * 40).astype(np.int32)
    quant_param = np.array(reconstruct(levels), np.int32) if dq_flag else levels
    found = loss_of_levels(x, levels, 0.025, dq_flag)
    expected = loss(x, quant_param.astype(np.float32) * np.float32(0.025))
    assert found[:2] == pytest.approx(expected[:2], rel=1e-12)
    assert found[2:] == expected[2:]
    with pytest.raises(ValueError, match="differ in length"):
        loss_of_levels(x, np.zeros(n + 1, np.int32), 1.0, dq_flag)


@pytest.mark.parametrize("shape", [(7, 9), (70, 45), (33, 2000)])
def test_block_scans_do_not_change_what_levels_in_coding_order_mean(shape: tuple[int, int]) -> None:
    syntax = TensorSyntax(shape, scan_order=2)
    order = coding_order(syntax)
    rng = np.random.default_rng(6)
    x, levels = rng.standard_normal(order.size, np.float32), rng.integers(-4, 5, order.size, np.int32)
    found, expected = np.empty_like(levels), np.empty_like(levels)
    state = resolve(levels, found, 3, syntax.block_scan)
    assert resolve(levels[order], expected, 3) == state
    assert np.array_equal(found[order], expected)
    for dq_flag in (0, 1):
        loss_in_order = loss_of_levels(x[order], levels[order], 0.3, dq_flag)
        assert loss_of_levels(x, levels, 0.3, dq_flag, syntax.block_scan) == loss_in_order


@pytest.mark.parametrize("block_scan", [(3, 8), (0, 8), (-1, 8), (2, 0)])
def test_a_block_scan_needs_a_matrix(block_scan: tuple[int, int]) -> None:
    levels = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="block scan of"):
        resolve(levels, levels, block_scan=block_scan)


@each_type
def test_glance(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 2, 3, 100, 2000):
        for scale in (1, 30, 1e6):
            x = np.rint(rng.normal(0, scale, 5 * n)).astype(dtype)[::5]
            x /= 4
            assert glance(x, 4.0) == (len({value.tobytes() for value in x}), True)
            if n:
                x[n // 2] += dtype(1 / 8)
                assert glance(x, 4.0)[1] is False
    assert glance(np.array([0.0, -0.0, 1.0, 1.0], dtype), 1.0) == (3, True)
    assert glance(np.array([1.0, np.inf], dtype), 1.0) == (2, False)
    assert glance(np.array([1.0, 1e30], dtype), 1e300) == (2, False)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 600), (40, 7), (300, 1)])
def test_collisions(dtype: Any, shape: tuple[int, int]) -> None:
    sign = 1 << (8 * np.dtype(dtype).itemsize - 1)
    items = np.random.default_rng(4).integers(0, 9, shape).astype(dtype)
    items[items == 8] = sign
    for lines in (items, items.T, items[::2, ::-1]):
        kept = [[item for item in line if item not in (0, sign)] for line in lines.tolist()]
        equal = sum(line.count(item) * (line.count(item) - 1) // 2 for line in kept for item in set(line))
        pairs = sum(len(line) * (len(line) - 1) // 2 for line in kept)
        assert collisions(lines, sign) == (sum(map(len, kept)), pairs, equal)


def test_collisions_of_other_arrays() -> None:
    for lines in (np.zeros(3, np.uint8), np.zeros((1, 1, 1), np.uint8), np.zeros((1, 1), np.complex128)):
        with pytest.raises(ValueError, match="two-dimensional"):
            collisions(lines, 0)  # type: ignore[arg-type]
