"""Malicious tensor files of NNEF, and their headers in side information."""

from __future__ import annotations

import io

import numpy as np
import pytest

from nnr_codec.errors import FormatError
from nnr_codec.formats.nnef.tensorfile import HEADER_SIZE, header_of, read_tensor, write_tensor
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array

from ..formats.support import head
from .support import memory


def bad(data: bytes, message: str) -> None:
    """Check that a file is rejected at nearly no cost."""
    with memory() as used, pytest.raises(FormatError, match=message):
        read_tensor(io.BytesIO(data), len(data), "w.dat", Budget(Limits()))
    assert used.peak < 1 << 20


def edited(data: bytes, offset: int, value: int) -> bytes:
    """Return the data with another integer of 4 bytes."""
    return data[:offset] + value.to_bytes(4, "little") + data[offset + 4 :]


GOOD = head(4, 8, (2, 3)) + bytes(6)


@pytest.mark.parametrize("size", [0, 1, 11, 44, HEADER_SIZE - 1])
def test_a_header_that_ends_early(size: int) -> None:
    bad(GOOD[:size], f"the file has {size} bytes; the header of a tensor file requires 128")


@pytest.mark.parametrize("rank", [9, 29, 30, 1 << 31])
def test_a_rank_beyond_the_extents(rank: int) -> None:
    bad(edited(GOOD, 8, rank), f"rank {rank} exceeds the maximum of 8")


def test_an_extent_of_zero() -> None:
    bad(edited(edited(GOOD, 12, 0), 4, 0)[:HEADER_SIZE], r"shape \(0, 3\) has an extent of 0")


def test_extents_that_the_items_do_not_have() -> None:
    bad(edited(GOOD, 12, 1 << 28), r"6 bytes of items; shape \(268435456, 3\) requires 805306368")


@pytest.mark.parametrize("data", [GOOD + b"\0", GOOD[:-1], GOOD[:HEADER_SIZE]])
def test_items_that_the_file_does_not_have(data: bytes) -> None:
    bad(data, rf"{len(data)} bytes; header and items require {len(GOOD)}")


VENDOR = edited(edited(GOOD, 48, 0x54522040), 44, 0xFFFFFFFF)


@pytest.mark.parametrize("extent", [17, 1 << 28])
def test_items_that_the_data_of_a_vendor_does_not_have(extent: int) -> None:
    """The array would have the shape of the tensor, whatever the size of the data."""
    bad(edited(VENDOR, 12, extent), r"item type 0x2040 of vendor 0x5452 \(tract\) has 6 bytes for")


def test_data_of_a_vendor_that_does_not_fit_its_items() -> None:
    bad(edited(VENDOR, 4, 49)[:HEADER_SIZE] + bytes(49), "has 49 bytes for 6 items")


@pytest.mark.parametrize("data", [VENDOR + b"\0", VENDOR[:-1], VENDOR[:HEADER_SIZE]])
def test_data_of_a_vendor_that_the_file_does_not_have(data: bytes) -> None:
    bad(data, rf"{len(data)} bytes; header and items require {len(VENDOR)}")


def test_data_beyond_that_of_a_vendor() -> None:
    """It would be lost, like data of another shape."""
    array = np.ones((2, 3), np.uint8)
    header = header_of(array, "scalar", "w.dat", edited(VENDOR, 4, 5)[:HEADER_SIZE].hex())
    with pytest.raises(FormatError, match="vendor data is longer than its header declares"):
        write_tensor(io.BytesIO(), array, header, "w.dat")
    with pytest.raises(FormatError, match=r"the vendor data has shape \(2, 3\); the tensor has \(2, 2\)"):
        header_of(array[:, :2], "scalar", "w.dat", VENDOR[:HEADER_SIZE].hex())


@pytest.mark.parametrize("item_type", [6, 0x12, 0x1000, 0xFFFF])
def test_items_of_no_type(item_type: int) -> None:
    bad(edited(GOOD, 48, item_type), "NNEF does not define item type")


@pytest.mark.parametrize(("item_type", "bits"), [(0, 8), (0, 128), (4, 0), (4, 65), (5, 2), (5, 1 << 31)])
def test_items_of_a_width_that_their_type_does_not_have(item_type: int, bits: int) -> None:
    bad(edited(edited(GOOD, 44, bits), 48, item_type), f"cannot have {bits} bits")


def test_bits_that_no_item_has() -> None:
    """They would be lost."""
    bad(head(4, 3, (5,)) + b"\0\1", "the bits after the last item are not 0")


def written(array: Array, fields: bytes, data_type: str = "integer") -> bytes:
    file = io.BytesIO()
    write_tensor(file, array, header_of(array, data_type, "w.dat", fields.hex()), "w.dat")
    return file.getvalue()


@pytest.mark.parametrize("values", [[4, 0], [-5, 0], [0, 127]])
def test_items_that_their_header_has_no_room_for(values: list[int]) -> None:
    with pytest.raises(FormatError, match="an item does not fit the 3 bits"):
        written(np.array(values, np.int8), head(4, 3, (2,))[16:])


def test_a_header_that_is_too_long() -> None:
    with pytest.raises(FormatError, match="is not a valid part of a tensor file header"):
        written(np.zeros(2, np.int8), head(4, 8, (2,))[16:] + b"\1")


def test_a_header_that_does_not_fit_the_graph() -> None:
    with pytest.raises(FormatError, match="boolean is logical data; the variable is integer"):
        written(np.zeros(2, np.uint8), head(5, 8, (2,))[16:])


def test_an_array_that_no_file_holds() -> None:
    with pytest.raises(FormatError, match="holds at most"):
        header_of(np.broadcast_to(np.int8(0), (1 << 16, 1 << 16)), "integer", "w.dat")
