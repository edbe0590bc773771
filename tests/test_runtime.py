"""Inference with an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.model import Topology
from nnr_codec.runtime import run_folder, run_model

GRAPH = b"""version 1.0;
graph two(a, b) -> (sum, scaled)
{
    a = external<scalar>(shape = [2, 3]);
    b = external<scalar>(shape = [2, 3]);
    w = variable<scalar>(shape = [2, 3], label = 'w');
    sum = add(a, b);
    scaled = mul(a, w);
}
"""
W = np.arange(6, dtype="f4").reshape(2, 3)
MODEL = nnr.Model({"w": W}, Topology("nnef", GRAPH))
A = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)


def test_what_has_no_nnef_graph() -> None:
    with pytest.raises(nnr.UnsupportedError, match="NNEF"):
        run_model(nnr.Model({"w": W}), {"a": A})


def test_a_missing_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(nnr.MissingDependencyError, match="requires the package tract; pip install tract"):
        run_folder(tmp_path, {"a": A})


@pytest.mark.clients
class TestTract:
    """Tests with the engine."""

    @pytest.fixture(autouse=True)
    def engine(self) -> None:
        pytest.importorskip("tract", reason="the package tract (extra 'clients') is not installed")

    @pytest.mark.medium
    def test_by_name_and_in_portions(self) -> None:
        outputs = run_model(MODEL, {"other": W, "b": 2 * A.astype("f8"), "a": A})
        assert list(outputs) == ["sum", "scaled"]
        np.testing.assert_allclose(outputs["sum"], 3 * A, rtol=1e-6)
        np.testing.assert_allclose(outputs["scaled"], A * np.concatenate([W, W]), rtol=1e-6)

    @pytest.mark.medium
    @pytest.mark.parametrize(
        ("inputs", "what"),
        [
            ({"a": A}, "requires the inputs a, b, got a"),
            ({"a": A, "b": A[:2]}, "the same number of batches, got"),
            ({"a": A, "b": A[:3]}, "has shape"),
            ({"a": A, "b": A[:0]}, "has shape"),
            ({"a": A, "b": A[:, :2]}, "has shape"),
            ({"a": A, "b": A[0]}, "has shape"),
        ],
    )
    def test_inputs_that_do_not_fit(self, inputs: dict[str, np.ndarray], what: str) -> None:
        with pytest.raises(nnr.FormatError, match=what):
            run_model(MODEL, inputs)

    @pytest.mark.medium
    def test_graphs_that_cannot_run(self, tmp_path: Path) -> None:
        model = nnr.Model({"w": W}, Topology("nnef", GRAPH.replace(b"mul(", b"no_such_operation(")))
        with pytest.raises(nnr.FormatError, match="tract cannot run the model: ") as caught:
            run_model(model, {"a": A, "b": A})
        assert "\n" not in str(caught.value)
        with pytest.raises(nnr.FormatError):
            run_folder(tmp_path / "none", {"a": A})

    def test_the_timeout_applies(self) -> None:
        with pytest.raises(nnr.FormatError, match=r"more than 0\.001 s"):
            run_model(MODEL, {"a": A, "b": A}, timeout=0.001)
