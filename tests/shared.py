"""Paths of the reference material outside the project: real models, bitstreams of other encoders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import hypothesis
import pytest

_FOLDER = Path(os.environ.get("NNR_SHARED") or Path(__file__).resolve().parents[2] / "shared")

#: The folder in the environment variable NNR_SHARED, else ``shared`` beside the project; None if it does not exist.
SHARED: Path | None = _FOLDER if _FOLDER.is_dir() else None

#: Mark of a test that reads `SHARED`.
needs_shared = pytest.mark.skipif(SHARED is None, reason=f"no reference material at {_FOLDER} (set NNR_SHARED)")


def examples(number: int) -> int:
    """Return the number of examples of a property: ``number`` with the slow tests, else a tenth of it."""
    return number * hypothesis.settings().max_examples // 100


def mostly_slow(count: int, values: Iterable[object]) -> list[object]:
    """Return the values of a parameter; values after the first ``count`` have the mark slow."""
    return [value if k < count else pytest.param(value, marks=pytest.mark.slow) for k, value in enumerate(values)]


def every(step: int) -> int:
    """Return the step between the items that a test uses: 1 with the slow tests, else ``step``."""
    return 1 if examples(100) == 100 else step


def standard_text() -> str:
    """Return the text of the standard, from the file in NNR_STANDARD_TEXT or the shared one; skip without it."""
    if "NNR_STANDARD_TEXT" in os.environ:
        path = Path(os.environ["NNR_STANDARD_TEXT"])
    elif SHARED:
        path = SHARED / "spec" / "iso-iec-15938-17-2024-nnr.txt"
    else:
        pytest.skip("needs the text of the standard (NNR_STANDARD_TEXT) or the shared folder")
    if not path.is_file():
        pytest.skip(f"the text of the standard is not at {path}")
    return path.read_text(encoding="utf-8")
