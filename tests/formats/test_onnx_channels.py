"""Removable channels of ONNX graphs; the edited graph runs and has the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.model import Model, Topology

from ..shared import SHARED, examples, needs_shared
from . import onnx_files as made
from .onnx_nets import Net, check_removal, declared, outputs

Build = Callable[[Net], Any]
FIRST = "4: a.b@0- a.w@0 c.w@1-"  # only the channels of the first convolution


def between(*nodes: Build) -> Net:
    """Return a network with convolutions ``a`` and ``c``, 4 channels between, and nodes from ``p`` to ``q``."""
    net = Net().conv("x", "p", "a", 4, 3, 3, 3)
    for node in nodes:
        node(net)
    return net.conv("q", "y", "c", 3, 4, 3, 3)


def apply(operation: str, inputs: str = "p", **attributes: Any) -> Build:
    return lambda net: net.op(operation, inputs, "q", **attributes)


def vector(*shape: int) -> Build:
    return lambda net: net.weight("v", *shape)


def ints(*values: int) -> Build:
    return lambda net: net.integers("i", *values)


def constant(value: object) -> Build:
    """Return a Constant node of floats, which stays in the graph."""
    return lambda net: net.constant("k", value)


def zero() -> bytes:
    """Return a tensor of one integer as an attribute."""
    return made.field(5, made.tensor("", np.zeros(1, np.int64)))


def scales(*values: float) -> Build:
    return lambda net: net.tensors.update(s=np.array(values, np.float32))


def more(number: int, name: str, *shape: int) -> Build:
    """Return another field of the graph: an input or an output."""
    return lambda net: setattr(net, "more", made.field(number, declared(name, shape)))


def opset(version: int) -> Build:
    return lambda net: setattr(net, "opset", version)


def norm(operation: str = "BatchNormalization", count: int = 4, **attributes: Any) -> Build:
    def add(net: Net) -> None:
        names = [net.weight(f"n{k}", 4, low=0.1) for k in range(count)]
        net.op(operation, " ".join(["p", *names]), "q", **attributes)

    return add


NORMED = "4: a.b@0- a.w@0 c.w@1- n0@0- n1@0- n2@0- n3@0-"
WITH_V = "4: a.b@0- a.w@0 c.w@1- v@{}-"

FREE = {
    "alone": ([apply("Identity")], FIRST),
    "relu": ([apply("Relu")], FIRST),
    "clip": ([constant(0.5), apply("Clip", "p - k")], FIRST),
    "dropout": ([apply("Dropout")], FIRST),
    "norm": ([norm()], NORMED),
    "instance norm": ([norm("InstanceNormalization", 2)], "4: a.b@0- a.w@0 c.w@1- n0@0- n1@0-"),
    "prelu": ([vector(4, 1, 1), apply("PRelu", "p v")], WITH_V.format(0)),
    "one slope": ([vector(1), apply("PRelu", "p v")], FIRST),
    "product": ([vector(1, 4, 1, 1), apply("Mul", "v p")], WITH_V.format(1)),
    "sum": ([vector(4, 1, 1), apply("Add", "p v")], WITH_V.format(0)),
    "along the width": ([vector(6), apply("Add", "p v")], FIRST),
    "quotient": ([constant(2.0), apply("Div", "p k")], FIRST),
    "constant of no channels": ([constant([[[2.0]]]), apply("Sub", "k p")], FIRST),
    "residual": ([lambda n: n.op("Relu", "p", "r"), apply("Add", "p r")], FIRST),
    "three": ([lambda n: n.op("Relu", "p", "r"), apply("Sum", "p r p")], FIRST),
    "max pool": ([apply("MaxPool", kernel_shape=[2, 2])], FIRST),
    "average pool": ([apply("AveragePool", kernel_shape=[2, 2], strides=[2, 2])], FIRST),
    "global pool": ([apply("GlobalAveragePool")], FIRST),
    "mean": ([apply("ReduceMean", axes=[2, -1])], FIRST),
    "mean by input": ([opset(18), ints(2, 3), apply("ReduceMax", "p i")], FIRST),
    "mean of height": (
        [
            lambda n: n.op("ReduceMean", "p", "r", axes=[2], keepdims=0),
            lambda n: n.integers("i", 3),
            lambda n: n.op("Unsqueeze", "r i", "q"),
        ],
        FIRST,
    ),
    "squeezed": (
        [
            lambda n: n.op("GlobalMaxPool", "p", "r"),
            ints(-1, 2),
            lambda n: n.op("Squeeze", "r i", "s"),
            lambda n: n.op("Unsqueeze", "s i", "q"),
        ],
        FIRST,
    ),
    "older squeeze": (
        [
            opset(11),
            lambda n: n.op("GlobalMaxPool", "p", "r"),
            lambda n: n.op("Squeeze", "r", "s", axes=[3]),
            lambda n: n.op("Unsqueeze", "s", "q", axes=[3]),
        ],
        FIRST,
    ),
    "transposed": (
        [lambda n: n.op("Transpose", "p", "r", perm=[0, 2, 3, 1]), apply("Transpose", "r", perm=[0, 3, 1, 2])],
        FIRST,
    ),
    "channels last": (
        [
            lambda n: n.op("Transpose", "p", "r", perm=[0, 2, 3, 1]),
            vector(4),
            lambda n: n.op("Mul", "r v", "s"),
            lambda n: n.op("Transpose", "s", "q", perm=[0, 3, 1, 2]),
        ],
        WITH_V.format(0),
    ),
    "every other place": (
        [ints(0), lambda n: n.integers("e", 1 << 62), lambda n: n.integers("k", 2), lambda n: n.integers("s", 2),
         apply("Slice", "p i e k s")],
        FIRST,
    ),
    "padding that is computed": (  # in the form of PyTorch's exporters
        [ints(1, 0), lambda n: n.integers("z", 6), lambda n: n.op("ConstantOfShape", "z", "zeros", value=zero()),
         lambda n: n.op("Concat", "i zeros", "a", axis=0), lambda n: n.integers("j", -1, 2),
         lambda n: n.op("Reshape", "a j", "b"), lambda n: n.integers("s", -1), lambda n: n.integers("e", -(1 << 62)),
         lambda n: n.integers("k", 0), lambda n: n.op("Slice", "b s e k s", "c"),
         lambda n: n.op("Transpose", "c", "d", perm=[1, 0]), lambda n: n.integers("m", -1),
         lambda n: n.op("Reshape", "d m", "pads"), apply("Pad", "p pads")],
        FIRST,
    ),
    "padded": ([ints(0, 0, 1, 1, 0, 0, 1, 1), apply("Pad", "p i")], FIRST),
    "older padding": ([opset(10), apply("Pad", pads=[0, 0, 1, 1, 0, 0, 1, 1])], FIRST),
    "enlarged": ([constant([1, 1, 2, 2]), apply("Resize", "p - k")], FIRST),
    "enlarged by a tensor": ([scales(1, 1, 2, 2), apply("Resize", "p - s")], FIRST),
    "enlarged along axes": ([opset(18), scales(2, 2), apply("Resize", "p - s", axes=[2, 3])], FIRST),
    "gate": (
        [
            lambda n: n.op("GlobalAveragePool", "p", "r"),
            lambda n: n.conv("r", "s", "d", 2, 4, 1, 1),
            lambda n: n.conv("s", "t", "e", 4, 2, 1, 1),
            lambda n: n.op("Sigmoid", "t", "u"),
            apply("Mul", "p u"),
        ],
        "4: a.b@0- a.w@0 c.w@1- d.w@1- e.b@0- e.w@0",
    ),
    "depthwise": ([lambda n: n.conv("p", "q", "d", 4, 1, 3, 3, group=4)], "4: a.b@0- a.w@0 c.w@1- d.b@0- d.w@0-"),
    "joined": (
        [lambda n: n.conv("x", "r", "d", 4, 3, 1, 1), apply("Add", "p r")],
        "4: a.b@0- a.w@0 c.w@1- d.b@0- d.w@0",
    ),
    "one channel for all": (
        [lambda n: n.conv("x", "r", "d", 1, 3, 1, 1), apply("Mul", "p r")],
        FIRST,
    ),
    "one channel made several": (
        [lambda n: n.conv("x", "r", "d", 1, 3, 1, 1), vector(4, 1, 1), lambda n: n.op("Mul", "r v", "s"),
         apply("Add", "p s")], WITH_V.format(0),
    ),
    "matrix of the width": ([vector(6, 6), apply("MatMul", "p v")], FIRST),
    "weight that is read as a value": (
        [lambda n: n.weight("v", 3, 3, 1, 1), lambda n: n.op("Conv", "a.w v", "z"), apply("Relu")], FIRST,
    ),
    "scaled weight": (
        [lambda n: n.weight("v", 5, 4, 1, 1), lambda n: n.weight("s", 5, 1, 1, 1), lambda n: n.op("Mul", "v s", "t"),
         lambda n: n.op("Conv", "p t", "r"), lambda n: n.conv("r", "q", "d", 4, 5, 1, 1)],
        "5: d.w@1- s@0- v@0",
    ),
    "padded channels": (
        [ints(0, 1, 0, 0, 0, 2, 0, 0), lambda n: n.op("Pad", "p i", "r"),
         lambda n: n.conv("r", "q", "d", 4, 7, 1, 1)], "4: a.b@0- a.w@0 d.w@1-[1, 1, 1]",
    ),
    "reshaped": (
        [ints(0, 0, -1), lambda n: n.op("Reshape", "p i", "r"), lambda n: n.integers("j", 3),
         lambda n: n.op("Unsqueeze", "r j", "q")], FIRST,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FREE)
def test_channels_that_can_go(case: str) -> None:
    nodes, expected = FREE[case]
    assert expected in between(*nodes).channels()


@pytest.mark.clients
@pytest.mark.parametrize("case", FREE)
def test_without_them(case: str, tmp_path: Path) -> None:
    net = between(*FREE[case][0])
    x = net.random.standard_normal((2, 3, 6, 6)).astype(np.float32)
    assert check_removal(net.model(), tmp_path, x) >= 4


def branch(*nodes: bytes) -> bytes:
    return made.field(6, made.graph(nodes).replace(made.field(11, made.field(1, "x")), b""))


KEPT = {
    "softmax": [apply("Softmax", axis=1)],
    "every other channel": [ints(0), lambda n: n.integers("e", 1 << 62), lambda n: n.integers("k", 1),
                            lambda n: n.integers("s", 2), lambda n: n.op("Slice", "p i e k s", "r"),
                            lambda n: n.conv("r", "q", "d", 4, 2, 1, 1)],
    "unknown": [apply("Frobnicate")],
    "elsewhere": [lambda n: n.nodes.append(made.node("Relu", ["p"], ["q"]) + made.field(7, "vendor"))],
    "local response": [apply("LRN", size=3)],
    "shape": [lambda n: n.op("Shape", "p", "r"), apply("Relu")],
    "gathered": [lambda n: n.integers("i", 3, 2, 1, 0), apply("Gather", "p i", axis=1)],
    "input": [lambda n: setattr(n, "input", (2, 4, 6, 6)), apply("Add", "p x")],
    "two groups": [lambda n: n.conv("p", "q", "d", 4, 2, 3, 3, group=2)],
    "mean of channels": [lambda n: n.op("ReduceMean", "p", "r", axes=[1]), apply("Mul", "p r")],
    "norm in training": [norm(training_mode=1)],
    "very old norm": [opset(6), norm()],
    "very old sum": [opset(6), vector(4), apply("Add", "p v", axis=1, broadcast=1)],
    "vector that stays": [constant([[[1.0]]] * 4), apply("Mul", "p k")],
    "divided by a vector": [vector(4, 1, 1), apply("Div", "p v")],
    "divided by channels": [lambda n: n.op("Relu", "p", "r"), apply("Div", "p r")],
    "divided": [constant(1.0), apply("Div", "k p")],
    "mask": [lambda n: n.op("Dropout", "p", "r m"), lambda n: n.op("Cast", "m", "s", to=1), apply("Mul", "r s")],
    "mask of something else": [lambda n: n.op("Dropout", "p", "q m"), lambda n: n.op("Frobnicate", "m", "z")],
    "weight that reads something else": [lambda n: n.op("Frobnicate", "x", "u"), lambda n: n.op("Conv", "u c.w", "z"),
                                         apply("Relu")],
    "read as another dimension": [apply("Transpose", perm=[0, 2, 1, 3])],
    "places": [lambda n: n.op("MaxPool", "p", "r m", kernel_shape=[1, 1]), lambda n: n.op("Cast", "m", "s", to=1),
               apply("Mul", "r s")],
    "padded channels that do not fit": [ints(0, 1, 0, 0, 0, 1, 0, 0), apply("Pad", "p i")],
    "padded by other channels": [ints(0, 1, 0, 0, 0, 1, 0, 0),
                                 lambda n: n.op("Pad", "p i", "r", mode=made.field(4, "reflect")),
                                 lambda n: n.conv("r", "q", "d", 4, 6, 1, 1)],
    "padded by what is not known": [lambda n: n.op("Shape", "p", "r"), lambda n: n.op("Concat", "r r", "s", axis=0),
                                    apply("Pad", "x s")],
    "numbered": [ints(2, 4, 6, 6), apply("Reshape", "p i")],
    "reshaped across": [ints(0, 2, -1, 6), apply("Reshape", "p i")],
    "more channels": [constant([1, 2, 1, 1]), apply("Resize", "p - k")],
    "sizes": [ints(2, 4, 12, 12), apply("Resize", "p - - i")],
    "region": [constant([1, 1, 2, 2]), lambda n: n.weight("v", 8), apply("Resize", "p v k")],
    "by another axis": [lambda n: n.op("Transpose", "p", "r", perm=[0, 3, 2, 1]), apply("Add", "p r")],
    "not known beside": [lambda n: n.op("Frobnicate", "x", "r"), apply("Add", "p r")],
    "in a branch": [lambda n: n.op("If", "x", "z", then_branch=branch(made.node("Relu", ["p"], ["w"])),
                                   else_branch=branch(made.node("Relu", ["x"], ["w"]))), apply("Relu")],
    "weight in a branch": [lambda n: n.op("If", "x", "z", then_branch=branch(made.node("Relu", ["a.w"], ["w"])),
                                          else_branch=branch(made.node("Relu", ["x"], ["w"]))), apply("Relu")],
    "output of the graph": [more(12, "p", 2, 4, 6, 6), apply("Relu")],
    "weight used elsewhere": [lambda n: n.op("Frobnicate", "a.w", "z"), apply("Relu")],
    "bias used elsewhere": [lambda n: n.op("Frobnicate", "a.b", "z"), apply("Relu")],
    "shape that callers replace": [ints(0, 0, -1, 6), more(11, "i", 4), apply("Reshape", "p i")],
    "weight that callers replace": [more(11, "a.w", 4, 3, 3, 3), apply("Relu")],
    "used before it is made": [lambda n: n.nodes.insert(0, made.node("Relu", ["p"], ["z"])), apply("Relu")],
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_channels_that_stay(case: str) -> None:
    assert not {group for group in between(*KEPT[case]).channels() if "a.w@0" in group}


def test_all_of_a_function_stays() -> None:
    """Functions have their own names; if a name is also in the graph, no channel is removed."""
    body = made.field(1, "F") + made.field(10, "f") + made.field(7, made.node("Relu", ["p"], ["z"]))
    net = between(apply("Relu"))
    topology = Topology("onnx", formats.load(net.data() + made.field(25, body)).topology.data)  # type: ignore[union-attr]
    assert formats.channels(topology) == ()


# ------------------------------------------------------------------------------------------------ more of them
def test_concatenation() -> None:
    net = Net().conv("x", "p", "a", 4, 3, 3, 3).conv("x", "q", "d", 5, 3, 1, 1).op("Concat", "q x p", "r", axis=1)
    net.norm("r", "s", "n", 12).conv("s", "y", "c", 3, 12, 1, 1)
    first = "4: a.b@0- a.w@0 c.w@1-[8, 1, 1] " + " ".join(
        f"n.{name}@0-[8, 1, 1]" for name in ("beta", "gamma", "mean", "var")
    )
    other = "5: c.w@1- d.b@0- d.w@0 " + " ".join(f"n.{name}@0-" for name in ("beta", "gamma", "mean", "var"))
    assert net.channels() == {first, other}


def test_channels_once_and_twice_in_a_tensor() -> None:
    """Some filters read the channels twice, adjacently, and others once."""
    net = Net().conv("x", "p", "a", 4, 3, 3, 3).conv("p", "q", "d", 8, 1, 3, 3, group=4)
    net.op("Concat", "q p", "r", axis=1).conv("r", "y", "c", 3, 12, 1, 1)
    assert net.channels() == {"4: a.b@0- a.w@0 c.w@1-[0, 1, 2] c.w@1-[8, 1, 1] d.b@0-[0, 1, 2] d.w@0-[0, 1, 2]"}


def dense(net: Net, source: str, name: str, rows: int, columns: int, **attributes: Any) -> Net:
    """Return a Gemm with ``name``.w and ``name``.b whose output has that name."""
    shape = (rows, columns) if attributes.get("transB") else (columns, rows)
    net.weight(f"{name}.w", *shape)
    net.weight(f"{name}.b", rows)
    return net.op("Gemm", f"{source} {name}.w {name}.b", name, **attributes)


def head(*nodes: Build, spread: int = 36, **attributes: Any) -> Net:
    """Return a convolution ``a``, nodes that make a matrix ``q`` from its ``p``, and two layers ``d`` and ``y``."""
    net = Net(output=(2, 3)).conv("x", "p", "a", 4, 3, 3, 3)
    for node in nodes:
        node(net)
    dense(net, "q", "d", 5, 4 * spread, transB=1, **attributes)
    return dense(net, "d", "y", 3, 5)


HEADS = {
    "flattened": ([apply("Flatten")], 36, "[0, 1, 36]"),
    "pooled": ([lambda n: n.op("GlobalAveragePool", "p", "r"), apply("Flatten", "r")], 1, ""),
    "reshaped": ([ints(0, -1), apply("Reshape", "p i")], 36, "[0, 1, 36]"),
    "reshaped to the batch": ([ints(2, -1), apply("Reshape", "p i")], 36, "[0, 1, 36]"),
    "pooled, then reshaped": (
        [
            lambda n: n.op("GlobalAveragePool", "p", "r"),
            ints(0, -1, 1, 1),
            lambda n: n.op("Reshape", "r i", "s"),
            apply("Flatten", "s"),
        ],
        1,
        "",
    ),
    "channels last": (
        [lambda n: n.op("Transpose", "p", "r", perm=[0, 2, 3, 1]), apply("Flatten", "r")],
        36,
        "[0, 36, 1]",
    ),
    "mean": ([apply("ReduceMean", axes=[2, 3], keepdims=0)], 1, ""),
}


@pytest.mark.parametrize("case", HEADS)
def test_matrices_of_pictures(case: str) -> None:
    nodes, spread, place = HEADS[case]
    net = head(*nodes, spread=spread)
    assert net.channels() == {f"4: a.b@0- a.w@0 d.w@1-{place}", "5: d.b@0- d.w@0 y.w@0-"}


@pytest.mark.clients
@pytest.mark.parametrize("case", HEADS)
def test_without_columns(case: str, tmp_path: Path) -> None:
    nodes, spread, _ = HEADS[case]
    net = head(*nodes, spread=spread)
    x = net.random.standard_normal((2, 3, 6, 6)).astype(np.float32)
    assert check_removal(net.model(), tmp_path, x) == 9


@pytest.mark.parametrize(
    "nodes",
    [
        [ints(-1, 144), apply("Reshape", "p i")],
        [ints(1, -1), apply("Reshape", "p i")],
        [lambda n: n.op("Transpose", "p", "r", perm=[0, 2, 1, 3]), apply("Flatten", "r")],
        [apply("Flatten", axis=2)],
        [apply("Flatten", axis=0)],
    ],
    ids=["counted", "other rows", "channels in between", "channels in rows", "no rows"],
)
def test_matrices_that_keep_all(nodes: list[Build]) -> None:
    assert head(*nodes).channels() == {"5: d.b@0- d.w@0 y.w@0-"}


def test_a_matrix_that_does_not_fit() -> None:
    assert head(apply("Flatten"), spread=9).channels() == {"4: a.b@0- a.w@0 d.w@1-[0, 1, 9]", "5: d.b@0- d.w@0 y.w@0-"}
    net = Net(output=(2, 3)).conv("x", "p", "a", 4, 3, 3, 3).op("Flatten", "p", "q")
    assert dense(net, "q", "y", 3, 30, transB=1).channels() == set()


def sequence() -> Net:
    """Return nodes as in transformers: values of more dimensions, of which only some are known."""
    net = Net(input=("n", 5, 6), output=("n", 5, 3))
    net.weight("a.w", 6, 8)
    net.op("MatMul", "x a.w", "p").op("Add", f"{net.weight('a.b', 8)} p", "q").op("Erf", "q", "e")
    net.op("Mul", "q e", "f").weight("c.w", 3, 8)
    return net.op("Transpose", "c.w", "t", perm=[1, 0]).op("MatMul", "f t", "y")


def test_matrices_of_sequences() -> None:
    assert sequence().channels() == {"8: a.b@0- a.w@1 c.w@1-"}
    net = sequence()
    net.op("Frobnicate", "t", "z")
    assert net.channels() == set()


@pytest.mark.clients
def test_sequences_without_channels(tmp_path: Path) -> None:
    net = sequence()
    assert check_removal(net.model(), tmp_path, net.random.standard_normal((2, 5, 6)).astype(np.float32)) == 8


# ------------------------------------------------------------------------------------------------ groups
def depthwise(multiplier: int = 1, operation: str = "Conv") -> Net:
    """Return a convolution with separate filters for each channel of the next one."""
    net, count = Net().conv("x", "p", "a", 4, 3, 3, 3), 4 * multiplier
    net.weight("d.w", *((count, 1, 3, 3) if operation == "Conv" else (4, multiplier, 3, 3)))
    net.op(operation, f"p d.w {net.weight('d.b', count)}", "q", group=4, pads=[1, 1, 1, 1])
    return net.conv("q", "y", "c", 3, count, 1, 1)


FILTERS = pytest.mark.parametrize(
    ("multiplier", "operation", "expected"),
    [
        (1, "Conv", "d.b@0- d.w@0-"),
        (3, "Conv", "d.b@0-[0, 1, 3] d.w@0-[0, 1, 3]"),
        (1, "ConvTranspose", "d.b@0- d.w@0-"),
        (2, "ConvTranspose", "d.b@0-[0, 1, 2] d.w@0-"),
    ],
)


@FILTERS
def test_filters_for_each_channel(multiplier: int, operation: str, expected: str) -> None:
    place = f"[0, 1, {multiplier}]" if multiplier > 1 else ""
    assert depthwise(multiplier, operation).channels() == {f"4: a.b@0- a.w@0 c.w@1-{place} {expected}"}


@pytest.mark.clients
@FILTERS
def test_groups_are_as_many_as_channels(multiplier: int, operation: str, expected: str, tmp_path: Path) -> None:
    net = depthwise(multiplier, operation)
    x = net.random.standard_normal((2, 3, 6, 6)).astype(np.float32)
    for share in (0.25, 0.5, 1.0):  # finally to one channel
        assert check_removal(net.model(), tmp_path, x, share=share) == 4
    graph = pytest.importorskip("onnx").load(tmp_path / "pruned.onnx").graph
    assert [attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "group"] == [1]


@pytest.mark.clients
def test_transposed_convolution(tmp_path: Path) -> None:
    net = Net().conv("x", "p", "a", 4, 3, 3, 3)
    net.op("ConvTranspose", f"p {net.weight('d.w', 4, 5, 2, 2)} {net.weight('d.b', 5)}", "q", strides=[2, 2])
    net.conv("q", "y", "c", 3, 5, 1, 1)
    assert net.channels() == {"4: a.b@0- a.w@0 d.w@0-", "5: c.w@1- d.b@0- d.w@1"}
    assert check_removal(net.model(), tmp_path, net.random.standard_normal((2, 3, 6, 6)).astype(np.float32)) == 9


def test_only_groups_of_channels_alone_are_edited(tmp_path: Path) -> None:
    """Removing channels from grouped convolutions would be ambiguous: whole groups, or some channels of each."""
    net = Net().conv("x", "y", "a", 6, 2, 1, 1, group=3)
    net.input = (2, 6, 6, 6)
    model = net.model()
    tensors = {name: np.asarray(model[name]) for name in model}
    smaller = Model({"a.w": tensors["a.w"][:4], "a.b": tensors["a.b"][:4]}, model.topology, pruned=["a.w", "a.b"])
    nnr.save(smaller, tmp_path / "m.onnx")
    net.tensors = dict(smaller.tensors)
    assert (tmp_path / "m.onnx").read_bytes() == net.data()


def test_a_channel_alone_stays() -> None:
    assert Net().conv("x", "p", "a", 1, 3, 1, 1).conv("p", "y", "c", 3, 1, 1, 1).channels() == set()


# ------------------------------------------------------------------------------------------------ tensors used twice
def test_a_weight_that_is_used_twice() -> None:
    """If its channels are the same in the same places, they are one group."""
    net = Net().conv("x", "p", "a", 4, 3, 3, 3).op("Relu", "x", "u")
    net.op("Conv", "u a.w a.b", "q", pads=[1, 1, 1, 1]).op("Concat", "p q", "r", axis=1).conv("r", "y", "c", 3, 8, 1, 1)
    # Each channel occurs twice, four apart.
    assert net.channels() == {"4: a.b@0- a.w@0 c.w@1-[0, 2, 1]"}


def test_a_weight_that_is_used_in_two_ways() -> None:
    net = Net().conv("x", "p", "a", 3, 3, 1, 1).conv("p", "q", "d", 3, 3, 1, 1)
    net.op("Conv", "q a.w", "r").conv("r", "y", "c", 3, 3, 1, 1)
    # Channels of d must stay, because they are the input of the graph.
    assert net.channels() == {"3: a.b@0- a.w@0 c.w@1- d.w@1-"}
    net = Net().conv("x", "p", "a", 4, 3, 1, 1).conv("p", "q", "c", 3, 4, 1, 1)
    net.op("Gemm", "v a.b", "z").op("Identity", "q", "y")
    assert net.channels() == set()


@pytest.mark.clients
def test_weights_used_twice_go_once(tmp_path: Path) -> None:
    net = Net().conv("x", "p", "a", 4, 3, 3, 3).op("Relu", "x", "u")
    net.op("Conv", "u a.w a.b", "q", pads=[1, 1, 1, 1]).op("Mul", "p q", "r").conv("r", "y", "c", 3, 4, 1, 1)
    assert check_removal(net.model(), tmp_path, net.random.standard_normal((2, 3, 6, 6)).astype(np.float32)) == 4


@pytest.mark.parametrize("operation", ["MatMul", "Gemm"])
def test_products_of_weights(operation: str) -> None:
    """Inner channels of a product are removable; outer channels with other readers are not."""
    net = Net(input=(2, 3), output=(2, 5))
    for name, shape in {"a": (3, 4), "b": (4, 5), "c": (4, 5)}.items():
        net.weight(name, *shape)
    net.op("MatMul", "x a", "p").op("MatMul", "p c", "q")
    assert "4: a@1 c@0-" in net.channels()
    net.op(operation, "a b", "w").op("MatMul", "x w", "r").op("Add", "q r", "y")
    assert net.channels() == {"4: a@1 b@0- c@0-"}


def test_a_transposed_weight_that_is_used_elsewhere() -> None:
    net = Net().conv("x", "p", "a", 4, 3, 3, 3)
    net.weight("c.w", 4, 3, 1, 1)
    net.op("Transpose", "c.w", "t", perm=[1, 0, 2, 3]).op("Identity", "t", "u").op("Conv", "p u", "y")
    assert net.channels() == {"4: a.b@0- a.w@0 c.w@0-"}
    net.op("Frobnicate", "t", "z")
    assert net.channels() == set()


# ------------------------------------------------------------------------------------------------ other shapes
@pytest.mark.clients
def test_shapes_that_do_not_hold_any_more(tmp_path: Path) -> None:
    """Shapes of intermediate values are removed, and inputs that older graphs declare for tensors are updated."""
    net = Net(ir_version=3).conv("x", "p", "a", 4, 3, 3, 3).norm("p", "q", "n", 4).conv("q", "y", "c", 3, 4, 3, 3)
    net.more = b"".join(made.field(11, declared(name, array.shape)) for name, array in net.tensors.items())
    net.more += made.field(13, declared("p", (2, 4, 6, 6))) + made.field(13, declared("q", (2, 4, "h", "w")))
    assert check_removal(net.model(), tmp_path, net.random.standard_normal((2, 3, 6, 6)).astype(np.float32)) == 4
    graph = pytest.importorskip("onnx").load(tmp_path / "pruned.onnx").graph
    extents = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in graph.input}
    assert extents["a.w"] == [2, 3, 3, 3]
    assert extents["c.w"] == [3, 2, 3, 3]
    assert extents["x"] == [2, 3, 6, 6]
    assert not graph.value_info


def test_nothing_else_changes(tmp_path: Path) -> None:
    """The file equals the file of the network with smaller tensors, byte for byte."""
    net = between(lambda n: n.conv("p", "q", "d", 4, 1, 3, 3, group=4))
    model = net.model()
    smaller = {"a.w": (2,), "a.b": (2,), "d.w": (2,), "d.b": (2,), "c.w": (3, 2)}
    tensors = {name: np.asarray(model[name])[tuple(map(slice, smaller.get(name, ())))] for name in model}
    nnr.save(Model(tensors, model.topology, pruned=list(smaller)), tmp_path / "m.onnx")
    wanted = between(lambda n: n.conv("p", "q", "d", 4, 1, 3, 3, group=2))
    wanted.tensors = tensors
    assert (tmp_path / "m.onnx").read_bytes() == wanted.data()


# ------------------------------------------------------------------------------------------------ any network
KINDS = ["conv"] * 4 + ["norm", "unary", "binary", "binary", "concat", "depth", "gate", "vector", "slopes", "pool"]
KINDS += ["places", "last", "transposed", "back", "back each", "shared"]


@st.composite
def networks(draw: st.DrawFn) -> Net:
    """Draw convolutions of images that interact: sums, products, concatenations, depthwise filters.

    Matrix layers and another output may follow.
    """
    net = Net(output=("n", "c", "h", "w"))
    values = [("x", 3)]
    for k in range(draw(st.integers(2, 9))):
        (name, count), (other, others) = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        new = f"v{k}"
        kind = draw(st.sampled_from(KINDS))
        if kind == "norm":
            net.norm(name, new, new, count)
        elif kind == "vector":
            shape = draw(st.sampled_from([(count, 1, 1), (1, count, 1, 1), (6,), (1,), (2, 1, 1, 6)]))
            net.weight(f"{new}.v", *shape)
            net.op(draw(st.sampled_from(["Add", "Mul", "Sub"])), f"{name} {new}.v", new)
        elif kind == "slopes":
            net.weight(f"{new}.v", count, 1, 1)
            net.op("PRelu", f"{name} {new}.v", new)
        elif kind == "pool":
            net.op("MaxPool", name, new, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif kind == "places":  # adjacent in height
            net.op("Concat", f"{name} {name}", f"{new}.c", axis=2)
            net.op("MaxPool", f"{new}.c", new, kernel_shape=[2, 1], strides=[2, 1])
        elif kind == "last":
            net.op("Transpose", name, f"{new}.t", perm=[0, 2, 3, 1]).weight(f"{new}.v", count)
            net.op("Add", f"{new}.t {new}.v", f"{new}.s").weight(f"{new}.m", count, 5)
            net.op("MatMul", f"{new}.s {new}.m", f"{new}.p").op("Transpose", f"{new}.p", new, perm=[0, 3, 1, 2])
            count = 5
        elif kind == "transposed":
            net.weight(f"{new}.w", count, 3, 3, 5)
            net.op("Transpose", f"{new}.w", f"{new}.t", perm=[3, 0, 1, 2])
            net.op("Conv", f"{name} {new}.t", new, pads=[1, 1, 1, 1])
            count = 5
        elif kind == "back":
            net.weight(f"{new}.w", count, 5, 3, 3)
            net.weight(f"{new}.b", 5)
            net.op("ConvTranspose", f"{name} {new}.w {new}.b", new, pads=[1, 1, 1, 1])
            count = 5
        elif kind == "back each":
            net.weight(f"{new}.w", count, 2, 3, 3)
            net.op("ConvTranspose", f"{name} {new}.w", new, pads=[1, 1, 1, 1], group=count)
            count *= 2
        elif kind == "shared":
            net.weight(f"{new}.w", count, count, 3, 3)
            net.op("Conv", f"{name} {new}.w", f"{new}.1", pads=[1, 1, 1, 1]).op("Relu", f"{new}.1", f"{new}.2")
            net.op("Conv", f"{new}.2 {new}.w", new, pads=[1, 1, 1, 1])
        elif kind == "unary":
            net.op(draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Identity"])), name, new)
        elif kind == "binary" and (count == others or 1 in (count, others)):
            net.op(draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), f"{name} {other}", new)
            count = max(count, others)
        elif kind == "concat":
            net.op("Concat", f"{name} {other}", new, axis=draw(st.sampled_from([1, -3])))
            count += others
        elif kind == "depth":
            size = count * draw(st.integers(1, 2))
            net.conv(name, new, new, size, 1, 3, 3, group=count)
            count = size
        elif kind == "gate":
            net.op("GlobalAveragePool", name, f"{new}.p").conv(f"{new}.p", f"{new}.c", new, count, count, 1, 1)
            net.op("Mul", f"{name} {new}.c", new)
        else:
            size = draw(st.sampled_from([1, 2, 4, 4, 6]))
            width = draw(st.sampled_from([1, 3]))
            net.conv(name, new, new, size, count, width, width)
            count = size
        values.append((new, count))
    name, count = values[-1]
    end = draw(st.sampled_from(["conv", "conv", "flat", "reshape", "mean", "place"]))
    if draw(st.booleans()):
        other, others = draw(st.sampled_from(values))
        net.conv(other, "z", "beside", 2, others, 1, 1).more = made.field(12, declared("z", ("n", "c", "h", "w")))
    if end == "conv":
        return net.conv(name, "y", "last", 3, count, 1, 1)
    net.output, columns = ("n", "c"), count * (1 if end in ("mean", "place") else 36)
    if end == "flat":
        net.op("Flatten", name, "f")
    elif end == "reshape":
        net.integers("i", draw(st.sampled_from([0, 2])), -1)
        net.op("Reshape", f"{name} i", "f")
    elif end == "mean":
        net.op("ReduceMean", name, "f", axes=[-1, 2], keepdims=0)
    else:
        net.op("GlobalMaxPool", name, "g").op("Flatten", "g", "f", axis=1)
    transposed = draw(st.integers(0, 1))
    net.weight("d.w", *((5, columns) if transposed else (columns, 5)))
    net.weight("d.b", *draw(st.sampled_from([(5,), (1, 5), (1,), (2, 5)])))
    net.op("Gemm", "f d.w d.b", "d", transB=transposed, alpha=0.5, beta=2.0).op("Relu", "d", "e")
    net.weight("m", 5, 3)
    return net.op("MatMul", "e m", "y")


@pytest.mark.medium
@pytest.mark.clients
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(networks(), st.integers(0, 99), st.sampled_from([0.2, 0.5, 1.0]))
def test_any_network_without_channels(tmp_path: Path, net: Net, seed: int, share: float) -> None:
    x = np.random.default_rng(seed).standard_normal((2, 3, 6, 6)).astype(np.float32)
    check_removal(net.model(), tmp_path, x, seed=seed, share=share)


# ------------------------------------------------------------------------------------------------ real networks
MODELS = (SHARED or Path()) / "models"
REAL = pytest.mark.parametrize(
    ("name", "count"),
    [
        ("digits_cnn", 112),
        ("resnet20_cifar10", 352),
        ("resnet56_cifar10", 1024),
        pytest.param("squeezenet1_0_deepcompression", 2976, marks=pytest.mark.slow),
    ],
)


@pytest.mark.medium
@needs_shared
@pytest.mark.clients
@REAL
def test_real_networks(name: str, count: int, tmp_path: Path) -> None:
    with np.load(MODELS / f"{name}.io.npz") as known:
        x = known["x"]
    assert check_removal(nnr.load(MODELS / f"{name}.onnx"), tmp_path, x, share=0.3) == count
    assert (tmp_path / "pruned.onnx").stat().st_size < 0.75 * (MODELS / f"{name}.onnx").stat().st_size


@needs_shared
@pytest.mark.clients
@pytest.mark.parametrize("name", ["digits_cnn", "resnet20_cifar10"])
def test_through_a_bitstream(name: str, tmp_path: Path) -> None:
    """The decoder writes an executable graph with the remaining shapes."""
    source = MODELS / f"{name}.onnx"
    data = nnr.encode(source, reduce="prune(ratio=0.3)")
    assert nnr.verify(data).violations == []
    model = nnr.decode(data)
    nnr.save(model, tmp_path / "m.onnx")
    before, after = nnr.load(source), nnr.load(tmp_path / "m.onnx")
    assert {each: after[each].shape for each in after} == {each: model[each].shape for each in model}
    assert {each for each in before if before[each].shape != after[each].shape} == {*model.pruned} != set()
    with np.load(MODELS / f"{name}.io.npz") as known:
        (found,) = outputs(tmp_path / "m.onnx", known["x"])
        assert found.shape == known["y"].shape
        assert np.isfinite(found).all()
