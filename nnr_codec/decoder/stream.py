"""Decoding of bitstreams that arrive in chunks: each tensor as soon as its last byte has arrived (7.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from .. import formats
from ..bitstream.source import ChunkSource
from ..bitstream.units import UnitReader
from ..constants import NNR_MPS
from ..errors import NnrError, TruncatedError
from ..limits import Budget, Limits
from ..model import Array, Topology
from ..rules import Requirement
from ..sideinfo.record import SideInfo
from ..syntax import Session
from ..syntax.structures import NnrModelParameterSetUnitPayload
from .decode import BitstreamParser
from .group import Group
from .lineage import Hash, Lineage, base_model_id, token
from .pruning import Pruning
from .restore import Restorer
from .state import UpdateState

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..formats import TopologySource

#: Name of a unit tensor, the tensor, and the label of its unit.
_Coded = tuple[str, Array, str]


class StreamDecoder:
    """Decoder for one or more consecutive bitstreams, from chunks of any size.

    A further NNR_STR starts the next bitstream; state for updates is kept. After an error, no more input is accepted.

    Parameters
    ----------
    limits : Limits, optional
        Limits for each bitstream; max_units and max_names apply to all bitstreams together.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units omit them.
    allow_missing : bool
        Accept bitstreams without some tensors of the topology, reference list or side information.
    dtype : str
        Type of decoded floats, as for :func:`nnr_codec.decode`.
    topology : Topology, Model or path, optional
        As for :func:`nnr_codec.decode`.

    Attributes
    ----------
    state : UpdateState
        State to which later updates may refer.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        allow_missing: bool = False,
        dtype: str = "source",
        topology: TopologySource | None = None,
    ) -> None:
        self.state = UpdateState(keep_digests=True)
        self._source = ChunkSource()
        self._reader = UnitReader(self._source, limits, Session(topology_dimensions or {}))
        self._allow_missing, self._dtype = allow_missing, dtype
        self._given = formats.topology_of(topology, limits=limits)
        self._closed = False
        self._done: list[tuple[str, Array]] = []  # tensors that were not returned because a warning was raised
        self._warnings: list[Pruning] = []  # pruning of completed bitstreams
        self._position = 0  # end of the units taken so far
        self._begin(None)

    def _begin(self, before: Topology | None) -> None:
        self._parser = BitstreamParser(self._reader, self._dtype, self._given, before)
        self._budget = Budget(self._reader.limits)
        self._restorer: Restorer | None = None  # created with the first tensor, after all side information
        self._first_edition: bool | None = None  # None while unknown
        self._held: list[Group] = []  # groups to decode after the reading is known
        self._lineage: Lineage | None = None
        self._digest: Hash | None = None  # hash of a bitstream with a lineage
        self._start: bytearray | None = bytearray()  # start of the bitstream, until its lineage is known
        self._masked: list[_Coded] = []  # tensors to return after all masked tensors are known

    @property
    def topology(self) -> Topology | None:
        """The given topology, or the topology of the current bitstream as far as it has arrived."""
        return self._parser.topology

    @property
    def side(self) -> SideInfo:
        """Side information of the current bitstream, as far as it has arrived."""
        return self._parser.restoration.side

    @property
    def ignored(self) -> list[str]:
        """Units of reserved and unspecified types and formats in the current bitstream, which are skipped."""
        return self._parser.ignored

    def feed(self, chunk: Buffer) -> list[tuple[str, Array]]:
        """Decode the next bytes.

        Returns
        -------
        list of (str, ndarray)
            Tensors that are complete now, in bitstream order.

        Raises
        ------
        BitstreamError, MissingReferenceError, UnsupportedError
            As for :func:`nnr_codec.decode`.
        ValueError
            After :meth:`finish`, or after one of these errors.
        """
        return self._run(chunk)

    def finish(self) -> list[tuple[str, Array]]:
        """End the stream and return the remaining tensors.

        Raises TruncatedError inside a unit, and IncompleteError between units if tensors are missing. If a filter turns
        a warning of :func:`nnr_codec.decode` into an exception, the next call returns the tensors.
        """
        return self._run(None)

    def _run(self, chunk: Buffer | None) -> list[tuple[str, Array]]:
        done, self._done = self._done, []
        if self._closed and not (done and chunk is None):
            raise ValueError("the stream has ended or failed; use a new StreamDecoder")
        if not self._closed:
            done += self._take(chunk)
        self._done = done
        while self._warnings:
            self._warnings.pop(0).warn()
        self._done = []
        return done

    def _take(self, chunk: Buffer | None) -> list[tuple[str, Array]]:
        """Return the tensors that the next bytes, or the end of the stream, complete."""
        if chunk is None:
            self._source.end()
        else:
            self._source.feed(chunk)
        self._closed = True  # cleared below on success
        ready = list(self._tensors())
        if chunk is None:
            if self._reader.position < self._source.size:
                raise TruncatedError("the stream ends inside a unit", rule=Requirement.UNIT_SIZE)
            ready += self._end()
        self._closed = chunk is None
        return ready

    def _tensors(self) -> Iterator[tuple[str, Array]]:
        while unit := self._reader.next():
            if self._parser.starts_another(unit):
                yield from self._end()
                self.state = self.state.fork()
                self._begin(self._parser.context)
            self._hash()
            self._source.forget(self._reader.position)
            for group in self._parser.take(unit):
                yield from self._decode(group)
            if unit.header.nnr_unit_type == NNR_MPS:
                self._follow(cast(NnrModelParameterSetUnitPayload, unit.payload))

    def _hash(self) -> None:
        """Add the bytes of a unit to the hash for the lineage."""
        if self._digest:
            self._digest.update(self._source.view(self._position, self._reader.position))
        elif self._start is not None:
            self._start += self._source.view(self._position, self._reader.position)
            self._reader.limits.check("max_pending_bytes", len(self._start), "bytes before the NNR_MPS")
        self._position = self._reader.position

    def _follow(self, mps: NnrModelParameterSetUnitPayload) -> None:
        """Check that the bitstream follows the last bitstream of its sender."""
        self._lineage = Lineage.parse(base_model_id(mps) or "")
        if self._lineage and self._start is not None:
            self.state.expect(self._lineage)
            self._digest = self._lineage.digest()
            self._digest.update(bytes(self._start))
        self._start = None

    def _end(self) -> Iterator[tuple[str, Array]]:
        """Yield the remaining tensors of a bitstream at its end."""
        self._parser.finish()
        self._parser.check_fit()
        if not self._allow_missing:
            self._parser.check_complete()
        yield from self._ready(self._flush(False))
        self._parser.plan_pruning()
        for name, tensor, label in self._masked:
            yield from self._restoring().take(name, self._parser.pruning.apply(name, tensor), label)
        yield from self._restoring().finish()
        if self._lineage and self._digest:
            self.state.follow(self._lineage, token(self._digest), self._reader.limits)
        self._warnings.append(self._parser.pruning)

    def _restoring(self) -> Restorer:
        if self._restorer is None:
            self._restorer = self._parser.restorer(self._budget)
        return self._restorer

    def _decode(self, group: Group) -> Iterator[tuple[str, Array]]:
        self._restoring()  # fails before decoding if restoration is impossible
        yield from self._ready(self._undecided(group) if self._first_edition is None else self._tensors_of(group))

    def _ready(self, ready: Iterator[_Coded]) -> Iterator[tuple[str, Array]]:
        """Yield tensors for the caller; with masks of pruning information, keep them until the end."""
        if self._parser.pruning.has_masks:
            self._masked += ready
        else:
            for name, tensor, label in ready:
                yield from self._restoring().take(name, tensor, label)

    def _tensors_of(self, group: Group) -> Iterator[_Coded]:
        decoded = group.decode(state=self.state, budget=self._budget, first_edition=bool(self._first_edition))
        yield from ((name, tensor, group.label) for name, tensor in decoded.items())

    def _undecided(self, group: Group) -> Iterator[_Coded]:
        """Yield the tensors of a group while both readings of profile 0 are possible (errata K1, K4)."""
        if self._parser.profile != 0:
            self._first_edition = False
            yield from self._tensors_of(group)
            return
        readings: list[dict[str, Array] | NnrError] = []
        for first_edition in (False, True):
            budget = Budget(self._reader.limits)
            try:
                readings.append(group.decode(state=UpdateState(), budget=budget, first_edition=first_edition))
            except NnrError as error:
                readings.append(error)
        text, first = readings
        if isinstance(text, NnrError) and isinstance(first, NnrError):
            raise text
        self._held.append(group)
        if isinstance(text, NnrError) or isinstance(first, NnrError):
            yield from self._flush(isinstance(text, NnrError))
        elif len(self._held) == 1 and all(np.array_equal(text[name], first[name], equal_nan=True) for name in text):
            self._held.clear()
            group.charge(self._budget)
            yield from ((name, tensor, group.label) for name, tensor in text.items())

    def _flush(self, first_edition: bool) -> Iterator[_Coded]:
        """Yield the waiting tensors, decoded as profile 0 of the given edition (errata K1, K4)."""
        self._first_edition = first_edition
        held, self._held = self._held, []
        for group in held:
            yield from self._tensors_of(group)
