"""Compressed data units of a model: one for each block that fits, and one for each other tensor.

A weight whose scale is optional is not divided where both do not fit one unit. Tied and empty tensors have no unit:
the record defines them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..config import EncoderConfig
from ..errors import EncodeError, Option
from ..model import Array, Block, Model, Wiring
from ..sideinfo.record import TensorRecord
from .block_units import BlockFacts, UnitPlan, blocks_of, factor_ids, members_of, plan_block
from .facts import DEFAULT_LIMITS, TensorContext, TensorFacts, check_name, tensor_facts
from .fixed_point import warn_saturated
from .goals import with_density
from .overlay import divided
from .plan import Integers, TensorPlan
from .planning import plan_tensor
from .prepared import Prepared
from .rate_distortion import code_bytes
from .scale_fitting import fit, pays, scale_options, scaled_tensors
from .tensor_tasks import Pool, TensorReader, TensorTask
from .tied_tensors import tied_tensors
from .update_tree import Links

#: QuantizationParameter is from -MOST_PARAMETER to MOST_PARAMETER - 1. At WIDE_DENSITY it reaches all steps of float32.
MOST_PARAMETER, WIDE_DENSITY = 1 << 12, 5
#: Bytes of an entry of the record without its name and code.
ENTRY_BYTES = 40
#: Bytes of the record above which no code needs more, besides 9 for each index of the longest dimension.
CODE_ROOM = 1 << 20


@dataclass(frozen=True)
class UnitLayout:
    """The units of a model in order; a block stands where the first of its tensors does.

    Parameters
    ----------
    units : list of UnitPlan
    qp_density : int
        QpDensity: that of the options, or WIDE_DENSITY where it leaves steps out of reach.
    quantization_parameter : int
        QuantizationParameter: 0 unless qp_value alone cannot express all steps.
    """

    units: list[UnitPlan]
    qp_density: int
    quantization_parameter: int


def plan_units(prepared: Prepared, config: EncoderConfig, read: TensorReader, pool: Pool) -> UnitLayout:
    """Plan the units of a model.

    Each tensor, or block, is read and released. Tensors whose steps are out of reach of the QuantizationParameter that
    suits the others are kept exactly. Raises EncodeError for a tensor that cannot be coded as requested, or an invalid
    block. With a fixed-point format, a SaturationWarning names the tensors with out-of-range values.
    """
    about = prepared.wiring, prepared.scales, prepared.fitted, prepared.links, prepared.decomposed
    layout = _Layout(prepared.model, config, read, pool, *about)
    units = list(layout.units())
    parameter, layout.out_of_reach = _quantization_parameter(units, config.qp_density)
    if layout.out_of_reach and config.qp_density > WIDE_DENSITY:
        return plan_units(prepared, with_density(config, WIDE_DENSITY), read, pool)
    if layout.out_of_reach:
        units = list(layout.units())
    if config.fixed_point is not None:
        warn_saturated([plan for unit in units for plan in unit.plans], config.fixed_point)
    return UnitLayout(units, config.qp_density, parameter)


def _quantization_parameter(units: list[UnitPlan], qp_density: int) -> tuple[int, set[str]]:
    """Return the QuantizationParameter nearest to 0 that reaches the steps of most parameters, and the other tensors.

    It is i(13), and qp_value has 6 + QpDensity bits (6.3.4.3, 10.2.1.3).
    """
    half = 1 << (5 + qp_density)
    plans = [plan for unit in units for plan in unit.tensors.values() if plan.step]
    if all(-half <= plan.qp < half for plan in plans):
        return 0, set()

    qps = np.array(sorted({plan.qp for plan in plans}))
    sizes = np.zeros(len(qps) + 1, np.int64)
    np.add.at(sizes, np.searchsorted(qps, [plan.qp for plan in plans]) + 1, [prod(plan.dims) for plan in plans])
    sizes = sizes.cumsum()
    choices = np.concatenate([qps + half, qps - half + 1, [0]]).clip(-MOST_PARAMETER, MOST_PARAMETER - 1)
    choices = choices[np.lexsort((choices, abs(choices)))]
    reached = sizes[np.searchsorted(qps, choices + half)] - sizes[np.searchsorted(qps, choices - half)]
    best = int(choices[reached.argmax()])
    return best, {plan.name for plan in plans if not -half <= plan.qp - best < half}


class _Planned(NamedTuple):
    """The unit of a block, if there is one, and the plans of tensors that are coded apart, by name.

    ``room`` is what changes nothing of that, however much more there is.
    """

    unit: UnitPlan | None
    plans: dict[str, TensorPlan]
    room: int


@dataclass
class _Layout:
    """State of planning, tensor after tensor.

    Plans are made without knowledge of the ones before. The few that these would change are made again.
    """

    model: Model
    config: EncoderConfig
    read: TensorReader
    pool: Pool
    wiring: Wiring
    scales: set[str]
    fitted: frozenset[str]
    links: Links | None
    decomposed: Mapping[str, np.dtype[Any]]
    out_of_reach: set[str] = field(default_factory=set)
    planned: dict[str, _Planned] = field(default_factory=dict)  # by the first tensor
    taken: dict[str, frozenset[str]] = field(default_factory=dict)  # ids with a "#", by what begins alike
    room: float = field(init=False)
    recorded: bool = False  # whether any of them needs the record

    def __post_init__(self) -> None:
        updated = self.links.names if self.links else ()
        self.take(name for name in (*self.model.tensors, *updated) if "#" in name)
        self.take(name for name in element_ids(self.model, is_listed(self.model, self.config)) if "#" in name)
        self.room = DEFAULT_LIMITS.max_side_info_bytes / 2  # as it is estimated: base64 and braces add to that

    def units(self) -> Iterator[UnitPlan]:
        """Yield the units in order."""
        block_of = blocks_of(self.model, self.wiring, self.scales, self.fitted, self.decomposed)
        if is_listed(self.model, self.config):
            block_of = {name: replace(known, listed=True) for name, known in block_of.items()}
        blocks = {name: known.block for name, known in block_of.items()}
        # Differences have trees of their own, unless the caller knows better.
        tied = tied_tensors(self.model, self.config, blocks) if not self.links or self.model.aliases else {}
        places = {name: index for index, name in enumerate(self.model.tensors)}
        calls: dict[str, TensorTask[_Planned]] = {}
        for name in places:
            check_name(name)
            if name in tied:
                continue
            block = block_of.get(name)
            members = block.members if block else (name,)
            if not block or not any(member in calls for member in members):
                calls[name] = self.call(block, {member: self.context(member, places[member]) for member in members})
        self.planned = {name: one for name, one in self.planned.items() if not self.out_of_reach & {*calls[name].names}}
        left = [name for name in calls if name not in self.planned]
        self.planned |= zip(left, self.pool.run([calls[name] for name in left]), strict=True)
        apart: dict[str, TensorPlan] = {}
        for name, index in places.items():
            if name in tied:
                yield self.alias(name, tied[name], index)
                continue
            if name in calls:
                planned = self.checked(calls[name], self.planned[name])
                apart |= planned.plans
                if planned.unit:
                    yield planned.unit
            if plan := apart.pop(name, None):
                if plan.record:
                    self.recorded = True
                    self.take(plan.record.units)
                    self.room -= ENTRY_BYTES + len(name.encode()) + (code_bytes(plan.code) if plan.code else 0)
                yield UnitPlan((plan.unit_id,), plan.dims, {"weight": plan})

    def context(self, name: str, index: int) -> TensorContext:
        """Return the constraints on a tensor from those that are planned so far."""
        link = self.links.of.get(name) if self.links else None
        return TensorContext(
            index,
            self.taken.get(_beginning(name), frozenset()),
            int(self.room),
            link is not None and link.is_update,
            link is not None and link.is_bits,
            name in self.out_of_reach,
        )

    def take(self, ids: Iterable[str]) -> None:
        """Keep ids, which have a ``#``, from being those of other units."""
        for one in ids:
            key = _beginning(one)
            self.taken[key] = self.taken.get(key, frozenset()) | {one}

    def call(self, block: BlockFacts | None, contexts: dict[str, TensorContext]) -> TensorTask[_Planned]:
        """Return the call that plans a block, or a tensor."""
        names = tuple(contexts)
        return TensorTask(_plan, self.read, names, (block, contexts, self.config), self.read.nbytes(names))

    def checked(self, call: TensorTask[_Planned], planned: _Planned) -> _Planned:
        """Return a plan, or the one that takes its place, knowing the plans before it."""
        if not self.recorded:
            return planned
        block, contexts, config = call.arguments
        now = {name: self.context(name, before.index) for name, before in contexts.items()}
        for name, before in contexts.items():
            one = now[name]
            if one.taken != before.taken or (one.room != before.room and one.room < planned.room):
                return replace(call, arguments=(block, now, config))()
        return planned

    def alias(self, name: str, target: str, index: int) -> UnitPlan:
        """Return a tensor that is another one."""
        if not self.config.side_info:
            raise EncodeError(
                f"tensor {name!r} is tied to {target!r}, which only side information can represent; use ",
                Option("side_info", True),
                tensor=name,
            )
        (array,) = self.read((name,))
        plan = tensor_facts(name, array, self.config, self.context(name, index)).plan(Integers())
        plan = replace(plan, record=TensorRecord(index=index, same_as=target))
        return UnitPlan((name,), plan.dims, {"weight": plan})


def _beginning(name: str) -> str:
    """Return a prefix that a tensor name shares with every id that :meth:`TensorFacts.part_id` makes from it."""
    return name[:256].partition("#")[0]


def _plan(
    arrays: list[Array], known: BlockFacts | None, contexts: dict[str, TensorContext], config: EncoderConfig
) -> _Planned:
    """Plan a tensor, or those of a block."""
    longest = max([max(array.shape, default=1) for array in arrays])
    room = CODE_ROOM + 9 * longest
    tensors = dict(zip(contexts, arrays, strict=True))
    all_facts = {name: tensor_facts(name, array, config, contexts[name]) for name, array in tensors.items()}
    if known is None:
        return _Planned(None, {name: plan_tensor(one) for name, one in all_facts.items()}, room)
    unit, together, fitted = None, set[str](), dict[str, TensorFacts]()
    if known.is_fitted:
        unit, fitted = _plan_fitted(known, all_facts, tensors, config)
        all_facts |= fitted
    if known.optional and known.block.scale is not None:
        if not unit and not _is_neutral(known, all_facts):
            unit = _plan_scaled(known, all_facts, tensors, config, all_facts[known.block.scale].array)
        together.add(known.block.scale)
        known = replace(known, block=replace(known.block, scale=None))
    unit = unit or plan_block(known, _turned(known.block, all_facts, tensors, config), config)
    together |= {plan.name for plan in unit.plans} if unit else set()
    plans = {name: plan_tensor(all_facts[name]) for name in tensors if name not in together}
    if fitted:
        plans = {name: _with_value(plan, fitted) for name, plan in plans.items()}
    return _Planned(unit, plans, room)


def _plan_fitted(
    known: BlockFacts, all_facts: Mapping[str, TensorFacts], tensors: Mapping[str, Array], config: EncoderConfig
) -> tuple[UnitPlan | None, dict[str, TensorFacts]]:
    """Return the unit of a block with tensors that make up for the levels of its weight, and these tensors.

    No unit where that does not pay, or where the unit would be another one.
    """
    block, is_new = known.block, _is_neutral(known, all_facts)
    divisor = all_facts[block.scale].array if known.optional and block.scale is not None else None
    if is_new and block.scale is not None:
        config = config.overridden({block.scale: scale_options(config.qp_density)})
    unit = _plan_scaled(known, all_facts, tensors, config, divisor)
    weight = unit.tensors.get("weight") if unit else None
    if unit is None or weight is None:
        return None, {}
    facts = _turned(block, all_facts, tensors, config, divisor)[block.weight]
    found = fit(facts, weight)
    values = scaled_tensors(block, all_facts, found.factors)
    if values is None:
        return None, {}
    after = {name: tensor_facts(name, array, config, all_facts[name].context) for name, array in values.items()}
    if not pays(found, weight, {} if is_new else {name: all_facts[name] for name in after}, after):
        return None, {}
    if is_new and len(members_of(block)) == 2:  # else there is no unit that the weight has to be in
        alone = plan_tensor(facts)
        if (alone.qp, alone.dq_flag, alone.codebook) != (weight.qp, weight.dq_flag, None):
            return None, {}
    # A unit without what no longer fits it would be another one.
    other = _plan_scaled(replace(known, optional=True), {**all_facts, **after}, tensors, config, divisor)
    if other is None or other.tensors.keys() != unit.tensors.keys() or other.tensors["weight"] != weight:
        return None, {}
    return replace(other, tensors={role: _with_value(plan, after) for role, plan in other.tensors.items()}), after


def _is_neutral(known: BlockFacts, all_facts: Mapping[str, TensorFacts]) -> bool:
    """Return whether the scale of a block is there to be fitted, and changes nothing yet."""
    block = known.block
    return known.is_fitted and known.optional and bool((all_facts[block.scale or ""].array == 1).all())


def _with_value(plan: TensorPlan, others: Mapping[str, TensorFacts]) -> TensorPlan:
    """Return a plan that is followed with another value than the tensor has, if there is one."""
    if plan.name not in others:
        return plan
    return replace(plan, source=replace(plan.source, values=others[plan.name].array))


def _turned(
    block: Block,
    all_facts: Mapping[str, TensorFacts],
    tensors: Mapping[str, Array],
    config: EncoderConfig,
    divisor: Array | None = None,
) -> Mapping[str, TensorFacts]:
    """Return the facts about the tensors of a block as coded: the weight divided, its block dimension first."""
    if divisor is None and not block.axis:
        return all_facts
    name, weight = block.weight, tensors[block.weight]
    if divisor is not None:
        weight = divided(weight, divisor, block.axis)
    return {**all_facts, name: tensor_facts(name, weight, config, all_facts[name].context, block.axis)}


def _plan_scaled(
    known: BlockFacts,
    all_facts: Mapping[str, TensorFacts],
    tensors: Mapping[str, Array],
    config: EncoderConfig,
    divisor: Array | None,
) -> UnitPlan | None:
    """Return the unit of a block whose weight is divided; None where it does not hold the scale as well."""
    unit = plan_block(known, _turned(known.block, all_facts, tensors, config, divisor), config)
    if not unit or divisor is None:
        return unit
    if "ls" not in unit.tensors:
        return None
    weight = unit.tensors["weight"]
    weight = replace(weight, source=replace(weight.source, divisor=divisor))
    return replace(unit, tensors={**unit.tensors, "weight": weight})


def is_listed(model: Model, config: EncoderConfig) -> bool:
    """Return whether all ids are in one list, and have to be labels of a topology (A.4)."""
    return config.indexed_references and model.topology is not None


def element_ids(model: Model, listed: bool = False) -> list[str]:
    """Return the topology element ids of all tensors; EncodeError when two tensors would have the same one."""
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
        raise EncodeError(f"two tensors would have the name {twice!r}; topology element ids must be unique (6.2.3)")
    return ids
