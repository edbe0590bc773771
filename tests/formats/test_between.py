"""Conversions from every format to every other one: the result is the same, or losses are reported.

The table of docs/reference/formats.md states the behaviour of each pair.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnr_cli.main import run

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.model import Array, Model

from ..arrays import assert_identical, from_patterns
from ..cli.support import call
from . import irs, onnx_files, test_tflite
from .support import dat, graph_text, write_folder

Capture = pytest.CaptureFixture[str]

WEIGHT = np.array([[1.5, -2.0, 0.25], [3.0, 1 / 256, 0.0]], np.float32)  # of Q7.8, for OpenVX
BIAS = np.array([0.5, -1.25], np.float32)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"

#: Losses of a format, their messages, and the letters of the page's table.
TELLS = {
    "topology": (r"topolog|graph", "g"),
    "metadata": (r"metadata|files beside", "m"),
    "ties": (r"\bt(?:ied|ies)\b", "t"),
    "types": (r"\btypes?\b", "d"),
    "shapes": (r"\bshapes?\b", "s"),
    "names": (r"\bnames?\b", "n"),
}
LARGE = np.arange(300, dtype=np.float32).reshape(15, 20) / 8  # properties that ONNX lacks stay in its graph
KERAS = Path(__file__).resolve().parents[1] / "data" / "keras"
NOTHING, REFUSED, WRITTEN = "=", "\N{EN DASH}", "\N{RIGHTWARDS ARROW}"
#: Names of targets for each format.
TARGETS = {
    ".nnef": "nnef",
    ".onnx": "onnx",
    ".pt": "pytorch",
    ".safetensors": "safetensors",
    ".safetensors.index.json": "safetensors",
    ".keras": "keras",
    ".h5": "keras",
    ".weights.h5": "keras",
    ".savedmodel": "tensorflow",
    ".index": "tensorflow",
    ".xml": "openvino",
    ".sknd": "skriptnd",
    ".npz": "npz",
    ".npy": "npy",
    ".gguf": "gguf",
    ".tflite": "tflite",
    ".openvx": "openvx",
}


def lost(before: Model, after: Model) -> set[str]:
    """Return the parts of a model that are lost; values are compared as well."""
    found = set()
    if before.topology is not None and after.topology != before.topology:
        found.add("topology")
    # The number of files is not a property of a model from one requested file.
    if any(after.metadata.get(key) != text for key, text in before.metadata.items() if key != "safetensors:shards"):
        found.add("metadata")
    if before.aliases and ties(after) != ties(before):
        found.add("ties")
    if set(before) != set(after):
        return {*found, "names"}
    for name in before:
        one, other = before[name], after[name]
        if one.dtype.name != other.dtype.name:
            found.add("types")
        elif one.shape != other.shape:
            found.add("shapes")
        elif one.dtype.name in STORED_TYPES:
            assert_identical(other, one, name)
        else:
            assert one.tobytes() == other.tobytes()
    return found


def ties(model: Model) -> set[frozenset[str]]:
    """Return the names of each tensor that has several."""
    return {
        frozenset({same, *(name for name in model.aliases if model.aliases[name] == same)})
        for same in model.aliases.values()
    }


def assert_told(missing: set[str], said: str) -> None:
    """Check that each of these items is mentioned."""
    for what in missing:
        assert re.search(TELLS[what][0], said), (what, said)


# ------------------------------------------------------------------------------------------------ sources
@dataclass(frozen=True)
class Source:
    """A small model: ``make`` writes it to a folder and returns its path; ``packages`` must be installed."""

    format: str
    make: Callable[[Path], Path]
    packages: tuple[str, ...] = ()


def make_nnef(folder: Path) -> Path:
    tensors = {"w": WEIGHT, "b": BIAS[None]}
    files = {f"{label}.dat": dat(array) for label, array in tensors.items()}
    return write_folder(folder / "m.nnef", {"graph.nnef": graph_text(tensors), **files})


def make_safetensors(folder: Path) -> Path:
    nnr.save(Model({"w": WEIGHT, "b": BIAS}, metadata={"by": "somebody"}), folder / "m.safetensors")
    return folder / "m.safetensors"


def make_shards(folder: Path) -> Path:
    head = {"metadata": {"total_size": 32}, "weight_map": {"w": "m-1.safetensors", "b": "m-2.safetensors"}}
    for name, tensor in (("m-1", {"w": WEIGHT}), ("m-2", {"b": BIAS})):
        nnr.save(Model(tensor, metadata={"format": "pt"}), folder / f"{name}.safetensors")
    (folder / "m.safetensors.index.json").write_text(json.dumps(head))
    return folder / "m.safetensors.index.json"


def make_npz(folder: Path) -> Path:
    np.savez(folder / "m.npz", w=WEIGHT, b=BIAS)
    return folder / "m.npz"


def make_npy(folder: Path) -> Path:
    np.save(folder / "m.npy", WEIGHT)
    return folder / "m.npy"


def make_onnx(folder: Path) -> Path:
    tensors = [onnx_files.tensor("w", LARGE), onnx_files.tensor("b", BIAS)]
    return onnx_files.write(folder, onnx_files.model([onnx_files.node("Gemm", ["x", "w", "b"], ["y"])], tensors))


def make_external(folder: Path) -> Path:
    (folder / "data").write_bytes(LARGE.astype("<f4").tobytes())
    return onnx_files.write(
        folder, onnx_files.model(tensors=[onnx_files.tensor("w", LARGE, onnx_files.entries("data"))])
    )


def make_openvino(folder: Path) -> Path:
    layers = (
        irs.const("w", 0, 24, "f32", (2, 3)),
        irs.const("b", 24, 8, "f32", (2,)),
        irs.const("tied", 0, 24, "f32", (2, 3)),
    )
    return irs.put(folder, irs.ir(*layers), WEIGHT.astype("<f4").tobytes() + BIAS.astype("<f4").tobytes())


def make_skriptnd(folder: Path) -> Path:
    texts = {"main.sknd": b"graph Net {\n    @variable { w: real[2,3]; }\n}\n", "part.sknd": b"# nothing\n"}
    return write_folder(folder / "m.sknd", {**texts, "main.Net.w.dat": dat(WEIGHT)})


def make_gguf(folder: Path) -> Path:
    import gguf

    writer = gguf.GGUFWriter(folder / "m.gguf", "llama")
    writer.add_tensor("w", WEIGHT)
    writer.add_tensor("b", BIAS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m.gguf"


def make_tflite(folder: Path) -> Path:
    weight = np.resize(WEIGHT, (6, 3))  # smaller ones stay in the graph
    buffers = [test_tflite.buffer(array.astype("<f4").tobytes()) for array in (weight, BIAS)]
    tensors = [test_tflite.tensor("w", [6, 3], 0, 1), test_tflite.tensor("b", [2], 0, 2)]
    (folder / "m.tflite").write_bytes(test_tflite.file_of(tensors, buffers))
    return folder / "m.tflite"


def torch_file(content: Callable[[Any], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import torch

        torch.save(content(torch), folder / "m.pt")
        return folder / "m.pt"

    return make


def checkpoint(torch: Any) -> object:
    """Return a checkpoint with two tied parameters, and other training state."""
    w = torch.from_numpy(WEIGHT.copy())
    return {"model": {"w": w, "again": w, "b": torch.from_numpy(BIAS.copy())}, "epoch": 3, "name": "n"}


def copied(name: str) -> Callable[[Path], Path]:
    """Return a copy of a committed file of Keras or TensorFlow."""

    def make(folder: Path) -> Path:
        source = KERAS / name
        if source.is_dir():
            return Path(shutil.copytree(source, folder / name))
        for path in KERAS.glob(f"{source.stem}.data*") if source.suffix == ".index" else []:
            shutil.copy(path, folder)
        return Path(shutil.copy(source, folder))

    return make


SOURCES = {
    "nnef": Source("nnef", make_nnef),
    "onnx": Source("onnx", make_onnx),
    "onnx, external data": Source("onnx", make_external),
    "pytorch, a state dict": Source("pytorch", torch_file(lambda torch: {"w": torch.from_numpy(WEIGHT)}), ("torch",)),
    "pytorch, a checkpoint": Source("pytorch", torch_file(checkpoint), ("torch",)),
    "safetensors": Source("safetensors", make_safetensors),
    "safetensors, shards": Source("safetensors", make_shards),
    "keras, .keras": Source("keras", copied("tiny.keras")),
    "keras, .h5": Source("keras", copied("tiny.h5")),
    "keras, .weights.h5": Source("keras", copied("tiny.weights.h5")),
    "tensorflow, a SavedModel": Source("tensorflow", copied("scaled.savedmodel")),
    "tensorflow, a checkpoint": Source("tensorflow", copied("plain.index")),
    "openvino": Source("openvino", make_openvino),
    "skriptnd": Source("skriptnd", make_skriptnd),
    "npz": Source("npz", make_npz),
    "npy": Source("npy", make_npy),
    "gguf": Source("gguf", make_gguf, ("gguf",)),
    "tflite": Source("tflite", make_tflite),
}


def need(*packages: str) -> None:
    """Skip the test unless these packages are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} (extra {package!r}) is not installed")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """Return the bitstream of a source, after checks of its model; it is made once."""

    @cache
    def get(source: str) -> bytes:
        folder = tmp_path_factory.mktemp("source")
        path = SOURCES[source].make(folder)
        assert getattr(formats.recognise(path), "NAME", None) == SOURCES[source].format
        assert run(["encode", str(path), "-o", str(folder / "x.nnr"), "--lossless"]) == 0
        data = (folder / "x.nnr").read_bytes()
        assert lost(nnr.load(path), nnr.decode(data)) == set()
        return data

    return get


@pytest.mark.medium
@pytest.mark.parametrize("suffix", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_from_each_to_each(
    source: str,
    suffix: str,
    encoded: Callable[[str], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    need(*SOURCES[source].packages, *getattr(formats.get(TARGETS[suffix]), "NEEDS", ()))
    need(*getattr(formats.get(TARGETS[suffix]), "NEEDS_TO_WRITE", ()))
    Path("x.nnr").write_bytes(encoded(source))
    before = nnr.decode("x.nnr")
    result = call(capsys, "decode", "x.nnr", "-o", f"y{suffix}")
    *warned, last = result.err.splitlines()
    assert all(line.startswith("nnr: warning: ") for line in warned), result
    if result.code:
        assert result.code == 3, result
        assert last.startswith("nnr: error: ")
        assert list(tmp_path.glob("y*")) == []
        found = REFUSED
    elif not isinstance(formats.get(TARGETS[suffix]), formats.Reading):
        found = WRITTEN
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            after = nnr.load(f"y{suffix}")
        missing = lost(before, after)
        assert_told(missing, result.err)
        assert missing or not warned
        found = "".join(letter for what, (_, letter) in TELLS.items() if what in missing) or NOTHING
    assert found == published()[source][suffix]


@cache
def published() -> dict[str, dict[str, str]]:
    """Return the losses by source and target in the table of the page."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Between formats\n")[2].partition("\n## ")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    )
    return {row[0].strip("`"): dict(zip((name.strip("`") for name in head[1:]), row[1:], strict=True)) for row in rows}


def test_the_table_is_complete() -> None:
    assert list(published()) == list(SOURCES)
    letters = {letter for _, letter in TELLS.values()}
    for row in published().values():
        assert list(row) == list(TARGETS)
        assert all(cell in (NOTHING, REFUSED, WRITTEN) or set(cell) <= letters for cell in row.values())


def test_every_ending_asks_for_its_format() -> None:
    assert {suffix: formats.by_suffix(f"y{suffix}").NAME for suffix in TARGETS} == TARGETS
    writing = {name for name in formats.names() if isinstance(formats.get(name), formats.Writing)}
    assert writing == set(TARGETS.values())


def test_every_format_that_is_read_is_a_source() -> None:
    read = {name for name in formats.names() if isinstance(formats.get(name), formats.Reading)}
    assert read == {source.format for source in SOURCES.values()}


# ------------------------------------------------------------------------------------------------ any tensors
def values(type_name: str) -> Array:
    stored = STORED_TYPES[type_name]
    return from_patterns(np.arange(6).reshape(2, 3) * (1 << max(stored.bits - 4, 0)) // 2, stored)


#: Models that not every format supports.
ODD: dict[str, Model] = {
    **{f"type {name}": Model({"w": values(name)}) for name in STORED_TYPES},
    "big-endian": Model({"w": WEIGHT.astype(">f4")}),
    "complex": Model({"w": WEIGHT.astype("c8")}),
    "text": Model({"w": np.array(["a", "bc"])}),
    "objects": Model({"w": np.array([None, {}], object)}),
    "scalar": Model({"w": np.array(1.5, np.float32)}),
    "empty": Model({"w": np.zeros((0, 3), np.float32)}),
    "no tensors": Model({}),
    "many dimensions": Model({"w": WEIGHT.reshape(*[1] * 20, 2, 3)}),
    "not contiguous": Model({"w": WEIGHT.T}),
    "not-a-number": Model({"w": np.array([np.nan, -np.nan, np.inf, -0.0], np.float32)}),
    "metadata": Model({"w": WEIGHT}, metadata={"by": "Zoë"}),
    "ties": Model({"w": WEIGHT, "again": WEIGHT}, aliases={"again": "w"}),
    "ties to later": Model({"w": WEIGHT, "again": WEIGHT}, aliases={"w": "again"}),
    "topology": Model({"w": WEIGHT}, nnr.Topology("", b"of no known kind")),
    "NNEF": Model({"w": WEIGHT}, nnr.Topology("nnef", graph_text({"w": WEIGHT}))),
    "names of one folder": Model({"a": WEIGHT, "a/b": BIAS, "a/b/c": BIAS}),
    "names in two cases": Model({"w": WEIGHT, "W": BIAS}),
    "names in two forms": Model({"\xe9": WEIGHT, "e\u0301": BIAS}),
    "names of structures": Model({"a.0.b": WEIGHT, "a.b": WEIGHT, "a": BIAS, "a.1": BIAS}),
    **{
        f"name {name[:40]!a}": Model({name: WEIGHT, "b": BIAS})
        for name in (
            "",
            "../x",
            "/x",
            "a//b",
            ".",
            "..",
            "a\\b",
            "C:x",
            "con",
            "a b",
            "a:0",
            "a\nb",
            "a\x1b[31m",
            "\udcff",
            "a\0b",
            "x" * 300,
            "x" * 5000,
            "__metadata__",
            "file",
            "a.npy",
            "keras_version",
            "\N{RIGHT-TO-LEFT OVERRIDE}x",
        )
    },
}


@pytest.mark.medium
@pytest.mark.parametrize("suffix", TARGETS)
def test_any_model_to_each(suffix: str, tmp_path: Path) -> None:
    """The model is restored, a warning lists losses, or FormatError gives the reason and no file is written."""
    target = TARGETS[suffix]
    need(*getattr(formats.get(target), "NEEDS", ()), *getattr(formats.get(target), "NEEDS_TO_WRITE", ()))
    for number, (kind, before) in enumerate(ODD.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            assert_comes_back(before, folder / f"y{suffix}", target)
        except BaseException as error:
            error.add_note(f"model: {kind!a}")
            raise


def assert_comes_back(before: Model, path: Path, target: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            nnr.save(before, path, format=target)
        except nnr.FormatError as error:
            assert str(error)
            assert str(error).isprintable()
            assert list(path.parent.iterdir()) == []
            return
    assert all(issubclass(warning.category, formats.FormatWarning) for warning in caught), caught
    said = "\n".join(str(warning.message) for warning in caught)
    if not isinstance(formats.get(target), formats.Reading):
        return
    after = nnr.load(path, format=target, limits=nnr.Limits.unlimited())
    missing = lost(before, after)
    assert_told(missing, said)
    assert missing or not said
