"""About how many bytes a tensor takes: what the encoder compares ways of coding by."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from ..cabac_ext.kernel import TensorSyntax
from ..constants import NNR_PT_FLOAT, NNR_PT_RAW_FLOAT
from ..model import Array
from ..sideinfo.record import Code, FloatCode, GridCode, PaletteCode
from .plan import Subject, TensorPlan
from .quantize import contents
from .tools import Part, bits_of, choose_tools

#: Of a unit's size, types and flags; of a record's entry, deflated, and of what its name adds where others are alike.
UNIT_BYTES, RECORD_BYTES, CODE_BYTES = 13, 16, 18
#: Of terminate_cabac(), and half of the bits up to the next byte.
TERMINATION_BITS = 9
#: Of integer_codebook() beside its differences.
CODEBOOK_BYTES = 5


def measured(subject: Subject, plan: TensorPlan) -> float:
    """Bytes of the units and the record of a tensor, as the probabilities of its levels have it.

    Raises ValueError for a code that the tensor does not fit.
    """
    if plan.payload_type == NNR_PT_RAW_FLOAT and not plan.code:
        return overhead(plan) + 4 * prod(plan.dims)
    return coded(subject, plan)[0]


def coded(subject: Subject, plan: TensorPlan) -> tuple[float, Array, TensorSyntax | None]:
    """The bytes of :func:`measured`, the levels or floats of the tensor's unit, and the syntax of levels."""
    syntax = None
    if plan.payload_type != NNR_PT_RAW_FLOAT:
        syntax = unit_syntax(plan, subject.config.profile)
    unit, bits = contents(plan, subject.floats if plan.payload_type == NNR_PT_FLOAT else subject.array, syntax)
    extra = overhead(plan) + (bits.nbytes if bits is not None else 0)
    if syntax is None:
        return extra + unit.nbytes, unit, syntax
    parts = [Part(plan, unit, syntax)]
    return extra + (bits_of(parts, choose_tools(parts)) + TERMINATION_BITS) / 8, unit, syntax


def unit_syntax(plan: TensorPlan, profile: int) -> TensorSyntax:
    """What the header of a tensor's own unit will say."""
    codebook = plan.codebook
    return TensorSyntax(
        plan.dims,
        general_profile_idc=profile,
        dq_flag=plan.dq_flag,
        cabac_unary_length_minus1=plan.options.cabac_unary_length_minus1,
        scan_order=plan.options.scan_order,
        codebook=(codebook.codebook_size, codebook.cb_zero_offset) if codebook else None,
    )


def overhead(plan: TensorPlan) -> float:
    """Bytes beside levels and floats: headers, and what the record says."""
    total = float(UNIT_BYTES + len(plan.unit_id.encode()) + 2 * len(plan.dims))
    if plan.codebook:
        deltas = np.array([*plan.codebook.codebook_delta_left, *plan.codebook.codebook_delta_right], np.int64)
        total += CODEBOOK_BYTES + delta_bits(deltas, plan.codebook.codebook_egk) / 8
    if plan.record:
        total += RECORD_BYTES
    if plan.code:
        total += code_bytes(plan.code)
    if plan.record and plan.record.bits:
        total += UNIT_BYTES + len(plan.record.bits.encode())
    return total


def code_bytes(code: Code) -> float:
    """Bytes of a code in the record: of base64, deflating leaves little more than what it says."""
    said = b""
    if isinstance(code, PaletteCode):
        said = code.values
    elif isinstance(code, GridCode):
        said = code.scale
    elif isinstance(code, FloatCode):
        said = code.rows or b""
    return CODE_BYTES + 1.02 * len(said)


def delta_bits(deltas: npt.NDArray[np.int64], order: int) -> int:
    """Bits of the differences of a codebook's entries, which are codes of this order (6.3.3.7)."""
    lengths = np.frexp((deltas >> order) + 1.0)[1]  # in bits
    return int((2 * lengths - 1 + order).sum())
