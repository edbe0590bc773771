"""Safetensors files: bytes by hand, rejected files, and the format's own library."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.safetensors import LazyTensors, header
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model

from ..shared import examples
from .support import Pipe, assert_same, nnef_model

TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
}


def file_of(header: object, data: bytes = b"") -> bytes:
    """Return a file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], *offsets: int) -> dict[str, Any]:
    """Return the entry of a tensor in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def written(model: Model) -> bytes:
    """Return the file of a model."""
    file = io.BytesIO()
    formats.save(model, file, format="safetensors")
    return file.getvalue()


# ------------------------------------------------------------------------------------------------ by hand
def test_bytes_by_hand() -> None:
    tensors: dict[str, Array] = {
        "b": np.array([True, False]),
        "z": np.array([1, -2], np.int16),
        "a": np.array(1.0, ml_dtypes.bfloat16),
        "é\n": np.zeros((0, 3), np.float32),
    }
    header = (
        '{"__metadata__":{"k":"v"},"é\\n":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},'
        '"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"z":{"dtype":"I16","shape":[2],"data_offsets":[2,6]},'
        '"b":{"dtype":"BOOL","shape":[2],"data_offsets":[6,8]}}'
    ).encode()
    header += b" " * (-len(header) % 8)
    expected = file_of(header, b"\x80\x3f\x01\0\xfe\xff\x01\0")
    assert written(Model(tensors, metadata={"k": "v"})) == expected
    model = formats.load(expected)
    assert (model.format, model.metadata, model.topology) == ("safetensors", {"k": "v"}, None)
    assert_same(model.tensors, {name: tensors[name] for name in ("é\n", "a", "z", "b")})


@pytest.mark.parametrize("code", TYPES)
def test_each_type(code: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(TYPES[code])
    array[1, 2] = array[0, 1]
    data = file_of({"w": entry(code, [2, 3], 0, array.nbytes)}, array.tobytes())
    assert_same(formats.load(data).tensors, {"w": array})


def test_other_ways_to_write_a_header_are_read() -> None:
    text = b'{"b" : {"shape":[1],"data_offsets":[1,2],"dtype":"U8"},\n'
    text += b'"a":{"dtype":"I8","data_offsets":[0,1],"shape":[]}} \n'
    model = formats.load(file_of(text, b"\x01\x02"))
    assert_same(model.tensors, {"b": np.array([2], np.uint8), "a": np.array(1, np.int8)})
    assert list(formats.load(file_of(b'{"__metadata__":null}')).tensors) == []


def test_order_of_bytes_and_of_items() -> None:
    w = np.arange(600_000, dtype=">f4").reshape(-1, 2)
    tensors: dict[str, Array] = {"w": w.T, "v": w[::3, 0], "i": np.arange(3, dtype=">u2")}
    expected = {name: np.asarray(array, array.dtype.newbyteorder("=")) for name, array in tensors.items()}
    assert_same(formats.load(written(Model(tensors))).tensors, {name: expected[name] for name in ("v", "w", "i")})


def test_a_path_is_read_on_access(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    w = np.ones((300, 1000), np.float64)
    formats.save(Model({"w": w, "v": w}), path)
    assert formats.recognise(path)  # modules are imported
    tracemalloc.start()
    try:
        model = formats.load(path)
        assert isinstance(model.tensors, LazyTensors)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
        assert np.array_equal(model["w"], w)
        assert tracemalloc.get_traced_memory()[1] < w.nbytes + (1 << 20)
    finally:
        tracemalloc.stop()
    assert ("v" in model.tensors, "x" in model.tensors, len(model)) == (True, False, 2)
    with pytest.raises(KeyError):
        model["x"]
    os.utime(path, ns=(1, 1))
    with pytest.raises(FormatError, match="has changed since the model was opened"):
        model["w"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        model["w"]


def test_streams() -> None:
    model = Model({"w": np.ones(3, np.float32)}, metadata={"a": "b"}, format="safetensors")
    data = written(model)
    file = io.BytesIO()
    formats.save(model, file)  # the source was such a file
    assert file.getvalue() == data
    for source in (io.BytesIO(data), Pipe(data)):
        loaded = formats.load(source)  # type: ignore[arg-type]
        assert_same(loaded.tensors, model.tensors)
        assert loaded.metadata == {"a": "b"}


def test_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        formats.save(Model({}), path)
    with pytest.raises(FormatError):
        formats.save(Model({"w": np.zeros(1, "c8")}), path, overwrite=True)
    assert path.read_bytes() == b"precious"
    formats.save(Model({}), path, overwrite=True)
    assert path.read_bytes() == b"\x08" + bytes(7) + b"{}      "
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_losses_are_reported(tmp_path: Path) -> None:
    model = nnef_model({"w": np.zeros(1, np.float32)})
    with pytest.warns(formats.FormatWarning, match="a safetensors file cannot store the topology") as caught:
        formats.save(model, tmp_path / "m.safetensors")
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("w", np.zeros(1, "c8"), "tensor 'w': safetensors does not support dtype complex64$"),
        ("w", np.zeros(1, "g"), "tensor 'w': safetensors does not support dtype "),
        ("w", np.zeros(1, ml_dtypes.int4), "does not support dtype int4$"),
        (
            "w",
            np.zeros(1, ml_dtypes.float8_e3m4),
            r"not support dtype float8_e3m4; convert it to float32 \(--dtype, dtype=\)$",
        ),
        ("__metadata__", np.zeros(1), "safetensors does not permit this name"),
        ("\ud800", np.zeros(1), "safetensors does not permit this name"),
    ],
)
def test_what_cannot_be_written(name: str, array: Array, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        written(Model({name: array}))


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": None}, {"\ud800": "a"}, {"a": "\udfff"}])
def test_metadata_that_cannot_be_written(metadata: Any) -> None:
    with pytest.raises(FormatError, match="safetensors can store only Unicode text"):
        written(Model({}, metadata=metadata))


def test_a_tensor_that_changes_while_it_is_written() -> None:
    class Changing(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            self[name] = super().__getitem__(name)[1:]
            return super().__getitem__(name)

    with pytest.raises(FormatError, match="tensor 'w' changed while it was written"):
        written(Model(Changing(w=np.zeros(4))))


# ------------------------------------------------------------------------------------------------ hostile files
_W = entry("U8", [2], 0, 2)
_TEXT = json.dumps(_W).encode()
_DEEP = 200_000

MALFORMED: dict[str, tuple[bytes, str]] = {
    "array": (file_of(b"[]"), "not begin with an opening brace"),
    "blank": (file_of(b" {}"), "not begin with an opening brace"),
    "text": (file_of(b"{hello"), "the header is not valid JSON"),
    "two": (file_of(b"{}{}"), "the header is not valid JSON"),
    "not UTF-8": (file_of(b'{"\xff":1}'), "the header is not valid JSON"),
    "deep": (file_of(b'{"a":' + b"[" * _DEEP), "the header is not valid JSON"),
    "digits": (file_of(b'{"a":' + b"9" * 5000 + b"}"), "the header is not valid JSON"),
    "NaN": (file_of(b'{"a":NaN}'), "the header contains NaN"),
    "long": (b"\xff" * 8 + b"{}", "too few for its header"),
    "beyond the end": (b"\x03" + bytes(7) + b"{}", "too few for its header"),
    "twice": (
        file_of(b'{"a":' + _TEXT + b',"a":' + _TEXT + b"}", b"ab"),
        "'a' twice",
    ),
    "field twice": (
        file_of(b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
        "'dtype' twice",
    ),
    "list": (file_of({"a": []}), "tensor 'a': not an object of dtype, shape and data_offsets"),
    "a field less": (file_of({"a": {"dtype": "U8", "shape": [0]}}), "not an object of dtype, shape and data_offsets"),
    "a field more": (file_of({"a": {**_W, "x": 1}}, b"ab"), "not an object of dtype, shape and data_offsets"),
    "dtype": (
        file_of({"a": entry("F4", [2], 0, 1)}, b"a"),
        "tensor 'a': dtype 'F4' is not supported; use one of U64, ",
    ),
    "dtype a number": (file_of({"a": {**_W, "dtype": 1}}, b"ab"), "dtype, shape or data_offsets is malformed"),
    "extent": (file_of({"a": {**_W, "shape": [-2]}}, b"ab"), "dtype, shape or data_offsets is malformed"),
    "extent of 2.0": (file_of({"a": {**_W, "shape": [2.0]}}, b"ab"), "dtype, shape or data_offsets is malformed"),
    "extent true": (file_of({"a": {**_W, "shape": [2, True]}}, b"ab"), "dtype, shape or data_offsets is malformed"),
    "extent of 2**63": (file_of({"a": entry("U8", [1 << 63, 0], 0, 0)}), "dtype, shape or data_offsets is malformed"),
    "three offsets": (
        file_of({"a": {**_W, "data_offsets": [0, 2, 2]}}, b"ab"),
        "dtype, shape or data_offsets is malformed",
    ),
    "negative offset": (
        file_of({"a": {**_W, "data_offsets": [-2, 0]}}, b"ab"),
        "dtype, shape or data_offsets is malformed",
    ),
    "end before start": (file_of({"a": {**_W, "data_offsets": [2, 0]}}, b"ab"), r"data_offsets \[2, 0\]; U8 of shape"),
    "too few bytes": (file_of({"a": entry("F32", [2], 0, 7)}, bytes(7)), "F32 of shape .2. requires 8 bytes"),
    "no array": (file_of({"a": entry("U8", [0, 1 << 40, 1 << 40], 0, 0)}), "exceeds the largest possible array"),
    "hole": (file_of({"a": entry("U8", [2], 1, 3)}, b"abc"), "tensor 'a': its bytes, from 1 on, follow a gap"),
    "overlap": (
        file_of({"a": _W, "b": entry("U8", [2], 1, 3)}, b"abc"),
        "tensor 'b': its bytes, from 1 on, overlap another tensor",
    ),
    "the same bytes": (file_of({"a": _W, "b": _W}, b"ab"), "overlap another tensor"),
    "empty inside": (file_of({"a": _W, "b": entry("U8", [0], 1, 1)}, b"ab"), "overlap another tensor"),
    "outside": (file_of({"a": _W}, b"a"), "the file has .* bytes; header and tensors require "),
    "bytes left": (file_of({"a": _W}, b"abc"), "the file has .* bytes; header and tensors require "),
    "boolean": (file_of({"a": entry("BOOL", [2], 0, 2)}, b"\1\2"), "tensor 'a': a boolean is neither 0 nor 1"),
    "metadata": (file_of({"__metadata__": []}), "__metadata__ is not an object of strings"),
    "metadata number": (file_of({"__metadata__": {"a": 1}}), "__metadata__ is not an object of strings"),
    "surrogate": (file_of(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "is not Unicode text"),
    "surrogate in metadata": (file_of(b'{"__metadata__":{"a":"\\ud800"}}'), "'a' is not Unicode text"),
    "surrogate in a key": (file_of(b'{"__metadata__":{"\\ud800":"a"}}'), "is not Unicode text"),
    "index": (
        b'{"metadata":{"total_size":1},"weight_map":{"a":"model-00001-of-00002.safetensors"}}',
        "the index (of a sharded model|names a shard)|shard 'model-00001-of-00002.safetensors' is missing",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(case: str, tmp_path: Path) -> None:
    data, message = MALFORMED[case]
    with pytest.raises(FormatError, match="the stream: .*" + message):
        formats.load(io.BytesIO(data), format="safetensors")
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        dict(formats.load(path, format="safetensors").tensors)


def test_every_truncation_is_refused() -> None:
    data = written(Model({"w": np.arange(3, dtype=np.float32), "b": np.ones(2, np.bool_)}, metadata={"a": "b"}))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            formats.load(data[:size], format="safetensors")


@pytest.mark.parametrize(
    ("limit", "data"),
    [
        ({"max_archive_bytes": 100}, file_of({"a": entry("U8", [99], 0, 99)}, bytes(99))),
        ({"max_topology_bytes": 100}, file_of(b"{}" + b" " * 99)),
        ({"max_names": 1}, file_of({"a": entry("U8", [0], 0, 0), "b": entry("U8", [0], 0, 0)})),
        ({"max_names": 2}, file_of({"a": entry("U8", [0], 0, 0), "__metadata__": {"a": "", "b": ""}})),
        ({"max_name_bytes": 3}, file_of({"éé": entry("U8", [0], 0, 0)})),
        ({"max_name_bytes": 3}, file_of({"__metadata__": {"éé": ""}})),
        ({"max_dims": 2}, file_of({"a": entry("U8", [1, 1, 1], 0, 1)}, b"a")),
        ({"max_tensor_elements": 1}, file_of({"a": _W}, b"ab")),
        ({"max_tensor_bytes": 7}, file_of({"a": entry("F32", [2], 0, 8)}, bytes(8))),
        ({"max_total_bytes": 3}, file_of({"a": _W, "b": entry("U8", [2], 2, 4)}, b"abcd")),
    ],
)
def test_limits(limit: dict[str, int], data: bytes) -> None:
    (name, value), *_ = limit.items()
    with pytest.raises(LimitError, match=rf"{name}={value}\b"):
        formats.load(data, format="safetensors", limits=Limits(**limit))  # type: ignore[arg-type]
    formats.load(data, format="safetensors")


def test_nothing_is_allocated_for_a_promise(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    header = file_of({"a": entry("U8", [1 << 40], 0, 1 << 40)})
    path.write_bytes(header)
    os.truncate(path, len(header) + (1 << 40))  # a sparse file
    tracemalloc.start()
    try:
        with pytest.raises(LimitError):
            formats.load(path)
        path.write_bytes((1 << 39).to_bytes(8, "little") + b"{")
        os.truncate(path, 1 << 40)
        for limits in (Limits(max_archive_bytes=1 << 41), Limits.unlimited()):
            with pytest.raises((FormatError, LimitError), match="header"):
                formats.load(path, format="safetensors", limits=limits)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_ends_early_after_all(tmp_path: Path) -> None:
    """The stated size is larger than the file."""

    class Short(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            return 0

    with pytest.raises(FormatError, match="tensor 'a': the file ends 2 bytes early"):
        formats.load(Short(file_of({"a": _W}, b"ab")), format="safetensors")


def test_the_library_reads_no_longer_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 100 MB."""
    data = written(Model({"w": np.zeros(2)}))
    monkeypatch.setattr(header, "MAX_HEADER", 55)
    with pytest.raises(FormatError, match="the header has 56 bytes; at most 55 are supported"):
        formats.load(data)
    with pytest.raises(FormatError, match="the header would have 56 bytes; safetensors permits at most 55"):
        written(Model({"w": np.zeros(2)}))


_BASE = written(
    Model(
        {
            "w": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.ones(2, np.bool_),
            "h": np.ones((), ml_dtypes.bfloat16),
            "e": np.ones((0, 2), np.int8),
        },
        metadata={"format": "pt"},
    )
)
_TOKENS = [*(bytes([c]) for c in b'019-.{}[],:"\\\xff'), b"F64", b"null", b"1e9"]


@pytest.mark.medium
@settings(deadline=None, max_examples=examples(400))
@given(st.data())
def test_any_mutation_gives_a_model_or_an_error(data: st.DataObject) -> None:
    changed = bytearray(_BASE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        cut = data.draw(st.integers(0, 3))
        changed[at : at + cut] = data.draw(st.sampled_from(_TOKENS) | st.binary(max_size=3))
        if not changed:
            return
    with contextlib.suppress(NnrError):
        model = formats.load(bytes(changed), format="safetensors", limits=Limits.strict())
        assert_same(formats.load(written(model)).tensors, {n: model[n] for n in formats.load(written(model)).tensors})


_KEYS = ["dtype", "shape", "data_offsets", "__metadata__", "w"]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(sorted(TYPES)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
        max_leaves=12,
    ),
    st.binary(max_size=8),
)
def test_any_header_gives_a_model_or_an_error(header: object, data: bytes) -> None:
    with contextlib.suppress(NnrError):
        formats.load(file_of(header, data), format="safetensors", limits=Limits.strict())


# ------------------------------------------------------------------------------------------------ recognition
def test_content_decides(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(_BASE)
    module = formats.recognise(tmp_path / "weights")
    assert module is formats.get("safetensors")
    assert formats.recognise(io.BytesIO(_BASE)) is module
    for data in (b"", b"{}", b"\x02" + bytes(7), b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b"{}", b'{"a":1}'):
        (tmp_path / "x").write_bytes(data)
        assert formats.recognise(tmp_path / "x") is None
    assert formats.recognise(tmp_path) is None


def test_a_size_that_looks_like_text_is_no_index(tmp_path: Path) -> None:
    header = json.dumps({"weight_map": entry("U8", [2], 0, 2)}).encode()
    data = file_of(header.ljust(0x7B20), b"ab")  # whose size begins with a blank and a brace
    path = tmp_path / "m"
    path.write_bytes(data)
    assert formats.load(path)["weight_map"].tobytes() == b"ab"


def test_without_ml_dtypes(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(_BASE)
    (tmp_path / "plain.safetensors").write_bytes(written(Model({"w": np.ones(2)})))
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from nnr_codec import MissingDependencyError, formats\n"
        "print(formats.load('plain.safetensors')['w'])\n"
        "try: formats.load('m.safetensors')\n"
        "except MissingDependencyError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    plain, message = out.splitlines()
    assert plain == "[1. 1.]"
    assert message.startswith(
        "m.safetensors: tensor 'h': numpy does not support bfloat16; pip install 'nnr_codec[types]'"
    )


# ------------------------------------------------------------------------------------------------ the library
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5).filter(lambda name: name != "__metadata__")


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Draw arrays of any of the types, of any bits."""
    dtype = np.dtype(TYPES[draw(st.sampled_from(sorted(TYPES)))])
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    size = int(np.prod(shape))
    if dtype == np.bool_:
        return draw(hnp.arrays(np.bool_, shape))
    data = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    return np.frombuffer(data, f"u{dtype.itemsize}").view(dtype).reshape(shape)


@pytest.mark.clients
@settings(deadline=None)
@given(st.dictionaries(_NAMES, arrays(), max_size=5), st.dictionaries(_NAMES, st.text(max_size=5), max_size=1))
def test_the_library_writes_the_same_bytes(tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    """With two entries of metadata the library's order is random."""
    library = pytest.importorskip(
        "safetensors.numpy", reason="the package safetensors (extra 'clients') is not installed"
    )
    texts = {key: "".join(c for c in text if not "\ud800" <= c <= "\udfff") for key, text in metadata.items()}
    data = written(Model(tensors, metadata=texts))
    assert data == library.save(tensors, texts or None)
    model = formats.load(data)
    assert_same({name: model[name] for name in sorted(model)}, {name: tensors[name] for name in sorted(tensors)})
    assert model.metadata == texts


@pytest.mark.clients
@pytest.mark.parametrize("case", sorted(MALFORMED))
def test_what_the_library_refuses_is_refused_here(case: str) -> None:
    """The library accepts the last of two equal keys, unknown fields, more types, and any boolean."""
    library = pytest.importorskip("safetensors", reason="the package safetensors (extra 'clients') is not installed")
    lenient = {"twice", "field twice", "a field more", "dtype", "boolean", "blank", "no array", "extent of 2**63"}
    if case in lenient:
        return
    with pytest.raises(library.SafetensorError):
        library.deserialize(MALFORMED[case][0])
