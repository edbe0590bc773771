"""Support of the tests of PyTorch files: PyTorch, if it is installed, and files that it would not write."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError
from nnr_codec.formats.pytorch import description
from nnr_codec.model import Model


def pytorch() -> Any:
    """Return PyTorch, seeded; skip the test without it."""
    torch: Any = pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    torch.manual_seed(0)
    return torch


def saved(torch: Any, content: object, *, legacy: bool = False) -> bytes:
    """Return the file that ``torch.save`` writes."""
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def loaded(torch: Any, data: bytes) -> Any:
    """Return the content of a file as read by PyTorch."""
    return torch.load(io.BytesIO(data), weights_only=True)


def written(model: Model) -> bytes:
    """Return the file as written by nnr_codec."""
    file = io.BytesIO()
    nnr.save(model, file, format="pytorch")
    return file.getvalue()


def same(torch: Any, one: Any, other: Any) -> bool:
    """Return whether two contents are equal in types, order and bits; ties are not compared."""
    if isinstance(one, torch.Tensor):
        if type(one) is not type(other) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        bits = [
            each.detach().contiguous().reshape(-1).view(torch.uint8) if each.numel() else each for each in (one, other)
        ]
        return bool(bits[0].equal(bits[1])) and one.requires_grad == other.requires_grad
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        attributes = getattr(one, "_metadata", None), getattr(other, "_metadata", None)
        pairs = list(zip(one.items(), other.items(), strict=False))
        return (
            len(one) == len(other) and all(same(torch, list(a), list(b)) for a, b in pairs) and same(torch, *attributes)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(torch, a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same(torch, [one.real, one.imag], [other.real, other.imag])
    return bool(one == other)


def rebuilt(data: bytes, changes: Mapping[str, bytes | None], *, method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive with other members, without members that are None; names exclude the first folder."""
    file, found = io.BytesIO(), zipfile.ZipFile(io.BytesIO(data))
    root = found.namelist()[0].partition("/")[0]
    members = {name.removeprefix(f"{root}/"): found.read(name) for name in found.namelist()} | dict(changes)
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            if content is not None:
                archive.writestr(f"{root}/{name}", content)
    return file.getvalue()


def pickle_of(data: bytes) -> bytes:
    """Return the pickle in an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)


def archive_of(pickle: bytes, storages: Mapping[str, bytes] | None = None) -> bytes:
    """Return an archive of a pickle and the bytes of storages."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in {"data.pkl": pickle, "version": b"3\n", "byteorder": b"little"}.items():
            archive.writestr(f"archive/{name}", content)
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)
    return file.getvalue()


def text(value: str) -> bytes:
    """Return the opcode of a text."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    """Return the opcode of an integer."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def storage(numel: int, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """Return opcodes that request a storage."""
    return b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + integer(numel) + b"tQ"


def tensor(numel: int, offset: int, shape: Sequence[int], stride: Sequence[int], key: str = "0") -> bytes:
    """Return opcodes of a tensor, whatever the numbers are."""
    sizes = [b"(" + b"".join(map(integer, values)) + b"t" for values in (shape, stride)]
    arguments = storage(numel, key) + integer(offset) + sizes[0] + sizes[1] + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def mapping(content: Mapping[str, bytes]) -> bytes:
    """Return a pickle of a dict by name."""
    return b"\x80\x02}(" + b"".join(text(key) + value for key, value in content.items()) + b"u."


def refused(data: bytes, match: str | None = None, **options: Any) -> str:
    """Return the message with which a file is rejected: one line, without a warning."""
    with pytest.raises((FormatError, nnr.LimitError), match=match) as caught:
        nnr.load(data, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def floats(*shape: int) -> Any:
    """Return ascending floats."""
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


DESCRIPTION = description.to_bytes({"dict": [["w", {"tensor": [2, 3]}]]})
