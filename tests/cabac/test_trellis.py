"""Rate-distortion optimized levels: against a textbook search, a real coder, and scalar against vector code."""

from __future__ import annotations

from collections import Counter
from math import inf, log2, nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nnr_codec.bitstream.ndu import coding_order
from nnr_codec.cabac_ext.kernel import PayloadEncoder, TensorSide, TensorSyntax
from nnr_codec.cabac_ext.quantizer import trellis
from nnr_codec.syntax.deepcabac import STATE_TRANS_TAB

from .test_quantizer import Array, Levels, reconstruct, viterbi_by_numpy

Counts = tuple[Counter[tuple[int, int, int]], Counter[tuple[int, int]]]
each_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])
each_quantizer = pytest.mark.parametrize("dq_flag", [0, 1])


def quantize(x: Array, step: float = 1.0, **options: Any) -> Levels:
    """Return levels, which are equal with and without vector instructions; check that the inputs are unchanged."""
    kept = x.copy()
    levels, plain = np.full(x.shape, 12345, np.int32), np.full(x.shape, 54321, np.int32)
    trellis(x, step, levels, **options)
    trellis(x, step, plain, plain=True, **options)
    assert np.array_equal(x, kept, equal_nan=True)
    assert np.array_equal(levels, plain)
    assert not levels[x == 0].any()
    return levels


def quantized(levels: Levels, dq_flag: int) -> npt.NDArray[np.int64]:
    """Return the values of levels, in steps."""
    return reconstruct(levels) if dq_flag else levels.astype(np.int64)


def bits(levels: Levels, dq_flag: int) -> float:
    c = PayloadEncoder()
    c.quant_tensor(TensorSyntax(levels.shape, dq_flag=dq_flag, cabac_unary_length_minus1=10), levels)
    c.terminate()
    return 8.0 * len(c.getvalue())


def samples(rng: np.random.Generator, n: int, dtype: Any) -> Array:
    """Return values of one of several kinds, in steps."""
    x = rng.laplace(0, 1, n) if rng.random() < 0.5 else rng.standard_normal(n)
    x *= 10 ** rng.uniform(-1.5, 4)
    x[rng.random(n) < rng.choice([0, 0.1, 0.9, 0.999])] = 0
    if rng.random() < 0.3:  # on the grid, where costs are equal
        x = np.rint(2 * x) / 2
    if rng.random() < 0.3:
        x[rng.random(n) < 0.01] *= 1e6
    return x.astype(dtype)


# ------------------------------------------------------------------------------------------------ plain and vector code
@each_type
@each_quantizer
def test_plain_code_equals_vector_code(dtype: Any, dq_flag: int) -> None:
    rng = np.random.default_rng([dq_flag, np.dtype(dtype).itemsize])
    for n in (0, 1, 2, 7, 8, 9, 100, 511, 512, 513, 2047, 2048, 2049, 2048 + 8192, 2048 + 8192 + 1, 30_001) * 3:
        weights = rng.choice([0, 1e-6, 1, 3, 511, 512, 1e9, -1, nan], n).astype(np.float32)
        quantize(
            samples(rng, n, dtype),
            rate=float(rng.choice([0, 0.01, 0.25, 3, 16])),
            dq_flag=dq_flag,
            weights=weights if rng.random() < 0.3 else None,
            groups=rng.integers(0, 3, n).astype(np.uint8) if rng.random() < 0.5 else None,
            passes=int(rng.integers(1, 4)),
            cabac_unary_length_minus1=int(rng.choice([0, 1, 9, 10, 255])),
        )


@each_quantizer
def test_one_group_is_as_none(dq_flag: int) -> None:
    x = samples(np.random.default_rng(dq_flag), 30_001, np.float32)
    one = np.zeros(x.shape, np.uint8)
    for rate in (0.0, 0.3):
        levels = quantize(x, dq_flag=dq_flag, rate=rate, groups=one)
        assert np.array_equal(levels, quantize(x, dq_flag=dq_flag, rate=rate))


@each_quantizer
def test_groups_take_fewer_bits_at_the_same_error(dq_flag: int) -> None:
    """10.3.4.2.2: with AnySigBeforeFlag, contexts separate parameters that were zero in all updates."""
    rng = np.random.default_rng(dq_flag)
    before = rng.random((300, 200)) < 0.1
    x = np.where(before, rng.laplace(0, 3, before.shape), rng.laplace(0, 0.2, before.shape)).astype(np.float32).ravel()
    syntax = TensorSyntax(before.shape, dq_flag=dq_flag, parent_node_id_present_flag=1, any_sig=before)

    def cost_of(groups: npt.NDArray[np.uint8] | None) -> float:
        levels = quantize(x, dq_flag=dq_flag, rate=0.3, groups=groups)
        c = PayloadEncoder()
        c.quant_tensor(syntax, levels.reshape(before.shape), TensorSide(hist_dep_sig_prob_enabled_flag=1))
        c.terminate()
        return float(np.square(quantized(levels, dq_flag) - x).sum() + 0.3 * 8 * len(c.getvalue()))

    assert cost_of(before.view(np.uint8).ravel()) < 0.99 * cost_of(None)


# ------------------------------------------------------------------------------------------------ textbook
def cost(n: float, of: float) -> float:
    """Return the bits of a bin with n occurrences, within the range of the estimators' states."""
    return min(max(log2(of / n), 337 / 32768), 234079 / 32768)


def rates(counts: Counts, dq_flag: int, unary: int) -> dict[Any, float]:
    """Return the bits of flags by (state, prev, what), and of other bins by (sign, size); prev and what: 0, -1 or 1."""
    kinds, sizes = counts
    out = {}
    for prev in (0, -1, 1):
        by_state = {s: [kinds[s, prev, what] for what in (0, -1, 1)] for s in range(8 if dq_flag else 1)}
        minus = 2 + sum(k[1] for k in by_state.values())
        plus = 2 + sum(k[2] for k in by_state.values())
        for s, k in by_state.items():
            alike = [v for t, v in by_state.items() if (t ^ s) & 1 == 0]
            zeros, others = 1 + sum(v[0] for v in alike), 1 + sum(v[1] + v[2] for v in alike)
            zero = k[0] + 8 * zeros / (zeros + others) + 1 / 256
            other = k[1] + k[2] + 8 * others / (zeros + others) + 1 / 256
            out[s, prev, 0] = cost(zero, zero + other)
            out[s, prev, -1] = cost(other, zero + other) + cost(minus, minus + plus)
            out[s, prev, 1] = cost(other, zero + other) + cost(plus, minus + plus)
    for sign in (-1, 1):
        first, total, width, i = 1, 0.0, 1, 0
        while first <= 512:
            seen = range(first, min(first + width, 513))
            signs = (sign,) if first <= unary else (-1, 1)
            n = sum(sizes[k, v] for k in signs for v in seen)
            more = sum(sizes[k, v] for k in signs for v in range(first + width, 513))
            for v in seen:
                out[sign, v] = total + cost(n + 1, n + more + 2) + (i if first > unary else 0)
            total += cost(more + 1, n + more + 2)
            first += width
            if first > unary + 1:
                i += 1
            width = 1 << i
    return out


def search(q: Array, rate: float, dq_flag: int, rated: dict[Any, float]) -> Levels:
    """Return the cheapest path into each state, by Viterbi; uniform quantization has the states zero and nonzero."""
    paths: dict[Any, tuple[float, int, int, tuple[int, ...]]] = {0: (0.0, 0, 0, ())}
    for value in q.tolist():
        sign, size = -1 if value < 0 else 1, abs(value)
        after: dict[Any, tuple[float, int, int, tuple[int, ...]]] = {}
        for total, state, prev, levels in paths.values():
            odd = state & 1
            low = int((size + odd) // (1 + dq_flag))
            for level in {0, low, low + 1} if value else {0}:
                k = 2 * level - odd * (level > 0) if dq_flag else level
                what = sign if level else 0
                b = rated.get((state, prev, what), 0.0) + rated.get((sign, min(level, 512)), 0.0)
                new = STATE_TRANS_TAB[state][level & 1] if dq_flag else 0
                path = (total + (size - k) ** 2 + rate * b, new, what, (*levels, sign * level))
                key = new if dq_flag else what != 0
                if key not in after or path[0] < after[key][0]:
                    after[key] = path
        paths = after
    return np.array(min(paths.values())[3], np.int32)


def counted(levels: Levels, dq_flag: int) -> Counts:
    kinds: Counter[tuple[int, int, int]] = Counter()
    state = prev = 0
    for level in levels.tolist():
        what = (level > 0) - (level < 0)
        kinds[state, prev, what] += 1
        prev = what
        state = STATE_TRANS_TAB[state][level & 1] if dq_flag else 0
    return kinds, Counter(((1 if v > 0 else -1), min(abs(v), 512)) for v in levels.tolist() if v)


@pytest.mark.medium
@each_quantizer
@pytest.mark.parametrize("unary", [1, 11])
def test_textbook(dq_flag: int, unary: int) -> None:
    """The first block is searched three times: without rates, and twice with the rates of the previous levels."""
    rng = np.random.default_rng(unary)
    same = 0
    for scale in (0.3, 1, 3, 20, 800):
        for rate in (0.1, 0.3, 1.0):
            q = rng.laplace(0, scale, 150)
            q[rng.random(150) < 0.1] = 0
            rated: dict[Any, float] = {}
            for _ in range(3):
                expected = search(q, rate, dq_flag, rated)
                rated = rates(counted(expected, dq_flag), dq_flag, unary)
            same += np.array_equal(
                quantize(q, dq_flag=dq_flag, rate=rate, cabac_unary_length_minus1=unary - 1), expected
            )
    assert same >= 14  # nearly equal costs differ as integers


# ------------------------------------------------------------------------------------------------ savings
@pytest.mark.medium
@each_type
@each_quantizer
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_distortion_and_rate_together_are_less(dtype: Any, dq_flag: int, rate: float) -> None:
    for scale in (0.4, 1, 3, 30):
        q = np.random.default_rng(3).laplace(0, scale, 40_000).astype(dtype)

        def value(levels: Levels, q: Array = q) -> float:
            distortion = float(((q.astype(np.float64) - quantized(levels, dq_flag)) ** 2).sum())
            return distortion + rate * bits(levels, dq_flag)

        without, one, two = (
            value(quantize(q, dq_flag=dq_flag, rate=r, passes=p)) for r, p in ((0, 1), (rate, 1), (rate, 2))
        )
        assert one < (1.0003 if scale == 30 else 0.9995) * without  # at high rates there is little to gain
        assert two < 1.001 * one


@each_type
def test_step_is_the_unit(dtype: Any) -> None:
    q = np.random.default_rng(4).laplace(0, 2, 5000).astype(dtype)
    for rate in (0, 0.2):
        expected = quantize(q, dq_flag=1, rate=rate)
        for step in (2.0**-30, 2.0**20):
            assert np.array_equal(quantize(q * dtype(step), step, dq_flag=1, rate=rate), expected)


def test_rate_zero_of_uniform_is_the_nearest() -> None:
    q = np.random.default_rng(5).laplace(0, 3, 5000)
    assert np.array_equal(quantize(q, dq_flag=0, rate=0), np.rint(q))


@each_quantizer
def test_weights(dq_flag: int) -> None:
    rng = np.random.default_rng(6)
    q = rng.laplace(0, 2, 20_000)
    ones = np.ones(q.size, np.float32)
    for rate in (0, 0.25):
        assert np.array_equal(
            quantize(q, dq_flag=dq_flag, rate=rate), quantize(q, dq_flag=dq_flag, rate=rate, weights=ones)
        )
    weights = rng.choice([0.05, 4], q.size).astype(np.float32)
    values = []
    for w in (None, weights):
        levels = quantize(q, dq_flag=dq_flag, rate=0.25, weights=w)
        error = (q - quantized(levels, dq_flag)) ** 2
        values.append(float((error * weights).sum()) + 0.25 * bits(levels, dq_flag))
    assert values[1] < 0.9 * values[0]
    for many in (np.float32(512), np.float32(1e30)):  # no other term matters
        far = np.where(rng.random(q.size) < 0.5, many, np.float32(0))
        error = np.abs(q - quantized(quantize(q, dq_flag=dq_flag, rate=0.25, weights=far), dq_flag))
        assert error[far > 0].max() <= 2


# ------------------------------------------------------------------------------------------------ blocks
@pytest.mark.medium
@pytest.mark.parametrize(("scale", "zeros", "gap"), [(2, 0, 0), (2, 0, 1400), (0.2, 0.5, 0)])
def test_blocks_are_decided_late_enough(scale: float, zeros: float, gap: int) -> None:
    """A gap of zeros, or small values, keep paths separate for longer than decisions are delayed."""
    rng = np.random.default_rng(0)
    q = rng.laplace(0, scale, 11_000)
    q[rng.random(q.size) < zeros] = 0
    for middle in (2048, 2048 + 8192):
        q[middle - gap // 2 : middle + gap // 2] = 0
    error = (q - reconstruct(quantize(q, dq_flag=1, rate=0))) ** 2
    assert error.max() <= 4
    assert error.sum() <= viterbi_by_numpy(q) * (1.003 if gap else 1.00001) + q.size * 2**-15


def test_states_that_cannot_be_are_not_taken() -> None:
    """A level is near its value, or 0, only in certain states, however cheap zeros are in the others."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        q = np.concatenate([rng.standard_normal(1400) * 3, np.zeros(20_000), rng.standard_normal(300) * 20])
        q[:1400][rng.random(1400) < 0.5] = 0
        levels = quantize(q, dq_flag=1, rate=16, weights=np.full(q.size, 512, np.float32))
        assert np.abs(q - reconstruct(levels))[levels != 0].max() <= 2


@each_quantizer
def test_mostly_zeros(dq_flag: int) -> None:
    """Costs of states diverge while zeros continue."""
    for n in (1000, 300_000):
        for rate in (0, 0.3, 16):
            q = np.zeros(n)
            q[[0, 1, 2, 3, n // 2, n - 1]] = [900, -3, 700, 1, 4000, -5000]
            error = q - quantized(quantize(q, dq_flag=dq_flag, rate=rate), dq_flag)
            assert np.abs(error[np.abs(q) > 100]).max() <= 2
            assert np.abs(error).max() <= 4


# ------------------------------------------------------------------------------------------------ extremes
@each_type
@each_quantizer
@pytest.mark.parametrize("rate", [0, 0.2, 16])
def test_extreme_values(dtype: Any, dq_flag: int, rate: float) -> None:
    top = float(np.nextafter(dtype(2.0**30), dtype(0)))
    x = np.array([top, -top, 0, -0.0, np.finfo(dtype).tiny, -1e-30, 2.0**29 + 64, 2.0**20, 511 * 2, 513 * 2], dtype)
    x = np.concatenate([x, np.random.default_rng(0).choice(x, 3000)])
    error = np.abs(quantized(quantize(x, dq_flag=dq_flag, rate=rate), dq_flag) - x.astype(np.float64))
    assert error.max() <= 4
    beyond = np.array([2.0**30, 2.0**31, -(2.0**100), inf, -inf, nan], dtype)
    levels = quantized(quantize(np.tile(beyond, 9), dq_flag=dq_flag, rate=rate), dq_flag)
    assert np.abs(np.abs(levels) - 2.0**30).max() <= 4
    assert (levels[:5] > 0).tolist() == [True, True, False, True, False]


@each_type
@each_quantizer
@pytest.mark.parametrize("shape", [(5, 9), (67, 403)])
def test_a_block_scan_is_a_search_in_coding_order(shape: tuple[int, int], dq_flag: int, dtype: Any) -> None:
    syntax = TensorSyntax(shape, scan_order=1)
    order, rng = coding_order(syntax), np.random.default_rng(9)
    x = rng.normal(0, 2, order.size).astype(dtype)
    weights, groups = rng.random(order.size, np.float32), rng.integers(0, 3, order.size, np.uint8)
    for extra in ({}, {"weights": weights}, {"groups": groups}):
        in_order = {key: array[order] for key, array in extra.items()}
        expected = quantize(x[order], dq_flag=dq_flag, rate=0.3, passes=2, **in_order)
        found = quantize(x, dq_flag=dq_flag, rate=0.3, passes=2, block_scan=syntax.block_scan, **extra)
        assert np.array_equal(found[order], expected)


def test_arguments() -> None:
    x, levels = np.zeros(4, np.float32), np.zeros(4, np.int32)
    good: dict[str, Any] = {"dq_flag": 1, "rate": 0.2}
    for step in (0.0, -1.0, inf, nan, 1e-310):
        with pytest.raises(ValueError, match="step"):
            trellis(x, step, levels, **good)
    for rate in (-0.1, 16.1, nan, inf):
        with pytest.raises(ValueError, match="rate"):
            trellis(x, 1.0, levels, dq_flag=1, rate=rate)
    for bad in ({"cabac_unary_length_minus1": -1}, {"cabac_unary_length_minus1": 256}, {"passes": 0}, {"passes": 101}):
        with pytest.raises(ValueError, match="range"):
            trellis(x, 1.0, levels, **good, **bad)
    with pytest.raises(ValueError, match="length"):
        trellis(x, 1.0, levels[:3], **good)
    with pytest.raises(ValueError, match="length"):
        trellis(x, 1.0, levels, weights=np.ones(3, np.float32), **good)
    with pytest.raises(ValueError, match="length"):
        trellis(x, 1.0, levels, groups=np.zeros(3, np.uint8), **good)
    with pytest.raises(ValueError, match="group of 3"):
        trellis(x, 1.0, levels, groups=np.array([0, 3, 0, 0], np.uint8), **good)
    with pytest.raises(ValueError):  # noqa: PT011 (a buffer of another type)
        trellis(x, 1.0, levels, weights=np.ones(4), **good)  # type: ignore[arg-type]
