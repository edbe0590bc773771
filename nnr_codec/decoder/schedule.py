"""Decoding many tensors in order: in the calling thread, or in others, which share large ones, or in any executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from ..bitstream.source import Span
from ..errors import NnrError
from ..limits import Budget, Limits
from ..model import Array
from ..workers import Pool, end, lost, workers_of
from .group import Group, GroupDecoder, References
from .kept import Kept, Result
from .state import UpdateState
from .unit import Piece

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

#: Tensors that cost less than this (Group.cost) take no longer than handing them to another thread.
SMALL = 1 << 13
#: Bytes of tensors that may be decoded before they are asked for.
WINDOW = 1 << 26

_NOTHING = cast(memoryview, b"")  # which can be pickled

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
        Takes the work. Threads share large tensors that have entry points; others take whole ones, see
        :class:`nnr_codec.workers.Pool`. The call must not come from one of its own workers.
    jobs : int
        Without an executor, this many threads are started; with one, how many workers it has.

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
        elif threads := _threads(executor, jobs, stack):
            schedule = stack.enter_context(_Schedule(threads))
            results = _of_threads(schedule.results(groups, state, first_edition, raw), groups, executor)
        else:
            results = _handed_over(stack.enter_context(Pool(jobs, executor)), groups, state, first_edition, raw)
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
    groups: Sequence[Group],
    *,
    first_edition: bool,
    jobs: int = 1,
    executor: Executor | None = None,
    kept: Kept | None = None,
) -> Iterator[Iterator[dict[str, Array]]]:
    """Yield an iterator over the tensors of each group, in this order, which are decoded when they are asked for.

    With several threads others are begun meanwhile, no more than these take, or WINDOW bytes. The groups have been
    charged, and know of no earlier updates. What is ``kept`` is not decoded, and what is decoded is kept. Other
    parameters, results and errors are those of :func:`decode_groups`.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, which leaves nobody to decode")
    state = UpdateState()
    with ExitStack() as stack:
        results: Iterator[Result]
        if executor is None and jobs == 1:
            results = (_one(group, state, first_edition, kept) for group in groups)
        elif threads := _threads(executor, jobs, stack):
            schedule = stack.enter_context(_Schedule(threads))
            ahead = schedule.ahead(groups, state, first_edition, workers_of(jobs, executor), kept)
            results = _of_threads(ahead, groups, executor)
        else:
            results = _handed_over(stack.enter_context(Pool(jobs, executor)), groups, state, first_edition, False, kept)
        yield (_given(group, result, kept) for group, result in zip(groups, results, strict=True))


def _given(group: Group, result: Result, kept: Kept | None) -> dict[str, Array]:
    """The tensors of a group, which are kept if they are to be."""
    tensors = result[0]
    if kept:
        kept.put(group, tensors)
    return tensors


def _threads(executor: Executor | None, jobs: int, stack: ExitStack) -> Executor | None:
    """Threads of this process: our own, or the caller's, if that is what the executor has."""
    from concurrent.futures import ThreadPoolExecutor  # with which comes logging

    if executor is None:
        return stack.enter_context(ThreadPoolExecutor(jobs))
    return executor if isinstance(executor, ThreadPoolExecutor) else None


def _of_threads(results: Iterator[Result], groups: Sequence[Group], executor: Executor | None) -> Iterator[Result]:
    """The results of groups; WorkerError where the caller's threads were shut down, or their work cancelled."""
    if executor is None:
        yield from results
        return
    from concurrent.futures import CancelledError

    for group in groups:
        try:
            result = next(results)
        except (RuntimeError, CancelledError) as error:
            raise lost([info.name for info in group.infos], error) from error
        yield result


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
        end(self._futures)

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
        self, groups: Sequence[Group], state: UpdateState, first_edition: bool, workers: int, kept: Kept | None
    ) -> Iterator[Result]:
        """What each group gives, in order; see :func:`decoded_ahead`."""
        begun: deque[tuple[Sequence[Callable[[], Result | None]], list[Future[Result | None]]]] = deque()
        error: NnrError | None = None
        after = nbytes = 0  # up to where work has begun, and the bytes of what is begun and not given
        for index, group in enumerate(groups):
            while not error and after < len(groups):
                size = groups[after].nbytes
                if after > index and nbytes + size > WINDOW and len(begun) > workers:
                    break
                calls: Sequence[Callable[[], Result | None]]
                large = groups[after].cost >= SMALL
                if kept and groups[after] in kept:
                    calls, large = [partial(_one, groups[after], state, first_edition, kept)], False
                else:
                    try:
                        calls = self._calls(after, groups[after], state, first_edition, False)
                    except NnrError as raised:  # in its turn, if no group before fails
                        error = raised
                        break
                futures = [self._executor.submit(call) for call in calls] if large else []
                self._futures.update(futures)
                begun.append(([] if large else calls, futures))
                after, nbytes = after + 1, nbytes + size
            if not begun and error:
                raise error
            nbytes -= group.nbytes
            yield self._result(*begun.popleft())

    def _result(self, calls: Sequence[Callable[[], Result | None]], futures: list[Future[Result | None]]) -> Result:
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
        whole = _Whole(self, index, decoder, len(pieces))
        return [_Call(whole, piece) for piece in pieces]


@dataclass
class _Whole:
    """A group in pieces; the piece that is done last puts it together."""

    schedule: _Schedule
    index: int
    decoder: GroupDecoder
    left: int
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True)
class _Call:
    """Does one piece."""

    whole: _Whole
    piece: Piece

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


# ------------------------------------------------------------------------------------------------ other executors
def _handed_over(
    pool: Pool, groups: Sequence[Group], state: UpdateState, first_edition: bool, raw: bool, kept: Kept | None = None
) -> Iterator[Result]:
    """What each group gives, in order; whole groups are handed over."""
    tasks: list[_Task] = []
    for group in groups:
        try:
            tasks.append(_Task(group, group.references(state), first_edition, raw, kept))
        except NnrError as error:  # in its turn, if no group before fails
            tasks.append(_Task(group, (), first_edition, raw, kept, error))
            break
    return pool.results(tasks)


class _Task:
    """Decodes a group; in another process a copy of it, whose payloads are bytes, or where to read them."""

    def __init__(
        self,
        group: Group,
        references: References,
        first_edition: bool,
        raw: bool,
        kept: Kept | None = None,
        error: NnrError | None = None,
    ) -> None:
        self._group, self._references, self._options, self._kept = group, references, (first_edition, raw), kept
        self._error = error
        self.names, self.cost = [info.name for info in group.infos], group.nbytes
        self.here = error is not None or (kept is not None and group in kept)

    def __call__(self) -> Result:
        if self._error is not None:
            raise self._error
        decode = partial(_decode, self._group, self._references, *self._options)
        return self._kept.get(self._group, decode) if self._kept and self.here else decode()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_decode, _portable(self._group), self._references, *self._options)


def _one(group: Group, state: UpdateState, first_edition: bool, kept: Kept | None) -> Result:
    """What a group gives, in the calling thread."""

    def decode() -> Result:
        return _decode(group, group.references(state), first_edition, False)

    return kept.get(group, decode) if kept and group in kept else decode()


def _decode(group: Group, references: References, first_edition: bool, raw: bool) -> Result:
    return GroupDecoder(group, references, first_edition=first_edition, raw=raw).run()


def _portable(group: Group) -> Group:
    """A copy that can be pickled."""
    limits = replace(group.limits, expected=None)
    tasks = [
        replace(
            task,
            unit=replace(task.unit, content=b"", raw=_NOTHING),
            spans=tuple([span.portable() if isinstance(span, Span) else bytes(span) for span in task.spans]),
            session=replace(task.session, topology_dimensions={}, declared=None, topology=None),
            limits=limits,
        )
        for task in group.tasks
    ]
    return Group(tuple(tasks), (), limits)
