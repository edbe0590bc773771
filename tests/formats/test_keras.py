"""Files of Keras and HDF5: h5py and the reader and writer agree, and malformed files are rejected."""

from __future__ import annotations

import io
import json
import math
import pickle
import random
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
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
from nnr_codec.errors import FormatError, LimitError, MissingDependencyError, NnrError
from nnr_codec.formats.keras import hdf5
from nnr_codec.limits import Budget, Limits
from nnr_codec.model import Array, Model, Topology

from ..cli.support import process
from ..shared import examples
from .support import Pipe, assert_same, nnef_model

h5py = pytest.importorskip("h5py", reason="the package h5py (extra 'keras') is not installed")

pytestmark = [pytest.mark.medium, pytest.mark.clients]

DATA = Path(__file__).resolve().parents[1] / "data" / "keras"
FILES = ["tiny.keras", "tiny.h5", "tiny.weights.h5", "text.keras"]

#: Changes the object header of a file written by h5py.
Build = Callable[[Any], object]


def h5(build: Build, **options: Any) -> bytes:
    """Return a file written by h5py."""
    file = io.BytesIO()
    with h5py.File(file, "w", **options) as target:
        build(target)
    return file.getvalue()


def written(model: Model) -> bytes:
    """Return the file of a model, written to a stream."""
    file = io.BytesIO()
    formats.save(model, file, format="keras")
    return file.getvalue()


def datasets(file: Any) -> dict[str, Array]:
    """Return all datasets as read by h5py."""
    found: dict[str, Array] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            array = np.asarray(item[()])
            opaque = array.dtype.kind == "V"
            found[name] = array.view(ml_dtypes.bfloat16) if opaque else array.astype(array.dtype.newbyteorder("="))

    file.visititems_links(lambda name, _: visit(name, file[name]))
    return found


def everything(file: Any) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return all paths, and the attributes with their types, of a file opened by h5py."""
    paths: list[str] = [""]
    file.visititems(lambda name, _: paths.append(name))
    attributes: dict[str, dict[str, Any]] = {}
    for path in paths:
        item = file[path or "/"]
        for name in item.attrs:
            own = item.attrs.get_id(name)
            value = item.attrs[name]
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            attributes.setdefault(path, {})[name] = own.shape, own.get_type().encode(), plain
    return sorted(paths), attributes


# ------------------------------------------------------------------------------------------------ files of Keras
@pytest.mark.parametrize("name", FILES)
def test_what_keras_wrote(name: str) -> None:
    data = (DATA / name).read_bytes()
    model = formats.load(DATA / name)
    assert model.format == "keras"
    if name.endswith(".keras"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert model.topology == Topology("tensorflow", archive.read("config.json"))
            assert model.metadata["keras:text:metadata.json"] == archive.read("metadata.json").decode()
            data = archive.read("model.weights.h5")
    with h5py.File(io.BytesIO(data)) as file:
        assert_same(model.tensors, datasets(file))
        text = file.attrs.get("model_config")
        assert (model.topology.data if model.topology else None) == (text.encode() if text else None) or not text
    assert_same(formats.load((DATA / name).read_bytes()).tensors, model.tensors)


@pytest.mark.parametrize("name", FILES)
def test_what_comes_back(name: str, tmp_path: Path) -> None:
    """Hierarchy, attributes and members are the same, and so are the bytes of repeated writes."""
    encoded = nnr.encode(formats.load(DATA / name), exact=True)
    model = nnr.decode(encoded)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        nnr.decode_file(encoded, tmp_path / folder / name)
    one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
    assert one == two
    if name.endswith(".keras"):
        with zipfile.ZipFile(DATA / name) as before, zipfile.ZipFile(io.BytesIO(one)) as after:
            assert before.namelist() == after.namelist()
            for member in before.namelist():
                if member != "model.weights.h5":
                    assert before.read(member) == after.read(member)
            before_data, one = before.read("model.weights.h5"), after.read("model.weights.h5")
    else:
        before_data = (DATA / name).read_bytes()
    with h5py.File(io.BytesIO(before_data)) as source, h5py.File(io.BytesIO(one)) as target:
        assert everything(source) == everything(target)
        assert_same(datasets(source), datasets(target))
        assert not any(target[tensor].chunks for tensor in datasets(target))
    again = formats.load(tmp_path / "one" / name)
    assert (again.topology, again.metadata) == (model.topology, model.metadata)


def test_the_text_of_a_vocabulary_is_carried() -> None:
    model = nnr.decode(nnr.encode(DATA / "text.keras"))
    assert model.metadata["keras:text:assets/layers/string_lookup/vocabulary.txt"].endswith("fünf")
    assert model.tensors["layers/embedding/vars/0"].dtype == ml_dtypes.bfloat16


def test_a_folder_without_an_archive(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(DATA / "text.keras") as archive:
        archive.extractall(folder)
    model, expected = formats.load(folder), formats.load(DATA / "text.keras")
    assert (model.topology, model.metadata) == (expected.topology, expected.metadata)
    assert_same(model.tensors, expected.tensors)
    (folder / "README.md").write_text("x", encoding="utf-8")
    with pytest.warns(formats.FormatWarning, match=r"left out: files that do not belong to the model: README\.md"):
        formats.load(folder)
    with pytest.raises(FormatError, match=r"README\.md"):
        formats.load(folder, strict=True)
    (folder / "assets" / "secret").symlink_to(tmp_path / "x")
    (tmp_path / "x").write_text("x", encoding="utf-8")
    with pytest.raises(FormatError, match="'secret' is neither a regular file nor a folder"):
        formats.load(folder)


def test_archives_that_others_packed(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(DATA / "tiny.keras") as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in ("model.weights.h5", "config.json", "metadata.json"):
            target.writestr(name, source.read(name))
        target.writestr("assets/binary", b"\xff\0\x80")
    model, expected = formats.load(path), formats.load(DATA / "tiny.keras")
    assert_same(model.tensors, expected.tensors)
    assert model.metadata["keras:bytes:assets/binary"] == "\xff\0\x80"
    with zipfile.ZipFile(io.BytesIO(written(model))) as archive:
        assert archive.namelist() == ["model.weights.h5", "config.json", "metadata.json", "assets/binary"]
        assert archive.read("assets/binary") == b"\xff\0\x80"
        assert archive.testzip() is None


def run(*arguments: object) -> None:
    """Run the command, and check that it succeeds."""
    done = process(*arguments)
    assert done.returncode == 0, done.stderr


def test_the_command_line(tmp_path: Path) -> None:
    for name in ("tiny.keras", "tiny.h5"):
        coded, out = tmp_path / f"{name}.nnr", tmp_path / name
        run("encode", DATA / name, "-o", coded, "--lossless")
        run("decode", coded, "-o", out)
        assert_same(formats.load(out).tensors, formats.load(DATA / name).tensors)
    run("encode", DATA / "tiny.keras", "-o", tmp_path / "w.nnr", "--topology", "external")
    run("decode", tmp_path / "w.nnr", "-o", tmp_path / "w.keras", "--topology", DATA / "tiny.keras")
    assert formats.load(tmp_path / "w.keras").topology == formats.load(DATA / "tiny.keras").topology


# ------------------------------------------------------------------------------------------------ HDF5
def various(file: Any) -> None:
    """Write a file with all supported features of HDF5."""
    rng = np.random.default_rng(0)
    file.create_dataset("a/chunks", data=rng.normal(size=(7, 9)).astype("f4"), chunks=(3, 4))
    file.create_dataset("a/gzip", data=rng.normal(size=(17, 9, 5)), chunks=(4, 4, 5), compression="gzip")
    shuffled = rng.integers(0, 1000, 100)
    file.create_dataset("a/both", data=shuffled.astype(">i2"), chunks=(16,), compression="gzip", shuffle=True)
    file.create_dataset("a/shuffled", data=shuffled.astype(">u8"), chunks=(16,), shuffle=True)
    file.create_dataset("a/one chunk per item", data=np.arange(300), chunks=(1,))
    for dtype in ("?", "i1", "u1", "<i2", ">u2", "<i4", ">i4", "<u4", "<i8", ">u8", "<f2", ">f2", "<f4", ">f8"):
        file[f"types/{dtype}"] = np.array([[0, 1, 100]]).astype(dtype)
    for number in range(1000):
        file[f"many/{number}"] = np.int8(number % 100)
    file["scalar"] = np.float16(3)
    file["empty"] = np.zeros((0, 4))
    file["compact"] = 0
    file["tied"] = file["types/>f8"]
    del file["compact"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((4,))
    compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32BE, space, plist)
    compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(4, dtype=">i4"))


def attributed(file: Any) -> None:
    """Write attributes of every supported kind to a file, a group and a dataset."""
    file.create_group("empty/below")
    file["with/dataset"] = np.ones(2)
    for item in (file, file["with"], file["with/dataset"], file["empty/below"]):
        item.attrs["long"] = "ä" * 70_000
        item.attrs["list"] = ["a", "", "ü"]
        item.attrs["grid"] = np.array([[b"ab", b"c"], [b"", b"d"]])
        item.attrs["bytes"] = b"ascii"
        item.attrs["none"] = h5py.Empty("f4")
        item.attrs["no names"] = np.zeros(0)
        item.attrs["ünï"] = np.float32(1.5)
        item.attrs["flag"] = True
        item.attrs["big"] = np.arange(3, dtype=">i4")
        item.attrs["fixed"] = np.array("é".encode(), h5py.string_dtype("utf-8", 8))
        for number in range(30):
            item.attrs[f"number {number}"] = number


def test_what_h5py_writes_is_read(tmp_path: Path) -> None:
    data = h5(various)
    path = tmp_path / "m.h5"
    path.write_bytes(data)
    with h5py.File(io.BytesIO(data)) as file:
        expected = datasets(file) | {"tied": np.array([[0.0, 1.0, 100.0]])}
    for source in (path, data):
        model = formats.load(source)
        assert_same(model.tensors, {name: expected[name] for name in model})
        assert model.tensors.keys() == expected.keys()
        assert model.aliases == {"types/>f8": "tied"}
    with h5py.File(io.BytesIO(written(model))) as file:
        assert file["tied"] == file["types/>f8"]
    again = formats.load(written(nnr.decode(nnr.encode(model, exact=True))))
    assert_same(again.tensors, model.tensors)
    assert again.aliases == model.aliases


def test_attributes_come_back() -> None:
    data = h5(attributed)
    model = formats.load(data)
    model = nnr.decode(nnr.encode(model))
    with h5py.File(io.BytesIO(data)) as before, h5py.File(io.BytesIO(written(model))) as after:
        assert everything(before) == everything(after)


def test_attributes_of_other_types_are_reported() -> None:
    def build(file: Any) -> None:
        file["w"] = np.ones(3, np.float32)
        file.attrs["reference"] = file["w"].ref
        file["w"].attrs["pair"] = np.zeros(1, [("a", "i4"), ("b", "f4")])
        file["w"].attrs["complex"] = 1j

    with pytest.warns(formats.FormatWarning, match="left out: attributes.*'reference' of the root.*'pair' of 'w'"):
        model = formats.load(h5(build))
    assert list(model) == ["w"]
    with pytest.raises(FormatError, match="attributes of unsupported types"):
        formats.load(h5(build), strict=True)


def external(file: Any) -> None:
    file.create_dataset("w", (4,), "f4", external=[("/etc/passwd", 0, 16)])


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file.create_virtual_dataset("w", layout)


def linked(name: str, link: Any) -> Build:
    def build(file: Any) -> None:
        file["a/b"] = np.ones(2)
        file[name] = link

    return build


def looping(file: Any) -> None:
    file["a/b"] = np.ones(2)
    file["a/c"] = file["a"]


def stored(array: Any, **options: Any) -> Build:
    return lambda file: file.create_dataset("w", data=array, **options)


REFUSED: dict[str, tuple[Build, str]] = {
    "soft link": (linked("s", h5py.SoftLink("/a/b")), "'s' is a soft link"),
    "broken soft link": (linked("s", h5py.SoftLink("/x")), "'s' is a soft link"),
    "external link": (
        linked("s", h5py.ExternalLink("/etc/passwd", "/a")),
        "external links and structures of HDF5 1.8 or later",
    ),
    "loop": (looping, "'a/c' is a second name of group 'a'; only datasets may have two"),
    "external items": (external, "its items are in external files"),
    "virtual": (virtual, "layout version 4, used for example by virtual datasets, is not supported"),
    "texts": (stored(["a", "b"]), "only numbers and booleans"),
    "fixed texts": (stored(np.array([b"ab"])), "only numbers and booleans"),
    "lists": (lambda f: f.create_dataset("w", (2,), h5py.vlen_dtype("f4")), "only numbers and booleans"),
    "references": (lambda f: f.create_dataset("w", (1,), h5py.ref_dtype), "only numbers and booleans"),
    "pairs": (stored(np.zeros(2, [("a", "i4"), ("b", "f4")])), "only numbers and booleans"),
    "complex": (stored(np.zeros(2, "c8")), "only numbers and booleans"),
    "enumeration": (
        lambda f: f.create_dataset("w", (2,), h5py.enum_dtype({"A": 0, "B": 2})),
        "only numbers and booleans",
    ),
    "opaque": (stored(np.zeros(2, "V2")), "only numbers and booleans"),
    "nothing": (lambda f: f.create_dataset("w", data=h5py.Empty("f4")), "only numbers and booleans"),
    "checksums": (
        stored(np.zeros(64), chunks=(8,), fletcher32=True),
        "filter 3 is not supported; only gzip and shuffle are",
    ),
    "other compression": (stored(np.zeros(64), chunks=(8,), compression="lzf"), "filter 32000"),
    "never written": (lambda f: f.create_dataset("w", (1 << 20, 1 << 8), "f4"), "the dataset has no items"),
    "chunks never written": (lambda f: f.create_dataset("w", (64,), "f4", chunks=(8,)), "0 of 8 chunks"),
    "committed type": (lambda f: f.__setitem__("t", np.dtype("f4")), "neither a group nor a dataset"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_content(case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(FormatError, match=message):
        formats.load(h5(build))


@pytest.mark.parametrize("options", [{"libver": "latest"}, {"track_order": True}, {"userblock_size": 512}])
def test_other_structures_are_not_read(options: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"HDF5 1\.8|not a model"):
        formats.load(h5(stored(np.ones(3)), **options))


def test_a_path_is_read_on_access(tmp_path: Path) -> None:
    path, w = tmp_path / "m.h5", np.ones((300, 1000))
    formats.save(Model({"a/w": w, "v": w}), path)
    assert formats.recognise(path)
    tracemalloc.start()
    try:
        model = formats.load(path, format="keras")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        assert np.array_equal(model["a/w"], w)
    finally:
        tracemalloc.stop()
    part = model.tensors.only(["v"])  # type: ignore[attr-defined]
    assert len(pickle.dumps(part)) < 1000
    assert np.array_equal(pickle.loads(pickle.dumps(part))["v"], w)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(FormatError, match="has changed since the model was opened"):
        model["v"]


# ------------------------------------------------------------------------------------------------ any tensors
_DTYPES = st.sampled_from(["?", "i1", "<i2", ">i4", "i8", "u1", "u2", ">u4", "u8", "f2", ">f4", "f8", "bfloat16"])
_NAMES = st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), min_size=1)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Array]:
    """Return tensors whose names are paths."""
    found: dict[str, Array] = {}
    for parts in draw(st.lists(_NAMES, max_size=5)):
        path = [part for part in parts if part != "."] or ["x"]
        name = "/".join(path)
        taken = any(
            other == name or f"{other}/".startswith(f"{name}/") or f"{name}/".startswith(f"{other}/") for other in found
        )
        if not taken:
            shape = draw(hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4))
            dtype = draw(_DTYPES)
            bits = draw(hnp.arrays(f"u{2 if dtype == 'bfloat16' else np.dtype(dtype).itemsize}", shape))
            bits = bits % 2 if dtype == "?" else bits
            kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
            found[name] = bits.astype(bits.dtype.newbyteorder(kind.byteorder)).view(kind)
    return found


@settings(max_examples=examples(60), deadline=None)
@given(tensors())
def test_any_tensors(found: dict[str, Array]) -> None:
    data = written(Model(found))
    assert data == written(Model(found))
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in found.items()}
    model = formats.load(data)
    assert_same({name: model[name] for name in found}, native)
    assert len(model) == len(found)
    with h5py.File(io.BytesIO(data)) as file:
        assert_same({name: datasets(file)[name] for name in found}, native)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_any_dataset_of_h5pys(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=9))
    array = data.draw(hnp.arrays(data.draw(st.sampled_from(["<i2", ">f4", "u1", "f8"])), shape))
    chunks = tuple(data.draw(st.integers(1, extent)) for extent in shape)
    options = {"compression": data.draw(st.sampled_from([None, "gzip"])), "shuffle": data.draw(st.booleans())}
    model = formats.load(h5(stored(array, chunks=chunks, **options)))
    assert_same(model.tensors, {"w": array.astype(array.dtype.newbyteorder("="))})


_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)


@st.composite
def attribute_values(draw: st.DrawFn) -> Any:
    """Return an attribute as it appears in metadata."""
    if draw(st.booleans()):
        return draw(_TEXTS)
    shape: list[int] | None = draw(st.none() | st.lists(st.integers(0, 3), max_size=3))
    count = 0 if shape is None else math.prod(shape)
    kind = draw(
        st.sampled_from(["ascii", "utf8:24", "ascii:30", "<f8", "|b1", ">i4", "<u2", "<f2", "|i1", "|u1", ">f4"])
    )
    if kind[0] in "ua":
        return [kind, shape, draw(st.lists(_TEXTS, min_size=count, max_size=count))]
    items = draw(st.lists(st.integers(0, 1 if kind == "|b1" else 255), min_size=count * int(kind[2:])))
    return [kind, shape, bytes(items[: count * int(kind[2:])]).hex()]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["", "a", "a/b", "w", "x/y", "..", "é", "é/ü"]),
        st.dictionaries(_TEXTS.filter(bool), attribute_values(), min_size=1, max_size=3),
    )
)
def test_any_attributes(found: dict[str, dict[str, Any]]) -> None:
    model = Model({"w": np.ones(2), "a/c": np.array(1)}, metadata={"keras:hdf5": json.dumps(found)}, format="keras")
    again = formats.load(written(model))
    kept = json.loads(again.metadata.get("keras:hdf5", "{}"))
    assert {path: kept.get(path) for path in found} == found
    assert_same(again.tensors, {"a/c": np.array(1), "w": np.ones(2)})


# ------------------------------------------------------------------------------------------------ hostile files
def small(file: Any) -> None:
    file.create_dataset("a/w", data=np.arange(6.0), chunks=(2,), compression="gzip")
    file["b"] = np.float32(2)
    file.attrs["x"] = ["text", "more"]


def test_every_truncation_is_refused() -> None:
    data = h5(small)
    for size in range(0, len(data), 7):
        try:
            model = formats.load(data[:size], format="keras")
            assert size > 2000  # data after the last used item is not required
            assert_same(model.tensors, formats.load(data).tensors)
        except FormatError:
            pass


@pytest.mark.parametrize("name", ["small", "tiny.h5", "tiny.keras"])
def test_any_mutation_gives_a_model_or_an_error(name: str) -> None:
    """The HDF5 library crashes on one in 3,000 of these, and hangs on one in a thousand."""
    source, rng = (h5(small) if name == "small" else (DATA / name).read_bytes()), random.Random(8)
    outcomes = set()
    for _ in range(400):
        data = bytearray(source)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(data))
            value = rng.choice([rng.randrange(256), 0, 255, 127, 1])
            data[at : at + 1] = bytes([value])
            if rng.random() < 0.2:
                data[at : at + 8] = rng.choice(
                    [b"\xff" * 8, bytes(8), rng.randrange(len(source)).to_bytes(8, "little")]
                )
        try:
            formats.load(bytes(data), format="keras", limits=Limits.strict(), strict=True)
            outcomes.add("read")
        except NnrError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    "limits",
    [
        {"max_archive_bytes": 1000},
        {"max_names": 20},
        {"max_name_bytes": 10},
        {"max_dims": 1},
        {"max_tensor_elements": 17},
        {"max_tensor_bytes": 71},
        {"max_total_bytes": 500},
        {"max_topology_bytes": 1000},
        {"max_side_info_bytes": 100},
    ],
)
@pytest.mark.parametrize("name", ["tiny.h5", "tiny.keras"])
def test_limits(limits: dict[str, int], name: str) -> None:
    with pytest.raises(LimitError, match=next(iter(limits))):
        formats.load(DATA / name, limits=Limits(**limits))


# ------------------------------------------------------------------------------------------------ writing
def test_what_a_file_cannot_hold(tmp_path: Path) -> None:
    whole, old, weights = (formats.load(DATA / name) for name in ("tiny.keras", "tiny.h5", "tiny.weights.h5"))
    plain = Model({"w": np.ones(2)}, metadata={"by": "me"})
    refused: list[tuple[Model, str, str]] = [
        (whole, "m.h5", r"write it as \.keras, or the weights alone as \.weights\.h5"),
        (old, "m.keras", r"write it as \.h5"),
        (old, "m.weights.h5", r"write it as \.h5"),
        (weights, "m.keras", r"requires the config\.json"),
        (plain, "m.keras", r"requires the config\.json"),
        (Model({"a/w": np.ones(2), "a": np.ones(2)}), "m.h5", "'a' is both a tensor and a group"),
        (Model({"a//w": np.ones(2)}), "m.h5", "is not a valid path in an HDF5 file"),
        (Model({"a/./w": np.ones(2)}), "m.h5", "is not a valid path in an HDF5 file"),
        (Model({"": np.ones(2)}), "m.h5", "is not a valid path in an HDF5 file"),
        (Model({"a\0": np.ones(2)}), "m.h5", "is not a valid path in an HDF5 file"),
        (Model({"w": np.ones(2, ml_dtypes.int4)}), "m.h5", "keras does not support dtype int4"),
        (Model({"w": np.ones(2, "c8")}), "m.h5", "keras does not support dtype complex64"),
    ]
    for model, name, message in refused:
        with pytest.raises(FormatError, match=message):
            formats.save(model, tmp_path / name)
    assert not list(tmp_path.iterdir())
    with pytest.warns(formats.FormatWarning, match="left out: the topology, files beside the weights"):
        formats.save(whole, tmp_path / "m.weights.h5")
    assert_same(formats.load(tmp_path / "m.weights.h5").tensors, whole.tensors)
    with pytest.warns(formats.FormatWarning, match="left out: metadata"):
        formats.save(plain, tmp_path / "m.hdf5")
    with pytest.warns(formats.FormatWarning, match="left out: the topology"):
        formats.save(nnef_model({"w": np.ones((1, 2), np.float32)}), tmp_path / "n.h5")
    with pytest.raises(FileExistsError):
        formats.save(weights, tmp_path / "n.h5")


def model_with(**metadata: Any) -> Model:
    """Return a model of Keras with other metadata."""
    model = formats.load(DATA / "tiny.keras")
    texts = {
        key.replace("_", ":", 1): value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
    }
    return Model({"w": np.ones(2)}, model.topology, metadata=texts, format="keras")


ATTRIBUTES: list[Any] = [
    "[",
    [],
    {"a": 1},
    {"a": {"": "x"}},
    {"a": {"x\0": "x"}},
    {"a": {"x": 5}},
    {"a": {"x": ["utf8", [], None]}},
    {"a": {"x": ["utf8", [2], ["a"]]}},
    {"a": {"x": ["utf8", [-1], []]}},
    {"a": {"x": ["utf8", [1] * 33, ["a"]]}},
    {"a": {"x": ["utf8:2", [], ["abc"]]}},
    {"a": {"x": ["utf8", [1 << 60], []]}},
    {"a": {"x": ["ascii", [1], [7]]}},
    {"a": {"x": ["<f8", [1], "00"]}},
    {"a": {"x": ["<f8", [1], "zz" * 8]}},
    {"a": {"x": ["<c8", [1], "00" * 8]}},
    {"a": {"x": ["O", [1], "00" * 8]}},
    {"a": {"x": ["<f8", [9000], "00" * 72000]}},
    {"a": {str(number): "" for number in range(1001)}},
    {"a": {"x": [5, [], []]}},
    {"w": {"x": "on a dataset is well, but not below"}, "w/b": {}},
    {"/a": {}},
    {"a/": {}},
]


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=range(len(ATTRIBUTES)))
def test_malformed_attributes(attributes: Any) -> None:
    with pytest.raises(FormatError):
        written(model_with(keras_hdf5=attributes))


@pytest.mark.parametrize(
    "metadata",
    [
        {"keras:order": "["},
        {"keras:order": "[1]"},
        {"keras:order": '["config.json"]'},
        {"keras:text:config.json": ""},
        {"keras:bytes:model.weights.h5": ""},
        {"keras:text:a": "", "keras:bytes:a": ""},
        {"keras:bytes:a": "\u0100"},
        *(
            {f"keras:text:{name}": ""}
            for name in ("", "/etc/x", "../x", "a/../../x", "a\\x", "C:x", "a//b", "con", "a.")
        ),
    ],
)
def test_malformed_members(metadata: dict[str, str]) -> None:
    model = model_with()
    model.metadata |= metadata
    with pytest.raises(FormatError):
        written(model)


def test_streams() -> None:
    for name in FILES:
        model = formats.load(Pipe((DATA / name).read_bytes()))  # type: ignore[arg-type]
        assert_same(model.tensors, formats.load(DATA / name).tensors)

        class Sink(io.RawIOBase):
            data = b""

            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                self.data += bytes(data)
                return len(bytes(data))

        sink = Sink()
        formats.save(model, sink)  # type: ignore[arg-type]
        assert formats.load(sink.data).metadata == model.metadata


def test_a_configuration_that_was_kept_apart(tmp_path: Path) -> None:
    data = nnr.encode(DATA / "tiny.h5", nnr.EncoderConfig(topology="external"))
    with pytest.raises(FormatError, match="requires the configuration of the model; give it"):
        formats.save(nnr.decode(data), tmp_path / "m.h5")
    formats.save(nnr.decode(data, topology=DATA / "tiny.h5"), tmp_path / "m.h5")
    assert formats.load(tmp_path / "m.h5").topology == formats.load(DATA / "tiny.h5").topology


def test_topologies_alone() -> None:
    for name in ("tiny.keras", "tiny.h5"):
        assert formats.topology_of(DATA / name) == formats.load(DATA / name).topology
    with pytest.raises(FormatError, match="no model configuration"):
        formats.topology_of(DATA / "tiny.weights.h5")


def test_without_h5py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = formats.load(DATA / "tiny.h5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    assert_same(formats.load(DATA / "tiny.h5").tensors, model.tensors)
    with pytest.raises(MissingDependencyError, match=r"h5py; run pip install 'nnr_codec\[keras\]'"):
        formats.save(model, tmp_path / "m.h5")


def test_archives_that_are_none() -> None:
    def archive(members: Mapping[str, bytes]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as target:
            for name, data in members.items():
                target.writestr(name, data)
        return file.getvalue()

    weights = (DATA / "tiny.weights.h5").read_bytes()
    good = {"config.json": b"{}", "model.weights.h5": weights}
    assert len(formats.load(archive(good))) == 24
    with pytest.raises(FormatError, match="other formats of weights are not supported"):
        formats.load(archive({"config.json": b"{}", "model.weights.npz": b""}))
    with pytest.raises(FormatError, match="is not JSON"):
        formats.load(archive(good | {"config.json": b"\x80\x04pickle"}))
    with pytest.raises(FormatError, match="is not a valid name"):
        formats.load(archive(good | {"../../x": b""}))
    with pytest.raises(FormatError, match="differ only in case"):
        formats.load(archive(good | {"Config.json": b""}))
    data = bytearray(archive(good))
    data[data.find(b"PK\1\2") + 42] ^= 1  # the directory determines the position of the first member
    with pytest.raises(FormatError, match="damaged"):
        formats.load(bytes(data))


def test_the_structures_are_read_once() -> None:
    """A valid file is larger than the structures that are read."""
    data = h5(various)
    with pytest.raises(FormatError, match="outside"):
        hdf5.read(io.BytesIO(data), 0, len(data) // 2, Limits(), Budget(Limits()))
