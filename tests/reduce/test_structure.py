"""Weights with three dimensions, and their blocks and superblocks (8.3.2)."""

from __future__ import annotations

import re
from itertools import product
from math import prod
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.encoder.reduce import structure
from nnr_codec.encoder.reduce.structure import Blocks, Triple, dimensions, divided, reshaped
from nnr_codec.errors import EncodeError

extents = st.integers(1, 9)
shapes = st.lists(extents, min_size=1, max_size=5).map(tuple)
triples = st.tuples(extents, extents, extents)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((64, 32, 3, 5), (64, 32, 15)),
        ((64, 32, 7), (64, 32, 7)),
        ((10, 20), (10, 20, 1)),
        ((10,), (10, 1, 1)),
        ((), (1, 1, 1)),
        ((8, 4, 2, 3, 2), (8, 4, 12)),
    ],
)
def test_three_dimensions(shape: tuple[int, ...], wanted: Triple) -> None:
    assert reshaped(shape) == wanted


def test_dimensions_of_a_text() -> None:
    assert dimensions("block", "4x2x1") == (4, 2, 1)
    assert dimensions("block", "255x7") == (255, 7, 1)
    assert dimensions("block", "3") == (3, 1, 1)
    assert dimensions("superblock", "64x64", whole=True) == (64, 64, 0)


@pytest.mark.parametrize("text", ["", "x", "4x", "4x4x4x4", "-1", "1.5", "a", "4 x4", "1e2", "9999", "²"])
def test_texts_that_are_no_dimensions(text: str) -> None:
    with pytest.raises(EncodeError, match="must be up to three numbers, such as 4x1x1"):
        dimensions("block", text)


@pytest.mark.parametrize("text", ["0", "256", "4x0x1"])
def test_dimensions_that_no_map_can_describe(text: str) -> None:
    with pytest.raises(EncodeError, match=re.escape(f"block {text} has an extent outside 1..255")):
        dimensions("block", text)


def test_blocks_divide_superblocks() -> None:
    divided((4, 2, 3), (64, 64, 0))
    divided((4, 2, 0), (64, 0, 0))
    with pytest.raises(EncodeError, match="blocks of 3x1x1 do not divide superblocks of 64x64xall"):
        divided((3, 1, 1), (64, 64, 0))
    with pytest.raises(EncodeError, match="blocks of 1x1xall do not divide superblocks of 4x4x9"):
        divided((1, 1, 0), (4, 4, 9))
    with pytest.raises(EncodeError, match="more than 4096 items"):
        divided((64, 65, 1), (0, 0, 0))


def slow(shape: tuple[int, ...], block: Triple) -> list[tuple[slice, ...]]:
    """Yield the positions of the blocks of a tensor, one after the other."""
    starts = [range(0, whole, part or whole) for whole, part in zip(reshaped(shape), block, strict=True)]
    ends = [part or whole for whole, part in zip(reshaped(shape), block, strict=True)]
    return [tuple(slice(at, at + end) for at, end in zip(corner, ends, strict=True)) for corner in product(*starts)]


@given(shapes, st.tuples(extents, extents, st.integers(0, 9)), st.data())
def test_rows_are_the_blocks(shape: tuple[int, ...], block: Triple, data: st.DataObject) -> None:
    tensor = np.arange(1, prod(shape) + 1).reshape(shape)
    if data.draw(st.booleans()):
        tensor = np.asfortranarray(tensor)
    blocks = Blocks(shape, block)
    rows, inside = blocks.gathered(tensor), blocks.gathered(tensor) != 0
    places = slow(shape, block)
    assert rows.shape == inside.shape == (len(places), prod(blocks.sizes))
    assert len(places) == prod(blocks.counts)
    for row, real, place in zip(rows, inside, places, strict=True):
        assert np.array_equal(row[real], tensor.reshape(reshaped(shape))[place].reshape(-1))
        assert not row[~real].any()
    assert blocks.items().tolist() == inside.sum(axis=1).tolist()
    assert np.array_equal(blocks.scattered(rows), tensor)
    whole = blocks.scattered(np.arange(len(places))[:, None])
    assert whole.shape == shape
    for k, place in enumerate(places):
        assert (whole.reshape(reshaped(shape))[place] == k).all()


@given(shapes, st.tuples(extents, extents, st.integers(0, 9)), st.integers(1, 50))
def test_slabs_are_the_rows_part_by_part(shape: tuple[int, ...], block: Triple, most: int) -> None:
    tensor, blocks = np.arange(1, prod(shape) + 1).reshape(shape), Blocks(shape, block)
    with mock.patch.object(structure, "CHUNK", most):
        slabs = [*blocks.slabs(tensor)]
    assert len(slabs) > 1 or prod(shape) <= most or blocks.counts[0] == 1
    rows = [row[row > 0].tolist() for slab in slabs for row in slab]
    assert rows == [row[row > 0].tolist() for row in blocks.gathered(tensor)]


@given(shapes, triples, triples, st.booleans())
def test_superblocks(shape: tuple[int, ...], block: Triple, times: Triple, kernel: bool) -> None:
    a, b, c = (part * more for part, more in zip(block, times, strict=True))
    superblock = (a, b, 0 if kernel else c)
    divided(block, superblock)
    blocks = Blocks(shape, block, superblock)
    numbers = blocks.scattered(blocks.superblocks()[:, None])
    wanted = Blocks(shape, superblock)
    assert np.array_equal(numbers, wanted.scattered(np.arange(prod(wanted.counts))[:, None]))


def test_a_block_that_is_larger_than_the_tensor() -> None:
    blocks = Blocks((2, 3), (255, 255, 255), (0, 0, 0))
    assert (blocks.sizes, blocks.counts) == ((2, 3, 1), (1, 1, 1))
    assert blocks.superblocks().tolist() == [0]
