"""Floats that NNR holds exactly by itself: multiples of a step (7.3.3), those of a codebook (7.3.6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..config import DEFAULT_STEP_EXPONENT
from ..constants import NNR_PT_FLOAT
from ..constants import DecompressedDataFormat as F
from ..tensor.quant import DTYPES, step_size
from .codebooks import integer_codebook
from .distinct import Distinct, sample
from .plan import READABLE, Subject, TensorPlan

#: Of a level or an entry of a codebook, beside its sign.
LEVEL_BITS = 31
#: Values that are tried before all are.
GLANCE = 1024

Floats = npt.NDArray[np.floating[Any]]


def exact_step(subject: Subject) -> TensorPlan | None:
    """The plan of uniform quantization that loses nothing; None where no step does that."""
    values, density = subject.floats.reshape(-1), subject.config.qp_density
    qp = _step_qp(sample(values, GLANCE), density)
    if qp is not None and len(values) > GLANCE:
        qp = _step_qp(values, density)
    if qp is None:
        return None
    data_format = subject.data_format
    step = step_size(qp, density)
    if data_format is F.TENSOR_FLOAT16 and step < float(np.finfo(np.float16).tiny):
        data_format = F.TENSOR_FLOAT32  # a step is a normal number of the format (7.3.6)
    info = np.finfo(DTYPES[data_format])
    if not float(info.tiny) <= step <= float(info.max) or max(map(abs, subject.bounds)) > float(info.max):
        return None
    if values.itemsize > info.bits // 8 and not np.array_equal(values.astype(info.dtype), values):
        return None
    return subject.plan(NNR_PT_FLOAT, qp=qp, step=step, data_format=data_format)


def with_codebook(subject: Subject, plan: TensorPlan, found: Distinct) -> TensorPlan | None:
    """The plan of an exact step with a codebook of the distinct values; None where decoders would refuse that."""
    if not len(found.patterns) <= READABLE.max_codebook:
        return None
    values = found.patterns.view(subject.stored.dtype).astype(np.float64)
    entries = np.rint(values / plan.step).astype(np.int64)
    zero = int(np.searchsorted(entries, 0)) if 0 in entries else found.most_frequent
    return replace(plan, codebook=integer_codebook(entries, zero))


def _step_qp(values: Floats, density: int) -> int | None:
    """The qp of the largest step of which all values are multiples; None where there is none, or a level is too large.

    A step of QpDensity d has an odd part below 2**(d + 1); grids with a larger one take the power of two in it.
    """
    found = quantizer.grid(values if values.itemsize > 2 else values.astype(np.float32), LEVEL_BITS + 8)
    if found is None:  # more bits than any odd part makes up for
        return None
    exponent, odd, largest = found
    if not odd:
        exponent, odd = DEFAULT_STEP_EXPONENT, 1
    if odd >= 2 << density:
        odd = 1
    shift = odd.bit_length() - 1
    qp = ((exponent + shift) << density) + (odd << density >> shift) - (1 << density)
    bound = 1 << (5 + density)
    fits = -bound <= qp < bound and largest / step_size(qp, density) < 1 << LEVEL_BITS
    return qp if fits else None
