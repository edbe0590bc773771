"""The tools that code levels, by what they save: cabac_unary_length, row skipping, shift parameter ids (10.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy.typing as npt

from ..cabac_ext.kernel import TensorSide, TensorSyntax, has_zero_rows, magnitude_bits, measure
from .plan import TensorPlan

#: Values of cabac_unary_length_minus1 that are tried: neighbours differ little, and long codes take long to decode.
UNARY_LENGTHS = (0, 1, 2, 4, 7, 10, 14, 20, 30)
#: Where time does not matter, more; and how many of them are compared by all levels.
ALL_UNARY_LENGTHS, COMPARED = (*UNARY_LENGTHS, 45, 64, 90, 128, 180, 255), 4
#: Levels of a tensor that are looked at to choose shift parameter ids, and to decide between two ways of coding.
SAMPLE, GLANCE = 1 << 15, 1 << 14
#: Levels of a tensor for which no id saves as many bits as it takes: each context codes at most one bin of each level.
FEW = 4
#: Which part of the bits has to be saved, as counts have it, for a length to be looked into.
PROMISE = 0.0005


class Part(NamedTuple):
    """One tensor of a unit: its levels, int32 of shape ``plan.dims``, and what the unit's header says of them.

    ``hist`` is its hist_dep_sig_prob_enabled_flag.
    """

    plan: TensorPlan
    levels: npt.NDArray[Any]
    syntax: TensorSyntax
    hist: int = 0


class Choice(NamedTuple):
    """The tools of a unit.

    Parameters
    ----------
    cabac_unary_length_minus1 : int
    sides : list of TensorSide
        Of each part.
    """

    cabac_unary_length_minus1: int
    sides: list[TensorSide]


def choose_tools(parts: Sequence[Part], *, thorough: bool = False) -> Choice:
    """The tools that the plans' options leave open, where they save bits; the others as the options have them.

    The largest part decides on cabac_unary_length. Large tensors are sampled unless ``thorough``. Nothing depends on
    the machine.
    """
    sides = [
        TensorSide(hist_dep_sig_prob_enabled_flag=part.hist, row_skip_enabled_flag=int(_skips_rows(part, thorough)))
        for part in parts
    ]
    largest = max(range(len(parts)), key=lambda k: parts[k].levels.size) if len(parts) > 1 else 0
    options = parts[largest].plan.options
    unary = options.cabac_unary_length_minus1
    if "cabac_unary_length_minus1" in options.open:
        unary = _unary_length(parts[largest], sides[largest], thorough)
    for part, side in zip(parts, sides, strict=True):
        if part.plan.options.choose_shift_parameters and part.levels.size > FEW:
            syntax = part.syntax.with_unary_length(unary)
            ids, _ = measure(syntax, part.levels, side, sample=_sample(part, thorough, SAMPLE))
            side.shift_parameter_ids = ids
    return Choice(unary, sides)


def bits_of(parts: Sequence[Part], choice: Choice) -> float:
    """About the bits that parts take, flags and ids included; large tensors are sampled unless plans are thorough."""
    total = 0.0
    for part, side in zip(parts, choice.sides, strict=True):
        syntax = part.syntax.with_unary_length(choice.cabac_unary_length_minus1)
        sample = _sample(part, part.plan.options.thorough, SAMPLE)
        total += measure(syntax, part.levels, side, choose=False, sample=sample)[1]
    return total


def _sample(part: Part, thorough: bool, usual: int) -> int:
    return part.levels.size if thorough else usual


def _skips_rows(part: Part, thorough: bool) -> bool:
    """Whether rows of zeros are coded as flags: as asked for or, where that is open, if it saves bits."""
    options, dims = part.plan.options, part.plan.dims
    is_open = "row_skipping" in options.open
    # Decoders disagree about skipped rows in block scan unless the width is a multiple of 4 (errata D6).
    agreed = not (part.plan.dq_flag and options.scan_order and prod(dims[1:]) % 4)
    if not (options.row_skipping or is_open) or not part.syntax.can_skip_rows or not agreed:
        return False
    if not has_zero_rows(part.levels):
        return False
    if not is_open:
        return True
    sample = _sample(part, thorough, GLANCE)
    coded, skipped = (
        measure(part.syntax, part.levels, TensorSide(row_skip_enabled_flag=flag), sample=sample)[1] for flag in (0, 1)
    )
    return skipped < coded


def _unary_length(part: Part, side: TensorSide, thorough: bool) -> int:
    """The cabac_unary_length_minus1 with the fewest bits of those that a sample, or counts of magnitudes, favour."""
    usual = part.plan.options.cabac_unary_length_minus1

    def cost(length: int, sample: int) -> float:
        return measure(part.syntax.with_unary_length(length), part.levels, side, sample=sample)[1]

    if thorough:
        favoured = sorted(ALL_UNARY_LENGTHS, key=lambda length: cost(length, SAMPLE))[:COMPARED]
    else:
        bits = magnitude_bits(part.levels, UNARY_LENGTHS[-1], sample=SAMPLE)
        least = min((length for length in UNARY_LENGTHS if length != usual), key=bits.__getitem__)
        favoured = [least] if bits[least] < (1 - PROMISE) * bits[usual] else []
    if not favoured:
        return usual
    sample = _sample(part, thorough, GLANCE)
    return min((usual, *favoured), key=lambda length: cost(length, sample))
