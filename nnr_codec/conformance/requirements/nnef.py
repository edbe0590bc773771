"""NNEF in a bitstream: ISO/IEC 15938-17:2024, Annex A."""

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
from ...syntax.structures import NnrQuantizationUnitHeader, NnrTopologyUnitHeader, NnrTopologyUnitPayload
from .registry import Checked, Finding, Seen, at_end, requirement

QUANTIZATION_STRING = requirement(
    "nnef-quantization-string",
    "A.4",
    "NNEF quantization information is one null-terminated string of UTF-8.",
    "quantization data is not one null-terminated string",
)
STRING = requirement(
    "nnef-string",
    "A.4",
    "An NNEF topology is one null-terminated string of UTF-8.",
    "data is not one null-terminated string",
)
GRAPH = requirement("nnef-graph", "A.1", "An NNEF topology follows NNEF 1.0.3.")
QUANTIZATION = requirement("nnef-quantization", "A.1", "NNEF quantization information follows NNEF 1.0.3.")
TOPOLOGY_FORMAT = requirement(
    "nnef-topology-format", "A.4", "The topology_storage_format of an NNEF topology is NNR_TPL_NNEF."
)
QUANTIZATION_FORMAT = requirement(
    "nnef-quantization-format",
    "A.4",
    "The quantization_storage_format of NNEF quantization information is NNR_QNT_NNEF.",
)
CONSECUTIVE = requirement(
    "nnef-list-consecutive",
    "A.4",
    "A reference list stands in the topology unit that follows that of the NNEF topology.",
    severity="should",
)
REFERENCE_LIST = requirement(
    "nnef-reference-list", "A.4", "A reference list names variables of the NNEF topology in the bitstream."
)
TOPOLOGY_FIRST = requirement(
    "nnef-topology-first", "A.4", "With an NNEF topology in the bitstream, all NNR_TPL come before all NNR_NDU."
)
QUANTIZATION_FIRST = requirement(
    "nnef-quantization-first", "A.4", "An NNR_QNT with NNEF quantization information comes before all NNR_NDU."
)
NAMES = requirement("nnef-names", "A.4", "Tensors are named by the variables of the NNEF topology.")
SHAPES = requirement(
    "nnef-shapes",
    "A.1",
    "A tensor has the shape that the NNEF topology in the bitstream declares for its variable, extents of 1 aside.",
)


# ------------------------------------------------------------------------------------------------ texts
@at_end(STRING)
def string(checked: Checked) -> Iterator[Finding]:
    return _not_utf8(checked, "topology")


@at_end(QUANTIZATION_STRING)
def quantization_string(checked: Checked) -> Iterator[Finding]:
    return _not_utf8(checked, "quantization")


def _not_utf8(checked: Checked, kind: str) -> Iterator[Finding]:
    text = checked.texts.get(kind, b"")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        yield _about(checked, kind, f"the {kind} text is not UTF-8 at byte {error.start}: {error.reason}")


def _about(checked: Checked, kind: str, message: str) -> Finding:
    """Something about a text; without a unit when the bitstream does not carry it."""
    units = (
        checked.graphs if kind == "topology" else [s for s in checked.of(NNR_QNT) if _quantization(s) == NNR_QNT_NNEF]
    )
    return Finding(message, f"{kind}_data", units[-1]) if units else Finding(message)


@at_end(GRAPH)
def graph(checked: Checked) -> Iterator[Finding]:
    return _invalid(checked, "topology", "graph.nnef")


@at_end(QUANTIZATION)
def quantization(checked: Checked) -> Iterator[Finding]:
    return _invalid(checked, "quantization", "graph.quant")


def _invalid(checked: Checked, kind: str, file: str) -> Iterator[Finding]:
    """What chapter 6 of NNEF refuses in a text that can be read."""
    if checked.validity and not any(_not_utf8(checked, kind)):
        for found in checked.validity.violations:
            if found.file == file:
                yield _about(checked, kind, str(found))


@at_end(TOPOLOGY_FORMAT)
def topology_format(checked: Checked) -> Iterator[Finding]:
    for seen in checked.of(NNR_TPL):
        value = _topology(seen).topology_storage_format
        if value in TOPOLOGY_FORMATS and value != NNR_TPL_NNEF and _is_graph(_text(checked, seen, "topology")):
            message = f"topology_storage_format is {value}, and topology_data is an NNEF graph"
            yield Finding(message, "nnr_topology_unit_header.topology_storage_format", seen)


@at_end(QUANTIZATION_FORMAT)
def quantization_format(checked: Checked) -> Iterator[Finding]:
    for seen in checked.of(NNR_QNT):
        value = _quantization(seen)
        is_other = checked.variables and value in TOPOLOGY_FORMATS and value != NNR_QNT_NNEF
        if is_other and _is_quantization(_text(checked, seen, "quantization")):
            message = f"quantization_storage_format is {value}, and quantization_data is a graph.quant"
            yield Finding(message, "nnr_quantization_unit_header.quantization_storage_format", seen)


def _topology(seen: Seen) -> NnrTopologyUnitHeader:
    return cast(NnrTopologyUnitHeader, seen.unit.header.detail)


def _quantization(seen: Seen) -> int:
    return cast(NnrQuantizationUnitHeader, seen.unit.header.detail).quantization_storage_format


def _text(checked: Checked, seen: Seen, kind: str) -> bytes:
    """The data of a unit of another format, without zeros at its end; empty where it cannot be read."""
    data: bytes = getattr(seen.unit.structure, f"{kind}_data")
    if seen.refused:
        return b""
    if getattr(seen.unit.header.detail, f"{kind}_compression_format") == NNR_DFL:
        try:
            data = zlib.decompressobj().decompress(data, checked.limits.max_topology_bytes)
        except zlib.error:  # of a format that nobody knows
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
@at_end(TOPOLOGY_FIRST)
def topology_first(checked: Checked) -> Iterator[Finding]:
    if checked.graphs:
        yield from checked.late(NNR_TPL)


@at_end(QUANTIZATION_FIRST)
def quantization_first(checked: Checked) -> Iterator[Finding]:
    yield from (found for found in checked.late(NNR_QNT) if found.seen and _quantization(found.seen) == NNR_QNT_NNEF)


@at_end(CONSECUTIVE)
def consecutive(checked: Checked) -> Iterator[Finding]:
    before = None
    for seen in checked.of(NNR_TPL):
        value = _topology(seen).topology_storage_format
        if value == NNR_TPL_REFLIST and before != NNR_TPL_NNEF and checked.graphs:
            message = "the topology unit before this reference list is not that of the NNEF topology"
            yield Finding(message, "nnr_topology_unit_header.topology_storage_format", seen)
        before = before if value > NNR_TPL_REFLIST else value  # what decoders pass over stands between nothing


# ------------------------------------------------------------------------------------------------ names
@at_end(REFERENCE_LIST)
def reference_list(checked: Checked) -> Iterator[Finding]:
    for seen in checked.of(NNR_TPL):
        for j, name in enumerate(cast(NnrTopologyUnitPayload, seen.unit.structure).topology_elem_id_list):
            if checked.is_stranger(name):
                yield Finding(f"{name!r} is no variable of the topology", f"topology_elem_id_list[{j}]", seen)


@at_end(NAMES)
def names(checked: Checked) -> Iterator[Finding]:
    told: set[str] = set()
    for seen in checked.of(NNR_NDU):
        for name in seen.names:
            if name not in told and name not in _helpers(seen) and checked.is_stranger(name):
                told.add(name)
                yield Finding(f"{name!r} is no variable of the topology", "", seen)


@at_end(SHAPES)
def shapes(checked: Checked) -> Iterator[Finding]:
    if not checked.graphs or checked.wiring is None:
        return
    info = TopologyInfo(checked.wiring)
    units = {checked.owners.get(name, name): seen for seen in checked.of(NNR_NDU) for name in seen.names}
    for name, shape in checked.shapes.items():
        declared = info.shape(name)
        if declared is not None and [n for n in declared if n != 1] != [n for n in shape if n != 1]:
            yield Finding(f"{name!r} has the shape {shape}, declared as {declared}", "", units.get(name))


def _helpers(seen: Seen) -> list[str]:
    """The names of H and of local scaling, which are no variables of the model (errata N5)."""
    try:
        return [part.name for part in parts(seen.unit.ndu, seen.session) if part.role in ("h", "ls")]
    except NnrError:  # the unit was refused for it
        return list(seen.names)
