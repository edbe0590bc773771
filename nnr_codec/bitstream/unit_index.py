"""Index of units: copies of the headers of all following units, in one unit near the start of a bitstream.

A reader that has the index lists all tensors without reading between their payloads, and knows the position and size of
each unit. It is an extension of this project (docs/reference/unit-index.md). Positions follow from the sizes in the
headers, so that an index cannot refer to bytes outside the bitstream.
"""

from __future__ import annotations

import base64
import struct
import zlib
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import cast

import numpy as np

from ..constants import NNR_AGG, NNR_NDU, NNR_TPL
from ..errors import ElementError
from ..limits import Budget, Limits
from ..rules import Requirement
from ..syntax import Session
from ..syntax.structures import NnrTopologyUnitHeader, NnrTopologyUnitPayload
from .topology_units import inflate, write_topology
from .units import Unit, UnitReader

#: topology_storage_format of an index; Table 4 leaves it unspecified.
STORAGE_FORMAT = 130

#: First bytes of the data of an index; data that begins differently belongs to another application, and is ignored.
MAGIC = b"nnr_codec index 1 "

#: Units without a tensor up to this size, in bytes, are copied whole: layer parameter sets, which a list requires.
WHOLE = 4096


class UnitIndex:
    """Positions of units and copies of their first bytes.

    Parameters
    ----------
    start : int
        Offset of the first listed unit, in bytes.
    copies : list of bytes
        The first bytes of each unit.

    Attributes
    ----------
    positions : list of int
        Offset of each unit.
    first : int
        Offset of the first compressed data unit or aggregate.
    stop : int
        End of the last unit.
    """

    def __init__(self, start: int, copies: list[bytes]) -> None:
        self.start = position = self.first = start
        self.positions, self._copies, before = list[int](), copies, True
        for copy in copies:
            self.positions.append(position)
            fixed = 2 + 2 * (copy[0] >> 7) if copy else 1
            if len(copy) <= fixed:
                raise _error(f"its entry {len(self.positions) - 1} has no unit type")
            size, kind = int.from_bytes(copy[:fixed], "big") & (1 << 8 * fixed - 1) - 1, copy[fixed] >> 2
            if len(copy) > size:
                raise _error(f"its entry {len(self.positions) - 1} has more bytes than the unit")
            before = before and kind not in (NNR_NDU, NNR_AGG)
            position += len(copy) if kind == NNR_AGG else size
            if before:
                self.first = position
        self.stop = position

    def copy_at(self, position: int) -> bytes:
        """Return the copy of the unit that begins at ``position``; empty if there is none."""
        place = bisect_right(self.positions, position) - 1
        return self._copies[place] if place >= 0 and self.positions[place] == position else b""

    def unit_at(self, position: int) -> int:
        """Return the offset of the innermost listed unit that contains ``position``."""
        place = bisect_right(self.positions, position) - 1
        return self.positions[place] if place >= 0 else position

    def check_unit(self, position: int, header: memoryview) -> None:
        """Raise ElementError unless the unit at ``position``, which begins with ``header``, is listed like this."""
        if position < self.start:
            return
        copy = self.copy_at(position)
        if not copy:
            raise _error(f"it lists no unit at byte {position:,}")
        if header[: len(copy)] != copy[: len(header)]:
            raise _contradiction(position)

    def check(self, start: int, data: bytes | memoryview) -> None:
        """Raise ElementError if ``data``, at offset ``start``, contradicts a copy."""
        for place in range(max(bisect_right(self.positions, start) - 1, 0), len(self.positions)):
            position, copy = self.positions[place], self._copies[place]
            if position >= start + len(data):
                return
            skip = max(start - position, 0)  # the unit may begin before the data
            part = data[position + skip - start : position + len(copy) - start] if skip < len(copy) else b""
            if part != copy[skip : skip + len(part)]:
                raise _contradiction(position)


def _error(why: str) -> ElementError:
    return ElementError(f"the index is invalid: {why}", rule=Requirement.INDEX)


def _contradiction(position: int) -> ElementError:
    return ElementError(
        f"the index contradicts the header of the unit at byte {position:,}",
        hint="the file was changed after the index was written",
        rule=Requirement.INDEX,
    )


def write_index(reader: UnitReader, session: Session) -> bytes:
    """Return the unit with the index of the remaining units of a reader; ``session`` is the state before that unit."""
    copies = []
    for unit in reader:
        size, kind = unit.size.nnr_unit_size, unit.header.nnr_unit_type
        whole = size <= WHOLE and kind not in (NNR_NDU, NNR_AGG)
        end = unit.offset + (size if whole else unit.payload_offset)
        copies.append(bytes(reader.source.view(unit.offset, end)))
    lengths = np.fromiter(map(len, copies), ">u4", len(copies))
    text = zlib.compress(b"".join([struct.pack(">I", len(copies)), lengths.tobytes(), *copies]), 9)
    return write_topology(session, STORAGE_FORMAT, topology_data=MAGIC + base64.b85encode(text) + b"\0")


def has_index(unit: Unit) -> bool:
    """Return whether the unit contains an index."""
    if unit.header.nnr_unit_type != NNR_TPL:
        return False
    header = cast(NnrTopologyUnitHeader, unit.header.detail)
    if header.topology_storage_format != STORAGE_FORMAT or header.topology_compression_format:
        return False
    return cast(NnrTopologyUnitPayload, unit.structure).topology_data.startswith(MAGIC)


def read_index(unit: Unit, limits: Limits) -> UnitIndex:
    """Return the index in a unit that has one.

    Raises ElementError for an invalid index, and LimitError beyond max_side_info_bytes or max_units.
    """
    data = cast(NnrTopologyUnitPayload, unit.structure).topology_data[len(MAGIC) :]
    limits.check("max_side_info_bytes", len(data), "bytes of the index")
    if unit.depth or not data.endswith(b"\0"):
        raise _error("it is in an aggregate" if unit.depth else "it does not end with a zero byte")
    try:
        packed = base64.b85decode(data[:-1])
    except ValueError:
        raise _error("its text is not base 85") from None
    try:
        text = inflate(packed, Budget(limits), "max_side_info_bytes", "bytes of the index")
    except ElementError as error:
        raise _error(error.message) from None
    count = int.from_bytes(text[:4], "big")
    limits.check("max_units", count, "units of the index")
    body = 4 + 4 * count
    if len(text) < body:
        raise _error(f"{count:,} entries do not fit its {len(text):,} bytes")
    ends = [*accumulate(np.frombuffer(text, ">u4", count, 4).tolist(), initial=body)]
    if ends[-1] != len(text):
        raise _error(f"its entries have {ends[-1] - body:,} bytes, but {len(text) - body:,} follow")
    copies = [text[start:stop] for start, stop in pairwise(ends)]
    return UnitIndex(unit.offset + unit.size.nnr_unit_size, copies)
