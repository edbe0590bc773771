"""Rates without bits: the cost table, the estimator, and the choice of shift parameter ids."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.resources import files
from itertools import pairwise
from math import log2
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from nnr_codec.cabac_ext.kernel import (
    PayloadEncoder,
    PayloadEstimator,
    TensorSide,
    TensorSyntax,
    choose_shift_parameter_ids,
)
from nnr_codec.syntax.deepcabac import (
    CTX_PARAMETER_LIST,
    RLPS_TABLE,
    STATE_TRANS_TAB,
    TRANSITION_TABLE,
    Coder,
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

ONE_BIT = 1 << 15
PENALTY = 4 * ONE_BIT  # of an id that is not 0: its flag and uae(3)


# ------------------------------------------------------------------------------------------------ tables
def cost_table() -> list[list[int]]:
    """Costs of bins 0 and 1 by ((16 * pStateIdx0 + pStateIdx1) >> 7) + 32.

    The mean over the values of IvlCurrRange from 256 to 510, weighted by their reciprocals.
    """
    table = []
    for index in range(-32, 32):
        mps = int(index >= 0)
        row, weights = [0.0, 0.0], 0.0
        for ivl_curr_range in range(256, 511):
            lps = RLPS_TABLE[min(abs(index), 31) + (ivl_curr_range & 0xE0)]  # -32 is out of reach
            weights += 1 / ivl_curr_range
            row[1 - mps] -= log2(lps / ivl_curr_range) / ivl_curr_range
            row[mps] -= log2(1 - lps / ivl_curr_range) / ivl_curr_range
        table.append([round(ONE_BIT * cost / weights) for cost in row])
    return table


COST = cost_table()


def header_table(name: str) -> list[int]:
    """The numbers of a table in the kernel's C header."""
    text = files("nnr_codec.cabac_ext").joinpath("_tables.h").read_text("utf-8")
    match = re.search(rf"\b{name}(?:\[\d+\])+ = (\{{.*?\}});", text, re.DOTALL)
    assert match is not None
    return [int(number) for number in re.findall(r"-?\d+", match[1])]


def test_cost_table() -> None:
    assert header_table("NNR_COST") == [cost for row in COST for cost in row]
    assert COST[31] == COST[33][::-1]  # -1 counts as 1
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(COST))


def test_tables_are_those_of_the_plain_implementation() -> None:
    assert header_table("NNR_RLPS") == list(RLPS_TABLE)
    assert header_table("NNR_TRANSITION") == list(TRANSITION_TABLE)
    assert header_table("NNR_CTX_PARAMETERS") == [number for row in CTX_PARAMETER_LIST for number in row]
    assert header_table("NNR_STATE") == [state for row in STATE_TRANS_TAB for state in row]


# ------------------------------------------------------------------------------------------------ plain estimators
def cost_of(context: Context, bin_val: int) -> int:
    """Of a bin in the state before it."""
    return COST[((16 * context.p_state_idx0 + context.p_state_idx1) >> 7) + 32][bin_val]


class CostCoder(Coder):
    """Codes nothing; adds up costs, and keeps the bins of each context between resets."""

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
        self.part += 1  # what follows is an entry point, or the first level

    def nesting_zero_bits(self) -> None:
        """Part of the mean in `at`."""


def plain_estimate(*tensors_: Pair) -> float:
    """PayloadEstimator.bits by the plain implementation."""
    c = CostCoder()
    for s, t in tensors_:
        quant_tensor(c, s, t)
    terminate(c)
    return c.cost / ONE_BIT


def head_cost(s: QuantTensorSyntax, t: QuantTensor) -> int:
    """Of all that precedes the levels."""
    c = CostCoder()
    head = _QuantTensor(c, s, t)
    head.row_flags()
    head.shift_parameter_ids()
    return c.cost


def set_costs(s: QuantTensorSyntax, t: QuantTensor) -> dict[int, list[int]]:
    """For each context of the levels, by its number in the kernel: what its bins cost with each of the nine sets."""
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
@settings(relaxed, max_examples=150)
@given(tensors((1, 2, 10, 11)))
def test_estimator_equals_the_plain_one(tensor: Pair) -> None:
    assert kernel_estimate(tensor) == plain_estimate(tensor)


def test_estimator_adds_tensors() -> None:
    s = QuantTensorSyntax((5, 4), qp_bits=8)
    block = [(s, QuantTensor([k % m for k in range(20)])) for m in (1, 3, 5)]
    assert kernel_estimate(*block) == plain_estimate(*block)
    assert PayloadEstimator().bits == 0


def sources() -> dict[str, npt.NDArray[np.int32]]:
    """Levels of several kinds."""
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
@settings(relaxed, max_examples=100)
@given(tensors((1, 2, 10)))
def test_choice_equals_an_exhaustive_search(tensor: Pair) -> None:
    s, t = tensor
    t.shift_parameter_ids = {}
    chosen = choose_shift_parameter_ids(kernel_syntax(s), kernel_levels(s, t), kernel_side(s, t))
    expected = [0] * context_count(s)
    for number, costs in set_costs(s, t).items():
        with_penalty = [costs[0], *(cost + PENALTY for cost in costs[1:])]
        expected[number] = with_penalty.index(min(with_penalty))
    assert chosen.tolist() == expected


@settings(relaxed, max_examples=100)
@given(tensors((1, 2, 10)))
def test_choice_never_costs_more(tensor: Pair) -> None:
    """Against all ids 0, where a penalty of 4 bits stands for each id; the flags themselves adapt and can cost more."""
    s, t = tensor
    t.shift_parameter_ids = {}
    zero = kernel_estimate((s, t)) * ONE_BIT - head_cost(s, t)
    ids = choose_shift_parameter_ids(kernel_syntax(s), kernel_levels(s, t), kernel_side(s, t)).tolist()
    sizes = {"sig_flag": 48, "sign_flag": 5, "abs_level_greater_x2": 32}
    sizes["abs_level_greater_x"] = 4 * (s.cabac_unary_length_minus1 + 1)
    t.shift_parameter_ids = {name: ids[BASE[name] : BASE[name] + size] for name, size in sizes.items()}
    with_ids = kernel_estimate((s, t)) * ONE_BIT - head_cost(s, t)
    assert with_ids + PENALTY * np.count_nonzero(ids) <= zero


def test_choice_for_a_constant_source() -> None:
    """A thousand zeros: a set that begins at 0 and adapts fast."""
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
    """Bytes of a payload."""
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


@pytest.mark.parametrize("shape", [(512, 512), (1, 131072), (131071,), (131072,), (300_000,), (40, 100, 60)])
def test_choice_on_samples(shape: tuple[int, ...]) -> None:
    """Tensors of 131072 parameters and more are sampled: still far from a bad choice where statistics are even."""
    levels = np.rint(np.random.default_rng(2).laplace(0, 1.5, shape)).astype(np.int32)
    for dq_flag in (0, 1):
        s = TensorSyntax(shape, dq_flag=dq_flag)
        ids = choose_shift_parameter_ids(s, levels)
        assert ids.any()
        assert size_with(s, levels, ids) < size_with(s, levels, None)


def test_threshold_of_sampling() -> None:
    """Below 131072 parameters the last one counts as the first; from there on only 8192 of each 131072 do."""
    tail = 20_000
    for size, same in ((131_071, False), (131_072, True)):
        levels = np.zeros(size, np.int32)
        levels[-tail:] = np.array([Random(1).choice((-900, 900)) for _ in range(tail)], np.int32)
        s = TensorSyntax((size,))
        plain = choose_shift_parameter_ids(s, np.zeros(size, np.int32))
        assert np.array_equal(choose_shift_parameter_ids(s, levels), plain) == same
