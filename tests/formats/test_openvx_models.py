"""Real networks as OpenVX clients: they classify like Q7.8 arithmetic, in the test implementation and in others."""

from __future__ import annotations

import ctypes.util
import io
import json
import re
import subprocess
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning
from nnr_codec.model import Array

from ..cli.support import DIGITS
from ..shared import SHARED, needs_shared
from .openvx import (
    COMPILER,
    Levels,
    compiled,
    compiles,
    convolution,
    levels,
    linear,
    max_pool,
    normalization,
    run,
    saturated,
    written,
)

pytestmark = pytest.mark.medium

MODELS = SHARED / "models" if SHARED else Path()


def logits(tensors: Mapping[str, Array], images: Array) -> Levels:
    """Return the Q7.8 outputs of the digits network, layer by layer, for tensors with folded batch normalizations."""
    known = {name: levels(tensor) for name, tensor in tensors.items()}
    x = levels(images)
    for k in (1, 2):
        weight, bias = known[f"conv{k}/weight"], known[f"bn{k}/bias"]
        x = max_pool(convolution(x, weight, bias, pads=[(1, 1), (1, 1)]).clip(0), 2, 2)
    x = linear(x, known["fc1/weight"], known["fc1/bias"]).clip(0)
    return linear(x, known["fc2/weight"], known["fc2/bias"])


def softmax(values: Levels) -> Levels:
    powers = np.exp((values - values.max(axis=1, keepdims=True)) / 256)
    return np.rint(256 * powers / powers.sum(axis=1, keepdims=True)).astype(np.int64)


@needs_shared
def test_digits(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The client of the decoded model computes the numbers of Python, with the accuracy of floats."""
    test = np.load(MODELS / "digits_test.npz")
    model = nnr.load(MODELS / "digits_cnn.nnef")
    folder = written(model, tmp_path / "digits.openvx", fold_batchnorm=True)
    found, calls = run(compiled(folder, tmp_path / "client"), folder, list(test["x"]))
    data = nnr.encode(model, fixed_point="q7.8", fold_batchnorm=True)
    wanted = softmax(logits(nnr.decode(data).tensors, test["x"]))
    assert np.abs(found - wanted).max() <= 1
    accuracy = float((found.argmax(axis=1) == test["y"]).mean())
    reference = float((test["p"].argmax(axis=1) == test["y"]).mean())
    record_property(
        "figure: digits in Q7.8, accuracy of the OpenVX client", f"{accuracy:.4f} ({reference:.4f} in float)"
    )
    assert accuracy >= reference - 0.005
    assert re.findall(r"^(convolution|max|fully|softmax)", calls, re.MULTILINE) == [
        *("convolution", "max") * 2,
        *("fully", "fully", "softmax"),
    ]


@needs_shared
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("digits_cnn.nnef_tools.nnef", 10),
        ("digits_cnn.onnx", 10),
        ("resnet20_cifar10.nnef", 51),
        ("resnet20_cifar10.onnx", 53),  # rows and columns are skipped by layers of their own
        ("squeezenet1_0_deepcompression.nnef", 57),
        pytest.param("squeezenet1_0_deepcompression.onnx", 57, marks=pytest.mark.slow),
    ],
)
def test_other_networks(name: str, layers: int, tmp_path: Path) -> None:
    """All weights are rint(w * 256), and all layers are there."""
    model, target = nnr.load(MODELS / name), tmp_path / "x.openvx"
    fold = "resnet" in name
    with warnings.catch_warnings():
        warnings.simplefilter("error", FormatWarning)
        written(model, target, fold_batchnorm=fold)
    compiles(target)
    text = (target / "client.c").read_text()
    assert len(re.findall(r"^        status = \w+\(graph, signals, ", text, re.MULTILINE)) == layers
    source = nnr.folded(model, fold_batchnorm=True, fixed_point="q7.8") if fold else model
    for tensor in json.loads((target / "tensors.json").read_text())["tensors"]:
        items = np.fromfile(target / tensor["file"], "<i2")
        assert np.array_equal(items, levels(source[tensor["name"]]).reshape(-1))


def cifar(count: int) -> Array:
    """Return about ``count`` evenly spaced images of the test set, in the form that the networks require."""
    image = pytest.importorskip("PIL.Image")
    found, images = np.load(SHARED / "eval" / "cifar10_test.npz") if SHARED else {}, []
    offsets = found["offsets"]
    for k in range(0, len(offsets) - 1, (len(offsets) - 1) // count):
        pixels = image.open(io.BytesIO(found["jpeg"][offsets[k] : offsets[k + 1]].tobytes()))
        images.append((np.asarray(pixels) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225))
    return np.stack(images).transpose(0, 3, 1, 2).astype("f4")


def resnet(tensors: Mapping[str, Array], images: Array) -> Levels:
    """Return the outputs of ResNet-20 in Q7.8, computed layer by layer; folded batch norms have only an offset."""
    known = {name.replace(".", "/"): tensor for name, tensor in tensors.items()}

    def layer(x: Levels, conv: str, norm: str, stride: int = 1) -> Levels:
        weight, offset = levels(known[f"{conv}/weight"]), known[f"{norm}/bias"]
        places = ("running_mean", "running_var", "bias", "weight")
        mean, variance, _, scale = (known[f"{norm}/{place}"] for place in places)
        is_folded = not mean.any() and bool((scale == 1).all())
        bias = levels(offset) if is_folded else None
        y = convolution(x, weight, bias, pads=[(1, 1), (1, 1)], stride=(stride, stride))
        return y if is_folded else normalization(y, mean, variance, offset, scale, epsilon=1e-5)

    x = layer(levels(images), "conv1", "bn1").clip(0)
    for k in range(9):
        name, stride = f"layer{k // 3 + 1}/{k % 3}", 2 if k in (3, 6) else 1
        y = layer(x, f"{name}/conv1", f"{name}/bn1", stride).clip(0)
        more = (y.shape[1] - x.shape[1]) // 2
        around = np.pad(x[:, :, ::stride, ::stride], [(0, 0), (more, more), (0, 0), (0, 0)])
        x = saturated(layer(y, f"{name}/conv2", f"{name}/bn2") + around).clip(0)
    return linear(saturated(x.mean(axis=(2, 3))), levels(known["linear/weight"]), levels(known["linear/bias"]))


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "fold"), [("nnef", False), ("nnef", True), ("onnx", False)])
def test_resnet(suffix: str, fold: bool, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The client returns the outputs of the network in Q7.8, whose decisions are the same as in float32."""
    runtime = pytest.importorskip("onnxruntime")
    images, folder = cifar(10), tmp_path / "resnet.openvx"
    model = nnr.load(MODELS / f"resnet20_cifar10.{suffix}")
    data = nnr.encode(model, fixed_point="q7.8", fold_batchnorm=fold)
    nnr.decode_file(data, folder)
    found, calls = run(compiled(folder, tmp_path / "client"), folder, list(images))
    assert np.array_equal(found, resnet(nnr.decode(data).tensors, images))
    session = runtime.InferenceSession(MODELS / "resnet20_cifar10.onnx", providers=["CPUExecutionProvider"])
    wanted = np.concatenate([session.run(None, {"input": image[None]})[0] for image in images])
    same, error = (found.argmax(axis=1) == wanted.argmax(axis=1)).mean(), np.abs(found / 256 - wanted).max()
    name = f"figure: ResNet-20 in Q7.8, {suffix}{', folded' if fold else ''}"
    record_property(name, f"{same:.2f} of the decisions of float32, largest error {error:.2f}")
    assert same >= 0.9
    assert error < (2 if fold else 0.5)
    assert (calls.count(" + "), calls.count(" * ")) == ((9, 0) if fold else (28, 19))


@needs_shared
def test_parts_of_a_tensor_are_views(tmp_path: Path) -> None:
    """The graph with the eight concatenations of SqueezeNet is built; computing it would take seconds."""
    folder = written(nnr.load(MODELS / "squeezenet1_0_deepcompression.nnef"), tmp_path / "x.openvx")
    program = compiled(folder, tmp_path / "client")
    found, calls = run(program, folder, [])
    assert found.size == 0
    assert calls.count("\nview ") == 16


# ------------------------------------------------------------------------------------------------ OpenVX itself
def installed(tmp_path: Path) -> list[str]:
    """Return the linker options for the OpenVX of this machine; skip if it lacks the extension."""
    probe = tmp_path / "probe.c"
    probe.write_text("#include <VX/vx.h>\n#include <VX/vx_khr_nn.h>\nint main(void) { return !vxSoftmaxLayer; }\n")
    command = [COMPILER, str(probe), "-lopenvx", "-o", str(tmp_path / "probe")]
    found = ctypes.util.find_library("openvx")
    if found is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no libopenvx is installed, or none with the neural network extension")
    return ["-lopenvx"]


@needs_shared
@pytest.mark.openvx
def test_digits_in_openvx(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The same client runs with the OpenVX of this machine, which may have narrower accumulators."""
    libraries = installed(tmp_path)
    test = np.load(MODELS / "digits_test.npz")
    folder = written(nnr.load(MODELS / "digits_cnn.nnef"), tmp_path / "x.openvx", fold_batchnorm=True)
    program = tmp_path / "client"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{folder}", str(folder / "client.c"), *libraries]
    subprocess.run([COMPILER, *flags, "-o", str(program)], check=True)
    found, _ = run(program, folder, list(test["x"]))
    accuracy = float((found.argmax(axis=1) == test["y"]).mean())
    record_property("figure: digits in Q7.8, accuracy of the client in OpenVX", f"{accuracy:.4f}")
    assert accuracy >= 0.99


def test_the_digits_of_the_examples(tmp_path: Path) -> None:
    """This test needs no reference material."""
    folder = written(nnr.load(DIGITS), tmp_path / "x.openvx", fold_batchnorm=True)
    images = np.random.default_rng(3).uniform(0, 1, (5, 1, 8, 8))
    found, calls = run(compiled(folder, tmp_path / "client"), folder, list(images))
    data = nnr.encode(nnr.load(DIGITS), fixed_point="q7.8", fold_batchnorm=True)
    known = {name: levels(tensor) for name, tensor in nnr.decode(data).tensors.items()}
    x = convolution(levels(images), known["conv1/weight"], known["bn1/offset"], pads=[(1, 1), (1, 1)]).clip(0)
    x = convolution(max_pool(x, 2, 2), known["conv2/weight"], known["bn2/offset"], pads=[(1, 1), (1, 1)]).clip(0)
    x = linear(x, known["fc1/weight"], known["fc1/bias"]).clip(0)
    assert np.array_equal(found, linear(x, known["fc2/weight"], known["fc2/bias"]))
    assert "fully connected 4x4x48x1 by 768x64 with 64 to 64x1" in calls
