"""Common helpers for reading zip archives."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import BinaryIO

from ..errors import FormatError

#: Errors of zipfile for damaged archives, encrypted members and members of unknown compression.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    OverflowError,
    ValueError,
)

_END, _END_SIZE, _END64_SIZE, _LOCATOR = b"PK\5\6", 22, 56, b"PK\6\7"
_LOCATOR_SIZE = 20
_MAX_COMMENT = (1 << 16) - 1


def directory_size(file: BinaryIO, size: int) -> int:
    """Return the size of an archive's directory according to the archive. Raise FormatError if there is no directory.

    ``size`` is the size of the file in bytes.
    """
    file.seek(max(size - _END_SIZE - _MAX_COMMENT, 0))
    tail = file.read()
    at = len(tail) - _END_SIZE
    if not (tail[at : at + 4] == _END and tail.endswith(b"\0\0")):
        at = tail.rfind(_END)
    if at < 0:
        raise FormatError("not a zip archive: the directory is missing")
    length = int.from_bytes(tail[at + 12 : at + 16], "little")
    if tail[max(at - _LOCATOR_SIZE, 0) : at].startswith(_LOCATOR):
        wide = at - _LOCATOR_SIZE - _END64_SIZE
        length = int.from_bytes(tail[wide + 40 : wide + 48], "little") if wide >= 0 else size
    return length


def may_hold(file: BinaryIO, name: str) -> bool:
    """Return whether the directory of an archive has these bytes, which is faster than zipfile.

    Only False is certain. Raises FormatError if the archive has no directory.
    """
    size = file.seek(0, os.SEEK_END)
    length = directory_size(file, size)
    if length > size:
        return False
    # Maximum distance of the directory from the end of the file.
    after = _END_SIZE + _END64_SIZE + _LOCATOR_SIZE + _MAX_COMMENT
    file.seek(max(size - length - after, 0))
    return name.encode() in file.read()
