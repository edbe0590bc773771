"""Cancellation of work in threads: compiled loops call :func:`check_cancelled` between steps.

Only the main thread receives signals. It handles them in these loops, or while it waits for other threads. Code that
runs work in other threads sets their check with :func:`cancelled_by`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_own = threading.local()


def check_cancelled() -> None:
    """Call the check of the innermost :func:`cancelled_by` of this thread, which raises when work is cancelled."""
    check = getattr(_own, "check", None)
    if check is not None:
        check()


@contextmanager
def cancelled_by(check: Callable[[], object]) -> Iterator[None]:
    """Set the check that work of this thread calls repeatedly within the block."""
    before = getattr(_own, "check", None)
    _own.check = check
    try:
        yield
    finally:
        _own.check = before


class CancelToken:
    """Cancellation check for numbered tasks in several threads; a copy in another process is never cancelled."""

    def __init__(self) -> None:
        self._lock, self._last = threading.Lock(), sys.maxsize

    def cancel(self, after: int = -1) -> None:
        """Make all later checks raise an error in tasks with a greater number."""
        with self._lock:
            self._last = min(self._last, after)

    def __call__(self, number: int = 0) -> None:
        """Raise CancelledError if the task with this number is cancelled."""
        if number > self._last:
            from concurrent.futures import CancelledError

            raise CancelledError

    def __reduce__(self) -> tuple[Any, ...]:
        return CancelToken, ()
