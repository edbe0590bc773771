"""What NNR_TPL_PRUN says of a model: new dimensions of tensors, and which parameters are 0 (6.4.4.5, Table 19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from bitarray import bitarray

from ..config import EncoderConfig
from ..constants import NNR_TPL_BMSK, NNR_TPL_DICT
from ..errors import EncodeError
from ..syntax.structures import BitMask, NnrPruningTopologyContainer
from .blocks import UnitPlan
from .prepared import Prepared


def references(prepared: Prepared, plans: Sequence[UnitPlan], config: EncoderConfig) -> list[str]:
    """The ids of the reference list, none where there is no list.

    Those of units, and those that have none but lost some of their indices, which a dictionary tells by index too.
    """
    ids = [name for plan in plans for name in plan.all_ids]
    if not config.indexed_references or len(ids) < 2:  # a list has two entries (errata N7)
        return []
    names = (plan.name for unit in plans for plan in unit.plans if plan.name in prepared.restored.pruned)
    return [*dict.fromkeys([*ids, *names])]


def container(
    prepared: Prepared, plans: Sequence[UnitPlan], references: Sequence[str]
) -> NnrPruningTopologyContainer | None:
    """The container, or None where there is nothing to say; EncodeError for a mask that is too long (6.3.4.5).

    The dictionary has the tensors of which :attr:`nnr_codec.model.Model.pruned` says that they are not as their
    topology has them, with their dimensions as coded. A mask has a bit for each parameter of all tensors with two or
    more dimensions, as coded, in the order of their units (errata N1): 0 for those that are 0, unless the tensor is
    coded by something else than its values.
    """
    dims = _dimensions(prepared, plans)
    sparse = prepared.pruning is not None and prepared.pruning.sparse
    if not dims and not sparse:
        return None
    t = NnrPruningTopologyContainer(nnr_rep_type=NNR_TPL_DICT if dims else NNR_TPL_BMSK, order_flag=1)
    if dims:
        t.prune_flag, t.count_ids = 1, len(dims)
        t.count_dims, t.dim = [len(extents) for extents in dims.values()], [list(extents) for extents in dims.values()]
        if references:
            index = {name: k for k, name in enumerate(references)}
            t.element_id_index = [index[name] for name in dims]
        else:
            t.element_id = list(dims)
    if sparse and (bits := _mask(prepared, plans)):
        if len(bits) >> 32:
            raise EncodeError(f"a mask of {len(bits):,} bits is too long for count_bits (6.3.4.5)")
        t.sparse_flag, t.sparse_mask = 1, BitMask(bit_mask_value=bits)
    return t if dims or t.sparse_flag else None


def _dimensions(prepared: Prepared, plans: Sequence[UnitPlan]) -> Mapping[str, tuple[int, ...]]:
    """The dimensions of tensors that lost some of their indices, by id."""
    tensors, dims = prepared.restored.tensors, dict[str, tuple[int, ...]]()
    names = frozenset(prepared.restored.pruned)
    for unit in plans if names else ():
        if not unit.all_ids:
            continue  # another tensor's unit tells
        if unit.name in names:
            dims[unit.name] = unit.dims
        others = (*unit.ids[1:], *[plan.name for plan in unit.implied])
        dims |= {name: np.shape(tensors[name]) for name in others if name in names}
    return dims


def _mask(prepared: Prepared, plans: Sequence[UnitPlan]) -> bitarray:
    """A bit for each parameter."""
    bits = bitarray(endian="big")
    for unit in plans:
        main = next(iter(unit.tensors.values()))
        if not unit.all_ids or len(unit.dims) < 2:
            continue
        model = prepared.model if unit.name in prepared.model.tensors else prepared.restored
        if unit.name not in model.tensors or main.code:
            bits.extend(bitarray("1") * prod(unit.dims))
            continue
        array = np.moveaxis(np.asarray(model.tensors[unit.name]), main.shift, 0)
        kept = array != 0
        if array.dtype.kind != "i":
            with np.errstate(invalid="ignore"):  # of a signalling not-a-number
                kept |= np.signbit(array.astype(np.float64, copy=False))  # -0.0 is another number
        packed = bitarray(endian="big")
        packed.frombytes(np.packbits(kept.reshape(-1)).tobytes())
        bits.extend(packed[: kept.size])
    return bits
