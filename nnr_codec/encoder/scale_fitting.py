"""Fitting of scales by least squares, which compensates the quantization of each index of a weight (8.3.9).

For levels Q of a weight W, the scale <W, Q> / <Q, Q> of an index minimizes the squared error. It is multiplied into the
block's scale or its batch normalization: gamma is multiplied by it, bias and mean are divided by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..model import Array, Block
from .facts import TensorFacts
from .overlay import Floats, multiplied
from .plan import TensorPlan
from .planning import RATES, plan_tensor
from .rate_distortion import estimated_bytes, quant_param
from .sensitivity import PORTION, row_sums

#: Largest scale, and inverse of the smallest one.
RANGE = 2.0
#: Exponent of the step size of new scales, which are near 1.
STEP_EXPONENT = -6


def scale_options(qp_density: int) -> dict[str, Any]:
    """Return the options of a tensor of new scales."""
    return {"qp": STEP_EXPONENT << qp_density, "fine_vectors": False, "rate": 0}


class Fit(NamedTuple):
    """Fitted scales of a weight.

    Parameters
    ----------
    factors : ndarray of float64, shape (dims[0],)
    products, squares : ndarray of float64, shape (dims[0],)
        <W, Q> and <Q, Q> of each index, where Q are levels times step size.
    """

    factors: Floats
    products: Floats
    squares: Floats

    def gain(self, before: Floats, after: Floats) -> float:
        """Return the decrease of the squared error with given scales: |W - sQ|^2 is |W|^2 - 2s<W, Q> + s^2<Q, Q>."""
        gains = (after - before) * (2 * self.products - (after + before) * self.squares)
        return float(row_sums(gains[None])[0])


def fit(facts: TensorFacts, plan: TensorPlan) -> Fit:
    """Return the scales that fit the levels of a weight, whose first dimension is scaled; equal on all machines."""
    count, step = plan.dims[0], plan.step
    levels = quant_param(plan, facts).reshape(count, -1)
    values = facts.floats.reshape(count, -1)
    products, squares = np.empty(count), np.empty(count)
    rows = max(PORTION // max(levels.shape[1], 1), 1)
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        some = levels[part].astype(np.float64)
        products[part] = row_sums(values[part].astype(np.float64) / step * some)
        squares[part] = row_sums(some * some)
    usable = (squares > 0) & (products > 0)
    factors = np.divide(products, squares, out=np.ones(count), where=usable).clip(1 / RANGE, RANGE)
    return Fit(factors, products * step * step, squares * step * step)


def scaled_tensors(block: Block, all_facts: Mapping[str, TensorFacts], factors: Floats) -> dict[str, Array] | None:
    """Return the scaled tensors of a block by name; None if their types cannot represent the result."""
    if block.scale is not None:
        powers = {block.scale: factors}
    elif block.gamma is not None:
        others = (block.mean, block.bias)
        powers = {block.gamma: factors} | {name: 1 / factors for name in others if name is not None}
    else:
        return None
    found: dict[str, Array] = {}
    for name, factor in powers.items():
        array = all_facts[name].array
        if all_facts[name].stored.kind != "f" or array.size != len(factor):
            return None
        with np.errstate(all="ignore"):  # results are checked
            found[name] = multiplied(array.reshape(-1), factor).reshape(array.shape)
        if not np.isfinite(all_facts[name].floats).all() or not np.isfinite(found[name].astype(np.float64)).all():
            return None
    return found


def pays(fitted: Fit, weight: TensorPlan, before: Mapping[str, TensorFacts], after: Mapping[str, TensorFacts]) -> bool:
    """Return whether the lower error of a weight is worth the additional bits of its scales.

    ``before`` and ``after`` are the scaled tensors, beginning with the scale or gamma, whose decoded values are used.
    ``before`` is empty for a new scale.
    """
    first = next(iter(after))
    values = before[first].floats.astype(np.float64).reshape(-1) if before else np.ones(len(fitted.factors))
    (was, had), (taken, got) = (_coded(all_facts, first, values) for all_facts in (before, after))
    worth = (weight.rate or RATES[bool(weight.dq_flag)]) * weight.step**2
    return fitted.gain(had, got) > worth * 8 * (taken - was)


def _coded(all_facts: Mapping[str, TensorFacts], first: str, values: Floats) -> tuple[float, Floats]:
    """Return the bytes of tensors, and the quotient of the decoded first tensor and its values; 1 for 0 / 0."""
    taken, quotient = 0.0, np.ones(len(values))
    for name, one in all_facts.items():
        plan = plan_tensor(one, in_block=True)
        taken += estimated_bytes(one, plan)
        if name == first:
            got = one.floats if plan.code or not plan.step else quant_param(plan, one) * plan.step
            np.divide(got.astype(np.float64).reshape(-1), values, out=quotient, where=values != 0)
    return taken, quotient
