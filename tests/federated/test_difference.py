"""Differences of tensors of every type, and their sums with the base."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.dtypes import STORED_TYPES, bit_patterns
from nnr_codec.errors import FormatError
from nnr_codec.federated.difference import BITS, Difference, add, difference
from nnr_codec.model import Array

from ..arrays import KINDS, LAYOUTS, SHAPES, assert_identical, from_patterns, in_memory, made, patterns, specials

FLOATS = [name for name, stored in STORED_TYPES.items() if stored.kind == "f"]
COUNTS = [name for name, stored in STORED_TYPES.items() if stored.kind in "iu" and stored.bits >= 8]


@st.composite
def pairs(draw: st.DrawFn, types: list[str] | None = None) -> tuple[Array, Array]:
    """Draw a tensor, and one of the same shape and type that shares some or no items."""
    type_name = draw(st.sampled_from(types or list(STORED_TYPES)))
    shape, seed = draw(st.sampled_from(SHAPES)), draw(st.integers(0, 2**16))
    base = made(draw(st.sampled_from(list(KINDS))), shape, type_name, seed)
    new = made(draw(st.sampled_from(list(KINDS))), shape, type_name, seed + 1)
    kept = np.random.default_rng(seed).random(shape) < draw(st.sampled_from([0.0, 0.5, 0.99, 2.0]))
    stored = STORED_TYPES[type_name]
    mixed = from_patterns(np.where(kept, patterns(base).astype("u8"), patterns(new).astype("u8")), stored)
    return in_memory(base, draw(st.sampled_from(LAYOUTS))), in_memory(mixed, draw(st.sampled_from(LAYOUTS)))


def is_exact(found: Difference, type_name: str) -> bool:
    """Return whether the sum must be the new tensor, bit for bit."""
    return found.kind != "difference" or STORED_TYPES[type_name].kind != "f"


@given(pairs(), st.booleans(), st.booleans())
def test_the_sum_is_the_new_tensor(pair: tuple[Array, Array], lossless: bool, sort: bool) -> None:
    base, new = pair
    before = base.copy()
    found = difference(base, new, lossless=lossless, smallest=sort)
    assert found.array.shape == new.shape
    got = add(base, found.array, found.kind, by_exponent=found.by_exponent)
    assert_identical(base, before)
    assert (found.kind == "same") is bool((patterns(base) == patterns(new)).all())
    if lossless or is_exact(found, new.dtype.name):
        assert_identical(got, new, found.kind)
    else:
        equal = patterns(base) == patterns(new)
        assert (got.dtype.name, got.shape) == (new.dtype.name, new.shape)
        assert (patterns(got)[equal] == patterns(new)[equal]).all()
        assert np.isfinite(found.array).all()
        assert (found.array[equal] == 0).all()


def after_a_step(type_name: str, size: int) -> tuple[Array, Array]:
    """Return weights before and after a small step of their float64 values."""
    rng, dtype = np.random.default_rng(1), STORED_TYPES[type_name].dtype
    values = rng.normal(0, 0.02, size)
    return values.astype(dtype), (values + rng.normal(0, 1e-6, size)).astype(dtype)


@pytest.mark.parametrize("size", [999, 100_000])
@pytest.mark.parametrize("type_name", BITS)
def test_differences_after_a_step_are_sorted_stably_by_exponent(type_name: str, size: int) -> None:
    base, new = after_a_step(type_name, size)
    stored = STORED_TYPES[type_name]
    exponents = patterns(base).astype("u4") >> stored.mantissa & ((1 << stored.exponent) - 1)
    found = difference(base, new, lossless=True, smallest=True)
    assert found.by_exponent
    in_order = difference(base, new, lossless=True).array
    assert np.array_equal(found.array, in_order[np.argsort(exponents, kind="stable")])
    assert_identical(add(base, found.array, "bits", by_exponent=True), new)


def test_differences_in_a_few_rows_keep_their_order() -> None:
    base, new = (tensor.reshape(500, 200) for tensor in after_a_step("bfloat16", 100_000))
    new[20:] = base[20:]
    assert not difference(base, new, lossless=True, smallest=True).by_exponent


@pytest.mark.parametrize("type_name", BITS)
def test_the_tensor_replaces_a_larger_difference(type_name: str) -> None:
    base, _ = after_a_step(type_name, 1000)
    assert difference(base, -base, lossless=True).kind == "bits"
    assert difference(base, -base, lossless=True, smallest=True).kind == "whole"


def test_integers_have_no_order_of_exponents() -> None:
    base = np.arange(5, dtype=np.int32)
    with pytest.raises(FormatError, match="the order of exponents cannot be added to int32"):
        add(base, base, "difference", by_exponent=True)


@given(pairs())
def test_the_types_of_differences(pair: tuple[Array, Array]) -> None:
    base, new = pair
    stored = STORED_TYPES[new.dtype.name]
    for lossless in (False, True):
        found = difference(base, new, lossless=lossless)
        if found.kind == "whole":
            assert found.array is new
            continue
        floats = stored.kind == "f" and found.kind != "bits"
        wanted = "float64" if floats and stored.bits == 64 else "float32" if floats else "int32"
        assert found.array.dtype == np.dtype(wanted)  # in native byte order
        if found.kind == "bits":
            assert lossless and stored.name in BITS
        if found.kind == "difference" and stored.kind == "f":
            assert not lossless


@given(pairs(FLOATS))
def test_only_differences_that_are_not_finite_are_whole(pair: tuple[Array, Array]) -> None:
    base, new = pair
    work = np.float64 if new.dtype.name == "float64" else np.float32
    with np.errstate(all="ignore"):
        values = new.astype(work) - base.astype(work)
    finite = bool((np.isfinite(values) | (patterns(base) == patterns(new))).all())
    assert (difference(base, new).kind != "whole") is finite


@pytest.mark.parametrize("name", FLOATS)
def test_infinities_and_nan_may_stay(name: str) -> None:
    stored = STORED_TYPES[name]
    values = from_patterns(specials(stored), stored)
    with np.errstate(invalid="ignore"):
        base, one = values[~np.isfinite(values)], np.array([1], stored.dtype)
    changed = difference(np.append(base, one - one), np.append(base, one))
    assert changed.kind == "difference" and changed.array.tolist() == [0] * len(base) + [1]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_small_changes_of_floats_come_back(name: str) -> None:
    stored = STORED_TYPES[name]
    base = made("normal", (65, 9), name, 1)
    change = 0.01 * made("normal", (65, 9), "float64", 2)
    new = np.asarray((base.astype("f8") + change).astype(stored.dtype))
    found = difference(base, new)
    assert found.kind == "difference"
    got = add(base, found.array, found.kind)
    errors = np.abs(got.astype("f8") - new.astype("f8"))
    assert (errors <= (0 if stored.bits == 16 else 2.0**-stored.mantissa * np.abs(base.astype("f8")))).all()


@pytest.mark.parametrize("name", BITS)
def test_bits_count_neighbours(name: str) -> None:
    stored = STORED_TYPES[name]
    zero, top = 0, 1 << (stored.bits - 1)
    infinity = ((1 << stored.exponent) - 1) << stored.mantissa
    #                       -0.0 is next to 0.0, the largest number to infinity, and the last NaN to the first
    base = from_patterns(np.array([zero, top, 5, top | 5, infinity - 1, top - 1]), stored)
    new = from_patterns(np.array([top, zero, 7, top | 7, infinity, 2 * top - 1]), stored)
    found = difference(base, new, lossless=True)
    assert (found.kind, found.array.tolist()) == ("bits", [-1, 1, 2, -2, 1, 1])


@pytest.mark.parametrize("name", COUNTS)
def test_differences_of_integers_do_not_wrap(name: str) -> None:
    """Other decoders add them as numbers."""
    stored = STORED_TYPES[name]
    low, high = (np.array(stored.range[end], stored.dtype) for end in (0, 1))
    width = stored.range[1] - stored.range[0]
    for base, new, change in ((low, high, width), (high, low, -width)):
        found = difference(base, new)
        assert found.kind == ("difference" if stored.bits < 32 else "whole")
        if found.kind == "difference":
            assert found.array == change


@pytest.mark.parametrize("name", COUNTS)
def test_sums_of_integers_wrap(name: str) -> None:
    stored = STORED_TYPES[name]
    low, high = (np.array(stored.range[end], stored.dtype) for end in (0, 1))
    assert_identical(add(high, np.array([3], "i4"), "difference"), (low + stored.dtype.type(2)).reshape(()))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["int64", "uint64"])
def test_differences_beyond_int32_are_whole(name: str, sign: int) -> None:
    base = np.array([1 << 40, 7], name)
    edge = (1 << 31) - (sign > 0)  # the largest one
    inside, beyond = (np.array([(1 << 40) + sign * by, 7], name) for by in (edge, edge + 1))
    assert difference(base, inside).kind == "difference"
    assert difference(base, beyond).kind == "whole"


@pytest.mark.parametrize("name", [name for name, stored in STORED_TYPES.items() if stored.bits < 8])
def test_small_types_are_whole(name: str) -> None:
    base = from_patterns(np.array([0, 1, 1]), STORED_TYPES[name])
    new = from_patterns(np.array([0, 1, 0]), STORED_TYPES[name])
    assert difference(base, base.copy()).kind == "same"
    assert difference(base, new).kind == "whole"
    with pytest.raises(FormatError, match=f"int32 cannot be added to {name}"):
        add(base, np.ones(3, "i4"), "difference")


@pytest.mark.parametrize("name", [name for name in FLOATS if name not in BITS])
def test_lossless_without_order_is_whole(name: str) -> None:
    base, new = made("normal", (17,), name, 1), made("normal", (17,), name, 2)
    assert difference(base, new, lossless=True).kind == "whole"
    assert difference(base, new).kind == "difference"
    with pytest.raises(FormatError, match="cannot be added"):
        add(base, np.ones(17, "i4"), "bits")


def test_other_shapes_types_and_new_tensors_are_whole() -> None:
    new = np.ones((2, 3), "f4")
    for base in (None, np.ones((3, 2), "f4"), np.ones(6, "f4"), np.ones((2, 3), "f8"), np.ones((2, 3), "i4")):
        for lossless in (False, True):
            found = difference(base, new, lossless=lossless)
            assert found.kind == "whole" and found.array is new
    assert difference(np.zeros((0, 3)), np.zeros((0, 4))).kind == "whole"
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).kind == "same"


def test_signs_of_zeros_are_not_the_same() -> None:
    zeros = np.zeros(2, "f4")
    found = difference(zeros, -zeros)
    assert found.kind == "difference" and not found.array.any()
    assert difference(zeros, -zeros, lossless=True).array.tolist() == [-1, -1]


@pytest.mark.parametrize("name", FLOATS)
def test_zeros_keep_every_bit(name: str) -> None:
    stored = STORED_TYPES[name]
    base = from_patterns(specials(stored), stored)
    assert_identical(add(base, np.zeros(base.size, "f4"), "difference"), base)


def test_any_shape_with_as_many_items() -> None:
    for base in (np.float32(2).reshape(()), np.full((1, 1), 2, "f4")):
        assert_identical(add(base, np.array([0.5], "f4"), "difference"), np.full(base.shape, 2.5, "f4"))
        assert_identical(add(base, np.array([1]), "bits"), np.nextafter(base, np.float32(3)).reshape(base.shape))
    base = np.arange(6, dtype=">i2").reshape(2, 3)
    got = add(base, np.arange(6, dtype=">i4").reshape(3, 2), "difference")
    assert_identical(got, 2 * np.arange(6, dtype="i2").reshape(2, 3))
    with pytest.raises(FormatError, match=r"of shape \(5,\) does not fit a tensor of shape \(2, 3\)"):
        add(base, np.zeros(5, "i4"), "difference")


@pytest.mark.parametrize("name", FLOATS)
def test_a_sum_that_is_not_finite_is_refused(name: str) -> None:
    stored = STORED_TYPES[name]
    with np.errstate(invalid="ignore"):
        values = from_patterns(specials(stored), stored)
        values = values[np.isfinite(values)]
    largest = values[np.argmax(values.astype("f8"))].reshape(())
    work = "f8" if name == "float64" else "f4"
    for change in (largest.astype(work), np.array(np.inf, work), np.array(np.nan, work)):
        with pytest.raises(FormatError, match=f"exceeds the range of {name}"):
            add(largest, change, "difference")
    base = from_patterns(specials(stored), stored)
    with np.errstate(invalid="ignore"):
        base = base[~np.isfinite(base)]
    assert_identical(add(base, np.ones(base.size, work), "difference"), base)


@pytest.mark.parametrize(
    ("base", "array", "kind"),
    [("f4", "i4", "difference"), ("i4", "f4", "difference"), ("f4", "f4", "bits"), ("i4", "i4", "bits"),
     ("f4", "?", "difference"), ("i4", "?", "difference"), ("f4", "c8", "difference"), ("S4", "i4", "bits")],
)  # fmt: skip
def test_types_that_do_not_go_together(base: str, array: str, kind: str) -> None:
    with pytest.raises(FormatError, match=r"cannot be added|not supported"):
        add(np.zeros(3, base), np.zeros(3, array), kind)  # type: ignore[arg-type]


def test_types_that_no_model_has() -> None:
    for base, new in ((None, np.zeros(3, "c8")), (np.zeros(3, "S4"), np.zeros(3, "f4"))):
        with pytest.raises(FormatError, match=r"tensors of type .* are not supported"):
            difference(base, new)


def test_equal_tensors_take_no_memory() -> None:
    found = difference(np.zeros((1000, 1000)), np.zeros((1000, 1000)))
    assert found.kind == "same" and found.array.shape == (1000, 1000) and not any(found.array.strides)
    assert bit_patterns(found.array[:1]).tolist() == [0] * 1000
