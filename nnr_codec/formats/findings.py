"""Rules of model formats, and reports of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

#: Maximum number of reported findings per rule; a text can have one every few bytes.
MOST = 100

# Maximum characters of a message, because it may contain names as long as the text.
_LONGEST = 400

Severity = Literal["violation", "warning", "note"]


class ModelRule(NamedTuple):
    """Rule: id, clause or operation of the specification, severity of a violation, and text."""

    id: str
    clause: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class ModelFinding:
    """Finding of a model check: a rule, and where and how the model violates it or cannot be checked.

    Parameters
    ----------
    rule, clause : str
        Id of the rule, and its clause of the specification.
    message : str
        Description of the violation.
    file : str
        File in the model.
    line, column : int
        Position in a text, from 1; 0 if there is no single position.
    specification : str
        ``NNEF`` (1.0.3), ``NNEF 2 draft`` or ``OpenVINO``.
    """

    rule: str
    clause: str
    message: str
    file: str
    line: int = 0
    column: int = 0
    specification: str = "NNEF"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.message} ({self.rule}, {self.specification} {self.clause})"


@dataclass
class ModelReport:
    """Result of checking a model.

    Parameters
    ----------
    violations : list of ModelFinding
        Violations by file and position; empty if none was detected.
    warnings : list of ModelFinding
        Deviations from advice of the specification, and deprecated constructs.
    notes : list of ModelFinding
        Vendor-specific or later constructs, which were not checked.
    variables : int
        Number of labels in an NNEF graph, of variables in SkriptND graphs, or of constants in an OpenVINO IR.
    """

    violations: list[ModelFinding] = field(default_factory=list)
    warnings: list[ModelFinding] = field(default_factory=list)
    notes: list[ModelFinding] = field(default_factory=list)
    variables: int = 0


class ModelFindings:
    """Builder of a report on a model, with the rules of its specification."""

    def __init__(self, rules: Mapping[str, ModelRule], specification: str) -> None:
        self.rules, self.specification = rules, specification
        self.report = ModelReport()
        self._counts: Counter[str] = Counter()

    def admit(self, rule: str) -> bool:
        """Count a finding; return whether to add it, which holds for the first :data:`MOST` findings of a rule."""
        self._counts[rule] += 1
        return self._counts[rule] <= MOST

    def is_full(self, rule: str) -> bool:
        """Return whether no more findings of a rule are added."""
        return self._counts[rule] >= MOST

    def add(self, rule: str, message: str, file: str, line: int = 0, column: int = 0, clause: str = "") -> None:
        """Add a finding that :meth:`admit` accepted; ``clause`` may be more precise than the clause of the rule."""
        report = self.report
        lists = {"violation": report.violations, "warning": report.warnings, "note": report.notes}
        message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
        clause = clause or self.rules[rule].clause
        found = ModelFinding(rule, clause, message, file, line, column, self.specification)
        lists[self.rules[rule].severity].append(found)

    def end(self) -> ModelReport:
        """Return the report, sorted by file and position."""
        for rule, count in self._counts.items():
            if count > MOST:
                noun = "finding is" if count == MOST + 1 else "findings are"
                message, clause = f"{count - MOST} more {noun} left out", self.rules[rule].clause
                self.report.notes.append(ModelFinding(rule, clause, message, "model", 0, 0, self.specification))
        for listed in (self.report.violations, self.report.warnings, self.report.notes):
            listed.sort(key=lambda found: (found.file, found.line, found.column))
        return self.report
