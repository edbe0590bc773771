"""T38: malicious ONNX models, their external data, and topologies in bitstreams."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.onnx import graph as onnx_graph
from nnr_codec.formats.onnx import wiring, writing
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from ..formats import onnx_files as made
from ..formats.onnx_files import constant, entries, field, model, node, tensor
from .support import memory

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def bad(data: bytes, message: str, error: type[Exception] = FormatError, limits: Limits | None = None) -> None:
    """Check that a model is rejected at nearly no cost."""
    with memory() as used, pytest.raises(error, match=message):
        formats.load(data, format="onnx", limits=limits)
    assert used.peak < 1 << 20


def of_shape(*shape: int, data: bytes = b"", code: int = 1) -> bytes:
    """Return a model of a tensor of this shape."""
    return model(tensors=[b"".join(field(1, extent) for extent in shape) + field(2, code) + field(8, "w") + data])


# ------------------------------------------------------------------------------------------------ the wire
def test_t38_fields_without_end() -> None:
    data = model(more=field(99, 0) * 100_000)
    with pytest.raises(LimitError, match="more fields than max_topology_bytes=10,000 permits"):
        formats.load(data, limits=Limits(max_topology_bytes=10_000))


@pytest.mark.parametrize("length", [0x30, 1 << 20, (1 << 64) - 1])
def test_t38_a_field_beyond_its_message(length: int) -> None:
    tail = made.varint(5 * 8 + 2) + made.varint(length) + bytes(8)
    bad(field(1, 8) + field(7, field(2, "g") + tail) + field(3, bytes(64)), "bytes beyond its message")


@pytest.mark.parametrize("number", [0, 1 << 29, (1 << 61) - 1])
def test_t38_a_field_of_no_number(number: int) -> None:
    bad(model(after=field(number, 0)), "has invalid number")


def test_t38_a_varint_without_end() -> None:
    bad(field(1, 8) + b"\x28" + b"\x80" * 100_000 + b"\0" + field(7, field(2, "g")), "a varint at byte .* more than 10")


def test_t38_a_varint_of_more_than_64_bits() -> None:
    bad(model(after=b"\x28" + b"\xff" * 9 + b"\x7f"), "more than 64 bits")


def test_t38_packed_varints_without_end() -> None:
    bad(of_shape(18, data=field(7, bytes(17) + b"\x80" * 20 + b"\1"), code=7), "a varint has more than 10 bytes")


def test_t38_packed_varints_of_more_than_64_bits() -> None:
    bad(of_shape(18, data=field(7, bytes(17) + b"\xff" * 9 + b"\x7f"), code=7), "more than 64 bits")


def test_t38_a_long_text() -> None:
    bad(model([node("Add", ["x" * (8 << 20)], ["y"])]), "bytes of the text at byte .* max_name_bytes=4,096", LimitError)


# ------------------------------------------------------------------------------------------------ tensors
@pytest.mark.parametrize("data", [field(9, bytes(24)), field(4, bytes(24)), entries("data", 0, 24)])
def test_t38_a_shape_without_data(data: bytes) -> None:
    bad(of_shape(1 << 31, 1 << 20, data=data), "24 bytes; float32 of shape")


def test_t38_a_shape_without_varints() -> None:
    bad(of_shape(1 << 31, data=field(7, bytes(24)), code=7), "24 bytes; int64 of shape")


@pytest.mark.parametrize("shape", [(-1,), (-2, -3), (1 << 40, 1 << 40), (-1, 0)])
def test_t38_a_shape_of_no_array(shape: tuple[int, ...]) -> None:
    bad(of_shape(*shape, data=field(9, b"")), "is invalid")


def test_t38_many_dimensions() -> None:
    bad(of_shape(*[1] * 100_000, data=field(9, bytes(4))), "max_dims=32", LimitError)


def test_t38_many_packed_dimensions() -> None:
    data = model(tensors=[field(1, b"\1" * (1 << 20)) + field(2, 1) + field(8, "w") + field(9, bytes(4))])
    bad(data, "more than 32 integers")


def test_t38_many_places() -> None:
    bad(of_shape(6, data=field(13, b"") * 100_000 + field(14, 1)), "more than 64 entries")


def test_t38_more_varints_than_items() -> None:
    bad(of_shape(20, data=field(7, bytes(190)), code=7), "the number of values does not match shape")


def test_t38_varints_that_are_no_items() -> None:
    bad(of_shape(20, data=field(5, bytes(18) + made.varint(300) * 2), code=2), "a value is out of range for uint8")


def test_t38_bytes_that_are_no_booleans() -> None:
    bad(of_shape(20, data=field(9, b"\2" * 20), code=9), "neither 0 nor 1")


# ------------------------------------------------------------------------------------------------ graphs
def test_t38_graphs_in_graphs() -> None:
    inner = made.graph()
    for _ in range(60):
        inner = made.graph([node("If", ["x"], ["y"], then_branch=field(6, inner))])
    bad(field(1, 8) + field(7, inner), "nested deeper than 32")


def test_t38_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "_MAX_NODES", 1000)
    bad(model([b""] * 2000), "more than 1,000 nodes")


@pytest.mark.parametrize("part", [field(1, ""), field(2, ""), field(5, b"")])
def test_t38_many_parts_of_a_node(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "_MAX_EACH", 1000)
    bad(model([part * 2000]), "more than 1,000 values of field")


@pytest.mark.parametrize(
    "data",
    [
        model(tensors=[tensor("w", W)], after=field(7, made.graph(tensors=[tensor("v", W)]))),
        model([node("Constant", [], ["c"], value=field(5, tensor("", W)) * 2)]),
        model([node("If", [], ["c"], then_branch=field(6, made.graph()) * 2)]),
    ],
    ids=["graph", "tensor", "inner graph"],
)
def test_t38_messages_that_others_would_merge(data: bytes) -> None:
    """The merge of two messages by protocol buffers is not the sum of the messages as they are read here."""
    bad(data, "occurs twice")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_t38_names_that_no_bitstream_has(name: str) -> None:
    bad(model(tensors=[tensor(name, W)]), "a tensor has the invalid name")


def test_t38_names_that_grow() -> None:
    inner = made.graph([], [tensor("w", W)])
    for _ in range(3):
        inner = made.graph([node("If", ["x"], ["y"], "n" * 4000, then_branch=field(6, inner))])
    bad(field(1, 8) + field(7, inner), "max_name_bytes", LimitError)


def test_t38_names_with_a_long_beginning() -> None:
    """It occurs once, and in the names of all tensors of the inner graph."""
    inner = made.graph([], [tensor("w", W, field(9, b""))] * 1000)
    data = model([node("If", ["x"], ["y"], "n" * 4000, then_branch=field(6, inner))])
    with memory() as used, pytest.raises(LimitError, match="bytes of all names"):
        formats.load(data, limits=Limits(max_topology_bytes=1_000_000))
    assert used.peak < 4 << 20


def test_t38_names_with_a_long_beginning_are_not_written() -> None:
    inner = made.graph([], [tensor("w", W, field(9, b""))] * 30_000)
    data = model([node("If", ["x"], ["y"], "n" * 4000, then_branch=field(6, inner))])
    with pytest.raises(LimitError, match="bytes of all names"):
        formats.save(Model({}, Topology("onnx", data)), io.BytesIO(), format="onnx")


def test_t38_many_tensors() -> None:
    data = model(tensors=[tensor(f"w{k}", W) for k in range(200)])
    with pytest.raises(LimitError, match="max_names=100"):
        formats.load(data, limits=Limits(max_names=100))


# ------------------------------------------------------------------------------------------------ other files
LOCATIONS = [
    "../secret",
    "below/../../secret",
    "..",
    ".",
    "/etc/passwd",
    "//host/share",
    "./secret",
    "below//w",
    "below/",
]
STRANGE = ["below\\w", "C:w", "w:stream", "w\n", "w\x1b[31m", "\\\\host\\w", "w\u202e"]


def beside(folder: Path, location: str) -> Path:
    """Return a model in a subfolder that has its data there."""
    (folder / "below").mkdir()
    (folder / "secret").write_bytes(W.tobytes())
    (folder / "below" / "w").write_bytes(W.tobytes())
    return made.write(folder / "below", model(tensors=[tensor("w", W, entries(location))]))


@pytest.mark.parametrize("location", [*LOCATIONS, "a/" * 600 + "w"])
def test_t38_paths_out_of_the_folder(location: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a path below the model's folder"):
        formats.load(beside(tmp_path, location))


@pytest.mark.parametrize("location", STRANGE)
def test_t38_paths_that_are_others_elsewhere(location: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a portable path"):
        formats.load(beside(tmp_path, location))


@pytest.mark.parametrize("link", ["file", "folder"])
def test_t38_links_out_of_the_folder(link: str, tmp_path: Path) -> None:
    path = beside(tmp_path, "link/secret" if link == "folder" else "link")
    (path.parent / "link").symlink_to(tmp_path if link == "folder" else tmp_path / "secret")
    with pytest.raises(FormatError, match="is a symbolic link that leaves the model's folder"):
        formats.load(path)


def test_links_that_are_followed(tmp_path: Path) -> None:
    """Links to the model's folder, and to the folder of the real model file, are followed."""
    path = beside(tmp_path, "link")
    (path.parent / "link").symlink_to("w")
    assert np.array_equal(formats.load(path)["w"], W)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "m.onnx").symlink_to("../below/model.onnx")
    (tmp_path / "cache" / "link").symlink_to("../below/w")
    assert np.array_equal(formats.load(tmp_path / "cache" / "m.onnx")["w"], W)
    (tmp_path / "cache" / "link").unlink()
    (tmp_path / "cache" / "link").symlink_to("../secret")
    with pytest.raises(FormatError, match="is a symbolic link that leaves the model's folder"):
        formats.load(tmp_path / "cache" / "m.onnx")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_t38_special_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait forever."""
    path = beside(tmp_path, "odd")
    if kind == "pipe":
        os.mkfifo(path.parent / "odd")
    elif kind == "socket":
        monkeypatch.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made_socket:
            made_socket.bind("odd")
    elif kind == "folder":
        (path.parent / "odd").mkdir()
    else:
        (path.parent / "odd").symlink_to("/dev/zero")
    with pytest.raises(FormatError, match=r"not a regular file|symbolic link that leaves"):
        formats.load(path)


@pytest.mark.parametrize(("offset", "length"), [(1, 24), (1 << 40, None), (24, 24), (9999999999999999999, 24)])
def test_t38_data_beyond_the_end(offset: int, length: int | None, tmp_path: Path) -> None:
    data = model(tensors=[tensor("w", W, entries("w", offset, length))])
    with pytest.raises(FormatError, match="only 24 bytes"):
        formats.load(made.write(tmp_path, data, w=W.tobytes()))


@pytest.mark.parametrize("offset", ["-1", "1e3", "٣", "9" * 100_000, " 1", "0x10", ""])
def test_t38_offsets_that_are_none(offset: str) -> None:
    bad(model(tensors=[tensor("w", W, entries("w", offset))]), "is not a number|max_name_bytes", Exception)


def test_t38_large_files(tmp_path: Path) -> None:
    path = beside(tmp_path, "w")
    with open(path.parent / "w", "ab") as file:
        file.truncate(1 << 30)
    with pytest.raises(LimitError, match="max_archive_bytes"):
        formats.load(path, limits=Limits(max_archive_bytes=1 << 20))


@pytest.mark.parametrize(
    "data",
    [
        model([node("Vendor", [], ["c"], weights=field(5, tensor("w", W, entries("w"))))]),
        model([node("Vendor", [], ["c"], weights=field(10, tensor("w", W, entries("w"))))]),
        model([node("Vendor", [], ["c"], weights=field(22, field(1, tensor("w", W, entries("w")))))]),
        model([constant("c", field(1, 20) + field(2, 8) + entries("w"))]),
    ],
    ids=["attribute", "attributes", "sparse", "strings"],
)
def test_t38_external_data_that_would_be_lost(data: bytes) -> None:
    bad(data, "its data is in another file, which is supported only for weights")


# ------------------------------------------------------------------------------------------------ bitstreams
def test_a_location_in_a_bitstream_is_not_kept(tmp_path: Path) -> None:
    """It is used neither for reading nor for writing: file names derive from the target."""
    topology = Topology("onnx", model(tensors=[tensor("w", W, entries("../secret", 1 << 50, 24))]))
    data = nnr.encode(Model({"w": W}, topology), exact=True)
    (tmp_path / "out").mkdir()
    nnr.save(nnr.decode(data), tmp_path / "out" / "m.onnx")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["m.onnx", "m.onnx.data", "out"]
    written = (tmp_path / "out" / "m.onnx").read_bytes()
    assert b"secret" not in written
    assert written == model(tensors=[tensor("w", W, entries("m.onnx.data", 0, 24))])


@pytest.mark.parametrize("shape", [(1 << 62,), (1 << 20, 1 << 20, 1 << 20), (-1,)])
def test_shapes_in_a_bitstream_allocate_nothing(shape: tuple[int, ...]) -> None:
    topology = Topology("onnx", of_shape(*shape, data=field(9, b"")))
    with memory() as used:
        assert formats.wiring(topology).shapes in ({}, {"w": shape})
    assert used.peak < 1 << 20


def test_nodes_in_a_bitstream_cost_little() -> None:
    topology = Topology("onnx", model([b""] * 10_000))
    with memory() as used:
        assert wiring(topology).shapes == {}
    assert used.peak < 1 << 20


def test_t38_models_that_nothing_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "LARGEST", 60)
    with pytest.raises(FormatError, match="a ModelProto may have at most 60"):
        nnr.save(formats.load(model(tensors=[tensor("w", W)])), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
