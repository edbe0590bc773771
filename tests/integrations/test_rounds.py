"""Tests of federated-learning rounds, independent of the framework."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.integrations.rounds import (
    Base,
    Bases,
    as_type,
    check_finite,
    decode_reply,
    encode_reply,
    limits_for,
    lineage_of,
    minus,
    one_line,
    plus,
    reader,
)


@pytest.mark.medium
def test_without_flower() -> None:
    program = (
        "import sys; sys.modules['flwr'] = None\n"
        "import nnr_codec as nnr\n"
        "try: import nnr_codec.integrations.flower\n"
        "except nnr.MissingDependencyError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["the package flwr 1.41 or later is required; pip install 'nnr_codec[flower]'"]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2.5, "i8", 2),
        (-3.7, "i4", -4),
        (300.0, "u1", 255),
        (-1.0, "u2", 0),
        (1e300, "i8", (1 << 63) - 1024),
        (-1e300, "i8", -(1 << 63)),
        (float("nan"), "i4", 0),
        (0.49, "?", False),
        (0.5, "?", True),
        (1e300, "f4", np.inf),
        (7, "f2", 7),
    ],
)
def test_types_of_means(value: Any, dtype: str, expected: Any) -> None:
    for array in (np.array(value), np.full((2, 3), value)):
        found = as_type(array, dtype)
        assert found.dtype == np.dtype(dtype) and found.shape == array.shape
        assert np.all(found == np.array(expected, dtype))


def test_types_that_have_no_numbers() -> None:
    with pytest.raises(nnr.FormatError, match="complex"):
        as_type(np.zeros(2, complex), "f4")
    assert as_type(np.array(["a"]), np.array(["a"]).dtype) == "a"  # arrays that have the type are not checked


@pytest.mark.parametrize("dtype", ["u1", "i1", "u4", "i8", "u8", "?", "f2", "f4", "f8"])
def test_a_difference_is_added_again(dtype: str) -> None:
    rng = np.random.default_rng(0)
    high = 2 if dtype == "?" else 100
    base, new = (rng.integers(0, high, (4, 5)).astype(dtype) for _ in range(2))
    assert np.array_equal(plus(base, minus(new, base)), new) and plus(base, minus(new, base)).dtype == base.dtype
    assert plus(base[0, 0], minus(new[0, 0], base[0, 0])) == new[0, 0]


def test_sums_stay_within_their_type() -> None:
    assert plus(np.array([250], "u1"), np.array([20.0])) == 255
    assert plus(np.array([-120], "i1"), np.array([-20.4])) == -128
    assert plus(np.array([(1 << 63) + 5], "u8"), np.array([-5.0])) == np.array([1 << 63], "u8")
    masked = np.array([-np.inf, 1.0], "f4")
    assert minus(masked, masked).tolist() == [0, 0]


def test_values_that_are_not_finite() -> None:
    base = np.array([1, -np.inf, np.nan], "f4")
    check_finite("w", base, base)
    check_finite("w", np.array([1, np.nan, np.inf], "f4"), base)
    with pytest.raises(nnr.FormatError, match="'w'"):
        check_finite("w", np.array([np.nan, 0, 0], "f4"), base)


def test_bases() -> None:
    bases = Bases(2)
    first, second = (Base(key, {"w": np.zeros(3, "f4")}) for key in "ab")
    assert first.nbytes == 12 and len(bases) == 0 and not bases.due(1)
    bases.expect(first, 1, 1)
    bases.expect(first, 2, 1)
    bases.expect(second, 1, 2)
    assert bases.due(1) == [second, first] and bases.due(2) == [first]
    assert bases.find("a", 2) is first
    for key, sender in (("b", 2), ("c", 1), ("a", 3)):
        with pytest.raises(nnr.MissingReferenceError, match="was not sent to this client"):
            bases.find(key, sender)
    first.answered(2)
    bases.failed(1)
    assert bases.due(2) == [] and bases.due(1) == [first]
    bases.trim(2)
    assert len(bases) == 1 and bases.find("a", 1) is first
    bases.trim(3)
    assert len(bases) == 0


def test_the_same_model_in_two_rounds() -> None:
    bases, same = Bases(4), [Base("a", {}), Base("a", {})]
    bases.expect(same[0], 1, 1)
    bases.expect(same[1], 1, 2)
    assert bases.due(1) == [same[0]]
    same[0].answered(1)
    assert bases.find("a", 1) is same[0]
    same[0].answered(1)
    assert bases.due(1) == []


def test_a_model_that_is_sent_again() -> None:
    bases, models = Bases(4), [Base(key, {}) for key in "ab"]
    for number, sent in enumerate((models[0], models[1], models[0]), 1):
        bases.expect(sent, 1, number)
    assert bases.due(1) == models


def test_a_failure_is_that_of_a_whole_message() -> None:
    bases, models = Bases(4), [Base(key, {}) for key in "abc"]
    for sent, number in zip(models, (1, 2, 2), strict=True):
        bases.expect(sent, 1, number)
    bases.failed(1)
    assert bases.due(1) == models[:1]


def test_a_reply() -> None:
    rng = np.random.default_rng(0)
    base = {"w": rng.normal(size=(30, 40)).astype("f4"), "n": np.array(3, "i8"), "flag": np.array([True])}
    new = {"flag": np.array([False]), "n": np.array(9.4), "w": base["w"] + np.float32(0.5)}
    payload = encode_reply(base, new, nnr.UpdateEncoder(parent="external", base_model_id="key"))
    limits = limits_for([base])
    assert lineage_of(payload, limits).base == "key"
    tensors, update = decode_reply(payload, base, nnr.UpdateDecoder(like=base, limits=limits))
    assert [(name, x.dtype, x.shape) for name, x in tensors.items()] == [(n, x.dtype, x.shape) for n, x in base.items()]
    assert tensors["n"] == 9 and tensors["flag"].tolist() == [False] and update.whole == {"flag"}
    assert np.allclose(tensors["w"], new["w"], atol=0.1)
    read = reader(payload, base, limits, update.whole)
    assert all(np.array_equal(read(name), tensors[name]) for name in base)
    with pytest.raises(nnr.EncodeError, match="'flag'"):
        encode_reply(base, {"w": base["w"], "n": base["n"]}, nnr.UpdateEncoder())


def test_a_log_has_one_line_for_an_error() -> None:
    assert one_line(ValueError("a\n b\x1b[31m\u2028c")) == "a b?[31m c"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 1000))) == 300
