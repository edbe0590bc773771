"""The network of the example: a perceptron with two hidden layers, and its training in plain numpy.

Everything is seeded: two runs on one machine with the same number of BLAS threads give the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Weights = dict[str, Floats]

#: Extents of images, hidden layers and scores: 648,202 parameters.
WIDTHS = (64, 768, 768, 10)
BATCH, MOMENTUM = 16, np.float32(0.9)


def images() -> tuple[Floats, Labels, Floats, Labels]:
    """Return scikit-learn's digits, [n, 64] with values 0..1, and their labels; then the held-out fourth."""
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target.astype(np.int64)
    held_out = np.zeros(len(y), bool)
    for digit in range(10):
        held_out[np.flatnonzero(y == digit)[3::4]] = True
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def initial_weights(rng: np.random.Generator) -> Weights:
    """Return weights that are uniform in +-sqrt(6 / inputs), and biases of 0."""
    weights: Weights = {}
    for k, (inputs, outputs) in enumerate(pairwise(WIDTHS), 1):
        limit = np.sqrt(6 / inputs)
        weights[f"fc{k}.weight"] = rng.uniform(-limit, limit, (outputs, inputs)).astype(np.float32)
        weights[f"fc{k}.bias"] = np.zeros(outputs, np.float32)
    return weights


def forward(weights: Mapping[str, Floats], x: Floats) -> list[Floats]:
    """Return the input and the output of each layer; the last one is the scores [n, 10]."""
    layers = [x]
    for k in range(1, len(WIDTHS)):
        y = layers[-1] @ weights[f"fc{k}.weight"].T + weights[f"fc{k}.bias"]
        layers.append(np.maximum(y, 0) if k < len(WIDTHS) - 1 else y)
    return layers


def accuracy(weights: Mapping[str, Floats], x: Floats, y: Labels) -> float:
    """Return the share of images that the network classifies correctly, 0..1."""
    return float(np.mean(forward(weights, x)[-1].argmax(axis=1) == y))


def gradients(weights: Mapping[str, Floats], x: Floats, y: Labels) -> Weights:
    """Return the gradients of the mean cross entropy of a batch."""
    layers = forward(weights, x)
    d = np.exp(layers[-1] - layers[-1].max(axis=1, keepdims=True))
    d /= d.sum(axis=1, keepdims=True)
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    found: Weights = {}
    for k in reversed(range(1, len(WIDTHS))):
        found[f"fc{k}.weight"], found[f"fc{k}.bias"] = d.T @ layers[k - 1], d.sum(axis=0)
        d = (d @ weights[f"fc{k}.weight"]) * (layers[k - 1] > 0)
    return found


def shifted(x: Floats, rng: np.random.Generator) -> Floats:
    """Return each image moved by up to one pixel up or down, left or right."""
    padded = np.pad(x.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    moves = rng.integers(0, 3, (len(x), 2))
    return np.stack([image[i : i + 8, j : j + 8] for image, (i, j) in zip(padded, moves, strict=True)]).reshape(-1, 64)


def train(
    weights: Mapping[str, Floats], x: Floats, y: Labels, epochs: int, rate: float, rng: np.random.Generator
) -> Weights:
    """Return the weights after some epochs of gradient descent with momentum."""
    weights = {name: value.copy() for name, value in weights.items()}
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for start in range(0, len(y), BATCH):
            batch = order[start : start + BATCH]
            for name, gradient in gradients(weights, shifted(x[batch], rng), y[batch]).items():
                velocity[name] *= MOMENTUM
                velocity[name] -= np.float32(rate) * gradient
                weights[name] += velocity[name]
    return weights
