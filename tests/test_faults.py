"""Full disks, unreadable files and interruptions: outputs are complete or unchanged."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .cli.support import COMMAND
from .faults import CLEARING, JOBS, WRITING, Case, at, cases

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", params=[False, True], ids=["new", "replacing"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return all jobs, in folders with and without old outputs."""
    return dict(cases(tmp_path_factory.mktemp("faults"), overwrite=request.param))


def raising(error: BaseException) -> Callable[[], None]:
    """Return a function that raises."""

    def function() -> None:
        raise error

    return function


@pytest.fixture
def _unclosed() -> Iterator[None]:
    """Close files whose closing failed or was interrupted; only they may cause a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def failing(case: Case, kind: Callable[[], BaseException], names: set[str], *, after: bool = False) -> int:
    """Run a job repeatedly, with an error at each of its calls in turn; return the number of calls."""
    number = 0
    while True:
        case.reset()
        error = kind()
        try:
            with at(number, raising(error), after=after, names=names) as calls:
                case.run()
        except BaseException as caught:
            if error not in (caught, caught.__context__):  # shutil closes a file twice, and this is the second time
                raise
        assert case.whole(), (number, calls)
        if len(calls) <= number:
            assert case.found() == case.after
            return number
        # Files that cannot be deleted are deleted by the next process, because this one is still running.
        assert not case.partial() or calls[number] in CLEARING, (number, calls)
        number += 1


@pytest.mark.slow
@pytest.mark.usefixtures("_unclosed")
@pytest.mark.parametrize("name", JOBS)
def test_a_disk_that_is_full(prepared: dict[str, Case], name: str) -> None:
    """The error occurs at each call that may need disk space."""
    assert failing(prepared[name], lambda: OSError(errno.ENOSPC, "No space left on device"), WRITING) > 5


@pytest.mark.slow
@pytest.mark.usefixtures("_unclosed")
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("after", [False, True])
def test_an_interruption(prepared: dict[str, Case], name: str, after: bool) -> None:
    """The interruption occurs before and after each call that changes files."""
    assert failing(prepared[name], KeyboardInterrupt, WRITING | CLEARING, after=after) > 5


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """Limit the size of files by the operating system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.usefixtures("_unclosed")
@pytest.mark.parametrize("name", JOBS)
def test_the_system_has_no_room(prepared: dict[str, Case], name: str) -> None:
    """A write is cut short anywhere; buffered data is lost at the latest when the file is closed."""
    case, size, refused = prepared[name], 0, 0
    while True:
        case.reset()
        try:
            with room(size):
                case.run()
            break
        except OSError as error:
            assert error.errno == errno.EFBIG
        assert case.found() == case.before
        assert not case.partial()
        size, refused = size + 97, refused + 1
    assert case.found() == case.after
    assert refused


@pytest.mark.slow
def test_processes_that_are_killed(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Processes are killed at every third call that changes files; the next process cleans up.

    ``python -m tests.faults`` tests all calls.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", str(tmp_path), "3"],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    times = [int(line.partition("killed ")[2].split()[0]) for line in done.stdout.splitlines()]
    assert len(times) == 2 * len(JOBS)
    record_property("figure: processes killed while they wrote", sum(times))


@pytest.mark.slow
def test_commands_that_are_killed(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Commands are killed at any time."""
    rng, stale = random.Random(1), 0
    nnr.save({f"w{k}": np.full((300, 300), k, "f4") for k in range(40)}, tmp_path / "m.npz")
    words = [*COMMAND, "encode", "m.npz", "-f", "-o", "m.nnr"]
    started = time.monotonic()
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    took, whole = time.monotonic() - started, (tmp_path / "m.nnr").read_bytes()
    for _ in range(10):
        (tmp_path / "m.nnr").write_bytes(b"old")
        with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL) as child:
            time.sleep(rng.uniform(0.2, 1) * took)
            child.kill()
        assert (tmp_path / "m.nnr").read_bytes() in (b"old", whole)
        partial = [*tmp_path.glob("*.nnr-partial")]
        assert len(partial) <= 1  # the file of the process before is deleted
        stale += len(partial)
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    assert sorted(os.listdir(tmp_path)) == ["m.nnr", "m.npz"]
    record_property("figure: commands killed at any moment while they wrote", stale)
