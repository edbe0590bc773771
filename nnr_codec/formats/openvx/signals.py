"""Signals and tensors of a graph during the search for layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from ...model import Array
from ...topology.graph import Graph, Value
from .arguments import NoLayerError, Shape, number
from .network import Layer, Network, Parameters
from .tensors import LEAST, MOST, POSITION, Q78, VxTensor

#: Inputs of a batch normalization other than its data.
NORMALIZING = ("mean", "variance", "offset", "scale")
#: Maximum number of items of a signal.
LARGEST_SIGNAL = 1 << 40
#: Maximum n of factors 2**-n that implementations of multiplications must support.
SHIFTS = 15


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


def check_items(items: npt.NDArray[np.float64]) -> None:
    """Raise NoLayerError if items are not finite, or round to levels outside Q7.8."""
    with np.errstate(over="ignore"):
        levels = np.rint(items * (1 << POSITION))
    if not np.isfinite(levels).all() or levels.min() < LEAST or levels.max() > MOST:
        raise NoLayerError


class Wires:
    """State of the search: the signals of values, and the tensors that layers use.

    Parameters
    ----------
    graph : Graph
    parameters : Parameters
    vectors : mapping of str to ndarray
        Values of the tensors of batch normalizations.
    """

    def __init__(self, graph: Graph, parameters: Parameters, vectors: Mapping[str, Array]) -> None:
        self.parameters, self.vectors = parameters, vectors
        self.network = Network()
        self.aligns_last = graph.aligns_last
        self.names = {id(value): name for name, value in reversed([*graph.names.items()])}
        self.wires: dict[int, Wire | None] = {}  # by the identity of values
        self.not_negative: set[int] = set()
        self.roles: dict[str, Shape] = {}  # shapes of tensors in layers

    def tensors_in(self, value: Value) -> Iterator[Wire | None]:
        """Yield the operands of an operation that have signals; None for operands of unknown shape."""
        for used in value.inputs.values():
            for item in used.items or [used]:
                if id(item) in self.wires:
                    yield self.wires[id(item)]

    # ---------------------------------------------------------------------------------------------- signals
    def signal(self, value: Value, shape: Shape) -> Wire:
        """Add a signal. Raise NoLayerError for an invalid shape."""
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
        """Return the signal of an argument. Raise NoLayerError if it has none."""
        wire = self.wires.get(id(value.inputs.get(name)))
        if wire is None:
            raise NoLayerError
        return wire

    def layer(self, kind: str, source: Wire, value: Value, shape: Shape, *arguments: int | float | str) -> Wire:
        """Add a layer without tensors."""
        wire = self.signal(value, shape)
        self.network.layers.append(Layer(kind, source.signal, wire.signal, arguments=arguments))
        return wire

    def is_plain(self, wire: Wire) -> bool:
        """Return whether a signal has the dimensions of its shape in the graph."""
        return self.network.signals[wire.signal].dims == wire.shape[::-1]

    def is_repeated(self, shape: Shape, wire: Wire) -> bool:
        """Return whether an operand of this shape gets the shape of a signal if its dimensions of 1 are repeated."""
        pairs = zip(shape, wire.shape, strict=False)
        return len(shape) == len(wire.shape) and self.is_plain(wire) and all(a in (1, b) for a, b in pairs)

    def contain(self, whole: Wire, part: Wire, start: Shape) -> None:
        """Make a signal a part of another one. Raise NoLayerError if it is a part already."""
        if part.signal in self.network.views or not self.is_plain(part):
            raise NoLayerError
        self.network.views[part.signal] = whole.signal, start[::-1]

    def padded(self, value: Value, source: Wire, pads: list[tuple[int, int]]) -> Wire:
        """Return a signal that contains a source signal, and zeros around it."""
        if len(pads) != len(source.shape) or any(not 0 <= pad <= LARGEST_SIGNAL for pair in pads for pad in pair):
            raise NoLayerError
        if source.signal in self.network.views or not self.is_plain(source):
            raise NoLayerError
        shape = tuple(extent + sum(pair) for extent, pair in zip(source.shape, pads, strict=True))
        whole = self.signal(value, shape)
        self.contain(whole, source, tuple(before for before, _ in pads))
        self.network.padded.add(whole.signal)
        if source.signal in self.not_negative:
            self.not_negative.add(whole.signal)
        return whole

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
        """Return a tensor for a layer in this shape; extents of 1 are ignored for vectors.

        Raise NoLayerError if the tensor is unknown, is not Q7.8 or has another shape.
        """
        if name is None or not self.parameters.is_fixed(name) or name in self.network.turned:
            raise NoLayerError
        found = self.parameters.shape(name)
        fits = (
            prod(found) == shape[0] and max(found, default=1) == shape[0]
            if len(shape) == 1
            else self.extended(found, len(shape)) == shape
        )
        if not fits or self.roles.get(name, shape) != shape:
            raise NoLayerError
        return name

    def extended(self, shape: Shape, rank: int) -> Shape:
        """Return a shape with dimensions of 1, as for operands of this rank."""
        ones = (1,) * (rank - len(shape))
        return ones + shape if self.aligns_last else shape + ones

    def derive(self, value: Value, suffix: str, items: npt.NDArray[np.float64]) -> str:
        """Add a tensor of rounded items. Raise NoLayerError if one of them is not finite or too large."""
        check_items(items)
        name = f"{self.names.get(id(value), value.text)}/{suffix}"
        while name in self.network.derived or self.parameters.name(name) is not None:
            name += "_"
        self.network.derived[name] = np.rint(items * (1 << POSITION)) / (1 << POSITION)
        return name

    def scaled(self, value: Value, source: Wire, factors: npt.NDArray[np.float64]) -> Wire:
        """Multiply a signal by factors, which a power of two scales to the range of Q7.8."""
        most = float(np.abs(factors).max())
        shift = next((k for k in reversed(range(SHIFTS + 1)) if most * 2.0**k <= MOST / (1 << POSITION)), 0)
        name, wire = self.derive(value, "factors", factors * 2.0**shift), self.like(value, source)
        arguments = (2.0**-shift,)
        self.network.layers.append(Layer("multiplication", source.signal, wire.signal, name, arguments=arguments))
        return wire

    def like(self, value: Value, source: Wire) -> Wire:
        """Add a signal with the dimensions of another one, whatever its shape in the graph."""
        wire, signals = self.signal(value, source.shape), self.network.signals
        signals[wire.signal] = replace(signals[wire.signal], dims=signals[source.signal].dims)
        return wire

    def use(self, name: str, shape: Shape) -> str:
        """Record that a layer uses a tensor in this shape."""
        self.roles[name] = shape
        self.network.dims[name] = tuple(reversed(shape))
        return name

    def tail(self, core: Value, channels: int, rank: int) -> tuple[str | None, list[Value]]:
        """Return the bias of a layer, and the following operations that only add it."""
        given = core.inputs.get("bias")
        bias = None if given is None or number(given) == 0 else self.tensor(self.named(given), (channels,))
        output, chain = core, list[Value]()
        while len(output.users) == 1:
            (user,) = output.users
            found = None
            if user.operation == "add" and bias is None:
                other = user.inputs.get("y" if user.inputs.get("x") is output else "x")
                found = self.added(other, channels, rank)
            elif user.operation == "batch_normalization" and user.inputs.get("input") is output:
                found = self.offset(user, bias, core, channels)
            if found is None:
                break
            bias, output = found, user
            chain.append(user)
        return bias, chain

    def added(self, value: Value | None, channels: int, rank: int) -> str | None:
        """Return the tensor that is added to each channel of an operand of this rank; None if there is none."""
        try:
            name = self.tensor(self.named(value), (channels,))
        except NoLayerError:
            return None
        shape = self.parameters.shape(name)
        return name if len(shape) <= rank and self.extended(shape, rank)[1] == channels else None

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
            bias, chain = self.tail(core, shape[1], len(shape))
        except NoLayerError:
            raise NoLayerError from None
        if turned and (name in self.roles or name == bias):
            raise NoLayerError
        wire = self.signal(chain[-1] if chain else core, shape)
        self.use(name, (known[1], known[0], *known[2:]) if turned else known)
        if turned:
            self.network.turned.add(name)
        if bias is not None:
            self.use(bias, shape[1:2])
        self.network.layers.append(replace(layer, output=wire.signal, bias=bias))
        for value in chain:
            self.wires[id(value)] = wire
        return wire
