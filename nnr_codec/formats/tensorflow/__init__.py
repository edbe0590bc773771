"""TensorFlow models: SavedModel folders, and checkpoints.

They are read and written without TensorFlow, so no graph is ever loaded. Tensors have their names in the checkpoint.
The topology is ``saved_model.pb``; string tensors, including the object graph, and all other files of a folder are
metadata. Tensors of at least 256 bytes with equal items are tied.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...files import output_directory, output_files
from ...limits import Budget, Limits
from ...model import Model, Topology, Wiring
from .. import opened_file
from ..companion_files import as_metadata, check_names, files, opened
from ..lazy import LazyTensors
from . import bundle, writing

NAME = "tensorflow"
DESCRIPTION = "TensorFlow: SavedModel folders, and checkpoints"
SUFFIXES = (".savedmodel", ".index")
READS = "a SavedModel folder, or the .index of a checkpoint"
TOPOLOGY = "tensorflow"

_GRAPH = "saved_model.pb"
_CHECKPOINT = "variables/variables"
#: First byte of a SavedModel: the field saved_model_schema_version.
_SCHEMA = b"\x08"
# Minimum size of a tied tensor in bytes; a tie takes about as many bytes in a bitstream.
_TIED = 256


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source is a folder with a saved_model.pb, or the table of a checkpoint."""
    if not isinstance(source, Path):
        return False
    if source.is_dir():
        return (source / _GRAPH).is_file()
    with opened_file(source) as file:
        return source.name.endswith(bundle.SUFFIX) and bundle.is_table(file)


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a model; tensors are read on access. Everything is kept, so ``strict`` has no effect.

    Raises
    ------
    FormatError
        A file is malformed or has an unsupported type; or ``ml_dtypes`` is required and not installed
        (MissingDependencyError).
    LimitError
        The files exceed the limits.
    """
    if not isinstance(source, Path):
        raise FormatError("a TensorFlow model has several files; give a path instead of a stream")
    budget = Budget(limits)
    topology, metadata = None, dict[str, str]()
    index: Path | None = source
    if source.is_dir():
        topology = load_topology(source, limits)
        index, metadata = _beside(source, limits, budget)
    found = bundle.read(index, limits, budget) if index else bundle.Bundle()
    metadata |= writing.strings_as_metadata(found.strings)
    size = sum(len(key) + len(text) for key, text in metadata.items())
    limits.check("max_side_info_bytes", size, "bytes of strings and files beside the variables")
    tensors = LazyTensors(found.files, found.entries)
    return Model(tensors, topology, metadata=metadata, format=NAME, aliases=_ties(found))


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read the graph of a SavedModel; raises the errors of :func:`load`, and FormatError for a checkpoint."""
    if not isinstance(source, Path) or not source.is_dir():
        raise FormatError(f"not a folder with a {_GRAPH}")
    with opened(source / _GRAPH) as file:
        size = os.fstat(file.fileno()).st_size
        limits.check("max_topology_bytes", size, f"bytes of {_GRAPH}")
        topology = Topology(TOPOLOGY, file.read(size))
    if not owns(topology):
        raise FormatError(f"{_GRAPH} does not begin like a SavedModel")
    return topology


def owns(topology: Topology) -> bool:
    """Return whether the topology starts like a SavedModel, unlike JSON of Keras."""
    return topology.data[:1] == _SCHEMA


def wiring(topology: Topology) -> Wiring:
    """Return an empty result, because the decoder needs no information."""
    return Wiring()


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a SavedModel folder, or a checkpoint if the path ends in ``.index``.

    A FormatWarning lists what the files cannot store.

    Raises
    ------
    FormatError
        The model has no graph of a SavedModel, a type or a name cannot be written, or metadata is malformed.
    FileExistsError
        The path exists and ``overwrite`` is false.
    """
    as_checkpoint = path.name.lower().endswith(bundle.SUFFIX)
    graph = model.topology if model.topology and model.topology.format == TOPOLOGY and owns(model.topology) else None
    if not as_checkpoint and graph is None:
        raise FormatError(f"a SavedModel requires a {_GRAPH}, which the model lacks; write a checkpoint (.index)")
    plan = writing.plan(model, keeps_all=not as_checkpoint)
    if as_checkpoint:
        with output_files(path, overwrite=overwrite) as create:
            items = create(bundle.data_file(path, 0, 1).name)
            writing.write(model, plan, items, create(path.name))
        return
    check_names([*plan.files, _GRAPH, f"{_CHECKPOINT}{bundle.SUFFIX}"])
    with output_directory(path, overwrite=overwrite, marker=_GRAPH) as folder:
        (folder / _CHECKPOINT).parent.mkdir()
        (folder / _GRAPH).write_bytes(graph.data if graph else b"")
        for name, data in plan.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        index = folder / f"{_CHECKPOINT}{bundle.SUFFIX}"
        with open(bundle.data_file(index, 0, 1), "wb") as items, open(index, "wb") as table:
            writing.write(model, plan, items, table)


def _beside(folder: Path, limits: Limits, budget: Budget) -> tuple[Path | None, dict[str, str]]:
    """Return the table of the variables, if there is one, and the other files of a SavedModel."""
    index, metadata, has_data = None, {}, False
    data = bundle.data_file(folder / _CHECKPOINT, 0, 0).name.partition("-")[0]
    for name, path in files(folder, limits):
        if name == f"{_CHECKPOINT}{bundle.SUFFIX}":
            index = path
        elif name.startswith(f"{Path(_CHECKPOINT).parent.name}/{data}-"):
            has_data = True
        elif name != _GRAPH:
            with opened(path) as file:
                size = os.fstat(file.fileno()).st_size
                budget.charge("max_side_info_bytes", size, "bytes of files beside the variables")
                key, text = as_metadata(NAME, name, file.read(size))
            metadata[key] = text
    if has_data and index is None:
        raise FormatError(f"the folder has data of variables, but no {_CHECKPOINT}{bundle.SUFFIX}")
    return index, metadata


def _ties(found: bundle.Bundle) -> dict[str, str]:
    """Find tensors with the items of an earlier one, because Keras exports each variable under two names."""
    ties, first = {}, dict[tuple[object, ...], str]()
    for name, entry in found.entries.items():
        if entry.nbytes < _TIED:
            continue
        other = first.setdefault((entry.type, entry.shape, entry.checksum), name)
        if other != name and bundle.same(found, name, other):
            ties[name] = other
    return ties
