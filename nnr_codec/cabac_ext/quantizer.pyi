"""Levels for tensors: choices of an encoder, not part of ISO/IEC 15938-17:2024 (which has the inverse, 7.3.6, 9.2)."""

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]

def uniform(x: Real, step: float, levels: npt.NDArray[np.int32]) -> None:
    """Write the nearest multiple of `step` of each value, in steps, to `levels`. All are of shape (n,).

    The caller sees to it that every `|x| / step` is below 2**31.
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
) -> None:
    """Write to `levels` those of least sum(weights * (x - x')**2) / step**2 + rate * bits, where they decode to x'.

    All arrays are of shape (n,), in coding order. A value of 0 gets level 0 always, so that sparsity survives. The same
    levels on every machine.

    Parameters
    ----------
    dq_flag : int
        1: dependent quantization (9.2.3), whose values are multiples of `step`; 0: uniform quantization (9.2.1).
    rate : float
        Squared steps that a bit is worth, 0 to 16. Bits are estimated as the levels before have them, in blocks. The
        fewest bits at equal error take 0.3 to 0.4 with dependent quantization, 0.1 to 0.13 without.
    weights : ndarray of float32 or None
        Importance of each value, 1 on average; taken as between 0 and 512.
    groups : ndarray of uint8 or None
        By what sig_flag is coded: 0, as without groups, by the level before; 1 and 2 by what an earlier update says of
        the value, whatever that is.
    passes : int
        How often each block is searched, 1 to 100: after the first time with rates of its own levels.
    plain : bool
        Without vector instructions.

    `|x| / step` counts as 2**30 where it is more, as does not-a-number. Raises ValueError for arguments out of range.
    """

def survey(x: Real) -> tuple[float, float, float, int, float]:
    """Return facts about at least one value, shape (n,); the same on every machine.

    Returns
    -------
    low, high : float
        The least and the greatest value; NaN if a value is not finite.
    power : float
        See :func:`power`.
    nonzero : int
        Number of values other than 0.
    smallest : float
        Smallest magnitude other than 0; infinity if there is none.
    """

def grid(x: Real, bits: int) -> tuple[int, int, float] | None:
    """Return the grid of the values, shape (n,), which need not be contiguous.

    Returns the largest `exponent` such that all values are multiples of 2**exponent, the greatest common divisor of
    these multiples (odd; 0 if all values are 0), and the largest magnitude. None for values that are not finite, for
    negative zeros, and if a multiple takes more than `bits` bits.
    """

def power(x: Real) -> float:
    """Return the sum of the squares of finite values of shape (n,), the same on every machine.

    Squares are rounded to 2**-40 of the largest one among 2**18 values, and added up as integers.
    """

def glance(x: Real, inverse: float) -> tuple[int, bool]:
    """Return the number of distinct bit patterns of `x`, shape (n,), and whether all are multiples of 1 / `inverse`."""

def loss(x: Real, y: Real) -> tuple[float, float, int, int]:
    """Compare values with the values that they decode to, both of shape (n,) and one type.

    Returns the sum of the squares of `x`, the sum of the squares of `x - y`, the number of values of `x` other than 0,
    and the number of these whose `y` is 0. The same sums on every machine.
    """

def loss_of_levels(
    x: npt.NDArray[np.float32], levels: npt.NDArray[np.int32], step: float, dq_flag: int
) -> tuple[float, float, int, int]:
    """Compare values with the float32 values of their levels, both of shape (n,); returns see :func:`loss`.

    With `dq_flag` 1, levels are those of dependent quantization in coding order (10.2.1.5).
    """

def resolve(levels: npt.NDArray[np.int32], out: npt.NDArray[np.int32], state: int = 0) -> int:
    """Write QuantParam of levels with dependent quantization to `out` (10.2.1.5).

    Both are of shape (n,), in coding order, and may be the same array. `state` is 0 for the first levels of a tensor;
    for the levels that follow, it is the number that the call before returned.
    """

def divisors(
    magnitudes: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
    columns: npt.NDArray[np.int64],
    most: float,
    out: npt.NDArray[np.float64],
) -> None:
    """About the greatest numbers of which the magnitudes of each row are multiples; 0 where rounding errors hide it.

    Parameters
    ----------
    magnitudes : ndarray, shape (n, width)
        In ascending order, finite, none negative.
    error : ndarray, shape (n, width)
        By how much each may be off.
    columns : ndarray of int64
        Those that are looked at, in order.
    most : float
        The largest multiple.
    out : ndarray, shape (n,)
        The divisors.
    """
