"""Tests of nnr bench."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from nnr_cli import contenders, nncodec_worker

import nnr_codec as nnr

from .support import call, weights
from .test_encode import feed

PEER = os.environ.get("NNR_PEER", "")

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable NNCodec unless a test requests it, and repetitions."""
    monkeypatch.delenv("NNR_PEER", raising=False)
    monkeypatch.setattr(nncodec_worker, "RUNS", 1)


def test_json(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "bench", npz, "--qp", "-20", "--qp", "-30", "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    assert [row["setting"] for row in rows if row["codec"] == "nnr"] == ["qp -20", "qp -30", "lossless"]
    model = nnr.load(npz)
    for row in rows:
        assert row["model"] == "model.npz"
        assert (row["parameters"], row["source_bytes"]) == (1464, 4 * 1464)
        assert row["bits_per_parameter"] == pytest.approx(8 * row["bytes"] / 1464)
        assert row["encode_cpu_seconds"] >= 0 <= row["decode_cpu_seconds"]
        assert (row["snr_db"] is None) is row["exact"]
    for row, qp in zip(rows, (-20, -30), strict=False):
        data = nnr.encode(model, qp=qp)
        assert row["bytes"] == len(data)
        difference = nnr.compare_models(model, nnr.decode(data))
        assert row["snr_db"] == pytest.approx(difference.snr)
        assert row["matrices_snr_db"] == pytest.approx(difference.loss.matrices)
    by = {(row["codec"], row["setting"]): row for row in rows}
    assert by["float16", ""]["bytes"] == 2 * 1464
    assert by["int8", ""]["bytes"] == 2 * (720 + 4) + 4 * 24
    assert by["nnr", "lossless"]["exact"]
    packed = contenders.packer().name
    assert by["byte planes", packed]["exact"]
    assert by["int8", packed]["bytes"] < by["int8", ""]["bytes"]


def test_table(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "bench", npz, npz, "--qp", "-20")
    assert (result.code, result.err) == (0, "")
    first, heading, *rows = result.out.splitlines()
    assert first == "model.npz: 3 tensors, 1,464 parameters, 5,856 bytes"
    assert heading.split("  ")[0] == "codec"
    assert rows[0].split()[:3] == ["nnr", "qp", "-20"]
    assert rows[0].split()[3] == f"{len(nnr.encode(npz, qp=-20)):,}"
    assert rows.count(first) == 1  # the second model


def test_standard_input(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, npz.read_bytes())
    result = call(capsys, "bench", "-", "--qp", "-20")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("-: 3 tensors, 1,464 parameters, 5,856 bytes\n")


def test_efforts(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "bench", npz, "--qp", "-20", "--effort", "1", "--effort", "6", "--json")
    rows = [row for row in json.loads(result.out) if row["codec"] == "nnr"]
    settings = ["qp -20, effort 1", "lossless, effort 1", "qp -20, effort 6", "lossless, effort 6"]
    assert [row["setting"] for row in rows] == settings
    assert rows[2]["bytes"] == len(nnr.encode(npz, qp=-20, effort=6))


def test_without_zstandard(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    rows = json.loads(call(capsys, "bench", npz, "--qp", "-20", "--json").out)
    assert {row["setting"] for row in rows if row["codec"] == "byte planes"} == {"zlib -9"}


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": np.zeros((4, 4), np.float32)},
        {"w": np.arange(12).reshape(3, 4), "s": np.array(2.0), "e": np.empty((0, 2), np.float32)},
        {"w": np.full((3, 3), 1e30, np.float32)},
        {"e": np.empty((0, 2), np.float32)},
        {"h": np.eye(9, dtype=np.float16), "b": np.array([True, False])},
        {"n": np.array([[np.nan, 1.0], [np.inf, 2.0]], np.float32)},
    ],
    ids=["zeros", "types", "huge", "empty", "half", "not finite"],
)
def test_odd_models(tensors: dict[str, np.ndarray], capsys: Capture) -> None:
    np.savez("m.npz", **tensors)  # type: ignore[arg-type]
    result = call(capsys, "bench", "m.npz", "--qp", "-20")
    assert (result.code, result.err) == (0, "")
    as_json = call(capsys, "bench", "m.npz", "--qp", "-20", "--json")
    assert all(math.isfinite(row["bytes"]) for row in json.loads(as_json.out))


def test_a_failing_codec_is_reported(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        contenders, "PLANES", contenders.Cast("byte planes", contenders._planes, lambda parts, like: like * 2)
    )
    result = call(capsys, "bench", npz, "--qp", "-20")
    assert result.code == 3
    assert "byte planes" in result.err
    assert "does not restore the model" in result.err


def test_usage(npz: Path, capsys: Capture) -> None:
    for arguments in ([], [npz, "--qp", "x"], [npz, "--qp", "-500"]):
        assert call(capsys, "bench", *arguments).code == 2
    assert call(capsys, "bench", "missing.npz").code == 5
    for python in (sys.executable, "/no/such/python"):
        result = call(capsys, "bench", npz, "--peer", python)
        assert result.code == 5
        assert "the NNCodec process ended" in result.err or "cannot be run" in result.err


@pytest.mark.peer
def test_nncodec(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, peer_python: str) -> None:
    np.savez("more.npz", **{"a/w": weights(1), "n": np.arange(5), "<x>": weights(2, (24,))})
    rows = json.loads(call(capsys, "bench", "more.npz", "--qp", "-20", "--json", "--peer", peer_python).out)
    (row,) = [row for row in rows if row["codec"].startswith("NNCodec ")]
    assert row["setting"] == "qp -20"
    assert 40 < row["bytes"] < rows[0]["source_bytes"]
    assert row["snr_db"] == pytest.approx(rows[0]["snr_db"], abs=2)


@pytest.mark.medium
@pytest.mark.peer
def test_what_nncodec_cannot_code(capsys: Capture, peer_python: str) -> None:
    np.savez("integers.npz", n=np.arange(5))
    result = call(capsys, "bench", "integers.npz", "--qp", "-20", "--peer", peer_python)
    assert (result.code, result.err) == (0, "")
    assert "NNCodec" not in result.out
    np.savez("odd.npz", n=np.full((9, 9), np.nan, np.float32))
    result = call(capsys, "bench", "odd.npz", "--qp", "-20", "--qp", "-30", "--json", "--peer", peer_python)
    assert result.code == 0, result.err
    assert [row["setting"] for row in json.loads(result.out) if row["codec"] == "nnr"][-1] == "lossless"


@pytest.fixture
def peer_python() -> str:
    """Return a Python interpreter with NNCodec."""
    if not Path(PEER).is_file():
        pytest.skip("NNR_PEER does not name a python with nncodec 2.1.3")
    return PEER
