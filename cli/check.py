"""What ``nnr encode --check`` tells: how far decoded tensors are from the original ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import nnr_codec as nnr


def compare(source: nnr.Model, decoded: nnr.NnrFile, advance: Callable[[], None]) -> str:
    """The largest error and the SNR (sum of squares of all finite values over that of all errors), in float64."""
    import numpy as np

    largest, where, signal, noise = 0.0, "", 0.0, 0.0
    for name in source:
        before, after = np.asarray(source[name]).reshape(-1), np.asarray(decoded[name]).reshape(-1)
        same = (before == after) | ((before != before) & (after != after))
        finite = before[np.isfinite(before)].astype(np.float64)
        signal += float(np.dot(finite, finite))
        if not same.all():
            error = before[~same].astype(np.float64) - after[~same]
            noise += float(np.dot(error, error))
            worst = float(np.abs(error).max())
            if worst > largest:
                largest, where = worst, name
        advance()
    if not noise:
        return "check: decodes to the same values"
    ratio = 10 * math.log10(signal / noise) if signal else -math.inf
    return f"check: largest error {largest:.3g} (in {where!r}), SNR {ratio:.2f} dB"
