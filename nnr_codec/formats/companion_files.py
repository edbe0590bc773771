"""Files beside the tensors of a model: attachments, or metadata under the names of format and file.

The keys of metadata are ``keras:text:NAME`` for UTF-8 and ``keras:bytes:NAME`` for other files, in which each character
stands for a byte.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import FormatError
from ..files import FileNames
from ..limits import Limits

_TEXT, _BYTES = "text", "bytes"


def check_names(names: Iterable[str]) -> None:
    """Raise FormatError for an invalid name, or for names that collide on systems that ignore case."""
    found = FileNames()
    for name in names:
        found.add(name)


def neighbour(name: str) -> str:
    """Return a prefix for files beside a file with this name, without characters that readers reject."""
    return "".join(letter if letter.isprintable() and letter not in "\\:" else "_" for letter in name)


def as_metadata(format: str, name: str, data: bytes) -> tuple[str, str]:
    """Return metadata key and value of a file."""
    try:
        return f"{format}:{_TEXT}:{name}", data.decode("utf-8")
    except UnicodeDecodeError:
        return f"{format}:{_BYTES}:{name}", data.decode("latin-1")


def from_metadata(format: str, metadata: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of a model by name. Raise FormatError if a file or its name is invalid."""
    found: dict[str, bytes] = {}
    for kind, encoding in ((_TEXT, "utf-8"), (_BYTES, "latin-1")):
        prefix = f"{format}:{kind}:"
        for key, text in metadata.items():
            name = key.removeprefix(prefix)
            if name == key:
                continue
            if name in found:
                raise FormatError(f"metadata contains the file {name[:80]!a} twice")
            try:
                found[name] = text.encode(encoding)
            except UnicodeEncodeError:
                raise FormatError(f"metadata {key[:80]!a} is not valid file content") from None
    check_names(list(found))
    return found


def files(folder: Path, limits: Limits) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder by name, in order. Raise FormatError for links and special files."""
    count = 0
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *folders]):
            count += 1
            limits.check("max_names", count, "files of the folder")
            path = Path(directory) / name
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise FormatError(f"{name[:80]!a} is neither a regular file nor a folder")
            if stat.S_ISREG(mode):
                yield path.relative_to(folder).as_posix(), path


def located(model: Path, name: str, what: str) -> Path:
    """Return the real path of a companion file of a model: in the folder of the model, or below it.

    A symbolic link may only lead there, or into the folder of the real model file, because in model caches the model
    and its companions are links to files in one folder. Raises FormatError, prefixed with ``what``.
    """
    try:
        folder, own = (Path(os.path.realpath(path, strict=True)) for path in (model.parent, model))
        found = Path(os.path.realpath(folder / name, strict=True))
        mode = found.lstat().st_mode
    except FileNotFoundError:
        raise FormatError(f"{what} is missing") from None
    except OSError as error:
        raise FormatError(f"{what} cannot be read: {error.strerror}") from None
    if folder not in found.parents and own.parent != found.parent:
        raise FormatError(f"{what} is a symbolic link that leaves the model's folder")
    if not stat.S_ISREG(mode):
        raise FormatError(f"{what} is not a regular file")
    return found


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Yield an open companion file. Raise FormatError if it is now a link or not a regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FormatError(f"{path.name[:80]!a} is a symbolic link; links are not followed") from None
        raise
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path.name[:80]!a} is not a regular file")
        yield file
