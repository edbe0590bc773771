"""Faults while files are written: a position for each system call, and the permitted files afterwards.

``python -m tests.faults FOLDER [STEP]`` kills processes at each of these positions, or at every STEP-th position, and
prints the number of positions.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.files import PARTIAL_SUFFIX
from nnr_codec.parallel.checkpoint import SUFFIX as PARTS

from .formats.support import nnef_model, tree
from .formats.test_shards import INDEX, ONE, TWO, checkpoint

#: Calls that create, change and remove files; the second group also cleans up.
WRITING = {"open", "write", "writelines", "flush", "fsync", "close", "link", "rename", "replace", "mkdir", "chmod"}
CLEARING = {"unlink", "remove", "rmdir", "scandir", "lstat"}
MODULES = ("posix", "_io")
#: Part of names that identify a process; other names are backups of replaced files.
OWNED = re.compile(r"-[0-9]+-[0-9]+\.nnr-partial$")


@dataclass(frozen=True)
class Job:
    """Conversion of the files in the folder ``in`` to files in the folder ``out`` beside it.

    ``files`` are the output files; the last is the name of the output.
    """

    run: Callable[[Path, Path, bool], None]
    files: tuple[str, ...]


def encode(source: Path, out: Path, overwrite: bool) -> None:
    """Write one file."""
    nnr.encode_file(source / "m.npz", out / "m.nnr", overwrite=overwrite)


def encode_with_parts(source: Path, out: Path, overwrite: bool) -> None:
    """Write one file, and its parts beside it."""
    nnr.encode_file(source / "m.npz", out / "m.nnr", overwrite=overwrite, resume=True)


def decode(source: Path, out: Path, overwrite: bool) -> None:
    """Write one file in another format."""
    nnr.decode_file(source / "m.nnr", out / "m.safetensors", overwrite=overwrite)


def decode_to_folder(source: Path, out: Path, overwrite: bool) -> None:
    """Write a folder."""
    nnr.decode_file(source / "graph.nnr", out / "m.nnef", overwrite=overwrite)


def decode_to_shards(source: Path, out: Path, overwrite: bool) -> None:
    """Write several files beside each other."""
    nnr.decode_file(source / "shards.nnr", out / INDEX, overwrite=overwrite)


def apply(source: Path, out: Path, overwrite: bool) -> None:
    """Write a model after an update."""
    base, update = nnr.load(source / "m.npz"), (source / "update.nnr").read_bytes()
    nnr.save(nnr.apply_update(base, update), out / "m.npz", overwrite=overwrite)


JOBS = {
    "encode": Job(encode, ("m.nnr",)),
    "encode with parts": Job(encode_with_parts, ("m.nnr",)),
    "decode": Job(decode, ("m.safetensors",)),
    "decode to a folder": Job(decode_to_folder, ("m.nnef",)),
    "decode to several files": Job(decode_to_shards, (ONE, TWO, INDEX)),
    "apply an update": Job(apply, ("m.npz",)),
}


def inputs(folder: Path) -> Path:
    """Make the folder ``in`` with the inputs of the jobs."""
    source = folder / "in"
    source.mkdir()
    rng = np.random.default_rng(1)
    tensors = {name: rng.normal(0, 0.1, (6, 5)).astype(np.float32) for name in ("a", "b")}
    nnr.save(tensors, source / "m.npz")
    nnr.encode_file(tensors, source / "m.nnr")
    nnr.encode_file(nnef_model(tensors), source / "graph.nnr")
    nnr.encode_file(checkpoint(source / "m"), source / "shards.nnr")
    new = {name: array + 1 for name, array in tensors.items()}
    (source / "update.nnr").write_bytes(nnr.encode_update(tensors, new))
    return source


@dataclass
class Case:
    """A job, an old output or none, and the files after a run without fault."""

    job: Job
    source: Path
    out: Path
    overwrite: bool

    def __post_init__(self) -> None:
        self.out.mkdir()
        self.before = self.after = {"other": b"somebody's"}
        (self.out / "other").write_bytes(b"somebody's")
        self.run()  # it imports all modules
        self.after = tree(self.out)
        self.reset()
        self.before = tree(self.out)

    def run(self) -> None:
        """Run the job."""
        self.job.run(self.source, self.out, self.overwrite)

    def reset(self) -> None:
        """Restore the files before the job."""
        for path in self.out.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "other":
                path.unlink()
        for name in self.job.files if self.overwrite else ():
            path = self.out / name
            if path.suffix == ".nnef":
                path.mkdir()
                path /= "graph.nnef"
            path.write_bytes(b"old")

    def whole(self) -> bool:
        """Return whether the files are unchanged or complete, except for unfinished outputs and parts."""
        return self.found() in (self.before, self.after)

    def found(self) -> dict[str, bytes]:
        """Return the existing files except for unfinished outputs and parts."""
        return {
            name: data
            for name, data in tree(self.out).items()
            if not name.partition("/")[0].endswith((PARTIAL_SUFFIX, PARTS))
        }

    def partial(self) -> list[str]:
        """Return the unfinished outputs."""
        return [name for name in os.listdir(self.out) if name.endswith(PARTIAL_SUFFIX)]

    def whole_each(self) -> bool:
        """Return whether each file is old or new, and all are new if the last is."""
        found = self.found()
        last = self.job.files[-1]
        each = all(found.get(name) in (self.before.get(name), self.after[name]) for name in self.job.files)
        return each and (found.get(last) != self.after[last] or found == self.after)


def cases(folder: Path, *, overwrite: bool) -> Iterator[tuple[str, Case]]:
    """Return all jobs, each in a separate folder."""
    source = inputs(folder)
    for number, (name, job) in enumerate(JOBS.items()):
        yield name, Case(job, source, folder / f"out{number}", overwrite)


@contextlib.contextmanager
def at(
    number: int, act: Callable[[], Any], *, after: bool = False, names: set[str] | None = None
) -> Iterator[list[str]]:
    """Yield a list that receives the names of calls; ``act`` is called before or after the call of this number."""
    wanted, calls, event_wanted = names or WRITING | CLEARING, list[str](), "c_return" if after else "c_call"

    def profile(_: object, event: str, function: Any) -> None:
        if event != event_wanted or function.__name__ not in wanted:
            return
        owner = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        if owner in MODULES:
            calls.append(function.__name__)
            if len(calls) == number + 1:
                act()

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def kill() -> None:
    """Kill this process with a signal that it cannot handle."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(case: Case, number: int) -> bool:
    """Run the job in a process that is killed at this position; return False if it finished before."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with at(number, kill):
                case.run()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main(folder: Path, step: int = 1) -> None:
    """Kill each job at each position, or at some, and run it again each time."""
    for overwrite in (False, True):
        (folder / str(overwrite)).mkdir()
        for name, case in cases(folder / str(overwrite), overwrite=overwrite):
            number = killings = left = 0
            case.reset()
            while killed(case, number):
                assert case.whole() or (len(case.job.files) > 1 and case.whole_each()), (name, number, case.found())
                left += len(case.partial())
                if not overwrite and case.found() != case.before:
                    case.reset()  # a new file is rejected
                case.run()
                assert case.found() == case.after, (name, number)
                assert not any(map(OWNED.search, case.partial())), (name, number, case.partial())
                case.reset()
                number, killings = number + step, killings + 1
            assert case.found() == case.after
            assert left, name
            print(
                f"{name}{', replacing' if overwrite else ''}: killed {killings} times, {left} unfinished outputs left"
            )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python -m tests.faults FOLDER [STEP]")
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
