"""Checks of unit order, aggregates, parts of tensors, reserved bits (ISO/IEC 15938-17:2024, 6.1 to 6.4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from ...bitstream.unit_index import has_index, read_index
from ...bitstream.units import UnitReader
from ...constants import NNR_AGG, NNR_AGG_SLF, NNR_LPS, NNR_MPS, NNR_NDU, NNR_QNT, NNR_QNT_NNEF, NNR_STR, NNR_TPL
from ...decoder.decode import BitstreamParser
from ...decoder.group import Group
from ...decoder.state import UpdateState
from ...errors import LimitError, MissingReferenceError, NnrError
from ...limits import Budget
from ...rules import Requirement
from ...syntax import Session, Structure
from ...syntax.structures import NnrAggregateUnitHeader, NnrLayerParameterSetUnitHeader, NnrQuantizationUnitHeader
from .registry import CheckedBitstream, Finding, SeenUnit, at_end, each_unit


@each_unit(Requirement.RESERVED_ZERO)
def reserved_zero(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    yield from _reserved(seen.unit.header, "")
    if seen.unit.structure:
        yield from _reserved(seen.unit.structure, "")


def _reserved(structure: Structure, path: str) -> Iterator[Finding]:
    for name, value in structure.present().items():
        if isinstance(value, Structure):
            yield from _reserved(value, f"{path}{value.table_name if name == 'detail' else name}.")
        elif "reserved_zero" in name:
            for j, bits in enumerate(value if isinstance(value, list) else [value]):
                if bits:
                    index = f"[{j}]" if isinstance(value, list) else ""
                    yield Finding(f"{name} is {bits}", f"{path}{name}{index}")


@each_unit(Requirement.UNIT_SIZE, NNR_STR)
def start_payload(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    rest = seen.unit.size.nnr_unit_size - seen.unit.payload_offset
    if rest:
        yield Finding(f"{rest} bytes follow the header of an NNR_STR, whose payload is empty", "nnr_unit_size")


@each_unit(Requirement.UNIT_TYPE)
def unit_type(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    if NNR_AGG < seen.unit.header.nnr_unit_type < 32:
        yield Finding(f"nnr_unit_type {seen.unit.header.nnr_unit_type} is reserved", "nnr_unit_type")


@each_unit(Requirement.PARTIAL_FLAGS)
def partial_flags(_: CheckedBitstream, seen: SeenUnit) -> Iterator[Finding]:
    header = seen.unit.header
    if not header.independently_decodable_flag and not header.partial_data_counter:
        yield Finding("the unit is not independently decodable, and is not a part", "independently_decodable_flag")


@at_end(Requirement.PARTIAL_FLAG_EQUAL)
def partial_flag_equal(checked: CheckedBitstream) -> Iterator[Finding]:
    flags: dict[str, int] = {}
    for seen in checked.of(NNR_NDU):
        flag = seen.unit.header.independently_decodable_flag
        for name in seen.names:
            if flags.setdefault(name, flag) != flag:
                message = f"independently_decodable_flag is {flag}, and {1 - flag} in another unit of {name!r}"
                yield Finding(message, "independently_decodable_flag", seen)


@at_end(Requirement.TOPOLOGY_FIRST)
def topology_first(checked: CheckedBitstream) -> Iterator[Finding]:
    for found in checked.late(NNR_TPL):
        # No tensor refers to a later list; with NNEF, all topology units come first (A.4).
        is_list = found.seen and "topology_elem_id_list" in cast(Structure, found.seen.unit.structure)
        if not is_list and not checked.graphs:
            yield found


@at_end(Requirement.INDEX)
def index(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen in filter(lambda seen: has_index(seen.unit), checked.of(NNR_TPL)):
        try:
            index = read_index(seen.unit, checked.limits)
        except NnrError:  # reported by the parser
            continue
        end = index.start
        for other in checked.seen.values():
            unit = other.unit
            if unit.offset < index.start:
                continue
            size, is_tensor = unit.size.nnr_unit_size, unit.header.nnr_unit_type in (NNR_NDU, NNR_AGG)
            end = max(end, unit.offset + size)
            copy = index.copy_at(unit.offset)
            is_long = len(copy) == unit.payload_offset or (not is_tensor and len(copy) == size)
            if not is_long or unit.data[: len(copy)] != copy:
                yield Finding(
                    "the index has another header for this unit" if copy else "the index has no entry", "", other
                )
                break
        else:
            if checked.complete and index.stop != end:
                yield Finding(f"the index ends at byte {index.stop:,}, but the last unit at {end:,}")


@at_end(Requirement.QUANTIZATION_FIRST)
def quantization_first(checked: CheckedBitstream) -> Iterator[Finding]:
    for found in checked.late(NNR_QNT):
        header = cast(NnrQuantizationUnitHeader, cast(SeenUnit, found.seen).unit.header.detail)
        if header.quantization_storage_format != NNR_QNT_NNEF:  # NNEF has its own requirement (A.4)
            yield found


# ------------------------------------------------------------------------------------------------ aggregates
def _aggregates(checked: CheckedBitstream) -> Iterator[tuple[SeenUnit, NnrAggregateUnitHeader]]:
    return ((seen, cast(NnrAggregateUnitHeader, seen.unit.header.detail)) for seen in checked.of(NNR_AGG))


@at_end(Requirement.AGGREGATE_TYPE)
def aggregate_type(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen, header in _aggregates(checked):
        if NNR_AGG_SLF < header.nnr_aggregate_unit_type < 128:
            message = f"nnr_aggregate_unit_type {header.nnr_aggregate_unit_type} is reserved"
            yield Finding(message, _element("nnr_aggregate_unit_type"), seen)


@at_end(Requirement.AGGREGATE_COUNT)
def aggregate_count(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen, header in _aggregates(checked):
        declared = header.num_of_nnr_units_minus2 + 2
        if declared != len(seen.members) and not seen.refused:
            message = f"the header declares {declared} units, but the aggregate contains {len(seen.members)}"
            yield Finding(message, _element("num_of_nnr_units_minus2"), seen)


@at_end(Requirement.AGGREGATE_UNIT_TYPE)
def aggregate_unit_type(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen, header in _aggregates(checked):
        for j, (listed, member) in enumerate(zip(header.nnr_unit_type, seen.members, strict=False)):
            if listed != member.nnr_unit_type:
                message = f"the header lists type {listed}, but the unit has type {member.nnr_unit_type}"
                yield Finding(message, _element(f"nnr_unit_type[{j}]"), seen)


@at_end(Requirement.AGGREGATE_ENTRY_POINT)
def aggregate_entry_point(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen, header in _aggregates(checked):
        for j, (listed, member) in enumerate(zip(header.nnr_unit_entry_point, seen.members, strict=False)):
            start = member.offset - seen.unit.offset
            if listed != start:
                message = f"the header lists byte {listed}, but the unit begins at byte {start} of the aggregate"
                yield Finding(message, _element(f"nnr_unit_entry_point[{j}]"), seen)


@at_end(Requirement.QUANT_BITDEPTH)
def quant_bitdepth(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen, header in _aggregates(checked):
        for j, (depth, member) in enumerate(zip(header.quant_bitdepth, seen.members, strict=False)):
            bits = min(member.seen.level_bits or 0, 31) if member.seen else 0  # 31 is the largest value of u(5)
            if 0 < depth < bits:  # 0 means that no depth is given
                message = f"the header declares {depth} bits, but the levels need {bits}"
                yield Finding(message, _element(f"quant_bitdepth[{j}]"), seen)


def _element(name: str) -> str:
    return f"nnr_aggregate_unit_header.{name}"


# ------------------------------------------------------------------------------------------------ self-containment
@at_end(Requirement.AGGREGATE_SELF_CONTAINED)
def aggregate_self_contained(checked: CheckedBitstream) -> Iterator[Finding]:
    for seen, header in _aggregates(checked):
        if header.nnr_aggregate_unit_type == NNR_AGG_SLF and not _is_refused(seen):
            session = Session()
            for before in checked.of(NNR_STR, NNR_MPS):
                session.activate(before.unit.header, before.unit.structure)
            yield from _alone(checked, seen, session, [seen])


def _is_refused(seen: SeenUnit | None) -> bool:
    return not seen or seen.refused or any(_is_refused(member.seen) for member in seen.members)


@at_end(Requirement.LPS_SELF_CONTAINED)
def lps_self_contained(checked: CheckedBitstream) -> Iterator[Finding]:
    scopes: dict[int, list[SeenUnit]] = {}
    for seen in checked.of(NNR_TPL, NNR_NDU):
        scopes.setdefault(id(seen.session.lps), []).append(seen)
    for seen in checked.of(NNR_LPS):
        flag = cast(NnrLayerParameterSetUnitHeader, seen.unit.header.detail).lps_self_contained_flag
        own = scopes.get(id(seen.unit.structure), [])
        if flag and own and not any(unit.refused for unit in own) and not own[0].session.g_header:  # H without its G
            yield from _alone(checked, seen, replace(own[0].session, topology_dimensions={}), own)


def _alone(checked: CheckedBitstream, subject: SeenUnit, session: Session, units: list[SeenUnit]) -> Iterator[Finding]:
    """Decode units with the given ``session``, without earlier bitstreams."""
    limits = checked.limits
    groups: list[Group] = []
    parser = BitstreamParser(UnitReader(b"", limits, session))
    parser.started = True
    try:
        for seen in units:
            reader = UnitReader(seen.unit.data, limits, session)
            reader.index = seen.unit.index
            for unit in reader:
                groups += parser.take(unit)
        parser.finish()
        state, budget = UpdateState(), Budget(limits)
        for group in groups:
            for task in group.tasks:
                quantization = checked.seen[task.unit.index].session.quantization
                if task.is_scaled and task.session.quantization != quantization:
                    raise MissingReferenceError(
                        f"the step size of {task.names[0]!r} depends on an NNR_LPS outside the unit", clause="6.2.3"
                    )
            group.decode(state=state, budget=budget, first_edition=checked.first_edition)
    except LimitError:
        raise
    except NnrError as error:
        yield Finding(f"the unit cannot be decoded on its own: {error}", "", subject)
