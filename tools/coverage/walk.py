"""Walk through the bitstreams of a case that records the reached lines, values and table entries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from nnr_codec.bitstream.nodes import bare
from nnr_codec.bitstream.units import PAYLOADS, Unit, UnitReader
from nnr_codec.conformance.cases import Case, Stream
from nnr_codec.constants import NNR_NDU, NNR_PT_RAW_FLOAT, NNR_TPL
from nnr_codec.decoder.bins import plain_syntaxes
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import Group, is_first_edition
from nnr_codec.decoder.parents import refer
from nnr_codec.decoder.state import UpdateState
from nnr_codec.decoder.task import NduTask
from nnr_codec.errors import NnrError
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Topology
from nnr_codec.syntax import BitReader, Descriptor, Reader, Session, Structure, Trace
from nnr_codec.syntax.deepcabac import Bin
from nnr_codec.syntax.structures import NnrTopologyUnitHeader, NnrUnitHeader, NnrUnitSize

from .listing import Hit
from .sources import Sources
from .steps import Steps

#: Item that a case reaches: number of a listing and a hit in it, or a table or element and a value of it.
Reached = tuple[int, Hit] | tuple[str, int]

#: Size limit in bytes of analysed payloads: the plain implementation of clause 10 takes seconds for larger ones.
MAX_PAYLOAD = 1 << 12


class Walker:
    """Reader of cases that records the reached items.

    Parameters
    ----------
    sources : Sources
        Listings to observe; the tables of clause 10 are replaced by tables that record look-ups.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.values: set[tuple[str, int]] = set()
        names = sources.clause_10.names
        for name in ("RLPS_TABLE", "TRANSITION_TABLE", "CTX_PARAMETER_LIST"):
            names[name] = _Noted(names[name], name, self.values)
        names["STATE_TRANS_TAB"] = tuple(
            _Noted(row, "STATE_TRANS_TAB", self.values, 2 * k) for k, row in enumerate(names["STATE_TRANS_TAB"])
        )

    def reached(self, case: Case) -> set[Reached]:
        """Return the items that a case reaches."""
        self.values.clear()
        for listing in self.sources.all:
            listing.hits.clear()
        state, before = UpdateState(keep_digests=True), None
        with suppress(NnrError):
            for stream in case.streams:
                state = state.fork()
                before = self._stream(stream, case, state, before)
        lines = {(k, hit) for k, listing in enumerate(self.sources.all) for hit in listing.hits}
        return lines | self.values

    def _stream(self, stream: Stream, case: Case, state: UpdateState, before: Topology | None) -> Topology | None:
        reader = UnitReader(stream.path, case.limits, Session(case.topology_dimensions))
        parser = BitstreamParser(reader, given=case.topology, before=before)
        groups: list[Group] = []
        steps = Steps(self.values)
        try:
            while unit := self._next(reader):
                self._unit(unit, reader.session, reader.limits)
                steps.unit(unit, reader.session)
                groups += parser.take(unit)
            parser.finish()
            steps.end(parser, stream is not case.streams[0])
        finally:
            self._groups(groups, state, parser.profile, steps)
        return parser.context

    # -------------------------------------------------------------------------------------- units
    def _unit(self, unit: Unit, session: Session, limits: Limits) -> None:
        if self._structures(unit.data, session, limits) != (unit.header, unit.structure):
            raise RuntimeError(f"the copies of the tables read {unit.label()} as another unit")
        with suppress(NnrError):  # the parser raises the same error
            self.sources.framing.names["nnr_unit"](unit, session)
            if unit.header.nnr_unit_type == NNR_NDU:
                self.sources.payload.names["parts"](unit.ndu, session)

    def _next(self, reader: UnitReader) -> Unit | None:
        """Return the next unit; the readable part of a rejected unit also counts."""
        try:
            return reader.next()
        except NnrError:
            with suppress(NnrError):
                rest = reader.source.view(reader.position, reader.source.size)
                self._structures(rest, reader.session, reader.limits)
            raise

    def _structures(self, data: memoryview, session: Session, limits: Limits) -> tuple[Structure, Structure | None]:
        """Return header and payload of a unit, read with the copies of the tables."""
        reader = _Reader(session, BitReader(data, 0, limits), self._coded, self.sources.tables.names)
        reader.read(NnrUnitSize)
        header = reader.read(NnrUnitHeader)
        if header.nnr_unit_type not in PAYLOADS:
            return header, None
        if header.nnr_unit_type == NNR_TPL:
            session.topology_storage_format = cast(NnrTopologyUnitHeader, header.detail).topology_storage_format
        return header, reader.read(PAYLOADS[header.nnr_unit_type])

    def _coded(self, path: str, descriptor: Descriptor, bit: int, size: int, value: Any) -> None:
        if path.endswith("byte_alignment()"):
            self.sources.framing.names["byte_alignment"](size)
            self.values.add(("byte_alignment", 0))
        elif descriptor.kind == "u" and size <= 8:
            self.values.add((bare(path.rpartition(".")[2]), int(value)))

    # -------------------------------------------------------------------------------------- payloads
    def _groups(self, groups: list[Group], state: UpdateState, profile: int, steps: Steps) -> None:
        first_edition = profile == 0 and is_first_edition(groups)
        for group in groups:
            for task in group.tasks:
                if task.header.nnr_compressed_data_unit_payload_type != NNR_PT_RAW_FLOAT:
                    self._payload(task, state, first_edition)
            references = group.references(state)
            group.decode(state=state, budget=Budget(group.limits), first_edition=first_edition)
            steps.group(group, references)

    def _payload(self, task: NduTask, state: UpdateState, first_edition: bool) -> None:
        if len(task.payload) > MAX_PAYLOAD:
            return
        names = self.sources.clause_10.names
        reference = refer(task.header, task.names[0], False, state.fork())
        decoder = names["ArithmeticDecoder"](bytes(task.payload), self._bin)
        for syntax in plain_syntaxes(task, first_edition, reference):
            names["quant_tensor"](decoder, names["QuantTensorSyntax"](**vars(syntax)))
        names["terminate"](decoder)

    def _bin(self, coded: Bin) -> None:
        if coded.ctx_inc >= 0:
            self.values.add((coded.element, coded.ctx_inc))


class _Reader(Reader):
    """Reader that uses the copies of the tables."""

    def __init__(self, ctx: Session, io: BitReader, trace: Trace, names: dict[str, Any]) -> None:
        super().__init__(ctx, io, trace)
        self._names = names

    def table_of(self, cls: type[Structure]) -> Callable[..., None]:
        """Return the copy of the table."""
        copy: Callable[..., None] = self._names[cls.table_name]
        return copy


class _Noted(tuple[Any, ...]):
    """Table of numbers that records look-ups."""

    name: str
    first: int
    noted: set[tuple[str, int]]

    def __new__(cls, values: tuple[Any, ...], name: str, noted: set[tuple[str, int]], first: int = 0) -> _Noted:
        made = super().__new__(cls, values)
        made.name, made.noted, made.first = name, noted, first
        return made

    def __getitem__(self, index: Any) -> Any:
        self.noted.add((self.name, self.first + index))
        return super().__getitem__(index)
