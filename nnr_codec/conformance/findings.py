"""Findings of checks and refusals of the decoder, gathered into a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..bitstream.units import UnitReader
from ..errors import BitstreamError, NnrError
from ..limits import Limits
from ..syntax import Descriptor
from .requirements import Finding, Requirement, Seen, refused
from .violation import Report, Violation


class Findings:
    """Fills a report."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.report = Report()
        self.told: set[tuple[str, int | None]] = set()  # rules and units
        self.bits: tuple[Seen | None, dict[str, int]] = (None, {})  # of the elements of one unit

    def add(self, rule: Requirement, findings: Iterator[Finding], seen: Seen | None) -> None:
        """Add what a check of a rule found."""
        for finding in findings:
            about = finding.seen or seen
            bit = self.bit(about, finding.element) if about and finding.element else -1
            index, label = (about.unit.index, about.unit.label(list(about.names))) if about else (None, "")
            found = Violation(rule.id, rule.clause, finding.message, index, label, finding.element, bit)
            self.tell(rule, found)

    def refuse(self, error: NnrError, index: int | None, label: str, seen: Seen | None = None) -> None:
        """Add what the decoder refuses, unless a check has said it of the unit already."""
        rule, message, element, bit = refused(error), str(error), "", -1
        if isinstance(error, BitstreamError):
            message, element, bit = error.message, error.path, error.bit
            named = re.match(r"unit (\d+)", error.unit)
            if named and int(named[1]) != index:
                index, label = int(named[1]), error.unit
        if seen:
            seen.refused = True
            bit = self.bit(seen, element) if element and bit < 0 else bit
        if (rule.id, index) not in self.told:
            message = re.sub(r"^(unit \d+ \(\w+( .+?)?\): )+", "", message).removesuffix(f" ({rule.clause})")
            self.tell(rule, Violation(rule.id, rule.clause, message, index, label, element, bit))

    def tell(self, rule: Requirement, found: Violation) -> None:
        """Put a violation where it belongs."""
        self.told.add((rule.id, found.unit))
        (self.report.violations if rule.severity == "shall" else self.report.warnings).append(found)

    def bit(self, seen: Seen, element: str) -> int:
        """Where an element of a unit begins."""
        if self.bits[0] is not seen:
            bits: dict[str, int] = {}

            def note(path: str, descriptor: Descriptor, bit: int, size: int, value: object) -> None:
                bits.setdefault(path, bit)

            UnitReader(seen.unit.data, self.limits, replace(seen.session), note).next()
            self.bits = seen, bits
        return self.bits[1].get(element, self.bits[1].get(f"{element}[0]", -1))
