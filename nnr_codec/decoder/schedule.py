"""Decoding many tensors in order: groups of units as tasks of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..bitstream.source import Span
from ..dtypes import STORED_TYPES
from ..errors import NnrError
from ..limits import Budget
from ..model import Array
from ..parallel.checkpoint import Checkpoint, Record
from ..parallel.pool import Pool, Task
from .group import Group, GroupDecoder, Left, References
from .state import UpdateState

if TYPE_CHECKING:
    from concurrent.futures import Executor

_NOTHING = cast(memoryview, b"")  # which can be pickled

#: The tensors of a group by name, and what later updates refer to.
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
    note: Callable[[str], None] | None = None,
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
    note : callable, optional
        Called with the name of each returned tensor, in the calling thread.
    executor : concurrent.futures.Executor, optional
        Takes the work. Threads share large tensors that have entry points; others take whole ones, see
        :class:`nnr_codec.parallel.pool.Pool`. The call must not come from one of its own workers.
    jobs : int
        Without an executor, this many threads are started; with one, how many workers it has.

    Raises the error that comes first in the bitstream; what is not begun then is cancelled, and the rest stops soon.
    """
    groups, tensors, pool = list(groups), dict[str, Array](), Pool(jobs, executor)
    for group in groups:
        group.charge(budget)
    state.begin()
    tasks = _tasks(groups, state, first_edition, raw)
    with pool:
        for group, (arrays, left) in zip(groups, pool.run(tasks), strict=True):
            group.commit(state, left)
            for part in list(arrays):
                array = arrays.pop(part)  # which is kept no longer than it takes to make another of it
                given = deliver(part, array, group.label) if deliver else [(part, array)]
                del array
                for name, tensor in given:
                    tensors[name] = tensor
                    if note:
                        note(name)
    return tensors


@dataclass(frozen=True)
class Stored:
    """The records of decoded groups of one bitstream, none of which is an update.

    Parameters
    ----------
    checkpoint : Checkpoint
    about : tuple
        Digest of the bitstream, and how it is read.
    """

    checkpoint: Checkpoint
    about: tuple[Any, ...]

    def results(self, pool: Pool, tasks: Sequence[_GroupTask]) -> Iterator[Result]:
        """Yield the results of tasks in their order; those of other groups are removed."""
        keys = [self._key(task.group) for task in tasks]
        self.checkpoint.only(set(keys))
        return self.checkpoint.run(pool, tasks, keys, _pack, _unpack, large_first=False)

    def _key(self, group: Group) -> str:
        about = [(task.unit.index, task.names, task.dims, task.outputs) for task in group.tasks]
        return self.checkpoint.key("tensors", *self.about, about)


def _pack(result: Result) -> Record:
    arrays = result[0]
    buffers = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays.values()]
    return [(name, array.dtype.name, array.shape) for name, array in arrays.items()], buffers


def _unpack(record: Record) -> Result:
    arrays = {
        name: np.frombuffer(buffer, STORED_TYPES[dtype].dtype).reshape(shape)
        for (name, dtype, shape), buffer in zip(*record, strict=True)
    }
    return arrays, []


@contextmanager
def decoded_ahead(
    groups: Sequence[Group],
    *,
    first_edition: bool,
    jobs: int = 1,
    executor: Executor | None = None,
    stored: Stored | None = None,
) -> Iterator[Iterator[dict[str, Array]]]:
    """Yield an iterator over the tensors of each group, in this order, which are decoded when they are asked for.

    Threads decode some ahead, in this order too. The groups have been charged, and refer to no earlier updates. Groups
    whose tensors are ``stored`` are not decoded, and what is decoded is stored. Other parameters, results and errors
    are those of :func:`decode_groups`.
    """
    tasks = _tasks(groups, UpdateState(), first_edition)
    with Pool(jobs, executor) as pool:
        results = stored.results(pool, tasks) if stored else pool.run(tasks, large_first=False)
        yield (tensors for tensors, _ in results)


class _GroupTask(Task[Result]):
    """Decodes a group; in another process a copy of it, whose payloads are bytes, or where to read them."""

    def __init__(
        self,
        group: Group,
        references: References,
        first_edition: bool,
        raw: bool,
        error: NnrError | None = None,
    ) -> None:
        self.group, self._references, self._options, self._error = group, references, (first_edition, raw), error
        self.names, self.nbytes = [info.name for info in group.infos], group.nbytes

    @property
    def work(self) -> int:
        """See Task."""
        return 4 * self.group.cost

    @property
    def inline(self) -> bool:
        """See Task."""
        return self._error is not None

    def __call__(self) -> Result:
        if self._error is not None:
            raise self._error
        return _decode(self.group, self._references, *self._options)

    def split(self) -> GroupDecoder:
        """See Task."""
        first_edition, raw = self._options
        return GroupDecoder(self.group, self._references, first_edition=first_edition, raw=raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_decode, _portable(self.group), self._references, *self._options)


def _tasks(groups: Iterable[Group], state: UpdateState, first_edition: bool, raw: bool = False) -> list[_GroupTask]:
    """Return the tasks of groups, up to one that raises the error of a group whose reference is missing."""
    tasks: list[_GroupTask] = []
    for group in groups:
        try:
            tasks.append(_GroupTask(group, group.references(state), first_edition, raw))
        except NnrError as error:
            tasks.append(_GroupTask(group, (), first_edition, raw, error))
            break
    return tasks


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
