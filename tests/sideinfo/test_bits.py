"""The packed fields of the compiled loops against their definition with unbounded integers, and their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.cabac_ext.bits import (
    count_kept,
    count_patterns,
    join_floats,
    join_integers,
    join_low,
    look_up,
    split_floats,
    split_integers,
    split_low,
)
from nnr_codec.errors import ElementError

Array = npt.NDArray[Any]
EVERYTHING: dict[str, Any] = {"first": (-(1 << 31), 0), "last": ((1 << 31) - 1, (1 << 64) - 1)}
FLOATS: dict[str, Any] = {"shift": 22, "pivot": 254, "holes": 0, "unsigned": False, "zeros": 0}


def packed(fields: list[int], width: int) -> bytes:
    """Return the stream of fields by its definition."""
    number = sum(field << (i * width) for i, field in enumerate(fields))
    return number.to_bytes((len(fields) * width + 7) // 8, "little")


def guarded(size: int) -> tuple[Array, Array]:
    """Return a buffer, and its middle part, which is to be written."""
    buffer = np.full(size + 32, 0xA5, np.uint8)
    buffer[16 : 16 + size] = 0
    return buffer, buffer[16 : 16 + size]


@given(st.data(), st.integers(0, 64), st.integers(0, 40))
def test_fields_of_every_width(data: st.DataObject, width: int, count: int) -> None:
    fields = [data.draw(st.integers(0, (1 << width) - 1)) for _ in range(count)]
    patterns = np.array(fields, np.uint64)
    buffer, stream = guarded((count * width + 7) // 8)
    levels, back = np.full(count, 7, np.int32), np.empty(count, np.uint64)
    split_integers(patterns, levels, stream, least=0, origin=0, low=width)
    assert stream.tobytes() == packed(fields, width)
    assert (buffer[:16] == 0xA5).all() and (buffer[-16:] == 0xA5).all()
    assert not levels.any()
    join_integers(levels, stream, back, least=0, origin=0, low=width, **EVERYTHING)
    assert back.tolist() == fields


@given(st.integers(1, 64), st.integers(1, 40))
def test_streams_of_another_length(width: int, count: int) -> None:
    patterns, levels, size = np.zeros(count, np.uint64), np.zeros(count, np.int32), (count * width + 7) // 8
    for wrong in (0, size - 1, size + 1, size + 8):
        if wrong != size:
            buffer, stream = guarded(wrong)
            with pytest.raises(ValueError, match="differ in length"):
                split_integers(patterns, levels, stream, least=0, origin=0, low=width)
            assert (buffer[:16] == 0xA5).all() and (buffer[-16:] == 0xA5).all()
            with pytest.raises(ValueError, match="differ in length"):
                join_integers(levels, stream, patterns, least=0, origin=0, low=width, **EVERYTHING)


@pytest.mark.parametrize(("width", "count"), [(1, 1), (7, 3), (23, 5), (63, 1), (63, 9), (13, 100)])
def test_bits_left_over_are_zeros(width: int, count: int) -> None:
    stream = np.zeros((count * width + 7) // 8, np.uint8)
    levels, patterns = np.zeros(count, np.int32), np.zeros(count, np.uint64)
    for bit in range(count * width % 8, 8):
        stream[-1] = 1 << bit
        with pytest.raises(ElementError, match="not 0"):
            join_integers(levels, stream, patterns, least=0, origin=0, low=width, **EVERYTHING)


@pytest.mark.parametrize("holes", [0, 1, 2])
@pytest.mark.parametrize(
    ("bits", "shift", "zeros"), [(8, 3, 1), (16, 6, 0), (16, 9, 2), (32, 22, 0), (32, 22, 13), (64, 51, 0)]
)
def test_floats_of_several_chunks(bits: int, shift: int, zeros: int, holes: int) -> None:
    rng, sign = np.random.default_rng(bits + shift), 1 << (bits - 1)
    values = [
        int(v) for v in rng.integers(1, sign, 2500, np.uint64) | rng.integers(0, 2, 2500, np.uint64) << (bits - 1)
    ]
    for k in rng.integers(1024, 2500, 300 if holes else 0).tolist():  # the first chunk has no zeros
        values[k] = sign * int(rng.integers(holes))
    patterns, pivot = np.array(values, f"u{bits // 8}"), (sign >> shift) // 2
    levels, fields, lows = [], [], []
    for v in values:
        if holes and v % sign == 0:
            levels.append(v // sign)
            continue
        level = pivot - (v % sign >> shift)
        levels.append(level + holes if level >= 0 else level)
        fields.append((v % (1 << shift) >> zeros) + (v // sign << (shift - zeros)))
        lows.append(v % (1 << zeros))
    stream, low = packed(fields, shift - zeros + 1), packed(lows, zeros)
    parameters = {"shift": shift, "pivot": pivot, "holes": holes, "unsigned": False, "zeros": zeros}
    found, back = np.empty(2500, np.int32), np.empty_like(patterns)
    (buffer, upper), (_, lower), row = guarded(len(stream)), guarded(len(low)), np.zeros(1, np.uint8)
    split_floats(patterns, found, upper, **parameters)
    split_low(patterns, found, row, lower, holes=holes, zeros=zeros)
    assert found.tolist() == levels
    assert upper.tobytes() == stream and lower.tobytes() == low
    assert (buffer[:16] == 0xA5).all() and (buffer[-16:] == 0xA5).all()
    join_floats(found, upper, back, **parameters)
    join_low(found, row, lower, back, holes=holes, zeros=zeros)
    assert np.array_equal(back, patterns)
    found[2000] = np.iinfo(np.int32).min
    with pytest.raises(ElementError, match="outside the exponents"):
        join_floats(found, np.zeros(len(stream) + 8, np.uint8), back, **parameters)


def test_patterns_are_counted_and_looked_up() -> None:
    patterns = np.random.default_rng(2).integers(0, 1 << 16, 10_001, np.uint16)
    for shift, rows in ((0, 1), (6, 2), (6, 3)):
        counts = np.ones((rows, 1 << (16 - shift)), np.int64)
        count_patterns(patterns, shift, counts)
        assert np.array_equal(counts.sum(axis=0) - rows, np.bincount(patterns >> shift, minlength=counts.shape[1]))
    for shift, shape in ((0, (1, 1 << 15)), (16, (1, 1)), (-1, (1, 1 << 17)), (6, (0, 1 << 10))):
        with pytest.raises(ValueError, match="one column"):
            count_patterns(patterns, shift, np.zeros(shape, np.int64))
    table, levels = np.arange(1 << 16, dtype=np.int32)[::-1].copy(), np.empty(10_001, np.int32)
    look_up(patterns, table, levels)
    assert np.array_equal(levels, table[patterns])
    table[patterns[5]] = -(1 << 31)
    with pytest.raises(ValueError, match="not in the palette"):
        look_up(patterns, table, levels)
    with pytest.raises(ValueError, match="one entry"):
        look_up(patterns, table[1:], levels)


def test_lengths_that_differ() -> None:
    three, four, none, rows = (
        np.zeros(3, np.uint32),
        np.zeros(4, np.int32),
        np.zeros(0, np.uint8),
        np.zeros(1, np.uint8),
    )
    calls: list[Callable[[], None]] = [
        lambda: split_floats(three, four, none, **FLOATS),
        lambda: join_floats(four, none, three, **FLOATS),
        lambda: split_low(three, four, rows, none, holes=0, zeros=0),
        lambda: join_low(four, rows, none, three, holes=0, zeros=0),
        lambda: split_integers(three, four, none, least=0, origin=0, low=0),
        lambda: join_integers(four, none, three, least=0, origin=0, low=0, **EVERYTHING),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="patterns and levels"):
            call()


def test_rows_that_do_not_divide() -> None:
    patterns, levels, none = np.zeros(4, np.uint32), np.zeros(4, np.int32), np.zeros(0, np.uint8)
    for count in (0, 3, 5):
        rows = np.zeros(count, np.uint8)
        for call in (
            lambda rows=rows: split_low(patterns, levels, rows, none, holes=0, zeros=0),
            lambda rows=rows: join_low(levels, rows, none, patterns, holes=0, zeros=0),
            lambda rows=rows: count_kept(patterns, rows, 1),
        ):
            with pytest.raises(ValueError, match="rows"):
                call()


def test_widths_that_there_are_not() -> None:
    patterns, levels, none, rows = (
        np.zeros(1, np.uint32),
        np.zeros(1, np.int32),
        np.zeros(0, np.uint8),
        np.ones(1, "u1"),
    )
    for change in ({"shift": 32}, {"shift": -1}, {"zeros": 23}, {"zeros": -1}, {"pivot": 512}):
        with pytest.raises(ValueError, match="invalid bits"):
            split_floats(patterns, levels, none, **FLOATS | change)
        with pytest.raises(ValueError, match="invalid bits"):
            join_floats(levels, none, patterns, **FLOATS | change)
    for width in (-1, 65):
        with pytest.raises(ValueError, match="0 to 64"):
            split_integers(patterns, levels, none, least=0, origin=0, low=width)
        with pytest.raises(ValueError, match="0 to 64"):
            join_integers(levels, none, patterns, least=0, origin=0, low=width, **EVERYTHING)
        with pytest.raises(ValueError, match="0 to 64"):
            split_low(patterns, levels, rows, none, holes=0, zeros=width)
        with pytest.raises(ValueError, match="0 to 64"):
            join_low(levels, rows, none, patterns, holes=0, zeros=width)


def test_counting() -> None:
    items = np.array([[0, 1, 2], [0, 0, 0], [3, 0, 0], [4, 5, 6]], np.uint16)
    assert count_kept(items.reshape(-1), np.zeros(4, np.uint8), 0xFFFF) == 6
    assert count_kept(items.reshape(-1), np.array([0, 1, 0, 1], np.uint8), 0xFFFF) == 3
    assert count_kept(items.reshape(-1), np.zeros(1, np.uint8), 0xFFFF) == 6
    assert count_kept(items.reshape(-1), np.zeros(1, np.uint8), 0xFFFE) == 5


def test_more_elements_than_are_done_at_once() -> None:
    n = (1 << 20) + 12345
    patterns = np.random.default_rng(0).integers(0, 1 << 32, n, np.uint32)
    levels, back = np.empty(n, np.int32), np.empty(n, np.uint32)
    stream = np.zeros((n * 23 + 7) // 8, np.uint8)
    split_floats(patterns, levels, stream, **FLOATS)
    assert np.array_equal(levels, 254 - (patterns << 1 >> 23).astype(np.int32))
    join_floats(levels, stream, back, **FLOATS)
    assert np.array_equal(back, patterns)
    stream = np.zeros((n * 17 + 7) // 8, np.uint8)
    split_integers(patterns, levels, stream, least=0, origin=1 << 31, low=17)
    join_integers(levels, stream, back, least=0, origin=1 << 31, low=17, **EVERYTHING)
    assert np.array_equal(back, patterns)
