"""Formats of other packages; their faults cause only a warning unless the format itself is requested.

They are the entry points of the group :data:`GROUP`: modules or objects with the attributes of
:class:`~nnr_codec.formats.registry.Format`.
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

#: Group of entry points for formats of other packages.
GROUP = "nnr_codec.formats"

_Result = TypeVar("_Result")


class FormatWarning(UserWarning):
    """Part of a model that a reader or writer ignores, or an unusable format of another package."""


@cache
def entries() -> dict[str, EntryPoint]:
    """Return the entry points by name, without importing them."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def working(taken: Collection[str]) -> Iterator[Guarded]:
    """Yield the usable formats whose names are not taken; issue a warning for the others."""
    for name in entries():
        if name not in taken:
            try:
                yield named(name)
            except FormatError as error:
                _warn(str(error))


@cache
def named(name: str) -> Guarded:
    """Return the format named ``name``. Raise FormatError if it cannot be loaded."""
    point = entries()[name]
    try:
        return Guarded(name, point.load())
    except (Exception, SystemExit) as error:
        raise FormatError(f"cannot load format {name!a} from {point.value!a}: {_text(error)}") from error


class Guarded:
    """Format of another package; the constructor raises TypeError with the reason if it is invalid.

    Its ``recognise``, ``owns`` and ``wiring`` are called for every file, so their errors become warnings.
    """

    def __init__(self, name: str, module: Any) -> None:
        self._module = module
        if (own := getattr(module, "NAME", None)) != name:
            raise TypeError(f"NAME must be {name!r}, got {own!r:.80}")
        for text in ("DESCRIPTION", "READS"):
            if not isinstance(getattr(module, text, None), str):
                raise TypeError(f"{text} is not a string")
        endings = getattr(module, "SUFFIXES", None)
        if not isinstance(endings, tuple) or not all(isinstance(each, str) and "." in each for each in endings):
            raise TypeError("SUFFIXES is not a tuple of file extensions with a dot")
        if not all(hasattr(module, function) for function in ("recognise", "load")) and not hasattr(module, "save"):
            raise TypeError("neither recognise and load nor save are defined")
        # Copied, because protocols ignore __getattr__ from Python 3.12 on.
        for each in dir(module):
            if not each.startswith("_") and each not in ("recognise", "owns", "wiring"):
                vars(self)[each] = getattr(module, each)

    def recognise(self, source: Path | BinaryIO) -> bool:
        """Return whether the content has this format. Raise OSError if it cannot be read."""
        return self._asked(lambda: bool(self._module.recognise(source)), False, OSError)

    def owns(self, topology: Topology) -> bool:
        """Return whether a topology has this format."""
        return self._asked(lambda: bool(self._module.owns(topology)), False)

    def wiring(self, topology: Topology) -> Wiring:
        """Return the information of a topology about its tensors.

        Raises FormatError or LimitError if it is malformed.
        """
        return self._asked(lambda: self._wiring(topology), Wiring(), FormatError, LimitError)

    def _wiring(self, topology: Topology) -> Wiring:
        found = self._module.wiring(topology)
        if not isinstance(found, Wiring):
            raise TypeError("wiring() does not return a Wiring")
        return found

    def _asked(self, ask: Callable[[], _Result], otherwise: _Result, *meant: type[Exception]) -> _Result:
        try:
            return ask()
        except meant:
            raise
        except (Exception, SystemExit) as error:
            _warn(f"format {self._module.NAME!a} is skipped: {_text(error)}")
            return otherwise


def _text(error: BaseException) -> str:
    """Return an error in one printable line."""
    text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _warn(message: str) -> None:
    warnings.warn(message, FormatWarning, stacklevel=4)
