"""Header of a safetensors file: its size (8 bytes), JSON, followed by the items of all tensors."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError, MissingDependencyError
from ...limits import Budget
from .. import is_text, lacks_type
from ..diagnosis import AGAIN, check_pointer
from ..lazy import Entry

#: Item types by the format's names, in the order of tensors in a file.
TYPES = {
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
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
CODES = {name: code for code, name in TYPES.items()}
_ORDER = {code: place for place, code in enumerate(TYPES)}

#: Maximum header size of the official library in bytes.
MAX_HEADER = 100_000_000
#: Bytes of a file that are sufficient to detect the format.
PEEK = 4096

_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_SIZE = 8  # size of the length field in bytes, and alignment of the items
_MAX_SIZE = (1 << 63) - 1
# Key in the index of shards.
_INDEX = b'"weight_map"'


def is_index(head: bytes, *, of_pickles: bool = False) -> bool:
    """Return whether a file with this beginning is an index of shards: safetensors files, or files of PyTorch."""
    # The length field has zero bytes, JSON does not.
    found = b"\0" not in head[:_SIZE] and head.lstrip()[:1] == b"{" and _INDEX in head
    return found and (b'.bin"' in head.partition(_INDEX)[2]) == of_pickles


def is_file(head: bytes, size: int) -> bool:
    """Return whether a file of this size and beginning has a header."""
    return head[_SIZE : _SIZE + 1] == b"{" and 2 <= int.from_bytes(head[:_SIZE], "little") <= size - _SIZE


# ------------------------------------------------------------------------------------------------ reading
def read_header(file: BinaryIO, budget: Budget, number: int = 0) -> tuple[dict[str, str], dict[str, Entry]]:
    """Read metadata and tensors of a file, checked against the file and the limits; ``number`` is the index of the
    file."""
    limits, size = budget.limits, file.seek(0, os.SEEK_END)
    budget.charge("max_archive_bytes", size, "bytes of the file")
    file.seek(0)
    length = int.from_bytes(file.read(_SIZE), "little")
    if size < _SIZE or length > size - _SIZE:
        check_pointer(file)
        raise FormatError(f"the file has {size:,} bytes, which is too few for its header of {length:,}")
    limits.check("max_topology_bytes", length, "bytes of the header")
    if length > MAX_HEADER:
        raise FormatError(f"the header has {length:,} bytes; at most {MAX_HEADER:,} are supported")
    fields = parse_object(file.read(length), "the header")
    metadata = fields.pop(_METADATA, None)
    budget.charge("max_names", len(fields), "tensors of the file")
    entries = {name: _entry(name, value, _SIZE + length, number, budget) for name, value in fields.items()}
    _check_places(entries, _SIZE + length, size)
    return _metadata({} if metadata is None else metadata, budget), entries


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object without repeated keys; errors are prefixed with ``what``."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
            raise FormatError(f"{what} contains {twice[:80]!a} twice")
        return found

    def constant(text: str) -> None:
        raise FormatError(f"{what} contains {text}, which is not valid JSON")

    if data[:1] != b"{":
        raise FormatError(f"{what} does not begin with an opening brace")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:  # also for numbers with thousands of digits
        raise FormatError(f"{what} is not valid JSON: {str(error)[:80]}") from None
    return dict(value)


def check_name(name: str, budget: Budget) -> None:
    """Raise FormatError for a name that is not Unicode text, LimitError for one that is too long."""
    if not is_text(name):
        raise FormatError(f"the name {name[:80]!a} is not Unicode text")
    budget.limits.check("max_name_bytes", len(name.encode("utf-8")), f"bytes of the name {name[:80]!a}")


def _metadata(value: object, budget: Budget) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise FormatError(f"{_METADATA} is not an object of strings")
    budget.charge("max_names", len(value), f"entries of {_METADATA}")
    for key, text in value.items():
        check_name(key, budget)
        if not is_text(text):
            raise FormatError(f"{_METADATA}: the value of {key[:80]!a} is not Unicode text")
    return value


def _entry(name: str, value: object, start: int, number: int, budget: Budget) -> Entry:
    """Return the entry of a tensor, checked separately; ``start`` is the offset of the items."""
    check_name(name, budget)
    what = f"tensor {name[:80]!a}"
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise FormatError(f"{what}: not an object of dtype, shape and data_offsets")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not (isinstance(code, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise FormatError(f"{what}: dtype, shape or data_offsets is malformed")
    if code not in TYPES:
        raise FormatError(f"{what}: dtype {code[:40]!a} is not supported; use one of {', '.join(TYPES)}")
    stored, extents, (first, end) = STORED_TYPES[TYPES[code]], tuple(shape), offsets
    elements = budget.tensor(extents, stored.itemsize, what)
    if end - first != elements * stored.itemsize:
        raise FormatError(
            f"{what}: data_offsets [{first}, {end}]; {code} of shape {list(extents)} requires "
            f"{elements * stored.itemsize} bytes"
        )
    try:
        _ = stored.dtype
    except MissingDependencyError as error:
        error.within(what)
        raise
    return Entry(stored.name, extents, start + first, end - first, number)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= _MAX_SIZE for size in value)


def _check_places(entries: Mapping[str, Entry], start: int, size: int) -> None:
    """Check that the items of all tensors are contiguous and fill the file."""
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != at:
            what = "overlap another tensor" if entry.start < at else "follow a gap"
            raise FormatError(f"tensor {name[:80]!a}: its bytes, from {entry.start - start} on, {what}", tensor=name)
        at += entry.nbytes
    if at != size:
        raise FormatError(
            f"the file has {size:,} bytes; header and tensors require {at:,}", hint=AGAIN if at > size else ""
        )


# Type name of the format, and shape.
Described = tuple[str, tuple[int, ...]]


def describe(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Described:
    """Return the header entry of a tensor. Raise FormatError for an unsupported dtype or name."""
    if dtype.name not in CODES:
        raise lacks_type(f"tensor {name[:80]!a}", dtype, "safetensors")
    if name == _METADATA or not is_text(name):
        raise FormatError(f"tensor {name[:80]!a}: safetensors does not permit this name", tensor=name)
    return CODES[dtype.name], shape


def size_of(tensor: Described) -> int:
    """Return the size of a tensor's items in bytes."""
    code, shape = tensor
    return math.prod(shape) * STORED_TYPES[TYPES[code]].itemsize


def in_order(tensors: Mapping[str, Described]) -> dict[str, Described]:
    """Return tensors in the order in which the official library writes them."""
    return {name: tensors[name] for name in sorted(tensors, key=lambda name: (_ORDER[tensors[name][0]], name))}


def make_header(metadata: Mapping[str, str], tensors: Mapping[str, Described]) -> bytes:
    """Return length field and header for tensors in this order.

    Raises FormatError if it is too large, or for invalid metadata.
    """
    for key, text in metadata.items():
        if not (isinstance(key, str) and isinstance(text, str) and is_text(key + text)):
            raise FormatError(f"metadata {str(key)[:80]!a}: safetensors can store only Unicode text")
    fields: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        end = at + size_of(tensor)
        fields[name] = {"dtype": tensor[0], "shape": list(tensor[1]), "data_offsets": [at, end]}
        at = end
    data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    data += b" " * (-len(data) % _SIZE)
    if len(data) > MAX_HEADER:
        raise FormatError(f"the header would have {len(data):,} bytes; safetensors permits at most {MAX_HEADER:,}")
    return len(data).to_bytes(_SIZE, "little") + data
