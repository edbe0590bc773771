"""The targets without a fuzzer: all their seeds, and some mutants of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..soon import soon
from . import targets
from .targets import support

#: Numbers of unchanged seeds and of mutants for each target.
SEEDS, MUTANTS = 60, 60


def mutant(seed: bytes, rnd: random.Random) -> bytes:
    """Return a copy with a few bytes changed, removed or inserted."""
    data = bytearray(seed)
    for _ in range(rnd.choice((1, 1, 2, 5))):
        at, kind = rnd.randrange(len(data) + 1), rnd.randrange(4)
        if kind == 0:
            data[at:at] = rnd.randbytes(rnd.randrange(4))
        elif kind == 1:
            del data[at : at + rnd.randrange(5)]
        else:
            data[at : at + 1] = bytes([data[at] ^ 1 << rnd.randrange(8) if at < len(data) else 0])
    return bytes(data)


def inputs(name: str) -> Iterator[bytes]:
    """Return seeds of a target in random order, and mutants."""
    rnd = random.Random(name)
    seeds = list(targets.load(name).seeds())
    yield from rnd.sample(seeds, min(len(seeds), SEEDS))
    for _ in range(MUTANTS):
        yield mutant(rnd.choice(seeds), rnd)


@pytest.mark.medium
@pytest.mark.parametrize("name", targets.NAMES)
def test_target(name: str, record_property: Callable[[str, object], None]) -> None:
    target, count = targets.load(name).target, 0
    for data in inputs(name):
        soon(lambda data=data: target(data), 5, f"{name} {data.hex()}")
        count += 1
    record_property("figure: inputs of the fuzzer's targets", count)


def test_every_module_is_a_target() -> None:
    modules = {path.stem for path in Path(targets.__file__).parent.glob("[a-z]*.py")}
    assert modules == {*targets.NAMES, "support"}


def test_outcomes_that_are_findings() -> None:
    with support.harmless():
        raise support.nnr.FormatError("one line")
    for error in (ValueError("x"), support.nnr.FormatError("two\nlines"), RecursionError(), UserWarning("x")):
        with pytest.raises((AssertionError, type(error))), support.harmless():
            raise error


def test_parts_of_an_input() -> None:
    assert support.parted(support.joined(b"a", b"", b"b\n"), 3) == [b"a", b"", b"b\n"]
    assert support.parted(b"a", 3) == [b"a", b"", b""]
    assert support.parted(support.joined(b"a", b"b", b"c"), 2) == [b"a", support.joined(b"b", b"c")]
