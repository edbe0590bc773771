"""Seeds, mutants and campaigns: they have the required properties, detect planted faults, and have no findings."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_DFL
from nnr_codec.syntax import tables

from ..shared import every
from . import campaign as campaigns
from . import mutate, results, seeds, trial
from .campaign import Campaign, mutator_of, part

pytestmark = [
    pytest.mark.medium,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is taken from /proc"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # of fork
]

#: Number of mutants of each kind in the fast test.
COUNT = int(os.environ.get("NNR_MUTANTS", "1500"))


@pytest.fixture(scope="module")
def mutator() -> mutate.Mutator:
    """Return the mutator of all seeds."""
    return mutator_of(seeds.corpus())


def small() -> Campaign:
    """Return a campaign with few seeds."""
    return Campaign("structure", 5, mutator_of(list(seeds.built(12))))


# ------------------------------------------------------------------------------------------------ seeds and mutants
@pytest.mark.slow
def test_seeds(mutator: mutate.Mutator, record_property: Callable[[str, object], None]) -> None:
    corpus = mutator.seeds
    assert len(corpus) >= 300
    assert max(len(seed.data) for seed in corpus) < 2048
    assert len({seed.name for seed in corpus}) == len(corpus)
    assert len(mutator.live) >= 300
    record_property(
        "figure: seeds of mutation, and how many of them reach the kernel", f"{len(corpus)}, {len(mutator.live)}"
    )


@pytest.mark.slow
def test_seeds_take_every_branch_of_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    data, report, file = tmp_path / "coverage", tmp_path / "report.json", tables.__file__
    root = Path(__file__).parents[2]
    run = [sys.executable, "-m", "coverage"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    # the installed package precedes the sources
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{Path(nnr.__file__).parents[1]}{os.pathsep}{root}"}
    for command in (
        [*run, "run", "--branch", f"--include={file}", f"--data-file={data}", "-m", "tests.fuzz.seeds"],
        [*run, "json", "-q", f"--data-file={data}", f"--include={file}", "-o", str(report)],
    ):
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (measured,) = json.loads(report.read_text())["files"].values()
    assert measured["missing_lines"] == []
    assert measured["missing_branches"] == []
    assert measured["summary"]["covered_branches"] > 100


def test_parsed_units_are_assembled_again(mutator: mutate.Mutator) -> None:
    """Fields and structures are restored bit by bit, also for nested aggregates with a number of units."""
    complete = Counter[bool]()
    for seed in mutator.seeds[:: every(5)]:
        pieces = mutate.pieces_of(seed)
        for piece in pieces:
            if piece.header:
                assert mutate.packed(piece.fields) == piece.head, seed.name
                again = piece.copy()
                mutate.rewrite(again, piece.session, random.Random(0))
                assert again.head == piece.head, seed.name
        complete[mutate.assembled(pieces, random.Random(0)) == seed.data] += 1
    assert complete[False] < 10 < complete[True] / 10


@pytest.mark.parametrize("kind", results.KINDS)
def test_mutants_are_the_same_again_and_differ(mutator: mutate.Mutator, kind: str) -> None:
    campaign, other = Campaign(kind, 0, mutator), Campaign(kind, 1, mutator)
    numbers = list(range(0, 40_000, 199))
    mutants = {number: campaign.input(number)[0].data for number in numbers}
    assert {number: campaign.input(number)[0].data for number in reversed(numbers)} == mutants
    assert len(set(mutants.values())) > 0.95 * len(numbers)
    assert not any(mutant.data == mutant.seed.data for mutant, _ in map(campaign.input, numbers))
    assert sum(other.input(number)[0].data == data for number, data in mutants.items()) < 0.05 * len(numbers)
    assert max(map(len, mutants.values())) <= mutate.LARGEST


@pytest.mark.parametrize(("kind", "share"), [("structure", 0.3), ("bytes", 0.05)])
def test_mutants_are_decoded_or_refused(
    mutator: mutate.Mutator, kind: str, share: float, record_property: Callable[[str, object], None]
) -> None:
    tally = Campaign(kind, 0, mutator).run(range(COUNT))
    assert tally.findings == []
    assert tally.outcomes.total() == tally.ways.total() == COUNT
    assert tally.in_kernel >= share * COUNT
    assert len(tally.outcomes) >= 6
    assert set(tally.ways) == {way for way, (_, share) in trial.WAYS.items() if share}
    record_property(
        f"figure: mutants by {kind}, and how many reach the kernel", f"{COUNT}, {tally.in_kernel / COUNT:.0%}"
    )


# ------------------------------------------------------------------------------------------------ planted faults
def planted(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object], every: int = 7) -> None:
    """Cause a fault for each input whose length is a multiple of a number."""
    intact, inspect = trial.attempt, trial.WAYS["inspect"]

    def attempt(mutant: mutate.Mutant, rnd: random.Random, *rest: Any) -> trial.Result:
        if len(mutant.data) % every == 0:
            monkeypatch.setattr(trial, "WAYS", {"fault": (lambda *_: fault(), 1)})
        else:
            monkeypatch.setattr(trial, "WAYS", {"inspect": inspect})
        return intact(mutant, rnd, *rest)

    monkeypatch.setattr(campaigns, "attempt", attempt)


def hurt(campaign: Campaign, numbers: range, every: int = 7) -> list[int]:
    """Return the inputs with the fault."""
    return [number for number in numbers if len(campaign.input(number)[0].data) % every == 0]


def faults() -> dict[str, tuple[Callable[[], object], str]]:
    """Return possible faults of a decoder, and the text of their findings."""

    def warn() -> None:
        np.float32(3e38) * np.float32(10)

    def refuse(message: str) -> None:
        raise nnr.LimitError(message)

    class Burden:
        def __del__(self) -> None:
            raise ZeroDivisionError

    return {
        "exception": (lambda: 1 // 0, "ZeroDivisionError"),
        "warning": (warn, "overflow encountered"),
        "memory": (lambda: np.ones(160 << 17), "MemoryError"),
        "memory that is not touched": (lambda: np.empty(160 << 17), "MemoryError"),
        "no memory": (lambda: refuse("not enough memory for the tensor"), "not enough memory"),
        "destructor": (lambda: bool(Burden()), "nobody could catch ZeroDivisionError"),
        "message": (lambda: refuse("\x1b[2J"), "a message that no terminal should see"),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "exception" else pytest.mark.slow) for name in faults()]
)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    campaign, numbers = small(), range(80)
    fault, words = faults()[name]
    planted(monkeypatch, fault, every=17)
    tally = part(campaign, numbers, 1)
    assert [number for number, _ in tally.findings] == hurt(campaign, numbers, 17) != []
    assert all(words in problem for _, problem in tally.findings)
    assert tally.outcomes.total() == len(numbers)


def test_what_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> None:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    monkeypatch.setattr(campaigns, "SECONDS", 0.05)
    campaign, numbers = small(), range(30)
    planted(monkeypatch, busy)
    tally = part(campaign, numbers, 1)
    assert [number for number, _ in tally.findings] == hurt(campaign, numbers)
    assert tally.slowest[1] in hurt(campaign, numbers)
    assert "s of processor time" in tally.findings[0][1]


def test_progress_is_reported_from_the_first_input_on() -> None:
    progress = get_context("fork").Value("q", 0, lock=False)
    small().run(range(3), progress)
    assert progress.value == 2


@pytest.mark.parametrize("how", ["ends", "hangs"])
@pytest.mark.slow
def test_what_ends_or_blocks_the_process_is_found(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    campaign, numbers = small(), range(60)
    monkeypatch.setattr(campaigns, "STUCK", 0.5)
    planted(
        monkeypatch,
        (lambda: os.kill(os.getpid(), signal.SIGKILL)) if how == "ends" else (lambda: time.sleep(60)),
        every=41,
    )
    tally = part(campaign, numbers, 2)
    assert [number for number, _ in sorted(tally.findings)] == hurt(campaign, numbers, 41) != []
    assert all(how in problem for _, problem in tally.findings)
    assert tally.outcomes["crash"] == len(tally.findings)
    assert tally.outcomes.total() == len(numbers)


def test_a_mistake_of_the_campaign_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = small()
    monkeypatch.setattr(campaigns, "attempt", None)
    with pytest.raises(RuntimeError, match=r"(?s)input \d+: .*NoneType"):
        part(campaign, range(20), 1)


# ------------------------------------------------------------------------------------------------ results
@pytest.mark.slow
def test_a_campaign_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = small()
    monkeypatch.setattr(campaigns, "mutator_of", lambda seeds: campaign.mutator)
    monkeypatch.setattr(campaigns, "CHUNK", 20)
    planted(monkeypatch, lambda: 1 // 0, every=20)
    file, found = tmp_path / "results", tmp_path / "found"
    common = [f"--results={file}", f"--findings={found}", "--seed=5", "--part=50", "--jobs=2"]
    campaigns.main([*common, "--count=100"])
    campaigns.main([*common, "--count=130"])
    campaigns.main([*common, "--count=40", "--kind=bytes"])
    lines = results.read(file)
    assert [(line["kind"], line["first"], line["inputs"]) for line in lines] == [
        ("structure", 0, 50),
        ("structure", 50, 50),
        ("structure", 100, 30),
        ("bytes", 0, 40),
    ]
    wrong = hurt(campaign, range(130), 20)
    assert [number for line in lines[:3] for number in line["findings"]] == wrong != []
    number = wrong[0]
    kept = found / f"structure-5-{number}.nnr"
    assert kept.read_bytes() == campaign.input(number)[0].data
    assert "ZeroDivisionError" in kept.with_suffix(".txt").read_text()
    assert len(list(found.glob("structure-*.nnr"))) < len(wrong)
    capsys.readouterr()
    campaigns.main([*common, f"--only={number}"])
    assert kept.read_bytes().hex() in capsys.readouterr().out
    assert results.merged(lines, lines[::-1]) == [lines[3], *lines[:3]]
    assert "| by structure | 130 | 5 |" in results.tables(lines)


def test_the_page_has_the_results() -> None:
    lines, text = results.read(results.RESULTS), results.PAGE.read_text("utf-8")
    assert lines == results.merged(lines)
    assert results.page(text, lines) == text
    for line in lines:
        for number in line["findings"]:  # the page names each finding, which is fixed
            assert f"`{line['kind']} {line['seed']} {number}`" in text
        assert sum(line["outcomes"].values()) == sum(line["ways"].values()) == line["inputs"]
        if line["kind"] == "structure":
            assert line["kernel"] >= 0.3 * line["inputs"]
        if not line["sanitized"]:
            assert line["slowest"][0] < 1


# ------------------------------------------------------------------------------------------------ earlier findings
def test_constant_tensors_are_compared_once() -> None:
    """`verify` took 1.6 s for 75 bytes: three constant tensors of 16 million parameters."""
    from ..builder import Bitstream, codebook, ndu

    header = ndu("w", [40, 30], unary=0, codebook_present_flag=1, codebook=codebook([70001], 0))
    stream = Bitstream().str_().mps(7).ndu(header, np.zeros((40, 30), int), qp=127)
    (violation,) = nnr.verify(stream.data).violations
    assert violation.requirement == "float-exact"
    assert "1200 of 1200 values" in violation.message


def test_topologies_are_read_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` took 11 s for 1,857 bytes, which inflate to a graph of 100,000 operations, and `StreamDecoder` 3 s."""
    from nnr_codec.formats.nnef import graph, validate

    from ..builder import Bitstream

    def bitstream(count: int) -> bytes:
        text = b"version 1.0;\ngraph g(x) -> (y)\n{ x = external(shape = [1]); y = relu(x);" + b"y=relu(x);" * count
        return Bitstream().str_().mps().topology(zlib.compress(text + b"}\0"), compression=NNR_DFL).data

    data = bitstream(13_100)
    assert len(data) < mutate.LARGEST
    with pytest.raises(nnr.LimitError, match="max_topology_bytes"):
        nnr.StreamDecoder(limits=seeds.STRICT).feed(data)
    assert [found.requirement for found in nnr.verify(data, limits=seeds.STRICT).violations] == ["limits"]
    read = []
    for module in (graph, validate):
        intact = module.parse
        monkeypatch.setattr(module, "parse", lambda *given, intact=intact: (read.append(1), intact(*given))[1])
    nnr.verify(bitstream(10), limits=seeds.STRICT)
    assert len(read) == 2  # once for its tensors, once for its rules
