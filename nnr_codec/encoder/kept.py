"""What a pool does, and keeps, so that the same work goes on from there after an interruption."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from ..config import EncoderConfig
from ..model import Array, Model
from ..parts import Parts
from .schedule import Call, Pool, Reader, of_some

Result = TypeVar("Result")

#: Bytes of what is kept beside units, such as the plan of a tensor, at most.
MOST = 1 << 16


class Keeping:
    """Does what a pool does, and keeps what calls give. A part follows from its call and the items of the tensors.

    Parameters
    ----------
    pool : Pool
    parts : Parts
    model : Model
        All tensors are read once, for digests.
    read : Reader
    """

    def __init__(self, pool: Pool, parts: Parts, model: Model, read: Reader) -> None:
        self._pool, self._parts, self._model = pool, parts, model
        calls = [Call(_digest, read, (name,), (), read.nbytes([name])) for name in model.tensors]
        self._digests = {call.names[0]: digest for call, digest in zip(calls, pool.results(calls), strict=True)}
        self._keys: set[str] = set()

    def threads(self, cost: int, whole: int) -> int:
        """See Pool."""
        return self._pool.threads(cost, whole)

    def settled(self, config: EncoderConfig, settle: Callable[[], EncoderConfig]) -> EncoderConfig:
        """The options without goals that a function makes of these, or has made."""
        plain: dict[str, Any] = dict.fromkeys(("sensitivity", "hessians", "performance"))
        given = {name: getattr(config, name) for name in plain}
        model = self._model
        about = replace(config, **plain), config.sensitivity, config.hessians
        key = self._key("settled", *about, model.blocks, model.aliases, self._digests)
        found = self._parts.get(key) if key else None
        if not isinstance(found, EncoderConfig):
            found = settle()
            if key:
                self._parts.put(key, replace(found, **plain))
        return replace(found, **given)

    def results(self, calls: Sequence[Call[Result]]) -> Iterator[Result]:
        """See Pool; small results are kept."""
        return self._results(calls, (), MOST)

    def units(self, calls: Sequence[Call[Result]], before: Sequence[bytes]) -> Iterator[Result]:
        """The same for units of any size, which follow from those ``before`` as well; other parts go away."""
        return self._results(calls, (hashlib.sha256(b"".join(before)).digest(),), None)

    def _results(self, calls: Sequence[Call[Result]], about: tuple[bytes, ...], most: int | None) -> Iterator[Result]:
        kept = [_Kept(call, self._parts, self._key_of(call, about), most) for call in calls]
        if most is None:
            self._parts.only(self._keys)
        there = [one.key is not None and one.key in self._parts for one in kept]
        tasks = [one if is_there else one.call for one, is_there in zip(kept, there, strict=True)]
        for one, is_there, result in zip(kept, there, self._pool.results(tasks), strict=True):
            if not is_there:
                one.keep(result)
            yield result

    def _key_of(self, call: Call[Any], about: tuple[bytes, ...]) -> str | None:
        arguments = [of_some(argument, call.names) for argument in call.arguments]
        digests = [self._digests[name] for name in call.names]
        return self._key(call.function.__qualname__, *about, call.names, digests, *arguments)

    def _key(self, *what: Any) -> str | None:
        with suppress(TypeError):
            key = self._parts.key(*what)
            self._keys.add(key)
            return key
        return None


@dataclass(slots=True)
class _Kept(Generic[Result]):
    """A call whose result is there, or will be kept; without a key, neither."""

    call: Call[Result]
    parts: Parts
    key: str | None
    most: int | None

    here = True

    @property
    def names(self) -> Sequence[str]:
        """See :class:`nnr_codec.workers.Task`."""
        return self.call.names

    @property
    def cost(self) -> int:
        """See Task."""
        return self.call.cost

    def __call__(self) -> Result:
        found: Result | None = self.parts.get(self.key) if self.key else None
        if found is None:  # a part that is damaged
            found = self.call()
            self.keep(found)
        return found

    def keep(self, result: Result) -> None:
        """Keep the result, unless it is nothing that can be."""
        if self.key is not None:
            with suppress(TypeError):
                self.parts.put(self.key, result, self.most)


def _digest(arrays: list[Array]) -> bytes:
    """Of type, shape and items of a tensor; nothing of a type that is not coded anyway."""
    (array,) = arrays
    digest = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    if not array.dtype.hasobject:
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()
