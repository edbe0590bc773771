"""Whether the work of a thread is still wanted, which compiled loops ask between two steps.

Signals are the main thread's alone: it learns of them in such a loop, or while it waits for other threads. Whoever
hands work to those says with :func:`asking` what they ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_own = threading.local()


def ask() -> None:
    """Do what the innermost :func:`asking` around this thread's work says, which may raise; without one, nothing."""
    check = getattr(_own, "check", None)
    if check is not None:
        check()


@contextmanager
def asking(check: Callable[[], object]) -> Iterator[None]:
    """Let this thread's work in the block call ``check`` again and again."""
    before = getattr(_own, "check", None)
    _own.check = check
    try:
        yield
    finally:
        _own.check = before


class Wanted:
    """The answer for work in several threads; a copy in another process never changes its mind."""

    def __init__(self) -> None:
        self._ended = False

    def end(self) -> None:
        """From now on it is not."""
        self._ended = True

    def __call__(self) -> None:
        """Raise CancelledError when it is not wanted any more."""
        if self._ended:
            from concurrent.futures import CancelledError

            raise CancelledError

    def __reduce__(self) -> tuple[Any, ...]:
        return Wanted, ()
