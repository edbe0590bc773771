"""The graph of an ONNX model in the operations of :mod:`nnr_codec.topology.graph`.

Nodes that cannot be expressed there have no operation. Uses of a value outside the nodes of the outer graph are counted
by :class:`.graph.OnnxGraph`. Nodes may be in any order. Initializers that callers can replace are not tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from ...topology import graph as topology
from ...topology.graph import GraphBuilder, Tensor, Value, integers
from .constants import evaluate
from .graph import OnnxGraph, OnnxNode

#: Default epsilon of BatchNormalization, rounded to float32.
EPSILON = float(struct.unpack("<f", struct.pack("<f", 1e-5))[0])
#: First opset in which operands are broadcast as in numpy, and BatchNormalization is for inference by default.
BROADCASTS = 7
# First IR version in which callers can replace only initializers that are also inputs.
_REPLACEABLE = 4
_MAX_RANK = 32

Made = tuple[str, dict[str, Value]]


def flow(graph: OnnxGraph) -> topology.Graph:
    """Return the values of a graph, which need not be complete."""
    return topology.Graph(Follower(graph).run(), aligns_last=True)


class Follower(GraphBuilder):
    """Traversal of the nodes in their order."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph, self.opset = graph, graph.opset
        replaceable = graph.inputs if graph.ir_version >= _REPLACEABLE else set()
        self.slots = {name: slot for name, slot in graph.values.items() if name not in replaceable}
        self.constants = {name: each for name, each in graph.constants.items() if name not in replaceable}
        self.names: dict[str, Value] = {}
        super().__init__()
        self.unknown = Value()

    def run(self) -> list[Value]:
        made = [[self.output(name) for name in node.outputs] for node in self.graph.nodes]
        for node, outputs in zip(self.graph.nodes, made, strict=True):
            self.node(node, outputs)
        for name, value in self.names.items():
            if len(value.users) != self.graph.uses[name]:
                value.users += [self.unknown, self.unknown]
        return self.values

    def output(self, name: str) -> Value:
        """Return the value for an output of a node; a repeated name makes both values unknown."""
        value = Value()
        first = Value() if self.is_stored(name) else self.names.setdefault(name, value)
        if first is not value:
            value.users += [self.unknown, self.unknown]
            first.users += [self.unknown, self.unknown]
        return value

    def is_stored(self, name: str) -> bool:
        """Return whether a tensor or a constant of the model has a name."""
        return name in self.slots or name in self.constants

    def node(self, node: OnnxNode, outputs: list[Value]) -> None:
        """Add a node, with its operation if it has a rule and only one output that is used."""
        target, *others = outputs or [Value()]
        is_alone = not any(self.graph.uses[name] for name in node.outputs[1:] if name)
        made = self.made(node) if is_alone and node.inputs and node.inputs[0] else None
        name = node.outputs[0] if node.outputs else ""
        if self.constants and self.names.get(name) is target:
            found = evaluate(node.operation, node.attributes, [self.constants.get(each) for each in node.inputs])
            self.constants.update({name: found} if found else {})
        operation, inputs = made or ("", {str(k): self.value(name) for k, name in enumerate(node.inputs) if name})
        self.add(operation, inputs, target)
        self.values += others

    def made(self, node: OnnxNode) -> Made | None:
        """Return the operation of a node with its inputs; None if there is no rule for it."""
        rule = _RULES.get(node.operation)
        return rule(self, node) if rule else None

    def value(self, name: str) -> Value:
        """Return the value of a name: the output of a node, a tensor, a constant or an input of the graph."""
        if name not in self.names:
            found = self.names[name] = Value()
            self.values.append(found)
            slot, extents = self.slots.get(name), self.graph.extents.get(name)
            if slot:
                found.tensor = Tensor(slot.name, slot.items.shape, slot.items.stored.kind == "f")
            elif name in self.constants:
                found.operation, found.inputs = "constant", {"shape": integers(self.constants[name].shape)}
            elif extents and name not in self.graph.values:
                found.operation, found.inputs = "external", {"shape": integers(extents)}
        return self.names[name]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor, or of a constant that stays in the graph."""
        if name in self.slots:
            return self.slots[name].items.shape
        return self.constants[name].shape if name in self.constants else None

    def integers(self, node: OnnxNode, attribute: str, place: int) -> list[int] | None:
        """Return the integers of an attribute, or of a constant input as in newer opsets; None if unknown."""
        values = node.attributes.get(attribute)
        if values is None:
            constant = self.constants.get(input_of(node, place))
            values = [*map(int, constant.values)] if constant and len(constant.shape) == 1 else None
        return values if isinstance(values, list) and 0 < len(values) <= 2 * _MAX_RANK else None

    # -------------------------------------------------------------------------------------------- operations
    def conv(self, node: OnnxNode) -> Made | None:
        weight, bias, groups = input_of(node, 1), input_of(node, 2), node.attributes.get("group", 1)
        if not weight or len(node.outputs) != 1 or not isinstance(groups, int):
            return None
        inputs = {"input": self.value(node.inputs[0]), "filter": self.value(weight)}
        if bias:
            inputs["bias"] = self.value(bias)
        if groups != 1:
            is_transposed, shape = node.operation == "ConvTranspose", self.shape(weight) or ()
            # NNEF uses 0 for one group per channel.
            is_alone = groups > 1 and len(shape) > 1 and (shape[0] == groups if is_transposed else shape[1] == 1)
            inputs["groups"] = Value(constant=0 if is_alone else -1)
        return "deconv" if node.operation == "ConvTranspose" else "conv", inputs

    def gemm(self, node: OnnxNode) -> Made | None:
        """Return a matrix product, or its sum with a broadcast bias."""
        if not input_of(node, 1) or len(node.outputs) != 1:
            return None
        transposed = {f"transpose{k}": Value(constant=bool(node.attributes.get(f"trans{k}", 0))) for k in "AB"}
        inputs = {"A": self.value(node.inputs[0]), "B": self.value(node.inputs[1]), **transposed}
        if not input_of(node, 2):
            return "matmul", inputs
        is_plain = node.attributes.get("beta", 1.0) == 1.0
        product = self.add("matmul", inputs)
        return "add" if is_plain else "elementwise", {"x": product, "y": self.value(node.inputs[2])}

    def norm(self, node: OnnxNode) -> Made | None:
        epsilon = node.attributes.get("epsilon", EPSILON)
        is_spatial = node.attributes.get("spatial", 1) == 1  # one mean per channel; always the case since opset 9
        if self.opset < BROADCASTS or node.attributes.get("training_mode", 0) or not is_spatial:
            return None
        if len(node.inputs) != 5 or not all(node.inputs) or len(node.outputs) != 1 or not isinstance(epsilon, float):
            return None
        inputs = dict(zip(("input", "scale", "offset", "mean", "variance"), map(self.value, node.inputs), strict=True))
        return "batch_normalization", {**inputs, "epsilon": Value(constant=epsilon)}

    def elementwise(self, node: OnnxNode) -> Made | None:
        """Return an elementwise operation with any number of inputs."""
        return (
            ("elementwise", {str(k): self.value(name) for k, name in enumerate(node.inputs)})
            if all(node.inputs)
            else None
        )

    def concat(self, node: OnnxNode) -> Made | None:
        axis = node.attributes.get("axis")
        if not all(node.inputs) or not isinstance(axis, int):
            return None
        items = [self.value(name) for name in node.inputs]
        values = self.add("", {str(k): item for k, item in enumerate(items)})
        values.items = items
        return "concat", {"values": values, "axis": Value(constant=axis)}

    def reduce(self, node: OnnxNode) -> Made | None:
        axes = self.integers(node, "axes", 1)
        if axes is None:
            return None
        inputs = {"input": self.value(node.inputs[0]), "axes": integers(axes)}
        if node.attributes.get("keepdims", 1):
            return "mean_reduce", inputs
        return "squeeze", {"input": self.add("mean_reduce", inputs), "axes": inputs["axes"]}

    def pad(self, node: OnnxNode) -> Made | None:
        pads = self.integers(node, "pads", 1)
        if pads is None or input_of(node, 3):
            return None
        half = len(pads) // 2
        pairs = [integers(pair) for pair in zip(pads[:half], pads[half:], strict=False)]
        inputs = {"input": self.value(node.inputs[0]), "padding": Value(items=pairs)}
        if node.attributes.get("mode", "constant") != "constant":
            inputs["border"] = Value()
        return "pad", inputs

    def resize(self, node: OnnxNode) -> Made | None:
        """Return a resampling; factors in tensors of the model are assumed to be 1 for the first two dimensions."""
        is_old, axes = len(node.inputs) == 2, node.attributes.get("axes")
        scales = input_of(node, 1 if is_old else 2)
        region, shape = self.shape("" if is_old else input_of(node, 1)), self.shape(scales)
        if input_of(node, 3) or region not in (None, (0,)) or shape is None or len(shape) != 1:
            return None
        factors = self.constants[scales].values if scales in self.constants else (0.0,) * shape[0]
        if not len(factors) == shape[0] == (len(axes) if isinstance(axes, list) else shape[0]):
            return None
        inputs = {"input": self.value(node.inputs[0])}
        if scales in self.constants:
            axes = axes if isinstance(axes, list) else [*range(len(factors))]
            inputs["axes"] = integers(axis for axis, factor in zip(axes, factors, strict=True) if factor != 1)
        elif isinstance(axes, list):
            inputs["axes"] = integers(axes)
        return "nearest_upsample", inputs

    def flatten(self, node: OnnxNode) -> Made | None:
        axis = node.attributes.get("axis", 1)
        if not isinstance(axis, int):
            return None
        return "flatten", {"input": self.value(node.inputs[0]), "axis": Value(constant=axis)}

    def transpose(self, node: OnnxNode) -> Made:
        order, shape = node.attributes.get("perm"), self.shape(node.inputs[0])
        inputs = {"input": self.value(node.inputs[0])}
        if isinstance(order, list):
            inputs["axes"] = integers(order)
        elif shape:
            inputs["axes"] = integers([*range(len(shape))][::-1])
        return "transpose", inputs


def input_of(node: OnnxNode, place: int) -> str:
    """Return the name of an input; empty if it is omitted."""
    return node.inputs[place] if place < len(node.inputs) else ""


_Rule = Callable[[Follower, OnnxNode], "Made | None"]


def _plain(operation: str, *names: str, is_exact: bool = True) -> _Rule:
    """Return a rule for an operation without attributes; unless ``is_exact``, further inputs may follow."""

    def rule(follower: Follower, node: OnnxNode) -> Made | None:
        if (is_exact and len(node.inputs) != len(names)) or not all(node.inputs[: len(names)]):
            return None
        return operation, dict(zip(names, map(follower.value, node.inputs), strict=False))

    return rule


def _listed(operation: str, name: str, place: int = 1) -> _Rule:
    """Return a rule for an operation with one operand and a list of integers: an attribute, or the input ``place``."""

    def rule(follower: Follower, node: OnnxNode) -> Made | None:
        found = follower.integers(node, name, place)
        # With this attribute of Reshape, 0 does not mean an unchanged extent.
        if found is None or node.attributes.get("allowzero", 0):
            return None
        return operation, {"input": follower.value(node.inputs[0]), name: integers(found)}

    return rule


#: Rules by operation; operations that mix channels, or return NaN for channels of zeros, have none.
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), Follower.conv),
    "Gemm": Follower.gemm,
    "MatMul": _plain("batched_matmul", "A", "B"),
    "BatchNormalization": Follower.norm,
    "InstanceNormalization": _plain("instance_normalization", "input", "scale", "offset"),
    "Add": _plain("add", "x", "y"),
    "Mul": _plain("mul", "x", "y"),
    "Div": _plain("div", "x", "y"),
    "PRelu": _plain("prelu", "x", "alpha"),
    **dict.fromkeys(("Max", "Mean", "Min", "Sub", "Sum"), Follower.elementwise),
    "Identity": _plain("copy", "x"),
    **dict.fromkeys(
        (
            *("Abs", "Cast", "Ceil", "Celu", "Clip", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
            *("HardSwish", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus"),
            *("Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"),
        ),
        _plain("elementwise", "x", is_exact=False),
    ),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _plain("pool", "input")),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _plain("global_pool", "input")),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"),
        Follower.reduce,
    ),
    "Concat": Follower.concat,
    "Pad": Follower.pad,
    **dict.fromkeys(("Resize", "Upsample"), Follower.resize),
    "Flatten": Follower.flatten,
    "Reshape": _listed("reshape", "shape"),
    "Slice": _listed("slice", "axes", 3),
    "Squeeze": _listed("squeeze", "axes"),
    "Unsqueeze": _listed("unsqueeze", "axes"),
    "Transpose": Follower.transpose,
}
