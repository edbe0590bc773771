"""Ten rounds of fine-tuning as updates: ``python -m benchmarks.updates --peer PYTHON``.

Prints JSON lines. The network of examples/federated is trained with half of its images, then fine-tuned with the others
for ten rounds. Both codecs encode the same change in each round, with their states from the earlier rounds. In every
round, ours uses the largest step size at which its error does not exceed the error of NNCodec. NNCodec options that do
not change its error are tried in all combinations; the smallest total counts. Its bitstreams are decoded here, so its
errors are measured in the same way.

The same rounds are then encoded by ours with each tool on and off, at an SNR of 15 dB.

Kinds of rounds: "epochs", one epoch over these images; "sparse", the same with 90 % of the parameters set to 0;
"steady", five steps of gradient descent with all of the images, so that updates resemble each other.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import nnr_codec as nnr
from examples.federated import network
from examples.federated.network import Floats, Weights
from nnr_codec.decoder.state import UpdateState
from nnr_codec.encoder.reduce.sparsify import sparsify

from .compare import UNARY, Codec, machine

ROUNDS, SPARSITY = 10, 0.9
#: Training of the network before the rounds, then training in a round of each kind.
EPOCHS, RATE, FINE_RATE = 15, 0.05, 0.01
STEPS, SLOW_RATE = 5, 0.01
#: Our step sizes: qp_density, the number of qp in an octave, and the number of qp tried last on either side; each of
#: these qp changes the SNR by 0.05 dB.
DENSITY, OCTAVE, NEAR = 7, 1 << 7, 4
#: NNCodec's qp, four to an octave, relative to the qp of a step size equal to the root mean square of the updates.
OFFSETS = (-6, -1, 4)
#: Further contexts that NNCodec may use, with the names of benchmarks/worker.py.
CONTEXTS = ("temporal", "history", "row_skipping")
#: The SNR at which our tools are compared, and the tools.
SNR = 15.0
TOOLS = ("temporal_context_modeling", "hist_dep_sig_prob", "nnr_pre")
#: The intended ratio of sizes.
GOAL = 0.97

Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------ rounds
def rounds() -> dict[str, list[Weights]]:
    """Return the changes of ten rounds, by kind of fine-tuning."""
    x, y, _, _ = network.images()
    first = np.arange(len(y)) % 2 == 0
    rng = np.random.default_rng(15938)
    with threadpool_limits(1):
        start = network.train(network.initial_weights(rng), x[first], y[first], EPOCHS, RATE, rng)
        x, y = x[~first], y[~first]
        epochs = differences(start, lambda weights: network.train(weights, x, y, 1, FINE_RATE, rng))

        def steps(weights: Weights) -> Weights:
            for _ in range(STEPS):
                slope = network.gradients(weights, x, y)
                weights = {name: value - np.float32(SLOW_RATE) * slope[name] for name, value in weights.items()}
            return weights

        steady = differences(start, steps)
    return {"epochs": epochs, "sparse": [sparsify(one, SPARSITY) for one in epochs], "steady": steady}


def differences(weights: Weights, step: Callable[[Weights], Weights]) -> list[Weights]:
    """Return the change of each of ten rounds."""
    found = []
    for _ in range(ROUNDS):
        new = step(weights)
        found.append({name: value - weights[name] for name, value in new.items()})
        weights = new
    return found


@dataclass
class Coded:
    """Bytes and SNR of each round."""

    nbytes: list[int] = field(default_factory=list)
    snr: list[float] = field(default_factory=list)

    def add(self, data: bytes, update: Weights, decoder: nnr.UpdateDecoder) -> None:
        """Add a round, decoded with ``decoder``."""
        self.nbytes.append(len(data))
        self.snr.append(round(snr(update, decoder.decode(data)), 3))


def snr(wanted: Mapping[str, Floats], decoded: Mapping[str, Floats]) -> float:
    """Return the SNR over all tensors in dB; missing tensors count as zeros."""
    signal = noise = 0.0
    for name, array in wanted.items():
        values = array.astype(np.float64)
        signal += float((values**2).sum())
        noise += float(((values - decoded.get(name, np.zeros_like(values))) ** 2).sum())
    return 10 * math.log10(signal / noise)


# ------------------------------------------------------------------------------------------------ ours
def coded(updates: Sequence[Weights], qp: int, **options: Any) -> tuple[float, int]:
    """Return the mean SNR and the bytes of all rounds with the same options."""
    encoder = nnr.UpdateEncoder(qp=qp, qp_density=DENSITY, fine_vectors=False, **options)
    found = [(len(encoder.encode(update)), snr(update, encoder.decoded)) for update in updates]
    return mean(one for _, one in found), sum(one for one, _ in found)


def matched(updates: Sequence[Weights], least: Sequence[float], **options: Any) -> Coded:
    """Encode each round with the step size that takes the fewest bytes and gives at least an SNR."""
    state, decoder, found = nnr.UpdateEncoder().state, nnr.UpdateDecoder(), Coded()
    qp = -12 * OCTAVE
    for update, aim in zip(updates, least, strict=True):

        @cache
        def at(qp: int, update: Weights = update, state: UpdateState = state) -> tuple[float, bytes, UpdateState]:
            encoder = nnr.UpdateEncoder(qp=qp, qp_density=DENSITY, fine_vectors=False, state=state, **options)
            data = encoder.encode(update)
            return snr(update, encoder.decoded), data, encoder.state

        for _ in range(4):
            qp += round((at(qp)[0] - aim) / 6 * OCTAVE)
        while not (enough := [one for one in range(qp - NEAR, qp + NEAR) if at(one)[0] >= aim]):
            qp -= NEAR
        qp = min(enough, key=lambda one: len(at(one)[1]))
        _, data, state = at(qp)
        found.add(data, update, decoder)
    return found


# ------------------------------------------------------------------------------------------------ theirs
def theirs(updates: Sequence[Weights], peer: Codec, contexts: Mapping[str, bool], **options: Any) -> Coded:
    """Encode each round with NNCodec, and decode it here."""
    decoder, found = nnr.UpdateDecoder(), Coded()
    settings = {**options, "fine_qp": options["qp"], "choice": True, "unary": UNARY}
    with tempfile.TemporaryDirectory() as folder:
        source, stream = Path(folder, "update.npz"), Path(folder, "theirs.nnr")
        for number, update in enumerate(updates):
            np.savez(source, **update)  # type: ignore[arg-type]  # the stub takes the names for its own options
            settings["update"] = {"number": number, **contexts}
            peer.ask(do="encode", tensors=source, to=stream, options=settings)
            found.add(stream.read_bytes(), update, decoder)
    return found


def best(updates: Sequence[Weights], peer: Codec, **options: Any) -> tuple[dict[str, bool], Coded]:
    """Return the contexts with which NNCodec takes the fewest bytes; the error does not depend on them."""
    tried = []
    for flags in product((False, True), repeat=len(CONTEXTS)):
        contexts = dict(zip(CONTEXTS, flags, strict=True))
        tried.append((contexts, theirs(updates, peer, contexts, **options)))
    return min(tried, key=lambda one: sum(one[1].nbytes))


# ------------------------------------------------------------------------------------------------ rows
def equal_error(kind: str, updates: Sequence[Weights], peer: Codec) -> Iterator[Row]:
    """Yield the sizes of both codecs at equal error: NNCodec by default, and with rate-distortion optimization."""
    values = np.concatenate([array.ravel() for update in updates for array in update.values()]).astype(np.float64)
    usual = round(2 * math.log2(float((values**2).mean())))  # a step size equal to the root mean square
    for offset, lambda_scale in product(OFFSETS, (0, 1)):
        options = {"qp": usual + offset, "dq": True, "lambda_scale": lambda_scale}
        contexts, other = best(updates, peer, **options)
        mine = matched(updates, other.snr)
        yield {
            "row": "equal error",
            "updates": kind,
            **options,
            **contexts,
            "theirs": vars(other),
            "ours": vars(mine),
            "parameters": len(values),
            "size": round(sum(mine.nbytes) / sum(other.nbytes), 4),
            "goal": GOAL,
        }


def tools(kind: str, updates: Sequence[Weights]) -> Iterator[Row]:
    """Yield the bytes with each tool on and off at one SNR, interpolated between two step sizes."""
    off, on = dict.fromkeys(TOOLS, False), dict.fromkeys(TOOLS, True)
    uniform = {"dependent_quantization": False}
    tried: list[dict[str, Any]] = [off, off | {TOOLS[0]: True}, off | {TOOLS[1]: True}, on | {TOOLS[2]: False}]
    tried += [{**contexts, TOOLS[2]: pre, **uniform} for contexts in (off, on) for pre in (False, True)]
    qp = -12 * OCTAVE
    for _ in range(3):
        qp += round((coded(updates, qp, **off)[0] - SNR) / 6 * OCTAVE)
    for options in (*tried, {}):
        first = qp + 4 * OCTAVE // 5 * ("dependent_quantization" in options)  # about the same error
        (one, size), (other, more) = [coded(updates, first + step, **options) for step in (-8, 8)]
        found = round(size + (SNR - one) / (other - one) * (more - size))
        yield {"row": "tools", "updates": kind, "snr": SNR, "options": options, "bytes": found}


def sizes(rows: list[Row]) -> Iterator[str]:
    """Yield the rows at equal error as Markdown."""
    yield "| updates | SNR, dB | bits each | bytes, NNCodec | bytes, ours | size | size, lambda_scale=1 |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for row, other in zip(rows[::2], rows[1::2], strict=True):
        theirs, ours = sum(row["theirs"]["nbytes"]), sum(row["ours"]["nbytes"])
        cells = [row["updates"], f"{mean(row['theirs']['snr']):.1f}", f"{8 * ours / row['parameters']:.2f}"]
        cells += [f"{theirs:,}", f"{ours:,}", f"{row['size']:.3f}", f"{other['size']:.3f}"]
        yield f"| {' | '.join(f'**{c}**' if k == 5 and row['size'] <= GOAL else c for k, c in enumerate(cells))} |"


def savings(rows: list[Row]) -> Iterator[str]:
    """Yield the rows of tools as Markdown."""
    kinds = list(dict.fromkeys(row["updates"] for row in rows))
    known = {(row["updates"], json.dumps(row["options"])): row["bytes"] for row in rows}
    yield f"| contexts | quantization | PRE | {' | '.join(kinds)} |"
    yield f"|---|---|---|{'---:|' * len(kinds)}"
    for options in dict.fromkeys(options for _, options in known):
        settings = json.loads(options)
        names = [name for name, tool in zip(("temporal", "history"), TOOLS, strict=False) if settings.get(tool)]
        cells = [" and ".join(names) or "neither", "dependent", "on" if settings.get("nnr_pre") else "off"]
        if "dependent_quantization" in settings:
            cells[1] = "uniform"
        if not settings:
            cells = ["smallest combination", "", ""]
        for kind in kinds:
            cells.append(f"{known[kind, options] / known[kind, next(iter(known))[1]]:.3f}")
        yield f"| {' | '.join(cells)} |"


def tables(rows: list[Row]) -> str:
    """Return rows as Markdown."""
    both = [[row for row in rows if row["row"] == what] for what in ("equal error", "tools")]
    return "\n".join([*sizes(both[0]), "", *savings(both[1])])


def main() -> None:
    """Print a JSON line for each row, or tables of stored lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--peer",
        help="the Python interpreter with NNCodec 2.1.3 and numpy below 2; without it, only tools are compared",
    )
    parser.add_argument("--only", default="", help="measure only kinds of updates whose name contains this text")
    parser.add_argument("--table", type=Path, metavar="RESULTS.jsonl", help="print tables of earlier results")
    arguments = parser.parse_args()
    if arguments.table:
        print(tables([json.loads(line) for line in arguments.table.read_text("utf-8").splitlines()]))
        return
    peer = Codec("theirs", arguments.peer) if arguments.peer else None
    for kind, updates in rounds().items():
        if arguments.only not in kind:
            continue
        for row in equal_error(kind, updates, peer) if peer else ():
            print(json.dumps({**row, "machine": machine({"theirs": peer})}), flush=True)
        for row in tools(kind, updates):
            print(json.dumps(row), flush=True)
    if peer:
        peer.close()


if __name__ == "__main__":
    main()
