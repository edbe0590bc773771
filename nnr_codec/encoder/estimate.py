"""What a bitstream will take, tensor by tensor, without coding it: excerpts of large tensors stand for the whole."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..compare import Loss, is_matrix_shape
from ..config import EncoderConfig
from ..constants import NNR_PT_RAW_FLOAT
from ..model import Array
from ..syntax import Session
from . import pruned
from .allocate import allocate
from .changed import divided
from .cost import RECORD_BYTES, code_bytes, coded, overhead
from .distortion import loss
from .goals import excerpt
from .layout import plan_units, side_info
from .plan import TensorPlan, subject
from .preamble import preamble
from .prepare import Prepared
from .schedule import Call, Pool, Reader
from .unused_options import check_blocks, warn_unmatched, warn_unused

#: Parameters of an excerpt.
ABOUT = 1 << 16


#: The plan of a tensor, the bytes of its units, and its error; None for what has no floats, or no unit.
Estimated = tuple[TensorPlan, int, Loss | None]


def estimate(
    prepared: Prepared, config: EncoderConfig, read: Reader, pool: Pool, warn: bool = False
) -> tuple[int, list[Estimated]]:
    """Bytes of what precedes the units of tensors, and what each tensor takes and loses.

    Goals are followed as they would be, but a target by estimates. Raises EncodeError as the encoder does.
    With ``warn``, options without effect are an EncodeWarning each.
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
    prepared: Prepared, config: EncoderConfig, read: Reader, pool: Pool, asked: EncoderConfig | None = None
) -> tuple[int, list[Estimated]]:
    model = prepared.model
    layout = plan_units(prepared, config, read, pool)
    units = layout.units
    if asked:
        warn_unused(asked, prepared, units)
    record = side_info(model, units, config)
    references = pruned.references(prepared, units, config)
    removed = pruned.container(prepared, units, references)
    codebooks = any(plan.codebook for unit in units for plan in unit.tensors.values())
    said = preamble(prepared, layout, references, record, config, Session(), codebooks=codebooks, pruning=removed)
    before = sum(map(len, said))
    plans = [(plan, plan.has_unit and plan not in unit.implied) for unit in units for plan in unit.plans]
    calls = [Call(_size, read, (plan.name,), (plan, config), plan.source_bytes) for plan, is_coded in plans if is_coded]
    found = dict(zip([call.names[0] for call in calls], pool.run(calls), strict=True))
    tensors: list[Estimated] = []
    for plan, _ in plans:
        size, error = found.get(plan.name, (0, None))
        if plan.record and plan.record.same_as in found:
            error = found[plan.record.same_as][1]
        tensors.append((plan, size, error))
    return before, tensors


def _size(arrays: list[Array], plan: TensorPlan, config: EncoderConfig) -> tuple[int, Loss | None]:
    """About the bytes of a tensor's units, and its error."""
    array = arrays[0] if plan.values is None else plan.values
    if plan.divisor is not None:
        array = divided(array, plan.divisor, plan.shift)
    whole, plan = subject(plan.name, array, config, axis=plan.shift), replace(plan, shift=0, divisor=None, values=None)
    recorded = (RECORD_BYTES if plan.record else 0) + (code_bytes(plan.code) if plan.code else 0)
    if plan.code or plan.payload_type == NNR_PT_RAW_FLOAT:
        size, unit, syntax = coded(whole, plan)
        return round(size - recorded), loss(plan, whole.array, unit, syntax)
    some = excerpt(whole, ABOUT)
    fixed = overhead(plan)
    tools = plan.options if len(some.dims) > 1 else replace(plan.options, scan_order=0)
    part = replace(plan, dims=some.dims, options=tools)
    taken, unit, syntax = coded(some, part)
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
