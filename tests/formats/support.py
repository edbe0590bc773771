"""Support of the tests of model formats: small models, and views of written files."""

from __future__ import annotations

import io
import math
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from nnr_codec.formats.nnef.tensorfile import HEADER_SIZE, header_of, write_tensor
from nnr_codec.model import Array, Model, Topology

#: The project's tensor files and models, valid and malformed.
SYNTHETIC = Path(__file__).resolve().parent.parent / "data" / "nnef_synthetic"


class Pipe(io.RawIOBase):
    """Stream that cannot seek."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        return self.file.readinto(cast(memoryview, buffer))


_TYPES = {"f": "scalar", "i": "integer", "u": "integer", "b": "logical"}


def graph_text(variables: Mapping[str, Array]) -> bytes:
    """Return a flat document with a variable for every array, by label."""
    lines = ["version 1.0;", "graph g(x) -> (y)", "{", "    x = external<scalar>(shape = [1, 2]);"]
    for index, (label, array) in enumerate(variables.items()):
        data_type = _TYPES[array.dtype.kind]
        lines.append(f"    v{index} = variable<{data_type}>(shape = {list(array.shape)}, label = '{label}');")
    lines += ["    y = copy(x);", "}", ""]
    return "\n".join(lines).encode()


def nnef_model(tensors: Mapping[str, Array], quantization: bytes | None = None) -> Model:
    """Return a model whose graph declares the tensors unchanged."""
    return Model(tensors, Topology("nnef", graph_text(tensors), quantization))


def dat(array: Array, data_type: str | None = None, fields: str | None = None) -> bytes:
    """Return the tensor file of an array, for a variable of this data type or the one that `graph_text` declares."""
    file = io.BytesIO()
    header = header_of(array, data_type or _TYPES.get(array.dtype.kind, ""), "test", fields)
    assert write_tensor(file, array, header, "test") == len(file.getvalue())
    return file.getvalue()


def head(item_type: int, bits: int, shape: tuple[int, ...], *, vendor: int = 0, parameters: bytes = b"") -> bytes:
    """Return a header as specified (NNEF 1.0.3, 5.2)."""
    length = (math.prod(shape) * bits + 7) // 8
    extents = [*shape, *[0] * (8 - len(shape))]
    fixed = struct.pack("<4B2I8II2H", 0x4E, 0xEF, 1, 0, length, len(shape), *extents, bits, item_type, vendor)
    return (fixed + parameters).ljust(HEADER_SIZE, b"\0")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a directory with these files."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tar_bytes(members: list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive as ``tarfile`` writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def regular(files: Mapping[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return members that are regular files."""
    return [(tarfile.TarInfo(name), data) for name, data in files.items()]


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files of a directory with their content."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def minimal() -> dict[str, bytes]:
    """Return the files of the smallest model with a tensor."""
    weight = np.array([[1.5, -2.0]], np.float32)
    return {"graph.nnef": graph_text({"a/w": weight}), "a/w.dat": dat(weight)}


def assert_same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    """Check equal names in equal order, and equal bits."""
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        assert array.shape == other[name].shape
        assert array.tobytes() == other[name].tobytes()
