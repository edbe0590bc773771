"""Reports of encoded tensors: sizes, errors, coding tools, and statistics of levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from ..cabac_ext.kernel import TensorSide
from ..compare import Loss
from ..constants import PayloadType
from ..model import Array
from ..syntax.structures import NnrCompressedDataUnitHeader
from .plan import TensorPlan

Levels = npt.NDArray[np.int32]

#: Maximum number of bins of a histogram.
BINS = 64
#: Share of the levels that may be outside a histogram, on each side.
TAIL = 0.001


@dataclass(frozen=True)
class Histogram:
    """Frequencies of levels.

    Parameters
    ----------
    first : int
        Smallest level of the first bin.
    width : int
        Levels in each bin.
    counts : tuple of int
        Number of levels in each bin; at most :data:`BINS` bins.
    below, above : int
        Number of levels below the first bin, and above the last one.
    """

    first: int
    width: int
    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(frozen=True)
class LevelStatistics:
    """Statistics of the levels of a tensor.

    Parameters
    ----------
    entropy : float
        Zero-order entropy in bits for each level.
    zeros : int
        Number of zeros.
    distinct : int
        Number of distinct levels.
    least, greatest : int
    histogram : Histogram
    """

    entropy: float
    zeros: int
    distinct: int
    least: int
    greatest: int
    histogram: Histogram


@dataclass(frozen=True)
class TensorStatistics:
    """Coding tools of a tensor, and statistics of its levels.

    Parameters
    ----------
    payload_type : PayloadType
    dq_flag, scan_order, cabac_unary_length_minus1 : int
        Syntax elements of the header of the unit.
    qp : int
    step : float
        stepSize; 0 if the tensor is not quantized.
    rate : float
        Cost of a bit in squared step sizes during quantization.
    codebook_size : int
        Number of codebook entries; 0 without a codebook.
    rows_skipped : int or None
        Number of all-zero rows coded as one flag; None without row skipping.
    shift_parameter_ids : dict of int to int
        Shift parameter ids other than 0, by ctxIdx.
    levels : LevelStatistics or None
        Statistics of the coded levels, before dependent quantization is resolved; None if the unit contains floats.
    other_bits : int
        Bits of the tensor that are stored without arithmetic coding in a separate unit.
    code : str
        KIND of the side-information code that restores the tensor; empty without a code.
    """

    payload_type: PayloadType
    dq_flag: int = 0
    scan_order: int = 0
    cabac_unary_length_minus1: int = 0
    qp: int = 0
    step: float = 0.0
    rate: float = 0.0
    codebook_size: int = 0
    rows_skipped: int | None = None
    shift_parameter_ids: dict[int, int] = field(default_factory=dict)
    levels: LevelStatistics | None = None
    other_bits: int = 0
    code: str = ""


@dataclass(frozen=True)
class TensorReport:
    """Statistics of one encoded tensor. The first tensor of a block, the weight, has the bytes of the block's unit.

    ``source_bytes`` and ``unit_bytes`` are sizes in bytes, ``seconds`` is the duration of coding without planning.
    ``statistics`` is None unless requested. ``loss`` is the error; None for integers, and for tensors that decoders do
    not return separately.
    """

    name: str
    parameters: int
    source_bytes: int
    unit_bytes: int
    seconds: float = 0.0
    statistics: TensorStatistics | None = None
    loss: Loss | None = None


def tensor_statistics(
    plan: TensorPlan,
    header: NnrCompressedDataUnitHeader,
    unit: Array,
    side: TensorSide | None = None,
    bits: Array | None = None,
) -> TensorStatistics:
    """Return statistics of a coded tensor, from its unit and the choices made for it.

    Parameters
    ----------
    plan : TensorPlan
    header : NnrCompressedDataUnitHeader
        Header of the tensor's unit.
    unit : ndarray of int32, or of floats
        Levels or floats in the unit.
    side : TensorSide or None
        None if the unit contains floats.
    bits : ndarray of float32 or None
        Words of the tensor's second unit.
    """
    payload_type = PayloadType(header.nnr_compressed_data_unit_payload_type)
    code = plan.code.KIND if plan.code else ""
    if side is None:
        return TensorStatistics(payload_type, code=code)
    levels: Levels = unit.astype(np.int32, copy=False)
    skipped = None
    if side.row_skip_enabled_flag:
        skipped = int((~levels.reshape(plan.dims[0], -1).any(axis=1)).sum())
    ids = side.shift_parameter_ids
    return TensorStatistics(
        payload_type,
        header.dq_flag,
        header.scan_order if prod(plan.dims[1:]) > 1 else 0,
        header.cabac_unary_length_minus1,
        plan.qp,
        plan.step,
        plan.rate,
        plan.codebook.codebook_size if plan.codebook else 0,
        skipped,
        {} if ids is None else {int(k): int(ids[k]) for k in np.flatnonzero(ids)},
        level_statistics(levels.reshape(-1)),
        8 * bits.nbytes if bits is not None else 0,
        code,
    )


def level_statistics(levels: Levels) -> LevelStatistics:
    """Return entropy and histogram of levels, shape (n,), n at least 1."""
    least, greatest = int(levels.min()), int(levels.max())
    if greatest - least < levels.size:
        counts = np.bincount(levels - np.int64(least))
        values = np.flatnonzero(counts)
        counts, values = counts[values], values + least
    else:
        values, counts = np.unique(levels.astype(np.int64), return_counts=True)
    share = counts / levels.size
    return LevelStatistics(
        float(-(share * np.log2(share)).sum()) + 0.0,  # of one value 0, not -0
        int(counts[values == 0].sum()),
        len(values),
        least,
        greatest,
        _histogram(values, counts),
    )


def _histogram(values: npt.NDArray[np.int64], counts: npt.NDArray[np.intp]) -> Histogram:
    """Return the histogram without the tails; ``values`` are distinct and ascending."""
    up_to = np.cumsum(counts)
    total = int(up_to[-1])
    low = int(values[np.searchsorted(up_to, TAIL * total, side="right")])
    high = int(values[np.searchsorted(up_to, (1 - TAIL) * total)])
    width = -(-(high - low + 1) // BINS)
    bins = (values - low) // width
    number = (high - low) // width + 1
    inside = (bins >= 0) & (bins < number)
    sums = np.zeros(number, np.int64)
    np.add.at(sums, bins[inside], counts[inside])
    return Histogram(low, width, tuple(sums.tolist()), int(counts[bins < 0].sum()), int(counts[bins >= number].sum()))
