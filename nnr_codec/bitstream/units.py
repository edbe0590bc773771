"""Conversion of units from and to bytes: nnr_unit(), nnr_unit_payload(), nnr_aggregate_unit_payload() (6.3.1, 6.3.4).

Headers and parameter-set payloads become structures; the payload of a compressed data unit stays bytes. Clause numbers
refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from ..constants import NNR_AGG, NNR_LPS, NNR_MPS, NNR_NDU, NNR_QNT, NNR_STR, NNR_TPL, NnrUnitType
from ..errors import BitstreamError, ElementError, NnrError, TruncatedError, UnitLabel, WriteError, locate
from ..limits import Budget, Limits
from ..rules import Requirement
from ..syntax import BitCounter, BitReader, BitWriter, Reader, Session, Structure, Trace, Writer
from ..syntax.bit_buffers import StringPattern
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
from .source import ChunkSource, MoreNeededError, Source, Span, open_source

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .source import Bitstream
    from .unit_index import UnitIndex

_NO_BYTES = memoryview(b"")

#: Number of headers that a UnitReader compares with the next header.
MAX_PATTERNS = 64

PAYLOADS: dict[int, type[Structure]] = {
    NNR_MPS: NnrModelParameterSetUnitPayload,
    NNR_LPS: NnrLayerParameterSetUnitPayload,
    NNR_TPL: NnrTopologyUnitPayload,
    NNR_QNT: NnrQuantizationUnitPayload,
}


@dataclass(slots=True)
class Unit:
    """NNR unit; it may be changed and written with :func:`write_units`.

    Parameters
    ----------
    size : NnrUnitSize
    header : NnrUnitHeader
    content : Structure, bytes-like or Span
        A structure for MPS, LPS, TPL and QNT units; otherwise the bytes of the payload, or a reference to them.
    index, offset, depth : int
        Number of the unit in the bitstream (aggregates and nested units included), its offset in bytes, and the number
        of enclosing aggregates.
    payload_offset : int
        Offset of the payload in the unit, in bytes.
    raw : Span or memoryview
        The unit as it was read; empty for a new unit.
    pattern : StringPattern or None
        The same object for units that were read in the same state, and whose headers differ only in topology_elem_id.
    repeated_id, repeated_size : str or None, NnrUnitSize
        topology_elem_id and size of a unit that repeats a pattern; the size is shared, and must not be changed. The
        ``header``, ``size`` and ``raw`` of this unit are created on access.
    """

    size: NnrUnitSize
    header: NnrUnitHeader
    content: Structure | Buffer | Span
    index: int = 0
    offset: int = 0
    depth: int = 0
    payload_offset: int = 0
    raw: Span | memoryview = _NO_BYTES
    pattern: StringPattern | None = field(default=None, init=False, compare=False, repr=False)
    repeated_id: str | None = field(default=None, init=False, compare=False, repr=False)
    repeated_size: NnrUnitSize = field(init=False, compare=False, repr=False)
    _source: Source | None = field(default=None, init=False, compare=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name not in ("header", "size", "raw") or self.repeated_id is None or not self.pattern or not self._source:
            raise AttributeError(name)
        if name == "header":
            self.header = _with_id(self.pattern.value[0], self.repeated_id)
        elif name == "size":
            self.size = copy.copy(self.repeated_size)
        else:
            self.raw = _raw(self._source, self.offset, self.repeated_size)
        return getattr(self, name)

    @property
    def payload(self) -> Structure | memoryview:
        """The payload: a structure or bytes."""
        if isinstance(self.content, Structure):
            return self.content
        return self.content.view() if isinstance(self.content, Span) else memoryview(self.content)

    @payload.setter
    def payload(self, value: Structure | Buffer) -> None:
        self.content = value

    @property
    def structure(self) -> Structure | None:
        """The payload, if a syntax table describes it; otherwise None."""
        return self.content if isinstance(self.content, Structure) else None

    @property
    def data(self) -> memoryview:
        """The bytes of the unit as it was read."""
        return self.raw.view() if isinstance(self.raw, Span) else self.raw

    @property
    def type_name(self) -> str:
        """Identifier of the unit type, Table 3."""
        return unit_type_name(self.header.nnr_unit_type)

    @property
    def ndu(self) -> NnrCompressedDataUnitHeader:
        """Header of a compressed data unit."""
        return self.header.detail  # type: ignore[return-value]

    def label(self, names: list[str] | None = None) -> UnitLabel:
        """Return the name of the unit for messages."""
        return UnitLabel(f"unit {self.index} ({self.type_name}{f' {names[0]!r}' if names else ''})", self.index)


@lru_cache
def unit_type_name(nnr_unit_type: int) -> str:
    """Return the identifier of a unit type, Table 3."""
    if nnr_unit_type <= NNR_AGG:
        return NnrUnitType(nnr_unit_type).name
    return "NNR_RSVD" if nnr_unit_type < 32 else "NNR_UNSP"


@dataclass
class _Aggregate:
    """Aggregate that is being read."""

    unit: Unit
    seen: int = 0  # number of its units read so far

    @property
    def header(self) -> NnrAggregateUnitHeader:
        return cast(NnrAggregateUnitHeader, self.unit.header.detail)

    @property
    def end(self) -> int:
        return self.unit.offset + self.unit.size.nnr_unit_size

    def check(self, unit: Unit) -> None:
        """Raise ElementError if the list of the aggregate contradicts its next unit (6.4.3.8)."""
        if not self.header.entry_points_present_flag or self.seen >= len(self.header.nnr_unit_type):
            return
        for name, is_, rule in (
            ("nnr_unit_type", unit.header.nnr_unit_type, Requirement.AGGREGATE_UNIT_TYPE),
            ("nnr_unit_entry_point", unit.offset - self.unit.offset, Requirement.AGGREGATE_ENTRY_POINT),
        ):
            says = getattr(self.header, name)[self.seen]
            if says != is_:
                raise ElementError(
                    f"the aggregate lists {says}, but the unit has {is_}",
                    clause="6.4.3.8",
                    unit=self.unit.label(),
                    path=f"nnr_aggregate_unit_header.{name}[{self.seen}]",
                    rule=rule,
                )


class UnitReader:
    """Iterator over the units of a bitstream; the units of an aggregate follow the aggregate.

    ``session`` is the state before the last unit; the effect of the unit is applied when the next unit is requested.

    Parameters
    ----------
    data : bytes-like, path, binary file or ChunkSource
        A complete bitstream, or the part that has arrived.
    limits : Limits
    session : Session
        Initial state, with ``topology_dimensions`` if known.
    trace : Trace or None
        Called for each syntax element; bits are relative to the unit.
    """

    def __init__(
        self,
        data: Bitstream | ChunkSource,
        limits: Limits | None = None,
        session: Session | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.source: Source = data if isinstance(data, ChunkSource) else open_source(data, self.limits)
        self.session = session or Session()
        self.trace = trace
        self.budget = Budget(self.limits)
        self.position = 0  # offset of the next unit
        self.index = 0  # number of the next unit
        self._aggregates: list[_Aggregate] = []
        self._patterns: list[StringPattern] = []  # of headers that were read in the current state
        self._last: Unit | None = None

    def __iter__(self) -> Iterator[Unit]:
        while unit := self.next():
            yield unit

    def next(self) -> Unit | None:
        """Return the next unit; None at the end, or if more bytes must arrive first."""
        if self._last:
            unit, self._last = self._last, None
            if unit.pattern is None or self.session.g_header is not None:  # else the unit does not change the session
                try:
                    self.session.activate(unit.header, unit.structure, unit.depth)
                except NnrError as error:
                    locate(error, unit.label())
                    raise
            if self._aggregates:
                self._leave()
        if self._aggregates and self._aggregates[0].end > self.source.size:  # unknown when it began to arrive
            raise TruncatedError(
                "the bitstream ends inside an aggregate",
                unit=self._aggregates[0].unit.label(),
                rule=Requirement.UNIT_SIZE,
            )
        if self.position >= self.source.size:
            if self.source.index and self.position < self.source.index.stop:
                raise TruncatedError(
                    f"the bitstream has {self.position:,} bytes, but its index lists {self.source.index.stop:,}",
                    rule=Requirement.INDEX,
                )
            return None
        try:
            unit = self._unit()
        except MoreNeededError:
            return None
        if self.index >= self.limits.max_units:
            self.limits.check("max_units", self.index + 1, "units of the bitstream")
        if self._aggregates:
            self._aggregates[-1].check(unit)
            self._aggregates[-1].seen += 1
        self.index += 1
        if unit.repeated_id is not None:
            self.position += unit.repeated_size.nnr_unit_size
        elif unit.header.nnr_unit_type == NNR_AGG:
            self.limits.check("max_agg_depth", len(self._aggregates) + 1, "depth of aggregates", unit.label())
            self._aggregates.append(_Aggregate(unit))
            self.position += unit.payload_offset
        else:
            self.position += unit.size.nnr_unit_size
        self._last = unit
        return unit

    def use_index(self, index: UnitIndex) -> None:
        """Compare all following headers with an index; a remote source also takes them from it.

        Raises ElementError for a second index of a bitstream.
        """
        if self.source.index:
            raise ElementError("the bitstream has a second index", rule=Requirement.INDEX)
        self.source.index = index

    def _leave(self) -> None:
        """Close the aggregates that end here."""
        while self._aggregates and self.position >= self._aggregates[-1].end:
            aggregate = self._aggregates.pop()
            if aggregate.seen != aggregate.header.num_of_nnr_units_minus2 + 2:
                raise ElementError(
                    f"the aggregate has {aggregate.seen} units, not num_of_nnr_units_minus2 + 2",
                    clause="6.4.4.8",
                    unit=aggregate.unit.label(),
                    path="nnr_aggregate_unit_header.num_of_nnr_units_minus2",
                    rule=Requirement.AGGREGATE_COUNT,
                )
            if self.session.lps_depth > len(self._aggregates):
                self.session.end_aggregate()
                self._patterns.clear()

    def _unit(self) -> Unit:
        position, limits = self.position, self.limits
        end = self._aggregates[-1].end if self._aggregates else self.source.size
        start = self.source.peek(position, min(end, position + self.source.window))
        if len(start) < min(5, end - position):  # the longest nnr_unit_size() and the type, or the rest
            raise MoreNeededError
        first = 2 + 2 * (start[0] >> 7)
        header_type = start[first] >> 2 if len(start) > 4 else -1
        try:
            if self._patterns and len(start) > 4 and (repeated := self._repeated(start, first, end)):
                return repeated
            reader = Reader(self.session, BitReader(start, 0, limits))
            size = reader.read(NnrUnitSize, "nnr_unit_size()")
            length = size.nnr_unit_size
            if length < reader.io.pos // 8 + 1:
                raise ElementError(
                    f"nnr_unit_size is {length}, which is less than the header",
                    path="nnr_unit_size",
                    bit=0,
                    rule=Requirement.UNIT_SIZE,
                )
            if length > end - position:
                raise TruncatedError(
                    f"the unit has {length} bytes, but only {end - position} remain",
                    path="nnr_unit_size",
                    bit=0,
                    rule=Requirement.UNIT_SIZE,
                )
            if length > limits.max_unit_bytes:
                limits.check("max_unit_bytes", length, "nnr_unit_size")
            return self._content(start[:length], size, header_type, reader)
        except NnrError as error:
            if isinstance(error, BitstreamError) and self.index == 0 and header_type not in (-1, NNR_STR):
                raise ElementError(
                    "not an NNR bitstream: it does not begin with a start unit, NNR_STR",
                    clause="6.2.3",
                    rule=Requirement.START_UNIT,
                ) from None
            locate(error, self._label(header_type))
            raise

    def _label(self, header_type: int) -> UnitLabel:
        kind = f" ({unit_type_name(header_type)})" if header_type >= 0 else ""
        return UnitLabel(f"unit {self.index}{kind}", self.index)

    def _content(self, start: memoryview, size: NnrUnitSize, header_type: int, reader: Reader) -> Unit:
        """Return the unit that begins with the bytes ``start``; fetch as much of it as its structures need.

        ``reader`` has read the unit size from the beginning of ``start``.
        """
        offset, length, header_bit, read = self.position, size.nnr_unit_size, reader.io.pos, len(start)
        reader.io.end = 8 * read
        if self.source.in_order and header_type == NNR_AGG:
            start = self.source.view(offset, offset + _aggregate_header_size(start, header_bit, length))
        elif len(start) < length and (header_type in PAYLOADS or self.trace or self.source.in_order):
            start = self.source.view(offset, offset + length)
        while True:
            if self.trace or len(start) != read:
                reader = Reader(self.session, BitReader(start, 0, self.limits), self.trace)
            try:
                if self.trace:
                    reader.read(NnrUnitSize)
                reader.io.pos = header_bit
                header = reader.read(NnrUnitHeader)
                break
            except TruncatedError:
                if len(start) == length:
                    raise
                start = self.source.view(offset, offset + min(length, 8 * len(start)))
        if self.source.index and header.nnr_unit_type != NNR_STR:  # which may begin another bitstream
            self.source.index.check_unit(offset, start)
        cls, pattern = PAYLOADS.get(header.nnr_unit_type), None
        content: Structure | memoryview | Span
        payload_offset = reader.io.pos >> 3
        if header.nnr_unit_type == NNR_NDU:
            pattern = self._pattern(bytes(start[header_bit >> 3 : payload_offset]), header, reader.items)
        else:
            self._patterns.clear()
        if cls:
            if header.nnr_unit_type == NNR_TPL:
                self.session.topology_storage_format = cast(
                    NnrTopologyUnitHeader, header.detail
                ).topology_storage_format
            content = reader.read(cls)
            if reader.io.pos != reader.io.end:
                raise ElementError(
                    f"{(reader.io.end - reader.io.pos) // 8} bytes follow the end of the payload",
                    bit=reader.io.pos,
                    rule=Requirement.UNIT_SIZE,
                )
        elif header.nnr_unit_type == NNR_AGG:
            content = _NO_BYTES
        else:
            content = self.source.span(offset + payload_offset, offset + length)
        if reader.items:
            self.budget.charge("max_names", reader.items, "list entries of all headers")
        raw = _raw(self.source, offset, size)
        unit = Unit(size, header, content, self.index, offset, len(self._aggregates), payload_offset, raw)
        unit.pattern = pattern
        return unit

    def _repeated(self, start: memoryview, first: int, end: int) -> Unit | None:
        """Return the unit if its header differs only in topology_elem_id from an earlier header; otherwise None.

        The unit begins with the bytes ``start``, its header is at byte ``first``, and it ends at ``end`` at the latest.
        """
        size, limits, position = _shared_size(bytes(start[:first])), self.limits, self.position
        length = size.nnr_unit_size
        if length > end - position or length > limits.max_unit_bytes:
            return None
        io = BitReader(start[:length], 8 * first, limits)
        found = io.take_pattern(self._patterns, limits.max_name_bytes)
        if found is None:
            return None
        if self.source.index:
            self.source.index.check_unit(position, start[:length])
        unit, payload_offset = object.__new__(Unit), io.pos >> 3
        unit.pattern, unit.repeated_id = found
        unit.repeated_size, unit._source, unit.index = size, self.source, self.index
        unit.offset, unit.depth, unit.payload_offset = position, len(self._aggregates), payload_offset
        unit.content = self.source.span(position + payload_offset, position + length)
        self.budget.charge("max_names", unit.pattern.value[1], "list entries of all headers")
        return unit

    def _pattern(self, data: bytes, header: NnrUnitHeader, items: int) -> StringPattern | None:
        """Return a pattern that recognizes following headers which differ from this one only in topology_elem_id.

        ``data`` is the header as read. Return None for headers with other elements that may vary or depend on state.
        """
        detail = cast(NnrCompressedDataUnitHeader, header.detail)
        if (
            self.trace
            or self.session.g_header
            or header.part
            or detail.node_id_present_flag  # ids differ between units
            or detail.scan_order
            or detail.compressed_parameter_types
            or not detail.tensor_dimensions_flag
            or "codebook" in detail
            or "topology_elem_id" not in detail
        ):
            return None
        text = detail.topology_elem_id.encode() + b"\0"
        if data.count(text) != 1:
            return None
        if len(self._patterns) == MAX_PATTERNS:
            self._patterns.clear()
        before, _, after = data.partition(text)
        # A copy, because callers may change the unit.
        pattern = StringPattern(before, after, (_with_id(header, detail.topology_elem_id), items))
        self._patterns.append(pattern)
        return pattern


@lru_cache(maxsize=1 << 12)
def _shared_size(data: bytes) -> NnrUnitSize:
    """Return nnr_unit_size() from its bytes; the structure is shared and must not be changed."""
    return Reader(Session(), BitReader(data)).read(NnrUnitSize)


def _with_id(header: NnrUnitHeader, topology_elem_id: str) -> NnrUnitHeader:
    """Return a copy of the header of a compressed data unit with another id."""
    header = copy.copy(header)
    header.detail = detail = copy.copy(cast(NnrCompressedDataUnitHeader, header.detail))
    detail.topology_elem_id, detail.tensor_dimensions = topology_elem_id, [*detail.tensor_dimensions]
    return header


def _raw(source: Source, offset: int, size: NnrUnitSize) -> Span | memoryview:
    return _NO_BYTES if source.in_order else Span(source, offset, offset + size.nnr_unit_size)


def _aggregate_header_size(start: memoryview, header_bit: int, length: int) -> int:
    """Return the number of bytes in an aggregate of ``length`` bytes before its first unit, from its count (6.3.3.8).

    With this number, lists that arrive in small chunks are not parsed again with each chunk. Raises MoreNeededError if
    the count has not arrived yet. An aggregate that ends before its count consists of the header only.
    """
    fixed = header_bit // 8 + 1 + (start[header_bit // 8] & 1)  # partial_data_counter_present_flag
    if length < fixed + 4:
        return length
    if len(start) < fixed + 4:
        raise MoreNeededError
    count = int.from_bytes(start[fixed + 2 : fixed + 4], "big") + 2
    return min(length, fixed + 4 + count * (6 if start[fixed + 1] >> 7 else 1))


def write_unit(
    header: NnrUnitHeader,
    payload: Structure | Buffer | None,
    session: Session,
    *,
    long_size: bool = False,
    depth: int = 0,
) -> bytes:
    """Return the bytes of a unit; ``session`` is the state before it, and is updated.

    ``long_size`` uses 31 bits for nnr_unit_size even if 15 suffice; ``depth`` is the number of enclosing aggregates.
    Raises WriteError for a structure that its table cannot represent, or a unit of 2 GiB or more.
    """
    writer = Writer(session, BitWriter())
    writer.write(header)
    body: list[bytes | memoryview] = [writer.io.getvalue()]  # type: ignore[union-attr]  # a BitWriter, see above
    if isinstance(payload, Structure):
        if header.nnr_unit_type == NNR_TPL:
            session.topology_storage_format = cast(NnrTopologyUnitHeader, header.detail).topology_storage_format
        writer = Writer(session, BitWriter())
        writer.write(payload)
        body.append(writer.io.getvalue())  # type: ignore[union-attr]
    elif payload is not None:
        body.append(memoryview(payload).cast("B"))
    unit = with_size(body, long_size=long_size)
    session.activate(header, payload if isinstance(payload, Structure) else None, depth)
    return unit


def with_size(body: Sequence[bytes | memoryview], *, long_size: bool = False) -> bytes:
    """Return a unit from the bytes of its headers and its payload; see :func:`write_unit`."""
    return b"".join([_unit_size(sum(map(len, body)), long_size), *body])


@lru_cache(maxsize=1 << 12)
def _unit_size(length: int, long_size: bool) -> bytes:
    """Return nnr_unit_size() of a unit with ``length`` further bytes. Raise WriteError if the size exceeds 31 bits."""
    long_size = long_size or length + 2 > 0x7FFF
    size = NnrUnitSize(nnr_unit_size_flag=int(long_size), nnr_unit_size=length + 2 + 2 * long_size)
    if size.nnr_unit_size > 0x7FFFFFFF:
        raise WriteError(f"a unit of {size.nnr_unit_size:,} bytes exceeds the 31 bits of nnr_unit_size (6.3.2)")
    writer = BitWriter()
    Writer(Session(), writer).write(size)
    return writer.getvalue()


def write_units(units: Iterable[Unit], session: Session | None = None) -> bytes:
    """Write a bitstream from units in the order and depths in which a UnitReader yields them.

    Unchanged units are reproduced bit by bit, including units of reserved types. Sizes, and the counts, types and entry
    points of aggregates, are computed from the contents.

    Parameters
    ----------
    units : iterable of Unit
    session : Session
        State before the first unit, for example with ``topology_dimensions``.

    Raises
    ------
    WriteError
        A structure does not match its table, or the depths do not form a tree.
    """
    left = list(units)[::-1]
    session = session.snapshot() if session else Session()
    session.pruned_dimensions = dict(session.pruned_dimensions)
    written = _write_level(left, session, 0)
    if left:
        raise WriteError(f"{left[-1].label()} has depth {left[-1].depth}, but no aggregates around it (6.3.4.8)")
    return b"".join(data for _, data in written)


def _write_level(left: list[Unit], session: Session, depth: int) -> list[tuple[int, bytes]]:
    """Remove the units of one depth, with nested units, from the end of ``left``; return each with its type."""
    written = []
    while left and left[-1].depth == depth:
        unit = left.pop()
        kind, long_size = unit.header.nnr_unit_type, bool(unit.size.nnr_unit_size_flag)
        if kind == NNR_AGG:
            outside = session.snapshot()
            inside = _write_level(left, session, depth + 1)
            if session.lps_depth > depth:
                session.end_aggregate()
            header = aggregate_header(unit.header, inside, outside, long_size)
            content: Structure | Buffer = b"".join(data for _, data in inside)
            data = write_unit(header, content, outside, long_size=long_size)
        else:
            data = write_unit(unit.header, unit.payload, session, long_size=long_size, depth=depth)
        written.append((int(kind), data))
    return written


def aggregate_header(
    header: NnrUnitHeader, inside: list[tuple[int, bytes]], session: Session, long_size: bool
) -> NnrUnitHeader:
    """Return the header of an aggregate with the count, types and entry points of its units."""
    if len(inside) < 2:
        raise WriteError(f"an aggregate must have at least two units, got {len(inside)} (6.4.3.8)")
    header = copy.copy(header)
    header.detail = detail = copy.copy(cast(NnrAggregateUnitHeader, header.detail))
    detail.num_of_nnr_units_minus2 = len(inside) - 2
    if detail.entry_points_present_flag:
        detail.nnr_unit_type = [kind for kind, _ in inside]
        detail.nnr_unit_entry_point = [0] * len(inside)  # their size does not depend on their values
        counter = BitCounter()
        Writer(session, counter).write(header)
        sizes = [len(data) for _, data in inside]
        first = 2 + counter.pos // 8
        first += 2 * (long_size or first + sum(sizes) > 0x7FFF)
        detail.nnr_unit_entry_point = list(accumulate(sizes[:-1], initial=first))
    return header
