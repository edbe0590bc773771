"""Step sizes of G and H, derived from the step size of their product (ISO/IEC 15938-17:2024, 7.3.5, 8.3.7).

An error in G is multiplied by H, and an error in H by G. With step sizes proportional to 1 / |H| for G and 1 / |G| for
H, each parameter of G and H contributes equally to the error of the product, which minimizes the error for a given
size. The step sizes are scaled so that the product has the same error as a weight that is quantized directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import frexp, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import TENSOR_GOALS, EncoderConfig, TensorOptions
from ..model import Array, Block
from ..tensor.quant import scale, step_size
from .facts import TensorFacts, tensor_facts
from .plan import TensorPlan, as_uniform
from .planning import plan_tensor
from .prepared import weight_of
from .rate_distortion import Distortion, power, quant_param
from .tensor_tasks import Pool, TensorReader, TensorTask

Options = dict[str, Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Factors:
    """Properties of the G and H of one weight that determine step sizes.

    Parameters
    ----------
    g, h : float
        Sums of squares.
    rows, columns, rank : int
    gain : float
        Ratio of the squared error of the weight to the error of the product: 1, unless the product is a displacement.
    energy : float
        Sum of squares of the weight.
    """

    g: float
    h: float
    rows: int
    columns: int
    rank: int
    gain: float = 1.0
    energy: float = 0.0

    @property
    def costs(self) -> tuple[float, float]:
        """Squared error of the weight for each squared error of a parameter of G, and of H."""
        return self.gain * self.h / self.rank, self.gain * self.g / self.rank

    def steps(self, step: float) -> tuple[float, float]:
        """Return the step sizes of G and H at which the weight has the same error as when it is quantized directly."""
        both = self.rows * self.columns / (self.rows + self.columns)
        g, h = (step * sqrt(both / (cost * self.rank)) if cost else step for cost in self.costs)
        return g, h

    def qps(self, qp: int, density: int) -> tuple[int, int]:
        """Return the nearest qp of G and of H for a qp of the weight."""
        g, h = (_nearest(step, density) for step in self.steps(step_size(qp, density)))
        return g, h


def _nearest(step: float, density: int) -> int:
    """Return the qp of the nearest step size that float32 represents."""
    bound = 126 << density
    mantissa, exponent = frexp(step)
    qp = (exponent - 1 << density) + round((2 * mantissa - 1) * (1 << density))
    return max(-bound, min(bound, qp))


def read_factors(
    blocks: Sequence[Block], read: TensorReader, pool: Pool, *, energy: bool = False
) -> dict[str, Factors]:
    """Return the Factors of each weight by its name; with ``energy``, compute the energy of the weights too."""
    calls = [TensorTask(_factors, read, _names(block), (block, energy), read.nbytes(_names(block))) for block in blocks]
    return {block.weight: found for block, found in zip(blocks, pool.run(calls), strict=True)}


def _names(block: Block) -> tuple[str, str]:
    return block.g or "", block.h or ""


def _factors(arrays: list[Array], block: Block, energy: bool) -> Factors:
    g, h = (np.asarray(array, np.float64) for array in arrays)
    (rows, rank), columns = g.shape, h.shape[1]
    gain = gain_of(rows, columns, block.corner)
    whole = np.asarray(weight_of(block, g, h, np.float64), np.float64) if energy else np.zeros(1)
    return Factors(power(g), power(h), rows, columns, rank, gain, power(whole))


def gain_of(rows: int, columns: int, corner: int | None) -> float:
    """Return the mean number of displacement errors that add up in a parameter of the matrix."""
    if corner is None:
        return 1.0
    lengths = np.arange(1, rows + 1, dtype=np.float64)  # in each row
    if not corner:  # along diagonals that begin in the first row or column
        short = np.minimum(lengths, columns)
        lengths = (short * (short + 1) / 2 + (columns - short) * lengths) / columns
    return float(lengths.sum() / rows)


def inherited(config: EncoderConfig, blocks: Sequence[Block]) -> EncoderConfig:
    """Return options in which G and H have the options of their weights, unless they have overrides."""
    if not blocks:
        return config
    found: dict[str, Options] = {}
    for block in blocks:
        of_weight = config.for_tensor(block.weight)
        options = {option.name: getattr(of_weight, option.name) for option in fields(TensorOptions)}
        for name in _names(block):
            own = config.overrides.get(name, {})
            if any(goal in own for goal in TENSOR_GOALS):
                options = {key: value for key, value in options.items() if key not in TENSOR_GOALS}
            found[name] = {**options, "fine_vectors": False, "codebook": 0, **own}
    return config.overridden(found)


def has_steps(config: EncoderConfig, block: Block) -> bool:
    """Return whether G or H has an override of the step size."""
    return any(config.overrides.get(name, {}).get("qp") is not None for name in _names(block))


def qp_options(block: Block, factors: Factors, qp: int, density: int) -> dict[str, Options]:
    """Return the options of G and H that give the weight the error of its ``qp``."""
    return {name: {"qp": own} for name, own in zip(_names(block), factors.qps(qp, density), strict=True)}


def largest_qp(
    block: Block,
    dtype: np.dtype[Any],
    factors: Factors,
    config: EncoderConfig,
    read: TensorReader,
    reaches: Callable[[Distortion], bool],
    qps: range,
) -> int | None:
    """Return the largest of ascending ``qps`` of the weight whose error is permitted, found by bisection.

    The error refers to the weight as decoders compute it, in its ``dtype``.
    """
    all_facts = [
        tensor_facts(name, array, config) for name, array in zip(_names(block), read(_names(block)), strict=True)
    ]
    low, high = -1, len(qps)
    while high - low > 1:
        middle = (low + high) >> 1
        options = qp_options(block, factors, qps[middle], config.qp_density)
        tried = [_with(one, options[one.name]) for one in all_facts]
        found = _distortion(tried, block, dtype)
        if found is not None and reaches(found):
            low = middle
        else:
            high = middle
    return qps[low] if low >= 0 else None


def _with(some: TensorFacts, options: Options) -> TensorFacts:
    return TensorFacts(some.name, some.array, some.stored, some.options.replaced(options), some.config)


def _distortion(all_facts: Sequence[TensorFacts], block: Block, dtype: np.dtype[Any]) -> Distortion | None:
    """Return the error of the weight with the step sizes of G and H; None if a step size or value is impossible."""
    plans = [plan_tensor(one, in_block=True) for one in all_facts]
    if not all(plan.step for plan in plans):
        return None
    if not all(plan.dq_flag for plan in plans):
        plans = [as_uniform(plan) for plan in plans]
    g, h = (one.array for one in all_facts)
    before = np.asarray(weight_of(block, g, h, dtype), np.float64)
    g, h = (_decoded(one, plan) for one, plan in zip(all_facts, plans, strict=True))
    errors = before - np.asarray(weight_of(block, g, h, dtype), np.float64)
    if not np.isfinite(errors).all():
        return None
    return Distortion(power(before), power(errors), float(np.abs(errors).max()))


def _decoded(some: TensorFacts, plan: TensorPlan) -> Array:
    return scale(quant_param(plan, some), plan.step, plan.data_format).reshape(some.dims)
