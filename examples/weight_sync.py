"""Train a language model while two inference processes follow every step: ``python examples/weight_sync.py``.

The learner trains a transformer of 3.3 million parameters on the documentation of this project, byte by byte, with
float32 master weights and Adam. After each step, it publishes the bfloat16 weights: one worker follows in a folder, the
other one over a socket. The learning rate falls from 1e-3, as in pretraining, to 1e-6, as in reinforcement learning.
Each worker returns a digest of its weights, which must be the digest of the learner.
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


def follow(source: str | int, versions: int, learner: Connection) -> None:
    """Follow a folder, or a publisher at this port. Return the version, time and digest after each step."""
    torch.set_num_threads(1)
    model = LanguageModel().bfloat16()
    if isinstance(source, int):
        subscriber = Subscriber(socket.create_connection(("127.0.0.1", source)).makefile("rb"))
    else:
        subscriber = Subscriber(source)
    while subscriber.version < versions:
        if subscriber.poll() is None:
            time.sleep(0.005)
            continue
        subscriber.load_into(model)
        learner.send((subscriber.version, time.time(), digest(model)))
    learner.send(continued(model, "The encoder "))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a language model while two inference processes follow.")
    parser.add_argument("--steps", type=int, default=24, help="published steps, after twice as many without workers")
    steps = parser.parse_args().steps
    torch.manual_seed(1)
    torch.set_num_threads(1)
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    master, policy = LanguageModel(), LanguageModel().bfloat16()
    optimizer = torch.optim.Adam(master.parameters(), lr=2e-3)
    for _ in range(2 * steps):
        train(master, optimizer, text)
    model_bytes = sum(2 * weight.numel() for weight in policy.parameters())
    print(f"model: {model_bytes:,} bytes in bfloat16")

    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        workers = []
        for source in (folder, server.getsockname()[1]):
            connection, remote = processes.Pipe()
            processes.Process(target=follow, args=(source, steps, remote), daemon=True).start()
            remote.close()  # if the worker fails, recv raises EOFError
            workers.append(connection)
        stream = server.accept()[0].makefile("wb")
        publishers = Publisher(folder), Publisher(stream)
        print("                                          ms to publish    ms until the worker has it")
        print("step  loss  rate       bytes    ratio    folder  socket     folder  socket")
        for step in range(1, steps + 1):
            rate = 1e-3 ** (1 + (step - 1) / max(1, steps - 1))
            optimizer.param_groups[0]["lr"] = rate
            loss = train(master, optimizer, text)
            policy.load_state_dict(master.state_dict())
            expected, times = digest(policy), []
            for publisher, worker in zip(publishers, workers, strict=True):
                start = time.time()
                publication = publisher.publish(policy)
                published = time.time()
                version, loaded, found = worker.recv()
                if (version, found) != (step, expected):
                    sys.exit(f"the worker has version {version}, which differs from step {step}")
                times.append((1000 * (published - start), 1000 * (loaded - start)))
            columns = "  ".join(
                f"{folder_time:6.0f}  {socket_time:6.0f}" for folder_time, socket_time in zip(*times, strict=True)
            )
            print(
                f"{step:4}  {loss:.2f}  {rate:.0e}  {publication.nbytes:9,}  {publication.nbytes / model_bytes:6.1%}  ",
                columns,
            )
        print(f"all {steps} versions are equal in the learner and both workers")
        for worker in workers:
            print("text: ", worker.recv())


if __name__ == "__main__":
    main()
