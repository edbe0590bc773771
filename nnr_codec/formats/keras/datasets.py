"""The items of HDF5 datasets: in one piece, in the header, or in chunks that may be deflated and shuffled."""

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
    """A part of a dataset.

    Parameters
    ----------
    at : tuple of int
        The index of its first item.
    start, nbytes : int
        Where it is in the file, as it is stored.
    filters : tuple of int
        What it went through, in this order: 1 deflate, 2 shuffle.
    """

    at: tuple[int, ...]
    start: int
    nbytes: int
    filters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored(Entry):
    """A dataset.

    Parameters
    ----------
    big_endian : bool
        Of its items.
    inline : bytes or None
        The items, where they are in the header.
    chunk : tuple of int or None
        The extents of its chunks, if it has some.
    chunks : tuple of Chunk
        All of them.
    """

    big_endian: bool = False
    inline: bytes | None = None
    chunk: tuple[int, ...] | None = None
    chunks: tuple[Chunk, ...] = ()

    def read(self, file: BinaryIO, what: str) -> Array:
        """The tensor; FormatError, which begins with ``what``, for an early end, damaged chunks or no booleans."""
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
        """The bytes of a chunk."""
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
            raise FormatError(f"{what}: a chunk of {data.size:,} bytes; it should have {nbytes:,}")
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
