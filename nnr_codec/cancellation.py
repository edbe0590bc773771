"""Cancellation of work in threads: compiled loops call :func:`check_cancelled` between two steps.

Only the main thread receives signals: it handles them in such a loop, or while it waits for other threads. Code that
hands work to other threads sets their check with :func:`cancelled_by`.
"""

from __future__ import annotations

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
    """Let this thread's work in the block call ``check`` repeatedly."""
    before = getattr(_own, "check", None)
    _own.check = check
    try:
        yield
    finally:
        _own.check = before


class CancelToken:
    """The check of work in several threads; a copy in another process is never cancelled."""

    def __init__(self) -> None:
        self._is_cancelled = False

    def cancel(self) -> None:
        """Let all later checks raise."""
        self._is_cancelled = True

    def __call__(self) -> None:
        """Raise CancelledError after :meth:`cancel`."""
        if self._is_cancelled:
            from concurrent.futures import CancelledError

            raise CancelledError

    def __reduce__(self) -> tuple[Any, ...]:
        return CancelToken, ()
