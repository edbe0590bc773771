"""How far a planned tensor decodes from what it was: found out by quantizing it, without coding it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSyntax, coding_order
from ..compare import Loss, is_matrix_shape
from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..dtypes import stored_type
from ..model import Array
from ..tensor.quant import DTYPES, codebook_values, look_up, scale
from .cost import unit_syntax
from .distinct import CHUNK
from .plan import Subject, TensorPlan
from .quantize import quantize

Levels = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]

#: Values of which the loss is measured at once: they fit a cache of 1 MB.
PART = 1 << 15


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


def loss(plan: TensorPlan, array: Array, unit: Array, syntax: TensorSyntax | None) -> Loss | None:
    """The error with which a tensor decodes, after it was quantized; None for what has no floats.

    Parameters
    ----------
    plan : TensorPlan
    array : ndarray
        As :func:`~nnr_codec.encoder.quantize.as_coded` gives it. Where it is divided, the error is that of the product
        with the divisor.
    unit : ndarray
        What its unit holds, levels or floats.
    syntax : TensorSyntax or None
        Of the unit; None where it holds floats.
    """
    stored = stored_type(array.dtype)
    if stored is None or stored.kind != "f" or not array.size:
        return None
    values: npt.NDArray[Any] = array.reshape(-1)
    in_rows = syntax is not None and not plan.options.scan_order
    if in_rows and stored.name == "float32" and plan.step and not plan.codebook and plan.divisor is None:
        levels: Any = unit.reshape(-1)
        found = quantizer.loss_of_levels(values, levels, plan.step, plan.dq_flag)
        return Loss(*found, is_matrix_shape(array.shape))
    work = np.dtype("f8" if stored.itemsize == 8 else "f4")
    is_exact = bool(plan.code) or plan.payload_type == NNR_PT_INT
    decoded = None if is_exact else _decoded(plan, unit.reshape(-1), syntax)
    divisor = None if plan.divisor is None else np.repeat(plan.divisor.astype(work), array.size // len(plan.divisor))
    signal, noise, nonzero, zeroed = 0.0, 0.0, 0, 0
    for start in range(0, array.size, PART):
        before = values[start : start + PART].astype(work, copy=False)
        after = next(decoded).astype(work, copy=False) if decoded else before
        if decoded is None or syntax is None:  # others are finite
            finite = np.isfinite(before)
            before, after = (np.where(finite, some, work.type(0)) for some in (before, after))
        if divisor is not None:
            before, after = (some * divisor[start : start + PART] for some in (before, after))
        found = quantizer.loss(before, after)
        signal, noise = signal + found[0], noise + found[1]
        nonzero, zeroed = nonzero + found[2], zeroed + found[3]
    return Loss(signal, noise, nonzero, zeroed, is_matrix_shape(array.shape))


def _decoded(plan: TensorPlan, unit: npt.NDArray[Any], syntax: TensorSyntax | None) -> Iterator[Floats]:
    """Yield the values to which the levels or floats of a unit, flat, decode, PART at a time."""
    dtype = plan.record.stored.dtype if plan.record else DTYPES[plan.data_format]
    state, in_rows = 0, syntax is None or not plan.options.scan_order
    if syntax and plan.dq_flag and not in_rows:
        unit = unit.copy()
        resolve(unit, coding_order(syntax))
    entries = None
    if book := plan.codebook:
        entries = codebook_values(book.codebook_zero_value, book.codebook_delta_left, book.codebook_delta_right)
    for start in range(0, unit.size, PART):
        part = unit[start : start + PART]
        if syntax is None:
            yield part.astype(dtype, copy=False)
            continue
        if plan.dq_flag and in_rows:
            levels, part = part, np.empty_like(part)
            state = quantizer.resolve(levels, part, state)
        if book and entries is not None:
            part = look_up(part, entries, book.cb_zero_offset)
        yield scale(part, plan.step, plan.data_format).astype(dtype, copy=False)


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

    Parameters
    ----------
    levels : ndarray of int32, shape (n,)
    order : ndarray of int64, shape (n,), optional
        Index of each in coding order.
    """
    if order is None:
        quantizer.resolve(levels, levels)
    else:
        in_order = levels[order]
        quantizer.resolve(in_order, in_order)
        levels[order] = in_order


def power(values: Floats) -> float:
    """Return the sum of the squares of finite values; the same on every machine."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return quantizer.power(flat if flat.itemsize > 2 else flat.astype(np.float32))
