"""Goals of users and their results: quality, SNR, largest errors, sizes; estimates and tuning."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.ndu import coding_order
from nnr_codec.cabac_ext import quantizer
from nnr_codec.cabac_ext.kernel import TensorSyntax
from nnr_codec.encoder.facts import tensor_facts
from nnr_codec.encoder.goals import LEAST_QP, excerpt, qp_of, with_density
from nnr_codec.encoder.rate_distortion import distortion, power
from nnr_codec.model import Array, Block
from nnr_codec.syntax.deepcabac import STATE_TRANS_TAB
from nnr_codec.tensor.quant import step_size

from ..shared import SHARED, mostly_slow, needs_shared

pytestmark = pytest.mark.medium

Floats = npt.NDArray[np.float32]


def laplacian(seed: int, shape: tuple[int, ...], scale: float = 0.02) -> Floats:
    """Return values distributed like weights."""
    return np.random.default_rng(seed).laplace(0, scale, shape).astype("f4")


def network(scale: float = 1.0) -> dict[str, Array]:
    """Return tensors of several sizes, scales and densities, and vectors: 130,000 parameters."""
    pruned = laplacian(3, (200, 200)) * (np.random.default_rng(4).random((200, 200)) < 0.1)
    return {
        "a.weight": laplacian(1, (300, 200), 0.02 * scale),
        "a.bias": laplacian(2, (300,), 0.1 * scale),
        "b.weight": pruned.astype("f4") * np.float32(scale),
        "c.weight": laplacian(5, (16, 32, 3, 3), 0.2 * scale),
        "d.weight": laplacian(6, (500, 50), 0.002 * scale),
        "d.bias": laplacian(7, (500,), 0.1 * scale),
    }


MODEL = network()
NBYTES = sum(array.nbytes for array in MODEL.values())


def snr(before: Array, after: Array) -> float:
    """Return the signal-to-noise ratio in dB."""
    wide = before.astype("f8")
    noise = float(((wide - after.astype("f8")) ** 2).sum())
    return float(10 * np.log10((wide**2).sum() / noise)) if noise else float("inf")


def matrices(model: Mapping[str, Array]) -> list[str]:
    """Return the names of the tensors that are not vectors."""
    return [name for name in model if model[name].ndim > 1]


# ------------------------------------------------------------------------------------------------ foundations
@pytest.mark.parametrize("scan_order", [0, 2])
def test_resolving_follows_the_states(scan_order: int) -> None:
    levels = np.random.default_rng(1).integers(-4, 5, (70, 45)).astype("i4")
    syntax = TensorSyntax(levels.shape, dq_flag=1, scan_order=scan_order)
    expected, state = np.zeros(levels.size, "i4"), 0
    for index in coding_order(syntax).tolist():
        level = int(levels.flat[index])
        expected[index] = 2 * level - (state & 1) * np.sign(level)
        state = STATE_TRANS_TAB[state][level & 1]
    found = levels.reshape(-1).copy()
    quantizer.resolve(found, found, block_scan=syntax.block_scan)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_resolving_a_few(size: int) -> None:
    levels = np.ones(size, "i4")
    quantizer.resolve(levels, levels)
    assert levels.tolist() == [2, 2, 1][:size]  # states 0, 2, 3


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(
    "options",
    [{}, {"qp": -20}, {"scan_order": 1}, {"dependent_quantization": False}, {"codebook": 9}, {"profile": 0}],
    ids=str,
)
def test_distortion_is_that_of_the_decoded_tensor(dtype: str, options: dict[str, Any]) -> None:
    from nnr_codec.encoder.planning import plan_tensor

    values = laplacian(1, (70, 90), 0.1).astype(dtype)
    facts = tensor_facts("w", values, nnr.EncoderConfig(**options))
    found = distortion(facts, plan_tensor(facts))
    errors = values.astype("f8") - nnr.decode(nnr.encode({"w": values}, **options))["w"].astype("f8")
    assert found.noise == pytest.approx((errors**2).sum(), rel=1e-9)
    assert found.signal == pytest.approx((values.astype("f8") ** 2).sum(), rel=1e-9)
    assert found.largest == np.abs(errors).max()


def test_power_does_not_depend_on_the_order() -> None:
    values = np.random.default_rng(1).standard_cauchy(100_000)
    assert power(values) == power(np.sort(values)) == power(values[::-1].copy())
    assert power(values) == pytest.approx((values**2).sum())
    assert power(np.zeros(3)) == 0
    assert power(np.zeros(0)) == 0


def test_steps_and_their_qp() -> None:
    for qp in (-4096, -1281, -1280, -1, 0, 1, 127, 128, 4095):
        assert qp_of(step_size(qp, 7)) == qp
        assert qp_of(step_size(qp, 7) * 1.0001) == qp
        assert qp_of(step_size(qp, 7) * 0.9999) == max(qp - 1, LEAST_QP)


def test_a_density_of_7_has_the_same_steps() -> None:
    rules = [nnr.Rule("a", qp=-7), nnr.Rule("b", exact=True), nnr.Rule("c", qp=None)]
    before = nnr.EncoderConfig(qp=-33, rules=rules, overrides={"d": {"qp": 5}, "e": {"qp": -3, "rate": 0.0}})
    after = with_density(before)
    assert after.qp_density == 7
    for name in "abcdef":
        steps = [step_size(one.for_tensor(name).step_qp(one.qp_density), one.qp_density) for one in (before, after)]
        assert steps[0] == steps[1]
        assert before.for_tensor(name).exact == after.for_tensor(name).exact
    assert after.for_tensor("e").rate == 0


@pytest.mark.parametrize("shape", [(10, 10), (1000, 100), (4, 50_000), (100_000,), (3, 100, 400), (100_000, 1)])
def test_excerpts(shape: tuple[int, ...]) -> None:
    whole = tensor_facts("w", np.arange(np.prod(shape), dtype="f4").reshape(shape), nnr.EncoderConfig(scan_order=1))
    some = excerpt(whole, 1 << 12)
    if whole.array.size <= 1 << 12:
        assert some is whole
        return
    assert 1 << 11 <= some.array.size <= 1 << 12
    assert np.isin(some.array, whole.array).all()
    assert some.array.min() == 0
    assert some.array.max() == whole.array.max()
    assert len(np.unique(some.array)) == some.array.size


# ------------------------------------------------------------------------------------------------ quality
def test_quality_is_about_the_snr() -> None:
    names = matrices(MODEL)
    sizes = []
    for quality in (10, 25, 40, 55, 70, 85):
        data = nnr.encode(MODEL, quality=quality)
        sizes.append(len(data))
        decoded = nnr.decode(data)
        before = np.concatenate([MODEL[name].reshape(-1) for name in names])
        found = snr(before, np.concatenate([decoded[name].reshape(-1) for name in names]))
        assert quality - 2 < found < quality + 6 or quality < 20
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_quality_does_not_depend_on_the_scale() -> None:
    sizes = {scale: len(nnr.encode(network(scale), quality=35)) for scale in (1.0, 2.0**-8, 2.0**8)}
    assert max(sizes.values()) < min(sizes.values()) * 1.001


def test_a_quality_of_some_tensors_is_theirs_alone() -> None:
    rules = [nnr.Rule("c.*", quality=20), nnr.Rule("d.*", quality=20)]
    data = nnr.encode(MODEL, rules=rules)
    decoded, plain = nnr.decode(data), nnr.decode(nnr.encode(MODEL))
    assert np.array_equal(decoded["a.weight"], plain["a.weight"])
    assert 17 < snr(MODEL["c.weight"], decoded["c.weight"]) < 30
    assert 10 <= snr(MODEL["d.weight"], decoded["d.weight"]) < 12  # its floor: it has a hundredth of the other's scale


def test_presets_are_ordered() -> None:
    sizes = [
        len(nnr.encode(MODEL, nnr.EncoderConfig.preset(name))) for name in ("small", "balanced", "fine", "lossless")
    ]
    assert sizes == sorted(sizes)
    assert nnr.EncoderConfig.preset("small", snr=30) == nnr.EncoderConfig(snr=30)
    assert nnr.EncoderConfig.preset("small", effort=1) == nnr.EncoderConfig(quality=30.0, effort=1)


def test_the_preset_of_adapters_treats_vectors_as_factors_and_keeps_magnitudes() -> None:
    rng = np.random.default_rng(3)
    names = ("m.lora_A.weight", "m.lora_B.weight", "m.lora_magnitude_vector", "m.bias")
    adapter = {name: rng.standard_normal(256, np.float32) for name in names}
    adapter["m.lora_B.weight"] = rng.standard_normal((256, 1), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = nnr.decode(nnr.encode(adapter, preset="lora"))
        nnr.encode({"w": rng.standard_normal((20, 30), np.float32)}, preset="lora")  # its rules match nothing
    errors = [snr(adapter[name], decoded[name]) for name in names]
    assert min(errors[:2]) >= 48.5 and max(errors[:2]) < 50 and errors[2] == np.inf and errors[3] > 55
    config = nnr.EncoderConfig.preset("lora", rules=[nnr.Rule("*.lora_B*", snr=60)], effort=3)
    assert [rule.pattern for rule in config.rules] == ["*lora_[!m]*", "*lora_magnitude_vector*", "*.lora_B*"]
    assert config.for_tensor(names[1]).snr == 60 and config.for_tensor(names[0]).snr == 48.5
    assert nnr.EncoderConfig.preset("lora", quality=30).snr is None
    with pytest.raises(nnr.EncodeError, match="rules must be a sequence of Rule, got 5"):
        nnr.EncoderConfig.preset("lora", rules=5)


# ------------------------------------------------------------------------------------------------ snr, max_error
@pytest.mark.parametrize("floor", [0, 1, 6, 20.5, 45, 70, 100, 130, 400])
def test_the_snr_of_every_tensor(floor: float) -> None:
    decoded = nnr.decode(nnr.encode(MODEL, snr=floor))
    for name, values in MODEL.items():
        assert snr(values, decoded[name]) >= floor
        if values.ndim > 1 and 6 <= floor <= 70:
            assert snr(values, decoded[name]) < floor + 0.3


@pytest.mark.parametrize("bound", [1e-12, 1e-7, 3e-5, 0.001, 0.01, 0.3, 1e6])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_no_error_exceeds_the_bound(bound: float, dtype: str) -> None:
    model = {name: values.astype(dtype) for name, values in MODEL.items()}
    decoded = nnr.decode(nnr.encode(model, max_error=bound))
    for name, values in model.items():
        errors = np.abs(values.astype("f8") - decoded[name].astype("f8"))
        assert errors.max() <= bound
        if dtype == "f4" and values.ndim > 1 and 3e-5 <= bound <= 0.01 and name != "b.weight":
            assert errors.max() > min(0.95 * bound, 0.95 * np.abs(values).max())


@pytest.mark.parametrize("effort", [1, 9])
@pytest.mark.parametrize("options", [{"snr": 33.0}, {"max_error": 0.002}], ids=str)
def test_floors_hold_at_every_effort(effort: int, options: dict[str, Any]) -> None:
    model = {name: MODEL[name] for name in ("b.weight", "c.weight", "a.bias")}
    decoded = nnr.decode(nnr.encode(model, effort=effort, **options))
    for name, values in model.items():
        assert snr(values, decoded[name]) >= options.get("snr", 0)
        assert np.abs(values - decoded[name]).max() <= options.get("max_error", 1)


@pytest.mark.parametrize("options", [{"snr": 40.0}, {"max_error": 0.01}, {"quality": 40.0}], ids=str)
def test_types_that_numpy_does_not_have(options: dict[str, Any]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = laplacian(1, (60, 70), 0.1).astype(ml_dtypes.bfloat16)
    decoded = nnr.decode(nnr.encode({"w": values}, **options))["w"]
    assert decoded.dtype == values.dtype
    assert snr(values, decoded) >= options.get("snr", 0)
    assert np.abs(values.astype("f8") - decoded.astype("f8")).max() <= options.get("max_error", 1)


def test_goals_of_rules() -> None:
    rules = [nnr.Rule("*.weight", snr=30), nnr.Rule("c.*", max_error=0.01), nnr.Rule("d.*", exact=True)]
    decoded = nnr.decode(nnr.encode(MODEL, qp=-20, rules=rules))
    assert 30 <= snr(MODEL["a.weight"], decoded["a.weight"]) < 30.3
    assert 30 <= snr(MODEL["b.weight"], decoded["b.weight"]) < 30.3
    assert np.abs(MODEL["c.weight"] - decoded["c.weight"]).max() <= 0.01
    assert np.array_equal(MODEL["d.weight"], decoded["d.weight"])


def test_the_bound_of_blocks() -> None:
    model = {"w": laplacian(1, (20, 30)), "b": laplacian(2, (20,)), "s": 1 + laplacian(3, (20,))}
    blocks = nnr.Model(model, blocks=[nnr.Block("w", bias="b")])
    for options in ({"max_error": 1e-3}, {"snr": 25.0}):
        decoded = nnr.decode(nnr.encode(blocks, **options))
        for name in "wb":
            assert np.abs(model[name] - decoded[name]).max() <= options.get("max_error", 1)
            assert snr(model[name], decoded[name]) >= options.get("snr", 0)


# ------------------------------------------------------------------------------------------------ sizes
@pytest.mark.parametrize("ratio", [0.004, 0.007, 0.01, 0.013, 0.03, 0.0713, 0.1, 0.2, 0.4, 0.5])
def test_a_target_is_met_within_1_percent_and_never_exceeded(ratio: float) -> None:
    size = len(nnr.encode(MODEL, target_ratio=ratio))
    assert 0.99 * ratio * NBYTES <= size <= ratio * NBYTES


@pytest.mark.parametrize("ratio", [0.004, 0.02, 0.08, 0.25, 0.5])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_target_of_one_tensor(ratio: float, dtype: str) -> None:
    values = laplacian(1, (400, 250)).astype(dtype)
    size = len(nnr.encode({"w": values}, target_size=int(ratio * values.size * 4)))
    assert 0.99 * ratio * values.size * 4 <= size <= ratio * values.size * 4


@pytest.mark.parametrize("dtype", ["f2", "bfloat16"])
def test_targets_of_narrow_types(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = laplacian(1, (400, 300)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for ratio in (0.05, 0.2):
        assert (
            0.99 * ratio * values.nbytes <= len(nnr.encode({"w": values}, target_ratio=ratio)) <= ratio * values.nbytes
        )


@pytest.mark.parametrize(
    "options",
    [
        {"dependent_quantization": False},
        {"effort": 1},
        {"scan_order": 2, "indexed_references": True},
        {"profile": 0},
        {"qp_density": 0, "rules": (nnr.Rule("bias", qp=-9),)},
        {"rules": [nnr.Rule("c.*", exact=True), nnr.Rule("a.bias", qp=-40), nnr.Rule("b.*", snr=20)]},
        {"exact": False},
    ],
    ids=str,
)
def test_targets_with_other_options(options: dict[str, Any]) -> None:
    size = len(nnr.encode(MODEL, target_size=80_000, **options))
    assert 79_200 <= size <= 80_000


def test_the_target_spares_values_that_no_step_suits() -> None:
    w = np.random.default_rng(3).normal(0, 0.1, (40, 90)).astype("f4")
    huge = w[:, :10] * np.float32(1e31)
    data = nnr.encode({"huge": huge, "w": w}, target_size=3500)
    assert 3400 <= len(data) <= 3500
    np.testing.assert_array_equal(nnr.decode(data)["huge"], huge)


def test_the_target_spares_tensors_with_goals_of_their_own() -> None:
    decoded = nnr.decode(nnr.encode(MODEL, target_ratio=0.1, rules=[nnr.Rule("c.*", exact=True)]))
    assert np.array_equal(decoded["c.weight"], MODEL["c.weight"])
    assert not np.array_equal(decoded["a.weight"], MODEL["a.weight"])


def test_allocation_is_no_worse_than_one_step_for_all() -> None:
    """At about the same size, the error is compared with an interpolation between finer and coarser step sizes."""
    names = matrices(MODEL)

    def of(**options: Any) -> tuple[int, float]:
        data = nnr.encode(MODEL, **options)
        decoded = nnr.decode(data)
        return len(data), float(sum(((MODEL[name] - decoded[name]).astype("f8") ** 2).sum() for name in names))

    points = [of(qp=qp, qp_density=4) for qp in range(-190, -90, 2)]
    for target in (40_000, 60_000):
        size, noise = of(target_size=target)
        sizes, noises = zip(*sorted(points), strict=True)
        assert sizes[0] < size < sizes[-1]
        assert np.log2(noise) < np.interp(size, sizes, np.log2(noises)) + 0.05


def test_tied_tensors_stay_tied() -> None:
    model = {"a": MODEL["a.weight"], "b": MODEL["a.weight"], "c": MODEL["c.weight"]}
    target = 20_000
    data = nnr.encode(model, target_size=target)
    assert 0.99 * target <= len(data) <= target
    decoded = nnr.decode(data)
    assert decoded["a"] is decoded["b"]


@pytest.mark.parametrize("jobs", [2, 5])
def test_the_same_bytes_for_any_number_of_jobs(jobs: int) -> None:
    for options in ({"target_ratio": 0.1}, {"snr": 30}, {"max_error": 0.01}, {"quality": 30}):
        assert nnr.encode(MODEL, jobs=jobs, **options) == nnr.encode(MODEL, **options)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ({}, 1),
        ({"i": np.arange(1000, dtype="i4").reshape(10, 100)}, 100),
        ({"n": np.full((300, 300), np.nan, "f4")}, 1),
        (MODEL, 300),
    ],
)
def test_targets_out_of_reach(model: dict[str, Array], target: int) -> None:
    with pytest.raises(
        nnr.EncodeError, match=rf"coarsest step sizes, more than the target of {target:,} bytes; use a larger"
    ):
        nnr.encode(model, target_size=target)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ({}, 100_000),
        ({"i": np.arange(1000, dtype="i4").reshape(10, 100)}, 10_000),
        ({"z": np.zeros((300, 300), "f4")}, 5000),
        (MODEL, 10 * NBYTES),
    ],
)
def test_a_target_that_lossless_meets_is_lossless(model: dict[str, Array], target: int) -> None:
    assert nnr.encode(model, target_size=target) == nnr.encode(model, exact=True)


ODD: dict[str, dict[str, Array]] = {
    "nothing": {},
    "one": {"w": np.ones((1, 1), "f4")},
    "tiny": {"w": laplacian(1, (3, 4)), "b": laplacian(2, (3,))},
    "constant": {"w": np.full((50, 60), 0.37, "f4"), "v": np.full(7, 2.5, "f4")},
    "zeros": {"w": np.zeros((50, 60), "f4"), "v": np.zeros(7, "f4")},
    "integers": {"w": np.arange(300, dtype="i2").reshape(10, 30), "u": np.arange(9, dtype="u1")},
    "scalars and empty ones": {"s": np.float32(3.5).reshape(()), "e": np.zeros((0, 3), "f4")},
    "not finite": {"w": np.array([[1, np.nan], [np.inf, -0.0]], "f4")},
    "huge": {"w": laplacian(1, (30, 40), 1e30)},
    "small": {"w": laplacian(1, (30, 40), 1e-30)},
    "far apart": {"w": np.array([[1e-30, 1e30], [1, -1]], "f4")},
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    "options", [{"quality": 40}, {"snr": 30}, {"max_error": 0.01}, {"quality": 0}, {"quality": 100}], ids=str
)
def test_odd_models(name: str, options: dict[str, Any]) -> None:
    model = ODD[name]
    decoded = nnr.decode(nnr.encode(model, **options))
    assert list(decoded) == list(model)
    for key, values in model.items():
        assert decoded[key].shape == values.shape
        finite = np.isfinite(values)
        assert np.array_equal(finite, np.isfinite(decoded[key]))
        errors = np.abs(np.where(finite, values, 0).astype("f8") - np.where(finite, decoded[key], 0))
        assert not errors.size or errors.max() <= options.get("max_error", np.inf)
        if "snr" in options and values.any() and finite.all():
            assert snr(values, decoded[key]) >= 30


def test_a_target_of_a_tiny_model_is_not_exceeded() -> None:
    for target in (150, 200, 260):
        model = {"w": laplacian(1, (12, 14)), "b": laplacian(2, (3,))}
        assert 0.9 * target <= len(nnr.encode(model, target_size=target)) <= target


# ------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qp": 1, "snr": 3}, "qp and snr cannot be combined; choose one"),
        ({"quality": 50, "target_size": 7}, "quality and target_size cannot be combined"),
        ({"target_size": 7, "target_ratio": 0.1}, "target_size and target_ratio cannot be combined"),
        ({"exact": True, "quality": 50}, "exact=True keeps every bit, so quality has no effect"),
        ({"exact": True, "target_ratio": 0.5}, "so target_ratio has no effect"),
        ({"quality": 101}, "quality 101 is outside 0..100"),
        ({"quality": -1}, "quality -1 is outside 0..100"),
        ({"quality": True}, "quality must be a finite number, got True"),
        ({"snr": -1}, "snr -1 is outside 0..3000"),
        ({"snr": float("nan")}, "snr must be a finite number, got nan"),
        ({"snr": "40"}, "snr must be a finite number, got '40'"),
        ({"max_error": 0}, "max_error must be above 0, got 0; use exact to keep every bit"),
        ({"max_error": -1e-3}, r"max_error -0.001 is outside 0..1e\+300"),
        ({"max_error": float("inf")}, "max_error must be a finite number"),
        ({"target_size": 0}, "target_size must be at least 1 byte, got 0"),
        ({"target_size": 2.5e6}, "target_size must be an integer, got 2500000.0"),
        ({"target_ratio": 0.0}, "target_ratio must be above 0, got 0.0"),
        ({"target_ratio": 15}, "target_ratio 15 is above 1; 15 % is 0.15"),
        ({"target_ratio": float("inf")}, "target_ratio must be a finite number"),
        ({"fine_vectors": None}, "fine_vectors must be true or false"),
        ({"rules": [nnr.Rule("*", snr=3, quality=3)]}, "snr and quality cannot be combined|quality and snr cannot"),
        ({"rules": [nnr.Rule("*", snr=3, exact=True)]}, "so snr has no effect"),
        ({"overrides": {"w": {"qp": 4096}}}, "qp 4096 is outside"),
        ({"overrides": {"w": 3}}, "overrides of 'w' must be a mapping of options, got 3"),
        ({"overrides": ["w"]}, "overrides must be a mapping"),
        ({"rules": 3}, "rules must be a sequence of Rule, got 3"),
        ({"deflate_topology": "no"}, "deflate_topology must be true or false, got 'no'"),
        ({"indexed_references": 1}, "indexed_references must be true or false, got 1"),
    ],
)
def test_wrong_goals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.EncoderConfig(**options)


def test_the_goal_of_a_rule_replaces_any_other() -> None:
    rules = [nnr.Rule("a", qp=-4), nnr.Rule("b", max_error=0.1), nnr.Rule("c", exact=True)]
    config = nnr.EncoderConfig(snr=30, rules=rules, overrides={"a": {"quality": 3}})
    a, b, c, d = map(config.for_tensor, "abcd")
    assert (a.qp, a.snr, a.quality) == (None, None, 3)
    assert (b.snr, b.max_error) == (None, 0.1)
    assert (c.exact, d.snr) == (True, 30)


@pytest.mark.parametrize(
    "goal", mostly_slow(2, [{"snr": 45.0}, {"max_error": 1e-3}, {"snr": 250.0}, {"quality": 45.0}]), ids=str
)
def test_goals_of_single_tensors(goal: dict[str, float]) -> None:
    """They are in overrides or rules, beside goals of the model and other options."""
    rule = nnr.Rule("c.weight", **goal)
    for options in ({}, {"quality": 50}, {"target_size": 60_000}):
        found = nnr.encode(MODEL, overrides={"c.weight": goal}, **options)
        assert found == nnr.encode(MODEL, rules=[rule], **options)
    tuned = nnr.tune(MODEL, lambda model: 0.0, tolerance=0, budget=3, overrides={"a.bias": goal})
    assert tuned.nbytes < len(nnr.encode(MODEL, overrides={"a.bias": goal}))


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_floors_in_blocks(dependent: bool, seed: int) -> None:
    """The weight determines dependent quantization of a bias that was planned differently."""
    weight, bias = laplacian(seed, (31, 9)), laplacian(50 + seed, (31,))
    model = nnr.Model({"w": weight, "b": bias}, blocks=[Block("w", bias="b")])
    rules = [nnr.Rule("w", qp=-42, dependent_quantization=dependent)]
    rules += [nnr.Rule("b", snr=93.7, dependent_quantization=not dependent)]
    data = nnr.encode(model, rules=rules)
    assert nnr.encode(model, rules=rules, codebook=5)  # which bias and weight have separately
    assert snr(bias, nnr.decode(data)["b"]) >= 93.7


@pytest.mark.parametrize("scale", [2.0**600, 2.0**300, 2.0**-300, 2.0**-600])
def test_goals_of_doubles_far_from_1(scale: float) -> None:
    """Their squares exceed doubles, or are 0; no step size is suitable."""
    model = {"w": laplacian(1, (40, 30)).astype("f8") * scale, "v": laplacian(2, (50,)).astype("f8") * scale}
    decoded = nnr.decode(nnr.encode(model, snr=30))
    assert all(snr(model[name] / scale, decoded[name] / scale) >= 30 for name in model)
    assert nnr.encode(model, quality=50)


# ------------------------------------------------------------------------------------------------ estimates
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qp": -20},
        {"exact": True},
        {"scan_order": 3},
        {"row_skipping": True},
        {"quality": 30},
        {"target_ratio": 0.1},
    ],
    ids=str,
)
def test_estimates(options: dict[str, Any]) -> None:
    model = {**MODEL, "large": laplacian(9, (900, 300)), "i": np.arange(1200, dtype="i4").reshape(30, 40)}
    estimated = nnr.estimate(model, **options)
    report = nnr.encode_file(model, io.BytesIO(), **options)
    assert list(estimated.tensors) == list(report.tensors)
    assert estimated.nbytes == pytest.approx(report.nbytes, rel=0.03)
    assert (estimated.parameters, estimated.source_bytes) == (report.parameters, report.source_bytes)
    for name, tensor in report.tensors.items():
        assert estimated.tensors[name].unit_bytes == pytest.approx(tensor.unit_bytes, rel=0.05, abs=20)


@pytest.mark.parametrize("name", ODD)
def test_estimates_of_odd_models(name: str) -> None:
    for options in ({}, {"exact": True}):
        assert nnr.estimate(ODD[name], **options).nbytes == pytest.approx(
            len(nnr.encode(ODD[name], **options)), rel=0.1, abs=60
        )


@pytest.mark.parametrize("target_size", mostly_slow(2, [60_000, 124_000, 76_000, 84_000, 140_000]))
def test_targets_where_a_tensor_becomes_exact(target_size: int) -> None:
    """Its size changes by much at one step size; the other tensors use the remaining bytes."""
    grid = np.random.default_rng(9).integers(-3, 3, (400, 300)) * np.float32(3)
    model = {"a": laplacian(1, (200, 200)), "b": grid, "c": laplacian(2, (5000,), 0.2)}
    assert 0.99 * target_size <= len(nnr.encode(model, target_size=target_size)) <= target_size


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize("name", ["resnet20_cifar10", "squeezenet1_0_deepcompression"])
def test_real_models(name: str) -> None:
    assert SHARED
    model = nnr.load(SHARED / "models" / f"{name}.safetensors")
    nbytes = sum(array.nbytes for array in model.tensors.values())
    size = len(nnr.encode(model, target_ratio=0.07))
    assert 0.99 * 0.07 * nbytes <= size <= 0.07 * nbytes
    assert nnr.estimate(model, target_ratio=0.07).nbytes == pytest.approx(size, rel=0.02)


# ------------------------------------------------------------------------------------------------ tuning
class Score:
    """Metric that weights tensors differently, and counts its calls."""

    def __init__(self, cares: Mapping[str, float]) -> None:
        self.cares, self.calls = cares, 0

    def __call__(self, model: nnr.Model) -> float:
        self.calls += 1
        lost = [care * ((MODEL[name] - model[name]).astype("f8") ** 2).mean() for name, care in self.cares.items()]
        return 1 - float(np.sum(lost))


def test_tuning() -> None:
    score = Score({"a.weight": 10.0, "c.weight": 0.1, "d.weight": 1.0})
    found = nnr.tune(MODEL, score, tolerance=1e-3, budget=30)
    assert score.calls == found.evaluations <= 30
    assert found.reference == 1
    assert found.score >= 1 - 1e-3
    data = nnr.encode(MODEL, found.config)
    assert len(data) == found.nbytes
    assert score(nnr.decode(data)) == found.score
    qps = {name: found.config.for_tensor(name).qp for name in MODEL}
    assert qps["a.weight"] < qps["c.weight"]  # type: ignore[operator]
    assert found.nbytes < 0.6 * len(nnr.encode(MODEL))
    assert found.nbytes < len(nnr.encode(MODEL, qp=-26))


def test_tuning_from_steps_that_are_too_coarse() -> None:
    score = Score({"a.weight": 1.0, "c.weight": 1.0})
    found = nnr.tune(MODEL, score, tolerance=1e-6, budget=12, qp=20)
    assert found.score >= 1 - 1e-6
    assert score(nnr.decode(nnr.encode(MODEL, found.config))) == found.score


def test_tuning_keeps_what_rules_keep() -> None:
    config = nnr.EncoderConfig(rules=[nnr.Rule("c.*", exact=True)])
    found = nnr.tune(MODEL, lambda model: 0.0, tolerance=0, config=config, budget=8)
    decoded = nnr.decode(nnr.encode(MODEL, found.config))
    assert np.array_equal(decoded["c.weight"], MODEL["c.weight"])
    assert not decoded["a.weight"].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1}, "tolerance must be a number of at least 0, got -1"),
        ({"tolerance": float("nan")}, "tolerance must be a number of at least 0, got nan"),
        ({"tolerance": 0, "budget": 1}, "budget must be at least 2 evaluations, got 1"),
        ({"tolerance": 0, "target_size": 1000}, "target_size leaves nothing to tune; remove it"),
    ],
)
def test_wrong_tuning(options: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.tune(MODEL, lambda model: 0.0, **options)


@pytest.mark.parametrize("budget", [2, 3, 40])
def test_a_score_that_no_steps_keep(budget: int) -> None:
    scores = iter([1.0, *[0.5] * (min(budget, 11) - 1)])
    with pytest.raises(nnr.EncodeError, match=r"none of the tried step sizes keeps the score within 0.1 of 1"):
        nnr.tune(MODEL, lambda model: next(scores), tolerance=0.1, budget=budget)
