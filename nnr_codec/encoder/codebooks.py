"""Codebooks of quantized tensors: entries, and borders between them, with the lowest error and rate (6.4.3.7)."""

from __future__ import annotations

from dataclasses import replace
from math import frexp

import numpy as np
import numpy.typing as npt

from ..syntax.structures import IntegerCodebook
from ..tensor.quant import DTYPES, step_size
from .distinct_values import Distinct, chunks
from .facts import DEFAULT_LIMITS, TensorFacts
from .plan import Borders, Quantized, TensorPlan
from .rate_distortion import delta_bits

#: Octaves by which the step size of entries is finer than the step size of the tensor, or at most coarser if the type
#: requires it; the range of entries in step sizes, which bounds the histogram to 8 MB.
FINER, COARSER, RANGE = 3, 24, 1 << 20
#: Maximum number of rounds of the Lloyd iteration.
ROUNDS = 40
#: Fractions of a bit to which code lengths are rounded: they are then equal on all machines.
LENGTH_STEPS = 1 << 12

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


def integer_codebook(entries: Integers, zero: int) -> IntegerCodebook:
    """Return the codebook of ascending integers; the integer with index ``zero`` has level 0."""
    deltas = np.diff(entries) - 1
    return IntegerCodebook(
        codebook_egk=min(range(16), key=lambda order: delta_bits(deltas, order)),
        codebook_size=len(entries),
        codebook_centre_offset=zero - (len(entries) >> 1),
        codebook_zero_value=int(entries[zero]),
        codebook_delta_left=deltas[:zero][::-1].tolist(),
        codebook_delta_right=deltas[zero:].tolist(),
    )


def exact_codebook(facts: TensorFacts, plan: TensorPlan, found: Distinct) -> TensorPlan | None:
    """Return a lossless plan with a codebook of the distinct values; None if decoders would reject it."""
    if not len(found.patterns) <= DEFAULT_LIMITS.max_codebook:
        return None
    values = found.patterns.view(facts.stored.dtype).astype(np.float64)
    entries = np.rint(values / plan.step).astype(np.int64)
    zero = int(np.searchsorted(entries, 0)) if 0 in entries else found.most_frequent
    return replace(plan, coding=Quantized(plan.coding.quantizer, integer_codebook(entries, zero)))


def learnt_codebook(facts: TensorFacts, plan: TensorPlan, worth: float, size: int | None = None) -> TensorPlan | None:
    """Return the plan of a quantized tensor with a codebook instead of multiples of its step size.

    Parameters
    ----------
    facts : TensorFacts
    plan : TensorPlan
        Plan with a step size.
    worth : float
        Cost of a bit in squared step sizes.
    size : int, optional
        Maximum number of entries; by default, as many as reduce the cost.

    Returns
    -------
    TensorPlan or None
        Plan with uniform quantization; None if entries would be too far apart, or not exact in the tensor's type.
    """
    density = facts.config.qp_density
    info = np.finfo(DTYPES[plan.data_format])
    low, high = facts.bounds
    own = frexp(plan.step)[1] - 1
    for exponent in range(max(own - FINER, -32, int(info.minexp)), min(own + COARSER, 32)):
        step = step_size(exponent << density, density)
        if max(high, -low) / step + 2 < 2.0 ** (info.nmant + 1) and (high - low) / step <= RANGE:
            break
    else:
        return None
    lowest = int(np.rint(low / step))
    counts = np.zeros(int(np.rint(high / step)) - lowest + 1, np.int64)
    zeros = False
    for part in chunks(facts.floats.reshape(-1)):
        integers = np.rint(part.astype(np.float64) / step).astype(np.int64) - lowest
        counts += np.bincount(integers, minlength=counts.size)
        zeros = zeros or not part.all()
    places = counts.nonzero()[0]
    found = _lloyd(places + lowest, counts[places], plan.step / step, worth * (plan.step / step) ** 2, size)
    entries, borders, masses = found
    zero = int(np.searchsorted(borders, 0.0, side="right")) if low <= 0 <= high else int(masses.argmax())
    if zeros:
        entries[zero] = 0  # 0 is between the borders of this entry, so the order of entries does not change
        entries = np.unique(entries)
        zero = int(np.searchsorted(entries, 0))
    if len(entries) <= len(borders):
        borders = (entries[1:] + entries[:-1]) / 2
    if len(entries) > DEFAULT_LIMITS.max_codebook:
        return None
    quantizer = Borders(exponent << density, step, tuple(borders.tolist()))
    return replace(plan, coding=Quantized(quantizer, integer_codebook(entries, zero)))


def _lloyd(
    places: Integers, counts: Integers, pitch: float, worth: float, size: int | None
) -> tuple[Integers, Doubles, Integers]:
    """Return entries, the borders between them, and the number of values of each entry, for values with these counts.

    Entropy-constrained: each round assigns values to the entry with the lowest squared error plus ``worth`` times the
    bits of its share, then moves entries to the mean of their values.
    """
    total, sums = np.append(0, counts.cumsum()), np.append(0, (counts * places).cumsum())
    entries = _start(places, counts, pitch, size)
    lengths = np.zeros(len(entries))
    masses, borders = counts, np.zeros(0)
    for _ in range(ROUNDS):
        borders = _borders(entries, lengths, worth)
        cuts = np.concatenate([[0], np.searchsorted(places, borders, side="right"), [len(places)]])
        masses, means = np.diff(total[cuts]), np.diff(sums[cuts])
        kept = masses > 0
        after = means[kept] / masses[kept]
        masses = masses[kept]
        lengths = np.rint(-np.log2(masses / total[-1]) * LENGTH_STEPS) / LENGTH_STEPS
        if len(after) == len(entries) and np.array_equal(after, entries):
            break
        entries = after
    integers, first = np.unique(np.rint(entries).astype(np.int64), return_index=True)
    return integers, _borders(integers.astype(np.float64), lengths[first], worth), masses[first]


def _start(places: Integers, counts: Integers, pitch: float, size: int | None) -> Doubles:
    """Return initial entries: a grid, or ``size`` entries, denser where there are more values."""
    if size is None:
        return np.unique(np.rint(places / pitch)) * pitch
    root = np.sqrt(np.sqrt(np.sqrt(counts)))  # near the optimal cube root, by IEEE operations
    weight = np.append(0.0, (root * root * root).cumsum())
    found = np.interp((np.arange(size) + 0.5) / size * weight[-1], weight, np.append(places, places[-1]))
    return np.unique(found)


def _borders(entries: Doubles, lengths: Doubles, worth: float) -> Doubles:
    """Return the borders above which each next entry is better, in ascending order.

    An entry that is never the best makes borders descend; the running maximum then assigns its values to other entries.
    """
    gaps = np.diff(entries)
    return np.maximum.accumulate((entries[1:] + entries[:-1]) / 2 + worth * np.diff(lengths) / (2 * gaps))
