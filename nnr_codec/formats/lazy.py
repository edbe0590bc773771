"""Tensors that are read from their files on access, also by other processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ..dtypes import STORED_TYPES
from ..errors import FormatError
from ..model import Array
from . import fill, state


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of a tensor: its items in row-major order, little-endian.

    Parameters
    ----------
    type : str
        Name of the :class:`~nnr_codec.dtypes.StoredType` of the items.
    shape : tuple of int
    start : int
        Offset in the file, in bytes.
    nbytes : int
        Size in the file, in bytes.
    file : int
        Index of the file among several files.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tensor."""
        return STORED_TYPES[self.type].dtype

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the tensor. Raise FormatError, prefixed with ``what``, for an early end or an invalid boolean."""
        stored = STORED_TYPES[self.type]
        items = np.empty(self.shape, stored.little_endian)
        file.seek(self.start)
        fill(file, items, what)
        return native(items, self.type, what)


def native(items: Array, type: str, what: str) -> Array:
    """Convert little-endian bit patterns to a tensor. Raise FormatError for a boolean that is neither 0 nor 1."""
    stored = STORED_TYPES[type]
    if stored.kind == "b" and np.any(items.view(np.uint8) > 1):
        raise FormatError(f"{what}: a boolean is neither 0 nor 1")
    return items.astype(stored.pattern, copy=False).view(stored.dtype)


class LazyTensors(Mapping[str, Array]):
    """Tensors that are read from their files on each access, from any thread; the files were checked before.

    An access raises FormatError if a file has changed, OSError if it cannot be read.

    Parameters
    ----------
    files : sequence of (Path, tuple)
        Paths, each with its :func:`~nnr_codec.formats.state` at the time of the check.
    entries : mapping of str to Entry
    """

    def __init__(self, files: Sequence[tuple[Path, tuple[int, ...]]], entries: Mapping[str, Entry]) -> None:
        self._files, self._entries = files, entries

    @property
    def files(self) -> list[Path]:
        """Files that contain the tensors."""
        return [path for path, _ in self._files]

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        path, checked = self._files[entry.file]
        with FileIO(str(path)) as file:  # errors of FileIO have the given name
            if state(file)[-len(checked) :] != checked:
                raise FormatError(f"{path} has changed since the model was opened; open it again")
            return entry.read(cast(BinaryIO, file), f"{path}: tensor {name[:80]!a}")

    def only(self, names: Sequence[str]) -> LazyTensors:
        """Return a mapping of the named tensors that has a small pickle.

        Files are identified by size and modification time, which are the same on every machine that shares them.
        """
        entries = {name: self._entries[name] for name in names}
        used = sorted({entry.file for entry in entries.values()})
        files = [(path.absolute(), checked[-2:]) for path, checked in map(self._files.__getitem__, used)]
        return LazyTensors(files, {n: replace(e, file=used.index(e.file)) for n, e in entries.items()})

    def announce(self, names: Iterable[str]) -> None:
        """Do nothing: tensors are read directly."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of a tensor without reading it."""
        return self._entries[name].dtype, self._entries[name].shape

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
