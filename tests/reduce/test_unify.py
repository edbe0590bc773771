"""Unification: blocks of parameters with one magnitude (8.3.6)."""

from __future__ import annotations

import re
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnr_codec as nnr
from nnr_codec.bitstream.performance import UnificationMap, UnificationRow
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.encoder.prepared import Prepared
from nnr_codec.encoder.reduce.unify import Unify
from nnr_codec.model import Array, Model, Wiring
from tests.arrays import assert_identical

RNG = np.random.default_rng(7)
Floats = npt.NDArray[np.floating]

shapes = st.one_of(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(*[st.integers(1, 5)] * 3),
    st.tuples(*[st.integers(1, 4)] * 4),
).filter(lambda shape: sum(extent > 1 for extent in shape) > 1)
tensors = shapes.flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=st.floats(-4, 4, width=32) | st.just(0.0))
)
blocks = st.sampled_from(["2x2x2", "1x1x9|1x8x1", "2", "1x2", "8x1x1|1x8x1|2x2x2", "64x64", "1x1x4"])


def prepared(tensors: dict[str, Array], **options: object) -> Prepared:
    model = Model(tensors)
    return Prepared(model, model, Wiring(), nnr.EncoderConfig(**options))  # type: ignore[arg-type]


def unified(array: Array, **options: object) -> Floats:
    found: Floats = np.asarray(Unify(**options).apply(prepared({"w": array})).model["w"])  # type: ignore[arg-type]
    return found


def places(shape: tuple[int, ...], block: tuple[int, int, int]) -> list[list[tuple[int, ...]]]:
    """Return the indices of the reshaped tensor in each block, one by one."""
    whole = (shape[0], shape[1], prod(shape[2:]))
    starts = product(*[range(0, extent, size) for extent, size in zip(whole, block, strict=True)])
    return [
        [*product(*[range(a, min(a + size, end)) for a, size, end in zip(start, block, whole, strict=True)])]
        for start in starts
    ]


def solid(array: Array) -> Floats:
    found: Floats = array.astype("f4").reshape(array.shape[0], array.shape[1], -1)
    return found


def deviation(magnitudes: list[float]) -> float:
    """Return the error of a block by its definition."""
    there = [one for one in magnitudes if one]
    mean = sum(there) / max(len(there), 1)
    return float(np.sqrt(sum((one - mean) ** 2 for one in there) / max(len(there), 1)))


# ------------------------------------------------------------------------------------------------ blocks
def test_the_magnitudes_of_a_block_become_their_mean() -> None:
    weight = np.array([[1, -3, 0, 8], [2, 2, 0, 8], [5, 5, 1, -1], [5, -5, 0, 0]], np.float32)
    want = np.array([[2, -2, 0, 8], [2, 2, 0, 8], [5, 5, 1, -1], [5, -5, 0, 0]], np.float32)
    assert_identical(unified(weight, ratio=1, block="2x2x2"), want)
    assert_identical(unified(weight, threshold=0.70, block="2x2"), weight)
    assert_identical(unified(weight, threshold=0.71, block="2x2"), want)  # the square root of one half


def test_kernels_are_positions_in_order() -> None:
    weight = np.arange(1, 1 + 2 * 3 * 4, dtype=np.float32).reshape(2, 3, 2, 2)
    means = weight.reshape(2, 3, 2, 2).mean(axis=3, keepdims=True)
    assert_identical(unified(weight, ratio=1, block="1x1x2"), np.broadcast_to(means, weight.shape).astype("f4"))


@given(tensors, blocks, st.floats(0, 1))
def test_any_tensor_and_ratio(array: Floats, block: str, ratio: float) -> None:
    found = unified(array, ratio=ratio, block=block) if has_blocks(array.shape, block) else array
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(np.sign(found), np.sign(array))
    assert np.abs(found).max(initial=0) <= np.abs(array).max(initial=0)
    if ratio == 0:
        assert_identical(found, array)


def has_blocks(shape: tuple[int, ...], block: str) -> bool:
    whole = (shape[0], shape[1], prod(shape[2:]))
    each = [(*map(int, text.split("x")), 1, 1)[:3] for text in block.split("|")]
    return any(any(size > 1 and extent > 1 for size, extent in zip(one, whole, strict=True)) for one in each)


@pytest.mark.medium
@given(tensors, st.sampled_from([(2, 2, 2), (1, 2, 1), (3, 1, 2)]), st.floats(0, 1))
def test_the_blocks_with_the_least_error_come_first(array: Floats, block: tuple[int, int, int], ratio: float) -> None:
    text = "x".join(map(str, block))
    if not has_blocks(array.shape, text):
        return
    found = solid(unified(array, ratio=ratio, block=text, superblock="6x6x6"))
    before, errors, size = solid(array).astype(float), [], 0
    for indices in places(array.shape, block):
        values = [abs(float(before[index])) for index in indices]
        there = [one for one in values if one]
        mean = np.float32(sum(there) / max(len(there), 1))
        alike = all(abs(found[index]) == (mean if before[index] else 0) for index in indices)
        same = all(found[index] == before[index] for index in indices)
        assert alike or same
        errors.append((deviation(values), len(indices), alike))
        size += len(indices) if alike else 0
    assert size >= ratio * array.size - 1e-9
    last = max((error for error, _, alike in errors if alike), default=0.0)
    assert all(error >= last - 1e-6 for error, _, alike in errors if not alike)
    taken = sum(count for error, count, alike in errors if alike and error < last - 1e-6)
    assert taken <= ratio * array.size or not taken  # the last blocks were required


def test_a_ratio_is_what_its_decimals_say() -> None:
    """0.14 * 100 is slightly more than 14 in floats; seven pairs are sufficient."""
    array = np.arange(1.0, 101).reshape(50, 2)
    assert (unified(array, ratio=0.14, block="1x2") != array).sum() == 14


@given(tensors, blocks, st.floats(0, 1))
def test_a_threshold_does_what_its_ratio_does(array: Floats, block: str, ratio: float) -> None:
    if not has_blocks(array.shape, block):
        return
    threshold = Unify(block=block).threshold_at(prepared({"w": array}), ratio)
    by_ratio, by_threshold = unified(array, ratio=ratio, block=block), unified(array, threshold=threshold, block=block)
    changed = by_ratio != array
    np.testing.assert_array_equal(by_ratio[changed], by_threshold[changed])


@given(hnp.arrays(np.float64, 8, elements=st.floats(0.01, 4)), st.floats(-1, 1))
def test_no_other_magnitude_has_less_error(row: Floats, off: float) -> None:
    array = np.stack([row, -row])
    found = unified(array, ratio=1, block="1x8")
    other = np.copysign(np.abs(found) + off, array)
    assert ((found - array) ** 2).sum() <= ((other - array) ** 2).sum() + 1e-12


@pytest.mark.parametrize("block", ["2x2x2", "1x1x9|1x8x1", "3x1x1", "1x64"])
@pytest.mark.parametrize("shape", [(33, 32, 3, 3), (33, 64)])
def test_memory_layout_is_irrelevant(block: str, shape: tuple[int, ...]) -> None:
    """Sums have one order, so strides and byte order do not change a bit."""
    array = np.random.default_rng(1).lognormal(0, 2, shape)
    superblock = "63x63" if block.startswith("3") else "64x64"
    want = unified(array, ratio=0.8, block=block, superblock=superblock)
    for other in (np.asfortranarray(array), array[:, ::-1].copy()[:, ::-1]):
        np.testing.assert_array_equal(unified(other, ratio=0.8, block=block, superblock=superblock), want)
    swapped = array.astype(array.dtype.newbyteorder(">"))
    got = unified(swapped, ratio=0.8, block=block, superblock=superblock)
    assert got.dtype == swapped.dtype
    np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------------------------------------------ superblocks
def test_each_superblock_has_the_shape_that_suits_it() -> None:
    of_kernels = np.repeat(RNG.uniform(1, 2, (4, 8, 1)), 9, axis=2)
    of_inputs = np.repeat(RNG.uniform(1, 2, (4, 1, 9)), 8, axis=1)
    weight = np.concatenate([of_kernels, of_inputs], axis=1).reshape(4, 16, 3, 3)
    both = {"block": "1x1x9|1x8x1", "superblock": "4x8"}
    np.testing.assert_allclose(unified(weight, ratio=1, **both), weight)
    for shape in ("1x1x9", "1x8x1"):
        assert not np.allclose(unified(weight, ratio=1, block=shape), weight)
    assert not np.allclose(unified(weight, ratio=1, block="1x1x9|1x8x1", superblock="4x16"), weight)


def test_a_shape_that_saves_nothing_is_not_taken() -> None:
    weight = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 1.5], [1, 2, 3, 4, 5, 6, 7, 8, 2.5]])
    found = unified(weight, ratio=1, block="1x8|2x1", superblock="2x8")
    np.testing.assert_array_equal(found[:, 8], [2, 2])  # there, a block along the inputs has one parameter


def test_tensors_share_the_ratio_by_their_errors() -> None:
    large, small = RNG.normal(0, 1, (16, 16)), RNG.normal(0, 0.01, (16, 16))
    after = Unify(ratio=0.5).apply(prepared({"large": large, "small": small})).model
    assert (after["small"] != small).mean() > 0.95
    assert (after["large"] != large).mean() < 0.1


# ------------------------------------------------------------------------------------------------ models
def test_other_tensors_stay() -> None:
    weight = RNG.normal(size=(8, 16)).astype("f4")
    given = {
        "w": weight,
        "tied": weight,
        "bias": weight[0],
        "int": np.arange(128).reshape(8, 16),
        "kept": weight + 1,
        "exact": weight + 2,
        "nan": np.where(weight > 2, np.nan, weight),
        "inf": np.where(weight > 2, -np.inf, weight),
        "column": weight[:, :1],
        "huge": np.full((8, 16), 1e200) * weight,
    }
    given["nan"][0, 0], given["inf"][0, 0] = np.nan, np.inf
    model = Model(given, aliases={"tied": "w"})
    rules = (nnr.Rule("kept", reducible=False), nnr.Rule("exact", exact=True))
    after = Unify(ratio=1).apply(Prepared(model, model, Wiring(), nnr.EncoderConfig(rules=rules)))
    for name in given.keys() - {"w", "tied"}:
        assert_identical(np.asarray(after.model[name]), given[name], name)
    assert_identical(np.asarray(after.model["tied"]), np.asarray(after.model["w"]))
    assert_identical(np.asarray(after.restored["w"]), np.asarray(after.model["w"]))
    assert len(np.unique(np.abs(np.asarray(after.model["w"])))) == 16


@pytest.mark.parametrize("name", [stored.name for stored in STORED_TYPES.values() if stored.kind == "f"])
def test_every_type(name: str) -> None:
    array = RNG.uniform(0.5, 2, (4, 16)).astype(STORED_TYPES[name].dtype)
    found = unified(array, ratio=1)
    assert found.dtype == array.dtype
    assert all(len(set(row.astype(float).tolist())) == 1 for row in found.reshape(8, 8))


def test_maps_say_that_it_was_done() -> None:
    weight = {"w": RNG.normal(size=(8, 16)).astype("f4")}
    data = nnr.encode(weight, reduce="unify(ratio=0.5)")
    assert nnr.open(data).performance.maps == nnr.PerformanceMaps(unification=UnificationMap())
    assert not nnr.verify(data).violations
    assert nnr.open(nnr.encode(weight)).performance.maps == nnr.PerformanceMaps()
    maps = nnr.PerformanceMaps(unification=UnificationMap((UnificationRow(0.5, 0.25),)))
    data = nnr.encode(weight, reduce="unify(ratio=0.5)", performance=nnr.Performance(maps=maps))
    assert nnr.open(data).performance.maps == maps


def test_decoders_get_the_unified_model() -> None:
    weight = {"w": RNG.normal(0, 0.1, (32, 16, 3, 3)).astype("f4"), "b": RNG.normal(size=32).astype("f4")}
    want = nnr.reduce(weight, "unify(ratio=0.7)").model
    decoded = nnr.decode(nnr.encode(weight, reduce="unify(ratio=0.7)", max_error=1e-5))
    np.testing.assert_allclose(decoded["w"].astype("f8"), want["w"].astype("f8"), atol=1.01e-5)
    assert len(np.unique(np.abs(np.asarray(want["w"])))) < 0.45 * weight["w"].size


def test_a_target_leaves_a_threshold_alone() -> None:
    weight = {"w": RNG.normal(0, 0.1, (32, 64)).astype("f4")}
    data = nnr.encode(weight, reduce="unify(threshold=10)", target_size=1200)
    assert nnr.open(data).performance.maps.unification is not None
    magnitudes = np.abs(nnr.decode(data)["w"].astype("f8")).reshape(-1, 8)
    assert np.median(magnitudes.std(axis=1)) < 0.5 * np.abs(weight["w"]).std()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unify", "unify requires a ratio"),
        ("unify(ratio=0.5, threshold=1)", "ratio and threshold of unify cannot be combined"),
        ("unify(ratio=1.5)", "unify(ratio) 1.5 is outside 0..1"),
        ("unify(threshold=-1)", "unify(threshold) -1.0 is less than 0"),
        ("unify(ratio=1, block=3x1x1)", "blocks of 3x1x1 do not divide superblocks of 64x64xall"),
        ("unify(ratio=1, block=2x2x2|x)", "block 'x'"),
        ("unify(ratio=1, block=2x2x2, superblock=256)", "outside 1..255"),
        ("unify(ratio=1, block=1)", "more than one value in a block"),
        ("unify(ratio=1, tensors=nan)", "no tensor that matches"),
        ("unify(ratio=1, tensors=b)", "is a float matrix"),
    ],
)
def test_what_cannot_be_done(text: str, message: str) -> None:
    weights = {"w": np.ones((8, 16), "f4"), "b": np.ones(3, "f4"), "nan": np.full((8, 16), np.nan, "f4")}
    with pytest.raises(nnr.EncodeError, match=re.escape(message)):
        nnr.encode(weights, reduce=text)
