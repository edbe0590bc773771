"""Topology units, and the side-information record in one of them (ISO/IEC 15938-17:2024, 6.3.4.5)."""

from __future__ import annotations

import zlib
from typing import Any

from ..constants import NNR_DFL, NNR_PT_RAW, NNR_TPL
from ..errors import ElementError
from ..limits import Budget, Limits
from ..rules import Requirement
from ..sideinfo.record import STORAGE_FORMAT, SideInfo
from ..syntax import Session
from ..syntax.structures import NnrTopologyUnitHeader, NnrTopologyUnitPayload, NnrUnitHeader
from .units import write_unit

#: Smaller records are not deflated: NNCodec 2.1.3 skips private units only if they hold a string.
DEFLATED_BYTES = 4096


def write_topology(session: Session, storage: int, compression: int = NNR_PT_RAW, **elements: Any) -> bytes:
    """Return an NNR_TPL unit with these payload elements."""
    header = NnrTopologyUnitHeader(topology_storage_format=storage, topology_compression_format=compression)
    return write_unit(NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=header), NnrTopologyUnitPayload(**elements), session)


def write_side_information(record: SideInfo, session: Session, *, deflate: bool = True) -> bytes:
    """Return the unit with a side-information record."""
    text = record.to_bytes()
    if deflate and len(text) >= DEFLATED_BYTES:
        return write_topology(session, STORAGE_FORMAT, NNR_DFL, topology_data=zlib.compress(text, 9))
    return write_topology(session, STORAGE_FORMAT, topology_data=text + b"\0")


def read_side_information(header: NnrTopologyUnitHeader, data: bytes, budget: Budget) -> SideInfo:
    """Return the side-information record in the data of a topology unit that has one; errors as in SideInfo.parse."""
    if header.topology_compression_format == NNR_DFL:
        data = inflate(data, budget, "max_side_info_bytes", "bytes of side information")
    elif data.endswith(b"\0"):
        data = data[:-1]
    else:
        raise ElementError("side information does not end with a zero byte", rule=Requirement.SIDE_INFORMATION)
    side = SideInfo.parse(data, budget)
    assert side is not None
    return side


def inflate(data: bytes, budget: Budget, limit: str, what: str) -> bytes:
    """Inflate data within the remaining budget of a limit.

    Raises ElementError if the data is damaged, truncated or followed by other bytes, and LimitError beyond the limit.
    """
    room: int = getattr(budget.limits, limit) - budget.spent.get(limit, 0)
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, min(room, Limits.NONE - 1) + 1)
    except zlib.error as error:
        raise ElementError(f"deflated data is damaged: {error} (RFC 1950)", rule=Requirement.DEFLATE) from None
    if len(text) > room:
        budget.charge(limit, len(text), what)
    if not inflater.eof or inflater.unused_data:
        raise ElementError("deflated data does not end with its unit (RFC 1950)", rule=Requirement.DEFLATE)
    return text
