"""Worker process that judges cases, and its client.

They exchange lines of JSON: the path of a case file, its root and the supported extension are the input; the verdict
and the peak memory are the output. Nothing else is shared, so a decoder may crash, hang or exhaust memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event, Timer
from typing import NamedTuple

from ..subprocess_command import module_command
from .cases import Case, read_case
from .judge import Command, Outcome, Verdict, by_library, judge

_READY = b"ready\n"


class Answer(NamedTuple):
    """Answer of a worker to a case.

    Parameters
    ----------
    verdict : Verdict
    peak : int or None
        Peak memory (resident set size) of the process or command during the case, in bytes; None if unknown, for
        example after the process ended.
    """

    verdict: Verdict
    peak: int | None = None


class Worker:
    """Process that judges one case at a time, started on demand.

    Parameters
    ----------
    root : Path
        Folder of the case files.
    memory : int or None
        Memory limit for a case in bytes, in addition to the memory of the idle process; ignored if the system does not
        support it.
    command : str or None
        The decoder to test; None for this library.
    lenient : bool
        See :func:`nnr_codec.conformance.judge.judge`.
    """

    def __init__(self, root: Path, memory: int | None, command: str | None, lenient: bool) -> None:
        self._root, self._settings = root, (memory, command, lenient)
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def judge(self, case: Case, timeout: float) -> Answer:
        """Return the verdict on a case, with a limit of ``timeout`` seconds without process startup."""
        process = self.start()
        expired = Event()

        def expire() -> None:
            expired.set()
            _kill(process)

        timer = Timer(timeout, expire)
        timer.start()
        answer = _ask(process, json.dumps([str(case.file), str(self._root), case.extension]).encode() + b"\n")
        timer.cancel()
        timer.join()
        peak = None
        if expired.is_set():
            verdict = Verdict(Outcome.TIMEOUT, f"more than {timeout:g} s")
        elif answer:
            outcome, detail, peak = json.loads(answer)
            verdict = Verdict(Outcome(outcome), detail)
        else:
            verdict = Verdict(Outcome.CRASH, ended(process.wait()))
        if verdict.outcome in (Outcome.TIMEOUT, Outcome.CRASH, Outcome.OOM):  # a new process has all memory again
            self.stop()
        return Answer(verdict, peak)

    def stop(self) -> None:
        """End the process and its children, and delete their output."""
        process, self._process = self._process, None
        if process:
            _kill(process)
            with process:  # closes the pipes
                pass
        if self._scratch:
            self._scratch.cleanup()

    def start(self) -> subprocess.Popen[bytes]:
        """Return the process, started if necessary. Raise OSError if it cannot be started."""
        if self._process is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="nnr-conformance-", ignore_cleanup_errors=True)
            self._process = process = subprocess.Popen(
                module_command(__name__, json.dumps([*self._settings, self._scratch.name])),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if _ask(process, b"") != _READY:
                self.stop()
                raise ChildProcessError(f"a worker process did not start: {ended(process.wait())}")
        return self._process


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Write a line and return the answer; empty if the process ended."""
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
    return process.stdout.readline()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if os.name != "posix":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # already ended
        os.killpg(process.pid, signal.SIGKILL)


def ended(code: int) -> str:
    """Describe the end of a process."""
    try:
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def limit_memory(memory: int) -> None:
    """Limit the address space of this process and its children to ``memory`` bytes more than now.

    The size of each file that they write is limited to the same number, because outputs and messages of a command are
    read. Does nothing on systems without /proc.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        here = pages * resource.getpagesize()
        for kind, size in (
            (resource.RLIMIT_AS, here + memory),
            (resource.RLIMIT_FSIZE, memory),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
    except (ImportError, OSError, ValueError, OverflowError):
        return


def _begin_peak() -> bool:
    """Reset the peak memory of this process; return whether the system supports that."""
    try:
        Path("/proc/self/clear_refs").write_bytes(b"5")
    except OSError:
        return False
    return True


def _peak() -> int | None:
    """Return the peak memory of this process in bytes since the reset; None if the system does not report it."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text("ascii", "replace"), re.MULTILINE)
        return int(found[1]) << 10 if found else None
    return None


def main() -> None:
    """Judge cases until the input ends."""
    memory, command, lenient, scratch = json.loads(sys.argv[1])
    external = Command(command, Path(scratch)) if command else None
    if memory:
        limit_memory(memory)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of a decoder must not mix with answers
    out.write(_READY)
    for line in sys.stdin.buffer:
        file, root, extension = json.loads(line)
        case = read_case(Path(file), Path(root))
        if case.extension != extension:
            case = case.without_extension()
        is_known = _begin_peak()
        outcome, detail = judge(case, external or by_library, lenient=lenient)
        peak = external.peak if external else _peak() if is_known else None
        out.write(json.dumps([outcome, detail, peak]).encode() + b"\n")
