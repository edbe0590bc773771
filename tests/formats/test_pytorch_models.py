"""Real models in PyTorch: through files and bitstreams, and run before and after."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats.pytorch import from_module, load_state

from ..shared import SHARED, needs_shared
from ..test_agreement import pictures
from .torch_support import pytorch as torch_or_skip
from .torch_support import same

pytestmark = [pytest.mark.medium, pytest.mark.torch, needs_shared]

MODELS = (SHARED or Path()) / "models"
NAMES = ["digits_cnn", "digits_cnn_named", "resnet20_cifar10", pytest.param("resnet56_cifar10", marks=pytest.mark.slow)]


def digits(torch: Any, *, named: bool) -> Any:
    """Return the network of digits, whose layers have numbers or names."""
    nn = torch.nn
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    layers = [*first, *second, nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    if not named:
        return nn.Sequential(*layers)
    first_names, second_names = ([f"{kind}{k}" for kind in ("conv", "bn", "relu", "pool")] for k in (1, 2))
    names = [*first_names, *second_names, "flatten", "fc1", "relu3", "fc2"]
    return nn.Sequential(OrderedDict(zip(names, layers, strict=True)))


def resnet(torch: Any, depth: int) -> Any:
    """Return a ResNet for CIFAR-10, whose shortcuts have no parameters."""
    nn, functional = torch.nn, torch.nn.functional

    class Basic(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.step, self.added = 1 + (inputs != outputs), (outputs - inputs) // 2
            self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, self.step, 1, bias=False), nn.BatchNorm2d(outputs)
            self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
            if self.step > 1:
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added, self.added))
            return functional.relu(x + y)

    class ResNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
            for number, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
                more = [Basic(outputs, outputs) for _ in range((depth - 2) // 6 - 1)]
                setattr(self, f"layer{number}", nn.Sequential(Basic(inputs, outputs), *more))
            self.linear = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = functional.relu(self.bn1(self.conv1(x)))
            x = self.layer3(self.layer2(self.layer1(x)))
            return self.linear(functional.avg_pool2d(x, x.shape[-1]).flatten(1))

    return ResNet()


@dataclass
class Case:
    """Trained model: its file, the network with its parameters, and inputs."""

    torch: Any
    path: Path
    network: Any
    images: Any

    def scores(self, state: Any) -> Any:
        """Return the outputs for all images with this state."""
        network = copy.deepcopy(self.network)
        network.load_state_dict(state)
        return self.outputs(network)

    def outputs(self, network: Any) -> Any:
        with self.torch.no_grad():
            return network.eval()(self.images).numpy()

    def read(self, path: Path) -> Any:
        return self.torch.load(path, weights_only=True)


@pytest.fixture(name="case", params=NAMES)
def fixture_case(request: pytest.FixtureRequest) -> Case:
    name, torch = request.param, torch_or_skip()
    network = resnet(torch, int(name[6:8])) if "resnet" in name else digits(torch, named="named" in name)
    path = MODELS / f"{name}.pt"
    network.load_state_dict(torch.load(path, weights_only=True))
    shape = (1, 3, 32, 32) if "resnet" in name else (1, 1, 8, 8)
    return Case(torch, path, network.eval(), torch.from_numpy(pictures(shape)))


def decided(one: Any, other: Any) -> float:
    """Return the share of equal decisions in percent."""
    return 100 * float(np.mean(one.argmax(axis=1) == other.argmax(axis=1)))


def snr(one: Any, other: Any) -> float:
    error = np.square(one - other, dtype=np.float64).sum()
    return 10 * float(np.log10(np.square(one, dtype=np.float64).sum() / error))


def test_the_networks_are_right(case: Case) -> None:
    """They compute the recorded outputs of the models."""
    name = case.path.stem.removesuffix("_named")
    with np.load(MODELS / f"{name}.io.npz") as recorded:
        case.images = case.torch.from_numpy(recorded["x"])
        found = case.outputs(case.network)
        if "digits" in name:
            found = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found, recorded["y"], rtol=1e-3, atol=1e-4)


def test_lossless(case: Case, tmp_path: Path) -> None:
    """Type, order and bits of the whole content are equal; the network computes the same bits."""
    nnr.encode_file(case.path, tmp_path / "x.nnr", exact=True)
    nnr.decode_file(tmp_path / "x.nnr", tmp_path / "x.pt")
    restored = case.read(tmp_path / "x.pt")
    assert same(case.torch, case.read(case.path), restored)
    assert np.array_equal(case.scores(restored), case.outputs(case.network))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"fold_batchnorm": True}, {"fold_batchnorm": True, "local_scaling": True}], ids=str
)
def test_agreement(
    case: Case, options: dict[str, Any], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model = from_module(case.network) if options else nnr.load(case.path)
    report = nnr.encode_file(model, tmp_path / "x.nnr", **options)
    decoded = nnr.decode(tmp_path / "x.nnr")
    network = copy.deepcopy(case.network)
    load_state(network, decoded)
    nnr.save(decoded, tmp_path / "x.pt")
    expected, found = case.outputs(case.network), case.outputs(network)
    assert np.array_equal(case.scores(case.read(tmp_path / "x.pt")), found)
    top_1, ratio = decided(expected, found), snr(expected, found)
    what = "".join(f", {name}" for name in options)
    text = f"{100 * report.ratio:.1f} % of the bytes, {top_1:.1f} % same decisions, {ratio:.1f} dB"
    record_property(f"figure: {case.path.name} in PyTorch{what}", text)
    assert top_1 >= 97.5
    assert ratio > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"fold_batchnorm": True}, {"fold_batchnorm": True, "local_scaling": True}], ids=str
)
def test_folding_is_exact_but_for_rounding(case: Case, options: dict[str, Any]) -> None:
    network = copy.deepcopy(case.network)
    load_state(network, nnr.decode(nnr.encode(from_module(case.network), qp=-72, **options)))
    expected = case.outputs(case.network)
    assert np.abs(case.outputs(network) - expected).max() < 1e-4 * np.abs(expected).max()


def test_every_normalization_is_joined(case: Case) -> None:
    from nnr_codec import formats

    topology = from_module(case.network).topology
    assert topology
    norms = [layer for layer in case.network.modules() if isinstance(layer, case.torch.nn.BatchNorm2d)]
    assert sum(block.gamma is not None for block in formats.wiring(topology).blocks) == len(norms)
