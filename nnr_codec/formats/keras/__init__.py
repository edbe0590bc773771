"""Keras models: ``.keras`` archives, and ``.h5`` files of whole models or of weights, without TensorFlow.

Nothing in a file is executed: a Lambda layer is part of the configuration, which is stored verbatim. Files are read
without the HDF5 library (see :mod:`.hdf5`), and written by h5py. Tensors have the names of their datasets and include
the state of optimizers and random generators. The topology is the text of ``config.json``, or of the attribute
``model_config`` of an ``.h5`` file. Other archive members, attributes and empty groups become metadata.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError
from ...files import output_file
from ...limits import Budget, Limits
from ...model import Array, Model, Topology, Wiring
from .. import FormatWarning, opened_file, state
from ..lazy import LazyTensors
from . import archive, attributes, hdf5, writing
from .archive import KerasWeights

NAME = "keras"
DESCRIPTION = "Keras: .keras archives, and .h5 files of models or weights"
SUFFIXES = (".keras", ".h5", ".hdf5", ".weights.h5")
READS = "a .keras file or folder, or HDF5 (.h5)"
NEEDS_TO_WRITE = ("h5py",)
EXTRA = "keras"
TOPOLOGY = "tensorflow"


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source is an HDF5 file, or an archive or folder with a Keras model."""
    if isinstance(source, Path) and source.is_dir():
        return archive.is_folder(source)
    with opened_file(source) as file:
        if file.read(len(hdf5.SIGNATURE)) == hdf5.SIGNATURE:
            return True
        return archive.is_archive(file)


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a model; tensors of a path are read on access, unless they are deflated in an archive.

    Attributes of unsupported types are listed in one FormatWarning, or in a FormatError if ``strict``.

    Raises
    ------
    FormatError
        The file is malformed or has unsupported HDF5 structures or items; or ``ml_dtypes`` is required and not
        installed (MissingDependencyError).
    LimitError
        The file exceeds the limits.
    """
    budget = Budget(limits)
    with archive.parts(source, limits, budget) as found:
        contents = hdf5.read(found.file, found.start, found.size, limits, budget)
        _report("attributes of unsupported types", contents.left_out, strict)
        _report("files that do not belong to the model", found.left_out, strict)
        tensors: dict[str, Array] | LazyTensors
        if found.path:
            tensors = LazyTensors([(found.path, state(found.file))], contents.tensors)
        else:
            tensors = {name: entry.read(found.file, _what(name)) for name, entry in contents.tensors.items()}
    topology = _topology(found, contents)
    metadata = found.metadata | attributes.to_metadata(contents.attributes, bool(found.config))
    size = sum(len(key) + len(text) for key, text in metadata.items())
    limits.check("max_side_info_bytes", size, "bytes of attributes and members of the archive")
    return Model(tensors, topology, metadata=metadata, format=NAME, aliases=contents.ties)


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """Read the configuration of a model; raises the errors of :func:`load`, and FormatError if there is none."""
    budget = Budget(limits)
    with archive.parts(source, limits, budget) as found:
        contents = hdf5.Contents()
        if found.config is None:
            contents = hdf5.read(found.file, found.start, found.size, limits, budget)
    topology = _topology(found, contents)
    if topology is None:
        raise FormatError("the file has weights, but no model configuration")
    return topology


def owns(topology: Topology) -> bool:
    """Return whether the topology is JSON, unlike other topologies of TensorFlow."""
    return topology.data.lstrip()[:1] == b"{"


def wiring(topology: Topology) -> Wiring:
    """Return an empty result, because the configuration does not name the tensors."""
    return Wiring()


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model to a path in the format of its extension; raises the errors of :func:`write`, and
    FileExistsError."""
    plan = writing.plan(model, path.name.lower())
    with output_file(path, overwrite=overwrite) as file:
        writing.to_file(model, plan, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write a model to a file that need not be seekable: an archive if it has its configuration, else HDF5.

    A FormatWarning lists what the file cannot store.

    Raises
    ------
    FormatError
        The file cannot represent the model, a type or a name, or metadata of this format is malformed.
    MissingDependencyError
        h5py is not installed.
    """
    plan = writing.plan(model, "")
    writing.to_stream(model, plan, file)


def _what(name: str) -> str:
    return f"tensor {name[:80]!a}"


def _topology(found: KerasWeights, contents: hdf5.Contents) -> Topology | None:
    config = found.config
    if config is None:
        config = attributes.configuration(contents.attributes)
    if config is None:
        return None
    topology = Topology(TOPOLOGY, config)
    if not owns(topology):
        raise FormatError("the configuration of the model is not JSON")
    return topology


def _report(what: str, left_out: list[str], strict: bool) -> None:
    more = f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""
    message = f"{what}: {', '.join(left_out[:8])}{more}"
    if left_out and strict:
        raise FormatError(message)
    if left_out:
        warnings.warn(f"left out: {message}", FormatWarning, stacklevel=4)
