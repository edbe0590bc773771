"""Planning of one tensor: choice of coding, format and step size from its type and the options."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import frexp, inf, isfinite, ldexp, prod, sqrt
from typing import NamedTuple

import numpy as np

from ..cabac_ext import quantizer
from ..config import DEFAULT_STEP_EXPONENT
from ..constants import DecompressedDataFormat
from ..dtypes import STORED_TYPES
from ..errors import EncodeError, Option
from ..model import Array
from ..sideinfo.record import BY_EXPONENT, DeltaCode, TensorRecord
from ..tensor.quant import DTYPES, step_size
from .codebooks import learnt_codebook
from .default_step import default_plan, has_wide_range, qp_below
from .distinct_values import SHARE, sample
from .exact import GLANCE, Cheapest, exact, exact_levels, exact_plain, plain, raw_is_exact
from .facts import FLOAT_FORMATS, TensorFacts
from .fixed_point import fixed_plan
from .noise_shaping import shaped
from .plan import Dependent, Quantized, Raw, TensorPlan, Uniform, as_uniform
from .rate_distortion import least_cost

#: Exponents of the step sizes of vectors: relative to the root mean square (65 dB), and, if no value is negative,
#: relative to the smallest value, because small variances are important. The second limit is at least 2**LEAST of the
#: largest value: smaller variances are below the number that batch normalization adds to them.
FINE, FINE_LOW, LEAST = -9, -4, -18
#: Exponent of the step sizes of vectors with a wide range, relative to the smallest value.
WIDE_LOW = -5
#: Maximum octaves by which step sizes of vectors become coarser: half of the octaves of other tensors.
COARSER = 2
#: Levels below this need fewer than the 32 bits of a raw float, even in short tensors.
RAW_LEVEL = 1 << 13
#: Cost of a bit in squared step sizes, with dependent quantization and without.
RATES = {True: 0.32, False: 0.1}


def plan_tensor(facts: TensorFacts, in_block: bool = False) -> TensorPlan:
    """Plan a tensor. Raises EncodeError with its name if the options cannot be met.

    Parameters
    ----------
    in_block : bool
        Quantize floats, if at all, with a step size of the options and without a codebook.
    """
    with np.errstate(all="ignore"):  # results are checked
        plan = shaped(facts, _planned(facts, in_block))
    if plan.record and not facts.config.side_info:
        raise EncodeError(*_not_representable(facts), tensor=facts.name)
    return plan


def _planned(facts: TensorFacts, in_block: bool) -> TensorPlan:
    if not facts.array.size:
        empty = TensorRecord(facts.stored.name, facts.array.shape, index=facts.context.index)
        return replace(facts.plan(Raw()), dims=facts.array.shape, record=empty)
    if facts.context.is_update:
        return _difference(facts)
    if facts.context.out_of_reach:
        return exact_plain(facts) or exact(facts)
    if facts.options.exact:
        return exact(facts)
    if facts.config.fixed_point is not None and facts.stored.kind == "f":
        return fixed_plan(facts, in_block)
    if facts.stored.kind != "f":
        return next(plain(facts), None) or exact(facts)
    # A single number is probably a constant of the network, such as an epsilon or a limit.
    scalar = facts.is_fine and facts.array.size == 1 and not in_block
    plan = next(exact_levels(facts), None) if scalar else _lossy(facts, in_block)
    if plan is None:
        return exact_plain(facts) or exact(facts)
    if facts.options.exact is not None or in_block or (scalar and not plan.record):
        return plan
    return _cheapest(facts, plan)


def _difference(facts: TensorFacts) -> TensorPlan:
    """Return the plan of a difference: by the options, or as float32. Bit-pattern differences get a separate id."""
    if facts.context.is_bits:
        return facts.coded(DeltaCode(facts.part_id("delta"), BY_EXPONENT if facts.context.by_exponent else ""))
    if facts.stored.kind != "f":
        plan = next(plain(facts), None)
    elif facts.options.exact:
        plan = _raw(facts) if raw_is_exact(facts) else None
    else:
        plan = (None if facts.context.out_of_reach else _lossy(facts, in_block=False)) or _raw(facts)
    if plan is None:
        most = "float32" if facts.stored.kind == "f" else "int32"
        raise EncodeError(
            f"the update of tensor {facts.name!r} exceeds {most} (7.3.2, 7.3.4); pass it in the argument 'whole'",
            tensor=facts.name,
        )
    return plan


def _cheapest(facts: TensorFacts, lossy: TensorPlan) -> TensorPlan:
    """Return the smallest plan: the lossy one, or a lossless one.

    Candidates are exact step sizes, codebooks and raw float32; if the lossy plan needs a record, also codes with a
    record.
    """
    plans: list[TensorPlan] = []
    if lossy.record:
        plans = [exact(facts)] if facts.config.side_info else []
    else:
        if _promising(facts, lossy):
            plans += exact_levels(facts)
        largest = max(map(abs, facts.bounds))
        if lossy.step and largest >= RAW_LEVEL * lossy.step and raw_is_exact(facts):
            plans.append(facts.plan(Raw()))
    if not plans:
        return lossy
    cheapest = Cheapest(facts)
    for plan in (lossy, *plans):
        cheapest.offer(plan)
    return cheapest.plan or lossy


def _promising(facts: TensorFacts, lossy: TensorPlan) -> bool:
    """Return whether a sample may have few distinct values, or multiples of a step size that is not small."""
    values = facts.floats.reshape(-1)
    # A codebook saves bytes only if at most half of the values are distinct.
    about = min(GLANCE, max(len(values) // 4, GLANCE // 16))
    some = sample(values, about)
    if not lossy.step:
        return True
    inverse = ldexp(1.0, 3 + facts.config.qp_density - frexp(lossy.step)[1])  # step size without its odd part
    distinct, are_multiples = quantizer.glance(some.astype(np.float32) if some.itemsize < 4 else some, inverse)
    return are_multiples or distinct < SHARE * len(some)


def _not_representable(facts: TensorFacts) -> tuple[str, ...]:
    """Return the reason why NNR cannot represent a tensor without side information."""
    shape = facts.array.shape
    if facts.context.is_bits:
        what = "changes by a difference of bit patterns, which NNR cannot represent"
    elif not facts.array.size or not shape:
        what = f"{'is empty' if shape else 'has no dimensions'}: shape {shape}, which NNR cannot represent"
    elif facts.config.profile == 0:
        what = f"has type {facts.stored.name}, which profile 0 cannot represent (7.2)"
    else:
        what = f"has type {facts.stored.name}, which NNR cannot represent (Table 15)"
    return f"tensor {facts.name!r} {what}; use ", Option("side_info", True)


def _lossy(facts: TensorFacts, in_block: bool) -> TensorPlan | None:
    """Return the plan that the options require; None for NaN or infinity, or without a suitable step size."""
    options = facts.options
    low, high = facts.bounds
    if not (isfinite(low) and isfinite(high)):
        return None
    if facts.is_fine:
        return _fine(facts)
    dependent = options.dependent_quantization is not False

    def plan_at(qp: int) -> TensorPlan | None:
        return _with_qp(facts, qp, dependent, in_block)

    if options.qp is not None:
        return plan_at(options.qp)
    guarded = not facts.context.is_update and not options.codebook
    if guarded and options.exact is None and has_wide_range(facts):
        return _wide(facts)
    return default_plan(facts, plan_at, dependent=dependent, guarded=guarded)


def _with_qp(facts: TensorFacts, qp: int, dependent: bool, in_block: bool) -> TensorPlan | None:
    """Return the plan with a qp, or with other tools and about the same error; None for an unsuitable qp."""
    options = facts.options
    plan = _quantized(facts, qp, dependent)
    if plan and options.codebook:
        return learnt_codebook(facts, plan, plan.rate, options.codebook) or plan
    if plan and plan.rate and not in_block and not plan.importance:
        return least_cost(facts, _variants(facts, plan))
    return plan


def _variants(facts: TensorFacts, plan: TensorPlan) -> list[TensorPlan]:
    """Return a plan and its variants for the effort; variants have other step sizes only without ``qp``."""
    options, effort, octave = facts.options, facts.effort, 1 << facts.config.qp_density
    plans, others = [plan], []
    if effort.uniform and plan.dq_flag and facts.config.for_tensor(facts.name).dependent_quantization is None:
        others += [(plan.qp, False)] + [(plan.qp + 4 * octave // 5, False)] * (options.qp is None)
    for qp, dependent in others:
        other = _quantized(facts, qp, dependent)
        if other and other.rate:
            plans.append(other)
    if "scan_order" in plan.tools.open and facts.dims[0] > 1 and prod(facts.dims[1:]) > 1:  # errata G2
        left = plan.tools.open - {"scan_order"}
        orders = [replace(plan.tools, scan_order=scan_order, open=left) for scan_order in range(1, 5)]
        plans += [replace(plan, tools=tools) for tools in orders]
    if effort.codebooks and options.codebook is None:
        book = learnt_codebook(facts, plan, plan.rate)
        if book:
            plans.append(book)
    return plans


def _raw(facts: TensorFacts) -> TensorPlan | None:
    """Return the plan of float32 values, to which float64 is rounded; None if values exceed the range of float32."""
    if facts.stored.name == "float64":
        low, high = facts.bounds
        if not _in_float32(max(high, -low)):
            return None
    return facts.plan(Raw())


def _fine(facts: TensorFacts) -> TensorPlan | None:
    """Return uniform quantization of a vector, with a step size from its root mean square and its smallest value.

    A ``qp`` below the default makes this step size smaller by the same factor. A ``qp`` above it makes the step size of
    the root mean square larger by half as many octaves; the limit for the smallest value stays. Unsuitable values
    (tiny, or with a wide range) are stored as float32. Other vectors are not, even if that were smaller, because
    NNCodec 2.1.3 cannot read a unit after one of NNR_PT_RAW_FLOAT.
    """
    density, default = facts.config.qp_density, DEFAULT_STEP_EXPONENT << facts.config.qp_density
    low, high = facts.bounds
    largest = max(high, -low)
    if largest == 0:
        return _quantized(facts, default, dependent=False)
    if facts.options.qp is None and has_wide_range(facts):
        return _wide(facts) or _raw(facts)
    if not 0 < facts.energy[0] < inf:  # float64 values whose squares vanish or overflow
        return _raw(facts)
    coarser = facts.options.step_qp(density) - default
    info = _finfo(facts.data_format)
    by_mean = qp_below(ldexp(sqrt(facts.energy[0] / facts.array.size), FINE), density)
    by_low = by_mean + (COARSER << density)
    if low >= 0:
        least = ldexp(largest, max(LEAST, 1 - info.nmant))
        by_low = qp_below(max(ldexp(facts.smallest, FINE_LOW), least), density)
    qp = min(by_mean + min(coarser // 2, COARSER << density), by_low) if coarser > 0 else min(by_mean, by_low) + coarser
    legal = info.tiny <= step_size(qp, density) <= info.max
    if not legal or not _is_exact(largest, qp - qp % (1 << density), density, info):
        return _raw(facts)
    return _quantized(facts, qp, dependent=False)


def _wide(facts: TensorFacts) -> TensorPlan | None:
    """Return uniform quantization that preserves the smallest value; None if levels would be too large."""
    values = facts.floats.reshape(-1)
    smallest = float(values.min(where=values > 0, initial=np.inf))
    qp = qp_below(ldexp(smallest, WIDE_LOW), facts.config.qp_density)
    plan = _quantized(facts, qp, dependent=False)
    if plan is None or plan.qp > qp:
        return None
    return replace(plan, coding=Quantized(Uniform(plan.qp, plan.step), importance=plan.importance))


def _quantized(facts: TensorFacts, qp: int, dependent: bool) -> TensorPlan | None:
    """Return a plan whose decoded values are exact in the tensor's type (7.3.3); None if no step size permits that.

    level * mul must fit the significand. If it does not, low bits of mul are cleared, which makes the step size
    smaller. If even a power of two does not fit, quantization is uniform: a value too large for the significand is then
    itself a multiple of the step size, and is exact.
    """
    data_format, density = facts.data_format, facts.config.qp_density
    is_half = data_format is DecompressedDataFormat.TENSOR_FLOAT16 and facts.config.side_info
    if is_half and step_size(qp, density) < float(np.finfo(np.float16).tiny):  # step sizes are normal numbers (7.3.6)
        data_format = DecompressedDataFormat.TENSOR_FLOAT32
    info = _finfo(data_format)
    low, high = facts.bounds
    largest = max(high, -low)
    exact = False
    for bits in range(density + 1):
        qp -= qp % (1 << bits)
        exact = _is_exact(largest, qp, density, info)
        if exact:
            break
    dependent = dependent and exact
    step = step_size(qp, density)
    if step < info.tiny:
        qp = info.minexp << density
        step = step_size(qp, density)
    if largest / step >= (1 << 30) - 2 or largest + 2 * step > _largest(facts.stored.name, data_format):
        return None
    rate = _rate(facts, dependent) if exact else 0.0
    passes = facts.effort.passes if rate else 1
    known = facts.importance if exact and not facts.is_fine and facts.options.rate != 0 else None
    quantizer = (Dependent if dependent else Uniform)(qp, step, rate, passes)
    return facts.plan(Quantized(quantizer, importance=known), data_format)


def _rate(facts: TensorFacts, dependent: bool) -> float:
    """Return the cost of a bit in squared step sizes; 0 if only the error counts."""
    options = facts.options
    if options.rate is not None:
        return float(options.rate)
    if facts.is_fine or options.max_error is not None or not facts.effort.optimised:
        return 0.0
    return RATES[dependent]


@cache
def _largest(name: str, data_format: DecompressedDataFormat) -> float:
    """Return the largest number of a type and of its format."""
    of_format, stored = float(np.finfo(DTYPES[data_format]).max), STORED_TYPES[name]
    if stored.name in FLOAT_FORMATS:
        return min(of_format, float(np.finfo(stored.name).max))
    values = np.arange(1 << (stored.bits - 1), dtype=stored.pattern).view(stored.dtype).astype(np.float32)
    return float(values[np.isfinite(values)].max())


def with_dq_flag(plan: TensorPlan, dq_flag: int, array: Array, qp_density: int) -> TensorPlan | None:
    """Return the plan of a quantized tensor for a unit with this dq_flag, which is the dq_flag of the unit's weight.

    If dq_flag is 1, a uniformly quantized tensor gets half the step size: each state of dependent quantization has
    every second multiple, so the largest error does not increase. Returns None if the multiples would not be exact.
    """
    if plan.dq_flag or not dq_flag:
        return plan if dq_flag else as_uniform(plan)
    qp = plan.qp - (1 << qp_density)
    step = step_size(qp, qp_density)
    largest = float(np.abs(array).max())
    info = _finfo(plan.data_format)
    legal = step >= info.tiny and largest / step < (1 << 30) - 2
    if not legal or not _is_exact(largest, qp, qp_density, info):
        return None
    assert isinstance(plan.coding, Quantized)
    assert isinstance(plan.coding.quantizer, Uniform)
    quantizer = Dependent(qp, step, plan.rate, plan.coding.quantizer.passes, nearest=True)
    return replace(plan, coding=replace(plan.coding, quantizer=quantizer))


class _FloatFormat(NamedTuple):
    """Limits of a float format; see numpy.finfo."""

    tiny: float
    max: float
    minexp: int
    nmant: int


@cache
def _finfo(data_format: DecompressedDataFormat) -> _FloatFormat:
    """Return the limits as Python numbers, cached: each conversion from numpy takes a microsecond."""
    info = np.finfo(DTYPES[data_format])
    return _FloatFormat(float(info.tiny), float(info.max), int(info.minexp), int(info.nmant))


def _is_exact(largest: float, qp: int, qp_density: int, info: _FloatFormat) -> bool:
    """Return whether each level up to the largest value, times mul, fits the significand (7.3.3, 7.3.6)."""
    mul = (1 << qp_density) + qp % (1 << qp_density)
    odd = mul // (mul & -mul)
    return (largest / step_size(qp, qp_density) + 2) * odd < 2.0 ** (info.nmant + 1)


def _in_float32(largest: float) -> bool:
    """Return whether the largest value is 0, or in the range of normal float32 numbers."""
    info = np.finfo(np.float32)
    return largest == 0 or float(info.tiny) <= largest <= float(info.max)
