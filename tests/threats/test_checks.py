"""That each threat has a test, and that the test fails without the check that it stands for.

The slow test has a copy of the package, takes each check out of it in turn, and runs the test on what is left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import nnr_cli
import pytest

import nnr_codec

from . import (
    test_checkpoints,
    test_display,
    test_expected,
    test_graph_text,
    test_hdf5,
    test_headers,
    test_interface,
    test_labels,
    test_model_files,
    test_nnef_channels,
    test_onnx,
    test_onnx_channels,
    test_openvino,
    test_openvx,
    test_output,
    test_payloads,
    test_pytorch,
    test_replies,
    test_sideinfo,
    test_skriptnd,
    test_tensor_files,
    test_topology,
    test_units,
    test_updates,
    test_weights,
    without,
)
from .checks import Check

MODULES = (
    test_units,
    test_headers,
    test_hdf5,
    test_checkpoints,
    test_payloads,
    test_pytorch,
    test_updates,
    test_topology,
    test_graph_text,
    test_labels,
    test_model_files,
    test_nnef_channels,
    test_onnx,
    test_onnx_channels,
    test_openvino,
    test_openvx,
    test_skriptnd,
    test_tensor_files,
    test_sideinfo,
    test_interface,
    test_expected,
    test_weights,
    test_output,
    test_display,
    test_replies,
)
PACKAGES = {package.__name__: Path(str(package.__file__)).parent for package in (nnr_codec, nnr_cli)}
ROOT = Path(__file__).parents[2]

#: In the kernel, all checks are taken out by one build: this variable says which of them.
WHICH = "NNR_CHECK"


def threats() -> Iterator[tuple[ModuleType, str, list[Check]]]:
    """Module, name and checks of each test of a threat, and of others that stand for a check."""
    for module in MODULES:
        for name, value in vars(module).items():
            checks = getattr(value, "checks", [])
            if checks or re.match(r"test_t\d\d", name):
                yield module, name, checks


def pinned() -> list[tuple[ModuleType, str, Check]]:
    """One row for each check."""
    return [(module, name, check) for module, name, checks in threats() for check in checks]


def place(folder: Path, check: Check) -> Path:
    """Where the check stands in a copy of the packages."""
    return folder / check.in_package


def is_compiled(check: Check) -> bool:
    """Whether the check stands in the kernel."""
    return check.file.startswith("cabac_ext/")


def rows(compiled: bool) -> list[object]:
    """Parameters of a test."""
    chosen = [row for row in pinned() if is_compiled(row[2]) == compiled]
    return [pytest.param(*row, k, id=f"{row[1].removeprefix('test_')}-{k}") for k, row in enumerate(chosen, 1)]


def with_checks(compiled: bool) -> Iterator[tuple[ModuleType, list[str]]]:
    """The tests that stand for checks, by module."""
    for module in MODULES:
        names = {name: None for own, name, check in pinned() if own is module and is_compiled(check) == compiled}
        if names:
            yield module, [*names]


def test_every_threat_has_a_test() -> None:
    numbers = {int(found[1]) for _, name, _ in threats() if (found := re.match(r"test_t(\d\d)_", name))}
    assert numbers == {*range(1, 47)}


def test_nearly_every_test_stands_for_a_check() -> None:
    without = [name for _, name, checks in threats() if not checks]
    assert len(without) < 7, without


def test_the_checks_are_there() -> None:
    for _, _, check in pinned():
        package, _, name = check.in_package.partition("/")
        check.removed_from((PACKAGES[package] / name).read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ without the check
class Runner:
    """A process that runs tests on the packages in a folder."""

    def __init__(self, folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        environment |= {
            "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT))),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            WHICH: "0",
        }
        self.folder, pipe = folder, subprocess.PIPE
        command = [
            sys.executable,
            "-m",
            without.__name__,
            *(str(folder / name) for name in PACKAGES),
            str(ROOT / "tests"),
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, module: ModuleType, *names: str, which: int = 0) -> int:
        """The exit code of tests; 1 where they had to be ended."""
        assert self.process.stdin
        assert self.process.stdout
        path = Path(str(module.__file__)).relative_to(ROOT)
        selected = [f"{path}::{name}" for name in names]
        print(json.dumps([selected, {WHICH: str(which)}]), file=self.process.stdin, flush=True)
        code, said = json.loads(self.process.stdout.readline())
        assert re.search(r"\d (passed|failed)", said) or code < 0, said
        return 1 if code < 0 else int(code)

    def close(self) -> None:
        """Let it end."""
        self.process.communicate()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """On a copy of the packages, on which all tests pass."""
    folder = tmp_path_factory.mktemp("without")
    for name, package in PACKAGES.items():
        shutil.copytree(package, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with closing(Runner(folder)) as runner:
        assert all(runner.run(module, *names) == 0 for module, names in with_checks(compiled=False))
        yield runner


@pytest.fixture(scope="module")
def kernel(copy: Runner) -> Iterator[Runner]:
    """On a copy whose kernel leaves out the check that `WHICH` names; compiled for the purpose."""
    folder = copy.folder / "compiled"
    for name in PACKAGES:
        shutil.copytree(copy.folder / name, folder / name, ignore=shutil.ignore_patterns("kernel*.so", "kernel.c"))
    compiled = [row for row in pinned() if is_compiled(row[2])]
    checks = [check for _, _, check in compiled]
    for k, check in enumerate(checks, 1):
        path, condition = place(folder, check), check.code.removeprefix("if ").rstrip(":")
        missing = check.without.replace("if False:", f"if PRESENT and ({condition}):")
        assert "PRESENT" in missing, f"nothing switches {check}"
        switched = check._replace(without=missing.replace("PRESENT", f"WITHOUT != {k}"))
        path.write_text(switched.removed_from(path.read_text(encoding="utf-8")), encoding="utf-8")
    pyx = folder / "nnr_codec" / "cabac_ext" / "kernel.pyx"
    switch = Check(pyx.name, 'include "_syntax.pxi"', f'cdef int WITHOUT = int(__import__("os").environ["{WHICH}"])\n')
    pyx.write_text(
        switch._replace(without=switch.without + switch.code).removed_from(pyx.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    build = (
        "from setuptools import Extension, setup; from Cython.Build import cythonize; "
        "setup(name='kernel', packages=[], script_args=['-q', 'build_ext', '--inplace'], ext_modules=cythonize("
        "Extension('nnr_codec.cabac_ext.kernel', ['nnr_codec/cabac_ext/kernel.pyx'],"
        " include_dirs=['nnr_codec/cabac_ext'], extra_compile_args=['-O1']), quiet=True))"
    )
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    with closing(Runner(folder)) as runner:
        assert all(runner.run(module, *names) == 0 for module, names in with_checks(compiled=True))
        yield runner


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "check", "number"), rows(compiled=False))
def test_without_its_check(copy: Runner, module: ModuleType, name: str, check: Check, number: int) -> None:
    path = place(copy.folder, check)
    source = path.read_text(encoding="utf-8")
    path.write_text(check.removed_from(source), encoding="utf-8")
    try:
        assert copy.run(module, name) == 1
    finally:
        path.write_text(source, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "check", "number"), rows(compiled=True))
def test_without_its_compiled_check(kernel: Runner, module: ModuleType, name: str, check: Check, number: int) -> None:
    assert kernel.run(module, name, which=number) == 1
