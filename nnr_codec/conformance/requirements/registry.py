"""Registry of the checks of :mod:`nnr_codec.rules`, and the state that they read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from ...constants import NNR_NDU, NNR_TPL, NNR_TPL_NNEF
from ...formats import readable_wiring
from ...limits import Limits
from ...model import Topology, Wiring
from ...rules import Requirement

if TYPE_CHECKING:
    from ...bitstream.units import Unit
    from ...decoder.group import Group
    from ...decoder.reconstruct import Rec
    from ...decoder.state import UpdateState
    from ...formats.findings import ModelReport
    from ...syntax import Session
    from ...syntax.structures import NnrTopologyUnitHeader


class Finding(NamedTuple):
    """Finding of a check.

    Parameters
    ----------
    message : str
        Description of the violation, with the values.
    element : str
        Path of the syntax element within its unit, as in a trace; empty if there is no single element.
    seen : SeenUnit or None
        The unit; None for the current unit, or for the whole bitstream.
    """

    message: str
    element: str = ""
    seen: SeenUnit | None = None


@dataclass(eq=False)
class SeenUnit:
    """Unit with the session before it.

    Parameters
    ----------
    unit : Unit
    session : Session
        Copy of the session.
    names : tuple of str
        Topology element ids of a compressed data unit.
    members : list of AggregateMember
        Units of an aggregate.
    level_bits : int or None
        Bits of the largest QuantParam of the unit in two's complement; None if there is none.
    refused : bool
        Whether the decoder rejected the unit, or units of an aggregate are missing.
    """

    unit: Unit
    session: Session
    names: tuple[str, ...] = ()
    members: list[AggregateMember] = field(default_factory=list)
    level_bits: int | None = None
    refused: bool = False


class AggregateMember(NamedTuple):
    """Unit of an aggregate: its offset in the bitstream, its nnr_unit_type, and the unit if it is readable."""

    offset: int
    nnr_unit_type: int
    seen: SeenUnit | None


@dataclass
class History:
    """State after earlier bitstreams.

    Parameters
    ----------
    state : UpdateState
    names : dict
        Topology element ids by (device_id, parameter_id).
    digests : set of bytes
        SHA-256 and SHA-512 of the payloads of all tensors (errata N4).
    bitstreams, updates : int
        Numbers of bitstreams, and of differential updates of tensors.
    topology : Topology or None
        Topology of the last bitstream that has one.
    """

    state: UpdateState
    names: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    digests: set[bytes] = field(default_factory=set)
    bitstreams: int = 0
    updates: int = 0
    topology: Topology | None = None


@dataclass
class CheckedBitstream:
    """Bitstream that is being checked.

    Parameters
    ----------
    limits : Limits
    history : History
        State after the preceding bitstreams.
    seen : dict of int to SeenUnit
        Readable units so far, by number.
    topology : Topology or None
        The given topology, or the topology of this or of an earlier bitstream.
    first_edition : bool
        Reading of profile 0 (errata K4).
    owners : mapping of str to str
        Tensor names by unit id, for units whose id comes from side information.
    shapes : dict of str to tuple of int
        Shapes of the tensors that a topology in the bitstream declares, except pruned ones.
    complete : bool
        Whether all units are readable.
    """

    limits: Limits
    history: History
    seen: dict[int, SeenUnit] = field(default_factory=dict)
    topology: Topology | None = None
    first_edition: bool = False
    owners: Mapping[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    complete: bool = True

    def of(self, *types: int) -> list[SeenUnit]:
        """Return the units of these types."""
        return [seen for seen in self.seen.values() if seen.unit.header.nnr_unit_type in types]

    def late(self, kind: int) -> Iterator[Finding]:
        """Yield a finding for each unit of a type that follows tensors."""
        tensors = 0
        for seen in self.of(NNR_NDU, kind):
            tensors += seen.unit.header.nnr_unit_type == NNR_NDU
            if tensors and seen.unit.header.nnr_unit_type == kind:
                yield Finding(f"{tensors} NNR_NDU come before this unit", "nnr_unit_type", seen)

    @cached_property
    def graphs(self) -> list[SeenUnit]:
        """Units with an NNEF topology."""
        headers = ((seen, cast("NnrTopologyUnitHeader", seen.unit.header.detail)) for seen in self.of(NNR_TPL))
        return [seen for seen, header in headers if header.topology_storage_format == NNR_TPL_NNEF]

    @cached_property
    def texts(self) -> dict[str, bytes]:
        """The NNEF texts ``topology`` and ``quantization``, if present."""
        topology = self.topology
        if not topology or topology.format != "nnef":
            return {}
        quantization = {} if topology.quantization is None else {"quantization": topology.quantization}
        return {"topology": topology.data, **quantization}

    @cached_property
    def validity(self) -> ModelReport | None:
        """Violations in the NNEF texts; None without NNEF texts."""
        from ...formats.nnef.validate import validate_texts

        if not self.texts:
            return None
        return validate_texts(self.texts["topology"], self.texts.get("quantization"), self.limits)

    @property
    def wiring(self) -> Wiring | None:
        """Information of the NNEF topology; None if it is missing or unreadable."""
        return readable_wiring(self.topology) if self.topology and self.texts else None

    @property
    def variables(self) -> Collection[str] | None:
        """Labels of the NNEF topology; None if it is missing or unreadable."""
        return None if self.wiring is None else self.wiring.shapes.keys()

    @cached_property
    def _folded(self) -> frozenset[str]:
        return frozenset(label.casefold() for label in self.variables or ())

    def is_stranger(self, name: str) -> bool:
        """Return whether a readable topology lacks this label in any spelling (NNEF 1.0, 4.1.3)."""
        return self.variables is not None and self.owners.get(name, name).casefold() not in self._folded


UnitCheck = Callable[[CheckedBitstream, SeenUnit], Iterator[Finding]]
TensorCheck = Callable[[CheckedBitstream, "Group", "list[Rec]"], Iterator[Finding]]
EndCheck = Callable[[CheckedBitstream], Iterator[Finding]]

UNIT_CHECKS: list[tuple[Requirement, tuple[int, ...], UnitCheck]] = []
TENSOR_CHECKS: list[tuple[Requirement, TensorCheck]] = []
END_CHECKS: list[tuple[Requirement, EndCheck]] = []


def each_unit(rule: Requirement, *types: int) -> Callable[[UnitCheck], UnitCheck]:
    """Register a check of every unit of these types (default: all), run after its header and structures are read."""

    def register(check: UnitCheck) -> UnitCheck:
        UNIT_CHECKS.append((rule, types, check))
        return check

    return register


def each_tensor(rule: Requirement) -> Callable[[TensorCheck], TensorCheck]:
    """Register a check of every tensor (the Rec* tensors of a unit or G/H pair), run after it is decoded."""

    def register(check: TensorCheck) -> TensorCheck:
        TENSOR_CHECKS.append((rule, check))
        return check

    return register


def at_end(rule: Requirement) -> Callable[[EndCheck], EndCheck]:
    """Register a check of the whole bitstream."""

    def register(check: EndCheck) -> EndCheck:
        END_CHECKS.append((rule, check))
        return check

    return register
