"""Summary of each unit of a bitstream, from headers only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, cast

from ..constants import (
    NNR_AGG,
    NNR_CPT_BI,
    NNR_CPT_BN,
    NNR_CPT_DC,
    NNR_CPT_LS,
    NNR_DFL,
    NNR_LPS,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_PRUN,
    TopologyStorageFormat,
)
from ..errors import ElementError, TruncatedError
from ..limits import Limits
from ..rules import Requirement
from ..sideinfo.record import MAGIC, STORAGE_FORMAT
from ..syntax import Session
from ..syntax.structures import (
    NnrAggregateUnitHeader,
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)
from .attachments import Attachment, attachment_data
from .units import Unit, UnitReader

if TYPE_CHECKING:
    from .source import Bitstream


@dataclass(frozen=True)
class UnitInfo:
    """Summary of one unit.

    Parameters
    ----------
    index, offset, size, depth : int
        Number, offset in bytes, size in bytes, and number of enclosing aggregates.
    type : str
        Identifier of Table 3.
    names : tuple of str
        Topology element ids of a compressed data unit.
    shape : tuple of int
        tensor_dimensions.
    detail : str
        Coding tools, or contents of the parameter set or header.
    partial_data_counter : int
        Number of remaining parts; 0 for a complete tensor.
    """

    index: int
    offset: int
    size: int
    depth: int
    type: str
    names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    detail: str = ""
    partial_data_counter: int = 0

    @property
    def bits_per_parameter(self) -> float | None:
        """Bits of the unit per parameter of its shape; None for units without a tensor, and for parts of a tensor."""
        parameters = prod(self.shape)
        whole = self.shape and parameters and not self.partial_data_counter
        return 8 * self.size / parameters if whole else None


def summarise(data: Bitstream, limits: Limits | None = None, session: Session | None = None) -> Iterator[UnitInfo]:
    """Yield the summary of each unit in order; raise BitstreamError if the bitstream is malformed."""
    reader = UnitReader(data, limits, session)
    if not reader.source.size:
        raise TruncatedError("the bitstream is empty", rule=Requirement.START_UNIT)
    for unit in reader:
        names: tuple[str, ...] = ()
        shape: tuple[int, ...] = ()
        if unit.header.nnr_unit_type == NNR_NDU:
            names = tuple(reader.session.names(unit.ndu))
            shape = tuple(reader.session.tensor_dimensions(unit.ndu))
        detail = ", ".join(_detail(unit))
        yield UnitInfo(
            unit.index,
            unit.offset,
            unit.size.nnr_unit_size,
            unit.depth,
            unit.type_name,
            names,
            shape,
            detail,
            unit.header.part,
        )


def tools(header: NnrCompressedDataUnitHeader) -> tuple[str, ...]:
    """Return the coding tools in the header of a compressed data unit."""
    return _tools(
        header.nnr_compressed_data_unit_payload_type,
        header.compressed_parameter_types,
        header.codebook_present_flag,
        header.dq_flag,
        header.scan_order,
        header.parent_node_id_present_flag,
        header.temporal_context_modeling_flag,
        bool(header.nnr_multiple_topology_elements_present_flag and header.split_index),
    )


@lru_cache  # most units of a bitstream use the same tools
def _tools(
    kind: int, types: int, codebook: int, dq: int, scan: int, update: int, temporal: int, split: bool
) -> tuple[str, ...]:
    return tuple(
        tool
        for tool, present in (
            ("int", kind == NNR_PT_INT),
            ("raw", kind == NNR_PT_RAW_FLOAT),
            ("decomposed", types & NNR_CPT_DC),
            ("ls", types & NNR_CPT_LS),
            ("bn", types & NNR_CPT_BN),
            ("bias", types & NNR_CPT_BI),
            ("codebook", codebook),
            ("dq", dq),
            (f"scan {scan}", scan),
            ("update", update),
            ("temporal", temporal),
            ("split", split),
        )
        if present
    )


def _detail(unit: Unit) -> Iterator[str]:
    kind, header, payload = unit.header.nnr_unit_type, unit.header, unit.structure
    if header.part:
        yield f"part {header.part}"
    if kind == NNR_NDU:
        yield from tools(unit.ndu)
        if unit.ndu.parent_node_id_present_flag and "put_node_depth" in unit.ndu:
            device_id = unit.ndu.device_id if "device_id" in unit.ndu else unit.ndu.parent_device_id
            yield f"device {device_id}, depth {unit.ndu.put_node_depth}"
    elif kind == NNR_STR:
        yield f"profile {cast(NnrStartUnitHeader, header.detail).general_profile_idc}"
    elif kind == NNR_MPS:
        mps = cast(NnrModelParameterSetUnitPayload, payload)
        if "mps_qp_density" in mps:
            yield f"qp density {mps.mps_qp_density}"
            yield f"qp base {mps.mps_quantization_parameter}"
        yield from (
            name
            for name, flag in (("updates", mps.mps_parent_signalling_enabled_flag), ("pre", mps.nnr_pre_flag))
            if flag
        )
        if "base_model_id" in mps:
            yield f"base {mps.base_model_id}"
        yield from _maps(mps)
    elif kind == NNR_LPS:
        lps = cast(NnrLayerParameterSetUnitPayload, payload)
        if "lps_qp_density" in lps:
            yield f"qp density {lps.lps_qp_density}"
            yield f"qp base {lps.lps_quantization_parameter}"
        yield from _maps(lps)
    elif kind == NNR_TPL:
        yield from _storage(unit)
    elif kind == NNR_QNT:
        yield f"{unit.size.nnr_unit_size} bytes"
    elif kind == NNR_AGG:
        yield f"{cast(NnrAggregateUnitHeader, header.detail).num_of_nnr_units_minus2 + 2} units"


def _maps(payload: NnrModelParameterSetUnitPayload | NnrLayerParameterSetUnitPayload) -> Iterator[str]:
    """Yield the kinds of reduction that were applied, with the number of points of their maps (6.4.4.3)."""
    counts = {
        "sparsification": "spm_count_thresholds",
        "pruning": "ppm_count_pruning_ratios",
        "unification": "upm_count_thresholds",
        "decomposition": "dpm_count_thresholds",
    }
    for kind, count in counts.items():
        if kind in payload:
            rows = max(getattr(getattr(payload, kind), count) - 1, 0)  # errata I16
            yield f"{kind} map of {rows}" if rows else kind


def _storage(unit: Unit) -> Iterator[str]:
    header = cast(NnrTopologyUnitHeader, unit.header.detail)
    storage = header.topology_storage_format
    if side_information(unit):
        yield "side information"
    elif (data := attachment_data(unit)) is not None:
        with suppress(ElementError):
            yield f"attachment {Attachment.parse(data).name!r}"
    else:
        known = storage in TopologyStorageFormat.__members__.values()
        yield TopologyStorageFormat(storage).name if known else f"format {storage}"
    if header.topology_compression_format:
        yield "deflated"
    pruning = cast(NnrTopologyUnitPayload, unit.structure).pruning if storage == NNR_TPL_PRUN else None
    if pruning:
        if pruning.prune_flag and "count_ids" in pruning:
            yield f"new shapes of {pruning.count_ids}"
        for mask in ("prune_mask", "sparse_mask"):
            if mask in pruning:
                bits = getattr(pruning, mask).bit_mask_value
                by_column = "" if pruning.order_flag else " by column"
                yield f"{mask} of {len(bits)}{by_column} with {bits.count(0)} zeros"


def side_information(unit: Unit, most: int = len(MAGIC)) -> bytes | None:
    """Return the first bytes of a unit's inflated side information; None if it has none."""
    if unit.header.nnr_unit_type != NNR_TPL:
        return None
    header, payload = cast(NnrTopologyUnitHeader, unit.header.detail), cast(NnrTopologyUnitPayload, unit.structure)
    if header.topology_storage_format != STORAGE_FORMAT or header.topology_compression_format > NNR_DFL:
        return None
    data = payload.topology_data
    if header.topology_compression_format == NNR_DFL:
        try:
            data = zlib.decompressobj().decompress(data, most)
        except zlib.error:
            return None
    return data[:most].removesuffix(b"\0") if data.startswith(MAGIC) else None
