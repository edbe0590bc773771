"""OpenVX folders, which are written only: of an NNEF or ONNX graph, and values for its variables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nnr_codec import formats
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.limits import Budget
from nnr_codec.model import Model, Topology

from ...formats.onnx_nets import Net
from .support import LIMITS, folder, harmless
from .topology import COMPOSITIONAL, FLAT

TYPES = {"scalar": np.float32, "integer": np.int8, "logical": np.uint8}


def target(data: bytes) -> None:
    """Write the folder of a network of zeros and ones."""
    with folder({}) as path, harmless():
        budget, tensors = Budget(LIMITS), {}
        if data.startswith(b"\x08"):
            model = formats.load(data, format="onnx", limits=LIMITS)
            model.tensors = {name: np.ones_like(model[name]) for name in model}
        else:
            for variable in parse_graph(data, LIMITS).variables:
                budget.tensor(variable.shape, 4, variable.label)
                tensors[variable.label] = np.ones(variable.shape, TYPES[variable.dtype])
            model = Model(tensors, Topology("nnef", data))
        formats.save(model, path / "m.openvx")
        for each in (path / "m.openvx").iterdir():
            if each.suffix in (".c", ".h"):
                assert each.read_bytes().isascii()


def seeds() -> Iterable[bytes]:
    """Return graphs, one of which the extension supports completely."""
    yield FLAT
    yield COMPOSITIONAL
    net = Net((1, 3, 6, 6), ("n",)).conv("x", "c", "c", 4, 3, 3, 3, strides=[2, 2]).norm("c", "n", "n", 4)
    net.integers("p", 0, 1, 0, 0, 0, 1, 0, 1)
    net.op("Pad", "n p", "q").op("MaxPool", "q", "m", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    net.weight("w", 24, 2)
    net.op("Relu", "m", "r").op("Flatten", "r", "f").op("Gemm", "f w", "y")
    yield net.data()
    net = (
        Net((1, 3, 6, 6), ("n",))
        .op("GlobalAveragePool", "x", "g")
        .op("Mul", "g x", "s")
        .op("Concat", "s x", "t", axis=1)
    )
    for name, items in {"a": (0, 0), "b": (9, 9), "d": (2, 3), "e": (2, 2)}.items():
        net.integers(name, *items)
    yield (
        net.op("Slice", "t a b d e", "u")
        .op("ReduceMean", "u", "v", axes=[2, 3], keepdims=0)
        .op("Softmax", "v", "y")
        .data()
    )
    yield FLAT.replace(b"stride = [1, 1, 2, 2]", b"stride = [1, 1, 1, 1]").replace(b"relu(n)", b"sigmoid(copy(n))")
