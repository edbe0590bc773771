"""Command line and tables of the benchmark."""

from __future__ import annotations

import argparse
import base64
import json
import shlex
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..accuracy.data import ROOT
from ..accuracy.scores import DRAWS
from ..compare import machine
from . import __doc__ as about
from .simulation import QUICK, WORK, Plan, Row, methods, run, start, torch

RESULTS = ROOT / "benchmarks" / "results" / "federated.jsonl"


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def run_of(row: Row) -> tuple[Any, ...]:
    """Return the run that a row belongs to."""
    return row["network"], row["split"], row["method"], row["seed"], row["rounds"]


def finished(rows: list[Row]) -> list[Row]:
    """Return the rows of runs that have their last round."""
    complete = {run_of(row) for row in rows if row["round"] == row["rounds"]}
    return [row for row in rows if run_of(row) in complete]


def last_rounds(rows: list[Row]) -> Iterator[tuple[tuple[str, str], dict[str, list[Row]]]]:
    """Yield network and split with the last row of each seed, by method, after the sums of bytes are added to it."""
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in (row for row in rows if row["round"] == row["rounds"]):
        mine = [one for one in rows if run_of(one) == run_of(row)]
        total = {way: sum(one[way] for one in mine) for way in ("uplink", "downlink")}
        groups.setdefault((row["network"], row["split"]), {}).setdefault(row["method"], []).append(row | total)
    yield from groups.items()


def hits_of(row: Row) -> Any:
    """Return the share of correct decisions for each test sample, 0..1."""
    return np.frombuffer(zlib.decompress(base64.b64decode(row["correct"])), np.uint8) / row["decisions"]


def table(rows: list[Row]) -> str:
    """Return Markdown: bytes and accuracies after the last round, and changes from float32 of the same seeds."""
    out = []
    for (network, split), by_method in last_rounds(finished(rows)):
        out += [
            f"\n{network}, {split} split\n",
            "| method | MB from clients | of float32 | MB to clients | accuracy | change | 95 % interval | seeds |",
            "|---|---:|---:|---:|---:|---:|---|---:|",
        ]
        exact = {row["seed"]: row for row in by_method.get("float32", [])}
        for method, found in by_method.items():
            mine = [row for row in found if row["seed"] in exact]
            if not mine:
                continue
            up, down = (sum(row[way] for row in mine) for way in ("uplink", "downlink"))
            whole = sum(exact[row["seed"]]["uplink"] for row in mine)
            changes = 100 * np.mean([hits_of(row) - hits_of(exact[row["seed"]]) for row in mine], axis=0)
            drawn = changes[np.random.default_rng(0).integers(len(changes), size=(DRAWS, len(changes)))].mean(1)
            low, high = np.percentile(drawn, (2.5, 97.5))
            accuracy = np.mean([row["accuracy"] for row in mine])
            cells = [method, f"{up / len(mine) / 1e6:.2f}", f"1/{whole / up:.0f}", f"{down / len(mine) / 1e6:.1f}"]
            cells += [f"{accuracy:.2f} %", f"{changes.mean():+.2f}", f"{low:+.2f} to {high:+.2f}", f"{len(mine)}"]
            out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out).strip()


def main() -> None:
    """Run the simulations that the file of results lacks, or print tables of the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federated", description=str(about).partition(":")[0])
    parser.add_argument("--peer", help="the Python interpreter with NNCodec 2.1.3 and numpy below 2")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of rows; its finished runs are not repeated")
    parser.add_argument("--cache", type=Path, default=Path("build", "federated"), help="folder of initial weights")
    parser.add_argument("--network", default="", help="run only networks whose name contains this text")
    parser.add_argument("--split", default="", help="run only splits whose name contains this text")
    parser.add_argument("--method", action="append", help="run only this method; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights, splits and batches")
    parser.add_argument("--quick", action="store_true", help="run two short rounds with two clients")
    parser.add_argument("--table", action="store_true", help="print tables of the rows")
    arguments = parser.parse_args()
    rows = finished(read(arguments.output))
    if arguments.table:
        print(table(rows))
        return
    warnings.simplefilter("ignore")  # of packages that Flower needs
    torch.set_num_threads(1)
    plan, done = QUICK if arguments.quick else Plan(), {run_of(row) for row in rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = shlex.join(["python", "-m", "benchmarks.federated", *sys.argv[1:]])
    common = {"machine": machine({}), "command": command}
    for name in (name for name in WORK if arguments.network in name):
        weights = start(name, plan, arguments.seed, arguments.cache)
        known = methods(sum(value.nbytes for value in weights.values()), arguments.peer)
        for method in arguments.method or known:
            for split in (split for split in WORK[name].splits if arguments.split in split):
                key: Row = {"network": name, "split": split, "method": method, "seed": arguments.seed}
                key["rounds"] = plan.rounds
                if run_of(key) in done:
                    continue

                def write(row: Row, key: Row = key) -> None:
                    with arguments.output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(key | row | common) + "\n")

                run(name, split, plan, arguments.seed, weights, known[method](), write)


if __name__ == "__main__":
    main()
