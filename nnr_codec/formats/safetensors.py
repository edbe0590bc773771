"""Safetensors files: the size of a header (8 bytes), the header (JSON) and the items of all tensors, little-endian.

Nothing is executed, and tensors are read where they are. What is written is laid out as the format's own library does:
by item type, the wider ones first, then by name, so that each tensor is aligned; the header is padded with blanks to a
multiple of 8 bytes. The format has no tied tensors: one that has several names is written once for each. Of a model the
tensors and the metadata are kept. Models in several files (shards with an index) are not read.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..dtypes import STORED_TYPES, StoredType, bit_patterns
from ..errors import FormatError, MissingDependencyError
from ..files import output_file
from ..limits import Budget, Limits
from ..model import Array, Model
from . import FormatWarning, announce, described, fill, lacks_type, state

NAME = "safetensors"
SUFFIXES = (".safetensors",)
DESCRIPTION = "safetensors: one file of tensors and metadata, without topology"

#: Item types by the format's names, in the order in which tensors lie in a file.
_TYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _TYPES.items()}
_ORDER = {code: place for place, code in enumerate(_TYPES)}

_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_SIZE = 8  # bytes of the header's size, and the alignment of the items
_MAX_HEADER = 100_000_000  # the library reads no more
_MAX_SIZE = (1 << 63) - 1
_PEEK = 4096
# What the JSON file beside the parts of a model has.
_INDEX = b'"weight_map"'
_SHARDED = "the index of a model in several files (shards); only single .safetensors files are read"


@dataclass(frozen=True)
class Entry:
    """What the header says of one tensor.

    Parameters
    ----------
    stored : StoredType
    shape : tuple of int
    start : int
        Its first byte in the file.
    nbytes : int
    """

    stored: StoredType
    shape: tuple[int, ...]
    start: int
    nbytes: int


class LazyTensors(Mapping[str, Array]):
    """Tensors that are read from their file at each access; the header has been checked before.

    An access raises FormatError when the file is not what it was, OSError when it cannot be read.
    """

    def __init__(self, path: Path, opened: tuple[int, ...], entries: dict[str, Entry]) -> None:
        self._path, self._opened, self._entries = path, opened, entries

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        with open(self._path, "rb", buffering=0) as file:
            if state(file) != self._opened:
                raise FormatError(f"{self._path} has changed since the model was opened")
            return _read(file, name, entry)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


# ------------------------------------------------------------------------------------------------ reading
def recognise(source: Path | BinaryIO) -> bool:
    """Whether this begins as a safetensors file does, or is the index of several."""
    if isinstance(source, Path) and not source.is_file():
        return False
    with _opened(source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(_PEEK)
    header = int.from_bytes(head[:_SIZE], "little")
    return _is_index(head) or (head[_SIZE : _SIZE + 1] == b"{" and 2 <= header <= size - _SIZE)


def load(source: Path | BinaryIO, limits: Limits, *, strict: bool = False) -> Model:
    """Read a file, its tensors in the order of the header; of a path they are read on access. All is kept (strict).

    Raises
    ------
    FormatError
        The header is malformed, has an item type that is not read here, or tensors overlap, leave holes or lie outside
        of the file; or ``ml_dtypes`` is needed and not installed (MissingDependencyError).
    LimitError
        It asks for more than the limits permit.
    """
    with _opened(source) as file:
        metadata, entries = _read_header(file, limits)
        if isinstance(source, Path):
            tensors: Mapping[str, Array] = LazyTensors(source, state(file), entries)
        else:
            tensors = {name: _read(file, name, entry) for name, entry in entries.items()}
    return Model(tensors, metadata=metadata, format=NAME)


@contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(source, Path):
        with open(source, "rb") as file:
            yield file
    else:
        yield source


def _is_index(head: bytes) -> bool:
    # The size of a header has zero bytes, JSON none.
    return b"\0" not in head[:_SIZE] and head.lstrip()[:1] == b"{" and _INDEX in head


def _read_header(file: BinaryIO, limits: Limits) -> tuple[dict[str, str], dict[str, Entry]]:
    """Metadata and tensors of a file, all of which fit the file and the limits."""
    size = file.seek(0, os.SEEK_END)
    limits.check("max_archive_bytes", size, "bytes of the file")
    file.seek(0)
    head = file.read(_PEEK)
    if _is_index(head):
        raise FormatError(_SHARDED)
    length = int.from_bytes(head[:_SIZE], "little")
    if size < _SIZE or length > size - _SIZE:
        raise FormatError(f"the file has {size:,} bytes; {_SIZE} and a header of {length:,} do not fit")
    limits.check("max_topology_bytes", length, "bytes of the header")
    if length > _MAX_HEADER:
        raise FormatError(f"the header has {length:,} bytes; at most {_MAX_HEADER:,} are read")
    file.seek(_SIZE)
    fields = _parse(file.read(length))
    metadata = fields.pop(_METADATA, None)
    budget = Budget(limits)
    budget.charge("max_names", len(fields), "tensors of the file")
    entries = {name: _entry(name, value, _SIZE + length, budget) for name, value in fields.items()}
    _check_places(entries, _SIZE + length, size)
    return _metadata({} if metadata is None else metadata, budget), entries


def _parse(data: bytes) -> dict[str, Any]:
    """The header's object."""
    if data[:1] != b"{":
        raise FormatError("the header does not begin with an opening brace")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise FormatError(f"the header is no JSON: {str(error)[:80]}") from None
    return dict(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, in which no key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"the header has {twice[:80]!a} twice")
    return found


def _constant(text: str) -> None:
    raise FormatError(f"the header has {text}, which is no JSON")


def _check_name(name: str, limits: Limits) -> None:
    if not _is_text(name):
        raise FormatError(f"the name {name[:80]!a} is not Unicode text")
    limits.check("max_name_bytes", len(name.encode("utf-8")), f"bytes of the name {name[:80]!a}")


def _metadata(value: object, budget: Budget) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise FormatError(f"{_METADATA} is not an object of strings")
    budget.charge("max_names", len(value), f"entries of {_METADATA}")
    for key, text in value.items():
        _check_name(key, budget.limits)
        if not _is_text(text):
            raise FormatError(f"{_METADATA}: the value of {key[:80]!a} is not Unicode text")
    return value


def _is_text(text: str) -> bool:
    """Whether there is no half of a surrogate pair, which JSON's escapes can write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, value: object, start: int, budget: Budget) -> Entry:
    """What the header says of a tensor, checked on its own; ``start`` is where items begin."""
    _check_name(name, budget.limits)
    what = f"tensor {name[:80]!a}"
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise FormatError(f"{what}: not an object of dtype, shape and data_offsets")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not (isinstance(code, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise FormatError(f"{what}: not the name of a dtype, a list of extents and two offsets")
    if code not in _TYPES:
        raise FormatError(f"{what}: dtype {code[:40]!a} is not read; there are {', '.join(_TYPES)}")
    stored, extents, (first, end) = STORED_TYPES[_TYPES[code]], tuple(shape), offsets
    elements = budget.tensor(extents, stored.itemsize, what)
    # Of empty tensors too, since arrays count that way.
    if math.prod(filter(None, extents)) * stored.itemsize > _MAX_SIZE:
        raise FormatError(f"{what}: shape {extents} is larger than any array")
    if end - first != elements * stored.itemsize:
        raise FormatError(
            f"{what}: data_offsets [{first}, {end}]; {code} of shape {list(extents)} has "
            f"{elements * stored.itemsize} bytes"
        )
    try:
        _ = stored.dtype
    except MissingDependencyError as error:
        error.args = (f"{what}: {error}",)
        raise
    return Entry(stored, extents, start + first, end - first)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= _MAX_SIZE for size in value)


def _check_places(entries: Mapping[str, Entry], start: int, size: int) -> None:
    """The items of all tensors lie one after another and fill the file."""
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != at:
            what = "overlap with another tensor's" if entry.start < at else "come after a hole"
            raise FormatError(f"tensor {name[:80]!a}: its bytes, from {entry.start - start} on, {what}")
        at += entry.nbytes
    if at != size:
        raise FormatError(f"the file has {size:,} bytes; header and tensors need {at:,}")


def _read(file: BinaryIO, name: str, entry: Entry) -> Array:
    items = np.empty(entry.shape, entry.stored.pattern.newbyteorder("<"))
    file.seek(entry.start)
    fill(file, items, f"tensor {name[:80]!a}")
    if entry.stored.kind == "b" and np.any(items > 1):
        raise FormatError(f"tensor {name[:80]!a}: a byte is neither 0 nor 1, as booleans are")
    return items.astype(entry.stored.pattern, copy=False).view(entry.stored.dtype)


# ------------------------------------------------------------------------------------------------ writing
def has_type(dtype: np.dtype[Any]) -> bool:
    """Whether the format has a type for such items."""
    return dtype.name in _CODES


def save(model: Model, path: Path, *, overwrite: bool) -> None:
    """Write the tensors and metadata of a model to a path; warns and raises as :func:`write`, and FileExistsError."""
    _warn_of_loss(model)
    with output_file(path, overwrite=overwrite) as file:
        _write(model, file)


def write(model: Model, file: BinaryIO) -> None:
    """Write the tensors and metadata of a model to a file that need not be seekable, one tensor at a time.

    A model with a topology loses it, with a FormatWarning.

    Raises
    ------
    FormatError
        The format has no such item type, a name is no text, or the metadata are not texts.
    """
    _warn_of_loss(model)
    _write(model, file)


def _warn_of_loss(model: Model) -> None:
    if model.topology is not None:
        warnings.warn("a safetensors file keeps tensors and metadata, not the topology", FormatWarning, stacklevel=4)


def _write(model: Model, file: BinaryIO) -> None:
    found = {name: _described(name, *described(model, name)) for name in model}
    names = sorted(found, key=lambda name: (_ORDER[found[name][0]], name))
    file.write(_header(model.metadata, {name: found[name] for name in names}))
    announce(model, names)
    for name in names:
        array = model.tensors[name]
        if _described(name, array.dtype, array.shape) != found[name]:
            raise FormatError(f"tensor {name[:80]!a} has changed while it was written")
        _write_items(file, array)


def _described(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """The format's name of the type, and the shape."""
    if not has_type(dtype):
        raise lacks_type(f"tensor {name[:80]!a}", dtype, NAME)
    if name == _METADATA or not _is_text(name):
        raise FormatError(f"tensor {name[:80]!a}: safetensors has no tensor of that name")
    return _CODES[dtype.name], list(shape)


def _header(metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, list[int]]]) -> bytes:
    """Size and header for tensors in this order."""
    for key, text in metadata.items():
        if not (isinstance(key, str) and isinstance(text, str) and _is_text(key + text)):
            raise FormatError(f"metadata {str(key)[:80]!a}: safetensors keeps Unicode text only")
    fields: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, (code, shape) in tensors.items():
        end = at + math.prod(shape) * STORED_TYPES[_TYPES[code]].itemsize
        fields[name] = {"dtype": code, "shape": shape, "data_offsets": [at, end]}
        at = end
    data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    data += b" " * (-len(data) % _SIZE)
    if len(data) > _MAX_HEADER:
        raise FormatError(f"a header of {len(data):,} bytes; safetensors has at most {_MAX_HEADER:,}")
    return len(data).to_bytes(_SIZE, "little") + data


def _write_items(file: BinaryIO, array: Array) -> None:
    """Write the items in row-major order, little-endian."""
    items = bit_patterns(array)
    file.write(items.astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
