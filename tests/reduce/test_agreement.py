"""ResNet-20 before and after each tool of parameter reduction, in onnxruntime, at one moderate amount each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.performance import DecompositionMap, PruningMap, UnificationMap
from nnr_codec.compare import compare_models
from nnr_codec.syntax.structures import NnrTopologyUnitPayload

from ..formats.test_onnx_models import outputs
from ..shared import SHARED, needs_shared
from ..test_agreement import pictures

pytestmark = [pytest.mark.slow, pytest.mark.clients, needs_shared]

MODEL = (SHARED or Path()) / "models" / "resnet20_cifar10.onnx"
SPARSE = {"sparsification": nnr.SparsificationMap()}
#: Steps, the maps in the bitstream, and the least mean cosine and share of equal decisions.
CASES: list[tuple[str, dict[str, Any], float, float]] = [
    ("sparsify(ratio=0.1)", SPARSE, 0.999, 0.93),
    ("sparsify(ratio=0.1, method=magnitude)", SPARSE, 0.999, 0.93),
    ("sparsify(ratio=0.1, method=compressibility)", SPARSE, 0.975, 0.85),
    ("sparsify(ratio=0.05, method=rows)", SPARSE, 0.93, 0.75),
    ("sparsify(ratio=0.05, method=micro, mask=true)", SPARSE, 0.9995, 0.95),
    ("unify(ratio=0.1)", {"unification": UnificationMap()}, 0.9985, 0.92),
    ("prune(ratio=0.02)", {"pruning": PruningMap()}, 0.9995, 0.95),
    ("prune(ratio=0.02, sparsity=0.05)", SPARSE | {"pruning": PruningMap()}, 0.999, 0.95),
    ("lowrank(error=0.1)", {"decomposition": DecompositionMap()}, 0.998, 0.94),
    ("lowrank(error=0.1, form=units)", {"decomposition": DecompositionMap()}, 0.998, 0.94),
    ("lowrank(error=0.1, displacement=true)", {"decomposition": DecompositionMap()}, 0.998, 0.94),
    ("fold", {}, 0.9995, 0.96),
    ("fold, scale", {}, 0.9995, 0.96),
    ("fold, scale(method=gain)", {}, 0.9995, 0.95),
    (
        "prune(ratio=0.02), unify(ratio=0.05), fold, scale",
        {"pruning": PruningMap(), "unification": UnificationMap()},
        0.9995,
        0.96,
    ),
]


@pytest.fixture(scope="module")
def before() -> Any:
    """Return the outputs of the unchanged network."""
    return outputs(MODEL, pictures((1, 3, 32, 32)))


@pytest.mark.parametrize(("steps", "maps", "cosine", "same"), CASES, ids=[case[0] for case in CASES])
def test_resnet(
    steps: str,
    maps: dict[str, Any],
    cosine: float,
    same: float,
    before: Any,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    data = nnr.encode(MODEL, reduce=steps, quality=40)
    assert not nnr.verify(data).violations
    assert nnr.open(data).performance.maps == nnr.PerformanceMaps(**maps)
    decoded, reduced = nnr.decode(data), nnr.reduce(MODEL, steps).model
    assert sorted(decoded.pruned) == sorted(reduced.pruned)
    assert new_shapes(data) == {name: np.asarray(reduced[name]).shape for name in reduced.pruned}
    assert list(decoded) == list(reduced)
    assert compare_models(reduced, decoded).snr > 38

    nnr.save(decoded, tmp_path / "model.onnx")
    after = outputs(tmp_path / "model.onnx", pictures((1, 3, 32, 32)))
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    found = float(np.mean((before * after).sum(axis=1) / norms))
    top_1 = float(np.mean(before.argmax(axis=1) == after.argmax(axis=1)))
    record_property(
        f"figure: ResNet-20, quality 40, {steps}",
        f"{len(data):,} bytes, mean cosine {found:.5f}, same decision {100 * top_1:.1f} %",
    )
    assert found >= cosine
    assert top_1 >= same


def new_shapes(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of smaller tensors in NNR_TPL_PRUN."""
    found: dict[str, tuple[int, ...]] = {}
    for unit in nnr.units(data):
        if (
            isinstance(unit.payload, NnrTopologyUnitPayload)
            and "pruning" in unit.payload
            and unit.payload.pruning.prune_flag
        ):
            found |= dict(zip(unit.payload.pruning.element_id, map(tuple, unit.payload.pruning.dim), strict=True))
    return found
