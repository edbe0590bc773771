"""Each threat has a test, and for each guard that rejects something while tests run, a test fails without it.

The guards are not listed: `tools.faults` finds them in the source, and the tests show which guards they reach.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

from tools.faults import Copy, every_fault

ROOT = Path(__file__).parents[2]
THREATS = {path.stem: path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path != Path(__file__)}
#: Files of tests, roughly the longest first, without tests of messages, whichever guard rejects, and of memory.
FILES = sorted({*THREATS} - {"test_display", "test_strict"}, key=lambda name: -THREATS[name].stat().st_size)

#: Guards against wrong options, which tests reach by chance.
OF_OPTIONS = re.compile(r"nnr_cli/|nnr_codec/(config|topics)\.py|nnr_codec/encoder/")

#: Guards that no test needs, with reasons.
NOT_NEEDED = {
    "what follows refuses the same input, with another message": {
        "nnr_codec/formats/diagnosis.py::diagnosed::handler-1",
        "nnr_codec/bitstream/unit_index.py::read_index::handler-2",
        "nnr_codec/bitstream/units.py::UnitReader._unit::guard-4",
        "nnr_codec/cabac_ext/kernel.pyx::__init__::guard-7",
        "nnr_codec/decoder/decode.py::BitstreamParser.finish::guard-1",
        "nnr_codec/formats/nnef/graph.py::read_graph::guard-1",
        "nnr_codec/formats/nnef/lexer.py::Lexer.expect::guard-1",
        "nnr_codec/formats/pytorch/pickles.py::_bytes::guard-1",
        "nnr_codec/formats/pytorch/pickles.py::_run::guard-1",
        "nnr_codec/formats/pytorch/pickles.py::_run::handler-1",
        "nnr_codec/formats/openvino/ir.py::_IrReader._type::limit-1",
    },
    "the table's own function decides where the compiled one differs": {
        "nnr_codec/syntax/compiled.py::_check::guard-1",
    },
    "test_model_files asks where names lead, and accepts any refusal": {
        "nnr_codec/formats/companion_files.py::located::handler-1",
        "nnr_codec/formats/companion_files.py::located::handler-2",
        "nnr_codec/formats/keras/archive.py::_add::guard-1",
        "nnr_codec/formats/keras/archive.py::_infos::limit-3",
        "nnr_codec/formats/keras/hdf5.py::_Hdf5Reader._object::guard-2",
        "nnr_codec/formats/nnef/container.py::_open_below::guard-1",
        "nnr_codec/formats/nnef/container.py::_open_below::guard-2",
        "nnr_codec/formats/nnef/container.py::_open_below::handler-1",
        "nnr_codec/formats/nnef/graph.py::_label::guard-2",
        "nnr_codec/formats/nnef/lexer.py::Lexer.lex::guard-1",
        "nnr_codec/formats/nnef/parser.py::_Parser.comma::guard-1",
        "nnr_codec/formats/nnef/parser.py::_parser::check-2",
        "nnr_codec/formats/nnef/tensorfile.py::_parsed::guard-1",
        "nnr_codec/formats/npz.py::_member::guard-1",
        "nnr_codec/formats/openvino/__init__.py::save::check-1",
        "nnr_codec/formats/pytorch/saving.py::_checked::guard-1",
        "nnr_codec/formats/registry.py::check_topology::guard-1",
        "nnr_codec/formats/safetensors/header.py::_entry::guard-4",
        "nnr_codec/formats/safetensors/header.py::_entry::limit-1",
        "nnr_codec/formats/safetensors/header.py::parse_object::guard-1",
        "nnr_codec/formats/safetensors/header.py::read_header::guard-1",
        "nnr_codec/formats/skriptnd/__init__.py::check_place::guard-1",
        "nnr_codec/formats/diagnosis.py::diagnose::guard-1",
    },
    "channels that one rule does not lose are lost by another, or stay in a larger group": {
        "nnr_codec/formats/nnef/shapes.py::_reshape::guard-4",
        "nnr_codec/topology/channels.py::_Walk.convolved::guard-1",
        "nnr_codec/topology/channels.py::_Walk.elementwise::guard-1",
        "nnr_codec/topology/channels.py::_Walk.flatten::guard-1",
        "nnr_codec/topology/channels.py::_Walk.reshaped::guard-1",
        "nnr_codec/topology/channels.py::_Walk.transpose::guard-1",
    },
}

#: The test that fails without each guard, if any, and the tests in which no guard rejects anything.
Result = tuple[dict[str, str], list[str]]


def test_every_threat_has_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in THREATS.values()]
    assert {int(number) for text in texts for number in re.findall(r"def test_t(\d\d)_", text)} == {
        *range(1, 47),
        48,
        52,
        53,
    }


def test_guards_that_are_not_needed_exist() -> None:
    assert {fault.name for fault in every_fault()} >= set().union(*NOT_NEEDED.values())


@contextmanager
def once(path: Path) -> Iterator[bool]:
    """Yield whether this worker of pytest must make a file or folder; the others wait for it."""
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not path.exists()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Return the result of a test file on a copy of the package in which guards can be disabled."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with once(base / "switched") as is_absent:
        if is_absent:
            (base / "needed").touch()  # names of checks, which the runs of all files share
            copy = Copy(base / "switched")
            copy.switch(".pyx", ".pxi")
            assert all(copy.build(f"nnr_codec/cabac_ext/{name}.pyx") for name in ("kernel", "bits"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (base / "switched", ROOT))),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }

    def get(name: str) -> Result:
        with once(base / f"{name}.json") as is_absent:
            if is_absent:
                done = subprocess.run(
                    [sys.executable, "-m", "tests.threats.without", str(THREATS[name]), str(base / f"{name}.json")],
                    cwd=ROOT,
                    env=environment | {"NNR_FIRED": str(base / f"{name}.fired"), "NNR_NEEDED": str(base / "needed")},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, done.stdout + done.stderr
        fails, idle = json.loads((base / f"{name}.json").read_text(encoding="utf-8"))
        return fails, idle

    return get


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_tests_of_a_file_fail_without_guards(result: Callable[[str], Result], name: str) -> None:
    fails, _ = result(name)
    assert any(fails.values())


@pytest.mark.slow
def test_a_test_fails_without_each_guard_that_refuses(result: Callable[[str], Result]) -> None:
    pytest.importorskip("h5py", reason="the package h5py (extra 'keras') is not installed")
    found = list(chain.from_iterable(result(name)[0].items() for name in FILES))
    reached, needed = {guard for guard, _ in found}, {guard for guard, test in found if test}
    listed = set().union(*NOT_NEEDED.values())
    # Tests of a listed guard may fail without it on a slow machine, by their limit of CPU time.
    assert {guard for guard in reached if not OF_OPTIONS.match(guard)} - needed <= listed


@pytest.mark.slow
def test_a_guard_refuses_in_nearly_every_test_of_a_threat(result: Callable[[str], Result]) -> None:
    tests = list(chain.from_iterable(result(name)[1] for name in FILES))
    idle = [test for test in tests if re.search(r"::test_t\d", test)]
    assert len(idle) < 25, idle
