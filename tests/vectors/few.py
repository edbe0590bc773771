"""Tests that loop over all vectors: a parameter for each vector takes longer to collect than to run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nnr_codec.conformance.cases import Case, load_cases

from ..shared import every
from .case import GROUPS

#: Vectors that together reach nine tenths of the syntax, chosen greedily: each adds the most new elements.
#: test_vectors.py measures the share.
_FEW = {
    "NNR-3GP": "015 016 018",
    "NNR-ACC": "005 006 017 019 035 115 215",
    "NNR-BLK": "014 020",
    "NNR-CAB": "005 021",
    "NNR-NEF": "021 027",
    "NNR-NEG": "090 105 128 902",
    "NNR-QNT": "015 028 032 033",
    "NNR-SID": "005 060 071 206",
    "NNR-SYN": "021 023 027 028 032 033 040 045 047 108 201",
    "NNR-TEN": "024",
    "NNR-UPD": "012 014 021 203",
}
FEW = {f"{group}-{number}" for group, numbers in _FEW.items() for number in numbers.split()}

ROOT = Path(__file__).resolve().parents[2] / "bitstream_vectors"

#: The project's own vectors, by id.
ON_DISK = {case.id: case for case in load_cases(ROOT) if case.group in GROUPS.values()}


def cases(*results: str) -> dict[str, Case]:
    """Return the project's own vectors that have one of these results, by folder and id."""
    return {f"{case.group}/{case.id}": case for case in ON_DISK.values() if case.result in results}


def some(*results: str) -> dict[str, Case]:
    """Return the project's own vectors that have one of these results; without the slow tests, only those of `FEW`."""
    return {name: case for name, case in cases(*results).items() if every(2) == 1 or case.id in FEW}


def for_each(items: Mapping[str, Any], rest: str) -> Callable[[Callable[[Any], None]], Any]:
    """Return a decorator that runs the test of one item on all items.

    The items of `FEW` are one parameter of the test. The others are one parameter for each folder.

    Parameters
    ----------
    items : mapping of str to object
        By path; the first part is the folder, and a part may be the id of a vector. An error names the path.
    rest : str
        The mark of the others: ``medium`` or ``slow``.
    """
    chunks: dict[str, dict[str, Any]] = {}
    for name, item in items.items():
        parts = name.split("/")
        chunks.setdefault("few" if FEW.intersection(parts) else parts[0], {})[name] = item
    parameters = [
        pytest.param(chunk, id=name, marks=() if name == "few" else getattr(pytest.mark, rest))
        for name, chunk in chunks.items()
    ]

    def decorate(check: Callable[[Any], None]) -> Callable[[dict[str, Any]], None]:
        def test(chunk: dict[str, Any]) -> None:
            for name, item in chunk.items():
                try:
                    check(item)
                except BaseException as error:  # the exception of pytest.fail is not an Exception
                    error.add_note(f"vector: {name}")
                    raise

        functools.update_wrapper(test, check)
        del test.__wrapped__  # otherwise pytest requests the parameters of check
        return pytest.mark.parametrize("chunk", parameters)(test)

    return decorate
