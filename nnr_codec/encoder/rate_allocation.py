"""Rate allocation: step sizes of all tensors with which a model meets a target size at the lowest distortion.

Each tensor has a rate-distortion curve, measured by quantizing an excerpt at step sizes half an octave apart. The step
sizes minimize the sum of distortion + lambda * rate over all tensors. lambda is found on the curves, and then corrected
by encoding the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import frexp
from typing import Any

import numpy as np

from ..cabac_ext import quantizer
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
from .rate_distortion import power, unit_syntax
from .sensitivity import check_names, importance, relative_costs
from .tensor_tasks import Pool, TensorReader
from .tied_tensors import tied_tensors

#: Size in bytes of a bitstream, and of the units of each tensor.
Sizes = tuple[int, Mapping[str, int]]

#: Distance in qp between points of a curve; number of parameters of all excerpts together, and of the smallest one.
SPACING, TOTAL, LEAST = OCTAVE // 2, 1 << 22, 1 << 11
#: lambda in squared step sizes at high rates.
SLOPE = 0.33
#: Largest level for which points are measured.
MOST = 1 << 28
#: Fractions of the target: size that the search aims at, and smallest size that it accepts.
AIM, ENOUGH = 0.997, 0.99
#: CLOSE: relative size error at which the search on curves stops; SECANTS: maximum number of its steps; FARTHEST: of
#: each change of qp.
CLOSE, SECANTS, FARTHEST = 0.0005, 12, 4 * OCTAVE
#: Limits: number of codings to find a level; codings with another rate for one tensor, and increase of that rate;
#: number of tensors whose size jumps, as when they become lossless, and whose step size is then fixed.
CODINGS, EXTRAS, EXTRA, ROUNDS = 12, 6, 0.25, 6
#: Largest rate that options permit.
MOST_RATE = 16.0


def allocate(
    prepared: Prepared,
    config: EncoderConfig,
    read: TensorReader,
    pool: Pool,
    size: Callable[[EncoderConfig], Sizes],
) -> EncoderConfig:
    """Return options without goals that meet the goals of the given options.

    Parameters
    ----------
    prepared, config, read, pool
        As for the encoder.
    size : callable
        Function from options to the sizes of the model; required with a target.

    Raises
    ------
    EncodeError
        The coarsest step sizes need more bytes than the target.
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
    """Return options with all tensors without a goal lossless; None if that exceeds the target."""
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
    with suppress(EncodeError):  # tensors that must be quantized, such as factors, or need a record
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
    """Rate and distortion of one tensor as functions of its step size."""

    some: TensorFacts  # an excerpt
    scale: float  # parameters of the tensor for each parameter of the excerpt
    weight: float  # cost of a squared error
    least: int  # first point
    greatest: int  # last point
    fine: bool = False  # step sizes of vectors: the qp of the level, plus shift
    shift: int = 0
    even: int = GREATEST_QP  # smallest qp from which every qp is coded unchanged
    points: dict[int, tuple[float, float]] = field(default_factory=dict)  # measured bits and weighted distortion
    found: dict[int, int] = field(default_factory=dict)  # best qp by level
    kept: int | None = None  # fixed qp for all levels

    def at(self, point: int) -> tuple[float, float]:
        """Return bits and weighted distortion at a point."""
        if point not in self.points:
            self.points[point] = self._measured(point * SPACING)
        return self.points[point]

    def best(self, level: int) -> int:
        """Return the qp that minimizes distortion + lambda * bits; for a vector, the qp of the level."""
        if self.kept is not None:
            return self.kept
        if self.fine:
            return clipped(level + self.shift)
        if level not in self.found:
            qp = self._best(SLOPE * step_size(level, DENSITY) ** 2)
            self.found[level] = self.coded(qp)
        return self.found[level]

    def coded(self, qp: int) -> int:
        """Return the qp that coding uses for a requested qp."""
        if self.fine or qp >= self.even:
            return qp
        return max(plan_tensor(self.some.with_options(self.options(qp)), in_block=True).qp, self.least * SPACING)

    def bits(self, qp: int) -> float:
        """Return bits at any qp, interpolated by the parabola through the nearest points."""
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
        """Return the cost of a bit in squared step sizes."""
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
            quantizer.resolve(flat, flat)
        noise = power(some.floats.reshape(-1) - flat * plan.step)
        return self.scale * estimator.bits, self.scale * self.weight * noise


def _curve(arrays: list[Array], name: str, config: EncoderConfig, about: int, weight: float) -> Curve | None:
    """Return the curve of a tensor, without points yet; None if the tensor has no step size to choose."""
    tensor = tensor_facts(name, arrays[0], config)
    if not quantizable(tensor) or tensor.options.exact or not any(tensor.bounds):
        return None
    tensor = replace(tensor, options=replace(tensor.options, scan_order=0, noise_shaping=False), importance=None)
    some = excerpt(tensor, about)
    array = some.array.copy()
    array.flat[0], array.flat[-1] = tensor.array.min(), tensor.array.max()  # they determine the possible step sizes
    some = replace(some, array=array)
    scale = tensor.array.size / some.array.size
    if tensor.is_fine:
        return Curve(some, scale, weight, LEAST_QP // SPACING, GREATEST_QP // SPACING, fine=True)
    largest = max(map(abs, tensor.bounds))
    least = max(-(-qp_of(largest / MOST) // SPACING), LEAST_QP // SPACING)
    if least + 2 > GREATEST_QP // SPACING:  # too large for every step size
        return None
    greatest = min(qp_of(8 * largest) // SPACING + 1, GREATEST_QP // SPACING)
    bits = np.finfo(DTYPES[tensor.data_format]).nmant - DENSITY - 1
    even = qp_of(largest / ((1 << bits) - 4)) + 1 if bits > DENSITY else GREATEST_QP
    return Curve(some, scale, weight, least, max(greatest, least + 2), even=even)


# ------------------------------------------------------------------------------------------------ the search
#: qp of each tensor with a curve.
Steps = tuple[int, ...]


@dataclass
class _Search:
    """Search for options with which the size of a model is at most a target, and close to it.

    A level represents lambda by the qp for which it is optimal: a larger level makes all tensors coarser.
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
    #: Level of the usual quality.
    usual: int = DEFAULT_QP
    #: Bytes of tensors without a curve, and ratio of coded sizes to sizes on the curves.
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
        """Return the options. Raises EncodeError if no step sizes meet the target."""
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
            self.curves[jump[0]].kept = jump[1]  # the other tensors use the remaining bytes
        fitting = [found for found, taken in self.sizes.items() if taken <= self.target]
        return self.options(*max(fitting, key=lambda found: (self.sizes[found], found)))

    def levels(self, high: int) -> tuple[int, int]:
        """Return the coarsest level known not to fit, and the finest level known to fit."""
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
        """Raise EncodeError if the coarsest step sizes exceed the target; measure the finest ones."""
        if any(curve.kept is not None for curve in self.curves.values()):
            return
        coarsest, _ = (self.measured(self.steps(end)) for end in (GREATEST_QP, LEAST_QP))
        if coarsest > self.target:
            raise EncodeError(
                f"the model takes {coarsest:,} bytes with the coarsest step sizes, more than the target of "
                f"{self.target:,} bytes; use a larger target"
            )

    def level(self, low: int, high: int, near: int) -> int:
        """Return a level between two levels that nearly fits on the curves; secant search from ``near``."""
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
        """Return the total bits of tensors with a curve."""
        return sum(curve.bits(curve.best(level)) for curve in self.curves.values())

    def steps(self, level: int) -> Steps:
        """Return the best step sizes at a level."""
        return tuple(curve.best(level) for curve in self.curves.values())

    def between(self, coarse: Steps, fine: Steps) -> tuple[str, int] | None:
        """Try step sizes between two adjacent levels: refine one tensor after another, then change the rate of one.

        If a single tensor exceeds the target with the next finer step size, return it with its coarser step size.
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
        """True if a coding was close enough to the target."""
        return any(ENOUGH * self.target <= size <= self.target for size in self.sizes.values())

    def fits(self, steps: Steps, name: str = "", extra: float = 0.0) -> bool:
        """Return whether a coding meets the target."""
        return self.measured(steps, name, extra) <= self.target

    def measured(self, steps: Steps, name: str = "", extra: float = 0.0) -> int:
        """Return the bytes of a coding, and correct the curves by it."""
        if (steps, name, extra) not in self.sizes:
            taken, units = self.size(self.options(steps, name, extra))
            self.sizes[steps, name, extra] = taken
            mine = sum(units.get(name, 0) for name in self.curves)
            expected = sum(curve.bits(qp) for curve, qp in zip(self.curves.values(), steps, strict=True)) / 8
            if mine and expected:
                self.fixed, self.factor = taken - mine, mine / expected
        return self.sizes[steps, name, extra]

    def options(self, steps: Steps, dear: str = "", extra: float = 0.0) -> EncoderConfig:
        """Return the options for step sizes; the rate of the tensor ``dear`` is increased by ``extra``."""
        found: dict[str, dict[str, Any]] = {}
        for (name, curve), qp in zip(self.curves.items(), steps, strict=True):
            found[name] = curve.options(qp)
            if name == dear and extra:
                found[name]["rate"] = min(MOST_RATE, curve.rate(qp) + extra)
        found |= {name: found[target] for name, target in self.tied.items() if target in found}
        return self.config.overridden(found)


def _towards(start: Steps, end: Steps, way: int) -> Steps:
    """Return the step sizes after a number of changes by 1 from one assignment to another, tensor by tensor."""
    found = []
    for one, other in zip(start, end, strict=True):
        part = min(way, abs(other - one))
        found.append(one + part if other > one else one - part)
        way -= part
    return tuple(found)
