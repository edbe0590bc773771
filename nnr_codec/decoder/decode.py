"""Parsing of units into independent decoding tasks, one for each payload (ISO/IEC 15938-17:2024, clause 7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from ..bitstream.attachments import Attachments
from ..bitstream.payload import SCANNED, PayloadPart, codebook_array, parts
from ..bitstream.source import Span
from ..bitstream.summary import side_information
from ..bitstream.topology_units import read_side_information
from ..bitstream.unit_index import has_index, read_index
from ..bitstream.units import MAX_PATTERNS, Unit, UnitReader
from ..constants import (
    NNR_AGG,
    NNR_CPT_DC,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
    TOPOLOGY_FORMATS,
    DecompressedDataFormat,
)
from ..errors import (
    BitstreamError,
    ElementError,
    IncompleteError,
    MissingReferenceError,
    TruncatedError,
    UnsupportedError,
    locate,
)
from ..limits import Budget
from ..model import Topology
from ..rules import Requirement
from ..sideinfo.record import SideInfo
from ..syntax import Session
from ..syntax.bit_buffers import StringPattern
from ..syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)
from .group import Group
from .info import TensorInfo, describe
from .parents import node_key
from .pruning import Pruning
from .restore import UPDATE, Restoration, Restorer
from .task import NduTask, data_format
from .texts import DeclaredShapes, Texts
from .topology import TopologyInfo


@dataclass
class _Partial:
    """Units of one partial-data group (errata N4)."""

    header: NnrCompressedDataUnitHeader
    counter: int
    spans: list[memoryview | Span] = field(default_factory=list)
    nbytes: int = 0


class _Checked(NamedTuple):
    """Facts about the tensors of units whose headers differ only in topology_elem_id."""

    header: NnrCompressedDataUnitHeader
    session: Session
    data_format: DecompressedDataFormat
    dims: tuple[int, ...]
    info: TensorInfo


class BitstreamParser:
    """Splitter of a bitstream into groups that can be decoded independently; it decodes no payload.

    Parameters
    ----------
    reader : UnitReader
        A reader at the start of a bitstream.
    dtype : str
        Type of decoded floats; see Restoration.
    given : Topology, optional
        Replaces the topology of the bitstream.
    before : Topology, optional
        Topology of earlier bitstreams, to which an update without topology refers.

    Attributes
    ----------
    started : bool
        Whether an NNR_STR was read.
    names : set of str
        All topology element ids so far.
    info : dict of str to TensorInfo
        Information on each tensor of the units so far.
    restoration : Restoration
        Mapping of these tensors to model tensors, from side information.
    attachments : Attachments
        Other files of the model.
    pruning : Pruning
        Pruning information and its effect on the tensors.
    ignored : list of str
        Units of reserved and unspecified types and formats, which decoders skip (6.4.3.1, 6.4.3.5, 6.4.3.6).
    """

    def __init__(
        self,
        reader: UnitReader,
        dtype: str = "source",
        given: Topology | None = None,
        before: Topology | None = None,
    ) -> None:
        self.reader, self.limits = reader, reader.limits
        self.budget = Budget(self.limits)
        self.started = False
        self._mps = ""  # label of the NNR_MPS
        self._has_topology = False  # whether an NNR_TPL was read
        self._texts, self._given = Texts(self.budget, given, before), given
        if not isinstance(reader.session.declared, DeclaredShapes):  # works after an error of this parser
            reader.session.declared = self._texts.shape
        self.names: set[str] = set()
        self.info: dict[str, TensorInfo] = {}
        self.restoration = Restoration(SideInfo(), dtype, self.limits)
        self._record = ""  # label of the unit with side information
        self._unread = ""  # reason why the record is not understood
        self.attachments = Attachments(self.budget)
        self.pruning = Pruning()
        self.ignored: list[str] = []
        self.stop: int | None = None  # offset of a following bitstream, where reading ended
        self._vectors: set[str] = set()  # coded with one dimension; a topology may have another shape
        self._keys: set[tuple[int, int]] = set()
        self._snapshot: Session | None = None  # session of the last task
        self._checked: dict[StringPattern, _Checked] = {}  # at most MAX_PATTERNS, without payloads
        self._partial: _Partial | None = None
        self._g: NduTask | None = None

    @property
    def profile(self) -> int:
        """Value of general_profile_idc."""
        return self.reader.session.general_profile_idc

    @property
    def topology(self) -> Topology | None:
        """The given topology, or the topology of the units so far."""
        return self._texts.topology

    @property
    def apart(self) -> str:
        """Format of a topology that the bitstream declares to be stored separately; empty if there is none."""
        return self._texts.apart

    @property
    def context(self) -> Topology | None:
        """Topology of the tensors, which may come from earlier bitstreams."""
        return self._texts.context(self.reader.session)

    @property
    def declared(self) -> TopologyInfo:
        """Shapes and blocks that the topology declares."""
        return self._texts.info(self.reader.session)

    def check_fit(self) -> None:
        """Raise FormatError if the tensors do not match the given topology."""
        if not self._given or not self.declared.names:
            return
        infos = self.restoration.infos(self.info).values()
        pruned = self.pruning.dimensions
        self.declared.check_fit({info.name: (info.shape, info.type) for info in infos if info.name not in pruned})

    def check_complete(self) -> None:
        """Raise IncompleteError if tensors are missing at the end, TruncatedError if the topology is missing.

        Tensors of the topology, the reference list and side information are required, and so are expected tensors. A
        bitstream that is an update by its flag or metadata may omit unchanged tensors (errata H4).
        """
        session = self.reader.session
        carries = session.mps is not None and session.mps.topology_carriage_flag
        if carries and not self._has_topology and not self._given:
            raise TruncatedError(
                "the bitstream is incomplete: topology_carriage_flag is 1, but it has no NNR_TPL",
                clause="6.4.4.3",
                unit=self._mps,
                rule=Requirement.TOPOLOGY_CARRIAGE,
            )
        if session.mps_parent_signalling_enabled_flag or UPDATE in self.restoration.side.metadata:
            return
        owners, tensors = self.restoration.owners, self.restoration.side.tensors
        names = [*session.reference_list, *self.declared.names, *(self.limits.expected or ()), *tensors]
        if not names:
            return
        wanted = dict.fromkeys(owners.get(name, name) for name in names)
        complete = self.names.difference(owners, tensors) | self.restoration.there(self.info)
        known = self.declared.known
        there = {known(name) for name in complete}
        missing = [name for name in wanted if known(name) not in there]
        if missing:
            raise IncompleteError(len(wanted), missing)

    def groups(self) -> Iterator[Group]:
        """Yield the units with tensors, in order; a G unit is grouped with its H unit."""
        for unit in self.reader:
            if self.starts_another(unit) and self.limits.allow_trailing:
                self.stop = unit.offset
                break
            yield from self.take(unit)
        self.finish()

    def starts_another(self, unit: Unit) -> bool:
        """Return whether the unit starts another bitstream."""
        return unit.repeated_id is None and unit.header.nnr_unit_type == NNR_STR and self.started and not unit.depth

    def take(self, unit: Unit) -> tuple[Group, ...]:
        """Return the group that this unit completes, if any."""
        kind = NNR_NDU if unit.repeated_id is not None else unit.header.nnr_unit_type
        if kind == NNR_STR:
            if self.started:
                raise ElementError(
                    "a second NNR_STR follows, but one bitstream is expected",
                    option="allow_trailing",
                    hint="use allow_trailing if another bitstream may follow",
                    clause="7.1",
                    unit=unit.label(),
                    rule=Requirement.ONE_BITSTREAM,
                )
            self.started = True
            self._start(unit)
        elif not self.started:
            raise ElementError(
                "not an NNR bitstream: it does not begin with a start unit, NNR_STR",
                clause="6.2.3",
                unit=unit.label(),
                rule=Requirement.START_UNIT,
            )
        elif kind == NNR_MPS and self.reader.session.has_mps:
            raise ElementError(
                "a second NNR_MPS follows; a bitstream has only one",
                clause="6.2.3",
                unit=unit.label(),
                rule=Requirement.SINGLE_MPS,
            )
        try:
            if self._g and kind not in (NNR_NDU, NNR_AGG):  # an aggregate may begin with H (errata N14)
                raise _h_expected(self._g)
            if kind == NNR_MPS:
                self._mps = unit.label()
            elif kind == NNR_TPL:
                self._has_topology = True
                self._topology(unit)
            elif kind == NNR_QNT:
                self._quantization_data(unit)
            elif kind == NNR_NDU:
                return self._ndu(unit)
            elif kind > NNR_AGG:
                self.ignored.append(f"unit {unit.index} (nnr_unit_type {kind})")
        except (BitstreamError, MissingReferenceError) as error:
            locate(error, unit.label())
            raise
        return ()

    def drop(self, unit: Unit) -> None:
        """Continue after a rejected unit: discard its incomplete group; a following H unit may reuse its names."""
        self._partial = self._g = None
        if unit.ndu.compressed_parameter_types & NNR_CPT_DC:
            self._keys.discard(node_key(unit.ndu) or (-1, -1))
            with suppress(MissingReferenceError):
                self.names.difference_update(self.reader.session.names(unit.ndu))

    def finish(self) -> None:
        """Raise ElementError if the bitstream has no unit or no NNR_MPS, or ends in an incomplete group."""
        if not self.started:
            raise ElementError("the bitstream has no units", clause="6.2.3", rule=Requirement.START_UNIT)
        if not self.reader.session.has_mps:
            raise ElementError(
                "the bitstream is incomplete: it has no NNR_MPS", clause="6.2.3", rule=Requirement.SINGLE_MPS
            )
        if self._partial:
            raise ElementError(
                f"parts of a tensor are missing at the end of the bitstream: {self._partial.counter - 1}",
                clause="6.4.3.1",
                rule=Requirement.PARTIAL_SEQUENCE,
            )
        if self._g:
            raise ElementError(
                f"the bitstream ends before H of {self._g.names[0]!r}",
                clause="6.4.3.7",
                rule=Requirement.DECOMPOSITION_PAIR,
            )

    def _start(self, unit: Unit) -> None:
        profile = cast(NnrStartUnitHeader, unit.header.detail).general_profile_idc
        if profile > 1:
            raise UnsupportedError(
                f"general_profile_idc {profile} is not defined",
                clause="6.4.3.2",
                unit=unit.label(),
                rule=Requirement.PROFILE,
            )

    def plan_pruning(self) -> None:
        """Apply pruning information to the tensor list, once all tensors are known; see Pruning.plan."""
        self.pruning.plan(
            (info.name, info.shape, info.first_tensor_dimension_shift)
            for info in self.info.values()
            if info.name not in self._vectors
        )

    def check_understood(self) -> None:
        """Raise UnsupportedError if the side information has an unknown version and the model cannot be restored."""
        if self._unread:
            raise UnsupportedError(self._unread, rule=Requirement.SIDE_INFORMATION, unit=self._record)

    def restorer(self, budget: Budget, names: Collection[str] | None = None) -> Restorer:
        """Return the restorer of model tensors; raises the errors of :meth:`check_understood`."""
        self.check_understood()
        return Restorer(self.restoration, budget, names)

    def _topology(self, unit: Unit) -> None:
        header = cast(NnrTopologyUnitHeader, unit.header.detail)
        payload = cast(NnrTopologyUnitPayload, unit.payload)
        if header.topology_storage_format == NNR_TPL_PRUN:
            if self.info:
                raise ElementError(
                    "pruning information follows tensors that it may apply to",
                    clause="6.2.3",
                    rule=Requirement.TOPOLOGY_FIRST,
                )
            self.pruning.add(payload.pruning, self.reader.session)
        elif side_information(unit):
            self._side_info(unit, header, payload.topology_data)
        elif has_index(unit):
            self.reader.use_index(read_index(unit, self.limits))
        elif header.topology_storage_format > NNR_TPL_REFLIST and not self.attachments.take(unit):
            self.ignored.append(f"unit {unit.index} (topology_storage_format {header.topology_storage_format})")
        self._texts.add_topology(header, payload)

    def _side_info(self, unit: Unit, header: NnrTopologyUnitHeader, data: bytes) -> None:
        """Parse a side-information record; an unknown version is reported later."""
        if self._record:
            raise ElementError(
                "the bitstream has a second record of side information", rule=Requirement.SIDE_INFORMATION
            )
        if self.names or self._partial:
            raise ElementError(
                "side information follows tensors that it may apply to", rule=Requirement.SIDE_INFORMATION
            )
        self._record = unit.label()
        try:
            side = read_side_information(header, data, self.reader.budget)
        except UnsupportedError as error:  # the tensors of the units can still be listed
            self._unread = error.message
            self.ignored.append(f"unit {unit.index} ({error})")
            return
        self.restoration = Restoration(side, self.restoration.dtype, self.limits, unit.label())

    def _quantization_data(self, unit: Unit) -> None:
        header = cast(NnrQuantizationUnitHeader, unit.header.detail)
        if header.quantization_storage_format in TOPOLOGY_FORMATS:
            self._texts.add_quantization(header, cast(NnrQuantizationUnitPayload, unit.payload))
        else:
            self.ignored.append(f"unit {unit.index} (quantization_storage_format {header.quantization_storage_format})")

    # ------------------------------------------------------------------------------------------ compressed data units
    def _ndu(self, unit: Unit) -> tuple[Group, ...]:
        if not self.reader.session.has_mps:
            raise ElementError("an NNR_NDU is before the NNR_MPS", clause="6.2.3", rule=Requirement.MPS_FIRST)
        if unit.repeated_id is not None and unit.pattern in self._checked and not (self._g or self._partial):
            return (self._repeated(unit, unit.repeated_id, self._checked[unit.pattern]),)
        joined = self._joined(unit)
        if joined is None:
            return ()
        task, g = self._task(unit, *joined), self._g
        role = task.role
        if g and role != "h":
            raise _h_expected(g)
        if role == "g":
            self._g = task
            return ()
        self._g = None
        if g and (difference := _difference(g, task)):
            raise ElementError(
                f"G and H of {g.names[0]!r} differ in {difference}",
                clause="6.4.3.7",
                rule=Requirement.DECOMPOSITION_PAIR,
            )
        tasks = (g, task) if g else (task,)
        group = Group(tasks, describe(tasks), self.limits)
        for info in group.infos:
            self._add_info(info)
        if unit.pattern:
            if len(self._checked) == MAX_PATTERNS:
                self._checked.clear()
            known = task.header, task.session, task.data_format, task.parts[0].dims, group.infos[0]
            self._checked[unit.pattern] = _Checked(*known)
        return (group,)

    def _repeated(self, unit: Unit, name: str, checked: _Checked) -> Group:
        """Return the group of a unit whose header differs only in topology_elem_id from a checked one."""
        header, session, data_format, dims, (_, shape, of_type, kind, used, _, shift, *_) = checked
        nbytes, spans = unit.repeated_size.nnr_unit_size, cast("tuple[memoryview | Span]", (unit.content,))
        parts = [PayloadPart(name, "weight", dims)]
        coded = header.tensor_dimensions
        task = NduTask([name], unit, header, parts, spans, session, data_format, coded, nbytes, self.limits)
        info = TensorInfo(name, shape, of_type, kind, used, nbytes, shift)
        self._add_name(name)
        self._add_info(info)
        return Group((task,), (info,), self.limits)

    def _add_info(self, info: TensorInfo) -> None:
        """Check the tensor of a unit against side information and pruning information, and register it."""
        self.restoration.check(info)
        if self.pruning.dimensions:
            self.pruning.check(info.name, info.shape, info.first_tensor_dimension_shift)
        self.info[info.name] = info

    def _joined(self, unit: Unit) -> tuple[tuple[memoryview | Span, ...], int] | None:
        """Return the payload spans and the size of all units, or None while parts are missing."""
        counter, span = unit.header.part, unit.content
        assert isinstance(span, (memoryview, Span))
        if counter == 0 and not self._partial:
            return (span,), unit.size.nnr_unit_size
        if not self._partial:
            self._partial = _Partial(unit.ndu, counter + 1)
        partial = self._partial
        if counter != partial.counter - 1 or unit.ndu != partial.header:
            raise ElementError(
                f"expected part {partial.counter - 1} of {self.reader.session.names(partial.header)[0]!r}; the unit "
                f"has partial_data_counter {counter}, or belongs to another tensor",
                clause="6.4.3.1",
                rule=Requirement.PARTIAL_SEQUENCE,
            )
        self.budget.charge("max_pending_bytes", len(span), "parts of a tensor")
        partial.counter = counter
        partial.spans.append(span)
        partial.nbytes += unit.size.nnr_unit_size
        if counter > 1:
            return None
        self._partial = None
        self.budget.spent.pop("max_pending_bytes", None)
        return tuple(partial.spans), partial.nbytes

    def _task(self, unit: Unit, spans: tuple[memoryview | Span, ...], nbytes: int) -> NduTask:
        session, header = self.reader.session, unit.ndu
        names = session.names(header)
        for name in names:
            if not self._g or name not in self._g.names:  # a G/H pair shares one name (errata N4)
                self._add_name(name)
        key = node_key(header)
        if key:
            self._add_key(key, unit, names)
        kind, dims = header.nnr_compressed_data_unit_payload_type, session.tensor_dimensions(header)
        if kind > NNR_PT_BLOCK:
            raise ElementError(
                f"payload type {kind} is reserved (Table 16)", unit=unit.label(names), rule=Requirement.PAYLOAD_TYPE
            )
        if min(dims, default=0) < 1 and not (dims == [] and kind == NNR_PT_RAW_FLOAT):
            raise ElementError(
                f"tensor_dimensions {dims} describe an empty tensor",
                clause="7.3",
                unit=unit.label(names),
                rule=Requirement.TENSOR_DIMENSIONS,
            )
        if header.first_tensor_dimension_shift >= max(len(dims), 1):
            raise ElementError(
                f"first_tensor_dimension_shift {header.first_tensor_dimension_shift} is not less than the number of "
                f"dimensions {len(dims)}",
                clause="6.4.3.7",
                unit=unit.label(names),
                rule=Requirement.FIRST_DIMENSION_SHIFT,
            )
        types = header.compressed_parameter_types
        if types & NNR_CPT_DC and kind not in (NNR_PT_FLOAT, NNR_PT_BLOCK):
            why = "only tensors of NNR_PT_FLOAT and NNR_PT_BLOCK can be decomposed"
            raise ElementError(why, clause="7.3.5", unit=unit.label(names), rule=Requirement.DECOMPOSITION_PAYLOAD)
        if types & NNR_CPT_DC and kind == NNR_PT_FLOAT and len(names) > 1:
            raise ElementError(
                "a decomposed tensor must have one topology element",
                clause="7.3.1",
                unit=unit.label(names),
                rule=Requirement.DECOMPOSITION_PAYLOAD,
            )
        if kind == NNR_PT_BLOCK and not types:
            why = "the block has no parameters besides its weight (Table 9, errata N7)"
            raise ElementError(why, unit=unit.label(names), rule=Requirement.BLOCK_PARAMETERS)
        self._snapshot = session.snapshot(self._snapshot)
        tensors = parts(header, session)
        outputs = self.declared.outputs(header, tensors, self.pruning.dimensions) if kind == NNR_PT_BLOCK else None
        if outputs:
            self._vectors.update(part.name for part in tensors if part.role not in SCANNED)
            for recreated in outputs.recreated:
                self._add_name(recreated.name)
                self._vectors.add(recreated.name)
        task = NduTask(
            names,
            unit,
            header,
            tensors,
            spans,
            self._snapshot,
            data_format(header, session),
            dims,
            nbytes,
            self.limits,
            outputs,
        )
        task.charge(Budget(self.limits))
        for part in tensors:
            if part.codebook:
                codebook_array(part.codebook, self.limits)
        return task

    def _add_key(self, key: tuple[int, int], unit: Unit, names: list[str]) -> None:
        """Register the key of a parameter. Raise ElementError if it is not unique."""
        if key in self._keys and not (self._g and key == node_key(self._g.header)):
            why = f"device_id and parameter_id {key} occur twice in one bitstream"
            raise ElementError(why, clause="6.4.3.7", unit=unit.label(names), rule=Requirement.UNIQUE_PARAMETERS)
        self._keys.add(key)

    def _add_name(self, name: str) -> None:
        """Register the name of a tensor. Raise ElementError if it is not unique."""
        if name in self.names:
            raise ElementError(
                f"{name!r} occurs twice; topology element ids must be unique",
                clause="6.2.3",
                rule=Requirement.UNIQUE_IDS,
            )
        self.names.add(name)


def _h_expected(g: NduTask) -> ElementError:
    """Return the error for a unit after G that is not its H."""
    return ElementError(
        f"H of {g.names[0]!r} is expected after G", clause="6.4.3.7", rule=Requirement.DECOMPOSITION_PAIR
    )


def _difference(g: NduTask, h: NduTask) -> str:
    """Return the first difference between the headers of a G and an H unit; empty if there is none."""
    for name, one, other in (
        ("tensor_dimensions", g.dims, h.dims),
        ("nnr_decompressed_data_format", g.data_format, h.data_format),
        *(
            (name, getattr(g.header, name), getattr(h.header, name))
            for name in ("decomposition_rank", "g_number_of_rows", "first_tensor_dimension_shift")
        ),
    ):
        if one != other:
            return name
    return ""
