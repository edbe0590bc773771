"""That each threat has a test, and that a test fails without each guard that refuses something in the tests of a file.

Nobody lists the guards: `tools.faults` finds them in the source of the package, and the tests show which they reach.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.faults import Copy

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path != Path(__file__)}

#: Guards without which all tests of a file pass, with the reason, by the file.
NOT_NEEDED: dict[str, dict[str, str]] = {}


def test_every_threat_has_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FILES.values()]
    assert {int(number) for text in texts for number in re.findall(r"def test_t(\d\d)_", text)} == {*range(1, 47)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which guards can be switched off, the same in all workers of pytest."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(base / "switched.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "switched").exists():
            copy = Copy(base / "switched")
            copy.switch(".pyx")
            copy.switch(".pxi")
            assert all(copy.build(f"nnr_codec/cabac_ext/{name}.pyx") for name in ("kernel", "bits"))
    return base / "switched"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_test_of_the_file_fails_without_each_guard_that_refuses(folder: Path, tmp_path: Path, name: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT))),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "NNR_FIRED": str(tmp_path / "fired"),
    }
    command = [sys.executable, "-m", "tests.threats.without", str(FILES[name])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    fails, idle = json.loads(done.stdout.splitlines()[-1])
    assert {guard for guard, test in fails.items() if not test} == {*NOT_NEEDED.get(name, {})}
