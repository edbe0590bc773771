"""Pool of workers: runs tasks in the calling thread, in threads or in any executor, and yields results in task order.

The pool uses the method ``submit`` of an executor (PEP 3148), and ``result`` and ``cancel`` of its futures. Threads of
this process share a large task, which is split into pieces. No worker waits for another one: the piece that ends last
finishes its task. Workers in other processes get pickled, undivided tasks; small tasks are grouped.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..cancellation import CancelToken, cancelled_by
from ..errors import FormatError, WorkerError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

#: Smallest work of a task, in bytes of float32 tensors, for which another thread is worth its overhead.
SMALL = 1 << 15
#: Maximum bytes of tensors whose tasks run before their results are requested; bounds the memory.
WINDOW = 1 << 25
#: Maximum bytes of tensors and number of tasks in a group for another process.
GROUP, MEMBERS = 1 << 18, 256

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
#: Results of successful calls, and the error of the next call, if one failed.
Outcome = tuple[list[Result], Exception | None]


class Pieces(Protocol[Result_co]):
    """Task that is split into pieces for threads."""

    def pieces(self) -> Sequence[Callable[[], object]]:
        """Return functions that the pool calls once each, in any order and any thread. Called once for each task."""

    def finish(self) -> Result_co:
        """Return the result of the task, after all pieces have run."""


class Task(ABC, Generic[Result]):
    """Work on tensors, with the names and the total bytes of the tensors."""

    names: Sequence[str]
    nbytes: int

    @property
    def work(self) -> int:
        """Estimated time, in bytes of float32 tensors that take as long."""
        return self.nbytes

    @property
    def inline(self) -> bool:
        """True if the task always runs in the calling thread."""
        return False

    @abstractmethod
    def __call__(self) -> Result:
        """Run the whole task."""

    def split(self) -> Pieces[Result] | None:
        """Split the task for threads; return None if it is indivisible."""
        return None


class Pool:
    """Context manager for workers that run tasks.

    On exit, it cancels pending tasks and waits for running ones; threads abort theirs at the next check for
    cancellation. After an interruption such as KeyboardInterrupt, it does not wait for other processes, and drops their
    results.

    Parameters
    ----------
    jobs : int, default 1
        Without an executor: number of threads to start; 1 runs tasks in the calling thread. With an executor: its
        number of workers, where 1 means the number of processors of this machine. Raises ValueError if it is less than
        1.
    executor : concurrent.futures.Executor, optional
        Executor to use. The pool must not run in one of its workers.
    """

    def __init__(self, jobs: int = 1, executor: Executor | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.jobs = jobs if executor is None or jobs > 1 else os.cpu_count() or 1
        self._executor, self._stack = executor, ExitStack()
        self._is_given, self._has_threads = executor is not None, False
        self._begun: set[Future[Any]] = set()
        self._tokens: list[CancelToken] = []

    def __enter__(self) -> Pool:
        if self._is_given or self.jobs > 1:
            from concurrent.futures import ThreadPoolExecutor  # which imports logging

            if self._executor is None:
                self._executor = self._stack.enter_context(ThreadPoolExecutor(self.jobs))
            self._has_threads = isinstance(self._executor, ThreadPoolExecutor)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for token in self._tokens:
            token.cancel()
        is_interrupted = error is not None and not issubclass(error, Exception)
        with self._stack:
            running = [future for future in self._begun if not future.cancel()]
            for future in running if self._has_threads or not is_interrupted else ():
                try:
                    future.result()
                except BaseException as failure:
                    if not _is_lost(failure):
                        raise

    @property
    def has_threads(self) -> bool:
        """True if all workers are threads of this process."""
        return self._has_threads or self._executor is None

    def threads(self, work: int, whole: int) -> int:
        """Return the number of threads that may share a task of ``work``; ``whole`` is the work of all tasks.

        The number is 1 for a task that is too small to keep other threads waiting.
        """
        return min(self.jobs, os.cpu_count() or 1) if self._is_large(work, whole) else 1

    def _is_large(self, work: int, whole: int) -> bool:
        return self.jobs > 1 and work >= SMALL and 2 * self.jobs * work > whole

    def run(self, tasks: Sequence[Task[Result]], *, large_first: bool = True) -> Iterator[Result]:
        """Yield the results of tasks in task order. An error is raised in place of its result, and cancels later tasks.

        Threads run at most WINDOW bytes ahead of the results, or one task for each thread. Small tasks run in the
        calling thread. With ``large_first``, threads begin with the tasks that take much of the total time. Another
        executor gets at most two tasks or groups of small tasks for each worker, and fewer, but at least one, if these
        exceed WINDOW bytes on average.

        Raises WorkerError with the names of the tensors if the executor has lost a task.
        """
        if self._executor is None:
            for task in tasks:
                yield task()
            return
        self._tokens.append(token := CancelToken())
        batches = self._batches(tasks)
        batch_of = {index: number for number, batch in enumerate(batches) for index in batch}
        sizes = [sum([tasks[index].nbytes for index in batch]) for batch in batches]
        begun: dict[int, list[Future[Outcome[Result]]]] = {}
        given: dict[int, Iterator[Result]] = {}

        def begin(number: int) -> None:
            begun[number] = self._begin([tasks[index] for index in batches[number]], token, batches[number])

        first = self._largest([tasks[batch[0]].work for batch in batches]) if large_first and self._has_threads else []
        for number in first:
            begin(number)
        early = frozenset(first)
        # after: number of batches that have begun; ahead, count: bytes and number of batches without results
        after = ahead = count = 0
        for index, task in enumerate(tasks):
            own = batch_of.get(index, -1)
            while after < len(batches) and (after <= own or self._has_room(count, ahead, sizes[after])):
                if after not in early:
                    begin(after)
                    ahead, count = ahead + sizes[after], count + 1
                after += 1
            if own < 0:
                yield task()
                continue
            if own in begun:
                given[own] = self._given(begun.pop(own), [tasks[member] for member in batches[own]])
            yield next(given[own])
            if index == batches[own][-1]:
                del given[own]
                if own not in early:
                    ahead, count = ahead - sizes[own], count - 1

    def _has_room(self, count: int, ahead: int, nbytes: int) -> bool:
        """Return True if a batch of ``nbytes`` may begin, given ``count`` begun batches of ``ahead`` bytes in total."""
        if self._has_threads:
            return ahead + nbytes <= WINDOW or count <= self.jobs
        return count < self.jobs or (count < 2 * self.jobs and ahead + nbytes <= 2 * self.jobs * WINDOW)

    def _largest(self, works: Sequence[int]) -> list[int]:
        whole = sum(works)
        return sorted([k for k, work in enumerate(works) if self._is_large(work, whole)], key=lambda k: -works[k])

    def _batches(self, tasks: Sequence[Task[Any]]) -> list[list[int]]:
        """Return batches of task indices, in the order of the first index of each batch."""
        if self._has_threads:
            return [[index] for index, task in enumerate(tasks) if not task.inline and task.work >= SMALL]
        batches: list[list[int]] = []
        together: list[int] = []
        nbytes = 0
        for index, task in enumerate(tasks):
            if task.inline:
                continue
            if task.nbytes > GROUP:
                batches.append([index])
                continue
            if not together or nbytes + task.nbytes > GROUP or len(together) == MEMBERS:
                together, nbytes = [], 0
                batches.append(together)
            together.append(index)
            nbytes += task.nbytes
        return batches

    def _begin(
        self, tasks: list[Task[Result]], token: CancelToken, numbers: Sequence[int]
    ) -> list[Future[Outcome[Result]]]:
        """Submit a batch, or the pieces of its only task; ``numbers`` are the indices of the tasks."""
        shared = _Shared(tasks[0]) if self._has_threads else None
        if shared is None or not shared.pieces:
            return [self._submit(tasks, perform, tasks, token, numbers)]
        return [self._submit(tasks, shared.perform, piece, token, numbers) for piece in shared.pieces]

    def _submit(self, tasks: Sequence[Task[Any]], *call: Any) -> Future[Any]:
        assert self._executor
        try:
            future = self._executor.submit(*call)
        except Exception as error:
            if self._is_given:
                raise _lost(tasks, error) from error
            raise  # the operating system cannot start another thread
        self._begun.add(future)
        return future

    def _given(self, futures: Sequence[Future[Outcome[Result]]], tasks: Sequence[Task[Any]]) -> Iterator[Result]:
        """Yield the results of a batch. Of the pieces of a task, only the last one to end has a result."""
        outcomes = []
        for future in futures:
            try:
                outcomes.append(future.result())
            except BaseException as failure:
                if not _is_lost(failure):
                    raise
                raise _lost(tasks, failure) from failure
            self._begun.discard(future)
        for results, error in outcomes:
            yield from results
            if error is not None:
                raise error


def perform(calls: Iterable[Callable[[], Result]], token: CancelToken, numbers: Sequence[int]) -> Outcome[Result]:
    """Run the calls of tasks with these numbers. Returns an error, so that only errors of an executor are raised."""
    results: list[Result] = []
    for call, number in zip(calls, numbers, strict=True):
        try:
            token(number)
            with cancelled_by(partial(token, number)):
                results.append(call())
        except Exception as error:
            token.cancel(after=number)
            return results, error
    return results, None


class _Shared(Generic[Result]):
    """Task that threads share; it has no pieces if the task is indivisible."""

    def __init__(self, task: Task[Result]) -> None:
        self.pieces: Sequence[Callable[[], object]] = ()
        self._lock, self._finish = Lock(), task.__call__
        try:
            split = task.split()
            if split:
                self.pieces, self._finish = split.pieces(), split.finish
        except Exception as error:  # raised in place of the task's result
            self.pieces = [partial(_fail, error)]
        self._left = len(self.pieces)

    def perform(self, piece: Callable[[], object], token: CancelToken, numbers: Sequence[int]) -> Outcome[Result]:
        """Run a piece; the last piece to end also finishes the task."""
        _, error = perform([piece], token, numbers)
        with self._lock:
            self._left -= error is None
            is_last = self._left == 0 and error is None
        return perform([self._finish], token, numbers) if is_last else ([], error)


def _fail(error: Exception) -> None:
    raise error


def _is_lost(error: BaseException) -> bool:
    """Return True if an error of a future comes from the executor: :func:`perform` raises no Exception.

    CancelledError of dask and of asyncio is not a subclass of Exception.
    """
    return isinstance(error, Exception) or "CancelledError" in [cls.__name__ for cls in type(error).__mro__]


def _lost(tasks: Sequence[Task[Any]], error: BaseException) -> WorkerError:
    """Return a WorkerError for an error of the executor during these tasks."""
    names = list(dict.fromkeys(name for task in tasks for name in task.names))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return WorkerError(
        f"the executor lost the work on tensor {names[0]!r}{more} ({cause}); use encode_file or decode_file "
        "with resume=True to continue"
    )


@contextmanager
def worker_errors() -> Iterator[None]:
    """Add the worker's host and process to errors of reading a file: another machine may not have the file."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "a file"
        raise WorkerError(
            f"the worker {_worker()} cannot read {name} ({error.strerror or error}): all workers must find the same "
            "file under this path"
        ) from None
    except FormatError as error:
        error.add_note(f"worker {_worker()}")
        raise


def _worker() -> str:
    import socket

    host = ""
    with suppress(OSError):
        host = socket.gethostname()
    return f"{host or 'without a name'}:{os.getpid()}"
