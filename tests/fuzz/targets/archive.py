"""Target: archives of NNEF, which are tars of any dialect, gzipped or not."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable

from ...formats.support import dat, graph_text, regular, tar_bytes
from .support import read, tensors


def target(data: bytes) -> None:
    """Read an archive, sometimes gzipped."""
    if zlib.crc32(data) % 4 == 0:
        data = gzip.compress(data, 1)
    read(data)


def seeds() -> Iterable[bytes]:
    """Return a model in the dialects, with and without foreign files."""
    small = {name: tensor for name, tensor in tensors().items() if tensor.ndim}
    files = {"graph.nnef": graph_text(small)} | {f"{name}.dat": dat(tensor) for name, tensor in small.items()}
    for dialect in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        yield tar_bytes(regular(files), dialect)
        yield tar_bytes(regular({f"./{'x' * 120}/y": b"", **files}), dialect)
    yield gzip.compress(tar_bytes(regular(files)))
    link = tarfile.TarInfo("a/w.dat")
    link.type, link.linkname = tarfile.SYMTYPE, "../../etc/passwd"
    yield tar_bytes([(link, b""), *regular(files)])
