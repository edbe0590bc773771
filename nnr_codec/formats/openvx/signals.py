"""Signals and tensors of a graph during the search for layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from ...model import Array
from ...topology.graph import Value
from ..nnef.dataflow import flow
from ..nnef.graph import NnefGraph
from .arguments import NoLayerError, Shape, integers, number, padding
from .network import Layer, Network, Parameters
from .tensors import Q78, VxTensor

#: Operations whose results have the largest shape of their inputs.
ALIKE = ("+", "-", "*", "/", "add", "sub", "mul", "div", "pow", "min", "max", "batch_normalization", "prelu")
#: Inputs of a batch normalization other than its data.
NORMALIZING = ("mean", "variance", "offset", "scale")
#: Maximum number of items of a signal.
LARGEST_SIGNAL = 1 << 40


@dataclass(frozen=True)
class Wire:
    """Tensor of the graph, represented by a signal that may have more dimensions.

    Parameters
    ----------
    signal : int
    shape : tuple of int
        Shape in the graph.
    """

    signal: int
    shape: Shape


class Wires:
    """State of the search: the signals of values, and the tensors that layers use.

    Parameters
    ----------
    graph : NnefGraph
    parameters : Parameters
    vectors : mapping of str to ndarray
        Values of the tensors that determine whether a batch normalization is folded.
    """

    def __init__(self, graph: NnefGraph, parameters: Parameters, vectors: Mapping[str, Array]) -> None:
        self.parameters, self.vectors = parameters, vectors
        self.network = Network()
        self.flow = flow(graph)
        self.names = {id(value): name for name, value in reversed([*self.flow.names.items()])}
        self.wires: dict[int, Wire | None] = {}  # by the identity of values
        self.not_negative: set[int] = set()
        self.made: set[int] = set()  # outputs of layers that are not parts of others
        self.roles: dict[str, Shape] = {}  # shapes of tensors in layers

    def tensors_in(self, value: Value) -> Iterator[Wire | None]:
        """Yield the tensors that an operation uses; None for tensors of unknown shape."""
        for used in value.inputs.values():
            for item in used.items or [used]:
                if id(item) in self.wires:
                    yield self.wires[id(item)]

    def shape_of(self, value: Value) -> Shape | None:
        """Return the shape of an operation that is not a layer, if it is known."""
        wires = list(self.tensors_in(value))
        shapes = [wire.shape for wire in wires if wire]
        if not shapes or len(shapes) < len(wires):
            return None
        if value.operation == "transpose":
            axes = integers(value, "axes")
            return tuple(shapes[0][axis] for axis in axes) if sorted(axes) == [*range(len(shapes[0]))] else None
        if value.operation == "pad":
            pairs = padding(value) or []
            return tuple(sum((extent, *pair)) for extent, pair in zip(shapes[0], pairs, strict=False))
        if value.operation == "concat":
            (axis,) = integers(value, "axis")
            if not all(0 <= axis < len(shape) for shape in shapes):
                return None
            before, after = shapes[0][:axis], shapes[0][axis + 1 :]
            return (*before, sum(shape[axis] for shape in shapes), *after)
        return max(shapes, key=prod) if value.text in ALIKE else None

    # ---------------------------------------------------------------------------------------------- signals
    def signal(self, value: Value, shape: Shape) -> Wire:
        """Add a signal."""
        if not shape or min(shape) < 1 or prod(shape) > LARGEST_SIGNAL:
            raise NoLayerError
        name = self.names.get(id(value), value.text)
        self.network.signals.append(VxTensor(name, Q78, tuple(reversed(shape))))
        return Wire(len(self.network.signals) - 1, shape)

    def open(self, value: Value, shape: Shape) -> Wire:
        """Add an external input signal. Raise NoLayerError for an invalid shape."""
        wire = self.signal(value, shape)
        self.network.inputs.append(wire.signal)
        return wire

    def wire(self, value: Value, name: str) -> Wire:
        """Return the signal of an argument."""
        wire = self.wires.get(id(value.inputs.get(name)))
        if wire is None:
            raise NoLayerError
        return wire

    def layer(self, kind: str, source: Wire, value: Value, shape: Shape, *arguments: int | float | str) -> Wire:
        """Add a layer without tensors."""
        wire = self.signal(value, shape)
        self.add(Layer(kind, source.signal, wire.signal, arguments=arguments))
        return wire

    def add(self, layer: Layer) -> None:
        """Append a layer."""
        self.network.layers.append(layer)
        self.made.add(layer.output)

    # ---------------------------------------------------------------------------------------------- tensors
    def named(self, value: Value | None) -> str | None:
        """Return the tensor of a value."""
        return self.parameters.name(value.tensor.name) if value and value.tensor else None

    def private(self, value: Value | None) -> str | None:
        """Return the tensor of a value, if this is its only use."""
        if value is None or value.tensor is None or len(value.users) != 1:
            return None
        return self.named(value) if value.tensor.is_private else None

    def tensor(self, name: str | None, shape: Shape) -> str:
        """Return a tensor for a layer in this shape; extents of 1 are ignored for vectors."""
        if name is None or not self.parameters.is_fixed(name) or name in self.network.turned:
            raise NoLayerError
        found = self.parameters.shape(name)
        fits = prod(found) == shape[0] and max(found, default=1) == shape[0] if len(shape) == 1 else found == shape
        if not fits or self.roles.get(name, shape) != shape:
            raise NoLayerError
        return name

    def use(self, name: str, shape: Shape) -> str:
        """Record that a layer uses a tensor in this shape."""
        self.roles[name] = shape
        self.network.dims[name] = tuple(reversed(shape))
        return name

    def tail(self, core: Value, channels: int) -> tuple[str | None, list[Value]]:
        """Return the bias of a layer, and the following operations that only add it."""
        given = core.inputs.get("bias")
        bias = None if given is None or number(given) == 0 else self.tensor(self.named(given), (channels,))
        output, chain = core, list[Value]()
        while len(output.users) == 1:
            (user,) = output.users
            found = None
            if user.operation == "add" and bias is None:
                found = self.added(user.inputs.get("y" if user.inputs.get("x") is output else "x"), channels)
            elif user.operation == "batch_normalization" and user.inputs.get("input") is output:
                found = self.offset(user, bias, core, channels)
            if found is None:
                break
            bias, output = found, user
            chain.append(user)
        return bias, chain

    def added(self, value: Value | None, channels: int) -> str | None:
        """Return the tensor that is added to each channel; None if there is none."""
        try:
            name = self.tensor(self.named(value), (channels,))
        except NoLayerError:
            return None
        shape = self.parameters.shape(name)
        return name if len(shape) > 1 and shape[1] == channels else None

    def offset(self, call: Value, bias: str | None, core: Value, channels: int) -> str | None:
        """Return the offset of a batch normalization that only adds it; None for others."""
        idle, before = self.idle(call), [bias] if bias is not None else []
        if not idle or (before and self.private(core.inputs.get("bias")) != bias):
            return None
        if any(self.vectors[name].any() for name in before):
            return None
        try:
            offset = self.tensor(self.named(call.inputs.get("offset")), (channels,))
        except NoLayerError:
            return None
        self.network.folded.update(before, idle)
        return offset

    def idle(self, call: Value) -> list[str]:
        """Return mean, variance and scale of a batch normalization that only adds an offset; empty for others."""
        names = [self.private(call.inputs.get(role)) for role in ("mean", "variance", "scale")]
        mean, variance, scale = (self.vectors.get(name) if name else None for name in names)
        epsilon = number(call.inputs.get("epsilon"))
        if epsilon is None or mean is None or variance is None or scale is None or variance.dtype.kind != "f":
            return []
        idle = not mean.any() and (scale == 1).all() and (variance == variance.dtype.type(1 - epsilon)).all()
        return [name for name in names if name] if idle else []

    def filter(self, value: Value, argument: str) -> tuple[str, Shape]:
        """Return the tensor of a filter, and its shape."""
        name = self.named(value.inputs.get(argument))
        if name is None:
            raise NoLayerError
        return name, self.parameters.shape(name)

    def weighted(self, layer: Layer, core: Value, shape: Shape, turned: bool = False) -> Wire:
        """Add a layer with a weight, which may have to be turned, its bias, and the operations that only add the
        bias."""
        name = layer.weight or ""
        known = self.parameters.shape(name)
        try:
            self.tensor(name, known)
            bias, chain = self.tail(core, shape[1])
        except NoLayerError:
            raise NoLayerError(shape) from None
        if turned and (name in self.roles or name == bias):
            raise NoLayerError(shape)
        wire = self.signal(chain[-1] if chain else core, shape)
        self.use(name, (known[1], known[0], *known[2:]) if turned else known)
        if turned:
            self.network.turned.add(name)
        if bias is not None:
            self.use(bias, shape[1:2])
        self.add(replace(layer, output=wire.signal, bias=bias))
        for value in chain:
            self.wires[id(value)] = wire
        return wire
