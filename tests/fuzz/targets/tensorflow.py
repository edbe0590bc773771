"""Target: checkpoints of TensorFlow, with corrected checksums, and SavedModels."""

from __future__ import annotations

from collections.abc import Iterable

from ...formats.test_tensorflow import HEADER, B, W, counted, message, shape, table
from .support import folder, joined, parted, read

PREFIX = "variables"


def target(data: bytes) -> None:
    """Read a checkpoint unchanged, one with a table of two entries, and both beside a graph."""
    index, items, graph = parted(data, 3)
    files = {f"{PREFIX}.index": index, f"{PREFIX}.data-00000-of-00001": items}
    with folder(files) as path:
        read(path / f"{PREFIX}.index", "tensorflow")
        (path / f"{PREFIX}.index").write_bytes(table({**HEADER, W.encode(): index, B.encode(): graph}))
        read(path / f"{PREFIX}.index", "tensorflow")
    if graph:
        inner = {f"variables/{name}": content for name, content in files.items()}
        with folder({"saved_model.pb": graph, **inner}) as path:
            read(path, "tensorflow")


def seeds() -> Iterable[bytes]:
    """Return checkpoints, entries of them, and a graph."""
    items = bytes(range(24))
    entry = message(f1=1, f2=shape(2, 3), f5=24) + counted(items)
    whole = table({**HEADER, W.encode(): entry})
    yield joined(whole, items)
    yield joined(entry, items, message(f1=3, f2=shape(4), f4=8, f5=16))
    yield joined(whole, items, message(f1=1, f2=[message(f1=b"m")]))
