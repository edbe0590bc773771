"""Tests of parameter reduction on the command line: nnr encode --reduce."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from nnr_cli.main import run

import nnr_codec as nnr

pytestmark = pytest.mark.medium

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.nnef"


def test_results_of_each_step_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "digits.nnr"
    steps = "sparsify(ratio=0.6), fold"
    assert run(["encode", str(DIGITS), "-o", str(target), "--reduce", steps, "--check"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("sparsify(ratio=0.6): ")
    assert "% zeros" in told[0] and " dB; about " in told[0] and told[0].endswith(" bytes")
    assert told[1].startswith("fold: ")
    assert told[-1].startswith("check: largest error")
    assert target.read_bytes() == nnr.encode(DIGITS, reduce=steps)
    assert not nnr.verify(target).violations
    arrays = map(np.asarray, nnr.decode(target).tensors.values())
    weights = [array for array in arrays if array.ndim > 1 and min(array.shape) > 1]
    zeros = sum(array.size - np.count_nonzero(array) for array in weights) / sum(array.size for array in weights)
    assert zeros >= 0.6


def test_a_dry_run_prints_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["encode", str(DIGITS), "--dry-run", "--reduce", "sparsify(ratio=0.5)"]) == 0
    assert "\nsparsify(ratio=0.5): " in capsys.readouterr().out
    assert run(["encode", str(DIGITS), "--dry-run", "--json", "--reduce", "sparsify(ratio=0.5)"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert step["step"] == "sparsify(ratio=0.5)"


def test_a_rule_keeps_tensors_out(tmp_path: Path) -> None:
    target = tmp_path / "digits.nnr"
    names = [name for name, array in nnr.load(DIGITS).tensors.items() if np.asarray(array).ndim == 4]
    rule = f"{names[0]}:reducible=false"
    assert run(["encode", "-q", str(DIGITS), "-o", str(target), "--reduce", "sparsify(ratio=0.9)", "--rule", rule]) == 0
    decoded, original = nnr.decode(target), nnr.load(DIGITS)
    kept = {name: np.count_nonzero(decoded[name]) / np.count_nonzero(original[name]) for name in names}
    assert kept[names[0]] > 0.9 and kept[names[1]] < 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reduce", "shrink"], "Error: --reduce: unknown step 'shrink'"),
        (["--reduce", "sparsify(ratio=2)"], "Error: --reduce: sparsify(ratio) 2.0 is outside 0..1"),
        (["--reduce", "sparsify(ratio=0.5, ratio=0.5)"], "Error: --reduce: sparsify has the option 'ratio' twice"),
        (["--reduce", "sparsify(ratio=)"], "Error: --reduce: sparsify: 'ratio=' is not an option with a value"),
        (["--reduce", "sparsify(ratio"], "Error: --reduce: 'sparsify(ratio' is not a list of steps, such as"),
        (
            ["--reduce", "fold, sparsify(ratio=1);fold"],
            "Error: --reduce: 'sparsify(ratio=1);fold' is not a list of steps",
        ),
        (["--reduce", "fold", "--fold-batchnorm"], "do the same; choose one"),
        (["--reduce", "fold", "--lossless"], "so --reduce has no effect"),
    ],
)
def test_options_that_mean_nothing(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "digits.nnr"
    assert run(["encode", str(DIGITS), "-o", str(target), *options]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reduce", "sparsify"], "sparsify requires a ratio"),
        (["--reduce", "fold, fold"], "no batch normalization can be folded"),
        (
            ["--reduce", "sparsify(ratio=1)", "--rule", "*:reducible=false"],
            "'*' is a float matrix that may change: rules keep them, or they are tied",
        ),
    ],
)
def test_what_cannot_be_done(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "digits.nnr"
    assert run(["encode", str(DIGITS), "-o", str(target), *options]) == 3
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_target_decides_on_amounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "digits.nnr"
    assert run(["encode", str(DIGITS), "-o", str(target), "--target-size", "6kB", "--reduce", "sparsify"]) == 0
    assert 5940 <= target.stat().st_size <= 6000
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert (
        told[0].startswith("sparsify(ratio=0.") or told[0] == "sparsify: skipped, because it does not help at this size"
    )


def test_a_ratio_is_of_the_model_that_was_given(tmp_path: Path) -> None:
    target, steps = tmp_path / "digits.nnr", "prune(ratio=0.3)"
    assert run(["encode", str(DIGITS), "-o", str(target), "--target-ratio", "0.05", "--reduce", steps]) == 0
    size = sum(np.asarray(array).nbytes for array in nnr.load(DIGITS).tensors.values())
    assert 0.99 * 0.05 * size <= target.stat().st_size <= 0.05 * size
    assert 0.04 < nnr.estimate(DIGITS, target_ratio=0.05, reduce=steps).ratio < 0.06


def test_steps_that_a_target_omits_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "w.npz", w=np.random.default_rng(5).standard_normal((48, 48), np.float32))
    command = ["encode", str(tmp_path / "w.npz"), "--target-size", "2kB", "--reduce", "lowrank, sparsify(ratio=0.01)"]
    assert run([*command, "-o", str(tmp_path / "w.nnr")]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in told[:2]] == ["sparsify(ratio=0.01)", "lowrank"]
    assert told[1] == "lowrank: skipped, because it does not help at this size"
    assert run([*command, "--dry-run"]) == 0
    assert told[1] in capsys.readouterr().out.splitlines()


def test_folding_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["encode", str(DIGITS), "--dry-run", "--reduce", "fold"]) == 0
    (told,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fold: ")]
    assert " dB" not in told
