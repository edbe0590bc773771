"""The benchmark of federated training (benchmarks/federated)."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .shared import needs_shared

PACKAGES = ("torch", "flwr", "ray", "PIL", "zstandard")
pytestmark = [
    *(pytest.mark.slow, pytest.mark.torch, pytest.mark.flower, needs_shared),
    pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason=f"needs the packages {', '.join(PACKAGES)}"),
]

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("float32", "NNR, 1 % budget", "top-k, 1 %")


def run(folder: Path, *options: str) -> str:
    """Run the benchmark with rows and weights in a folder; return its standard output."""
    command = [sys.executable, "-m", "benchmarks.federated", "--output", str(folder / "rows.jsonl"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def simulate(folder: Path) -> list[dict[str, Any]]:
    """Run two short rounds with the transformer; return the rows."""
    options = ["--quick", "--cache", str(folder), "--network", "transformer", "--split", "identical"]
    run(folder, *options, *(part for method in METHODS for part in ("--method", method)))
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rows of finished runs, after an interrupted one."""
    path = tmp_path_factory.mktemp("federated")
    key = {"network": "transformer", "split": "identical", "method": "float32", "seed": 0, "rounds": 2, "round": 0}
    (path / "rows.jsonl").write_text(json.dumps(key) + "\n", encoding="utf-8")
    simulate(path)
    return path


def test_a_quick_run_has_all_rounds_of_each_method(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]
    assert [(row["method"], row["round"]) for row in rows] == [(method, k) for method in METHODS for k in range(3)]
    assert all(low <= row["accuracy"] <= high for row in rows for low, high in [row["interval"]])
    bytes_of = {row["method"]: row["uplink"] for row in rows if row["round"] == 2}
    assert bytes_of["NNR, 1 % budget"] <= bytes_of["float32"] / 100
    assert bytes_of["top-k, 1 %"] < bytes_of["float32"] / 50


def test_finished_runs_are_not_repeated(folder: Path) -> None:
    before = (folder / "rows.jsonl").read_bytes()
    simulate(folder)
    assert (folder / "rows.jsonl").read_bytes() == before


def test_the_table_has_all_methods(folder: Path) -> None:
    printed = run(folder, "--table")
    assert "transformer, identical split" in printed and all(f"| {method} |" in printed for method in METHODS)


def test_coders_return_the_restored_update_and_its_bytes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that Flower needs
        from benchmarks.federated.simulation import eight_bits, largest, np
    rng = np.random.default_rng(1)
    update = {"w": rng.normal(size=(40, 50)).astype(np.float32), "b": rng.normal(size=7).astype(np.float32)}
    nbytes, restored = eight_bits(update)
    assert 1000 < nbytes < 2100
    for name, array in update.items():
        assert np.abs(restored[name] - array).max() <= np.abs(array).max() / 250
    nbytes, restored = largest(update)
    assert nbytes < 160
    assert {name: np.count_nonzero(array) for name, array in restored.items()} == {"w": 20, "b": 1}
    kept = restored["w"] != 0
    assert np.abs(update["w"][kept]).min() >= np.abs(update["w"][~kept]).max()
    assert np.allclose(restored["w"][kept], update["w"][kept], rtol=1e-3)
