"""``python -m benchmarks.reduction > RESULTS.jsonl``: what parameter reduction saves at equal accuracy, as JSON lines.

Of each network and each tool the smallest bitstream that still does what is asked for, over amounts of the tool and
qualities of the quantization; by quantization alone, too. Of digits networks (benchmarks/digits.py) that is the
accuracy of the network itself, less half a point, on the images that choices are made with; the accuracy that is told
is that on others. Of ResNet-20 and ResNet-56 (``../shared/models``, in onnxruntime) it is outputs like those of the
network itself, on 256 seeded inputs. Before that, what one amount of each tool does at the default quantization.
``--table RESULTS.jsonl`` makes the tables of docs/guides/reduction.md.
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
#: Qualities among which the lowest is sought that does, of digits and of ResNets.
QUALITIES, FINER = range(2, 49), range(20, 49)
#: How many qualities below it are tried: neither accuracies nor outputs are smooth functions.
NEAR, NEARER = 4, 2
#: How many finer ones have to do as well, of digits, so that no luck decides.
SURE = 2
#: What the mean cosine of the outputs of ResNets with those before has to be.
COSINE = 0.998
SAMPLES, SEED = 256, 15938
#: By how much the accuracy of digits may be less.
TOLERANCE = 0.005
#: Epochs of fine-tuning, and the rate it begins with.
EPOCHS, RATE = 8, 1e-3
#: Steps of the optimizer after which masks grow, and blocks are unified.
GROWTH = 16

Row = dict[str, Any]
Score = Callable[[nnr.Model], Row]


@dataclass(frozen=True)
class Attempt:
    """A model to be coded, and how.

    Parameters
    ----------
    model : Model
    reduce : str
        Steps of reduction.
    told : str
        What was done, as tables have it.
    options : dict
        Other options of the encoder.
    settled : bool
        The options decide on the quality.
    score : callable or None
        In the place of that of the network.
    shown : bool
        Whether tables have it at the default step.
    """

    model: nnr.Model
    reduce: str = ""
    told: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = False
    score: Score | None = None
    shown: bool = False


@dataclass(frozen=True)
class Network:
    """A network and what is asked of it.

    Parameters
    ----------
    name : str
    model : Model
    score : callable
        Of a decoded model: a row whose ``enough`` says whether it does.
    tools : dict of str to tuple of str
        Steps of reduction, each with amounts to try, by the names that tables have.
    tuned : callable
        Attempts after fine-tuning, by the same names.
    near : int
        How many qualities below the lowest one that does are tried.
    qualities : range
        Those that are tried.
    sure : int
        How many qualities above one have to do as well.
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
    """What comes of an attempt; None, without its score, where its bitstream is not smaller than ``most`` bytes."""
    data = nnr.encode(attempt.model, reduce=attempt.reduce, **attempt.options, **options)
    if len(data) >= most:
        return None
    found = (attempt.score or score)(nnr.decode(data, topology=attempt.model.topology))
    return {"bytes": len(data), "done": attempt.told or attempt.reduce, **options, **found}


def smallest(attempt: Attempt, network: Network, most: float) -> Row | None:
    """The row of the lowest quality that does, by bisection, or of one of ``near`` lower ones.

    None where none does in fewer than ``most`` bytes.
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
            return True  # what is too large may be made smaller
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
    """Two for each tool, quantization alone first: an amount at the default step, and the smallest that meets the need.

    ``wanted`` is a pattern of names of tools.
    """

    def of(tool: str, tuned: bool, given: Iterator[Attempt]) -> Iterator[Row]:
        if not fnmatchcase(tool, wanted):
            return
        facts, attempts = {"network": network.name, "tool": tool, "tuned": tuned}, list(given)
        one = next((attempt for attempt in attempts if attempt.shown), attempts[0])
        yield {**facts, "fixed": True, **(coded(one, network.score) or {})}
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
    """Steps with each of these amounts in the place of ``?``."""
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
#: What tables have at the default step; of others, the first of their steps.
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
    """That of examples/digits, trained here, with its graph."""
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
    """Names of the module's state in the order of the example's variables."""
    found = [name for name in module.state_dict() if not name.endswith("num_batches_tracked")]
    order = {"running_mean": 0, "running_var": 1, "bias": 2, "weight": 3}
    norms = {name.rpartition(".")[0] for name in found if name.endswith("running_mean")}

    def key(name: str) -> tuple[int, int]:
        layer, _, kind = name.rpartition(".")
        return int(layer), order[kind] if layer in norms else -order[kind]

    return sorted(found, key=key)


def perceptron() -> Network:
    """Fully connected layers."""
    base = digits.trained(digits.perceptron)

    def model(module: nn.Module) -> nnr.Model:
        return nnr.Model({name: value.numpy() for name, value in module.state_dict().items()})

    score = _accuracy(base, lambda decoded: _assigned(digits.perceptron(), decoded.tensors))
    tuned = partial(_tuned, digits.perceptron, model)
    tools = {**TOOLS, "scale, least squares": ("scale",)}
    return Network("digits, fully connected", model(base), score, tools, tuned, NEAR, sure=SURE)


def _assigned(module: nn.Module, tensors: Mapping[str, Any]) -> nn.Module:
    """The module with these tensors, whatever their extents; vectors have one dimension."""
    known = module.state_dict()
    for name in known.keys() & tensors.keys():
        value = torch.from_numpy(np.array(tensors[name]))
        value = value.reshape(-1) if known[name].dim() == 1 else value
        layer, _, kind = name.rpartition(".")
        place = module.get_submodule(layer)
        setattr(place, kind, nn.Parameter(value) if isinstance(getattr(place, kind), nn.Parameter) else value)
    return module.eval()


def _accuracy(base: nn.Module, module: Callable[[nnr.Model], nn.Module]) -> Score:
    """Accuracy by choices and by figures; enough is that of the network itself."""
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
    """Attempts with training, each from the trained network."""
    base = digits.trained(make)
    steps = EPOCHS * (len(digits.images()[0].y) // digits.BATCH)
    score = _accuracy(base, lambda decoded: _assigned(make(), decoded.tensors))

    def plain() -> Iterator[Attempt]:
        yield Attempt(model(digits.train(copy.deepcopy(base), EPOCHS, RATE)), told="trained further")

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
        told = ", ".join([f"ratio={ratio}", *(f"{key}={value}" for key, value in options.items())])
        return Attempt(model_, told=f"sparsify({told})" + (f", {loss:g} times the loss" if loss else ""))

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

        return Attempt(model(digits.train(module, EPOCHS, RATE, after)), told=text)

    yield "unify", (unified(ratio) for ratio in (0.4, 0.7))

    def factored(ratio: float) -> Attempt:
        module = copy.deepcopy(base)
        factors = training.LowRank(module, ratio=ratio)
        digits.train(module, EPOCHS, RATE)
        return Attempt(factors.model(), told=f"lowrank(ratio={ratio})", score=score)

    yield "low rank", (factored(ratio) for ratio in (0.5, 0.25, 0.12))

    def scaled(quality: int) -> Attempt:
        module = copy.deepcopy(base)
        scaling = training.LocalScaling(module, quality=quality)
        digits.train(module, EPOCHS, RATE)
        options = {"config": scaling.config}
        return Attempt(
            scaling.model(), told=f"LocalScaling(quality={quality})", options=options, settled=True, score=score
        )

    yield "scale", (scaled(quality) for quality in (14, 12, 10, 8, 6, 4))


# ------------------------------------------------------------------------------------------------ ResNets
def pictures() -> npt.NDArray[np.float32]:
    """Noise of four grain sizes, each at some strength, that networks decide on in many ways: (256, 3, 32, 32)."""
    rng = np.random.default_rng(SEED)
    out = np.zeros((SAMPLES, 3, 32, 32))
    for grain in (1, 4, 16, 32):
        noise = rng.standard_normal((SAMPLES, 3, 32 // grain, 32 // grain))
        out += np.kron(noise, np.ones((grain, grain))) * rng.random((SAMPLES, 1, 1, 1))
    return out.astype(np.float32)


def resnet(depth: int) -> Network:
    """A network of ``../shared/models`` for 32x32 images, in onnxruntime."""
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
    """Markdown of the rows of all networks; those with fine-tuning apart, relative to quantization alone with it."""
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
                f"| {'with fine-tuning' if tuned else ''} | at the default step | bytes | {measured} "
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
    """What was done, the bytes, their share and what was measured."""
    if row["bytes"] is None:
        return "none meets it | | | "
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
    """Print rows, or the tables of those in a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(NETWORKS)}; all of them otherwise")
    parser.add_argument(
        "--table", metavar="RESULTS.jsonl", type=Path, help="print the tables of what was printed before"
    )
    parser.add_argument("--tools", metavar="PATTERN", default="*", help="only tools with such names")
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
