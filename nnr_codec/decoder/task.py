"""Decoding task of one compressed data unit, independent of other units (ISO/IEC 15938-17:2024, 7.2 and 7.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bitstream.payload import Levels, PayloadPart, codebook_array, quantization
from ..bitstream.source import Span
from ..bitstream.units import Unit
from ..constants import NNR_PT_BLOCK, NNR_PT_FLOAT, NNR_PT_INT, DecompressedDataFormat
from ..errors import ElementError, LimitError
from ..limits import Budget, Limits
from ..rules import Requirement
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from ..tensor.quant import DTYPES, integers, look_up, scale, step_size, suits_all
from .topology import Outputs

#: Function that converts levels or coded floats to parameters, in an output array (None: in a new array, or in the
#: levels themselves).
Dequantizer = Callable[[npt.NDArray[Any], npt.NDArray[Any] | None], npt.NDArray[Any]]

#: Function that casts floats to another type.
Cast = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

#: Overhead of one term of the product G H, in units of one multiplication.
TERM_OVERHEAD = 2048


def data_format(header: NnrCompressedDataUnitHeader, session: Session) -> DecompressedDataFormat:
    """Return the decoded format of a unit (7.2).

    Raises ElementError if it contradicts the profile or the payload type.
    """
    is_int = header.nnr_compressed_data_unit_payload_type == NNR_PT_INT
    if not header.nnr_decompressed_data_format_present_flag:
        return DecompressedDataFormat.TENSOR_INT32 if is_int else DecompressedDataFormat.TENSOR_FLOAT32
    path = "nnr_compressed_data_unit_header.nnr_decompressed_data_format"
    value = header.nnr_decompressed_data_format
    if value > (1 if session.general_profile_idc == 0 else max(DecompressedDataFormat)):
        raise ElementError(
            f"format {value} is not defined in profile {session.general_profile_idc} (Table 15)",
            path=path,
            rule=Requirement.DATA_FORMAT,
        )
    result = DecompressedDataFormat(value)
    if result.is_float == is_int:
        raise ElementError(
            f"{result.name} is not allowed with this payload type",
            clause="6.4.3.7",
            path=path,
            rule=Requirement.DATA_FORMAT_KIND,
        )
    return result


@dataclass(slots=True)
class NduTask:
    """All data for decoding one payload, captured from the session when its header is read."""

    names: list[str]
    unit: Unit
    header: NnrCompressedDataUnitHeader
    parts: list[PayloadPart]
    spans: tuple[memoryview | bytes | Span, ...]
    session: Session
    data_format: DecompressedDataFormat
    dims: list[int]
    nbytes: int
    limits: Limits
    outputs: Outputs | None = None
    #: Function that casts decoded floats to ``cast_dtype``, a narrower type of the tensor; None: no cast.
    cast: Cast | None = None
    cast_dtype: np.dtype[Any] | None = None
    #: Memory for the only tensor of the unit: its bytes, in C order; None: new memory.
    out: npt.NDArray[np.uint8] | None = None

    def result(self, dims: Sequence[int]) -> npt.NDArray[Any]:
        """Return memory for the only tensor of the unit, in which it has these dimensions."""
        dtype = self.cast_dtype or self.dtype
        return np.empty(dims, dtype) if self.out is None else self.out.view(dtype).reshape(dims)

    @property
    def payload(self) -> memoryview:
        """Bytes of the payload, joined from all parts of partial data."""
        parts = [span.view() if isinstance(span, Span) else span for span in self.spans]
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    @property
    def label(self) -> str:
        """Label of the unit in messages."""
        return self.unit.label(self.names)

    @property
    def role(self) -> str:
        """``g`` or ``h`` for a factor of a decomposed tensor, ``weight`` for a whole tensor, or ``block``."""
        return "block" if self.is_block else self.parts[0].role

    def charge(self, budget: Budget) -> None:
        """Charge allocations and multiplications of decoding before it starts."""
        try:
            itemsize = max(4, self.dtype.itemsize)
            for part in self.parts:
                budget.tensor(part.dims, itemsize, "tensor")
            if self.parts[-1].role == "h":
                size = budget.tensor(tuple(self.dims), 8, "recomposed tensor")
                work = self.parts[-1].dims[0] * (size + TERM_OVERHEAD)
                budget.charge("max_decomp_elements", work, "multiplications of decomposed tensors")
            for recreated in self.outputs.recreated if self.outputs else ():
                budget.tensor(recreated.shape, self.dtype.itemsize, "recreated tensor")
        except LimitError as error:
            error.unit = error.unit or self.label
            raise

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the decoded tensors."""
        return DTYPES[self.data_format]

    @property
    def is_block(self) -> bool:
        """True if the unit is of type NNR_PT_BLOCK."""
        return self.header.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK

    @property
    def is_scaled(self) -> bool:
        """True if the decoder multiplies levels by a step size."""
        return self.header.nnr_compressed_data_unit_payload_type in (NNR_PT_FLOAT, NNR_PT_BLOCK)

    @property
    def has_levels(self) -> bool:
        """True if all parameters are equal to their levels, and have the same type."""
        is_int = self.header.nnr_compressed_data_unit_payload_type == NNR_PT_INT
        return is_int and self.data_format is DecompressedDataFormat.TENSOR_INT32 and not self.cast

    def dequantizer(self, part: PayloadPart, qp_value: int) -> Dequantizer:
        """Return the function that converts any number of QuantParam of a part to parameters (7.3.2, 7.3.3, 7.3.6).

        It raises PayloadError or ElementError for levels without a parameter value.
        """
        if self.header.nnr_compressed_data_unit_payload_type == NNR_PT_INT:
            return self._integers
        step, book = self._step(qp_value), part.codebook
        entries = codebook_array(book, self.limits) if book else None

        def dequantize(levels: Levels, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
            if book and entries is not None:
                levels = look_up(levels, entries, book.cb_zero_offset)
            if self.cast:
                return self.put(scale(levels, step, self.data_format), out)
            return scale(levels, step, self.data_format, out)

        return dequantize

    def plain_step(self, part: PayloadPart, qp_value: int) -> float:
        """Return stepSize if every parameter is its level times stepSize in float32, for all levels; otherwise 0."""
        if part.codebook or self.data_format != DecompressedDataFormat.TENSOR_FLOAT32:
            return 0.0
        step = self._step(qp_value)
        return step if suits_all(step, np.dtype(np.float32)) else 0.0

    def _step(self, qp_value: int) -> float:
        """Return stepSize, 7.3.6."""
        density, base = quantization(self.session)
        return step_size(qp_value + base, density)

    def _integers(self, levels: Levels, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        return self.put(integers(levels, self.data_format), out)

    def put(self, values: npt.NDArray[Any], out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """Cast parameters if necessary, and return them, in an output array if there is one."""
        if self.cast:
            values = self.cast(values).reshape(values.shape)
        if out is None:
            return values
        out[...] = values
        return out
