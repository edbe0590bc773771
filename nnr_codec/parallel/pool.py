"""Pool of workers: tasks run in the calling thread, in threads or in any executor, and results come in their order.

Of an executor (PEP 3148) the pool uses ``submit``, and ``result`` and ``cancel`` of the futures that it returns.
Threads of this process share large tasks, which split into pieces. No worker waits for another one: the piece that ends
last finishes its task. Other workers get whole tasks, several small ones together; these are pickled.
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

#: Work of a task, in bytes of float32 tensors, from which on handing it to another thread pays.
SMALL = 1 << 15
#: Bytes of tensors that may be begun before their results are asked for.
WINDOW = 1 << 25
#: Bytes of tensors, and how many tasks, that another process gets together.
GROUP, MEMBERS = 1 << 18, 256

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
#: The results of some calls, and the error of the call after these.
Outcome = tuple[list[Result], Exception | None]


class Pieces(Protocol[Result_co]):
    """A task in pieces, for threads."""

    def pieces(self) -> Sequence[Callable[[], object]]:
        """Return calls that are made once each, in any order and in any thread; called once."""

    def finish(self) -> Result_co:
        """Return the result after all calls."""


class Task(ABC, Generic[Result]):
    """Work on tensors.

    ``names`` are their names, ``nbytes`` their bytes. An ``inline`` task runs in the calling thread.
    """

    names: Sequence[str]
    nbytes: int

    @property
    def work(self) -> int:
        """Estimated time, as bytes of float32 tensors that would take it."""
        return self.nbytes

    @property
    def inline(self) -> bool:
        """True if the task always runs in the calling thread."""
        return False

    @abstractmethod
    def __call__(self) -> Result:
        """Run the whole task."""

    def split(self) -> Pieces[Result] | None:
        """Split the task for threads; None where it is indivisible."""
        return None


class Pool:
    """Workers for tasks.

    Leaving the context cancels tasks that have not begun, and waits for the others; threads leave theirs soon. After an
    interruption, such as KeyboardInterrupt, it does not wait for other processes, whose results are dropped.

    Parameters
    ----------
    jobs : int
        Without an executor, the number of threads to start. With one, how many workers it has: 1 stands for as many as
        this machine has processors. ValueError for less than 1.
    executor : concurrent.futures.Executor, optional
        The caller must not be one of its workers.
    """

    def __init__(self, jobs: int = 1, executor: Executor | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self._jobs = jobs if executor is None or jobs > 1 else os.cpu_count() or 1
        self._executor, self._stack = executor, ExitStack()
        self._is_given, self._has_threads = executor is not None, False
        self._begun: set[Future[Any]] = set()
        self._tokens: list[CancelToken] = []

    def __enter__(self) -> Pool:
        if self._is_given or self._jobs > 1:
            from concurrent.futures import ThreadPoolExecutor  # which imports logging

            if self._executor is None:
                self._executor = self._stack.enter_context(ThreadPoolExecutor(self._jobs))
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

    def threads(self, work: int, whole: int) -> int:
        """Return how many threads may share a task of so much work, where others would wait for it otherwise."""
        return min(self._jobs, os.cpu_count() or 1) if self._is_large(work, whole) else 1

    def _is_large(self, work: int, whole: int) -> bool:
        return self._jobs > 1 and work >= SMALL and 2 * self._jobs * work > whole

    def run(self, tasks: Sequence[Task[Result]], *, large_first: bool = True) -> Iterator[Result]:
        """Yield the results of tasks in their order; an error is raised in its turn, and cancels only later tasks.

        Threads run at most WINDOW bytes ahead, or one task each; small tasks run in the calling thread. With
        ``large_first``, they begin before that with tasks that take much of the whole time. Another executor gets at
        most two tasks for each worker, small ones together, or one for each where they have more than WINDOW bytes.

        Raises WorkerError, which names the tensors, where the executor has lost a task.
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
        after = ahead = count = 0  # up to where work has begun; the bytes and number of what is begun and not given
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
        """Return whether a task of ``nbytes`` may begin beside ``count`` tasks of ``ahead`` bytes in all."""
        if self._has_threads:
            return ahead + nbytes <= WINDOW or count <= self._jobs
        return count < self._jobs or (count < 2 * self._jobs and ahead + nbytes <= 2 * self._jobs * WINDOW)

    def _largest(self, works: Sequence[int]) -> list[int]:
        whole = sum(works)
        return sorted([k for k, work in enumerate(works) if self._is_large(work, whole)], key=lambda k: -works[k])

    def _batches(self, tasks: Sequence[Task[Any]]) -> list[list[int]]:
        """Return the tasks that are handed over together, in the order of the first of each."""
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
        """Hand over a batch, or the pieces of the only task of one; the numbers are those of the tasks."""
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
            raise  # the system does not start as many threads
        self._begun.add(future)
        return future

    def _given(self, futures: Sequence[Future[Outcome[Result]]], tasks: Sequence[Task[Any]]) -> Iterator[Result]:
        """Yield the results of a batch, or of the pieces of a task: of these, only the last to end has one."""
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
    """Run the calls of tasks with these numbers; an error is returned, so that errors of an executor differ."""
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
    """A task that threads share; its pieces are empty where it is indivisible."""

    def __init__(self, task: Task[Result]) -> None:
        self.pieces: Sequence[Callable[[], object]] = ()
        self._lock, self._finish = Lock(), task.__call__
        try:
            split = task.split()
            if split:
                self.pieces, self._finish = split.pieces(), split.finish
        except Exception as error:  # raised in its turn
            self.pieces = [partial(_fail, error)]
        self._left = len(self.pieces)

    def perform(self, piece: Callable[[], object], token: CancelToken, numbers: Sequence[int]) -> Outcome[Result]:
        """Run a piece; the last one to end finishes the task."""
        _, error = perform([piece], token, numbers)
        with self._lock:
            self._left -= error is None
            is_last = self._left == 0 and error is None
        return perform([self._finish], token, numbers) if is_last else ([], error)


def _fail(error: Exception) -> None:
    raise error


def _is_lost(error: BaseException) -> bool:
    """Return whether an error of a future comes from the executor; :func:`perform` raises none.

    The CancelledErrors of dask and asyncio are no ordinary exceptions.
    """
    return isinstance(error, Exception) or "CancelledError" in [cls.__name__ for cls in type(error).__mro__]


def _lost(tasks: Sequence[Task[Any]], error: BaseException) -> WorkerError:
    """Return the error for an error of the executor's own in work on these tasks."""
    names = list(dict.fromkeys(name for task in tasks for name in task.names))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return WorkerError(
        f"the executor lost the work on tensor {names[0]!r}{more} ({cause}); use encode_file or decode_file "
        "with resume=True to continue"
    )


@contextmanager
def worker_errors() -> Iterator[None]:
    """Name the worker in errors of reading a file in another process, which may not have the file."""
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
