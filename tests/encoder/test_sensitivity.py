"""Sensitivities: smaller errors where they cost most, at equal size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.encoder.sensitivity import Importance, relative_costs
from tests.cabac.test_surgeon import moments, values
from tests.shared import needs_shared

Array = npt.NDArray[Any]

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 120, 72
MODEL = {
    "dense": values(ROWS, COLUMNS),
    "conv": values(ROWS, COLUMNS, 2).reshape(ROWS, 8, 3, 3),
    "bias": values(1, ROWS, 3).reshape(-1),
}
HESSIANS = {"dense": moments(COLUMNS), "conv": moments(COLUMNS, 1)}
SKEWED = np.random.default_rng(4).random((ROWS, COLUMNS)) ** 8


def error(name: str, data: bytes) -> Array:
    """Return the error of a tensor as a matrix."""
    return MODEL[name].reshape(ROWS, -1).astype(np.float64) - nnr.decode(data)[name].reshape(ROWS, -1)


def output_error(name: str, data: bytes) -> float:
    one = error(name, data)
    return float(np.einsum("ij,jk,ik", one, HESSIANS[name], one))


@pytest.mark.parametrize("options", [{}, {"dependent_quantization": False}, {"effort": 1}, {"profile": 0}])
def test_second_moments_lower_the_error_of_outputs(options: dict[str, Any]) -> None:
    plain = nnr.encode(MODEL, qp=-24, **options)
    aware = nnr.encode(MODEL, qp=-24, hessians=HESSIANS, **options)
    assert len(aware) < 1.01 * len(plain)
    for name in HESSIANS:
        assert output_error(name, aware) < 0.45 * output_error(name, plain)
    assert np.array_equal(nnr.decode(plain)["bias"], nnr.decode(aware)["bias"])


@pytest.mark.parametrize("options", [{}, {"dependent_quantization": False}])
def test_second_moments_of_rows_lower_the_error_of_outputs(options: dict[str, Any]) -> None:
    rows, columns = moments(ROWS, 3), HESSIANS["dense"]
    for pair in ((rows, None), (rows, columns)):
        plain = nnr.encode({"dense": MODEL["dense"]}, qp=-24, **options)
        aware = nnr.encode({"dense": MODEL["dense"]}, qp=-24, hessians={"dense": pair}, **options)
        assert len(aware) < 1.02 * len(plain)
        squares = []
        for data in (plain, aware):
            one = error("dense", data)
            squares.append(np.trace(rows @ one @ (np.eye(COLUMNS) if pair[1] is None else columns) @ one.T))
        assert squares[1] < (0.45 if pair[1] is None else 0.25) * squares[0]


def test_second_moments_of_a_transposed_matrix_swap() -> None:
    one, other, costs = np.eye(3), np.eye(4), np.arange(12.0).reshape(3, 4)
    turned = Importance("a", (3, 4), costs, other, one).turned(1)
    assert turned is not None
    assert turned.dims == (4, 3)
    assert turned.hessian is one
    assert turned.row_hessian is other
    assert np.array_equal(turned.sensitivity, costs.T)
    assert Importance("a", (3, 2, 2), None, other, one).turned(1) is None


def test_second_moments_in_a_block_scan() -> None:
    options = {"qp": -24, "scan_order": 1, "hessians": HESSIANS}
    uniform = [nnr.encode(MODEL, dependent_quantization=False, **{**options, "hessians": h}) for h in (None, HESSIANS)]
    assert output_error("dense", uniform[1]) < 0.45 * output_error("dense", uniform[0])
    dependent = nnr.encode(MODEL, **options)
    assert output_error("dense", dependent) < 1.1 * output_error("dense", nnr.encode(MODEL, qp=-24, scan_order=1))


def test_parameters_that_matter_have_less_error() -> None:
    for options in ({}, {"scan_order": 2}, {"dependent_quantization": False}):
        plain = nnr.encode(MODEL, qp=-20, **options)
        aware = nnr.encode(
            MODEL, qp=-24, sensitivity={"dense": SKEWED, "conv": SKEWED.reshape(ROWS, 8, 3, 3)}, **options
        )
        assert len(aware) < len(plain)
        for name in HESSIANS:
            assert (SKEWED * error(name, aware) ** 2).sum() < 0.8 * (SKEWED * error(name, plain) ** 2).sum()


def test_rows_that_matter_have_less_error() -> None:
    rows = np.repeat([1.9, 0.1], ROWS // 2)
    weights = {"dense": np.repeat(rows[:, None], COLUMNS, axis=1)}
    plain, aware = (
        nnr.encode({"dense": MODEL["dense"]}, qp=-20, sensitivity=given, hessians=HESSIANS_OF_ONE)
        for given in (None, weights)
    )
    squares = [(error("dense", data) ** 2).sum(axis=1).reshape(2, -1).sum(axis=1) for data in (plain, aware)]
    assert squares[1][0] < squares[0][0]
    assert squares[1][1] > 1.5 * squares[0][1]


HESSIANS_OF_ONE = {"dense": HESSIANS["dense"]}


def test_a_rate_of_0_is_for_the_least_error_of_parameters() -> None:
    plain = nnr.encode(MODEL, qp=-24, rate=0.0)
    assert nnr.encode(MODEL, qp=-24, rate=0.0, hessians=HESSIANS, sensitivity={"conv": 3}) == plain


def test_bounds_hold_in_spite_of_all_that_is_known() -> None:
    data = nnr.encode(MODEL, snr=20, hessians=HESSIANS, sensitivity={"dense": SKEWED})
    for name in HESSIANS:
        assert (error(name, data) ** 2).sum() * 100 <= (MODEL[name].astype(np.float64) ** 2).sum()


def test_the_same_bytes_for_any_number_of_threads() -> None:
    known = {"hessians": HESSIANS, "sensitivity": {"dense": SKEWED, "bias": 3.0}}
    one = nnr.encode(MODEL, target_size=8000, **known)
    assert nnr.encode(MODEL, target_size=8000, jobs=3, **known) == one
    assert 7920 <= len(one) <= 8000


def test_targets_give_tensors_that_matter_smaller_steps() -> None:
    def errors(**sensitivity: float) -> list[float]:
        data = nnr.encode(MODEL, target_size=7000, sensitivity=sensitivity)
        return [float((error(name, data) ** 2).sum()) for name in HESSIANS]

    alike, dense, conv = errors(), errors(dense=16, conv=1), errors(dense=1e-9, conv=1e-9 * 16)
    assert dense[0] < alike[0] / 2 < 2 * alike[1] < dense[1]
    assert conv[1] < alike[1] / 2 < 2 * alike[0] < conv[0]
    assert errors(dense=5) == errors(dense=7)  # like all, if only one is named


def test_what_a_squared_error_costs() -> None:
    numbers = np.arange(12.0).reshape(3, 4)
    assert Importance("a", (3, 4)).mean() == 1
    assert Importance("a", (3, 4), np.asarray(2)).mean() == 2
    assert Importance("a", (3, 4), numbers).mean() == pytest.approx(5.5)
    assert Importance("a", (3, 4), None, np.diag([1.0, 2, 3, 4])).mean() == pytest.approx(2.5 * 1.01)
    assert Importance("a", (3, 4), numbers, np.diag([1.0, 2, 3, 4])).mean() == pytest.approx(5.5 * 1.01)
    assert Importance("a", (3, 4), np.asarray(2), np.zeros((4, 4))).mean() == 2
    pair = Importance("a", (3, 4), np.asarray(2), np.diag([1.0, 2, 3, 4]), np.diag([1.0, 2, 3]))
    assert pair.mean() == pytest.approx(2 * 1.01**2)
    assert pair.weights() == pytest.approx(np.outer([1, 2, 3], [1, 2, 3, 4]).reshape(-1) / 5)
    alike = np.full((4, 4), 0.99) + 0.01 * np.eye(4)
    assert Importance("a", (3, 4), None, alike).mean() < 0.3  # later weights compensate for earlier ones
    assert Importance("a", (3, 4), np.zeros((3, 4))).weights() is None
    weights = Importance("a", (3, 4), numbers).weights()
    assert weights is not None
    assert weights.dtype == np.float32
    assert weights == pytest.approx(numbers.reshape(-1) / 5.5)
    weights = Importance("a", (2, 4), None, np.diag([1.0, 2, 3, 4])).weights()
    assert weights == pytest.approx(np.tile([0.4, 0.8, 1.2, 1.6], 2))


def test_costs_are_relative_to_the_median() -> None:
    assert relative_costs({}) == {}
    assert relative_costs({"a": 2.0, "b": 0.0, "c": 4.0, "d": 1e30}) == {"a": 0.5, "b": 1e-6, "c": 1.0, "d": 2.5e29}


def test_all_zero_is_no_knowledge() -> None:
    zeros = {"dense": np.zeros((ROWS, COLUMNS))}
    plain = nnr.encode(MODEL, qp=-24)
    assert nnr.encode(MODEL, qp=-24, sensitivity=zeros) == plain
    assert nnr.encode(MODEL, qp=-24, hessians={"dense": np.zeros((COLUMNS, COLUMNS))}) == plain


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"sensitivity": [1]}, "sensitivity must be a mapping from tensor names"),
        ({"hessians": 3}, "hessians must be a mapping from tensor names"),
        ({"sensitivity": {"other": 1}}, "sensitivity: 'other' is not a tensor of the model"),
        ({"hessians": {"other": np.eye(2)}}, "hessians: 'other' is not a tensor of the model"),
        ({"sensitivity": {"dense": "1"}}, "sensitivity of 'dense' must be finite numbers"),
        ({"sensitivity": {"dense": True}}, "sensitivity of 'dense' must be finite numbers"),
        ({"sensitivity": {"dense": np.inf}}, "sensitivity of 'dense' must be finite numbers"),
        ({"sensitivity": {"dense": np.nan * SKEWED}}, "sensitivity of 'dense' must be finite numbers"),
        ({"sensitivity": {"dense": -0.5}}, "sensitivity of 'dense' is negative"),
        ({"sensitivity": {"dense": SKEWED - 0.5}}, "sensitivity of 'dense' is negative"),
        ({"sensitivity": {"conv": SKEWED}}, r"has shape \(120, 72\), but the tensor has \(120, 8, 3, 3\)"),
        (
            {"hessians": {"conv": np.eye(8)}},
            r"have shape \(8, 8\), but the tensor has 72 columns; use \(72, 72\)",
        ),
        (
            {"hessians": {"conv": (np.eye(72), None)}},
            r"have shape \(72, 72\), but the tensor has 120 rows; use \(120, 120\)",
        ),
        ({"hessians": {"conv": (np.eye(120),)}}, "of 'conv' must be an array, or two for rows and columns, got 1"),
        ({"hessians": {"dense": np.full((72, 72), np.nan)}}, "hessians of 'dense' must be finite numbers"),
        ({"hessians": {"dense": np.triu(HESSIANS["dense"])}}, "hessians of 'dense' are not symmetric"),
        ({"hessians": {"dense": -np.eye(72)}}, "hessians of 'dense' are not symmetric, or have a negative diagonal"),
        (
            {"hessians": {"dense": np.eye(72) - 2 * np.eye(72, k=1) - 2 * np.eye(72, k=-1)}},
            "moments of 'dense' are not positive definite",
        ),
    ],
)
def test_what_does_not_fit_is_refused(known: dict[str, Any], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message) as raised:
        nnr.encode(MODEL, **known)
    assert "\n" not in str(raised.value)


def test_small_negative_eigenvalues_of_second_moments_are_accepted() -> None:
    moments = np.diag([*[1.0] * (COLUMNS - 1), 0.0]) + 0.004 * (np.eye(COLUMNS, k=1) + np.eye(COLUMNS, k=-1))
    assert np.linalg.eigvalsh(moments).min() < 0
    assert nnr.encode(MODEL, hessians={"dense": moments})


@pytest.mark.parametrize("dtype", ["<i4", ">u2", "<f2", ">f8"])
def test_numbers_of_other_types(dtype: str) -> None:
    known = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 100
    moment = np.rint(HESSIANS["dense"] * 50 + 500)
    found = [
        nnr.encode(MODEL, qp=-24, sensitivity={"dense": known.astype(kind)}, hessians={"dense": moment.astype(kind)})
        for kind in (dtype, np.float64)
    ]
    assert found[0] == found[1]


@pytest.mark.medium
@needs_shared
def test_the_digits_network_takes_four_fifths_at_equal_outputs() -> None:
    command = [sys.executable, "-m", "benchmarks.data_aware", "--only", "digits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3, done.stderr
    assert all(row["ratio"] <= 0.8 for row in rows)
    assert all(row["with"][0]["accuracy"] >= row["without"]["accuracy"] - 0.01 for row in rows)
