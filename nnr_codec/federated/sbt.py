"""Stochastic binary-ternary quantization of updates (ISO/IEC 15938-17:2024, 5.2, 5.3, 9.2.4; 4.3: q_b, q_t, pi_t, tau).

Values of each matrix of an update become -1, 0 or 1 times a step size of the matrix, as in "Stochastic Binary-Ternary
Quantization for Communication Efficient Federated Computation" (ICIP 2022) and the sparse binary and sparse ternary
compression of Sattler et al. (2018, 2019). Decisions use integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from math import frexp, inf, ldexp
from typing import Any

import numpy as np

from ..config import EncoderConfig
from ..encoder.distinct_values import chunks
from ..encoder.goals import DENSITY, qp_of, with_density
from ..encoder.reduce.magnitudes import PRECISION, Floats, Mask, integers, matrices, share
from ..errors import EncodeError, Option
from ..model import Array
from ..tensor.quant import step_size

#: Default probability of ternary quantization.
TERNARY = 0.5
#: qp range that every bitstream can represent with any QuantizationParameter.
LEAST_QP, GREATEST_QP = -(1 << (5 + DENSITY)), (1 << (5 + DENSITY)) - 1
#: Options for matrices with fixed levels, which trellis and codebook must not change.
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

        Vectors, integers, exact or non-reducible tensors, and tensors whose magnitude is not a step size are skipped.

        Parameters
        ----------
        tensors : iterable of str and ndarray
            Differences; floats are float32 or float64.
        config : EncoderConfig
        place : str or int
            Seeds of the random draws, in addition to the values and name of a tensor.
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
    """Return the results of :class:`BinaryTernary` in step sizes, and the options that code them exactly.

    Parameters
    ----------
    found : mapping of str to ndarray
        Quantized matrices. Magnitudes become the nearest step size of a QpDensity of 7.
    config : EncoderConfig
    before : mapping of str to ndarray
        Tensors to be subtracted (9.2.4). They usually have one magnitude too. The new magnitude is then a
        power of two times the old one, so that all differences are multiples of the smaller magnitude.
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
    """Return the quantization that two options select, or None if both are None.

    Raises EncodeError for invalid or ineffective values.
    """
    for name, part in (("sbt", sbt), ("sbt_ternary", sbt_ternary)):
        if part is not None and not _is_part(part):
            raise EncodeError(Option(name), f" must be a number from 0 to 1, got {part!r}")
    if sbt is not None and config.exact:
        raise EncodeError(Option("exact", True), " keeps every bit, so ", Option("sbt"), " has no effect; omit it")
    if sbt is not None:
        return BinaryTernary(float(sbt), TERNARY if sbt_ternary is None else float(sbt_ternary))
    if sbt_ternary is not None:
        raise EncodeError(Option("sbt_ternary"), " requires ", Option("sbt"))
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


def is_ternary(array: Floats, probability: float, *place: str | int) -> bool:
    """Return whether a draw with this probability (pi_t) selects ternary quantization of a tensor, instead of binary.

    The draw is a digest of the tensor's values and of ``place``, such as device, round and tensor name.
    """
    digest = sha256(repr(place).encode())
    digest.update(array.astype(array.dtype.newbyteorder("<"), order="C").tobytes())
    drawn = int.from_bytes(digest.digest()[:8], "big")
    return drawn < Fraction(probability) * (1 << 64)


def binary_ternary(array: Floats, ratio: float, *, ternary: bool) -> Floats:
    """Return a tensor whose values are 0 or have a single magnitude, mu.

    Parameters
    ----------
    array : ndarray of float32 or float64
        Difference of two tensors, of any shape.
    ratio : float
        Fraction of the values, 0..1, that become 0: values with a magnitude of at most the threshold tau. If tau is
        the largest magnitude, values of that magnitude are kept.
    ternary : bool
        True: kept values become mu or -mu; mu is their mean magnitude. False: only values of the sign with
        the greater mean magnitude, mu, are kept; values of the positive sign if both are equal.

    Returns
    -------
    ndarray
        Array of the same shape and type; ``array`` itself if it is empty, all zero or not finite.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    magnitudes: Floats = np.abs(flat)
    largest = float(magnitudes.max(initial=0))
    if not 0 < largest < inf:
        return array
    kept = _above(magnitudes, ratio)
    if not ternary:
        positive, negative = kept & (flat > 0), kept & (flat < 0)
        (total, count), (other, rest) = (_sum(magnitudes[sign], largest) for sign in (positive, negative))
        kept = negative if rest and (not count or total * rest < other * count) else positive
    total, count = _sum(magnitudes[kept], largest)
    fraction, exponent = frexp(largest)
    mu = ldexp(min(total / count / (1 << PRECISION), fraction), exponent)  # rounding can make the mean larger
    found: Floats = np.zeros_like(flat)
    found[kept] = np.copysign(flat.dtype.type(mu), flat[kept])
    return found.reshape(array.shape)


def _above(magnitudes: Floats, ratio: float) -> Mask:
    """Return a mask of the magnitudes above the threshold, a quantile; it has at least one nonzero magnitude."""
    below = min(share(ratio, magnitudes.size), magnitudes.size - 1)
    tau = np.partition(magnitudes, below - 1)[below - 1] if below else magnitudes.dtype.type(0)
    above: Mask = np.asarray(magnitudes > tau)
    return above if above.any() else np.asarray(magnitudes == tau)


def _sum(magnitudes: Floats, largest: float) -> tuple[int, int]:
    """Return the sum of magnitudes, in units of :func:`integers`, and their count."""
    return sum(int(integers(part, largest).sum()) for part in chunks(magnitudes)), magnitudes.size
