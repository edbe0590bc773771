"""Lossless sizes of GGUF files: MiniLM in ten quantization types, against zstd -19 and xz.

``python -m benchmarks.gguf_sizes MINILM/model.safetensors`` prints a line of JSON for each type. A line is printed only
if the bitstream restores the file byte for byte. The package gguf quantizes to Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0. It has
no quantizers for K types; here, each group gets the scale of its extremes, and levels are rounded to nearest. As in
llama.cpp, matrices whose rows K types cannot divide have the similar type of blocks of 32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

import nnr_codec as nnr
from nnr_codec.formats.gguf.blocks import BLOCK_TYPES, BlockType, join

NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
#: Types of matrices whose number of columns is not a multiple of 256.
SIMILAR = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
TYPES = {kind.name: kind for kind in BLOCK_TYPES.values()}

Array = npt.NDArray[Any]


def quantized(kind: BlockType, weights: Array) -> Array:
    """Return the bytes of a matrix in a type of blocks, a row for each of the matrix."""
    number = gguf.GGMLQuantizationType(kind.number)
    data: Array = join(kind, k_fields(kind, weights)) if kind.size == 256 else gguf.quants.quantize(weights, number)
    return data.reshape(len(weights), -1)


def k_fields(kind: BlockType, weights: Array) -> dict[str, Array]:
    """Return the fields of K types, rounded to nearest."""
    fields = {field.name: field for field in kind.fields}
    low, high = fields["levels"].range or (0, 0)
    least, most = fields["scales"].range or (-128, 127)
    groups = weights.reshape(-1, fields["scales"].count, kind.size // fields["scales"].count)
    mins = np.zeros(groups.shape[:2])
    if "mins" in fields:
        mins = np.maximum(-groups.min(-1), 0)
        scales = (groups.max(-1) + mins) / high
    else:
        largest = np.take_along_axis(groups, abs(groups).argmax(-1)[..., None], -1)[..., 0]
        scales = largest / low
    found = {}
    for name, factor, values in (("scales", "d", scales), ("mins", "dmin", mins)):
        if name in fields:
            extreme = np.take_along_axis(values, abs(values).argmax(1)[:, None], 1)
            found[factor] = (extreme / (least or most)).astype(np.float16)
            found[name] = rounded(values / found[factor].astype(np.float32), least, most)
    mins = found["dmin"] * found["mins"].astype(np.float32) if "mins" in found else mins
    steps = found["d"] * found["scales"].astype(np.float32)
    found["levels"] = rounded((groups + mins[..., None]) / steps[..., None], low, high).reshape(-1, kind.size)
    return found


def rounded(values: Array, low: int, high: int) -> Array:
    """Return integers in a range; NaN becomes 0."""
    return np.nan_to_num(np.rint(values)).clip(low, high).astype(np.int8)


def write(path: Path, model: nnr.Model, kind: BlockType) -> None:
    """Write a model with all matrices in a type."""
    writer = gguf.GGUFWriter(path, "bert")
    for name in model:
        array = np.asarray(model[name])
        own = kind if array.shape[-1] % kind.size == 0 else TYPES[SIMILAR[kind.name]]
        if array.ndim == 2 and array.dtype == np.float32:
            writer.add_tensor(name, quantized(own, array), raw_dtype=gguf.GGMLQuantizationType(own.number))
        else:
            writer.add_tensor(name, array)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


def compressed(path: Path, *command: str) -> int:
    """Return the size of the output of a program for a file."""
    return len(subprocess.run([*command, "-c", path], capture_output=True, check=True).stdout)


def main() -> None:
    """Print a line for each type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=nnr.load)
    parser.add_argument("--types", nargs="+", default=NAMES, choices=NAMES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        path, again = Path(folder, "m.gguf"), Path(folder, "again.gguf")
        for name in arguments.types:
            write(path, arguments.model, TYPES[name])
            start = time.process_time()
            data = nnr.encode(path, exact=True)
            middle = time.process_time()
            nnr.decode_file(data, again, overwrite=True)
            end = time.process_time()
            assert again.read_bytes() == path.read_bytes()
            sizes = {"file": path.stat().st_size, "zstd": compressed(path, "zstd", "-19")}
            sizes |= {"xz": compressed(path, "xz", "-9e"), "nnr": len(data)}
            seconds = {"encode_s": round(middle - start, 2), "decode_s": round(end - middle, 2)}
            print(json.dumps({"type": name, **sizes, **seconds}), flush=True)


if __name__ == "__main__":
    main()
