"""Quantization of tensors, and statistics of values.

The choice of levels is an encoder decision and not part of ISO/IEC 15938-17:2024, which specifies the inverse (7.3.6,
9.2). All functions release the GIL and raise ValueError for arrays of different lengths. Results are identical on all
machines, with and without vector instructions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Patterns = npt.NDArray[np.unsignedinteger[Any]]
Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]

def uniform(x: Real, step: float, levels: npt.NDArray[np.int32]) -> None:
    """Write the rounded quotient of each value and `step` to `levels` (9.2.1). Arrays have shape (n,).

    The caller ensures that every `|x| / step` is below 2**31.
    """

def trellis(
    x: Real,
    step: float,
    levels: npt.NDArray[np.int32],
    *,
    dq_flag: int,
    rate: float,
    cabac_unary_length_minus1: int = 10,
    weights: npt.NDArray[np.float32] | None = None,
    groups: npt.NDArray[np.uint8] | None = None,
    passes: int = 1,
    plain: bool = False,
    block_scan: tuple[int, int] | None = None,
) -> None:
    """Quantize by rate-distortion optimization: search the levels with the lowest cost.

    The cost is sum(weights * (x - y)**2) / step**2 + rate * bits, where y are the decoded values. `_trellis.h` explains
    the search. All arrays have shape (n,), row-major. A value of 0 always gets level 0, which keeps the sparsity
    of the tensor.

    Parameters
    ----------
    x : ndarray of float32 or float64
        Values. NaN and values with `|x| / step` above 2**30 are quantized as 2**30 steps.
    step : float
        Step size, positive.
    levels : ndarray of int32
        Output.
    dq_flag : int
        1: dependent quantization (9.2.3); decoded values are multiples of `step`. 0: uniform quantization (9.2.1).
    rate : float
        Cost of one bit in squared step sizes, 0 to 16. Bits are estimated from the levels of earlier blocks. At equal
        error, 0.3 to 0.4 gives the smallest size with dependent quantization, and 0.1 to 0.13 without it.
    cabac_unary_length_minus1 : int
        Syntax element, 0 to 255.
    weights : ndarray of float32 or None
        Importance of each value, 1 on average; limited to 0 to 512.
    groups : ndarray of uint8 or None
        Context group of each value, 0 to 2. In group 0, as without groups, the context of sig_flag depends on the
        preceding level. In groups 1 and 2 it depends on an earlier update instead.
    passes : int
        Number of searches in each block, 1 to 100. Each search after the first one uses bit costs of the levels found
        before.
    plain : bool
        Do not use vector instructions.
    block_scan : (int, int) or None
        `TensorSyntax.block_scan`: width and edge of blocks, if the values are coded in blocks.

    Raises
    ------
    ValueError
        For arguments out of range.
    """

def survey(x: Real) -> tuple[float, float, float, int, float]:
    """Return statistics of the values, shape (n,) with n > 0.

    Returns
    -------
    low, high : float
        Smallest and largest value; NaN if a value is not finite.
    power : float
        See :func:`power`.
    nonzero : int
        Number of values other than 0.
    smallest : float
        Smallest magnitude other than 0; infinity if there is none.
    """

def grid(x: Real, bits: int) -> tuple[int, int, float] | None:
    """Return the coarsest grid of multiples that contains all values. `x` has shape (n,).

    Returns the largest `exponent` such that all values are multiples of 2**exponent; the greatest common divisor of the
    quotients value / 2**exponent (odd; 0 if all values are 0); and the largest magnitude. Returns None if a value is
    not finite or is -0.0, or if a quotient has more than `bits` bits.
    """

def power(x: Real) -> float:
    """Return the sum of squares of the values, shape (n,). Portions with a value that is not finite are ignored.

    In each portion of 2**18 values, squares are rounded to 2**-40 of the largest square and added as integers.
    """

def glance(x: Real, inverse: float) -> tuple[int, bool]:
    """Return the number of distinct values of `x`, shape (n,), and True if all are multiples of 1 / `inverse`.

    Values are compared by bit pattern. `x` may be strided.
    """

def count_distinct(items: npt.NDArray[np.uint32] | npt.NDArray[np.uint64]) -> int:
    """Return the number of distinct items, shape (n,) with any stride."""

def collisions(lines: Patterns, sign: int) -> tuple[int, int, int]:
    """Count the items other than 0 and `sign`, their pairs in the same line, and the pairs of equal items among these.

    `lines` has shape (lines, items) and may be strided. The caller ensures that it has few items: each takes up to 64
    bytes of memory during the call.
    """

def loss(x: Real, y: Real) -> tuple[float, float, int, int]:
    """Compare the values `x` with the decoded values `y`, both of shape (n,) and of the same dtype.

    Returns the sum of squares of `x`, the sum of squares of `x - y`, the number of nonzero values of `x`, and the
    number of these values for which `y` is 0.
    """

def loss_of_levels(
    x: npt.NDArray[np.float32],
    levels: npt.NDArray[np.int32],
    step: float,
    dq_flag: int,
    block_scan: tuple[int, int] | None = None,
) -> tuple[float, float, int, int]:
    """Compare values with the float32 values that their levels decode to; returns the same numbers as :func:`loss`.

    Arrays have shape (n,), row-major; `block_scan` as for :func:`trellis`. If `dq_flag` is 1, dependent quantization of
    `levels` is not resolved (10.2.1.5).
    """

def resolve(
    levels: npt.NDArray[np.int32],
    out: npt.NDArray[np.int32],
    state: int = 0,
    block_scan: tuple[int, int] | None = None,
) -> int:
    """Resolve dependent quantization: write QuantParam of the levels to `out` (10.2.1.5).

    Both arrays have shape (n,), row-major, and may be the same array. `block_scan` is as for :func:`trellis`. `state`
    is 0 for the first levels of a tensor, and otherwise the return value of the previous call. Returns the state for
    the next call.
    """

def divisors(
    magnitudes: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
    columns: npt.NDArray[np.int64],
    most: float,
    out: npt.NDArray[np.float64],
) -> None:
    """Write the approximate greatest common divisor of each row to `out`, by Euclid's algorithm on inexact numbers.

    The divisor is 0 if rounding errors hide it.

    Parameters
    ----------
    magnitudes : ndarray of float64, shape (n, width)
        Finite and not negative, in ascending order.
    error : ndarray of float64, shape (n, width)
        Largest possible error of each magnitude.
    columns : ndarray of int64
        Columns to use, in this order.
    most : float
        Largest permitted quotient of a magnitude and the divisor.
    out : ndarray of float64, shape (n,)
        Output: the divisors.
    """

def narrowed(
    magnitudes: npt.NDArray[np.float64],
    least: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
    estimates: npt.NDArray[np.float64],
    mosts: npt.NDArray[np.float64],
) -> None:
    """Move the estimated scale of each channel to the middle of an interval.

    All arrays are C-contiguous. For each number in `mosts`, in turn, the interval is narrowed to the scales whose
    multiples are between `least` and `magnitudes + error`, for magnitudes of at most this multiple of the estimate, and
    the estimate moves into the interval.

    Parameters
    ----------
    magnitudes, least, error : ndarray of float64, shape (channels, n)
        `magnitudes` are in ascending order.
    estimates : ndarray of float64, shape (channels,)
        Input and output.
    mosts : ndarray of float64, shape (k,)
    """
