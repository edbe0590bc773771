"""Compress a Hugging Face folder and restore it: ``python examples/huggingface.py [FOLDER [OUTPUT]]``.

FOLDER has a model.safetensors, or shards with an index, and other files, such as config.json. OUTPUT gets one file with
all of them, ``model.nnr``, and the folder ``restored``, which ``transformers.AutoModel.from_pretrained`` loads. Without
FOLDER, a small random model is made; without OUTPUT, a temporary folder is used. Requires only nnr_codec.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import nnr_codec as nnr


def make_model(folder: Path) -> None:
    """Write config.json and random weights as Hugging Face's libraries do."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 64, "vocab_size": 1000}))
    rng = np.random.default_rng(1)
    shapes = {"embeddings.word_embeddings.weight": (1000, 64), "encoder.layer.0.intermediate.dense.weight": (256, 64)}
    tensors = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    nnr.save(nnr.Model(tensors, metadata={"format": "pt"}), folder / "model.safetensors")


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(temporary, "model")
    output = Path(sys.argv[2] if sys.argv[2:] else temporary)
    if not sys.argv[1:]:
        make_model(folder)
    output.mkdir(exist_ok=True)
    nnr.encode_file(folder, output / "model.nnr", quality=40)
    nnr.decode_file(output / "model.nnr", output / "restored")

    before = sum(path.stat().st_size for path in (output / "restored").rglob("*") if path.is_file())
    after = (output / "model.nnr").stat().st_size
    print(f"size:  {before:,} bytes with safetensors, {after:,} bytes with NNR ({after / before:.1%})")
    print("files:", *sorted(path.name for path in (output / "restored").iterdir()))
    difference = nnr.compare_models(nnr.load(folder), nnr.load(output / "restored"))
    print(f"error: {difference.snr:.1f} dB of SNR")
