"""Folders of a model and other files: their attachments, through bitstreams and back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.formats import FormatWarning, folders

from .support import assert_same
from .torch_support import pytorch

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((3, 2), np.float32)}
OTHERS = {"config.json": b'{"a": 1}', "1_Pooling/config.json": b"{}", "empty": b"", "spiece.model": b"\0\xff" * 3000}


def folder_of(path: Path, files: dict[str, bytes], tensors: str = "model.safetensors") -> Path:
    """Write a folder of a model."""
    path.mkdir()
    nnr.save(TENSORS, path / tensors)
    for name, data in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("tensors", ["model.safetensors", "adapter_model.safetensors", "m.safetensors.index.json"])
def test_a_folder_round_trips(tensors: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", OTHERS, tensors)
    data = nnr.encode(folder, exact=True)
    nnr.decode_file(data, tmp_path / "out")
    assert files_in(tmp_path / "out") == files_in(folder)
    assert not nnr.verify(data).violations
    with nnr.open(data) as file:
        assert dict(file.attachments) == OTHERS
        assert file.attachments.sizes == {name: len(content) for name, content in OTHERS.items()}
        assert sum(file.attachments.coded_sizes.values()) < len(data)


def test_an_existing_folder_is_replaced_only_on_request(tmp_path: Path) -> None:
    data = nnr.encode(folder_of(tmp_path / "m", OTHERS))
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        nnr.decode_file(data, tmp_path / "out")
    nnr.decode_file(data, tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "old").touch()
    nnr.decode_file(data, tmp_path / "out", overwrite=True)
    assert files_in(tmp_path / "out").keys() == {"model.safetensors", *OTHERS}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match=r"without model\.safetensors"):
        nnr.decode_file(data, tmp_path / "home", overwrite=True)


def test_files_that_are_attached_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"training_args.bin": b"x", "m.py": b"x", "onnx/model.onnx": b"x", "big.json": b"123456"}
    folder = folder_of(tmp_path / "m", {**others, "c.json": b"{}", ".git/config": b"x", ".hidden": b"x"})
    monkeypatch.setattr(folders, "LARGEST", 5)
    listed = "'big.json', 'm.py', 'onnx/model.onnx', 'training_args.bin'$"
    with pytest.warns(FormatWarning, match=f"files are left out: {listed}") as caught:
        assert list(nnr.formats.load(folder).attachments) == ["c.json"]
    assert caught[0].filename == __file__
    with pytest.raises(nnr.FormatError, match=listed):
        nnr.load(folder, strict=True)
    assert not nnr.load(folder, strict=True, attach=None).attachments
    model = nnr.load(folder, strict=True, attach=["*.py", "*.bin", "big.*", "onnx/*"])
    assert model.attachments.keys() == {"c.json", *others}
    with pytest.warns(
        FormatWarning, match="files that can run code when they are loaded: '(m.py|training_args.bin)', "
    ):
        nnr.save(model, tmp_path / "out")
    with pytest.raises(nnr.FormatError, match=r"no file of the folder that can be attached matches '\*.zip'"):
        nnr.load(folder, attach=["*.zip"])


def test_one_file_has_no_attachments(tmp_path: Path) -> None:
    model = nnr.load(folder_of(tmp_path / "m", {"c.json": b"{}"}))
    with pytest.warns(FormatWarning, match=r"attachments are left out: 'c\.json'; give a folder") as caught:
        nnr.formats.save(model, tmp_path / "m.npz")
    assert caught[0].filename == __file__
    with pytest.warns(FormatWarning, match="attachments are left out"), open(tmp_path / "s", "wb") as file:
        nnr.save(model, file, format="npz")


def test_the_standard_has_no_attachments(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", {"c.json": b"{}"})
    with pytest.raises(nnr.EncodeError, match="attachments, which are not part of the standard"):
        nnr.encode(folder, side_info=False)
    assert nnr.encode(nnr.load(folder, attach=None), side_info=False)


def test_attachments_belong_to_whole_models(tmp_path: Path) -> None:
    data = nnr.encode(folder_of(tmp_path / "m", {"c.json": b"{}"}))
    with nnr.open(data) as file:
        assert file.decode().file_name == "model.safetensors"
        assert not file.decode(names=["a"]).attachments
        with nnr.open(file.extract(["a"])) as part:
            assert not part.attachments
    stream = nnr.StreamDecoder()
    assert [name for name, _ in stream.feed(data) + stream.finish()] == ["a", "b"]
    assert not stream.ignored


def test_a_model_cache_of_links(tmp_path: Path) -> None:
    """Files of a snapshot are links to files in one folder."""
    folder_of(tmp_path / "blobs", {"1": b"{}"})
    snapshot = tmp_path / "snapshots" / "x"
    (snapshot / "1_Pooling").mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/model.safetensors")
    (snapshot / "1_Pooling" / "config.json").symlink_to("../../../blobs/1")
    assert dict(nnr.load(snapshot, strict=True).attachments) == {"1_Pooling/config.json": b"{}"}


# ------------------------------------------------------------------------------------------------ shards of PyTorch
def shards(folder: Path, **places: int) -> Path:
    """Write shards of torch.save with these tensors, and an index."""
    torch = pytorch()
    folder.mkdir()
    names = {name: f"pytorch_model-{k:05}-of-00002.bin" for name, k in places.items()}
    for shard in sorted(set(names.values())):
        tensors = {name: torch.tensor(TENSORS[name]) for name, place in names.items() if place == shard}
        torch.save(tensors, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


@pytest.mark.torch
@pytest.mark.medium
def test_shards_of_pytorch(tmp_path: Path) -> None:
    folder = shards(tmp_path / "m", a=1, b=2)
    (folder / "config.json").write_text("{}")
    for source in (folder, folder / "pytorch_model.bin.index.json"):
        model = nnr.load(source, strict=True)
        assert_same(model.tensors, TENSORS)
        assert (model.format, model.topology) == ("pytorch", None)
    nnr.decode_file(nnr.encode(folder, exact=True), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "pytorch_model.bin"]
    assert_same(nnr.load(tmp_path / "out").tensors, TENSORS)
    nnr.decode_file(nnr.encode(folder, exact=True), tmp_path / "safe", format="safetensors")
    assert sorted(os.listdir(tmp_path / "safe")) == ["config.json", "model.safetensors"]


@pytest.mark.torch
@pytest.mark.medium
def test_malformed_shards_of_pytorch(tmp_path: Path) -> None:
    index = shards(tmp_path / "m", a=1, b=2) / "pytorch_model.bin.index.json"
    text = index.read_text()
    with pytest.raises(nnr.LimitError, match="max_total_bytes"):
        nnr.load(index, limits=nnr.Limits(max_total_bytes=47))
    for old, new, match in (
        ('"pytorch_model-00001-of', '"../pytorch_model-00001-of', "not a plain file name"),
        ("00001-of", "00003-of", "the shard 'pytorch_model-00003-of-00002.bin' is missing"),
        ('"b"', '"c"', "places tensor 'c' in 'pytorch_model-00002-of-00002.bin', which does not contain it"),
        ("00001-of", "00002-of", "places tensor 'a' in"),
    ):
        index.write_text(text.replace(old, new))
        with pytest.raises(nnr.FormatError, match=match):
            nnr.load(index)
    with open(index, "rb") as file, pytest.raises(nnr.FormatError, match="an index of shards; give its path"):
        nnr.load(file)
