"""Layers of OpenVX, and the signals between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...model import Array, Model
from .. import described
from .arguments import Shape
from .tensors import Q78, VxTensor, type_of


@dataclass(frozen=True)
class Layer:
    """Call of a function of OpenVX that adds a node.

    Parameters
    ----------
    kind : str
        ``"convolution"``, ``"deconvolution"``, ``"fully_connected"``, ``"pooling"``, ``"roi_pooling"``,
        ``"activation"``, ``"softmax"``, ``"normalization"``, ``"addition"``, ``"subtraction"`` or ``"multiplication"``.
    input, output : int
        Signals of the layer.
    weight, bias : str or None
        Tensors of the layer; the weight is the second operand of an elementwise layer.
    other : int or None
        Signal that is the second operand.
    arguments : tuple of int, float or str
        Further arguments, in order; strings are macros.
    """

    kind: str
    input: int
    output: int
    weight: str | None = None
    bias: str | None = None
    other: int | None = None
    arguments: tuple[int | float | str, ...] = ()


@dataclass
class Network:
    """Layers of a graph.

    Parameters
    ----------
    signals : list of VxTensor
        Signals between layers.
    layers : list of Layer
        Layers in the order of computation.
    inputs : list of int
    outputs : dict of int to None
        External input and output signals: of the graph, and of operations that are not layers.
    views : dict of int to (int, tuple of int)
        Signals that are parts of others, with the other signal and the start index in each dimension.
    padded : set of int
        Signals that are zero outside their parts.
    left : Counter of str
        Operations that are not layers, and the number of each.
    folded : set of str
        Tensors that are no longer needed.
    turned : set of str
        Tensors whose first two dimensions are exchanged, and whose items are reversed along the others.
    dims : dict of str to tuple of int
        Dimensions of tensors that layers need in another shape.
    derived : dict of str to ndarray
        Tensors that the model does not have: factors and offsets of batch normalizations, and constants.
    """

    signals: list[VxTensor] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: dict[int, None] = field(default_factory=dict)
    views: dict[int, tuple[int, Shape]] = field(default_factory=dict)
    padded: set[int] = field(default_factory=set)
    left: Counter[str] = field(default_factory=Counter)
    folded: set[str] = field(default_factory=set)
    turned: set[str] = field(default_factory=set)
    dims: dict[str, Shape] = field(default_factory=dict)
    derived: dict[str, Array] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if all operations of the graph are layers."""
        return bool(self.layers) and not self.left


class Parameters:
    """Tensors of a model as the variables of a graph."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._names = {name.casefold(): name for name in model}

    def name(self, label: str) -> str | None:
        """Return the name of the tensor with this label; None if there is none."""
        return label if label in self._model.tensors else self._names.get(label.casefold())

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return described(self._model, name)[1]

    def is_fixed(self, name: str) -> bool:
        """Return whether a tensor has floats, which become Q7.8."""
        return type_of(described(self._model, name)[0]) is Q78
