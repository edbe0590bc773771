"""Fault switch: functions that disable one check if the environment variable NNR_FAULT has its name.

``tools.faults`` writes calls of these functions into a copy of the package and copies this module beside it. A check
that rejects something appends its name to the file named by NNR_FIRED.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

#: Name of the active fault; empty for none.
fault = os.environ.get("NNR_FAULT", "")
_log = os.open(os.environ["NNR_FIRED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "NNR_FIRED" in os.environ else -1


def _fired(name: str) -> None:
    if _log >= 0:
        os.write(_log, f"{name}\n".encode())


def guard(name: str, refused: Any) -> Any:
    """Return the condition or the items of a statement that raises; with the fault, an empty tuple."""
    if fault == name:
        return ()
    if refused:
        _fired(name)
    return refused


def handler(name: str, kinds: Any) -> Any:
    """Return the caught classes of an ``except`` that raises another exception; with the fault, an empty tuple."""
    if fault == name:
        return ()
    if isinstance(sys.exception(), kinds):
        _fired(name)
    return kinds


def check(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result is not used; with the fault, a function that does nothing."""
    return _nothing if fault == name else _noted(name, function)


def limit(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of limits or of a budget; with the fault, the method of unlimited limits."""
    if fault != name:
        return _noted(name, function)
    from nnr_codec.limits import Budget, Limits

    owner: Any = function.__self__  # type: ignore[attr-defined]
    free = Limits()
    for each in Limits.names():
        object.__setattr__(free, each, Limits.NONE)
    return getattr(free if isinstance(owner, Limits) else Budget(free), function.__name__)  # type: ignore[no-any-return]


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception:
            _fired(name)
            raise

    return call
