"""Stores: folders of models in which a new checkpoint takes the bytes of its changes.

``store.json`` identifies a store. ``objects/ab/<sha256>.nnr`` are bitstreams: whole tensors, or an update with
differences. ``models/<name>/<version>.json.gz`` are manifests (:mod:`.manifest`). All objects of a version are written
before its manifest, which is then created under a name that must be new. So an interrupted call leaves at most
unreferenced objects, and of two writers that choose the same version, one takes the next. ``removed/`` has the
manifests of removed versions; :meth:`Store.gc` keeps their objects during a grace period, because a concurrent
:meth:`Store.add` may have seen them.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .. import formats
from ..api.encoding import encode
from ..config import MODEL_GOALS, EncoderConfig, EncoderOptions, configured
from ..conformance.digest import TensorDigest
from ..decoder.index import NnrFile
from ..decoder.state import UpdateState
from ..decoder.update_sequence import Update
from ..encoder.facts import check_name
from ..encoder.goals import with_exact
from ..errors import EncodeError, FormatError, NnrError, Option
from ..federated.apply import apply_update
from ..federated.update import encode_update
from ..folders import Folder, open_folder
from ..limits import Limits
from ..model import Array, Model, nbytes_of
from .manifest import MOST_BYTES, MOST_PARTS, NAME, Manifest, Part, Parts, read_json, store_json

if TYPE_CHECKING:
    from ..api.arguments import ModelSource

#: Seconds for which `gc` keeps unreferenced objects: the longest permitted `add`, and differences between clocks.
GRACE = 24 * 3600.0
#: Bytes of tensors in one object, which is read as a whole. Larger tensors have an object of their own.
OBJECT_BYTES = 256 << 20
#: Values of a tensor that are coded to choose between the difference and the whole tensor.
SAMPLE = 4096

_MARKER = "store.json"
_VERSION = re.compile(r"([1-9][0-9]{0,8})\.json\.gz")


@dataclass(frozen=True)
class Version:
    """Stored version of a model.

    Parameters
    ----------
    name : str
    version : int
    created : str
        Time in UTC (ISO 8601).
    base : str
        ``NAME@VERSION`` of its base when it was added; empty if there was none.
    tensors : int
        Number of tensors.
    source_bytes : int
        Bytes of the tensors as arrays.
    stored_bytes : int
        Bytes of its manifest, and of objects that no version of an earlier time uses.
    parts : int
        Largest number of parts of a tensor: one whole tensor and its differences.
    identity : str
        Identity of the model; see :func:`nnr_codec.identity`.
    """

    name: str
    version: int
    created: str
    base: str
    tensors: int
    source_bytes: int
    stored_bytes: int
    parts: int
    identity: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class _Place:
    """Name and version of a manifest."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def path(self, folder: str = "models") -> str:
        return f"{folder}/{self.name}/{self.version}.json.gz"


class Store:
    """Folder of models in which tensors are stored once, and changed tensors as differences if that is smaller.

    Parameters
    ----------
    url : path or str
        Path of a folder, or a URL that fsspec supports, such as ``s3://bucket/models`` (extra ``remote``).
    create : bool, default False
        Make a new store; raises FileExistsError if there is one.
    limits : Limits, optional
        Limits for each object and each model.
    storage_options : mapping, optional
        Arguments of the file system of fsspec.

    Raises
    ------
    FormatError
        The folder is not a store.
    MissingDependencyError
        The URL requires a package that is not installed.
    OSError
        The folder cannot be read or written.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        create: bool = False,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url, self._limits = os.fspath(url), limits or Limits()
        self._parsed: dict[bytes, Manifest] = {}  # by the bytes of the file: a version number may be used again
        self._folder: Folder = open_folder(url, storage_options)
        if create:
            try:
                self._folder.write(_MARKER, store_json(), new=True)
            except FileExistsError:
                raise FileExistsError(f"{self.url} is already a store") from None
        text = self._folder.read([_MARKER], MOST_BYTES).get(_MARKER)
        if text is None:
            raise FormatError(f"not a store, because {_MARKER} is missing", where=self.url, hint="use nnr store init")
        with _within(f"{self.url}: {_MARKER}"):
            read_json(text)

    def __repr__(self) -> str:
        return f"<Store {self.url!r}>"

    # -------------------------------------------------------------------------------------------------- add
    def add(
        self,
        model: ModelSource,
        name: str,
        config: EncoderConfig | None = None,
        *,
        base: str | None = None,
        jobs: int = 1,
        **options: Unpack[EncoderOptions],
    ) -> Version:
        """Store a model as the next version of ``name``.

        Tensors that any version of the store has are stored as references. Other tensors become differences to the
        tensor of the same name, type and shape of the base, or are coded whole if that is smaller.

        Parameters
        ----------
        model : Model, mapping of str to ndarray or torch.Tensor, torch.nn.Module, path, bytes-like or binary file
            A dict may be a checkpoint of PyTorch: tensors and plain values in nested containers.
        name : str
            Letters, digits, ``.``, ``_`` and ``-``, up to 128 characters.
        base : str, optional
            ``NAME`` or ``NAME@VERSION``; default: the latest version of ``name``.
        jobs : int, default 1
            Number of threads.
        config, options
            As for :func:`nnr_codec.encode_update`. Lossless, unless there is a goal (qp, quality, snr, max_error) or
            ``exact=False``; then all changed tensors of the base are stored as differences, to which the goal applies.

        Returns
        -------
        Version

        Raises
        ------
        EncodeError
            A tensor cannot be coded, or an option does not apply to stores.
        FormatError
            The name or the base is invalid, or a file of the store is damaged.
        """
        _check_name(name)
        for option in ("target_size", "target_ratio"):
            if options.get(option) is not None or getattr(config, option, None) is not None:
                raise EncodeError(Option(option), " does not apply to the objects of a store; use quality")
        source = formats.as_model(model)
        if source.attachments:
            message = f"attachments are not stored: {formats.listed(source.attachments)}"
            warnings.warn(message, formats.FormatWarning, stacklevel=2)
        stored = self._manifests()
        place = self._resolved(base, stored) if base else _latest(name, stored)
        writing = _Writing(self._folder, self._limits, jobs, stored.values(), config, options)
        parts = writing.parts_of(source, stored.get(place) if place else None)
        ties = {name: _end(name, source.aliases) for name in source.aliases}
        head = writing.head_of(source)
        objects = [*writing.in_order(parts.values()), *([head] if head else [])]
        manifest = Manifest(
            parts,
            {sha256: writing.sizes[sha256] for sha256 in objects},
            head,
            datetime.now(UTC).isoformat(timespec="microseconds"),
            str(place or ""),
            source.format,
            ties,
            tuple(source.pruned),
        )
        data = manifest.to_bytes()
        number = max(self._numbers(name), default=0) + 1
        while True:
            added = _Place(name, number)
            try:
                self._folder.write(added.path(), data, new=True)
                break
            except FileExistsError:  # another writer was faster
                number += 1
        writing.check_written()
        return _version(added, manifest, len(data), {sha256 for one in stored.values() for sha256 in one.objects})

    # -------------------------------------------------------------------------------------------------- get
    def get(self, name: str, *, jobs: int = 1) -> Model:
        """Restore a model, and compare every tensor with its digest.

        Parameters
        ----------
        name : str
            ``NAME`` for its latest version, or ``NAME@VERSION``.
        jobs : int, default 1
            Number of threads.

        Raises
        ------
        FormatError
            There is no such version; a file of the store is missing or damaged.
        BitstreamError
            An object exceeds the limits.
        """
        place = self._resolved(name)
        with _within(str(place)):
            data = self._folder.read([place.path()], MOST_BYTES).get(place.path())
            if data is None:
                raise FormatError("the version was removed")
            manifest = Manifest.parse(data, self._limits)
            objects = _Objects(self._folder, self._limits, manifest.objects, jobs)
            found = objects.decoded(manifest.tensors.values())
            tensors, shared = {}, Counter(manifest.tensors.values())
            for tensor, parts in manifest.tensors.items():
                value = found[parts]
                if TensorDigest.of(tensor.name, value) != tensor:
                    raise FormatError(f"tensor {tensor.name!r} is damaged: its digest does not match")
                tensors[tensor.name] = value.copy() if shared[parts] > 1 and tensor.name not in manifest.ties else value
            head = objects.head(manifest.head) if manifest.head else Model({})
        return replace(
            head, tensors=tensors, format=manifest.model_format, aliases=dict(manifest.ties), pruned=manifest.pruned
        )

    # ------------------------------------------------------------------------------------- versions, remove, gc
    def versions(self) -> list[Version]:
        """Return all versions, by name and number. Raises FormatError for a damaged manifest."""
        sizes = self._folder.sizes("models")
        stored = self._manifests()
        known = set[str]()
        found = []
        for place, manifest in sorted(stored.items(), key=lambda item: (item[1].created, item[0].name)):
            found.append(_version(place, manifest, sizes.get(place.path(), 0), known))
            known |= manifest.objects.keys()
        return sorted(found, key=lambda version: (version.name, version.version))

    def remove(self, name: str) -> None:
        """Remove the version ``NAME@VERSION``; other versions stay readable. :meth:`gc` deletes its objects.

        Raises FormatError if there is no such version. The manifest may be damaged.
        """
        if "@" not in name:
            raise FormatError(f"{name!r} names no version", hint=f"use {name}@VERSION")
        place = self._resolved(name)
        for data in self._folder.read([place.path()], MOST_BYTES).values():
            self._folder.write(place.path("removed"), data)
            self._folder.remove(place.path())

    def gc(self, *, grace: float = GRACE, dry_run: bool = False) -> dict[str, int]:
        """Delete files that no version uses, and return their paths with sizes in bytes.

        Parameters
        ----------
        grace : float
            Files that were written, and versions that were removed, less than this number of seconds ago are kept.
            An :meth:`add` must not take longer; with 0, no other process may use the store.
        dry_run : bool
            Delete nothing.

        Raises FormatError if a manifest is damaged: its objects are unknown.
        """
        files = self._folder.sizes("objects")  # before the manifests: an object without a manifest may be new
        live = self._manifests().values()
        removed = self._folder.sizes("removed")  # after the others: `remove` writes here before it deletes there
        old = {path for path in removed if self._is_old(path, grace)}
        recent = self._readable(removed.keys() - old)
        used = {_object_path(sha256) for manifest in (*live, *recent) for sha256 in manifest.objects}
        deleted = {}
        for path, size in (files | removed).items():
            if path in old or (path in files and path not in used and self._is_old(path, grace)):
                deleted[path] = size
                if not dry_run:
                    self._folder.remove(path)
        return deleted

    # -------------------------------------------------------------------------------------------------- manifests
    def _manifests(self) -> dict[_Place, Manifest]:
        """Return all versions."""
        places = {place.path(): place for place in self._places()}
        found, parsed = {}, {}
        for path, data in self._folder.read(places, MOST_BYTES).items():
            with _within(f"{self.url}: {path}"):
                parsed[data] = found[places[path]] = self._parsed.get(data) or Manifest.parse(data, self._limits)
        self._parsed = parsed
        return found

    def _readable(self, paths: Iterable[str]) -> Iterator[Manifest]:
        """Yield manifests of removed versions, except those that were damaged before."""
        for data in self._folder.read(paths, MOST_BYTES).values():
            with suppress(NnrError):
                yield Manifest.parse(data, self._limits)

    def _places(self, folder: str = "models", name: str = "") -> Iterator[_Place]:
        """Yield the place of each manifest; other files, such as the rest of a killed process, are ignored."""
        for path in self._folder.sizes(f"{folder}/{name}" if name else folder):
            _, *parts = path.split("/")
            if len(parts) == 2 and NAME.fullmatch(parts[0]) and (version := _VERSION.fullmatch(parts[1])):
                yield _Place(parts[0], int(version[1]))

    def _numbers(self, name: str) -> list[int]:
        return [place.version for folder in ("models", "removed") for place in self._places(folder, name)]

    def _resolved(self, name: str, stored: Mapping[_Place, Manifest] | None = None) -> _Place:
        """Return the place of ``NAME`` or ``NAME@VERSION``."""
        plain, at, version = name.partition("@")
        _check_name(plain)
        places = [place for place in (self._places(name=plain) if stored is None else stored) if place.name == plain]
        if at:
            places = [place for place in places if str(place.version) == version]
        if not places:
            raise FormatError(f"{self.url} has no model {name!r}; nnr store ls lists the models")
        return max(places, key=lambda place: place.version)

    def _is_old(self, path: str, grace: float) -> bool:
        age = self._folder.age(path)
        return age is not None and age >= grace


class _Objects:
    """Objects of a store.

    Parameters
    ----------
    folder : Folder
    limits : Limits
    sizes : mapping of str to int
        SHA-256 and bytes of each object.
    jobs : int
        Number of threads.
    """

    def __init__(self, folder: Folder, limits: Limits, sizes: Mapping[str, int], jobs: int) -> None:
        self._folder, self._limits, self._jobs = folder, limits, jobs
        self.sizes = dict(sizes)

    def read(self, sha256: str) -> bytes:
        """Return an object, whose digest is checked."""
        path = _object_path(sha256)
        self._limits.check("max_archive_bytes", self.sizes[sha256], "bytes of an object")
        data = self._folder.read([path], self.sizes[sha256]).get(path)
        if data is None:
            raise FormatError("the object is missing from the store")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise FormatError("the object is damaged: its digest does not match")
        return data

    def head(self, sha256: str) -> Model:
        """Return a model with topology and metadata, and no tensors."""
        with _within(_object_path(sha256)):
            return apply_update(Model({}), self.read(sha256), limits=self._limits)

    def decoded(self, wanted: Iterable[Parts]) -> dict[Parts, Array]:
        """Return the values of tensors by their parts. Each object is read once."""
        wanted = set(wanted)
        steps = {parts[:k] for parts in wanted for k in range(1, len(parts) + 1)}
        uses = Counter(step[:-1] for step in steps)
        steps_of: dict[str, list[Parts]] = {}
        for step in steps:
            steps_of.setdefault(step[-1].object, []).append(step)
        values: dict[Parts, Array] = {}
        for sha256 in self.in_order(wanted):
            here = steps_of[sha256]
            keys = {step[-1].key for step in here}
            with _within(_object_path(sha256)):
                tensors = restored(self.read(sha256), keys, self._limits, self._jobs)
                for step in here:
                    value, before = tensors[step[-1].key], step[:-1]
                    if isinstance(value, Update) != bool(before):
                        raise FormatError(f"tensor {step[-1].key!r} is not stored as its manifest says")
                    values[step] = _sum(step[-1].key, values[before], value) if isinstance(value, Update) else value
                    uses[before] -= 1
                    if before and not uses[before] and before not in wanted:
                        del values[before]
        return values

    @staticmethod
    def in_order(wanted: Iterable[Parts]) -> list[str]:
        """Return the objects of tensors, each after the objects that it changes."""
        order: TopologicalSorter[str] = TopologicalSorter()
        for parts in wanted:
            for k, part in enumerate(parts):
                order.add(part.object, *(one.object for one in parts[:k][-1:]))
        try:
            return list(order.static_order())
        except CycleError:
            raise FormatError("objects of the store depend on each other in a cycle") from None


class _Writing(_Objects):
    """Objects of a store during :meth:`Store.add`.

    Parameters
    ----------
    folder, limits, jobs
        As for :class:`_Objects`.
    stored : iterable of Manifest
        All versions of the store.
    config, options
        Arguments of :meth:`Store.add`.
    """

    def __init__(
        self,
        folder: Folder,
        limits: Limits,
        jobs: int,
        stored: Iterable[Manifest],
        config: EncoderConfig | None,
        options: EncoderOptions,
    ) -> None:
        super().__init__(folder, limits, {}, jobs)
        self._config, self._options = config, options
        self._known: dict[str, Parts] = {}
        for manifest in stored:
            self.sizes |= manifest.objects
            for tensor, parts in manifest.tensors.items():
                if len(parts) < len(self._known.get(tensor.sha256, (parts,) * (MOST_PARTS + 1))):
                    self._known[tensor.sha256] = parts
        self._written: dict[str, bytes] = {}
        self._settings("default", ())  # raises for invalid options, also if there is nothing to encode

    def _settings(self, preset: str, exact: Collection[str]) -> EncoderConfig:
        """Return the options of the encoder; ``exact`` are tensors that must be lossless."""
        settings = configured(Store.add, self._config, self._options)
        if settings.exact is False or any(getattr(settings, goal) is not None for goal in MODEL_GOALS):
            settings = configured(Store.add, self._config, self._options, preset)
        else:
            settings = replace(settings, exact=True)
        return with_exact(settings, exact)

    def parts_of(self, model: Model, base: Manifest | None) -> dict[TensorDigest, Parts]:
        """Write the new tensors of a model, and return all tensors to restore with their parts."""
        entries = list(_entries(model))
        new = {entry.sha256: entry for entry in reversed(entries) if entry.sha256 not in self._known}
        earlier = {(one.name, one.dtype, one.shape): parts for one, parts in base.tensors.items()} if base else {}
        bases = {}
        for entry in new.values():
            if parts := earlier.get((entry.name, entry.dtype, entry.shape)):
                # After the longest sequence, the difference refers to its first tensor.
                bases[entry.name] = parts if len(parts) < MOST_PARTS else parts[:1]
        values = self.decoded(bases.values())
        stored: dict[str, tuple[str, Parts]] = {}  # by digest: digest to restore, and parts
        for batch in _batches(model, [entry for entry in entries if new.get(entry.sha256) is entry]):
            after = {entry.name: np.asarray(model.tensors[entry.name]) for entry in batch}
            before = {name: values[bases[name]] for name in after if name in bases}
            settings = self._settings("update" if before else "default", formats.quantized(model))
            exact = {name for name in after if settings.for_tensor(name).exact}
            larger = self._larger_as_difference({name: before[name] for name in exact if name in before}, after)
            before = {name: value for name, value in before.items() if name not in larger}
            if before:
                data = encode_update(before, after, settings, jobs=self._jobs)
            else:
                data = encode(after, settings, jobs=self._jobs)
            sha256 = self._write(data)
            with _within("the new object"):
                results = restored(data, after, self._limits, self._jobs)
                for entry in batch:
                    value, name, parts = results[entry.name], entry.name, (Part(sha256, entry.name),)
                    if isinstance(value, Update):
                        value, parts = _sum(name, before[name], value), bases[name] + parts
                    found = TensorDigest.of(name, value)
                    if name in exact and found != entry:
                        raise EncodeError(f"tensor {name!r} cannot be stored losslessly", tensor=name)
                    stored[entry.sha256] = found.sha256, parts
        result = {}
        for entry in entries:
            sha256, parts = stored.get(entry.sha256) or (entry.sha256, self._known[entry.sha256])
            result[replace(entry, sha256=sha256)] = parts
        return result

    def head_of(self, model: Model) -> str:
        """Write topology and metadata, unless there are none, and return the SHA-256 of the object."""
        if model.topology is None and not model.metadata:
            return ""
        return self._write(encode_update({}, Model({}, model.topology, metadata=model.metadata, format=model.format)))

    def check_written(self) -> None:
        """Write objects again that a concurrent :meth:`Store.gc` deleted before the manifest named them."""
        for sha256, data in self._written.items():
            if self._folder.age(_object_path(sha256)) is None:
                self._folder.write(_object_path(sha256), data)

    def _write(self, data: bytes) -> str:
        """Write an object that no manifest names, and return its SHA-256. An equal object gets the current time."""
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 not in self.sizes:
            self._folder.write(_object_path(sha256), data)
            self._written[sha256] = data
            self.sizes[sha256] = len(data)
        return sha256

    def _larger_as_difference(self, before: dict[str, Array], after: Mapping[str, Array]) -> set[str]:
        """Return the tensors of ``before`` whose differences take more bytes, according to samples of their values."""
        if not before:
            return set()
        old, new = ({name: _sample(models[name]) for name in before} for models in (before, after))
        whole = NnrFile(encode(new, exact=True), self._limits).info
        changes = NnrFile(encode_update(old, new, lossless=True), self._limits).info
        return {name for name in changes if changes[name].nbytes > whole[name].nbytes}


def restored(data: bytes, keys: Iterable[str], limits: Limits, jobs: int) -> dict[str, Array | Update]:
    """Return tensors of an object; a difference as an Update with one tensor."""
    with NnrFile(data, limits) as file:
        if missing := [key for key in keys if key not in file.info]:
            raise FormatError(f"the object has no tensor {missing[0]!r}")
        content = file.decode(names=keys, allow_missing=True, state=UpdateState(), jobs=jobs)
        whole = file.whole if file.is_update else file.info.keys()
        side = file.side
        return {
            key: content[key]
            if key in whole
            else Update({key: content[key]}, metadata=side.metadata, by_exponent=side.by_exponent)
            for key in keys
        }


def _sum(key: str, before: Array, update: Update) -> Array:
    """Return a tensor with its difference applied."""
    return apply_update({key: before}, update, check=False)[key]


def _sample(array: Array) -> Array:
    """Return values in the middle of a tensor."""
    values = array.reshape(-1)
    start = max(values.size - SAMPLE, 0) // 2
    return values[start : start + SAMPLE]


def _batches(model: Model, entries: Iterable[TensorDigest]) -> Iterator[list[TensorDigest]]:
    """Yield the tensors of each object: of at most OBJECT_BYTES together, or a single one."""
    batch: list[TensorDigest] = []
    total = 0
    for entry in entries:
        nbytes = nbytes_of(model.tensors, entry.name)
        if batch and total + nbytes > OBJECT_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(entry)
        total += nbytes
    if batch:
        yield batch


def _entries(model: Model) -> Iterator[TensorDigest]:
    """Yield the digests of a model."""
    for name, tensor in model.tensors.items():
        check_name(name)
        with _within(f"tensor {name!r}"):
            yield TensorDigest.of(name, np.asarray(tensor))


def _version(place: _Place, manifest: Manifest, nbytes: int, known: Container[str]) -> Version:
    """Describe a version whose manifest has ``nbytes``; earlier versions use the ``known`` objects."""
    return Version(
        place.name,
        place.version,
        manifest.created,
        manifest.base,
        len(manifest.tensors),
        manifest.source_bytes,
        nbytes + sum(size for sha256, size in manifest.objects.items() if sha256 not in known),
        max(map(len, manifest.tensors.values()), default=0),
        f"sha256:{manifest.model_sha256}",
    )


def _object_path(sha256: str) -> str:
    return f"objects/{sha256[:2]}/{sha256}.nnr"


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise FormatError(f"{name!r} is not a name of a model", hint="use letters, digits, '.', '_' and '-'")


def _latest(name: str, places: Iterable[_Place]) -> _Place | None:
    return max((one for one in places if one.name == name), key=lambda one: one.version, default=None)


def _end(name: str, aliases: Mapping[str, str]) -> str:
    """Return the tensor at the end of a chain of ties."""
    for _ in aliases:
        name = aliases.get(name, name)
    return name


@contextmanager
def _within(what: str) -> Iterator[None]:
    """Prepend a file or version to the place of an error of the block."""
    try:
        yield
    except NnrError as error:
        error.within(what)
        raise
