"""Work on tensors in the calling thread, in threads of our own or in any executor: results come in order.

Of an executor (PEP 3148) nothing is used but ``submit``, and ``result`` and ``cancel`` of what that returns. What it is
given can be pickled: a function of a module and tasks, which for another process take paths and ranges along instead of
arrays where they can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .cancellation import CancelToken, cancelled_by
from .errors import FormatError, WorkerError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

#: Bytes of tensors that take no longer than handing them to another thread; bytes that may be begun ahead of time.
SMALL, WINDOW = 1 << 15, 1 << 25
#: Bytes of tensors, and how many of them, that go to an executor together.
GROUP, MEMBERS = 1 << 18, 256

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Task(Protocol[Result_co]):
    """Something to do with tensors.

    Attributes
    ----------
    names : sequence of str
        Theirs.
    cost : int
        Their bytes.
    here : bool
        The calling thread does it, whoever does the others.
    """

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def cost(self) -> int: ...
    @property
    def here(self) -> bool: ...
    def __call__(self) -> Result_co: ...


class Pool:
    """Who does the work.

    Leaving the context cancels what has not begun, and waits for the rest, which threads leave soon. After an
    interruption, such as KeyboardInterrupt, other workers are not waited for; nothing of theirs is used.

    Parameters
    ----------
    jobs : int
        Without an executor, this many threads are started. With one, how many workers it has: 1 stands for as many as
        this machine has processors. ValueError for less than 1.
    executor : concurrent.futures.Executor, optional
        The work must not be done in one of its own workers.
    """

    def __init__(self, jobs: int = 1, executor: Executor | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, which leaves nobody to work")
        self._jobs = workers_of(jobs, executor)
        self._threads = executor is None
        self._executor, self._stack = executor, ExitStack()
        self._begun: set[Future[Any]] = set()
        self._token = CancelToken()

    def __enter__(self) -> Pool:
        if self._threads and self._jobs > 1:
            from concurrent.futures import ThreadPoolExecutor  # with which comes logging

            self._executor = self._stack.enter_context(ThreadPoolExecutor(self._jobs))
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._token.cancel()
        interrupted = error is not None and not issubclass(error, Exception)
        end(self._begun, wait=not interrupted or self._are_threads)
        self._stack.close()

    @property
    def _are_threads(self) -> bool:
        if self._executor is None:
            return True
        from concurrent.futures import ThreadPoolExecutor

        return isinstance(self._executor, ThreadPoolExecutor)

    def threads(self, cost: int, whole: int) -> int:
        """How many may share a task of so many bytes of a whole, for which others would wait otherwise."""
        return min(self._jobs, os.cpu_count() or 1) if self._is_large(cost, whole) else 1

    def _is_large(self, cost: int, whole: int) -> bool:
        return self._jobs > 1 and cost > SMALL and 2 * self._jobs * cost > whole

    def results(self, tasks: Sequence[Task[Result]]) -> Iterator[Result]:
        """What the tasks give, in their order; an error in its turn.

        Threads of our own begin first what takes much of the whole time; of the rest no more is begun than they take,
        or WINDOW bytes, before what precedes it is given. An executor gets two tasks for each worker at most, small
        ones together, and of these tasks no more than one for each worker where they have WINDOW bytes each.

        Raises WorkerError, which names the tensors, where the executor has lost a task.
        """
        if self._executor is None:
            for task in tasks:
                yield task()
            return
        batches = self._batches(tasks)
        batch_of = {index: number for number, batch in enumerate(batches) for index in batch}
        costs = [sum([tasks[index].cost for index in batch]) for batch in batches]
        begun: dict[int, Future[Any]] = {}
        found: dict[int, Iterator[Result]] = {}

        def begin(number: int) -> None:
            begun[number] = self._submit([tasks[index] for index in batches[number]])

        first = self._first(costs) if self._threads else []
        for number in first:
            begin(number)
        early = frozenset(first)
        after = ahead = count = 0  # up to where work has begun; the bytes and number of what is begun and not given
        for index, task in enumerate(tasks):
            own = batch_of.get(index, -1)
            while after < len(batches) and (after <= own or self._has_room(count, ahead, costs[after])):
                if after not in early:
                    begin(after)
                    ahead, count = ahead + costs[after], count + 1
                after += 1
            if own < 0:
                yield task()
                continue
            if own in begun:
                future = begun.pop(own)
                found[own] = self._given(future, [tasks[member] for member in batches[own]])
            yield next(found[own])
            if index == batches[own][-1]:
                del found[own]
                if own not in early:
                    ahead, count = ahead - costs[own], count - 1

    def _has_room(self, count: int, ahead: int, cost: int) -> bool:
        """Whether a task of this cost may begin, beside as many of so many bytes."""
        if self._threads:
            return ahead + cost <= WINDOW or count <= self._jobs
        return count < self._jobs or (count < 2 * self._jobs and ahead + cost <= 2 * self._jobs * WINDOW)

    def _first(self, costs: Sequence[int]) -> list[int]:
        whole = sum(costs)
        large = [number for number, cost in enumerate(costs) if self._is_large(cost, whole)]
        return sorted(large, key=lambda number: -costs[number])

    def _batches(self, tasks: Sequence[Task[Any]]) -> list[list[int]]:
        """Which tasks are handed over, in the order of the first of each."""
        if self._threads:
            return [[index] for index, task in enumerate(tasks) if task.cost > SMALL and not task.here]
        batches: list[list[int]] = []
        together: list[int] = []
        nbytes = 0
        for index, task in enumerate(tasks):
            if task.here:
                continue
            if task.cost > GROUP:
                batches.append([index])
                continue
            if not together or nbytes + task.cost > GROUP or len(together) == MEMBERS:
                together, nbytes = [], 0
                batches.append(together)
            together.append(index)
            nbytes += task.cost
        return batches

    def _submit(self, tasks: list[Task[Result]]) -> Future[Any]:
        assert self._executor
        try:
            future = self._executor.submit(perform, tasks, self._token)
        except Exception as error:
            if self._threads:
                raise  # the system does not start as many
            raise lost(_names(tasks), error) from error
        self._begun.add(future)
        return future

    def _given(self, future: Future[Any], tasks: Sequence[Task[Result]]) -> Iterator[Result]:
        try:
            results, error = future.result()
        except BaseException as failure:
            if not is_lost(failure):
                raise
            raise lost(_names(tasks), failure) from failure
        self._begun.discard(future)
        yield from results
        if error is not None:
            raise error


def workers_of(jobs: int, executor: Executor | None) -> int:
    """How many work at a time."""
    return jobs if executor is None or jobs > 1 else os.cpu_count() or 1


def perform(tasks: Iterable[Callable[[], Result]], token: CancelToken) -> tuple[list[Result], Exception | None]:
    """What tasks give, and the error of the one after these; so that an executor's own errors are another thing."""
    results: list[Result] = []
    with cancelled_by(token):
        for task in tasks:
            try:
                token()
                results.append(task())
            except Exception as error:
                return results, error
    return results, None


def is_lost(error: BaseException) -> bool:
    """Whether an error of a future is one of the executor's, which :func:`perform` never raises.

    Those of dask and asyncio about work that was cancelled are no ordinary exceptions.
    """
    return isinstance(error, Exception) or "CancelledError" in [cls.__name__ for cls in type(error).__mro__]


def lost(names: Sequence[str], error: BaseException) -> WorkerError:
    """What an error of the executor's own means for the work on these tensors."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return WorkerError(
        f"the executor has lost the work on tensor {names[0]!r}{more} ({what}); encode_file and decode_file with "
        "resume=True go on from what is done"
    )


def _names(tasks: Sequence[Task[Any]]) -> list[str]:
    return list(dict.fromkeys(name for task in tasks for name in task.names))


def end(futures: Iterable[Future[Any]], *, wait: bool = True) -> None:
    """Cancel what has not begun, and wait for the rest, if asked to."""
    begun = [future for future in futures if not future.cancel()]
    for future in begun if wait else ():
        try:
            future.result()
        except BaseException as error:
            if not is_lost(error):
                raise


@contextmanager
def elsewhere() -> Iterator[None]:
    """Errors of reading a file in another process, which may not have it, say where that was."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "a file"
        raise WorkerError(
            f"the worker {_here()} cannot read {name} ({error.strerror or error}): every worker has to find the same "
            "file under this path"
        ) from None
    except FormatError as error:
        error.add_note(f"worker {_here()}")
        raise


def _here() -> str:
    import socket

    host = ""
    with suppress(OSError):
        host = socket.gethostname()
    return f"{host or 'without a name'}:{os.getpid()}"
