"""What a bitstream will take, tensor by tensor, without coding it: excerpts of large tensors stand for the whole."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..config import EncoderConfig
from ..constants import NNR_PT_RAW_FLOAT
from ..model import Array
from ..syntax import Session
from . import pruned
from .allocate import allocate
from .changed import divided
from .cost import RECORD_BYTES, code_bytes, measured, overhead
from .goals import excerpt
from .layout import plan_units, side_info
from .plan import TensorPlan, subject
from .preamble import preamble
from .prepare import Prepared
from .schedule import Call, Pool, Reader
from .unused_options import warn_unmatched, warn_unused

#: Parameters of an excerpt.
ABOUT = 1 << 16


def estimate(
    prepared: Prepared, config: EncoderConfig, read: Reader, pool: Pool, warn: bool = False
) -> tuple[int, list[tuple[TensorPlan, int]]]:
    """Bytes of what precedes the units of tensors, and each tensor's plan with the bytes of its units.

    Goals are followed as they would be, but a target by estimates. Raises EncodeError as the encoder does.
    With ``warn``, options without effect are an EncodeWarning each.
    """
    if warn:
        warn_unmatched(config, {*prepared.model.tensors, *prepared.restored.tensors})

    def sizes(config: EncoderConfig) -> tuple[int, dict[str, int]]:
        before, tensors = _estimated(prepared, config, read, pool)
        found = {plan.name: size for plan, size in tensors}
        return before + sum(found.values()), found

    settled = allocate(prepared.model, config, read, pool, sizes, prepared.restored, prepared.lost)
    return _estimated(prepared, settled, read, pool, config if warn else None)


def _estimated(
    prepared: Prepared, config: EncoderConfig, read: Reader, pool: Pool, asked: EncoderConfig | None = None
) -> tuple[int, list[tuple[TensorPlan, int]]]:
    model = prepared.model
    units = plan_units(prepared, config, read, pool)
    if asked:
        warn_unused(asked, prepared, units)
    record = side_info(model, units, config)
    references = pruned.references(prepared, units, config)
    removed = pruned.container(prepared, units, references)
    codebooks = any(plan.codebook for unit in units for plan in unit.tensors.values())
    said = preamble(prepared, references, record, config, Session(), codebooks=codebooks, pruning=removed)
    before = sum(map(len, said))
    plans = [(plan, plan.has_unit and plan not in unit.implied) for unit in units for plan in unit.plans]
    calls = [Call(_size, read, (plan.name,), (plan, config), plan.source_bytes) for plan, is_coded in plans if is_coded]
    found = pool.results(calls)
    return before, [(plan, next(found) if is_coded else 0) for plan, is_coded in plans]


def _size(arrays: list[Array], plan: TensorPlan, config: EncoderConfig) -> int:
    """About the bytes of a tensor's units."""
    array = arrays[0] if plan.values is None else plan.values
    if plan.divisor is not None:
        array = divided(array, plan.divisor, plan.shift)
    whole, plan = subject(plan.name, array, config, axis=plan.shift), replace(plan, shift=0, divisor=None, values=None)
    recorded = (RECORD_BYTES if plan.record else 0) + (code_bytes(plan.code) if plan.code else 0)
    if plan.code or plan.payload_type == NNR_PT_RAW_FLOAT:
        return round(measured(whole, plan) - recorded)
    some = excerpt(whole, ABOUT)
    fixed = overhead(plan)
    tools = plan.options if len(some.dims) > 1 else replace(plan.options, scan_order=0)
    part = measured(some, replace(plan, dims=some.dims, options=tools)) - fixed
    return round(fixed - recorded + part * prod(plan.dims) / some.array.size)
