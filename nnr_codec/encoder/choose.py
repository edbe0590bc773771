"""What to do with each tensor: the payload type, the format and the step that its type and the options ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp
from typing import Any

import numpy as np

from ..constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..constants import DecompressedDataFormat as F
from ..errors import EncodeError
from ..model import Array
from ..sideinfo.record import TensorRecord
from ..tensor.quant import DTYPES, step_size
from .exact import Cheapest, entropy, exact, exact_levels, exact_plain
from .integers import bounds
from .plan import Subject, TensorPlan

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
        low, high = bounds(subject)
        return subject.plan(NNR_PT_INT) if low >= -(1 << 31) and high < 1 << 31 else exact(subject)
    plan = _Lossy(subject).plan()
    if plan is None:
        return exact_plain(subject) or exact(subject)
    if subject.options.exact is None and not in_block:
        return _cheapest(subject, plan)
    return plan


def _cheapest(subject: Subject, lossy: TensorPlan) -> TensorPlan:
    """An exact step or codebook where it takes fewer bytes than the lossy plan."""
    # With smaller steps there are more levels to tell apart, unless a codebook numbers them.
    plans = [plan for plan in exact_levels(subject) if plan.codebook or plan.step >= lossy.step / 2]
    if not plans:
        return lossy
    cheapest = Cheapest(subject)
    for plan in (lossy, *plans):
        cheapest.offer(plan, floor=0.0 if plan is lossy else entropy(subject))
    return cheapest.plan or lossy


def _unsaid(subject: Subject) -> str:
    """What NNR cannot say of a tensor."""
    shape = subject.array.shape
    if not subject.array.size or not shape:
        what = f"{'is empty' if shape else 'has no dimensions'}: shape {shape}, which NNR does not express (6.4.3.7)"
    elif subject.config.profile == 0:
        what = f"has type {subject.stored.name}, which profile 0 does not express (7.2)"
    else:
        what = f"has type {subject.stored.name}, which NNR does not express (Table 15)"
    return f"tensor {subject.name!r} {what}; only side information does"


@dataclass(frozen=True)
class _Lossy:
    """Ways to quantize one tensor of floats."""

    subject: Subject

    def plan(self) -> TensorPlan | None:
        """As the options say; None for values that are not finite, or too large for the step."""
        options, dims = self.subject.options, self.subject.dims
        low, high = self.bounds
        if not (np.isfinite(low) and np.isfinite(high)):
            return None
        if options.exact is None and sum(extent > 1 for extent in dims) < 2:
            return self.fine()
        return self.quantized(options.step_qp(self.subject.config.qp_density), options.dependent_quantization)

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value."""
        return float(self.subject.floats.min()), float(self.subject.floats.max())

    def raw(self) -> TensorPlan | None:
        """The values as float32, which only float64 needs to be rounded to; None where that has no number near them."""
        if self.subject.stored.name == "float64":
            low, high = self.bounds
            if not _in_float32(max(high, -low)):
                return None
        return self.subject.plan(NNR_PT_RAW_FLOAT)

    def fine(self) -> TensorPlan | None:
        """Uniform quantization at a power of two: at most 2**-19, and at most 2**-16 of the largest value.

        Values that this does not suit (float16, large, tiny) are kept as float32. Nothing else is, though it were
        smaller, because NNCodec 2.1.3 cannot read a unit that follows one of NNR_PT_RAW_FLOAT.
        """
        density = self.subject.config.qp_density
        low, high = self.bounds
        largest = max(high, -low)
        if largest == 0:
            return self.quantized(FINE_EXPONENT << density, dependent=False)
        if self.subject.data_format is F.TENSOR_FLOAT16 or not largest < 2.0**11:
            return self.raw()
        exponent = min(FINE_EXPONENT, frexp(largest)[1] - 1 + FINE_RELATIVE_EXPONENT)
        if exponent < -32:
            return self.raw()
        return self.quantized(exponent << density, dependent=False)

    def quantized(self, qp: int, dependent: bool) -> TensorPlan | None:
        """A step at which every decoded value is exact in the tensor's type, as 7.3.3 asks; None if there are too many.

        level * mul has to fit the significand. Where it would not, the step is made a power of two and quantization
        uniform: then a value too large for the significand is itself a multiple of the step, and is coded as it is.
        """
        plan = self.subject.plan(NNR_PT_FLOAT)
        info = np.finfo(DTYPES[plan.data_format])
        density = self.subject.config.qp_density
        low, high = self.bounds
        largest = max(high, -low)
        if not _is_exact(largest, qp, density, info):
            qp, dependent = qp - qp % (1 << density), False
        if step_size(qp, density) < float(info.tiny):
            qp = int(info.minexp) << density
        step = step_size(qp, density)
        if largest / step >= (1 << 30) - 2 or largest + 2 * step > self.largest:
            return None
        return replace(plan, qp=qp, dq_flag=int(dependent), step=step)

    @property
    def largest(self) -> float:
        """Of the numbers of the tensor's type and of the format."""
        name = self.subject.stored.name
        of_format = float(np.finfo(DTYPES[self.subject.data_format]).max)
        if name in ("float16", "float32", "float64"):
            return min(of_format, float(np.finfo(name).max))
        return _largest(self.subject)


def _largest(subject: Subject) -> float:
    """The largest finite number of a type that numpy does not have."""
    patterns = np.arange(1 << (subject.stored.bits - 1), dtype=subject.stored.pattern)
    values = patterns.view(subject.stored.dtype).astype(np.float32)
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
