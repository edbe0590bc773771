"""Savings of parameter reduction at equal accuracy: ``python -m benchmarks.reduction > RESULTS.jsonl``.

Prints JSON lines. For each network and tool, the search finds the smallest bitstream that meets the requirement, over
amounts of the tool and qualities of the quantization; quantization alone is searched too. Digits networks
(benchmarks/digits.py) must have the accuracy of the original minus half a point on the images for choices; the reported
accuracy is measured on other images. ResNet-20 and ResNet-56 (``../shared/models``, in onnxruntime) must have outputs
similar to the outputs of the original, for 256 seeded inputs. In addition, one amount of each tool is measured at the
default quantization. ``--table RESULTS.jsonl`` prints the tables of docs/guides/reduction.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import nnr_codec as nnr
from nnr_codec.compare import compare_outputs
from nnr_codec.integrations import training

from . import digits

SHARED = Path(os.environ.get("NNR_SHARED") or Path(__file__).resolve().parents[2] / "shared")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.nnef"
#: Candidates for the lowest sufficient quality, of digits and of ResNets.
QUALITIES, FINER = range(2, 49), range(20, 49)
#: Quantization parameter of the first rows, so that their bytes do not depend on the default step sizes.
FIXED = -40
#: The number of lower qualities that are tried as well, since neither accuracies nor outputs are smooth functions.
NEAR, NEARER = 4, 2
#: The number of higher qualities that must suffice as well, of digits, so that chance does not decide.
SURE = 2
#: The least mean cosine of the outputs of ResNets before and after.
COSINE = 0.998
SAMPLES, SEED = 256, 15938
#: The largest accepted loss of accuracy of digits.
TOLERANCE = 0.005
#: Epochs of fine-tuning, and its first learning rate.
EPOCHS, RATE = 8, 1e-3
#: The number of steps of the optimizer between two updates of masks or unified blocks.
GROWTH = 16

Row = dict[str, Any]
Score = Callable[[nnr.Model], Row]


@dataclass(frozen=True)
class Attempt:
    """Model to encode, with options.

    Parameters
    ----------
    model : Model
    reduce : str
        Steps of reduction.
    described : str
        Description in tables.
    options : dict
        Other options of the encoder.
    settled : bool
        The options determine the quality.
    score : callable or None
        Replaces the score of the network.
    shown : bool
        Whether tables show it with ``qp`` -40.
    """

    model: nnr.Model
    reduce: str = ""
    described: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = False
    score: Score | None = None
    shown: bool = False


@dataclass(frozen=True)
class Network:
    """Network, and its requirement.

    Parameters
    ----------
    name : str
    model : Model
    score : callable
        Function from a decoded model to a row; ``enough`` is true if the model meets the requirement.
    tools : dict of str to tuple of str
        Steps of reduction, one for each amount to try, by the name of the tool in tables.
    tuned : callable
        Yields attempts after fine-tuning, by the same names.
    near : int
        Number of qualities to try below the lowest one found by bisection.
    qualities : range
        Qualities to try.
    sure : int
        Number of next higher qualities that must meet the requirement too.
    """

    name: str
    model: nnr.Model
    score: Score
    tools: Mapping[str, tuple[str, ...]]
    tuned: Callable[[], Iterator[tuple[str, Iterator[Attempt]]]] = lambda: iter(())
    near: int = 0
    qualities: range = QUALITIES
    sure: int = 0


def coded(attempt: Attempt, score: Score, most: float = math.inf, **options: Any) -> Row | None:
    """Return the row of an attempt; None, without its score, unless its bitstream is smaller than ``most`` bytes."""
    data = nnr.encode(attempt.model, reduce=attempt.reduce, **attempt.options, **options)
    if len(data) >= most:
        return None
    found = (attempt.score or score)(nnr.decode(data, topology=attempt.model.topology))
    return {"bytes": len(data), "done": attempt.described or attempt.reduce, **options, **found}


def smallest(attempt: Attempt, network: Network, most: float) -> Row | None:
    """Return the row of the lowest quality that meets the requirement, by bisection, or of one of ``near`` lower ones.

    Return None if no quality meets it in fewer than ``most`` bytes.
    """
    qualities = range(0) if attempt.settled else network.qualities
    finest: dict[str, Any] = {"quality": qualities[-1]} if qualities else {}
    best = coded(attempt, network.score, **finest)
    if not best or not best["enough"]:
        return None
    if best["bytes"] >= most:
        best = None

    @cache
    def enough(quality: int) -> bool:
        found = coded(attempt, network.score, quality=quality)
        return found is not None and bool(found["enough"])

    def does(quality: int) -> bool:
        nonlocal best
        found = coded(attempt, network.score, best["bytes"] if best else most, quality=quality)
        if found is None:
            return True  # a bitstream that is too large can still become smaller
        if not found["enough"] or not all(enough(quality + k) for k in range(1, network.sure + 1)):
            return False
        best = found
        return True

    low, high = 0, len(qualities) - 2
    while low <= high:
        middle = (low + high) // 2
        if does(qualities[middle]):
            high = middle - 1
        else:
            low = middle + 1
    for quality in qualities[max(low - network.near, 0) : low]:
        if does(quality):
            break
    return best


def rows(network: Network, wanted: str = "*") -> Iterator[Row]:
    """Yield two rows for each tool, quantization alone first: one with ``qp`` -40, and the smallest result.

    Attempts that determine their own quality keep it in the first row.

    ``wanted`` is a pattern of names of tools.
    """

    def of(tool: str, tuned: bool, given: Iterator[Attempt]) -> Iterator[Row]:
        if not fnmatchcase(tool, wanted):
            return
        facts, attempts = {"network": network.name, "tool": tool, "tuned": tuned}, list(given)
        one = next((attempt for attempt in attempts if attempt.shown), attempts[0])
        yield {**facts, "fixed": True, **(coded(one, network.score, **({} if one.settled else {"qp": FIXED})) or {})}
        best: Row = {"bytes": None}
        for attempt in attempts:
            best = smallest(attempt, network, best["bytes"] or math.inf) or best
        yield {**facts, "fixed": False, **best}

    yield from of("quantization alone", False, iter([Attempt(network.model)]))
    for tool, steps in network.tools.items():
        shown = SHOWN.get(tool, "")
        yield from of(tool, False, (Attempt(network.model, reduce=text, shown=text == shown) for text in steps))
    for tool, attempts in network.tuned():
        yield from of(tool, True, attempts)


def amounts(template: str, *values: float | str) -> tuple[str, ...]:
    """Return the steps with each of these amounts in place of ``?``."""
    return tuple(template.replace("?", str(value)) for value in values)


TOOLS: dict[str, tuple[str, ...]] = {
    "sparsify, by magnitude": amounts("sparsify(ratio=?)", 0.1, 0.2, 0.4, 0.6, 0.8),
    "sparsify, by statistics": amounts("sparsify(ratio=?, method=statistics)", 0.1, 0.2, 0.4, 0.6, 0.8),
    "sparsify, compressibility loss": amounts("sparsify(ratio=?, method=compressibility)", 0.1, 0.2, 0.4, 0.6, 0.8),
    "sparsify, rows": amounts("sparsify(ratio=?, method=rows)", 0.05, 0.1, 0.2, 0.3),
    "sparsify, micro-structured": amounts("sparsify(ratio=?, method=micro)", 0.05, 0.1, 0.2, 0.4),
    "unify": amounts("unify(ratio=?)", 0.1, 0.2, 0.4, 0.7),
    "low rank": ("lowrank", *amounts("lowrank(ratio=?)", 0.7, 0.5, 0.25)),
    "low displacement rank": amounts("lowrank(error=?, displacement=true)", 0.2, 0.3),
}
WITH_GRAPH: dict[str, tuple[str, ...]] = {
    "prune": amounts("prune(ratio=?)", 0.01, 0.02, 0.05, 0.1, 0.2),
    "prune and sparsify": amounts("prune(ratio=?, sparsity=0.1)", 0.02, 0.05, 0.1),
    "fold": ("fold",),
    "scale, least squares": ("scale",),
    "fold, scale": ("fold, scale",),
    "fold, scale, by gain": ("fold, scale(method=gain)",),
    "sparsify, fold, scale": amounts("sparsify(ratio=?), fold, scale", 0.1, 0.2, 0.4, 0.6),
}
#: The amounts in tables with FIXED; tools that are not listed have their first amount.
SHOWN = {
    "sparsify, by magnitude": "sparsify(ratio=0.6)",
    "sparsify, by statistics": "sparsify(ratio=0.6, method=statistics)",
    "sparsify, compressibility loss": "sparsify(ratio=0.6, method=compressibility)",
    "sparsify, rows": "sparsify(ratio=0.2, method=rows)",
    "sparsify, micro-structured": "sparsify(ratio=0.4, method=micro)",
    "unify": "unify(ratio=0.4)",
    "low rank": "lowrank(ratio=0.5)",
    "low displacement rank": "lowrank(error=0.2, displacement=true)",
    "prune": "prune(ratio=0.05)",
    "prune and sparsify": "prune(ratio=0.05, sparsity=0.1)",
    "sparsify, fold, scale": "sparsify(ratio=0.4), fold, scale",
}


# ------------------------------------------------------------------------------------------------ digits
def convolutional() -> Network:
    """Return the network of examples/digits, trained here, with its graph."""
    graph = nnr.load(EXAMPLE)
    names = dict(zip(graph.tensors, _places(digits.convolutional()), strict=True))

    def model(module: nn.Module) -> nnr.Model:
        state = module.state_dict()
        tensors = {name: state[place].numpy().reshape(np.asarray(graph[name]).shape) for name, place in names.items()}
        return nnr.Model(tensors, graph.topology, format=graph.format)

    def module(decoded: nnr.Model) -> nn.Module:
        return _assigned(digits.convolutional(), {place: decoded[name] for name, place in names.items()})

    base = digits.trained(digits.convolutional)
    score = _accuracy(base, module)
    tuned = partial(_tuned, digits.convolutional, model)
    return Network("digits, convolutional", model(base), score, {**TOOLS, **WITH_GRAPH}, tuned, NEAR, sure=SURE)


def _places(module: nn.Module) -> list[str]:
    """Return the names in the state of the module, in the order of the example's variables."""
    found = [name for name in module.state_dict() if not name.endswith("num_batches_tracked")]
    order = {"running_mean": 0, "running_var": 1, "bias": 2, "weight": 3}
    norms = {name.rpartition(".")[0] for name in found if name.endswith("running_mean")}

    def key(name: str) -> tuple[int, int]:
        layer, _, kind = name.rpartition(".")
        return int(layer), order[kind] if layer in norms else -order[kind]

    return sorted(found, key=key)


def perceptron() -> Network:
    """Return the network of linear layers."""
    base = digits.trained(digits.perceptron)

    def model(module: nn.Module) -> nnr.Model:
        return nnr.Model({name: value.numpy() for name, value in module.state_dict().items()})

    score = _accuracy(base, lambda decoded: _assigned(digits.perceptron(), decoded.tensors))
    tuned = partial(_tuned, digits.perceptron, model)
    tools = {**TOOLS, "scale, least squares": ("scale",)}
    return Network("digits, fully connected", model(base), score, tools, tuned, NEAR, sure=SURE)


def _assigned(module: nn.Module, tensors: Mapping[str, Any]) -> nn.Module:
    """Return the module with these tensors, whatever their extents; vectors have one dimension."""
    known = module.state_dict()
    for name in known.keys() & tensors.keys():
        value = torch.from_numpy(np.array(tensors[name]))
        value = value.reshape(-1) if known[name].dim() == 1 else value
        layer, _, kind = name.rpartition(".")
        place = module.get_submodule(layer)
        setattr(place, kind, nn.Parameter(value) if isinstance(getattr(place, kind), nn.Parameter) else value)
    return module.eval()


def _accuracy(base: nn.Module, module: Callable[[nnr.Model], nn.Module]) -> Score:
    """Return the score of the digits networks: accuracies on the images for choices and for figures."""
    _, choices, figures = digits.images()
    wanted = digits.accuracy(base, choices) - TOLERANCE

    def score(decoded: nnr.Model) -> Row:
        made = module(decoded)
        return {
            "enough": digits.accuracy(made, choices) >= wanted,
            "accuracy": digits.accuracy(made, figures),
            "accuracy_before": digits.accuracy(base, figures),
        }

    return score


def _tuned(
    make: Callable[[], nn.Module], model: Callable[[nn.Module], nnr.Model]
) -> Iterator[tuple[str, Iterator[Attempt]]]:
    """Yield attempts with training, each from the trained network."""
    base = digits.trained(make)
    steps = EPOCHS * (len(digits.images()[0].y) // digits.BATCH)
    score = _accuracy(base, lambda decoded: _assigned(make(), decoded.tensors))

    def plain() -> Iterator[Attempt]:
        yield Attempt(model(digits.train(copy.deepcopy(base), EPOCHS, RATE)), described="trained further")

    yield "quantization alone", plain()

    def masked(ratio: float, loss: float = 0.0, **options: Any) -> Attempt:
        module, count = copy.deepcopy(base), 0
        masks = training.Masks(module, **options)

        def after(_: nn.Module) -> None:
            nonlocal count
            count += 1
            if count % GROWTH == 0:
                masks.grow(ratio, 2 * count / steps)
            masks.project()

        extra = (lambda m: loss * training.compressibility_loss(m)) if loss else None
        model_ = model(digits.train(module, EPOCHS, RATE, after, extra))
        arguments = ", ".join([f"ratio={ratio}", *(f"{key}={value}" for key, value in options.items())])
        return Attempt(model_, described=f"sparsify({arguments})" + (f", {loss:g} times the loss" if loss else ""))

    yield "sparsify, by magnitude", (masked(ratio) for ratio in (0.6, 0.8, 0.9, 0.95))
    yield "sparsify, by statistics", (masked(ratio, method="statistics") for ratio in (0.6, 0.9))
    losses = ((0.6, 1e-3), (0.9, 1e-3), (0.9, 1e-2))
    yield "sparsify, compressibility loss", (masked(ratio, loss) for ratio, loss in losses)
    yield "sparsify, rows", (masked(ratio, method="rows") for ratio in (0.2, 0.5))
    yield "sparsify, micro-structured", (masked(ratio, method="micro") for ratio in (0.4, 0.7))

    def unified(ratio: float) -> Attempt:
        module, count, text = copy.deepcopy(base), 0, f"unify(ratio={ratio})"
        projection = training.Projection(module, text)

        def after(_: nn.Module) -> None:
            nonlocal count
            count += 1
            if count % GROWTH == 0 or count == steps:
                projection.project()

        return Attempt(model(digits.train(module, EPOCHS, RATE, after)), described=text)

    yield "unify", (unified(ratio) for ratio in (0.4, 0.7))

    def factored(ratio: float) -> Attempt:
        module = copy.deepcopy(base)
        factors = training.LowRank(module, ratio=ratio)
        digits.train(module, EPOCHS, RATE)
        return Attempt(factors.model(), described=f"lowrank(ratio={ratio})", score=score)

    yield "low rank", (factored(ratio) for ratio in (0.5, 0.25, 0.12))

    def scaled(quality: int) -> Attempt:
        module = copy.deepcopy(base)
        scaling = training.LocalScaling(module, quality=quality)
        digits.train(module, EPOCHS, RATE)
        options = {"config": scaling.config}
        return Attempt(
            scaling.model(), described=f"LocalScaling(quality={quality})", options=options, settled=True, score=score
        )

    yield "scale", (scaled(quality) for quality in (14, 12, 10, 8, 6, 4))


# ------------------------------------------------------------------------------------------------ ResNets
def pictures() -> npt.NDArray[np.float32]:
    """Return noise of four grain sizes and random strengths, shape (256, 3, 32, 32), for which decisions vary."""
    rng = np.random.default_rng(SEED)
    out = np.zeros((SAMPLES, 3, 32, 32))
    for grain in (1, 4, 16, 32):
        noise = rng.standard_normal((SAMPLES, 3, 32 // grain, 32 // grain))
        out += np.kron(noise, np.ones((grain, grain))) * rng.random((SAMPLES, 1, 1, 1))
    return out.astype(np.float32)


def resnet(depth: int) -> Network:
    """Return a network of ``../shared/models`` for 32x32 images, in onnxruntime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    model = nnr.load(SHARED / "models" / f"resnet{depth}_cifar10.onnx")
    x = pictures()

    def outputs(decoded: nnr.Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            nnr.save(decoded, path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            (name,) = [given.name for given in session.get_inputs()]
            return np.concatenate([session.run(None, {name: one[None]})[0] for one in x])

    before = outputs(model)

    def score(decoded: nnr.Model) -> Row:
        found = compare_outputs(before, outputs(decoded))
        return {"enough": found.cosine >= COSINE, "top_1": found.top_1, "cosine": found.cosine}

    return Network(f"ResNet-{depth}", model, score, {**TOOLS, **WITH_GRAPH}, near=NEARER, qualities=FINER)


NETWORKS: dict[str, Callable[[], Network]] = {
    "convolutional": convolutional,
    "perceptron": perceptron,
    "resnet20": lambda: resnet(20),
    "resnet56": lambda: resnet(56),
}


def table(found: list[Row]) -> str:
    """Return all networks' rows in Markdown; rows with fine-tuning are relative to fine-tuned quantization alone."""
    out = []
    for network in dict.fromkeys(row["network"] for row in found):
        mine = [row for row in found if row["network"] == network]
        measured = "accuracy" if "accuracy" in mine[0] else "cosine, same decision"
        before = f": {100 * mine[0]['accuracy_before']:.2f} %" if "accuracy_before" in mine[0] else ""
        out += [f"### {network}{before}", ""]
        for tuned in sorted({row["tuned"] for row in mine}):
            smallest = [row for row in mine if row["tuned"] == tuned and not row["fixed"]]
            shown = {row["tool"]: row for row in mine if row["tuned"] == tuned and row["fixed"]}
            out += [
                f"| {'with fine-tuning' if tuned else ''} | with `--qp {FIXED}` | bytes | {measured} "
                f"| smallest that meets the requirement | bytes | | {measured} |",
                "|---|---|---|---|---|---|---|---|",
            ]
            for row in smallest:
                name, alone = row["tool"], smallest[0]["bytes"]
                share = f"{100 * row['bytes'] / alone:.1f} %" if row["bytes"] else ""
                out.append(f"| {name} | {_cells(shown[name])} | {_cells(row, share)} |")
            out.append("")
    return "\n".join(out)


def _cells(row: Row, share: str | None = None) -> str:
    """Return the cells of a row: description, bytes, share and score."""
    if row["bytes"] is None:
        return "none | | | "
    steps, more = (*re.split(", (?=.* loss$)|(?=trained further)", row["done"]), "")[:2]
    done = [f"`{steps}`" if steps else "", more]
    done += [f"quality {row['quality']}"] if "quality" in row else []
    if "accuracy" in row:
        measured = f"{100 * row['accuracy']:.2f} %"
    else:
        measured = f"{row['cosine']:.4f}, {100 * row['top_1']:.1f} %"
    shares = [] if share is None else [share]
    return " | ".join([", ".join(filter(None, done)), f"{row['bytes']:,}", *shares, measured])


def main() -> None:
    """Print rows, or the tables of stored rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(NETWORKS)}; all of them otherwise")
    parser.add_argument("--table", metavar="RESULTS.jsonl", type=Path, help="print tables of earlier results")
    parser.add_argument("--tools", metavar="PATTERN", default="*", help="measure only tools with matching names")
    arguments = parser.parse_args()
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return
    torch.set_num_threads(1)
    for name in arguments.networks or NETWORKS:
        for row in rows(NETWORKS[name](), arguments.tools):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
