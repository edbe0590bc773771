"""What updates leave out, for the next one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..encoder.reduce.magnitudes import Floats, work_type
from ..model import Array
from .difference import fits


class ErrorFeedback:
    """What updates left out, to be added to the next ones: ``keep(wanted, decoded)`` after ``wanted = add(update)``.

    Attributes
    ----------
    residual : dict of str to ndarray
        By tensor, float32, or float64 for float64. At most the floats of the last update.

    It can be pickled.
    """

    def __init__(self) -> None:
        self.residual: dict[str, Array] = {}

    def add(self, update: Mapping[str, Array]) -> dict[str, Array]:
        """The update and what earlier ones left out.

        Integers stay as they are. So do tensors with a residual of another shape or type, or whose sum with it is not
        finite: what was left out of them is forgotten, and with it that of tensors which the update does not have.

        Parameters
        ----------
        update : mapping of str to ndarray
            Differences; a tensor of zeros gets what is left of it.

        Returns
        -------
        dict of str to ndarray
            Sums are of the type of the residual.
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
        """Remember what is left out of an update, in the place of what was remembered before.

        Nothing is of a tensor that was decoded in another shape, or has values that are not finite.

        Parameters
        ----------
        wanted : mapping of str to ndarray
            As :meth:`add` gave it.
        decoded : mapping of str to ndarray
            What decoders get; a tensor that it lacks is all 0.
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
        """Forget everything."""
        self.residual = {}
