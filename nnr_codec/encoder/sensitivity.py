"""Cost of the errors of parameters, given by the caller: importance, and second moments of inputs.

The cost of the error matrix E of a weight, reshaped to (dims[0], prod(dims[1:])), is trace(R E H E^T) with second
moments R of rows and H of columns. Without R or H, diagonal matrices of sensitivities replace them; without both, the
cost is the sum of sensitivity * E**2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import frexp, fsum, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import surgeon
from ..config import EncoderConfig
from ..errors import EncodeError, Option
from ..model import Array, Model

Floats = npt.NDArray[np.float64]

#: Damping: fraction of the mean of the diagonal of second moments that is added to the diagonal.
DAMPING = 0.01
#: Largest asymmetry of second moments, relative to their diagonal.
ASYMMETRY = 1e-3
#: Minimum cost relative to the median: the cost of a tensor must not be 0.
LEAST = 1e-6
#: Numbers in a partial sum, and bits of its integers: together fewer than 63 bits, so that sums are exact.
PORTION, SUM_BITS = 1 << 20, 40


@dataclass(frozen=True)
class Importance:
    """Cost of the errors of one tensor.

    Parameters
    ----------
    name : str
    dims : tuple of int
        Shape of the tensor.
    sensitivity : ndarray or None
        Cost of a squared error: a scalar, or an array of the tensor's shape.
    hessian : ndarray or None
        Second moments of columns, shape (columns, columns).
    row_hessian : ndarray or None
        Second moments of rows, shape (rows, rows).
    """

    name: str
    dims: tuple[int, ...]
    sensitivity: Array | None = None
    hessian: Array | None = None
    row_hessian: Array | None = None

    @property
    def tells(self) -> bool:
        """True if some errors cost more than others."""
        return self.has_moments or (self.sensitivity is not None and self.sensitivity.ndim > 0)

    @property
    def has_moments(self) -> bool:
        """True if second moments are given."""
        return self.hessian is not None or self.row_hessian is not None

    def turned(self, axis: int) -> Importance | None:
        """Return the importance with a dimension moved to the front; second moments apply to matrices only."""
        dims = (self.dims[axis], *self.dims[:axis], *self.dims[axis + 1 :])
        costs = self.sensitivity
        if costs is not None and costs.ndim:
            costs = np.moveaxis(costs, axis, 0)
        columns, rows = (self.row_hessian, self.hessian) if len(dims) == 2 else (None, None)
        turned = Importance(self.name, dims, costs, columns, rows)
        return turned if costs is not None or turned.has_moments else None

    def mean(self) -> float:
        """Return the mean cost of a squared error; with second moments, after compensation by later weights."""
        own = _mean(self.sensitivity) if self.sensitivity is not None else 1.0
        for moments in (self._moments(self.row_hessian), self._moments(self.hessian)):
            if moments is not None:
                mean = fsum(self._factor(moments)[1]) / len(moments)
                own *= mean / (_trace(moments) / len(moments)) if self.sensitivity is not None else mean
        return own

    def weights(self) -> npt.NDArray[np.float32] | None:
        """Return the cost of each squared error, 1 on average, shape (n,); None if all are equal."""
        if self.sensitivity is not None and self.sensitivity.ndim:
            return _relative(self.sensitivity.reshape(-1))
        rows, columns = self._moments(self.row_hessian), self._moments(self.hessian)
        if rows is None and columns is None:
            return None
        count = prod(self.dims[1:])
        one = np.ones(self.dims[0]) if rows is None else np.diagonal(rows)
        other = np.ones(count) if columns is None else np.diagonal(columns)
        return _relative(np.outer(one, other).reshape(-1))

    def improve(self, x: surgeon.Real, step: float, levels: npt.NDArray[np.int32], **options: Any) -> None:
        """Replace levels, shape (n,), so that later weights compensate for the errors of earlier ones.

        ``options`` are options of :func:`nnr_codec.cabac_ext.surgeon.surgeon`. Without second moments, levels stay
        unchanged.
        """
        rows, columns = self._moments(self.row_hessian), self._moments(self.hessian)
        if rows is None and columns is None:
            return
        costs = self.sensitivity if self.sensitivity is not None and self.sensitivity.ndim else np.ones(self.dims)
        costs = costs.reshape(self.dims[0], -1)
        unit, pivots = self._side(columns, costs.T)
        row_unit, weights = self._side(rows, costs)
        shape = costs.shape
        values, levels = x.reshape(shape), levels.reshape(shape)
        surgeon.surgeon(values, step, levels, unit, pivots, weights, row_unit=row_unit, run=0, stride=0, **options)

    def _side(self, moments: Floats | None, costs: Array) -> tuple[npt.NDArray[np.float32] | None, Floats]:
        """Return the factor of rows or columns, and their costs, 1 on average; without moments from sensitivities."""
        if moments is not None:
            unit, pivots = self._factor(moments)
            return unit, pivots / (fsum(pivots) / len(pivots))
        found = _relative(row_sums(costs))
        return None, np.ones(len(costs)) if found is None else found.astype(np.float64)

    @staticmethod
    def _moments(given: Array | None) -> Floats | None:
        """Return the second moments; None if they are not given or all 0."""
        if given is None:
            return None
        moments = np.ascontiguousarray(given, np.float64)
        return moments if _trace(moments) > 0 else None

    def _factor(self, moments: Floats) -> tuple[npt.NDArray[np.float32], Floats]:
        try:
            return surgeon.factorize(moments, DAMPING)
        except ValueError as error:
            raise EncodeError(f"the second moments of {self.name!r} are {error}", tensor=self.name) from None


def importance(name: str, shape: tuple[int, ...], config: EncoderConfig) -> Importance | None:
    """Return the importance of a tensor, or None if no calibration data has its name.

    Raises EncodeError if the shape does not fit, or if the costs or second moments are invalid.
    """
    sensitivity = _given(name, "sensitivity", config.sensitivity)
    given = (config.hessians or {}).get(name)
    pair = given if isinstance(given, tuple) else (None, given)
    if len(pair) != 2:
        raise EncodeError(
            Option("hessians"),
            f" of {name!r} must be an array, or two for rows and columns, got {len(pair)}",
            tensor=name,
        )
    dims = shape or (1,)
    columns = prod(dims[1:])
    rows, hessian = (_moments_of(name, *one) for one in zip(pair, (dims[0], columns), ("rows", "columns"), strict=True))
    if sensitivity is None and hessian is None and rows is None:
        return None
    if sensitivity is not None and sensitivity.shape not in ((), shape):
        raise EncodeError(
            Option("sensitivity"),
            f" of {name!r} has shape {sensitivity.shape}, but the tensor has {shape}",
            tensor=name,
        )
    if sensitivity is not None and sensitivity.size and sensitivity.min() < 0:
        raise EncodeError(Option("sensitivity"), f" of {name!r} is negative; costs must be at least 0", tensor=name)
    return Importance(name, dims, sensitivity, hessian, rows)


def _moments_of(name: str, given: Any, size: int, lines: str) -> npt.NDArray[Any] | None:
    """Return second moments of rows or columns, after checks."""
    hessian = _given(name, "hessians", {name: given})
    if hessian is not None and hessian.shape != (size, size):
        raise EncodeError(
            Option("hessians"),
            f" of {name!r} have shape {hessian.shape}, but the tensor has {size} {lines}; use {(size, size)}",
            tensor=name,
        )
    if hessian is not None and hessian.size:
        diagonal = np.diagonal(hessian)
        if diagonal.min() < 0 or np.abs(hessian - hessian.T).max() > ASYMMETRY * diagonal.max():
            raise EncodeError(
                Option("hessians"), f" of {name!r} are not symmetric, or have a negative diagonal", tensor=name
            )
    return hessian


def check_names(model: Model, config: EncoderConfig) -> None:
    """Raise EncodeError for importance of tensors that the model lacks."""
    for option, given in (("sensitivity", config.sensitivity), ("hessians", config.hessians)):
        for name in given or ():
            if name not in model.tensors:
                raise EncodeError(Option(option), f": {name!r} is not a tensor of the model", tensor=name)


def relative_costs(found: Mapping[str, float]) -> dict[str, float]:
    """Return costs relative to their median, with a lower limit. Tensors without a cost get the median."""
    positive = sorted(value for value in found.values() if value > 0)
    middle = positive[(len(positive) - 1) // 2] if positive else 1.0
    return {name: max(value / middle, LEAST) for name, value in found.items()}


def _given(name: str, option: str, mapping: Mapping[str, Any] | None) -> npt.NDArray[Any] | None:
    """Return the entry of a mapping for a tensor, as finite real numbers."""
    value = (mapping or {}).get(name)
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise EncodeError(Option(option), f" of {name!r} must be finite numbers", tensor=name)
    return array if array.dtype.char in "fd" else array.astype(np.float64)


def _relative(values: Array) -> npt.NDArray[np.float32] | None:
    """Return values divided by their mean; None if the mean is 0."""
    mean = _mean(values)
    wide: npt.NDArray[Any] = values
    return np.ascontiguousarray(wide / mean, np.float32) if mean > 0 else None


def _mean(values: Array) -> float:
    """Return the mean of values above 0, independent of the order of summation."""
    flat = values.reshape(-1)
    return fsum(float(part) for part in row_sums(flat.reshape(1, -1))) / max(flat.size, 1)


def row_sums(rows: npt.NDArray[Any]) -> Floats:
    """Return the sum of each row, independent of the order of summation."""
    exponent = frexp(float(np.abs(rows).max(initial=0.0)))[1]
    totals = np.zeros(len(rows))
    for start in range(0, rows.shape[1], PORTION):
        part = np.ldexp(rows[:, start : start + PORTION].astype(np.float64), SUM_BITS - exponent)
        totals += np.rint(part).astype(np.int64).sum(axis=1)
    return np.ldexp(totals, exponent - SUM_BITS)


def _trace(moments: Floats) -> float:
    return fsum(np.diagonal(moments))
