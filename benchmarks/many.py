"""CPU time to encode and decode a model of many tiny tensors: ``python -m benchmarks.many [--tensors 60000]``.

The same tensors are encoded from a dict and from a file of each format, and with other options. Each time is also given
relative to ``numpy.savez`` of the same tensors, measured just before, because seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr

Tensors = dict[str, npt.NDArray[Any]]

HEAD = "| source or option | encode, s | by savez | decode, s | by savez | bytes |\n|---|---:|---:|---:|---:|---:|"
SHAPES = ((4,), (8,), (4, 4), (3, 3), (1,))
RULES = (nnr.Rule("*.steps", exact=True), nnr.Rule("layers.1*", qp=-20), nnr.Rule("*7.w", snr=50))
#: Options besides the defaults, for the tensors in a dict.
OPTIONS: dict[str, dict[str, Any]] = {
    "exact=True": {"exact": True},
    "quality=40": {"quality": 40},
    "three rules": {"rules": RULES},
    "jobs=2": {"jobs": 2},
}


def tensors(count: int) -> Tensors:
    """Return seeded float32 tensors of five shapes; each tenth tensor is int32."""
    rng, found = np.random.default_rng(1), Tensors()
    for k in range(count):
        if k % 10 == 9:
            found[f"layers.{k}.steps"] = rng.integers(-50, 50, 5, dtype=np.int32)
        else:
            found[f"layers.{k}.w"] = rng.normal(0, 0.05, SHAPES[k % len(SHAPES)]).astype(np.float32)
    return found


def write_nnef(model: Tensors, folder: Path) -> None:
    """Write a folder whose graph has a variable for each tensor."""
    lines = ["x = external<scalar>(shape = [1, 4]);", "y = relu(x);"]
    for k, (name, array) in enumerate(model.items()):
        kind = "scalar" if array.dtype.kind == "f" else "integer"
        lines.append(f"v{k} = variable<{kind}>(shape = {list(array.shape)}, label = '{name}');")
    text = "\n".join(["version 1.0;", "graph net(x) -> (y)", "{", *lines, "}"])
    nnr.save(nnr.Model(model, nnr.Topology("nnef", text.encode())), folder, format="nnef")


def write_onnx(model: Tensors, path: Path) -> None:
    """Write a graph whose outputs are the tensors."""
    import onnx
    from onnx import helper, numpy_helper

    nodes = [helper.make_node("Identity", [name], [f"{name}.out"]) for name in model]
    outputs = [
        helper.make_tensor_value_info(f"{name}.out", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in model.items()
    ]
    data = [numpy_helper.from_array(array, name) for name, array in model.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], outputs, data)), path)


def write_sources(model: Tensors, folder: Path) -> dict[str, Path]:
    """Write the model in every format whose package is installed."""
    found = {suffix: folder / f"m.{suffix}" for suffix in ("npz", "safetensors", "nnef", "nnef.tgz")}
    nnr.save(model, found["npz"])
    nnr.save(model, found["safetensors"])
    write_nnef(model, found["nnef"])
    nnr.save(nnr.load(found["nnef"]), found["nnef.tgz"])
    if importlib.util.find_spec("onnx"):
        found["onnx"] = folder / "m.onnx"
        write_onnx(model, found["onnx"])
    if importlib.util.find_spec("torch"):
        import torch

        found["pt"] = folder / "m.pt"
        torch.save({name: torch.from_numpy(array) for name, array in model.items()}, found["pt"])
    return found


def cpu(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the user and system time of a call in seconds, and its result."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = function()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def report(what: str, source: Tensors | Path, model: Tensors, scratch: Path, **options: Any) -> None:
    """Print one row."""
    unit, _ = cpu(lambda: np.savez(scratch / "unit.npz", allow_pickle=False, **model))
    encoding, data = cpu(lambda: nnr.encode(source, **options))
    decoding, _ = cpu(lambda: nnr.decode(data))
    print(
        f"| {what} | {encoding:.1f} | {encoding / unit:.2f} | {decoding:.1f} | {decoding / unit:.2f} | {len(data):,} |",
        flush=True,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="CPU time to encode and decode a model of many tiny tensors.")
    parser.add_argument("--tensors", type=int, default=60_000, metavar="N")
    count = parser.parse_args().tensors
    model = tensors(count)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        print(HEAD)
        report("dict", model, model, scratch)
        for suffix, path in write_sources(model, scratch).items():
            report(f".{suffix}{os.sep if path.is_dir() else ''}", path, model, scratch)
        for what, options in OPTIONS.items():
            report(what, model, model, scratch, **options)


if __name__ == "__main__":
    main()
