"""Models and bitstreams for the tests of the command line, each in a folder of its own that is the current one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from .support import weights


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and an environment without wishes about output."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "NNR_DEBUG", "_NNR_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def npz(here: Path) -> Path:
    """``model.npz``: two weights and a bias."""
    np.savez(here / "model.npz", **{"a.weight": weights(1), "a.bias": weights(2, (24,)), "b.weight": weights(3)})
    return Path("model.npz")


@pytest.fixture
def bitstream(npz: Path) -> Path:
    """``model.nnr``, made of ``model.npz``: units 0 to 4, the tensors being 2 to 4."""
    nnr.encode_file(npz, "model.nnr")
    return Path("model.nnr")
