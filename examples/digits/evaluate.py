"""Accuracy of NNEF digit models on the held-out images: ``python evaluate.py digits.nnef decoded.nnef``.

For one model, the last line is the accuracy, 0..1, followed by the accuracy of each digit, as ``nnr encode --evaluate``
requires. Requires only numpy: the forward pass below computes the one topology that ``train.py`` writes, also pruned.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

TEST_IMAGES = Path(__file__).parent / "test.npz"
EPSILON = 1e-5


def read_weights(folder: Path) -> dict[str, Floats]:
    """Return the variables of an NNEF folder by label; a header of 128 bytes precedes little-endian float32."""
    weights = {}
    for path in folder.rglob("*.dat"):
        rank, *extents = np.fromfile(path, "<u4", count=9, offset=8)
        values = np.fromfile(path, "<f4", offset=128)
        weights[path.relative_to(folder).with_suffix("").as_posix()] = values.reshape(extents[:rank])
    return weights


def patches(x: Floats) -> Floats:
    """Return the 3x3 neighbourhood of every pixel, zeros outside: [n, c, h, w] to [n, h, w, c * 9]."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


def conv_bn_relu(x: Floats, w: dict[str, Floats], k: int) -> Floats:
    """Apply convolution k, batch normalization k and ReLU: [n, c, h, w] to [n, filters, h, w]."""
    kernel = w[f"conv{k}/weight"]
    y: Floats = patches(x) @ kernel.reshape(len(kernel), -1).T + w[f"conv{k}/bias"]
    y = (y - w[f"bn{k}/mean"]) / np.sqrt(w[f"bn{k}/variance"] + np.float32(EPSILON))
    y = y * w[f"bn{k}/scale"] + w[f"bn{k}/offset"]
    return np.maximum(y, 0).transpose(0, 3, 1, 2)


def logits(x: Floats, w: dict[str, Floats]) -> Floats:
    """Return the scores [n, 10] of images [n, 1, 8, 8] with values 0..1."""
    x = conv_bn_relu(x, w, 1)
    x = x.reshape(len(x), -1, 4, 2, 4, 2).max(axis=(3, 5))
    x = conv_bn_relu(x, w, 2).reshape(len(x), -1)
    x = np.maximum(x @ w["fc1/weight"].T + w["fc1/bias"], 0)
    return x @ w["fc2/weight"].T + w["fc2/bias"]


def accuracies(folder: Path) -> list[float]:
    """Return the share of held-out images that a model classifies correctly, 0..1: of all images, and of each digit."""
    with np.load(TEST_IMAGES) as test:
        images, labels = test["images"], test["labels"]
    correct = logits(images, read_weights(folder)).argmax(axis=1) == labels
    return [float(correct.mean()), *(float(correct[labels == digit].mean()) for digit in range(10))]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: evaluate.py MODEL...")
    for argument in sys.argv[1:]:
        found = accuracies(Path(argument))
        print(f"{found[0]:7.2%}  {argument}")
    if len(sys.argv) == 2:
        print(*(f"{value:.4f}" for value in found))
