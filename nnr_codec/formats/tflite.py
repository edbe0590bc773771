"""TensorFlow Lite models: a FlatBuffer with the graph, the quantization parameters and the data of constants.

The topology is the file without the data of its tensors, and a list of the places of this data. NNR has no number for
it (Table 4); it is recognized by its content. A buffer of more than 64 bytes to which a named tensor of the graph
refers is a tensor of the model, with the name of the first of these tensors; a repeated name gets ``#2``. All other
bytes are in the topology, so that a file is restored whatever it contains.

Tables and fields follow the schema of TensorFlow Lite, version 3. Everything that a file states is checked
before use: offsets against the file, counts against the limits, and the sum of all vectors against the file, because
overlapping vectors would make the work grow with the square of its size.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..dtypes import STORED_TYPES, bit_patterns
from ..errors import FormatError
from ..files import output_file
from ..limits import Budget, Limits
from ..model import Array, Model, Topology, Wiring, described
from . import Deferred, FormatWarning, announce, check_topology, listed, opened_file, state, warn_of_loss
from .lazy import Entry, LazyTensors

NAME = "tflite"
SUFFIXES = (".tflite",)
DESCRIPTION = "TensorFlow Lite models, also quantized"
READS = "a .tflite file"
#: NNR has no topology format number for this format (Table 4).
TOPOLOGY = ""
NEEDS_TOPOLOGY = True

_MAGIC = b"TFL3"
_HEAD = 8  # bytes of the offset of the root table and of the magic
#: Buffers up to this size stay in the topology, because a unit would take more bytes than it saves.
_SMALL = 64
#: Maximum bytes of all vectors, relative to the file.
SHARED = 4
#: Types of tensors by number; data of other types, or of another size, is bytes.
_TYPES = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    7: "int16",
    9: "int8",
    10: "float64",
    12: "uint64",
    15: "uint32",
    16: "uint16",
}
#: Fields of tables by index.
_SUBGRAPHS, _BUFFERS = 2, 4
_TENSORS = 0
_SHAPE, _TYPE, _BUFFER, _NAME, _QUANTIZATION = range(5)
_DATA, _OFFSET, _SIZE = range(3)
_SCALE, _ZERO_POINT, _DIMENSION = 2, 3, 6


@dataclass(frozen=True)
class TfliteTensor:
    """Tensor with data.

    Parameters
    ----------
    name, type : str
    shape : tuple of int
    start, nbytes : int
        Place of its data in the file.
    scales, zero_points : tuple of int
        Place of the first number of these quantization parameters, and their number; ``(0, 0)`` if there are none.
    axis : int
        Dimension to which several scales apply.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    scales: tuple[int, int]
    zero_points: tuple[int, int]
    axis: int

    @property
    def is_quantized(self) -> bool:
        """True if the integers have scales that fit the shape."""
        count = self.scales[1]
        if not count or STORED_TYPES[self.type].kind not in "iu" or self.zero_points[1] not in (0, 1, count):
            return False
        return count == 1 or (0 <= self.axis < len(self.shape) and self.shape[self.axis] == count)


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like a TensorFlow Lite model."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        return file.read(_HEAD)[4:] == _MAGIC


def owns(topology: Topology) -> bool:
    """Return whether the topology starts like a TensorFlow Lite model."""
    return topology.data[4:_HEAD] == _MAGIC


def wiring(topology: Topology) -> Wiring:
    """Return types and shapes of the tensors. Raises FormatError or LimitError for a malformed topology."""
    tensors = _read(_topology_bytes(topology), Budget(Limits()))
    return Wiring(
        {tensor.name: tensor.shape for tensor in tensors},
        kinds={tensor.name: STORED_TYPES[tensor.type].kind for tensor in tensors},
        quantized=tuple(tensor.name for tensor in tensors if tensor.is_quantized),
    )


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read a file without the data of its tensors; raises the errors of :func:`load`."""
    with opened_file(source) as file:
        return _opened(file, limits)[0]


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file, with its tensors in the order of the graph; tensors of a path are read on access.

    Raises
    ------
    FormatError
        The file is not a TensorFlow Lite model, or is malformed.
    LimitError
        The file exceeds the limits; max_topology_bytes applies to all bytes that are not data of tensors.
    """
    with opened_file(source) as file:
        topology, tensors = _opened(file, limits)
        entries = {tensor.name: Entry(tensor.type, tensor.shape, tensor.start, tensor.nbytes) for tensor in tensors}
        if isinstance(source, Path):
            return Model(LazyTensors([(source, state(file))], entries), topology, format=NAME)
        arrays = {name: entry.read(file, f"tensor {name[:80]!a}") for name, entry in entries.items()}
    return Model(arrays, topology, format=NAME)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model whose topology is a TensorFlow Lite model. Metadata and ties are lost, with a FormatWarning.

    Raises
    ------
    FormatError
        The topology is of another format, or a tensor is missing or has another type or shape.
    """
    data, tensors = _checked(model)
    with output_file(path, overwrite=overwrite) as file:
        _write(model, data, tensors, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write a model to a stream; see :func:`save`."""
    data, tensors = _checked(model)
    _write(model, data, tensors, file)


def dequantized(model: Model) -> Model:
    """Return a model with float32 weights in place of integers with quantization parameters."""
    assert model.topology is not None
    data = _topology_bytes(model.topology)
    tensors = _read(data, Budget(Limits.unlimited()))
    return replace(model, tensors=_Weights(model.tensors, data, tensors))


class _Weights(Mapping[str, Array]):
    """Tensors of a model, with ``scale * (integer - zero point)`` in float32 for quantized tensors, on access."""

    def __init__(self, tensors: Mapping[str, Array], data: _Bytes, listed: Sequence[TfliteTensor]) -> None:
        self._tensors, self._data = tensors, data
        known = {tensor.name: tensor for tensor in listed if tensor.is_quantized and tensor.name in tensors}
        self._quantized = {
            name: tensor
            for name, tensor in known.items()
            if _type_and_shape(tensors, name) == (tensor.type, tensor.shape)
        }

    def __getitem__(self, name: str) -> Array:
        array = np.asarray(self._tensors[name])
        if name not in self._quantized:
            return array
        tensor = self._quantized[name]
        scales = self._numbers(tensor, tensor.scales, "<f4")
        zero_points = self._numbers(tensor, tensor.zero_points, "<i8") if tensor.zero_points[1] else 0
        with np.errstate(all="ignore"):
            found: npt.NDArray[np.float32] = ((array.astype(np.float64) - zero_points) * scales).astype(np.float32)
        return found

    def _numbers(self, tensor: TfliteTensor, place: tuple[int, int], dtype: str) -> npt.NDArray[np.float64]:
        """Return quantization parameters in a shape that suits the tensor."""
        extents = [1] * len(tensor.shape)
        if place[1] > 1:
            extents[tensor.axis] = place[1]
        data = self._data.read(place[0], place[1] * np.dtype(dtype).itemsize)
        return np.frombuffer(data, dtype).astype(np.float64).reshape(extents)

    def announce(self, names: Any) -> None:
        """Announce the tensors that will be read, in this order."""
        if isinstance(self._tensors, Deferred):
            self._tensors.announce(names)

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor without computing it."""
        if name in self._quantized:
            return np.dtype(np.float32), self._quantized[name].shape
        return described(self._tensors, name)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _type_and_shape(tensors: Mapping[str, Array], name: str) -> tuple[str, tuple[int, ...]]:
    dtype, shape = described(tensors, name)
    return dtype.name, shape


# ------------------------------------------------------------------------------------------------ bytes
class _Bytes:
    """Bytes of a file in which ``holes`` are missing.

    Parameters
    ----------
    file : binary file
        The bytes outside the holes.
    size : int
        Size of the file with the holes.
    holes : sequence of (int, int)
        Starts and sizes of holes, in order and without overlaps.
    """

    def __init__(self, file: BinaryIO, size: int, holes: Sequence[tuple[int, int]] = ()) -> None:
        self.file, self.size, self.holes = file, size, holes
        self._starts = [start for start, _ in holes]
        self._removed = [0, *accumulate(nbytes for _, nbytes in holes)]

    def read(self, at: int, count: int) -> bytes:
        """Return bytes at an offset. Raise FormatError if they are outside the file, or in a hole."""
        if at < 0 or count > self.size - at:
            raise FormatError(f"{count:,} bytes at {at:,} are outside the file of {self.size:,} bytes")
        before = bisect_right(self._starts, at)
        in_hole = before and at < self._starts[before - 1] + self.holes[before - 1][1]
        if count and (in_hole or (before < len(self.holes) and at + count > self._starts[before])):
            raise FormatError(f"{count:,} bytes at {at:,} overlap the data of a tensor")
        self.file.seek(at - self._removed[before])
        return self.file.read(count)


class _Tables:
    """Reader of the tables of a FlatBuffer."""

    def __init__(self, data: _Bytes, budget: Budget) -> None:
        self.data, self._budget = data, budget
        self._left = SHARED * data.size  # bytes of vectors, of which few are shared

    def number(self, at: int, code: str) -> int:
        """Return the little-endian number of a struct code."""
        found: int = struct.unpack("<" + code, self.data.read(at, struct.calcsize(code)))[0]
        return found

    def field(self, table: int, index: int) -> int:
        """Return the offset of a field of a table; 0 if the table does not have it."""
        entries = table - self.number(table, "i")
        size, place = self.number(entries, "H"), 4 + 2 * index
        offset = self.number(entries + place, "H") if place + 2 <= size else 0
        return table + offset if offset else 0

    def scalar(self, table: int, index: int, code: str) -> int:
        """Return the number in a field; 0, the default of all fields that are read here, if it is missing."""
        at = self.field(table, index)
        return self.number(at, code) if at else 0

    def table(self, at: int) -> int:
        """Return the offset of the table to which the field at an offset refers."""
        return at + self.number(at, "I")

    def vector(self, table: int, index: int, itemsize: int) -> tuple[int, int]:
        """Return the offset and the number of items of a vector in a field; ``(0, 0)`` if it is missing."""
        at = self.field(table, index)
        if not at:
            return 0, 0
        start = self.table(at)
        count = self.number(start, "I")
        self._left -= 4 + count * itemsize
        if self._left < 0 or count * itemsize > self.data.size - start - 4:
            raise FormatError(f"a vector of {count:,} items at {start:,} exceeds the file, or all vectors together do")
        return start + 4, count

    def tables(self, table: int, index: int, what: str) -> Iterator[int]:
        """Yield the offsets of the tables of a vector in a field."""
        start, count = self.vector(table, index, 4)
        self._budget.charge("max_names", count, what)
        for at in range(start, start + 4 * count, 4):
            yield self.table(at)

    def string(self, table: int, index: int) -> str | None:
        """Return the text in a field; None if it is not a name."""
        start, count = self.vector(table, index, 1)
        if not 0 < count <= self._budget.limits.max_name_bytes:
            return None
        try:
            text = self.data.read(start, count).decode()
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else text


def _opened(file: BinaryIO, limits: Limits) -> tuple[Topology, list[TfliteTensor]]:
    """Return the topology of a file, and its tensors."""
    budget, size = Budget(limits), file.seek(0, os.SEEK_END)
    budget.charge("max_archive_bytes", size, "bytes of the file")
    tensors = _read(_Bytes(file, size), budget)
    holes = sorted((tensor.start, tensor.nbytes) for tensor in tensors)
    rest = size - sum(nbytes for _, nbytes in holes)
    limits.check("max_topology_bytes", rest + 16 * len(holes) + 4, "bytes that are not data of tensors")
    data, at = bytearray(), 0
    for start, nbytes in [*holes, (size, 0)]:
        file.seek(at)
        data += file.read(start - at)
        at = start + nbytes
    places = b"".join(struct.pack("<QQ", *hole) for hole in holes)
    topology = Topology(TOPOLOGY, bytes(data) + places + struct.pack("<I", len(holes)))
    if _read(_topology_bytes(topology), Budget(limits)) != tensors:
        raise FormatError("tables and data of tensors overlap")
    return topology, tensors


def _topology_bytes(topology: Topology) -> _Bytes:
    """Return the file of a topology. Raise FormatError if its list of places is malformed."""
    data = topology.data
    count = int.from_bytes(data[-4:], "little")
    end = len(data) - 4 - 16 * count
    if end < _HEAD:
        raise FormatError("the topology of a TensorFlow Lite model ends early")
    holes, size, at = list(struct.iter_unpack("<QQ", data[end:-4])), end, 0
    for start, nbytes in holes:
        size += nbytes
        if start < at or start + nbytes > size:
            raise FormatError("the topology of a TensorFlow Lite model lists places that overlap, or exceed its file")
        at = start + nbytes
    return _Bytes(io.BytesIO(data[:end]), size, holes)


def _read(data: _Bytes, budget: Budget) -> list[TfliteTensor]:
    """Return the tensors of a file or topology."""
    if data.read(4, 4) != _MAGIC:
        raise FormatError("not a TensorFlow Lite model")
    tables = _Tables(data, budget)
    model = tables.table(0)
    places = [_place(tables, buffer) for buffer in tables.tables(model, _BUFFERS, "buffers of the model")]
    found: list[TfliteTensor] = []
    used, repeats = set[int](), dict[str, int]()
    names = set[str]()
    for graph in tables.tables(model, _SUBGRAPHS, "subgraphs of the model"):
        for table in tables.tables(graph, _TENSORS, "tensors of the model"):
            buffer = tables.scalar(table, _BUFFER, "I")
            if buffer >= len(places) or buffer in used or places[buffer][1] <= _SMALL:
                continue
            name = tables.string(table, _NAME)
            if name is None:
                continue
            repeats[name] = number = repeats.get(name, 0) + 1
            name = name if number == 1 else f"{name}#{number}"
            if name in names or len(name.encode()) > budget.limits.max_name_bytes:
                continue
            used.add(buffer)
            names.add(name)
            found.append(_tensor(tables, table, name, *places[buffer], budget))
    return _without_overlaps(found)


def _place(tables: _Tables, buffer: int) -> tuple[int, int]:
    """Return offset and size of the data of a buffer, in the FlatBuffer or after it."""
    offset = tables.scalar(buffer, _OFFSET, "Q")
    if offset > 1:  # 1 stands for a place that is not yet known
        size = tables.scalar(buffer, _SIZE, "Q")
        if offset + size > tables.data.size:
            raise FormatError(f"{size:,} bytes of a buffer at {offset:,} are outside the file")
        return offset, size
    return tables.vector(buffer, _DATA, 1)


def _tensor(tables: _Tables, table: int, name: str, start: int, nbytes: int, budget: Budget) -> TfliteTensor:
    what = f"tensor {name[:80]!a}"
    at, dims = tables.vector(table, _SHAPE, 4)
    budget.limits.check("max_dims", dims, f"{what}: number of dimensions")
    shape = struct.unpack(f"<{dims}i", tables.data.read(at, 4 * dims)) if dims else ()
    type = _TYPES.get(tables.scalar(table, _TYPE, "b"), "uint8")
    if min(shape, default=0) < 0 or prod(shape) * STORED_TYPES[type].itemsize != nbytes:
        type, shape = "uint8", (nbytes,)
    budget.tensor(shape, STORED_TYPES[type].itemsize, what)
    scales = zero_points = (0, 0)
    axis, field = 0, tables.field(table, _QUANTIZATION)
    if field:
        parameters = tables.table(field)
        scales, zero_points = tables.vector(parameters, _SCALE, 4), tables.vector(parameters, _ZERO_POINT, 8)
        axis = tables.scalar(parameters, _DIMENSION, "i")
    return TfliteTensor(name, type, shape, start, nbytes, scales, zero_points, axis)


def _without_overlaps(tensors: list[TfliteTensor]) -> list[TfliteTensor]:
    """Return the tensors whose data is after the first bytes, and overlaps no data before it."""
    at, kept = _HEAD, set[str]()
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes)):
        if tensor.start >= at:
            at = tensor.start + tensor.nbytes
            kept.add(tensor.name)
    return [tensor for tensor in tensors if tensor.name in kept]


# ------------------------------------------------------------------------------------------------ writing
def _checked(model: Model) -> tuple[_Bytes, list[TfliteTensor]]:
    """Return the bytes to write, and the tensors to insert. Raise FormatError if the model does not fit them."""
    check_topology(NAME, model.topology)
    assert model.topology is not None
    data = _topology_bytes(model.topology)
    # The caller already has the topology in memory: its size is no reason to reject it.
    tensors = sorted(_read(data, Budget(Limits.unlimited())), key=lambda tensor: tensor.start)
    if [(tensor.start, tensor.nbytes) for tensor in tensors] != list(data.holes):
        raise FormatError("the topology of a TensorFlow Lite model lists offsets or sizes that differ from its tensors")
    for tensor in tensors:
        if tensor.name not in model.tensors:
            raise FormatError(
                f"the model has no tensor {tensor.name[:80]!a}, which the graph lists", tensor=tensor.name
            )
        found = _type_and_shape(model.tensors, tensor.name)
        if found != (tensor.type, tensor.shape):
            raise FormatError(
                f"tensor {tensor.name[:80]!a} is {found[0]} {list(found[1])}; the graph says {tensor.type} "
                f"{list(tensor.shape)}; omit --dtype (dtype=), or save it as .safetensors",
                tensor=tensor.name,
            )
    known = {tensor.name for tensor in tensors}
    if others := [name for name in model if name not in known]:
        message = f"tensors that the graph does not list are left out: {listed(others)}"
        warnings.warn(message, FormatWarning, stacklevel=4)
    warn_of_loss(model, "a TensorFlow Lite model", "topology")
    announce(model, [tensor.name for tensor in tensors])
    return data, tensors


def _write(model: Model, data: _Bytes, tensors: Sequence[TfliteTensor], file: BinaryIO) -> None:
    at = 0
    data.file.seek(0)
    for tensor in tensors:
        file.write(data.file.read(tensor.start - at))
        items = bit_patterns(np.asarray(model.tensors[tensor.name]))
        file.write(items.astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
        at = tensor.start + tensor.nbytes
    file.write(data.file.read())
