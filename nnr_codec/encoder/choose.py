"""What to do with each tensor: the payload type, the format and the step that its type and the options ask for."""

from __future__ import annotations

from dataclasses import replace
from math import frexp
from typing import Any

import numpy as np

from ..constants import NNR_PT_FLOAT, NNR_PT_RAW_FLOAT
from ..constants import DecompressedDataFormat as F
from ..errors import EncodeError
from ..model import Array
from ..sideinfo.record import TensorRecord
from ..tensor.quant import DTYPES, step_size
from .distinct import SHARE, sample
from .exact import Cheapest, exact, exact_levels, exact_plain, plain
from .plan import FLOAT_FORMATS, Subject, TensorPlan
from .steps import GLANCE

#: Steps of tensors with fewer than two extents above 1: 2**-19, or 2**-16 of the largest value where that is finer.
FINE_EXPONENT, FINE_RELATIVE_EXPONENT = -19, -16


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
        raise EncodeError(_unsaid(subject))
    return plan


def _choose(subject: Subject, in_block: bool, index: int) -> TensorPlan:
    if not subject.array.size:
        empty = TensorRecord(subject.stored.name, subject.array.shape, index=index)
        return replace(subject.plan(NNR_PT_RAW_FLOAT), dims=subject.array.shape, record=empty)
    if subject.options.exact:
        return exact(subject)
    if subject.stored.kind != "f":
        return next(plain(subject), None) or exact(subject)
    plan = _lossy(subject)
    if plan is None:
        return exact_plain(subject) or exact(subject)
    if subject.options.exact is None and not in_block:
        return _cheapest(subject, plan)
    return plan


def _cheapest(subject: Subject, lossy: TensorPlan) -> TensorPlan:
    """An exact step or codebook where it takes fewer bytes than the lossy plan.

    Any exact code of types of 16 bits and less that need a record anyway: they may be less precise than the step.
    """
    plans = []
    if lossy.record and subject.stored.bits <= 16:
        plans = [exact(subject)]
    elif _promising(subject, lossy):
        # With smaller steps there are more levels to tell apart, unless a codebook numbers them.
        plans = [plan for plan in exact_levels(subject) if plan.codebook or plan.step >= lossy.step / 2]
    if not plans:
        return lossy
    cheapest = Cheapest(subject)
    for plan in (lossy, *plans):
        cheapest.offer(plan)
    return cheapest.plan or lossy


def _promising(subject: Subject, lossy: TensorPlan) -> bool:
    """Whether a glance at some values leaves it open that they are few, or multiples of a step that is not small."""
    some = sample(subject.floats.reshape(-1), GLANCE)
    if not lossy.step or len(np.unique(some)) < SHARE * len(some):
        return True
    multiples = np.ldexp(some, 3 + subject.config.qp_density - frexp(lossy.step)[1])  # of a step without its odd part
    return bool((multiples == np.rint(multiples)).all())


def _unsaid(subject: Subject) -> str:
    """What NNR cannot say of a tensor."""
    shape = subject.array.shape
    if not subject.array.size or not shape:
        what = f"{'is empty' if shape else 'has no dimensions'}: shape {shape}, which NNR does not express"
    elif subject.config.profile == 0:
        what = f"has type {subject.stored.name}, which profile 0 does not express (7.2)"
    else:
        what = f"has type {subject.stored.name}, which NNR does not express (Table 15)"
    return f"tensor {subject.name!r} {what}; only side information does"


def _lossy(subject: Subject) -> TensorPlan | None:
    """As the options say; None for values that are not finite, or too large for the step."""
    options, dims = subject.options, subject.dims
    low, high = subject.bounds
    if not (np.isfinite(low) and np.isfinite(high)):
        return None
    if options.exact is None and sum(extent > 1 for extent in dims) < 2:
        return _fine(subject)
    return _quantized(subject, options.step_qp(subject.config.qp_density), options.dependent_quantization)


def _raw(subject: Subject) -> TensorPlan | None:
    """The values as float32, which only float64 needs to be rounded to; None where that has no number near them."""
    if subject.stored.name == "float64":
        low, high = subject.bounds
        if not _in_float32(max(high, -low)):
            return None
    return subject.plan(NNR_PT_RAW_FLOAT)


def _fine(subject: Subject) -> TensorPlan | None:
    """Uniform quantization at a power of two: at most 2**-19, and at most 2**-16 of the largest value.

    Values that this does not suit (float16, large, tiny) are kept as float32. Nothing else is, though it were
    smaller, because NNCodec 2.1.3 cannot read a unit that follows one of NNR_PT_RAW_FLOAT.
    """
    density = subject.config.qp_density
    low, high = subject.bounds
    largest = max(high, -low)
    if largest == 0:
        return _quantized(subject, FINE_EXPONENT << density, dependent=False)
    if subject.data_format is F.TENSOR_FLOAT16 or not largest < 2.0**11:
        return _raw(subject)
    exponent = min(FINE_EXPONENT, frexp(largest)[1] - 1 + FINE_RELATIVE_EXPONENT)
    if exponent < -32:
        return _raw(subject)
    return _quantized(subject, exponent << density, dependent=False)


def _quantized(subject: Subject, qp: int, dependent: bool) -> TensorPlan | None:
    """A step at which every decoded value is exact in the tensor's type, as 7.3.3 asks; None if there are too many.

    level * mul has to fit the significand. Where it would not, the step is made a power of two and quantization
    uniform: then a value too large for the significand is itself a multiple of the step, and is coded as it is.
    """
    info = np.finfo(DTYPES[subject.data_format])
    density = subject.config.qp_density
    low, high = subject.bounds
    largest = max(high, -low)
    if not _is_exact(largest, qp, density, info):
        qp, dependent = qp - qp % (1 << density), False
    if step_size(qp, density) < float(info.tiny):
        qp = int(info.minexp) << density
    step = step_size(qp, density)
    if largest / step >= (1 << 30) - 2 or largest + 2 * step > _largest(subject):
        return None
    return subject.plan(NNR_PT_FLOAT, qp=qp, dq_flag=int(dependent), step=step)


def _largest(subject: Subject) -> float:
    """The largest number of the tensor's type and of the format."""
    stored = subject.stored
    of_format = float(np.finfo(DTYPES[subject.data_format]).max)
    if stored.name in FLOAT_FORMATS:
        return min(of_format, float(np.finfo(stored.name).max))
    values = np.arange(1 << (stored.bits - 1), dtype=stored.pattern).view(stored.dtype).astype(np.float32)
    return float(values[np.isfinite(values)].max())


def made_dependent(plan: TensorPlan, array: Array, qp_density: int) -> TensorPlan | None:
    """The plan of a uniformly quantized tensor for a unit of dq_flag 1: half the step, so that no error grows.

    Each state of dependent quantization has every other multiple of the step. None where they would not be exact.
    """
    qp = plan.qp - (1 << qp_density)
    step = step_size(qp, qp_density)
    largest = float(np.abs(array).max())
    info = np.finfo(DTYPES[plan.data_format])
    legal = qp >= -(1 << (5 + qp_density)) and step >= float(info.tiny) and largest / step < (1 << 30) - 2
    if not legal or not _is_exact(largest, qp, qp_density, info):
        return None
    return replace(plan, qp=qp, step=step, dq_flag=1, nearest=True)


def _is_exact(largest: float, qp: int, qp_density: int, info: np.finfo[Any]) -> bool:
    """Whether each level up to the largest value, times mul, fits the significand (7.3.3, 7.3.6)."""
    mul = (1 << qp_density) + qp % (1 << qp_density)
    odd = mul // (mul & -mul)
    return (largest / step_size(qp, qp_density) + 2) * odd < 2.0 ** (info.nmant + 1)


def _in_float32(largest: float) -> bool:
    """Whether float32 has a normal number near the largest value, or that is 0."""
    info = np.finfo(np.float32)
    return largest == 0 or float(info.tiny) <= largest <= float(info.max)
