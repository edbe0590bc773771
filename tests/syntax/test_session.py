"""State that units leave for later units (6.2.3, 6.4.3.7, 6.4.4.3, 6.4.4.4)."""

from __future__ import annotations

from typing import Any

import pytest

from nnr_codec.constants import (
    NNR_CPT_DC,
    NNR_LPS,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_QCB,
    NNR_QSU,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_REFLIST,
)
from nnr_codec.errors import ElementError, MissingReferenceError
from nnr_codec.syntax import Session, Structure
from nnr_codec.syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
)

from .samples import read, write


def unit(nnr_unit_type: int, detail: Structure, **elements: Any) -> NnrUnitHeader:
    """Return a unit header around ``detail``."""
    return NnrUnitHeader(nnr_unit_type=nnr_unit_type, detail=detail, **elements)


def start(profile: int = 1) -> NnrUnitHeader:
    """Return the header of a start unit."""
    return unit(NNR_STR, NnrStartUnitHeader(general_profile_idc=profile))


MPS = unit(NNR_MPS, NnrModelParameterSetUnitHeader())
IN_PARTS = {"independently_decodable_flag": 0, "partial_data_counter_present_flag": 1}
LPS = unit(NNR_LPS, NnrLayerParameterSetUnitHeader(lps_self_contained_flag=0))
REFLIST = unit(NNR_TPL, NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_REFLIST))


def mps(**elements: Any) -> NnrModelParameterSetUnitPayload:
    """Return a model parameter set as read: all elements of its table are set."""
    session = Session(general_profile_idc=1)
    return read(write(NnrModelParameterSetUnitPayload(**elements), session), NnrModelParameterSetUnitPayload, session)


def lps(**elements: Any) -> NnrLayerParameterSetUnitPayload:
    """Return a layer parameter set as read."""
    return read(write(NnrLayerParameterSetUnitPayload(**elements)), NnrLayerParameterSetUnitPayload)


def ndu(**elements: Any) -> NnrCompressedDataUnitHeader:
    """Return the header of a compressed tensor, which is not written."""
    defaults: dict[str, Any] = {
        "nnr_compressed_data_unit_payload_type": NNR_PT_FLOAT,
        "input_parameters_present_flag": 1,
        "topology_elem_id": "conv",
        "tensor_dimensions_flag": 1,
    }
    return NnrCompressedDataUnitHeader(**defaults | elements)


def decomposed(**elements: Any) -> NnrCompressedDataUnitHeader:
    """Return the header of G or H of a tensor of 100 x 36 parameters, G of 100 rows and rank 20."""
    return ndu(
        compressed_parameter_types=NNR_CPT_DC,
        decomposition_rank=20,
        g_number_of_rows=100,
        tensor_dimensions=[100, 4, 9],
        **elements,
    )


def waiting(session: Session) -> NnrCompressedDataUnitHeader | None:
    """Return the header of G, while H is expected."""
    return session.g_header


def quantized(prefix: str, density: int, parameter: int, flags: int = NNR_QSU) -> dict[str, Any]:
    """Return the quantization elements of a parameter set."""
    return {
        f"{prefix}_quantization_method_flags": flags,
        f"{prefix}_qp_density": density,
        f"{prefix}_quantization_parameter": parameter,
    }


# ------------------------------------------------------------------------------------------------ activation
def test_new_session() -> None:
    session = Session()
    assert session.quantization is None
    assert not session.has_mps
    assert session.reference_list == []


def test_start_unit_sets_the_profile_and_resets_the_rest() -> None:
    dimensions = {"conv": [3, 4]}
    session = Session(dimensions)
    session.activate(start(1), None)
    session.activate(MPS, mps(mps_unification_flag=0, mps_topology_indexed_reference_flag=1, **quantized("mps", 2, -3)))
    session.activate(LPS, lps(**quantized("lps", 3, 4)))
    session.activate(REFLIST, NnrTopologyUnitPayload(topology_elem_id_list=["a", "b"]))
    session.activate(unit(NNR_NDU, decomposed()), None)
    assert session != Session(dimensions)
    session.activate(start(0), None)
    assert session == Session(dimensions, general_profile_idc=0)
    session.activate(start(1), None)
    assert session == Session(dimensions, general_profile_idc=1)
    assert session.topology_dimensions is dimensions


def test_reset_shares_no_reference_list() -> None:
    one, other = Session(), Session()
    one.activate(start(), None)
    one.reference_list.append("a")
    assert other.reference_list == []


def test_model_parameter_set() -> None:
    session = Session(general_profile_idc=1)
    session.activate(
        MPS,
        mps(
            mps_topology_indexed_reference_flag=1,
            mps_parent_signalling_enabled_flag=1,
            nnr_pre_flag=1,
            **quantized("mps", 2, -30),
        ),
    )
    assert session.has_mps
    assert session.mps_topology_indexed_reference_flag == 1
    assert session.mps_parent_signalling_enabled_flag == 1
    assert session.mps_unification_flag == 0
    assert session.nnr_pre_flag == 1
    assert session.quantization == (2, -30)


@pytest.mark.parametrize("name", ["topology_indexed_reference", "parent_signalling_enabled"])
def test_each_flag_of_a_model_parameter_set(name: str) -> None:
    session = Session(general_profile_idc=1)
    session.activate(MPS, mps(**{f"mps_{name}_flag": 1}))
    flags = {key: value for key, value in vars(session).items() if key.startswith("mps_") and key.endswith("flag")}
    assert {key for key, value in flags.items() if value} == {f"mps_{name}_flag"}
    assert session.nnr_pre_flag == 0


def test_unification_flags() -> None:
    session = Session()
    payload = mps()
    payload.mps_unification_flag = 1
    session.activate(MPS, payload)
    assert (session.mps_unification_flag, session.lps_unification_flag) == (1, 0)
    layer = lps()
    layer.lps_unification_flag = 1
    session.activate(LPS, layer)
    assert (session.mps_unification_flag, session.lps_unification_flag) == (1, 1)
    session.end_aggregate()
    assert (session.mps_unification_flag, session.lps_unification_flag) == (1, 0)


@pytest.mark.parametrize("flags", [NNR_QSU, NNR_QCB, NNR_QSU | NNR_QCB])
def test_layer_parameter_set_replaces_the_models(flags: int) -> None:
    session = Session()
    session.activate(MPS, mps(**quantized("mps", 2, -30)))
    session.activate(LPS, lps(**quantized("lps", 4, 7, flags)))
    assert session.quantization == (4, 7)
    assert session.has_mps
    session.activate(LPS, lps(**quantized("lps", 1, 0)))
    assert session.quantization == (1, 0)


def test_layer_parameter_set_without_quantization_leaves_the_models() -> None:
    session = Session()
    session.activate(MPS, mps(**quantized("mps", 2, -30)))
    session.activate(LPS, lps(**quantized("lps", 4, 7)))
    session.activate(LPS, lps())
    assert session.quantization == (2, -30)


def test_end_of_an_aggregate_ends_the_layer_parameter_set() -> None:
    session = Session()
    session.activate(MPS, mps(**quantized("mps", 2, -30)))
    session.activate(LPS, lps(**quantized("lps", 4, 7)))
    session.end_aggregate()
    assert session.quantization == (2, -30)
    assert session.has_mps


def test_no_quantization_at_all() -> None:
    """Without NNR_QSU and NNR_QCB there is no density (errata F4)."""
    session = Session()
    session.activate(MPS, mps(mps_quantization_method_flags=4))
    assert session.has_mps
    assert session.quantization is None


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (MPS, NnrModelParameterSetUnitPayload()),
        (MPS, NnrModelParameterSetUnitPayload(mps_topology_indexed_reference_flag=1)),
        (LPS, NnrLayerParameterSetUnitPayload(**quantized("lps", 4, 7))),
        (LPS, NnrLayerParameterSetUnitPayload()),
    ],
)
def test_writer_and_reader_see_the_same(header: NnrUnitHeader, payload: Structure) -> None:
    """A structure to write may omit inferred elements; a structure that was read has all."""
    writer, reader = (Session(general_profile_idc=1, lps_quantization=(1, 1)) for _ in range(2))
    data = write(payload, writer)
    again = read(data, type(payload), reader)
    writer.activate(header, payload)
    reader.activate(header, again)
    assert writer == reader


def test_reference_list() -> None:
    session = Session()
    session.activate(REFLIST, NnrTopologyUnitPayload(topology_elem_id_list=["a", "b", "c"]))
    assert session.reference_list == ["a", "b", "c"]
    session.activate(
        unit(NNR_TPL, NnrTopologyUnitHeader(topology_storage_format=1)), NnrTopologyUnitPayload(topology_data=b"x")
    )
    assert session.reference_list == ["a", "b", "c"]


# ------------------------------------------------------------------------------------------------ names, dimensions
def test_names() -> None:
    session = Session(reference_list=["a", "b", "c"])
    assert session.names(ndu()) == ["conv"]
    several: dict[str, Any] = {"nnr_multiple_topology_elements_present_flag": 1}
    assert session.names(ndu(**several, topology_elem_id_list=["x", "y"])) == ["x", "y"]
    assert session.names(ndu(**several, topology_elem_id_index_list=[2, 0])) == ["c", "a"]


def test_names_by_index() -> None:
    session = Session(reference_list=["a", "b", "c"])
    header = NnrCompressedDataUnitHeader(nnr_compressed_data_unit_payload_type=NNR_PT_FLOAT, topology_elem_id_index=2)
    assert session.names(header) == ["c"]
    header.topology_elem_id_index = 3
    with pytest.raises(MissingReferenceError, match=r"index 3 is not in the reference list of 3 names \(6\.4\.3\.7\)"):
        session.names(header)


def test_dimensions_from_the_header() -> None:
    session = Session({"conv": [7]})
    header = ndu(tensor_dimensions=[16, 3, 5])
    assert session.tensor_dimensions(header) == [16, 3, 5]
    assert session.count_tensor_dimensions(header) == 3
    assert session.coded_dimensions(header) == [[16, 3, 5]]


def test_dimensions_from_the_topology() -> None:
    session = Session({"conv": (16, 3), "b": (4,)}, reference_list=["a", "b"])
    assert session.tensor_dimensions(ndu(tensor_dimensions_flag=0)) == [16, 3]
    assert session.count_tensor_dimensions(ndu(tensor_dimensions_flag=0)) == 2
    indexed = NnrCompressedDataUnitHeader(nnr_compressed_data_unit_payload_type=NNR_PT_FLOAT, topology_elem_id_index=1)
    assert session.tensor_dimensions(indexed) == [4]
    indexed.topology_elem_id_index = 0
    with pytest.raises(MissingReferenceError, match="dimensions of 'a' are neither in the bitstream nor in a topology"):
        session.tensor_dimensions(indexed)


# ------------------------------------------------------------------------------------------------ NumBlockRowsMinus1
@pytest.mark.parametrize(
    ("rows", "scan_order", "entry_points"),
    [
        (100, 0, 0),
        (8, 1, 0),
        (9, 1, 1),
        (16, 1, 1),
        (17, 1, 2),
        (1, 1, 0),
        (16, 2, 0),
        (17, 2, 1),
        (64, 3, 1),
        (65, 3, 2),
        (64, 4, 0),
        (65, 4, 1),
        (100, 4, 1),
        (1, 4, 0),
    ],
)
def test_entry_points_of_a_tensor(rows: int, scan_order: int, entry_points: int) -> None:
    """There is one for each row of blocks of 4 << scan_order except the first."""
    header = ndu(tensor_dimensions=[rows, 40], scan_order=scan_order)
    assert Session().num_block_rows_minus1(header) == entry_points


def test_entry_points_of_g_then_h() -> None:
    """G is 100 x 20, H is 20 x 36, in successive units (errata J1)."""
    session = Session()
    header = decomposed(scan_order=1)
    assert session.coded_dimensions(header) == [[100, 20]]
    assert session.num_block_rows_minus1(header) == 12
    session.activate(unit(NNR_NDU, header), None)
    assert waiting(session) is header
    assert session.coded_dimensions(header) == [[20, 36]]
    assert session.num_block_rows_minus1(header) == 2
    session.activate(unit(NNR_NDU, header), None)
    assert waiting(session) is None
    assert session.num_block_rows_minus1(header) == 12


def test_entry_points_of_a_block_with_both() -> None:
    session = Session()
    header = decomposed(scan_order=1, nnr_compressed_data_unit_payload_type=NNR_PT_BLOCK)
    assert session.coded_dimensions(header) == [[100, 20], [20, 36]]
    assert session.num_block_rows_minus1(header) == 12 + 2
    session.activate(unit(NNR_NDU, header), None)
    assert waiting(session) is None  # G and H are both present


def test_entry_points_of_a_block_without_decomposition() -> None:
    header = ndu(nnr_compressed_data_unit_payload_type=NNR_PT_BLOCK, tensor_dimensions=[100, 36], scan_order=1)
    assert Session().num_block_rows_minus1(header) == 12


def test_other_units_leave_g_waiting() -> None:
    """Only an NDU can be H: a parameter set in between changes nothing, another tensor does."""
    session = Session()
    g = decomposed()
    session.activate(unit(NNR_NDU, g), None)
    session.activate(LPS, lps())
    assert waiting(session) is g
    session.activate(unit(NNR_NDU, ndu(tensor_dimensions=[3])), None)
    assert waiting(session) is None


def test_g_in_parts_is_complete_with_the_last_part() -> None:
    session = Session()
    g = decomposed()
    for counter in (3, 2):
        part = unit(NNR_NDU, g, **IN_PARTS, partial_data_counter=counter)
        session.activate(part, None)
        assert waiting(session) is None
    session.activate(unit(NNR_NDU, g, **IN_PARTS, partial_data_counter=1), None)
    assert waiting(session) is g


@pytest.mark.parametrize(
    "elements",
    [
        {"decomposition_rank": 0},
        {"g_number_of_rows": 0},
        {"g_number_of_rows": 7},
    ],
)
def test_impossible_decomposition(elements: dict[str, int]) -> None:
    header = decomposed(scan_order=1)
    for name, value in elements.items():
        setattr(header, name, value)
    with pytest.raises(ElementError, match=r"tensor_dimensions \[100, 4, 9\] cannot be G of .* rows times H") as caught:
        Session().num_block_rows_minus1(header)
    assert caught.value.path == "nnr_compressed_data_unit_header.g_number_of_rows"


@pytest.mark.parametrize("scan_order", range(5, 16))
def test_scan_orders_that_do_not_exist(scan_order: int) -> None:
    with pytest.raises(ElementError, match=rf"scan_order {scan_order} is outside 0\.\.4"):
        Session().num_block_rows_minus1(ndu(tensor_dimensions=[3, 4], scan_order=scan_order))


def test_headers_of_g_and_h_through_the_table() -> None:
    """Writer and reader derive equal numbers of entry points from their own sessions."""
    writer, reader = Session(), Session()
    for rows in (12, 2):
        header = decomposed(
            scan_order=1, cabac_offset_list=[0] * rows, bit_offset_delta1=9, bit_offset_delta2=[0] * (rows - 1)
        )
        header_of_unit = unit(NNR_NDU, header)
        again = read(write(header_of_unit, writer), NnrUnitHeader, reader)
        assert isinstance(again.detail, NnrCompressedDataUnitHeader)
        assert again.detail.cabac_offset_list == [0] * rows
        writer.activate(header_of_unit, None)
        reader.activate(again, None)
