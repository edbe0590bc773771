"""Writer of compressed data units with given integers (ISO/IEC 15938-17:2024, 6.3.3.7, 7.3).

It makes no choices. Headers are written as given, even if the semantics forbid their values; only the lists of entry
points are computed, because they depend on the payload. Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext.kernel import PayloadEncoder, TensorSide, TensorSyntax
from ..constants import NNR_NDU, NNR_PT_RAW_FLOAT, STATE_TRANS_TAB
from ..errors import EncodeError, NnrError
from ..syntax import BitCounter, BitWriter, Session, Writer
from ..syntax.structures import NnrCompressedDataUnitHeader, NnrUnitHeader
from .payload import PayloadPart, PayloadTensor, code_payload, parts, tensor_syntax
from .units import with_size, write_unit

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A function like ``map``: calls a function for each number and yields the results in order.
Run = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]

#: Largest number of parts that partial_data_counter can count (6.4.3.1).
MAX_PARTS = 255


def write_ndu(
    header: NnrCompressedDataUnitHeader,
    levels: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
    session: Session | None = None,
    *,
    qp: int | Sequence[int] = 0,
    sides: Sequence[TensorSide | None] = (),
    resolved: bool = False,
    co_loc: Sequence[npt.NDArray[np.int32]] = (),
    any_sig: Sequence[npt.NDArray[np.bool_]] = (),
    pieces: int = 1,
    max_unit_size: int | None = None,
    run: Run = map,
) -> list[bytes]:
    """Write a compressed data unit with the given levels.

    Parameters
    ----------
    header : NnrCompressedDataUnitHeader
        Header of the unit. It is not changed; lists of entry points are recomputed if present.
    levels : ndarray, or sequence of ndarray
        Integers of each tensor of the unit in coding order (ls, bias, beta, gamma, mean, var, then weight, or g and h),
        in its coded shape or flat in row-major order; one array stands for a sequence of one. For NNR_PT_RAW_FLOAT,
        float values, which are rounded to float32.
    session : Session, optional
        Parsing state after the previous units; it is updated. H of a decomposed tensor needs the session in which G was
        written. Default: profile 1, QpDensity 2, no parent signalling.
    qp : int or sequence of int
        qp_value of all tensors, or one for each.
    sides : sequence of TensorSide or None
        Flags and shift parameter ids of each tensor; by default all are 0.
    resolved : bool
        For dq_flag 1. False: levels of int_param() (10.2.1.5), as in the bitstream, before dependent
        quantization doubles them (10.2.1.4). True: levels are QuantParam, as decoders output them.
    co_loc, any_sig : sequence of ndarray
        coLocParam and AnySigBeforeFlag of each tensor (10.3.4.2.2), in its coded shape.
    pieces : int
        Number of units among which the payload is divided (6.4.3.1).
    max_unit_size : int, optional
        Maximum size of a unit in bytes, including size field and header; the payload is divided into as many units as
        needed.
    run : callable
        ``map``, or the ``map`` of an Executor with threads, which then codes rows of blocks (scan_order above 0) in
        parallel.

    Returns
    -------
    list of bytes
        The unit, or its parts in order.

    Raises
    ------
    EncodeError
        The levels do not match the header, the header does not match its syntax table (WriteError), or the payload does
        not fit into 255 units.
    """
    if session is None:
        session = Session(general_profile_idc=1, has_mps=True, mps_quantization=(2, 0))
    arrays = [levels] if isinstance(levels, np.ndarray) else levels
    header, payload = code_levels(
        header, arrays, session, qp=qp, sides=sides, resolved=resolved, co_loc=co_loc, any_sig=any_sig, run=run
    )
    return write_payload(header, payload, session, pieces=pieces, max_unit_size=max_unit_size)


def code_levels(
    header: NnrCompressedDataUnitHeader,
    levels: Sequence[npt.NDArray[Any]],
    session: Session,
    *,
    qp: int | Sequence[int] = 0,
    sides: Sequence[TensorSide | None] = (),
    resolved: bool = False,
    co_loc: Sequence[npt.NDArray[np.int32]] = (),
    any_sig: Sequence[npt.NDArray[np.bool_]] = (),
    run: Run = map,
) -> tuple[NnrCompressedDataUnitHeader, Buffer]:
    """Return the payload of a unit, and its header with the entry points of the payload; see :func:`write_ndu`."""
    try:
        tensors = parts(header, session)
        qps = qp if isinstance(qp, Sequence) else [qp] * len(tensors)
        optional = {"sides": sides, "co_loc": co_loc, "any_sig": any_sig}
        for what, given in {"levels": levels, "qp": qps, **optional}.items():
            if len(given) != len(tensors) and (given or what not in optional):
                raise EncodeError(f"{what} are given for {len(given)} of the {len(tensors)} tensors of the unit (7.3)")
        shaped = [_shaped(array, part) for array, part in zip(levels, tensors, strict=True)]
        if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
            if shaped[0].dtype.kind != "f":
                raise EncodeError(f"raw parameters must be floats, got {shaped[0].dtype} (7.3.4)")
            with np.errstate(over="raise"):
                return header, np.ascontiguousarray(shaped[0], "<f4").reshape(-1).data.cast("B")
        syntaxes = [
            tensor_syntax(
                header,
                session,
                part,
                co_loc=co_loc[k] if co_loc else None,
                any_sig=any_sig[k] if any_sig else None,
            )
            for k, part in enumerate(tensors)
        ]
        if resolved and header.dq_flag:
            shaped = [coded_levels(array, syntax) for array, syntax in zip(shaped, syntaxes, strict=True)]
        coded = [
            PayloadTensor(syntax, array, qps[k], sides[k] if sides else None)
            for k, (syntax, array) in enumerate(zip(syntaxes, shaped, strict=True))
        ]
        return code_tensors(header, coded, session, run=run)
    except EncodeError:
        raise
    except FloatingPointError:
        raise EncodeError("values exceed the range of float32, the type of raw parameters (7.3.4)") from None
    except NnrError as error:
        raise error.converted(EncodeError) from error
    except (ValueError, AttributeError) as error:  # raised by the header: a value out of range, or a missing element
        raise EncodeError(str(error)) from error


def code_tensors(
    header: NnrCompressedDataUnitHeader,
    tensors: Sequence[PayloadTensor],
    session: Session,
    *,
    run: Run = map,
) -> tuple[NnrCompressedDataUnitHeader, bytes]:
    """Return the header of a unit, with the entry points of these tensors, and their payload.

    Raises EncodeError for levels that a syntax cannot represent.
    """
    coder = PayloadEncoder(run=run)
    code_payload(coder, header, session, tensors)
    return _with_entry_points(header, session, coder), coder.getvalue()


def _shaped(array: npt.NDArray[Any], part: PayloadPart) -> npt.NDArray[Any]:
    """Return the integers of one tensor in its coded shape."""
    array = np.asarray(array)
    if array.shape not in (part.dims, (prod(part.dims),)):
        raise EncodeError(f"levels of shape {array.shape} are given for {part.role} of shape {part.dims}")
    return array.reshape(part.dims)


def coding_order(syntax: TensorSyntax) -> npt.NDArray[np.int64]:
    """Return the row-major index of each parameter in coding order: TensorIndex() and IndexToXY() (4.12)."""
    order = np.arange(syntax.size)
    if not syntax.block_scan:
        return order
    width, block = syntax.block_scan
    rows, columns = range(0, syntax.dims[0], block), range(0, width, block)
    matrix = order.reshape(-1, width)
    return np.concatenate([matrix[y : y + block, x : x + block].reshape(-1) for y in rows for x in columns])


def coded_levels(quant_param: npt.NDArray[Any], syntax: TensorSyntax) -> npt.NDArray[np.int64]:
    """Return the levels that dependent quantization resolves to ``quant_param`` (10.2.1.4).

    Raises EncodeError if there are none: values are even in states 0, 2, 4, 6, and odd or 0 in the other states.
    """
    if quant_param.dtype.kind not in "iu":
        raise EncodeError(f"QuantParam of type {quant_param.dtype} is not an integer")
    order, state = coding_order(syntax), 0
    levels = np.empty(quant_param.size, np.int64)
    for index, value in zip(order.tolist(), quant_param.reshape(-1)[order].tolist(), strict=True):
        odd = state & 1 and value != 0
        if value & 1 != odd:
            raise EncodeError(f"QuantParam {value} of parameter {index} cannot be reached in state {state} (10.2.1.4)")
        level = (value + (odd if value > 0 else -odd)) // 2
        levels[index] = level
        state = STATE_TRANS_TAB[state][level & 1]
    return levels.reshape(quant_param.shape)


def _with_entry_points(
    header: NnrCompressedDataUnitHeader, session: Session, coder: PayloadEncoder
) -> NnrCompressedDataUnitHeader:
    """Return the header with the decoder states at the entry points of all tensors (6.4.3.7, errata G4, G5)."""
    count = session.num_block_rows_minus1(header)
    if not count:
        return header
    points = coder.entry_points()
    points += [(0, 0, 0)] * (count - len(points))  # decoders ignore entry points of a one-column matrix (errata G2)
    header = copy.copy(header)
    header.cabac_offset_list = [offset for offset, _, _ in points]
    header.dq_state_list = [state for _, state, _ in points] if header.dq_flag else []
    bits = [bits for _, _, bits in points]
    header.bit_offset_delta1 = bits[0]
    header.bit_offset_delta2 = [second - first for first, second in pairwise(bits)]
    return header


# ------------------------------------------------------------------------------------------------ units
def write_payload(
    header: NnrCompressedDataUnitHeader,
    payload: Buffer,
    session: Session,
    *,
    pieces: int = 1,
    max_unit_size: int | None = None,
) -> list[bytes]:
    """Write the units of any payload; parameters and errors as for :func:`write_ndu`."""
    data = memoryview(payload)
    if pieces < 1:
        raise EncodeError(f"pieces must be at least 1, got {pieces} (6.4.3.1)")
    if max_unit_size is not None:
        pieces = max(pieces, _pieces(header, len(data), session, max_unit_size))
    if pieces == 1:
        head = _head(header, session)
        return [with_size([head, data.cast("B")]) if head else write_unit(ndu_header(header), data, session)]
    cuts = [len(data) * k // pieces for k in range(pieces + 1)]
    return [
        write_unit(ndu_header(header, pieces - k), data[start:stop], session)
        for k, (start, stop) in enumerate(pairwise(cuts))
    ]


def ndu_header(detail: NnrCompressedDataUnitHeader, counter: int = 0) -> NnrUnitHeader:
    """Return the header of a complete unit, or of a part: ``counter`` counts the remaining parts, itself included
    (errata N4)."""
    return NnrUnitHeader(
        nnr_unit_type=NNR_NDU,
        independently_decodable_flag=int(not counter),
        partial_data_counter_present_flag=int(bool(counter)),
        partial_data_counter=counter,
        detail=detail,
    )


def _head(header: NnrCompressedDataUnitHeader, session: Session) -> bytes | None:
    """Return the headers of a complete unit, from a cache that units with different ids share.

    Return None if they depend on more than the elements and three flags, or if the unit changes the session.
    """
    if header.scan_order or header.compressed_parameter_types or session.g_header or not header.tensor_dimensions_flag:
        return None
    elements = header.__dict__.copy()
    name = elements.pop("topology_elem_id", None)
    if type(name) is not str or "\0" in name:
        return None
    elements["tensor_dimensions"] = tuple(header.tensor_dimensions)
    flags = (
        session.general_profile_idc,
        session.mps_topology_indexed_reference_flag,
        session.mps_parent_signalling_enabled_flag,
    )
    try:
        before, after = _around_id(*flags, tuple(elements), tuple(elements.values()))
        return before + name.encode() + after
    except (TypeError, UnicodeEncodeError):  # codebooks and other lists cannot be hashed
        return None


@lru_cache(maxsize=1 << 10)
def _around_id(
    general_profile_idc: int,
    mps_topology_indexed_reference_flag: int,
    mps_parent_signalling_enabled_flag: int,
    names: tuple[str, ...],
    values: tuple[Any, ...],
) -> tuple[bytes, bytes]:
    """Return the headers of a complete unit in two parts: before topology_elem_id, and from its terminating zero on."""
    session = Session(
        general_profile_idc=general_profile_idc,
        mps_topology_indexed_reference_flag=mps_topology_indexed_reference_flag,
        mps_parent_signalling_enabled_flag=mps_parent_signalling_enabled_flag,
    )
    written = []
    for name in ("", "x"):
        header = NnrCompressedDataUnitHeader(topology_elem_id=name, **dict(zip(names, values, strict=True)))
        header.tensor_dimensions = list(header.tensor_dimensions)
        io = BitWriter()
        Writer(session, io).write(ndu_header(header))
        written.append(io.getvalue())
    empty, other = written
    start = next(k for k in range(len(empty)) if empty[k] != other[k])  # a zero in one header, x in the other
    return empty[:start], empty[start:]


def _pieces(header: NnrCompressedDataUnitHeader, size: int, session: Session, max_unit_size: int) -> int:
    """Return the number of parts into which a payload of ``size`` bytes must be divided."""

    def room(unit_header: NnrUnitHeader) -> int:
        """Return the payload bytes of the largest unit; its size field takes 2 bytes up to 2**15 - 1 (6.3.2)."""
        counter = BitCounter()
        Writer(session, counter).write(unit_header)
        return max(min(max_unit_size, 0x7FFF) - 2, max_unit_size - 4) - counter.pos // 8

    if size <= room(ndu_header(header)):
        return 1
    of_a_part = room(ndu_header(header, 1))
    count = -(-size // of_a_part) if of_a_part > 0 else MAX_PARTS + 1
    if count > MAX_PARTS:
        raise EncodeError(
            f"{session.names(header)[0]!r} has {size:,} bytes of payload, more than {MAX_PARTS} units of "
            f"max_unit_size={max_unit_size} can hold (6.4.3.1)"
        )
    return count
