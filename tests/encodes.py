"""Bitstreams that the encoder must always produce for given models: ``python -m tests.encodes`` writes their digests.

``tests/data/encodes.json`` has the digests, by name; after a change of the encoder that is meant to change bytes, run
the command again. Models are made of integers, because libraries differ in the last bits of logarithms; nothing is
deflated, because libraries differ in that as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from hashlib import sha256, shake_256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.model import Array, Model, Topology
from nnr_codec.parallel import pool as pool_module

#: File with the digests.
DIGESTS = Path(__file__).parent / "data" / "encodes.json"

#: Functions that make successive bitstreams, with these jobs or this executor.
Case = Callable[[dict[str, Any]], list[bytes]]


# ------------------------------------------------------------------------------------------------ models
def integers(name: str, *shape: int) -> Array:
    """Return bell-shaped integers around 0 with a standard deviation of about 38,000: sums of four 16-bit integers."""
    raw = np.frombuffer(shake_256(name.encode()).digest(8 * prod(shape)), "<u2").reshape(*shape, 4)
    return np.asarray(raw.sum(-1, dtype=np.int64) - 2 * 65535)


def normal(name: str, *shape: int, scale: float = 2.0**-20) -> Array:
    """Return floats with a standard deviation of about 0.04; ``scale`` is a power of two."""
    return (integers(name, *shape) * scale).astype("f4")


def positive(name: str, *shape: int) -> Array:
    """Return floats from about 0.5 to 1.5."""
    return np.asarray(1 + 4 * normal(name, *shape))


LAYERS = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 3, 8, 8]);
    a = variable<scalar>(shape = [12, 3, 3, 3], label = 'a');
    a_bias = variable<scalar>(shape = [1, 12], label = 'a.bias');
    c = conv(x, a, a_bias);
    mean = variable<scalar>(shape = [1, 12], label = 'mean');
    var = variable<scalar>(shape = [1, 12], label = 'var');
    beta = variable<scalar>(shape = [1, 12], label = 'beta');
    gamma = variable<scalar>(shape = [1, 12], label = 'gamma');
    n = batch_normalization(c, mean, var, beta, gamma, epsilon = 0.001);
    r = relu(n);
    b = variable<scalar>(shape = [20, 12, 3, 3], label = 'b');
    d = conv(r, b);
    s = relu(d);
    f = variable<scalar>(shape = [20, 5, 2, 2], label = 'f');
    f_bias = variable<scalar>(shape = [1, 5], label = 'f.bias');
    y = deconv(s, f, f_bias, stride = [2, 2]);
}
"""


def plain() -> Model:
    """Return matrices, vectors and tensors between them; one has rows of zeros."""
    sparse = integers("sparse", 40, 8) // 40000
    sparse[::3] = 0
    tensors = {
        "w": normal("w", 24, 20),
        "conv": normal("conv", 8, 5, 3, 3),
        "sparse": (sparse * 2.0**-9).astype("f4"),
        "few": np.asarray(integers("few", 12, 20) % 5 * 0.25, "f4"),
        "bias": normal("bias", 24),
        "one": np.float32([0.375]),
    }
    return Model(tensors)


def types() -> Model:
    """Return tensors of many types and shapes, with ties and metadata."""
    tensors: dict[str, Array] = {
        "double": normal("double", 9, 8).astype("f8") / 3,
        "half": normal("half", 9, 8).astype("f2"),
        "byte": (integers("byte", 300) // 9000).astype("i1"),
        "wide": integers("wide", 60) << 30,
        "unsigned": (integers("unsigned", 12, 5) & 0xFFFF).astype("u2"),
        "mask": integers("mask", 7, 7) > 0,
        "grid": (integers("grid", 16, 16) // 3000 * np.float32(0.0123)).astype("f4"),
        "scalar": np.array(1.1),
        "none": np.zeros((0, 3), "f4"),
    }
    tensors["tied"] = tensors["half"]
    return Model(tensors, metadata={"z": "last", "a": "first"})


def layers() -> Model:
    """Return convolutions, one with a batch normalization, and one that is transposed."""
    tensors = {
        "a": normal("a", 12, 3, 3, 3),
        "a.bias": normal("a.bias", 1, 12),
        "mean": normal("mean", 1, 12),
        "var": positive("var", 1, 12),
        "beta": normal("beta", 1, 12),
        "gamma": positive("gamma", 1, 12),
        "b": normal("b", 20, 12, 3, 3),
        "f": normal("f", 20, 5, 2, 2),
        "f.bias": normal("f.bias", 1, 5),
    }
    return Model(tensors, Topology("nnef", LAYERS.encode()))


# ------------------------------------------------------------------------------------------------ bitstreams
def encoded(model: Callable[[], Model], preset: str = "default", **options: Any) -> Case:
    """Return the bitstream of a whole model."""
    config = nnr.EncoderConfig.preset(preset, deflate_topology=False, **options)
    return lambda work: [nnr.encode(model(), config, **work)]


def with_data(**options: Any) -> Case:
    """Encode with sensitivities, and with second moments of inputs; they are integers, so that their sums are exact."""

    def case(work: dict[str, Any]) -> list[bytes]:
        model = plain()
        inputs = (integers("inputs", 90, 45) // 1000).astype("f8")
        hessians = {"w": inputs[:, :20].T @ inputs[:, :20], "conv": inputs.T @ inputs}
        sensitivity = {"few": 2.0, "sparse": np.abs(integers("cost", 40, 8)).astype("f8")}
        return [nnr.encode(model, sensitivity=sensitivity, hessians=hessians, **options, **work)]

    return case


def updates(preset: str = "update", count: int = 3, **options: Any) -> Case:
    """Encode a sequence of similar updates."""

    def case(work: dict[str, Any]) -> list[bytes]:
        encoder = nnr.UpdateEncoder(nnr.EncoderConfig.preset(preset, deflate_topology=False), **options)
        found = []
        for k in range(count):
            update = {
                name: 3 * normal(name, *shape, scale=2.0**-26) + normal(f"{name} {k}", *shape, scale=2.0**-26)
                for name, shape in {"w": (30, 20), "k": (6, 5, 3, 3), "b": (30,)}.items()
            }
            found.append(encoder.encode(update, **work))
        return found

    return case


def update_of_models(**options: Any) -> Case:
    """Encode the difference between two models."""

    def case(work: dict[str, Any]) -> list[bytes]:
        base = plain()
        tensors = {
            name: array + normal(f"{name}+", *array.shape, scale=2.0**-26) for name, array in base.tensors.items()
        }
        return [nnr.encode_update(base, Model({**tensors, **types().tensors}), **options, **work)]

    return case


MAPS = nnr.PerformanceMaps(sparsification=nnr.SparsificationMap((nnr.SparsificationRow(0.5, 0.25, 0.75),)))
CASES: dict[str, Case] = {
    "default": encoded(plain),
    "types": encoded(types),
    "lossless": encoded(types, "lossless"),
    "lossless, as rows of blocks": encoded(plain, exact=True, scan_order=1, row_skipping=True),
    "quality": encoded(plain, "small"),
    "snr, without dependent quantization": encoded(plain, snr=35, dependent_quantization=False),
    "largest error, in blocks": encoded(plain, max_error=1e-3, scan_order=2),
    "target": encoded(plain, target_ratio=0.25),
    "effort 1": encoded(plain, effort=1),
    "effort 9": encoded(plain, effort=9),
    "codebook": encoded(plain, codebook=16, cabac_unary_length_minus1=2, scan_order=3),
    "profile 0": encoded(plain, profile=0, qp_density=5, qp=-300, choose_shift_parameters=False),
    "units of 200 bytes, by index": encoded(plain, max_unit_size=200, indexed_references=True),
    "rules": encoded(plain, rules=(nnr.Rule("*s*", snr=50), nnr.Rule("w", codebook=5, rate=2))),
    "3gpp-full": encoded(layers, "3gpp-full"),
    "folded and scaled": encoded(layers, fold_batchnorm=True, local_scaling=True),
    "sparse, unified, fitted": encoded(layers, reduce="sparsify(ratio=0.4, mask=true), unify(ratio=0.3), scale"),
    "pruned, of low rank": encoded(layers, reduce="prune(ratio=0.2), lowrank(rank=4), fold"),
    "of low rank, in two units": encoded(layers, reduce="lowrank(rank=3, form=units)"),
    "fixed point": encoded(layers, fixed_point="q7.8"),
    "topology apart, performance": encoded(layers, topology="external", performance=nnr.Performance(maps=MAPS)),
    "data": with_data(quality=40),
    "update of a model": update_of_models(),
    "lossless update of a model": update_of_models(lossless=True),
    "updates": updates(error_feedback=True),
    "updates, residuals": updates(nnr_pre=True, dependent_quantization=False),
    "updates, 3gpp-incremental": updates("3gpp-incremental", sparsity=0.6, parent="sha256"),
    "updates, binary or ternary": updates("fl", sbt=0.7, parent="external"),
}


def digests(**work: Any) -> dict[str, str]:
    """Return the digest of each bitstream encoded with these arguments of ``encode``."""
    return {name: sha256(b"".join(case(work))).hexdigest() for name, case in CASES.items()}


def main() -> None:
    """Write the digests, or print them with the version of numpy for another process."""
    parser = argparse.ArgumentParser(prog="python -m tests.encodes")
    parser.add_argument("--print", action="store_true", help="print them, and write nothing")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    pool_module.SMALL = 0  # every tensor is submitted to workers
    found = digests(jobs=arguments.jobs)
    if arguments.print:
        print(json.dumps({"numpy": np.__version__, "digests": found}))
    else:
        DIGESTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
