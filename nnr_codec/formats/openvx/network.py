"""Layers of the extension, and what goes between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...model import Array, Model
from .. import described
from .arguments import Shape
from .tensors import Q78, VxTensor, type_of


@dataclass(frozen=True)
class Layer:
    """A call of a function of the extension.

    Parameters
    ----------
    kind : str
        ``"convolution"``, ``"deconvolution"``, ``"fully_connected"``, ``"pooling"``, ``"activation"``, ``"softmax"`` or
        ``"normalization"``.
    input, output : int
        Signals.
    weight, bias : str or None
        Tensors.
    arguments : tuple of int, float or str
        Further ones, in order; strings are macros.
    """

    kind: str
    input: int
    output: int
    weight: str | None = None
    bias: str | None = None
    arguments: tuple[int | float | str, ...] = ()


@dataclass
class Network:
    """The layers of a graph.

    Parameters
    ----------
    signals : list of VxTensor
        What goes from layer to layer.
    layers : list of Layer
        In the order of computation.
    inputs : list of int
    outputs : dict of int to None
        Signals that come from elsewhere, and those that go there: of the graph, and of what is left.
    views : dict of int to (int, int)
        Signals that are parts of others along their third dimension, of which they begin at an index.
    left : Counter of str
        Operations that are no layers.
    folded : set of str
        Tensors that nothing needs any more.
    turned : set of str
        Tensors of which the first two dimensions change places, and the others are reversed.
    dims : dict of str to tuple of int
        Of tensors for which layers ask for others than their own.
    """

    signals: list[VxTensor] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: dict[int, None] = field(default_factory=dict)
    views: dict[int, tuple[int, int]] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    folded: set[str] = field(default_factory=set)
    turned: set[str] = field(default_factory=set)
    dims: dict[str, Shape] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the layers are all of the graph."""
        return bool(self.layers) and not self.left


class Parameters:
    """The tensors of a model as the variables of a graph."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._names = {name.casefold(): name for name in model}

    def name(self, label: str) -> str | None:
        """The name of the tensor; None where there is none."""
        return label if label in self._model.tensors else self._names.get(label.casefold())

    def shape(self, name: str) -> Shape:
        """Its shape."""
        return described(self._model, name)[1]

    def is_fixed(self, name: str) -> bool:
        """Whether it has floats, which will be numbers of Q7.8."""
        return type_of(described(self._model, name)[0]) is Q78

    def values(self, name: str) -> Array:
        """Its values."""
        return self._model.tensors[name]
