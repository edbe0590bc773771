"""Files that hold items of an ONNX model's tensors: they lie in the model's folder, or below it, and nowhere else.

A symbolic link may lead there only, or into the folder where the model really is: in caches of models, the model and
its data are links to files that lie beside each other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...errors import FormatError

_LONGEST = 1024


def find(model: Path, location: str) -> Path:
    """The file of a location; FormatError unless it names a regular file beside the model, or in a folder below."""
    what = f"external data {location[:80]!a}"
    parts = location.split("/")
    if len(location) > _LONGEST or any(part in ("", ".", "..") for part in parts):
        raise FormatError(f"{what}: no path below the model's folder")
    if any(character in location for character in "\\:\0") or not location.isprintable():
        raise FormatError(f"{what}: no path that means the same on all systems")
    try:
        root, own = (Path(os.path.realpath(path, strict=True)) for path in (model.parent, model))
        found = Path(os.path.realpath(root.joinpath(*parts), strict=True))
        mode = found.lstat().st_mode
    except OSError as error:
        raise FormatError(f"{what} cannot be read: {error.strerror}") from None
    if root not in found.parents and own.parent != found.parent:
        raise FormatError(f"{what}: a symbolic link leads out of the model's folder")
    if not stat.S_ISREG(mode):
        raise FormatError(f"{what}: not a regular file")
    return found


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file that :func:`find` found, whatever somebody has put in its place meanwhile."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path} is no regular file any more")
        yield file
