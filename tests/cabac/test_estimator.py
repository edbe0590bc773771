"""Rates without coding: the cost table, the estimator, and the choice of shift parameter ids."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.resources import files
from itertools import pairwise, product
from math import log2, prod
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings

from nnr_codec.cabac_ext.kernel import (
    PayloadEncoder,
    PayloadEstimator,
    TensorSide,
    TensorSyntax,
    choose_shift_parameter_ids,
    has_zero_rows,
    magnitude_bits,
    measure,
)
from nnr_codec.syntax.deepcabac import (
    CTX_PARAMETER_LIST,
    RLPS_TABLE,
    STATE_TRANS_TAB,
    TRANSITION_TABLE,
    BinCoder,
    Context,
    QuantTensor,
    QuantTensorSyntax,
    _QuantTensor,
    quant_tensor,
    terminate,
)
from tests.cabac.pairs import (
    BASE,
    Pair,
    context_count,
    kernel_estimate,
    kernel_levels,
    kernel_side,
    kernel_syntax,
    relaxed,
    tensors,
)

from ..shared import examples

ONE_BIT = 1 << 15


# ------------------------------------------------------------------------------------------------ tables
def cost_table() -> list[list[int]]:
    """Return the costs of bins 0 and 1 by ((16 * pStateIdx0 + pStateIdx1) >> 7) + 32.

    Each is the mean over the values of IvlCurrRange from 256 to 510, weighted by their reciprocals.
    """
    table = []
    for index in range(-32, 32):
        mps = int(index >= 0)
        row, weights = [0.0, 0.0], 0.0
        for ivl_curr_range in range(256, 511):
            lps = RLPS_TABLE[min(abs(index), 31) + (ivl_curr_range & 0xE0)]  # -32 is unreachable
            weights += 1 / ivl_curr_range
            row[1 - mps] -= log2(lps / ivl_curr_range) / ivl_curr_range
            row[mps] -= log2(1 - lps / ivl_curr_range) / ivl_curr_range
        table.append([round(ONE_BIT * cost / weights) for cost in row])
    return table


COST = cost_table()


def header_table(name: str) -> list[int]:
    """Return the numbers of a table in the kernel's C header."""
    text = files("nnr_codec.cabac_ext").joinpath("_tables.h").read_text("utf-8")
    match = re.search(rf"\b{name}(?:\[\d+\])+ = (\{{.*?\}});", text, re.DOTALL)
    assert match is not None
    return [int(number) for number in re.findall(r"-?\d+", match[1])]


def test_cost_table() -> None:
    assert header_table("NNR_COST") == [cost for row in COST for cost in row]
    assert COST[31] == COST[33][::-1]  # -1 counts as 1
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(COST))


def test_tables_equal_the_plain_implementation() -> None:
    assert header_table("NNR_RLPS") == list(RLPS_TABLE)
    assert header_table("NNR_TRANSITION") == list(TRANSITION_TABLE)
    assert header_table("NNR_CTX_PARAMETERS") == [number for row in CTX_PARAMETER_LIST for number in row]
    assert header_table("NNR_STATE") == [state for row in STATE_TRANS_TAB for state in row]


# ------------------------------------------------------------------------------------------------ plain estimators
def cost_of(context: Context, bin_val: int) -> int:
    """Return the cost of a bin in the state before it."""
    return COST[((16 * context.p_state_idx0 + context.p_state_idx1) >> 7) + 32][bin_val]


class CostCoder(BinCoder):
    """Coder without output that adds up costs, and keeps the bins of each context between resets."""

    decoding = False

    def __init__(self) -> None:
        self.trace, self.ivl_curr_range, self.ivl_offset = None, 510, 0
        self.cost, self.part = 0, 0
        self.bins: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))

    def ae(self, context: Context, bin_val: int) -> int:
        self.cost += cost_of(context, bin_val)
        context.transition(bin_val)
        self.bins[context.element, context.ctx_inc][self.part].append(bin_val)
        return bin_val

    def bypass(self, bin_val: int, element: str) -> int:
        self.cost += ONE_BIT
        return bin_val

    def at(self, bin_val: int) -> int:
        self.cost += 9 * ONE_BIT  # 7 bits of the bin and the stop bit, and half of the bits up to the byte boundary
        return bin_val

    def set_ivl_curr_range_256(self) -> None:
        self.part += 1  # the next item is an entry point, or the first level

    def nesting_zero_bits(self) -> None:
        """Do nothing; the mean number of these bits is part of `at`."""


def plain_estimate(*tensors_: Pair) -> float:
    """Return PayloadEstimator.bits from the plain implementation."""
    c = CostCoder()
    for s, t in tensors_:
        quant_tensor(c, s, t)
    terminate(c)
    return c.cost / ONE_BIT


def head_cost(s: QuantTensorSyntax, t: QuantTensor) -> int:
    """Return the cost of all elements before the levels."""
    c = CostCoder()
    head = _QuantTensor(c, s, t)
    head.row_flags()
    head.shift_parameter_ids()
    return c.cost


def set_costs(s: QuantTensorSyntax, t: QuantTensor) -> dict[int, list[int]]:
    """Return the cost of the bins with each of the nine sets, for each context of the levels by the kernel's number."""
    c = CostCoder()
    quant_tensor(c, s, t)
    costs = {}
    for (element, ctx_inc), parts in c.bins.items():
        if element in ("row_skip_list", "shift_idx_minus_1_present_flag"):
            continue
        costs[BASE[element] + ctx_inc] = [0] * 9
        for set_id in range(9):
            for bins in parts.values():
                context = Context(element, ctx_inc)
                context.init(set_id)
                for bin_val in bins:
                    costs[BASE[element] + ctx_inc][set_id] += cost_of(context, bin_val)
                    context.transition(bin_val)
    return costs


# ------------------------------------------------------------------------------------------------ estimator
@settings(relaxed, max_examples=examples(150))
@given(tensors((1, 2, 10, 11)))
def test_estimator_equals_the_plain_one(tensor: Pair) -> None:
    assert kernel_estimate(tensor) == plain_estimate(tensor)


def test_estimator_adds_tensors() -> None:
    s = QuantTensorSyntax((5, 4), qp_bits=8)
    block = [(s, QuantTensor([k % m for k in range(20)])) for m in (1, 3, 5)]
    assert kernel_estimate(*block) == plain_estimate(*block)
    assert PayloadEstimator().bits == 0


def sources() -> dict[str, npt.NDArray[np.int32]]:
    """Return levels of several kinds."""
    rng = np.random.default_rng(11)
    shape = (250, 200)
    return {
        "sparse": (rng.random(shape) < 0.02).astype(np.int32) * rng.choice(np.array([-1, 1], np.int32), shape),
        "narrow": np.rint(rng.laplace(0, 0.5, shape)).astype(np.int32),
        "wide": np.rint(rng.laplace(0, 8, shape)).astype(np.int32),
        "huge": rng.integers(-(2**28), 2**28, shape, dtype=np.int32),
        "one-sided": np.rint(rng.exponential(2, shape)).astype(np.int32),
        "rows": np.rint(rng.laplace(0, 3, shape)).astype(np.int32) * (rng.random((250, 1)) < 0.5),
    }


SOURCES = sources()
OPTIONS: list[dict[str, int]] = [{}, {"dq_flag": 1}, {"scan_order": 1}, {"cabac_unary_length_minus1": 0}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", SOURCES)
def test_estimate_is_close_to_the_size(name: str, options: dict[str, int]) -> None:
    s, levels = TensorSyntax((250, 200), **options), SOURCES[name]  # type: ignore[arg-type]
    for row_skip in (0, 1):
        side = TensorSide(row_skip_enabled_flag=row_skip, shift_parameter_ids=choose_shift_parameter_ids(s, levels))
        encoder, estimator = PayloadEncoder(), PayloadEstimator()
        for c in (encoder, estimator):
            c.quant_param(8, -38)
            c.quant_tensor(s, levels, side)
            c.terminate()
        size = 8 * len(encoder.getvalue())
        assert size > 2000
        assert abs(estimator.bits - size) < 0.01 * size


# ------------------------------------------------------------------------------------------------ shift parameter ids
SIZES = {"sig_flag": 48, "sign_flag": 5, "abs_level_greater_x2": 32}


def set_ids(s: QuantTensorSyntax, t: QuantTensor, ids: list[int]) -> None:
    """Set the ids of a tensor of the plain implementation from the kernel's numbers."""
    sizes = SIZES | {"abs_level_greater_x": 4 * (s.cabac_unary_length_minus1 + 1)}
    t.shift_parameter_ids = {name: ids[BASE[name] : BASE[name] + size] for name, size in sizes.items()}


def total_cost(s: QuantTensorSyntax, t: QuantTensor, costs: dict[int, list[int]], ids: list[int]) -> int:
    """Return the cost of head and contexts; bypass bins are the same with all ids."""
    set_ids(s, t, ids)
    return head_cost(s, t) + sum(by_set[ids[number]] for number, by_set in costs.items())


#: Number of ids up to which all combinations are tried, and a cost above the cost of any id, as in the kernel.
ALL_WAYS, SURE = 5, 16 * ONE_BIT


def sparse(s: QuantTensorSyntax, places: dict[int, tuple[int, ...]]) -> Pair:
    """Return a tensor with these levels at these positions."""
    levels = [0] * prod(s.dims)
    for level, several in places.items():
        for place in several:
            levels[place] = level
    return s, QuantTensor(levels)


#: Six contexts with small gains: with two other ids the tensor would cost 32 units of 2**-15 bit less.
TWO_AWAY = sparse(
    QuantTensorSyntax((33, 8), general_profile_idc=0, cabac_unary_length_minus1=1, scan_order=3),
    {-2: (0, 80, 99, 111, 139, 141, 189, 249), -1: (230,), 1: (235,), 2: (10, 33, 40, 66, 192, 257)},
)
#: Eight contexts whose ids are tried more than four times until no replacement is better.
MANY_PASSES = sparse(
    QuantTensorSyntax((31, 7), cabac_unary_length_minus1=9),
    {-12: (127,), -11: (59, 194), 5: (158,), 6: (71,), 9: (25,), 12: (50, 151, 167)},
)


@example(TWO_AWAY)
@example(MANY_PASSES)
@settings(relaxed, max_examples=examples(60))
@given(tensors((1, 2, 10)))
def test_choice_equals_an_exhaustive_search(tensor: Pair) -> None:
    """The search covers contexts with a possible gain; among many small gains, ids are replaced one by one."""
    s, t = tensor
    t.shift_parameter_ids = {}
    chosen = choose_shift_parameter_ids(kernel_syntax(s), kernel_levels(s, t), kernel_side(s, t)).tolist()
    costs = set_costs(s, t)
    best = {number: by_set.index(min(by_set)) for number, by_set in costs.items()}
    assert all(chosen[number] in (0, best.get(number, 0)) for number in range(context_count(s)))
    gains = {number: costs[number][0] - costs[number][k] for number, k in best.items()}
    worth = [number for number, gain in gains.items() if gain > 3 * ONE_BIT]
    assert set(np.flatnonzero(chosen).tolist()) <= set(worth)
    near = [number for number in worth if gains[number] <= SURE]
    ways = [{number: best[number] - chosen[number]} for number in worth]
    if len(near) <= ALL_WAYS:
        every = product(*((0, best[number]) for number in near))
        ways += [dict(zip(near, way, strict=True)) for way in every]
    least = total_cost(s, t, costs, chosen)
    for way in ways:
        ids = chosen.copy()
        for number, k in way.items():
            ids[number] = k
        assert total_cost(s, t, costs, ids) >= least


@settings(relaxed, max_examples=examples(100))
@given(tensors((1, 2, 10)))
def test_choice_never_costs_more(tensor: Pair) -> None:
    s, t = tensor
    t.shift_parameter_ids = {}
    zero = kernel_estimate((s, t))
    ids, bits = measure(kernel_syntax(s), kernel_levels(s, t), kernel_side(s, t))
    set_ids(s, t, ids.tolist())
    with_ids = kernel_estimate((s, t))
    assert with_ids <= zero
    fixed = 9 + s.qp_bits  # terminate_cabac() and qp_value
    assert bits == with_ids - fixed
    assert measure(kernel_syntax(s), kernel_levels(s, t), kernel_side(s, t), choose=False)[1] == bits


def test_choice_for_a_constant_source() -> None:
    """A thousand zeros need a set that begins at 0 and adapts fast."""
    s = TensorSyntax((1000,))
    ids = choose_shift_parameter_ids(s, np.zeros(1000, np.int32))
    assert ids.dtype == np.uint8
    assert ids[0] != 0
    assert not ids[1:].any()
    assert not choose_shift_parameter_ids(s, np.arange(1000, dtype=np.int32))[85:87].any()


def test_choice_is_deterministic() -> None:
    for name, levels in SOURCES.items():
        s = TensorSyntax((250, 200), dq_flag=1, scan_order=2)
        first = choose_shift_parameter_ids(s, levels)
        kept = first.copy()
        for _ in range(3):
            assert np.array_equal(choose_shift_parameter_ids(s, levels.copy()), kept), name
        assert np.array_equal(first, kept)


def size_with(s: TensorSyntax, levels: npt.NDArray[np.int32], ids: npt.NDArray[np.uint8] | None) -> int:
    """Return the size of a payload in bytes."""
    c = PayloadEncoder()
    c.quant_tensor(s, levels, TensorSide(shift_parameter_ids=ids))
    c.terminate()
    return len(c.getvalue())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", SOURCES)
def test_choice_makes_payloads_smaller(name: str, options: dict[str, int]) -> None:
    s, levels = TensorSyntax((250, 200), **options), SOURCES[name]  # type: ignore[arg-type]
    ids = choose_shift_parameter_ids(s, levels)
    assert ids.any()
    assert size_with(s, levels, ids) < size_with(s, levels, None)


@pytest.mark.parametrize("shape", [(512, 512), (1, 32768), (32769,), (300_000,), (40, 100, 60)])
def test_choice_on_samples(shape: tuple[int, ...]) -> None:
    """Tensors of more than 32,768 parameters are sampled; with uniform statistics the choice stays good."""
    levels = np.rint(np.random.default_rng(2).laplace(0, 1.5, shape)).astype(np.int32)
    for dq_flag in (0, 1):
        s = TensorSyntax(shape, dq_flag=dq_flag)
        ids = choose_shift_parameter_ids(s, levels)
        assert ids.any()
        assert size_with(s, levels, ids) < size_with(s, levels, None)


def test_which_levels_are_looked_at() -> None:
    """All levels of a sample's size are used; of twice as many, one piece of two."""
    size, piece = 16_384, 2048
    for pieces, counted in ((8, 8), (16, 8), (24, 8)):
        levels = np.zeros(pieces * piece, np.int32)
        s = TensorSyntax(levels.shape)
        nothing = measure(s, levels, sample=size)[1]
        found = []
        for k in range(pieces):
            levels[k * piece + 5] = 1
            found.append(measure(s, levels, sample=size)[1] != nothing)
            levels[k * piece + 5] = 0
        assert sum(found) == counted
        assert pieces == counted or len({k % (pieces // counted) for k in np.flatnonzero(found)}) > 1


def test_states_of_levels_that_are_passed_over() -> None:
    """Levels are 0 only in even states: an estimator that loses the state overestimates them."""
    rng, state, levels = Random(3), 0, []
    for _ in range(60_000):
        levels.append(rng.choice((1, 2, 3, 4)) if state & 1 else 0 if rng.random() < 0.9 else 1)
        state = STATE_TRANS_TAB[state][levels[-1] & 1]
    x = np.array(levels, np.int32)
    s = TensorSyntax(x.shape, dq_flag=1)
    every, some = (measure(s, x, sample=sample)[1] for sample in (60_000, 6_000))
    assert abs(some - every) < 0.03 * every
    x[2048 + 7] ^= 1  # in a piece that is not sampled
    assert measure(s, x, sample=6_000)[1] > 1.01 * some


@pytest.mark.parametrize("name", SOURCES)
def test_estimate_of_a_sample(name: str) -> None:
    """It is scaled to the tensor."""
    for row_skip in (0, 1):
        s, side = TensorSyntax((250, 200), dq_flag=1), TensorSide(row_skip_enabled_flag=row_skip)
        ids, every = measure(s, SOURCES[name], side, sample=50_000)
        some = measure(s, SOURCES[name], side, sample=10_000)[1]
        assert abs(some - every) < 0.1 * every
        side.shift_parameter_ids = ids
        c = PayloadEstimator()
        c.quant_tensor(s, SOURCES[name], side)
        assert every == c.bits


@pytest.mark.parametrize("name", SOURCES)
def test_bits_by_counts(name: str) -> None:
    """Counts of magnitudes rank unary lengths about as well as coding does."""
    levels = SOURCES[name]
    s = TensorSyntax(levels.shape)
    counted = magnitude_bits(levels, 30)
    coded = [measure(s.with_unary_length(length), levels)[1] for length in range(31)]
    assert len(counted) == 31
    span = max(coded) - min(coded)
    assert coded[counted.index(min(counted))] - min(coded) <= 0.1 * span + 0.002 * min(coded)


def test_another_unary_length() -> None:
    levels = SOURCES["wide"]
    for length in (0, 3, 255):
        s = TensorSyntax(levels.shape, dq_flag=1, cabac_unary_length_minus1=length)
        other = TensorSyntax(levels.shape, dq_flag=1).with_unary_length(length)
        assert size_with(other, levels, None) == size_with(s, levels, None)
    for length in (-1, 256):
        with pytest.raises(ValueError, match="must be 0 to 255"):
            TensorSyntax((2,)).with_unary_length(length)


def test_zero_rows() -> None:
    levels = SOURCES["rows"].reshape(250, 20, 10)
    assert has_zero_rows(levels)
    assert not has_zero_rows(levels[levels.any(axis=(1, 2))])
    last = np.ones((3, 4), np.int32)
    last[2] = 0
    assert has_zero_rows(last)
    last[2, 3] = 1
    assert not has_zero_rows(last)


@pytest.mark.parametrize("length", [0, 10])
def test_a_list_of_very_many_rows(length: int) -> None:
    levels = np.zeros((300_000, 2), np.int32)
    levels[np.random.default_rng(5).random(len(levels)) < 0.5] = 1
    s, side = TensorSyntax(levels.shape, cabac_unary_length_minus1=length), TensorSide(row_skip_enabled_flag=1)
    bits = [measure(s, levels, side, choose=False, sample=levels.size)[1], measure(s, levels, side)[1]]
    c = PayloadEncoder()
    c.quant_tensor(s, levels, side)
    c.terminate()
    assert bits == pytest.approx([8 * len(c.getvalue())] * 2, rel=0.02)


def test_samples_that_are_none() -> None:
    s, levels = TensorSyntax((4,)), np.zeros(4, np.int32)
    for call in (lambda: measure(s, levels, sample=0), lambda: magnitude_bits(levels, 3, sample=0)):
        with pytest.raises(ValueError, match="sample"):
            call()
    for last in (-1, 256):
        with pytest.raises(ValueError, match="last"):
            magnitude_bits(levels, last)
