"""The core set: some vectors of each kind that the package brings along, for installations without the others."""

from __future__ import annotations

import io
import tempfile
import time
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from .cases import load_cases
from .judge import by_library, judge
from .vectors import Result, summary

CORE = "core.zip"


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found.

    Parameters
    ----------
    results : tuple of Result
        Of each case, with its outcome and why.
    seconds : float
        Wall time.
    """

    results: tuple[Result, ...]
    seconds: float

    @property
    def is_fine(self) -> bool:
        """Whether all cases came out as expected."""
        return all(result.is_fine for result in self.results)

    def __str__(self) -> str:
        wrong = [f"{result.outcome} {result.case.id}: {result.detail}" for result in self.results if not result.is_fine]
        return "\n".join([*wrong, f"{summary(self.results)}, {self.seconds:.1f} s"])


def unpack(folder: Path) -> None:
    """Write the core set into a folder, which is then one of vectors."""
    data = resources.files(__package__).joinpath(CORE).read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)


def selftest() -> SelfTest:
    """Decode the vectors of the core set with this installation, in this process, and compare what comes of them.

    It takes well under a second. ``nnr conformance`` runs any number of vectors, with limits of time and memory.

    Returns
    -------
    SelfTest
        ``is_fine`` says whether all is as expected; printed, it says what is not.

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
