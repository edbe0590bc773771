"""Checks of NNEF in a bitstream: ISO/IEC 15938-17:2024, Annex A."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import cast

from ...bitstream.payload import parts
from ...constants import (
    NNR_DFL,
    NNR_NDU,
    NNR_QNT,
    NNR_QNT_NNEF,
    NNR_TPL,
    NNR_TPL_NNEF,
    NNR_TPL_REFLIST,
    TOPOLOGY_FORMATS,
)
from ...decoder.topology import TopologyInfo
from ...errors import FormatError, LimitError, NnrError
from ...model import Topology
from ...rules import Requirement
from ...syntax.structures import NnrQuantizationUnitHeader, NnrTopologyUnitHeader, NnrTopologyUnitPayload
from .registry import CheckedBitstream, Finding, SeenUnit, at_end


# ------------------------------------------------------------------------------------------------ texts
@at_end(Requirement.NNEF_STRING)
def string(checked: CheckedBitstream) -> Iterator[Finding]:
    return _not_utf8(checked, "topology")


@at_end(Requirement.NNEF_QUANTIZATION_STRING)
def quantization_string(checked: CheckedBitstream) -> Iterator[Finding]:
    return _not_utf8(checked, "quantization")


def _not_utf8(checked: CheckedBitstream, kind: str) -> Iterator[Finding]:
    text = checked.texts.get(kind, b"")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        yield _about(checked, kind, f"the {kind} text is not UTF-8 at byte {error.start}: {error.reason}")


def _about(checked: CheckedBitstream, kind: str, message: str) -> Finding:
    """Return a finding about a text; without a unit if the bitstream does not contain the text."""
    units = (
        checked.graphs if kind == "topology" else [s for s in checked.of(NNR_QNT) if _quantization(s) == NNR_QNT_NNEF]
    )
    return Finding(message, f"{kind}_data", units[-1]) if units else Finding(message)


@at_end(Requirement.NNEF_GRAPH)
def graph(checked: CheckedBitstream) -> Iterator[Finding]:
    return _invalid(checked, "topology", "graph.nnef")


@at_end(Requirement.NNEF_QUANTIZATION)
def quantization(checked: CheckedBitstream) -> Iterator[Finding]:
    return _invalid(checked, "quantization", "graph.quant")


def _invalid(checked: CheckedBitstream, kind: str, file: str) -> Iterator[Finding]:
    """Yield the violations of NNEF, chapter 6, in a readable text."""
    if checked.validity and not any(_not_utf8(checked, kind)):
        for found in checked.validity.violations:
            if found.file == file:
                yield _about(checked, kind, str(found))


@at_end(Requirement.NNEF_TOPOLOGY_FORMAT)
def topology_format(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen in checked.of(NNR_TPL):
        value = _topology(seen).topology_storage_format
        if value in TOPOLOGY_FORMATS and value != NNR_TPL_NNEF and _is_graph(_text(checked, seen, "topology")):
            message = f"topology_storage_format is {value}, and topology_data is an NNEF graph"
            yield Finding(message, "nnr_topology_unit_header.topology_storage_format", seen)


@at_end(Requirement.NNEF_QUANTIZATION_FORMAT)
def quantization_format(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen in checked.of(NNR_QNT):
        value = _quantization(seen)
        is_other = checked.variables and value in TOPOLOGY_FORMATS and value != NNR_QNT_NNEF
        if is_other and _is_quantization(_text(checked, seen, "quantization")):
            message = f"quantization_storage_format is {value}, and quantization_data is a graph.quant"
            yield Finding(message, "nnr_quantization_unit_header.quantization_storage_format", seen)


def _topology(seen: SeenUnit) -> NnrTopologyUnitHeader:
    return cast(NnrTopologyUnitHeader, seen.unit.header.detail)


def _quantization(seen: SeenUnit) -> int:
    return cast(NnrQuantizationUnitHeader, seen.unit.header.detail).quantization_storage_format


def _text(checked: CheckedBitstream, seen: SeenUnit, kind: str) -> bytes:
    """Return the data of a unit of another format, without trailing zeros; empty if it is unreadable."""
    data: bytes = getattr(seen.unit.structure, f"{kind}_data")
    if seen.refused:
        return b""
    if getattr(seen.unit.header.detail, f"{kind}_compression_format") == NNR_DFL:
        try:
            data = zlib.decompressobj().decompress(data, checked.limits.max_topology_bytes)
        except zlib.error:  # the format is unknown
            return b""
    return data.rstrip(b"\0")


def _is_graph(text: bytes) -> bool:
    from ...formats.nnef import wiring

    try:
        return bool(wiring(Topology("nnef", text)).shapes)
    except (FormatError, LimitError):
        return False


def _is_quantization(text: bytes) -> bool:
    from ...formats.nnef.quant import read_quantization

    try:
        return bool(read_quantization(text).entries)
    except (FormatError, LimitError):
        return False


# ------------------------------------------------------------------------------------------------ order
@at_end(Requirement.NNEF_TOPOLOGY_FIRST)
def topology_first(checked: CheckedBitstream) -> Iterator[Finding]:
    if checked.graphs:
        yield from checked.late(NNR_TPL)


@at_end(Requirement.NNEF_QUANTIZATION_FIRST)
def quantization_first(checked: CheckedBitstream) -> Iterator[Finding]:
    yield from (found for found in checked.late(NNR_QNT) if found.seen and _quantization(found.seen) == NNR_QNT_NNEF)


@at_end(Requirement.NNEF_LIST_CONSECUTIVE)
def consecutive(checked: CheckedBitstream) -> Iterator[Finding]:
    before = None
    for seen in checked.of(NNR_TPL):
        value = _topology(seen).topology_storage_format
        if value == NNR_TPL_REFLIST and before != NNR_TPL_NNEF and checked.graphs:
            message = "the topology unit before this reference list is not the unit of the NNEF topology"
            yield Finding(message, "nnr_topology_unit_header.topology_storage_format", seen)
        before = before if value > NNR_TPL_REFLIST else value  # decoders skip the other units


# ------------------------------------------------------------------------------------------------ names
@at_end(Requirement.NNEF_REFERENCE_LIST)
def reference_list(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen in checked.of(NNR_TPL):
        for j, name in enumerate(cast(NnrTopologyUnitPayload, seen.unit.structure).topology_elem_id_list):
            if checked.is_stranger(name):
                yield Finding(f"{name!r} is not a variable of the topology", f"topology_elem_id_list[{j}]", seen)


@at_end(Requirement.NNEF_NAMES)
def names(checked: CheckedBitstream) -> Iterator[Finding]:
    reported: set[str] = set()
    for seen in checked.of(NNR_NDU):
        for name in seen.names:
            if name not in reported and name not in _helpers(seen) and checked.is_stranger(name):
                reported.add(name)
                yield Finding(f"{name!r} is not a variable of the topology", "", seen)


@at_end(Requirement.NNEF_SHAPES)
def shapes(checked: CheckedBitstream) -> Iterator[Finding]:
    if not checked.graphs or checked.wiring is None:
        return
    info = TopologyInfo(checked.wiring)
    units = {checked.owners.get(name, name): seen for seen in checked.of(NNR_NDU) for name in seen.names}
    for name, shape in checked.shapes.items():
        declared = info.shape(name)
        if declared is not None and [n for n in declared if n != 1] != [n for n in shape if n != 1]:
            yield Finding(f"{name!r} has the shape {shape}, {info.declaration(name)}", "", units.get(name))


def _helpers(seen: SeenUnit) -> list[str]:
    """Return the names of H and of local scaling, which are not variables of the model (errata N5)."""
    try:
        return [part.name for part in parts(seen.unit.ndu, seen.session) if part.role in ("h", "ls")]
    except NnrError:  # the unit was already rejected
        return list(seen.names)
