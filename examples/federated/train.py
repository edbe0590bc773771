"""Train a network for digits with four clients, with and without nnr_codec, and compare accuracy and bytes.

``python examples/federated/train.py`` prints a row for each of 30 rounds, in about a minute of CPU time. Requires
scikit-learn, and matplotlib for ``--plot FOLDER``, which draws the curves. In each round the clients start from the
server's model, train with their own images, and send the difference. The server adds the mean of these updates to its
model.

The lossy codec costs no accuracy, because encoders keep the error of an update (``error_feedback``) and add it to the
next one.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

import nnr_codec as nnr

try:
    from network import Floats, Labels, Weights, accuracy, images, initial_weights, train
    from threadpoolctl import threadpool_limits  # comes with scikit-learn
except ModuleNotFoundError as error:
    sys.exit(f"{error}; install it with: pip install scikit-learn")

CLIENTS, ROUNDS, EPOCHS, RATE = 4, 30, 2, 0.05
#: Parameter of a Dirichlet distribution, by which the images of each digit are spread over clients.
EVENNESS = 4.0


class Uplink(Protocol):
    """Transport of updates from clients to the server."""

    def send(self, client: int, update: Weights) -> bytes:
        """Return the message of a client."""

    def receive(self, message: bytes) -> Weights:
        """Return the update that the server gets from a message."""


class Plain:
    """Plain float32."""

    def __init__(self, weights: Weights) -> None:
        self.shapes = {name: value.shape for name, value in weights.items()}

    def send(self, client: int, update: Weights) -> bytes:
        return b"".join(update[name].tobytes() for name in self.shapes)

    def receive(self, message: bytes) -> Weights:
        ends = np.cumsum([np.prod(shape) for shape in self.shapes.values()])[:-1]
        parts = np.split(np.frombuffer(message, np.float32), ends)
        return {name: part.reshape(self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}


class Coded:
    """nnr_codec: an encoder for each client, one decoder for all."""

    def __init__(self, weights: Weights, preset: str, sbt: float | None) -> None:
        config = nnr.EncoderConfig.preset(preset)
        self.encoders = [nnr.UpdateEncoder(config, device_id=k, error_feedback=True, sbt=sbt) for k in range(CLIENTS)]
        self.decoder = nnr.UpdateDecoder(like=weights)

    def send(self, client: int, update: Weights) -> bytes:
        return self.encoders[client].encode(update)

    def receive(self, message: bytes) -> Weights:
        return self.decoder.decode(message)


class Row(NamedTuple):
    """Result of a round: accuracy, 0..1; bytes that all clients sent; seconds for encoding and decoding them."""

    accuracy: float
    nbytes: int
    seconds: float


class Federation:
    """A server with its model, and the images of the clients."""

    def __init__(self, weights: Weights, uplink: Uplink, shares: list[tuple[Floats, Labels]]) -> None:
        self.weights, self.uplink, self.shares = weights, uplink, shares

    def round(self, number: int, rate: float, held_out: tuple[Floats, Labels]) -> Row:
        """Train, send and average once."""
        total = sum(len(y) for _, y in self.shares)
        mean = {name: np.zeros_like(value) for name, value in self.weights.items()}
        nbytes, seconds = 0, 0.0
        for client, (x, y) in enumerate(self.shares):
            new = train(self.weights, x, y, EPOCHS, rate, np.random.default_rng((number, client)))
            update = {name: value - self.weights[name] for name, value in new.items()}
            began = time.perf_counter()
            message = self.uplink.send(client, update)
            received = self.uplink.receive(message)
            seconds += time.perf_counter() - began
            nbytes += len(message)
            for name, value in received.items():
                mean[name] += np.float32(len(y) / total) * value
        self.weights = {name: value + mean[name] for name, value in self.weights.items()}
        return Row(accuracy(self.weights, *held_out), nbytes, seconds)


def spread(x: Floats, y: Labels, rng: np.random.Generator) -> list[tuple[Floats, Labels]]:
    """Return the images of each client; the share of each digit differs."""
    owner = np.empty(len(y), np.int64)
    for digit in range(10):
        of_digit = np.flatnonzero(y == digit)
        ends = np.cumsum(rng.dirichlet([EVENNESS] * CLIENTS)) * len(of_digit)
        owner[of_digit] = np.searchsorted(ends[:-1], np.arange(len(of_digit)), side="right")
    return [(x[owner == client], y[owner == client]) for client in range(CLIENTS)]


def run(rounds: int, preset: str, sbt: float | None) -> dict[str, list[Row]]:
    """Run all rounds with and without the codec; return their results by name."""
    rng = np.random.default_rng(15938)
    x, y, *held_out = images()
    shares, weights = spread(x, y, rng), initial_weights(rng)
    federations = {
        "float32": Federation(weights, Plain(weights), shares),
        "nnr_codec": Federation(weights, Coded(weights, preset, sbt), shares),
    }
    rows: dict[str, list[Row]] = {name: [] for name in federations}
    print(f"{sum(value.size for value in weights.values()):,} parameters, {CLIENTS} clients\n")
    print("        float32                nnr_codec\nround   accuracy   bytes up    accuracy   bytes up")
    for number in range(rounds):
        rate = RATE * 0.5 * (1 + np.cos(np.pi * number / rounds))
        for name, federation in federations.items():
            rows[name].append(federation.round(number, rate, (held_out[0], held_out[1])))
        cells = (f"{row[-1].accuracy:10.2%} {row[-1].nbytes:>11,}" for row in rows.values())
        print(f"{number + 1:5} {' '.join(cells)}", flush=True)
    return rows


def plot(rows: dict[str, list[Row]], target: Path) -> None:
    """Draw accuracy by bytes, and by rounds, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "nnr_codec"  # the same bytes every time
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_bytes, by_round = figure.subplots(1, 2, sharey=True)
    for name, found in rows.items():
        percent = [100 * row.accuracy for row in found]
        by_bytes.plot(np.cumsum([row.nbytes for row in found]) / 1e6, percent, ".-", label=name)
        by_round.plot(np.arange(1, len(found) + 1), percent, ".-", label=name)
    by_bytes.set(xscale="log", xlabel="megabytes that all clients sent", ylabel="accuracy, %")
    by_round.set(xlabel="round")
    by_round.legend()
    for axes in (by_bytes, by_round):
        axes.grid(alpha=0.3)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Federated training with and without nnr_codec.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--preset", default="fl", help="of nnr_codec's encoder (default: fl)")
    parser.add_argument("--sbt", type=float, metavar="R", help="share of zeros (docs/guides/updates.md)")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write federated.svg there")
    arguments = parser.parse_args()
    with threadpool_limits(1):  # batches are small
        rows = run(arguments.rounds, arguments.preset, arguments.sbt)
    plain, coded = rows.values()
    fewer = sum(row.nbytes for row in plain) / sum(row.nbytes for row in coded)
    lost = 100 * (plain[-1].accuracy - coded[-1].accuracy)
    print(
        f"\n{fewer:.1f} times fewer bytes; {lost:.2f} points of accuracy lost; "
        f"{sum(row.seconds for row in coded):.1f} s for encoding and decoding"
    )
    if arguments.plot:
        plot(rows, arguments.plot / "federated.svg")


if __name__ == "__main__":
    main()
