"""Sparsification: required number of zeros, least important parameters, and information in the bitstream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, isfinite, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.config import EncoderConfig
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.encoder.prepared import Prepared, PruningInfo
from nnr_codec.encoder.reduce.magnitudes import below, matrices
from nnr_codec.encoder.reduce.sparsify import METHODS, Sparsify, sparsify
from nnr_codec.encoder.reduce.sparsify_methods import compressible
from nnr_codec.encoder.reduce.structure import Blocks, dimensions
from nnr_codec.model import Array, Block, Model, Wiring
from nnr_codec.syntax.structures import NnrTopologyUnitPayload

from ..arrays import assert_identical, models, patterns

FLOATS = tuple(name for name, stored in STORED_TYPES.items() if stored.kind == "f")
RATIOS = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]) | st.floats(0, 1)
#: Each method with options that make it effective.
WAYS = (
    *(Sparsify(0.5, method=method) for method in METHODS),
    *(Sparsify(0.5, method=method, scope="local") for method in METHODS),
    Sparsify(0.5, method="micro", block="2x2x2"),
    Sparsify(0.5, method="micro", block="4x1x1", superblock="8x4"),
)


def normal(*shape: int, seed: int = 0, scale: float = 0.1) -> Array:
    return np.random.default_rng(seed).normal(0, scale, shape).astype("f4")


def weights() -> dict[str, Array]:
    return {
        "conv": normal(24, 12, 3, 3),
        "small": normal(16, 9, seed=1, scale=0.01),
        "fc": normal(10, 33, seed=2) + np.float32(0.03),
        "bias": normal(24, seed=3),
        "count": np.arange(12, dtype="i4").reshape(3, 4),
    }


def applied(tool: Sparsify, tensors: Mapping[str, Array], **options: object) -> Prepared:
    model = Model(dict(tensors), aliases=options.pop("aliases", {}), blocks=options.pop("blocks", []))  # type: ignore[arg-type]
    return tool.apply(Prepared(model, model, Wiring(), EncoderConfig(**options)))  # type: ignore[arg-type]


def changed(tool: Sparsify, tensors: Mapping[str, Array], **options: object) -> dict[str, Array]:
    prepared = applied(tool, tensors, **options)
    return {name: prepared.array(name) for name in tensors}


def zeros(tensors: Mapping[str, Array]) -> float:
    found = matrices(tensors).values()
    return sum(int((array == 0).sum()) for array in found) / sum(array.size for array in found)


def values(array: Array) -> list[float]:
    with np.errstate(invalid="ignore"):
        found: list[float] = array.astype("f8").reshape(-1).tolist()
    return found


def ordinary(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the finite matrices whose squares are representable in float64."""
    with np.errstate(invalid="ignore"):
        largest = {name: float(np.abs(array.astype("f8")).max()) for name, array in matrices(tensors).items()}
    return {name: tensors[name] for name, most in largest.items() if 1e-30 < most < 1e18}


def error(tensors: Mapping[str, Array], others: Mapping[str, Array]) -> float:
    return sum(float(((array.astype("f8") - others[name]) ** 2).sum()) for name, array in matrices(tensors).items())


# ------------------------------------------------------------------------------------------------ all methods
@pytest.mark.parametrize("tool", WAYS, ids=str)
def test_the_ratio_is_reached(tool: Sparsify) -> None:
    for ratio in (0.0, 0.1, 0.3, 0.55, 0.9, 1.0):
        assert_the_ratio_is_reached(tool, ratio)


def assert_the_ratio_is_reached(tool: Sparsify, ratio: float) -> None:
    """Check that surplus zeros are fewer than the last unit: a parameter, a row or a block."""
    before = weights()
    got = changed(Sparsify(**{**vars(tool), "ratio": ratio}), before)
    last = 108 if tool.method == "rows" else 9 if tool.method == "micro" else 1
    for part in (
        [matrices(before)]
        if tool.scope == "global" and not tool.superblock
        else [[name] for name in ["conv", "small", "fc"]]
    ):
        total = sum(before[name].size for name in part)
        found = sum(int((got[name] == 0).sum()) for name in part)
        pieces = 30 if tool.superblock else 1
        assert ceil(round(ratio * total, 6)) <= found < ceil(round(ratio * total, 6)) + (last + 1) * pieces
    for name in ("bias", "count"):
        assert got[name] is before[name]


@given(models(), RATIOS, st.sampled_from(WAYS))
def test_any_model(tensors: dict[str, Array], ratio: float, way: Sparsify) -> None:
    tool = Sparsify(**{**vars(way), "ratio": ratio})
    if not matrices(tensors):
        with pytest.raises(nnr.EncodeError, match="is a float matrix"):
            applied(tool, tensors)
        return
    got = changed(tool, tensors)
    with np.errstate(invalid="ignore"):
        for name, array in tensors.items():
            if name not in matrices(tensors):
                assert got[name] is array
                continue
            assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype)
            finite = np.isfinite(array.astype("f8"))
            assert (patterns(got[name])[~finite] == patterns(array)[~finite]).all()
            left = np.asarray(finite & (got[name] != 0))
            if tool.method == "compressibility":
                assert (np.signbit(got[name][left]) == np.signbit(array[left])).all()
            else:
                assert (patterns(got[name])[left] == patterns(array)[left]).all()
            assert np.isfinite(array[np.asarray(got[name] == 0)]).all()
        finite = all(np.isfinite(array.astype("f8")).all() for array in matrices(tensors).values())
    if finite:
        assert zeros(got) >= ratio * (1 - 1e-12)


@pytest.mark.parametrize("tool", WAYS, ids=str)
def test_what_may_not_change(tool: Sparsify) -> None:
    tensors = weights()
    tensors |= {"again": tensors["conv"], "other": normal(8, 8), "kept": normal(8, 8), "exact": normal(8, 8)}
    got = changed(
        Sparsify(**{**vars(tool), "tensors": "conv|again|kept|exact|s*"}), tensors, aliases={"again": "conv"},
        rules=[nnr.Rule("kept", reducible=False), nnr.Rule("exact", exact=True)],
    )  # fmt: skip
    assert_identical(got["again"], got["conv"])
    assert (got["conv"] == 0).any() and (got["small"] == 0).any()
    for name in ("other", "kept", "exact", "fc", "bias"):
        assert got[name] is tensors[name]


@pytest.mark.parametrize("tool", WAYS, ids=str)
def test_infinities_and_nan_stay(tool: Sparsify) -> None:
    tensors = weights()
    tensors["conv"][3, 1, 0, 0], tensors["conv"][5, 0, 1, 2], tensors["nans"] = np.nan, np.inf, np.full((4, 4), np.nan)
    got = changed(tool, tensors)
    assert np.array_equal(np.isfinite(got["conv"]), np.isfinite(tensors["conv"]))
    assert np.isnan(got["nans"]).all() and (got["conv"] == 0).any()


# ------------------------------------------------------------------------------------------------ single parameters
def test_statistics_are_the_public_function() -> None:
    before = weights()
    wanted = sparsify(before, 0.7)
    for name, array in changed(Sparsify(0.7, method="statistics"), before).items():
        assert_identical(array, wanted[name])


def test_magnitudes_decide_where_nothing_is_said() -> None:
    for name, array in changed(Sparsify(0.7), weights()).items():
        assert_identical(array, changed(Sparsify(0.7, method="magnitude"), weights())[name])


@given(models(), RATIOS)
def test_exactly_as_many_as_asked_for_and_the_least(tensors: dict[str, Array], ratio: float) -> None:
    """All magnitudes of the model are sorted one by one; some of equal ones become 0."""
    if not matrices(tensors):
        return
    got, left, gone = changed(Sparsify(ratio), tensors), [], []
    for name, array in matrices(tensors).items():
        for before, after in zip(values(array), values(got[name]), strict=True):
            if isfinite(before):
                (left if after else gone).append(abs(before))
    total = sum(array.size for array in matrices(tensors).values())
    wanted = min(ceil(Fraction(str(ratio)) * total), len(gone) + len(left))
    assert len(gone) == max(wanted, sum(not one for one in (*gone, *left)))
    assert max(gone, default=0.0) <= min(left, default=np.inf)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("scope", ["global", "local"])
def test_of_values_that_are_alike_some_stay(name: str, scope: str) -> None:
    """Weights of two or three values do not all become 0, and zeros are distributed over them."""
    tensors = {k: np.ones((8, 10), STORED_TYPES[name].dtype) for k in "ab"}
    tensors["c"] = np.array([[0.5, -0.5] * 4, [-1, 1] * 4], tensors["a"].dtype)
    for ratio in (0.1, 0.5, 0.75):
        got = changed(Sparsify(ratio, scope=scope), tensors)
        assert sum(int((array == 0).sum()) for array in got.values()) == ceil(ratio * 80) * 2 + ceil(ratio * 16)
        for k in "ab":
            assert abs(int((got[k] == 0).sum()) - ratio * 80) <= 8
            assert ratio < 0.5 or (got[k] == 0).any(axis=1).all()
    assert not any(array.any() for array in changed(Sparsify(1.0, scope=scope), tensors).values())


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.8])
def test_one_threshold_for_all_makes_the_least_error(ratio: float) -> None:
    before = weights()
    got = changed(Sparsify(ratio, method="magnitude"), before)
    gone = max(float(np.abs(array[got[name] == 0]).max(initial=0)) for name, array in matrices(before).items())
    left = min(float(np.abs(array[array != 0]).min(initial=1)) for array in matrices(got).values())
    assert gone < left
    for other in ("statistics", "compressibility", "rows", "micro"):
        assert error(before, got) < error(before, changed(Sparsify(ratio, method=other), before))


def test_magnitudes_of_several_types_are_compared_as_they_are() -> None:
    """0.1 is slightly larger in float32, and float64 has numbers that float32 lacks."""
    tensors = {"a": np.full((2, 4), 0.1, "f4"), "b": np.full((2, 4), 0.1), "c": np.array([[1e300, -2e300]] * 2)}
    got = changed(Sparsify(0.4), tensors)
    assert got["a"].all() and not got["b"].any() and got["c"].all()
    for method in ("magnitude", "compressibility"):
        got = changed(Sparsify(0.9, method=method), tensors)
        assert not got["a"].any() and not got["b"].any() and np.count_nonzero(got["c"]) == 2


def test_weights_of_any_magnitude() -> None:
    """One threshold applies to tensors with the most different magnitudes."""
    tensors = {"a": normal(40, 40).astype("f8") * 2.0**-900, "b": normal(40, 40, seed=1) * np.float32(2.0**100)}
    got = changed(Sparsify(0.75, method="magnitude"), tensors)
    assert not got["a"].any() and (got["b"] == 0).sum() == 800


def test_a_threshold() -> None:
    """Values below sparsification_threshold become 0 (6.4.4.3), equal ones do not."""
    array = np.array([[0.25, -0.25, 0.125, -0.125], [0.2499, -0.2501, 0, np.nan]], "f4")
    for method in ("statistics", "magnitude"):
        got = changed(Sparsify(threshold=0.25, method=method), {"w": array})["w"]
        assert np.array_equal(got, np.array([[0.25, -0.25, 0, 0], [0, array[1, 1], 0, np.nan]], "f4"), equal_nan=True)
    assert not below(np.full((2, 2), 0.1, "f4"), float(np.float32(0.1))).any()
    assert below(np.full((2, 2), 0.1, "f4"), np.nextafter(float(np.float32(0.1)), 1)).all()


@given(models(FLOATS), RATIOS)
def test_deviations_from_the_mean_decide(tensors: dict[str, Array], ratio: float) -> None:
    """Values are sorted by ``(|x| - |mean|) / deviation``: zeros have less than nonzero values, and are few enough."""
    kept = ordinary(tensors)
    if not kept:
        return
    got, gone, left, zero = changed(Sparsify(ratio, method="statistics"), kept), [], [], 0
    for name, array in kept.items():
        mean, deviation = abs(float(np.mean(values(array)))), float(np.std(values(array)))
        if deviation < 1e-3 * max(map(abs, values(array))):
            return  # all are nearly equal
        for before, after in zip(values(array), values(got[name]), strict=True):
            zero += not before
            if before:
                (left if after else gone).append((abs(before) - mean) / deviation)
    assert max(gone, default=-np.inf) <= min(left, default=np.inf) + 1e-2
    wanted = ceil(Fraction(str(ratio)) * sum(array.size for array in kept.values())) - zero
    assert wanted <= len(gone)
    assert not gone or sum(one < max(gone) - 1e-2 for one in gone) < wanted


# ------------------------------------------------------------------------------------------------ compressibility loss
def loss(w: Array, before: Array, weight: float) -> float:
    return float(((w - before) ** 2).sum() / 2 + weight * np.abs(w).sum() / np.sqrt((w * w).sum()))


@pytest.mark.parametrize("threshold", [0.02, 0.1])
def test_the_loss_is_least(threshold: float) -> None:
    """No nearby change reduces the loss with its weight lambda_c = gain * threshold * B."""
    before = normal(12, 10, seed=4).astype("f8")
    got = compressible({"w": before}, threshold)["w"]
    above = np.maximum(np.abs(before) - threshold, 0)
    norms = above.sum(), np.sqrt((above**2).sum())
    gain = 1 + threshold * norms[0] / norms[1] ** 2
    np.testing.assert_allclose(got, np.sign(before) * above * gain, rtol=1e-5, atol=1e-12)
    weight, rng = gain * threshold * norms[1], np.random.default_rng(0)
    least = loss(got, before, weight)
    for step in (1e-2, 1e-3):
        for _ in range(200):
            assert loss(got + step * rng.normal(0, 0.1, got.shape), before, weight) > least
    # The gain minimizes the squared error.
    assert ((got - before) ** 2).sum() <= min(((got * f - before) ** 2).sum() for f in (0.99, 0.999, 1.001, 1.01))


def test_the_same_zeros_as_one_threshold() -> None:
    before = weights()
    wanted = changed(Sparsify(0.6, method="magnitude"), before)
    for name, array in changed(Sparsify(0.6, method="compressibility"), before).items():
        assert np.array_equal(array == 0, wanted[name] == 0)


def test_all_of_the_largest_weights() -> None:
    """No value is above the threshold, and the gain is undefined."""
    before = np.array([[1e305, -1e300], [1e-300, 2.0]])
    assert not changed(Sparsify(1.0, method="compressibility"), {"w": before})["w"].any()
    got = compressible({"w": np.array([[1e305, np.nextafter(1e305, 2e305)], [1.0, -2.0]])}, 1e305)["w"]
    assert (got == 0).tolist() == [[True, False], [True, True]] and np.isfinite(got).all()


def test_what_the_gain_would_make_infinite_stays() -> None:
    """If most weights are slightly above the threshold, the gain is large; an 8-bit type ends at 448."""
    before = np.full((40, 100), 104, STORED_TYPES["float8_e4m3fn"].dtype)
    before[0, :4] = 448, -448, 80, -80
    got = compressible({"w": before}, 90.0)["w"].astype("f4")
    assert got[0, :4].tolist() == [448, -448, 0, 0] and (got[1:] == 80).all()
    assert not np.signbit(got[0, 3])


# ------------------------------------------------------------------------------------------------ rows
def test_rows_of_the_whole_model_and_of_each_tensor() -> None:
    """Mean magnitudes are relative to the overall mean: one delta_s, or one for each tensor (8.3.5)."""
    scales = {"a": np.arange(1, 9), "b": np.array([7.9, 8, 8.1, 8])}
    tensors = {name: scale[:, None] * np.ones((1, 6), "f4") for name, scale in scales.items()}
    got = changed(Sparsify(0.25, method="rows"), tensors)
    assert [name for name in "ab" for row in got[name] if not row.any()] == ["a"] * 3
    assert not got["a"][:3].any() and got["a"][3:].all()
    got = changed(Sparsify(0.25, method="rows", scope="local"), tensors)
    assert not got["a"][:2].any() and got["a"][2:].all() and not got["b"][0].any() and got["b"][1:].all()


@given(models(FLOATS), RATIOS)
def test_mean_magnitudes_of_rows_decide(tensors: dict[str, Array], ratio: float) -> None:
    """Rows are compared relative to the mean of the tensor's rows."""
    kept = ordinary(tensors)
    if not kept:
        return
    got, gone, left = changed(Sparsify(ratio, method="rows"), kept), [], []
    wanted = Fraction(str(ratio)) * sum(array.size for array in kept.values())
    for name, array in kept.items():
        means = [float(np.mean([abs(value) for value in values(row)])) for row in array]
        for mean, before, after in zip(means, array, got[name], strict=True):
            assert not after.any() or np.array_equal(patterns(before), patterns(after))
            if before.any():
                (left if after.any() else gone).append((mean / np.mean(means), int((before != 0).sum())))
            wanted -= int((before == 0).sum())
    assert max(gone, default=(0.0, 0))[0] <= min(left, default=(np.inf, 0))[0] * (1 + 1e-3) + 1e-5
    assert wanted <= sum(size for _, size in gone)
    if gone:
        last = max(mean for mean, _ in gone)
        assert sum(size for mean, size in gone if mean < last * (1 - 1e-3) - 1e-5) < wanted


def test_rows_lie_where_the_outputs_do() -> None:
    """In a block of the model, rows are indices of the output dimension."""
    weight = normal(6, 5) * np.array([1, 0.01, 1, 0.02, 1], "f4")
    got = changed(
        Sparsify(0.4, method="rows"), {"w": weight, "b": np.zeros(5, "f4")}, blocks=[Block("w", bias="b", axis=1)]
    )
    assert got["w"].any(axis=0).tolist() == [True, False, True, False, True]


def test_row_skipping_pays() -> None:
    tensors = {"w": normal(64, 48, 3, 3) * np.geomspace(0.1, 1, 64).astype("f4").reshape(-1, 1, 1, 1)}
    steps = "sparsify(method=rows, ratio=0.5)"
    skipped = nnr.encode(tensors, reduce=steps, row_skipping=True)
    assert len(skipped) < len(nnr.encode(tensors, reduce=steps, row_skipping=False))
    assert (~nnr.decode(skipped)["w"].reshape(64, -1).any(axis=1)).sum() == 32


# ------------------------------------------------------------------------------------------------ blocks
@pytest.mark.parametrize("block", ["1x1", "4x1x1", "2x3x4", "5x5"])
def test_whole_blocks_of_least_error_are_0(block: str) -> None:
    before = {name: weights()[name] for name in ("conv", "small", "fc")}
    tool = Sparsify(0.4, method="micro", block=block)
    got = changed(tool, before)
    gone, left = [0.0], [np.inf]
    for name, array in before.items():
        extents = tuple(int(part) for part in block.split("x"))
        grid = Blocks(array.shape, (*extents, 0) if len(extents) == 2 else extents)  # type: ignore[arg-type]
        rows, inside = grid.gathered(array.astype("f8")), grid.items()
        empty = ~grid.gathered(got[name]).any(axis=1)
        assert np.array_equal(got[name] == 0, grid.scattered(empty[:, None]))
        means = np.sqrt((rows**2).sum(axis=1) / inside)
        gone.append(means[empty].max(initial=0))
        left.append(means[~empty].min(initial=np.inf))
    assert max(gone) <= min(left) * (1 + 1e-5)


def test_each_superblock_gets_the_ratio() -> None:
    before = {"w": normal(20, 12, 3, 3) * np.geomspace(0.01, 1, 20).astype("f4").reshape(-1, 1, 1, 1)}
    got = changed(Sparsify(0.5, method="micro", block="2x2x1", superblock="8x8"), before)["w"]
    grid = Blocks(got.shape, (8, 8, 0))
    shares = grid.gathered(got != 0).sum(axis=1) / grid.items()
    assert len(shares) == 6 and (shares <= 0.5).all() and (shares > 0.45).all()
    free = changed(Sparsify(0.5, method="micro", block="2x2x1"), before)
    assert error(before, free) < error(before, {"w": got})


@pytest.mark.medium
@given(models(FLOATS), st.floats(0, 1), st.sampled_from([("2x1x1", "4x4"), ("1x3x2", "2x6x4"), ("2x2x3", "2x4x6")]))
def test_superblocks_one_by_one(tensors: dict[str, Array], ratio: float, sizes: tuple[str, str]) -> None:
    """In each superblock, the blocks of least root mean square become 0 until the ratio is reached."""
    kept = ordinary(tensors)
    if not kept:
        return
    block, superblock = (dimensions("x", text, whole=True) for text in sizes)
    got = changed(Sparsify(ratio, method="micro", block=sizes[0], superblock=sizes[1]), kept)
    for name, array in kept.items():
        grid, numbers = Blocks(array.shape, block, superblock), Blocks(array.shape, block, superblock).superblocks()
        before, after, inside = (
            grid.gathered(one) for one in (array.astype("f8"), got[name].astype("f8"), np.ones(array.shape))
        )
        largest = float(np.abs(before).max())
        for number in set(numbers.tolist()):
            gone, left, zero, size = [], [], 0, 0
            for old, new, real in zip(
                before[numbers == number], after[numbers == number], inside[numbers == number], strict=True
            ):
                size, zero = size + int(real.sum()), zero + int((old[real > 0] == 0).sum())
                there = int((old != 0).sum())
                assert not new.any() or np.array_equal(old, new)
                if there:
                    (left if new.any() else gone).append((float(np.sqrt((old**2).sum() / there)), there))
            wanted = ceil(Fraction(str(ratio)) * size) - zero
            assert sum(count for _, count in gone) >= wanted
            last = max((error for error, _ in gone), default=0.0)
            assert last <= min(left, default=(np.inf, 0))[0] + 1e-5 * largest
            assert not gone or sum(count for error, count in gone if error < last - 1e-5 * largest) < wanted


def test_zeros_that_are_there_count_in_blocks() -> None:
    weight = normal(16, 16)
    weight[:8] = 0
    for superblock in ("", "16x16"):
        tool = Sparsify(0.5, method="micro", block="2x2x1", superblock=superblock)
        assert np.array_equal(changed(tool, {"w": weight})["w"], weight)


@pytest.mark.medium
def test_large_blocks_and_long_kernels() -> None:
    """Squares of a block exceed 64 bits, and tensors are processed in parts."""
    long = np.full((3, 2, 1 << 20), 1.98, "f4")
    long[1, 0] = 1.9
    got = changed(Sparsify(0.1, method="micro"), {"w": long})["w"]
    assert got.any(axis=2).tolist() == [[True, True], [False, True], [True, True]]
    many = np.tile(np.repeat(np.arange(1, 5, dtype="f4"), 2), 100 * 1000).reshape(1000, 800)
    got = changed(Sparsify(0.25, method="micro", block="1x2x1"), {"w": many})["w"]
    assert np.array_equal(got, np.where(many == 1, 0, many))
    each = np.random.default_rng(0).permutation(700 * 900).reshape(700, 900).astype("f4")
    for wanted in (315000, 314997, 1000, 629000):  # the smallest ones, one of which is 0 already
        got = changed(Sparsify((wanted - 0.5) / each.size, method="micro"), {"w": each})["w"]
        assert np.array_equal(got, np.where(each < wanted, 0, each))
    got = changed(Sparsify(0.5, method="micro"), {"w": np.ones((600, 600), "f4")})["w"]
    assert not got[:300].any() and got[300:].all()  # all are equal: the first ones


# ------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "sparsify requires a ratio, such as sparsify(ratio=0.6), or a threshold"),
        ("ratio=1.5", "sparsify(ratio) 1.5 is outside 0..1"),
        ("threshold=-1", "sparsify(threshold) -1.0 is outside"),
        ("threshold=1e39", "sparsify(threshold) 1e+39 is outside"),
        ("ratio=0.5, threshold=0.1", "sparsify(threshold) requires method"),
        ("threshold=0.1, method=rows", "sparsify(threshold) requires method"),
        ("ratio=0.5, method=random", "no method 'random'; choose from magnitude, statistics, compressibility"),
        ("ratio=0.5, scope=row", "no scope 'row'; choose from global, local"),
        ("ratio=0.5, block=4x1x1", "require sparsify(method=micro)"),
        ("ratio=0.5, method=rows, superblock=64x64", "require sparsify(method=micro)"),
        ("ratio=0.5, method=micro, block=4y1", "sparsify(block) '4y1' must be up to three numbers"),
        ("ratio=0.5, method=micro, block=3x1, superblock=64x64", "do not divide"),
        ("ratio=0.5, tensors=x*", "no tensor that matches 'x*' is a float matrix"),
    ],
)
def test_options_that_mean_nothing(options: str, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=re.escape(message)):
        nnr.encode(weights(), reduce=f"sparsify({options})")


# ------------------------------------------------------------------------------------------------ bitstreams
@pytest.mark.parametrize("tool", WAYS, ids=str)
def test_a_bitstream(tool: Sparsify) -> None:
    """It states that the model is sparse, and contains the zeros; everything else is as without the step."""
    options = ", ".join(f"{name}={value}" for name, value in vars(tool).items() if value not in (None, "", False))
    data = nnr.encode(weights(), reduce=f"sparsify({options})")
    assert not nnr.verify(data).violations
    with nnr.open(data) as file:
        assert file.performance.maps == nnr.PerformanceMaps(sparsification=nnr.SparsificationMap())
    got, wanted = nnr.decode(data), changed(tool, weights())
    for name in matrices(wanted):
        assert not got[name][wanted[name] == 0].any()
    assert zeros(dict(got.tensors)) >= 0.5
    plain = nnr.decode(nnr.encode(weights()))
    assert_identical(got["bias"], plain["bias"])


def test_rows_of_a_map_are_kept() -> None:
    maps = nnr.PerformanceMaps(sparsification=nnr.SparsificationMap((nnr.SparsificationRow(0.5, 0.25, 0.75),)))
    model = Model(weights())
    prepared = Sparsify(0.5).apply(Prepared(model, model, Wiring(), maps=maps))
    assert prepared.maps == maps
    data = nnr.encode(weights(), reduce="sparsify(ratio=0.5)", performance=nnr.Performance(maps=maps))
    with nnr.open(data) as file:
        assert file.performance.maps == maps


def test_a_mask_is_asked_for() -> None:
    assert applied(Sparsify(0.5), weights()).pruning is None
    assert applied(Sparsify(0.5, mask=True), weights()).pruning == PruningInfo(sparse=True)
    model = Model(weights())
    known = Prepared(model, model, Wiring(), EncoderConfig(), pruning=PruningInfo({"w": (2, 3)}))
    assert Sparsify(0.5, mask=True).apply(known).pruning == PruningInfo({"w": (2, 3)}, sparse=True)
    assert Sparsify(0.5).apply(known).pruning == PruningInfo({"w": (2, 3)})


@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize("axis", [0, 1])
def test_tensors_that_share_a_unit_have_their_own_bits(axis: int, order: str) -> None:
    """They follow each other in the mask, whatever the dimension along which they are joined (errata N1)."""
    one = np.random.default_rng(0).normal(size=(9, 9, 4)).astype("f4")
    tensors = {"a": one, "b": one[:5] - 1 if axis == 0 else one[:, :5] - 1, "c": one.swapaxes(1, 2) + 1}
    reduce = f"sparsify(ratio=0.5, mask=true, order={order})"
    data = nnr.encode(tensors, join=["{a,b,c}"], reduce=reduce)
    assert not nnr.verify(data).violations
    found, without = nnr.decode(data), nnr.decode(nnr.encode(tensors, join=["{a,b,c}"], reduce="sparsify(ratio=0.5)"))
    for name in tensors:
        assert_identical(np.asarray(found[name]), np.asarray(without[name]))


@pytest.mark.parametrize("method", METHODS)
def test_the_mask_marks_zeros(method: str) -> None:
    """It has a bit for each parameter of tensors with two or more dimensions, in unit order (Table 19)."""
    reduce = f"sparsify(ratio=0.4, method={method}, mask=true)"
    data = nnr.encode(weights(), reduce=reduce)
    assert not nnr.verify(data).violations
    units = [unit.content for unit in nnr.units(data)]
    containers = [unit.pruning for unit in units if isinstance(unit, NnrTopologyUnitPayload)]
    (container,) = containers
    assert (container.sparse_flag, container.prune_flag, container.order_flag) == (1, 0, 1)
    wanted = nnr.reduce(weights(), reduce).model
    bits = [np.asarray(wanted[name] != 0).reshape(-1) for name in ("conv", "small", "fc", "count")]
    assert container.sparse_mask.bit_mask_value.tolist() == np.concatenate(bits).tolist()
    without = nnr.decode(nnr.encode(weights(), reduce=reduce.replace(", mask=true", "")))
    for name, array in nnr.decode(data).tensors.items():
        assert_identical(np.asarray(array), np.asarray(without[name]))


def test_a_mask_with_nan() -> None:
    """A signaling not-a-number, for which conversions would warn, is not 0."""
    tensors = {"w": weights()["conv"], "raw": np.ones((3, 4), "f4")}
    tensors["raw"].view("u4")[1, 2] = 0x7F800001
    data = nnr.encode(tensors, reduce="sparsify(threshold=0.01, mask=true)")
    assert not nnr.verify(data).violations
    assert nnr.decode(data)["raw"].tobytes() == tensors["raw"].tobytes()


def test_the_same_bytes_for_any_number_of_threads() -> None:
    for tool in WAYS:
        options = ", ".join(f"{name}={value}" for name, value in vars(tool).items() if value not in (None, "", False))
        one, many = (nnr.encode(weights(), reduce=f"sparsify({options})", jobs=jobs) for jobs in (1, 3))
        assert one == many


def test_the_size_follows_the_ratio() -> None:
    sizes = [len(nnr.encode(weights(), reduce=f"sparsify(ratio={ratio})")) for ratio in (0.1, 0.4, 0.7, 0.95)]
    assert sizes == sorted(sizes, reverse=True)
    assert prod(weights()["conv"].shape) * 4 > sizes[0]
