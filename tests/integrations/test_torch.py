"""Tests of sensitivities of PyTorch modules."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
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
    assert hessians["weight"] == pytest.approx(inputs.T @ inputs / len(inputs))
    assert hessians["weight"].dtype == np.float64
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


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0), "dilation": (2, 1)},
    {"kernel_size": (2, 4), "padding": "same"},
    {"kernel_size": 3, "padding": "valid"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
]


@pytest.mark.torch
@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_second_moments_predict_the_error_of_a_convolution(torch: Any, options: dict[str, Any]) -> None:
    layer = torch.nn.Conv2d(3, 4, bias=False, **options)
    x = torch.randn(6, 3, 8, 9)
    _, hessians = sensitivity(layer, [x[:4], x[4:]])
    error = torch.randn_like(layer.weight)
    before = layer(x).detach()
    with torch.no_grad():
        layer.weight += error
    moved = (layer(x) - before).detach().double()
    rows = error.reshape(4, -1).double().numpy()
    told = np.einsum("ij,jk,ik", rows, hessians["weight"], rows)
    assert told == pytest.approx(float((moved**2).sum()) / moved[:, 0].numel(), rel=1e-4)


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
    assert list(hessians) == ["4.weight"]  # a convolution of two groups is not a matrix
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [layer.training for layer in module] == [True, False, True, True, True]
    assert [value.requires_grad for value in module.parameters()] == [True] * 4 + [False, True]
    assert not any(layer._forward_pre_hooks for layer in module)
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
    assert hessians["embedding.weight"].shape == (4, 4)


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
