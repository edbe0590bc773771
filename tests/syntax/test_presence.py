"""Elements that are not set, and errors for set elements that would be omitted."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from bitarray import bitarray

from nnr_codec.constants import NNR_NDU, NNR_PT_BLOCK, NNR_PT_INT, NNR_STR, NNR_TPL, PayloadType
from nnr_codec.errors import WriteError
from nnr_codec.syntax import TABLES, Session, Structure, coder
from nnr_codec.syntax.coder import AbsentElementError
from nnr_codec.syntax.structures import (
    BitMask,
    IntegerCodebook,
    NnrAggregateUnitHeader,
    NnrCompressedDataUnitHeader,
    NnrPruningTopologyContainer,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrUnitHeader,
    NnrUnitSize,
    SparsificationPerformanceMap,
)

from .samples import count, read, sample, write


def ndu(**elements: Any) -> NnrCompressedDataUnitHeader:
    """Return a small header that can be written."""
    base: dict[str, Any] = {
        "nnr_compressed_data_unit_payload_type": NNR_PT_INT,
        "input_parameters_present_flag": 1,
        "topology_elem_id": "conv.weight",
        "tensor_dimensions_flag": 1,
        "tensor_dimensions": [16, 3],
    }
    header = NnrCompressedDataUnitHeader(nnr_compressed_data_unit_payload_type=NNR_PT_INT)
    for name, value in (base | elements).items():
        if value is not None:
            setattr(header, name, value)
    return header


def several(**elements: Any) -> NnrCompressedDataUnitHeader:
    """Return a small header of several tensors in one."""
    several_ids: dict[str, Any] = {
        "nnr_multiple_topology_elements_present_flag": 1,
        "topology_elem_id": None,
        "topology_elem_id_list": ["a", "b"],
        "concatentation_axis_index": 0,
        "split_index": [8],
        "number_of_shifts": [1, 0],
        "shift_index": [[1]],
        "shift_value": [[2]],
    }
    return ndu(**several_ids | elements)


# ------------------------------------------------------------------------------------------------ elements not set
def test_absent_element_names_itself_and_its_table() -> None:
    with pytest.raises(
        AbsentElementError, match=r"device_id is not present in this nnr_compressed_data_unit_header\(\)"
    ):
        _ = ndu().device_id
    assert not hasattr(ndu(), "device_id")
    assert getattr(ndu(), "device_id", None) is None
    assert "device_id" not in ndu()
    assert "topology_elem_id" in ndu()


def test_element_without_default() -> None:
    with pytest.raises(AttributeError, match="nnr_unit_size"):
        _ = NnrUnitSize().nnr_unit_size  # type: ignore[call-arg]


def test_inferred_values() -> None:
    header = ndu()
    assert header.scan_order == header.dq_flag == header.parent_node_id_present_flag == 0
    assert header.cabac_unary_length_minus1 == 9
    assert header.split_index == []
    assert "scan_order" not in header
    assert NnrUnitHeader(nnr_unit_type=NNR_STR).independently_decodable_flag == 1


def test_derived_values() -> None:
    assert NnrUnitSize(nnr_unit_size=0x7FFF).nnr_unit_size_flag == 0
    assert NnrUnitSize(nnr_unit_size=0x8000).nnr_unit_size_flag == 1
    assert ndu().count_tensor_dimensions == 2
    assert several().count_topology_elements_minus2 == 0
    assert (
        several(topology_elem_id_list=None, topology_elem_id_index_list=[4, 5, 6]).count_topology_elements_minus2 == 1
    )
    assert BitMask(bit_mask_value=bitarray("101")).count_bits == 3
    codebook = IntegerCodebook(codebook_egk=0, codebook_size=5, codebook_centre_offset=-1, codebook_zero_value=0)
    assert codebook.cb_zero_offset == 1


def test_derived_value_can_be_overruled() -> None:
    """A unit that is rewritten keeps the long form of its size."""
    size = NnrUnitSize(nnr_unit_size=5, nnr_unit_size_flag=1)
    assert write(size) == bytes.fromhex("80000005")
    assert read(write(size), NnrUnitSize) == size


def test_no_default_is_shared() -> None:
    for cls in TABLES.values():
        for name in cls.lists:
            if name in vars(cls):
                one, other = cls.__new__(cls), cls.__new__(cls)
                getattr(one, name).append(1)
                assert getattr(one, name) == getattr(other, name) == []
                setattr(one, name, [1])
                assert getattr(other, name) == []


def test_no_default_is_mutable() -> None:
    for cls in TABLES.values():
        for name in cls.elements:
            assert not isinstance(vars(cls).get(name), list | dict | set | bytearray | bitarray | Structure)


# ------------------------------------------------------------------------------------------------ set but no place
@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (
            ndu(device_id=3),
            r"device_id=3 is set, but nnr_compressed_data_unit_header\(\) \(6\.3\.3\.7\) does not have it",
        ),
        (ndu(topology_elem_id_index=3), r"topology_elem_id_index=3 is set"),
        (ndu(scan_order=1, tensor_dimensions=[16]), r"scan_order=1 is set"),
        (ndu(cabac_unary_length_minus1=10), r"cabac_unary_length_minus1=10 is set"),
        (ndu(codebook_present_flag=1), r"codebook_present_flag=1 is set"),
        (ndu(split_index=[1]), r"split_index=\[1\] is set"),
        (ndu(shift_index=[[1]]), r"shift_index=\[\[1\]\] is set"),
        (ndu(topology_elem_id_list=["a", "b"]), r"topology_elem_id_list=\['a', 'b'\] is set"),
        (NnrUnitHeader(nnr_unit_type=40, partial_data_counter=2), r"partial_data_counter=2 is set.*6\.3\.3\.1"),
        (NnrUnitHeader(nnr_unit_type=40, detail=NnrStartUnitHeader(general_profile_idc=0)), r"detail=.* is set"),
    ],
)
def test_set_but_no_place(structure: Structure, message: str) -> None:
    with pytest.raises(WriteError, match=message):
        write(structure)
    with pytest.raises(WriteError, match=message):
        count(structure)


def test_inferred_value_may_be_set_without_a_place() -> None:
    assert write(ndu(parent_node_id_present_flag=0, cabac_unary_length_minus1=9, split_index=[])) == write(ndu())


def test_nested_structure_with_no_place_for_an_element() -> None:
    detail = ndu(device_id=1)
    with pytest.raises(WriteError, match=r"device_id=1 is set, but nnr_compressed_data_unit_header\(\)"):
        write(NnrUnitHeader(nnr_unit_type=NNR_NDU, detail=detail))


@pytest.mark.parametrize(
    "elements",
    [
        {"split_index": [8, 9]},
        {"number_of_shifts": [1, 0, 0]},
        {"shift_index": [[1, 2]]},
        {"shift_index": [[1], [2]]},
        {"shift_value": [[2], [], [2]]},
        {"tensor_dimensions": [16, 3], "count_tensor_dimensions": 1},
    ],
)
def test_surplus_entries(elements: dict[str, Any]) -> None:
    with pytest.raises(WriteError, match=rf"{next(iter(elements))}=.* is set, but .* does not have it"):
        write(several(**elements))


def test_surplus_entries_before_others() -> None:
    with pytest.raises(WriteError, match=r"shift_index=\[\[5\], \[1\]\] is set"):
        write(several(number_of_shifts=[0, 1], shift_index=[[5], [1]], shift_value=[[], [2]]))


def test_empty_lists_for_tensors_without_shifts() -> None:
    """There is an entry for each tensor, with or without shifts."""
    assert write(several(shift_index=[[1], []], shift_value=[[2], []])) == write(several())


# ------------------------------------------------------------------------------------------------ missing
@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (
            ndu(topology_elem_id=None),
            r"nnr_compressed_data_unit_header\(\) \(6\.3\.3\.7\) requires topology_elem_id here",
        ),
        (
            ndu(cabac_unary_length_flag=1, cabac_unary_length_minus1=None, compressed_parameter_types=1),
            "decomposition_rank",
        ),
        (several(concatentation_axis_index=None), "requires concatentation_axis_index here"),
        (several(split_index=[]), r"requires split_index\[0\], but only 0 entries are given"),
        (several(number_of_shifts=[1]), r"requires number_of_shifts\[1\], but only 1 entries are given"),
        (several(number_of_shifts=[2, 0]), r"requires shift_index\[0\]\[1\], but only 1 entries are given"),
        (several(number_of_shifts=[1, 1]), r"requires shift_index\[1\]\[0\], but only 0 entries are given"),
        (NnrUnitHeader(nnr_unit_type=NNR_TPL), r"nnr_unit_header\(\) \(6\.3\.3\.1\) requires detail here"),
        (
            SparsificationPerformanceMap(spm_count_thresholds=2),
            r"sparsification_performance_map\(\) requires sparsification_threshold\[0\]",
        ),
        (
            NnrAggregateUnitHeader(nnr_aggregate_unit_type=0, num_of_nnr_units_minus2=1, quant_bitdepth=[1, 2]),
            r"nnr_aggregate_unit_header\(\) requires nnr_reserved_zero_3bits\[0\]",
        ),
    ],
)
def test_missing(structure: Structure, message: str) -> None:
    with pytest.raises(WriteError, match=message):
        write(structure)
    with pytest.raises(WriteError, match=message):
        count(structure)


def test_missing_element_without_default() -> None:
    for cls in (NnrUnitSize, BitMask, NnrStartUnitHeader, NnrPruningTopologyContainer):
        with pytest.raises(WriteError, match=rf"{cls.table_name}\(\) \({cls.clause}\) requires "):
            write(cls.__new__(cls))


def test_too_few_ids() -> None:
    """A list has at least two entries (errata N7), because the count minus 2 cannot be negative."""
    with pytest.raises(WriteError, match="count_topology_elements_minus2: -1 is negative"):
        write(several(topology_elem_id_list=["a"]))


# ------------------------------------------------------------------------------------------------ wrong
def test_unknown_element() -> None:
    header = ndu()
    with pytest.raises(
        AttributeError, match=r"nnr_compressed_data_unit_header\(\) \(6\.3\.3\.7\) has no syntax element 'dq'"
    ):
        header.dq = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no syntax element 'size'"):
        NnrUnitSize(size=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ({"dq_flag": 2}, r"dq_flag: 2 does not fit in u\(1\)"),
        ({"dq_flag": -1}, r"dq_flag: -1 does not fit in u\(1\)"),
        ({"dq_flag": "1"}, r"dq_flag: 'str' object"),
        ({"topology_elem_id": 3}, "topology_elem_id: "),
        ({"topology_elem_id": "a\0"}, "topology_elem_id: .* zero character"),
        ({"tensor_dimensions": [3, -1]}, r"tensor_dimensions\[1\]: -1 is negative"),
        ({"tensor_dimensions": [3, 1.5]}, r"tensor_dimensions\[1\]: 'float' object"),
        (
            {"nnr_compressed_data_unit_payload_type": NNR_PT_BLOCK, "codebook_present_flag": 1, "codebook": 3},
            "codebook",
        ),
    ],
)
def test_value_that_its_descriptor_cannot_code(elements: dict[str, Any], message: str) -> None:
    with pytest.raises(WriteError, match=r"nnr_compressed_data_unit_header\(\)\." + message):
        write(ndu(**elements))


def test_structure_of_another_class() -> None:
    header = NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=NnrStartUnitHeader(general_profile_idc=1))
    with pytest.raises(WriteError, match="detail"):
        write(header)


@pytest.mark.parametrize("elements", [{"shift_index": [5]}, {"split_index": 5}, {"split_index": None}])
def test_list_of_the_wrong_shape(elements: dict[str, Any]) -> None:
    header = several()
    for name, value in elements.items():
        setattr(header, name, value)
    with pytest.raises(WriteError):
        write(header)


def test_value_that_the_session_refuses() -> None:
    with pytest.raises(WriteError, match="scan_order"):
        write(ndu(scan_order=7))


def test_descriptor_is_no_value() -> None:
    for descriptor in (coder.u(1), coder.ue(2), coder.flt(32), coder.st(), coder.bs(), coder.bits(3)):
        with pytest.raises(TypeError, match="is a descriptor, not a value"):
            bool(descriptor)
    with pytest.raises(TypeError, match=r"struct|bit_mask\(\) is a descriptor"):
        bool(coder.struct(BitMask))
    with pytest.raises(TypeError, match=r"u\(4\) is a descriptor"):
        range(coder.u(4))
    with pytest.raises(TypeError):
        _ = coder.u(4) + 1


def test_descriptors_have_the_names_of_the_standard() -> None:
    descriptors: list[Any] = [coder.u(15), coder.i(13), coder.ue(7), coder.ie(2), coder.flt(32), coder.st(), coder.bs()]
    assert [repr(d) for d in descriptors] == ["u(15)", "i(13)", "ue(7)", "ie(2)", "flt(32)", "st(v)", "bs(v)"]
    assert repr(coder.bits(9)) == "u(1) x 9"
    assert repr(coder.struct(BitMask)) == "bit_mask()"


# ------------------------------------------------------------------------------------------------ the caller's side
@pytest.mark.parametrize("name", TABLES)
def test_structure_is_untouched_and_unbound_after_writing(name: str) -> None:
    for seed in range(20):
        structure, session = sample(name, seed)
        before = copy.deepcopy(structure.__dict__)
        write(structure, session)
        count(structure, session)
        assert structure.__dict__ == before
        assert_plain(structure)


def test_structure_is_untouched_after_a_failure() -> None:
    header = several(split_index=[8, 9])
    before = copy.deepcopy(header.__dict__)
    with pytest.raises(WriteError):
        write(header)
    assert header.__dict__ == before
    assert_plain(header)


def assert_plain(value: Any) -> None:
    """Check that lists are plain lists without references to a coder."""
    if isinstance(value, Structure):
        assert value._coder is None
        assert set(value.__dict__) <= set(value.elements)
        for element in value.present().values():
            assert_plain(element)
    elif isinstance(value, list):
        assert type(value) is list
        for item in value:
            assert_plain(item)


@pytest.mark.parametrize("name", TABLES)
def test_read_values_are_plain(name: str) -> None:
    for seed in range(20):
        structure, session = sample(name, seed)
        again = read(write(structure, session), type(structure), session)
        assert_plain(again)
        assert pickle.loads(pickle.dumps(again)) == again == copy.deepcopy(again)


def test_edit_and_write_again() -> None:
    header = read(write(several()), NnrCompressedDataUnitHeader)
    header.split_index.append(9)
    header.topology_elem_id_list.append("c")
    header.number_of_shifts.append(0)
    header.count_topology_elements_minus2 = 1
    again = read(write(header), NnrCompressedDataUnitHeader)
    assert again.topology_elem_id_list == ["a", "b", "c"]
    assert again.split_index == [8, 9]


def test_equality() -> None:
    assert ndu() == ndu()
    assert ndu() != ndu(dq_flag=1)
    assert ndu() != object()
    with pytest.raises(TypeError):
        hash(ndu())


def test_repr_shows_set_elements() -> None:
    assert repr(NnrTopologyUnitHeader(topology_storage_format=1)) == "NnrTopologyUnitHeader(topology_storage_format=1)"


def test_order_of_present_is_that_of_the_bits() -> None:
    header = read(write(NnrUnitHeader(nnr_unit_type=NNR_NDU, detail=ndu())), NnrUnitHeader)
    assert list(header.present()) == [
        "nnr_unit_type",
        "independently_decodable_flag",
        "partial_data_counter_present_flag",
        "detail",
    ]


def test_order_of_present_with_lists() -> None:
    names = list(read(write(several()), NnrCompressedDataUnitHeader).present())
    assert names.index("topology_elem_id_list") > names.index("count_topology_elements_minus2")


def test_element_at_two_places() -> None:
    """parameter_id is printed twice; it can be set for either place."""
    session = Session(general_profile_idc=1, mps_parent_signalling_enabled_flag=1)
    node = {"node_id_present_flag": 1, "device_id": 1, "parameter_id": 2, "put_node_depth": 3}
    parent = {"parent_node_id_present_flag": 1, "parent_node_id_type": 0, "parent_device_id": 1}
    for elements in (node, parent | {"parameter_id": 2, "put_node_depth": 3}, node | parent):
        header = ndu(**elements)
        assert read(write(header, session), NnrCompressedDataUnitHeader, session).parameter_id == 2


def test_values_of_an_enumeration_are_members() -> None:
    header = read(write(ndu()), NnrCompressedDataUnitHeader)
    assert header.nnr_compressed_data_unit_payload_type is PayloadType.NNR_PT_INT
