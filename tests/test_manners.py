"""PyTorch modules and tensors as arguments and results; objects in print, pickle and notebooks."""

from __future__ import annotations

import importlib
import inspect
import pickle
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.api import decoding

ARRAYS = {"w": np.linspace(-1, 1, 64, dtype="f4").reshape(8, 8), "b": np.zeros(8, "f4")}


@pytest.fixture
def torch() -> Any:
    """Return PyTorch, seeded."""
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    found: Any = importlib.import_module("torch")
    found.manual_seed(0)
    return found


def tied(torch: Any) -> Any:
    """Return a module with bfloat16, a tied weight, and a scalar buffer of integers."""
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 2).to(torch.bfloat16)
    )
    module[2].weight = module[0].weight
    return module


@pytest.mark.torch
@pytest.mark.parametrize("of", ["module", "state_dict"])
def test_a_module_comes_back_as_a_state_dict(torch: Any, of: str) -> None:
    module = tied(torch)
    data = nnr.encode(module if of == "module" else module.state_dict(), preset="lossless")
    state = nnr.decode(data, framework="pt")
    expected = module.state_dict()
    assert {name: (value.dtype, value.shape) for name, value in state.items()} == {
        name: (value.dtype, value.shape) for name, value in expected.items()
    }
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    assert state["2.weight"] is state["0.weight"]
    tied(torch).load_state_dict(state)


@pytest.mark.torch
def test_a_tensor_before_that_which_it_is_tied_to(torch: Any) -> None:
    same = np.ones((2, 2), "f4")
    model = nnr.Model({"head": same, "other": 2 * same, "embedding": same}, aliases={"head": "embedding"})
    state = nnr.decode(nnr.encode(model), framework="pt")
    assert list(state) == ["head", "other", "embedding"]
    assert state["head"] is state["embedding"]


@pytest.mark.torch
def test_functions_that_take_models_take_modules(torch: Any, tmp_path: Path) -> None:
    module = tied(torch)
    report = nnr.encode_file(module, tmp_path / "m.nnr", quality=30)
    assert report.nbytes == (tmp_path / "m.nnr").stat().st_size
    assert nnr.estimate(module).parameters == report.parameters
    assert nnr.encode_update(module, module)


@pytest.mark.torch
def test_a_type_without_a_torch_dtype_is_refused(torch: Any) -> None:
    types = pytest.importorskip("ml_dtypes")
    data = nnr.encode({"w": np.ones((2, 2), types.float8_e3m4)}, preset="lossless")
    with pytest.raises(nnr.FormatError, match="tensor 'w': pytorch does not support dtype float8_e3m4"):
        nnr.decode(data, framework="pt")


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(ValueError, match="framework must be 'np' or 'pt', got 'tf'"):
        nnr.decode(nnr.encode(ARRAYS), framework="tf")  # type: ignore[call-overload]


def test_options_of_decode_are_its_parameters() -> None:
    parameters = inspect.signature(nnr.decode, eval_str=True, locals={"Bitstream": Any, "Executor": Any}).parameters
    options = get_type_hints(decoding.DecodeOptions, localns={"Executor": Any})
    assert options == {
        name: parameter.annotation
        for name, parameter in parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "framework"
    }


def test_objects_print_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.nnr"
    report = nnr.encode_file(ARRAYS, path)
    assert repr(nnr.Model(ARRAYS)) == "<Model: 2 tensors>"
    assert (
        repr(nnr.Model(ARRAYS, nnr.Topology("onnx", b""), format="onnx")) == "<Model of onnx: 2 tensors, onnx topology>"
    )
    assert repr(report) == f"<EncodeReport: 2 tensors, 288 -> {report.nbytes} bytes, {100 * report.ratio:.2f} %>"
    assert repr(nnr.open(str(path))) == f"<NnrFile {str(path)!r}: 2 tensors, {report.nbytes} bytes>"
    assert repr(nnr.open(path.read_bytes())) == f"<NnrFile: 2 tensors, {report.nbytes} bytes>"


def test_a_report_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    report = nnr.encode_file(ARRAYS, tmp_path / "m.nnr", statistics=True)
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "&lt;h2&gt;Tensors" in shown
    assert nnr.encode_file(ARRAYS, tmp_path / "n.nnr")._repr_html_().startswith("&lt;EncodeReport")


def test_an_open_bitstream_is_pickled_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "m.nnr"
    nnr.encode_file(ARRAYS, path)
    again = pickle.loads(pickle.dumps(nnr.open(path)))
    assert np.array_equal(again["b"], ARRAYS["b"])
    with open(path, "rb") as file, pytest.raises(TypeError, match="open the bitstream by its path"):
        pickle.dumps(nnr.open(file))
