"""The benchmark of lossless updates runs with a small network, and its peers restore every update."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import needs_shared

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.torch
@needs_shared
def test_a_small_network_is_measured() -> None:
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    command = [sys.executable, "-m", "benchmarks.weight_updates", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["row"] for row in rows] == ["anchor", *["update", "contexts"] * 2], done.stderr
    assert all(row["bytes"]["ours"] <= 0.9 * row["bytes"]["in order"] for row in rows[1::2])
