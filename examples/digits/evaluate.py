"""Accuracy of NNEF digit models on the held-out images: ``python evaluate.py digits.nnef decoded.nnef``.

The forward pass below knows the one topology that ``train.py`` writes and nothing else; numpy is all it needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

TEST_IMAGES = Path(__file__).parent / "test.npz"
EPSILON = 1e-5
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


def read_weights(folder: Path) -> dict[str, Floats]:
    """The variables of an NNEF folder by label: 128 bytes of header, then little-endian float32."""
    return {
        label: np.fromfile(folder / f"{label}.dat", "<f4", offset=128).reshape(shape) for label, shape in SHAPES.items()
    }


def patches(x: Floats) -> Floats:
    """The 3x3 neighbourhood of every pixel, zeros outside: [n, c, h, w] to [n, h, w, c * 9]."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


def conv_bn_relu(x: Floats, w: dict[str, Floats], k: int) -> Floats:
    """Convolution k, batch normalization k and ReLU: [n, c, h, w] to [n, filters, h, w]."""
    kernel = w[f"conv{k}/weight"]
    y: Floats = patches(x) @ kernel.reshape(len(kernel), -1).T + w[f"conv{k}/bias"]
    y = (y - w[f"bn{k}/mean"]) / np.sqrt(w[f"bn{k}/variance"] + np.float32(EPSILON))
    y = y * w[f"bn{k}/scale"] + w[f"bn{k}/offset"]
    return np.maximum(y, 0).transpose(0, 3, 1, 2)


def logits(x: Floats, w: dict[str, Floats]) -> Floats:
    """The network: images [n, 1, 8, 8] with values 0..1 to scores [n, 10]."""
    x = conv_bn_relu(x, w, 1)
    x = x.reshape(len(x), 16, 4, 2, 4, 2).max(axis=(3, 5))
    x = conv_bn_relu(x, w, 2).reshape(len(x), -1)
    x = np.maximum(x @ w["fc1/weight"].T + w["fc1/bias"], 0)
    return x @ w["fc2/weight"].T + w["fc2/bias"]


def accuracy(folder: Path) -> float:
    """The share of the held-out images that the model in `folder` gets right, 0..1."""
    with np.load(TEST_IMAGES) as test:
        images, labels = test["images"], test["labels"]
    return float(np.mean(logits(images, read_weights(folder)).argmax(axis=1) == labels))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: evaluate.py MODEL...")
    for argument in sys.argv[1:]:
        print(f"{accuracy(Path(argument)):7.2%}  {argument}")
