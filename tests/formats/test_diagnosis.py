"""Files that are not a model or only part of one: one message describes the file and the required action."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError
from nnr_codec.formats import FormatWarning

from .onnx_files import model as onnx_model
from .onnx_files import tensor as onnx_tensor
from .torch_support import pytorch

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345\n"
TENSORS = {"w": np.ones((8, 8), "f4")}


def message(path: Path, **options: bool) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FormatError) as caught:
            nnr.load(path, **options)
    return str(caught.value)


def put_shards(folder: Path, suffix: str = ".safetensors") -> list[Path]:
    """Write two shards, as ``model-00001-of-00002.safetensors``, and their index; return their paths."""
    paths = [folder / f"model-{k:05}-of-00002{suffix}" for k in (1, 2)]
    for k, path in enumerate(paths):
        nnr.save({f"w{k}": TENSORS["w"]}, path, format="safetensors")
    index = folder / f"model{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {f"w{k}": path.name for k, path in enumerate(paths)}}))
    return [*paths, index]


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx", "pytorch_model.bin"])
def test_a_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(POINTER)
    assert message(tmp_path / name).endswith(": a git-lfs pointer, not the file itself; run git lfs pull to fetch it")
    assert "a git-lfs pointer" in message(tmp_path)


def test_a_bitstream_in_the_place_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(nnr.encode(TENSORS))
    assert message(tmp_path / "m").endswith(": an NNR bitstream, not a model; decode it first")


def test_a_model_in_the_place_of_a_bitstream(tmp_path: Path) -> None:
    nnr.save(TENSORS, tmp_path / "m.npz")
    with pytest.raises(FormatError, match=r"a model \(npz\), not a bitstream; use nnr encode"):
        nnr.decode(tmp_path / "m.npz")


def test_a_shard_that_is_a_git_lfs_pointer(tmp_path: Path) -> None:
    _, second, index = put_shards(tmp_path)
    second.write_text(POINTER)
    for path in (index, tmp_path):
        assert f"shard {second.name!a}: a git-lfs pointer" in message(path)


def test_an_index_without_its_shards(tmp_path: Path) -> None:
    first, _, index = put_shards(tmp_path)
    first.unlink()
    assert message(index).endswith(
        "is missing; this is the index of a sharded model; its shards must be in the same folder"
    )


def test_an_index_of_other_files(tmp_path: Path) -> None:
    *_, index = put_shards(tmp_path, ".bin")
    assert "shard 'model-00001-of-00002.bin': not a zip archive" in message(index)


def test_a_shard_beside_its_index(tmp_path: Path) -> None:
    first, _, index = put_shards(tmp_path)
    text = "this is one shard of a model; give 'model.safetensors.index.json' to read all shards"
    with pytest.warns(FormatWarning, match=text):
        assert list(nnr.load(first)) == ["w0"]
    assert text in message(first, strict=True)
    assert list(nnr.load(index)) == ["w0", "w1"]
    index.unlink()
    assert list(nnr.load(first, strict=True)) == ["w0"]


def test_a_folder_with_one_shard_of_several(tmp_path: Path) -> None:
    _, second, index = put_shards(tmp_path)
    second.unlink()
    index.unlink()
    with pytest.warns(
        FormatWarning, match="00001-of-00002.safetensors' is one of 2 shards of a model, but their index"
    ):
        assert list(nnr.load(tmp_path)) == ["w0"]
    assert "but their index is missing" in message(tmp_path, strict=True)


@pytest.mark.parametrize("name", ["m.onnx", "m.npz", "model.safetensors"])
def test_a_folder_with_one_model_is_that_model(tmp_path: Path, name: str) -> None:
    if name == "m.onnx":
        (tmp_path / name).write_bytes(onnx_model(tensors=[onnx_tensor("w", TENSORS["w"])]))
    else:
        nnr.save(TENSORS, tmp_path / name)
    assert list(nnr.load(tmp_path, strict=True)) == ["w"]
    (tmp_path / "tokenizer.json").write_text("{}")
    model = nnr.load(tmp_path, strict=True)
    assert (list(model), dict(model.attachments), model.file_name) == (["w"], {"tokenizer.json": b"{}"}, name)


def test_a_link_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    nnr.save(TENSORS, tmp_path / "secret.npz")
    os.symlink("../secret.npz", tmp_path / "m" / "model.npz")
    assert message(tmp_path / "m").endswith(
        "the model file in the folder is a symbolic link; give the file itself, 'model.npz'"
    )


def test_a_folder_with_several_files_of_tensors(tmp_path: Path) -> None:
    for name in "abcd":
        nnr.save(TENSORS, tmp_path / f"{name}.safetensors")
    text = message(tmp_path)
    assert "has 4 model files but no model.safetensors.index.json: 'a.safetensors', 'b." in text
    assert text.endswith("give one of them, or encode each separately (nnr encode FILE... -o FOLDER/)")
    nnr.save(TENSORS, tmp_path / "e.npz")
    assert "has 5 model files: 'a.safetensors', " in message(tmp_path)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "the folder contains no model of a supported format" in message(tmp_path)


def test_the_weights_of_openvino(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(bytes(400))
    assert message(path).endswith(", give its .xml file, 'm.xml', in the same folder")
    (tmp_path / "m.xml").write_text("<net/>")
    assert message(path).endswith(", give its .xml file, 'm.xml'")


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors"])
def test_a_truncated_file(tmp_path: Path, name: str) -> None:
    nnr.save(TENSORS, tmp_path / name)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-100])
    assert message(tmp_path / name).endswith("; the file is truncated; copy or download it again")


def test_another_archive(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("readme.txt", "no model")
    assert "a zip archive without a model" in message(tmp_path / "m.pt")


# ------------------------------------------------------------------------------------------------ PyTorch
@pytest.mark.medium
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # a deprecation in PyTorch
def test_files_of_pytorch(tmp_path: Path) -> None:
    torch = pytorch()
    module, path = torch.nn.Sequential(torch.nn.Linear(4, 4)), tmp_path / "m.pt"
    save_weights = "torch.save(module.state_dict(), 'weights.pt')"
    for legacy in (False, True):
        torch.save(module.state_dict(), path, _use_new_zipfile_serialization=not legacy)
        data = path.read_bytes()
        for size in (len(data) // 2, len(data) - 60):
            path.write_bytes(data[:size])
            assert message(path).endswith("; the file is truncated; copy or download it again")
            assert legacy or "a PyTorch file without a zip directory" in message(path)
        torch.save(module, path, _use_new_zipfile_serialization=not legacy)
        assert message(path).endswith(f"; this is a pickled module: save its weights with {save_weights}")
        torch.save({"x": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)}, path)
        assert "PyTorch has quantized this model: give the original model" in message(path)
    torch.jit.script(module).save(path)
    assert "this is TorchScript: run module = torch.jit.load(FILE), and save its weights with" in message(path)
    quantized = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    torch.save(quantized.state_dict(), path)
    assert "PyTorch has quantized this model" in message(path)
    torch.export.save(torch.export.export(module, (torch.ones(1, 4),)), tmp_path / "m.pt2")
    assert "a torch.export program, not a state_dict" in message(tmp_path / "m.pt2")


@pytest.mark.torch
@pytest.mark.medium
def test_a_folder_with_a_checkpoint_of_pytorch(tmp_path: Path) -> None:
    torch = pytorch()
    torch.save({"w": torch.ones(4)}, tmp_path / "pytorch_model.bin")
    torch.save({"state": torch.ones(4)}, tmp_path / "optimizer.pt")
    with pytest.warns(FormatWarning, match="files are left out: 'optimizer.pt'"):
        assert list(nnr.load(tmp_path)) == ["w"]
