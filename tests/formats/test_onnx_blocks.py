"""Information of an ONNX graph about its tensors: shapes, kinds, and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.constants import NNR_PT_BLOCK
from nnr_codec.formats.onnx.dataflow import EPSILON
from nnr_codec.model import Block, Topology

from .onnx_files import field, graph, model, node, tensor

RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return numbers near 1."""
    return RNG.random(shape, np.float32) + np.float32(0.5)


NORM = ["gamma", "beta", "mean", "var"]
NORMS = [tensor(name, random(4)) for name in NORM]
FILTER, BIAS = tensor("w", random(4, 3, 2, 2)), tensor("b", random(4))
BN = node("BatchNormalization", ["a", *NORM], ["y"], epsilon=0.25)
CONV = model([node("Conv", ["x", "w", "b"], ["a"]), BN], [FILTER, BIAS, *NORMS])
WHOLE = Block("w", "b", "beta", "gamma", "mean", "var", epsilon=0.25)


def blocks(data: bytes) -> tuple[Block, ...]:
    """Return the blocks that the topology of a model describes."""
    topology = formats.load(data).topology
    assert topology is not None
    assert formats.wiring(topology) == formats.wiring(Topology("onnx", topology.data))
    return formats.wiring(topology).blocks


def test_shapes_and_kinds() -> None:
    tensors = [FILTER, tensor("i", np.arange(17)), tensor("u", np.zeros(17, np.uint8)), tensor("t", np.ones(17, bool))]
    topology = formats.load(model(tensors=tensors)).topology
    assert topology is not None
    wiring = formats.wiring(topology)
    assert wiring.shapes == {"w": (4, 3, 2, 2), "i": (17,), "u": (17,), "t": (17,)}
    assert wiring.kinds == {"w": "f", "i": "iu", "u": "iu", "t": "biu"}


@pytest.mark.parametrize("data", [b"", b"\x08\x08", b"\x0b", field(7, b"\xff"), field(7, field(5, field(1, -1)))])
def test_a_topology_that_cannot_be_read_says_nothing(data: bytes) -> None:
    assert formats.wiring(Topology("onnx", data)) == formats.Wiring()


# ------------------------------------------------------------------------------------------------ blocks
FOUND: dict[str, tuple[Sequence[bytes], Sequence[bytes], Block]] = {
    "convolution": ([node("Conv", ["x", "w", "b"], ["a"]), BN], [FILTER, BIAS, *NORMS], WHOLE),
    "without bias": ([node("Conv", ["x", "w"], ["a"]), BN], [FILTER, *NORMS], replace(WHOLE, bias=None)),
    "an empty bias": ([node("Conv", ["x", "w", ""], ["a"]), BN], [FILTER, *NORMS], replace(WHOLE, bias=None)),
    "default epsilon": (
        [node("Conv", ["x", "w", "b"], ["a"]), node("BatchNormalization", ["a", *NORM], ["y"])],
        [FILTER, BIAS, *NORMS],
        replace(WHOLE, epsilon=EPSILON),
    ),
    "added bias": (
        [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "b"], ["a"]), BN],
        [FILTER, tensor("b", random(1, 4, 1, 1)), *NORMS],
        WHOLE,
    ),
    "transposed convolution": (
        [node("ConvTranspose", ["x", "w", "b"], ["a"], group=1), BN],
        [tensor("w", random(3, 4, 2, 2)), BIAS, *NORMS],
        replace(WHOLE, axis=1),
    ),
    "Gemm": (
        [node("Gemm", ["x", "w", "b"], ["a"]), BN],
        [tensor("w", random(3, 4)), BIAS, *NORMS],
        replace(WHOLE, axis=1),
    ),
    "transposed Gemm": (
        [node("Gemm", ["x", "w", "b"], ["a"], transB=1), BN],
        [tensor("w", random(4, 3)), BIAS, *NORMS],
        WHOLE,
    ),
    "a scaled Gemm": (
        [node("Gemm", ["x", "w", "b"], ["a"], alpha=2.0, beta=1.0, transB=1), BN],
        [tensor("w", random(4, 3)), BIAS, *NORMS],
        WHOLE,
    ),
    "MatMul": (
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["b", "a"], ["y"])],
        [tensor("w", random(3, 4)), BIAS],
        Block("w", "b", axis=1),
    ),
    "a transposed weight": (
        [
            node("Transpose", ["w"], ["t"], perm=[1, 0]),
            node("MatMul", ["x", "t"], ["a"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [tensor("w", random(4, 3)), BIAS],
        Block("w", "b"),
    ),
    "transposed as it is by default": (
        [node("Transpose", ["w"], ["t"]), node("Gemm", ["x", "t", "b"], ["y"], transB=1)],
        [tensor("w", random(3, 4)), BIAS],
        Block("w", "b", axis=1),
    ),
}


@pytest.mark.parametrize(("nodes", "tensors", "expected"), FOUND.values(), ids=FOUND)
def test_blocks(nodes: Sequence[bytes], tensors: Sequence[bytes], expected: Block) -> None:
    assert blocks(model(nodes, tensors)) == (expected,)
    # In any order.
    assert blocks(model(nodes[::-1], tensors[::-1])) == (expected,)


CORE = node("Conv", ["x", "w", "b"], ["a"])
WEIGHT, PLAIN = Block("w"), Block("w", "b")
LESS: dict[str, tuple[bytes, tuple[Block, ...]]] = {
    "the output is used twice": (model([CORE, BN, node("Relu", ["a"], ["z"])], [FILTER, BIAS, *NORMS]), (PLAIN,)),
    "it is an output of the graph": (
        model([CORE, BN], [FILTER, BIAS, *NORMS], field(12, field(1, "a"))),
        (PLAIN,),
    ),
    "an inner graph uses it": (
        model(
            [CORE, BN, node("If", ["q"], ["z"], then_branch=field(6, graph([node("Relu", ["a"], ["r"])])))],
            [FILTER, BIAS, *NORMS],
        ),
        (PLAIN,),
    ),
    "the weight is used twice": (model([CORE, node("Relu", ["w"], ["z"])], [FILTER, BIAS]), ()),
    "the bias is used twice": (model([CORE, BN, node("Relu", ["b"], ["z"])], [FILTER, BIAS, *NORMS]), (WEIGHT,)),
    "the mean is used twice": (model([CORE, BN, node("Relu", ["mean"], ["z"])], [FILTER, BIAS, *NORMS]), (PLAIN,)),
    "beta is another tensor's": (
        model([CORE, node("BatchNormalization", ["a", "gamma", "x", "mean", "var"], ["y"])], [FILTER, BIAS, *NORMS]),
        (PLAIN,),
    ),
    "for training": (
        model([CORE, node("BatchNormalization", ["a", *NORM], ["y"], training_mode=1)], [FILTER, BIAS, *NORMS]),
        (PLAIN,),
    ),
    "with statistics": (
        model([CORE, node("BatchNormalization", ["a", *NORM], ["y", "m"])], [FILTER, BIAS, *NORMS]),
        (PLAIN,),
    ),
    "one for each value": (
        model([CORE, node("BatchNormalization", ["a", *NORM], ["y"], spatial=0)], [FILTER, BIAS, *NORMS], opset=8),
        (PLAIN,),
    ),
    "old": (model([CORE, BN], [FILTER, BIAS, *NORMS], opset=6), (PLAIN,)),
    "another number of channels": (
        model([CORE, BN], [FILTER, BIAS, *NORMS[:3], tensor("var", random(5))]),
        (PLAIN,),
    ),
    "something else between": (
        model([CORE, node("Relu", ["a"], ["c"]), BN.replace(b"\x01a", b"\x01c")], [FILTER, BIAS, *NORMS]),
        (PLAIN,),
    ),
    "of another domain": (model([CORE + field(7, "com.vendor"), BN], [FILTER, BIAS, *NORMS]), ()),
    "callers may replace it": (model([CORE], [FILTER, BIAS], field(11, field(1, "b"))), (WEIGHT,)),
    "integers": (model([CORE], [tensor("w", np.zeros((4, 3, 2, 2), np.int32)), BIAS]), ()),
    "groups": (model([node("ConvTranspose", ["x", "w", "b"], ["a"], group=2)], [FILTER, BIAS]), ()),
    "another factor": (
        model([node("Gemm", ["x", "w", "b"], ["a"], beta=0.5, transB=1)], [tensor("w", random(4, 3)), BIAS]),
        (WEIGHT,),
    ),
    "a bias for each row": (
        model([node("Gemm", ["x", "w", "b"], ["a"], transB=1)], [tensor("w", random(4, 3)), tensor("b", random(4, 1))]),
        (WEIGHT,),
    ),
    "added along another axis": (
        model([node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "b"], ["y"])], [FILTER, BIAS]),
        (WEIGHT,),
    ),
    "normalized along another axis, perhaps": (
        model([node("MatMul", ["x", "w"], ["a"]), BN], [tensor("w", random(3, 4)), *NORMS]),
        (Block("w", axis=1),),
    ),
    "several matrices": (model([node("MatMul", ["x", "w"], ["y"])], [tensor("w", random(2, 3, 4))]), ()),
    "no permutation": (
        model(
            [node("Transpose", ["w"], ["t"], perm=[0, 0]), node("MatMul", ["x", "t"], ["y"])],
            [tensor("w", random(4, 3))],
        ),
        (),
    ),
    "a sum with itself": (
        model([node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "a"], ["y"])], [tensor("w", random(3, 4))]),
        (Block("w", axis=1),),
    ),
}


@pytest.mark.parametrize(("data", "expected"), LESS.values(), ids=LESS)
def test_what_belongs_to_no_block(data: bytes, expected: tuple[Block, ...]) -> None:
    assert blocks(data) == expected


def test_old_models_list_their_tensors_as_inputs() -> None:
    inputs = b"".join(field(11, field(1, name)) for name in ("w", "b", *NORM))
    tensors = [FILTER, BIAS, *NORMS]
    assert blocks(model([CORE, BN], tensors, inputs, ir_version=3)) == (WHOLE,)
    assert blocks(model([CORE, BN], tensors, inputs, ir_version=4)) == ()


def test_tensors_that_are_no_values_of_the_outer_graph() -> None:
    """A tensor of a subgraph may have the name of a value of the outer graph."""
    inner = graph([node("Neg", ["w"], ["y"])], [FILTER])
    branch = node("If", ["q"], ["z"], "n", then_branch=field(6, inner))
    core = node("Conv", ["x", "n/then_branch/w", "b"], ["a"])
    made = node("Neg", ["q"], ["n/then_branch/w"])
    assert blocks(model([branch, made, core, BN], [BIAS, *NORMS])) == ()
    own = tensor("n/then_branch/w", random(4, 3, 2, 2))
    assert blocks(model([branch, core, BN], [own, BIAS, *NORMS])) == (replace(WHOLE, weight="n/then_branch/w#2"),)


def test_values_of_a_sparse_tensor_are_no_vector() -> None:
    sparse = field(15, field(1, NORMS[0]) + field(2, tensor("", np.arange(4)[::-1])) + field(3, 4))
    assert blocks(model([CORE, BN], [FILTER, BIAS, *NORMS[1:]], sparse)) == (PLAIN,)


def test_a_constant_is_a_weight_too() -> None:
    weight = node("Constant", [], ["w"], value=field(5, tensor("", random(4, 3, 2, 2))))
    assert blocks(model([weight, CORE], [BIAS])) == (PLAIN,)


@pytest.mark.parametrize("options", [{"block": True}, {"fold_batchnorm": True}, {"local_scaling": True}], ids=str)
def test_blocks_are_coded_and_come_back(options: dict[str, bool]) -> None:
    """Shapes and types follow the graph; alpha and delta become gamma and beta of the restored model (8.2.1)."""
    source = formats.load(CONV)
    data = nnr.encode(source, qp=-60, **options)
    units = [unit for unit in nnr.units(data) if unit.type_name == "NNR_NDU"]
    assert len(units) < len(source) or "fold_batchnorm" not in options
    assert NNR_PT_BLOCK in {unit.ndu.nnr_compressed_data_unit_payload_type for unit in units}
    found = nnr.decode(data)
    assert {name: found[name].shape for name in found} == {name: source[name].shape for name in source}
    assert formats.load(CONV).topology == found.topology
    before, after = (
        {name: np.asarray(tensors[name], np.float64) for name in tensors} for tensors in (source.tensors, found.tensors)
    )

    def output(t: dict[str, Any]) -> Any:
        alpha = t["gamma"] / np.sqrt(t["var"] + 0.25)
        return alpha[:, None] * t["w"].reshape(4, -1), (t["b"] - t["mean"]) * alpha + t["beta"]

    for expected, value in zip(output(before), output(after), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-3)
