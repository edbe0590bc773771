"""Overlays of the tensors of a model: tensors are replaced or divided when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..model import Array, Described, only_of

Floats = npt.NDArray[np.float64]


class _Overlay(Mapping[str, Array]):
    """Mapping of tensors in which some are replaced, and some are divided index by index when they are read."""

    def __init__(
        self,
        tensors: Mapping[str, Array],
        others: Mapping[str, Array],
        divisors: Mapping[str, tuple[Floats, int]],
        names: Sequence[str] | None = None,
    ) -> None:
        self._tensors, self._others, self._divisors = tensors, others, divisors
        if names is None:
            names = [*tensors, *(name for name in others if name not in tensors)]
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        if name in self._others:
            return self._others[name]
        tensor = self._tensors[name]
        if name not in self._divisors:
            return tensor
        divisor, axis = self._divisors[name]
        return divided(np.asarray(tensor), divisor, axis)

    def only(self, names: Sequence[str]) -> _Overlay:
        """See :class:`nnr_codec.model.Portable`."""
        others = {name: self._others[name] for name in names if name in self._others}
        divisors = {name: self._divisors[name] for name in names if name in self._divisors}
        return _Overlay(only_of(self._tensors, [name for name in names if name not in others]), others, divisors)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _DescribedOverlay(_Overlay):
    """Overlay of tensors whose type and shape are known without reading them."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """See :class:`nnr_codec.model.Described`."""
        if name in self._others:
            return self._others[name].dtype, self._others[name].shape
        return cast(Described, self._tensors).described(name)


def overlaid(
    tensors: Mapping[str, Array],
    others: Mapping[str, Array],
    divisors: Mapping[str, tuple[Floats, int]] | None = None,
) -> Mapping[str, Array]:
    """Return tensors with some replaced or added; a dict if the tensors are one.

    ``divisors`` has, by name, a divisor for each index of a dimension, and the dimension.
    """
    cls = _DescribedOverlay if isinstance(tensors, Described) else _Overlay
    found = cls(tensors, others, divisors or {})
    return dict(found) if type(tensors) is dict else found


def with_factors(tensors: Mapping[str, Array], factors: Mapping[str, Mapping[str, Array]]) -> Mapping[str, Array]:
    """Return tensors in which some are replaced by their factors, in the same positions."""
    names = [part for name in tensors for part in factors.get(name, (name,))]
    others = {name: array for parts in factors.values() for name, array in parts.items()}
    cls = _DescribedOverlay if isinstance(tensors, Described) else _Overlay
    found = cls(tensors, others, {}, names)
    return dict(found) if type(tensors) is dict else found


def divided(tensor: Array, divisor: Array, axis: int) -> Array:
    """Return a tensor with each index of a dimension divided by its divisor, in the tensor's type."""
    return multiplied(tensor, 1 / divisor.astype(np.float64), axis)


def multiplied(tensor: Array, factors: Floats, axis: int = 0) -> Array:
    """Return a tensor with each index of a dimension multiplied by its factor, in the tensor's type."""
    shape = [1] * tensor.ndim
    shape[axis] = len(factors)
    with np.errstate(invalid="ignore"):  # signalling NaN become quiet NaN
        product: Array = (tensor.astype(np.float64) * factors.reshape(shape)).astype(tensor.dtype)
    return product
