"""Updates whose matrices are multiples -1, 0 and 1 of a step size (ISO/IEC 15938-17:2024, 5.3, 9.2.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np

from ..config import EncoderConfig
from ..encoder.goals import DENSITY, qp_of, with_density
from ..encoder.reduce.sbt import binary_ternary, is_ternary
from ..encoder.reduce.zeros import Floats, matrices
from ..errors import EncodeError
from ..model import Array
from ..tensor.quant import step_size

#: Default probability of ternary quantization.
TERNARY = 0.5
#: qp range that every bitstream can represent, whatever its QuantizationParameter.
LEAST_QP, GREATEST_QP = -(1 << (5 + DENSITY)), (1 << (5 + DENSITY)) - 1
#: All levels are known, so trellis and codebook have no choice.
KNOWN = {"dependent_quantization": False, "rate": 0, "codebook": 0}


@dataclass(frozen=True)
class BinaryTernary:
    """Stochastic binary-ternary quantization of the matrices of an update.

    Parameters
    ----------
    ratio : float
        Share of the parameters of each matrix, 0..1, that is set to 0.
    probability : float
        Probability of ternary quantization, 0..1.
    """

    ratio: float
    probability: float

    def quantized(
        self,
        tensors: Iterable[tuple[str, Array]],
        config: EncoderConfig,
        *place: str | int,
        ties: Mapping[str, str] | None = None,
    ) -> dict[str, Array]:
        """Return the quantized matrices of an update, each with 0 and one magnitude.

        Vectors, integers, exact or non-reducible tensors, and tensors whose magnitude is not a step size are left out.

        Parameters
        ----------
        tensors : iterable of str and ndarray
            Differences; floats are float32 or float64.
        config : EncoderConfig
        place : str or int
            Seeds of the random draws beside the values and name of a tensor.
        ties : mapping of str to str, optional
            Tensors that must stay equal to others.
        """
        found: dict[str, Array] = {}
        for name, array in tensors:
            own = config.for_tensor(name)
            if own.exact or not own.reducible or not matrices({name: array}):
                continue
            floats: Floats = np.asarray(array, array.dtype)
            ternary = is_ternary(floats, self.probability, *place, _target(name, ties or {}))
            quantized = binary_ternary(floats, self.ratio, ternary=ternary)
            if _nearest(quantized) is not None:
                found[name] = quantized
        return found


def stepped(
    found: Mapping[str, Array], config: EncoderConfig, before: Mapping[str, Array]
) -> tuple[dict[str, Array], EncoderConfig]:
    """Return the results of :class:`BinaryTernary` in step sizes, and the options that code exactly them.

    Parameters
    ----------
    found : mapping of str to ndarray
        Quantized matrices. Magnitudes become the nearest step size of a QpDensity of 7.
    config : EncoderConfig
    before : mapping of str to ndarray
        Tensors to be subtracted (9.2.4). They usually have one magnitude too; the new one is then a power of two times
        that, so that all differences are multiples of the smaller one.
    """
    arrays: dict[str, Array] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, array in found.items():
        qp, last = _nearest(array), _nearest(before[name]) if name in before else None
        if qp is None:
            continue
        if last is not None:
            qp = _octaves_from(last, qp)
        arrays[name] = np.sign(array) * array.dtype.type(step_size(qp, DENSITY))
        options[name] = {"qp": qp if last is None else min(qp, last), **KNOWN}
    return arrays, with_density(config).overridden(options)


def binary_ternary_of(sbt: float | None, sbt_ternary: float | None, config: EncoderConfig) -> BinaryTernary | None:
    """Return the quantization of two options, or None; EncodeError for invalid or ineffective values."""
    for name, part in (("sbt", sbt), ("sbt_ternary", sbt_ternary)):
        if part is not None and not _is_part(part):
            raise EncodeError(f"{name} is a number within 0..1, not {part!r}")
    if sbt is not None and config.exact:
        raise EncodeError("exact=True keeps every bit, so sbt has no effect")
    if sbt is not None:
        return BinaryTernary(float(sbt), TERNARY if sbt_ternary is None else float(sbt_ternary))
    if sbt_ternary is not None:
        raise EncodeError("sbt_ternary goes with sbt")
    return None


def _is_part(value: object) -> bool:
    return isinstance(value, int | float | np.number) and type(value) is not bool and bool(0 <= value <= 1)


def _target(name: str, ties: Mapping[str, str]) -> str:
    """Return the final target of a tie."""
    for _ in ties:
        name = ties.get(name, name)
    return name


def _nearest(array: Array) -> int | None:
    """Return the qp of the step size nearest to the largest magnitude; None if it is out of range."""
    largest = float(np.abs(array).max())
    if not step_size(LEAST_QP, DENSITY) <= largest <= step_size(GREATEST_QP, DENSITY):
        return None
    qp = qp_of(largest)
    more = min(qp + 1, GREATEST_QP)
    return qp if largest - step_size(qp, DENSITY) <= step_size(more, DENSITY) - largest else more


def _octaves_from(last: int, qp: int) -> int:
    """Return the qp of the power of two times another step size that is nearest to the step size of ``qp``."""
    fraction, octaves = frexp(step_size(qp, DENSITY) / step_size(last, DENSITY))
    found = last + ((octaves if fraction >= 0.75 else octaves - 1) << DENSITY)
    beyond = (found > GREATEST_QP) - (found < LEAST_QP)
    return found - (beyond << DENSITY)
