"""Units to tensors: headers one after another, each payload a task of its own (ISO/IEC 15938-17:2024, clause 7)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from ..bitstream.payload import codebook_array, parts
from ..bitstream.units import Unit, UnitReader
from ..constants import (
    NNR_CPT_DC,
    NNR_DFL,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_BLOCK,
    NNR_PT_FLOAT,
    NNR_PT_RAW,
    NNR_PT_RAW_FLOAT,
    NNR_QNT,
    NNR_QNT_NNEF,
    NNR_STR,
    NNR_TPL,
    NNR_TPL_NNEF,
)
from ..errors import (
    BitstreamError,
    ElementError,
    MissingReferenceError,
    UnsupportedError,
)
from ..limits import Budget, Limits
from ..model import Model, Topology
from ..syntax import Session
from ..syntax.structures import (
    NnrCompressedDataUnitHeader,
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrStartUnitHeader,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)
from .group import Group, decode_groups, is_first_edition
from .state import Key, UpdateState, node_key
from .task import NduTask, data_format

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream


@dataclass
class _Partial:
    """Units of one partial-data group (errata N4)."""

    header: NnrCompressedDataUnitHeader
    counter: int
    payloads: list[memoryview] = field(default_factory=list)
    nbytes: int = 0


class BitstreamParser:
    """Takes a bitstream apart into groups, each of which can be decoded for itself; nothing is decoded here.

    Parameters
    ----------
    data : bytes-like, path or binary file
    limits : Limits
    topology_dimensions : mapping of str to sequence of int
        Dimensions of tensors whose units leave them out.

    Attributes
    ----------
    topology : Topology or None
        Of the units so far.
    """

    def __init__(self, data: Bitstream, limits: Limits, topology_dimensions: Mapping[str, Sequence[int]]) -> None:
        self.reader = UnitReader(data, limits, Session(topology_dimensions))
        self.budget = Budget(limits)
        self.limits = limits
        self.topology: Topology | None = None
        self._quantization_text: bytes | None = None
        self._names: set[str] = set()
        self._keys: set[Key] = set()
        self._partial: _Partial | None = None
        self._g: NduTask | None = None

    @property
    def profile(self) -> int:
        """general_profile_idc."""
        return self.reader.session.general_profile_idc

    def groups(self) -> Iterator[Group]:
        """The units that carry tensors, in order; a G unit comes with its H unit."""
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
        if self._partial:
            raise ElementError(f"the last {self._partial.counter - 1} parts of a tensor are missing (6.4.3.1)")
        if self._g:
            raise ElementError(f"the bitstream ends before H of {self._g.names[0]!r} (6.4.3.7)")

    def _start(self, unit: Unit) -> None:
        profile = cast(NnrStartUnitHeader, unit.header.detail).general_profile_idc
        if profile > 1:
            raise UnsupportedError(f"{unit.label()}: general_profile_idc {profile} is not defined (6.4.3.2)")

    def _topology(self, unit: Unit) -> None:
        header = cast(NnrTopologyUnitHeader, unit.header.detail)
        if header.topology_storage_format != NNR_TPL_NNEF:
            return
        data = cast(NnrTopologyUnitPayload, unit.payload).topology_data
        if data.rstrip(b"\0"):
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
    def _ndu(self, unit: Unit) -> Iterator[Group]:
        if not self.reader.session.has_mps:
            raise ElementError("an NNR_NDU before the NNR_MPS (6.2.3)")
        joined = self._joined(unit)
        if joined is None:
            return
        task, g = self._task(unit, *joined), self._g
        if g and task.role != "h":
            raise ElementError(f"H of {g.names[0]!r} is expected after G (6.4.3.7)")
        if task.role == "g":
            self._g = task
            return
        self._g = None
        if g and (difference := _difference(g, task)):
            raise ElementError(f"G and H of {g.names[0]!r} differ in {difference} (6.4.3.7)")
        yield Group((g, task) if g else (task,), self.limits)

    def _joined(self, unit: Unit) -> tuple[memoryview, int] | None:
        """The payload and the bytes of its units, or None while parts of it are to come."""
        counter, payload = unit.header.partial_data_counter, cast(memoryview, unit.payload)
        if counter == 0 and not self._partial:
            return payload, unit.size.nnr_unit_size
        if not self._partial:
            self._partial = _Partial(unit.ndu, counter + 1)
        partial = self._partial
        if counter != partial.counter - 1 or unit.ndu != partial.header:
            raise ElementError(
                f"partial_data_counter is {counter}, or another tensor's: part {partial.counter - 1} of "
                f"{self.reader.session.names(partial.header)[0]!r} is expected (6.4.3.1)"
            )
        self.budget.charge("max_pending_bytes", len(payload), "parts of a tensor")
        partial.counter = counter
        partial.payloads.append(payload)
        partial.nbytes += unit.size.nnr_unit_size
        if counter > 1:
            return None
        self._partial = None
        self.budget.spent.pop("max_pending_bytes", None)
        return memoryview(b"".join(partial.payloads)), partial.nbytes

    def _task(self, unit: Unit, payload: memoryview, nbytes: int) -> NduTask:
        session, header = self.reader.session, unit.ndu
        names = session.names(header)
        for name in names:
            if name in self._names and not (self._g and name in self._g.names):  # a pair counts once (errata N4)
                raise ElementError(f"{name!r} occurs twice; topology element ids are unique (6.2.3)")
            self._names.add(name)
        label = unit.label(names)
        key = node_key(header)
        if key in self._keys and not (self._g and key == node_key(self._g.header)):
            raise ElementError(f"device_id and parameter_id {key} occur twice in one bitstream (6.4.3.7)", unit=label)
        if key:
            self._keys.add(key)
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
        if header.compressed_parameter_types & NNR_CPT_DC and kind not in (NNR_PT_FLOAT, NNR_PT_BLOCK):
            raise ElementError("only tensors of NNR_PT_FLOAT and NNR_PT_BLOCK are decomposed (7.3.5)", unit=label)
        if header.compressed_parameter_types & NNR_CPT_DC and kind == NNR_PT_FLOAT and len(names) > 1:
            raise ElementError("a decomposed tensor has one topology element (7.3.1)", unit=label)
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
            nbytes,
            self.limits,
        )
        task.charge(Budget(self.limits))
        for part in task.parts:
            if part.codebook:
                codebook_array(part.codebook, self.limits)
        return task


def _difference(g: NduTask, h: NduTask) -> str:
    """What the two units of a decomposed tensor do not agree about; empty when they do."""
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


def decode_bitstream(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    state: UpdateState | None = None,
    raw: bool = False,
) -> tuple[Model, UpdateState]:
    """Decode a whole bitstream.

    Parameters and errors are those of :func:`nnr_codec.decode`; ``state`` is not changed.

    Returns
    -------
    Model, UpdateState
        The tensors with the topology, and the state after them.
    """
    parser = BitstreamParser(data, limits or Limits(), topology_dimensions or {})
    groups = list(parser.groups())
    fork = (state or UpdateState()).fork()
    first_edition = parser.profile == 0 and is_first_edition(groups)
    tensors = decode_groups(groups, parser.limits, first_edition=first_edition, state=fork, raw=raw)
    return Model(tensors, parser.topology), fork
