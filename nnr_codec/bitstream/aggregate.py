"""Aggregate units: writing them, and extracting what stands alone (ISO/IEC 15938-17:2024, 6.2.2, 6.3.3.8, 6.4.3.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..constants import NNR_AGG, NNR_AGG_GEN, NNR_AGG_SLF, NNR_LPS, NNR_MPS, NNR_NDU, NNR_STR
from ..errors import BitstreamError, MissingReferenceError, UnsupportedError, WriteError
from ..limits import Limits
from ..syntax import BitReader, Reader, Session
from ..syntax.structures import (
    NnrAggregateUnitHeader,
    NnrLayerParameterSetUnitHeader,
    NnrUnitHeader,
    NnrUnitSize,
)
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
    """One NNR_AGG around units, aggregates among them.

    Parameters
    ----------
    units : sequence of bytes
        At least two whole units (errata N7).
    nnr_aggregate_unit_type : int
        Table 10.
    entry_points : bool
        List the type of each unit, and its offset from the first byte of the aggregate (errata I17).
    quant_bitdepth : sequence of int
        One of 0..31 for each unit; all 0 when empty.
    ctu_scan_order : sequence of int
        0 or 1 for each unit, where the session has weights unified; all 0 when empty.
    session : Session
        What the aggregate sees, which is what its first unit saw. It is not changed.

    Raises
    ------
    WriteError
        The syntax cannot express it, or ``units`` are not whole units.
    """
    session = session or Session()
    unified = bool(session.mps_unification_flag or session.lps_unification_flag)
    if ctu_scan_order and not unified:
        raise WriteError("ctu_scan_order is there only where a parameter set has weights unified (6.3.3.8)")
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
    """nnr_unit_type of a whole unit."""
    try:
        reader = Reader(Session(), BitReader(unit))
        size = reader.read(NnrUnitSize).nnr_unit_size
        kind = reader.io.u(6)
    except BitstreamError as error:
        raise WriteError(f"number {number} of the aggregate is no unit: {error}") from None
    if size != len(unit):
        raise WriteError(f"number {number} of the aggregate has {len(unit)} bytes, its nnr_unit_size is {size} (6.3.2)")
    return kind


def extract(
    data: Bitstream,
    index: int,
    *,
    generic: bool = False,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """A bitstream of its own of an aggregate or layer parameter set that says that it stands alone.

    It has the NNR_STR and NNR_MPS; the layer parameter set in whose scope the aggregate is, if any; and then the
    aggregate as it is, or the layer parameter set with the units in its scope, without the aggregates around them.

    Parameters
    ----------
    data : bytes-like, path or binary file
        A whole bitstream.
    index : int
        Number of the unit, as :func:`nnr_codec.units` counts: an aggregate of type NNR_AGG_SLF, within others or not,
        or a layer parameter set with lps_self_contained_flag 1.
    generic : bool
        Also take others, as long as they refer to nothing outside.
    limits : Limits, optional
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units leave them out.

    Raises
    ------
    MissingReferenceError
        There is no such unit; or what is extracted refers to a reference list or dimensions outside.
    UnsupportedError
        The unit does not stand alone: another type, no flag, or the parts of a tensor are not all inside.
    BitstreamError
        The bitstream is malformed.
    """
    limits, dimensions = limits or Limits(), topology_dimensions or {}
    reader = UnitReader(data, limits, Session(dimensions))
    units, parts = iter(reader), _Parts()
    head: dict[int, Unit] = {}
    for unit in units:
        kind = unit.header.nnr_unit_type
        if unit.index == index:
            break
        if kind == NNR_STR:
            head = {}
        if kind in (NNR_STR, NNR_MPS, NNR_LPS):
            head[kind] = unit
        parts.see(unit)
    else:
        raise MissingReferenceError(f"the bitstream has no unit {index}")
    _check_kind(unit, generic)
    if parts.are_missing(reader.session):
        raise UnsupportedError(f"{unit.label()} stands in the middle of a tensor")
    if NNR_LPS in head and (kind == NNR_LPS or reader.session.lps is not head[NNR_LPS].structure):
        del head[NNR_LPS]
    chosen = [*head.values(), unit, *(_scope(unit, reader, units) if kind == NNR_LPS else ())]
    extracted = b"".join(one.data for one in chosen)
    _check_alone(unit, UnitReader(extracted, limits, Session(dimensions)))
    return extracted


def _check_kind(unit: Unit, generic: bool) -> None:
    """Raise UnsupportedError for a unit that does not say that it stands alone."""
    detail = unit.header.detail if "detail" in unit.header else None
    if isinstance(detail, NnrAggregateUnitHeader):
        alone = detail.nnr_aggregate_unit_type == NNR_AGG_SLF
    elif isinstance(detail, NnrLayerParameterSetUnitHeader):
        alone = bool(detail.lps_self_contained_flag)
    else:
        raise UnsupportedError(f"{unit.label()} is no aggregate or layer parameter set, and cannot be extracted")
    if not alone and not generic:
        raise UnsupportedError(
            f"{unit.label()} does not say that it stands alone (NNR_AGG_SLF, lps_self_contained_flag; 6.4.3.4, 6.4.3.8)"
        )


def _scope(lps: Unit, reader: UnitReader, units: Iterator[Unit]) -> Iterator[Unit]:
    """The units after a layer parameter set that see it, without the aggregates around them."""
    for unit in units:
        if reader.session.lps is not lps.structure or unit.header.nnr_unit_type in (NNR_STR, NNR_LPS):
            return
        if unit.header.nnr_unit_type != NNR_AGG:
            yield unit


def _check_alone(unit: Unit, reader: UnitReader) -> None:
    """Raise an error when ``unit``, as extracted and read by ``reader``, needs anything else."""
    parts = _Parts()
    try:
        for inner in reader:
            parts.see(inner)
            if inner.header.nnr_unit_type == NNR_NDU:
                reader.session.names(inner.ndu)
    except MissingReferenceError as error:
        raise MissingReferenceError(f"{unit.label()} does not stand alone: {error}", rule=error.rule) from None
    if parts.are_missing(reader.session):
        raise UnsupportedError(f"{unit.label()} does not stand alone: it ends in the middle of a tensor")


class _Parts:
    """Whether the units so far end inside a tensor that has several."""

    counter = 0

    def see(self, unit: Unit) -> None:
        """The next unit."""
        if unit.header.nnr_unit_type == NNR_NDU:
            self.counter = unit.header.part

    def are_missing(self, session: Session) -> bool:
        """``session`` is that after the units."""
        return self.counter > 1 or session.g_header is not None
