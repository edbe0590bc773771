"""Command line of the benchmark."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from nnr_codec import EncodeError, EncodeWarning

from ..compare import Codec, machine
from . import __doc__ as about
from .data import ROOT
from .methods import METHODS, Coders, Curve
from .networks import NETWORKS, Network
from .pages import charts, table
from .scores import compared

RESULTS = ROOT / "benchmarks" / "results" / "accuracy.jsonl"
#: Networks of a quick run, and their largest number of points of a curve.
QUICK, FEW = ("digits CNN", "digits example", "digits perceptron"), 3
#: Fall in points at which a curve ends, and the falls around which more points are measured.
LIMIT, BUDGETS = 4.0, (0.5, 1.0)
#: Number of times that the interval of settings around a budget is halved.
REFINEMENTS = 2

Row = dict[str, Any]


class Table:
    """Rows of a file; a finished measurement is not repeated."""

    def __init__(self, path: Path, network: Network, common: Row) -> None:
        self.path, self.network, self.common = path, network, common
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.exact = network.outcome(network.module)
        n = len(self.exact.expected)
        self.rows = {
            (row["method"], row["setting"]): row
            for row in rows
            if (row["network"], row["weights"], row["samples"]) == (network.name, network.weights, n)
        }

    def row(self, method: str, setting: str, code: Any) -> Row:
        """Return a row, measured now or earlier."""
        if (method, setting) not in self.rows:
            started = time.process_time()
            size, tensors = code()
            seconds = time.process_time() - started
            outcome = self.exact if method == "float32" else self.network.restored(tensors)
            row = {"network": self.network.name, "method": method, "setting": setting, "bytes": size}
            row |= compared(outcome, self.exact) | {"weights": self.network.weights, "seconds": round(seconds, 2)}
            row |= self.common
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{self.network.name}, {method}, {setting}: {size:,} bytes, fall {row['fall']}", file=sys.stderr)
            self.rows[method, setting] = row
        return self.rows[method, setting]


def measure(table: Table, curve: Curve, quick: bool) -> None:
    """Measure a curve until the network is too inaccurate, then around the budgets."""

    def row(setting: Any) -> Row:
        return table.row(curve.name, curve.label.format(setting), lambda: curve.code(setting))

    falls: dict[Any, float] = {}
    for setting in curve.grid[:: len(curve.grid) // FEW or 1] if quick else curve.grid:
        try:
            falls[setting] = row(setting)["fall"]
        except EncodeError:  # no file is as small
            break
        if falls[setting] > LIMIT:
            break
    for budget in BUDGETS if curve.middle and not quick else ():
        for _ in range(REFINEMENTS):
            settings = sorted(falls, reverse=curve.grid[0] > curve.grid[-1])
            last = next((k for k, setting in enumerate(settings) if falls[setting] > budget), 0)
            if not last:
                break
            middle = curve.middle(settings[last - 1], settings[last])
            if middle in falls:
                break
            falls[middle] = row(middle)["fall"]


def main() -> None:
    """Measure networks, or write tables and charts of stored rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=about.partition(":")[0])
    parser.add_argument("--peer", help="the Python interpreter with NNCodec 2.1.3 and numpy below 2")
    parser.add_argument("--cache", type=Path, default=Path("build", "accuracy"), help="folder of trained networks")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of rows; its rows are not measured again")
    parser.add_argument(
        "--only", nargs="+", choices=NETWORKS, metavar="NETWORK", help=f"networks: {', '.join(NETWORKS)}"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, metavar="METHOD", help=f"methods: {'; '.join(METHODS)}"
    )
    parser.add_argument("--samples", type=int, default=10_000, help="the largest number of images of CIFAR-10")
    parser.add_argument("--quick", action="store_true", help="measure three small networks with few settings")
    parser.add_argument("--table", action="store_true", help="print tables of the rows")
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="write charts of the rows")
    arguments = parser.parse_args()
    if arguments.table or arguments.charts:
        rows = [json.loads(line) for line in arguments.output.read_text("utf-8").splitlines()]
        if arguments.table:
            print(table(rows))
        if arguments.charts:
            charts(rows, arguments.charts)
        return
    if not arguments.peer and any(name.startswith("NNCodec") for name in arguments.methods or ()):
        parser.error("--methods NNCodec requires --peer")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EncodeWarning)  # coarse settings are part of a curve
    peer = Codec("theirs", arguments.peer) if arguments.peer else None
    command = shlex.join(["python", "-m", "benchmarks.accuracy", *sys.argv[1:]])
    for name, make in NETWORKS.items():
        if name not in (arguments.only or (QUICK if arguments.quick else NETWORKS)):
            continue
        try:
            network = make(arguments.cache, arguments.samples)
        except FileNotFoundError as missing:
            print(f"{name}: no {missing.filename or missing}", file=sys.stderr)
            continue
        common = {"machine": machine({"theirs": peer} if peer else {}), "command": command}
        results = Table(arguments.output, network, common)
        results.row("float32", "", network.uncompressed)
        for curve in Coders(network, peer).curves():
            if curve.name in (arguments.methods or METHODS):
                measure(results, curve, arguments.quick)
    if peer:
        peer.close()


if __name__ == "__main__":
    main()
