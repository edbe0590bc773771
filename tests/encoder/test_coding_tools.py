"""Savings of tools: comparison with all alternatives, on small tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nnr_codec.cabac_ext.kernel import (
    PayloadEstimator,
    TensorSide,
    TensorSyntax,
    choose_shift_parameter_ids,
    measure,
)
from nnr_codec.config import EncoderConfig
from nnr_codec.encoder.coding_tools import ALL_UNARY_LENGTHS, FEW, UNARY_LENGTHS, CodedTensor, bits_of, choose_tools
from nnr_codec.encoder.facts import tensor_facts
from nnr_codec.encoder.plan import TOOLS, Dependent, Integers, Quantized, Tools

Levels = npt.NDArray[np.int32]
RNG = np.random.default_rng(8)
OPEN = Tools(open=frozenset(TOOLS))


def part(levels: Levels, options: Tools = OPEN, **elements: Any) -> CodedTensor:
    coding = Quantized(Dependent(0, 1.0)) if elements.get("dq_flag") else Integers()
    plan = tensor_facts("w", levels, EncoderConfig()).plan(coding)
    plan = replace(plan, tools=options)
    unary = options.cabac_unary_length_minus1
    syntax = TensorSyntax(levels.shape, cabac_unary_length_minus1=unary, scan_order=options.scan_order, **elements)
    return CodedTensor(plan, levels, syntax)


def bits(one: CodedTensor, unary: int, side: TensorSide) -> float:
    c = PayloadEstimator()
    c.quant_tensor(one.syntax.with_unary_length(unary), one.levels, side)
    return c.bits


def laplacian(scale: float, shape: tuple[int, ...] = (60, 50)) -> Levels:
    return np.rint(RNG.laplace(0, scale, shape)).astype(np.int32)


@pytest.mark.parametrize("dq_flag", [0, 1])
@pytest.mark.parametrize("scale", [0.3, 2, 8, 30, 400, 1e6])
def test_unary_length_against_all(scale: float, dq_flag: int) -> None:
    """No tried length is shorter by more than the threshold of the choice; if all are tried, none is shorter."""
    one = part(laplacian(scale), dq_flag=dq_flag)
    costs = {length: measure(one.syntax.with_unary_length(length), one.levels)[1] for length in UNARY_LENGTHS}
    unary, found = choose_tools([one])
    chosen = unary
    assert costs[chosen] <= costs[10]
    assert costs[chosen] <= 1.005 * min(costs.values())
    assert bits_of(found) == bits(one, chosen, found[0].side) == costs[chosen]
    _, best = choose_tools([one], thorough=True)
    assert bits_of(best) <= costs[chosen]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_rows_are_skipped_where_that_saves(share: float) -> None:
    levels = laplacian(2, (100, 12))
    levels[: round(100 * share)] = 0
    one = part(levels)
    unary, found = choose_tools([one])
    other = TensorSide(row_skip_enabled_flag=1 - found[0].side.row_skip_enabled_flag)
    syntax = one.syntax.with_unary_length(unary)
    assert bits_of(found) <= measure(syntax, levels, other)[1] + 1
    if share in (0.0, 0.5):
        assert found[0].side.row_skip_enabled_flag == (share > 0)


def test_fixed_choices_stay() -> None:
    levels = laplacian(300)
    levels[:30] = 0
    unary, found = choose_tools([part(levels, Tools(choose_shift_parameters=False))])
    assert (unary, found[0].side.row_skip_enabled_flag) == (10, 0)
    assert found[0].side.shift_parameter_ids is None
    unary, found = choose_tools([part(levels, Tools(row_skipping=True, cabac_unary_length_minus1=3))])
    assert (unary, found[0].side.row_skip_enabled_flag) == (3, 1)
    assert choose_tools([part(laplacian(30), Tools(row_skipping=True))])[1][0].side.row_skip_enabled_flag == 0


@pytest.mark.parametrize(
    ("width", "scan_order", "dq_flag", "skips"), [(10, 1, 1, 0), (12, 1, 1, 1), (10, 1, 0, 1), (10, 0, 1, 1)]
)
def test_rows_that_decoders_disagree_about(width: int, scan_order: int, dq_flag: int, skips: int) -> None:
    """Rows are skipped in a block scan whose width is not a multiple of 4 (errata D6)."""
    levels = laplacian(2, (40, width))
    levels[5:25] = 0
    for options in (
        Tools(row_skipping=True, scan_order=scan_order),
        Tools(scan_order=scan_order, open=frozenset(TOOLS)),
    ):
        assert choose_tools([part(levels, options, dq_flag=dq_flag)])[1][0].side.row_skip_enabled_flag == skips


def test_parts_of_a_unit_share_a_unary_length() -> None:
    """The largest part decides, at any position; the ids of all parts fit the length."""
    small, large = part(laplacian(0.5, (20,))), part(laplacian(1e5))
    assert choose_tools([large])[0] == 0
    unary, both = choose_tools([small, large])
    assert unary == 0
    for one in both:
        assert one.side.shift_parameter_ids is not None
        assert one.side.shift_parameter_ids.size == 87 + 4
    assert bits_of(both) == sum(bits(one, unary, one.side) for one in both)


def test_all_lengths_are_compared_where_time_does_not_matter() -> None:
    """With few levels, some of them large, counts favour long codes, whose contexts cannot adapt enough."""
    levels = laplacian(20, (16, 27))
    one = part(levels)
    costs = [measure(one.syntax.with_unary_length(length), levels)[1] for length in ALL_UNARY_LENGTHS]
    _, best = choose_tools([one], thorough=True)
    assert bits_of(best) == min(costs)


def test_thorough_plans_are_not_sampled() -> None:
    levels = np.concatenate([laplacian(scale, (700, 60)) for scale in (1, 30)])
    one = part(levels, replace(OPEN, thorough=True))
    unary, found = choose_tools([one], thorough=True)
    assert bits_of(found) == bits(one, unary, found[0].side)


def test_no_shift_parameter_id_pays_for_few_levels() -> None:
    rng = np.random.default_rng(1)
    for _ in range(3000):
        size, largest = int(rng.integers(1, FEW + 1)), 1 << int(rng.integers(0, 30))
        levels = rng.integers(-largest, largest + 1, size, np.int32)
        syntax = TensorSyntax((size,), cabac_unary_length_minus1=int(rng.choice([0, 1, 10, 255])))
        for some in (levels, np.full_like(levels, levels[0])):
            assert not np.any(choose_shift_parameter_ids(syntax, some))
