"""The first difference of two bitstreams: where it stands, and what becomes of it."""

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
    """Where one of two bitstreams differs from the other, and what stands there.

    Parameters
    ----------
    unit : str
        The unit, as messages call it; empty at the end of the bitstream.
    element : str
        Path of the syntax element, ``payload`` for the payload of a compressed data unit.
    offset : int
        First byte of the unit.
    bit : int
        First bit of the element, or the first bit that differs in a payload; relative to the unit.
    value : object
        Of the element; the number of bytes of a payload.
    """

    unit: str
    element: str = ""
    offset: int = 0
    bit: int = 0
    value: Any = None


@dataclass(frozen=True)
class BitstreamDifference:
    """The first difference of two bitstreams.

    Parameters
    ----------
    places : (DifferencePosition, DifferencePosition)
    tensor : str
        The first tensor of one shape that decodes to other values; empty if none does.
    values : TensorDifference or None
        How it differs, from the first bitstream's.
    note : str
        Why tensors could not be compared.
    """

    places: tuple[DifferencePosition, DifferencePosition]
    tensor: str = ""
    values: TensorDifference | None = None
    note: str = ""


class _Side:
    """One of two bitstreams, that can be read again."""

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
        """What the first unit sees."""
        return session_for(self.dimensions, self.topology, self.limits)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors say which of the two is meant."""
        try:
            yield
        except NnrError as error:
            error.add_note(self.what)
            raise

    def units(self) -> Iterator[Unit]:
        """Its units."""
        with self.told():
            yield from UnitReader(self.data, self.limits, self.session())

    def element(self, index: int, at: int) -> tuple[str, int, Any]:
        """Path, first bit and value of the last syntax element of a unit that begins at bit ``at`` or before."""
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
        """What stands at a bit."""
        if unit is None:
            return DifferencePosition("")
        if payload:
            size = unit.size.nnr_unit_size - unit.payload_offset
            return DifferencePosition(unit.label(), "payload", unit.offset, bit, size)
        path, start, value = self.element(unit.index, bit)
        return DifferencePosition(unit.label(), path, unit.offset, start, value)

    def open(self) -> NnrFile:
        """Its tensors."""
        with self.told():
            return NnrFile(self.data, self.limits, self.dimensions, topology=self.topology)

    def tensor(self, file: NnrFile, name: str) -> Array:
        """One of them."""
        with self.told():
            return file[name]


def diff(
    a: Bitstream,
    b: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: TopologySource | None = None,
) -> BitstreamDifference | None:
    """The first difference of two bitstreams: syntax element, or payload, and the first value that comes out otherwise.

    nnr_unit_size follows from what a unit holds; it is no difference as long as something else is.

    Parameters and errors are those of :func:`decode`, except that tensors which cannot be decoded are told in ``note``.

    Returns
    -------
    BitstreamDifference or None
        None when the bitstreams are the same.
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
    """Where two units differ, as bits relative to them, and whether that is in the payload."""
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
    """The first bit that differs, also the one after the end of the shorter of two; None when there is none."""
    for start in range(0, min(len(a), len(b)), _CHUNK):
        size = min(len(a) - start, len(b) - start, _CHUNK)
        x, y = (np.frombuffer(data, np.uint8, size, start) for data in (a, b))
        different = np.flatnonzero(x != y)
        if different.size:
            byte = int(different[0])
            return 8 * (start + byte) + 8 - int(x[byte] ^ y[byte]).bit_length()
    return None if len(a) == len(b) else 8 * min(len(a), len(b))


def _values(a: _Side, b: _Side) -> tuple[str, TensorDifference | None, str]:
    """The first tensor that differs, and how; or why that is not known."""
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
