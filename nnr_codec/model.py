"""The neutral model container between model formats and the codec. It knows nothing of NNR's syntax."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Topology:
    """How the tensors are wired, carried verbatim.

    Parameters
    ----------
    format : str
        ``"nnef"`` for an NNEF 1.0 ``graph.nnef``; the empty string when nothing is known of the text.
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


@dataclass(frozen=True)
class Wiring:
    """What a topology says of its tensors.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        The declared shape of each tensor by name, in the order of the topology.
    blocks : tuple of Block
        Which of them belong together.
    kinds : mapping of str to str
        The kinds of type that each may have, letters of :attr:`nnr_codec.dtypes.StoredType.kind`; any, if not said.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)


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

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]
