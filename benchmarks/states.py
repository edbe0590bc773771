"""Consecutive checkpoints of a training with AdamW: ``python -m benchmarks.states``. Requires PyTorch and zstandard.

A transformer of three layers (669,056 parameters) predicts the bytes of this project's documentation. A checkpoint has
weights, moments, steps, learning rates and states of generators. Kinds: float32; and bfloat16 weights with float32
master weights, which continue from a float32 checkpoint, in float32 arithmetic with weights and gradients rounded to
bfloat16.

Prints JSON lines. For each kind and number of steps (1, 10, 100) between two checkpoints, the bytes of the second one:
as tensors, in `encode(exact=True)`, as lossless update, and as second version in a store. For each part, the bytes as
tensors, of zstd -19, of zstd -19 of the XOR with the first checkpoint, of the same in byte planes, and in
`encode(exact=True)` and the update.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.dtypes import bit_patterns
from nnr_codec.formats import as_model
from nnr_codec.model import Array
from nnr_codec.store import Store

DOCS = Path(__file__).parents[1] / "docs"
#: Step of the first checkpoint of each kind; bfloat16 continues from the one of float32.
FIRST, APART = {"float32": 300, "bfloat16": 310}, (1, 10, 100)
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 128, 4, 3, 64, 16
PARTS = {"model": "weights", "master": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def network() -> Any:
    """Return the transformer."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.position = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
            mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, x: Any) -> Any:
            y = self.embedding(x) + self.position.weight
            return self.head(self.norm(self.body(y, mask=self.mask, is_causal=True)))

    torch.manual_seed(0)
    return Net()


def checkpoints() -> dict[str, dict[int, nnr.Model]]:
    """Return checkpoints by kind and step."""
    import torch

    torch.set_num_threads(1)
    text = b"".join(path.read_bytes() for path in sorted(DOCS.rglob("*.md")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    first: dict[str, Any] = {}
    found: dict[str, dict[int, nnr.Model]] = {}
    for kind, step_of_first in FIRST.items():
        rounded = kind == "bfloat16"
        net, generator = network(), torch.Generator().manual_seed(1)
        weights = masters = list(net.parameters())
        if rounded:
            net.load_state_dict(first["model"])
            masters = [weight.detach().clone().requires_grad_() for weight in weights]
        optimizer = torch.optim.AdamW(masters, 1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
        if rounded:
            optimizer.load_state_dict(first["optimizer"])
            scheduler.load_state_dict(first["scheduler"])
            generator.set_state(first["generator"])
        for step in range(first.get("step", 0) + 1, step_of_first + max(APART) + 1):
            for weight, master in zip(weights, masters, strict=True):
                if rounded:
                    weight.data.copy_(master.detach().bfloat16())
            starts = torch.randint(len(data) - LENGTH - 1, (BATCH,), generator=generator)
            batch = torch.stack([data[start : start + LENGTH + 1] for start in starts])
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
            for weight, master in zip(weights, masters, strict=True):
                if rounded:
                    master.grad = weight.grad.bfloat16().float()
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            scheduler.step()
            if step - step_of_first not in (0, *APART):
                continue
            content: dict[str, Any] = {
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
                "rng": torch.get_rng_state(),
                "generator": generator.get_state(),
            }
            if rounded:
                names = content["model"]
                content["model"] = {name: one.detach().bfloat16() for name, one in zip(names, masters, strict=True)}
                content["master"] = [master.detach() for master in masters]
            content = copy.deepcopy(content)
            first = first or content
            found.setdefault(kind, {})[step] = as_model(content)
    return found


def planes(patterns: Array) -> bytes:
    """Return all lowest bytes of the patterns, then the next ones."""
    return np.ascontiguousarray(patterns.view(np.uint8).reshape(-1, patterns.itemsize).T).tobytes()


def sizes(first: nnr.Model, second: nnr.Model) -> Iterator[dict[str, Any]]:
    """Yield sizes in bytes of the second checkpoint, given the first one."""
    import zstandard

    zstd = zstandard.ZstdCompressor(level=19)
    update, whole = nnr.encode_update(first, second, lossless=True), nnr.encode(second, exact=True)
    assert nnr.identity(nnr.apply_update(first, update)) == nnr.identity(second)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, create=True)
        store.add(first, "run")
        stored = store.add(second, "run").stored_bytes
    total = sum(np.asarray(tensor).nbytes for tensor in second.tensors.values())
    yield {"part": "all", "tensors": total, "whole": len(whole), "update": len(update), "store": stored}
    with nnr.open(update) as updates, nnr.open(whole) as wholes:
        for part, label in PARTS.items():
            names = [name for name in second if part in (name.partition(".")[0], name.rpartition(".")[2])]
            if not names:
                continue
            old, new = ([bit_patterns(np.asarray(model[name])) for name in names] for model in (first, second))
            xors = [a ^ b for a, b in zip(old, new, strict=True)]
            yield {
                "part": label,
                "tensors": sum(one.nbytes for one in new),
                "zstd": len(zstd.compress(b"".join(one.tobytes() for one in new))),
                "xor_zstd": len(zstd.compress(b"".join(one.tobytes() for one in xors))),
                "xor_planes_zstd": len(zstd.compress(b"".join(map(planes, xors)))),
                "whole": sum(wholes.info[name].nbytes for name in names),
                "update": sum(updates.info[name].nbytes for name in names if name in updates.info),
            }


def main() -> None:
    """Run the benchmark."""
    for kind, models in checkpoints().items():
        for apart in APART:
            for row in sizes(models[FIRST[kind]], models[FIRST[kind] + apart]):
                print(json.dumps({"kind": kind, "apart": apart, **row}), flush=True)


if __name__ == "__main__":
    main()
