"""ONNX models by hand: extracted tensors, their names and places, and rejected models."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats.lazy import LazyTensors
from nnr_codec.formats.onnx import writing
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Topology

from . import onnx_files as made
from .onnx_files import constant, entries, field, model, node, tensor
from .support import Pipe, assert_same

W = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([0.5, -1], np.float32)
LONG = np.arange(20)


def saved(loaded: Model) -> bytes:
    """Return the single file of a model."""
    file = io.BytesIO()
    formats.save(loaded, file, format="onnx")
    return file.getvalue()


def emptied(data: bytes) -> bytes:
    """Return the topology of a model."""
    topology = formats.load(data).topology
    assert topology is not None
    assert topology.format == "onnx"
    return topology.data


# ------------------------------------------------------------------------------------------------ extracted tensors
def test_bytes_by_hand() -> None:
    data = bytes.fromhex(
        "0808 12 03 6f 6e 65"  # ir_version 8, producer_name one
        "3a 25"  # the graph
        "0a 0a 0a01 78 0a01 77 2202 4164"  # a node of operation Ad
        "2a 13 0802 1001 420177 4a08 0000803f000000c0 7a00"  # w: float32 [2], and an unknown field
        "fa7f 01 00"  # another one
        "4202 1011"  # opset 17
    )
    loaded = formats.load(data)
    assert_same({"w": np.array([1, -2], np.float32)}, dict(loaded.tensors))
    assert loaded.format == "onnx"
    assert loaded.topology is not None
    assert loaded.topology.data == data.replace(bytes.fromhex("4a08 0000803f000000c0"), bytes.fromhex("4a00")).replace(
        b"\x3a\x25", b"\x3a\x1d"
    ).replace(b"\x2a\x13", b"\x2a\x0b")
    assert saved(loaded) == data


STAYING: dict[str, bytes] = {
    "a scalar": tensor("s", np.float32(2)),
    "few integers": tensor("s", np.arange(16)),
    "few booleans": tensor("s", np.zeros(16, bool)),
    "strings": field(1, 20) + field(2, 8) + field(8, "s") + field(6, "text") * 20,
    "complex numbers": field(1, 20) + field(2, 14) + field(8, "s") + field(9, bytes(160)),
    "a type of later": field(1, 32) + field(2, 27) + field(8, "s") + field(9, bytes(24)),
    "a segment": tensor("s", W) + field(3, b""),
    "nothing": tensor("s", np.zeros((0, 3), np.float32)),
    "no data": tensor("s", W, b""),
    "data in two parts": tensor("s", W, field(4, bytes(12)) * 2),
    "data of two kinds": tensor("s", W, field(4, bytes(24)) + field(9, bytes(24))),
    "data that are not packed": tensor("s", np.float32([1]), field(4, 1.0)),
    "data of another type": tensor("s", W, field(10, bytes(24))),
}


@pytest.mark.parametrize("kept", STAYING.values(), ids=STAYING)
def test_what_stays(kept: bytes) -> None:
    data = model(tensors=[tensor("w", W), kept])
    loaded = formats.load(data)
    assert list(loaded) == ["w"]
    assert kept in emptied(data)
    assert saved(loaded) == data


TAKEN = {
    "one number that is no scalar": np.float32([1]),
    "more integers": np.arange(17),
    "more booleans": np.ones(17, bool),
    "few numbers": np.float16([1, 2]),
}


@pytest.mark.parametrize("array", TAKEN.values(), ids=TAKEN)
def test_extracted_tensors(array: Array) -> None:
    data = model(tensors=[tensor("w", array)])
    loaded = formats.load(data)
    assert_same({"w": array}, dict(loaded.tensors))
    assert emptied(data) == model(tensors=[tensor("w", array, field(9, b""))])
    assert saved(loaded) == data


def test_constants() -> None:
    """Small constants of any type stay in the graph; an attribute of another name or operation is not a constant."""
    few, many = np.ones(16, np.float32), np.ones(17, np.float32)
    nodes = [
        constant("few", tensor("", few)),
        constant("many", tensor("named otherwise", many)),
        node("Constant", [], ["other"], other=field(5, tensor("", many))),
        node("ConstantOfShape", ["few"], ["filled"], value=field(5, tensor("", many))),
        constant("vendor", tensor("", many)) + field(7, "com.vendor"),
        node("Constant", [], ["floats"], value_floats=field(7, 1.0) * 20),
    ]
    data = model(nodes)
    assert_same({"many": many}, dict(formats.load(data).tensors))
    assert saved(formats.load(data)) == data


def test_names_in_inner_graphs_and_functions() -> None:
    inner = made.graph([constant("c", tensor("", LONG))], [tensor("w", W)])
    deeper = made.graph([node("If", ["b"], ["q"], "if", then_branch=field(6, inner))])
    nodes = [
        node("Loop", ["a"], ["first", "second"], body=field(6, deeper)),
        node("Two", ["a"], ["z"], "two", graphs=field(11, inner) * 2),
    ]
    bodies = [
        field(1, "f") + field(7, constant("c", tensor("", LONG))) + field(10, "dom") + field(13, "over"),
        field(1, "f") + field(7, node("If", [], ["o"], "n", else_branch=field(6, inner))),
    ]
    data = model(nodes, [tensor("w", W)], after=b"".join(field(25, body) for body in bodies))
    loaded = formats.load(data)
    assert list(loaded) == [
        "first/body/if/then_branch/c",
        "first/body/if/then_branch/w",
        "two/graphs/0/c",
        "two/graphs/0/w",
        "two/graphs/1/c",
        "two/graphs/1/w",
        "w",
        "dom:f:over/c",
        "f/n/else_branch/c",
        "f/n/else_branch/w",
    ]
    assert saved(loaded) == data


def test_names_that_are_there_already() -> None:
    inner = made.graph([], [tensor("w", W)])
    nodes = [node("If", ["c"], ["o"], "n", then_branch=field(6, inner)), constant("v#2", tensor("", LONG))]
    tensors = [tensor(name, W) for name in ("n/then_branch/w", "v", "v", "v", "v#2")]
    loaded = formats.load(model(nodes, tensors))
    assert set(loaded) == {"n/then_branch/w", "n/then_branch/w#2", "v", "v#2", "v#3", "v#4", "v#2#2"}
    assert saved(loaded) == model(nodes, tensors)


def test_sparse_tensors() -> None:
    values, indices = np.arange(1, 21, dtype=np.float32), np.arange(20) * 3
    sparse = field(1, tensor("s", values)) + field(2, tensor("", indices)) + field(3, 100)
    nodes = [node("Constant", [], ["c"], sparse_value=field(22, sparse))]
    data = model(nodes, more=field(15, sparse))
    expected = {"c": values, "c/indices": indices, "s": values, "s/indices": indices}
    assert_same(expected, dict(formats.load(data).tensors))
    assert saved(formats.load(data)) == data


def test_graphs_for_training() -> None:
    info = field(1, made.graph([], [tensor("w", W)])) + field(2, made.graph([constant("c", tensor("", LONG))]))
    data = model(tensors=[tensor("w", W)], after=field(20, info) * 2)
    names = ["initialization/w", "algorithm/c"]
    assert list(formats.load(data)) == ["w", *(f"training_info/{place}/{name}" for place in (0, 1) for name in names)]
    assert saved(formats.load(data)) == data


# ------------------------------------------------------------------------------------------------ items
def u(*values: int) -> bytes:
    """Return packed varints."""
    return b"".join(map(made.varint, values))


TYPED: list[tuple[int, Any, list[float], bytes]] = [
    (1, np.float32, [1.5, -2], field(4, np.float32([1.5, -2]).tobytes())),
    (11, np.float64, [1.5, -2], field(10, np.float64([1.5, -2]).tobytes())),
    (2, np.uint8, [0, 255], field(5, u(0, 255))),
    (3, np.int8, [-128, 127], field(5, u(-128, 127))),
    (4, np.uint16, [0, 65535], field(5, u(0, 65535))),
    (5, np.int16, [-1, 5], field(5, u(-1, 5))),
    (6, np.int32, [-(2**31), 2**31 - 1], field(5, u(-(2**31), 2**31 - 1))),
    (7, np.int64, [-(2**63), 2**63 - 1], field(7, u(-(2**63), 2**63 - 1))),
    (12, np.uint32, [0, 2**32 - 1], field(11, u(0, 2**32 - 1))),
    (13, np.uint64, [0, 2**64 - 1], field(11, u(0, 2**64 - 1))),
    (9, np.bool_, [0, 1], field(5, u(0, 1))),
    (10, np.float16, [1, -2], field(5, u(0x3C00, 0xC000))),
    (16, ml_dtypes.bfloat16, [1, -2], field(5, u(0x3F80, 0xC000))),
    (17, ml_dtypes.float8_e4m3fn, [1, -2], field(5, u(0x38, 0xC0))),
    (18, ml_dtypes.float8_e4m3fnuz, [1, -2], field(5, u(0x40, 0xC8))),
    (19, ml_dtypes.float8_e5m2, [1, -2], field(5, u(0x3C, 0xC0))),
    (20, ml_dtypes.float8_e5m2fnuz, [1, -2], field(5, u(0x40, 0xC4))),
    (21, ml_dtypes.uint4, [15, 0], field(5, u(0x0F))),
    (22, ml_dtypes.int4, [-8, 7], field(5, u(0x78))),
    (23, ml_dtypes.uint4, [2, 12], field(5, u(0xC2))),
    (24, np.uint8, [127, 128], field(5, u(127, 128))),
    (25, ml_dtypes.uint2, [3, 1], field(5, u(0b0111))),
    (26, ml_dtypes.int2, [-2, 1], field(5, u(0b0110))),
]


@pytest.mark.parametrize(("code", "dtype", "pair", "data"), TYPED, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("raw", [False, True])
def test_items_of_every_type(code: int, dtype: Any, pair: list[float], data: bytes, raw: bool) -> None:
    """Nine pairs of items and one more are in raw data or in the field of the type."""
    array = np.array([*pair * 9, pair[0]], np.float64 if code not in (7, 13) else object).astype(dtype)
    per_byte = {21: 2, 22: 2, 23: 2, 25: 4, 26: 4}.get(code)
    if per_byte:
        bits = 8 // per_byte
        patterns = [int(value) % (1 << bits) for value in [*pair * 9, pair[0]]]
        patterns += [0] * (-len(patterns) % per_byte)
        groups = zip(*[iter(patterns)] * per_byte, strict=True)
        content = bytes(sum(item << (bits * place) for place, item in enumerate(group)) for group in groups)
        body = field(9, content) if raw else field(5, u(*content))
    elif raw:
        body = field(9, array.tobytes())
    else:
        head, (one, two) = data[:1], _items(data, pair)
        body = field(head[0] >> 3, (one + two) * 9 + one)
    source = model(tensors=[tensor("w", array, body, code=code)])
    loaded = formats.load(source)
    assert_same({"w": array}, dict(loaded.tensors))
    assert saved(loaded) == source
    assert saved(nnr.decode(nnr.encode(loaded, exact=True))) == source


def _items(data: bytes, pair: list[float]) -> tuple[bytes, bytes]:
    """Return the two items of a packed field."""
    body = data[2:]
    if data[0] >> 3 in (4, 10):
        half = len(body) // 2
        return body[:half], body[half:]
    end = next(place for place, byte in enumerate(body) if byte < 128) + 1
    return body[:end], body[end:]


WRONG_ITEMS = {
    "a byte that is no boolean": (tensor("w", np.full(20, 2, np.uint8), code=9), "neither 0 nor 1"),
    "a varint that is no boolean": (tensor("w", np.zeros(20, bool), field(5, u(*[2] * 20))), "neither 0 nor 1"),
    "beyond uint8": (tensor("w", np.zeros(20, np.uint8), field(5, u(*[256] * 20))), "out of range for uint8"),
    "negative uint8": (tensor("w", np.zeros(20, np.uint8), field(5, u(*[-1] * 20))), "out of range for uint8"),
    "beyond int8": (tensor("w", np.zeros(20, np.int8), field(5, u(*[128] * 20))), "out of range for int8"),
    "too few": (tensor("w", np.zeros(20, np.int32), field(5, u(*[1000] * 10))), "the number of values does not match"),
    "too many": (tensor("w", np.zeros(20, np.int32), field(5, bytes(21))), "the number of values does not match"),
    "a part of one": (
        tensor("w", np.zeros(20, np.int32), field(5, bytes(20) + b"\x80")),
        "the number of values does not match",
    ),
    "more than 64 bits": (
        tensor("w", np.zeros(20, np.int64), field(7, bytes(19) + b"\xff" * 9 + b"\x02")),
        "more than 64 bits",
    ),
    "eleven bytes": (tensor("w", np.zeros(20, np.int64), field(7, bytes(19) + b"\x80" * 10 + b"\1")), "more than 10"),
}


@pytest.mark.parametrize(("data", "message"), WRONG_ITEMS.values(), ids=WRONG_ITEMS)
def test_items_that_are_none(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"tensor 'w': .*{message}|{message}"):
        formats.load(model(tensors=[data]))
    loaded = formats.load(made.write(tmp_path, model(tensors=[data])))
    with pytest.raises(FormatError, match=message):
        loaded["w"]


@pytest.mark.parametrize("nbytes", [1, 23, 25, 48])
def test_another_number_of_bytes(nbytes: int) -> None:
    for number in (9, 4):
        with pytest.raises(
            FormatError, match=rf"tensor 'w': the data has {nbytes} bytes; float32 of shape \(2, 3\) requires 24"
        ):
            formats.load(model(tensors=[tensor("w", W, field(number, bytes(nbytes)))]))


# ------------------------------------------------------------------------------------------------ recognising
@pytest.mark.parametrize(
    ("data", "is_onnx"),
    [
        (model(), True),
        (model()[:14], True),
        (field(1, 8) + field(8, field(2, 3)) + field(7, field(2, "g")), True),
        (field(7, field(2, "g")) + field(1, 8), False),
        (field(1, 0) + field(7, field(2, "g")), False),
        (field(1, 8) + field(7, b""), False),
        (field(1, 8) + field(7, field(3, b"")), False),
        (field(1, 8) + field(9, b"") + field(7, field(2, "g")), False),
        (field(1, 8) + field(2, 1) + field(7, field(2, "g")), False),
        (field(1, 1) + field(2, field(1, "a SavedModel")), False),
        (field(1, 8) + field(2, "x") * 4000 + field(7, field(2, "g")), True),
        (field(1, 8) + field(2, "x") * 4096 + field(7, field(2, "g")), False),
        (b"", False),
        (b"\x08", False),
        (b"\x08" + b"\xff" * 20, False),
    ],
)
def test_recognised(data: bytes, is_onnx: bool, tmp_path: Path) -> None:
    found = formats.recognise(io.BytesIO(data))
    assert (found is not None and found.NAME == "onnx") == is_onnx
    path = tmp_path / "file"
    path.write_bytes(data)
    assert (formats.recognise(path) is not None) == (found is not None)


@pytest.mark.parametrize("kind", ["path", "bytes", "file", "pipe"])
def test_sources(kind: str, tmp_path: Path) -> None:
    data = model(tensors=[tensor("w", W)])
    sources: dict[str, Callable[[], Any]] = {
        "path": lambda: made.write(tmp_path, data),
        "bytes": lambda: data,
        "file": lambda: io.BytesIO(data),
        "pipe": lambda: io.BufferedReader(Pipe(data)),
    }
    assert_same({"w": W}, dict(formats.load(sources[kind]()).tensors))


def test_tensors_are_read_on_access(tmp_path: Path) -> None:
    """Ten tensors of 4 MB need memory for one; a pickle is small; a change of the file is detected."""
    arrays = {f"w{k}": np.full((1 << 10, 1 << 10), k, np.float32) for k in range(10)}
    path = made.write(tmp_path, model(tensors=[tensor(name, array) for name, array in arrays.items()]))
    tracemalloc.start()
    loaded = formats.load(path)
    for name in loaded:
        assert loaded[name][5, 5] == int(name[1:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 9 << 20
    assert isinstance(loaded.tensors, LazyTensors)
    part = pickle.dumps(loaded.tensors.only(["w7", "w2"]))
    assert len(part) < 1000
    assert_same({"w7": arrays["w7"], "w2": arrays["w2"]}, dict(pickle.loads(part)))
    path.write_bytes(path.read_bytes() + field(3, "more"))
    with pytest.raises(FormatError, match="has changed since the model was opened"):
        loaded["w3"]


def test_no_data_at_all_are_a_model_without_tensors() -> None:
    data = emptied(model(tensors=[tensor("w", W), tensor("b", B)]))
    loaded = formats.load(data)
    assert not loaded.tensors
    assert loaded.topology == Topology("onnx", data)
    with pytest.raises(FormatError, match="tensor 'b' has no data"):
        formats.load(model(tensors=[tensor("w", W), tensor("b", B, field(9, b""))]))


# ------------------------------------------------------------------------------------------------ other files
def external(**arrays: tuple[str, int | None, int | None, Array]) -> list[bytes]:
    """Return tensors with external data: location, offset, length."""
    return [tensor(name, array, entries(*where)) for name, (*where, array) in arrays.items()]  # type: ignore[arg-type]


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b").write_bytes(B.tobytes())
    tensors = external(w=("weights", 8, 24, W), again=("weights", 8, None, W), b=("below/b", None, None, B))
    tensors.append(tensor("inside", W))
    path = made.write(tmp_path, model(tensors=tensors), weights=bytes(8) + W.tobytes())
    loaded = formats.load(path)
    arrays = {"w": W, "again": W, "b": B, "inside": W}
    assert_same(arrays, dict(loaded.tensors))
    assert_same(arrays, dict(pickle.loads(pickle.dumps(loaded.tensors))))
    assert loaded.topology is not None
    assert b"weights" not in loaded.topology.data

    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "new.onnx"
    formats.save(nnr.decode(nnr.encode(loaded, exact=True)), target)
    names = external(w=("new.onnx.data", 0, 24, W), again=("new.onnx.data", 24, 24, W), b=("new.onnx.data", 48, 8, B))
    assert target.read_bytes() == model(tensors=[*names, tensors[-1]])
    assert (tmp_path / "out" / "new.onnx.data").read_bytes() == W.tobytes() * 2 + B.tobytes()
    assert_same(arrays, dict(formats.load(target).tensors))
    with pytest.raises(FileExistsError):
        formats.save(loaded, target)
    os.unlink(target)
    with pytest.raises(FileExistsError):
        formats.save(loaded, target)
    assert not target.exists()

    inline = [tensor(name, array) for name, array in arrays.items()]
    assert saved(loaded) == model(tensors=inline)
    with pytest.raises(FormatError, match="tensor 'w': its data is in another file; give the path of the model"):
        formats.load(path.read_bytes())


def test_nothing_needs_no_other_file(tmp_path: Path) -> None:
    """An empty tensor is in the model."""
    empty = np.zeros((0, 3), np.float32)
    path = made.write(tmp_path, model(tensors=[tensor("w", W), tensor("e", empty, entries("../gone", 0, 0))]))
    loaded = formats.load(path)
    assert list(loaded) == ["w"]
    assert saved(loaded) == model(tensors=[tensor("w", W), tensor("e", empty, b"")])


def test_what_does_not_fit_goes_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors stay in the model; the entries that locate the other tensors are changed."""
    large = np.arange(400, dtype=np.float32)
    said = tensor("said", large, field(14, 0) + field(9, large.tobytes()))
    data = model(tensors=[tensor("large", large), tensor("w", W), said])
    loaded = formats.load(data)
    monkeypatch.setattr(writing, "LARGEST", 1000)
    formats.save(loaded, tmp_path / "m.onnx")
    where = [("m.onnx.data", at, 1600) for at in (0, 1600)]
    moved = tensor("said", large, field(14, 1) + entries(*where[1])[:-2])
    assert (tmp_path / "m.onnx").read_bytes() == model(
        tensors=[tensor("large", large, entries(*where[0])), tensor("w", W), moved]
    )
    assert_same(dict(loaded.tensors), dict(formats.load(tmp_path / "m.onnx").tensors))
    with pytest.raises(
        FormatError, match=r"the model requires 3,\d+ bytes in a stream; a ModelProto may have at most 1,000"
    ):
        saved(loaded)
    monkeypatch.setattr(writing, "LARGEST", 100)
    with pytest.raises(FormatError, match="bytes in its own file; a ModelProto may have at most 100"):
        formats.save(loaded, tmp_path / "n.onnx")


# ------------------------------------------------------------------------------------------------ writing
def changed(**others: Array | None) -> Model:
    """Return a model of w and b with other tensors; None removes one."""
    loaded = formats.load(model(tensors=[tensor("w", W), tensor("b", B), tensor("i", LONG)]))
    tensors = {**loaded.tensors, **others}
    return Model({name: array for name, array in tensors.items() if array is not None}, loaded.topology)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"w": None}, "the model has no tensor 'w', which its graph requires"),
        ({"w": W.T}, r"tensor 'w' has shape \(3, 2\); the graph says \(2, 3\)"),
        (
            {"w": W.astype(np.float16)},
            "tensor 'w' is float16, but the operations of the graph require float32; omit --dtype",
        ),
        ({"w": W.astype(np.float64)}, "tensor 'w' is float64, but the operations of the graph require float32"),
        ({"w": W.astype(np.int32)}, "tensor 'w' is int32, but the operations of the graph require float32"),
        ({"i": LONG.astype(np.float32)}, "tensor 'i' is float32, but the operations of the graph require int64"),
        (
            {"i": LONG.astype(np.uint64) + np.uint64(1 << 63)},
            "tensor 'i': the graph says int64, which cannot represent",
        ),
    ],
)
def test_tensors_that_differ_from_the_graph(others: dict[str, Array | None], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        saved(changed(**others))


def test_tensors_equivalent_to_the_graph() -> None:
    """Extents of 1 do not matter, and integers keep their type."""
    expected = saved(changed())
    assert saved(changed(w=W.reshape(2, 1, 3), i=LONG.astype(np.int32))) == expected
    flags = formats.load(model(tensors=[tensor("b", np.ones(20, bool))]))
    assert saved(Model({"b": np.ones(20, np.int32)}, flags.topology)) == saved(flags)
    with pytest.warns(nnr.formats.FormatWarning, match="tensors that are not in the graph are left out: 'more'"):
        assert saved(changed(more=W)) == expected


def test_models_without_a_graph() -> None:
    for topology in (None, Topology("nnef", b"version 1.0;"), Topology("", b"x")):
        with pytest.raises(FormatError, match="requires a graph of onnx"):
            saved(Model({"w": W}, topology, format="onnx"))


def test_pruned_tensors_are_declared_as_they_are() -> None:
    """Shapes of intermediate tensors become unknown; packed dims become a list again."""
    packed = field(1, u(2, 3)) + field(2, 1) + field(8, "p") + field(9, W.tobytes())
    info = field(13, field(1, "between"))
    loaded = formats.load(model([node("Add", ["w", "p"], ["y"])], [tensor("w", W), packed, tensor("b", B)], info))
    tensors = {**loaded.tensors, "w": W[:1], "p": W[:, :2]}
    found = saved(Model(tensors, loaded.topology, pruned=["w", "p"]))
    expected = [tensor("w", W[:1]), tensor("p", W[:, :2]), tensor("b", B)]
    assert found == model([node("Add", ["w", "p"], ["y"])], expected)
    with pytest.raises(FormatError, match=r"tensor 'w' has shape \(1, 3\)"):
        saved(Model(tensors, loaded.topology))


# ------------------------------------------------------------------------------------------------ bitstreams
def test_a_model_of_which_all_stays() -> None:
    data = model(tensors=[tensor("s", np.float32(3))])
    assert saved(nnr.decode(nnr.encode(formats.load(data)))) == data


def test_a_graph_kept_apart(tmp_path: Path) -> None:
    path = made.write(tmp_path, model(tensors=[tensor("w", W), tensor("b", B)]))
    data = nnr.encode(formats.load(path), exact=True, topology="external")
    for given in (path, emptied(path.read_bytes()), formats.load(path)):
        source = io.BytesIO(given) if isinstance(given, bytes) else given
        assert saved(nnr.decode(data, topology=source)) == path.read_bytes()
    with pytest.raises(FormatError, match="requires a graph of onnx"):
        saved(nnr.decode(data))
    other = model(tensors=[tensor("w", W.T), tensor("b", B)])
    with pytest.raises(FormatError, match="different shapes: 'w'"):
        nnr.decode(data, topology=io.BytesIO(other))


@pytest.mark.parametrize("last", [b"", field(8, b"\x0a\x00"), field(8, b"\x0a\x00") + field(5, 0)])
def test_a_zero_byte_that_ends_a_topology_is_no_part_of_the_model(last: bytes, tmp_path: Path) -> None:
    """Annex B.4 requires a zero byte; a model may end with a zero byte of its own."""
    data = model(tensors=[tensor("w", W), tensor("b", B)]) + last
    topology = Topology("onnx", emptied(data) + b"\0")
    tensors = {"w": W, "b": B}
    bitstream = nnr.encode(Model(tensors, topology), exact=True)
    assert nnr.decode(bitstream).topology == topology
    assert saved(nnr.decode(bitstream)) == saved(Model(tensors, replace(topology, data=topology.data[:-1]))) == data
    assert formats.wiring(topology) == formats.wiring(replace(topology, data=topology.data[:-1]))
    assert not nnr.verify(bitstream).violations


def test_two_zero_bytes_end_no_model() -> None:
    topology = Topology("onnx", emptied(model(tensors=[tensor("w", W)])) + b"\0\0")
    with pytest.raises(FormatError, match="has invalid number 0"):
        saved(Model({"w": W}, topology))


_WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("onnx", "onnxruntime", "google"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import nnr_codec as nnr
nnr.decode_file(sys.argv[1], sys.argv[2])
nnr.encode_file(sys.argv[2], sys.argv[3], fold_batchnorm=True)
assert "onnx" not in sys.modules
"""


@pytest.mark.medium
def test_no_package_is_needed(tmp_path: Path) -> None:
    from .test_onnx_blocks import CONV

    source = made.write(tmp_path, CONV)
    nnr.encode_file(source, tmp_path / "m.nnr", exact=True)
    paths = [str(tmp_path / name) for name in ("m.nnr", "out.onnx", "again.nnr")]
    subprocess.run([sys.executable, "-c", _WITHOUT, *paths], check=True, cwd=tmp_path)
    assert (tmp_path / "out.onnx").read_bytes() == CONV
    assert (tmp_path / "again.nnr").read_bytes() == nnr.encode(formats.load(source), fold_batchnorm=True)


def test_limits() -> None:
    data = model([node("Add", ["x"], ["y"], "n" * 500)], [tensor("w", W), tensor("long" * 30, B)])
    for limits, message in (
        (Limits(max_topology_bytes=100), "max_topology_bytes=100"),
        (Limits(max_topology_bytes=20), "more fields than max_topology_bytes=20 permits"),
        (Limits(max_names=1), "tensors of the model: 2 is more than max_names=1"),
        (Limits(max_name_bytes=499), "bytes of the text at byte .*max_name_bytes=499"),
        (Limits(max_tensor_bytes=23), "tensor 'w'.*max_tensor_bytes=23"),
        (Limits(max_dims=1), "number of dimensions of a tensor: 2 is more"),
        (Limits(max_archive_bytes=100), "bytes of the file"),
    ):
        with pytest.raises(LimitError, match=message):
            formats.load(data, limits=limits)


def test_metadata_and_ties_are_not_kept_without_a_word() -> None:
    loaded = formats.load(model(tensors=[tensor("w", np.ones((2, 3), np.float32))]))
    loaded.metadata["a"] = "b"
    with pytest.warns(formats.FormatWarning, match="an ONNX model cannot store the metadata$"):
        formats.save(loaded, io.BytesIO(), format="onnx")


@pytest.mark.parametrize("name", ["a:b.onnx", "a\\b.onnx", "a\n.onnx", "a\udcff.onnx"])
def test_data_beside_a_model_of_any_name(name: str, tmp_path: Path) -> None:
    """Names may be any that the system permits, except locations that readers reject."""
    source = made.write(tmp_path, model(tensors=[tensor("w", W, entries("d"))]), d=W.tobytes())
    formats.save(formats.load(source), tmp_path / name)
    assert np.array_equal(formats.load(tmp_path / name)["w"], W)
    assert len(list(tmp_path.iterdir())) == 4
