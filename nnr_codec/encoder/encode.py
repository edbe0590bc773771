"""Plans to units: headers and what stands in them (ISO/IEC 15938-17:2024, 6.3.3.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ..bitstream.ndu import write_ndu
from ..bitstream.payload import parts, tensor_syntax
from ..config import EncoderConfig
from ..constants import NNR_PT_BLOCK, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..errors import EncodeError
from ..model import Array, Model
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from .layout import UnitPlan, plan_units, side_info
from .plan import native
from .preamble import preamble
from .quantize import choose_side, contents

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
    """The units of a bitstream that holds ``model``, one after another.

    All tensors are read to plan them, and read again when their units are made: one unit's at a time.
    Raises EncodeError, naming the tensor, for one that cannot be coded as asked.
    """
    session = Session()
    plans = plan_units(model, config)
    record = side_info(model, plans, config)
    ids = [name for plan in plans for name in plan.all_ids]
    references = ids if config.indexed_references and len(ids) > 1 else []  # a list has two entries (errata N7)
    codebooks = any(tensor.codebook for plan in plans for tensor in plan.tensors.values())
    yield from preamble(model.topology, references, record, config, session, codebooks=codebooks)
    index = {name: k for k, name in enumerate(references)}
    for plan in plans:
        units = []
        if plan.all_ids:
            arrays = {role: native(np.asarray(model.tensors[tensor.name])) for role, tensor in plan.tensors.items()}
            try:
                units = encode_unit(plan, arrays, session, index, config.max_unit_size)
            except EncodeError:
                raise
            except ValueError as error:
                raise EncodeError(f"tensor {plan.ids[0]!r} has changed since it was planned: {error}") from None
            del arrays
        unit_bytes = sum(map(len, units))
        for tensor in plan.tensors.values():
            if progress:
                progress(TensorReport(tensor.name, prod(tensor.dims), tensor.source_bytes, unit_bytes))
            unit_bytes = 0
        yield from units


def encode_unit(
    plan: UnitPlan,
    arrays: Mapping[str, Array],
    session: Session,
    index: Mapping[str, int],
    max_unit_size: int | None = None,
) -> list[bytes]:
    """The compressed data unit of one tensor or block, or its parts, and that of a tensor's other bits.

    ``arrays`` are the tensors by role; ``index`` is the reference list.
    """
    header = _header(plan, index)
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        unit, _ = contents(plan.tensors["weight"], arrays["weight"], None)
        return write_ndu(header, unit, session, max_unit_size=max_unit_size)
    levels, sides, qps = [], [], []
    bits: Array | None = None
    for part in parts(header, session):
        tensor = plan.tensors[part.role]
        syntax = tensor_syntax(header, session, part)
        unit, bits = contents(tensor, arrays[part.role], syntax)
        levels.append(unit)
        sides.append(choose_side(tensor, unit, syntax))
        qps.append(tensor.qp)
    units = write_ndu(header, levels, session, qp=qps, sides=sides, max_unit_size=max_unit_size)
    if bits is not None:
        other = _single_header(NNR_PT_RAW_FLOAT, bits.shape, plan.all_ids[-1], index)
        units += write_ndu(other, bits, session, max_unit_size=max_unit_size)
    return units


def _header(plan: UnitPlan, index: Mapping[str, int]) -> NnrCompressedDataUnitHeader:
    main = next(iter(plan.tensors.values()))
    if plan.compressed_parameter_types:
        header = _block_header(plan, index)
    else:
        header = _single_header(main.payload_type, plan.dims, plan.ids[0], index)
    if main.data_format not in DEFAULT_FORMATS:
        header.nnr_decompressed_data_format_present_flag = 1
        header.nnr_decompressed_data_format = main.data_format
    if main.payload_type != NNR_PT_RAW_FLOAT:
        header.cabac_unary_length_flag = 1
        header.cabac_unary_length_minus1 = main.options.cabac_unary_length_minus1
        header.scan_order = main.options.scan_order
        header.dq_flag = main.dq_flag
    if main.codebook:
        header.codebook_present_flag = 1
        header.codebook = main.codebook
    return header


def _block_header(plan: UnitPlan, index: Mapping[str, int]) -> NnrCompressedDataUnitHeader:
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=NNR_PT_BLOCK,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(plan.dims),
        compressed_parameter_types=plan.compressed_parameter_types,
        nnr_multiple_topology_elements_present_flag=1,
    )
    if index:
        header.topology_elem_id_index_list = [index[name] for name in plan.ids]
    else:
        header.topology_elem_id_list = list(plan.ids)
    if "g" in plan.tensors:
        header.g_number_of_rows, header.decomposition_rank = plan.tensors["g"].dims
    return header


def _single_header(
    payload_type: int, dims: tuple[int, ...], name: str, index: Mapping[str, int]
) -> NnrCompressedDataUnitHeader:
    """The header of a unit with one id."""
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=payload_type,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(dims),
    )
    if index:
        header.topology_elem_id_index = index[name]
    else:
        header.topology_elem_id = name
    return header
