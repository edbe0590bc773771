"""Compressed data units of a model: one for each block that fits, and one for each other tensor.

A weight with an optional scale is not divided if both do not fit into one unit. Tied and empty tensors have no unit:
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
from .joining import shared_unit
from .overlay import divided
from .parts import Path, contiguous, paths_of
from .plan import Integers, TensorPlan
from .planning import plan_tensor
from .prepared import Prepared
from .rate_distortion import code_bytes
from .scale_fitting import fit, pays, scale_options, scaled_tensors
from .tensor_tasks import Pool, TensorReader, TensorTask
from .tied_tensors import tied_tensors
from .update_tree import Links

#: QuantizationParameter is in -MOST_PARAMETER..MOST_PARAMETER - 1. At WIDE_DENSITY all float32 step sizes are in reach.
MOST_PARAMETER, WIDE_DENSITY = 1 << 12, 5
#: Bytes of a record entry without name and code.
ENTRY_BYTES = 40
#: Maximum bytes of a code in the record, in addition to 9 for each index of the longest dimension.
CODE_ROOM = 1 << 20


@dataclass(frozen=True)
class UnitLayout:
    """Units of a model in order; a block has the position of its first tensor.

    Parameters
    ----------
    units : list of UnitPlan
    paths : list of Path
        Part or layer of each unit.
    qp_density : int
        QpDensity: value of the options, or WIDE_DENSITY if step sizes are out of reach otherwise.
    parameters : dict of Path to int
        QuantizationParameter of the model, with the key ``()``: 0 unless qp_value alone cannot represent all step
        sizes. With ``layer_parameter_sets`` also the parameter of each layer: the qp of its largest tensor, or the
        nearest value that reaches more parameters.
    out_of_reach : frozenset of str
        Tensors that are lossless because their step sizes are out of reach.
    """

    units: list[UnitPlan]
    paths: list[Path]
    qp_density: int
    parameters: dict[Path, int]
    out_of_reach: frozenset[str]


def plan_units(prepared: Prepared, config: EncoderConfig, read: TensorReader, pool: Pool) -> UnitLayout:
    """Plan the units of a model.

    Each tensor or block is read and released. Tensors with step sizes out of reach of the QuantizationParameter, which
    is chosen for the others of the model or layer, are lossless. Raises EncodeError for a tensor that cannot be coded
    as requested, or an invalid block. With a fixed-point format, a SaturationWarning names the tensors with
    out-of-range values.
    """
    about = prepared.wiring, prepared.scales, prepared.fitted, prepared.links, prepared.decomposed
    layout = _Layout(prepared.model, config, read, pool, *about)
    while True:
        units = list(layout.units())
        paths = paths_of([unit.name for unit in units], config)
        parameters, missed = _quantization_parameters(units, paths, config)
        if missed <= layout.out_of_reach:
            break
        if config.qp_density > WIDE_DENSITY:
            return plan_units(prepared, with_density(config, WIDE_DENSITY), read, pool)
        layout.out_of_reach |= missed  # these tensors leave their blocks, whose other tensors get new step sizes
    for k, unit in enumerate(units):
        if names := prepared.joined.get(unit.name):
            units[k] = shared_unit(unit, names, prepared.restored.tensors)
    if config.fixed_point is not None:
        warn_saturated([plan for unit in units for plan in unit.plans], config.fixed_point)
    order = contiguous(paths)
    units, paths = [units[k] for k in order], [paths[k] for k in order]
    return UnitLayout(units, paths, config.qp_density, parameters, frozenset(layout.out_of_reach))


def _quantization_parameters(
    units: list[UnitPlan], paths: list[Path], config: EncoderConfig
) -> tuple[dict[Path, int], set[str]]:
    """Return the QuantizationParameter of the model, and of each layer if layers have one; and tensors out of reach."""
    groups: dict[Path, list[UnitPlan]] = {(): []}
    for unit, path in zip(units, paths, strict=True):
        groups.setdefault(path if config.layer_parameter_sets else (), []).append(unit)
    found = {
        path: _quantization_parameter(group, config.qp_density, near_largest=bool(path))
        for path, group in groups.items()
    }
    return {path: one for path, (one, _) in found.items()}, set().union(*[missed for _, missed in found.values()])


def _quantization_parameter(
    units: list[UnitPlan], qp_density: int, *, near_largest: bool = False
) -> tuple[int, set[str]]:
    """Return the QuantizationParameter that reaches most parameters, and the tensors out of reach.

    It is the nearest such value to 0, or to the qp of the largest tensor. It is i(13), and qp_value has 6 + QpDensity
    bits (6.3.4.3, 10.2.1.3).
    """
    half = 1 << (5 + qp_density)
    plans = [plan for unit in units for plan in unit.tensors.values() if plan.step]
    near = max(plans, key=lambda plan: prod(plan.dims)).qp if plans and near_largest else 0
    near = min(max(near, -MOST_PARAMETER), MOST_PARAMETER - 1)
    if all(-half <= plan.qp - near < half for plan in plans):
        return near, set()

    qps = np.array(sorted({plan.qp for plan in plans}))
    sizes = np.zeros(len(qps) + 1, np.int64)
    np.add.at(sizes, np.searchsorted(qps, [plan.qp for plan in plans]) + 1, [prod(plan.dims) for plan in plans])
    sizes = sizes.cumsum()
    choices = np.concatenate([qps + half, qps - half + 1, [near]]).clip(-MOST_PARAMETER, MOST_PARAMETER - 1)
    choices = choices[np.lexsort((choices, abs(choices - near)))]
    reached = sizes[np.searchsorted(qps, choices + half)] - sizes[np.searchsorted(qps, choices - half)]
    best = int(choices[reached.argmax()])
    return best, {plan.name for plan in plans if not -half <= plan.qp - best < half}


class _Planned(NamedTuple):
    """Unit of a block, if any, and plans of separately coded tensors by name.

    More space in the record than ``room`` would not change the plans.
    """

    unit: UnitPlan | None
    plans: dict[str, TensorPlan]
    room: int


@dataclass
class _Layout:
    """State of planning, tensor by tensor.

    Tensors are planned independently. The few plans that earlier plans affect are repeated.
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
    planned: dict[str, _Planned] = field(default_factory=dict)  # by first tensor
    taken: dict[str, frozenset[str]] = field(default_factory=dict)  # ids with a "#", by common prefix
    room: float = field(init=False)
    recorded: bool = False  # True if any tensor needs the record

    def __post_init__(self) -> None:
        updated = self.links.names if self.links else ()
        self.take(name for name in (*self.model.tensors, *updated) if "#" in name)
        self.take(name for name in element_ids(self.model, is_listed(self.model, self.config)) if "#" in name)
        self.room = DEFAULT_LIMITS.max_side_info_bytes / 2  # half, because estimates omit base64 and JSON syntax

    def units(self) -> Iterator[UnitPlan]:
        """Yield the units in order."""
        block_of = blocks_of(self.model, self.wiring, self.scales, self.fitted, self.decomposed)
        if is_listed(self.model, self.config):
            block_of = {name: replace(known, listed=True) for name, known in block_of.items()}
        blocks = {name: known.block for name, known in block_of.items()}
        # Differences start new update trees, unless the caller gives links.
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
                    self.room -= ENTRY_BYTES + len(name.encode()) + code_bytes(plan.record, deflated=False)
                yield UnitPlan((plan.unit_id,), plan.dims, {"weight": plan})

    def context(self, name: str, index: int) -> TensorContext:
        """Return the constraints on a tensor from the tensors planned so far."""
        link = self.links.of.get(name) if self.links else None
        return TensorContext(
            index,
            self.taken.get(_beginning(name), frozenset()),
            int(self.room),
            link is not None and link.is_update,
            link is not None and link.is_bits,
            name in self.out_of_reach,
            link is not None and link.by_exponent,
        )

    def take(self, ids: Iterable[str]) -> None:
        """Reserve ids with a ``#``, so that no other unit gets them."""
        for one in ids:
            key = _beginning(one)
            self.taken[key] = self.taken.get(key, frozenset()) | {one}

    def call(self, block: BlockFacts | None, contexts: dict[str, TensorContext]) -> TensorTask[_Planned]:
        """Return the call that plans a block or a tensor."""
        names = tuple(contexts)
        return TensorTask(_plan, self.read, names, (block, contexts, self.config), self.read.nbytes(names))

    def checked(self, call: TensorTask[_Planned], planned: _Planned) -> _Planned:
        """Return a plan, made again if the earlier plans require it."""
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
        """Return the plan of a tied tensor, which has no unit."""
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
    """Return a common prefix of a tensor name and every id that :meth:`TensorFacts.part_id` derives from it."""
    return name[:256].partition("#")[0]


def _plan(
    arrays: list[Array], known: BlockFacts | None, contexts: dict[str, TensorContext], config: EncoderConfig
) -> _Planned:
    """Plan a tensor or the tensors of a block."""
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
    """Return the unit of a block with scales fitted to the levels of its weight, and the fitted tensors.

    Returns no unit if this is not worth the bits, or if the unit would contain other tensors.
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
    if is_new and len(members_of(block)) == 2:  # otherwise the weight needs no block unit
        alone = plan_tensor(facts)
        if (alone.qp, alone.dq_flag, alone.codebook) != (weight.qp, weight.dq_flag, None):
            return None, {}
    # A fitted tensor that no longer fits would change the unit.
    other = _plan_scaled(replace(known, optional=True), {**all_facts, **after}, tensors, config, divisor)
    if other is None or other.tensors.keys() != unit.tensors.keys() or other.tensors["weight"] != weight:
        return None, {}
    return replace(other, tensors={role: _with_value(plan, after) for role, plan in other.tensors.items()}), after


def _is_neutral(known: BlockFacts, all_facts: Mapping[str, TensorFacts]) -> bool:
    """Return whether the scale of a block is a new one that is not fitted yet."""
    block = known.block
    return known.is_fitted and known.optional and bool((all_facts[block.scale or ""].array == 1).all())


def _with_value(plan: TensorPlan, others: Mapping[str, TensorFacts]) -> TensorPlan:
    """Return a plan with another value instead of the tensor's, if given."""
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
    """Return the facts about the coded tensors of a block: divided weight, block dimension first."""
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
    """Return the unit of a block with a divided weight; None if the scale does not fit into it."""
    unit = plan_block(known, _turned(known.block, all_facts, tensors, config, divisor), config)
    if not unit or divisor is None:
        return unit
    if "ls" not in unit.tensors:
        return None
    weight = unit.tensors["weight"]
    weight = replace(weight, source=replace(weight.source, divisor=divisor))
    return replace(unit, tensors={**unit.tensors, "weight": weight})


def is_listed(model: Model, config: EncoderConfig) -> bool:
    """Return whether all ids are in a reference list, and must be labels of a topology (A.4)."""
    return config.indexed_references and model.topology is not None


def element_ids(model: Model, listed: bool = False) -> list[str]:
    """Return the topology element ids of all tensors. Raises EncodeError if two tensors would have the same id."""
    changed: dict[str, str] = {}
    shared = set()  # ids of H that equal the id of G
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
