"""Files of ``torch.save``: zip archives, the old format, and the location of tensor items in them."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError, NnrError
from ...limits import Budget, Limits
from ...model import Array
from .. import fill
from ..diagnosis import AGAIN
from ..lazy import Entry, native
from ..zips import ZIP_ERRORS, directory_size, may_hold
from .items import TYPES
from .pickles import Leaf, PickledContainer, TensorRef, read_pickle
from .structure import View

#: Start of files written before PyTorch 1.6: the pickle of a magic number.
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

_PICKLE = "data.pkl"
_KEY = re.compile(r"data/([0-9]{1,20})")
# Members that torch.save writes or wrote; names with a leading dot are metadata of the archive.
_WRITTEN = re.compile(r"data\.pkl|version|byteorder|\..*", re.DOTALL)
_LOCAL = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class StridedEntry(Entry):
    """Location of the items of a tensor, in any order.

    Parameters
    ----------
    stride : tuple of int
        Stride in items; empty for row-major order.
    big : bool
        True for big-endian items.
    """

    stride: tuple[int, ...] = ()
    big: bool = False

    def read(self, file: BinaryIO, what: str) -> Array:
        """Read the tensor; raises the errors of any entry."""
        stored = STORED_TYPES[self.type]
        pattern = stored.pattern.newbyteorder(">" if self.big else "<")
        items = np.empty(self.nbytes // stored.itemsize if self.stride else self.shape, pattern)
        file.seek(self.start)
        fill(file, items, what)
        if self.stride:
            strides = [step * stored.itemsize for step in self.stride]
            items = np.ascontiguousarray(np.lib.stride_tricks.as_strided(items, self.shape, strides))
        return native(items, self.type, what)


def entry_of(view: View, *, big: bool) -> StridedEntry:
    """Return the location of the items of a view."""
    stride = () if view.is_contiguous else view.stride
    start = cast(int, view.storage) + view.start
    return StridedEntry(view.stored.name, view.shape, start, view.stop - view.start, stride=stride, big=big)


def view_of(place: Callable[[str], tuple[int, int]], value: Any, what: str) -> View | Leaf:
    """Return the view of a tensor, for :func:`.structure.walk`; ``place`` locates a storage by its key."""
    if type(value) is Leaf:
        return value
    if type(value) is not TensorRef:
        raise FormatError(f"{what} is a storage, a storage type or a function, which is not supported")
    if value.type not in TYPES:
        raise FormatError(f"{what} has type torch.{value.type}, which is not supported")
    stored = STORED_TYPES[value.type]
    start, size = place(value.key)
    if size != value.nbytes:
        raise FormatError(f"storage {value.key[:40]!a} has {size:,} bytes; the pickle says {value.nbytes:,}")
    if value.requires_grad and stored.kind != "f":
        raise FormatError(f"{what} has type torch.{value.type} but requires gradients")
    return View.of(
        start,
        stored,
        value.shape,
        value.stride,
        value.requires_grad,
        value.is_parameter,
        offset=value.offset,
        size=size,
        what=what,
    )


# ------------------------------------------------------------------------------------------------ the old format
def read_legacy(file: BinaryIO, limits: Limits) -> tuple[object, dict[str, tuple[int, int]]]:
    """Read a file from before PyTorch 1.6; return its content, and offset and size of each storage in bytes.

    Raises
    ------
    FormatError
        The file is damaged, or its pickles have contents that :func:`.pickles.read_pickle` rejects.
    LimitError
        The file exceeds the limits.
    """
    size = file.seek(0, os.SEEK_END)
    limits.check("max_archive_bytes", size, "bytes of the file")
    file.seek(0)
    data, budget = file.read(min(size, limits.max_topology_bytes)), Budget(limits)
    version = read_pickle(data, len(LEGACY), budget)
    machine = read_pickle(data, version.end, budget)
    content = read_pickle(data, machine.end, budget)
    keys = read_pickle(data, content.end, budget)
    if version.value != 1001 or type(keys.value) is not PickledContainer or keys.value.kind != "list":
        raise FormatError("the file must have version 1001 and a list of storages")
    places: dict[str, tuple[int, int]] = {}
    at = keys.end
    for key in keys.value:
        if type(key) is not str or key not in content.storages:
            raise FormatError(f"storage {str(key)[:40]!a} is unknown to the pickle")
        if key in places:
            raise FormatError(f"storage {key[:40]!a} occurs twice")
        file.seek(at)
        nbytes = int.from_bytes(file.read(8), "little") * content.storages[key][1]
        places[key] = at + 8, nbytes
        at += 8 + nbytes
        if at > size:
            raise FormatError(f"storage {key[:40]!a} ends beyond the end of the file", hint=AGAIN)
    if missing := content.storages.keys() - places.keys():
        raise FormatError(f"the file has no storage {min(missing)[:40]!a}")
    return content.value, places


# ------------------------------------------------------------------------------------------------ archives
@dataclass(frozen=True)
class Archive:
    """Archive whose members were checked.

    Parameters
    ----------
    file : binary file
    size : int
    pickle : bytes
    big : bool
        True for big-endian items.
    storages : mapping of str to (int, int, bool)
        Offset of the local header, size in bytes, and whether it is uncompressed, for each storage.
    others : tuple of str
        Members that ``torch.save`` does not write.
    places : dict
        Requested storages, with the results of :meth:`place`.
    """

    file: BinaryIO
    size: int
    pickle: bytes
    big: bool
    storages: Mapping[str, tuple[int, int, bool]]
    others: tuple[str, ...]
    places: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)

    def place(self, key: str) -> tuple[int, int]:
        """Return offset and size of a storage in bytes. Raise FormatError if it is compressed or encrypted."""
        if key in self.places:
            return self.places[key]
        if key not in self.storages:
            raise FormatError(f"the archive has no storage {key[:40]!a}")
        (header, size, is_plain), what = self.storages[key], f"storage {key}"
        if not is_plain:
            raise FormatError(f"{what} is compressed or encrypted, which torch.save never does")
        self.file.seek(header)
        local = self.file.read(_LOCAL.size)
        if len(local) < _LOCAL.size or not local.startswith(b"PK\3\4"):
            raise FormatError(f"{what} is not at its declared offset")
        _, name, extra = _LOCAL.unpack(local)
        start = header + _LOCAL.size + name + extra
        if start + size > self.size:
            raise FormatError(f"{what} ends beyond the end of the file")
        self.places[key] = start, size
        return self.places[key]


def is_archive(file: BinaryIO) -> bool:
    """Return whether the source is a zip archive with a pickle at PyTorch's place; safe for any file."""
    size = file.seek(0, os.SEEK_END)
    try:
        _check_directory(file, size, Limits())
        if not may_hold(file, _PICKLE):
            return False
        file.seek(0)
        local = file.read(_LOCAL.size)
        name = file.read(_LOCAL.unpack(local)[1])
        if local.startswith(b"PK\3\4") and name.partition(b"/")[2] == _PICKLE.encode():
            return True  # the layout of torch.save; zipfile is slow with many tensors
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            return bool(names) and f"{names[0].partition('/')[0]}/{_PICKLE}" in names
    except ZIP_ERRORS:  # also LimitError
        return False


def open_archive(file: BinaryIO, limits: Limits) -> Archive:
    """Check the members of an archive and read its pickle.

    Raises
    ------
    FormatError
        The archive is damaged, repeats a member, or has no pickle.
    LimitError
        The archive exceeds the limits.
    """
    size = file.seek(0, os.SEEK_END)
    limits.check("max_archive_bytes", size, "bytes of the file")
    _check_directory(file, size, limits)
    budget = Budget(limits)
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            budget.charge("max_names", len(infos), "members of the archive")
            root = infos[0].orig_filename.partition("/")[0] if infos else ""
            members: dict[str, zipfile.ZipInfo] = {}
            for info in infos:
                budget.charge("max_archive_bytes", info.file_size, "bytes of the members of the archive")
                name = info.orig_filename.removeprefix(f"{root}/")
                if not 0 <= info.header_offset <= size:
                    raise FormatError(f"the member {name[:80]!a} begins beyond the end of the file")
                if name in members:
                    raise FormatError(f"the archive contains {name[:80]!a} twice")
                members[name] = info
            pickle = _member(archive, members, _PICKLE, limits.max_topology_bytes, limits)
            order = _member(archive, members, "byteorder", 8, limits) if "byteorder" in members else b"little"
    except NnrError:
        raise
    except ZIP_ERRORS as error:
        raise FormatError(f"not a zip archive, or damaged: {str(error)[:200]}") from None
    if order not in (b"little", b"big"):
        raise FormatError(f"unknown byte order {order!a}")
    storages, others = {}, []
    for name, info in members.items():
        if match := _KEY.fullmatch(name):
            is_plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
            storages[match[1]] = info.header_offset, info.file_size, is_plain and not info.flag_bits & 1
        elif not _WRITTEN.fullmatch(name):
            others.append(name)
    return Archive(file, size, pickle, order == b"big", storages, tuple(others))


def _member(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, most: int, limits: Limits
) -> bytes:
    if name not in members:
        raise FormatError(f"the archive has no {name}, which torch.save writes")
    if members[name].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(f"{name} is compressed in a way that PyTorch does not read")
    limits.check("max_topology_bytes", members[name].file_size, f"bytes of {name}")
    with archive.open(members[name]) as member:
        # The size in the archive is not trusted.
        data = member.read(most + 1)
    if len(data) > most:
        raise FormatError(f"{name} has more than {most:,} bytes")
    return data


def _check_directory(file: BinaryIO, size: int, limits: Limits) -> None:
    """Check the size of the archive's directory, because parsing it takes about ten times its size in memory."""
    length = directory_size(file, size)
    limits.check("max_topology_bytes", length, "bytes of the archive's directory")
