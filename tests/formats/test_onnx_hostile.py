"""Damaged ONNX models: tensors or an NnrError; readable models are written and read again."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnr_codec import formats
from nnr_codec.errors import FormatError, NnrError
from nnr_codec.formats.protobuf import MessageSource, packed, unpacked, varint
from nnr_codec.limits import Limits
from nnr_codec.model import Topology

from . import onnx_files as made
from .onnx_files import constant, field, model, node, tensor

W = np.arange(6, dtype=np.float32).reshape(2, 3)
INNER = made.graph([constant("c", tensor("", np.arange(17)))], [tensor("w", W)])
SPARSE = field(1, tensor("s", W.reshape(-1))) + field(2, tensor("", np.arange(6))) + field(3, 9)
#: Every kind of field that is parsed.
MODEL = model(
    [
        node("Conv", ["x", "v", "b"], ["a"], strides=[1, 1], group=1),
        node("BatchNormalization", ["a", "g", "b", "m", "v"], ["y"], epsilon=0.5),
        node("If", ["x"], ["z"], "if", then_branch=field(6, INNER)),
        constant("k", tensor("", np.arange(18, dtype=np.int32), field(5, bytes(range(18))))),
    ],
    [
        tensor("v", np.float32(W.reshape(2, 3, 1, 1))),
        tensor("e", W, made.entries("data", 0, 24)),
        tensor("i", np.arange(3)),
    ],
    field(15, SPARSE),
    after=field(25, field(1, "f") + field(7, constant("c", tensor("", np.float16(np.arange(17)))))),
)
INSIDE = MODEL.replace(tensor("e", W, made.entries("data", 0, 24)), tensor("e", W))
EMPTY = model(tensors=[tensor("w", W, field(9, b"")), tensor("e", W, field(13, b"") + field(14, 1))])


def gone_through(data: bytes) -> None:
    """Apply all operations to an untrusted model."""
    with suppress(NnrError):
        loaded = formats.load(data, format="onnx", limits=Limits.strict())
        tensors = dict(loaded.tensors)
        assert loaded.topology is not None
        file = io.BytesIO()
        if tensors:
            formats.save(loaded, file, format="onnx")
            again = formats.load(file.getvalue(), format="onnx").tensors
            assert {name: array.tobytes() for name, array in again.items()} == {
                name: array.tobytes() for name, array in tensors.items()
            }
    wiring = formats.wiring(Topology("onnx", data))
    for block in wiring.blocks:
        assert wiring.shapes[block.weight]
    formats.recognise(io.BytesIO(data))


@pytest.mark.parametrize("data", [MODEL, INSIDE, EMPTY], ids=["external", "inside", "without data"])
def test_every_truncation(data: bytes) -> None:
    for end in range(len(data)):
        gone_through(data[:end])
    with pytest.raises(FormatError):
        formats.load(data[:40], format="onnx")


@pytest.mark.medium
@pytest.mark.parametrize("data", [INSIDE, EMPTY], ids=["inside", "without data"])
def test_every_byte_is_another_one(data: bytes) -> None:
    for place in range(len(data)):
        for value in (0, 0xFF, data[place] ^ 1, data[place] ^ 8):
            gone_through(data[:place] + bytes([value]) + data[place + 1 :])


@given(
    st.lists(
        st.tuples(st.integers(0, len(INSIDE) - 1), st.binary(max_size=3), st.integers(0, 4)), min_size=1, max_size=4
    )
)
def test_bytes_that_are_gone_or_put_in(edits: list[tuple[int, bytes, int]]) -> None:
    data = INSIDE
    for place, new, less in edits:
        data = data[:place] + new + data[place + less :]
    gone_through(data)


# ------------------------------------------------------------------------------------------------ varints
@given(st.lists(st.integers(0, (1 << 64) - 1)))
@example([0, 127, 128, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_packed_varints(values: list[int]) -> None:
    expected = b"".join(map(made.varint, values))
    assert b"".join(map(varint, values)) == expected
    assert packed(np.array(values, np.uint64)).tobytes() == expected
    found, used = unpacked(np.frombuffer(expected + b"\x80", np.uint8))
    assert (found.tolist(), used) == (values, len(expected))


@given(st.binary(max_size=40))
def test_any_bytes_as_varints(data: bytes) -> None:
    """The reader of fields reads varints one by one, and all at once, with the same result."""
    source, at, values = MessageSource(data, Limits()), 0, []
    wrong = False
    while at < len(data) and not wrong:
        try:
            value, at = source.varint(at, len(data))
        except FormatError:
            wrong = True
        else:
            values.append(value)
    try:
        found, used = unpacked(np.frombuffer(data, np.uint8))
    except FormatError:
        assert wrong
    else:
        assert (found.tolist(), used) == (values, at)


def test_a_file_is_read_as_its_bytes_are() -> None:
    """Windows of the reader may end anywhere."""
    data = model(tensors=[tensor(f"{k:{k % 50}}", np.full(4097 + k, k, np.float32)) for k in range(30)])
    fields = [
        [
            [*inner]
            for outer in source.fields(0, source.size)
            if outer.number == 7
            for inner in source.fields(*outer[3:5])
        ]
        for source in (MessageSource(data, Limits()), MessageSource(io.BytesIO(data), Limits()))
    ]
    assert fields[0] == fields[1]
    assert len(fields[0]) == 33
