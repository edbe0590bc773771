"""Units to tensors: headers one after another, each payload a task of its own (ISO/IEC 15938-17:2024, clause 7)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..bitstream.payload import codebook_array, parts
from ..bitstream.units import Unit, UnitReader
from ..constants import (
    NNR_CPT_DC,
    NNR_DFL,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_RAW,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_QNT_NNEF,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_NNEF,
    NNR_TPL_PRUN,
    NNR_TPL_REFLIST,
)
from ..errors import (
    BitstreamError,
    ElementError,
    LimitError,
    MissingReferenceError,
    NnrError,
    PayloadError,
    UnsupportedError,
)
from ..limits import Budget, Limits
from ..model import Array, Model, Topology
from ..syntax import Session
from ..syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)
from ..tensor.quant import add_update
from .reconstruct import Rec, reconstruct
from .state import Node, UpdateState, node_key
from .task import NduTask, data_format

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass
class _Group:
    """Units of one partial-data group (errata N4)."""

    header: NnrCompressedDataUnitHeader
    counter: int
    payloads: list[memoryview] = field(default_factory=list)


class Decoder:
    """Decodes one bitstream against a state, which is changed only as far as decoding gets.

    Parameters
    ----------
    data : bytes-like
    limits : Limits
    topology_dimensions : mapping of str to sequence of int
        Dimensions of tensors whose units leave them out.
    state : UpdateState
    raw : bool
        Give the Rec* tensors as coded: no recomposition, no scaling, no WeightUpdateCache.
    first_edition : bool
        Read profile 0 as the first edition's software wrote it (errata K1, K4).
    """

    def __init__(
        self,
        data: Buffer,
        *,
        limits: Limits,
        topology_dimensions: Mapping[str, Sequence[int]],
        state: UpdateState,
        raw: bool,
        first_edition: bool = False,
    ) -> None:
        self.reader = UnitReader(data, limits, Session(topology_dimensions))
        self.budget = Budget(limits)
        self.limits, self.state, self.raw, self.first_edition = limits, state, raw, first_edition
        self.topology: Topology | None = None
        self._quantization_text: bytes | None = None
        self._names: set[str] = set()
        self._group: _Group | None = None
        self._g: list[NduTask] = []

    # ------------------------------------------------------------------------------------------ units
    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """Names and tensors in the order of the bitstream."""
        for group in self.groups():
            yield from self.decode(group).items()

    def decode(self, group: list[NduTask]) -> dict[str, Array]:
        """The tensors of one unit, or of a G and an H unit; the state takes over what later updates refer to."""
        first, last, recs = group[0], group[-1], []
        try:
            for task in group:
                task.charge(self.budget)
                decoded = task.decode(self.first_edition)
                self._remember(task, decoded)
                recs += decoded
            return reconstruct(recs, last.header, first.names, last.dims, self.limits, self.raw)
        except BitstreamError as error:
            error.unit = error.unit or last.label
            raise
        except MemoryError:
            raise LimitError("there is not enough memory for the tensor", unit=last.label) from None

    def groups(self) -> Iterator[list[NduTask]]:
        """The units that carry tensors, none of them decoded yet; a G unit comes with its H unit."""
        seen_str = False
        for unit in self.reader:
            kind = unit.header.nnr_unit_type
            if kind == NNR_STR:
                if seen_str:
                    raise ElementError("a second NNR_STR: one bitstream is expected (7.1)", unit=unit.label())
                seen_str = True
                self._start(unit)
            elif not seen_str:
                raise ElementError("a bitstream starts with an NNR_STR (6.2.3)", unit=unit.label())
            elif kind == NNR_MPS and self.reader.session.has_mps:
                raise ElementError("a second NNR_MPS; there is a single one in a bitstream (6.2.3)", unit=unit.label())
            elif kind == NNR_TPL:
                self._topology(unit)
            elif kind == NNR_QNT:
                self._quantization(unit)
            elif kind == NNR_NDU:
                try:
                    yield from self._ndu(unit)
                except BitstreamError as error:
                    error.unit = error.unit or unit.label()
                    raise
                except MissingReferenceError as error:
                    error.args = (f"{unit.label()}: {error}",)
                    raise
        if not seen_str:
            raise ElementError("the bitstream has no unit (6.2.3)")
        if self._group:
            raise ElementError(f"the last {self._group.counter - 1} parts of a tensor are missing (6.4.3.1)")
        if self._g:
            raise ElementError(f"the bitstream ends before H of {self._g[0].names[0]!r} (6.4.3.7)")

    def _start(self, unit: Unit) -> None:
        profile = cast(NnrStartUnitHeader, unit.header.detail).general_profile_idc
        if profile > 1:
            raise UnsupportedError(f"{unit.label()}: general_profile_idc {profile} is not defined (6.4.3.2)")

    def _topology(self, unit: Unit) -> None:
        header = cast(NnrTopologyUnitHeader, unit.header.detail)
        if header.topology_storage_format in (NNR_TPL_PRUN, NNR_TPL_REFLIST):
            return
        data = cast(NnrTopologyUnitPayload, unit.payload).topology_data
        if header.topology_storage_format == NNR_TPL_NNEF and data.rstrip(b"\0"):
            text = self._text(unit, header.topology_compression_format, data)
            self.topology = Topology("nnef", text, self._quantization_text)

    def _quantization(self, unit: Unit) -> None:
        header = cast(NnrQuantizationUnitHeader, unit.header.detail)
        if header.quantization_storage_format == NNR_QNT_NNEF:
            data = cast(NnrQuantizationUnitPayload, unit.payload).quantization_data
            self._quantization_text = self._text(unit, header.quantization_compression_format, data)
            if self.topology:
                self.topology = replace(self.topology, quantization=self._quantization_text)

    def _text(self, unit: Unit, compression: int, data: bytes) -> bytes:
        """A null-terminated string of Annex A.4, inflated where it is deflated, without its zero."""
        if compression == NNR_DFL:
            data = self._inflate(unit, data)
        elif compression != NNR_PT_RAW:
            raise ElementError(f"compression format {compression} is reserved (Table 5)", unit=unit.label())
        self.budget.charge("max_topology_bytes", len(data), f"{unit.label()}: topology data")
        if data.find(0) != len(data) - 1:
            raise ElementError(
                "topology or quantization data is not one null-terminated string (A.4)", unit=unit.label()
            )
        return data[:-1]

    def _inflate(self, unit: Unit, data: bytes) -> bytes:
        room = self.limits.max_topology_bytes - self.budget.spent.get("max_topology_bytes", 0)
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(data, min(room, Limits.NONE - 1) + 1)
        except zlib.error as error:
            raise ElementError(f"deflated data is damaged: {error} (RFC 1950)", unit=unit.label()) from None
        if len(text) > room:
            self.budget.charge("max_topology_bytes", len(text), f"{unit.label()}: topology data")
        if not inflater.eof or inflater.unused_data:
            raise ElementError("deflated data does not end with its unit (RFC 1950)", unit=unit.label())
        return text

    # ------------------------------------------------------------------------------------------ compressed data units
    def _ndu(self, unit: Unit) -> Iterator[list[NduTask]]:
        if not self.reader.session.has_mps:
            raise ElementError("an NNR_NDU before the NNR_MPS (6.2.3)")
        payload = self._joined(unit)
        if payload is None:
            return
        task = self._task(unit, payload)
        if self._g:
            (g,) = self._g
            if task.role != "h":
                raise ElementError(f"H of {g.names[0]!r} is expected after G (6.4.3.7)")
            if any(
                getattr(task.header, name) != getattr(g.header, name)
                for name in ("tensor_dimensions", "decomposition_rank", "g_number_of_rows")
            ):
                raise ElementError(f"G and H of {g.names[0]!r} differ in their dimensions (6.4.3.7)")
        if task.role == "g":
            self._g = [task]
        else:
            group, self._g = [*self._g, task], []
            yield group

    def _joined(self, unit: Unit) -> memoryview | None:
        """The payload, or None while parts of it are to come."""
        counter, payload = unit.header.partial_data_counter, cast(memoryview, unit.payload)
        if counter == 0 and not self._group:
            return payload
        if not self._group:
            self._group = _Group(unit.ndu, counter + 1)
        group = self._group
        if counter != group.counter - 1 or unit.ndu != group.header:
            raise ElementError(
                f"partial_data_counter is {counter}, or another tensor's: part {group.counter - 1} of "
                f"{self.reader.session.names(group.header)[0]!r} is expected (6.4.3.1)"
            )
        self.budget.charge("max_pending_bytes", len(payload), "parts of a tensor")
        group.counter = counter
        group.payloads.append(payload)
        if counter > 1:
            return None
        self._group = None
        self.budget.spent.pop("max_pending_bytes", None)
        return memoryview(b"".join(group.payloads))

    def _task(self, unit: Unit, payload: memoryview) -> NduTask:
        session, header = self.reader.session, unit.ndu
        names = session.names(header)
        for name in names:
            if name in self._names and not session.g_header:
                raise ElementError(f"{name!r} occurs twice; topology element ids are unique (6.2.3)")
            self._names.add(name)
        label = unit.label(names)
        kind, dims = header.nnr_compressed_data_unit_payload_type, session.tensor_dimensions(header)
        if kind > NNR_PT_BLOCK:
            raise ElementError(f"payload type {kind} is reserved (Table 16)", unit=label)
        if min(dims, default=0) < 1 and not (dims == [] and kind == NNR_PT_RAW_FLOAT):
            raise ElementError(f"tensor_dimensions {dims} hold nothing that is coded (7.3)", unit=label)
        if header.first_tensor_dimension_shift >= max(len(dims), 1):
            raise ElementError(
                f"first_tensor_dimension_shift {header.first_tensor_dimension_shift} is not less than the number of "
                f"dimensions {len(dims)} (6.4.3.7)",
                unit=label,
            )
        if kind == NNR_PT_RAW_FLOAT and header.compressed_parameter_types & NNR_CPT_DC:
            raise ElementError("raw parameters are not decomposed (7.3.4)", unit=label)
        if kind == NNR_PT_BLOCK and not header.compressed_parameter_types:
            raise ElementError("a block has no parameters beside its weight (Table 9, errata N7)", unit=label)
        task = NduTask(
            label,
            names,
            unit,
            header,
            parts(header, session),
            payload,
            replace(session),
            data_format(header, session),
            dims,
            *self._references(header, names[0]),
            self.limits,
        )
        task.charge(Budget(self.limits))
        for part in task.parts:
            if part.codebook:
                codebook_array(part.codebook, self.limits)
        return task

    def _references(self, header: NnrCompressedDataUnitHeader, name: str) -> tuple[Any, Any]:
        """coLocParam and AnySigBeforeFlag of the unit's parts, empty where there are none."""
        parent, before = self.state.parent(header, name), self._history(header)
        temporal = parent and header.temporal_context_modeling_flag
        return (parent.levels if parent and temporal else ()), (before.any_sig if before else ())

    def _history(self, header: NnrCompressedDataUnitHeader) -> Node | None:
        """What earlier updates of the same parameter left, whatever their depth (errata D4)."""
        key = node_key(header)
        return self.state.node(key) if key and header.parent_node_id_present_flag else None

    def _remember(self, task: NduTask, recs: list[Rec]) -> None:
        """Store what later updates refer to, and undo predictive residual encoding (7.3.2, 7.3.3, 9.2.4)."""
        header, key, before = task.header, node_key(task.header), self._history(task.header)
        if key is None:
            return
        node = Node(header.put_node_depth)
        if header.parent_node_id_present_flag:
            # The caller owns what is returned, so the state keeps copies of what the two would share.
            levels = tuple(
                rec.levels.copy() if np.may_share_memory(rec.levels, rec.values) else rec.levels
                for rec in recs
                if rec.levels is not None
            )
            any_sig = tuple(level != 0 for level in levels)
            if before and before.any_sig:
                any_sig = tuple(old | new for old, new in zip(before.any_sig, any_sig, strict=True))
            update: npt.NDArray[Any] | None = None
            if header.nnr_compressed_data_unit_payload_type != NNR_PT_BLOCK and not self.raw:
                if self.reader.session.nnr_pre_flag and before and before.update is not None:
                    if before.update.shape != recs[0].values.shape:
                        raise MissingReferenceError(f"{task.label}: the update before it has another shape (9.2.4)")
                    recs[0].values = add_update(recs[0].values, before.update, task.data_format)
                update = recs[0].values.copy()
            node = Node(header.put_node_depth, levels, any_sig, update)
        self.state.put(key, node, self.limits)


def decode_bitstream(
    data: Buffer,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    state: UpdateState | None = None,
    raw: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[Model, UpdateState]:
    """Decode a whole bitstream.

    Parameters and errors are those of :func:`nnr_codec.decode`; ``state`` is not changed.

    Returns
    -------
    Model, UpdateState
        The tensors with the topology, and the state after them.

    Notes
    -----
    Profile 0 has two readings (errata K1, K4), and a payload can be legal in both. So the whole bitstream is read as
    the 2024 text says, and when a payload does not fit, the whole of it is read again as the first edition's software
    wrote.
    """

    def decoder(first_edition: bool) -> Decoder:
        return Decoder(
            data,
            limits=limits or Limits(),
            topology_dimensions=topology_dimensions or {},
            state=(state or UpdateState()).fork(),
            raw=raw,
            first_edition=first_edition,
        )

    def tensors_of(attempt: Decoder) -> dict[str, Array]:
        tensors = {}
        for name, array in attempt:
            tensors[name] = array
            if progress:
                progress(name)
        return tensors

    attempt = decoder(first_edition=False)
    try:
        tensors = tensors_of(attempt)
    except PayloadError as error:
        if attempt.reader.session.general_profile_idc != 0:
            raise
        attempt = decoder(first_edition=True)
        try:
            tensors = tensors_of(attempt)
        except NnrError:
            raise error from None
    return Model(tensors, attempt.topology), attempt.state
