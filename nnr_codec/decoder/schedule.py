"""Decoding many tensors, and the pieces of large ones, in order or in several threads or processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from ..errors import NnrError
from ..limits import Budget, Limits
from ..model import Array
from .group import Group, GroupDecoder, Left, References
from .state import UpdateState
from .unit import Piece

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

#: Tensors that cost less than this (Group.cost) take no longer than handing them to another thread.
SMALL = 1 << 13
#: Bytes of tensors that may be decoded before they are asked for.
WINDOW = 1 << 26

_NOTHING = cast(memoryview, b"")  # which can be pickled

Result = tuple[dict[str, Array], list[Left]]
#: Makes of a tensor of a unit, whose name and label are given, what is to be given of it.
Deliver = Callable[[str, Array, str], Iterable[tuple[str, Array]]]


def decode_groups(
    groups: Iterable[Group],
    budget: Budget,
    *,
    first_edition: bool,
    state: UpdateState,
    raw: bool = False,
    deliver: Deliver | None = None,
    progress: Callable[[str], None] | None = None,
    executor: Executor | None = None,
    jobs: int = 1,
) -> dict[str, Array]:
    """The tensors of groups of one bitstream, in its order; results and errors do not depend on who decodes.

    Parameters
    ----------
    groups : iterable of Group
    budget : Budget
        Charged for all groups before the first is decoded.
    first_edition : bool
        See :meth:`Group.decode`.
    state : UpdateState
        Takes over what later updates refer to, up to the first error.
    raw : bool
        See :meth:`Group.decode`.
    deliver : callable, optional
        Called with each tensor in the calling thread, in bitstream order; without it they are given as they are.
    progress : callable, optional
        Told each name of what is given, likewise.
    executor : concurrent.futures.Executor, optional
        Takes the work. Threads share large tensors that have entry points; other processes, to which the work is
        pickled, take whole ones. The call must not come from one of its own workers.
    jobs : int
        Without an executor, this many threads are started.

    Raises the error that comes first in the bitstream; what is not begun then is cancelled, and the rest stops soon.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, which leaves nobody to decode")
    groups, tensors = list(groups), dict[str, Array]()
    for group in groups:
        group.charge(budget)
    state.begin()
    with ExitStack() as stack:
        results: Iterator[Result]
        if executor is None and jobs == 1:
            results = (
                GroupDecoder(group, group.references(state), first_edition=first_edition, raw=raw).run()
                for group in groups
            )
        else:
            from concurrent.futures import ThreadPoolExecutor  # with which comes logging

            pool = executor or stack.enter_context(ThreadPoolExecutor(jobs))
            schedule = stack.enter_context(_Schedule(pool))
            results = schedule.results(groups, state, first_edition, raw)
        for group, (arrays, left) in zip(groups, results, strict=True):
            group.commit(state, left)
            for part in list(arrays):
                array = arrays.pop(part)  # which is kept no longer than it takes to make another of it
                given = deliver(part, array, group.label) if deliver else [(part, array)]
                del array
                for name, tensor in given:
                    tensors[name] = tensor
                    if progress:
                        progress(name)
    return tensors


@contextmanager
def decoded_ahead(
    groups: Sequence[Group], *, first_edition: bool, jobs: int = 1, executor: Executor | None = None
) -> Iterator[Iterator[dict[str, Array]]]:
    """Yield an iterator over the tensors of each group, in this order, which are decoded when they are asked for.

    With several threads others are begun meanwhile, no more than these take, or WINDOW bytes. The groups have been
    charged, and know of no earlier updates. Other parameters, results and errors are those of :func:`decode_groups`.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, which leaves nobody to decode")
    state = UpdateState()
    with ExitStack() as stack:
        if executor is None and jobs == 1:
            yield (
                GroupDecoder(group, group.references(state), first_edition=first_edition).run()[0] for group in groups
            )
            return
        from concurrent.futures import ThreadPoolExecutor  # with which comes logging

        workers = jobs if executor is None else os.cpu_count() or 1
        pool = executor or stack.enter_context(ThreadPoolExecutor(jobs))
        schedule = stack.enter_context(_Schedule(pool))
        yield schedule.ahead(groups, state, first_edition, workers)


class _Schedule:
    """Work that was handed to an executor; leaving the context ends what is left of it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._futures: set[Future[Result | None]] = set()
        self._lock = Lock()
        self._failed = Limits.NONE  # the first group that failed; later ones do not matter

    def __enter__(self) -> _Schedule:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it runs any more afterwards."""
        self.failed(-1)
        from concurrent.futures import wait

        wait([future for future in self._futures if not future.cancel()])

    def failed(self, index: int) -> None:
        """Let work for groups after this one end."""
        with self._lock:
            self._failed = min(self._failed, index)

    def check(self, index: int) -> None:
        """Raise CancelledError in work for a group that does not matter any more."""
        if self._failed < index:
            from concurrent.futures import CancelledError

            raise CancelledError

    def results(self, groups: list[Group], state: UpdateState, first_edition: bool, raw: bool) -> Iterator[Result]:
        """What each group gives, in order; everything is handed over before the first."""
        calls: list[list[_Call]] = []
        error: NnrError | None = None
        for index, group in enumerate(groups):
            try:
                calls.append(self._calls(index, group, state, first_edition, raw))
            except NnrError as raised:  # in its turn, if no group before fails
                error = raised
                break
        futures: dict[int, list[Future[Result | None]]] = {}
        for index in sorted(range(len(calls)), key=lambda index: -groups[index].cost):
            if groups[index].cost >= SMALL:
                futures[index] = [self._executor.submit(call) for call in calls[index]]
                self._futures.update(futures[index])
        for index, own in enumerate(calls):
            calls[index] = []  # what was decoded is the caller's alone
            yield self._result(own, futures.pop(index, []))
        if error:
            raise error

    def ahead(
        self, groups: Sequence[Group], state: UpdateState, first_edition: bool, workers: int
    ) -> Iterator[dict[str, Array]]:
        """The tensors of each group, in order; see :func:`decoded_ahead`."""
        begun: deque[tuple[list[_Call], list[Future[Result | None]]]] = deque()
        error: NnrError | None = None
        after = nbytes = 0  # up to where work has begun, and the bytes of what is begun and not given
        for index, group in enumerate(groups):
            while not error and after < len(groups):
                size = groups[after].nbytes
                if after > index and nbytes + size > WINDOW and len(begun) > workers:
                    break
                try:
                    calls = self._calls(after, groups[after], state, first_edition, False)
                except NnrError as raised:  # in its turn, if no group before fails
                    error = raised
                    break
                large = groups[after].cost >= SMALL
                futures = [self._executor.submit(call) for call in calls] if large else []
                self._futures.update(futures)
                begun.append(([] if large else calls, futures))
                after, nbytes = after + 1, nbytes + size
            if not begun and error:
                raise error
            nbytes -= group.nbytes
            yield self._result(*begun.popleft())[0]

    def _result(self, calls: list[_Call], futures: list[Future[Result | None]]) -> Result:
        """What the calls give, or those of them that were handed over, which are forgotten."""
        found = [future.result() for future in futures] if futures else [call() for call in calls]
        self._futures.difference_update(futures)
        (result,) = filter(None, found)
        return result

    def _calls(self, index: int, group: Group, state: UpdateState, first_edition: bool, raw: bool) -> list[_Call]:
        """Calls of which one gives the result."""
        check = partial(self.check, index)
        references = group.references(state)
        decoder = GroupDecoder(group, references, first_edition=first_edition, raw=raw, check=check)
        pieces = decoder.pieces()
        whole = _Whole(self, index, decoder, partial(_portable, group, references, first_edition, raw), len(pieces))
        return [_Call(whole, piece, piece is pieces[0]) for piece in pieces]


@dataclass
class _Whole:
    """A group in pieces; the piece that is done last puts it together."""

    schedule: _Schedule
    index: int
    decoder: GroupDecoder
    portable: Callable[[], tuple[Any, ...]]
    left: int
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True)
class _Call:
    """Does one piece. In another process, where pickling takes it, the first piece is the whole group."""

    whole: _Whole
    piece: Piece
    first: bool

    def __call__(self) -> Result | None:
        whole = self.whole
        try:
            whole.schedule.check(whole.index)
            self.piece()
            with whole.lock:
                whole.left -= 1
                if whole.left:
                    return None
            return whole.decoder.finish()
        except BaseException:
            whole.schedule.failed(whole.index)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, ((_decode, *self.whole.portable()) if self.first else (_nothing,))


def _nothing() -> None:
    """What the other pieces do in another process."""


def _decode(group: Group, references: References, first_edition: bool, raw: bool) -> Result:
    """What the first piece does there."""
    return GroupDecoder(group, references, first_edition=first_edition, raw=raw).run()


def _portable(group: Group, references: References, *options: bool) -> tuple[Any, ...]:
    """Arguments of _decode that can be pickled: a copy of a group whose payloads are bytes, and what it refers to."""
    limits = replace(group.limits, expected=None)
    tasks = [
        replace(
            task,
            unit=replace(task.unit, content=b"", raw=_NOTHING),
            spans=(bytes(task.payload),),
            session=replace(task.session, topology_dimensions={}, declared=None, topology=None),
            limits=limits,
        )
        for task in group.tasks
    ]
    return Group(tuple(tasks), (), limits), references, *options
