"""File format of an UpdateState, for servers and clients that continue after a restart.

All numbers are little-endian; a *text* is its length in bytes (u32) and UTF-8; a *list* is its length (u32) and its
entries. Equal states give equal bytes::

    "NNRSTATE", version u32 (1), keep_digests u32
    list of devices, the least recently used one first:
        device_id i64 (-1: units without ids), number u64 (0: no lineage), token text
        list of tensors: name text, type text, dimensions list of u64
        list of nodes: parameter_id u64 (a text for units without ids), name text, put_node_depth u64,
            list of digests (32 bytes of SHA-256, 64 of SHA-512), lists of levels, any_sig and updates
    SHA-256 of all preceding bytes

An array is its type (u8, an index of TYPES), dimensions (list of u64) and its items; any_sig is stored as bits, the
first item in the highest bit of a byte. Nothing in a file is executed, and every count and size is checked before it
costs memory or time.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from ..bitstream.source import open_source
from ..dtypes import STORED_TYPES
from ..errors import FormatError
from ..files import output_file
from ..limits import Limits
from .lineage import Position
from .state import Digest, Key, Sender, UpdateNode, UpdateState

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream

T = TypeVar("T")
Array = npt.NDArray[Any]

MAGIC, VERSION = b"NNRSTATE", 1

#: Array types by number.
TYPES = tuple(map(np.dtype, ("<i4", "?", "<f4", "<f2", "<f8", "<i1", "<i2", "<i8")))
LEVELS, FLAGS = TYPES[0], TYPES[1]

_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
_DIGEST = sha256().digest_size


def save_state(state: UpdateState, target: str | os.PathLike[str] | BinaryIO, *, overwrite: bool = False) -> None:
    """Write a state to a file, which appears complete or not at all, or to an open binary file.

    Raises FileExistsError if the file exists, unless ``overwrite`` is true, and OSError.
    """
    if isinstance(target, (str, os.PathLike)):
        with output_file(target, overwrite=overwrite) as file:
            save_state(state, file)
        return
    digest = sha256()
    for part in _written(state):
        digest.update(part)
        target.write(part)
    target.write(digest.digest())


def load_state(source: Bitstream, limits: Limits) -> UpdateState:
    """Read the state from a file.

    Raises
    ------
    FormatError
        The file is not a state file, has another version, or is damaged.
    LimitError
        The state exceeds max_history_bytes.
    OSError
        The file cannot be read.
    """
    opened = open_source(source, limits)
    try:
        limits.check("max_history_bytes", opened.size - len(MAGIC) - _DIGEST, "bytes of the state file")
        data = opened.view(0, opened.size)
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise FormatError("not an update state file")
        body, digest = data[:-_DIGEST], data[-_DIGEST:]
        if sha256(body).digest() != digest:
            raise FormatError("the state file is damaged: its digest differs from its contents")
        return _StateReader(body[len(MAGIC) :], limits).state()
    finally:
        opened.close()


# ------------------------------------------------------------------------------------------------ writing
def _written(state: UpdateState) -> Iterator[bytes]:
    yield MAGIC + _U32.pack(VERSION) + _U32.pack(state.keep_digests) + _U32.pack(len(state.senders))
    for device, sender in state.senders.items():
        yield _I64.pack(-1 if device is None else device)
        yield from _sender(sender)


def _sender(sender: Sender) -> Iterator[bytes]:
    number, token = sender.position or Position(0, "")
    yield _U64.pack(number) + _text(token) + _U32.pack(len(sender.schema))
    for name, (shape, type_) in sender.schema.items():
        yield _text(name) + _text(type_) + _dims(shape)
    yield _U32.pack(len(sender.nodes))
    for parameter, node in sender.nodes.items():
        yield _text(parameter) if isinstance(parameter, str) else _U64.pack(parameter)
        yield _text(node.name) + _U64.pack(node.put_node_depth) + _U32.pack(len(node.digests))
        yield from (part for digest in node.digests for part in digest)
        for arrays in (node.levels, node.any_sig, node.updates):
            yield _U32.pack(len(arrays))
            for array in arrays:
                yield from _array(array)


def _array(array: Array) -> Iterator[bytes]:
    dtype = array.dtype.newbyteorder("<")
    yield bytes([TYPES.index(dtype)]) + _dims(array.shape)
    items = np.packbits(array) if dtype == FLAGS else np.ascontiguousarray(array, dtype)
    yield items.tobytes()


def _text(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


def _dims(shape: Sequence[int]) -> bytes:
    return _U32.pack(len(shape)) + b"".join(map(_U64.pack, shape))


# ------------------------------------------------------------------------------------------------ reading
class _StateReader:
    """Reader of a state file. Any deviation from the output of :func:`save_state` raises FormatError."""

    def __init__(self, data: memoryview, limits: Limits) -> None:
        self.data, self.limits, self.position = data, limits, 0
        self.nbytes = 0  # size of all arrays

    def state(self) -> UpdateState:
        version = self.number(_U32)
        if version != VERSION:
            raise FormatError(f"the state file has version {version}; only version {VERSION} is supported")
        keep_digests = self.number(_U32)
        if keep_digests > 1:
            raise self.damaged(f"keep_digests is {keep_digests}, not 0 or 1")
        state = UpdateState(keep_digests=bool(keep_digests))
        for _ in range(self.count(_I64.size)):
            device = self.number(_I64)
            if device in state.senders or (device == -1 and None in state.senders) or device < -1:
                raise self.damaged(f"device_id {device} is invalid or occurs twice")
            self.sender(state, None if device == -1 else device)
        if self.position != len(self.data):
            raise self.damaged("data follows the last sender")
        state.begin()
        return state

    def sender(self, state: UpdateState, device: int | None) -> None:
        number, token = self.number(_U64), self.text()
        tensors = self.list(_U32.size * 3, self.tensor)
        schema = dict(tensors)
        if len(schema) < len(tensors):
            name = Counter(name for name, _ in tensors).most_common(1)[0][0]
            raise self.damaged(f"tensor {name[:80]!a} occurs twice")
        state.remember(device, schema, self.limits)
        if number and device is None:
            raise self.damaged("a lineage has no device")
        if token and not number:
            raise self.damaged("a token has no lineage")
        if number and device is not None:
            state.place(device, Position(number, token), self.limits)
        for _ in range(self.count(_U64.size)):
            parameter = self.text() if device is None else self.number(_U64)
            key: Key = (device, parameter)
            if state.node(key):
                raise self.damaged(f"parameter {parameter!r} occurs twice")
            state.put(key, self.node(), self.limits)

    def tensor(self) -> tuple[str, tuple[tuple[int, ...], str]]:
        name, type_, shape = self.text(), self.text(), self.dims()
        if type_ not in STORED_TYPES:
            raise self.damaged(f"type {type_!r} is unknown")
        return name, (shape, type_)

    def node(self) -> UpdateNode:
        name, depth = self.text(), self.number(_U64)
        digests = self.list(_DIGEST, lambda: Digest(bytes(self.take(32)), bytes(self.take(64))))
        levels = self.list(1, partial(self.array, (LEVELS,)))
        any_sig = self.list(1, partial(self.array, (FLAGS,)))
        updates = self.list(1, partial(self.array, (*TYPES[:1], *TYPES[2:])))
        return UpdateNode(depth, tuple(levels), tuple(any_sig), tuple(updates), name, tuple(digests))

    def array(self, types: Sequence[np.dtype[Any]]) -> Array:
        index = self.take(1)[0]
        if index >= len(TYPES) or TYPES[index] not in types:
            raise self.damaged(f"an array has type {index}, which is not permitted here")
        dtype, shape = TYPES[index], self.dims()
        if min(shape, default=1) < 1:
            raise self.damaged(f"an array has shape {shape}")
        size = prod(shape)
        self.nbytes += size * dtype.itemsize
        self.limits.check("max_history_bytes", self.nbytes, "bytes of the state file's arrays")
        if dtype == FLAGS:
            packed = np.frombuffer(self.take(-(-size // 8)), np.uint8)
            if packed[-1] & ((1 << -size % 8) - 1):
                raise self.damaged("the bits after the last flag are not 0")
            return np.unpackbits(packed, count=size).view(bool).reshape(shape)
        items = np.frombuffer(self.take(size * dtype.itemsize), dtype)
        return items.astype(dtype.newbyteorder("=")).reshape(shape)

    # ------------------------------------------------------------------------------------------ parts
    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.position:
            raise self.damaged("the file ends early")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def count(self, least: int) -> int:
        """Read the length of a list whose entries have at least ``least`` bytes."""
        count = self.number(_U32)
        if count * least > len(self.data) - self.position:
            raise self.damaged(f"a list of {count:,} entries exceeds the file")
        return count

    def list(self, least: int, entry: Callable[[], T]) -> list[T]:
        return [entry() for _ in range(self.count(least))]

    def text(self) -> str:
        try:
            return str(self.take(self.number(_U32)), "utf-8")
        except UnicodeDecodeError:
            raise self.damaged("a string is not UTF-8") from None

    def dims(self) -> tuple[int, ...]:
        shape = tuple(self.list(_U64.size, partial(self.number, _U64)))
        self.limits.check("max_dims", len(shape), "number of dimensions")
        if prod(extent for extent in shape if extent) > Limits.NONE // 8:
            raise self.damaged(f"shape {shape} exceeds the largest possible array")
        return shape

    def damaged(self, what: str) -> FormatError:
        return FormatError(f"the state file is damaged: {what} (byte {len(MAGIC) + self.position})")
