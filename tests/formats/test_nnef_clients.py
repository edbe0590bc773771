"""Khronos' reader and writer agree with nnr_codec for all files that they can read."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.formats.nnef.dataflow import flow
from nnr_codec.formats.nnef.graph import parse_graph
from nnr_codec.formats.nnef.tensorfile import read_tensor
from nnr_codec.limits import Budget, Limits

from .. import engines
from ..engines import Job
from ..shared import SHARED, needs_shared
from .support import SYNTHETIC, dat, nnef_model, tree, write_folder
from .test_shapes import BROKEN, SHAPES, document

nnef = pytest.importorskip("nnef", reason="the package nnef (extra 'clients') is not installed")

pytestmark = [pytest.mark.medium, pytest.mark.clients]

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
    assert ours.document.graph.name.name == theirs.name
    assert [(v.identifier, v.dtype, v.shape, v.label) for v in ours.variables] == expected


@needs_shared
@pytest.mark.parametrize("source", _MODELS, ids=lambda path: path.name)
def test_real_graphs_agree(source: Path) -> None:
    compare_graph((source / "graph.nnef").read_text())


@needs_shared
@pytest.mark.parametrize("source", _MODELS, ids=lambda path: path.name)
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


_SHAPE = (2, 3, 1, 2, 1, 1, 1, 2)
_DATA_TYPES = {"f": "scalar", "i": "integer", "u": "integer", "b": "logical"}


def results_graph(dtype: str, shapes: list[tuple[int, ...]]) -> bytes:
    """Return a document whose results are its variables, with labels ``w0``, ``w1`` and so on."""
    names = [f"v{k}" for k in range(len(shapes))]
    variables = "".join(
        f"    {name} = variable<{dtype}>(shape = {list(shape)}, label = 'w{k}');\n"
        for k, (name, shape) in enumerate(zip(names, shapes, strict=True))
    )
    return (
        f"version 1.0;\n\ngraph g(x) -> ({', '.join(names)})\n{{\n"
        f"    x = external<scalar>(shape = [1]);\n{variables}}}\n"
    ).encode()


def decoded(model: nnr.Model, folder: Path) -> Path:
    """Return an NNEF folder decoded from a lossless bitstream of the model."""
    nnr.save(nnr.decode(nnr.encode(model, exact=True)), folder)
    return folder


@pytest.mark.parametrize("dtype", _DTYPES)
def test_both_read_every_type_and_rank(dtype: str, tmp_path: Path) -> None:
    engines.needs("tract")
    rng = np.random.default_rng(2)
    low, high = (0, 2) if dtype == "b1" else (-100, 100) if dtype[0] in "fi" else (0, 200)
    arrays = [np.asarray(rng.integers(low, high, _SHAPE[:rank]).astype(dtype)) for rank in range(9)]
    graph = results_graph(_DATA_TYPES[dtype[0]], [array.shape for array in arrays])
    model = nnr.Model({f"w{rank}": array for rank, array in enumerate(arrays)}, nnr.Topology("nnef", graph))
    folder = decoded(model, tmp_path / "m.nnef")
    khronos = nnef.load_graph(str(folder))
    (tract,) = engines.run("tract", [Job(folder, None, tmp_path / "outputs.npz")])
    assert not tract.error
    for rank, array in enumerate(arrays):
        for read in (khronos.tensors[f"v{rank}"].data, tract.outputs[rank]):
            assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


_CAST = b"""version 1.0;

extension tract_registry tract_core;

graph g(x) -> (y)
{
    x = external<scalar>(shape = [1]);
    v = variable<scalar>(shape = [2, 3], label = 'w');
    y = tract_core_cast(v, to = 'f32');
}
"""


@pytest.mark.parametrize(("dtype", "zero_point"), [("i1", -3), ("u1", 128), ("i4", 0)])
def test_both_read_quantized_tensors(dtype: str, zero_point: int, tmp_path: Path) -> None:
    """Integers of a scalar variable are written as quantized tensors, which ``graph.quant`` converts to numbers."""
    engines.needs("tract")
    array = np.array([[0, 1, 2], [3, 100, 127]], dtype)
    quant = (
        f'"v": zero_point_linear_quantize(zero_point = {zero_point}, scale = 0.5, bits = {array.itemsize * 8}, '
        f"signed = {'false' if dtype[0] == 'u' else 'true'}, symmetric = false);\n"
    )
    model = nnr.Model({"w": array}, nnr.Topology("nnef", _CAST, quant.encode()))
    folder = decoded(model, tmp_path / "m.nnef")
    with open(folder / "w.dat", "rb") as file:
        read, quantized = nnef.read_tensor(file, return_quantization=True)
    assert quantized
    assert (read.dtype, read.tolist()) == (array.dtype, array.tolist())
    (tract,) = engines.run("tract", [Job(folder, None, tmp_path / "outputs.npz")])
    assert not tract.error
    assert tract.outputs[0].tolist() == ((array.astype(np.float64) - zero_point) * 0.5).tolist()


def test_booleans_of_eight_bits(tmp_path: Path) -> None:
    """They are unchanged: tract reads them, Khronos' Python package does not."""
    engines.needs("tract")
    data = (SYNTHETIC / "dat" / "bool8.dat").read_bytes()
    with open(SYNTHETIC / "dat" / "bool8.dat", "rb") as file, pytest.raises(ValueError, match="unsupported"):
        nnef.read_tensor(file)
    shape = tuple(int.from_bytes(data[12 + 4 * k : 16 + 4 * k], "little") for k in range(data[8]))
    files = {"graph.nnef": results_graph("logical", [shape]), "w0.dat": data}
    source = write_folder(tmp_path / "in.nnef", files)
    folder = decoded(nnr.load(source), tmp_path / "out.nnef")
    assert tree(folder) == files
    before, after = engines.run("tract", [Job(path, None, tmp_path / f"{path.stem}.npz") for path in (source, folder)])
    assert not before.error
    assert after.outputs[0].tobytes() == before.outputs[0].tobytes()


def test_integers_of_nnef_1_0(tmp_path: Path) -> None:
    """Khronos' reader uses the parameter that marks them as signed, so it is kept."""
    data = (SYNTHETIC / "dat" / "legacy_int_signed.dat").read_bytes()
    with open(SYNTHETIC / "dat" / "legacy_int_signed.dat", "rb") as file:
        before = nnef.read_tensor(file)
    assert before.min() < 0
    source = {"graph.nnef": results_graph("integer", [before.shape]), "w0.dat": data}
    folder = decoded(nnr.load(write_folder(tmp_path / "in.nnef", source)), tmp_path / "out.nnef")
    with open(folder / "w0.dat", "rb") as file:
        after = nnef.read_tensor(file)
    assert (after.dtype, after.tolist()) == (before.dtype, before.tolist())


def test_a_model_that_kills_an_engine(tmp_path: Path) -> None:
    """The remaining runs are still executed; Khronos' interpreter crashes on float16."""
    half = nnr.Model({"w0": np.ones((1, 2), "f2")}, nnr.Topology("nnef", results_graph("scalar", [(1, 2)])))
    single = nnr.Model({"w0": np.ones((1, 2), "f4")}, nnr.Topology("nnef", results_graph("scalar", [(1, 2)])))
    folders = [decoded(half, tmp_path / "half.nnef"), decoded(single, tmp_path / "single.nnef")]
    first, second = engines.run("nnef", [Job(folder, None, folder.with_suffix(".npz")) for folder in folders])
    assert first.error.startswith("nnef exited with code -")
    assert (second.error, second.outputs[0].tolist()) == ("", [[1, 1]])


def inferred(text: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes that Khronos' package infers; raise an error for graphs that it rejects."""
    graph = nnef.parse_string(text)
    nnef.infer_shapes(graph)
    return {name: tuple(tensor.shape) for name, tensor in graph.tensors.items() if tensor.shape is not None}


#: Beginnings of expressions without a shape in Khronos' package.
_NOT_INFERRED = (
    "2.0 + 1.0",  # a constant
    *("max_pool_with_index", "moments", "split", "unstack", "copy_n"),  # items of results
    *("twice", "flat", "last", "pair"),  # fragments of the test
    *("x if", "reshape(x, shape = [for", "reshape(x, shape = shape_of"),  # shape_of
    "sample",  # it requires an index of the shape of the input
    *("max_roi_pool", "avg_roi_align"),  # it requires a batch index of rank 1
)


@pytest.mark.parametrize("expression", [text for text, shape in SHAPES.items() if shape is not None])
def test_shapes_of_results_equal_khronos(expression: str) -> None:
    if expression.startswith(_NOT_INFERRED):
        with pytest.raises((nnef.Error, ValueError, KeyError)):
            inferred(document(f"y = {expression};", ""))["y"]
    else:
        assert inferred(document(f"y = {expression};", ""))["y"] == SHAPES[expression]


#: Rules that Khronos' package does not have, or that it applies to fewer operations (``docs/reference/nnef.md``).
_ACCEPTED = {"argument-value": 1, "window-extent": 4, "index-shape": 1, "reshape-volume": 1, "slice-range": 3}


def test_faulty_operands_are_rejected_by_khronos() -> None:
    accepted: Counter[str] = Counter()
    for rule, _, body in BROKEN:
        if rule != "shape-limit":
            try:
                inferred(document(body.replace("@", ""), ""))
                accepted[rule] += 1
            except (nnef.Error, ValueError, TypeError, IndexError):  # the last two are defects of the package
                pass
    assert accepted == _ACCEPTED


@needs_shared
def test_shapes_in_models_equal_khronos() -> None:
    """All models of the corpus that its package reads are compared, except one that both reject."""
    assert SHARED
    sources = [*SHARED.glob("nnef_corpus/**/graph.nnef"), *SHARED.glob("models/*/graph.nnef")]
    sources += SHARED.glob("nnef_corpus/khronos*/**/*.txt")
    models = tensors = 0
    for source in sources:
        try:
            theirs = inferred(source.read_text("utf-8"))
        except nnef.Error:
            continue
        names = flow(parse_graph(source.read_bytes())).names
        assert {name: names[name].shape for name in theirs} == theirs
        models, tensors = models + 1, tensors + len(theirs)
    assert (models, tensors) == (35, 2286)
