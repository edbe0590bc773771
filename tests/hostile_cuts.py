"""Truncated vectors: a cut within a unit is rejected; a cut between units leaves the tensors before it.

Readers raise IncompleteError for a cut between units if they can detect it.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import nnr_codec as nnr
from nnr_codec.bitstream.summary import side_information
from nnr_codec.bitstream.unit_index import has_index
from nnr_codec.bitstream.units import Unit
from nnr_codec.conformance.digest import TensorDigest
from nnr_codec.constants import NNR_DFL, NNR_TPL, NNR_TPL_PRUN, NNR_TPL_REFLIST
from nnr_codec.decoder.pruning import PruningWarning
from nnr_codec.errors import ElementError, MissingReferenceError, NnrError, TruncatedError
from nnr_codec.model import Array
from nnr_codec.syntax.structures import (
    NnrModelParameterSetUnitPayload,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
)

from .hostile import Subject, Tally
from .soon import soon

#: Errors of readers for an incomplete bitstream of whole units.
SAID = r"incomplete|pruning information is not applied|parts of a tensor are missing|ends before H of|its index lists"
#: Rules of ``nnr verify`` about incomplete bitstreams.
RULES = {"complete", "prune-mask", "partial-sequence", "decomposition-pair", "single-mps", "topology-carriage", "index"}

#: Kinds of cuts that no reader detects as incomplete.
WHOLE = "whole units"

#: Inverse share of cuts inside payloads that also end a stream.
SPARSELY = 16

Names = dict[str, TensorDigest]


@dataclass
class CutTally(Tally):
    """Counts of the outcomes of cuts.

    Attributes
    ----------
    whole : Counter
        Reasons why a truncated bitstream of whole units, which is valid by itself, is not reported as incomplete.
    """

    whole: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        super().add(other)
        if isinstance(other, CutTally):
            self.whole.update(other.whole)


class Cutter:
    """Truncation of a vector, with checks of all readers.

    Tensors are compared with the digests of the case file; the complete bitstream tells which units each tensor needs.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject, self.boundaries, self.headers = subject, set(subject.boundaries), set(subject.header_bytes)
        parser, ends = subject.parser(), dict[str, int]()
        self.pairs: list[list[int]] = []  # ends of units of G and of their units of H
        for group in parser.groups():
            units = [_end(task.unit) for task in group.tasks]
            ends |= {info.name: units[-1] for info in group.infos}
            self.pairs += [units] if len(units) > 1 else []
        self.is_update = bool(parser.reader.session.mps_parent_signalling_enabled_flag)
        self.has_mask = parser.pruning.has_masks
        self.wired = bool(parser.declared.names)
        infos, parts = parser.restoration.infos(parser.info), parser.restoration.parts
        record = next((_end(unit) for unit in subject.units if side_information(unit)), 0)
        self.ends = {name: max((ends[part] for part in parts(name)), default=record) for name in infos}
        self.digests = {digest.name: digest for digest in subject.stream.tensors or ()}
        refusal = _refusal(lambda: subject.decode(subject.data))
        self.refused = isinstance(refusal, MissingReferenceError)  # a decoder may reject an acceptable one
        report = subject.verify(subject.data)
        self.broken = {found.requirement for found in (*report.violations, *report.warnings)}
        assert self.refused or self.ends.keys() == self.digests.keys()

    def before(self, position: int) -> Names:
        """Return the tensors whose units are complete."""
        return {name: digest for name, digest in self.digests.items() if self.ends.get(name, position + 1) <= position}

    def try_all(self, positions: Iterable[int], seconds: float = 1.0) -> CutTally:
        """Cut at each position; an AssertionError names the first position with a wrong result."""
        tally = CutTally()
        for position in positions:
            check = self.between if position in self.boundaries else self.inside
            try:
                outcome, elapsed = soon(lambda: check(position), seconds)  # noqa: B023
            except Exception as error:
                what = f"{self.subject.id}, first {position} bytes: {type(error).__name__}: {error}"
                raise AssertionError(what) from error
            tally.took(elapsed, f"{self.subject.id}, first {position} bytes")
            tally.outcomes[outcome] += 1
            if outcome == WHOLE:
                tally.whole[self.why_not(position)] += 1
        return tally

    # -------------------------------------------------------------------------------------------- inside a unit
    def inside(self, position: int) -> str:
        """Check that all readers reject a cut within a unit, and that streams yield the complete tensors before it."""
        data, wanted = self.subject.data[:position], TruncatedError if position else ElementError
        error = _refusal(lambda: self.subject.decode(data))
        assert type(error) is wanted, repr(error)
        if position in self.headers or not position % SPARSELY:
            given, refusal = self._streamed(data)
            if self.refused and isinstance(refusal, MissingReferenceError):  # of an earlier tensor
                refusal = error
            assert type(refusal) is wanted or (self.subject.before and not data), repr(refusal)
            assert given.items() <= self.before(position).items()
        return wanted.__name__

    # -------------------------------------------------------------------------------------------- between units
    def between(self, position: int) -> str:
        """Check that exactly the tensors before are returned, and that the missing ones are reported if detectable."""
        subject, data, before = self.subject, self.subject.data[:position], self.before(position)
        told = _refusal(lambda: subject.decode(data, allow_missing=False))
        streamed, refusal = self._streamed(data)
        report = subject.verify(data)
        if self.refused and isinstance(told, MissingReferenceError):
            return type(told).__name__
        assert type(refusal) is type(told), f"{refusal!r} in a stream, {told!r} at once"
        if isinstance(told, PruningWarning):
            assert self.has_mask
            assert before.keys() < self.digests.keys() or self.broken
        else:
            assert (told is not None) == bool(self.telling(position)), f"{told!r}, {self.telling(position)!r}"
        found = {found.requirement for found in (*report.violations, *report.warnings)}
        if told is None:
            assert found <= self.broken, found - self.broken
            assert streamed == before
        else:
            assert re.search(SAID, str(told)), told
            assert found & RULES, found
            assert streamed.items() <= before.items() or (self.has_mask and streamed.keys() <= before.keys())
        if not isinstance(told, (ElementError, TruncatedError)):
            decoded = list[nnr.Model]()
            _refusal(lambda: decoded.append(subject.decode(data)))
            tensors = _digests(decoded[0].tensors)
            assert tensors.keys() == before.keys()
            assert tensors == before or self.has_mask  # a mask is applied only if all its tensors are present
        return f"{WHOLE}, {type(told).__name__}" if told else WHOLE

    def _streamed(self, data: bytes) -> tuple[Names, BaseException | None]:
        """Return the tensors that a stream yields, and its final error."""
        decoder, given = self.subject.stream_decoder(), dict[str, Array]()

        def run() -> None:
            given.update(decoder.feed(data))
            given.update(decoder.finish())

        error = _refusal(run)
        return _digests(given), error

    def arrive(self) -> None:
        """Check, byte by byte, that a stream yields no tensor before the last byte of its units, and all by its end."""
        decoder, given = self.subject.stream_decoder(), Names()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PruningWarning)
            for position in range(len(self.subject.data)):
                given |= _digests(dict(decoder.feed(self.subject.data[position : position + 1])))
                assert given.items() <= self.before(position + 1).items(), position
            given |= _digests(dict(decoder.finish()))
        assert given == self.digests

    # -------------------------------------------------------------------------------------------- what can be known
    @cached_property
    def _named(self) -> list[tuple[int, bytes]]:
        """Units that name tensors, in lower case, with their ends: lists, known topologies, records."""
        given = self.subject.options["topology"]
        texts = [] if given is None else [(0, given.data)]
        for unit in self.subject.units:
            is_topology = 0 <= _storage(unit) < NNR_TPL_PRUN
            if (self.wired or not is_topology) and (text := _text(unit)):
                texts.append((_end(unit), text))
        return [(end, text.lower()) for end, text in texts]

    def telling(self, position: int) -> str:
        """Return the information that shows that units are missing; empty if there is none."""
        units = [unit for unit in self.subject.units if unit.offset < position]
        structures = [unit.structure for unit in units if unit.type_name == "NNR_MPS"]
        if not structures:
            return "no NNR_MPS"
        if any(map(has_index, units)):
            return "index"
        mps, last = cast(NnrModelParameterSetUnitPayload, structures[0]), units[-1]
        if last.type_name == "NNR_NDU" and last.header.part > 1:
            return "parts"
        if any(g <= position < h for g, h in self.pairs):
            return "H"
        if mps.topology_carriage_flag and not any(unit.type_name == "NNR_TPL" for unit in units):
            return "topology_carriage_flag"
        missing = self.digests.keys() - self.before(position).keys()
        if self.is_update or not missing:
            return ""
        texts = [text for end, text in self._named if end <= position]
        return next((name for name in sorted(missing) if any(_mentions(text, name) for text in texts)), "")

    def why_not(self, position: int) -> str:
        """Return the reason why missing units are not detectable."""
        if self.digests.keys() == self.before(position).keys():
            return "no tensor is missing"
        if self.is_update:
            return "an update may lack what it does not change"
        kinds = {unit.type_name for unit in self.subject.units if unit.offset < position}
        return "a topology that tells no names" if "NNR_TPL" in kinds else "nothing names tensors"


def _storage(unit: Unit) -> int:
    """Return topology_storage_format; -1 for units other than NNR_TPL."""
    header = unit.header
    is_topology = header.nnr_unit_type == NNR_TPL
    return cast(NnrTopologyUnitHeader, header.detail).topology_storage_format if is_topology else -1


def _text(unit: Unit) -> bytes:
    """Return the text of a unit that may name tensors; empty if the standard does not define its contents."""
    storage = _storage(unit)
    if storage == NNR_TPL_REFLIST:
        names = cast(NnrTopologyUnitPayload, unit.structure).topology_elem_id_list
        return b"\0".join(name.encode() for name in names)
    if not 0 <= storage < NNR_TPL_PRUN and not side_information(unit):
        return b""
    data = cast(NnrTopologyUnitPayload, unit.structure).topology_data
    is_deflated = cast(NnrTopologyUnitHeader, unit.header.detail).topology_compression_format == NNR_DFL
    return zlib.decompress(data) if is_deflated else data


def _end(unit: Unit) -> int:
    return unit.offset + unit.size.nnr_unit_size


def _mentions(text: bytes, name: str) -> bool:
    """Return whether a name occurs as a whole word or as a string of Protocol Buffers."""
    wanted = name.lower().encode()
    alone = re.search(rb"(?<![\w./-])" + re.escape(wanted) + rb"(?![\w./-])", text)
    return bool(alone) or bytes([min(len(wanted), 255)]) + wanted in text


def _digests(tensors: Mapping[str, Array]) -> Names:
    return {name: TensorDigest.of(name, tensor) for name, tensor in tensors.items()}


def _refusal(call: Callable[[], object]) -> BaseException | None:
    """Return the error or warning of a reader; None if there is neither."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("error")
        warnings.simplefilter("always", PruningWarning)
        try:
            call()
        except NnrError as error:
            return error
    return cast(PruningWarning, told[0].message) if told else None
