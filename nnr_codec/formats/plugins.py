"""Formats of other packages, none of whose mistakes is more than a warning to whom another format serves.

They are the entry points of the group :data:`GROUP`: modules, or objects, that have what
:class:`~nnr_codec.formats.registry.Format` asks for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from ..errors import FormatError, LimitError
from ..model import Topology, Wiring

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The group of entry points by which other packages add formats.
GROUP = "nnr_codec.formats"

_Result = TypeVar("_Result")


class FormatWarning(UserWarning):
    """Something that is left out: of a model file or model by who reads or writes it, or a format of others."""


@cache
def entries() -> dict[str, EntryPoint]:
    """The entry points by name, which are not imported."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def working(taken: Collection[str]) -> Iterator[Guarded]:
    """The formats that can be used, and whose names are not taken; of the others there is a warning."""
    for name in entries():
        if name not in taken:
            try:
                yield named(name)
            except FormatError as error:
                _warn(str(error))


@cache
def named(name: str) -> Guarded:
    """The format of that name; FormatError, in one line, if it cannot be used."""
    point = entries()[name]
    try:
        return Guarded(name, point.load())
    except (Exception, SystemExit) as error:
        raise FormatError(f"the format {name!a} of {point.value!a} cannot be used: {_told(error)}") from error


class Guarded:
    """A format of another package; TypeError, which says why, unless it is one of that name.

    Its ``recognise``, ``owns`` and ``wiring`` are asked about everything, and what they raise is a warning.
    """

    def __init__(self, name: str, module: Any) -> None:
        self._module = module
        if getattr(module, "NAME", None) != name:
            raise TypeError(f"its NAME is not {name!r}")
        for text in ("DESCRIPTION", "READS"):
            if not isinstance(getattr(module, text, None), str):
                raise TypeError(f"its {text} is no text")
        endings = getattr(module, "SUFFIXES", None)
        if not isinstance(endings, tuple) or not all(isinstance(each, str) and "." in each for each in endings):
            raise TypeError("its SUFFIXES are no tuple of endings, each with its dot")
        if not all(hasattr(module, function) for function in ("recognise", "load")) and not hasattr(module, "save"):
            raise TypeError("it has neither recognise and load nor save")
        # Not by __getattr__, which protocols do not look at from Python 3.12 on.
        for each in dir(module):
            if not each.startswith("_") and each not in ("recognise", "owns", "wiring"):
                vars(self)[each] = getattr(module, each)

    def recognise(self, source: Path | BinaryIO) -> bool:
        """Whether the content is of this format; OSError if it cannot be read."""
        return self._asked(lambda: bool(self._module.recognise(source)), False, OSError)

    def owns(self, topology: Topology) -> bool:
        """Whether a topology is of this format."""
        return self._asked(lambda: bool(self._module.owns(topology)), False)

    def wiring(self, topology: Topology) -> Wiring:
        """What it says of its tensors; FormatError or LimitError if it is malformed."""
        return self._asked(lambda: self._wiring(topology), Wiring(), FormatError, LimitError)

    def _wiring(self, topology: Topology) -> Wiring:
        found = self._module.wiring(topology)
        if not isinstance(found, Wiring):
            raise TypeError("what it says of a topology is no Wiring")
        return found

    def _asked(self, ask: Callable[[], _Result], otherwise: _Result, *meant: type[Exception]) -> _Result:
        try:
            return ask()
        except meant:
            raise
        except (Exception, SystemExit) as error:
            _warn(f"the format {self._module.NAME!a} is passed over: {_told(error)}")
            return otherwise


def _told(error: BaseException) -> str:
    """An error in one line, whatever it holds."""
    text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _warn(message: str) -> None:
    warnings.warn(message, FormatWarning, stacklevel=4)
