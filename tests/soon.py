"""What has to end soon: a bound on processor time that a stumbling machine does not break."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_TRIES = 3


def soon(call: Callable[[], T], seconds: float, what: str = "") -> tuple[T, float]:
    """What a call gives, and the processor time that it took; AssertionError when it is too slow each time.

    A machine may stumble once, or twice; what is slow by itself is slow each time.
    """
    for _ in range(_TRIES):
        started = time.process_time()
        result = call()
        elapsed = time.process_time() - started
        if elapsed < seconds:
            return result, elapsed
    raise AssertionError(f"{what or call}: {elapsed:.2f} s for {result!r}, and no less in {_TRIES} tries")
