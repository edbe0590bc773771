"""Lossy and lossless encoding: exact codes that are smaller, targets that lossless coding meets, size warnings."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.encoder.lossless_bound import least_bytes
from nnr_codec.model import Array, Model, source_size

from ..encodes import layers, normal
from ..shared import SHARED, mostly_slow, needs_shared

pytestmark = pytest.mark.medium

RNG = np.random.default_rng(7)
#: Matrices of 64 values each that are on no grid, most of them 0, and biases.
CLUSTERED: dict[str, Array] = {
    name: np.where(RNG.random(shape) < 0.6, 0, RNG.normal(0, 0.05, 64).astype("f4")[RNG.integers(0, 64, shape)]).astype(
        "f4"
    )
    for name, shape in {"a": (40, 90), "b": (30, 8, 3, 3)}.items()
} | {"a.bias": RNG.normal(0, 0.1, 40).astype("f4")}
RANDOM: dict[str, Array] = {"w": RNG.normal(0, 0.05, (40, 50)).astype("f4"), "b": RNG.normal(0, 1, 40).astype("f4")}
HALF: dict[str, Array] = {name: array.astype("f2") for name, array in RANDOM.items()}
INTEGERS: dict[str, Array] = {"i": RNG.choice(np.int32([5, 1 << 20, -77, 1 << 28]), (50, 40)), **RANDOM}
GOALS: list[dict[str, Any]] = [
    {},
    {"qp": -128},
    {"qp": -60},
    {"quality": 100},
    {"snr": 150},
    {"max_error": 1e-9},
    {"effort": 1},
    {"fixed_point": "q7.8"},
]


def encoded(model: Any, **options: Any) -> tuple[bytes, list[str]]:
    """Return a bitstream, and the messages of warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        data = nnr.encode(model, **options)
    return data, [str(warning.message) for warning in found if warning.category is nnr.EncodeWarning]


# ------------------------------------------------------------------------------------------------ exact codes
@pytest.mark.parametrize("effort", [1, 5])
def test_few_values_are_exact_at_any_effort(effort: int) -> None:
    values = (37 * 2.0**-12 * (RNG.random((200, 200)) < 0.3)).astype("f4")
    decoded = nnr.decode(nnr.encode({"w": values}, effort=effort))
    assert np.array_equal(decoded["w"], values)


def test_raw_floats_win_against_levels_that_take_more() -> None:
    values = RNG.normal(0, 1e5, (30, 40)).astype("f4")
    data = nnr.encode({"w": values}, qp=-60)
    assert len(data) < values.nbytes + 40
    assert np.array_equal(nnr.decode(data)["w"], values)


# ------------------------------------------------------------------------------------------------ targets
@pytest.mark.parametrize("model", [CLUSTERED, RANDOM, HALF, INTEGERS])
def test_a_target_of_the_lossless_size_gives_the_lossless_encoding(model: dict[str, Array]) -> None:
    exact = nnr.encode(model, exact=True)
    assert nnr.encode(model, target_size=len(exact)) == exact


def test_a_target_below_the_lossless_size_is_met() -> None:
    target = int(0.9 * len(nnr.encode(CLUSTERED, exact=True)))
    assert len(nnr.encode(CLUSTERED, target_size=target)) <= target


def test_a_target_without_side_information_takes_codes_without_records() -> None:
    data = nnr.encode(CLUSTERED, target_size=100_000, side_info=False)
    assert data == nnr.encode(CLUSTERED, exact=True, side_info=False)


def test_a_target_above_lossless_keeps_the_goals_of_rules() -> None:
    decoded = nnr.decode(nnr.encode(RANDOM, target_ratio=1, rules=[nnr.Rule("b", snr=30)]))
    assert np.array_equal(decoded["w"], RANDOM["w"])
    assert not np.array_equal(decoded["b"], RANDOM["b"])


@pytest.mark.parametrize(
    "options", [{"fold_batchnorm": True}, {"reduce": "prune(ratio=0.2), lowrank(rank=4)"}], ids=str
)
def test_a_target_above_lossless_keeps_reduced_tensors(options: dict[str, Any]) -> None:
    config = nnr.EncoderConfig(target_ratio=1, **options)
    decoded = nnr.decode(nnr.encode(layers(), config), allow_missing=True)
    assert nnr.compare_models(nnr.folded(layers(), config), decoded).same()


def test_a_target_that_no_step_reaches_has_the_finest_steps() -> None:
    data, _ = encoded(RANDOM, target_ratio=1, exact=False)
    assert nnr.compare_models(RANDOM, nnr.decode(data)).snr > 120


# ------------------------------------------------------------------------------------------------ warnings
@pytest.mark.parametrize("options", GOALS, ids=str)
@pytest.mark.parametrize("model", [CLUSTERED, RANDOM, HALF, INTEGERS], ids=["clustered", "random", "half", "integers"])
def test_no_goal_takes_more_than_lossless_without_a_warning(model: dict[str, Array], options: dict[str, Any]) -> None:
    data, messages = encoded(model, **options)
    plain = {name: value for name, value in options.items() if name == "effort"}
    exact = len(nnr.encode(model, exact=True, **plain))
    told = (
        f"the encoding takes {len(data):,} bytes, more than the {exact:,} bytes of a lossless encoding; use exact=True"
    )
    assert messages == ([told] if len(data) > exact else [])


def test_trials_do_not_warn() -> None:
    values = {"w": normal("w", 24, 20)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nnr.tune(values, lambda model: float(-np.abs(model["w"] - values["w"]).max()), tolerance=1e-9, qp=-128)


ARRAYS: dict[str, Array] = {
    "random": RNG.normal(0, 0.05, (300, 200)).astype("f4"),
    "sparse": (RNG.normal(0, 0.05, (300, 200)) * (RNG.random((300, 200)) < 0.3)).astype("f4"),
    "clustered": CLUSTERED["a"],
    "halves": RNG.normal(0, 0.05, (300, 200)).astype("f2"),
    "doubles of floats": RNG.normal(0, 0.05, (300, 200)).astype("f4").astype("f8"),
    "integers": RNG.integers(0, 9, (300, 200)),
    "fine step": (RNG.integers(-(2**16), 2**16, (300, 200)) * 2.0**-18).astype("f4"),
    "rows of few values": (RNG.integers(-7, 8, (300, 200)) * RNG.random((300, 1), "f4")).astype("f4"),
    "columns of few values": (RNG.integers(-7, 8, (300, 200)) * RNG.random((1, 200), "f4")).astype("f4"),
    "equal rows": np.tile(RNG.normal(0, 1, (1, 200)).astype("f4"), (300, 1)),
    "zeros": np.zeros((300, 200), "f4"),
    "not-a-numbers": np.full(5000, np.nan, "f4"),
    "few": np.arange(5, dtype="f4"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_the_lower_bound_is_below_the_lossless_size(kind: str) -> None:
    assert least_bytes(ARRAYS[kind]) <= len(nnr.encode({"w": ARRAYS[kind]}, exact=True))


@pytest.mark.parametrize("kind", ["random", "sparse", "halves"])
def test_the_lower_bound_excludes_the_default(kind: str) -> None:
    assert least_bytes(ARRAYS[kind]) > len(nnr.encode({"w": ARRAYS[kind]}, qp=-40))


# ------------------------------------------------------------------------------------------------ reference of ratios
def test_ratios_count_tensors_as_stored_and_tied_ones_once() -> None:
    half, single = np.zeros((3, 5), "f2"), np.zeros(7, "f4")
    tied = {"h": half, "s": single, "same": half, "view": half.T}
    assert source_size(Model(tied)) == (2 * 15 + 4 * 7 + 2 * 15, 15 + 7 + 15)
    alias = Model({"h": half, "copy": half.copy(), "s": single}, aliases={"copy": "h"})
    assert source_size(alias) == (2 * 15 + 4 * 7, 15 + 7)


@pytest.mark.parametrize("reduction", ["prune(ratio=0.2)", "lowrank(rank=2)", "fold, scale"])
def test_ratios_refer_to_the_model_before_reduction(reduction: str) -> None:
    report = nnr.estimate(layers(), reduce=reduction)
    assert (report.source_bytes, report.parameters) == source_size(layers())


def test_a_ratio_of_tied_tensors_is_a_ratio_of_the_bytes_stored_once() -> None:
    tensors = {"a": RANDOM["w"], "b": RANDOM["w"]}
    assert len(nnr.encode(tensors, target_ratio=0.2)) <= 0.2 * RANDOM["w"].nbytes


# ------------------------------------------------------------------------------------------------ real models
@needs_shared
@pytest.mark.parametrize("options", mostly_slow(1, [{"target_ratio": 0.15}, {"target_size": 600_000}]), ids=str)
def test_squeezenet_is_lossless_at_targets_above_its_lossless_size(options: dict[str, Any]) -> None:
    model = nnr.load(f"{SHARED}/models/squeezenet1_0_deepcompression.nnef")
    assert nnr.encode(model, **options) == nnr.encode(model, exact=True)


@needs_shared
def test_digits_at_the_finest_step_takes_more_than_lossless_with_a_warning() -> None:
    model = nnr.load(f"{SHARED}/models/digits_cnn.nnef")
    data, messages = encoded(model, qp=-128)
    exact = len(nnr.encode(model, exact=True))
    assert len(data) > exact
    assert [f"{len(data):,} bytes, more than the {exact:,} bytes" in message for message in messages] == [True]


@needs_shared
def test_the_default_needs_no_warning_for_real_networks() -> None:
    for name in ("digits_cnn", "resnet20_cifar10", "squeezenet1_0_deepcompression"):
        assert encoded(f"{SHARED}/models/{name}.nnef")[1] == []
