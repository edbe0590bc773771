"""Checkpoints of a training with PyTorch: stores and lossless updates restore them so that training continues alike."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.store import Store

from ..formats.torch_support import loaded, pytorch, same, saved, written

pytestmark = [pytest.mark.torch, pytest.mark.medium]


@pytest.fixture(scope="module", name="torch")
def fixture_torch() -> Any:
    return pytorch()


class Training:
    """Training of a small network with AdamW, dropout and a schedule of the learning rate."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        torch.manual_seed(1)
        layers = torch.nn.Linear(6, 40), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 3)
        self.network = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), 1e-2, amsgrad=True)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.step = 0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.network(self.torch.randn(8, 6)).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1

    def checkpoint(self) -> dict[str, Any]:
        content = {
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
            "rng": self.torch.get_rng_state(),
            "best": float("inf"),
        }
        return copy.deepcopy(content)

    def resume(self, content: dict[str, Any]) -> None:
        self.network.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.scheduler.load_state_dict(content["scheduler"])
        self.step = content["step"]
        self.torch.set_rng_state(content["rng"])


def by_store(first: nnr.Model, second: nnr.Model, folder: Path) -> nnr.Model:
    store = Store(folder / "s", create=True)
    store.add(first, "run")
    assert store.add(second, "run").parts == 2
    return store.get("run")


def by_update(first: nnr.Model, second: nnr.Model, folder: Path) -> nnr.Model:
    return nnr.apply_update(first, nnr.encode_update(first, second, lossless=True))


@pytest.mark.parametrize("restored", [by_store, by_update])
def test_a_restored_training_continues_bit_for_bit(
    torch: Any, tmp_path: Path, restored: Callable[[nnr.Model, nnr.Model, Path], nnr.Model]
) -> None:
    training = Training(torch)
    training.advance(5)
    first = training.checkpoint()
    training.advance(5)
    second = training.checkpoint()
    training.advance(5)
    third = training.checkpoint()
    content = loaded(torch, written(restored(nnr.load(saved(torch, first)), nnr.load(saved(torch, second)), tmp_path)))
    assert same(torch, content, second)
    again = Training(torch)
    again.resume(content)
    again.advance(5)
    assert same(torch, again.checkpoint(), third)


def test_checkpoints_in_memory_are_models(torch: Any, tmp_path: Path) -> None:
    training = Training(torch)
    training.advance(1)
    first = training.checkpoint()
    training.advance(1)
    second = training.checkpoint()
    store = Store(tmp_path / "s", create=True)
    store.add(second, "run")
    assert same(torch, loaded(torch, written(store.get("run"))), second)
    model = nnr.apply_update(first, nnr.encode_update(first, second, lossless=True))
    assert isinstance(model, nnr.Model)
    assert same(torch, loaded(torch, written(model)), second)


def test_an_unsupported_value_has_a_hint(torch: Any) -> None:
    for value, hint in (
        (np.float64(1), r"after 'best'; save a number x of NumPy as x.item\(\)"),
        (Path("x"), r"save a path x as str\(x\)"),
        (torch.optim.SGD([torch.ones(1)]), r"save a module or an optimizer x as x.state_dict\(\)"),
    ):
        with pytest.raises(nnr.FormatError, match=hint):
            nnr.load(saved(torch, {"best": value}))


def test_a_distributed_checkpoint_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"")
    with pytest.raises(nnr.FormatError, match=r"torch.distributed.checkpoint; convert it: .* dcp_to_torch"):
        nnr.load(tmp_path)
