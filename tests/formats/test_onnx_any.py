"""Random ONNX models made by the package onnx: files and bitstreams restore the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.model import Array

from ..shared import examples

pytestmark = pytest.mark.clients

onnx = pytest.importorskip("onnx")
helper, numpy_helper = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx.numpy_helper")

#: All types except strings and complex numbers.
TYPES = [
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING") and not name.startswith(("COMPLEX", "FLOAT6"))
]


def bits_of(data_type: int) -> Any:
    """Return the unsigned type of the patterns of a type, and the number of its used bits."""
    name = onnx.TensorProto.DataType.Name(data_type)
    if name == "BOOL":
        return np.dtype("u1"), 1
    if name.endswith("INT2") or name.endswith("INT4") or name == "FLOAT4E2M1":
        return np.dtype("u1"), 2 if name.endswith("INT2") else 4
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    return np.dtype(f"u{dtype.itemsize}"), dtype.itemsize * 8


@st.composite
def arrays(draw: st.DrawFn) -> tuple[int, Array]:
    """Draw a type and an array of any bit patterns."""
    data_type = draw(st.sampled_from(TYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    if draw(st.booleans()):
        shape = (*shape, draw(st.integers(17, 40)))
    pattern, bits = bits_of(data_type)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    values = rng.integers(0, (1 << bits) - 1, shape, np.uint64, endpoint=True).astype(pattern)
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    if bits < 8:
        signed = values.astype(np.int8) - ((values >> (bits - 1)) << bits).astype(np.int8)
        name = onnx.TensorProto.DataType.Name(data_type)
        return data_type, (signed if name.startswith("INT") else values).astype(dtype) if name != "FLOAT4E2M1" else (
            values.view(dtype)
        )
    return data_type, values.view(dtype).reshape(shape)


@st.composite
def protos(draw: st.DrawFn, name: str) -> Any:
    """Draw a TensorProto with raw data or typed data."""
    data_type, array = draw(arrays())
    proto = numpy_helper.from_array(array, name)
    assert proto.data_type == data_type
    if draw(st.booleans()) and array.size:
        typed(proto, array)
    if draw(st.booleans()):
        proto.doc_string = draw(st.text(max_size=3))
    return proto


def typed(proto: Any, array: Array) -> None:
    """Move the items of a tensor to the field of its type."""
    kind = onnx.TensorProto.DataType.Name(proto.data_type)
    raw = proto.raw_data
    proto.ClearField("raw_data")
    if kind == "FLOAT":
        proto.float_data.extend(np.frombuffer(raw, "<f4").tolist())
    elif kind == "DOUBLE":
        proto.double_data.extend(np.frombuffer(raw, "<f8").tolist())
    elif kind == "INT64":
        proto.int64_data.extend(np.frombuffer(raw, "<i8").tolist())
    elif kind in ("UINT32", "UINT64"):
        proto.uint64_data.extend(np.frombuffer(raw, f"<u{array.itemsize}").tolist())
    elif kind in ("INT8", "INT16", "INT32"):
        proto.int32_data.extend(np.frombuffer(raw, f"<i{array.itemsize}").tolist())
    else:
        proto.int32_data.extend(np.frombuffer(raw, f"<u{array.itemsize}").tolist())


def sparse(values: Any, name: str) -> Any:
    """Draw a SparseTensorProto with values at every third position."""
    values.name = name
    count = int(np.prod(values.dims))
    del values.dims[:]
    values.dims.append(count)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.arange(count) * 3), [count * 3 + 1])


@st.composite
def graphs(draw: st.DrawFn, depth: int = 0) -> Any:
    """Draw a GraphProto with tensors in all permitted places; it computes nothing."""
    nodes = []
    for k in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["Constant", "Sparse", "If", "Relu"]))
        if kind == "Constant":
            nodes.append(
                helper.make_node("Constant", [], [f"c{k}"], value=draw(protos(draw(st.sampled_from(["", "c"])))))
            )
        elif kind == "Sparse":
            nodes.append(helper.make_node("Constant", [], [f"s{k}"], sparse_value=sparse(draw(protos("")), "")))
        elif kind == "If" and depth < 2:
            branches = {name: draw(graphs(depth + 1)) for name in ("then_branch", "else_branch")}
            nodes.append(helper.make_node("If", ["q"], [f"i{k}"], draw(st.sampled_from(["", "if"])), **branches))
        else:
            nodes.append(helper.make_node("Relu", ["x"], [f"r{k}"]))
    names = draw(st.lists(st.sampled_from(["w", "b", "c1", "if/then_branch/w", "é", "w#2"]), unique=True, max_size=4))
    tensors = [draw(protos(name)) for name in names]
    proto = helper.make_graph(nodes, "g", [], [], tensors)
    if draw(st.booleans()):
        proto.sparse_initializer.append(sparse(draw(protos("")), "sparse"))
    return proto


@st.composite
def models(draw: st.DrawFn) -> Any:
    """Draw a ModelProto."""
    model = helper.make_model(draw(graphs()), producer_name=draw(st.text(max_size=3)))
    if draw(st.booleans()):
        body = [helper.make_node("Constant", [], ["o"], value=draw(protos("")))]
        function = helper.make_function("dom", "f", [], ["o"], body, [helper.make_opsetid("", 20)])
        model.functions.append(function)
    return model


def tensors_of(graph: Any) -> list[Any]:
    """Return the initializers of a graph and of its subgraphs."""
    inner = [tensors_of(attribute.g) for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.initializer, *(proto for each in inner for proto in each)]


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(models(), st.booleans())
def test_any_model(model: Any, exact: bool) -> None:
    data = model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "m.onnx", Path(folder) / "out.onnx"
        source.write_bytes(data)
        loaded = formats.load(source)
        assert loaded.format == "onnx"
        formats.save(nnr.decode(nnr.encode(loaded, exact=True)) if exact else loaded, target)
        assert target.read_bytes() == data
        assert loaded.topology is not None
        left = onnx.ModelProto.FromString(loaded.topology.data)
        assert [proto.name for proto in left.graph.initializer] == [proto.name for proto in model.graph.initializer]
        outer = {name: array for name, array in loaded.tensors.items() if "/" not in name and "#" not in name}
    for proto in model.graph.initializer:
        if proto.name in outer and proto.name != "c1":
            assert numpy_helper.to_array(proto).tobytes() == outer[proto.name].tobytes()


@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(models(), st.lists(st.sampled_from(["a.bin", "b/c.bin"]), min_size=1, max_size=4), st.integers(0, 20))
def test_any_model_with_data_in_several_files(model: Any, places: Sequence[str], size: int) -> None:
    """The restored model has one such file; the package reads the same tensors from it."""
    expected = [numpy_helper.to_array(proto) for proto in tensors_of(model.graph)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "b").mkdir()
        for k, proto in enumerate(tensors_of(model.graph)):
            if proto.HasField("raw_data") and len(proto.raw_data) >= size:
                external(proto, folder, places[k % len(places)])
        source, target = folder / "m.onnx", folder / "out.onnx"
        source.write_bytes(model.SerializeToString())
        formats.save(nnr.decode(nnr.encode(formats.load(source), exact=True)), target)
        found = onnx.load(target)
        tensors = [numpy_helper.to_array(proto) for proto in tensors_of(found.graph)]
        assert [(a.dtype, a.shape, a.tobytes()) for a in tensors] == [(a.dtype, a.shape, a.tobytes()) for a in expected]
        other = folder / "out.onnx.data"
        proto = onnx.load(target, load_external_data=False)
        told = {
            entry.value for each in tensors_of(proto.graph) for entry in each.external_data if entry.key == "location"
        }
        assert told <= {"out.onnx.data"}
        assert other.exists() == bool(told)


def external(proto: Any, folder: Path, location: str) -> None:
    """Move raw data to the end of a file."""
    with open(folder / location, "ab") as file:
        offset = file.tell()
        file.write(proto.raw_data)
    told = {"location": location, "offset": str(offset), "length": str(len(proto.raw_data))}
    for key, value in told.items():
        proto.external_data.add(key=key, value=value)
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.ClearField("raw_data")


def test_files_that_the_package_writes_come_back(tmp_path: Path) -> None:
    """With external data, both files are the same if they have the same names."""
    tensors = [numpy_helper.from_array(np.full(1000 + k, k, np.float32), f"w{k}") for k in range(5)]
    model = helper.make_model(helper.make_graph([], "g", [], [], tensors))
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "m.onnx"
    onnx.save(model, source, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    formats.save(nnr.decode(nnr.encode(formats.load(source), exact=True)), tmp_path / "m.onnx")
    for name in ("m.onnx", "m.onnx.data"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
    # An entry states that data were read in, and is kept.
    onnx.save(onnx.load(source), tmp_path / "one.onnx")
    formats.save(formats.load(tmp_path / "one.onnx"), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "one.onnx").read_bytes()
    assert b"\x70\x00" in (tmp_path / "one.onnx").read_bytes()
