"""Tied tensors, such as an embedding that is also the weight of the output layer; only one of them is coded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..config import EncoderConfig
from ..errors import EncodeError
from ..model import Array, Block, Model
from .facts import native


def tied_tensors(model: Model, config: EncoderConfig, block_of: Mapping[str, Block]) -> dict[str, str]:
    """Return the tensors that need no unit, with the names of the tensors to which they are tied.

    These are the aliases of the model and, if side information is allowed, tensors of a plain dict with the same memory
    and options. Tensors in blocks and empty tensors are excluded. Raises EncodeError if aliases differ from their
    targets.
    """
    tied = {}
    for name in model.aliases:
        target = _target(name, model)
        if name in block_of or not target or _changed_by_block(target, block_of):
            continue  # the record cannot refer to an empty name
        array, other = np.asarray(model.tensors[name]), np.asarray(model.tensors[target])
        if not _same(array, other):
            raise EncodeError(f"tensor {name!r} is declared as tied to {target!r}, but differs from it", tensor=name)
        if array.size:
            tied[name] = target
    if type(model.tensors) is dict and config.side_info:
        known: dict[tuple[object, ...], list[str]] = {}
        for name, found in model.tensors.items():
            if not name or name in tied or name in block_of or not isinstance(found, np.ndarray) or not found.size:
                continue
            where = (found.__array_interface__["data"][0], found.shape, found.strides, found.dtype)
            others = known.setdefault(where, [])
            target = next((other for other in others if config.for_tensor(other) == config.for_tensor(name)), name)
            if target == name:
                others.append(name)
            else:
                tied[name] = target
    return {name: tied.get(target, target) for name, target in tied.items()}


def _target(name: str, model: Model) -> str:
    """Return the tensor at the end of a chain of ties."""
    target = name
    for _ in range(len(model.aliases) + 1):
        if target not in model.tensors:
            raise EncodeError(f"{name!r} is declared as tied to {target!r}, which is not a tensor of the model")
        if target not in model.aliases:
            return target
        target = model.aliases[target]
    raise EncodeError(f"tensor {name!r} is declared as tied in a cycle", tensor=name)


def _changed_by_block(name: str, block_of: Mapping[str, Block]) -> bool:
    """Return whether decoders change a tensor of a block."""
    block = block_of.get(name)
    return block is not None and (block.scale is not None or block.g is not None)


def _same(one: Array, other: Array) -> bool:
    """Return whether two tensors have the same type, shape and bits."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = native(one), native(other)
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))
