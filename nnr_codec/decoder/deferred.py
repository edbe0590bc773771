"""Lazy decoding of the tensors of a bitstream for sequential access."""

from __future__ import annotations

import io
import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import LimitError, locate
from ..limits import Budget
from ..model import Array
from .group import Group
from .info import TensorInfo
from .schedule import Stored, decoded_ahead

if TYPE_CHECKING:
    from concurrent.futures import Executor

#: Maximum bytes in memory for decoded tensors that share a unit with a requested tensor; others go to a file.
KEPT = 1 << 26


class UnitTensor(NamedTuple):
    """Tensor of a unit, with its name and the label of the unit."""

    name: str
    tensor: Array
    label: str


@dataclass(frozen=True)
class Access:
    """Functions of a file for its tensors; ``own`` is the name of a tensor that is not tied to another.

    Parameters
    ----------
    parts : callable
        Returns the names of the unit tensors from which ``own`` is made.
    group : callable
        Returns the group of a unit tensor.
    make : callable
        Builds ``own`` from its parts and charges the budget.
    again : callable
        Decodes any tensor separately.
    """

    parts: Callable[[str], tuple[str, ...]]
    group: Callable[[str], Group]
    make: Callable[[str, Iterable[UnitTensor], Budget], Array]
    again: Callable[[str], Array]


class DeferredTensors(Mapping[str, Array]):
    """Mapping that decodes tensors on access, and each unit once if tensors are accessed in the announced order.

    Other tensors of a unit are kept until they are requested, large ones in a temporary file. A tensor that is
    requested more often than announced is decoded again. Results and errors do not depend on threads or executors: the
    error of the first faulty tensor, in the announced order, is raised when that tensor is requested.

    Parameters
    ----------
    infos : mapping of str to TensorInfo
        The tensors; unless announced otherwise, each is expected once, in this order.
    access : Access
    budget : Budget
        Charged for model tensors made from unit tensors; the unit tensors are already charged.
    stack : ExitStack
        Closes the threads and files of this object.
    first_edition, jobs, executor
        As for :func:`decode_groups`.
    stored : Stored, optional
        Checkpoint of the tensors of groups.
    note : callable, optional
        Called with each name when its tensor is first available.
    """

    def __init__(
        self,
        infos: Mapping[str, TensorInfo],
        access: Access,
        budget: Budget,
        stack: ExitStack,
        *,
        first_edition: bool,
        jobs: int = 1,
        executor: Executor | None = None,
        stored: Stored | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self._infos, self._access, self._budget, self._stack = infos, access, budget, stack
        self._options: dict[str, Any] = {
            "first_edition": first_edition,
            "jobs": jobs,
            "executor": executor,
            "stored": stored,
        }
        self._note, self._lock = note, RLock()
        self._kept = _Kept(stack)
        self._noted: set[str] = set()
        self._charged: set[str] = set()
        self._decoded: Iterator[dict[str, Array]] | None = None
        self._plan(infos)
        stack.callback(self._plan, ())

    def announce(self, names: Iterable[str]) -> None:
        """Announce order and number of accesses before the first one; check all other tensors now.

        Raises the errors of decoding.
        """
        names = list(names)
        announced = set(names)
        others = [name for name in self._infos if name not in announced]
        self._plan([*others, *names])
        for name in others:
            self[name]

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return dtype and shape of a tensor, from headers."""
        return self._infos[name].dtype, self._infos[name].shape

    def _plan(self, names: Iterable[str]) -> None:
        uses, groups = Counter[str](), dict[int, Group]()
        for name in names:
            for part in self._parts(name):
                uses[part] += 1
                group = self._access.group(part)
                groups.setdefault(id(group), group)
        self._uses, self._groups = uses, deque(groups.values())

    def _own(self, name: str) -> str:
        return self._infos[name].same_as or name

    def _parts(self, name: str) -> tuple[str, ...]:
        return self._access.parts(self._own(name))

    def __getitem__(self, name: str) -> Array:
        with self._lock:
            own, parts = self._own(name), self._parts(name)
            if not all(self._uses[part] and self._find(part, parts) for part in parts):
                return self._access.again(name)
            found = [self._taken(part) for part in parts]
            budget = Budget(self._budget.limits) if own in self._charged else self._budget
            self._charged.add(own)
            tensor = self._access.make(own, found, budget)
            if own != name:
                self._charge_tie(tensor, found[-1].label if found else "")
            if self._note and name not in self._noted:
                self._noted.add(name)
                self._note(name)
            return tensor

    def _charge_tie(self, tensor: Array, label: str) -> None:
        try:
            self._budget.tensor(tensor.shape, tensor.itemsize, "tied tensor")
        except LimitError as error:
            locate(error, label)
            raise

    def _find(self, part: str, wanted: tuple[str, ...]) -> bool:
        """Decode until a part is available; return False if an earlier error prevents that."""
        if self._decoded is None:
            self._decoded = self._stack.enter_context(decoded_ahead(list(self._groups), **self._options))
        while part not in self._kept:
            tensors = next(self._decoded, None)
            if tensors is None:
                return False
            label = self._groups.popleft().label
            for name in list(tensors):
                tensor = tensors.pop(name)
                if self._uses[name]:
                    self._kept.put(UnitTensor(name, tensor, label), name not in wanted)
        return True

    def _taken(self, part: str) -> UnitTensor:
        self._uses[part] -= 1
        return self._kept.take(part, last=not self._uses[part])

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


class _Kept:
    """Decoded parts that are not yet requested; beyond KEPT bytes they are stored in a temporary file."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._parts: dict[str, UnitTensor] = {}
        self._stored: dict[str, tuple[int, np.dtype[Any], tuple[int, ...], str]] = {}
        self._nbytes = 0
        self._file: io.BufferedRandom | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._parts or name in self._stored

    def put(self, part: UnitTensor, wait: bool) -> None:
        """Add a part; if it must wait, it may be moved to the file."""
        tensor = part.tensor
        if wait and self._nbytes + tensor.nbytes > KEPT:
            if self._file is None:
                self._file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
            self._stored[part.name] = place, tensor.dtype, tensor.shape, part.label
            return
        # A view would keep the whole array alive.
        self._parts[part.name] = part._replace(tensor=tensor.copy()) if wait and tensor.base is not None else part
        self._nbytes += tensor.nbytes

    def take(self, name: str, last: bool) -> UnitTensor:
        """Return a part; ``last`` releases it."""
        if name in self._parts:
            part = self._parts.pop(name)
            if not last:
                self._parts[name] = part._replace(tensor=part.tensor.copy())
            else:
                self._nbytes -= part.tensor.nbytes
            return part
        place, dtype, shape, label = self._stored[name]
        assert self._file
        tensor: Array = np.empty(shape, dtype)
        self._file.seek(place)
        self._file.readinto(tensor.reshape(-1).view(np.uint8).data)
        return UnitTensor(name, tensor, label)
