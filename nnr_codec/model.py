"""Model container shared by model formats and codec, independent of NNR syntax."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
#: Called as ``progress(name, done, total)`` after each tensor: its name, the number of finished tensors, and the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Topology:
    """Network graph of a model, stored verbatim.

    Parameters
    ----------
    format : str
        Name of the format in Table 4: ``"nnef"`` for an NNEF 1.0 ``graph.nnef``, ``"onnx"``, ``"pytorch"``,
        ``"tensorflow"``; empty for a format without a number, recognized by its content (NNR_TPL_UNREC).
    data : bytes
        The file, byte for byte.
    quantization : bytes or None
        The separate quantization text of the format (``graph.quant``), byte for byte.
    """

    format: str
    data: bytes
    quantization: bytes | None = None


@dataclass(frozen=True)
class Block:
    """Names of the tensors of one block of the network: a weight and its companions.

    Parameters
    ----------
    weight : str
        Name of the weight; with ``g`` and ``h``, the name of their product, which is not a tensor of the model.
    bias, beta, gamma, mean, var : str or None
        Bias and batch normalization: one number for each index of the first dimension of the weight.
    scale : str or None
        Local scaling: one factor for each index of the first dimension of ``weight``; the network uses the product.
    g, h : str or None
        Two matrices whose product is the weight, reshaped to ``shape``.
    shape : tuple of int or None
        Shape of the product of ``g`` and ``h``; None if it stays a matrix.
    axis : int
        Dimension of the weight to which bias, batch normalization and scale apply.
    epsilon : float or None
        Epsilon of the batch normalization; None if unknown.
    two_units : bool
        True if ``g`` and ``h`` have a unit each, without other tensors of the block.
    corner : int or None
        The product is the displacement of the weight, seen as a matrix with a row for each index of its first
        dimension: the weight minus a copy of itself shifted down and right by one. The first column of the copy is
        ``corner`` times the shifted-out last column, and its first row is 0. None: the product is the weight.
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
    """Position of channels in a tensor: along a dimension, ``outer`` repetitions of all channels of ``inner`` numbers.

    Number ``i`` of channel ``c`` in repetition ``o`` has the index ``offset + (o * size + c) * inner + i``.

    Parameters
    ----------
    tensor : str
    axis : int
    offset, outer, inner : int
    makes : bool
        True for the weight that produces the channels, with a filter or neuron for each; False for their biases and
        batch normalizations, and for tensors that read the channels.
    divides : bool
        True for the variances of a batch normalization.
    """

    tensor: str
    axis: int
    offset: int = 0
    outer: int = 1
    inner: int = 1
    makes: bool = False
    divides: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Channels:
    """Channels of activations that can be removed, each from all listed tensors together.

    Parameters
    ----------
    size : int
        Number of channels.
    parts : tuple of Slice
        All slices with numbers of these channels.
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
    """Information that a topology provides about its tensors.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Declared shape of each tensor by name, in the order of the topology.
    blocks : tuple of Block
        Tensors that form blocks, or a function that returns them, called on first use.
    kinds : mapping of str to str
        Type kinds that each tensor may have, as letters of :attr:`nnr_codec.dtypes.StoredType.kind`; any kind if
        absent.
    ignores_case : bool
        True if names that differ only in case are the same.
    channels : tuple of Channels
        Channels that can be removed; empty unless requested.
    quantized : collection of str
        Tensors that are parts of quantized tensors, such as integers and scales; the encoder stores them losslessly.
    places : mapping of str to str
        File and line of declarations, for messages.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: _Blocks = _Blocks()
    kinds: Mapping[str, str] = field(default_factory=dict)
    ignores_case: bool = False
    channels: tuple[Channels, ...] = ()
    quantized: Collection[str] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the blocks, without the graph in which they are found."""
        return {**self.__dict__, "blocks": self.blocks}

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> Wiring:
        """Return a copy with different declared shapes for some tensors."""
        known = str.casefold if self.ignores_case else str
        others = {known(name): shape for name, shape in shapes.items()}
        declared = {name: others.get(known(name), shape) for name, shape in self.shapes.items()}
        return replace(self, shapes=declared)


@dataclass
class Model:
    """Named tensors in order, with their topology.

    Parameters
    ----------
    tensors : mapping of str to ndarray
        Tensors in the order of the file. The mapping may read values lazily.
    topology : Topology or None
        None for tensors without a graph.
    blocks : list of Block
        Tensors that form blocks, if the format defines them.
    metadata : dict of str to str
        Other strings that the format stores.
    pruned : collection of str
        Tensors whose dimensions pruning changed relative to the topology; the tensors take precedence.
    format : str
        Format of the source file, as named by :func:`nnr_codec.load`; empty if unknown.
    aliases : dict of str to str
        Tied tensors, mapped to the name of the tensor that they equal; both are in ``tensors``.
    attachments : mapping of str to bytes
        Other files of the model's folder, such as ``config.json``, by relative path with slashes. The mapping may read
        them lazily.
    file_name : str
        Name of the file with the tensors in this folder, such as ``model.safetensors``; empty if unknown.
    """

    tensors: Mapping[str, Array]
    topology: Topology | None = None
    blocks: list[Block] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    pruned: Collection[str] = ()
    format: str = ""
    aliases: dict[str, str] = field(default_factory=dict)
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    file_name: str = ""

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
    """PyTorch module, or another object with a ``state_dict()`` method."""

    def state_dict(self) -> Any:
        """Return tensors by name."""


@runtime_checkable
class Portable(Protocol):
    """Tensors that other processes can read themselves if they have access to the same files."""

    def only(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Return the named tensors in a form with a small pickle: paths, sizes and offsets, no arrays.

        Files are identified by size and modification time, which are the same on every machine that shares them.
        """


@runtime_checkable
class Described(Protocol):
    """Tensors whose dtype and shape are known without reading them."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor."""


def described(tensors: Mapping[str, Array], name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of a tensor, without reading it if possible."""
    return tensors.described(name) if isinstance(tensors, Described) else (tensors[name].dtype, tensors[name].shape)


def only_of(tensors: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
    """Return the named tensors for another process: their locations if possible, else the arrays."""
    return tensors.only(names) if isinstance(tensors, Portable) else {name: tensors[name] for name in names}


def source_size(model: Model) -> tuple[int, int]:
    """Return the bytes and the number of parameters of a model's tensors, to which ratios refer.

    A tensor counts with the bytes of its array, in the type in which the source stores it. Items of less than 8 bits
    count a byte each, also levels of quantized tensors of GGUF. Tied tensors count once: aliases, and arrays of a dict
    that share their memory.
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
    """Return the size of a tensor in bytes; ``unknown`` if it would have to be read first."""
    if type(tensors) is dict:  # the most frequent case
        return int(getattr(tensors[name], "nbytes", unknown))
    describe = getattr(tensors, "described", None)  # isinstance with a protocol takes 20 times as long
    if describe is None:
        return unknown
    dtype, shape = describe(name)
    return int(math.prod(shape) * dtype.itemsize)
