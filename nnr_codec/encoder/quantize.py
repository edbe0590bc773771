"""What the units of planned tensors hold: levels, floats, and what a payload carries beside levels (9.2, 10.2.1.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSyntax, coding_order
from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..model import Array
from ..sideinfo.codes import split
from ..syntax.deepcabac import STATE_TRANS_TAB
from ..syntax.structures import IntegerCodebook
from ..tensor.quant import codebook_values
from .changed import divided
from .distinct import chunks
from .plan import FixedPoint, TensorPlan

TENSOR_FLOAT64 = DecompressedDataFormat.TENSOR_FLOAT64
Levels = npt.NDArray[np.int32]


Groups = npt.NDArray[np.uint8]


def as_coded(plan: TensorPlan, array: Array) -> Array:
    """The values that stand in the place of a tensor, divided and with its dimensions moved as its plan says."""
    if plan.values is not None:
        array = plan.values
    if plan.divisor is not None:
        array = divided(array, plan.divisor, plan.shift)
    return np.ascontiguousarray(np.moveaxis(array, plan.shift, 0)) if plan.shift else array


def contents(
    plan: TensorPlan, array: Array, syntax: TensorSyntax | None, groups: Groups | None = None
) -> tuple[Array, Array | None]:
    """The levels (or floats) of a tensor's own unit, of shape ``plan.dims``, and the words of its other one.

    ``array`` is as :func:`as_coded` gives it. ``syntax`` is that of the unit; None where it holds floats. ``groups``
    are those of the trellis, row-major.
    """
    if plan.record and plan.record.code:
        unit, bits = split(plan.record, array)
        return unit.reshape(plan.dims), bits
    if plan.payload_type == NNR_PT_RAW_FLOAT:
        return array.astype(np.float32, copy=False).reshape(plan.dims), None
    assert syntax is not None
    return quantize(plan, array, syntax, groups), None


def quantize(plan: TensorPlan, array: Array, syntax: TensorSyntax, groups: Groups | None = None) -> Levels:
    """The levels of a tensor without a code, of shape ``plan.dims``, as they are coded."""
    if plan.payload_type == NNR_PT_INT:
        return np.ascontiguousarray(array.astype(np.int32)).reshape(plan.dims)
    if plan.fixed:
        levels = fixed_levels(array, plan.fixed)
        if plan.codebook:
            _to_indices(levels, plan.codebook)
        return levels.reshape(plan.dims)
    # Values that the format does not hold would come to levels that it does not hold (7.3.3).
    dtype: type[np.float32 | np.float64] = np.float64 if plan.data_format is TENSOR_FLOAT64 else np.float32
    values: quantizer.Real = np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(-1)
    levels = np.empty(values.size, np.int32)
    if plan.codebook and plan.borders is not None:
        _between(plan.borders, values, plan.step, levels)
        levels -= np.int32(plan.codebook.cb_zero_offset)
        return levels.reshape(plan.dims)
    known = plan.importance if plan.importance and plan.importance.dims == plan.dims else None
    if plan.nearest:
        levels = _nearest(values, plan.step)
    elif not plan.dq_flag and not plan.rate and not known:
        quantizer.uniform(values, plan.step, levels)
    elif plan.options.scan_order:
        order = coding_order(syntax)
        in_order = np.empty_like(levels)
        weights = known.weights() if known else None
        weights, groups = weights if weights is None else weights[order], groups if groups is None else groups[order]
        _trellis(plan, values[order], in_order, weights, groups)
        levels[order] = in_order
    else:
        _trellis(plan, values, levels, known.weights() if known else None, groups)
    if known and not (plan.dq_flag and plan.options.scan_order):  # whose states follow another order than rows
        unary = plan.options.cabac_unary_length_minus1
        known.improve(values, plan.step, levels, dq_flag=plan.dq_flag, rate=plan.rate, cabac_unary_length_minus1=unary)
    if plan.codebook:
        _to_indices(levels, plan.codebook)
    return levels.reshape(plan.dims)


def fixed_levels(array: Array, form: FixedPoint) -> Levels:
    """The levels of the nearest numbers of a fixed-point format, flat."""
    flat = array.reshape(-1)
    levels = np.empty(flat.size, np.int32)
    for part, some in zip(chunks(levels), chunks(flat), strict=True):
        part[:] = multiples(some, form).clip(form.least, form.most)
    return levels


def multiples(values: npt.NDArray[Any], form: FixedPoint) -> npt.NDArray[np.float64]:
    """Finite values as multiples of 2**-fraction, rounded to nearest, ties to even; infinite where float64 ends."""
    with np.errstate(over="ignore"):
        found: npt.NDArray[np.float64] = np.rint(np.ldexp(values.astype(np.float64), form.fraction))
    return found


def _trellis(
    plan: TensorPlan,
    values: quantizer.Real,
    levels: Levels,
    weights: npt.NDArray[np.float32] | None,
    groups: Groups | None,
) -> None:
    """Levels for values in coding order, whose errors have these weights."""
    quantizer.trellis(
        values,
        plan.step,
        levels,
        dq_flag=plan.dq_flag,
        rate=plan.rate,
        cabac_unary_length_minus1=plan.options.cabac_unary_length_minus1,
        weights=weights,
        groups=groups,
        passes=plan.passes,
    )


def _between(borders: tuple[float, ...], values: quantizer.Real, step: float, levels: Levels) -> None:
    """The number of borders, in steps, that are not above each value."""
    for part, some in zip(chunks(levels), chunks(values), strict=True):
        part[:] = np.searchsorted(borders, some.astype(np.float64) / step, side="right")


def _to_indices(levels: Levels, codebook: IntegerCodebook) -> None:
    """Replace integers, all of them entries of a codebook, by their indices relative to CbZeroOffset (7.3.6)."""
    entries = codebook_values(codebook.codebook_zero_value, codebook.codebook_delta_left, codebook.codebook_delta_right)
    for part in chunks(levels):
        part[:] = np.searchsorted(entries, part) - codebook.cb_zero_offset


def _nearest(values: quantizer.Real, step: float) -> Levels:
    """Dependent quantization of each value to the nearest one that its state has; for vectors, which are short."""
    state, levels = 0, []
    for value in (values.astype(np.float64) / step).tolist():
        size = abs(value)
        level = int(size > 0.5) * round((size + 1) / 2) if state & 1 else round(size / 2)
        levels.append(-level if value < 0 else level)
        state = STATE_TRANS_TAB[state][level & 1]
    return np.array(levels, np.int32)
