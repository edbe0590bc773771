"""Bound on processor time that tolerates temporary load on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_TRIES = 3


def soon(call: Callable[[], T], seconds: float, what: str = "") -> tuple[T, float]:
    """Return the result of a call and its processor time; raise AssertionError if it is too slow in every attempt.

    Temporary load can slow down one or two attempts; slow code is slow in every attempt.
    """
    for _ in range(_TRIES):
        started = time.process_time()
        result = call()
        elapsed = time.process_time() - started
        if elapsed < seconds:
            return result, elapsed
    raise AssertionError(f"{what or call}: {elapsed:.2f} s for {result!r}, and no less in {_TRIES} tries")
