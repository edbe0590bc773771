"""PyTorch files: zip archives of ``torch.save``, and the format before PyTorch 1.6.

Reading does not need PyTorch: :mod:`.pickles` interprets the pickle, which contains the locations of tensors; their
items are read on access. Several files can be the shards of a model, with an index like the one of safetensors. Other
structures than a dict of tensors by name, such as nested containers, numbers, strings and module versions, are stored
in the topology, a text of :mod:`.description`; the structure of shards is ignored. Writing calls ``torch.save``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ...dtypes import STORED_TYPES, StoredType
from ...errors import FormatError, MissingDependencyError
from ...files import output_file
from ...limits import Budget, Limits
from ...model import Array, Model, Topology, Wiring
from .. import FormatWarning, listed, opened_file, require, state
from ..lazy import Entry, LazyTensors
from ..safetensors.header import PEEK, is_index
from ..safetensors.shards import named, read_index
from . import description
from .archive import LEGACY, entry_of, is_archive, open_archive, read_legacy, view_of
from .modules import from_module, load_state
from .pickles import read_pickle
from .saving import write_model
from .structure import Found, walk

__all__ = ["from_module", "load", "load_state", "load_topology", "owns", "recognise", "save", "wiring", "write"]

NAME = "pytorch"
SUFFIXES = (".pt", ".pth", ".ckpt", "pytorch_model.bin")
DESCRIPTION = "PyTorch: tensors in containers, as torch.save writes them"
READS = "a .pt, .pth, .ckpt or .bin of torch.save, or the index of several .bin"
NEEDS_TO_WRITE = ("torch",)
EXTRA = "torch"
TOPOLOGY = "pytorch"


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source is a zip archive of ``torch.save``, a file of its old format, an index of shards, or a
    folder with one."""
    if isinstance(source, Path) and not source.is_file():
        return main_file(source).is_file()
    with opened_file(source) as file:
        head = file.read(PEEK)
        is_file = head.startswith(LEGACY) or (head.startswith(b"PK") and is_archive(file))
        return is_file or is_index(head, of_pickles=True)


def main_file(folder: Path) -> Path:
    """Return the index of a folder."""
    return folder / "pytorch_model.bin.index.json"


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file, an index of shards, or the folder with one; tensors of a path are read on access.

    From shards, the tensors in the index are read, in the order of the shards' names. Tensors that are the same view of
    the same memory are tied. Other tensors that share memory, and members of the archive that are not read, are listed
    in a FormatWarning, or in a FormatError if ``strict``.

    Raises
    ------
    FormatError
        The file is malformed, has unsupported contents, or requires code execution.
    LimitError
        The file exceeds the limits.
    MissingDependencyError
        ``ml_dtypes`` is required and not installed.
    """
    if isinstance(source, Path) and source.is_dir():
        source = main_file(source)
    with opened_file(source) as file:
        if is_index(file.read(PEEK), of_pickles=True):
            if not isinstance(source, Path):
                raise FormatError("an index of shards; give its path, with the shards in the same folder")
            model, apart, left = _shards(source, limits)
            _report(apart, left, strict=strict)
            return model
        found, big, unread = _found(file, limits)
        for name, view in found.views.items():
            _check_type(name, view.stored)
        entries = {name: entry_of(view, big=big) for name, view in found.views.items()}
        tensors: Mapping[str, Array]
        if isinstance(source, Path):
            tensors = LazyTensors([(source, state(file))], entries)
        else:
            tensors = {name: entry.read(file, f"tensor {name[:80]!a}") for name, entry in entries.items()}
    _report(found.apart, unread, strict=strict)
    topology = None if found.is_plain else _topology(found, limits)
    return Model(tensors, topology, format=NAME, aliases=found.aliases)


def _report(apart: list[str], unread: list[str], *, strict: bool) -> None:
    """Warn of tensors that share memory, and of parts that are not read; raise FormatError if ``strict``."""
    for what, names in (
        ("tensors that share only part of their memory are stored separately", apart),
        ("unused members of the archive are left out", unread),
    ):
        if names and strict:
            raise FormatError(f"{what}: {listed(names)}")
        if names:
            warnings.warn(f"{what}: {listed(names)}", FormatWarning, stacklevel=4)


def _shards(path: Path, limits: Limits) -> tuple[Model, list[str], list[str]]:
    """Return the model of an index, and the names for :func:`_report`."""
    budget = Budget(limits)
    index = read_index(path, budget)
    files, entries, aliases = [], dict[str, Entry](), dict[str, str]()
    apart, left = list[str](), index.strangers
    for number, (name, shard) in enumerate([(name, index.locate(name)) for name in index.names]):
        with open(shard, "rb") as file, named(name):
            found, big, unread = _found(file, limits)
            part = {tensor: replace(entry_of(view, big=big), file=number) for tensor, view in found.views.items()}
            for tensor, entry in part.items():
                _check_type(tensor, STORED_TYPES[entry.type])
                budget.charge("max_total_bytes", entry.nbytes, "bytes of all tensors")
            files.append((shard, state(file)))
        left += [*index.check(name, part), *unread]
        apart += found.apart
        entries |= {tensor: entry for tensor, entry in part.items() if tensor in index.weight_map}
        aliases |= {one: other for one, other in found.aliases.items() if {one, other} <= entries.keys()}
    index.check_complete(entries.keys())
    return Model(LazyTensors(files, entries), format=NAME, aliases=aliases), apart, left


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read the description of a file with any content; raises the errors of :func:`load`."""
    if isinstance(source, Path) and source.is_dir():
        raise FormatError("shards of PyTorch files have no topology")
    with opened_file(source) as file:
        found, _, _ = _found(file, limits)
    return _topology(found, limits)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model to a path; issues the warnings and raises the errors of :func:`write`, and FileExistsError."""
    torch = _torch()
    with output_file(path, overwrite=overwrite) as file:
        write_model(torch, model, file, scratch=path.parent)


def write(model: Model, file: BinaryIO) -> None:
    """Write a model with ``torch.save`` to a file that need not be seekable; equal models give equal bytes.

    A model with the description of a PyTorch file gets its structure back, with tied tensors as one object. The tensors
    of other models are written as a dict without the topology. Metadata is lost in any case; a FormatWarning reports
    both losses.

    Raises
    ------
    FormatError
        PyTorch lacks a dtype, or a tensor of the description is missing.
    MissingDependencyError
        PyTorch is not installed.
    """
    write_model(_torch(), model, file)


def owns(topology: Topology) -> bool:
    """Return whether a topology is a description of this module."""
    return topology.data.startswith(description.START)


def wiring(topology: Topology) -> Wiring:
    """Return the information of a description about its tensors, without PyTorch.

    Raises FormatError if it is malformed.
    """
    return description.parse(topology.data).wiring


def _torch() -> Any:
    return require("torch", "torch", "writing PyTorch files")


def _topology(found: Found, limits: Limits) -> Topology:
    data = description.to_bytes(found.tree)
    limits.check("max_topology_bytes", len(data), "bytes of the description")
    description.parse(data)  # must be readable before it is encoded
    return Topology(TOPOLOGY, data)


def _check_type(name: str, stored: StoredType) -> None:
    """Raise an error if a type requires ml_dtypes, which is not installed."""
    try:
        _ = stored.dtype
    except MissingDependencyError as error:
        error.within(f"tensor {name[:80]!a}", tensor=name)
        raise


def _found(file: BinaryIO, limits: Limits) -> tuple[Found, bool, list[str]]:
    """Return the content of a file, whether its items are big-endian, and the archive members that are not read."""
    file.seek(0)
    if file.read(len(LEGACY)) == LEGACY:
        content, places = read_legacy(file, limits)
        return walk(content, Budget(limits), partial(view_of, places.__getitem__)), False, []
    archive = open_archive(file, limits)
    content = read_pickle(archive.pickle, 0, Budget(limits)).value
    found = walk(content, Budget(limits), partial(view_of, archive.place))
    unread = [*archive.others, *(f"data/{key}" for key in archive.storages if key not in archive.places)]
    return found, archive.big, unread
