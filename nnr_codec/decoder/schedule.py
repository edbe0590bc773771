"""Decoding of many tensors in bitstream order: groups of units as tasks of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..bitstream.source import Span
from ..dtypes import STORED_TYPES
from ..errors import NnrError
from ..limits import Budget
from ..model import Array
from ..parallel import pool as pools
from ..parallel.checkpoint import Checkpoint, Record
from ..parallel.pool import Pool, Task
from . import lanes, unit
from .group import Group, GroupDecoder, References, Result
from .state import UpdateState

if TYPE_CHECKING:
    from concurrent.futures import Executor

#: Bytes of tensors that are decoded at a time if all tensors are returned.
TOGETHER = 1 << 28
_NOTHING = cast(memoryview, b"")  # bytes can be pickled; a memoryview cannot

#: Function that converts a decoded tensor (name, array, label of its unit) to output tensors with their names.
Deliver = Callable[[str, Array, str], Iterable[tuple[str, Array]]]


def decode_groups(
    groups: Iterable[Group],
    budget: Budget,
    *,
    first_edition: bool,
    state: UpdateState | None,
    raw: bool = False,
    deliver: Deliver | None = None,
    note: Callable[[str], None] | None = None,
    executor: Executor | None = None,
    jobs: int = 1,
) -> dict[str, Array]:
    """Decode groups of one bitstream and return their tensors by name, in bitstream order.

    Results and errors do not depend on the number of workers.

    Parameters
    ----------
    groups : iterable of Group
    budget : Budget
        Charged for all groups before the first one is decoded.
    first_edition : bool
        See :meth:`Group.decode`.
    state : UpdateState or None
        Receives the references for later updates, up to the first error; None if there are no other updates.
    raw : bool
        See :meth:`Group.decode`.
    deliver : callable, optional
        Converts each decoded tensor to output tensors. Called in the calling thread, in bitstream order. By default,
        decoded tensors are returned unchanged.
    note : callable, optional
        Called with the name of each output tensor, in the same thread and order.
    executor : concurrent.futures.Executor, optional
        Runs the tasks. Threads divide a large tensor that has entry points; other workers decode whole groups, see
        :class:`nnr_codec.parallel.pool.Pool`. The function must not be called from one of its workers.
    jobs : int, default 1
        Without an executor: number of threads to start. With an executor: its number of workers.

    Raises
    ------
    NnrError
        The first error in bitstream order. Pending tasks are then cancelled, and running tasks stop early.
    """
    groups, tensors, pool = list(groups), dict[str, Array](), Pool(jobs, executor)
    for group in groups:
        group.charge(budget)
    if state is not None:
        state.begin()
    tasks = _tasks(groups, state, first_edition, raw)
    with pool:
        for group, (arrays, left) in zip(groups, _run(pool, tasks, TOGETHER), strict=True):
            if state is not None:
                group.commit(state, left)
            for part in list(arrays):
                array = arrays.pop(part)  # no other reference: its memory is released on conversion
                given = deliver(part, array, group.label) if deliver else [(part, array)]
                del array
                for name, tensor in given:
                    tensors[name] = tensor
                    if note:
                        note(name)
    return tensors


@dataclass(frozen=True)
class Stored:
    """Checkpoint with the decoded groups of one bitstream without updates.

    Parameters
    ----------
    checkpoint : Checkpoint
    about : tuple
        Digest of the bitstream, and options of the decoder; part of the keys.
    """

    checkpoint: Checkpoint
    about: tuple[Any, ...]

    def results(self, pool: Pool, tasks: Sequence[GroupTask]) -> Iterator[Result]:
        """Yield the results of tasks in order; remove records of other groups from the checkpoint."""
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
    """Return a context manager for an iterator over the tensors of each group, in order.

    Groups are decoded on demand; threads decode ahead in the same order. The caller has charged the budget for the
    groups, which must not refer to earlier updates. Groups with a record in ``stored`` are not decoded; other groups
    are stored there. For other parameters and errors see :func:`decode_groups`.
    """
    tasks = _tasks(groups, None, first_edition)
    together = pools.WINDOW if jobs == 1 and executor is None else pools.WINDOW // 2
    with Pool(jobs, executor) as pool:
        results = stored.results(pool, tasks) if stored else _run(pool, tasks, together, large_first=False)
        yield (tensors for tensors, _ in results)


def _run(pool: Pool, tasks: list[GroupTask], nbytes: int, *, large_first: bool = True) -> Iterator[Result]:
    """Yield the results of tasks as Pool.run does; in lanes, up to ``nbytes`` of tensors are decoded at a time."""
    if not (unit.LANES and pool.has_threads):
        return pool.run(tasks, large_first=large_first)
    if pool.jobs > 1:
        nbytes = min(nbytes, max(-(-sum([task.nbytes for task in tasks]) // pool.jobs), lanes.SHARE))
    return chain.from_iterable(pool.run(lanes.batches(tasks, nbytes), large_first=large_first))


class GroupTask(Task[Result]):
    """Task that decodes a group.

    The pickled copy for another process contains the payloads as bytes, or the file and range of each payload.
    """

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
        if self._error is not None:
            raise self._error
        first_edition, raw = self._options
        return GroupDecoder(self.group, self._references, first_edition=first_edition, raw=raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_decode, _portable(self.group), self._references, *self._options)


def _tasks(
    groups: Iterable[Group], state: UpdateState | None, first_edition: bool, raw: bool = False
) -> list[GroupTask]:
    """Return the tasks of groups. The tasks end at a group with a missing reference; its task raises the error."""
    tasks: list[GroupTask] = []
    for group in groups:
        try:
            tasks.append(GroupTask(group, group.references(state), first_edition, raw))
        except NnrError as error:
            tasks.append(GroupTask(group, (), first_edition, raw, error))
            break
    return tasks


def _decode(group: Group, references: References, first_edition: bool, raw: bool) -> Result:
    return GroupDecoder(group, references, first_edition=first_edition, raw=raw).run()


def _portable(group: Group) -> Group:
    """Return a copy of a group that can be pickled."""
    limits = replace(group.limits, expected=None)
    tasks = [
        replace(
            task,
            unit=replace(task.unit, content=b"", raw=_NOTHING),
            spans=tuple([span.portable() if isinstance(span, Span) else bytes(span) for span in task.spans]),
            session=replace(task.session, topology_dimensions={}, declared=None, topology=None),
            limits=limits,
            out=None,
        )
        for task in group.tasks
    ]
    return Group(tuple(tasks), (), limits)
