"""The vectors reach every line of the syntax, every requirement and every "shall"."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import pytest

from nnr_codec.conformance.cases import load_cases
from nnr_codec.rules import Requirement
from nnr_codec.syntax import docs
from nnr_codec.syntax.coder import TABLES
from tools.coverage import Matrix, page
from tools.coverage.clauses import CLAUSES
from tools.coverage.exceptions import BROKEN, NEVER, SHOWN, UNBROKEN, UNSHOWN
from tools.coverage.listing import Listing
from tools.coverage.page import counts
from tools.shalls import SHALLS

from ..shared import standard_text

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "bitstream_vectors"

pytestmark = pytest.mark.slow  # the matrix takes 8 s


@lru_cache
def matrix() -> Matrix:
    """Return the matrix of all vectors."""
    return Matrix(load_cases(VECTORS))


def test_there_are_no_gaps() -> None:
    assert not matrix().gaps()


def test_the_page_is_not_stale() -> None:
    """The page is the output of python -m tools.coverage."""
    assert (ROOT / "docs" / "reference" / "coverage.md").read_text("utf-8") == page(matrix())


@pytest.mark.parametrize(
    ("only", "gap"),
    [
        ("syntax", "requirement of 6.2.3: A bitstream has a single NNR_MPS."),
        ("negative", "row of 9.2.4: a block of a bitstream of residuals is a weight update"),
        ("update", "shall of 6.1.3: strings are UTF-8"),
        ("quant", "clause of A.4: carriage"),
    ],
)
def test_gaps_are_found(only: str, gap: str) -> None:
    assert gap in Matrix(load_cases(VECTORS / only)).gaps()


def test_every_row_of_the_tables_is_listed() -> None:
    """The rows are compared with docs/reference/syntax.md, which is compared with the standard."""
    listed = {table.name: table.lines for table in matrix().sources.tables.tables}
    for name, table in docs.syntax_tables().items():
        elements = [row.element for row in table.rows if row.descriptor and not row.descriptor.endswith("()")]
        lines = [line for line in listed[name] if line.descriptor]
        assert [re.split(r"\[", line.text)[0] for line in lines] == elements
        conditions = sum(bool(re.match("if|else if", row.text)) for row in table.rows)
        assert sum(bool(re.match("if |else if ", line.text)) for line in listed[name]) == conditions
        assert sum(line.text.startswith("for ") for line in listed[name]) == sum(
            row.text.startswith("for ") for row in table.rows
        )
    assert set(listed) >= set(TABLES)


def test_exceptions_are_about_something() -> None:
    found = matrix()
    lines = {line.text: line for listing in found.sources.all for t in listing.tables for line in t.lines}
    for text, outcomes in NEVER.items():
        assert set(outcomes) <= set(lines[text].outcomes), text
    reached = {
        (line.text, entry.outcome)
        for listing in found.sources.all
        for t in listing.tables
        for line in t.lines
        for entry in found.line(listing, t.clause, line)
        if entry.cases
    }
    assert not {(text, outcome) for text, outcomes in NEVER.items() for outcome in outcomes} & reached
    without_valid = {
        (line.text, entry.outcome)
        for listing in found.sources.all
        for t in listing.tables
        for line in t.lines
        for entry in found.line(listing, t.clause, line)
        if entry.cases and not any(case.result == "valid" for case in entry.cases)
    }
    assert without_valid == BROKEN
    assert set(UNBROKEN) <= {rule.id for rule in Requirement}
    reasons = {shall.text for shall in SHALLS if shall.reason}
    assert reasons == UNSHOWN | set(SHOWN) and not UNSHOWN & set(SHOWN)


def test_counts() -> None:
    found = counts(matrix())
    assert list(found) == ["row", "branch", "requirement", "shall", "sentence"]
    assert found["requirement"] == (len(Requirement), len(Requirement) - len(UNBROKEN))
    assert found["shall"] == (103, 103 - len(UNSHOWN & {shall.text for shall in SHALLS}))


def test_every_clause_is_listed() -> None:
    """All headings with content from 6 to A.4 are listed, whether or not vectors can reach them."""
    text = standard_text()
    body = text[text.index("## 6 Syntax and semantics") : text.index("## Annex B")]
    headings = re.findall(r"^(?:#+ )?((?:\d+|A)(?:\.\d+)+) +[A-Z]", body, re.MULTILINE)
    inner = {heading.rpartition(".")[0] for heading in headings}
    listed = [clause for clause, _, _ in CLAUSES]
    assert set(headings) - inner <= set(listed)
    assert len(set(listed)) == len(listed)


# ------------------------------------------------------------------------------------------------ listings
SOURCE = '''
def walk(self, values, c):
    """A table, 1.2."""
    total = 0
    for value in values:
        if value > 1 and (value < 5 or value == 7):
            total += 1
        elif value == 1:
            total += 10
        else:
            total += 100 if value else 1000
    name = "bits"
    while total > 5000:
        total = c.uae(2, 0, name)
    return total
'''


def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Return the listing of a module with one function."""
    (tmp_path / "sample_of_listing.py").write_text(SOURCE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import sample_of_listing

    assert isinstance(sample_of_listing, ModuleType)
    return Listing(sample_of_listing, ["walk"], lambda definition, owner: "1.2")


def test_a_listing_notes_each_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = listing(tmp_path, monkeypatch)
    (table,) = found.tables
    lines = {line.text: line.number for line in table.lines}
    assert [line.text for line in table.lines] == [
        "for value in values",
        "if value > 1 and (value < 5 or value == 7)",
        "value > 1",
        "value < 5",
        "value == 7",
        "else if value == 1",
        "else",
        "value",
        "while total > 5000",
        "bits",
    ]

    class Coder:
        def uae(self, n: int, value: int, name: str) -> int:
            return n

    run = partial(found.names["walk"], None)
    assert run([7, 1, 0], Coder()) == 1011
    assert (lines["for value in values"], "several") in found.hits
    for text, outcome in [
        ("if value > 1 and (value < 5 or value == 7)", "true"),
        ("value < 5", "false"),
        ("value == 7", "true"),
        ("else if value == 1", "true"),
        ("value", "false"),
        ("while total > 5000", "no iteration"),
    ]:
        assert (lines[text], outcome) in found.hits
        other = "false" if outcome == "true" else "true"
        assert text.startswith(("if", "else")) or (lines[text], other) not in found.hits
    found.hits.clear()
    assert run([], Coder()) == 0
    assert found.hits == {(lines["for value in values"], "no iteration"), (lines["while total > 5000"], "no iteration")}
    assert run([0] * 6, Coder()) == 2
    assert (lines["bits"], "above 0") in found.hits and (lines["bits"], "0") not in found.hits
