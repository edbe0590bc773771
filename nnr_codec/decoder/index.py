"""Bitstreams as mappings: tensor information without decoding payloads, and tensors decoded on access."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import formats
from ..bitstream.attachments import Attachments
from ..bitstream.performance import Performance, PerformanceMaps, maps_for
from ..bitstream.source import Span
from ..bitstream.units import UnitReader
from ..errors import UnsupportedError
from ..limits import Budget, Limits
from ..model import Array, Model, Topology
from ..sideinfo.record import SideInfo
from ..syntax import Session
from ..urls import public
from .decode import BitstreamParser
from .deferred import Access, DeferredTensors, UnitTensor
from .extraction import extracted
from .group import Group, is_first_edition
from .info import TensorInfo
from .lineage import Hash, Lineage, base_model_id, token
from .parents import node_key
from .restore import UPDATE, Restorer
from .schedule import Stored, decode_groups
from .state import Device, UpdateState
from .topology import PLAIN

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream
    from ..formats import TopologySource
    from ..model import Progress
    from ..parallel.checkpoint import Checkpoint

#: Bytes hashed at a time.
_CHUNK = 1 << 20


def _counted(progress: Progress | None, total: int) -> Callable[[str], None] | None:
    """Return a function that calls ``progress`` with a name and the count; None without ``progress``."""
    if progress is None:
        return None
    numbers = count(1)
    return lambda name: progress(name, next(numbers), total)


def _buffers(out: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """Return the arrays in which the caller wants tensors, after all checks."""
    if not isinstance(out, Mapping):
        raise TypeError(f"out must map names to arrays, got {type(out).__name__}")
    found: dict[str, Array] = {}
    for name, value in out.items():
        if name not in infos:
            raise ValueError(f"out[{name!r}] is not among the decoded tensors")
        try:
            shared = isinstance(value, np.ndarray) or hasattr(value, "__array_interface__")
            array = np.asanyarray(value if shared else memoryview(value))
        except TypeError:
            kind = type(value).__name__
            raise TypeError(f"out[{name!r}] is a {kind}; pass a numpy array or an object with a buffer") from None
        info = infos[name]
        if (array.dtype, array.shape) != (info.dtype, info.shape):
            hint = "; dtype= casts floats" if info.dtype != array.dtype else ""
            raise ValueError(
                f"out[{name!r}] is {array.dtype} {array.shape}; the tensor is {info.type} {info.shape}{hint}"
            )
        if not array.flags.carray:
            raise ValueError(f"out[{name!r}] must be writable, C-contiguous and aligned")
        found[name] = array
    places = sorted((*_place(array), name) for name, array in found.items() if array.nbytes)
    for (_, stop, one), (start, _, other) in pairwise(places):
        if start < stop:
            raise ValueError(f"out[{one!r}] and out[{other!r}] share memory")
    return found


def _place(array: Array) -> tuple[int, int]:
    """Return the addresses of a C-contiguous array: of its first byte, and after its last byte."""
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


class NnrFile(Mapping[str, Array]):
    """Bitstream whose tensors are decoded on access, also by several threads.

    Created by :func:`nnr_codec.open`. Iteration yields names; ``f[name]`` decodes; ``f.info[name]`` does not.

    If the side information has an unknown version, access to names and tensors raises UnsupportedError; ``info`` then
    lists the tensors of the units, and ``decode(raw=True)`` decodes them.

    Attributes
    ----------
    info : dict of str to TensorInfo
        Information on each tensor of the model from headers and side information, in order.
    side : SideInfo
        Side information about the model that NNR cannot represent; empty without a record.
    nbytes : int
        Size of the bitstream in bytes.
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
        self._group_of: dict[str, Group] = {}  # unit tensors
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
        of = f" {public(str(os.fspath(data)))!r}" if isinstance(data, str | os.PathLike) else ""
        return f"<NnrFile{of}: {len(self.info):,} tensors, {self.nbytes:,} bytes>"

    def __reduce__(self) -> tuple[type[NnrFile], tuple[object, ...]]:
        """Pickle the path, so that another process opens the bitstream again."""
        if not isinstance(self._arguments[0], str | os.PathLike | bytes):
            raise TypeError("an NnrFile opened from a file object cannot be pickled; open the bitstream by its path")
        return NnrFile, self._arguments

    @property
    def ignored(self) -> list[str]:
        """Units of reserved and unspecified types and formats, which decoders skip, by number."""
        return self._parser.ignored

    @property
    def attachments(self) -> Attachments:
        """Other files of the model by relative path, such as ``config.json``; read and inflated on access."""
        return self._parser.attachments

    @property
    def performance(self) -> Performance:
        """Statements of the model parameter set about performance and base model (6.4.4.3)."""
        return Performance.of(self._reader.session.mps)

    @property
    def is_update(self) -> bool:
        """True if the bitstream represents an update (mps_parent_signalling_enabled_flag)."""
        return bool(self._reader.session.mps_parent_signalling_enabled_flag)

    @property
    def whole(self) -> frozenset[str]:
        """Names of the tensors that are not differences (parent_node_id_present_flag is 0)."""
        tasks = ((name, task) for name, group in self._group_of.items() for task in group.tasks)
        updates = {name for name, task in tasks if task.header.parent_node_id_present_flag}
        parts = ((name, self._restoration.parts(info.same_as or name)) for name, info in self.info.items())
        return frozenset(name for name, own in parts if updates.isdisjoint(own))

    @property
    def base_model_id(self) -> str | None:
        """Identifier of the base model, as given by the sender (6.4.4.3)."""
        return base_model_id(self._reader.session.mps)

    @property
    def lineage(self) -> Lineage | None:
        """Position in the bitstream sequence of the sender, if base_model_id has one."""
        return Lineage.parse(self.base_model_id or "")

    @property
    def device_ids(self) -> list[Device]:
        """Devices of the units and of the lineage; None for units without ids."""
        keys = (node_key(task.header) for group in self._open() for task in group.tasks)
        found = dict.fromkeys(key[0] if key else None for key in keys)
        return [*found] if self.lineage is None else [*(found | {self.lineage.device_id: None})]

    def performance_of(self, name: str) -> PerformanceMaps:
        """Return the performance maps for operations on the layer of one tensor (6.4.4.4)."""
        self._open()
        return maps_for(self._session_of(name), layer=True)

    def performance_of_layers(self) -> dict[PerformanceMaps, list[str]]:
        """Return the performance maps for operations on layers, each with the names of its tensors (6.4.4.4)."""
        self._open()
        layers: dict[PerformanceMaps, list[str]] = {}
        of_parameters: dict[int, list[str]] = {}  # maps are large, so each parameter set is read only once
        for name in self.info:
            session = self._session_of(name)
            if id(session.lps) not in of_parameters:
                of_parameters[id(session.lps)] = layers.setdefault(maps_for(session, layer=True), [])
            of_parameters[id(session.lps)].append(name)
        return layers

    def _session_of(self, name: str) -> Session:
        """Return the state of the bitstream at the first unit of a tensor."""
        parts = self._restoration.parts(self.info[name].name)
        return self._group_of[parts[0]].first.session if parts else self._reader.session

    @property
    def topology(self) -> Topology | None:
        """The given topology, or the topology of the bitstream."""
        return self._parser.topology

    @property
    def context(self) -> Topology | None:
        """Topology of the tensors; an update without a topology uses the topology of earlier bitstreams."""
        return self._parser.context

    def check_complete(self) -> None:
        """Raise IncompleteError for missing tensors, or the error of :meth:`decode` for a missing topology."""
        self._parser.check_complete()

    def decode(
        self,
        progress: Progress | None = None,
        *,
        names: Iterable[str] | None = None,
        raw: bool = False,
        allow_missing: bool = False,
        jobs: int = 1,
        executor: Executor | None = None,
        state: UpdateState | None = None,
        warn: bool = True,
        out: Mapping[str, Any] | None = None,
    ) -> Model:
        """Decode all tensors, or the tensors in ``names``, with the topology, like :func:`nnr_codec.decode`.

        Parameters
        ----------
        progress : callable, optional
            Called as ``progress(name, done, total)`` as soon as a tensor is decoded, in the calling thread.
        names : iterable of str, optional
            Tensors to decode; other units are skipped. A partial result has no topology. With ``raw``, all Rec* tensors
            of the units of these tensors.
        raw, allow_missing, jobs, executor, out
            As for :func:`nnr_codec.decode`.
        state : UpdateState, optional
            State after earlier updates; it is updated, even if decoding fails.
        warn : bool
            Issue the warnings of :meth:`warn` at the end.

        Also raises MissingReferenceError unless the bitstream follows the last bitstream of its sender in ``state``.
        """
        if raw and out is not None:
            raise ValueError("raw and out cannot be combined; choose one")
        lineage = self.lineage if state is not None and names is None else None
        if state is not None and lineage:
            state.expect(lineage)
        names, groups = self._chosen(names, allow_missing, raw)
        budget, restorer = Budget(self._reader.limits), None
        buffers = _buffers(
            {} if out is None else out, self.info if names is None else {name: self.info[name] for name in names}
        )
        if not raw:
            restorer = self._parser.restorer(budget, names)
            if buffers or self._restoration.changes:
                groups = [self._placed(group, buffers) for group in groups]
        total = sum([len(task.parts) for group in groups for task in group.tasks]) if raw else self._count(names)
        note = _counted(progress, total)
        # Without record, masks, selection and buffers, the unit tensors are the model tensors.
        plain = names is None and not self._restoration.changes and not self._parser.pruning.has_masks and not buffers
        tensors = decode_groups(
            groups,
            budget,
            first_edition=self._reading(),
            state=state,
            raw=raw,
            deliver=partial(self._deliver, restorer, buffers) if restorer and not plain else None,
            note=note,
            jobs=jobs,
            executor=executor,
        )
        if state is not None and lineage:
            state.follow(lineage, self._token(lineage), self._reader.limits)
        if restorer is None:
            pruned = [name for name in tensors if name in self._parser.pruning.dimensions]
            return Model(tensors, self._topology_for(names), pruned=pruned)
        for name, tensor in self._in_buffers(restorer.finish(), buffers):
            tensors[name] = tensor
            if note:
                note(name)
        model = self._model({name: tensors[name] for name in self.info if name in tensors}, names)
        if warn:
            self.warn()
        return model

    def extract(self, names: Iterable[str]) -> bytes:
        """Return a bitstream with some tensors of the model, without decoding them.

        It decodes to the result of ``decode(names=names)``. Units are copied without their aggregates. A unit that
        contains several tensors is copied as a whole, and so are the targets of tied tensors. The topology and metadata
        are omitted.

        Parameters
        ----------
        names : iterable of str
            Names of the tensors, at least one.

        Raises
        ------
        KeyError
            There is no tensor of this name.
        UnsupportedError
            The tensors cannot be decoded without the rest: the bitstream is an update, has pruning masks, or the
            topology determines the shape or the values of a tensor.
        """
        chosen = set(names)
        if not chosen:
            raise ValueError("names is empty; give at least one tensor")
        self._parser.check_understood()
        if self.is_update or UPDATE in self.side.metadata or self._parser.pruning.has_masks:
            why = "masks of pruning information" if self._parser.pruning.has_masks else "an update"
            raise UnsupportedError(f"tensors cannot be extracted from a bitstream with {why}")
        chosen |= {self.info[name].same_as for name in chosen} - {""}
        groups = self._groups_of(chosen)
        units = {info.name for group in groups for info in group.infos}
        own = {name: () if info.same_as else self._restoration.parts(name) for name, info in self.info.items()}
        names = [name for name, parts in own.items() if name in chosen or (parts and units.issuperset(parts))]
        records = {
            name: record if record.index is None else replace(record, index=place)
            for place, name in enumerate(names)
            if (record := self.side.tensors.get(name))
        }
        mps, side = self._reader.session.mps, SideInfo(records, "" if self.topology else self.side.format)
        assert mps is not None
        data = extracted(groups, side, mps, self._parser.profile)
        tasks = [task for group in groups for task in group.tasks]
        fixed = {name for task in tasks if task.outputs not in (None, PLAIN) for name in task.names}  # by the topology
        with NnrFile(data, self._reader.limits, dtype=self._restoration.dtype) as alone:
            for name in dict.fromkeys([*names, *alone.info]):
                here, there = self.info.get(name), alone.info.get(name)
                is_same = here and there and (here.shape, here.type) == (there.shape, there.type)
                if not is_same or name in fixed or alone._reading() != self._reading():
                    raise UnsupportedError(f"tensor {name!r} cannot be decoded without the rest of the bitstream")
        return data

    def warn(self) -> None:
        """Issue the warnings about the model, each once for this file, when the first result is complete.

        A PruningWarning reports masks of pruning information that match no tensors and are ignored. If a filter turns
        it into an exception, the next call returns the result.
        """
        self._parser.pruning.warn()

    def _token(self, lineage: Lineage) -> str:
        """Return the token of the next bitstream."""
        return token(self._hashed(lineage.digest()))

    def _hashed(self, digest: Hash) -> Hash:
        """Update a digest with all bytes of the bitstream."""
        source = self._reader.source
        stop = source.size if self._parser.stop is None else self._parser.stop
        source.expect([(0, stop)])
        for start in range(0, stop, _CHUNK):
            digest.update(source.view(start, min(start + _CHUNK, stop)))
        return digest

    @contextmanager
    def deferred(
        self,
        progress: Progress | None = None,
        *,
        names: Iterable[str] | None = None,
        allow_missing: bool = False,
        jobs: int = 1,
        executor: Executor | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[Model]:
        """Yield the result of :meth:`decode` with tensors that are decoded on access.

        This allows :func:`nnr_codec.decode_file` to write models larger than memory. The headers of all units are
        checked first. Parameters are as for :meth:`decode`; with ``checkpoint``, decoded units are stored and reused.
        Call :meth:`warn` after the model is written.
        """
        names, groups = self._chosen(names, allow_missing)
        budget = Budget(self._reader.limits)
        for group in groups:
            group.charge(budget)
        access = Access(self._restoration.parts, self._group_of.__getitem__, self._made, self._tensor)
        infos = {name: info for name, info in self.info.items() if names is None or name in names}
        # The bytes of the bitstream and the reading of profile 0 determine the unit tensors.
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
                note=_counted(progress, self._count(names)),
            )
            yield self._model(tensors, names)

    def _chosen(
        self, names: Iterable[str] | None, allow_missing: bool, raw: bool = False
    ) -> tuple[set[str] | None, list[Group]]:
        """Return the names and their groups; check completeness if all tensors are requested."""
        if not raw:
            self._parser.check_understood()
        if names is None and not raw:
            self._parser.check_fit()
        if names is None and not allow_missing:
            self._parser.check_complete()
        groups = self._open()
        if names is None:
            self._expect(groups)
            return None, groups
        names = set(names)
        return names, self._groups_of(names)

    def _count(self, names: set[str] | None) -> int:
        return len(self.info if names is None else names)

    def _topology_for(self, names: set[str] | None) -> Topology | None:
        """Return the topology if all tensors of the model are selected."""
        return self.topology if names is None or len(names) == len(self.info) else None

    def _model(self, tensors: Mapping[str, Array], names: set[str] | None) -> Model:
        """Return the model of these tensors."""
        dimensions, is_whole = self._parser.pruning.dimensions, names is None or len(names) == len(self.info)
        return Model(
            tensors,
            self._topology_for(names),
            metadata=dict(self.side.metadata),
            pruned=[name for name in tensors if (self.info[name].same_as or name) in dimensions],
            format=self.side.format or self._parser.apart,
            aliases={name: same for name in tensors if (same := self.info[name].same_as) and same in tensors},
            attachments=self.attachments if is_whole else {},
            file_name=self.attachments.file_name if is_whole else "",
        )

    def __getitem__(self, name: str) -> Array:
        tensor = self._tensor(name)
        self.warn()
        return tensor

    def _tensor(self, name: str) -> Array:
        self._parser.check_understood()
        groups, budget, first_edition = self._groups_of([name]), Budget(self._reader.limits), self._reading()

        def parts() -> Iterator[UnitTensor]:
            for group in groups:
                tensors = group.decode(state=UpdateState(), budget=budget, first_edition=first_edition)
                for part in list(tensors):
                    yield UnitTensor(part, tensors.pop(part), group.label)

        return self._made(name, parts(), budget)

    def _made(self, name: str, parts: Iterable[UnitTensor], budget: Budget) -> Array:
        """Return a model tensor made from its unit tensors."""
        restorer = self._parser.restorer(budget, [name])
        found: list[tuple[str, Array]] = []
        for part in parts:
            found += self._deliver(restorer, {}, part.name, part.tensor, part.label)
        return dict(found + restorer.finish())[name]

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows of one tensor: ``np.take(f[name], range(start, stop), axis)``.

        The axis is ``f.info[name].first_tensor_dimension_shift``, the first coded axis: 0 unless the header shifts
        dimensions. With entry points in the payload, only the rows of blocks around these rows are decoded (6.4.3.7),
        unless side information transforms the tensor.

        Raises IndexError unless 0 <= start <= stop <= number of rows, and the errors of decoding.
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

    def _deliver(
        self, restorer: Restorer, buffers: Mapping[str, Array], name: str, tensor: Array, label: str
    ) -> list[tuple[str, Array]]:
        """Return the model tensors that a unit tensor completes."""
        return self._in_buffers(restorer.take(name, self._parser.pruning.apply(name, tensor), label), buffers)

    def _in_buffers(
        self, tensors: Iterable[tuple[str, Array]], buffers: Mapping[str, Array]
    ) -> list[tuple[str, Array]]:
        """Return tensors, in their buffers if they have any; copy tensors that were not decoded there."""
        found = []
        for name, tensor in tensors:
            buffer = buffers.get(name)
            if buffer is not None and _place(buffer) != _place(tensor):
                buffer[...] = tensor
            elif buffer is None and buffers:
                buffer = buffers.get(self.info[name].same_as)
            found.append((name, tensor if buffer is None else buffer))
        return found

    def _placed(self, group: Group, buffers: Mapping[str, Array]) -> Group:
        """Return a group with type and memory of its tensor, if this is its only part and has no earlier updates."""
        task = group.first
        if len(group.tasks) * len(task.parts) * len(task.names) > 1 or task.header.parent_node_id_present_flag:
            return group
        cast, dtype = (None, None) if self._parser.pruning.has_masks else self._restoration.cast(group.infos[0])
        owner = self._restoration.owners.get(task.names[0], task.names[0])
        out = None
        if owner in buffers and task.names[0] == self._restoration.parts(owner)[0]:
            memory = buffers[owner].view(np.ndarray).reshape(-1).view(np.uint8)
            if memory.size == group.infos[0].parameters * (dtype or task.dtype).itemsize:
                out = memory
        if not cast and out is None:
            return group
        return group._replace(tasks=(replace(task, cast=cast, cast_dtype=dtype, out=out),))

    def _groups_of(self, names: Iterable[str]) -> list[Group]:
        """Return the groups needed for model tensors, in bitstream order. Raise KeyError for an unknown name."""
        self._open()
        parts = (part for name in names for part in self._restoration.parts(self.info[name].name))
        chosen = {id(group): group for group in map(self._group_of.__getitem__, parts)}
        groups = sorted(chosen.values(), key=lambda group: group.first.unit.index)
        self._expect(groups)
        return groups

    def _expect(self, groups: Iterable[Group]) -> None:
        """Announce the payloads of these groups to a source that reads remote files."""
        spans = (span for group in groups for task in group.tasks for span in task.spans if isinstance(span, Span))
        self._reader.source.expect((span.start, span.stop) for span in spans)

    def _open(self) -> list[Group]:
        if self._groups is None:
            raise ValueError("the file is closed")
        return self._groups

    def _reading(self) -> bool:
        """Return whether the first edition's reading of profile 0 applies; determined once."""
        with self._lock:
            if self._first_edition is None:
                self._first_edition = self._parser.profile == 0 and is_first_edition(self._open())
            return self._first_edition

    def close(self) -> None:
        """Release the payloads; names and infos stay available."""
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

    __eq__ = object.__eq__  # comparing all arrays would be slow and surprising
    __hash__ = object.__hash__
