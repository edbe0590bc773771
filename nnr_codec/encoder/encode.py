"""Plans to units: headers and what stands in them (ISO/IEC 15938-17:2024, 6.3.3.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..bitstream.ndu import write_ndu
from ..bitstream.payload import parts, tensor_syntax
from ..config import EncoderConfig
from ..constants import NNR_PT_BLOCK, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..model import Model
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from .layout import UnitPlan, element_ids, plan_units
from .preamble import preamble
from .quantize import choose_side, quantize

DEFAULT_FORMATS = (DecompressedDataFormat.TENSOR_INT32, DecompressedDataFormat.TENSOR_FLOAT32)


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor; the unit of a block counts for the first of its tensors, the weight."""

    name: str
    parameters: int
    source_bytes: int
    unit_bytes: int


Progress = Callable[[TensorReport], None]


def encode_units(model: Model, config: EncoderConfig, progress: Progress | None = None) -> Iterator[bytes]:
    """The units of a bitstream that holds ``model``, one after another; tensors are read one unit at a time.

    Raises EncodeError, naming the tensor, for one that cannot be coded as asked.
    """
    session = Session()
    ids = element_ids(model)
    references = ids if config.indexed_references and len(ids) > 1 else []  # a list has two entries (errata N7)
    yield from preamble(model.topology, references, config, session)
    index = {name: k for k, name in enumerate(references)}
    for plan in plan_units(model, config):
        units = encode_unit(plan, session, index, config.max_unit_size)
        unit_bytes = sum(map(len, units))
        for tensor, array in plan.tensors.values():
            if progress:
                progress(TensorReport(tensor.name, array.size, array.nbytes, unit_bytes))
            unit_bytes = 0
        yield from units


def encode_unit(
    plan: UnitPlan, session: Session, index: Mapping[str, int], max_unit_size: int | None = None
) -> list[bytes]:
    """The compressed data unit of one tensor or block, or its parts; ``index`` is the reference list."""
    header = _header(plan, index)
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        ((_, array),) = plan.tensors.values()
        return write_ndu(header, array.reshape(plan.dims), session, max_unit_size=max_unit_size)
    levels, sides, qps = [], [], []
    for part in parts(header, session):
        tensor, array = plan.tensors[part.role]
        syntax = tensor_syntax(header, session, part)
        levels.append(quantize(tensor, array, syntax))
        sides.append(choose_side(tensor, levels[-1], syntax))
        qps.append(tensor.qp)
    return write_ndu(header, levels, session, qp=qps, sides=sides, max_unit_size=max_unit_size)


def _header(plan: UnitPlan, index: Mapping[str, int]) -> NnrCompressedDataUnitHeader:
    main, first = next(iter(plan.tensors.values()))
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=main.payload_type,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(plan.dims),
    )
    if plan.compressed_parameter_types:
        header.nnr_compressed_data_unit_payload_type = NNR_PT_BLOCK
        header.compressed_parameter_types = plan.compressed_parameter_types
        header.nnr_multiple_topology_elements_present_flag = 1
        if index:
            header.topology_elem_id_index_list = [index[name] for name in plan.ids]
        else:
            header.topology_elem_id_list = list(plan.ids)
        if "g" in plan.tensors:
            header.g_number_of_rows, header.decomposition_rank = first.shape
    elif index:
        header.topology_elem_id_index = index[plan.ids[0]]
    else:
        header.topology_elem_id = plan.ids[0]
    if main.data_format not in DEFAULT_FORMATS:
        header.nnr_decompressed_data_format_present_flag = 1
        header.nnr_decompressed_data_format = main.data_format
    if main.payload_type != NNR_PT_RAW_FLOAT:
        header.cabac_unary_length_flag = 1
        header.cabac_unary_length_minus1 = main.options.cabac_unary_length_minus1
        header.scan_order = main.options.scan_order
        header.dq_flag = main.dq_flag
    return header
