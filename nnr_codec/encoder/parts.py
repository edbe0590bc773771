"""Layer parameter sets, and parts of a model as self-contained aggregate units (ISO/IEC 15938-17:2024, 6.2.2, 6.4.3.8).

Each aggregate begins with a layer parameter set, with the quantization parameters of the model, so that it has the two
units that 6.3.3.8 requires. A part that would exceed the largest unit, or the requested size of parts, becomes several
aggregates. Without parts, the layer parameter set of a layer precedes its units and has its own quantization parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..bitstream.aggregate import write_aggregate
from ..bitstream.performance import PerformanceMaps
from ..bitstream.units import write_unit
from ..config import EncoderConfig
from ..constants import NNR_AGG_SLF, NNR_LPS, NNR_QCB, NNR_QSU
from ..errors import EncodeError, Option
from ..syntax import Session
from ..syntax.structures import NnrLayerParameterSetUnitHeader, NnrLayerParameterSetUnitPayload, NnrUnitHeader
from .block_units import UnitPlan

#: Largest nnr_unit_size, and number of units in an aggregate (6.3.2, 6.3.3.8).
MOST_BYTES, MOST_UNITS = (1 << 31) - 1, (1 << 16) + 1
#: Maximum bytes of an aggregate without the units of tensors, and of an entry in the lists of its header.
HEADER_BYTES, ENTRY_BYTES = 64, 6

#: Names of a part and of the parts around it, from the outermost; empty for units outside parts.
Path = tuple[str, ...]


def paths_of(names: Sequence[str], config: EncoderConfig) -> list[Path]:
    """Return the part or layer of each unit, given the name of its first tensor.

    With ``layer_parameter_sets``, a tensor without a layer is a layer by itself.
    """
    parts = config.parts
    if config.layer_parameter_sets:
        return [_layer(name) or (name,) for name in names]
    if isinstance(parts, int):
        return [("part",)] * len(names)
    if isinstance(parts, str):
        return [_layer(name) for name in names]
    found = []
    for name in names:
        matching = [part for pattern, part in parts.items() if fnmatchcase(name, pattern)]
        found.append(tuple(matching[-1].split("/")) if matching else ())
    return found


def _layer(name: str) -> Path:
    """Return the part of a tensor in a model divided into layers."""
    before = re.match(r".*?[./]\d+(?=[./])", name) or re.match(r".+(?=[./])", name)
    return (before[0],) if before else ()


def check_layers(layers: Mapping[str, PerformanceMaps], paths: Iterable[Path]) -> None:
    """Raise EncodeError for maps of a part without tensors, and for a unification map of a part with inner parts.

    A unification map would add elements to the headers of the inner aggregates (6.3.3.8).
    """
    known = {"/".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    for name, maps in layers.items():
        if name not in known:
            raise EncodeError(Option("performance"), f" has maps of the part {name!r}, which has no tensors")
        if maps.unification and any(other.startswith(f"{name}/") for other in known):
            raise EncodeError(Option("performance"), f" has a unification map of {name!r}, which contains other parts")


def contiguous(paths: Sequence[Path]) -> list[int]:
    """Return an order in which the units of each part are contiguous, at the place of its first unit."""
    first: dict[Path, int] = {}
    places = []
    for place, path in enumerate(paths):
        around = [first.setdefault(path[:depth], place) for depth in range(1, len(path) + 1)]
        places.append((*around, place))
    return sorted(range(len(paths)), key=places.__getitem__)


@dataclass(frozen=True)
class LayerParameterSets:
    """Layer parameter sets of parts or layers.

    Parameters
    ----------
    units : mapping of Path to sequence of UnitPlan
        Units to which a set applies, including the units of inner parts.
    qp_density : int
    parameters : mapping of Path to int
        QuantizationParameter; other paths have the quantization parameter of the model, with the key ``()``.
    maps : mapping of str to PerformanceMaps
        Performance maps, by name of the part or layer.
    reduced : mapping of str to set of str
        Names of tensors to which parameter reduction was applied, by kind of reduction.
    is_self_contained : bool
        True if the units decode without units outside the part.
    """

    units: Mapping[Path, Sequence[UnitPlan]]
    qp_density: int
    parameters: Mapping[Path, int]
    maps: Mapping[str, PerformanceMaps]
    reduced: Mapping[str, Set[str]]
    is_self_contained: bool = True

    def unit(self, path: Path, session: Session) -> bytes:
        """Return the unit of a set; ``session`` is the state before it, and is updated."""
        plans = [plan for unit in self.units[path] for plan in unit.plans]
        maps = self.maps.get("/".join(path), PerformanceMaps())
        for kind, names in self.reduced.items():
            if kind != "decomposition" and any(plan.name in names for plan in plans):
                maps = maps.noting(kind)
        payload = NnrLayerParameterSetUnitPayload(
            lps_quantization_method_flags=NNR_QSU | NNR_QCB * any(plan.codebook for plan in plans),
            lps_qp_density=self.qp_density,
            lps_quantization_parameter=self.parameters.get(path, self.parameters[()]),
            **maps.elements("lps"),
        )
        detail = NnrLayerParameterSetUnitHeader(lps_self_contained_flag=int(self.is_self_contained))
        return write_unit(NnrUnitHeader(nnr_unit_type=NNR_LPS, detail=detail), payload, session)


class LayerWriter:
    """Writer of units with a layer parameter set before the units of each layer, which must be contiguous.

    Parameters
    ----------
    sets : LayerParameterSets
    session : Session
        State before the first unit.
    """

    def __init__(self, sets: LayerParameterSets, session: Session) -> None:
        self._states = {path: session.snapshot() for path in sets.units}
        self._sets = {path: sets.unit(path, after) for path, after in self._states.items()}

    def state(self, path: Path) -> Session:
        """Return the state before the units of a layer."""
        return self._states[path]

    def add(self, path: Path, units: list[bytes]) -> Iterator[bytes]:
        """Yield the units of a tensor, after the set of their layer if they are the first ones."""
        if units and path in self._sets:
            yield self._sets.pop(path)
        yield from units

    def close(self) -> Iterator[bytes]:
        """Yield nothing: no units remain."""
        yield from ()


@dataclass
class _Aggregate:
    """Incomplete aggregate: name of the part, units, and their size in bytes."""

    name: str
    units: list[bytes]
    nbytes: int


class PartWriter:
    """Writer of units in parts, which must be contiguous.

    Parameters
    ----------
    sets : LayerParameterSets
        Sets of the parts.
    session : Session
        State before the first unit.
    size : int
        Maximum bytes of an aggregate with more than one tensor.
    """

    def __init__(self, sets: LayerParameterSets, session: Session, size: int = MOST_BYTES) -> None:
        self._sets, self._session, self._size = sets, session, size
        self._open = list[_Aggregate]()

    def state(self, _: Path) -> Session:
        """Return the state before the units of a part, whose set has the values of the model parameter set."""
        return self._session

    def _begun(self, name: str) -> _Aggregate:
        """Return an aggregate for an inner part of the open parts, with its layer parameter set."""
        path = (*[part.name for part in self._open], name)
        unit = self._sets.unit(path, self._session.snapshot())
        return _Aggregate(name, [unit], len(unit))

    def add(self, path: Path, units: list[bytes]) -> Iterator[bytes]:
        """Take the units of a tensor; yield units of the bitstream that are complete.

        Raises EncodeError if they do not fit into an aggregate.
        """
        if not units:  # of a tied or empty tensor
            return
        depth = 0
        while depth < min(len(path), len(self._open)) and path[depth] == self._open[depth].name:
            depth += 1
        yield from self.close(depth)
        for name in path[depth:]:
            self._open.append(self._begun(name))
        yield from self._put(units)

    def close(self, depth: int = 0) -> Iterator[bytes]:
        """End all parts but the outermost ``depth``; yield units of the bitstream that are complete."""
        while len(self._open) > depth:
            yield from self._put([self._aggregate(self._open.pop())])

    def _put(self, units: list[bytes]) -> Iterator[bytes]:
        """Append units to the innermost part, or yield them if there is none."""
        if not self._open:
            yield from units
            return
        part, size = self._open[-1], sum(map(len, units)) + ENTRY_BYTES * len(units)
        # An aggregate leaves room for the header of the aggregate around it.
        headers = HEADER_BYTES * len(self._open)
        most = MOST_BYTES - headers
        is_full = part.nbytes + size > min(self._size - headers, most)
        if len(part.units) > 1 and (is_full or len(part.units) + len(units) > MOST_UNITS):
            yield from self.close(len(self._open) - 1)
            part = self._begun(part.name)
            self._open.append(part)
        if part.nbytes + size > most:
            raise EncodeError(
                f"part {part.name!r} cannot contain a tensor of {size:,} bytes; an aggregate has at most {most:,}"
            )
        part.units += units
        part.nbytes += size

    def _aggregate(self, part: _Aggregate) -> bytes:
        return write_aggregate(
            part.units, nnr_aggregate_unit_type=NNR_AGG_SLF, entry_points=True, session=self._session
        )
