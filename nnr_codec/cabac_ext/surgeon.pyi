"""Data-aware quantization: choices of an encoder, not part of ISO/IEC 15938-17:2024.

Let w be a row of a matrix, q the quantized row, and H the second moments of the layer's inputs. The output error of the
row is (w - q) H (w - q)^T. With H = U D U^T and U unit upper triangular, the error is the sum of D[i] * r[i]**2, where
r[i] = w[i] - q[i] + sum((w[j] - q[j]) * U[j, i] for j < i). Each level can therefore compensate for the errors of the
levels before it. This is the optimal brain surgeon (Hassibi and Stork 1993) for a fixed order of weights.

With second moments R = V C V^T of rows, the error of a matrix is trace(R (W - Q) H (W - Q)^T). The targets of row k are
then W[k] + sum((W[l] - Q[l]) * V[l, k] for l < k), and its weight is C[k].
"""

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]

def factorize(
    matrix: npt.NDArray[np.float64], damping: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Factorize ``matrix``, the second moments H of shape (n, n), into U and D.

    ``damping`` times the mean of the diagonal is added to the diagonal first. Only the upper triangle is read. Returns
    U - I, float32 of shape (n, n), and the diagonal of D, float64 of shape (n,). Raises ValueError if the damped matrix
    is not positive definite.
    """

def surgeon(
    x: Real,
    step: float,
    levels: npt.NDArray[np.int32],
    unit: npt.NDArray[np.float32] | None,
    pivots: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    *,
    dq_flag: int,
    rate: float,
    cabac_unary_length_minus1: int,
    row_unit: npt.NDArray[np.float32] | None,
    run: int,
    stride: int,
) -> None:
    """Replace the levels of a matrix by levels with less output error and rate.

    Reduces the sum of ``weights[row] * pivots[column] * r**2 / step**2 + rate * bits``. With dependent quantization, a
    trellis search chooses the levels; each of its 8 survivors has its own targets for the rest of the row. With uniform
    quantization, each level is chosen separately. Bin costs are estimated from the given levels first, and increasingly
    from the chosen ones. A value of 0 gets level 0. No level exceeds the rounded level of the largest value.

    Parameters
    ----------
    x : ndarray of float32 or float64, shape (rows, columns)
        Values, in coding order without a block scan.
    step : float
        Step size.
    levels : ndarray of int32, shape (rows, columns)
        Input and output.
    unit, pivots
        U - I and D of :func:`factorize` for the columns. None for U = I.
    weights : ndarray of float64, shape (rows,)
        Importance of the output error of each row.
    dq_flag : int
        1: dependent quantization (9.2.3); 0: uniform quantization (9.2.1).
    rate : float
        Cost of one bit in squared step sizes times the unit of ``weights * pivots``.
    cabac_unary_length_minus1 : int
        Syntax element, 0 to 255.
    row_unit : ndarray of float32, shape (size, size), or None
        V - I for a group of rows; ``weights`` is C then. The search of each row then ends in its cheapest state.
    run, stride : int
        A group consists of ``size / run`` runs of ``run`` consecutive rows, which begin ``stride`` rows apart; the rows
        between them belong to other groups. 0: ``size``, so that ``size`` consecutive rows are a group.

    Raises
    ------
    ValueError
        If shapes do not fit, ``|x| / step`` is at least 2**30, or `rate` is negative or not finite.
    """
