"""Stochastic binary-ternary quantization of updates (ISO/IEC 15938-17:2024, 5.2, 5.3, 9.2.4; 4.3: q_b, q_t, pi_t, tau).

The matrices of an update become multiples -1, 0 and 1 of a step of their own. After "Stochastic Binary-Ternary
Quantization for Communication Efficient Federated Computation" (ICIP 2022), and the sparse binary and sparse ternary
compression of Sattler and others (2018, 2019). Decisions are made by integers.
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

#: The probability of ternary quantization, unless the caller says otherwise.
TERNARY = 0.5
#: Steps that every bitstream can express, whatever its QuantizationParameter.
LEAST_QP, GREATEST_QP = -(1 << (5 + DENSITY)), (1 << (5 + DENSITY)) - 1
#: Neither the trellis nor a codebook has anything to choose where all levels are known.
KNOWN = {"dependent_quantization": False, "rate": 0, "codebook": 0}


@dataclass(frozen=True)
class BinaryTernary:
    """Stochastic binary-ternary quantization of the matrices of an update.

    Parameters
    ----------
    ratio : float
        The part of the parameters of each matrix, 0..1, that becomes 0.
    probability : float
        That of ternary quantization, 0..1.
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
        """The matrices of an update, each of 0 and one magnitude.

        Others have no part in it: vectors, integers, tensors that are exact or not reducible, and those whose magnitude
        is no step.

        Parameters
        ----------
        tensors : iterable of str and ndarray
            Differences, of which floats are float32 or float64.
        config : EncoderConfig
        place : str or int
            What draws depend on beside the values and the name of a tensor.
        ties : mapping of str to str, optional
            Tensors that are to be the same as others.
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
    """What :class:`BinaryTernary` quantized, in steps, and the options by which just that is coded.

    Parameters
    ----------
    found : mapping of str to ndarray
        Magnitudes become the nearest step of a QpDensity of 7.
    config : EncoderConfig
    before : mapping of str to ndarray
        What is to be subtracted (9.2.4). As a rule it has one magnitude, too: then the new one is a power of two times
        that, so that all differences are multiples of the lesser.
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
    """The quantization that two options ask for, None for none; EncodeError for what means nothing."""
    for name, part in (("sbt", sbt), ("sbt_ternary", sbt_ternary)):
        if part is not None and not _is_part(part):
            raise EncodeError(Option(name), f" is a number within 0..1, not {part!r}")
    if sbt is not None and config.exact:
        raise EncodeError(Option("exact", True), " keeps every bit, so ", Option("sbt"), " has no effect")
    if sbt is not None:
        return BinaryTernary(float(sbt), TERNARY if sbt_ternary is None else float(sbt_ternary))
    if sbt_ternary is not None:
        raise EncodeError(Option("sbt_ternary"), " needs ", Option("sbt"))
    return None


def _is_part(value: object) -> bool:
    return isinstance(value, int | float | np.number) and type(value) is not bool and bool(0 <= value <= 1)


def _target(name: str, ties: Mapping[str, str]) -> str:
    """The tensor that a name stands for at last."""
    for _ in ties:
        name = ties.get(name, name)
    return name


def _nearest(array: Array) -> int | None:
    """The qp of the step that is nearest to the largest magnitude; None where that is not within the range of steps."""
    largest = float(np.abs(array).max())
    if not step_size(LEAST_QP, DENSITY) <= largest <= step_size(GREATEST_QP, DENSITY):
        return None
    qp = qp_of(largest)
    more = min(qp + 1, GREATEST_QP)
    return qp if largest - step_size(qp, DENSITY) <= step_size(more, DENSITY) - largest else more


def _octaves_from(last: int, qp: int) -> int:
    """The qp of that power of two times the step of another one that is nearest to the step of ``qp``."""
    fraction, octaves = frexp(step_size(qp, DENSITY) / step_size(last, DENSITY))
    found = last + ((octaves if fraction >= 0.75 else octaves - 1) << DENSITY)
    beyond = (found > GREATEST_QP) - (found < LEAST_QP)
    return found - (beyond << DENSITY)


def is_ternary(array: Floats, probability: float, *place: str | int) -> bool:
    """What is drawn for a tensor: ternary quantization with this probability (pi_t), binary otherwise.

    The draw is a digest of the tensor's values and of ``place``, such as the device, the round and the tensor's name.
    """
    digest = sha256(repr(place).encode())
    digest.update(array.astype(array.dtype.newbyteorder("<"), order="C").tobytes())
    drawn = int.from_bytes(digest.digest()[:8], "big")
    return drawn < Fraction(probability) * (1 << 64)


def binary_ternary(array: Floats, ratio: float, *, ternary: bool) -> Floats:
    """A tensor of which most parameters are 0, and all others have one magnitude, mu.

    Parameters
    ----------
    array : ndarray of float32 or float64
        Of any shape; the difference of two tensors.
    ratio : float
        The part of the parameters, 0..1, that becomes 0: those whose magnitude is at most the threshold tau. If tau is
        the largest magnitude, those that have it stay.
    ternary : bool
        True: what stays is mu or -mu, of which mu is the mean magnitude. False: only one sign stays, the one whose mean
        magnitude, which is mu, is greater; of equal ones the positive one.

    Returns
    -------
    ndarray
        Of the same shape and type; ``array`` itself where it is empty, all 0 or not finite.
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
    mu = ldexp(min(total / count / (1 << PRECISION), fraction), exponent)  # which rounding may have made larger
    found: Floats = np.zeros_like(flat)
    found[kept] = np.copysign(flat.dtype.type(mu), flat[kept])
    return found.reshape(array.shape)


def _above(magnitudes: Floats, ratio: float) -> Mask:
    """Which magnitudes are above the threshold, as this part of them is not; at least one is there, not 0."""
    below = min(share(ratio, magnitudes.size), magnitudes.size - 1)
    tau = np.partition(magnitudes, below - 1)[below - 1] if below else magnitudes.dtype.type(0)
    above: Mask = np.asarray(magnitudes > tau)
    return above if above.any() else np.asarray(magnitudes == tau)


def _sum(magnitudes: Floats, largest: float) -> tuple[int, int]:
    """The sum of magnitudes as multiples of what :func:`integers` has them in, and how many there are."""
    return sum(int(integers(part, largest).sum()) for part in chunks(magnitudes)), magnitudes.size
