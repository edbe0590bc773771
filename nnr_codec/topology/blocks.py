"""Detection of the blocks of a network: weights of linear operations, with their bias, scale and normalization.

A block begins with ``conv``, ``deconv`` without groups, ``separable_conv`` (its point filter), ``linear`` or a product
of matrices (its second operand) whose weight is a tensor of the model, perhaps transposed. It can continue with ``mul``
by a tensor (local scaling) if it has no bias yet, ``add`` of a tensor (the bias, unless it is an argument), and
``batch_normalization``; each operand must have no other use. A tensor is part of a block if it has floats and the right
shape, is used once and is not another value of the graph.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import prod

from ..model import Block
from .graph import Graph, Tensor, Value

#: Parameter that is the weight, and its dimension of outputs, by operation.
_WEIGHTS = {
    "conv": ("filter", 0),
    "deconv": ("filter", 1),
    "separable_conv": ("point_filter", 0),
    "linear": ("filter", 0),
    "matmul": ("B", 1),
    "batched_matmul": ("B", 1),
}
_MATRICES = ("linear", "matmul", "batched_matmul")


def find_blocks(graph: Graph) -> tuple[Block, ...]:
    """Return the blocks of a graph, in the order of its operations; a block may have only a weight."""
    found = (_block(value, graph.aligns_last) for value in graph.values if value.operation in _WEIGHTS)
    return tuple(block for block in found if block is not None)


def _block(core: Value, aligns_last: bool) -> Block | None:
    found, axis = _weight(core)
    weight, is_matrix = _private(found), core.operation in _MATRICES
    if weight is None or not axis < len(weight.shape) or len(weight.shape) < 2:
        return None
    if is_matrix and len(weight.shape) > 2:
        return None
    block = Block(weight.name, axis=axis)
    channels = weight.shape[axis]
    behind = 0 if is_matrix else len(weight.shape) - 2  # dimensions of the output after the channels
    bias, output = core.inputs.get("bias"), core
    if bias is not None and not _is_zero(bias):
        vector = _vector(bias, channels)
        if vector is None:
            # The added value is not a bias of the block.
            return block
        block = replace(block, bias=vector.name)
    while len(output.users) == 1:
        (user,) = output.users
        if user.operation == "batch_normalization" and core.operation != "batched_matmul":
            # A batched product may have more dimensions, so that another dimension would be normalized.
            return _normalized(block, user, output, channels)
        if user.operation not in ("mul", "add") or block.bias or (user.operation == "mul" and block.scale):
            break
        vector = _vector(user.inputs.get("y" if user.inputs.get("x") is output else "x"), channels)
        if vector is None:
            break
        place = len(vector.shape) - 1 - behind if aligns_last else 1
        if any(extent != 1 for k, extent in enumerate(vector.shape) if k != place):
            break
        name = vector.name
        block = replace(block, scale=name) if user.operation == "mul" else replace(block, bias=name)
        output = user
    return block


def _normalized(block: Block, call: Value, output: Value, channels: int) -> Block:
    """Return a block with the batch normalization of its output, if all tensors of the normalization fit."""
    names = ("offset", "scale", "mean", "variance")
    parts = [_vector(call.inputs.get(name), channels) for name in names]
    labels = [part.name for part in parts if part is not None]
    if call.inputs.get("input") is not output or len(labels) < len(names):
        return block
    beta, gamma, mean, var = labels
    epsilon = _number(call.inputs.get("epsilon"))
    return replace(block, beta=beta, gamma=gamma, mean=mean, var=var, epsilon=epsilon)


def _weight(core: Value) -> tuple[Value | None, int]:
    """Return the weight of an operation, and its dimension of outputs; None without a weight."""
    name, axis = _WEIGHTS[core.operation]
    weight = core.inputs.get(name)
    if weight is None:
        return None, 0
    groups, transposed = core.inputs.get("groups"), core.inputs.get("transposeB")
    if core.operation == "deconv" and groups is not None and groups.constant != 1:
        return None, 0
    if transposed is not None:
        if not isinstance(transposed.constant, bool):
            return None, 0
        axis = 0 if transposed.constant else axis
    if weight.operation == "transpose" and len(weight.users) == 1:
        axes = _axes(weight.inputs.get("axes"))
        if axis >= len(axes):
            return None, 0
        weight, axis = weight.inputs.get("input"), axes[axis]
    return weight, axis


def _axes(value: Value | None) -> list[int]:
    """Return the axes of a transposition; none if they are unknown or not a permutation."""
    items = value.items or [] if value else []
    axes = [item.constant for item in items if isinstance(item.constant, int)]
    return axes if sorted(axes) == list(range(len(items))) else []


def _private(value: Value | None) -> Tensor | None:
    """Return the tensor of a value without other uses."""
    if value is None or value.tensor is None or len(value.users) != 1:
        return None
    return value.tensor if value.tensor.is_float and value.tensor.is_private else None


def _vector(value: Value | None, channels: int) -> Tensor | None:
    """Return the tensor of a value without other uses that has one number for each channel."""
    tensor = _private(value)
    if tensor is None or prod(tensor.shape) != channels or sum(extent != 1 for extent in tensor.shape) > 1:
        return None
    return tensor


def _is_zero(value: Value) -> bool:
    return _number(value) == 0


def _number(value: Value | None) -> float | None:
    constant = value.constant if value else None
    if isinstance(constant, bool) or not isinstance(constant, int | float) or not abs(constant) <= sys.float_info.max:
        return None
    return float(constant)
