"""NumPy files with one array, compatible with ``numpy.save`` and ``numpy.load``.

Reading never unpickles: arrays contain plain numbers or booleans, and headers are matched, not evaluated. The tensor
has the name of the file without its extension; in a stream it is called ``array``. A model with one tensor of any name
is written in C order and native byte order.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import FormatError
from ..files import output_file
from ..limits import Budget, Limits
from ..model import Array, Model
from . import FormatWarning, begins, described, fill, lacks_type, opened_file, state, warn_of_loss
from .lazy import Entry, LazyTensors

NAME = "npy"
SUFFIXES = (".npy",)
DESCRIPTION = "NumPy file of one plain array"
READS = "an .npy file"

#: Name of a tensor without a file name.
ARRAY = "array"

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 16
_ENTRY = re.compile(r"""\s*['"](\w+)['"]\s*:\s*(?:['"]([^'"]*)['"]|(True|False)|\(([0-9, ]*)\))\s*(?:,|$)""")
_PLAIN = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32))")


class NpyHeader(NamedTuple):
    """Header of an array.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    fortran_order : bool
        Whether the items are in column-major order.
    size : int
        Size of the header in bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran_order: bool
    size: int

    @property
    def nbytes(self) -> int:
        """Size of the items in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of this type are supported: plain numbers and booleans of numpy."""
    return _PLAIN.fullmatch(dtype.str) is not None


def read_header(file: IO[bytes], what: str) -> NpyHeader:
    """Read the header of an array (NumPy's format 1.0 to 3.0).

    Raises FormatError, prefixed with ``what``, if it is malformed.
    """
    prefix = file.read(8)
    if prefix[:6] != _MAGIC or prefix[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise FormatError(f"{what}: not a .npy file of version 1.0, 2.0 or 3.0")
    size = file.read(2 if prefix[6] == 1 else 4)
    if len(size) != (2 if prefix[6] == 1 else 4):
        raise FormatError(f"{what}: the file ends inside its header")
    length = int.from_bytes(size, "little")
    if length > _MAX_HEADER:
        raise FormatError(f"{what}: the header has {length:,} bytes; at most {_MAX_HEADER:,} are supported")
    header = file.read(length)
    try:
        return _parsed(header if len(header) == length else b"", len(prefix) + len(size) + length)
    except FormatError as error:
        raise FormatError(f"{what}: {error}") from error.__cause__


@lru_cache(maxsize=256)  # arrays of an archive often have the same header
def _parsed(header: bytes, size: int) -> NpyHeader:
    """Parse a header of ``size`` bytes. Raise FormatError if it is malformed."""
    match = re.fullmatch(r"\{(.*)\}\s*", header.decode("latin-1"), re.DOTALL)
    fields = _fields(match[1]) if match else {}
    if fields.keys() != {"descr", "fortran_order", "shape"}:
        raise FormatError("the header does not describe a plain array")
    if not _PLAIN.fullmatch(fields["descr"]):
        raise FormatError(f"dtype {fields['descr'][:40]!a} is not supported; only numbers and booleans are")
    shape = tuple(_extent(digits) for digits in fields["shape"].split(",") if digits.strip())
    try:
        dtype = np.dtype(fields["descr"])
    except TypeError as error:
        raise FormatError(f"dtype {fields['descr']!r} is not available on this machine") from error
    return NpyHeader(shape, dtype, fields["fortran_order"] == "True", size)


def _fields(text: str) -> dict[str, str]:
    """Return the entries of the header's dict; empty if it contains anything but a string, a boolean and a tuple."""
    fields: dict[str, str] = {}
    position = 0
    while position < len(text) and (match := _ENTRY.match(text, position)):
        key, *values = match.groups()
        if key in fields:
            return {}
        fields[key] = next(value for value in values if value is not None)
        position = match.end()
    return fields if not text[position:].strip() else {}


def _extent(digits: str) -> int:
    digits = digits.strip()
    if not digits.isdigit() or len(digits) > 19:
        raise FormatError(f"invalid extent {digits[:40]!a} in the shape")
    return int(digits)


# ------------------------------------------------------------------------------------------------ reading
@dataclass(frozen=True, slots=True)
class _Entry(Entry):
    """Array whose items have the numpy dtype ``type``, in any order."""

    fortran_order: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.type).newbyteorder("=")

    def read(self, file: BinaryIO, what: str) -> Array:
        items: Array = np.empty(self.shape[::-1] if self.fortran_order else self.shape, self.type)
        file.seek(self.start)
        fill(file, items, what)
        if items.dtype == np.bool_ and np.any(items.view(np.uint8) > 1):
            raise FormatError(f"{what}: a boolean is neither 0 nor 1")
        items = items.astype(self.dtype, copy=False)
        return items.T if self.fortran_order else items


def recognise(source: Path | BinaryIO) -> bool:
    """Return whether the source starts like an .npy file."""
    return begins(source, _MAGIC)


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read the array of a file, in native byte order; the array of a path is read on access. ``strict`` has no effect.

    Raises
    ------
    FormatError
        The header is malformed, or has objects or other dtypes than numbers and booleans; or the size of the file is
        wrong.
    LimitError
        The file exceeds the limits.
    """
    name = _stem(source) if isinstance(source, Path) else ARRAY
    limits.check("max_name_bytes", len(name.encode()), "bytes of the name")
    what = f"tensor {name[:80]!a}"
    with opened_file(source) as file:
        size = file.seek(0, os.SEEK_END)
        limits.check("max_archive_bytes", size, "bytes of the file")
        file.seek(0)
        header = read_header(file, what)
        Budget(limits).tensor(header.shape, header.dtype.itemsize, what)
        if header.size + header.nbytes != size:
            raise FormatError(
                f"{what}: the file has {size:,} bytes; header and items require {header.size + header.nbytes:,}"
            )
        entry = _Entry(header.dtype.str, header.shape, header.size, header.nbytes, fortran_order=header.fortran_order)
        if isinstance(source, Path):
            return Model(LazyTensors([(source, state(file))], {name: entry}), format=NAME)
        return Model({name: entry.read(file, what)}, format=NAME)


def _stem(path: Path) -> str:
    """Return the name of the tensor of a file."""
    return os.fsencode(path.stem).decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------ writing
def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write the tensor of a model to a path.

    Issues the warnings and raises the errors of :func:`write`, and FileExistsError.
    """
    name = _only_name(model, _stem(path))
    with output_file(path, overwrite=overwrite) as file:
        _write(model, name, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write the tensor of a model to a file that need not be seekable.

    Topology and metadata are lost, and the name of the tensor unless it is the name of the file, with a FormatWarning.

    Raises
    ------
    FormatError
        The model does not have exactly one tensor, or its dtype is not a plain number or boolean of numpy.
    """
    _write(model, _only_name(model, ARRAY), file)


def _only_name(model: Model, expected: str) -> str:
    if len(model) != 1:
        raise FormatError(
            f"an npy file has one array, but the model has {len(model)} tensors; save it as .npz or .safetensors"
        )
    (name,) = model
    dtype, _ = described(model, name)
    if not is_plain(dtype):
        raise lacks_type(f"tensor {name[:80]!a}", dtype, NAME)
    warn_of_loss(model, "an npy file")
    if name != expected:
        warnings.warn(f"an npy file cannot store the name of tensor {name[:80]!a}", FormatWarning, stacklevel=4)
    return name


def _write(model: Model, name: str, file: BinaryIO) -> None:
    write_array(file, np.asarray(model.tensors[name], order="C"))


def write_array(file: IO[bytes], array: Array) -> None:
    """Write an array of plain numbers or booleans; items in native byte order become little-endian."""
    if array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    np.lib.format.write_array(file, array, allow_pickle=False)
