"""ONNX models on the command line: round trips, and messages where a conversion is impossible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr

from ..formats.onnx_files import entries, model, tensor
from ..formats.test_onnx_blocks import CONV
from .support import SUMMARY, call

Capture = pytest.CaptureFixture[str]

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_there_and_back(capsys: Capture) -> None:
    Path("m.onnx").write_bytes(CONV)
    encoded = call(capsys, "encode", "m.onnx", "-o", "m.nnr", "--lossless")
    assert encoded.code == 0
    assert SUMMARY.fullmatch(encoded.err)
    assert call(capsys, "decode", "m.nnr", "-o", "out.onnx").code == 0
    assert Path("out.onnx").read_bytes() == CONV
    assert call(capsys, "encode", "m.onnx", "-o", "m.nnr", "-f", "--fold-batchnorm", "--check").code == 0


def test_data_beside_it(capsys: Capture) -> None:
    Path("in").mkdir()
    Path("in/m.onnx").write_bytes(model(tensors=[tensor("w", W, entries("weights", 0, 24))]))
    Path("in/weights").write_bytes(W.tobytes())
    assert call(capsys, "encode", "in/m.onnx", "-o", "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", "m.nnr", "-o", "out.onnx").code == 0
    assert Path("out.onnx.data").read_bytes() == W.tobytes()
    again = call(capsys, "decode", "m.nnr", "-o", "out.onnx")
    assert again.code != 0
    assert "exists" in again.err
    assert call(capsys, "decode", "m.nnr", "-o", "out.onnx", "-f").code == 0
    Path("in/m.onnx").write_bytes(model(tensors=[tensor("w", W, entries("../weights", 0, 24))]))
    refused = call(capsys, "encode", "in/m.onnx", "-o", "n.nnr")
    assert refused.code == 3
    assert refused.err == "nnr: error: in/m.onnx: external data '../weights': not a path below the model's folder\n"


def test_a_graph_kept_apart(capsys: Capture) -> None:
    Path("m.onnx").write_bytes(CONV)
    assert call(capsys, "encode", "m.onnx", "-o", "m.nnr", "--lossless", "--topology", "external").code == 0
    assert "NNR_TPL_ONNX" in call(capsys, "inspect", "m.nnr").out
    refused = call(capsys, "decode", "m.nnr", "-o", "out.onnx")
    assert refused.code == 3
    assert "a model of onnx requires a graph of onnx" in refused.err
    assert call(capsys, "decode", "m.nnr", "-o", "out.onnx", "--topology", "m.onnx").code == 0
    assert Path("out.onnx").read_bytes() == CONV


def test_other_types_and_formats(capsys: Capture) -> None:
    """The graph determines types; without a graph, others are possible."""
    Path("m.onnx").write_bytes(CONV)
    call(capsys, "encode", "m.onnx", "-o", "m.nnr")
    refused = call(capsys, "decode", "m.nnr", "-o", "out.onnx", "--dtype", "float16")
    assert refused.code == 3
    assert "is float16, but the operations of the graph require float32; omit --dtype" in refused.err
    assert not Path("out.onnx").exists()
    assert call(capsys, "decode", "m.nnr", "-o", "out.safetensors", "--dtype", "float16").code == 0
    assert {tensor.dtype for tensor in nnr.load("out.safetensors").tensors.values()} == {np.dtype(np.float16)}
