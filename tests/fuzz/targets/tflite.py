"""Target: TensorFlow Lite models."""

from __future__ import annotations

import io
from collections.abc import Iterable

from nnr_codec import formats

from ...formats import test_tflite as made
from .support import LIMITS, harmless, read


def target(data: bytes) -> None:
    """Read a file; write it again, and the weights of quantized tensors."""
    read(data, "tflite")
    with harmless():
        model = formats.load(data, format="tflite", limits=LIMITS)
        file = io.BytesIO()
        formats.save(model, file, format="tflite")
        assert file.getvalue() == data
        found = formats.dequantized(model)
        for name in found:
            assert found[name].shape == formats.described(found, name)[1]


def seeds() -> Iterable[bytes]:
    """Return floats and quantized tensors, in the FlatBuffer and after it."""
    yield made.usual()
    yield made.file_of([], [])
    outside = made.Table({1: made.Scalar("Q", 512), 2: made.Scalar("Q", 80)})
    yield made.file_of([made.tensor("w", [20], 0, 1)], [outside]).ljust(512, b"p") + bytes(80)
    packed = [made.tensor("w", [160], made.INT4, 1), made.tensor("w", [10], made.STRING, 2)]
    yield made.file_of(packed, [made.buffer(bytes(80)), made.buffer(bytes(100))])
