"""The files of ``torch.save``: zip archives, and where the items of tensors lie in them.

PyTorch sees only the pickle of an archive, in one of our own whose storages are empty; items are read here.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from ...dtypes import STORED_TYPES
from ...errors import FormatError, NnrError
from ...limits import Budget, Limits
from ...model import Array
from .. import fill
from ..lazy import Entry, native
from ..zips import ZIP_ERRORS, directory_size, may_hold
from .structure import View

_PICKLE = "data.pkl"
_KEY = re.compile(r"data/([0-9]{1,20})")
# What torch.save writes, or has written; what begins with a dot is about the archive.
_WRITTEN = re.compile(r"data\.pkl|version|byteorder|\..*|data/[0-9]{1,20}", re.DOTALL)
_LOCAL = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class StridedEntry(Entry):
    """Where the items of a tensor are, in any order.

    Parameters
    ----------
    stride : tuple of int
        In items; empty for those in row-major order.
    big : bool
        The first byte of an item is its highest.
    """

    stride: tuple[int, ...] = ()
    big: bool = False

    def read(self, file: BinaryIO, what: str) -> Array:
        """The tensor; raises as that of any entry."""
        stored = STORED_TYPES[self.type]
        pattern = stored.pattern.newbyteorder(">" if self.big else "<")
        items = np.empty(self.nbytes // stored.itemsize if self.stride else self.shape, pattern)
        file.seek(self.start)
        fill(file, items, what)
        if self.stride:
            strides = [step * stored.itemsize for step in self.stride]
            items = np.ascontiguousarray(np.lib.stride_tricks.as_strided(items, self.shape, strides))
        return native(items, self.type, what)


def entry_of(view: View, start: int, *, big: bool) -> StridedEntry:
    """Where the items of a view are, if its storage begins at a byte of the file."""
    first, stop = view.bytes
    stride = () if view.is_contiguous else view.stride
    return StridedEntry(view.stored.name, view.shape, start + first, stop - first, stride=stride, big=big)


# ------------------------------------------------------------------------------------------------ archives
@dataclass(frozen=True)
class Archive:
    """An archive whose members have been checked.

    Parameters
    ----------
    file : binary file
    size : int
    pickle : bytes
    big : bool
        Items have their highest byte first.
    storages : mapping of str to ZipInfo
    others : tuple of str
        Members that ``torch.save`` does not write.
    """

    file: BinaryIO
    size: int
    pickle: bytes
    big: bool
    storages: Mapping[str, zipfile.ZipInfo]
    others: tuple[str, ...]
    _places: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)

    def place(self, key: str) -> tuple[int, int]:
        """The first byte of a storage, and how many there are; FormatError unless they are in the file as they are."""
        if key in self._places:
            return self._places[key]
        info, what = self.storages[key], f"storage {key}"
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise FormatError(f"{what} is compressed or encrypted, which torch.save does not")
        self.file.seek(info.header_offset)
        local = self.file.read(_LOCAL.size)
        if len(local) < _LOCAL.size or not local.startswith(b"PK\3\4"):
            raise FormatError(f"{what} is not where the archive says")
        _, name, extra = _LOCAL.unpack(local)
        start = info.header_offset + _LOCAL.size + name + extra
        if start + info.file_size > self.size:
            raise FormatError(f"{what} ends beyond the end of the file")
        self._places[key] = start, int(info.file_size)
        return self._places[key]

    def skeleton(self) -> tuple[io.BytesIO, dict[int, str]]:
        """An archive of the same pickle with empty storages, and their keys by where they are in it."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in ((_PICKLE, self.pickle), ("version", b"3\n"), ("byteorder", b"little")):
                archive.writestr(f"archive/{name}", data)
            for key in self.storages:
                archive.writestr(zipfile.ZipInfo(f"archive/data/{key}"), b"")  # of a name, zipfile asks for the time
            places = {
                info.header_offset + _LOCAL.size + len(info.orig_filename): info.orig_filename.rpartition("/")[2]
                for info in archive.infolist()
            }
        file.seek(0)
        return file, places


def is_archive(file: BinaryIO) -> bool:
    """Whether this is a zip archive with a pickle where PyTorch looks for it; of files of any size and content."""
    size = file.seek(0, os.SEEK_END)
    try:
        _check_directory(file, size, Limits())
        if not may_hold(file, _PICKLE):
            return False
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
        It is damaged, has members of one name, or no pickle.
    LimitError
        It asks for more than the limits permit.
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
                    raise FormatError(f"the archive has two members {name[:80]!a}")
                members[name] = info
            pickle = _member(archive, members, _PICKLE, limits.max_topology_bytes, limits)
            order = _member(archive, members, "byteorder", 8, limits) if "byteorder" in members else b"little"
    except NnrError:
        raise
    except ZIP_ERRORS as error:
        raise FormatError(f"not a zip archive, or a damaged one: {str(error)[:200]}") from None
    if order not in (b"little", b"big"):
        raise FormatError(f"the bytes of items are in order {order!a}")
    storages = {match[1]: info for name, info in members.items() if (match := _KEY.fullmatch(name))}
    others = tuple(name for name in members if not _WRITTEN.fullmatch(name))
    return Archive(file, size, pickle, order == b"big", storages, others)


def _member(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, most: int, limits: Limits
) -> bytes:
    if name not in members:
        raise FormatError(f"the archive has no {name}, as torch.save writes")
    if members[name].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(f"{name} is compressed in a way that PyTorch does not read")
    limits.check("max_topology_bytes", members[name].file_size, f"bytes of {name}")
    with archive.open(members[name]) as member:
        # What it says of its size need not be so.
        data = member.read(most + 1)
    if len(data) > most:
        raise FormatError(f"{name} has more than {most:,} bytes")
    return data


def _check_directory(file: BinaryIO, size: int, limits: Limits) -> None:
    """Check the size of the archive's directory, which is read whole, and takes some ten times as much."""
    length = directory_size(file, size)
    limits.check("max_topology_bytes", length, "bytes of the archive's directory")
