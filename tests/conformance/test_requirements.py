"""For each requirement, a bitstream breaks it and no other one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import nnr_codec as nnr
from nnr_codec import errors
from nnr_codec.conformance.verify import verify
from nnr_codec.decoder.group import Group
from nnr_codec.rules import Requirement
from tools.requirements_page import page
from tools.shalls import A4_SENTENCES, SHALLS

from ..shared import standard_text
from .violations import CASES, Broken, raw, start

ROOT = Path(__file__).resolve().parents[2]
IDS = {rule.id for rule in Requirement}


def report(case: Broken) -> nnr.Report:
    """Return the report of verify."""
    return verify(
        case.data,
        limits=case.limits,
        topology_dimensions=case.topology_dimensions,
        inputs=case.inputs,
        topology=case.topology,
    )


@pytest.mark.parametrize("name", sorted(IDS))
def test_is_broken_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "decodable":  # not known
        case = Broken(raw(start(), "w").data, 2)

        def refuse(*_: object, **__: object) -> None:
            raise errors.BitstreamError("never heard of", unit="unit 2 (NNR_NDU 'w')")

        monkeypatch.setattr(Group, "recs", refuse)
    else:
        case = CASES[name]()
    rule, found = Requirement(name), report(case)
    told = found.warnings if rule.severity == "should" else found.violations
    assert {(violation.requirement, violation.clause) for violation in told} == {(name, rule.clause)}, found
    assert {violation.unit for violation in told} == {case.unit}, found
    if rule.severity == "should":
        assert not found.violations
    # The unit is named by number and type, and an error about an element has a bit.
    for violation in (*found.violations, *found.warnings):
        assert violation.label == "" or violation.label.startswith(f"unit {violation.unit} (NNR_")
        assert (violation.unit is None) == (violation.label == "")
        if violation.element and rule.clause:
            assert violation.bit >= 0 or name == "decodable", violation


def test_every_requirement_has_a_case() -> None:
    assert set(CASES) | {"decodable"} == IDS


def test_each_is_well_formed() -> None:
    outside = {  # not rules of the standard
        "limits": "limit",
        "side-information": "extension",
        "attachment": "extension",
        "index": "extension",
    }
    for rule in Requirement:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
        assert (rule.clause == "") == (rule.id in outside), rule
        assert not rule.clause or re.fullmatch(r"(\d+|A)(\.\d+)+", rule.clause), rule
        assert rule.severity in ((outside[rule.id],) if rule.id in outside else ("shall", "should")), rule
        assert rule.text.endswith(".") and "|" not in rule.text, rule


# ------------------------------------------------------------------------------------------------ refusals
PACKAGE = ROOT / "nnr_codec"
#: Modules whose errors concern the caller's arguments or other standards, and the slow decoder of tests.
NO_RULES = {
    *("bitstream/aggregate.py", "bitstream/performance.py", "decoder/extraction.py", "decoder/lineage.py"),
    "syntax/deepcabac.py",
}
#: Errors in other modules that concern the caller's arguments.
REQUESTS = (
    "an NNR_PT_RAW_FLOAT payload has no bins",
    "bins are listed only for tensors",
    "cannot be extracted",
    "without the rest",
)
ERRORS = {
    *("BitstreamError", "ElementError", "TruncatedError", "PayloadError"),
    *("MissingReferenceError", "UnsupportedError"),
}


def refusals() -> list[tuple[str, bool]]:
    """Return the places where decoders raise errors about bitstreams, and whether they give the rule."""
    found = []
    for folder in ("bitstream", "decoder", "tensor", "syntax", "sideinfo"):
        for path in sorted((PACKAGE / folder).glob("*.py")):
            place = f"{folder}/{path.name}"
            for node in ast.walk(ast.parse(path.read_text("utf-8"))) if place not in NO_RULES else ():
                is_error = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS
                if is_error and not any(text in ast.unparse(node) for text in REQUESTS):
                    found.append((f"{place}:{node.lineno}", any(given.arg == "rule" for given in node.keywords)))
    for path in sorted((PACKAGE / "cabac_ext").glob("*.p*")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if re.search(r"\b(Payload|Element)Error\(", line):
                found.append((f"{path.name}:{number}", "rule=" in line))
    return found


def test_each_refusal_of_the_decoder_has_a_rule() -> None:
    assert len(refusals()) > 120
    assert [place for place, has_rule in refusals() if not has_rule] == []


def test_the_rule_of_limits_and_missing_tensors_comes_with_the_class() -> None:
    assert errors.LimitError("too large").rule is Requirement.LIMITS
    assert errors.IncompleteError(2, ["w"]).rule is Requirement.COMPLETE


# ------------------------------------------------------------------------------------------------ every "shall"
HEADING = re.compile(r"^(?:#+ +)?((?:\d+|[A-Z])(?:\.\d+)+) +\S|^#+ (?:Annex )?(\d+|[A-Z])\b")


def shalls_of(text: str) -> dict[str, int]:
    """Return the number of "shall" in each clause of the text from 6 to Annex A."""
    body = text[text.index("## 6 Syntax and semantics") : text.index("## Annex B")]
    clause, counts = "6", dict[str, int]()
    for line in body.splitlines():
        if heading := HEADING.match(line):
            clause = heading[1] or heading[2]
        if number := len(re.findall(r"\bshall\b", line)):
            counts[clause] = counts.get(clause, 0) + number
    return counts


def test_every_shall_is_listed() -> None:
    listed: dict[str, int] = {}
    for shall in SHALLS:
        listed[shall.clause] = listed.get(shall.clause, 0) + 1
    assert list(listed.items()) == list(shalls_of(standard_text()).items())


def test_each_shall_is_a_requirement_or_has_a_reason() -> None:
    assert len(SHALLS) == 103
    for shall in SHALLS:
        assert bool(shall.requirements) != bool(shall.reason), shall
        assert set(shall.requirements) <= IDS, shall


def test_every_sentence_of_a4_is_listed() -> None:
    """Each "shall" is listed in the order of the text."""
    text = standard_text()
    body = text[text.index("#### A.4 ") : text.index("## Annex B")].partition("\n")[2]
    sentences = [
        sentence
        for line in body.splitlines()
        if line and "IECNORM" not in line  # a watermark
        for sentence in re.split(r"(?<=[.:]) +(?=[A-Z])", line)
    ]
    assert all(sentence[-1] in ".:" for sentence in sentences)
    assert len(A4_SENTENCES) == len(sentences) == 14
    assert [" " in answer for _, answer in A4_SENTENCES] == ["constraints shall apply" in s for s in sentences]
    checked = {rule for _, answer in A4_SENTENCES if " " not in answer for rule in answer.split("|")}
    assert checked <= IDS
    assert {rule.id for rule in Requirement if rule.clause == "A.4"} <= checked


def test_the_page_is_not_stale() -> None:
    """The page is the output of python -m tools.requirements_page."""
    assert (ROOT / "docs" / "reference" / "requirements.md").read_text("utf-8") == page()
