"""Evaluation of operations on small integer constants, with which exporters compute axes, paddings and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .proto import ConstantTensor

# Maximum number of items of a result, and of inputs of an operation.
_MOST = 64

Integers = npt.NDArray[np.int64]
_Attributes = Mapping[str, Any]


def evaluate(operation: str, attributes: _Attributes, inputs: Sequence[ConstantTensor | None]) -> ConstantTensor | None:
    """Return the result of an operation; None if an input is unknown, not integer or too large."""
    rule = _RULES.get(operation)
    if rule is None or not 0 < len(inputs) <= _MOST:
        return None
    arrays: list[Integers] = []
    for each in inputs:
        if each is None or len(each.values) != prod(each.shape) or not all(type(value) is int for value in each.values):
            return None
        arrays.append(np.array(each.values, np.int64).reshape(each.shape))
    try:
        found = rule(attributes, *arrays)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None
    return ConstantTensor(found.shape, tuple(found.reshape(-1).tolist())) if found.size <= _MOST else None


def _full(attributes: _Attributes, shape: Integers) -> Integers:
    (value,) = attributes.get("value", [0])
    if np.any(shape < 0) or np.any(shape > _MOST) or prod(shape.tolist()) > _MOST:
        raise ValueError
    return np.full(shape, value, np.int64)


def _sliced(attributes: _Attributes, source: Integers, *parts: Integers) -> Integers:
    starts, ends, *others = (part.tolist() for part in parts)
    axes = others[0] if others else [*range(len(starts))]
    steps = others[1] if len(others) > 1 else [1] * len(starts)
    index = [slice(None)] * source.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, end, step)
    return source[tuple(index)]


_RULES: Mapping[str, Callable[..., Integers]] = {
    "Add": lambda a, x, y: x + y,
    "Cast": lambda a, x: x,
    "Concat": lambda a, *parts: np.concatenate(parts, axis=a["axis"]),
    "ConstantOfShape": _full,
    "Gather": lambda a, x, places: np.take(x, places, axis=a.get("axis", 0)),
    "Identity": lambda a, x: x,
    "Mul": lambda a, x, y: x * y,
    "Reshape": lambda a, x, shape: x.reshape(shape),
    "Shape": lambda a, x: np.array(x.shape, np.int64)[a.get("start", 0) : a.get("end")],
    "Slice": _sliced,
    "Squeeze": lambda a, x, axes: x.squeeze(tuple(axes)),
    "Sub": lambda a, x, y: x - y,
    "Transpose": lambda a, x: x.transpose(a.get("perm")),
    "Unsqueeze": lambda a, x, axes: np.expand_dims(x, tuple(axes)),
}
