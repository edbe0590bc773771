"""The core set in the package: its contents, that it is current, and that it detects faults."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import nnr_codec as nnr
from nnr_codec.conformance import selftest
from nnr_codec.conformance.cases import load_cases
from nnr_codec.conformance.judge import Outcome

from ..vectors import core
from ..vectors.case import GROUPS
from ..vectors.make import ROOT, files


def test_it_passes() -> None:
    found = nnr.selftest()
    assert [(result.case.id, result.detail) for result in found.results if result.outcome != Outcome.PASS] == []
    assert found.is_fine
    assert [result.case.id for result in found.results] == [case.id for case in sorted(core.cases(), key=_place)]
    assert str(found).startswith("28 valid: 28 pass, 7 invalid: 7 rejected, 1 acceptable: 1 pass, ")


def _place(case: core.Case) -> tuple[str, str]:
    return case.folder.partition("/")[0], case.id


def test_the_core_set_is_fresh() -> None:
    """It is the output of `python -m tests.vectors.make`."""
    assert core.FILE.read_bytes() == core.archive(files)


def test_the_core_set_has_all_groups(tmp_path: Path) -> None:
    selftest.unpack(tmp_path)
    cases = load_cases(tmp_path)
    assert {case.group for case in cases} == set(GROUPS.values()) & {path.name for path in ROOT.iterdir()}
    for case in cases:
        beside = ROOT / case.group / case.id
        assert {path.name: path.read_bytes() for path in case.file.parent.iterdir()} == {
            path.name: path.read_bytes() for path in beside.iterdir()
        }


def test_it_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slightly wrong step size, and a missing check of the end of payloads, are detected."""
    from nnr_codec.decoder import task
    from nnr_codec.tensor.quant import step_size

    monkeypatch.setattr(task, "step_size", lambda qp, density: 2 * step_size(qp, density))
    found = nnr.selftest()
    assert not found.is_fine
    wrong = {result.case.id: result.detail for result in found.results if not result.is_fine}
    assert "NNR-QNT-003" in wrong
    assert wrong["NNR-QNT-003"].endswith("; each QuantParam is right")
    assert "FAIL NNR-QNT-003: stream.nnr: tensor " in str(found)


def test_a_core_set_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "CORE", "none.zip")
    with pytest.raises(FileNotFoundError):
        nnr.selftest()


@pytest.mark.medium
def test_without_ml_dtypes() -> None:
    """Its types are skipped, without a failure."""
    program = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import nnr_codec as nnr\n"
        "found = nnr.selftest()\n"
        "print(found.is_fine, *(result.case.id for result in found.results if result.outcome == 'SKIP'))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True NNR-SID-005\n"


def test_the_archive_is_one_that_every_machine_makes() -> None:
    with zipfile.ZipFile(core.FILE) as archive:
        infos = archive.infolist()
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert sum(info.file_size for info in infos) < 1 << 17
