"""Every truncation and every flip of a header bit of every foreign bitstream: ``python -m tests.hostile_full``.

Prints what came of them; docs/robustness.md keeps the figures. It takes some minutes.
"""

from __future__ import annotations

import resource
import sys
import time

from .hostile import Tally, flips, header_bytes, state_before, trial, truncations
from .interop import ALL


def run_all() -> dict[str, Tally]:
    """Tallies of ``truncations`` (at every byte) and ``flips`` (of every bit outside payloads) of all streams."""
    tallies = {"truncations": Tally(), "flips": Tally()}
    for stream in ALL:
        data, state = stream.data, state_before(stream)
        tallies["truncations"].add(trial(stream.id, truncations(data, range(len(data))), state))
        tallies["flips"].add(trial(stream.id, flips(data, header_bytes(data)), state))
        print(f"{stream.id}: {len(data)} bytes", file=sys.stderr, flush=True)
    return tallies


def main() -> None:
    """Run everything and print a table."""
    started = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tallies = run_all()
    print(f"streams: {len(ALL)}, bytes: {sum(len(stream.data) for stream in ALL):,}")
    for kind, tally in tallies.items():
        print(f"{kind}: {tally.total:,}; slowest {tally.slowest:.3f} s ({tally.slowest_input})")
        for result, count in tally.outcomes.most_common():
            print(f"  {result}: {count:,}")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory: {after / 1024:.0f} MB, {before / 1024:.0f} MB before; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
