"""Extraction of tensors as a bitstream, without decoding their payloads."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

from ..bitstream.ndu import write_payload
from ..bitstream.topology_units import write_side_information
from ..bitstream.units import write_unit
from ..constants import NNR_LPS, NNR_MPS, NNR_STR
from ..errors import UnsupportedError
from ..sideinfo.record import SideInfo
from ..syntax import Session
from ..syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrStartUnitHeader,
    NnrUnitHeader,
)
from .group import Group
from .task import NduTask


def extracted(
    groups: Iterable[Group], record: SideInfo, mps: NnrModelParameterSetUnitPayload, general_profile_idc: int
) -> bytes:
    """Return a bitstream of these groups, with this side information, and without aggregates and topology.

    Payloads are copied. Headers have ids instead of indices, and dimensions. Layer parameter sets stay, and apply to
    the same units.
    """
    session = Session()
    return b"".join(_units(groups, record, mps, NnrStartUnitHeader(general_profile_idc=general_profile_idc), session))


def _units(
    groups: Iterable[Group],
    record: SideInfo,
    mps: NnrModelParameterSetUnitPayload,
    start: NnrStartUnitHeader,
    session: Session,
) -> Iterator[bytes]:
    mps = copy.copy(mps)
    mps.topology_carriage_flag = mps.mps_topology_indexed_reference_flag = 0
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_STR, detail=start), None, session)
    yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), mps, session)
    if record:
        yield write_side_information(record, session)
    for task in [task for group in groups for task in group.tasks]:
        if session.lps is not task.session.lps:
            # The scope of a set cannot end here, so the parameters of the model follow in another one.
            lps = task.session.lps or NnrLayerParameterSetUnitPayload(
                lps_quantization_method_flags=mps.mps_quantization_method_flags,
                **{
                    f"lps_{name}": getattr(mps, f"mps_{name}")
                    for name in ("qp_density", "quantization_parameter")
                    if f"mps_{name}" in mps
                },
            )
            detail = NnrLayerParameterSetUnitHeader(lps_self_contained_flag=0)
            yield write_unit(NnrUnitHeader(nnr_unit_type=NNR_LPS, detail=detail), lps, session)
            session.lps = task.session.lps
        yield from write_payload(_header(task), task.payload, session)


def _header(task: NduTask) -> NnrCompressedDataUnitHeader:
    """Return the header of a unit with ids and dimensions."""
    header = copy.copy(task.header)
    if header.nnr_multiple_topology_elements_present_flag and not header.input_parameters_present_flag:
        raise UnsupportedError("the unit omits how its tensors are divided (6.3.3.7)", unit=task.label)
    for name in ("topology_elem_id", "topology_elem_id_index", "topology_elem_id_list", "topology_elem_id_index_list"):
        header.__dict__.pop(name, None)
    if header.nnr_multiple_topology_elements_present_flag:
        header.topology_elem_id_list = list(task.names)
    else:
        header.topology_elem_id = task.names[0]
    header.input_parameters_present_flag = header.tensor_dimensions_flag = 1
    header.tensor_dimensions = list(task.dims)
    return header
