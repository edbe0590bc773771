"""Writing of aggregate units, and extraction of self-contained parts (ISO/IEC 15938-17:2024, 6.2.2, 6.3.3.8,
6.4.3.8)."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ..constants import NNR_AGG, NNR_AGG_GEN, NNR_AGG_SLF, NNR_LPS, NNR_MPS, NNR_NDU, NNR_STR
from ..errors import BitstreamError, MissingReferenceError, UnsupportedError, WriteError
from ..limits import Limits
from ..sideinfo.record import SideInfo
from ..syntax import BitReader, Reader, Session
from ..syntax.structures import (
    NnrAggregateUnitHeader,
    NnrLayerParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    NnrUnitSize,
)
from .summary import side_information
from .topology_units import read_side_information, write_side_information
from .units import Unit, UnitReader, aggregate_header, write_unit

if TYPE_CHECKING:
    from .source import Bitstream


def write_aggregate(
    units: Sequence[bytes],
    *,
    nnr_aggregate_unit_type: int = NNR_AGG_GEN,
    entry_points: bool = False,
    quant_bitdepth: Sequence[int] = (),
    ctu_scan_order: Sequence[int] = (),
    session: Session | None = None,
) -> bytes:
    """Write an NNR_AGG unit around units, which may be aggregates.

    Parameters
    ----------
    units : sequence of bytes
        At least two complete units (errata N7).
    nnr_aggregate_unit_type : int
        Value of Table 10.
    entry_points : bool
        List the type of each unit, and its offset in bytes from the start of the aggregate (errata I17).
    quant_bitdepth : sequence of int
        One value in 0..31 for each unit; all 0 if empty.
    ctu_scan_order : sequence of int
        0 or 1 for each unit, if the session has unified weights; all 0 if empty.
    session : Session
        Parsing state before the aggregate and before its first unit. It is not changed.

    Raises
    ------
    WriteError
        The syntax cannot represent the aggregate, or ``units`` are not complete units.
    """
    session = session or Session()
    unified = bool(session.mps_unification_flag or session.lps_unification_flag)
    if ctu_scan_order and not unified:
        raise WriteError("ctu_scan_order requires a parameter set with unified weights (6.3.3.8)")
    zeros = [0] * len(units)
    detail = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=nnr_aggregate_unit_type,
        entry_points_present_flag=int(entry_points),
        num_of_nnr_units_minus2=len(units) - 2,
        quant_bitdepth=list(quant_bitdepth) or zeros,
    )
    if unified:
        detail.ctu_scan_order, detail.nnr_reserved_zero_2bits = list(ctu_scan_order) or zeros, zeros
    else:
        detail.nnr_reserved_zero_3bits = zeros
    inside = [(_type(unit, k), unit) for k, unit in enumerate(units)]
    header = aggregate_header(NnrUnitHeader(nnr_unit_type=NNR_AGG, detail=detail), inside, session, False)
    return write_unit(header, b"".join(units), session)


def _type(unit: bytes, number: int) -> int:
    """Return the nnr_unit_type of a complete unit."""
    try:
        reader = Reader(Session(), BitReader(unit))
        size = reader.read(NnrUnitSize).nnr_unit_size
        kind = reader.io.u(6)
    except BitstreamError as error:
        raise WriteError(f"member {number} of the aggregate is not a unit: {error}") from None
    if size != len(unit):
        raise WriteError(f"member {number} of the aggregate has {len(unit)} bytes, but nnr_unit_size is {size} (6.3.2)")
    return kind


def extract(
    data: Bitstream,
    index: int,
    *,
    generic: bool = False,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """Extract a self-contained aggregate or layer parameter set as a bitstream.

    The result starts with the NNR_STR and the NNR_MPS, whose topology_carriage_flag is 0. The layer parameter set that
    applies to the aggregate and the side information of its tensors follow, if there are any. Then comes the aggregate
    unchanged, or the layer parameter set with the units in its scope, without enclosing aggregates.

    Parameters
    ----------
    data : bytes-like, path or binary file
        A complete bitstream.
    index : int
        Number of the unit, as counted by :func:`nnr_codec.units`: an aggregate of type NNR_AGG_SLF, nested or not, or a
        layer parameter set with lps_self_contained_flag 1.
    generic : bool
        Also extract units that are not declared self-contained, if they refer to nothing outside.
    limits : Limits, optional
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units omit them.

    Raises
    ------
    MissingReferenceError
        The unit does not exist, or the extracted part refers to a reference list or dimensions outside it.
    UnsupportedError
        The unit is not self-contained: another type, no flag, or parts of a tensor are outside it. Or the side
        information has an unknown version.
    BitstreamError
        The bitstream is malformed.
    """
    limits, dimensions = limits or Limits(), topology_dimensions or {}
    reader = UnitReader(data, limits, Session(dimensions))
    units, parts = iter(reader), _Parts()
    head: dict[int, Unit] = {}
    record = SideInfo()
    for unit in units:
        kind = unit.header.nnr_unit_type
        if unit.index == index:
            break
        if kind == NNR_STR:
            head, record = {}, SideInfo()
        if side_information(unit):
            payload = cast(NnrTopologyUnitPayload, unit.structure)
            header = cast(NnrTopologyUnitHeader, unit.header.detail)
            record = read_side_information(header, payload.topology_data, reader.budget)
        if kind in (NNR_STR, NNR_MPS, NNR_LPS):
            head[kind] = unit
        parts.see(unit)
    else:
        raise MissingReferenceError(f"the bitstream has no unit {index}")
    _check_kind(unit, generic)
    if parts.are_missing(reader.session):
        raise UnsupportedError(f"{unit.label()} is in the middle of a tensor")
    if NNR_LPS in head and (kind == NNR_LPS or reader.session.lps is not head[NNR_LPS].structure):
        del head[NNR_LPS]
    chosen = [*head.values(), unit, *(_scope(unit, reader, units) if kind == NNR_LPS else ())]
    extracted = [_without_topology(one, reader.session) for one in chosen]
    ids = _check_alone(unit, UnitReader(b"".join(extracted), limits, Session(dimensions)))
    if record := _record(record, ids):
        extracted.insert(len(head), write_side_information(record, reader.session.snapshot()))
    return b"".join(extracted)


def _without_topology(unit: Unit, session: Session) -> bytes | memoryview:
    """Return the bytes of a unit; topology_carriage_flag of a model parameter set becomes 0."""
    if not isinstance(unit.structure, NnrModelParameterSetUnitPayload) or not unit.structure.topology_carriage_flag:
        return unit.data
    mps = copy.copy(unit.structure)
    mps.topology_carriage_flag = 0
    return write_unit(unit.header, mps, session.snapshot())


def _record(record: SideInfo, ids: Collection[str]) -> SideInfo:
    """Return the side information of the tensors that these units contain, and of the tensors tied to them."""
    own = {name: {one.unit or name, *one.units} for name, one in record.tensors.items() if one.index is None}
    names = {name for name, units in own.items() if units.issubset(ids)} | {*ids}.difference(own)
    tied = {name for name, one in record.tensors.items() if one.same_as in names}
    return SideInfo({name: one for name, one in record.tensors.items() if name in names | tied})


def _check_kind(unit: Unit, generic: bool) -> None:
    """Raise UnsupportedError for a unit that is not declared self-contained."""
    detail = unit.header.detail if "detail" in unit.header else None
    if isinstance(detail, NnrAggregateUnitHeader):
        alone = detail.nnr_aggregate_unit_type == NNR_AGG_SLF
    elif isinstance(detail, NnrLayerParameterSetUnitHeader):
        alone = bool(detail.lps_self_contained_flag)
    else:
        raise UnsupportedError(
            f"{unit.label()} is neither an aggregate nor a layer parameter set, so it cannot be extracted"
        )
    if not alone and not generic:
        raise UnsupportedError(
            f"{unit.label()} is not marked as self-contained (NNR_AGG_SLF, lps_self_contained_flag; 6.4.3.4, 6.4.3.8)"
        )


def _scope(lps: Unit, reader: UnitReader, units: Iterator[Unit]) -> Iterator[Unit]:
    """Yield the units in the scope of a layer parameter set, without enclosing aggregates."""
    for unit in units:
        if reader.session.lps is not lps.structure or unit.header.nnr_unit_type in (NNR_STR, NNR_LPS):
            return
        if unit.header.nnr_unit_type != NNR_AGG:
            yield unit


def _check_alone(unit: Unit, reader: UnitReader) -> set[str]:
    """Return the ids in ``unit``, as extracted and read by ``reader``. Raise an error if it needs anything outside."""
    parts, ids = _Parts(), set[str]()
    try:
        for inner in reader:
            parts.see(inner)
            if inner.header.nnr_unit_type == NNR_NDU:
                ids.update(reader.session.names(inner.ndu))
    except MissingReferenceError as error:
        raise MissingReferenceError(f"{unit.label()} is not self-contained: {error}", rule=error.rule) from None
    if parts.are_missing(reader.session):
        raise UnsupportedError(f"{unit.label()} is not self-contained: it ends in the middle of a tensor")
    return ids


class _Parts:
    """Tracker of tensors that are split into several units."""

    counter = 0

    def see(self, unit: Unit) -> None:
        """Take the next unit."""
        if unit.header.nnr_unit_type == NNR_NDU:
            self.counter = unit.header.part

    def are_missing(self, session: Session) -> bool:
        """Return whether parts of a tensor are missing; ``session`` is the state after the units."""
        return self.counter > 1 or session.g_header is not None
