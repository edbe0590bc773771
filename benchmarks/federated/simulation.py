"""Networks, splits of training samples, methods, and the simulation of a run."""

from __future__ import annotations

import base64
import math
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
import torch
import zstandard
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional

import nnr_codec as nnr
from nnr_codec.integrations.flower import NNRMod, NNRStrategy

from ..accuracy import data, modules
from ..accuracy.scores import DRAWS
from ..compare import UNARY, Codec

SEED = 15938
#: Samples in a batch, and in a batch of tests.
BATCH, MANY = 50, 250
#: Mean and standard deviation of the colours of CIFAR-10, as expected by ResNet-20.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Floats = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Extent of a run: numbers of clients, rounds, samples of a client and round, samples of a test in all rounds but
    the last, samples of the last test, and epochs before the first round."""

    clients: int = 10
    rounds: int = 15
    samples: int = 500
    few: int = 2000
    tests: int = 10_000
    epochs: int = 2


QUICK = Plan(clients=2, rounds=2, samples=100, few=50, tests=100, epochs=0)


# ------------------------------------------------------------------------------------------------ networks
@dataclass(frozen=True)
class Work:
    """Network with samples.

    Parameters
    ----------
    make : callable
        Returns a module.
    load : callable
        Returns inputs and labels for training, and the same for tests.
    prepare : callable
        Converts inputs to a tensor; the flag is true in training.
    optimizer : callable
        Returns the optimizer of parameters with a learning rate.
    rate : float
        Learning rate of the first round. It falls to 0 as a cosine.
    splits : tuple of str
    """

    make: Callable[[], nn.Module]
    load: Callable[[], tuple[Any, Any, Any, Any]]
    prepare: Callable[[Any, np.random.Generator | None], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    rate: float
    splits: tuple[str, ...]


@cache
def images() -> tuple[Any, Any, Any, Any]:
    """Return the images of CIFAR-10."""
    return *data.cifar_training(), *data.images("cifar10_test")


@cache
def text() -> tuple[Any, Any, Any, Any]:
    """Return windows of characters, and the same shifted by one character."""
    train, test, _ = data.text()
    return train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:]


def normalized(x: Any, rng: np.random.Generator | None) -> Tensor:
    """Return images in channels_last format; in training, half of them are mirrored."""
    if rng is not None:
        mirrored = rng.random(len(x)) < 0.5
        x = np.where(mirrored[:, None, None, None], x[:, :, ::-1], x)
    found = (x.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(DEVIATION)
    return torch.from_numpy(found).permute(0, 3, 1, 2)


WORK = {
    "ResNet-20": Work(
        lambda: modules.ResNet(3).to(memory_format=torch.channels_last),
        images,
        normalized,
        partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-4),
        0.05,
        ("identical", "Dirichlet 0.3"),
    ),
    "transformer": Work(
        lambda: modules.CharacterTransformer(data.text()[2], data.WINDOW),
        text,
        lambda x, _: torch.from_numpy(np.ascontiguousarray(x)),
        torch.optim.AdamW,
        2e-3,
        ("identical", "contiguous"),
    ),
}


def state(module: nn.Module) -> Floats:
    """Return parameters and buffers of type float32; the counters of batch normalization have no effect."""
    return {name: value.numpy().copy() for name, value in module.state_dict().items() if value.is_floating_point()}


def module_of(work: Work, tensors: Mapping[str, Any]) -> nn.Module:
    """Return a module with these tensors."""
    module = work.make()
    module.load_state_dict({name: torch.from_numpy(np.float32(value)) for name, value in tensors.items()}, strict=False)
    return module


def train(work: Work, module: nn.Module, rows: Any, rate: float, rng: np.random.Generator) -> None:
    """Train a module with samples of the training data, in this order."""
    x, y = work.load()[:2]
    optimizer = work.optimizer(module.parameters(), rate)
    module.train()
    for some in np.array_split(rows, math.ceil(len(rows) / BATCH)):
        scores = module(work.prepare(x[some], rng))
        loss = functional.cross_entropy(scores.flatten(0, -2), torch.from_numpy(y[some]).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def correct(work: Work, tensors: Mapping[str, Any], count: int) -> Any:
    """Return the number of correct decisions for each of some evenly spaced test samples, uint8."""
    x, y = (part[np.linspace(0, len(part) - 1, min(count, len(part))).astype(int)] for part in work.load()[2:])
    module, found = module_of(work, tensors).eval(), []
    with torch.inference_mode():
        for k in range(0, len(x), MANY):
            decisions = module(work.prepare(x[k : k + MANY], None)).argmax(-1).numpy()
            found.append((decisions == y[k : k + MANY]).reshape(len(decisions), -1).sum(1))
    return np.concatenate(found).astype(np.uint8)


def start(name: str, plan: Plan, seed: int, folder: Path) -> Floats:
    """Return the weights before the first round, from the folder or trained now."""
    work, path = WORK[name], folder / f"{name}-{plan.epochs}-{seed}.npz"
    if not path.exists():
        torch.manual_seed(SEED + seed)
        rng, module = np.random.default_rng((SEED, seed)), work.make()
        n = len(work.load()[0])
        for _ in range(plan.epochs):
            train(work, module, rng.permutation(n), work.rate, rng)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, **state(module))
    with np.load(path) as file:
        return dict(file)


@cache
def parts(name: str, split: str, clients: int, seed: int) -> list[Any]:
    """Return the rows of the training data that each client has."""
    y, rng = WORK[name].load()[1], np.random.default_rng((SEED, seed, 1))
    if split == "contiguous":
        return np.array_split(np.arange(len(y)), clients)
    if split == "identical":
        return np.array_split(rng.permutation(len(y)), clients)
    found: list[list[Any]] = [[] for _ in range(clients)]
    for label in range(int(y.max()) + 1):
        rows = rng.permutation(np.flatnonzero(y == label))
        ends = np.rint(np.cumsum(rng.dirichlet([float(split.split()[1])] * clients)) * len(rows)).astype(int)
        for one, some in zip(found, np.split(rows, ends[:-1]), strict=True):
            one.append(some)
    return [np.concatenate(one) for one in found]


# ------------------------------------------------------------------------------------------------ methods
#: Function of an update that returns the bytes of a message, and the update that is restored from it.
Coder = Callable[[Floats], tuple[int, Floats]]


def packed(data: bytes) -> int:
    return len(zstandard.compress(data, 19))


def eight_bits(update: Floats) -> tuple[int, Floats]:
    """Quantize each tensor to 8 bits with one scale."""
    levels, restored = [], {}
    for name, array in update.items():
        scale = np.float32(np.abs(array).max() / 127 or 1)
        level = np.rint(array / scale).astype(np.int8)
        levels.append(struct.pack("<f", scale) + level.tobytes())
        restored[name] = level * scale
    return packed(b"".join(levels)), restored


def largest(update: Floats, share: float = 0.01) -> tuple[int, Floats]:
    """Keep the largest values of each tensor, at least one, as float16 with their distances."""
    rows, values, restored, before = [], [], {}, 0
    for name, array in update.items():
        flat = array.ravel()
        kept = np.sort(np.argpartition(-np.abs(flat), k := math.ceil(share * flat.size) - 1)[: k + 1])
        value = flat[kept].astype(np.float16)
        rows.append(kept + before)
        values.append(value)
        restored[name] = np.zeros_like(flat)
        restored[name][kept] = value
        restored[name] = restored[name].reshape(array.shape)
        before += flat.size
    planes = [np.diff(np.concatenate(rows), prepend=0).astype("<u4"), np.concatenate(values).astype("<f2")]
    coded = b"".join(one.view(np.uint8).reshape(len(one), -1).T.tobytes() for one in planes)
    return packed(coded), restored


@cache
def peer_of(python: str) -> Codec:
    return Codec("theirs", python)


def nncodec(update: Floats, python: str, offset: int) -> tuple[int, Floats]:
    """Encode with NNCodec: its step size relative to the root mean square of matrices, and of vectors, is 2^(offset/4).

    Dependent quantization, rate-distortion optimization and row skipping are on.
    """
    qp = {}
    for key, is_vector in (("qp", False), ("fine_qp", True)):
        values = np.concatenate([array.ravel() for array in update.values() if (array.ndim < 2) == is_vector])
        qp[key] = offset + round(2 * math.log2(float((values.astype(np.float64) ** 2).mean()) or 1))
    tools = {"number": 0, "history": False, "temporal": False, "row_skipping": True}
    options = {**qp, "dq": True, "choice": True, "lambda_scale": 1, "unary": UNARY, "update": tools}
    with tempfile.TemporaryDirectory() as folder:
        source, stream = Path(folder, "update.npz"), Path(folder, "update.nnr")
        np.savez(source, **update)
        peer_of(python).ask(do="encode", tensors=source, to=stream, options=options)
        coded = stream.read_bytes()
    return len(coded), nnr.UpdateDecoder(like=update).decode(coded)


class CoderMod:
    """Mod of Flower that replaces a trained model by the model that a server restores from the coded update.

    The metric ``uplink`` has the bytes of the update. With ``feedback``, errors are added to the next update.
    """

    def __init__(self, code: Coder, feedback: bool) -> None:
        self.code, self.feedback = code, feedback

    def __call__(self, message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        base = arrays_of(message.content["arrays"])
        reply = call_next(message, context)
        update = {name: value - base[name] for name, value in arrays_of(reply.content["arrays"]).items()}
        feedback = nnr.ErrorFeedback()
        if "residual" in context.state:
            feedback.residual = arrays_of(context.state["residual"])
        update = feedback.add(update)
        nbytes, restored = self.code(update)
        if self.feedback:
            feedback.keep(update, restored)
            context.state["residual"] = record_of(feedback.residual)
        reply.content["arrays"] = record_of({name: base[name] + restored[name] for name in base})
        reply.content["metrics"]["uplink"] = nbytes
        return reply


def arrays_of(record: ArrayRecord) -> Floats:
    return {name: np.float32(array.numpy()) for name, array in record.items()}


def record_of(tensors: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in tensors.items()})


def methods(nbytes: int, python: str | None) -> dict[str, Callable[[], list[Any]]]:
    """Return functions that make the mods of each method, for a model of this size in bytes."""
    found: dict[str, Callable[[], list[Any]]] = {
        "float32": list,
        "NNR, 1 % budget": lambda: [NNRMod(target_size=nbytes // 100)],
        "NNR, fl": lambda: [NNRMod()],
        "NNR, sparsity 0.95": lambda: [NNRMod(sparsity=0.95)],
        "NNR, quality 3": lambda: [NNRMod(quality=3)],
        "NNR, quality 7": lambda: [NNRMod(quality=7)],
        "top-k, 1 %": lambda: [CoderMod(largest, True)],
        "8 bits": lambda: [CoderMod(eight_bits, False)],
    }
    if python:
        for name, offset in (("NNCodec", -1), ("NNCodec, coarse", 2)):
            found[name] = lambda offset=offset: [CoderMod(partial(nncodec, python=python, offset=offset), True)]
    return found


# ------------------------------------------------------------------------------------------------ simulation
def client_app(name: str, split: str, plan: Plan, seed: int, mods: list[Any]) -> ClientApp:
    """Return the app of a client."""
    app = ClientApp(mods=mods)

    @app.train()
    def on_train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        number, client = int(message.content["config"]["server-round"]), int(context.node_config["partition-id"])
        rng, own = np.random.default_rng((SEED, seed, number, client)), parts(name, split, plan.clients, seed)[client]
        rows = rng.choice(own, plan.samples, replace=len(own) < plan.samples)
        work = WORK[name]
        module = module_of(work, arrays_of(message.content["arrays"]))
        train(work, module, rows, work.rate * 0.5 * (1 + math.cos(math.pi * (number - 1) / plan.rounds)), rng)
        content = {"arrays": record_of(state(module)), "metrics": MetricRecord({"num-examples": plan.samples})}
        return Message(RecordDict(content), reply_to=message)

    return app


def run(
    name: str, split: str, plan: Plan, seed: int, weights: Floats, mods: list[Any], write: Callable[[Row], None]
) -> None:
    """Run all rounds in a simulation with one worker process; write a row for each round."""
    nbytes = plan.clients * sum(value.nbytes for value in weights.values())
    is_ours = any(isinstance(mod, NNRMod) for mod in mods)
    server, began = ServerApp(), time.monotonic()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        sizes: list[float] = []

        def aggregated(replies: list[RecordDict], key: str) -> MetricRecord:
            if len(replies) != plan.clients:
                raise RuntimeError(f"{plan.clients - len(replies)} clients failed")
            sizes.append(sum(reply["metrics"].get("uplink", nbytes // plan.clients) for reply in replies))
            return MetricRecord()

        strategy: Any = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=aggregated)
        if is_ours:
            strategy = NNRStrategy(strategy)

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            torch.set_num_threads(1)
            row: Row = {"round": number, "uplink": 0, "downlink": 0}
            if number and is_ours:
                statistics = strategy.statistics[number]
                row |= {"uplink": statistics.uplink_wire, "downlink": statistics.downlink_wire}
            elif number:
                row |= {"uplink": int(sizes[-1]), "downlink": nbytes}
            last = number == plan.rounds
            hits = correct(WORK[name], arrays_of(arrays), plan.tests if last else plan.few)
            decisions = WORK[name].load()[3][:1].size
            accuracies = hits * (100 / decisions)  # bytes times 100 would overflow
            drawn = accuracies[np.random.default_rng(0).integers(len(hits), size=(DRAWS, len(hits)))].mean(1)
            row |= {"accuracy": round(float(accuracies.mean()), 3), "samples": len(hits)}
            row |= {"interval": [round(float(value), 3) for value in np.percentile(drawn, (2.5, 97.5))]}
            if last:
                row |= {"decisions": decisions, "correct": base64.b64encode(zlib.compress(hits.tobytes(), 9)).decode()}
            write(row | {"seconds": round(time.monotonic() - began, 1)})
            return MetricRecord()

        strategy.start(
            grid, record_of(weights), num_rounds=plan.rounds, train_config=ConfigRecord(), evaluate_fn=evaluate
        )

    resources = {"num_cpus": 1, "include_dashboard": False, "log_to_driver": False, "object_store_memory": 1 << 28}
    run_simulation(
        server,
        client_app(name, split, plan, seed, mods),
        plan.clients,
        backend_config={"init_args": resources, "client_resources": {"num_cpus": 1}},  # type: ignore[arg-type]
    )
