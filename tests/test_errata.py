"""Tests of docs/reference/errata.md: every reference resolves to an entry, and every place that entries cite exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nnr_codec.conformance.errata import ERRATA, Erratum, page
from nnr_codec.conformance.vectors import load_cases

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "errata.md"
SOURCE = ROOT / "nnr_codec" / "conformance" / "errata.toml"
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".md", ".toml", ".txt"}

#: "errata N8" or "errata K1, K4"; in disagreements.toml: errata = "K1, K4".
REFERENCE = re.compile(r'errata (?:= ")?([A-Z]\d+(?:, [A-Z]\d+)*)')
#: The same in any other form: a capital, another conjunction, a line break, an id without a number.
LIKE_A_REFERENCE = re.compile(r"\b[Ee]rrat(?:a|um)\W{1,20}[A-Z]\d*\b(?:(?:,| and| to| or)\s+[A-Z]\d+\b)*")
CLAUSE = re.compile(r"(?:[4-9]|10|[A-G])(?:\.[1-9]\d?){1,5}")
CASES = {case.id for case in load_cases(ROOT / "bitstream_vectors")}


def sources() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    for folder in ("nnr_codec", "cli", "tests", "docs", "benchmarks", "examples", "bitstream_vectors", "tools"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and path not in (PAGE, SOURCE, Path(__file__)):
                yield path


def test_every_reference_resolves_to_an_entry() -> None:
    found = set()
    for path in sources():
        text = path.read_text("utf-8", "replace")
        references = {match.start(): match for match in REFERENCE.finditer(text)}
        for match in LIKE_A_REFERENCE.finditer(text):
            reference = references.get(match.start())
            assert reference, f"{path}: {match[0]!r} is not of the form 'errata N8' or 'errata K1, K4'"
            assert reference[0] == match[0], f"{path}: {match[0]!r}"
            ids = reference[1].split(", ")
            assert set(ids) <= set(ERRATA), f"{path}: {match[0]!r} has no entry in {SOURCE.name}"
            found.update(ids)
    assert len(found) > 60


def test_the_page_is_current_and_has_each_entry_once() -> None:
    """The page is the output of python -m nnr_codec.conformance.errata."""
    text = PAGE.read_text("utf-8")
    assert text == page()
    assert re.findall(r"^### (\w+)$", text, re.M) == list(ERRATA)


def test_what_an_entry_cites_exists() -> None:
    for erratum in ERRATA.values():
        assert_cites_what_exists(erratum)


def assert_cites_what_exists(erratum: Erratum) -> None:
    assert re.fullmatch(r"[A-Z][1-9]\d?", erratum.id)
    assert all(CLAUSE.fullmatch(clause) for clause in erratum.clauses.split(", "))
    text = f"{erratum.text} {erratum.decision} {erratum.evidence}"
    assert set(re.findall(r"\b[A-N]\d+\b", text)) <= set(ERRATA)
    assert set(re.findall(r"NNR-\w{3}-\d{3}|nncodec-\w+/[\w+-]+", text)) <= CASES
    for number, last in re.findall(r"NNR-\w{3}-(\d{3}) to (\d{3})", text):
        assert number < last
    for path in re.findall(r"\b(?:tests|docs)/[\w/.]+\w", text):
        assert (ROOT / path).is_file(), path
