"""What reading zip archives has in common."""

from __future__ import annotations

import struct
import zipfile
import zlib

#: What zipfile raises on damaged archives, encrypted members and members of unknown compression.
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
