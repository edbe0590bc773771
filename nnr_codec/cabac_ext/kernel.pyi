"""Coders of DeepCABAC payloads, clause 10 of ISO/IEC 15938-17:2024.

Several tensors can share one payload (NNR_PT_BLOCK, 7.3.5). The four coders therefore have the same methods, called in
this order: `quant_param`, `quant_tensor` for each tensor, `terminate`. They release the GIL; long calls handle pending
signals and call `cancellation.check_cancelled`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Levels = npt.NDArray[np.int32]

class TensorSyntax:
    """Header elements of one coded tensor.

    Parameters
    ----------
    dims : sequence of int
        Dimensions, all positive, with a product below 2**56. The first one is tensor2DHeight, the product of the others
        is tensor2DWidth.
    general_profile_idc, dq_flag, cabac_unary_length_minus1, scan_order : int
        Syntax elements of 6.3 and 10.2.
    codebook : (int, int) or None
        CbSize and CbZeroOffset. In profile 1 they limit the levels.
    parent_node_id_present_flag, temporal_context_modeling_flag : int
        Syntax elements. The first one makes hist_dep_sig_prob_enabled_flag present; without the second one, `co_loc` is
        ignored.
    first_edition : bool
        Read profile 0 as the software of the first edition wrote it (errata K1, K4).
    co_loc : ndarray of int32 or None
        coLocParam of each parameter, row-major (10.3.4.2.2).
    any_sig : ndarray of bool or uint8 or None
        AnySigBeforeFlag of each parameter, row-major.
    entry_point_list : ndarray of int64, shape (n, 3), or None
        Columns: cabac_offset_list, dq_state_list (ignored without dependent quantization) and BitOffsetList of the
        header. The decoder compares them with the payload. Ignored for a tensor without effective entry points
        (errata G2).
    entry_point_offset : int
        Row of `entry_point_list` with the first entry point of this tensor.

    Raises
    ------
    ValueError
        For values that a header cannot have, and for references of a different size or type.
    """

    dims: tuple[int, ...]
    size: int
    """Number of parameters."""
    can_skip_rows: bool
    """True if row_skip_enabled_flag is present (10.2.1.4)."""
    entry_points: int
    """Number of entry points: rows of blocks minus 1; 0 without a block scan."""
    rows_together: int
    """Height of a row of blocks; the last row of blocks may be lower. 1 without a block scan."""
    block_scan: tuple[int, int] | None
    """tensor2DWidth and the edge of blocks; None if the coding order is row-major (4.12, errata G2)."""
    entry_point_offset: int
    def __init__(
        self,
        dims: Sequence[int],
        *,
        general_profile_idc: int = 1,
        dq_flag: int = 0,
        cabac_unary_length_minus1: int = 9,
        scan_order: int = 0,
        codebook: tuple[int, int] | None = None,
        parent_node_id_present_flag: int = 0,
        temporal_context_modeling_flag: int = 0,
        first_edition: bool = False,
        co_loc: npt.NDArray[np.int32] | None = None,
        any_sig: npt.NDArray[np.bool_] | npt.NDArray[np.uint8] | None = None,
        entry_point_list: npt.NDArray[np.int64] | None = None,
        entry_point_offset: int = 0,
    ) -> None: ...
    def with_unary_length(self, cabac_unary_length_minus1: int) -> TensorSyntax:
        """Return a copy with another cabac_unary_length_minus1 and without a list of entry points, for an encoder."""

class TensorSide:
    """Payload elements of one tensor except its levels.

    `shift_parameter_ids` (uint8, values 0 to 8) has one entry for each context, with index ctxIdx: sig_flag 0..47,
    sign_flag 48..52, abs_level_greater_x2 53..84, row_skip_list 85 and shift_idx_minus_1_present_flag 86 (both unused),
    abs_level_greater_x from 87 on. `row_skip_list` is uint8 of shape (rows,), or None without row skipping.
    `entry_points` lists (IvlOffset, stateId, bits since the previous entry point) as decoded.
    """

    hist_dep_sig_prob_enabled_flag: int
    row_skip_enabled_flag: int
    shift_parameter_ids: npt.NDArray[np.uint8] | None
    row_skip_list: npt.NDArray[np.uint8] | None
    entry_points: Sequence[tuple[int, int, int]]
    def __init__(
        self,
        *,
        hist_dep_sig_prob_enabled_flag: int = 0,
        row_skip_enabled_flag: int = 0,
        shift_parameter_ids: npt.NDArray[np.uint8] | None = None,
        row_skip_list: npt.NDArray[np.uint8] | None = None,
        entry_points: Sequence[tuple[int, int, int]] = (),
    ) -> None: ...

class PayloadDecoder:
    """Decoder of a payload.

    Raises PayloadError, with the bit in the payload, if the payload is malformed. Raises ElementError, with the path of
    the element, if the payload contradicts the list of entry points in the header.
    """

    first_edition: bool
    @property
    def bit(self) -> int:
        """Number of bits read so far, including the 9 bits of IvlOffset."""

    def __init__(self, data: Buffer, *, first_edition: bool = False) -> None: ...
    def quant_param(self, bits: int, qp_value: int = 0) -> int:
        """Return qp_value, decoded as iae(bits) (10.2.1.3). The argument `qp_value` is ignored."""

    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels | None = None, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]:
        """Decode a tensor (10.2.1.4). `levels` and `side` are ignored.

        Returns QuantParam as int32 of shape `syntax.dims` (dependent quantization is resolved), and the other elements.
        """

    def head(self, syntax: TensorSyntax) -> LevelReader:
        """Decode the elements that precede the levels, and return a reader of the levels."""

    def scaled(self, syntax: TensorSyntax, step: float, out: npt.NDArray[np.float32]) -> None:
        """Decode a tensor and write its levels times `step` to `out`.

        Replaces `head`, `LevelReader.read` and `scale`, with less overhead for a small tensor. `out` is float32,
        C-contiguous and of the tensor's size; raises ValueError for another number of bytes.
        """

    def terminate(self) -> None:
        """Decode terminate_cabac() (10.2.1.2). The payload must end here."""

class LevelReader:
    """Reader of the levels of one tensor, from the first level or, with a list of entry points, from any entry point.

    Several threads may create forks and read them, if each reader is used by one thread.
    """

    decoder: PayloadDecoder
    """Decoder at the current position."""

    def read(self, levels: Levels) -> None:
        """Fill `levels`, int32 of shape (n,), with the next n values of QuantParam.

        In a block scan, n levels must end with a row of blocks; the entry point that follows is then checked. Raises
        ValueError if n levels cannot be read here, or if an earlier call raised. Raises PayloadError and ElementError
        as PayloadDecoder does.
        """

    def fork(self, row: int) -> LevelReader:
        """Return a reader, with its own decoder, at the entry point of this row of the tensor.

        Raises ElementError if the listed position is outside the payload, ValueError if the row has no entry point.
        """

    def side(self) -> TensorSide:
        """Return the decoded elements except the levels. A fork returns no entry points."""

class LaneJob:
    """The next ``out.size`` levels of a reader, for :func:`decode_lanes`.

    Parameters
    ----------
    reader : LevelReader
        Must suit lanes, see :func:`fits_lanes`. In a block scan, the levels must end with a row of blocks.
    out : ndarray
        Receives the levels. C-contiguous int32; with ``step``, float32, float16 or bfloat16.
    step : float
        If not 0, receives the levels times ``step``, rounded to float32, then to the type of ``out``; infinity for
        overflow.
    """

    reader: LevelReader
    size: int
    @property
    def done(self) -> bool:
        """True if all levels were decoded; ``reader`` is then behind them. False after any error."""

    def __init__(self, reader: LevelReader, out: npt.NDArray[Any], step: float = 0) -> None: ...

def lane_engines() -> list[str]:
    """Return the engines of lanes that this processor can run, fastest first: of "avx512" (AVX-512 VBMI) and "avx2"."""

def fits_lanes(reader: LevelReader) -> bool:
    """Return whether levels of the tensor can be decoded in lanes.

    The tensor must have no codebook that limits its levels, no contexts that refer to earlier updates, and a unary
    length of at most 32.
    """

def decode_lanes(jobs: list[LaneJob], few: int | None = None, engine: str | None = None) -> tuple[int, int]:
    """Decode jobs side by side, see docs/explanation/lanes.md. Lanes begin with the first jobs.

    Parameters
    ----------
    jobs : list of LaneJob
    few : int
        When fewer jobs are left, scalar code completes them. The default is the number below which scalar code is
        faster: 4 for "avx512", 8 for "avx2".
    engine : str
        One of :func:`lane_engines`, by default the first.

    Returns the sums over all steps of the active and of all lanes. Raises ValueError if the processor cannot run the
    engine.
    """

class PayloadTracer:
    """Decoder that records every bin. It is slower than PayloadDecoder, and does not check the end of the payload."""

    first_edition: bool
    def __init__(self, data: Buffer, *, first_edition: bool = False) -> None: ...
    def quant_param(self, bits: int, qp_value: int = 0) -> int: ...
    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels | None = None, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]: ...
    def terminate(self) -> None: ...
    def bins(self) -> npt.NDArray[np.int32]:
        """Return the recorded bins as int32 of shape (n, 6), one bin in each row.

        Columns: ctxIdx (-1: bypass, -2: terminate), bin, and the values after the bin of IvlCurrRange, IvlOffset,
        pStateIdx0 and pStateIdx1 of the context (0 for a bin without a context).
        """

class PayloadEncoder:
    """Encoder of a payload.

    `run` may be the `map` method of a thread pool. It then codes rows of blocks in parallel, about 2**17 parameters in
    each task; the default codes them in place. The payload does not depend on it.
    """

    def __init__(self, *, run: Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]] = ...) -> None: ...
    def quant_param(self, bits: int, qp_value: int) -> int:
        """Code qp_value as iae(bits) (10.2.1.3) and return it. Raises EncodeError if it does not fit."""

    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]:
        """Code a tensor (10.2.1.4). `levels` are integers, before dependent quantization is resolved (10.2.1.5).

        Without `side`, no flag is set and all shift parameter ids are 0. With row_skip_enabled_flag, rows of zeros are
        skipped; `side.row_skip_list` is ignored. Returns `levels` and the coded elements. Raises EncodeError if the
        syntax cannot represent the levels or the elements.
        """

    def terminate(self) -> None:
        """Code terminate_cabac() (10.2.1.2)."""

    def getvalue(self) -> bytes:
        """Return the payload. Call `terminate` first."""

    def entry_points(self) -> list[tuple[int, int, int]]:
        """Return IvlOffset, stateId and BitOffsetList for each entry point of all tensors. Call `terminate` first."""

class PayloadEstimator:
    """Estimator of the size of the payload that a PayloadEncoder would write."""

    @property
    def bits(self) -> float:
        """Estimated size in bits."""
    def __init__(self) -> None: ...
    def quant_param(self, bits: int, qp_value: int) -> int: ...
    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]: ...
    def terminate(self) -> None: ...

def measure(
    syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None, *, choose: bool = True, sample: int = ...
) -> tuple[npt.NDArray[np.uint8], float]:
    """Return shift parameter ids for `levels`, and the estimated size of the coded tensor in bits.

    The estimate uses about `sample` levels (default 32,768) in pieces of 2,048 that are spread over the tensor. If the
    tensor is not larger than `sample`, it uses all levels, like PayloadEstimator. With `choose`,
    the ids are chosen for a small size, including the bits of the ids; otherwise the ids of `side` are used. Raises
    EncodeError as PayloadEncoder does, ValueError for a `sample` below 1.
    """

def choose_shift_parameter_ids(
    syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None, *, sample: int = ...
) -> npt.NDArray[np.uint8]:
    """Return the ids that :func:`measure` chooses, in the order of TensorSide."""

def magnitude_bits(levels: Levels, last: int, *, sample: int = ...) -> list[float]:
    """Return the estimated bits of the magnitudes for each cabac_unary_length_minus1 from 0 to `last` (at most 255).

    Counts abs_level_greater_x, abs_level_greater_x2 and abs_remainder, from a histogram of a sample as in
    :func:`measure`.
    """

def has_zero_rows(levels: Levels) -> bool:
    """Return True if at least one index of the first dimension has only zeros."""

def scale(levels: Levels, step: float, out: npt.NDArray[np.float32]) -> None:
    """Write levels times the step size to `out` (RecParam of TENSOR_FLOAT, 7.3.6). Both have shape (n,).

    Level and step size are rounded to float32 before the multiplication. Raises ValueError if the lengths differ.
    """
