"""One compressed data unit, ready to be decoded anywhere and in any order (ISO/IEC 15938-17:2024, 7.2 and 7.3)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..bitstream.payload import Coded, Part, code_payload, codebook_array, qp_density, tensor_syntax
from ..bitstream.source import Span
from ..bitstream.units import Unit
from ..cabac_ext.kernel import PayloadDecoder
from ..constants import NNR_PT_BLOCK, NNR_PT_INT, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..errors import BitstreamError, ElementError, LimitError, MissingReferenceError, PayloadError
from ..limits import Budget, Limits
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from ..tensor.quant import DTYPES, cast_floats, integers, look_up, scale, step_size
from ..tensor.shape import dimension_shift
from .reconstruct import Rec

Arrays = tuple[npt.NDArray[Any], ...]

#: Time that one term of a product of G and H takes beside its multiplications, as a number of these.
TERM_OVERHEAD = 2048


def data_format(header: NnrCompressedDataUnitHeader, session: Session) -> DecompressedDataFormat:
    """The format that a unit decodes to (7.2); ElementError when it does not suit the profile or the payload type."""
    is_int = header.nnr_compressed_data_unit_payload_type == NNR_PT_INT
    if not header.nnr_decompressed_data_format_present_flag:
        return DecompressedDataFormat.TENSOR_INT32 if is_int else DecompressedDataFormat.TENSOR_FLOAT32
    path = "nnr_compressed_data_unit_header.nnr_decompressed_data_format"
    value = header.nnr_decompressed_data_format
    if value > (1 if session.general_profile_idc == 0 else max(DecompressedDataFormat)):
        raise ElementError(f"format {value} is not one of profile {session.general_profile_idc} (Table 15)", path=path)
    result = DecompressedDataFormat(value)
    if result.is_float == is_int:
        raise ElementError(f"{result.name} is not a format of this payload type (6.4.3.7)", path=path)
    return result


@dataclass
class NduTask:
    """Everything that decoding one payload needs, taken from the session while its header is at hand."""

    label: str
    names: list[str]
    unit: Unit
    header: NnrCompressedDataUnitHeader
    parts: list[Part]
    spans: tuple[memoryview | Span, ...]
    session: Session
    data_format: DecompressedDataFormat
    dims: list[int]
    nbytes: int
    limits: Limits

    @property
    def payload(self) -> memoryview:
        """The bytes of the payload, those of all parts of partial data."""
        parts = [span.view() if isinstance(span, Span) else span for span in self.spans]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    @property
    def role(self) -> str:
        """``g`` or ``h`` for one half of a decomposed tensor, ``weight`` for a whole one, ``block``."""
        return "block" if self.is_block else self.parts[0].role

    def charge(self, budget: Budget) -> None:
        """Charge what decoding allocates and how long it multiplies, before it does."""
        try:
            for part in self.parts:
                budget.tensor(part.dims, max(4, self.dtype.itemsize), "tensor")
            if self.parts[-1].role == "h":
                size = budget.tensor(tuple(self.dims), 8, "recomposed tensor")
                work = self.parts[-1].dims[0] * (size + TERM_OVERHEAD)
                budget.charge("max_decomp_elements", work, "multiplications of decomposed tensors")
        except LimitError as error:
            error.unit = error.unit or self.label
            raise

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the decoded tensors."""
        return DTYPES[self.data_format]

    @property
    def is_block(self) -> bool:
        """Whether the unit is of NNR_PT_BLOCK."""
        return self.header.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK

    def decode(self, first_edition: bool, co_loc: Arrays, any_sig: Arrays) -> list[Rec]:
        """The Rec* tensors of the unit (7.3.2 to 7.3.5).

        Parameters
        ----------
        first_edition : bool
            Read profile 0 as the first edition's software wrote it (errata K1, K4).
        co_loc, any_sig : tuple of ndarray
            coLocParam and AnySigBeforeFlag of each part, or nothing.

        Returns
        -------
        list of Rec
            In coding order. DimensionShift() is done but for the weight of a block and for G and H, which are not
            complete yet.
        """
        try:
            if self.header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
                recs = [self._raw_float()]
            else:
                coded = self._coded(first_edition, co_loc, any_sig)
                recs = [self._rec(part, value) for part, value in zip(self.parts, coded, strict=True)]
            if self.role == "weight":
                recs[0].values = dimension_shift(recs[0].values, self.header.first_tensor_dimension_shift)
            return recs
        except BitstreamError as error:
            error.unit = error.unit or self.label
            if isinstance(error, PayloadError) and error.bit >= 0:
                error.bit += 8 * self.unit.payload_offset
            raise

    def _raw_float(self) -> Rec:
        payload = self.payload
        if len(payload) != 4 * prod(self.dims):
            raise PayloadError(f"{len(payload)} bytes of raw_float32_parameter are not {self.dims} (6.3.4.7)")
        values = cast_floats(np.frombuffer(payload, "<f4").reshape(self.dims), self.dtype)
        return Rec(self.parts[0].name, self.parts[0].role, values)

    def _coded(self, first_edition: bool, co_loc: Arrays, any_sig: Arrays) -> list[Coded]:
        syntaxes = [
            tensor_syntax(
                self.header,
                self.session,
                part,
                first_edition=first_edition,
                co_loc=self._reference(co_loc, i),
                any_sig=self._reference(any_sig, i),
            )
            for i, part in enumerate(self.parts)
        ]
        decoder = PayloadDecoder(self.payload, first_edition=first_edition)
        return code_payload(decoder, self.header, self.session, syntaxes, [None] * len(syntaxes))

    def _reference(self, arrays: Arrays, i: int) -> npt.NDArray[Any] | None:
        if not arrays:
            return None
        if len(arrays) != len(self.parts) or arrays[i].shape != self.parts[i].dims:
            raise MissingReferenceError(
                f"{self.label}: the updates before {self.names[0]!r} have not its shape {self.parts[i].dims} "
                "(10.3.4.2.2)"
            )
        return arrays[i]

    def _rec(self, part: Part, coded: Coded) -> Rec:
        header, levels = self.header, coded.levels
        if header.nnr_compressed_data_unit_payload_type == NNR_PT_INT:
            return Rec(part.name, part.role, integers(levels, self.data_format), levels)
        integer = levels
        if part.codebook:
            integer = look_up(levels, codebook_array(part.codebook, self.limits), part.codebook.cb_zero_offset)
        density = qp_density(self.session)
        step = step_size(coded.qp_value + cast(tuple[int, int], self.session.quantization)[1], density)
        return Rec(part.name, part.role, scale(integer, step, self.data_format), levels)
