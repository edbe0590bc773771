"""Real networks as OpenVX clients: they classify as the arithmetic of Q7.8 does, in our OpenVX and in others."""

from __future__ import annotations

import ctypes.util
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
from .openvx import COMPILER, Levels, compiled, compiles, convolution, levels, linear, max_pool, run, written

pytestmark = pytest.mark.medium

MODELS = SHARED / "models" if SHARED else Path()


def logits(tensors: Mapping[str, Array], images: Array) -> Levels:
    """What the digits network gives in Q7.8, layer by layer, for tensors of the graph with folded batch norms."""
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
    """From the model to the bitstream to the client: the same numbers as in Python, and the accuracy of floats."""
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
    ("name", "left", "layers"),
    [
        ("digits_cnn.nnef_tools.nnef", None, 10),
        ("resnet20_cifar10.nnef", r"add \(9\), pad \(2\)", 42),
        ("squeezenet1_0_deepcompression.nnef", None, 57),
    ],
)
def test_other_networks(name: str, left: str | None, layers: int, tmp_path: Path) -> None:
    """All weights are rint(w * 256), and all layers but what the extension does not have are there."""
    model, target = nnr.load(MODELS / name), tmp_path / "x.openvx"
    fold = "resnet" in name
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        written(model, target, fold_batchnorm=fold)
    assert [one.category for one in told] == ([FormatWarning] if left else [])
    if left:
        assert re.search(f"add them to the graph: {left}$", str(told[0].message))
    compiles(target)
    text = (target / "client.c").read_text()
    assert len(re.findall(r"^        status = \w+\(graph, signals, ", text, re.MULTILINE)) == layers
    source = nnr.folded(model, fold_batchnorm=True, fixed_point="q7.8") if fold else model
    for tensor in json.loads((target / "tensors.json").read_text())["tensors"]:
        items = np.fromfile(target / tensor["file"], "<i2")
        assert np.array_equal(items, levels(source[tensor["name"]]).reshape(-1))


@needs_shared
def test_parts_of_a_tensor_are_views(tmp_path: Path) -> None:
    """The eight concatenations of SqueezeNet, whose graph is built; to compute it would take seconds."""
    folder = written(nnr.load(MODELS / "squeezenet1_0_deepcompression.nnef"), tmp_path / "x.openvx")
    program = compiled(folder, tmp_path / "client")
    found, calls = run(program, folder, [])
    assert found.size == 0
    assert calls.count("\nview ") == 16


# ------------------------------------------------------------------------------------------------ OpenVX itself
def installed(tmp_path: Path) -> list[str]:
    """What links a program with the OpenVX of this machine; skips where there is none with the extension."""
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
    """The same client with the OpenVX of this machine, whose accumulators may be narrower than ours."""
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
    """Runs without the reference material."""
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
