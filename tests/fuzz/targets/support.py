"""Support of targets: permitted outcomes, models that are read completely, several files in one input."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model

#: Limits of an input, below the strict ones, so that many can be tried.
LIMITS = replace(
    Limits.strict(),
    max_tensor_elements=1 << 18,
    max_tensor_bytes=1 << 20,
    max_total_bytes=4 << 20,
    max_archive_bytes=4 << 20,
    max_names=10_000,
    max_units=1000,
)

#: Maximum number of elements of models that are also encoded.
SMALL = 2000

#: Separator between the files of an input.
SEPARATOR = b"\n--8<--\n"


@contextlib.contextmanager
def harmless() -> Iterator[None]:
    """End the block on an NnrError of one line; other exceptions and warnings not of formats are raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", formats.FormatWarning)
        try:
            yield
        except NnrError as error:
            assert str(error)
            assert "\n" not in str(error), ascii(str(error))


def joined(*parts: bytes) -> bytes:
    """Return an input of several files."""
    return SEPARATOR.join(parts)


def parted(data: bytes, count: int) -> list[bytes]:
    """Return this number of files of an input; missing ones are empty."""
    parts = data.split(SEPARATOR, count - 1)
    return parts + [b""] * (count - len(parts))


@contextlib.contextmanager
def folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Return a folder with these files."""
    with tempfile.TemporaryDirectory(prefix="nnr-fuzz-") as name:
        for file, content in files.items():
            path = Path(name, file)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        yield Path(name)


def written(tensors: Mapping[str, Array] | Model, format: str) -> bytes:
    """Return the file of a model."""
    file = io.BytesIO()
    nnr.save(tensors, file, format=format)
    return file.getvalue()


def zipped(members: Mapping[str, bytes]) -> bytes:
    """Return a zip of these members, stored."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tensors() -> dict[str, Array]:
    """Return a model of several types and shapes."""
    return {
        "a/w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "a/b": np.arange(3, dtype=np.float16),
        "n": np.asarray([[-5, 2**40]], np.int64),
        "flags": np.asarray([True, False, True]),
        "one": np.asarray(2.5),
    }


def read(source: bytes | BinaryIO | Path, format: str | None = None) -> None:
    """Load a model, read it completely, and encode it if it is small."""
    with harmless():
        consume(formats.load(source, format=format, limits=LIMITS))


def consume(model: Model) -> None:
    """Read a model completely, and encode it if it is small."""
    total = 0
    for name in model:
        dtype, shape = formats.described(model, name)
        tensor = model[name]
        assert (tensor.dtype, tensor.shape) == (dtype, shape), (name, dtype, shape, tensor.dtype, tensor.shape)
        total += tensor.size
    if model.topology:
        _ = formats.wiring(model.topology).blocks
        formats.channels(model.topology)
    if total <= SMALL:
        _there_and_back(model)


def _there_and_back(model: Model) -> None:
    again = nnr.decode(nnr.encode(model, exact=True), limits=LIMITS)
    names: Sequence[str] = list(model)
    assert sorted(again) == sorted(names)
    for name in names:
        assert again[name].tobytes() == model[name].tobytes(), name
