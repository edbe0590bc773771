"""Writing of checkpoints: tensor items in sequence, and a table with their locations."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES, bit_patterns
from ...errors import FormatError
from ...model import Array, Model
from .. import FormatWarning, announce, described, is_text, lacks_type
from ..companion_files import from_metadata
from ..protobuf import FIXED32, VARINT, message, varint
from .bundle import MAGIC, STRING, TYPES
from .checksum import crc32c, masked

_FORMAT = "tensorflow"
_STRING = "tensorflow:string:"
_STRINGS = "tensorflow:strings"
_NUMBERS = {name: code for code, name in TYPES.items()}
#: Size of a table block in bytes, and number of entries between complete keys.
_BLOCK, _RESTART = 262_144, 16
_MAX_RANK = 32

#: The object graph, which TensorFlow writes last.
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"

Strings = dict[str, tuple[tuple[int, ...], list[bytes]]]


@dataclass(frozen=True)
class CheckpointPlan:
    """Data other than the tensors: files by name, and string tensors."""

    files: Mapping[str, bytes]
    strings: Strings


def plan(model: Model, *, keeps_all: bool) -> CheckpointPlan:
    """Plan a checkpoint; warn of metadata that is lost unless ``keeps_all``.

    Raises FormatError for tensors or metadata that cannot be written.
    """
    files, strings = from_metadata(_FORMAT, model.metadata), strings_from_metadata(model.metadata)
    for name in model:
        dtype = described(model, name)[0]
        if dtype.name not in TYPES.values():
            raise lacks_type(f"tensor {name[:80]!a}", dtype, _FORMAT)
        if name in strings:
            raise FormatError(f"tensor {name[:80]!a}: the name occurs twice", tensor=name)
        if not name or not _is_text(name):
            raise FormatError(f"tensor {name[:80]!a}: a checkpoint does not permit this name; rename it", tensor=name)
    lost = []
    if not keeps_all:
        lost = ["the topology"] * (model.topology is not None) + ["files beside the variables"] * bool(files)
    if any(not key.startswith(f"{_FORMAT}:") for key in model.metadata):
        lost.append("metadata")
    if model.aliases and model.format != _FORMAT:  # its own ties are found again
        lost.append("ties (tied tensors are written separately)")
    if lost:
        warnings.warn(f"left out: {', '.join(lost)}", FormatWarning, stacklevel=4)
    return CheckpointPlan(files, strings)


def write(model: Model, plan: CheckpointPlan, items: BinaryIO, table: BinaryIO) -> None:
    """Write a data file and a table, one tensor at a time, string tensors last."""
    announce(model, list(model))
    entries = {"": field(1, 1) + field(3, field(1, 1))}  # BundleHeaderProto: one data file, version 1
    at = 0
    for name in [*model, *sorted(plan.strings, key=lambda name: (name == _OBJECTS, name))]:
        kind, shape, parts = _string_parts(*plan.strings[name]) if name in plan.strings else _parts(model.tensors[name])
        start, crc = at, 0
        for part, counted in parts:
            items.write(part)
            at += len(part)
            crc = crc32c(counted, crc)
        extents = b"".join(field(2, field(1, extent) * (extent > 0)) for extent in shape)
        place = field(4, start) * bool(start) + field(5, at - start) * (at > start)
        entries[name] = field(1, kind) + field(2, extents) + place + field32(6, masked(crc))
    _write_table(entries, table)


def field(number: int, value: int | bytes) -> bytes:
    """Return a field with a number or a message."""
    return message(number, value) if isinstance(value, bytes) else varint(number << 3 | VARINT) + varint(value)


def field32(number: int, value: int) -> bytes:
    """Return a field with a 32-bit number."""
    return varint(number << 3 | FIXED32) + value.to_bytes(4, "little")


_Parts = Iterator[tuple[bytes | memoryview, bytes | memoryview]]  # written data, and data for the checksum


def _parts(array: Array) -> tuple[int, tuple[int, ...], _Parts]:
    """Return type, shape and items of a tensor."""
    array = np.asarray(array)
    patterns = bit_patterns(array)
    if (bits := STORED_TYPES[array.dtype.name].bits) in (2, 4):
        patterns &= patterns.dtype.type((1 << bits) - 1)  # without sign extension
    data = patterns.astype(patterns.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
    return _NUMBERS[array.dtype.name], array.shape, iter([(data, data)])


def _string_parts(shape: tuple[int, ...], texts: list[bytes]) -> tuple[int, tuple[int, ...], _Parts]:
    """Return type, shape and items of a string tensor: lengths, a checksum of the lengths, and the strings."""
    lengths = b"".join(map(varint, map(len, texts)))
    counted = b"".join(len(text).to_bytes(4, "little") for text in texts)
    check = masked(crc32c(counted)).to_bytes(4, "little")
    return STRING, shape, iter([(lengths, counted), (check, check), *((text, text) for text in texts)])


def _write_table(entries: Mapping[str, bytes], table: BinaryIO) -> None:
    """Write a table of these entries, whose names are sorted as bytes."""
    index, at = {}, 0

    def add(block: bytes) -> bytes:
        """Write a block with its trailer and return its handle."""
        nonlocal at
        data = block + b"\0"
        table.write(data + masked(crc32c(data)).to_bytes(4, "little"))
        place = varint(at) + varint(len(block))
        at += len(data) + 4
        return place

    pairs = sorted((name.encode(), entry) for name, entry in entries.items())
    while pairs:
        sizes = accumulate(len(key) + len(entry) for key, entry in pairs)
        count = sum(size < _BLOCK for size in sizes) or 1
        index[pairs[count - 1][0]] = add(_block(pairs[:count]))
        pairs = pairs[count:]
    last, place = index.popitem()
    index[bytes(byte + 1 for byte in last[:1])] = place  # a short key after all others; UTF-8 has no byte 255
    footer = add(_block([])) + add(_block(list(index.items())))
    table.write(footer.ljust(40, b"\0") + MAGIC)


def _block(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Return a block of keys and values; each key omits the prefix that it shares with the previous one."""
    data, restarts, before = bytearray(), [0], b""
    for count, (key, value) in enumerate(pairs):
        shared = 0
        if count and count % _RESTART == 0:
            restarts.append(len(data))
        elif count:
            pairwise = enumerate(zip(before, key, strict=False))
            shared = next((place for place, (one, other) in pairwise if one != other), min(len(before), len(key)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return bytes(data) + b"".join(place.to_bytes(4, "little") for place in [*restarts, len(restarts)])


def strings_as_metadata(strings: Strings) -> dict[str, str]:
    """Convert string tensors to metadata, with one character per byte: a scalar by its name, others as shape and
    strings."""
    scalars = {_STRING + name: texts[0].decode("latin-1") for name, (shape, texts) in strings.items() if shape == ()}
    rest = {
        name: [list(shape), [text.decode("latin-1") for text in texts]]
        for name, (shape, texts) in strings.items()
        if shape != ()
    }
    return scalars | ({_STRINGS: json.dumps(rest, ensure_ascii=False, separators=(",", ":"))} if rest else {})


def strings_from_metadata(metadata: Mapping[str, str]) -> Strings:
    """Restore string tensors from metadata. Raise FormatError if the metadata is malformed."""
    scalars = {key.removeprefix(_STRING): [[], [text]] for key, text in metadata.items() if key.startswith(_STRING)}
    error = FormatError(f"metadata {_STRINGS!r} is malformed or repeats a name")
    try:
        found = json.loads(metadata.get(_STRINGS, "{}"))
    except (ValueError, RecursionError):
        raise error from None
    if not isinstance(found, dict) or found.keys() & scalars.keys():
        raise error
    strings: Strings = {}
    for name, value in (found | scalars).items():
        if not name or not _is_text(name) or not isinstance(value, list) or len(value) != 2:
            raise error
        shape, texts = value
        if not isinstance(shape, list) or not isinstance(texts, list) or len(shape) > _MAX_RANK:
            raise error
        if any(type(extent) is not int or not 0 <= extent <= len(texts) for extent in shape):
            raise error
        try:
            strings[name] = tuple(shape), [text.encode("latin-1") for text in texts]
        except (AttributeError, UnicodeEncodeError):
            raise error from None
        if math.prod(shape) != len(texts):
            raise error
    return strings


def _is_text(name: str) -> bool:
    return "\0" not in name and is_text(name)
