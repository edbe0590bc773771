"""How far the tensors of one model are from those of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import bit_patterns, stored_type
from .errors import FormatError
from .model import Array, Model


@dataclass(frozen=True)
class Loss:
    """The error of one tensor of floats.

    Parameters
    ----------
    signal, noise : float
        Sum of the squares of its finite values, and of their errors.
    nonzero, zeroed : int
        Number of its values other than 0, and of those that became 0.
    is_matrix : bool
        At least two of its extents are above 1; others are vectors.
    """

    signal: float
    noise: float
    nonzero: int
    zeroed: int
    is_matrix: bool

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB; infinite without an error."""
        return _snr(self.signal, self.noise)


@dataclass(frozen=True)
class LossSummary:
    """The errors of all tensors of floats of a model.

    Parameters
    ----------
    matrices, vectors : float or None
        Signal-to-noise ratio in dB of all matrices together, and of all vectors; infinite without an error, None if
        there are none.
    worst : str or None
        Name of the matrix with the lowest signal-to-noise ratio; None if no matrix has an error.
    worst_snr : float
        Its signal-to-noise ratio in dB.
    zeroed : float
        Share of the values other than 0 that became 0.
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
    """How far the values of one tensor are from the expected ones.

    Parameters
    ----------
    size, count : int
        Values, and how many of them differ: of one type in any bit, so that -0.0 is not 0.0; of two types in value.
    signal, noise : float
        Sum of the squares of the finite expected values, and of all errors.
    largest : float
        Largest absolute error; infinite where only one value is a finite number, 0 between kinds of not-a-number.
    first : tuple of int or None
        Index of the first value that differs.
    expected, got : number or None
        The two values there.
    integers : bool
        Whether the expected values are integers or booleans.
    nonzero, zeroed : int
        Expected values other than 0, and how many of these became 0.
    is_matrix : bool
        At least two extents are above 1.
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
        """The error as a :class:`Loss`; None for integers, and without values."""
        if self.integers or not self.size:
            return None
        return Loss(self.signal, self.noise, self.nonzero, self.zeroed, self.is_matrix)

    @property
    def rms(self) -> float:
        """Root of the mean square error."""
        return math.sqrt(self.noise / self.size) if self.size else 0.0

    @property
    def snr(self) -> float:
        """Signal to noise in dB; infinite where nothing differs."""
        return _snr(self.signal, self.noise)


@dataclass
class ModelDifference:
    """What :func:`compare_models` found.

    Parameters
    ----------
    tensors : dict of str to TensorDifference
        All that both models have in the same shape.
    shapes, dtypes : dict of str to pairs
        The expected and the other shape, or name of the type, where these differ.
    missing, extra : list of str
        Names that only the expected model has, and that it has not.
    """

    tensors: dict[str, TensorDifference] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    dtypes: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    def same(self, tolerance: float | None = None) -> bool:
        """Whether names, shapes, types and all bits are the same; with a tolerance, whether no error exceeds it.

        Types do not matter then, nor does the sign of 0.
        """
        if self.missing or self.extra or self.shapes:
            return False
        if tolerance is None:
            return not self.dtypes and not any(one.count for one in self.tensors.values())
        return all(one.largest <= tolerance for one in self.tensors.values())

    @property
    def worst(self) -> str | None:
        """The name of the tensor with the largest error; None when all values are the same."""
        return max((name for name, one in self.tensors.items() if one.count), key=self._largest, default=None)

    def _largest(self, name: str) -> float:
        return self.tensors[name].largest

    @property
    def snr(self) -> float:
        """Signal to noise in dB of all tensors together, but for integers that are the same: they may be any size."""
        found = [one for one in self.tensors.values() if one.count or not one.integers]
        return _snr(math.fsum(one.signal for one in found), math.fsum(one.noise for one in found))

    @property
    def loss(self) -> LossSummary:
        """The errors of matrices and vectors."""
        found = {name: one.loss for name, one in self.tensors.items()}
        return summarized({name: one for name, one in found.items() if one})


def _snr(signal: float, noise: float) -> float:
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def compare_tensors(expected: Array, got: Array) -> TensorDifference:
    """Compare two arrays of one shape: by their bits; errors are those in float64 (complex128, longdouble).

    All :data:`~nnr_codec.dtypes.STORED_TYPES` and numpy's other numbers, in any byte order.
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
    """The values in a type that all of numpy's functions know, and that has them all."""
    stored = stored_type(array.dtype)
    if stored is None or stored.is_numpys:
        return array
    return array.astype({"f": np.float32, "i": np.int8, "u": np.uint8}[stored.kind])


def _differ(expected: Array, got: Array, before: Array, after: Array) -> npt.NDArray[np.bool_]:
    """Which values differ; ``before`` and ``after`` are the same in plain types, flat."""
    stored = stored_type(expected.dtype)
    if stored is not None and stored.kind == "f" and expected.dtype.name == got.dtype.name:
        return np.asarray(bit_patterns(expected) != bit_patterns(got))
    return np.asarray((before != after) & ~((before != before) & (after != after)))


def _errors(before: npt.NDArray[Any], after: npt.NDArray[Any], work: np.dtype[Any]) -> npt.NDArray[Any]:
    """Absolute errors of values that differ."""
    if before.dtype.kind in "iu" and before.dtype.kind == after.dtype.kind:
        # float64 does not tell large integers apart; modulo 2**64 their difference is exact.
        x, y = (array.astype(f"{array.dtype.kind}8").view(np.uint64) for array in (before, after))
        return np.where(before > after, x - y, y - x).astype(work)
    errors = np.abs(before.astype(work, copy=False) - after)
    errors[np.isnan(errors)] = math.inf
    errors[(before != before) & (after != after)] = 0
    return np.asarray(errors)


def compare_models(
    expected: Model | Mapping[str, Array],
    got: Model | Mapping[str, Array],
    progress: Callable[[], None] | None = None,
) -> ModelDifference:
    """Compare the tensors of two models by name, one at a time.

    Parameters
    ----------
    expected, got : Model or mapping of str to ndarray
        An opened bitstream (:func:`nnr_codec.open`) decodes each tensor when its turn comes.
    progress : callable, optional
        Called after each tensor.
    """
    known, names = set(expected), set(got)
    found = ModelDifference(extra=[name for name in got if name not in known])
    for name in expected:
        if name not in names:
            found.missing.append(name)
            continue
        before, after = np.asarray(expected[name]), np.asarray(got[name])
        if before.dtype.name != after.dtype.name:
            found.dtypes[name] = before.dtype.name, after.dtype.name
        if before.shape != after.shape:
            found.shapes[name] = before.shape, after.shape
        else:
            found.tensors[name] = compare_tensors(before, after)
        if progress:
            progress()
    return found


# ------------------------------------------------------------------------------------------------ outputs
@dataclass(frozen=True)
class Agreement:
    """How far two models give the same answers.

    Parameters
    ----------
    samples : int
    top_1 : float
        Share of the samples whose largest output stands at the same place, 0..1.
    cosine : float
        Mean cosine of the angle between the outputs of a sample; those that are all zero agree only with such.
    largest : float
        Largest absolute error.
    """

    samples: int
    top_1: float
    cosine: float
    largest: float


def compare_outputs(expected: Array, got: Array) -> Agreement:
    """Compare outputs of shape (samples, ...); FormatError when the shapes differ or there is no sample."""
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
