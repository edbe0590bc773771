"""Configuration of all tests: the check that the extension is built, and the options ``--cases`` and ``--no-skips``."""

from __future__ import annotations

import gc
import random
import re
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import nnr_codec

from .shared import SHARED

#: Permitted reasons for skips with ``--no-skips``, as regular expressions. Each needs a comment.
ALLOWED_SKIPS: tuple[str, ...] = (
    r"the package torch \(extra 'torch'\) is not installed",  # registries have builds for GPUs only, of gigabytes
    r"no libopenvx is installed",  # which no registry has
    r"the processor has no AVX2",  # for lanes; scalar code is the reference
)

# The last entry of the path: nnr_codec is the installed one, and only tools/, which is not installed, is found here.
sys.path.append(str(Path(__file__).resolve().parents[1]))

#: Initial states of random number generators of test modules, by module.
SEEDS = pytest.StashKey[dict[str, Any]]()

#: Modules in which all tests are medium, slow or heavy.
LEFT_OUT = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(medium|slow|heavy)\b", re.MULTILINE)

# A busy machine must not cause a failure. Without the slow tests, a property is tried with a tenth of its examples.
hypothesis.settings.register_profile("full", deadline=None)
hypothesis.settings.register_profile("fast", deadline=None, max_examples=10)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.addoption(
        "--cases",
        type=int,
        default=6,
        metavar="N",
        help="run N cases of a medium test (default: 6); further cases are slow; 0: run all",
    )
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="skipped tests fail, unless there is no reference material (NNR_SHARED) or conftest.py allows the reason",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Stop at once if every test would fail for the same reason."""
    config.stash[SEEDS] = {}
    hypothesis.settings.load_profile("fast" if "not slow" in config.option.markexpr else "full")
    if find_spec("nnr_codec.cabac_ext.kernel") is None:
        raise pytest.UsageError(
            f"{Path(nnr_codec.__file__).parent} has no compiled extension: pip install -e '.[dev,clients]' builds it"
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore a module if all its tests have a mark that this run excludes: importing it takes seconds, or packages."""
    if collection_path.suffix != ".py" or "not " not in config.option.markexpr:
        return None
    found = LEFT_OUT.search(collection_path.read_text("utf-8"))
    return (found is not None and f"not {found[1]}" in config.option.markexpr.split(" and ")) or None


def pytest_sessionstart() -> None:
    """Disable garbage collection while tests are collected."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move slow tests to the front, and mark further cases of medium tests as slow (``--cases``)."""
    # Otherwise a worker may begin a test of minutes when the others have no more work.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    cases: dict[str, list[pytest.Item]] = {}
    count = 0 if config.option.keyword else config.option.cases  # -k selects cases
    for item in items if count else ():
        if item.get_closest_marker("medium") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, group in cases.items():
        # At random, because the cases of a product of parameters are periodic; the choice is always the same.
        for item in random.Random(name).sample(group, max(len(group) - count, 0)):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exclude the collected tests, which stay until the end, from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run the tests of single files in this process, because workers take longer to start."""
    return 0 if all(".py" in argument for argument in config.args) else None


def pytest_report_header() -> list[str]:
    """Describe the tested build and its environment."""
    return [f"nnr_codec {nnr_codec.__version__}: {Path(nnr_codec.__file__).parent}", f"reference material: {SHARED}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded as "figure: description"; numbers with one description are added."""
    figures: dict[str, object] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name.startswith("figure: ") and getattr(report, "when", "") == "call":
                before = figures.get(name, 0)
                figures[name] = before + value if isinstance(before, int) and isinstance(value, int) else value
    if figures:
        terminalreporter.section("figures")
    for name, value in figures.items():
        number = f"{value:,}" if isinstance(value, int) else value
        terminalreporter.write_line(f"{name.removeprefix('figure: ')}: {number}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the RNG of a module give each test the same numbers, independently of earlier tests in this process."""
    module = getattr(item, "module", None)
    if rng := getattr(module, "RNG", None):
        rng.bit_generator.state = item.config.stash[SEEDS].setdefault(module.__name__, rng.bit_generator.state)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Turn a skip into a failure if ``--no-skips`` is given."""
    if not config.getoption("--no-skips") or SHARED is None or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {reason} (--no-skips)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Handle skips of tests."""
    report = yield
    refuse_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Handle skips of whole modules."""
    report = yield
    refuse_skip(report, collector.config)
    return report
