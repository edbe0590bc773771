"""Every cut and every flip of a header bit of every vector: ``python -m tests.hostile_full [--jobs N] [--only GLOB]``.

Prints the results; docs/explanation/robustness.md has the figures. It takes half an hour of CPU time.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache

from .hostile import Subject, subjects
from .hostile_cuts import CutTally, Cutter
from .hostile_flips import FLAGGED, SILENT, Flipper, FlipTally

#: A decoder may reject or decode the acceptable ones.
RESULTS = ("valid", "acceptable")


@cache
def _subjects() -> list[Subject]:
    return subjects(*RESULTS)


@dataclass
class Run:
    """Results of one subject; ``peak`` is the peak memory of the process in KiB."""

    id: str
    size: int
    cuts: CutTally = field(default_factory=CutTally)
    flips: FlipTally = field(default_factory=FlipTally)
    is_refused: bool = False  # unchanged
    failures: list[str] = field(default_factory=list)
    peak: int = 0


def run(index: int) -> Run:
    """Cut a subject at each byte, and invert each bit of its headers."""
    subject = _subjects()[index]
    done = Run(subject.id, len(subject.data))
    try:
        cutter = Cutter(subject)
        done.is_refused = cutter.refused
        done.cuts.add(cutter.try_all(range(done.size)))
        if not cutter.refused:
            cutter.arrive()
            done.flips.add(Flipper(subject).try_all(subject.header_bytes))
    except AssertionError as error:
        done.failures.append(str(error))
    done.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return done


def _row(what: str, *cells: int) -> None:
    print(f"| {what} | {' | '.join(f'{cell:,}' if cell else '' for cell in cells)} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all subjects and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--only", default="*", metavar="GLOB", help="of ids")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    chosen = [index for index, subject in enumerate(_subjects()) if fnmatchcase(subject.id, options.only)]
    chosen.sort(key=lambda index: -len(_subjects()[index].data))
    total = Run("all", 0)
    refused = list[str]()
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, done in enumerate(pool.map(run, chosen), 1):
            total.cuts.add(done.cuts)
            total.flips.add(done.flips)
            total.failures += done.failures
            total.size, total.peak = total.size + done.size, max(total.peak, done.peak)
            refused += [done.id] if done.is_refused else []
            print(
                f"{number} of {len(chosen)}: {done.id}, {done.size:,} bytes",
                *done.failures,
                file=sys.stderr,
                flush=True,
            )
    print(f"{len(chosen)} bitstreams, {total.size:,} bytes; rejected as they are: {', '.join(refused) or 'none'}")
    cuts, flips = total.cuts, total.flips
    for what, tally in (("cuts", cuts), ("flips", flips)):
        print(f"\n{what}: {tally.total:,}; slowest {tally.slowest:.3f} s ({tally.slowest_input})")
        for outcome, count in tally.outcomes.most_common():
            _row(outcome, count)
    print("\nof whole units, and nothing says incomplete")
    for why, count in cuts.whole.most_common():
        _row(why, count)
    print("\n| syntax element | rejected | violation | warning | note | other | same |")
    for element in sorted(flips.elements, key=lambda element: -_silent(flips.elements[element])):
        outcomes = flips.elements[element]
        told = [outcomes[what] for what in (*FLAGGED, *reversed(SILENT))]
        _row(element, outcomes.total() - sum(told), *told)
    print(f"\npeak memory {total.peak / 1024:.0f} MB; {time.perf_counter() - started:.0f} s")
    total.failures += [f"{element}: something else comes out, without a word" for element in sorted(flips.unforeseen)]
    sys.exit("\n".join(total.failures) or None)


def _silent(outcomes: Counter[str]) -> int:
    return sum(outcomes[what] for what in SILENT)


if __name__ == "__main__":
    main()
