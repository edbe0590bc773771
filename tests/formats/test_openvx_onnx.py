"""OpenVX clients of ONNX graphs: they compute what onnxruntime does, in Q7.8."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning
from nnr_codec.model import Model, Topology

from .onnx_files import field
from .onnx_nets import Net, outputs
from .openvx import compiled, compiles, levels, run, written

pytestmark = pytest.mark.medium

X = np.random.default_rng(5).normal(0, 1, (1, 3, 8, 9)).astype("f4")


def net(*output: int | str) -> Net:
    return Net(X.shape, output or (1, "c", "h", "w"))


def weighted(of: Net, name: str, *shape: int) -> Net:
    of.weight(name, *shape)
    return of


def constants(of: Net, **values: tuple[int, ...]) -> Net:
    for name, items in values.items():
        of.integers(name, *items)
    return of


def chained() -> Net:
    """Return a view of the batch and the rest, as PyTorch exports it."""
    made = constants(net("n", "c"), zero=(0,), rest=(-1,)).op("Relu", "x", "r").op("Shape", "r", "s")
    made.op("Gather", "s zero", "n", axis=0).op("Concat", "n rest", "shape", axis=0).op("Reshape", "r shape", "f")
    return weighted(made, "w", 5, 216).op("Gemm", "f w", "y", transB=1)


GRAPHS: dict[str, Callable[[], Net]] = {
    "convolution": lambda: net().conv("x", "y", "c", 4, 3, 3, 3, strides=[2, 1], dilations=[1, 1]),
    "more padding after": lambda: net().conv("x", "y", "c", 4, 3, 3, 3, strides=[2, 2], pads=[0, 0, 1, 2]),
    "automatic padding": lambda: weighted(net(), "w", 4, 3, 3, 3).op(
        "Conv", "x w", "y", strides=[2, 2], auto_pad=field(4, "SAME_UPPER")
    ),
    "transposed convolution": lambda: weighted(net(), "w", 3, 4, 3, 3).op(
        "ConvTranspose", "x w", "y", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[0, 0]
    ),
    "an added bias": lambda: weighted(weighted(net(), "w", 4, 3, 1, 1), "b", 4, 1, 1)
    .op("Conv", "x w", "c")
    .op("Add", "b c", "y"),
    "batch normalization": lambda: net().norm("x", "y", "n", 3),
    "Gemm of columns": lambda: weighted(weighted(net("n", "c"), "w", 216, 5), "b", 5)
    .op("Flatten", "x", "f")
    .op("Gemm", "f w b", "y"),
    "MatMul": lambda: weighted(weighted(constants(net("n", "c"), s=(0, -1)), "w", 216, 5), "b", 5)
    .op("Reshape", "x s", "f")
    .op("MatMul", "f w", "m")
    .op("Add", "m b", "y"),
    "a computed shape": chained,
    "MaxPool": lambda: net().op("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2]),
    "MaxPool to the end": lambda: net()
    .op("Relu", "x", "r")
    .op("MaxPool", "r", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "AveragePool": lambda: net().op("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[2, 2]),
    "AveragePool of zeros": lambda: net().op(
        "AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "GlobalAveragePool": lambda: net().op("GlobalAveragePool", "x", "y"),
    "GlobalMaxPool": lambda: net().op("GlobalMaxPool", "x", "y"),
    "ReduceMean": lambda: net("n", "c").op("ReduceMean", "x", "m", axes=[-1, -2], keepdims=0).op("Relu", "m", "y"),
    "Clip": lambda: net().constant("low", 0.0).constant("high", 0.75).op("Clip", "x low high", "y"),
    "Softmax": lambda: net().op("Softmax", "x", "y", axis=-3),
    "LRN": lambda: net().op("LRN", "x", "y", size=3, alpha=0.5, beta=0.75),
    "Concat": lambda: net()
    .op("Relu", "x", "r")
    .op("Tanh", "x", "a")
    .op("Concat", "r a", "c", axis=-3)
    .op("Relu", "c", "y"),
    "Pad": lambda: constants(net(), p=(0, 1, 0, 2, 0, 1, 1, 0)).op("Pad", "x p", "p0").op("Relu", "p0", "y"),
    "rows and columns": lambda: constants(net(), a=(0, 0), b=(99, 99), c=(2, -1), d=(2, 3))
    .op("Slice", "x a b c d", "s")
    .op("Relu", "s", "y"),
    "Unsqueeze": lambda: constants(net(), one=(-1,)).op("Relu", "x", "r").op("Unsqueeze", "r one", "u").op(
        "Squeeze", "u one", "y"
    ),
    "activations": lambda: net().op("Sigmoid", "x", "a").op("Tanh", "a", "b").op("Softplus", "b", "y"),
    "operands": lambda: net().op("GlobalAveragePool", "x", "m").op("Mul", "m x", "p").op("Sub", "p x", "y"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_client_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    """Within two steps of 2**-8 for each layer."""
    data = nnr.encode(GRAPHS[name]().model(), fixed_point="q7.8")
    nnr.decode_file(data, tmp_path / "net.onnx")
    nnr.decode_file(data, folder := tmp_path / "net.openvx")
    found, calls = run(compiled(folder, tmp_path / "client"), folder, [X])
    (wanted,) = outputs(tmp_path / "net.onnx", (levels(X) / 256).astype("f4"))
    assert found.size == wanted.size
    layers = len(re.findall("^(?!tensor|virtual|view)", calls, re.MULTILINE))
    assert np.abs(found.reshape(wanted.shape) - 256 * wanted).max() <= 2 * layers


LEFT = {
    "Conv": net().conv("x", "y", "c", 3, 1, 3, 3, group=3),
    "MaxPool": net().op("MaxPool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "AveragePool": net().op("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "Slice": constants(net(), a=(1,), b=(9,), c=(2,)).op("Slice", "x a b c", "y"),
    "Transpose": net().op("Transpose", "x", "y", perm=[0, 1, 3, 2]),
    "Gemm": weighted(net("n", "c"), "w", 216, 5).op("Flatten", "x", "f").op("Gemm", "f w", "y", alpha=2.0),
    "Elu": net().op("Elu", "x", "y"),
    "Clip": net().op("Clip", "x", "y"),
    "Pad": constants(net(), p=(0, 0, 1, 1, 0, 0, 1, 1)).op("Pad", "x p", "y", mode=field(4, "reflect")),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_nodes_are_left(name: str, tmp_path: Path) -> None:
    with pytest.warns(FormatWarning, match=rf"add them to the graph: {name} \(1\)$"):
        folder = written(LEFT[name].model(), tmp_path / "net.openvx")
    compiles(folder)
    assert not json.loads((folder / "tensors.json").read_text())["is_complete"]


def test_a_batch_of_any_size_is_one(tmp_path: Path) -> None:
    made = Net(("n", 3, 4, 4), ("n", 3, 4, 4)).op("Relu", "x", "y")
    folder = written(made.model(), tmp_path / "net.openvx")
    (signal,) = json.loads((folder / "tensors.json").read_text())["inputs"]
    assert (signal["name"], signal["dims"]) == ("x", [4, 4, 3, 1])


@pytest.mark.parametrize(
    "made",
    [
        net().op("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[0, 0], ceil_mode=1),
        net().op("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[0, 0]),
        net().op("MaxPool", "x", "y", kernel_shape=[1 << 62, 1 << 62], dilations=[1 << 62, 1 << 62]),
        net().op("AveragePool", "x", "y", kernel_shape=[2, 2], pads=[1 << 62, 0, 1 << 62, 0]),
        net().op("Concat", "x", "y", axis=9),
        net().op("Flatten", "x", "y", axis=-9),
        net().op("Softmax", "x", "y", axis=7),
        net().op("ReduceMean", "x", "y", axes=[5]),
        net().op("GlobalMaxPool", "y", "y"),
        weighted(net(), "w", 3).op("Conv", "x w", "y"),
        weighted(net(), "w", 4, 3, 3, 3).op("Conv", "x w", "y", strides=[0, 0], auto_pad=field(4, "SAME_UPPER")),
        weighted(net(), "w", 3, 4, 3, 3).op("ConvTranspose", "x w", "y", output_padding=[1 << 62, 1]),
        constants(net(), s=(-1, -1)).op("Reshape", "x s", "y"),
        constants(net(), a=(0,), b=(9,), c=(2,), d=(0,)).op("Slice", "x a b c d", "y"),
        constants(net(), p=(-20,) * 8).op("Pad", "x p", "y"),
        constants(net(), p=(1,)).op("Pad", "x p", "y"),
        Net((1, 3, 1 << 62, 1 << 62), ("n",)).op("Relu", "x", "y"),
        Net((1, 3, "h", 4), ("n",)).op("Relu", "x", "y"),
        net().op("Relu", "z", "y"),
    ],
)  # fmt: skip
def test_hostile_nodes_are_left(made: Net, tmp_path: Path) -> None:
    with pytest.warns(FormatWarning, match="the client omits operations"):
        nnr.save(Model({}, made.model().topology), tmp_path / "net.openvx")
    compiles(tmp_path / "net.openvx")


def test_pruned_tensors_have_their_own_shapes(tmp_path: Path) -> None:
    """The graph declares the shapes of before."""
    model = net().conv("x", "c", "c", 4, 3, 3, 3).op("Relu", "c", "y").model()
    model.tensors = {name: levels(model[name][:2]).astype("f4") / 256 for name in model}
    model.pruned = set(model.tensors)
    nnr.save(model, tmp_path / "net.openvx")
    (output,) = json.loads((tmp_path / "net.openvx" / "tensors.json").read_text())["outputs"]
    assert output["dims"] == [9, 8, 2, 1]


def test_old_models_have_no_layers(tmp_path: Path) -> None:
    """Before opset 7, operands are broadcast in other ways."""
    topology = Net(X.shape, opset=6).op("Relu", "x", "y").model().topology
    assert isinstance(topology, Topology)
    with pytest.warns(FormatWarning, match=r"an expression \(1\)$"):
        nnr.save(Model({}, topology), tmp_path / "net.openvx")
