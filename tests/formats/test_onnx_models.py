"""ONNX models of real networks before and after the codec, in onnxruntime: valid, with the same decisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr

from ..shared import SHARED, needs_shared
from ..test_agreement import pictures

pytestmark = [pytest.mark.medium, pytest.mark.clients, needs_shared]

MODELS = (SHARED or Path()) / "models"
SLOW = pytest.mark.slow
Record = Callable[[str, object], None]
Floats = npt.NDArray[np.float64]

EVERY_MODEL = pytest.mark.parametrize(
    ("name", "count"),
    [
        ("digits_cnn", 256),
        pytest.param("resnet20_cifar10", 256),
        pytest.param("resnet56_cifar10", 256, marks=SLOW),
        pytest.param("squeezenet1_0_deepcompression", 16, marks=SLOW),
    ],
)


def outputs(path: Path, images: npt.NDArray[np.float32]) -> Floats:
    """Return the first output of a valid model for each of several images, one row each."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    onnx.checker.check_model(str(path), full_check=True)
    runtime.set_default_logger_severity(3)
    options: Any = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = [session.run(None, {session.get_inputs()[0].name: image[None]})[0] for image in images]
    return np.concatenate(found).reshape(len(images), -1).astype(np.float64)


def images_for(name: str, count: int) -> npt.NDArray[np.float32]:
    """Return inputs of a model: seeded images, and the reference input of the model."""
    with np.load(MODELS / f"{name}.io.npz") as known:
        one = known["x"]
    return np.concatenate([pictures(one.shape, count), one])


def snr(expected: Floats, found: Floats) -> float:
    """Return the power of outputs over the power of their error, in dB."""
    return 10 * float(np.log10(np.square(expected).sum() / np.square(found - expected).sum()))


@EVERY_MODEL
def test_lossless(name: str, count: int, tmp_path: Path) -> None:
    source, target = MODELS / f"{name}.onnx", tmp_path / "out.onnx"
    nnr.encode_file(source, tmp_path / "m.nnr", exact=True)
    nnr.decode_file(tmp_path / "m.nnr", target)
    assert target.read_bytes() == source.read_bytes()
    with np.load(MODELS / f"{name}.io.npz") as known:
        np.testing.assert_allclose(outputs(target, known["x"]), known["y"].reshape(1, -1), rtol=1e-3, atol=1e-4)
    images = images_for(name, min(count, 16))
    assert np.array_equal(outputs(target, images), outputs(source, images))


@EVERY_MODEL
def test_default(name: str, count: int, tmp_path: Path, record_property: Record) -> None:
    source, target = MODELS / f"{name}.onnx", tmp_path / "out.onnx"
    report = nnr.encode_file(source, tmp_path / "m.nnr")
    nnr.decode_file(tmp_path / "m.nnr", target)
    images = images_for(name, count)
    before, after = outputs(source, images), outputs(target, images)
    same = 100 * float(np.mean(before.argmax(axis=1) == after.argmax(axis=1)))
    record_property(f"figure: bytes of {name}.onnx as NNR, of {source.stat().st_size:,}", report.nbytes)
    record_property(f"figure: % of decisions of {name}.onnx that stay", round(same, 1))
    record_property(f"figure: dB of SNR of its outputs ({name}.onnx)", round(snr(before, after), 1))
    assert same >= (93 if name.startswith("squeezenet") else 98)
    assert snr(before, after) >= 30


def test_accuracy_of_digits(tmp_path: Path) -> None:
    source, target = MODELS / "digits_cnn.onnx", tmp_path / "out.onnx"
    nnr.save(nnr.decode(nnr.encode(nnr.load(source))), target)
    with np.load(MODELS / "digits_test.npz") as test:
        images, labels = test["x"].astype(np.float32), test["y"]
    before, after = (100 * float(np.mean(outputs(path, images).argmax(axis=1) == labels)) for path in (source, target))
    assert before > 95
    assert abs(after - before) <= 0.5


TOOLS: dict[str, dict[str, Any]] = {
    "block": {"block": True},
    "folded": {"fold_batchnorm": True},
    "folded and scaled": {"fold_batchnorm": True, "local_scaling": True},
    "apart": {"fold_batchnorm": True, "local_scaling": True, "topology": "external"},
}


@pytest.mark.medium
@pytest.mark.parametrize("tools", TOOLS)
@pytest.mark.parametrize("name", ["resnet20_cifar10", pytest.param("resnet56_cifar10", marks=SLOW)])
def test_blocks(name: str, tools: str, tmp_path: Path, record_property: Record) -> None:
    """At fine step sizes the outputs are equal except for rounding; folding reduces the bitstream size."""
    source, target = MODELS / f"{name}.onnx", tmp_path / "out.onnx"
    images = images_for(name, 8)
    expected = outputs(source, images)
    options = TOOLS[tools]
    for qp, bound in ((-72, 1e-4), (-40, 0.03)):
        data = nnr.encode(nnr.load(source), **options, qp=qp)
        given = source if options.get("topology") else None
        nnr.save(nnr.decode(data, topology=given), target, overwrite=True)
        assert np.abs(outputs(target, images) - expected).max() < bound * np.abs(expected).max()
    record_property(f"figure: bytes of {name}.onnx as NNR, {tools}", len(data))
    assert len(data) < len(nnr.encode(nnr.load(source), qp=-40)) or tools == "block"


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_models(per_channel: bool, tmp_path: Path) -> None:
    """Weights of 8 bits are unchanged; a few scales and biases are rounded."""
    pytest.importorskip("onnx")
    quantization = pytest.importorskip("onnxruntime.quantization")
    source, target = tmp_path / "q.onnx", tmp_path / "out.onnx"
    kind = quantization.QuantType.QInt8
    quantization.quantize_dynamic(
        MODELS / "digits_cnn.onnx",
        source,
        weight_type=kind,
        per_channel=per_channel,
        op_types_to_quantize=["Gemm", "MatMul"],
    )
    loaded = nnr.load(source)
    assert sum(tensor.dtype == np.int8 for tensor in loaded.tensors.values()) >= 2
    nnr.save(nnr.decode(nnr.encode(loaded, exact=True)), target)
    assert target.read_bytes() == source.read_bytes()
    found = nnr.decode(nnr.encode(loaded))
    for name, tensor in loaded.tensors.items():
        assert tensor.dtype.kind == "f" or np.array_equal(found[name], tensor)
    nnr.save(found, target, overwrite=True)
    images = images_for("digits_cnn", 64)
    before, after = outputs(source, images), outputs(target, images)
    assert np.mean(before.argmax(axis=1) == after.argmax(axis=1)) > 0.9
