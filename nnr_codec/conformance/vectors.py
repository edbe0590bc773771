"""Execution of vectors, each in a process with limits on time and memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from .cases import EXTENSIONS, KINDS, Case, load_cases
from .judge import Outcome
from .worker import Worker

__all__ = ["EXTENSIONS", "KINDS", "Case", "Outcome", "Result", "load_cases", "run", "summary"]


@dataclass(frozen=True)
class Result:
    """Result of a case.

    Parameters
    ----------
    case : Case
    outcome : Outcome
    detail : str
        Explanation; texts and names in it may come from untrusted files.
    seconds : float
        Wall time in seconds.
    peak : int or None
        Peak memory of the decoder in bytes, if the system reports it; for another decoder, at least the peak memory of
        the process that starts it.
    """

    case: Case
    outcome: Outcome
    detail: str
    seconds: float
    peak: int | None = None

    @property
    def is_fine(self) -> bool:
        """True if the decoder behaved as expected, or was skipped."""
        return self.outcome in (Outcome.PASS, Outcome.SKIP)


def run(
    cases: Sequence[Case],
    root: str | Path,
    *,
    jobs: int = 1,
    timeout: float = 10.0,
    memory: int | None = 1 << 29,
    command: str | None = None,
    extensions: Collection[str] = (),
    lenient: bool = False,
) -> Iterator[Result]:
    """Judge cases in parallel and yield results in order; closing the iterator stops further cases.

    Parameters
    ----------
    cases : sequence of Case
    root : path
        Folder from which they were loaded.
    jobs : int
        Number of processes.
    timeout : float
        Time limit for each case in seconds.
    memory : int or None
        Memory limit for each case in bytes, in addition to the process itself; ignored if the system does not support
        it.
    command : str or None
        Another decoder: a command line with ``{input}``, ``{outdir}`` and optionally ``{inputs}``, see
        :class:`nnr_codec.conformance.judge.Command`.
    extensions : collection of str
        Members of EXTENSIONS that this decoder supports. Cases for other extensions are replaced by their
        :meth:`~nnr_codec.conformance.cases.Case.without_extension`, also in the results.
    lenient : bool
        Whether an invalid bitstream may be rejected with any error.

    Raises
    ------
    OSError
        A process cannot be started.
    """
    known = EXTENSIONS if command is None else extensions
    cases = [case.without_extension() if case.extension and case.extension not in known else case for case in cases]
    workers = [Worker(Path(root), memory, command, lenient) for _ in range(max(1, min(jobs, len(cases))))]
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def one(case: Case) -> Result:
        worker = idle.get()
        try:
            worker.start()
            started = time.perf_counter()
            verdict, peak = worker.judge(case, timeout)
            return Result(case, *verdict, time.perf_counter() - started, peak)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(len(workers))
    try:
        yield from pool.map(one, cases)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.stop()
        pool.shutdown()


def summary(results: Iterable[Result]) -> str:
    """Return the counts of each kind, as ``161 valid: 161 pass, 114 invalid: 113 rejected, 1 xpass``."""
    counts = {kind: Counter[str]() for kind in KINDS}
    for result in results:
        word = str(result.outcome).lower()
        counts[result.case.kind]["rejected" if (result.case.kind, word) == ("invalid", "pass") else word] += 1
    return ", ".join(
        f"{found.total()} {kind}: {', '.join(f'{count} {word}' for word, count in found.items())}"
        for kind, found in counts.items()
        if found
    )
