"""Comparison of tensors, models and outputs."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.compare import compare_outputs, compare_tensors
from nnr_codec.dtypes import STORED_TYPES


def f4(*values: float) -> Any:
    return np.array(values, "f4")


def test_errors_by_hand() -> None:
    found = compare_tensors(f4(3, 4, 0, 0).reshape(2, 2), f4(3, 4, 1, -2).reshape(2, 2))
    assert (found.size, found.count, found.largest, found.first) == (4, 2, 2.0, (1, 0))
    assert (found.expected, found.got) == (0.0, 1.0)
    assert found.rms == pytest.approx(math.sqrt(5 / 4))
    assert found.snr == pytest.approx(10 * math.log10(25 / 5))


def test_the_same() -> None:
    values = f4(1, -0.0, math.nan, math.inf, -math.inf)
    found = compare_tensors(values, values.astype(">f4"))
    assert (found.count, found.first, found.rms, found.snr, found.signal) == (0, None, 0.0, math.inf, 1.0)
    assert compare_tensors(values[:0], values[:0]).snr == math.inf


def test_floats_are_the_same_by_their_bits() -> None:
    quiet = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], "u4").view("f4")
    for a, b in ((f4(-0.0), f4(0.0)), (quiet[:1], quiet[1:2]), (quiet[:1], quiet[2:])):
        found = compare_tensors(a, b)
        assert (found.count, found.first, found.largest, found.snr) == (1, (0,), 0.0, math.inf)
        models = nnr.compare_models({"w": a}, {"w": b})
        assert (models.same(), models.same(0.0), models.worst) == (False, True, "w")
        wide = nnr.compare_models({"w": a}, {"w": b.astype("f8")})
        assert (wide.tensors["w"].count, wide.same(), wide.same(0.0)) == (0, False, True)


@pytest.mark.parametrize(
    ("a", "b"), [(1, math.nan), (math.nan, 1), (1, math.inf), (math.inf, -math.inf), (math.nan, math.inf)]
)
def test_invalid_numbers(a: float, b: float) -> None:
    found = compare_tensors(f4(2, a), f4(2, b))
    assert (found.count, found.largest, found.first, found.snr, found.rms) == (1, math.inf, (1,), -math.inf, math.inf)


def test_extremes() -> None:
    big = np.array([1e308, -1e308])
    assert compare_tensors(big, -big).largest == math.inf
    assert compare_tensors(f4(0, 0), f4(0, 1)).snr == -math.inf
    near = np.array([2**62, 1]), np.array([2**62 + 1, 1])
    assert compare_tensors(*near).count == 1
    assert compare_tensors(*near).largest == 1
    assert not nnr.compare_models({"w": near[0]}, {"w": near[1]}).same(0.0)


@pytest.mark.parametrize("dtype", ["b1", "i1", "u8", "f2", "f8", "g", "c8", "c16"])
def test_types(dtype: str) -> None:
    a, b = np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype)
    found = compare_tensors(a, b)
    assert (found.count, found.largest, found.noise, found.signal, found.first) == (1, 1.0, 1.0, 2.0, (2,))
    assert compare_tensors(a, a.astype("f4") if a.dtype.kind != "c" else a).count == 0


@pytest.mark.parametrize("name", sorted(STORED_TYPES))
def test_stored_types(name: str) -> None:
    dtype = STORED_TYPES[name].dtype
    a, b = np.array([[0, 1], [1, 1]], dtype), np.array([[0, 1], [0, 1]], dtype)
    found = compare_tensors(a, b)
    assert (found.count, found.largest, found.noise, found.signal, found.first) == (1, 1.0, 1.0, 3.0, (1, 0))
    assert (found.expected, found.got, type(found.expected) in (bool, int, float)) == (1, 0, True)
    assert compare_tensors(a, a.T.copy().T).count == 0
    for empty in (a[:0], a[:, :0]):
        assert compare_tensors(empty, empty).count == 0
    assert compare_tensors(a[1, 0].reshape(()), b[1, 0].reshape(())).first == ()
    models = nnr.compare_models({"w": a}, {"w": a.astype(np.float64)})
    assert models.dtypes == ({"w": (name, "float64")} if name != "float64" else {})
    assert (models.same(), models.same(0.0), models.tensors["w"].count) == (name == "float64", True, 0)


def test_large_integers() -> None:
    top = np.array([2**64 - 1, 2**64 - 2, 5], "u8")
    found = compare_tensors(top, np.array([2**64 - 1, 2**64 - 1, 7], "u8"))
    assert (found.count, found.largest, found.noise) == (2, 2.0, 5.0)
    found = compare_tensors(np.array([-(2**63)], "i8"), np.array([2**63 - 1], "i8"))
    assert found.largest == 2.0**64
    assert compare_tensors(np.array([-1], "i8"), top[:1]).count == 1


def test_bits_that_are_not_of_the_value() -> None:
    """An int4 is stored in a byte, whose upper half is arbitrary."""
    a, b = (np.array([value], "u1").view(ml_dtypes.int4) for value in (0x03, 0xF3))
    assert compare_tensors(a, b).count == 0


def test_a_number() -> None:
    found = compare_tensors(np.array(1, "i4"), np.array(2, "i4"))
    assert (found.first, found.expected, found.got) == ((), 1, 2)


def test_models() -> None:
    w = f4(1, 2)
    a = {"same": w, "value": w, "shape": w, "type": w, "gone": w}
    b = {"new": w, "type": w.astype("f8"), "shape": w.reshape(1, 2), "value": w + f4(0, 0.5), "same": w}
    told: list[object] = []
    found = nnr.compare_models(a, b, lambda *args: told.append(args))
    assert (found.missing, found.extra) == (["gone"], ["new"])
    assert found.shapes == {"shape": ((2,), (1, 2))}
    assert found.dtypes == {"type": ("float32", "float64")}
    assert list(found.tensors) == ["same", "value", "type"]
    assert (found.worst, found.snr) == ("value", pytest.approx(10 * math.log10(15 / 0.25)))
    assert told == [(name, k, 5) for k, name in enumerate(a, 1)]
    assert not found.same()
    assert not found.same(1.0)


def test_the_ratio_is_not_that_of_integers_which_are_the_same() -> None:
    w, steps = f4(3, 4), np.array([10**9, 1])
    models = {"w": w, "steps": steps, "mask": np.array([True])}
    assert nnr.compare_models(models, models).snr == math.inf
    found = nnr.compare_models(models, {**models, "w": f4(3, 5)})
    assert found.snr == found.tensors["w"].snr == pytest.approx(10 * math.log10(25))
    found = nnr.compare_models(models, {**models, "steps": steps + 1})
    assert found.snr == pytest.approx(10 * math.log10((1e18 + 1 + 25) / 2))


def test_the_order_of_bytes_is_no_type() -> None:
    assert nnr.compare_models({"w": f4(1, 2).astype(">f4")}, {"w": f4(1, 2)}).same()


def test_tolerance() -> None:
    a, b = {"w": f4(1, 2)}, {"w": f4(1, 2.5).astype("f8")}
    found = nnr.compare_models(a, b)
    assert [found.same(tolerance) for tolerance in (None, 0.0, 0.49, 0.5)] == [False, False, False, True]
    typed = nnr.compare_models(a, {"w": a["w"].astype("f8")})
    assert [typed.same(tolerance) for tolerance in (None, 0.0)] == [False, True]
    assert nnr.compare_models(a, a).same()
    assert nnr.compare_models({}, {}).same()
    assert nnr.compare_models(a, a).worst is None
    assert not nnr.compare_models(a, {"w": f4(1, math.nan)}).same(1e30)


def test_a_bitstream_decodes_one_tensor_at_a_time() -> None:
    model = nnr.Model({"a": f4(1, 2), "b": f4(3)})
    with nnr.open(nnr.encode(model)) as file:
        found = nnr.compare_models(model, file)
    assert list(found.tensors) == ["a", "b"]
    assert found.same(1e-3)


def test_outputs() -> None:
    a = np.array([[1, 2, 0], [5, 0, 0], [0, 0, 0], [0, 0, 1]], "f4")
    b = np.array([[2, 4, 0], [0, 5, 0], [0, 0, 0], [0, 0, 0]], "f4")
    found = compare_outputs(a, b)
    assert (found.samples, found.top_1, found.largest) == (4, 0.5, 5.0)
    assert found.cosine == pytest.approx((1 + 0 + 1 + 0) / 4)
    assert compare_outputs(a, a).cosine == pytest.approx(1)
    assert compare_outputs(a.reshape(4, 3, 1), b.reshape(4, 3, 1)) == found
    for c in (a[:2], a[:, :2], a[:0]):
        with pytest.raises(nnr.FormatError):
            compare_outputs(c, a if c.size else c)
