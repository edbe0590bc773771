"""Samples: images of CIFAR-10 and ImageNet, pairs of sentences, text, and digits."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("NNR_SHARED") or ROOT.parent / "shared")
EVALUATION, MODELS = SHARED / "eval", SHARED / "models"

Array = npt.NDArray[Any]
#: Characters in a window of text.
WINDOW = 64


def digests(samples: Iterable[Any]) -> set[bytes]:
    """Return a digest of each sample, an array or a text."""
    data = (one.encode() if isinstance(one, str) else np.ascontiguousarray(one).tobytes() for one in samples)
    return {hashlib.sha256(one).digest() for one in data}


@cache
def images(name: str) -> tuple[Array, Array]:
    """Return images as uint8, shape (n, height, width, 3), and their labels, int64."""
    with np.load(EVALUATION / f"{name}.npz") as file:
        data, offsets, labels = file["jpeg"].tobytes(), file["offsets"], file["labels"].astype(np.int64)
    files = (data[start:end] for start, end in pairwise(offsets))
    return np.stack([np.asarray(Image.open(io.BytesIO(one)).convert("RGB")) for one in files]), labels


@cache
def cifar_training() -> tuple[Array, Array]:
    """Return the training images of CIFAR-10 that do not occur among the test images."""
    (x, y), known = images("cifar10_train20k"), digests(images("cifar10_test")[0])
    new = np.array([not digests([one]) & known for one in x])
    return x[new], y[new]


def sentence_pairs(part: str) -> tuple[list[tuple[str, str]], Array]:
    """Return the pairs of a part of the STS benchmark, and their similarities of 0..5."""
    with open(EVALUATION / f"stsb-en-{part}.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return [(one, other) for one, other, _ in rows], np.array([float(score) for *_, score in rows])


@cache
def text() -> tuple[Array, Array, int]:
    """Return windows of a text for training and for tests, shape (n, WINDOW + 1), and the number of characters."""
    content = (EVALUATION / "tinyshakespeare.txt").read_text("utf-8")
    letters = {letter: k for k, letter in enumerate(sorted(set(content)))}
    ids = np.array([letters[letter] for letter in content])
    windows = ids[: len(ids) // (WINDOW + 1) * (WINDOW + 1)].reshape(-1, WINDOW + 1)
    first = len(windows) * 9 // 10
    known = digests(windows[first:])
    training = np.stack([one for one in windows[:first] if not digests([one]) & known])
    return training, windows[first:], len(letters)


@cache
def digits(test: bytes) -> Array:
    """Return the images of scikit-learn's digits, shape (n, 1, 8, 8), values 0..1, without some test images."""
    from sklearn.datasets import load_digits

    known = {test[k : k + 256] for k in range(0, len(test), 256)}
    x = (load_digits().images / 16).astype(np.float32)[:, None]
    return np.stack([one for one in x if one.tobytes() not in known])
