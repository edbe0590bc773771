"""The neutral model container between model formats and the codec. It knows nothing of NNR's syntax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """The names of the tensors that form one block of the network (weight, bias, batch normalization, scale)."""

    weight: str
    bias: str | None = None
    beta: str | None = None
    gamma: str | None = None
    mean: str | None = None
    var: str | None = None
    scale: str | None = None


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
    """

    tensors: Mapping[str, Array]
    topology: Topology | None = None
    blocks: list[Block] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]
