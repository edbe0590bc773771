"""That each threat has a test, and that the test fails without the check that it stands for.

The slow test makes a copy of the package for each check, takes the check out, and runs the test on the copy.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import nnr_codec

from . import (
    test_checkpoints,
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
    test_payloads,
    test_pytorch,
    test_sideinfo,
    test_skriptnd,
    test_tensor_files,
    test_topology,
    test_units,
    test_updates,
    test_weights,
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
)
PACKAGE = Path(nnr_codec.__file__).parent
ROOT = Path(__file__).parents[2]

#: In the kernel, all checks are taken out by one build: this variable says which of them.
WHICH = "NNR_CHECK"

#: Of a run without a check.
SECONDS, BYTES = 15, 6 << 30


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


def is_compiled(check: Check) -> bool:
    """Whether the check stands in the kernel."""
    return check.file.startswith("cabac_ext/")


def rows(compiled: bool) -> list[object]:
    """Parameters of a test."""
    chosen = [row for row in pinned() if is_compiled(row[2]) == compiled]
    return [pytest.param(*row, k, id=f"{row[1].removeprefix('test_')}-{k}") for k, row in enumerate(chosen, 1)]


def test_every_threat_has_a_test() -> None:
    numbers = {int(found[1]) for _, name, _ in threats() if (found := re.match(r"test_t(\d\d)_", name))}
    assert numbers == {*range(1, 41), *range(44, 47)}


def test_nearly_every_test_stands_for_a_check() -> None:
    without = [name for _, name, checks in threats() if not checks]
    assert len(without) < 5, without


def test_the_checks_are_there() -> None:
    for _, _, check in pinned():
        check.removed_from((PACKAGE / check.file).read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ without the check
@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, on which all tests pass."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(PACKAGE, folder / "nnr_codec", ignore=shutil.ignore_patterns("__pycache__"))
    assert all(run(folder, module) == 0 for module in MODULES)
    return folder


@pytest.fixture(scope="module")
def kernel(copy: Path) -> Path:
    """A copy whose kernel leaves out the check that `WHICH` names; compiled for the purpose."""
    folder = copy / "compiled"
    shutil.copytree(copy / "nnr_codec", folder / "nnr_codec", ignore=shutil.ignore_patterns("kernel*.so", "kernel.c"))
    compiled = [row for row in pinned() if is_compiled(row[2])]
    checks = [check for _, _, check in compiled]
    for k, check in enumerate(checks, 1):
        path, condition = folder / "nnr_codec" / check.file, check.code.removeprefix("if ").rstrip(":")
        without = check.without.replace("if False:", f"if PRESENT and ({condition}):")
        assert "PRESENT" in without, f"nothing switches {check}"
        switched = check._replace(without=without.replace("PRESENT", f"WITHOUT != {k}"))
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
    assert all(run(folder, module, which=0) == 0 for module in {module for module, _, _ in compiled})
    return folder


def run(folder: Path, *modules: ModuleType, name: str = "", which: int = 0) -> int:
    """The exit code of one test, or all, run on the package in ``folder``; 1 where it had to be ended."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))

    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", WHICH: str(which)}
    selected = [str(Path(str(module.__file__)).relative_to(ROOT)) + (name and f"::{name}") for module in modules]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        *selected,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert re.search(r"\d (passed|failed)", done.stdout) or done.returncode < 0, done.stdout + done.stderr
    return 1 if done.returncode < 0 else done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "check", "number"), rows(compiled=False))
def test_without_its_check(copy: Path, module: ModuleType, name: str, check: Check, number: int) -> None:
    path = copy / "nnr_codec" / check.file
    source = path.read_text(encoding="utf-8")
    path.write_text(check.removed_from(source), encoding="utf-8")
    try:
        assert run(copy, module, name=name) == 1
    finally:
        path.write_text(source, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "check", "number"), rows(compiled=True))
def test_without_its_compiled_check(kernel: Path, module: ModuleType, name: str, check: Check, number: int) -> None:
    assert run(kernel, module, name=name, which=number) == 1
