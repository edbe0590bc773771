"""The parameters of least magnitude, whatever tensor they are in: the least error that so many zeros can have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...model import Array
from .zeros import Mask, magnitudes


def largest_of_least(tensors: Mapping[str, Array], wanted: int) -> float:
    """The largest magnitude of those ``wanted`` parameters, finite and not 0, that are least; 0 for none."""
    every = np.concatenate([np.zeros(0, "f4"), *(found[found > 0] for found in map(magnitudes, tensors.values()))])
    wanted = min(wanted, len(every))
    if wanted <= 0:
        return 0.0
    every.partition(wanted - 1)
    return float(every[wanted - 1])


def small_items(tensors: Mapping[str, Array], wanted: int) -> dict[str, Mask]:
    """Which parameters, in row-major order, become 0, so that exactly ``wanted`` more do, if there are so many.

    Of those that are alike, and too many, some stay, evenly over all tensors.
    """
    most = np.float64(largest_of_least(tensors, wanted))  # not rounded to float32 where it is compared
    if not most:
        return {}
    found = {name: magnitudes(array) for name, array in tensors.items()}
    masks = {name: np.asarray((one > 0) & (one <= most)) for name, one in found.items()}
    surplus = sum(int(np.count_nonzero(mask)) for mask in masks.values()) - wanted
    if surplus > 0:
        alike = {name: np.flatnonzero(one == most) for name, one in found.items()}
        count, start = sum(map(len, alike.values())), 0
        for name, places in alike.items():
            end = start + len(places)
            masks[name][places[np.diff(np.arange(start, end + 1) * surplus // count) > 0]] = False
            start = end
    return masks
