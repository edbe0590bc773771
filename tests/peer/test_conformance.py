"""Results of NNCodec on the vectors: the record, its page, and a sample of current results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nnr_codec.conformance.vectors import Case, Outcome, load_cases

from ..vectors.make import ROOT
from .disagreements import INVALID, VALID
from .record import PAGE, ask, fingerprint, group, page, read

HEAD, LINES = read()
WRONG = [line for line in LINES if line["outcome"] not in (Outcome.PASS, Outcome.SKIP)]


def test_page_matches_the_record() -> None:
    """`python -m tests.peer.record --page` writes the page."""
    assert PAGE.read_text("utf-8") == page(HEAD, LINES)


def test_each_disagreement_has_a_group() -> None:
    assert [line["id"] for line in WRONG if not group(line)] == []
    used = {id(group(line)) for line in WRONG}
    assert [each.title for each in VALID + INVALID if id(each) not in used] == []
    assert HEAD["suite"]["cases"] == len(LINES)


def chosen() -> list[Case]:
    """Return the first unchanged case of each disagreement, and some cases with the expected result."""
    cases = {case.id: case for case in load_cases(ROOT)}
    first: dict[int, str] = {}
    for line in WRONG:
        if line["id"] in cases and fingerprint(cases[line["id"]]) == line["sha256"]:
            first.setdefault(id(group(line)), line["id"])
    assert len(first) == len(VALID + INVALID)
    good = ("NNR-BLK-007", "NNR-CAB-006", "NNR-QNT-003", "NNR-TEN-014", "NNR-UPD-004", "NNR-NEG-009", "NNR-NEG-104")
    return [cases[id_] for id_ in (*first.values(), *good, "nncodec-v2/incr_tca_dq")]


@pytest.mark.medium
@pytest.mark.peer
def test_nncodec_still_gives_the_recorded_results() -> None:
    """Run one case of each group; `python -m tests.peer.record` runs all."""
    python = os.environ.get("NNR_PEER", "")
    if not python or not Path(python).is_file():
        pytest.skip("NNR_PEER does not name a python with nncodec 2.1.3")
    recorded = {line["id"]: line["outcome"] for line in LINES}
    results = ask(python, chosen(), jobs=2)
    assert {result.case.id: str(result.outcome) for result in results} == {
        result.case.id: recorded[result.case.id] for result in results
    }
