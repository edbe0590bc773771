"""Recognises the blocks of the network in an ONNX graph: weights of linear operations, and what belongs to them.

A block begins with ``Conv``, ``ConvTranspose`` without groups, ``Gemm`` or ``MatMul`` whose second input is a tensor of
the model, perhaps transposed. What follows may be ``Add`` of a vector along the output channels, where the operation
has no bias of its own, and ``BatchNormalization``; each only where nothing else uses what it is applied to. A tensor
belongs to a block where it is of floats, has the shape for it and is used once, and where no caller can replace it.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from ...model import Block
from .graph import Graph, Node
from .layout import Slot

#: Of BatchNormalization, as it holds it.
EPSILON = float(struct.unpack("<f", struct.pack("<f", 1e-5))[0])

_CORES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: Initializers that are inputs as well can be replaced by callers since then.
REPLACEABLE = 4
# BatchNormalization is for inference since then, unless it says otherwise.
_INFERENCE = 7


def find_blocks(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph, in the order of its operations; one may be of a weight alone."""
    blocks = _Blocks(graph)
    found = (blocks.block(node) for node in graph.nodes if node.operation in _CORES)
    return tuple(block for block in found if block is not None)


class _Blocks:
    def __init__(self, graph: Graph) -> None:
        replaceable = graph.inputs if graph.ir_version >= REPLACEABLE else set()
        self.slots = {name: slot for name, slot in graph.values.items() if slot.items.stored.kind == "f"}
        for name in replaceable:
            self.slots.pop(name, None)
        self.graph = graph
        self.users = {name: node for node in graph.nodes for name in node.inputs}
        self.makers = {name: node for node in graph.nodes for name in node.outputs}

    def block(self, core: Node) -> Block | None:
        """The block of an operation; None where its weight is no tensor of the model, or used elsewhere."""
        weight, axis = self.weight(core)
        if weight is None:
            return None
        shape = weight.items.shape
        block = Block(weight.name, axis=axis)
        channels, is_matrix = shape[axis], core.operation in ("Gemm", "MatMul")
        behind = 0 if is_matrix else len(shape) - 2  # dimensions of the output after that of the channels
        output = core
        if len(core.inputs) > 2 and core.inputs[2]:
            bias = self.vector(core.inputs[2], channels, 0)
            if bias is None or core.attributes.get("beta", 1.0) != 1.0:
                # Something else is added that no block knows of.
                return block
            block = replace(block, bias=bias)
        else:
            user = self.user(core, "Add")
            bias = self.vector(_other(user, core.outputs[0]), channels, behind) if user else None
            if user and bias:
                block, output = replace(block, bias=bias), user
        user = self.user(output, "BatchNormalization")
        # What MatMul gives may have more dimensions, of which another one would be normalized.
        return self.normalized(block, user, output, channels) if user and core.operation != "MatMul" else block

    def weight(self, core: Node) -> tuple[Slot | None, int]:
        """The weight of an operation, and the dimension of it that the outputs belong to."""
        nothing = None, 0
        if len(core.inputs) < 2 or len(core.outputs) != 1:
            return nothing
        axis = 1 if core.operation in ("ConvTranspose", "MatMul") else 0
        if core.operation == "ConvTranspose" and core.attributes.get("group", 1) != 1:
            return nothing
        if core.operation == "Gemm" and not core.attributes.get("transB", 0):
            axis = 1
        name = core.inputs[1]
        transposed = self.makers.get(name)
        rank = 2 if core.operation in ("Gemm", "MatMul") else None
        if transposed and transposed.operation == "Transpose" and self.graph.uses[name] == 1:
            slot = self.private(transposed.inputs[0] if transposed.inputs else "")
            places = list(range(len(slot.items.shape))) if slot else []
            order = transposed.attributes.get("perm", places[::-1])
            if not isinstance(order, list) or sorted(order) != places or axis >= len(order):
                return nothing
            axis = order[axis]
        else:
            slot = self.private(name)
        if slot is None or len(slot.items.shape) < 2 or rank not in (None, len(slot.items.shape)):
            return nothing
        return slot, axis

    def normalized(self, block: Block, node: Node, output: Node, channels: int) -> Block:
        """A block with the batch normalization of its output; without it where not all of it fits."""
        if node.inputs[0] != output.outputs[0] or len(node.inputs) != 5 or len(node.outputs) != 1:
            return block
        if self.graph.opset < _INFERENCE or node.attributes.get("training_mode", 0) or not _is_spatial(node):
            return block
        gamma, beta, mean, var = (self.vector(name, channels, 0) for name in node.inputs[1:])
        epsilon = node.attributes.get("epsilon", EPSILON)
        if not (gamma and beta and mean and var) or not isinstance(epsilon, float):
            return block
        return replace(block, beta=beta, gamma=gamma, mean=mean, var=var, epsilon=epsilon)

    def user(self, node: Node, operation: str) -> Node | None:
        """The operation that is applied to the output of a node, if that is this one, and the only one."""
        (output,) = node.outputs
        user = self.users.get(output)
        only = self.graph.uses[output] == 1 and user and user.operation == operation and len(user.outputs) == 1
        return user if only else None

    def private(self, name: str) -> Slot | None:
        """The tensor of that name, if it is used here only."""
        return self.slots.get(name) if self.graph.uses[name] == 1 else None

    def vector(self, name: str, channels: int, behind: int) -> str | None:
        """The name of a tensor that is used here only, and is one number for each channel.

        In it, so many extents of 1 stand behind that of the channels.
        """
        slot = self.private(name)
        if slot is None:
            return None
        shape = slot.items.shape
        front = len(shape) - behind - 1
        return slot.name if front >= 0 and shape == (1,) * front + (channels,) + (1,) * behind else None


def _other(node: Node, name: str) -> str:
    """The input of an addition beside this one."""
    first, *others = node.inputs
    return "".join(others[:1]) if first == name else first


def _is_spatial(node: Node) -> bool:
    """Whether there is one mean for each channel, as there always is since opset 9."""
    return node.attributes.get("spatial", 1) == 1
