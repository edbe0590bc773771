"""Composition of the payload of a compressed data unit, shared by decoder and encoder (7.3.2, 7.3.3, 7.3.5).

Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..cabac_ext.kernel import TensorSide, TensorSyntax
from ..constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_DC, NNR_CPT_LS, NNR_PT_BLOCK, NNR_PT_INT
from ..errors import ElementError
from ..limits import Limits
from ..rules import Requirement
from ..syntax import Session
from ..syntax.structures import IntegerCodebook, NnrCompressedDataUnitHeader
from ..tensor.quant import codebook_values

Levels = npt.NDArray[np.int32]

#: Roles of the tensors to which scan_order applies.
SCANNED = ("weight", "g", "h")
#: Bit offset beyond the end of any payload.
BEYOND = 1 << 60


class PayloadCoder(Protocol):
    """Methods shared by PayloadDecoder, PayloadEncoder and PayloadEstimator."""

    def quant_param(self, bits: int, qp_value: int) -> int:
        """Code quant_param(), 10.2.1.3."""

    def quant_tensor(self, syntax: TensorSyntax, levels: Any, side: TensorSide | None) -> tuple[Levels, TensorSide]:
        """Code flags, shift parameter ids and quant_tensor(), 10.2.1.4 to 10.2.1.6, in the order of errata A1."""

    def terminate(self) -> None:
        """Code terminate_cabac(), 10.2.1.2."""


class PayloadPart(NamedTuple):
    """Tensor of a payload.

    Parameters
    ----------
    name : str
        Its topology element id; empty if the header has none for it.
    role : str
        ``weight``, ``g``, ``h``, ``ls``, ``beta``, ``gamma``, ``mean``, ``var`` or ``bias``.
    dims : tuple of int
        Its coded dimensions.
    codebook : IntegerCodebook or None
    """

    name: str
    role: str
    dims: tuple[int, ...]
    codebook: IntegerCodebook | None = None


class PayloadTensor(NamedTuple):
    """Tensor of a payload to be coded; a decoder needs only its syntax."""

    syntax: TensorSyntax
    levels: npt.NDArray[Any] | None = None
    qp_value: int = 0
    side: TensorSide | None = None


def parts(header: NnrCompressedDataUnitHeader, session: Session) -> list[PayloadPart]:
    """Return the tensors of an NDU in coding order, which differs from the order of their ids (7.3.5, 6.4.3.7).

    Raises ElementError if the ids do not match compressed_parameter_types.
    """
    names, dims = session.names(header), session.coded_dimensions(header)
    codebook, types = header.codebook if header.codebook_present_flag else None, header.compressed_parameter_types
    if header.nnr_compressed_data_unit_payload_type != NNR_PT_BLOCK:
        role = ("h" if session.g_header else "g") if types & NNR_CPT_DC else "weight"
        return [PayloadPart(names[0], role, tuple(dims[0]), codebook)]
    if types & NNR_CPT_DC:
        second = header.codebook_dc if header.codebook_present_flag else None
        weights = [PayloadPart("", "g", tuple(dims[0]), codebook), PayloadPart("", "h", tuple(dims[1]), second)]
    else:
        weights = [PayloadPart("", "weight", tuple(dims[0]), codebook)]
    batch_norm = ["beta", "gamma", "mean", "var"] if types & NNR_CPT_BN else []
    scaling, bias = ["ls"] if types & NNR_CPT_LS else [], ["bias"] if types & NNR_CPT_BI else []
    listed = [*(part.role for part in weights), *scaling, *batch_norm, *bias]
    if len(names) != len(listed):
        raise ElementError(
            f"{len(names)} topology elements are listed for the {len(listed)} tensors of this block",
            clause="6.4.3.7",
            path="nnr_compressed_data_unit_header.topology_elem_id_list",
            rule=Requirement.BLOCK_ELEMENTS,
        )
    name = dict(zip(listed, names, strict=True))
    length = tuple(session.tensor_dimensions(header)[:1])  # before the dimension shift (7.3.5)
    return [
        *(PayloadPart(name[role], role, length) for role in (*scaling, *bias, *batch_norm)),
        *(PayloadPart(name[part.role], part.role, part.dims, part.codebook) for part in weights),
    ]


def tensor_syntax(
    header: NnrCompressedDataUnitHeader,
    session: Session,
    part: PayloadPart,
    *,
    first_edition: bool = False,
    co_loc: Levels | None = None,
    any_sig: npt.NDArray[np.bool_] | None = None,
    entry_points: npt.NDArray[np.int64] | None = None,
    entry_point_offset: int = 0,
) -> TensorSyntax:
    """Return the coding parameters of one part for the kernel. Entry points are checked if they are given."""
    codebook = part.codebook
    return TensorSyntax(
        part.dims,
        general_profile_idc=session.general_profile_idc,
        dq_flag=header.dq_flag,
        cabac_unary_length_minus1=header.cabac_unary_length_minus1,
        scan_order=header.scan_order if part.role in SCANNED else 0,
        codebook=(codebook.codebook_size, codebook.cb_zero_offset) if codebook else None,
        parent_node_id_present_flag=header.parent_node_id_present_flag,
        temporal_context_modeling_flag=header.temporal_context_modeling_flag,
        first_edition=first_edition,
        co_loc=co_loc,
        any_sig=any_sig,
        entry_point_list=entry_points,
        entry_point_offset=entry_point_offset,
    )


def entry_points(
    header: NnrCompressedDataUnitHeader, parts: Sequence[PayloadPart]
) -> tuple[npt.NDArray[np.int64] | None, list[int]]:
    """Return the lists of entry points, and the index of the first one of each part (6.4.3.7, errata G4, G5).

    Returns
    -------
    ndarray of int64, shape (n, 3), or None
        cabac_offset_list, dq_state_list (0 without dependent quantization), BitOffsetList; None without entry points.
    list of int
    """
    if not header.scan_order or not header.cabac_offset_list:
        return None, [0] * len(parts)
    lists = np.zeros((len(header.cabac_offset_list), 3), np.int64)
    lists[:, 0] = header.cabac_offset_list
    if header.dq_flag:
        lists[:, 1] = header.dq_state_list
    bits = accumulate([header.bit_offset_delta1, *header.bit_offset_delta2])
    lists[:, 2] = [max(-BEYOND, min(bit, BEYOND)) for bit in bits]
    edge = 4 << header.scan_order
    rows = [-(-part.dims[0] // edge) if part.role in SCANNED else 1 for part in parts]
    return lists, list(accumulate((n - 1 for n in rows[:-1]), initial=0))


def code_payload(
    coder: PayloadCoder,
    header: NnrCompressedDataUnitHeader,
    session: Session,
    tensors: Sequence[PayloadTensor],
) -> None:
    """Code the tensors of an NDU in sequence with one arithmetic codeword."""
    for one in tensors:
        code_qp_value(coder, header, session, one.qp_value)
        coder.quant_tensor(one.syntax, one.levels, one.side)
    coder.terminate()


def code_qp_value(coder: PayloadCoder, header: NnrCompressedDataUnitHeader, session: Session, qp_value: int = 0) -> int:
    """Code quant_param() of a part, unless the payload has integers (7.3.2, 7.3.3)."""
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_INT:
        return qp_value
    return coder.quant_param(6 + quantization(session)[0], qp_value)


def quantization(session: Session) -> tuple[int, int]:
    """Return QpDensity and QuantizationParameter.

    Raises ElementError if no active parameter set has them (errata F4).
    """
    active = session.quantization
    if active is None:
        raise ElementError(
            "no active parameter set has a qp_density, so levels of floats have no step size",
            clause="6.4.4.3",
            rule=Requirement.QUANTIZATION_PARAMETERS,
        )
    return active


def codebook_array(codebook: IntegerCodebook, limits: Limits) -> npt.NDArray[np.int32]:
    """Return the codebook entries, shape (codebook_size,).

    Raises ElementError if CbZeroOffset or an entry is out of range.
    """
    size, zero = codebook.codebook_size, codebook.cb_zero_offset
    limits.check("max_codebook", size, "codebook_size")
    if not 0 <= zero < size:
        raise ElementError(
            f"CbZeroOffset {zero} is not an entry of a codebook of {size}",
            clause="6.4.3.7",
            rule=Requirement.CODEBOOK_OFFSET,
        )
    return codebook_values(codebook.codebook_zero_value, codebook.codebook_delta_left, codebook.codebook_delta_right)
