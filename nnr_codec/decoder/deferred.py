"""The tensors of a bitstream for somebody who takes one after another: decoded when they are asked for."""

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

#: Bytes of tensors that may wait in memory, because they share a unit with one that was asked for before them.
KEPT = 1 << 26


class Part(NamedTuple):
    """A tensor of a unit, its name, and the label of the unit."""

    name: str
    tensor: Array
    label: str


@dataclass(frozen=True)
class Access:
    """What a file can do with its tensors; ``own`` is the name of one that is tied to no other.

    Parameters
    ----------
    parts : callable
        The names of the tensors of units that ``own`` is made of.
    group : callable
        The group of a tensor of a unit.
    make : callable
        Makes ``own`` of its parts, and charges the budget.
    again : callable
        Decodes any tensor by itself.
    """

    parts: Callable[[str], tuple[str, ...]]
    group: Callable[[str], Group]
    make: Callable[[str, Iterable[Part], Budget], Array]
    again: Callable[[str], Array]


class DeferredTensors(Mapping[str, Array]):
    """Tensors that are decoded when they are asked for: each unit once, if they are asked for as was announced.

    Other tensors of a unit are kept until they are asked for, in a temporary file when they are large. Who asks for
    a tensor more often than announced has it decoded again. Results and errors do not depend on who decodes: the
    error of the first tensor that has one, in the order announced, is raised when that one is asked for.

    Parameters
    ----------
    infos : mapping of str to TensorInfo
        The tensors; unless something else is announced, they are expected once each in this order.
    access : Access
    budget : Budget
        Charged for what is made of the tensors of units; for these, it has been.
    stack : ExitStack
        Its end is that of this object's use of threads and files.
    first_edition, jobs, executor
        As for :func:`decode_groups`.
    stored : Stored, optional
        Where the tensors of groups are stored for resuming.
    progress : callable, optional
        Told each name, when its tensor is there for the first time.
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
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._infos, self._access, self._budget, self._stack = infos, access, budget, stack
        self._options: dict[str, Any] = {
            "first_edition": first_edition,
            "jobs": jobs,
            "executor": executor,
            "stored": stored,
        }
        self._progress, self._lock = progress, RLock()
        self._kept = _Kept(stack)
        self._told: set[str] = set()
        self._charged: set[str] = set()
        self._decoded: Iterator[dict[str, Array]] | None = None
        self._plan(infos)
        stack.callback(self._plan, ())

    def announce(self, names: Iterable[str]) -> None:
        """Tell, before anything is asked for, what will be, in which order and how often; the others are checked now.

        Raises what decoding raises.
        """
        names = list(names)
        announced = set(names)
        others = [name for name in self._infos if name not in announced]
        self._plan([*others, *names])
        for name in others:
            self[name]

    def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a tensor, from headers."""
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
            if self._progress and name not in self._told:
                self._told.add(name)
                self._progress(name)
            return tensor

    def _charge_tie(self, tensor: Array, label: str) -> None:
        try:
            self._budget.tensor(tensor.shape, tensor.itemsize, "tied tensor")
        except LimitError as error:
            locate(error, label)
            raise

    def _find(self, part: str, wanted: tuple[str, ...]) -> bool:
        """Decode until a part is there; False when it does not come any more, after an error."""
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
                    self._kept.put(Part(name, tensor, label), name not in wanted)
        return True

    def _taken(self, part: str) -> Part:
        self._uses[part] -= 1
        return self._kept.take(part, last=not self._uses[part])

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


class _Kept:
    """Parts that wait; beyond KEPT bytes those that are not wanted yet wait in a temporary file."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._parts: dict[str, Part] = {}
        self._stored: dict[str, tuple[int, np.dtype[Any], tuple[int, ...], str]] = {}
        self._nbytes = 0
        self._file: io.BufferedRandom | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._parts or name in self._stored

    def put(self, part: Part, wait: bool) -> None:
        """Add a part, of which others may not know any more when it has to wait."""
        tensor = part.tensor
        if wait and self._nbytes + tensor.nbytes > KEPT:
            if self._file is None:
                self._file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
            self._stored[part.name] = place, tensor.dtype, tensor.shape, part.label
            return
        # A view would keep all that it is a part of.
        self._parts[part.name] = part._replace(tensor=tensor.copy()) if wait and tensor.base is not None else part
        self._nbytes += tensor.nbytes

    def take(self, name: str, last: bool) -> Part:
        """A part, for the last time or not."""
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
        return Part(name, tensor, label)
