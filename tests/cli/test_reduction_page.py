"""docs/guides/reduction.md lists every option."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.encoder.reduce import TOOLS

from ..formats.onnx_nets import Net
from .support import DIGITS, call

pytestmark = pytest.mark.medium

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "reduction.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", "## (top)\n" + TEXT, re.MULTILINE | re.DOTALL))
MAPS = "Performance maps"


def examples(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.+?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)


def having(language: str) -> list[Any]:
    """The sections with examples in a language; those that need other packages are marked."""
    marks = {MAPS: [pytest.mark.clients], "Training": [pytest.mark.torch]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in SECTIONS if examples(name, language)]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of the page, and some inputs, in the current folder; ``python`` is this one."""
    monkeypatch.chdir(tmp_path)
    Path("model.nnef").symlink_to(DIGITS)
    net = Net(input=(1, 1, 8, 8), output=(1, 10)).conv("x", "a", "conv1", 6, 1, 3, 3).norm("a", "b", "bn1", 6)
    net.op("Relu", "b", "c").conv("c", "d", "conv2", 8, 6, 3, 3).op("GlobalAveragePool", "d", "e")
    net.op("Flatten", "e", "f").op("Gemm", f"f {net.weight('fc.weight', 10, 8)}", "y", transB=1)
    Path("model.onnx").write_bytes(net.data())
    x = np.random.default_rng(1).random((40, 1, 8, 8), np.float32)
    np.savez("test.npz", x=x, y=np.arange(40) % 10)
    Path("bin").mkdir()
    Path("bin", "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    Path("bin", "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.parametrize("section", having("sh"))
@pytest.mark.slow
def test_commands(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    if section == MAPS:
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
        (script,) = [text for text in examples(section, "python") if text.startswith("# evaluate.py\n")]
        Path("evaluate.py").write_text(script)
    lines = [line.partition("#")[0] for text in examples(section, "sh") for line in text.splitlines()]
    assert lines
    for line in lines:
        command, *words = shlex.split(line)
        if (command, *words[:2]) == ("python", "-m", "benchmarks.reduction"):
            continue
        assert command == "nnr"
        result = call(capsys, *words)
        assert result.code == 0, (line, result.err)
        for name in words:
            if name.endswith(".nnr") and "--dry-run" not in words:
                assert not nnr.verify(name).violations, line


@pytest.mark.parametrize("section", having("python"))
def test_python(section: str, request: pytest.FixtureRequest) -> None:
    if section == "Training":
        torch: Any = pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
        request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
        torch.set_num_threads(1)
    names: dict[str, Any] = {"nnr": nnr, "accuracy": lambda model: 0.5}
    for text in examples(section, "python"):
        if not text.startswith("# evaluate.py\n"):
            exec(compile(text, f"an example of {section}", "exec"), names)


@pytest.mark.parametrize("tool", TOOLS)
def test_every_option_is_told(tool: str) -> None:
    section = SECTIONS["fold and scale" if tool in ("fold", "scale") else tool]
    listed = " ".join(re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE))
    module, cls = TOOLS[tool]
    tool_class = getattr(import_module(f"nnr_codec.encoder.reduce.{module}"), cls)
    assert {option.name for option in fields(tool_class)} <= set(re.findall(r"\w+", listed))
