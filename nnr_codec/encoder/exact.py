"""The cheapest of all ways to code a tensor bit for bit (docs/side-information.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..errors import EncodeError
from ..sideinfo.record import Code, GridCode, PaletteCode, RawCode
from .cost import CODE_BYTES, RECORD_BYTES, UNIT_BYTES, code_bytes, measured, overhead
from .distinct import SAMPLE
from .floats import UNARY, float_code
from .grids import grid_codes
from .integers import integer_codes
from .plan import Subject, TensorPlan
from .steps import exact_step, with_codebook

#: Parts by which codes that are only estimated from entropies exceed them, and by which a record has to pay.
SURPLUS, GAIN = 1.003, 2.0**-9
#: Bytes of tensors of which no code but the raw one pays for what it adds to the record.
TINY = UNIT_BYTES + RECORD_BYTES + CODE_BYTES


@dataclass
class Cheapest:
    """The plan that takes the fewest bytes of those that are offered, of about equal ones the one without a code.

    Parameters
    ----------
    subject : Subject
    plan : TensorPlan or None
        None as long as none was accepted.
    price : float
        What it takes; of a plan with a code a little more.
    """

    subject: Subject
    plan: TensorPlan | None = None
    price: float = float("inf")

    def offer(self, plan: TensorPlan, price: float | None = None) -> None:
        """Accept a plan that is cheaper; without a price it is measured, where it could be.

        A code that the tensor does not fit is not accepted, nor one for which the record has no room.
        """
        factor = 1 + GAIN if plan.code else 1
        if plan.code and code_bytes(plan.code) > self.subject.room and not isinstance(plan.code, RawCode):
            return
        if price is None:
            if factor * (overhead(plan) + self._floor(plan)) >= self.price:
                return
            try:
                price = measured(self.subject, plan)
            except ValueError:
                return
        if factor * price < self.price:
            self.plan, self.price = plan, factor * price

    def _floor(self, plan: TensorPlan) -> float:
        """Bytes that levels take, about, which tell the items apart; 0 where that is not known, or channels differ."""
        by_channel = isinstance(plan.code, GridCode) and plan.code.axis is not None
        if plan.payload_type == NNR_PT_RAW_FLOAT or by_channel or self.plan is None:
            return 0.0
        return self.subject.distinct.bits / 8 if self.subject.distinct else 0.0


def exact(subject: Subject) -> TensorPlan:
    """The plan that keeps every bit in the fewest bytes.

    Raises EncodeError where side information is not allowed, and NNR alone does not hold the tensor.
    """
    cheapest = Cheapest(subject)
    coded, tiny = subject.config.side_info, subject.array.nbytes <= TINY
    if coded and subject.stored.kind == "f" and not tiny:
        _offer_float_code(cheapest)
    for plan in plain(subject):
        cheapest.offer(plan)
    if coded:
        for code in (RawCode(subject.part_id("raw")),) if tiny else _codes(subject):
            cheapest.offer(subject.coded(code))
    if cheapest.plan is None:
        raise EncodeError(_reason(subject), tensor=subject.name)
    return cheapest.plan


def exact_plain(subject: Subject) -> TensorPlan | None:
    """The plan that keeps every bit in the fewest bytes that every decoder understands; None if none does."""
    cheapest = Cheapest(subject)
    for plan in plain(subject):
        cheapest.offer(plan)
    return cheapest.plan


def plain(subject: Subject) -> Iterator[TensorPlan]:
    """Plans that every decoder understands."""
    if subject.stored.kind == "f":
        if raw_is_exact(subject):
            yield subject.plan(NNR_PT_RAW_FLOAT)
        yield from exact_levels(subject)
    elif subject.bounds[0] >= -(1 << 31) and subject.bounds[1] < 1 << 31:
        yield subject.plan(NNR_PT_INT)


def exact_levels(subject: Subject) -> Iterator[TensorPlan]:
    """Plans of exact steps and codebooks, which every decoder understands."""
    plan = None if subject.out_of_reach else exact_step(subject)
    if plan is None or (plan.record and not subject.plan(NNR_PT_RAW_FLOAT).record):
        return  # a float16 tensor, say, that would have to come from float32
    yield plan
    found = subject.distinct
    if found is not None and subject.options.codebook != 0 and len(found.patterns) <= prod(plan.dims) // 2:
        book = with_codebook(subject, plan, found)
        if book is not None:
            yield book


def _offer_float_code(cheapest: Cheapest) -> None:
    """Offer exponents and the rest of the bits apart."""
    subject = cheapest.subject
    choice = float_code(subject)
    if choice is not None:
        plan = subject.coded(choice.code, unary=UNARY)
        small = subject.array.size <= SAMPLE
        cheapest.offer(plan, None if small else overhead(plan) + SURPLUS * choice.bits / 8)


def _codes(subject: Subject) -> Iterator[Code]:
    """All other codes that may suit the type."""
    if subject.stored.name != "float32":
        yield RawCode(subject.part_id("raw"))
    if subject.stored.kind != "f":
        yield from integer_codes(subject)
    elif subject.stored.bits > 8:  # of 256 values, a palette has all
        yield from grid_codes(subject)
    found = subject.distinct
    if found is not None and subject.stored.bits >= 8:
        values = found.patterns.astype(found.patterns.dtype.newbyteorder("<")).tobytes()
        zero = found.patterns == 0
        for offset in sorted({int(zero.argmax()) if zero.any() else found.most_frequent, found.most_frequent}):
            yield PaletteCode(values, offset, subject.part_id("levels"))


def raw_is_exact(subject: Subject) -> bool:
    """Whether float32 holds all values; of other types not-a-numbers are left out, whose bits conversions change."""
    if subject.stored.name == "float32":
        return True
    values = subject.floats
    if subject.stored.bits < 32:
        return not np.isnan(values).any()
    return np.array_equal(values.astype(np.float32), values)


def _reason(subject: Subject) -> str:
    """Why NNR alone does not hold a tensor."""
    name, stored = subject.name, subject.stored
    if stored.kind != "f":
        low, high = subject.bounds
        return (
            f"tensor {name!r} has integers outside of int32 ({low}..{high}), which only side information holds (7.3.2)"
        )
    return (
        f"tensor {name!r} has {stored.name} values that float32, the type of raw parameters, does not hold (7.3.4); "
        "only side information does"
    )
