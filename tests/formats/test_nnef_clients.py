"""Khronos' own reader and writer agree with ours wherever they can read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from nnr_codec import formats
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.tensorfile import read_tensor
from nnr_codec.limits import Budget, Limits

from ..shared import SHARED, needs_shared
from .support import SYNTHETIC, dat, nnef_model

nnef = pytest.importorskip("nnef", reason="the package nnef (extra 'clients') is not installed")

pytestmark = pytest.mark.clients

_DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"]
_MODELS = sorted(SHARED.glob("models/*.nnef")) if SHARED else []


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (1, 2, 1, 5), (1, 1, 1, 1, 1, 1, 1, 3)])
def test_tensor_files_are_the_same(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 2 if dtype == "b1" else 100, shape).astype(dtype)
    with open(tmp_path / "theirs.dat", "wb") as file:
        nnef.write_tensor(file, array)
    theirs = (tmp_path / "theirs.dat").read_bytes()
    assert dat(array) == theirs
    with open(tmp_path / "theirs.dat", "rb") as file:
        read = nnef.read_tensor(file)
    ours = read_tensor(io.BytesIO(theirs), len(theirs), "theirs.dat", Budget(Limits()))
    assert np.array_equal(np.asarray(read), ours)
    assert ours.dtype == array.dtype


@pytest.mark.parametrize(
    "name", ["flat", "integer_logical", "label_first", "leading_slash", "shared_label", "update_rnn"]
)
def test_synthetic_graphs_agree(name: str) -> None:
    text = (SYNTHETIC / "graphs" / name / "graph.nnef").read_text()
    compare_graph(text)


def compare_graph(text: str) -> None:
    theirs = nnef.parse_string(text)
    expected = [
        (operation.outputs["output"], operation.dtype, tuple(operation.attribs["shape"]), operation.attribs["label"])
        for operation in theirs.operations
        if operation.name == "variable"
    ]
    ours = parse_graph(text.encode())
    assert ours.name == theirs.name
    assert [(v.identifier, v.dtype, v.shape, v.label) for v in ours.variables] == expected


@needs_shared
@pytest.mark.parametrize("source", _MODELS, ids=lambda path: path.name)
def test_real_graphs_agree(source: Path) -> None:
    compare_graph((source / "graph.nnef").read_text())


@needs_shared
@pytest.mark.parametrize("source", [path for path in _MODELS if "int8" not in path.name], ids=lambda path: path.name)
def test_khronos_reads_what_we_write(source: Path, tmp_path: Path) -> None:
    model = formats.load(source)
    formats.save(model, tmp_path / "m.nnef")
    graph = nnef.load_graph(str(tmp_path / "m.nnef"))
    operations = [operation for operation in graph.operations if operation.name == "variable"]
    assert len(operations) == len(model)
    for operation in operations:
        tensor = graph.tensors[operation.outputs["output"]]
        assert np.array_equal(tensor.data, model[operation.attribs["label"]])


def test_we_read_what_khronos_writes(tmp_path: Path) -> None:
    tensors = {"a/w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.arange(3, dtype=np.int32)}
    formats.save(nnef_model(tensors), tmp_path / "m.nnef")
    graph = nnef.load_graph(str(tmp_path / "m.nnef"))
    nnef.save_graph(graph, str(tmp_path / "theirs.nnef"))
    model = formats.load(tmp_path / "theirs.nnef")
    assert {label: array.tolist() for label, array in model.tensors.items()} == {
        label: array.tolist() for label, array in tensors.items()
    }
