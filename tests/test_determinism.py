"""Equal bytes from all encoders, for any threads, executors, hash seeds, vector code and versions of numpy.

The expected digests are in ``tests/data/encodes.json``; after a change of the encoder that is meant to change bytes,
``python -m tests.encodes`` writes them again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnr_codec.parallel import pool as pool_module

from .encodes import CASES, DIGESTS, digests

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[1]
EXPECTED = json.loads(DIGESTS.read_text(encoding="utf-8"))


def check(found: dict[str, str]) -> None:
    """Check that all digests equal the committed ones."""
    assert sorted(found) == sorted(EXPECTED)
    different = [name for name in found if found[name] != EXPECTED[name]]
    assert not different, f"{len(different)} of {len(found)} encodings have other bytes"


def elsewhere(python: str, jobs: int, **environment: str) -> dict[str, Any]:
    """Return the output of another process."""
    run = subprocess.run(
        [python, "-m", "tests.encodes", "--print", "--jobs", str(jobs)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(run.stdout))


def test_the_bytes_are_unchanged() -> None:
    assert len(CASES) >= 20
    assert len(set(EXPECTED.values())) == len(EXPECTED)
    check(digests())


@pytest.mark.parametrize(
    "start",
    [partial(ThreadPoolExecutor, 3), partial(ProcessPoolExecutor, 2, get_context("spawn"))],
    ids=["threads", "processes"],
)
def test_executors(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SMALL", 0)  # every tensor is submitted
    with start() as executor:
        assert isinstance(executor, Executor)
        check(digests(executor=executor))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))])
def test_processes_of_all_kinds(seed: int) -> None:
    """Processes differ in hash seeds, 1 to 8 coding threads, 1 to 4 threads of matrix products, and vector code."""
    libraries = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {"PYTHONHASHSEED": str(seed), **dict.fromkeys(libraries, str(1 + seed % 4))}
    if seed % 2:
        extensions = np.show_config(mode="dicts")["SIMD Extensions"]
        environment |= {"NPY_DISABLE_CPU_FEATURES": " ".join(extensions["found"]), "OPENBLAS_CORETYPE": "Prescott"}
    found = elsewhere(sys.executable, 1 + seed % 8, **environment)
    assert found["numpy"] == np.__version__
    check(found["digests"])


@pytest.mark.skipif("NNR_NUMPY1" not in os.environ, reason="needs a Python with numpy 1.26 and bitarray (NNR_NUMPY1)")
def test_numpy_1() -> None:
    found = elsewhere(os.environ["NNR_NUMPY1"], 2, PYTHONPATH=str(ROOT))
    assert found["numpy"].startswith("1.26.")
    assert not np.__version__.startswith("1.")
    check(found["digests"])
