"""Noise shaping: errors of convolutions that change the outputs of typical inputs little."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.encoder.noise_shaping import layout, together

Array = npt.NDArray[Any]

RNG = np.random.default_rng(29)


def weights(*shape: int) -> Array:
    return RNG.laplace(0, 0.1, shape).astype("f4")


#: Weights by the kind of convolution.
CONVOLUTIONS = {
    "3 x 3": weights(32, 16, 3, 3),
    "depthwise": weights(64, 1, 5, 5),
    "1 x 1": weights(64, 48, 1, 1),
    "one dimension": weights(64, 24, 7),
    "three dimensions": weights(16, 8, 3, 3, 3),
    "an odd number of channels": weights(32, 13, 3, 3),
}


def output_error(weight: Array, decoded: Array) -> float:
    """Return the squared error of outputs for smooth inputs with a positive mean."""
    positions = np.stack(np.meshgrid(*map(np.arange, weight.shape[2:]), indexing="ij"), -1).reshape(-1, weight.ndim - 2)
    distances = np.sqrt(((positions[:, None] - positions) ** 2).sum(-1))
    moments = np.kron(np.eye(weight.shape[1]), 0.6**distances) + 0.5
    errors = (decoded.astype("f8") - weight).reshape(len(weight), -1)
    return float(np.einsum("ij,jk,ik", errors, moments, errors))


def squared_error(weight: Array, decoded: Array) -> float:
    return float(((decoded.astype("f8") - weight) ** 2).sum())


def check_outputs(weight: Array, order: tuple[int, ...], limit: float, **options: Any) -> None:
    """Encode a weight with another order of dimensions, with and without noise shaping."""
    coded = [nnr.encode({"w": weight.transpose(order)}, noise_shaping=on, **options) for on in (True, False)]
    assert len(coded[0]) < 1.02 * len(coded[1])
    decoded, other = (nnr.decode(data)["w"].transpose(np.argsort(order)) for data in coded)
    assert output_error(weight, decoded) < limit * output_error(weight, other)
    assert squared_error(weight, decoded) < 1.7 * squared_error(weight, other)


@pytest.mark.parametrize("options", [{"qp": -24}, {"quality": 25}, {"qp": -24, "dependent_quantization": False}])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_outputs_change_less_at_equal_size(kind: str, options: dict[str, Any]) -> None:
    weight = CONVOLUTIONS[kind]
    check_outputs(weight, tuple(range(weight.ndim)), 0.8 if kind == "1 x 1" else 0.7, **options)


@pytest.mark.parametrize("dependent", [True, False])
@pytest.mark.parametrize(
    ("kind", "order"),
    [
        *product(("3 x 3", "1 x 1", "an odd number of channels"), ("HWIO", "OHWI")),
        ("depthwise", "HWOI"),  # Keras: a multiplier of 1 is the last dimension
        ("depthwise", "HWIO"),  # Flax
        ("depthwise", "IHWO"),  # TFLite
    ],
)
def test_outputs_change_less_in_formats_with_another_order(kind: str, order: str, dependent: bool) -> None:
    axes = tuple("OIHW".index(axis) for axis in order)
    check_outputs(CONVOLUTIONS[kind], axes, 0.8, qp=-24, dependent_quantization=dependent)


@pytest.mark.parametrize(("kind", "order"), [("one dimension", (2, 1, 0)), ("three dimensions", (2, 3, 4, 1, 0))])
def test_kernels_of_one_and_three_dimensions_may_come_first(kind: str, order: tuple[int, ...]) -> None:
    check_outputs(CONVOLUTIONS[kind], order, 0.8, qp=-24)


MODEL = {"conv": CONVOLUTIONS["3 x 3"], "dense": weights(60, 40), "moments": weights(32, 16, 3, 3) ** 2}


def changed(**options: Any) -> set[str]:
    """Return the tensors that noise shaping changes."""
    shaped, plain = (nnr.decode(nnr.encode(MODEL, noise_shaping=on, **options)) for on in (True, False))
    return {name for name in MODEL if not np.array_equal(shaped[name], plain[name])}


def test_only_weights_of_convolutions_are_shaped() -> None:
    assert changed() == changed(quality=30) == {"conv"}


@pytest.mark.parametrize(
    "dims", [(2, 3, 8, 8, 8, 8), (3, 3, 64, 128), (4, 1021, 1, 1), (4, 600, 3, 3), (2, 5, 11, 11), (2, 2, 125)]
)
def test_second_moments_stay_small(dims: tuple[int, ...]) -> None:
    """Second moments of a row of 5,400 weights would take 233 MB."""
    _, kernel, channels = layout(dims)
    assert prod(dims) % (prod(kernel) * channels) == 0
    assert channels % together(kernel, channels) == 0
    assert prod(kernel) * together(kernel, channels) <= 125


@pytest.mark.parametrize(
    "options",
    [
        {"effort": 4},
        {"rate": 0},
        {"snr": 30},
        {"max_error": 0.01},
        {"exact": True},
        {"codebook": 9},
        {"scan_order": 1},
        {"hessians": {"conv": np.eye(144)}},
        {"sensitivity": {"conv": np.ones((32, 16, 3, 3))}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_goals_exclude_shaping(options: dict[str, Any]) -> None:
    assert changed(**options) == set()


def test_a_sensitivity_of_whole_tensors_permits_shaping() -> None:
    assert changed(target_ratio=0.2, sensitivity={"conv": 3.0, "dense": 1.0}) == {"conv"}


def test_updates_are_not_shaped() -> None:
    new = {"conv": MODEL["conv"] + weights(32, 16, 3, 3) / 50}
    one, other = (nnr.encode_update(MODEL, {**MODEL, **new}, qp=-30, noise_shaping=on) for on in (True, False))
    assert one == other


def test_zeros_stay_zeros() -> None:
    weight = CONVOLUTIONS["3 x 3"] * (RNG.random((32, 16, 3, 3)) < 0.5)
    assert not nnr.decode(nnr.encode({"w": weight}, qp=-24))["w"][weight == 0].any()


@pytest.mark.parametrize("quality", [15, 30, 50])
def test_a_small_convolution_keeps_the_floor_of_a_quality(quality: float) -> None:
    model = {"large": weights(60, 400), "small": CONVOLUTIONS["3 x 3"] * np.float32(1e-4)}
    decoded = nnr.decode(nnr.encode(model, quality=quality))["small"]
    ratio = float((model["small"].astype("f8") ** 2).sum()) / squared_error(model["small"], decoded)
    assert 10 * np.log10(ratio) >= min(35, quality - 10)
