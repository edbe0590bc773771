"""Tests of nnr conformance."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import nnr_codec as nnr
from nnr_codec.conformance.suite import Suite, claim
from nnr_codec.conformance.vectors import Outcome, load_cases
from nnr_codec.conformance.vectors import Result as CaseResult

from ..conformance.support import command, write_case
from .support import Result, call

pytestmark = pytest.mark.medium

Capture = pytest.CaptureFixture[str]

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "bitstream_vectors"
W = np.array([[1.5, -2, 0]], np.float32)
DATA = nnr.encode({"w": W})
ERROR = {"class": "TruncatedError", "unit": 2}


@pytest.fixture
def cases(here: Path) -> Path:
    """Return five cases: valid, wrong, invalid, acceptable, and of another implementation."""
    folder = here / "v"
    write_case(
        folder, "A-1", DATA, {"w": W}, features=["dq_flag=1", "x"], clauses=["7.3.3"], profile_idc=1, title="a value"
    )
    write_case(folder, "A-2", DATA, {"w": W + np.float32(1)}, features=["dq_flag"], profile_idc=0)
    write_case(folder, "B-1", DATA[:-2], error=ERROR, requirements=["unit-size"])
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
    assert " ms  B-1  B-1: rejected: TruncatedError: " in verbose[0]


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
    schema = json.loads((ROOT / "docs" / "reference" / "conformance.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(report)
    assert report["version"] == nnr.__version__
    assert report["fine"] == 4
    assert report["decoder"] is report["suite"] is None
    assert report["counts"] == {
        "valid": {"PASS": 1, "FAIL": 1},
        "invalid": {"PASS": 1, "XPASS": 1},
        "acceptable": {"PASS": 1},
        "interop": {"PASS": 1},
    }
    assert [case["outcome"] for case in report["cases"]] == ["PASS", "FAIL", "PASS", "PASS", "PASS", "XPASS"]
    assert report["cases"][0] | {"ms": 0, "rss": 0} == {
        "id": "A-1",
        "rev": None,
        "group": "g",
        "class": "valid",
        "title": "a value",
        "clauses": ["7.3.3"],
        "features": ["dq_flag=1", "x"],
        "outcome": "PASS",
        "ms": 0,
        "rss": 0,
        "detail": "",
    }
    sizes = [case["rss"] for case in report["cases"]]
    assert all(1 << 20 < size < 1 << 30 for size in sizes) if sys.platform == "linux" else True
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
    assert [[child.tag for child in case][1:] for case in suite] == [[], ["failure"], [], [], [], ["failure"]]
    found = [(each.get("name"), each.get("value")) for each in suite[0][0]]
    assert found[:5] == [
        ("title", "a value"),
        ("class", "valid"),
        ("clause", "7.3.3"),
        ("feature", "dq_flag=1"),
        ("feature", "x"),
    ]
    assert ("requirement", "unit-size") in [(each.get("name"), each.get("value")) for each in suite[2][0]]
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
    """The output is one line without control characters, whatever is wrong."""
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
        ["--timeout", "nan"],
        ["--json", "r", "--junit", "r"],
        ["--json", "r", "--markdown", "./r"],
        ["--junit", "-", "--fluster", "-"],
        ["--memory", "much"],
        ["--memory", ""],
        ["--memory", "-1"],
        ["-j", 0],
        ["--only", "nothing*"],
        ["--decoder", "no_such_program {input} {outdir}"],
        ["--decoder", "ls {input}"],
        ["--decoder", "ls '{input} {outdir}"],
        ["--decoder", ""],
        ["--decoder", "ls {input} {outdir} --before={inputs}"],
        ["two"],
    ],
    ids=str,
)
def test_usage(cases: Path, capsys: Capture, options: list[object]) -> None:
    result = call(capsys, "conformance", cases, *options)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: nnr conformance")


def test_reports_that_cannot_be_written(cases: Path, capsys: Capture) -> None:
    """The error is raised before the work."""
    os.mkdir("folder")
    for name in ("folder", "none/r.json"):
        for option in ("--json", "--junit", "--markdown", "--fluster"):
            result = conformance(capsys, cases, option, name)
            assert (result.code, result.out) == (5, "")
            assert result.err.count("\n") == 1


def test_the_vectors_beside_the_package(capsys: Capture, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(nnr, "__file__", str(VECTORS.parent / "nnr_codec" / "__init__.py"))
    result = conformance(capsys, "--only", "NNR-SYN-00[12]")
    assert (result.code, len(result.out.splitlines())) == (0, 3)


def test_the_core_set_where_there_are_no_others(capsys: Capture, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(nnr, "__file__", str(here / "nnr_codec" / "__init__.py"))
    result = conformance(capsys, "--claim", "-j", 2)
    assert result.code == 0
    assert result.err.startswith("nnr: only the core vectors of the package are available")
    *lines, counts, claim = result.out.splitlines()
    assert len(lines) == 36
    assert all(line.startswith("PASS") for line in lines)
    assert counts.startswith("28 valid: 28 pass, 7 invalid: 7 rejected, 1 acceptable: 1 pass, ")
    assert claim == "no claim: the folder of the vectors has no manifest.json"
    assert conformance(capsys, "--only", "NNR-NEG-009", "-q").code == 0


@pytest.mark.slow
def test_every_vector(capsys: Capture) -> None:
    result = conformance(capsys, VECTORS, "-j", 2)
    assert result.code == 0, result.out


def test_extensions(cases: Path, capsys: Capture) -> None:
    """A decoder without support of an extension is judged by the contents of the units."""
    raw = {"expected": {"raw": []}}
    write_case(cases, "S-1", DATA, error=ERROR, extension="side-information", **raw)
    one = ("--only", "S-1", cases, "--decoder", command("silent"))
    assert conformance(capsys, *one).out.startswith("PASS")
    assert conformance(capsys, *one, "--extension", "side-information").out.startswith("XPASS")
    assert conformance(capsys, *one, "--extension", "another").code == 2
    assert conformance(capsys, cases, "--extension", "side-information").code == 2


def test_markdown(cases: Path, capsys: Capture) -> None:
    write_case(cases, "D", DATA, error=ERROR, title="a|b <c> *d* \x1b", requirements=["unit-size"])
    write_case(cases, "E", DATA, {"w": W}, topology_dimensions={"v": [1]})
    assert conformance(capsys, cases, "--markdown", "r.md", "--decoder", command("lenient")).code == 1
    lines = Path("r.md").read_text("utf-8").splitlines()
    assert lines[0].startswith("# Conformance of ")
    assert "| class | cases | PASS | FAIL | XPASS | SKIP |" in lines
    assert "| valid | 3 | 1 | 1 |  | 1 |" in lines
    assert "| g | 7 | 2 | 2 | 2 | 1 |" in lines
    assert r"| XPASS | D | a\|b \<c\> \*d\* \\x1b | decoded, but it is invalid (unit-size) |" in lines
    assert "## Skipped" in lines
    assert lines[-1].startswith(f"nnr_codec {nnr.__version__}, ")


def test_fluster(cases: Path, capsys: Capture) -> None:
    """Single bitstreams have the digest of the model."""
    write_case(cases, "L", DATA, error={"class": "LimitError"}, limits={"max_dims": 1})
    write_case(cases, "T", DATA, {"w": W}, topology_dimensions={"v": [1]})
    write_case(cases, "X", DATA, {"w": W}, extension="side-information")
    conformance(capsys, cases, "--fluster", "suite.json")
    suite = json.loads(Path("suite.json").read_text("utf-8"))
    assert set(suite) == {"name", "codec", "description", "test_vectors"}
    vectors = {vector["name"]: vector for vector in suite["test_vectors"]}
    assert list(vectors) == ["A-1", "A-2", "B-1", "C-1"]
    path = cases / "g" / "A-1" / "stream.nnr"
    digests = json.loads(call(capsys, "verify", "--digest", path).out)
    assert vectors["A-1"] == {
        "name": "A-1",
        "source": path.resolve().as_uri(),
        "source_checksum": hashlib.md5(DATA, usedforsecurity=False).hexdigest(),
        "input_file": "stream.nnr",
        "result": digests["model_sha256"],
    }
    assert vectors["B-1"]["result"] == ""


def test_lenient(cases: Path, capsys: Capture) -> None:
    write_case(cases, "D", DATA[:-2], error={"class": "PayloadError", "unit": 1}, requirements=["levels"])
    strict = conformance(capsys, cases, "--only", "D")
    assert strict.code == 1
    assert strict.out.startswith("FAIL    D  D: rejected with TruncatedError: ")
    assert strict.out.splitlines()[0].endswith("PayloadError is expected (levels)")
    assert conformance(capsys, cases, "--only", "D", "--lenient").code == 0


def with_manifest(folder: Path) -> None:
    """Write a manifest of a folder of vectors."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = "".join(f"{hashlib.sha256((folder / path).read_bytes()).hexdigest()}  {path}\n" for path in paths)
    facts = {"suite": "s\x1b", "revision": 7, "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(facts))


def test_claim(here: Path, capsys: Capture) -> None:
    folder = here / "v"
    write_case(folder, "A-1", DATA, {"w": W})
    write_case(folder, "A-2", DATA, {"w": W}, origin="somebody")
    write_case(folder, "B", DATA[:-2], error=ERROR)
    write_case(folder, "C", DATA[:-2], {"w": W}, result="acceptable")
    with_manifest(folder)
    said = conformance(capsys, folder, "--claim").out.splitlines()[-1]
    assert said.startswith(
        f"nnr_codec {nnr.__version__} decodes all 2 valid vectors of s\\x1b, revision 7, as expected, rejects all 1 "
        "invalid ones, and decodes as given or rejects the 1 acceptable ones (sha256 "
    )
    assert said.endswith("of ISO/IEC 15938-18, and this is not a claim of conformance to it.")
    some = conformance(capsys, folder, "--claim", "--only", "A-*", "--decoder", command("good"))
    assert some.out.splitlines()[-1] == "no claim: 2 of 4 cases were run"


def test_no_claim(here: Path) -> None:
    folder = here / "v"
    for name in "ABC":
        write_case(folder, name, DATA, {"w": W})
    cases = load_cases(folder)
    good = [CaseResult(case, Outcome.PASS, "", 0) for case in cases]

    def said(results: list[CaseResult], number: int = 3) -> str:
        return claim(results, Suite.read(folder), number, "D")

    assert said(good) == "no claim: the folder of the vectors has no manifest.json"
    with_manifest(folder)
    assert said(good).startswith("D decodes all 3 valid vectors")
    assert said(good[1:]) == "no claim: 2 of 3 cases were run"
    other = [CaseResult(cases[0], Outcome.SKIP, "", 0), *good[1:]]
    assert said(other) == "no claim: 1 of 3 cases skipped"
    other[1] = CaseResult(cases[1], Outcome.OOM, "", 0)
    assert said(other) == "no claim: 1 of 3 cases are not as expected, the first is B"
    (folder / "more").touch()
    assert said(good) == "no claim: the files do not match manifest.json"
    (folder / "more").unlink()
    with (folder / "g" / "C" / "case.json").open("a") as file:
        file.write("\n")
    assert said(good) == "no claim: the files do not match manifest.json"


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "{}", "[" * 100_000, '{"suite": 3, "revision": 1, "sha256": ""}', '{"suite": "s", "revision": "1"}'],
    ids=range(6),
)
def test_a_manifest_that_is_none(cases: Path, capsys: Capture, manifest: str) -> None:
    (cases / "manifest.json").write_text(manifest)
    result = conformance(capsys, cases)
    assert (result.code, result.out) == (3, "")
    assert "is not a manifest of vectors" in result.err


def test_the_manifest_of_the_project(capsys: Capture) -> None:
    """--claim uses the manifest that `python -m tests.vectors.make` writes."""
    suite = Suite.read(VECTORS)
    assert suite
    assert suite.name == "nnr_codec"
    assert suite.is_intact()
