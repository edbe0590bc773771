"""Stochastic binary-ternary quantization of updates (ISO/IEC 15938-17:2024, 5.2, 5.3; 4.3: q_b, q_t, pi_t and tau).

After "Stochastic Binary-Ternary Quantization for Communication Efficient Federated Computation" (ICIP 2022), and the
sparse binary and sparse ternary compression of Sattler and others (2018, 2019). Decisions are made by integers.
"""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from math import frexp, inf, ldexp

import numpy as np

from ..distinct import chunks
from .zeros import PRECISION, Floats, Mask, integers, share


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
