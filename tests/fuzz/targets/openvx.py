"""OpenVX folders, which are written only: of an NNEF graph and values for its variables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nnr_codec import formats
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.limits import Budget
from nnr_codec.model import Model, Topology

from .support import LIMITS, folder, harmless
from .topology import COMPOSITIONAL, FLAT

TYPES = {"scalar": np.float32, "integer": np.int8, "logical": np.uint8}


def target(data: bytes) -> None:
    """Write the folder of a network of zeros and ones."""
    with folder({}) as path, harmless():
        budget, tensors = Budget(LIMITS), {}
        for variable in parse_graph(data, LIMITS).variables:
            budget.tensor(variable.shape, 4, variable.label)
            tensors[variable.label] = np.ones(variable.shape, TYPES[variable.dtype])
        model = Model(tensors, Topology("nnef", data))
        formats.save(model, path / "m.openvx")
        for each in (path / "m.openvx").iterdir():
            if each.suffix in (".c", ".h"):
                assert each.read_bytes().isascii()


def seeds() -> Iterable[bytes]:
    """Graphs, one in what the extension can do."""
    yield FLAT
    yield COMPOSITIONAL
    yield FLAT.replace(b"stride = [1, 1, 2, 2]", b"stride = [1, 1, 1, 1]").replace(b"relu(n)", b"sigmoid(copy(n))")
