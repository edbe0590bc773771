"""Lossless plan of a tensor: the smallest of all lossless codings (docs/reference/side-information.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cabac_ext import quantizer
from ..config import DEFAULT_STEP_EXPONENT
from ..constants import NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..errors import EncodeError
from ..sideinfo.record import Code, GridCode, IntegerCode, PaletteCode, RawCode, Repeats, TensorRecord
from ..tensor.quant import DTYPES, step_size
from .codebooks import exact_codebook
from .distinct_values import SAMPLE, sample
from .exact_codes import BIN_SURPLUS, EXPONENT_UNARY, LEAST_SAVING, float_code, grid_codes, integer_codes
from .facts import TensorFacts
from .plan import Integers, Quantized, Raw, SourceTensor, TensorPlan, Uniform
from .rate_distortion import (
    CODE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    binarized_bits,
    code_bytes,
    estimated_bytes,
    overhead,
)
from .repeats import find_repeats

#: Factor on bytes estimated from entropies, and the share that a code must save to be worth a record.
SURPLUS, GAIN = 1.003, 2.0**-9
#: Size in bytes up to which only the raw code is worth its entry in the record.
TINY = UNIT_BYTES + RECORD_BYTES + CODE_BYTES
#: Bits of a level or a codebook entry, without the sign.
LEVEL_BITS = 31
#: Estimates of at least this share of the entropy of bins are expected, although contexts adapt to parts of a tensor.
BOUND = 0.95
#: Ratio of mean magnitudes of levels below which a palette in order of frequency is tried.
SHORTER = 0.9
#: Values of a sample that is tried before all values.
GLANCE = 1024


@dataclass
class Cheapest:
    """Smallest of the offered plans; among plans of nearly equal size, one without a code.

    Parameters
    ----------
    facts : TensorFacts
    plan : TensorPlan or None
        None until a plan is accepted.
    price : float
        Bytes of the plan; slightly more for a plan with a code.
    """

    facts: TensorFacts
    plan: TensorPlan | None = None
    price: float = float("inf")

    def offer(self, plan: TensorPlan, price: float | None = None) -> None:
        """Accept a plan if it is smaller. Without a ``price``, its bytes are estimated unless it cannot be smaller.

        A code that does not fit the tensor, or that exceeds the room in the record, is not accepted.
        """
        factor = 1 + GAIN if plan.code else 1
        large = plan.record is not None and code_bytes(plan.record, deflated=False) > self.facts.context.room
        if large and not isinstance(plan.code, RawCode):
            return
        if price is None:
            if factor * (overhead(plan) + self._floor(plan)) >= self.price:
                return
            try:
                price = estimated_bytes(self.facts, plan)
            except ValueError:
                return
        if factor * price < self.price:
            self.plan, self.price = plan, factor * price

    def _floor(self, plan: TensorPlan) -> float:
        """Estimate the bytes of levels that distinguish the items; 0 if unknown, or if channels differ."""
        by_channel, found = isinstance(plan.code, GridCode) and plan.code.axis is not None, None
        if plan.payload_type != NNR_PT_RAW_FLOAT and not by_channel and self.plan is not None:
            found = self.facts.distinct
        if found is None:
            return 0.0
        if found.bits / 8 >= self.price or self.facts.array.size <= SAMPLE:
            return found.bits / 8
        levels: npt.NDArray[Any]
        if isinstance(plan.code, PaletteCode):
            levels = np.arange(len(found.counts)) - plan.code.offset
        elif plan.step and not plan.codebook and not plan.dq_flag:
            levels = np.rint(found.patterns.view(self.facts.stored.dtype).astype(np.float64) / plan.step)
        else:
            return found.bits / 8
        return max(found.bits, BOUND * binarized_bits(levels, found.counts)) / 8


def exact(facts: TensorFacts) -> TensorPlan:
    """Return the smallest lossless plan.

    Raises EncodeError if NNR requires side information for the tensor, which the options disallow.
    """
    cheapest = Cheapest(facts)
    coded, tiny = facts.config.side_info, facts.array.nbytes <= TINY
    if coded and not tiny:
        _offer_float_code(cheapest)
    for plan in plain(facts):
        cheapest.offer(plan)
    if coded:
        for code in (RawCode(facts.part_id("raw")),) if tiny else _codes(facts):
            cheapest.offer(facts.coded(code))
        bits = 8 * min(cheapest.price, facts.array.nbytes) / facts.array.size
        for repeats in find_repeats(facts.array, facts.stored, bits, few=facts.distinct is not None):
            _offer_repeats(cheapest, repeats)
    if cheapest.plan is None:
        raise EncodeError(_reason(facts), tensor=facts.name)
    return cheapest.plan


def _offer_float_code(cheapest: Cheapest) -> None:
    """Offer the plan that codes exponents and stores the other bits of floats."""
    facts = cheapest.facts
    found = float_code(facts) if facts.stored.kind == "f" else None
    if found is not None:
        bits, split = found
        plan = facts.coded(split, unary=EXPONENT_UNARY)
        cheapest.offer(plan, None if facts.array.size <= SAMPLE else overhead(plan) + SURPLUS * bits / 8)


def _offer_repeats(cheapest: Cheapest, repeats: Repeats) -> None:
    """Offer the smallest plan that codes the items that are not copies."""
    facts = cheapest.facts
    kept = Cheapest(facts.kept(repeats))
    _offer_float_code(kept)
    for code in (RawCode(facts.part_id("raw")), IntegerCode(unit=facts.part_id("levels")), *_codes(kept.facts)):
        if not isinstance(code, IntegerCode) or facts.stored.kind != "f":
            kept.offer(kept.facts.coded(code))
    if kept.plan is not None and kept.plan.code is not None:
        record = TensorRecord(facts.stored.name, facts.array.shape, kept.plan.code, repeats=repeats)
        plan = replace(kept.plan, record=record, source=SourceTensor(facts.array.nbytes))
        cheapest.offer(plan, kept.price + code_bytes(record) - code_bytes(replace(record, repeats=None)))


def exact_plain(facts: TensorFacts) -> TensorPlan | None:
    """Return the smallest lossless plan that needs no side information; None if there is none."""
    cheapest = Cheapest(facts)
    for plan in plain(facts):
        cheapest.offer(plan)
    return cheapest.plan


def plain(facts: TensorFacts) -> Iterator[TensorPlan]:
    """Yield plans that need no side information."""
    if facts.stored.kind == "f":
        if raw_is_exact(facts):
            yield facts.plan(Raw())
        yield from exact_levels(facts)
    elif facts.bounds[0] >= -(1 << 31) and facts.bounds[1] < 1 << 31:
        yield facts.plan(Integers())


def exact_levels(facts: TensorFacts) -> Iterator[TensorPlan]:
    """Yield plans with exact step sizes and codebooks, which need no side information."""
    plan = None if facts.context.out_of_reach else exact_step(facts)
    if plan is None or (plan.record and not facts.plan(Raw()).record):
        return  # for example a float16 tensor, which would need conversion from float32
    yield plan
    found = facts.distinct
    if found is not None and facts.options.codebook != 0 and len(found.patterns) <= prod(plan.dims) // 2:
        book = exact_codebook(facts, plan, found)
        if book is not None:
            yield book


def exact_step(facts: TensorFacts) -> TensorPlan | None:
    """Return the plan of lossless uniform quantization; None if no step size is exact."""
    values, density = facts.value_set, facts.config.qp_density
    found = _step_qp(sample(values, GLANCE), density)
    if found is not None and len(values) > GLANCE:
        found = _step_qp(values, density)
    if found is None:
        return None
    qp, largest = found
    data_format = facts.data_format
    step = step_size(qp, density)
    if data_format is DecompressedDataFormat.TENSOR_FLOAT16 and step < float(np.finfo(np.float16).tiny):
        data_format = DecompressedDataFormat.TENSOR_FLOAT32  # step sizes are normal numbers of the format (7.3.6)
    info = np.finfo(DTYPES[data_format])
    if not float(info.tiny) <= step <= float(info.max) or largest > float(info.max):
        return None
    if values.itemsize > info.bits // 8 and not np.array_equal(values.astype(info.dtype), values):
        return None
    return facts.plan(Quantized(Uniform(qp, step)), data_format)


def _step_qp(values: npt.NDArray[np.floating[Any]], density: int) -> tuple[int, float] | None:
    """Return the qp of the largest step size of which all values are multiples, and the largest magnitude.

    Return None if there is no such step size, or if levels are too large.

    A step size of QpDensity d has an odd part below 2**(d + 1). A grid with a larger odd part uses its power of two
    only.
    """
    wide: quantizer.Real = np.ascontiguousarray(values if values.itemsize > 2 else values.astype(np.float32))
    found = quantizer.grid(wide, LEVEL_BITS + 8)
    if found is None:  # more bits than any odd part can save
        return None
    exponent, odd, largest = found
    if not odd:
        exponent, odd = DEFAULT_STEP_EXPONENT, 1
    if odd >= 2 << density:
        odd = 1
    shift = odd.bit_length() - 1
    qp = ((exponent + shift) << density) + (odd << density >> shift) - (1 << density)
    bound = 1 << (5 + density)
    fits = -bound <= qp < bound and largest / step_size(qp, density) < 1 << LEVEL_BITS
    return (qp, largest) if fits else None


def _codes(facts: TensorFacts) -> Iterator[Code]:
    """Yield all other codes for the type."""
    if facts.stored.name != "float32":
        yield RawCode(facts.part_id("raw"))
    if facts.stored.kind != "f":
        yield from integer_codes(facts)
    elif facts.stored.bits > 8:  # with at most 256 values, a palette has all
        yield from grid_codes(facts)
    found = facts.distinct
    if found is not None and facts.stored.bits >= 8:
        zero = found.patterns == 0
        for offset in sorted({int(zero.argmax()) if zero.any() else found.most_frequent, found.most_frequent}):
            yield _palette(facts, found.patterns, offset)
        # Short codes for frequent values: levels 0, 1, -1, 2, -2 ...
        order = np.argsort(-found.counts, kind="stable")
        sizes, places = np.arange(1, len(order) + 1) // 2, np.arange(len(order))
        before, after = found.counts @ abs(places - found.most_frequent), found.counts[order] @ sizes
        if after < SHORTER * before and BIN_SURPLUS * (before - after) > 8 * LEAST_SAVING:
            order = np.concatenate([order[2::2][::-1], order[:1], order[1::2]])
            yield _palette(facts, found.patterns[order], (len(order) - 1) // 2)


def _palette(facts: TensorFacts, patterns: npt.NDArray[Any], offset: int) -> PaletteCode:
    values = patterns.astype(patterns.dtype.newbyteorder("<")).tobytes()
    return PaletteCode(values, offset, facts.part_id("levels"))


def raw_is_exact(facts: TensorFacts) -> bool:
    """Return whether float32 represents all values. NaN of other types is excluded: conversion changes its bits."""
    if facts.stored.name == "float32":
        return True
    values = facts.value_set
    if facts.stored.bits < 32:
        return not np.isnan(values).any()
    return np.array_equal(values.astype(np.float32), values)


def _reason(facts: TensorFacts) -> str:
    """Return the reason why NNR cannot represent a tensor without side information."""
    name, stored = facts.name, facts.stored
    if stored.kind != "f":
        low, high = facts.bounds
        return (
            f"tensor {name!r} has integers outside int32 ({low}..{high}), which only side information can represent "
            "(7.3.2)"
        )
    return (
        f"tensor {name!r} has {stored.name} values that float32, the type of raw parameters, cannot represent (7.3.4); "
        "only side information can"
    )
