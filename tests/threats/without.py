"""Runner of a test file on a copy of the package in which checks can be disabled.

Each test runs with all checks, while `tools.switch` records the checks that reject something; then again without one of
them at a time, in a separate process. The result, in JSON, has the name of each check with the first test that fails
without it, if any, and the tests in which no check rejects anything.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
from collections import Counter

import pytest
from _pytest.runner import runtestprotocol

#: Limits of CPU time and memory for a test without a check; a test that exceeds them fails.
SECONDS, BYTES = 6, 6 << 30
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

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests."""
        gc.freeze()
        items = [item for item in session.items if not getattr(item.obj, "is_hypothesis_test", False)]  # it reaches any
        for item, following in zip(items, [*items[1:], None], strict=True):
            function = item.nodeid.partition("[")[0]
            os.truncate(os.environ["NNR_FIRED"], 0)
            for report in runtestprotocol(item, nextitem=following, log=False):
                assert not report.failed, f"{item.nodeid} with all checks: {report.longrepr}"
            with open(os.environ["NNR_FIRED"], encoding="utf-8") as file:
                fired = [*dict.fromkeys(file.read().splitlines())]
            self.idle[function] = self.idle.get(function, True) and not fired
            for name in fired:
                self.tries[name, function] += 1
                if not self.fails.get(name) and self.tries[name, function] <= TRIES:
                    self.fails[name] = item.nodeid if fails_without(name, item) else ""
        return True


def fails_without(name: str, item: pytest.Item) -> bool:
    """Run a test in a copy of this process."""
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            import switch

            switch.fault = os.environ["NNR_FAULT"] = name
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            signal.alarm(50 * SECONDS)
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
