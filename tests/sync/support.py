"""Models of a training run, and comparison with the models that subscribers have."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

import nnr_codec as nnr
from nnr_codec.model import Array
from nnr_codec.sync import Publisher, Subscriber

from ..cli.support import weights

Tensors = dict[str, Array]


def model(step: int) -> Tensors:
    """Return a model after some steps: trained tensors, one that few steps change, a frozen one, a counter."""
    return {
        "trained": weights(1, (30, 40)) + weights(7, (30, 40), 1e-5) * np.float32(step),
        "half": (weights(3) + step * weights(8, scale=1e-3)).astype(ml_dtypes.bfloat16),
        "rare": weights(4 + step // 3),
        "frozen": weights(2, (50, 20)),
        "odd": np.array([np.nan, -np.inf, -0.0, step], "f2"),
        "steps": np.array(step),
        "empty": np.zeros((0, 3), "f4"),
    }


def has(subscriber: Subscriber, tensors: Tensors) -> bool:
    """Return whether a subscriber has this model, every bit of it."""
    found = dict(subscriber.tensors)
    return nnr.identity(found) == subscriber.identity == nnr.identity(tensors)


def published(folder: Path, count: int, **options: object) -> Path:
    """Return a folder with versions of a model."""
    publisher = Publisher(folder, **options)  # type: ignore[arg-type]
    for step in range(count):
        publisher.publish(model(step))
    return folder
