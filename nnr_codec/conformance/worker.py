"""The process in which cases are judged, and what the process that starts it sees of it.

They talk by lines of JSON: the path of a case file, its root and the extension that the decoder is to know go in, a
verdict comes out. Nothing else is shared, so that a decoder may crash, hang or ask for all memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Timer

from .. import child
from .cases import Case, read_case
from .judge import Outcome, Verdict, by_command, by_library, judge

_READY = b"ready\n"


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
    scratch : Path
        A folder for what the decoder writes.
    """

    def __init__(self, root: Path, memory: int | None, command: str | None, scratch: Path) -> None:
        self._root, self._settings = root, json.dumps([memory, command, str(scratch)])
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, case: Case, timeout: float) -> Verdict:
        """The verdict on a case that may take ``timeout`` seconds, the start of the process not counted."""
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
        if expired.is_set():
            verdict = Verdict(Outcome.TIMEOUT, f"more than {timeout:g} s")
        elif answer:
            outcome, detail = json.loads(answer)
            verdict = Verdict(Outcome(outcome), detail)
        else:
            verdict = Verdict(Outcome.CRASH, ended(process.wait()))
        if verdict.outcome in (Outcome.TIMEOUT, Outcome.CRASH, Outcome.OOM):  # a new one has all memory again
            self.stop()
        return verdict

    def stop(self) -> None:
        """End the process, and what it has started."""
        process, self._process = self._process, None
        if process:
            _kill(process)
            with process:  # closes the pipes
                pass

    def start(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none; OSError when that fails."""
        if self._process is None:
            self._process = process = subprocess.Popen(
                child.command(__name__, self._settings),
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

    Nothing happens where the system does not tell what it has.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limit = pages * resource.getpagesize() + memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError, OverflowError):
        return


def main() -> None:
    """What the process does: judge until there is no more to read."""
    memory, command, scratch = json.loads(sys.argv[1])
    decoder = by_command(command, Path(scratch)) if command else by_library
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
        out.write(json.dumps(judge(case, decoder)).encode() + b"\n")
