"""What to do with each tensor: the payload type, the format and the step that its type and the options ask for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import frexp, inf, isfinite, ldexp, prod, sqrt
from typing import NamedTuple

import numpy as np

from ..cabac_ext import quantizer
from ..config import DEFAULT_STEP_EXPONENT
from ..constants import NNR_PT_FLOAT, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..dtypes import STORED_TYPES
from ..errors import EncodeError, Option
from ..model import Array
from ..sideinfo.record import DeltaCode, TensorRecord
from ..tensor.quant import DTYPES, step_size
from .codebooks import with_values
from .default_step import default_plan, has_wide_range, qp_below
from .distinct import SHARE, sample
from .exact import Cheapest, exact, exact_levels, exact_plain, plain, raw_is_exact
from .fixed import fixed_plan
from .plan import FLOAT_FORMATS, Subject, TensorPlan
from .steps import GLANCE
from .weigh import least

#: Steps of tensors with fewer than two extents above 1: 2 to these powers of their root mean square, which is 65 dB,
#: and of what one in LOW magnitudes is below, where no value is negative: of variances and the like small ones matter.
FINE, FINE_LOW, LOW = -9, -5, 8
#: Octaves by which they are coarser at most, where steps of other tensors are twice as many coarser than by default.
COARSER = 2
#: Values that these are found from.
FINE_SAMPLE = 1 << 14
#: Levels below this take less than the 32 bits of a raw float, even those of short tensors.
RAW_LEVEL = 1 << 13
#: Squared steps that a bit is worth, with dependent quantization and without.
RATES = {True: 0.32, False: 0.1}


def choose(subject: Subject, in_block: bool = False, index: int = 0) -> TensorPlan:
    """Decide how a tensor is coded; EncodeError names it when it cannot be coded as asked.

    Parameters
    ----------
    in_block : bool
        Whether floats are to be quantized, if at all, with a step of the options' and without a codebook.
    index : int
        The tensor's place in the model, of which an empty one has nothing else.
    """
    with np.errstate(all="ignore"):  # whatever the values are, what comes of them is looked at
        plan = _choose(subject, in_block, index)
    if plan.record and not subject.config.side_info:
        raise EncodeError(*_unsaid(subject), tensor=subject.name)
    return plan


def _choose(subject: Subject, in_block: bool, index: int) -> TensorPlan:
    if not subject.array.size:
        empty = TensorRecord(subject.stored.name, subject.array.shape, index=index)
        return replace(subject.plan(NNR_PT_RAW_FLOAT), dims=subject.array.shape, record=empty)
    if subject.is_update:
        return _difference(subject)
    if subject.out_of_reach:
        return exact_plain(subject) or exact(subject)
    if subject.options.exact:
        return exact(subject)
    if subject.config.fixed_point is not None and subject.stored.kind == "f":
        return fixed_plan(subject, in_block)
    if subject.stored.kind != "f":
        return next(plain(subject), None) or exact(subject)
    # A single number says how a network computes, as an epsilon or a bound does, rather than what it has learnt.
    scalar = subject.is_fine and subject.array.size == 1 and not in_block
    plan = next(exact_levels(subject), None) if scalar else _lossy(subject, in_block)
    if plan is None:
        return exact_plain(subject) or exact(subject)
    if subject.options.exact is not None or in_block or (scalar and not plan.record):
        return plan
    return _cheapest(subject, plan)


def _difference(subject: Subject) -> TensorPlan:
    """The plan of a difference: as the options say, or as float32; one of bit patterns has an id of its own."""
    if subject.is_bits:
        return subject.coded(DeltaCode(subject.part_id("delta")))
    if subject.stored.kind != "f":
        plan = next(plain(subject), None)
    elif subject.options.exact or subject.out_of_reach:
        plan = _raw(subject) if raw_is_exact(subject) else None
    else:
        plan = _lossy(subject, in_block=False) or _raw(subject)
    if plan is None:
        most = "float32" if subject.stored.kind == "f" else "int32"
        raise EncodeError(
            f"the update of tensor {subject.name!r} is not what {most} holds: give it whole (7.3.2, 7.3.4)",
            tensor=subject.name,
        )
    return plan


def _cheapest(subject: Subject, lossy: TensorPlan) -> TensorPlan:
    """Return the plan that takes the fewest bytes: the lossy one, or one that keeps every bit.

    Exact steps, codebooks and raw float32 compete; where the lossy plan needs a record, so do codes that need one.
    """
    plans: list[TensorPlan] = []
    if lossy.record:
        plans = [exact(subject)] if subject.config.side_info else []
    else:
        if _promising(subject, lossy):
            plans += exact_levels(subject)
        largest = max(map(abs, subject.bounds))
        if lossy.step and largest >= RAW_LEVEL * lossy.step and raw_is_exact(subject):
            plans.append(subject.plan(NNR_PT_RAW_FLOAT))
    if not plans:
        return lossy
    cheapest = Cheapest(subject)
    for plan in (lossy, *plans):
        cheapest.offer(plan)
    return cheapest.plan or lossy


def _promising(subject: Subject, lossy: TensorPlan) -> bool:
    """Whether a glance at some values leaves it open that they are few, or multiples of a step that is not small."""
    values = subject.floats.reshape(-1)
    # Of what a codebook pays for, at most half are distinct.
    about = min(GLANCE, max(len(values) // 4, GLANCE // 16))
    some = sample(values, about)
    if not lossy.step:
        return True
    inverse = ldexp(1.0, 3 + subject.config.qp_density - frexp(lossy.step)[1])  # of a step without its odd part
    distinct, are_multiples = quantizer.glance(some.astype(np.float32) if some.itemsize < 4 else some, inverse)
    return are_multiples or distinct < SHARE * len(some)


def _unsaid(subject: Subject) -> tuple[str, ...]:
    """What NNR cannot say of a tensor."""
    shape = subject.array.shape
    if subject.is_bits:
        what = "changes by a difference of bit patterns, which NNR does not express"
    elif not subject.array.size or not shape:
        what = f"{'is empty' if shape else 'has no dimensions'}: shape {shape}, which NNR does not express"
    elif subject.config.profile == 0:
        what = f"has type {subject.stored.name}, which profile 0 does not express (7.2)"
    else:
        what = f"has type {subject.stored.name}, which NNR does not express (Table 15)"
    return f"tensor {subject.name!r} {what}; use ", Option("side_info", True)


def _lossy(subject: Subject, in_block: bool) -> TensorPlan | None:
    """Return the plan that the options require; None for tensors with NaN or infinity, or without a suitable step."""
    options = subject.options
    low, high = subject.bounds
    if not (isfinite(low) and isfinite(high)):
        return None
    if subject.is_fine:
        return _fine(subject)
    dependent = options.dependent_quantization is not False

    def plan_at(qp: int) -> TensorPlan | None:
        return _with_qp(subject, qp, dependent, in_block)

    if options.qp is not None:
        return plan_at(options.qp)
    guarded = not subject.is_update and not options.codebook
    if guarded and options.exact is None and has_wide_range(subject):
        return _wide(subject)
    return default_plan(subject, plan_at, dependent=dependent, guarded=guarded)


def _with_qp(subject: Subject, qp: int, dependent: bool, in_block: bool) -> TensorPlan | None:
    """The plan with a qp, or one with other tools at about the same error; None where the qp does not suit."""
    options = subject.options
    plan = _quantized(subject, qp, dependent)
    if plan and options.codebook:
        return with_values(subject, plan, plan.rate, options.codebook) or plan
    if plan and plan.rate and not in_block and not plan.importance:
        return least(subject, _variants(subject, plan))
    return plan


def _variants(subject: Subject, plan: TensorPlan) -> list[TensorPlan]:
    """A plan, and others that the effort is worth: with steps of their own only where no ``qp`` is given."""
    options, effort, octave = subject.options, subject.effort, 1 << subject.config.qp_density
    plans, others = [plan], []
    if effort.uniform and plan.dq_flag and subject.config.for_tensor(subject.name).dependent_quantization is None:
        others += [(plan.qp, False)] + [(plan.qp + 4 * octave // 5, False)] * (options.qp is None)
    for qp, dependent in others:
        other = _quantized(subject, qp, dependent)
        if other and other.rate:
            plans.append(other)
    if "scan_order" in plan.options.open and subject.dims[0] > 1 and prod(subject.dims[1:]) > 1:  # errata G2
        left = plan.options.open - {"scan_order"}
        orders = [replace(plan.options, scan_order=scan_order, open=left) for scan_order in range(1, 5)]
        plans += [replace(plan, options=options) for options in orders]
    if effort.codebooks and options.codebook is None:
        book = with_values(subject, plan, plan.rate)
        if book:
            plans.append(book)
    return plans


def _raw(subject: Subject) -> TensorPlan | None:
    """The values as float32, which only float64 needs to be rounded to; None where that has no number near them."""
    if subject.stored.name == "float64":
        low, high = subject.bounds
        if not _in_float32(max(high, -low)):
            return None
    return subject.plan(NNR_PT_RAW_FLOAT)


def _fine(subject: Subject) -> TensorPlan | None:
    """Uniform quantization with a step that their root mean square, and small values, ask for.

    Where ``qp`` makes the steps of other tensors smaller than the default one, these are so much smaller, too; where
    it makes them larger, by half as many octaves, of which small values know nothing.
    Values that this does not suit (tiny, or far apart) are kept as float32. Nothing else is, though it were
    smaller, because NNCodec 2.1.3 cannot read a unit that follows one of NNR_PT_RAW_FLOAT.
    """
    density, default = subject.config.qp_density, DEFAULT_STEP_EXPONENT << subject.config.qp_density
    low, high = subject.bounds
    largest = max(high, -low)
    if largest == 0:
        return _quantized(subject, default, dependent=False)
    if subject.options.qp is None and has_wide_range(subject):
        return _wide(subject) or _raw(subject)
    if not 0 < subject.energy[0] < inf:  # float64 values whose squares vanish or overflow
        return _raw(subject)
    coarser = subject.options.step_qp(density) - default
    by_mean, by_low = _fine_qps(subject)
    qp = min(by_mean + min(coarser // 2, COARSER << density), by_low) if coarser > 0 else min(by_mean, by_low) + coarser
    info = _finfo(subject.data_format)
    legal = info.tiny <= step_size(qp, density) <= info.max
    if not legal or not _is_exact(largest, qp - qp % (1 << density), density, info):
        return _raw(subject)
    return _quantized(subject, qp, dependent=False)


def _wide(subject: Subject) -> TensorPlan | None:
    """Uniform quantization that keeps the smallest value; None where levels are too large for that."""
    values = subject.floats.reshape(-1)
    smallest = float(values.min(where=values > 0, initial=np.inf))
    qp = qp_below(ldexp(smallest, FINE_LOW), subject.config.qp_density)
    plan = _quantized(subject, qp, dependent=False)
    return replace(plan, rate=0.0, passes=1) if plan and plan.qp <= qp else None


def _fine_qps(subject: Subject) -> tuple[int, int]:
    """The largest qp that the root mean square allows, and the one that small values do."""
    density = subject.config.qp_density
    by_mean = qp_below(ldexp(sqrt(subject.energy[0] / subject.array.size), FINE), density)
    if subject.bounds[0] < 0:
        return by_mean, by_mean + (COARSER << density)
    some = sample(subject.floats.reshape(-1), FINE_SAMPLE).astype(np.float64)
    above = np.sort(some[some > 0])
    if not len(above):
        return by_mean, by_mean + (COARSER << density)
    return by_mean, qp_below(ldexp(float(above[len(above) // LOW]), FINE_LOW), density)


def _quantized(subject: Subject, qp: int, dependent: bool) -> TensorPlan | None:
    """A step at which every decoded value is exact in the tensor's type, as 7.3.3 asks; None if there are too many.

    level * mul has to fit the significand. Where it would not, mul loses lower bits, which makes the step smaller.
    Where a power of two does not help, quantization is uniform: then a value too large for the significand is itself a
    multiple of the step, and is coded as it is.
    """
    data_format, density = subject.data_format, subject.config.qp_density
    is_half = data_format is DecompressedDataFormat.TENSOR_FLOAT16 and subject.config.side_info
    if is_half and step_size(qp, density) < float(np.finfo(np.float16).tiny):  # a step is a normal number (7.3.6)
        data_format = DecompressedDataFormat.TENSOR_FLOAT32
    info = _finfo(data_format)
    low, high = subject.bounds
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
    if largest / step >= (1 << 30) - 2 or largest + 2 * step > _largest(subject.stored.name, data_format):
        return None
    rate = _rate(subject, dependent) if exact else 0.0
    passes = subject.effort.passes if rate else 1
    known = subject.importance if exact and not subject.is_fine and subject.options.rate != 0 else None
    return subject.plan(
        NNR_PT_FLOAT,
        data_format=data_format,
        qp=qp,
        dq_flag=int(dependent),
        step=step,
        rate=rate,
        passes=passes,
        importance=known,
    )


def _rate(subject: Subject, dependent: bool) -> float:
    """What a bit is worth; nothing where the least error is what is asked for."""
    options = subject.options
    if options.rate is not None:
        return float(options.rate)
    if subject.is_fine or options.max_error is not None or not subject.effort.optimised:
        return 0.0
    return RATES[dependent]


@cache
def _largest(name: str, data_format: DecompressedDataFormat) -> float:
    """The largest number of a type and of its format."""
    of_format, stored = float(np.finfo(DTYPES[data_format]).max), STORED_TYPES[name]
    if stored.name in FLOAT_FORMATS:
        return min(of_format, float(np.finfo(stored.name).max))
    values = np.arange(1 << (stored.bits - 1), dtype=stored.pattern).view(stored.dtype).astype(np.float32)
    return float(values[np.isfinite(values)].max())


def in_unit(plan: TensorPlan, dq_flag: int, array: Array, qp_density: int) -> TensorPlan | None:
    """The plan of a quantized tensor for a unit with this dq_flag, which is that of its weight.

    A uniformly quantized one gets half the step where that is 1, since each state of dependent quantization has every
    other multiple of it: no error exceeds what it was at most. None where the multiples would not be exact.
    """
    if plan.dq_flag or not dq_flag:
        return replace(plan, dq_flag=dq_flag)
    qp = plan.qp - (1 << qp_density)
    step = step_size(qp, qp_density)
    largest = float(np.abs(array).max())
    info = _finfo(plan.data_format)
    legal = step >= info.tiny and largest / step < (1 << 30) - 2
    if not legal or not _is_exact(largest, qp, qp_density, info):
        return None
    return replace(plan, qp=qp, step=step, dq_flag=1, nearest=True)


class _FloatFormat(NamedTuple):
    """Limits of a format of floats: see numpy.finfo."""

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
    """Whether each level up to the largest value, times mul, fits the significand (7.3.3, 7.3.6)."""
    mul = (1 << qp_density) + qp % (1 << qp_density)
    odd = mul // (mul & -mul)
    return (largest / step_size(qp, qp_density) + 2) * odd < 2.0 ** (info.nmant + 1)


def _in_float32(largest: float) -> bool:
    """Whether float32 has a normal number near the largest value, or that is 0."""
    info = np.finfo(np.float32)
    return largest == 0 or float(info.tiny) <= largest <= float(info.max)
