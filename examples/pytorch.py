"""Compress a PyTorch module and load it again: ``python examples/pytorch.py``.

Trains a small network with 300 images of digits, and compares its accuracy for the other images before and after.
Requires torch.
"""

import sys
from pathlib import Path

import numpy as np

import nnr_codec as nnr

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"{error}; install it with: pip install torch")

with np.load(Path(__file__).parent / "digits" / "test.npz") as data:
    images, labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])


def new_network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(64, 256),
        torch.nn.BatchNorm1d(256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )


def accuracy(network: torch.nn.Module) -> float:
    return (network.eval()(images[300:]).argmax(1) == labels[300:]).float().mean().item()


torch.manual_seed(1)
network = new_network()
optimizer = torch.optim.Adam(network.parameters(), 1e-3)
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network(images[:300]), labels[:300]).backward()
    optimizer.step()

data = nnr.encode(network, quality=30)  # a module or a state_dict; about 30 dB of SNR over all matrices

restored = new_network()
restored.load_state_dict(nnr.decode(data, framework="pt"))

before = sum(value.nbytes for value in network.state_dict().values())
print(f"size:     {before:,} bytes as float32, {len(data):,} bytes as NNR ({len(data) / before:.1%})")
print(f"accuracy: {accuracy(network):.1%} before, {accuracy(restored):.1%} after")
