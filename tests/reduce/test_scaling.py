"""Scales of least squared error for quantized weights."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.config import EncoderConfig
from nnr_codec.constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS
from nnr_codec.encoder.facts import native, tensor_facts
from nnr_codec.encoder.planning import plan_tensor
from nnr_codec.encoder.rate_distortion import quant_param
from nnr_codec.encoder.scale_fitting import RANGE, fit
from nnr_codec.model import Array, Block, Model

from ..encoder.test_blocks import units
from ..encoder.test_fold import BN, MODEL, TENSORS, linear

RNG = np.random.default_rng(9)
#: A weight whose outputs get scales, with step sizes at which these save bytes.
WIDE = RNG.laplace(0, 0.05, (16, 3000)).astype("f4")
COARSE: dict[str, Any] = {"quality": 6.0, "effort": 1}


def squared(one: Array, other: Array) -> float:
    return float(((one.astype("f8") - other.astype("f8")) ** 2).sum())


def factors(name: str, raw: Mapping[str, Array], wanted: Array, axis: int = 0) -> Array:
    """Return the least squares of a coded weight, computed with numpy alone."""
    w, q = (np.moveaxis(m.astype("f8"), axis, 0).reshape(m.shape[axis], -1) for m in (wanted, raw[name]))
    squares = (q * q).sum(1)
    return np.divide((w * q).sum(1), squares, out=np.ones(len(q)), where=squares > 0)


# ------------------------------------------------------------------------------------------------ the scales
@given(
    st.integers(1, 6), st.integers(1, 40), st.integers(-30, 6), st.sampled_from([0.0, 0.3, 3.0]), st.integers(0, 2**32)
)
def test_no_other_scales_have_less_error(rows: int, columns: int, qp: int, rate: float, seed: int) -> None:
    weight = np.random.default_rng(seed).laplace(0, 1, (rows, columns)).astype("f4")
    facts = tensor_facts("w", native(weight), EncoderConfig(qp=qp, rate=rate, fine_vectors=False))
    plan = plan_tensor(facts, in_block=True)
    found = fit(facts, plan)
    q = quant_param(plan, facts).reshape(weight.shape).astype("f8") * plan.step
    before = squared(weight, q)

    def error(scales: Array) -> float:
        return squared(weight, q * scales[:, None])

    least = error(found.factors)
    assert ((found.factors >= 1 / RANGE) & (found.factors <= RANGE)).all()
    gain = found.gain(np.ones(rows), found.factors)
    assert before - least == pytest.approx(gain, rel=1e-6, abs=1e-6 * before + 1e-12)
    assert gain >= -1e-9
    for change in (0.99, 1.01):
        assert least <= error((found.factors * change).clip(1 / RANGE, RANGE)) * (1 + 1e-9)
    assert (found.factors[~q.any(axis=1)] == 1).all()


def test_sums_do_not_depend_on_their_order() -> None:
    weight = RNG.normal(0, 1, (3, 5000)).astype("f4")
    config = EncoderConfig(qp=0, dependent_quantization=False, rate=0)
    order = RNG.permutation(5000)
    one, other = (tensor_facts("w", native(array), config) for array in (weight, weight[:, order]))
    found = [fit(facts, plan_tensor(facts, in_block=True)).factors.tolist() for facts in (one, other)]
    assert found[0] == found[1]


def test_a_new_scale() -> None:
    """A weight outside blocks is coded with its scale if that saves bytes; its decoded value is their product."""
    plain, data = nnr.encode({"w": WIDE}, **COARSE), nnr.encode({"w": WIDE}, reduce="scale", **COARSE)
    assert not nnr.verify(data).violations
    assert units(data) == [(NNR_CPT_LS, ["w", "w_scaling"])]
    raw, got = nnr.decode(data, raw=True).tensors, nnr.decode(data).tensors
    np.testing.assert_array_equal(raw["w"], nnr.decode(plain)["w"])  # the same levels
    assert list(got) == ["w"]
    np.testing.assert_allclose(raw["w_scaling"], factors("w", raw, WIDE), atol=2.0**-5)
    assert squared(got["w"], WIDE) < 0.95 * squared(raw["w"], WIDE)
    assert len(data) < 1.01 * len(plain)
    larger = nnr.encode({"w": WIDE}, **{**COARSE, "quality": 6.25})
    assert len(larger) > len(data)  # nevertheless
    assert squared(nnr.decode(larger)["w"], WIDE) > squared(got["w"], WIDE)


def test_a_scale_that_does_not_pay() -> None:
    for options in ({"quality": 40.0}, {"quality": 6.0, "effort": 1}):
        tensors = {"w": WIDE if "effort" not in options else WIDE[:, :20]}
        assert units(nnr.encode(tensors, reduce="scale", **options)) == [(0, ["w"])]
    for step in (None, 0.01):  # no error, because of a codebook
        exact = {"w": np.round(WIDE / step) * np.float32(step) if step else np.sign(WIDE)}
        assert nnr.encode(exact, reduce="scale", effort=1) == nnr.encode(exact, effort=1)


@pytest.mark.parametrize("steps", ["scale", "fold, scale", "scale(method=gain), scale", "scale, fold"])
def test_normalizations_take_the_scales(steps: str) -> None:
    """They cost nothing there; the combined result of convolution and normalization has a smaller error."""
    options: dict[str, Any] = {"quality": 12.0, "rate": 0.0}
    before = steps.replace(", scale", "").replace("scale, ", "")
    plain = nnr.encode(MODEL, block=True, **options, **({} if before == "scale" else {"reduce": before}))
    data = nnr.encode(MODEL, reduce=steps, **options)
    assert not nnr.verify(data).violations
    assert units(data) == units(plain)
    assert abs(len(data) - len(plain)) < 24
    raw, known = nnr.decode(data, raw=True).tensors, nnr.decode(plain, raw=True).tensors
    np.testing.assert_array_equal(raw["conv.weight"], known["conv.weight"])
    wanted, got, was = (linear(m) for m in (TENSORS, nnr.decode(data).tensors, nnr.decode(plain).tensors))
    assert squared(got[0], wanted[0]) < 0.98 * squared(was[0], wanted[0])
    np.testing.assert_allclose(got[1], was[1], atol=0.02)  # only beta, and rounding errors


def test_what_normalizations_become() -> None:
    """gamma is multiplied by the scale, mean and bias are divided by it; beta and variance stay."""
    options: dict[str, Any] = {"quality": 12.0, "rate": 0.0}
    plain, got = (nnr.decode(nnr.encode(MODEL, **options, **o)).tensors for o in ({"block": True}, {"reduce": "scale"}))
    scales = factors("conv.weight", got, TENSORS["conv.weight"])
    for name, wanted in {"bn.gamma": scales, "bn.mean": 1 / scales, "conv.bias": 1 / scales}.items():
        np.testing.assert_allclose(got[name].reshape(-1), TENSORS[name].reshape(-1) * wanted, atol=0.02)
    for name in ("bn.beta", "bn.var"):
        np.testing.assert_array_equal(got[name], plain[name])


def test_a_scale_that_the_caller_has() -> None:
    scale = np.geomspace(0.5, 2, 16).astype("f4")
    model = Model({"w": WIDE, "s": scale}, blocks=[Block("w", scale="s")])
    plain, got = (nnr.decode(nnr.encode(model, **COARSE, reduce=steps), raw=True) for steps in ("", "scale"))
    np.testing.assert_array_equal(got["w"], plain["w"])
    np.testing.assert_allclose(got["s"] / scale, factors("w", got.tensors, WIDE), rtol=0.01)


def test_another_dimension() -> None:
    """The outputs of a transposed convolution have the scales, and its weight has another order of dimensions."""
    weight = np.moveaxis(WIDE.reshape(16, 60, 50), 0, 1)
    model = Model({"w": weight, "b": np.ones(16, "f4")}, blocks=[Block("w", bias="b", axis=1)])
    raw = nnr.decode(nnr.encode(model, reduce="scale", **COARSE), raw=True).tensors
    assert raw["w_scaling"].shape == (16,)
    got = nnr.decode(nnr.encode(model, reduce="scale", **COARSE))["w"]
    assert squared(got, weight) < 0.95 * squared(nnr.decode(nnr.encode(model, **COARSE))["w"], weight)
    assert got.shape == weight.shape


# ------------------------------------------------------------------------------------------------ unchanged tensors
@pytest.mark.parametrize(
    "options",
    [
        {"rules": (nnr.Rule("w", reducible=False),)},
        {"rules": (nnr.Rule("w", snr=8),)},
        {"rules": (nnr.Rule("w", codebook=5),)},
        {"max_error": 0.05, "quality": None},
        {"sensitivity": {"w": np.ones((16, 3000))}},
        {"compressed_parameter_types": NNR_CPT_BN | NNR_CPT_BI},
    ],
    ids=str,
)
def test_weights_without_scales(options: dict[str, Any]) -> None:
    """The other weight may have a scale."""
    tensors = {"w": WIDE, "v": WIDE[:, :64]}
    options = {**COARSE, **options}
    if "compressed_parameter_types" in options:
        with pytest.raises(nnr.EncodeError, match="local_scaling requires 2"):
            nnr.encode(tensors, reduce="scale", **options)
        return
    got = nnr.decode(nnr.encode(tensors, reduce="scale", **options), raw=True).tensors
    assert "w_scaling" not in got


@pytest.mark.parametrize("rule", [nnr.Rule("bn.gamma", reducible=False), nnr.Rule("bn.mean", exact=True)], ids=str)
def test_normalizations_that_stay(rule: nnr.Rule) -> None:
    options: dict[str, Any] = {"quality": 9.0, "rate": 0.0, "rules": (rule,)}
    assert nnr.encode(MODEL, reduce="scale(tensors=conv*)", **options) == nnr.encode(MODEL, block=True, **options)


def test_tensors_by_their_names() -> None:
    tensors = {"a.w": WIDE, "b.w": WIDE[::-1].copy(), "w_scaling": WIDE[0].copy(), "w": WIDE * 2}
    got = nnr.decode(nnr.encode(tensors, reduce="scale(tensors=b*|w)", **COARSE), raw=True).tensors
    assert {name for name in got if "_scaling" in name} == {"b.w_scaling", "w_scaling"}
    assert got["w_scaling"].shape == (3000,)  # a tensor of the model
    with pytest.raises(nnr.EncodeError, match="is a float matrix"):
        nnr.encode(tensors, reduce="scale(tensors=c)")


def test_tied_weights_have_no_scales() -> None:
    model = Model({"w": WIDE, "v": WIDE}, aliases={"v": "w"})
    assert nnr.encode(model, reduce="scale", **COARSE) == nnr.encode(model, **COARSE)


def test_options() -> None:
    with pytest.raises(nnr.EncodeError, match="choose from fit, gain"):
        nnr.encode({"w": WIDE}, reduce="scale(method=best)")
    gain = nnr.encode(MODEL, reduce="scale(method=gain)")
    assert gain == nnr.encode(MODEL, local_scaling=True)
    assert gain != nnr.encode(MODEL, reduce="scale(method=gain, tensors=up*)") == nnr.encode(MODEL, block=True)


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_same_for_any_number_of_threads(jobs: int) -> None:
    model = replace(MODEL, tensors={**TENSORS, "w": WIDE, "v": WIDE * 3})
    options: dict[str, Any] = {"reduce": "scale", **COARSE}
    assert nnr.encode(model, jobs=jobs, **options) == nnr.encode(model, **options)


def test_estimates_and_targets() -> None:
    model = Model({"w": WIDE, "v": RNG.normal(0, 1, (40, 50)).astype("f4")})
    data = nnr.encode(model, reduce="scale", **COARSE)
    assert 0.98 < nnr.estimate(model, reduce="scale", **COARSE).nbytes / len(data) < 1.02
    data = nnr.encode(model, reduce="scale", effort=1, target_size=9000)
    assert 8900 < len(data) <= 9000
    file = io.BytesIO()
    report = nnr.encode_file(model, file, reduce="scale", statistics=True, **COARSE)
    assert list(report.tensors) == ["w", "v"]
    assert report.nbytes == len(nnr.encode(model, reduce="scale", **COARSE))


def test_what_reduce_returns_has_no_scales() -> None:
    """Scales follow from levels, which do not exist yet."""
    found = nnr.reduce(MODEL, "scale")
    assert {name: array.tolist() for name, array in found.model.tensors.items()} == {
        name: array.tolist() for name, array in TENSORS.items()
    }
    assert set(BN) < set(found.model.tensors)


@pytest.mark.parametrize("qp", [-20, -10])
def test_scales_count_as_they_are_decoded(qp: int) -> None:
    """Quantization of scales with large step sizes may lose more than the scales gain."""
    options: dict[str, Any] = {"qp": qp, "rate": 0.0, "fine_vectors": False, "rules": (nnr.Rule("s", qp=-24),)}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        weight, scale = rng.normal(0, 1, (6, 900)).astype("f4"), rng.normal(1, 0.3, 6).astype("f4")
        model = Model({"w": weight, "s": scale}, blocks=[Block("w", scale="s")])
        plain, got = (nnr.decode(nnr.encode(model, reduce=steps, **options))["w"] for steps in ("", "scale"))
        assert squared(got / scale[:, None], weight) <= squared(plain / scale[:, None], weight) * (1 + 1e-6), seed


def test_a_scale_that_would_not_fit_its_unit() -> None:
    """The model is coded without it instead of being rejected."""
    weight = RNG.laplace(0, 1, (16, 700)).astype("f2")
    found = []
    for largest in np.geomspace(0.5, 4, 60):
        scale = np.full(16, largest, "f2")
        model = Model({"w": weight, "s": scale}, blocks=[Block("w", scale="s")])
        options: dict[str, Any] = {"qp": 2, "rate": 0.0, "rules": (nnr.Rule("s", qp=-37),)}
        found.append(_length(model, options))
        if found[-1]:
            assert _length(model, {**options, "reduce": "scale"})
    assert 0 < sum(map(bool, found)) < len(found)


def _length(model: Model, options: Mapping[str, Any]) -> int:
    """Return the size in bytes; 0 if the model is rejected."""
    try:
        return len(nnr.encode(model, **options))
    except nnr.EncodeError:
        return 0


def test_a_name_that_leaves_no_room() -> None:
    name = "w" * 4090
    assert nnr.encode({name: WIDE}, reduce="scale", **COARSE) == nnr.encode({name: WIDE}, **COARSE)
