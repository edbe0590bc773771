"""A bitstream as a mapping: what it holds without decoding payloads, and single tensors when they are asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from .. import formats
from ..bitstream.performance import Performance, PerformanceMaps, maps_for
from ..bitstream.units import UnitReader
from ..limits import Budget, Limits
from ..model import Array, Model, Topology
from ..syntax import Session
from .decode import BitstreamParser
from .deferred import Access, DeferredTensors, Part
from .group import Group, is_first_edition
from .info import TensorInfo
from .lineage import Hash, Lineage, base_model_id, token
from .parents import node_key
from .restore import Restorer
from .schedule import Stored, decode_groups
from .state import Device, UpdateState

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream
    from ..formats import TopologySource
    from ..parallel.checkpoint import Checkpoint

#: Bytes that are hashed at a time.
_CHUNK = 1 << 20


class NnrFile(Mapping[str, Array]):
    """A bitstream whose tensors are decoded one at a time, on access; several threads may do so.

    Made by :func:`nnr_codec.open`. Iterating gives names; ``f[name]`` decodes; ``f.info[name]`` does not.
    Where side information is of an unknown version, names and tensors raise UnsupportedError. ``info`` then lists the
    tensors of the units, and ``decode(raw=True)`` decodes them.

    Attributes
    ----------
    info : dict of str to TensorInfo
        Facts about each tensor of the model from headers and side information, in order.
    side : SideInfo
        What the bitstream says of the model that NNR cannot say; without a record it says nothing.
    nbytes : int
        Bytes of the bitstream.
    """

    def __init__(
        self,
        data: Bitstream,
        limits: Limits | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        dtype: str = "source",
        topology: TopologySource | None = None,
        before: Topology | None = None,
    ) -> None:
        self._arguments = (data, limits, topology_dimensions, dtype, topology, before)
        self._reader = UnitReader(data, limits, Session(topology_dimensions or {}))
        self._parser = BitstreamParser(self._reader, dtype, formats.topology_of(topology, limits=limits), before)
        self._groups: list[Group] | None = []
        self._group_of: dict[str, Group] = {}  # of tensors of units
        self._first_edition: bool | None = None
        self._lock = Lock()
        for group in self._parser.groups():
            self._groups.append(group)
            for info in group.infos:
                self._group_of[info.name] = group
        self._restoration = self._parser.restoration
        self.side = self._restoration.side
        self.info: dict[str, TensorInfo] = self._restoration.infos(self._parser.info)
        self._parser.plan_pruning()
        self.nbytes = self._reader.source.size

    def __repr__(self) -> str:
        data = self._arguments[0]
        of = f" {os.fspath(data)!r}" if isinstance(data, str | os.PathLike) else ""
        return f"<NnrFile{of}: {len(self.info):,} tensors, {self.nbytes:,} bytes>"

    def __reduce__(self) -> tuple[type[NnrFile], tuple[object, ...]]:
        """Pickle the path, so that another process opens the bitstream again."""
        if not isinstance(self._arguments[0], str | os.PathLike | bytes):
            raise TypeError("an NnrFile of an open file cannot be pickled; open the bitstream by its path")
        return NnrFile, self._arguments

    @property
    def ignored(self) -> list[str]:
        """Units of reserved and unspecified types and formats, which decoders pass over, by number."""
        return self._parser.ignored

    @property
    def performance(self) -> Performance:
        """What the model parameter set tells of the network's performance, and of its base model (6.4.4.3)."""
        return Performance.of(self._reader.session.mps)

    @property
    def is_update(self) -> bool:
        """Whether the bitstream represents an update (mps_parent_signalling_enabled_flag)."""
        return bool(self._reader.session.mps_parent_signalling_enabled_flag)

    @property
    def whole(self) -> frozenset[str]:
        """The tensors that are no differences (parent_node_id_present_flag is 0)."""
        tasks = ((name, task) for name, group in self._group_of.items() for task in group.tasks)
        updates = {name for name, task in tasks if task.header.parent_node_id_present_flag}
        parts = ((name, self._restoration.parts(info.same_as or name)) for name, info in self.info.items())
        return frozenset(name for name, own in parts if updates.isdisjoint(own))

    @property
    def base_model_id(self) -> str | None:
        """What the bitstream continues, as the sender says (6.4.4.3)."""
        return base_model_id(self._reader.session.mps)

    @property
    def lineage(self) -> Lineage | None:
        """Which bitstream of its sender it is, where its base_model_id tells."""
        return Lineage.parse(self.base_model_id or "")

    @property
    def device_ids(self) -> list[Device]:
        """Whose units there are, and that of the lineage; None for units without ids."""
        keys = (node_key(task.header) for group in self._open() for task in group.tasks)
        found = dict.fromkeys(key[0] if key else None for key in keys)
        return [*found] if self.lineage is None else [*(found | {self.lineage.device_id: None})]

    def performance_of(self, name: str) -> PerformanceMaps:
        """The performance maps that hold for an operation on the layer of one tensor alone (6.4.4.4)."""
        self._open()
        parts = self._restoration.parts(self.info[name].name)
        return maps_for(self._group_of[parts[0]].first.session if parts else self._reader.session, layer=True)

    @property
    def topology(self) -> Topology | None:
        """The topology that the bitstream carries, or the one given."""
        return self._parser.topology

    @property
    def context(self) -> Topology | None:
        """The topology that the tensors belong to: also that of the bitstreams before, for an update without one."""
        return self._parser.context

    def check_complete(self) -> None:
        """Raise what :meth:`decode` raises of a bitstream that lacks tensors (IncompleteError) or its topology."""
        self._parser.check_complete()

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
        warn: bool = True,
    ) -> Model:
        """All tensors, or those called ``names``, with the topology: what :func:`nnr_codec.decode` gives.

        Parameters
        ----------
        progress : callable, optional
            Told each name, as soon as its tensor is there.
        names : iterable of str, optional
            Which tensors; the units of others are not decoded. Without all of them there is no topology either.
            With ``raw``, all Rec* tensors of their units.
        raw, allow_missing, jobs, executor
            As for :func:`nnr_codec.decode`.
        state : UpdateState, optional
            What earlier updates left; it takes over what later ones refer to, also where this fails half-way.
        warn : bool
            Issue the warnings of :meth:`warn` at the end.

        Raises MissingReferenceError also when the bitstream does not follow what ``state`` knows of its sender.
        """
        lineage = self.lineage if state is not None and names is None else None
        if state is not None and lineage:
            state.expect(lineage)
        names, groups = self._chosen(names, allow_missing, raw)
        budget, restorer = Budget(self._reader.limits), None
        if not raw:
            restorer = self._parser.restorer(budget, names)
        # Without record, masks and choice, tensors of units are the model's.
        plain = names is None and not self._restoration.changes and not self._parser.pruning.has_masks
        tensors = decode_groups(
            groups,
            budget,
            first_edition=self._reading(),
            state=UpdateState() if state is None else state,
            raw=raw,
            deliver=partial(self._deliver, restorer) if restorer and not plain else None,
            progress=progress,
            jobs=jobs,
            executor=executor,
        )
        if state is not None and lineage:
            state.follow(lineage, self._token(lineage), self._reader.limits)
        if restorer is None:
            pruned = [name for name in tensors if name in self._parser.pruning.dimensions]
            return Model(tensors, self._topology_for(names), pruned=pruned)
        for name, tensor in restorer.finish():
            tensors[name] = tensor
            if progress:
                progress(name)
        model = self._model({name: tensors[name] for name in self.info if name in tensors}, names)
        if warn:
            self.warn()
        return model

    def warn(self) -> None:
        """Issue the warnings about the model: each once for this file, when the first result is complete.

        A PruningWarning says that masks of pruning information fit no tensors and are not applied. Where a filter turns
        it into an exception, the next call returns the result.
        """
        self._parser.pruning.warn()

    def _token(self, lineage: Lineage) -> str:
        """That of the bitstream after this one."""
        return token(self._hashed(lineage.digest()))

    def _hashed(self, digest: Hash) -> Hash:
        """A digest that goes on with all bytes of the bitstream."""
        source = self._reader.source
        stop = source.size if self._parser.stop is None else self._parser.stop
        for start in range(0, stop, _CHUNK):
            digest.update(source.view(start, min(start + _CHUNK, stop)))
        return digest

    @contextmanager
    def deferred(
        self,
        progress: Callable[[str], None] | None = None,
        *,
        names: Iterable[str] | None = None,
        allow_missing: bool = False,
        jobs: int = 1,
        executor: Executor | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[Model]:
        """Yield what :meth:`decode` gives, but that tensors are decoded when they are asked for.

        So a model can be written that is larger than the memory: :func:`nnr_codec.decode_file` does it. What the
        headers of all units tell is checked before. Parameters are those of :meth:`decode`; with ``checkpoint``, the
        tensors of units are stored there, and not decoded again. Call :meth:`warn` when the model is written.
        """
        names, groups = self._chosen(names, allow_missing)
        budget = Budget(self._reader.limits)
        for group in groups:
            group.charge(budget)
        access = Access(self._restoration.parts, self._group_of.__getitem__, self._made, self._tensor)
        infos = {name: info for name, info in self.info.items() if names is None or name in names}
        # The tensors of units follow from the whole bitstream, and from how it is read.
        about = (self._hashed(hashlib.sha256()).digest(), self._reading()) if checkpoint else ()
        with ExitStack() as stack:
            tensors = DeferredTensors(
                infos,
                access,
                budget,
                stack,
                first_edition=self._reading(),
                jobs=jobs,
                executor=executor,
                stored=Stored(checkpoint, about) if checkpoint else None,
                progress=progress,
            )
            yield self._model(tensors, names)

    def _chosen(
        self, names: Iterable[str] | None, allow_missing: bool, raw: bool = False
    ) -> tuple[set[str] | None, list[Group]]:
        """The names and their groups, after a check that all is there if all is wanted."""
        if not raw:
            self._parser.check_understood()
        if names is None and not raw:
            self._parser.check_fit()
        if names is None and not allow_missing:
            self._parser.check_complete()
        groups = self._open()
        if names is None:
            return None, groups
        names = set(names)
        return names, self._groups_of(names)

    def _topology_for(self, names: set[str] | None) -> Topology | None:
        """The topology, if the tensors are all of the model."""
        return self.topology if names is None or len(names) == len(self.info) else None

    def _model(self, tensors: Mapping[str, Array], names: set[str] | None) -> Model:
        """The model of these tensors."""
        dimensions = self._parser.pruning.dimensions
        return Model(
            tensors,
            self._topology_for(names),
            metadata=dict(self.side.metadata),
            pruned=[name for name in tensors if (self.info[name].same_as or name) in dimensions],
            format=self.side.format or self._parser.apart,
            aliases={name: same for name in tensors if (same := self.info[name].same_as) and same in tensors},
        )

    def __getitem__(self, name: str) -> Array:
        tensor = self._tensor(name)
        self.warn()
        return tensor

    def _tensor(self, name: str) -> Array:
        self._parser.check_understood()
        groups, budget, first_edition = self._groups_of([name]), Budget(self._reader.limits), self._reading()

        def parts() -> Iterator[Part]:
            for group in groups:
                tensors = group.decode(state=UpdateState(), budget=budget, first_edition=first_edition)
                for part in list(tensors):
                    yield Part(part, tensors.pop(part), group.label)

        return self._made(name, parts(), budget)

    def _made(self, name: str, parts: Iterable[Part], budget: Budget) -> Array:
        """A tensor of the model of what its units hold."""
        restorer = self._parser.restorer(budget, [name])
        found: list[tuple[str, Array]] = []
        for part in parts:
            found += self._deliver(restorer, part.name, part.tensor, part.label)
        return dict(found + restorer.finish())[name]

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Some rows of one tensor: ``np.take(f[name], range(start, stop), axis)``.

        The axis is ``f.info[name].first_tensor_dimension_shift``, the one that was coded first: 0 unless the header
        says otherwise. Where the payload has entry points, only the rows of blocks around these are decoded (6.4.3.7),
        unless side information says how the tensor is made.

        Raises IndexError unless 0 <= start <= stop <= number of rows, and what decoding raises.
        """
        self._open()
        self._parser.check_understood()
        info = self.info[name]
        axis, own = info.first_tensor_dimension_shift, info.same_as or name
        info.check_rows(start, stop)
        record = self.side.tensors.get(own)
        if self._parser.pruning.has_masks or (record and (record.code or record.shape is not None)):
            part = np.take(self._tensor(name), range(start, stop), axis)
            self.warn()
            return part
        group, budget = self._group_of[own], Budget(self._reader.limits)
        restorer = self._parser.restorer(budget, [own])
        rows = group.rows(own, start, stop, budget=budget, first_edition=self._reading())
        return restorer.take(own, rows, group.label)[0][1]

    def _deliver(self, restorer: Restorer, name: str, tensor: Array, label: str) -> list[tuple[str, Array]]:
        """The tensors of the model that a tensor of a unit completes."""
        return restorer.take(name, self._parser.pruning.apply(name, tensor), label)

    def _groups_of(self, names: Iterable[str]) -> list[Group]:
        """The groups of what tensors of the model are made of, in bitstream order; KeyError for a name that is none."""
        self._open()
        parts = (part for name in names for part in self._restoration.parts(self.info[name].name))
        chosen = {id(group): group for group in map(self._group_of.__getitem__, parts)}
        return sorted(chosen.values(), key=lambda group: group.first.unit.index)

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
        self._parser.check_understood()
        return name in self.info

    def __iter__(self) -> Iterator[str]:
        self._parser.check_understood()
        return iter(self.info)

    def __len__(self) -> int:
        self._parser.check_understood()
        return len(self.info)

    __eq__ = object.__eq__  # comparing arrays by name is not what a file is for
    __hash__ = object.__hash__
