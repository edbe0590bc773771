"""Graph of a network: values, each computed by an operation from other values.

Operations and their arguments have the names and the meaning of NNEF 1.0, chapter 4. Formats normalize the shape of a
bias, the layout of weights and depthwise convolutions (``groups`` is 0). Negative axes count from the last dimension.
Implicit padding, strides and quantization may be omitted. An operation that cannot be represented has no name. In
addition to NNEF, :mod:`.channels` supports

- ``elementwise``: any elementwise function that is finite if its operands are 0;
- ``batched_matmul``: a product of matrices whose operands may differ in rank;
- ``instance_normalization``: normalization over the dimensions behind the channels, with ``offset`` and ``scale``;
- ``flatten``: a reshape to two dimensions, before ``axis`` and from ``axis`` on;
- ``pool`` and ``global_pool``: pooling over the dimensions behind the channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Tensor:
    """Tensor of the model in its graph.

    Parameters
    ----------
    name : str
    shape : tuple of int
    is_float : bool
        False for integers and logicals, which are indices or choices.
    is_private : bool
        False if another value of the graph is the same tensor.
    """

    name: str
    shape: tuple[int, ...]
    is_float: bool = True
    is_private: bool = True


@dataclass(slots=True, eq=False)
class Value:
    """Result of an operation, tensor of the model, constant, or array of values.

    Parameters
    ----------
    operation : str
        Name of the operation; empty if unknown.
    inputs : dict of str to Value
        Arguments by parameter name.
    text : str
        Name of the operation in the format, for messages.
    items : list of Value, or None
        Items of an array or a tuple.
    constant : bool, int, float, str or None
    tensor : Tensor or None
    shape : tuple of int, or None
        Shape of the result, if the format propagates shapes and it is known.
    users : list of Value
        Values computed from this value, once for each use. Outputs of the graph, loops, conditions and inner graphs
        count as two uses by a value that is not part of the graph: blocks and channels end there.
    """

    operation: str = ""
    inputs: dict[str, Value] = field(default_factory=dict)
    text: str = ""
    items: list[Value] | None = None
    constant: bool | int | float | str | None = None
    tensor: Tensor | None = None
    shape: tuple[int, ...] | None = None
    users: list[Value] = field(default_factory=list)


@dataclass(frozen=True)
class Graph:
    """Values of a network.

    Parameters
    ----------
    values : sequence of Value
        Values in the order of the format. Channels of a value that precedes one of its inputs are fixed.
    aligns_last : bool
        Operands of different rank are aligned at their last dimensions, as in numpy; otherwise at their first.
    names : mapping of str to Value
        Values by their names in the format, if it provides them.
    results : sequence of Value or None
        Outputs of the graph, if the format provides them; None for an unknown value.
    """

    values: Sequence[Value] = ()
    aligns_last: bool = False
    names: Mapping[str, Value] = field(default_factory=dict)
    results: Sequence[Value | None] = ()


class GraphBuilder:
    """Base class of converters from formats; collects the values of a graph in order."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def add(self, operation: str, inputs: dict[str, Value], target: Value | None = None) -> Value:
        """Return the result of an operation, and append it to the values."""
        value = target or Value()
        value.operation, value.inputs = operation, inputs
        for used in inputs.values():
            used.users.append(value)
        self.values.append(value)
        return value


def integers(numbers: Iterable[int]) -> Value:
    """Return an array of integers."""
    return Value(items=[Value(constant=number) for number in numbers])
