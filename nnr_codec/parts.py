"""Finished parts of a long work, kept in a folder beside its output, so that it can go on after an interruption.

A part's name is a digest of all that it follows from: version, options, source. Its file has a length and a digest of
its own, so that one which is damaged is as good as none. The folder is the caller's alone, and is never followed by a
link; it goes away when the work is done. Processes that do the same work at once may take parts away from one another,
which costs time only.

Values are written as bytes by :func:`freeze`, and made again by :func:`thaw`: numbers, texts, bytes, arrays,
collections, and instances of this package's own dataclasses, named tuples, enumerations and syntax structures. Nothing
else can come out of a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from .dtypes import STORED_TYPES, stored_type
from .errors import FormatError
from .syntax.coder import Structure

#: What is appended to the target's name.
SUFFIX = ".parts"

_MAGIC = b"nnrpart1"
_HEAD = Struct("<8sQ32s")  # magic, bytes that follow, their digest
_NAME = re.compile(r"[0-9a-f]{64}\.nnrpart(\.new)?")
_COUNT, _FLOAT = Struct("<Q"), Struct("<d")
#: Arrays begin at multiples of this, as compiled code wants them.
_ALIGNMENT = 64
_PACKAGE = __name__.partition(".")[0]


class Parts:
    """A folder of parts.

    Parameters
    ----------
    folder : path
        Made if it is not there. FileExistsError for one that is not the caller's alone, or has other files.
    version : str
        Of what makes the parts.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self._version = folder, version
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = folder.lstat()
        mine = not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)
        if not (stat.S_ISDIR(found.st_mode) and mine and _has_only_parts(folder)):
            raise FileExistsError(f"{folder} is not a folder of parts of ours: remove it, or write to another name")

    def key(self, *what: Any) -> str:
        """The name of the part that follows from this and nothing else; TypeError for what cannot be frozen."""
        return f"{_digest(freeze((self._version, *what))).hex()}.nnrpart"

    def __contains__(self, key: str) -> bool:
        return (self.folder / key).is_file()

    def get(self, key: str) -> Any:
        """The value of a part; None where there is none, or it is damaged, and then it goes away."""
        path = self.folder / key
        with suppress(OSError, FormatError), open(path, "rb", opener=_opener) as file:
            magic, length, digest = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
            if magic == _MAGIC and length == os.fstat(file.fileno()).st_size - _HEAD.size:
                content = _aligned(length)
                if file.readinto(content.data) == length and _digest([key.encode(), content.data]) == digest:
                    return thaw(content.data)
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, value: Any, most: int | None = None) -> None:
        """Keep a value, unless it has more bytes than ``most``; TypeError for what cannot be frozen."""
        content = freeze(value)
        length = sum(part.nbytes for part in content)
        if most is not None and length > most:
            return
        new = self.folder / f"{key}.new"
        with suppress(FileNotFoundError):  # another process has done the same work, and cleared up
            with open(new, "wb", opener=_opener) as file:
                file.write(_HEAD.pack(_MAGIC, length, _digest([key.encode(), *content])))
                for part in content:
                    file.write(part)
            os.replace(new, self.folder / key)

    def only(self, keys: Collection[str]) -> None:
        """Remove all other parts."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                if name not in keys and _NAME.fullmatch(name):
                    (self.folder / name).unlink(missing_ok=True)


@contextmanager
def parts_of(target: str | os.PathLike[str], version: str) -> Iterator[Parts]:
    """Yield the parts of a target; their folder is removed when the block ends without an exception, or if empty."""
    given = Path(target)
    folder = Path(os.path.realpath(given.parent, strict=True)) / f"{given.name}{SUFFIX}"
    parts = Parts(folder, version)
    try:
        yield parts
        parts.only(())
    finally:
        with suppress(OSError):
            os.rmdir(folder)


def _has_only_parts(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return all(entry.is_file(follow_symlinks=False) and _NAME.fullmatch(entry.name) for entry in entries)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _aligned(length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """So many bytes whose arrays are aligned as they were."""
    whole = np.empty(length + _ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % _ALIGNMENT
    return whole[start : start + length]


def _digest(parts: Collection[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


# ------------------------------------------------------------------------------------------------ values
def freeze(value: Any) -> list[memoryview]:
    """The bytes of a value, the same for equal values; arrays are not copied. TypeError for what has none."""
    out = _Frozen()
    out.add(value)
    return out.parts()


class _Frozen:
    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._text, self._size = bytearray(), 0

    def parts(self) -> list[memoryview]:
        """All that was added."""
        if self._text:
            self._parts.append(memoryview(bytes(self._text)))
            self._text.clear()
        return self._parts

    def add(self, value: Any) -> None:
        """Append a value."""
        cls = type(value)
        if value is None or cls is bool:
            self._put(b"NFT"[1 + value : 2 + value] if cls is bool else b"N")
        elif cls is int:
            self._bytes(b"i", str(value).encode())
        elif cls is float:
            self._put(b"d" + _FLOAT.pack(value))
        elif cls is str:
            self._bytes(b"s", value.encode("utf-8", "surrogatepass"))
        elif cls is bytes:
            self._bytes(b"b", value)
        elif cls in (tuple, list):
            self._all(b"(" if cls is tuple else b"[", value)
        elif cls in (set, frozenset):
            frozen = sorted(b"".join(freeze(item)) for item in value)
            self._all(b"<", frozen)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif cls.__module__.partition(".")[0] == _PACKAGE:
            self._instance(value)
        elif isinstance(value, Mapping):
            self._all(b"{", [each for item in value.items() for each in item])
        elif isinstance(value, np.generic):
            self.add(value.item())
        else:
            raise TypeError(f"{cls.__name__} cannot be kept")

    def _instance(self, value: Any) -> None:
        cls = type(value)
        self._bytes(b"c", f"{cls.__module__}:{cls.__qualname__}".encode())
        if isinstance(value, Enum):
            self.add(value.value)
        elif isinstance(value, Structure):
            self.add(value.present())
        elif is_dataclass(value):
            self.add({each.name: getattr(value, each.name) for each in fields(value)})
        elif isinstance(value, tuple):
            self.add(tuple(value))
        else:
            raise TypeError(f"{cls.__name__} cannot be kept")

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        stored = stored_type(array.dtype)
        if stored is None:
            raise TypeError(f"an array of {array.dtype} cannot be kept")
        self._bytes(b"a", stored.name.encode())
        self.add(array.shape)
        flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)
        self._put(bytes(-self._size % _ALIGNMENT))
        self.parts()
        self._parts.append(flat.data)
        self._size += flat.nbytes

    def _all(self, mark: bytes, values: Collection[Any]) -> None:
        self._put(mark + _COUNT.pack(len(values)))
        for value in values:
            self.add(value)

    def _bytes(self, mark: bytes, data: bytes) -> None:
        self._put(mark + _COUNT.pack(len(data)))
        self._put(data)

    def _put(self, data: bytes) -> None:
        self._text += data
        self._size += len(data)


def thaw(data: memoryview) -> Any:
    """The value of these bytes, aligned as :func:`freeze` has them; FormatError when they are none of its."""
    found = _Thawed(data)
    try:
        value = found.next()
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FormatError(f"a part that cannot be read: {error}") from None
    if found.position != len(data):
        raise FormatError("a part that goes on behind its end")
    return value


class _Thawed:
    def __init__(self, data: memoryview) -> None:
        self._data, self.position = data, 0

    def next(self) -> Any:
        """The next value."""
        mark = bytes(self._take(1))
        if mark in b"NFT":
            return {b"N": None, b"F": False, b"T": True}[mark]
        if mark == b"d":
            return _FLOAT.unpack(self._take(_FLOAT.size))[0]
        (count,) = _COUNT.unpack(self._take(_COUNT.size))
        if mark == b"i":
            return int(bytes(self._take(count)))
        if mark == b"s":
            return str(self._take(count), "utf-8", "surrogatepass")
        if mark == b"b":
            return bytes(self._take(count))
        if mark == b"c":
            return self._instance(str(self._take(count), "utf-8"))
        if mark == b"a":
            return self._array(str(self._take(count), "utf-8"))
        if count > len(self._data):
            raise ValueError(f"{count} values")
        values = [self.next() for _ in range(count)]
        if mark == b"{":
            return dict(zip(values[::2], values[1::2], strict=True))
        if mark == b"<":
            return frozenset(thaw(memoryview(value)) for value in values)
        return {b"(": tuple, b"[": list}[mark](values)

    def _instance(self, name: str) -> Any:
        module, _, qualname = name.partition(":")
        cls = vars(sys.modules[module])[qualname] if module.partition(".")[0] == _PACKAGE else None
        value = self.next()
        if not isinstance(cls, type):
            raise TypeError(f"{name} is no class")
        if issubclass(cls, Enum):
            return cls(value)
        if issubclass(cls, Structure):
            return cls(**value)
        if is_dataclass(cls):
            made = object.__new__(cls)
            for each in fields(cls):  # frozen ones too
                object.__setattr__(made, each.name, value[each.name])
            return made
        if issubclass(cls, tuple):
            return cls(*value)
        raise TypeError(f"{name} is not kept")

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        dtype, shape = STORED_TYPES[name].dtype, self.next()
        self._take(-self.position % _ALIGNMENT)
        items = np.frombuffer(self._take(int(np.prod(shape, dtype=object)) * dtype.itemsize), dtype)
        return items.reshape(shape)

    def _take(self, count: int) -> memoryview:
        if not 0 <= count <= len(self._data) - self.position:
            raise ValueError("it ends early")
        start, self.position = self.position, self.position + count
        return self._data[start : self.position]
