"""Attachments: other files of a model, such as ``config.json`` (docs/reference/side-information.md#attachments).

An NNR_TPL unit of topology_storage_format 129, which the standard leaves unspecified, carries a file. Its data are a
line of canonical JSON with the name, the bytes of the file, deflated if that is smaller, and a zero byte. The file of
tensors has a unit with its name alone. Decoders without support skip these units.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..constants import NNR_PT_RAW, NNR_TPL
from ..errors import ElementError, FormatError, UnsupportedError
from ..files import AttachmentNames
from ..limits import Budget
from ..rules import Requirement
from ..syntax import Session
from ..syntax.structures import NnrTopologyUnitHeader, NnrTopologyUnitPayload
from .source import Span
from .topology_units import DEFLATED_BYTES, write_topology

if TYPE_CHECKING:
    from .units import Unit

#: topology_storage_format of a unit with an attachment.
STORAGE_FORMAT = 129
#: First bytes of the data.
MAGIC = b'{"attachment":'
#: Values of ``coding``: bytes as they are, deflated bytes (RFC 1950), or no bytes: the name of the file of tensors.
STORED, DEFLATE, TENSORS = "", "deflate", "tensors"

_MAX_HEADER = 2048  # bytes: each byte of a name takes up to 6 in JSON


@dataclass(frozen=True)
class Attachment:
    """Header of an attachment.

    Parameters
    ----------
    name : str
        Relative path; slashes separate folders.
    size : int
        Size of the file in bytes.
    coding : str
        Form of the bytes in the unit: STORED, DEFLATE, TENSORS, or a value unknown to this version.
    """

    name: str
    size: int = 0
    coding: str = STORED

    def to_bytes(self) -> bytes:
        """Return the first line of the data."""
        fields: dict[str, str | int] = {"attachment": self.name}
        fields |= {"bytes": self.size} if self.size else {}
        fields |= {"coding": self.coding} if self.coding else {}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Attachment:
        """Return the header at the beginning of the data, without looking at the bytes of the file."""
        line = data[: data.find(b"\n", 0, _MAX_HEADER) + 1]
        try:
            fields = json.loads(line)
            found = cls(fields["attachment"], fields.get("bytes", 0), fields.get("coding", STORED))
            is_header = isinstance(found.name, str) and type(found.size) is int and isinstance(found.coding, str)
        except (ValueError, KeyError, RecursionError):
            is_header = False
        if not is_header or found.size < 0 or found.to_bytes() != line:
            raise ElementError("the attachment has no canonical header", rule=Requirement.ATTACHMENT)
        rest = len(data) - len(line) - 1
        if data[-1:] != b"\0" or rest < 0:
            raise ElementError("the attachment does not end with a zero byte", rule=Requirement.ATTACHMENT)
        if (found.coding == STORED and rest != found.size) or (found.coding == TENSORS and (rest or found.size)):
            raise ElementError(
                f"the attachment has {rest:,} bytes; its header says {found.size:,}", rule=Requirement.ATTACHMENT
            )
        return found


def attachment_data(unit: Unit) -> bytes | None:
    """Return the data of a unit with an attachment; None for any other unit."""
    if unit.header.nnr_unit_type != NNR_TPL:
        return None
    header = cast(NnrTopologyUnitHeader, unit.header.detail)
    if (header.topology_storage_format, header.topology_compression_format) != (STORAGE_FORMAT, NNR_PT_RAW):
        return None
    data: bytes = cast(NnrTopologyUnitPayload, unit.structure).topology_data
    return data if data.startswith(MAGIC) else None


def content(data: bytes) -> bytes:
    """Return the bytes of the file in the data of a unit.

    Raises ElementError if the data are malformed, and UnsupportedError for an unknown coding.
    """
    header = Attachment.parse(data)
    coded = data[data.index(b"\n") + 1 : -1]
    if header.coding != DEFLATE:
        if header.coding not in (STORED, TENSORS):
            raise UnsupportedError(
                f"attachment {header.name!a} has the unknown coding {header.coding[:80]!a}", rule=Requirement.ATTACHMENT
            )
        return coded
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(coded, header.size + 1)
    except zlib.error as error:
        raise ElementError(
            f"attachment {header.name!a}: deflated data is damaged: {error} (RFC 1950)", rule=Requirement.ATTACHMENT
        ) from None
    if len(found) != header.size or not inflater.eof or inflater.unused_data:
        raise ElementError(
            f"attachment {header.name!a} does not inflate to exactly {header.size:,} bytes", rule=Requirement.ATTACHMENT
        )
    return found


def write_attachment(name: str, data: bytes, session: Session) -> bytes:
    """Return the unit with a file."""
    deflated = zlib.compress(data, 9) if len(data) >= DEFLATED_BYTES or b"\0" in data else data
    coding, coded = (DEFLATE, deflated) if len(deflated) < len(data) else (STORED, data)
    return write_topology(
        session, STORAGE_FORMAT, topology_data=Attachment(name, len(data), coding).to_bytes() + coded + b"\0"
    )


def write_file_name(name: str, session: Session) -> bytes:
    """Return the unit with the name of the file of tensors."""
    return write_topology(session, STORAGE_FORMAT, topology_data=Attachment(name, 0, TENSORS).to_bytes() + b"\0")


class Attachments(Mapping[str, bytes]):
    """Files in the attachments of a bitstream by name, inflated on access.

    Attributes
    ----------
    sizes : dict of str to int
        Size of each file in bytes.
    coded_sizes : dict of str to int
        Size of its unit in bytes.
    file_name : str
        Name of the file of tensors; empty if the bitstream does not state it.
    """

    def __init__(self, budget: Budget) -> None:
        self.sizes: dict[str, int] = {}
        self.coded_sizes: dict[str, int] = {}
        self.file_name = ""
        self._budget, self._names = budget, AttachmentNames()
        self._data: dict[str, tuple[Span | memoryview, int]] = {}

    def take(self, unit: Unit) -> bool:
        """Add the file of a unit, without inflating it; return whether the unit has one.

        Raises ElementError for a malformed header, an invalid name, or a name that collides with another one, and
        LimitError beyond the limits.
        """
        if (data := attachment_data(unit)) is None:
            return False
        found = Attachment.parse(data)
        try:
            self._names.add(found.name)
        except FormatError as error:
            raise ElementError(f"attachment: {error.message}", rule=Requirement.ATTACHMENT) from None
        if found.coding == TENSORS:
            if self.file_name:
                raise ElementError("the bitstream names two files of tensors", rule=Requirement.ATTACHMENT)
            self.file_name = found.name
            return True
        self._budget.charge("max_attachments", 1, "attachments of the bitstream")
        self._budget.charge("max_attachment_bytes", found.size, "bytes of the attachments")
        self.sizes[found.name], self.coded_sizes[found.name] = found.size, unit.size.nnr_unit_size
        self._data[found.name] = unit.raw, unit.payload_offset
        return True

    def __getitem__(self, name: str) -> bytes:
        raw, start = self._data[name]
        return content(bytes((raw.view() if isinstance(raw, Span) else raw)[start:]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)
