"""Networks that PyTorch exports to ONNX: their removable channels, and equal outputs of the edited graphs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

from .onnx_nets import check_removal

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnx")
nn: Any = torch.nn
F: Any = torch.nn.functional

pytestmark = pytest.mark.clients


def layer(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU6) -> Any:
    """Return convolution, normalization and activation."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class Inverted(nn.Module):  # type: ignore[misc]
    """Inverted residual, as in MobileNets."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        hidden = inputs * factor
        last = [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.parts = nn.Sequential(layer(inputs, hidden, 1), layer(hidden, hidden, 3, stride, hidden), *last)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        return x + self.parts(x) if self.is_residual else self.parts(x)


class Gated(nn.Module):  # type: ignore[misc]
    """Squeeze and excitation."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(count, count // 4), nn.ReLU(), nn.Linear(count // 4, count), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        return x * self.gate(x.mean((2, 3)))[:, :, None, None]


class UNet(nn.Module):  # type: ignore[misc]
    """Small U-Net with one connection across."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.m = layer(3, 8, act=nn.LeakyReLU), layer(8, 16), layer(16, 16)
        self.up, self.back = nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(16, 8, 2, 2)
        self.d, self.e, self.out = layer(16, 8), layer(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        m = self.up(self.m(F.avg_pool2d(b, 2))) + b
        return self.out(self.e(torch.cat([self.d(torch.cat([a, self.back(m)], 1)), a], 1)))


class Dense(nn.Module):  # type: ignore[misc]
    """Block of a DenseNet."""

    def __init__(self, inputs: int, growth: int, count: int) -> None:
        super().__init__()
        sizes = [inputs + k * growth for k in range(count)]
        self.parts = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, growth, 3, padding=1, bias=False)) for n in sizes
        )

    def forward(self, x: Any) -> Any:
        found = [x]
        for part in self.parts:
            found.append(part(torch.cat(found, 1)))
        return torch.cat(found, 1)


def head(inputs: int) -> list[Any]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, 5)]


class Encoder(nn.Module):  # type: ignore[misc]
    """Small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(3, 16, 8, 8), nn.Linear(16, 5)
        self.inner = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True, activation="gelu")

    def forward(self, x: Any) -> Any:
        return self.last(self.inner(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def networks() -> dict[str, tuple[Any, int]]:
    """Return networks with the number of their removable channels."""
    mobile = [layer(3, 8, 3, 2), Inverted(8, 8, 1, 1), Inverted(8, 12, 2, 4), Inverted(12, 12, 1, 4), layer(12, 64, 1)]
    gated = [layer(3, 16, act=nn.Hardswish), layer(16, 16, act=nn.SiLU), Gated(16), layer(16, 8)]
    dense = [nn.Conv2d(3, 8, 3, padding=1), Dense(8, 4, 3), layer(20, 10, 1), Dense(10, 4, 2), layer(18, 6)]
    plain = [layer(3, 8, act=nn.PReLU), nn.MaxPool2d(2), layer(8, 8), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(128, 32)]
    return {
        # Channels of sums, 8 and 12, are common; between them there are 8, 32 and 48.
        "mobile": (nn.Sequential(*mobile, *head(64)), 8 + 8 + 32 + 12 + 48 + 64),
        "gated": (nn.Sequential(*gated, *head(8)), 16 + 16 + 4 + 8),
        "unet": (UNet(), 8 + 16 + 8 + 8 + 8),
        "dense": (nn.Sequential(*dense, *head(6)), 8 + 3 * 4 + 10 + 2 * 4 + 6),
        "plain": (nn.Sequential(*plain, nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 5)), 8 + 8 + 32),
        "encoder": (Encoder(), 64),
    }


@pytest.mark.medium
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", networks())
def test_exported(name: str, is_dynamic: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network, count = networks()[name]
    for part in network.eval().modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.uniform_(-0.5, 0.5)
            part.running_var.uniform_(0.5, 1.5)
    x = torch.rand(1, 3, 32, 32)
    axes = {"x": {0: "n"}} if is_dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, x, tmp_path / "m.onnx", opset_version=17, input_names=["x"], dynamic_axes=axes, dynamo=False
        )
    given = np.concatenate([x.numpy()] * (2 if is_dynamic else 1))
    assert check_removal(nnr.load(tmp_path / "m.onnx"), tmp_path, given) == count
