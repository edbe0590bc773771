"""ONNX models assembled field by field, without the package onnx."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnr_codec.model import Array

#: TensorProto.DataType by numpy name.
CODES = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9}
CODES |= {"float16": 10, "float64": 11, "uint32": 12, "uint64": 13}

Value = int | float | str | bytes


def varint(value: int) -> bytes:
    """Return a varint; negative numbers have the form of protocol buffers."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def field(number: int, value: Value) -> bytes:
    """Return a field: an integer as varint, a float as 32 bits, bytes and texts with their length."""
    if isinstance(value, int):
        return varint(number * 8) + varint(value)
    if isinstance(value, float):
        return varint(number * 8 + 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number * 8 + 2) + varint(len(data)) + data


def entries(location: str, offset: int | str | None = None, length: int | str | None = None) -> bytes:
    """Return the entries of a TensorProto that refer to another file."""
    told = {"location": location, "offset": offset, "length": length}
    pairs = ((key, str(text)) for key, text in told.items() if text is not None)
    return b"".join(field(13, field(1, key) + field(2, text)) for key, text in pairs) + field(14, 1)


def tensor(name: str, array: Array, data: bytes | None = None, *, code: int | None = None) -> bytes:
    """Return a TensorProto with raw data, or with fields ``data`` in its place."""
    array = np.asarray(array)
    head = b"".join(field(1, extent) for extent in array.shape) + field(2, code or CODES[array.dtype.name])
    raw = field(9, array.astype(array.dtype.newbyteorder("<")).tobytes())
    return head + field(8, name) + (raw if data is None else data)


def attribute(name: str, value: int | float | Sequence[int] | bytes) -> bytes:
    """Return an AttributeProto of a number, of integers, or with a given field."""
    if isinstance(value, bytes):
        return field(1, name) + value
    if isinstance(value, int | float):
        return field(1, name) + field(2 if isinstance(value, float) else 3, value)
    return field(1, name) + b"".join(field(8, each) for each in value)


def node(operation: str, inputs: Iterable[str], outputs: Iterable[str], name: str = "", **attributes: Any) -> bytes:
    """Return a NodeProto."""
    parts = [field(1, each) for each in inputs] + [field(2, each) for each in outputs]
    parts += [field(3, name)] if name else []
    parts += [field(4, operation)] + [field(5, attribute(key, value)) for key, value in attributes.items()]
    return b"".join(parts)


def constant(output: str, value: bytes, name: str = "") -> bytes:
    """Return a Constant node whose value is a TensorProto."""
    return node("Constant", [], [output], name, value=field(5, value))


def graph(nodes: Iterable[bytes] = (), tensors: Iterable[bytes] = (), more: bytes = b"") -> bytes:
    """Return a GraphProto named ``g``, with an input ``x`` and an output ``y``."""
    parts = [field(1, each) for each in nodes] + [field(2, "g")] + [field(5, each) for each in tensors]
    return b"".join([*parts, field(11, field(1, "x")), field(12, field(1, "y")), more])


def model(
    nodes: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    more: bytes = b"",
    *,
    ir_version: int = 8,
    opset: int = 17,
    after: bytes = b"",
) -> bytes:
    """Return a ModelProto."""
    body = field(7, graph(nodes, tensors, more))
    return field(1, ir_version) + field(2, "test") + body + field(8, field(2, opset)) + after


def write(folder: Path, data: bytes, **files: bytes) -> Path:
    """Write the model as a file, with others beside it."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path
