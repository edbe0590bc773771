"""The first of the tensors on which kernel and plain implementation agree: ``python -m tests.cabac.million``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nnr_codec.cabac_ext.kernel import lane_engines
from nnr_codec.syntax import deepcabac

from . import million

#: Number of payloads, and tools that their tensors have.
COUNT = 1500
TOOLS = {
    "profile 0",
    "profile 1",
    "first edition",
    "dependent quantization",
    *(f"scan order {k}" for k in range(5)),
    "codebook",
    "codebook of one sign",
    "temporal contexts",
    "history contexts",
    "skipped rows",
    "shift parameter ids",
    "levels of more than 16 bits",
    "entry points",
    "payloads of several tensors",
    "payloads compared bin by bin",
    *(f"tensors in lanes, {engine}" for engine in lane_engines()),
}


@pytest.mark.medium
def test_the_first_ones(record_property: Callable[[str, object], None]) -> None:
    seen = million.batch(0, 0, COUNT)
    assert seen["payloads"] == COUNT
    assert not [tool for tool in TOOLS if seen[tool] < COUNT / 50]
    record_property("figure: random tensors on which kernel and plain implementation agree", seen["tensors"])


def test_a_number_is_always_the_same_payload() -> None:
    assert million.payload_of(3, 77) == million.payload_of(3, 77)
    assert million.payload_of(3, 77) != million.payload_of(4, 77)
    assert million.batch(1, 0, 20) == million.batch(1, 0, 10) + million.batch(1, 10, 20)


def test_it_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed transition of the states is detected, and the payload is named."""
    table = list(deepcabac.TRANSITION_TABLE)
    table[20] += 16
    monkeypatch.setattr(deepcabac, "TRANSITION_TABLE", tuple(table))
    with pytest.raises(AssertionError) as caught:
        million.batch(0, 0, 100)
    assert any("of seed 0: --seed 0 --first" in note for note in caught.value.__notes__)
