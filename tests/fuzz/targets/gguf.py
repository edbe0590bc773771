"""Target: GGUF files."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np

from nnr_codec import formats

from ...formats import test_gguf as made
from .support import LIMITS, harmless, read


def target(data: bytes) -> None:
    """Read a file; write it again, and its weights, as for a topology of unchanged tensors."""
    read(data, "gguf")
    with harmless():
        model = formats.load(data, format="gguf", limits=LIMITS)
        file = io.BytesIO()
        formats.save(model, file, format="gguf")
        assert file.getvalue() == data
        found = formats.dequantized(model)
        for name in found:
            assert found[name].shape == formats.described(found, name)[1]


def seeds() -> Iterable[bytes]:
    """Return a file of each type, with metadata of several types."""
    keys = [
        made.key("general.name", 8, made.string("m")),
        made.key("general.alignment", 4, (32).to_bytes(4, "little")),
        made.key("a", 9, made.array_of(4, 3, bytes(12))),
        made.key("b", 9, made.array_of(8, 2, made.string("x") + made.string("\N{SNOWMAN}"))),
        made.key("c", 9, made.array_of(9, 1, made.array_of(7, 2, b"\0\1"))),
        made.key("d", 12, bytes(8)),
    ]
    for kind, dtype in made.TYPES.items():
        data = np.arange(6).astype(dtype).tobytes()
        yield made.file_of([made.info("w", [3, 2], kind, 0)], data, keys)
    quantized = made.blocks(np.ones(2), np.zeros((2, 32)))
    infos = [made.info("w", [32, 2], made.Q8_0, 0), made.info("b", [2], made.F32, 96)]
    yield made.file_of(infos, quantized.ljust(96, b"\0") + bytes(8), keys, version=2)
    yield made.file_of([], b"", [])
    for kind in made.BLOCK_TYPES:
        entry, data = made.some_blocks(kind, 1, 1)
        yield made.file_of([entry], data + b"the end")
