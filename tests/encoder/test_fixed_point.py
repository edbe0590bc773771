"""The option fixed_point: every float is the nearest number of Q7.8, and saturation is reported."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

import nnr_codec as nnr
from nnr_codec.constants import NNR_NDU
from nnr_codec.model import Array, Model
from nnr_codec.tensor.quant import step_size

from ..shared import SHARED, needs_shared
from .test_fold import EPSILON, MODEL, TENSORS
from .test_fold import C as CHANNELS

RNG = np.random.default_rng(12)
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.nnef"


def nearest(values: Array) -> npt.NDArray[np.float32]:
    """Return the numbers of Q7.8, by integer arithmetic."""
    levels = []
    for value in np.asarray(values, "f8").reshape(-1).tolist():
        numerator, denominator = value.as_integer_ratio()
        level, rest = divmod(256 * numerator, denominator)
        level += 2 * rest > denominator or (2 * rest == denominator and level & 1)
        levels.append(max(-32768, min(32767, level)))
    return (np.array(levels, "f8") / 256).astype("f4").reshape(np.shape(values))


def assert_nearest(decoded: Mapping[str, Array], tensors: Mapping[str, Array]) -> None:
    for name, tensor in tensors.items():
        assert decoded[name].dtype == np.float32
        assert decoded[name].shape == tensor.shape
        assert np.array_equal(decoded[name], nearest(tensor)), name


def encoded(tensors: Mapping[str, Array] | Model, **options: Any) -> bytes:
    """Return a bitstream that was encoded without a warning of saturation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnr.SaturationWarning)
        return nnr.encode(tensors, fixed_point="q7.8", **options)


#: Ties, the ends of the range and their neighbours, tiny and huge numbers.
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, 0.5 + 1e-12, 32766.5, 32767.49, -32768.5, -32769, 1e-300, 3e38, -3e38]
EDGE = np.array(EDGES) / 256


@pytest.mark.parametrize("profile", [0, 1])
@pytest.mark.parametrize("density", range(8))
def test_each_value_is_the_nearest_one(profile: int, density: int) -> None:
    tensors = {
        "matrix": RNG.normal(0, 1, (20, 33)).astype("f4"),
        "vector": RNG.normal(0, 40, 50).astype("f4"),
        "scalar": np.array(2.7182818, "f4"),
        "edges": EDGE.astype("f4"),
        "wide edges": EDGE.reshape(3, 5),
        "half": RNG.normal(0, 3, (7, 8)).astype("f2"),
        "brain": RNG.normal(0, 3, (7, 8)).astype(ml_dtypes.bfloat16),
        "few": RNG.choice([0, 0.3, -7.77], (60, 40)).astype("f4"),
    }
    data = encoded(tensors, profile=profile, qp_density=density)
    assert_nearest(nnr.decode(data).tensors, tensors)
    for unit in nnr.units(data):
        if unit.header.nnr_unit_type == NNR_NDU and unit.ndu.dq_flag is not None:
            assert not unit.ndu.dq_flag
    assert step_size(-8 << density, density) == 2.0**-8


@given(
    st.sampled_from(["f2", "f4", "f8"]).flatmap(
        lambda dtype: hn.arrays(
            dtype,
            hn.array_shapes(max_dims=3, max_side=6),
            elements=st.floats(-200, 200, width=16)
            | hn.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False),
        )
    )
)
def test_any_tensor(tensor: Array) -> None:
    assert_nearest(nnr.decode(encoded({"w": tensor})).tensors, {"w": tensor})


@pytest.mark.parametrize("effort", range(1, 10))
def test_efforts_and_tools_change_no_value(effort: int) -> None:
    tensors = {"w": RNG.normal(0, 1, (64, 70)).astype("f4"), "p": RNG.choice([0, 1, -9], (64, 64)).astype("f4")}
    options = {"scan_order": 2} if effort % 2 else {"codebook": 0, "dependent_quantization": False, "rate": 0}
    assert_nearest(nnr.decode(encoded(tensors, effort=effort, **options)).tensors, tensors)


def test_a_codebook_is_chosen_where_it_takes_less() -> None:
    values = RNG.choice([-60.123, 0.4711, 11.0, 99.9], (80, 80)).astype("f4")
    with_book, without = encoded({"w": values}), encoded({"w": values}, codebook=0)
    (unit,) = [unit for unit in nnr.units(with_book) if unit.header.nnr_unit_type == NNR_NDU]
    assert unit.ndu.codebook_present_flag
    assert len(with_book) < len(without)
    assert_nearest(nnr.decode(with_book).tensors, {"w": values})


def test_integers_and_empty_tensors_stay_as_they_are() -> None:
    tensors = {"i": np.arange(-5, 6), "u": np.arange(4, dtype="u1"), "b": np.array([True, False])}
    tensors["e"] = np.zeros((0, 3), "f8")
    decoded = nnr.decode(encoded(tensors))
    for name, tensor in tensors.items():
        assert decoded[name].dtype == tensor.dtype
        assert np.array_equal(decoded[name], tensor)


def test_saturation_is_reported() -> None:
    tensors = {
        "fine": np.array([-128, 127.996], "f4"),
        "a": np.array([[1, 128, -300.5]], "f4"),
        "rounded": np.array([-128.001, 127.9979], "f4"),  # the nearest numbers are the extreme ones
        "b": np.array([1e30]),
    }
    with pytest.warns(nnr.SaturationWarning) as told:
        data = nnr.encode(tensors, fixed_point="q7.8")
    (warning,) = [one.message for one in told]
    assert isinstance(warning, nnr.SaturationWarning)
    assert warning.tensors == {"a": nnr.Saturation(2, -300.5), "b": nnr.Saturation(1, 1e30)}
    assert str(warning) == (
        "parameters outside -128..127.99609375 of q7.8 saturate: 'a' (2, the largest -300.5), "
        "'b' (1, the largest 1e+30)"
    )
    again = pickle.loads(pickle.dumps(warning))  # the error may come from another process
    assert (str(again), again.tensors) == (str(warning), warning.tensors)
    assert_nearest(nnr.decode(data).tensors, tensors)
    with pytest.warns(nnr.SaturationWarning):
        nnr.estimate(tensors, fixed_point="q7.8")


def test_many_names_are_abbreviated() -> None:
    with pytest.warns(nnr.SaturationWarning) as told:
        nnr.encode({f"{'n' * 300}{k}": np.array([200.0]) for k in range(11)}, fixed_point="q7.8")
    message = str(told[0].message)
    assert "and 3 more tensors" in message
    assert len(message) < 8 * 250


def test_the_same_bytes_for_any_number_of_threads() -> None:
    tensors = {f"t{k}": RNG.normal(0, 50, (30, 40)).astype("f4") for k in range(6)}
    assert encoded(tensors) == encoded(tensors, jobs=3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16])
def test_values_that_are_not_finite(wrong: float, dtype: Any) -> None:
    tensor = np.array([0.5, wrong]).astype(dtype)
    with pytest.raises(nnr.EncodeError, match=r"tensor 'conv/weight' has values that are not finite"):
        nnr.encode({"fine": np.ones(3), "conv/weight": tensor}, fixed_point="q7.8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"qp": -32}, "qp"),
        ({"quality": 30.0}, "quality"),
        ({"snr": 30.0}, "snr"),
        ({"max_error": 0.1}, "max_error"),
        ({"target_size": 1000}, "target_size"),
        ({"target_ratio": 0.1}, "target_ratio"),
        ({"exact": True}, "exact"),
        ({"exact": False}, "exact"),
        ({"dependent_quantization": True}, "dependent_quantization"),
        ({"rate": 0.5}, "rate"),
        ({"codebook": 16}, "codebook"),
        ({"local_scaling": True}, "local_scaling"),
        ({"sensitivity": {}}, "sensitivity"),
        ({"hessians": {}}, "hessians"),
        ({"rules": [nnr.Rule("a*", qp=-20)]}, "qp"),
        ({"rules": [nnr.Rule("a*", exact=True)]}, "exact"),
        ({"overrides": {"a": {"codebook": 4}}}, "codebook"),
    ],
)
def test_nothing_else_decides_on_errors(options: dict[str, Any], named: str) -> None:
    with pytest.raises(
        nnr.EncodeError, match=f"fixed_point determines all step sizes, so {named} has no effect; omit it$"
    ):
        nnr.EncoderConfig(fixed_point="q7.8", **options)


@pytest.mark.parametrize("wrong", ["q8.7", "Q7.8", "", 8, ["q7.8"], True])
def test_other_formats_there_are_not(wrong: Any) -> None:
    with pytest.raises(nnr.EncodeError, match=r"fixed_point must be q7\.8, got "):
        nnr.EncoderConfig(fixed_point=wrong)


def test_presets_with_goals_are_refused() -> None:
    assert nnr.EncoderConfig.preset("default", fixed_point="q7.8").fixed_point == "q7.8"
    for preset in ("small", "fine", "lossless", "3gpp-full"):
        with pytest.raises(nnr.EncodeError, match="fixed_point determines"):
            nnr.EncoderConfig.preset(preset, fixed_point="q7.8")


def test_updates_have_none() -> None:
    with pytest.raises(nnr.EncodeError, match="fixed_point applies to whole models"):
        nnr.encode_update({"w": np.ones(3)}, {"w": np.zeros(3)}, nnr.EncoderConfig(fixed_point="q7.8"))


# ------------------------------------------------------------------------------------------------ blocks
def test_blocks_hold_the_same_numbers() -> None:
    assert_nearest(nnr.decode(encoded(MODEL, block=True)).tensors, TENSORS)


def test_folding_leaves_an_offset() -> None:
    """Weights are multiplied by alpha before they are rounded, and the normalization only adds an offset."""
    decoded = nnr.decode(encoded(MODEL, fold_batchnorm=True)).tensors
    value = {name: tensor.astype("f8").reshape(-1) for name, tensor in TENSORS.items() if tensor.ndim == 2}
    alpha = value["bn.gamma"] / np.sqrt(value["bn.var"] + EPSILON)
    weight = TENSORS["conv.weight"].astype("f8") * alpha.reshape(-1, 1, 1, 1)
    assert np.abs(decoded["conv.weight"] - weight).max() <= 2**-9 + 1e-6
    assert np.array_equal(decoded["conv.weight"], nearest(decoded["conv.weight"]))
    assert np.array_equal(decoded["bn.gamma"], np.ones((1, CHANNELS), "f4"))
    assert not decoded["bn.mean"].any()
    assert not decoded["conv.bias"].any()
    assert np.array_equal(decoded["bn.var"], np.full((1, CHANNELS), 1 - EPSILON, "f4"))
    delta = (value["conv.bias"] - value["bn.mean"]) * alpha + value["bn.beta"]
    assert np.abs(decoded["bn.beta"].reshape(-1) - delta).max() <= 2**-9 + 1e-6
    assert_nearest(decoded, {name: TENSORS[name] for name in ("up.weight", "up.bias")})


def test_folding_where_alpha_is_0() -> None:
    tensors = {**TENSORS, "bn.gamma": np.zeros_like(TENSORS["bn.gamma"])}
    decoded = nnr.decode(encoded(Model(tensors, MODEL.topology), fold_batchnorm=True)).tensors
    assert not decoded["conv.weight"].any()
    assert_nearest(decoded, {"bn.beta": tensors["bn.beta"]})


def test_a_weight_that_is_tied_is_not_folded() -> None:
    model = Model({**TENSORS, "again": TENSORS["conv.weight"]}, MODEL.topology, aliases={"again": "conv.weight"})
    assert not isinstance(nnr.encode(model, fold_batchnorm=True), Exception)
    with pytest.raises(nnr.EncodeError, match=r"no batch normalization can be folded: 'conv\.weight' is tied"):
        nnr.encode(model, fold_batchnorm=True, fixed_point="q7.8")


# ------------------------------------------------------------------------------------------------ real models
MODELS = [DIGITS, *([SHARED / "models" / "resnet20_cifar10.nnef"] if SHARED else [])]


@pytest.mark.medium
@needs_shared
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_real_models(path: Path, tmp_path: Path) -> None:
    """The only loss is the rounding to the format."""
    model = nnr.load(path)
    target = tmp_path / "x.nnr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnr.SaturationWarning)
        report = nnr.encode_file(model, target, fixed_point="q7.8", statistics=True)
    decoded = nnr.decode(target)
    for name in model:
        levels = np.rint(model[name].astype("f8") * 256).clip(-32768, 32767)
        assert np.array_equal(decoded[name].astype("f8") * 256, levels)
        assert np.array_equal(levels.astype("i2"), levels)
    assert report.details
    assert report.ratio < 0.25
