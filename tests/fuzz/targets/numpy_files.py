"""Target: files of NumPy, which are one array or an archive of several."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np

from .support import joined, parted, read, tensors, written, zipped


def target(data: bytes) -> None:
    """Read a file unchanged, or the members of an archive."""
    read(data)
    first, second = parted(data, 2)
    read(first, "npy")
    read(zipped({"a.npy": first, "b/c.npy": second}), "npz")


def seeds() -> Iterable[bytes]:
    """Return arrays of several types and orders, and archives."""
    files = []
    for array in (*tensors().values(), np.asfortranarray(np.ones((2, 3), ">f4")), np.zeros((0, 2), np.uint8)):
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
        yield file.getvalue()
    yield joined(*files[:2])
    yield written(tensors(), "npz")
    deflated = io.BytesIO()
    np.savez_compressed(deflated, w=np.ones(100))
    yield deflated.getvalue()
