"""How far a planned tensor decodes from what it was: found out by quantizing it, without coding it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..cabac_ext.kernel import coding_order
from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..tensor.quant import codebook_values, look_up, scale
from .cost import unit_syntax
from .distinct import CHUNK, chunks
from .plan import Subject, TensorPlan
from .quantize import quantize

Levels = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Distortion:
    """The error of a tensor.

    Parameters
    ----------
    signal, noise : float
        Sums of the squares of its values, and of their errors; the same on every machine.
    largest : float
        Largest absolute error.
    """

    signal: float
    noise: float
    largest: float

    def reaches(self, factor: float) -> bool:
        """Whether the signal is at least so many times the noise."""
        return self.noise * factor <= self.signal


def distortion(subject: Subject, plan: TensorPlan, levels: Levels | None = None) -> Distortion:
    """The error with which a plan of a float tensor decodes; what is kept bit for bit has none.

    ``levels`` are those of :func:`quant_param`, where they are known.
    """
    values = subject.floats.reshape(-1)
    if plan.code or plan.payload_type == NNR_PT_INT or not values.size:
        return Distortion(power(values), 0.0, 0.0)
    if levels is None and plan.payload_type != NNR_PT_RAW_FLOAT:
        levels = quant_param(plan, subject)
    signal = noise = largest = 0.0
    for start in range(0, values.size, CHUNK):
        before = values[start : start + CHUNK].astype(np.float64)
        with np.errstate(over="ignore"):
            if levels is None:
                got: Floats = before.astype(np.float32)
            else:
                got = scale(levels[start : start + CHUNK], plan.step, plan.data_format)
            errors = before - got.astype(subject.stored.dtype).astype(np.float64)
        signal, noise = signal + power(before), noise + power(errors)
        largest = max(largest, float(np.abs(errors).max()))
    return Distortion(signal, noise, largest)


def quant_param(plan: TensorPlan, subject: Subject) -> Levels:
    """QuantParam, flat: levels with dependent quantization resolved, or entries of the codebook (7.3.6, 9.2)."""
    syntax = unit_syntax(plan, subject.config.profile)
    levels = quantize(plan, subject.floats, syntax).reshape(-1)
    if plan.dq_flag:
        resolve(levels, coding_order(syntax) if plan.options.scan_order else None)
    if plan.codebook:
        book = plan.codebook
        entries = codebook_values(book.codebook_zero_value, book.codebook_delta_left, book.codebook_delta_right)
        levels = look_up(levels, entries, book.cb_zero_offset)
    return levels


def resolve(levels: Levels, order: npt.NDArray[np.int64] | None = None) -> None:
    """Replace levels by twice what they are, less their sign in states that are odd (10.2.1.5).

    stateTransTab is linear over GF(2): the lowest bits of the states are the parities of the levels divided by
    (1 + x)**3, two levels later. A division by 1 + x is a running sum.

    Parameters
    ----------
    levels : ndarray of int32, shape (n,)
    order : ndarray of int64, shape (n,), optional
        Index of each in coding order.
    """
    odd = levels.astype(np.uint8) & np.uint8(1)
    if order is not None:
        odd = odd[order]
    for _ in range(3):
        np.bitwise_xor.accumulate(odd, out=odd)
    states = np.zeros_like(odd)
    states[2:] = odd[:-2]
    if order is not None:
        odd[order] = states
        states = odd
    for part, state in zip(chunks(levels), chunks(states), strict=True):
        part[:] = 2 * part - np.sign(part) * state


def power(values: Floats) -> float:
    """Return the sum of the squares of finite values; the same on every machine."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return quantizer.power(flat if flat.itemsize > 2 else flat.astype(np.float32))
