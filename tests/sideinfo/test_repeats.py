"""Copies of items, against a slow definition on lists of values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnr_codec.dtypes import STORED_TYPES, StoredType
from nnr_codec.errors import ElementError
from nnr_codec.sideinfo.codes import join, split
from nnr_codec.sideinfo.record import RawCode, Repeats, TensorRecord

from ..shared import examples

Array = npt.NDArray[np.generic]
each_type = pytest.mark.parametrize("stored", STORED_TYPES.values(), ids=lambda stored: stored.name)


def negated(stored: StoredType, pattern: int) -> int:
    """Return the pattern of the negative."""
    if stored.kind == "f":
        return pattern ^ 1 << (stored.bits - 1)
    return -pattern % (1 << 8 * stored.itemsize)


def slow(stored: StoredType, kept: list[int], repeats: Repeats) -> list[int]:
    """Return the items of a tensor, one after the other."""
    rest, items = iter(kept), []
    runs = zip(repeats.kept, repeats.length, repeats.distance, repeats.change, strict=True)
    for count, length, distance, change in runs:
        items += [next(rest) for _ in range(count)]
        first = len(items) - distance
        for k in range(length):
            item = items[first + (length - 1 - k if change & 1 else k)]
            items.append(negated(stored, item) if change & (4 if k % 2 else 2) else item)
    return items + list(rest)


@st.composite
def run_lists(draw: st.DrawFn, changes: int) -> tuple[Repeats, int]:
    """Draw valid runs, and the number of items of the tensor."""
    kept, lengths, distances, change, size = [], [], [], [], 0
    for k in range(draw(st.integers(1, 5))):
        kept.append(draw(st.integers(int(not k), 4)))
        size += kept[-1]
        distances.append(draw(st.integers(1, size)))
        lengths.append(draw(st.integers(1, distances[-1])))
        change.append(draw(st.integers(0, changes)))
        size += lengths[-1]
    return Repeats(tuple(kept), tuple(lengths), tuple(distances), tuple(change)), size + draw(st.integers(0, 3))


@each_type
@settings(max_examples=examples(20))
@given(data=st.data())
def test_copies_equal_the_definition(stored: StoredType, data: st.DataObject) -> None:
    repeats, size = data.draw(run_lists(7 if stored.kind in "fi" else 1))
    columns = data.draw(st.sampled_from([None, *(n for n in range(1, size + 1) if size % n == 0)]))
    most = 1 << (stored.bits - (stored.kind == "i" and stored.bits < 8))  # no int4 without a negative
    patterns = data.draw(st.lists(st.integers(0, most - 1), min_size=size, max_size=size))
    kept = patterns[: size - repeats.copied]
    if columns:
        repeats = Repeats(repeats.kept, repeats.length, repeats.distance, repeats.change, True)
    flat = np.array(slow(stored, kept, repeats), stored.pattern)
    shape = (columns, size // columns) if columns else (size,)
    if columns:
        flat = np.ascontiguousarray(flat.reshape(size // columns, columns).T).reshape(-1)
    whole = (
        flat.view("i1" if stored.kind == "i" else "u1").astype(stored.dtype)
        if stored.bits < 8
        else flat.view(stored.dtype)
    )
    record = TensorRecord(stored.name, shape, RawCode("w#raw"), repeats=repeats)
    unit, bits = split(record, whole.reshape(shape))
    raw = np.array(kept, stored.pattern).astype(stored.pattern.newbyteorder("<")).tobytes()
    assert unit.astype("<f4").tobytes() == raw + bytes(-len(raw) % 4)
    again = join(record, unit, bits, shape)
    assert (again.dtype, again.shape) == (stored.dtype, shape)
    assert np.ascontiguousarray(again).tobytes() == whole.tobytes()


def test_a_tensor_that_differs_from_its_copies() -> None:
    record = TensorRecord("int8", (4,), RawCode(), repeats=Repeats((2,), (2,), (2,), (0,)))
    with pytest.raises(ValueError, match="a copy differs"):
        split(record, np.array([1, 2, 1, 3], np.int8))


@pytest.mark.parametrize("runs", [((2,), (2,), (1,)), ((1,), (2,), (2,)), ((2,), (3,), (3,)), ((3,), (2,), (2,))])
def test_runs_outside_the_tensor(runs: tuple[tuple[int, ...], ...]) -> None:
    record = TensorRecord("float32", (4,), RawCode(), repeats=Repeats(*runs, (0,)))
    with pytest.raises(ElementError):
        join(record, np.zeros(4 - sum(runs[1]), "f4"), None, (4,))
