"""Compressed data units: headers, levels and payloads of planned tensors (ISO/IEC 15938-17:2024, 6.3.3.7)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..bitstream.ndu import Run, code_tensors, write_ndu, write_payload
from ..bitstream.payload import PayloadPart, PayloadTensor, parts, quantization, tensor_syntax
from ..compare import Loss
from ..constants import NNR_CPT_DC, NNR_PT_BLOCK, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..errors import EncodeError
from ..model import Array
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from .block_units import UnitPlan
from .coding_tools import CodedTensor, choose_tools
from .lossless_bound import least_bytes
from .plan import TensorPlan
from .quantization import as_coded, contents
from .rate_distortion import loss
from .tensor_report import TensorStatistics, tensor_statistics
from .update_tree import Link, refer, trellis_groups

DEFAULT_FORMATS = (DecompressedDataFormat.TENSOR_INT32, DecompressedDataFormat.TENSOR_FLOAT32)


@dataclass(slots=True)
class CodedUnit:
    """Coded tensors of one plan.

    Parameters
    ----------
    units : list of bytes
        The compressed data unit or its parts, and the unit of a tensor's other bits; empty for an optional tensor of
        zeros.
    seconds : float
        Duration of coding.
    least_bytes : int
        Lower bound of the bytes of a lossless encoding of the tensors.
    losses : dict of str to Loss
        Errors of float tensors, by name.
    statistics : dict of str to TensorStatistics
        Statistics by name; empty unless requested.
    """

    units: list[bytes] = field(default_factory=list)
    seconds: float = 0.0
    least_bytes: int = 0
    losses: dict[str, Loss] = field(default_factory=dict)
    statistics: dict[str, TensorStatistics] = field(default_factory=dict)


@dataclass(slots=True)
class _UnitCoder:
    """Coder of the tensors of one plan; the result is ``coded``.

    ``arrays`` has the tensors by role; each is removed when its levels are computed. ``index`` is the reference list,
    or empty if units contain the ids. ``link`` has the references of a tensor of an update. ``jobs`` is the number of
    threads that code rows of blocks between entry points.
    """

    plan: UnitPlan
    arrays: dict[str, Array]
    index: Mapping[str, int]
    max_unit_size: int | None
    with_statistics: bool
    link: Link | None
    session: Session
    jobs: int
    coded: CodedUnit = field(default_factory=CodedUnit)

    def code(self) -> None:
        """Code the unit of a tensor or a block, or the two units of G and H."""
        plan = self.plan
        if not plan.two_units:
            self._code(_header(plan, self.index, self.link.elements if self.link else {}))
            return
        self.session = self.session.snapshot()  # a copy, in which G precedes H
        for role in plan.tensors:
            self._code(_factor_header(plan, role, self.index))

    def _code(self, header: NnrCompressedDataUnitHeader) -> None:
        """Code the tensors of this header, and the other bits of a tensor."""
        if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
            self._code_floats(header)
            return
        session, bits = self.session, None
        tensors = []
        for part in parts(header, session):
            one, bits = self._levels(header, part)
            tensors.append(one)
        if self.link and self.link.is_optional and not tensors[0].plan.codebook and not tensors[0].levels.any():
            return
        unary, tensors = choose_tools(tensors, thorough=tensors[0].plan.tools.thorough)
        header.cabac_unary_length_minus1 = unary
        if self.with_statistics:
            for one in tensors:
                found = tensor_statistics(one.plan, header, one.levels, one.side, bits)
                self.coded.statistics[one.plan.name] = found
        parameter = quantization(session)[1]
        payload = [PayloadTensor(one.syntax, one.levels, one.plan.qp - parameter, one.side) for one in tensors]
        if self.jobs > 1 and header.scan_order:
            with mapping(self.jobs) as run:
                header, data = code_tensors(header, payload, session, run=run)
        else:
            header, data = code_tensors(header, payload, session)
        self.coded.units += write_payload(header, data, session, max_unit_size=self.max_unit_size)
        if bits is not None:
            other = _single_header(NNR_PT_RAW_FLOAT, bits.shape, self.plan.all_ids[-1], self.index, {})
            self.coded.units += write_ndu(other, bits, session, max_unit_size=self.max_unit_size)

    def _code_floats(self, header: NnrCompressedDataUnitHeader) -> None:
        """Code a tensor as raw floats (7.3.4)."""
        plan = self.plan.tensors["weight"]
        if self.link and self.link.is_residual:
            raise EncodeError(
                f"tensor {self.plan.name!r} has no step size, so it cannot be coded as an update (7.3.4)",
                tensor=self.plan.name,
            )
        array = as_coded(plan, self.arrays.pop("weight"))
        unit, _ = contents(plan, array, None)
        if found := loss(plan, array, unit, None):
            self.coded.losses[plan.name] = found
        if self.with_statistics:
            self.coded.statistics[plan.name] = tensor_statistics(plan, header, unit)
        self.coded.units += write_ndu(header, unit, self.session, max_unit_size=self.max_unit_size)

    def _levels(self, header: NnrCompressedDataUnitHeader, part: PayloadPart) -> tuple[CodedTensor, Array | None]:
        """Return a tensor with its levels, and its other bits; note its error."""
        plan, session, link = self.plan.tensors[part.role], self.session, self.link
        syntax, groups = tensor_syntax(header, session, part), None
        if link:
            groups = trellis_groups(header, session, part, CodedTensor(plan, self.arrays[part.role], syntax), link)
        array = as_coded(plan, self.arrays.pop(part.role))
        levels, bits = contents(plan, array, syntax, groups)
        if found := loss(plan, array, levels, syntax):
            self.coded.losses[plan.name] = found
        one = CodedTensor(plan, levels, syntax)
        return refer(header, session, part, one, link) if link else one, bits


def code_unit(
    arrays: list[Array],
    plan: UnitPlan,
    index: Mapping[str, int],
    max_unit_size: int | None,
    with_statistics: bool,
    link: Link | None,
    session: Session,
    jobs: int,
) -> CodedUnit:
    """Code the tensors of a plan, in the order of its roles; see :class:`_UnitCoder` for the other parameters.

    Raises EncodeError for a tensor that does not fit its plan.
    """
    if not arrays:
        return CodedUnit()
    started = time.perf_counter()
    try:
        least = sum(map(least_bytes, arrays))
        by_role = dict(zip(plan.tensors, arrays, strict=True))
        arrays.clear()
        # Threads share the session: units of tensors either do not change it or use a copy.
        coder = _UnitCoder(plan, by_role, index, max_unit_size, with_statistics, link, session, jobs)
        coder.code()
    except EncodeError:
        raise
    except ValueError as error:
        raise EncodeError(f"tensor {plan.name!r} changed during encoding: {error}", tensor=plan.name) from None
    coder.coded.least_bytes, coder.coded.seconds = least, time.perf_counter() - started
    return coder.coded


@contextmanager
def mapping(jobs: int) -> Iterator[Run]:
    """Return a context manager for a function like ``map`` whose calls run in several threads."""
    from concurrent.futures import ThreadPoolExecutor  # imports logging

    with ThreadPoolExecutor(jobs) as threads:
        yield threads.map


def _header(plan: UnitPlan, index: Mapping[str, int], linked: Mapping[str, Any]) -> NnrCompressedDataUnitHeader:
    main = next(iter(plan.tensors.values()))
    elements = {**linked, **_elements(main)}
    if plan.compressed_parameter_types:
        return _block_header(plan, index, elements)
    if plan.split_index:
        return _shared_header(main.payload_type, plan, index, elements)
    return _single_header(main.payload_type, plan.dims, plan.ids[0], index, elements)


def _factor_header(plan: UnitPlan, role: str, index: Mapping[str, int]) -> NnrCompressedDataUnitHeader:
    """Return the header of the unit of G or of H (7.3.3, errata J1)."""
    factor = plan.tensors[role]
    rows, rank = plan.tensors["g"].dims
    elements = _elements(factor) | {
        "compressed_parameter_types": NNR_CPT_DC,
        "g_number_of_rows": rows,
        "decomposition_rank": rank,
    }
    return _single_header(factor.payload_type, plan.dims, plan.ids[role == "h"], index, elements)


def _elements(main: TensorPlan) -> dict[str, Any]:
    """Return the syntax elements of a header that describe the coding of a tensor or of the weight of a block."""
    elements: dict[str, Any] = {}
    if main.data_format not in DEFAULT_FORMATS:
        elements |= {"nnr_decompressed_data_format_present_flag": 1, "nnr_decompressed_data_format": main.data_format}
    if main.payload_type != NNR_PT_RAW_FLOAT:
        elements |= {
            "cabac_unary_length_flag": 1,
            "cabac_unary_length_minus1": main.tools.cabac_unary_length_minus1,
            "scan_order": main.tools.scan_order,
            "dq_flag": main.dq_flag,
            "first_tensor_dimension_shift": main.source.shift,
        }
    if main.codebook:
        elements |= {"codebook_present_flag": 1, "codebook": main.codebook}
    return elements


def _block_header(plan: UnitPlan, index: Mapping[str, int], elements: Mapping[str, Any]) -> NnrCompressedDataUnitHeader:
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=NNR_PT_BLOCK,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(plan.dims),
        compressed_parameter_types=plan.compressed_parameter_types,
        nnr_multiple_topology_elements_present_flag=1,
        **_ids(plan, index),
        **elements,
    )
    if "g" in plan.tensors:
        header.g_number_of_rows, header.decomposition_rank = plan.tensors["g"].dims
        if codebook := plan.tensors["h"].codebook:
            header.codebook_dc = codebook
    return header


def _shared_header(
    payload_type: int, plan: UnitPlan, index: Mapping[str, int], elements: Mapping[str, Any]
) -> NnrCompressedDataUnitHeader:
    """Return the header of a unit whose tensor decoders divide."""
    return NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=payload_type,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(plan.dims),
        nnr_multiple_topology_elements_present_flag=1,
        concatentation_axis_index=plan.split_axis,
        split_index=list(plan.split_index),
        number_of_shifts=[len(moves) for moves in plan.shifts],
        shift_index=[[axis for axis, _ in moves] for moves in plan.shifts],
        shift_value=[[value for _, value in moves] for moves in plan.shifts],
        **_ids(plan, index),
        **elements,
    )


def _ids(plan: UnitPlan, index: Mapping[str, int]) -> dict[str, Any]:
    """Return the list of ids, or of their indices in the reference list."""
    if index:
        return {"topology_elem_id_index_list": [index[name] for name in plan.ids]}
    return {"topology_elem_id_list": list(plan.ids)}


def _single_header(
    payload_type: int, dims: tuple[int, ...], name: str, index: Mapping[str, int], elements: Mapping[str, Any]
) -> NnrCompressedDataUnitHeader:
    """Return the header of a unit with one id."""
    reference = {"topology_elem_id_index": index[name]} if index else {"topology_elem_id": name}
    return NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=payload_type,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(dims),
        **reference,
        **elements,
    )
