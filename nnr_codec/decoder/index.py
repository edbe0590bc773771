"""A bitstream as a mapping: what it holds without decoding payloads, and single tensors when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bitstream.summary import tools
from ..constants import PayloadType
from ..errors import BitstreamError
from ..limits import Budget, Limits
from ..model import Array, Model, Topology
from .decode import BitstreamParser
from .group import Group, decode_groups, is_first_edition
from .reconstruct import split
from .state import UpdateState

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream


@dataclass(frozen=True)
class TensorInfo:
    """What the headers tell of one tensor.

    Parameters
    ----------
    name : str
    shape : tuple of int
        After decoding.
    dtype : numpy dtype
    payload_type : PayloadType
    tools : tuple of str
        The coding tools that its unit uses.
    nbytes : int
        Bytes of its unit (or units); 0 for the other tensors of a block, which share the unit of the weight.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    payload_type: PayloadType
    tools: tuple[str, ...]
    nbytes: int

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return prod(self.shape)

    @property
    def bits_per_parameter(self) -> float:
        """Bits of the unit for each parameter."""
        return 8 * self.nbytes / self.parameters


class NnrFile(Mapping[str, Array]):
    """A bitstream whose tensors are decoded one at a time, on access; several threads may do so.

    Made by :func:`nnr_codec.open`. Iterating gives names; ``f[name]`` decodes; ``f.info[name]`` does not.
    """

    def __init__(
        self, data: Bitstream, limits: Limits, topology_dimensions: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._parser = BitstreamParser(data, limits, topology_dimensions or {})
        self._groups: list[Group] | None = []
        self._group_of: dict[str, Group] = {}
        self._first_edition: bool | None = None
        self._lock = Lock()
        self.info: dict[str, TensorInfo] = {}
        for group in self._parser.groups():
            self._groups.append(group)
            try:
                infos = list(_describe(group))
            except BitstreamError as error:
                error.unit = error.unit or group.first.label
                raise
            for info in infos:
                self._group_of[info.name], self.info[info.name] = group, info
        self.nbytes = len(self._parser.reader.data)

    @property
    def topology(self) -> Topology | None:
        """The topology that the bitstream carries."""
        return self._parser.topology

    def decode(self, progress: Callable[[str], None] | None = None) -> Model:
        """All tensors, with the topology: what :func:`nnr_codec.decode` gives. Each name is told to ``progress``."""
        tensors = decode_groups(
            self._open(),
            self._parser.limits,
            first_edition=self._reading(),
            state=UpdateState(),
            progress=progress,
        )
        return Model(tensors, self.topology)

    def __getitem__(self, name: str) -> Array:
        self._open()
        group = self._group_of[name]
        budget = Budget(self._parser.limits)
        return group.decode(state=UpdateState(), budget=budget, first_edition=self._reading())[name]

    def _open(self) -> list[Group]:
        if self._groups is None:
            raise ValueError("the file is closed")
        return self._groups

    def _reading(self) -> bool:
        """Which of its two readings a bitstream of profile 0 has; found out once."""
        with self._lock:
            if self._first_edition is None:
                self._first_edition = self._parser.profile == 0 and is_first_edition(self._open())
            return self._first_edition

    def close(self) -> None:
        """Let go of the payloads; names and infos stay."""
        self._groups = None
        self._group_of.clear()
        self._parser.reader.data.release()

    def __enter__(self) -> NnrFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.info

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)

    __eq__ = object.__eq__  # comparing arrays by name is not what a file is for
    __hash__ = object.__hash__


def _describe(group: Group) -> Iterator[TensorInfo]:
    first, header = group.first, group.first.header
    kind, used = PayloadType(header.nnr_compressed_data_unit_payload_type), tools(header)
    shape = np.broadcast_to(np.int8(0), first.dims)  # has the shape and takes no memory
    if first.dims:
        shape = np.moveaxis(shape, 0, header.first_tensor_dimension_shift)
    if header.nnr_multiple_topology_elements_present_flag and not first.is_block:
        for k, (name, piece) in enumerate(zip(first.names, split(shape, header, first.names), strict=True)):
            yield TensorInfo(name, piece.shape, first.dtype, kind, used, 0 if k else group.nbytes)
        return
    yield TensorInfo(first.names[0], shape.shape, first.dtype, kind, used, group.nbytes)
    for part in first.parts:
        if part.name != first.names[0] and part.role not in ("h", "ls"):
            yield TensorInfo(part.name, part.dims, first.dtype, kind, used, 0)
