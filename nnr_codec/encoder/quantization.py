"""Quantization: levels or floats in the units of planned tensors (9.2, 10.2.1.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSyntax
from ..constants import NNR_PT_RAW_FLOAT, STATE_TRANS_TAB, DecompressedDataFormat
from ..model import Array
from ..sideinfo.codes import split
from ..syntax.structures import IntegerCodebook
from ..tensor.quant import codebook_values
from .distinct_values import chunks
from .overlay import divided
from .plan import Borders, Dependent, FixedPoint, Quantized, TensorPlan, Uniform

TENSOR_FLOAT64 = DecompressedDataFormat.TENSOR_FLOAT64
Levels = npt.NDArray[np.int32]


Groups = npt.NDArray[np.uint8]


def as_coded(plan: TensorPlan, array: Array) -> Array:
    """Return a tensor after the changes in its plan: replaced values, division, moved dimensions."""
    source = plan.source
    if source.values is not None:
        array = source.values
    if source.divisor is not None:
        array = divided(array, source.divisor, source.shift)
    return np.ascontiguousarray(np.moveaxis(array, source.shift, 0)) if source.shift else array


def contents(
    plan: TensorPlan, array: Array, syntax: TensorSyntax | None, groups: Groups | None = None
) -> tuple[Array, Array | None]:
    """Return the levels (or floats) of a tensor's unit, shape ``plan.dims``, and the words of its second unit.

    ``array`` is the result of :func:`as_coded`. ``syntax`` is the syntax of the unit, None if it contains floats.
    ``groups`` has the groups of the trellis, row-major.
    """
    if plan.record and plan.record.code:
        unit, bits = split(plan.record, array, plan.dims)
        return unit.reshape(plan.dims), bits
    if plan.payload_type == NNR_PT_RAW_FLOAT:
        return array.astype(np.float32, copy=False).reshape(plan.dims), None
    assert syntax is not None
    return quantize(plan, array, syntax, groups), None


def quantize(plan: TensorPlan, array: Array, syntax: TensorSyntax, groups: Groups | None = None) -> Levels:
    """Return the coded levels of a tensor without a code, shape ``plan.dims``."""
    coding = plan.coding
    if not isinstance(coding, Quantized):
        return np.ascontiguousarray(array.astype(np.int32)).reshape(plan.dims)
    one, book = coding.quantizer, coding.codebook
    if isinstance(one, FixedPoint):
        levels = fixed_levels(array, one)
    else:
        # Values outside the format would get levels outside it (7.3.3).
        dtype: type[np.float32 | np.float64] = np.float64 if plan.data_format is TENSOR_FLOAT64 else np.float32
        values: quantizer.Real = np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(-1)
        if isinstance(one, Borders):
            levels = np.empty(values.size, np.int32)
            for part, some in zip(chunks(levels), chunks(values), strict=True):
                part[:] = np.searchsorted(one.borders, some.astype(np.float64) / one.step, side="right")
            levels -= np.int32(book.cb_zero_offset if book else 0)
            return levels.reshape(plan.dims)
        levels = _steps(plan, one, values, syntax, groups)
    if book:  # the unit has indices of entries relative to CbZeroOffset (7.3.6)
        entries = entries_of(book)
        for part in chunks(levels):
            part[:] = np.searchsorted(entries, part) - book.cb_zero_offset
    return levels.reshape(plan.dims)


def _steps(
    plan: TensorPlan, one: Uniform, values: quantizer.Real, syntax: TensorSyntax, groups: Groups | None
) -> Levels:
    """Return the levels for a step size, shape (n,): the nearest ones, or the ones with the lowest error and rate."""
    levels = np.empty(values.size, np.int32)
    known = plan.importance if plan.importance and plan.importance.dims == plan.dims else None
    unary = plan.tools.cabac_unary_length_minus1
    if isinstance(one, Dependent) and one.nearest:
        levels = _nearest(values, one.step)
    elif not one.dq_flag and not one.rate and not known:
        quantizer.uniform(values, one.step, levels)
    else:
        quantizer.trellis(
            values,
            one.step,
            levels,
            dq_flag=one.dq_flag,
            rate=one.rate,
            cabac_unary_length_minus1=unary,
            weights=known.weights() if known else None,
            groups=groups,
            passes=one.passes,
            block_scan=syntax.block_scan,
        )
    if known and not (one.dq_flag and plan.tools.scan_order):  # states of dependent quantization follow the block scan
        known.improve(values, one.step, levels, dq_flag=one.dq_flag, rate=one.rate, cabac_unary_length_minus1=unary)
    return levels


def fixed_levels(array: Array, form: FixedPoint) -> Levels:
    """Return the flat levels of the nearest numbers of a fixed-point format."""
    flat = array.reshape(-1)
    levels = np.empty(flat.size, np.int32)
    for part, some in zip(chunks(levels), chunks(flat), strict=True):
        part[:] = multiples(some, form).clip(form.least, form.most)
    return levels


def multiples(values: npt.NDArray[Any], form: FixedPoint) -> npt.NDArray[np.float64]:
    """Return finite values as multiples of 2**-fraction, rounded to nearest, ties to even; infinite on overflow."""
    with np.errstate(over="ignore"):
        found: npt.NDArray[np.float64] = np.rint(np.ldexp(values.astype(np.float64), form.fraction))
    return found


def entries_of(codebook: IntegerCodebook) -> npt.NDArray[np.int32]:
    """Return the entries of a codebook, in step sizes."""
    return codebook_values(codebook.codebook_zero_value, codebook.codebook_delta_left, codebook.codebook_delta_right)


def _nearest(values: quantizer.Real, step: float) -> Levels:
    """Return the levels of the nearest value in each state of dependent quantization; slow, for short vectors."""
    state, levels = 0, []
    for value in (values.astype(np.float64) / step).tolist():
        size = abs(value)
        level = int(size > 0.5) * round((size + 1) / 2) if state & 1 else round(size / 2)
        levels.append(-level if value < 0 else level)
        state = STATE_TRANS_TAB[state][level & 1]
    return np.array(levels, np.int32)
