"""Two PyTorch networks for scikit-learn's digits, the network of examples/digits and a perceptron, and their training.

The held-out images are divided into images for choices and images for the reported figures. Each image occurs twenty
times: unchanged and moved by one pixel in each direction, each with and without noise, because accuracies on a few
hundred images vary by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from torch import nn

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
#: A function to call after each step of the optimizer, and a function whose result is added to the loss.
After = Callable[[nn.Module], None]
Extra = Callable[[nn.Module], torch.Tensor]

SEED, BATCH = 15938, 32
WIDTHS = (64, 512, 512, 10)
EPSILON = 1e-5
#: Standard deviation of the noise, and the number of noisy copies of an image.
NOISE, NOISY = 0.1, 3


@dataclass(frozen=True)
class Images:
    """Images with values 0..1, shape (n, 1, 8, 8), and their digits."""

    x: torch.Tensor
    y: torch.Tensor


@cache
def images() -> tuple[Images, Images, Images]:
    """Return images for training, for choices, and for figures."""
    data = load_digits()
    x, y = (data.images / 16).astype(np.float32)[:, None], data.target.astype(np.int64)
    held_out = np.zeros(len(y), bool)
    for digit in range(10):
        held_out[np.flatnonzero(y == digit)[3::4]] = True
    moved = np.concatenate([np.roll(x, shift, (2, 3)) for shift in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))])
    fifths, digits = np.tile(held_out, 5), np.tile(y, 5)
    choice = np.tile(np.cumsum(held_out) % 2 == 0, 5)
    rng = np.random.default_rng(SEED)

    def part(mask: npt.NDArray[np.bool_], noisy: int = 0) -> Images:
        some = moved[mask]
        noise = [rng.normal(0, NOISE, some.shape).astype(np.float32) for _ in range(noisy)]
        x = np.concatenate([some, *(some + one for one in noise)])
        return Images(torch.from_numpy(x), torch.from_numpy(np.tile(digits[mask], 1 + noisy)))

    return part(~fifths), part(fifths & choice, NOISY), part(fifths & ~choice, NOISY)


def convolutional() -> nn.Module:
    """Return a network of two normalized convolutions and two linear layers, with 57,242 parameters."""
    return nn.Sequential(
        *_block(1, 16),
        nn.MaxPool2d(2),
        *_block(16, 48),
        nn.Flatten(),
        nn.Linear(768, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def _block(inputs: int, outputs: int) -> Iterable[nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs, eps=EPSILON), nn.ReLU()


def perceptron() -> nn.Module:
    """Return linear layers of 64, 512, 512 and 10 numbers: 301,066 parameters."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@cache
def trained(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a network trained in one thread, the same one each time."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    return train(make(), 20, 2e-3)


def train(
    module: nn.Module, epochs: int, rate: float, after: After | None = None, extra: Extra | None = None
) -> nn.Module:
    """Train a module with Adam on noisy images, with a learning rate that falls to 0, and return it.

    ``after`` is called after each step; ``extra`` is a term of the loss.
    """
    training = images()[0]
    generator = torch.Generator().manual_seed(SEED)
    steps = epochs * (len(training.y) // BATCH)
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    module.train()
    for _ in range(epochs):
        order = torch.randperm(len(training.y), generator=generator)
        for rows in order[: len(order) // BATCH * BATCH].view(-1, BATCH):
            x = training.x[rows]
            x = x + NOISE * torch.randn(x.shape, generator=generator)
            loss = nn.functional.cross_entropy(module(x), training.y[rows])
            if extra:
                loss = loss + extra(module)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if after:
                after(module)
    return module.eval()


def accuracy(module: nn.Module, part: Images) -> float:
    """Return the share of images that a module classifies correctly, 0..1."""
    with torch.no_grad():
        return float((module.eval()(part.x).argmax(1) == part.y).double().mean())
