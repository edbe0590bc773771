"""Items of HDF5 datasets: contiguous, in the header, or in chunks that may be deflated and shuffled."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError
from ...model import Array
from .. import fill
from ..lazy import Entry, native

_DEFLATE = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk of a dataset.

    Parameters
    ----------
    at : tuple of int
        Index of its first item.
    start, nbytes : int
        Offset and stored size in the file, in bytes.
    filters : tuple of int
        Filters applied on writing, in this order: 1 deflate, 2 shuffle.
    """

    at: tuple[int, ...]
    start: int
    nbytes: int
    filters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredItems(Entry):
    """Dataset.

    Parameters
    ----------
    big_endian : bool
        Byte order of the items.
    inline : bytes or None
        The items, if they are in the header.
    chunk : tuple of int or None
        Extents of a chunk, if the dataset has chunks.
    chunks : tuple of Chunk
        All chunks.
    """

    big_endian: bool = False
    inline: bytes | None = None
    chunk: tuple[int, ...] | None = None
    chunks: tuple[Chunk, ...] = ()

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the tensor.

        Raises FormatError, prefixed with ``what``, for an early end, damaged chunks or invalid booleans.
        """
        pattern = STORED_TYPES[self.type].pattern.newbyteorder(">" if self.big_endian else "<")
        items: Array
        if self.inline is not None:
            items = np.frombuffer(self.inline, pattern).reshape(self.shape).copy()
        else:
            items = np.empty(self.shape, pattern)
            if self.chunk is None:
                file.seek(self.start)
                fill(file, items, what)
            for chunk in self.chunks:
                part = self._decoded(file, chunk, what).view(pattern).reshape(self.chunk)
                place = tuple(slice(at, at + extent) for at, extent in zip(chunk.at, part.shape, strict=True))
                target = items[place]
                target[...] = part[tuple(slice(extent) for extent in target.shape)]
        return native(items, self.type, what)

    def _decoded(self, file: BinaryIO, chunk: Chunk, what: str) -> Array:
        """Return the decoded bytes of a chunk."""
        itemsize = STORED_TYPES[self.type].itemsize
        nbytes = int(np.prod(self.chunk or (), dtype=object)) * itemsize
        file.seek(chunk.start)
        stored: Array = np.empty(chunk.nbytes, np.uint8)
        fill(file, stored, what)
        data = stored
        for number in reversed(chunk.filters):
            if number == _DEFLATE:
                data = np.frombuffer(_inflated(data.data, nbytes, what), np.uint8)
            elif data.size == nbytes:
                data = data.reshape(itemsize, -1).T.reshape(-1)
        if data.size != nbytes:
            raise FormatError(f"{what}: a chunk has {data.size:,} bytes instead of {nbytes:,}")
        return np.ascontiguousarray(data)


def _inflated(data: memoryview, nbytes: int, what: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, nbytes + 1)
    except zlib.error as error:
        raise FormatError(f"{what}: a chunk is damaged: {error}") from None
    if not inflater.eof:
        raise FormatError(f"{what}: a chunk is damaged, or has more than {nbytes:,} bytes")
    return found
