"""nnr conformance."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import nnr_codec as nnr

from ..conformance.support import command, write_case
from .support import Result, call

Capture = pytest.CaptureFixture[str]

VECTORS = Path(__file__).resolve().parents[2] / "bitstream_vectors"
W = np.array([[1.5, -2, 0]], np.float32)
DATA = nnr.encode({"w": W})
ERROR = {"class": "TruncatedError", "unit": 2}


@pytest.fixture
def cases(here: Path) -> Path:
    """Five cases: valid, wrong, invalid, acceptable, and from somebody else."""
    folder = here / "v"
    write_case(folder, "A-1", DATA, {"w": W}, features=["dq_flag=1", "x"], profile_idc=1, title="a value")
    write_case(folder, "A-2", DATA, {"w": W + np.float32(1)}, features=["dq_flag"], profile_idc=0)
    write_case(folder, "B-1", DATA[:-2], error=ERROR)
    write_case(folder, "B-2", DATA[:-2], {"w": W}, result="acceptable")
    write_case(folder, "C-1", DATA, {"w": W}, origin="somebody \x1b[1m")
    return folder


def conformance(capsys: Capture, *arguments: object) -> Result:
    return call(capsys, "conformance", *arguments, "--timeout", 60)


def test_all(cases: Path, capsys: Capture) -> None:
    result = conformance(capsys, cases)
    *lines, last = result.out.splitlines()
    assert (result.code, result.err) == (1, "")
    assert [line.split()[:2] for line in lines] == [
        ["PASS", "A-1"],
        ["FAIL", "A-2"],
        ["PASS", "B-1"],
        ["PASS", "B-2"],
        ["PASS", "C-1"],
    ]
    assert lines[0] == "PASS    A-1  a value"
    assert lines[1].endswith(": 3 of 3, the first is 1.5 for 2.5 at (0, 0)")
    assert last.startswith("2 valid: 1 pass, 1 fail, 1 invalid: 1 rejected, 1 acceptable: 1 pass, 1 interop: 1 pass, ")
    assert last.endswith(" s")


def test_quiet_and_verbose(cases: Path, capsys: Capture) -> None:
    quiet = conformance(capsys, cases, "-q").out.splitlines()
    assert len(quiet) == 2
    assert quiet[0].startswith("FAIL    A-2  ")
    verbose = conformance(capsys, cases, "-v", "-j", 2, "--only", "B-1").out.splitlines()
    assert len(verbose) == 2
    assert " ms  B-1  B-1: refused: TruncatedError: " in verbose[0]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--only", "A-*"], "A-1 A-2"),
        (["--only", "?-1", "--only", "B*"], "A-1 B-1 B-2 C-1"),
        (["--class", "invalid"], "B-1"),
        (["--class", "interop,acceptable"], "B-2 C-1"),
        (["--feature", "dq_flag"], "A-1 A-2"),
        (["--feature", "dq_flag=1"], "A-1"),
        (["--feature", "dq_flag", "--feature", "x"], "A-1"),
        (["--profile", 0], "A-2"),
    ],
)
def test_choice(cases: Path, capsys: Capture, options: list[object], ids: str) -> None:
    result = conformance(capsys, cases, *options)
    assert [line.split()[1] for line in result.out.splitlines()[:-1]] == ids.split()
    assert result.code == ("A-2" in ids)


def test_fail_fast(cases: Path, capsys: Capture) -> None:
    result = conformance(capsys, cases, "--fail-fast")
    assert (result.code, len(result.out.splitlines())) == (1, 3)


def test_reports(cases: Path, capsys: Capture) -> None:
    write_case(cases, "D\x1b&<", DATA, error=ERROR, title="\x00\ud7ff")
    code = conformance(capsys, cases, "--json", "r.json", "--junit", "r.xml").code
    assert code == 1
    report = json.loads(Path("r.json").read_text("utf-8"))
    assert report["version"] == nnr.__version__
    assert report["fine"] == 4
    assert [case["outcome"] for case in report["cases"]] == ["PASS", "FAIL", "PASS", "PASS", "PASS", "XPASS"]
    assert report["cases"][2] | {"ms": 0, "detail": ""} == {
        "id": "B-1",
        "group": "g",
        "class": "invalid",
        "title": "B-1",
        "outcome": "PASS",
        "ms": 0,
        "detail": "",
    }
    root = ElementTree.parse("r.xml").getroot()
    (suite,) = root
    assert {key: suite.get(key) for key in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": "g",
        "tests": "6",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
    }
    assert [case.get("name") for case in suite][-1] == r"D\x1b&<"
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], [], [], [], ["failure"]]
    again = conformance(capsys, cases, "--only", "A-1", "--json", "-")
    assert again.code == 0
    assert json.loads(again.out)["fine"] == 1
    assert "PASS    A-1" in again.err


def test_another_decoder(cases: Path, capsys: Capture) -> None:
    result = conformance(capsys, cases, "--only", "[AB]-1", "--decoder", command("crash"), "--junit", "r.xml")
    assert result.code == 1
    assert result.out.splitlines()[0] == "CRASH   A-1  a value: signal 6"
    assert ElementTree.parse("r.xml").getroot()[0].get("errors") == "2"


def test_hostile_folders(cases: Path, capsys: Capture) -> None:
    """One line, whatever is wrong, and nothing that a terminal would act on."""
    (cases / "g" / "A-1" / "case.json").write_text('{"result": "\x1b[31m"}')
    for folder in (cases, cases / "none", cases / "g" / "A-1" / "stream.nnr"):
        result = conformance(capsys, folder)
        assert result.code == (3 if folder == cases else 5)
        assert result.out == ""
        assert result.err.count("\n") == 1
        assert result.err.startswith("nnr: error: ")
        assert "\x1b" not in result.err


@pytest.mark.parametrize(
    "options",
    [
        ["--class", "good"],
        ["--profile", 2],
        ["--timeout", 0],
        ["--timeout", "inf"],
        ["--json", "r", "--junit", "r"],
        ["--memory", "much"],
        ["--memory", ""],
        ["--memory", "-1"],
        ["-j", 0],
        ["--only", "nothing*"],
        ["--decoder", "no_such_program {input} {outdir}"],
        ["--decoder", "ls {input}"],
        ["--decoder", "ls '{input} {outdir}"],
        ["--decoder", ""],
        ["two"],
    ],
    ids=str,
)
def test_usage(cases: Path, capsys: Capture, options: list[object]) -> None:
    result = call(capsys, "conformance", cases, *options)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: nnr conformance")


def test_reports_that_cannot_be_written(cases: Path, capsys: Capture) -> None:
    """Found out before the work."""
    os.mkdir("folder")
    for name in ("folder", "none/r.json"):
        result = conformance(capsys, cases, "--json", name)
        assert (result.code, result.out) == (5, "")


def test_the_vectors_beside_the_package(capsys: Capture, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(nnr, "__file__", str(VECTORS.parent / "nnr_codec" / "__init__.py"))
    result = conformance(capsys, "--only", "NNR-SYN-00[12]")
    assert (result.code, len(result.out.splitlines())) == (0, 3)
    monkeypatch.setattr(nnr, "__file__", str(here / "nnr_codec" / "__init__.py"))
    result = conformance(capsys)
    assert result.code == 2
    assert "source distribution" in result.err


@pytest.mark.slow
def test_every_vector(capsys: Capture) -> None:
    result = conformance(capsys, VECTORS, "-j", 2)
    assert result.code == 0, result.out


def test_extensions(cases: Path, capsys: Capture) -> None:
    """A decoder that does not know one is judged by what its units hold."""
    raw = {"expected": {"raw": []}}
    write_case(cases, "S-1", DATA, error=ERROR, extension="side-information", **raw)
    one = ("--only", "S-1", cases, "--decoder", command("silent"))
    assert conformance(capsys, *one).out.startswith("PASS")
    assert conformance(capsys, *one, "--extension", "side-information").out.startswith("XPASS")
    assert conformance(capsys, *one, "--extension", "another").code == 2
    assert conformance(capsys, cases, "--extension", "side-information").code == 2
