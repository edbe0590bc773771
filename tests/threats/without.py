"""Runs tests again and again on a copy of the package, of which something else is missing each time.

The process has loaded what takes long, but for the package, and lets a copy of itself run each test: see
``test_checks.py``, which says on standard input what, and hears on standard output how that ended.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import json
import os
import py_compile
import resource
import sys
import tempfile

import pytest

#: Of a run.
SECONDS, BYTES = 15, 6 << 30
#: What tests import beside the package, where it is there.
HEAVY = ("numpy", "hypothesis", "ml_dtypes", "h5py", "onnx", "google.protobuf", "safetensors", "torch")
OPTIONS = (
    "-q",
    "-x",
    "--noconftest",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=--import-mode=importlib",
)


def main() -> None:
    """Answer requests, a list of tests and variables of the environment, with an exit code and what was printed."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for folder in sys.argv[1:]:  # by their content, since a file changes more than once in a second
        compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    assert "nnr_codec" not in sys.modules
    gc.freeze()  # pytest collects garbage at its end
    for line in sys.stdin:
        tests, environment = json.loads(line)
        with tempfile.TemporaryFile("w+") as said:
            pid = os.fork()
            if not pid:
                _run(tests, environment, said.fileno())
            _, status = os.waitpid(pid, 0)
            said.seek(0)
            print(json.dumps([os.waitstatus_to_exitcode(status), said.read()]), flush=True)


def _run(tests: list[str], environment: dict[str, str], said: int) -> None:
    """What the copy does."""
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(said, number)
        os.environ |= environment
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        code = int(pytest.main([*OPTIONS, *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
