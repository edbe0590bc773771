"""Conversion of an NNEF graph to layers of the extension (2.1.4 of its text, version 1.2.1).

Operations that a layer cannot perform are left to the user of the client, as operations between tensors that the client
leaves open. These are groups, borders other than zeros, padding that does not agree with the outputs, strides that do
not follow from the extents of input and output (the extension has no argument for them), and unknown operations. A
separately added bias becomes the bias of the layer. So does the offset of a batch normalization that only adds it after
folding: mean 0, variance 1 - epsilon, scale 1 and no bias before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod

from ...model import Array
from ...topology.graph import Value
from ..nnef.dataflow import flow
from ..nnef.graph import NnefGraph
from .arguments import (
    CEILING,
    FLOOR,
    LEAST,
    NoLayerError,
    Shape,
    flag,
    integers,
    number,
    reshaped,
    spreads,
    string,
    windows,
)
from .network import Layer, Network, Parameters
from .signals import NORMALIZING, Wire, Wires

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
#: Sizes that vxNormalizationLayer supports.
NORMALIZED = (3, 5, 7)
#: Maximum number of channels of a batch normalization whose values are read.
LONGEST = 1 << 16


def vectors_of(graph: NnefGraph, parameters: Parameters) -> list[str]:
    """Return the tensors whose values determine whether a batch normalization is folded."""
    found: dict[str, None] = {}
    for value in flow(graph).values:
        if value.operation == "batch_normalization":
            before = value.inputs.get("input")
            named = [value.inputs.get(role) for role in NORMALIZING]
            for used in (*named, before.inputs.get("bias") if before else None):
                name = parameters.name(used.tensor.name) if used and used.tensor else None
                if name is not None and prod(parameters.shape(name)) <= LONGEST:
                    found[name] = None
    return list(found)


def build(graph: NnefGraph, parameters: Parameters, vectors: Mapping[str, Array]) -> Network:
    """Return the layers of a graph; ``vectors`` has the values of :func:`vectors_of`."""
    return _Builder(graph, parameters, vectors).network


class _Builder(Wires):
    """Traversal of a graph in the order of computation."""

    def __init__(self, graph: NnefGraph, parameters: Parameters, vectors: Mapping[str, Array]) -> None:
        super().__init__(graph, parameters, vectors)
        self.layers: dict[str, Callable[[Value], Wire]] = {
            "external": self.external,
            "conv": self.convolution,
            "deconv": self.deconvolution,
            "linear": self.fully_connected,
            "matmul": self.fully_connected,
            "max_pool": self.pooling,
            "avg_pool": self.pooling,
            "mean_reduce": self.mean,
            "softmax": self.softmax,
            "local_response_normalization": self.normalization,
            "clamp": self.activation,
            **dict.fromkeys(ACTIVATIONS, self.activation),
            "concat": self.joined,
            **dict.fromkeys(("copy", "reshape", "squeeze", "unsqueeze"), self.reshaped),
        }
        results = [self.flow.names.get(result.name) for result in graph.document.graph.results]
        for value in _ordered([result for result in results if result]):
            is_tensor = value.constant is None and value.items is None and value.tensor is None
            if is_tensor and id(value) not in self.wires:
                self.wires[id(value)] = self.take(value)
        for result in results:
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
                raise NoLayerError(self.shape_of(value))
            return self.layers[value.operation](value)
        except NoLayerError as error:
            taken = list(self.tensors_in(value))
            if not taken:
                return None  # arithmetic of constants
            self.network.left[value.text] += 1
            if value.operation == "batch_normalization" and (names := self.idle(value)):
                self.network.folded.update(names)  # it adds its offset in any case
            for wire in taken:
                if wire:
                    self.network.outputs[wire.signal] = None
            shape = error.shape
        try:
            return None if shape is None else self.open(value, shape)
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
        if not known or not is_zero or not all(FLOOR in window.roundings for window in along):
            raise NoLayerError(result)
        y, x = along
        arguments = (x.before, y.before, FLOOR, x.dilation - 1, y.dilation - 1)
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
            raise NoLayerError(result)
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
        result = (source.shape[0], shape[0] if in_rows else shape[1])
        dims = self.network.signals[source.signal].dims
        flat = dims == (source.shape[1], source.shape[0])
        stacked = len(dims) == 4 and dims[3] == source.shape[0] and prod(dims[:3]) == source.shape[1]
        if not in_rows or flag(value, "transposeA") or shape[1] != source.shape[1] or not (flat or stacked):
            raise NoLayerError(result)
        return self.weighted(Layer("fully_connected", source.signal, 0, name), value, result)

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
            raise NoLayerError(result)
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

    def activation(self, value: Value) -> Wire:
        source, function, a = self.wire(value, "x"), ACTIVATIONS.get(value.operation, ""), 1.0
        if value.operation == "clamp":
            least, most = number(value.inputs.get("a")), number(value.inputs.get("b"))
            if least != 0 or most is None or most < LEAST:
                raise NoLayerError(source.shape)
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
            raise NoLayerError(shape)
        return self.elementwise("softmax", source, value)

    def normalization(self, value: Value) -> Wire:
        source, size = self.wire(value, "input"), integers(value, "size")
        defaults = {"alpha": 1.0, "beta": 0.5, "bias": 1.0}
        found = {name: number(value.inputs[name]) if name in value.inputs else defaults[name] for name in defaults}
        alpha, beta, bias = found["alpha"], found["beta"], found["bias"]
        across = len(size) == len(source.shape) == 4 and size[1] in NORMALIZED and size == [1, size[1], 1, 1]
        if not across or bias != 1 or alpha is None or beta is None or min(alpha, beta) < LEAST:
            raise NoLayerError(source.shape)
        return self.elementwise("normalization", source, value, "VX_NN_NORMALIZATION_ACROSS_MAPS", size[1], alpha, beta)

    def elementwise(self, kind: str, source: Wire, value: Value, *arguments: int | float | str) -> Wire:
        """Add a layer whose result has the dimensions of its input, whatever its shape in the graph."""
        wire = self.layer(kind, source, value, source.shape, *arguments)
        signals = self.network.signals
        signals[wire.signal] = replace(signals[wire.signal], dims=signals[source.signal].dims)
        return wire

    def joined(self, value: Value) -> Wire:
        """Join signals that become parts of one signal: each the output of a layer, and used once (1.3 of the text)."""
        shape, given = self.shape_of(value), value.inputs.get("values")
        wires = [self.wires.get(id(item)) for item in (given.items or [] if given else [])]
        if shape is None or len(shape) != 4 or integers(value, "axis") != [1]:
            raise NoLayerError(shape)
        known = self.network.signals
        signals = [wire.signal for wire in wires if wire and known[wire.signal].dims == wire.shape[::-1]]
        if len({*signals} & self.made) != len(wires):
            raise NoLayerError(shape)
        whole, first = self.signal(value, shape), 0
        for signal in signals:
            self.network.views[signal] = whole.signal, first
            first += known[signal].dims[2]
        self.made.difference_update(signals)
        self.made.add(whole.signal)
        if self.not_negative.issuperset(signals):
            self.not_negative.add(whole.signal)
        return whole

    def reshaped(self, value: Value) -> Wire:
        """Return the same signal in another shape."""
        source = self.wire(value, "x" if value.operation == "copy" else "input")
        return replace(source, shape=reshaped(value, source.shape))


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
