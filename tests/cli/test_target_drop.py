"""Tests of nnr encode with sample inputs: --data, --module, --target-drop."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.encoder.accuracy_drop import predicted_drop
from nnr_codec.integrations.class_scores import onnx_scores
from nnr_codec.integrations.onnx import sensitivity
from tests.integrations.test_onnx import network

from .support import call

pytestmark = pytest.mark.medium

Capture = pytest.CaptureFixture[str]
NODES = [("Gemm", ["x", "a"], "h", {"transB": 1}), ("Relu", ["h"], "r", {}), ("Gemm", ["r", "b"], "y", {"transB": 1})]


def floats(*shape: int) -> np.ndarray:
    """Return the same normally distributed numbers each time."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


WEIGHTS = {"a": floats(40, 20) / 4, "b": floats(5, 40)}
X = floats(200, 20)
IS_FOURTH = np.arange(200) % 4 == 0
Y = np.random.default_rng(1).integers(0, 5, 200)


@pytest.fixture
def path(here: Path) -> str:
    """An ONNX file, with samples beside it."""
    np.savez("samples.npz", x=X)
    return network(here / "m.onnx", [*NODES], WEIGHTS, ["n", 20])  # type: ignore[list-item]


def test_the_predicted_loss_of_the_bitstream_meets_the_target(path: str, capsys: Capture) -> None:
    result = call(capsys, "encode", path, "-o", "m.nnr", "--data", "samples.npz", "--target-drop", "1")
    assert result.code == 0
    line = re.match(
        r"predicted loss of accuracy at ([\d,]+) bytes: (\d\.\d\d) points, at most (\d\.\d\d) with 95 % confidence "
        r"\(150 samples, \d+ evaluations\)\n",
        result.err,
    )
    assert line
    scores = onnx_scores(path, {"x": X[~IS_FOURTH]})
    found = predicted_drop(scores(nnr.load(path)), scores(nnr.decode("m.nnr")))
    size, *losses = line.groups()
    assert size == f"{Path('m.nnr').stat().st_size:,}"
    assert [*map(float, losses)] == pytest.approx(found, rel=0.2)  # an average with similar sizes
    assert float(losses[1]) <= 1


def test_calibration_and_prediction_use_different_samples(path: str, capsys: Capture) -> None:
    np.savez("labelled.npz", x=X, y=Y)
    options = ("--data", "labelled.npz", "--labels", "y", "--target-drop", "1")
    assert call(capsys, "encode", path, "-o", "m.nnr", *options).code == 0
    costs, moments = sensitivity(path, {"x": X[IS_FOURTH]})
    scores, labels = onnx_scores(path, {"x": X[~IS_FOURTH]}), Y[~IS_FOURTH]
    found = nnr.tune_drop(path, scores, target_drop=1, labels=labels, sensitivity=costs, hessians=moments)
    assert Path("m.nnr").read_bytes() == nnr.encode(path, found.config)


def test_samples_are_used_for_any_goal(path: str, capsys: Capture) -> None:
    options = ("--data", "samples.npz", "--target-ratio", "20%")
    assert call(capsys, "encode", path, "-o", "m.nnr", *options).code == 0
    costs, moments = sensitivity(path, {"x": X})
    assert Path("m.nnr").read_bytes() == nnr.encode(path, target_ratio=0.2, sensitivity=costs, hessians=moments)


@pytest.mark.torch
def test_a_pytorch_module_predicts_the_loss_of_its_weights(here: Path, capsys: Capture) -> None:
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    Path("net_with_loss.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(20, 6, bias=False)\n")
    nnr.save({"weight": floats(6, 20)}, "w.safetensors")
    np.savez("samples.npz", x=X)
    options = ("--data", "samples.npz", "--module", "net_with_loss:make", "--target-drop", "2")
    result = call(capsys, "encode", "w.safetensors", "-o", "w.nnr", *options)
    assert result.code == 0
    before, after = (X[~IS_FOURTH] @ model["weight"].T for model in (nnr.load("w.safetensors"), nnr.decode("w.nnr")))
    assert 0 < predicted_drop(before, after)[1] <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-drop", "1"], "--target-drop requires --data, a file of sample inputs"),
        (["--target-drop", "0"], "--target-drop must be above 0 and at most 100 points, got 0.0"),
        (["--target-drop", "x"], "'x' is not a number"),
        (["--target-drop", "1", "--qp", "-20"], "--target-drop and --qp cannot be combined; choose one"),
        (["--target-drop", "1", "--target-size", "1kB"], "--target-drop and --target-size cannot be combined"),
        (["--target-drop", "1", "--lossless"], "--target-drop and --lossless cannot be combined"),
        (["--target-drop", "1", "--preset", "small"], "--target-drop and --preset small cannot be combined"),
        (["--target-drop", "1", "--dry-run"], "--target-drop and --dry-run cannot be combined"),
        (["--lossless"], "--lossless keeps every bit, so --data has no effect; omit it"),
        (["--fixed-point", "q7.8"], "--fixed-point determines all step sizes, so --data has no effect; omit it"),
        (["--target-drop", "1", "--reduce", "sparsify(ratio=0.9)"], "raise it, or omit other options"),
        (["--sensitivity", "samples.npz"], "--data and --sensitivity cannot be combined"),
        (["--join", "{a,b}"], "--data and --join cannot be combined; the sensitivities are those of single tensors"),
        (["--module", "net:make"], "--module requires --data"),
        (["m.onnx"], "--data requires one model file, got 2"),
        (["--data", "none.npz"], "none.npz: No such file or directory"),
        (["--data", "few.npz", "--target-drop", "1"], "cannot be predicted from 6 decisions; use more samples, for 32"),
        (["--data", "one.npz", "--target-drop", "1"], "--target-drop requires more than one sample"),
        (["--labels", "y"], "--labels requires --target-drop"),
        (["--labels", "x", "--target-drop", "1"], "samples.npz has no array for an input of the network"),
        (["--labels", "y", "--target-drop", "1"], "samples.npz has no array 'y' for --labels; it has 'x'"),
        (["--data", "high.npz", "--labels", "y", "--target-drop", "1"], "must be classes from 0 to 4, got 1 to 5"),
        (["--data", "half.npz", "--labels", "y", "--target-drop", "1"], "shape (150,), got float64 of shape (150,)"),
        (["--data", "other.npz"], "onnxruntime cannot run the model"),
    ],
)
def test_wrong_arguments_give_one_line(path: str, capsys: Capture, arguments: list[str], message: str) -> None:
    np.savez("few.npz", x=X[:9])
    np.savez("one.npz", x=X[:1])
    np.savez("other.npz", x=X[:, :7])
    np.savez("high.npz", x=X, y=Y + 1)
    np.savez("half.npz", x=X, y=Y / 2)
    needs_data = "requires --data" not in message
    result = call(capsys, "encode", path, *(["--data", "samples.npz"] if needs_data else []), "-o", "d/", *arguments)
    assert result.code != 0
    assert message in " ".join(result.err.split())
    assert not list(Path().glob("**/*.nnr"))


def test_weights_without_a_module_are_rejected(here: Path, capsys: Capture) -> None:
    np.savez("w.npz", x=X)
    result = call(capsys, "encode", "w.npz", "-o", "w.nnr", "--data", "w.npz", "--target-drop", "1")
    assert result.code == 3
    assert result.err.startswith("nnr: error: without --module, MODEL must be an ONNX file: ")


def test_a_model_with_several_outputs_is_rejected(tmp_path: Path) -> None:
    import onnx

    path = network(tmp_path / "m.onnx", [*NODES], WEIGHTS, ["n", 20])  # type: ignore[list-item]
    model = onnx.load(path)
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, None))
    onnx.save(model, path)
    with pytest.raises(nnr.EncodeError, match=r"must have one output, the scores of classes; it has \['y', 'h'\]"):
        onnx_scores(path, {"x": X})
