"""Units to bytes and back: nnr_unit(), nnr_unit_payload() and nnr_aggregate_unit_payload() (6.3.1, 6.3.4).

A unit is split from the bitstream, its header and its parameter-set payloads become structures, and the payload of a
compressed data unit stays bytes. Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..constants import NNR_AGG, NNR_LPS, NNR_MPS, NNR_NDU, NNR_QNT, NNR_STR, NNR_TPL, NnrUnitType
from ..errors import BitstreamError, ElementError, NnrError, TruncatedError, WriteError
from ..limits import Budget, Limits
from ..syntax import BitReader, BitWriter, Reader, Session, Structure, Trace, Writer
from ..syntax.structures import (
    NnrAggregateUnitHeader,
    NnrCompressedDataUnitHeader,
    NnrLayerParameterSetUnitPayload,
    NnrModelParameterSetUnitPayload,
    NnrQuantizationUnitPayload,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    NnrUnitSize,
)
from .source import read_bitstream

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .source import Bitstream

PAYLOADS: dict[int, type[Structure]] = {
    NNR_MPS: NnrModelParameterSetUnitPayload,
    NNR_LPS: NnrLayerParameterSetUnitPayload,
    NNR_TPL: NnrTopologyUnitPayload,
    NNR_QNT: NnrQuantizationUnitPayload,
}


@dataclass
class Unit:
    """One NNR unit.

    Parameters
    ----------
    size : NnrUnitSize
    header : NnrUnitHeader
    payload : Structure or memoryview
        A structure for MPS, LPS, TPL and QNT units; otherwise the payload's bytes.
    index, offset, depth : int
        Number of the unit in the bitstream (aggregates and their units alike), its first byte, and the number of
        aggregates around it.
    payload_offset : int
        First byte of the payload, relative to the unit.
    """

    size: NnrUnitSize
    header: NnrUnitHeader
    payload: Structure | memoryview
    index: int = 0
    offset: int = 0
    depth: int = 0
    payload_offset: int = 0

    @property
    def type_name(self) -> str:
        """The identifier of the unit's type, Table 3."""
        return unit_type_name(self.header.nnr_unit_type)

    @property
    def ndu(self) -> NnrCompressedDataUnitHeader:
        """The header of a compressed data unit."""
        return cast(NnrCompressedDataUnitHeader, self.header.detail)

    def label(self, names: list[str] | None = None) -> str:
        """What messages call the unit."""
        return f"unit {self.index} ({self.type_name}{f' {names[0]!r}' if names else ''})"


def unit_type_name(nnr_unit_type: int) -> str:
    """The identifier of a unit type, Table 3."""
    if nnr_unit_type <= NNR_AGG:
        return NnrUnitType(nnr_unit_type).name
    return "NNR_RSVD" if nnr_unit_type < 32 else "NNR_UNSP"


class UnitReader:
    """Iterates over the units of a bitstream, those of aggregates after their aggregate.

    ``session`` is what the last unit saw; it takes over what the unit leaves when the next unit is asked for.

    Parameters
    ----------
    data : bytes-like, path or binary file
        A whole bitstream.
    limits : Limits
    session : Session
        With ``topology_dimensions`` when the caller knows any.
    trace : Trace or None
        Called for each syntax element; bits are relative to the unit.
    """

    def __init__(
        self,
        data: Bitstream,
        limits: Limits | None = None,
        session: Session | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.data = read_bitstream(data, limits or Limits())
        self.limits = limits or Limits()
        self.session = session or Session()
        self.trace = trace
        self.budget = Budget(self.limits)

    def __iter__(self) -> Iterator[Unit]:
        position, index = 0, 0
        ends: list[tuple[int, int]] = []  # where each open aggregate ends, and how many units it still holds
        while position < len(self.data):
            end = ends[-1][0] if ends else len(self.data)
            self.budget.charge("max_units", 1, "units of the bitstream")
            unit = self._unit(position, end, index, len(ends))
            yield unit
            index += 1
            is_aggregate = unit.header.nnr_unit_type == NNR_AGG
            self.session.activate(unit.header, unit.payload if isinstance(unit.payload, Structure) else None)
            if ends:
                ends[-1] = (ends[-1][0], ends[-1][1] - 1)
            position += unit.payload_offset if is_aggregate else unit.size.nnr_unit_size
            if is_aggregate:
                self.limits.check("max_agg_depth", len(ends) + 1, f"{unit.label()}: depth of aggregates")
                count = cast(NnrAggregateUnitHeader, unit.header.detail).num_of_nnr_units_minus2 + 2
                ends.append((unit.offset + unit.size.nnr_unit_size, count))
            while ends and position >= ends[-1][0]:
                if ends.pop()[1]:
                    raise ElementError(
                        "an aggregate does not hold num_of_nnr_units_minus2 + 2 units (6.4.4.8)", unit=unit.label()
                    )
                self.session.end_aggregate()

    def _unit(self, position: int, end: int, index: int, depth: int) -> Unit:
        header_type = self.data[position + 2 + 2 * (self.data[position] >> 7)] >> 2 if end - position > 4 else -1
        label = f"unit {index}" + (f" ({unit_type_name(header_type)})" if header_type >= 0 else "")
        try:
            reader = Reader(self.session, BitReader(self.data[position : min(end, position + 4)], 0, self.limits))
            size = reader.read(NnrUnitSize, "nnr_unit_size()")
            length = size.nnr_unit_size
            if length < reader.io.pos // 8 + 1:
                raise ElementError(f"nnr_unit_size is {length}, less than its own header", path="nnr_unit_size", bit=0)
            if length > end - position:
                raise TruncatedError(
                    f"the unit is {length} bytes long, {end - position} are left", path="nnr_unit_size", bit=0
                )
            self.limits.check("max_unit_bytes", length, "nnr_unit_size")
            return self._content(self.data[position : position + length], size, index, position, depth)
        except BitstreamError as error:
            if index == 0 and header_type not in (-1, NNR_STR):
                raise ElementError("this is no NNR bitstream: it does not start with an NNR_STR (6.2.3)") from None
            error.unit = error.unit or label
            raise
        except NnrError as error:
            error.args = (f"{label}: {error}",)
            raise

    def _content(self, data: memoryview, size: NnrUnitSize, index: int, offset: int, depth: int) -> Unit:
        reader = Reader(self.session, BitReader(data, 0, self.limits), self.trace)
        reader.read(NnrUnitSize)
        header = reader.read(NnrUnitHeader)
        cls = PAYLOADS.get(header.nnr_unit_type)
        payload: Structure | memoryview
        payload_offset = reader.io.pos >> 3
        if cls:
            if header.nnr_unit_type == NNR_TPL:
                self.session.topology_storage_format = cast(
                    NnrTopologyUnitHeader, header.detail
                ).topology_storage_format
            payload = reader.read(cls)
            if reader.io.pos != reader.io.end:
                raise ElementError(
                    f"{(reader.io.end - reader.io.pos) // 8} bytes follow the end of the payload", bit=reader.io.pos
                )
        else:
            payload = data[payload_offset:]
        self.budget.charge("max_names", reader.items, "list entries of all headers")
        return Unit(size, header, payload, index, offset, depth, payload_offset)


def write_unit(header: NnrUnitHeader, payload: Structure | Buffer | None, session: Session) -> bytes:
    """The bytes of a unit; ``session`` is what it sees, and takes over what it leaves.

    Raises WriteError for a structure that its table cannot represent, or a unit of 2 GiB and more.
    """
    writer = Writer(session, BitWriter())
    writer.write(header)
    body = [writer.io.getvalue()]  # type: ignore[union-attr]  # a BitWriter, see above
    if isinstance(payload, Structure):
        if header.nnr_unit_type == NNR_TPL:
            session.topology_storage_format = cast(NnrTopologyUnitHeader, header.detail).topology_storage_format
        writer = Writer(session, BitWriter())
        writer.write(payload)
        body.append(writer.io.getvalue())  # type: ignore[union-attr]
    elif payload is not None:
        body.append(bytes(payload))
    length = sum(map(len, body)) + 2
    size = NnrUnitSize(nnr_unit_size=length if length <= 0x7FFF else length + 2)
    if size.nnr_unit_size > 0x7FFFFFFF:
        raise WriteError(f"a unit of {size.nnr_unit_size:,} bytes exceeds the 31 bits of nnr_unit_size (6.3.2)")
    prefix = BitWriter()
    Writer(session, prefix).write(size)
    session.activate(header, payload if isinstance(payload, Structure) else None)
    return b"".join([prefix.getvalue(), *body])


def ndu_header(detail: NnrCompressedDataUnitHeader) -> NnrUnitHeader:
    """The header of a complete, independently decodable compressed data unit."""
    return NnrUnitHeader(nnr_unit_type=NNR_NDU, detail=detail)
