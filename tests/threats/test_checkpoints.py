"""Malicious checkpoints of TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from nnr_codec import formats
from nnr_codec.errors import NnrError
from nnr_codec.formats import companion_files
from nnr_codec.formats.protobuf import varint
from nnr_codec.formats.tensorflow.checksum import crc32c, masked
from nnr_codec.limits import Limits

from ..formats.test_tensorflow import ENTRY, HEADER, block, checkpoint, message, shape, table
from .support import memory


def bad(path: Path, message_: str, limits: Limits | None = None) -> None:
    """Check that a checkpoint is rejected at nearly no cost."""
    with memory() as used, pytest.raises(NnrError, match=message_):
        dict(formats.load(path, format="tensorflow", limits=limits or Limits.strict()).tensors)
    assert used.peak < 1 << 20


def bad_entry(folder: Path, message_: str, **fields: int | bytes) -> None:
    """Check that a tensor entry of these fields is rejected at nearly no cost."""
    entries: Mapping[bytes, bytes] = {b"w": message(**{"f1": 1, "f2": shape(2, 3), "f5": 24, **fields})}
    bad(checkpoint(folder, entries), message_)


@pytest.mark.parametrize("fields", [{"f3": 1}, {"f4": 1}, {"f4": (1 << 64) - 1}])
def test_items_outside_of_the_files(fields: dict[str, int], tmp_path: Path) -> None:
    bad_entry(tmp_path, "its items are outside the data file", **fields)


def test_a_shape_that_the_items_do_not_have(tmp_path: Path) -> None:
    bad_entry(tmp_path, r"24 bytes; float32 of shape \(1048576,\) requires 4,194,304", f2=shape(1 << 20))


def test_a_shape_beyond_the_limits(tmp_path: Path) -> None:
    bad_entry(tmp_path, "max_tensor_elements", f2=shape(1 << 40))


def test_a_shape_that_is_not_known(tmp_path: Path) -> None:
    bad_entry(tmp_path, "its shape is unknown", f2=shape(2, 3) + message(f3=1))


def test_strings_of_other_lengths(tmp_path: Path) -> None:
    """Lengths are arbitrary; the content is limited by the file."""
    entries = {b"s": message(f1=7, f2=shape(2), f5=24)}
    bad(checkpoint(tmp_path, entries, b"\x05\xff\x7f" + bytes(21)), "24 bytes; its strings require 16,395")


def test_more_files_than_the_limits(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, {})
    path.write_bytes(table({b"": message(f1=1 << 40)}))
    bad(path, "data files of the checkpoint: .* is more than max_names")


@pytest.mark.parametrize("many", [False, True])
def test_blocks_that_are_one_block(many: bool, tmp_path: Path) -> None:
    """An index names the same block repeatedly, or a missing one."""
    path = checkpoint(tmp_path, {})
    first, empty = block({**HEADER, b"w": ENTRY}), block({})
    places = [varint(0) + varint(len(first) - 5)] + [varint(len(first)) + varint(len(empty) - 5)] * 1000
    index = block({b"%04d" % k: place for k, place in enumerate(places if many else [varint(1 << 40) + varint(5)])})
    data = first + empty
    footer = varint(len(data)) + varint(len(index) - 5)
    path.write_bytes(data + index + (b"\0\0" + footer).ljust(40, b"\0") + table({})[-8:])
    bad(path, "damaged: a block is outside it or overlaps others")


def test_entries_that_go_beyond_their_block(tmp_path: Path) -> None:
    path, good = checkpoint(tmp_path, {}), table({**HEADER, b"w": ENTRY})
    data = bytearray(good)
    data[data.find(b"\0\1" + varint(len(ENTRY)) + b"w") + 2] = 0x7F
    end = data.find((0).to_bytes(4, "little") + (1).to_bytes(4, "little")) + 8
    data[end + 1 : end + 5] = masked(crc32c(bytes(data[: end + 1]))).to_bytes(4, "little")
    assert data != good
    path.write_bytes(data)
    bad(path, "the table of the checkpoint is damaged$")


def test_items_that_are_damaged(tmp_path: Path) -> None:
    bad(checkpoint(tmp_path, {b"w": ENTRY}, bytes(23) + b"\1"), "the checksum is wrong")


def test_a_table_that_is_damaged(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, {b"w": ENTRY})
    path.write_bytes(path.read_bytes().replace(b"w", b"v"))
    bad(path, "a checksum is wrong")


def test_a_field_that_is_cut_off(tmp_path: Path) -> None:
    bad(
        checkpoint(tmp_path, {b"w": ENTRY + b"\x12\xff\xff\x7f"}),
        "entry 'w' of the checkpoint: field 2 at byte .* ends .* bytes beyond its message",
    )


def test_a_number_of_any_length(tmp_path: Path) -> None:
    bad(
        checkpoint(tmp_path, {b"w": ENTRY + b"\x08" + b"\xff" * 3000 + b"\1"}),
        "a varint at byte .* has more than 10 bytes",
    )


# ------------------------------------------------------------------------------------------------ files beside others
@pytest.mark.parametrize("name", ["", "/x", "../x", "a/../x", "a/", ".", "a\\b", "C:x", "a\0", "a*", "x ", "x."])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(NnrError, match="is not a valid name of a model file"):
        companion_files.check_names([name])


@pytest.mark.parametrize("name", ["con", "a/NUL", "com1.txt", "CONIN$", "aux .x"])
def test_names_of_devices(name: str) -> None:
    with pytest.raises(NnrError, match="is reserved for a device"):
        companion_files.check_names([name])


@pytest.mark.parametrize("name", ["x" * 256, "caf\xe9"])
def test_names_that_systems_change(name: str) -> None:
    with pytest.raises(NnrError, match="too long, or changes with Unicode"):
        companion_files.check_names([name])


def test_names_that_are_one(tmp_path: Path) -> None:
    with pytest.raises(NnrError, match="differ only in case"):
        companion_files.check_names(["a/B", "A/b"])


def test_a_file_as_a_folder() -> None:
    with pytest.raises(NnrError, match="is both a file and a folder"):
        companion_files.check_names(["A/b", "a"])


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_special_files(kind: str, tmp_path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "x")
    else:
        (tmp_path / "x").symlink_to("/etc" if kind == "folder" else "/etc/passwd")
    with pytest.raises(NnrError, match="'x' is neither a regular file nor a folder"):
        list(companion_files.files(tmp_path, Limits()))


def test_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(NnrError, match="'x' is not a regular file"), companion_files.opened(tmp_path / "x"):
        pass


def test_a_link_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/etc/passwd")
    with (
        pytest.raises(NnrError, match="'x' is a symbolic link; links are not followed"),
        companion_files.opened(tmp_path / "x"),
    ):
        pass
