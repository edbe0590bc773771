"""Decoding of mutated bitstreams: ``python -m tests.fuzz.campaign --kind structure --seed 1 --count 1000000``.

The input of a number, kind and seed is always the same for one corpus. Inputs are tried in parts; the results of a part
are a line of JSON in the file of results, after which a campaign continues. Findings are written to files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nnr_codec.cabac_ext import kernel

from .mutate import Mutant, Mutator
from .results import KINDS, RESULTS, ROOT, Line, done, read
from .seeds import Seed, corpus, digest
from .trial import SECONDS, WAYS, Kernel, Memory, attempt, strictly

#: Number of inputs of one process; then a new one begins, with the memory of the first.
CHUNK = 5000

#: Limits of processor time and wall time, after which an input counts as hanging.
HANG, STUCK = 20.0, 1800.0

#: Factor of time limits with sanitizers.
SLOWER = 5

#: Number of findings of one sort that are kept.
KEPT = 5


@dataclass
class Tally:
    """Results of a range of inputs; ``slowest`` and ``peak`` have the number of the input."""

    outcomes: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    in_kernel: int = 0
    cpu: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    peak: tuple[int, int] = (0, -1)
    findings: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.outcomes.update(other.outcomes)
        self.ways.update(other.ways)
        self.in_kernel += other.in_kernel
        self.cpu += other.cpu
        self.slowest, self.peak = max(self.slowest, other.slowest), max(self.peak, other.peak)
        self.findings += other.findings


def mutator_of(seeds: Sequence[Seed]) -> Mutator:
    """Return a mutator with the seeds whose payloads are decoded; it is created once."""
    live = []
    with strictly(), Kernel() as counted:
        for number, seed in enumerate(seeds):
            if any(attempt(Mutant(seed.data, seed), random.Random(k), counted).in_kernel for k in range(3)):
                live.append(number)
    return Mutator(seeds, live)


class Campaign:
    """Kind of inputs with a seed.

    Parameters
    ----------
    sanitized : bool
        Whether the extension modules are built with sanitizers, with which memory cannot be limited or measured.
    way : str
        The way in which all inputs are read; any of them by default.
    """

    def __init__(self, kind: str, seed: int, mutator: Mutator, *, sanitized: bool = False, way: str = "") -> None:
        self.kind, self.seed, self.sanitized, self.way = kind, seed, sanitized, way
        self.mutator, self.digest = mutator, digest(mutator.seeds)

    def input(self, number: int) -> tuple[Mutant, random.Random]:
        """Return input number ``number``, and the generator that selects the way of reading."""
        rnd = random.Random(f"{self.kind} {self.seed} {number}")
        return self.mutator.mutant(self.kind, rnd), rnd

    def run(self, numbers: range, progress: Any = None) -> Tally:
        """Try some inputs in this process; ``progress.value`` is set to the number of the current input."""
        tally = Tally()
        memory = None if self.sanitized else Memory()
        with strictly(), Kernel() as counted:
            for number in numbers:
                if progress is not None:  # a ctypes object of 0 is false
                    progress.value = number
                mutant, rnd = self.input(number)
                result = attempt(mutant, rnd, counted, SECONDS * (SLOWER if self.sanitized else 1), memory, self.way)
                tally.outcomes[result.outcome] += 1
                tally.ways[result.way] += 1
                tally.in_kernel += result.in_kernel
                tally.cpu += result.seconds
                if result.seconds > tally.slowest[0]:
                    tally.slowest = result.seconds, number
                if result.peak > tally.peak[0]:
                    tally.peak = result.peak, number
                if result.problem:
                    tally.findings.append((number, result.problem))
        return tally


# ------------------------------------------------------------------------------------------------ processes
def _child(campaign: Campaign, numbers: range, progress: Any, pipe: Any) -> None:
    """Try the inputs of a process, and send the tally."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pipe.send(campaign.run(numbers, progress))
    except Exception:  # of the campaign itself
        pipe.send(f"input {progress.value}: {traceback.format_exc()}")


class Process:
    """Process with some inputs, and its progress."""

    def __init__(self, campaign: Campaign, numbers: range) -> None:
        context = get_context("fork")
        self.numbers, self.tally = numbers, Tally()
        self._campaign, self._progress = campaign, context.Value("q", numbers.start, lock=False)
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_child, args=(campaign, numbers, self._progress, theirs))
        self._process.start()
        theirs.close()
        self._at = (numbers.start, time.monotonic(), self._cpu())

    def poll(self) -> bool:
        """Return whether it has ended; after an input that crashes or hangs it, another process continues."""
        number, since, cpu = self._at
        if self._progress.value != number:
            self._at = self._progress.value, time.monotonic(), self._cpu()
        elif self._cpu() - cpu > HANG * (SLOWER if self._campaign.sanitized else 1):
            return self._lost(f"hangs: more than {HANG:g} s of processor time")
        elif time.monotonic() - since > STUCK:
            return self._lost(f"hangs: more than {STUCK:g} s")
        if not self._pipe.poll():
            return False
        try:
            received = self._pipe.recv()
        except EOFError:
            self._process.join()
            return self._lost(f"the process ends: {self._process.exitcode}")
        self._process.join()
        if isinstance(received, str):
            raise RuntimeError(received)
        self.tally.add(received)
        return True

    def _cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _lost(self, why: str) -> bool:
        """Repeat the inputs before the one that failed, and continue after it."""
        number = self._progress.value
        self._process.kill()
        self._process.join()
        tally = Tally(findings=[(number, why)])
        tally.outcomes["crash"] += 1
        for numbers in (range(self.numbers.start, number), range(number + 1, self.numbers.stop)):
            if numbers:
                again = Process(self._campaign, numbers)
                while not again.poll():
                    time.sleep(0.05)
                tally.add(again.tally)
        self.tally = tally
        return True

    def stop(self) -> None:
        """Terminate the process."""
        self._process.kill()
        self._process.join()


def part(campaign: Campaign, numbers: range, jobs: int) -> Tally:
    """Try a range of inputs in several processes."""
    starts = range(numbers.start, numbers.stop, CHUNK)
    waiting = [range(start, min(start + CHUNK, numbers.stop)) for start in reversed(starts)]
    running: list[Process] = []
    tally = Tally()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Process(campaign, waiting.pop()))
            for process in [process for process in running if process.poll()]:
                running.remove(process)
                tally.add(process.tally)
            time.sleep(0.05)
    finally:
        for process in running:
            process.stop()
    return tally


# ------------------------------------------------------------------------------------------------ results
def facts(campaign: Campaign, numbers: range, tally: Tally, commit: str, wall: float) -> Line:
    """Return a line of results."""
    return {
        "kind": campaign.kind,
        "sanitized": campaign.sanitized,
        "seed": campaign.seed,
        "first": numbers.start,
        "inputs": len(numbers),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit,
        "corpus": campaign.digest,
        "python": ".".join(map(str, sys.version_info[:3])),
        "outcomes": dict(tally.outcomes.most_common()),
        "ways": dict(tally.ways.most_common()),
        "kernel": tally.in_kernel,
        "cpu": round(tally.cpu, 1),
        "wall": round(wall, 1),
        "slowest": [round(tally.slowest[0], 4), tally.slowest[1]],
        "peak": list(tally.peak),
        "findings": [number for number, _ in sorted(tally.findings)],
    }


class Findings:
    """Files of the findings; a few of each sort."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._sorts = folder, Counter[str]()

    def keep(self, campaign: Campaign, number: int, problem: str) -> None:
        """Write the bitstream and the problem."""
        lines = problem.strip().splitlines()
        sort = "\n".join(lines[-4:])
        self._sorts[sort] += 1
        if self._sorts[sort] > KEPT:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        mutant, _ = campaign.input(number)
        file = self._folder / f"{campaign.kind}-{campaign.seed}-{number}.nnr"
        file.write_bytes(mutant.data)
        file.with_suffix(".txt").write_text(f"of {mutant.seed.name}\n{problem}\n", "utf-8")
        print(f"{file}: {lines[-1]}", flush=True)


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("NNR_COMMIT") or run.stdout.strip()


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="structure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, default="", help="the way in which all inputs are read")
    parser.add_argument("--count", type=int, default=100_000, help="inputs of this kind and seed in all")
    parser.add_argument("--part", type=int, default=100_000, help="inputs of a line of results")
    parser.add_argument("--jobs", type=int, default=1, choices=range(1, 257), metavar="N")
    parser.add_argument("--sanitized", action="store_true", help="the program runs in .ci/sanitize")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--findings", type=Path, default=ROOT / "build" / "findings")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="try this input alone, and say what comes of it")
    given = parser.parse_args(arguments)
    if given.sanitized and b"__asan_init" not in Path(kernel.__file__).read_bytes():
        parser.error("the kernel is not built with sanitizers; see .ci/sanitize")
    first = 0 if given.only is not None else done(read(given.results), given.kind, given.seed, given.sanitized)
    if first >= given.count:
        return
    campaign = Campaign(given.kind, given.seed, mutator_of(corpus()), sanitized=given.sanitized, way=given.way)
    if given.only is not None:
        mutant, _ = campaign.input(given.only)
        tally = campaign.run(range(given.only, given.only + 1))
        print(mutant.seed.name, mutant.data.hex(), dict(tally.outcomes), *tally.findings, sep="\n")
        return
    findings = Findings(given.findings)
    for start in range(first, given.count, given.part):
        numbers, started = range(start, min(start + given.part, given.count)), time.monotonic()
        tally = part(campaign, numbers, given.jobs)
        for number, problem in tally.findings:
            findings.keep(campaign, number, problem)
        line = facts(campaign, numbers, tally, _commit(), time.monotonic() - started)
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{numbers.stop:,} of {given.count:,}: {line['wall']} s, {len(tally.findings)} findings", flush=True)


if __name__ == "__main__":
    main()
