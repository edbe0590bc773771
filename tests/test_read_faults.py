"""Files that cannot be read, return few bytes at a time, or become shorter while they are read."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.model import Model

from .formats.support import nnef_model

TENSORS = {name: np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30) for name in ("a", "b")}


class Faulty(io.RawIOBase):
    """File that returns at most ``most`` bytes at a time, and fails at the read of this number."""

    def __init__(self, data: bytes, most: int = 1 << 30, at: int = -1, error: OSError | None = None) -> None:
        self._file, self._most, self._at, self._error = io.BytesIO(data), most, at, error
        self.reads = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        self.reads += 1
        if self.reads == self._at + 1 and self._error:
            raise self._error
        return self._file.readinto(memoryview(buffer)[: self._most])


def decode(file: BinaryIO) -> dict[str, bytes]:
    """Decode a bitstream from an open file."""
    return {name: array.tobytes() for name, array in nnr.decode(file).tensors.items()}


def look(file: BinaryIO) -> dict[str, bytes]:
    """Read tensors one by one."""
    with nnr.open(file) as opened:
        return {name: opened[name].tobytes() for name in opened}


def load(file: BinaryIO) -> dict[str, bytes]:
    """Load a model from an open file."""
    return {name: array.tobytes() for name, array in formats.load(file).tensors.items()}


def sources() -> dict[str, tuple[Callable[[BinaryIO], dict[str, bytes]], bytes]]:
    """Return functions that read, and their inputs."""
    found: dict[str, tuple[Callable[[BinaryIO], dict[str, bytes]], bytes]] = {
        "decode": (decode, nnr.encode(TENSORS)),
        "open": (look, nnr.encode(TENSORS)),
    }
    for name in ("npz", "safetensors", "nnef"):
        file = io.BytesIO()
        formats.save(nnef_model(TENSORS) if name == "nnef" else Model(TENSORS), file, format=name)
        found[name] = load, file.getvalue()
    return found


SOURCES = sources()


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_short_reads(name: str, most: int) -> None:
    read, data = SOURCES[name]
    file = Faulty(data, most)
    assert read(cast(BinaryIO, file)) == read(io.BytesIO(data))
    assert file.reads > 3


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR, errno.ESTALE])
def test_errors_of_the_system(name: str, number: int) -> None:
    """Errors of each read leave the library unchanged, for all readers."""
    read, data = SOURCES[name]
    whole = Faulty(data, 400)
    read(cast(BinaryIO, whole))
    for at in range(whole.reads):
        error = OSError(number, os.strerror(number))
        with pytest.raises(OSError) as caught:  # noqa: PT011  # it is compared
            read(cast(BinaryIO, Faulty(data, 400, at, error)))
        assert caught.value is error, at


@pytest.mark.medium
@pytest.mark.parametrize("name", SOURCES)
def test_files_that_end_early(name: str) -> None:
    """Truncated files never cause other exceptions or other tensors."""
    read, data = SOURCES[name]
    expected = read(io.BytesIO(data))
    for size in range(0, len(data), 1 if len(data) < 2000 else 13):
        try:
            found = read(io.BytesIO(data[:size]))
        except nnr.NnrError:
            continue
        assert found.items() <= expected.items(), size


@pytest.mark.parametrize("kind", ["nnr", "npz", "safetensors", "nnef"])
@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
def test_files_that_are_cut_while_they_are_open(tmp_path: Path, kind: str, left: float) -> None:
    """Headers were read and checked before; tensors are read on access."""
    path = tmp_path / f"m.{kind}"
    if kind == "nnr":
        nnr.encode_file(TENSORS, path)
    else:
        formats.save(nnef_model(TENSORS) if kind == "nnef" else Model(TENSORS), path)
    opened: Any = nnr.open(path) if kind == "nnr" else formats.load(path)
    cut = path / "b.dat" if kind == "nnef" else path
    os.truncate(cut, int(left * cut.stat().st_size))
    with pytest.raises((nnr.NnrError, OSError)):
        {name: opened[name] for name in opened}
