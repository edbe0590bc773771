"""Writer of a sharded safetensors checkpoint of seeded numbers: ``python -m benchmarks.checkpoint FOLDER``.

``--gigabytes`` sets the size (default 1). The checkpoint has the layers of a transformer, in float32 or bfloat16, about
50 MB each as float32. It is written tensor by tensor in the layout of the transformers library, so that codecs can be
tested with checkpoints larger than memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

INDEX = "model.safetensors.index.json"
#: Tensors of a layer, in the order in which they lie in a file.
LAYER = {
    "input_layernorm.weight": (1024,),
    "mlp.down_proj.weight": (1024, 4096),
    "mlp.up_proj.weight": (4096, 1024),
    "self_attn.k_proj.weight": (1024, 1024),
    "self_attn.o_proj.weight": (1024, 1024),
    "self_attn.q_proj.weight": (1024, 1024),
    "self_attn.v_proj.weight": (1024, 1024),
}
#: Bytes of an item by the name of its type.
TYPES = {"F32": 4, "BF16": 2}


def tensors(first: int, end: int) -> list[tuple[str, tuple[int, ...], tuple[int, int]]]:
    """Return name, shape and seed of each tensor of some layers, sorted by name."""
    found = [
        (f"model.layers.{layer}.{name}", shape, (layer, place))
        for layer in range(first, end)
        for place, (name, shape) in enumerate(LAYER.items())
    ]
    return sorted(found)


def items(shape: tuple[int, ...], seed: tuple[int, int], code: str) -> npt.NDArray[np.generic]:
    """Return little-endian items of a tensor: weights, or scales near 1."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(0.02)
    if len(shape) == 1:
        values += np.float32(1)
    return values.astype("<f4") if code == "F32" else (values.view("<u4") >> 16).astype("<u2")


def write(folder: Path, nbytes: int, *, shards: int = 4, code: str = "F32") -> int:
    """Write a checkpoint of approximately this size into a new folder; return the bytes of its tensors."""
    layers = max(round(nbytes / (sum(map(prod, LAYER.values())) * TYPES[code])), shards)
    folder.mkdir()
    places, total = {}, 0
    for shard in range(shards):
        own = tensors(layers * shard // shards, layers * (shard + 1) // shards)
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        with (folder / name).open("xb") as file:
            file.write(header(own, code))
            for tensor, shape, seed in own:
                total += file.write(items(shape, seed, code).tobytes())
                places[tensor] = name
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return total


def header(own: list[tuple[str, tuple[int, ...], tuple[int, int]]], code: str) -> bytes:
    """Return the bytes of a shard before the items."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    fields |= dict(entries(own, code))
    data = json.dumps(fields, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def entries(own: list[tuple[str, tuple[int, ...], tuple[int, int]]], code: str) -> Iterator[tuple[str, object]]:
    """Return the header entry of each tensor."""
    at = 0
    for name, shape, _ in own:
        end = at + prod(shape) * TYPES[code]
        yield name, {"dtype": code, "shape": list(shape), "data_offsets": [at, end]}
        at = end


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description="Write a checkpoint of seeded random numbers in shards.")
    parser.add_argument("folder", type=Path, help="the folder to create")
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="GB")
    parser.add_argument("--shards", type=int, default=4, metavar="N")
    parser.add_argument("--dtype", choices=TYPES, default="F32")
    arguments = parser.parse_args()
    total = write(arguments.folder, round(arguments.gigabytes * 1e9), shards=arguments.shards, code=arguments.dtype)
    print(f"{arguments.folder / INDEX}: {total:,} bytes of tensors")


if __name__ == "__main__":
    main()
