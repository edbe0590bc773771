"""Comparison of models: errors of tensors and agreement of outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import bit_patterns, stored_type
from .errors import FormatError
from .model import Array, Model, Progress


@dataclass(frozen=True)
class Loss:
    """Error of one float tensor.

    Parameters
    ----------
    signal, noise : float
        Sums of squares of the finite values and of their errors.
    nonzero, zeroed : int
        Number of nonzero values, and of nonzero values that became zero.
    is_matrix : bool
        True if at least two extents exceed 1; other tensors count as vectors.
    """

    signal: float
    noise: float
    nonzero: int
    zeroed: int
    is_matrix: bool

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB; infinite if there is no error."""
        return _snr(self.signal, self.noise)


@dataclass(frozen=True)
class LossSummary:
    """Errors of all float tensors of a model.

    Parameters
    ----------
    matrices, vectors : float or None
        Signal-to-noise ratio in dB over all matrices, and over all vectors; infinite without error, None if the model
        has no matrices or no vectors.
    worst : str or None
        Name of the matrix with the lowest signal-to-noise ratio; None if no matrix has an error.
    worst_snr : float
        Signal-to-noise ratio of this matrix in dB.
    zeroed : float
        Share of the nonzero values that became zero, 0..1.
    """

    matrices: float | None
    vectors: float | None
    worst: str | None
    worst_snr: float
    zeroed: float


def summarized(losses: Mapping[str, Loss]) -> LossSummary:
    """Summarize the errors of tensors, given by name."""

    def snr(some: list[Loss]) -> float | None:
        return _snr(math.fsum(one.signal for one in some), math.fsum(one.noise for one in some)) if some else None

    matrices = {name: one for name, one in losses.items() if one.is_matrix}
    lossy = [name for name, one in matrices.items() if one.noise]
    worst = min(lossy, key=lambda name: matrices[name].snr, default=None)
    nonzero = sum(one.nonzero for one in losses.values())
    return LossSummary(
        snr([*matrices.values()]),
        snr([one for one in losses.values() if not one.is_matrix]),
        worst,
        matrices[worst].snr if worst is not None else math.inf,
        sum(one.zeroed for one in losses.values()) / nonzero if nonzero else 0.0,
    )


@dataclass(frozen=True)
class TensorDifference:
    """Difference of the values of one tensor from the expected values.

    Parameters
    ----------
    size, count : int
        Number of values, and of differing values. Values of the same type differ if any bit differs (-0.0 is not 0.0);
        values of different types differ if they are not equal.
    signal, noise : float
        Sums of squares of the finite expected values and of all errors.
    largest : float
        Largest absolute error; infinite if exactly one of two values is finite, 0 between two NaNs.
    first : tuple of int or None
        Index of the first differing value.
    expected, got : number or None
        Values at that index.
    integers : bool
        True if the expected values are integers or booleans.
    nonzero, zeroed : int
        Number of nonzero expected values, and of nonzero values that became zero.
    is_matrix : bool
        True if at least two extents exceed 1.
    """

    size: int
    signal: float
    count: int = 0
    noise: float = 0.0
    largest: float = 0.0
    first: tuple[int, ...] | None = None
    expected: Any = None
    got: Any = None
    integers: bool = False
    nonzero: int = 0
    zeroed: int = 0
    is_matrix: bool = False

    @property
    def loss(self) -> Loss | None:
        """The error as a :class:`Loss`; None for integers and for empty tensors."""
        if self.integers or not self.size:
            return None
        return Loss(self.signal, self.noise, self.nonzero, self.zeroed, self.is_matrix)

    @property
    def rms(self) -> float:
        """Root mean square error."""
        return math.sqrt(self.noise / self.size) if self.size else 0.0

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB; infinite if no value differs."""
        return _snr(self.signal, self.noise)


@dataclass
class ModelDifference:
    """Result of :func:`compare_models`.

    Parameters
    ----------
    tensors : dict of str to TensorDifference
        Differences of all tensors with the same shape in both models.
    shapes, dtypes : dict of str to pairs
        Expected and actual shape, or dtype name, of tensors for which these differ.
    missing, extra : list of str
        Names that only the expected model has, and names that only the other model has.
    """

    tensors: dict[str, TensorDifference] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    dtypes: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    def same(self, tolerance: float | None = None) -> bool:
        """Return whether both models have equal names, shapes, dtypes and bits.

        With a tolerance, return whether no error exceeds it; dtypes and the sign of zero are then ignored.
        """
        if self.missing or self.extra or self.shapes:
            return False
        if tolerance is None:
            return not self.dtypes and not any(one.count for one in self.tensors.values())
        return all(one.largest <= tolerance for one in self.tensors.values())

    @property
    def worst(self) -> str | None:
        """Name of the tensor with the largest error; None if all values are equal."""
        return max((name for name, one in self.tensors.items() if one.count), key=self._largest, default=None)

    def _largest(self, name: str) -> float:
        return self.tensors[name].largest

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB over all tensors except equal integers, whose magnitudes are arbitrary."""
        found = [one for one in self.tensors.values() if one.count or not one.integers]
        return _snr(math.fsum(one.signal for one in found), math.fsum(one.noise for one in found))

    @property
    def loss(self) -> LossSummary:
        """Summary of the errors of matrices and vectors."""
        found = {name: one.loss for name, one in self.tensors.items()}
        return summarized({name: one for name, one in found.items() if one})


def _snr(signal: float, noise: float) -> float:
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def compare_tensors(expected: Array, got: Array) -> TensorDifference:
    """Compare two arrays of the same shape by their bits; compute errors in float64 (complex128, longdouble).

    Supports all :data:`~nnr_codec.dtypes.STORED_TYPES` and numpy's other numeric types, in any byte order.
    """
    before, after = (_plain(np.asarray(array)).reshape(-1) for array in (expected, got))
    work = np.result_type(before.dtype, after.dtype, np.float64)
    integers = before.dtype.kind in "biu"
    nonzero, is_matrix = int(np.count_nonzero(before)), is_matrix_shape(expected.shape)
    different = np.flatnonzero(_differ(expected, got, before, after))
    with np.errstate(over="ignore", invalid="ignore"):
        finite = before[np.isfinite(before)].astype(work, copy=False)
        signal = float(np.vdot(finite, finite).real)
        if not different.size:
            return TensorDifference(before.size, signal, integers=integers, nonzero=nonzero, is_matrix=is_matrix)
        errors = _errors(before[different], after[different], work)
        noise = float(np.dot(errors, errors))
    first = int(different[0])
    return TensorDifference(
        before.size,
        signal,
        different.size,
        noise,
        float(errors.max()),
        tuple(int(i) for i in np.unravel_index(first, expected.shape)),
        before[first].item(),
        after[first].item(),
        integers,
        nonzero,
        int(np.count_nonzero(before[different][after[different] == 0])),
        is_matrix,
    )


def is_matrix_shape(shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape is a matrix: no extent is 0, and at least two exceed 1."""
    return 0 not in shape and sum(extent > 1 for extent in shape) > 1


def _plain(array: Array) -> Array:
    """Return the values in a type that all numpy functions support and that represents them exactly."""
    stored = stored_type(array.dtype)
    if stored is None or stored.is_numpys:
        return array
    return array.astype({"f": np.float32, "i": np.int8, "u": np.uint8}[stored.kind])


def _differ(expected: Array, got: Array, before: Array, after: Array) -> npt.NDArray[np.bool_]:
    """Return the mask of differing values; ``before`` and ``after`` are flat copies in plain types."""
    stored = stored_type(expected.dtype)
    if stored is not None and stored.kind == "f" and expected.dtype.name == got.dtype.name:
        return np.asarray(bit_patterns(expected) != bit_patterns(got))
    return np.asarray((before != after) & ~((before != before) & (after != after)))


def _errors(before: npt.NDArray[Any], after: npt.NDArray[Any], work: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the absolute errors of differing values."""
    if before.dtype.kind in "iu" and before.dtype.kind == after.dtype.kind:
        # float64 cannot distinguish large integers; their difference modulo 2**64 is exact.
        x, y = (array.astype(f"{array.dtype.kind}8").view(np.uint64) for array in (before, after))
        return np.where(before > after, x - y, y - x).astype(work)
    errors = np.abs(before.astype(work, copy=False) - after)
    errors[np.isnan(errors)] = math.inf
    errors[(before != before) & (after != after)] = 0
    return np.asarray(errors)


def compare_models(
    expected: Model | Mapping[str, Array],
    got: Model | Mapping[str, Array],
    progress: Progress | None = None,
) -> ModelDifference:
    """Compare the tensors of two models by name, one at a time.

    Parameters
    ----------
    expected, got : Model or mapping of str to ndarray
        An opened bitstream (:func:`nnr_codec.open`) decodes each tensor when it is compared.
    progress : callable, optional
        Called as ``progress(name, done, total)`` after each tensor.

    Returns
    -------
    ModelDifference
        Differences of tensors, shapes, dtypes and names.
    """
    known, names = set(expected), set(got)
    found = ModelDifference(extra=[name for name in got if name not in known])
    for done, name in enumerate(expected, 1):
        if name in names:
            before, after = np.asarray(expected[name]), np.asarray(got[name])
            if before.dtype.name != after.dtype.name:
                found.dtypes[name] = before.dtype.name, after.dtype.name
            if before.shape != after.shape:
                found.shapes[name] = before.shape, after.shape
            else:
                found.tensors[name] = compare_tensors(before, after)
        else:
            found.missing.append(name)
        if progress:
            progress(name, done, len(expected))
    return found


# ------------------------------------------------------------------------------------------------ outputs
@dataclass(frozen=True)
class Agreement:
    """Agreement of the outputs of two models.

    Parameters
    ----------
    samples : int
    top_1 : float
        Share of the samples whose largest output has the same index, 0..1.
    cosine : float
        Mean cosine of the angle between the outputs of a sample; all-zero outputs agree only with all-zero outputs.
    largest : float
        Largest absolute error.
    """

    samples: int
    top_1: float
    cosine: float
    largest: float


def compare_outputs(expected: Array, got: Array) -> Agreement:
    """Compare outputs of shape (samples, ...); raise FormatError if the shapes differ or there is no sample."""
    if expected.shape != got.shape or not expected.size:
        raise FormatError(f"outputs of shapes {expected.shape} and {got.shape} cannot be compared")
    before, after = (array.reshape(len(array), -1).astype(np.float64) for array in (expected, got))
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    both_zero = ~before.any(axis=1) & ~after.any(axis=1)
    cosine = np.where(both_zero, 1.0, np.einsum("ij,ij->i", before, after) / np.where(norms > 0, norms, 1.0))
    return Agreement(
        len(before),
        float(np.mean(before.argmax(axis=1) == after.argmax(axis=1))),
        float(np.mean(cosine)),
        compare_tensors(expected, got).largest,
    )
