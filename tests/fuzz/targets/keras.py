"""Target: files of Keras, which are HDF5, or archives of a configuration and weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

from .support import joined, parted, read, zipped

DATA = Path(__file__).resolve().parents[2] / "data" / "keras"


def target(data: bytes) -> None:
    """Read a file unchanged, or members of an archive."""
    read(data, "keras")
    config, weights = parted(data, 2)
    if weights:
        read(zipped({"metadata.json": b"{}", "config.json": config, "model.weights.h5": weights}), "keras")


def seeds() -> Iterable[bytes]:
    """Return files written by Keras and h5py."""
    for name in ("tiny.h5", "tiny.weights.h5", "tiny.keras", "text.keras"):
        yield (DATA / name).read_bytes()
    with ZipFile(DATA / "tiny.keras") as archive:
        yield joined(archive.read("config.json"), archive.read("model.weights.h5"))
