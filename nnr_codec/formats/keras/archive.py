"""``.keras`` archives and folders: the location of the weights, and the other members."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from ...errors import FormatError, NnrError
from ...limits import Budget, Limits
from .. import opened_file, spooled
from ..companion_files import as_metadata, check_names, files, from_metadata, opened
from ..zips import ZIP_ERRORS, may_hold

CONFIG = "config.json"
METADATA = "metadata.json"
WEIGHTS = "model.weights.h5"
#: Order in which Keras writes members; others follow.
USUAL = (METADATA, CONFIG, WEIGHTS)
_ASSETS = "assets/"

_FORMAT = "keras"
_ORDER = "keras:order"
_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass
class KerasWeights:
    """Weights of a model, and the other members.

    Parameters
    ----------
    file : BinaryIO
        File that contains the HDF5 data.
    start, size : int
        Offset and size of the HDF5 data in bytes.
    path : Path or None
        Path of that file, if it has one.
    config : bytes or None
        Configuration, if it is separate from the weights.
    metadata : dict of str to str
        Other members.
    left_out : list of str
        Files of a folder that do not belong to the model.
    """

    file: BinaryIO
    start: int
    size: int
    path: Path | None = None
    config: bytes | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def is_folder(path: Path) -> bool:
    """Return whether a folder has the files of a model."""
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()


def is_archive(file: BinaryIO) -> bool:
    """Return whether a file is an archive with the members of a model."""
    file.seek(0)
    if file.read(2) != b"PK":
        return False
    try:
        if not may_hold(file, CONFIG):
            return False
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except ZIP_ERRORS:
        return False
    return CONFIG in names and any(name.startswith("model.weights.") for name in names)


@contextmanager
def parts(source: Path | BinaryIO, limits: Limits, budget: Budget) -> Iterator[KerasWeights]:
    """Yield the parts of an archive or a folder, or a single HDF5 file; raises FormatError, LimitError, OSError."""
    with ExitStack() as stack:
        if isinstance(source, Path) and source.is_dir():
            yield _of_folder(source, limits, budget, stack)
            return
        file = stack.enter_context(opened_file(source))
        size = file.seek(0, os.SEEK_END)
        limits.check("max_archive_bytes", size, "bytes of the file")
        part = KerasWeights(file, 0, size)
        if is_archive(file):
            try:
                part = _of_archive(file, limits, budget, stack)
            except NnrError:
                raise
            except ZIP_ERRORS as error:
                raise FormatError(f"the archive is damaged: {error}") from error
        if part.file is file and isinstance(source, Path):
            part.path = source
        yield part


def _of_folder(folder: Path, limits: Limits, budget: Budget, stack: ExitStack) -> KerasWeights:
    """Return the parts of a folder with Keras members; other files are listed as left out."""
    found = dict(files(folder, limits))
    if CONFIG not in found or WEIGHTS not in found:
        raise FormatError(f"the folder lacks {CONFIG} or {WEIGHTS}")
    file = stack.enter_context(opened(found.pop(WEIGHTS)))
    size = file.seek(0, os.SEEK_END)
    limits.check("max_archive_bytes", size, "bytes of the file")
    part = KerasWeights(file, 0, size, folder / WEIGHTS)
    for name, path in found.items():
        if name in (CONFIG, METADATA) or name.startswith(_ASSETS):
            with opened(path) as beside:
                _add(part, name, os.fstat(beside.fileno()).st_size, beside, budget)
        else:
            part.left_out.append(name)
    return part


def _of_archive(file: BinaryIO, limits: Limits, budget: Budget, stack: ExitStack) -> KerasWeights:
    archive = stack.enter_context(zipfile.ZipFile(file))
    infos = _infos(archive, limits, budget)
    if WEIGHTS not in infos:
        raise FormatError(f"the archive has no {WEIGHTS}; other formats of weights are not supported")
    part = _weights(file, archive, infos[WEIGHTS], limits, stack)
    for name, info in infos.items():
        if name != WEIGHTS:
            with archive.open(info) as member:
                _add(part, name, info.file_size, member, budget)
    if list(infos) != _ordered(list(infos)):
        part.metadata[_ORDER] = json.dumps(list(infos))
    return part


def _add(part: KerasWeights, name: str, size: int, file: IO[bytes], budget: Budget) -> None:
    """Add a member other than the weights."""
    limit = "max_topology_bytes" if name == CONFIG else "max_side_info_bytes"
    budget.charge(limit, size, f"bytes beside {WEIGHTS}")
    data = file.read(size + 1)
    if len(data) != size:
        raise FormatError(f"{name[:80]!a} does not have its declared size")
    if name == CONFIG:
        part.config = data
        return
    key, text = as_metadata(_FORMAT, name, data)
    part.metadata[key] = text


def _infos(archive: zipfile.ZipFile, limits: Limits, budget: Budget) -> dict[str, zipfile.ZipInfo]:
    """Return the members by checked name, without folders."""
    found: dict[str, zipfile.ZipInfo] = {}
    budget.charge("max_names", len(archive.infolist()), "members of the archive")
    for info in archive.infolist():
        name = info.orig_filename
        limits.check("max_name_bytes", len(name.encode("utf-8", "surrogateescape")), "bytes of a name in the archive")
        if info.is_dir() and not info.file_size:
            continue
        if name in found:
            raise FormatError(f"the archive contains {name[:80]!a} twice")
        if info.header_offset < 0:
            raise FormatError(f"{name[:80]!a} begins before the archive")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FormatError(
                f"{name[:80]!a}: compression method {info.compress_type} is not supported; only deflate is"
            )
        budget.charge("max_archive_bytes", info.file_size, "bytes of the members of the archive")
        found[name] = info
    check_names(list(found))
    return found


def _weights(
    file: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: Limits, stack: ExitStack
) -> KerasWeights:
    """Return the weights at their place, or a copy of deflated weights."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        with archive.open(info) as member:
            spool = stack.enter_context(spooled(cast(BinaryIO, member), limits, f"bytes of {WEIGHTS}"))
        return KerasWeights(spool, 0, spool.seek(0, os.SEEK_END))
    file.seek(info.header_offset)
    head = file.read(_LOCAL_HEADER.size)
    if len(head) != _LOCAL_HEADER.size or head[:4] != b"PK\3\4":
        raise FormatError(f"{WEIGHTS} is not at its declared offset")
    _, name, extra = _LOCAL_HEADER.unpack(head)
    start = info.header_offset + _LOCAL_HEADER.size + name + extra
    if start + info.file_size > file.seek(0, os.SEEK_END) or info.file_size != info.compress_size:
        raise FormatError(f"the declared size of {WEIGHTS} is wrong")
    return KerasWeights(file, start, info.file_size)


def _ordered(names: list[str]) -> list[str]:
    """Return names in the order in which Keras writes them."""
    return [*(name for name in USUAL if name in names), *sorted(name for name in names if name not in USUAL)]


def is_beside(metadata: Mapping[str, str]) -> bool:
    """Return whether metadata contains members of an archive."""
    return any(key.startswith(("keras:text:", "keras:bytes:")) for key in metadata)


def members(metadata: Mapping[str, str], config: bytes) -> dict[str, bytes | None]:
    """Return the members to write, in order; None for the weights. Raise FormatError for malformed metadata."""
    beside = from_metadata(_FORMAT, metadata)
    if CONFIG in beside or WEIGHTS in beside:
        raise FormatError(f"metadata contains {CONFIG} or {WEIGHTS}, which topology and tensors define")
    found: dict[str, bytes | None] = {**beside, CONFIG: config, WEIGHTS: None}
    order = _ordered(list(found))
    if _ORDER in metadata:
        try:
            order = json.loads(metadata[_ORDER])
        except (ValueError, RecursionError):
            order = []
        if (
            not isinstance(order, list)
            or any(type(name) is not str for name in order)
            or sorted(order) != sorted(found)
        ):
            raise FormatError(f"metadata {_ORDER!r} does not list the members")
    return {name: found[name] for name in order}


def write(members: Mapping[str, bytes | None], weights: BinaryIO, file: BinaryIO) -> None:
    """Write an archive, without times and compression, to a file that need not be seekable."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            source = weights if data is None else io.BytesIO(data)
            with archive.open(info, "w", force_zip64=data is None) as member:
                while chunk := source.read(1 << 20):
                    member.write(chunk)
