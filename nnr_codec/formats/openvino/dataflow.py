"""The graph of an OpenVINO IR in the operations of :mod:`nnr_codec.topology.graph`.

The XML contains no values, so constant axes, paddings and shapes are unknown, except for the axes of a reduction that
keeps its dimensions: they follow from the extents of its ports. Layers that cannot be expressed have no operation. A
constant followed by a conversion, for example from float16, is the tensor itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

from ...topology.graph import Graph, GraphBuilder, Tensor, Value, integers
from .ir import CONSTANTS, IrConstant
from .layers import IrLayer, IrNetwork, Port, range_of, read_layers

_FLOAT = re.compile(r"[0-9.eE+-]{1,40}")
_INTEGER = re.compile("-?[0-9]{1,9}")
#: Maximum number of dimensions of a value.
MAX_RANK = 32

_Made = tuple[str, dict[str, Value]]
_Inputs = list[Value]


def flow(data: bytes, constants: Mapping[str, IrConstant]) -> Graph:
    """Return the values of an IR with these constants."""
    return Graph(_Follower(read_layers(data), constants).run(), aligns_last=True)


class _Follower(GraphBuilder):
    def __init__(self, network: IrNetwork, constants: Mapping[str, IrConstant]) -> None:
        self.network = network
        self.constants = {(constant.offset, constant.nbytes): constant for constant in constants.values()}
        self.shared = Counter(range_of(attributes) for _, attributes in network.constants)
        self.used = {*network.sources.values()}
        self.outputs: dict[tuple[str, str], Value] = {}
        super().__init__()
        self.unknown = Value()

    def run(self) -> list[Value]:
        layers = self.network.layers
        for layer in layers:
            for port in layer.outputs:
                self.outputs[layer.id, port.id] = self.stored(layer) if layer.type in CONSTANTS else Value()
        others = [layer for layer in layers if layer.type not in CONSTANTS and not self.is_passed_on(layer)]
        for layer in others:
            self.layer(layer)
        uses = Counter(id(self.source(layer, port)) for layer in others for port in layer.inputs)
        for value in self.outputs.values():
            if uses[id(value)] != len(value.users):
                value.users += [self.unknown, self.unknown]
        return self.values

    def stored(self, layer: IrLayer) -> Value:
        """Return the tensor of a constant; a shared one may not be changed."""
        value, place = Value(), range_of(layer.data)
        if found := self.constants.get(place):
            is_alone = self.shared[place] == 1
            value.tensor = Tensor(found.name, found.shape, found.stored.kind == "f" and is_alone, is_alone)
        self.values.append(value)
        return value

    def is_passed_on(self, layer: IrLayer) -> bool:
        """Return whether a layer converts a constant; if so, its output becomes the tensor."""
        if layer.type != "Convert" or len(layer.inputs) != 1 or len(layer.outputs) != 1:
            return False
        source = self.source(layer, layer.inputs[0])
        if source.tensor is None:
            return False
        self.outputs[layer.id, layer.outputs[0].id] = source
        return True

    def source(self, layer: IrLayer, port: Port) -> Value:
        """Return the value of an input of a layer."""
        place = self.network.sources.get((layer.id, port.id))
        return self.outputs.get(place, self.unknown) if place else self.unknown

    def layer(self, layer: IrLayer) -> None:
        """Add a layer, with its operation if it has a rule and only one output that is used."""
        inputs = [self.source(layer, port) for port in layer.inputs]
        targets = [self.outputs[layer.id, port.id] for port in layer.outputs] or [Value()]
        is_alone = not any((layer.id, port.id) in self.used for port in layer.outputs[1:])
        rule = RULES.get(layer.type) if layer.version.startswith("opset") and is_alone else None
        made = rule(self, layer, inputs) if rule else None
        target, *others = targets
        self.add(*(made or ("", {str(k): value for k, value in enumerate(inputs)})), target)
        self.values += others

    # -------------------------------------------------------------------------------------------- operations
    def parameter(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        """Return an input of the network; None for an unknown or excessive rank, extent 0 for an unknown extent."""
        extents = layer.data.get("shape", "").split(",")
        if len(extents) > MAX_RANK or "..." in extents:
            return None
        return "external", {"shape": integers(int(text) if _INTEGER.fullmatch(text.strip()) else 0 for text in extents)}

    def group_conv(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        """Return a depthwise convolution, which belongs to no block; None for other groups."""
        shape = inputs[1].tensor.shape if len(inputs) == 2 and inputs[1].tensor else ()
        if len(shape) < 4 or shape[1:3] != (1, 1):
            return None
        weight = self.add("squeeze", {"input": inputs[1], "axes": integers([1])})
        return "conv", {"input": inputs[0], "filter": weight, "groups": Value(constant=0)}

    def matmul(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        if len(inputs) != 2:
            return None
        is_plain = all(len(port.extents) == 2 for port in layer.inputs)
        transposed = {f"transpose{k}": Value(constant=layer.is_true(f"transpose_{k.lower()}")) for k in "AB"}
        return "matmul" if is_plain else "batched_matmul", {"A": inputs[0], "B": inputs[1], **transposed}

    def norm(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        names = ["input", "scale", "offset", "mean", "variance"]
        if layer.version == "opset1":
            names[:3] = ["scale", "offset", "input"]
        if len(inputs) != len(names) or not _FLOAT.fullmatch(text := layer.data.get("epsilon", "")):
            return None
        try:
            epsilon = float(text)
        except ValueError:
            return None
        return "batch_normalization", {**dict(zip(names, inputs, strict=True)), "epsilon": Value(constant=epsilon)}

    def binary(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        if len(inputs) != 2 or layer.data.get("auto_broadcast", "numpy") != "numpy":
            return None
        operation = {"Add": "add", "Multiply": "mul", "Divide": "div"}.get(layer.type, "elementwise")
        return operation, {"x": inputs[0], "y": inputs[1]}

    def reduce(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        before, after = (ports[0].extents if ports else [] for ports in (layer.inputs, layer.outputs))
        if len(inputs) != 2 or not layer.is_true("keep_dims") or len(before) != len(after) or not all(before + after):
            return None
        axes = [k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
        return "mean_reduce", {"input": inputs[0], "axes": integers(axes)}

    def concat(self, layer: IrLayer, inputs: _Inputs) -> _Made | None:
        if not _INTEGER.fullmatch(axis := layer.data.get("axis", "")):
            return None
        values = self.add("", {str(k): item for k, item in enumerate(inputs)})
        values.items = inputs
        return "concat", {"values": values, "axis": Value(constant=int(axis))}


_Rule = Callable[[_Follower, IrLayer, _Inputs], "_Made | None"]


def _plain(operation: str, *names: str) -> _Rule:
    """Return a rule for an operation without attributes."""

    def rule(_: _Follower, __: IrLayer, inputs: _Inputs) -> _Made | None:
        return (operation, dict(zip(names, inputs, strict=True))) if len(inputs) == len(names) else None

    return rule


_UNARY = (
    *("Abs", "Ceiling", "Clamp", "Convert", "Elu", "Erf", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish", "Mish"),
    *("Negative", "ReLU", "Round", "Sigmoid", "Sign", "SoftPlus", "SoftSign", "Sqrt", "Swish", "Tanh"),
)
#: Rules by layer type, as for ONNX.
RULES: Mapping[str, _Rule] = {
    "Convolution": _plain("conv", "input", "filter"),
    "ConvolutionBackpropData": _plain("deconv", "input", "filter"),
    "Parameter": _Follower.parameter,
    "GroupConvolution": _Follower.group_conv,
    "MatMul": _Follower.matmul,
    "BatchNormInference": _Follower.norm,
    **dict.fromkeys(("Add", "Divide", "Maximum", "Minimum", "Multiply", "Subtract"), _Follower.binary),
    **dict.fromkeys(_UNARY, _plain("elementwise", "x")),
    **dict.fromkeys(("AvgPool", "MaxPool"), _plain("pool", "input")),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _Follower.reduce),
    "Concat": _Follower.concat,
}
