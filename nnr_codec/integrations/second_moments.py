"""Second moments of vectors, estimated from few samples, and their names in archives.

The mean of few samples has too large differences between its eigenvalues. ``SecondMoments`` therefore moves it towards
a multiple of the identity, by the share with the least expected squared error (Ledoit and Wolf 2004).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Moments = npt.NDArray[np.float64]
Sensitivities = dict[str, npt.NDArray[np.float32]]
#: Second moments of rows and of columns, by name of the weight; None if they are not measured.
Hessians = dict[str, tuple[Moments | None, Moments | None]]

#: Largest number of rows or columns of which second moments are measured: 512 MB for each matrix.
LARGEST = 8192
#: Prefixes of second moments of rows and of columns in an archive.
PREFIXES = ("row_hessian:", "hessian:")


class SecondMoments:
    """Second moments of vectors; the vectors of different samples are independent."""

    def __init__(self) -> None:
        self._count, self._squares = 0, 0.0
        self._total: Moments = np.zeros((1, 1))

    def add(self, samples: Iterable[npt.NDArray[Any]]) -> None:
        """Add the vectors of samples, each of shape (vectors, n)."""
        for vectors in samples:
            wide = vectors.astype(np.float64)
            product = wide.T @ wide
            self._total = self._total + product
            self._squares += float(np.vdot(product, product))
            self._count += 1

    def mean(self) -> Moments | None:
        """Return the mean, moved towards a multiple of the identity, shape (n, n); None without samples."""
        if not self._count:
            return None
        mean = self._total / self._count
        n, square = len(mean), float(np.vdot(mean, mean))
        level = float(np.trace(mean)) / n
        variance = max(self._squares / self._count - square, 0.0) / self._count
        distance = square - n * level**2
        share = min(variance / distance, 1.0) if distance > 0 else 0.0
        return (1 - share) * mean + share * level * np.eye(n)


def archive(sensitivities: Mapping[str, Any], hessians: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of an archive for ``nnr encode --sensitivity``, by name."""
    moments = {
        prefix + name: part
        for name, pair in hessians.items()
        for prefix, part in zip(PREFIXES, pair, strict=True)
        if part is not None
    }
    return {**sensitivities, **moments}
