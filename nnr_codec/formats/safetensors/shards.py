"""Models in several safetensors files, the *shards*, with an index that maps tensors to shards.

The index is JSON: ``weight_map``, from tensor names to plain file names, and ``metadata`` with the ``total_size`` of
all tensors. It is written like the transformers library does, sorted and indented by two blanks. The information for
restoring the shards of a model is stored in its metadata (:data:`KEY`) as JSON:

``runs``
    numbers of consecutive tensors, sorted by name, with their shard: ``[count, shard, count, shard, …]``;
``stem``, ``names``
    prefix of the index name, if it is not ``model``, and names of the shards, if they are not
    ``<stem>-00001-of-00003.safetensors``;
``index``
    metadata of the index, if it has more than the correct ``total_size``, which is then null;
``metadata``
    metadata of each shard, if they differ; common metadata belong to the model.

Shards beside a new index follow its name: ``<stem>-…`` and ``<stem>.…`` get the new stem, other names are replaced. In
a separate folder they keep their names, if these are portable, that is, ASCII.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from ...errors import FormatError
from ...files import is_device
from ...limits import Budget
from .. import is_text
from ..companion_files import located
from ..lazy import Entry
from .header import Described, in_order, parse_object, size_of

#: File name suffixes of indices and shards.
INDEX, SUFFIX = ".safetensors.index.json", ".safetensors"
#: Metadata key of a model with shards.
KEY = "safetensors:shards"
#: Prefix of the index in a folder.
STEM = "model"
#: Maximum size of a new shard in bytes, unless a single tensor is larger; the default of the libraries.
LARGEST = 5_000_000_000

_TOTAL = "total_size"
_PORTABLE = re.compile(r"\w[\w .,+=@()-]*", re.ASCII)
_LONGEST = 255

_Scalars = dict[str, str | int | float | bool | None]

_USUAL: _Scalars = {_TOTAL: None}


# ------------------------------------------------------------------------------------------------ reading
@dataclass(frozen=True)
class Index:
    """Contents of an index.

    Parameters
    ----------
    path : Path
    weight_map : dict of str to str
    metadata : dict or None
        None if there is none.
    strangers : list of str
        Entries that are left out.
    """

    path: Path
    weight_map: dict[str, str]
    metadata: _Scalars | None
    strangers: list[str]

    @property
    def names(self) -> list[str]:
        """File names, in order."""
        return sorted(set(self.weight_map.values()))

    def locate(self, name: str) -> Path:
        """Return the path of a shard."""
        try:
            return located(self.path, name, f"the shard {name[:80]!a}")
        except FormatError as error:
            error.hint = "this is the index of a sharded model; its shards must be in the same folder"
            raise

    def check(self, name: str, entries: Mapping[str, Entry]) -> list[str]:
        """Return the tensors of a shard that the index lacks.

        Raises FormatError for tensors that the index assigns elsewhere.
        """
        for tensor in entries:
            if (place := self.weight_map.get(tensor, name)) != name:
                raise FormatError(
                    f"tensor {tensor[:80]!a} is in {name[:80]!a}; the index says {place[:80]!a}", tensor=tensor
                )
        return [tensor for tensor in entries if tensor not in self.weight_map]

    def check_complete(self, entries: Collection[str]) -> None:
        """Raise FormatError if the index has tensors that the shards lack."""
        if missing := self.weight_map.keys() - entries:
            tensor = min(missing)
            place = self.weight_map[tensor]
            raise FormatError(
                f"the index places tensor {tensor[:80]!a} in {place[:80]!a}, which does not contain it", tensor=tensor
            )


def of_folder(folder: Path) -> list[Path]:
    """Return the indices of a folder; without an index, its only file of tensors."""
    paths = sorted(folder.iterdir())
    files = [path for path in paths if path.name.endswith(SUFFIX)]
    return [path for path in paths if path.name.endswith(INDEX)] or (files if len(files) == 1 else [])


def read_index(path: Path, budget: Budget) -> Index:
    """Read an index and check it without the shards.

    Raises FormatError if it is invalid, LimitError if it exceeds the limits.
    """
    budget.limits.check("max_topology_bytes", path.stat().st_size, "bytes of the index")
    data = path.read_bytes()
    fields = parse_object(data.strip(), "the index")
    weight_map, metadata = fields.pop("weight_map", None), fields.pop("metadata", None)
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise FormatError("weight_map of the index is not an object of strings")
    for name in set(weight_map.values()):
        if not name or name in (".", "..") or re.search(r"[\x00-\x1f/\\:]", name) or not is_text(name):
            raise FormatError(f"the index names a shard {name[:80]!a}, which is not a plain file name")
    if not (metadata is None or isinstance(metadata, dict)):
        raise FormatError("metadata of the index is not an object")
    kept = {key: value for key, value in (metadata or {}).items() if is_text(key) and _is_scalar(value)}
    strangers = sorted([*fields, *(metadata or {}).keys() - kept.keys()])
    return Index(path, weight_map, None if metadata is None else kept, strangers)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Prefix errors with the name of a shard."""
    try:
        yield
    except FormatError as error:
        error.within(f"shard {name[:80]!a}")
        raise


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return is_text(value)
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))


def describe(index: Index, entries: Mapping[str, Entry], metadata: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the metadata of a model in shards."""
    stem, names = index.path.name.partition(f"{SUFFIX}.index")[0], index.names
    if not _are_portable([stem + SUFFIX]):
        stem = STEM
    runs = [(len(list(run)), shard) for shard, run in groupby(entries[name].file for name in sorted(entries))]
    record: dict[str, Any] = {"runs": [number for run in runs for number in run]}
    if stem != STEM:
        record["stem"] = stem
    if names != _usual(stem, len(names)) and _are_portable(names):
        record["names"] = names
    total = sum(entry.nbytes for entry in entries.values())
    said = index.metadata
    if said and type(said.get(_TOTAL)) is int and said[_TOTAL] == total:
        said = said | {_TOTAL: None}
    if said != _USUAL:
        record["index"] = said
    common = dict(metadata[0]) if metadata else {}
    if any(list(other.items()) != list(common.items()) for other in metadata):
        record["metadata"] = [dict(each) for each in metadata]
        common = {key: text for key, text in common.items() if all(other.get(key) == text for other in metadata)}
    return common | {KEY: json.dumps(record, ensure_ascii=False, separators=(",", ":"))}


def _usual(stem: str, count: int) -> list[str]:
    return [f"{stem}-{k + 1:05}-of-{count:05}{SUFFIX}" for k in range(count)]


# ------------------------------------------------------------------------------------------------ writing
def tells_more(metadata: Mapping[str, str]) -> bool:
    """Return whether metadata of an index or of single shards would be lost in one file."""
    try:
        record = _Record.parse(str(metadata[KEY])) if KEY in metadata else _Record()
    except FormatError:
        return False
    return bool(record.metadata or (record.index and record.index.keys() - {_TOTAL}))


@dataclass
class ShardPlan:
    """Files to write.

    Parameters
    ----------
    index : str
        Name of the index.
    shards : dict of str to dict of str to (str, tuple of int)
        Tensors of each file by its name, in order.
    metadata : list of dict of str to str
        Metadata of each file.
    total : dict
        Metadata of the index; None if it has none.
    """

    index: str
    shards: dict[str, dict[str, Described]]
    metadata: list[dict[str, str]]
    total: _Scalars | None = field(default_factory=dict)

    def text(self) -> bytes:
        """Return the text of the index."""
        places = {tensor: name for name, tensors in self.shards.items() for tensor in tensors}
        fields = {"weight_map": places} if self.total is None else {"metadata": self.total, "weight_map": places}
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def plan(tensors: Mapping[str, Described], metadata: Mapping[str, str], stem: str | None) -> ShardPlan:
    """Plan the files for tensors: the shards in the metadata, or else shards of at most :data:`LARGEST` bytes.

    Without a stem, they go to a separate folder. Raises FormatError for metadata not written by :func:`describe`.
    """
    plain = {key: text for key, text in metadata.items() if key != KEY}
    record = _Record.parse(str(metadata[KEY])) if KEY in metadata else _Record()
    shards = record.places(sorted(tensors)) or _cut(tensors)
    count = max(shards.values(), default=-1) + 1
    own = record.stem if stem is None else stem
    names = record.names if stem is None else record.names_beside(stem)
    if len(names) != count:
        names = _usual(own, count)
    parts: list[dict[str, Described]] = [{} for _ in range(count)]
    for name, shard in shards.items():
        parts[shard][name] = tensors[name]
    texts = record.metadata if len(record.metadata) == count else [{} for _ in range(count)]
    total = record.index
    if total and total.get(_TOTAL, 0) is None:
        total = total | {_TOTAL: sum(map(size_of, tensors.values()))}
    return ShardPlan(
        own + INDEX,
        dict(zip(names, map(in_order, parts), strict=True)),
        [{key: plain.get(key, text) for key, text in own.items()} | plain for own in texts],
        total,
    )


def _cut(tensors: Mapping[str, Described]) -> dict[str, int]:
    """Assign a shard to each tensor, in model order."""
    shards, shard, filled = {}, 0, 0
    for name, tensor in tensors.items():
        size = size_of(tensor)
        if filled and filled + size > LARGEST:
            shard, filled = shard + 1, 0
        shards[name], filled = shard, filled + size
    return shards


@dataclass
class _Record:
    """Contents of the metadata :data:`KEY`."""

    runs: list[int] = field(default_factory=list)
    stem: str = STEM
    names: list[str] = field(default_factory=list)
    index: _Scalars | None = field(default_factory=lambda: dict(_USUAL))
    metadata: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> _Record:
        """Parse and check untrusted text."""
        what = f"metadata {KEY!r}"
        fields = parse_object(text.encode("utf-8", "replace"), what)
        if unknown := fields.keys() - cls.__dataclass_fields__.keys():
            raise FormatError(f"{what} contains the unknown entry {min(unknown)[:80]!a}")
        record = cls(**fields)
        index, texts = record.index, record.metadata
        if not (
            isinstance(record.runs, list)
            and len(record.runs) % 2 == 0
            and all(type(number) is int and number >= 0 for number in record.runs)
            and all(record.runs[::2])
            and isinstance(record.stem, str)
            and isinstance(record.names, list)
            and all(isinstance(name, str) for name in record.names)
            and (index is None or (isinstance(index, dict) and all(map(_is_scalar, index.values()))))
            and isinstance(texts, list)
            and all(isinstance(own, dict) and all(isinstance(each, str) for each in own.values()) for own in texts)
        ):
            raise FormatError(f"{what} does not describe shards")
        if not _are_portable([record.stem + SUFFIX]) or not _are_portable(record.names):
            raise FormatError(f"{what} contains file names that are not portable or not names of shards")
        return record

    def places(self, names: Sequence[str]) -> dict[str, int]:
        """Return the shard of each tensor; empty if the record does not match the tensors."""
        counts, shards = self.runs[::2], self.runs[1::2]
        if sum(counts) != len(names) or set(shards) != set(range(len(set(shards)))):
            return {}
        each = (shard for count, shard in zip(counts, shards, strict=True) for _ in range(count))
        return dict(zip(names, each, strict=True))

    def names_beside(self, stem: str) -> list[str]:
        """Return the names of the shards with a new stem; empty if they do not have the old one."""
        rests = [
            name.removeprefix(self.stem) for name in self.names if name.startswith((f"{self.stem}-", f"{self.stem}."))
        ]
        return [stem + rest for rest in rests] if len(rests) == len(self.names) else []


def _are_portable(names: Iterable[str]) -> bool:
    """Return whether all names are plain, unique file names of safetensors files on every system."""
    names = list(names)
    return len({name.lower() for name in names}) == len(names) and all(
        _PORTABLE.fullmatch(name) and not is_device(name) and name.endswith(SUFFIX) and len(name) <= _LONGEST
        for name in names
    )
