"""Tensors that share one compressed data unit with a list of ids: concatenated, quantized and coded as one tensor.

Decoders divide the decoded tensor (TensorSplit, ISO/IEC 15938-17:2024, 6.4.3.7).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ..compare import is_matrix_shape
from ..config import parts_of
from ..errors import EncodeError, Option
from ..model import Array, Model, described, only_of
from .block_units import UnitPlan
from .plan import SourceTensor
from .prepared import Prepared

#: Names of the tensors of each unit, by the name of its first tensor.
Joined = Mapping[str, tuple[str, ...]]
#: For each stored dimension of a tensor, the index of this dimension in the model.
Order = tuple[int, ...]


class JoinedTensors(Mapping[str, Array]):
    """Mapping of tensors in which some are concatenated when they are read."""

    def __init__(self, tensors: Mapping[str, Array], joined: Joined) -> None:
        self._tensors, self._joined = tensors, joined
        self._hidden = {name for names in joined.values() for name in names[1:]}

    def __getitem__(self, name: str) -> Array:
        if name in self._hidden:
            raise KeyError(name)
        if name in self._joined:
            names = self._joined[name]
            axis, orders = arrangement(self._tensors, names)
            arrays = [np.asarray(self._tensors[one]) for one in names]
            return np.concatenate([array.transpose(order) for array, order in zip(arrays, orders, strict=True)], axis)
        return self._tensors[name]

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """See :class:`nnr_codec.model.Described`."""
        if name not in self._joined:
            return described(self._tensors, name)
        names = self._joined[name]
        axis, orders = arrangement(self._tensors, names)
        dtype, shape = described(self._tensors, names[0])
        extent = sum(described(self._tensors, one)[1][order[axis]] for one, order in zip(names, orders, strict=True))
        return dtype, (*shape[:axis], extent, *shape[axis + 1 :])

    def only(self, names: Sequence[str]) -> JoinedTensors:
        """See :class:`nnr_codec.model.Portable`."""
        own = [one for name in names for one in self._joined.get(name, (name,))]
        joined = {name: self._joined[name] for name in names if name in self._joined}
        return JoinedTensors(only_of(self._tensors, own), joined)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._tensors if name not in self._hidden)

    def __len__(self) -> int:
        return len(self._tensors) - len(self._hidden)


def arrangement(tensors: Mapping[str, Array], names: Sequence[str]) -> tuple[int, list[Order]]:
    """Return the dimension along which tensors of equal rank are concatenated, and the order of dimensions of each.

    It is the first dimension in which they differ, or 0. If they differ in several dimensions, the dimensions of
    a tensor are stored in another order, in which it has the extents of the first tensor in all dimensions but one.
    Raises EncodeError if there is no such order.
    """
    shapes = [described(tensors, name)[1] for name in names]
    axes = range(len(shapes[0]))
    differ = [axis for axis in axes if len({shape[axis] for shape in shapes}) > 1]
    if len(differ) < 2:
        return differ[0] if differ else 0, [tuple(axes)] * len(names)
    for axis in axes:
        orders = [order for shape in shapes if (order := _order(shape, shapes[0], axis))]
        if len(orders) == len(names):
            return axis, orders
    raise EncodeError(
        Option("join"),
        f": tensors joined with {names[0]!r} differ in several dimensions, in any order of dimensions",
        tensor=names[0],
    )


def _order(shape: Sequence[int], target: Sequence[int], axis: int) -> Order | None:
    """Return an order of dimensions in which a shape is equal to another one except for one dimension, or None."""
    if (*shape[:axis], *shape[axis + 1 :]) == (*target[:axis], *target[axis + 1 :]):
        return tuple(range(len(shape)))
    left, order = list(range(len(shape))), list[int]()
    for extent in (*target[:axis], *target[axis + 1 :]):
        found = next((k for k in left if shape[k] == extent), None)
        if found is None:
            return None
        left.remove(found)
        order.append(found)
    return (*order[:axis], *left, *order[axis:])


def _shifts(order: Order) -> tuple[tuple[int, int], ...]:
    """Return the moves that restore dimensions from their order: an index and how far it moves left (6.4.3.7)."""
    now, moves = list(order), list[tuple[int, int]]()
    for axis in range(len(order)):
        place = now.index(axis)
        if place > axis:
            moves.append((place, place - axis))
            now.insert(axis, now.pop(place))
    return tuple(moves)


def with_joined(prepared: Prepared) -> Prepared:
    """Return the model with the tensors of the option ``join`` concatenated.

    Raises EncodeError for tensors that cannot share a unit.
    """
    config, model = prepared.config, prepared.model
    if not config.join:
        return prepared
    if model.blocks:
        raise EncodeError(Option("join"), " cannot be combined with blocks (6.4.3.7)")
    joined: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for template in config.join:
        groups = _groups(template, [*model.tensors])
        if not groups:
            raise EncodeError(Option("join"), f": {template!r} matches no tensors")
        for names in groups:
            _check(names, model)
            if not taken.isdisjoint(names):
                raise EncodeError(Option("join"), f": tensor {min(taken & {*names})!r} is in several groups")
            taken |= {*names}
            joined[names[0]] = names
    tensors: Mapping[str, Array] = JoinedTensors(model.tensors, joined)
    if type(model.tensors) is dict:
        tensors = dict(tensors)
    return replace(prepared, model=replace(model, tensors=tensors), joined=joined)


def _groups(template: str, names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of names that match a template, in the order of its alternatives; see EncoderConfig.join."""
    before, inside, after = parts_of(template)
    own = "|".join(map(re.escape, inside))
    try:
        pattern = re.compile(f"{_pattern(before)}(?P<own>{own}){_pattern(after)}", re.DOTALL)
    except re.error as error:
        raise EncodeError(Option("join"), f": {template!r} is not a glob: {error}") from None
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            wildcards = list(match.groups())
            alternative = wildcards.pop(pattern.groupindex["own"] - 1)
            found.setdefault(tuple(wildcards), {})[alternative] = name
    for group in found.values():
        if missing := [one for one in inside if one not in group]:
            one = next(iter(group.values()))
            raise EncodeError(Option("join"), f": {template!r} matches {one!r}, but no tensor with {missing[0]!r}")
    return [tuple(group[one] for one in inside) for group in found.values()]


def _pattern(glob: str) -> str:
    """Return a glob as a regular expression with a group for each wildcard."""

    def converted(match: re.Match[str]) -> str:
        text = match[0]
        if text in "*?":
            return "(.*)" if text == "*" else "(.)"
        return f"({text.replace('[!', '[^', 1)})" if len(text) > 1 else re.escape(text)

    return re.sub(r"\[!?[^]]+\]|.", converted, glob, flags=re.DOTALL)


def _check(names: tuple[str, ...], model: Model) -> None:
    """Raise EncodeError for tensors that cannot be concatenated."""
    dtype, shape = described(model.tensors, names[0])
    for name in names:
        other, dims = described(model.tensors, name)
        if other != dtype or len(dims) != len(shape) or not dims or not prod(dims):
            what = f"{names[0]!r} is {dtype} {shape}, {name!r} is {other} {dims}"
            raise EncodeError(
                Option("join"),
                f": tensors of one unit must have the same type and rank and must not be empty: {what}",
                tensor=name,
            )
        if name in model.aliases or name in model.aliases.values():
            raise EncodeError(Option("join"), f": {name!r} is tied to another tensor", tensor=name)
        if name in model.pruned:
            raise EncodeError(Option("join"), f": {name!r} is pruned", tensor=name)
    joined = JoinedTensors(model.tensors, {names[0]: names}).described(names[0])[1]
    if is_matrix_shape(joined) and not is_matrix_shape(shape):
        raise EncodeError(Option("join"), f": {names[0]!r} of shape {shape} is a vector; joined, it would be a matrix")


def shared_unit(unit: UnitPlan, names: tuple[str, ...], tensors: Mapping[str, Array]) -> UnitPlan:
    """Return the unit of a concatenated tensor, with the ids of its tensors.

    Raises EncodeError if it is coded with side information.
    """
    (plan,) = unit.tensors.values()
    if plan.code:
        raise EncodeError(
            Option("join"),
            f": {names[0]!r} is coded with side information, which refers to one tensor; join lossy tensors only",
            tensor=names[0],
        )
    axis, orders = arrangement(tensors, names)
    extents = [described(tensors, name)[1][order[axis]] for name, order in zip(names, orders, strict=True)]
    others = [replace(plan, name=name, source=SourceTensor(0)) for name in names[1:]]
    return replace(
        unit,
        ids=names,
        implied=tuple(others),
        split_axis=axis,
        split_index=tuple(accumulate(extents[:-1])),
        shifts=tuple(map(_shifts, orders)),
    )
