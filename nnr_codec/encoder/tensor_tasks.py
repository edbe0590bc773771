"""Tasks on tensors of a model; the worker of a task reads its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from ..config import EncoderConfig
from ..errors import LimitError
from ..model import Array, Model, Portable, nbytes_of, only_of
from ..parallel.pool import SMALL, WINDOW, Pool, Task, worker_errors
from .facts import native

__all__ = ["Pool", "TensorReader", "TensorTask"]

#: Bytes of memory of an array object and its dict entry, without items.
ARRAY_BYTES = 400

Result = TypeVar("Result")


class TensorReader:
    """Reader of a model's tensors. It locks the mapping, which may not be thread-safe.

    Up to WINDOW bytes of small tensors of a model in files are cached: opening the file twice for each, for planning
    and coding, takes longer than the work.
    """

    def __init__(self, model: Model) -> None:
        self._tensors, self._lock = model.tensors, Lock()
        self._kept: dict[str, Array] = {}
        self._room = WINDOW if isinstance(model.tensors, Portable) else 0

    def __call__(self, names: Sequence[str]) -> list[Array]:
        """Return the tensors of these names, in native byte order and C order."""
        with self._lock:
            return [self._kept[name] if name in self._kept else self._read(name) for name in names]

    def _read(self, name: str) -> Array:
        array = native(np.asarray(self._tensors[name]))
        if self._room and (taken := array.nbytes + ARRAY_BYTES) <= min(self._room, SMALL):
            self._kept[name] = array
            self._room -= taken
        return array

    def nbytes(self, names: Iterable[str]) -> int:
        """Return the bytes of tensors, as far as known without reading them."""
        return sum([nbytes_of(self._tensors, name, WINDOW) for name in names])

    def portable(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Return the tensors for another process: their positions in files, or the arrays."""
        with self._lock:
            return only_of(self._tensors, names)


def arrays_of(tensors: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """Return tensors in native byte order and C order."""
    return [native(np.asarray(tensors[name])) for name in names]


@dataclass
class TensorTask(Task[Result]):
    """Task that calls a function with tensors, which are read for the call, if possible by the worker process.

    The call raises LimitError if there is not enough memory.

    Parameters
    ----------
    function : callable
        Function whose first argument is the list of tensors.
    read : TensorReader
    names : tuple of str
    arguments : tuple
        Other arguments.
    nbytes : int
        Bytes of the tensors.
    hints : tuple
        Further arguments. The result does not depend on them, given the other arguments and the units before.
    """

    function: Callable[..., Result]
    read: TensorReader
    names: tuple[str, ...]
    arguments: tuple[Any, ...]
    nbytes: int
    hints: tuple[Any, ...] = ()

    @property
    def inline(self) -> bool:
        """See Task: a task without tensors has no work for a worker."""
        return not self.names

    def __call__(self) -> Result:
        try:
            return self.function(self.read(self.names), *self.arguments, *self.hints)
        except MemoryError:
            raise _too_large(self.names) from None

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = [of_some(argument, self.names) for argument in self.arguments]
        tensors = self.read.portable(self.names)
        return partial, (_elsewhere, self.function, tensors, self.names, *arguments, *self.hints)


def of_some(argument: Any, names: Sequence[str]) -> Any:
    """Return an argument; remove options of other tensors from a configuration."""
    if not isinstance(argument, EncoderConfig):
        return argument
    changes: dict[str, Any] = {}
    for field in ("overrides", "sensitivity", "hessians"):
        given = getattr(argument, field)
        if given:
            changes[field] = {name: given[name] for name in names if name in given}
    return replace(argument, **changes) if changes else argument


def _elsewhere(
    function: Callable[..., Result], tensors: Mapping[str, Array], names: Sequence[str], *arguments: Any
) -> Result:
    """Run a call in another process."""
    try:
        with worker_errors():
            arrays = arrays_of(tensors, names)
        return function(arrays, *arguments)
    except MemoryError:
        raise _too_large(names) from None


def _too_large(names: Sequence[str]) -> LimitError:
    return LimitError("not enough memory to encode it", unit=f"tensor {names[0]!r}")
