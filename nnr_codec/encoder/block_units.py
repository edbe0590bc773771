"""Block units: tensors that share one compressed data unit (NNR_PT_BLOCK, 7.3.5).

Tensors that do not fit into the unit of the block get separate units:

* All tensors of the block, if the weight is not a quantized float tensor (integers, exact=True).
* A bias, or all four tensors of the batch normalization, if one of them is not quantized, has a codebook, or differs
  from the weight in type; if its shape is not one number for each index of the block's dimension of the weight; if its
  values are too large for the unit's kind of quantization; or if compressed_parameter_types excludes them.

G, H, and a local scaling that the topology does not declare have no meaning in separate units: if they do not fit, the
model is rejected.

The block's dimension is coded first (first_tensor_dimension_shift). Decoders return members in the shape that the
topology declares, such as (1, n). If scale and bias are gamma and beta of a batch normalization of the topology,
decoders derive its other tensors from them (8.2.1), and these are not coded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ..config import EncoderConfig
from ..constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_DC, NNR_CPT_LS, NNR_PT_FLOAT, NNR_PT_INT
from ..dtypes import stored_type
from ..errors import EncodeError
from ..model import Array, Block, Model, Wiring
from ..sideinfo.record import DisplacementCode, TensorRecord, default_unit
from ..tensor.quant import DTYPES
from .facts import DEFAULT_LIMITS, TensorFacts, check_name
from .plan import SourceTensor, TensorPlan, as_uniform
from .planning import plan_tensor, with_dq_flag

#: Members of a block except its weight: bit in compressed_parameter_types, and fields of Block by role.
OPTIONAL = (
    (NNR_CPT_LS, {"ls": "scale"}),
    (NNR_CPT_BN, {"beta": "beta", "gamma": "gamma", "mean": "mean", "var": "var"}),
    (NNR_CPT_BI, {"bias": "bias"}),
)
_MEMBERS = ("weight", "g", "h", "scale", "beta", "gamma", "mean", "var", "bias")
#: compressed_parameter_types of a folded batch normalization.
_FOLDED = NNR_CPT_LS | NNR_CPT_BI


@dataclass(slots=True)
class UnitPlan:
    """Tensors of one compressed data unit, or a tensor without a unit.

    Parameters
    ----------
    ids : tuple of str
        Topology element ids as the header lists them: weight (or G and H), LS, beta, gamma, mean, var, bias (6.4.3.7).
    dims : tuple of int
        tensor_dimensions.
    tensors : dict of str to TensorPlan
        Plans by role, in the order of ``ids``.
    compressed_parameter_types : int
        0 unless the unit contains a block.
    implied : tuple of TensorPlan
        Tensors that decoders derive from the others.
    two_units : bool
        G and H have separate units.
    split_index : tuple of int
        Places at which decoders divide the tensor of a unit with several ids (6.4.3.7).
    split_axis : int
        Dimension of these places.
    shifts : tuple of tuple of (int, int)
        For each id of such a unit, the dimensions that decoders move left, in order, and the number of places.
    """

    ids: tuple[str, ...]
    dims: tuple[int, ...]
    tensors: dict[str, TensorPlan]
    compressed_parameter_types: int = 0
    implied: tuple[TensorPlan, ...] = ()
    two_units: bool = False
    split_index: tuple[int, ...] = ()
    split_axis: int = 0
    shifts: tuple[tuple[tuple[int, int], ...], ...] = ()

    @property
    def plans(self) -> tuple[TensorPlan, ...]:
        """Plans of all tensors."""
        return *self.tensors.values(), *self.implied

    @property
    def all_ids(self) -> tuple[str, ...]:
        """Ids of the unit without repetition, and of a following unit with the other bits of its tensor."""
        records = [plan.record for plan in self.tensors.values() if plan.record]
        if not records and len(self.ids) == 1:  # as in most units
            return self.ids
        if not next(iter(self.tensors.values())).has_unit:
            return ()
        ids = dict.fromkeys(self.ids)  # G and H may share an id
        return (*ids, *[record.bits for record in records if record.bits])

    @property
    def name(self) -> str:
        """Name of the first tensor, or the id of G if it differs from the name."""
        main = next(iter(self.tensors.values()))
        return main.name if main.unit_id == self.ids[0] else self.ids[0]


@dataclass(frozen=True)
class BlockFacts:
    """Block, with the information that decoders have from the topology.

    Parameters
    ----------
    block : Block
    shapes : dict of str to tuple of int
        Declared shapes of its members.
    implied : dict of str to float
        Tensors that decoders derive from a unit with scale and bias, and the constant value of each.
    apart : bool
        Some of these are not tensors of the model, or are in other blocks: scale and bias cannot be in one unit.
    optional : bool
        The unit may omit the scale; the weight is not divided by it yet.
    is_fitted : bool
        Scales or the batch normalization are fitted to compensate the quantization of the weight.
    product : dtype or None
        Type of the weight, if a reduction step decomposed it.
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
        """Tensors that are planned together."""
        return [*members_of(self.block), *self.implied]

    @property
    def consumes_scale(self) -> bool:
        """True if decoders multiply the weight by the scale, and do not return it."""
        return self.block.scale is not None and self.block.scale not in self.shapes

    @property
    def needs_scale(self) -> bool:
        """True if the unit must contain the scale."""
        return self.consumes_scale and not self.optional


def factor_ids(block: Block, listed: bool) -> tuple[str, str]:
    """Return the topology element ids of G and H.

    If they are ``listed`` with a topology, the list may contain only its labels: both units then have the same id
    (A.4).
    """
    product = block.weight if block.corner is None else default_unit(block.weight)
    return product, product if listed and block.two_units else f"{product}_H"  # errata N5


def members_of(block: Block) -> list[str]:
    """Return the tensors of a block."""
    names = [getattr(block, member) for member in _MEMBERS if member != "weight" or block.g is None]
    return [name for name in names if name is not None]


def blocks_of(
    model: Model,
    wiring: Wiring,
    scales: set[str],
    fitted: frozenset[str],
    decomposed: Mapping[str, np.dtype[Any]],
) -> dict[str, BlockFacts]:
    """Return the block of each tensor in a block. Raises EncodeError if blocks do not fit the model or each other.

    The ``scales`` are optional. Scales of ``fitted`` weights are computed from levels. ``decomposed`` has types of
    weights.
    """
    block_of: dict[str, BlockFacts] = {}
    declared = {name.casefold(): shape for name, shape in wiring.shapes.items()}  # case of labels is ignored
    for block in model.blocks:
        if (block.g is None) != (block.h is None):
            raise EncodeError(f"the block of {block.weight!r} has only one of g and h; a product requires both")
        names = members_of(block)
        for name in names:
            if name not in model.tensors:
                raise EncodeError(
                    f"the block of {block.weight!r} refers to {name!r}, which is not a tensor of the model"
                )
            if name in block_of or names.count(name) > 1:
                raise EncodeError(f"tensor {name!r} is in two blocks, or twice in one", tensor=name)
        if block.axis and block.g is not None:
            raise EncodeError(f"the block of {block.weight!r} has axis {block.axis}; the axis of a product must be 0")
        shapes = {name: declared[name.casefold()] for name in names if name.casefold() in declared}
        optional, is_fitted = block.scale in scales, block.weight in fitted
        known = BlockFacts(block, shapes, {}, False, optional, is_fitted, decomposed.get(block.weight))
        if known.consumes_scale and (block.two_units or block.corner is not None):
            raise EncodeError(f"the block of {block.weight!r} has a scale, which its form cannot represent (7.3.5)")
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
    """Return the values of the tensors that decoders derive if scale and bias are gamma and beta (8.2.1)."""
    for own, theirs in ((block.scale, known.gamma), (block.bias, known.beta)):
        if own is None or theirs is None or own.casefold() != theirs.casefold():
            return {}
    if known.mean is None or known.var is None or known.epsilon is None or block.gamma is not None:
        return {}
    return {known.mean: 0.0, known.var: 1 - known.epsilon} | ({known.bias: 0.0} if known.bias is not None else {})


def plan_block(known: BlockFacts, all_facts: Mapping[str, TensorFacts], config: EncoderConfig) -> UnitPlan | None:
    """Return the unit of a block with all tensors that fit; None if only the weight fits."""
    block = known.block
    decomposed = block.g is not None
    names = {"g": block.g, "h": block.h} if decomposed else {"weight": block.weight}
    coded = {role: all_facts[name] for role, name in names.items() if name is not None}
    weights = {role: _plan_member(facts)[0] for role, facts in coded.items()}
    if len({plan.codebook is None for plan in weights.values()}) > 1:  # both have one, or none (6.3.3.7)
        weights = {role: _plan_member(facts.with_options({"codebook": 0}))[0] for role, facts in coded.items()}
    plans = list(weights.values())
    first, last = plans[0], plans[-1]
    for plan in plans:
        reason = _misfit(plan, first)
        if block.axis and config.profile == 0:
            reason = "has its dimensions in another order, which profile 0 cannot represent"
        if reason and (decomposed or known.needs_scale):
            raise EncodeError(f"tensor {plan.name!r} {reason}, but it belongs to a block (7.3.5)", tensor=plan.name)
        if reason:
            return None
    dims = _dims(block, first.dims, last.dims)
    agreed = first.tools.scan_order == last.tools.scan_order and len(dims) > 1
    scan_order = first.tools.scan_order if agreed else 0  # present with two dimensions and more (6.3.3.7)
    dq_flag = first.dq_flag & last.dq_flag
    tensors = {
        role: replace(
            plan if dq_flag else as_uniform(plan),
            tools=replace(plan.tools, scan_order=scan_order),
            source=replace(plan.source, shift=block.axis),
        )
        for role, plan in weights.items()
    }
    ids = factor_ids(block, known.listed) if decomposed else (block.weight,)
    check_name(ids[-1])
    types = int(NNR_CPT_DC) if decomposed else 0
    for kind, roles in () if block.two_units else OPTIONAL:
        members = {role: getattr(block, member) for role, member in roles.items()}
        if None in members.values():
            continue
        fitted = _fitted(kind, members, known, all_facts, (first, dims, dq_flag), config)
        if fitted:
            tensors |= fitted
            ids += tuple(members.values())
            types |= kind
    consumed = ("g", "h", "ls") if known.consumes_scale else ("g", "h")  # decoders do not return them
    tensors = {role: replace(plan, record=None) if role in consumed else plan for role, plan in tensors.items()}
    implied: tuple[TensorPlan, ...] = ()
    if types & ~NNR_CPT_DC == _FOLDED and known.implied:
        implied = tuple(_plan_member(all_facts[name])[0] for name in known.implied)
    if known.product is not None:
        implied = (_product(known.product, block, dims, first, config), *implied)
    return UnitPlan(ids, dims, tensors, types, implied, block.two_units) if types else None


def _plan_member(facts: TensorFacts) -> tuple[TensorPlan, Array]:
    """Return the plan of a tensor in a block, and its values."""
    if not facts.array.size:
        raise EncodeError(f"tensor {facts.name!r} is empty, but it belongs to a block (7.3.5)", tensor=facts.name)
    return plan_tensor(facts, in_block=True), facts.floats if facts.stored.kind == "f" else facts.array


def _product(
    dtype: np.dtype[Any], block: Block, dims: tuple[int, ...], g: TensorPlan, config: EncoderConfig
) -> TensorPlan:
    """Return the plan of a decomposed weight, with the record of properties that its unit does not define."""
    stored = stored_type(dtype)
    assert stored is not None
    code = None if block.corner is None else DisplacementCode(default_unit(block.weight), block.corner)
    record = None
    if code or DTYPES[g.data_format] != stored.dtype:
        record = TensorRecord(stored.name, code=code)
        if not config.side_info:
            raise EncodeError(f"the decomposed tensor {block.weight!r} requires side information", tensor=block.weight)
    size = prod(dims) * stored.itemsize
    return TensorPlan(block.weight, dims, g.data_format, g.coding, g.tools, SourceTensor(size), record)


def _fitted(
    kind: int,
    members: Mapping[str, str],
    known: BlockFacts,
    all_facts: Mapping[str, TensorFacts],
    unit: tuple[TensorPlan, tuple[int, ...], int],
    config: EncoderConfig,
) -> dict[str, TensorPlan]:
    """Return the members of one kind in the form that the unit of a weight requires; empty if they do not fit.

    Raises EncodeError for a local scaling that the unit requires.
    """
    weight, dims, dq_flag = unit
    fitted: dict[str, TensorPlan] = {}
    reason = "" if kind & config.compressed_parameter_types else "is not among compressed_parameter_types"
    if kind == NNR_CPT_BI and (known.apart or not _follow(known, all_facts, weight)):
        return {}  # decoders would derive other tensors
    for role, name in members.items():
        if not reason:
            fit = _fit(*_plan_member(all_facts[name]), weight, known.shapes.get(name, dims[:1]), dims, dq_flag, config)
            if isinstance(fit, TensorPlan):
                fitted[role] = fit
                continue
            reason = fit
        if kind == NNR_CPT_LS and known.needs_scale:
            raise EncodeError(f"tensor {name!r} {reason}, but it belongs to a block (7.3.5)", tensor=name)
        return {}
    return fitted


def _follow(known: BlockFacts, all_facts: Mapping[str, TensorFacts], weight: TensorPlan) -> bool:
    """Return whether the tensors equal the tensors that decoders derive."""
    for name, value in known.implied.items():
        array, shape = all_facts[name].array, known.shapes.get(name)
        same = shape is None or array.shape == shape
        if not same or array.dtype.kind != "f" or all_facts[name].data_format != weight.data_format:
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
    """Return a vector in the form that a block requires, or the reason why it does not fit."""
    if reason := _misfit(plan, weight):
        return reason
    if plan.codebook:
        return "has a codebook of its own"
    if array.shape != declared or array.size != dims[0] or sum(extent != 1 for extent in declared) > 1:
        return f"has shape {array.shape}, not {dims[:1]}, the first dimension of the weight"
    return with_dq_flag(replace(plan, dims=dims[:1]), dq_flag, array, config.qp_density) or (
        "is too large for the fine step size of the weight (dependent quantization)"
    )


def _misfit(plan: TensorPlan, weight: TensorPlan) -> str:
    """Return the reason why a tensor cannot be in one block with a weight; empty if it can."""
    if plan.payload_type == NNR_PT_INT:
        return "has integers, not floats"
    if plan.payload_type != NNR_PT_FLOAT:
        return "is stored losslessly; use exact=false"
    if plan.data_format != weight.data_format:
        return f"decodes to {plan.data_format.name}, {weight.name!r} to {weight.data_format.name}"
    return ""


def _dims(block: Block, first: tuple[int, ...], last: tuple[int, ...]) -> tuple[int, ...]:
    """Return tensor_dimensions. Raises EncodeError if G and H have no product of the block's shape."""
    if block.g is None:
        return first
    if len(first) != 2 or len(last) != 2 or first[1] != last[0]:
        raise EncodeError(f"tensors {block.g!r} and {block.h!r} of shapes {first} and {last} have no matrix product")
    dims = tuple(block.shape) if block.shape is not None else (first[0], last[1])
    if not 0 < len(dims) <= DEFAULT_LIMITS.max_dims or min(dims) < 1 or prod(dims) != first[0] * last[1]:
        raise EncodeError(f"the product of {block.g!r} and {block.h!r} cannot have the shape {dims}")
    return dims
