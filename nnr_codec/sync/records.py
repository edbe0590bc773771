"""Records of published versions, as files of a folder and as frames of a byte stream.

A record describes one payload: a bitstream with the whole model (an anchor), or with an update of the version before.
Folders and streams have the same records. A folder has ``sync.json``, which identifies the stream, and

- ``payloads/<version>-<first digits of its SHA-256>.nnr``, written first,
- ``versions/<version>.json``: the record of each version, created under a name that must be new,
- ``anchors/<version>.json``: the record of an anchor for a version that also has an update.

A frame is ``MAGIC``, the length of the record (32 bits, little-endian), the SHA-256 of length and record, the record,
and the payload. Frames follow each other without gaps; after damage, a reader searches for the next ``MAGIC``.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..errors import FormatError, LimitError

Kind = Literal["anchor", "update"]

#: Value of "format" of ``sync.json`` and of each record, and the version of all formats of this package.
FORMAT, FORMAT_VERSION = "nnr_codec sync", 1
#: Name of the file that identifies a folder.
MARKER = "sync.json"
#: Most bytes of a record: 100 times the usual size, for large signatures.
MOST_BYTES = 1 << 16
#: First bytes of a frame; no UTF-8 text contains the first one.
MAGIC = b"\x93NNRsync"
#: Bytes of a frame before its record.
HEAD = len(MAGIC) + 4 + 32

_IDENTITY = re.compile("sha256:[0-9a-f]{64}")
_SHA256, _STREAM = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{32}")
_SIGNATURE = re.compile("([0-9a-f]{2})*")
_TIME = re.compile("[0-9T:.+-]{1,40}")
_FILE = re.compile(r"(?:(?:versions|anchors)/([1-9][0-9]{0,11})\.json|payloads/([1-9][0-9]{0,11})-[0-9a-f]{16}\.nnr)")
#: Largest version, with the digits that `_FILE` permits.
_MOST_VERSIONS = 10**12 - 1


@dataclass(frozen=True)
class Record:
    """Description of a payload.

    Parameters
    ----------
    stream : str
        Random identifier of the stream, chosen when it begins: 32 hexadecimal digits.
    version : int
        1 for the first version.
    kind : str
        ``"anchor"``: the payload is a whole model. ``"update"``: it is an update of the version before.
    sha256 : str
        SHA-256 of the payload: 64 hexadecimal digits.
    size : int
        Bytes of the payload.
    identity : str
        Identity of the model of this version; see :func:`nnr_codec.identity`.
    time : str
        Time of publication in UTC (ISO 8601). Of two byte streams, the one with the later anchor is followed.
    signature : str
        Signature of :meth:`signed_bytes` in hexadecimal digits; empty if there is none.
    """

    stream: str
    version: int
    kind: Kind
    sha256: str
    size: int
    identity: str
    time: str
    signature: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of version {self.version}"

    @property
    def payload_path(self) -> str:
        """Path of the payload in a folder."""
        return f"payloads/{self.version}-{self.sha256[:16]}.nnr"

    def signed_bytes(self) -> bytes:
        """Return the bytes to sign: the record without its signature."""
        return replace(self, signature="").to_bytes()

    def to_bytes(self) -> bytes:
        """Return the record as canonical JSON, with its digest. Raise LimitError if it has more than MOST_BYTES."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        text = _text(content | {"digest": hashlib.sha256(_text(content)).hexdigest()})
        if len(text) > MOST_BYTES:
            raise LimitError(
                f"the record has {len(text):,} bytes, more than {MOST_BYTES:,}", hint="use a shorter signature"
            )
        return text

    @classmethod
    def parse(cls, text: bytes) -> Record:
        """Parse a record. Raise FormatError."""
        content = _content(text)
        try:
            found = cls(**{key: content[key] for key in content if key not in ("format", "format_version", "digest")})
        except TypeError as error:
            raise FormatError(f"the record is malformed: {error}") from None
        texts = found.stream, found.kind, found.sha256, found.identity, found.time, found.signature
        if not all(type(text) is str for text in texts) or not all(type(n) is int for n in (found.version, found.size)):
            raise FormatError("the record is malformed: a field has the wrong type")
        if (
            not 1 <= found.version <= _MOST_VERSIONS
            or found.size < 0
            or found.kind not in ("anchor", "update")
            or (found.kind == "update" and found.version == 1)
            or not _STREAM.fullmatch(found.stream)
            or not _SHA256.fullmatch(found.sha256)
            or not _IDENTITY.fullmatch(found.identity)
            or not _TIME.fullmatch(found.time)
            or not _SIGNATURE.fullmatch(found.signature)
        ):
            raise FormatError("the record is malformed: a field has an invalid value")
        if found.to_bytes() != text:
            raise FormatError("the record is damaged: its digest does not match")
        return found


def version_path(version: int, *, anchor: bool = False) -> str:
    """Return the path of the record of a version, or of its additional anchor."""
    return f"{'anchors' if anchor else 'versions'}/{version}.json"


def version_of(path: str) -> int:
    """Return the version to which a file belongs; 0 for other files, such as the rest of a killed process."""
    found = _FILE.fullmatch(path)
    return int(found[1] or found[2]) if found else 0


def marker(stream: str) -> bytes:
    """Return the content of ``sync.json``."""
    digest = hashlib.sha256(stream.encode()).hexdigest()
    return _text({"format": FORMAT, "format_version": FORMAT_VERSION, "stream": stream, "sha256": digest})


def stream_of(text: bytes) -> str:
    """Return the stream that ``sync.json`` identifies. Raise FormatError."""
    content = _content(text)
    stream = content.get("stream")
    if type(stream) is not str or not _STREAM.fullmatch(stream):
        raise FormatError(f"{MARKER} has no valid identifier of a stream")
    if content.get("sha256") != hashlib.sha256(stream.encode()).hexdigest():
        raise FormatError(f"{MARKER} is damaged: the digest of the identifier does not match")
    return stream


def frame_head(record: bytes) -> bytes:
    """Return the bytes of a frame before its record."""
    length = struct.pack("<I", len(record))
    return MAGIC + length + hashlib.sha256(length + record).digest()


def record_in(data: bytearray, start: int) -> bytes | None:
    """Return the record of the frame at this position; None if it is not complete.

    Raises ValueError if the length or the digest is wrong.
    """
    if len(data) < start + HEAD:
        return None
    place = start + len(MAGIC)
    (length,) = struct.unpack_from("<I", data, place)
    if length > MOST_BYTES:
        raise ValueError(f"a record of {length:,} bytes")
    if len(data) < start + HEAD + length:
        return None
    record = bytes(data[start + HEAD : start + HEAD + length])
    if hashlib.sha256(data[place : place + 4] + record).digest() != data[place + 4 : start + HEAD]:
        raise ValueError("digest of a record")
    return record


def _content(text: bytes) -> dict[str, Any]:
    """Parse a JSON file of this package."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError("not a file of nnr_codec.sync")
    if content.get("format_version") != FORMAT_VERSION:
        found = content.get("format_version")
        raise FormatError(f"the file has version {found!r}; this release reads version {FORMAT_VERSION}")
    return content


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
