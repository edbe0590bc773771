"""A bitstream as a mapping: what it holds without decoding payloads, and single tensors when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from ..bitstream.performance import Performance, PerformanceMaps, maps_for
from ..bitstream.units import UnitReader
from ..limits import Budget, Limits
from ..model import Array, Model, Topology
from ..syntax import Session
from .decode import BitstreamParser, Named
from .group import Group, is_first_edition
from .info import TensorInfo
from .schedule import decode_groups
from .state import UpdateState

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream


class NnrFile(Mapping[str, Array]):
    """A bitstream whose tensors are decoded one at a time, on access; several threads may do so.

    Made by :func:`nnr_codec.open`. Iterating gives names; ``f[name]`` decodes; ``f.info[name]`` does not.

    Attributes
    ----------
    info : dict of str to TensorInfo
        Facts about each tensor from headers, in bitstream order.
    nbytes : int
        Bytes of the bitstream.
    """

    def __init__(
        self,
        data: Bitstream,
        limits: Limits | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        named: Named | None = None,
    ) -> None:
        self._reader = UnitReader(data, limits, Session(topology_dimensions or {}))
        self._parser = BitstreamParser(self._reader)
        self._groups: list[Group] | None = []
        self._group_of: dict[str, Group] = {}
        self._first_edition: bool | None = None
        self._lock = Lock()
        for group in self._parser.groups():
            self._groups.append(group)
            for info in group.infos:
                self._group_of[info.name] = group
        self.info: dict[str, TensorInfo] = self._parser.info
        self._parser.plan_pruning()
        self.nbytes = self._reader.source.size
        self._named = named

    @property
    def ignored(self) -> list[str]:
        """Units of reserved and unspecified types and formats, which decoders pass over, by number."""
        return self._parser.ignored

    @property
    def performance(self) -> Performance:
        """What the model parameter set tells of the network's performance, and of its base model (6.4.4.3)."""
        return Performance.of(self._reader.session.mps)

    def performance_of(self, name: str) -> PerformanceMaps:
        """The performance maps that hold for an operation on the layer of one tensor alone (6.4.4.4)."""
        self._open()
        return maps_for(self._group_of[name].first.session, layer=True)

    @property
    def topology(self) -> Topology | None:
        """The topology that the bitstream carries."""
        return self._parser.topology

    def decode(
        self,
        progress: Callable[[str], None] | None = None,
        *,
        names: Iterable[str] | None = None,
        raw: bool = False,
        allow_missing: bool = False,
        jobs: int = 1,
        executor: Executor | None = None,
        state: UpdateState | None = None,
    ) -> Model:
        """All tensors, or those called ``names``, with the topology: what :func:`nnr_codec.decode` gives.

        Parameters
        ----------
        progress : callable, optional
            Told each name.
        names : iterable of str, optional
            Which tensors; the units of others are not decoded. Without all of them there is no topology either.
            With ``raw``, all Rec* tensors of their units.
        raw, allow_missing, jobs, executor
            As for :func:`nnr_codec.decode`.
        state : UpdateState, optional
            What earlier updates left; it takes over what later ones refer to, also where this fails half-way.
        """
        if names is None and not allow_missing:
            self._parser.check_complete(self._named)
        groups = self._open()
        if names is not None:
            names = set(names)
            chosen = {id(self._group_of[name]) for name in names}
            groups = [group for group in groups if id(group) in chosen]
        tensors = decode_groups(
            groups,
            self._reader.limits,
            first_edition=self._reading(),
            state=UpdateState() if state is None else state,
            raw=raw,
            names=None if raw else names,
            progress=progress,
            jobs=jobs,
            executor=executor,
        )
        if not raw:
            tensors = {name: self._parser.pruning.apply(name, tensor) for name, tensor in tensors.items()}
        topology = self.topology if names is None or len(names) == len(self) else None
        return Model(tensors, topology, pruned=[name for name in tensors if name in self._parser.pruning.dimensions])

    def __getitem__(self, name: str) -> Array:
        self._open()
        group = self._group_of[name]
        budget = Budget(self._reader.limits)
        tensor = group.decode(state=UpdateState(), budget=budget, first_edition=self._reading())[name]
        return self._parser.pruning.apply(name, tensor)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Some rows of one tensor: ``np.take(f[name], range(start, stop), axis)``.

        The axis is ``f.info[name].first_tensor_dimension_shift``, the one that was coded first: 0 unless the header
        says otherwise. Where the payload has entry points, only the rows of blocks around these are decoded (6.4.3.7).

        Raises IndexError unless 0 <= start <= stop <= number of rows, and what decoding raises.
        """
        self._open()
        group, budget = self._group_of[name], Budget(self._reader.limits)
        if self._parser.pruning.has_masks:
            return np.take(self[name], range(start, stop), self.info[name].first_tensor_dimension_shift)
        return group.rows(name, start, stop, budget=budget, first_edition=self._reading())

    def _open(self) -> list[Group]:
        if self._groups is None:
            raise ValueError("the file is closed")
        return self._groups

    def _reading(self) -> bool:
        """Which of its two readings a bitstream of profile 0 has; found out once."""
        with self._lock:
            if self._first_edition is None:
                self._first_edition = self._parser.profile == 0 and is_first_edition(self._open())
            return self._first_edition

    def close(self) -> None:
        """Let go of the payloads; names and infos stay."""
        self._groups = None
        self._group_of.clear()
        self._reader.source.close()

    def __enter__(self) -> NnrFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.info

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)

    __eq__ = object.__eq__  # comparing arrays by name is not what a file is for
    __hash__ = object.__hash__
