"""Tests of nnr encode --sensitivity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.integrations.second_moments import archive
from tests.cabac.test_surgeon import moments
from tests.encoder.test_sensitivity import HESSIANS, MODEL, SKEWED

from .support import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model() -> str:
    np.savez("model.npz", **MODEL)
    return "model.npz"


def test_a_file_says_what_errors_cost(model: str, capsys: Capture) -> None:
    sensitivity = {"dense": SKEWED, "conv": np.float32(2)}
    np.savez("known.npz", **sensitivity, **{f"hessian:{name}": moments for name, moments in HESSIANS.items()})
    command = ["encode", model, "-o", "model.nnr", "--qp=-24", "--sensitivity", "known.npz"]
    assert call(capsys, *command).code == 0
    data = Path("model.nnr").read_bytes()
    assert data == nnr.encode(model, qp=-24, sensitivity=sensitivity, hessians=HESSIANS)
    assert data != nnr.encode(model, qp=-24)
    assert data != nnr.encode(model, qp=-24, sensitivity=sensitivity)
    assert call(capsys, *command, "--force", "--report", "model.json").code == 0  # which lists no arrays


def test_a_file_has_second_moments_of_rows_and_columns(model: str, capsys: Capture) -> None:
    known = {"dense": (moments(120), HESSIANS["dense"]), "conv": (moments(120), None)}
    np.savez("known.npz", **archive({"bias": np.float32(3)}, known))
    assert call(capsys, "encode", model, "-o", "model.nnr", "--qp=-24", "--sensitivity", "known.npz").code == 0
    assert Path("model.nnr").read_bytes() == nnr.encode(model, qp=-24, sensitivity={"bias": 3.0}, hessians=known)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"other": np.ones(())}, "--sensitivity: 'other' is not a tensor of the model"),
        ({"hessian:other": np.ones((2, 2))}, "--sensitivity hessians: 'other' is not a tensor of the model"),
        ({"dense": np.ones((2, 2))}, "--sensitivity of 'dense' has shape (2, 2)"),
        ({"hessian:dense": np.ones((2, 2))}, "--sensitivity hessians of 'dense' have shape (2, 2)"),
        ({"row_hessian:dense": np.ones((2, 2))}, "--sensitivity hessians of 'dense' have shape (2, 2)"),
        ({"dense": -np.ones(())}, "--sensitivity of 'dense' is negative"),
    ],
)
def test_what_does_not_fit(model: str, capsys: Capture, known: dict[str, np.ndarray], message: str) -> None:
    np.savez("known.npz", **known)
    result = call(capsys, "encode", model, "-o", "model.nnr", "--sensitivity", "known.npz")
    assert result.code != 0
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not Path("model.nnr").exists()


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_a_file_that_is_none(model: str, capsys: Capture, content: bytes | None) -> None:
    if content is not None:
        Path("known.npz").write_bytes(content)
    result = call(capsys, "encode", model, "-o", "model.nnr", "--sensitivity", "known.npz")
    assert result.code != 0
    assert "known.npz" in result.err
    assert result.err.count("\n") == 1
    assert not Path("model.nnr").exists()
