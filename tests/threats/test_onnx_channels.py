"""T38: the cost of following channels in ONNX graphs."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats import onnx
from nnr_codec.model import Channels, Model, Topology
from nnr_codec.topology.tracks import Tracks

from ..formats import onnx_files as made
from ..formats.onnx_files import field, model, node
from ..formats.onnx_nets import Net, declared, told
from ..shared import examples
from .support import memory


def shell(name: str, *shape: int) -> bytes:
    """Return a tensor without its data: a few bytes, whatever it declares."""
    return b"".join(field(1, extent) for extent in shape) + field(2, 1) + field(8, name) + field(9, b"")


def conv(source: str, weight: str, output: str) -> bytes:
    return node("Conv", [source, weight], [output])


# Channels a, of which b is made.
GOOD = [conv("x", "a", "p"), conv("p", "b", "y")]
TENSORS = [shell("a", 4, 3, 1, 1), shell("b", 2, 4, 1, 1)]
FOUND = {"4: a@0 b@1-"}


def topology(nodes: list[bytes], tensors: list[bytes], more: bytes = b"") -> Topology:
    return Topology("onnx", model(GOOD + nodes, TENSORS + tensors, more))


def channels(found: Topology) -> tuple[Channels, ...]:
    """Return the channels, or the error that :func:`nnr_codec.formats.channels` treats as no channels."""
    return onnx.channels(found, {})


@pytest.mark.parametrize("operation", ["Concat", "Sum"])
def test_t38_channels_that_double(operation: str) -> None:
    """A few bytes each double the number of channels, or use all of them again."""
    nodes = [conv("x", "w", "v0")]
    if operation == "Concat":
        nodes += [node("Concat", [f"v{k}"] * 2, [f"v{k + 1}"], axis=1) for k in range(22)]
    else:
        nodes += [conv("x", "u", "u0"), *(node("Sum", ["v0", "u0"] * 50, [f"s{k}"]) for k in range(20))]
    found = topology(nodes, [shell(name, 8 if operation == "Concat" else 9000, 3, 1, 1) for name in "wu"])
    with memory() as used, pytest.raises(LimitError, match="tracing the channels"):
        channels(found)
    assert used.peak < 300 << 20
    assert formats.channels(found) == ()


def test_t38_channels_without_end() -> None:
    """Nothing is numbered; other channels are still removable."""
    found = topology([conv("x", "w", "v"), conv("v", "u", "z")], [shell("w", 1 << 40, 3, 1, 1), shell("u", 1, 1 << 40)])
    with memory() as used:
        assert told(channels(found)) == FOUND
    assert used.peak < 4 << 20


def test_t38_many_tensors_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes more memory than its few bytes."""
    monkeypatch.setattr(sys.modules[Tracks.__module__], "_MAX_STEPS", 50_000)
    count = 200
    nodes = [node("PRelu", ["x", f"w{k}"], [f"v{k}"]) for k in range(count)]
    found = topology(nodes, [shell(f"w{k}", 3, 1, 1) for k in range(count)], field(11, declared("x", (1, 3, 4, 4))))
    with pytest.raises(LimitError, match="tracing the channels"):
        channels(found)


def test_t38_more_and_more_dimensions() -> None:
    nodes = [conv("x", "a", "v0"), *(node("Unsqueeze", [f"v{k}"], [f"v{k + 1}"], axes=[0]) for k in range(40))]
    nodes += [node("Squeeze", [f"v{k}"], [f"v{k + 1}"], axes=[0]) for k in range(40, 80)]
    assert channels(Topology("onnx", model([*nodes, conv("v80", "b", "y")], TENSORS))) == ()


@pytest.mark.parametrize("shapes", [((4,), (2, 2)), ((4, 1, 3), (2,))])
def test_t38_pruning_to_other_ranks(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """In a bitstream, pruning changes the rank of a depthwise weight."""
    before, after = shapes
    found = Topology("onnx", model([node("Conv", ["x", "w"], ["y"], group=4)], [shell("w", *before)]))
    pruned = Model({"w": np.ones(after, np.float32)}, found, pruned=["w"])
    nnr.save(pruned, (file := io.BytesIO()), format="onnx")
    assert nnr.load(file.getvalue())["w"].shape == after


def test_t38_inputs_with_many_dimensions() -> None:
    with pytest.raises(LimitError, match="max_dims=32"):
        channels(topology([], [], field(11, declared("v", [1] * 1000))))


def test_t38_constants_that_are_no_arrays() -> None:
    strange = field(1, -3) + field(2, 7) + field(8, "w") + field(3, b"") + field(9, bytes(8))
    assert told(channels(topology([], [strange]))) == FOUND


@pytest.mark.parametrize("data", [field(9, bytes(7)), field(9, bytes(80)), field(7, b"\x80"), field(7, b"\1\2\3")])
def test_constants_that_do_not_fit(data: bytes) -> None:
    with pytest.raises(FormatError):
        channels(topology([], [field(1, 2) + field(2, 7) + field(8, "w") + data]))


STRANGE = [[], [-1], [1 << 62], [-(1 << 63)], [0] * 40, [3, 3], [4, -9], list(range(9))]
LISTS = {"Squeeze": "axes", "Unsqueeze": "axes", "ReduceMean": "axes", "Pad": "pads", "Transpose": "perm"}


@pytest.mark.parametrize("values", STRANGE, ids=str)
@pytest.mark.parametrize("operation", [*LISTS, "Reshape", "Resize", "Flatten", "Concat", "Conv", "Gemm"])
def test_attributes_that_mean_nothing(operation: str, values: list[int]) -> None:
    """They cost nothing, and do not affect other channels."""
    name = LISTS.get(operation, {"Reshape": "shape", "Resize": "axes", "Conv": "group"}.get(operation, "axis"))
    for told_as in (values, *values[:1]):
        nodes = [node(operation, ["v", "w", "s"], ["z"], **{name: told_as}), conv("x", "w", "v")]
        nodes += [node(operation, ["v"], ["q"], **{name: told_as}), conv("q", "u", "r")]
        with memory() as used:
            found = told(channels(topology(nodes[1:] + nodes[:1], [shell("w", 6, 3, 1, 1), shell("u", 2, 6, 1, 1)])))
        assert found >= FOUND
        assert used.peak < 4 << 20


@pytest.mark.parametrize(
    "operation", ["Conv", "Gemm", "Add", "Concat", "BatchNormalization", "Flatten", "Clip", "Resize"]
)
@pytest.mark.parametrize(
    "inputs", [[], [""], ["p"], ["p", ""], ["p", "p"], ["a"], ["a", "a", "a", "a", "a"], ["p"] * 9]
)
def test_nodes_without_what_they_need(operation: str, inputs: list[str]) -> None:
    for outputs in ([], [""], ["z"], ["", "z"], ["p"], ["a"]):
        channels(topology([node(operation, inputs, outputs)], []))


def constant(name: str, values: list[int], *shape: int) -> bytes:
    """Return a tensor of integers, which stays in the graph."""
    items = field(7, b"".join(made.varint(value) for value in values))
    return b"".join(field(1, extent) for extent in shape) + field(2, 7) + field(8, name) + items


def test_t38_constants_of_large_shapes() -> None:
    """Each extent may be small."""
    nodes = [node("ConstantOfShape", ["s"], ["t"])]
    with memory() as used:
        assert told(channels(topology(nodes, [constant("s", [50] * 5, 5)]))) == FOUND
    assert used.peak < 4 << 20


def test_t38_constants_that_grow() -> None:
    """Each constant contains the one before twice."""
    nodes = [node("Gather", [f"s{k}", "i"], [f"s{k + 1}"], axis=0) for k in range(19)]
    with memory() as used:
        assert told(channels(topology(nodes, [constant("s0", [1, 2], 2), constant("i", [0, 1, 0, 1], 2, 2)]))) == FOUND
    assert used.peak < 4 << 20


NET = Net().conv("x", "p", "a", 4, 3, 1, 1).norm("p", "q", "n", 4).conv("q", "r", "d", 8, 1, 1, 1, group=4)
NET.op("Concat", "r q", "s", axis=1).integers("i", 0, 0, 1, 1, 0, 0, 1, 1)
NET.op("Pad", "s i", "t").op("ReduceMean", "t", "u", axes=[2, 3], keepdims=0).op("Flatten", "u", "v")
NET.op("Gemm", f"v {NET.weight('g', 5, 12)}", "w", transB=1).op("MatMul", f"w {NET.weight('m', 5, 3)}", "y")
SHELL = formats.load(NET.data(), format="onnx").topology


@pytest.mark.medium
@settings(deadline=None, max_examples=examples(400))
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_bytes(changes: list[tuple[int, int]]) -> None:
    """With any byte changed, channels are returned or an error is raised."""
    assert SHELL is not None
    data = bytearray(SHELL.data)
    for place, value in changes:
        data[place % len(data)] = value
    try:
        found = channels(Topology("onnx", bytes(data)))
    except (FormatError, LimitError):
        return
    shapes = formats.wiring(Topology("onnx", bytes(data))).shapes
    for group in found:
        for part in group.parts:
            assert part.offset + part.outer * group.size * part.inner <= shapes[part.tensor][part.axis]
