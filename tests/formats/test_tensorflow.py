"""Checkpoints and SavedModels without TensorFlow: its files are read, and malformed files are rejected."""

from __future__ import annotations

import io
import pickle
import random
import shutil
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.protobuf import MessageSource, varint
from nnr_codec.formats.tensorflow import writing
from nnr_codec.formats.tensorflow.bundle import MessageFields, _numbers
from nnr_codec.formats.tensorflow.checksum import crc32c, masked
from nnr_codec.formats.tensorflow.writing import field, field32
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model, Topology, Wiring

from ..shared import examples
from .support import assert_same, tree

pytestmark = pytest.mark.medium

DATA = Path(__file__).resolve().parents[1] / "data" / "keras"
SAVED = DATA / "scaled.savedmodel"
PLAIN = DATA / "plain.index"
W, B = "w/.ATTRIBUTES/VARIABLE_VALUE", "b/.ATTRIBUTES/VARIABLE_VALUE"


# ------------------------------------------------------------------------------------------------ tables by hand
def message(**fields: int | bytes | list[bytes]) -> bytes:
    """Return a message with fields f1, f2 …"""
    data = b""
    for name, values in fields.items():
        data += b"".join(field(int(name[1:]), value) for value in (values if isinstance(values, list) else [values]))
    return data


def shape(*extents: int) -> bytes:
    return message(f2=[message(f1=extent) for extent in extents])


def block(entries: Mapping[bytes, bytes]) -> bytes:
    """Return a block with its trailer, without shared prefixes of keys."""
    data = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in entries.items())
    data += (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\0"
    return data + masked(crc32c(data)).to_bytes(4, "little")


def table(entries: Mapping[bytes, bytes]) -> bytes:
    """Return a table of one block."""
    data = block(entries)
    index = block({b"\xff": varint(0) + varint(len(data) - 5)})
    place = varint(len(data)) + varint(len(index) - 5)
    return data + index + (b"\0\0" + place).ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


HEADER = {b"": message(f1=1)}
ENTRY = message(f1=1, f2=shape(2, 3), f5=24)


def counted(items: bytes) -> bytes:
    """Return the field of a checksum."""
    return field32(6, masked(crc32c(items)))


def checkpoint(folder: Path, entries: Mapping[bytes, bytes], data: bytes = bytes(24), *, header: bool = True) -> Path:
    """Return a checkpoint of one data file."""
    path = folder / "m.index"
    path.write_bytes(table({**(HEADER if header else {}), **entries}))
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return path


def test_a_table_by_hand(tmp_path: Path) -> None:
    items = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = formats.load(checkpoint(tmp_path, {b"w": ENTRY + counted(items.tobytes())}, items.tobytes()))
    assert_same(model.tensors, {"w": items})
    assert (model.format, model.metadata, model.topology, model.aliases) == ("tensorflow", {}, None, {})


def test_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720
    assert crc32c(bytes(32)) == 0x8A9136AA
    data = random.Random(8).randbytes(20_001)
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(data) == state ^ 0xFFFFFFFF
    for size in (0, 1, 4096, 5000, 10_000):
        assert crc32c(data[size:], crc32c(data[:size])) == state ^ 0xFFFFFFFF


def test_damaged_items(tmp_path: Path) -> None:
    model = formats.load(checkpoint(tmp_path, {b"w": ENTRY + counted(bytes(24))}, bytes(23) + b"\1"))
    with pytest.raises(FormatError, match="tensor 'w': the checksum is wrong"):
        model["w"]


MALFORMED: dict[str, tuple[Mapping[bytes, bytes], str]] = {
    "no name": ({b"w": ENTRY, b"": ENTRY}, "header"),
    "not a name": ({b"\xff": ENTRY}, "is not UTF-8"),
    "slices": ({b"w": ENTRY + message(f7=b"")}, "partitioned variables"),
    "unknown type": ({b"w": message(f1=8, f2=shape(3), f5=24)}, "TensorFlow type 8 is not supported"),
    "no type": ({b"w": message(f2=shape(6), f5=24)}, "type 0"),
    "another data file": ({b"w": ENTRY + message(f3=1)}, "outside the data file"),
    "behind the end": ({b"w": ENTRY + message(f4=1)}, "outside the data file"),
    "far behind the end": ({b"w": ENTRY + message(f4=(1 << 64) - 1)}, "outside the data file"),
    "too few items": ({b"w": message(f1=1, f2=shape(2, 2), f5=24)}, r"24 bytes; float32 of shape \(2, 2\) requires 16"),
    "negative extent": ({b"w": message(f1=1, f2=shape((1 << 64) - 1), f5=4)}, "its shape is unknown"),
    "unknown rank": ({b"w": message(f1=1, f2=message(f3=1), f5=4)}, "its shape is unknown"),
    "large and empty": ({b"w": message(f1=1, f2=shape(1 << 62, 4, 0))}, "exceeds the largest possible array"),
    "strings": ({b"s": message(f1=7, f2=shape(2), f5=24)}, r"24 bytes; its strings require 6"),
    "no strings": ({b"s": message(f1=7, f2=shape(30), f5=24)}, "a varint exceeds its message"),
    "no message": ({b"w": b"\x0f\0"}, "unsupported wire type 7"),
    "number as message": ({b"w": message(f1=1, f2=3)}, "field 2 is not a message"),
    "message as number": ({b"w": message(f1=b"")}, "field 1 is not a number"),
    "cut off": ({b"w": b"\x12\x05"}, "5 bytes beyond its message"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_entries(case: str, tmp_path: Path) -> None:
    entries, message_ = MALFORMED[case]
    with pytest.raises(FormatError, match=message_):
        formats.load(checkpoint(tmp_path, entries, header=b"" not in entries))


def test_malformed_tables(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, {b"w": ENTRY})
    good = path.read_bytes()
    with pytest.raises(FormatError, match="has no header"):
        formats.load(checkpoint(tmp_path, {b"w": ENTRY}, header=False))
    path.write_bytes(good)
    (tmp_path / "m.data-00000-of-00001").unlink()
    with pytest.raises(FormatError, match=r"lacks m\.data-00000-of-00001"):
        formats.load(path)
    path = checkpoint(tmp_path, {b"w": ENTRY})
    for at in range(len(good) - 48 - 60):  # in a block
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(FormatError):
            formats.load(path)
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(FormatError):
            formats.load(path, format="tensorflow")
    path.write_bytes(table({b"": message(f1=1, f2=1)}))
    with pytest.raises(FormatError, match="big-endian"):
        formats.load(path)


def test_any_mutation_gives_a_model_or_an_error(tmp_path: Path) -> None:
    entries = {W.encode(): ENTRY, b"s": message(f1=7, f2=shape(2), f5=6)}
    rng = random.Random(8)
    outcomes = set()
    for _ in range(500):
        changed = {}
        for key, value in {**HEADER, **entries}.items():
            data = bytearray(value)
            if rng.random() < 0.5:
                data[rng.randrange(len(data))] = rng.choice([rng.randrange(256), 0, 255, 127])
            changed[key] = bytes(data)
        path = checkpoint(tmp_path, {})
        path.write_bytes(table(changed))
        try:
            assert formats.load(path, limits=Limits.strict()).tensors
            outcomes.add("read")
        except NnrError:
            outcomes.add("refused")
        except AssertionError:
            outcomes.add("empty")
    assert outcomes >= {"read", "refused"}


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_none(data: bytes) -> None:
    for read in (
        lambda: MessageFields(data, "x", Limits()).messages(1),
        lambda: _numbers(MessageSource(data, Limits()), 0, 1, "x"),
    ):
        try:
            read()
        except FormatError as error:
            assert str(error).startswith("x: ")


# ------------------------------------------------------------------------------------------------ files of TensorFlow
def test_a_saved_model(tmp_path: Path) -> None:
    model = formats.load(SAVED)
    assert model.topology == Topology("tensorflow", (SAVED / "saved_model.pb").read_bytes())
    w = (np.arange(12, dtype=np.float32) / 7).reshape(3, 4)
    assert_same(model.tensors, {W: w, B: np.array([1, -2, 3], ml_dtypes.bfloat16)})
    assert model.metadata["tensorflow:text:assets/words.txt"] == "ein\nWört\n"
    assert (
        model.metadata["tensorflow:bytes:fingerprint.pb"].encode("latin-1") == (SAVED / "fingerprint.pb").read_bytes()
    )
    decoded = nnr.decode(nnr.encode(SAVED, nnr.EncoderConfig(exact=True)))
    assert (decoded.topology, decoded.metadata) == (model.topology, model.metadata)
    assert_same(decoded.tensors, model.tensors)
    formats.save(decoded, tmp_path / "m.savedmodel")
    assert tree(tmp_path / "m.savedmodel") == tree(SAVED)  # whatever TensorFlow wrote
    assert formats.topology_of(SAVED) == model.topology
    coded = nnr.encode(model, nnr.EncoderConfig(topology="external"))
    assert nnr.decode(coded, topology=SAVED).topology == model.topology


def test_a_plain_checkpoint(tmp_path: Path) -> None:
    model = formats.load(PLAIN)
    values = {name.partition("/")[0]: array for name, array in model.tensors.items()}
    expected = {"a": np.array(1.5, np.float32), "n": np.arange(6, dtype=np.int16).reshape(2, 3), "z": np.zeros((0, 2))}
    assert_same(values, expected)
    strings = writing.strings_from_metadata(model.metadata)
    assert strings["s/.ATTRIBUTES/VARIABLE_VALUE"] == ((2,), [b"x\xff", b""])
    assert strings["_CHECKPOINTABLE_OBJECT_GRAPH"][0] == ()
    assert writing.strings_as_metadata(strings) == model.metadata
    with pytest.raises(FormatError, match="not a folder with"):
        formats.topology_of(PLAIN)
    formats.save(nnr.decode(nnr.encode(model, exact=True)), tmp_path / "plain.index")
    name = "plain.data-00000-of-00001"
    assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_variables_are_read_on_access(tmp_path: Path) -> None:
    entry = message(f1=1, f2=shape(1 << 20), f5=4 << 20) + counted(bytes(4 << 20))
    path = checkpoint(tmp_path, {b"w": entry}, bytes(4 << 20))
    assert formats.recognise(path)
    tracemalloc.start()
    try:
        model = formats.load(path, format="tensorflow")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    part = model.tensors.only(["w"])  # type: ignore[attr-defined]
    assert len(pickle.dumps(part)) < 1000
    assert not pickle.loads(pickle.dumps(part))["w"].any()
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(FormatError, match="has changed"):
        model["w"]


def test_equal_items_are_tied(tmp_path: Path) -> None:
    """Keras exports each variable twice; equal checksums, which can be forged, are not sufficient."""
    one, other = (np.arange(start, start + 100, dtype=np.float32).tobytes() for start in (0, 1))
    entry = message(f1=1, f2=shape(100), f5=400) + counted(one)
    entries = {name: entry + message(f4=400 * place) for place, name in enumerate((b"a", b"b", b"c"))}
    tied = formats.load(checkpoint(tmp_path, entries, one + one + other))
    assert tied.aliases == {"b": "a"}
    with pytest.raises(FormatError, match="tensor 'c': the checksum is wrong"):
        tied["c"]
    entries[b"c"] += counted(other)
    model = formats.load(checkpoint(tmp_path, entries, one + one + other))
    assert model.aliases == {"b": "a"}
    assert_same(nnr.decode(nnr.encode(model, exact=True)).tensors, model.tensors)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_archive_bytes": 200},
        {"max_names": 3},
        {"max_name_bytes": 10},
        {"max_dims": 1},
        {"max_tensor_elements": 11},
        {"max_tensor_bytes": 47},
        {"max_total_bytes": 50},
        {"max_topology_bytes": 1000},
        {"max_side_info_bytes": 100},
    ],
)
def test_limits(limits: dict[str, int]) -> None:
    with pytest.raises(LimitError, match=next(iter(limits))):
        formats.load(SAVED, limits=Limits(**limits))


def test_data_without_their_table(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(SAVED, folder)
    (folder / "variables/variables.index").unlink()
    with pytest.raises(FormatError, match=r"data of variables, but no variables/variables\.index"):
        formats.load(folder)
    next((folder / "variables").iterdir()).unlink()
    assert not formats.load(folder)


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    shutil.copytree(SAVED, tmp_path / "m")
    (tmp_path / "m" / "assets" / "key").symlink_to("/etc/passwd")
    with pytest.raises(FormatError, match="'key' is neither a regular file nor a folder"):
        formats.load(tmp_path / "m")


def test_content_decides(tmp_path: Path) -> None:
    assert formats.recognise(SAVED) is formats.get("tensorflow")
    assert formats.recognise(PLAIN) is formats.get("tensorflow")
    (tmp_path / "saved_model.pb").write_bytes(b"{}")
    with pytest.raises(FormatError, match="does not begin like a SavedModel"):
        formats.load(tmp_path)
    with pytest.raises(FormatError, match="has several files"):
        formats.load(io.BytesIO(b""), format="tensorflow")
    for name in ("tensorflow", "keras"):
        topology = formats.load(SAVED if name == "tensorflow" else DATA / "tiny.keras").topology
        assert topology is not None
        owner = formats.of_topology(topology)
        assert owner and name == owner.NAME
        assert formats.wiring(topology) == Wiring()


# ------------------------------------------------------------------------------------------------ writing
def test_what_cannot_be_written(tmp_path: Path) -> None:
    model = formats.load(SAVED)
    refused: list[tuple[Model, str, str]] = [
        (Model({"w": np.ones(2)}), "m.savedmodel", r"requires a saved_model\.pb"),
        (formats.load(DATA / "tiny.keras"), "m.savedmodel", r"requires a saved_model\.pb"),
        (Model({"w": np.ones(2, "c8")}), "m.index", "tensorflow does not support dtype complex64"),
        (Model({"": np.ones(2)}), "m.index", "a checkpoint does not permit this name"),
        (Model({"a\0": np.ones(2)}), "m.index", "a checkpoint does not permit this name"),
        (Model({"s": np.ones(2)}, metadata={"tensorflow:string:s": ""}), "m.index", "occurs twice"),
    ]
    for bad, name, message_ in refused:
        with pytest.raises(FormatError, match=message_):
            formats.save(bad, tmp_path / name)
    for name in ("../x", "/x", "a/../../x", "C:x", "variables/../x", ""):
        bad = Model(model.tensors, model.topology, metadata={f"tensorflow:text:{name}": ""})
        with pytest.raises(FormatError, match="is not a valid name of a model file"):
            formats.save(bad, tmp_path / "m.savedmodel")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "metadata",
    [
        {"tensorflow:strings": "["},
        {"tensorflow:strings": "[" * 100_000},
        {"tensorflow:strings": "[]"},
        {"tensorflow:strings": '{"s": 5}'},
        {"tensorflow:strings": '{"s": [[1], []]}'},
        {"tensorflow:strings": '{"s": [[-1], ["a"]]}'},
        {"tensorflow:strings": '{"s": [[true], ["a"]]}'},
        {"tensorflow:strings": '{"s": [5, ["a"]]}'},
        {"tensorflow:strings": '{"s": [[1], [1]]}'},
        {"tensorflow:strings": '{"s": [[1], ["\u0100"]]}'},
        {"tensorflow:strings": '{"": [[], ["a"]]}'},
        {"tensorflow:strings": '{"s": [[], ["a"]]}', "tensorflow:string:s": "a"},
        {"tensorflow:string:s": "\u0100"},
        {"tensorflow:string:": "a"},
    ],
)
def test_malformed_strings(metadata: dict[str, str]) -> None:
    with pytest.raises(FormatError):
        writing.strings_from_metadata(metadata)


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.dictionaries(_NAMES, hnp.arrays(st.sampled_from(["?", "i1", "<i4", ">f4", "f8"]), hnp.array_shapes(min_side=0)))
)
def test_any_tensors(found: dict[str, Array]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        formats.save(Model(found), Path(folder) / "m.index")
        model = formats.load(Path(folder) / "m.index")
        native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in found.items()}
        assert_same({name: model[name] for name in found}, native)
        assert len(model) == len(found)


def test_many_tensors(tmp_path: Path) -> None:
    """The table has more than one block, with names that have long common prefixes."""
    found: dict[str, Array] = {f"layers/{number}/ü": np.array(number, np.int32) for number in range(15_000)}
    formats.save(Model(found), tmp_path / "m.index")
    assert (tmp_path / "m.index").stat().st_size > 270_000
    assert_same(formats.load(tmp_path / "m.index").tensors, found)


def test_existing_outputs(tmp_path: Path) -> None:
    model, target = formats.load(SAVED), tmp_path / "m.savedmodel"
    formats.save(model, target)
    with pytest.raises(FileExistsError):
        formats.save(model, target)
    formats.save(model, target, overwrite=True)
    assert tree(target) == tree(SAVED)
    (tmp_path / "other.savedmodel").mkdir()
    (tmp_path / "other.savedmodel" / "mine").write_bytes(b"")
    with pytest.raises(FileExistsError, match=r"without saved_model\.pb"):
        formats.save(model, tmp_path / "other.savedmodel", overwrite=True)
    with pytest.warns(formats.FormatWarning, match="left out: the topology, files beside the variables"):
        formats.save(model, tmp_path / "m.index")
    with pytest.warns(formats.FormatWarning, match="left out: metadata"), pytest.raises(FileExistsError):
        formats.save(Model({"w": np.ones(2)}, metadata={"by": "me"}), tmp_path / "m.index")
