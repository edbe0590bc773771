"""Target: tensor files of NNEF, which are written unchanged after reading."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from nnr_codec.formats.nnef.tensorfile import header_of, read_data, read_header, write_tensor
from nnr_codec.limits import Budget

from ...formats.support import SYNTHETIC, dat
from .support import LIMITS, harmless, tensors


def target(data: bytes) -> None:
    """Read a file and write it."""
    with harmless():
        file = io.BytesIO(data)
        header = read_header(file, len(data), "w.dat")
        Budget(LIMITS).tensor(header.shape, header.dtype.itemsize, "w.dat")
        array = read_data(file, header, "w.dat")
        assert array.shape == header.shape
        again = io.BytesIO()
        write_tensor(again, array, header_of(array, header.data_type, "w.dat", header.fields.hex()), "w.dat")
        assert again.getvalue() == data


def seeds() -> Iterable[bytes]:
    """Return files of every type."""
    yield from map(dat, tensors().values())
    for path in sorted(Path(SYNTHETIC).rglob("*.dat")):
        if path.stat().st_size < 2048:
            yield path.read_bytes()
