"""Data-aware rounding against its definition, in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nnr_codec.cabac_ext.kernel import PayloadEstimator, TensorSyntax
from nnr_codec.cabac_ext.quantizer import trellis, uniform
from nnr_codec.cabac_ext.surgeon import factorize, surgeon
from nnr_codec.syntax.deepcabac import STATE_TRANS_TAB

Array = npt.NDArray[Any]
Levels = npt.NDArray[np.int32]


def moments(n: int, seed: int = 0) -> Array:
    """Return second moments of correlated inputs."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(4 * n, n)) @ (rng.normal(size=(n, n)) * np.arange(1, n + 1)[:, None] ** -0.7)
    return inputs.T @ inputs / len(inputs)


def values(rows: int, n: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).laplace(0, 0.05, (rows, n)).astype(np.float32)


def start(x: npt.NDArray[np.float32], step: float, dq_flag: int) -> Levels:
    """Return the result of plain quantization."""
    levels = np.empty(x.size, np.int32)
    if dq_flag:
        trellis(x.reshape(-1), step, levels, dq_flag=1, rate=0)
    else:
        uniform(x.reshape(-1), step, levels)
    return levels.reshape(x.shape)


def improved(x: Array, step: float, factor: tuple[Array, Array], dq_flag: int, rate: float, **given: Any) -> Levels:
    levels = given.pop("levels", None)
    if levels is None:
        levels = start(x.astype(np.float32), step, dq_flag)
    weights = given.pop("weights", np.ones(len(x)))
    options = {"cabac_unary_length_minus1": 10, "row_unit": None, "run": 0, "stride": 0, **given}
    surgeon(x, step, levels, *factor, weights, dq_flag=dq_flag, rate=rate, **options)
    return levels


def decoded(levels: Levels, step: float, dq_flag: int) -> Array:
    """Return QuantParam (9.2.3, 10.2.1.4)."""
    out, state = [], 0
    for level in levels.reshape(-1).tolist():
        out.append(2 * level - (state & 1) * ((level > 0) - (level < 0)) if dq_flag else level)
        state = STATE_TRANS_TAB[state][level & 1]
    return np.array(out).reshape(levels.shape) * step


def output_error(x: Array, levels: Levels, step: float, dq_flag: int, hessian: Array) -> float:
    error = x.astype(np.float64) - decoded(levels, step, dq_flag)
    return float(np.einsum("ij,jk,ik", error, hessian, error))


def bits(levels: Levels, dq_flag: int) -> float:
    estimator = PayloadEstimator()
    estimator.quant_tensor(TensorSyntax(levels.shape, dq_flag=dq_flag, cabac_unary_length_minus1=10), levels)
    return estimator.bits


# ------------------------------------------------------------------------------------------------ factorization
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 70])
@pytest.mark.parametrize("damping", [0.0, 0.25])
def test_the_factors_multiply_to_the_matrix(n: int, damping: float) -> None:
    matrix = moments(n)
    kept = matrix.copy()
    matrix.flags.writeable = False
    unit, pivots = factorize(matrix, damping)
    assert np.array_equal(matrix, kept)
    assert not np.tril(unit).any()
    upper = unit.astype(np.float64) + np.eye(n)
    expected = matrix + damping * np.trace(matrix) / n * np.eye(n)
    assert np.allclose(upper * pivots @ upper.T, expected, rtol=1e-5, atol=1e-6 * np.trace(matrix) / n)


def test_only_the_upper_triangle_is_read() -> None:
    matrix = moments(40)
    found = factorize(np.triu(matrix), 0.01)
    assert all(np.array_equal(one, other) for one, other in zip(found, factorize(matrix, 0.01), strict=True))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((3, 2)), "not square"),
        (np.zeros((0, 0)), "not square"),
        (np.zeros((2, 2)), "not positive definite at column 1"),
        (np.diag([1.0, -0.5, 1.0]), "not positive definite at column 1"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "not positive definite at column 0"),
        (np.diag([1.0, np.nan]), "not positive definite at column 1"),
    ],
)
def test_matrices_that_have_no_factors(matrix: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        factorize(matrix, 0.01)


# ------------------------------------------------------------------------------------------------ levels
def one_by_one(x: npt.NDArray[np.float32], step: float, unit: Array, bound: float) -> Levels:
    """Return uniform levels, each the nearest one after compensation of earlier errors."""
    levels = np.zeros(x.shape, np.int32)
    steps = (x.astype(np.float64) / step).astype(np.float32)
    for row, exact in zip(levels, steps, strict=True):
        aims = exact.copy()
        for i in range(len(exact)):
            size = min(abs(float(aims[i])), bound)
            if exact[i]:
                row[i] = int(np.copysign(np.ceil(size - 0.5), aims[i]))
            aims[i + 1 :] += np.float32(exact[i] - row[i]) * unit[i, i + 1 :]
    return levels


def by_trellis(x: npt.NDArray[np.float32], step: float, unit: Array, pivots: Array, bound: float) -> Levels:
    """Return dependent levels of one block: at most one path of (cost, levels, targets) for each state."""
    paths: dict[int, tuple[float, list[int], Array]] = {0: (0.0, [], np.empty(0, np.float32))}
    for exact in (x.astype(np.float64) / step).astype(np.float32):
        paths = {state: (cost, levels, exact.copy()) for state, (cost, levels, _) in paths.items()}
        for i in range(len(exact)):
            found: dict[int, tuple[float, list[int], Array]] = {}
            for state, (cost, levels, aims) in paths.items():
                size = min(abs(float(aims[i])), bound)
                sign = -1 if aims[i] < 0 else 1
                for parity in (0, 1) if exact[i] else (0,):
                    possible = [0] if not exact[i] else range(parity, int(size) + 4, 2)
                    level = min(possible, key=lambda k: abs(size - max(2 * k - (state & 1), 0)))
                    value = sign * max(2 * level - (state & 1), 0)
                    after = aims.copy()
                    after[i + 1 :] += np.float32(float(exact[i]) - value) * unit[i, i + 1 :]
                    total = cost + pivots[i] * (float(aims[i]) - value) ** 2
                    target = STATE_TRANS_TAB[state][parity]
                    if target not in found or total < found[target][0]:
                        found[target] = total, [*levels, sign * level], after
            paths = found
    best = min(paths.values(), key=lambda path: path[0])
    return np.array(best[1], np.int32).reshape(x.shape)


def test_uniform_levels_make_up_for_errors_before_them() -> None:
    x, (unit, pivots) = values(20, 12), factorize(moments(12), 0.01)
    bound = float(np.rint(np.abs(x).max() / 2**-6))
    assert np.array_equal(improved(x, 2**-6, (unit, pivots), 0, 0.0), one_by_one(x, 2**-6, unit, bound))


@pytest.mark.parametrize("shape", [(8, 9), (40, 9), (3, 64), (3, 65), (4, 200)])
def test_survivors_of_the_trellis_carry_what_they_leave_to_do(shape: tuple[int, int]) -> None:
    n = shape[1]
    x = values(*shape)
    unit, pivots = factorize(moments(n), 0.01)
    x[-1, 3:6] = 0
    bound = float(np.rint(np.abs(x).max() / 2**-6))
    assert np.array_equal(improved(x, 2**-6, (unit, pivots), 1, 0.0), by_trellis(x, 2**-6, unit, pivots, bound))


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("shape", [(9, 12), (300, 40)])
def test_rows_make_up_for_errors_in_earlier_rows(shape: tuple[int, int], dq_flag: int) -> None:
    """Each row is searched like a matrix of its own, whose values are its targets."""
    x = values(*shape)
    x[4, 2:5] = 0
    unit, pivots = factorize(moments(shape[1]), 0.01)
    row_unit, weights = factorize(moments(shape[0], 2), 0.01)
    found = improved(x, 2**-6, (unit, pivots), dq_flag, 0.0, weights=weights, row_unit=row_unit)
    errors = x / np.float32(2**-6) - np.float32(decoded(found, 1, dq_flag))
    aims = x / np.float32(2**-6) + np.triu(row_unit, 1).T @ errors
    left = aims - np.float32(decoded(found, 1, dq_flag))
    left = left + left @ unit  # after compensation within rows
    assert np.abs(left[x != 0]).max() < 2.1 if dq_flag else 0.51
    assert not found[x == 0].any()


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize(("run", "stride"), [(1, 1), (1, 5), (2, 4), (3, 3), (6, 6), (0, 0)])
def test_groups_of_rows_are_a_factor_of_zeros_between_groups(run: int, stride: int, dq_flag: int) -> None:
    small, weights = factorize(moments(6), 0.01)
    groups = np.arange(60)
    if run:
        groups = np.arange(60).reshape(-1, 6 // run, stride // run, run).swapaxes(1, 2)
    whole, of_rows = np.zeros((60, 60), np.float32), np.zeros(60)
    for group in groups.reshape(-1, 6):
        whole[np.ix_(group, group)], of_rows[group] = small, weights
    x, factor = values(60, 20), factorize(moments(20), 0.01)
    options: dict[str, Any] = {"weights": of_rows, "row_unit": small, "run": run, "stride": stride}
    found = improved(x, 2**-6, factor, dq_flag, 0.1, **options)
    assert np.array_equal(found, improved(x, 2**-6, factor, dq_flag, 0.1, weights=of_rows, row_unit=whole))


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_no_factor_is_the_factor_of_independent_columns(dq_flag: int) -> None:
    x, (row_unit, weights) = values(30, 150), factorize(moments(30), 0.01)
    factors = (None, np.ones(150)), (np.zeros((150, 150), np.float32), np.ones(150))
    found = [improved(x, 2**-6, one, dq_flag, 0.1, weights=weights, row_unit=row_unit) for one in factors]  # type: ignore[arg-type]
    assert np.array_equal(*found)


def test_independent_inputs_leave_nothing_to_make_up_for() -> None:
    x, factor = values(90, 70), (np.zeros((70, 70), np.float32), np.ones(70))
    assert np.array_equal(improved(x, 2**-6, factor, 0, 0.0), start(x, 2**-6, 0))
    plain, found = start(x, 2**-6, 1), improved(x, 2**-6, factor, 1, 0.0)
    errors = [((x - decoded(levels, 2**-6, 1)) ** 2).sum() for levels in (plain, found)]
    assert errors[1] <= errors[0] * 1.001  # a block begins in one state


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_less_output_error_at_fewer_bits(dq_flag: int, dtype: type) -> None:
    hessian = moments(64)
    x = values(150, 64)
    unit, pivots = factorize(hessian, 0.01)
    found = improved(x.astype(dtype), 2**-6, (unit, pivots / pivots.mean()), dq_flag, 0.1)
    plain = start(x, 2**-6, dq_flag)
    assert output_error(x, found, 2**-6, dq_flag, hessian) < 0.4 * output_error(x, plain, 2**-6, dq_flag, hessian)
    assert bits(found, dq_flag) < bits(plain, dq_flag)


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_a_rate_saves_bits(dq_flag: int) -> None:
    x, (unit, pivots) = values(150, 64), factorize(moments(64), 0.01)
    sizes = [bits(improved(x, 2**-5, (unit, pivots / pivots.mean()), dq_flag, rate), dq_flag) for rate in (0, 0.1, 0.4)]
    assert sizes[0] > 1.02 * sizes[1] > 1.04 * sizes[2]


@pytest.mark.parametrize("unary", [0, 3, 255])
@pytest.mark.parametrize("dq_flag", [0, 1])
def test_large_levels_cost_as_they_are_coded(dq_flag: int, unary: int) -> None:
    x, factor = values(60, 20), (np.zeros((20, 20), np.float32), np.ones(20))
    levels = improved(x, 2**-14, factor, dq_flag, 0.1, cabac_unary_length_minus1=unary)
    assert np.abs(decoded(levels, 2**-14, dq_flag) - x).max() <= 2**-12
    assert np.abs(levels).max() > 600


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_zeros_stay_and_nothing_exceeds_the_largest(dq_flag: int) -> None:
    x, (unit, pivots) = values(100, 50), factorize(moments(50), 0.01)
    x[np.random.default_rng(5).random(x.shape) < 0.5] = 0
    levels = improved(x, 2**-4, (unit, pivots / pivots.mean()), dq_flag, 0.0)
    assert not levels[x == 0].any()
    assert np.abs(decoded(levels, 1, dq_flag)).max() <= np.rint(np.abs(x).max() * 2**4) + 1


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_rows_of_little_weight_take_few_bits(dq_flag: int) -> None:
    x, factor = values(100, 50), (np.zeros((50, 50), np.float32), np.ones(50))
    levels = improved(x, 2**-6, factor, dq_flag, 0.2, weights=np.repeat([1.999, 0.001], 50))
    assert np.count_nonzero(levels[:50]) > 2000
    assert np.count_nonzero(levels[50:]) < 100


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_extreme_values(dq_flag: int) -> None:
    x = np.array([[3e38, -3e38, 1e-38], [0, 1e30, -1]], np.float32)
    unit, pivots = factorize(moments(3), 0.0)
    levels = improved(x, 3e38 / 2**29, (unit, pivots), dq_flag, 0.2)
    assert np.abs(decoded(levels, 1, dq_flag)).max() <= 2**29 + 1
    assert improved(np.zeros((4, 3), np.float32), 1.0, (unit, pivots), dq_flag, 0.2).any() == np.False_


@pytest.mark.parametrize("dq_flag", [0, 1])
def test_nan_and_infinity_are_harmless(dq_flag: int) -> None:
    x, factor = values(3, 70), (np.full((70, 70), np.inf, np.float32), np.full(70, np.nan))
    levels = improved(x, 2**-6, factor, dq_flag, 0.1)
    assert not levels.any()
    x[1, 3:] = np.nan
    improved(x, 2**-6, factorize(moments(70), 0.01), dq_flag, 0.1, levels=np.zeros(x.shape, np.int32))
    for pivot in (-np.inf, -1e300, -1.0):  # significant errors are not searched
        factor, levels = (np.eye(70, dtype=np.float32), np.full(70, pivot)), np.zeros(x.shape, np.int32)
        assert not improved(values(3, 70), 2**-6, factor, dq_flag, 0.1, levels=levels).any()


def test_arguments_that_do_not_fit() -> None:
    x, unit, pivots = np.ones((4, 3), np.float32), np.zeros((3, 3), np.float32), np.ones(3)

    known: dict[str, Any] = {
        "dq_flag": 1,
        "rate": 0.1,
        "cabac_unary_length_minus1": 10,
        "row_unit": None,
        "run": 0,
        "stride": 0,
    }

    def call(levels: Array, *factor: Array, **options: Any) -> None:
        surgeon(x, 1.0, levels, *factor, **(known | options))

    levels = np.zeros((4, 3), np.int32)
    for wrong in ((np.zeros((3, 4), np.int32), unit, pivots, np.ones(4)), (levels, unit, pivots, np.ones(3))):
        with pytest.raises(ValueError, match="differ in shape"):
            call(*wrong)
    for factor in ((unit[:2], pivots), (np.zeros((3, 2), np.float32), pivots), (unit, np.ones(2))):
        with pytest.raises(ValueError, match="does not fit"):
            call(levels, *factor, np.ones(4))
    with pytest.raises(ValueError, match="does not fit the rows"):
        call(levels, unit, pivots, np.ones(4), row_unit=unit)
    for size, run, stride in ((2, 3, 4), (2, 2, 3), (2, 1, 3), (2, 1, 4), (2, -1, 1), (2, 2, -2), (0, 1, 1), (0, 0, 0)):
        with pytest.raises(ValueError, match="does not fit the rows"):
            call(levels, unit, pivots, np.ones(4), row_unit=unit[:size, :size].copy(), run=run, stride=stride)
    for unary in (-1, 256):
        with pytest.raises(ValueError, match="must be 0 to 255"):
            call(levels, unit, pivots, np.ones(4), cabac_unary_length_minus1=unary)
    for rate in (-0.1, np.nan, np.inf):
        with pytest.raises(ValueError, match="rate must be finite"):
            call(levels, unit, pivots, np.ones(4), rate=rate)
    with pytest.raises(ValueError, match="too large"):
        surgeon(x, 2.0**-30, levels, unit, pivots, np.ones(4), **known)
    surgeon(x[:0], 1.0, levels[:0], unit, pivots, np.ones(0), **known)
