"""Errors of malformed structures: position, element and reason."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest

from nnr_codec import errors
from nnr_codec.constants import (
    NNR_LPS,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_FLOAT,
    NNR_TPL_DICT,
    NNR_TPL_REFLIST,
    NnrUnitType,
)
from nnr_codec.errors import BitstreamError, ElementError, LimitError, MissingReferenceError, NnrError, TruncatedError
from nnr_codec.limits import Limits
from nnr_codec.syntax import TABLES, BitReader, BitWriter, Descriptor, Reader, Session
from nnr_codec.syntax.structures import (
    BitMask,
    IntegerCodebook,
    NnrAggregateUnitHeader,
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    SparsificationPerformanceMap,
)

from .samples import read, sample, write


def header() -> NnrUnitHeader:
    """Return a unit header with three levels of structures."""
    codebook = IntegerCodebook(
        codebook_egk=2,
        codebook_size=4,
        codebook_centre_offset=0,
        codebook_zero_value=-3,
        codebook_delta_left=[0, 1],
        codebook_delta_right=[5],
    )
    return NnrUnitHeader(
        nnr_unit_type=NNR_NDU,
        detail=NnrCompressedDataUnitHeader(
            nnr_compressed_data_unit_payload_type=NNR_PT_FLOAT,
            topology_elem_id="fc",
            codebook_present_flag=1,
            codebook=codebook,
            input_parameters_present_flag=1,
            tensor_dimensions_flag=1,
            tensor_dimensions=[9],
        ),
    )


def elements_of(data: bytes) -> list[tuple[str, int, int]]:
    """Return path, first bit and end of each element."""
    out: list[tuple[str, int, int]] = []

    def trace(path: str, descriptor: Descriptor, bit: int, size: int, value: Any) -> None:
        if descriptor.kind != "struct":
            out.append((path, bit, bit + size))

    Reader(Session(), BitReader(data), trace).read(NnrUnitHeader, "header")
    return out


def test_paths_lead_through_nested_structures() -> None:
    paths = [path for path, _bit, _end in elements_of(write(header()))]
    assert paths[:2] == ["header.nnr_unit_type", "header.independently_decodable_flag"]
    assert "header.nnr_compressed_data_unit_header.codebook.codebook_delta_left[1]" in paths
    assert "header.nnr_compressed_data_unit_header.tensor_dimensions[0]" in paths
    assert paths[-1] == "header.nnr_compressed_data_unit_header.byte_alignment()"


def test_truncation_names_element_and_bit() -> None:
    data = write(header())
    elements = elements_of(data)
    for length in range(len(data)):
        path, bit, _end = next(element for element in elements if element[2] > 8 * length)
        path = path.replace("[0]", "").replace("[1]", "").removesuffix(".byte_alignment()")
        with pytest.raises(TruncatedError) as caught:
            Reader(Session(), BitReader(data[:length])).read(NnrUnitHeader, "header")
        assert (caught.value.path, caught.value.bit) == (path, bit)
        assert str(caught.value).startswith(f"bit {bit}, {path}: ")


@pytest.mark.medium
@pytest.mark.parametrize("name", TABLES)
def test_every_truncation_is_reported(name: str) -> None:
    """Truncation inside bs(v) is excepted, because it ends with the data."""
    for seed in range(30):
        structure, session = sample(name, seed)
        data = write(structure, session)
        if {"topology_data", "quantization_data"} & set(structure.present()):
            continue
        for length in some_of(len(data)):
            with pytest.raises((TruncatedError, ElementError)) as caught:
                read(data[:length], type(structure), session)
            assert caught.value.path
            assert 0 <= caught.value.bit <= 8 * length


@pytest.mark.medium
@pytest.mark.parametrize("name", TABLES)
def test_damaged_structures_raise_nothing_else(name: str) -> None:
    for seed in range(30):
        structure, session = sample(name, seed)
        data = write(structure, session)
        for bit in some_of(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit >> 3] ^= 0x80 >> (bit & 7)
            with contextlib.suppress(BitstreamError, MissingReferenceError):
                read(bytes(damaged), type(structure), session)


def some_of(n: int) -> range:
    """Return at most 20 of the integers below n, including the first."""
    return range(0, n, 1 + n // 20)


def test_path_of_a_reader_without_a_name() -> None:
    with pytest.raises(TruncatedError) as caught:
        read(b"", NnrUnitHeader)
    assert caught.value.path == "nnr_unit_type"


def test_byte_alignment_violation() -> None:
    good = write(NnrLayerParameterSetUnitPayload())
    assert good == b"\x00\x80"  # already aligned: a separate byte (6.3.5)
    for bad in (b"\x00\x00", b"\x00\x81", b"\x00\xc0", b"\x00\x40"):
        with pytest.raises(
            ElementError, match=r"byte_alignment\(\) is [01]{8}, not a one followed by zeros \(6\.3\.5\)"
        ):
            read(bad, NnrLayerParameterSetUnitPayload)


def test_byte_alignment_of_part_of_a_byte() -> None:
    mask = bytes.fromhex("00000003")
    assert read(mask + b"\xb0", BitMask).bit_mask_value.to01() == "101"
    with pytest.raises(ElementError, match=r"byte_alignment\(\) is 10001,"):
        read(mask + b"\xb1", BitMask)
    with pytest.raises(ElementError, match=r"byte_alignment\(\) is 00000,"):
        read(mask + b"\xa0", BitMask)


def test_bit_of_an_alignment_violation() -> None:
    with pytest.raises(ElementError) as caught:
        read(b"\x00\x81", NnrLayerParameterSetUnitPayload)
    assert caught.value.bit == 8


def test_missing_byte_alignment() -> None:
    with pytest.raises(TruncatedError) as caught:
        read(b"\x00", NnrLayerParameterSetUnitPayload)
    assert caught.value.bit == 8


def test_reserved_values_stay_plain_integers() -> None:
    data = bytes([63 << 2 | 2])
    unit = read(data, NnrUnitHeader)
    assert type(unit.nnr_unit_type) is int
    assert unit.nnr_unit_type == 63
    assert write(unit) == data
    known = read(bytes([NNR_MPS << 2 | 2]), NnrUnitHeader)
    assert known.nnr_unit_type is NnrUnitType.NNR_MPS
    assert repr(known.nnr_unit_type) == "<NnrUnitType.NNR_MPS: 1>"


def test_max_names() -> None:
    """The count precedes the names: it is rejected for any size of the data."""
    names = NnrTopologyUnitPayload(topology_elem_id_list=["a", "b", "c", "d"])
    session = Session(topology_storage_format=NNR_TPL_REFLIST)
    data = write(names, session)
    allowed = read(data, NnrTopologyUnitPayload, session, Limits(max_names=4))
    assert allowed.topology_elem_id_list == ["a", "b", "c", "d"]
    with pytest.raises(LimitError, match="count_topology_elements_minus2: 4 is more than max_names=3") as caught:
        read(data, NnrTopologyUnitPayload, session, Limits(max_names=3))
    assert caught.value.path == "count_topology_elements_minus2"
    assert caught.value.bit == 0


def test_count_ids_of_a_pruning_dictionary() -> None:
    bits = BitWriter()
    bits.u(2, NNR_TPL_DICT)
    bits.u(6, 0b100000)  # prune_flag
    bits.ue(7, 5)
    with pytest.raises(LimitError, match="count_ids: 5 is more than max_names=4"):
        read(bits.getvalue(), NnrPruningTopologyContainer, limits=Limits(max_names=4))


def test_entries_of_all_lists_count() -> None:
    """The sum is limited for lists whose own counts are small or are entries of a list."""
    classes = SparsificationPerformanceMap(
        spm_count_thresholds=2,
        sparsification_threshold=[0.5],
        non_zero_ratio=[0.5],
        spm_nn_accuracy=[0.5],
        spm_count_classes=[9],
        spm_class_bitmask=[0],
        spm_nn_class_accuracy=[[0.5] * 9],
    )
    data = write(classes)
    assert read(data, SparsificationPerformanceMap, limits=Limits(max_names=5 + 9)) == classes
    with pytest.raises(LimitError, match="list entries of one unit: 14 is more than max_names=13") as caught:
        read(data, SparsificationPerformanceMap, limits=Limits(max_names=13))
    assert caught.value.path == "sparsification_performance_map"


def test_max_codebook() -> None:
    data = write(header())
    limits = Limits(max_codebook=4)
    assert Reader(Session(), BitReader(data, limits=limits)).read(NnrUnitHeader) == read(data, NnrUnitHeader)
    with pytest.raises(LimitError, match="codebook_size: 4 is more than max_codebook=3") as caught:
        read(data, NnrUnitHeader, limits=Limits(max_codebook=3))
    assert caught.value.path == "nnr_compressed_data_unit_header.codebook.codebook_size"


def test_max_dims() -> None:
    structure = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=NNR_PT_FLOAT,
        input_parameters_present_flag=1,
        topology_elem_id="a",
        tensor_dimensions_flag=1,
        tensor_dimensions=[1, 2, 3],
    )
    data = write(structure)
    assert read(data, NnrCompressedDataUnitHeader, limits=Limits(max_dims=3)).tensor_dimensions == [1, 2, 3]
    with pytest.raises(LimitError, match="count_tensor_dimensions: 3 is more than max_dims=2"):
        read(data, NnrCompressedDataUnitHeader, limits=Limits(max_dims=2))


def test_max_units_of_an_aggregate() -> None:
    aggregate = NnrAggregateUnitHeader(
        nnr_aggregate_unit_type=0, num_of_nnr_units_minus2=2, quant_bitdepth=[0] * 4, nnr_reserved_zero_3bits=[0] * 4
    )
    data = write(aggregate)
    assert read(data, NnrAggregateUnitHeader, limits=Limits(max_units=4)) == read(data, NnrAggregateUnitHeader)
    with pytest.raises(LimitError, match="num_of_nnr_units_minus2: 4 is more than max_units=3"):
        read(data, NnrAggregateUnitHeader, limits=Limits(max_units=3))


def test_long_string_names_its_element() -> None:
    session = Session(general_profile_idc=1)
    payload = NnrModelParameterSetUnitPayload(base_model_id_present_flag=1, base_model_id="x" * 20)
    data = write(payload, session)
    assert read(data, NnrModelParameterSetUnitPayload, session).base_model_id == "x" * 20
    with pytest.raises(LimitError, match="max_name_bytes=19") as caught:
        read(data, NnrModelParameterSetUnitPayload, session, Limits(max_name_bytes=19))
    assert caught.value.path == "base_model_id"
    assert caught.value.bit == 16


@pytest.mark.parametrize("error", [TruncatedError, ElementError, errors.PayloadError, LimitError, BitstreamError])
def test_errors_survive_pickling(error: type[BitstreamError]) -> None:
    original = error("wrong", unit="unit 3 (NNR_NDU 'fc')", path="detail.scan_order", bit=77)
    again = pickle.loads(pickle.dumps(original))
    assert type(again) is error
    assert (again.message, again.unit, again.path, again.bit) == ("wrong", original.unit, original.path, 77)
    assert str(again) == str(original) == "unit 3 (NNR_NDU 'fc'), bit 77, detail.scan_order: wrong"
    assert again.args == original.args


def test_error_of_a_reader_survives_pickling() -> None:
    data = write(header())
    with pytest.raises(TruncatedError) as caught:
        read(data[:6], NnrUnitHeader)
    error = caught.value
    error.unit = "unit 1"
    again = pickle.loads(pickle.dumps(error))
    assert (again.unit, again.path, again.bit) == (error.unit, error.path, error.bit)
    assert error.path.startswith("nnr_compressed_data_unit_header.codebook")


def test_message_without_a_place() -> None:
    assert str(TruncatedError("too short")) == "too short"
    assert str(TruncatedError("too short", bit=0)) == "bit 0: too short"


def test_bitstream_errors_are_value_errors() -> None:
    for error in (TruncatedError, ElementError, LimitError):
        assert issubclass(error, BitstreamError)
        assert issubclass(error, ValueError)
        assert issubclass(error, NnrError)
    assert issubclass(MissingReferenceError, LookupError)


def test_number_of_dimensions_is_bounded() -> None:
    """The header of a decomposed tensor multiplies its dimensions in quadratic time."""
    bits = BitWriter()
    bits.u(5, 0)
    bits.u(3, 0b001)  # input parameters
    bits.st(0, "a")
    bits.u(1, 0)
    bits.u(2, 0b10)  # tensor dimensions
    bits.u(4, 1)  # decomposition
    bits.ue(3, 1)
    bits.ue(3, 1)
    bits.ue(1, 100)
    for _ in range(100):
        bits.ue(7, (1 << 32) - 1)
    bits.u(4, 4)
    bits.u(8 * 40, 0)
    with pytest.raises(LimitError, match="count_tensor_dimensions: 100 is more than max_dims=32") as caught:
        read(bits.getvalue(), NnrCompressedDataUnitHeader)
    assert 0 < caught.value.bit < 64  # before the dimensions themselves


def test_lps_header_of_one_byte_too_few() -> None:
    with pytest.raises(TruncatedError) as caught:
        read(bytes([NNR_LPS << 2 | 2]), NnrUnitHeader)
    assert (caught.value.path, caught.value.bit) == ("nnr_layer_parameter_set_unit_header.lps_self_contained_flag", 8)
