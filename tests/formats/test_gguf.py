"""GGUF files: bytes by hand, rejected files, and the package gguf."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import pickle
import shutil
import struct
import subprocess
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
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
from nnr_codec.errors import EncodeError, FormatError, LimitError, NnrError
from nnr_codec.formats.gguf.blocks import BLOCK_TYPES, join
from nnr_codec.formats.safetensors import LazyTensors
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Portable, Topology

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


#: Types of blocks with fields.
SPLIT = [kind for kind, block in BLOCK_TYPES.items() if not block.is_opaque]
#: Lossless bitstream of version 1.1 of a file with Q8_0 and F32.
EARLIER = (
    "00040201000806010040008000da0e80007b226e6e725f636f646563223a332c22736f75726365223a7b22666f726d617422"
    "3a2267677566222c226d65746164617461223a7b22676775663a67656e6572616c2e617263686974656374757265223a226c"
    "6c616d61222c22676775663a7538223a22323535227d7d2c2274656e736f7273223a7b2277223a7b22636f6465223a7b2268"
    "6f6c6573223a322c226b696e64223a22666c6f6174222c226d616e7469737361223a312c227069766f74223a3236302c227a"
    "65726f73223a31397d2c2274797065223a22666c6f61743332227d7d7d000033160177236c6576656c730030482a01e8206b"
    "609f5ad150003587d731746698700f9ae099210f0eac6ef69807f8cf516180002e16117723626974730041c440f8debc9af8"
    "debc9ae8ace8acc8c8888888888c8cca8eca8ea9cbed8fa9cbed0f00101609620018706150008d0041cde0"
)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def info(name: str | bytes, dims: list[int], kind: int, offset: int) -> bytes:
    """Return the entry of a tensor in the list; as in the file, adjacent items are in the first dimension."""
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
    """Return a file of these keys and tensors."""
    keys = keys or []
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(infos), len(keys)))) + b"".join([*keys, *infos])
    return head + bytes(-len(head) % alignment) + data


def load(data: bytes, **limits: int) -> Model:
    return formats.load(data, format="gguf", limits=Limits(**limits) if limits else None)  # type: ignore[arg-type]


def blocks(scales: Array, integers: Array) -> bytes:
    """Return blocks of Q8_0."""
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
    assert (model.format, model.metadata) == ("gguf", {})
    assert model.topology == Topology("", data[: -array.nbytes])


def test_blocks_are_their_products() -> None:
    integers = np.arange(-128, 128).reshape(2, 128)
    scales = np.array([1, 2**-24, 65504, -0.1, 0.0, 1 / 3, 2**-14, 7], np.float16)
    expected = (np.repeat(scales.astype(np.float64), 32) * integers.reshape(-1)).reshape(2, 128)
    tensor = nnr.dequantized(load(file_of([info("w", [128, 2], Q8_0, 0)], blocks(scales, integers))))["w"]
    assert tensor.dtype == np.float32
    assert np.array_equal(tensor, expected)  # in float64, where they are exact


def test_blocks_of_scales_that_are_no_numbers() -> None:
    data = file_of([info("w", [64], Q8_0, 0)], blocks(np.array([np.inf, np.nan]), np.arange(64)))
    tensor: Any = nnr.dequantized(load(data))["w"]
    assert np.isnan(tensor[0]) and np.isposinf(tensor[1:32]).all() and np.isnan(tensor[32:]).all()


def test_many_blocks(tmp_path: Path) -> None:
    """There are more blocks than are read at a time."""
    rng = np.random.default_rng(0)
    integers = rng.integers(-128, 128, (70_000, 32))
    scales = rng.normal(0, 0.01, 70_000).astype(np.float16)
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of([info("w", [320, 7000], Q8_0, 0)], blocks(scales, integers)))
    source = formats.load(path)
    assert_same(
        source.tensors, {"w#levels": integers.astype(np.int8).reshape(7000, 320), "w#d": scales.reshape(7000, 10)}
    )
    model = nnr.dequantized(source)
    expected = (scales.astype(np.float32)[:, None] * integers.astype(np.float32)).reshape(7000, 320)
    tracemalloc.start()
    try:
        tensor = model["w"]
        assert tracemalloc.get_traced_memory()[1] < 1.6 * tensor.nbytes
    finally:
        tracemalloc.stop()
    assert np.array_equal(tensor, expected)
    assert isinstance(model.tensors, Portable)
    data = pickle.dumps(model.tensors.only(["w"]))
    assert len(data) < 2000
    assert_same(pickle.loads(data), {"w": expected})


def test_scalars_and_empty_tensors() -> None:
    infos = [info("s", [], F32, 0), info("e", [0, 3], F32, 32), info("é", [32, 0], Q8_0, 32)]
    model = load(file_of(infos, struct.pack("<f", 1.5).ljust(32, b"\0")))
    expected = {"s": np.array(1.5, np.float32), "e": np.zeros((3, 0), np.float32), "é": np.zeros((0, 32), np.float32)}
    assert_same(nnr.dequantized(model).tensors, expected)


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
    metadata = nnr.dequantized(load(file_of([], keys=KEYS))).metadata
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
    with pytest.raises(FormatError, match="a model of gguf requires a graph of gguf; this one has none"):
        formats.save(Model({}), tmp_path / "y.gguf")


def test_ratios_refer_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level of 4 bits is a byte of an array, but ratios do not count the other half as compressed."""
    path, target = tmp_path / "m.gguf", tmp_path / "m.nnr"
    entry, data = some_blocks(Q4_0, 128, 32)
    path.write_bytes(file_of([entry], data))
    result = call(capsys, "encode", path, "--lossless")
    before, after, arrays = path.stat().st_size, target.stat().st_size, 4096 * 34
    ratios = f"{100 * after / before:.2f} % of the file, {100 * after / arrays:.2f} % of its values as arrays, "
    assert f": {before:,} -> {after:,} bytes ({ratios}" in result.err
    assert f"{before:,} -> " in call(capsys, "encode", path, "--dry-run").out.splitlines()[-1]
    update = call(capsys, "update", "encode", path, "--base", path, "--dry-run").out.splitlines()[-1]
    assert update.startswith(f"{before:,} -> ")
    assert " % of the file, " in update
    monkeypatch.delenv("NNR_PEER", raising=False)
    monkeypatch.setattr("nnr_cli.contenders.general", lambda race: ())
    sizes, _, row, *_ = call(capsys, "bench", path, "--qp", -20, "-q").out.splitlines()
    assert sizes.endswith(f" parameters, {before:,} bytes, {arrays:,} as arrays")
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
    before, after = nnr.dequantized(tmp_path / "m.gguf"), formats.load(tmp_path / "m.safetensors")
    assert_same({name: after[name] for name in before}, before.tensors)
    assert after.metadata == before.metadata


# ------------------------------------------------------------------------------------------------ written again
def some_blocks(kind: int, rows: int = 3, columns: int = 2, seed: int = 0) -> tuple[bytes, bytes]:
    """Return the entry of a tensor ``w`` of random blocks in the list, and these blocks."""
    block = BLOCK_TYPES[kind]
    data = np.random.default_rng(seed).integers(0, 256, rows * columns * block.nbytes, np.uint8)
    return info("w", [columns * block.size, rows], kind, 0), data.tobytes()


def written(model: Model) -> bytes:
    file = io.BytesIO()
    formats.save(model, file, format="gguf")
    return file.getvalue()


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=lambda kind: BLOCK_TYPES[kind].name)
def test_each_block_type_is_restored_byte_for_byte(kind: int, tmp_path: Path) -> None:
    entry, data = some_blocks(kind)
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of([entry], data, KEYS))
    for options in ({}, {"exact": True}):  # quantized tensors are always lossless
        coded = nnr.encode(path, **options)
        assert written(nnr.decode(coded)) == path.read_bytes()
    nnr.decode_file(coded, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", SPLIT, ids=lambda kind: BLOCK_TYPES[kind].name)
def test_fields_are_all_bits_of_a_block_once(kind: int) -> None:
    block = BLOCK_TYPES[kind]
    bits = np.unpackbits(np.eye(8 * block.nbytes, dtype=np.uint8), axis=1)[:, : 8 * block.nbytes]
    blocks = np.packbits(bits, axis=1)  # each has one bit
    fields = {field.name: field.split(blocks) for field in block.fields}
    assert np.array_equal(join(block, fields), blocks)
    assert sum(field.count * (16 if field.type == "float16" else field.bits) for field in block.fields) == bits.shape[1]


def test_fields_of_a_block_by_hand() -> None:
    """The expected Q4_K weights follow ggml's description: 8 groups of 32 with scales and minima of 6 bits."""
    scales, mins = np.array([1, 2, 3, 4, 61, 62, 63, 0]), np.array([5, 6, 7, 8, 40, 41, 42, 43])
    levels = (np.arange(256) * 7) % 16
    packed = bytes(
        [
            *(scales[k] | (scales[k + 4] >> 4) << 6 for k in range(4)),
            *(mins[k] | (mins[k + 4] >> 4) << 6 for k in range(4)),
            *((scales[k + 4] & 15) | (mins[k + 4] & 15) << 4 for k in range(4)),
        ]
    )
    nibbles = bytes(int(levels[64 * c + k] | levels[64 * c + 32 + k] << 4) for c in range(4) for k in range(32))
    data = np.array([0.5, 0.25], "<f2").tobytes() + packed + nibbles
    model = load(file_of([info("w", [256], 12, 0)], data))
    expected = {"w#levels": levels, "w#scales": scales, "w#mins": mins}
    expected = {name: items.astype(np.int8) for name, items in expected.items()}
    assert_same(model.tensors, {**expected, "w#d": np.array([0.5], "f2"), "w#dmin": np.array([0.25], "f2")})
    weights = 0.5 * np.repeat(scales, 32) * levels - 0.25 * np.repeat(mins, 32)
    assert_same(nnr.dequantized(model).tensors, {"w": weights.astype(np.float32)})


def test_all_other_bytes_are_restored() -> None:
    """Padding and trailing bytes are arbitrary, tensors may have any order, and texts need not be Unicode."""
    infos = [info("b", [2], I8, 64), info("e", [0, 3], F32, 0), info("a", [32], Q4_0, 0)]
    head = file_of(infos, keys=[*KEYS, key("x", 8, string(b"\xff"))], alignment=1)
    head = head.ljust(-(-len(head) // 32) * 32, b"p")
    data = head + bytes(range(18)) + b"q" * 46 + b"ab" + b"the end"
    model = load(data)
    assert model.topology == Topology("", head + b"q" * 46 + b"the end")
    assert written(nnr.decode(nnr.encode(model, exact=True))) == data


def test_names_of_fields_differ_from_names_of_tensors() -> None:
    infos = [info("w", [32], Q8_0, 0), info("w#levels", [2], I8, 64), info("w##d", [32], Q8_0, 96)]
    data = file_of(infos, bytes(range(130)))
    model = load(data)
    assert list(model) == ["w###levels", "w###d", "w#levels", "w##d###levels", "w##d###d"]
    assert written(nnr.decode(nnr.encode(model, exact=True))) == data
    assert list(nnr.dequantized(model)) == ["w", "w#levels", "w##d"]


def test_lossy_options_change_other_tensors_only() -> None:
    entry, data = some_blocks(Q4_0, 64, 4)
    values = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    place = -(-len(data) // 32) * 32
    source = load(file_of([entry, info("v", [32, 64], F32, place)], data.ljust(place, b"\0") + values.tobytes()))
    decoded = nnr.decode(nnr.encode(source, quality=20))
    assert_same({name: decoded[name] for name in ("w#levels", "w#d")}, {n: source[n] for n in ("w#levels", "w#d")})
    assert 0 < np.abs(decoded["v"] - values).max() < 0.5
    again = load(written(decoded))
    assert_same(again.tensors, decoded.tensors)
    assert_same({"w#d": nnr.decode(nnr.encode(decoded, quality=20))["w#d"]}, {"w#d": source["w#d"]})
    with pytest.raises(EncodeError, match="fixed_point would change tensors that are already quantized"):
        nnr.encode(source, fixed_point="q7.8")


def test_dequantized_weights_are_coded_lossily(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scales = np.random.default_rng(0).normal(0, 0.01, 512)
    data = blocks(scales, np.random.default_rng(1).integers(-128, 128, (512, 32)))
    (tmp_path / "m.gguf").write_bytes(file_of([info("w", [128, 128], Q8_0, 0)], data, KEYS))
    source = nnr.dequantized(tmp_path / "m.gguf")
    for options, jobs in (([], 1), (["-j", 2], 2)):
        assert call(capsys, "encode", tmp_path / "m.gguf", "--dequantize", "--quality", 25, "-f", *options).code == 0
        assert (tmp_path / "m.nnr").read_bytes() == nnr.encode(source, quality=25, jobs=jobs)
    decoded = nnr.decode(tmp_path / "m.nnr")
    assert nnr.compare_models(source, decoded).snr > 20
    assert decoded.metadata == source.metadata
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        assert nnr.encode(source, quality=25, executor=executor) == (tmp_path / "m.nnr").read_bytes()


def test_a_topology_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, data = some_blocks(Q8_0)
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of([entry], data, KEYS))
    assert call(capsys, "encode", path, "--topology", "external").code == 0
    result = call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "again.gguf")
    assert "a model of gguf requires a graph of gguf" in result.err
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "again.gguf", "--topology", path).code == 0
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
def test_parts_of_a_bitstream(tmp_path: Path) -> None:
    """Weights require all fields of a tensor; other tensors are unchanged."""
    infos = [info("w", [32], Q8_0, 0), info("v", [32], Q8_0, 64), info("b", [32], 20, 128)]
    data = nnr.encode(load(file_of(infos, bytes(range(146)))))
    nnr.decode_file(data, tmp_path / "m.npz", names=["w#d", "w#levels", "v#levels", "b#blocks"])
    assert set(formats.load(tmp_path / "m.npz")) == {"w", "v#levels", "b#blocks"}


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
def test_types_of_decoded_floats(tmp_path: Path) -> None:
    entry, data = some_blocks(Q8_0)
    coded = nnr.encode(load(file_of([entry], np.clip(np.frombuffer(data, np.uint8), 0, 100).tobytes())))
    nnr.decode_file(coded, tmp_path / "m.npz", dtype="float32")
    assert_same(formats.load(tmp_path / "m.npz").tensors, nnr.dequantized(nnr.decode(coded)).tensors)
    with pytest.raises(FormatError, match="tensor 'w#d' is bfloat16, which changes the weights of 'w'; omit --dtype"):
        nnr.decode_file(coded, tmp_path / "other.safetensors", dtype="bfloat16")
    with pytest.raises(FormatError, match=r"tensor 'w#d' is float32 \[3, 2\]; the GGUF file says float16 \[3, 2\]"):
        nnr.decode_file(coded, tmp_path / "m.gguf", dtype="float32")


def test_models_that_do_not_fit_their_topology() -> None:
    entry, data = some_blocks(Q4_0)
    model = load(file_of([entry], data))
    levels = np.array(model["w#levels"])
    for other, message in (
        ({"w#d": model["w#d"]}, "the model has no tensor 'w#levels', which the GGUF file lists"),
        (
            {**model.tensors, "w#levels": levels.reshape(-1)},
            r"'w#levels' is int8 \[192\]; the GGUF file says int8 \[3, 64\]",
        ),
        (
            {**model.tensors, "w#levels": levels + np.int8(1)},
            "'w#levels' has integers outside -8 to 7, the range of Q4_0",
        ),
    ):
        with pytest.raises(FormatError, match=message):
            written(replace(model, tensors=other))
    more = replace(model, tensors={**model.tensors, "x": levels})
    with pytest.warns(formats.FormatWarning, match="tensors that the GGUF file does not list are left out: 'x'"):
        assert written(more) == file_of([entry], data)


@pytest.mark.parametrize("size", [10, 60, 70])
def test_damaged_topologies(size: int) -> None:
    """A damaged topology gives no shapes or types and is not written."""
    entry, data = some_blocks(Q4_0)
    model = load(file_of([entry], data))
    assert model.topology is not None
    damaged = replace(model, topology=replace(model.topology, data=model.topology.data[:size]))
    with pytest.raises(FormatError):
        written(damaged)
    assert_same(nnr.decode(nnr.encode(damaged, exact=True)).tensors, model.tensors)


def test_updates_of_quantized_tensors() -> None:
    entry, data = some_blocks(Q4_0, 8)
    base, new = load(file_of([entry], data)), load(file_of([entry], some_blocks(Q4_0, 8, seed=1)[1]))
    found = nnr.apply_update(base, nnr.encode_update(base, new))
    assert written(found) == written(new)


def test_bitstreams_of_earlier_versions(tmp_path: Path) -> None:
    """They have weights of Q8_0, and keys in the side information."""
    (tmp_path / "m.nnr").write_bytes(bytes.fromhex(EARLIER))
    model = nnr.decode(tmp_path / "m.nnr")
    weights = np.arange(-32, 32).reshape(2, 32) * np.array([[0.5], [-2.0]])
    assert_same(model.tensors, {"w": weights.astype(np.float32), "b": np.arange(3, dtype=np.float32)})
    assert model.metadata == {"gguf:general.architecture": "llama", "gguf:u8": "255"}
    nnr.decode_file(tmp_path / "m.nnr", tmp_path / "m.safetensors")
    assert formats.load(tmp_path / "m.safetensors").metadata == model.metadata
    with pytest.raises(FormatError, match="a model of gguf requires a graph of gguf; this one has none"):
        nnr.decode_file(tmp_path / "m.nnr", tmp_path / "m.gguf")


@pytest.mark.torch
def test_weights_of_a_state_dict() -> None:
    torch = pytest.importorskip("torch")
    data = blocks(np.array([0.5]), np.arange(32).reshape(1, 32))
    found = nnr.decode(nnr.encode(load(file_of([info("w", [32], Q8_0, 0)], data))), framework="pt")
    assert found.keys() == {"w"}
    assert torch.equal(found["w"], torch.arange(32) * 0.5)


# ------------------------------------------------------------------------------------------------ rejected input
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
    "deep": (file_of([], keys=[key("x", 9, _DEEP)]), "nested deeper than 4"),
    "long string": (
        file_of([], keys=[key("x", 8, b"\xff" * 8)]),
        "the file ends, but 18,446,744,073,709,551,615 bytes",
    ),
    "long array": (file_of([], keys=[key("x", 9, array_of(4, 1 << 62, b""))]), "the file ends"),
    "many strings": (file_of([], keys=[key("x", 9, array_of(8, 1 << 62, b""))]), "the file ends"),
    "many arrays": (file_of([], keys=[key("x", 9, array_of(9, 1 << 62, b""))]), "the file ends"),
    "alignment 0": (file_of([], keys=[key("general.alignment", 4, bytes(4))]), "must be a uint32 power of two"),
    "alignment 24": (file_of([], keys=[key("general.alignment", 4, b"\x18\0\0\0")]), "must be a uint32 power of two"),
    "alignment's type": (
        file_of([], keys=[key("general.alignment", 8, string("32"))]),
        "must be a uint32 power of two",
    ),
    "name twice": (file_of([info("w", [2], I8, 0)] * 2, b"ab"), "two tensors have the same name"),
    "name": (file_of([info(b"\xff", [2], I8, 0)], b"ab"), "the name .* of a tensor is not Unicode text"),
    "Q8_1": (file_of([info("w", [32], 9, 0)], bytes(40)), "tensor 'w': the tensor type 9 is not supported"),
    "type 999": (file_of([info("w", [32], 999, 0)], bytes(99)), "the tensor type 999 is not supported"),
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


def test_left_out_values_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata of another format omits some values; a GGUF file has them all."""
    keys = [
        key("a", 8, string(b"\xff")),
        key("b", 9, array_of(8, 2, string(b"\xff") + string("x"))),
        key("c", 9, array_of(8, 100, string("xyz") * 100)),
        key("d", 9, array_of(2, 300, bytes(600))),
        key("e", 8, string("y" * 500)),
        key("f", 9, array_of(9, 1, array_of(0, 300, bytes(300)))),
        key("g", 0, b"\7"),
    ]
    model = load(file_of([], keys=keys))
    monkeypatch.setattr(formats.get("gguf"), "METADATA_BYTES", 300)
    with pytest.warns(
        formats.FormatWarning, match="skipped the values of these keys: 'a', 'b', 'c', 'd', 'e', 'f'$"
    ) as caught:
        found = nnr.dequantized(model)
    assert caught[0].filename == __file__
    assert found.metadata == {"gguf:g": "7"}
    assert written(model) == file_of([], keys=keys)


def test_one_of_several_files_is_reported() -> None:
    data = file_of([], keys=[key("split.count", 2, b"\3\0")])
    with pytest.warns(formats.FormatWarning, match="this is one of 3 files of a model"):
        load(data)
    with pytest.raises(FormatError, match="contains only some of its tensors"):
        formats.load(data, strict=True)
    load(file_of([], keys=[key("split.count", 2, b"\1\0")]))


def test_metadata_fit_the_record() -> None:
    """Every file that can be read can be encoded, whatever its number of values."""
    keys = [key(f"k{k}", 8, string("é" * 500_000)) for k in range(4)]
    with pytest.warns(formats.FormatWarning, match=r"these keys: 'k2', 'k3'$"):
        model = nnr.dequantized(load(file_of([info("w", [2], I8, 0)], b"ab", keys)))
    assert len(model.metadata) == 2
    nnr.decode(nnr.encode(model))


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
            formats.load(source, format="gguf")
        assert tracemalloc.get_traced_memory()[1] < 9 << 19
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

    source = formats.load(tmp_path / "m.gguf")
    model = nnr.dequantized(source)
    assert_same(model.tensors, expected)
    assert model.metadata["gguf:llama.context_length"] == "2048"
    assert json.loads(model.metadata["gguf:tokenizer.ggml.tokens"]) == ["a", "é", "Ġx"]
    decoded = nnr.decode(nnr.encode(model, exact=True))
    assert_same(decoded.tensors, expected)
    assert decoded.metadata == model.metadata
    assert written(nnr.decode(nnr.encode(source, exact=True))) == (tmp_path / "m.gguf").read_bytes()


@pytest.mark.clients
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("kind", SPLIT)
@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_any_blocks_are_the_weights_of_the_package(kind: int, draw: st.DataObject) -> None:
    """For each type that is split into fields, every bit has the meaning that the package gives it."""
    gguf, block = package(), BLOCK_TYPES[kind]
    data = draw.draw(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(block.nbytes))))
    found = nnr.dequantized(load(file_of([info("w", [block.size, len(data)], kind, 0)], data.tobytes())))["w"]
    np.testing.assert_array_equal(found, gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind)))


@pytest.mark.clients
@pytest.mark.parametrize(
    "name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
)
def test_round_trip_of_a_file_of_the_package_is_byte_exact(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of the package's writer pass through the command line; it quantizes to five of these types."""
    gguf, rng = package(), np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType[name]
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    weights = rng.normal(0, 0.02, (256, 2 * size)).astype(np.float32)
    try:
        data = gguf.quants.quantize(weights, kind)
    except NotImplementedError:
        data = rng.integers(0, 256, (256, 2 * nbytes), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", data, raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", weights[0])
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    assert call(capsys, "encode", tmp_path / "m.gguf", "--lossless").code == 0
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "again.gguf").code == 0
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    if name.startswith(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")):
        assert (tmp_path / "m.nnr").stat().st_size < (tmp_path / "m.gguf").stat().st_size


@pytest.mark.clients
@pytest.mark.skipif(not shutil.which("zstd"), reason="the program zstd is not installed")
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_weights_take_fewer_bytes_than_with_zstd(name: str) -> None:
    """Weights are normally distributed, like trained ones; benchmarks/gguf_sizes.py uses a trained network."""
    gguf = package()
    weights = np.random.default_rng(0).normal(0, 0.02, (256, 768)).astype(np.float32)
    data = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[name])
    file = file_of([info("w", [768, 256], gguf.GGMLQuantizationType[name], 0)], data.tobytes())
    zstd = subprocess.run(["zstd", "-19", "-c"], input=file, capture_output=True, check=True).stdout
    assert len(nnr.encode(load(file))) < len(zstd)


@pytest.mark.clients
def test_the_package_reads_the_handmade_files(tmp_path: Path) -> None:
    """This checks that the files of these tests are valid GGUF."""
    gguf = package()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    keys = [one for one in KEYS if not one.startswith(string("nested"))]
    (tmp_path / "m.gguf").write_bytes(file_of([info("w", [3, 2], F32, 0)], array.tobytes(), keys))
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert np.array_equal(reader.tensors[0].data, array)
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("tokens").contents() == ["a", "Ġ\n"]
