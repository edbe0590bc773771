"""Effect of the default step sizes on scales, adapters and checkpoints: ``python -m benchmarks.acceptance``.

Prints JSON lines. The exit status is 1 if the losses of training resumed from a decoded checkpoint deviate by more than
DEVIATION. Requires torch and the shared folder with the digits.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

import nnr_codec as nnr

from .compare import SHARED

SCALES = (1e6, 1.0, 0.1, 1e-2, 1e-3, 3e-4, 1e-5, 1e-9, 1e-12)
SEED, BATCH, STEPS, RESUMED = 15938, 50, 120, 50
#: The largest accepted relative deviation of a loss after resuming.
DEVIATION = 0.05


def decibels(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SNR of each tensor at the default step sizes, and the size in percent of the tensors."""
    data = nnr.encode(tensors)
    compared = nnr.compare_models(nnr.Model(dict(tensors)), nnr.decode(data)).tensors
    size = 100 * len(data) / sum(array.nbytes for array in tensors.values())
    return {"size": round(size, 2), "snr": {name: round(one.snr, 2) for name, one in compared.items()}}


def scales() -> dict[str, Any]:
    """Measure matrices of one model at very different scales."""
    rng = np.random.default_rng(SEED)
    return decibels({f"{scale:g}": (scale * rng.standard_normal((256, 256))).astype(np.float32) for scale in SCALES})


def adapter() -> dict[str, Any]:
    """Measure a pair of low rank at the beginning of its training."""
    rng = np.random.default_rng(SEED)
    a, b = rng.normal(0, 0.01, (16, 512)), rng.normal(0, 1e-4, (512, 16))
    return decibels({"lora_A": a.astype(np.float32), "lora_B": b.astype(np.float32)})


class Training:
    """Training of a small network for the digits with Adam; the number of a step determines its batch."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        with np.load(SHARED / "models" / "digits_test.npz") as content:
            self.x, self.y = torch.from_numpy(content["x"]), torch.from_numpy(content["y"])
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train(self, first: int, count: int) -> list[float]:
        """Train some steps, and return the loss of each step."""
        losses = []
        for step in range(first, first + count):
            some = np.random.default_rng((SEED, step)).integers(0, len(self.y), BATCH)
            loss = nn.functional.cross_entropy(self.model(self.x[some]), self.y[some])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def resumed(self, path: Path) -> list[float]:
        """Return the losses of training resumed from a checkpoint."""
        state = torch.load(path, weights_only=True)
        other = copy.deepcopy(self)
        other.model.load_state_dict(state["model"])
        other.optimizer = torch.optim.Adam(other.model.parameters(), lr=1e-3)
        other.optimizer.load_state_dict(state["optimizer"])
        return other.train(STEPS, RESUMED)


def checkpoint() -> dict[str, Any]:
    """Compare training resumed from a decoded checkpoint, with the state of Adam, with uninterrupted training."""
    training = Training()
    before = training.train(0, STEPS)
    with TemporaryDirectory() as folder:
        saved, stream, decoded = (Path(folder, name) for name in ("a.pt", "a.nnr", "b.pt"))
        torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, saved)
        nnr.encode_file(saved, stream)
        nnr.decode_file(stream, decoded)
        sizes = stream.stat().st_size, saved.stat().st_size
        same, after = training.resumed(saved), training.resumed(decoded)
        compared = nnr.compare_models(nnr.load(saved), nnr.load(decoded)).tensors
    whole = training.train(STEPS, RESUMED)
    assert same == whole, "training is not deterministic"
    deviations = [abs(one - other) / other for one, other in zip(after, whole, strict=True)]
    worst = min(compared, key=lambda name: compared[name].snr)
    return {
        "size": round(100 * sizes[0] / sizes[1], 2),
        "loss": [before[0], before[-1], whole[-1], after[-1]],
        "deviation": max(deviations),
        "worst tensor": [worst, round(compared[worst].snr, 2)],
        "finite": all(np.isfinite(after)),
    }


def main() -> int:
    """Print a line for each measurement; return the exit status."""
    torch.set_num_threads(1)
    print(json.dumps({"row": "scales", **scales()}), flush=True)
    print(json.dumps({"row": "adapter", **adapter()}), flush=True)
    found = checkpoint()
    print(json.dumps({"row": "checkpoint", **found}), flush=True)
    return 0 if found["deviation"] <= DEVIATION else 1


if __name__ == "__main__":
    sys.exit(main())
