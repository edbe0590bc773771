"""Where the tests find the reference material that is not part of the project: real models, foreign bitstreams."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = Path(os.environ.get("NNR_SHARED") or Path(__file__).resolve().parents[2] / "shared")

#: The folder named by the environment variable NNR_SHARED, else ``shared`` beside the project; None where it is absent.
SHARED: Path | None = _FOLDER if _FOLDER.is_dir() else None

#: Marks a test that reads `SHARED`.
needs_shared = pytest.mark.skipif(SHARED is None, reason=f"no reference material at {_FOLDER} (set NNR_SHARED)")
