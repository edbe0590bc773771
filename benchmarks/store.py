"""Ten checkpoints of a fine-tuning in a store: ``python -m benchmarks.store``. Requires PyTorch, Pillow and zstandard.

ResNet-20 is fine-tuned with Adam on images of CIFAR-10, and every 8 steps of 32 images give a checkpoint. Kinds of
runs: "all" trains the whole network; "last stage" trains the last of three stages and the linear layer, in evaluation
mode. The checkpoints are float32, and copies rounded to bfloat16.

Prints JSON lines with the bytes of all ten files as safetensors, of zstd -19 of each, of zstd -19 of the first and of
the XOR of each other one with its predecessor, and of the store; and the time of each `add` and `get`. All sizes are
totals of ten checkpoints.

``--many`` instead stores a model of 1,600 tensors of 64 x 64 values, and a second version with 100 other tensors.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import nnr_codec as nnr
from nnr_codec.store import Store

SHARED = Path(os.environ.get("NNR_SHARED") or Path(__file__).parents[2] / "shared")
CHECKPOINTS, STEPS, BATCH = 10, 8, 32
RATES = {"all": 1e-4, "last stage": 1e-4}

Tensors = dict[str, npt.NDArray[Any]]


def images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the training images, normalized, and their classes."""
    from PIL import Image

    data = np.load(SHARED / "eval/cifar10_train20k.npz")
    jpeg, offsets, rng = data["jpeg"], data["offsets"], np.random.default_rng(0)
    chosen = rng.permutation(len(data["labels"]))[: CHECKPOINTS * STEPS * BATCH]
    pixels = [np.asarray(Image.open(io.BytesIO(jpeg[offsets[k] : offsets[k + 1]].tobytes()))) for k in chosen]
    scaled = (np.stack(pixels) / np.float32(255) - np.float32([0.485, 0.456, 0.406])) / np.float32(
        [0.229, 0.224, 0.225]
    )
    return scaled.transpose(0, 3, 1, 2).astype(np.float32), data["labels"][chosen].astype(np.int64)


def network() -> Any:
    """Return ResNet-20 for CIFAR-10 with the names of the trained weights."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.stride, self.more = outer // inner, (outer - inner) // 2
            self.conv1 = nn.Conv2d(inner, outer, 3, self.stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outer)
            self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outer)

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
            short = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
            return functional.relu(y + short)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(16)
            self.layer1 = nn.Sequential(*(Block(16, 16) for _ in range(3)))
            self.layer2 = nn.Sequential(Block(16, 32), Block(32, 32), Block(32, 32))
            self.layer3 = nn.Sequential(Block(32, 64), Block(64, 64), Block(64, 64))
            self.linear = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = self.layer3(self.layer2(self.layer1(functional.relu(self.bn1(self.conv1(x))))))
            return self.linear(x.mean((2, 3)))

    net = Net()
    net.load_state_dict(torch.load(SHARED / "models/resnet20_cifar10.pt"))
    return net


def checkpoints(kind: str) -> list[Tensors]:
    """Return the tensors after each part of a fine-tuning."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = (torch.from_numpy(array) for array in images())
    net = network()
    net.train(kind == "all")
    if kind != "all":
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith(("layer3", "linear")))
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], RATES[kind])
    found = []
    for step in range(1, CHECKPOINTS * STEPS + 1):
        chosen = torch.arange(step * BATCH, (step + 1) * BATCH) % len(x)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimizer.step()
        if step % STEPS == 0:
            found.append({name: tensor.numpy().copy() for name, tensor in net.state_dict().items()})
    return found


def rounded(tensors: Tensors) -> Tensors:
    """Return a copy with bfloat16 instead of float32."""
    return {
        name: array.astype(ml_dtypes.bfloat16) if array.dtype == np.float32 else array
        for name, array in tensors.items()
    }


def measured(models: list[Tensors]) -> dict[str, Any]:
    """Return sizes in bytes and times in seconds."""
    import zstandard

    zstd = zstandard.ZstdCompressor(level=19)
    files: list[bytes] = []
    for model in models:
        stream = io.BytesIO()
        nnr.save(model, stream, format="safetensors")
        files.append(stream.getvalue())
    arrays = [np.frombuffer(file, np.uint8) for file in files]
    xors = [(one ^ other).tobytes() for one, other in zip(arrays[1:], arrays, strict=False)]
    row: dict[str, Any] = {
        "safetensors": sum(map(len, files)),
        "zstd": sum(len(zstd.compress(file)) for file in files),
        "xor_zstd": sum(len(zstd.compress(file)) for file in [files[0], *xors]),
    }
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, create=True)
        adds, gets = [], []
        for model in models:
            began = time.process_time()
            store.add(model, "net")
            adds.append(time.process_time() - began)
        row["store"] = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        row["manifests"] = sum(path.stat().st_size for path in Path(folder).rglob("models/*/*.json.gz"))
        row["versions"] = [version.stored_bytes for version in store.versions()]
        for number, model in enumerate(models, 1):
            began = time.process_time()
            found = store.get(f"net@{number}")
            gets.append(time.process_time() - began)
            assert nnr.identity(found) == nnr.identity(model)
    return row | {"add_s": [round(s, 3) for s in adds], "get_s": [round(s, 3) for s in gets]}


def many() -> dict[str, Any]:
    """Return sizes and times of a model with many tensors."""
    rng = np.random.default_rng(0)
    names = [f"model.layers.{k // 16}.part{k % 16}.weight" for k in range(1600)]
    model = {name: rng.standard_normal((64, 64), "f4") for name in names}
    changed = model | {name: model[name] + np.float32(1e-3) for name in names[::16]}
    return measured([model, changed])


def rows(of_many: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of run and type."""
    if of_many:
        yield {"kind": "many", **many()}
        return
    for kind in RATES:
        models = checkpoints(kind)
        yield {"kind": kind, "dtype": "float32", **measured(models)}
        yield {"kind": kind, "dtype": "bfloat16", **measured([rounded(model) for model in models])}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", action="store_true")
    for row in rows(parser.parse_args().many):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
