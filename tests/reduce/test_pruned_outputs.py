"""Pruned networks run in other software with smaller shapes, and have the outputs of the masked original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import EncoderConfig, Model, formats
from nnr_codec.encoder.reduce import prepare
from nnr_codec.model import Topology, Wiring

from .. import engines
from ..engines import Job, Result
from ..formats.test_nnef_channels import EXAMPLE, RULES, graph, support
from ..shared import SHARED, needs_shared

pytestmark = [pytest.mark.medium, pytest.mark.clients]

MODELS = (SHARED or Path()) / "models"
NETWORKS = [
    EXAMPLE,
    pytest.param(MODELS / "digits_cnn.nnef", marks=[needs_shared, pytest.mark.slow]),
    pytest.param(MODELS / "digits_cnn.nnef_tools.nnef", marks=[needs_shared, pytest.mark.slow]),
    pytest.param(MODELS / "digits_f32.tflite.nnef", marks=[needs_shared, pytest.mark.slow]),
    pytest.param(MODELS / "resnet20_cifar10.nnef", marks=[needs_shared, pytest.mark.slow]),
    pytest.param(MODELS / "resnet56_cifar10.nnef", marks=[needs_shared, pytest.mark.slow]),
    pytest.param(MODELS / "squeezenet1_0_deepcompression.nnef", marks=[needs_shared, pytest.mark.slow]),
]
#: Effect of float32 rounding on outputs, relative to the largest.
TOLERANCE = 2e-5


def pruned_and_masked(model: Model, step: str) -> tuple[Model, Model]:
    """Return a model without channels, and the model with zeros in their place in all affected tensors."""
    assert model.topology
    wiring = Wiring(channels=formats.channels(model.topology))
    prepared = prepare(model, EncoderConfig(reduce=step), wiring)
    assert prepared.pruning
    return prepared.restored, replace(model, tensors=prepared.pruning.widened(prepared.restored.tensors))


def parameters(model: Model) -> int:
    return sum(np.asarray(model[name]).size for name in model)


def run(engine: str, models: Sequence[Model], scratch: Path) -> list[Result]:
    jobs = []
    scratch.mkdir(exist_ok=True)
    for k, model in enumerate(models):
        nnr.save(model, scratch / f"{engine}{k}.nnef")
        jobs.append(Job(scratch / f"{engine}{k}.nnef", None, scratch / f"{engine}{k}.npz"))
    return engines.run(engine, jobs)


def assert_alike(one: Result, other: Result) -> None:
    assert (one.error, other.error) == ("", "")
    for before, after in zip(one.outputs, other.outputs, strict=True):
        assert np.abs(before.astype("f8") - after).max() <= TOLERANCE * max(np.abs(before).max(), 1e-30)


@pytest.mark.parametrize(
    "engine", ["tract", "nnef", pytest.param("nnef_tools", marks=[pytest.mark.slow, pytest.mark.torch])]
)
@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.name)
def test_networks(path: Path, engine: str, tmp_path: Path) -> None:
    engines.needs(engine)
    model = nnr.load(path)
    for scope in ("global", "local"):
        pruned, masked = pruned_and_masked(model, f"prune(ratio=0.3, scope={scope})")
        assert parameters(pruned) < 0.9 * parameters(model)
        whole, smaller = run(engine, [masked, pruned], tmp_path / scope)
        assert_alike(whole, smaller)


@pytest.mark.parametrize("engine", ["tract", pytest.param("nnef", marks=pytest.mark.slow)])
def test_operations(engine: str, tmp_path: Path) -> None:
    """Each rule with removable channels is tested if the engine can run the original graph."""
    engines.needs(engine)
    models = []
    for k, (body, expected) in enumerate(RULES.values()):
        if expected:
            text = graph(body, support(body))
            rng = np.random.default_rng(k)
            wiring = formats.wiring(Topology("nnef", text))
            tensors = {name: rng.uniform(0.1, 1, shape).astype("f4") for name, shape in wiring.shapes.items()}
            models.append(Model(tensors, Topology("nnef", text)))
    pairs = [pruned_and_masked(model, "prune(ratio=0.4, scope=local)") for model in models]
    plain = run(engine, models, tmp_path / "plain")
    pruned, masked = (run(engine, [pair[k] for pair in pairs], tmp_path / str(k)) for k in (0, 1))
    done = [k for k, result in enumerate(plain) if not result.error]
    for k in done:
        assert_alike(masked[k], pruned[k])
    assert len(done) >= {"tract": 25, "nnef": 25}[engine]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indexed_references": True},
        {"topology": "external"},
        {"block": True},
        {"fold_batchnorm": True},
        {"fold_batchnorm": True, "indexed_references": True},
        {"fold_batchnorm": True, "local_scaling": True, "topology": "external"},
    ],
    ids=" ".join,
)
def test_from_end_to_end(options: dict[str, Any], tmp_path: Path) -> None:
    """The model is coded with small step sizes, in all forms of bitstreams."""
    engines.needs("tract")
    model = nnr.load(EXAMPLE)
    _, masked = pruned_and_masked(model, "prune(ratio=0.3)")
    data = nnr.encode(EXAMPLE, reduce="prune(ratio=0.3)", qp=-72, **options)
    topology = EXAMPLE if "topology" in options else None
    assert not nnr.verify(data, topology=topology).violations
    decoded = nnr.decode(data, topology=topology)
    whole, smaller = run("tract", [masked, decoded], tmp_path)
    assert (whole.error, smaller.error) == ("", "")
    difference = whole.outputs[0].astype("f8") - smaller.outputs[0]
    assert np.abs(difference).max() <= 2e-3 * np.abs(whole.outputs[0]).max()
