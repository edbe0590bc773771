"""GGUF files: bytes by hand, what is refused, and the package gguf."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.safetensors import LazyTensors
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model

from ..cli.support import call
from ..shared import examples
from .support import Pipe, assert_same

pytestmark = pytest.mark.medium

F32, F16, Q4_0, Q8_0, I8, I16, I32, I64, F64, BF16 = 0, 1, 2, 8, 24, 25, 26, 27, 28, 30
TYPES: dict[int, Any] = {
    F32: np.float32,
    F16: np.float16,
    I8: np.int8,
    I16: np.int16,
    I32: np.int32,
    I64: np.int64,
    F64: np.float64,
    BF16: ml_dtypes.bfloat16,
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def info(name: str | bytes, dims: list[int], kind: int, offset: int) -> bytes:
    """What the list says of a tensor; its dimensions are those of the file, the first that of adjacent items."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def array_of(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items


def file_of(
    infos: list[bytes],
    data: bytes = b"",
    keys: list[bytes] | None = None,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file of these keys and tensors."""
    keys = keys or []
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(infos), len(keys)))) + b"".join([*keys, *infos])
    return head + bytes(-len(head) % alignment) + data


def load(data: bytes, **limits: int) -> Model:
    return formats.load(data, format="gguf", limits=Limits(**limits) if limits else None)  # type: ignore[arg-type]


def blocks(scales: Array, integers: Array) -> bytes:
    """Q8_0."""
    parts = [scales.astype("<f2").reshape(-1, 1).view("u1"), integers.astype("i1").reshape(-1, 32).view("u1")]
    return np.concatenate(parts, axis=1).tobytes()


# ------------------------------------------------------------------------------------------------ by hand
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", TYPES)
def test_each_type(kind: int, version: int, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(TYPES[kind])
    data = file_of([info("w", [3, 2], kind, 0)], array.tobytes(), version=version)
    assert_same(load(data).tensors, {"w": array})
    (tmp_path / "m.gguf").write_bytes(data)
    model = formats.load(tmp_path / "m.gguf")
    assert isinstance(model.tensors, LazyTensors)
    assert_same(model.tensors, {"w": array})
    assert (model.format, model.topology) == ("gguf", None)


def test_blocks_are_their_products() -> None:
    integers = np.arange(-128, 128).reshape(2, 128)
    scales = np.array([1, 2**-24, 65504, -0.1, 0.0, 1 / 3, 2**-14, 7], np.float16)
    expected = (np.repeat(scales.astype(np.float64), 32) * integers.reshape(-1)).reshape(2, 128)
    tensor = load(file_of([info("w", [128, 2], Q8_0, 0)], blocks(scales, integers)))["w"]
    assert tensor.dtype == np.float32
    assert np.array_equal(tensor, expected)  # in float64, where they are exact


def test_blocks_of_scales_that_are_no_numbers() -> None:
    tensor: Any = load(file_of([info("w", [64], Q8_0, 0)], blocks(np.array([np.inf, np.nan]), np.arange(64))))["w"]
    assert np.isnan(tensor[0]) and np.isposinf(tensor[1:32]).all() and np.isnan(tensor[32:]).all()


def test_many_blocks(tmp_path: Path) -> None:
    """More than are read at a time."""
    rng = np.random.default_rng(0)
    integers = rng.integers(-128, 128, (70_000, 32))
    scales = rng.normal(0, 0.01, 70_000).astype(np.float16)
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of([info("w", [320, 7000], Q8_0, 0)], blocks(scales, integers)))
    model = formats.load(path)
    expected = (scales.astype(np.float32)[:, None] * integers.astype(np.float32)).reshape(7000, 320)
    tracemalloc.start()
    try:
        tensor = model["w"]
        assert tracemalloc.get_traced_memory()[1] < 1.5 * tensor.nbytes
    finally:
        tracemalloc.stop()
    assert np.array_equal(tensor, expected)
    assert isinstance(model.tensors, LazyTensors)
    data = pickle.dumps(model.tensors.only(["w"]))
    assert len(data) < 600
    assert_same(pickle.loads(data), {"w": expected})


def test_scalars_and_empty_tensors() -> None:
    infos = [info("s", [], F32, 0), info("e", [0, 3], F32, 32), info("é", [32, 0], Q8_0, 32)]
    model = load(file_of(infos, struct.pack("<f", 1.5).ljust(32, b"\0")))
    expected = {"s": np.array(1.5, np.float32), "e": np.zeros((3, 0), np.float32), "é": np.zeros((0, 32), np.float32)}
    assert_same(model.tensors, expected)


KEYS = [
    key("general.architecture", 8, string("llama")),
    key("u8", 0, b"\xff"),
    key("i8", 1, b"\xff"),
    key("u16", 2, struct.pack("<H", 65535)),
    key("i16", 3, struct.pack("<h", -2)),
    key("u32", 4, struct.pack("<I", 1 << 31)),
    key("i32", 5, struct.pack("<i", -3)),
    key("f32", 6, struct.pack("<f", 1e-5)),
    key("yes", 7, b"\1"),
    key("u64", 10, struct.pack("<Q", 1 << 63)),
    key("i64", 11, struct.pack("<q", -(1 << 63))),
    key("f64", 12, struct.pack("<d", 0.1)),
    key("tokens", 9, array_of(8, 2, string("a") + string("Ġ\n"))),
    key("scores", 9, array_of(6, 2, struct.pack("<ff", 0.5, -1))),
    key("flags", 9, array_of(7, 2, b"\0\1")),
    key("nested", 9, array_of(9, 2, array_of(0, 1, b"\1") + array_of(8, 0, b""))),
    key("none", 9, array_of(4, 0, b"")),
]


def test_keys() -> None:
    metadata = load(file_of([], keys=KEYS)).metadata
    assert metadata.pop("gguf:general.architecture") == "llama"
    assert {name.removeprefix("gguf:"): json.loads(text) for name, text in metadata.items()} == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 1 << 31,
        "i32": -3,
        "f32": float(np.float32(1e-5)),
        "yes": True,
        "u64": 1 << 63,
        "i64": -(1 << 63),
        "f64": 0.1,
        "tokens": ["a", "Ġ\n"],
        "scores": [0.5, -1],
        "flags": [False, True],
        "nested": [[1], []],
        "none": [],
    }


def test_alignment() -> None:
    infos = [info("a", [3], I8, 0), info("b", [2], I8, 64)]
    keys = [key("general.alignment", 4, struct.pack("<I", 64))]
    model = load(file_of(infos, b"abc".ljust(64, b"\0") + b"de", keys, alignment=64))
    assert_same(model.tensors, {"a": np.frombuffer(b"abc", np.int8), "b": np.frombuffer(b"de", np.int8)})


def test_order_is_that_of_the_list() -> None:
    infos = [info("b", [2], I8, 32), info("a", [2], I8, 0)]
    assert list(load(file_of(infos, bytes(34)))) == ["b", "a"]


def test_streams_and_content(tmp_path: Path) -> None:
    data = file_of([info("w", [2], I8, 0)], b"ab")
    assert_same(formats.load(Pipe(data)).tensors, {"w": np.frombuffer(b"ab", np.int8)})  # type: ignore[arg-type]
    (tmp_path / "x").write_bytes(data)
    assert formats.recognise(tmp_path / "x") is formats.get("gguf")
    with pytest.raises(FormatError, match="format 'gguf' can be read, but not written"):
        formats.save(Model({}), tmp_path / "y", format="gguf")
    with pytest.raises(FormatError, match=r"no writable format has the file extension '\.gguf' of 'y\.gguf'"):
        formats.save(Model({}), tmp_path / "y.gguf")


def test_ratios_refer_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lossless bitstreams of Q8_0 are larger than the file: no line says that it was compressed."""
    integers = np.random.default_rng(0).integers(-128, 128, (4096, 32))
    path, target = tmp_path / "m.gguf", tmp_path / "m.nnr"
    scales = np.random.default_rng(1).normal(0, 0.01, 4096).astype(np.float16)
    path.write_bytes(file_of([info("w", [1024, 128], Q8_0, 0)], blocks(scales, integers)))
    result = call(capsys, "encode", path, "--lossless")
    before, after = path.stat().st_size, target.stat().st_size
    assert after > before
    ratios = (
        f"{100 * after / before:.2f} % of the file, {100 * after / (4 * 32 * 4096):.2f} % of its values as arrays, "
    )
    assert f": {before:,} -> {after:,} bytes ({ratios}" in result.err
    assert f"{before:,} -> " in call(capsys, "encode", path, "--dry-run").out.splitlines()[-1]
    update = call(capsys, "update", "encode", path, "--base", path, "--dry-run").out.splitlines()[-1]
    assert update.startswith(f"{before:,} -> ")
    assert " % of the file, " in update
    monkeypatch.delenv("NNR_PEER", raising=False)
    monkeypatch.setattr("nnr_cli.contenders.general", lambda race: ())
    sizes, _, row, *_ = call(capsys, "bench", path, "--qp", -20, "-q").out.splitlines()
    assert sizes.endswith(f" parameters, {before:,} bytes, {4 * 32 * 4096:,} as arrays")
    nbytes, percent = (float(word.replace(",", "")) for word in row.split()[3:5])
    assert percent == round(100 * nbytes / before, 2)


def test_to_safetensors_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    integers = np.random.default_rng(0).integers(-128, 128, (128, 32))
    scales = np.linspace(1e-3, 2e-3, 128).astype(np.float16)
    infos = [info("w", [64, 64], Q8_0, 0), info("b", [5], F32, 4352)]
    data = blocks(scales, integers) + np.arange(5, dtype="<f4").tobytes()
    (tmp_path / "m.gguf").write_bytes(file_of(infos, data, KEYS))
    assert call(capsys, "encode", tmp_path / "m.gguf", "-o", tmp_path / "m.nnr", "--lossless").code == 0
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "m.safetensors").code == 0
    before, after = formats.load(tmp_path / "m.gguf"), formats.load(tmp_path / "m.safetensors")
    assert_same({name: after[name] for name in before}, before.tensors)
    assert after.metadata == before.metadata


# ------------------------------------------------------------------------------------------------ what is refused
_DEEP = array_of(9, 1, b"") * 5 + array_of(0, 0, b"")

MALFORMED: dict[str, tuple[bytes, str]] = {
    "magic": (b"GGUX" + file_of([])[4:], "not a GGUF file"),
    "version 1": (file_of([], version=1), "GGUF version 1 is not supported; only versions 2 and 3 are"),
    "version 4": (file_of([], version=4), "GGUF version 4"),
    "version 0": (file_of([], version=0), "GGUF version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian GGUF file"),
    "tensors": (file_of([], counts=(1, 0)), "the file ends"),
    "keys": (file_of([], counts=(0, 1)), "the file ends"),
    "key twice": (file_of([], keys=KEYS[1:2] * 2), "key 'u8' occurs twice"),
    "key": (file_of([], keys=[key("x", 0, b"\0").replace(b"x", b"\xff")]), "the name .* of a key is not Unicode text"),
    "type": (file_of([], keys=[key("x", 13, b"")]), "unknown value type 13"),
    "type of an array": (file_of([], keys=[key("x", 9, array_of(13, 0, b""))]), "unknown array type 13"),
    "boolean": (file_of([], keys=[key("x", 7, b"\2")]), "a boolean is neither 0 nor 1"),
    "booleans": (file_of([], keys=[key("x", 9, array_of(7, 2, b"\1\2"))]), "a boolean is neither 0 nor 1"),
    "deep": (file_of([], keys=[key("x", 9, _DEEP)]), "nested deeper than 4"),
    "long string": (
        file_of([], keys=[key("x", 8, b"\xff" * 8)]),
        "the file ends, but 18,446,744,073,709,551,615 bytes",
    ),
    "long array": (file_of([], keys=[key("x", 9, array_of(4, 1 << 62, b""))]), "the file ends"),
    "many strings": (file_of([], keys=[key("x", 9, array_of(8, 1 << 62, b""))]), "the file ends"),
    "many arrays": (file_of([], keys=[key("x", 9, array_of(9, 1 << 62, b""))]), "the file ends"),
    "alignment 0": (file_of([], keys=[key("general.alignment", 4, bytes(4))]), "not a uint32 power of two"),
    "alignment 24": (file_of([], keys=[key("general.alignment", 4, b"\x18\0\0\0")]), "not a uint32 power of two"),
    "alignment's type": (file_of([], keys=[key("general.alignment", 8, string("32"))]), "not a uint32 power of two"),
    "name twice": (file_of([info("w", [2], I8, 0)] * 2, b"ab"), "two tensors have the same name"),
    "name": (file_of([info(b"\xff", [2], I8, 0)], b"ab"), "the name .* of a tensor is not Unicode text"),
    "Q4_0": (file_of([info("w", [32], Q4_0, 0)], bytes(18)), "tensor 'w': type Q4_0 is not supported; use F32, "),
    "MXFP4": (file_of([info("w", [32], 39, 0)], bytes(17)), "tensor 'w': type MXFP4 is not supported"),
    "type 999": (file_of([info("w", [32], 999, 0)], bytes(99)), "type 999 is not supported"),
    "dimensions": (file_of([info("w", [1] * 33, I8, 0)], b"a"), "tensor 'w': 33 dimensions"),
    "no array": (file_of([info("w", [0, 1 << 40, 1 << 40], I8, 0)]), "exceeds the largest possible array"),
    "blocks": (file_of([info("w", [33], Q8_0, 0)], bytes(70)), r"shape \[33\] cannot be divided into blocks of 32"),
    "blocks across rows": (file_of([info("w", [16, 2], Q8_0, 0)], bytes(34)), "cannot be divided into blocks of 32"),
    "no block": (file_of([info("w", [], Q8_0, 0)], bytes(34)), "cannot be divided into blocks of 32"),
    "offset": (file_of([info("w", [2], I8, 8)], bytes(34)), "offset 8 is not a multiple of 32"),
    "outside": (file_of([info("w", [3], I8, 0)], b"ab"), "are required"),
    "far outside": (file_of([info("w", [1], I8, (1 << 64) - 32)], b"ab"), "are required"),
    "overlap": (file_of([info("w", [33], I8, 0), info("v", [1], I8, 32)], bytes(40)), "'v': its bytes overlap"),
    "the same bytes": (file_of([info("w", [2], I8, 0), info("v", [2], I8, 0)], bytes(40)), "its bytes overlap"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(case: str, tmp_path: Path) -> None:
    data, message = MALFORMED[case]
    with pytest.raises(FormatError, match=message):
        load(data)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        formats.load(tmp_path / "m.gguf", format="gguf")


def test_every_truncation_is_refused() -> None:
    data = file_of([info("w", [2], I16, 0)], b"abcd", KEYS)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            load(data[:size])


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(deadline=None, max_examples=examples(400))
@given(st.data())
def test_any_mutation_gives_a_model_or_an_error(draw: st.DataObject) -> None:
    infos = [info("w", [32], Q8_0, 0), info("v", [2, 2], F32, 64)]
    data = bytearray(file_of(infos, bytes(80), KEYS))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NnrError):
        dict(formats.load(bytes(data), format="gguf", limits=Limits.strict()).tensors)


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@pytest.mark.parametrize(
    "limit",
    [
        {"max_archive_bytes": 100},
        {"max_topology_bytes": 60},
        {"max_names": 1},
        {"max_name_bytes": 2},
        {"max_dims": 1},
        {"max_tensor_elements": 5},
        {"max_tensor_bytes": 11},
        {"max_total_bytes": 11},
    ],
)
def test_limits(limit: dict[str, int]) -> None:
    data = file_of([info("w", [3, 2], I16, 0)], bytes(12), [key("abc", 0, b"\1")])
    (name, value), *_ = limit.items()
    with pytest.raises(LimitError, match=rf"{name}={value}\b"):
        load(data, **limit)
    load(data)


def test_values_that_are_left_out_are_told() -> None:
    keys = [
        key("a", 8, string(b"\xff")),
        key("b", 9, array_of(8, 2, string(b"\xff") + string("x"))),
        key("c", 9, array_of(8, 100, string("xyz") * 100)),
        key("d", 9, array_of(2, 300, bytes(600))),
        key("e", 8, string("y" * 500)),
        key("f", 9, array_of(9, 1, array_of(0, 300, bytes(300)))),
        key("g", 0, b"\7"),
    ]
    data = file_of([], keys=keys)
    with pytest.warns(
        formats.FormatWarning, match="skipped the values of these keys: 'a', 'b', 'c', 'd', 'e', 'f'$"
    ) as caught:
        model = formats.load(data, limits=Limits(max_side_info_bytes=600))
    assert caught[0].filename == __file__
    assert model.metadata == {"gguf:g": "7"}
    with pytest.raises(FormatError, match=r"skipped the values of these keys: 'a', 'b'$"):
        formats.load(data, strict=True)


def test_one_of_several_files_is_told() -> None:
    data = file_of([], keys=[key("split.count", 2, b"\3\0")])
    with pytest.warns(formats.FormatWarning, match="this is one of 3 files of a model"):
        load(data)
    with pytest.raises(FormatError, match="contains only some of its tensors"):
        formats.load(data, strict=True)
    load(file_of([], keys=[key("split.count", 2, b"\1\0")]))


def test_no_more_than_the_record_holds() -> None:
    """However many values there are: what is read can be encoded."""
    keys = [key(f"k{k}", 8, string("é" * 50)) for k in range(100)]
    with pytest.warns(formats.FormatWarning, match=r"and 6\d more"):
        model = formats.load(file_of([info("w", [2], I8, 0)], b"ab", keys), limits=Limits(max_side_info_bytes=16_000))
    assert len(model.metadata) > 20
    nnr.decode(nnr.encode(model), limits=Limits(max_side_info_bytes=16_000))


def test_nothing_is_allocated_for_a_promise(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    header = file_of([info("w", [1 << 40], I8, 0)])
    path.write_bytes(header)
    os.truncate(path, len(header) + (1 << 40))  # a sparse file
    large = []
    for k, item in enumerate([array_of(8, 1 << 17, bytes(1 << 20)), array_of(0, 1 << 20, bytes(1 << 20))]):
        large.append(tmp_path / f"{k}.gguf")
        large[k].write_bytes(file_of([], keys=[key("x", 9, item)]))
    tracemalloc.start()
    try:
        with pytest.raises(LimitError):
            formats.load(path, format="gguf")
        for source in large:
            with pytest.warns(formats.FormatWarning, match="skipped the values of these keys: 'x'"):
                formats.load(source, format="gguf", limits=Limits(max_side_info_bytes=1 << 17))
        assert tracemalloc.get_traced_memory()[1] < 3 << 19
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------------ the package
def package() -> Any:
    return pytest.importorskip("gguf", reason="the package gguf (extra 'clients') is not installed")


@pytest.mark.clients
def test_files_of_the_package(tmp_path: Path) -> None:
    gguf = package()
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.02, (64, 96)).astype(np.float32)
    quantized = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    expected: dict[str, Array] = {
        "blk.0.weight": gguf.quants.dequantize(quantized, gguf.GGMLQuantizationType.Q8_0),
        "half": weight.astype(np.float16),
        "single": weight,
        "double": weight.astype(np.float64),
        "brain": weight.astype(ml_dtypes.bfloat16),
        **{f"i{bits}": np.arange(30).reshape(2, 3, 5).astype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    }
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_context_length(2048)
    writer.add_token_list(["a", "é", "Ġx"])
    writer.add_token_scores([0.5, -1.0, 1e-6])
    writer.add_bool("general.yes", True)
    writer.add_custom_alignment(64)
    for name, array in expected.items():
        if name == "blk.0.weight":
            writer.add_tensor(name, quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        elif name == "brain":
            writer.add_tensor(name, array.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model = formats.load(tmp_path / "m.gguf")
    assert_same(model.tensors, expected)
    assert model.metadata["gguf:llama.context_length"] == "2048"
    assert json.loads(model.metadata["gguf:tokenizer.ggml.tokens"]) == ["a", "é", "Ġx"]
    decoded = nnr.decode(nnr.encode(model, exact=True))
    assert_same(decoded.tensors, expected)
    assert decoded.metadata == model.metadata


@pytest.mark.clients
@settings(deadline=None)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(34))))
def test_any_blocks_as_the_package_has_them(data: Array) -> None:
    gguf = package()
    found = load(file_of([info("w", [32, len(data)], Q8_0, 0)], data.tobytes()))["w"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q8_0))


@pytest.mark.clients
def test_the_package_reads_what_is_made_by_hand(tmp_path: Path) -> None:
    """So that these tests speak of the format as others do."""
    gguf = package()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    keys = [one for one in KEYS if not one.startswith(string("nested"))]
    (tmp_path / "m.gguf").write_bytes(file_of([info("w", [3, 2], F32, 0)], array.tobytes(), keys))
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert np.array_equal(reader.tensors[0].data, array)
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("tokens").contents() == ["a", "Ġ\n"]
