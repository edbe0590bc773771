"""The graph of an ONNX model in the operations of NNEF 1.0, with all their arguments and with shapes.

:mod:`.dataflow` omits strides, padding, and the functions of pooling and activation, which blocks and channels do not
need. Here, nodes whose arguments NNEF cannot express have no operation. A batch of unknown extent is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from ...limits import Limits
from ...topology.graph import Graph, Value, integers
from ..nnef.shapes import FUNCTIONS, ShapeError
from ..protobuf import MessageSource, without_zero
from .dataflow import BROADCASTS, Follower, Made, input_of
from .graph import OnnxNode, read_graph
from .proto import ConstantTensor
from .shapes import with_shapes

Shape = tuple[int, ...]
#: First opset in which Softmax does not flatten its operand to two dimensions.
_SOFTMAX = 13
#: Operations with a name in NNEF and a single operand.
_UNARY = {
    **{"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus", "Abs": "abs", "Sqrt": "sqrt"},
    **dict.fromkeys(("Identity", "Dropout"), "copy"),
}
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul"}
#: Operations whose result has the shape of their first operand.
_ALIKE = frozenset({*_UNARY.values(), "clamp", "softmax", "local_response_normalization", "batch_normalization"})
#: Values of arguments of shape functions that operations omit.
_DEFAULTS: Mapping[str, object] = {"bias": (), "groups": 1, "output_shape": (), "axis_start": 0, "axis_count": -1}


def exact_flow(data: bytes, shapes: Mapping[str, Shape]) -> Graph:
    """Return the graph of an ONNX model; ``shapes`` replaces declared shapes.

    ``data`` is the model without the data of its tensors. The graph has no values for opsets older than
    :data:`.dataflow.BROADCASTS`.
    """
    data, limits = without_zero(data), Limits.unlimited()
    graph = read_graph(MessageSource(data, limits), limits, whole=True)
    if shapes:
        graph = read_graph(MessageSource(with_shapes(data, graph, shapes), limits), limits, whole=True)
    if graph.opset < BROADCASTS:
        return Graph(results=[None] * len(graph.outputs))
    follower = _Follower(graph)
    values = follower.run()
    results = [follower.names.get(name) for name in graph.outputs]
    return Graph(values, aligns_last=True, names=follower.names, results=results)


class _Follower(Follower):
    def node(self, node: OnnxNode, outputs: list[Value]) -> None:
        if outputs:
            outputs[0].text = node.operation or "an operator of another domain"
        if node.operation == "Shape" and not node.attributes and len(node.inputs) == len(node.outputs) == 1:
            shape = self.value(node.inputs[0]).shape
            if shape is not None:
                self.constants[node.outputs[0]] = ConstantTensor((len(shape),), shape)
        super().node(node, outputs)

    def made(self, node: OnnxNode) -> Made | None:
        rule = _RULES.get(node.operation)
        return rule(self, node) if rule else None

    def add(self, operation: str, inputs: dict[str, Value], target: Value | None = None) -> Value:
        """Return the result of an operation with its shape."""
        value = super().add(operation, inputs, target)
        try:
            value.shape = _shape(operation, inputs)
        except (ShapeError, ArithmeticError, LookupError, ValueError):
            value.shape = None  # the arguments are invalid
        return value

    def value(self, name: str) -> Value:
        is_new = name not in self.names
        found = super().value(name)
        if is_new and found.tensor:
            found.shape = found.tensor.shape
        elif is_new and found.operation == "constant":
            constant = self.constants[name]
            found.shape = constant.shape
            if len(constant.values) == 1:
                (found.constant,) = constant.values
        elif is_new and found.operation == "external":
            first, *others = self.graph.extents[name]
            found.shape = (first or 1, *others)
            found.inputs = {"shape": integers(found.shape)}
        return found

    # -------------------------------------------------------------------------------------------- operations
    def conv(self, node: OnnxNode) -> Made | None:
        made, shape = super().conv(node), self.shape(input_of(node, 1))
        given = self.windows(node, len(shape) - 2) if shape else None
        if made is None or given is None or node.attributes.get("output_shape"):
            return None
        operation, inputs = made
        more = _listed(node, "output_padding", [0] * (len(shape or ()) - 2))
        pads = given["padding"].items or []
        if len(more) != len(pads or more) or (any(more) and not pads):
            return None
        for pair, extra in zip(pads, more, strict=False):
            before, after = (item.constant for item in pair.items or ())
            if extra and isinstance(before, int) and isinstance(after, int):
                pair.items = [Value(constant=before), Value(constant=after - extra)]
        groups = node.attributes.get("group", 1)
        return operation, {**inputs, **given, "groups": Value(constant=groups if isinstance(groups, int) else -1)}

    def windows(self, node: OnnxNode, count: int) -> dict[str, Value] | None:
        """Return stride, dilation and padding of spatial dimensions."""
        stride, dilation = (_listed(node, name, [1] * count) for name in ("strides", "dilations"))
        pads, automatic = _listed(node, "pads", [0] * 2 * count), node.attributes.get("auto_pad", "NOTSET")
        if not count or {len(stride), len(dilation)} != {count} or len(pads) != 2 * count:
            return None
        if automatic not in ("NOTSET", "VALID", "SAME_UPPER"):
            return None
        pairs = [integers(pair) for pair in zip(pads[:count], pads[count:], strict=True)]
        padding = Value(items=[] if automatic == "SAME_UPPER" else pairs)
        return {"stride": integers(stride), "dilation": integers(dilation), "padding": padding}

    def gemm(self, node: OnnxNode) -> Made | None:
        return super().gemm(node) if node.attributes.get("alpha", 1.0) == 1.0 else None

    def matmul(self, node: OnnxNode) -> Made | None:
        operands = [self.value(name) for name in node.inputs]
        if len(operands) != 2 or any(len(operand.shape or ()) != 2 for operand in operands):
            return None
        flags = {f"transpose{k}": Value(constant=False) for k in "AB"}
        return "matmul", {**dict(zip("AB", operands, strict=True)), **flags}

    def pool(self, node: OnnxNode) -> Made | None:
        """Return a pooling operation.

        With ``ceil_mode``, its padding is extended for windows that begin in the input and end beyond the padding.
        """
        source, size = self.value(node.inputs[0]), _listed(node, "kernel_shape", [])
        shape, given = source.shape, self.windows(node, len(size))
        if shape is None or given is None or len(shape) != len(size) + 2:
            return None
        is_max, is_counted = node.operation == "MaxPool", bool(node.attributes.get("count_include_pad", 0))
        pads = [_numbers(pair) for pair in given["padding"].items or []]
        stride, dilation = _numbers(given["stride"]), _numbers(given["dilation"])
        if pads and node.attributes.get("ceil_mode", 0):
            for k, (before, after) in enumerate(pads):
                reach, step = (size[k] - 1) * dilation[k] + 1, stride[k]
                if step < 1:
                    return None
                last = -(-(shape[k + 2] + before + after - reach) // step)
                last -= last * step >= shape[k + 2] + before
                if (more := last * step + reach - before - shape[k + 2]) > after:
                    pads[k], is_counted = [before, more], False
        padding = Value(items=[integers(pair) for pair in ([0, 0], [0, 0], *pads)] if pads else [])
        ones = [1, 1]
        return "max_pool" if is_max else "avg_pool", {
            "input": source,
            "size": integers([*ones, *size]),
            "stride": integers([*ones, *stride]),
            "dilation": integers([*ones, *dilation]),
            "padding": padding,
            "border": Value(constant="constant" if is_counted and not is_max else "ignore"),
        }

    def global_pool(self, node: OnnxNode) -> Made | None:
        source = self.value(node.inputs[0])
        shape = source.shape
        if shape is None or len(shape) < 3:
            return None
        if node.operation == "GlobalAveragePool":
            return "mean_reduce", {"input": source, "axes": integers(range(2, len(shape)))}
        return "max_pool", self.unpadded(source, [1, 1, *shape[2:]], [1] * len(shape))

    def unpadded(self, source: Value, size: list[int], stride: list[int]) -> dict[str, Value]:
        """Return the inputs of a pooling without padding."""
        pads = Value(items=[integers((0, 0)) for _ in size])
        sizes = {"size": integers(size), "stride": integers(stride), "dilation": integers([1] * len(size))}
        return {"input": source, **sizes, "padding": pads, "border": Value(constant="ignore")}

    def reduce(self, node: OnnxNode) -> Made | None:
        source = self.value(node.inputs[0])
        axes = _positive(self.integers(node, "axes", 1), source.shape)
        if axes is None:
            return None
        inputs = {"input": source, "axes": integers(axes)}
        if node.attributes.get("keepdims", 1):
            return "mean_reduce", inputs
        return "squeeze", {"input": self.add("mean_reduce", inputs), "axes": integers(axes)}

    def clip(self, node: OnnxNode) -> Made | None:
        bounds = {}
        for name, attribute, place in (("a", "min", 1), ("b", "max", 2)):
            given, value = input_of(node, place), node.attributes.get(attribute)
            if not given and not isinstance(value, float):
                return None
            bounds[name] = self.value(given) if given else Value(constant=value if isinstance(value, float) else None)
        return "clamp", {"x": self.value(node.inputs[0]), **bounds}

    def softmax(self, node: OnnxNode) -> Made | None:
        source, is_new = self.value(node.inputs[0]), self.opset >= _SOFTMAX
        axis = node.attributes.get("axis", -1 if is_new else 1)
        axes = _positive([axis] if isinstance(axis, int) else None, source.shape)
        if axes is None or (not is_new and prod((source.shape or ())[axes[0] + 1 :]) > 1):
            return None
        return "softmax", {"x": source, "axes": integers(axes)}

    def response(self, node: OnnxNode) -> Made | None:
        source, size = self.value(node.inputs[0]), node.attributes.get("size")
        if source.shape is None or not isinstance(size, int):
            return None
        defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
        given = {name: node.attributes.get(name, default) for name, default in defaults.items()}
        numbers = {name: Value(constant=value) for name, value in given.items() if isinstance(value, float)}
        sizes = integers([1, size, *[1] * (len(source.shape) - 2)])
        return "local_response_normalization", {"input": source, "size": sizes, **numbers}

    def concat(self, node: OnnxNode) -> Made | None:
        made, axis = super().concat(node), node.attributes.get("axis")
        axes = _positive([axis] if isinstance(axis, int) else None, self.value(node.inputs[0]).shape)
        return ("concat", {**made[1], "axis": Value(constant=axes[0])}) if made and axes else None

    def pad(self, node: OnnxNode) -> Made | None:
        made, value = super().pad(node), node.attributes.get("value")
        if made is None:
            return None
        if input_of(node, 2):
            made[1]["value"] = self.value(node.inputs[2])
        elif isinstance(value, int | float):
            made[1]["value"] = Value(constant=value)
        return made

    def flatten(self, node: OnnxNode) -> Made | None:
        source, axis = self.value(node.inputs[0]), node.attributes.get("axis", 1)
        shape = source.shape
        if shape is None or not isinstance(axis, int) or not -len(shape) <= axis <= len(shape):
            return None
        at = axis if axis >= 0 else axis + len(shape)
        return "reshape", {"input": source, "shape": integers([prod(shape[:at]), prod(shape[at:])])}

    def reshape(self, node: OnnxNode) -> Made | None:
        shape = self.integers(node, "shape", 1)
        if shape is None or node.attributes.get("allowzero", 0):
            return None
        return "reshape", {"input": self.value(node.inputs[0]), "shape": integers(shape)}

    def squeeze(self, node: OnnxNode) -> Made | None:
        source, axes = self.value(node.inputs[0]), self.integers(node, "axes", 1)
        is_less = node.operation == "Squeeze"
        shape = source.shape if source.shape is None or is_less else source.shape + (1,) * len(axes or ())
        positive = _positive(axes, shape)
        if positive is None:
            return None
        return "squeeze" if is_less else "unsqueeze", {"input": source, "axes": integers(sorted(positive))}

    def slice(self, node: OnnxNode) -> Made | None:
        """Return a max pooling with windows of extent 1 for a slice that only skips rows and columns."""
        source = self.value(node.inputs[0])
        starts, ends = self.integers(node, "starts", 1), self.integers(node, "ends", 2)
        shape = source.shape
        if shape is None or starts is None or ends is None or len(starts) != len(ends):
            return None
        given = (
            self.integers(node, "axes", 3) if "axes" in node.attributes or input_of(node, 3) else [*range(len(starts))]
        )
        axes = _positive(given, shape)
        steps = self.integers(node, "steps", 4) if input_of(node, 4) else [1] * len(starts)
        if axes is None or steps is None or {len(axes), len(steps)} != {len(starts)}:
            return None
        stride = [1] * len(shape)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            if start not in (0, -shape[axis]) or end < shape[axis] or step < 1 or (step > 1 and axis < 2):
                return None
            stride[axis] = step
        return "max_pool", self.unpadded(source, [1] * len(shape), stride)

    def unary(self, node: OnnxNode) -> Made | None:
        return _UNARY[node.operation], {"x": self.value(node.inputs[0])}

    def binary(self, node: OnnxNode) -> Made | None:
        if len(node.inputs) != 2 or not node.inputs[1]:
            return None
        return _BINARY[node.operation], dict(zip("xy", map(self.value, node.inputs), strict=True))


def _shape(operation: str, inputs: Mapping[str, Value]) -> Shape | None:
    """Return the shape of a result; None if it is unknown. Raise an error for invalid arguments."""
    if operation in _ALIKE:
        return next(iter(inputs.values())).shape
    if operation in _BINARY.values():
        shapes = [value.shape for value in inputs.values() if value.shape is not None]
        return np.broadcast_shapes(*shapes) if len(shapes) == len(inputs) else None
    if operation not in FUNCTIONS:
        return None
    function, names, _ = FUNCTIONS[operation]
    arguments = {name: _DEFAULTS[name] if name in _DEFAULTS else _known(inputs[name]) for name in names}
    if operation in ("conv", "deconv"):
        arguments["groups"] = inputs["groups"].constant
    if None in arguments.values():
        return None
    result = function(**arguments)
    return result if isinstance(result, tuple) else None


def _known(value: Value) -> object:
    """Return an argument of a shape function: constants, or the shapes of tensors."""
    if value.items is not None:
        items = tuple(map(_known, value.items))
        return None if None in items else items
    return value.constant if value.shape is None else value.shape


def _numbers(value: Value) -> list[int]:
    """Return the items of an array of integers."""
    return [item.constant for item in value.items or () if isinstance(item.constant, int)]


def _listed(node: OnnxNode, name: str, default: list[int]) -> list[int]:
    """Return an attribute that is a list of integers; an empty list for other values."""
    found = node.attributes.get(name, default)
    return found if isinstance(found, list) else []


def _positive(axes: list[int] | None, shape: Shape | None) -> list[int] | None:
    """Return axes counted from the first dimension; None if they are unknown or invalid."""
    if axes is None or shape is None or not all(-len(shape) <= axis < len(shape) for axis in axes):
        return None
    return [axis % len(shape) for axis in axes]


_RULES: Mapping[str, Callable[[_Follower, OnnxNode], Made | None]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), _Follower.conv),
    "Gemm": _Follower.gemm,
    "MatMul": _Follower.matmul,
    "BatchNormalization": _Follower.norm,
    **dict.fromkeys(("MaxPool", "AveragePool"), _Follower.pool),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), _Follower.global_pool),
    "ReduceMean": _Follower.reduce,
    "Clip": _Follower.clip,
    "Softmax": _Follower.softmax,
    "LRN": _Follower.response,
    "Concat": _Follower.concat,
    "Pad": _Follower.pad,
    "Flatten": _Follower.flatten,
    "Reshape": _Follower.reshape,
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _Follower.squeeze),
    "Slice": _Follower.slice,
    **dict.fromkeys(_UNARY, _Follower.unary),
    **dict.fromkeys(_BINARY, _Follower.binary),
}
