"""Writing of PyTorch files."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES, bit_patterns
from ...errors import FormatError
from ...files import own_suffix
from ...model import Array, Model
from .. import FormatWarning, announce, described, lacks_type, listed, warn_of_loss
from . import description
from .items import TYPES, filled, patterns_of
from .structure import build, is_name

#: Maximum bytes of tensors held in memory until they are written; above it, a temporary file is used.
IN_MEMORY = 256 << 20
_ALIGNMENT = 64


def write_model(torch: Any, model: Model, file: BinaryIO, *, scratch: Path | None = None) -> None:
    """Write a model; see :func:`nnr_codec.formats.pytorch.write`. ``scratch`` is a folder for a temporary file."""
    described_by = _description(model)
    places = described_by.places if described_by else dict.fromkeys(map(_checked, model))
    if missing := [name for name in places if name not in model.tensors]:
        raise FormatError(f"the model has no tensor {missing[0][:80]!a}, which its PyTorch description requires")
    if unused := [name for name in model if name not in places]:
        _warn(f"tensors that are not in the model's PyTorch description are left out: {listed(unused)}")
    shapes = {name: _shape(model, name, place) for name, place in places.items()}
    with _memory(torch, sum(_size(*shapes[name]) for name in shapes), scratch) as empty:
        announce(model, list(shapes))
        tensors: dict[str, Any] = {}
        first: dict[str, str] = {}  # by the target of the tie
        for name, (dtype, shape) in shapes.items():
            array = np.asarray(model.tensors[name])
            if array.dtype != dtype or array.size != math.prod(shape):
                raise FormatError(f"tensor {name[:80]!a} changed while it was written")
            other = tensors.get(first.setdefault(model.aliases.get(name, name), name))
            tensors[name] = other if _tied(other, array, shape) else filled(empty(dtype, shape), array)
        content = build(torch, described_by.tree, tensors) if described_by else tensors
        torch.save(content, file)


def _description(model: Model) -> description.Description | None:
    """Return the description of a model, and warn of losses."""
    topology = model.topology
    if topology is None or topology.format != "pytorch" or not topology.data.startswith(description.START):
        warn_of_loss(model, "a PyTorch file", "ties")
        return None
    warn_of_loss(model, "a PyTorch file", "topology", "ties")
    return description.parse(topology.data)


def _checked(name: str) -> str:
    """Return the name of a tensor as a key. Raise FormatError for a name that could not be read again."""
    if not is_name(name):
        raise FormatError(f"tensor {name[:80]!a}: PyTorch files do not permit this name")
    return name


def _shape(model: Model, name: str, place: description.TensorPlace | None) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a tensor in the file: the described shape, if it differs only in extents of 1."""
    dtype, shape = described(model, name)
    if dtype.name not in TYPES:
        raise lacks_type(f"tensor {name[:80]!a}", dtype, "pytorch")
    if place is None or place.shape == shape or name in model.pruned:
        return dtype, shape
    if [extent for extent in place.shape if extent != 1] != [extent for extent in shape if extent != 1]:
        raise FormatError(f"tensor {name[:80]!a} has shape {shape}; the PyTorch description says {place.shape}")
    return dtype, place.shape


def _size(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


def _tied(other: Any, array: Array, shape: tuple[int, ...]) -> bool:
    """Return whether an existing tensor equals the new one."""
    stored = STORED_TYPES[array.dtype.name]
    if other is None or str(other.dtype) != f"torch.{stored.name}" or tuple(other.shape) != shape:
        return False
    return np.array_equal(patterns_of(other, stored).reshape(-1), bit_patterns(array))


@contextlib.contextmanager
def _memory(torch: Any, total: int, scratch: Path | None) -> Iterator[Any]:
    """Yield an allocator of tensors by dtype and shape, for at most ``total`` bytes with alignment."""
    if total <= IN_MEMORY:
        yield lambda dtype, shape: torch.empty(shape, dtype=getattr(torch, dtype.name))
        return
    with tempfile.TemporaryDirectory(dir=scratch, suffix=own_suffix(), ignore_cleanup_errors=True) as folder:
        storage, used = torch.UntypedStorage.from_file(os.path.join(folder, "items"), True, total), 0

        def empty(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
            nonlocal used
            part = storage[used : used + math.prod(shape) * dtype.itemsize]
            used += _size(dtype, shape)
            return torch.empty(0, dtype=getattr(torch, dtype.name)).set_(part, 0, shape)

        yield empty


def _warn(message: str) -> None:
    warnings.warn(message, FormatWarning, stacklevel=5)
