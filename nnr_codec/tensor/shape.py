"""Array functions of ISO/IEC 15938-17:2024, 4.12, on ndarrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import ElementError
from ..rules import Requirement

A = TypeVar("A", bound=np.generic)


def dimension_shift(tensor: npt.NDArray[A], shift: int) -> npt.NDArray[A]:
    """Apply DimensionShift(), 4.12: move the first dimension to position ``shift``. Returns an array in C order."""
    return np.ascontiguousarray(np.moveaxis(tensor, 0, shift)) if shift else tensor


def tensor_split(tensor: npt.NDArray[A], split_index: Sequence[int], axis: int) -> list[npt.NDArray[A]]:
    """Apply TensorSplit(), 4.12 with errata N2: return the pieces of ``tensor`` along ``axis`` as views.

    Raises ElementError if the axis or an index is outside the tensor, or if the indices do not increase.
    """
    if axis >= tensor.ndim:
        raise ElementError(
            f"concatentation_axis_index is {axis}, but the tensor has {tensor.ndim} dimensions",
            clause="6.4.3.7",
            rule=Requirement.SPLIT_MAPPING,
        )
    edges = [0, *split_index, tensor.shape[axis]]
    if any(low >= high for low, high in pairwise(edges)):
        raise ElementError(
            f"split_index {list(split_index)} does not increase from above 0 to below {tensor.shape[axis]}",
            clause="6.4.3.7",
            rule=Requirement.SPLIT_MAPPING,
        )
    return np.split(tensor, split_index, axis)


def shift_axes(tensor: npt.NDArray[A], shift_index: Sequence[int], shift_value: Sequence[int]) -> npt.NDArray[A]:
    """Apply the shifts of topology_tensor_dimension_mapping(), which move an axis left by AxisSwap() (errata N2), as a
    view."""
    for axis, value in zip(shift_index, shift_value, strict=True):
        if not value <= axis < tensor.ndim:
            raise ElementError(
                f"axis {axis} of {tensor.ndim} cannot be shifted left by {value}",
                clause="6.4.3.7",
                rule=Requirement.SPLIT_MAPPING,
            )
        tensor = np.moveaxis(tensor, axis, axis - value)
    return tensor
