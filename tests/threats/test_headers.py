"""T9 to T18, T27 and T31 to T33: declarations of headers and parameter sets."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import (
    NNR_CPT_DC,
    NNR_LPS,
    NNR_PT_FLOAT,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    NNR_TPL,
    NNR_TPL_PRUN,
)
from nnr_codec.limits import Limits
from nnr_codec.syntax import BitReader, BitWriter
from nnr_codec.syntax.bitio import NotANumber
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from ..builder import Bitstream, codebook, ndu
from ..decoder.support import overwritten
from .support import NDU, STRICT, memory, refused, start, unit

#: Maximum bytes of memory after NNR_STR and NNR_MPS; nothing may be allocated for what the header declares.
LITTLE = 200_000


def declares(header: NnrCompressedDataUnitHeader, *, profile: int = 1, indexed: int = 0) -> bytes:
    """Return a bitstream with an NDU of any header and one byte of payload."""
    stream = Bitstream().str_(profile).mps(indexed=indexed)
    stream.session.reference_list = ["a", "b", "c"] if indexed else []
    return stream.ndu(header, payload=b"\x80").data


# ------------------------------------------------------------------------------------------------ T9, T10: codes
def test_t09_a_prefix_of_eight_million_zeros() -> None:
    """No integer of this size is created."""
    zeros = BitReader(bytes(1 << 20) + b"\1")
    with memory() as used, pytest.raises(nnr.LimitError, match="max_eg_bits=32"):
        zeros.ue(7)
    assert used.peak < 10_000
    with pytest.raises(nnr.LimitError, match="max_eg_bits=32"):
        BitReader(bytes(3) + b"\1" + bytes(8)).ue(7)
    refused(start().add(unit(b"\x04" + bytes(1 << 14), NDU)).data, nnr.LimitError, "max_eg_bits=32")


def test_t10_a_string_without_an_end() -> None:
    refused(start().add(unit(b"\x01" + 1000 * b"w", NDU)).data, nnr.TruncatedError, "no terminating zero")


def test_t10_a_string_of_any_length() -> None:
    data = start().add(unit(b"\x01" + 10_000 * b"w" + b"\0", NDU)).data
    with memory() as used:
        refused(data, nnr.LimitError, "max_name_bytes=4096")
    assert used.peak < LITTLE


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"w\xf0\x9f"])
def test_t10_a_string_that_is_not_utf8(text: bytes) -> None:
    """The strings include surrogates and overlong zeros."""
    refused(start().add(unit(b"\x01" + text + b"\0", NDU)).data, nnr.ElementError, "not UTF-8")


def test_t10_a_zero_inside_a_name_is_not_written() -> None:
    with pytest.raises(ValueError, match="zero character"):
        BitWriter().st(0, "a\0b")
    with pytest.raises(nnr.EncodeError):
        nnr.encode({"a\0b": np.zeros(2, np.float32)})


# ------------------------------------------------------------------------------------------------ T11, T12: lists
@pytest.mark.parametrize("indexed", [0, 1])
def test_t11_a_number_of_tensors(indexed: int) -> None:
    """The declared number exceeds the limit and the size of the unit."""
    header = BitWriter()
    header.u(8, NNR_PT_INT << 3 | 0b101)
    header.ue(7, 99_999)
    header.u(64, 1 << 63)
    data = Bitstream().str_().mps(indexed=indexed).add(unit(header.getvalue(), NDU)).data
    refused(data, nnr.LimitError, "count_topology_elements_minus2: .* max_names", limits=STRICT)


def test_t11_a_number_of_pruned_tensors() -> None:
    writer = BitWriter()
    writer.u(8, 0b01_1_0_0_000)  # NNR_TPL_DICT, prune_flag
    writer.ue(7, 100_001)
    writer.u(64, 1 << 63)
    data = start().add(unit(bytes([NNR_TPL_PRUN, 0]) + writer.getvalue(), NNR_TPL << 2 | 2)).data
    refused(data, nnr.LimitError, "count_ids: .* max_names", limits=STRICT)


def test_t11_entries_of_nested_lists_count() -> None:
    """Numbers of dimensions and shifts have no separate limit."""
    mapping: dict[str, Any] = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [500, 0]}
    shifts: dict[str, Any] = {"shift_index": [500 * [0], []], "shift_value": [500 * [0], []]}
    data = declares(ndu(["a", "b"], [2], kind=NNR_PT_INT, **mapping, **shifts))
    refused(data, nnr.LimitError, "list entries of one unit", limits=Limits(max_names=300))


def test_t11_entries_of_all_units_count() -> None:
    data = start().reference_list(*map(str, range(50))).reference_list(*map(str, range(50))).data
    refused(data, nnr.LimitError, "list entries of all headers", limits=Limits(max_names=99))


def test_t11_ids_are_unique() -> None:
    twice = start().ndu(ndu("w", [1], kind=NNR_PT_INT), [1]).ndu(ndu("w", [2], kind=NNR_PT_INT), [1, 2])
    refused(twice.data, nnr.ElementError, "'w' occurs twice")
    mapping: dict[str, Any] = {"concatentation_axis_index": 0, "split_index": [1], "number_of_shifts": [0, 0]}
    refused(declares(ndu(["a", "a"], [2], kind=NNR_PT_INT, **mapping)), nnr.ElementError, "'a' occurs twice")


@pytest.mark.parametrize("index", [0, 3, (1 << 32) - 1])
def test_t12_an_index_outside_the_reference_list(index: int) -> None:
    refused(declares(ndu(index, [2], kind=NNR_PT_INT), indexed=1), nnr.MissingReferenceError, "reference list")


# ------------------------------------------------------------------------------------------------ T13 to T15: sizes
def test_t13_a_number_of_dimensions() -> None:
    """The number exceeds the maximum of numpy."""
    data = declares(ndu("w", 33 * [1], kind=NNR_PT_INT))
    refused(data, nnr.LimitError, "count_tensor_dimensions: .* max_dims=32")


def test_t13_a_number_of_dimensions_from_outside() -> None:
    dims = {"w": 33 * [1]}
    data = Bitstream(dims).str_().mps().raw(ndu("w", None, kind=NNR_PT_RAW_FLOAT), [1]).data
    refused(data, nnr.LimitError, "number of dimensions", topology_dimensions=dims)


def test_t13_the_limit_itself_is_one_that_numpy_has() -> None:
    with pytest.raises(ValueError, match="32"):
        Limits(max_dims=33)


@pytest.mark.parametrize("dims", [[0], [0, 5], [5, 0], [3, 0, 4], []])
def test_t14_a_dimension_of_nothing(dims: list[int]) -> None:
    refused(declares(ndu("w", dims, kind=NNR_PT_INT)), nnr.ElementError, "describe an empty tensor")


HUGE = ndu(
    "w", [1 << 20, 1 << 20], codebook_present_flag=1, codebook=codebook([0], 0)
)  # 4 TiB, of which no bin is decoded


def test_t14_elements_of_a_tensor() -> None:
    n = Limits.NONE
    with memory() as used:
        refused(declares(HUGE), nnr.LimitError, "max_tensor_elements", limits=Limits(max_tensor_bytes=n))
    assert used.peak < LITTLE


def test_t14_bytes_of_a_tensor() -> None:
    n = Limits.NONE
    with memory() as used:
        limits = Limits(max_tensor_elements=n, max_total_bytes=n)
        refused(declares(HUGE), nnr.LimitError, "max_tensor_bytes", limits=limits)
    assert used.peak < LITTLE


def test_t14_bytes_of_all_tensors() -> None:
    """Each tensor is within the limits."""
    stream = start()
    for k in range(5):
        stream.ndu(ndu(f"w{k}", [100, 100], codebook_present_flag=1, codebook=codebook([0], 0)), np.zeros((100, 100)))
    assert len(nnr.decode(stream.data, limits=Limits(max_total_bytes=200_000))) == 5
    refused(stream.data, nnr.LimitError, "max_total_bytes", limits=Limits(max_total_bytes=199_999))


def decomposed(rank: int, rows: int, dims: tuple[int, int] = (6, 4)) -> NnrCompressedDataUnitHeader:
    """Return the header of G."""
    return ndu("w", dims, compressed_parameter_types=NNR_CPT_DC, decomposition_rank=rank, g_number_of_rows=rows)


@pytest.mark.parametrize(("rank", "rows"), [(0, 6), (2, 0), (0, 0), (2, 5)])
def test_t15_factors_that_do_not_divide(rank: int, rows: int) -> None:
    refused(declares(decomposed(rank, rows)), nnr.ElementError, "cannot be G of")


def pair(rank: int, rows: int, columns: int) -> bytes:
    """Return G and H of zeros."""
    stream = start()
    stream.ndu(decomposed(rank, rows, (rows, columns)), np.zeros((rows, rank)))
    return stream.ndu(decomposed(rank, rows, (rows, columns)), np.zeros((rank, columns))).data


def test_t15_the_size_of_a_product() -> None:
    """G and H of 1,000 parameters each give a product of a million."""
    data = pair(1, 1000, 1000)
    assert nnr.decode(data)["w"].shape == (1000, 1000)
    with memory() as used:
        refused(data, nnr.LimitError, "recomposed tensor", limits=Limits(max_tensor_elements=999_999))
    assert used.peak < LITTLE


def test_t15_the_work_of_a_product() -> None:
    data = pair(50, 50, 50)
    limits = Limits(max_decomp_elements=50 * 50 * 50)
    refused(data, nnr.LimitError, "max_decomp_elements", limits=limits)


# ------------------------------------------------------------------------------------------------ T16, T18: codebooks
@pytest.mark.parametrize("offset", [-3, 2, 1000])
def test_t16_a_zero_outside_the_codebook(offset: int) -> None:
    book = codebook([-2, -1, 0, 1], 2)
    book.codebook_centre_offset = offset
    book.codebook_delta_left = [0] * max(2 + offset, 0)
    book.codebook_delta_right = [0] * max(1 - offset, 0)
    refused(declares(ndu("w", [2], codebook_present_flag=1, codebook=book)), nnr.ElementError, "CbZeroOffset")


@pytest.mark.parametrize("entries", [[0, 1 << 31], [-(1 << 31) - 1, 0], [-(1 << 31), 0, 1 << 31]])
def test_t16_entries_of_more_than_32_bits(entries: list[int]) -> None:
    header = ndu("w", [2], codebook_present_flag=1, codebook=codebook(entries, entries.index(0)))
    refused(declares(header), nnr.ElementError, "exceeds 32 bits")


def test_t16_the_size_of_a_codebook() -> None:
    """The unit is too small for the entries, and is rejected before they are read."""
    header = BitWriter()
    header.u(8, NNR_PT_FLOAT << 3)
    header.st(0, "w")
    header.u(5, 1 << 4)  # codebook_present_flag and codebook_egk
    header.ue(2, 4097)
    header.u(64, (1 << 64) - 1)
    data = start(0).add(unit(header.getvalue(), NDU)).data
    refused(data, nnr.LimitError, "codebook_size: 4,097 is more than max_codebook", limits=STRICT)


@pytest.mark.parametrize("scan", range(5, 16))
def test_t18_a_reserved_scan_order(scan: int) -> None:
    data = declares(ndu("w", [100, 100], kind=NNR_PT_INT))
    refused(overwritten(data, "scan_order", scan), nnr.ElementError, "scan_order")


@pytest.mark.parametrize("shift", [2, 3, 1 << 31])
def test_t18_a_shift_beyond_the_dimensions(shift: int) -> None:
    header = ndu("w", [2, 3], kind=NNR_PT_INT, first_tensor_dimension_shift=shift)
    refused(declares(header), nnr.ElementError, "first_tensor_dimension_shift")


# ------------------------------------------------------------------------------------------------ T27: formats
@pytest.mark.parametrize(("value", "profile"), [(10, 1), (127, 1), (5, 0)])
def test_t27_a_reserved_format(value: int, profile: int) -> None:
    header = ndu("w", [2], kind=NNR_PT_INT, data_format=value)
    refused(declares(header, profile=profile), nnr.ElementError, f"format {value}")


@pytest.mark.parametrize(("kind", "value"), [(NNR_PT_INT, 1), (NNR_PT_RAW_FLOAT, 5)])
def test_t27_a_format_of_another_payload_type(kind: int, value: int) -> None:
    refused(declares(ndu("w", [2], kind=kind, data_format=value)), nnr.ElementError, "not allowed with this payload")


@pytest.mark.parametrize("kind", [4, 31])
def test_t27_a_reserved_payload_type(kind: int) -> None:
    refused(declares(ndu("w", [2], kind=kind)), nnr.ElementError, "reserved")


@pytest.mark.parametrize(("value", "level"), [(2, 2), (2, -3), (5, 128), (6, -32_769)])
def test_t27_a_value_beyond_its_format(value: int, level: int) -> None:
    data = start().ndu(ndu("w", [2], kind=NNR_PT_INT, data_format=value), [0, level]).data
    refused(data, nnr.PayloadError, "exceeds the .* bits")


# ------------------------------------------------------------------------------------------------ T31: several tensors
def split(axis: int, at: int, shift: tuple[int, int] = (0, 0)) -> bytes:
    """Return two tensors of one unit of shape (4, 3)."""
    mapping: dict[str, Any] = {"concatentation_axis_index": axis, "split_index": [at], "number_of_shifts": [1, 0]}
    shifts: dict[str, Any] = {"shift_index": [[shift[0]], []], "shift_value": [[shift[1]], []]}
    return start().ndu(ndu(["a", "b"], [4, 3], kind=NNR_PT_INT, **mapping, **shifts), np.ones((4, 3))).data


@pytest.mark.parametrize("axis", [2, 255])
def test_t31_an_axis_outside_the_tensor(axis: int) -> None:
    refused(split(axis, 1), nnr.ElementError, "concatentation_axis_index")


@pytest.mark.parametrize("at", [0, 4, 5, 1 << 31])
def test_t31_a_split_outside_the_tensor(at: int) -> None:
    refused(split(0, at), nnr.ElementError, "split_index")


@pytest.mark.parametrize("shift", [(2, 0), (0, 1), (1, 2), (1 << 31, 0)])
def test_t31_a_shift_outside_the_tensor(shift: tuple[int, int]) -> None:
    refused(split(0, 2, shift), nnr.ElementError, "cannot be shifted")


# ------------------------------------------------------------------------------------------------ T32, T33: maps
def test_t32_a_mask_of_four_billion_bits() -> None:
    body = bytes([NNR_TPL_PRUN, 0, 0b00_1_0_0_000]) + bytes.fromhex("FFFFFFFF 80")
    with memory() as used:
        refused(
            start().add(unit(body, NNR_TPL << 2 | 2)).data,
            nnr.TruncatedError,
            "4294967295 more bits",
            path="prune_mask.bit_mask_value",
        )
    assert used.peak < LITTLE


def performance(content: str) -> bytes:
    """Return an LPS with a pruning performance map."""
    return start().add(unit(bytes.fromhex("00 20" + content), NNR_LPS << 2 | 2)).data


NAN = "010080FF"  # a signaling not-a-number of flt(32)


def test_t33_values_that_are_not_numbers_are_kept() -> None:
    map_ = f"02 {NAN} 0000C07F 00 80 80"
    content = list(nnr.units(performance(map_)))[-1].payload.pruning  # type: ignore[union-attr]
    assert all(isinstance(value, NotANumber) for value in (*content.pruning_ratio, *content.ppm_nn_accuracy))
    assert content.pruning_ratio[0].bits == int(NAN, 16)


def test_t33_no_ratio_at_all() -> None:
    """The table counts to count - 1, which is not 255 (errata I16)."""
    payload = list(nnr.units(performance("00 80")))[-1].payload
    assert "pruning_ratio" not in payload.pruning  # type: ignore[union-attr]


def test_t33_more_classes_than_there_are_bytes() -> None:
    """A decomposition map declares 65,535 classes, but has two accuracies."""
    mps = bytes.fromhex("08 00 02") + 3 * struct.pack("<f", 0.5) + b"\xff\xff" + bytes(8) + b"\x80"
    data = Bitstream().str_(0).add(unit(mps, 0x06)).data
    with memory() as used:
        refused(data, nnr.TruncatedError, None, path="decomposition.dpm_nn_class_accuracy[0]")
    assert used.peak < LITTLE
