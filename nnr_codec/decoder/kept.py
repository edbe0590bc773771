"""Tensors of units that are kept, so that decoding goes on from there after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..model import Array
from ..parts import Parts
from .group import Group, Left

Result = tuple[dict[str, Array], list[Left]]


class Kept:
    """The tensors of groups of one bitstream, none of which is an update, as parts.

    Parameters
    ----------
    parts : Parts
    about : tuple
        What the tensors of a group follow from beside its place in the bitstream, and what a topology says of it: the
        bitstream, and how it is read.
    groups : iterable of Group
        All that will be asked for; other parts go away.
    """

    def __init__(self, parts: Parts, about: tuple[Any, ...], groups: Iterable[Group]) -> None:
        self._parts = parts
        self._keys = {id(group): parts.key("tensors", *about, *_told(group)) for group in groups}
        parts.only(set(self._keys.values()))

    def __contains__(self, group: Group) -> bool:
        return self._keys[id(group)] in self._parts

    def get(self, group: Group, decode: Callable[[], Result]) -> Result:
        """What is kept of a group, or, where that is damaged, what decoding gives."""
        tensors = self._parts.get(self._keys[id(group)])
        return (tensors, []) if isinstance(tensors, dict) else decode()

    def put(self, group: Group, tensors: dict[str, Array]) -> None:
        """Keep what a group gives, unless it is kept already."""
        if group not in self:
            self._parts.put(self._keys[id(group)], tensors)


def _told(group: Group) -> list[Any]:
    return [(task.unit.index, task.names, task.dims, task.outputs) for task in group.tasks]
