"""PyTorch files: what ``torch.save`` wrote, read by ``torch.load(weights_only=True)`` only, and after a check of ours.

Of a file in the zip format, PyTorch unpickles where the tensors lie, and their items are read at each access; one of
the old format (before PyTorch 1.6) is read whole. What there is in a file besides a dict of tensors by name (other
containers, numbers, texts, versions of modules) stands in the topology, a text of :mod:`.tree`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ...dtypes import StoredType
from ...errors import FormatError, LimitError, MissingDependencyError
from ...files import output_file
from ...limits import Budget, Limits
from ...model import Array, Model, Topology, Wiring
from .. import FormatWarning, listed, opened_file, require, state
from ..lazy import LazyTensors
from . import tree
from .archive import Archive, entry_of, is_archive, open_archive
from .items import array_of
from .modules import from_module, load_state
from .pickles import LEGACY, check_legacy, check_pickle
from .saving import write_model
from .structure import Found, storage_in_memory, walk

__all__ = ["from_module", "load", "load_state", "load_topology", "owns", "recognise", "save", "wiring", "write"]

NAME = "pytorch"
SUFFIXES = (".pt", ".pth", ".ckpt", "pytorch_model.bin")
DESCRIPTION = "PyTorch: tensors in containers, as torch.save writes them"
READS = "a .pt, .pth, .ckpt or .bin of torch.save (weights_only)"
NEEDS = ("torch",)
EXTRA = "torch"
TOPOLOGY = "pytorch"

#: The first version whose restricted unpickler keeps its promise as far as is known.
_FIRST = (2, 10)
#: The first version that tells where storages lie if they are to be of no device.
_TELLS = (2, 11)


def recognise(source: Path | BinaryIO) -> bool:
    """Whether this is a zip archive as ``torch.save`` writes it, or a file of its old format."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with opened_file(source) as file:
        head = file.read(len(LEGACY))
        return head == LEGACY or (head.startswith(b"PK") and is_archive(file))


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file; of a path in the zip format, tensors are read on access.

    Tensors that are the same view of the same memory are tied. Others that share memory, and members of the archive
    that are not read, are named in a FormatWarning, or in a FormatError if ``strict``.

    Raises
    ------
    FormatError
        The file is malformed, holds what is not carried, or asks for anything to be run.
    LimitError
        It asks for more than the limits permit.
    MissingDependencyError
        PyTorch is not installed, or is too old to be trusted with it; or ``ml_dtypes`` is needed.
    """
    unread: list[str] = []
    with opened_file(source) as file:
        found, archive = _found(file, limits)
        for name, view in found.views.items():
            _check_type(name, view.stored)
        if archive is None:
            tensors: Mapping[str, Array] = {
                name: array_of(tensor, found.views[name].stored, name) for name, tensor in found.tensors.items()
            }
        else:
            starts = {key: archive.place(key)[0] for key in {str(view.storage) for view in found.views.values()}}
            unread += [*archive.others, *(f"data/{key}" for key in archive.storages if key not in starts)]
            entries = {
                name: entry_of(view, starts[str(view.storage)], big=archive.big) for name, view in found.views.items()
            }
            if isinstance(source, Path):
                tensors = LazyTensors([(source, state(file))], entries)
            else:
                tensors = {name: entry.read(file, f"tensor {name[:80]!a}") for name, entry in entries.items()}
    for what, names in (
        ("tensors that share memory, but not all of it, are kept as separate ones", found.apart),
        ("members of the archive that are no part of what is in it are left out", unread),
    ):
        if names and strict:
            raise FormatError(f"{what}: {listed(names)}")
        if names:
            warnings.warn(f"{what}: {listed(names)}", FormatWarning, stacklevel=3)
    topology = None if found.is_plain else _topology(found, limits)
    return Model(tensors, topology, format=NAME, aliases=found.aliases)


def load_topology(source: Path | BinaryIO, limits: Limits) -> Topology:
    """The description of a file, whatever is in it; raises as :func:`load`."""
    with opened_file(source) as file:
        found, _ = _found(file, limits)
    return _topology(found, limits)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write a model to a path; warns and raises as :func:`write`, and FileExistsError."""
    torch = _torch()
    with output_file(path, overwrite=overwrite) as file:
        write_model(torch, model, file, scratch=path.parent)


def write(model: Model, file: BinaryIO) -> None:
    """Write a model as ``torch.save`` does to a file that need not be seekable: the same bytes for the same model.

    One with a description of a PyTorch file gets its content again, tied tensors as one; of others the tensors are
    written as a dict, and the topology is lost. So are metadata; a FormatWarning tells of both.

    Raises
    ------
    FormatError
        PyTorch has no such type, or a tensor of the description is missing.
    MissingDependencyError
        PyTorch is not installed, or is too old.
    """
    write_model(_torch(), model, file)


def owns(topology: Topology) -> bool:
    """Whether a topology is a description as we write it."""
    return topology.data.startswith(tree.START)


def wiring(topology: Topology) -> Wiring:
    """What a description says of its tensors, without PyTorch; FormatError if it is malformed."""
    return tree.parse(topology.data).wiring


def _torch() -> Any:
    """PyTorch, of a version that is trusted with files."""
    torch: Any = require("torch", "torch", "reading or writing PyTorch files")
    if _version(torch) < _FIRST:
        raise MissingDependencyError(
            f"PyTorch {torch.__version__} is installed; files are read with 2.10 or later only, since those before "
            "could be made to run what is in a file in spite of weights_only: pip install 'torch>=2.10'"
        )
    return torch


def _version(torch: Any) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _topology(found: Found, limits: Limits) -> Topology:
    data = tree.to_bytes(found.tree)
    limits.check("max_topology_bytes", len(data), "bytes of the description")
    tree.parse(data)  # what is not read again is not to be encoded
    return Topology(TOPOLOGY, data)


def _check_type(name: str, stored: StoredType) -> None:
    """Raise where numpy needs ml_dtypes for a type."""
    try:
        _ = stored.dtype
    except MissingDependencyError as error:
        error.within(f"tensor {name[:80]!a}", tensor=name)
        raise


def _found(file: BinaryIO, limits: Limits) -> tuple[Found, Archive | None]:
    """What is in a file, and the archive that it is; None for one of the old format, whose tensors are in memory."""
    torch, budget = _torch(), Budget(limits)
    file.seek(0)
    if file.read(len(LEGACY)) == LEGACY:
        check_legacy(file, limits)
        content = _unpickled(torch, file, "cpu")
        return walk(torch, content, budget, storage_in_memory), None
    archive = open_archive(file, limits)
    check_pickle(io.BytesIO(archive.pickle), Budget(limits))
    skeleton, keys = archive.skeleton()
    if _version(torch) >= _TELLS:
        content = _unpickled(torch, skeleton, "meta")
    else:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            content = _unpickled(torch, skeleton, "cpu")

    def storage_of(tensor: Any) -> Hashable:
        storage = tensor.untyped_storage()
        key = keys.get(getattr(storage, "_checkpoint_offset", -1))
        if key is None or key not in archive.storages:
            raise FormatError("a tensor has no storage in the file")
        _, size = archive.place(key)
        if size != storage.nbytes():
            raise FormatError(f"storage {key} has {size:,} bytes; the pickle says {storage.nbytes():,}")
        return key

    return walk(torch, content, budget, storage_of), archive


def _unpickled(torch: Any, file: BinaryIO, location: str) -> object:
    """The content of a file, by PyTorch's restricted unpickler."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location=location, weights_only=True)
    except (FormatError, LimitError):
        raise
    except Exception as error:  # what hostile pickles bring forth is of any type
        raise FormatError(f"PyTorch refuses the file: {_line(error)}") from None


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    text = str(error).partition("WeightsUnpickler error:")[2].strip() or str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
