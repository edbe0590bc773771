"""Tests of nnr encode --report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import nnr_codec as nnr

from .support import DIGITS, call

Capture = pytest.CaptureFixture[str]


def test_both_reports(capsys: Capture) -> None:
    result = call(capsys, "encode", DIGITS, "-o", "d.nnr", "--report", "d.json", "--report", "d.html", "--qp", "-30")
    assert result.code == 0, result.err
    document = json.loads(Path("d.json").read_text())
    assert document["source"] == "digits.nnef"
    assert document["options"]["qp"] == -30
    assert document["totals"]["bytes"] == Path("d.nnr").stat().st_size
    assert [row["name"] for row in document["tensors"]] == list(nnr.load(DIGITS))
    page = Path("d.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "conv1/weight" in page
    assert Path("d.nnr").read_bytes() == nnr.encode(DIGITS, qp=-30)
    assert sorted(os.listdir()) == ["d.html", "d.json", "d.nnr"]


def test_an_existing_report_is_refused_before_any_work(npz: Path, capsys: Capture) -> None:
    Path("r.json").write_text("mine")
    result = call(capsys, "encode", npz, "-o", "m.nnr", "--report", "r.json")
    assert result.code == 5
    assert "r.json exists; use -f to replace it" in result.err
    assert Path("r.json").read_text() == "mine"
    assert not Path("m.nnr").exists()
    assert call(capsys, "encode", npz, "-fo", "m.nnr", "--report", "r.json").code == 0
    assert json.loads(Path("r.json").read_text())["source"] == "model.npz"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["r.txt"], "'r.txt' must end in .json or .html"),
        (["-"], "must end in .json or .html"),
        (["r.json", "r.json"], "'r.json' is given twice"),
        (["r.json", "./r.json"], "'./r.json' is given twice"),
        (["m.json"], "m.json is the file of two outputs; use other names"),
        (["./m.json"], "m.json is the file of two outputs; use other names"),
    ],
)
def test_wrong_names(npz: Path, capsys: Capture, names: list[str], message: str) -> None:
    result = call(capsys, "encode", npz, "-o", "m.json", *(word for name in names for word in ("--report", name)))
    assert result.code == 2
    assert message in result.err
    assert os.listdir() == ["model.npz"]


def test_a_folder_that_is_not_there(npz: Path, capsys: Capture) -> None:
    assert call(capsys, "encode", npz, "-o", "m.nnr", "--report", "no/r.json").code == 5
    assert os.listdir() == ["model.npz"]


def test_no_report_of_a_failure(capsys: Capture, npz: Path) -> None:
    assert call(capsys, "encode", npz, "-o", "m.nnr", "--report", "r.json", "--max-unit-size", "1").code == 3
    assert os.listdir() == ["model.npz"]
