"""TensorFlow Lite models: FlatBuffers by hand, rejected models, and models of the converter."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, NnrError
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model

from ..cli.support import call
from ..shared import SHARED, examples, needs_shared
from .support import assert_same

pytestmark = pytest.mark.medium

TYPES = {
    0: np.float32,
    1: np.float16,
    2: np.int32,
    3: np.uint8,
    4: np.int64,
    7: np.int16,
    9: np.int8,
    10: np.float64,
    12: np.uint64,
    15: np.uint32,
    16: np.uint16,
}
STRING, INT4 = 5, 17


# ------------------------------------------------------------------------------------------------ FlatBuffers
@dataclass
class Scalar:
    code: str
    value: int


@dataclass
class Vector:
    """Vector of numbers or of tables."""

    code: str
    items: list[Any]


@dataclass
class Table:
    fields: dict[int, Scalar | Vector | Table | bytes] = field(default_factory=dict)


def flatbuffer(root: Table, magic: bytes = b"TFL3") -> bytes:
    """Return a FlatBuffer in which objects follow the objects that refer to them."""
    data = bytearray(4) + magic
    _refer(data, 0, root)
    return bytes(data)


def _refer(data: bytearray, at: int, item: Any) -> None:
    """Write an item at the end, and its position at an offset."""
    data += bytes(-len(data) % 8)
    place = _table(data, item) if isinstance(item, Table) else len(data)
    struct.pack_into("<I", data, at, place - at)
    if isinstance(item, bytes):
        data += struct.pack("<I", len(item)) + item + b"\0"
    elif isinstance(item, Vector):
        tables = item.items and isinstance(item.items[0], Table)
        data += struct.pack("<I", len(item.items))
        if not tables:
            data += struct.pack(f"<{len(item.items)}{item.code}", *item.items)
            return
        data += bytes(4 * len(item.items))
        for k, table in enumerate(item.items):
            _refer(data, place + 4 + 4 * k, table)


def _table(data: bytearray, table: Table) -> int:
    size = 2 * (max(table.fields, default=-1) + 1)
    offsets, body, references = [0] * (size // 2), bytearray(4), []
    for index, item in table.fields.items():
        offsets[index] = len(body)
        if isinstance(item, Scalar):
            body += struct.pack("<" + item.code, item.value)
        else:
            references.append((len(body), item))
            body += bytes(4)
    data += struct.pack(f"<HH{len(offsets)}H", 4 + size, len(body), *offsets)
    place = len(data)
    data += body
    struct.pack_into("<i", data, place, 4 + size)
    for at, item in references:
        _refer(data, place + at, item)
    return place


def tensor(
    name: str | bytes | None,
    shape: list[int],
    type: int,
    buffer: int,
    scales: list[float] | None = None,
    zero_points: list[int] | None = None,
    axis: int = 0,
) -> Table:
    found: dict[int, Any] = {0: Vector("i", shape), 1: Scalar("b", type), 2: Scalar("I", buffer)}
    if name is not None:
        found[3] = name.encode() if isinstance(name, str) else name
    if scales is not None:
        parameters: dict[int, Any] = {2: Vector("f", scales), 6: Scalar("i", axis)}
        if zero_points is not None:
            parameters[3] = Vector("q", zero_points)
        found[4] = Table(parameters)
    return Table(found)


def buffer(data: bytes = b"") -> Table:
    return Table({0: Vector("B", list(data))} if data else {})


def file_of(tensors: list[Table], buffers: list[Table], graphs: list[list[Table]] | None = None) -> bytes:
    subgraphs = [Table({0: Vector("I", each)}) for each in graphs or [tensors]]
    return flatbuffer(
        Table(
            {
                0: Scalar("I", 3),
                2: Vector("I", subgraphs),
                3: b"made by hand",
                4: Vector("I", [buffer(), *buffers]),
            }
        )
    )


def load(data: bytes, **limits: int) -> Model:
    return formats.load(data, format="tflite", limits=Limits(**limits) if limits else None)  # type: ignore[arg-type]


def written(model: Model) -> bytes:
    file = io.BytesIO()
    formats.save(model, file, format="tflite")
    return file.getvalue()


WEIGHT = np.arange(48, dtype=np.float32).reshape(4, 12) / 8
LEVELS = np.arange(-50, 46, dtype=np.int8).reshape(4, 24)
BIAS = np.arange(20, dtype=np.int32) * 1000


def usual() -> bytes:
    """Return a model with floats, and integers with quantization parameters."""
    tensors = [
        tensor("input", [1, 12], 0, 0),
        tensor("w", [4, 12], 0, 1),
        tensor("q", [4, 24], 9, 2, [0.5, 0.25, 2.0, 1.0], [0, 0, 0, 0], 0),
        tensor("b", [20], 2, 3, [0.125], [7]),
        tensor("shape", [2], 2, 4),
    ]
    buffers = [buffer(array.tobytes()) for array in (WEIGHT, LEVELS, BIAS, np.array([1, -1], "<i4"))]
    return file_of(tensors, buffers)


# ------------------------------------------------------------------------------------------------ by hand
@pytest.mark.parametrize("kind", TYPES)
def test_each_type_is_restored_byte_for_byte(kind: int, tmp_path: Path) -> None:
    array = np.arange(80).reshape(2, 40).astype(TYPES[kind])
    path = tmp_path / "m.tflite"
    path.write_bytes(file_of([tensor("w", [2, 40], kind, 1)], [buffer(array.tobytes())]))
    model = formats.load(path)
    assert_same(model.tensors, {"w": array})
    assert (model.format, model.metadata) == ("tflite", {})
    assert array.tobytes() not in model.topology.data  # type: ignore[union-attr]
    data = nnr.encode(path, exact=True)
    nnr.decode_file(data, tmp_path / "again.tflite")
    assert (tmp_path / "again.tflite").read_bytes() == path.read_bytes()
    assert written(nnr.decode(data)) == path.read_bytes()


def test_tensors_of_a_graph() -> None:
    """Inputs and small buffers are not tensors of the model."""
    data = usual()
    model = load(data)
    assert_same(model.tensors, {"w": WEIGHT, "q": LEVELS, "b": BIAS})
    assert model.topology is not None
    assert formats.wiring(model.topology).shapes == {"w": (4, 12), "q": (4, 24), "b": (20,)}
    assert formats.load(io.BytesIO(data)).format == "tflite"
    assert len(pickle.dumps(model.topology)) < len(data) - sum(array.nbytes for array in (WEIGHT, LEVELS, BIAS)) + 200


def test_lossy_options_change_floats_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    floats = rng.normal(size=(40, 50)).astype("<f4")
    levels = rng.integers(-128, 128, (40, 50)).astype(np.int8)
    tensors = [tensor("w", [40, 50], 0, 1), tensor("q", [40, 50], 9, 2, [0.5])]
    path = tmp_path / "m.tflite"
    path.write_bytes(file_of(tensors, [buffer(floats.tobytes()), buffer(levels.tobytes())]))
    assert call(capsys, "encode", path, "--quality", 20).code == 0
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "again.tflite").code == 0
    again = formats.load(tmp_path / "again.tflite")
    assert_same({"q": again["q"]}, {"q": levels})
    assert 0 < np.abs(again["w"] - floats).max() < 0.5
    before, after = path.read_bytes(), (tmp_path / "again.tflite").read_bytes()
    assert len(before) == len(after)
    at = before.index(floats.tobytes())
    assert (before[:at], before[at + floats.nbytes :]) == (after[:at], after[at + floats.nbytes :])


def test_weights_of_quantized_tensors(tmp_path: Path) -> None:
    expected = {
        "w": WEIGHT,
        "q": (LEVELS * np.array([[0.5], [0.25], [2.0], [1.0]])).astype(np.float32),
        "b": ((BIAS - 7) * 0.125).astype(np.float32),
    }
    assert_same(nnr.dequantized(usual()).tensors, expected)
    with pytest.warns(formats.FormatWarning, match="an npz archive cannot store the topology"):
        nnr.decode_file(nnr.encode(usual(), exact=True), tmp_path / "m.npz")
    assert_same(formats.load(tmp_path / "m.npz").tensors, expected)


@pytest.mark.parametrize(
    ("scales", "zero_points", "axis"),
    [
        ([1.0, 2.0, 3.0], None, 0),
        ([1.0, 2.0], [1, 2, 3], 0),
        ([1.0] * 40, None, 2),
        ([1.0] * 40, None, -1),
        ([], [], 0),
    ],
)
def test_parameters_that_do_not_fit_are_ignored(scales: list[float], zero_points: list[int] | None, axis: int) -> None:
    array = np.zeros((2, 40), np.int8)
    model = load(file_of([tensor("q", [2, 40], 9, 1, scales, zero_points, axis)], [buffer(array.tobytes())]))
    assert_same(nnr.dequantized(model).tensors, {"q": array})


def test_names() -> None:
    """A buffer without a name stays in the graph."""
    data = [buffer(bytes([k]) * 70) for k in range(8)]
    tensors = [tensor(name, [70], 3, 1 + k) for k, name in enumerate(["a", "a", "a#2", None, "", b"\xff", "a\0", "b"])]
    source = file_of([], data, [tensors[:4], tensors[4:], [tensor("again", [70], 3, 1)]])
    model = load(source)
    assert {name: int(array[0]) for name, array in model.tensors.items()} == {"a": 0, "a#2": 1, "b": 7}  # type: ignore[call-overload]
    assert written(nnr.decode(nnr.encode(model))) == source


def test_data_that_is_no_array() -> None:
    """Data of other types, or packed data, are bytes."""
    data = [bytes(range(70)), bytes(range(80)), bytes(range(90)), b"x" * 100, b"y" * 100]
    tensors = [
        tensor("strings", [3], STRING, 1),
        tensor("packed", [160], INT4, 2),
        tensor("sparse", [100, 100], 0, 3),
        tensor("negative", [-25], 0, 4),
        tensor("none", [], 0, 5),
    ]
    source = file_of(tensors, [buffer(each) for each in data])
    model = load(source)
    names = ("strings", "packed", "sparse", "negative", "none")
    assert_same(model.tensors, {name: np.frombuffer(each, np.uint8) for name, each in zip(names, data, strict=True)})
    assert written(nnr.decode(nnr.encode(model))) == source


def test_data_after_the_flatbuffer() -> None:
    """In files of more than 2 GB the data follow the FlatBuffer, and offsets are relative to the file."""
    outside = Table({1: Scalar("Q", 4096), 2: Scalar("Q", WEIGHT.nbytes)})
    source = file_of([tensor("w", [4, 12], 0, 1)], [outside]).ljust(4096, b"p") + WEIGHT.tobytes() + b"the end"
    model = load(source)
    assert_same(model.tensors, {"w": WEIGHT})
    assert written(nnr.decode(nnr.encode(model, exact=True))) == source
    with pytest.raises(FormatError, match="192 bytes of a buffer at 4,096 are outside the file"):
        load(source[:4200])


def test_overlapping_data_stays_in_the_graph() -> None:
    places = [(4096, 200), (4196, 200), (4, 100), (4296, 100)]
    outside = [Table({1: Scalar("Q", start), 2: Scalar("Q", size)}) for start, size in places]
    tensors = [tensor(f"t{k}", [size], 3, 1 + k) for k, (_, size) in enumerate(places)]
    source = file_of(tensors, outside).ljust(4096, b"p") + bytes(range(200)) * 3
    model = load(source)
    assert list(model) == ["t0", "t3"]
    assert written(nnr.decode(nnr.encode(model))) == source


def test_a_topology_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(usual())
    assert call(capsys, "encode", path, "--lossless", "--topology", "external").code == 0
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "again.tflite", "--topology", path).code == 0
    assert (tmp_path / "again.tflite").read_bytes() == path.read_bytes()


def test_models_that_do_not_fit_their_graph() -> None:
    model = load(usual())
    tensors = dict(model.tensors)
    for other, message in (
        ({"w": WEIGHT}, "the model has no tensor 'q', which the graph lists"),
        ({**tensors, "w": WEIGHT.reshape(12, 4)}, r"'w' is float32 \[12, 4\]; the graph says float32 \[4, 12\]"),
        ({**tensors, "w": WEIGHT.astype(np.float16)}, r"'w' is float16 \[4, 12\]; the graph says float32 \[4, 12\]"),
    ):
        with pytest.raises(FormatError, match=message):
            written(replace(model, tensors=other))
    with pytest.warns(formats.FormatWarning, match="tensors that the graph does not list are left out: 'x'"):
        assert written(replace(model, tensors={**tensors, "x": WEIGHT})) == usual()
    assert formats.recognise(io.BytesIO(usual())) is formats.get("tflite")


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(deadline=None, max_examples=examples(500))
@given(st.data())
def test_any_mutation_gives_a_model_that_is_restored_or_an_error(draw: st.DataObject) -> None:
    data = bytearray(usual())
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NnrError):
        model = formats.load(bytes(data), format="tflite", limits=Limits.strict())
        assert written(model) == data
        dict(nnr.dequantized(model).tensors)


# ------------------------------------------------------------------------------------------------ the converter
@needs_shared
@pytest.mark.parametrize("name", ["digits_f32", "digits_int8", "digits_int8_perchannel"])
def test_files_of_the_converter_are_restored_byte_for_byte(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SHARED
    path = SHARED / "models" / f"{name}.tflite"
    assert call(capsys, "encode", path, "-o", tmp_path / "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "m.tflite").code == 0
    assert (tmp_path / "m.tflite").read_bytes() == path.read_bytes()
    weights: dict[str, Array] = dict(nnr.dequantized(path).tensors)
    assert {str(array.dtype) for array in weights.values()} == {"float32"}
    assert all(np.abs(np.asarray(array, np.float64)).max() < 10 for array in weights.values())
