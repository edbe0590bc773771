"""Tar archives of NNEF containers: an index for reading, and reproducible writing.

``tarfile`` decodes and encodes single headers; this module iterates over the archive itself, because ``tarfile`` keeps
extended headers of any size in memory and recurses for each of them.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, cast

from ...errors import FormatError
from ...limits import Budget, Limits
from .tensorfile import HEADER_SIZE, read_header

_BLOCK = tarfile.BLOCKSIZE
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_MAX_EXTENDED = 1 << 20
_CHUNK = 1 << 20
# Byte ranges of header fields (POSIX 1003.1-2008, ustar).
_NAME, _SIZE, _CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
_OCTAL = re.compile(rb"([0-7]+)[ \0]*")
#: Maximum ratio of inflated to compressed bytes for files that are not tensors: texts deflate to about a tenth.
_RATIO = 32


class TarMember(NamedTuple):
    """Location of the bytes of a file in the (decompressed) archive."""

    offset: int
    size: int


class Output(NamedTuple):
    """File to be written: path, size in bytes, and a function that writes its content."""

    path: str
    size: int
    write: Callable[[BinaryIO], object]


def read_index(
    stream: io.BufferedIOBase, limits: Limits, texts: tuple[str, ...] = (), compressed: int | None = None
) -> tuple[dict[str, TarMember], dict[str, bytes]]:
    """Read the headers of a tar from its start, moving forward only.

    Parameters
    ----------
    stream : file
        The decompressed archive.
    limits : Limits
        ``max_archive_bytes``, ``max_names`` and ``max_name_bytes`` apply, and ``max_topology_bytes`` to each text.
    texts : tuple of str
        Names of files whose content is returned.
    compressed : int, optional
        Size of the compressed archive in bytes. The stream is then read to its end, and files that are neither such a
        text nor a tensor file may inflate to at most 32 times as much, or to ``max_topology_bytes``. Tensor files are
        exempt, because zeros deflate to a thousandth; no other file of a model is as large.

    Returns
    -------
    index : dict of str to TarMember
        Every file by path, without a leading ``./``.
    contents : dict of str to bytes
        Contents of the existing texts.

    Raises
    ------
    FormatError
        The archive is damaged or has a link, a device, a sparse file, an absolute path, a ``..`` or two files with the
        same name.
    LimitError
        The archive exceeds the limits.
    """
    index: dict[str, TarMember] = {}
    contents: dict[str, bytes] = {}
    others = 0  # bytes that do not belong to a model

    def skip(size: int) -> None:
        nonlocal others
        others += size
        if compressed is not None and others > _RATIO * compressed:
            limits.check("max_topology_bytes", others, "bytes of the archive that are neither text nor tensor file")

    for path, member in _walk(stream, limits):
        if path in index:
            raise FormatError(f"the archive contains {path!a} twice")
        limits.check("max_names", len(index) + 1, "files in the archive")
        index[path] = member
        if path in texts:
            limits.check("max_topology_bytes", member.size, f"bytes of {path}")
            contents[path] = _read(stream, member.size)
        elif compressed is not None and not _is_tensor(stream, member.size):
            skip(member.size)
    if compressed is not None:
        total = sum(member.size for member in index.values())
        while rest := stream.read(_CHUNK):
            total += len(rest)
            limits.check("max_archive_bytes", total, "bytes of the archive")
            skip(len(rest))
    return index, contents


def _is_tensor(stream: io.BufferedIOBase, size: int) -> bool:
    """Return whether the member at the stream position is a tensor file. Reads no byte after the member."""
    if size < HEADER_SIZE:
        return False
    try:
        read_header(stream, size, "")
    except FormatError:
        return False
    return True


def _walk(stream: io.BufferedIOBase, limits: Limits) -> Iterator[tuple[str, TarMember]]:
    """Yield every file with the stream at its content, of which the caller may read any part."""
    budget = Budget(limits)
    offset = 0
    extended: dict[str, str] = {}
    decode = _Decoder()
    while (block := stream.read(_BLOCK)) and any(block):
        header = decode(block)
        # An extended header supersedes the size (POSIX 1003.1-2008, pax).
        size = _size(extended.get("size"), header.size)
        padded = -(-size // _BLOCK) * _BLOCK
        budget.charge("max_archive_bytes", _BLOCK + padded, "bytes of the archive")
        start = offset + _BLOCK
        offset = start + padded
        if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
            if extended or size > _MAX_EXTENDED:
                raise FormatError("the archive has two extended headers for one member, or one that is too large")
            extended = _extension(header.type, _read(stream, padded)[:size])
            continue
        path = _path(extended.get("path", header.name), limits)
        extended = {}
        if header.type == tarfile.DIRTYPE and not size:
            continue
        if header.type not in _FILES or not path:
            raise FormatError(f"{path!a} in the archive is not a regular file (type {header.type!r})")
        yield path, TarMember(start, size)
        if padded:
            stream.seek(offset - 1)
            _read(stream, 1)
    if block and len(block) < _BLOCK:
        raise FormatError("the archive is truncated")


class _Header(NamedTuple):
    name: str
    size: int
    type: bytes


class _Decoder:
    """Decoder of headers with ``tarfile`` that reuses fields that equal the fields of the previous header.

    In most archives only name, size and checksum differ, which saves four fifths of the time.
    """

    def __init__(self) -> None:
        self._rest, self._sum, self._prefix = b"", 0, ""

    def __call__(self, block: bytes) -> _Header:
        rest = block[_NAME.stop : _SIZE.start] + block[_SIZE.stop : _CHECKSUM.start] + block[_CHECKSUM.stop :]
        size, checksum = _OCTAL.fullmatch(block[_SIZE]), _OCTAL.fullmatch(block[_CHECKSUM])
        name = block[_NAME].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if rest == self._rest and size and checksum:
            total = self._sum + sum(block[_NAME]) + sum(block[_SIZE])
            if int(checksum[1], 8) == total:
                return _Header(self._prefix + name, int(size[1], 8), tarfile.REGTYPE)
        try:
            found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise FormatError(f"not a tar archive, or damaged: {error}") from error
        if found.type == tarfile.REGTYPE:
            # The bytes of the checksum count as blanks.
            self._rest, self._sum, self._prefix = rest, sum(rest) + 8 * ord(" "), found.name.removesuffix(name)
        return _Header(found.name, found.size, found.type)


def _read(stream: io.BufferedIOBase, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise FormatError("the archive is truncated")
    return data


def _extension(kind: bytes, data: bytes) -> dict[str, str]:
    """Return the fields of an extended header for the next member, as in a pax header."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    fields = dict(_records(data))
    if any(key.startswith("GNU.sparse") for key in fields):
        raise FormatError("the archive contains a sparse file, which is not supported")
    if kind == tarfile.XHDTYPE:
        return fields
    if not fields.keys().isdisjoint(("path", "size")):
        raise FormatError("a global header of the archive sets a path or size, which is not supported")
    return {}


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the records ``length key=value`` of a pax header."""
    position = 0
    while position < len(data):
        digits, blank, _ = data[position : position + 9].partition(b" ")
        length = int(digits) if blank and digits.isdigit() else 0
        record = data[position : position + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) < length or not record.endswith(b"\n"):
            raise FormatError("the archive has a malformed extended header")
        yield key.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape")
        position += length


def _size(given: str | None, size: int) -> int:
    if given is not None:
        if not (given.isascii() and given.isdigit() and len(given) < 20):
            raise FormatError(f"the archive has a member with the malformed size {given[:20]!a}")
        size = int(given)
    if size < 0:
        raise FormatError(f"the archive has a member with the negative size {size}")
    return size


def _path(name: str, limits: Limits) -> str:
    """Return the path of a member without ``.`` components; empty for the folder of the archive itself."""
    limits.check("max_name_bytes", len(name), "bytes of a name in the archive")
    components = name.split("/")
    if name.startswith("/") or ".." in components or "\0" in name:
        raise FormatError(f"the archive has a member {name!a} outside its folder")
    return "/".join(component for component in components if component not in ("", "."))


def write_tar(file: BinaryIO, members: Iterable[Output]) -> None:
    """Write a tar that depends only on its members, without owners and times. The file need not be seekable."""
    total = 0
    for path, size, write in members:
        info = tarfile.TarInfo(path)
        info.size = size
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        file.write(header)
        write(file)
        padding = -size % _BLOCK
        file.write(bytes(padding))
        total += len(header) + size + padding
    file.write(bytes(2 * _BLOCK + -(total + 2 * _BLOCK) % tarfile.RECORDSIZE))


@contextlib.contextmanager
def gzipped(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a file whose content is written to ``file`` in compressed form, without name and time."""
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as stream:
        yield cast(BinaryIO, stream)
