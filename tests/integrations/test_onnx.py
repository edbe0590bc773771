"""Tests of the calibration of ONNX models."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.integrations.onnx import POSITIONS, _patches, sensitivity

pytest.importorskip("onnx", reason="the package onnx (extra 'onnx') is not installed")
pytest.importorskip("onnxruntime", reason="the package onnxruntime (extra 'onnx') is not installed")
pytestmark = pytest.mark.medium

RNG = np.random.default_rng(1)


def network(path: Path, nodes: list[tuple[Any, ...]], weights: dict[str, Any], shape: list[Any]) -> str:
    """Write a model from its nodes, ``(operation, inputs, output, options)``, whose last one has the output."""
    helper: Any = importlib.import_module("onnx").helper
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], **options) for kind, inputs, output, options in nodes],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info(nodes[-1][2], 1, None)],
        [importlib.import_module("onnx").numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return str(path)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(nnr.MissingDependencyError, match=r"nnr_codec\[onnx\]"):
        sensitivity("model.onnx", {})


def test_linear_layers_have_the_costs_of_their_inputs(tmp_path: Path) -> None:
    """An error of a weight changes an output by the error times the input."""
    nodes = [("Gemm", ["x", "w"], "h", {"transB": 1}), ("MatMul", ["h", "v"], "y", {})]
    weights = {"w": floats(6, 5), "v": floats(6, 30)}
    x = floats(600, 5) * np.float32([1, 2, 3, 4, 5])
    costs, moments = sensitivity(network(tmp_path / "m.onnx", nodes, weights, ["n", 5]), {"any name": x})
    assert moments.keys() == {"w", "v"}
    hidden = (x @ weights["w"].T).astype(np.float64)
    for one, inputs in ((moments["w"][1], x.astype(np.float64)), (moments["v"][0], hidden)):
        assert one == pytest.approx(inputs.T @ inputs / 600, abs=0.03 * np.square(inputs).sum(1).mean())
    assert moments["w"][0] is moments["v"][1] is None
    assert costs["w"].shape == costs["v"].shape == ()
    through = np.square(x[:64]).mean() * np.square(weights["v"]).mean()  # mean squared derivative of an output
    assert costs["w"] / costs["v"] == pytest.approx(30 * through / np.square(hidden[:64]).mean(), rel=0.35)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [1, 2]},
        {"auto_pad": "VALID"},
    ],
)
def test_patches_times_weights_are_the_outputs_of_a_convolution(options: dict[str, Any], tmp_path: Path) -> None:
    runtime: Any = importlib.import_module("onnxruntime")
    weight, x = floats(4, 3, 2, 3), floats(2, 3, 7, 8)
    path = network(tmp_path / "m.onnx", [("Conv", ["x", "w"], "y", options)], {"w": weight}, [2, 3, 7, 8])
    outputs = runtime.InferenceSession(path).run(None, {"x": x})[0]
    given = {name: value.encode() if isinstance(value, str) else value for name, value in options.items()}
    found = _patches(x, (2, 3), given) @ weight.reshape(4, -1).T
    assert found == pytest.approx(np.moveaxis(outputs, 1, -1).reshape(-1, 4), abs=1e-5)


def test_variances_stay_positive(tmp_path: Path) -> None:
    nodes = [("BatchNormalization", ["x", "scale", "shift", "mean", "variance"], "y", {})]
    weights = dict(zip(("scale", "shift", "mean"), floats(3, 3), strict=True)) | {"variance": np.float32([1e-6, 1, 9])}
    costs, _ = sensitivity(network(tmp_path / "m.onnx", nodes, weights, ["n", 3]), {"x": floats(40, 3)})
    assert costs.keys() == weights.keys()


def test_large_images_give_a_limited_number_of_patches() -> None:
    assert _patches(floats(2, 1, 40, 50), (3, 3), {}).shape == (2 * POSITIONS, 9)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({}, r"the samples have arrays \[\], but the model has inputs \['x'\]"),
        ({"x": np.ones((3, 5), np.float32), "y": np.ones(3)}, r"arrays \['x', 'y'\]"),
        ({"x": np.ones((0, 5), np.float32)}, "must be equal and not 0"),
        ({"x": np.float32(1)}, "must be equal and not 0"),
        ({"x": np.ones((3, 5), np.complex64)}, "input 'x' has type float32, but the samples have complex64"),
        ({"x": np.ones((3, 4), np.float32)}, "onnxruntime cannot run the model: .*dimension"),
    ],
)
def test_samples_that_do_not_fit_are_rejected(samples: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = network(tmp_path / "m.onnx", [("MatMul", ["x", "w"], "y", {})], {"w": floats(5, 4)}, ["n", 5])
    with pytest.raises(nnr.EncodeError, match=message):
        sensitivity(path, samples)


def test_a_fixed_number_of_samples_is_required(tmp_path: Path) -> None:
    path = network(tmp_path / "m.onnx", [("MatMul", ["x", "w"], "y", {})], {"w": floats(5, 4)}, [4, 5])
    with pytest.raises(nnr.EncodeError, match="batches of 4; 6 samples are not a multiple"):
        sensitivity(path, {"x": floats(6, 5)})
    assert sensitivity(path, {"x": floats(8, 5)})[0].keys() == {"w"}
