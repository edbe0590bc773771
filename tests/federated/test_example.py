"""The example of federated training without a framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "examples" / "federated" / "train.py"


@pytest.mark.slow
def test_clients_send_less_at_the_same_accuracy(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs the extra examples")
    pytest.importorskip("matplotlib", reason="needs the extra examples")
    command = [sys.executable, str(TRAIN), "--rounds", "8", "--plot", str(tmp_path / "plots")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.splitlines()
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and "%" in line]
    assert [int(row[0]) for row in rows] == list(range(1, 9))
    plain, coded = ([float(row[k].rstrip("%")) for row in rows] for k in (1, 3))
    sent, fewer = (sum(int(row[k].replace(",", "")) for row in rows) for k in (2, 4))
    assert sent >= 12 * fewer
    assert coded[-1] >= plain[-1] - 2  # of 8 rounds; 0.5 points after all of them
    assert (tmp_path / "plots" / "federated.svg").read_text().startswith("<?xml")
