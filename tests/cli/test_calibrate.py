"""Tests of nnr calibrate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from tests.integrations.test_onnx import floats, network

from .support import call

pytestmark = pytest.mark.medium

Capture = pytest.CaptureFixture[str]


def test_the_command_writes_an_archive_for_encode(here: Path, capsys: Capture) -> None:
    path = network(here / "m.onnx", [("Gemm", ["x", "w"], "y", {"transB": 1})], {"w": floats(40, 50)}, ["n", 50])
    np.savez("samples.npz", x=floats(90, 50))
    result = call(capsys, "calibrate", path, "--data", "samples.npz", "--samples", 70, "-o", "known.npz")
    assert result.err.startswith(f"{path} -> known.npz: costs of 1 tensor, second moments of 1, from 70 samples in ")
    assert call(capsys, "encode", path, "-o", "m.nnr", "--target-ratio", "10%", "--sensitivity", "known.npz").code == 0
    with np.load("known.npz") as known:
        costs, moments = {"w": known["w"]}, {"w": known["hessian:w"]}
    assert Path("m.nnr").read_bytes() == nnr.encode(path, target_ratio=0.1, sensitivity=costs, hessians=moments)


@pytest.mark.torch
def test_the_command_calibrates_a_pytorch_module(here: Path, capsys: Capture) -> None:
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    Path("net_of_test.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(5, 3, bias=False)\n")
    nnr.save({"weight": floats(3, 5)}, "w.safetensors")
    x = floats(70, 5)
    np.savez("samples.npz", x=x)
    result = call(
        capsys, "calibrate", "w.safetensors", "--module", "net_of_test:make", "--data", "samples.npz", "-o", "k.npz"
    )
    assert result.err.startswith("w.safetensors -> k.npz: costs of 1 tensor, second moments of 1, from 70 samples in ")
    with np.load("k.npz") as known:
        assert {name: known[name].shape for name in known} == {
            "weight": (3, 5),
            "row_hessian:weight": (3, 3),
            "hessian:weight": (5, 5),
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.npz", "-o", "k.npz"], "m.npz"),
        (["m.onnx", "-o", "k.nnr"], "'k.nnr' must end in .npz"),
        (["m.npz", "--module", "nowhere", "-o", "k.npz"], "--module 'nowhere' is not of the form MODULE:FUNCTION"),
        (["m.npz", "--module", "nowhere:f", "-o", "k.npz"], "--module 'nowhere:f': No module named 'nowhere'"),
        (["m.onnx", "--data", "empty.npz", "-o", "k.npz"], "must have arrays with the same number of samples, got {}"),
        (["m.onnx", "--data", "scalar.npz", "-o", "k.npz"], "same number of samples, got {'x': 0}"),
    ],
)
def test_wrong_arguments_give_one_line(here: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    np.savez("m.npz", x=floats(4, 5))
    np.savez("scalar.npz", x=np.float32(1))
    nnr.save({}, "empty.npz")
    network(here / "m.onnx", [("MatMul", ["x", "w"], "y", {})], {"w": floats(5, 4)}, ["n", 5])
    result = call(capsys, "calibrate", "--data", "m.npz", *arguments)
    assert result.code != 0
    assert message in result.err
    assert not Path("k.npz").exists()
