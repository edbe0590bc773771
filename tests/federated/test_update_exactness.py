"""Updates of tensors of every type: differences of models, and encoders over several rounds."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.model import Array

from ..arrays import KINDS, NAMES, SHAPES, arrays, assert_identical, from_patterns, made, patterns, specials
from ..shared import examples

pytestmark = pytest.mark.medium

Models = dict[str, Array]
SMALL = tuple(shape for shape in SHAPES if np.prod(shape, dtype=int) <= 600)


# ------------------------------------------------------------------------------------------------ two models
@st.composite
def pairs(draw: st.DrawFn) -> tuple[Models, Models]:
    """Draw a model, and one with all its names: tensors that are equal, changed, of another type or shape, and new."""
    base: Models = {}
    new: Models = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
        array = draw(arrays(shapes=SMALL))
        relation = draw(st.sampled_from(["same", "part", "part", "part", "all", "other", "new"]))
        if relation == "new":
            new[name] = array
            continue
        base[name] = array
        if relation == "same":
            new[name] = array.copy()
        elif relation == "other":
            new[name] = draw(arrays(shapes=SMALL))
        else:
            stored, seed = STORED_TYPES[array.dtype.name], draw(st.integers(0, 2**16))
            other = made(draw(st.sampled_from(list(KINDS))), array.shape, array.dtype.name, seed)
            kept = np.random.default_rng(seed).random(array.shape) < (0.7 if relation == "part" else 0)
            mixed = np.where(kept, patterns(array).astype("u8"), patterns(other).astype("u8"))
            new[name] = from_patterns(mixed, stored)
    return base, new


def assert_equal(got: Models, want: Models) -> None:
    """Check names and bits; the names of the base come first, in its order."""
    assert set(got) == set(want)
    for name, array in want.items():
        assert_identical(got[name], array, name)


@settings(max_examples=examples(200), deadline=None)
@given(pairs())
def test_lossless_is_bit_for_bit(pair: tuple[Models, Models]) -> None:
    """Tensors are arbitrary; neither model is changed."""
    base, new = pair
    before = pickle.dumps(pair)
    data = nnr.encode_update(base, new, lossless=True)
    got = nnr.apply_update(base, data)
    assert type(got) is dict
    assert_equal(got, new)
    assert pickle.dumps(pair) == before
    assert nnr.encode_update(base, new, lossless=True, jobs=2) == data


@settings(max_examples=examples(200), deadline=None)
@given(pairs(), st.sampled_from([{}, {"qp": -20}, {"quality": 20.0}, {"dependent_quantization": False}, {"effort": 1}]))
def test_any_tensor_comes_back(pair: tuple[Models, Models], options: dict[str, Any]) -> None:
    """Integers and values that are not finite are lossless, others keep shape and type; equal ones keep their bits."""
    base, new = pair
    data = nnr.encode_update(base, new, **options)
    assert nnr.encode_update(base, new, jobs=2, **options) == data
    got = nnr.apply_update(base, data)
    assert set(got) == set(new)
    for name, array in new.items():
        assert (got[name].dtype.name, got[name].shape) == (array.dtype.name, array.shape), name
        same = name in base and base[name].dtype.name == array.dtype.name and base[name].shape == array.shape
        if STORED_TYPES[array.dtype.name].kind != "f" or (same and (patterns(base[name]) == patterns(array)).all()):
            assert_identical(got[name], array, name)
        elif same:
            with np.errstate(invalid="ignore", over="ignore"):
                assert (np.isfinite(got[name]) == np.isfinite(array)).all(), name


def test_float64_differences_beside_a_tensor_of_extreme_range() -> None:
    """One quantization parameter cannot serve both; the difference is stored as float32."""
    base = {"step": np.array([0.0126, -0.0132])}
    new = {"step": np.array([0.0126, 0.0822]), "wide": np.array([-1.9e29, 5e10, -7e24, -1.6e-37], "f4")}
    got = nnr.apply_update(base, nnr.encode_update(base, new))
    np.testing.assert_allclose(got["step"], new["step"], rtol=1e-6)


@settings(max_examples=examples(100), deadline=None)
@given(pairs(), st.sampled_from([1e-3, 0.05, 2.0]))
def test_the_largest_error_of_a_difference(pair: tuple[Models, Models], bound: float) -> None:
    """``max_error`` bounds the error of the new tensor, except for the rounding of both."""
    base, new = pair
    base = {name: array for name, array in base.items() if array.dtype.name == "float32"}
    new = {name: new[name] for name in base}
    kinds = {name: array.dtype.name == "float32" and array.shape == base[name].shape for name, array in new.items()}
    try:
        data = nnr.encode_update(base, new, max_error=bound)
    except nnr.EncodeError as error:
        assert "max_error" in str(error)
        return
    got = nnr.apply_update(base, data)
    for name, array in new.items():
        finite = np.isfinite(array.astype("f4")).all() and kinds[name] and np.isfinite(base[name]).all()
        if not finite:
            continue
        with np.errstate(over="ignore"):
            if not np.isfinite(array - base[name]).all():
                continue
        largest = max(np.abs(array).max(initial=0), np.abs(base[name]).max(initial=0))
        error = np.abs(got[name].astype("f8") - array.astype("f8")).max(initial=0)
        assert error <= bound * 1.001 + 4 * float(np.finfo(np.float32).eps) * float(largest), name


@pytest.mark.parametrize("name", list(STORED_TYPES))
def test_the_ends_of_every_type(name: str) -> None:
    """Every special value changes to every other one."""
    values = from_patterns(specials(STORED_TYPES[name]), STORED_TYPES[name])
    base, new = np.repeat(values, len(values)), np.tile(values, len(values))
    for before, after in [(base, new), (new, base), (base[:1].reshape(()), new[1:2].reshape(()))]:
        data = nnr.encode_update({"w": before}, {"w": after}, lossless=True)
        assert_identical(nnr.apply_update({"w": before}, data)["w"], after)


@pytest.mark.parametrize("step", [1, -1, 100, 2**31 - 1, -(2**31), 2**31, 2**62])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_counters_stay_integers(kind: str, step: int) -> None:
    """They are 0-d, like num_batches_tracked; the difference may exceed 32 bits."""
    base = {"steps": np.asarray(2**40, kind), "w": np.zeros((4, 4), "f4")}
    new = {"steps": np.asarray((2**40 + step) % 2**64, "u8").astype(kind), "w": np.full((4, 4), 0.25, "f4")}
    got = nnr.apply_update(base, nnr.encode_update(base, new))
    assert_identical(got["steps"], new["steps"])
    assert got["w"].any()


@pytest.mark.parametrize("lossless", [False, True])
def test_nothing_changes(lossless: bool) -> None:
    """An update without changes is a small bitstream."""
    base = {name: made("special", (3, 4), name) for name in STORED_TYPES}
    data = nnr.encode_update(base, base, lossless=lossless)
    assert len(data) < 200
    assert_equal(nnr.apply_update(base, data), base)


def test_signs_of_zeros_and_not_a_numbers() -> None:
    """Items that do not change keep their bits, whatever the others do."""
    base = {"w": np.array([[0.0, -0.0, np.inf, -np.inf, 1.0, -1.0], [1e-45, -1e-45, 3e38, -3e38, 5.0, 2.0]], "f4")}
    new = {"w": base["w"].copy()}
    new["w"][1, 4:] = [5.5, 2.5]
    got = nnr.apply_update(base, nnr.encode_update(base, new, max_error=0.1))["w"]
    kept = base["w"].reshape(-1)[:10]
    assert patterns(got).reshape(-1)[:10].tolist() == patterns(kept).tolist()
    np.testing.assert_allclose(got[1, 4:], [5.5, 2.5], atol=0.1)


def test_a_tensor_that_is_gone_is_an_error_by_name() -> None:
    with pytest.raises(nnr.EncodeError, match="'b'"):
        nnr.encode_update({"a": np.zeros(2), "b": np.zeros(2)}, {"a": np.zeros(2)})


def test_another_base_is_refused() -> None:
    """The error names both models; the check can be disabled."""
    base, new = {"w": np.zeros((3, 4), "f4")}, {"w": np.ones((3, 4), "f4")}
    data = nnr.encode_update(base, new, max_error=0.1)
    other = {"w": np.full((3, 4), 0.5, "f4")}
    with pytest.raises(nnr.MissingReferenceError) as raised:
        nnr.apply_update(other, data)
    assert nnr.identity(base)[:20] in str(raised.value)
    np.testing.assert_allclose(nnr.apply_update(other, data, check=False)["w"], 1.5, atol=0.1)


# ------------------------------------------------------------------------------------------------ round after round
def differences(rng: np.random.Generator, scale: float = 0.05) -> Models:
    """Return differences of a model with all features of differences."""
    half = (rng.normal(0, scale, (8, 6)) * (rng.random((8, 6)) < 0.4)).astype("f2")
    return {
        "w": (rng.normal(0, scale, (20, 30)) * (rng.random((20, 30)) < 0.3)).astype("f4"),
        "h": half,
        "brain": half[:4].astype(nnr_type("bfloat16")),
        "d": rng.normal(0, scale, (5, 7)),
        "b": rng.normal(0, scale, 20).astype("f4"),
        "scalar": np.asarray(rng.normal(0, scale), "f4"),
        "empty": np.zeros((0, 3), "f4"),
        "steps": np.asarray(100, "i8"),
        "counts": rng.integers(-5, 6, (4, 4)).astype("i4"),
        "zero": np.zeros((6, 6), "f4"),
    }


def nnr_type(name: str) -> np.dtype[Any]:
    return STORED_TYPES[name].dtype


OPTIONS: list[dict[str, Any]] = [
    {},
    {"dependent_quantization": False, "nnr_pre": True},
    {"temporal_context_modeling": True, "hist_dep_sig_prob": True},
    {"error_feedback": True, "sparsity": 0.9},
    {"error_feedback": True, "structured_sparsity": 0.5, "parent": "sha256"},
    {"parent": "external", "qp": -20},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_encoders_go_on_alike(options: dict[str, Any]) -> None:
    """One or two threads, pickling and resets give equal bitstreams, which decoders accept."""
    encoders = [nnr.UpdateEncoder(device_id=2, base_model_id="m", **options) for _ in range(3)]
    decoder = nnr.UpdateDecoder()
    rng = np.random.default_rng(3)
    for k in range(6):
        update = differences(rng)
        if k == 4:
            for encoder in encoders:
                encoder.reset()
        first, second, third = encoders
        data = first.encode(update)
        assert second.encode(update, jobs=2) == data
        assert third.encode(update) == data
        encoders[2] = pickle.loads(pickle.dumps(third))
        got = decoder.decode(data, jobs=1 + k % 2)
        for name, array in got.items():
            assert_identical(array, first.decoded[name], name)
        assert set(got) | {"zero", "empty"} == set(update)
        for name in ("steps", "counts"):
            np.testing.assert_array_equal(got[name].reshape(update[name].shape), update[name])
            assert got[name].dtype.kind == "i"


@pytest.mark.parametrize("more", [{}, {"sparsity": 0.95}, {"structured_sparsity": 0.8}, {"preset": "fl"}], ids=str)
def test_omitted_changes_are_sent_later(more: dict[str, Any]) -> None:
    """The residual is the exact difference of input and decoded update; over several rounds every change is sent."""
    config = nnr.EncoderConfig.preset(more.get("preset", "update"))
    options = {name: value for name, value in more.items() if name != "preset"}
    encoder = nnr.UpdateEncoder(config, error_feedback=True, **options)
    rng = np.random.default_rng(4)
    steady = {name: array for name, array in differences(rng).items() if array.dtype.kind == "f" and array.size}
    total = {name: np.zeros(array.shape) for name, array in steady.items()}
    residual: Models = {}
    for _ in range(8):
        update = {
            name: (array.astype("f8") * rng.uniform(0.5, 1.5)).astype(array.dtype) for name, array in steady.items()
        }
        encoder.encode(update)
        assert encoder.feedback
        for name, array in update.items():
            work = np.float64 if array.dtype == np.float64 else np.float32
            wanted = array.astype(work) + residual.get(name, np.zeros(array.shape, work))
            decoded = encoder.decoded[name].reshape(array.shape) if name in encoder.decoded else np.zeros_like(wanted)
            assert encoder.feedback.residual[name].dtype == work
            np.testing.assert_array_equal(encoder.feedback.residual[name], wanted - decoded, name)
            total[name] += array.astype("f8") - decoded
        residual = {name: array.copy() for name, array in encoder.feedback.residual.items()}
    for name, left in total.items():
        np.testing.assert_allclose(left, residual[name], atol=1e-5, err_msg=name)


def test_a_failed_encoding_changes_nothing() -> None:
    """The next bitstream is the same as without the failure."""
    rng = np.random.default_rng(5)
    first, second = differences(rng), differences(rng)
    good, bad = (nnr.UpdateEncoder(error_feedback=True) for _ in range(2))
    good.encode(first)
    bad.encode(first)
    for wrong in (
        second | {"w": np.full((20, 30), np.nan, "f4")},
        second | {"w": np.full((20, 30), np.inf, "f4")},
        second | {"steps": np.asarray(2**40)},
        second | {"flag": np.ones(3, bool)},
    ):
        with pytest.raises(nnr.EncodeError, match="whole"):
            bad.encode(wrong)
    assert bad.encode(second) == good.encode(second)


@pytest.mark.parametrize("name", list(STORED_TYPES))
def test_whole_tensors_of_every_type(name: str) -> None:
    """Whole tensors, beside or instead of differences, are lossless if requested."""
    encoder, decoder = nnr.UpdateEncoder(rules=[nnr.Rule("t", exact=True)]), nnr.UpdateDecoder()
    rng = np.random.default_rng(6)
    for kind in ("special", "normal"):
        whole = {"t": made(kind, (5, 6), name)}
        got = decoder.decode(encoder.encode({"w": rng.normal(0, 1, (4, 4)).astype("f4")}, whole=whole))
        assert got.whole == {"t"}
        assert_identical(got["t"], whole["t"])
