"""Decoding of groups in lanes: large tensors, and parts of tensors between entry points, are decoded side by side.

Lanes are vector code for some processors, chosen at run time. Other tensors, and payloads that lanes find malformed,
are decoded by scalar code, which reports errors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..cabac_ext.kernel import LaneJob, decode_lanes
from ..errors import NnrError
from ..parallel.pool import Task
from .group import GroupDecoder, Result
from .unit import TOGETHER, UnitDecoder

if TYPE_CHECKING:
    from .schedule import GroupTask

#: Smallest size, in bytes, of a tensor whose levels take much longer than its headers.
LEAST = 1 << 12
#: Smallest number of levels in the jobs of one thread, and of jobs.
SHARE, JOBS = 1 << 20, 32


class Batch(Task[Iterable[Result]]):
    """Task that decodes several groups. Its result is an iterator, which raises an error in place of a group's result.

    Without threads, groups that do not suit lanes are decoded on demand.
    """

    def __init__(self, tasks: Sequence[GroupTask]) -> None:
        self._tasks = tasks
        self.names = [name for task in tasks for name in task.names]
        self.nbytes = sum(task.nbytes for task in tasks)

    @property
    def work(self) -> int:
        """See Task."""
        return sum(task.work for task in self._tasks)

    def __call__(self) -> Iterable[Result]:
        decoder = BatchDecoder(self._tasks)
        jobs = decoder.jobs()
        if jobs:
            decode_lanes(jobs)
        return decoder.results()

    def split(self) -> BatchDecoder:
        """See Task."""
        return BatchDecoder(self._tasks)


class BatchDecoder:
    """Decoder of several groups: decode the jobs, or call all :meth:`pieces`, then :meth:`finish`."""

    def __init__(self, tasks: Sequence[GroupTask]) -> None:
        self._tasks = tasks
        self._decoders: dict[int, GroupDecoder | NnrError] = {}
        self._begun: set[int] = set()
        self._failed: dict[int, dict[int, NnrError]] = {}  # errors of pieces by their index, by task

    def jobs(self) -> list[LaneJob]:
        """Begin with the large tensors, and return the jobs for lanes, largest first."""
        found: list[tuple[UnitDecoder, list[LaneJob]]] = []
        for number, task in enumerate(self._tasks):
            if task.nbytes >= LEAST:
                try:
                    self._decoders[number] = decoder = task.split()
                    found += [(unit, unit.lane_jobs()) for unit in decoder.units]
                except NnrError as error:
                    self._decoders[number] = error
        found.sort(key=lambda pair: -max([job.size for job in pair[1]], default=0))
        total = sum(job.size for _, jobs in found for job in jobs)
        while found and (not found[0][1] or found[0][1][0].size * TOGETHER > total):
            unit, jobs = found.pop(0)
            unit.leave_lanes()
            total -= sum(job.size for job in jobs)
        return sorted([job for _, jobs in found for job in jobs], key=lambda job: -job.size)

    def pieces(self) -> list[Callable[[], object]]:
        """Return calls for several threads: see :class:`nnr_codec.parallel.pool.Pieces`."""
        jobs = self.jobs()
        count = max(1, min(sum(job.size for job in jobs) // SHARE, len(jobs) // JOBS))
        pieces: list[Callable[[], object]] = [partial(decode_lanes, jobs[k::count]) for k in range(count) if jobs]
        for number, decoder in self._decoders.items():
            if isinstance(decoder, GroupDecoder) and not any(unit.in_lanes for unit in decoder.units):
                self._begun.add(number)
                pieces += [partial(self._attempt, number, k, piece) for k, piece in enumerate(decoder.pieces())]
        return pieces or [lambda: None]  # the pool would not call finish() without a piece

    def _attempt(self, number: int, k: int, piece: Callable[[], object]) -> None:
        try:
            piece()
        except NnrError as error:
            self._failed.setdefault(number, {})[k] = error

    def finish(self) -> Iterable[Result]:
        """Return the results after all pieces have been called."""
        found = deque[Result]()
        try:
            found.extend(self.results())
        except NnrError as error:
            return _given(found, error)
        return _given(found)

    def results(self) -> Iterator[Result]:
        """Yield the results; decode everything that is not in lanes."""
        for number, task in enumerate(self._tasks):
            yield self._result(number, task)  # without a reference that would keep the tensors alive

    def _result(self, number: int, task: GroupTask) -> Result:
        decoder = self._decoders.pop(number, None)
        if decoder is None:
            return task()
        if isinstance(decoder, NnrError):
            raise decoder
        if failed := self._failed.get(number):
            raise failed[min(failed)]
        return decoder.finish() if number in self._begun else decoder.run()


def _given(results: deque[Result], error: NnrError | None = None) -> Iterator[Result]:
    while results:
        yield results.popleft()
    if error:
        raise error


def batches(tasks: Sequence[GroupTask], nbytes: int) -> list[Batch]:
    """Divide tasks into batches of up to ``nbytes`` bytes, or one task."""
    found: list[list[GroupTask]] = []
    ahead = nbytes
    for task in tasks:
        if ahead + task.nbytes > nbytes:
            found.append([])
            ahead = 0
        found[-1].append(task)
        ahead += task.nbytes
    return [Batch(batch) for batch in found]
