"""Target: PyTorch files, which are archives, or a pickle with storages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...formats import torch_support as made
from .support import joined, parted, read


def target(data: bytes) -> None:
    """Read an archive, or one of a pickle and two storages."""
    if data.startswith(b"PK"):
        read(data, "pytorch")
    else:
        pickle, first, second = parted(data, 3)
        read(made.archive_of(pickle, {"0": first, "1": second}), "pytorch")


def seeds() -> Iterable[bytes]:
    """Return tensors, ties, other values, and calls of an attacker."""
    items = np.arange(6, dtype=np.float32).tobytes()
    content = {
        "w": made.tensor(6, 0, (2, 3), (3, 1)),
        "tied": made.tensor(6, 3, (3,), (1,)),
        "b": made.tensor(6, 0, (), (), key="1"),
        "epoch": made.integer(7),
        "name": made.text("x"),
        "list": b"](" + made.integer(1) + b"N\x88e",
        "nested": b"}(" + made.text("k") + b"G?\xf8\0\0\0\0\0\0u",
    }
    pickle = made.mapping(content)
    yield joined(pickle, items, items)
    yield made.archive_of(pickle, {"0": items, "1": items})
    yield joined(made.mapping({"w": made.tensor(6, 0, (3, 2), (1, 3))}), items)
    yield joined(b"\x80\x02cos\nsystem\n(" + made.text("true") + b"tR.", b"")
    yield joined(b"\x80\x02ccollections\nOrderedDict\n)R(" + made.text("a") + made.integer(-1) + b"u.")
