"""Malicious HDF5 files: structures that exceed the file, or lead in circles."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnr_codec import formats
from nnr_codec.errors import FormatError, NnrError
from nnr_codec.formats.keras import attributes
from nnr_codec.limits import Limits

from .support import memory

pytestmark = pytest.mark.clients


def h5(build: Callable[[Any], object]) -> bytearray:
    """Return a file written by h5py."""
    h5py = pytest.importorskip("h5py", reason="the package h5py (extra 'keras') is not installed")
    file = io.BytesIO()
    with h5py.File(file, "w") as target:
        build(target)
    return bytearray(file.getvalue())


def one(**options: Any) -> bytearray:
    """Return a file of one dataset."""
    return h5(lambda file: file.create_dataset("w", data=np.arange(64, dtype="<f4"), **options))


def place(data: bytes, what: bytes, after: int = 0) -> int:
    """Return the offset of bytes that occur once."""
    at = data.find(what, after)
    assert at >= 0
    return at


def put(data: bytearray, at: int, value: int, size: int = 8) -> bytes:
    """Return the data with another number."""
    data[at : at + size] = value.to_bytes(size, "little")
    return bytes(data)


def bad(data: bytes, message: str, peak: int = 1 << 20) -> None:
    """Check that a file is rejected at nearly no cost."""
    formats.load(bytes(one()), format="keras")
    with memory() as used, pytest.raises(NnrError, match=message):
        dict(formats.load(bytes(data), format="keras", limits=Limits.strict(), strict=True).tensors)
    assert used.peak < peak


def symbols(data: bytes) -> int:
    """Return the offset of the entries of the first group, after its node of symbols."""
    return place(data, b"SNOD") + 8


def header(data: bytes, name: int = 0) -> int:
    """Return the offset of the object header of an entry of the first group."""
    found: int = struct.unpack_from("<Q", data, symbols(data) + 40 * name + 8)[0]
    return found


@pytest.mark.parametrize("address", [1 << 20, (1 << 64) - 2])
def test_a_structure_outside_of_the_file(address: int) -> None:
    data = one()
    bad(put(data, symbols(data) + 8, address), "is outside the HDF5 file")


def test_a_header_that_goes_on_where_it_is() -> None:
    """A continuation refers to itself, as often as there are messages."""
    data = one()
    at = header(data)
    data[at + 2 : at + 4] = (65535).to_bytes(2, "little")
    data[at + 16 : at + 40] = struct.pack("<HHB3xQQ", 0x10, 16, 0, at + 16, 24)
    put(data, at + 8, 24, 4)
    bad(data, "the structures of the HDF5 file overlap")


def test_a_tree_that_grows() -> None:
    """A node of a B-tree is its own child."""
    data = one()
    at = place(data, b"TREE")
    data[at + 5] = 1
    bad(put(data, at + 24 + 8, at), "damaged")


def test_a_link_to_another_place() -> None:
    data = one()
    bad(put(data, symbols(data) + 16, 2, 4), "'w' is a soft link")


def test_two_objects_of_one_name() -> None:
    data = h5(lambda file: [file.create_dataset(name, data=np.ones(3)) for name in "vw"])
    at = symbols(data)
    bad(bytes(data[: at + 40]) + data[at : at + 8] + bytes(data[at + 48 :]), "two members have the same name")


@pytest.mark.parametrize("name", [b"", b".", b"/", b"a/b"])
def test_names_that_are_none(name: bytes) -> None:
    data = h5(lambda file: file.create_dataset("xyz", data=np.ones(3)))
    at = place(data, b"xyz\0")
    data[at : at + 3] = name.ljust(3, b"\0")
    bad(data, "is not a valid name")


def test_items_in_other_files() -> None:
    data = h5(lambda file: file.create_dataset("w", (4,), "f4", external=[("/etc/passwd", 0, 16)]))
    bad(data, "its items are in external files")


def test_unwritten_items() -> None:
    """Unwritten items of any number take no space in the file."""
    bad(h5(lambda file: file.create_dataset("w", (1 << 24,), "i1")), "the dataset has no items")


@pytest.mark.parametrize("at", [0, 8])
def test_items_outside_of_the_file(at: int) -> None:
    data = one()
    layout = place(data, b"\3\1" + struct.pack("<Q", place(data, np.arange(64, dtype="<f4").tobytes())))
    bad(put(data, layout + 2 + at, len(data)), "shape")


def test_a_shape_beyond_the_limits() -> None:
    data = one(chunks=(64,), maxshape=(None,))
    at = place(data, struct.pack("<QQ", 64, (1 << 64) - 1))
    bad(put(data, at, 1 << 40), "max_tensor_elements")


@pytest.mark.parametrize("field", ["outside", "between", "mask", "size", "twice"])
def test_chunks_that_do_not_fit(field: str) -> None:
    data = one(chunks=(16,))
    first, second = (place(data, struct.pack("<IIQQ", 64, 0, 16 * k, 0)) for k in (0, 1))
    changes = {"outside": (second + 8, 64), "between": (second + 8, 17), "mask": (second + 4, 1)}
    changes |= {"size": (second, 1 << 20), "twice": (second + 8, 0)}
    assert first < second
    at, value = changes[field]
    bad(put(data, at, value, 4), "the chunk at .* is invalid or occurs twice")


def test_unwritten_chunks() -> None:
    bad(h5(lambda file: file.create_dataset("w", (1 << 20,), "f4", chunks=(1 << 16,))), "0 of 16 chunks")


def test_a_chunk_beyond_the_limits() -> None:
    """A dataset of a few items has a chunk of billions."""
    data = one(chunks=(64,), compression="gzip", maxshape=(None,))
    at = place(data, struct.pack("<II", 64, 4))
    bad(put(data, at, 1 << 28, 4), "bytes of a chunk: 1,073,741,824 is more than max_tensor_bytes")


def test_a_chunk_that_expands() -> None:
    """A chunk that is declared as small was deflated to a thousandth."""
    options = {"chunks": (1 << 24,), "compression": "gzip", "maxshape": (None,)}
    data = h5(lambda file: file.create_dataset("w", data=np.zeros(1 << 24, "i1"), **options))
    chunk = place(data, b"\3\2\2") + 11  # behind version, class, rank and address of the layout
    assert struct.unpack_from("<II", data, chunk) == (1 << 24, 1)
    put(data, place(data, struct.pack("<QQ", 1 << 24, (1 << 64) - 1)), 64)
    bad(put(data, chunk, 64, 4), "a chunk is damaged, or has more than 64 bytes")


def test_chunks_of_nothing() -> None:
    data = one(chunks=(16,))
    bad(
        put(data, place(data, struct.pack("<II", 16, 4)), 0, 4),
        r"chunks have shape \(0,\), but the dataset has 1 dimensions",
    )


def test_a_rank_beyond_that_of_arrays() -> None:
    data = h5(lambda file: file.create_dataset("w", data=np.ones((1,) * 32, "f4")))
    at = place(data, bytes([1, 32, 1]))
    data[at + 1] = 33
    bad(data, "with 33 dimensions")


def test_a_virtual_dataset() -> None:
    h5py = pytest.importorskip("h5py", reason="the package h5py (extra 'keras') is not installed")

    def build(file: Any) -> None:
        layout = h5py.VirtualLayout((4,), "f4")
        layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
        file.create_virtual_dataset("w", layout)

    bad(h5(build), "layout version 4, used for example by virtual datasets, is not supported")


def test_filters_of_others() -> None:
    """The HDF5 library would search a folder for the code of such a filter and load it."""
    data = one(chunks=(16,), shuffle=True)
    at = place(data, struct.pack("<HHHH8s", 2, 8, 1, 1, b"shuffle"))
    bad(put(data, at, 32_015, 2), "filter 32015 is not supported; only gzip and shuffle are")


def texts(file: Any) -> None:
    """Return a file with a text of 60,000 bytes, and a thousand others."""
    file["w"] = np.ones(3, np.float32)
    file.attrs["list"] = ["x" * 60_000, *(str(k) for k in range(1000))]


def reference_of(data: bytes) -> int:
    """Return the offset of the reference to the long text: its length, and a heap."""
    at = -1
    while True:
        at = place(data, struct.pack("<I", 60_000), at + 1)
        heap: int = struct.unpack_from("<Q", data, at + 4)[0]
        if data[heap : heap + 4] == b"GCOL":
            return at


def test_texts_that_are_one_text() -> None:
    """References to one text take 16 bytes each, and would become 60 MB of texts."""
    data = h5(texts)
    at = reference_of(data)
    reference = bytes(data[at : at + 16])
    data[at : at + 16 * 1001] = reference * 1001
    bad(data, "texts of attributes: .* is more than max_topology_bytes", 4 << 20)


def test_a_text_that_is_shorter() -> None:
    data = h5(texts)
    at = reference_of(data)
    bad(put(data, at, 100_000, 4), "a string of 100000 bytes is missing from the heap", 2 << 20)


def test_more_attributes_than_the_limits() -> None:
    def build(file: Any) -> None:
        file["w"] = np.ones(3, np.float32)
        for number in range(200):
            file["w"].attrs[f"k{number}"] = number

    with pytest.raises(NnrError, match="max_names=100"):
        formats.load(bytes(h5(build)), format="keras", limits=Limits(max_names=100))


def zipped(weights: bytes) -> bytearray:
    """Return an archive of Keras."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("config.json", b"{}")
        archive.writestr("model.weights.h5", weights)
    return bytearray(file.getvalue())


@pytest.mark.parametrize("field", ["size", "name"])
def test_weights_that_the_archive_does_not_have(field: str) -> None:
    data = zipped(bytes(one()))
    entry = place(data, b"PK\1\2", place(data, b"PK\1\2") + 1)
    if field == "size":
        changed = put(data, entry + 24, len(data), 4)
    else:
        local: int = struct.unpack_from("<I", data, entry + 42)[0]
        changed = put(data, local + 28, 60_000, 2)
    bad(changed, "the declared size of model.weights.h5 is wrong")


def test_weights_that_are_somewhere_else() -> None:
    data = zipped(bytes(one()))
    entry = place(data, b"PK\1\2", place(data, b"PK\1\2") + 1)
    bad(put(data, entry + 42, 3, 4), "is not at its declared offset")


def test_attributes_that_no_header_holds() -> None:
    """The metadata of a bitstream may contain such attributes."""
    with pytest.raises(FormatError, match="an attribute has at most 64,000"):
        attributes.from_metadata({"keras:hdf5": '{"":{"x":["ascii:9000",[10],["","","","","","","","","",""]]}}'}, None)
