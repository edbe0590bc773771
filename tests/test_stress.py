"""Bitstreams that are large or slow for what they are (`tests.vectors.stress`), through the runner of vectors."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from nnr_codec.conformance.cases import load_cases
from nnr_codec.conformance.vectors import run

from .vectors.stress import STRESS, write

pytestmark = pytest.mark.medium

#: Cases that are generated and decoded within moments.
QUICK = ("NNR-STR-005", "NNR-STR-008", "NNR-STR-011", "NNR-STR-016", "NNR-STR-017", "NNR-STR-018")


def failed(folder: Path, ids: Collection[str]) -> list[str]:
    """Return the failed cases; each may use a gigabyte and any amount of time."""
    write(folder, ids)
    cases = load_cases(folder)
    assert {case.id for case in cases} == set(ids)
    results = run(cases, folder, timeout=600, memory=1 << 30)
    return [f"{result.case.id}: {result.detail}" for result in results if not result.is_fine]


def test_some_pass(tmp_path: Path) -> None:
    assert not failed(tmp_path, QUICK)


@pytest.mark.slow
def test_all_pass(tmp_path: Path) -> None:
    assert not failed(tmp_path, STRESS)


def test_a_case_can_fail(tmp_path: Path) -> None:
    write(tmp_path, ["NNR-STR-017"])
    (case,) = load_cases(tmp_path)
    facts = json.loads(case.file.read_text("utf-8"))
    facts["expected"]["levels"][0]["sha256"] = 64 * "0"
    case.file.write_text(json.dumps(facts), "utf-8")
    (result,) = run(load_cases(tmp_path), tmp_path, timeout=600)
    assert not result.is_fine, result.detail
