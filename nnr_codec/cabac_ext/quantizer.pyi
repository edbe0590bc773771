"""Levels for tensors: choices of an encoder, not part of ISO/IEC 15938-17:2024 (which has the inverse, 7.3.6, 9.2)."""

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]

def uniform(x: Real, step: float, levels: npt.NDArray[np.int32]) -> None:
    """Write the nearest multiple of `step` of each value, in steps, to `levels`. All are of shape (n,).

    The caller sees to it that every `|x| / step` is below 2**31.
    """

def dependent(x: Real, step: float, levels: npt.NDArray[np.int32]) -> None:
    """Write the levels whose dependent reconstruction (9.2.3) has the least squared error to `levels`.

    A value of 0 gets level 0 always, so that sparsity survives. An 8-state Viterbi search in coding order from state 0.
    All are of shape (n,); `|x| / step` must be below 2**30.
    """
