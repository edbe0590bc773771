"""Runs vectors, each in a process with limits of time and memory."""

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
    """What became of a case.

    Parameters
    ----------
    case : Case
    outcome : Outcome
    detail : str
        Why; the texts of errors and the names in them come from files.
    seconds : float
        Wall time.
    peak : int or None
        Bytes of memory that the decoder took at most, where the system tells; of another decoder at least what the
        process takes that starts it.
    """

    case: Case
    outcome: Outcome
    detail: str
    seconds: float
    peak: int | None = None

    @property
    def is_fine(self) -> bool:
        """Whether the decoder did what is expected, or was not asked."""
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
    """Judge cases one by one; results come in their order, and no more are judged when the iterator is closed.

    Parameters
    ----------
    cases : sequence of Case
    root : path
        The folder that they were loaded from.
    jobs : int
        Processes.
    timeout : float
        Seconds for each case.
    memory : int or None
        Bytes for each case, beyond what the process itself takes; on systems that cannot limit that, it is not limited.
    command : str or None
        Another decoder: a command line with ``{input}``, ``{outdir}`` and perhaps ``{inputs}``, see
        :class:`nnr_codec.conformance.judge.Command`.
    extensions : collection of str
        Which of EXTENSIONS that decoder knows. What a case expects of one that does not know its extension is in
        :meth:`~nnr_codec.conformance.cases.Case.without_extension`, and so is the case of the result.
    lenient : bool
        Whether what is invalid may be refused for any reason.

    Raises
    ------
    OSError
        No process can be started.
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
    """The counts of each kind, as ``161 valid: 161 pass, 114 invalid: 113 rejected, 1 xpass``."""
    counts = {kind: Counter[str]() for kind in KINDS}
    for result in results:
        word = str(result.outcome).lower()
        counts[result.case.kind]["rejected" if (result.case.kind, word) == ("invalid", "pass") else word] += 1
    return ", ".join(
        f"{found.total()} {kind}: {', '.join(f'{count} {word}' for word, count in found.items())}"
        for kind, found in counts.items()
        if found
    )
