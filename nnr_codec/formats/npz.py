"""NumPy archives: what ``numpy.savez`` and ``numpy.savez_compressed`` write, and ``numpy.load`` reads.

Reading never unpickles: arrays are plain numbers or booleans, and their headers are matched, not evaluated. Writing is
reproducible: stored without compression, without time and owner. Of a model only the tensors are kept.
"""

from __future__ import annotations

import math
import re
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from ..errors import FormatError, NnrError
from ..files import output_file
from ..limits import Budget, Limits
from ..model import Array, Model
from . import FormatWarning, lacks_type

NAME = "npz"
SUFFIXES = (".npz",)
DESCRIPTION = "NumPy archive of plain arrays, without topology"

_SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 16
_CHUNK = 1 << 20
_MAX_NAME = (1 << 16) - 1 - len(_SUFFIX)
# Deflate cannot expand by more (RFC 1951: 258 bytes for two bits).
_MAX_EXPANSION = 1032
_ENTRY = re.compile(r"""\s*['"](\w+)['"]\s*:\s*(?:['"]([^'"]*)['"]|(True|False)|\(([0-9, ]*)\))\s*(?:,|$)""")
_PLAIN = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32))")
# What zipfile raises on damaged archives, encrypted members and members of unknown compression.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, OverflowError)


def recognise(source: Path | BinaryIO) -> bool:
    """Whether this is a zip archive that holds a ``.npy`` member."""
    if isinstance(source, Path) and not source.is_file():
        return False
    try:
        with zipfile.ZipFile(source) as archive:
            return any(name.endswith(_SUFFIX) for name in archive.namelist())
    except (*_ZIP_ERRORS, ValueError):
        return False


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read all arrays of an archive, in its order and in the machine's byte order.

    Members that are no ``.npy`` are named in one FormatWarning, or in a FormatError if ``strict``.

    Raises
    ------
    FormatError
        The archive is damaged, has a name twice, or an array of objects or other dtypes than numbers and booleans.
    LimitError
        It asks for more than the limits permit; sizes in the archive are not trusted.
    """
    budget = Budget(limits)
    tensors: dict[str, Array] = {}
    others: list[str] = []
    try:
        with zipfile.ZipFile(source) as archive:
            limits.check("max_names", len(archive.infolist()), "members of the archive")
            for info in archive.infolist():
                # The name as it is stored: zipfile cuts the other one at NUL.
                member = info.orig_filename
                limits.check("max_name_bytes", len(member), "bytes of a name in the archive")
                if not member.endswith(_SUFFIX):
                    others.append(member)
                    continue
                name = member.removesuffix(_SUFFIX)
                if name in tensors:
                    raise FormatError(f"the archive has two arrays {name!a}")
                budget.charge("max_archive_bytes", info.file_size, "bytes of the members of the archive")
                tensors[name] = _read_member(archive, info, budget, f"array {name!a}")
    except NnrError:
        raise
    except (*_ZIP_ERRORS, ValueError) as error:
        raise FormatError(f"not a zip archive, or a damaged one: {error}") from error
    if others and strict:
        raise FormatError(f"members that are no arrays: {others[:8]!a}")
    if others:
        warnings.warn(f"members that are no arrays are left out: {others[:8]!a}", FormatWarning, stacklevel=3)
    return Model(tensors, format=NAME)


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write the tensors of a model to a path; warns and raises as :func:`write`, and FileExistsError."""
    _warn_of_loss(model)
    with output_file(path, overwrite=overwrite) as file:
        _write(model, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write the tensors of a model to a file that need not be seekable, one at a time.

    A model with a topology or metadata loses them, with a FormatWarning.

    Raises
    ------
    FormatError
        A tensor is not of numpy's own numbers or booleans, or its name does not fit a zip archive.
    """
    _warn_of_loss(model)
    _write(model, file)


def _warn_of_loss(model: Model) -> None:
    lost = [what for what in ("topology", "metadata") if getattr(model, what)]
    if lost:
        message = f"an npz archive keeps the tensors only, not the {' and '.join(lost)}"
        warnings.warn(message, FormatWarning, stacklevel=4)


def _write(model: Model, file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in model:
            info = _member(name)
            array = np.asanyarray(model.tensors[name])
            if not _PLAIN.fullmatch(array.dtype.str):
                raise lacks_type(f"tensor {name!a}", array.dtype, NAME)
            # Sizes are not known before, and readers expect one layout: always with 64-bit fields.
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _member(name: str) -> zipfile.ZipInfo:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise FormatError(f"tensor {name!a}: the name is not Unicode text") from error
    if "\0" in name or size > _MAX_NAME:
        raise FormatError(f"tensor {name[:80]!a}: the name cannot be that of a member of a zip archive")
    info = zipfile.ZipInfo()
    # Set afterwards, since the constructor takes the system's separators for slashes.
    info.filename = name + _SUFFIX
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, what: str) -> Array:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(f"{what}: compression method {info.compress_type}; only deflate is read")
    with archive.open(info) as member:
        shape, dtype, fortran_order, header_size = _read_header(member, what)
        budget.tensor(shape, dtype.itemsize, what)
        size = math.prod(shape) * dtype.itemsize
        # An array is allocated only for what the archive can hold.
        if header_size + size != info.file_size or info.file_size > info.compress_size * _MAX_EXPANSION:
            raise FormatError(f"{what}: {info.file_size} bytes; header and items need {header_size + size}")
        array: Array = np.empty(shape[::-1] if fortran_order else shape, dtype)
        _fill(member, array, what)
    array = array.astype(dtype.newbyteorder("="), copy=False)
    return array.T if fortran_order else array


def _fill(member: IO[bytes], array: Array, what: str) -> None:
    target = array.reshape(-1).view(np.uint8)
    position = 0
    while position < target.size:
        part = member.read(min(_CHUNK, target.size - position))
        if not part:
            raise FormatError(f"{what}: the member ends {target.size - position} bytes early")
        target[position : position + len(part)] = np.frombuffer(part, np.uint8)
        position += len(part)
    # The checksum is compared at the end of the member.
    if member.read(1):
        raise FormatError(f"{what}: bytes after the items")


def _read_header(member: IO[bytes], what: str) -> tuple[tuple[int, ...], np.dtype[np.generic], bool, int]:
    """Shape, dtype, whether in Fortran order, and bytes of the header (NumPy's format 1.0 to 3.0)."""
    prefix = member.read(8)
    if prefix[:6] != _MAGIC or prefix[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise FormatError(f"{what}: not a .npy file of version 1.0, 2.0 or 3.0")
    layout = struct.Struct("<H" if prefix[6] == 1 else "<I")
    (length,) = layout.unpack(member.read(layout.size))
    if length > _MAX_HEADER:
        raise FormatError(f"{what}: a header of {length} bytes")
    header = member.read(length)
    match = re.fullmatch(r"\{(.*)\}\s*", header.decode("latin-1"), re.DOTALL)
    fields = _fields(match[1]) if match and len(header) == length else {}
    if fields.keys() != {"descr", "fortran_order", "shape"}:
        raise FormatError(f"{what}: the header is not that of a plain array")
    if not _PLAIN.fullmatch(fields["descr"]):
        raise FormatError(f"{what}: dtype {fields['descr'][:40]!a}; only numbers and booleans are read, never objects")
    shape = tuple(_extent(digits, what) for digits in fields["shape"].split(",") if digits.strip())
    try:
        dtype = np.dtype(fields["descr"])
    except TypeError as error:
        raise FormatError(f"{what}: this machine has no dtype {fields['descr']}") from error
    return shape, dtype, fields["fortran_order"] == "True", len(prefix) + layout.size + length


def _fields(text: str) -> dict[str, str]:
    """The entries of the header's dict; empty when it has anything but a string, a truth value and a tuple."""
    fields: dict[str, str] = {}
    position = 0
    while position < len(text) and (match := _ENTRY.match(text, position)):
        key, *values = match.groups()
        if key in fields:
            return {}
        fields[key] = next(value for value in values if value is not None)
        position = match.end()
    return fields if not text[position:].strip() else {}


def _extent(digits: str, what: str) -> int:
    digits = digits.strip()
    if not digits.isdigit() or len(digits) > 19:
        raise FormatError(f"{what}: extent {digits[:40]!a}")
    return int(digits)
