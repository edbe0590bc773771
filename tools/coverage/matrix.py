"""Coverage matrix: the vectors that reach each line, value, step of decoding, requirement and "shall"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nnr_codec.conformance.cases import Case
from nnr_codec.conformance.verify import verify
from nnr_codec.rules import Requirement

from ..shalls import A4_SENTENCES, SHALLS
from .clauses import CLAUSES
from .exceptions import BROKEN, BROKEN_VALUES, NEVER, SHOWN, UNBROKEN, UNSHOWN
from .listing import POSITIVE, Line, Listing
from .sources import Sources
from .values import STEPS, Row, ValueTable, value_rows
from .walk import Reached, Walker


def _broken(case: Case) -> set[str]:
    """Return the rules ("shall" and "should") that the last bitstream of a case breaks."""
    *before, last = (stream.path for stream in case.streams)
    report = verify(
        last,
        limits=case.limits,
        topology_dimensions=case.topology_dimensions,
        inputs=before,
        topology=case.topology,
    )
    return {found.requirement for found in (*report.violations, *report.warnings)}


@dataclass(frozen=True)
class Entry:
    """Item that vectors must reach.

    Parameters
    ----------
    kind : str
        ``row`` (an element, an invocation, a row of a table of values, a step), ``branch`` (an outcome of a condition,
        of a loop, or a value of an element), ``requirement``, ``shall``, ``sentence`` of A.4.
    clause : str
    text : str
    cases : tuple of Case
        Cases that reach it.
    reason : str
        Reason why no case can reach it.
    outcome : str
        Outcome of the line ``text``.
    """

    kind: str
    clause: str
    text: str
    cases: tuple[Case, ...]
    reason: str = ""
    outcome: str = ""

    @property
    def is_covered(self) -> bool:
        """True if a vector reaches it (if possible, a valid one), or no vector can."""
        if self.kind in ("row", "branch") and not (
            (self.text, self.outcome) in BROKEN or self.text.endswith(BROKEN_VALUES)
        ):
            return bool(self.reason) or any(case.result == "valid" for case in self.cases)
        return bool(self.cases or self.reason)


class Matrix:
    """Coverage of a set of vectors.

    Parameters
    ----------
    cases : iterable of Case
        Cases of other implementations do not count. Cases of extensions count only for requirements that are not part
        of the standard.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        self.all_cases = tuple(cases)
        self.cases = tuple(case for case in self.all_cases if not case.extension and case.kind != "interop")
        self.sources = Sources()
        walker = Walker(self.sources)
        self._reached: dict[Reached, list[Case]] = {}
        self._weight: dict[str, int] = {}
        for case in self.cases:
            reached = walker.reached(case)
            self._weight[case.id] = len(reached)
            for each in reached:
                self._reached.setdefault(each, []).append(case)

    def of(self, *reached: Reached) -> tuple[Case, ...]:
        """Return the cases that reach any of these, in the order of :meth:`ranked`."""
        found = {case.id: case for each in reached for case in self._reached.get(each, ())}
        return self.ranked(found.values())

    def ranked(self, cases: Iterable[Case]) -> tuple[Case, ...]:
        """Sort cases: valid ones first, then cases that reach fewer other items."""

        def rank(case: Case) -> tuple[bool, bool, int, str]:
            return case.result == "invalid", case.result != "valid", self._weight.get(case.id, 0), case.id

        return tuple(sorted(cases, key=rank))

    # -------------------------------------------------------------------------------------- entries
    def line(self, listing: Listing, clause: str, line: Line) -> list[Entry]:
        """Return an entry for each outcome of a line."""
        number = self.sources.all.index(listing)
        kind = "branch" if len(line.outcomes) > 1 else "row"
        return [
            Entry(
                kind,
                clause,
                line.text,
                self.of((number, (line.number, outcome))),
                NEVER.get(line.text, {}).get(outcome, ""),
                outcome,
            )
            for outcome in line.outcomes
        ]

    def row(self, clause: str, row: Row) -> Entry:
        """Return the entry of a row of a value table."""
        complete = not row.every or all(self._reached.get(each) for each in row.needed)
        return Entry("row", clause, row.text, self.of(*row.needed) if complete else ())

    @cached_property
    def values(self) -> list[ValueTable]:
        """Value tables."""
        return value_rows(self.sources)

    @cached_property
    def value_entries(self) -> list[tuple[ValueTable, list[Entry]]]:
        """Entries of each value table."""
        return [(table, [self.row(table.clause, row) for row in table.rows]) for table in self.values]

    @cached_property
    def steps(self) -> list[Entry]:
        """Steps of decoding."""
        return [Entry("row", clause, text, self.of((name, 0))) for clause, name, text in STEPS]

    @cached_property
    def requirements(self) -> dict[str, Entry]:
        """Entries of the rules, with the vectors that break them."""
        broken: dict[str, list[Case]] = {}
        severity = {rule.id: rule.severity for rule in Requirement}
        for case in self.all_cases:
            if case.kind == "interop":
                continue
            for name in _broken(case):
                if severity[name] == "extension" or not case.extension:
                    broken.setdefault(name, []).append(case)
        return {
            rule.id: Entry(
                "requirement",
                rule.clause,
                rule.text,
                self.ranked(broken.get(rule.id, ())),
                UNBROKEN.get(rule.id, ""),
            )
            for rule in Requirement
        }

    @cached_property
    def shalls(self) -> list[Entry]:
        """Entries of the sentences with "shall", with the vectors that break or demonstrate them."""
        return [self._sentence("shall", each.clause, each.text, each.requirements, each.reason) for each in SHALLS]

    @cached_property
    def sentences(self) -> list[Entry]:
        """Entries of the sentences of A.4."""
        found = []
        for text, answer in A4_SENTENCES:
            is_reason = " " in answer
            rules = () if is_reason else answer.split("|")
            found.append(self._sentence("sentence", "A.4", text, rules, answer if is_reason else ""))
        return found

    def _sentence(self, kind: str, clause: str, text: str, rules: Sequence[str], reason: str) -> Entry:
        cases = {case.id: case for rule in rules for case in self.requirements[rule].cases}
        cases |= {case.id: case for name in SHOWN.get(text, ()) for case in self._showing(name)}
        return Entry(kind, clause, text, self.ranked(cases.values()), reason if text in UNSHOWN else "")

    def _showing(self, name: str) -> tuple[Case, ...]:
        element, sign, _ = name.partition(" > ")
        if not sign:
            return self.of((name, 0))
        listing = self.sources.tables
        number = self.sources.all.index(listing)
        lines = (line for table in listing.tables for line in table.lines if line.text == element)
        return self.of(*((number, (line.number, POSITIVE)) for line in lines))

    @cached_property
    def lines(self) -> list[Entry]:
        """Rows and branches of all listed tables."""
        return [
            entry
            for listing, table in self.sources.listed
            for line in table.lines
            for entry in self.line(listing, table.clause, line)
        ]

    def entries(self) -> Iterator[Entry]:
        """Yield all entries except the clauses."""
        yield from self.lines
        for _, rows in self.value_entries:
            yield from rows
        yield from self.steps
        yield from self.requirements.values()
        yield from self.shalls
        yield from self.sentences

    def clauses(self) -> Iterator[Entry]:
        """Yield an entry for each clause, with the vectors of all entries of the clause."""
        found: dict[str, dict[str, Case]] = {}
        for entry in self.entries():
            found.setdefault(entry.clause, {}).update({case.id: case for case in entry.cases})
        for clause, title, reason in CLAUSES:
            yield Entry("clause", clause, title, self.ranked(found.get(clause, {}).values()), reason)

    def gaps(self) -> list[str]:
        """Return the entries that no vector reaches although one could."""
        return [
            f"{entry.kind} of {entry.clause}: {entry.text}{f': {entry.outcome}' if entry.outcome else ''}"
            for entry in (*self.entries(), *self.clauses())
            if not entry.is_covered
        ]
