"""The default step size: each matrix keeps its SNR, its rows and most of its values, at any scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_MPS, NNR_NDU, PayloadType
from nnr_codec.model import Array


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(scale: float = 1.0, shape: tuple[int, ...] = (256, 256), dtype: str = "f4") -> Array:
    return (scale * rng().standard_normal(shape)).astype(dtype)


def coded(array: Array, **options: Any) -> Array:
    return nnr.decode(nnr.encode({"w": array}, **options))["w"]


def snr(before: Array, after: Array) -> float:
    scale = np.abs(before.astype("f8")).max()
    signal, noise = before.astype("f8") / scale, (before.astype("f8") - after.astype("f8")) / scale
    return float(10 * np.log10((signal**2).sum() / max((noise**2).sum(), 1e-300)))


def parameter_set(data: bytes) -> Any:
    return next(unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_MPS)


def payload_types(data: bytes) -> list[int]:
    units = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    return [unit.nnr_compressed_data_unit_payload_type for unit in units]


def test_matrices_of_any_scale_keep_their_snr_in_one_model() -> None:
    scales = (1e6, 1, 0.1, 1e-2, 1e-3, 3e-4, 1e-5, 1e-9, 1e-12)
    model = {f"w{scale}": normal(scale) for scale in scales}
    decoded = nnr.decode(nnr.encode(model))
    assert min(snr(array, decoded[name]) for name, array in model.items()) >= 35


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-12, 1.0])
def test_the_floor_holds_for_all_types_of_numpy(dtype: str, scale: float) -> None:
    array = normal(scale, (64, 2048), dtype)
    assert snr(array, coded(array)) >= 35


@pytest.mark.parametrize("power", [-100, -50, -1, 7, 100])
@pytest.mark.parametrize("dependent", [True, False])
def test_levels_do_not_depend_on_a_power_of_two(power: int, dependent: bool) -> None:
    array = normal(shape=(40, 50))
    array[3] *= np.float32(1e-3)
    expected, found = (
        next(unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU)
        for data in (
            nnr.encode({"w": some}, dependent_quantization=dependent)
            for some in (array, np.ldexp(array, power).astype("f4"))
        )
    )
    assert bytes(found)[2:] == bytes(expected)[2:]  # qp_value comes first


def rows(*scales: float) -> Array:
    array = normal(shape=(len(scales) * 20, 100))
    return (array.reshape(len(scales), 20, 100) * np.array(scales).reshape(-1, 1, 1)).reshape(-1, 100).astype("f4")


def outlier(value: float) -> Array:
    array = normal(3e-4)
    array[17, 5] = value
    return array


def sparse(share: float, scale: float = 1.0) -> Array:
    array = normal(scale)
    array[rng(1).random(array.shape) < share] = 0
    return array


@pytest.mark.parametrize("effort", [1, 5, 9])
@pytest.mark.parametrize("dependent", [True, False])
@pytest.mark.parametrize(
    "array",
    [
        rows(1, 1e-3, 1e-6),
        outlier(1e3),
        outlier(1e6),
        sparse(0.9),
        sparse(0.99, 1e-5),
        normal().astype("f4") ** 3,
        (rng().laplace(size=(100, 2000)) ** 3).astype("f4"),
    ],
    ids=["rows", "outlier", "far outlier", "sparse", "very sparse", "cubes", "heavy tails"],
)
def test_no_row_and_few_values_become_zero(array: Array, dependent: bool, effort: int) -> None:
    if effort == 9:
        array = array[:40, :60]
    after = coded(array, dependent_quantization=dependent, effort=effort)
    assert not (array.any(axis=1) & ~after.any(axis=1)).any()
    assert np.count_nonzero((array != 0) & (after == 0)) <= 0.1 * np.count_nonzero(array)
    assert snr(array, after) >= 35


def test_zeros_stay_zeros() -> None:
    assert not coded(np.zeros((30, 40), "f4")).any()


def test_negligible_values_do_not_cost_bits() -> None:
    """Weight decay leaves values in dead channels that have no effect in float32 sums."""
    array = normal(shape=(60, 100))
    dead = array.copy()
    dead[::2] *= np.float32(1e-12)
    assert len(nnr.encode({"w": dead})) < 0.7 * len(nnr.encode({"w": array}))


@pytest.mark.parametrize("shape", [(64, 64), (5000,)])
@pytest.mark.parametrize("scale", [1e-15, 1e-4, 1.0])
def test_all_second_moments_keep_their_magnitude(shape: tuple[int, ...], scale: float) -> None:
    """Nonnegative values with a wide range are divisors, and small ones are as important as large ones."""
    moments = normal(scale, shape) ** 2 + np.float32(1e-9 * scale**2)
    decoded = coded(moments)
    np.testing.assert_allclose(decoded, moments, rtol=0.02)
    assert snr(moments, decoded) >= 80


def test_variances_are_quantized() -> None:
    variances = rng().uniform(0.1, 2, (64, 64)).astype("f4")
    assert payload_types(nnr.encode({"w": variances})) == [PayloadType.NNR_PT_FLOAT]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("options", [{}, {"quality": 40}, {"snr": 40}], ids=str)
def test_any_scale_of_float32_is_quantized_as_well_as_1(scale: float, options: dict[str, Any]) -> None:
    array = normal(shape=(64, 64))
    model = {"w": array * np.float32(scale), "b": array[0] * np.float32(scale)}
    data = nnr.encode(model, **options)
    assert set(payload_types(data)) == {PayloadType.NNR_PT_FLOAT}
    assert len(data) <= 1.03 * len(nnr.encode({"w": array, "b": array[0]}, **options))
    assert min(snr(model[name], nnr.decode(data)[name]) for name in model) >= 35


def test_quantization_parameter_is_0_where_qp_value_reaches_all_steps() -> None:
    assert parameter_set(nnr.encode({"w": normal(1e-6)})).mps_quantization_parameter == 0


def test_a_tensor_out_of_reach_of_the_others_is_exact() -> None:
    model = {"a": normal(1e-20, (50, 50)), "b": normal(1e20, (20, 20)), "c": normal(1e-18, (50, 50))}
    data = nnr.encode(model)
    decoded = nnr.decode(data)
    assert np.array_equal(decoded["b"], model["b"])
    assert min(snr(model[name], decoded[name]) for name in "ac") >= 35
    assert parameter_set(data).mps_quantization_parameter < 0
    assert nnr.verify(data).violations == []


@pytest.mark.parametrize("quality", [15, 25, 40, 60])
def test_a_small_matrix_keeps_the_floor_of_a_quality(quality: float) -> None:
    model = {"large": normal(0.1), "small": normal(1e-5), "sparse": sparse(0.9, 1e-5)}
    decoded = nnr.decode(nnr.encode(model, quality=quality))
    floor = min(35, quality - 10)
    assert min(snr(array, decoded[name]) for name, array in model.items()) >= floor


def test_updates_have_no_floor() -> None:
    """Error feedback adds the omitted part of an update to the next one."""
    base = {"a": normal(shape=(64, 64)), "b": normal(shape=(64, 64))}
    new = {"a": base["a"] + normal(1e-2, (64, 64)), "b": base["b"] + normal(1e-11, (64, 64))}
    decoded = nnr.apply_update(base, nnr.encode_update(base, new, max_error=1e-3))
    assert np.array_equal(decoded["b"], base["b"])


def test_small_differences_are_quantized_as_well_as_large_ones() -> None:
    base = {"w": np.zeros((64, 64), "f4"), "b": np.zeros(64, "f4")}
    change = {"w": normal(shape=(64, 64)), "b": normal(shape=(64,))}
    sizes = []
    for scale in (1.0, 1e-11):
        new = {name: array * np.float32(scale) for name, array in change.items()}
        data = nnr.encode_update(base, new, quality=30)
        decoded = nnr.apply_update(base, data)
        assert min(snr(new[name], decoded[name]) for name in new) >= 29
        sizes.append(len(data))
    assert abs(sizes[0] - sizes[1]) <= 0.02 * sizes[0]
