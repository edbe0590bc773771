"""Runs of vectors: every outcome, with this library and with decoders that misbehave."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.conformance.vectors import Case, Outcome, Result, load_cases, run, summary
from nnr_codec.constants import NNR_PT_RAW_FLOAT

from ..builder import Bitstream, ndu, update_ndu
from ..vectors.make import ROOT
from ..vectors.stream import Stream
from .support import command, described, write_case

pytestmark = pytest.mark.medium

W = np.array([[1.5, -2, 0]], np.float32)
DATA = nnr.encode({"w": W})
TRUNCATED = {"class": "TruncatedError", "unit": 2}


def outcomes(root: Path, **options: Any) -> dict[str, tuple[Outcome, str]]:
    """Return outcome and detail of each case."""
    return {
        result.case.id: (result.outcome, result.detail) for result in run(load_cases(root), root, timeout=60, **options)
    }


def sequence(root: Path, **fields: Any) -> Path:
    """Return a case of a base model and an update of it."""
    base, update = Stream().start(), Stream().start(parent=1)
    base.ndu(update_ndu("w", [2], 0), [1, 2])
    update.ndu(update_ndu("w", [2], 1), [0, 3])
    first = {"w": np.array([1, 2], "f4")}
    data = b"".join(base.units)
    path = write_case(
        root,
        "SEQ",
        b"".join(update.units),
        {"w": np.array([0, 3], "f4")},
        inputs=[described(data, first, "input0.nnr")],
        **fields,
    )
    path.with_name("input0.nnr").write_bytes(data)
    return path


def test_the_vectors_of_the_project() -> None:
    """A few of each kind run here; `nnr conformance` runs all."""
    cases = load_cases(ROOT)
    chosen = [case for kind in ("valid", "invalid", "acceptable", "interop") for case in kinds(cases, kind)[::25]]
    results = list(run(chosen, ROOT, jobs=2, timeout=60))
    assert [result.case for result in results] == chosen
    assert [(result.case.id, result.detail) for result in results if result.outcome != Outcome.PASS] == []
    assert all(result.seconds < 60 for result in results)


def kinds(cases: list[Case], kind: str) -> list[Case]:
    found = [case for case in cases if case.kind == kind]
    assert found
    return found


def test_outcomes(tmp_path: Path) -> None:
    other = {"w": np.array([[1.5, -2, 1]], np.float32)}
    write_case(tmp_path, "PASS", DATA, {"w": W})
    write_case(tmp_path, "VALUE", DATA, other)
    write_case(tmp_path, "SHAPE", DATA, {"w": W.T})
    write_case(tmp_path, "TYPE", DATA, {"w": W.astype("f8")})
    write_case(tmp_path, "NAME", DATA, {"v": W})
    write_case(tmp_path, "VALID", DATA[:-3], {"w": W})
    write_case(tmp_path, "INVALID", DATA[:-3], error=TRUNCATED)
    write_case(tmp_path, "CLASS", DATA[:-3], error={**TRUNCATED, "class": "PayloadError"})
    write_case(tmp_path, "BASE", DATA[:-3], error={**TRUNCATED, "class": "BitstreamError"})
    write_case(tmp_path, "UNIT", DATA[:-3], error={**TRUNCATED, "unit": 1})
    write_case(tmp_path, "XPASS", DATA, error=TRUNCATED)
    write_case(tmp_path, "EITHER", DATA[:-3], {"w": W}, result="acceptable")
    write_case(tmp_path, "OTHER", DATA, other, result="acceptable")
    write_case(tmp_path, "FILE", DATA, {"w": W}).with_name("stream.nnr").write_bytes(DATA[:-3])
    write_case(tmp_path, "FILE2", DATA, {"w": W}, result="acceptable").with_name("stream.nnr").write_bytes(b"")
    found = outcomes(tmp_path, jobs=2)
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "PASS": "PASS",
        "VALUE": "FAIL",
        "SHAPE": "FAIL",
        "TYPE": "FAIL",
        "NAME": "FAIL",
        "VALID": "ERROR",
        "INVALID": "PASS",
        "CLASS": "FAIL",
        "BASE": "PASS",
        "UNIT": "FAIL",
        "XPASS": "XPASS",
        "EITHER": "PASS",
        "OTHER": "FAIL",
        "FILE": "ERROR",
        "FILE2": "ERROR",
    }
    assert found["VALUE"][1] == ("stream.nnr: tensor 'w' has other values: 1 of 3, the first is 0.0 for 1.0 at (0, 2)")
    assert "has shape (1, 3), not (3, 1)" in found["SHAPE"][1]
    assert "is float32, not float64" in found["TYPE"][1]
    assert "TruncatedError" in found["CLASS"][1]
    assert "PayloadError is expected" in found["CLASS"][1]
    assert "not for unit 1" in found["UNIT"][1]
    assert "the SHA-256 of" in found["FILE"][1]


def test_sequences(tmp_path: Path) -> None:
    sequence(tmp_path)
    assert outcomes(tmp_path) == {"SEQ": (Outcome.PASS, "")}
    assert outcomes(tmp_path, command=command("good")) == {"SEQ": (Outcome.PASS, "")}
    without = outcomes(tmp_path, command=command("good").replace("{inputs}", ""))
    assert without["SEQ"][0] == Outcome.SKIP


def test_a_topology_that_is_kept_apart(tmp_path: Path) -> None:
    graph = (
        b'version 1.0; graph g(x) -> (y) { x = external(shape = [1]); w = variable(shape = [3], label = "w"); y = w; }'
    )
    data = Bitstream({"w": [3]}).str_().mps(methods=0).raw(ndu("w", None, kind=NNR_PT_RAW_FLOAT), [1, 2, 3]).data
    topology = {"file": "topology.nnef", "sha256": hashlib.sha256(graph).hexdigest(), "bytes": len(graph)}
    path = write_case(tmp_path, "APART", data, {"w": np.array([1, 2, 3], np.float32)})
    path.with_name("topology.nnef").write_bytes(graph)
    assert outcomes(tmp_path)["APART"][0] == Outcome.ERROR  # it was not supplied
    facts = json.loads(path.read_text("utf-8")) | {"topology": topology}
    facts["expected"]["topology"] = topology
    path.write_text(json.dumps(facts), "utf-8")
    assert outcomes(tmp_path)["APART"] == (Outcome.PASS, "")
    assert outcomes(tmp_path, command=f"{command('good')} --topology={{topology}}")["APART"] == (Outcome.PASS, "")
    assert outcomes(tmp_path, command=command("good"))["APART"][0] == Outcome.SKIP


def test_a_word_with_topology_is_left_out_where_there_is_none(tmp_path: Path) -> None:
    write_case(tmp_path, "PLAIN", DATA, {"w": W})
    assert outcomes(tmp_path, command=f"{command('good')} --topology={{topology}}")["PLAIN"] == (Outcome.PASS, "")


def test_an_error_before_the_last_bitstream_is_not_the_expected_one(tmp_path: Path) -> None:
    path = sequence(tmp_path)
    facts = path.read_text("utf-8").replace('"result": "valid"', '"result": "invalid"')
    error = '"error": {"class": "BitstreamError", "unit": 0}, "result"'
    path.write_text(facts.replace('"result"', error, 1), "utf-8")
    broken = path.with_name("input0.nnr")
    data = broken.read_bytes()[:3]
    text = path.read_text("utf-8").replace(
        hashlib.sha256(broken.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest()
    )
    broken.write_bytes(data)
    path.write_text(text, "utf-8")
    outcome, detail = outcomes(tmp_path)["SEQ"]
    assert outcome == Outcome.ERROR
    assert detail.startswith("before the last bitstream: ")


def test_raw_and_texts(tmp_path: Path) -> None:
    write_case(tmp_path, "RAW", DATA, {"w": W}, expected={**described(DATA, {"w": W})["expected"], "raw": []})
    topology = {"bytes": 1, "sha256": "0" * 64}
    write_case(
        tmp_path, "TEXT", DATA, {"w": W}, expected={**described(DATA, {"w": W})["expected"], "topology": topology}
    )
    found = outcomes(tmp_path)
    assert found["RAW"] == (Outcome.FAIL, "stream.nnr: Rec tensor 'w' is not expected")
    assert found["TEXT"][0] == Outcome.FAIL


QP = -4
LEVELS = np.array([[3, -1, 0], [0, 0, 2]], np.int32)


def with_levels(root: Path, name: str, levels: Any, *, qp: int = QP, unit: int = 2) -> None:
    """Return a case whose QuantParam is declared as ``levels``, with a declared step size of its tensor."""
    data = Stream().start().ndu(ndu("w", [2, 3]), LEVELS, qp=QP).data
    tensors = {"w": (LEVELS * 2.0 ** (qp // 4)).astype(np.float32)}
    expected = described(data, tensors)["expected"]
    listed = [
        {"unit": unit, "shape": np.shape(each), "sha256": nnr.digest(np.array(each, np.int32))} for each in levels
    ]
    write_case(root, name, data, tensors, expected={**expected, "levels": listed})


def test_levels(tmp_path: Path) -> None:
    """They show whether entropy decoding or a later step is wrong."""
    others = LEVELS + 1
    with_levels(tmp_path, "PASS", [LEVELS])
    with_levels(tmp_path, "STEP", [LEVELS], qp=0)
    with_levels(tmp_path, "BOTH", [others], qp=0)
    with_levels(tmp_path, "VALUE", [others])
    with_levels(tmp_path, "SHAPE", [LEVELS.T])
    with_levels(tmp_path, "COUNT", [LEVELS, LEVELS])
    with_levels(tmp_path, "UNIT", [LEVELS], unit=1)
    found = outcomes(tmp_path)
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        name: "PASS" if name == "PASS" else "FAIL" for name in found
    }
    assert found["STEP"][1] == (
        "stream.nnr: tensor 'w' has other values: 3 of 6, the first is 1.5 for 3.0 at (0, 0); each QuantParam is right"
    )
    assert found["BOTH"][1].endswith("; QuantParam 0, of unit 2, has other values: entropy decoding (10.2)")
    assert found["VALUE"][1] == "stream.nnr: QuantParam 0, of unit 2, has other values"
    assert found["SHAPE"][1] == "stream.nnr: QuantParam 0, of unit 2, has shape (2, 3), not (3, 2)"
    assert found["COUNT"][1] == "stream.nnr: 1 QuantParam instead of 2"
    assert found["UNIT"][1] == "stream.nnr: QuantParam 0, of unit 1, is in unit 2"


def test_rec_variables_are_as_good_as_tensors(tmp_path: Path) -> None:
    """Another decoder may return the results of 7.3."""
    raw = described(DATA, {"w": W})["expected"]["tensors"]
    write_case(tmp_path, "REC", DATA, {"v": W}, expected={**described(DATA, {"v": W})["expected"], "raw": raw})
    assert outcomes(tmp_path, command=command("good"))["REC"] == (Outcome.PASS, "")
    outcome, detail = outcomes(tmp_path, command=command("wrong"))["REC"]
    assert (outcome, detail.partition(": 1 of 3")[0]) == (Outcome.FAIL, "stream.nnr: tensor 'w' has other values")
    assert outcomes(tmp_path)["REC"] == (Outcome.FAIL, "stream.nnr: tensor 'w' is not expected")


def test_requirements_are_named(tmp_path: Path) -> None:
    write_case(tmp_path, "A", DATA, error=TRUNCATED, requirements=["start-unit", "unit-size"])
    write_case(tmp_path, "B", DATA[:-3], error={**TRUNCATED, "unit": None}, requirements=["unit-size"])
    found = outcomes(tmp_path)
    assert found["A"] == (Outcome.XPASS, "decoded, but it is invalid (start-unit, unit-size)")
    assert found["B"][1].startswith("rejected, but not for the bitstream as a whole (unit-size): ")
    assert outcomes(tmp_path, lenient=True)["B"][0] == Outcome.PASS
    assert outcomes(tmp_path, lenient=True)["A"][0] == Outcome.XPASS


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a case takes is known on Linux")
def test_peaks_of_memory(tmp_path: Path) -> None:
    """Each case is measured separately: a large one does not affect later ones."""
    write_case(tmp_path, "A", DATA, {"w": W})
    zeros = np.zeros((4096, 4096), np.float32)
    write_case(tmp_path, "B", nnr.encode({"w": zeros}, row_skipping=True), {"w": zeros[:1, :1]})
    write_case(tmp_path, "C", DATA, {"w": W})
    small, large, after = (result.peak or 0 for result in run(load_cases(tmp_path), tmp_path, timeout=60))
    assert 0 < small < large - zeros.nbytes // 2
    assert 0 < after < large - zeros.nbytes // 2
    decoded = list(run(load_cases(tmp_path)[:2], tmp_path, timeout=60, command=command("good")))
    assert decoded[1].peak
    assert decoded[0].peak
    assert decoded[1].peak - decoded[0].peak > zeros.nbytes // 2


@pytest.mark.parametrize(
    ("mode", "valid", "invalid"),
    [
        ("good", "PASS", "PASS"),
        ("archive", "PASS", "PASS"),
        ("wrong", "FAIL", "PASS"),
        ("type", "FAIL", "PASS"),
        ("silent", "FAIL", "PASS"),
        ("rubbish", "ERROR", "PASS"),
        ("torn", "ERROR", "ERROR"),
        ("lenient", "PASS", "XPASS"),
        ("crash", "CRASH", "CRASH"),
        ("shell", "CRASH", "CRASH"),
    ],
)
def test_other_decoders(tmp_path: Path, mode: str, valid: str, invalid: str) -> None:
    write_case(tmp_path, "valid", DATA, {"w": W})
    if mode == "good":
        write_case(tmp_path, "odd", nnr.encode({"../a/ é%2e": W}), {"../a/ é%2e": W})
    write_case(tmp_path, "invalid", DATA[:-3], error=TRUNCATED)
    found = outcomes(tmp_path, command=command(mode), jobs=2)
    assert {outcome for name, (outcome, _) in found.items() if name != "invalid"} == {valid}
    assert found["invalid"][0] == invalid
    if mode == "crash":
        assert found["valid"][1] == "signal 6"


EXTENDED = ("NNR-SID-005", "NNR-SID-060", "NNR-SID-071", "NNR-SID-078", "NNR-SID-101", "NNR-SID-206", "NNR-SID-255")


def extended(*extensions: str, mode: str) -> dict[str, tuple[Outcome, str, str]]:
    """Return outcome, detail, and expected result of some cases about side information."""
    cases = [case for case in load_cases(ROOT / "sideinfo") if case.id in EXTENDED]
    found = list(run(cases, ROOT / "sideinfo", command=command(mode), extensions=extensions))
    return {result.case.id: (result.outcome, result.detail, result.case.result) for result in found}


@pytest.mark.slow
def test_a_decoder_that_does_not_know_side_information() -> None:
    """It returns the tensors of the units, also with a broken record, or rejects private units."""
    assert extended(mode="plain") == dict.fromkeys(EXTENDED, (Outcome.PASS, "", "acceptable"))
    refusing = extended(mode="patterns")  # which rejects broken records, and returns something else for the others
    assert [refusing[name][0] for name in EXTENDED] == ["FAIL"] * 4 + ["PASS"] * 3


@pytest.mark.slow
def test_a_decoder_that_knows_side_information() -> None:
    found = extended("side-information", mode="patterns")
    assert [found[name][0] for name in EXTENDED] == [Outcome.PASS] * len(EXTENDED)
    assert {result for _, _, result in found.values()} == {"valid", "invalid"}
    ignorant = extended("side-information", mode="plain")
    assert [ignorant[name][0] for name in EXTENDED] == ["FAIL", "FAIL", "FAIL", "FAIL", "XPASS", "PASS", "XPASS"]


def test_an_unknown_extension(tmp_path: Path) -> None:
    """The case applies to other decoders only."""
    expected = described(DATA, {"w": W})["expected"]
    write_case(tmp_path, "A", DATA, {"w": -W}, extension="another", expected={**expected, "raw": expected["tensors"]})
    write_case(tmp_path, "B", DATA, error=TRUNCATED, extension="another", expected={"raw": expected["tensors"]})
    write_case(tmp_path, "C", DATA, {"w": -W}, extension="another")
    found = outcomes(tmp_path)
    assert {name: outcome for name, (outcome, _) in found.items()} == {"A": "PASS", "B": "PASS", "C": "FAIL"}


def test_limits_are_the_decoders_own_affair(tmp_path: Path) -> None:
    write_case(tmp_path, "LIMIT", DATA, limits={"max_dims": 1}, error={"class": "LimitError", "unit": 2})
    assert outcomes(tmp_path)["LIMIT"][0] == Outcome.PASS
    outcome, detail = outcomes(tmp_path, command=command("good"))["LIMIT"]
    assert (outcome, detail) == (Outcome.PASS, "decoded; a decoder may have other limits")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited where its use is known")
def test_memory(tmp_path: Path) -> None:
    """A tensor of 64 MiB exceeds 16 MiB, for a command and for this library; a new process has all memory again."""
    write_case(tmp_path, "A", DATA, {"w": W})
    assert outcomes(tmp_path, command=command("allocate"))["A"][0] == Outcome.OOM
    zeros = np.zeros((4096, 4096), np.float32)
    data = nnr.encode({"w": zeros}, row_skipping=True)
    for name in ("B", "D"):
        write_case(tmp_path, name, data, {"w": zeros[:1, :1]})
    write_case(tmp_path, "C", DATA, {"w": W})
    found = outcomes(tmp_path, memory=1 << 24)
    assert [found[name][0] for name in "ABCD"] == ["PASS", "OOM", "PASS", "OOM"]
    assert outcomes(tmp_path, memory=None)["B"][0] == Outcome.FAIL
    assert outcomes(tmp_path, memory=1 << 100)["A"][0] == Outcome.PASS
    assert outcomes(tmp_path, memory=1)["B"][0] in (Outcome.OOM, Outcome.CRASH)  # even the interpreter may lack memory


def test_what_cannot_be_read_of_a_decoder_is_no_refusal(tmp_path: Path) -> None:
    """The decoder reported success for a bitstream that may be rejected."""
    write_case(tmp_path, "EITHER", DATA, {"w": W}, result="acceptable")
    write_case(tmp_path, "INVALID", DATA[:-3], error={"class": "FormatError", "unit": None})
    assert [outcome for outcome, _ in outcomes(tmp_path, command=command("torn")).values()] == ["ERROR", "ERROR"]


def test_expected_values_that_cannot_be_read(tmp_path: Path) -> None:
    """The digest is compared, also if the bitstream may be rejected."""
    expected = described(DATA, {"w": -W})["expected"]
    (tensor,) = expected["tensors"]
    write_case(tmp_path, "RAGGED", DATA, {}, expected={"tensors": [{**tensor, "values": [[1], [2, 3]]}]})
    del tensor["values"]
    path = write_case(
        tmp_path, "ARCHIVE", DATA, {}, result="acceptable", expected={"tensors": [{**tensor, "npz": "t0"}]}
    )
    path.with_name("expected.npz").write_bytes(b"PK")
    for outcome, detail in outcomes(tmp_path).values():
        assert outcome == Outcome.FAIL
        assert "tensor 'w' has other values; the expected values cannot be read: " in detail


@pytest.mark.skipif(sys.platform != "linux", reason="sizes of files are limited where memory is")
def test_a_decoder_that_talks_without_end(tmp_path: Path) -> None:
    """The file with its output may be as large as its memory."""
    write_case(tmp_path, "A", DATA, {"w": W})
    outcome, detail = outcomes(tmp_path, command=command("flood"), memory=1 << 27)["A"]
    assert (outcome, detail[:21]) == (Outcome.ERROR, "rejected: exit code 1")


@pytest.mark.skipif(os.name != "posix", reason="ends a group of processes")
@pytest.mark.slow
def test_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes of the decoder end with it, and no files remain."""
    monkeypatch.setenv("CHILD", str(tmp_path / "pid"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    write_case(tmp_path, "A", DATA, {"w": W})
    started = time.monotonic()
    (result,) = run(load_cases(tmp_path), tmp_path, timeout=3, command=command("hang"))
    assert result.outcome == Outcome.TIMEOUT
    assert time.monotonic() - started < 30
    assert not list(tmp_path.glob("nnr-conformance-*"))
    child = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{child}/stat")
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() - started < 30:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_worker_that_ends_is_replaced(tmp_path: Path) -> None:
    paths = [write_case(tmp_path, name, DATA, {"w": W}) for name in "ABC"]
    cases = load_cases(tmp_path)
    paths[1].unlink()
    assert [(result.outcome, result.detail) for result in run(cases, tmp_path)] == [
        (Outcome.PASS, ""),
        (Outcome.CRASH, "exit code 1"),
        (Outcome.PASS, ""),
    ]


def test_closing_early(tmp_path: Path) -> None:
    for k in range(20):
        write_case(tmp_path, f"{k:02}", DATA, {"w": W})
    results = run(load_cases(tmp_path), tmp_path, jobs=2)
    assert next(results).case.id == "00"
    results.close()  # type: ignore[attr-defined]  # a generator
    assert list(results) == []


def test_a_worker_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_case(tmp_path, "A", DATA, {"w": W})
    monkeypatch.setattr("nnr_codec.subprocess_command._START", "raise SystemExit(7)")
    with pytest.raises(OSError, match="did not start: exit code 7"):
        list(run(load_cases(tmp_path), tmp_path))


def test_summary(tmp_path: Path) -> None:
    write_case(tmp_path, "A", DATA, {"w": W})
    write_case(tmp_path, "B", b"", error={"class": "NnrError"})
    write_case(tmp_path, "C", DATA, {"w": W}, origin="somebody")
    a, b, c = load_cases(tmp_path)
    results = [Result(a, Outcome.PASS, "", 0), Result(a, Outcome.CRASH, "", 0), Result(b, Outcome.PASS, "", 0)]
    assert summary(results) == "2 valid: 1 pass, 1 crash, 1 invalid: 1 rejected"
    assert summary([Result(b, Outcome.XPASS, "", 0), Result(c, Outcome.PASS, "", 0)]) == (
        "1 invalid: 1 xpass, 1 interop: 1 pass"
    )
    assert [Result(a, outcome, "", 0).is_fine for outcome in Outcome] == [
        outcome in ("PASS", "SKIP") for outcome in Outcome
    ]
