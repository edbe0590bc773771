"""The benchmark of size and accuracy (benchmarks/accuracy)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from .shared import needs_shared

pytestmark = [pytest.mark.slow, pytest.mark.torch, needs_shared]
pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
for _package in ("sklearn", "PIL", "gguf", "zstandard", "ml_dtypes"):
    pytest.importorskip(_package)

ROOT = Path(__file__).resolve().parents[1]
METHODS = {"float32", "NNR, default", "NNR", "NNR, with data", "bfloat16", "integers", "GPTQ", "GGUF"}


def run(folder: Path, *options: str) -> str:
    """Run the benchmark with the trained network and the rows in a folder; return its standard output."""
    command = [sys.executable, "-m", "benchmarks.accuracy", "--output", str(folder / "rows.jsonl"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rows and the trained network of a quick run."""
    path = tmp_path_factory.mktemp("accuracy")
    run(path, "--quick", "--cache", str(path))
    return path


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]


def test_a_quick_run_measures_each_method_on_each_network(folder: Path) -> None:
    found = {(row["network"], row["method"]) for row in rows(folder)}
    networks = ("digits CNN", "digits example", "digits perceptron")
    tuned = {("digits perceptron", "NNR, fine-tuned")}  # training data are known
    assert found == tuned | {(network, method) for network in networks for method in METHODS}


def test_fine_settings_agree_with_the_float32_network(folder: Path) -> None:
    settings = {"default", "zstd -19", "8 bits", "Q8_0"}
    assert all(row["agreement"] >= 99.5 for row in rows(folder) if row["setting"] in settings)


def test_a_second_run_repeats_nothing(folder: Path) -> None:
    before = (folder / "rows.jsonl").read_bytes()
    run(folder, "--quick", "--cache", str(folder))
    assert (folder / "rows.jsonl").read_bytes() == before


def test_tables_and_charts_have_all_networks(folder: Path) -> None:
    printed = run(folder, "--table", "--charts", str(folder))
    chart = "".join(ElementTree.parse(folder / "accuracy.svg").getroot().itertext())
    networks = {row["network"] for row in rows(folder)}
    assert all(f"| {network} |" in printed and network in chart for network in networks)


def test_networks_with_test_samples_in_their_calibration_are_rejected() -> None:
    from benchmarks.accuracy.networks import Network, torch

    with pytest.raises(SystemExit, match="1 test samples of one occur"):
        Network("one", torch.nn.Identity(), [], lambda _: None, {b"a", b"b"}, {b"b"})  # type: ignore[arg-type,return-value]


def synthetic(method: str, setting: str, size: int, fall: float, **more: Any) -> dict[str, Any]:
    found = {"network": "one", "weights": "a", "samples": 1000, "method": method, "setting": setting}
    return found | {"bytes": size, "fall": fall} | more


def test_sizes_are_compared_at_the_score_of_int8() -> None:
    from benchmarks.accuracy.pages import Results

    curve = [synthetic("NNR", "fine", 200, 0.1), synthetic("NNR", "coarse", 50, 0.5)]
    results = Results([synthetic("float32", "", 1000, 0.0), synthetic("integers", "8 bits", 250, 0.3), *curve])
    assert results.ratio("one", "NNR", "int8", None) == pytest.approx(100 / 250)
    assert results.ratio("one", "NNR", "int8", 0.2) is None  # int8 falls more


def test_rows_of_different_weights_are_rejected() -> None:
    from benchmarks.accuracy.pages import Results

    with pytest.raises(SystemExit, match="delete the rows of the old weights"):
        Results([synthetic("float32", "", 1000, 0.0), synthetic("NNR", "fine", 200, 0.1, weights="b")])


def test_sizes_are_interpolated_between_monotone_falls() -> None:
    from benchmarks.accuracy.scores import size_at

    points = [(80.0, 0.1), (40.0, -0.1), (20.0, 0.0), (10.0, 2.0)]  # the first three are pooled to 0
    assert size_at(points, 1.0) == pytest.approx(math.sqrt(200))
