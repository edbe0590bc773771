"""Compress a Hugging Face folder and restore it: ``python examples/huggingface.py [FOLDER [OUTPUT]]``.

FOLDER has a model.safetensors, or shards with an index; other files, such as config.json, are copied. OUTPUT gets the
folders ``compressed`` and ``restored``; load the second one with ``transformers.AutoModel.from_pretrained``. Without
FOLDER, a small random model is made; without OUTPUT, a temporary folder is used. Requires only nnr_codec.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import nnr_codec as nnr

#: Weights, also those in formats of other software, which are not copied.
WEIGHTS = shutil.ignore_patterns(
    "*.safetensors", "*.safetensors.index.json", "*.nnr", "*.bin", "*.h5", "*.msgpack", "*.onnx", "*.pt", ".git"
)


def weights(folder: Path) -> Path:
    """Return model.safetensors of a folder, or the index of its shards."""
    index = folder / "model.safetensors.index.json"
    return index if index.exists() else folder / "model.safetensors"


def compress(folder: Path, target: Path) -> None:
    """Copy a folder, with model.nnr instead of the safetensors files."""
    shutil.copytree(folder, target, ignore=WEIGHTS)
    nnr.encode_file(weights(folder), target / "model.nnr", quality=40)


def restore(folder: Path, target: Path) -> None:
    """Copy a folder, with model.safetensors instead of model.nnr."""
    shutil.copytree(folder, target, ignore=WEIGHTS)
    nnr.decode_file(folder / "model.nnr", target / "model.safetensors")


def make_model(folder: Path) -> None:
    """Write config.json and random weights as Hugging Face's libraries do."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 64, "vocab_size": 1000}))
    rng = np.random.default_rng(1)
    shapes = {"embeddings.word_embeddings.weight": (1000, 64), "encoder.layer.0.intermediate.dense.weight": (256, 64)}
    tensors = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    nnr.save(nnr.Model(tensors, metadata={"format": "pt"}), folder / "model.safetensors")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(temporary, "model")
    output = Path(sys.argv[2] if sys.argv[2:] else temporary)
    if not sys.argv[1:]:
        make_model(folder)
    compress(folder, output / "compressed")
    restore(output / "compressed", output / "restored")

    before, after = size(output / "restored"), size(output / "compressed")
    print(f"size:  {before:,} bytes with safetensors, {after:,} bytes with NNR ({after / before:.1%})")
    print("files:", *sorted(path.name for path in (output / "restored").iterdir()))
    difference = nnr.compare_models(nnr.load(weights(folder)), nnr.load(output / "restored" / "model.safetensors"))
    print(f"error: {difference.snr:.1f} dB of SNR")
