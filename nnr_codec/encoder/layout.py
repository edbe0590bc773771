"""Which tensors share a compressed data unit: the blocks of a model, as far as NNR_PT_BLOCK can hold them (7.3.5).

A block is coded by one unit. What that cannot hold is coded apart, each tensor by a unit of its own:

* the weight, when it is no quantized float (integers, exact=True); then all of the block is coded apart,
* a bias, or all four tensors of the batch normalization, when one of them is not quantized, has another type than the
  weight or another shape than one number for each index of the weight's first dimension, or exceeds what dependent
  quantization of its step can express, which is that of the whole unit.

Local scaling, G and H mean nothing apart: where they do not fit, the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ..config import EncoderConfig
from ..constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_DC, NNR_CPT_LS, NNR_PT_FLOAT, NNR_PT_INT
from ..errors import EncodeError
from ..model import Array, Block, Model
from ..sideinfo.record import SideInfo, TensorRecord
from .choose import choose, made_dependent
from .cost import code_bytes
from .plan import READABLE, Subject, TensorPlan, check_name, fits_name, subject
from .ties import ties

#: What a block may have beside its weight: its bit in compressed_parameter_types, and fields of Block by their roles.
OPTIONAL = (
    (NNR_CPT_LS, {"ls": "scale"}),
    (NNR_CPT_BN, {"beta": "beta", "gamma": "gamma", "mean": "mean", "var": "var"}),
    (NNR_CPT_BI, {"bias": "bias"}),
)
_MEMBERS = ("weight", "g", "h", "scale", "beta", "gamma", "mean", "var", "bias")
#: Of the record for a tensor, beside its name and its code.
ENTRY_BYTES = 40
#: Members whose own tensors do not come out.
_CONSUMED = ("g", "h", "ls")


@dataclass(frozen=True)
class UnitPlan:
    """The tensors of one compressed data unit, or a tensor that has none.

    Parameters
    ----------
    ids : tuple of str
        Topology element ids as the header lists them: weight (or G and H), LS, beta, gamma, mean, var, bias (6.4.3.7).
    dims : tuple of int
        tensor_dimensions.
    tensors : dict of str to TensorPlan
        By role, in the order of ``ids``.
    compressed_parameter_types : int
        0 for a tensor on its own.
    """

    ids: tuple[str, ...]
    dims: tuple[int, ...]
    tensors: dict[str, TensorPlan]
    compressed_parameter_types: int = 0

    @property
    def all_ids(self) -> tuple[str, ...]:
        """The ids of the unit, and of the one that follows with the other bits of its tensor."""
        if not next(iter(self.tensors.values())).has_unit:
            return ()
        return self.ids + tuple(plan.record.bits for plan in self.tensors.values() if plan.record and plan.record.bits)


def plan_units(model: Model, config: EncoderConfig) -> list[UnitPlan]:
    """The units of a model in order; a block stands where the first of its tensors does.

    Each tensor is read and let go, those that a block could not hold twice. Raises EncodeError for a tensor that cannot
    be coded as asked, or a block that is none.
    """
    return list(_Layout(model, config).units())


def side_info(model: Model, units: list[UnitPlan], config: EncoderConfig) -> SideInfo:
    """The record of a model; EncodeError where it would be needed and is not wanted, or is too long to be read."""
    records = {plan.name: plan.record for unit in units for plan in unit.tensors.values() if plan.record}
    record = SideInfo(records, model.format, model.metadata) if records or model.metadata else SideInfo()
    if record and not config.side_info:
        raise EncodeError("the model has metadata, which only side information holds")
    size = len(record.to_bytes()) if record else 0
    if size > READABLE.max_side_info_bytes:
        raise EncodeError(f"decoders with default limits refuse side information of {size:,} bytes")
    return record


@dataclass
class _Layout:
    """What is known while tensor after tensor is planned."""

    model: Model
    config: EncoderConfig
    block_of: dict[str, Block] = field(init=False)
    taken: set[str] = field(init=False)
    room: float = field(init=False)

    def __post_init__(self) -> None:
        self.block_of = _blocks(self.model)
        self.taken = {*self.model.tensors, *element_ids(self.model)}
        self.room = READABLE.max_side_info_bytes / 2  # as it is estimated: base64 and braces add to that

    def units(self) -> Iterator[UnitPlan]:
        """The units in order."""
        tied = ties(self.model, self.config, self.block_of)
        waiting = dict(self.block_of)
        done: set[str] = set()
        for index, name in enumerate(self.model.tensors):
            if name in tied:
                yield self.alias(name, tied[name], index)
                continue
            if block := waiting.get(name):
                for member in _members(block):
                    del waiting[member]
                unit = _plan_block(block, self)
                if unit:
                    done |= {plan.name for plan in unit.tensors.values()}
                    yield unit
            if name not in done:
                plan = self.planned(name, index)
                yield UnitPlan((name,), plan.dims, {"weight": plan})

    def subject(self, name: str) -> Subject:
        """The facts about a tensor, which is read for it."""
        check_name(name)
        bits_id = f"{name}#bits"
        while bits_id in self.taken:
            bits_id = f"{bits_id[:-5]}##bits"
        room = int(self.room)
        array = np.asarray(self.model.tensors[name])
        return subject(name, array, self.config, bits_id if fits_name(bits_id) else None, room)

    def planned(self, name: str, index: int) -> TensorPlan:
        """The plan of a tensor with a unit of its own."""
        plan = choose(self.subject(name), index=index)
        if plan.record and plan.record.bits:
            self.taken.add(plan.record.bits)
        if plan.record:
            self.room -= ENTRY_BYTES + len(name.encode()) + (code_bytes(plan.code) if plan.code else 0)
        return plan

    def alias(self, name: str, target: str, index: int) -> UnitPlan:
        """A tensor that is another one."""
        if not self.config.side_info:
            raise EncodeError(f"tensor {name!r} is tied to {target!r}, which only side information says")
        plan = replace(self.subject(name).plan(NNR_PT_INT), record=TensorRecord(index=index, same_as=target))
        return UnitPlan((name,), plan.dims, {"weight": plan})


def element_ids(model: Model) -> list[str]:
    """The topology element ids of all tensors; EncodeError when two tensors would have the same one."""
    changed: dict[str, str] = {}
    for block in model.blocks:
        if block.g is not None and block.h is not None:
            changed |= {block.g: block.weight, block.h: _h_id(block)}
    ids = [changed.get(name, name) for name in model.tensors]
    if len(set(ids)) < len(ids):
        twice = next(name for k, name in enumerate(ids) if name in ids[:k])
        raise EncodeError(f"{twice!r} would be the name of two tensors; topology element ids are unique (6.2.3)")
    return ids


def _h_id(block: Block) -> str:
    return f"{block.weight}_H"  # errata N5


def _members(block: Block) -> list[str]:
    """The tensors of a block."""
    names = [getattr(block, member) for member in _MEMBERS if member != "weight" or block.g is None]
    return [name for name in names if name is not None]


def _blocks(model: Model) -> dict[str, Block]:
    """The block of each tensor that is in one; EncodeError where blocks do not fit the model or each other."""
    block_of: dict[str, Block] = {}
    for block in model.blocks:
        if (block.g is None) != (block.h is None):
            raise EncodeError(f"the block of {block.weight!r} has one of g and h; a product takes both")
        for name in _members(block):
            if name not in model.tensors:
                raise EncodeError(f"the block of {block.weight!r} names {name!r}, which is no tensor of the model")
            if name in block_of:
                raise EncodeError(f"tensor {name!r} is in a block twice, or in two blocks")
            block_of[name] = block
    return block_of


def _plan_member(name: str, layout: _Layout) -> tuple[TensorPlan, Array]:
    """The plan of a tensor in a block, and its values."""
    facts = layout.subject(name)
    if not facts.array.size:
        raise EncodeError(f"tensor {name!r} is empty, but a block has to hold it (7.3.5)")
    return choose(facts, in_block=True), facts.floats if facts.stored.kind == "f" else facts.array


def _plan_block(block: Block, layout: _Layout) -> UnitPlan | None:
    """The unit of a block with all that it can hold; None when that is not more than a weight."""
    decomposed = block.g is not None
    names = {"g": block.g, "h": block.h} if decomposed else {"weight": block.weight}
    weights = {role: _plan_member(name, layout)[0] for role, name in names.items() if name is not None}
    plans = list(weights.values())
    first, last = plans[0], plans[-1]
    for plan in plans:
        reason = _misfit(plan, first)
        if reason and (decomposed or block.scale is not None):
            raise EncodeError(f"tensor {plan.name!r} {reason}, but a block has to hold it (7.3.5)")
        if reason:
            return None
    dims = _dims(block, first.dims, last.dims)
    agreed = first.options.scan_order == last.options.scan_order and len(dims) > 1
    scan_order = first.options.scan_order if agreed else 0  # present with two dimensions and more (6.3.3.7)
    dq_flag = first.dq_flag & last.dq_flag
    tensors = {
        role: replace(plan, dq_flag=dq_flag, options=replace(plan.options, scan_order=scan_order))
        for role, plan in weights.items()
    }
    ids = (block.weight, _h_id(block)) if decomposed else (block.weight,)
    check_name(ids[-1])
    types = int(NNR_CPT_DC) if decomposed else 0
    for kind, roles in OPTIONAL:
        members = {role: getattr(block, member) for role, member in roles.items()}
        if None in members.values():
            continue
        fitted = {}
        for role, name in members.items():
            fit = _fit(*_plan_member(name, layout), first, dims, dq_flag, layout.config.qp_density)
            if isinstance(fit, str):
                if kind == NNR_CPT_LS:
                    raise EncodeError(f"tensor {name!r} {fit}, but a block has to hold it (7.3.5)")
                break
            fitted[role] = fit
        else:
            tensors |= fitted
            ids += tuple(members.values())
            types |= kind
    for role in _CONSUMED:
        if role in tensors:
            tensors[role] = replace(tensors[role], record=None)
    return UnitPlan(ids, dims, tensors, types) if types else None


def _fit(
    plan: TensorPlan, array: Array, weight: TensorPlan, dims: tuple[int, ...], dq_flag: int, qp_density: int
) -> TensorPlan | str:
    """A bias or the like as a block holds it, or why it cannot."""
    if reason := _misfit(plan, weight):
        return reason
    if array.shape != dims[:1]:
        return f"has the shape {array.shape}, not {dims[:1]} as the first dimension of the weight"
    in_unit = made_dependent(plan, array, qp_density) if dq_flag and not plan.dq_flag else plan
    if in_unit is None:
        return "is too large for a fine step of dependent quantization, which the weight has"
    return replace(in_unit, dq_flag=dq_flag)


def _misfit(plan: TensorPlan, weight: TensorPlan) -> str:
    """Why a tensor cannot be in one block with a weight; empty if it can."""
    if plan.payload_type == NNR_PT_INT:
        return "has integers, not floats"
    if plan.payload_type != NNR_PT_FLOAT:
        return "is kept exactly, not quantized as with exact=false"
    if plan.data_format != weight.data_format:
        return f"decodes to {plan.data_format.name}, {weight.name!r} to {weight.data_format.name}"
    return ""


def _dims(block: Block, first: tuple[int, ...], last: tuple[int, ...]) -> tuple[int, ...]:
    """tensor_dimensions; EncodeError where G and H have no product of the block's shape."""
    if block.g is None:
        return first
    if len(first) != 2 or len(last) != 2 or first[1] != last[0]:
        raise EncodeError(f"tensors {block.g!r} and {block.h!r} of shapes {first} and {last} have no matrix product")
    dims = tuple(block.shape) if block.shape is not None else (first[0], last[1])
    if not 0 < len(dims) <= READABLE.max_dims or min(dims) < 1 or prod(dims) != first[0] * last[1]:
        raise EncodeError(f"the product of {block.g!r} and {block.h!r} cannot have the shape {dims}")
    return dims
