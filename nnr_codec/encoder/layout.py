"""Which tensors share a compressed data unit: the blocks of a model, as far as NNR_PT_BLOCK can hold them (7.3.5).

A block is coded by one unit. What that cannot hold is coded apart, each tensor by a unit of its own:

* the weight, when it is no quantized float (integers, exact=True) or has a codebook; then all of the block is coded
  apart,
* a bias, or all four tensors of the batch normalization, when one of them is not quantized, has a codebook, another
  type than the weight or another shape than one number for each index of the block's dimension of the weight, or
  exceeds what dependent quantization of its step can express, which is that of the whole unit; or where
  compressed_parameter_types leaves them out.

Local scaling, unless the topology has it, G and H mean nothing apart: where they do not fit, the model is refused.
Weights that need not be scaled are not, where that does not fit.

The block's dimension is coded first (first_tensor_dimension_shift). Members come out in the shape that the topology
declares, such as (1, n). Where scale and bias are gamma and beta of a batch normalization of the topology, the
others of its tensors follow from them (8.2.1), and are not coded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..config import EncoderConfig
from ..constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_DC, NNR_CPT_LS, NNR_PT_FLOAT, NNR_PT_INT
from ..dtypes import stored_type
from ..errors import EncodeError
from ..model import Array, Block, Model, Wiring
from ..sideinfo.record import DisplacementCode, SideInfo, TensorRecord, default_unit
from ..tensor.quant import DTYPES
from .changed import divided
from .choose import choose, in_unit
from .cost import code_bytes
from .fitting import fit, pays, scale_options, scaled
from .fixed import warn_saturated
from .kept import Keeping
from .links import Links
from .plan import READABLE, Subject, TensorPlan, check_name, fits_name, subject
from .prepare import Prepared
from .schedule import Call, Pool, Reader
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
#: The largest code of any tensor takes less of the record, and 9 bytes for each index of its longest dimension.
CODE_ROOM = 1 << 20
#: What the unit of a folded batch normalization has.
_FOLDED = NNR_CPT_LS | NNR_CPT_BI


@dataclass(slots=True)
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
    implied : tuple of TensorPlan
        The tensors that decoders make of the others.
    two_units : bool
        G and H have a unit each.
    """

    ids: tuple[str, ...]
    dims: tuple[int, ...]
    tensors: dict[str, TensorPlan]
    compressed_parameter_types: int = 0
    implied: tuple[TensorPlan, ...] = ()
    two_units: bool = False

    @property
    def plans(self) -> tuple[TensorPlan, ...]:
        """Of all tensors."""
        return *self.tensors.values(), *self.implied

    @property
    def all_ids(self) -> tuple[str, ...]:
        """The ids of the unit, and of the one that follows with the other bits of its tensor."""
        plans = self.tensors.values()
        if not next(iter(plans)).has_unit:
            return ()
        return (*self.ids, *[plan.record.bits for plan in plans if plan.record and plan.record.bits])


def plan_units(prepared: Prepared, config: EncoderConfig, read: Reader, pool: Pool | Keeping) -> list[UnitPlan]:
    """The units of a model in order; a block stands where the first of its tensors does.

    Each tensor, or block, is read and let go. Raises EncodeError for a tensor that cannot be coded as asked, or a block
    that is none. With a fixed-point format, a SaturationWarning tells what lies beyond its numbers.
    """
    about = prepared.wiring, prepared.scales, prepared.fitted, prepared.links, prepared.decomposed
    layout = _Layout(prepared.model, config, read, pool, *about)
    units = list(layout.units())
    if config.fixed_point is not None:
        warn_saturated([plan for unit in units for plan in unit.plans], config.fixed_point)
    return units


def side_info(model: Model, units: list[UnitPlan], config: EncoderConfig) -> SideInfo:
    """The record of a model; EncodeError where it would be needed and is not wanted, or is too long to be read."""
    records = {plan.name: plan.record for unit in units for plan in unit.plans if plan.record}
    record = SideInfo(records, model.format, model.metadata) if records or model.metadata else SideInfo()
    if record and not config.side_info:
        raise EncodeError("the model has metadata, which only side information holds")
    size = len(record.to_bytes()) if record else 0
    if size > READABLE.max_side_info_bytes:
        raise EncodeError(f"decoders with default limits refuse side information of {size:,} bytes")
    return record


@dataclass(slots=True)
class _Place:
    """What a plan takes of the bitstream's names and of the record.

    Parameters
    ----------
    name : str
    index : int
        In the model.
    bits_id : str or None
        See :class:`Subject`.
    room : int
        Likewise.
    is_update : bool
        Likewise.
    """

    name: str
    index: int
    bits_id: str | None
    room: int
    is_update: bool

    def subject(self, array: Array, config: EncoderConfig, axis: int = 0) -> Subject:
        """The facts about the tensor, of which a dimension is coded first."""
        found = subject(self.name, array, config, self.bits_id, self.room, axis)
        found.is_update = self.is_update
        return found


@dataclass(frozen=True)
class _Known:
    """A block, and what decoders learn of it from the topology.

    Parameters
    ----------
    block : Block
    shapes : dict of str to tuple of int
        The declared shapes of its members.
    implied : dict of str to float
        The tensors that decoders make of a unit with its scale and its bias, and the value that they are full of.
    apart : bool
        Some of these are no tensors of the model, or in other blocks: scale and bias cannot be in one unit.
    optional : bool
        The unit may do without the scale, by which the weight is not divided yet.
    is_fitted : bool
        Scales, or the batch normalization, are to make up for what quantization takes from the weight.
    product : dtype or None
        The type of the weight, if a step decomposed it.
    listed : bool
        See :func:`factor_ids`.
    """

    block: Block
    shapes: dict[str, tuple[int, ...]]
    implied: dict[str, float] = field(default_factory=dict)
    apart: bool = False
    optional: bool = False
    is_fitted: bool = False
    product: np.dtype[Any] | None = None
    listed: bool = False

    @property
    def members(self) -> list[str]:
        """The tensors that are planned together."""
        return [*_members(self.block), *self.implied]

    @property
    def consumes_scale(self) -> bool:
        """Whether decoders multiply the weight by the scale, which does not come out."""
        return self.block.scale is not None and self.block.scale not in self.shapes

    @property
    def needs_scale(self) -> bool:
        """Whether the unit has to have that."""
        return self.consumes_scale and not self.optional


class _Planned(NamedTuple):
    """The unit of a block, if there is one, and the plans of tensors that are coded apart, by name.

    ``room`` is what changes nothing of that, however much more there is.
    """

    unit: UnitPlan | None
    plans: dict[str, TensorPlan]
    room: int


@dataclass
class _Layout:
    """What is known while tensor after tensor is planned.

    Plans are made without knowledge of the ones before. The few that these would change are made again.
    """

    model: Model
    config: EncoderConfig
    read: Reader
    pool: Pool | Keeping
    wiring: Wiring
    scales: set[str]
    fitted: frozenset[str]
    links: Links | None
    decomposed: Mapping[str, np.dtype[Any]]
    taken: set[str] = field(init=False)
    room: float = field(init=False)
    recorded: bool = False  # whether any of them needs the record

    def __post_init__(self) -> None:
        self.taken = {*self.model.tensors, *element_ids(self.model, is_listed(self.model, self.config))}
        self.room = READABLE.max_side_info_bytes / 2  # as it is estimated: base64 and braces add to that

    def units(self) -> Iterator[UnitPlan]:
        """The units in order."""
        block_of = _blocks(self.model, self.wiring, self.scales, self.fitted, self.decomposed)
        if is_listed(self.model, self.config):
            block_of = {name: replace(known, listed=True) for name, known in block_of.items()}
        blocks = {name: known.block for name, known in block_of.items()}
        # Differences have trees of their own, unless the caller knows better.
        tied = ties(self.model, self.config, blocks) if not self.links or self.model.aliases else {}
        places = {name: index for index, name in enumerate(self.model.tensors)}
        calls: dict[str, Call[_Planned]] = {}
        for name in places:
            check_name(name)
            block = block_of.get(name)
            members = block.members if block else [name]
            if name not in tied and not any(member in calls for member in members):
                calls[name] = self.call(block, [self.place(member, places[member]) for member in members])
        results = self.pool.results(list(calls.values()))
        apart: dict[str, TensorPlan] = {}
        for name, index in places.items():
            if name in tied:
                yield self.alias(name, tied[name], index)
                continue
            if name in calls:
                planned = self.checked(calls[name], next(results))
                apart |= planned.plans
                if planned.unit:
                    yield planned.unit
            if plan := apart.pop(name, None):
                if plan.record:
                    self.recorded = True
                    if plan.record.bits:
                        self.taken.add(plan.record.bits)
                    self.room -= ENTRY_BYTES + len(name.encode()) + (code_bytes(plan.code) if plan.code else 0)
                yield UnitPlan((name,), plan.dims, {"weight": plan})

    def place(self, name: str, index: int) -> _Place:
        """What a tensor may take, as it is now."""
        bits_id = f"{name}#bits"
        while bits_id in self.taken:
            bits_id = f"{bits_id[:-5]}##bits"
        is_update = bool(self.links and self.links.is_update(name))
        return _Place(name, index, bits_id if fits_name(bits_id) else None, int(self.room), is_update)

    def call(self, block: _Known | None, places: list[_Place]) -> Call[_Planned]:
        """What plans a block, or a tensor."""
        names = tuple([place.name for place in places])
        return Call(_plan, self.read, names, (block, places, self.config), self.read.nbytes(names))

    def checked(self, call: Call[_Planned], planned: _Planned) -> _Planned:
        """What was planned, or what has to be planned in its place, knowing what came before."""
        if not self.recorded:
            return planned
        block, places, config = call.arguments
        now = [self.place(place.name, place.index) for place in places]
        for place, before in zip(now, places, strict=True):
            if place.bits_id != before.bits_id or (place.room != before.room and place.room < planned.room):
                return replace(call, arguments=(block, now, config))()
        return planned

    def alias(self, name: str, target: str, index: int) -> UnitPlan:
        """A tensor that is another one."""
        if not self.config.side_info:
            raise EncodeError(f"tensor {name!r} is tied to {target!r}, which only side information says")
        (array,) = self.read((name,))
        plan = self.place(name, index).subject(array, self.config).plan(NNR_PT_INT)
        plan = replace(plan, record=TensorRecord(index=index, same_as=target))
        return UnitPlan((name,), plan.dims, {"weight": plan})


def _plan(arrays: list[Array], known: _Known | None, places: list[_Place], config: EncoderConfig) -> _Planned:
    """Plan a tensor, or those of a block."""
    subjects = {place.name: place.subject(array, config) for place, array in zip(places, arrays, strict=True)}
    unit, together, fitted = None, set[str](), dict[str, Subject]()
    if known:
        by_name = {place.name: (place, array) for place, array in zip(places, arrays, strict=True)}
        if known.is_fitted:
            unit, fitted = _plan_fitted(known, subjects, by_name, config)
            subjects |= fitted
        if known.optional and known.block.scale is not None:
            if not unit and not _is_neutral(known, subjects):
                unit = _plan_scaled(known, subjects, by_name, config, subjects[known.block.scale].array)
            together.add(known.block.scale)
            known = replace(known, block=replace(known.block, scale=None))
        unit = unit or _plan_block(known, _turned(known.block, subjects, by_name, config), config)
        together |= {plan.name for plan in unit.plans} if unit else set()
    plans = {
        place.name: choose(subjects[place.name], index=place.index) for place in places if place.name not in together
    }
    if fitted:
        plans = {name: _with_value(plan, fitted) for name, plan in plans.items()}
    longest = max([max(array.shape, default=1) for array in arrays])
    return _Planned(unit, plans, CODE_ROOM + 9 * longest)


def _plan_fitted(
    known: _Known, subjects: Mapping[str, Subject], tensors: Mapping[str, tuple[_Place, Array]], config: EncoderConfig
) -> tuple[UnitPlan | None, dict[str, Subject]]:
    """The unit of a block of which some tensors make up for the levels of its weight, and these as they are then.

    No unit where that does not pay, or where the unit would be another one.
    """
    block, is_new = known.block, _is_neutral(known, subjects)
    divisor = subjects[block.scale].array if known.optional and block.scale is not None else None
    if is_new and block.scale is not None:
        config = config.overridden({block.scale: scale_options(config.qp_density)})
    unit = _plan_scaled(known, subjects, tensors, config, divisor)
    weight = unit.tensors.get("weight") if unit else None
    if unit is None or weight is None:
        return None, {}
    facts = _turned(block, subjects, tensors, config, divisor)[block.weight]
    found = fit(facts, weight)
    values = scaled(block, subjects, found.factors)
    if values is None:
        return None, {}
    after = {name: tensors[name][0].subject(array, config) for name, array in values.items()}
    if not pays(found, weight, {} if is_new else {name: subjects[name] for name in after}, after):
        return None, {}
    if is_new and len(_members(block)) == 2:  # else there is no unit that the weight has to be in
        alone = choose(facts)
        if (alone.qp, alone.dq_flag, alone.codebook) != (weight.qp, weight.dq_flag, None):
            return None, {}
    unit = _plan_scaled(known, {**subjects, **after}, tensors, config, divisor)
    if unit is None or unit.tensors["weight"] != weight:
        return None, {}
    return replace(unit, tensors={role: _with_value(plan, after) for role, plan in unit.tensors.items()}), after


def _is_neutral(known: _Known, subjects: Mapping[str, Subject]) -> bool:
    """Whether the scale of a block is there to be fitted, and changes nothing yet."""
    block = known.block
    return known.is_fitted and known.optional and bool((subjects[block.scale or ""].array == 1).all())


def _with_value(plan: TensorPlan, others: Mapping[str, Subject]) -> TensorPlan:
    """A plan that is followed with another value than the tensor has, if there is one."""
    return replace(plan, values=others[plan.name].array) if plan.name in others else plan


def _turned(
    block: Block,
    subjects: Mapping[str, Subject],
    tensors: Mapping[str, tuple[_Place, Array]],
    config: EncoderConfig,
    divisor: Array | None = None,
) -> Mapping[str, Subject]:
    """The facts about the tensors of a block as they are coded, its dimension first; the weight perhaps divided."""
    if divisor is None and not block.axis:
        return subjects
    place, weight = tensors[block.weight]
    if divisor is not None:
        weight = divided(weight, divisor, block.axis)
    return {**subjects, place.name: place.subject(weight, config, block.axis)}


def _plan_scaled(
    known: _Known,
    subjects: Mapping[str, Subject],
    tensors: Mapping[str, tuple[_Place, Array]],
    config: EncoderConfig,
    divisor: Array | None,
) -> UnitPlan | None:
    """The unit of a block whose weight is divided by something; None where it does not hold the scale as well."""
    unit = _plan_block(known, _turned(known.block, subjects, tensors, config, divisor), config)
    if not unit or divisor is None:
        return unit
    if "ls" not in unit.tensors:
        return None
    weight = replace(unit.tensors["weight"], divisor=divisor)
    return replace(unit, tensors={**unit.tensors, "weight": weight})


def is_listed(model: Model, config: EncoderConfig) -> bool:
    """Whether all ids are in one list, and have to be labels of a topology (A.4)."""
    return config.indexed_references and model.topology is not None


def element_ids(model: Model, listed: bool = False) -> list[str]:
    """The topology element ids of all tensors; EncodeError when two tensors would have the same one."""
    changed: dict[str, str] = {}
    shared = set()  # H's, which has the id of its G
    for block in model.blocks:
        if block.g is not None and block.h is not None:
            g, h = factor_ids(block, listed)
            changed |= {block.g: g, block.h: h}
            shared |= {block.h} if g == h else set()
    ids = [changed.get(name, name) for name in model.tensors if name not in shared]
    if len(set(ids)) < len(ids):
        twice = next(name for k, name in enumerate(ids) if name in ids[:k])
        raise EncodeError(f"{twice!r} would be the name of two tensors; topology element ids are unique (6.2.3)")
    return ids


def factor_ids(block: Block, listed: bool) -> tuple[str, str]:
    """The topology element ids of G and H.

    Where they are ``listed`` with a topology, whose labels alone may be in the list, two units have the same one (A.4).
    """
    product = block.weight if block.corner is None else default_unit(block.weight)
    return product, product if listed and block.two_units else f"{product}_H"  # errata N5


def _members(block: Block) -> list[str]:
    """The tensors of a block."""
    names = [getattr(block, member) for member in _MEMBERS if member != "weight" or block.g is None]
    return [name for name in names if name is not None]


def _blocks(
    model: Model,
    wiring: Wiring,
    scales: set[str],
    fitted: frozenset[str],
    decomposed: Mapping[str, np.dtype[Any]],
) -> dict[str, _Known]:
    """The block of each tensor that is in one; EncodeError where blocks do not fit the model or each other.

    The ``scales`` are optional, those of ``fitted`` weights follow from levels; ``decomposed`` are types of weights.
    """
    block_of: dict[str, _Known] = {}
    declared = {name.casefold(): shape for name, shape in wiring.shapes.items()}  # labels, whose case does not count
    for block in model.blocks:
        if (block.g is None) != (block.h is None):
            raise EncodeError(f"the block of {block.weight!r} has one of g and h; a product takes both")
        names = _members(block)
        for name in names:
            if name not in model.tensors:
                raise EncodeError(f"the block of {block.weight!r} names {name!r}, which is no tensor of the model")
            if name in block_of or names.count(name) > 1:
                raise EncodeError(f"tensor {name!r} is in a block twice, or in two blocks")
        if block.axis and block.g is not None:
            raise EncodeError(f"the block of {block.weight!r} has axis {block.axis}; that of a product is 0")
        shapes = {name: declared[name.casefold()] for name in names if name.casefold() in declared}
        optional, is_fitted = block.scale in scales, block.weight in fitted
        known = _Known(block, shapes, {}, False, optional, is_fitted, decomposed.get(block.weight))
        if known.consumes_scale and (block.two_units or block.corner is not None):
            raise EncodeError(f"the block of {block.weight!r} has a scale, which its form does not hold (7.3.5)")
        block_of |= dict.fromkeys(names, known)
    by_weight = {known.block.weight.casefold(): known for known in block_of.values()}
    for folded in wiring.blocks:
        found = by_weight.get(folded.weight.casefold())
        implied = _implied(found.block, folded) if found is not None else {}
        if found is not None and implied:
            if all(name in model.tensors and name not in block_of for name in implied):
                shapes = {name: declared[name.casefold()] for name in implied if name.casefold() in declared}
                found = replace(found, shapes=found.shapes | shapes, implied=implied)
            else:
                found = replace(found, apart=True)
            block_of |= dict.fromkeys(found.members, found)
    return block_of


def _implied(block: Block, known: Block) -> dict[str, float]:
    """What decoders make of the gamma and beta of a block of the topology, where these are scale and bias (8.2.1)."""
    for own, theirs in ((block.scale, known.gamma), (block.bias, known.beta)):
        if own is None or theirs is None or own.casefold() != theirs.casefold():
            return {}
    if known.mean is None or known.var is None or known.epsilon is None or block.gamma is not None:
        return {}
    return {known.mean: 0.0, known.var: 1 - known.epsilon} | ({known.bias: 0.0} if known.bias is not None else {})


def _plan_member(facts: Subject) -> tuple[TensorPlan, Array]:
    """The plan of a tensor in a block, and its values."""
    if not facts.array.size:
        raise EncodeError(f"tensor {facts.name!r} is empty, but a block has to hold it (7.3.5)")
    return choose(facts, in_block=True), facts.floats if facts.stored.kind == "f" else facts.array


def _plan_block(known: _Known, subjects: Mapping[str, Subject], config: EncoderConfig) -> UnitPlan | None:
    """The unit of a block with all that it can hold; None when that is not more than a weight."""
    block = known.block
    decomposed = block.g is not None
    names = {"g": block.g, "h": block.h} if decomposed else {"weight": block.weight}
    weights = {role: _plan_member(subjects[name])[0] for role, name in names.items() if name is not None}
    plans = list(weights.values())
    first, last = plans[0], plans[-1]
    for plan in plans:
        reason = _misfit(plan, first)
        if block.axis and config.profile == 0:
            reason = "has its dimensions in another order, which profile 0 does not express"
        if reason and (decomposed or known.needs_scale):
            raise EncodeError(f"tensor {plan.name!r} {reason}, but a block has to hold it (7.3.5)")
        if reason:
            return None
    dims = _dims(block, first.dims, last.dims)
    agreed = first.options.scan_order == last.options.scan_order and len(dims) > 1
    scan_order = first.options.scan_order if agreed else 0  # present with two dimensions and more (6.3.3.7)
    dq_flag = first.dq_flag & last.dq_flag
    tensors = {
        role: replace(plan, dq_flag=dq_flag, options=replace(plan.options, scan_order=scan_order), shift=block.axis)
        for role, plan in weights.items()
    }
    ids = factor_ids(block, known.listed) if decomposed else (block.weight,)
    check_name(ids[-1])
    types = int(NNR_CPT_DC) if decomposed else 0
    for kind, roles in () if block.two_units else OPTIONAL:
        members = {role: getattr(block, member) for role, member in roles.items()}
        if None in members.values():
            continue
        fitted = _fitted(kind, members, known, subjects, (first, dims, dq_flag), config)
        if fitted:
            tensors |= fitted
            ids += tuple(members.values())
            types |= kind
    consumed = ("g", "h", "ls") if known.consumes_scale else ("g", "h")  # which do not come out
    tensors = {role: replace(plan, record=None) if role in consumed else plan for role, plan in tensors.items()}
    implied: tuple[TensorPlan, ...] = ()
    if types & ~NNR_CPT_DC == _FOLDED and known.implied:
        implied = tuple(_plan_member(subjects[name])[0] for name in known.implied)
    if known.product is not None:
        implied = (_product(known.product, block, dims, first, config), *implied)
    return UnitPlan(ids, dims, tensors, types, implied, block.two_units) if types else None


def _product(
    dtype: np.dtype[Any], block: Block, dims: tuple[int, ...], g: TensorPlan, config: EncoderConfig
) -> TensorPlan:
    """The plan of a weight that a step decomposed, and what its unit does not say of it."""
    stored = stored_type(dtype)
    assert stored is not None
    code = None if block.corner is None else DisplacementCode(default_unit(block.weight), block.corner)
    record = None
    if code or DTYPES[g.data_format] != stored.dtype:
        record = TensorRecord(stored.name, code=code)
        if not config.side_info:
            raise EncodeError(f"tensor {block.weight!r}, decomposed, needs side information")
    size = prod(dims) * stored.itemsize
    return TensorPlan(block.weight, dims, NNR_PT_FLOAT, g.data_format, g.options, size, record=record)


def _fitted(
    kind: int,
    members: Mapping[str, str],
    known: _Known,
    subjects: Mapping[str, Subject],
    unit: tuple[TensorPlan, tuple[int, ...], int],
    config: EncoderConfig,
) -> dict[str, TensorPlan]:
    """The members of one kind as a unit holds them, of which the weight, dims and dq_flag are given; none if it cannot.

    Raises EncodeError for local scaling that has to be there.
    """
    weight, dims, dq_flag = unit
    fitted: dict[str, TensorPlan] = {}
    reason = "" if kind & config.compressed_parameter_types else "is not among compressed_parameter_types"
    if kind == NNR_CPT_BI and (known.apart or not _follow(known, subjects, weight)):
        return {}  # decoders would make others of it
    for role, name in members.items():
        if not reason:
            fit = _fit(*_plan_member(subjects[name]), weight, known.shapes.get(name, dims[:1]), dims, dq_flag, config)
            if isinstance(fit, TensorPlan):
                fitted[role] = fit
                continue
            reason = fit
        if kind == NNR_CPT_LS and known.needs_scale:
            raise EncodeError(f"tensor {name!r} {reason}, but a block has to hold it (7.3.5)")
        return {}
    return fitted


def _follow(known: _Known, subjects: Mapping[str, Subject], weight: TensorPlan) -> bool:
    """Whether the tensors are what decoders make of the others."""
    for name, value in known.implied.items():
        array, shape = subjects[name].array, known.shapes.get(name)
        same = shape is None or array.shape == shape
        if not same or array.dtype.kind != "f" or subjects[name].data_format != weight.data_format:
            return False
        if not np.array_equal(array, np.full(array.shape, value, array.dtype)):
            return False
    return True


def _fit(
    plan: TensorPlan,
    array: Array,
    weight: TensorPlan,
    declared: tuple[int, ...],
    dims: tuple[int, ...],
    dq_flag: int,
    config: EncoderConfig,
) -> TensorPlan | str:
    """A bias or the like as a block holds it, or why it cannot."""
    if reason := _misfit(plan, weight):
        return reason
    if array.shape != declared or array.size != dims[0] or sum(extent != 1 for extent in declared) > 1:
        return f"has the shape {array.shape}, not {dims[:1]} as the first dimension of the weight"
    return in_unit(replace(plan, dims=dims[:1]), dq_flag, array, config.qp_density) or (
        "is too large for a fine step of dependent quantization, which the weight has"
    )


def _misfit(plan: TensorPlan, weight: TensorPlan) -> str:
    """Why a tensor cannot be in one block with a weight; empty if it can."""
    if plan.payload_type == NNR_PT_INT:
        return "has integers, not floats"
    if plan.payload_type != NNR_PT_FLOAT:
        return "is kept exactly, not quantized as with exact=false"
    if plan.codebook:
        return "has a codebook of its own"
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
