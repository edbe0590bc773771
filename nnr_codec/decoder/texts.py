"""Topology and quantization data of a bitstream, and the shapes they declare (6.4.4.5, 6.4.4.6, A.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import formats
from ..bitstream.topology_units import inflate
from ..constants import NNR_DFL, NNR_PT_RAW, TOPOLOGY_FORMATS
from ..errors import ElementError
from ..limits import Budget, Limits
from ..model import Topology, Wiring
from ..rules import Requirement
from ..syntax import Session
from ..syntax.structures import (
    NnrQuantizationUnitHeader,
    NnrQuantizationUnitPayload,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)
from .topology import Shape, TopologyInfo

if TYPE_CHECKING:
    from ..syntax.session import TopologyUnit


class Texts:
    """Reader of the topology and quantization units of one bitstream.

    Parameters
    ----------
    budget : Budget
        Charged with ``max_topology_bytes``.
    given : Topology, optional
        Replaces the topology of the bitstream; a missing quantization text is taken from the bitstream.
    before : Topology, optional
        Topology of earlier bitstreams, to which an update without topology refers.

    Attributes
    ----------
    topology : Topology or None
        The given topology, or the topology of the units so far.
    apart : str
        Format of a topology that the bitstream declares to be stored separately (B.4); empty if there is none.

    Raises ElementError for malformed data, LimitError for data beyond the limits.
    """

    def __init__(self, budget: Budget, given: Topology | None = None, before: Topology | None = None) -> None:
        self._budget, self._given, self._before = budget, given, before
        self.topology = given
        self.apart = ""
        self._quantization: dict[str, bytes] = {}
        self._info: tuple[bytes, TopologyInfo] = b"", TopologyInfo(Wiring())  # last parsed text

    def context(self, session: Session) -> Topology | None:
        """Return the topology to which the tensors belong."""
        return self.topology or (self._before if session.mps_parent_signalling_enabled_flag else None)

    def info(self, session: Session) -> TopologyInfo:
        """Return the declarations of the topology; its text is parsed once, on the first call."""
        topology = self.context(session)
        text = topology.data if topology else b""
        if self._info[0] is not text:
            self._info = text, TopologyInfo(formats.wiring(topology) if topology else Wiring())
        return self._info[1]

    def shape(self, name: str, session: Session) -> Shape | None:
        """Return the shape that the topology declares for a tensor; see Session."""
        return self.info(session).shape(name)

    def add_topology(self, header: NnrTopologyUnitHeader, payload: NnrTopologyUnitPayload) -> None:
        """Add an NNR_TPL unit."""
        name = TOPOLOGY_FORMATS.get(header.topology_storage_format)
        # Data of unknown format never replaces data of a known format; a single zero byte means no data.
        if name is None or (name == "" and self.topology):
            return
        if not payload.topology_data.rstrip(b"\0"):
            self.apart = name
            return
        data = self._data("topology", name, header.topology_compression_format, payload.topology_data)
        if data is not None and not data.rstrip(b"\0"):
            self.apart = name
        elif data is not None and not self._given:
            self.topology = Topology(name, data, self._quantization.get(name))

    def add_quantization(self, header: NnrQuantizationUnitHeader, payload: NnrQuantizationUnitPayload) -> None:
        """Add an NNR_QNT unit of a known format."""
        name = TOPOLOGY_FORMATS[header.quantization_storage_format]
        data = self._data("quantization", name, header.quantization_compression_format, payload.quantization_data)
        if data is None:
            return
        self._quantization[name] = data
        has_own = self._given and self._given.quantization is not None
        if self.topology and self.topology.format == name and not has_own:
            self.topology = replace(self.topology, quantization=data)

    def _data(self, kind: str, name: str, compression: int, data: bytes) -> bytes | None:
        """Return the data of a unit; None for unreadable data of an unrecognized format."""
        try:
            return self._text(kind, name, compression, data)
        except ElementError:
            if name:
                raise
            return None

    def _text(self, kind: str, name: str, compression: int, data: bytes) -> bytes:
        """Return the inflated data; for NNEF without the terminating zero of the string (A.4)."""
        if compression == NNR_DFL:
            data = inflate(data, self._budget, "max_topology_bytes", "topology and quantization data")
        elif compression != NNR_PT_RAW:
            raise ElementError(
                f"compression format {compression} is reserved (Table 5)", rule=Requirement.COMPRESSION_FORMAT
            )
        self._budget.charge("max_topology_bytes", len(data), "topology and quantization data")
        if name != "nnef":
            return data
        if not data or data.find(0) != len(data) - 1:
            rule = Requirement.NNEF_STRING if kind == "topology" else Requirement.NNEF_QUANTIZATION_STRING
            raise ElementError(f"{kind} data must be a single null-terminated string", clause="A.4", rule=rule)
        return data[:-1]


def session_for(
    topology_dimensions: Mapping[str, Sequence[int]] | None,
    topology: formats.TopologySource | None,
    limits: Limits | None,
) -> Session:
    """Return a session for reading headers; the topology is parsed only if headers omit dimensions."""
    given = formats.topology_of(topology, limits=limits)
    return Session(topology_dimensions or {}, declared=DeclaredShapes(limits, given))


class DeclaredShapes:
    """Lazily parsed shapes of the topology of a bitstream, for :func:`session_for`.

    Parameters
    ----------
    limits : Limits or None
        ``max_topology_bytes`` limits all topologies of a bitstream together.
    given : Topology or None
        Replaces the topology of the bitstream.

    Raises the errors of :class:`Texts` on access.
    """

    def __init__(self, limits: Limits | None, given: Topology | None) -> None:
        self._given, self._budget = given, Budget(limits or Limits())
        self._unit: TopologyUnit | None = None
        self._texts = Texts(self._budget, given)

    def __call__(self, name: str, session: Session) -> Shape | None:
        if session.topology is not self._unit and not self._given:
            texts = Texts(self._budget)
            if session.topology:
                texts.add_topology(*session.topology)
            self._unit, self._texts = session.topology, texts  # after an error, the next call parses again
        return self._texts.shape(name, session)
