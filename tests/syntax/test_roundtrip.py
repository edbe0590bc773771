"""Every table, with random structures and sessions: write, read, write; counted size; gapless traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnr_codec.constants import NNR_STR
from nnr_codec.syntax import TABLES, BitReader, BitWriter, Descriptor, Reader, Session, Writer, tables
from nnr_codec.syntax.structures import NnrStartUnitHeader, NnrUnitHeader

from .samples import PER_TABLE, count, samples, write

pytestmark = pytest.mark.medium


class Recorder:
    """Trace that keeps the coded elements, without the structures around them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int, int, Any]] = []

    def __call__(self, path: str, descriptor: Descriptor, bit: int, size: int, value: Any) -> None:
        if descriptor.kind != "struct":
            self.events.append((path, repr(descriptor), bit, size, value))

    def assert_gapless(self, size: int) -> None:
        """Check that each of ``size`` bits belongs to exactly one element, in order."""
        end = 0
        for _path, _descriptor, bit, bits, _value in self.events:
            assert bit == end
            end += bits
        assert end == size


@pytest.mark.parametrize("name", TABLES)
def test_random_structures(name: str, record_property: Callable[[str, object], None]) -> None:
    total = 0
    for seed, (structure, session) in enumerate(samples(name)):
        bits, written, got = BitWriter(), Recorder(), Recorder()
        Writer(session, bits, written).write(structure)
        data = bits.getvalue()
        source = BitReader(data)
        again = Reader(session, source, got).read(type(structure))

        assert again == structure, seed
        assert list(again.present()) == list(structure.present()), seed
        assert write(again, session) == data, seed
        assert source.pos == bits.pos == count(structure, session), seed
        written.assert_gapless(bits.pos)
        got.assert_gapless(bits.pos)
        assert [event[1:] for event in written.events] == [event[1:] for event in got.events], seed
        total += bits.pos
    record_property("figure: random structures written, read and written again", PER_TABLE)
    record_property("figure: their bits, counted and each traced once", total)


@pytest.mark.slow  # it has all samples
@pytest.mark.parametrize("name", TABLES)
def test_samples_differ(name: str) -> None:
    """The samples must not repeat a few structures, nor keep an element at one value."""
    cls = TABLES[name]
    structures = [structure for structure, _session in samples(name)]
    for element in cls.elements:
        values = [structure.present()[element] for structure in structures if element in structure]
        if (name, element) == ("nnr_topology_unit_payload", "topology_elem_id_index_list"):
            assert not values  # its table codes no indices
            continue
        assert len(set(map(repr, values))) > 1, element
        if element in cls.lists:
            assert len(set(map(len, values))) > 1, element
    if cls.elements:
        assert len(set(map(repr, structures))) > 50


def test_reader_and_writer_trace_the_same_paths() -> None:
    header = NnrUnitHeader(nnr_unit_type=NNR_STR, detail=NnrStartUnitHeader(general_profile_idc=1))
    bits, written, got = BitWriter(), Recorder(), Recorder()
    Writer(Session(), bits, written).write(header)
    Reader(Session(), BitReader(bits.getvalue()), got).read(NnrUnitHeader)
    assert [event[0] for event in got.events][-1] == "nnr_start_unit_header.general_profile_idc"
    assert written.events == got.events


@pytest.mark.slow
def test_samples_take_every_branch(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    pytest.importorskip("coverage")
    data, report = tmp_path / "coverage", tmp_path / "report.json"
    root = Path(__file__).parents[2]
    run = [sys.executable, "-m", "coverage"]
    test = f"{Path(__file__).relative_to(root).as_posix()}::test_random_structures"
    measured = [*run, "run", "--branch", f"--include={tables.__file__}", f"--data-file={data}", "-m", "pytest"]
    # the settings of an enclosing run do not apply to the inner one
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST", "NNR_S"))}
    environment["PYTHONSAFEPATH"] = "1"  # otherwise the folder of the sources would precede the installed package
    for command in (
        [*measured, "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", test],
        [*run, "json", "-q", f"--data-file={data}", f"--include={tables.__file__}", "-o", str(report)],
    ):
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (file,) = json.loads(report.read_text())["files"].values()
    covered, branches = file["summary"]["covered_branches"], file["summary"]["num_branches"]
    percent = f"{covered / branches:.2%} of {branches} branches"
    record_property(f"figure: {Path(tables.__file__).name}, covered by random structures", percent)
    assert file["missing_lines"] == []
    assert file["missing_branches"] == []
    assert covered == branches > 100
