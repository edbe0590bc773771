"""The public functions: accepted arguments, results, and the time at which work is done."""

from __future__ import annotations

import array
import doctest
import importlib
import io
import json
import os
import py_compile
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.summary import UnitInfo

pytestmark = pytest.mark.medium

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.nnef"


def weights(seed: int = 1, shape: tuple[int, ...] = (24, 30)) -> npt.NDArray[np.float32]:
    """Return values distributed like weights."""
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


def damaged(data: bytes, unit: int) -> bytes:
    """Return the bitstream with the second half of one unit's bytes inverted, which damages only the payload."""
    info = nnr.inspect(data)[unit]
    middle, end = info.offset + info.size // 2, info.offset + info.size
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle:end]) + data[end:]


class Trickle(io.RawIOBase):
    """Binary file without seeking that returns a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part, self._rest = self._rest[: min(7, len(buffer))], self._rest[min(7, len(buffer)) :]
        buffer[: len(part)] = part
        return len(part)


class Sink(io.RawIOBase):
    """Binary file without seeking that keeps the written bytes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


TENSORS = {"a": weights(1), "b": weights(2, (24,)), "c": np.arange(-6, 6, dtype="i2").reshape(3, 4)}
DATA = nnr.encode(TENSORS)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same(first: nnr.Model, second: nnr.Model) -> bool:
    """Return whether names, order, types, shapes and values are equal, bit by bit."""
    return list(first) == list(second) and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and first[name].tobytes() == second[name].tobytes()
        for name in first
    )


# ---------------------------------------------------------------------------------------------------------- bitstreams
def _file(data: bytes) -> Path:
    path = Path("data.nnr")
    path.write_bytes(data)
    return path


SOURCES: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "slice": lambda data: memoryview(b"xx" + data + b"yy")[2:-2],
    "ndarray": lambda data: np.frombuffer(data, np.uint8),
    "array": lambda data: array.array("B", data),
    "path": _file,
    "str": lambda data: str(_file(data)),
    "file": lambda data: io.BytesIO(_file(data).read_bytes()),
    "trickle": Trickle,
    "read": lambda data: SimpleNamespace(read=io.BytesIO(data).read),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_is_the_same(kind: str) -> None:
    expected = nnr.decode(DATA)
    assert same(nnr.decode(SOURCES[kind](DATA)), expected)
    file = nnr.open(SOURCES[kind](DATA))
    assert same(nnr.Model(dict(file)), expected)
    assert nnr.inspect(SOURCES[kind](DATA)) == nnr.inspect(DATA)
    assert [unit.index for unit in nnr.units(SOURCES[kind](DATA))] == [0, 1, 2, 3, 4]


def test_a_file_is_read_from_where_it_stands() -> None:
    file = io.BytesIO(b"some header" + DATA)
    file.seek(11)
    assert same(nnr.decode(file), nnr.decode(DATA))


def test_a_pipe_by_its_path() -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes")
    os.mkfifo("pipe")
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; open('pipe', 'wb').write(bytes.fromhex(sys.argv[1]))", DATA.hex()]
    )
    assert same(nnr.decode("pipe"), nnr.decode(DATA))
    assert child.wait(30) == 0


@pytest.mark.parametrize("function", [nnr.decode, nnr.open, nnr.inspect, lambda data: list(nnr.units(data))])
@pytest.mark.parametrize("source", [None, 3, [1, 2]])
def test_invalid_sources(function: Callable[[Any], object], source: object) -> None:
    with pytest.raises(TypeError):
        function(source)


@pytest.mark.parametrize("function", [nnr.decode, nnr.open, nnr.inspect])
def test_files_that_cannot_be_read(function: Callable[[Any], object]) -> None:
    with pytest.raises(FileNotFoundError):
        function("missing")
    with pytest.raises(IsADirectoryError):
        function(".")


@pytest.mark.parametrize("length", [0, 3, 11, 30, -1])
def test_truncation(length: int) -> None:
    for function in (nnr.decode, nnr.open):
        with pytest.raises(nnr.BitstreamError) as caught:
            function(DATA[:length])
        assert isinstance(caught.value, ValueError)


def test_limits() -> None:
    limits = nnr.Limits(max_total_bytes=100)
    for function in (nnr.decode, lambda d, limits: dict(nnr.open(d, limits=limits))):
        for source in (DATA, io.BytesIO(DATA)):
            with pytest.raises(nnr.LimitError):
                function(source, limits=limits)
    with pytest.raises(nnr.LimitError):
        list(nnr.units(DATA, limits=nnr.Limits(max_units=3)))
    with pytest.raises(nnr.LimitError):
        nnr.inspect(DATA, limits=nnr.Limits(max_units=3))
    assert same(nnr.decode(DATA, limits=nnr.Limits.strict()), nnr.decode(DATA))


# ---------------------------------------------------------------------------------------------------------------- open
def test_open_is_a_mapping() -> None:
    with nnr.open(DATA) as file:
        assert list(file) == list(TENSORS)
        assert len(file) == 3
        assert "a" in file
        assert "z" not in file
        assert file.nbytes == len(DATA)
        assert file.topology is None
        with pytest.raises(KeyError, match="z"):
            file["z"]
        units = nnr.inspect(DATA)[2:]
        for name, unit in zip(file, units, strict=True):
            info = file.info[name]
            assert (info.name, info.shape, info.dtype) == (name, TENSORS[name].shape, TENSORS[name].dtype)
            assert info.parameters == TENSORS[name].size
            assert info.nbytes == unit.size
            assert info.bits_per_parameter == pytest.approx(8 * unit.size / info.parameters)
        assert file.info["c"].tools == ("int",)
        assert file.info["a"].tools == ("dq",)


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "b", "a", "b")])
def test_tensors_in_any_order_and_again(order: tuple[str, ...]) -> None:
    expected, file = nnr.decode(DATA), nnr.open(DATA)
    for name in order:
        assert file[name].tobytes() == expected[name].tobytes()


def test_results_belong_to_the_caller() -> None:
    file = nnr.open(DATA)
    first = cast("npt.NDArray[np.float32]", file["a"])
    first[:] = 5
    assert not np.array_equal(file["a"], first)


@pytest.mark.parametrize("source", ["bytes", "path"])
def test_open_decodes_only_requested_tensors(source: str) -> None:
    data = SOURCES[source](damaged(DATA, 2))
    expected = nnr.decode(DATA)
    file = nnr.open(data)
    assert file.info["a"].shape == (24, 30)
    assert file["b"].tobytes() == expected["b"].tobytes()
    assert file["c"].tobytes() == expected["c"].tobytes()
    for _ in range(2):
        with pytest.raises(nnr.BitstreamError, match=r"unit 2 \(NNR_NDU 'a'\)"):
            file["a"]
    with pytest.raises(nnr.BitstreamError, match="'a'"):
        nnr.decode(data)


def test_headers_alone() -> None:
    data = damaged(damaged(DATA, 2), 3)
    infos = nnr.inspect(data)
    assert infos == nnr.inspect(DATA)
    assert infos[0] == UnitInfo(0, 0, 4, 0, "NNR_STR", detail="profile 1")
    assert [info.names for info in infos[2:]] == [("a",), ("b",), ("c",)]
    assert sum(info.size for info in infos) == len(data)
    units = list(nnr.units(data))
    assert [unit.type_name for unit in units] == ["NNR_STR", "NNR_MPS", "NNR_NDU", "NNR_NDU", "NNR_NDU"]
    assert units[2].ndu.topology_elem_id == "a"
    assert units[2].ndu.tensor_dimensions == [24, 30]


def test_units_are_read_one_by_one() -> None:
    units = nnr.units(DATA[:-1])
    assert [next(units).index for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(nnr.TruncatedError):
        next(units)


# -------------------------------------------------------------------------------------------------------------- models
@pytest.mark.parametrize("kind", ["model", "dict", "path", "str", "file", "trickle", "read"])
def test_every_kind_of_model_is_the_same(kind: str) -> None:
    nnr.save(TENSORS, "m.npz")
    content = Path("m.npz").read_bytes()
    source: Any = {
        "model": nnr.Model(TENSORS),
        "dict": TENSORS,
        "path": Path("m.npz"),
        "str": "m.npz",
        "file": io.BytesIO(content),
        "trickle": Trickle(content),
        "read": SimpleNamespace(read=io.BytesIO(content).read),
    }[kind]
    assert nnr.encode(source) == DATA


def test_the_example_comes_back_with_its_topology() -> None:
    model = nnr.decode(nnr.encode(DIGITS))
    source = nnr.load(DIGITS)
    assert model.topology == source.topology
    assert source.topology is not None
    assert source.topology.data == (DIGITS / "graph.nnef").read_bytes()
    assert list(model) == list(source)
    nnr.save(model, "out.nnef")
    assert same(nnr.load("out.nnef"), model)


def test_options() -> None:
    config = nnr.EncoderConfig(qp=-20, rules=(nnr.Rule("b", exact=True),))
    assert nnr.encode(TENSORS, config) == nnr.encode(TENSORS, qp=-20, rules=[nnr.Rule("b", exact=True)])
    assert nnr.encode(TENSORS, config, qp=None, rules=()) == DATA
    decoded = nnr.decode(nnr.encode(TENSORS, config))
    assert np.array_equal(decoded["b"], TENSORS["b"])
    assert not np.array_equal(decoded["a"], TENSORS["a"])
    assert np.array_equal(decoded["c"], TENSORS["c"])
    assert np.abs(decoded["a"].astype("f8") - TENSORS["a"]).max() <= 2**-4
    assert same(nnr.decode(nnr.encode(TENSORS, exact=True)), nnr.Model(TENSORS))
    with pytest.raises(nnr.EncodeError, match="qp 999"):
        nnr.encode(TENSORS, qp=999)
    with pytest.raises(TypeError, match="nope"):
        nnr.encode(TENSORS, nope=1)


def test_the_caller_keeps_its_arrays() -> None:
    original = {name: value.copy() for name, value in TENSORS.items()}
    for value in original.values():
        value.flags.writeable = False
    assert nnr.encode(original) == DATA
    assert nnr.encode({name: np.asfortranarray(value) for name, value in original.items()}) == DATA
    assert nnr.encode({name: np.repeat(value, 2, -1)[..., ::2] for name, value in original.items()}) == DATA


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": np.zeros((2, 3), "c8")},
        {"w": np.zeros((2, 3), "g")},
        {"w": np.zeros((0, 3), "c8")},
        {"w": np.zeros((2, 3), ml_dtypes.float4_e2m1fn)},
        {"w": np.array([["text"]])},
        {"w": np.array([[None]])},
        {"a\0b": np.zeros((2, 3), "f4")},
        {"\ud800": np.zeros((2, 3), "f4")},
    ],
)
def test_what_cannot_be_encoded(tensors: dict[str, Any]) -> None:
    with pytest.raises(nnr.EncodeError):
        nnr.encode(tensors)
    with pytest.raises(nnr.EncodeError):
        nnr.encode_file(tensors, "x.nnr")
    assert os.listdir() == []


# --------------------------------------------------------------------------------------------------------------- types
TYPED: dict[str, Any] = {
    "b": np.linspace(-3, 3, 60).astype(ml_dtypes.bfloat16).reshape(6, 10),
    "e": np.linspace(-3, 3, 60).astype(ml_dtypes.float8_e4m3fn).reshape(6, 10),
    "i4": np.arange(-8, 8).astype(ml_dtypes.int4).reshape(4, 4),
    "f2": np.linspace(-3, 3, 60).astype("f2").reshape(6, 10),
    "f8": np.linspace(-3, 3, 60).reshape(6, 10),
    "u1": np.arange(256, dtype="u1").reshape(16, 16),
    "i8": np.array([[2**40, -(2**60)]]),
    "?": np.eye(3, dtype=np.bool_),
    "number": np.array(2.5, "f4"),
    "empty": np.zeros((0, 3), ml_dtypes.bfloat16),
}
EXACT = nnr.encode(TYPED, exact=True)


def ways(data: bytes, **options: Any) -> list[dict[str, Any]]:
    """Return the tensors by each way of decoding."""
    stream = nnr.StreamDecoder(**options)
    parts = [data[start : start + 7] for start in range(0, len(data), 7)]
    streamed = [tensor for part in parts for tensor in stream.feed(part)] + stream.finish()
    opened = nnr.open(data, **options)
    assert {name: (info.shape, info.dtype) for name, info in opened.info.items()} == {
        name: (opened[name].shape, opened[name].dtype) for name in opened
    }
    return [
        dict(nnr.decode(data, **options).tensors),
        dict(nnr.decode(io.BytesIO(data), jobs=2, **options).tensors),
        dict(opened),
        dict(streamed),
        nnr.UpdateDecoder(**options).decode(data),
    ]


def test_types_come_back_bit_for_bit() -> None:
    for tensors in ways(EXACT):
        assert same(nnr.Model(tensors), nnr.Model(TYPED))
    assert nnr.compare_models(TYPED, nnr.decode(EXACT)).same()
    assert nnr.open(EXACT).info["b"].type == "bfloat16"


def test_lossy_types_come_back() -> None:
    for tensors in ways(nnr.encode(TYPED)):
        assert {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == {
            name: (tensor.dtype, tensor.shape) for name, tensor in TYPED.items()
        }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_as_one_type(dtype: str) -> None:
    for tensors in ways(EXACT, dtype=dtype):
        assert list(tensors) == list(TYPED)
        for name, tensor in TYPED.items():
            expected = tensor if name in ("i4", "u1", "i8", "?") else tensor.astype(dtype)
            assert tensors[name].dtype == expected.dtype
            assert tensors[name].shape == expected.shape
            assert tensors[name].tobytes() == expected.tobytes()


def test_values_that_the_type_cannot_hold() -> None:
    data = nnr.encode({"w": np.array([[1e30, np.inf]], "f4")}, exact=True)
    for decode in (
        lambda: nnr.decode(data, dtype="float16"),
        lambda: nnr.open(data, dtype="float16")["w"],
        lambda: nnr.StreamDecoder(dtype="float16").feed(data),
        lambda: nnr.UpdateDecoder(dtype="float16").decode(data),
    ):
        with pytest.raises(nnr.ElementError, match="'w'"):
            decode()


@pytest.mark.parametrize("dtype", ["float64", "float8_e5m2", "int8", "", None, 3])
def test_types_that_floats_are_not_given_as(dtype: Any) -> None:
    for function in (
        lambda: nnr.decode(DATA, dtype=dtype),
        lambda: nnr.open(DATA, dtype=dtype),
        lambda: nnr.StreamDecoder(dtype=dtype),
        lambda: nnr.UpdateDecoder(dtype=dtype).decode(DATA),
    ):
        with pytest.raises(ValueError, match="dtype"):
            function()


def test_metadata_and_format_come_back() -> None:
    nnr.save(nnr.Model({"w": weights()}, metadata={"format": "pt", "é": "\n"}), "m.safetensors")
    model = nnr.decode(nnr.encode("m.safetensors"))
    assert (model.format, model.metadata) == ("safetensors", {"format": "pt", "é": "\n"})
    assert nnr.load(DIGITS).format == "nnef"
    nnr.save(TENSORS, "m.npz")
    assert nnr.load("m.npz").format == "npz"


def test_ties_come_back() -> None:
    w = weights()
    for model in (nnr.decode(nnr.encode({"a": w, "b": w})), nnr.decode(nnr.encode({"a": w, "b": w}, exact=True))):
        assert model.aliases == {"b": "a"}
        assert model["a"] is model["b"]


def test_without_side_information() -> None:
    for name, tensor in TYPED.items():
        if name == "f2":
            assert same(nnr.decode(nnr.encode({name: tensor}, exact=True, side_info=False)), nnr.Model({name: tensor}))
        elif name != "i4":  # decodes to int8, with a warning
            with pytest.raises(nnr.EncodeError, match=f"'{name}'".replace("?", r"\?")):
                nnr.encode({name: tensor}, exact=True, side_info=False)


def test_plain_models_need_no_further_package() -> None:
    code = "import numpy as np, nnr_codec as nnr\nnnr.decode(nnr.encode({'w': np.ones((2, 3), 'u1')}, exact=True))"
    assert "ml_dtypes" not in modules(code)


# --------------------------------------------------------------------------------------------------------- encode_file
@pytest.mark.parametrize("target", ["path", "str", "file", "sink"])
def test_encode_file(target: str) -> None:
    file: Any = {"path": Path("x.nnr"), "str": "x.nnr", "file": io.BytesIO(), "sink": Sink()}[target]
    seen: list[Any] = []
    report = nnr.encode_file(TENSORS, file, progress=lambda *args: seen.append(args))
    if isinstance(file, io.BytesIO):
        written = file.getvalue()
    else:
        written = bytes(file.data) if isinstance(file, Sink) else Path("x.nnr").read_bytes()
    assert written == DATA
    assert report.nbytes == len(DATA)
    assert report.source_bytes == sum(value.nbytes for value in TENSORS.values())
    assert report.parameters == sum(value.size for value in TENSORS.values())
    assert report.ratio == len(DATA) / report.source_bytes
    assert report.bits_per_parameter == 8 * len(DATA) / report.parameters
    assert 0 < report.seconds < 60
    assert seen == [(name, k, len(TENSORS)) for k, name in enumerate(report.tensors, 1)]
    for tensor, unit in zip(report.tensors.values(), nnr.inspect(DATA)[2:], strict=True):
        value = TENSORS[tensor.name]
        assert (tensor.parameters, tensor.source_bytes, tensor.unit_bytes) == (value.size, value.nbytes, unit.size)


def test_the_report_of_nothing() -> None:
    report = nnr.encode_file({}, io.BytesIO())
    assert np.isnan([report.ratio, report.bits_per_parameter]).all()
    assert len(nnr.decode(nnr.encode({}))) == 0


def test_overwriting_bitstreams() -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    Path("x.nnr").write_text("precious")
    with pytest.raises(FileExistsError):
        nnr.encode_file(TENSORS, "x.nnr")
    with pytest.raises(nnr.EncodeError):
        nnr.encode_file({"good": weights(), "bad": np.full((2, 2), 1j)}, "x.nnr", overwrite=True)
    with pytest.raises(ZeroDivisionError):
        nnr.encode_file(TENSORS, "x.nnr", overwrite=True, progress=fail)
    assert Path("x.nnr").read_text() == "precious"
    nnr.encode_file(TENSORS, "x.nnr", overwrite=True)
    assert Path("x.nnr").read_bytes() == DATA
    assert os.listdir() == ["x.nnr"]


def test_a_bitstream_may_replace_the_model_it_is_made_of() -> None:
    nnr.save(TENSORS, "m.npz")
    nnr.encode_file("m.npz", "m.npz", overwrite=True)
    assert Path("m.npz").read_bytes() == DATA


def test_open_files_outlive_their_replacement() -> None:
    nnr.encode_file(TENSORS, "x.nnr")
    file = nnr.open("x.nnr")
    nnr.encode_file({"other": weights(9)}, "x.nnr", overwrite=True)
    assert file["a"].tobytes() == nnr.decode(DATA)["a"].tobytes()


# ------------------------------------------------------------------------------------------------------- load and save
def test_save_and_load() -> None:
    nnr.save(TENSORS, "m.npz")
    assert same(nnr.load("m.npz"), nnr.Model(TENSORS))
    with pytest.raises(FileExistsError):
        nnr.save(TENSORS, "m.npz")
    nnr.save({"a": TENSORS["a"]}, Path("m.npz"), overwrite=True)
    assert list(nnr.load(Path("m.npz"))) == ["a"]
    with pytest.raises(nnr.FormatError, match="'m' has no file extension"):
        nnr.save(TENSORS, "m")
    nnr.save(nnr.Model(TENSORS), "m", format="npz")
    assert same(nnr.load("m", format="npz"), nnr.Model(TENSORS))
    with pytest.raises(nnr.FormatError):
        nnr.load("m", format="nnef")
    with pytest.raises(nnr.FormatError, match="unknown model format"):
        nnr.load("m", format="none")
    assert sorted(os.listdir()) == ["m", "m.npz"]


@pytest.mark.parametrize("sink", [io.BytesIO, Sink])
def test_saving_to_files(sink: type[Any]) -> None:
    file = sink()
    nnr.save(TENSORS, file)
    content = file.getvalue() if isinstance(file, io.BytesIO) else bytes(file.data)
    assert same(nnr.load(cast(BinaryIO, Trickle(content))), nnr.Model(TENSORS))
    file = sink()
    nnr.save(nnr.load(DIGITS), file)
    content = file.getvalue() if isinstance(file, io.BytesIO) else bytes(file.data)
    assert same(nnr.load(io.BytesIO(content)), nnr.load(DIGITS))


@pytest.mark.parametrize("content", [b"", b"text", DATA, b"PK\x03\x04"])
def test_invalid_models(content: bytes) -> None:
    Path("x").write_bytes(content)
    for source in ("x", io.BytesIO(content), Trickle(content)):
        with pytest.raises(nnr.FormatError):
            nnr.load(cast(BinaryIO, source))


# -------------------------------------------------------------------------------------------------------------- package
def test_all_names_are_there() -> None:
    assert len(set(nnr.__all__)) == len(nnr.__all__)
    assert set(nnr.__all__) == set(dir(nnr)) & set(nnr.__all__)
    for name in nnr.__all__:
        assert getattr(nnr, name) is not None
    namespace: dict[str, object] = {}
    exec("from nnr_codec import *", namespace)
    assert namespace.keys() >= set(nnr.__all__)
    functions = {"load", "save", "encode", "encode_file", "decode", "open", "units", "inspect"}
    classes = {"Model", "Topology", "Block", "EncoderConfig", "Rule", "Limits", "NnrFile", "TensorInfo", "EncodeReport"}
    assert functions | classes <= set(nnr.__all__)


def test_all_errors_are_public() -> None:
    errors = importlib.import_module("nnr_codec.errors")
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert kinds - {"WriteError"} <= set(nnr.__all__)
    assert all(issubclass(getattr(nnr, name), (nnr.NnrError, Warning)) for name in kinds & set(nnr.__all__))


def test_public_names_need_no_source_files(tmp_path: Path) -> None:
    folder = Path(nnr.__file__).parent
    with zipfile.ZipFile(tmp_path / "nnr.zip", "w") as file:
        for name in ("__init__", "public"):
            py_compile.compile(str(folder / f"{name}.py"), str(tmp_path / name))
            file.write(tmp_path / name, f"nnr_codec/{name}.pyc")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import nnr_codec; print(*nnr_codec.__all__, nnr_codec.__file__)"
    )
    program = [sys.executable, "-S", "-I", "-c", code, str(tmp_path / "nnr.zip")]
    *names, file_name = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()
    assert names == list(nnr.__all__)
    assert "nnr.zip" in file_name


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'nnr_codec' has no attribute 'nothing'"):
        nnr.nothing  # noqa: B018  # the access is the test
    with pytest.raises(ImportError):
        exec("from nnr_codec import nothing", {})


def modules(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after running some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}\nprint(json.dumps(list(sys.modules)))"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(done.stdout))


def test_importing_is_light() -> None:
    loaded = modules("import nnr_codec\nnnr_codec.__version__, dir(nnr_codec)")
    assert {name for name in loaded if name.startswith("nnr_codec")} == {"nnr_codec"}
    assert not {"numpy", "click", "rich", "bitarray"} & loaded


def test_codec_does_without_command_line_and_format_modules() -> None:
    loaded = modules("import nnr_codec\nnnr_codec.decode(nnr_codec.encode({}))")
    assert "nnr_codec.decoder.decode" in loaded
    assert not {"click", "rich", "nnr_cli", "nnr_codec.formats.nnef", "nnr_codec.formats.npz"} & loaded


@pytest.mark.parametrize("module", ["nnr_codec", "nnr_codec.config"])
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed
