"""Cost of the errors of parameters, given by the caller: importance, and second moments of inputs.

The cost of the error matrix e of a weight, reshaped to (dims[0], prod(dims[1:])), is the sum over rows r of
rows[r] * e[r] H e[r]^T with the second moments H of the inputs, or without them the sum of weights * e**2.
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
        Shape (columns, columns).
    """

    name: str
    dims: tuple[int, ...]
    sensitivity: Array | None = None
    hessian: Array | None = None

    @property
    def tells(self) -> bool:
        """True if some errors cost more than others."""
        return self.hessian is not None or (self.sensitivity is not None and self.sensitivity.ndim > 0)

    def turned(self, axis: int) -> Importance | None:
        """Return the importance with a dimension moved to the front; second moments of rows do not apply then."""
        if self.sensitivity is None:
            return None
        dims = (self.dims[axis], *self.dims[:axis], *self.dims[axis + 1 :])
        each = self.sensitivity.ndim > 0
        return Importance(self.name, dims, np.moveaxis(self.sensitivity, axis, 0) if each else self.sensitivity)

    def mean(self) -> float:
        """Return the mean cost of a squared error; with second moments, after compensation by later weights."""
        moments = self._moments()
        if moments is None:
            return _mean(self.sensitivity) if self.sensitivity is not None else 1.0
        _, pivots = self._factor(moments)
        mean, diagonal = fsum(pivots) / len(pivots), _trace(moments) / len(pivots)
        return mean if self.sensitivity is None else _mean(self.sensitivity) * mean / diagonal

    def weights(self) -> npt.NDArray[np.float32] | None:
        """Return the cost of each squared error, 1 on average, shape (n,); None if all are equal."""
        if self.sensitivity is not None and self.sensitivity.ndim:
            return _relative(self.sensitivity.reshape(-1))
        moments = self._moments()
        if moments is None:
            return None
        one = _relative(np.diagonal(moments))
        return None if one is None else np.tile(one, self.dims[0])

    def improve(self, x: surgeon.Real, step: float, levels: npt.NDArray[np.int32], **options: Any) -> None:
        """Replace levels, shape (n,), so that later weights compensate for the errors of earlier ones.

        ``options`` are options of :func:`nnr_codec.cabac_ext.surgeon.surgeon`. Without second moments, levels stay
        unchanged.
        """
        moments = self._moments()
        if moments is None:
            return
        unit, pivots = self._factor(moments)
        rows = np.ones(self.dims[0])
        if self.sensitivity is not None and self.sensitivity.ndim:
            found = _relative(row_sums(self.sensitivity.reshape(self.dims[0], -1)))
            rows = rows if found is None else found.astype(np.float64)
        pivots = pivots / (fsum(pivots) / len(pivots))
        shape = (self.dims[0], len(pivots))
        surgeon.surgeon(x.reshape(shape), step, levels.reshape(shape), unit, pivots, rows, **options)

    def _moments(self) -> Floats | None:
        """Return the second moments; None if they are not given or all 0."""
        if self.hessian is None:
            return None
        moments = np.ascontiguousarray(self.hessian, np.float64)
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
    hessian = _given(name, "hessians", config.hessians)
    if sensitivity is None and hessian is None:
        return None
    dims = shape or (1,)
    if sensitivity is not None and sensitivity.shape not in ((), shape):
        raise EncodeError(
            Option("sensitivity"),
            f" of {name!r} has shape {sensitivity.shape}, but the tensor has {shape}",
            tensor=name,
        )
    if sensitivity is not None and sensitivity.size and sensitivity.min() < 0:
        raise EncodeError(Option("sensitivity"), f" of {name!r} is negative; costs must be at least 0", tensor=name)
    columns = prod(dims[1:])
    if hessian is not None and hessian.shape != (columns, columns):
        raise EncodeError(
            Option("hessians"),
            f" of {name!r} have shape {hessian.shape}, but the tensor has rows of {columns}; use {(columns, columns)}",
            tensor=name,
        )
    if hessian is not None and hessian.size:
        diagonal = np.diagonal(hessian)
        if diagonal.min() < 0 or np.abs(hessian - hessian.T).max() > ASYMMETRY * diagonal.max():
            raise EncodeError(
                Option("hessians"), f" of {name!r} are not symmetric, or have a negative diagonal", tensor=name
            )
    return Importance(name, dims, sensitivity, hessian)


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
