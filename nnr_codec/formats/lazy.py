"""Tensors that stay in their files until they are asked for, and that other processes can read there by themselves."""

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
    """Where a tensor is: its items in row-major order, little-endian.

    Parameters
    ----------
    type : str
        Of its items: the name of a :class:`~nnr_codec.dtypes.StoredType`.
    shape : tuple of int
    start : int
        Its first byte in the file.
    nbytes : int
        Bytes that it takes there.
    file : int
        In which of several files.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tensor."""
        return STORED_TYPES[self.type].dtype

    def read(self, file: BinaryIO, what: str) -> Array:
        """The tensor; FormatError, which begins with ``what``, for an early end or a boolean that is none."""
        stored = STORED_TYPES[self.type]
        items = np.empty(self.shape, stored.little_endian)
        file.seek(self.start)
        fill(file, items, what)
        return native(items, self.type, what)


def native(items: Array, type: str, what: str) -> Array:
    """Little-endian bit patterns as a tensor of a type; FormatError for a boolean that is neither 0 nor 1."""
    stored = STORED_TYPES[type]
    if stored.kind == "b" and np.any(items.view(np.uint8) > 1):
        raise FormatError(f"{what}: a byte is neither 0 nor 1, as booleans are")
    return items.astype(stored.pattern, copy=False).view(stored.dtype)


class LazyTensors(Mapping[str, Array]):
    """Tensors that are read from their files at each access, from any thread; the files have been checked before.

    An access raises FormatError when a file is not what it was, OSError when it cannot be read.

    Parameters
    ----------
    files : sequence of (Path, tuple)
        Each with its :func:`~nnr_codec.formats.state` when it was checked.
    entries : mapping of str to Entry
    """

    def __init__(self, files: Sequence[tuple[Path, tuple[int, ...]]], entries: Mapping[str, Entry]) -> None:
        self._files, self._entries = files, entries

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        path, checked = self._files[entry.file]
        with FileIO(str(path)) as file:  # errors of FileIO have the name as it was given
            if state(file)[-len(checked) :] != checked:
                raise FormatError(f"{path} has changed since the model was opened")
            return entry.read(cast(BinaryIO, file), f"{path}: tensor {name[:80]!a}")

    def only(self, names: Sequence[str]) -> LazyTensors:
        """The tensors of these names alone, in a mapping that is small when it is pickled.

        Files are known again by their size and time of change, which are the same on every machine that shares them.
        """
        entries = {name: self._entries[name] for name in names}
        used = sorted({entry.file for entry in entries.values()})
        files = [(path.absolute(), checked[-2:]) for path, checked in map(self._files.__getitem__, used)]
        return LazyTensors(files, {n: replace(e, file=used.index(e.file)) for n, e in entries.items()})

    def announce(self, names: Iterable[str]) -> None:
        """Nothing is to be prepared."""

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a tensor, without reading it."""
        return self._entries[name].dtype, self._entries[name].shape

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
