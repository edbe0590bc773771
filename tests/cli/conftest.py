"""Models and bitstreams for the tests of the command line, each in a separate current folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import weights


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, with an environment without settings for output."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "NNR_DEBUG", "_NNR_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def npz(here: Path) -> Path:
    """Write ``model.npz``: two weights and a bias."""
    np.savez(here / "model.npz", **{"a.weight": weights(1), "a.bias": weights(2, (24,)), "b.weight": weights(3)})
    return Path("model.npz")


@pytest.fixture
def bitstream(npz: Path) -> Path:
    """Write ``model.nnr`` from ``model.npz``: units 0 to 4, of which 2 to 4 are tensors."""
    nnr.encode_file(npz, "model.nnr")
    return Path("model.nnr")
