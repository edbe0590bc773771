"""A bitstream as a mapping: what it holds without decoding payloads, and single tensors when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bitstream.summary import tools
from ..constants import NNR_PT_BLOCK, PayloadType
from ..errors import BitstreamError, NnrError, PayloadError
from ..limits import Budget, Limits
from ..model import Array, Model, Topology
from .decode import Decoder, decode_bitstream
from .reconstruct import split
from .state import UpdateState
from .task import NduTask

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
    """A bitstream whose tensors are decoded one at a time, on access.

    Made by :func:`nnr_codec.open`. Iterating gives names; ``f[name]`` decodes; ``f.info[name]`` does not.
    """

    def __init__(
        self, data: Buffer, limits: Limits, topology_dimensions: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._decoder = Decoder(
            data,
            limits=limits,
            topology_dimensions=topology_dimensions or {},
            state=UpdateState(),
            raw=False,
        )
        self._limits = limits
        groups: dict[str, list[NduTask]] = {}
        self.info: dict[str, TensorInfo] = {}
        for group in self._decoder.groups():
            try:
                for info in _describe(group):
                    groups[info.name], self.info[info.name] = group, info
            except BitstreamError as error:
                error.unit = error.unit or group[0].label
                raise
        self._groups: dict[str, list[NduTask]] | None = groups

    @property
    def topology(self) -> Topology | None:
        """The topology that the bitstream carries."""
        return self._decoder.topology

    def decode(self, progress: Callable[[str], None] | None = None) -> Model:
        """All tensors, with the topology: what :func:`nnr_codec.decode` gives, each name told to ``progress``."""
        return decode_bitstream(
            self._decoder.reader.data,
            limits=self._limits,
            topology_dimensions=self._decoder.reader.session.topology_dimensions,
            progress=progress,
        )[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the bitstream."""
        return len(self._decoder.reader.data)

    def __enter__(self) -> NnrFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the payloads; headers stay."""
        self._groups = None

    def __getitem__(self, name: str) -> Array:
        if self._groups is None:
            raise ValueError("the file is closed")
        group = self._groups[name]
        try:
            return self._decode(group)[name]
        except PayloadError as error:
            if self._decoder.first_edition or self._decoder.reader.session.general_profile_idc != 0:
                raise
            self._decoder.first_edition = True  # errata K1, K4
            try:
                return self._decode(group)[name]
            except NnrError:
                self._decoder.first_edition = False
                raise error from None

    def _decode(self, group: list[NduTask]) -> dict[str, Array]:
        """One access, with an account and a state of its own: tensors can be read in any order, and again."""
        self._decoder.budget, self._decoder.state = Budget(self._limits), UpdateState()
        return self._decoder.decode(group)

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)

    __eq__ = object.__eq__  # comparing arrays by name is not what a file is for
    __hash__ = object.__hash__


def _describe(group: list[NduTask]) -> Iterator[TensorInfo]:
    first = group[0]
    header = first.header
    nbytes = sum(task.unit.size.nnr_unit_size for task in group)
    kind, used = PayloadType(header.nnr_compressed_data_unit_payload_type), tools(header)
    shape = np.broadcast_to(np.int8(0), first.dims)  # has the shape and takes no memory
    if first.dims:
        shape = np.moveaxis(shape, 0, header.first_tensor_dimension_shift)
    if header.nnr_multiple_topology_elements_present_flag and kind != NNR_PT_BLOCK:
        for k, (name, piece) in enumerate(zip(first.names, split(shape, header, first.names), strict=True)):
            yield TensorInfo(name, piece.shape, first.dtype, kind, used, 0 if k else nbytes)
        return
    yield TensorInfo(first.names[0], shape.shape, first.dtype, kind, used, nbytes)
    for part in first.parts:
        if part.name != first.names[0] and part.role not in ("h", "ls"):
            yield TensorInfo(part.name, part.dims, first.dtype, kind, used, 0)
