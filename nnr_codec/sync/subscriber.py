"""Subscriber: the model of a published version, kept up to date from a folder or a byte stream.

Payloads are read and compared with their digests before one of them is applied. The state is an immutable object that
is replaced at the end, so that an error, or a concurrent reader, always sees a version that was published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, BinaryIO
from weakref import WeakKeyDictionary

import numpy as np

from ..conformance.digest import TensorDigest, model_digest
from ..decoder.index import NnrFile
from ..decoder.info import TensorInfo
from ..decoder.state import UpdateState
from ..decoder.update_sequence import Update
from ..errors import FormatError, MissingReferenceError, NnrError
from ..federated.apply import apply_update
from ..formats.pytorch.modules import check_names
from ..limits import Limits
from ..model import Array, Model
from ..torch import Match
from .records import Record, version_path
from .transport import FrameReader, SyncFolder, within

#: Checks the signature of a record: called with the signed bytes and the signature.
Verify = Callable[[bytes, bytes], bool]

#: Bytes requested from a byte stream at a time.
CHUNK = 1 << 20
#: Most frames of a byte stream that wait for an earlier frame.
MOST_WAITING = 16
#: Most listings of a folder in one call of `poll`; each finds another file that cannot be used.
MOST_ATTEMPTS = 16
#: Records of a folder that are read at first; all others only if these do not lead to a version.
RECENT = 1000


@dataclass(frozen=True)
class State:
    """Model of a version; replaced as a whole.

    Parameters
    ----------
    stream : str
    version : int
        0 before the first version.
    identity : str
        Identity of the complete model.
    model : Model
        Tensors that the subscriber keeps, and topology and metadata.
    digests : mapping of str to TensorDigest
        Digests of all tensors; empty for a selection of tensors.
    views : mapping of str to ndarray
        Read-only views of the tensors or of their parts.
    changed : mapping of str to int
        Number of the state in which each tensor changed last.
    number : int
        Number of this state.
    """

    stream: str = ""
    version: int = 0
    identity: str = ""
    model: Model = field(default_factory=lambda: Model({}))
    digests: Mapping[str, TensorDigest] = field(default_factory=dict)
    views: Mapping[str, Array] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    number: int = 0


class Subscriber:
    """Follower of a publisher, whose tensors always equal one published version, every bit of it.

    One thread may call :meth:`poll` or :meth:`feed` while others use :attr:`tensors` and :meth:`load_into`.

    Parameters
    ----------
    source : path, str, readable binary file or None
        Path of a folder, or a URL that fsspec supports; a byte stream such as a pipe or ``socket.makefile("rb")``.
        None: the application passes received bytes to :meth:`feed`. A folder may be created later.
    names : iterable of str, optional
        Patterns of the names of tensors to decode and keep, such as ``"layers.0.*"``; ``*``, ``?`` and ``[...]`` as in
        :mod:`fnmatch`. The identity of the model cannot be checked then, but the digests of all files are.
    slices : mapping of str to tuple of slice, optional
        Parts of tensors for :attr:`tensors` and :meth:`load_into`, as for tensor parallelism. The whole tensor stays in
        memory, because updates refer to it.
    verify : callable, optional
        Called with the signed bytes of a record and the signature (both bytes); records for which it returns False, or
        that have no signature, are rejected.
    jobs : int, default 1
        Number of threads.
    limits : Limits, optional
        Limits for each payload; ``max_archive_bytes`` limits the size of a payload, and ``max_pending_bytes`` of frames
        that wait for an earlier frame.
    storage_options : mapping, optional
        Arguments of the file system of fsspec.

    Attributes
    ----------
    needs_anchor : bool
        True if frames of a byte stream were lost or damaged, so that updates wait for the next anchor.

    Raises
    ------
    MissingDependencyError
        The URL requires a package that is not installed.
    OSError
        The folder cannot be read.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO | None,
        *,
        names: Iterable[str] | None = None,
        slices: Mapping[str, tuple[slice, ...]] | None = None,
        verify: Verify | None = None,
        jobs: int = 1,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(names, str):
            raise TypeError(f"names must be a list of patterns, got {names!r}")
        self._names = None if names is None else tuple(names)
        self._slices, self._verify, self._jobs = dict(slices or {}), verify, jobs
        for name, parts in self._slices.items():
            if not isinstance(parts, tuple) or not all(isinstance(part, slice) for part in parts):
                raise TypeError(f"the slices of tensor {name!r} must be a tuple of slices, got {parts!r}")
        self._limits = limits or Limits()
        self._folder: SyncFolder | None = None
        self._file: BinaryIO | None = None
        if isinstance(source, (str, os.PathLike)):
            self._folder = SyncFolder(source, self._limits, storage_options)
        elif source is not None and not hasattr(source, "read"):
            raise TypeError(f"the source must be a path, a URL, a readable binary file or None, got {source!r}")
        else:
            self._file = source
        self._frames = FrameReader(self._limits)
        self._waiting: dict[tuple[int, str], tuple[Record, bytes]] = {}
        self._stream, self._left = "", set[str]()  # of the byte stream: the followed one, and earlier ones
        self._time = ""  # of the newest frame of the followed stream
        self._state = State()
        self._loaded: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.needs_anchor = False

    def __repr__(self) -> str:
        return f"<Subscriber at version {self.version}>"

    @property
    def version(self) -> int:
        """Version of :attr:`tensors`; 0 before the first version."""
        return self._state.version

    @property
    def identity(self) -> str:
        """Identity of the complete model; see :func:`nnr_codec.identity`. Empty before the first version."""
        return self._state.identity

    @property
    def stream(self) -> str:
        """Identifier of the stream; empty before the first version."""
        return self._state.stream

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Read-only mapping of the tensors by name. The arrays are read-only, and never change.

        Unchanged tensors are the same objects in later versions. Empty before the first version.
        """
        return MappingProxyType(self._state.views)

    # ------------------------------------------------------------------------------------------------ versions
    def poll(self) -> int | None:
        """Advance to the newest version, and return it.

        On a byte stream, wait until the next version is complete.

        Returns
        -------
        int or None
            None if a folder has no newer version, or if a byte stream has ended (or, if it is non-blocking, has no more
            bytes now).

        Raises
        ------
        FormatError
            A file is missing or damaged, and no other file leads to a newer version; the message names the first such
            file. Or a signature is invalid, or a payload does not match its record.
        BitstreamError
            A payload is malformed or exceeds the limits.
        OSError
            The source cannot be read.

        After an error the previous version stays in use, and the next call tries again.
        """
        if self._folder:
            return self._follow(self._folder)
        if self._file is None:
            raise TypeError("this subscriber has no source; pass received bytes to feed()")
        version = self._received(b"")
        read = getattr(self._file, "read1", self._file.read)
        while version is None and (data := read(CHUNK)):
            version = self._received(data)
        return version

    def feed(self, data: bytes | bytearray | memoryview) -> int | None:
        """Take the next bytes of a byte stream, for a subscriber without a source: a part of a frame, or several.

        Damaged frames and other bytes are skipped. Frames in another order wait for the earlier frame. After a lost
        frame, updates are ignored until the next anchor (:attr:`needs_anchor`). A restarted publisher begins another
        stream, which is followed from its first anchor, or from an anchor later than all frames so far. Other frames of
        other streams are ignored.

        Returns
        -------
        int or None
            The new version; None if no newer version is complete.

        Raises
        ------
        FormatError, BitstreamError
            As for :meth:`poll`. The frame that causes the error is skipped.
        """
        if self._folder or self._file:
            raise TypeError("this subscriber reads its source; call poll()")
        return self._received(data)

    def load_into(
        self, module: Any, lock: AbstractContextManager[Any] | None = None, *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Copy the tensors of the current version into the parameters and buffers of a module, in place.

        Only tensors that changed since the last call for this module are copied. Parameters keep their memory, types,
        devices and ties; names are matched as by :func:`nnr_codec.torch.load_into`.

        Parameters
        ----------
        module : torch.nn.Module
        lock : context manager, optional
            Held while tensors are copied, such as a ``threading.Lock`` that inference also acquires.
        strict : bool, default True
            Require all tensors of the module and no others.

        Returns
        -------
        missing, unexpected : list of str
            Names in the module that the model lacks, and names in the model that the module lacks.

        Raises
        ------
        FormatError
            There is no version yet; or names, shapes or kinds of types do not match the module, which is then
            unchanged.
        MissingDependencyError
            PyTorch is not installed.
        """
        state = self._state
        if not state.version:
            raise FormatError("there is no version yet", hint="call poll() until it returns a version")
        ties = {name: target for name, target in state.model.aliases.items() if name not in self._slices}
        infos = {
            name: TensorInfo(name, view.shape, view.dtype.name, None, (), 0, same_as=ties.get(name, ""))
            for name, view in state.views.items()
        }
        match = Match(module, infos)
        if strict:
            check_names(match.missing, match.unexpected)
        before = self._loaded.get(module, 0)
        changed = [name for name, number in state.changed.items() if number > before and name in state.model.tensors]
        match.copy({name: self._part(name, state.model.tensors[name]) for name in changed}, lock)
        self._loaded[module] = state.number
        return match.missing, match.unexpected

    def content(self) -> tuple[Model, Mapping[str, TensorDigest], str]:
        """Return the model, the digests of its tensors and its identity, to continue its publication."""
        return self._state.model, self._state.digests, self._state.identity

    # ------------------------------------------------------------------------------------------------ folders
    def _follow(self, folder: SyncFolder) -> int | None:
        """Advance to the newest version of a folder."""
        errors: dict[str, NnrError] = {}  # of files that cannot be used, by path
        payloads: dict[str, bytes] = {}
        newest = 0
        for attempt in range(MOST_ATTEMPTS):  # a publisher may delete files meanwhile
            versions = folder.versions() if folder.open() else set()
            newest = max(versions, default=0)
            if newest == self.version:
                return None
            if newest < self.version:
                raise FormatError(
                    f"the newest version is {newest}, older than version {self.version} of this subscriber",
                    where=folder.url,
                    hint="if the folder was replaced, use a new subscriber",
                )
            route = self._route(self._records(folder, versions, errors, everything=attempt > 0), self.version)
            needed = [record for record in route if record.payload_path not in payloads]
            found = folder.payloads(needed, errors)
            payloads |= {path: data for path, data in found.items() if path not in errors}
            if route and all(record.payload_path in payloads for record in route):
                try:
                    self._advance([(record, payloads[record.payload_path]) for record in route])
                    return self.version
                except NnrError as error:
                    errors[route[0].payload_path] = error
            elif not route and attempt:
                break
        if errors:
            raise next(iter(errors.values()))
        raise FormatError(
            f"version {newest} cannot be restored from version {self.version}: versions in between are missing",
            where=folder.url,
            hint="publish an anchor",
        )

    def _records(
        self, folder: SyncFolder, versions: Collection[int], errors: dict[str, NnrError], *, everything: bool
    ) -> list[Record]:
        """Return the records of versions and anchors after the current version whose files can be used."""
        numbers = sorted(number for number in versions if number > self.version)[0 if everything else -RECENT :]
        paths = [version_path(number) for number in numbers]
        if everything or numbers[-1] > self.version + 1:
            first = self.version + 1 if everything else numbers[0]
            paths += [version_path(number, anchor=True) for number in folder.anchors() if number >= first]
        found = []
        for record in folder.records([path for path in paths if path not in errors], errors):
            try:
                self._check_signature(record)
            except FormatError as error:
                errors[record.payload_path] = error
            if record.payload_path not in errors:
                found.append(record)
        return found

    def _check_signature(self, record: Record) -> None:
        if self._verify is None:
            return
        if not record.signature:
            raise FormatError(f"the {record} has no signature")
        if not self._verify(record.signed_bytes(), bytes.fromhex(record.signature)):
            raise FormatError(f"the signature of the {record} is invalid")

    # ------------------------------------------------------------------------------------------------ byte streams
    def _received(self, data: bytes | bytearray | memoryview) -> int | None:
        """Take bytes of a byte stream, and return the new version, if any."""
        before = self._state.number
        self._frames.add(data)
        try:
            for record, payload in self._frames.frames():
                self._check_signature(record)
                if self._expects(record):
                    self._take(record, payload)
        finally:
            self.needs_anchor |= self._frames.damaged or bool(self._waiting)
            self._frames.damaged = False
        return self.version if self._state.number > before else None

    def _expects(self, record: Record) -> bool:
        """Return whether a frame may lead to another version. After a restart, change to the new stream."""
        if record.stream == self._stream:
            self._time = max(self._time, record.time)
            return record.version > self._position
        is_newer = not self.version or record.time > self._time
        begins = record.kind == "anchor" and (is_newer or (record.version == 1 and record.stream not in self._left))
        if self._stream and not begins:
            return False
        self._left.add(self._stream)
        self._stream, self._time = record.stream, record.time
        self._waiting.clear()
        return True

    def _take(self, record: Record, payload: bytes) -> None:
        """Take a frame, and advance to the newest version that frames lead to."""
        self._waiting[record.version, record.kind] = record, payload
        for step in self._route([record for record, _ in self._waiting.values()], self._position):
            self.needs_anchor = True  # unless it can be applied
            self._advance([self._waiting.pop((step.version, step.kind))])
            self.needs_anchor = self._frames.damaged = False
        self._waiting = {key: frame for key, frame in self._waiting.items() if key[0] > self._position}
        while len(self._waiting) > MOST_WAITING or self._waiting_bytes() > self._limits.max_pending_bytes:
            del self._waiting[min(self._waiting)]

    @property
    def _position(self) -> int:
        """Version of the followed byte stream."""
        return self.version if self.stream == self._stream else 0

    def _waiting_bytes(self) -> int:
        return sum(record.size for record, _ in self._waiting.values())

    # ------------------------------------------------------------------------------------------------ application
    @staticmethod
    def _route(records: Iterable[Record], start: int) -> list[Record]:
        """Return the records of the fewest bytes that lead from a version to the newest version that they restore."""
        by_version: dict[int, list[Record]] = {}
        for record in records:
            by_version.setdefault(record.version, []).append(record)
        cost = {start: 0} if start else {}
        last: dict[int, Record] = {}
        for version in sorted(by_version):
            for record in by_version[version]:
                before = 0 if record.kind == "anchor" else cost.get(version - 1)
                if before is not None and before + record.size < cost.get(version, before + record.size + 1):
                    cost[version], last[version] = before + record.size, record
        route: list[Record] = []
        version = max(last, default=0)
        while version in last:
            route.append(last[version])
            version = version - 1 if route[-1].kind == "update" else 0
        return route[::-1]

    def _advance(self, steps: Sequence[tuple[Record, bytes]]) -> None:
        """Apply verified payloads in order; the state is unchanged if one of them is invalid."""
        old = self._state
        model, identity, digests = old.model, old.identity, dict[str, TensorDigest]()
        for record, data in steps:
            with within(str(record)):
                model = self._applied(model, identity, record, data)
            identity = record.identity
        record, _ = steps[-1]
        if self._names is None:
            digests = changed_digests(model, old.model, old.digests, self._jobs)
            if (found := identity_of(digests)) != identity:
                raise FormatError(f"the {record} yields the model {found}, but its record says {identity}")
            equal = {name: array for name, array in old.model.tensors.items() if digests.get(name) == old.digests[name]}
            model = replace(model, tensors={**model.tensors, **equal})
        changed = [name for name, array in model.tensors.items() if array is not old.model.tensors.get(name)]
        for name, parts in self._slices.items():
            if name not in model.tensors:
                raise FormatError(f"slices has tensor {name!r}, which version {record.version} lacks", tensor=name)
            if len(parts) > (dimensions := model.tensors[name].ndim):
                raise FormatError(f"tensor {name!r} has {dimensions} dimensions, but {len(parts)} slices", tensor=name)
        views = {name: array for name, array in old.views.items() if name in model.tensors}
        for name in changed:
            views[name] = self._part(name, model.tensors[name]).view()
            views[name].flags.writeable = False
        number = old.number + 1
        numbers = {**old.changed, **dict.fromkeys(changed, number)}
        self._state = State(record.stream, record.version, identity, model, digests, views, numbers, number)

    def _applied(self, base: Model, identity: str, record: Record, data: bytes) -> Model:
        """Return the model after one payload."""
        is_update = record.kind == "update"
        with NnrFile(data, self._limits, before=base.topology if is_update else None) as file:
            if file.is_update != is_update:
                raise FormatError(f"the payload is {'an update' if file.is_update else 'a whole model'}")
            base_id = file.performance.base_model_id
            if is_update and base_id != identity:
                raise MissingReferenceError(
                    f"the payload updates {base_id}; version {record.version - 1} is {identity}"
                )
            names = self._chosen(file.info)
            if not is_update:
                if self._names is not None and not names:
                    raise FormatError(f"no tensor matches names={list(self._names)}")
                return file.decode(names=names, jobs=self._jobs)
            if names is None:
                return apply_update(base, file, check=False, jobs=self._jobs)
            content = file.decode(names=names, allow_missing=True, state=UpdateState(), jobs=self._jobs)
            side = file.side
            tensors = dict(content.tensors)
            update = Update(tensors, whole=file.whole, metadata=side.metadata, by_exponent=side.by_exponent)
            return apply_update(base, update, check=False)

    def _chosen(self, names: Iterable[str]) -> list[str] | None:
        """Return the selected tensors; None for all of them."""
        if self._names is None:
            return None
        return [name for name in names if any(fnmatchcase(name, pattern) for pattern in self._names)]

    def _part(self, name: str, array: Array) -> Array:
        """Return the part of a tensor that ``slices`` selects."""
        index: Any = (*self._slices.get(name, ()), ...)
        part: Array = array[index]
        return part


def changed_digests(
    model: Model, base: Model, digests: Mapping[str, TensorDigest], jobs: int
) -> dict[str, TensorDigest]:
    """Return the digests of a model; tensors that are objects of the base have the digests of the base."""
    changed = [name for name, array in model.tensors.items() if array is not base.tensors.get(name)]

    def digest(name: str) -> TensorDigest:
        with within(f"tensor {name!r}"):
            return TensorDigest.of(name, np.asarray(model.tensors[name]))

    with ThreadPoolExecutor(jobs) as pool:
        new = dict(zip(changed, (pool.map if jobs > 1 else map)(digest, changed), strict=True))
    return {name: new.get(name) or digests[name] for name in model.tensors}


def identity_of(digests: Mapping[str, TensorDigest]) -> str:
    """Return the identity of the model with these tensors; see :func:`nnr_codec.identity`."""
    return f"sha256:{model_digest(digests.values())}"
