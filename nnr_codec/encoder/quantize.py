"""What the units of planned tensors hold: levels, floats, and what a payload carries beside levels (9.2, 10.2.1.4)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSide, TensorSyntax, choose_shift_parameter_ids, coding_order
from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..model import Array
from ..sideinfo.codes import split
from ..syntax.deepcabac import STATE_TRANS_TAB
from ..syntax.structures import IntegerCodebook
from ..tensor.quant import codebook_values
from .distinct import chunks
from .plan import TensorPlan

Levels = npt.NDArray[np.int32]


def contents(plan: TensorPlan, array: Array, syntax: TensorSyntax | None) -> tuple[Array, Array | None]:
    """The levels (or floats) of a tensor's own unit, of shape ``plan.dims``, and the words of its other one.

    ``syntax`` is that of the unit; None where it holds floats.
    """
    if plan.record and plan.record.code:
        unit, bits = split(plan.record, array)
        return unit.reshape(plan.dims), bits
    if plan.payload_type == NNR_PT_RAW_FLOAT:
        return array.astype(np.float32, copy=False).reshape(plan.dims), None
    assert syntax is not None
    return quantize(plan, array, syntax), None


def quantize(plan: TensorPlan, array: Array, syntax: TensorSyntax) -> Levels:
    """The levels of a tensor without a code, of shape ``plan.dims``, as they are coded."""
    if plan.payload_type == NNR_PT_INT:
        return np.ascontiguousarray(array.astype(np.int32)).reshape(plan.dims)
    values: quantizer.Real
    if array.dtype.itemsize == 8:
        values = np.ascontiguousarray(array, np.float64).reshape(-1)
    else:
        values = np.ascontiguousarray(array.astype(np.float32, copy=False)).reshape(-1)
    levels = np.empty(values.size, np.int32)
    if plan.nearest:
        levels = _nearest(values, plan.step)
    elif not plan.dq_flag:
        quantizer.uniform(values, plan.step, levels)
    elif plan.options.scan_order:
        order = coding_order(syntax)
        in_order = np.empty_like(levels)
        quantizer.dependent(values[order], plan.step, in_order)
        levels[order] = in_order
    else:
        quantizer.dependent(values, plan.step, levels)
    if plan.codebook:
        _to_indices(levels, plan.codebook)
    return levels.reshape(plan.dims)


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


def choose_side(plan: TensorPlan, levels: Any, syntax: TensorSyntax) -> TensorSide:
    """Row skipping and shift parameter ids, as the options ask for them."""
    side = TensorSide()
    # Errata D6: decoders do not agree about rows skipped in blocks unless four parameters make the state come round.
    agreed = not (plan.dq_flag and plan.options.scan_order and prod(plan.dims[1:]) % 4)
    if plan.options.row_skipping and syntax.can_skip_rows and agreed:
        rows = levels.reshape(plan.dims[0], -1)
        side.row_skip_enabled_flag = int(not rows.any(axis=1).all())
    if plan.options.choose_shift_parameters:
        side.shift_parameter_ids = choose_shift_parameter_ids(syntax, levels, side)
    return side
