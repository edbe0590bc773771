"""Plans to units: quantization, entropy coding and headers (ISO/IEC 15938-17:2024, 6.3 and clause 10)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from ..bitstream.payload import Coded, code_payload, parts, tensor_syntax
from ..bitstream.units import ndu_header, write_unit
from ..cabac_ext import quantizer
from ..cabac_ext.kernel import (
    PayloadDecoder,
    PayloadEncoder,
    TensorSide,
    TensorSyntax,
    choose_shift_parameter_ids,
    coding_order,
)
from ..config import EncoderConfig
from ..constants import (
    NNR_DFL,
    NNR_MPS,
    NNR_PT_INT,
    NNR_PT_RAW,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_QNT_NNEF,
    NNR_QSU,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_NNEF,
    DecompressedDataFormat,
)
from ..errors import EncodeError
from ..model import Array, Model
from ..syntax import Session
from ..syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)
from .plan import TensorPlan, plan_tensor

DEFAULT_FORMATS = (DecompressedDataFormat.TENSOR_INT32, DecompressedDataFormat.TENSOR_FLOAT32)


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor."""

    name: str
    parameters: int
    source_bytes: int
    unit_bytes: int


Progress = Callable[[TensorReport], None]


def encode_units(model: Model, config: EncoderConfig, progress: Progress | None = None) -> Iterator[bytes]:
    """The units of a bitstream that holds ``model``, one after another; tensors are read one at a time.

    Raises EncodeError, naming the tensor, for one that cannot be coded as asked.
    """
    session = Session()
    yield write_unit(
        NnrUnitHeader(nnr_unit_type=NNR_STR, detail=NnrStartUnitHeader(general_profile_idc=config.profile)),
        None,
        session,
    )
    yield write_unit(
        NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()),
        NnrModelParameterSetUnitPayload(
            topology_carriage_flag=int(model.topology is not None),
            mps_quantization_method_flags=NNR_QSU,
            mps_qp_density=config.qp_density,
            mps_quantization_parameter=0,
        ),
        session,
    )
    yield from _topology_units(model, config, session)
    for name in model.tensors:
        array = np.asarray(model.tensors[name])
        unit = encode_tensor(plan_tensor(name, array, config), array, session)
        if progress:
            progress(TensorReport(name, array.size, array.nbytes, len(unit)))
        yield unit


def _topology_units(model: Model, config: EncoderConfig, session: Session) -> Iterator[bytes]:
    """Annex A.4: the texts as null-terminated UTF-8 strings, before any compressed data unit."""
    if model.topology is None:
        return
    if model.topology.format != "nnef":
        raise EncodeError(f"a topology of format {model.topology.format!r} has no place in the bitstream yet")
    compression, data = _null_terminated(model.topology.data, "graph.nnef", config)
    yield write_unit(
        NnrUnitHeader(
            nnr_unit_type=NNR_TPL,
            detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_NNEF, topology_compression_format=compression),
        ),
        NnrTopologyUnitPayload(topology_data=data),
        session,
    )
    if model.topology.quantization is None:
        return
    compression, data = _null_terminated(model.topology.quantization, "graph.quant", config)
    yield write_unit(
        NnrUnitHeader(
            nnr_unit_type=NNR_QNT,
            detail=NnrQuantizationUnitHeader(
                quantization_storage_format=NNR_QNT_NNEF, quantization_compression_format=compression
            ),
        ),
        NnrQuantizationUnitPayload(quantization_data=data),
        session,
    )


def _null_terminated(text: bytes, what: str, config: EncoderConfig) -> tuple[int, bytes]:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise EncodeError(f"{what} is not UTF-8, as A.4 asks") from None
    if 0 in text:
        raise EncodeError(f"{what} holds a zero byte, which would end it (A.4)")
    data = text + b"\0"
    deflated = zlib.compress(data, 9)
    if config.deflate_topology and len(deflated) < len(data):
        return NNR_DFL, deflated
    return NNR_PT_RAW, data


def encode_tensor(plan: TensorPlan, array: Array, session: Session) -> bytes:
    """The compressed data unit of one tensor."""
    header = _header(plan)
    if plan.payload_type == NNR_PT_RAW_FLOAT:
        return write_unit(ndu_header(header), np.ascontiguousarray(array, "<f4").data.cast("B"), session)
    (part,) = parts(header, session)
    syntax = tensor_syntax(header, session, part)
    levels = _levels(plan, array, syntax)
    side = _side(plan, levels, syntax)
    coder = PayloadEncoder()
    code_payload(coder, header, session, [syntax], [Coded(levels, plan.qp, side)])
    payload = coder.getvalue()
    if syntax.entry_points:
        _add_entry_points(header, session, syntax, payload)
    return write_unit(ndu_header(header), payload, session)


def _header(plan: TensorPlan) -> NnrCompressedDataUnitHeader:
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=plan.payload_type,
        input_parameters_present_flag=1,
        topology_elem_id=plan.name,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(plan.dims),
    )
    if plan.data_format not in DEFAULT_FORMATS:
        header.nnr_decompressed_data_format_present_flag = 1
        header.nnr_decompressed_data_format = plan.data_format
    if plan.payload_type != NNR_PT_RAW_FLOAT:
        header.cabac_unary_length_flag = 1
        header.cabac_unary_length_minus1 = plan.options.cabac_unary_length_minus1
        header.scan_order = plan.options.scan_order
        header.dq_flag = plan.dq_flag
    return header


def _levels(plan: TensorPlan, array: Array, syntax: TensorSyntax) -> npt.NDArray[np.int32]:
    if plan.payload_type == NNR_PT_INT:
        return np.ascontiguousarray(array, np.int32).reshape(plan.dims)
    values: quantizer.Real
    if array.dtype.itemsize == 8:
        values = np.ascontiguousarray(array, np.float64).reshape(-1)
    else:
        values = np.ascontiguousarray(array, np.float32).reshape(-1)
    levels = np.empty(values.size, np.int32)
    if not plan.dq_flag:
        quantizer.uniform(values, plan.step, levels)
    elif plan.options.scan_order:
        order = coding_order(syntax)
        in_order = np.empty_like(levels)
        quantizer.dependent(values[order], plan.step, in_order)
        levels[order] = in_order
    else:
        quantizer.dependent(values, plan.step, levels)
    return levels.reshape(plan.dims)


def _side(plan: TensorPlan, levels: npt.NDArray[np.int32], syntax: TensorSyntax) -> TensorSide:
    side = TensorSide()
    # Errata D6: decoders do not agree about rows skipped in blocks unless four parameters make the state come round.
    agreed = not (plan.dq_flag and plan.options.scan_order and prod(plan.dims[1:]) % 4)
    if plan.options.row_skipping and syntax.can_skip_rows and agreed:
        rows = levels.reshape(plan.dims[0], -1)
        side.row_skip_enabled_flag = int(not rows.any(axis=1).all())
    if plan.options.choose_shift_parameters:
        side.shift_parameter_ids = choose_shift_parameter_ids(syntax, levels, side)
    return side


def _add_entry_points(
    header: NnrCompressedDataUnitHeader, session: Session, syntax: TensorSyntax, payload: bytes
) -> None:
    """Complete the header with what a decoder meets at the entry points (6.4.3.7, errata G4)."""
    (coded,) = code_payload(PayloadDecoder(payload), header, session, [syntax], [None])
    points = coded.side.entry_points if coded.side else ()
    header.cabac_offset_list = [offset for offset, _, _ in points]
    if header.dq_flag:
        header.dq_state_list = [state for _, state, _ in points]
    bits = [bits for _, _, bits in points]
    header.bit_offset_delta1 = bits[0]
    header.bit_offset_delta2 = [second - first for first, second in pairwise(bits)]
