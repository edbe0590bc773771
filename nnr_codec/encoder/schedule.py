"""Work on tensors of a model in the calling thread or in others: results come in order, and memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ..model import Array, Model
from .plan import native

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

#: Bytes of tensors that take no longer than handing them to another thread; bytes that may be begun ahead of time.
SMALL, WINDOW = 1 << 15, 1 << 25

Result = TypeVar("Result")


class Reader:
    """Reads tensors of a model, whose mapping may be no matter for several threads at once."""

    def __init__(self, model: Model) -> None:
        self._tensors, self._lock = model.tensors, Lock()

    def __call__(self, names: Sequence[str]) -> list[Array]:
        """The tensors of these names, in native byte order and C order."""
        with self._lock:
            return [native(np.asarray(self._tensors[name])) for name in names]


@dataclass(slots=True)
class Call(Generic[Result]):
    """A function of some tensors, which are read when it is called, or pickled for another process.

    Parameters
    ----------
    function : callable
        Its first argument are the tensors, a list.
    read : Reader
    names : tuple of str
    arguments : tuple
        The other ones.
    cost : int
        Bytes of the tensors.
    """

    function: Callable[..., Result]
    read: Reader
    names: tuple[str, ...]
    arguments: tuple[Any, ...]
    cost: int

    def __call__(self) -> Result:
        return self.function(self.read(self.names), *self.arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self.function, self.read(self.names), *self.arguments)


class Pool:
    """Who does the work: the calling thread, threads of our own, or an executor of the caller's.

    Leaving the context cancels what has not begun, and waits for the rest.

    Parameters
    ----------
    jobs : int
        Without an executor, this many threads are started; ValueError for less than 1.
    executor : concurrent.futures.Executor, optional
        Of threads or of processes. The work must not be done in one of its own workers.
    """

    def __init__(self, jobs: int = 1, executor: Executor | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, which leaves nobody to encode")
        self._jobs = jobs if executor is None else os.cpu_count() or 1
        self._executor, self._stack = executor, ExitStack()
        self._begun: set[Future[Any]] = set()

    def __enter__(self) -> Pool:
        if self._executor is None and self._jobs > 1:
            from concurrent.futures import ThreadPoolExecutor  # with which comes logging

            self._executor = self._stack.enter_context(ThreadPoolExecutor(self._jobs))
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun:
            from concurrent.futures import wait

            wait([future for future in self._begun if not future.cancel()])
        self._stack.close()

    @property
    def jobs(self) -> int:
        """How many may work at a time."""
        return self._jobs

    def is_large(self, cost: int, whole: int) -> bool:
        """Whether tensors of so many bytes of a whole take so long that others would wait for them."""
        return self._jobs > 1 and cost > SMALL and 2 * self._jobs * cost > whole

    def results(self, calls: Sequence[Call[Result]]) -> Iterator[Result]:
        """What the calls give, in their order; an error in its turn.

        What takes much of the whole time is begun first. Of the rest no more is begun than workers take, or WINDOW
        bytes, before what precedes it is given.
        """
        executor = self._executor
        if executor is None:
            for call in calls:
                yield call()
            return
        futures: dict[int, Future[Result]] = {}

        def begin(index: int) -> None:
            futures[index] = executor.submit(calls[index])
            self._begun.add(futures[index])

        whole = sum(call.cost for call in calls)
        large = [index for index, call in enumerate(calls) if self.is_large(call.cost, whole)]
        for index in sorted(large, key=lambda index: -calls[index].cost):
            begin(index)
        after, ahead, count = 0, 0, 0  # up to where work has begun; its bytes and calls without the large ones
        for index, call in enumerate(calls):
            while after < len(calls) and (after <= index or ahead + calls[after].cost <= WINDOW or count <= self._jobs):
                if calls[after].cost > SMALL and after not in futures:
                    begin(after)
                    ahead, count = ahead + calls[after].cost, count + 1
                after += 1
            future = futures.pop(index, None)
            yield call() if future is None else future.result()
            if future is not None:
                self._begun.discard(future)
                if index not in large:
                    ahead, count = ahead - call.cost, count - 1
