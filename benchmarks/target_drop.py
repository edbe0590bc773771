"""Predicted and measured loss of accuracy: ``python -m benchmarks.target_drop --cache FOLDER``.

Test samples are divided at random: 128 samples for sensitivities and second moments, 384 for ``nnr.tune_drop``, the
others for the measured loss. For each target, with and without labels of the 384, a row has the chosen size with its
predicted and measured loss. A scan of sizes gives the smallest size whose measured loss meets the target: measured
losses are made monotone, then interpolated. ``--table`` prints the results. Each measurement is a line of JSON, so an
interrupted run continues.

Constants of the prediction come from the networks in ``TUNED``. The factor with labels comes from all networks, most of
them with other weights (docs/guides/data-aware.md).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nnr_codec as nnr
from nnr_codec.integrations.torch import sensitivity

from .accuracy.data import ROOT, Array, digests
from .accuracy.networks import BATCH, MANY, NETWORKS, SEED, Network
from .accuracy.scores import Outcome, compared, size_at
from .compare import machine

RESULTS = ROOT / "benchmarks" / "results" / "target_drop.jsonl"
#: Network used for tuning, and networks for the evaluation: classifiers with at least 1,000 test samples.
TUNED = ("ResNet-8",)
HELD_OUT = ("ResNet-20", "mobile CNN", "vision transformer", "character transformer", "plain CNN", "ResNet-56")
#: Targets in points, and the number of samples for calibration and prediction.
TARGETS, SAMPLES = (0.25, 0.5, 1.0), 512
#: First size of the scan relative to the largest chosen size, ratio of sizes, and measured loss at which it ends.
FIRST, STEP, LAST = 1.5, 0.92, 2.0
#: Largest size relative to the smallest one that meets the target.
EXCESS = 1.25

Row = dict[str, Any]


class Divided:
    """Network with test samples divided into samples for calibration, prediction and measurement."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.prepare, x, y = network.outcome.args  # type: ignore[attr-defined]  # of networks.py: a partial
        order = np.random.default_rng(SEED + 1).permutation(len(x))
        given = order[:SAMPLES]
        is_fourth = np.arange(SAMPLES) % 4 == 0
        self.calibration, self.known, self.labels = x[given[is_fourth]], x[given[~is_fourth]], y[given[~is_fourth]]
        rest, seen = order[SAMPLES:], digests(x[given])
        rest = rest[[not digests([one]) & seen for one in x[rest]]]
        self.x, self.y = x[rest], y[rest]

    def scores(self, x: Array, tensors: Mapping[str, Array]) -> Array:
        """Return the scores of a network with these tensors."""
        module = self.network.module
        module.load_state_dict({k: torch.from_numpy(np.array(tensors[k])) for k in self.network.tensors}, strict=False)
        with torch.inference_mode():
            return np.concatenate([module(self.prepare(x[k : k + MANY])).numpy() for k in range(0, len(x), MANY)])

    def measured(self, tensors: Mapping[str, Array]) -> Outcome:
        """Return decisions on the samples for the measurement."""
        found = self.scores(self.x, tensors).argmax(-1)
        return Outcome("accuracy", self.y, found, np.zeros(len(found)))

    @cached_property
    def exact(self) -> Outcome:
        """Decisions of the float32 network."""
        return self.measured(self.network.tensors)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Sensitivities and second moments."""
        self.scores(self.known[:1], self.network.tensors)
        costs, moments = sensitivity(self.network.module, list(self.prepare(self.calibration).split(BATCH)))
        return {"sensitivity": costs, "hessians": moments}

    def at(self, size: int) -> Row:
        """Return the measured loss at a size."""
        data = nnr.encode(self.network.tensors, target_size=size, **self.options)
        row = compared(self.measured(nnr.decode(data).tensors), self.exact)
        return {"bytes": len(data), **{name: row[name] for name in ("samples", "accuracy", "fall", "fall_interval")}}

    def chosen(self, target: float, has_labels: bool) -> Row:
        """Return the size chosen for a target, with its predicted and measured loss."""
        found = nnr.tune_drop(
            self.network.tensors,
            lambda model: self.scores(self.known, model.tensors),
            target_drop=target,
            labels=self.labels if has_labels else None,
            **self.options,
        )
        assert found.config.target_size
        row: Row = {"predicted": found.drop, "limit": found.limit, "evaluations": found.evaluations}
        return {name: round(value, 3) for name, value in row.items()} | self.at(found.config.target_size)


def measure(network: Network, rows: dict[Any, Row], write: Callable[[Row], None]) -> None:
    """Measure the rows of a network that are missing."""
    divided = Divided(network)

    def row(setting: str, code: Callable[..., Row], *values: float) -> Row:
        if (network.name, network.weights, setting) not in rows:
            found = {"network": network.name, "weights": network.weights, "setting": setting, **code(*values)}
            write(found)
            rows[network.name, network.weights, setting] = found
        return rows[network.name, network.weights, setting]

    chosen = [
        row(setting_of(target, has_labels), divided.chosen, target, has_labels)
        for has_labels, target in product((True, False), TARGETS)
    ]
    scanned = [
        int(setting[5:]) for _, weights, setting in rows if weights == network.weights and setting[:5] == "size "
    ]
    size = min(scanned, default=round(FIRST * max(one["bytes"] for one in chosen)))
    while row(f"size {size}", divided.at, size)["fall"] < LAST:
        size = round(STEP * size)


def setting_of(target: float, has_labels: bool) -> str:
    return f"target {target:g}{', labels' if has_labels else ''}"


def table(rows: list[Row]) -> str:
    """Return a table of all targets, and the number of targets that are met on networks not used for tuning."""
    lines = [
        "| network | target | labels | bytes | predicted | limit | measured | smallest bytes | relative size |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    summary = []
    for has_labels, labels in ((True, "yes"), (False, "no")):
        met, small, cases = 0, 0, 0
        for name, target in product((*TUNED, *HELD_OUT), TARGETS):
            own = [row for row in rows if row["network"] == name]
            for row in [row for row in own if row["setting"] == setting_of(target, has_labels)]:
                smallest = size_at([(one["bytes"], one["fall"]) for one in own], target)
                excess = row["bytes"] / smallest if smallest else float("nan")
                low, high = row["fall_interval"]
                lines.append(
                    f"| {name}{' (tuning)' if name in TUNED else ''} | {target:g} | {labels} | "
                    f"{row['bytes']:,} | {row['predicted']:.2f} | {row['limit']:.2f} | "
                    f"{row['fall']:.2f} ({low:.2f} to {high:.2f}) | {smallest or 0:,.0f} | {excess:.2f} |"
                )
                if name in HELD_OUT:
                    cases, met, small = cases + 1, met + (row["fall"] <= target), small + (excess <= EXCESS)
        summary.append(
            f"With{'' if has_labels else 'out'} labels, the target is met in {met} of {cases} cases on networks not "
            f"used for tuning, and the size is at most {EXCESS} times the smallest in {small}."
        )
    return "\n".join([*lines, "", *summary])


def main() -> None:
    """Measure networks, or print the table of stored rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.target_drop", description=__doc__.partition(":")[0])
    parser.add_argument("--cache", type=Path, default=Path("build", "accuracy"), help="folder of trained networks")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of rows; its rows are not measured again")
    parser.add_argument("--only", default="", help="measure only networks whose name contains this text")
    parser.add_argument("--samples", type=int, default=10_000, help="the largest number of images of CIFAR-10")
    parser.add_argument("--table", action="store_true", help="print a table of the rows")
    arguments = parser.parse_args()
    lines = arguments.output.read_text("utf-8").splitlines() if arguments.output.exists() else []
    rows = [json.loads(line) for line in lines]
    if arguments.table:
        print(table(rows))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", nnr.EncodeWarning)  # coarse step sizes are part of the scan
    common = {"machine": machine({}), "command": shlex.join(["python", "-m", "benchmarks.target_drop", *sys.argv[1:]])}

    def write(row: Row) -> None:
        with arguments.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | common) + "\n")
        print(json.dumps(row), file=sys.stderr)

    known = {(row["network"], row["weights"], row["setting"]): row for row in rows}
    for name in (*TUNED, *HELD_OUT):
        if arguments.only in name:
            measure(NETWORKS[name](arguments.cache, arguments.samples), known, write)


if __name__ == "__main__":
    main()
