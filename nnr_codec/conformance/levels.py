"""QuantParam of the tensors of a bitstream (ISO/IEC 15938-17:2024, 10.2.1.4), the result of entropy decoding.

If QuantParam is right and the tensors are wrong, the fault is in a later step: codebooks, step sizes, composition.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bitstream.units import UnitReader
from ..decoder.decode import BitstreamParser
from ..decoder.group import is_first_edition
from ..decoder.state import UpdateState
from ..limits import Budget
from ..model import Topology
from ..syntax import Session
from .cases import Case, LevelDigest, Stream
from .digest import digest


def levels(case: Case, stream: Stream, state: UpdateState, before: Topology | None) -> Iterator[LevelDigest]:
    """Yield the digests of everything that is arithmetically coded, in order.

    Parameters
    ----------
    case : Case
    stream : Stream
        A bitstream of the case.
    state : UpdateState
        State after the preceding bitstreams; it is updated.
    before : Topology or None
        Topology of the preceding bitstreams.

    Raises NnrError and OSError like decoding.
    """
    reader = UnitReader(stream.path.read_bytes(), case.limits, Session(case.topology_dimensions))
    parser = BitstreamParser(reader, given=case.topology, before=before)
    groups, budget = list(parser.groups()), Budget(case.limits)
    first_edition = parser.profile == 0 and is_first_edition(groups)
    for group in groups:
        recs = group.recs(state=state, budget=budget, first_edition=first_edition, raw=True)
        units = [task.unit.index for task in group.tasks for _ in task.parts]
        for unit, rec in zip(units, recs, strict=True):
            if rec.levels is not None:
                yield LevelDigest(unit, rec.levels.shape, digest(rec.levels.astype(np.int32, copy=False)))


def first_difference(expected: tuple[LevelDigest, ...], found: tuple[LevelDigest, ...]) -> str:
    """Describe the first difference in QuantParam; empty if there is none."""
    if len(expected) != len(found):
        return f"{len(found)} QuantParam instead of {len(expected)}"
    for number, (want, got) in enumerate(zip(expected, found, strict=True)):
        place = f"QuantParam {number}, of unit {want.unit},"
        if got.shape != want.shape:
            return f"{place} has shape {got.shape}, not {want.shape}"
        if got.sha256 != want.sha256:
            return f"{place} has other values"
        if got.unit != want.unit:
            return f"{place} is in unit {got.unit}"
    return ""
