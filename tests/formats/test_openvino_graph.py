"""Blocks and prunable channels of OpenVINO IRs; the edited IRs run and have the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.constants import NNR_PT_BLOCK
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.openvino.ir import read_constants
from nnr_codec.formats.openvino.shapes import with_shapes
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Block, Model, Topology

from ..shared import SHARED, examples, needs_shared
from .ir_nets import Net
from .onnx_nets import masked, removals, told, without

Build = Callable[[Net], int]


def outputs(path: Path, x: Array) -> list[Array]:
    """Return the outputs of an IR in openvino."""
    openvino = pytest.importorskip("openvino")
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(str(path), "CPU", options)
    return [np.array(found) for found in compiled([x]).values()]


def close(one: list[Array], other: list[Array]) -> None:
    """Check that outputs differ by less than 1e-4, relative to the largest."""
    assert len(one) == len(other)
    for before, after in zip(one, other, strict=True):
        assert before.shape == after.shape
        assert np.isfinite(before).all()
        assert np.abs(before - after).max() <= 1e-4 * max(np.abs(before).max(), 1e-30)


# ------------------------------------------------------------------------------------------------ blocks
PLAIN = Block("l1")
NORMED = replace(PLAIN, gamma="l3", beta="l4", mean="l5", var="l6", epsilon=0.001)
BIASED = replace(PLAIN, bias="l3")


def conv(net: Net) -> int:
    return net.conv(0, net.weight(4, 3, 3, 3))


BLOCKS: dict[str, tuple[Build, tuple[Block, ...]]] = {
    "convolution": (conv, (PLAIN,)),
    "batch normalization": (lambda n: n.norm(conv(n)), (NORMED,)),
    "of opset 1": (lambda n: n.norm(conv(n), "opset1"), (NORMED,)),
    "no epsilon": (lambda n: n.norm(conv(n), epsilon="1e"), (PLAIN,)),
    "bias": (lambda n: n.add(conv(n), n.weight(1, 4, 1, 1)), (BIASED,)),
    "bias before": (lambda n: n.add(n.weight(1, 4, 1, 1), conv(n)), (Block("l2", bias="l1"),)),
    "bias and normalization": (
        lambda n: n.norm(n.add(conv(n), n.weight(1, 4, 1, 1))),
        (replace(BIASED, gamma="l5", beta="l6", mean="l7", var="l8", epsilon=0.001),),
    ),
    "scale": (lambda n: n.add(conv(n), n.weight(1, 4, 1, 1), "Multiply"), (replace(PLAIN, scale="l3"),)),
    "transposed": (
        lambda n: n.norm(n.conv(0, n.weight(3, 4, 3, 3), "ConvolutionBackpropData")),
        (replace(NORMED, axis=1),),
    ),
    "float16": (lambda n: n.conv(0, n.half(4, 3, 3, 3)), (PLAIN,)),
    "bias of float16": (lambda n: n.add(conv(n), n.half(1, 4, 1, 1)), (BIASED,)),
    # Less.
    "groups": (lambda n: n.norm(n.conv(0, n.weight(3, 1, 1, 3, 3), "GroupConvolution")), ()),
    "along the width": (lambda n: n.add(conv(n), n.weight(6)), (PLAIN,)),
    "without broadcasting": (
        lambda n: n.op("Add", [conv(n), n.weight(1, 4, 1, 1)], (2, 4, 6, 6), auto_broadcast="none"),
        (PLAIN,),
    ),
    "difference": (lambda n: n.add(conv(n), n.weight(1, 4, 1, 1), "Subtract"), (PLAIN,)),
    "of a vendor": (lambda n: n.op("Convolution", [0, n.weight(4, 3, 3, 3)], (2, 4, 6, 6), "extension"), ()),
    "a weight used twice": (lambda n: n.add(conv(n), n.conv(0, 1)), ()),
    "something between": (lambda n: n.norm(n.op("ReLU", [conv(n)], (2, 4, 6, 6))), (PLAIN,)),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks(case: str) -> None:
    build, expected = BLOCKS[case]
    net = Net()
    if case == "bias before":  # the other way around
        vector = net.weight(1, 4, 1, 1)
        last = net.op("Add", [vector, conv(net)], (2, 4, 6, 6), auto_broadcast="numpy")
    else:
        last = build(net)
    assert formats.wiring(Topology("", net.xml(last))).blocks == expected


def test_blocks_of_matrices() -> None:
    net = Net(input=(2, 3))
    last = net.norm(net.add(net.matmul(0, net.weight(5, 3)), net.weight(1, 5)))
    expected = Block("l1", bias="l3", gamma="l5", beta="l6", mean="l7", var="l8", epsilon=0.001)
    assert formats.wiring(Topology("", net.xml(last))).blocks == (expected,)
    net = Net(input=(2, 4, 3))
    last = net.norm(net.matmul(0, net.weight(3, 4), transposed=False))
    assert formats.wiring(Topology("", net.xml(last))).blocks == (Block("l1", axis=1),)


def test_outputs_are_used() -> None:
    net = Net()
    first = conv(net)
    assert formats.wiring(Topology("", net.xml(first, net.norm(first)))).blocks == (PLAIN,)


def test_a_range_of_two_constants_is_of_no_block() -> None:
    net = Net()
    net.weight(4, 3, 3, 3)
    net.layers.append(net.layers[1].replace('id="1"', 'id="2"'))
    net.dims.append((4, 3, 3, 3))
    net.types.append("f32")
    last = net.conv(0, 2)
    topology = Topology("", net.xml(last))
    assert formats.wiring(topology).shapes == {"l1": (4, 3, 3, 3)}
    assert formats.wiring(topology).blocks == ()
    again = net.conv(last, net.weight(2, 4, 1, 1))
    assert formats.channels(Topology("", net.xml(again))) == ()


@pytest.mark.parametrize("double", ["layer", "edge"])
def test_layers_that_are_there_twice_say_nothing(double: str) -> None:
    net = Net()
    text = net.xml(conv(net)).decode()
    first = (net.layers if double == "layer" else net.edges)[0]
    assert formats.wiring(Topology("", text.replace(first, first * 2).encode())).blocks == ()


@pytest.mark.clients
@pytest.mark.parametrize("options", [{"block": True}, {"fold_batchnorm": True}], ids=str)
@pytest.mark.parametrize("version", ["opset1", "opset5"])
def test_blocks_are_coded_and_come_back(options: dict[str, bool], version: str, tmp_path: Path) -> None:
    """With the normalization folded, the decoder writes gamma and beta, and recreates the rest (8.2.1)."""
    net = Net()
    first = net.norm(net.add(conv(net), net.weight(1, 4, 1, 1)), version)
    last = net.norm(net.conv(net.op("ReLU", [first], net.dims[first]), net.half(5, 4, 1, 1)), version)
    source = net.put(tmp_path / "source", last)
    data = nnr.encode(source, qp=-72, **options)
    assert nnr.verify(data).violations == []
    units = [unit for unit in nnr.units(data) if unit.type_name == "NNR_NDU"]
    assert NNR_PT_BLOCK in {unit.ndu.nnr_compressed_data_unit_payload_type for unit in units}
    found = nnr.decode(data)
    if "fold_batchnorm" in options:
        assert len(units) < len(found)
        assert np.asarray(found["l5"]).any()
        assert np.asarray(found["l8"]) == pytest.approx(1 - 0.001)
        assert not np.asarray(found["l7"]).any()
    nnr.save(found, tmp_path / "m.xml")
    assert (tmp_path / "m.xml").read_bytes() == source.read_bytes()
    x = net.random.standard_normal(net.input).astype(np.float32)
    close(outputs(source, x), outputs(tmp_path / "m.xml", x))


# ------------------------------------------------------------------------------------------------ channels
FIRST = "4: l1@0 {}@1-"


def relu(net: Net, source: int) -> int:
    return net.op("ReLU", [source], net.dims[source])


def pooled(net: Net, source: int) -> int:
    window = {"kernel": "2,2", "strides": "2,2", "pads_begin": "0,0", "pads_end": "0,0"}
    places = [extent // 2 for extent in net.dims[source][2:]]
    dims = (*net.dims[source][:2], *places)
    return net.op("MaxPool", [source], dims, **window, rounding_type="floor", auto_pad="explicit")


def mean(net: Net, source: int) -> int:
    axes = net.constant(np.array([2, 3], np.int64))
    return net.op("ReduceMean", [source, axes], (*net.dims[source][:2], 1, 1), keep_dims="true")


def depthwise(net: Net, source: int) -> int:
    return net.conv(source, net.weight(4, 1, 1, 3, 3), "GroupConvolution")


def doubled(net: Net, source: int) -> int:
    dims = list(net.dims[source])
    dims[1] *= 2
    return net.op("Concat", [source, relu(net, source)], dims, axis="-3")


CHANNELS: dict[str, tuple[Callable[[Net, int], int], str]] = {
    "relu": (relu, FIRST.format("l4")),
    "pool": (pooled, FIRST.format("l4")),
    "mean": (mean, FIRST.format("l5")),
    "norm": (lambda n, s: n.norm(s), "4: l1@0 l3@0- l4@0- l5@0- l6@0- l8@1-"),
    "bias": (lambda n, s: n.add(s, n.weight(1, 4, 1, 1)), "4: l1@0 l3@1- l5@1-"),
    "residual": (lambda n, s: n.add(s, relu(n, s)), FIRST.format("l5")),
    "depthwise": (depthwise, "4: l1@0 l3@0- l5@1-"),
    "concat": (doubled, "4: l1@0 l5@1-[0, 2, 1]"),
    "transposed": (
        lambda n, s: n.conv(s, n.weight(4, 5, 3, 3), "ConvolutionBackpropData"),
        "4: l1@0 l3@0-; 5: l3@1 l5@1-",
    ),
    "divided": (lambda n, s: n.add(s, n.weight(1, 4, 1, 1, low=0.5), "Divide"), ""),
    "unknown": (lambda n, s: n.op("SoftMax", [s], n.dims[s], axis="1"), ""),
}


def network(case: str) -> tuple[Net, int]:
    """Return a network of two convolutions with given layers between them."""
    net = Net()
    between = CHANNELS[case][0](net, conv(net))
    return net, net.conv(between, net.weight(3, net.dims[between][1], 1, 1))


@pytest.mark.parametrize("case", CHANNELS)
def test_channels(case: str) -> None:
    net, last = network(case)
    assert told(formats.channels(Topology("", net.xml(last)))) == {*filter(None, CHANNELS[case][1].split("; "))}


def check_removal(path: Path, folder: Path, x: Array, share: float) -> int:
    """Check that an IR without channels has the outputs of one with zeros; return the number of removable channels."""
    model = formats.load(path)
    assert model.topology is not None
    channels = formats.channels(model.topology)
    removed = removals(channels, np.random.default_rng(1), share)
    nnr.save(masked(model, removed), folder / "masked.xml", overwrite=True)
    nnr.save(without(model, removed), folder / "pruned.xml", overwrite=True)
    loaded = nnr.load(folder / "pruned.xml", strict=True)
    smaller = without(model, removed).tensors
    assert {name: (loaded[name].shape, loaded[name].tobytes()) for name in loaded} == {
        name: (array.shape, array.tobytes()) for name, array in smaller.items()
    }
    close(outputs(folder / "masked.xml", x), outputs(folder / "pruned.xml", x))
    return sum(group.size for group in channels)


@pytest.mark.clients
@pytest.mark.parametrize("case", [case for case in CHANNELS if CHANNELS[case][1]])
def test_without_channels(case: str, tmp_path: Path) -> None:
    """Shapes and offsets of constants, and all extents of ports, match the remaining channels."""
    net, last = network(case)
    path = net.put(tmp_path / "source", last)
    x = net.random.standard_normal(net.input).astype(np.float32)
    assert check_removal(path, tmp_path, x, 0.5) >= 4
    openvino = pytest.importorskip("openvino")
    openvino.save_model(openvino.Core().read_model(tmp_path / "pruned.xml"), tmp_path / "again.xml", False)
    assert _extents(tmp_path / "pruned.xml") == _extents(tmp_path / "again.xml")


def _extents(path: Path) -> list[tuple[str, list[int]]]:
    from nnr_codec.formats.openvino.layers import read_layers

    layers = read_layers(path.read_bytes()).layers
    return sorted((layer.type, port.extents) for layer in layers for port in (*layer.inputs, *layer.outputs))


MODELS = (SHARED or Path()) / "models"
REAL = pytest.mark.parametrize(
    ("name", "blocks", "count"),
    [
        ("digits_cnn_irv10", 4, 80),
        ("resnet20_cifar10_irv11", 20, 336),
        pytest.param("squeezenet1_0_deepcompression_irv11", 26, 2976, marks=pytest.mark.slow),
    ],
)


@needs_shared
@pytest.mark.clients
@REAL
def test_real_networks(name: str, blocks: int, count: int, tmp_path: Path) -> None:
    source = MODELS / f"{name}.xml"
    topology = formats.load(source).topology
    assert topology is not None
    assert len(formats.wiring(topology).blocks) == blocks
    with np.load(MODELS / f"{name.rpartition('_')[0]}.io.npz") as known:
        x = known["x"][:1]
    assert check_removal(source, tmp_path, x, 0.3) == count
    assert (tmp_path / "pruned.bin").stat().st_size < 0.85 * source.with_suffix(".bin").stat().st_size


@needs_shared
@pytest.mark.clients
@pytest.mark.parametrize("options", [{}, {"block": True}, {"topology": "external"}], ids=str)
def test_through_a_bitstream(options: dict[str, Any], tmp_path: Path) -> None:
    """The decoder writes an executable IR with the remaining shapes."""
    source = MODELS / "resnet20_cifar10_irv11.xml"
    data = nnr.encode(source, reduce="prune(ratio=0.3)", qp=-72, **options)
    topology = source if "topology" in options else None
    assert nnr.verify(data, topology=topology).violations == []
    model = nnr.decode(data, topology=topology)
    nnr.save(model, tmp_path / "m.xml")
    before, after = nnr.load(source), nnr.load(tmp_path / "m.xml")
    assert {each for each in before if before[each].shape != after[each].shape} == {*model.pruned} != set()
    with np.load(MODELS / "resnet20_cifar10.io.npz") as known:
        (found,) = outputs(tmp_path / "m.xml", known["x"][:1])
    assert np.isfinite(found).all()
    again = nnr.encode(tmp_path / "m.xml", reduce="prune(ratio=0.3)", qp=-72, **options)
    assert len(again) < len(data)


def test_bytes_between_constants(tmp_path: Path) -> None:
    """The alignment of constants is kept; the end of the file follows the last constant."""
    net = Net()
    net.data += bytes(32)
    first = conv(net)
    net.data += bytes(-len(net.data) % 64)
    last = net.conv(first, net.weight(3, 4, 1, 1))
    model = net.model(tmp_path / "source", last)
    tensors = {"l1": np.asarray(model["l1"])[:2], "l3": np.asarray(model["l3"])[:, :2]}
    nnr.save(
        Model(tensors, model.topology, metadata={"openvino:size": "9999"}, pruned=["l1", "l3"]), tmp_path / "m.xml"
    )
    constants = read_constants((tmp_path / "m.xml").read_bytes(), Limits())
    assert [(each.offset, each.nbytes) for each in constants.values()] == [(32, 216), (256, 24)]
    assert (tmp_path / "m.bin").stat().st_size == 280


EXAMPLE = Net()
EXAMPLE_XML = EXAMPLE.xml(EXAMPLE.conv(doubled(EXAMPLE, depthwise(EXAMPLE, conv(EXAMPLE))), EXAMPLE.weight(3, 8, 1, 1)))


@pytest.mark.medium
@settings(deadline=None, max_examples=examples(400))
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.sampled_from(b'0123456789-," <>/abcl')), min_size=1, max_size=4))
def test_any_bytes(changes: list[tuple[int, int]]) -> None:
    """With any byte changed, channels and new shapes are returned or an error is raised."""
    data = bytearray(EXAMPLE_XML)
    for place, value in changes:
        data[place % len(data)] = value
    topology = Topology("", bytes(data))
    if not formats.of_topology(topology):
        return
    wiring = formats.wiring(topology)
    for group in formats.channels(topology):
        for part in group.parts:
            assert part.offset + part.outer * group.size * part.inner <= wiring.shapes[part.tensor][part.axis]
    try:
        constants = read_constants(bytes(data), Limits())
    except (FormatError, LimitError):
        assert wiring.blocks == ()
        return
    smaller = {name: tuple(max(extent - 1, 1) for extent in shape) for name, shape in wiring.shapes.items()}
    edited = with_shapes(bytes(data), constants, smaller)
    found = {name: constant.shape for name, constant in read_constants(edited, Limits()).items()}
    assert {name: found[name] for name in constants} == smaller
