"""Workloads: real networks from the reference material, and seeded tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Tensors = dict[str, npt.NDArray[np.float32]]

#: Globs of the tensors with one dimension, which both sides code with NNCodec's default for them.
ONE_DIMENSION = ("*bias", "*bn*", "*.running_*", "*downsample.1.*", "*LayerNorm*")
ONE_DIMENSION_QP = -75


@dataclass(frozen=True)
class Work:
    """Row of the benchmark: tensors, and the options for both codecs.

    Parameters
    ----------
    name : str
    source : str
        ``model:FILE``, ``laplace:ROWS x COLUMNS:SHARE OF ZEROS``, ``layers:COUNT`` or ``many:COUNT``.
    qp : int
        Quantization parameter of tensors with at least two dimensions, at a density of 2.
    dq, choice : bool
        Dependent quantization; choice of the shift parameters.
    rate : float or None
        Rate of our encoder; None for its default, 0 for equal work, as NNCodec's lambda_scale 0.
    lambda_scale : float
        Option of NNCodec; 0 is its default.
    jobs : int
        Number of our threads; NNCodec has one. With more than one, ratios are of wall time.
    fast_decode : bool
        Option of our encoder.
    own : bool
        Whether each codec decodes its own bitstream, as with ``fast_decode``; otherwise both decode NNCodec's.
    quick : bool
        Part of a ``--quick`` run.
    goal : dict of str to float
        Targets of the ratios of ``encode`` and ``decode``; with several threads, only these are measured.
    """

    name: str
    source: str
    qp: int
    dq: bool = True
    choice: bool = True
    rate: float | None = None
    lambda_scale: float = 0
    jobs: int = 1
    fast_decode: bool = False
    own: bool = False
    quick: bool = False
    goal: dict[str, float] = field(default_factory=dict)


RESNET_20, RESNET_56 = "model:resnet20_cifar10", "model:resnet56_cifar10"
SQUEEZENET, MINILM = "model:squeezenet1_0_deepcompression", "model:minilm"

WORK = (
    Work("ResNet-20, qp -32", RESNET_20, -32, quick=True),
    Work("ResNet-20, qp -20", RESNET_20, -20),
    Work("ResNet-56, qp -38", RESNET_56, -38),
    Work("ResNet-56, qp -38, uniform", RESNET_56, -38, dq=False),
    Work("ResNet-56, qp -32", RESNET_56, -32, quick=True, goal={"decode": 3.0}),
    Work("ResNet-56, qp -32, equal work", RESNET_56, -32, rate=0),
    Work("ResNet-56, qp -32, no choice", RESNET_56, -32, choice=False, rate=0, goal={"encode": 4}),
    Work("ResNet-56, qp -32, RDO", RESNET_56, -32, lambda_scale=1),
    Work("ResNet-56, qp -20", RESNET_56, -20),
    Work("SqueezeNet, qp -38", SQUEEZENET, -38),
    Work("SqueezeNet, qp -32, uniform", SQUEEZENET, -32, dq=False),
    Work("MiniLM, qp -32", MINILM, -32, goal={"encode": 10, "decode": 2.5}),
    Work("MiniLM, qp -32, RDO", MINILM, -32, lambda_scale=1, goal={"encode": 18}),
    Work("MiniLM, qp -32, no choice", MINILM, -32, choice=False, rate=0, goal={"encode": 4}),
    Work("MiniLM, qp -38, uniform", MINILM, -38, dq=False, goal={"decode": 3.2}),
    Work("MiniLM, qp -20", MINILM, -20),
    Work("MiniLM, qp -32, two threads", MINILM, -32, jobs=2, goal={"encode": 18, "decode": 4.8}),
    Work("MiniLM, qp -20, two threads", MINILM, -20, jobs=2, goal={"decode": 4.2}),
    Work("MiniLM, qp -32, fast decode", MINILM, -32, fast_decode=True, goal={"decode": 4.5}),
    Work("MiniLM, qp -20, fast decode", MINILM, -20, fast_decode=True, goal={"decode": 5.0}),
    Work("MiniLM, qp -32, fast decode, two threads", MINILM, -32, jobs=2, fast_decode=True, goal={"decode": 8.1}),
    Work("24 equal layers", "layers:24", -32, goal={"decode": 4.0}),
    Work("24 equal layers, fast decode", "layers:24", -32, fast_decode=True),
    Work("Laplacian, 30 % zeros", "laplace:1000x2000:0.30", -32),
    Work("Laplacian, 30 % zeros, fast decode", "laplace:1000x2000:0.30", -32, fast_decode=True),
    Work("Laplacian, 30 % zeros, uniform", "laplace:1000x2000:0.30", -32, dq=False),
    Work("Laplacian, 60 % zeros", "laplace:1000x2000:0.60", -32),
    Work("Laplacian, 95 % zeros", "laplace:1000x2000:0.95", -32),
    Work("Laplacian, 95 % zeros, uniform", "laplace:1000x2000:0.95", -32, dq=False, quick=True, goal={"decode": 4.2}),
    Work("Laplacian, 95 % zeros, fast decode", "laplace:1000x2000:0.95", -32, fast_decode=True),
    Work("Laplacian, 10 million", "laplace:1000x10000:0.30", -32, rate=0),
    Work("Laplacian, 10 million, fast decode", "laplace:1000x10000:0.30", -32, fast_decode=True),
    Work("100 tensors of 512", "many:100", -32, quick=True),
    Work("400 tensors of 512", "many:400", -32),
    Work("1600 tensors of 512", "many:1600", -32, goal={"encode": 60}),
    Work("1600 tensors of 512, own bitstreams", "many:1600", -32, own=True, goal={"decode": 4}),
)
#: Goal for the mean decoding speed-up of all rows with one thread.
GOAL_DECODE_MEAN = 2.5


def safetensors(path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Return the float32 tensors of a .safetensors file with at least one dimension."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__" or entry["dtype"] != "F32" or not entry["shape"]:
            continue
        first, end = entry["data_offsets"]
        yield name, np.frombuffer(data[start + first : start + end], "<f4").reshape(entry["shape"])


def laplacian(rows: int, columns: int, zeros: float, seed: int = 1) -> npt.NDArray[np.float32]:
    """Return Laplacian values; approximately the share ``zeros`` is nearer to 0 than half a step size of qp -32."""
    scale = -(2.0**-8 / 2) / np.log(1 - zeros)
    return np.random.default_rng(seed).laplace(0, scale, (rows, columns)).astype(np.float32)


def tensors(source: str, models: Path, minilm: Path | None = None) -> Tensors | None:
    """Return the tensors of a :attr:`Work.source`; None if its model is missing."""
    kind, _, rest = source.partition(":")
    if kind == "model":
        path = minilm if source == MINILM else models / f"{rest}.safetensors"
        return dict(safetensors(path)) if path and path.exists() else None
    if kind == "many":
        return {f"layer{k}.weight": laplacian(16, 32, 0.3, seed=k) for k in range(int(rest))}
    if kind == "layers":
        return {f"layer{k}.weight": laplacian(768, 768, 0.3, seed=k) for k in range(int(rest))}
    shape, _, zeros = rest.partition(":")
    rows, columns = map(int, shape.split("x"))
    return {"weight": laplacian(rows, columns, float(zeros))}
