"""Files beside the tensors of a model that come back as they were: as metadata, named by the format and the file.

The keys are ``keras:text:NAME`` for UTF-8 and ``keras:bytes:NAME`` for other files, in which each character stands for
a byte.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import FormatError
from ..limits import Limits

_TEXT, _BYTES = "text", "bytes"
_FORBIDDEN = re.compile(r'[\\:*?"<>|]')
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin[$]|conout[$]|com[0-9¹²³]|lpt[0-9¹²³]) *(?:[.].*)?", re.IGNORECASE)
_MAX_BYTES = 255


def check_name(name: str) -> None:
    """FormatError for what is not the name of the same file in a folder on every system; slashes divide it."""
    for part in name.split("/"):
        if part in ("", ".", "..") or part[-1] in ". " or not part.isprintable() or _FORBIDDEN.search(part):
            raise FormatError(f"{name[:80]!a} cannot be the name of a file of a model")
        if len(part.encode()) > _MAX_BYTES or unicodedata.normalize("NFD", part) != part:
            raise FormatError(f"{name[:80]!a} is too long, or has characters that systems spell in several ways")
        if is_device(part):
            raise FormatError(f"{name[:80]!a} has the name of a device")


def is_device(part: str) -> bool:
    """Whether a system keeps this name of a file for a device."""
    return _DEVICE.fullmatch(part) is not None


def check_names(names: Iterator[str] | list[str]) -> None:
    """FormatError where one of these is no name, or a file and a folder have the same name in whatever case."""
    folded: dict[str, str] = {}
    folders: set[str] = set()
    for name in names:
        check_name(name)
        key = name.casefold()
        if key in folded:
            raise FormatError(f"{folded[key][:80]!a} and {name[:80]!a} are the same name to some systems")
        folded[key] = name
        parts = key.split("/")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    for key in folders & folded.keys():
        raise FormatError(f"{folded[key][:80]!a} would be a file and a folder")


def neighbour(name: str) -> str:
    """What a file beside one of this name, which a user chose, may begin with: without what readers refuse."""
    return "".join(letter if letter.isprintable() and letter not in "\\:" else "_" for letter in name)


def as_metadata(format: str, name: str, data: bytes) -> tuple[str, str]:
    """Key and value of a file."""
    try:
        return f"{format}:{_TEXT}:{name}", data.decode("utf-8")
    except UnicodeDecodeError:
        return f"{format}:{_BYTES}:{name}", data.decode("latin-1")


def from_metadata(format: str, metadata: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a model by name; FormatError where one is malformed, or its name is none."""
    found: dict[str, bytes] = {}
    for kind, encoding in ((_TEXT, "utf-8"), (_BYTES, "latin-1")):
        prefix = f"{format}:{kind}:"
        for key, text in metadata.items():
            name = key.removeprefix(prefix)
            if name == key:
                continue
            if name in found:
                raise FormatError(f"metadata has the file {name[:80]!a} twice")
            try:
                found[name] = text.encode(encoding)
            except UnicodeEncodeError:
                raise FormatError(f"metadata {key[:80]!a} stands for no bytes") from None
    check_names(list(found))
    return found


def files(folder: Path, limits: Limits) -> Iterator[tuple[str, Path]]:
    """The files below a folder by name, in order; FormatError for links, and whatever else is no file."""
    count = 0
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *folders]):
            count += 1
            limits.check("max_names", count, "files of the folder")
            path = Path(directory) / name
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise FormatError(f"{name[:80]!a} is no file of the folder")
            if stat.S_ISREG(mode):
                yield path.relative_to(folder).as_posix(), path


def located(model: Path, name: str, what: str) -> Path:
    """The real path of a file that belongs to a model's own: in the folder of that, or in one below it.

    A symbolic link may lead there only, or into the folder where the model really is: in caches of models, the model
    and what belongs to it are links to files beside each other. Raises FormatError, which begins with ``what``.
    """
    try:
        folder, own = (Path(os.path.realpath(path, strict=True)) for path in (model.parent, model))
        found = Path(os.path.realpath(folder / name, strict=True))
        mode = found.lstat().st_mode
    except FileNotFoundError:
        raise FormatError(f"{what} is not there") from None
    except OSError as error:
        raise FormatError(f"{what} cannot be read: {error.strerror}") from None
    if folder not in found.parents and own.parent != found.parent:
        raise FormatError(f"{what} is a symbolic link out of the model's folder")
    if not stat.S_ISREG(mode):
        raise FormatError(f"{what} is not a regular file")
    return found


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file that is beside others; FormatError when it is a link, or no file, whatever it was before."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FormatError(f"{path.name[:80]!a} is a link, which is not followed") from None
        raise
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path.name[:80]!a} is no file")
        yield file
