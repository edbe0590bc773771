"""Safetensors: one file of tensors and metadata, or several (shards) with an index; see :mod:`.header`, :mod:`.shards`.

Nothing is executed, and tensors are read on access. Files are written in the layout of the official library: sorted by
item type, wider types first, then by name, so that each tensor is aligned; the header is padded with blanks to a
multiple of 8 bytes. The format has no ties: a tensor with several names is written once for each. The tensors and the
metadata of a model are stored.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES, bit_patterns
from ...errors import FormatError
from ...files import output_directory, output_file, output_files
from ...limits import Budget, Limits
from ...model import Array, Model
from .. import FormatWarning, announce, described, listed, opened_file, state, warn_of_loss
from ..companion_files import neighbour
from ..diagnosis import check_shard, leave_out
from ..lazy import Entry, LazyTensors, native
from . import shards
from .header import CODES, PEEK, Described, describe, in_order, is_file, is_index, make_header, read_header

__all__ = ["LazyTensors", "has_type", "load", "mapped", "recognise", "save", "write"]

NAME = "safetensors"
SUFFIXES = (shards.SUFFIX, shards.INDEX)
DESCRIPTION = "safetensors: tensors and metadata"
READS = "a .safetensors file, or the index of several, or the folder of either"

_Files = list[tuple[Path, tuple[int, ...]]]


# ------------------------------------------------------------------------------------------------ reading
def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like a safetensors file, is an index of shards, or a folder with one of
    these."""
    if isinstance(source, Path) and not source.is_file():
        return source.is_dir() and bool(shards.of_folder(source))
    with opened_file(source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(PEEK)
    return is_index(head) or is_file(head, size)


def main_file(folder: Path) -> Path:
    """Return the index of a folder, or else its only file. Raise FormatError if it has several indices."""
    found = shards.of_folder(folder)
    if len(found) != 1:
        raise FormatError(f"the folder has {len(found)} files whose name ends in {shards.INDEX} instead of one")
    return found[0]


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file, an index of shards, or a folder with one of these; tensors of a path are read on access.

    Tensors are in the order of the header, shards in the order of their names. Nothing in a file is skipped. A
    FormatWarning, or a FormatError if ``strict``, lists tensors that the index lacks, and index entries other than
    strings and numbers.

    Raises
    ------
    FormatError
        A header is malformed, has an unsupported item type, or tensors overlap, leave gaps or exceed the file; or
        ``ml_dtypes`` is required and not installed (MissingDependencyError). An index and its shards disagree, or a
        shard is missing or not a regular file beside it.
    LimitError
        The file exceeds the limits.
    """
    if isinstance(source, Path):
        files, entries, metadata, strangers = _opened(source, limits)
        if strangers:
            leave_out(f"tensors and entries of the index are left out: {listed(strangers)}", strict)
        of_folder = source.is_dir()
        check_shard(shards.of_folder(source)[0] if of_folder else source, strict, of_folder=of_folder)
        return Model(LazyTensors(files, entries), metadata=metadata, format=NAME)
    source.seek(0)
    if is_index(source.read(PEEK)):
        raise FormatError("this is the index of a sharded model; give its path, with the shards in the same folder")
    metadata, entries = read_header(source, Budget(limits))
    tensors = {name: entry.read(source, f"tensor {name[:80]!a}") for name, entry in entries.items()}
    return Model(tensors, metadata=metadata, format=NAME)


def mapped(path: str | os.PathLike[str], *, limits: Limits | None = None) -> Model:
    """Return the model of a file, an index or a folder, with tensors as read-only views of memory-mapped files.

    Nothing is copied (on little-endian machines), and pages are read on access. They count as memory of the process,
    and the system kills the process if a file is truncated meanwhile. Use it only for your own files; :func:`load` is
    safe for all files and is used by the codec.

    Raises the errors of :func:`load`.
    """
    files, entries, metadata, _ = _opened(Path(path), limits or Limits())
    maps = []
    for name, checked in files:
        with open(name, "rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            if state(file) != checked:
                raise FormatError(f"{name} has changed since the model was opened")
    views = {name: _view(name, entry, maps[entry.file]) for name, entry in entries.items()}
    return Model(views, metadata=metadata, format=NAME)


def _view(name: str, entry: Entry, data: mmap.mmap) -> Array:
    pattern = STORED_TYPES[entry.type].pattern.newbyteorder("<")
    view: Array = np.ndarray(entry.shape, pattern, data, entry.start if entry.nbytes else 0)
    return native(view, entry.type, f"tensor {name[:80]!a}")


def _opened(source: Path, limits: Limits) -> tuple[_Files, dict[str, Entry], dict[str, str], list[str]]:
    """Return files, tensors, metadata, and the items that are left out."""
    if source.is_dir():
        source = main_file(source)
    budget = Budget(limits)
    with open(source, "rb") as file:
        if not is_index(file.read(PEEK)):
            metadata, entries = read_header(file, budget)
            return [(source, state(file))], entries, metadata, []
    index = shards.read_index(source, budget)
    files: _Files = []
    entries, texts, strangers = {}, [], index.strangers
    for number, (name, path) in enumerate([(name, index.locate(name)) for name in index.names]):
        with open(path, "rb") as file, shards.named(name):
            text, part = read_header(file, budget, number)
            files.append((path, state(file)))
        texts.append(text)
        strangers += index.check(name, part)
        entries |= {tensor: entry for tensor, entry in part.items() if tensor in index.weight_map}
    index.check_complete(entries.keys())
    return files, entries, shards.describe(index, entries, texts), strangers


# ------------------------------------------------------------------------------------------------ writing
def has_type(dtype: np.dtype[Any]) -> bool:
    """Return whether the format supports a dtype."""
    return dtype.name in CODES


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write the tensors and metadata of a model to a path, one tensor at a time.

    The extension selects a file ``.safetensors``, or an index ``.safetensors.index.json`` with shards beside it. Any
    other name is a folder with both, if the model came from shards or the folder exists, else a file. Shards are
    divided as in the source; without shards in the source, each has at most 5 GB. Issues the warnings and raises the
    errors of :func:`write`, and FileExistsError.
    """
    _warn_of_loss(model)
    name = path.name.lower()
    folder = shards.KEY in model.metadata or path.is_dir()
    if name.endswith(shards.SUFFIX) or not (folder or name.endswith(shards.INDEX)):
        with output_file(path, overwrite=overwrite) as file:
            _write(model, file)
        return
    found = _described(model)
    if name.endswith(shards.INDEX):
        stem = neighbour(path.name[: -len(shards.INDEX)])
        plan = replace(shards.plan(found, model.metadata, stem), index=path.name)
        with output_files(path, overwrite=overwrite) as beside:
            _write_shards(model, plan, beside)
        return
    plan = shards.plan(found, model.metadata, None)
    with output_directory(path, overwrite=overwrite, marker=plan.index) as made:

        def create(name: str) -> BinaryIO:
            return open(made / name, "xb")

        _write_shards(model, plan, create)


def write(model: Model, file: BinaryIO) -> None:
    """Write the tensors and metadata of a model to a file that need not be seekable, one tensor at a time.

    Topology and ties are lost, with a FormatWarning.

    Raises
    ------
    FormatError
        The format lacks an item type, a name is not Unicode text, or a value of the metadata is not a string.
    """
    _warn_of_loss(model)
    _write(model, file)


def _warn_of_loss(model: Model) -> None:
    warn_of_loss(model, "a safetensors file", "metadata")


def _described(model: Model) -> dict[str, Described]:
    return {name: describe(name, *described(model, name)) for name in model}


def _write(model: Model, file: BinaryIO) -> None:
    if shards.tells_more(model.metadata):
        message = "a safetensors file cannot store the metadata of an index or of single shards"
        warnings.warn(message, FormatWarning, stacklevel=4)
    tensors = in_order(_described(model))
    metadata = {key: text for key, text in model.metadata.items() if key != shards.KEY}
    head = make_header(metadata, tensors)
    announce(model, tensors)
    _write_file(model, file, head, tensors)


def _write_shards(model: Model, plan: shards.ShardPlan, create: Callable[[str], BinaryIO]) -> None:
    heads = [
        make_header(metadata, tensors) for metadata, tensors in zip(plan.metadata, plan.shards.values(), strict=True)
    ]
    announce(model, [name for tensors in plan.shards.values() for name in tensors])
    for head, (name, tensors) in zip(heads, plan.shards.items(), strict=True):
        with create(name) as file:
            _write_file(model, file, head, tensors)
    with create(plan.index) as file:
        file.write(plan.text())


def _write_file(model: Model, file: BinaryIO, head: bytes, tensors: Mapping[str, Described]) -> None:
    file.write(head)
    for name, tensor in tensors.items():
        array = model.tensors[name]
        if describe(name, array.dtype, array.shape) != tensor:
            raise FormatError(f"tensor {name[:80]!a} changed while it was written", tensor=name)
        items = bit_patterns(array)
        file.write(items.astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
