"""Default step size of a matrix without a qp or a goal, computed from the values of the matrix.

The step size is proportional to the root mean square of the values times fan-in**0.75 (docs/guides/steering.md). Three
guards make it finer:

* the matrix has an SNR of at least FLOOR,
* no row (index of ``dims[0]``) becomes zero,
* at most MOST_ZEROED of the values become zero.

Zeros are excluded. A value is negligible below NEGLIGIBLE times the 99th percentile of the magnitudes: in a float32
sum, rounding removes it. Weight decay leaves negligible values in dead channels. Rows of negligible values are
excluded. If more than MOST_ZEROED of the values are negligible, the matrix is sparse, and these values are excluded as
well.

The matrix is quantized to check the guards only if fast bounds are not sufficient.

If no value is negative and many are small, as in the second moments of an optimizer, values are probably divisors, and
small ones are as important as large ones. The step size is then computed from the smallest value.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, inf, prod, sqrt

import numpy as np

from .distinct_values import CHUNK, sample
from .facts import TensorFacts
from .plan import TensorPlan
from .rate_distortion import Floats, Levels, distortion, quant_param

#: Step size relative to the root mean square times fan-in**0.75. Trained networks get about the size of step 2**-10.
STEP = 0.0002055
#: Highest QpDensity whose step sizes are used, so that goals of other tensors do not change the default.
DENSITY = 2
#: Minimum ratio of signal and noise of a matrix: 35 dB.
FLOOR = 3162.0
#: Error of a value in squared step sizes, at the default rates, with dependent quantization and without.
NOISE = {True: 0.3, False: 0.1}
#: Largest share of the values that may become zero.
MOST_ZEROED = 0.1
#: Part of the 99th percentile of the magnitudes below which values are negligible: the precision of float32.
NEGLIGIBLE = 2.0**-24
#: Ratio of root mean square and 10th percentile above which unsigned values have a wide range. It is 8 for magnitudes
#: of normally distributed values, 110 for their squares.
WIDE = 32.0
#: A row with a value of SAFE_ROW steps does not become zero. Values of SAFE steps rarely become zero.
SAFE_ROW, SAFE = 4.0, 2.0
#: Most values of at most LOST steps become zero.
LOST = 0.7
#: Number of step sizes tried, each a quarter of an octave finer than the previous one.
TRIES = 16
#: Number of values from which percentiles are estimated.
SAMPLE = 1 << 16
#: Largest rate for which NOISE is valid.
USUAL_RATE = 0.4


def default_step(rms: float, fan_in: int, dependent: bool) -> float:
    """Return the step size of a matrix with this root mean square of nonzero values, limited by its floor."""
    return min(STEP * rms * sqrt(fan_in) * sqrt(sqrt(fan_in)), floor_step(rms, FLOOR, dependent))


def floor_step(rms: float, ratio: float, dependent: bool) -> float:
    """Return the step size with approximately this ratio of signal and noise."""
    return rms / sqrt(ratio * NOISE[dependent])


def qp_below(step: float, qp_density: int) -> int:
    """Return the qp of the largest step size of this QpDensity that does not exceed ``step`` (7.3.6)."""
    mantissa, exponent = frexp(max(step, 5e-324))
    return ((exponent - 1) << qp_density) + int((2 * mantissa - 1) * (1 << qp_density))


def has_wide_range(facts: TensorFacts) -> bool:
    """Return whether no value is negative, and a tenth of the values are much smaller than the root mean square."""
    if facts.bounds[0] < 0:
        return False
    energy, count = facts.energy
    if not 0 < energy < inf:
        return False
    some = sample(facts.floats.reshape(-1), SAMPLE)
    return sqrt(energy / count) > WIDE * _percentile(some[some > 0], 10)


def default_plan(
    facts: TensorFacts, plan_at: Callable[[int], TensorPlan | None], *, dependent: bool, guarded: bool
) -> TensorPlan | None:
    """Return the plan with the default step size, or a finer one that meets the guards; None if no step size does.

    Parameters
    ----------
    facts : TensorFacts
        Facts about a tensor of finite floats.
    plan_at : callable
        Function from a qp to a plan, or to None for an unsuitable qp.
    dependent : bool
        True for dependent quantization.
    guarded : bool
        True if the guards apply.
    """
    (energy, count), density = facts.energy, facts.config.qp_density
    if not count:
        return plan_at(0)
    if not 0 < energy < inf:  # float64 values whose squares vanish or overflow
        return None
    rms = sqrt(energy / count)
    step, coarse = default_step(rms, prod(facts.dims[1:]), dependent), min(density, DENSITY)
    safe_step = 0.9 * floor_step(rms, FLOOR, dependent)
    if not guarded or facts.smallest >= SAFE_ROW * step:
        plan = plan_at(qp_below(step, coarse) << (density - coarse))
        if not guarded or (plan and _is_usual(plan) and plan.step <= min(step, safe_step)):
            return plan
    guards = _Guards(facts, safe_step)
    qp = qp_below(min(step, guards.coarsest), coarse) << (density - coarse)
    for _ in range(TRIES):
        plan = plan_at(qp)
        if not plan or not plan.step or guards.hold(plan):
            return plan
        qp -= max(1 << density >> 2, 1)
    return None


class _Guards:
    """Guards of one matrix. The SNR is certain at ``safe_step``.

    Attributes
    ----------
    coarsest : float
        Larger step sizes probably break a guard.
    """

    def __init__(self, facts: TensorFacts, safe_step: float) -> None:
        self._facts, self._safe_step = facts, safe_step
        rows = facts.floats.reshape(facts.dims[0], -1)
        extents = np.maximum(rows.max(axis=1), -rows.min(axis=1))
        some = np.abs(sample(rows.reshape(-1), SAMPLE))
        some = some[some > 0]
        least = NEGLIGIBLE * _percentile(some, 99)
        self._rows = (extents > 0) & (extents >= least)
        self._smallest_row = float(extents.min(where=self._rows, initial=np.inf))
        self._least = least if np.count_nonzero(some < least) > MOST_ZEROED * len(some) else 0.0
        tenth = _percentile(some[some >= self._least], 100 * MOST_ZEROED)
        self.coarsest = min(self._smallest_row, tenth or np.inf) / LOST

    def hold(self, plan: TensorPlan) -> bool:
        """Return whether the levels of a plan meet all guards."""
        facts = self._facts
        if _is_usual(plan) and plan.step <= self._safe_step and self._smallest_row >= SAFE_ROW * plan.step:
            small, values = self._count(None, SAFE * plan.step)
            if small <= MOST_ZEROED * values:
                return True
        levels = quant_param(plan, facts)
        zeroed, values = self._count(levels, 0.0)
        return (
            zeroed <= MOST_ZEROED * values
            and bool(np.any(levels.reshape(facts.dims[0], -1)[self._rows], axis=1).all())
            and distortion(facts, plan, levels).reaches(FLOOR)
        )

    def _count(self, levels: Levels | None, bound: float) -> tuple[int, int]:
        """Return the number of values with level 0 or below a bound, and the number of all values."""
        flat, lost, values = self._facts.floats.reshape(-1), 0, 0
        for start in range(0, flat.size, CHUNK):
            magnitudes = np.abs(flat[start : start + CHUNK])
            counted = (magnitudes > 0) & (magnitudes >= self._least)
            is_lost = magnitudes < bound if levels is None else levels[start : start + CHUNK] == 0
            lost += int(np.count_nonzero(counted & is_lost))
            values += int(np.count_nonzero(counted))
        return lost, values


def _is_usual(plan: TensorPlan) -> bool:
    """Return whether NOISE, SAFE_ROW and SAFE are valid for a plan."""
    return not plan.importance and not plan.codebook and plan.rate <= USUAL_RATE


def _percentile(magnitudes: Floats, percent: float) -> float:
    """Return a percentile of magnitudes; 0 for an empty array."""
    if not len(magnitudes):
        return 0.0
    place = int(len(magnitudes) * percent / 100)
    return float(np.partition(magnitudes, place)[place])
