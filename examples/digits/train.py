"""Train the example, a small convolutional network for scikit-learn's 8x8 digits, in plain numpy, and save it as NNEF.

``python examples/digits/train.py`` writes ``digits.nnef`` and ``test.npz`` beside itself, in some seconds. Requires
scikit-learn. Everything is seeded: two runs on one machine with the same number of BLAS threads give the same bytes. On
other machines rounding differs, and so do the weights. The committed weights are from a run with
OPENBLAS_NUM_THREADS=1 and classify 99.1 % of the held-out images correctly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from evaluate import EPSILON, TEST_IMAGES, accuracies, patches
from sklearn.datasets import load_digits

from nnr_codec.formats import save
from nnr_codec.model import Model, Topology

Floats = npt.NDArray[np.float32]
Weights = dict[str, Floats]

FOLDER = Path(__file__).parent / "digits.nnef"
SHAPES: dict[str, tuple[int, ...]] = {
    "conv1/weight": (16, 1, 3, 3),
    "conv1/bias": (1, 16),
    "bn1/mean": (1, 16),
    "bn1/variance": (1, 16),
    "bn1/offset": (1, 16),
    "bn1/scale": (1, 16),
    "conv2/weight": (48, 16, 3, 3),
    "conv2/bias": (1, 48),
    "bn2/mean": (1, 48),
    "bn2/variance": (1, 48),
    "bn2/offset": (1, 48),
    "bn2/scale": (1, 48),
    "fc1/weight": (64, 768),
    "fc1/bias": (1, 64),
    "fc2/weight": (10, 64),
    "fc2/bias": (1, 10),
}
EPOCHS, BATCH, RATE, DECAY, DROPOUT = 40, 32, 2e-3, 1e-2, 0.3

GRAPH = """version 1.0;

graph digits(image) -> (scores)
{
    image = external<scalar>(shape = [1, 1, 8, 8]);
VARIABLES
    conv1 = conv(image, conv1_weight, conv1_bias, stride = [1, 1], padding = [(1, 1), (1, 1)]);
    bn1 = batch_normalization(conv1, bn1_mean, bn1_variance, bn1_offset, bn1_scale, epsilon = EPSILON);
    relu1 = relu(bn1);
    pool1 = max_pool(relu1, size = [1, 1, 2, 2], stride = [1, 1, 2, 2],
                     padding = [(0, 0), (0, 0), (0, 0), (0, 0)], border = 'ignore');
    conv2 = conv(pool1, conv2_weight, conv2_bias, stride = [1, 1], padding = [(1, 1), (1, 1)]);
    bn2 = batch_normalization(conv2, bn2_mean, bn2_variance, bn2_offset, bn2_scale, epsilon = EPSILON);
    relu2 = relu(bn2);
    flat = reshape(relu2, shape = [0, -1]);
    fc1 = linear(flat, fc1_weight, fc1_bias);
    relu3 = relu(fc1);
    scores = linear(relu3, fc2_weight, fc2_bias);
}
"""


def graph_text() -> str:
    """Return the text of graph.nnef."""
    variables = (
        f"    {label.replace('/', '_')} = variable<scalar>(shape = {list(shape)}, label = '{label}');"
        for label, shape in SHAPES.items()
    )
    return GRAPH.replace("VARIABLES", "\n".join(variables)).replace("EPSILON", f"{EPSILON:.5f}")


def initial_weights(rng: np.random.Generator) -> Weights:
    """Return uniform values in +-1/sqrt(fan-in) for weights and biases, and identities for batch normalizations."""
    weights: Weights = {}
    for label, shape in SHAPES.items():
        layer, kind = label.split("/")
        if layer.startswith("bn"):
            value = 1.0 if kind in ("variance", "scale") else 0.0
            weights[label] = np.full(shape, value, np.float32)
        else:
            limit = 1 / np.sqrt(np.prod(SHAPES[f"{layer}/weight"][1:]))
            weights[label] = rng.uniform(-limit, limit, shape).astype(np.float32)
    return weights


class Network:
    """Forward and backward pass over one batch in training mode; `grad` holds the gradients after `step_gradients`."""

    def __init__(self, weights: Weights) -> None:
        self.w = weights
        self.grad: Weights = {}

    def conv_bn_relu(self, x: Floats, k: int) -> tuple[Floats, tuple[Any, ...]]:
        w = self.w
        kernel = w[f"conv{k}/weight"]
        columns = patches(x)
        y = columns @ kernel.reshape(len(kernel), -1).T + w[f"conv{k}/bias"]
        mean, variance = y.mean(axis=(0, 1, 2)), y.var(axis=(0, 1, 2))
        for name, value in (("mean", mean), ("variance", variance)):
            w[f"bn{k}/{name}"] += np.float32(0.1) * (value - w[f"bn{k}/{name}"])
        deviation = np.sqrt(variance + np.float32(EPSILON))
        normal = (y - mean) / deviation
        out = np.maximum(normal * w[f"bn{k}/scale"] + w[f"bn{k}/offset"], 0)
        return out, (columns, normal, deviation, out > 0)

    def conv_bn_relu_back(self, d: Floats, k: int, kept: tuple[Any, ...]) -> Floats:
        """Return d loss / d columns [n, h, w, c * 9] for d loss / d output [n, h, w, filters]."""
        columns, normal, deviation, active = kept
        kernel = self.w[f"conv{k}/weight"]
        d = d * active
        self.grad[f"bn{k}/offset"] = d.sum(axis=(0, 1, 2))[None]
        self.grad[f"bn{k}/scale"] = (d * normal).sum(axis=(0, 1, 2))[None]
        d = d * self.w[f"bn{k}/scale"]
        d = (d - d.mean(axis=(0, 1, 2)) - normal * (d * normal).mean(axis=(0, 1, 2))) / deviation
        flat = d.reshape(-1, len(kernel))
        self.grad[f"conv{k}/bias"] = flat.sum(axis=0)[None]
        self.grad[f"conv{k}/weight"] = (flat.T @ columns.reshape(len(flat), -1)).reshape(kernel.shape)
        return np.asarray(d @ kernel.reshape(len(kernel), -1))

    def step_gradients(self, images: Floats, labels: npt.NDArray[np.int64], rng: np.random.Generator) -> float:
        """Run a forward and backward pass; return the mean cross entropy of the batch."""
        w, n = self.w, len(images)
        a1, kept1 = self.conv_bn_relu(images, 1)
        cells = a1.reshape(n, 4, 2, 4, 2, 16)
        p1 = cells.max(axis=(2, 4))
        a2, kept2 = self.conv_bn_relu(p1.transpose(0, 3, 1, 2), 2)
        flat = a2.transpose(0, 3, 1, 2).reshape(n, -1)
        flat = flat * (rng.random(flat.shape) >= DROPOUT) / np.float32(1 - DROPOUT)
        hidden = np.maximum(flat @ w["fc1/weight"].T + w["fc1/bias"], 0)
        scores = hidden @ w["fc2/weight"].T + w["fc2/bias"]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -float(np.log(p[np.arange(n), labels]).mean())

        d = p
        d[np.arange(n), labels] -= 1
        d /= n
        self.grad["fc2/weight"], self.grad["fc2/bias"] = d.T @ hidden, d.sum(axis=0)[None]
        d = (d @ w["fc2/weight"]) * (hidden > 0)
        self.grad["fc1/weight"], self.grad["fc1/bias"] = d.T @ flat, d.sum(axis=0)[None]
        d = (d @ w["fc1/weight"]) * (flat != 0) / np.float32(1 - DROPOUT)
        d_columns = self.conv_bn_relu_back(d.reshape(n, 48, 4, 4).transpose(0, 2, 3, 1), 2, kept2)
        # The transpose of `patches`: each column goes back to the pixel it was taken from.
        d_padded = np.zeros((n, 6, 6, 16), np.float32)
        taps = d_columns.reshape(n, 4, 4, 16, 3, 3)
        for i in range(3):
            for j in range(3):
                d_padded[:, i : i + 4, j : j + 4] += taps[..., i, j]
        d_pool = d_padded[:, 1:5, None, 1:5, None]
        d_cells = (cells == p1[:, :, None, :, None]) * d_pool
        self.conv_bn_relu_back(d_cells.reshape(n, 8, 8, 16), 1, kept1)
        return loss


def augment(images: Floats, rng: np.random.Generator) -> Floats:
    """Return each image shifted by up to one pixel up or down, left or right."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifts = rng.integers(0, 3, (len(images), 2))
    return np.stack([image[:, y : y + 8, x : x + 8] for image, (y, x) in zip(padded, shifts, strict=True)])


def train(images: Floats, labels: npt.NDArray[np.int64]) -> Weights:
    """Return weights trained by AdamW with a cosine learning rate."""
    rng = np.random.default_rng(15938)
    weights = initial_weights(rng)
    network = Network(weights)
    first = {label: np.zeros_like(value) for label, value in weights.items()}
    second = {label: np.zeros_like(value) for label, value in weights.items()}
    steps_per_epoch = len(images) // BATCH
    step, steps = 0, EPOCHS * steps_per_epoch
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        losses = []
        for batch in np.split(order[: steps_per_epoch * BATCH], steps_per_epoch):
            losses.append(network.step_gradients(augment(images[batch], rng), labels[batch], rng))
            rate = np.float32(RATE * 0.5 * (1 + np.cos(np.pi * step / steps)))
            step += 1
            for label, g in network.grad.items():
                first[label] += np.float32(0.1) * (g - first[label])
                second[label] += np.float32(0.01) * (g * g - second[label])
                mean, square = first[label] / (1 - 0.9**step), second[label] / (1 - 0.99**step)
                if label.endswith("weight"):
                    weights[label] *= 1 - rate * np.float32(DECAY)
                weights[label] -= rate * mean / (np.sqrt(square) + np.float32(1e-8))
        print(f"epoch {epoch + 1:2d}  loss {np.mean(losses):.4f}")
    return weights


def main() -> None:
    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    labels = data.target.astype(np.int64)
    # Stratified: every fourth image of each digit is held out.
    held_out = np.zeros(len(labels), bool)
    for digit in range(10):
        held_out[np.flatnonzero(labels == digit)[3::4]] = True
    np.savez_compressed(TEST_IMAGES, images=images[held_out], labels=labels[held_out])
    weights = train(images[~held_out], labels[~held_out])
    save(Model(weights, Topology("nnef", graph_text().encode())), FOLDER, overwrite=True)
    print(f"{accuracies(FOLDER)[0]:.2%} of {int(held_out.sum())} held-out images")


if __name__ == "__main__":
    main()
