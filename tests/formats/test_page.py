"""The table of docs/reference/formats.md lists every format."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.model import Model

from ..cli.support import call
from . import onnx_files
from .support import write_folder
from .test_between import KERAS, LARGE, PAGE, WEIGHT, make_openvino, make_skriptnd, need

ROOT = PAGE.parents[2]
SECTIONS = dict(
    re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)", "## (top)\n" + PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
)


def examples(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.+?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models of the page, in the current folder."""
    monkeypatch.chdir(tmp_path)
    normalized = {"w": LARGE, **dict.fromkeys(("gamma", "beta", "mean", "var"), np.ones(15, np.float32))}
    nodes = [
        onnx_files.node("Gemm", ["x", "w"], ["t"], transB=1),
        onnx_files.node("BatchNormalization", ["t", "gamma", "beta", "mean", "var"], ["y"]),
    ]
    tensors = [onnx_files.tensor(name, array) for name, array in normalized.items()]
    onnx_files.write(tmp_path, onnx_files.model(nodes, tensors))
    tensors_by_name = {"w": WEIGHT, "v": LARGE}
    nnr.save(Model(tensors_by_name), "model.safetensors")
    shards = {name: f"model-0000{k}-of-00002.safetensors" for k, name in enumerate(tensors_by_name, 1)}
    write_folder(tmp_path / "checkpoint", {"model.safetensors.index.json": json.dumps({"weight_map": shards}).encode()})
    for name, shard in shards.items():
        nnr.save(Model({name: tensors_by_name[name]}), tmp_path / "checkpoint" / shard)
    for path in (make_openvino(tmp_path), tmp_path / "m.bin"):
        path.rename(path.with_stem("model"))
    make_skriptnd(tmp_path).rename("net")
    np.save("weight.npy", WEIGHT)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in (".keras", ".h5"):
        shutil.copy(KERAS / f"tiny{name}", tmp_path / f"model{name}")
    shutil.copytree(KERAS / "scaled.savedmodel", tmp_path / "exported")
    for path in KERAS.glob("plain.*"):
        shutil.copy(path, tmp_path / path.name.replace("plain", "ckpt-7"))
    return tmp_path


def provide(name: str, folder: Path) -> None:
    """A model that only its own package makes; skips without that."""
    if name == "checkpoint.pt":
        need("torch")
        import torch

        torch.save({"model": {"w": torch.from_numpy(WEIGHT)}, "epoch": 3}, folder / name)
    if name == "model-q8_0.gguf":
        need("gguf")
        import gguf

        writer = gguf.GGUFWriter(folder / name, "llama")
        data = gguf.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            step()
        writer.close()


@pytest.mark.medium
@pytest.mark.parametrize("section", [name for name in SECTIONS if "```sh" in SECTIONS[name]])
def test_commands(section: str, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.partition("#")[0] for text in examples(section, "sh") for line in text.splitlines()]
    lines = [line for line in lines if not line.startswith(("pip install ", "cc "))]
    assert lines
    for line in lines:
        command, *words = shlex.split(line)
        assert command == "nnr"
        for word in words:
            provide(word, models)
        result = call(capsys, *words)
        assert result.code == 0, (line, result.err)


@pytest.mark.parametrize("section", [name for name in SECTIONS if "```python" in SECTIONS[name]])
def test_python(section: str, models: Path) -> None:
    if section == "A format of your own":
        return  # tests/formats/test_entry_points.py installs it
    names: dict[str, Any] = {"nnr": nnr}
    if section == "PyTorch":
        need("torch")
        import torch

        names["network"] = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    for text in examples(section, "python"):
        exec(compile(text, f"an example of {section}", "exec"), names)


def test_every_format_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|(.*)\|$", SECTIONS["(top)"], re.MULTILINE)
    listed = {name: row for names, row in rows for name in re.findall(r"\w+", names)}
    assert listed.keys() == set(formats.names())
    for name, row in listed.items():
        module = formats.get(name)
        written = row.split("|")[1]
        assert all(f"`{suffix}`" in written for suffix in module.SUFFIXES), name
        assert bool(row.split("|")[0].strip()) == bool(module.READS)
        assert all(f"`{package}`" in row for package in getattr(module, "NEEDS", ()))


def test_the_other_pages_are_there() -> None:
    for name in re.findall(r"\]\(([\w./-]+\.md)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / name).is_file(), name
