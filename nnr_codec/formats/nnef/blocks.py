"""Recognises the blocks of the network in an NNEF graph: weights of linear operations, and what belongs to them.

A block begins with ``conv``, ``deconv``, ``separable_conv`` (its point filter), ``linear`` or ``matmul`` (its second
operand) whose weight is a variable, perhaps transposed. What follows may be ``mul`` by a variable (local scaling) where
there is no bias yet, ``add`` of a variable (the bias, unless it is an argument), and ``batch_normalization``; each only
where nothing else uses what it is applied to. A variable belongs to a block where it is of scalars, has the shape for
it, is used once and shares its label with no other.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from math import prod

from ...model import Block
from .dataflow import Value, follow
from .graph import Graph
from .tree import Variable

#: The parameter that is the weight, and the dimension of it that the outputs belong to.
_WEIGHTS = {
    "conv": ("filter", 0),
    "deconv": ("filter", 1),
    "separable_conv": ("point_filter", 0),
    "linear": ("filter", 0),
    "matmul": ("B", 1),
}
_MATRICES = ("linear", "matmul")
#: The dimension of activations that the outputs belong to (NNEF 1.0, chapter 4).
_CHANNEL = 1


def find_blocks(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph, in the order of its operations; one may be of a weight alone."""
    labels = Counter(variable.label.casefold() for variable in graph.variables)
    shared = frozenset(label for label, count in labels.items() if count > 1)
    found = (_block(value, shared) for value in follow(graph) if value.operation in _WEIGHTS)
    return tuple(block for block in found if block is not None)


def _block(core: Value, shared: frozenset[str]) -> Block | None:
    found, axis = _weight(core)
    weight = _private(found, shared)
    if weight is None or not axis < len(weight.shape) or len(weight.shape) < 2:
        return None
    if core.operation in _MATRICES and len(weight.shape) > 2:
        return None
    block = Block(weight.label, axis=axis)
    channels = weight.shape[axis]
    bias, output = core.inputs.get("bias"), core
    if bias is not None and not _is_zero(bias):
        variable = _vector(bias, channels, shared)
        if variable is None:
            # Something else is added that no block knows of.
            return block
        block = replace(block, bias=variable.label)
    while len(output.users) == 1:
        (user,) = output.users
        if user.operation == "batch_normalization":
            return _normalized(block, user, output, channels, shared)
        if user.operation not in ("mul", "add") or block.bias or (user.operation == "mul" and block.scale):
            break
        other = user.inputs.get("y" if user.inputs.get("x") is output else "x")
        variable = _vector(other, channels, shared)
        if variable is None or not _is_along(variable.shape, _CHANNEL):
            break
        label = variable.label
        block = replace(block, scale=label) if user.operation == "mul" else replace(block, bias=label)
        output = user
    return block


def _normalized(block: Block, call: Value, output: Value, channels: int, shared: frozenset[str]) -> Block:
    """A block with the batch normalization of its output; without it where not all of it fits."""
    names = ("offset", "scale", "mean", "variance")
    parts = [_vector(call.inputs.get(name), channels, shared) for name in names]
    labels = [part.label for part in parts if part is not None]
    if call.inputs.get("input") is not output or len(labels) < len(names):
        return block
    beta, gamma, mean, var = labels
    epsilon = _number(call.inputs.get("epsilon"))
    return replace(block, beta=beta, gamma=gamma, mean=mean, var=var, epsilon=epsilon)


def _weight(core: Value) -> tuple[Value | None, int]:
    """The weight of an operation, and the dimension of it that the outputs belong to; no weight where there is none."""
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
    """The axes of a transposition; empty where they are not known, or are no permutation."""
    items = value.items or [] if value else []
    axes = [item.constant for item in items if isinstance(item.constant, int)]
    return axes if sorted(axes) == list(range(len(items))) else []


def _private(value: Value | None, shared: frozenset[str]) -> Variable | None:
    """The variable that a value is, if it is used here only."""
    if value is None or value.variable is None or len(value.users) != 1:
        return None
    variable = value.variable
    return variable if variable.dtype == "scalar" and variable.label.casefold() not in shared else None


def _vector(value: Value | None, channels: int, shared: frozenset[str]) -> Variable | None:
    """The variable that a value is, if it is used here only and is one number for each channel."""
    variable = _private(value, shared)
    if variable is None or prod(variable.shape) != channels or sum(extent != 1 for extent in variable.shape) > 1:
        return None
    return variable


def _is_along(shape: tuple[int, ...], axis: int) -> bool:
    """Whether all extents but that of one dimension are 1; dimensions are aligned from the first (NNEF 1.0, 4.2.2)."""
    return all(extent == 1 for place, extent in enumerate(shape) if place != axis)


def _is_zero(value: Value) -> bool:
    return _number(value) == 0


def _number(value: Value | None) -> float | None:
    constant = value.constant if value else None
    if isinstance(constant, bool) or not isinstance(constant, int | float) or not abs(constant) <= sys.float_info.max:
        return None
    return float(constant)
