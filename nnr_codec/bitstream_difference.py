"""First difference of two bitstreams: its position and its effect on the decoded tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from . import formats
from .bitstream.source import open_source
from .bitstream.units import Unit, UnitReader
from .compare import TensorDifference, compare_tensors
from .constants import NNR_AGG
from .decoder.index import NnrFile
from .decoder.texts import session_for
from .errors import NnrError
from .limits import Limits
from .model import Array, Topology
from .syntax import Descriptor, Session

if TYPE_CHECKING:
    from .bitstream.source import Bitstream
    from .formats import TopologySource

_CHUNK = 1 << 20


@dataclass(frozen=True)
class DifferencePosition:
    """Position of the first difference in one of two bitstreams, and the value there.

    Parameters
    ----------
    unit : str
        Label of the unit as in messages; empty at the end of the bitstream.
    element : str
        Path of the syntax element; ``payload`` for the payload of a compressed data unit.
    offset : int
        Offset of the unit in the bitstream, in bytes.
    bit : int
        First bit of the element, or first differing bit of a payload, relative to the unit.
    value : object
        Value of the element; for a payload, its size in bytes.
    """

    unit: str
    element: str = ""
    offset: int = 0
    bit: int = 0
    value: Any = None


@dataclass(frozen=True)
class BitstreamDifference:
    """First difference of two bitstreams.

    Parameters
    ----------
    places : (DifferencePosition, DifferencePosition)
    tensor : str
        First tensor with the same shape in both but different decoded values; empty if there is none.
    values : TensorDifference or None
        Difference of that tensor; the first bitstream has the expected values.
    note : str
        Reason why tensors could not be compared; empty if they could.
    """

    places: tuple[DifferencePosition, DifferencePosition]
    tensor: str = ""
    values: TensorDifference | None = None
    note: str = ""


class _Side:
    """One of the two bitstreams; it can be read several times."""

    def __init__(
        self,
        data: Bitstream,
        what: str,
        limits: Limits,
        dimensions: Mapping[str, Sequence[int]] | None,
        topology: Topology | None,
    ) -> None:
        if hasattr(data, "read") and not isinstance(data, (str, os.PathLike)):
            source = open_source(data, limits)
            data = source.view(0, source.size)
        self.data, self.what, self.limits, self.dimensions = data, what, limits, dimensions or {}
        self.topology = topology

    def session(self) -> Session:
        """Return the parsing state before the first unit."""
        return session_for(self.dimensions, self.topology, self.limits)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Add the name of this bitstream to errors raised in the block."""
        try:
            yield
        except NnrError as error:
            error.add_note(self.what)
            raise

    def units(self) -> Iterator[Unit]:
        """Yield the units of the bitstream."""
        with self.naming_errors():
            yield from UnitReader(self.data, self.limits, self.session())

    def element(self, index: int, at: int) -> tuple[str, int, Any]:
        """Return path, first bit and value of the last syntax element of a unit that begins at or before bit ``at``."""
        found: tuple[str, int, Any] = ("", 0, None)
        reading = 0

        def trace(path: str, descriptor: Descriptor, bit: int, size: int, value: Any) -> None:
            nonlocal found
            if reading == index and bit <= at and size and descriptor.kind != "struct":
                found = (path, bit, value)

        for _ in UnitReader(self.data, self.limits, self.session(), trace):
            if reading == index:
                break
            reading += 1
        return found

    def place(self, unit: Unit | None, bit: int, payload: bool) -> DifferencePosition:
        """Return the position of a bit, with the value there."""
        if unit is None:
            return DifferencePosition("")
        if payload:
            size = unit.size.nnr_unit_size - unit.payload_offset
            return DifferencePosition(unit.label(), "payload", unit.offset, bit, size)
        path, start, value = self.element(unit.index, bit)
        return DifferencePosition(unit.label(), path, unit.offset, start, value)

    def open(self) -> NnrFile:
        """Open the bitstream for decoding."""
        with self.naming_errors():
            return NnrFile(self.data, self.limits, self.dimensions, topology=self.topology)

    def tensor(self, file: NnrFile, name: str) -> Array:
        """Decode one tensor."""
        with self.naming_errors():
            return file[name]


def diff(
    a: Bitstream,
    b: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: TopologySource | None = None,
) -> BitstreamDifference | None:
    """Find the first difference of two bitstreams: a syntax element or payload, and the first differing tensor.

    nnr_unit_size depends on the content of a unit, so it is reported only if nothing else in the unit differs.

    Parameters and errors are the same as for :func:`decode`, except that ``note`` reports tensors that cannot be
    decoded.

    Returns
    -------
    BitstreamDifference or None
        None if the bitstreams are equal.
    """
    given = formats.topology_of(topology, limits=limits)
    sides = [
        _Side(data, what, limits or Limits(), topology_dimensions, given)
        for data, what in ((a, "the first"), (b, "the second"))
    ]
    for pair in zip_longest(*(side.units() for side in sides)):
        found = _difference(*pair)
        if found is not None:
            bits, payload = found
            places = [side.place(unit, bit, payload) for side, unit, bit in zip(sides, pair, bits, strict=True)]
            return BitstreamDifference((places[0], places[1]), *_values(sides[0], sides[1]))
    return None


def _difference(a: Unit | None, b: Unit | None) -> tuple[tuple[int, int], bool] | None:
    """Return the first differing bit in each of two units, relative to the unit, and whether it is in the payload."""
    if a is None or b is None:
        return (0, 0), False
    sizes = [2 + 2 * unit.size.nnr_unit_size_flag for unit in (a, b)]
    datas = [unit.data for unit in (a, b)]
    ends = [len(data) if unit.structure else unit.payload_offset for unit, data in zip((a, b), datas, strict=True)]
    heads = [data[size:end] for data, size, end in zip(datas, sizes, ends, strict=True)]
    bit = _first_bit(*heads)
    if bit is not None:
        return (8 * sizes[0] + bit, 8 * sizes[1] + bit), False
    if a.header.nnr_unit_type != NNR_AGG:
        bit = _first_bit(*(data[end:] for data, end in zip(datas, ends, strict=True)))
        if bit is not None:
            return (8 * ends[0] + bit, 8 * ends[1] + bit), True
    return None if sizes[0] == sizes[1] else ((0, 0), False)


def _first_bit(a: memoryview, b: memoryview) -> int | None:
    """Return the first differing bit, or the end of the shorter buffer; None if both are equal."""
    for start in range(0, min(len(a), len(b)), _CHUNK):
        size = min(len(a) - start, len(b) - start, _CHUNK)
        x, y = (np.frombuffer(data, np.uint8, size, start) for data in (a, b))
        different = np.flatnonzero(x != y)
        if different.size:
            byte = int(different[0])
            return 8 * (start + byte) + 8 - int(x[byte] ^ y[byte]).bit_length()
    return None if len(a) == len(b) else 8 * min(len(a), len(b))


def _values(a: _Side, b: _Side) -> tuple[str, TensorDifference | None, str]:
    """Return the first differing tensor and its difference, or the reason why tensors cannot be compared."""
    try:
        with a.open() as expected, b.open() as got:
            for name, info in expected.info.items():
                if name in got and got.info[name].shape == info.shape:
                    found = compare_tensors(a.tensor(expected, name), b.tensor(got, name))
                    if found.count:
                        return name, found, ""
    except NnrError as error:
        return "", None, ": ".join([*error.__notes__, str(error)])
    return "", None, ""
