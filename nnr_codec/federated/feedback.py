"""Error feedback: coding errors of an update are added to the next one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..encoder.reduce.magnitudes import Floats, work_type
from ..model import Array
from .difference import fits


class ErrorFeedback:
    """Coding errors of updates, added to later updates: call ``keep(wanted, decoded)`` after ``wanted = add(update)``.

    Attributes
    ----------
    residual : dict of str to ndarray
        Errors by tensor, float32 (float64 for float64); it has at most the float tensors of the last update.

    It can be pickled.
    """

    def __init__(self) -> None:
        self.residual: dict[str, Array] = {}

    def add(self, update: Mapping[str, Array]) -> dict[str, Array]:
        """Return the update plus the errors of earlier updates.

        Integers are unchanged, and so are tensors whose residual has another shape or type or whose sum is not finite.
        Their residuals are discarded, and so are residuals of tensors that the update lacks.

        Parameters
        ----------
        update : mapping of str to ndarray
            Differences; a tensor of zeros gets its residual.

        Returns
        -------
        dict of str to ndarray
            Sums in the type of the residual.
        """
        added: dict[str, Array] = {}
        for name, array in update.items():
            residual, work = self.residual.get(name), work_type(array)
            added[name] = array
            if work is None or residual is None or residual.dtype != work or not fits(residual.shape, array.shape):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.astype(work) + residual.reshape(array.shape)
            if np.isfinite(total).all():
                added[name] = total
        return added

    def keep(self, wanted: Mapping[str, Array], decoded: Mapping[str, Array]) -> None:
        """Store the coding errors of an update, replacing earlier errors.

        Tensors decoded in another shape or with values that are not finite are skipped.

        Parameters
        ----------
        wanted : mapping of str to ndarray
            Result of :meth:`add`.
        decoded : mapping of str to ndarray
            Result of decoding; a missing tensor counts as 0.
        """
        residual: dict[str, Array] = {}
        for name, array in wanted.items():
            got, work = decoded.get(name), work_type(array)
            if work is None or (got is not None and (work_type(got) is None or not fits(got.shape, array.shape))):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                left: Floats = array.astype(work)
                if got is not None:
                    left -= got.astype(work, copy=False).reshape(array.shape)
            if np.isfinite(left).all():
                residual[name] = left
        self.residual = residual

    def reset(self) -> None:
        """Discard all residuals."""
        self.residual = {}
