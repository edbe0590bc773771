"""Tracks: numbered channels of tensors and activations, which are joined, fixed and returned as Channels.

A track is one index of one dimension of a tensor or an activation, and a dimension is an array of tracks. The walk over
a graph joins the tracks that an operation maps to each other, and fixes tracks that must not be removed. Joined tracks
are one channel of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..errors import LimitError
from ..model import Channels, Slice

Ids = npt.NDArray[np.int64]

# Limit on the total number of tracks in all operations; large networks have a few million.
_MAX_STEPS = 1 << 24
_PLACE = 512  # steps charged for each dimension of a tensor, which costs more than a track


@dataclass
class Tracks:
    """Tracks of one network. Methods raise LimitError if the tracks of all operations exceed a limit."""

    _count: int = 0
    _steps: int = 0
    _pairs: list[tuple[Ids, Ids]] = field(default_factory=list)
    _fixed: dict[int, Ids] = field(default_factory=dict)
    _made: set[int] = field(default_factory=set)
    _divisors: set[int] = field(default_factory=set)
    _places: dict[tuple[str, int], Ids] = field(default_factory=dict)

    def charge(self, steps: int) -> None:
        """Count ``steps`` tracks of an operation; raise LimitError if the total is too large."""
        self._steps += 1 + steps
        if self._steps > _MAX_STEPS:
            raise LimitError(f"tracing the channels of the graph takes more than {_MAX_STEPS:,} steps")

    def new(self, count: int) -> Ids:
        """Return new tracks, shape (count,)."""
        self.charge(count)
        self._count += count
        return np.arange(self._count - count, self._count)

    def fixed(self, count: int) -> Ids:
        """Return new tracks that cannot be removed, shape (count,)."""
        ids = self.new(count)
        self.fix(ids)
        return ids

    def of(self, tensor: str, axis: int, extent: int) -> Ids:
        """Return the tracks of a dimension of a tensor of the model. Repeated calls return the same array."""
        if (tensor, axis) not in self._places:
            self.charge(_PLACE)
            self._places[tensor, axis] = self.new(extent)
        return self._places[tensor, axis]

    def fix(self, ids: Ids) -> None:
        """Mark tracks as not removable."""
        self._fixed[id(ids)] = ids

    def is_fixed(self, ids: Ids) -> bool:
        """Return True if :meth:`fix` was called with this array."""
        return id(ids) in self._fixed

    def join(self, one: Ids, other: Ids) -> None:
        """Join the tracks of two arrays of equal length, element by element."""
        self.charge(len(one))
        if one is not other:
            self._pairs.append((one, other))

    def make(self, ids: Ids) -> None:
        """Record that the tensor with this dimension produces the channels."""
        if len(ids):
            self._made.add(int(ids[0]))

    def divide(self, ids: Ids) -> None:
        """Record that values along this dimension of a tensor become divisors, such as variances."""
        if len(ids):
            self._divisors.add(int(ids[0]))

    def channels(self) -> tuple[Channels, ...]:
        """Return the removable channels: a tensor produces them, and none of their tracks is fixed.

        Channels are grouped if they are adjacent in the same dimensions of the same tensors.
        """
        roots = self._roots()
        free = np.ones(self._count, np.bool_)
        for ids in self._fixed.values():
            free[roots[ids]] = False
        # Equal for tracks that occur in the same dimensions, with the same number of occurrences in each.
        label = np.zeros(self._count, np.int64)
        made, last = np.zeros(self._count, np.bool_), 0
        for ids in self._places.values():
            found, counts = np.unique(roots[ids], return_counts=True)
            _, kinds = np.unique(np.stack([label[found], counts]), axis=1, return_inverse=True)
            label[found] = last + 1 + kinds.reshape(-1)
            last += 1 + int(kinds.max(initial=0))
            made[found] |= int(ids[0]) in self._made
        groups: dict[int, list[int]] = {}
        for root in np.flatnonzero(free & made & (roots == np.arange(self._count))).tolist():
            groups.setdefault(int(label[root]), []).append(root)
        places: dict[int, list[tuple[str, int]]] = {group: [] for group in groups}
        for place, ids in self._places.items():
            for group in {int(kind) for kind in np.unique(label[roots[ids]])} & groups.keys():
                places[group].append(place)
        sort = cache(lambda place: _sorted(roots[self._places[place]]))
        return tuple(
            channels for group, of in groups.items() for channels in self._runs(np.array(of), places[group], sort)
        )

    def _roots(self) -> Ids:
        """Return the smallest track of its joined group for each track."""
        roots = np.arange(self._count)
        one = np.concatenate([np.zeros(0, np.int64), *[ids for ids, _ in self._pairs]])
        other = np.concatenate([np.zeros(0, np.int64), *[ids for _, ids in self._pairs]])
        while True:
            a, b = roots[one], roots[other]
            if np.array_equal(a, b):
                return roots
            np.minimum.at(roots, np.maximum(a, b), np.minimum(a, b))
            while not np.array_equal(roots, roots[roots]):
                roots = roots[roots]

    def _runs(
        self, group: Ids, places: list[tuple[str, int]], sort: Callable[[tuple[str, int]], tuple[Ids, Ids]]
    ) -> list[Channels]:
        """Return the Channels of a group, split where channels are not adjacent in all ``places``.

        ``sort`` returns the sort order of the roots of a place, and the sorted roots.
        """
        starts: list[Ids] = []
        inners: list[Ids] = []
        cut = np.zeros(len(group) - 1, np.bool_)
        for place in places:
            order, at = sort(place)
            first = np.searchsorted(at, group)
            count = int(np.searchsorted(at, group[0], "right")) - int(first[0])
            where = order[first[:, None] + np.arange(count)]  # ascending indices of each channel
            begins = np.concatenate([[0], np.flatnonzero((np.diff(where, axis=1) != 1).any(0)) + 1])
            starts.append(where[:, begins])
            inners.append(np.diff(np.append(begins, count)))
            cut |= (np.diff(starts[-1], axis=0) != inners[-1]).any(1)
        borders = [0, *(np.flatnonzero(cut) + 1).tolist(), len(group)]
        return [
            Channels(
                end - begin,
                tuple(
                    Slice(tensor, axis, offset, outer, inner, *[first in kind for kind in (self._made, self._divisors)])
                    for (tensor, axis), first, start, of_each in zip(
                        places, [int(self._places[place][0]) for place in places], starts, inners, strict=True
                    )
                    for offset, outer, inner in _repeated(start[begin], of_each, end - begin)
                ),
            )
            for begin, end in pairwise(borders)
        ]


def _sorted(ids: Ids) -> tuple[Ids, Ids]:
    """Return the sort order of tracks, and the sorted tracks."""
    order = np.argsort(ids, kind="stable")
    return order, ids[order]


def _repeated(starts: Ids, inners: Ids, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``offset``, ``outer`` and ``inner`` of the slices of ``size`` channels that begin at ``starts``."""
    for inner in dict.fromkeys(inners.tolist()):
        first, *others = own = starts[inners == inner].tolist()
        if all(start == first + k * size * inner for k, start in enumerate(others, 1)):
            yield first, len(own), inner
        else:
            yield from ((start, 1, inner) for start in own)
