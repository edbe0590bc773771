"""Target: ONNX models with their external file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...formats import onnx_files as made
from .support import folder, joined, parted, read

W = np.linspace(-1, 1, 36, dtype=np.float32)


def target(data: bytes) -> None:
    """Read a model from memory, or with external data from a folder."""
    model, external = parted(data, 2)
    if external:
        with folder({"m.onnx": model, "data": external}) as path:
            read(path / "m.onnx", "onnx")
    else:
        read(model, "onnx")


def seeds() -> Iterable[bytes]:
    """Return networks with blocks, subgraphs, types, and external data."""
    conv = made.node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], strides=[1, 1], group=1)
    norm = made.node("BatchNormalization", ["c", "g", "o", "m", "v"], ["y"], epsilon=1e-3)
    vectors = [made.tensor(name, np.ones(4, np.float32)) for name in "bgomv"]
    yield made.model([conv, norm], [made.tensor("w", W.reshape(4, 1, 3, 3)), *vectors])
    types = [made.tensor(f"t{code}", np.arange(4).astype(name)) for name, code in made.CODES.items()]
    yield made.model([made.node("Identity", ["x"], ["y"])], types)
    inner = made.graph([made.constant("k", made.tensor("k", W[:4]))], [made.tensor("inner", W[:2])])
    bodies = {"then_branch": made.field(6, inner), "else_branch": made.field(6, inner)}
    yield made.model([made.node("If", ["x"], ["y"], **bodies)])
    gemm = made.node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=1.0)
    yield made.model([gemm, made.node("Relu", ["h"], ["y"])], [made.tensor("w", W.reshape(4, 9)), vectors[0]])
    outside = made.tensor("w", W.reshape(6, 6), made.entries("data", 0, W.nbytes))
    yield joined(made.model([made.node("MatMul", ["x", "w"], ["y"])], [outside]), W.tobytes())
