"""DeepCABAC, clause 10 of ISO/IEC 15938-17:2024.

Four payload coders share one set of methods, since several tensors share one arithmetic code string (NNR_PT_BLOCK,
7.3.5): `quant_param`, `quant_tensor` for each tensor, then `terminate`. All of them release the GIL.
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
        Extents, all positive; the first one counts the rows (tensor2DHeight).
    codebook : (int, int) or None
        CbSize and CbZeroOffset; in profile 1 they bound the levels.
    co_loc : ndarray of int32 or None
        coLocParam of each parameter, row-major (10.3.4.2.2).
    any_sig : ndarray of bool or uint8 or None
        AnySigBeforeFlag of each parameter, row-major.
    first_edition : bool
        Read as the first edition's software wrote profile 0 (errata K1, K4).
    entry_point_list : ndarray of int64, shape (n, 3), or None
        cabac_offset_list, dq_state_list (or anything) and BitOffsetList of the header. What a decoder meets has to
        agree with them. Not looked at where a tensor has no entry points that count (errata G2).
    entry_point_offset : int
        Which of them is this tensor's first.

    Raises ValueError for values that no header can carry.
    """

    dims: tuple[int, ...]
    size: int
    can_skip_rows: bool
    entry_points: int
    rows_together: int
    """Rows of a row of blocks, of which only the last one may have fewer; 1 without a block scan."""
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
        """The same tensor with another cabac_unary_length_minus1, for an encoder."""

class TensorSide:
    """Payload elements of one tensor other than its levels.

    `shift_parameter_ids` has one entry for each context: sig_flag 0..47, sign_flag 48..52, abs_level_greater_x2 53..84,
    row_skip_list 85, shift_idx_minus_1_present_flag 86 (both unused), abs_level_greater_x 87... `entry_points` are
    (IvlOffset, stateId, bits since the previous one), as a decoder met them.
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
    """Decodes a payload; raises PayloadError (bit: in the payload) where it is malformed.

    Where it contradicts the list of entry points: ElementError (path: the element of the list).
    """

    first_edition: bool
    @property
    def bit(self) -> int:
        """Bits read so far, the 9 of the register included."""

    def __init__(self, data: Buffer, *, first_edition: bool = False) -> None: ...
    def quant_param(self, bits: int, qp_value: int = 0) -> int:
        """qp_value as iae(bits), 10.2.1.3."""

    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels | None = None, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]:
        """QuantParam of shape `syntax.dims` (dependent quantization resolved, 10.2.1.4), and the rest."""

    def head(self, syntax: TensorSyntax) -> LevelReader:
        """Decode what precedes the levels; `quant_tensor` in steps."""

    def scaled(self, syntax: TensorSyntax, step: float, out: npt.NDArray[np.float32]) -> None:
        """`head`, `LevelReader.read` of all levels and `scale` in one, for small tensors; `out` is in C order."""

    def terminate(self) -> None:
        """terminate_cabac(), 10.2.1.2; the payload must end here."""

class LevelReader:
    """The levels of one tensor, in order or, with a list of entry points, from any of them on.

    Forks may be made and read in several threads, each reader by one of them.
    """

    decoder: PayloadDecoder
    """Stands where reading has come to."""

    def read(self, levels: Levels) -> None:
        """Fill `levels`, of shape (n,), with the next n QuantParam: in a block scan, those of whole rows of blocks.

        The entry point at their end is checked. A reader that has raised cannot go on. Raises ValueError where n levels
        cannot be read.
        """

    def fork(self, row: int) -> LevelReader:
        """A reader, with a decoder of its own, at the entry point of this row.

        Raises ElementError when the list's place is not in the payload, ValueError when the row has no entry point.
        """

    def side(self) -> TensorSide:
        """Return the elements read besides levels; a fork keeps no entry points."""

class PayloadTracer:
    """A decoder that records every bin; it checks less than PayloadDecoder and is slower."""

    first_edition: bool
    def __init__(self, data: Buffer, *, first_edition: bool = False) -> None: ...
    def quant_param(self, bits: int, qp_value: int = 0) -> int: ...
    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels | None = None, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]: ...
    def terminate(self) -> None: ...
    def bins(self) -> npt.NDArray[np.int32]:
        """Array of shape (n, 6): context number (-1 bypass, -2 terminate), bin, IvlCurrRange, IvlOffset, and the
        context's pStateIdx0 and pStateIdx1, all after the bin."""

class PayloadEncoder:
    """Encodes a payload.

    `run` may be the `map` of an Executor with threads: rows of blocks are coded by it, about 2**17 parameters a call.
    The payload is the same.
    """

    def __init__(self, *, run: Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]] = ...) -> None: ...
    def quant_param(self, bits: int, qp_value: int) -> int:
        """Raises EncodeError when qp_value does not fit."""

    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]:
        """Code levels of 10.2.1.5 (before dependent quantization is resolved).

        Without `side` no flag is set and all ids are 0. With row_skip_enabled_flag the rows of zeros are skipped.
        Raises EncodeError for levels that the syntax cannot hold.
        """

    def terminate(self) -> None: ...
    def getvalue(self) -> bytes:
        """The payload; call it after `terminate`."""

    def entry_points(self) -> list[tuple[int, int, int]]:
        """Of each entry point of all tensors: IvlOffset, stateId and BitOffsetList; call it after `terminate`."""

class PayloadEstimator:
    """Adds up what a PayloadEncoder would write."""

    @property
    def bits(self) -> float: ...
    def __init__(self) -> None: ...
    def quant_param(self, bits: int, qp_value: int) -> int: ...
    def quant_tensor(
        self, syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None
    ) -> tuple[Levels, TensorSide]: ...
    def terminate(self) -> None: ...

def measure(
    syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None, *, choose: bool = True, sample: int = ...
) -> tuple[npt.NDArray[np.uint8], float]:
    """The shift parameter ids that code `levels` cheapest, and about the bits that tensor and head then take.

    Up to `sample` levels (by default 32,768) are looked at, in pieces of 2,048 all over the tensor; of smaller tensors
    all: then each id is worth its flags, and the bits are those of PayloadEstimator. With `choose` the ids in `side` do
    not matter; without, they are those that are returned. Raises EncodeError as PayloadEncoder does.
    """

def choose_shift_parameter_ids(
    syntax: TensorSyntax, levels: Levels, side: TensorSide | None = None, *, sample: int = ...
) -> npt.NDArray[np.uint8]:
    """The ids of `measure`, laid out as in TensorSide."""

def magnitude_bits(levels: Levels, last: int, *, sample: int = ...) -> list[float]:
    """About the bits of what follows sig_flag and sign_flag with each cabac_unary_length_minus1 from 0 to `last`.

    From a histogram of a sample, as in `measure`.
    """

def has_zero_rows(levels: Levels) -> bool:
    """Return whether an index of the first dimension has only zeros."""

def coding_order(syntax: TensorSyntax) -> npt.NDArray[np.int64]:
    """Row-major index of each parameter in coding order: TensorIndex() and IndexToXY(), 4.12."""

def scale(levels: Levels, step: float, out: npt.NDArray[np.float32]) -> None:
    """Write levels times the step (RecParam of TENSOR_FLOAT, 7.3.6), both rounded to float32, to `out`, shape (n,)."""
