"""Information on unit tensors and model tensors, from headers, without decoding payloads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..bitstream.summary import tools
from ..constants import NNR_PT_BLOCK, PayloadType
from ..dtypes import STORED_TYPES
from ..errors import BitstreamError
from ..tensor.quant import DTYPES
from .reconstruct import split
from .task import NduTask
from .topology import PLAIN

_KINDS = tuple(PayloadType)

#: Type names of Table 15; cached because numpy computes them on each access.
_NAMES = {data_format: dtype.name for data_format, dtype in DTYPES.items()}


class TensorInfo(NamedTuple):
    """Information on one tensor from headers.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Shape after decoding.
    type : str
        Name of the :class:`~nnr_codec.dtypes.StoredType` after decoding, equal to the name of ``dtype``.
    payload_type : PayloadType or None
        None for a tensor without a unit: empty, tied to another tensor, or recreated from a folded batch normalization
        (8.2.1).
    tools : tuple of str
        Coding tools of its unit.
    nbytes : int
        Size of its units in bytes; 0 for further tensors of a block, which share the unit of the weight.
    first_tensor_dimension_shift : int
        Axis that was coded first.
    code : str
        KIND of the side-information code that produces the tensor; empty if it is unchanged or cast.
    same_as : str
        Name of the tensor to which it is tied.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    payload_type: PayloadType | None
    tools: tuple[str, ...]
    nbytes: int
    first_tensor_dimension_shift: int = 0
    code: str = ""
    same_as: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; raises MissingDependencyError if it needs ``ml_dtypes`` and that is not installed."""
        return STORED_TYPES[self.type].dtype

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return prod(self.shape)

    @property
    def bits_per_parameter(self) -> float:
        """Bits of the units per parameter; 0 for an empty tensor."""
        return 8 * self.nbytes / self.parameters if self.parameters else 0.0

    def check_rows(self, start: int, stop: int) -> None:
        """Raise IndexError unless the rows exist on the first coded axis."""
        if not self.shape or not 0 <= start <= stop <= self.shape[self.first_tensor_dimension_shift]:
            raise IndexError(f"{self.name!r} of shape {self.shape} has no rows {start} to {stop}")


def describe(tasks: Sequence[NduTask]) -> tuple[TensorInfo, ...]:
    """Return information on the tensors of a group of units. Raise ElementError if they cannot be separated."""
    try:
        return _infos(tasks)
    except BitstreamError as error:
        error.unit = error.unit or tasks[0].label
        raise


def _infos(tasks: Sequence[NduTask]) -> tuple[TensorInfo, ...]:
    first, header, nbytes = tasks[0], tasks[0].header, sum([task.nbytes for task in tasks])
    kind, used = _KINDS[header.nnr_compressed_data_unit_payload_type], tools(header)
    shift = header.first_tensor_dimension_shift
    of_type = _NAMES[first.data_format]
    dims, last = first.dims, first.parts[-1]
    is_as_coded = not shift and last.role == "weight"  # one tuple serves both
    shape = last.dims if is_as_coded else (*dims[1 : shift + 1], *dims[:1], *dims[shift + 1 :])
    if header.nnr_multiple_topology_elements_present_flag and kind != NNR_PT_BLOCK:
        whole = np.broadcast_to(np.int8(0), shape)  # has the shape without using memory
        return tuple(
            TensorInfo(name, piece.shape, of_type, kind, used, 0 if k else nbytes)
            for k, (name, piece) in enumerate(zip(first.names, split(whole, header, first.names), strict=True))
        )
    main = TensorInfo(first.names[0], shape, of_type, kind, used, nbytes, shift)
    if kind != NNR_PT_BLOCK:
        return (main,)
    outputs = first.outputs or PLAIN
    inner = ("h",) if outputs.scale else ("h", "ls")
    others = (part for part in first.parts if part.name != main.name and part.role not in inner)
    return (
        main,
        *(TensorInfo(part.name, outputs.shape(part.name, part.dims), of_type, kind, used, 0) for part in others),
        *(TensorInfo(each.name, each.shape, of_type, None, (), 0) for each in outputs.recreated),
    )
