"""Whole filters, or rows of matrices, that are small for their tensor (8.3.5), which row skipping codes by a bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...model import Array
from .zeros import CHUNK, Mask, integers, magnitudes


def small_rows(tensors: Mapping[str, Array], wanted: int) -> dict[str, Mask]:
    """Which indices of the first dimension become 0, so that ``wanted`` more parameters do, or few more that are alike.

    They are those whose mean magnitude is at most delta_s times the mean of those of the whole tensor, with one delta_s
    for all tensors. Rows that are not finite stay.
    """
    means, counts = {}, []
    for name, array in tensors.items():
        means[name], nonzero = _row_means(array)
        counts.append(nonzero)
    every, gains = (np.concatenate([*parts]) if parts else np.zeros(0) for parts in ([*means.values()], counts))
    order = np.argsort(every, kind="stable")
    order = order[np.isfinite(every[order])]
    if not order.size or wanted <= 0:
        return {}
    enough = int(np.searchsorted(np.cumsum(gains[order]), wanted))
    delta = every[order[min(enough, order.size - 1)]]
    return {name: np.asarray(means[name] <= delta) for name in tensors}


def _row_means(array: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Mean magnitudes of rows, in parts of the mean of them all, and how many items of them are not 0.

    Of a row that is not finite the mean is infinite, and does not count for the others.
    """
    rows = magnitudes(array).reshape(len(array), -1)
    largest = float(np.nanmax(rows, initial=0))
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    sums = np.zeros(len(rows), np.int64)
    together = max(CHUNK // rows.shape[1], 1)
    for start in range(0, len(rows) if largest else 0, together):
        chunk = slice(start, start + together)
        sums[chunk][finite[chunk]] = integers(rows[chunk][finite[chunk]], largest).sum(axis=1)
    total, means = int(sums.sum()), np.full(len(rows), np.inf)
    means[finite] = sums[finite].astype(np.float64) * np.count_nonzero(finite) / max(total, 1)
    return means, np.count_nonzero(rows > 0, axis=1).astype(np.int64)
