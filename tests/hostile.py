"""Damaged bitstreams: a decoder returns tensors or raises an NnrError, quickly and within its limits."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import nnr_codec as nnr
from nnr_codec.bitstream.units import Unit, UnitReader
from nnr_codec.conformance.cases import Case, Stream, load_cases
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.index import NnrFile
from nnr_codec.decoder.state import UpdateState
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits
from nnr_codec.model import Topology
from nnr_codec.syntax import Session

from .soon import soon

ROOT = Path(__file__).resolve().parents[1] / "bitstream_vectors"
STRICT = Limits.strict()


class Subject:
    """A bitstream of a vector, and the further inputs of its decoder.

    Parameters
    ----------
    case : Case
    number : int
        Index of the bitstream in the case; the bitstreams before it are decoded first.
    """

    def __init__(self, case: Case, number: int = -1) -> None:
        self.case, self.number = case, number % len(case.streams)
        self.stream: Stream = case.streams[number]

    @property
    def id(self) -> str:
        """Name of the case, with the name of the file unless this is its last bitstream."""
        is_last = self.number == len(self.case.streams) - 1
        return self.case.id if is_last else f"{self.case.id}/{self.stream.path.name}"

    @cached_property
    def data(self) -> bytes:
        """The bitstream."""
        return self.stream.path.read_bytes()

    @cached_property
    def before(self) -> tuple[bytes, ...]:
        """The bitstreams that are decoded before it."""
        return tuple(stream.path.read_bytes() for stream in self.case.streams[: self.number])

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options of readers; strict limits unless the case specifies limits."""
        case = self.case
        limits = case.limits if case.limits != Limits() else STRICT
        return {"limits": limits, "topology_dimensions": case.topology_dimensions, "topology": case.topology}

    @cached_property
    def _left(self) -> tuple[UpdateState, Topology | None]:
        state, context = UpdateState(keep_digests=True), None
        for data in self.before:
            file = NnrFile(data, before=context, **self.options)
            file.decode(state=state)
            context = file.context
        return state, context

    @property
    def state(self) -> UpdateState:
        """A copy of the state after the bitstreams before it."""
        return self._left[0].fork()

    def open(self, data: bytes) -> NnrFile:
        """Open a damaged copy, or the bitstream itself."""
        return NnrFile(data, before=self._left[1], **self.options)

    def decode(self, data: bytes, *, allow_missing: bool = True) -> nnr.Model:
        """Return the tensors of a damaged copy, or of the bitstream itself."""
        return self.open(data).decode(state=self.state, allow_missing=allow_missing)

    def stream_decoder(self) -> nnr.StreamDecoder:
        """Return a decoder that has decoded the bitstreams before it."""
        decoder = nnr.StreamDecoder(**self.options)
        for data in self.before:
            decoder.feed(data)
        return decoder

    def verify(self, data: bytes) -> nnr.Report:
        """Return the findings of ``verify`` for a damaged copy."""
        return nnr.verify(data, inputs=self.before, **self.options)

    def parser(self) -> BitstreamParser:
        """Return a parser at the start of the bitstream."""
        limits, dims, given = self.options["limits"], self.options["topology_dimensions"], self.options["topology"]
        reader = UnitReader(self.data, limits, Session(dims))
        return BitstreamParser(reader, given=given, before=self._left[1])

    @cached_property
    def units(self) -> list[Unit]:
        """All units of the bitstream."""
        parser, units = self.parser(), list[Unit]()
        for unit in parser.reader:
            units.append(unit)
            parser.take(unit)
        return units

    @property
    def is_read(self) -> bool:
        """True if the headers are accepted; headers of an "acceptable" bitstream may be rejected."""
        try:
            return bool(self.units)
        except NnrError:
            return False

    @property
    def boundaries(self) -> list[int]:
        """Ends of its units outside aggregates; the last is the end of the bitstream."""
        return [unit.offset + unit.size.nnr_unit_size for unit in self.units if not unit.depth]

    @property
    def header_bytes(self) -> list[int]:
        """Positions of all bytes that are not the payload of a compressed data unit."""
        return header_bytes(self.data, self.units)


def subjects(*results: str) -> list[Subject]:
    """Return every bitstream of the vectors with these results once, with its further inputs.

    Acceptable bitstreams whose headers are rejected are omitted, because a cut leaves nothing that can be decoded.
    """
    found: dict[tuple[Any, ...], Subject] = {}
    for case in load_cases(ROOT):
        if case.result not in results:
            continue
        dims = tuple(sorted(case.topology_dimensions.items()))
        apart = hashlib.sha256(case.topology_file.read_bytes()).digest() if case.topology_file else b""
        for number in range(len(case.streams)):
            same = (*(stream.sha256 for stream in case.streams[: number + 1]), repr(case.limits), dims, apart)
            if same not in found or number == len(case.streams) - 1:
                found[same] = Subject(case, number)
    return [subject for subject in found.values() if subject.case.result != "acceptable" or subject.is_read]


@dataclass
class Tally:
    """Counts of the outcomes of damaged bitstreams."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds
    slowest_input: str = ""

    @property
    def total(self) -> int:
        """Number of inputs."""
        return self.outcomes.total()

    def took(self, seconds: float, what: str) -> None:
        """Record the duration of an input."""
        if seconds > self.slowest:
            self.slowest, self.slowest_input = seconds, what

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.outcomes.update(other.outcomes)
        self.took(other.slowest, other.slowest_input)


def header_bytes(data: bytes, units: Iterable[Unit] | None = None) -> list[int]:
    """Return the positions of all bytes that are not the payload of a compressed data unit."""
    payloads: set[int] = set()
    for unit in nnr.units(data) if units is None else units:
        if unit.type_name == "NNR_NDU":
            payloads.update(range(unit.offset + unit.payload_offset, unit.offset + unit.size.nnr_unit_size))
    return [position for position in range(len(data)) if position not in payloads]


def flipped(data: bytes, position: int, bit: int) -> bytes:
    """Return a copy with one bit inverted."""
    copy = bytearray(data)
    copy[position] ^= 1 << bit
    return bytes(copy)


def truncations(data: bytes, positions: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield prefixes with their descriptions."""
    for position in positions:
        yield f"first {position} bytes", data[:position]


def flips(data: bytes, positions: Iterable[int], bits: Iterable[int] = range(8)) -> Iterator[tuple[str, bytes]]:
    """Yield copies with one bit inverted, with their descriptions."""
    bits = list(bits)
    for position in positions:
        for bit in bits:
            yield f"byte {position} bit {bit}", flipped(data, position, bit)


def outcome(data: bytes, subject: Subject | None = None, limits: Limits = STRICT) -> str:
    """Return ``valid`` or the name of the NnrError; other exceptions, including warnings, are not caught."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            if subject:
                subject.decode(data)
            else:
                nnr.decode(data, limits=limits, allow_missing=True)
        except NnrError as error:
            return type(error).__name__
    return "valid"


def trial(
    name: str, inputs: Iterable[tuple[str, bytes]], subject: Subject | None = None, seconds: float = 1.0
) -> Tally:
    """Decode every input; an AssertionError names an input that fails otherwise or takes longer than ``seconds``."""
    tally = Tally()
    for what, data in inputs:
        try:
            result, elapsed = soon(lambda data=data: outcome(data, subject), seconds)
        except Exception as error:
            raise AssertionError(f"{name}, {what}: {type(error).__name__}: {error}") from error
        tally.outcomes[result] += 1
        tally.took(elapsed, f"{name}, {what}")
    return tally
