"""T40: TensorFlow Lite models with offsets outside the file, or with much more work than bytes."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.model import Topology

from ..formats.support import assert_same
from ..formats.test_tflite import (
    WEIGHT,
    Scalar,
    Table,
    buffer,
    file_of,
    flatbuffer,
    load,
    tensor,
    usual,
    written,
)

pytestmark = pytest.mark.medium


def damaged(at: int, value: int, code: str = "I") -> bytes:
    """Return the usual file with another number."""
    data = bytearray(usual())
    struct.pack_into("<" + code, data, at, value)
    return bytes(data)


def test_malformed_files() -> None:
    for data, message in (
        (b"", "0 bytes"),
        (flatbuffer(Table(), b"TFL2"), "not a TensorFlow Lite model"),
        (damaged(0, 1 << 31), "are outside the file"),
        (usual()[:300], "outside the file|exceeds the file"),
    ):
        with pytest.raises(FormatError, match=message):
            load(data)
    root = int.from_bytes(usual()[:4], "little")
    for value in (1 << 30, -(1 << 30)):
        with pytest.raises(FormatError, match="are outside the file"):
            load(damaged(root, value, "i"))


def test_a_vector_exceeds_the_file() -> None:
    data = bytearray(usual())
    at = data.index(struct.pack("<I", WEIGHT.nbytes) + WEIGHT.tobytes())
    struct.pack_into("<I", data, at, (1 << 32) - 1)
    with pytest.raises(FormatError, match=r"a vector of 4,294,967,295 items at .* exceeds the file"):
        load(bytes(data))


def test_vectors_that_are_used_again_and_again() -> None:
    """A graph needs only four bytes for its reference, and has thousands of tensors."""
    count = 2000
    tensors = [tensor("w", [1], 0, 0) for _ in range(count)]
    data = bytearray(file_of(tensors, [buffer()]))
    root = int.from_bytes(data[:4], "little")
    entries = root - struct.unpack_from("<i", data, root)[0]
    at = root + struct.unpack_from("<H", data, entries + 4 + 2 * 2)[0]
    graphs = at + struct.unpack_from("<I", data, at)[0]
    graph = graphs + 4 + struct.unpack_from("<I", data, graphs + 4)[0]
    place = len(data)
    data += struct.pack("<I", count) + bytes(4 * count)
    for k in range(count):  # all are before the list, so the offsets are unsigned numbers that wrap
        struct.pack_into("<I", data, place + 4 + 4 * k, (graph - (place + 4 + 4 * k)) & 0xFFFFFFFF)
    struct.pack_into("<I", data, at, place - at)
    start = time.process_time()
    with pytest.raises(FormatError):
        load(bytes(data))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "limit",
    [
        {"max_archive_bytes": 100},
        {"max_topology_bytes": 600},
        {"max_names": 5},
        {"max_dims": 1},
        {"max_tensor_elements": 47},
        {"max_tensor_bytes": 191},
        {"max_total_bytes": 200},
    ],
)
def test_limits(limit: dict[str, int]) -> None:
    (name, value), *_ = limit.items()
    with pytest.raises(LimitError, match=rf"{name}={value}\b"):
        load(usual(), **limit)


def test_shapes_of_many_dimensions() -> None:
    """Their product has millions of digits."""
    data = file_of([tensor("w", [1 << 30] * 200_000, 3, 1)], [buffer(bytes(70))])
    start = time.process_time()
    with pytest.raises(LimitError, match=r"number of dimensions: 200,000 is more than max_dims=32"):
        load(data)
    assert time.process_time() - start < 3


def test_long_names_stay_in_the_graph() -> None:
    source = file_of([tensor("w" * 50, [70], 3, 1)], [buffer(bytes(70))])
    assert list(load(source, max_name_bytes=50)) == ["w" * 50]
    assert list(load(source, max_name_bytes=49)) == []


def places_of(*places: tuple[int, int], count: int | None = None) -> bytes:
    listed = b"".join(struct.pack("<QQ", *place) for place in places)
    return listed + struct.pack("<I", len(places) if count is None else count)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b"", "lists places that overlap, or exceed|ends early|differ from|outside"),
        (places_of(count=1 << 30), "ends early"),
        (places_of((1 << 40, 4)), "places that overlap, or exceed its file"),
        (places_of((600, 100), (650, 10)), "places that overlap, or exceed its file"),
        (places_of((8, 4)), "data of a tensor|outside|differ from|exceeds"),
        (places_of(), "differ from its tensors|outside|exceeds"),
    ],
)
def test_damaged_topologies(end: bytes, message: str) -> None:
    model = load(usual())
    assert model.topology is not None
    data = model.topology.data[: -4 - 3 * 16] + end
    other = replace(model, topology=Topology("", data))
    with pytest.raises(FormatError, match=message):
        written(other)
    assert_same(nnr.decode(nnr.encode(other, exact=True)).tensors, model.tensors)


def test_tables_in_data() -> None:
    """A graph whose tables are data of its tensors cannot be restored from the rest."""
    inner = tensor("w", [4096], 3, 1)
    data = bytearray(file_of([inner], [Table({1: Scalar("Q", 98765), 2: Scalar("Q", 98765)})]))
    at = data.index(struct.pack("<QQ", 98765, 98765))
    struct.pack_into("<QQ", data, at, 8, len(data) - 8)
    with pytest.raises(FormatError, match=r"overlap the data of a tensor|tables and data of tensors overlap"):
        load(bytes(data))


def test_data_outside_of_the_file() -> None:
    outside = Table({1: Scalar("Q", 4096), 2: Scalar("Q", 192)})
    with pytest.raises(FormatError, match=r"192 bytes of a buffer at 4,096 are outside the file"):
        load(file_of([tensor("w", [4, 12], 0, 1)], [outside]))


def test_tensors_that_a_graph_lists() -> None:
    model = load(usual())
    with pytest.raises(FormatError, match="the model has no tensor 'q', which the graph lists"):
        written(replace(model, tensors={"w": WEIGHT}))
    with pytest.raises(FormatError, match=r"'w' is float32 \[12, 4\]; the graph says float32 \[4, 12\]"):
        written(replace(model, tensors={**model.tensors, "w": WEIGHT.reshape(12, 4)}))


def test_shapes_that_are_too_large() -> None:
    """The shape has 4,096 gigabytes, but the size of the buffer counts."""
    model = load(file_of([tensor("w", [1 << 20, 1 << 20], 0, 1)], [buffer(bytes(80))]))
    assert_same(model.tensors, {"w": np.zeros(80, np.uint8)})
