"""The units before the tensors: NNR_STR, NNR_MPS, NNR_TPL and NNR_QNT (ISO/IEC 15938-17:2024, 6.2.3, A.4, B.4).

Among them are the reference list, the pruning topology container (6.4.4.5, Table 19) and side information.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from bitarray import bitarray

from ..bitstream.units import write_unit
from ..config import EncoderConfig
from ..constants import (
    NNR_DFL,
    NNR_MPS,
    NNR_PT_RAW,
    NNR_QCB,
    NNR_QNT,
    NNR_QSU,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_BMSK,
    NNR_TPL_DICT,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
    TOPOLOGY_FORMATS,
)
from ..errors import EncodeError, Option
from ..model import Model, Topology
from ..sideinfo.record import STORAGE_FORMAT, SideInfo
from ..syntax import Session
from ..syntax.structures import (
    BitMask,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)
from .block_units import UnitPlan
from .facts import DEFAULT_LIMITS
from .prepared import Prepared
from .rate_distortion import DEFLATED_BYTES
from .unit_layout import UnitLayout

#: Formats for which a unit declares an external topology: Annex B requires it, Annex A does not.
ANNOUNCED = ("onnx", "pytorch", "tensorflow")


def preamble(
    prepared: Prepared, layout: UnitLayout, config: EncoderConfig, session: Session
) -> tuple[list[bytes], list[str]]:
    """Return the units before the tensors, and the reference list: element ids in order, empty without a list.

    With an external topology, at most one unit declares its format (B.4).

    Raises EncodeError for a topology that cannot be stored in a unit of its format, for side information that is
    required but not allowed, and for a unit larger than max_unit_size: these units cannot be divided (6.4.3.1).
    """
    record = _record(prepared.model, layout.units, config)
    references = _references(prepared, layout.units, config)
    pruning = _pruning(prepared, layout.units, references)
    units = [*_units(prepared, layout, references, config, session, pruning)]
    if record:
        units.append(_side_info(record, config, session))
    for unit in units:
        if config.max_unit_size is not None and len(unit) > config.max_unit_size:
            raise EncodeError(
                f"a unit without tensors, such as a topology, has {len(unit):,} bytes, more than ",
                Option("max_unit_size", config.max_unit_size),
                ", but only tensors can be split (6.4.3.1)",
            )
    return units, references


def _units(
    prepared: Prepared,
    layout: UnitLayout,
    references: Sequence[str],
    config: EncoderConfig,
    session: Session,
    pruning: NnrPruningTopologyContainer | None,
) -> Iterator[bytes]:
    model, links = prepared.model, prepared.links
    codebooks = any(plan.codebook for unit in layout.units for plan in unit.tensors.values())
    topology = model.topology if config.topology == "carried" else None
    apart = "" if topology else model.topology.format if model.topology else model.format
    told = {**prepared.maps.elements("mps"), **(config.performance.elements() if config.performance else {})}
    own = links.elements if links else {}
    if "base_model_id" in told and "base_model_id" in own:
        raise EncodeError(
            Option("performance"), " has a base_model_id, which the update sets itself (6.4.4.3); remove it"
        )
    start = NnrStartUnitHeader(general_profile_idc=config.profile)
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_STR, detail=start), None, session)
    parameters = NnrModelParameterSetUnitPayload(
        topology_carriage_flag=int(topology is not None),
        mps_quantization_method_flags=NNR_QSU | NNR_QCB * codebooks,
        mps_qp_density=layout.qp_density,
        mps_quantization_parameter=layout.quantization_parameter,
        mps_topology_indexed_reference_flag=int(bool(references)),
        **told,
        **own,
    )
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), parameters, session)
    if topology:
        yield _topology(topology, config, session)
    elif apart in ANNOUNCED:
        yield _topology_unit(session, _storage_format(apart), topology_data=b"\0")
    if references:  # right after the topology (A.4)
        yield _topology_unit(session, NNR_TPL_REFLIST, topology_elem_id_list=list(references))
    if pruning:
        yield _topology_unit(session, NNR_TPL_PRUN, pruning=pruning)
    if topology and topology.quantization is not None:
        yield _quantization(topology.format, topology.quantization, config, session)


def _topology(topology: Topology, config: EncoderConfig, session: Session) -> bytes:
    if not topology.data.strip(b"\0"):
        raise EncodeError("a topology that is empty or zero means no topology (B.4); remove it")
    storage = _storage_format(topology.format)
    compression, data = _carried(topology.data, storage, "topology", config)
    return _topology_unit(session, storage, compression, topology_data=data)


def _topology_unit(session: Session, storage: int, compression: int = NNR_PT_RAW, **elements: Any) -> bytes:
    header = NnrTopologyUnitHeader(topology_storage_format=storage, topology_compression_format=compression)
    return write_unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=header), NnrTopologyUnitPayload(**elements), session)


def _side_info(record: SideInfo, config: EncoderConfig, session: Session) -> bytes:
    text = record.to_bytes()
    if config.deflate_topology and len(text) >= DEFLATED_BYTES:
        compression, data = NNR_DFL, zlib.compress(text, 9)
    else:
        compression, data = NNR_PT_RAW, text + b"\0"
    return _topology_unit(session, STORAGE_FORMAT, compression, topology_data=data)


def _quantization(name: str, text: bytes, config: EncoderConfig, session: Session) -> bytes:
    storage = _storage_format(name)
    compression, data = _carried(text, storage, "quantization", config)
    header = NnrQuantizationUnitHeader(quantization_storage_format=storage, quantization_compression_format=compression)
    payload = NnrQuantizationUnitPayload(quantization_data=data)
    return write_unit(NnrUnitHeader(nnr_unit_type=NNR_QNT, detail=header), payload, session)


def _storage_format(name: str) -> int:
    """Return the number of a format in Tables 4 and 6."""
    for number, known in TOPOLOGY_FORMATS.items():
        if known == name:
            return number
    known_names = ", ".join(repr(known) for known in TOPOLOGY_FORMATS.values())
    raise EncodeError(f"topology format {name!r} has no number (Table 4); choose from {known_names}")


def _carried(data: bytes, storage: int, what: str, config: EncoderConfig) -> tuple[int, bytes]:
    """Return compression format and data: null-terminated UTF-8 for NNEF (A.4), others unchanged (errata N9)."""
    if TOPOLOGY_FORMATS[storage] == "nnef":
        try:
            data.decode()
        except UnicodeDecodeError:
            raise EncodeError(f"the NNEF {what} is not UTF-8 (A.4)") from None
        if 0 in data:
            raise EncodeError(f"the NNEF {what} contains a zero byte, which would end it (A.4)")
        data += b"\0"
    deflated = zlib.compress(data, 9)
    if config.deflate_topology and len(deflated) < len(data):
        return NNR_DFL, deflated
    return NNR_PT_RAW, data


def _record(model: Model, units: list[UnitPlan], config: EncoderConfig) -> SideInfo:
    """Return the record of side information. Raises EncodeError if it is required but not allowed, or too long."""
    records = {plan.name: plan.record for unit in units for plan in unit.plans if plan.record}
    record = SideInfo(records, model.format, model.metadata) if records or model.metadata else SideInfo()
    if record and not config.side_info:
        raise EncodeError(
            "the model has metadata, which only side information can represent; use ", Option("side_info", True)
        )
    size = len(record.to_bytes()) if record else 0
    if size > DEFAULT_LIMITS.max_side_info_bytes:
        raise EncodeError(f"side information of {size:,} bytes exceeds the default limits of decoders")
    return record


# ------------------------------------------------------------------------------------------------ ids and pruning
def _references(prepared: Prepared, plans: Sequence[UnitPlan], config: EncoderConfig) -> list[str]:
    """Return the ids of the reference list; empty without a list.

    The list has the ids of units, and of tensors without a unit that the dictionary of pruned dimensions lists by
    index.
    """
    ids = [name for plan in plans for name in plan.all_ids]
    if not config.indexed_references or len(ids) < 2:  # a list has two entries (errata N7)
        return []
    names = (plan.name for unit in plans for plan in unit.plans if plan.name in prepared.restored.pruned)
    return [*dict.fromkeys([*ids, *names])]


def _pruning(
    prepared: Prepared, plans: Sequence[UnitPlan], references: Sequence[str]
) -> NnrPruningTopologyContainer | None:
    """Return the pruning container, or None without content. Raises EncodeError for a mask that is too long (6.3.4.5).

    The dictionary has the coded dimensions of the tensors in :attr:`nnr_codec.model.Model.pruned`, which differ from
    the topology. A mask has a bit for each parameter of all tensors with two or more coded dimensions, in the order of
    their units (errata N1): 0 if the parameter is 0 and the unit codes the tensor's values.
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
    """Return the dimensions of tensors with removed indices, by id."""
    tensors, dims = prepared.restored.tensors, dict[str, tuple[int, ...]]()
    names = frozenset(prepared.restored.pruned)
    for unit in plans if names else ():
        if not unit.all_ids:
            continue  # listed with another tensor's unit
        if unit.name in names:
            record = unit.plans[0].record
            dims[unit.name] = (record.shape if record else None) or unit.dims
        others = (*unit.ids[1:], *[plan.name for plan in unit.implied])
        dims |= {name: np.shape(tensors[name]) for name in others if name in names}
    return dims


def _mask(prepared: Prepared, plans: Sequence[UnitPlan]) -> bitarray:
    """Return a flag for each parameter: True if it is not 0."""
    bits = bitarray(endian="big")
    for unit in plans:
        main = next(iter(unit.tensors.values()))
        if not unit.all_ids or len(unit.dims) < 2:
            continue
        model = prepared.model if unit.name in prepared.model.tensors else prepared.restored
        if unit.name not in model.tensors or main.code:
            bits.extend(bitarray("1") * prod(unit.dims))
            continue
        array = np.moveaxis(np.asarray(model.tensors[unit.name]), main.source.shift, 0)
        kept = array != 0
        if array.dtype.kind != "i":
            with np.errstate(invalid="ignore"):  # for signalling NaN
                kept |= np.signbit(array.astype(np.float64, copy=False))  # -0.0 is not 0
        packed = bitarray(endian="big")
        packed.frombytes(np.packbits(kept.reshape(-1)).tobytes())
        bits.extend(packed[: kept.size])
    return bits
