"""The graph of a network: values, each made by an operation from others.

Operations and their arguments have the names of NNEF 1.0, chapter 4, and the meaning that they have there. Formats
normalize the forms of a bias, the layout of weights and depthwise convolutions (``groups`` is 0); axes may count from
the last. Implicit padding, strides and quantization are left out, and an operation that cannot be expressed has no
name. Beyond NNEF, :mod:`.channels` knows

- ``elementwise``: any function of the numbers at the same place of its operands that is finite where they are 0;
- ``batched_matmul``: a product of matrices whose operands may differ in rank;
- ``instance_normalization``: normalization over the dimensions behind the channels, with ``offset`` and ``scale``;
- ``flatten``: a reshape to the products of the extents before ``axis`` and from it on;
- ``pool`` and ``global_pool``: pooling over the dimensions behind the channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of the model in its graph.

    Parameters
    ----------
    name : str
    shape : tuple of int
    is_float : bool
        False for integers and logicals, which mean indices or choices.
    is_private : bool
        False where another value of the graph is the same tensor.
    """

    name: str
    shape: tuple[int, ...]
    is_float: bool = True
    is_private: bool = True


@dataclass(slots=True, eq=False)
class Value:
    """The result of an operation, a tensor of the model, a constant or an array of values.

    Parameters
    ----------
    operation : str
        Empty where it is unknown.
    inputs : dict of str to Value
        The arguments by parameter.
    text : str
        The operation as the format calls it, for messages.
    items : list of Value, or None
        Those of an array or a tuple.
    constant : bool, int, float, str or None
    tensor : Tensor or None
    users : list of Value
        The values computed from it, once for each use. Outputs of the graph, loops, conditions and inner graphs count
        as two uses by a value that is not part of the graph: blocks and channels end there.
    """

    operation: str = ""
    inputs: dict[str, Value] = field(default_factory=dict)
    text: str = ""
    items: list[Value] | None = None
    constant: bool | int | float | str | None = None
    tensor: Tensor | None = None
    users: list[Value] = field(default_factory=list)


@dataclass(frozen=True)
class Graph:
    """The values of a network.

    Parameters
    ----------
    values : sequence of Value
        In the order of the format. A value that stands before one of its inputs is not followed to channels.
    aligns_last : bool
        Operands of different rank are aligned at their last dimensions, as in numpy; otherwise at their first.
    """

    values: Sequence[Value] = ()
    aligns_last: bool = False


class GraphBuilder:
    """Base class of front-ends: the values of a graph in order."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def add(self, operation: str, inputs: dict[str, Value], target: Value | None = None) -> Value:
        """Return the result of an operation, appended to the values."""
        value = target or Value()
        value.operation, value.inputs = operation, inputs
        for used in inputs.values():
            used.users.append(value)
        self.values.append(value)
        return value


def integers(numbers: Iterable[int]) -> Value:
    """Return an array of integers."""
    return Value(items=[Value(constant=number) for number in numbers])
