"""Result of verification, built from findings of checks and errors of the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..bitstream.units import UnitReader
from ..constants import NNR_LPS, NNR_MPS, NNR_NDU, NNR_STR, NNR_TPL
from ..errors import BitstreamError, NnrError, UnitLabel
from ..limits import Limits
from ..rules import Requirement
from ..syntax import Descriptor
from .digest import TensorDigest
from .requirements import Finding, SeenUnit


@dataclass(frozen=True)
class Violation:
    """Violated requirement.

    Parameters
    ----------
    requirement, clause : str
        Id of the requirement, and its clause of ISO/IEC 15938-17:2024 (empty for limits).
    message : str
        Description of the violation.
    unit : int or None
        Number of the unit; None for the whole bitstream.
    label : str
        Label of the unit, as ``unit 17 (NNR_NDU 'conv1')``.
    element : str
        Path of the syntax element in the unit; empty if there is no single element.
    bit : int
        Bit position relative to the start of the unit; -1 if unknown.
    """

    requirement: str
    clause: str
    message: str
    unit: int | None = None
    label: str = ""
    element: str = ""
    bit: int = -1

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.label, f"bit {self.bit}" if self.bit >= 0 else "", self.element)))
        rule = ", ".join(filter(None, (self.requirement, self.clause)))
        return f"{place or 'bitstream'}: {self.message} ({rule})"


@dataclass
class Report:
    """Result of verification.

    Parameters
    ----------
    violations : list of Violation
        Violations by unit, then violations of the whole bitstream; empty if no violation was detected.
    warnings : list of Violation
        Deviations from statements or recommendations that are not requirements.
    notes : list of str
        Ignored units, the reading of the bitstream, and consequences of violations.
    units : int
        Number of units found.
    tensors : list of TensorDigest
        Digests of decoded tensors, in bitstream order.
    """

    violations: list[Violation] = field(default_factory=list)
    warnings: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    units: int = 0
    tensors: list[TensorDigest] = field(default_factory=list)


#: Requirements that may only seem violated if a unit of a type could not be read or was rejected.
FOLLOWS: dict[int, set[str]] = {
    NNR_STR: {"start-unit"},
    NNR_MPS: {"single-mps"},
    NNR_LPS: {"quantization-parameters"},
    NNR_TPL: {"reference-index", "dimensions-known"},
    NNR_NDU: {"decomposition-pair", "partial-sequence"},
}


class ReportBuilder:
    """Builder of a report.

    Attributes
    ----------
    lost : set of int
        Types of units that could not be read or were rejected; see :data:`FOLLOWS`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.report = Report()
        self.lost: set[int] = set()
        self._reported: set[tuple[str, int | str]] = set()  # requirements with unit or message
        self._bits: tuple[SeenUnit | None, dict[str, int]] = (None, {})  # bit positions of the elements of one unit

    def add(self, rule: Requirement, findings: Iterator[Finding], seen: SeenUnit | None) -> None:
        """Add the findings of a check."""
        for finding in findings:
            about = finding.seen or seen
            bit = self._bit(about, finding.element) if about and finding.element else -1
            index, label = (about.unit.index, about.unit.label(list(about.names))) if about else (None, "")
            self._tell(rule, Violation(rule.id, rule.clause, finding.message, index, label, finding.element, bit))

    def refuse(
        self, error: NnrError, index: int | None, label: str, seen: SeenUnit | None = None, *, extension: bool = False
    ) -> None:
        """Add an error of the decoder, unless a check already reported it for the unit.

        ``extension`` is true if only side information prevents decoding.
        """
        rule = error.rule or Requirement.DECODABLE
        if extension and rule.severity != "limit":
            rule = Requirement.SIDE_INFORMATION
        element, bit = (error.path, error.bit) if isinstance(error, BitstreamError) else ("", -1)
        if isinstance(error.unit, UnitLabel) and error.unit.number != index:
            index, label = error.unit.number, error.unit
        if seen:
            seen.refused = True
            bit = self._bit(seen, element) if element and bit < 0 else bit
        message = error.text("" if error.clause == rule.clause else error.clause)
        if (rule.id, message if index is None else index) in self._reported:
            return
        found = Violation(rule.id, rule.clause, message, index, label, element, bit)
        if any(rule.id in FOLLOWS.get(kind, ()) for kind in self.lost):
            self.report.notes.append(f"because of an earlier violation, {found}")
        else:
            self._tell(rule, found)

    def _tell(self, rule: Requirement, found: Violation) -> None:
        self._reported.add((rule.id, found.message if found.unit is None else found.unit))
        (self.report.warnings if rule.severity == "should" else self.report.violations).append(found)

    def _bit(self, seen: SeenUnit, element: str) -> int:
        """Return the first bit of an element of a unit."""
        if self._bits[0] is not seen:
            bits: dict[str, int] = {}

            def note(path: str, descriptor: Descriptor, bit: int, size: int, value: object) -> None:
                bits.setdefault(path, bit)

            UnitReader(seen.unit.data, self.limits, replace(seen.session), note).next()
            self._bits = seen, bits
        return self._bits[1].get(element, self._bits[1].get(f"{element}[0]", -1))
