"""Levels of effort, the value of a bit, codebooks of quantized tensors, and step sizes of vectors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnr_codec as nnr
from nnr_codec.config import EncoderConfig
from nnr_codec.encoder import rate_distortion
from nnr_codec.encoder.codebooks import learnt_codebook
from nnr_codec.encoder.effort import EFFORTS
from nnr_codec.encoder.facts import tensor_facts
from nnr_codec.encoder.plan import Borders, TensorPlan
from nnr_codec.encoder.planning import plan_tensor
from nnr_codec.model import Array
from nnr_codec.runtime import run_model
from nnr_codec.tensor.quant import codebook_values

from ..shared import SHARED, examples, mostly_slow, needs_shared
from .test_encoder import headers

RNG = np.random.default_rng(8)
LEVELS = range(1, 10)


def laplacian(shape: tuple[int, ...], scale: float, seed: int = 3) -> Array:
    return np.random.default_rng(seed).laplace(0, scale, shape).astype("f4")


def planned(values: Any, **options: Any) -> TensorPlan:
    return plan_tensor(tensor_facts("w", values, EncoderConfig(**options)))


def decoded(values: Any, **options: Any) -> tuple[bytes, Any]:
    data = nnr.encode({"w": values}, **options)
    return data, nnr.decode(data)["w"]


def noise(values: Any, **options: Any) -> float:
    _, got = decoded(values, **options)
    return float(((values.astype("f8") - got) ** 2).mean())


# ------------------------------------------------------------------------------------------------ effort
def test_every_level_does_more() -> None:
    assert list(EFFORTS) == list(LEVELS)
    for level in LEVELS[1:]:
        before, after = vars(EFFORTS[level - 1]), vars(EFFORTS[level])
        assert before != after
        assert all(after[name] >= value for name, value in before.items())


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_more_effort_is_not_larger(dtype: str) -> None:
    """Cost is the minimized sum, and may deviate within the accuracy of samples."""
    values = laplacian((120, 90), 2.0**-7).astype(dtype)
    step = 2.0**-8
    sums = []
    for effort in LEVELS:
        data, got = decoded(values, qp=-32, effort=effort)
        sums.append(((values.astype("f8") - got) ** 2).sum() / step**2 + 0.32 * 8 * len(data))
    assert all(after <= before * 1.002 for before, after in pairwise(sums))
    assert sums[4] < 0.985 * sums[0]


@pytest.mark.medium
@pytest.mark.parametrize("effort", LEVELS)
def test_tensors_come_back_at_any_effort(effort: int) -> None:
    model = {
        "w": laplacian((30, 40), 0.05),
        "pruned": laplacian((30, 40), 0.05) * (RNG.random((30, 40)) < 0.1),
        "rows": laplacian((30, 40), 0.05) * (RNG.random((30, 1)) < 0.3),
        "bias": laplacian((30,), 0.05),
        "half": laplacian((20, 20), 0.05).astype("f2"),
        "one": np.full((20, 30), 0.1, "f4"),
        "zeros": np.zeros((20, 30), "f4"),
        "few": RNG.choice(np.array([-0.25, 0.1, 0.7], "f4"), (20, 30)),
        "huge": laplacian((20, 20), 1e20),
        "int": RNG.integers(-5, 5, (20, 20), "i4"),
    }
    data = nnr.encode(model, effort=effort)
    assert nnr.encode(model, effort=effort, jobs=3) == data
    assert nnr.verify(data).violations == []
    got = nnr.decode(data).tensors
    for name, values in model.items():
        assert got[name].dtype == values.dtype
        if name in ("huge", "int") or (effort in (4, 5, 6) and name in ("one", "few")):
            np.testing.assert_array_equal(got[name], values)
        else:
            assert np.abs(got[name].astype("f8") - values).max() < 4 * 2.0**-10
        if name in ("pruned", "rows", "zeros"):
            assert not got[name][values == 0].any()
    exact = nnr.encode(model, effort=effort, exact=True)
    assert all(np.array_equal(nnr.decode(exact)[name], values) for name, values in model.items())


def test_the_fastest_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(laplacian((30, 40), 0.05), effort=1)
    assert not plan.tools.choose_shift_parameters
    assert not plan.tools.open
    assert plan.rate == 0
    assert plan.dq_flag


def test_what_options_say_stands_at_every_level() -> None:
    given = {
        "dependent_quantization": False,
        "scan_order": 2,
        "cabac_unary_length_minus1": 3,
        "row_skipping": False,
        "choose_shift_parameters": False,
    }
    rows = laplacian((64, 40), 0.05) * (np.arange(64) % 2)[:, None]
    for effort in LEVELS:
        header = headers(nnr.encode({"w": rows}, effort=effort, qp=-30, **given))["w"]
        assert (header.dq_flag, header.scan_order, header.cabac_unary_length_minus1) == (0, 2, 3)
        plan = planned(rows, effort=effort, qp=-30, **given)
        assert plan.qp == -30
        assert not plan.tools.open


@pytest.mark.parametrize("effort", LEVELS)
def test_a_qp_stays(effort: int) -> None:
    assert headers(nnr.encode({"w": laplacian((40, 40), 0.05)}, qp=-30, effort=effort))
    plan = planned(laplacian((40, 40), 0.05), qp=-30, effort=effort)
    assert plan.qp == -30 or plan.codebook


@pytest.mark.parametrize("effort", [0, 10, -1])
def test_no_such_effort(effort: int) -> None:
    with pytest.raises(nnr.EncodeError, match=r"effort -?\d+ is outside 1..9"):
        nnr.encode({}, effort=effort)
    for wrong in (True, 2.5, "5"):
        with pytest.raises(nnr.EncodeError, match="effort must be an integer"):
            nnr.encode({}, effort=wrong)


def test_the_least_sum_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the highest level, the minimum over all candidates by their true costs is selected."""
    values = laplacian((60, 50), 2.0**-9)
    seen: list[TensorPlan] = []
    least = rate_distortion.least_cost

    def noted(tensor: Any, plans: Any) -> TensorPlan:
        seen.extend(plans := list(plans))
        return least(tensor, plans)

    monkeypatch.setattr("nnr_codec.encoder.planning.least_cost", noted)
    plan = planned(values, qp=-32, effort=9)
    assert {p.dq_flag for p in seen} == {0, 1}
    assert {p.tools.scan_order for p in seen} == set(range(5))
    assert any(p.codebook for p in seen)
    assert plan in seen


# ------------------------------------------------------------------------------------------------ rate
@pytest.mark.parametrize("dq", [False, True])
def test_a_bit_is_worth_errors(dq: bool) -> None:
    values = laplacian((100, 100), 2.0**-8)
    sizes, errors = [], []
    for rate in (0, 0.1, 0.3, 1, 16):
        data, got = decoded(values, qp=-32, rate=rate, dependent_quantization=dq)
        sizes.append(len(data))
        errors.append(float(((values.astype("f8") - got) ** 2).mean()))
    assert sizes == sorted(sizes, reverse=True)
    assert errors == sorted(errors)
    assert sizes[-1] < 0.2 * sizes[0]


def test_without_a_rate_errors_are_least() -> None:
    values = laplacian((100, 100), 2.0**-8)
    _, got = decoded(values, qp=-32, rate=0, dependent_quantization=False)
    np.testing.assert_array_equal(got, np.rint(values * 256) / 256)


@pytest.mark.parametrize("rate", [-0.1, 16.1, "1", True, float("nan")])
def test_no_such_rate(rate: Any) -> None:
    with pytest.raises(nnr.EncodeError, match="rate"):
        nnr.encode({}, rate=rate)


# ------------------------------------------------------------------------------------------------ codebooks
@pytest.mark.parametrize("size", [1, 2, 3, 16, 300])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_a_codebook_of_a_size(size: int, dtype: str) -> None:
    values = laplacian((80, 50), 0.1).astype(dtype)
    data, got = decoded(values, codebook=size)
    assert len(np.unique(got)) <= size
    assert nnr.verify(data).violations == []
    assert headers(data)["w"].codebook_present_flag
    if size > 1:
        assert len(np.unique(got)) >= size / 2
        assert noise(values, codebook=size) < float((values.astype("f8") ** 2).mean()) / size


def test_a_codebook_fits_the_clusters() -> None:
    """Noisy clusters get one entry each, in their middle."""
    centres = np.array([-0.7, -0.1, 0.35, 0.4])
    values = (RNG.choice(centres, (100, 40)) + RNG.normal(0, 0.002, (100, 40))).astype("f4")
    plan = planned(values, effort=7, qp=-28)
    assert plan.codebook
    book = plan.codebook
    entries = codebook_values(book.codebook_zero_value, book.codebook_delta_left, book.codebook_delta_right)
    np.testing.assert_allclose(entries * plan.step, centres, atol=0.01)
    assert len(nnr.encode({"w": values}, effort=7, qp=-28)) < 0.8 * len(nnr.encode({"w": values}, effort=6, qp=-28))


@settings(max_examples=examples(100))
@given(
    hnp.arrays("f4", hnp.array_shapes(min_dims=2, max_dims=3, max_side=9), elements=st.floats(-3, 3, width=32)),
    st.sampled_from([None, 1, 2, 5, 100]),
    st.floats(0, 16),
)
def test_codebooks_of_anything(values: Array, size: int | None, worth: float) -> None:
    tensor = tensor_facts("w", values, EncoderConfig(exact=False, qp=-40))
    plan = plan_tensor(tensor, in_block=True)
    if not plan.step:
        return
    book = learnt_codebook(tensor, plan, worth, size)
    assert book
    assert book.codebook
    assert isinstance(book.coding.quantizer, Borders)
    borders = book.coding.quantizer.borders
    left, right = book.codebook.codebook_delta_left, book.codebook.codebook_delta_right
    assert len(left) + len(right) + 1 == book.codebook.codebook_size <= (size or 65536)
    assert min([*left, *right], default=0) >= 0
    assert len(borders) == book.codebook.codebook_size - 1
    assert list(borders) == sorted(borders)
    data, got = decoded(values, codebook=size or 7, exact=False, qp=-40)
    assert not got[values == 0].any()
    assert np.abs(got).max() <= np.abs(values).max() + plan.step
    assert nnr.verify(data).violations == []


@pytest.mark.parametrize("value", [0.1, -3.0, 0.0, 2.0**-20])
def test_a_constant_tensor_is_one_entry(value: float) -> None:
    data, got = decoded(np.full((100, 100), value, "f4"))
    np.testing.assert_array_equal(got, np.float32(value))
    assert len(data) < 60
    if value == 0.1:
        assert headers(data)["w"].codebook.codebook_size == 1


@pytest.mark.parametrize("size", [-1, 65_537, True, 2.0])
def test_no_such_codebook(size: Any) -> None:
    with pytest.raises(nnr.EncodeError, match="codebook"):
        nnr.encode({}, codebook=size)


# ------------------------------------------------------------------------------------------------ vectors
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e4])
def test_vectors_have_65_decibels(scale: float) -> None:
    values = RNG.normal(0, scale, 400).astype("f4")
    ratio = float((values.astype("f8") ** 2).mean()) / noise(values)
    assert ratio > 10**6.3
    assert len(nnr.encode({"w": values})) < 400 * 1.7 or scale < 1e-4


@pytest.mark.parametrize("options", [{}, {"qp": -16}, {"quality": 10}])
@pytest.mark.parametrize("smallest", [0.3, 0.01, 1e-4])
def test_small_variances_are_kept(smallest: float, options: dict[str, Any]) -> None:
    """Every value is within one part in 32, although only one is small."""
    values = np.append(RNG.uniform(0.5, 2, 63), smallest).astype("f4")
    _, got = decoded(values, **options)
    assert (np.abs(got - values) / values).max() <= 1 / 32


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_a_negligible_variance_takes_few_bytes(dtype: str) -> None:
    """A channel that is always 0 has a variance of almost 0, to which batch normalization adds a larger number."""
    values = np.append(RNG.uniform(0.5, 2, 255), 1e-7).astype(dtype)
    data, got = decoded(values, exact=None)
    assert len(data) < (3 if dtype == "f4" else 2) * values.size
    assert np.abs(got.astype("f8") - values).max() < (1e-5 if dtype == "f4" else 0.002)


@pytest.mark.parametrize(("qp", "factor"), [(-60, 2.0**-5), (-40, 1), (-32, 2), (-20, 4), (-4, 4)])
def test_vectors_follow_qp(qp: int, factor: float) -> None:
    values = RNG.normal(0, 0.1, 400).astype("f4")
    assert planned(values, qp=qp).step == pytest.approx(factor * planned(values).step, rel=0.2)


@pytest.mark.parametrize("values", [[1e-30, 1e30], [1e-12, -1e-12], [5e-324, 1.0]])
def test_values_far_apart_are_kept(values: list[float]) -> None:
    array = np.array(values * 20, "f8")
    _, got = decoded(array)
    assert np.abs(got - array).max() <= 1e-3 * np.sqrt((array**2).mean())


@pytest.mark.medium
@needs_shared
@pytest.mark.clients
@pytest.mark.parametrize("name", mostly_slow(1, ["digits_cnn", "resnet20_cifar10"]))
def test_networks_do_not_notice(name: str) -> None:
    """Errors of vectors have much less effect than errors of the weights of the same file."""
    pytest.importorskip("tract")
    assert SHARED
    model = nnr.load(SHARED / "models" / f"{name}.nnef")
    with np.load(SHARED / "models" / f"{name}.io.npz") as sample:
        shape = sample["x"].shape
    inputs = {"x": np.random.default_rng(0).random((16, *shape[1:])).astype("f4")}
    coded = nnr.decode(nnr.encode(model)).tensors
    vectors = {name: array for name, array in coded.items() if sum(extent > 1 for extent in array.shape) < 2}
    weights = {name: array for name, array in coded.items() if name not in vectors}

    def signal_to_noise(tensors: dict[str, Array]) -> float:
        wanted, got = (
            next(iter(run_model(each, inputs).values())).astype("f8")
            for each in (model, replace(model, tensors={**model.tensors, **tensors}))
        )
        return float(10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()))

    assert vectors
    assert weights
    assert signal_to_noise(vectors) > max(45, signal_to_noise(weights) + 3)
