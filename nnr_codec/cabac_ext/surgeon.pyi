"""Data-aware rounding: choices of an encoder, not part of ISO/IEC 15938-17:2024.

A row w of a matrix with quantized row q has the output error (w - q) H (w - q)^T, H being the second moments of the
inputs. With H = U D U^T, U unit upper triangular, that is the sum of D[i] * r[i]**2 with
r[i] = w[i] - q[i] + sum((w[j] - q[j]) * U[j, i] for j < i): each level in turn makes up for the errors before it, which
is the optimal brain surgeon (Hassibi and Stork 1993) for a fixed order of weights.
"""

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]

def factorize(
    matrix: npt.NDArray[np.float64], damping: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """U of shape (n, n), zero on and below its diagonal, and D of shape (n,), of ``matrix`` of shape (n, n).

    ``damping`` times the mean of the diagonal is added to the diagonal. Only the upper triangle is read.
    Raises ValueError where the matrix is not positive definite even so.
    """

def surgeon(
    x: Real,
    step: float,
    levels: npt.NDArray[np.int32],
    unit: npt.NDArray[np.float32],
    pivots: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    *,
    dq_flag: int,
    rate: float,
    cabac_unary_length_minus1: int,
) -> None:
    """Replace levels of a matrix, both of shape (rows, columns), by ones of less output error and rate.

    The sum of ``weights[row] * pivots[column] * r**2 / step**2 + rate * bits`` is made small: with dq_flag by a trellis
    whose 8 survivors each carry what they leave to the rest of their row, otherwise level by level. The rates of the
    bins are those of the levels given, and then of those chosen. A value of 0 gets level 0; no level exceeds what plain
    quantization gives the largest value. All in coding order without a block scan; raises ValueError where shapes do
    not fit, ``|x| / step`` is 2**30 or more, or the rate is negative or not finite.
    """
