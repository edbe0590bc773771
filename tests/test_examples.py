"""Each command of examples/README.md runs in an empty folder, and its output has the expected properties."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import nnr_codec as nnr

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
ROW = re.compile(r"^\| \[(.+?)\]\(.+?\) \| .+? \| `(.+?)` \| (.*?) ?\| (\d+) s \|$", re.MULTILINE)
#: Command, required packages, and time in seconds of each example.
COMMANDS = {
    name: (command, re.findall(r"`(.+?)`", needs), int(seconds))
    for name, command, needs, seconds in ROW.findall((EXAMPLES / "README.md").read_text("utf-8"))
}


def sizes(text: str) -> list[int]:
    """Return all sizes in bytes, in order."""
    return [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes", text)]


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) ?%", text)]


def quickstart(text: str) -> None:
    accuracies = percentages("\n".join(text.splitlines()[-2:]))
    assert len(accuracies) == 2
    assert min(accuracies) >= 98
    assert Path("digits.nnr").stat().st_size < 0.3 * 4 * 57_242
    assert nnr.compare_models(nnr.load(EXAMPLES / "digits" / "digits.nnef"), nnr.load("restored.nnef")).snr > 35


def pytorch(text: str) -> None:
    before, after = sizes(text)
    assert after < 0.25 * before
    *_, expected, got = percentages(text)
    assert expected >= 80
    assert abs(got - expected) <= 2


def huggingface(text: str) -> None:
    before, after = sizes(text)
    assert after < 0.25 * before
    assert "files: config.json model.safetensors\n" in text
    assert float(re.findall(r"([\d.]+) dB", text)[0]) >= 39


def onnx_inference(text: str) -> None:
    before, after = sizes(text)
    assert after < 0.25 * before
    assert min(percentages(text)[1:]) >= 98


def lora(text: str) -> None:
    before, after = sizes(text)
    assert after < 0.35 * before
    product, outputs = map(float, re.findall(r"([\d.]+) dB", text))
    assert product >= 45
    assert outputs >= 40
    expected, got = percentages(text)
    assert abs(got - expected) <= 1


def updates(text: str) -> None:
    plain, whole, *sent = sizes(text)
    assert whole < 0.25 * plain
    assert len(sent) == 2
    assert max(sent) < 0.3 * whole
    assert min(map(float, re.findall(r"([\d.]+) dB", text))) >= 60
    assert text.endswith("MissingReferenceError\n")


def weight_sync(text: str) -> None:
    ratios = [percentages(line)[0] for line in text.splitlines() if re.match(r" +\d", line)]
    assert len(ratios) == 8
    assert ratios[1] < 20
    assert ratios[-1] < 0.5
    assert "all 8 versions are equal in the learner and both workers\n" in text
    first, second = re.findall(r"^text: (.+)$", text, re.MULTILINE)
    assert first == second


def train(text: str) -> None:
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d", line)]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert float(re.findall(r"([\d.]+) times fewer bytes", text)[0]) >= 12


def adapter(text: str) -> None:
    assert re.search(r"^17 valid: 16 pass, 1 skip\b", text, re.MULTILINE)


def evaluate(text: str) -> None:
    rows = nnr.open("maps.nnr").performance.maps.sparsification.rows
    assert rows[0].nn_accuracy >= 0.98
    assert rows[-1].nn_accuracy < rows[0].nn_accuracy
    assert all(len(row.class_accuracies) == 10 for row in rows)


#: Examples that tests/heavy runs.
HEAVY = ("lora.py",)
CHECKS: dict[str, Callable[[str], None]] = {
    "quickstart.sh": quickstart,
    "pytorch.py": pytorch,
    "huggingface.py": huggingface,
    "onnx_inference.py": onnx_inference,
    "lora.py": lora,
    "updates.py": updates,
    "weight_sync.py": weight_sync,
    "federated/train.py": train,
    "decoders/adapter.py": adapter,
    "digits/evaluate.py": evaluate,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with links to the examples and vectors, and make it the current folder."""
    for name in ("examples", "bitstream_vectors"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"])
    return tmp_path


def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMANDS[name][0], shell=True, capture_output=True, text=True, check=False)


def test_the_table_lists_the_examples_that_have_checks() -> None:
    assert COMMANDS.keys() == CHECKS.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if time > 3 else [])
        for name, (_, _, time) in COMMANDS.items()
        if name not in HEAVY
    ],
)
def test_an_example_runs(name: str, folder: Path) -> None:
    for package in COMMANDS[name][1]:
        try:
            version(package)
        except PackageNotFoundError:
            extra = f" (extra '{package}')" if package == "torch" else ""
            pytest.skip(f"the package {package}{extra} is not installed")
    result = run(name)
    assert result.returncode == 0, result.stderr
    CHECKS[name](result.stdout)


@pytest.mark.parametrize("name", [name for name, (_, needs, _) in COMMANDS.items() if needs])
def test_an_example_without_its_package_ends_with_one_line(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "onnx", "sklearn"):
        (folder / f"{module}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{module}'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(folder) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    result = run(name)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith(f"install it with: pip install {' '.join(COMMANDS[name][1])}\n")
    assert result.stderr.count("\n") == 1
