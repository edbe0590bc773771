"""Choice of the coding tools of a unit by size: unary length, row skipping, shift parameters (10.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy.typing as npt

from ..cabac_ext.kernel import TensorSide, TensorSyntax, has_zero_rows, magnitude_bits, measure
from .plan import TensorPlan

#: Candidates for cabac_unary_length_minus1: adjacent values differ little, and long codes are slow to decode.
UNARY_LENGTHS = (0, 1, 2, 4, 7, 10, 14, 20, 30)
#: Candidates with high effort, and the number of best candidates that are compared on all levels.
ALL_UNARY_LENGTHS, COMPARED = (*UNARY_LENGTHS, 45, 64, 90, 128, 180, 255), 4
#: Number of levels sampled to choose shift parameter ids, and to compare two codings.
SAMPLE, GLANCE = 1 << 15, 1 << 14
#: Number of levels up to which no shift parameter id pays: each context codes at most one bin of each level.
FEW = 4
#: Smallest saving, as a fraction of the bits estimated from counts, for which a unary length is measured.
PROMISE = 0.0005


@dataclass(slots=True)
class CodedTensor:
    """Tensor of a unit, with its levels and coding tools.

    Parameters
    ----------
    plan : TensorPlan
    levels : ndarray of int32, shape ``plan.dims``
    syntax : TensorSyntax
        Syntax according to the header of the unit.
    side : TensorSide
        Flags and shift parameter ids in the payload.
    """

    plan: TensorPlan
    levels: npt.NDArray[Any]
    syntax: TensorSyntax
    side: TensorSide = field(default_factory=TensorSide)


def choose_tools(tensors: Sequence[CodedTensor], *, thorough: bool = False) -> tuple[int, list[CodedTensor]]:
    """Return the cabac_unary_length_minus1 of a unit, and its tensors with the tools that reduce the size.

    Tools set by options are not changed. The largest tensor determines the unary length.
    Large tensors are sampled unless ``thorough``. The result is the same on every machine.
    """
    sides = [
        TensorSide(
            hist_dep_sig_prob_enabled_flag=one.side.hist_dep_sig_prob_enabled_flag,
            row_skip_enabled_flag=int(_skips_rows(one, thorough)),
        )
        for one in tensors
    ]
    largest = max(range(len(tensors)), key=lambda k: tensors[k].levels.size) if len(tensors) > 1 else 0
    tools = tensors[largest].plan.tools
    unary = tools.cabac_unary_length_minus1
    if "cabac_unary_length_minus1" in tools.open:
        unary = _unary_length(tensors[largest], sides[largest], thorough)
    chosen = []
    for one, side in zip(tensors, sides, strict=True):
        syntax = one.syntax.with_unary_length(unary)
        if one.plan.tools.choose_shift_parameters and one.levels.size > FEW:
            side.shift_parameter_ids, _ = measure(syntax, one.levels, side, sample=_sample(one, thorough, SAMPLE))
        chosen.append(CodedTensor(one.plan, one.levels, syntax, side))
    return unary, chosen


def bits_of(tensors: Sequence[CodedTensor]) -> float:
    """Estimate the bits of tensors, flags and ids included; large tensors are sampled unless plans are thorough."""
    total = 0.0
    for one in tensors:
        sample = _sample(one, one.plan.tools.thorough, SAMPLE)
        total += measure(one.syntax, one.levels, one.side, choose=False, sample=sample)[1]
    return total


def _sample(one: CodedTensor, thorough: bool, usual: int) -> int:
    return one.levels.size if thorough else usual


def _skips_rows(one: CodedTensor, thorough: bool) -> bool:
    """Return whether rows of zeros are coded as flags: according to the option, or by default if that saves bits."""
    options, dims = one.plan.tools, one.plan.dims
    is_open = "row_skipping" in options.open
    # Decoders disagree about skipped rows in block scan unless the width is a multiple of 4 (errata D6).
    agreed = not (one.plan.dq_flag and options.scan_order and prod(dims[1:]) % 4)
    if not (options.row_skipping or is_open) or not one.syntax.can_skip_rows or not agreed:
        return False
    if not has_zero_rows(one.levels):
        return False
    if not is_open:
        return True
    sample = _sample(one, thorough, GLANCE)
    coded, skipped = (
        measure(one.syntax, one.levels, TensorSide(row_skip_enabled_flag=flag), sample=sample)[1] for flag in (0, 1)
    )
    return skipped < coded


def _unary_length(one: CodedTensor, side: TensorSide, thorough: bool) -> int:
    """Return the cabac_unary_length_minus1 with the fewest bits, of candidates selected by a sample or by counts."""
    usual = one.plan.tools.cabac_unary_length_minus1

    def cost(length: int, sample: int) -> float:
        return measure(one.syntax.with_unary_length(length), one.levels, side, sample=sample)[1]

    if thorough:
        favoured = sorted(ALL_UNARY_LENGTHS, key=lambda length: cost(length, SAMPLE))[:COMPARED]
    else:
        bits = magnitude_bits(one.levels, UNARY_LENGTHS[-1], sample=SAMPLE)
        least = min((length for length in UNARY_LENGTHS if length != usual), key=bits.__getitem__)
        favoured = [least] if bits[least] < (1 - PROMISE) * bits[usual] else []
    if not favoured:
        return usual
    sample = _sample(one, thorough, GLANCE)
    return min((usual, *favoured), key=lambda length: cost(length, sample))
