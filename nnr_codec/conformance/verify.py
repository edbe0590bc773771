"""Verification of a file: everything readable is checked and decoded, even if other parts are faulty.

The checks are in :mod:`nnr_codec.conformance.requirements`; this module iterates over the units of a file. Clause
numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..bitstream.source import open_source
from ..bitstream.units import Unit, UnitReader, unit_type_name
from ..constants import NNR_AGG, NNR_STR
from ..decoder.state import UpdateState
from ..errors import LimitError, NnrError
from ..limits import Budget, Limits
from ..model import Topology
from ..rules import Requirement
from ..syntax import BitReader, Reader, Session
from ..syntax.structures import NnrUnitSize
from ..urls import is_url
from .report import Report, ReportBuilder
from .requirements import AggregateMember, Finding, History, SeenUnit
from .verifier import BitstreamVerifier

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream


def verify(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inputs: Iterable[Bitstream] = (),
    topology: Topology | None = None,
) -> Report:
    """Check a bitstream against every requirement and report all violations.

    For a unit that cannot be read or decoded, the report has the first obstacle and the findings of checks of its
    header. Mere consequences of another violation become notes.

    Parameters
    ----------
    data : bytes-like, path or binary file
    limits : Limits, optional
        Exceeding them counts as a violation. With ``allow_trailing``, a further bitstream is not a violation, and is
        checked too.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units omit them.
    inputs : iterable of bytes-like, path or binary file
        Bitstreams that the bitstream updates, in order.
    topology : Topology, optional
        Replaces the topology of the bitstream.

    Returns
    -------
    Report

    Raises
    ------
    OSError
        A file cannot be read.
    """
    history, notes = History(UpdateState(keep_digests=True, trusting=True)), []
    for number, earlier in enumerate(inputs, 1):
        verifier = _Verifier(limits or Limits(), topology_dimensions or {}, history, topology)
        before, history = verifier.run(earlier), verifier.history
        if before.violations:
            notes.append(f"earlier bitstream {number} has violations, beginning with {before.violations[0]}")
    report = _Verifier(limits or Limits(), topology_dimensions or {}, history, topology).run(data)
    report.notes[:0] = notes
    return report


class _Verifier:
    """Verifier of a file with one or several bitstreams."""

    def __init__(
        self,
        limits: Limits,
        topology_dimensions: Mapping[str, Sequence[int]],
        history: History,
        topology: Topology | None,
    ) -> None:
        self.limits, self.history, self.topology = limits, history, topology
        self.session = Session(topology_dimensions, general_profile_idc=1)  # until an NNR_STR sets it
        self.budget = Budget(limits)
        self.findings = ReportBuilder(limits)
        self.open: list[tuple[SeenUnit, int]] = []  # enclosing aggregates and their ends
        self.guessed = False  # whether the previous unit had no size, so that this position is a guess
        self.bitstream = self.begin()

    def begin(self) -> BitstreamVerifier:
        """Start a bitstream."""
        return BitstreamVerifier(self.findings, self.limits, self.session, self.history, self.topology)

    def run(self, data: Bitstream) -> Report:
        """Check all units, and the bitstreams that they form."""
        source, report = open_source(data, self.limits), self.findings.report
        if is_url(data):  # whose size is only the word of a server
            self.limits.check("max_total_bytes", source.size, "bytes of the file")
        view, position = source.view(0, source.size), 0
        while position < len(view):
            position = self.unit(view, position)
            while self.open and position >= self.open[-1][1]:
                self.open.pop()
                if self.session.lps_depth > len(self.open):
                    self.session.end_aggregate()
        self.history = self.bitstream.end()
        for listed in (report.violations, report.warnings):
            listed.sort(key=lambda found: report.units if found.unit is None else found.unit)
        return report

    def unit(self, view: memoryview, position: int) -> int:
        """Check the unit at ``position``; return the position of the next one."""
        end = self.open[-1][1] if self.open else len(view)
        data, index = view[position:end], self.findings.report.units
        self.findings.report.units += 1
        size, kind = unit_size(data), unit_type(data)
        guessed, self.guessed = self.guessed, not size
        unit, seen = None, None
        label = f"unit {index}" + (f" ({unit_type_name(kind)})" if kind >= 0 else "")
        try:
            self.limits.check("max_units", self.findings.report.units, "units of the bitstream")
        except LimitError as error:
            self.findings.refuse(error, index, label)
            return self.cut(len(view))
        if guessed and not size:
            self.findings.report.units -= 1
            return self.cut(end)
        try:
            if not self.bitstream.skip(kind):
                reader = UnitReader(data, self.limits, self.session)
                reader.index, reader.budget = index, self.budget
                unit = reader.next()
        except NnrError as error:
            self.findings.refuse(error, index, label)
            self.bitstream.lose(kind)
        if unit:
            unit.offset, unit.depth = position, len(self.open)
            if unit.header.nnr_unit_type == NNR_STR and self.bitstream.started and not self.open:
                self.next_bitstream(unit)
            seen = self.bitstream.take(unit)
        if self.open:
            self.open[-1][0].members.append(AggregateMember(position, kind, seen))
        if not size:
            return self.cut(end)
        if seen and kind == NNR_AGG and self.enter(seen, position + size):
            return position + seen.unit.payload_offset
        return position + size

    def cut(self, end: int) -> int:
        """Close aggregates whose further units cannot be found."""
        for seen, close in self.open:
            seen.refused |= close <= end
        return end

    def enter(self, seen: SeenUnit, end: int) -> bool:
        """Enter an aggregate, unless the nesting is too deep."""
        try:
            self.limits.check("max_agg_depth", len(self.open) + 1, "depth of aggregates")
        except LimitError as error:
            self.findings.refuse(error, seen.unit.index, seen.unit.label(), seen)
            return False
        self.open.append((seen, end))
        return True

    def next_bitstream(self, unit: Unit) -> None:
        """Handle a start unit after the first one (errata N3)."""
        self.history = self.bitstream.end()
        self.bitstream = self.begin()
        if self.limits.allow_trailing:
            self.findings.report.notes.append(f"{unit.label()} begins another bitstream")
        else:
            finding = Finding("another bitstream begins", "nnr_unit_type")
            self.findings.add(Requirement.ONE_BITSTREAM, iter([finding]), SeenUnit(unit, self.session))


def unit_size(data: memoryview) -> int:
    """Return nnr_unit_size if the data is long enough for it, else 0."""
    if len(data) < 5 and (len(data) < 3 or data[0] >> 7):
        return 0
    size = Reader(Session(), BitReader(data[:4])).read(NnrUnitSize)
    return size.nnr_unit_size if 3 + 2 * size.nnr_unit_size_flag <= size.nnr_unit_size <= len(data) else 0


def unit_type(data: memoryview) -> int:
    """Return nnr_unit_type of the unit at the start of ``data``, or -1 if the data is too short."""
    header = 4 if len(data) and data[0] >> 7 else 2
    return data[header] >> 2 if len(data) > header else -1
