"""Levels of planned tensors, and what their payload carries beside them (9.2, 10.2.1.4 to 10.2.1.6)."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSide, TensorSyntax, choose_shift_parameter_ids, coding_order
from ..constants import NNR_PT_INT
from ..model import Array
from ..syntax.deepcabac import STATE_TRANS_TAB
from .plan import TensorPlan

Levels = npt.NDArray[np.int32]


def quantize(plan: TensorPlan, array: Array, syntax: TensorSyntax) -> Levels:
    """The levels of a tensor, of shape ``plan.dims``, as they are coded."""
    if plan.payload_type == NNR_PT_INT:
        return np.ascontiguousarray(array, np.int32).reshape(plan.dims)
    values: quantizer.Real
    if array.dtype.itemsize == 8:
        values = np.ascontiguousarray(array, np.float64).reshape(-1)
    else:
        values = np.ascontiguousarray(array, np.float32).reshape(-1)
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
    return levels.reshape(plan.dims)


def _nearest(values: quantizer.Real, step: float) -> Levels:
    """Dependent quantization of each value to the nearest one that its state has; for vectors, which are short."""
    state, levels = 0, []
    for value in (values.astype(np.float64) / step).tolist():
        size = abs(value)
        level = int(size > 0.5) * round((size + 1) / 2) if state & 1 else round(size / 2)
        levels.append(-level if value < 0 else level)
        state = STATE_TRANS_TAB[state][level & 1]
    return np.array(levels, np.int32)


def choose_side(plan: TensorPlan, levels: Levels, syntax: TensorSyntax) -> TensorSide:
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
