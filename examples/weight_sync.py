"""Train a language model while two inference processes follow every step: ``python examples/weight_sync.py``.

The learner trains a transformer of 3.3 million parameters on the documentation of this project, byte by byte, with
float32 master weights and Adam. After each step, it publishes the bfloat16 weights. One worker reads them from a folder,
the other one from a socket. Each worker returns a digest of its weights, which must be the digest of the learner.
"""

import argparse
import copy
import hashlib
import multiprocessing
import socket
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

try:
    import torch
    from torch import nn
except ModuleNotFoundError as error:
    sys.exit(f"this example requires the package {error.name}; install it with: pip install torch")

from nnr_codec.sync import Publisher, Subscriber

ROOT = Path(__file__).resolve().parents[1]
#: Bytes of text that the model sees at once.
CONTEXT = 128


class LanguageModel(nn.Module):
    """Transformer that predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 256)
        self.position = nn.Embedding(CONTEXT, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        inputs = self.embedding(tokens) + self.position.weight[:length]
        return self.head(self.layers(inputs, mask=mask, is_causal=True))


def train(master: LanguageModel, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    """Run one step with the rounded weights, which are the weights of the workers, and return the loss."""
    starts = torch.randint(len(text) - CONTEXT, (8,))
    batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
    rounded = {name: weight.bfloat16().float() for name, weight in master.named_parameters()}
    outputs = torch.func.functional_call(master, rounded, batch[:, :-1])
    loss = nn.functional.cross_entropy(outputs.transpose(1, 2), batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def continued(model: LanguageModel, prompt: str, length: int = 70) -> str:
    """Return a prompt with sampled bytes after it."""
    network, tokens = copy.deepcopy(model).float().eval(), list(prompt.encode())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(length):
            outputs = network(torch.tensor([tokens[-CONTEXT:]]))[0, -1]
            tokens.append(int(torch.multinomial((outputs / 0.7).softmax(0), 1, generator=generator)))
    return ascii(bytes(tokens).decode(errors="replace"))[1:-1]


def digest(model: nn.Module) -> str:
    """Return a digest of all weights, computed without nnr_codec."""
    state = hashlib.sha256()
    for name, weight in model.state_dict().items():
        state.update(name.encode() + weight.contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
