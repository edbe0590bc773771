"""OpenVINO IR: the XML is kept, and constants are restored at their offsets."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tracemalloc
import warnings
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats import openvino
from nnr_codec.formats.openvino import ir as xml
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Portable, Topology

from ..shared import examples
from .irs import BITS, DTYPES, around, const, ir, pair, put

RNG = np.random.default_rng(18)
SCALE = np.array([1.5, -2.0], np.float32)


def through(path: Path, target: Path, **options: object) -> bytes:
    """Encode an IR, decode it to another path, and return the bitstream."""
    data = nnr.encode(path, **options)  # type: ignore[arg-type]
    nnr.decode_file(io.BytesIO(data), target)
    return data


def two(folder: Path) -> Path:
    """Return a model of two constants."""
    layers = const("w", 0, 24, "f32", (2, 3)), const("axes", 24, 16, "i64", (2,))
    return put(folder, ir(*layers), RNG.normal(size=6).astype("<f4").tobytes() + np.array([0, 1], "<i8").tobytes())


# ------------------------------------------------------------------------------------------------ reading
def test_what_it_is(tmp_path: Path) -> None:
    path = two(tmp_path)
    module = formats.recognise(path)
    assert module is not None
    assert module.NAME == "openvino"
    model = nnr.load(path)
    assert model.topology == Topology("", path.read_bytes())
    assert (model.format, model.metadata, model.aliases) == ("openvino", {}, {})
    assert {name: (array.dtype.name, array.shape) for name, array in model.tensors.items()} == {
        "w": ("float32", (2, 3)),
        "axes": ("int64", (2,)),
    }
    assert model["w"].tobytes() + model["axes"].tobytes() == pair(path)[1]


@pytest.mark.parametrize("type", [*BITS, "string"])
def test_every_type(type: str, tmp_path: Path) -> None:
    for shape in ((), (1,), (5,), (3, 5), (1, 2, 1, 4)):
        folder = tmp_path / str(shape)
        folder.mkdir()
        assert_round_trip(type, shape, folder)


def assert_round_trip(type: str, shape: tuple[int, ...], folder: Path) -> None:
    size = 29 if type == "string" else -(-prod(shape) * BITS[type] // 8)
    weights = bytearray(RNG.bytes(size) if type != "boolean" else RNG.integers(0, 2, size, np.uint8).tobytes())
    if type in DTYPES and (rest := prod(shape) * BITS[type] % 8):
        weights[-1] &= (1 << rest) - 1
    path = put(folder, ir(const("c", 0, size, type, shape)), bytes(weights))
    array = nnr.load(path)["c"]
    expected = (DTYPES[type], shape) if type in DTYPES else ("uint8", (size,))
    assert (array.dtype.name, array.shape) == expected
    if BITS.get(type, 0) >= 8:
        assert array.tobytes() == weights
    data = through(path, folder / "out.xml", exact=True)
    assert pair(folder / "out.xml") == pair(path)
    assert nnr.decode(data)["c"].dtype == array.dtype


def test_low_bits_come_first(tmp_path: Path) -> None:
    layers = const("i4", 0, 2, "i4", (3,)), const("u4", 2, 2, "u4", (3,)), const("u2", 4, 2, "u2", (5,))
    model = nnr.load(put(tmp_path, ir(*layers), b"\x21\x0f\x21\x0f\x1b\x02"))
    values = {name: model[name].astype(int).tolist() for name in model}
    assert values == {"i4": [1, 2, -1], "u4": [1, 2, 15], "u2": [3, 2, 1, 0, 2]}


def test_items_of_many_parts(tmp_path: Path) -> None:
    weights = RNG.bytes((1 << 20) + 3)
    path = put(tmp_path, ir(const("c", 0, len(weights), "i4", (2 * len(weights),))), weights)
    array = nnr.load(path)["c"].astype(np.int8)
    assert np.array_equal(array[::2] & 15 | (array[1::2] & 15) << 4, np.frombuffer(weights, np.int8))
    openvino.save(nnr.load(path), tmp_path / "out.xml", overwrite=False)
    assert pair(tmp_path / "out.xml") == pair(path)


def test_without_type_or_shape_it_is_bytes(tmp_path: Path) -> None:
    old = '<layer id="1" type="Const" name="c"><data offset="0" size="5"/></layer>'
    printed = const("d", 5, 4).replace('type="Const"', 'type="Constant"')
    model = nnr.load(put(tmp_path, ir(old, printed, version=10), b"abcde" + SCALE[:1].tobytes()))
    assert (model["c"].tobytes(), model["c"].dtype, model["d"].item()) == (b"abcde", np.uint8, 1.5)


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf", b"\n <!-- who -->\n"], ids=["plain", "mark", "comment"])
def test_beginnings(version: int, head: bytes, tmp_path: Path) -> None:
    text = ir(const("w", 0, 8, "f32", (2,)), version=version)
    text = head + (text.partition(b"\n")[2] if head.startswith(b"\n") else text)
    path = put(tmp_path, text, SCALE.tobytes())
    assert nnr.load(path)["w"].tolist() == [1.5, -2.0]
    through(path, tmp_path / "out.xml", exact=True)
    assert pair(tmp_path / "out.xml") == pair(path)


# ------------------------------------------------------------------------------------------------ ranges
def test_what_shares_a_range_is_one_tensor(tmp_path: Path) -> None:
    layers = [
        const("a", 0, 8, "f32", (2,)),
        const("b", 0, 8, "f32", (1, 2)),
        const("zero.i", 8, 4, "i32", ()),
        const("zero.f", 8, 4, "f32", ()),
    ]
    path = put(tmp_path, ir(*layers), SCALE.tobytes() + bytes(4))
    model = nnr.load(path)
    assert {name: (model[name].dtype.name, model[name].shape) for name in model} == {
        "a": ("float32", (2,)),
        "zero.i": ("uint8", (4,)),
    }
    data = through(path, tmp_path / "out.xml")
    assert [name for unit in nnr.inspect(data) for name in unit.names] == ["a", "zero.i"]
    assert pair(tmp_path / "out.xml")[1][8:] == bytes(4)


def test_names(tmp_path: Path) -> None:
    numbers = iter(range(0, 1000, 4))

    def one(name: str) -> str:
        return const(name, next(numbers), 4)

    layers = [
        one("w"),
        one("w"),
        one("w#2"),
        one(""),
        around("if", ("then_body", [one("w"), around("ti", ("body", [one("w")]), type="TensorIterator")])),
        around("if", ("then_body", [one("w")]), ("else_body", [one("w")])),
        one("if/else_body/w"),
        one("&amp;&#228;/\N{GREEK SMALL LETTER ALPHA}"),
    ]
    path = put(tmp_path, ir(*layers), bytes(next(numbers)))
    assert list(nnr.load(path)) == [
        "w",
        "w#2",
        "w#2#2",
        "Const",
        "if/then_body/w",
        "if/then_body/ti/body/w",
        "if/then_body/w#2",
        "if/else_body/w",
        "if/else_body/w#2",
        "&\N{LATIN SMALL LETTER A WITH DIAERESIS}/\N{GREEK SMALL LETTER ALPHA}",
    ]
    through(path, tmp_path / "out.xml", exact=True)
    assert pair(tmp_path / "out.xml") == pair(path)


def test_constants_without_bytes_are_no_tensors(tmp_path: Path) -> None:
    layers = const("e", 0, 0, "i64", (0,)), const("w", 0, 8, "f32", (2,)), const("f", 8, 0, "f32", (2, 0))
    path = put(tmp_path, ir(*layers), SCALE.tobytes())
    assert list(nnr.load(path)) == ["w"]
    through(path, tmp_path / "out.xml", exact=True)
    assert pair(tmp_path / "out.xml") == pair(path)


def test_a_plain_model_has_no_record(tmp_path: Path) -> None:
    layers = const("w", 0, 8, "f32", (2,)), const("n", 64, 16, "i64", (2,))
    path = put(tmp_path, ir(*layers), SCALE.tobytes() + bytes(56) + np.array([3, -4], "<i8").tobytes())
    data = through(path, tmp_path / "out.xml", exact=True)
    assert sum(unit.type == "NNR_TPL" for unit in nnr.inspect(data)) == 1
    assert "UNREC" in next(unit.detail for unit in nnr.inspect(data) if unit.type == "NNR_TPL")
    assert pair(tmp_path / "out.xml") == pair(path)


@pytest.mark.parametrize("size", [12, 4096])
def test_the_size_comes_back(size: int, tmp_path: Path) -> None:
    path = put(tmp_path, ir(const("w", 0, 8, "f32", (2,))), SCALE.tobytes() + bytes(size - 8))
    assert nnr.load(path).metadata == {"openvino:size": str(size)}
    through(path, tmp_path / "out.xml", exact=True)
    assert pair(tmp_path / "out.xml") == pair(path)


def test_bytes_of_no_constant(tmp_path: Path) -> None:
    layers = const("w", 4, 8, "f32", (2,)), const("i", 14, 2, "i4", (3,))
    path = put(tmp_path, ir(*layers), b"abc\0" + SCALE.tobytes() + b"\0x\x21\xf3y\0\0")
    with pytest.warns(
        formats.FormatWarning, match=r"^6 nonzero bytes of m\.bin belong to no constant; they are written as 0"
    ):
        model = nnr.load(path)
    with pytest.raises(FormatError, match=r"m\.xml: 6 nonzero bytes of m\.bin .* no constant and would be lost"):
        formats.load(path, strict=True)
    nnr.decode_file(io.BytesIO(nnr.encode(model, exact=True)), tmp_path / "out.xml")
    assert pair(tmp_path / "out.xml") == (path.read_bytes(), bytes(4) + SCALE.tobytes() + b"\0\0\x21\3\0\0\0")


def test_holes_are_bounded(tmp_path: Path) -> None:
    path = put(tmp_path, ir(const("w", 0, 8, "f32", (2,))), SCALE.tobytes())
    os.truncate(path.with_suffix(".bin"), (64 << 20) + 9)
    with pytest.raises(FormatError, match=r"has 67,108,865 bytes that no constant uses"):
        nnr.load(path)
    far = ir(const("w", 1 << 40, 8, "f32", (2,)))
    model = Model({"w": SCALE}, Topology("", far))
    for bad in (model, Model({"w": SCALE}, Topology("", path.read_bytes()), metadata={"openvino:size": str(1 << 40)})):
        with pytest.raises(FormatError, match="bytes that no constant uses"):
            nnr.save(bad, tmp_path / "out.xml")
    for text in ("", "-1", "1e3", "9" * 19, "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(FormatError, match=r"the metadata has the invalid size"):
            nnr.save(
                Model({"w": SCALE}, Topology("", path.read_bytes()), metadata={"openvino:size": text}),
                tmp_path / "o.xml",
            )
    with pytest.raises(FormatError, match=r"the \.bin has 7 bytes; the constant 'w' ends at 8"):
        nnr.save(
            Model({"w": SCALE}, Topology("", path.read_bytes()), metadata={"openvino:size": "7"}), tmp_path / "o.xml"
        )
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.xml"]


_ITEMS = st.tuples(st.sampled_from([*BITS]), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 70), st.binary())


@settings(max_examples=examples(60))
@given(items=st.lists(_ITEMS, max_size=6), tail=st.integers(0, 9))
def test_any_constants(
    items: list[tuple[str, list[int], int, bytes]], tail: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights, layers = bytearray(), []
    for number, (type, shape, gap, seed) in enumerate(items):
        weights += bytes(gap)
        size = -(-prod(shape) * BITS[type] // 8)
        chosen = np.random.default_rng([*seed]).integers(0, 2 if type == "boolean" else 256, size, np.uint8)
        if type in DTYPES and (rest := prod(shape) * BITS[type] % 8):
            chosen[-1] &= (1 << rest) - 1
        layers.append(const(f"c{number}", len(weights), size, type, shape))
        weights += chosen.tobytes()
    path = put(tmp_path_factory.mktemp("ir"), ir(*layers), bytes(weights) + bytes(tail))
    through(path, path.with_name("out.xml"), exact=True)
    assert pair(path.with_name("out.xml")) == pair(path)


# ------------------------------------------------------------------------------------------------ rejected input
def test_without_its_bin(tmp_path: Path) -> None:
    path = two(tmp_path)
    path.with_suffix(".bin").unlink()
    with pytest.raises(FormatError, match=r"the file of weights 'm\.bin' is missing$"):
        nnr.load(path)
    assert formats.topology_of(path) == Topology("", path.read_bytes())
    os.mkfifo(path.with_suffix(".bin"))
    with pytest.raises(FormatError, match=r"'m\.bin' is not a regular file"):
        nnr.load(path)


def test_a_stream_is_not_enough(tmp_path: Path) -> None:
    text = two(tmp_path).read_bytes()
    with pytest.raises(FormatError, match=r"the stream: an OpenVINO IR has two files; give the path of the \.xml"):
        nnr.load(text)
    assert formats.topology_of(io.BytesIO(text)) == Topology("", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ir(version=9), "OpenVINO IR version 9 is not supported; only 10 and 11 are"),
        (ir(version=12), "version 12 is not supported; only 10 and 11"),
        (ir(const("w", 0, 8, "f32", (2,))).replace(b"</net>", b""), r"line \d+: the XML is damaged: no element found"),
        (ir() + b"<x/>", "the XML is damaged: junk after document element"),
        (ir("&laugh;"), "line 4: the XML is damaged: undefined entity"),
        (ir("<a b='\0'/>"), "the XML is not UTF-8: it has NUL bytes"),
        (ir("<layer type='Const' name='w'/>"), "line 4: the constant 'w' has no data"),
        (
            ir("<layer type='Const' name='w'><data/></layer>"),
            r"'' is not a number of bytes \(the offset of the constant 'w'\)",
        ),
        (ir(const("w", 0, 8, "f32", (2,)).replace("<output>", "<data/><output>")), "the constant 'w' has data twice"),
        (ir(const("w", -1, 8)), "'-1' is not a number of bytes"),
        (ir(const("w", 0, "0x8")), r"'0x8' is not a number of bytes \(the size"),
        (ir(const("w", 0, "9" * 19)), "'9999999999999999999' is not a number"),
        (ir(const("w", 0, 8, "f32", "2,")), "'2,' is not a shape"),
        (ir(const("w", 0, 8, "f32", "-2")), "'-2' is not a shape"),
        (ir(const("w", 0, 8, "f32", "?,2")), "is not a shape"),
        (
            ir(const("w", 0, 8, "f32", (3,))),
            r"the constant 'w' has 8 bytes; f32 of shape \[3\] requires a different size",
        ),
        (ir(const("w", 0, 8, "f32", (0,))), r"has 8 bytes; f32 of shape \[0\]"),
        (ir(const("w", 0, 2, "i4", (5,))), r"has 2 bytes; i4 of shape \[5\]"),
        (ir(const("w", 0, 12, "f32", (3,))), r"the \.bin has 8 bytes; the constant 'w' ends at 12"),
        (ir(const("w", 1 << 59, 8, "f32", (2,))), r"the \.bin has 8 bytes"),
        (ir(const("a", 0, 8, "f32", (2,)), const("b", 4, 4)), "the constants 'a' and 'b' partially overlap at byte 4"),
        (ir(const("a", 0, 8, "f32", (2,)), const("b", 0, 4)), "partially overlap"),
    ],
)
def test_malformed_models(text: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        formats.load(put(tmp_path, text, bytes(8)), format="openvino")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<",
        b"<net",
        b"<net version='11'>",
        b"<network version='11'><layers/></network>",
        b"<net><layers/></net>",
        b"<net version='x'><layers/></net>",
        b"<net version='11'><a/></net>",
        b"net version 11 layers",
        b"\xff\xfe<\0n\0",
    ],
)
def test_texts_that_are_not_irs(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_bytes(text)
    with pytest.raises(FormatError, match="not a model of a supported format"):
        nnr.load(tmp_path / "m.xml")
    assert not openvino.owns(Topology("", text))
    assert formats.wiring(Topology("", text)).shapes == {}


def test_booleans_are_0_or_1(tmp_path: Path) -> None:
    model = nnr.load(put(tmp_path, ir(const("b", 0, 2, "boolean", (2,))), b"\1\2"))
    with pytest.raises(FormatError, match="a boolean is neither 0 nor 1"):
        model["b"]


def test_limits(tmp_path: Path) -> None:
    path = two(tmp_path)
    size = path.stat().st_size
    for limits, name in (
        (Limits(max_topology_bytes=size - 1), "max_topology_bytes"),
        (Limits(max_names=1), "max_names"),
        (Limits(max_name_bytes=3), "max_name_bytes"),
        (Limits(max_dims=1), "max_dims"),
        (Limits(max_tensor_elements=5), "max_tensor_elements"),
        (Limits(max_tensor_bytes=23), "max_tensor_bytes"),
        (Limits(max_total_bytes=39), "max_total_bytes"),
        (Limits(max_archive_bytes=39), "max_archive_bytes"),
    ):
        with pytest.raises(LimitError, match=name):
            formats.load(path, limits=limits)
    fitting = Limits(
        max_topology_bytes=size, max_names=2, max_name_bytes=4, max_dims=2, max_tensor_elements=6, max_total_bytes=40
    )
    assert list(formats.load(path, limits=fitting)) == ["w", "axes"]


@pytest.mark.parametrize("which", ["xml", "bin"])
def test_truncated_anywhere(which: str, tmp_path: Path) -> None:
    path = two(tmp_path)
    whole = path.with_suffix(f".{which}").read_bytes()
    end = whole.rindex(b">") + 1 if which == "xml" else len(whole)
    for length in range(end):
        path.with_suffix(f".{which}").write_bytes(whole[:length])
        with pytest.raises(FormatError):
            formats.load(path, format="openvino")


@pytest.mark.medium
def test_damaged_anywhere(tmp_path: Path) -> None:
    """A damaged XML is restored unchanged, or an error describes the damage."""
    path = two(tmp_path)
    whole, outcomes = path.read_bytes(), set()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(RNG.integers(8))
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = formats.load(path, format="openvino")
                nnr.save(model, tmp_path / "out.xml", overwrite=True)
                outcomes.add("read")
                assert (tmp_path / "out.xml").read_bytes() == damaged
            except NnrError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


# ------------------------------------------------------------------------------------------------ on access
def test_tensors_are_read_on_access(tmp_path: Path) -> None:
    count = 3 << 20
    layers = (const(name, 4 * count * k, 4 * count, "f32", (count,)) for k, name in enumerate("ab"))
    path = put(tmp_path, ir(*layers), b"")
    os.truncate(path.with_suffix(".bin"), 8 * count)
    tracemalloc.start()
    try:
        model = nnr.load(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        assert model["b"].shape == (count,)
        tracemalloc.reset_peak()
        nnr.save(model, tmp_path / "out.xml")
        assert tracemalloc.get_traced_memory()[1] < 4 * count + (4 << 20)
    finally:
        tracemalloc.stop()


def test_what_changes_is_not_read(tmp_path: Path) -> None:
    path = two(tmp_path)
    os.utime(path.with_suffix(".bin"), ns=(0, 0))
    model = nnr.load(path)
    path.with_suffix(".bin").write_bytes(bytes(40))
    with pytest.raises(FormatError, match=r"m\.bin has changed since the model was opened"):
        model["w"]


def test_other_processes_may_read(tmp_path: Path) -> None:
    model = nnr.load(two(tmp_path))
    assert isinstance(model.tensors, Portable)
    pickled = pickle.dumps(model.tensors.only(["axes"]))
    assert len(pickled) < 600 + len(str(tmp_path))
    copy = pickle.loads(pickled)
    assert (list(copy), copy["axes"].tolist()) == (["axes"], [0, 1])


# ------------------------------------------------------------------------------------------------ writing
def test_a_topology_is_needed(tmp_path: Path) -> None:
    for topology in (None, Topology("", b"graph g {"), Topology("", b"<net/>"), Topology("onnx", ir())):
        with pytest.raises(FormatError, match="requires a graph of openvino; this one has"):
            nnr.save(Model({"w": SCALE}, topology), tmp_path / "out.xml")
    assert os.listdir(tmp_path) == []


def test_what_does_not_fit(tmp_path: Path) -> None:
    text = ir(const("w", 0, 8, "f32", (2,)))
    for tensors, message in (
        ({}, "the model has no tensor 'w', which is a constant of the XML"),
        (
            {"w": SCALE.astype(np.float16)},
            r"'w' is float16; the XML says float32 \[2\]; omit --dtype \(dtype",
        ),
        ({"w": SCALE.view(np.int32)}, "'w' is int32; the XML says float32"),
        ({"w": SCALE[:1]}, r"'w' has shape \[1\]; the XML says float32 \[2\]; save it as \.safetensors"),
    ):
        with pytest.raises(FormatError, match=message):
            nnr.save(Model(tensors, Topology("", text)), tmp_path / "out.xml")
    with pytest.raises(FormatError, match=r"has shape \[1, 1\]; the XML says float32 \[2\]; save it"):
        nnr.save(Model({"w": SCALE[None, :1]}, Topology("", text), pruned=["w"]), tmp_path / "out.xml")
    with pytest.raises(FormatError, match=r"omit --dtype"):
        nnr.decode_file(io.BytesIO(nnr.encode(nnr.load(two(tmp_path / "m")))), tmp_path / "o.xml", dtype="float16")
    assert os.listdir(tmp_path) == ["m"]
    with pytest.warns(formats.FormatWarning, match="that are not constants of the XML are left out: 'x'"):
        nnr.save(Model({"x": SCALE, "w": SCALE.astype(">f4")}, Topology("", text)), tmp_path / "out.xml")
    assert pair(tmp_path / "out.xml") == (text, SCALE.tobytes())


def test_losses_are_reported(tmp_path: Path) -> None:
    text = ir(const("w", 0, 8, "f32", (2,)), const("again", 8, 8, "f32", (2,)))
    model = Model({"w": SCALE, "again": SCALE}, Topology("", text), metadata={"openvino:size": "20"})
    nnr.save(model, tmp_path / "out.xml")
    for changed, lost in (
        (replace(model, metadata={"by": "somebody"}), "the metadata"),
        (replace(model, aliases={"again": "w"}), "the ties"),
    ):
        message = f"an OpenVINO IR cannot store {lost}"
        with pytest.warns(formats.FormatWarning, match=message):
            nnr.save(changed, tmp_path / "out.xml", overwrite=True)


def test_two_files_or_none(tmp_path: Path) -> None:
    model = nnr.load(two(tmp_path / "m"))
    (tmp_path / "out.bin").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        nnr.save(model, tmp_path / "out.xml")
    assert (tmp_path / "out.bin").read_bytes() == b"precious"
    assert not (tmp_path / "out.xml").exists()
    nnr.save(model, tmp_path / "out.xml", overwrite=True)
    assert pair(tmp_path / "out.xml") == pair(tmp_path / "m" / "m.xml")
    shutil.copy(tmp_path / "m" / "m.xml", tmp_path / "x.xml")
    with pytest.raises(FileExistsError):
        nnr.save(model, tmp_path / "x.xml")
    assert not (tmp_path / "x.bin").exists()


def test_constants_are_asked_for_in_the_order_of_the_file(tmp_path: Path) -> None:
    asked: list[str] = []

    class Recording(dict[str, np.ndarray]):
        def announce(self, names: list[str]) -> None:
            asked.extend(["announced", *names])

        def described(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
            return SCALE.dtype, SCALE.shape

        def __getitem__(self, name: str) -> np.ndarray:
            asked.append(name)
            return super().__getitem__(name)

    text = ir(const("late", 64, 8, "f32", (2,)), const("soon", 0, 8, "f32", (2,)))
    nnr.save(Model(Recording(late=SCALE, soon=-SCALE), Topology("", text)), tmp_path / "m.xml")
    assert asked == ["announced", "soon", "late", "soon", "late"]
    assert pair(tmp_path / "m.xml")[1] == (-SCALE).tobytes() + bytes(56) + SCALE.tobytes()


def test_the_topology_may_be_kept_apart(tmp_path: Path) -> None:
    path = two(tmp_path)
    data = nnr.encode(path, topology="external", exact=True)
    assert nnr.decode(data).topology is None
    nnr.decode_file(io.BytesIO(data), tmp_path / "out.xml", topology=path)
    assert pair(tmp_path / "out.xml") == pair(path)
    other = put(tmp_path / "other", ir(const("v", 0, 8, "f32", (2,))), SCALE.tobytes())
    with pytest.raises(FormatError, match="the given topology does not match"):
        nnr.decode(data, topology=other)


def test_to_other_formats(tmp_path: Path) -> None:
    path = two(tmp_path)
    with pytest.warns(formats.FormatWarning, match="cannot store the topology"):
        nnr.decode_file(io.BytesIO(nnr.encode(path, exact=True)), tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as arrays:
        assert arrays["w"].tobytes() + arrays["axes"].tobytes() == pair(path)[1]


def test_what_the_xml_says(tmp_path: Path) -> None:
    path = two(tmp_path)
    wiring = openvino.wiring(Topology("", path.read_bytes()))
    assert wiring.shapes == {"w": (2, 3), "axes": (2,)}
    assert wiring.kinds == {"w": "f", "axes": "i"}
    assert not wiring.ignores_case
    assert xml.is_ir(path.read_bytes()[:100])
    data = nnr.encode(path)
    *_, last = nnr.units(data)
    with pytest.raises(nnr.IncompleteError, match="'axes' missing"):
        nnr.decode(data[: last.offset])
