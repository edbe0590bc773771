"""Tensors of GGUF models: fields of blocks that are read on access, blocks that are written, and their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...dtypes import bit_patterns
from ...errors import FormatError
from ...model import Array, Model, described, only_of
from .. import Deferred, fill
from ..lazy import Entry
from .blocks import BLOCK_TYPES, BlockType, Field, join, weights
from .head import GgufTensor

_CHUNK = 1 << 13  # blocks converted at a time


@dataclass(frozen=True, slots=True)
class FieldEntry(Entry):
    """Field of the blocks of a tensor: the number of their type, and the index of the field."""

    number: int = 0
    field: int = 0

    def read(self, file: BinaryIO, what: str) -> Array:
        kind = BLOCK_TYPES[self.number]
        field, count = kind.fields[self.field], self.nbytes // kind.nbytes
        items = np.empty((count, field.count), field.type)
        data = np.empty((min(count, _CHUNK), kind.nbytes), np.uint8)
        file.seek(self.start)
        for first in range(0, count, _CHUNK):
            part = data[: count - first]
            fill(file, part, what)
            items[first : first + _CHUNK] = field.split(part)
        return items.reshape(self.shape)


def entries(tensor: GgufTensor) -> Iterator[tuple[str, Entry]]:
    """Yield the names and places of the tensors of the model with the bits of a tensor."""
    for k, (name, type, shape) in enumerate(tensor.parts()):
        if isinstance(tensor.kind, str):
            yield name, Entry(type, shape, tensor.start, tensor.nbytes)
        else:
            yield name, FieldEntry(type, shape, tensor.start, tensor.nbytes, number=tensor.kind.number, field=k)


def check_fit(model: Model, tensor: GgufTensor) -> None:
    """Raise FormatError unless the model has all tensors with the bits of a tensor, in their types and shapes."""
    for name, type, shape in tensor.parts():
        if name not in model.tensors:
            raise FormatError(f"the model has no tensor {name[:80]!a}, which the GGUF file lists", tensor=name)
        found = described(model.tensors, name)
        if (found[0].name, found[1]) != (type, shape):
            raise FormatError(
                f"tensor {name[:80]!a} is {found[0]} {list(found[1])}; the GGUF file says {type} {list(shape)}; "
                "omit --dtype (dtype=), or save it as .safetensors",
                tensor=name,
            )


def write_tensor(file: BinaryIO, tensors: Mapping[str, Array], tensor: GgufTensor) -> None:
    """Write the bytes of a tensor. Raise FormatError if its blocks cannot hold an integer."""
    if isinstance(tensor.kind, str):
        items = bit_patterns(np.asarray(tensors[tensor.name]))
        file.write(items.astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
        return
    fields = {field.name: _rows(tensors[name], tensor.kind, field) for name, field in tensor.fields.items()}
    for name, field in tensor.fields.items():
        items = fields[field.name]
        if field.range and items.size and not field.range[0] <= items.min() <= items.max() <= field.range[1]:
            raise FormatError(
                f"tensor {name[:80]!a} has integers outside {field.range[0]} to {field.range[1]}, the range of "
                f"{tensor.kind.name}",
                tensor=name,
            )
    for part in _chunks(fields):
        file.write(join(tensor.kind, part).data)


class Weights(Mapping[str, Array]):
    """Tensors of a model with float32 weights in place of the fields of blocks, computed on access.

    The fields of a tensor stay if one of them is missing or has another type or shape, or if the weights of the block
    type are not defined here.
    """

    def __init__(self, tensors: Mapping[str, Array], quantized: Iterable[GgufTensor]) -> None:
        self._tensors = tensors
        self._quantized = {tensor.name: tensor for tensor in quantized if self._is_complete(tensor)}
        fields = {field: name for name, tensor in self._quantized.items() for field in tensor.fields}
        self._names = dict.fromkeys(fields.get(name, name) for name in tensors)

    def _is_complete(self, tensor: GgufTensor) -> bool:
        if isinstance(tensor.kind, str) or tensor.kind.is_opaque:
            return False
        for name, type, shape in tensor.parts():
            if name not in self._tensors:
                return False
            dtype, found = described(self._tensors, name)
            if found != shape:
                return False
            if dtype.name not in (type, "float32"):
                raise FormatError(
                    f"tensor {name[:80]!a} is {dtype}, which changes the weights of {tensor.name[:80]!a}; omit --dtype "
                    "(dtype=)",
                    tensor=name,
                )
        return True

    def __getitem__(self, name: str) -> Array:
        if name not in self._quantized:
            return self._tensors[name]
        tensor = self._quantized[name]
        assert isinstance(tensor.kind, BlockType)
        fields = {field.name: _rows(self._tensors[part], tensor.kind, field) for part, field in tensor.fields.items()}
        found = np.empty((len(fields["levels"]), tensor.kind.size), np.float32)
        for first, part in zip(range(0, len(found), _CHUNK), _chunks(fields), strict=True):
            found[first : first + _CHUNK] = weights(part)
        return found.reshape(tensor.shape)

    def announce(self, names: Iterable[str]) -> None:
        """Announce the fields of the tensors that will be read, in this order."""
        if isinstance(self._tensors, Deferred):
            self._tensors.announce([part for name in names for part in self._parts(name)])

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor without computing it."""
        if name in self._quantized:
            return np.dtype(np.float32), self._quantized[name].shape
        return described(self._tensors, name)

    def only(self, names: Sequence[str]) -> Weights:
        """Return the named tensors in a form for other processes; see :class:`~nnr_codec.model.Portable`."""
        quantized = [self._quantized[name] for name in names if name in self._quantized]
        parts = [part for name in names for part in self._parts(name)]
        return Weights(only_of(self._tensors, parts), quantized)

    def _parts(self, name: str) -> Iterable[str]:
        return self._quantized[name].fields if name in self._quantized else (name,)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _rows(array: Array, kind: BlockType, field: Field) -> npt.NDArray[Any]:
    """Return the items of a field with a row per block."""
    return np.asarray(array).reshape(-1, field.count) if array.size else np.empty((0, field.count), field.type)


def _chunks(fields: Mapping[str, npt.NDArray[Any]]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    for first in range(0, len(next(iter(fields.values()))), _CHUNK):
        yield {name: items[first : first + _CHUNK] for name, items in fields.items()}
