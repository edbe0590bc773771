"""Rate and distortion of a planned tensor: estimated bytes, and the error of its decoded values.

The encoder compares codings by these numbers. It computes levels for them, but does not code the levels.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bitstream.topology_units import DEFLATED_BYTES
from ..cabac_ext import quantizer
from ..cabac_ext.kernel import TensorSyntax
from ..compare import Loss, is_matrix_shape
from ..constants import NNR_PT_FLOAT, NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..dtypes import stored_type
from ..model import Array
from ..sideinfo.narrow import as_floats
from ..sideinfo.record import FloatCode, GridCode, PaletteCode, TensorRecord
from ..tensor.quant import DTYPES, look_up, scale
from .coding_tools import UNARY_LENGTHS, CodedTensor, bits_of, choose_tools
from .distinct_values import CHUNK
from .facts import TensorFacts
from .plan import TensorPlan
from .quantization import contents, entries_of, quantize

Levels = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]

#: Bytes of a unit's size, types and flags; of a deflated record entry; of its code without arrays.
UNIT_BYTES, RECORD_BYTES, CODE_BYTES = 13, 16, 18
#: Bits of terminate_cabac(), and the average padding to a byte.
TERMINATION_BITS = 9
#: Bytes of integer_codebook() without differences.
CODEBOOK_BYTES = 5
#: Typical bytes of an entry point: offset, state, and bits since the previous one.
ENTRY_POINT_BYTES = 4
#: Number of values whose loss is measured at a time: they fit into a cache of 1 MB.
PART = 1 << 15


# --------------------------------------------------------------------------------------------------------------- rate
def estimated_bytes(facts: TensorFacts, plan: TensorPlan) -> float:
    """Estimate the bytes of the units and the record of a tensor from the probabilities of its levels.

    Raises ValueError for a code that does not fit the tensor.
    """
    if plan.payload_type == NNR_PT_RAW_FLOAT:
        return overhead(plan) + 4 * prod(plan.dims)
    return estimated(facts, plan)[0]


def estimated(facts: TensorFacts, plan: TensorPlan) -> tuple[float, Array, TensorSyntax | None]:
    """Return estimated bytes, the levels or floats of the unit, and the syntax of levels."""
    syntax = None
    if plan.payload_type != NNR_PT_RAW_FLOAT:
        syntax = unit_syntax(plan, facts.config.profile)
    unit, bits = contents(plan, facts.floats if plan.payload_type == NNR_PT_FLOAT else facts.array, syntax)
    extra = overhead(plan) + (bits.nbytes if bits is not None else 0)
    if syntax is None:
        return extra + unit.nbytes, unit, syntax
    bits_of_levels = bits_of(choose_tools([CodedTensor(plan, unit, syntax)])[1])
    return extra + (bits_of_levels + TERMINATION_BITS) / 8, unit, syntax


def binarized_bits(levels: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> float:
    """Return the entropy of the bins of levels (10.2.1.5) if bins are independent, for the best unary length.

    Parameters
    ----------
    levels : ndarray, shape (n,)
        Distinct levels, without a codebook.
    counts : ndarray of int64, shape (n,)
    """
    lengths = np.array(UNARY_LENGTHS)
    escapes = (1 << np.arange(32)) + 1 + lengths[:, None]  # least magnitude of each abs_level_greater_x2
    whole, nonzero = int(counts.sum()), int(counts[levels != 0].sum())
    bits = _bin_bits(whole, nonzero) + _bin_bits(nonzero, int(counts[levels < 0].sum()))
    costs = np.zeros(len(lengths))
    for some in (levels > 0, levels < 0):  # contexts depend on the sign
        magnitudes = np.abs(levels[some])
        order = np.argsort(magnitudes)
        sums = np.append(counts[some][order][::-1].cumsum()[::-1], 0)
        unary, above = (
            sums[np.searchsorted(magnitudes, least, sorter=order)] for least in (np.arange(1, lengths[-1] + 3), escapes)
        )
        costs += _bin_bits(unary[:-1], unary[1:]).cumsum()[lengths]
        ended = above[:, :-1] - above[:, 1:]
        costs += (_bin_bits(above[:, :-1], above[:, 1:]) + ended * np.arange(31)).sum(axis=1)
    return float(bits + costs.min())


def _bin_bits(bins: npt.ArrayLike, ones: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the entropy of bins, given the counts of bins and of ones."""
    counts = np.array([bins, ones, np.subtract(bins, ones)], np.float64)
    terms = counts * np.log2(np.maximum(counts, 1))
    bits: npt.NDArray[np.float64] = terms[0] - terms[1] - terms[2]
    return bits


def unit_syntax(plan: TensorPlan, profile: int) -> TensorSyntax:
    """Return the syntax of a tensor in a separate unit."""
    codebook = plan.codebook
    return TensorSyntax(
        plan.dims,
        general_profile_idc=profile,
        dq_flag=plan.dq_flag,
        cabac_unary_length_minus1=plan.tools.cabac_unary_length_minus1,
        scan_order=plan.tools.scan_order,
        codebook=(codebook.codebook_size, codebook.cb_zero_offset) if codebook else None,
    )


def overhead(plan: TensorPlan) -> float:
    """Estimate the bytes of headers and record entry."""
    total = float(UNIT_BYTES + len(plan.unit_id.encode()) + 2 * len(plan.dims))
    if plan.codebook:
        deltas = np.array([*plan.codebook.codebook_delta_left, *plan.codebook.codebook_delta_right], np.int64)
        total += CODEBOOK_BYTES + delta_bits(deltas, plan.codebook.codebook_egk) / 8
    if plan.record:
        total += RECORD_BYTES + code_bytes(plan.record)
    if plan.record and plan.record.bits:
        total += UNIT_BYTES + len(plan.record.bits.encode())
    return total


def code_bytes(record: TensorRecord, *, deflated: bool = True) -> float:
    """Estimate the bytes of code and repeats in the record: deflated base64 is about as large as its data."""
    if record.code is None:
        return 0.0
    code, said = record.code, b""
    if isinstance(code, PaletteCode):
        said = code.values
    elif isinstance(code, GridCode):
        said = code.scale
    elif isinstance(code, FloatCode):
        said = code.rows or b""
    total = CODE_BYTES + 1.02 * len(said)
    if (runs := record.repeats) is not None:
        numbers = str([runs.change, runs.distance, runs.kept, runs.length]).replace(" ", "").encode()
        total += CODE_BYTES + len(zlib.compress(numbers) if deflated and len(numbers) >= DEFLATED_BYTES else numbers)
    return total


def delta_bits(deltas: npt.NDArray[np.int64], order: int) -> int:
    """Return the bits of the differences between codebook entries, coded with this order (6.3.3.7)."""
    lengths = np.frexp((deltas >> order) + 1.0)[1]  # in bits
    return int((2 * lengths - 1 + order).sum())


# --------------------------------------------------------------------------------------------------------- distortion
@dataclass(frozen=True)
class Distortion:
    """Error of a tensor.

    Parameters
    ----------
    signal, noise : float
        Sums of squares of the values, and of their errors; equal on all machines.
    largest : float
        Largest absolute error.
    """

    signal: float
    noise: float
    largest: float

    def reaches(self, factor: float) -> bool:
        """Return whether the ratio of signal to noise is at least ``factor``."""
        return self.noise * factor <= self.signal


def distortion(facts: TensorFacts, plan: TensorPlan, levels: Levels | None = None) -> Distortion:
    """Return the error of a float tensor decoded according to a plan; 0 for a lossless plan.

    ``levels`` is the result of :func:`quant_param`, if known.
    """
    values = facts.floats.reshape(-1)
    if plan.code or plan.payload_type == NNR_PT_INT or not values.size:
        return Distortion(power(values), 0.0, 0.0)
    if levels is None and plan.payload_type != NNR_PT_RAW_FLOAT:
        levels = quant_param(plan, facts)
    signal = noise = largest = 0.0
    for start in range(0, values.size, CHUNK):
        before = values[start : start + CHUNK].astype(np.float64)
        with np.errstate(over="ignore"):
            if levels is None:
                got: Floats = before.astype(np.float32)
            else:
                got = scale(levels[start : start + CHUNK], plan.step, plan.data_format)
            errors = before - got.astype(facts.stored.dtype).astype(np.float64)
        signal, noise = signal + power(before), noise + power(errors)
        largest = max(largest, float(np.abs(errors).max()))
    return Distortion(signal, noise, largest)


def loss(plan: TensorPlan, array: Array, unit: Array, syntax: TensorSyntax | None) -> Loss | None:
    """Return the error of the decoded tensor, from its quantized unit; None for integers.

    Parameters
    ----------
    plan : TensorPlan
    array : ndarray
        Result of :func:`~nnr_codec.encoder.quantization.as_coded`. If it is divided, the error refers to the product
        with the divisor.
    unit : ndarray
        Levels or floats of the unit.
    syntax : TensorSyntax or None
        Syntax of the unit; None if it contains floats.
    """
    stored = stored_type(array.dtype)
    if stored is None or stored.kind != "f" or not array.size:
        return None
    values: npt.NDArray[Any] = array.reshape(-1)
    is_plain = stored.name == "float32" and not plan.codebook and plan.source.divisor is None
    if syntax is not None and plan.step and is_plain:
        levels: Any = unit.reshape(-1)
        found = quantizer.loss_of_levels(values, levels, plan.step, plan.dq_flag, syntax.block_scan)
        return Loss(*found, is_matrix_shape(array.shape))
    work = np.dtype("f8" if stored.itemsize == 8 else "f4")
    is_exact = bool(plan.code) or plan.payload_type == NNR_PT_INT
    decoded = None if is_exact else _decoded(plan, unit.reshape(-1), syntax)
    divisor = plan.source.divisor
    if divisor is not None:
        divisor = np.repeat(divisor.astype(work), array.size // len(divisor))
    signal, noise, nonzero, zeroed = 0.0, 0.0, 0, 0
    for start in range(0, array.size, PART):
        before = as_floats(stored, values[start : start + PART]).astype(work, copy=False)
        after = next(decoded).astype(work, copy=False) if decoded else before
        finite = np.isfinite(before) if decoded is None or syntax is None else None  # all other values are finite
        if finite is not None and not finite.all():
            before, after = (np.where(finite, some, work.type(0)) for some in (before, after))
        if divisor is not None:
            before, after = (some * divisor[start : start + PART] for some in (before, after))
        found = quantizer.loss(before, after)
        signal, noise = signal + found[0], noise + found[1]
        nonzero, zeroed = nonzero + found[2], zeroed + found[3]
    return Loss(signal, noise, nonzero, zeroed, is_matrix_shape(array.shape))


def _decoded(plan: TensorPlan, unit: npt.NDArray[Any], syntax: TensorSyntax | None) -> Iterator[Floats]:
    """Yield the decoded values of a unit's flat levels or floats, PART at a time."""
    dtype = plan.record.stored.dtype if plan.record else DTYPES[plan.data_format]
    state, scan = 0, syntax.block_scan if syntax else None
    if plan.dq_flag and scan:
        levels, unit = unit, np.empty_like(unit)
        quantizer.resolve(levels, unit, block_scan=scan)
    entries = None
    if book := plan.codebook:
        entries = entries_of(book)
    for start in range(0, unit.size, PART):
        part = unit[start : start + PART]
        if syntax is None:
            yield part.astype(dtype, copy=False)
            continue
        if plan.dq_flag and not scan:
            levels, part = part, np.empty_like(part)
            state = quantizer.resolve(levels, part, state)
        if book and entries is not None:
            part = look_up(part, entries, book.cb_zero_offset)
        yield scale(part, plan.step, plan.data_format).astype(dtype, copy=False)


def quant_param(plan: TensorPlan, facts: TensorFacts) -> Levels:
    """Return flat QuantParam: resolve dependent quantization, look up codebook entries (7.3.6, 9.2)."""
    syntax = unit_syntax(plan, facts.config.profile)
    levels = quantize(plan, facts.floats, syntax).reshape(-1)
    if plan.dq_flag:
        quantizer.resolve(levels, levels, block_scan=syntax.block_scan)
    if plan.codebook:
        book = plan.codebook
        entries = entries_of(book)
        levels = look_up(levels, entries, book.cb_zero_offset)
    return levels


def power(values: Floats) -> float:
    """Return the sum of squares of finite values; equal on all machines."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return quantizer.power(flat if flat.itemsize > 2 else flat.astype(np.float32))


# --------------------------------------------------------------------------------------------------------------- both
def least_cost(facts: TensorFacts, plans: Sequence[TensorPlan]) -> TensorPlan:
    """Return the first plan with the lowest sum of squared errors and cost of bits.

    Step size and rate of the first plan determine the cost of a bit.
    """
    if len(plans) == 1:
        return plans[0]
    worth = plans[0].rate * plans[0].step ** 2
    return min(plans, key=lambda plan: _lagrangian(facts, plan, worth))


def _lagrangian(facts: TensorFacts, plan: TensorPlan, worth: float) -> float:
    entry_points = unit_syntax(plan, facts.config.profile).entry_points if plan.tools.scan_order else 0
    taken = estimated_bytes(facts, plan) + ENTRY_POINT_BYTES * entry_points
    return distortion(facts, plan).noise + worth * 8 * taken
