"""Rate allocation: steps of all tensors at which a model meets a target size with the least distortion.

Each tensor has a curve of rate and distortion, made of excerpts quantized at steps half an octave apart. A Lagrangian
over all of them, least sum of distortion + lambda * rate, gives each tensor its step; lambda is searched for on the
curves, and corrected by codings of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import frexp
from typing import Any

import numpy as np

from ..cabac_ext.kernel import PayloadEstimator, TensorSide
from ..config import TENSOR_GOALS, EncoderConfig
from ..constants import NNR_PT_FLOAT
from ..errors import EncodeError
from ..model import Array, Model
from ..tensor.quant import DTYPES, step_size
from .factor_steps import read_factors
from .facts import TensorFacts, tensor_facts
from .goals import (
    DEFAULT_QP,
    DENSITY,
    EXCERPT,
    GREATEST_QP,
    LEAST_QP,
    OCTAVE,
    clipped,
    excerpt,
    qp_of,
    quantizable,
    read_each,
    resolve_goals,
    usual_qp,
    with_density,
)
from .lossless_bound import least_bytes, lossless
from .planning import plan_tensor
from .prepared import Prepared, decomposed
from .quantization import quantize
from .rate_distortion import power, resolve, unit_syntax
from .sensitivity import check_names, importance, relative_costs
from .tensor_tasks import Pool, TensorReader
from .tied_tensors import tied_tensors

#: Bytes of a bitstream, and of the units of each tensor.
Sizes = tuple[int, Mapping[str, int]]

#: Distance in qp of the points of a curve; parameters of all excerpts together, and of the smallest one.
SPACING, TOTAL, LEAST = OCTAVE // 2, 1 << 22, 1 << 11
#: lambda in squared steps, at high rates.
SLOPE = 0.33
#: Largest level for which a curve has points.
MOST = 1 << 28
#: Parts of the target: size that the search aims at, and size that is accepted.
AIM, ENOUGH = 0.997, 0.99
#: CLOSE: relative size error at which the search on curves stops; SECANTS: upper bound of its steps; FARTHEST: of each
#: change of qp.
CLOSE, SECANTS, FARTHEST = 0.0005, 12, 4 * OCTAVE
#: Upper bounds: codings to find a level; codings with another rate for one tensor, and the increase of that rate;
#: tensors whose size jumps, as where they become exact, and that keep their step from then on.
CODINGS, EXTRAS, EXTRA, ROUNDS = 12, 6, 0.25, 6
#: The greatest rate that options may have.
MOST_RATE = 16.0


def allocate(
    prepared: Prepared,
    config: EncoderConfig,
    read: TensorReader,
    pool: Pool,
    size: Callable[[EncoderConfig], Sizes],
) -> EncoderConfig:
    """Return options without goals, of which come what the goals ask for.

    Parameters
    ----------
    prepared, config, read, pool
        As for the encoder.
    size : callable
        Returns the sizes of a model with some options; needed with a target.

    Raises
    ------
    EncodeError
        The target is less than what the coarsest steps take.
    """
    model = prepared.model
    check_names(model, config)
    blocks = decomposed(model, prepared.restored)
    config = resolve_goals(model, config, read, pool, restored=prepared.restored)
    if config.target_size is None and config.target_ratio is None:
        return config
    target = config.target_size or int((config.target_ratio or 0.0) * prepared.source_bytes)
    if prepared.links is None and (exact := _lossless(model, config, read, pool, size, target)):
        return exact
    config = with_density(replace(config, target_size=None, target_ratio=None))
    costs = {
        name: cost
        for block in blocks
        for name, cost in zip((block.g, block.h), read_factors([block], read, pool)[block.weight].costs, strict=True)
    }
    return _Search(model, config, read, pool, size, target, costs).found()


def _lossless(
    model: Model,
    config: EncoderConfig,
    read: TensorReader,
    pool: Pool,
    size: Callable[[EncoderConfig], Sizes],
    target: int,
) -> EncoderConfig | None:
    """Return options with which the tensors without a goal of their own keep every bit; None if that is larger."""
    names = []
    for name in model.tensors:
        options = config.for_tensor(name)
        if not options.exact and all(getattr(options, goal) is None for goal in TENSOR_GOALS):
            if options.exact is False:
                return None
            names.append(name)
    tied = tied_tensors(model, config, {})
    floors = read_each([name for name in names if name not in tied], read, pool, _least_bytes)
    if sum(floors.values()) > target:
        return None
    exact = lossless(config, names)
    with suppress(EncodeError):  # tensors that have to be quantized, such as factors, or that need a record
        if size(exact)[0] <= target:
            return exact
    return None


def _least_bytes(arrays: list[Array], _: str) -> int:
    return least_bytes(arrays[0])


def _cost(arrays: list[Array], name: str, config: EncoderConfig) -> float:
    """Return the mean cost of a squared error in a tensor."""
    known = importance(name, arrays[0].shape, config)
    return known.mean() if known else 1.0


# ------------------------------------------------------------------------------------------------ curves
@dataclass
class Curve:
    """Rate and distortion of one tensor over its steps."""

    some: TensorFacts  # an excerpt
    scale: float  # parameters of the tensor for each of the excerpt
    weight: float  # cost of its squared errors
    least: int  # first point
    greatest: int  # last point
    fine: bool = False  # steps are those of vectors: the qp of the level, plus shift
    shift: int = 0
    even: int = GREATEST_QP  # least qp from which on each is coded as it is
    points: dict[int, tuple[float, float]] = field(default_factory=dict)  # measured bits and weighted distortion
    found: dict[int, int] = field(default_factory=dict)  # best qp by level
    kept: int | None = None  # the qp at all levels from now on

    def at(self, point: int) -> tuple[float, float]:
        """Return bits, and weighted distortion."""
        if point not in self.points:
            self.points[point] = self._measured(point * SPACING)
        return self.points[point]

    def best(self, level: int) -> int:
        """Return the qp of the least sum of distortion and lambda times bits; a vector has that of the level."""
        if self.kept is not None:
            return self.kept
        if self.fine:
            return clipped(level + self.shift)
        if level not in self.found:
            qp = self._best(SLOPE * step_size(level, DENSITY) ** 2)
            self.found[level] = self.coded(qp)
        return self.found[level]

    def coded(self, qp: int) -> int:
        """Return the qp with which a tensor is coded that is to have this one."""
        if self.fine or qp >= self.even:
            return qp
        return max(plan_tensor(self.some.with_options(self.options(qp)), in_block=True).qp, self.least * SPACING)

    def bits(self, qp: int) -> float:
        """Return bits at any qp: the parabola through the points around it."""
        point = max(self.least + 1, min(self.greatest - 1, (qp + SPACING // 2) // SPACING))
        part = qp / SPACING - point
        fine, middle, coarse = (self.at(point + k)[0] for k in (-1, 0, 1))
        return middle + part * (coarse - fine) / 2 + part * part * (fine - 2 * middle + coarse) / 2

    def _best(self, slope: float) -> int:
        def cost(point: int) -> float:
            bits, noise = self.at(point)
            return noise + slope * bits

        # Twice the exponent of the squared step is the number of half octaves.
        mantissa, exponent = frexp(slope / (SLOPE * self.weight))
        start = exponent - (mantissa < 0.75)
        point = max(self.least, min(self.greatest, start))
        while point < self.greatest and cost(point + 1) < cost(point):
            point += 1
        while point > self.least and cost(point - 1) < cost(point):
            point -= 1
        offset = 0
        if self.least < point < self.greatest:
            before, here, after = cost(point - 1), cost(point), cost(point + 1)
            bend = before - 2 * here + after
            offset = round(SPACING * (before - after) / (2 * bend)) if bend > 0 else 0
        return point * SPACING + offset

    def options(self, qp: int) -> dict[str, Any]:
        """Return the options of the tensor with a qp."""
        return {"qp": qp} if self.fine else {"qp": qp, "fine_vectors": False}

    def rate(self, qp: int) -> float:
        """Return the squared steps that a bit is worth."""
        return plan_tensor(self.some.with_options(self.options(qp)), in_block=True).rate

    def _measured(self, qp: int) -> tuple[float, float]:
        some = self.some.with_options(self.options(qp))
        plan = plan_tensor(some, in_block=True)
        if plan.payload_type != NNR_PT_FLOAT or not plan.step:
            return 8.0 * self.scale * some.array.nbytes, 0.0
        syntax = unit_syntax(plan, some.config.profile)
        levels = quantize(plan, some.floats, syntax)
        estimator = PayloadEstimator()
        estimator.quant_tensor(syntax, levels, TensorSide())
        flat = levels.reshape(-1)
        if plan.dq_flag:
            resolve(flat)
        noise = power(some.floats.reshape(-1) - flat * plan.step)
        return self.scale * estimator.bits, self.scale * self.weight * noise


def _curve(arrays: list[Array], name: str, config: EncoderConfig, about: int, weight: float) -> Curve | None:
    """Return the curve of a tensor, yet without points; None where there is no step to choose."""
    tensor = tensor_facts(name, arrays[0], config)
    if not quantizable(tensor) or tensor.options.exact or not any(tensor.bounds):
        return None
    tensor = replace(tensor, options=replace(tensor.options, scan_order=0), importance=None)
    some = excerpt(tensor, about)
    array = some.array.copy()
    array.flat[0], array.flat[-1] = tensor.array.min(), tensor.array.max()  # on which it depends what steps there are
    some = replace(some, array=array)
    scale = tensor.array.size / some.array.size
    if tensor.is_fine:
        return Curve(some, scale, weight, LEAST_QP // SPACING, GREATEST_QP // SPACING, fine=True)
    largest = max(map(abs, tensor.bounds))
    least = max(-(-qp_of(largest / MOST) // SPACING), LEAST_QP // SPACING)
    if least + 2 > GREATEST_QP // SPACING:  # too large for all steps
        return None
    greatest = min(qp_of(8 * largest) // SPACING + 1, GREATEST_QP // SPACING)
    bits = np.finfo(DTYPES[tensor.data_format]).nmant - DENSITY - 1
    even = qp_of(largest / ((1 << bits) - 4)) + 1 if bits > DENSITY else GREATEST_QP
    return Curve(some, scale, weight, least, max(greatest, least + 2), even=even)


# ------------------------------------------------------------------------------------------------ the search
#: The qp of each tensor with a curve.
Steps = tuple[int, ...]


@dataclass
class _Search:
    """For the options with which a model takes not more than a target, and little less.

    A level stands for lambda, as the qp that it suits: the larger, the coarser all tensors are.
    """

    model: Model
    config: EncoderConfig
    read: TensorReader
    pool: Pool
    size: Callable[[EncoderConfig], Sizes]
    target: int
    #: Squared error of the product for each squared error of a factor.
    costs: Mapping[str | None, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    sizes: dict[tuple[Steps, str, float], int] = field(default_factory=dict)
    #: The level of the usual quality.
    usual: int = DEFAULT_QP
    #: Bytes of tensors without a curve, and the ratio of coded sizes and those of the curves.
    fixed: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        self.tied = tied_tensors(self.model, self.config, {})
        names = []
        for name in self.model.tensors:
            options = self.config.for_tensor(name)
            if name not in self.tied and all(getattr(options, goal) is None for goal in TENSOR_GOALS):
                names.append(name)
        about = max(LEAST, min(EXCERPT, TOTAL // max(len(names), 1)))
        found = read_each(names, self.read, self.pool, _curve, self.config, about, 1.0)
        self.curves = {name: curve for name, curve in found.items() if curve}
        plain = {name: curve for name, curve in self.curves.items() if name not in self.costs} or self.curves
        others = [curve.some.floats for curve in plain.values() if not curve.fine]
        self.usual = usual_qp((power(some), float(np.count_nonzero(some))) for some in others)
        for curve in self.curves.values():
            curve.shift = DEFAULT_QP - self.usual
        given = {*(self.config.sensitivity or ()), *(self.config.hessians or ())}
        known = [name for name in self.curves if name in given]
        for name, cost in relative_costs(read_each(known, self.read, self.pool, _cost, self.config)).items():
            self.curves[name].weight *= cost
        for name, curve in self.curves.items():
            curve.weight *= self.costs.get(name, 1.0)

    def found(self) -> EncoderConfig:
        """Return the options; EncodeError where no step leads to the target."""
        high = GREATEST_QP + 1
        for _ in range(ROUNDS):
            low, high = self.levels(high)
            if self.met:
                break
            if low < LEAST_QP or high > GREATEST_QP:
                self.check()
                break
            jump = self.between(self.steps(high), self.steps(low))
            if self.met or not jump:
                break
            self.curves[jump[0]].kept = jump[1]  # the others use the remaining bytes
        fitting = [found for found, taken in self.sizes.items() if taken <= self.target]
        return self.options(*max(fitting, key=lambda found: (self.sizes[found], found)))

    def levels(self, high: int) -> tuple[int, int]:
        """Return the coarsest level known not to fit, and the finest that fits, if ``high`` fits or is too coarse."""
        low, most = LEAST_QP - 1, len(self.sizes) + CODINGS
        level = self.level(low, high, min(high, self.usual))
        while len(self.sizes) < most and high - low > 1:
            width, steps = high - low, self.steps(level)
            seen, taken = (steps, "", 0.0) in self.sizes, self.measured(steps)
            if taken > self.target:
                low = level
            else:
                high = level
            if self.met:
                break
            level = (low + high) >> 1 if seen or 2 * (high - low) > width else self.level(low, high, level)
        return low, high

    def check(self) -> None:
        """Raise EncodeError where even the coarsest steps take too much; measure the finest ones."""
        if any(curve.kept is not None for curve in self.curves.values()):
            return
        coarsest, _ = (self.measured(self.steps(end)) for end in (GREATEST_QP, LEAST_QP))
        if coarsest > self.target:
            raise EncodeError(
                f"the model takes {coarsest:,} bytes with the coarsest steps, more than the target of "
                f"{self.target:,} bytes; use a larger target"
            )

    def level(self, low: int, high: int, near: int) -> int:
        """Return a level between two that nearly fits by the curves, found by secants that begin at ``near``."""
        aim = 8 * (AIM * self.target - self.fixed) / self.factor
        slope = -sum(curve.scale * curve.some.array.size for curve in self.curves.values()) / OCTAVE
        near = max(low + 1, min(high - 1, near))
        before: tuple[int, float] | None = None
        for _ in range(SECANTS):
            bits = self.bits(near)
            if bits > aim:
                low = near
            else:
                high = near
            if high - low <= 1 or abs(bits - aim) < CLOSE * aim:
                break
            if before and (bits - before[1]) * (near - before[0]) < 0:
                slope = (bits - before[1]) / (near - before[0])
            before = near, bits
            near += round(max(-FARTHEST, min(FARTHEST, (aim - bits) / slope))) if slope else FARTHEST
            if not low < near < high:
                near = (low + high) >> 1
        return near

    def bits(self, level: int) -> float:
        """Return bits of all that has a curve."""
        return sum(curve.bits(curve.best(level)) for curve in self.curves.values())

    def steps(self, level: int) -> Steps:
        """Return the best steps."""
        return tuple(curve.best(level) for curve in self.curves.values())

    def between(self, coarse: Steps, fine: Steps) -> tuple[str, int] | None:
        """Try steps between two adjacent levels: tensor after tensor, then the worth of bits of one.

        Where one tensor is too much with the next finer step, that one and the step with which it is not.
        """

        def steps(way: int) -> Steps:
            found = zip(self.curves.values(), _towards(coarse, fine, way), strict=True)
            return tuple(curve.coded(qp) for curve, qp in found)

        low, high = 0, sum(abs(one - other) for one, other in zip(coarse, fine, strict=True))
        while high - low > 1 and not self.met:
            middle = (low + high) >> 1
            if self.fits(steps(middle)):
                low = middle
            else:
                high = middle
        pairs = zip(self.curves, steps(low), steps(high), strict=True)
        jump = next(((name, one) for name, one, other in pairs if one != other), None)
        if self.met or not jump:
            return None
        least, most = 0.0, EXTRA
        if self.fits(steps(high), jump[0], most):
            most_sizes = len(self.sizes) + EXTRAS
            while len(self.sizes) < most_sizes and not self.met:
                extra = (least + most) / 2 if least else most / 8
                if self.fits(steps(high), jump[0], extra):
                    most = extra
                else:
                    least = extra
        return jump

    @property
    def met(self) -> bool:
        """True if a coding was near enough."""
        return any(ENOUGH * self.target <= size <= self.target for size in self.sizes.values())

    def fits(self, steps: Steps, name: str = "", extra: float = 0.0) -> bool:
        """Return whether a coding does."""
        return self.measured(steps, name, extra) <= self.target

    def measured(self, steps: Steps, name: str = "", extra: float = 0.0) -> int:
        """Return bytes of a coding, which corrects the curves."""
        if (steps, name, extra) not in self.sizes:
            taken, units = self.size(self.options(steps, name, extra))
            self.sizes[steps, name, extra] = taken
            mine = sum(units.get(name, 0) for name in self.curves)
            expected = sum(curve.bits(qp) for curve, qp in zip(self.curves.values(), steps, strict=True)) / 8
            if mine and expected:
                self.fixed, self.factor = taken - mine, mine / expected
        return self.sizes[steps, name, extra]

    def options(self, steps: Steps, dear: str = "", extra: float = 0.0) -> EncoderConfig:
        """Return the options of given steps; a bit of the tensor ``dear`` is worth more by ``extra``."""
        found: dict[str, dict[str, Any]] = {}
        for (name, curve), qp in zip(self.curves.items(), steps, strict=True):
            found[name] = curve.options(qp)
            if name == dear and extra:
                found[name]["rate"] = min(MOST_RATE, curve.rate(qp) + extra)
        found |= {name: found[target] for name, target in self.tied.items() if target in found}
        return self.config.overridden(found)


def _towards(start: Steps, end: Steps, way: int) -> Steps:
    """Return the steps after so many changes by 1 from some steps to others, tensor after tensor."""
    found = []
    for one, other in zip(start, end, strict=True):
        part = min(way, abs(other - one))
        found.append(one + part if other > one else one - part)
        way -= part
    return tuple(found)
