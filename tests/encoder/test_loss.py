"""Losses of encoding by tensor: the report, and the warning of matrices with a large error."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext import quantizer
from nnr_codec.model import Array, Block, Model

from .test_fold import MODEL as LAYERS

#: Sizes up to the ends of the kernel's batches.
SIZES = [0, 1, 3, 15, 16, 1023, 1024, 1025, 3001]


def weights(shape: tuple[int, ...] = (70, 90), scale: float = 0.1, seed: int = 1) -> npt.NDArray[np.float32]:
    """Return values distributed like weights, some of them 0."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.1, 0, rng.laplace(0, scale, shape)).astype("f4")


def reported(model: Model | dict[str, Array], **options: Any) -> tuple[nnr.EncodeReport, Model]:
    """Return the report of an encoding without statistics, and the decoded model."""
    target = io.BytesIO()
    report = nnr.encode_file(model, target, **options)
    return report, nnr.decode(target.getvalue())


def expected(before: Array, after: Array) -> tuple[float, float, int, int, bool]:
    """Return fields of Loss by their definitions."""
    x, y = before.astype("f8"), after.astype("f8")
    x, y = (np.where(np.isfinite(x), some, 0) for some in (x, y))
    lost = int(((x != 0) & (y == 0)).sum())
    return float((x**2).sum()), float(((x - y) ** 2).sum()), int((x != 0).sum()), lost, sorted((1, 1, *x.shape))[-2] > 1


# ------------------------------------------------------------------------------------------------ kernels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_of_the_kernel(size: int, dtype: str) -> None:
    x = weights((size,)).astype(dtype)
    y = np.round(x, 1)
    signal, noise, nonzero, zeroed, _ = expected(x, y)
    found = quantizer.loss(x, y)
    assert found[:2] == pytest.approx((signal, noise), rel=1e-6)
    assert found[2:] == (nonzero, zeroed)


@pytest.mark.parametrize("size", SIZES)
def test_levels_are_resolved_piece_by_piece(size: int) -> None:
    levels = np.random.default_rng(size).integers(-3, 4, 3 * size + 5).astype("i4")
    whole = np.empty_like(levels)
    quantizer.resolve(levels, whole)
    state, place = 0, 0
    for count in (size, size, 5, size):
        part = levels[place : place + count]
        state, place = quantizer.resolve(part, part, state), place + count
    assert np.array_equal(levels, whole)


# ------------------------------------------------------------------------------------------------ reports
@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qp": -16},
        {"scan_order": 2},
        {"dependent_quantization": False},
        {"codebook": 9},
        {"codebook": 9, "dependent_quantization": True},
        {"profile": 0},
        {"fixed_point": "q7.8"},
        {"exact": True},
    ],
    ids=str,
)
def test_losses_equal_those_of_decoded_tensors(dtype: str, options: dict[str, Any]) -> None:
    odd = np.array([[np.nan, -np.inf, 1, 0]], "f4")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    model: dict[str, Array] = {"w": weights().astype(kind), "long": weights((40, 1000)).astype(kind)}
    model |= {"v": weights((500,)).astype(kind), "i": np.arange(12).reshape(3, 4)}
    model |= {} if "fixed_point" in options else {"odd": odd.astype(kind)}
    report, decoded = reported(model, **options)
    assert report.tensors["i"].loss is None
    for name in model.keys() - {"i"}:
        loss = report.tensors[name].loss
        assert loss
        signal, noise, *others = expected(model[name], decoded[name])
        assert (loss.signal, loss.noise) == pytest.approx((signal, noise), rel=1e-5), name
        assert [loss.nonzero, loss.zeroed, loss.is_matrix] == others, name


def test_losses_of_blocks_with_a_dimension_of_their_own() -> None:
    tensors: dict[str, Array] = {"w": weights((30, 20)), "b": weights((20,))}
    report, decoded = reported(Model(tensors, blocks=[Block("w", bias="b", axis=1)]), block=True)
    loss = report.tensors["w"].loss
    assert loss
    assert loss.noise == pytest.approx(expected(tensors["w"], decoded["w"])[1], rel=1e-6)


def test_losses_of_scaled_weights_refer_to_products() -> None:
    report, decoded = reported(LAYERS, local_scaling=True, qp=-16)
    found = nnr.compare_models(LAYERS, decoded).loss
    assert report.loss.matrices == pytest.approx(found.matrices, abs=0.1)
    assert report.loss.worst == found.worst


@pytest.mark.parametrize("options", [{}, {"quality": 30.0}, {"effort": 1}], ids=str)
def test_the_summary_is_that_of_decoded_tensors(options: dict[str, Any]) -> None:
    tied = weights((50, 50))
    model = {"a": weights(), "b": weights(scale=0.01), "c": weights((300,), 3), "tied": tied, "same": tied}
    report, decoded = reported(model, **options)
    found = nnr.compare_models(model, decoded).loss
    assert report.loss.matrices == pytest.approx(found.matrices, abs=1e-4)
    assert report.loss.vectors == pytest.approx(found.vectors, abs=1e-4)
    assert (report.loss.worst, report.loss.zeroed) == (found.worst, found.zeroed)
    assert report.loss.worst_snr == pytest.approx(found.worst_snr, abs=1e-4)


def test_summaries_without_errors() -> None:
    report, _ = reported({"w": weights(), "v": weights((9,)), "i": np.arange(3)}, exact=True)
    assert report.loss == nnr.LossSummary(np.inf, np.inf, None, np.inf, 0.0)
    report, _ = reported({"i": np.arange(3)})
    assert report.loss == nnr.LossSummary(None, None, None, np.inf, 0.0)


def test_losses_are_estimated() -> None:
    model = {"w": weights((600, 400)), "v": weights((300,))}
    loss, estimated = reported(model)[0].loss, nnr.estimate(model).loss
    assert estimated.matrices == pytest.approx(loss.matrices, abs=0.2)
    assert estimated.vectors == pytest.approx(loss.vectors, abs=0.2)
    assert estimated.zeroed == pytest.approx(loss.zeroed, rel=0.1)


# ------------------------------------------------------------------------------------------------ the warning
def warned(model: dict[str, Array], **options: Any) -> nnr.LossWarning | None:
    """Return the warning of an encoding."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        nnr.encode(model, **options)
    messages = [one.message for one in found if isinstance(one.message, nnr.LossWarning)]
    assert len(messages) < 2
    return messages[0] if messages else None


def test_a_matrix_of_zeros_is_named() -> None:
    warning = warned({"small": weights(scale=0.001), "w": weights(scale=1), "v": weights((9,), 1e-6)}, qp=-20)
    assert warning
    assert str(warning) == (
        "1 matrix is coded below 20 dB: 'small' (0.0 dB); use a lower qp, a higher quality, or a rule with exact=true"
    )
    assert warning.tensors == {"small": 0.0}
    assert pickle.loads(pickle.dumps(warning)).tensors == warning.tensors


@pytest.mark.parametrize(
    "options",
    [
        {"qp": -40},
        {"quality": 40.0},
        {"quality": 12.0},  # less than 20 dB was requested
        {"snr": 6.0},
        {"max_error": 0.1},
        {"qp": -12, "rules": [nnr.Rule("w", exact=True)]},
    ],
    ids=str,
)
def test_nothing_is_named_where_the_error_is_as_asked(options: dict[str, Any]) -> None:
    assert warned({"w": weights()}, **options) is None


@pytest.mark.parametrize("options", [{"max_error": 9.0}, {"qp": 20}], ids=str)
def test_complete_losses_are_always_named(options: dict[str, Any]) -> None:
    warning = warned({"w": weights((8, 9))}, **options)
    assert warning
    assert warning.tensors["w"] <= 0


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"fixed_point": "q7.8"}, "the step sizes of fixed_point 'q7.8' are too large for them"),
        ({"target_ratio": 0.04}, "use a larger target, or a rule with snr= or exact=true"),
        ({"codebook": 2}, "use a larger codebook, or a rule with exact=true"),
    ],
    ids=str,
)
def test_what_to_do(options: dict[str, Any], advice: str) -> None:
    warning = warned({"w": weights(scale=0.005)}, **options)
    assert warning
    assert str(warning).endswith(f"; {advice}")


def test_the_worst_ones_are_named_first_and_many_are_counted() -> None:
    model = {f"{k}{'n' * 300}": weights(scale=0.02 * 0.9**k) for k in range(1, 12)}
    warning = warned(model, qp=-26)
    assert warning
    assert [*warning.tensors] == [*reversed(model)]
    assert [*warning.tensors.values()] == sorted(warning.tensors.values())
    assert str(warning).startswith("11 matrices are coded below 20 dB: '11nnn")
    assert " and 3 more; " in str(warning)
    assert len(str(warning)) < 2000


def test_updates_are_judged_by_what_they_asked_for() -> None:
    base = {"w": weights(), "small": weights(seed=2)}
    new = {"w": base["w"] + weights(scale=0.01, seed=3), "small": base["small"] + weights(scale=1e-5, seed=4)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nnr.encode_update(base, new)
        nnr.encode_update(base, new, nnr.EncoderConfig.preset("fl"))
    with pytest.warns(nnr.LossWarning, match=r"1 matrix of the update is coded below 20 dB: 'small' \(0\.0 dB\)"):
        nnr.encode_update(base, new, qp=-38)
