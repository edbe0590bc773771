"""NumPy archives, compatible with ``numpy.savez``, ``numpy.savez_compressed`` and ``numpy.load``.

Reading never unpickles: arrays contain plain numbers or booleans, and headers are matched, not evaluated. Writing is
reproducible: without compression, times and owners. Only the tensors of a model are stored.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from ..errors import FormatError, NnrError
from ..files import output_file
from ..limits import Budget, Limits
from ..model import Array, Model
from . import FormatWarning, fill, lacks_type, listed, state, warn_of_loss
from .lazy import Entry, LazyTensors
from .npy import NpyHeader, is_plain, read_header, write_array
from .zips import ZIP_ERRORS

NAME = "npz"
SUFFIXES = (".npz",)
DESCRIPTION = "NumPy archive of plain arrays"
READS = "an .npz, compressed or not"

_SUFFIX = ".npy"
_CHUNK = 1 << 20
_LOCAL_SIZE = 30  # size of a local header, without the name and extra field
_LOCAL = struct.Struct("<4s2xH18xHH")  # signature, flags, and sizes of the name and of the extra field
_LOCAL_MAGIC = b"PK\3\4"
_UTF8 = 1 << 11  # flag of names in UTF-8
_USUAL_FLAGS = _UTF8 | 1 << 3  # bit 3: sizes follow the member; the directory has them too
_HEAD = 512  # bytes read of a member: enough for its name and the headers that numpy writes
_NPY_PREFIX = 10  # bytes before the text of a .npy header of version 1.0
_MAX_NAME = (1 << 16) - 1 - len(_SUFFIX)
# Maximum expansion of deflate (RFC 1951: 258 bytes for two bits).
_MAX_EXPANSION = 1032


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array(Entry):
    """Array of an archive.

    Parameters
    ----------
    header : NpyHeader
        Header, which was checked before.
    """

    header: NpyHeader

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.header.dtype.newbyteorder("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member(_Array):
    """Array whose local header begins at ``start``."""

    info: zipfile.ZipInfo

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the array. Raise FormatError, prefixed with ``what``, if the archive is damaged."""
        with _damaged(f"{what}: "):
            file.seek(self.start)
            # Without the directory of the archive, which was read before.
            lengths = struct.unpack_from("<2H", file.read(_LOCAL_SIZE), _LOCAL_SIZE - 4)
            file.seek(sum(lengths), os.SEEK_CUR)
            with cast(IO[bytes], zipfile.ZipExtFile(file, "r", self.info)) as member:
                read_header(member, what)
                return _read_items(member, self.header, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredMember(_Array):
    """Uncompressed array; ``start`` is the offset of its header.

    Parameters
    ----------
    filename : str
        Name of the member.
    checksum : int
        CRC-32 of the member.
    """

    filename: str
    checksum: int

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the array. Raise FormatError, prefixed with ``what``, if the checksum is wrong."""
        file.seek(self.start)
        checksum = zlib.crc32(file.read(self.header.size))
        array = _new_array(self.header)
        fill(file, array, what)
        if zlib.crc32(array.reshape(-1).view(np.uint8).data, checksum) != self.checksum:
            with _damaged(f"{what}: "):
                raise zipfile.BadZipFile(f"Bad CRC-32 for file {self.filename!r}")
        return _native(array, self.header)


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source is a zip archive with a ``.npy`` member."""
    if isinstance(source, Path) and not source.is_file():
        return False
    try:
        with zipfile.ZipFile(source) as archive:
            return any(name.endswith(_SUFFIX) for name in archive.namelist())
    except ZIP_ERRORS:
        return False


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read an archive, with its arrays in archive order and native byte order; arrays of a path are read on access.

    Members other than ``.npy`` are listed in one FormatWarning, or in a FormatError if ``strict``.

    Raises
    ------
    FormatError
        The archive is damaged, repeats a name, or has an array of objects or of any dtype other than numbers and
        booleans.
    LimitError
        The archive exceeds the limits; sizes in the archive are not trusted.
    """
    budget = Budget(limits)
    members: dict[str, Entry] = {}
    tensors: dict[str, Array] = {}
    lazy: LazyTensors | None = None
    others: list[str] = []
    with _damaged(), zipfile.ZipFile(source) as archive:
        assert archive.fp
        infos = archive.infolist()
        limits.check("max_names", len(infos), "members of the archive")
        stops = [*(info.header_offset for info in infos[1:]), archive.start_dir]
        for info, stop in zip(infos, stops, strict=False):
            # The name as stored: zipfile truncates the other one at NUL.
            member = info.orig_filename
            limits.check("max_name_bytes", len(member), "bytes of a name in the archive")
            if not member.endswith(_SUFFIX):
                others.append(member)
                continue
            name = member.removesuffix(_SUFFIX)
            if name in members:
                raise FormatError(f"the archive contains array {name!a} twice")
            if info.header_offset < 0:
                raise FormatError(f"array {name!a} begins before the archive")
            budget.charge("max_archive_bytes", info.file_size, "bytes of the members of the archive")
            what = f"array {name!a}"
            if isinstance(source, Path) and (found := _stored_member(archive.fp, info, stop)):
                start, data = found
                header = _checked_header(io.BytesIO(data), info, budget, what)
                place = header.dtype.str, header.shape, start, info.compress_size
                members[name] = _StoredMember(*place, header=header, filename=info.filename, checksum=info.CRC)
                continue
            with archive.open(info) as member_file:
                header = _checked_header(member_file, info, budget, what)
                place = header.dtype.str, header.shape, info.header_offset, info.compress_size
                members[name] = _Member(*place, header=header, info=info)
                if not isinstance(source, Path):
                    tensors[name] = _read_items(member_file, header, what)
        if isinstance(source, Path):
            lazy = LazyTensors([(source, state(archive.fp))], members)
    if others and strict:
        raise FormatError(f"members that are not arrays would be lost: {listed(others)}")
    if others:
        warnings.warn(f"members that are not arrays are left out: {listed(others)}", FormatWarning, stacklevel=3)
    return Model(tensors if lazy is None else lazy, format=NAME)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write the tensors of a model to a path.

    Issues the warnings and raises the errors of :func:`write`, and FileExistsError.
    """
    _warn_of_loss(model)
    with output_file(path, overwrite=overwrite) as file:
        _write(model, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write the tensors of a model to a file that need not be seekable, one at a time.

    Topology, metadata and ties are lost, with a FormatWarning.

    Raises
    ------
    FormatError
        The dtype of a tensor is not a plain number or boolean of numpy, or its name does not fit into a zip archive.
    """
    _warn_of_loss(model)
    _write(model, file)


def _warn_of_loss(model: Model) -> None:
    warn_of_loss(model, "an npz archive")


def _write(model: Model, file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in model:
            info = _member(name)
            array = np.asanyarray(model.tensors[name])
            if not is_plain(array.dtype):
                raise lacks_type(f"tensor {name!a}", array.dtype, NAME)
            # Sizes are not known before, and the layout must not depend on them: always 64-bit fields.
            with archive.open(info, "w", force_zip64=True) as member:
                write_array(member, array)


def _member(name: str) -> zipfile.ZipInfo:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise FormatError(f"tensor {name!a}: the name is not Unicode text", tensor=name) from error
    if "\0" in name or size > _MAX_NAME:
        raise FormatError(f"tensor {name[:80]!a}: zip archives do not permit this name", tensor=name)
    info = zipfile.ZipInfo()
    # Set afterwards, because the constructor converts path separators of the system to slashes.
    info.filename = name + _SUFFIX
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


@contextlib.contextmanager
def _damaged(what: str = "") -> Iterator[None]:
    """Convert errors of reading a damaged archive to FormatError, prefixed with ``what``."""
    try:
        yield
    except NnrError:
        raise
    except ZIP_ERRORS as error:
        raise FormatError(f"{what}not a zip archive, or damaged: {error}") from error


def _stored_member(file: IO[bytes], info: zipfile.ZipInfo, stop: int) -> tuple[int, bytes] | None:
    """Return the offset of a member's content, and its first bytes, which include the .npy header.

    Return None unless the member is uncompressed, not encrypted, ends at ``stop`` or before, and has the same flags and
    name in its local header. zipfile reads or rejects all other members.
    """
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        return None
    if info.flag_bits & ~_USUAL_FLAGS or not 0 <= info.header_offset < stop:
        return None
    file.seek(info.header_offset)
    head = file.read(_HEAD)
    if len(head) < _LOCAL.size:
        return None
    magic, flags, name_size, extra_size = _LOCAL.unpack_from(head)
    at = _LOCAL.size + name_size
    is_utf8 = info.flag_bits & _UTF8 or info.orig_filename.isascii()  # the codec of cp437 is slow
    name = info.orig_filename.encode("utf-8" if is_utf8 else "cp437")
    start = at + extra_size
    if magic != _LOCAL_MAGIC or flags != info.flag_bits or head[_LOCAL.size : at] != name:
        return None
    data = head[start : start + info.file_size]
    is_whole = len(data) > _NPY_PREFIX and len(data) >= _NPY_PREFIX + int.from_bytes(data[8:_NPY_PREFIX], "little")
    if data[6:8] != b"\1\0" or not is_whole or info.header_offset + start + info.file_size > stop:
        return None
    return info.header_offset + start, data


def _checked_header(member: IO[bytes], info: zipfile.ZipInfo, budget: Budget, what: str) -> NpyHeader:
    """Return the header of an array after checking it against its member and the budget."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(f"{what}: compression method {info.compress_type} is not supported; only deflate is")
    header = read_header(member, what)
    budget.tensor(header.shape, header.dtype.itemsize, what)
    size = header.size + header.nbytes
    # Limits the allocation to what the archive can contain.
    if size != info.file_size or info.file_size > info.compress_size * _MAX_EXPANSION:
        raise FormatError(f"{what}: the member has {info.file_size:,} bytes; header and items require {size:,}")
    return header


def _read_items(member: IO[bytes], header: NpyHeader, what: str) -> Array:
    """Read the items of an array after its header."""
    array = _new_array(header)
    _fill(member, array, what)
    return _native(array, header)


def _new_array(header: NpyHeader) -> Array:
    """Return an array for the items, in their order and byte order."""
    return np.empty(header.shape[::-1] if header.fortran_order else header.shape, header.dtype)


def _native(array: Array, header: NpyHeader) -> Array:
    """Return the items in native byte order and the shape of the header."""
    array = array.astype(header.dtype.newbyteorder("="), copy=False)
    return array.T if header.fortran_order else array


def _fill(member: IO[bytes], array: Array, what: str) -> None:
    target = array.reshape(-1).view(np.uint8)
    position = 0
    while position < target.size:
        part = member.read(min(_CHUNK, target.size - position))
        if not part:
            raise FormatError(f"{what}: the member ends {target.size - position} bytes early")
        target[position : position + len(part)] = np.frombuffer(part, np.uint8)
        position += len(part)
    # zipfile compares the checksum at the end of the member.
    if member.read(1):
        raise FormatError(f"{what}: the member has bytes after its items")
