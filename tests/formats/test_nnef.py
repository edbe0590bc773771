"""Tests of loading, saving and converting NNEF models."""

from __future__ import annotations

import gzip
import io
import os
import warnings
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.nnef import NnefTensors
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Topology

from ..shared import SHARED, examples, needs_shared
from .support import (
    SYNTHETIC,
    assert_same,
    dat,
    graph_text,
    minimal,
    nnef_model,
    regular,
    tar_bytes,
    tree,
    write_folder,
)

_REFUSED = {
    "dtype_conflict": r"w\.dat contains float32, which is scalar data; graph\.nnef:5 says integer",
    "missing_dat": r"w\.dat is missing",
    "shape_conflict": r"w\.dat has shape \(1, 2\); graph\.nnef:5 says \(2, 1\)",
    "traversal": r"label '\.\./\.\./evil' has a component '\.\.'",
}
_LABELS = {
    "compositional": ["blk/w"],
    "flat": ["block/w"],
    "integer_logical": ["i", "b", "w"],
    "label_first": ["w.a-b"],
    "leading_slash": ["/net/w"],
    "shared_label_case": ["w"],
    "update_rnn": ["state/h"],
}
_GRAPHS = sorted(path.name for path in (SYNTHETIC / "graphs").iterdir())
_MODELS = sorted(SHARED.glob("models/*.nnef")) if SHARED else []


def left_out(folder: Path, model: Model) -> dict[str, bytes]:
    """Return the files of a directory that a model of it does not keep."""
    kept = {"graph.nnef", "graph.quant"} | {f"{label.removeprefix('/')}.dat" for label in model}
    return {name: data for name, data in tree(folder).items() if name not in kept}


@pytest.mark.parametrize("name", [name for name in _GRAPHS if name not in _REFUSED])
def test_synthetic_models_are_read(name: str, tmp_path: Path) -> None:
    folder = SYNTHETIC / "graphs" / name
    with pytest.warns(formats.FormatWarning, match=r"NOTE\.txt"):
        model = formats.load(folder)
    assert isinstance(model.tensors, NnefTensors)
    assert list(model) == _LABELS.get(name, ["w"])
    quantization = (folder / "graph.quant").read_bytes() if name == "quantized" else None
    assert model.topology == Topology("nnef", (folder / "graph.nnef").read_bytes(), quantization)
    formats.save(model, tmp_path / "m.nnef")
    extra = {"README.txt", "vendor/opt.bin", "w.dat.q8"} if name == "extra_files" else set()
    expected = {path: data for path, data in tree(folder).items() if path not in {"NOTE.txt", *extra}}
    assert tree(tmp_path / "m.nnef") == expected


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_synthetic_models_are_refused_with_the_reason(name: str) -> None:
    assert name in _GRAPHS
    with pytest.raises(FormatError, match=_REFUSED[name]) as caught:
        formats.load(SYNTHETIC / "graphs" / name)
    assert str(caught.value).startswith(str(SYNTHETIC / "graphs" / name))


def test_extra_files_are_named_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        formats.load(SYNTHETIC / "graphs" / "extra_files")
    (warning,) = caught
    assert warning.category is formats.FormatWarning
    assert warning.filename == __file__
    assert str(warning.message).endswith("left out: 'NOTE.txt', 'README.txt', 'vendor/opt.bin', 'w.dat.q8'")


@pytest.mark.medium
@needs_shared
@pytest.mark.parametrize("source", _MODELS, ids=lambda path: path.name)
def test_real_models_survive_byte_for_byte(source: Path, tmp_path: Path) -> None:
    model = formats.load(source)
    for name in ("m.nnef", "m.nnef.tar", "m.nnef.tgz"):
        formats.save(model, tmp_path / name)
        model = formats.load(tmp_path / name)
        assert isinstance(model.tensors, NnefTensors)
    formats.save(model, tmp_path / "back.nnef")
    assert tree(tmp_path / "m.nnef") == tree(source) == tree(tmp_path / "back.nnef")


_TENSORS = st.dictionaries(
    st.from_regex(r"[a-z]{2}(/[a-z0-9_-]{1,3}){0,2}", fullmatch=True),
    st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"]).flatmap(
        lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4))
    ),
    max_size=4,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(_TENSORS, st.sampled_from(["m.nnef", "m.tar", "m.tgz"]))
def test_any_model_survives(tmp_path: Path, tensors: dict[str, Array], name: str) -> None:
    model = nnef_model({label: array for label, array in tensors.items() if label != "graph"})
    formats.save(model, tmp_path / name, overwrite=True)
    result = formats.load(tmp_path / name)
    assert result.topology == model.topology
    assert_same(model.tensors, result.tensors)


def test_order_is_that_of_the_graph(tmp_path: Path) -> None:
    tensors = {label: np.full((1,), index, np.float32) for index, label in enumerate(["z", "a/b", "m", "a/a"])}
    for name in ("m.nnef", "m.tar", "m.tgz"):
        formats.save(nnef_model(tensors), tmp_path / name)
        assert_same(formats.load(tmp_path / name).tensors, tensors)


def test_texts_are_kept_byte_for_byte(tmp_path: Path) -> None:
    text = graph_text({"w": np.zeros(1)}).replace(b"\n", b"\r\n") + "# caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode()
    quantization = b"'y': linear_quantize(min = 0.0, max = 1.0, bits = 8);\r\n"
    model = Model({"w": np.zeros(1)}, Topology("nnef", text, quantization))
    for name in ("m.nnef", "m.tar", "m.tgz"):
        formats.save(model, tmp_path / name)
        assert formats.load(tmp_path / name).topology == model.topology


@pytest.mark.parametrize("name", ["graph.nnef", "graph.quant"])
@pytest.mark.parametrize(("bad", "message"), [(b"# \xff", "is not UTF-8"), (b"# \0", "is NUL")])
def test_texts_must_be_null_terminated_strings(tmp_path: Path, name: str, bad: bytes, message: str) -> None:
    files = {"graph.quant": b"", **minimal()}
    files[name] += bad
    with pytest.raises(FormatError, match=rf"{name}: byte \d+ {message}"):
        formats.load(write_folder(tmp_path / "m", files))
    model = Model({"a/w": np.zeros((1, 2), np.float32)}, Topology("nnef", files["graph.nnef"], files["graph.quant"]))
    with pytest.raises(FormatError, match=rf"{name}: byte \d+ {message}"):
        formats.save(model, tmp_path / "out.nnef")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_access_reads_again(tmp_path: Path) -> None:
    for name in ("m.nnef", "m.tar"):
        formats.save(nnef_model({"w": np.zeros(3, np.float32)}), tmp_path / name)
        model = formats.load(tmp_path / name)
        one = model["w"]
        one.reshape(-1)[...] = 7
        assert model["w"] is not one
        assert not model["w"].any()
        assert "w" in model.tensors
        assert "v" not in model.tensors
        with pytest.raises(KeyError):
            model["v"]


def test_file_that_changed_is_refused(tmp_path: Path) -> None:
    for name in ("m.nnef", "m.tar"):
        formats.save(nnef_model({"w": np.zeros(3, np.float32)}), tmp_path / name)
        model = formats.load(tmp_path / name)
        formats.save(nnef_model({"w": np.zeros(3, np.int32)}), tmp_path / name, overwrite=True)
        with pytest.raises(FormatError, match=r"(w\.dat|the archive) has changed"):
            model["w"]


def test_model_may_be_saved_over_its_source(tmp_path: Path) -> None:
    for name in ("m.nnef", "m.tar"):
        tensors: dict[str, Array] = {"a": np.arange(5, dtype=np.float32), "b": np.arange(6, dtype=np.int8)}
        formats.save(nnef_model(tensors), tmp_path / name)
        formats.save(formats.load(tmp_path / name), tmp_path / name, overwrite=True)
        assert_same(formats.load(tmp_path / name).tensors, tensors)


def test_all_tensors_count_against_the_limits(tmp_path: Path) -> None:
    formats.save(nnef_model({"a": np.zeros(10, np.float32), "b": np.zeros(10, np.float32)}), tmp_path / "m.nnef")
    formats.load(tmp_path / "m.nnef", limits=Limits(max_total_bytes=80))
    with pytest.raises(LimitError, match="max_total_bytes"):
        formats.load(tmp_path / "m.nnef", limits=Limits(max_total_bytes=79))


@pytest.mark.skipif(os.name != "posix", reason="file systems that tell cases apart")
def test_spellings_of_one_label(tmp_path: Path) -> None:
    array = np.arange(2, dtype=np.float32)
    text = graph_text({"w/x": array, "W/X": array, "w/X": array})
    files = {"graph.nnef": text, "W/X.dat": dat(array)}
    model = formats.load(write_folder(tmp_path / "one", files))
    assert_same(model.tensors, {"w/x": array})
    for name in ("m.nnef", "m.tar", "m.tgz"):
        formats.save(model, tmp_path / name)
        assert_same(formats.load(tmp_path / name).tensors, {"w/x": array})
    assert set(tree(tmp_path / "m.nnef")) == {"graph.nnef", "w/x.dat", "W/X.dat", "w/X.dat"}
    # A decoder may use any spelling of the tensor's name.
    formats.save(Model({"W/X": array}, model.topology), tmp_path / "n.nnef")
    assert tree(tmp_path / "n.nnef") == tree(tmp_path / "m.nnef")
    files.update({"w/X.dat": dat(array + 1)})
    packed = tar_bytes(regular(files))
    (tmp_path / "o.tar").write_bytes(packed)
    (tmp_path / "o.tgz").write_bytes(gzip.compress(packed))
    for source in (write_folder(tmp_path / "o.nnef", files), tmp_path / "o.tar", tmp_path / "o.tgz"):
        with pytest.raises(FormatError, match="differ, although their labels differ only in case"):
            formats.load(source)


def test_variable_without_tensor() -> None:
    model = Model({}, Topology("nnef", graph_text({"a": np.zeros(1)})))
    with pytest.raises(FormatError, match="no tensor 'a' for the variable in line 5"):
        formats.save(model, io.BytesIO())


def test_tensor_without_variable_is_left_out() -> None:
    model = nnef_model({"a": np.zeros(1)})
    file = io.BytesIO()
    with pytest.warns(formats.FormatWarning, match="that are not variables of the graph are left out: 'b'$") as caught:
        formats.save(Model({**model.tensors, "b": np.zeros(1)}, model.topology), file)
    assert caught[0].filename == __file__
    assert list(formats.load(io.BytesIO(file.getvalue()))) == ["a"]


@pytest.mark.parametrize("topology", [None, Topology("", b""), Topology("onnx", b"x")])
def test_model_without_graph(topology: Topology | None, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"requires a graph of nnef.* write a \.safetensors or \.npz"):
        formats.save(Model({"a": np.zeros(1)}, topology), tmp_path / "m.nnef")
    assert list(tmp_path.iterdir()) == []


def resaved(array: Array, data_type: str, shape: str) -> Array:
    text = f"version 1.0; graph g(x) -> (y) {{ v = variable<{data_type}>(shape = {shape}, label = 'w'); }}"
    file = io.BytesIO()
    formats.save(Model({"w": array}, Topology("nnef", text.encode())), file)
    return formats.load(io.BytesIO(file.getvalue()))["w"]


@pytest.mark.parametrize(
    ("shape", "declared"),
    [((3,), "[1, 3]"), ((3,), "[3, 1]"), ((1, 3, 1, 2), "[3, 2]"), ((), "[1, 1]"), ((1,), "[]"), ((2, 3), "[2, 3]")],
)
def test_extents_of_one_carry_no_meaning(shape: tuple[int, ...], declared: str) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    result = resaved(array, "scalar", declared)
    assert list(result.shape) == eval(declared)
    assert result.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("shape", "declared"), [((3,), "[1, 4]"), ((2, 3), "[3, 2]"), ((6,), "[2, 3]"), ((2, 3), "[6]")]
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], declared: str) -> None:
    with pytest.raises(FormatError, match=r"tensor 'w' has shape .*; graph\.nnef:1 says"):
        resaved(np.zeros(shape, np.float32), "scalar", declared)


@pytest.mark.parametrize("dtype", ["i1", "i4", "u2", "u8"])
def test_scalar_variables_may_be_quantized(dtype: str) -> None:
    with pytest.warns(
        formats.FormatWarning, match="scalar variables contain integers, but have no entry in graph.quant: 'w'"
    ):
        result = resaved(np.array([1, 2, 3], dtype), "scalar", "[3]")
    assert result.dtype == dtype
    assert result.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["i1", "i4", "u1", "b1"])
def test_logical_variables_are_booleans(dtype: str) -> None:
    result = resaved(np.array([0, 1, 1], dtype), "logical", "[3]")
    assert result.dtype == np.bool_
    assert result.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("array", "data_type"),
    [
        (np.array([0, 2], np.int8), "logical"),
        (np.array([0, -1], np.int8), "logical"),
        (np.array([0, 1], np.float32), "logical"),
        (np.array([0, 1], np.float32), "integer"),
        (np.array([0, 1], np.bool_), "integer"),
        (np.array([0, 1], np.bool_), "scalar"),
        (np.array([0, 1], np.complex64), "scalar"),
        (np.array(["a", "b"]), "scalar"),
    ],
    ids=lambda value: f"{value.dtype}" if isinstance(value, np.ndarray) else value,
)
def test_dtypes_that_do_not_fit(array: Array, data_type: str) -> None:
    with pytest.raises(FormatError, match=rf"tensor 'w' is .*; graph\.nnef:1 says {data_type}"):
        resaved(array, data_type, "[2]")


@pytest.mark.parametrize("name", ["m.nnef", "m.tar", "m.tgz"])
def test_failure_leaves_nothing(tmp_path: Path, name: str) -> None:
    model = nnef_model({"a": np.zeros(2, np.float32), "z": np.zeros(2, np.float32)})
    with pytest.raises(FormatError, match="tensor 'z' is bool"):
        formats.save(Model({**model.tensors, "z": np.zeros(2, np.bool_)}, model.topology), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    formats.save(model, tmp_path / name)
    with pytest.raises(FileExistsError):
        formats.save(model, tmp_path / name)
