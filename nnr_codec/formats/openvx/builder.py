"""Conversion of a graph to layers of the extension (version 1.2.1, 2.1.4) and nodes of OpenVX 1.2.

Some operations have no layer: groups, borders other than zeros, strides that do not follow from the extents of input
and output (the extension has no argument for them), and unknown operations. The user of the client must add them; their
operands are outputs of the client, and their results are inputs. A separately added bias becomes the bias of the layer.
So does the offset of a batch normalization that only adds it after folding: mean 0, variance 1 - epsilon, scale 1 and
no bias before it. Other batch normalizations become a multiplication and an addition. A signal that is padded becomes a
part of a larger one, which is zero elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from ...model import Array
from ...topology.graph import Graph, Value
from .arguments import (
    CEILING,
    FLOOR,
    LEAST,
    NoLayerError,
    Shape,
    flag,
    integers,
    number,
    padding,
    spreads,
    string,
    windows,
)
from .network import Layer, Network, Parameters
from .signals import NORMALIZING, Wire, Wires, check_items

#: Activations (vx_nn_activation_function_e) by operation; a and b must be positive for all of them.
ACTIVATIONS = {
    "relu": "VX_NN_ACTIVATION_RELU",
    "sigmoid": "VX_NN_ACTIVATION_LOGISTIC",
    "tanh": "VX_NN_ACTIVATION_HYPERBOLIC_TAN",
    "softplus": "VX_NN_ACTIVATION_SOFTRELU",
    "abs": "VX_NN_ACTIVATION_ABS",
    "sqr": "VX_NN_ACTIVATION_SQUARE",
    "sqrt": "VX_NN_ACTIVATION_SQRT",
}
#: Layers of elementwise operations on two operands.
ELEMENTWISE = {"add": "addition", "sub": "subtraction", "mul": "multiplication"}
#: Sizes that vxNormalizationLayer supports.
NORMALIZED = (3, 5, 7)
#: Maximum number of channels of a batch normalization whose values are read.
LONGEST = 1 << 16


def vectors_of(graph: Graph, parameters: Parameters) -> list[str]:
    """Return the tensors of batch normalizations, whose values determine their layers."""
    found: dict[str, None] = {}
    for value in graph.values:
        if value.operation == "batch_normalization":
            before = value.inputs.get("input")
            named = [value.inputs.get(role) for role in NORMALIZING]
            for used in (*named, before.inputs.get("bias") if before else None):
                name = parameters.name(used.tensor.name) if used and used.tensor else None
                if name is not None and prod(parameters.shape(name)) <= LONGEST:
                    found[name] = None
    return list(found)


def build(graph: Graph, parameters: Parameters, vectors: Mapping[str, Array]) -> Network:
    """Return the layers of a graph; ``vectors`` has the values of :func:`vectors_of`."""
    return _Builder(graph, parameters, vectors).network


class _Builder(Wires):
    """Traversal of a graph in the order of computation."""

    def __init__(self, graph: Graph, parameters: Parameters, vectors: Mapping[str, Array]) -> None:
        super().__init__(graph, parameters, vectors)
        self.layers: dict[str, Callable[[Value], Wire]] = {
            "external": self.external,
            "conv": self.convolution,
            "deconv": self.deconvolution,
            "linear": self.fully_connected,
            "matmul": self.fully_connected,
            "max_pool": self.pooling,
            "avg_pool": self.pooling,
            "max_roi_pool": self.roi_pooling,
            "mean_reduce": self.mean,
            "batch_normalization": self.batch_normalization,
            **dict.fromkeys(ELEMENTWISE, self.arithmetic),
            "pad": self.padding,
            "softmax": self.softmax,
            "local_response_normalization": self.normalization,
            "clamp": self.activation,
            **dict.fromkeys(ACTIVATIONS, self.activation),
            "concat": self.joined,
            **dict.fromkeys(("copy", "reshape", "squeeze", "unsqueeze"), self.reshaped),
        }
        for value in _ordered([result for result in graph.results if result]):
            is_tensor = value.constant is None and value.items is None and value.tensor is None
            if is_tensor and id(value) not in self.wires:
                self.wires[id(value)] = self.take(value)
        for result in graph.results:
            wire = self.wires.get(id(result)) if result else None
            if wire is None:
                if not self.network.left:
                    self.network.left["an expression"] += 1
            else:
                self.network.outputs[wire.signal] = None
        self.network.folded -= self.roles.keys()

    def take(self, value: Value) -> Wire | None:
        """Return the result of an operation; None if it is unknown."""
        try:
            if value.operation not in self.layers:
                raise NoLayerError
            return self.layers[value.operation](value)
        except NoLayerError:
            taken = list(self.tensors_in(value))
            if not taken:
                return None  # arithmetic of constants
            self.network.left[value.text] += 1
            if value.operation == "batch_normalization" and (names := self.idle(value)):
                self.network.folded.update(names)  # it adds its offset in any case
            for wire in taken:
                if wire:
                    self.network.outputs[wire.signal] = None
        try:
            return None if value.shape is None else self.open(value, value.shape)
        except NoLayerError:
            return None

    # ---------------------------------------------------------------------------------------------- layers
    def external(self, value: Value) -> Wire:
        return self.open(value, tuple(integers(value, "shape")))

    def convolution(self, value: Value) -> Wire:
        source, name, shape = self.wire(value, "input"), *self.filter(value, "filter")
        if len(source.shape) != 4 or len(shape) != 4:
            raise NoLayerError
        along = windows(value, source.shape[2:], shape[2:])
        result = (source.shape[0], shape[0], *[window.output for window in along])
        groups = integers(value, "groups", [1])
        is_zero = string(value, "border", "constant") == "constant" or not any(window.is_padded for window in along)
        known = groups == [1] and shape[1] == source.shape[1]
        y, x = along
        is_even = FLOOR in y.roundings & x.roundings
        if not known or not is_zero or not (is_even or FLOOR in y.steps & x.steps):
            raise NoLayerError
        pads = (x.before, y.before)
        if not is_even:
            source, pads = self.padded(value, source, [(0, 0), (0, 0), y.pads, x.pads]), (0, 0)
        arguments = (*pads, FLOOR, x.dilation - 1, y.dilation - 1)
        return self.weighted(Layer("convolution", source.signal, 0, name, arguments=arguments), value, result)

    def deconvolution(self, value: Value) -> Wire:
        """Add a deconvolution; the extension correlates the zero-interleaved input with the filter, NNEF convolves
        it."""
        source, name, shape = self.wire(value, "input"), *self.filter(value, "filter")
        if len(source.shape) != 4 or len(shape) != 4 or integers(value, "output_shape", []):
            raise NoLayerError
        along = spreads(value, source.shape[2:], shape[2:])
        result = (source.shape[0], shape[1], *[spread.output for spread in along])
        known = integers(value, "groups", [1]) == [1] and shape[0] == source.shape[1]
        is_zero = string(value, "border", "constant") == "constant"
        if not known or not is_zero or not all(spread.is_possible for spread in along):
            raise NoLayerError
        y, x = along
        arguments = (x.padding, y.padding, x.more, y.more)
        layer = Layer("deconvolution", source.signal, 0, name, arguments=arguments)
        return self.weighted(layer, value, result, turned=True)

    def fully_connected(self, value: Value) -> Wire:
        is_matmul = value.operation == "matmul"
        names = ("A", "B") if is_matmul else ("input", "filter")
        source, name, shape = self.wire(value, names[0]), *self.filter(value, names[1])
        if len(source.shape) != 2 or len(shape) != 2:
            raise NoLayerError
        in_rows = not is_matmul or flag(value, "transposeB")  # one row per output, as in the extension
        rows, columns = shape if in_rows else shape[::-1]
        dims = self.network.signals[source.signal].dims
        flat = dims == (source.shape[1], source.shape[0])
        stacked = len(dims) == 4 and dims[3] == source.shape[0] and prod(dims[:3]) == source.shape[1]
        if (is_matmul and flag(value, "transposeA")) or columns != source.shape[1] or not (flat or stacked):
            raise NoLayerError
        layer = Layer("fully_connected", source.signal, 0, name)
        return self.weighted(layer, value, (source.shape[0], rows), turned=not in_rows)

    def pooling(self, value: Value) -> Wire:
        source = self.wire(value, "input")
        if len(source.shape) != 4:
            raise NoLayerError
        size = integers(value, "size")
        along = windows(value, source.shape, size)
        result = tuple(window.output for window in along)
        is_max, border = value.operation == "max_pool", string(value, "border", "constant")
        *others, y, x = along
        rounding = next((each for each in (FLOOR, CEILING) if each in x.roundings & y.roundings), None)
        # The extension pads with zeros and does not define windows beyond the padding. A maximum of nonnegative values
        # depends on neither.
        padded = x.is_padded or y.is_padded
        alike = rounding == FLOOR and (border == "constant" or not padded)
        safe = rounding is not None and is_max and source.signal in self.not_negative
        alike = alike or (safe and border in ("constant", "ignore"))
        if not alike or max(x.dilation, y.dilation) > 1 or not all(window.is_trivial for window in others):
            raise NoLayerError
        kind = "VX_NN_POOLING_MAX" if is_max else "VX_NN_POOLING_AVG"
        return self.pooled(value, source, result, kind, size[3], size[2], x.before, y.before, rounding or FLOOR)

    def mean(self, value: Value) -> Wire:
        source = self.wire(value, "input")
        if len(source.shape) != 4 or sorted(integers(value, "axes")) != [2, 3]:
            raise NoLayerError
        batch, channels, height, width = source.shape
        return self.pooled(value, source, (batch, channels, 1, 1), "VX_NN_POOLING_AVG", width, height, 0, 0, FLOOR)

    def pooled(self, value: Value, source: Wire, shape: Shape, *arguments: int | str) -> Wire:
        """Add a pooling layer."""
        wire = self.layer("pooling", source, value, shape, *arguments)
        if source.signal in self.not_negative:
            self.not_negative.add(wire.signal)
        return wire

    def roi_pooling(self, value: Value) -> Wire:
        """Add a ROI pooling of a single image, whose regions are an input."""
        source, regions, size = self.wire(value, "input"), self.wire(value, "rois"), integers(value, "output_size")
        count, channels = regions.shape[0], source.shape[1] if len(source.shape) == 4 else 0
        known = channels and source.shape[0] == 1 and regions.shape == (count, 4) and len(size) == 2
        if not known or not self.is_plain(source) or regions.signal not in self.network.inputs:
            raise NoLayerError
        index = self.wires.get(id(value.inputs.get("batch_index")))
        image, wire = self.signal(value, source.shape[1:]), self.signal(value, (count, channels, *size))
        self.network.views[image.signal] = source.signal, (0,) * len(image.shape)
        self.network.layers.append(Layer("roi_pooling", image.signal, wire.signal, other=regions.signal))
        if index and index.signal in self.network.inputs and len(value.inputs["batch_index"].users) == 1:
            self.network.inputs.remove(index.signal)  # all zero
        if source.signal in self.not_negative:
            self.not_negative.add(wire.signal)
        return wire

    def padding(self, value: Value) -> Wire:
        """Make the operand a part of a signal of zeros."""
        pads, zero = padding(value), value.inputs.get("value")
        is_zero = string(value, "border", "constant") == "constant" and (zero is None or number(zero) == 0)
        if pads is None or not is_zero:
            raise NoLayerError
        return self.padded(value, self.wire(value, "input"), pads)

    def batch_normalization(self, value: Value) -> Wire:
        """Multiply by the factor ``scale / sqrt(variance + epsilon)``, and add ``offset - mean * factor``."""
        source, epsilon = self.wire(value, "input"), number(value.inputs.get("epsilon"))
        names = [self.named(value.inputs.get(role)) for role in NORMALIZING]
        if len(source.shape) < 2 or not self.is_plain(source) or epsilon is None:
            raise NoLayerError
        shape = (1, source.shape[1], *(1,) * (len(source.shape) - 2))
        arrays = []
        for name in names:
            items = self.vectors.get(name) if name else None
            if items is None or items.dtype.kind == "c" or items.size != source.shape[1]:
                raise NoLayerError
            arrays.append(items.astype(np.float64).reshape(shape))
        mean, variance, offset, scale = arrays
        with np.errstate(all="ignore"):
            factors = scale / np.sqrt(variance + epsilon)
            offsets = offset - mean * factors
        check_items(offsets)
        wire = source if self.idle(value) else self.scaled(value, source, factors)
        result, name = self.like(value, wire), self.derive(value, "offsets", offsets)
        self.network.layers.append(Layer("addition", wire.signal, result.signal, name))
        self.network.folded.update(name for role in NORMALIZING if (name := self.private(value.inputs.get(role))))
        return result

    def arithmetic(self, value: Value) -> Wire:
        """Add, subtract or multiply a signal by a signal, a tensor or a constant, whose dimensions may be 1."""
        kind, operands = ELEMENTWISE[value.operation], [value.inputs.get("x"), value.inputs.get("y")]
        sizes = [prod(wire.shape) if (wire := self.wires.get(id(operand))) else 0 for operand in operands]
        if kind != "subtraction" and sizes[0] < sizes[1]:
            operands.reverse()
        (first, second), operand = (self.wires.get(id(each)) for each in operands), operands[1]
        if first is None:
            raise NoLayerError
        dims, constant, name = self.network.signals[first.signal].dims, number(operand), self.named(operand)
        layer = Layer(kind, first.signal, 0, arguments=(1.0,) if kind == "multiplication" else ())
        if second is not None:
            alike = first.shape == second.shape and dims == self.network.signals[second.signal].dims
            if not alike and not (self.is_plain(second) and self.is_repeated(second.shape, first)):
                raise NoLayerError
            layer = replace(layer, other=second.signal)
        elif constant is not None:
            items = np.full((1,) * len(dims), constant)
            if kind == "multiplication":
                return self.scaled(value, first, items)
            layer = replace(layer, weight=self.derive(value, "constant", items))
        elif name is not None:
            shape = self.extended(self.parameters.shape(name), len(first.shape))
            if not self.is_repeated(shape, first):
                raise NoLayerError
            layer = replace(layer, weight=self.use(self.tensor(name, shape), shape))
        else:
            raise NoLayerError
        wire = self.like(value, first)
        self.network.layers.append(replace(layer, output=wire.signal))
        if second is not None and kind != "subtraction" and {first.signal, second.signal} <= self.not_negative:
            self.not_negative.add(wire.signal)
        return wire

    def activation(self, value: Value) -> Wire:
        source, function, a = self.wire(value, "x"), ACTIVATIONS.get(value.operation, ""), 1.0
        if value.operation == "clamp":
            least, most = number(value.inputs.get("a")), number(value.inputs.get("b"))
            if least != 0 or most is None or most < LEAST:
                raise NoLayerError
            function, a = "VX_NN_ACTIVATION_BRELU", most
        wire = self.elementwise("activation", source, value, function, a, 1.0)
        if value.operation != "tanh":
            self.not_negative.add(wire.signal)
        return wire

    def softmax(self, value: Value) -> Wire:
        source = self.wire(value, "x")
        shape, dims = source.shape, self.network.signals[source.signal].dims
        ranks = len(shape) == len(dims) and len(dims) in (2, 4)
        flat = len(shape) == 2 and len(dims) == 4 and dims[:2] == (1, 1)
        if integers(value, "axes", [1]) != [1] or not (ranks or flat):
            raise NoLayerError
        return self.elementwise("softmax", source, value)

    def normalization(self, value: Value) -> Wire:
        source, size = self.wire(value, "input"), integers(value, "size")
        defaults = {"alpha": 1.0, "beta": 0.5, "bias": 1.0}
        found = {name: number(value.inputs[name]) if name in value.inputs else defaults[name] for name in defaults}
        alpha, beta, bias = found["alpha"], found["beta"], found["bias"]
        across = len(size) == len(source.shape) == 4 and size[1] in NORMALIZED and size == [1, size[1], 1, 1]
        if not across or bias != 1 or alpha is None or beta is None or min(alpha, beta) < LEAST:
            raise NoLayerError
        return self.elementwise("normalization", source, value, "VX_NN_NORMALIZATION_ACROSS_MAPS", size[1], alpha, beta)

    def elementwise(self, kind: str, source: Wire, value: Value, *arguments: int | float | str) -> Wire:
        """Add a layer whose result has the dimensions of its input."""
        wire = self.like(value, source)
        self.network.layers.append(Layer(kind, source.signal, wire.signal, arguments=arguments))
        return wire

    def joined(self, value: Value) -> Wire:
        """Join signals that become parts of one signal (1.3 of the extension)."""
        shape, given = value.shape, value.inputs.get("values")
        wires = [self.wires.get(id(item)) for item in (given.items or [] if given else [])]
        if shape is None or len(shape) != 4 or integers(value, "axis") != [1]:
            raise NoLayerError
        parts = [wire for wire in wires if wire and self.is_plain(wire)]
        signals = {wire.signal for wire in parts}
        if len(signals) != len(wires) or signals & self.network.views.keys():
            raise NoLayerError
        whole, first = self.signal(value, shape), 0
        for part in parts:
            self.contain(whole, part, (0, first, 0, 0))
            first += part.shape[1]
        if self.not_negative.issuperset(signals):
            self.not_negative.add(whole.signal)
        return whole

    def reshaped(self, value: Value) -> Wire:
        """Return the same signal in another shape."""
        source = self.wire(value, "x" if value.operation == "copy" else "input")
        if value.shape is None:
            raise NoLayerError
        return replace(source, shape=value.shape)


def _ordered(results: list[Value]) -> Iterator[Value]:
    """Yield all values needed for the results, each after its inputs."""
    seen, waiting = set[int](), [(value, False) for value in reversed(results)]
    while waiting:
        value, done = waiting.pop()
        if done:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.append((value, True))
            waiting.extend((used, False) for used in reversed(list(value.inputs.values())))
