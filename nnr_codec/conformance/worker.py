"""The process in which cases are judged, and what the process that starts it sees of it.

They talk by lines of JSON: the path of a case file, its root and the extension that the decoder is to know go in; a
verdict, and the most memory that was taken, come out. Nothing else is shared, so that a decoder may crash, hang or ask
for all memory.
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
    """What a process says of a case.

    Parameters
    ----------
    verdict : Verdict
    peak : int or None
        Bytes of memory that the process took at the same time, at most (resident set size), or those of a command; None
        where that is not known, as of a process that has ended.
    """

    verdict: Verdict
    peak: int | None = None


class Worker:
    """A process that judges one case at a time; it is started when it is needed.

    Parameters
    ----------
    root : Path
        Of the case files.
    memory : int or None
        Bytes that a case may take beyond what the process has when it starts, where the system can limit that.
    command : str or None
        The decoder; None for this library.
    lenient : bool
        See :func:`nnr_codec.conformance.judge.judge`.
    """

    def __init__(self, root: Path, memory: int | None, command: str | None, lenient: bool) -> None:
        self._root, self._settings = root, (memory, command, lenient)
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def judge(self, case: Case, timeout: float) -> Answer:
        """The verdict on a case, which may take ``timeout`` seconds, the start of the process not counted."""
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
        if verdict.outcome in (Outcome.TIMEOUT, Outcome.CRASH, Outcome.OOM):  # a new one has all memory again
            self.stop()
        return Answer(verdict, peak)

    def stop(self) -> None:
        """End the process, and what it has started; what that has written is deleted."""
        process, self._process = self._process, None
        if process:
            _kill(process)
            with process:  # closes the pipes
                pass
        if self._scratch:
            self._scratch.cleanup()

    def start(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none; OSError when that fails."""
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
                raise ChildProcessError(f"a worker process does not start: {ended(process.wait())}")
        return self._process


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Write a line and read the answer; empty when the process has ended."""
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
    return process.stdout.readline()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if os.name != "posix":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)


def ended(code: int) -> str:
    """How a process ended, in words."""
    try:
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def limit_memory(memory: int) -> None:
    """Limit the address space of this process, and of each child, to ``memory`` bytes more than it has now.

    Each file that they write may have as many bytes: those of a command are read, and its messages are kept in one.
    Nothing happens where the system does not tell what it has.
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
    """Forget how much memory this process has taken so far; whether the system can."""
    try:
        Path("/proc/self/clear_refs").write_bytes(b"5")
    except OSError:
        return False
    return True


def _peak() -> int | None:
    """The most memory that this process has taken since then; None where the system does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text("ascii", "replace"), re.MULTILINE)
        return int(found[1]) << 10 if found else None
    return None


def main() -> None:
    """What the process does: judge until there is no more to read."""
    memory, command, lenient, scratch = json.loads(sys.argv[1])
    external = Command(command, Path(scratch)) if command else None
    if memory:
        limit_memory(memory)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a decoder prints is no answer
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
