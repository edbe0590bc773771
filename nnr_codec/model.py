"""The neutral model container between model formats and the codec. It knows nothing of NNR's syntax."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Topology:
    """How the tensors are wired, carried verbatim.

    Parameters
    ----------
    format : str
        As Table 4 has them: ``"nnef"`` for an NNEF 1.0 ``graph.nnef``, ``"onnx"``, ``"pytorch"``, ``"tensorflow"``; the
        empty string for what has no number there, and is known by its content (NNR_TPL_UNREC).
    data : bytes
        The text, byte for byte.
    quantization : bytes or None
        The format's quantization text beside it (``graph.quant``), byte for byte.
    """

    format: str
    data: bytes
    quantization: bytes | None = None


@dataclass(frozen=True)
class Block:
    """The names of the tensors that form one block of the network: a weight and what belongs to it.

    Parameters
    ----------
    weight : str
        The weight; with ``g`` and ``h`` the name of their product, which no other tensor of the model has.
    bias, beta, gamma, mean, var : str or None
        Bias and batch normalization: one number for each index of the weight's first dimension.
    scale : str or None
        Local scaling: the weight of the network is ``weight`` with each index of its first dimension multiplied by it.
    g, h : str or None
        Two matrices whose product is the weight, reshaped to ``shape``.
    shape : tuple of int or None
        Of the product of ``g`` and ``h``; None for the matrix that it is.
    axis : int
        The dimension of the weight that bias, batch normalization and scale belong to.
    epsilon : float or None
        Of the batch normalization; None where it is not known.
    two_units : bool
        ``g`` and ``h`` have a unit each, of which no other tensor of the block is.
    corner : int or None
        The product is the displacement of the weight, seen as a matrix with a row for each index of its first
        dimension: the weight less itself moved down and to the right by one, where the first column is ``corner``
        times what left the last one, and the first row is 0. None: the product is the weight.
    """

    weight: str
    bias: str | None = None
    beta: str | None = None
    gamma: str | None = None
    mean: str | None = None
    var: str | None = None
    scale: str | None = None
    g: str | None = None
    h: str | None = None
    shape: tuple[int, ...] | None = None
    axis: int = 0
    epsilon: float | None = None
    two_units: bool = False
    corner: int | None = None


@dataclass(frozen=True)
class Slice:
    """Where a tensor has the numbers of channels: along a dimension, ``outer`` times all channels of ``inner`` numbers.

    Number ``i`` of channel ``c`` in repetition ``o`` stands at index ``offset + (o * size + c) * inner + i``.

    Parameters
    ----------
    tensor : str
    axis : int
    offset, outer, inner : int
    makes : bool
        The weight, of a filter or a neuron for each channel, that makes the channels; False for what belongs to them
        (biases, batch normalizations) and for what reads them.
    """

    tensor: str
    axis: int
    offset: int = 0
    outer: int = 1
    inner: int = 1
    makes: bool = False


@dataclass(frozen=True)
class Channels:
    """Channels of the activations of a network that can be removed, each from all of these tensors together.

    Parameters
    ----------
    size : int
        How many there are.
    parts : tuple of Slice
        All tensors that have numbers of these channels.
    """

    size: int
    parts: tuple[Slice, ...]


class _Blocks:
    """The attribute ``blocks`` of :class:`Wiring`."""

    def __get__(self, owner: Wiring | None, type_: type[Wiring]) -> tuple[Block, ...]:
        if owner is None:
            return ()
        found = owner.__dict__["blocks"]
        if callable(found):
            found = owner.__dict__["blocks"] = found()
        blocks: tuple[Block, ...] = found
        return blocks

    def __set__(self, owner: Wiring, blocks: tuple[Block, ...] | Callable[[], tuple[Block, ...]]) -> None:
        owner.__dict__["blocks"] = blocks


@dataclass(frozen=True)
class Wiring:
    """What a topology says of its tensors.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        The declared shape of each tensor by name, in the order of the topology.
    blocks : tuple of Block
        Which of them belong together. A function is called when they are first asked for.
    kinds : mapping of str to str
        The kinds of type that each may have, letters of :attr:`nnr_codec.dtypes.StoredType.kind`; any, if not said.
    ignores_case : bool
        Names that differ in case alone are the same.
    channels : tuple of Channels
        Which channels could be removed; only where that was asked for.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: _Blocks = _Blocks()
    kinds: Mapping[str, str] = field(default_factory=dict)
    ignores_case: bool = False
    channels: tuple[Channels, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Without the graph that blocks are found in."""
        return {**self.__dict__, "blocks": self.blocks}

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> Wiring:
        """The same with other declared shapes of some tensors."""
        known = str.casefold if self.ignores_case else str
        others = {known(name): shape for name, shape in shapes.items()}
        declared = {name: others.get(known(name), shape) for name, shape in self.shapes.items()}
        return replace(self, shapes=declared)


@dataclass
class Model:
    """Named tensors in order, with the topology they belong to.

    Parameters
    ----------
    tensors : mapping of str to ndarray
        In the order of the file. Values may be read lazily by a mapping of its own.
    topology : Topology or None
        None for a bare set of tensors.
    blocks : list of Block
        Which tensors belong together, when the format knows.
    metadata : dict of str to str
        What else the format wants back.
    pruned : collection of str
        Tensors that pruning gave other dimensions than the topology says: the tensors are right.
    format : str
        Of the file that the tensors came from, as :func:`nnr_codec.load` names formats; empty when not known.
    aliases : dict of str to str
        Tensors that are tied to another one, whose name follows; both are in ``tensors``.
    """

    tensors: Mapping[str, Array]
    topology: Topology | None = None
    blocks: list[Block] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    pruned: Collection[str] = ()
    format: str = ""
    aliases: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        of = f" of {self.format}" if self.format else ""
        graph = f", {self.topology.format or 'other'} topology" if self.topology else ""
        return f"<Model{of}: {len(self.tensors):,} tensors{graph}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]


class StatefulModule(Protocol):
    """A module of PyTorch: something with a ``state_dict()``."""

    def state_dict(self) -> Any:
        """Return tensors by name."""


@runtime_checkable
class Portable(Protocol):
    """Tensors that other processes can read by themselves, where they find the same files."""

    def only(self, names: Sequence[str]) -> Mapping[str, Array]:
        """The tensors of these names; pickled it takes little: paths, sizes and places, no array.

        Of files it compares sizes and times of change, which are the same on every machine that shares them.
        """


@runtime_checkable
class Described(Protocol):
    """Tensors of which type and shape are known without reading them."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a tensor."""


def described(tensors: Mapping[str, Array], name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of a tensor, without reading it where that is known."""
    return tensors.described(name) if isinstance(tensors, Described) else (tensors[name].dtype, tensors[name].shape)


def only_of(tensors: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
    """The tensors of these names for another process: where they are, or the arrays."""
    return tensors.only(names) if isinstance(tensors, Portable) else {name: tensors[name] for name in names}


def source_size(model: Model) -> tuple[int, int]:
    """Return the bytes and the number of parameters of a model's tensors, to which ratios refer.

    A tensor counts with the bytes of its array, in the type in which the source stores it. Items of less than 8 bits
    count a byte each; types that a format converts while loading, such as Q8_0 of GGUF, count as converted. Tied
    tensors count once: aliases, and arrays of a dict that share their memory.
    """
    nbytes = parameters = 0
    seen = set()
    for name in model.tensors:
        if name in model.aliases:
            continue
        if type(model.tensors) is dict and isinstance(array := model.tensors[name], np.ndarray):
            place = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
            if place in seen:
                continue
            seen.add(place)
        dtype, shape = described(model.tensors, name)
        nbytes, parameters = nbytes + math.prod(shape) * dtype.itemsize, parameters + math.prod(shape)
    return nbytes, parameters


def nbytes_of(tensors: Mapping[str, Array], name: str, unknown: int = 0) -> int:
    """Bytes of a tensor; ``unknown`` for one that would have to be read for that."""
    if type(tensors) is dict:  # of which that is asked most
        return int(getattr(tensors[name], "nbytes", unknown))
    describe = getattr(tensors, "described", None)  # isinstance with a protocol takes 20 times as long
    if describe is None:
        return unknown
    dtype, shape = describe(name)
    return int(math.prod(shape) * dtype.itemsize)
