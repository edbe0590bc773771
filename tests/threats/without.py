"""Runner of a test file on a copy of the package in which checks can be disabled.

Each test runs with all checks, while `tools.switch` records the checks that reject something; then again without one of
them at a time, in a separate process. The result, in JSON, has the name of each check with the first test that fails
without it, if any, and the tests in which no check rejects anything. A check is not tried again if a test of another
file fails without it, once this file has a failing test of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from math import ceil

import pytest
from _pytest.runner import runtestprotocol

#: Limits of CPU time, in addition to twice the time with all checks, and of memory, for a test without a check; a test
#: that exceeds them fails.
SECONDS, BYTES = 3, 6 << 30
#: Number of cases of one test that are tried without a check.
TRIES = 3
#: Tests that run, excluding tests that import TensorFlow, which would take most of the CPU time.
MARKS = "not slow and not tensorflow and not heavy"


class Without:
    """Plugin that runs tests in this way."""

    def __init__(self) -> None:
        self.fails: dict[str, str] = {}
        self.tries: Counter[tuple[str, str]] = Counter()
        self.idle: dict[str, bool] = {}
        self.needed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests."""
        gc.freeze()
        items = [item for item in session.items if not getattr(item.obj, "is_hypothesis_test", False)]  # it reaches any
        for item, following in zip(items, [*items[1:], None], strict=True):
            function = item.nodeid.partition("[")[0]
            os.truncate(os.environ["NNR_FIRED"], 0)
            started = time.process_time()
            for report in runtestprotocol(item, nextitem=following, log=False):
                assert not report.failed, f"{item.nodeid} with all checks: {report.longrepr}"
            seconds = SECONDS + ceil(2 * (time.process_time() - started))
            with open(os.environ["NNR_FIRED"], encoding="utf-8") as file:
                fired = [*dict.fromkeys(file.read().splitlines())]
            self.idle[function] = self.idle.get(function, True) and not fired
            for name in fired:
                self.tries[name, function] += 1
                if self.fails.get(name) or self.tries[name, function] > TRIES or self.is_settled(name):
                    continue
                self.fails[name] = item.nodeid if fails_without(name, item, seconds) else ""
                if self.fails[name]:
                    with open(os.environ["NNR_NEEDED"], "a", encoding="utf-8") as file:
                        file.write(f"{name}\n")
        return True

    def is_settled(self, name: str) -> bool:
        """Return whether a test of another file fails without a check, and a test of this file without any check."""
        if name not in self.needed:
            with open(os.environ["NNR_NEEDED"], encoding="utf-8") as file:
                self.needed = {*file.read().splitlines()}
        return name in self.needed and any(self.fails.values())


def fails_without(name: str, item: pytest.Item, seconds: int) -> bool:
    """Run a test in a copy of this process."""
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            import switch

            switch.fault = os.environ["NNR_FAULT"] = name
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.alarm(100 * seconds)
            item.funcargs = {}  # type: ignore[attr-defined]
            item._initrequest()  # type: ignore[attr-defined]
            code = any(report.failed for report in runtestprotocol(item, nextitem=item, log=False))
        os._exit(code)
    return os.waitpid(pid, 0)[1] != 0


def main() -> None:
    """Run a file's tests."""
    tests, result = sys.argv[1:]
    plugin = Without()
    options = ("--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "-m", MARKS)
    code = pytest.main([*options, "-o", "addopts=--import-mode=importlib", tests], plugins=[plugin])
    assert code == 0, code
    with open(result, "w", encoding="utf-8") as file:
        json.dump([plugin.fails, [name for name, idle in plugin.idle.items() if idle]], file)


if __name__ == "__main__":
    main()
