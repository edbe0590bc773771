"""Where the bytes of a bitstream come from: memory, a file by its path, or an open file."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from ..limits import Limits

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Bitstream = Buffer | str | os.PathLike[str] | BinaryIO

_CHUNK = 1 << 20


def read_bitstream(data: Bitstream, limits: Limits) -> memoryview:
    """The bytes of a bitstream; a regular file by its path is mapped, not read.

    Raises LimitError for a stream of more than max_total_bytes, OSError for a file that cannot be read, and TypeError
    for anything else.
    """
    if isinstance(data, (str, os.PathLike)):
        with Path(data).open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return _read(file, limits)
    try:
        view = memoryview(cast("Buffer", data))
    except TypeError:
        if not hasattr(data, "read"):
            raise
        return _read(cast(BinaryIO, data), limits)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def _read(file: BinaryIO, limits: Limits) -> memoryview:
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        limits.check("max_total_bytes", len(content), "bytes of the stream")
    return memoryview(content)
