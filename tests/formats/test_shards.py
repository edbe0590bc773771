"""Models in several safetensors files with an index."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats.safetensors import LazyTensors, mapped, shards
from nnr_codec.limits import Limits
from nnr_codec.model import Array, Model

from ..cli.support import call
from ..shared import examples
from .support import assert_same

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

PARTS: dict[str, dict[str, Array]] = {
    ONE: {
        "layers.0.weight": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30),
        "layers.1.weight": np.linspace(-2, 1, 600, dtype=np.float32).reshape(20, 30).astype(ml_dtypes.bfloat16),
        "embed": np.arange(12, dtype=np.int64).reshape(3, 4),
        "none": np.zeros((0, 4), np.float32),
    },
    TWO: {
        "layers.10.weight": np.linspace(-1, 3, 600, dtype=np.float32).reshape(20, 30),
        "layers.2.weight": np.array([True, False]),
        "norm": np.ones(7, np.float16),
    },
}
TENSORS = {name: array for part in PARTS.values() for name, array in part.items()}
TOTAL = sum(array.nbytes for array in TENSORS.values())


def file_of(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file."""
    file = io.BytesIO()
    formats.save(Model(tensors, metadata=dict(metadata or {})), file, format="safetensors")
    return file.getvalue()


def text(index: object) -> str:
    """Return an index as it is usually written."""
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def checkpoint(
    folder: Path,
    parts: Mapping[str, Mapping[str, Array]] = PARTS,
    metadata: Mapping[str, Any] | None = None,
    *,
    index: str = INDEX,
    texts: tuple[Mapping[str, str], ...] = ({"format": "pt"}, {"format": "pt"}),
) -> Path:
    """Write shards and their index to a new folder; return the index."""
    folder.mkdir()
    for (name, tensors), own in zip(parts.items(), texts, strict=True):
        (folder / name).write_bytes(file_of(tensors, own))
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    total = sum(array.nbytes for tensors in parts.values() for array in tensors.values())
    fields = {"metadata": {"total_size": total} if metadata is None else metadata, "weight_map": places}
    (folder / index).write_text(text(fields))
    return folder / index


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------ reading
@pytest.mark.filterwarnings("ignore:this is one shard of a model")
def test_an_index_or_its_folder_is_read(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    for source in (index, index.parent):
        model = formats.load(source)
        assert isinstance(model.tensors, LazyTensors)
        assert_same(model.tensors, {name: TENSORS[name] for name in model})
        assert (model.format, len(model)) == ("safetensors", len(TENSORS))
        assert model.metadata == {"format": "pt", shards.KEY: '{"runs":[3,0,2,1,1,0,1,1]}'}
    assert_same(formats.load(index.parent / ONE).tensors, formats.load(index.parent / ONE).tensors)
    assert set(formats.load(index.parent / ONE)) == set(PARTS[ONE])


def test_what_other_processes_read(tmp_path: Path) -> None:
    model = formats.load(checkpoint(tmp_path / "m"))
    assert isinstance(model.tensors, LazyTensors)
    for name, array in TENSORS.items():
        data = pickle.dumps(model.tensors.only([name]))
        assert len(data) < 600
        assert_same(pickle.loads(data), {name: array})
    some = pickle.loads(pickle.dumps(model.tensors.only(["norm", "embed"]).only(["embed"])))
    assert_same(some, {"embed": TENSORS["embed"]})
    assert formats.described(model, "norm") == (np.dtype("f2"), (7,))
    os.utime(tmp_path / "m" / ONE, ns=(1, 1))
    with pytest.raises(FormatError, match=f"{ONE} has changed since"):
        some["embed"]
    with pytest.raises(FormatError, match=f"{ONE} has changed since"):
        model["embed"]
    assert_same({"norm": model["norm"]}, {"norm": TENSORS["norm"]})


@pytest.mark.filterwarnings("ignore:this is one shard of a model")
def test_mapped(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    for source in (index, index.parent, index.parent / ONE):
        model = mapped(source)
        assert_same(model.tensors, {name: TENSORS[name] for name in model})
        for name, view in model.tensors.items():
            assert not view.flags.writeable
            assert view.base is not None or not view.size, name
    assert model.metadata == {"format": "pt"}
    assert list(model) == list(formats.load(index.parent / ONE))


def test_foreign_files_are_reported(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m", metadata={"total_size": TOTAL, "more": [1]})
    fields = json.loads(index.read_text())
    del fields["weight_map"]["norm"]
    index.write_text(json.dumps(fields | {"else": 1}))
    (index.parent / "config.json").write_text("{}")
    with pytest.warns(
        formats.FormatWarning, match="tensors and entries of the index are left out: 'else', 'more', 'norm'$"
    ) as caught:
        model = formats.load(index)
    assert caught[0].filename == __file__
    assert set(model) == TENSORS.keys() - {"norm"}
    with pytest.warns(formats.FormatWarning, match="tensors and entries of the index are left out: 'else', "):
        assert list(formats.load(index.parent).attachments) == ["config.json"]
    with pytest.raises(FormatError, match="tensors and entries of the index are left out: 'else', "):
        formats.load(index.parent, strict=True)


def changed(**fields: Any) -> str:
    places = {tensor: name for name, tensors in PARTS.items() for tensor in tensors}
    return text({"metadata": {"total_size": TOTAL}, "weight_map": places} | fields)


def elsewhere(name: str, tensor: str = "norm") -> str:
    places = json.loads(changed())["weight_map"]
    return changed(weight_map=places | {tensor: name})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(weight_map=[]), "weight_map of the index is not an object of strings"),
        (changed(weight_map={"a": 1}), "weight_map of the index is not an object of strings"),
        (changed(metadata=[]), "metadata of the index is not an object"),
        (changed() + "x", "the index is not valid JSON"),
        (changed().replace('"norm"', '"embed"'), "the index contains 'embed' twice"),
        (changed().replace(str(TOTAL), "NaN"), "the index contains NaN"),
        (elsewhere("none.safetensors"), "the shard 'none.safetensors' is missing"),
        (elsewhere(ONE), f"tensor 'norm' is in '{TWO}'; the index says '{ONE}'"),
        (elsewhere(ONE, "new"), f"the index places tensor 'new' in '{ONE}', which does not contain it"),
        (elsewhere("broken.safetensors"), r"shard 'broken\.safetensors': the file has 3 bytes"),
        *(
            (elsewhere(name), "names a shard .* which is not a plain file name")
            for name in ("", ".", "..", "../m/" + ONE, "/" + ONE, "a/b", "a\\b", "C:x", "a\0b", "\ud800", "a\nb")
        ),
        *(
            (elsewhere(name), "leaves the model's folder|regular")
            for name in ("out.safetensors", "up", "sub", "fifo", "null")
        ),
    ],
)
def test_malformed_indices(data: str, message: str, tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    index.write_text(data)
    (tmp_path / "out.safetensors").write_bytes(file_of({"norm": TENSORS["norm"]}))
    (index.parent / "out.safetensors").symlink_to(tmp_path / "out.safetensors")
    (index.parent / "up").symlink_to("../out.safetensors")
    (index.parent / "null").symlink_to("/dev/null")
    (index.parent / "sub").mkdir()
    (index.parent / "broken.safetensors").write_bytes(b"abc")
    os.mkfifo(index.parent / "fifo")
    with pytest.raises(FormatError, match=message):
        formats.load(index)


def test_links_of_a_cache(tmp_path: Path) -> None:
    """The index and all shards are links into one folder, as in a hub client's cache."""
    index = checkpoint(tmp_path / "m")
    (tmp_path / "blobs").mkdir()
    for k, path in enumerate(sorted(index.parent.iterdir())):
        path.rename(tmp_path / "blobs" / str(k))
        path.symlink_to(f"../blobs/{k}")
    assert_same(formats.load(index).tensors, {name: TENSORS[name] for name in formats.load(index)})


def test_links_inside_the_folder(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    (index.parent / ONE).rename(index.parent / "other")
    (index.parent / ONE).symlink_to("other")
    assert len(formats.load(index)) == len(TENSORS)


def test_folders(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    assert formats.recognise(index.parent) is formats.get("safetensors")
    (index.parent / ("x" + shards.INDEX)).write_bytes(index.read_bytes())
    with pytest.raises(FormatError, match="the folder has 2 files whose name ends in"):
        formats.load(index.parent)
    (tmp_path / "empty").mkdir()
    assert formats.recognise(tmp_path / "empty") is None
    with pytest.raises(FormatError, match="the folder has 0 files"):
        formats.load(tmp_path / "empty", format="safetensors")


def test_a_folder_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(file_of(TENSORS, {"format": "pt"}))
    (tmp_path / "config.json").write_text("{}")
    assert formats.recognise(tmp_path) is formats.get("safetensors")
    model = formats.load(tmp_path, strict=True)
    assert (dict(model.attachments), model.file_name) == ({"config.json": b"{}"}, "model.safetensors")
    assert_same({name: model[name] for name in model}, {name: TENSORS[name] for name in model})
    assert (len(model), model.metadata) == (len(TENSORS), {"format": "pt"})
    (tmp_path / "other.safetensors").write_bytes(file_of(TENSORS, {}))
    assert formats.recognise(tmp_path) is None


def test_an_index_without_its_shards(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    with pytest.raises(FormatError, match="give its path, with the shards in the same folder"):
        formats.load(index.read_bytes())


@pytest.mark.parametrize(
    "limit",
    [
        {"max_archive_bytes": 3500},
        {"max_names": 6},
        {"max_total_bytes": TOTAL - 1},
        {"max_topology_bytes": 300},
    ],
)
def test_limits_are_of_all_shards_together(limit: dict[str, int], tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    (name, value), *_ = limit.items()
    with pytest.raises(LimitError, match=f"{name}={value:,}"):
        formats.load(index, limits=Limits(**limit))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_any_mutation_gives_a_model_or_an_error(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    index = checkpoint(tmp_path_factory.mktemp("mutation") / "m")
    changed = bytearray(index.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        cut = data.draw(st.integers(0, 3))
        changed[at : at + cut] = data.draw(
            st.sampled_from([b"[", b"null", b'"', b",", b"1", b"..", b"/"]) | st.binary()
        )
        if not changed:
            return
    index.write_bytes(changed)
    with contextlib.suppress(NnrError):
        dict(formats.load(index, format="safetensors", limits=Limits.strict()).tensors)


# ------------------------------------------------------------------------------------------------ writing
@pytest.mark.parametrize("way", ["index", "folder"])
@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({}, ({"format": "pt"}, {"format": "pt"})),
        ({}, ({}, {})),
        ({}, ({"format": "pt", "a": "b"}, {"c": "é", "format": "pt"})),
        ({"metadata": {}}, ({}, {"format": "pt"})),
        ({"metadata": {"total_size": TOTAL, "total_parameters": 5, "by": "Zoë", "x": None}}, ({}, {})),
        ({"metadata": {"total_size": 1.5e9}}, ({}, {})),
    ],
)
def test_shards_come_back_byte_for_byte(
    change: dict[str, Any], texts: tuple[dict[str, str], dict[str, str]], way: str, tmp_path: Path
) -> None:
    index = checkpoint(tmp_path / "m", texts=texts, **change)
    nnr.encode_file(index, tmp_path / "m.nnr", exact=True)
    if way == "index":
        (tmp_path / "out").mkdir()
        nnr.decode_file(tmp_path / "m.nnr", tmp_path / "out" / INDEX)
    else:
        nnr.decode_file(tmp_path / "m.nnr", tmp_path / "out", format="safetensors")
    assert content(tmp_path / "out") == content(index.parent)


def test_an_index_without_metadata(tmp_path: Path) -> None:
    index = checkpoint(tmp_path / "m")
    fields = json.loads(index.read_text())
    del fields["metadata"]
    index.write_text(text(fields))
    formats.save(formats.load(index), tmp_path / "out", format="safetensors")
    assert content(tmp_path / "out") == content(index.parent)


@pytest.mark.parametrize("names", [("model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors"), None])
def test_names_follow_the_target(names: tuple[str, str] | None, tmp_path: Path) -> None:
    parts = dict(zip(names or PARTS, PARTS.values(), strict=True))
    model = formats.load(checkpoint(tmp_path / "m", parts))
    (tmp_path / "out").mkdir()
    formats.save(model, tmp_path / "out" / "other.safetensors.index.json")
    expected = {name.replace("model", "other"): (tmp_path / "m" / name).read_bytes() for name in parts}
    found = content(tmp_path / "out")
    assert json.loads(found.pop("other.safetensors.index.json"))["weight_map"]["norm"] == list(expected)[1]
    assert found == expected


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (("a.safetensors", "b b.safetensors"), INDEX),
        (("text-00001-of-00002.safetensors", "text-00002-of-00002.safetensors"), "text.safetensors.index.json"),
        (("text.safetensors", "vae.safetensors"), "pipe.line" + shards.INDEX),
        (("model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"), INDEX),
        (("model1.safetensors", "model2.safetensors"), "m" + shards.INDEX),
    ],
)
def test_other_names_come_back(names: tuple[str, str], index: str, tmp_path: Path) -> None:
    parts = dict(zip(names, PARTS.values(), strict=True))
    data = nnr.encode(checkpoint(tmp_path / "m", parts, index=index), exact=True)
    nnr.decode_file(data, tmp_path / "folder", format="safetensors")
    assert content(tmp_path / "folder") == content(tmp_path / "m")
    (tmp_path / "beside").mkdir()
    stem = index.removesuffix(shards.INDEX)
    if names[0].startswith((stem + "-", stem + ".")):
        expected = names
    else:  # they do not belong to the target, and may belong to another model there
        expected = (f"{stem}-00001-of-00002.safetensors", f"{stem}-00002-of-00002.safetensors")
    for _ in range(2):
        nnr.decode_file(data, tmp_path / "beside" / index, overwrite=True)
        found = content(tmp_path / "beside")
        assert found.keys() == {index, *expected}
        assert [found[name] for name in expected] == [(tmp_path / "m" / name).read_bytes() for name in names]


@pytest.mark.parametrize("index", ["é" + shards.INDEX, "aux" + shards.INDEX, "model.safetensors.index.fp16.json"])
def test_names_that_not_every_system_has(index: str, tmp_path: Path) -> None:
    parts = {"é.safetensors": PARTS[ONE], "é2.safetensors": PARTS[TWO]}
    model = formats.load(checkpoint(tmp_path / "m", parts, index=index))
    formats.save(model, tmp_path / "out", format="safetensors")
    assert sorted(content(tmp_path / "out")) == [ONE, TWO, INDEX]


def test_from_elsewhere_to_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LARGEST", 4000)
    data = nnr.encode(TENSORS, exact=True)
    nnr.decode_file(data, tmp_path / "x.safetensors.index.json")
    index = json.loads((tmp_path / "x.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": TOTAL}
    assert index["weight_map"]["layers.0.weight"] == "x-00001-of-00002.safetensors"
    assert index["weight_map"]["norm"] == "x-00002-of-00002.safetensors"
    model = formats.load(tmp_path / "x.safetensors.index.json")
    assert_same({name: model[name] for name in TENSORS}, TENSORS)
    monkeypatch.setattr(shards, "LARGEST", 1)
    (tmp_path / "many").mkdir()
    formats.save(model.__class__(TENSORS), tmp_path / "many", format="safetensors", overwrite=True)
    assert len(content(tmp_path / "many")) == len(TENSORS)  # the empty tensor is in the first shard


@pytest.mark.parametrize("stem", ["a:b", "a\\b", "a\n", "a\udcff"])
def test_shards_beside_an_index_of_any_name(stem: str, tmp_path: Path) -> None:
    formats.save(Model(TENSORS), tmp_path / (stem + shards.INDEX))
    model = formats.load(tmp_path / (stem + shards.INDEX))
    assert_same({name: model[name] for name in TENSORS}, TENSORS)


def test_capitals(tmp_path: Path) -> None:
    formats.save(Model(TENSORS), tmp_path / "M.Safetensors.Index.JSON")
    assert sorted(content(tmp_path)) == ["M-00001-of-00001.safetensors", "M.Safetensors.Index.JSON"]
    assert len(formats.load(tmp_path / "M.Safetensors.Index.JSON")) == len(TENSORS)


@pytest.mark.parametrize("more", [{"index": {"total_size": None, "by": "us"}}, {"metadata": [{"a": "b"}, {}]}])
def test_one_file_of_shards_with_metadata_of_their_own(more: dict[str, Any], tmp_path: Path) -> None:
    names = sorted(TENSORS)
    record = {"runs": [1, 0, len(names) - 1, 1]}
    for fields, lost in ((record, 0), (record | more, 1), ({"runs": 1} | more, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            formats.save(
                Model(TENSORS, metadata={shards.KEY: json.dumps(fields)}), tmp_path / f"{len(fields)}{lost}.safetensors"
            )
        assert ["cannot store the metadata of an index" in str(each.message) for each in caught] == [True] * lost


def test_one_file_where_nothing_says_shards(tmp_path: Path) -> None:
    formats.save(Model(TENSORS), tmp_path / "plain", format="safetensors")
    assert formats.load(tmp_path / "plain")["norm"].tolist() == TENSORS["norm"].tolist()


def test_nothing_to_write(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    formats.save(Model({}), tmp_path / "m", format="safetensors", overwrite=True)
    assert content(tmp_path / "m") == {INDEX: text({"metadata": {"total_size": 0}, "weight_map": {}}).encode()}
    assert len(formats.load(tmp_path / "m")) == 0


def test_some_tensors_of_shards(tmp_path: Path) -> None:
    """They are not all tensors of the record, so they get other shards."""
    data = nnr.encode(checkpoint(tmp_path / "m"), exact=True)
    nnr.decode_file(data, tmp_path / "x.safetensors.index.json", names=["norm", "embed"])
    model = formats.load(tmp_path / "x.safetensors.index.json")
    assert_same({name: model[name] for name in sorted(model)}, {name: TENSORS[name] for name in ("embed", "norm")})
    assert (tmp_path / "x-00001-of-00001.safetensors").exists()


def test_shards_to_one_file(tmp_path: Path) -> None:
    data = nnr.encode(checkpoint(tmp_path / "m"), exact=True)
    nnr.decode_file(data, tmp_path / "one.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == file_of(TENSORS, {"format": "pt"})


def test_casts_and_lossy_values_stay_where_they_were(tmp_path: Path) -> None:
    data = nnr.encode(checkpoint(tmp_path / "m"))
    nnr.decode_file(data, tmp_path / "out", format="safetensors", dtype="float16")
    before, after = (json.loads((tmp_path / f / INDEX).read_text()) for f in ("m", "out"))
    assert before["weight_map"] == after["weight_map"]
    assert after["metadata"]["total_size"] == sum(a.nbytes for a in formats.load(tmp_path / "out").tensors.values())


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    class Failing(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            if name == "norm":
                raise FormatError("no more")
            return super().__getitem__(name)

        def described(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
            return TENSORS[name].dtype, TENSORS[name].shape

        def announce(self, names: object) -> None:
            pass

    (tmp_path / INDEX).write_bytes(b"before")
    for path, form in ((tmp_path / INDEX, None), (tmp_path / "folder", "safetensors")):
        with pytest.raises(FormatError, match="no more"):
            formats.save(Model(Failing(TENSORS)), path, format=form, overwrite=True)
    assert content(tmp_path) == {INDEX: b"before"}


RECORD = {"runs": [4, 0, 3, 1]}


@pytest.mark.parametrize(
    "record",
    [
        b"[]",
        b"{",
        {"x": 1},
        RECORD | {"runs": [1]},
        RECORD | {"runs": [7.0, 0]},
        RECORD | {"runs": [-1, 0, 8, 1]},
        RECORD | {"runs": [7, 0, 0, 1]},
        RECORD | {"runs": 1},
        RECORD | {"index": []},
        RECORD | {"index": {"a": []}},
        RECORD | {"metadata": [1, 2]},
        RECORD | {"metadata": [{"a": 1}, {}]},
        RECORD | {"names": [1, 2]},
        RECORD | {"stem": 1},
        *(
            RECORD | {"names": ["a.safetensors", name]}
            for name in (
                "../b.safetensors",
                "/b.safetensors",
                "b\\c.safetensors",
                "C:b.safetensors",
                ".b.safetensors",
                "b\0.safetensors",
                "b\n.safetensors",
                "con.safetensors",
                "LPT1.x.safetensors",
                "COM1 .safetensors",
                "é.safetensors",
                "~?.safetensors",
                "A.safetensors",
                "b",
                "b.safetensors.index.json",
                "\ud800.safetensors",
                "b" * 250 + ".safetensors",
            )
        ),
        RECORD | {"stem": "../x"},
        RECORD | {"stem": "x/y"},
        RECORD | {"stem": ""},
    ],
    ids=str,
)
def test_records_of_strangers(record: Any, tmp_path: Path) -> None:
    written = record.decode() if isinstance(record, bytes) else json.dumps(record)
    model = Model(TENSORS, metadata={shards.KEY: written})
    for path, form in ((tmp_path / INDEX, None), (tmp_path / "folder", "safetensors")):
        with pytest.raises(FormatError, match=r"metadata 'safetensors:shards'"):
            formats.save(model, path, format=form)
    assert not content(tmp_path)
    formats.save(model, tmp_path / "one.safetensors")


@pytest.mark.parametrize("runs", [[], [6, 0], [8, 0], [4, 0, 3, 2], [7, 5], [1 << 70, 0]])
def test_records_of_other_tensors_are_passed_over(runs: list[int], tmp_path: Path) -> None:
    record = json.dumps({"runs": runs, "names": ["a.safetensors", "b.safetensors"], "metadata": [{"a": "b"}, {}]})
    formats.save(Model(TENSORS, metadata={shards.KEY: record}), tmp_path / INDEX)
    assert sorted(content(tmp_path)) == ["model-00001-of-00001.safetensors", INDEX]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = checkpoint(tmp_path / "m")
    assert call(capsys, "encode", index.parent, "-o", tmp_path / "m.nnr", "--lossless").code == 0
    (tmp_path / "out").mkdir()
    assert call(capsys, "decode", tmp_path / "m.nnr", "-o", tmp_path / "out" / INDEX).code == 0
    assert content(tmp_path / "out") == content(index.parent)


# ------------------------------------------------------------------------------------------------ the library
@pytest.mark.clients
def test_the_library_reads_and_writes_the_same_shards(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "safetensors.numpy", reason="the package safetensors (extra 'clients') is not installed"
    )
    folder = tmp_path / "m"
    folder.mkdir()
    for name, tensors in PARTS.items():
        library.save_file(tensors, folder / name, {"format": "pt"})
    places = {tensor: name for name, tensors in PARTS.items() for tensor in tensors}
    (folder / INDEX).write_text(text({"metadata": {"total_size": TOTAL}, "weight_map": places}))
    data = nnr.encode(folder, exact=True)
    nnr.decode_file(data, tmp_path / "out", format="safetensors")
    assert content(tmp_path / "out") == content(folder)
    found = library.load((tmp_path / "out" / TWO).read_bytes())
    assert_same({name: found[name] for name in PARTS[TWO]}, PARTS[TWO])
