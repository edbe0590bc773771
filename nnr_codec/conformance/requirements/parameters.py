"""Checks of parameter sets, topology and quantization units: ISO/IEC 15938-17:2024, 6.4.3.5, 6.4.3.6, 6.4.4.3 to
6.4.4.5."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import cast

from ...bitstream.attachments import Attachment, attachment_data, content
from ...constants import (
    NNR_DFL,
    NNR_LPS,
    NNR_MPS,
    NNR_QNT,
    NNR_QNT_TEF,
    NNR_TPL,
    NNR_TPL_DICT,
    NNR_TPL_NNEF,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
    TOPOLOGY_FORMATS,
)
from ...errors import ElementError, LimitError, UnsupportedError
from ...limits import Budget
from ...rules import Requirement
from ...syntax.structures import (
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrQuantizationUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)
from .registry import CheckedBitstream, Finding, SeenUnit, at_end, each_unit


# ------------------------------------------------------------------------------------------------ formats
@each_unit(Requirement.TOPOLOGY_FORMAT, NNR_TPL)
def topology_format(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    value = _topology(seen).topology_storage_format
    if NNR_TPL_REFLIST < value < 128:
        yield Finding(
            f"topology_storage_format {value} is reserved", "nnr_topology_unit_header.topology_storage_format"
        )


@each_unit(Requirement.QUANTIZATION_FORMAT, NNR_QNT)
def quantization_format(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    value = cast(NnrQuantizationUnitHeader, seen.unit.header.detail).quantization_storage_format
    if NNR_QNT_TEF < value < 128:
        element = "nnr_quantization_unit_header.quantization_storage_format"
        yield Finding(f"quantization_storage_format {value} is reserved", element)


@each_unit(Requirement.COMPRESSION_FORMAT, NNR_TPL, NNR_QNT)
def compression_format(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    kind = "topology" if seen.unit.header.nnr_unit_type == NNR_TPL else "quantization"
    value = getattr(seen.unit.header.detail, f"{kind}_compression_format")
    if value > NNR_DFL:
        element = f"nnr_{kind}_unit_header.{kind}_compression_format"
        yield Finding(f"{kind}_compression_format {value} is reserved", element)


@each_unit(Requirement.DEFLATE, NNR_TPL, NNR_QNT)
def deflate(checked: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    """Check deflated data of known formats, even if decoders ignore it, such as a single zero."""
    kind = "topology" if seen.unit.header.nnr_unit_type == NNR_TPL else "quantization"
    is_deflated = getattr(seen.unit.header.detail, f"{kind}_compression_format") == NNR_DFL
    if not is_deflated or not TOPOLOGY_FORMATS.get(getattr(seen.unit.header.detail, f"{kind}_storage_format")):
        return
    inflater = zlib.decompressobj()
    try:
        inflater.decompress(getattr(seen.unit.structure, f"{kind}_data"), checked.limits.max_topology_bytes)
    except zlib.error as error:
        yield Finding(f"deflated data is damaged: {error}", f"{kind}_data")
        return
    if not inflater.unconsumed_tail and (not inflater.eof or inflater.unused_data):
        yield Finding("deflated data does not end with its unit", f"{kind}_data")


@at_end(Requirement.ATTACHMENT)
def attachments(checked: CheckedBitstream) -> Iterator[Finding]:
    """Check the bytes of files within the limits; decoders read them on access."""
    budget = Budget(checked.limits)
    for seen in checked.of(NNR_TPL):
        if seen.refused or (data := attachment_data(seen.unit)) is None:
            continue
        try:
            budget.charge("max_attachment_bytes", Attachment.parse(data).size, "bytes of the attachments")
            content(data)
        except ElementError as error:
            yield Finding(error.message, seen=seen)
        except (LimitError, UnsupportedError):  # reported by the decoder, or a coding of later versions
            continue


def _topology(seen: SeenUnit) -> NnrTopologyUnitHeader:
    return cast(NnrTopologyUnitHeader, seen.unit.header.detail)


# ------------------------------------------------------------------------------------------------ parameter sets
@each_unit(Requirement.QUANTIZATION_METHODS, NNR_MPS, NNR_LPS)
def quantization_methods(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    element = f"{'mps' if seen.unit.header.nnr_unit_type == NNR_MPS else 'lps'}_quantization_method_flags"
    flags = getattr(seen.unit.structure, element)
    if flags & 4:
        yield Finding(f"{element} is {flags}; 4 is reserved", element)


@each_unit(Requirement.BASE_MODEL_ID, NNR_MPS)
def base_model_id(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    mps = cast(NnrModelParameterSetUnitPayload, seen.unit.structure)
    if mps.nnr_pre_flag and not mps.base_model_id_present_flag:
        yield Finding("nnr_pre_flag is 1, but base_model_id_present_flag is 0", "base_model_id_present_flag")


@each_unit(Requirement.MAP_COUNTS, NNR_MPS, NNR_LPS)
def map_counts(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    for part, count in (
        ("sparsification", "spm_count_thresholds"),
        ("pruning", "ppm_count_pruning_ratios"),
        ("unification", "upm_count_thresholds"),
        ("decomposition", "dpm_count_thresholds"),
    ):
        if (
            seen.unit.structure
            and part in seen.unit.structure
            and not getattr(getattr(seen.unit.structure, part), count)
        ):
            yield Finding(f"{count} is 0", f"{part}.{count}")


_NO_TOPOLOGY = (NNR_TPL_PRUN, NNR_TPL_REFLIST)


@at_end(Requirement.TOPOLOGY_CARRIAGE)
def topology_carriage(checked: CheckedBitstream) -> Iterator[Finding]:
    found = [seen for seen in checked.of(NNR_TPL) if _topology(seen).topology_storage_format not in _NO_TOPOLOGY]
    # A zero means that the topology is stored separately (B.4), but other encoders write it with flag 1; unspecified
    # formats from 128 may contain a topology.
    may_be = bool(found)
    carried = any(
        _topology(seen).topology_storage_format < 128 and _payload(seen).topology_data.strip(b"\0") for seen in found
    )
    for seen in checked.of(NNR_MPS):
        flag = cast(NnrModelParameterSetUnitPayload, seen.unit.structure).topology_carriage_flag
        if not carried <= flag <= may_be:
            units = "there are" if carried else "there are no"
            message = f"topology_carriage_flag is {flag}, but {units} NNR_TPL units with a topology"
            yield Finding(message, "topology_carriage_flag", seen)


@at_end(Requirement.TOPOLOGY_DATA)
def topology_data(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen in checked.of(NNR_TPL):
        is_nnef = _topology(seen).topology_storage_format == NNR_TPL_NNEF
        by_name = not seen.session.mps_topology_indexed_reference_flag
        if is_nnef and by_name and not _payload(seen).topology_data.rstrip(b"\0"):
            yield Finding("topology_data is empty", "topology_data", seen)


def _payload(seen: SeenUnit) -> NnrTopologyUnitPayload:
    return cast(NnrTopologyUnitPayload, seen.unit.structure)


# ------------------------------------------------------------------------------------------------ pruning
@each_unit(Requirement.REPRESENTATION_TYPE, NNR_TPL)
def representation_type(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if "pruning" in _payload(seen) and _payload(seen).pruning.nnr_rep_type > NNR_TPL_DICT:
        yield Finding(f"nnr_rep_type {_payload(seen).pruning.nnr_rep_type} is reserved", "pruning.nnr_rep_type")


@each_unit(Requirement.PRUNE_COUNTS, NNR_TPL)
def prune_counts(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if "pruning" not in _payload(seen):
        return
    pruning = _payload(seen).pruning
    zeros = [f"{mask}.count_bits" for mask in ("prune_mask", "sparse_mask") if _bits(pruning, mask) == 0]
    zeros += ["count_ids"] if "count_ids" in pruning and not pruning.count_ids else []
    zeros += [f"count_dims[{j}]" for j, count in enumerate(pruning.count_dims) if not count]
    zeros += [f"dim[{j}][{k}]" for j, dims in enumerate(pruning.dim) for k, extent in enumerate(dims) if not extent]
    yield from (Finding(f"{element} is 0", f"pruning.{element}") for element in zeros)


def _bits(pruning: NnrPruningTopologyContainer, mask: str) -> int | None:
    return getattr(pruning, mask).count_bits if mask in pruning else None
