"""A model with every way to code a tensor, and its report."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.model import Array, Block, Model

#: Names with an effect on a page.
HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    "\"'><img src=x onerror=\"document.title='owned'\">",
    "</title></svg></table><h1 id=owned>&amp;",
    "\u202ertl\u202c \x1b[31m\x07 two\nlines",
    "]]>--><!--",
)


def model() -> Model:
    """Return tensors of several types, with a tie, a block, an empty tensor and a scalar."""
    rng = np.random.default_rng(7)
    weight = rng.normal(0, 0.1, (24, 40)).astype(np.float32)
    tensors: dict[str, Array] = {
        "dense": weight,
        "tied": weight,
        "bias": rng.normal(0, 0.1, 24).astype(np.float32),
        "few": rng.choice([-0.4, 0.3, 0.0, 1.7], (30, 50)).astype(np.float32),
        "sparse": np.where(rng.random((64, 32)) < 0.95, 0, rng.normal(0, 1, (64, 32))).astype(np.float32),
        "half": rng.normal(0, 1, (20, 20)).astype(np.float16),
        "counts": rng.integers(-9, 9, (12, 12)),
        "scalar": np.array(3, np.int64),
        "odd": np.array([np.inf, np.nan, -0.0, 1.5], np.float32),
        "empty": np.empty((0, 3), np.float32),
        "zeros": np.zeros((5, 5), np.float32),
        "conv": rng.normal(0, 0.2, (8, 3, 3, 3)).astype(np.float32),
        "conv.scale": rng.normal(1, 0.1, 8).astype(np.float32),
        "conv.bias": rng.normal(0, 0.1, 8).astype(np.float32),
    }
    return Model(tensors, blocks=[Block("conv", bias="conv.bias", scale="conv.scale")])


def report(source: Model | Mapping[str, Array], **options: Any) -> tuple[nnr.EncodeReport, bytes]:
    """Return the report of an encoding, and the bitstream."""
    target = io.BytesIO()
    return nnr.encode_file(source, target, statistics=True, **options), target.getvalue()
