"""Scales by least squares, which compensate the quantization of each index of a weight (8.3.9).

With levels Q of a weight W, the scale of an index is <W, Q> / <Q, Q>, of which the squared error is least. It goes into
a scale, or the batch normalization, that the block has: gamma times it, and bias and mean divided by it.
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

#: Largest scale, and inverse of the least one.
RANGE = 2.0
#: New scales, which are near 1, have a step of 2 to this power.
STEP_EXPONENT = -6


def scale_options(qp_density: int) -> dict[str, Any]:
    """Return the options of the tensor of new scales."""
    return {"qp": STEP_EXPONENT << qp_density, "fine_vectors": False, "rate": 0}


class Fit(NamedTuple):
    """Scales of a weight.

    Parameters
    ----------
    factors : ndarray of float64, shape (dims[0],)
    products, squares : ndarray of float64, shape (dims[0],)
        <W, Q> and <Q, Q> of each index, of levels times steps.
    """

    factors: Floats
    products: Floats
    squares: Floats

    def gain(self, before: Floats, after: Floats) -> float:
        """Return the decrease of the squared error by other scales: |W - sQ|^2 is |W|^2 - 2s<W, Q> + s^2<Q, Q>."""
        gains = (after - before) * (2 * self.products - (after + before) * self.squares)
        return float(row_sums(gains[None])[0])


def fit(facts: TensorFacts, plan: TensorPlan) -> Fit:
    """Return the scales that suit the levels of a weight, its dimension of scales first; the same on every machine."""
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
    """Return the tensors of a block that take the factors, by name; None where they do not hold what comes of that."""
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
        with np.errstate(all="ignore"):  # whatever the values are, what comes of them is looked at
            found[name] = multiplied(array.reshape(-1), factor).reshape(array.shape)
        if not np.isfinite(all_facts[name].floats).all() or not np.isfinite(found[name].astype(np.float64)).all():
            return None
    return found


def pays(fitted: Fit, weight: TensorPlan, before: Mapping[str, TensorFacts], after: Mapping[str, TensorFacts]) -> bool:
    """Return whether less error in a weight is worth the bits that its other scales take.

    ``before`` and ``after`` are the tensors that take the factors, first the scale or gamma, which counts as it is
    decoded; ``before`` is empty where that is new.
    """
    first = next(iter(after))
    values = before[first].floats.astype(np.float64).reshape(-1) if before else np.ones(len(fitted.factors))
    (was, had), (taken, got) = (_coded(all_facts, first, values) for all_facts in (before, after))
    worth = (weight.rate or RATES[bool(weight.dq_flag)]) * weight.step**2
    return fitted.gain(had, got) > worth * 8 * (taken - was)


def _coded(all_facts: Mapping[str, TensorFacts], first: str, values: Floats) -> tuple[float, Floats]:
    """Return bytes of some tensors, and the quotient of the first one as decoded and these values; 1 for 0 / 0."""
    taken, quotient = 0.0, np.ones(len(values))
    for name, one in all_facts.items():
        plan = plan_tensor(one, in_block=True)
        taken += estimated_bytes(one, plan)
        if name == first:
            got = one.floats if plan.code or not plan.step else quant_param(plan, one) * plan.step
            np.divide(got.astype(np.float64).reshape(-1), values, out=quotient, where=values != 0)
    return taken, quotient
