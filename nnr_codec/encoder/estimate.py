"""Estimation of the size and error of each tensor without coding; a large tensor is estimated from an excerpt."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..compare import Loss, is_matrix_shape
from ..config import EncoderConfig
from ..constants import NNR_PT_RAW_FLOAT
from ..model import Array
from ..syntax import Session
from .encode_warnings import check_blocks, warn_unmatched, warn_unused
from .facts import tensor_facts
from .goals import excerpt
from .overlay import divided
from .plan import SourceTensor, TensorPlan
from .preamble import preamble
from .prepared import Prepared
from .rate_allocation import allocate
from .rate_distortion import RECORD_BYTES, code_bytes, estimated, loss, overhead
from .tensor_tasks import Pool, TensorReader, TensorTask
from .unit_layout import plan_units

#: Number of parameters of an excerpt; smaller tensors are estimated completely.
ABOUT = 1 << 16


#: Plan of a tensor, bytes of its units, and its error (None for integers, and for a tensor without a unit).
Estimated = tuple[TensorPlan, int, Loss | None]


def estimate(
    prepared: Prepared, config: EncoderConfig, read: TensorReader, pool: Pool, warn: bool = False
) -> tuple[int, list[Estimated]]:
    """Return the bytes of the units before the tensors, and the estimate for each tensor.

    Goals apply as in encoding; a size target applies to estimated sizes. Raises EncodeError as the encoder does. With
    ``warn``, issues an EncodeWarning for each option without effect.
    """
    if warn:
        check_blocks(config, prepared)
        warn_unmatched(config, {*prepared.model.tensors, *prepared.restored.tensors})

    def sizes(config: EncoderConfig) -> tuple[int, dict[str, int]]:
        before, tensors = _estimated(prepared, config, read, pool)
        found = {plan.name: size for plan, size, _ in tensors}
        return before + sum(found.values()), found

    settled = allocate(prepared, config, read, pool, sizes)
    return _estimated(prepared, settled, read, pool, config if warn else None)


def _estimated(
    prepared: Prepared, config: EncoderConfig, read: TensorReader, pool: Pool, asked: EncoderConfig | None = None
) -> tuple[int, list[Estimated]]:
    layout = plan_units(prepared, config, read, pool)
    units = layout.units
    if asked:
        warn_unused(asked, prepared, units)
    before = sum(map(len, preamble(prepared, layout, config, Session())[0]))
    plans = [plan for unit in units for plan in unit.plans]
    coded = [plan for unit in units for plan in unit.tensors.values() if plan.has_unit]
    calls = [TensorTask(_size, read, (plan.name,), (plan, config), plan.source.nbytes) for plan in coded]
    found = dict(zip([call.names[0] for call in calls], pool.run(calls), strict=True))
    tensors: list[Estimated] = []
    for plan in plans:
        size, error = found.get(plan.name, (0, None))
        if plan.record and plan.record.same_as in found:
            error = found[plan.record.same_as][1]
        tensors.append((plan, size, error))
    return before, tensors


def _size(arrays: list[Array], plan: TensorPlan, config: EncoderConfig) -> tuple[int, Loss | None]:
    """Estimate the bytes of a tensor's units, and its error."""
    source = plan.source
    array = arrays[0] if source.values is None else source.values
    if source.divisor is not None:
        array = divided(array, source.divisor, source.shift)
    whole = tensor_facts(plan.name, array, config, axis=source.shift)
    plan = replace(plan, source=SourceTensor(source.nbytes))
    recorded = RECORD_BYTES + code_bytes(plan.record) if plan.record else 0
    if plan.code or plan.payload_type == NNR_PT_RAW_FLOAT:
        size, unit, syntax = estimated(whole, plan)
        return round(size - recorded), loss(plan, whole.array, unit, syntax)
    some = excerpt(whole, ABOUT)
    fixed = overhead(plan)
    tools = plan.tools if len(some.dims) > 1 else replace(plan.tools, scan_order=0)
    part = replace(plan, dims=some.dims, tools=tools)
    taken, unit, syntax = estimated(some, part)
    share = some.array.size / prod(plan.dims)
    error = loss(part, some.array, unit, syntax)
    if error:
        error = replace(
            error,
            signal=error.signal / share,
            noise=error.noise / share,
            nonzero=round(error.nonzero / share),
            zeroed=round(error.zeroed / share),
            is_matrix=is_matrix_shape(plan.dims),
        )
    return round(fixed - recorded + (taken - fixed) / share), error
