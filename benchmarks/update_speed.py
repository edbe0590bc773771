"""Speed of lossless updates by the share of changed weights: ``python -m benchmarks.update_speed``.

Prints JSON lines. Two models differ in a share of their weights. bfloat16 and float16: rounded float32 weights before
and after one small step, so that small weights change more often. float32: a random part of the weights takes the step.

CPU times of one thread are medians of turns. Programs take turns, in processes of their own: this checkout, and with
``--before`` another one that is built. In each turn, a worker also runs two peers: zstd -3 of the positions of changed
weights, as gaps in varints, with their differences; and a copy of the weights. ``check=False`` leaves out the SHA-256
of the base, which encode and apply include.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

import nnr_codec as nnr
from nnr_codec.dtypes import STORED_TYPES

TYPES, SHARES = ("bfloat16", "float16", "float32"), (0.003, 0.01, 0.03, 0.1)
#: Tensors of the model, and their shape.
TENSORS, SHAPE = 4, (1024, 1024)
#: Root mean square of the weights.
SCALE = 0.02
#: Bisections of the step size by which the share of changed weights is met.
BISECTIONS = 30
TURNS = 5

Array = npt.NDArray[Any]
Row = dict[str, Any]


def weights(dtype: str, share: float) -> tuple[Array, Array]:
    """Return weights before and after a step that changes a share of them."""
    rng = np.random.default_rng(15938)
    size = TENSORS * SHAPE[0] * SHAPE[1]
    before, step = rng.standard_normal(size, np.float32) * np.float32(SCALE), rng.standard_normal(size, np.float32)
    if dtype == "float32":
        return before, np.where(rng.random(size) < share, before + np.float32(SCALE / 1000) * step, before)
    narrow, some = STORED_TYPES[dtype].dtype, slice(1 << 18)
    low, high = 1e-9, 1.0
    for _ in range(BISECTIONS):
        rate = np.float32((low * high) ** 0.5)
        changed = ((before[some] + rate * step[some]).astype(narrow) != before[some].astype(narrow)).mean()
        low, high = (rate, high) if changed < share else (low, rate)
    return before.astype(narrow), (before + np.float32(low) * step).astype(narrow)


# ------------------------------------------------------------------------------------------------ zstd of gaps
def varints(numbers: Array) -> bytes:
    """Return numbers below 2**28 as varints: 7 bits a byte, the highest bit is set in all bytes but the last."""
    groups = numbers[:, None] >> np.array([21, 14, 7, 0]) & 127
    needed = numbers[:, None] >= np.array([1 << 21, 1 << 14, 1 << 7, 0])
    return (groups + 128 * (np.arange(4) < 3)).astype(np.uint8)[needed].tobytes()


def from_varints(data: bytes) -> Array:
    """Return the numbers of :func:`varints`."""
    found = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(found < 128)
    length = np.diff(last, prepend=-1)
    numbers = np.zeros(len(last), np.int64)
    for k in range(4):
        has = length > k
        numbers[has] |= (found[last[has] - k] & 127).astype(np.int64) << (7 * k)
    return numbers


def gaps(before: Array, after: Array) -> tuple[bytes, bytes]:
    """Return the gaps between changed positions, and the differences of their patterns, compressed with zstd -3."""
    places = np.flatnonzero(before != after)
    pack = zstandard.ZstdCompressor(level=3).compress
    return pack(varints(np.diff(places, prepend=-1))), pack((after[places] - before[places]).tobytes())


def with_gaps(before: Array, data: tuple[bytes, bytes]) -> Array:
    """Return the weights that :func:`gaps` describes."""
    unpack = zstandard.ZstdDecompressor().decompress
    after = before.copy()
    after[np.cumsum(from_varints(unpack(data[0]))) - 1] += np.frombuffer(unpack(data[1]), before.dtype)
    return after


# ------------------------------------------------------------------------------------------------ turns
def work(dtype: str, share: float) -> Iterator[Row]:
    """Yield the sizes and the changed share, then the CPU time of each operation in each turn."""
    flat, other = weights(dtype, share)
    base, new = ({f"w{k}": one for k, one in enumerate(x.reshape(TENSORS, *SHAPE))} for x in (flat, other))
    before, after = (x.view(f"u{x.itemsize}") for x in (flat, other))
    data, packed = nnr.encode_update(base, new, lossless=True), gaps(before, after)
    found = nnr.apply_update(base, data)
    same = all(np.array_equal(found[name].view(before.dtype), one.view(before.dtype)) for name, one in new.items())
    if not same or not np.array_equal(with_gaps(before, packed), after):
        raise SystemExit("a codec does not restore the weights")
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: nnr.encode_update(base, new, lossless=True),
        "apply": lambda: nnr.apply_update(base, data),
        "apply, check=False": lambda: nnr.apply_update(base, data, check=False),
        "identity": lambda: nnr.identity(base),
        "encode, zstd": lambda: gaps(before, after),
        "apply, zstd": lambda: with_gaps(before, packed),
        "copy": lambda: {name: one.copy() for name, one in base.items()},
    }
    changed = round(float((before != after).mean()), 5)
    yield {"nbytes": flat.nbytes, "changed": changed, "update": len(data), "zstd": sum(map(len, packed))}
    while True:
        yield {name: seconds(call) for name, call in calls.items()}


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


class Worker:
    """Process that measures one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, *question: object) -> Row:
        """Return the next answer; a question begins other work."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer: Row = json.loads(self._process.stdout.readline())
        return answer


def serve() -> None:
    """Answer the questions of :class:`Worker`."""
    turns: Iterator[Row] = iter(())
    for line in sys.stdin:
        if question := json.loads(line):
            turns = work(*question)
        print(json.dumps(next(turns)), flush=True)


def measure(dtype: str, share: float, workers: dict[str, Worker]) -> Row:
    """Return sizes, and MB/s of weights by program and operation."""
    sizes = {name: worker.ask(dtype, share) for name, worker in workers.items()}
    turns = [{name: worker.ask() for name, worker in workers.items()} for _ in range(TURNS)]
    speeds = {
        name: {call: round(sizes[name]["nbytes"] / 1e6 / median(turn[name][call] for turn in turns)) for call in first}
        for name, first in turns[0].items()
    }
    return {"type": dtype, "share": share, "sizes": sizes, "MB/s": speeds}


def table(rows: list[Row]) -> Iterator[str]:
    """Yield rows as Markdown."""
    calls = ("encode", "apply", "apply, check=False")
    yield f"| type | changed | bits each change | {' | '.join(calls)} | zstd: bits, encode, apply | identity | copy |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        size, now, before = row["sizes"]["now"], row["MB/s"]["now"], row["MB/s"].get("before")
        count = size["changed"] * size["nbytes"] / STORED_TYPES[row["type"]].itemsize
        cells = [row["type"], f"{100 * size['changed']:.1f} %", f"{8 * size['update'] / count:.1f}"]
        cells += [f"{now[call]}" + (f" ({now[call] / before[call]:.1f}x)" if before else "") for call in calls]
        cells.append(f"{8 * size['zstd'] / count:.1f}, {now['encode, zstd']}, {now['apply, zstd']}")
        yield f"| {' | '.join([*cells, str(now['identity']), str(now['copy'])])} |"


def main() -> None:
    """Print a JSON line for each row, or a table of stored lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.update_speed", description=__doc__.partition(":")[0])
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also measure another checkout, which is built")
    parser.add_argument("--table", type=Path, metavar="RESULTS.jsonl", help="print a table of earlier results")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve()
    elif arguments.table:
        print(*table([json.loads(line) for line in arguments.table.read_text("utf-8").splitlines()]), sep="\n")
    else:
        workers = {"now": Worker(Path(__file__).parents[1])}
        if arguments.before:
            workers["before"] = Worker(arguments.before.resolve())
        for dtype in TYPES:
            for share in SHARES:
                print(json.dumps(measure(dtype, share, workers)), flush=True)


if __name__ == "__main__":
    main()
