"""Tests of sensitivities of PyTorch modules."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.integrations import torch as integration
from nnr_codec.integrations.torch import sensitivity


@pytest.fixture
def torch() -> Any:
    """Return PyTorch, seeded."""
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    found: Any = importlib.import_module("torch")
    found.manual_seed(0)
    return found


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(nnr.MissingDependencyError, match=r"nnr_codec\[torch\]"):
        sensitivity(None, [])


@pytest.mark.torch
def test_of_a_linear_layer(torch: Any) -> None:
    layer = torch.nn.Linear(5, 3)
    batches = torch.randn(400, 8, 5, dtype=torch.float32)
    found, hessians = sensitivity(layer, batches)
    inputs = batches.reshape(-1, 5).double().numpy()
    square = inputs.T @ inputs / len(inputs)
    rows, columns = hessians["weight"]
    assert rows is not None
    assert columns is not None
    assert columns.dtype == rows.dtype == np.float64
    assert columns == pytest.approx(8 * 3 * square, abs=0.1 * 24)  # 8 samples in a batch, 3 rows
    assert rows == pytest.approx(8 * np.trace(square) * np.eye(3), abs=0.1 * 40)
    # An error of the weight moves each output by it times the input; there are 8 in a batch.
    expected = np.broadcast_to(8 * (inputs**2).mean(axis=0), (3, 5))
    assert found["weight"].shape == (3, 5)
    assert found["weight"] == pytest.approx(expected, rel=0.35)
    assert found["weight"].mean() == pytest.approx(expected.mean(), rel=0.1)
    assert found["bias"] == pytest.approx(np.full(3, 8.0), rel=0.3)
    assert found["weight"].dtype == np.float32


@pytest.mark.torch
def test_a_loss_gives_the_fisher_matrix(torch: Any) -> None:
    layer = torch.nn.Linear(4, 2, bias=False)
    samples = [(torch.randn(1, 4), torch.randn(1, 2)) for _ in range(20)]
    found, _ = sensitivity(layer, samples, lambda outputs, batch: ((outputs - batch[1]) ** 2).sum())
    gradients = []
    for x, y in samples:
        error = 2 * (layer(x) - y).detach()
        gradients.append((error.T @ x).numpy() ** 2)
    assert found["weight"] == pytest.approx(np.mean(gradients, axis=0), rel=1e-4)


@pytest.mark.torch
def test_second_moments_predict_the_error_of_a_convolution(torch: Any) -> None:
    """Inputs of neighbouring positions are correlated, so errors of outputs add up."""
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 3, padding=1, bias=False), torch.nn.AvgPool2d(4))
    x = torch.nn.functional.avg_pool2d(torch.randn(6, 3, 20, 20), 5, 1)
    _, hessians = sensitivity(layer, [x] * 300)
    error = torch.randn_like(layer[0].weight)
    before = layer(x).detach()
    with torch.no_grad():
        layer[0].weight += error
    change = (layer(x) - before).detach()
    row = error.reshape(-1).double().numpy()
    assert row @ hessians["0.weight"][1] @ row == pytest.approx(float((change**2).sum()), rel=0.2)


@pytest.mark.torch
def test_long_dimensions_have_no_second_moments(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration, "LARGEST", 4)
    _, hessians = sensitivity(torch.nn.Linear(5, 4), [torch.randn(2, 5)])
    rows, columns = hessians["weight"]
    assert columns is None
    assert rows is not None
    assert rows.shape == (4, 4)


@pytest.mark.torch
def test_the_module_is_left_as_it_was(torch: Any) -> None:
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(16, 2)
    )
    module[1].eval()
    module[4].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found, hessians = sensitivity(module, [(torch.randn(5, 2, 4, 4), None)] * 2)
    assert list(found) == [name for name, _ in module.named_parameters()]
    assert list(hessians) == ["0.weight", "4.weight"]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [layer.training for layer in module] == [True, False, True, True, True]
    assert [value.requires_grad for value in module.parameters()] == [True] * 4 + [False, True]
    assert all(value.grad is None for value in module.parameters())


@pytest.mark.torch
def test_batches_by_keyword_and_tied_weights(torch: Any) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, *, ids: Any) -> Any:
            return self.head(self.embedding(ids))

    found, hessians = sensitivity(Tied(), [{"ids": torch.tensor([1, 2, 3])}])
    assert list(found) == list(hessians) == ["embedding.weight"]
    assert [np.shape(side) for side in hessians["embedding.weight"]] == [(10, 10), (4, 4)]


@pytest.mark.torch
def test_what_cannot_be_done(torch: Any) -> None:
    with pytest.raises(ValueError, match="no batches"):
        sensitivity(torch.nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="otherwise pass loss"):
        sensitivity(torch.nn.LSTM(2, 2), [torch.randn(3, 1, 2)])


@pytest.mark.medium
@pytest.mark.torch
def test_the_encoder_takes_it(torch: Any) -> None:
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 40))
    basis = torch.randn(6, 36)
    batches = [(torch.randn(16, 6) @ basis).reshape(16, 1, 6, 6) for _ in range(8)]
    found, hessians = sensitivity(module, batches[:6])
    tensors = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    x = torch.cat(batches[6:])
    exact = module(x).detach()

    def error(**known: Any) -> float:
        data = nnr.encode(tensors, target_size=9000, **known)
        module.load_state_dict({name: torch.tensor(array) for name, array in nnr.decode(data).tensors.items()})
        moved = float(((module(x).detach() - exact) ** 2).mean())
        module.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()})
        return moved

    assert error(sensitivity=found, hessians=hessians) < 0.5 * error()
