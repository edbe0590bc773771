"""Damaged bitstreams: a decoder gives tensors or an NnrError, soon, and within its limits. Nothing else."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import nnr_codec as nnr
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits

from .interop import Stream
from .soon import soon

STRICT = Limits.strict()


@dataclass
class Tally:
    """What came of a number of damaged bitstreams."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds
    slowest_input: str = ""

    @property
    def total(self) -> int:
        """Inputs tried."""
        return self.outcomes.total()

    def add(self, other: Tally) -> None:
        """Take over another tally."""
        self.outcomes.update(other.outcomes)
        if other.slowest > self.slowest:
            self.slowest, self.slowest_input = other.slowest, other.slowest_input


def state_before(stream: Stream) -> nnr.UpdateState:
    """The state in which a stream decodes."""
    decoder = nnr.UpdateDecoder()
    for path in stream.before:
        decoder.decode(path.read_bytes(), raw=True)
    return decoder.state


def header_bytes(data: bytes) -> list[int]:
    """Positions of all bytes that are not the payload of a compressed data unit."""
    payloads: set[int] = set()
    for unit in nnr.units(data):
        if unit.type_name == "NNR_NDU":
            payloads.update(range(unit.offset + unit.payload_offset, unit.offset + unit.size.nnr_unit_size))
    return [position for position in range(len(data)) if position not in payloads]


def flipped(data: bytes, position: int, bit: int) -> bytes:
    """A copy with one bit inverted."""
    copy = bytearray(data)
    copy[position] ^= 1 << bit
    return bytes(copy)


def truncations(data: bytes, positions: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Prefixes, by what they are called."""
    for position in positions:
        yield f"first {position} bytes", data[:position]


def flips(data: bytes, positions: Iterable[int], bits: Iterable[int] = range(8)) -> Iterator[tuple[str, bytes]]:
    """Copies with one bit inverted, by what they are called."""
    bits = list(bits)
    for position in positions:
        for bit in bits:
            yield f"byte {position} bit {bit}", flipped(data, position, bit)


def outcome(data: bytes, state: nnr.UpdateState | None = None, limits: Limits = STRICT) -> str:
    """``valid`` or the name of the NnrError; anything else, warnings included, is let through."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            nnr.open(data, limits=limits).decode(state=state.fork() if state else None, allow_missing=True)
        except NnrError as error:
            return type(error).__name__
    return "valid"


def trial(
    name: str, inputs: Iterable[tuple[str, bytes]], state: nnr.UpdateState | None = None, seconds: float = 1.0
) -> Tally:
    """Decode every input; AssertionError names the one that ends badly or takes longer than ``seconds``."""
    tally = Tally()
    for what, data in inputs:
        try:
            result, elapsed = soon(lambda data=data: outcome(data, state), seconds)
        except Exception as error:
            raise AssertionError(f"{name}, {what}: {type(error).__name__}: {error}") from error
        tally.outcomes[result] += 1
        if elapsed > tally.slowest:
            tally.slowest, tally.slowest_input = elapsed, f"{name}, {what}"
    return tally
