"""Everything that is wrong with a bitstream: what can be read is checked and decoded, whatever is wrong with the rest.

The rules are in :mod:`nnr_codec.conformance.requirements`; here the units of a file are walked. Clause numbers refer to
ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..bitstream.source import open_source
from ..bitstream.units import Unit, unit_type_name
from ..constants import NNR_AGG, NNR_STR
from ..decoder.state import UpdateState
from ..errors import LimitError, NnrError
from ..limits import Budget, Limits
from ..model import Topology
from ..syntax import Session
from .findings import Findings
from .one import BitstreamVerifier
from .requirements import REQUIREMENTS, Finding, History, Member, Seen
from .violation import Report
from .walk import OneUnit, unit_size, unit_type

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream


def verify(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inputs: Iterable[Bitstream] = (),
    labels: Callable[[Topology], Iterable[str]] | None = None,
) -> Report:
    """Check a bitstream against every requirement.

    Parameters
    ----------
    data : bytes-like, path or binary file
    limits : Limits, optional
        To go beyond them counts as a violation. Another bitstream after the first one is no violation with
        ``allow_trailing``, and is checked as well.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units leave them out.
    inputs : iterable of bytes-like, path or binary file
        The bitstreams that it updates, in order.
    labels : callable, optional
        Gives the labels of the variables of an NNEF topology; raises FormatError when it is none.

    Returns
    -------
    Report

    Raises
    ------
    OSError
        A file cannot be read.
    """
    history, notes = History(UpdateState()), []
    for number, earlier in enumerate(inputs, 1):
        verifier = _Verifier(limits or Limits(), topology_dimensions or {}, history, None)
        before, history = verifier.run(earlier), verifier.history
        if before.violations:
            notes.append(f"earlier bitstream {number} has violations, beginning with {before.violations[0]}")
    report = _Verifier(limits or Limits(), topology_dimensions or {}, history, labels).run(data)
    report.notes[:0] = notes
    return report


class _Verifier:
    """Walks the units of a file, which are those of one bitstream or of several."""

    def __init__(
        self,
        limits: Limits,
        topology_dimensions: Mapping[str, Sequence[int]],
        history: History,
        labels: Callable[[Topology], Iterable[str]] | None,
    ) -> None:
        self.limits, self.history, self.labels = limits, history, labels
        self.session = Session(topology_dimensions)
        self.budget = Budget(limits)
        self.findings = Findings(limits)
        self.open: list[tuple[Seen, int]] = []  # aggregates, and where each ends
        self.bitstream = self.begin()

    def begin(self) -> BitstreamVerifier:
        """A bitstream begins."""
        return BitstreamVerifier(self.findings, self.limits, self.session, self.history, self.labels)

    def run(self, data: Bitstream) -> Report:
        """Check all units, and the bitstreams that they form."""
        source, report = open_source(data, self.limits), self.findings.report
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
        """Check the unit at ``position``; returns where to go on."""
        end = self.open[-1][1] if self.open else len(view)
        data, index = view[position:end], self.findings.report.units
        self.findings.report.units += 1
        size, kind = unit_size(data), unit_type(data)
        unit, seen = None, None
        label = f"unit {index}" + (f" ({unit_type_name(kind)})" if kind >= 0 else "")
        try:
            self.limits.check("max_units", self.findings.report.units, "units of the bitstream")
        except LimitError as error:
            self.findings.refuse(error, index, label)
            return len(view)
        try:
            reader = OneUnit(data, index, self.limits, self.session)
            reader.budget = self.budget
            unit = reader.next()
        except NnrError as error:
            self.findings.refuse(error, index, label)
        if unit:
            unit.offset, unit.depth = position, len(self.open)
            if unit.header.nnr_unit_type == NNR_STR and self.bitstream.started:
                self.next_bitstream(unit)
            seen = self.bitstream.take(unit)
        if self.open:
            self.open[-1][0].members.append(Member(position, kind, seen))
        if not size:
            return end
        if seen and kind == NNR_AGG and self.enter(seen, position + size):
            return position + seen.unit.payload_offset
        return position + size

    def enter(self, seen: Seen, end: int) -> bool:
        """Go into an aggregate, unless that is too deep."""
        try:
            self.limits.check("max_agg_depth", len(self.open) + 1, f"{seen.unit.label()}: depth of aggregates")
        except LimitError as error:
            self.findings.refuse(error, seen.unit.index, seen.unit.label(), seen)
            return False
        self.open.append((seen, end))
        return True

    def next_bitstream(self, unit: Unit) -> None:
        """A start unit after the first one (errata N3)."""
        self.history = self.bitstream.end()
        self.bitstream = self.begin()
        message = f"{unit.label()} begins another bitstream"
        if self.limits.allow_trailing:
            self.findings.report.notes.append(message)
        else:
            self.findings.add(REQUIREMENTS["one-bitstream"], iter([Finding(message)]), Seen(unit, self.session))
