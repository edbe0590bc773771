"""Targets under atheris: ``python -m tests.fuzz.targets [--seconds S] [--jobs J] [NAME ...]``.

The targets run in separate processes, together for ``S`` seconds. New inputs are kept in ``build/fuzz/NAME/corpus``,
findings in ``build/fuzz/NAME/found``; the exit code is 1 if there are any. Requires atheris (extra ``fuzz``).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path

from . import NAMES, load

FOLDER = Path(__file__).resolve().parents[3] / "build" / "fuzz"

#: Maximum bytes of an input, unless a seed is longer.
LONGEST = 4096


def fuzz(name: str, seconds: int) -> None:
    """Run a target in this process, which then exits."""
    import atheris

    with atheris.instrument_imports(include=["nnr_codec", "nnr_cli"]):
        target = load(name)
        folders = [FOLDER / name / each for each in ("corpus", "seeds", "found")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        corpus, seeds, found = folders
        longest = LONGEST
        for seed in target.seeds():
            (seeds / sha1(seed).hexdigest()).write_bytes(seed)
            longest = max(longest, len(seed))
        target.target(next(iter(target.seeds())))  # imports the modules that are imported on use, without a time limit
        options = {
            "max_total_time": seconds,
            "max_len": longest,
            "timeout": 20,
            "rss_limit_mb": 2048,
            "report_slow_units": 20,  # an input that imports modules may be slow
            "print_final_stats": 1,
            "verbosity": 1,
        }
        arguments = [f"-{key}={value}" for key, value in options.items()]
        atheris.Setup([sys.argv[0], *arguments, f"-artifact_prefix={found}/", str(corpus), str(seeds)], target.target)
        atheris.Fuzz()


def run(name: str, seconds: int) -> tuple[str, int, str]:
    """Run a target in another process; return its name, the number of inputs, and the text of a finding."""
    command = [sys.executable, "-m", __package__, "--here", "--seconds", str(seconds), name]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    said = re.sub(r"(?m)^INFO: .*\n", "", done.stderr) + done.stdout
    return name, int(counted[1]) if counted else 0, said if done.returncode else ""


def main() -> None:
    """Run the requested targets; print a line for each, and the findings."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="for all of them (default 60)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    if min(options.seconds, options.jobs) < 1:
        parser.error("--seconds and --jobs are at least 1")
    if not find_spec("atheris"):
        parser.error("this needs atheris: pip install -e '.[fuzz]'")
    if options.here:
        fuzz(names[0], options.seconds)
    share = max(1, options.seconds * options.jobs // len(names))
    started, found = time.perf_counter(), {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, count, said in pool.map(lambda name: run(name, share), names):
            print(f"{name}: {count:,} inputs{', and a finding' if said else ''}", flush=True)
            if said:
                found[name] = said
    print(f"{time.perf_counter() - started:.0f} s")
    for name, said in found.items():
        print(f"\n== {name}\n{said[-4000:]}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
