"""The units before the tensors: NNR_STR, NNR_MPS, NNR_TPL and NNR_QNT (ISO/IEC 15938-17:2024, 6.2.3, A.4, B.4).

Among them are the reference list, the pruning topology container (6.4.4.5, Table 19) and side information.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from bitarray import bitarray

from ..bitstream.attachments import write_attachment, write_file_name
from ..bitstream.topology_units import write_side_information, write_topology
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
    NNR_TPL_BMSK,
    NNR_TPL_DICT,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
    TOPOLOGY_FORMATS,
)
from ..errors import EncodeError, Option
from ..files import AttachmentNames
from ..limits import Budget
from ..model import Array, Model, Topology
from ..sideinfo.record import SideInfo
from ..syntax import Session
from ..syntax.structures import (
    BitMask,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrUnitHeader,
)
from .block_units import UnitPlan
from .facts import DEFAULT_LIMITS
from .prepared import Prepared, PruningInfo
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
        units.append(write_side_information(record, session, deflate=config.deflate_topology))
    units += _attachments(prepared.restored, config, session)
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
    elements = {**prepared.maps.elements("mps"), **(config.performance.elements() if config.performance else {})}
    own = links.elements if links else {}
    if "base_model_id" in elements and "base_model_id" in own:
        raise EncodeError(
            Option("performance"), " has a base_model_id, which the update sets itself (6.4.4.3); remove it"
        )
    start = NnrStartUnitHeader(general_profile_idc=config.profile)
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_STR, detail=start), None, session)
    parameters = NnrModelParameterSetUnitPayload(
        topology_carriage_flag=int(topology is not None),
        mps_quantization_method_flags=NNR_QSU | NNR_QCB * codebooks,
        mps_qp_density=layout.qp_density,
        mps_quantization_parameter=layout.parameters[()],
        mps_topology_indexed_reference_flag=int(bool(references)),
        **elements,
        **own,
    )
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), parameters, session)
    if topology:
        yield _topology(topology, config, session)
    elif apart in ANNOUNCED:
        yield write_topology(session, _storage_format(apart), topology_data=b"\0")
    if references:  # right after the topology (A.4)
        yield write_topology(session, NNR_TPL_REFLIST, topology_elem_id_list=list(references))
    if pruning:
        yield write_topology(session, NNR_TPL_PRUN, pruning=pruning)
    if topology and topology.quantization is not None:
        yield _quantization(topology.format, topology.quantization, config, session)


def _topology(topology: Topology, config: EncoderConfig, session: Session) -> bytes:
    if not topology.data.strip(b"\0"):
        raise EncodeError("a topology that is empty or zero means no topology (B.4); remove it")
    storage = _storage_format(topology.format)
    compression, data = _carried(topology.data, storage, "topology", config)
    return write_topology(session, storage, compression, topology_data=data)


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


def _attachments(model: Model, config: EncoderConfig, session: Session) -> Iterator[bytes]:
    """Yield the units of attachments. Raises EncodeError if they are not allowed or rejected by decoders."""
    if not model.attachments:
        return
    if not config.side_info:
        raise EncodeError(
            "the model has attachments, which are not part of the standard; remove them (nnr encode --no-attachments), "
            "or use ",
            Option("side_info", True),
        )
    budget, names = Budget(DEFAULT_LIMITS), AttachmentNames()
    if model.file_name:
        names.add(model.file_name)
        yield write_file_name(model.file_name, session)
    for name, data in model.attachments.items():
        names.add(name)
        budget.charge("max_attachments", 1, "attachments of the model")
        budget.charge("max_attachment_bytes", len(data), "bytes of the attachments")
        yield write_attachment(name, data, session)


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
    the topology. A mask has a bit for each parameter or output channel of all tensors with two or more coded
    dimensions, in the order of their units (errata N1): 0 if the parameters are 0 (sparse_mask) or removed
    (prune_mask), and the unit codes the tensor's values.
    """
    dims, info = _dimensions(prepared, plans), prepared.pruning or PruningInfo()
    if not (dims or info.sparse or info.zeroed):
        return None
    t = NnrPruningTopologyContainer(
        nnr_rep_type=NNR_TPL_DICT if dims else NNR_TPL_BMSK, order_flag=int(not info.by_column)
    )
    if dims:
        t.prune_flag, t.count_ids = 1, len(dims)
        t.count_dims, t.dim = [len(extents) for extents in dims.values()], [list(extents) for extents in dims.values()]
        if references:
            index = {name: k for k, name in enumerate(references)}
            t.element_id_index = [index[name] for name in dims]
        else:
            t.element_id = list(dims)
    if info.zeroed and (bits := _mask(prepared, plans, info, info.zeroed)):
        t.prune_flag, t.prune_mask = 1, BitMask(bit_mask_value=bits)
    if info.sparse and (bits := _mask(prepared, plans, replace(info, by_channel=False))):
        t.sparse_flag, t.sparse_mask = 1, BitMask(bit_mask_value=bits)
    return t if t.prune_flag or t.sparse_flag else None


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


def _mask(
    prepared: Prepared,
    plans: Sequence[UnitPlan],
    info: PruningInfo,
    remaining: Mapping[str, tuple[Array, ...]] | None = None,
) -> bitarray:
    """Return a flag for each parameter or channel: False if it is 0 and removed.

    ``remaining`` has masks of the remaining indices of each dimension, for tensors with removed indices. None treats
    all indices of all tensors as removed. Raises EncodeError for a mask that is too long (6.3.4.5).
    """
    bits = bitarray(endian="big")
    for name, dims, shift, array in _masked(prepared, plans):
        kept: npt.NDArray[np.bool_]
        if array is None or (remaining is not None and name not in remaining):
            kept = np.ones(dims, np.bool_)
        else:
            kept = np.moveaxis(_nonzero(array, remaining[name] if remaining else None), shift, 0)
        flags = [row.any() for row in kept] if info.by_channel else kept.ravel("F" if info.by_column else "C")
        packed = bitarray(endian="big")
        packed.frombytes(np.packbits(flags).tobytes())
        bits.extend(packed[: len(flags)])
        if len(bits) >> 32:
            raise EncodeError(f"a mask of {len(bits):,} bits or more is too long for count_bits (6.3.4.5)")
    return bits


def _nonzero(array: Array, remaining: tuple[Array, ...] | None) -> npt.NDArray[np.bool_]:
    """Return a flag for each parameter: False if it is 0 and not within the remaining indices."""
    kept: npt.NDArray[np.bool_] = np.asarray(array != 0)
    if array.dtype.kind != "i":
        with np.errstate(invalid="ignore"):  # for signalling NaN
            kept |= np.signbit(array.astype(np.float64, copy=False))  # -0.0 is not 0
    if remaining is not None:
        kept[np.ix_(*remaining)] = True
    return kept


def _masked(prepared: Prepared, plans: Sequence[UnitPlan]) -> Iterator[tuple[str, tuple[int, ...], int, Array | None]]:
    """Yield name, coded dimensions, dimension that is coded first, and values of the tensors of masks.

    The values are None if the unit contains other numbers, such as integers from which side information restores them.
    """
    for unit in plans:
        main = next(iter(unit.tensors.values()))
        if not unit.all_ids or len(unit.dims) < 2:
            continue
        if names := prepared.joined.get(unit.name):
            for name in names:
                joined = np.asarray(prepared.restored.tensors[name])
                yield name, joined.shape, 0, joined
            continue
        tensors = (prepared.model if unit.name in prepared.model.tensors else prepared.restored).tensors
        has_values = unit.name in tensors and not main.code
        array = np.asarray(tensors[unit.name]) if has_values else None
        yield unit.name, unit.dims, main.source.shift, array
