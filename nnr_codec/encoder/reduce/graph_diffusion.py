"""Importance of filters by graph diffusion: equilibrium probabilities of a walk over normalized filters.

After Zhang, Cricri, Tavakoli and others (graph diffusion for structured pruning, US 12242969), as far as published.

The rows m_i of the feature matrix M are the filters of a layer, flattened and normalized. A random walk moves from
filter i to filter j with the probability p_ij, proportional to 1 / (1 + d^2 / phi), where d is the distance of m_i and
m_j, and phi the smoothing factor. These weights are symmetric, so the equilibrium pi with pi P = pi is proportional to
the row sums, without iteration. The importance S of a channel is pi times the length of its filter times the length of
the weight vector that reads the channel.

Results are equal on all machines: lengths are computed from sums of integers. Scalar products of unit filters are sums
of integers too, which a float64 BLAS computes exactly in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import frexp

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Smoothing factor phi, in squared distances of unit filters.
SMOOTHING = 1.0
#: Bits of the integers of a filter, of a unit filter, and of transition weights.
BITS, UNIT_BITS, KERNEL_BITS = 22, 24, 30
#: S is rounded to this fraction of the next power of two above the largest S, which removes differences in last bits.
GRID = 2.0**-20
#: Columns of a partial sum of squares, and rows compared at a time; both limit memory.
COLUMNS, ROWS = 1 << 18, 1 << 10


def channel_importance(makers: Iterable[Floats], readers: Iterable[Floats]) -> Floats:
    """Return the importance S of channels, shape (n,), scaled to a root mean square of about 1.

    Parameters
    ----------
    makers : iterable of ndarray of float64, shape (n, m)
        Filters that produce the channels: at least one array, several for residual connections. Values are finite.
    readers : iterable of ndarray of float64, shape (n, m)
        Weights that read each channel.
    """
    found = [_made(rows) for rows in makers]
    value = _total([pi for pi, _ in found]) * np.sqrt(_total([length * length for _, length in found]))
    if read := [_length(rows) for rows in readers]:
        most = max(exponent for _, exponent in read)
        value = value * np.sqrt(_total([np.ldexp(length, exponent - most) ** 2 for length, exponent in read]))
    value = _scaled(value)
    step = GRID * 2.0 ** (frexp(float(value.max()))[1])
    return np.rint(value / step) * step


def _made(rows: Floats) -> tuple[Floats, Floats]:
    """Return the equilibrium probabilities (pi) of filters, and the relative lengths of the filters."""
    return equilibrium(rows), _scaled(_length(rows)[0])


def _length(rows: Floats) -> tuple[Floats, int]:
    """Return lengths, scaled so that squares neither overflow nor underflow, and the exponent of the scale."""
    exponent = frexp(float(np.abs(rows).max(initial=0)))[1]
    return lengths(np.ldexp(rows, -exponent)), exponent


def equilibrium(rows: Floats) -> Floats:
    """Return n * pi of filters, shape (n, m); all values are 1 if the filters are equal."""
    units = _units(rows)
    sums = np.empty(len(rows))
    for first in range(0, len(rows), ROWS):
        part = slice(first, first + ROWS)
        cosine = (units[part] @ units.T) / 2.0 ** (2 * UNIT_BITS)
        squares = np.maximum(2 - 2 * cosine, 0)
        kernel = np.rint(2.0**KERNEL_BITS / (1 + squares / SMOOTHING))
        sums[part] = kernel.sum(axis=1)
    pi: Floats = sums / (sums.sum() / len(sums))
    return pi


def lengths(rows: Floats) -> Floats:
    """Return the lengths of filters, shape (n, m). Values much smaller than the largest one of a filter count as 0."""
    integers, exponents = _integers(rows)
    return np.ldexp(_roots(integers), exponents)


def _units(rows: Floats) -> Floats:
    """Return normalized filters (0 for filters of length 0), rounded to multiples of 2**-UNIT_BITS."""
    integers, _ = _integers(rows)
    roots = _roots(integers)
    roots[roots == 0] = 1
    units: Floats = np.rint(integers * (2.0**UNIT_BITS / roots)[:, None])
    return units


def _integers(rows: Floats) -> tuple[Floats, npt.NDArray[np.int32]]:
    """Return filters as integers of BITS bits, and the exponent of each filter."""
    exponents = np.frexp(np.abs(rows).max(axis=1, initial=0))[1] - BITS
    return np.rint(np.ldexp(rows, -exponents[:, None])), exponents


def _roots(integers: Floats) -> Floats:
    """Return the square root of the sum of squares of each row."""
    squares = np.zeros(len(integers))
    for first in range(0, integers.shape[1], COLUMNS):
        part = integers[:, first : first + COLUMNS].astype(np.int64)
        squares += (part * part).sum(axis=1)
    return np.sqrt(squares)


def _scaled(values: Floats) -> Floats:
    """Return values scaled to a mean square of 1, unless all are 0."""
    mean = _total([value * value for value in values]) / max(len(values), 1)
    return values / np.sqrt(mean) if mean else values


def _total(values: Sequence[Floats]) -> Floats:
    """Return the sum of values, added in order."""
    total = np.zeros_like(values[0]) if len(values) else np.zeros(())
    for value in values:
        total = total + value
    return np.asarray(total, np.float64)
