"""Self-test with the core set, a few vectors of each kind in the package, for installations without other vectors."""

from __future__ import annotations

import io
import tempfile
import time
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..decoder.unit import LANES
from .cases import load_cases
from .judge import by_library, judge
from .vectors import Result, summary

CORE = "core.zip"


@dataclass(frozen=True)
class SelfTest:
    """Result of a self-test.

    Parameters
    ----------
    results : tuple of Result
        Outcome of each case, with an explanation.
    seconds : float
        Wall time in seconds.
    """

    results: tuple[Result, ...]
    seconds: float

    @property
    def is_fine(self) -> bool:
        """True if all cases have the expected outcome."""
        return all(result.is_fine for result in self.results)

    def __str__(self) -> str:
        wrong = [f"{result.outcome} {result.case.id}: {result.detail}" for result in self.results if not result.is_fine]
        how = f"in lanes ({LANES[0]})" if LANES else "without lanes"
        return "\n".join([*wrong, f"{summary(self.results)}, {self.seconds:.1f} s, decoding {how}"])


def unpack(folder: Path) -> None:
    """Write the core set into a folder, which then is a folder of vectors."""
    data = resources.files(__package__).joinpath(CORE).read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)


def selftest() -> SelfTest:
    """Decode the vectors of the core set in this process and compare the results with the expected ones.

    It takes about 0.2 s (docs/reference/conformance.md). ``nnr conformance`` runs any vectors, with limits on time and
    memory.

    Returns
    -------
    SelfTest
        ``is_fine`` is true if all results are as expected; its text lists the deviations.

    Raises
    ------
    OSError
        The core set cannot be read, or unpacked into a temporary folder.
    """
    started = time.perf_counter()
    results = []
    with tempfile.TemporaryDirectory(prefix="nnr-selftest-") as folder:
        unpack(Path(folder))
        for case in load_cases(folder):
            before = time.perf_counter()
            outcome, detail = judge(case, by_library)
            results.append(Result(case, outcome, detail, time.perf_counter() - before))
    return SelfTest(tuple(results), time.perf_counter() - started)
